// runtime_fixture.h: a small artifact for the runtime's tests, with host kernels written by hand.
//
// Variant "sum" (fwd): o[b,h,i,e] = bias[h] + scale * sum_j v[b,h/G,j,e]; rows[b,h,i] (optional) =
// Sk + q_offset + i. Plan 1 (Sk >= 64): "sum_part" adds up splits of the keys into the workspace,
// "sum_join" joins them. Plan 2: "sum_one". Variant "copy" (fwd): as "sum" with no plan but the
// last; it makes entries ambiguous, and its kernel must get its own number.
#ifndef RUNTIME_FIXTURE_H
#define RUNTIME_FIXTURE_H

#include "runtime/abi.h"
#include "runtime/attn.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { FIX_D = 4, FIX_DV = 2, FIX_KERNELS = 4 };

enum { Q, K, V, O, BIAS, SCALE, ROWS, PART, TENSORS }; // tensors
enum {
    SPLITS = ABI_SIZE_FREE + 1,
    SIZES = ABI_SIZE_FREE + 2
}; // sizes: N is free, SPLITS is derived

static AbiInsn B[] = {{ABI_OP_SIZE, ABI_SIZE_B}}, H[] = {{ABI_OP_SIZE, ABI_SIZE_H}},
               HKV[] = {{ABI_OP_SIZE, ABI_SIZE_HKV}}, SQ[] = {{ABI_OP_SIZE, ABI_SIZE_SQ}},
               SK[] = {{ABI_OP_SIZE, ABI_SIZE_SK}}, D[] = {{ABI_OP_CONST, FIX_D}},
               DV[] = {{ABI_OP_CONST, FIX_DV}}, NS[] = {{ABI_OP_SIZE, SPLITS}},
               N[] = {{ABI_OP_SIZE, ABI_SIZE_FREE}};
// ceil(Sk / 32)
static AbiInsn SPLIT_DEF[] = {{ABI_OP_SIZE, ABI_SIZE_SK},
                              {ABI_OP_CONST, 31},
                              {ABI_OP_ADD, 0},
                              {ABI_OP_CONST, 32},
                              {ABI_OP_DIV, 0}};
static AbiInsn LONG[] = {{ABI_OP_CONST, 64}, {ABI_OP_SIZE, ABI_SIZE_SK}, {ABI_OP_LE, 0}};
#define E(a)                                                                                       \
    { sizeof a / sizeof a[0], a }

static AbiSize sizes[SIZES] = {
    [ABI_SIZE_FREE] = {"N", {0, NULL}}, [SPLITS] = {"splits", E(SPLIT_DEF)}};

static AbiTensor tensors[TENSORS] = {
    {"q", ABI_ROLE_Q, ABI_F32, 0, 4, 0, {E(B), E(H), E(SQ), E(D)}},
    {"k", ABI_ROLE_K, ABI_F32, 0, 4, 0, {E(B), E(HKV), E(SK), E(D)}},
    {"v", ABI_ROLE_V, ABI_F32, 0, 4, 0, {E(B), E(HKV), E(SK), E(DV)}},
    {"o", ABI_ROLE_O, ABI_F32, 0, 4, 0, {E(B), E(H), E(SQ), E(DV)}},
    {"bias", ABI_ROLE_INPUT, ABI_F32, ABI_BARE_Q, 2, 0, {E(H), E(N)}},
    {"scale", ABI_ROLE_INPUT, ABI_F32, 0, 0, 0, {{0, NULL}}},
    {"rows", ABI_ROLE_EMIT, ABI_F32, ABI_OPTIONAL, 3, 0, {E(B), E(H), E(SQ)}},
    {"part", ABI_ROLE_WORK, ABI_F32, ABI_ZEROED, 4, 0, {E(B), E(HKV), E(NS), E(DV)}},
};

static AbiArg one_args[] = {
    {ABI_ARG_POINTER, 0, V},         {ABI_ARG_POINTER, 0, O},
    {ABI_ARG_POINTER, 0, BIAS},      {ABI_ARG_POINTER, 0, ROWS},
    {ABI_ARG_STRIDE, 0, V},          {ABI_ARG_STRIDE, 1, V},
    {ABI_ARG_STRIDE, 2, V},          {ABI_ARG_STRIDE, 0, O},
    {ABI_ARG_STRIDE, 1, O},          {ABI_ARG_STRIDE, 2, O},
    {ABI_ARG_STRIDE, 0, BIAS},       {ABI_ARG_STRIDE, 0, ROWS},
    {ABI_ARG_STRIDE, 1, ROWS},       {ABI_ARG_SIZE, 0, ABI_SIZE_H},
    {ABI_ARG_SIZE, 0, ABI_SIZE_HKV}, {ABI_ARG_SIZE, 0, ABI_SIZE_SQ},
    {ABI_ARG_SIZE, 0, ABI_SIZE_SK},  {ABI_ARG_SIZE, 0, ABI_SIZE_Q_OFFSET},
    {ABI_ARG_SCALAR, 0, SCALE},      {ABI_ARG_POINTER, 0, PART},
    {ABI_ARG_STRIDE, 0, PART},       {ABI_ARG_STRIDE, 1, PART},
    {ABI_ARG_STRIDE, 2, PART},       {ABI_ARG_SIZE, 0, SPLITS},
};
enum {
    ONE_ARGS = 19,
    ALL_ARGS = sizeof one_args / sizeof one_args[0]
}; // sum_one takes no workspace

static AbiKernel kernels[] = {
    {"sum_part", 1, 0, 1, 3, {E(B), E(HKV), E(NS)}, ALL_ARGS, one_args, 0, NULL},
    {"sum_join", 1, 0, 1, 3, {E(B), E(H), E(SQ)}, ALL_ARGS, one_args, 0, NULL},
    {"sum_one", 1, 0, 1, 3, {E(B), E(H), E(SQ)}, ONE_ARGS, one_args, 0, NULL},
};
static AbiKernel copy_kernels[] = {
    {"copy_one", 1, 0, 1, 3, {E(B), E(H), E(SQ)}, ONE_ARGS, one_args, 0, NULL}};
static uint16_t split_plan[] = {0, 1}, one_plan[] = {2}, copy_plan[] = {0};
static AbiPlan plans[] = {{E(LONG), 2, split_plan}, {{0, NULL}, 1, one_plan}};
static AbiPlan copy_plans[] = {{{0, NULL}, 1, copy_plan}};

static AbiVariant variants[] = {
    {"sum", ABI_ATTENTION, ABI_FWD, ABI_LAYOUT_DENSE, 0, FIX_D, FIX_DV, SIZES, TENSORS, 3, 2, sizes,
     tensors, kernels, plans},
    {"copy", ABI_ATTENTION, ABI_FWD, ABI_LAYOUT_DENSE, 0, FIX_D, FIX_DV, SIZES, TENSORS, 1, 1,
     sizes, tensors, copy_kernels, copy_plans},
};

static void fixture_fill(AbiMeta *m, AbiCode code, bool two) {
    static bool filled;
    if (!filled) abi_fixed_sizes(ABI_ATTENTION, ABI_LAYOUT_DENSE, sizes);
    filled = true;
    *m = (AbiMeta){.code = (uint8_t)code,
                   .dtype = ABI_F32,
                   .target = code == ABI_CODE_HOST  ? "host"
                             : code == ABI_CODE_PTX ? "sm_80"
                                                    : "gfx942",
                   .nvariants = two ? 2 : 1,
                   .variants = variants};
}

__attribute__((unused)) static uint8_t *fixture_meta(AbiCode code, size_t *n) {
    AbiMeta m;
    uint8_t *bytes = NULL;
    fixture_fill(&m, code, true);
    const char *why = abi_write(&m, &bytes, n);
    assert(!why && bytes);
    (void)why;
    return bytes;
}

// ---- kernels: arguments in the order of one_args

typedef struct Args {
    const float *v;
    float *o;
    const float *bias;
    float *rows;
    int64_t v0, v1, v2, o0, o1, o2, bias0, rows0, rows1, H, Hkv, Sq, Sk, q_offset;
    float scale;
    float *part;
    int64_t p0, p1, p2, splits;
} Args;

static Args unpack(const uint64_t *a, bool all) {
    Args r = {.v = (const float *)(uintptr_t)a[0],
              .o = (float *)(uintptr_t)a[1],
              .bias = (const float *)(uintptr_t)a[2],
              .rows = (float *)(uintptr_t)a[3]};
    int64_t *stride[] = {&r.v0, &r.v1, &r.v2, &r.o0, &r.o1, &r.o2, &r.bias0, &r.rows0, &r.rows1};
    int64_t *size[] = {&r.H, &r.Hkv, &r.Sq, &r.Sk, &r.q_offset};
    for (int i = 0; i < 9; i++) *stride[i] = (int64_t)a[4 + i];
    for (int i = 0; i < 5; i++) *size[i] = (int32_t)a[13 + i];
    memcpy(&r.scale, &a[18], sizeof r.scale);
    if (!all) return r;
    r.part = (float *)(uintptr_t)a[19];
    r.p0 = (int64_t)a[20], r.p1 = (int64_t)a[21], r.p2 = (int64_t)a[22], r.splits = (int32_t)a[23];
    return r;
}

static float sum(const Args *r, int64_t b, int64_t hk, int64_t first, int64_t last, int e) {
    float s = 0;
    for (int64_t j = first; j < last; j++) s += r->v[b * r->v0 + hk * r->v1 + j * r->v2 + e];
    return s;
}

static void store(const Args *r, int64_t task, bool parts) {
    int64_t i = task % r->Sq, h = task / r->Sq % r->H, b = task / r->Sq / r->H,
            hk = h * r->Hkv / r->H;
    for (int e = 0; e < FIX_DV; e++) {
        float s = 0;
        for (int64_t p = 0; parts && p < r->splits; p++)
            s += r->part[b * r->p0 + hk * r->p1 + p * r->p2 + e];
        if (!parts) s = sum(r, b, hk, 0, r->Sk, e);
        r->o[b * r->o0 + h * r->o1 + i * r->o2 + e] = r->bias[h * r->bias0] + r->scale * s;
    }
    if (r->rows) r->rows[b * r->rows0 + h * r->rows1 + i] = (float)(r->Sk + r->q_offset + i);
}

static void part(const uint64_t *args, int64_t first,
                 int64_t last) { // adds: the workspace must come zeroed
    Args r = unpack(args, true);
    for (int64_t t = first; t < last; t++) {
        int64_t p = t % r.splits, hk = t / r.splits % r.Hkv, b = t / r.splits / r.Hkv;
        int64_t end = p * 32 + 32 < r.Sk ? p * 32 + 32 : r.Sk;
        for (int e = 0; e < FIX_DV; e++)
            r.part[b * r.p0 + hk * r.p1 + p * r.p2 + e] += sum(&r, b, hk, p * 32, end, e);
    }
}

static void join(const uint64_t *args, int64_t first, int64_t last) {
    Args r = unpack(args, true);
    for (int64_t t = first; t < last; t++) store(&r, t, true);
}

static void one(const uint64_t *args, int64_t first, int64_t last) {
    Args r = unpack(args, false);
    for (int64_t t = first; t < last; t++) store(&r, t, false);
}

static void copy(const uint64_t *args, int64_t first,
                 int64_t last) { // as sum_one, but marks its rows
    Args r = unpack(args, false);
    for (int64_t t = first; t < last; t++) {
        store(&r, t, false);
        r.o[t / r.Sq / r.H * r.o0 + t / r.Sq % r.H * r.o1 + t % r.Sq * r.o2] = -1;
    }
}

__attribute__((unused)) static const attn_host_kernel fixture_kernels[FIX_KERNELS] = {part, join,
                                                                                      one, copy};

#endif
