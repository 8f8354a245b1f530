// valu_half.c: vector instructions of 16 bits (valu_half.def): f16 is computed in f32 and rounded
// once.
#include "tests/gcn/half.h"
#include "tests/gcn/wave.h"
#include "tools/tensor.h"

uint32_t gcn_f16_toward_zero(float x) {
    uint32_t h = half_from_f32(x);
    bool beyond = fabsf(half_to_f32((uint16_t)h)) > fabsf(x);
    return beyond ? h - 1 : h; // also from infinity to the largest number
}

static float half(uint32_t u) { return half_to_f32((uint16_t)u); }

#define FROM_h(u) half(u)
#define FROM_f(u) gcn_in(w, u)
#define FROM_u(u) (u)
#define FROM_t(u) ((u)&0xffff)
#define FROM_s(u) (int32_t)(int16_t)(u)
#define TYPE_h float
#define TYPE_f float
#define TYPE_u uint32_t
#define TYPE_t uint32_t
#define TYPE_s int32_t
#define TO_h(x) half_from_f32(x)
#define TO_f(x) gcn_out(w, x)
#define TO_u(x) (x)
#define TO_t(x) ((uint32_t)(x)&0xffff)
#define TO_s(x) ((uint32_t)(x)&0xffff)

static void put(Wave *w, const Op *op, uint32_t *r) {
    bool narrow = op->dst[0].type == 'h';
    if (narrow && op->clamp) {
        for (int i = 0; i < w->lanes; i++) r[i] = half_from_f32(fminf(fmaxf(half(r[i]), 0), 1));
        Op plain = *op;
        plain.clamp = false;
        gcn_put_half(w, &plain, r);
        return;
    }
    if (narrow && op->omod) gcn_fault(w, op, "has a multiplier, which is not modelled for f16");
    if (narrow)
        gcn_put_half(w, op, r);
    else
        gcn_put(w, op, 0, r);
}

typedef struct Three {
    uint32_t buf[3][GCN_LANES];
    const uint32_t *p[3];
} Three;

static void three(Wave *w, const Op *op, Three *x) {
    for (int k = 0; k < op->nsrc && k < 3; k++) x->p[k] = gcn_source(w, op, k, 0, x->buf[k]);
    for (int k = op->nsrc; k < 3; k++) x->p[k] = x->p[0];
}

#define HALF(name, form, R, S, flags, value)                                                       \
    static void name(Wave *w, const Op *op) {                                                      \
        Three x;                                                                                   \
        uint32_t r[GCN_LANES];                                                                     \
        three(w, op, &x);                                                                          \
        for (int i = 0; i < w->lanes; i++) {                                                       \
            TYPE_##S a = FROM_##S(x.p[0][i]), b = FROM_##S(x.p[1][i]), c = FROM_##S(x.p[2][i]);    \
            (void)a, (void)b, (void)c;                                                             \
            r[i] = TO_##R(value);                                                                  \
        }                                                                                          \
        put(w, op, r);                                                                             \
    }
#define PACKED(name, form, S, value)
#include "tests/gcn/valu_half.def"
#undef HALF
#undef PACKED

// Source k's half for the result's low or high half, in 16 bits.
static void packed_half(Wave *w, const Op *op, int k, int high, uint32_t *out) {
    uint32_t buf[GCN_LANES];
    const uint32_t *p = gcn_source(w, op, k, 0, buf);
    bool upper = (high ? op->op_sel_hi : op->op_sel) >> k & 1;
    bool negative = (high ? op->neg_hi : op->neg_lo) >> k & 1;
    for (int i = 0; i < w->lanes; i++)
        out[i] = ((upper ? p[i] >> 16 : p[i]) & 0xffff) ^ (negative ? 0x8000 : 0);
}

typedef struct Halves {
    uint32_t p[3][GCN_LANES];
} Halves;

static void halves(Wave *w, const Op *op, int high, Halves *x) {
    for (int k = 0; k < op->nsrc; k++) packed_half(w, op, k, high, x->p[k]);
    for (int k = op->nsrc; k < 3; k++) memset(x->p[k], 0, sizeof x->p[k]);
}

#define HALF(name, form, R, S, flags, value)
#define PACKED(name, form, S, value)                                                               \
    static void name(Wave *w, const Op *op) {                                                      \
        Halves x;                                                                                  \
        uint32_t r[GCN_LANES] = {0};                                                               \
        for (int high = 0; high < 2; high++) {                                                     \
            halves(w, op, high, &x);                                                               \
            for (int i = 0; i < w->lanes; i++) {                                                   \
                TYPE_##S a = FROM_##S(x.p[0][i]), b = FROM_##S(x.p[1][i]),                         \
                         c = FROM_##S(x.p[2][i]);                                                  \
                (void)a, (void)b, (void)c;                                                         \
                r[i] |= (uint32_t)TO_##S(value) << 16 * high;                                      \
            }                                                                                      \
        }                                                                                          \
        gcn_put(w, op, 0, r);                                                                      \
    }
#include "tests/gcn/valu_half.def"
#undef HALF
#undef PACKED

// ---- v_fma_mix: each source f32, or either half as f16

static void mix_source(Wave *w, const Op *op, int k, float *out) {
    uint32_t buf[GCN_LANES];
    const uint32_t *p = gcn_source(w, op, k, 0, buf);
    const Operand *o = &op->src[k];
    bool narrow = op->op_sel_hi >> k & 1, upper = op->op_sel >> k & 1;
    for (int i = 0; i < w->lanes; i++) {
        float f = narrow ? half(upper ? p[i] >> 16 : p[i]) : gcn_in(w, p[i]);
        if (o->abs) f = fabsf(f);
        out[i] = o->neg ? -f : f;
    }
}

// row->arg: 0 f32, 1 the low half, 2 the high half.
static void fma_mix(Wave *w, const Op *op) {
    float x[3][GCN_LANES];
    uint32_t r[GCN_LANES];
    for (int k = 0; k < 3; k++) mix_source(w, op, k, x[k]);
    Operand old = op->dst[0];
    for (int i = 0; i < w->lanes; i++) {
        float f = fmaf(x[0][i], x[1][i], x[2][i]);
        uint32_t before = w->v[old.reg][i];
        if (op->clamp) f = fminf(fmaxf(f, 0), 1);
        r[i] = op->row->arg == 0   ? gcn_out(w, f)
               : op->row->arg == 1 ? (before & 0xffff0000) | half_from_f32(f)
                                   : (before & 0xffff) | (uint32_t)half_from_f32(f) << 16;
    }
    Op plain = *op;
    plain.clamp = false;
    gcn_put(w, &plain, 0, r);
}

static const Row rows[] = {
#define HALF(name, form, R, S, flags, value) {#name, name, form, flags, 0, 0},
#define PACKED(name, form, S, value) {#name, name, form, 0, 0, 0},
#include "tests/gcn/valu_half.def"
#undef HALF
#undef PACKED
    {"v_fma_mix_f32", fma_mix, "f=xxx", ROW_FLOAT, 0, 0},
    {"v_fma_mixlo_f16", fma_mix, "h=xxx", ROW_FLOAT, 1, 0},
    {"v_fma_mixhi_f16", fma_mix, "h=xxx", ROW_FLOAT, 2, 0},
};

GcnRows gcn_rows_half(void) { return (GcnRows){rows, sizeof rows / sizeof *rows}; }
