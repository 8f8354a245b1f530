// probe.c: see probe.h.
#include "probe.h"
#include "ir/arena.h"
#include "runtime/abi.h"
#include "runtime/device.h"
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 6, COPY_MOST = 1 << 30, COPY_LEAST = 1 << 26, THREADS = 256 };

// A probe: its PTX, and what one launch computes.
typedef struct Probe {
    const char *flops_of, *target;
    void (*body)(Text *t);
    int shared, blocks; // dynamic shared memory of a block; blocks per multiprocessor
    double flop;        // of one block
} Probe;

static void head(Text *t, const Probe *p) {
    text_printf(t,
                ".version %s\n.target %s\n.address_size 64\n.extern .shared .align 1024 .b8 "
                "memory[];\n"
                ".visible .entry attn_probe(.param .u64 o)\n.maxntid %d, 1, 1\n{\n"
                ".reg .pred %%p<4>;\n.reg .b32 %%r<16>;\n.reg .b64 %%l<8>;\n.reg .f32 %%sum;\n"
                "mov.u32 %%r0, %%tid.x;\nmov.u32 %%r1, 0;\nmov.f32 %%sum, 0f00000000;\n",
                strcmp(p->target, "sm_90a") == 0 ? "8.0" : "7.0", p->target, THREADS);
}

// The sum is written in a case that does not arise, which only the device finds out.
static void tail(Text *t) {
    text_puts(t, "setp.eq.f32 %p0, %sum, 0f7F7FFFFF;\nld.param.u64 %l0, [o];\n"
                 "@%p0 st.global.f32 [%l0], %sum;\nret;\n}\n");
}

static void loop(Text *t) { text_puts(t, "AGAIN:\n"); }
static void until(Text *t, int steps) {
    text_printf(t, "add.u32 %%r1, %%r1, 1;\nsetp.lt.u32 %%p1, %%r1, %d;\n@%%p1 bra AGAIN;\n",
                steps);
}

// %r3 = two bf16 of random sign and fraction, from 1/2 to 1, of the number in %r2.
static void random_pair(Text *t) {
    text_puts(t, "mad.lo.u32 %r2, %r2, 1664525, 1013904223;\nshr.u32 %r4, %r2, 9;\n"
                 "xor.b32 %r3, %r2, %r4;\nand.b32 %r3, %r3, 0x807f807f;\n"
                 "or.b32 %r3, %r3, 0x3f003f00;\n");
}

static void numbers(Text *t, char c, int first, int last) {
    for (int i = first; i < last; i++) text_printf(t, "%s%%%c%d", i > first ? ", " : "", c, i);
}

enum { FMA_CHAINS = 16, FMA_EACH = 8, FMA_STEPS = 4096 };
static void fma_body(Text *t) {
    text_printf(t, ".reg .f32 %%a<%d>;\n.reg .f32 %%x, %%y;\n", FMA_CHAINS);
    text_puts(t, "cvt.rn.f32.u32 %y, %r0;\nmov.f32 %x, 0f3F7FBE77;\n");
    for (int i = 0; i < FMA_CHAINS; i++)
        text_printf(t, "mov.f32 %%a%d, 0f%08X;\n", i, 0x3f800000 + i);
    loop(t);
    for (int k = 0; k < FMA_EACH; k++)
        for (int i = 0; i < FMA_CHAINS; i++)
            text_printf(t, "fma.rn.f32 %%a%d, %%a%d, %%x, %%y;\n", i, i);
    until(t, FMA_STEPS);
    for (int i = 0; i < FMA_CHAINS; i++) text_printf(t, "add.f32 %%sum, %%sum, %%a%d;\n", i);
}

enum { MMA_TILES = 8, MMA_EACH = 4, MMA_STEPS = 4096 };
static void mma_body(Text *t) {
    text_printf(t, ".reg .f32 %%d<%d>;\n.reg .b32 %%a<4>, %%b<%d>;\n", 4 * MMA_TILES,
                2 * MMA_TILES);
    text_puts(t, "mov.u32 %r2, %r0;\n");
    for (int i = 0; i < 4 + 2 * MMA_TILES; i++) {
        random_pair(t);
        text_printf(t, "mov.b32 %%%c%d, %%r3;\n", i < 4 ? 'a' : 'b', i < 4 ? i : i - 4);
    }
    for (int i = 0; i < 4 * MMA_TILES; i++) text_printf(t, "mov.f32 %%d%d, 0f00000000;\n", i);
    loop(t);
    for (int k = 0; k < MMA_EACH; k++)
        for (int i = 0; i < MMA_TILES; i++) {
            text_puts(t, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {");
            numbers(t, 'd', 4 * i, 4 * i + 4);
            text_puts(t, "}, {%a0, %a1, %a2, %a3}, {");
            numbers(t, 'b', 2 * i, 2 * i + 2);
            text_puts(t, "}, {");
            numbers(t, 'd', 4 * i, 4 * i + 4);
            text_puts(t, "};\n");
        }
    until(t, MMA_STEPS);
    for (int i = 0; i < 4 * MMA_TILES; i++) text_printf(t, "add.f32 %%sum, %%sum, %%d%d;\n", i);
}

// Two warpgroups of a block, each with 64 rows of its own times the 256 columns of both, 64 deep.
enum { WG_K = 4, WG_EACH = 4, WG_STEPS = 1024, WG_A = 64 * 128, WG_B = 256 * 128 };
static void wgmma_descriptor(Text *t, int to, int from) { // K-major, swizzled by 128 bytes
    text_printf(t,
                "shr.u32 %%r%d, %%r%d, 4;\ncvt.u64.u32 %%l%d, %%r%d;\n"
                "or.b64 %%l%d, %%l%d, 0x4000004000010000;\n",
                from, from, to, from, to, to);
}

static void wgmma_body(Text *t) {
    text_puts(t, ".reg .f32 %d<128>;\nmov.u32 %r5, memory;\nshl.b32 %r6, %r0, 2;\n"
                 "add.u32 %r6, %r6, %r5;\nmov.u32 %r2, %r0;\n"
                 "FILL:\n");
    random_pair(t);
    text_printf(t,
                "st.shared.b32 [%%r6], %%r3;\nadd.u32 %%r6, %%r6, %d;\nadd.u32 %%r7, %%r5, %d;\n"
                "setp.lt.u32 %%p2, %%r6, %%r7;\n@%%p2 bra FILL;\n"
                "fence.proxy.async;\nbar.sync 0;\n",
                4 * THREADS, 2 * WG_A + WG_B);
    text_printf(
        t, "shr.u32 %%r8, %%r0, 7;\nmad.lo.u32 %%r9, %%r8, %d, %%r5;\nadd.u32 %%r10, %%r5, %d;\n",
        WG_A, 2 * WG_A);
    wgmma_descriptor(t, 1, 9);
    wgmma_descriptor(t, 2, 10);
    for (int i = 0; i < 128; i++) text_printf(t, "mov.f32 %%d%d, 0f00000000;\n", i);
    text_puts(t, "setp.eq.u32 %p3, %r1, 0;\n");
    loop(t);
    text_puts(t, "wgmma.fence.sync.aligned;\n");
    for (int k = 0; k < WG_K * WG_EACH; k++) {
        int step = k % WG_K * 2; // 16 elements are 32 bytes
        text_printf(t, "add.s64 %%l3, %%l1, %d;\nadd.s64 %%l4, %%l2, %d;\n", step, step);
        text_puts(t, "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {");
        numbers(t, 'd', 0, 128);
        text_puts(t, "}, %l3, %l4, %p3, 1, 1, 0, 0;\n");
    }
    text_puts(t, "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n");
    until(t, WG_STEPS);
    for (int i = 0; i < 128; i++) text_printf(t, "add.f32 %%sum, %%sum, %%d%d;\n", i);
}

static const Probe FMA = {
    "f32 multiply-adds", "sm_80", fma_body, 0, 8, 2.0 * THREADS *FMA_CHAINS *FMA_EACH *FMA_STEPS};
static const Probe MMA = {"bf16 products (mma.sync)",
                          "sm_80",
                          mma_body,
                          0,
                          2,
                          2.0 * THREADS / 32 * 16 * 8 * 16 * MMA_TILES *MMA_EACH *MMA_STEPS};
static const Probe WGMMA = {"bf16 products (wgmma)",
                            "sm_90a",
                            wgmma_body,
                            2 * WG_A + WG_B,
                            1,
                            2.0 * THREADS / 128 * 64 * 256 * 16 * WG_K *WG_EACH *WG_STEPS};

static const Probe *choose(const char *target, Dtype dtype) {
    if (dtype == DT_F32) return &FMA;
    return strcmp(target, "sm_90a") == 0 ? &WGMMA : &MMA;
}

// The probe as an artifact like any other: one kernel over blocks * multiprocessors, one output.
static attn_status open_probe(attn_context *c, attn_device d, const Probe *p, attn_artifact **out,
                              attn_error *error) {
    AbiInsn one[] = {{ABI_OP_CONST, 1}}, blocks[] = {{ABI_OP_CONST, p->blocks}},
            workers[] = {{ABI_OP_WORKERS, 0}};
    AbiTensor o = {
        .name = "o", .role = ABI_ROLE_O, .dtype = ABI_F32, .rank = 1, .extent = {{1, one}}};
    AbiArg arg = {ABI_ARG_POINTER, 0, 0};
    AbiKernel k = {.symbol = "attn_probe",
                   .threads = THREADS,
                   .shared = (uint32_t)p->shared,
                   .cluster = 1,
                   .ngrid = 2,
                   .grid = {{1, workers}, {1, blocks}},
                   .nargs = 1,
                   .args = &arg};
    uint16_t first = 0;
    AbiPlan plan = {.nkernels = 1, .kernels = &first};
    AbiVariant v = {.name = "probe",
                    .family = ABI_RECURRENCE,
                    .D = 1,
                    .Dv = 1,
                    .ntensors = 1,
                    .nkernels = 1,
                    .nplans = 1,
                    .tensors = &o,
                    .kernels = &k,
                    .plans = &plan};
    AbiMeta m = {.code = ABI_CODE_PTX,
                 .dtype = ABI_F32,
                 .target = p->target,
                 .nvariants = 1,
                 .variants = &v};
    Arena *a = arena_new();
    char *ptx = NULL;
    size_t n;
    Text t = text_new(a);
    head(&t, p);
    p->body(&t);
    tail(&t);
    const char *bad = abi_ptx(t.s, t.n, &m, &ptx, &n);
    attn_status s = ATTN_ERROR_SYSTEM;
    if (bad)
        *error = (attn_error){.status = s, .message = "out of memory"};
    else
        s = attn_open(c, ptx, n, d, out, error);
    free(ptx);
    arena_free(a);
    return s;
}

// What is timed: a launch of the probe, or a copy.
typedef struct Work {
    attn_context *context;
    attn_device device;
    attn_prepared *probe; // NULL: the copy
    void *to, *from;
    size_t copy; // bytes
} Work;

static attn_status seconds(const Work *w, double *best, attn_error *error) {
    attn_mark *from = NULL, *to = NULL;
    attn_status s = ATTN_OK;
    *best = 0;
    for (int i = 0; i < ROUNDS && !s; i++) {
        float ms = 0;
        s = attn_mark_now(w->context, w->device, &from, error);
        if (!s)
            s = w->probe ? attn_launch_prepared(w->probe, NULL, error)
                         : attn_copy_within(w->context, w->device, w->to, w->from, w->copy, error);
        if (!s) s = attn_mark_now(w->context, w->device, &to, error);
        if (!s) s = attn_synchronize(w->context, w->device, error);
        if (!s) s = attn_elapsed_ms(w->context, w->device, from, to, &ms, error);
        if (!s && i > 0 && (*best == 0 || ms * 1e-3 < *best)) *best = ms * 1e-3;
    }
    attn_mark_free(w->context, w->device, from);
    attn_mark_free(w->context, w->device, to);
    return s;
}

static attn_status probe_flops(Work *w, const Probe *p, Peak *out, attn_error *error) {
    static const int64_t one = 1;
    attn_artifact *artifact = NULL;
    attn_artifact_info info;
    double best;
    attn_tensor o = {"o", w->to, ATTN_F32, 1, &one, NULL, w->device};
    attn_call call = {.tensors = &o, .ntensors = 1};
    attn_status s = open_probe(w->context, w->device, p, &artifact, error);
    if (s) return s;
    attn_get_info(artifact, &info);
    s = attn_prepare(artifact, &call, &w->probe, error);
    if (!s) s = seconds(w, &best, error);
    if (!s && best > 0) out->flops = p->flop * p->blocks * info.workers / best;
    out->flops_of = p->flops_of;
    if (w->probe) attn_free_prepared(w->probe);
    w->probe = NULL;
    attn_close(artifact);
    return s;
}

// Much more than caches hold, but what there is room for.
static attn_status alloc(Work *w, attn_error *error) {
    attn_status s = ATTN_ERROR_DEVICE;
    for (w->copy = COPY_MOST; s && w->copy >= COPY_LEAST; w->copy /= 2) {
        s = attn_memory_alloc(w->context, w->device, w->copy, &w->to, error);
        if (!s) s = attn_memory_alloc(w->context, w->device, w->copy, &w->from, error);
        if (!s) break;
        attn_memory_free(w->context, w->device, w->to);
        w->to = NULL;
    }
    return s;
}

attn_status probe_gpu(attn_context *c, attn_device d, Dtype dtype, Peak *out, attn_error *error) {
    Work w = {.context = c, .device = d};
    const char *target;
    double best;
    *out = (Peak){.flops_of = "", .bytes_of = "copied"};
    attn_status s = attn_device_target(c, d, &target, error);
    if (!s) s = alloc(&w, error);
    if (!s) s = seconds(&w, &best, error);
    if (!s && best > 0) out->bytes = 2.0 * (double)w.copy / best; // read and written
    if (!s && d.kind == ATTN_CUDA) s = probe_flops(&w, choose(target, dtype), out, error);
    attn_memory_free(c, d, w.from);
    attn_memory_free(c, d, w.to);
    return s;
}
