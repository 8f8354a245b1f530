// reference_recur.c: recurrences as language.md writes them, step by step in float64: see
// reference_walk.h.
#include "frontend/reference_batch.h"
#include "frontend/reference_walk.h"

#include <float.h>
#include <math.h>
#include <string.h>

RefRecurrence ref_recurrence(Arena *a, const RefRun *r) {
    const int32_t *n = r->sizes;
    const Variant *v = r->variant;
    RefRecurrence t = {.run = r,
                       .B = r->sequence ? 1 : n[RSIZE_B],
                       .first = r->sequence ? r->sequence->b : 0,
                       .H = n[RSIZE_H],
                       .Hq = n[RSIZE_HQ],
                       .Hk = n[RSIZE_HK],
                       .Hv = n[RSIZE_HV],
                       .S = n[RSIZE_S],
                       .D = v->D,
                       .Dv = v->Dv};
    for (int i = 0; i < CLAUSE_COUNT; i++)
        if (v->clause[i]) t.clause[i] = ref_program(a, &v->clause[i], 1, 0, 0, r->kinks);
    double **keys[] = {&t.query, &t.key, &t.decay, &t.erase, &t.write, &t.bonus};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) *keys[i] = ARENA_ARRAY(a, double, t.D);
    t.value = ARENA_ARRAY(a, double, t.Dv);
    t.erased = ARENA_ARRAY(a, double, t.Dv);
    t.out = ARENA_ARRAY(a, double, t.Dv);
    return t;
}

size_t ref_place_at(const RefRecurrence *t, const RefEnv *e, int32_t heads, int width) {
    int64_t head = (int64_t)e->h * heads / t->H;
    return (((size_t)(e->b - t->first) * (size_t)heads + (size_t)head) * (size_t)t->S +
            (size_t)e->t) *
           (size_t)width;
}

// Evaluates the clauses of a step.
static void step_values(const RefRecurrence *t, RefEnv *e) {
    const double *q = t->run->q + ref_place_at(t, e, t->Hq, t->D);
    const double *k = t->run->k + ref_place_at(t, e, t->Hk, t->D);
    const double *v = t->run->v + ref_place_at(t, e, t->Hv, t->Dv);
    e->sqq = tx_number(ref_inner(q, q, t->D));
    e->sqk = tx_number(ref_inner(k, k, t->D));
    e->sqv = tx_number(ref_inner(v, v, t->Dv));
    for (e->d = 0; e->d < t->D; e->d++) {
        e->q = tx_number(q[e->d]);
        e->k = tx_number(k[e->d]);
        t->query[e->d] = ref_value_or(t->clause[CLAUSE_QUERY], e, e->q).f;
        t->key[e->d] = ref_value_or(t->clause[CLAUSE_KEY], e, e->k).f;
        t->decay[e->d] = ref_value_or(t->clause[CLAUSE_DECAY], e, tx_number(1)).f;
        t->erase[e->d] = ref_value_or(t->clause[CLAUSE_ERASE], e, tx_number(0)).f;
        t->write[e->d] = ref_value_or(t->clause[CLAUSE_WRITE], e, tx_number(0)).f;
        t->bonus[e->d] = ref_value_or(t->clause[CLAUSE_BONUS], e, tx_number(0)).f;
    }
    for (e->e = 0; e->e < t->Dv; e->e++) {
        e->v = tx_number(v[e->e]);
        t->value[e->e] = ref_value_or(t->clause[CLAUSE_VALUE], e, e->v).f;
    }
}

// out = query . (S_{t-1} + (bonus * key) (x) value); state becomes S_t; without a bonus out = query
// . S_t.
static void step_state(const RefRecurrence *t, double *state) {
    bool bonus = t->clause[CLAUSE_BONUS] != NULL, delta = t->clause[CLAUSE_WRITE] != NULL;
    for (int e = 0; e < t->Dv; e++) {
        t->erased[e] = t->out[e] = 0;
        for (int d = 0; delta && d < t->D; d++) t->erased[e] += t->erase[d] * state[d * t->Dv + e];
        for (int d = 0; d < t->D; d++) {
            double *s = &state[d * t->Dv + e], before = *s, added = t->key[d] * t->value[e];
            *s =
                t->decay[d] == 0 ? 0 : t->decay[d] * before; // 0 forgets all, even what is infinite
            if (delta) *s += t->write[d] * t->erased[e];
            *s += added;
            t->out[e] += t->query[d] * (bonus ? before + t->bonus[d] * added : *s);
        }
    }
}

void ref_step(const RefRecurrence *t, RefEnv *e, double *state) {
    step_values(t, e);
    step_state(t, state);
    e->sqo = tx_number(ref_inner(t->out, t->out, t->Dv));
}

static bool f32_holds(const double *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!(fabs(x[i]) <= FLT_MAX)) return false;
    return true;
}

// Position t, those behind it, and those that may be of one chunk with it: a kernel computes a chunk as one, and as far as f32 goes.
enum { LARGEST_CHUNK = 64 };
static void leave_open(const RefRecurrence *t, RefEnv e, size_t head, size_t nstate) {
    RefOpen *open = t->run->open;
    e.t -= e.t % LARGEST_CHUNK;
    size_t left = (size_t)(t->S - e.t);
    memset(open->o + ref_place_at(t, &e, t->H, t->Dv), 1, left * (size_t)t->Dv);
    memset(open->state + head * nstate, 1, nstate);
    open->beyond += (int64_t)left;
}

static bool is_negative(const RefRecurrence *t) {
    for (int d = 0; d < t->D; d++)
        if (t->decay[d] < 0) return true;
    return false;
}

void ref_recur(const RefRecurrence *t, double *state, int b, int h) {
    const RefRun *r = t->run;
    size_t nstate = (size_t)t->D * (size_t)t->Dv, head = (size_t)b * (size_t)t->H + (size_t)h;
    memset(state, 0, sizeof *state * nstate);
    if (r->state0) memcpy(state, r->state0 + head * nstate, sizeof *state * nstate);
    RefEnv e = {.run = r, .b = t->first + b, .h = h};
    bool open = false;
    for (e.t = 0; e.t < t->S; e.t++) {
        ref_step(t, &e, state);
        if (r->open) r->open->negative += is_negative(t);
        if (r->open && !open && (open = !f32_holds(state, nstate))) leave_open(t, e, head, nstate);
        for (e.e = 0; r->o && e.e < t->Dv; e.e++) {
            e.o = tx_number(t->out[e.e]);
            r->o[ref_place_at(t, &e, t->H, t->Dv) + (size_t)e.e] =
                ref_value_or(t->clause[CLAUSE_R_OUTPUT], &e, e.o).f;
        }
    }
    if (r->state) memcpy(r->state + head * nstate, state, sizeof *state * nstate);
}
