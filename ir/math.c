// math.c: f32 operations in the arithmetic of a target (math.h).
//
// In: an operation and f32 values. Out: what the target's code gives for them, or may give where its
// hardware approximates. Holds afterwards: each step of a formula is rounded as the code generator's
// instruction rounds it, so that the host's results are the same in every bit.
#include "math.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

Math math_of(TargetId target, Dtype dtype) {
    return (Math){.kind = target_get(target)->kind,
                  .fused = true,
                  .narrow = dtype == DT_F16 || dtype == DT_BF16,
                  .seed = 1};
}

// ---- polynomials

// Least relative error with 1 exactly at 0, so that a factor of 1 stays one: 9.2e-8 and 1.1e-7.
const double math_exp2[] = {1.0,
                            0.6931469775915043,
                            0.24022242080355044,
                            0.055507337542366475,
                            0.009671512869931143,
                            0.0013264723896023204};
const double math_exp[] = {
    1.0, 1.0, 0.4999923170727337, 0.16667114486341897, 0.04189012432834713, 0.008312526082736322};
const double math_log[] = {0.3333331908476821,  -0.2500026988298786,  0.20001793404225116,
                           -0.166540322521611,  0.14215903580491246,  -0.12636492780119787,
                           0.12130536473810394, -0.10460175888288281, 0.04809124280351035};
const double math_tanh[] = {-3.33332819422e-1, 1.33314422036e-1, -5.37397155531e-2,
                            2.06390887954e-2, -5.70498872745e-3};
const double math_erf_low[] = {1.28379166e-1,  -3.76125336e-1, 1.12819925e-1,
                               -2.67681349e-2, 4.99119423e-3,  -5.96761703e-4};
const double math_erf_high[] = {-1.28717512e-1, -6.34846687e-1, -1.06777877e-1, 2.42546219e-2,
                                -3.88396438e-3, 3.83197126e-4,  -1.72853470e-5};
const double math_sin[] = {-1.6666654611e-1, 8.3321608736e-3, -1.9515295891e-4};
const double math_cos[] = {4.166664568298827e-2, -1.388731625493765e-3, 2.443315711809948e-5};
const uint32_t math_2_over_pi[] = {0x28be60db, 0x9391054a, 0x7f09d5f4, 0x7d4d3770,
                                   0x36d8a566, 0x4f10e410, 0x7f9458ea};

// ---- operations that are rounded once

static float operand(float x) { return fabsf(x) < FLT_MIN ? copysignf(0, x) : x; }

// The nearest f32; 0 below the normal range, as it is after rounding to 24 bits.
static float rounded(double v) {
    return fabs(v) < 0x1p-126 * (1 - 0x1p-25) ? (float)copysign(0, v) : (float)v;
}

static float mul(float a, float b) { return rounded((double)a * (double)b); }
static float add(float a, float b) { return rounded((double)a + (double)b); }
static float sub(float a, float b) { return rounded((double)a - (double)b); }
static float fma_(float a, float b, float c) {
    float r = fmaf(a, b, c);
    return fabsf(r) > FLT_MIN ? r : rounded(fma((double)a, (double)b, (double)c));
}

// Where a processor has no such instruction the host's own polynomials round twice.
static float host_fma(const Math *m, float a, float b, float c) {
    return m->fused ? fma_(a, b, c) : add(mul(a, b), c);
}

static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float of_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static float limit(float x, float low, float high) {
    x = x < low ? low : x;
    return x > high ? high : x;
}

static float polynomial(float x, const double *c, int n) {
    float r = (float)c[n - 1];
    for (int i = n - 2; i >= 0; i--) r = fma_(r, x, (float)c[i]);
    return r;
}

static float host_polynomial(const Math *m, float x, const double *c, int n) {
    float r = (float)c[n - 1];
    for (int i = n - 2; i >= 0; i--) r = host_fma(m, r, x, (float)c[i]);
    return r;
}

// ---- the host's own functions (codegen/host/math.c)

static float scale(float p, float n) { // p * 2^n, n whole
    uint64_t u = (uint64_t)(1023 + (int)n) << 52;
    double by;
    memcpy(&by, &u, sizeof by);
    return rounded((double)p * by);
}

static float host_exp2(const Math *m, float x) {
    if (isnan(x)) return x;
    float y = limit(x, -160, 160), n = rintf(y);
    return scale(host_polynomial(m, sub(y, n), math_exp2, MATH_EXP2), n);
}

static float host_exp(const Math *m, float x) {
    if (isnan(x)) return x;
    float y = limit(x, -110, 110), n = rintf(mul(y, 0x1.715476p+0f));
    float f = host_fma(m, n, -0x1.62e4p-1f, y);
    f = host_fma(m, n, -0x1.7f7d1cp-20f, f);
    return scale(host_polynomial(m, f, math_exp, MATH_EXP), n);
}

// x = m 2^e with m in [3/4, 3/2), for a positive finite x.
static float split(float x, float *e) {
    uint32_t bits = bits_of(x) - 0x3f400000;
    *e = (float)((int32_t)bits >> 23);
    return of_bits((bits & 0x7fffff) + 0x3f400000);
}

static float host_log2(const Math *m, float x) {
    float e;
    if (x == 0) return -INFINITY;
    if (!(x > 0)) return NAN;
    if (isinf(x)) return x;
    float f = sub(split(x, &e), 1), f2 = mul(f, f);
    float rest = host_fma(m, mul(f2, f), host_polynomial(m, f, math_log, MATH_LOG), mul(f2, -0.5f));
    float c = 0.44269504088896340736f;
    return add(e, add(f, host_fma(m, rest, c, host_fma(m, f, c, rest))));
}

static double double_fma(const Math *m, double a, double b, double c) {
    return m->fused ? fma(a, b, c) : a * b + c;
}

static double double_log2(const Math *m, float x) {
    float e;
    if (x == 0) return -INFINITY;
    if (isnan(x) || isinf(x)) return (double)x;
    double y = (double)split(x, &e), s = (y - 1) / (y + 1), s2 = s * s, p = 1.0 / 13;
    for (int i = 11; i > 0; i -= 2) p = double_fma(m, p, s2, 1.0 / i);
    return double_fma(m, s * 2.8853900817779268147, p, (double)e);
}

static float pow_signs(float a, float b, float magnitude) {
    bool whole = floorf(b) == b, odd = whole && floorf(mul(b, 0.5f)) != mul(b, 0.5f);
    if (a < 0 && a != -INFINITY && !whole) return NAN;
    return odd ? copysignf(magnitude, a) : magnitude;
}

static float host_pow(const Math *m, float a, float b) {
    double log = double_log2(m, fabsf(a)), y = b == 0 || log == 0 ? 0 : (double)b * log;
    float whole = limit(rounded(y), -160, 160), n = rintf(whole);
    float rest = limit(rounded(y - (double)n), -1, 1);
    if (isnan(whole)) return pow_signs(a, b, whole);
    float p = host_polynomial(m, rest, math_exp2, MATH_EXP2);
    return pow_signs(a, b, scale(p, n));
}

// ---- what hardware approximates

// By how much at most, relative to the result (of LOG2 on NVIDIA to at least 1 between 1/2 and 2).
static double hardware_error(TargetKind kind, ExOp op) {
    bool amd = kind == KIND_AMDGPU;
    switch ((int)op) {
    case EX_EXP2: return amd ? 0x1p-23 : 0x1p-22;
    case EX_LOG2: return amd ? 0x1p-23 : 0x1p-22;
    case EX_RCP: return 0x1p-23;
    case EX_SQRT: return 0x1p-23;
    case EX_RSQRT: return amd ? 0x1p-23 : 0x1.83p-23; // 2^-22.4
    case EX_TANH: return 0x1p-11;
    case EX_DIV: return amd ? 0x1.4p-22 : 0x1p-22; // 2.5 and 2 units in the last place
    default: return 0;
    }
}

// Of exact, which is finite and not 0: moved by at most `error` of `size`.
static float near(const Math *m, ExOp op, uint64_t argument, double exact, double size) {
    uint64_t h = argument * 0x9e3779b97f4a7c15 + (m->seed * 64 + (uint32_t)op);
    h = (h ^ h >> 33) * 0xff51afd7ed558ccd;
    h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53;
    double part = (double)(int64_t)h * 0x1p-63;
    return rounded(exact + part * hardware_error(m->kind, op) * size);
}

static double exact_of(ExOp op, double x) {
    switch ((int)op) {
    case EX_EXP2: return exp2(x);
    case EX_LOG2: return log2(x);
    case EX_RCP: return 1 / x;
    case EX_SQRT: return sqrt(x);
    case EX_RSQRT: return x == 0 ? copysign(INFINITY, x) : 1 / sqrt(x);
    case EX_TANH: return tanh(x);
    default: assert(!"an approximation"); return 0;
    }
}

static float approximate(const Math *m, ExOp op, float x) {
    double exact = exact_of(op, (double)x), size = fabs(exact);
    if (exact == 0 || isnan(exact) || x == 0 || isinf((float)exact)) return rounded(exact);
    if (op == EX_TANH && fabsf((float)exact) == 1) return (float)exact; // as far out it is exact
    if (op == EX_LOG2 && m->kind == KIND_NVPTX && x > 0.5f && x < 2) size = 1; // absolute there
    float r = near(m, op, bits_of(x), exact, size);
    if (op == EX_TANH && fabsf(r) > 1) return copysignf(1, r);
    return isinf(r) ? copysignf(FLT_MAX, r) : r;
}

static float quotient(const Math *m, float a, float b) {
    double exact = (double)a / (double)b;
    if (exact == 0 || isnan(exact) || isinf((float)exact)) return rounded(exact);
    return near(m, EX_DIV, (uint64_t)bits_of(a) << 32 | bits_of(b), exact, fabs(exact));
}

// ---- functions of one argument that every target has its own of, or that are IEEE's

static float primitive(const Math *m, ExOp op, float x) {
    if (m->kind != KIND_HOST) return approximate(m, op, x);
    switch ((int)op) {
    case EX_EXP2: return host_exp2(m, x);
    case EX_LOG2: return host_log2(m, x);
    case EX_RCP: return rounded(1 / (double)x);
    default: assert(op == EX_SQRT); return rounded(sqrt((double)x));
    }
}

static float function(const Math *m, ExOp op, float x) { return math_apply(m, op, &x, 1); }

// ---- formulas that targets share (codegen/math.c)

static float exp_of(const Math *m, float x) {
    float log2e = 0x1.715476p+0f, y = mul(x, log2e);
    float lost = fma_(x, 0x1.4ae0bep-26f, fma_(x, log2e, -y)), e = primitive(m, EX_EXP2, y);
    return fma_(e, fabsf(x) < 0x1.62e43p+6f ? mul(lost, 0x1.62e43p-1f) : 0x1p-30f, e);
}

static float tanh_of(const Math *m, float x) {
    float a = fabsf(x), e = primitive(m, EX_EXP2, mul(a, (float)(2 * 1.4426950408889634)));
    float far = sub(1, mul(2, primitive(m, EX_RCP, add(e, 1)))), s = mul(x, x);
    if (a < 0.625f) return fma_(mul(s, x), polynomial(s, math_tanh, MATH_TANH), x);
    return copysignf(far, x);
}

static float sigmoid_of(const Math *m, float x) {
    return primitive(m, EX_RCP, add(1, function(m, EX_EXP, -x)));
}

static float erf_of(const Math *m, float x) {
    float a = fabsf(x), t = a > 4.5f ? 4.5f : a;
    if (!(a > 0.921875f)) return fma_(polynomial(mul(x, x), math_erf_low, MATH_ERF_LOW), x, x);
    float p = fma_(t, polynomial(t, math_erf_high, MATH_ERF_HIGH), -t);
    return copysignf(sub(1, function(m, EX_EXP, p)), x);
}

static uint32_t bits_of_2_over_pi(int word) {
    return word < 0 || word >= MATH_2_OVER_PI ? 0 : math_2_over_pi[word];
}

static float reduce_far(float x, uint32_t *q) {
    uint32_t bits = bits_of(x), mantissa = bits << 8 | 0x80000000;
    uint64_t part[3], p;
    int e = (int)(bits >> 23 & 255) - 126;
    for (int j = 0; j < 3; j++) {
        uint64_t two =
            (uint64_t)bits_of_2_over_pi(e / 32 + j - 1) << 32 | bits_of_2_over_pi(e / 32 + j);
        part[j] = (uint32_t)(two << e % 32 >> 32);
    }
    p = (mantissa * part[2] >> 32) + mantissa * part[1] + (mantissa * part[0] << 32);
    *q = (uint32_t)((p + ((uint64_t)1 << 61)) >> 62);
    float r = (float)(int64_t)(p << 2);
    r = fma_(r, -0x1.777a5cp-89f, mul(r, 0x1.921fb6p-64f));
    if (signbit(x)) *q = -*q;
    return signbit(x) ? -r : r;
}

static float reduce_near(float x, uint32_t *q) {
    float n = rintf(mul(x, (float)0.63661977236758134)), r = fma_(n, -0x1.921fb4p+0f, x);
    r = fma_(n, -0x1.4442d0p-24f, r);
    *q = (uint32_t)(int32_t)n;
    return fma_(n, -0x1.846988p-48f, r);
}

static float sin_cos(ExOp op, float x) {
    uint32_t q;
    if (!isfinite(x)) return NAN;
    float r = fabsf(x) > 0x1p17f ? reduce_far(x, &q) : reduce_near(x, &q), r2 = mul(r, r), v;
    q += op == EX_COS;
    if (q & 1)
        v = fma_(mul(r2, r2), polynomial(r2, math_cos, MATH_COS), fma_(r2, -0.5f, 1));
    else
        v = fma_(mul(r2, r), polynomial(r2, math_sin, MATH_SIN), r);
    return q & 2 ? -v : v;
}

static float pow_of(const Math *m, float a, float b) {
    float log = primitive(m, EX_LOG2, fabsf(a));
    return pow_signs(a, b, primitive(m, EX_EXP2, b == 0 || log == 0 ? 0 : mul(b, log)));
}

float math_formula(const Math *m, ExOp op, float a, float b) {
    switch ((int)op) {
    case EX_EXP: return exp_of(m, a);
    case EX_LOG: return mul(primitive(m, EX_LOG2, a), 0.69314718055994531f);
    case EX_RSQRT: return primitive(m, EX_RCP, primitive(m, EX_SQRT, a));
    case EX_TANH: return tanh_of(m, a);
    case EX_SIGMOID: return sigmoid_of(m, a);
    case EX_SIN:
    case EX_COS: return sin_cos(op, a);
    case EX_ERF: return erf_of(m, a);
    case EX_POW: return pow_of(m, a, b);
    default: assert(!"a formula"); return 0;
    }
}

// ---- a target's choice

static float own(const Math *m, ExOp op, float a, float b) {
    bool host = m->kind == KIND_HOST, narrow = m->kind == KIND_NVPTX && m->narrow;
    if (host && op == EX_EXP) return host_exp(m, a);
    if (host && op == EX_POW) return host_pow(m, a, b);
    if (!host && op == EX_RSQRT) return approximate(m, op, a);
    if (narrow && op == EX_TANH) return approximate(m, op, a);
    if (narrow && op == EX_SIGMOID)
        return primitive(m, EX_RCP, add(1, primitive(m, EX_EXP2, mul(a, -0x1.715476p+0f))));
    if (op == EX_EXP2 || op == EX_LOG2 || op == EX_SQRT || op == EX_RCP) return primitive(m, op, a);
    return math_formula(m, op, a, b);
}

float math_apply(const Math *m, ExOp op, const float *args, int n) {
    float a = operand(args[0]), b = n > 1 ? operand(args[1]) : 0, c = n > 2 ? operand(args[2]) : 0;
    switch ((int)op) {
    case EX_ADD: return add(a, b);
    case EX_SUB: return sub(a, b);
    case EX_MUL: return mul(a, b);
    case EX_DIV: return m->kind == KIND_HOST ? rounded((double)a / (double)b) : quotient(m, a, b);
    case EX_MOD: return sub(a, mul(b, floorf(rounded((double)a / (double)b))));
    case EX_NEG: return -a;
    case EX_FMA: return host_fma(m, a, b, c);
    case EX_ROUNDED: return a;
    case EX_MIN: return fminf(a, b);
    case EX_MAX: return fmaxf(a, b);
    case EX_ABS: return fabsf(a);
    case EX_FLOOR: return floorf(a);
    default: return own(m, op, a, b);
    }
}
