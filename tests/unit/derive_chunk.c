// The chunked form of recurrences (ir/chunk.h) against the reference's step by step recurrence, in float64: the library's,
// random ones with any subset of clauses, hard decays; runs in two calls; parts of the positions and their combine rule.
#include "passes/derive/explain.h"
#include "rec_util.h"
#include "tests/support/chunk_eval.h"

static const double *of_head(const RuCase *x, const double *all, int heads, int width) {
    int head = x->b * x->size[heads] + x->h * x->size[heads] / x->size[RSIZE_H];
    return all + (int64_t)head * x->size[RSIZE_S] * width;
}

static ChunkHead head_of(const RuCase *x, double *o) {
    return (ChunkHead){of_head(x, x->q, RSIZE_HQ, x->v->D), of_head(x, x->k, RSIZE_HK, x->v->D),
                       of_head(x, x->values, RSIZE_HV, x->v->Dv), o};
}

static double *begin(const RuCase *x) {
    int64_t n = (int64_t)x->v->D * x->v->Dv, head = (int64_t)x->b * x->size[RSIZE_H] + x->h;
    double *s = ARENA_ARRAY(x->a, double, n);
    if (x->state0) memcpy(s, x->state0 + head * n, sizeof *s * (size_t)n);
    return s;
}

// The chunked form of one head, in one call and in two.
static void run_head(RuCase *x, const char *source, int C, uint32_t *seed, double bound) {
    int S = x->size[RSIZE_S], D = x->v->D, Dv = x->v->Dv, head = x->b * x->size[RSIZE_H] + x->h;
    ExEnv outer = {.sym = ru_sym, .load = ru_load, .ctx = x};
    double *o = ARENA_ARRAY(x->a, double, (int64_t)S *Dv + 1), *state = begin(x), *twice = begin(x);
    ChunkHead h = head_of(x, o);
    ChunkEval *e = chunk_eval(x->a, x->c, &outer, C);
    chunk_run(e, &h, 0, S, state);
    ru_alike("o", source, o, x->o + (int64_t)head * S * Dv, (int64_t)S * Dv, bound);
    ru_alike("state", source, state, x->state + (int64_t)head * D * Dv, (int64_t)D * Dv, bound);
    int cut = (int)test_draw(seed, (uint32_t)S + 1);
    chunk_run(e, &h, 0, cut, twice);
    chunk_run(e, &h, cut, S, twice);
    ru_alike("o in two calls", source, o, x->o + (int64_t)head * S * Dv, (int64_t)S * Dv, bound);
    ru_alike("state in two calls", source, twice, state, (int64_t)D * Dv, bound);
}

static void compare(const char *source, const int32_t size[RSIZE_FREE], int C, uint32_t seed,
                    double bound) {
    RuCase x = {.a = arena_new()};
    ru_compile(&x, source);
    ru_fill(&x, size, seed, test_draw(&seed, 3) > 0);
    ru_reference(&x);
    for (x.b = 0; x.b < size[RSIZE_B]; x.b++)
        for (x.h = 0; x.h < size[RSIZE_H]; x.h++) run_head(&x, source, C, &seed, bound);
    arena_free(x.a);
}

// ---- tests

ARENA_TEST_EACH(the_library, 0, RU_NAMES) {
    int32_t size[] = {1, 2, 2, 1, 2, 70};
    compare(ru_library(a, ru_names[_i]), size, 32, 7, 1e-6);
}

ARENA_TEST(merged_and_raw) { // what the library's clauses become
    RuCase x = {.a = a};
    ru_compile(&x, "recurrence r { dim D = 8; input g: f32[B, H, S]; input beta: f32[B, H, S];\n"
                   "query(q) = q * rsqrt(sqnorm(q)); decay(b, h, t) = exp(g[b, h, t]);\n"
                   "key(k, b, h, t) = beta[b, h, t] * k; erase(k, b, h, t) = exp(g[b, h, t]) * k;\n"
                   "write(k, b, h, t) = -(k * beta[b, h, t]); }");
    ck_assert_int_eq(x.c->nwrites, 1);
    ck_assert(x.c->write[0].elem == ex_symbol(x.c->rec->pool, SYM_K));
    ck_assert(x.c->query.elem == ex_symbol(x.c->rec->pool, SYM_Q));
    ck_assert(x.c->erase.elem == ex_symbol(x.c->rec->pool, SYM_K));
    ck_assert(x.c->erase.decayed && x.c->erase.before && !x.c->query.before);
    ck_assert(ex_is_f32(x.c->erase.number, 1) && !x.c->channel && !x.c->fixed);
    ru_compile(&x, "recurrence r { dim D = 8; input a: f32[S, D]; bonus(b, h) = 2.0;\n"
                   "erase(k, b, h, t, d) = a[t, d]; write(k, b, h, t, d) = k * a[t, d]; }");
    ck_assert_int_eq(x.c->nwrites, 2);
    ck_assert(!x.c->decay && x.c->query.before && !x.c->erase.decayed && x.c->fixed);
}

ARENA_TEST_EACH(random_ones, 0, 60) {
    static const int lengths[] = {0, 1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 100, 129, 300};
    static const int widths[] = {1, 2, 3, 5, 8, 16, 17, 33, 96};
    static const int chunks[] = {1, 16, 32, 64};
    uint32_t start = 1000 + (uint32_t)_i, *seed = &start;
    int D = widths[test_draw(seed, 9)], Dv = widths[test_draw(seed, 8)],
        H = 1 << test_draw(seed, 3);
    int S = D > 16 ? lengths[test_draw(seed, 10)] : lengths[test_draw(seed, 14)];
    int32_t size[] = {1 + (int)test_draw(seed, 2), H, H >> test_draw(seed, 2),
                      H >> test_draw(seed, 3),     H, S};
    for (int i = RSIZE_HQ; i <= RSIZE_HK; i++) size[i] = size[i] ? size[i] : 1;
    compare(ru_random_source(a, D, Dv, seed), size, chunks[test_draw(seed, 4)], start, 1e-6);
}

// S positions of one head with constant keys, queries and values of 1.
static void hard(const char *source, int S, double bound, void (*change)(RuCase *x)) {
    RuCase x = {.a = arena_new()};
    int32_t size[] = {1, 1, 1, 1, 1, S};
    uint32_t seed = 3;
    ru_compile(&x, source);
    ru_fill(&x, size, 5, true);
    if (change) change(&x);
    ru_reference(&x);
    run_head(&x, source, 64, &seed, bound);
    arena_free(x.a);
}

#define INPUTS "recurrence r { dim D = 3, Dv = 2; input x: f32[S]; "

static void zeros(RuCase *x) { // at the start, at ends of chunks, adjacent
    double *g = (double *)x->inputs[0];
    for (int t = 0; t < x->size[RSIZE_S]; t++) g[t] = 0.9;
    static const int at[] = {0, 63, 64, 65, 100, 101, 127, 191, 192};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) g[at[i]] = 0;
    x->values[90] = INFINITY; // forgotten at 63, 64, 100
    x->values[199] = NAN;
    x->state0[0] = INFINITY;
}

static void everywhere(RuCase *x) {
    for (int t = 0; t < x->size[RSIZE_S]; t++) ((double *)x->inputs[0])[t] = t % 3 ? 0 : -0.0;
}

static void mixed(RuCase *x) {
    for (int t = 0; t < x->size[RSIZE_S]; t++)
        ((double *)x->inputs[0])[t] = t % 5 == 0   ? -INFINITY
                                      : t % 5 == 1 ? -87.2
                                      : t % 5 == 2 ? -100
                                                   : -1e-4;
}

TEST(hard_decays) {
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

static void merge_is(ChunkEval *e, const ChunkPart *p, const ChunkPart *want, int D, int Dv,
                     const char *source) {
    (void)e;
    ru_alike("phi", source, p->phi, want->phi, (int64_t)D * D, 1e-6);
    ru_alike("psi", source, p->psi, want->psi, (int64_t)D * Dv, 1e-6);
}

TEST_EACH(parts_combine, 0, 30) {
    uint32_t start = 77 + (uint32_t)_i, *seed = &start;
    int D = 1 + (int)test_draw(seed, 9), Dv = 1 + (int)test_draw(seed, 7),
        S = (int)test_draw(seed, 90);
    int32_t size[] = {1, 1, 1, 1, 1, S};
    RuCase x = {.a = arena_new()};
    const char *source = ru_random_source(x.a, D, Dv, seed);
    ru_compile(&x, source);
    ru_fill(&x, size, start, true);
    ru_reference(&x);
    ExEnv outer = {.sym = ru_sym, .load = ru_load, .ctx = &x};
    ChunkHead h = head_of(&x, NULL);
    ChunkEval *e = chunk_eval(x.a, x.c, &outer, 16);
    int i = (int)test_draw(seed, (uint32_t)S + 1),
        j = i + (int)test_draw(seed, (uint32_t)(S - i) + 1);
    ChunkPart a = chunk_part(e, &h, 0, i), b = chunk_part(e, &h, i, j), c = chunk_part(e, &h, j, S);
    ChunkPart ab = chunk_merge(e, &a, &b), bc = chunk_merge(e, &b, &c),
              all = chunk_part(e, &h, 0, S);
    ChunkPart left = chunk_merge(e, &ab, &c), right = chunk_merge(e, &a, &bc);
    merge_is(e, &left, &all, D, Dv, source);
    merge_is(e, &right, &left, D, Dv, source);
    double *state = begin(&x);
    chunk_apply(e, &left, state);
    ru_alike("state", source, state, x.state, (int64_t)D * Dv, 1e-6);
    arena_free(x.a);
}

TEST(explained) {
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
    RuCase x = {.a = arena_new()};
    Text t;
    ru_compile(&x,
               "recurrence r { dim D = 8; input g: f32[B, H, S]; input beta: f32[B, H, S];\n"
               "key(k, b, h, t) = k * rsqrt(sqnorm(k)) * beta[b, h, t]; decay(b, h, t) = exp(g[b, "
               "h, t]);\n"
               "erase(k, b, h, t) = k * rsqrt(sqnorm(k)) * exp(g[b, h, t]);\n"
               "write(k, b, h, t) = -k * rsqrt(sqnorm(k)) * beta[b, h, t]; output(o) = o * 2; }");
    t = text_new(x.a);
    explain_print(&t, pass_explain_chunk(x.rec, x.c), &(ExplainForm){.form = EX_TEXT});
    ck_assert_msg(!strncmp(t.s, want, sizeof want - 1), "%s\nis not\n%s", t.s, want);
    arena_free(x.a);
}
