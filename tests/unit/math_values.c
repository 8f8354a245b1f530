// The targets' arithmetic in plain C (ir/math.h) at the ends of f32, and that the interpreter computes by it.
#include "ir/expr_ops.h"
#include "ir/math.h"
#include "tests/unit/test.h"

#include <float.h>

static const TargetId targets[] = {TARGET_HOST, TARGET_SM80, TARGET_GFX942};
static const float ends[] = {88.8f,    88.72284f, 88.72283f, 87.4f,   127,      200,
                             1e10f,    6e7f,      1e12f,     1e-40f,  FLT_MIN,  1.0f,
                             16777216, 65504,     0,         FLT_MAX, INFINITY, 131072.0f};
enum { TARGETS = 3, ENDS = sizeof ends / sizeof *ends };

static float of(const Math *m, ExOp op, float x) { return math_apply(m, op, &x, 1); }

static Math math(int t) { return math_of(targets[t], t == 1 ? DT_F32 : DT_BF16); }

static bool close_to(float got, double want) {
    if (isnan(want)) return isnan(got);
    if (fabs(want) < FLT_MIN) return got == 0;
    if (fabs(want) > FLT_MAX) return (double)got == copysign(INFINITY, want);
    return fabs((double)got - want) <= 6e-7 * fabs(want);
}

// Infinity times what rounding lost was NaN.
TEST(exponentials) {
    for (int t = 0; t < TARGETS; t++)
        for (int i = 0; i < 2 * ENDS; i++) {
            Math m = math(t);
            float x = i < ENDS ? ends[i] : -ends[i - ENDS];
            double a = fabsf(x) < FLT_MIN ? 0 : (double)x;
            float e = math_formula(&m, EX_EXP, (float)a, 0);
            ck_assert_msg(close_to(e, exp(a)), "exp(%.9g) is %.9g on %d", (double)x, (double)e, t);
            ck_assert(close_to(of(&m, EX_EXP, x), exp(a)));
            ck_assert(close_to(of(&m, EX_SIGMOID, x), 1 / (1 + exp(-a))));
            ck_assert(close_to(of(&m, EX_TANH, x), tanh(a)));
            ck_assert(close_to(of(&m, EX_ERF, x), erf(a)));
        }
}

TEST(angles) {
    for (int t = 0; t < TARGETS; t++)
        for (int i = 0; i < 2 * ENDS; i++) {
            Math m = math(t);
            float x = i < ENDS ? ends[i] : -ends[i - ENDS];
            double a = fabsf(x) < FLT_MIN ? 0 : (double)x;
            ck_assert_msg(close_to(of(&m, EX_SIN, x), sin(a)), "sin(%.9g) is %.9g", (double)x,
                          (double)of(&m, EX_SIN, x));
            ck_assert(close_to(of(&m, EX_COS, x), cos(a)));
        }
}

TEST(special_values) {
    for (int t = 0; t < TARGETS; t++) {
        Math m = math(t);
        ck_assert(of(&m, EX_EXP2, -INFINITY) == 0 && of(&m, EX_EXP2, 0) == 1);
        ck_assert(of(&m, EX_EXP2, INFINITY) == INFINITY && isnan(of(&m, EX_EXP2, NAN)));
        ck_assert(of(&m, EX_LOG2, 1) == 0 && of(&m, EX_LOG2, 1e-40f) == -INFINITY);
        ck_assert(isnan(of(&m, EX_LOG, -1)) && of(&m, EX_LOG, INFINITY) == INFINITY);
        ck_assert(of(&m, EX_RSQRT, 1e-40f) == INFINITY && of(&m, EX_RSQRT, INFINITY) == 0);
        ck_assert(of(&m, EX_RCP, 0x1p127f) == 0 && of(&m, EX_RCP, -1e-40f) == -INFINITY);
        ck_assert(isnan(of(&m, EX_SQRT, -1)) && signbit(of(&m, EX_SQRT, -0.0f)));
        float zero[] = {NAN, 0}, odd[] = {-2, 3}, least[] = {1e-30f, 1e-30f},
              equal[] = {0.3f, 0.3f};
        ck_assert(math_apply(&m, EX_POW, zero, 2) == 1);
        ck_assert(close_to(math_apply(&m, EX_POW, odd, 2), -8));
        ck_assert(math_apply(&m, EX_MUL, least, 2) == 0);
        ck_assert(math_apply(&m, EX_MOD, equal, 2) == 0);
    }
}

// ---- what the interpreter takes of it

static ExValue third(void *ctx, const Ex *e) {
    (void)ctx, (void)e;
    return (ExValue){.f = 3};
}

// Many quotients by 3 on NVIDIA are not the nearest f32; under `rounded` each is.
ARENA_TEST(quotients) {
    ExPool *p = ex_pool(a);
    Math m = math_of(TARGET_SM80, DT_F32);
    ExEnv env = {.sym = third, .round = true, .math = &m};
    int moved = 0;
    for (int i = 1; i < 100; i++) {
        const Ex *q = ex_2(p, EX_DIV, ex_f32(p, (float)i), ex_sym(p, SYM_PARAM, 0, EX_F32));
        float right = (float)i / 3;
        moved += ex_eval(q, &env).f != (double)right;
        ck_assert(fabs(ex_eval(q, &env).f - (double)right) < 4e-7 * (double)right);
        ck_assert(ex_eval(ex_1(p, EX_ROUNDED, q), &env).f == (double)right);
    }
    ck_assert_int_gt(moved, 20);
}

ARENA_TEST(subnormals) {
    ExPool *p = ex_pool(a);
    const Ex *least = ex_f32(p, 1e-40f), *small = ex_f32(p, 1e-30f), *zero = ex_f32(p, 0);
    ExEnv rounded = {.round = true}, exact = {.round = false};
    ck_assert(ex_eval(ex_2(p, EX_MUL, small, small), &rounded).f == 0);
    ck_assert(ex_eval(ex_2(p, EX_MUL, small, small), &exact).f > 0);
    ck_assert(ex_eval(ex_2(p, EX_MUL, least, ex_f32(p, 1e10f)), &rounded).f == 0);
    ck_assert(ex_eval(ex_2(p, EX_EQ, least, zero), &rounded).i == 1);
    ck_assert(ex_eval(ex_2(p, EX_LT, zero, least), &exact).i == 1);
    ck_assert(ex_eval(ex_conv(p, EX_BOOL, least), &rounded).i == 0);
}
