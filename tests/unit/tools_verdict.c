// The verdict of what a kernel gives: good where it is the reference's to the rounding of its type, and not where a factor is wrong, a row, or
// an element is not finite.
#include "tests/unit/test.h"
#include "tools/compile.h"
#include "tools/verdict.h"

#include <math.h>
#include <string.h>

static const char source[] = "import std.normalization; import std.mask;"
                             "attention t { dim D = 32; score(q, k) = dot(q, k) * rsqrt(D);"
                             "mask(b, h, i, j) = causal(i, j); normalize(s) = softmax(s); }";

typedef struct Case {
    Compile c;
    Binding b;
    Oracle x;
    Slack slack;
    Dtype dtype;
} Case;

// With what the reference says in all outputs and gradients.
static void open_case(Case *k, Dtype dtype, const char *text, double deviation) {
    CompileOptions o = {.source = {.path = "t.attn", .text = text, .text_bytes = strlen(text)},
                        .target = TARGET_HOST,
                        .dtype = dtype};
    *k = (Case){.dtype = dtype};
    ck_assert_int_eq(compile_open(&k->c, &o), FE_OK);
    const Variant *v = k->c.variants.data[0];
    Signature *sig = sig_of_variant(k->c.arena, v, dtype);
    sig_add_gradients(k->c.arena, sig, v);
    Options drawn = {.seed = 7, .deviation = deviation};
    ck_assert_int_eq(bind_make(&k->b, k->c.arena, sig, &drawn, "H=2,Sq=60,Sk=90"), STATUS_DONE);
    OracleAsk ask = {.what = ORACLE_OPEN | ORACLE_WRITTEN,
                     .dot_error = oracle_dot_error(dtype, false, v->D)};
    ck_assert_int_eq(oracle_run(&k->x, v, &k->b, &ask), STATUS_DONE);
    oracle_leave_out(&k->x, &k->b);
    oracle_mute(&k->x, &k->b);
    ck_assert_int_eq(oracle_gradients(&k->x, v, &k->b), STATUS_DONE);
    k->slack = (Slack){.v = v, .step = slack_step(false), .times = 1};
}

static void close_case(Case *k) {
    slack_free(&k->slack);
    oracle_free(&k->x);
    bind_free(&k->b);
    compile_close(&k->c);
}

// What the verdict is of the reference's elements [from, end) times `by`, and the others as they are.
static bool is_good(Case *k, const char *name, int64_t from, int64_t end, double by) {
    int arg = sig_arg(k->b.sig, name);
    Tensor *t = &k->b.tensor[arg];
    Verdict v;
    for (int64_t i = 0; i < t->count; i++)
        tensor_set(t, i, k->x.out[arg][i] * (i >= from && i < end ? by : 1));
    ck_assert_int_eq(verdict_of(&v, &k->slack, &k->b, &k->x, arg, tensor_tolerance(k->dtype)),
                     STATUS_DONE);
    return verdict_good(&v);
}

static const struct {
    Dtype dtype;
    double all, row; // factors that are wrong
} types[] = {{DT_F32, 1.0005, 1.002}, {DT_F16, 1.005, 1.03}, {DT_BF16, 1.03, 1.15}};
static const char *const results[] = {"o", "dq", "dk", "dv"};

TEST_EACH(finds_what_is_wrong, 0, 3) {
    Case k;
    open_case(&k, types[_i].dtype, source, 1);
    for (int r = 0; r < 4; r++) {
        const char *name = results[r];
        int64_t all = k.b.tensor[sig_arg(k.b.sig, name)].count, row = all / 64 * 32;
        ck_assert(is_good(&k, name, 0, 0, 1));
        ck_assert_msg(!is_good(&k, name, 0, all, types[_i].all), "all of %s", name);
        ck_assert_msg(!is_good(&k, name, row, row + 32, types[_i].row), "a row of %s", name);
        ck_assert_msg(!is_good(&k, name, row, row + 1, NAN), "an element of %s", name);
    }
    close_case(&k);
}

// Where one key has nearly all of a row's weight, the gradient of its score is what is left of do . v - do . o: the last bits of an o in bf16.
TEST(knows_what_rounding_leaves_of_a_row) {
    static const char with_sink[] =
        "import std.normalization; attention t { dim D = 32; input sink: f32[H];"
        "score(q, k) = dot(q, k) * rsqrt(D); normalize(s, b, h, i) = softmax_with_sink(s, "
        "sink[h]); }";
    Case k;
    Oracle rounded;
    open_case(&k, DT_BF16, with_sink, 64);
    ck_assert_int_eq(oracle_gradients_stored(&rounded, &k.x, k.slack.v, &k.b), STATUS_DONE);
    for (int r = 1; r < 3; r++) {
        int arg = sig_arg(k.b.sig, results[r]);
        Tensor *t = &k.b.tensor[arg];
        Verdict v;
        for (int64_t i = 0; i < t->count; i++) tensor_set(t, i, rounded.out[arg][i]);
        ck_assert_int_eq(verdict_of(&v, &k.slack, &k.b, &k.x, arg, tensor_tolerance(DT_BF16)),
                         STATUS_DONE);
        ck_assert_msg(verdict_good(&v), "%s: row %d by %g of %g", results[r], (int)v.row, v.off,
                      v.may);
        ck_assert(!is_good(&k, results[r], 0, t->count, 1.2));
    }
    oracle_free(&rounded);
    close_case(&k);
}
