// decide.c: what decides is exact.
//
// In: a row program as the frontend gives it, nothing simplified. Out: the same program, where every
// f32 operation of a number that decides stands as `rounded(..)`: computed as written, one operation
// at a time, wherever that number stands.
//
//     s = dot * 0.3;  s * 0.7 >= 1.5 ? s : 0   ->  s = rounded(dot * 0.3);  rounded(s * 0.7) >= 1.5 ? s : 0
//     floor(f32(j) / 41.0)                     ->  floor(rounded(f32(j) / 41.0))
//     x % y                                    ->  rounded(x - rounded(y * floor(rounded(x / y))))
//     s = dot * 0.3;  sqrt(s - rowmin(s))      ->  s = rounded(dot * 0.3);  sqrt(rounded(s - rowmin(s)))
//     exp(s - rowmax(s)) / l                   ->  as it was: it flows smoothly into the weight
//
// A number decides where it is compared, where floor, i32(), bool() or % is taken of it, and where a function
// that is not smooth is taken of a score and its own extremum together. So does whatever it is made of, its
// row's score and extrema too; but not what a sum of the row adds, which has no order. (Whether a score is -inf
// is a decision too: where finite numbers may add up to -inf in one order and not in another, the whole score decides.)
// A number that decides is exact wherever it stands, in conditions and in what they choose. One that holds a
// reduction is so in its own formula only: elsewhere it may still be an element of a streaming form.
//
// An extremum that meets its own elements outside of a decision is one of them to the last bit, too:
// what it reduces is simplified once and *frozen*, each sum a number of its own, so that every sweep
// and tile makes the same number.
//
//     dot * 0.125 + bias[j],  exp(s - rowmax(s))   ->  s = rounded(fma(dot, 0.125, bias[j]))
//
// A quotient stays approximate, but for one of numbers near f32's largest: a second rounding of it, in the backward, would be far away.
// Likewise a product that may be f32's largest number: a bit more is infinite.
//
//     s / rowmax(abs(s)) * -3.4028235e38       ->  rounded(rounded(s / rowmax(abs(s))) * -3.4028235e38)
//
// A sum of scores that meets its own elements in a difference (s less its mean) does the same to what it adds
// up: with one key the difference is 0.
//
//     dot * 0.125,  s - rowsum(s) / n          ->  s = rounded(dot * 0.125)
//
// Harmless, and left alone, is what a rounding leaves in an exponent where scores are tame (tame.h) and the
// power is only added and multiplied.
#include "passes/derive/decide.h"

#include "passes/derive/limits.h"
#include "passes/derive/magnitude.h"
#include "passes/derive/tame.h"
#include "passes/simplify/simplify.h"

#include <math.h>

enum { MOST_MET = 64 }; // told apart; the last stands for all beyond

typedef uint64_t Reduces; // extrema, and sums of scores

typedef struct Meeting {
    bool elem, reduces; // depends on the element; on reductions
    bool score;         // is as large as scores are
    Reduces in;         // extrema that it depends on
    Reduces sums;       // sums of scores that it is as large as
    Reduces linear;     // those that met an element in sums, products and clamps
    Reduces otherwise;  // ... in anything else
    Reduces power;      // linear ones in an exponent
} Meeting;

typedef struct Decide {
    const RowProgram *row;
    RowProgram *out;
    Arena *scratch;
    ExMemo known;  // Meeting * by expression
    ExMemo exact;  // what decides, in every formula
    ExMemo here;   // ... in the current formula
    ExMemo frozen; // what is reduced and meets its reduction
    Reduces met;
    bool score, score_frozen; // it decides; a reduction of it meets its elements
    bool changed;             // what decides has grown
} Decide;

static Reduces bit_of(int reduction) {
    return (Reduces)1 << (reduction < MOST_MET ? reduction : MOST_MET - 1);
}

// ---- where reductions meet their elements

static bool is_linear(const Ex *e) {
    switch ((int)e->op) {
    case EX_ADD:
    case EX_SUB:
    case EX_MUL:
    case EX_DIV:
    case EX_NEG:
    case EX_FMA:
    case EX_MIN:
    case EX_MAX:
    case EX_SELECT:
    case EX_ROUNDED: return true;
    default: return false;
    }
}

// Whether a small relative error of an argument is one of the result.
static bool keeps_error(const Ex *e, int argument) {
    if (e->op == EX_DIV || e->op == EX_SELECT) return (argument == 0) == (e->op == EX_DIV);
    return is_linear(e) || e->op == EX_ABS;
}

// Whether a small error of an argument near 0 is a large one, or makes a NaN.
static bool is_steep(const Ex *e, int argument) {
    switch ((int)e->op) {
    case EX_SQRT:
    case EX_RSQRT:
    case EX_RCP:
    case EX_LOG:
    case EX_LOG2:
    case EX_POW: return argument == 0;
    case EX_DIV: return argument == 1;
    default: return false;
    }
}

static const Meeting *meeting(const Decide *d, const Ex *e) { return ex_memo_get(&d->known, e); }

static Meeting of_symbol(const Decide *d, const Ex *e) {
    if (e->sym == SYM_S || e->sym == SYM_KV_IDX)
        return (Meeting){.elem = true, .score = e->sym == SYM_S};
    if (e->sym != SYM_R) return (Meeting){0};
    const RowReduce *r = &d->row->reduces.data[e->index];
    if (r->op != EX_ROWSUM) return (Meeting){.reduces = true, .in = bit_of(e->index)};
    return (Meeting){.reduces = true, .sums = meeting(d, r->f)->score ? bit_of(e->index) : 0};
}

// Sums that meet a score in a difference.
static Reduces subtracted(const Decide *d, const Ex *e) {
    if (e->op != EX_ADD && e->op != EX_SUB) return 0;
    const Meeting *a = meeting(d, e->args[0]), *b = meeting(d, e->args[1]);
    return (a->score ? b->sums : 0) | (b->score ? a->sums : 0);
}

static Meeting of_node(Decide *d, const Ex *e) {
    Meeting m = {0};
    if (e->op == EX_SYM) return of_symbol(d, e);
    for (int k = 0; k < e->nargs; k++) {
        const Meeting *a = meeting(d, e->args[k]);
        m.elem |= a->elem;
        m.reduces |= a->reduces;
        m.in |= a->in;
        m.linear |= a->linear;
        m.otherwise |= a->otherwise;
        m.power |= a->power;
        if (!keeps_error(e, k)) d->met |= a->power;
        if (!keeps_error(e, k)) continue;
        m.score |= a->score;
        m.sums |= a->sums;
    }
    m.linear |= subtracted(d, e);
    bool power = e->op == EX_EXP || e->op == EX_EXP2,
         scales = e->op == EX_MUL || e->op == EX_DIV || e->op == EX_NEG;
    if (m.elem && !power && !scales) *(is_linear(e) ? &m.linear : &m.otherwise) |= m.in;
    if (power && m.linear && row_tame(d->row, e->args[0])) {
        m.power |= m.linear;
        m.in = m.linear = 0;
    }
    return m;
}

// Meetings in a formula.
static void find_meetings(Decide *d, const Ex *e) {
    const Ex **order;
    int n = ex_order_beyond(d->scratch, &d->known, e, &order);
    for (int i = 0; i < n; i++) {
        Meeting *m = ARENA_NEW(d->scratch, Meeting);
        *m = of_node(d, order[i]);
        ex_memo_put(d->scratch, &d->known, order[i], m);
    }
    const Meeting *m = meeting(d, e);
    d->met |= m->linear | m->otherwise;
}

// ---- what decides

static void demand(Decide *d, const Ex *e, bool everywhere) {
    bool all = everywhere || !meeting(d, e)->reduces;
    if (e->type != EX_F32 || ex_memo_get(&d->exact, e)) return;
    ex_memo_put(d->scratch, all ? &d->exact : &d->here, e, e);
    d->changed |= all;
}

// What a number that decides is made of decides too: everywhere, where it does.
static void demand_parts(Decide *d, const Ex *e) {
    bool everywhere = ex_memo_get(&d->exact, e);
    for (int k = 0; k < e->nargs; k++) demand(d, e->args[k], everywhere);
    if (e->op != EX_SYM || (e->sym != SYM_S && e->sym != SYM_R)) return;
    const RowReduce *r = e->sym == SYM_R ? &d->row->reduces.data[e->index] : NULL;
    d->score |= !r;
    if (r && r->op == EX_ROWSUM) return;
    if (r) d->met |= bit_of(e->index);
    demand(d, r ? r->f : d->row->modified, true);
}

static bool decides(const Decide *d, const Ex *e, int argument) {
    const Ex *a = e->args[argument];
    if (a->type != EX_F32) return false;
    if (e->op == EX_CONV) return e->type != EX_F32;
    if (e->op == EX_FLOOR || e->op == EX_MOD || (e->op >= EX_EQ && e->op <= EX_LE)) return true;
    const Meeting *m = meeting(d, a);
    if (!m->elem && subtracted(d, e) & d->met) return true; // a mean
    return is_steep(e, argument) && m->linear | m->otherwise;
}

// Whether one bit more of a product, which a factor near f32's end scales, is infinite.
static bool ends_f32(const Decide *d, const Ex *e) {
    static const double far = 100, end = 128, bits = 1e-5; // log2
    if (e->type != EX_F32 || (e->op != EX_MUL && e->op != EX_DIV)) return false;
    bool times = e->op == EX_MUL && e->args[0]->op == EX_CONST;
    const Ex *c = e->args[times ? 0 : 1];
    if (c->op != EX_CONST || c->f == 0) return false;
    if (log2(fabs(c->f)) * (e->op == EX_MUL ? 1 : -1) < far) return false;
    return fabs(row_relative(d->row, e) - end) < bits;
}

// From the root down: users before their arguments.
static void find_decisions(Decide *d, const Ex *root) {
    const Ex **order;
    d->here = (ExMemo){0};
    for (int i = ex_order(d->scratch, &root, 1, &order); i-- > 0;) {
        const Ex *e = order[i];
        if (ends_f32(d, e)) demand(d, e, false);
        if (ex_memo_get(&d->exact, e) || ex_memo_get(&d->here, e)) demand_parts(d, e);
        for (int k = 0; k < e->nargs; k++)
            if (decides(d, e, k)) demand(d, e->args[k], false);
    }
}

// ---- the new program

// Operations whose result is one of their arguments, but for its sign, round nothing; nor does floor.
static bool rounds(const Ex *e) {
    if (e->type != EX_F32 || !e->nargs || e->op == EX_LOAD || e->op == EX_CONV) return false;
    return e->op != EX_SELECT && e->op != EX_MIN && e->op != EX_MAX && e->op != EX_NEG &&
           e->op != EX_ABS && e->op != EX_FLOOR && e->op != EX_ROUNDED;
}

static const Ex *rounded(ExPool *p, const Ex *e) {
    return e->op == EX_ROUNDED || e->op == EX_CONST ? e : ex_1(p, EX_ROUNDED, e);
}

static const Ex *rounded_2(ExPool *p, ExOp op, const Ex *a, const Ex *b) {
    return rounded(p, ex_2(p, op, a, b));
}

static const Ex *remainder_of(ExPool *p, const Ex *x, const Ex *y) {
    const Ex *times = ex_1(p, EX_FLOOR, rounded_2(p, EX_DIV, x, y));
    return rounded_2(p, EX_SUB, x, rounded_2(p, EX_MUL, y, times));
}

// A product goes into no fma where the sum over it does not; quotients and functions may stay approximate.
static const Ex *freeze_one(void *ctx, ExPool *p, const Ex *e) {
    (void)ctx;
    if (e->op == EX_ROUNDED && e->args[0]->op == EX_ROUNDED) return e->args[0];
    bool contracts = e->op == EX_ADD || e->op == EX_SUB || e->op == EX_FMA;
    return contracts && e->type == EX_F32 ? rounded(p, e) : e;
}

// As it is simplified here and now, each of its sums a number of its own from then on.
static const Ex *frozen(ExPool *p, const Ex *e) {
    const Ex *f = ex_map(p, ex_simplify(p, e), freeze_one, NULL);
    return f->op == EX_DIV || f->op == EX_RCP ? f : rounded(p, f);
}

static const Ex *rewritten(const Decide *d, const Ex *old, const Ex *e) {
    ExPool *p = d->row->pool;
    if (e->op == EX_MOD && e->type == EX_F32) return remainder_of(p, e->args[0], e->args[1]);
    bool exact = ex_memo_get(&d->exact, old) || ex_memo_get(&d->here, old);
    if (exact && rounds(e)) e = rounded(p, e);
    // no pass takes a scale or a term out of what an extremum reduces
    if (ex_memo_get(&d->frozen, old)) e = rounded(p, exact ? e : frozen(p, e));
    return e;
}

static const Ex *rewrite(Decide *d, const Ex *root) {
    const Ex **order;
    ExMemo done = {0};
    const Ex *value = root;
    find_decisions(d, root);
    int n = ex_order(d->scratch, &root, 1, &order);
    for (int i = 0; i < n; i++) {
        // what is made exact stays: a rounding is not rounded again
        const Ex *x = order[i], *e = ex_renewed(d->row->pool, &done, x);
        if (e->op == EX_ROUNDED && e->args[0]->op == EX_ROUNDED) e = e->args[0];
        value = rewritten(d, x, e);
        ex_memo_put(d->scratch, &done, x, value);
    }
    return value; // root is the last in its order
}

// A quotient may stay approximate where its last bit is little in an exponent.
static const Ex *frozen_score(const RowProgram *row, const Ex *f) {
    bool far = f->op == EX_DIV && row_is_far(row, f->args[0]);
    return far ? rounded(row->pool, f) : f;
}

static void rewrite_all(Decide *d) {
    RowProgram *out = d->out;
    const RowProgram *row = d->row;
    ExPool *p = row->pool;
    out->score = rewrite(d, row->score);
    out->modified = rewrite(d, row->modified);
    if (d->score)
        out->modified = rounded(p, out->modified);
    else if (d->score_frozen)
        out->modified = frozen_score(row, frozen(p, out->modified));
    out->mask = rewrite(d, row->mask);
    out->output = rewrite(d, row->output);
    out->weight = rewrite(d, row->weight);
    for (int k = 0; k < row->reduces.n; k++)
        out->reduces.data[k].f = rewrite(d, row->reduces.data[k].f);
    for (int i = 0; i < row->emits.n; i++)
        out->emits.data[i].value = rewrite(d, row->emits.data[i].value);
}

static void for_all(Decide *d, void (*fn)(Decide *, const Ex *)) {
    const RowProgram *row = d->row;
    fn(d, row->score);
    fn(d, row->modified);
    fn(d, row->mask);
    for (int k = 0; k < row->reduces.n; k++) fn(d, row->reduces.data[k].f);
    fn(d, row->weight);
    fn(d, row->output);
    for (int i = 0; i < row->emits.n; i++) fn(d, row->emits.data[i].value);
}

static void freeze(Decide *d, const Ex *e) {
    d->score_frozen |= ex_uses(e, SYM_S, 0);
    if (e->op != EX_CONST && e->op != EX_SYM) ex_memo_put(d->scratch, &d->frozen, e, e);
}

// The score's side of a difference with a sum of scores: a quotient goes into no fma, and with an extremum the side may stream.
static void freeze_side(Decide *d, const Ex *e) {
    const Meeting *m = meeting(d, e);
    while (e->op == EX_NEG) e = e->args[0];
    d->score_frozen |= ex_uses(e, SYM_S, 0);
    if (m->elem && !m->in && e->op != EX_DIV && e->op != EX_RCP) freeze(d, e);
}

static void freeze_sides(Decide *d, const Ex *root) {
    const Ex **order;
    for (int i = ex_order(d->scratch, &root, 1, &order); i-- > 0;)
        for (int k = 0; subtracted(d, order[i]) & d->met && k < order[i]->nargs; k++)
            freeze_side(d, order[i]->args[k]);
}

// Reductions that meet their elements, smoothly or not: what extrema reduce is one number everywhere.
static void freeze_met(Decide *d) {
    for_all(d, freeze_sides);
    for (int k = 0; k < d->row->reduces.n; k++) {
        RowReduce *r = &d->out->reduces.data[k];
        bool sum = r->op == EX_ROWSUM;
        if (!(d->met & bit_of(k)) || (sum && !meeting(d, r->f)->score)) continue;
        r->exact = true;
        if (!sum) freeze(d, r->f);
    }
}

static RowProgram *copy_of(Arena *a, const RowProgram *row) {
    RowProgram *out = ARENA_NEW(a, RowProgram);
    *out = *row;
    out->reduces.data = ARENA_ARRAY(a, RowReduce, row->reduces.n + 1);
    out->reduces.cap = row->reduces.n + 1;
    for (int k = 0; k < row->reduces.n; k++) out->reduces.data[k] = row->reduces.data[k];
    out->emits.data = ARENA_ARRAY(a, RowEmit, row->emits.n + 1);
    out->emits.cap = row->emits.n + 1;
    for (int i = 0; i < row->emits.n; i++) out->emits.data[i] = row->emits.data[i];
    return out;
}

const RowProgram *row_decide(Arena *a, const RowProgram *row) {
    Decide d = {.row = row, .out = copy_of(a, row), .scratch = arena_new()};
    for_all(&d, find_meetings);
    for (int k = 0; k < row->reduces.n; k++)
        if (row->reduces.data[k].exact) d.met |= bit_of(k); // the backward finds it again
    if (row_overflows(row)) demand(&d, row->modified, true), d.score = true;
    do { // an extremum or the score that decides may have been looked at before
        d.changed = false;
        for_all(&d, find_decisions);
    } while (d.changed);
    freeze_met(&d);
    rewrite_all(&d);
    arena_free(d.scratch);
    return d.out;
}
