// What counting expects of schedules, held against what was measured (tests/tile/measured.def): of
// the schedules of a row, the one that counting ranks first is within 5% of the fastest, and so is
// the one that is compiled; and counting is not far off for any.
#include "tests/unit/pass_util.h"

static const struct {
    const char *name, *text;
} variants[] = {
    {"full", ""},
    {"causal", "mask(b, h, q, k) = causal(q, k);"},
    {"window", "mask(b, h, q, k) = window(q, k, 1024);"},
    {"softcap", "modify(s) = tanh_cap(s, 20.0); mask(b, h, q, k) = causal(q, k);"},
    {"relu", "modify(s) = max(s, 0) / Sk;"},
    {"sigmoid", "modify(s) = sigmoid(s - log(Sk));"},
};

static const struct Row {
    const char *variant;
    int b, h, hkv, s, d, dv;
    const char *figures;
} rows[] = {
#define MEASURED(variant, b, h, hkv, s, d, dv, figures) {#variant, b, h, hkv, s, d, dv, figures},
#include "tests/tile/measured.def"
#undef MEASURED
};

static Stream *stream_of(Arena *a, const struct Row *r) {
    bool softmax = strcmp(r->variant, "relu") && strcmp(r->variant, "sigmoid");
    size_t i = 0;
    while (strcmp(variants[i].name, r->variant)) i++;
    const char *text = arena_printf(
        a,
        "import std.mask; import std.modify; import std.normalization; attention t { dim D = %d, "
        "Dv = %d; score(q, k) = dot(q, k) * rsqrt(D); %s normalize(s) = %s; }",
        r->d, r->dv, variants[i].text, softmax ? "softmax(s)" : "s");
    return pu_stream(a, "t.attn", text, 0, NULL);
}

static bool is_of(const Knobs *k, int warpgroups, int keys, int stages) {
    return k->warpgroups == warpgroups && k->keys == keys && k->stages == stages;
}

static double cycles_of(const Candidates *c, int warpgroups, int keys, int stages) {
    for (int i = 0; i < c->n; i++)
        if (is_of(&c->data[i].knobs, warpgroups, keys, stages)) return c->data[i].cycles;
    return 0;
}

enum { MAX_FIGURES = 32 };

static void check_row(const struct Row *r) {
    Arena *a = arena_new();
    int32_t sizes[SIZE_FREE] = {r->b, r->h, r->hkv, r->s, r->s, 0};
    PassOptions o = {.target = *target_get(TARGET_SM90A),
                     .dtype = DT_BF16,
                     .shape = shape_of(target_get(TARGET_SM90A), sizes),
                     .sizes = sizes};
    Candidates c = pass_candidates(a, stream_of(a, r), &o);
    double rate[MAX_FIGURES], cycles[MAX_FIGURES], best = 0, sum = 0, own = 0;
    int n = 0, first = 0, w, k, s, at = 0;
    for (const char *f = r->figures; sscanf(f, " %d/%d/%d:%lf%n", &w, &k, &s, &rate[n], &at) == 4;
         f += at) {
        cycles[n] = cycles_of(&c, w, k, s);
        if (!cycles[n]) continue; // this compiler has no room for it
        if (cycles[n] < cycles[first]) first = n;
        if (rate[n] > best) best = rate[n];
        if (is_of(&c.data[0].knobs, w, k, s)) own = rate[n]; // what would be compiled
        sum += log(rate[n] * cycles[n]);
        n++;
    }
    ck_assert_int_gt(n, 1);
    ck_assert_msg(rate[first] >= 0.95 * best, "%s D=%d S=%d: %g where %g was measured", r->variant,
                  r->d, r->s, rate[first], best);
    ck_assert_msg(!own || own >= 0.95 * best, "%s D=%d S=%d: the compiler's choice makes %g of %g",
                  r->variant, r->d, r->s, own, best);
    for (int i = 0; i < n; i++) {
        double off = exp(fabs(log(rate[i] * cycles[i]) - sum / n)) - 1;
        ck_assert_msg(off < 0.08, "%s D=%d S=%d: counting is %.1f%% off at %g TFLOP/s", r->variant,
                      r->d, r->s, 100 * off, rate[i]);
    }
    arena_free(a);
}

TEST_EACH(measured, 0, (int)(sizeof rows / sizeof *rows)) { check_row(&rows[_i]); }
