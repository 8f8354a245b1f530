// The reference's derivative against central differences of the reference's values: every variant
// and recurrence of the library, others that have all that the language has, kinks, rows without
// keys, and garbage behind masks.
#include "tests/support/gradient.h"
#include "tests/support/modules.h"
#include "tests/unit/ref_util.h"

#include <glob.h>

enum { MOST_SIZES = 16, MOST_INPUTS = 8, MOST_EMITS = 4, TRIED = 12 };

typedef struct Array {
    double *x, *d; // d: by ref_grad
    int64_t n;
} Array;

typedef struct Probe {
    Arena *a;
    const Variant *v;
    int32_t size[MOST_SIZES];
    Array q, k, val, state0, input[MOST_INPUTS];
    const void *inputs[MOST_INPUTS];
    double *dinputs[MOST_INPUTS];
    double *emits[MOST_EMITS];
    const double *demits[MOST_EMITS];
    Array o, state; // d: what comes in
    RefRun run;
    RefGrad grad;
    uint32_t seed;
    int tried, compared;
} Probe;

static Array array(Probe *p, int64_t n, bool random) {
    Array x = {ARENA_ARRAY(p->a, double, n + 1), ARENA_ARRAY(p->a, double, n + 1), n};
    for (int64_t i = 0; random && i < n; i++) x.x[i] = test_uniform(&p->seed);
    for (int64_t i = 0; !random && i < n; i++) x.d[i] = test_uniform(&p->seed);
    return x;
}

static void sizes(Probe *p) {
    static const int32_t attention[] = {2, 4, 2, 5, 7, 2}, recurrence[] = {1, 4, 4, 2, 1, 11};
    bool attends = p->v->kind == VARIANT_ATTENTION;
    for (int i = 0; i < p->v->sizes.n; i++) p->size[i] = i < 6 ? 0 : 4;
    memcpy(p->size, attends ? attention : recurrence, sizeof attention);
}

static void inputs(Probe *p) {
    for (int i = 0; i < p->v->inputs.n; i++) {
        const TxInput *in = &p->v->inputs.data[i];
        int64_t n = 1;
        for (int d = 0; d < in->rank; d++)
            n *= in->extent[d].size < 0 ? in->extent[d].value : p->size[in->extent[d].size];
        p->input[i] = array(p, n, true);
        if (dtype_reads(in->dtype) == EX_F32) {
            p->inputs[i] = p->input[i].x;
            p->dinputs[i] = p->input[i].d;
            continue;
        }
        int32_t *whole = ARENA_ARRAY(p->a, int32_t, n + 1);
        for (int64_t k = 0; k < n; k++)
            whole[k] = in->dtype == DT_BOOL ? test_uniform(&p->seed) < 0.3 : (int)(k / 3 % 4);
        p->inputs[i] = whole;
        p->input[i].n = 0;
    }
}

static void operands(Probe *p) {
    const int32_t *n = p->size;
    const Variant *v = p->v;
    bool attends = v->kind == VARIANT_ATTENTION;
    int64_t rows = attends ? (int64_t)n[SIZE_B] * n[SIZE_HQ] * n[SIZE_SQ]
                           : (int64_t)n[RSIZE_B] * n[RSIZE_H] * n[RSIZE_S];
    if (attends) {
        int64_t keys = (int64_t)n[SIZE_B] * n[SIZE_HKV] * n[SIZE_SK];
        p->q = array(p, rows * v->D, true);
        p->k = array(p, keys * v->D, true);
        p->val = array(p, keys * v->Dv, true);
    } else {
        int64_t all = (int64_t)n[RSIZE_B] * n[RSIZE_S], state = (int64_t)n[RSIZE_B] * n[RSIZE_H];
        p->q = array(p, all * n[RSIZE_HQ] * v->D, true);
        p->k = array(p, all * n[RSIZE_HK] * v->D, true);
        p->val = array(p, all * n[RSIZE_HV] * v->Dv, true);
        p->state0 = array(p, state * v->D * v->Dv, true);
        p->state = array(p, state * v->D * v->Dv, false);
    }
    p->o = array(p, rows * v->Dv, false);
    for (int m = 0; m < v->emits.n; m++) {
        Array e = array(p, rows, false);
        p->emits[m] = e.x;
        p->demits[m] = e.d;
    }
}

static Probe *probe(Arena *a, const Variant *v, uint32_t seed) {
    Probe *p = ARENA_NEW(a, Probe);
    p->a = a;
    p->v = v;
    p->seed = seed;
    ck_assert(v->sizes.n <= MOST_SIZES && v->inputs.n <= MOST_INPUTS && v->emits.n <= MOST_EMITS);
    sizes(p);
    inputs(p);
    operands(p);
    p->run = (RefRun){.variant = v,
                      .sizes = p->size,
                      .q = p->q.x,
                      .k = p->k.x,
                      .v = p->val.x,
                      .inputs = p->inputs,
                      .o = p->o.x,
                      .emits = p->emits,
                      .state0 = p->state0.x,
                      .state = p->state.x};
    p->grad = (RefGrad){.run = &p->run,
                        .d_o = p->o.d,
                        .demits = p->demits,
                        .dstate = p->state.d,
                        .dq = p->q.d,
                        .dk = p->k.d,
                        .dv = p->val.d,
                        .dinputs = p->dinputs,
                        .dstate0 = p->state0.d};
    return p;
}

static double dot(const double *x, const double *d, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        if (d[i] != 0) sum += x[i] * d[i];
    return sum;
}

static double loss(const Probe *p) {
    ref_run(&p->run);
    double sum = dot(p->o.x, p->o.d, p->o.n);
    for (int m = 0; m < p->v->emits.n; m++)
        sum += dot(p->emits[m], p->demits[m], p->o.n / p->v->Dv);
    return p->state.n ? sum + dot(p->state.x, p->state.d, p->state.n) : sum;
}

static double slope(const Probe *p, double *x, double h) {
    double at = *x;
    *x = at + h;
    double more = loss(p);
    *x = at - h;
    double less = loss(p);
    *x = at;
    return (more - less) / (2 * h);
}

// Some elements of an array; those at which the formula has a kink are told by their differences.
static void compare(Probe *p, const char *what, const char *name, Array *x) {
    const double h = 1e-4;
    int64_t step = x->n > TRIED ? x->n / TRIED : 1;
    for (int64_t i = 0; i < x->n; i += step) {
        double near = slope(p, &x->x[i], h), far = slope(p, &x->x[i], 2 * h);
        double want = (4 * near - far) / 3;
        p->tried++;
        if (!(fabs(near - far) <= 1e-5 * (1 + fabs(near)))) continue;
        p->compared++;
        ck_assert_msg(fabs(x->d[i] - want) <= 1e-7 * (1 + fabs(want)),
                      "%s: d%s[%d] is %.12g, not %.12g", what, name, (int)i, x->d[i], want);
    }
}

static void differences(Arena *a, const Variant *v, const char *what) {
    Probe *p = probe(a, v, 1 + (uint32_t)strlen(what) * 7919u);
    ck_assert_ptr_null(ref_check(&p->run));
    ref_grad(&p->grad);
    compare(p, what, "q", &p->q);
    compare(p, what, "k", &p->k);
    compare(p, what, "v", &p->val);
    compare(p, what, "state0", &p->state0);
    for (int i = 0; i < v->inputs.n; i++) compare(p, what, v->inputs.data[i].name, &p->input[i]);
    ck_assert_msg(p->tried >= 30 && p->compared >= p->tried * 9 / 10, "%s: %d of %d compared", what,
                  p->compared, p->tried);
}

TEST(library) {
    glob_t g;
    int seen = 0;
    ck_assert_int_eq(glob("stdlib/*.attn", 0, NULL, &g), 0);
    for (size_t i = 0; i < g.gl_pathc; i++) {
        if (is_library_module(g.gl_pathv[i])) continue;
        Arena *a = arena_new();
        differences(a, gradient_variant(a, g.gl_pathv[i], NULL), g.gl_pathv[i]);
        seen++;
        arena_free(a);
    }
    ck_assert_int_ge(seen, 24);
    globfree(&g);
}

#define HEAD "import std.normalization;\n"
#define ATTENTION                                                                                  \
    "attention a { dim D = 4, Dv = 3; input t: f32[4]; input g: f32; score(q, k) = dot(q, k) * "   \
    "0.5;\n"

static const char *const bodies[] = {
    "normalize(s) = s / max(rowsum(abs(s)), 1);",
    "normalize(s) = (s - rowmin(s)) / (rowmax(s) - rowmin(s) + 0.1);",
    "normalize(s) { let m = rowsum(s) / rowsum(1.0); let c = rowsum((s - m) * (s - m));"
    "emit c = c; return (s - m) * rsqrt(c + 0.1); }",
    "normalize(s) = softmax(softmax(s * g) * 3 + retention(s)) * g;",
    "normalize(s) = softmax_with_sink(s, max(g, t[1])) + softmax(2 * s);",
    "normalize(s, b, h, i) = 0.3 + g * f32(i);",
    "normalize(s) { emit top = rowmax(s * t[2]); emit low = rowmin(abs(s)) + g; return softmax(s); "
    "}"
    "output(o, b, h, i, d) = o * rsqrt(sqnorm(o) + 0.1) * t[d] + g;",
    "normalize(s) = sigmoid(s) * tanh(s) + sin(s) * cos(s * g);",
    "normalize(s) = exp2(s) - erf(s) + log(2 + s) * log2(3 + s * g) + sqrt(4 + s) * rsqrt(3 - s);",
    "normalize(s) = pow(abs(s) + 0.5, 1.5 + g) + pow(s, 2.0) + floor(s * 3) * s;",
    "normalize(s) = (s > 0.1 ? s * s : 0.1 * s) + min(s, t[0]) * max(-s, g) + f32(i32(s * 10)) * "
    "g;",
    "normalize(s) = t[i32(abs(s) * 5) + 2] * s;",
    "modify(s, b, h, i, j) = i % 2 == 0 ? s + t[(i + j) % 4] : s * t[h] - g;"
    "mask(b, h, i, j) = j <= i && t[j % 4] < 0.9; normalize(s) = softmax(s);",
    "modify(s, b, h, i, j) = j == 2 ? -inf : s / (1.0 + g * g); normalize(s) = softmax(s);",
    "normalize(s) = rowsum(s) * 0.1 + s; output(o, b, h, i, d) = o / (1.0 + sqnorm(o)) + sigmoid(o "
    "* g);",
};

static const char *const scores[] = {
    "-0.3 * (sqnorm(q) + sqnorm(k) - 2 * dot(q, k))",
    "dot(q, k) * rsqrt(sqnorm(q) * sqnorm(k) + 1e-6)",
    "tanh(dot(q, k)) + 0.1 * sqnorm(k) * dot(q, k)",
};

static const char *const recurrences[] = {
    "",
    "query(q, b, h, t, d) = q * rsqrt(sqnorm(q) + 0.1) * w[d]; value(v, b, h, t, e) = v * "
    "sqnorm(v) + g[t];",
    "key(k, b, h, t, d) = max(k, 0.1) * w[d]; decay(b, h, t) = sigmoid(g[t]);",
    "decay(b, h, t, d) = exp(-abs(g[t] * w[d])); bonus(b, h, t, d) = w[d] * g[t];",
    "decay(b, h, t) = t == 5 ? 0 : 0.9; bonus(b, h, t) = g[t];",
    "decay(b, h, t) = t % 4 == 3 ? 0 * g[t] : abs(g[t]);",
    "erase(k, b, h, t, d) = k * rsqrt(sqnorm(k) + 0.1) * g[t]; write(k, b, h, t, d) = -k * w[d]; "
    "bonus(b, h, t) = g[t];",
    "output(o, b, h, t, e) = o * rsqrt(sqnorm(o) + 0.1) * sigmoid(g[t]) + w[e];",
};

ARENA_TEST(chosen) {
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        differences(a, gradient_variant(a, NULL, arena_printf(a, HEAD ATTENTION "%s }", bodies[i])),
                    bodies[i]);
    for (size_t i = 0; i < sizeof scores / sizeof *scores; i++)
        differences(
            a,
            gradient_variant(a, NULL,
                             arena_printf(a,
                                          HEAD "attention a { dim D = 4, Dv = 3; score(q, k) = %s;"
                                               "normalize(s) = softmax(s); }",
                                          scores[i])),
            scores[i]);
    for (size_t i = 0; i < sizeof recurrences / sizeof *recurrences; i++)
        differences(
            a,
            gradient_variant(a, NULL,
                             arena_printf(a,
                                          "recurrence r { dim D = 4, Dv = 3; input g: f32[S];"
                                          "input w: f32[D]; %s }",
                                          recurrences[i])),
            recurrences[i]);
}

// Of each clause one of these, by the seed.
static const char *const pieces[][6] = {
    {"", "query(q) = q * rsqrt(sqnorm(q) + 0.1);", "query(q, b, h, t, d) = q * w[d] + g[t];", NULL},
    {"", "key(k, b, h, t) = k * g[t] * rsqrt(sqnorm(k) + 0.1);",
     "key(k, b, h, t, d) = tanh(k) * w[d];", NULL},
    {"", "value(v, b, h, t, e) = v * sigmoid(g[t] + c) + u[b, e];", "value(v) = v * sqnorm(v);",
     NULL},
    {"", "decay(b, h, t) = exp(-abs(g[t] * c));", "decay(b, h, t) = t % 3 == 2 ? 0 * g[t] : 0.7;",
     "decay(b, h, t, d) = sigmoid(g[t] + w[d]);",
     "decay(b, h, t, d) = (t + d) % 4 == 0 ? 0 : exp(g[t] * w[d]);", NULL},
    {"", "erase(k) = k * 0.5; write(k, b, h, t) = -k * g[t];",
     "erase(k, b, h, t, d) = k * w[d]; write(k, b, h, t, d) = m[h, d] * g[t];",
     "erase(k, b, h, t, d) = m[h, d]; write(k) = k * rsqrt(sqnorm(k) + 0.1) * c;", NULL},
    {"", "bonus(b, h, t) = g[t] * c;", "bonus(b, h, t, d) = m[h, d];", NULL},
    {"", "output(o, b, h, t, e) = o * u[b, e] + g[t];", "output(o) = o * rsqrt(sqnorm(o) + 0.3);",
     NULL},
};

TEST(random_recurrences) {
    uint32_t state = 4711;
    for (int n = 0; n < 60; n++) {
        Arena *a = arena_new();
        Text t = text_new(a);
        for (size_t c = 0; c < sizeof pieces / sizeof *pieces; c++) {
            int choices = 0;
            while (pieces[c][choices]) choices++;
            text_puts(&t, pieces[c][(int)((test_uniform(&state) + 1) / 2 * choices)]);
        }
        differences(
            a,
            gradient_variant(
                a, NULL,
                arena_printf(a,
                             "recurrence r { dim D = 4, Dv = 3; input g: f32[S]; input w: f32[D];"
                             "input u: f32[B, Dv]; input m: f32[H, D]; input c: f32; %s }",
                             t.s)),
            t.s);
        arena_free(a);
    }
}

// ---- kinks and rows without keys: one head, D = Dv = 1, q = 1, two rows, four keys

enum { KEYS = 4, ROWS = 2 };

typedef struct Row {
    double dq[ROWS], dk[KEYS], dv[KEYS], dc;
} Row;

// v = 1, do = 1; `c` is an input of one number.
static Row row_as(RefKind kind, const char *body, const double *k, double c, double demit) {
    Arena *a = arena_new();
    const Variant *v = gradient_variant(
        a, NULL,
        arena_printf(a, HEAD "attention a { dim D = 1; input c: f32; score(q, k) = dot(q, k); %s }",
                     body));
    double q[ROWS] = {1, 1}, ones[KEYS] = {1, 1, 1, 1}, top[ROWS] = {demit, demit};
    int32_t n[] = {1, 1, 1, ROWS, KEYS, 0};
    const void *in[] = {&c};
    const double *demits[] = {top, top, top};
    Row x = {.dc = NAN};
    double *dinputs[] = {&x.dc};
    ck_assert_int_le(v->emits.n, 3);
    RefRun r = {.variant = v, .sizes = n, .q = q, .k = k, .v = ones, .inputs = in};
    RefGrad g = {.run = &r,
                 .d_o = ones,
                 .demits = demits,
                 .dq = x.dq,
                 .dk = x.dk,
                 .dv = x.dv,
                 .dinputs = dinputs,
                 .kind = kind};
    ref_grad(&g);
    arena_free(a);
    return x;
}

static Row row(const char *body, const double *k, double c, double demit) {
    return row_as(REF_FLOAT64, body, k, c, demit);
}

// Each body with the gradient of k, which both rows add to, and of c.
TEST(kinks) {
    static const struct {
        const char *body;
        double k[KEYS], dk[KEYS], dc;
    } cases[] = {
        {"normalize(s) = max(s, 0);", {0, 1, -1, 0}, {0, 2, 0, 0}, 0},
        {"normalize(s) = max(0.5, s);", {0.5, 1, -1, 0.5}, {0, 2, 0, 0}, 0},
        {"normalize(s) = min(s, 1.0);", {1, 2, 0, 1}, {0, 0, 2, 0}, 0},
        {"normalize(s) = max(s, c);", {1, 2, 0, 1}, {1, 2, 1 - 1, 1}, 4},
        {"normalize(s) = min(c, s);", {1, 2, 0, 1}, {1, 0, 2, 1}, 4},
        {"normalize(s) = max(s, s * c);", {1, 2, 0, 1}, {2, 2, 2, 2}, 4},
        {"normalize(s) = abs(s);", {0, 2, -3, 0}, {0, 2, -2, 0}, 0},
        {"normalize(s) = rowmax(s);", {1, 3, 3, 0}, {0, 4, 4, 0}, 0},
        {"normalize(s) = rowmin(s);", {1, 0, 3, 0}, {0, 4, 0, 4}, 0},
        {"normalize(s) = rowmax(max(s, 0));", {-1, 0, -3, 0}, {0, 0, 0, 0}, 0},
        {"normalize(s) = floor(s) + f32(i32(s)) + (s > 0.5 ? 1.0 : 2.0);", {1, 0, 2, 0.5}, {0}, 0},
        {"normalize(s) = s % 2.0;", {1, 2, -3, 0}, {2, 2, 2, 2}, 0},
        {"normalize(s) = 7.0 % s;", {2, 3, 4, 5}, {-6, -4, -2, -2}, 0},
        {"normalize(s) = s > 0 ? sqrt(s) : 0;", {0, 1, -1, 4}, {0, 1, 0, 0.5}, 0},
        {"normalize(s) = sqrt(max(s, 0));", {-2, 1, -1, 4}, {0, 1, 0, 0.5}, 0},
        {"normalize(s) = pow(s, 2.0);", {0, 1, -1, 3}, {0, 4, -4, 12}, 0},
        {"normalize(s) = pow(s, 0.0) + pow(s, c);",
         {0, 1, 2, 3},
         {2, 2, 2, 2},
         2 * (2 * M_LN2 + 3 * 1.0986122886681098)},
        {"mask(b, h, i, j) = j != 1; modify(s, b, h, i, j) = j == 1 ? s / (s - s) : s;"
         "normalize(s) = s * c;",
         {1, NAN, 2, 3},
         {2, 0, 2, 2},
         12},
        {"modify(s, b, h, i, j) = j == 1 ? -inf * c : s; normalize(s) = s * c;",
         {1, 5, 2, 3},
         {2, 0, 2, 2},
         12},
        {"mask(b, h, i, j) = j > 9; normalize(s) { emit top = max(rowmax(s), c); return "
         "softmax_with_sink(s, c); }",
         {1, 5, 2, 3},
         {0},
         0},
        {"mask(b, h, i, j) = i == 1; normalize(s) { emit top = rowmax(s); return s * c; }"
         "output(o) = o + 10 * c;",
         {1, 5, 2, 3},
         {1, 1 + 1, 1, 1},
         20 + 11},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Row x = row(cases[i].body, cases[i].k, 1, 1);
        for (int j = 0; j < KEYS; j++)
            ck_assert_msg(fabs(x.dk[j] - cases[i].dk[j]) < 1e-12, "%s: dk[%d] is %g, not %g",
                          cases[i].body, j, x.dk[j], cases[i].dk[j]);
        ck_assert_msg(fabs(x.dc - cases[i].dc) < 1e-6, "%s: dc is %.9g, not %.9g", cases[i].body,
                      x.dc, cases[i].dc);
    }
}

// As written in f32: a sum that leaves it, a product of slopes that does, and steps that are rounded.
TEST(as_written) {
    const double large[] = {3e38, 3e38, 3e38, 0}, k[] = {1, 2, 3, 4};
    const char *share = "normalize(s) = s / max(rowsum(abs(s)), 1);",
               *product = "normalize(s) = s * c * c;", *power = "normalize(s) = exp(s);";
    Row exact = row(share, large, 1, 0), x = row_as(REF_WRITTEN, share, large, 1, 0);
    ck_assert(fabs(exact.dv[0] - 2.0 / 3) < 1e-9 && x.dv[0] == 0);
    exact = row(product, k, 1e30, 0), x = row_as(REF_WRITTEN, product, k, 1e30, 0);
    ck_assert(fabs(exact.dk[0] - 2e60) < 1e50 && isinf(x.dk[0]));
    exact = row(power, k, 1, 0), x = row_as(REF_WRITTEN, power, k, 1, 0);
    ck_assert(exact.dk[1] == 2 * exp(2.0) && x.dk[1] == 2 * (double)(float)exp(2.0));
}

// What masked keys hold reaches no gradient; a row without a key has none.
TEST(masked) {
    const double k[] = {NAN, 2, INFINITY, 1};
    Row x = row("mask(b, h, i, j) = i == 0 && j % 2 == 1; normalize(s) = softmax(s);", k, 1, 1);
    ck_assert(x.dq[1] == 0 && x.dk[0] == 0 && x.dk[2] == 0 && x.dv[0] == 0 && x.dv[2] == 0);
    double w = 1 / (1 + exp(-1)); // of key 1: v is 1, and only lse has a slope
    ck_assert(fabs(x.dk[1] - w) < 1e-12 && fabs(x.dk[3] - (1 - w)) < 1e-12);
    ck_assert(fabs(x.dq[0] - (2 * w + 1 - w)) < 1e-12 && fabs(x.dv[1] - w) < 1e-12);
}

// A decay of 0 forgets what is infinite, and its gradient; state0 gets dstate through decays alone.
ARENA_TEST(forgotten) {
    const Variant *v = gradient_variant(
        a, NULL, "recurrence r { dim D = 1; input g: f32[S]; decay(b, h, t) = g[t]; }");
    double q[] = {1, 1, 1}, k[] = {1, 2, 3}, val[] = {1, 1, 1}, g[] = {0.5, 0, 0.25}, s0 = INFINITY;
    double d_o[] = {0, 1, 1}, dstate = 8, dq[3], dk[3], dv[3], dg[3], ds0;
    int32_t n[] = {1, 1, 1, 1, 1, 3};
    const void *in[] = {g};
    double *dinputs[] = {dg};
    RefRun r = {.variant = v, .sizes = n, .q = q, .k = k, .v = val, .inputs = in, .state0 = &s0};
    RefGrad x = {.run = &r, .d_o = d_o, .dstate = &dstate, .dq = dq, .dk = dk, .dv = dv};
    x.dinputs = dinputs;
    x.dstate0 = &ds0;
    ref_grad(&x);
    ck_assert(ds0 == 0 && dk[0] == 0 && dg[0] == 0 && dq[0] == 0);
    ck_assert(dk[2] == 9 && dk[1] == 1 + 0.25 * 9 && dv[1] == 2 * dk[1] && dg[2] == 9 * 2);
    s0 = 4, g[1] = 1, n[RSIZE_S] = 2;
    ref_grad(&x);
    ck_assert(ds0 == 0.5 * (8 + 1) && dg[0] == 4 * (8 + 1) && dg[1] == (0.5 * 4 + 1) * (8 + 1));
    n[RSIZE_S] = 0;
    ref_grad(&x);
    ck_assert(ds0 == 8);
}

// Which side of a kink a pair is on is a decision where it is asked for.
ARENA_TEST(open_kinks) {
    static const struct {
        const char *body;
        double grain;
        bool open;
    } cases[] = {
        {"normalize(s) = max(s, 0);", 0, true},      {"normalize(s) = max(s, 0);", 1, false},
        {"normalize(s) = abs(s);", 0, true},         {"normalize(s) = rowmax(s) * s;", 0, true},
        {"normalize(s) = rowmax(s) * s;", 1, false}, {"normalize(s) = s;", 0, false},
    };
    for (size_t i = 0; i < 2 * (sizeof cases / sizeof *cases); i++) {
        const char *body = cases[i / 2].body;
        const Variant *v = gradient_variant(
            a, NULL,
            arena_printf(a, "attention a { dim D = 2, Dv = 1; score(q, k) = dot(q, k); %s }",
                         body));
        float third = 1.0f / 3, tenth = 0.1f;
        double q[] = {tenth, third}, k[] = {third, -tenth, third * 2, -tenth * 2}, val[] = {1, 1},
               o;
        for (int d = 0; cases[i / 2].grain > 0 && d < 4; d++) q[d & 1] = 1, k[d] = d & 1 ? -1 : 1;
        int32_t n[] = {1, 1, 1, 1, 2, 0};
        unsigned char row = 0, element = 0;
        RefOpen open = {.row = &row, .o = &element};
        RefRun r = ref_of(v, n, q, k, val, NULL, &o);
        r.open = &open, r.kinks = i & 1, r.dot_error = 0x1p-20, r.o_error = 1e-5;
        ref_run(&r);
        ck_assert_msg(row == (cases[i / 2].open && (i & 1)), "%s, grain %g", body,
                      cases[i / 2].grain);
    }
}
