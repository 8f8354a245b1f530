// fixed_shift.c: streams whose shifts may be fixed: they need not follow their extrema.
//
// In: a streaming form. Out: whether its results are the same for any number in place of its extremum,
// if the shifted sums use that number as well:
//
//     m = rowmax(s);  l = rowsum(exp(s - m));  lse = m + log(l);  w = exp(s - m) / l       yes
//     the same, and emit m                                                                 no: m itself is seen
//     w = exp(s - m) / (l + 1)                                                             no: nor is 1 shifted
//
// Softmax in all its forms is like this (with a sink, with one added, with its log-sum-exp). The test
// computes the results from random states, and from the states that another extremum would have left. Two
// analytic functions that agree at a few random points are equal. So no comparison, rounding or bound may
// depend on what moves, unless its arguments agree themselves, or it is the extremum of the shift (a
// maximum with a sink). A condition that does not move is tried both ways, and numbers that are not made
// of states may be anything.
//
// A weight may then be as large as its type lets it: that it was not too large is asked of a state
// that is the sum of all weights, which are positive. What is made of that sum must stay in range, too:
// some tries have it as large or as small as it may be, in f32.
//
// Out, too: whether 0 is such a number, so that there need be no extremum at all (pass_may_drop_shift).
#include "passes/derive/fixed_shift.h"

#include "ir/expr_ops.h"
#include "passes/derive/large_unit.h"
#include "passes/derive/tame.h"

#include <math.h>

enum { TRIES = 64, MAX_STATES = 16 };

// What a stream gives, over states alone: the shift, its unit, the deferred factor, the output, emits.
enum { SHIFT, UNIT, FACTOR, OUTPUT, EMITS };

typedef struct Node { // of an expression, in the two cases
    ExValue v[2];
    double size[2]; // what an error of it is relative to: what cancels counts as it was
    bool moves;     // with the extremum, or with the sums that are shifted
} Node;

typedef struct Trial {
    const Stream *s;
    const Ex **root, **order; // arguments before their users
    int nroots, n;
    Node *node;    // by place in order
    ExMemo places; // a node's Node
    unsigned seed;
    double scale;                // of what is random
    double state[MAX_STATES][2]; // what states are
    bool shift_known;            // to what it is compared with
    bool round;                  // to f32
    bool failed;
} Trial;

bool pass_moves_shift(const Stream *s, int state) {
    for (int i = 0; i < s->shifts.n; i++)
        if (s->states.data[state].op != EX_ROWSUM && ex_uses(s->shifts.data[i], SYM_STATE, state))
            return true;
    return false;
}

// ---- random numbers

// From 0 to 1, the same for the same question.
static double chance(const Trial *t, unsigned a, unsigned b) {
    uint64_t h = t->seed * UINT64_C(0x9e3779b97f4a7c15) + a * UINT64_C(0xbf58476d1ce4e5b9) +
                 b * UINT64_C(0x94d049bb133111eb) + 1;
    h = (h ^ h >> 31) * UINT64_C(0xd6e8feb86659fd93);
    return (double)((h ^ h >> 29) >> 11) / (double)(UINT64_C(1) << 53);
}

static ExValue any_value(const Trial *t, ExType type, unsigned a, unsigned b) {
    double p = chance(t, a, b);
    if (type == EX_F32) return (ExValue){.f = (2 * p - 1) * t->scale};
    return (ExValue){.i = type == EX_BOOL ? p < 0.5 : (int32_t)(p * 300) - 20};
}

// ---- nodes

static bool alike(const Trial *t, double a, double b, double size) {
    double near = t->round ? 1e-4 : 1e-6; // constants are rounded to f32
    return isfinite(a) && isfinite(b) && isfinite(size) && fabs(a - b) <= near * size;
}

static bool same(const Trial *t, const Node *n) {
    return alike(t, n->v[0].f, n->v[1].f, n->size[0] + n->size[1]);
}

static Node *node_of(const Trial *t, const Ex *e) { return ex_memo_get(&t->places, e); }

static double of(const Trial *t, int root, int k) {
    return t->root[root] ? node_of(t, t->root[root])->v[k].f : 1.0;
}

static bool is_analytic(const Ex *e) {
    switch ((int)e->op) {
    case EX_ADD:
    case EX_SUB:
    case EX_MUL:
    case EX_DIV:
    case EX_NEG:
    case EX_FMA:
    case EX_ROUNDED:
    case EX_EXP:
    case EX_EXP2:
    case EX_LOG:
    case EX_LOG2:
    case EX_SQRT:
    case EX_RSQRT:
    case EX_RCP:
    case EX_POW: return e->type == EX_F32;
    default: return false;
    }
}

// A multiple of the shift, which knows what it is an extremum with.
static bool is_of_shift(const Trial *t, const Ex *e, const Node *n) {
    if (e->op != EX_MAX && e->op != EX_MIN) return false;
    double a = n->v[0].f * of(t, SHIFT, 1), b = n->v[1].f * of(t, SHIFT, 0);
    return !t->shift_known || alike(t, a, b, fabs(a) + fabs(b));
}

static void leaf(Trial *t, const Ex *e, Node *n, unsigned at) {
    n->v[0] = n->v[1] = any_value(t, e->type, 1000 + at, 0);
    if (e->op == EX_CONST)
        n->v[0] = n->v[1] = e->type == EX_F32 ? (ExValue){.f = e->f} : (ExValue){.i = e->i};
    if (e->op != EX_SYM || e->sym != SYM_STATE) return;
    for (int k = 0; k < 2; k++) n->v[k].f = t->state[e->index][k];
    n->moves = pass_moves_shift(t->s, e->index) || t->s->states.data[e->index].shift >= 0;
}

// What a node's arguments are, and whether those that it must not tell apart agree: of a selection its
// condition.
static bool arguments(const Trial *t, const Ex *e, Node *n, ExValue v[2][EX_MAX_RANK]) {
    bool agree = true;
    for (int i = 0; i < e->nargs; i++) {
        const Node *a = node_of(t, e->args[i]);
        n->moves |= a->moves;
        for (int k = 0; k < 2; k++) v[k][i] = a->v[k];
        if (!a->moves || (e->op == EX_SELECT && i > 0)) continue;
        agree &= e->args[i]->type == EX_F32 ? same(t, a) : a->v[0].i == a->v[1].i;
    }
    return agree;
}

static double relative(const Node *a, int k) { return a->size[k] / fabs(a->v[k].f); }

// In the worst case, for operations that keep or enlarge an error.
static double size_of(const Trial *t, const Ex *e, const Node *n, int k) {
    const Node *a[3] = {NULL};
    double size = fabs(n->v[k].f);
    for (int i = 0; i < e->nargs && i < 3; i++) a[i] = node_of(t, e->args[i]);
    switch ((int)e->op) {
    case EX_ADD:
    case EX_SUB: return a[0]->size[k] + a[1]->size[k];
    case EX_MUL: return a[0]->size[k] * a[1]->size[k];
    case EX_FMA: return a[0]->size[k] * a[1]->size[k] + a[2]->size[k];
    case EX_DIV: return size * relative(a[0], k) * relative(a[1], k);
    case EX_NEG:
    case EX_ROUNDED: return a[0]->size[k];
    case EX_EXP:
    case EX_EXP2: return size * (1 + a[0]->size[k]);
    case EX_LOG:
    case EX_LOG2: return size + relative(a[0], k);
    case EX_SQRT:
    case EX_RSQRT:
    case EX_RCP: return size * relative(a[0], k);
    case EX_POW: return size * (1 + fabs(a[1]->v[k].f) * relative(a[0], k));
    case EX_SELECT: return a[a[0]->v[k].i ? 1 : 2]->size[k];
    case EX_MIN:
    case EX_MAX: return fmax(a[0]->size[k], a[1]->size[k]);
    default: return size;
    }
}

static void compute(Trial *t, const Ex *e, unsigned at) {
    Node *n = &t->node[at];
    ExType types[EX_MAX_RANK];
    ExValue v[2][EX_MAX_RANK];
    n->moves = false;
    if (!e->nargs || e->op == EX_LOAD) {
        leaf(t, e, n, at);
        for (int k = 0; k < 2; k++) n->size[k] = fabs(n->v[k].f);
        return;
    }
    bool agree = arguments(t, e, n, v), smooth = is_analytic(e);
    for (int i = 0; i < e->nargs; i++) types[i] = e->args[i]->type;
    for (int k = 0; k < 2; k++) n->v[k] = ex_apply(e->op, e->type, types, v[k], t->round);
    t->failed |= n->moves && !smooth && !agree && !is_of_shift(t, e, n);
    // Of what does not move: a bound or a comparison holds for these numbers alone, and a logarithm
    // may have been of others.
    bool usual = smooth || e->op == EX_SELECT || e->op == EX_CONV;
    bool number = e->type != EX_F32 || isfinite(n->v[0].f);
    if (!n->moves && !(usual && number)) n->v[0] = n->v[1] = any_value(t, e->type, 2000 + at, 1);
    for (int k = 0; k < 2 && e->type == EX_F32; k++) n->size[k] = size_of(t, e, n, k);
}

static void compute_all(Trial *t) {
    t->failed = false;
    for (int i = 0; i < t->n; i++) compute(t, t->order[i], (unsigned)i);
}

// ---- trials

// What sums are multiplied by where the shift is that of the second case.
static double moved_by(Trial *t) {
    t->shift_known = false;
    compute_all(t);
    t->shift_known = true;
    double unit = t->root[UNIT] ? of(t, UNIT, 0) : 1.0;
    return exp2((of(t, SHIFT, 1) - of(t, SHIFT, 0)) * unit);
}

static int extremum_of(const Stream *s) {
    int found = -1;
    for (int i = 0; i < s->states.n; i++)
        if (pass_moves_shift(s, i)) found = found < 0 ? i : s->states.n;
    return found < s->states.n ? found : -1;
}

// The extremum so far away that sums are nearly 2^bits, of either sign; false: no shift follows it there.
static bool grow(Trial *t, int bits) {
    int m = extremum_of(t->s), most = bits < 0 ? -bits : bits;
    double up = (t->s->states.data[m].op == EX_ROWMAX) == (bits < 0) ? 1 : -1, less = 0,
           more = 1000;
    for (int i = 0; i < 24; i++) {
        double away = (less + more) / 2;
        t->state[m][1] = t->state[m][0] + up * away;
        double found = fabs(log2(moved_by(t)));
        if (found > most - 2 && found < most) return true;
        *(found < most ? &less : &more) = away;
    }
    return false;
}

static bool agree(const Trial *t, double moved) {
    const Node *factor = t->root[FACTOR] ? node_of(t, t->root[FACTOR]) : NULL;
    double size = factor ? factor->size[0] + factor->size[1] * moved : 1;
    if (t->failed || !alike(t, of(t, FACTOR, 0), of(t, FACTOR, 1) * moved, size)) return false;
    for (int i = OUTPUT; i < t->nroots; i++)
        if (!same(t, node_of(t, t->root[i]))) return false;
    return true;
}

static bool try_once(Trial *t, int bits) { // 0: sums of any size
    const Stream *s = t->s;
    for (int i = 0; i < s->states.n; i++) {
        bool sum = s->states.data[i].shift >= 0, moves = pass_moves_shift(s, i);
        double x = (2 * chance(t, 1, (unsigned)i) - 1) * t->scale;
        if (sum) x = bits ? 1 + chance(t, 1, (unsigned)i) : exp2(x);
        t->state[i][0] = t->state[i][1] = x;
        if (moves) t->state[i][1] = (2 * chance(t, 2, (unsigned)i) - 1) * t->scale;
    }
    if (bits && !grow(t, bits)) return true;
    double moved = moved_by(t);
    if (!isfinite(moved)) return false;
    for (int i = 0; i < s->states.n; i++)
        if (s->states.data[i].shift >= 0) t->state[i][1] = t->state[i][0] * moved;
    compute_all(t);
    return agree(t, moved);
}

// ---- the stream

static const Ex *without_reductions(const Stream *s, const Ex *e) {
    for (int i = s->finished.n; e && i-- > 0;)
        e = ex_subst(s->row->pool, e, SYM_R, i, s->finished.data[i]);
    return large_left_out(s->row->pool, e);
}

static bool is_invariant(const Stream *s) {
    Arena *scratch = arena_new();
    Trial t = {.s = s, .nroots = EMITS + s->emits.n};
    const Ex **all = ARENA_ARRAY(scratch, const Ex *, t.nroots);
    t.root = ARENA_ARRAY(scratch, const Ex *, t.nroots);
    t.root[SHIFT] = s->shifts.data[s->shift], t.root[UNIT] = s->units.data[s->shift];
    t.root[FACTOR] = s->factor, t.root[OUTPUT] = s->row->output;
    for (int i = 0; i < s->emits.n; i++) t.root[EMITS + i] = s->emits.data[i];
    int n = 0;
    for (int i = 0; i < t.nroots; i++) {
        t.root[i] = without_reductions(s, t.root[i]);
        if (t.root[i]) all[n++] = t.root[i];
    }
    t.n = ex_order(scratch, all, n, &t.order);
    t.node = ARENA_ARRAY(scratch, Node, t.n);
    for (int i = 0; i < t.n; i++) ex_memo_put(scratch, &t.places, t.order[i], &t.node[i]);
    bool yes = true;
    for (unsigned i = 0; i < TRIES && yes; i++) {
        static const double scales[] = {0.3, 3, 30};
        t.seed = i + 1, t.scale = scales[i % 3], t.round = i % 8 == 7;
        yes = try_once(&t, !t.round ? 0 : i % 16 == 7 ? FIXED_SHIFT_BITS : -FIXED_SHIFT_ROOM);
    }
    arena_free(scratch);
    return yes;
}

// x of exp2(x), which may have 0 in place of it: positive, and what the others are shifted like. NULL of what is no power.
static const Ex *exponent_of(const Ex *e) {
    if (e->op == EX_SELECT && ex_is_f32(e->args[1], 0.0f)) return exponent_of(e->args[2]);
    if (e->op == EX_SELECT && ex_is_f32(e->args[2], 0.0f)) return exponent_of(e->args[1]);
    return e->op == EX_EXP2 ? e->args[0] : NULL;
}

static int sum_of_weights(const Stream *s) {
    for (int i = 0; i < s->states.n; i++) {
        const StreamState *st = &s->states.data[i];
        if (st->op == EX_ROWSUM && st->shift == s->shift && st->elem == s->elem) return i;
    }
    return -1;
}

// A row without a key is known by a state that is what it was.
static bool knows_empty(const Stream *s) {
    const Ex *e = s->empty;
    return !e || (e->op == EX_EQ && e->args[0]->op == EX_SYM && e->args[0]->sym == SYM_STATE &&
                  e->args[1]->op == EX_CONST);
}

bool pass_may_fix_shift(const Stream *s, int *sum, int *extremum) {
    if (s->nsweeps != 1 || s->shift < 0 || s->shifts.n != 1 || s->scales.n > 0 ||
        s->states.n > MAX_STATES)
        return false;
    *sum = sum_of_weights(s);
    *extremum = extremum_of(s);
    // what has no key yet has to be infinite, not 0
    const Ex *unit = large_left_out(s->row->pool, s->units.data[s->shift]);
    bool up = !unit || (unit->op == EX_CONST && unit->f > 0);
    return *sum >= 0 && *extremum >= 0 && up && exponent_of(s->elem) && knows_empty(s) &&
           is_invariant(s);
}

// With 2^20 keys and values up to 2^32 a sum of weights up to 2^75 stays below 2^127, and a weight of 2^-75 keeps the
// 8 bits of bf16 of values from 2^-43 on.
enum { SMALL_EXPONENT = 75 };

bool pass_may_drop_shift(const Stream *s) {
    int sum, extremum;
    const Ex *x = exponent_of(s->elem);
    if (!s->row->bf16 || !x || s->shifts.n != 1 || s->states.n != 2 ||
        s->shifts.data[0]->op != EX_NEG ||
        s->shifts.data[0]->args[0]->op != EX_SYM) // max(m, sink) stays what it is
        return false;
    x = ex_subst(s->row->pool, x, SYM_SHIFT, 0, ex_f32(s->row->pool, 0));
    return row_within(s->row, x, SMALL_EXPONENT) && pass_may_fix_shift(s, &sum, &extremum) &&
           s->states.data[extremum].op == EX_ROWMAX;
}
