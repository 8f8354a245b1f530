// rec_util.h: what the tests of recurrences share: a recurrence with its tensors and the ru_reference's results, and random
// recurrences: any subset of clauses, of which any decay, erase, write and bonus.
#ifndef TESTS_UNIT_REC_UTIL_H
#define TESTS_UNIT_REC_UTIL_H

#include "passes/derive/chunk.h"
#include "tests/unit/ref_util.h"
#include "tests/unit/tile_util.h"

// ---- the library's

static const char *const ru_names[] = {"linear_attention",
                                       "retnet",
                                       "mamba2",
                                       "gla",
                                       "gated_deltanet",
                                       "kda",
                                       "rwkv6",
                                       "rwkv7",
                                       "hgrn2",
                                       "mlstm"};
enum { RU_NAMES = sizeof ru_names / sizeof *ru_names };

static inline const char *ru_library(Arena *a, const char *name) {
    return tu_file(a, arena_printf(a, "stdlib/%s.attn", name));
}

// ---- a recurrence with its tensors

typedef struct RuCase {
    Arena *a;
    Variant *v;
    RecProgram *rec;
    Chunk *c;
    int32_t size[8];
    double *q, *k, *values, *o, *state0, *state;
    const void **inputs;
    int b, h; // of the head that is evaluated
} RuCase;

static inline ExValue ru_sym(void *ctx, const Ex *e) {
    const RuCase *x = ctx;
    switch ((int)e->sym) {
    case SYM_B: return (ExValue){.i = x->b};
    case SYM_H: return (ExValue){.i = x->h};
    case SYM_SIZE: return (ExValue){.i = x->size[e->index]};
    default:
        ck_assert(e->sym == SYM_SCALAR);
        return (ExValue){.f = *(const double *)x->inputs[e->index]};
    }
}

static inline ExValue ru_load(void *ctx, const Ex *e, const int32_t *index) {
    const RuCase *x = ctx;
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

static inline void ru_compile(RuCase *x, const char *text) {
    x->v = ref_compile(x->a, text);
    x->rec = fe_lower_recurrence(x->a, x->v);
    x->c = pass_chunk(x->rec);
}

static inline double *ru_numbers(Arena *a, int64_t n, double scale, uint32_t *seed) {
    double *x = ARENA_ARRAY(a, double, n + 1);
    for (int64_t i = 0; i < n; i++) x[i] = (float)(scale * test_uniform(seed));
    return x;
}

// By its name: n..: from 0 to 1, one in five 0; g..: exponents, some far down or -inf; others around 0.
static inline double ru_drawn(const char *name, uint32_t *seed) {
    static const double far[] = {0, -1e-4, -0.1, -5, -20, -80, -INFINITY};
    double x = test_uniform(seed);
    if (name[0] == 'n') return test_draw(seed, 5) ? fabs(x) : 0;
    if (name[0] == 'g') return test_draw(seed, 4) ? -fabs(x) : far[test_draw(seed, 7)];
    if (!strncmp(name, "log_decay", 9)) return -2 * fabs(x);
    if (!strcmp(name, "beta")) return 2 * fabs(x);
    return !strcmp(name, "A") ? -fabs(x) : strlen(name) == 1 || name[1] == '_' ? 0.2 * x : fabs(x);
}

static inline void ru_fill(RuCase *x, const int32_t size[RSIZE_FREE], uint32_t seed, bool begins) {
    const int32_t *n = memcpy(x->size, size, sizeof *size * RSIZE_FREE);
    int D = x->v->D, Dv = x->v->Dv;
    int64_t rows = (int64_t)n[RSIZE_B] * n[RSIZE_S], heads = (int64_t)n[RSIZE_B] * n[RSIZE_H];
    x->q = ru_numbers(x->a, rows * n[RSIZE_HQ] * D, 1.7 / sqrt(D), &seed);
    x->k = ru_numbers(x->a, rows * n[RSIZE_HK] * D, 1.7 / sqrt(D), &seed);
    x->values = ru_numbers(x->a, rows * n[RSIZE_HV] * Dv, 1, &seed);
    x->state0 = begins ? ru_numbers(x->a, heads * D * Dv, 1, &seed) : NULL;
    x->inputs = ARENA_ARRAY(x->a, const void *, x->v->inputs.n + 1);
    for (int i = 0; i < x->v->inputs.n; i++) {
        const TxInput *in = &x->v->inputs.data[i];
        int64_t count = 1;
        for (int d = 0; d < in->rank; d++)
            count *= in->extent[d].size < 0 ? in->extent[d].value : n[in->extent[d].size];
        double *to = ru_numbers(x->a, count, 0, &seed);
        for (int64_t k = 0; k < count; k++) to[k] = (float)ru_drawn(in->name, &seed);
        x->inputs[i] = to;
    }
}

static inline void ru_reference(RuCase *x) {
    const int32_t *n = x->size;
    int64_t heads = (int64_t)n[RSIZE_B] * n[RSIZE_H];
    x->o = ARENA_ARRAY(x->a, double, heads *n[RSIZE_S] * x->v->Dv + 1);
    x->state = ARENA_ARRAY(x->a, double, heads * x->v->D * x->v->Dv + 1);
    RefRun r = ref_of(x->v, n, x->q, x->k, x->values, x->inputs, x->o);
    r.state0 = x->state0, r.state = x->state;
    ck_assert_ptr_null(ref_check(&r));
    ref_run(&r);
}

// ---- comparing

static inline double ru_largest(const double *x, int64_t n) {
    double most = 1e-30;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(x[i]) && fabs(x[i]) > most) most = fabs(x[i]);
    return most;
}

static inline void ru_alike(const char *what, const char *source, const double *got,
                            const double *want, int64_t n, double bound) {
    double most = ru_largest(want, n);
    for (int64_t i = 0; i < n; i++) {
        bool same = isfinite(want[i]) ? fabs(got[i] - want[i]) <= bound * most : !isfinite(got[i]);
        ck_assert_msg(same, "%s[%lld] is %.12g, not %.12g (ru_largest %g)\n%s", what, (long long)i,
                      got[i], want[i], most, source);
    }
}

// ---- random recurrences

static const char *const ru_queries[] = {"", "query(q) = q * 0.3;",
                                         "query(q, b, h, t) = q * rsqrt(sqnorm(q) + 1e-6);",
                                         "query(q, b, h, t, d) = q + 0.1 * f32(d % 3);"};
static const char *const ru_keys[] = {
    "",
    "key(k, b, h, t) = k * n1[b, h, t];",
    "key(k) = max(k, 0);",
    "key(k, b, h, t) = n1[b, h, t] * k * rsqrt(sqnorm(k) + 1e-6);",
    "key(k, b, h, t, d) = k * n3[h, d];",
    "key(k, b, h, t) = n1[b, h, t];"};
static const char *const ru_values[] = {"", "value(v) = tanh(v);",
                                        "value(v, b, h, t) = v * n1[b, h, t];",
                                        "value(v, b, h, t, e) = v / (1 + e) - sqnorm(v) * 0.1;"};
static const char *const ru_decays[] = {
    "",
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
static const char *const ru_erases[] = {
    "",
    "erase(k) = k; write(k) = -k;",
    "erase(k, b, h, t) = k * n1[b, h, t]; write(k, b, h, t) = -k;",
    "erase(k, b, h, t) = exp(g1[b, h, t]) * k; write(k, b, h, t) = -k * n1[b, h, t];",
    "erase(k, b, h, t, d) = exp(g2[b, h, t, d]) * k; write(k, b, h, t) = n1[b, h, t] * -k * "
    "rsqrt(sqnorm(k) + 1e-6);",
    "erase(k, b, h, t, d) = a2[b, h, t, d]; write(k, b, h, t, d) = c[t, d];",
    "erase(k) = max(k, 0); write(k) = -0.5 * max(k, 0);"};
static const char *const ru_bonuses[] = {"", "bonus(b, h, t, d) = n3[h, d];",
                                         "bonus(b, h, t) = n1[b, h, t];"};
static const char *const ru_outputs[] = {"", "output(o) = o * rsqrt(sqnorm(o) / Dv + 1);",
                                         "output(o, b, h, t, e) = o * sigmoid(a4[b, h, t, e]);"};

#define RU_ONE_OF(list) list[test_draw(seed, sizeof list / sizeof *list)]

static inline const char *ru_random_source(Arena *a, int D, int Dv, uint32_t *seed) {
    const char *erase = RU_ONE_OF(ru_erases), *bonus = RU_ONE_OF(ru_bonuses);
    return arena_printf(
        a,
        "recurrence r { dim D = %d, Dv = %d; input n1: f32[B, H, S]; input g1: f32[B, H, S];\n"
        "input a1: f32[B, H, S]; input n2: f32[B, H, S, D]; input g2: f32[B, H, S, D]; input n3: "
        "f32[H, D];\n"
        "input a2: f32[B, H, S, D]; input c: f32[S, D]; input a4: f32[B, H, S, Dv];\n"
        "%s\n%s\n%s\n%s\n%s\n%s\n%s }",
        D, Dv, RU_ONE_OF(ru_queries), RU_ONE_OF(ru_keys), RU_ONE_OF(ru_values),
        RU_ONE_OF(ru_decays), erase, bonus, RU_ONE_OF(ru_outputs));
}

#endif
