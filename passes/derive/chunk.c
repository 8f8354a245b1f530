// chunk.c: from a recurrence to its chunked form (ir/chunk.h).
//
// In: a recurrence program. Out: its reads and writes, each an element of a tile times a number of the row.
//
//     key = k * rsqrt(sqnorm(k)) * beta    write = -k * rsqrt(sqnorm(k)) * beta    ->  one write, elem k:
//                                          value: rsqrt(sqnorm(k)) * beta, erased: -rsqrt(sqnorm(k)) * beta
//     erase = k * exp(log_decay), decay = exp(log_decay)                          ->  elem k, decayed
//
// A clause is taken apart into factors. Those without an element or its column make the number, the others
// the element, in an order of their own: equal elements are one node.
#include "passes/derive/chunk.h"

#include "passes/derive/decide.h"
#include "passes/simplify/rules.h"

typedef struct Factor {
    const Ex *e;
    bool under; // a divisor
} Factor;

typedef struct Factors {
    VEC(Factor) all;
    bool minus;
} Factors;

typedef struct Derive {
    Arena *arena;
    ExPool *p;
} Derive;

static bool of_column(const Ex *e) {
    return ex_uses(e, SYM_D_IDX, 0) || ex_uses(e, SYM_E_IDX, 0) || ex_uses(e, SYM_Q, 0) ||
           ex_uses(e, SYM_K, 0) || ex_uses(e, SYM_V, 0);
}

static void take_apart(Derive *d, Factors *f, const Ex *e, bool under, int depth) {
    enum { DEPTH = 100 };
    if (depth < DEPTH && e->op == EX_NEG) {
        f->minus = !f->minus;
        take_apart(d, f, e->args[0], under, depth + 1);
    } else if (depth < DEPTH && (e->op == EX_MUL || e->op == EX_DIV)) {
        take_apart(d, f, e->args[0], under, depth + 1);
        take_apart(d, f, e->args[1], under != (e->op == EX_DIV), depth + 1);
    } else {
        int at = f->all.n;
        Factor new = {e, under};
        VEC_PUSH(d->arena, &f->all, new);
        for (; at && f->all.data[at - 1].e->id > e->id; at--) f->all.data[at] = f->all.data[at - 1];
        f->all.data[at] = new;
    }
}

static Factors factors(Derive *d, const Ex *e) {
    Factors f = {0};
    take_apart(d, &f, e, false, 0);
    return f;
}

// The product of those of the column, or of the others.
static const Ex *product(Derive *d, const Factors *f, bool column) {
    const Ex *e = NULL;
    for (int i = 0; i < f->all.n; i++) {
        Factor x = f->all.data[i];
        if (of_column(x.e) != column) continue;
        if (!e)
            e = x.under ? ex_2(d->p, EX_DIV, ex_f32(d->p, 1), x.e) : x.e;
        else
            e = ex_2(d->p, x.under ? EX_DIV : EX_MUL, e, x.e);
    }
    if (!e) e = ex_f32(d->p, 1);
    return simp_open(d->p, f->minus && !column ? ex_1(d->p, EX_NEG, e) : e);
}

// Whether all factors of `part` are among f's, which lose them then.
static bool divide(Factors *f, const Factors *part) {
    bool gone[256] = {false};
    if (f->all.n > 256 || part->minus) return false;
    for (int i = 0; i < part->all.n; i++) {
        int k = 0;
        Factor x = part->all.data[i];
        while (k < f->all.n &&
               (gone[k] || f->all.data[k].e != x.e || f->all.data[k].under != x.under))
            k++;
        if (k == f->all.n) return false;
        gone[k] = true;
    }
    int n = 0;
    for (int k = 0; k < f->all.n; k++)
        if (!gone[k]) f->all.data[n++] = f->all.data[k];
    f->all.n = n;
    return true;
}

// What decides is computed as written, in every clause.
static RecProgram *decided(Arena *a, const RecProgram *rec) {
    RecProgram *out = ARENA_NEW(a, RecProgram);
    const Ex **to[] = {&out->query, &out->key,   &out->value, &out->decay,
                       &out->erase, &out->write, &out->bonus, &out->output};
    RowProgram formulas = {.arena = a, .pool = rec->pool, .mask = ex_bool(rec->pool, true)};
    formulas.score = formulas.modified = formulas.weight = ex_f32(rec->pool, 0);
    formulas.output = ex_f32(rec->pool, 0);
    *out = *rec;
    for (int i = 0; i < REC_CLAUSES; i++) {
        RowEmit e = {.value = *to[i]};
        if (*to[i]) VEC_PUSH(a, &formulas.emits, e);
    }
    const RowProgram *decided = row_decide(a, &formulas);
    for (int i = 0, n = 0; i < REC_CLAUSES; i++)
        if (*to[i]) *to[i] = decided->emits.data[n++].value;
    return out;
}

static void derive_erase(Derive *d, Chunk *c) {
    const RecProgram *rec = c->rec;
    Factors erase = factors(d, rec->erase), write = factors(d, rec->write);
    Factors decay = factors(d, rec->decay);
    c->erase.before = true;
    c->erase.decayed = c->decay && divide(&erase, &decay);
    c->erase.elem = product(d, &erase, true);
    c->erase.number = product(d, &erase, false);
    const Ex *elem = product(d, &write, true);
    if (elem != c->write[0].elem) c->write[c->nwrites++].elem = elem;
    c->write[c->nwrites - 1].erased = product(d, &write, false);
}

Chunk *pass_chunk(const RecProgram *written) {
    Arena *a = written->arena;
    const RecProgram *rec = decided(a, written);
    Derive d = {a, rec->pool};
    Chunk *c = ARENA_NEW(a, Chunk);
    Factors query = factors(&d, rec->query), key = factors(&d, rec->key),
            value = factors(&d, rec->value);
    const Ex *number =
        simp_open(d.p, ex_2(d.p, EX_MUL, product(&d, &key, false), product(&d, &value, false)));
    *c = (Chunk){
        .rec = rec,
        .query = {product(&d, &query, true), product(&d, &query, false), rec->bonus != NULL, false},
        .nwrites = 1,
        .write = {{.elem = product(&d, &key, true), .value = number}},
        .value = product(&d, &value, true),
        .channel = ex_uses(rec->decay, SYM_D_IDX, 0),
        .fixed = !ex_uses(rec->decay, SYM_T_IDX, 0)};
    if (!ex_is_f32(simp_open(d.p, rec->decay), 1)) c->decay = pass_log2(d.p, rec->decay);
    if (rec->bonus) c->bonus = simp_open(d.p, rec->bonus);
    if (rec->erase) derive_erase(&d, c);
    return c;
}
