// runtime_cuda.c: the CUDA device against a driver made of plain functions: what is asked of it, in
// what order, and what is said when it fails. A GPU is not needed.
#include "gpu_fixture.h"
#include "runtime/device.h"
#include "runtime/gpu.h"
#include "runtime/nvml.h"
#include "runtime/ptx.h"

// What there is, and what fails; one test at a time runs.
static struct Fake {
    int count, capability, shared, fail_load, fail_library, fail_module, capture;
    bool early; // kernels wait for the one before them
    void *current;
} fake;

static char primary, foreign;

static int f_name(int r, const char **out) {
    return *out = r == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR", 0;
}
static int f_string(int r, const char **out) { return *out = r ? "went wrong" : "", 0; }
static int f_count(int *n) { return *n = fake.count, fake.count < 0 ? 100 : 0; }
static int f_device(int *d, int i) { return *d = i + 40, 0; }
static int f_attribute(int *out, int which, int d) {
    (void)d;
    *out = which == 16   ? 132
           : which == 75 ? fake.capability / 10
           : which == 76 ? fake.capability % 10
                         : fake.shared;
    return 0;
}
static int f_retain(void **c, int d) { return note("retain %d;", d), *c = &primary, 0; }
static int f_release(int d) { return note("release %d;", d), 0; }
static int f_current(void **c) { return *c = fake.current, 0; }
static int f_ctx_device(int *d) { return *d = 40, 0; }
static int f_push(void *c) { return note("push %s;", c == &primary ? "primary" : "foreign"), 0; }
static int f_pop(void **c) { return note("pop;"), *c = NULL, 0; }
static void note_entries(const char *at) {
    note("load");
    for (; (at = strstr(at, "entry ")); at++) note(" %.*s", (int)strcspn(at + 6, "("), at + 6);
    note(";");
}
static int f_load(void **m, const void *image, unsigned n, int *options, void **values) {
    ck_assert_uint_eq(n, 2);
    ck_assert_int_eq(options[0], 5);
    if (fake.fail_load) return snprintf(values[0], 20, "line 3;\nno such op"), 218;
    note_entries(image);
    return *m = &gpu_module, 0;
}
static int f_capture(int *mode) {
    int was = fake.capture;
    fake.capture = *mode;
    *mode = was;
    return note("capture %d;", fake.capture), 0;
}
static int f_set(void *f, int which, int v) {
    return note("set %d %d=%d;", gpu_number(f), which, v), 0;
}
static int f_launch_ex(const CudaLaunch *c, void *f, void **args, void **extra) {
    (void)args;
    ck_assert(!extra && c->nattributes > 0 && c->nattributes < 3);
    note("launch_ex %d grid %u", gpu_number(f), c->grid[0]);
    for (unsigned i = 0; i < c->nattributes; i++) {
        const CudaAttribute *a = &c->attributes[i];
        ck_assert(a->id == 4 || a->id == 6);
        note(a->id == 4 ? " cluster %u" : " early %u",
             a->id == 4 ? a->cluster.x : (unsigned)a->early);
    }
    return note(";"), 0;
}
static int f_edges(void) { return 1; }
static int f_map(CudaMap *out, int type, uint32_t rank, void *p, const uint64_t *n,
                 const uint64_t *stride, const uint32_t *box, const uint32_t *step, int interleave,
                 int swizzle, int promotion, int fill) {
    ck_assert(step[rank - 1] == 1 && interleave == 0 && promotion == 3 && fill == 0);
    ck_assert_uint_eq((uintptr_t)out % 64, 0);
    note("map %d %llx", type, (unsigned long long)(uintptr_t)p);
    for (uint32_t i = 0; i < rank; i++) note(" %llu", (unsigned long long)n[i]);
    for (uint32_t i = 1; i < rank; i++) note(" /%llu", (unsigned long long)stride[i - 1]);
    for (uint32_t i = 0; i < rank; i++) note(" [%u]", box[i]);
    note(" swizzle %d;", swizzle);
    out->word[0] = 77;
    return 0;
}
static int f_fill(uint64_t p, unsigned char b, size_t n) {
    return memset((void *)(uintptr_t)p, b, n), 0;
}
static int f_alloc(uint64_t *p, size_t n) {
    return *p = (uint64_t)(uintptr_t)malloc(n), *p ? 0 : 2;
}
static int f_free(uint64_t p) { return free((void *)(uintptr_t)p), 0; }
static int f_in(uint64_t to, const void *from, size_t n) {
    return memcpy((void *)(uintptr_t)to, from, n), 0;
}
static int f_out(void *to, uint64_t from, size_t n) {
    return memcpy(to, (void *)(uintptr_t)from, n), 0;
}
static int f_within(uint64_t to, uint64_t from, size_t n, void *s) {
    return memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, n), s != NULL;
}
static int f_event(void **e, unsigned flags) { return *e = malloc(1), (int)flags; }
static int f_record(void *e, void *s) { return !e || s; }
static int f_event_sync(void *e) { return !e; }
static int f_elapsed(float *ms, void *a, void *b) { return *ms = 1.5f, a == b; }
static int f_event_free(void *e) { return free(e), 0; }

static const GpuDriver DRIVER = {
    .init = f_init,
    .error_name = f_name,
    .error_string = f_string,
    .device_count = f_count,
    .device_get = f_device,
    .device_name = f_device_name,
    .device_attribute = f_attribute,
    .primary_retain = f_retain,
    .primary_release = f_release,
    .ctx_current = f_current,
    .ctx_device = f_ctx_device,
    .ctx_push = f_push,
    .ctx_pop = f_pop,
    .device_sync = f_sync,
    .module_load = f_load,
    .module_unload = f_unload,
    .module_function = f_function,
    .function_set = f_set,
    .launch = f_launch,
    .capture_mode = f_capture,
    .launch_ex = f_launch_ex,
    .graph_edges = f_edges,
    .fill_async = f_fill_async,
    .fill_rows_async = f_fill_rows_async,
    .fill = f_fill,
    .alloc = f_alloc,
    .release = f_free,
    .copy_in = f_in,
    .copy_out = f_out,
    .copy_within = f_within,
    .event_create = f_event,
    .event_record = f_record,
    .event_sync = f_event_sync,
    .event_elapsed = f_elapsed,
    .event_destroy = f_event_free,
    .map_encode = f_map,
};

static const attn_device GPU = {ATTN_CUDA, 0};

static attn_context *context(void) {
    attn_context *c = attn_create();
    c->cuda = malloc(sizeof *c->cuda);
    *c->cuda = DRIVER;
    gpu = (struct Gpu){0};
    fake = (struct Fake){.count = 1, .capability = 90, .shared = 232448};
    return c;
}

#define TEXT_WITH(part, join)                                                                      \
    ".version 8.0\n.visible .global .align 4 .b8 attn_words[65536];\n"                             \
    ".visible .entry sum_part(\n.param .u64 p\n)\n{\n" part "\tret;\n}\n"                          \
    ".visible .entry sum_join(){\n" join "}\n.visible .entry sum_one()\n{\n}\n"                    \
    ".visible .entry copy_one()\n{\n}\n"
#define WAIT "\tgriddepcontrol.wait;\n"
static const char TEXT[] = TEXT_WITH("", ""), EARLY[] = TEXT_WITH(WAIT, WAIT);

// The fixture as PTX, with GPU numbers in its kernels.
static char *ptx(const char *target, uint32_t shared, uint32_t cluster, size_t *n) {
    static GpuMeta g;
    char *out;
    gpu_meta(&g, ABI_CODE_PTX, target, 128);
    g.k[1].shared = shared;
    g.k[1].cluster = cluster;
    static AbiInsn one[] = {{ABI_OP_CONST, 1}};
    static AbiTensor with_word[TENSORS];
    if (gpu.word) {
        memcpy(with_word, tensors, sizeof with_word);
        with_word[PART] =
            (AbiTensor){"part", ABI_ROLE_WORK, ABI_I32, ABI_ZEROED | ABI_RESTORED, 1, 0, {E(one)}};
        g.v[0].tensors = with_word;
        g.k[0].nargs = g.k[1].nargs = ONE_ARGS + 1;
    }
    if (gpu.maps) {
        static AbiArg args[ALL_ARGS + 1];
        static AbiMap map;
        map = gpu.maps_bias ? (AbiMap){BIAS, 0, 0, {1, 4}} : (AbiMap){V, 2, 0, {1, 1, 32, FIX_DV}};
        memcpy(args, g.k[0].args, ALL_ARGS * sizeof args[0]);
        args[ALL_ARGS] = (AbiArg){ABI_ARG_MAP, 0, 0};
        g.k[0].args = args;
        g.k[0].nargs = ALL_ARGS + 1;
        g.k[0].maps = &map;
        g.k[0].nmaps = 1;
    }
    const char *text = fake.early ? EARLY : TEXT;
    ck_assert_ptr_null(abi_ptx(text, strlen(text), &g.m, &out, n));
    return out;
}

static attn_status open_ptx(attn_context *c, const char *target, uint32_t shared, uint32_t cluster,
                            attn_artifact **a, attn_error *e) {
    size_t n;
    char *file = ptx(target, shared, cluster, &n);
    attn_status s = attn_open(c, file, n, GPU, a, e);
    free(file);
    return s;
}

TEST(loads_and_launches) {
    attn_context *c = context();
    attn_artifact *a;
    attn_error e;
    ck_assert_msg(open_ptx(c, "sm_80", 100000, 1, &a, &e) == ATTN_OK, "%s", e.message);
    ck_assert_str_eq(gpu.log, "retain 40;push primary;pop;"); // no kernel is loaded yet
    gpu.log[0] = 0;
    ck_assert_msg(gpu_launch(a, GPU, 3, 0x3000, V_STRIDES, &e) == ATTN_OK, "%s", e.message);
    ck_assert_str_eq(gpu.log, "push primary;capture 2;load sum_part;capture 0;pop;"
                              "push primary;capture 2;load sum_join;set 1 8=100000;capture 0;pop;"
                              "push primary;zero 10000 0 256 stream;pop;"
                              "push primary;launch 0 grid 16 block 128 shared 0 stream;pop;"
                              "push primary;launch 1 grid 24 block 128 shared 100000 stream;pop;");
    ck_assert_uint_eq(gpu.slot[0], 0x3000);
    ck_assert_uint_eq(gpu.slot[3], 0);        // rows: left out
    ck_assert_uint_eq(gpu.slot[5], 400);      // a stride of v
    ck_assert_uint_eq(gpu.slot[19], 0x10000); // part
    gpu.log[0] = 0;
    fake.current = &primary; // already there: nothing to push
    ck_assert_int_eq(gpu_launch(a, GPU, 3, 0x3000, V_STRIDES, &e), ATTN_OK);
    ck_assert_ptr_nonnull(strstr(gpu.log, "stream;launch 0"));
    ck_assert_ptr_null(strstr(gpu.log, "load")); // they are there
    gpu.log[0] = 0;
    attn_close(a);
    attn_destroy(c);
    ck_assert_str_eq(gpu.log, "unload;unload;release 40;");
}

TEST(uses_the_current_context) {
    attn_context *c = context();
    attn_artifact *a;
    attn_error e;
    fake.current = &foreign;
    ck_assert_int_eq(open_ptx(c, "sm_90a", 0, 2, &a, &e), ATTN_OK);
    ck_assert_str_eq(gpu.log, ""); // nothing to make or to push
    gpu.log[0] = 0;
    ck_assert_int_eq(gpu_launch(a, GPU, 3, 0x3000, V_STRIDES, &e), ATTN_OK);
    ck_assert_ptr_nonnull(strstr(gpu.log, "launch_ex 1 grid 24 cluster 2;"));
    attn_close(a);
    attn_destroy(c);
}

// What waits by itself may begin beside the kernel before it, if that is of the same launch.
TEST(begins_early) {
    for (int with = 0; with < 5; with++) {
        attn_context *c = context();
        attn_artifact *a;
        attn_error e;
        fake.early = with > 0;
        if (with == 3) c->cuda->launch_ex = NULL;
        if (with == 4) c->cuda->graph_edges = NULL;
        ck_assert_int_eq(open_ptx(c, "sm_90a", 0, with == 2 ? 2 : 1, &a, &e), ATTN_OK);
        gpu.log[0] = 0;
        ck_assert_int_eq(gpu_launch(a, GPU, 3, 0x3000, V_STRIDES, &e), ATTN_OK);
        static const char *const want[] = {";launch 1 grid 24", "launch_ex 1 grid 24 early 1;",
                                           "launch_ex 1 grid 24 cluster 2 early 1;",
                                           ";launch 1 grid 24", ";launch 1 grid 24"};
        ck_assert_ptr_nonnull(strstr(gpu.log, ";launch 0 grid 16"));
        ck_assert_ptr_nonnull(strstr(gpu.log, want[with]));
        attn_close(a);
        attn_destroy(c);
    }
}

TEST(alignment) {
    attn_context *c = context();
    attn_artifact *a;
    attn_error e;
    ck_assert_int_eq(open_ptx(c, "sm_80", 0, 1, &a, &e), ATTN_OK);
    ck_assert_int_eq(gpu_launch(a, GPU, 3, 0x3008, V_STRIDES, &e), ATTN_ERROR_CALL);
    ck_assert_str_eq(e.message, "v: its address is no multiple of 16 bytes (it is off by 8)");
    ck_assert_int_eq(gpu_launch(a, GPU, 3, 0x3000, NULL, &e), ATTN_ERROR_CALL);
    ck_assert_str_eq(e.message,
                     "v: dimension 2 has stride 2, which is no multiple of 4 elements (16 bytes)");
    attn_close(a);
    attn_destroy(c);
}

// ---- words that launches leave 0

static struct Streams {
    int global, capturing, asked; // what calls give back
    uint64_t number;
    size_t bytes;
} streams;

static int f_global(uint64_t *at, size_t *bytes, void *m, const char *name) {
    ck_assert(m == &gpu_module && !strcmp(name, "attn_words"));
    return *at = 0x900000, *bytes = streams.bytes, streams.global;
}
static int f_number(void *s, uint64_t *out) {
    ck_assert(s == &gpu_stream);
    return *out = streams.number, streams.asked;
}
static int f_capturing(void *s, int *out) {
    (void)s;
    return *out = streams.capturing, streams.asked;
}

static void take_streams(attn_context *c) {
    c->cuda->module_global = f_global;
    c->cuda->stream_number = f_number;
    c->cuda->stream_capturing = f_capturing;
    streams = (struct Streams){.bytes = 4 * 258, .number = 70};
    gpu.word = true;
}

static uint64_t word_of_launch(attn_artifact *a) {
    attn_error e;
    gpu.log[0] = 0;
    ck_assert_msg(gpu_launch(a, GPU, 3, 0x3000, V_STRIDES, &e) == ATTN_OK, "%s", e.message);
    ck_assert_int_eq(strstr(gpu.log, "zero 10000 0 256 stream;") != NULL, gpu.slot[19] == 0x10000);
    return gpu.slot[19];
}

// One for each stream, a new one for each launch that is captured, the workspace where they end.
TEST(words_of_streams) {
    attn_context *c = context();
    attn_artifact *a;
    attn_error e;
    take_streams(c);
    ck_assert_msg(open_ptx(c, "sm_80", 0, 1, &a, &e) == ATTN_OK, "%s", e.message);
    ck_assert_uint_eq(word_of_launch(a), 0x900000);
    ck_assert_uint_eq(word_of_launch(a), 0x900000);
    streams.number = 71;
    ck_assert_uint_eq(word_of_launch(a), 0x900004);
    streams.capturing = 1;
    ck_assert_uint_eq(word_of_launch(a), 0x900400);
    ck_assert_uint_eq(word_of_launch(a), 0x900404);
    ck_assert_uint_eq(word_of_launch(a), 0x10000);
    streams.capturing = 0;
    streams.number = 70;
    ck_assert_uint_eq(word_of_launch(a), 0x900000);
    streams.asked = 906; // another stream is being captured
    ck_assert_uint_eq(word_of_launch(a), 0x10000);
    streams.asked = 0;
    for (streams.number = 100; streams.number < 100 + 254; streams.number++)
        ck_assert_uint_eq(word_of_launch(a), 0x900008 + 4 * (streams.number - 100));
    ck_assert_uint_eq(word_of_launch(a), 0x10000);
    attn_close(a);
    attn_destroy(c);
}

TEST(no_words) {
    for (int i = 0; i < 3; i++) {
        attn_context *c = context();
        attn_artifact *a;
        attn_error e;
        take_streams(c);
        if (i == 0) c->cuda->stream_number = NULL; // an older driver
        if (i == 1) streams.global = 500;          // older code
        if (i == 2) streams.bytes = 1020;
        ck_assert_msg(open_ptx(c, "sm_80", 0, 1, &a, &e) == ATTN_OK, "%s", e.message);
        ck_assert_uint_eq(word_of_launch(a), 0x10000);
        attn_close(a);
        attn_destroy(c);
    }
}

static void not_opened(attn_context *c, const char *target, uint32_t shared, uint32_t cluster,
                       attn_status status, const char *message) {
    attn_artifact *a;
    attn_error e;
    ck_assert_int_eq(open_ptx(c, target, shared, cluster, &a, &e), status);
    ck_assert_str_eq(e.message, message);
    ck_assert_ptr_null(a);
}

TEST(tensor_maps) {
    attn_context *c = context();
    attn_artifact *a;
    attn_error e;
    gpu.maps = true;
    ck_assert_msg(open_ptx(c, "sm_90a", 0, 1, &a, &e) == ATTN_OK, "%s", e.message);
    gpu.log[0] = 0;
    ck_assert_int_eq(gpu_launch(a, GPU, 3, 0x3000, V_STRIDES, &e), ATTN_OK);
    ck_assert_ptr_nonnull(strstr(gpu.log,
                                 "pop;push primary;map 7 3000 2 100 2 2 /16 /1600 /3200 [2] [32] "
                                 "[1] [1] swizzle 2;launch 0 "));
    ck_assert_uint_eq(gpu.slot[24], 77);
    attn_close(a);
    attn_destroy(c);
    c = context();
    gpu.maps = true;
    fake.capability = 80;
    ck_assert_int_eq(open_ptx(c, "sm_80", 0, 1, &a, &e), ATTN_ERROR_ARTIFACT);
    ck_assert_str_eq(e.message,
                     "sum_part wants tensor maps, which this GPU or its driver does not have");
    attn_destroy(c);
}

// A plan whose kernels copy an input is for launches in which rows of it begin at multiples of 16 bytes.
TEST(inputs_that_are_copied) {
    attn_context *c = context();
    attn_artifact *a;
    attn_error e;
    gpu.maps = gpu.maps_bias = true;
    ck_assert_msg(open_ptx(c, "sm_90a", 0, 1, &a, &e) == ATTN_OK, "%s", e.message);
    static const struct {
        uintptr_t address;
        int64_t stride;
        bool copied;
    } cases[] = {{0x5000, 4, true}, {0x5004, 4, false}, {0x5000, 3, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gpu.log[0] = 0;
        gpu.bias_address = cases[i].address;
        gpu.bias_strides = (int64_t[]){cases[i].stride, 1};
        ck_assert_msg(gpu_launch(a, GPU, 3, 0x3000, V_STRIDES, &e) == ATTN_OK, "%s", e.message);
        ck_assert_int_eq(strstr(gpu.log, "map 7 5000 3 4 /16 ") != NULL, cases[i].copied);
        ck_assert_int_eq(strstr(gpu.log, "load sum_one") != NULL, !cases[i].copied && i == 1);
    }
    attn_close(a);
    attn_destroy(c);
}

TEST(refusals) {
    attn_context *c = context();
    fake.count = -1;
    not_opened(c, "sm_80", 0, 1, ATTN_ERROR_DEVICE,
               "there is no NVIDIA GPU here (CUDA_ERROR_NO_DEVICE): use --device=cpu");
    fake.count = 0;
    not_opened(c, "sm_80", 0, 1, ATTN_ERROR_DEVICE,
               "there is no NVIDIA GPU here (no device): use --device=cpu");
    fake.count = 1;
    fake.capability = 75;
    not_opened(c, "sm_80", 0, 1, ATTN_ERROR_DEVICE,
               "cuda:0 is sm_75, and sm_80 is the least: use --device=cpu");
    fake.capability = 80;
    not_opened(c, "sm_90a", 0, 1, ATTN_ERROR_ARTIFACT,
               "the artifact is for sm_90a, this GPU is sm_80: compile it with --target=sm_80");
    not_opened(c, "sm_80", 0, 2, ATTN_ERROR_ARTIFACT,
               "sum_join wants clusters, which this GPU or its driver does not have");
    not_opened(c, "sm_80", 250000, 1, ATTN_ERROR_ARTIFACT,
               "sum_join takes 250000 bytes of shared memory, this GPU has 232448");
    not_opened(c, "gfx942", 0, 1, ATTN_ERROR_ARTIFACT,
               "the artifact is for gfx942, which is no NVIDIA GPU");
    attn_destroy(c);
}

TEST(a_kernel_that_does_not_load) {
    attn_context *c = context();
    attn_artifact *a;
    attn_error e;
    fake.current = &primary;
    ck_assert_int_eq(open_ptx(c, "sm_80", 0, 1, &a, &e), ATTN_OK);
    fake.fail_load = 1;
    ck_assert_int_eq(gpu_launch(a, GPU, 3, 0x3000, V_STRIDES, &e), ATTN_ERROR_DEVICE);
    ck_assert_str_eq(e.message, "loading the PTX: CUDA_ERROR (218) went wrong: line 3; no such op");
    ck_assert_str_eq(gpu.log, "capture 2;capture 0;"); // nothing was queued
    fake.fail_load = 0;
    gpu.log[0] = 0;
    ck_assert_int_eq(gpu_launch(a, GPU, 3, 0x3000, V_STRIDES, &e), ATTN_OK);
    ck_assert_ptr_nonnull(strstr(gpu.log, "load sum_part;"));
    attn_close(a);
    attn_destroy(c);
}

static char gpu_library;
static int f_library(void **l, const void *image, int *options, void **values, unsigned n,
                     int *library_options, void **library_values, unsigned library_n) {
    ck_assert(!options && !values && !n && !library_options && !library_values && !library_n);
    note("library ");
    if (fake.fail_library) return note("failed;"), 209;
    note_entries(image);
    return *l = &gpu_library, 0;
}
static int f_library_unload(void *l) { return note("close;"), l != &gpu_library; }
static int f_library_module(void **m, void *l) {
    if (fake.fail_module) return 2;
    return *m = &gpu_module, l != &gpu_library;
}

static void take_libraries(attn_context *c) {
    fake.current = &primary;
    c->cuda->library_load = f_library;
    c->cuda->library_unload = f_library_unload;
    c->cuda->library_module = f_library_module;
}

TEST(libraries) {
    attn_context *c = context();
    attn_artifact *a;
    attn_error e;
    take_libraries(c);
    ck_assert_int_eq(open_ptx(c, "sm_80", 0, 1, &a, &e), ATTN_OK);
    ck_assert_int_eq(gpu_launch(a, GPU, 3, 0x3000, V_STRIDES, &e), ATTN_OK);
    ck_assert_ptr_nonnull(strstr(gpu.log, "library load sum_part;capture 0;capture 2;library load "
                                          "sum_join;capture 0;zero"));
    gpu.log[0] = 0;
    attn_close(a);
    ck_assert_str_eq(gpu.log, "close;close;");
    attn_destroy(c);
}

// What the driver takes as no library may still be a module; a library outlives a context.
TEST_EACH(no_libraries, 0, 2) {
    attn_context *c = context();
    attn_artifact *a;
    attn_error e;
    take_libraries(c);
    fake.fail_library = _i == 0;
    fake.fail_module = _i == 1;
    ck_assert_int_eq(open_ptx(c, "sm_80", 0, 1, &a, &e), ATTN_OK);
    ck_assert_int_eq(gpu_launch(a, GPU, 3, 0x3000, V_STRIDES, &e), ATTN_OK);
    const char *first = _i == 0 ? "library failed;" : "library load sum_part;close;";
    ck_assert_ptr_nonnull(strstr(gpu.log, first));
    ck_assert_ptr_nonnull(strstr(gpu.log, ";load sum_part;capture 0;"));
    attn_close(a);
    attn_destroy(c);
}

static void alone(const char *symbol, const char *text, const char *want) {
    char *got = rt_ptx_alone(text, strlen(text), symbol);
    ck_assert_str_eq(got, want);
    free(got);
}

TEST(kernels_alone) {
    static const char text[] =
        ".version 8.0\n.global .u64 zero;\n.visible .entry a(\n\t.param .u64 x\n)\n"
        "{\n\t{\n\t}\n\tret;\n}\n.func f()\n{\n}\n\t// .globl ab\n"
        ".visible .entry ab()\n{\n}\n";
    alone("a", text,
          ".version 8.0\n.global .u64 zero;\n.visible .entry a(\n\t.param .u64 x\n)\n"
          "{\n\t{\n\t}\n\tret;\n}\n.func f()\n{\n}\n\t// .globl ab\n");
    alone("ab", text,
          ".version 8.0\n.global .u64 zero;\n.func f()\n{\n}\n\t// .globl ab\n"
          ".visible .entry ab()\n{\n}\n");
    alone("b", text, ".version 8.0\n.global .u64 zero;\n.func f()\n{\n}\n\t// .globl ab\n");
    alone("x", "", "");
    alone("x", ".visible .entry a()\n{\n", ""); // it never ends
    alone("a", "  .visible .entry b()\n{}\n.visible .entry a", "  .visible .entry b()\n{}\n");
    alone("a", ".visible .entry a(){ret;}", ".visible .entry a(){ret;}"); // no end of a line
}

TEST(newer_gpus_take_sm_80_only) {
    attn_context *c = context();
    attn_artifact *a;
    attn_error e;
    fake.capability = 120;
    ck_assert_int_eq(open_ptx(c, "sm_80", 0, 1, &a, &e), ATTN_OK);
    attn_close(a);
    not_opened(c, "sm_90a", 0, 1, ATTN_ERROR_ARTIFACT,
               "the artifact is for sm_90a, this GPU is sm_120: compile it with --target=sm_80");
    attn_destroy(c);
}

TEST(tools) {
    attn_context *c = context();
    attn_error e;
    void *p;
    char name[20], text[] = "attention", back[sizeof text];
    const char *target;
    float ms;
    ck_assert_int_eq(attn_device_target(c, GPU, &target, &e), ATTN_OK);
    ck_assert_str_eq(gpu.log, ""); // what only asks makes no context
    attn_mark *from = NULL, *to = NULL;
    ck_assert_int_eq(attn_device_count(c, ATTN_CUDA), 1);
    ck_assert_int_eq(attn_memory_alloc(c, GPU, sizeof text, &p, &e), ATTN_OK);
    ck_assert_int_eq(attn_copy_to(c, GPU, p, text, sizeof text, &e), ATTN_OK);
    ck_assert_int_eq(attn_copy_from(c, GPU, back, p, sizeof text, &e), ATTN_OK);
    ck_assert_str_eq(back, text);
    ck_assert_int_eq(attn_copy_within(c, GPU, (char *)p + 2, p, 2, &e), ATTN_OK);
    ck_assert_int_eq(attn_copy_from(c, GPU, back, p, sizeof text, &e), ATTN_OK);
    ck_assert_str_eq(back, "atatntion");
    ck_assert_int_eq(attn_memory_fill(c, GPU, p, 'x', 3, &e), ATTN_OK);
    ck_assert_int_eq(memcmp(p, "xxxtntion", 9), 0);
    attn_memory_free(c, GPU, p);
    ck_assert_int_eq(attn_mark_now(c, GPU, &from, &e), ATTN_OK);
    ck_assert_int_eq(attn_mark_now(c, GPU, &to, &e), ATTN_OK);
    ck_assert_int_eq(attn_elapsed_ms(c, GPU, from, to, &ms, &e), ATTN_OK);
    ck_assert_float_eq(ms, 1.5f);
    attn_mark_free(c, GPU, from);
    attn_mark_free(c, GPU, to);
    ck_assert_int_eq(attn_device_name(c, GPU, name, sizeof name, &e), ATTN_OK);
    ck_assert_str_eq(name, "Fake 40");
    ck_assert_int_eq(attn_device_target(c, GPU, &target, &e), ATTN_OK);
    ck_assert_str_eq(target, "sm_90a");
    ck_assert_int_eq(attn_synchronize(c, (attn_device){ATTN_CUDA, 1}, &e), ATTN_ERROR_DEVICE);
    ck_assert_str_eq(e.message, "there is no cuda:1, the last is cuda:0");
    ck_assert_int_eq(attn_synchronize(c, (attn_device){ATTN_HIP, 0}, &e), ATTN_ERROR_DEVICE);
    attn_destroy(c);
}

static int nvml_capability[2], nvml_count, nvml_open;
static int n_init(void) { return nvml_open++, nvml_count < 0; }
static int n_shutdown(void) { return nvml_open--, 0; }
static int n_count(unsigned *n) { return *n = (unsigned)nvml_count, 0; }
static int n_device(unsigned i, void **out) { return *out = &nvml_capability[i], i > 1; }
static int n_capability(void *d, int *major, int *minor) {
    return *major = *(int *)d / 10, *minor = *(int *)d % 10, *(int *)d == 0;
}

TEST(management_library) {
    static const RtNvml nvml = {n_init, n_shutdown, n_count, n_device, n_capability};
    static const struct {
        int count, first, second, gives;
    } cases[] = {{1, 90, 0, 90}, {2, 80, 80, 80}, {2, 90, 80, 0},
                 {2, 90, 0, 0},  {0, 0, 0, 0},    {-1, 90, 90, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        nvml_open = 0;
        nvml_count = cases[i].count;
        nvml_capability[0] = cases[i].first;
        nvml_capability[1] = cases[i].second;
        ck_assert_int_eq(rt_nvml_capability(&nvml), cases[i].gives);
        ck_assert_int_eq(nvml_open, nvml_count < 0); // what was opened is closed
    }
    ck_assert_str_eq(rt_cuda_target(90), "sm_90a");
    ck_assert_str_eq(rt_cuda_target(100), "sm_80");
    ck_assert_ptr_null(rt_cuda_target(75));
}
