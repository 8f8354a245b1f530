// What attnc explain says, word for word for softmax; and what the derivation does with a score's
// scale.
#include "passes/derive.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

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
    p->score = p->modified = read(p, "(dot / 8.0)");
    p->mask = read(p, "(kv_idx <= q_idx)");
    RowReduce m = {EX_ROWMAX, read(p, "s"), "m", {0, 0, 0}}, l = {EX_ROWSUM, NULL, "l", {0, 0, 0}};
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
    "    s = dot(q, k)\n"
    "    over keys where kv_idx <= q_idx\n"
    "    m = max over keys of s * 0.125\n"
    "    l = sum over keys of exp(s * 0.125 - m)\n"
    "    w = exp(s * 0.125 - m) / l\n"
    "    lse = m + log(l)\n"
    "    o = sum over keys of w * v\n"
    "\n"
    "one sweep over the keys; with every tile\n"
    "    m~' = max(m~, max s)\n"
    "    A' = m~' * (-0.18033688)    (0 while the row has no key)\n"
    "    l' = l * exp2(A' - A) + sum exp2(s * 0.18033688 + A')\n"
    "    acc' = acc * exp2(A' - A) + sum exp2(s * 0.18033688 + A') * v\n"
    "\n"
    "at the end\n"
    "    m = m~ * 0.125\n"
    "    o = acc / l\n"
    "    a row without a key, where m~ == -inf, gives 0\n"
    "\n"
    "merging two parts a and b of the keys, in any grouping\n"
    "    m~ = max(m~_a, m~_b)\n"
    "    l = l_a * exp2(A - A_a) + l_b * exp2(A - A_b)\n"
    "    acc = acc_a * exp2(A - A_a) + acc_b * exp2(A - A_b)\n"
    "    with A of the merged states; a part without a key is the identity\n"
    "\n"
    "the backward is not derived by this version\n";

START_TEST(softmax_is_explained) {
    Arena *a = arena_new();
    Text t;
    text_init(&t, a);
    pass_explain(&t, pass_derive(a, softmax(a), NULL));
    ck_assert_str_eq(t.s, explained);
    arena_free(a);
}
END_TEST

static const char streamed[] = "stream causal sweeps=1\n"
                               "  s = dot\n"
                               "  sweep 0\n"
                               "    @m = rowmax s\n"
                               "    @l = rowsum exp2(fma(s, 0.18033688, A0)) shift A0\n"
                               "    A0 = (@m * -0.18033688)\n"
                               "    acc = exp2(fma(s, 0.18033688, A0)) shift A0\n"
                               "  m = (@m * 0.125)\n"
                               "  l = @l\n"
                               "  factor = rcp(l)\n"
                               "  empty = (@m == -inf)\n";

START_TEST(a_positive_scale_leaves_the_score) {
    Arena *a = arena_new();
    RowProgram *p = softmax(a);
    Text t;
    text_init(&t, a);
    stream_print(&t, pass_derive(a, p, NULL));
    ck_assert_str_eq(t.s, streamed);
    p->modified = read(p, "(dot * -0.5)"); // would turn -inf, a masked key, into inf
    ck_assert_ptr_eq(pass_derive(a, p, NULL)->row->modified, p->modified);
    arena_free(a);
}
END_TEST

static const char relu[] = "stream causal sweeps=1\n"
                           "  s = max(dot, 0.0)\n"
                           "  sweep 0\n"
                           "    acc = select((s == -inf), 0.0, s)\n"
                           "  factor = (0.125 / f32(max(Sk, 1)))\n";

// What is the same for all keys of a row, and positive, is no work for each of them.
START_TEST(a_size_leaves_the_score) {
    Arena *a = arena_new();
    RowProgram *p = softmax(a);
    Text t;
    text_init(&t, a);
    p->reduces.n = p->emits.n = 0;
    p->modified = read(p, "(max((dot / 8.0), 0.0) / f32(Sk))");
    p->weight = read(p, "s");
    stream_print(&t, pass_derive(a, p, NULL));
    ck_assert_str_eq(t.s, relu);
    arena_free(a);
}
END_TEST

Suite *derive_explain_suite(void);
Suite *derive_explain_suite(void) {
    Suite *s = suite_create("derive_explain");
    TCase *t = tcase_create("explain");
    tcase_add_test(t, softmax_is_explained);
    tcase_add_test(t, a_positive_scale_leaves_the_score);
    tcase_add_test(t, a_size_leaves_the_score);
    suite_add_tcase(s, t);
    return s;
}
