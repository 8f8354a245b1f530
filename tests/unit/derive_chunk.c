// The chunked form of recurrences (ir/chunk.h) against the reference's step by step recurrence, in float64: the library's,
// random ones with any subset of clauses, hard decays; runs in two calls; parts of the positions and their combine rule.
#include "frontend/frontend.h"
#include "frontend/reference.h"
#include "ir/chunk_eval.h"
#include "ir/read.h"
#include "passes/derive/explain.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint32_t draw(uint32_t *seed, uint32_t n) {
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % n;
}

static double noise(uint32_t *seed) { return (double)draw(seed, 1 << 20) / (1 << 19) - 1; }

// ---- a recurrence with its tensors

typedef struct Case {
    Arena *a;
    Variant *v;
    RecProgram *rec;
    Chunk *c;
    int32_t size[8];
    double *q, *k, *values, *o, *state0, *state;
    const void **inputs;
    int b, h; // of the head that is evaluated
} Case;

static ExValue case_sym(void *ctx, const Ex *e) {
    const Case *x = ctx;
    switch ((int)e->sym) {
    case SYM_B: return (ExValue){.i = x->b};
    case SYM_H: return (ExValue){.i = x->h};
    case SYM_SIZE: return (ExValue){.i = x->size[e->index]};
    default:
        ck_assert(e->sym == SYM_SCALAR);
        return (ExValue){.f = *(const double *)x->inputs[e->index]};
    }
}

static ExValue case_load(void *ctx, const Ex *e, const int32_t *index) {
    const Case *x = ctx;
    const TxInput *in = &x->v->inputs.data[e->input];
    int64_t at = 0;
    for (int i = 0; i < in->rank; i++) {
        int32_t n = in->extent[i].size < 0 ? in->extent[i].value : x->size[in->extent[i].size];
        if (n <= 0) return (ExValue){.f = 0};
        at = at * n + (index[i] < 0 ? 0 : index[i] >= n ? n - 1 : index[i]);
    }
    if (dtype_reads(in->dtype) == EX_F32)
        return (ExValue){.f = ((const double *)x->inputs[e->input])[at]};
    return (ExValue){.i = ((const int32_t *)x->inputs[e->input])[at]};
}

static void compile(Case *x, const char *text) {
    Diags d;
    diag_init(&d, x->a);
    FeStatus status;
    FeOptions o = {.path = "r.attn", .text = text, .text_bytes = strlen(text), .stdlib = "stdlib"};
    Module *m = fe_load(x->a, &d, &o, &status);
    ck_assert_msg(status == FE_OK, "%s\n%s", d.first ? d.first->message : "", text);
    x->v = m->variants.data[0];
    x->rec = fe_lower_recurrence(x->a, x->v);
    x->c = pass_chunk(x->rec);
}

static double *numbers(Arena *a, int64_t n, double scale, uint32_t *seed) {
    double *x = ARENA_ARRAY(a, double, n + 1);
    for (int64_t i = 0; i < n; i++) x[i] = (float)(scale * noise(seed));
    return x;
}

// By its name: n..: from 0 to 1, one in five 0; g..: exponents, some far down or -inf; others around 0.
static double drawn(const char *name, uint32_t *seed) {
    static const double far[] = {0, -1e-4, -0.1, -5, -20, -80, -INFINITY};
    double x = noise(seed);
    if (name[0] == 'n') return draw(seed, 5) ? fabs(x) : 0;
    if (name[0] == 'g') return draw(seed, 4) ? -fabs(x) : far[draw(seed, 7)];
    if (!strncmp(name, "log_decay", 9)) return -2 * fabs(x);
    if (!strcmp(name, "beta")) return 2 * fabs(x);
    return !strcmp(name, "A") ? -fabs(x) : strlen(name) == 1 || name[1] == '_' ? 0.2 * x : fabs(x);
}

static void fill(Case *x, const int32_t size[RSIZE_FREE], uint32_t seed, bool begins) {
    const int32_t *n = memcpy(x->size, size, sizeof *size * RSIZE_FREE);
    int D = x->v->D, Dv = x->v->Dv;
    int64_t rows = (int64_t)n[RSIZE_B] * n[RSIZE_S], heads = (int64_t)n[RSIZE_B] * n[RSIZE_H];
    x->q = numbers(x->a, rows * n[RSIZE_HQ] * D, 1.7 / sqrt(D), &seed);
    x->k = numbers(x->a, rows * n[RSIZE_HK] * D, 1.7 / sqrt(D), &seed);
    x->values = numbers(x->a, rows * n[RSIZE_HV] * Dv, 1, &seed);
    x->state0 = begins ? numbers(x->a, heads * D * Dv, 1, &seed) : NULL;
    x->inputs = ARENA_ARRAY(x->a, const void *, x->v->inputs.n + 1);
    for (int i = 0; i < x->v->inputs.n; i++) {
        const TxInput *in = &x->v->inputs.data[i];
        int64_t count = 1;
        for (int d = 0; d < in->rank; d++)
            count *= in->extent[d].size < 0 ? in->extent[d].value : n[in->extent[d].size];
        double *to = numbers(x->a, count, 0, &seed);
        for (int64_t k = 0; k < count; k++) to[k] = (float)drawn(in->name, &seed);
        x->inputs[i] = to;
    }
}

static void reference(Case *x) {
    const int32_t *n = x->size;
    int64_t heads = (int64_t)n[RSIZE_B] * n[RSIZE_H];
    x->o = ARENA_ARRAY(x->a, double, heads *n[RSIZE_S] * x->v->Dv + 1);
    x->state = ARENA_ARRAY(x->a, double, heads * x->v->D * x->v->Dv + 1);
    RefRun r = {.variant = x->v,
                .sizes = n,
                .q = x->q,
                .k = x->k,
                .v = x->values,
                .inputs = x->inputs,
                .o = x->o,
                .state0 = x->state0,
                .state = x->state};
    ck_assert_ptr_null(ref_check(&r));
    ref_run(&r);
}

static const double *of_head(const Case *x, const double *all, int heads, int width) {
    int head = x->b * x->size[heads] + x->h * x->size[heads] / x->size[RSIZE_H];
    return all + (int64_t)head * x->size[RSIZE_S] * width;
}

static ChunkHead head_of(const Case *x, double *o) {
    return (ChunkHead){of_head(x, x->q, RSIZE_HQ, x->v->D), of_head(x, x->k, RSIZE_HK, x->v->D),
                       of_head(x, x->values, RSIZE_HV, x->v->Dv), o};
}

// ---- comparing

static double largest(const double *x, int64_t n) {
    double most = 1e-30;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(x[i]) && fabs(x[i]) > most) most = fabs(x[i]);
    return most;
}

static void alike(const char *what, const char *source, const double *got, const double *want,
                  int64_t n, double bound) {
    double most = largest(want, n);
    for (int64_t i = 0; i < n; i++) {
        bool same = isfinite(want[i]) ? fabs(got[i] - want[i]) <= bound * most : !isfinite(got[i]);
        ck_assert_msg(same, "%s[%lld] is %.12g, not %.12g (largest %g)\n%s", what, (long long)i,
                      got[i], want[i], most, source);
    }
}

static double *begin(const Case *x) {
    int64_t n = (int64_t)x->v->D * x->v->Dv, head = (int64_t)x->b * x->size[RSIZE_H] + x->h;
    double *s = ARENA_ARRAY(x->a, double, n);
    if (x->state0) memcpy(s, x->state0 + head * n, sizeof *s * (size_t)n);
    return s;
}

// The chunked form of one head, in one call and in two.
static void run_head(Case *x, const char *source, int C, uint32_t *seed, double bound) {
    int S = x->size[RSIZE_S], D = x->v->D, Dv = x->v->Dv, head = x->b * x->size[RSIZE_H] + x->h;
    ExEnv outer = {.sym = case_sym, .load = case_load, .ctx = x};
    double *o = ARENA_ARRAY(x->a, double, (int64_t)S *Dv + 1), *state = begin(x), *twice = begin(x);
    ChunkHead h = head_of(x, o);
    ChunkEval *e = chunk_eval(x->a, x->c, &outer, C);
    chunk_run(e, &h, 0, S, state);
    alike("o", source, o, x->o + (int64_t)head * S * Dv, (int64_t)S * Dv, bound);
    alike("state", source, state, x->state + (int64_t)head * D * Dv, (int64_t)D * Dv, bound);
    int cut = (int)draw(seed, (uint32_t)S + 1);
    chunk_run(e, &h, 0, cut, twice);
    chunk_run(e, &h, cut, S, twice);
    alike("o in two calls", source, o, x->o + (int64_t)head * S * Dv, (int64_t)S * Dv, bound);
    alike("state in two calls", source, twice, state, (int64_t)D * Dv, bound);
}

static void compare(const char *source, const int32_t size[RSIZE_FREE], int C, uint32_t seed,
                    double bound) {
    Case x = {.a = arena_new()};
    compile(&x, source);
    fill(&x, size, seed, draw(&seed, 3) > 0);
    reference(&x);
    for (x.b = 0; x.b < size[RSIZE_B]; x.b++)
        for (x.h = 0; x.h < size[RSIZE_H]; x.h++) run_head(&x, source, C, &seed, bound);
    arena_free(x.a);
}

// ---- tests

START_TEST(the_library) {
    static const char *const names[] = {"linear_attention", "retnet", "mamba2", "gla",
                                        "gated_deltanet",   "kda",    "rwkv6",  "rwkv7"};
    Arena *a = arena_new();
    const char *text, *why = read_file(arena_printf(a, "stdlib/%s.attn", names[_i]), 1 << 20,
                                       (void **)&text, &(size_t){0});
    ck_assert_msg(!why, "%s: %s", names[_i], why);
    int32_t size[] = {1, 2, 2, 1, 2, 70};
    compare(text, size, 32, 7, 1e-6);
    free((void *)text);
    arena_free(a);
}
END_TEST

START_TEST(merged_and_raw) { // what the library's clauses become
    Arena *a = arena_new();
    Case x = {.a = a};
    compile(&x, "recurrence r { dim D = 8; input g: f32[B, H, S]; input beta: f32[B, H, S];\n"
                "query(q) = q * rsqrt(sqnorm(q)); decay(b, h, t) = exp(g[b, h, t]);\n"
                "key(k, b, h, t) = beta[b, h, t] * k; erase(k, b, h, t) = exp(g[b, h, t]) * k;\n"
                "write(k, b, h, t) = -(k * beta[b, h, t]); }");
    ck_assert_int_eq(x.c->nwrites, 1);
    ck_assert(x.c->write[0].elem == ex_symbol(x.c->rec->pool, SYM_K));
    ck_assert(x.c->query.elem == ex_symbol(x.c->rec->pool, SYM_Q));
    ck_assert(x.c->erase.elem == ex_symbol(x.c->rec->pool, SYM_K));
    ck_assert(x.c->erase.decayed && x.c->erase.before && !x.c->query.before);
    ck_assert(ex_is_f32(x.c->erase.number, 1) && !x.c->channel && !x.c->fixed);
    compile(&x, "recurrence r { dim D = 8; input a: f32[S, D]; bonus(b, h) = 2.0;\n"
                "erase(k, b, h, t, d) = a[t, d]; write(k, b, h, t, d) = k * a[t, d]; }");
    ck_assert_int_eq(x.c->nwrites, 2);
    ck_assert(!x.c->decay && x.c->query.before && !x.c->erase.decayed && x.c->fixed);
    arena_free(a);
}
END_TEST

static const char *const queries[] = {"", "query(q) = q * 0.3;",
                                      "query(q, b, h, t) = q * rsqrt(sqnorm(q) + 1e-6);",
                                      "query(q, b, h, t, d) = q + 0.1 * f32(d % 3);"};
static const char *const keys[] = {"",
                                   "key(k, b, h, t) = k * n1[b, h, t];",
                                   "key(k) = max(k, 0);",
                                   "key(k, b, h, t) = n1[b, h, t] * k * rsqrt(sqnorm(k) + 1e-6);",
                                   "key(k, b, h, t, d) = k * n3[h, d];",
                                   "key(k, b, h, t) = n1[b, h, t];"};
static const char *const values[] = {"", "value(v) = tanh(v);",
                                     "value(v, b, h, t) = v * n1[b, h, t];",
                                     "value(v, b, h, t, e) = v / (1 + e) - sqnorm(v) * 0.1;"};
static const char *const decays[] = {"",
                                     "decay(b, h, t) = exp(g1[b, h, t]);",
                                     "decay(b, h, t) = n1[b, h, t];",
                                     "decay(b, h, t) = sigmoid(g1[b, h, t] + 2);",
                                     "decay(b, h, t) = exp(g1[b, h, t]) * n1[b, h, t];",
                                     "decay(b, h, t) = 1 - 0.01 * n1[b, h, t];",
                                     "decay(b, h) = exp2(log2(1 - exp2(-3 - h)));",
                                     "decay(b, h, t) = t % 7 == 0 ? 0 : 0.9;",
                                     "decay(b, h, t) = max(n1[b, h, t], 0.3) / (n1[b, h, t] + 1);",
                                     "decay(b, h, t) = a1[b, h, t] * a1[b, h, t] * 1.2;",
                                     "decay(b, h, t) = n1[b, h, t] < 0.3 ? 0 : exp(g1[b, h, t]);",
                                     "decay(b, h, t) = 1.01;",
                                     "decay(b, h, t, d) = exp(g2[b, h, t, d]);",
                                     "decay(b, h, t, d) = n2[b, h, t, d];",
                                     "decay(b, h, t, d) = exp(g1[b, h, t]) * sqrt(n2[b, h, t, d]);",
                                     "decay(b, h, t, d) = sigmoid(g2[b, h, t, d]);"};
static const char *const erases[] = {
    "",
    "erase(k) = k; write(k) = -k;",
    "erase(k, b, h, t) = k * n1[b, h, t]; write(k, b, h, t) = -k;",
    "erase(k, b, h, t) = exp(g1[b, h, t]) * k; write(k, b, h, t) = -k * n1[b, h, t];",
    "erase(k, b, h, t, d) = exp(g2[b, h, t, d]) * k; write(k, b, h, t) = n1[b, h, t] * -k * "
    "rsqrt(sqnorm(k) + 1e-6);",
    "erase(k, b, h, t, d) = a2[b, h, t, d]; write(k, b, h, t, d) = c[t, d];",
    "erase(k) = max(k, 0); write(k) = -0.5 * max(k, 0);"};
static const char *const bonuses[] = {"", "bonus(b, h, t, d) = n3[h, d];",
                                      "bonus(b, h, t) = n1[b, h, t];"};
static const char *const outputs[] = {"", "output(o) = o * rsqrt(sqnorm(o) / Dv + 1);",
                                      "output(o, b, h, t, e) = o * sigmoid(a4[b, h, t, e]);"};

#define ONE_OF(list) list[draw(seed, sizeof list / sizeof *list)]

static const char *random_source(Arena *a, int D, int Dv, uint32_t *seed) {
    const char *erase = ONE_OF(erases), *bonus = ONE_OF(bonuses);
    return arena_printf(
        a,
        "recurrence r { dim D = %d, Dv = %d; input n1: f32[B, H, S]; input g1: f32[B, H, S];\n"
        "input a1: f32[B, H, S]; input n2: f32[B, H, S, D]; input g2: f32[B, H, S, D]; input n3: "
        "f32[H, D];\n"
        "input a2: f32[B, H, S, D]; input c: f32[S, D]; input a4: f32[B, H, S, Dv];\n"
        "%s\n%s\n%s\n%s\n%s\n%s\n%s }",
        D, Dv, ONE_OF(queries), ONE_OF(keys), ONE_OF(values), ONE_OF(decays), erase, bonus,
        ONE_OF(outputs));
}

START_TEST(random_ones) {
    static const int lengths[] = {0, 1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 100, 129, 300};
    static const int widths[] = {1, 2, 3, 5, 8, 16, 17, 33, 96};
    static const int chunks[] = {1, 16, 32, 64};
    uint32_t start = 1000 + (uint32_t)_i, *seed = &start;
    Arena *a = arena_new();
    int D = widths[draw(seed, 9)], Dv = widths[draw(seed, 8)], H = 1 << draw(seed, 3);
    int S = D > 16 ? lengths[draw(seed, 10)] : lengths[draw(seed, 14)];
    int32_t size[] = {1 + (int)draw(seed, 2), H, H >> draw(seed, 2), H >> draw(seed, 3), H, S};
    for (int i = RSIZE_HQ; i <= RSIZE_HK; i++) size[i] = size[i] ? size[i] : 1;
    compare(random_source(a, D, Dv, seed), size, chunks[draw(seed, 4)], start, 1e-6);
    arena_free(a);
}
END_TEST

// S positions of one head with constant keys, queries and values of 1.
static void hard(const char *source, int S, double bound, void (*change)(Case *x)) {
    Case x = {.a = arena_new()};
    int32_t size[] = {1, 1, 1, 1, 1, S};
    uint32_t seed = 3;
    compile(&x, source);
    fill(&x, size, 5, true);
    if (change) change(&x);
    reference(&x);
    run_head(&x, source, 64, &seed, bound);
    arena_free(x.a);
}

#define INPUTS "recurrence r { dim D = 3, Dv = 2; input x: f32[S]; "

static void zeros(Case *x) { // at the start, at ends of chunks, adjacent
    double *g = (double *)x->inputs[0];
    for (int t = 0; t < x->size[RSIZE_S]; t++) g[t] = 0.9;
    static const int at[] = {0, 63, 64, 65, 100, 101, 127, 191, 192};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) g[at[i]] = 0;
    x->values[90] = INFINITY; // forgotten at 63, 64, 100
    x->values[199] = NAN;
    x->state0[0] = INFINITY;
}

static void everywhere(Case *x) {
    for (int t = 0; t < x->size[RSIZE_S]; t++) ((double *)x->inputs[0])[t] = t % 3 ? 0 : -0.0;
}

static void mixed(Case *x) {
    for (int t = 0; t < x->size[RSIZE_S]; t++)
        ((double *)x->inputs[0])[t] = t % 5 == 0   ? -INFINITY
                                      : t % 5 == 1 ? -87.2
                                      : t % 5 == 2 ? -100
                                                   : -1e-4;
}

START_TEST(hard_decays) {
    hard(INPUTS "decay(b, h, t) = x[t]; }", 200, 1e-6, zeros);
    hard(INPUTS "decay(b, h, t) = x[t]; erase(k) = k; write(k) = -k; }", 200, 1e-6, zeros);
    hard(INPUTS "decay(b, h, t) = x[t]; }", 200, 1e-6, everywhere);
    hard(INPUTS "decay(b, h, t) = exp(x[t]); }", 200, 1e-6, mixed);
    hard(INPUTS "decay(b, h, t, d) = exp(x[t] * (1 + d)); }", 200, 1e-6, mixed);
    hard("recurrence r { dim D = 2, Dv = 1; decay(b, h, t) = exp(-1e-5); }", 1 << 16, 1e-6, NULL);
    hard("recurrence r { dim D = 2, Dv = 1; decay(b, h, t) = 0.99999 + 0 * t; }", 1 << 16, 1e-6,
         NULL);
    hard("recurrence r { dim D = 2, Dv = 1; }", 1 << 16, 1e-9, NULL);
    hard("recurrence r { dim D = 2, Dv = 1; decay(b, h, t) = 1.01; }", 1000, 1e-6, NULL);
    hard("recurrence r { dim D = 2, Dv = 1; decay(b, h, t) = sigmoid(11.5); }", 1 << 14, 1e-6,
         NULL);
}
END_TEST

static void merge_is(ChunkEval *e, const ChunkPart *p, const ChunkPart *want, int D, int Dv,
                     const char *source) {
    (void)e;
    alike("phi", source, p->phi, want->phi, (int64_t)D * D, 1e-6);
    alike("psi", source, p->psi, want->psi, (int64_t)D * Dv, 1e-6);
}

START_TEST(parts_combine) {
    uint32_t start = 77 + (uint32_t)_i, *seed = &start;
    int D = 1 + (int)draw(seed, 9), Dv = 1 + (int)draw(seed, 7), S = (int)draw(seed, 90);
    int32_t size[] = {1, 1, 1, 1, 1, S};
    Case x = {.a = arena_new()};
    const char *source = random_source(x.a, D, Dv, seed);
    compile(&x, source);
    fill(&x, size, start, true);
    reference(&x);
    ExEnv outer = {.sym = case_sym, .load = case_load, .ctx = &x};
    ChunkHead h = head_of(&x, NULL);
    ChunkEval *e = chunk_eval(x.a, x.c, &outer, 16);
    int i = (int)draw(seed, (uint32_t)S + 1), j = i + (int)draw(seed, (uint32_t)(S - i) + 1);
    ChunkPart a = chunk_part(e, &h, 0, i), b = chunk_part(e, &h, i, j), c = chunk_part(e, &h, j, S);
    ChunkPart ab = chunk_merge(e, &a, &b), bc = chunk_merge(e, &b, &c),
              all = chunk_part(e, &h, 0, S);
    ChunkPart left = chunk_merge(e, &ab, &c), right = chunk_merge(e, &a, &bc);
    merge_is(e, &left, &all, D, Dv, source);
    merge_is(e, &right, &left, D, Dv, source);
    double *state = begin(&x);
    chunk_apply(e, &left, state);
    alike("state", source, state, x.state, (int64_t)D * Dv, 1e-6);
    arena_free(x.a);
}
END_TEST

START_TEST(explained) {
    static const char want[] =
        "recurrence r, a step of a head\n"
        "    query = q\n"
        "    key = k * rsqrt(sqnorm(k)) * beta[b, h, t]\n"
        "    value = v\n"
        "    decay = exp(g[b, h, t])\n"
        "    erase = k * rsqrt(sqnorm(k)) * exp(g[b, h, t])\n"
        "    write = -k * rsqrt(sqnorm(k)) * beta[b, h, t]\n"
        "    S' = decay * S + outer(write, dot(erase, S)) + outer(key, value)\n"
        "    o = dot(query, S'), then o * 2.0\n"
        "\n"
        "in a chunk of C positions with the state S0 before it; key and write have the same "
        "elements: they are one write\n"
        "    n_e = rsqrt(sqnorm(k))\n"
        "    n_v = rsqrt(sqnorm(k)) * beta[b, h, t]\n"
        "    n_u = -(rsqrt(sqnorm(k)) * beta[b, h, t])\n"
        "    l = g[b, h, t] * 1.442695\n"
        "    G(p, j) = exp2(sum l)    (of the positions behind j up to p; 0 where an l is below "
        "-126: what it decays is "
        "forgotten)\n"
        "    M = n_e * dot(k, k_j) * G(t, j)    (j < t)\n"
        "    u = n_e * dot(k, S0) * G(t, 0) + sum M * x_j\n"
        "    x = n_v * v + n_u * u\n"
        "    A = dot(q, k_j) * G(t, j)    (j <= t)\n"
        "    o = dot(q, S0) * G(t, 0) + sum A * x_j\n"
        "    S1 = G(C, 0) * S0 + sum G(C, j) * outer(k_j, x_j)\n"
        "\n"
        "combining two parts a, b of the positions, in any grouping: a part makes Phi S + Psi of "
        "S\n"
        "    Phi = Phi_b * Phi_a\n"
        "    Psi = Phi_b * Psi_a + Psi_b\n"
        "    Psi is the part's state from 0; Phi a matrix: the state of the same recurrence with "
        "values 0, from the "
        "identity\n"
        "    a part without a position is the identity: Phi 1, Psi 0\n";
    Case x = {.a = arena_new()};
    Text t;
    compile(&x, "recurrence r { dim D = 8; input g: f32[B, H, S]; input beta: f32[B, H, S];\n"
                "key(k, b, h, t) = k * rsqrt(sqnorm(k)) * beta[b, h, t]; decay(b, h, t) = exp(g[b, "
                "h, t]);\n"
                "erase(k, b, h, t) = k * rsqrt(sqnorm(k)) * exp(g[b, h, t]);\n"
                "write(k, b, h, t) = -k * rsqrt(sqnorm(k)) * beta[b, h, t]; output(o) = o * 2; }");
    text_init(&t, x.a);
    explain_print(&t, pass_explain_chunk(x.rec, x.c), &(ExplainForm){.form = EX_TEXT});
    ck_assert_msg(!strncmp(t.s, want, sizeof want - 1), "%s\nis not\n%s", t.s, want);
    arena_free(x.a);
}
END_TEST

Suite *derive_chunk_suite(void);
Suite *derive_chunk_suite(void) {
    Suite *s = suite_create("derive chunk");
    TCase *c = tcase_create("chunk");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, the_library, 0, 8);
    tcase_add_test(c, merged_and_raw);
    tcase_add_test(c, explained);
    tcase_add_loop_test(c, random_ones, 0, 60);
    tcase_add_test(c, hard_decays);
    tcase_add_loop_test(c, parts_combine, 0, 30);
    suite_add_tcase(s, c);
    return s;
}
