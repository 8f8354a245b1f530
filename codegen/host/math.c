// math.c: f32 mathematics on the host's vectors, as polynomials.
//
// In: an operation and its arguments. Out: its value; NULL leaves it to the shared formulas.
// Holds afterwards: relative error below 3e-7 (exp2, exp, log2, log below 2e-7); infinities, zeros
// and NaN as C has them.
#include "ir/math.h"
#include "codegen/host/host.h"

#include <math.h>

static Val k(Cg *cg, double v, Val like) { return cg_splat(cg, cg_f32(cg, v), cg_lanes(like)); }
static Val ki(Cg *cg, int64_t v, Val like) { return cg_splat(cg, cg_i32(cg, v), cg_lanes(like)); }
static Ty ints(Cg *cg, Val like) { return cg_vector(cg->i32, cg_lanes(like)); }
static Ty doubles(Cg *cg, Val like) {
    return cg_vector(LLVMDoubleTypeInContext(cg->c), cg_lanes(like));
}

static Val call(Cg *cg, const char *name, Val a, Val b, Val c) {
    Ty t = LLVMTypeOf(a);
    Val v[] = {a, b, c};
    return cg_intrinsic(cg, name, &t, 1, v, c ? 3 : b ? 2 : 1);
}

static Val fma_(Cg *cg, Val a, Val b, Val c) { return host_fma(cg, a, b, c); }
static Val as(Cg *cg, Val v, Ty t) { return cg_bitcast(cg, v, t); }

static Val polynomial(Cg *cg, Val x, const double *c, int n) {
    Val r = k(cg, c[n - 1], x);
    for (int i = n - 2; i >= 0; i--) r = fma_(cg, r, x, k(cg, c[i], x));
    return r;
}

// ---- exponentials

// AVX-512: p * 2^floor(n), for every n; infinities and subnormals included.
static Val scalef(Cg *cg, Val p, Val n) {
    Val args[] = {p, n, p, LLVMConstInt(cg->i16, 0xffff, false), cg_i32(cg, 4)};
    return cg_intrinsic(cg, "llvm.x86.avx512.mask.scalef.ps.512", NULL, 0, args, 5);
}

// x limited so that a NaN stays one: each compare is false for it.
static Val limit(Cg *cg, Val x, double low, double high) {
    x = cg_select(cg, cg_fcmp(cg, LLVMRealOLT, x, k(cg, low, x)), k(cg, low, x), x);
    return cg_select(cg, cg_fcmp(cg, LLVMRealOGT, x, k(cg, high, x)), k(cg, high, x), x);
}

// p * 2^n, n whole in [-160, 160]: in two steps, since 2^n itself may be neither a normal nor a
// finite f32.
static Val scale(Cg *cg, Val p, Val n, Val x) {
    Ty f = LLVMTypeOf(p);
    Val i = LLVMBuildFPToSI(cg->b, n, ints(cg, p), ""); // of a NaN anything: not taken in the end
    Val half = LLVMBuildAShr(cg->b, i, ki(cg, 1, p), ""), rest = cg_sub(cg, i, half);
    Val part[] = {half, rest};
    for (int j = 0; j < 2; j++) {
        Val bits = cg_shl(cg, cg_add(cg, part[j], ki(cg, 127, p)), ki(cg, 23, p));
        p = cg_fmul(cg, p, as(cg, bits, f));
    }
    return cg_select(cg, cg_fcmp(cg, LLVMRealUNO, x, x), x, p);
}

static bool wide(Cg *cg, Val x) { return host_of(cg)->avx512 && cg_lanes(x) == 16; }

// AVX-512: x less the nearest whole number; 0 for infinities.
static Val fraction(Cg *cg, Val x) {
    Val args[] = {x, cg_i32(cg, 8), x, LLVMConstInt(cg->i16, 0xffff, false), cg_i32(cg, 4)};
    return cg_intrinsic(cg, "llvm.x86.avx512.mask.reduce.ps.512", NULL, 0, args, 5);
}

static Val exp2_of(Cg *cg, Val x) {
    if (wide(cg, x)) {
        Val f = fraction(cg, x);
        return scalef(cg, polynomial(cg, f, math_exp2, MATH_EXP2), cg_fsub(cg, x, f));
    }
    Val y = limit(cg, x, -160, 160), n = call(cg, "llvm.rint", y, NULL, NULL);
    return scale(cg, polynomial(cg, cg_fsub(cg, y, n), math_exp2, MATH_EXP2), n, x);
}

static Val exp_of(Cg *cg, Val x) {
    Val y = limit(cg, x, -110, 110);
    Val n = call(cg, "llvm.rint", cg_fmul(cg, y, k(cg, 1.4426950408889634, x)), NULL, NULL);
    Val f = fma_(cg, n, k(cg, -0x1.62e4p-1, x), y); // ln 2 in two parts, the first with few bits
    f = fma_(cg, n, k(cg, -0x1.7f7d1cp-20, x), f);
    Val p = polynomial(cg, f, math_exp, MATH_EXP);
    return wide(cg, x) ? scalef(cg, p, n) : scale(cg, p, n, x);
}

// ---- logarithms

// x = m 2^e with m in [3/4, 3/2), for a positive finite x.
static void split(Cg *cg, Val x, Val *m, Val *e) {
    Ty f = LLVMTypeOf(x);
    Val bits = cg_sub(cg, as(cg, x, ints(cg, x)), ki(cg, 0x3f400000, x));
    Val mantissa = cg_and(cg, bits, ki(cg, 0x7fffff, x));
    *m = as(cg, cg_add(cg, mantissa, ki(cg, 0x3f400000, x)), f);
    *e = LLVMBuildSIToFP(cg->b, LLVMBuildAShr(cg->b, bits, ki(cg, 23, x), ""), f, "");
}

static Val log_edges(Cg *cg, Val x, Val log) {
    Val inf = k(cg, INFINITY, x), zero = k(cg, 0, x);
    log = cg_select(cg, cg_fcmp(cg, LLVMRealOEQ, x, inf), inf, log);
    log = cg_select(cg, cg_fcmp(cg, LLVMRealOEQ, x, zero), k(cg, -INFINITY, x), log);
    return cg_select(cg, cg_fcmp(cg, LLVMRealULT, x, zero), k(cg, NAN, x), log);
}

// ln m for m in [3/4, 3/2), f = m - 1: f - f^2/2 + f^3 P(f), given as f and the rest, which is
// small beside it.
static Val log_rest(Cg *cg, Val f) {
    Val f2 = cg_fmul(cg, f, f);
    return fma_(cg, cg_fmul(cg, f2, f), polynomial(cg, f, math_log, MATH_LOG),
                cg_fmul(cg, f2, k(cg, -0.5, f)));
}

// AVX-512: mantissa in [3/4, 3/2) and exponent; 0, infinity and NaN
// come out as an exponent of -inf, inf and NaN, a negative x as a mantissa of NaN.
static void split_wide(Cg *cg, Val x, Val *m, Val *e) {
    Val every = LLVMConstInt(cg->i16, 0xffff, false), current = cg_i32(cg, 4);
    Val mant[] = {x, cg_i32(cg, 8 | 3), x, every, current};
    *m = cg_intrinsic(cg, "llvm.x86.avx512.mask.getmant.ps.512", NULL, 0, mant, 5);
    Val exp[] = {x, x, every, current};
    Val whole = cg_intrinsic(cg, "llvm.x86.avx512.mask.getexp.ps.512", NULL, 0, exp, 4);
    exp[0] = exp[1] = *m;
    *e =
        cg_fsub(cg, whole, cg_intrinsic(cg, "llvm.x86.avx512.mask.getexp.ps.512", NULL, 0, exp, 4));
}

static Val log2_of(Cg *cg, Val x) {
    Val m, e;
    if (wide(cg, x))
        split_wide(cg, x, &m, &e);
    else
        split(cg, x, &m, &e);
    Val f = cg_fsub(cg, m, k(cg, 1, x)), rest = log_rest(cg, f);
    // log2(e) = 1 + 0.4426...: the big products are exact sums
    Val c = k(cg, 0.44269504088896340736, x);
    Val low = fma_(cg, rest, c, fma_(cg, f, c, rest));
    Val log = cg_fadd(cg, e, cg_fadd(cg, f, low));
    return wide(cg, x) ? log : log_edges(cg, x, log);
}

// ---- in f64 where f32 loses too much on the way

static Val kd(Cg *cg, double v, Val like) {
    return cg_splat(cg, LLVMConstReal(LLVMDoubleTypeInContext(cg->c), v), cg_lanes(like));
}

// log2 of a positive x: e + 2/ln2 atanh((m-1)/(m+1)).
static Val log2_double(Cg *cg, Val x) {
    Val m, e;
    split(cg, x, &m, &e);
    Ty t = doubles(cg, x);
    m = cg_fpext(cg, m, t);
    Val s = cg_fdiv(cg, cg_fsub(cg, m, kd(cg, 1, x)), cg_fadd(cg, m, kd(cg, 1, x))),
        s2 = cg_fmul(cg, s, s);
    Val p = kd(cg, 1.0 / 13, x);
    for (int i = 11; i > 0; i -= 2) p = fma_(cg, p, s2, kd(cg, 1.0 / i, x));
    return fma_(cg, cg_fmul(cg, s, kd(cg, 2.8853900817779268147, x)), p, cg_fpext(cg, e, t));
}

static Val pow_of(Cg *cg, Val a, Val b) {
    Ty t = doubles(cg, a), f = LLVMTypeOf(a);
    Val x = call(cg, "llvm.fabs", a, NULL, NULL), zero = kd(cg, 0, a);
    Val edge = log_edges(cg, x, k(cg, 0, a)); // 0 but for 0, infinity and NaN
    Val log = cg_fadd(cg, log2_double(cg, x), cg_fpext(cg, edge, t));
    log = cg_select(cg, cg_fcmp(cg, LLVMRealOEQ, edge, k(cg, 0, a)), log, cg_fpext(cg, edge, t));
    Val d = cg_fpext(cg, b, t);
    Val none = cg_or(cg, cg_fcmp(cg, LLVMRealOEQ, d, zero), cg_fcmp(cg, LLVMRealOEQ, log, zero));
    Val y =
        limit(cg, LLVMBuildFPTrunc(cg->b, cg_select(cg, none, zero, cg_fmul(cg, d, log)), f, ""),
              -160, 160);
    Val n = call(cg, "llvm.rint", y, NULL, NULL);
    Val frac = cg_fsub(cg, cg_select(cg, none, zero, cg_fmul(cg, d, log)), cg_fpext(cg, n, t));
    frac = limit(cg, LLVMBuildFPTrunc(cg->b, frac, f, ""), -1,
                 1); // out of range only where y was limited
    return cg_pow_signs(cg, a, b, scale(cg, polynomial(cg, frac, math_exp2, MATH_EXP2), n, y));
}

Val host_math(Cg *cg, ExOp op, const Val *v) {
    switch ((int)op) {
    case EX_FMA: return host_fma(cg, v[0], v[1], v[2]);
    case EX_EXP2: return exp2_of(cg, v[0]);
    case EX_EXP: return exp_of(cg, v[0]);
    case EX_LOG2: return log2_of(cg, v[0]);
    case EX_POW: return pow_of(cg, v[0], v[1]);
    default: return NULL;
    }
}
