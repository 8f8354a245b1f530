// What ex_simplify makes of an expression; and, on random expressions, that it keeps what they
// mean.
#include "passes/simplify/simplify.h"

#include "ir/expr_ops.h"
#include "tests/unit/test.h"

static const Ex *read(ExPool *p, const char *s) {
    const char *error = NULL;
    const Ex *e = ex_parse(p, &s, NULL, &error);
    ck_assert_msg(e != NULL, "%s", error ? error : "?");
    return e;
}

static const char *simplified(ExPool *p, const char *s) {
    Text t = text_new(ex_arena(p));
    const Ex *e = ex_simplify(p, read(p, s));
    ex_print(&t, e, NULL);
    ck_assert_ptr_eq(ex_simplify(p, e), e); // nothing is left to do
    return t.s;
}

static const struct {
    const char *from, *to;
} rewritten[] = {
    // i32
    {"((size5 + (tile0 * 64)) + 63)", "((size5 + (tile0 * 64)) + 63)"},
    {"(((size5 + (tile0 * 64)) + 63) + 1)", "((size5 + (tile0 * 64)) + 64)"},
    {"((q_idx + 3) - (q_idx - 4))", "7"},
    {"((kv_idx - q_idx) + q_idx)", "kv_idx"},
    {"neg((q_idx - 5))", "(5 - q_idx)"},
    {"((q_idx << 3) - (q_idx * 8))", "0"},
    {"((q_idx + 1) * 64)", "((q_idx * 64) + 64)"},
    {"(0 - q_idx)", "neg(q_idx)"},
    {"min(min(7, q_idx), 3)", "min(q_idx, 3)"},
    {"(q_idx / 1)", "q_idx"},
    {"(q_idx % 1)", "0"},
    {"(q_idx / 0)", "0"},
    {"(2147483647 + 1)", "-2147483648"},
    // bool
    {"((q_idx + 1) == (q_idx + 2))", "false"},
    {"(true && (q_idx < 3))", "(q_idx < 3)"},
    {"!(q_idx < 3)", "(3 <= q_idx)"},
    {"!(s < 3.0)", "!(s < 3.0)"},
    {"!(s == 3.0)", "(s != 3.0)"},
    {"(s == s)", "(s == s)"},
    {"((q_idx < 3) || !(q_idx < 3))", "((q_idx < 3) || (3 <= q_idx))"},
    {"select((s != -inf), s, 0.0)", "select((s == -inf), 0.0, s)"},
    {"select(true, s, p0)", "s"},
    {"select((b < 1), s, s)", "s"},
    {"select(!(s < p0), s, 1.0)", "select((s < p0), 1.0, s)"},
    {"select((b < 1), select((b < 1), s, p0), 1.0)", "select((b < 1), s, 1.0)"},
    {"select((b < 1), true, (h < 1))", "((b < 1) || (h < 1))"},
    // f32
    {"exp((dot / 8.0))", "exp2((dot * 0.18033688))"},
    {"exp((s - R0))", "exp2(((s - R0) * 1.442695))"},
    {"exp(((s * 0.5) - (R0 * 2.0)))", "exp2(fma(s, 0.7213475, (R0 * -2.88539)))"},
    {"exp(select(bool(b), (s * 0.5), -inf))", "exp2(select(bool(b), (s * 0.7213475), -inf))"},
    {"((s * p0) + p1)", "fma(s, p0, p1)"},
    {"(p1 - (s * p0))", "fma(neg(s), p0, p1)"},
    {"(p1 - (s * 2.0))", "fma(s, -2.0, p1)"},
    {"((s * p0) - 1.0)", "fma(s, p0, -1.0)"},
    {"(s * 0.0)", "(s * 0.0)"},
    {"(s - s)", "(s - s)"},
    {"(s / 4.0)", "(s * 0.25)"},
    {"((s / 4.0) * 4.0)", "s"},
    {"((s * 1e30) * 1e30)", "((s * 1e+30) * 1e+30)"},
    {"neg((s * -2.0))", "(s * 2.0)"},
    {"(1.0 / sqrt(s))", "rsqrt(s)"},
    {"(p0 / sqrt(s))", "(p0 * rsqrt(s))"},
    {"(1.0 / (exp(neg(s)) + 1.0))", "sigmoid(s)"},
    {"(exp(s) / (exp(s) + 1.0))", "sigmoid(s)"},
    {"rcp((exp2(s) + 1.0))", "sigmoid((s * -0.6931472))"},
    {"pow(s, 2.0)", "(s * s)"},
    {"pow(s, 0.5)", "pow(s, 0.5)"},
    {"abs((s * -3.0))", "(abs(s) * 3.0)"},
    {"max(max(1.0, s), 2.0)", "max(s, 2.0)"},
    {"max(s, -inf)", "max(s, -inf)"},
    {"max(f32(b), -inf)", "f32(b)"},
    {"(32.0 * tanh((s / 32.0)))", "(tanh((s * 0.03125)) * 32.0)"},
    {"(s + f32((2 * 3)))", "(s + 6.0)"},
};

ARENA_TEST(rules) {
    ExPool *p = ex_pool(a);
    for (size_t i = 0; i < sizeof rewritten / sizeof *rewritten; i++)
        ck_assert_str_eq(simplified(p, rewritten[i].from), rewritten[i].to);
}

// ---- random expressions

static const Ex *leaf(ExPool *p, uint32_t *seed, ExType t) {
    static const float floats[] = {0, 1, -1, 0.5f, 2, -3, 8, 1e-3f, -INFINITY, INFINITY};
    static const int32_t ints[] = {0, 1, -1, 2, 7, 64, -5, INT32_MAX, INT32_MIN};
    bool constant = test_draw(seed, 3) == 0;
    switch (t) {
    case EX_F32:
        return constant ? ex_f32(p, floats[test_draw(seed, 10)])
                        : ex_sym(p, SYM_PARAM, (int)test_draw(seed, 3), t);
    case EX_I32:
        return constant ? ex_i32(p, ints[test_draw(seed, 9)])
                        : ex_sym(p, SYM_PARAM, 3 + (int)test_draw(seed, 3), t);
    case EX_BOOL:
        return constant ? ex_bool(p, test_draw(seed, 2))
                        : ex_sym(p, SYM_PARAM, 6 + (int)test_draw(seed, 2), t);
    }
    return NULL;
}

// An operation on what is in `have`, or NULL when the dice fell badly.
static const Ex *random_op(ExPool *p, uint32_t *seed, const Ex **have, int n) {
    ExOp op = (ExOp)test_draw(seed, EX_ROWMAX);
    const Ex *args[3];
    ExType types[3], result;
    if (op < EX_ADD || op == EX_POW) return NULL;
    if (op == EX_CONV) {
        const Ex *x = have[test_draw(seed, (uint32_t)n)];
        return x->type == EX_F32 ? NULL : ex_conv(p, (ExType)test_draw(seed, 3), x);
    }
    for (int i = 0; i < ex_ops[op].arity; i++) {
        args[i] = have[test_draw(seed, (uint32_t)n)];
        types[i] = args[i]->type;
    }
    if (ex_ops[op].typing == T_CMP && types[0] == EX_F32)
        return NULL; // nearly equal numbers compare by chance
    if (!ex_op_typed(op, types, ex_ops[op].arity, &result)) return NULL;
    if (result == EX_F32 && (op == EX_MOD || op == EX_FLOOR)) return NULL; // jumps
    return ex_op(p, op, args, ex_ops[op].arity);
}

static const Ex *random_expr(ExPool *p, uint32_t *seed) {
    const Ex *have[24];
    int n = 0;
    for (; n < 9; n++) have[n] = leaf(p, seed, (ExType)(n % 3));
    while (n < 24) {
        const Ex *e = random_op(p, seed, have, n);
        if (e) have[n++] = e;
    }
    return have[23];
}

typedef struct Point {
    ExValue value[8];
} Point;

static ExValue at_point(void *ctx, const Ex *e) { return ((Point *)ctx)->value[e->index]; }

static Point random_point(uint32_t *seed) {
    static const double special[] = {0, -1, 1, INFINITY, -INFINITY, NAN};
    Point pt;
    for (int i = 0; i < 8; i++) {
        pt.value[i].f = 0;
        if (i < 3 && test_draw(seed, 6) == 0)
            pt.value[i].f = special[test_draw(seed, 6)];
        else if (i < 3)
            pt.value[i].f = (float)((double)test_draw(seed, 2000) / 200 - 5);
        else if (i < 6)
            pt.value[i].i = (int32_t)(test_draw(seed, 4) ? test_draw(seed, 100) - 50
                                                         : test_draw(seed, 1 << 24) << 8);
        else
            pt.value[i].i = (int32_t)test_draw(seed, 2);
    }
    return pt;
}

// How much a relative change of 1e-5 in one input or another changes e.
static double sensitivity(const Ex *e, const Point *pt, double at) {
    ExEnv rounded = {.sym = at_point, .ctx = (void *)pt, .round = true};
    double sum = 10 * fabs(ex_eval(e, &rounded).f - at);
    for (int i = 0; i < 6; i++) {
        Point moved = *pt;
        moved.value[i / 2].f *= i % 2 ? 1 + 1e-5 : 1 - 1e-5;
        ExEnv env = {.sym = at_point, .ctx = &moved};
        sum += fabs(ex_eval(e, &env).f - at);
    }
    return sum;
}

// A difference is allowed where rounding or a small change of the inputs makes one as large.
static bool close_enough(const Ex *e, const Point *pt, double want, double got) {
    if (isnan(want)) return isnan(got);
    if (isinf(want))
        return isinf(got); // of either sign: a zero that is divided by may have changed its own
    double slack = sensitivity(e, pt, want);
    return fabs(got - want) <= 1e-5 * fabs(want) + 1e-6 + slack || isnan(slack) || slack > 1;
}

TEST(random_expressions_keep_their_meaning) {
    for (uint32_t i = 1; i <= 3000; i++) {
        Arena *a = arena_new();
        ExPool *p = ex_pool(a);
        uint32_t seed = i * 7919;
        const Ex *e = random_expr(p, &seed), *s = ex_simplify(p, e);
        ExPlan *pe = ex_plan(a, e), *ps = ex_plan(a, s);
        for (int k = 0; k < 8; k++) {
            Point pt = random_point(&seed);
            ExEnv env = {.sym = at_point, .ctx = &pt};
            ExValue want = ex_run(pe, &env), got = ex_run(ps, &env);
            bool ok = e->type == EX_F32 ? close_enough(e, &pt, want.f, got.f) : want.i == got.i;
            Text t = text_new(a);
            if (!ok) {
                ex_print(&t, e, NULL), text_puts(&t, "\n-> "), ex_print(&t, s, NULL);
                text_printf(&t, "\n at %g %g %g %d %d %d %d %d", pt.value[0].f, pt.value[1].f,
                            pt.value[2].f, pt.value[3].i, pt.value[4].i, pt.value[5].i,
                            pt.value[6].i, pt.value[7].i);
            }
            if (e->type == EX_F32) ck_assert_msg(ok, "%u: %g, was %g\n%s", i, got.f, want.f, t.s);
            ck_assert_msg(ok, "%u: %d, was %d\n%s", i, got.i, want.i, t.s);
        }
        arena_free(a);
    }
}
