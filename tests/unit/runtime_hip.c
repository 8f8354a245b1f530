// runtime_hip.c: the HIP device against a library made of plain functions: what is asked of it, in
// what order, and what is said when it fails; and against the real one, where it is installed and
// finds no GPU.
#include "gpu_fixture.h"
#include "ir/tile.h"
#include "runtime/device.h"
#include "runtime/gpu.h"
#include <dlfcn.h>

static struct Fake { // one test at a time runs
    int count, current, fail_load;
    const char *arch;
} fake;

static const char *f_name(int r) { return r == 100 ? "hipErrorNoDevice" : "hipError"; }
static const char *f_string(int r) { return r ? "went wrong" : ""; }
static int f_count(int *n) { return *n = fake.count, fake.count < 0 ? 100 : 0; }
static int f_device(int *d, int i) { return *d = i, 0; }
static int f_attribute(int *out, int which, int d) {
    ck_assert(which == 63 || which == 74);
    return *out = which == 63 ? 304 : 65536, d < 0;
}
static int f_properties(void *out, int d) { return strcpy((char *)out + 396, fake.arch), d < 0; }
static int f_properties_6(void *out, int d) { return strcpy((char *)out + 1160, fake.arch), d < 0; }
static int f_current(int *d) { return *d = fake.current, 0; }
static int f_set(int d) { return note("device %d;", d), fake.current = d, 0; }
static int f_load(void **m, const void *image, unsigned n, int *options, void **values) {
    (void)n, (void)options, (void)values;
    if (fake.fail_load) return 209;
    return note("load %.4s;", (const char *)image + 1), *m = &gpu_module, 0;
}
static const GpuDriver DRIVER = {
    .init = f_init,
    .hip_error_name = f_name,
    .hip_error_string = f_string,
    .device_count = f_count,
    .device_get = f_device,
    .device_name = f_device_name,
    .device_attribute = f_attribute,
    .device_sync = f_sync,
    .hip_properties = f_properties,
    .hip_properties_6 = f_properties_6,
    .hip_device = f_current,
    .hip_set_device = f_set,
    .module_load = f_load,
    .module_unload = f_unload,
    .module_function = f_function,
    .launch = f_launch,
    .fill_async = f_fill_async,
    .fill_rows_async = f_fill_rows_async,
};

static const attn_device GPU = {ATTN_HIP, 1};

static attn_context *context(void) {
    attn_context *c = attn_create();
    c->hip = malloc(sizeof *c->hip);
    *c->hip = DRIVER;
    gpu = (struct Gpu){0};
    fake = (struct Fake){.count = 2, .arch = "gfx942:sramecc+:xnack-"};
    return c;
}

// An ELF file as small as it can be, with the fixture's metadata in its section: what the compiler
// writes has code, too, which nothing here looks at.
typedef struct Elf {
    uint8_t header[64], names[32], section[3][64];
    uint8_t meta[8192];
} Elf;

static void put(uint8_t *at, uint64_t v, int bytes) { memcpy(at, &v, (size_t)bytes); }

static size_t hsaco(Elf *f, const char *target, uint32_t shared) {
    static GpuMeta g;
    uint8_t *bytes;
    size_t n;
    gpu_meta(&g, ABI_CODE_HSACO, target, 256);
    g.k[1].shared = shared;
    ck_assert_ptr_null(abi_write(&g.m, &bytes, &n));
    ck_assert_uint_le(n, sizeof f->meta);
    *f = (Elf){.header = {0x7f, 'E', 'L', 'F', 2, 1, 1, 64}};
    memcpy(f->meta, bytes, n);
    free(bytes);
    memcpy(f->names, "\0.attn\0.shstrtab", 17);
    put(f->header + 16, 3, 2);   // shared object
    put(f->header + 18, 224, 2); // AMDGPU
    put(f->header + 20, 1, 4);
    put(f->header + 40, offsetof(Elf, section), 8);
    put(f->header + 52, 64, 2);
    put(f->header + 58, 64, 2);
    put(f->header + 60, 3, 2);
    put(f->header + 62, 2, 2);
    put(f->section[1], 1, 4);
    put(f->section[1] + 4, 1, 4);
    put(f->section[1] + 24, offsetof(Elf, meta), 8);
    put(f->section[1] + 32, n, 8);
    put(f->section[2], 7, 4);
    put(f->section[2] + 4, 3, 4);
    put(f->section[2] + 24, offsetof(Elf, names), 8);
    put(f->section[2] + 32, 17, 8);
    return offsetof(Elf, meta) + n;
}

static attn_status open_hsaco(attn_context *c, const char *target, uint32_t shared,
                              attn_artifact **a, attn_error *e) {
    static Elf file;
    size_t n = hsaco(&file, target, shared);
    return attn_open(c, &file, n, GPU, a, e);
}

TEST(loads_and_launches) {
    attn_context *c = context();
    attn_artifact *a;
    attn_error e;
    ck_assert_msg(open_hsaco(c, "gfx942", 60000, &a, &e) == ATTN_OK, "%s", e.message);
    ck_assert_str_eq(gpu.log, "device 1;load ELF\2;device 0;"); // the caller's device again
    gpu.log[0] = 0;
    ck_assert_msg(gpu_launch(a, GPU, 3, 0x3000, V_STRIDES, &e) == ATTN_OK, "%s", e.message);
    ck_assert_str_eq(gpu.log, "device 1;zero 10000 0 256 stream;device 0;"
                              "device 1;launch 0 grid 16 block 256 shared 0 stream;device 0;"
                              "device 1;launch 1 grid 24 block 256 shared 60000 stream;device 0;");
    ck_assert_uint_eq(gpu.slot[0], 0x3000);
    ck_assert_uint_eq(gpu.slot[5], 400);
    ck_assert_uint_eq(gpu.slot[19], 0x10000);
    gpu.log[0] = 0;
    fake.current = 1; // there already
    ck_assert_msg(gpu_launch(a, GPU, 0, 0x3000, V_STRIDES, &e) == ATTN_OK, "%s", e.message);
    ck_assert_ptr_null(strstr(gpu.log, "launch 1")); // no row to write: no block
    attn_close(a);
    ck_assert_ptr_nonnull(strstr(gpu.log, "stream;unload;"));
    attn_destroy(c);
}

static void not_opened(attn_context *c, const char *target, uint32_t shared, attn_status status,
                       const char *message) {
    attn_artifact *a;
    attn_error e;
    ck_assert_int_eq(open_hsaco(c, target, shared, &a, &e), status);
    ck_assert_str_eq(e.message, message);
    ck_assert_ptr_null(a);
}

TEST(refusals) {
    attn_context *c = context();
    fake.count = -1;
    not_opened(c, "gfx942", 0, ATTN_ERROR_DEVICE,
               "there is no AMD GPU here (hipErrorNoDevice): use --device=cpu");
    fake.count = 1;
    not_opened(c, "gfx942", 0, ATTN_ERROR_DEVICE, "there is no hip:1, the last is hip:0");
    fake.count = 2;
    fake.arch = "gfx906";
    not_opened(c, "gfx942", 0, ATTN_ERROR_DEVICE,
               "hip:1 is gfx906, and there are kernels for gfx90a, gfx942 and gfx1100: use "
               "--device=cpu");
    fake.arch = "gfx90a:sramecc+:xnack-";
    not_opened(c, "gfx942", 0, ATTN_ERROR_ARTIFACT,
               "the artifact is for gfx942, this GPU is gfx90a: compile it with --target=gfx90a");
    not_opened(c, "sm_80", 0, ATTN_ERROR_ARTIFACT,
               "the artifact is for sm_80, which is no AMD GPU");
    not_opened(c, "gfx90a", 70000, ATTN_ERROR_ARTIFACT,
               "sum_join takes 70000 bytes of shared memory, this GPU has 65536");
    fake.fail_load = 1;
    not_opened(c, "gfx90a", 0, ATTN_ERROR_DEVICE,
               "loading the code object: hipError (209) went wrong");
    attn_destroy(c);
}

static void finds(const char *arch, bool old, const char *target) {
    attn_context *c = context();
    const char *found;
    attn_error e;
    fake.arch = arch;
    if (old) c->hip->hip_properties_6 = NULL; // before HIP 6
    ck_assert_int_eq(attn_device_target(c, GPU, &found, &e), ATTN_OK);
    ck_assert_str_eq(found, target);
    attn_destroy(c);
}

// Every AMD target of the compiler is one of the runtime's.
TEST(finds_the_chip) {
    for (int old = 0; old < 2; old++) {
        finds("gfx942:sramecc+", old, "gfx942");
        for (int t = 0; t < TARGET_COUNT; t++) {
            const Target *target = target_get((TargetId)t);
            if (target->kind == KIND_AMDGPU) finds(target->name, old, target->name);
        }
    }
}

TEST(the_real_library) {
    attn_context *c = attn_create();
    attn_error e;
    const char *target;
    void *library = NULL;
    for (int i = 0; rt_hip.libraries[i] && !library; i++)
        library = dlopen(rt_hip.libraries[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    attn_status status = attn_device_target(c, (attn_device){ATTN_HIP, 0}, &target, &e);
    if (!library) {
        puts("SKIPPED: libamdhip64 is not installed (Debian: libamdhip64-5), IT WAS NOT TRIED");
        ck_assert_int_eq(status, ATTN_ERROR_DEVICE);
        ck_assert_str_eq(e.message,
                         "there is no AMD HIP runtime here (libamdhip64.so): use --device=cpu");
    } else if (attn_device_count(c, ATTN_HIP) == 0) {
        ck_assert_int_eq(status, ATTN_ERROR_DEVICE);
        ck_assert_ptr_nonnull(strstr(e.message, "there is no AMD GPU here (hipError"));
    }
    attn_destroy(c);
    if (library) dlclose(library);
}
