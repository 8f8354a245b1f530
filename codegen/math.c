// math.c: mathematical functions made of others: of exp2, log2, division and polynomials.
//
// In: an f32 operation and its arguments, scalars or vectors of one type. Out: its value.
// Holds afterwards: relative error about 1e-6 and better near 0 where the function vanishes there
// (a target whose exp2 and log2 are exact to the last bit or two has about 2e-7); infinities, NaN
// and signs are C's.
#include "ir/math.h"
#include "codegen/cg.h"
#include "ir/expr_ops.h"

#include <assert.h>

static Val k(Cg *cg, double v, Val like) { return cg_splat(cg, cg_f32(cg, v), cg_lanes(like)); }

static Val call(Cg *cg, const char *name, Val a, Val b, Val c) {
    Ty t = LLVMTypeOf(a);
    Val v[] = {a, b, c};
    return cg_intrinsic(cg, name, &t, 1, v, c ? 3 : b ? 2 : 1);
}

static Val fma_(Cg *cg, Val a, Val b, Val c) { return call(cg, "llvm.fma", a, b, c); }
static Val math1(Cg *cg, ExOp op, Val a) { return cg_math(cg, op, &a, 1); }
static Val with_sign(Cg *cg, Val a, Val s) { return call(cg, "llvm.copysign", a, s, NULL); }

// c[0] + c[1] x + ... + c[n-1] x^(n-1)
static Val polynomial(Cg *cg, Val x, const double *c, int n) {
    Val r = k(cg, c[n - 1], x);
    for (int i = n - 2; i >= 0; i--) r = fma_(cg, r, x, k(cg, c[i], x));
    return r;
}

// exp2 of x log2(e), with what the product's rounding lost put back: exp(x) = exp2(y) (1 + ln2 (x
// log2e - y)). From 128 ln2 on, and below its negative, the power is infinite or 0: a small positive
// number stands for what was lost there, so that infinity times it is infinity.
static Val exp_of(Cg *cg, Val x) {
    Val log2e = k(cg, 0x1.715476p+0, x), rest = k(cg, 0x1.4ae0bep-26, x); // their sum is log2(e)
    Val y = cg_fmul(cg, x, log2e);
    Val lost = fma_(cg, x, rest, fma_(cg, x, log2e, cg_fneg(cg, y)));
    Val e = math1(cg, EX_EXP2, y);
    Val near =
        cg_fcmp(cg, LLVMRealOLT, call(cg, "llvm.fabs", x, NULL, NULL), k(cg, 0x1.62e43p+6, x));
    lost = cg_select(cg, near, cg_fmul(cg, lost, k(cg, 0x1.62e43p-1, x)), k(cg, 0x1p-30, x));
    return fma_(cg, e, lost, e);
}

// Near 0 the odd series, so that the relative error holds there too.
static Val tanh_of(Cg *cg, Val x) {
    Val a = call(cg, "llvm.fabs", x, NULL, NULL);
    Val e = math1(cg, EX_EXP2, cg_fmul(cg, a, k(cg, 2 * 1.4426950408889634, x)));
    Val far = cg_fsub(cg, k(cg, 1, x),
                      cg_fmul(cg, k(cg, 2, x), math1(cg, EX_RCP, cg_fadd(cg, e, k(cg, 1, x)))));
    Val s = cg_fmul(cg, x, x);
    Val near = fma_(cg, cg_fmul(cg, s, x), polynomial(cg, s, math_tanh, MATH_TANH), x);
    return cg_select(cg, cg_fcmp(cg, LLVMRealOLT, a, k(cg, 0.625, x)), near, with_sign(cg, far, x));
}

static Val sigmoid_of(Cg *cg, Val x) {
    Val e = math1(cg, EX_EXP, cg_fneg(cg, x));
    return math1(cg, EX_RCP, cg_fadd(cg, k(cg, 1, x), e));
}

// Below 0.921875 an odd polynomial; above, 1 - exp(polynomial), which is 1 from about 4 on.
static Val erf_of(Cg *cg, Val x) {
    Val a = call(cg, "llvm.fabs", x, NULL, NULL), s = cg_fmul(cg, x, x);
    Val near = fma_(cg, polynomial(cg, s, math_erf_low, MATH_ERF_LOW), x, x);
    Val t = cg_select(cg, cg_fcmp(cg, LLVMRealOGT, a, k(cg, 4.5, x)), k(cg, 4.5, x), a);
    Val far = cg_fsub(
        cg, k(cg, 1, x),
        math1(cg, EX_EXP,
              fma_(cg, t, polynomial(cg, t, math_erf_high, MATH_ERF_HIGH), cg_fneg(cg, t))));
    return cg_select(cg, cg_fcmp(cg, LLVMRealOGT, a, k(cg, 0.921875, x)), with_sign(cg, far, x),
                     near);
}

// ---- sine and cosine: of x - q pi/2, with q a whole number

static Val shifted(Cg *cg, Val high, Val low, Val by) { // left, with what comes in from `low`
    Ty t = LLVMTypeOf(high);
    Val v[] = {high, low, by};
    return cg_intrinsic(cg, "llvm.fshl", &t, 1, v, 3);
}

static Val longer(Cg *cg, Val v) { return cg_zext(cg, v, cg_vector(cg->i64, cg_lanes(v))); }

static Val wide_k(Cg *cg, int64_t v, Val like) {
    return cg_splat(cg, cg_i64(cg, v), cg_lanes(like));
}

static Val int_k(Cg *cg, int64_t v, Val like) {
    return cg_splat(cg, cg_i32(cg, v), cg_lanes(like));
}

// The 32 bits of 2 / pi with this number; none before the first.
static Val bits_of_2_over_pi(Cg *cg, Val word) {
    Val r = int_k(cg, 0, word);
    for (int i = 0; i < MATH_2_OVER_PI; i++) {
        Val here = cg_same(cg, word, int_k(cg, i, word));
        r = cg_select(cg, here, int_k(cg, math_2_over_pi[i], word), r);
    }
    return r;
}

// After Payne and Hanek, for |x| of at least 2^17: the mantissa by those 96 bits of 2 / pi that tell of
// the quarter and of what is left. *q counts modulo 4.
static Val reduce_far(Cg *cg, Val x, Val *q) {
    Ty i = cg_vector(cg->i32, cg_lanes(x));
    Val bits = cg_bitcast(cg, x, i);
    Val mantissa = cg_or(cg, cg_shl(cg, bits, int_k(cg, 8, x)), int_k(cg, INT32_MIN, x));
    Val e = cg_and(cg, cg_lshr(cg, bits, int_k(cg, 23, x)), int_k(cg, 255, x));
    e = cg_sub(cg, e, int_k(cg, 126, x));
    Val word = cg_lshr(cg, e, int_k(cg, 5, x)), part[4];
    for (int j = 0; j < 4; j++)
        part[j] = bits_of_2_over_pi(cg, cg_add(cg, word, int_k(cg, j - 1, x)));
    Val m = longer(cg, mantissa), p = NULL, half = wide_k(cg, 32, x);
    for (int j = 2; j >= 0; j--) { // modulo 2^64, in units of 2^-62 quarters
        Val by = cg_mul(cg, m, longer(cg, shifted(cg, part[j], part[j + 1], e)));
        if (j == 2) by = cg_lshr(cg, by, half);
        if (j == 0) by = cg_shl(cg, by, half);
        p = p ? cg_add(cg, p, by) : by;
    }
    Val up = cg_add(cg, p, wide_k(cg, (int64_t)1 << 61, x));
    *q = cg_trunc(cg, cg_lshr(cg, up, wide_k(cg, 62, x)), i);
    Val rest = cg_shl(cg, p, wide_k(cg, 2, x));
    Val r = LLVMBuildSIToFP(cg->b, rest, LLVMTypeOf(x), "");
    Val high = cg_fmul(cg, r, k(cg, 0x1.921fb6p-64, x)); // pi/2 in two parts
    r = fma_(cg, r, k(cg, -0x1.777a5cp-89, x), high);
    Val minus = cg_less(cg, bits, int_k(cg, 0, x));
    *q = cg_select(cg, minus, cg_neg(cg, *q), *q);
    return cg_select(cg, minus, cg_fneg(cg, r), r);
}

// pi/2 in three parts: for |x| up to 2^17 what is left is right to a unit in the last place.
static Val reduce_near(Cg *cg, Val x, Val *q) {
    Val n = call(cg, "llvm.rint", cg_fmul(cg, x, k(cg, 0.63661977236758134, x)), NULL, NULL);
    Val r = fma_(cg, n, k(cg, -0x1.921fb4p+0, x), x);
    r = fma_(cg, n, k(cg, -0x1.4442d0p-24, x), r);
    r = fma_(cg, n, k(cg, -0x1.846988p-48, x), r);
    *q = LLVMBuildFPToSI(cg->b, n, cg_vector(cg->i32, cg_lanes(x)), "");
    return r;
}

// The sine of r + q pi/2, |r| up to pi/4.
static Val sin_of_reduced(Cg *cg, Val r, Val q) {
    Val r2 = cg_fmul(cg, r, r);
    Val sine = fma_(cg, cg_fmul(cg, r2, r), polynomial(cg, r2, math_sin, MATH_SIN), r);
    Val cosine = fma_(cg, cg_fmul(cg, r2, r2), polynomial(cg, r2, math_cos, MATH_COS),
                      fma_(cg, r2, k(cg, -0.5, r), k(cg, 1, r)));
    Val bit[2];
    for (int i = 0; i < 2; i++)
        bit[i] = cg_icmp(cg, LLVMIntNE, cg_and(cg, q, int_k(cg, 1 + i, r)), int_k(cg, 0, r));
    Val v = cg_select(cg, bit[0], cosine, sine);
    return cg_select(cg, bit[1], cg_fneg(cg, v), v);
}

static Val quarter_on(Cg *cg, Val q, bool cosine) {
    return cosine ? cg_add(cg, q, int_k(cg, 1, q)) : q;
}

// Of infinity and NaN: NaN.
static Val sin_cos_far(Cg *cg, ExOp op, const Val *x) {
    Val q, r = reduce_far(cg, *x, &q);
    Val v = sin_of_reduced(cg, r, quarter_on(cg, q, op == EX_COS));
    Val finite =
        cg_fcmp(cg, LLVMRealOLT, call(cg, "llvm.fabs", *x, NULL, NULL), k(cg, __builtin_inf(), *x));
    return cg_select(cg, finite, v, k(cg, __builtin_nan(""), *x));
}

// Numbers from 2^17 on, infinity and NaN are a call behind a branch.
static Val sin_cos(Cg *cg, ExOp op, Val x) {
    Val q, r = reduce_near(cg, x, &q);
    Val near = sin_of_reduced(cg, r, quarter_on(cg, q, op == EX_COS));
    Val far = cg_fcmp(cg, LLVMRealUGT, call(cg, "llvm.fabs", x, NULL, NULL), k(cg, 0x1p17, x));
    Ty t = LLVMTypeOf(far);
    Val any = cg_lanes(x) > 1 ? cg_intrinsic(cg, "llvm.vector.reduce.or", &t, 1, &far, 1) : far;
    Blk before = cg_here(cg), done = cg_if(cg, any, "far");
    Val there =
        cg_function(cg, op == EX_COS ? "attn_cos_far" : "attn_sin_far", sin_cos_far, op, &x, 1);
    there = cg_select(cg, far, there, near);
    Blk work = cg_here(cg);
    cg_end_if(cg, done);
    Val phi = cg_phi(cg, LLVMTypeOf(x));
    LLVMAddIncoming(phi, (Val[]){near, there}, (Blk[]){before, work}, 2);
    return phi;
}

// What pow gives beside exp2(b log2|a|): signs for a negative base, 1 for an exponent 0 or a base 1
// whatever the other is.
Val cg_pow_signs(Cg *cg, Val a, Val b, Val magnitude) {
    Val zero = k(cg, 0, a);
    Val half = cg_fmul(cg, b, k(cg, 0.5, a));
    Val whole = cg_fcmp(cg, LLVMRealOEQ, call(cg, "llvm.floor", b, NULL, NULL), b);
    Val even = cg_fcmp(cg, LLVMRealOEQ, call(cg, "llvm.floor", half, NULL, NULL), half);
    Val odd = cg_and(cg, whole, cg_not(cg, even));
    Val r = cg_select(cg, odd, with_sign(cg, magnitude, a), magnitude);
    Val negative = cg_and(cg, cg_fcmp(cg, LLVMRealOLT, a, zero),
                          cg_fcmp(cg, LLVMRealUNE, a, k(cg, -__builtin_inf(), a)));
    Val wrong = cg_and(cg, negative, cg_not(cg, whole));
    return cg_select(cg, wrong, k(cg, __builtin_nan(""), a), r);
}

static Val pow_of(Cg *cg, Val a, Val b) {
    Val log = math1(cg, EX_LOG2, call(cg, "llvm.fabs", a, NULL, NULL)), zero = k(cg, 0, a);
    Val trivial = cg_or(cg, cg_fcmp(cg, LLVMRealOEQ, b, zero), cg_fcmp(cg, LLVMRealOEQ, log, zero));
    return cg_pow_signs(cg, a, b,
                        math1(cg, EX_EXP2, cg_select(cg, trivial, zero, cg_fmul(cg, b, log))));
}

Val cg_math_formula(Cg *cg, ExOp op, const Val *v) {
    switch ((int)op) {
    case EX_EXP: return exp_of(cg, v[0]);
    case EX_LOG: return cg_fmul(cg, math1(cg, EX_LOG2, v[0]), k(cg, 0.69314718055994531, v[0]));
    case EX_RSQRT: return math1(cg, EX_RCP, math1(cg, EX_SQRT, v[0]));
    case EX_TANH: return tanh_of(cg, v[0]);
    case EX_SIGMOID: return sigmoid_of(cg, v[0]);
    case EX_SIN:
    case EX_COS: return sin_cos(cg, op, v[0]);
    case EX_ERF: return erf_of(cg, v[0]);
    case EX_POW: return pow_of(cg, v[0], v[1]);
    default: assert(!"an f32 operation"); return NULL;
    }
}

// ---- an operation: shared, as a call; the target's; LLVM's; a formula

// LLVM's own division without leave to approximate: div.rn on NVIDIA, a sequence of several instructions
// on AMD.
// AMD's division scales its operands where the quotient or the reciprocal is subnormal, but not rightly where both are: divisors
// beyond 2^96 come to it smaller.
Val cg_divide_rounded(Cg *cg, Val a, Val b) {
    if (cg->target->kind == KIND_AMDGPU) {
        Val size = cg_math(cg, EX_ABS, &b, 1), most = cg_f32(cg, 0x1p96);
        Val large = cg_fcmp(cg, LLVMRealOGT, size, most);
        Val by = cg_select(cg, large, cg_f32(cg, 0x1p-64), cg_f32(cg, 1));
        a = cg_fmul(cg, a, by);
        b = cg_fmul(cg, b, by);
    }
    return cg_fdiv(cg, a, b);
}

Val cg_sqrt_rounded(Cg *cg, Val x) { return call(cg, "llvm.sqrt", x, NULL, NULL); }

static bool is_number(Cg *cg, Val x) {
    return LLVMIsConstant(x) && LLVMIsNull(cg_fcmp(cg, LLVMRealUNO, x, x));
}

// The other operand for a NaN. Where one is a constant number, a compare and a select do, which is one
// instruction on most targets.
static Val min_max(Cg *cg, ExOp op, Val *v) {
    if (is_number(cg, v[0])) {
        Val t = v[0];
        v[0] = v[1], v[1] = t;
    }
    if (!is_number(cg, v[1]))
        return call(cg, op == EX_MIN ? "llvm.minnum" : "llvm.maxnum", v[0], v[1], NULL);
    LLVMRealPredicate better = op == EX_MIN ? LLVMRealOLT : LLVMRealOGT;
    return cg_select(cg, cg_fcmp(cg, better, v[0], v[1]), v[0], v[1]);
}

static Val of_llvm(Cg *cg, ExOp op, const Val *args) {
    Val v[3] = {args[0], args[1], args[2]};
    switch ((int)op) {
    case EX_MIN:
    case EX_MAX: return min_max(cg, op, v);
    case EX_DIV: return cg_divide_rounded(cg, v[0], v[1]);
    case EX_RCP: return cg_fdiv(cg, cg_splat(cg, cg_f32(cg, 1), cg_lanes(v[0])), v[0]);
    case EX_FMA: return call(cg, "llvm.fma", v[0], v[1], v[2]);
    case EX_ABS: return call(cg, "llvm.fabs", v[0], NULL, NULL);
    case EX_FLOOR: return call(cg, "llvm.floor", v[0], NULL, NULL);
    case EX_SQRT: return cg_sqrt_rounded(cg, v[0]);
    case EX_EXP2: return call(cg, "llvm.exp2", v[0], NULL, NULL);
    case EX_LOG2: return call(cg, "llvm.log2", v[0], NULL, NULL);
    default: return cg_math_formula(cg, op, v);
    }
}

static bool is_shared(const Cg *cg, ExOp op) {
    Ex e = {.op = op};
    return cg->share_math && ex_weight(&e) > 6 && op != EX_DIV;
}

static Val shared_math(Cg *cg, ExOp op, const Val *args) {
    cg->share_math = false;
    Val r = cg_math(cg, op, args, ex_ops[op].arity);
    cg->share_math = true;
    return r;
}

static Val call_shared(Cg *cg, ExOp op, Val *args, int n) {
    return cg_function(cg, arena_printf(cg->arena, "attn_%s", ex_op_name(op)), shared_math, op,
                       args, n);
}

Val cg_math(Cg *cg, ExOp op, const Val *args, int n) {
    Val v[3] = {0};
    for (int i = 0; i < n; i++) v[i] = args[i];
    cg_widen_all(cg, v, n);
    if (is_shared(cg, op)) return call_shared(cg, op, v, n);
    Val r = cg->hooks->math ? cg->hooks->math(cg, op, v) : NULL;
    return r ? r : of_llvm(cg, op, v);
}
