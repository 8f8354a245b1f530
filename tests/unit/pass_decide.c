// pass_decide.c: what decides, and what is frozen; that what is exact stays exact to the bit when it is simplified; which
// scores may be -inf.
#include "ir/expr_ops.h"
#include "passes/derive/decide.h"
#include "passes/derive/limits.h"
#include "passes/simplify/simplify.h"
#include "tests/unit/test.h"

static const Ex *read(ExPool *p, const char *text) {
    const char *error = NULL;
    const Ex *e = ex_parse(p, &text, NULL, &error);
    ck_assert_msg(e != NULL, "%s", error ? error : "?");
    return e;
}

static const char *text_of(Arena *a, const Ex *e) {
    Text t = text_new(a);
    ex_print(&t, e, NULL);
    return t.s;
}

// R0 is the largest of `reduced`, R1 the sum of it.
static RowProgram *row(Arena *a, const char *modified, const char *reduced, const char *weight) {
    RowProgram *p = ARENA_NEW(a, RowProgram);
    *p = (RowProgram){.arena = a, .pool = ex_pool(a), .name = "row", .D = 8, .Dv = 8};
    sizes_init(a, &p->sizes);
    const Ex *f = read(p->pool, reduced);
    RowReduce most = {.op = EX_ROWMAX, .f = f, .name = "m"},
              sum = {.op = EX_ROWSUM, .f = f, .name = "l", .written = "l"};
    VEC_PUSH(a, &p->reduces, most);
    VEC_PUSH(a, &p->reduces, sum);
    p->score = p->modified = read(p->pool, modified);
    p->mask = ex_bool(p->pool, true);
    p->weight = read(p->pool, weight);
    p->output = ex_symbol(p->pool, SYM_O);
    return p;
}

static const struct {
    const char *modified, *reduced, *weight; // as written
    const char *modified2, *reduced2, *weight2;
} cases[] = {
    // all flows smoothly
    {"(dot * 0.3)", "s", "(exp((s - R0)) / R1)", "(dot * 0.3)", "s", "(exp((s - R0)) / R1)"},
    {"(tanh((dot / 30.0)) * 30.0)", "s", "max(s, 0.0)", "(tanh((dot / 30.0)) * 30.0)", "s",
     "max(s, 0.0)"},
    // a comparison: the score, and what is chosen, too
    {"(dot * 0.3)", "s", "select(((s * 0.7) < 1.5), (s * 0.7), s)", "rounded((dot * 0.3))", "s",
     "select((rounded((s * 0.7)) < 1.5), rounded((s * 0.7)), s)"},
    // in the modified score itself nothing else than what is compared
    {"select(((dot * 0.3) < 1.5), (dot * 0.7), 0.0)", "s", "s",
     "select((rounded((dot * 0.3)) < 1.5), (dot * 0.7), 0.0)", "s", "s"},
    {"(dot + (floor((f32(kv_idx) / 41.0)) * 3.0))", "s", "s",
     "(dot + (floor(rounded((f32(kv_idx) / 41.0))) * 3.0))", "s", "s"},
    {"(dot + f32(i32((f32(kv_idx) * 0.3))))", "s", "s",
     "(dot + f32(i32(rounded((f32(kv_idx) * 0.3)))))", "s", "s"},
    {"(dot % 0.3)", "s", "s", "rounded((dot - rounded((0.3 * floor(rounded((dot / 0.3)))))))", "s",
     "s"},
    // an extremum that decides: what it reduces, and the score
    {"(dot * 0.3)", "(s + 1.0)", "select((R0 <= (s + 1.0)), s, 0.0)", "rounded((dot * 0.3))",
     "rounded((s + 1.0))", "select((R0 <= rounded((s + 1.0))), s, 0.0)"},
    {"(dot * 0.3)", "s", "floor((R0 * 0.5))", "rounded((dot * 0.3))", "s",
     "floor(rounded((R0 * 0.5)))"},
    // steep functions of the difference of a score and its extremum
    {"(dot * 0.3)", "s", "sqrt(((R0 * 0.7) - (s * 0.7)))", "rounded((dot * 0.3))", "s",
     "sqrt(rounded((rounded((R0 * 0.7)) - rounded((s * 0.7)))))"},
    {"(dot * 0.3)", "s", "(1.0 / ((R0 - s) + 0.1))", "rounded((dot * 0.3))", "s",
     "(1.0 / rounded((rounded((R0 - s)) + 0.1)))"},
    // a sum that decides has elements that do not
    {"(dot * 0.3)", "exp((s * 0.7))", "select((R1 < 0.5), 0.0, (s * 0.7))", "(dot * 0.3)",
     "exp((s * 0.7))", "select((R1 < 0.5), 0.0, (s * 0.7))"},
    // what an extremum meets is frozen: one fma, the same everywhere
    {"((dot * 0.3) + 0.5)", "s", "(s - R0)", "rounded(fma(dot, 0.3, 0.5))", "s", "(s - R0)"},
    // large scores under an exponent
    {"select((kv_idx < 4), (dot * 0.3), -1e30)", "s", "(exp((s - R0)) / R1)",
     "rounded(select((kv_idx < 4), (dot * 0.3), -1e+30))", "s", "(exp((s - R0)) / R1)"},
    // whether a score is -inf decides
    // a quotient is exact where it may be far away, and else as it comes
    {"((dot - 3e38) / (dot + 2.0))", "s", "(s - R0)",
     "rounded((rounded((dot + -3e+38)) / rounded((dot + 2.0))))", "s", "(s - R0)"},
    {"((dot - 3.0) / (dot + 2.0))", "s", "(s - R0)",
     "(rounded((dot + -3.0)) / rounded((dot + 2.0)))", "s", "(s - R0)"},
    {"((dot - 3e38) + -3e38)", "s", "s", "rounded((rounded((dot - 3e+38)) + -3e+38))", "s", "s"},
};

TEST(decisions) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena *a = arena_new();
        const RowProgram *r =
            row_decide(a, row(a, cases[i].modified, cases[i].reduced, cases[i].weight));
        ck_assert_str_eq(text_of(a, r->modified), cases[i].modified2);
        ck_assert_str_eq(text_of(a, r->reduces.data[0].f), cases[i].reduced2);
        ck_assert_str_eq(text_of(a, r->weight), cases[i].weight2);
        const RowProgram *again = row_decide(a, r); // nothing is left to do
        ck_assert_ptr_eq(again->modified, r->modified);
        ck_assert_ptr_eq(again->weight, r->weight);
        arena_free(a);
    }
}

TEST(exact_extrema) {
    static const struct {
        const char *weight;
        bool exact;
    } of[] = {{"(exp((s - R0)) / R1)", false},      {"(s - R0)", true},
              {"select((s < R0), 0.0, 1.0)", true}, {"select((kv_idx < 5), R1, s)", false},
              {"floor(exp((s - R0)))", true},       {"(s / R0)", false}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        Arena *a = arena_new();
        const RowProgram *r = row_decide(a, row(a, "(dot * 0.3)", "s", of[i].weight));
        ck_assert_msg(r->reduces.data[0].exact == of[i].exact, "%s", of[i].weight);
        ck_assert(!r->reduces.data[1].exact);
        arena_free(a);
    }
}

// ---- what is exact keeps its bits

static const Ex *random_exact(ExPool *p, uint32_t *seed, int depth) {
    static const float constants[] = {0, 1, -1, 0.5f, 3, -8, 41, 0.1f, 1e20f, 1e-30f};
    static const ExOp ops[] = {EX_ADD, EX_SUB, EX_MUL, EX_DIV, EX_MIN,
                               EX_MAX, EX_NEG, EX_ABS, EX_SQRT};
    if (depth == 0 || test_draw(seed, 6) == 0)
        return test_draw(seed, 2) ? ex_f32(p, constants[test_draw(seed, 10)])
                                  : ex_sym(p, SYM_PARAM, (int)test_draw(seed, 3), EX_F32);
    ExOp op = ops[test_draw(seed, 9)];
    const Ex *args[] = {random_exact(p, seed, depth - 1), random_exact(p, seed, depth - 1)};
    return ex_1(p, EX_ROUNDED,
                ex_op(p, op, args, op >= EX_NEG && op != EX_MIN && op != EX_MAX ? 1 : 2));
}

static ExValue at_point(void *ctx, const Ex *e) {
    return (ExValue){.f = ((const float *)ctx)[e->index]};
}

TEST(exact_to_the_bit) {
    for (uint32_t i = 1; i <= 3000; i++) {
        Arena *a = arena_new();
        ExPool *p = ex_pool(a);
        uint32_t seed = i * 7919;
        const Ex *e = random_exact(p, &seed, 5), *s = ex_simplify(p, e);
        for (int k = 0; k < 8; k++) {
            float point[3];
            for (int n = 0; n < 3; n++) point[n] = ((float)test_draw(&seed, 4000) - 2000) * 0.037f;
            ExEnv env = {.sym = at_point, .ctx = point, .round = true};
            float want = (float)ex_eval(e, &env).f, got = (float)ex_eval(s, &env).f;
            ck_assert_msg(want == got || (isnan(want) && isnan(got)), "%s\n-> %s", text_of(a, e),
                          text_of(a, s));
        }
        arena_free(a);
    }
}

// ---- limits

TEST(scores_that_may_be_infinite) {
    static const struct {
        const char *modified;
        bool overflows;
    } of[] = {
        {"(dot * 0.125)", false},
        {"((dot * 0.125) - 3.4e38)", false}, // what is added is too small
        {"((dot - 3.4e38) - 3.4e38)", true},
        {"((dot * 1e30) * 1e-20)", true},             // infinite on the way
        {"((dot + log(f32((h % 2)))) + 1.0)", false}, // in any order
        {"(dot - (input0:f32[h] * f32((q_idx - kv_idx))))", false},
        {"((dot + input0:f32[h]) + input0:f32[kv_idx])", true},
        {"(dot + log2((1.0 - exp2((-5.0 - f32(h))))))", false},
        {"(dot - (f32(abs((q_idx - kv_idx))) * 1e37))", false},
        {"(dot + (exp2((f32((h + 1)) * -0.5)) * f32((kv_idx - q_idx))))", false},
        {"(dot * exp2((f32((kv_idx - q_idx)) * 0.1)))", true}, // 0 times infinity
        {"(dot * exp2((f32(abs((kv_idx - q_idx))) * -0.1)))", false},
        {"(tanh((dot * 1e30)) * -50.0)", false},
        {"select((kv_idx < 4), dot, -inf)", false}, // written, not made
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        Arena *a = arena_new();
        ck_assert_msg(row_overflows(row(a, of[i].modified, "s", "s")) == of[i].overflows, "%s",
                      of[i].modified);
        arena_free(a);
    }
}
