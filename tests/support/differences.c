// differences.c: see differences.h.
#include "tests/support/differences.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    ROWS = 3,
    FEW = 4 // elements of an array: those with the largest gradients
};

typedef struct Row {
    RefRun run; // of this row alone
    const RefGrad *g;
    int64_t row;
    Arena *a;
} Row;

typedef struct Sample { // the row's loss, and the sum of its terms' magnitudes
    double loss, size;
} Sample;

static void term(Sample *s, double x, double d) {
    if (d == 0) return;
    s->loss += x * d;
    s->size += fabs(x * d);
}

static Sample sample(const Row *r) {
    const Variant *v = r->run.variant;
    Sample s = {0, 0};
    ref_run(&r->run);
    for (int64_t i = r->row * v->Dv; i < (r->row + 1) * v->Dv; i++)
        term(&s, r->run.o[i], r->g->d_o[i]);
    for (int m = 0; m < v->emits.n; m++) term(&s, r->run.emits[m][r->row], r->g->demits[m][r->row]);
    return s;
}

// Whether the slopes on both sides, near and far, are one.
static bool settles(const double *slope, double noise) {
    double least = INFINITY, most = -INFINITY;
    for (int i = 0; i < 4; i++) {
        if (!isfinite(slope[i])) return false;
        least = fmin(least, slope[i]);
        most = fmax(most, slope[i]);
    }
    return most - least <= 1e-3 * fmax(fabs(most), fabs(least)) + noise;
}

// The reference's own sum of terms that are so much larger has no digit left.
static bool cancels(double slope, double terms, const Sample *s) {
    return !(ldexp(terms, -50) <= 1e-3 * (fabs(slope) + 1e-3 * s->size));
}

static void compare(const Row *r, const char *name, double *x, int64_t at, double d, double terms,
                    Differences *found) {
    double was = x[at], h = 1e-6 * fmax(1, fabs(was)), slope[4], value[4];
    static const int steps[] = {1, -1, 2, -2};
    Sample s = sample(r);
    for (int i = 0; i < 4; i++) {
        x[at] = was + steps[i] * h;
        value[i] = sample(r).loss;
        slope[i] = (value[i] - s.loss) / (steps[i] * h);
    }
    x[at] = was;
    double noise = 1e-7 * s.size, near = (slope[0] + slope[1]) / 2;
    if (!isfinite(d) || !settles(slope, noise) || cancels(near, terms, &s)) return;
    double off = fabs(near - d) / (fabs(near) + 1e-3 * s.size + 1e-30);
    found->compared++;
    if (off <= found->worst) return;
    found->worst = off;
    snprintf(found->element, sizeof found->element, "d%s[%lld] is %g, by differences %g", name,
             (long long)at, d, near);
}

static void compare_array(const Row *r, const char *name, const double *array, const double *d,
                          const double *terms, int64_t n, Differences *found) {
    int64_t seen[FEW];
    double *x = (double *)array; // put back as it was
    for (int k = 0; k < FEW && k < n; k++) {
        int64_t best = -1;
        for (int64_t i = 0; i < n; i++) {
            bool had = false;
            for (int j = 0; j < k; j++) had |= seen[j] == i;
            if (!had && (best < 0 || fabs(d[i]) > fabs(d[best]))) best = i;
        }
        seen[k] = best;
        compare(r, name, x, best, d[best], terms[best], found);
    }
}

static int64_t elements(const RefRun *r, const TxInput *in) {
    int64_t n = 1;
    for (int d = 0; d < in->rank; d++)
        n *= in->extent[d].size < 0 ? in->extent[d].value : r->sizes[in->extent[d].size];
    return n;
}

static double *drawn(Arena *a, int64_t n, uint32_t *state) {
    double *x = ARENA_ARRAY(a, double, n + 1);
    for (int64_t i = 0; i < n; i++) {
        *state = *state * 1664525u + 1013904223u;
        x[i] = (double)(*state >> 8) / (1 << 23) - 1;
    }
    return x;
}

// Stairs as fine as the steps look like slopes; and a remainder is the reference's as f32 gives it.
static bool has_stairs(const Row *r) {
    const Variant *v = r->run.variant;
    const Tx **roots = ARENA_ARRAY(r->a, const Tx *, CLAUSE_COUNT + v->emits.n);
    memcpy(roots, v->clause, sizeof v->clause);
    for (int m = 0; m < v->emits.n; m++) roots[CLAUSE_COUNT + m] = v->emits.data[m].value;
    TxNodes nodes = tx_nodes(r->a, roots, CLAUSE_COUNT + v->emits.n);
    for (int i = 0; i < nodes.n; i++) {
        const Tx *t = nodes.data[i];
        bool stairs = t->op == EX_MOD || t->op == EX_FLOOR || t->op == EX_CONV;
        if (stairs && !t->known && t->args[0]->type == TX_F32) return true;
    }
    return false;
}

// What a row without a key emits has no gradient, by definition; and a step beside a score that is far away is lost.
static bool shows_steps(const Row *r) {
    enum { FAR = 40 }; // 2^40
    int64_t pairs = 0, Sk = r->run.sizes[SIZE_SK], all = (r->row + 1) * Sk;
    RefRun run = r->run;
    run.pairs = &pairs;
    run.scores = ARENA_ARRAY(r->a, double, all + 1);
    ref_run(&run);
    for (int64_t i = r->row * Sk; i < all; i++)
        if (isfinite(run.scores[i]) && fabs(run.scores[i]) > ldexp(1, FAR)) return false;
    return pairs > 0;
}

// The reference's gradients of one row, compared.
static void of_row(Row *r, RefGrad *own, RefGrad *terms, Differences *found) {
    const Variant *v = r->run.variant;
    const int32_t *n = r->run.sizes;
    int64_t rows = (int64_t)n[SIZE_B] * n[SIZE_HQ] * n[SIZE_SQ];
    int64_t keys = (int64_t)n[SIZE_B] * n[SIZE_HKV] * n[SIZE_SK];
    int64_t apart = 0;
    own->apart = &apart;
    ref_grad(own);
    own->apart = NULL;
    if (apart) return; // differences would be those of other sides
    ref_grad(terms);
    compare_array(r, "q", r->run.q, own->dq, terms->dq, rows * v->D, found);
    compare_array(r, "k", r->run.k, own->dk, terms->dk, keys * v->D, found);
    if (!v->v_in_k) compare_array(r, "v", r->run.v, own->dv, terms->dv, keys * v->Dv, found);
    for (int i = 0; i < v->inputs.n; i++)
        if (own->dinputs[i])
            compare_array(r, v->inputs.data[i].name, r->run.inputs[i], own->dinputs[i],
                          terms->dinputs[i], elements(&r->run, &v->inputs.data[i]), found);
}

static RefGrad gradients(const Row *r, int64_t rows, RefKind kind) {
    const Variant *v = r->run.variant;
    Arena *a = r->a;
    const int32_t *n = r->run.sizes;
    int64_t keys = (int64_t)n[SIZE_B] * n[SIZE_HKV] * n[SIZE_SK];
    uint32_t state = 99;
    const double **demits = ARENA_ARRAY(a, const double *, v->emits.n + 1);
    double **dinputs = ARENA_ARRAY(a, double *, v->inputs.n + 1);
    for (int m = 0; m < v->emits.n; m++) demits[m] = drawn(a, rows, &state);
    for (int i = 0; i < v->inputs.n; i++)
        if (dtype_reads(v->inputs.data[i].dtype) == EX_F32)
            dinputs[i] = ARENA_ARRAY(a, double, elements(&r->run, &v->inputs.data[i]));
    return (RefGrad){.run = &r->run,
                     .d_o = drawn(a, rows * v->Dv, &state),
                     .demits = demits,
                     .dq = ARENA_ARRAY(a, double, rows * v->D),
                     .dk = ARENA_ARRAY(a, double, keys * v->D),
                     .dv = ARENA_ARRAY(a, double, keys * v->Dv),
                     .dinputs = dinputs,
                     .kind = kind};
}

Differences differences(const Variant *v, const Binding *b) {
    Arena *a = arena_new();
    const int32_t *n = b->size;
    int64_t rows = (int64_t)n[SIZE_B] * n[SIZE_HQ] * n[SIZE_SQ];
    unsigned char *only = ARENA_ARRAY(a, unsigned char, rows + 1);
    double **emits = ARENA_ARRAY(a, double *, v->emits.n + 1);
    void **in = oracle_arguments(b);
    Differences found = {0};
    for (int m = 0; m < v->emits.n; m++) emits[m] = ARENA_ARRAY(a, double, rows + 1);
    Row r = {.a = a,
             .run = {.variant = v,
                     .sizes = n,
                     .q = in[0],
                     .k = in[1],
                     .v = in[2],
                     .inputs = (const void *const *)in + sig_operands(b->sig),
                     .o = ARENA_ARRAY(a, double, rows * v->Dv + 1),
                     .emits = emits,
                     .rows = only}};
    RefGrad own = gradients(&r, rows, REF_FLOAT64), terms = gradients(&r, rows, REF_SIZES);
    r.g = &own;
    for (r.row = 0; r.row < rows && !has_stairs(&r); r.row += 1 + rows / ROWS) {
        only[r.row] = 1;
        if (shows_steps(&r)) of_row(&r, &own, &terms, &found);
        only[r.row] = 0;
    }
    oracle_free_arguments(in, b);
    arena_free(a);
    return found;
}
