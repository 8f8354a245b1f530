// What attnc explain says, word for word for softmax; and what the derivation does with a score's
// scale.
#include "passes/derive/explain.h"
#include "tests/unit/test.h"

static const Ex *read(RowProgram *p, const char *s) {
    ExNames names = row_names(p);
    const Ex *e = ex_parse(p->pool, &s, &names, NULL);
    ck_assert_ptr_nonnull(e);
    return e;
}

static RowProgram *softmax(Arena *a) {
    RowProgram *p = ARENA_NEW(a, RowProgram);
    p->arena = a;
    p->pool = ex_pool(a);
    p->name = "causal";
    p->D = p->Dv = 64;
    sizes_init(a, &p->sizes);
    row_whole(p);
    p->score = p->modified = read(p, "(dot / 8.0)");
    p->mask = read(p, "(kv_idx <= q_idx)");
    RowReduce m = {.op = EX_ROWMAX, .f = read(p, "s"), .name = "m"};
    RowReduce l = {.op = EX_ROWSUM, .name = "l"};
    VEC_PUSH(a, &p->reduces, m);
    l.f = read(p, "exp((s - m))");
    VEC_PUSH(a, &p->reduces, l);
    p->weight = read(p, "(exp((s - m)) / l)");
    RowEmit lse = {"lse", read(p, "(m + log(l))"), {0, 0, 0}};
    VEC_PUSH(a, &p->emits, lse);
    p->output = ex_symbol(p->pool, SYM_O);
    return p;
}

static const char explained[] =
    "attention causal, for one query\n"
    "    s = dot(q, k) / 8.0\n"
    "    over keys where kv_idx <= q_idx\n"
    "    m = max over keys of s\n"
    "    l = sum over keys of exp(s - m)\n"
    "    w = exp(s - m) / l\n"
    "    lse = m + log(l)\n"
    "    o = sum over keys of w * v\n"
    "\n"
    "one sweep over the keys; with every tile\n"
    "    s~ = dot(q, k), of which s is s~ * 0.125\n"
    "    m~' = max(m~, max s~ * 0.18033688)\n"
    "    A' = -m~'    (0 while the row has no key)\n"
    "    p = exp2(s~ * 0.18033688 + A')\n"
    "    l' = l * exp2(A' - A) + sum p\n"
    "    acc' = acc * exp2(A' - A) + sum p * v\n"
    "\n"
    "at the end\n"
    "    m = m~ * 0.6931472\n"
    "    lse = m + log(l)\n"
    "    o = acc / l\n"
    "    a row without a key, where m~ == -inf, gives 0\n"
    "\n"
    "merging two parts a and b of the keys, in any grouping\n"
    "    m~ = max(m~_a, m~_b)\n"
    "    l = l_a * exp2(A - A_a) + l_b * exp2(A - A_b)\n"
    "    acc = acc_a * exp2(A - A_a) + acc_b * exp2(A - A_b)\n"
    "    with A of the merged states; a part without a key is the identity\n"
    "\n"
    "the backward, for one query; a masked key adds nothing\n"
    "    A = -m~ == inf ? 0.0 : -m~    (saved by the forward)\n"
    "    f = 1 / l    (saved by the forward)\n"
    "    delta = do * o, summed over the columns\n"
    "    r = dlse - delta\n"
    "    dw = do * v, summed over the columns\n"
    "    w = exp2(s~ * 0.18033688 + A) * f\n"
    "    ds~ = w * ((dw + r) * 0.125)\n"
    "    dq = ds~ * k, summed over the keys\n"
    "    dk = ds~ * q, summed over the queries\n"
    "    dv = w * do, summed over the queries\n";

static const char *printed(Arena *a, const RowProgram *p, ExForm form) {
    ExplainForm f = {.form = form};
    Text t = text_new(a);
    explain_print(&t, pass_explain(pass_derive(a, p, NULL)), &f);
    return t.s;
}

ARENA_TEST(softmax_is_explained) { ck_assert_str_eq(printed(a, softmax(a), EX_TEXT), explained); }

// The same lines in the other forms; a formula with words beside it is within them.
ARENA_TEST(softmax_is_explained_as_mathematics) {
    static const char *const tex[] = {
        "### one sweep over the keys; with every tile\n",
        "$\\tilde{s} = q^{\\top} k$, of which s is $\\tilde{s} \\cdot 0.125$\n",
        "$$\\tilde{m}' = \\max\\left(\\tilde{m}, \\max_{j \\in T} \\tilde{s} \\cdot "
        "0.18033688\\right)$$\n",
        "$$l' = l \\cdot 2^{A' - A} + \\sum_{j \\in T} p$$\n",
        "$$o = \\frac{\\mathrm{acc}}{l}$$\n",
        "a row without a key, where $\\tilde{m} = -\\infty $, gives 0\n",
    };
    static const char *const mathml[] = {
        "<h3>at the end</h3>\n",
        "<p class=\"equation\"><math "
        "display=\"block\"><mrow><mi>o</mi><mo>=</mo><mrow><mfrac><mrow>"
        "<mi>acc</mi></mrow><mrow><mi>l</mi></mrow></mfrac></mrow></mrow></math></p>\n",
        "<p class=\"note\">over keys where "
        "<math><mrow><mrow><mi>kv_idx</mi><mo>≤</mo><mi>q_idx</mi>"
        "</mrow></mrow></math></p>\n",
    };
    const char *text = printed(a, softmax(a), EX_TEX);
    for (size_t i = 0; i < sizeof tex / sizeof *tex; i++)
        ck_assert_msg(strstr(text, tex[i]), "%s\nis not in\n%s", tex[i], text);
    text = printed(a, softmax(a), EX_MATHML);
    for (size_t i = 0; i < sizeof mathml / sizeof *mathml; i++)
        ck_assert_msg(strstr(text, mathml[i]), "%s\nis not in\n%s", mathml[i], text);
}

static const char streamed[] =
    "stream causal sweeps=1\n"
    "  s = dot\n"
    "  sweep 0\n"
    "    @m = rowmax (s * select((5.954089e+09 < abs(s)), 0.25, 0.18033688))\n"
    "    @l = rowsum exp2(fma(s, select((1.181116e+09 < abs(A0)), 0.25, 0.18033688), A0)) shift "
    "A0\n"
    "    A0 = neg(@m)\n"
    "    acc = exp2(fma(s, select((1.181116e+09 < abs(A0)), 0.25, 0.18033688), A0)) shift A0\n"
    "  m = (@m * select((1.181116e+09 < abs(@m)), 0.5, 0.6931472))\n"
    "  l = @l\n"
    "  factor = rcp(l)\n"
    "  empty = (@m == -inf)\n";

// What the explanation names itself keeps clear of the program's names; the output and minus signs.
ARENA_TEST(names_do_not_clash) {
    RowProgram *p = softmax(a);
    RowInput w = {.name = "w", .dtype = DT_F32};
    VEC_PUSH(a, &p->inputs, w);
    p->modified = read(p, "((dot + neg(w)) + (f32(kv_idx) * -2.0))");
    p->reduces.data[0].name = "A";
    p->reduces.data[1].f = read(p, "exp((s - A))");
    p->weight = read(p, "(exp((s - A)) / l)");
    p->emits.n = 0;
    p->output = read(p, "(o * 2.0)");
    const char *text = printed(a, p, EX_TEXT);
    ck_assert_ptr_nonnull(strstr(text, "    s = dot(q, k) - w - f32(kv_idx) * 2.0\n"));
    ck_assert_ptr_nonnull(strstr(text, "    w_ = exp(s - A) / l\n"));
    ck_assert_ptr_nonnull(strstr(text, "    A_' = -A'"));
    ck_assert_ptr_nonnull(strstr(text, "    the output is o * 2.0\n"));
}

// Scores that only decide have no gradient, and no sum is said of it.
ARENA_TEST(no_slope) {
    RowProgram *p = softmax(a);
    p->modified = read(p, "floor(dot)");
    const char *text = printed(a, p, EX_TEXT);
    ck_assert_ptr_nonnull(strstr(text, "    dq = 0: what depends on it has no slope\n"));
}

ARENA_TEST(a_positive_scale_leaves_the_score) {
    RowProgram *p = softmax(a);
    Text t = text_new(a);
    stream_print(&t, pass_derive(a, p, NULL));
    ck_assert_str_eq(t.s, streamed);
    p->modified = read(p, "(dot * -0.5)"); // would turn -inf, a masked key, into inf
    ck_assert_ptr_eq(pass_derive(a, p, NULL)->row->modified, p->modified);
}

static const char relu[] = "stream causal sweeps=1\n"
                           "  s = max(dot, 0.0)\n"
                           "  sweep 0\n"
                           "    acc = select((s == -inf), 0.0, s)\n"
                           "  factor = (0.125 / f32(max(Sk, 1)))\n";

// What is the same for all keys of a row, and positive, is no work for each of them.
ARENA_TEST(a_size_leaves_the_score) {
    RowProgram *p = softmax(a);
    Text t = text_new(a);
    p->reduces.n = p->emits.n = 0;
    p->modified = read(p, "(max((dot / 8.0), 0.0) / f32(Sk))");
    p->weight = read(p, "s");
    stream_print(&t, pass_derive(a, p, NULL));
    ck_assert_str_eq(t.s, relu);
}
