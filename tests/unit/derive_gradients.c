// The derived backward, evaluated directly, against the reference's own derivative: every variant of the library, others that have
// all that the language has, kinks, rows without keys, and hard scores in f32.
#include "frontend/frontend.h"
#include "passes/derive/backward.h"
#include "tests/support/gradient.h"
#include "tests/support/modules.h"
#include "tests/unit/test.h"

#include <glob.h>

enum { MOST = 16 };

typedef struct Probe {
    Arena *a;
    Variant *v;
    Backward *b;
    int32_t size[MOST];
    const void *inputs[MOST];
    const double *demits[MOST];
    RefRun run;
    RefGrad grad;
    uint32_t seed;
} Probe;

static double *random_array(Probe *p, int64_t n, bool whole) {
    double *x = ARENA_ARRAY(p->a, double, n + 1);
    for (int64_t i = 0; i < n; i++)
        x[i] = whole ? round(test_uniform(&p->seed) * 2) : (double)(float)test_uniform(&p->seed);
    return x;
}

static Variant *variant(Arena *a, const char *path, const char *text, RowProgram **row) {
    Diags d = diag_list(a);
    Variant *v = gradient_variant(a, path, text);
    if (!v || v->kind != VARIANT_ATTENTION) return NULL;
    for (int i = 0; i < v->inputs.n; i++)
        v->inputs.data[i].grad = dtype_reads(v->inputs.data[i].dtype) == EX_F32;
    *row = fe_lower(a, &d, v);
    return v;
}

static const void *input(Probe *p, const TxInput *in) {
    int64_t n = 1;
    for (int d = 0; d < in->rank; d++)
        n *= in->extent[d].size < 0 ? in->extent[d].value : p->size[in->extent[d].size];
    if (dtype_reads(in->dtype) == EX_F32) return random_array(p, n, false);
    int32_t *whole = ARENA_ARRAY(p->a, int32_t, n + 1);
    for (int64_t k = 0; k < n; k++)
        whole[k] = in->dtype == DT_BOOL ? test_uniform(&p->seed) < 0.3 : (int)(k / 3 % 4);
    return whole;
}

// whole: q and k hold small whole numbers, so that scores tie.
static Probe *probe(Arena *a, const char *path, const char *text, const int32_t *sizes,
                    bool whole) {
    Probe *p = ARENA_NEW(a, Probe);
    RowProgram *row = NULL;
    Variant *v = variant(a, path, text, &row);
    if (!v) return NULL;
    *p = (Probe){.a = a,
                 .v = v,
                 .b = pass_backward(a, row, NULL),
                 .seed = 7 + (uint32_t)strlen(text ? text : path)};
    for (int i = 0; i < v->sizes.n; i++) p->size[i] = i < 6 ? sizes[i] : 4;
    const int32_t *n = p->size;
    int64_t rows = (int64_t)n[SIZE_B] * n[SIZE_HQ] * n[SIZE_SQ],
            keys = (int64_t)n[SIZE_B] * n[SIZE_HKV] * n[SIZE_SK];
    for (int i = 0; i < v->inputs.n; i++) p->inputs[i] = input(p, &v->inputs.data[i]);
    for (int m = 0; m < v->emits.n; m++) p->demits[m] = random_array(p, rows, false);
    p->run = (RefRun){.variant = v,
                      .sizes = p->size,
                      .q = random_array(p, rows * v->D, whole),
                      .k = random_array(p, keys * v->D, whole),
                      .v = random_array(p, keys * v->Dv, false),
                      .inputs = p->inputs};
    p->grad =
        (RefGrad){.run = &p->run, .d_o = random_array(p, rows * v->Dv, false), .demits = p->demits};
    return p;
}

static int check_rows(const Probe *p, const char *what, bool round, double may) {
    int compared = 0;
    int64_t rows = (int64_t)p->size[SIZE_B] * p->size[SIZE_HQ] * p->size[SIZE_SQ];
    for (int64_t r = 0; r < rows; r++) {
        double d = gradient_distance(p->b, &p->grad, r, round);
        ck_assert_msg(isnan(d) || d <= may, "%s: row %d is off by %g", what, (int)r, d);
        compared += !isnan(d);
    }
    return compared;
}

static const int32_t shapes[][6] = {
    {2, 4, 2, 5, 7, 2}, {1, 2, 1, 7, 4, 0}, {1, 1, 1, 3, 0, 0}, {1, 2, 2, 4, 9, -2}};

static void check(const char *path, const char *text) {
    for (int i = 0; i < 4; i++)
        for (int whole = 0; whole < 2; whole++) {
            Arena *a = arena_new();
            Probe *p = probe(a, path, text, shapes[i], whole);
            const char *what = text ? text : path;
            if (p)
                ck_assert_msg(check_rows(p, what, false, 1e-5) > 0, "%s: nothing was finite", what);
            if (p) check_rows(p, what, true, 1e-4);
            arena_free(a);
        }
}

TEST(library) {
    glob_t g;
    ck_assert_int_eq(glob("stdlib/*.attn", 0, NULL, &g), 0);
    ck_assert_int_ge((int)g.gl_pathc, 24);
    for (size_t i = 0; i < g.gl_pathc; i++) {
        if (!is_library_module(g.gl_pathv[i])) check(g.gl_pathv[i], NULL);
    }
    globfree(&g);
}

#define HEAD                                                                                       \
    "import std.normalization;\nattention a { dim D = 4, Dv = 3; input t: f32[4]; input g: f32; "  \
    "input n: i32[Sk];\n"
#define DOT HEAD "score(q, k) = dot(q, k) * 0.5; "

static const char *const bodies[] = {
    DOT "normalize(s) = s / max(rowsum(abs(s)), 1); }",
    DOT "normalize(s) = (s - rowmin(s)) / (rowmax(s) - rowmin(s) + 0.1); }",
    DOT "normalize(s) { let m = rowsum(s) / rowsum(1.0); let c = rowsum((s - m) * (s - m)); emit c "
        "= c; return (s - m) * rsqrt(c + 0.1); } }",
    DOT "normalize(s) = softmax(softmax(s * g) * 3 + retention(s)) * g; }",
    DOT "normalize(s) = softmax_with_sink(s, max(g, t[1])) + softmax(2 * s); }",
    DOT "normalize(s, b, h, i) = softmax_with_sink(s, t[h] * f32(i)); }",
    DOT "normalize(s, b, h, i) = 0.3 + g * f32(i); }",
    DOT "normalize(s) { emit top = rowmax(s * t[2]); emit low = rowmin(abs(s)) + g; return "
        "softmax(s); }"
        "output(o, b, h, i, d) = o * rsqrt(sqnorm(o) + 0.1) * t[d] + g; }",
    DOT "normalize(s) = sigmoid(s) * tanh(s) + sin(s) * cos(s * g); }",
    DOT "normalize(s) = exp2(s) - erf(s) + log(9 + s) * log2(9 + s * g) + sqrt(9 + s) * rsqrt(9 - "
        "s); }",
    DOT "normalize(s) = pow(abs(s) + 0.5, 1.5 + g) + pow(s, 2.0) + floor(s * 3) * s; }",
    DOT "normalize(s) = (s > 0.1 ? s * s : 0.1 * s) + min(s, t[0]) * max(-s, g) + f32(i32(s * 10)) "
        "* g; }",
    DOT "normalize(s) = t[i32(abs(s) * 5) % 4] * s; }",
    DOT "modify(s, b, h, i, j) = i % 2 == 0 ? s + t[(i + j) % 4] : s * t[h] - g; mask(b, h, i, j) "
        "= j <= i && t[j % 4] < 0.9; normalize(s) = softmax(s); }",
    DOT "modify(s, b, h, i, j) = j == 2 ? -inf : s / (1.0 + g * g); normalize(s) = softmax(s); }",
    DOT "normalize(s) = rowsum(s) * 0.1 + s; output(o, b, h, i, d) = o / (1.0 + sqnorm(o)) + "
        "sigmoid(o * g); }",
    // garbage behind masks; roots that a condition or a clamp keeps from 0
    DOT "modify(s, b, h, i, j) = s + log(f32(n[j])); mask(b, h, i, j) = n[j] > 0; normalize(s) = "
        "softmax(s); }",
    DOT "modify(s) = sqrt(max(s, 0)); normalize(s) = s; }",
    DOT "modify(s) = s > 0 ? sqrt(s) * log(s) : g; normalize(s) = softmax(s); }",
    DOT "modify(s) = abs(s) % 0.7; normalize(s) = s * g; }",
    DOT "modify(s) = pow(max(s, 0), t[0] + 2); normalize(s) = s / (rowsum(s) + 1); }",
    // ties
    DOT "normalize(s) = s / (rowmax(abs(s)) + 1); }",
    DOT "modify(s, b, h, i, j) = max(s, f32(j % 3)); normalize(s) = exp(s - rowmax(s)); }",
    DOT "normalize(s) = (s >= rowmax(s) ? s : 0.2 * s); }",
    DOT
    "normalize(s) { let m = rowmax(s); let a = rowmax(s * s + m); emit a = a; return s * a; } }",
    // scores of other kinds
    HEAD
    "score(q, k) = -0.3 * (sqnorm(q) + sqnorm(k) - 2 * dot(q, k)); normalize(s) = softmax(s); }",
    HEAD "score(q, k) = dot(q, k) * rsqrt(sqnorm(q) * sqnorm(k) + 1e-6); normalize(s) = softmax(s "
         "* g); }",
    // rows beside q and k, slices, and elements that clauses change
    HEAD
    "input x: f32[B, H, Sq, 2]; input y: f32[B, 1, Sk, 2]; input w: f32[B, Hkv, Sk, 4]; score(q, "
    "k) = dot(q, k) + dot(x, y) + tanh(dot(q, w)) - sqnorm(y) * sqnorm(x) + dot(q[1:3], y); "
    "normalize(s) = softmax(s); }",
    HEAD
    "share v = k; query(q, b, h, i, d) = q * rsqrt(sqnorm(q) + 0.1) * t[d]; key(k, b, h, j, d) = "
    "k / (2 + g) * t[d] * t[1]; score(q, k) = dot(q[:3], k[1:]) + sin(dot(q, k)); normalize(s) = "
    "softmax(s); }",
    HEAD "value(v, b, h, j, d) = v * g * t[d]; key(k, b, h, j, d) = k * sqnorm(k) * f32(n[j] + 1); "
         "score(q, k) = dot(q, k); normalize(s) = softmax(s); }",
    HEAD
    "score(q, k) = tanh(dot(q, k)) + 0.1 * sqnorm(k) * dot(q, k); normalize(s) = softmax(s); }",
};

TEST(chosen) {
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) check(NULL, bodies[i]);
}

// In f32: masked by large numbers, enormous scores, one key that is far above all.
static const char *const hard[] = {
    DOT "modify(s, b, h, i, j) = (i + j) % 3 == 0 ? s : -1e30; normalize(s) = softmax(s); }",
    DOT "modify(s, b, h, i, j) = j > i ? -3.4028235e38 : s; normalize(s) = softmax(s); }",
    DOT "modify(s, b, h, i, j) = s + (j > i ? -1e10 : 0.0); normalize(s) = softmax(s); }",
    DOT "modify(s) = s - 40000; normalize(s) = softmax(s); }",
    DOT "modify(s) = -1e30 + s; normalize(s) = softmax(s); }",
    DOT "modify(s) = s * 1000; normalize(s) = softmax(s); }",
    DOT "modify(s) = s * 1e-20; normalize(s) { let m = rowmax(abs(s)); let p = pow(s / max(m, "
        "1e-30), 8); return p / max(rowsum(p), 1e-30); } }",
    DOT "modify(s) = s * 1e4; normalize(s) { let m = rowmax(abs(s)); let p = pow(s / max(m, "
        "1e-30), 8); return p / max(rowsum(p), 1e-30); } }",
    DOT "modify(s) = s * 1e4; normalize(s) = softmax_with_sink(s, 3e4 * g); }",
};

TEST(hard_scores) {
    for (size_t i = 0; i < sizeof hard / sizeof *hard; i++) {
        Arena *a = arena_new();
        Probe *p = probe(a, NULL, hard[i], shapes[0], true); // so that scores near 40000 are exact
        double d = gradient_distance(p->b, &p->grad, -1, true);
        ck_assert_msg(d < 1e-4, "%s: off by %g", hard[i], d);
        arena_free(a);
    }
}
