// math.h: f32 operations in the arithmetic of a target, in plain C.
//
// Subnormal operands and results count as 0. What a target computes by a formula of its code generator
// (codegen/math.c, codegen/host/math.c) is computed by the same formula here; for the host every bit is
// the same, which check_math shows. What the hardware approximates is a nearest f32, moved by no more
// than the documented error (docs/arithmetic.md) as `seed` has it: special values (0, infinity, NaN) are
// exact, and a function of the same argument always has the same value.
#ifndef IR_MATH_H
#define IR_MATH_H

#include "expr.h"
#include "target.h"

typedef struct Math {
    TargetKind kind;
    bool fused;  // host: it has a fused multiply-add
    bool narrow; // NVIDIA: of a kernel whose tensors are f16 or bf16
    uint32_t seed;
} Math;

Math math_of(TargetId target, Dtype dtype);
// An operation that takes and gives f32: ADD to POW of ops.def.
float math_apply(const Math *m, ExOp op, const float *args, int n);
// The formula of EXP, SIN, COS, LOG, RSQRT, TANH, SIGMOID, ERF or POW that targets share.
float math_formula(const Math *m, ExOp op, float a, float b);

// The formulas' polynomials, from the constant on, and the bits of 2 / pi.
enum {
    MATH_EXP2 = 6,
    MATH_EXP = 6,
    MATH_LOG = 9,
    MATH_TANH = 5,
    MATH_ERF_LOW = 6,
    MATH_ERF_HIGH = 7,
    MATH_SIN = 3,
    MATH_COS = 3,
    MATH_2_OVER_PI = 7
};
extern const double math_exp2[MATH_EXP2]; // 2^f on [-1/2, 1/2]
extern const double math_exp[MATH_EXP];   // e^f on [-ln2/2, ln2/2]
extern const double math_log[MATH_LOG];   // (ln(1 + f) - f + f^2/2) / f^3
extern const double math_tanh[MATH_TANH]; // (tanh(x) - x) / x^3, of x^2
extern const double math_erf_low[MATH_ERF_LOW], math_erf_high[MATH_ERF_HIGH];
extern const double math_sin[MATH_SIN], math_cos[MATH_COS]; // of r^2, beyond x and 1 - x^2/2
extern const uint32_t math_2_over_pi[MATH_2_OVER_PI];

#endif
