// valu_wide.c: vector instructions of 64 bits: integers, f64, and two f32 at once.
#include "tests/gcn/wave.h"

typedef struct Wide {
    uint64_t p[3][GCN_LANES];
} Wide;

static void wide(Wave *w, const Op *op, Wide *x) {
    for (int k = 0; k < 3 && k < op->nsrc; k++) gcn_source64(w, op, k, x->p[k]);
    for (int k = op->nsrc; k < 3; k++) memset(x->p[k], 0, sizeof x->p[k]);
}

#define FROM_q(u) (u)
#define FROM_j(u) (int64_t)(u)
#define FROM_d(u) gcn_f64(u)
#define TYPE_q uint64_t
#define TYPE_j int64_t
#define TYPE_d double
#define TO_q(x) (uint64_t)(x)
#define TO_d(x) gcn_bits64(x)

// W(name, form, result, sources, flags, value)
#define W_ROWS                                                                                     \
    W(v_lshlrev_b64, "q=uq", q, q, ROW_UPWARD, b << (a & 63))                                      \
    W(v_lshrrev_b64, "q=uq", q, q, 0, b >> (a & 63))                                               \
    W(v_ashrrev_i64, "q=uq", q, j, 0, b >> (a & 63))                                               \
    W(v_lshl_add_u64, "q=quq", q, q, ROW_UPWARD, (a << (b & 7)) + c)                               \
    W(v_mov_b64, "q=q", q, q, ROW_UPWARD, a)                                                       \
    W(v_add_f64, "d=dd", d, d, 0, a + b)                                                           \
    W(v_mul_f64, "d=dd", d, d, 0, a *b)                                                            \
    W(v_fma_f64, "d=ddd", d, d, 0, fma(a, b, c))                                                   \
    W(v_max_f64, "d=dd", d, d, 0, fmax(a, b))                                                      \
    W(v_min_f64, "d=dd", d, d, 0, fmin(a, b))                                                      \
    W(v_ldexp_f64, "d=qu", d, q, 0, ldexp(gcn_f64(a), (int32_t)b))                                 \
    W(v_rcp_f64, "d=d", d, d, 0, 1 / a)                                                            \
    W(v_cvt_f64_f32, "d=f", d, q, 0, (double)gcn_f32((uint32_t)a))                                 \
    W(v_cvt_f64_i32, "d=u", d, q, 0, (double)(int32_t)a)                                           \
    W(v_cvt_f64_u32, "d=u", d, q, 0, (double)(uint32_t)a)

#define W(name, form, R, S, flags, value)                                                          \
    static void name(Wave *w, const Op *op) {                                                      \
        Wide x;                                                                                    \
        uint64_t r[GCN_LANES];                                                                     \
        wide(w, op, &x);                                                                           \
        for (int i = 0; i < w->lanes; i++) {                                                       \
            TYPE_##S a = FROM_##S(x.p[0][i]), b = FROM_##S(x.p[1][i]), c = FROM_##S(x.p[2][i]);    \
            (void)a, (void)b, (void)c;                                                             \
            r[i] = TO_##R(value);                                                                  \
        }                                                                                          \
        gcn_put64(w, op, r);                                                                       \
    }
W_ROWS
#undef W

// ---- products of 32 bits in 64, with a carry

static void mad_64_32(Wave *w, const Op *op) {
    Wide x;
    uint64_t r[GCN_LANES], carry = 0, exec = gcn_exec(w);
    bool is_signed = op->row->arg;
    wide(w, op, &x);
    for (int i = 0; i < w->lanes; i++) {
        uint32_t a = (uint32_t)x.p[0][i], b = (uint32_t)x.p[1][i];
        uint64_t product =
            is_signed ? (uint64_t)((int64_t)(int32_t)a * (int32_t)b) : (uint64_t)a * b;
        carry |= (uint64_t)__builtin_add_overflow(product, x.p[2][i], &r[i]) << i;
    }
    gcn_put64(w, op, r);
    gcn_put_mask(w, op, 1, carry & exec);
}

// f64 to 32 bits; row->arg: 0 f32, 1 i32, 2 u32.
static void from_f64(Wave *w, const Op *op) {
    Wide x;
    uint32_t r[GCN_LANES];
    wide(w, op, &x);
    for (int i = 0; i < w->lanes; i++) {
        double d = gcn_f64(x.p[0][i]);
        if (op->row->arg == 0)
            r[i] = gcn_bits((float)d);
        else if (op->row->arg == 1)
            r[i] = isnan(d) ? 0 : (uint32_t)(int32_t)fmin(fmax(d, INT32_MIN), INT32_MAX);
        else
            r[i] = isnan(d) ? 0 : (uint32_t)fmin(fmax(d, 0), UINT32_MAX);
    }
    gcn_put(w, op, 0, r);
}

// ---- two f32

// Source k's f32 for the result's low or high half. What a constant has in its high half is not
// specified: LLVM never asks for it.
static void pair_half(Wave *w, const Op *op, int k, int high, float *out) {
    uint32_t buf[GCN_LANES];
    int part = (high ? op->op_sel_hi : op->op_sel) >> k & 1;
    bool negative = (high ? op->neg_hi : op->neg_lo) >> k & 1;
    const Operand *o = &op->src[k];
    if (part && o->kind == OPERAND_CONST && o->value)
        gcn_fault(w, op, "takes the high half of a constant, which is not modelled");
    const uint32_t *p = gcn_source(w, op, k, part, buf);
    for (int i = 0; i < w->lanes; i++) out[i] = negative ? -gcn_in(w, p[i]) : gcn_in(w, p[i]);
}

static float pair_value(int what, float a, float b, float c) {
    return what == 0 ? a + b : what == 1 ? a * b : fmaf(a, b, c);
}

// row->arg: 0 add, 1 multiply, 2 fused multiply-add
static void pair(Wave *w, const Op *op) {
    float x[3][GCN_LANES] = {{0}};
    uint32_t r[2][GCN_LANES];
    for (int high = 0; high < 2; high++) {
        for (int k = 0; k < op->nsrc; k++) pair_half(w, op, k, high, x[k]);
        for (int i = 0; i < w->lanes; i++)
            r[high][i] = gcn_out(w, pair_value(op->row->arg, x[0][i], x[1][i], x[2][i]));
    }
    gcn_put(w, op, 0, r[0]);
    gcn_put(w, op, 1, r[1]);
}

// The low result from the first source, the high one from the second, each from the half that
// op_sel names.
static void pair_move(Wave *w, const Op *op) {
    uint32_t r[2][GCN_LANES], buf[GCN_LANES];
    const uint32_t *p = gcn_source(w, op, 0, op->op_sel & 1, buf);
    memcpy(r[0], p, sizeof *p * (size_t)w->lanes);
    p = gcn_source(w, op, 1, op->op_sel >> 1 & 1, buf);
    memcpy(r[1], p, sizeof *p * (size_t)w->lanes);
    gcn_put(w, op, 0, r[0]);
    gcn_put(w, op, 1, r[1]);
}

static const Row rows[] = {
#define W(name, form, R, S, flags, value) {#name, name, form, flags, 0, 0},
    W_ROWS
#undef W
    {"v_mad_u64_u32", mad_64_32, "qm=uuq", ROW_UPWARD, 0, 0},
    {"v_mad_i64_i32", mad_64_32, "qm=uuq", ROW_UPWARD, 1, 0},
    {"v_cvt_f32_f64", from_f64, "f=d", 0, 0, 0},
    {"v_cvt_i32_f64", from_f64, "u=d", 0, 1, 0},
    {"v_cvt_u32_f64", from_f64, "u=d", 0, 2, 0},
    {"v_pk_add_f32", pair, "P=PP", 0, 0, 0},
    {"v_pk_mul_f32", pair, "P=PP", 0, 1, 0},
    {"v_pk_fma_f32", pair, "P=PPP", 0, 2, 0},
    {"v_pk_mov_b32", pair_move, "P=PP", 0, 0, 0},
};

GcnRows gcn_rows_wide(void) { return (GcnRows){rows, sizeof rows / sizeof *rows}; }
