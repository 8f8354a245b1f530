// valu.c: vector instructions of 32 bits (valu.def), and those that also read or write a mask.
#include "tests/gcn/wave.h"

// ---- what the rows speak of

// v_exp, v_log, v_rcp and v_rsq take and give 0 for a denormal.
static float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
static uint32_t u24(uint32_t a) { return a & 0xffffff; }
static int32_t i24(uint32_t a) { return (int32_t)(a << 8) >> 8; }
static uint32_t min_u(uint32_t a, uint32_t b) { return a < b ? a : b; }
static uint32_t max_u(uint32_t a, uint32_t b) { return a > b ? a : b; }
static int32_t min_i(int32_t a, int32_t b) { return a < b ? a : b; }
static int32_t max_i(int32_t a, int32_t b) { return a > b ? a : b; }

static int32_t to_i32(float x) {
    if (isnan(x)) return 0;
    return x >= 0x1p31f ? INT32_MAX : x < -0x1p31f ? INT32_MIN : (int32_t)x;
}

static uint32_t to_u32(float x) { return !(x > 0) ? 0 : x >= 0x1p32f ? UINT32_MAX : (uint32_t)x; }

static int exponent_of(uint32_t u) {
    int32_t i = (int32_t)u;
    return i > 1000 ? 1000 : i < -1000 ? -1000 : i;
}

static float mantissa(float x) {
    int e;
    return isfinite(x) ? frexpf(x, &e) : x;
}

static int32_t exponent(float x) {
    int e = 0;
    if (isfinite(x)) (void)frexpf(x, &e);
    return e;
}

static int32_t field(uint32_t a, uint32_t at, uint32_t width) {
    if (width == 0) return 0;
    uint32_t u = (uint32_t)((int32_t)a >> at), drop = 32 - width;
    return (int32_t)(u << drop) >> drop;
}

static uint32_t reversed(uint32_t a) {
    uint32_t r = 0;
    for (int i = 0; i < 32; i++) r |= (a >> i & 1) << (31 - i);
    return r;
}

// Bits before the first that differs from the sign.
static uint32_t leading(uint32_t a) {
    uint32_t x = a ^ (uint32_t)((int32_t)a >> 31);
    return x ? (uint32_t)__builtin_clz(x) : ~0u;
}

static uint32_t bytes_of(uint64_t from, uint32_t select) {
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t s = select >> 8 * i & 255, byte;
        if (s < 8)
            byte = from >> 8 * s & 255;
        else if (s < 12) // a sign, spread
            byte = from >> (16 * (s - 8) + 15) & 1 ? 255 : 0;
        else
            byte = s == 12 ? 0 : 255;
        r |= byte << 8 * i;
    }
    return r;
}

// The end of the division that LLVM expands: q about num / den, with the special cases put right.
static float div_fixup(float q, float den, float num) {
    float sign = copysignf(1, den) * copysignf(1, num);
    if (isnan(num)) return num;
    if (isnan(den)) return den;
    if ((den == 0 && num == 0) || (isinf(den) && isinf(num))) return NAN;
    if (den == 0 || isinf(num)) return copysignf(INFINITY, sign);
    if (isinf(den) || num == 0) return copysignf(0, sign);
    return copysignf(q, sign);
}

// ---- valu.def

typedef struct Three {
    uint32_t buf[3][GCN_LANES];
    const uint32_t *p[3];
} Three;

static void three(Wave *w, const Op *op, Three *x) {
    for (int k = 0; k < 3; k++) x->p[k] = x->buf[0];
    if (op->nsrc < 1) memset(x->buf[0], 0, sizeof x->buf[0]);
    for (int k = 0; k < op->nsrc && k < 3; k++) x->p[k] = gcn_source(w, op, k, 0, x->buf[k]);
    for (int k = op->nsrc; k < 3; k++) x->p[k] = x->p[0];
}

#define FROM_f(u) gcn_in(w, u)
#define FROM_u(u) (u)
#define FROM_i(u) (int32_t)(u)
#define TYPE_f float
#define TYPE_u uint32_t
#define TYPE_i int32_t
#define TO_f(x) gcn_out(w, x)
#define TO_u(x) (x)
#define TO_i(x) (uint32_t)(x)

#define V(name, form, R, S, flags, value)                                                          \
    static void name(Wave *w, const Op *op) {                                                      \
        Three x;                                                                                   \
        uint32_t r[GCN_LANES];                                                                     \
        three(w, op, &x);                                                                          \
        for (int i = 0; i < w->lanes; i++) {                                                       \
            TYPE_##S a = FROM_##S(x.p[0][i]), b = FROM_##S(x.p[1][i]), c = FROM_##S(x.p[2][i]);    \
            (void)a, (void)b, (void)c;                                                             \
            r[i] = TO_##R(value);                                                                  \
        }                                                                                          \
        gcn_put(w, op, 0, r);                                                                      \
    }
#include "tests/gcn/valu.def"
#undef V

// ---- masks

// Source k as a bit for each lane; a mask that is not named is vcc.
static uint64_t mask_source(Wave *w, const Op *op, int k) {
    int reg = k < op->nsrc ? op->src[k].reg : GCN_VCC;
    if (k < op->nsrc && op->src[k].kind != OPERAND_S) return gcn_scalar(w, op, k) & w->all;
    w->defined &= gcn_mask_known(w, reg) | ~w->all;
    return gcn_mask(w, reg) & w->all;
}

static void cndmask(Wave *w, const Op *op) {
    uint32_t buf[2][GCN_LANES], r[GCN_LANES];
    const uint32_t *p[2];
    uint64_t mask = mask_source(w, op, 2), defined[2];
    for (int k = 0; k < 2; k++) {
        w->defined = ~0ull;
        p[k] = gcn_source(w, op, k, 0, buf[k]);
        defined[k] = w->defined;
    }
    for (int i = 0; i < w->lanes; i++) r[i] = mask >> i & 1 ? p[1][i] : p[0][i];
    w->defined = (defined[1] & mask) | (defined[0] & ~mask); // only what is chosen counts
    gcn_put(w, op, 0, r);
}

// a + b + carry, or a - b - carry; row->arg: 1 takes a carry, 2 subtracts, 4 exchanges.
static void carry(Wave *w, const Op *op) {
    uint32_t buf[2][GCN_LANES], r[GCN_LANES];
    int how = op->row->arg;
    const uint32_t *a = gcn_source(w, op, how & 4 ? 1 : 0, 0, buf[0]);
    const uint32_t *b = gcn_source(w, op, how & 4 ? 0 : 1, 0, buf[1]);
    uint64_t in = how & 1 ? mask_source(w, op, 2) : 0, out = 0, exec = gcn_exec(w);
    for (int i = 0; i < w->lanes; i++) {
        uint64_t c = in >> i & 1;
        uint64_t x = how & 2 ? (uint64_t)a[i] - b[i] - c : (uint64_t)a[i] + b[i] + c;
        r[i] = (uint32_t)x;
        out |= (x >> 32 & 1) << i;
    }
    gcn_put(w, op, 0, r);
    gcn_put_mask(w, op, 1, out & exec);
}

// Integer sums and differences, saturated under clamp; row->arg: 1 subtracts, 2 is signed, 4
// exchanges.
static void sum(Wave *w, const Op *op) {
    Three x;
    uint32_t r[GCN_LANES];
    int how = op->row->arg, first = how & 4 ? 1 : 0;
    int64_t least = how & 2 ? INT32_MIN : 0, most = how & 2 ? INT32_MAX : UINT32_MAX;
    Op plain = *op;
    three(w, op, &x);
    for (int i = 0; i < w->lanes; i++) {
        uint32_t u = x.p[first][i], v = x.p[!first][i];
        int64_t a = how & 2 ? (int32_t)u : (int64_t)u, b = how & 2 ? (int32_t)v : (int64_t)v;
        int64_t y = how & 1 ? a - b : a + b;
        if (op->clamp) y = y < least ? least : y > most ? most : y;
        r[i] = (uint32_t)y;
    }
    plain.clamp = false;
    gcn_put(w, &plain, 0, r);
}

static int field_of(float x) { return (int)(gcn_bits(x) >> 23 & 255); } // the exponent's
static bool denormal(double x) { return x != 0 && fabs(x) < 0x1p-126; }

// Scaling of the operands of a division so that no step of it overflows; sources: the one to scale,
// denominator, numerator.
static float scaled(float s, float den, float num, bool *vcc) {
    int by = 0, e = field_of(num) - field_of(den);
    *vcc = false;
    if (den == 0 || num == 0) return NAN;
    if (e >= 96) {
        *vcc = true;
        by = s == den ? 64 : 0;
    } else if (denormal(den)) {
        by = 64;
    } else if (denormal(1 / (double)den) && denormal((double)num / den)) {
        *vcc = true;
        by = s == den ? 64 : 0;
    } else if (denormal(1 / (double)den)) {
        by = -64;
    } else if (denormal((double)num / den)) {
        *vcc = true;
        by = s == num ? 64 : 0;
    } else if (field_of(num) <= 23) {
        by = 64;
    }
    return ldexpf(s, by);
}

static void div_scale(Wave *w, const Op *op) {
    Three x;
    uint32_t r[GCN_LANES];
    uint64_t mask = 0, exec = gcn_exec(w);
    three(w, op, &x);
    for (int i = 0; i < w->lanes; i++) {
        bool vcc;
        r[i] = gcn_bits(scaled(gcn_f32(x.p[0][i]), gcn_f32(x.p[1][i]), gcn_f32(x.p[2][i]), &vcc));
        mask |= (uint64_t)vcc << i;
    }
    gcn_put(w, op, 0, r);
    gcn_put_mask(w, op, 1, mask & exec);
}

static void div_fmas(Wave *w, const Op *op) {
    Three x;
    uint32_t r[GCN_LANES];
    uint64_t mask = gcn_mask(w, GCN_VCC);
    three(w, op, &x);
    for (int i = 0; i < w->lanes; i++) {
        float c = gcn_f32(x.p[2][i]), f = fmaf(gcn_f32(x.p[0][i]), gcn_f32(x.p[1][i]), c);
        if (mask >> i & 1) f = ldexpf(f, c >= 2 || c <= -2 ? 64 : -64);
        r[i] = gcn_bits(f);
    }
    gcn_put(w, op, 0, r);
}

// Lanes before this one that the mask names; row->arg: which half of the wave.
static void mbcnt(Wave *w, const Op *op) {
    Three x;
    uint32_t r[GCN_LANES];
    three(w, op, &x);
    for (int i = 0; i < w->lanes; i++) {
        uint64_t before = (1ull << i) - 1;
        uint32_t lanes = (uint32_t)(op->row->arg ? before >> 32 : before);
        r[i] = (uint32_t)__builtin_popcount(x.p[0][i] & lanes) + x.p[1][i];
    }
    gcn_put(w, op, 0, r);
}

static const Row rows[] = {
#define V(name, form, R, S, flags, value) {#name, name, form, flags, 0, 0},
#include "tests/gcn/valu.def"
#undef V
    {"v_cndmask_b32", cndmask, "f=ffm", 0, 0, 0},
    {"v_add_u32", sum, "u=uu", ROW_CLAMP, 0, 0},
    {"v_sub_u32", sum, "u=uu", ROW_CLAMP, 1, 0},
    {"v_subrev_u32", sum, "u=uu", ROW_CLAMP, 1 | 4, 0},
    {"v_add_i32", sum, "u=uu", ROW_CLAMP, 2, 0},
    {"v_sub_i32", sum, "u=uu", ROW_CLAMP, 1 | 2, 0},
    {"v_add_co_u32", carry, "um=uu", 0, 0, 0},
    {"v_sub_co_u32", carry, "um=uu", 0, 2, 0},
    {"v_subrev_co_u32", carry, "um=uu", 0, 2 | 4, 0},
    {"v_addc_co_u32", carry, "um=uum", 0, 1, 0},
    {"v_add_co_ci_u32", carry, "um=uum", 0, 1, 0},
    {"v_subb_co_u32", carry, "um=uum", 0, 1 | 2, 0},
    {"v_sub_co_ci_u32", carry, "um=uum", 0, 1 | 2, 0},
    {"v_subbrev_co_u32", carry, "um=uum", 0, 1 | 2 | 4, 0},
    {"v_subrev_co_ci_u32", carry, "um=uum", 0, 1 | 2 | 4, 0},
    {"v_div_scale_f32", div_scale, "fm=fff", 0, 0, 0},
    {"v_div_fmas_f32", div_fmas, "f=fff", ROW_FLOAT, 0, 0},
    {"v_mbcnt_lo_u32_b32", mbcnt, "u=uu", 0, 0, 0},
    {"v_mbcnt_hi_u32_b32", mbcnt, "u=uu", 0, 1, 0},
};

GcnRows gcn_rows_valu(void) { return (GcnRows){rows, sizeof rows / sizeof *rows}; }
