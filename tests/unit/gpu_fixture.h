// gpu_fixture.h: what the tests of both kinds of GPU share: the part of a driver made of plain
// functions that does the same for either, a log of what it was asked, the fixture's kernels with a
// GPU's numbers, and a launch of them.
#ifndef GPU_FIXTURE_H
#define GPU_FIXTURE_H

#include "runtime_fixture.h"
#include "tests/unit/test.h"
#include <stdarg.h>

static struct Gpu { // one test at a time runs
    char log[2000];
    uint64_t slot[ABI_MAX_ARGS]; // of the last launch
    bool maps;                   // the first kernel takes a tensor map, as its last argument,
    bool maps_bias;              // of bias, not of v
    bool word;                   // the workspace is a word, whose address is the last argument
    uintptr_t bias_address;      // 0: one that tensor copies cannot take
    const int64_t *bias_strides;
} gpu;

static char gpu_module, gpu_function[FIX_KERNELS], gpu_stream;

__attribute__((format(printf, 1, 2))) static void note(const char *format, ...) {
    size_t n = strlen(gpu.log);
    va_list args;
    va_start(args, format);
    vsnprintf(gpu.log + n, sizeof gpu.log - n, format, args);
    va_end(args);
}

static int f_init(unsigned flags) { return (int)flags; }
static int f_device_name(char *out, int n, int d) {
    return snprintf(out, (size_t)n, "Fake %d", d), 0;
}
static int f_sync(void) { return note("sync;"), 0; }
static int f_unload(void *m) { return note("unload;"), m != &gpu_module; }
static int f_function(void **f, void *m, const char *name) {
    static const char *const names[] = {"sum_part", "sum_join", "sum_one", "copy_one"};
    (void)m;
    for (int i = 0; i < FIX_KERNELS; i++)
        if (strcmp(name, names[i]) == 0) return *f = &gpu_function[i], 0;
    return 500;
}
static int gpu_number(const void *f) { return (int)((const char *)f - gpu_function); }
static int f_launch(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                    unsigned bz, unsigned shared, void *s, void **args, void **extra) {
    int k = gpu_number(f), nargs = k > 1 ? ONE_ARGS : ALL_ARGS + (gpu.maps && k == 0);
    if (gpu.word && k < 2) nargs = ONE_ARGS + 1;
    ck_assert(gx > 0 && gy == 1 && gz == 1 && by == 1 && bz == 1 && !extra); // HIP 7 wants a block
    for (int i = 0; i < nargs; i++) memcpy(&gpu.slot[i], args[i], 8);
    note("launch %d grid %u block %u shared %u%s;", k, gx, bx, shared, s ? " stream" : "");
    return 0;
}
static int f_fill_async(uint64_t p, unsigned char b, size_t n, void *s) {
    return note("zero %llx %d %zu%s;", (unsigned long long)p, b, n, s ? " stream" : ""), 0;
}

static int f_fill_rows_async(uint64_t p, size_t pitch, unsigned b, size_t n, size_t rows, void *s) {
    return note("zero %llx %u %zu * %zu by %zu%s;", (unsigned long long)p, b, n, rows, pitch,
                s ? " stream" : ""),
           0;
}

// The fixture's metadata for a GPU; the kernels of "sum" are the caller's to change.
typedef struct GpuMeta {
    AbiMeta m;
    AbiVariant v[2];
    AbiKernel k[3];
} GpuMeta;

static void gpu_meta(GpuMeta *g, AbiCode code, const char *target, uint32_t threads) {
    fixture_fill(&g->m, code, true);
    memcpy(g->v, g->m.variants, sizeof g->v);
    memcpy(g->k, g->v[0].kernels, sizeof g->k);
    for (int i = 0; i < 3; i++) g->k[i].threads = threads;
    g->v[0].kernels = g->k;
    g->m.variants = g->v;
    g->m.target = target;
}

static const int64_t V_STRIDES[] = {800, 400, 4, 1};

// 100 keys: the split plan. Addresses are numbers.
static attn_status gpu_launch(attn_artifact *a, attn_device on, int64_t queries,
                              uintptr_t v_address, const int64_t *v_strides, attn_error *e) {
    int64_t q[] = {2, 4, queries, FIX_D}, k[] = {2, 2, 100, FIX_D}, v[] = {2, 2, 100, FIX_DV},
            o[] = {2, 4, queries, FIX_DV}, bias[] = {4, 3};
    attn_tensor t[] = {{"q", (void *)0x1000, ATTN_F32, 4, q, NULL, on},
                       {"k", (void *)0x2000, ATTN_F32, 4, k, NULL, on},
                       {"v", (void *)v_address, ATTN_F32, 4, v, v_strides, on},
                       {"o", (void *)0x400000, ATTN_F32, 4, o, (int64_t[]){48, 12, 4, 1}, on},
                       {"bias", (void *)(gpu.bias_address ? gpu.bias_address : 0x5004), ATTN_F32, 2,
                        bias, gpu.bias_strides, on}};
    attn_scalar scale = {"scale", 0.5};
    attn_size offset = {"q_offset", 0};
    attn_call call = {.variant = "sum",
                      .tensors = t,
                      .ntensors = 5,
                      .scalars = &scale,
                      .nscalars = 1,
                      .sizes = &offset,
                      .nsizes = 1,
                      .stream = &gpu_stream,
                      .workspace = (void *)0x10000,
                      .workspace_bytes = 256};
    return attn_launch(a, &call, e);
}

#endif
