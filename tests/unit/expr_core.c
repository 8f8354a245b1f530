// Sharing, walking, the text form both ways and what the operations mean.
#include "ir/expr_ops.h"
#include "tests/unit/test.h"

typedef struct Fix {
    Arena *a;
    ExPool *p;
} Fix;

static Fix fix_new(void) {
    Arena *a = arena_new();
    return (Fix){a, ex_pool(a)};
}

static const Ex *read(Fix *f, const char *s) {
    const char *error = NULL;
    const Ex *e = ex_parse(f->p, &s, NULL, &error);
    ck_assert_msg(e != NULL, "%s", error ? error : "?");
    ck_assert_str_eq(s, "");
    return e;
}

TEST(equal_expressions_are_equal_pointers) {
    Fix f = fix_new();
    const Ex *s = ex_symbol(f.p, SYM_S);
    const Ex *a = ex_2(f.p, EX_MUL, s, ex_f32(f.p, 0.5f));
    ck_assert_ptr_eq(a, ex_2(f.p, EX_MUL, ex_symbol(f.p, SYM_S), ex_f32(f.p, 0.5f)));
    ck_assert_ptr_ne(ex_f32(f.p, 0.0f), ex_f32(f.p, -0.0f));
    ck_assert_ptr_ne(ex_i32(f.p, 1), ex_bool(f.p, true));
    ck_assert_ptr_eq(ex_f32(f.p, NAN), ex_f32(f.p, -NAN));
    for (int i = 0; i < 5000; i++) ex_i32(f.p, i);
    for (int i = 0; i < 5000; i++) ck_assert_int_eq(ex_i32(f.p, i)->i, i);
    ck_assert_ptr_eq(a, ex_2(f.p, EX_MUL, s, ex_f32(f.p, 0.5f)));
    arena_free(f.a);
}

TEST(text_reads_back) {
    static const char *const texts[] = {
        "((s * 0.5) + 1e-3)",
        "select((q_idx <= kv_idx), exp2((s - state0)), 0.0)",
        "input2:bool![h, (q_idx % 7)]",
        "(!(q_idx == -3) && (shift0 < -inf))",
        "f32((size3 >> 2))",
        "(p0:i32 << ~p1:i32)",
        "fma(p0, -0.0, nan)",
        "((true & p2:bool) || bool(R11))",
        "max(rowmax(s), rowsum(abs(s)))",
        "(tile0 % (t / -2147483648))",
    };
    Fix f = fix_new();
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const Ex *e = read(&f, texts[i]);
        Text t = text_new(f.a);
        ex_print(&t, e, NULL);
        ck_assert_ptr_eq(read(&f, t.s), e);
    }
    arena_free(f.a);
}

TEST(bad_text_is_told) {
    static const char *const texts[] = {"",
                                        "(s",
                                        "(s + )",
                                        "foo",
                                        "exp(s, s)",
                                        "(s + 1)",
                                        "select(s, s, s)",
                                        "input0:f32[]",
                                        "99999999999",
                                        "(true + false)",
                                        "[",
                                        "input9:u8[h]",
                                        "i32()"};
    Fix f = fix_new();
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const char *s = texts[i], *error = NULL;
        ck_assert_msg(!ex_parse(f.p, &s, NULL, &error), "%s", texts[i]);
        ck_assert_ptr_nonnull(error);
    }
    char *deep = arena_alloc(f.a, 100001);
    memset(deep, '(', 100000);
    const char *s = deep, *error = NULL;
    ck_assert_ptr_null(ex_parse(f.p, &s, NULL, &error));
    arena_free(f.a);
}

TEST(pretty_uses_precedence) {
    static const struct {
        const char *text, *pretty;
    } cases[] = {
        {"((s * 0.5) + (1.0 - (2.0 - s)))", "s * 0.5 + (1.0 - (2.0 - s))"},
        {"(neg((s + 1.0)) / (s / s))", "-(s + 1.0) / (s / s)"},
        {"select(((b < 1) || (h < 1)), s, -1.0)", "b < 1 || h < 1 ? s : -1.0"},
        {"(s * -2.0)", "s * (-2.0)"},
        {"exp2(fma(s, 2.0, shift0))", "exp2(s * 2.0 + shift0)"},
        {"!((b < 1) && (h < 1))", "!(b < 1 && h < 1)"},
    };
    Fix f = fix_new();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Text t = text_new(f.a);
        ex_print_pretty(&t, read(&f, cases[i].text), NULL);
        ck_assert_str_eq(t.s, cases[i].pretty);
    }
    arena_free(f.a);
}

TEST(mathematics_has_signs) {
    static const struct {
        const char *text, *mathml, *tex;
    } cases[] = {
        {"(s - -2.0)",
         "<mrow><mi>s</mi><mo>−</mo><mrow><mo>(</mo><mo>−</mo><mn>2</mn><mo>)</mo></mrow></mrow>",
         "s - \\left(-2\\right)"},
        {"pow((s + 1.0), 2.0)",
         "<mrow><msup><mrow><mrow><mo>(</mo><mrow><mi>s</mi><mo>+</mo><mn>1</mn></mrow><mo>)</mo></"
         "mrow>"
         "</mrow><mrow><mn>2</mn></mrow></msup></mrow>",
         "{\\left(s + 1\\right)}^{2}"},
        {"(input0:f32[h] - input1:f32[(h + 1)])",
         "<mrow><mrow><msub><mi>input0:f32</mi><mrow><mi>h</mi></mrow></msub></mrow><mo>−</"
         "mo><mrow>"
         "<mi>input1:f32</mi><mrow><mo>[</mo><mrow><mi>h</mi><mo>+</mo><mn>1</mn></mrow><mo>]</mo>"
         "</mrow></mrow></mrow>",
         "\\mathrm{input0:f32}_{h} - \\mathrm{input1:f32}\\left[h + 1\\right]"},
        {"(f32((b + 1)) * f32(i32(s)))",
         "<mrow><mrow><mo>(</mo><mrow><mi>b</mi><mo>+</mo><mn>1</mn></mrow><mo>)</mo></mrow><mo>⋅</"
         "mo><mrow>"
         "<mi>i32</mi><mrow><mo>(</mo><mi>s</mi><mo>)</mo></mrow></mrow></mrow>",
         "\\left(b + 1\\right) \\cdot \\operatorname{i32}\\left(s\\right)"},
        {"((b / 2) < h)",
         "<mrow><mrow><mrow><mo>⌊</mo><mfrac><mrow><mi>b</mi></mrow><mrow><mn>2</mn></mrow></mfrac>"
         "<mo>⌋</mo></mrow></mrow><mo>&lt;</mo><mi>h</mi></mrow>",
         "\\left\\lfloor \\frac{b}{2}\\right\\rfloor  < h"},
        {"(sqrt(s) * 1e-9)",
         "<mrow><mrow><msqrt><mi>s</mi></msqrt></mrow><mo>⋅</mo><mn>1</mn><mo>⋅</mo><msup><mn>10</"
         "mn>"
         "<mn>-9</mn></msup></mrow>",
         "\\sqrt{s} \\cdot 1 \\cdot 10^{-9}"},
    };
    Fix f = fix_new();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int form = EX_MATHML; form <= EX_TEX; form++) {
            ExStyle style = {.form = (ExForm)form};
            Text t = text_new(f.a);
            ex_print_styled(&t, read(&f, cases[i].text), &style);
            ck_assert_str_eq(t.s, form == EX_TEX ? cases[i].tex : cases[i].mathml);
        }
    arena_free(f.a);
}

static ExValue no_symbols(void *ctx, const Ex *e) {
    (void)ctx, (void)e;
    return (ExValue){.f = 3};
}

static ExValue value(Fix *f, const char *text) {
    ExEnv env = {.sym = no_symbols, .round = true};
    return ex_eval(read(f, text), &env);
}

TEST(integers_mean_what_the_language_says) {
    static const struct {
        const char *text;
        int32_t is;
    } cases[] = {
        {"(-7 / 2)", -4},
        {"(-7 % 2)", 1},
        {"(7 % -2)", -1},
        {"(7 / 0)", 0},
        {"(7 % 0)", 0},
        {"(-2147483648 / -1)", INT32_MIN},
        {"abs(-2147483648)", INT32_MIN},
        {"(2147483647 + 1)", INT32_MIN},
        {"(1 << 33)", 2},
        {"(-8 >> 1)", -4},
        {"i32(3e9)", INT32_MAX},
        {"i32(-3e9)", INT32_MIN},
        {"i32(nan)", 0},
        {"i32(-2.9)", -2},
        {"(100000 * 100000)", 1410065408},
        {"(~5 & 255)", 250},
        {"i32((nan == nan))", 0},
        {"i32((nan != nan))", 1},
        {"select((3 < 3), 1, 2)", 2},
        {"i32(bool(0.5))", 1},
    };
    Fix f = fix_new();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ck_assert_msg(value(&f, cases[i].text).i == cases[i].is, "%s", cases[i].text);
    arena_free(f.a);
}

TEST(floats_are_rounded_when_asked) {
    Fix f = fix_new();
    ck_assert(value(&f, "(16777216.0 + s)").f == 16777220.0);
    ck_assert(value(&f, "(5.5 % -2.0)").f == -0.5);
    ck_assert(value(&f, "max(nan, 1.0)").f == 1.0);
    ck_assert(value(&f, "min(1.0, nan)").f == 1.0);
    ck_assert(value(&f, "sigmoid(-inf)").f == 0.0);
    ck_assert(value(&f, "f32(16777217)").f == 16777216.0);
    ExEnv env = {.sym = no_symbols};
    ck_assert(ex_eval(read(&f, "(16777216.0 + s)"), &env).f == 16777219.0);
    arena_free(f.a);
}

TEST(walks_share_and_are_not_recursive) {
    Fix f = fix_new();
    const Ex *e = ex_symbol(f.p, SYM_S);
    for (int i = 0; i < 200000; i++)
        e = ex_2(f.p, i % 2 ? EX_ADD : EX_MAX, e, e); // a tree of 2^200000 nodes
    ck_assert(ex_uses(e, SYM_S, -1));
    ck_assert(!ex_uses(e, SYM_R, -1));
    const Ex *one = ex_subst(f.p, e, SYM_S, 0, ex_f32(f.p, 0));
    ck_assert(!ex_uses(one, SYM_S, -1));
    ExEnv env = {.sym = no_symbols};
    ck_assert(ex_eval(one, &env).f == 0);
    ck_assert_ptr_eq(ex_subst(f.p, e, SYM_S, 0, ex_symbol(f.p, SYM_S)), e);
    arena_free(f.a);
}
