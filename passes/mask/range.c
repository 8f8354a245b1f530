// range.c: see range.h.
#include "passes/mask/range.h"

#include "passes/simplify/rules.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

static bool fits(int64_t lo, int64_t hi) { return lo >= INT32_MIN && hi <= INT32_MAX; }

static const Ex *num(ExPool *p, int64_t v) { return ex_i32(p, (int32_t)v); }

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t floor_div(int64_t a, int64_t b) {
    int64_t q = a / b;
    return q * b != a && (a < 0) != (b < 0) ? q - 1 : q;
}

// ---- what varies

// Anything that is bound per element counts: another axis' position, an operand of a map.
static bool varies_itself(const Ex *e) {
    return e->op == EX_SYM &&
           (e->sym == SYM_POS || e->sym == SYM_PARAM || e->sym == SYM_MASK || e->sym == SYM_LET);
}

bool range_varies(RangeCtx *c, const Ex *e) {
    const void *known;
    if (ex_memo_has(&c->varies, e, &known)) return known != NULL;
    Arena *scratch = arena_new();
    const Ex **order;
    bool varies = false;
    int n = ex_order(scratch, &e, 1, &order); // not by recursion: a chain of operators may be long
    for (int i = 0; i < n; i++) {
        varies = varies_itself(order[i]);
        for (int a = 0; a < order[i]->nargs && !varies; a++)
            varies = ex_memo_has(&c->varies, order[i]->args[a], &known) && known;
        ex_memo_put(ex_arena(c->pool), &c->varies, order[i], varies ? order[i] : NULL);
    }
    arena_free(scratch);
    return varies;
}

// ---- arithmetic of ranges

static Range unknown(void) { return (Range){NULL, NULL, INT32_MIN, INT32_MAX}; }

static Range number(ExPool *p, int64_t v) {
    if (!fits(v, v)) return unknown();
    return (Range){num(p, v), num(p, v), v, v};
}

// What may have left i32 may have wrapped: then neither bound holds.
static Range checked(Range r) { return fits(r.nlo, r.nhi) ? r : unknown(); }

static bool any_i32(Range r) { return r.nlo <= INT32_MIN || r.nhi >= INT32_MAX; }

static const Ex *both(RangeCtx *c, ExOp op, const Ex *a, const Ex *b) {
    return a && b ? simp_2(c->pool, op, a, b) : NULL;
}

Range range_add(RangeCtx *c, Range a, Range b) {
    return checked((Range){both(c, EX_ADD, a.lo, b.lo), both(c, EX_ADD, a.hi, b.hi), a.nlo + b.nlo,
                           a.nhi + b.nhi});
}

Range range_neg(RangeCtx *c, Range a) {
    const Ex *lo = a.hi ? simp_1(c->pool, EX_NEG, a.hi) : NULL;
    const Ex *hi = a.lo ? simp_1(c->pool, EX_NEG, a.lo) : NULL;
    return checked((Range){lo, hi, -a.nhi, -a.nlo});
}

void range_assume(RangeCtx *c, const Ex *ok) {
    c->guard = c->guard ? simp_2(c->pool, EX_AND, c->guard, ok) : ok;
}

// r under the guard that it is within +-most.
static Range within(RangeCtx *c, Range r, const Ex *most, int64_t nmost) {
    ExPool *p = c->pool;
    if (!r.lo || !r.hi || c->fixed) return unknown();
    range_assume(c, simp_2(p, EX_AND, simp_2(p, EX_LE, simp_1(p, EX_NEG, most), r.lo),
                           simp_2(p, EX_LE, r.hi, most)));
    return (Range){r.lo, r.hi, max64(r.nlo, -nmost), min64(r.nhi, nmost)};
}

static int64_t magnitude_of(Range r) { return max64(llabs(r.nlo), llabs(r.nhi)); }

// times a number
static Range scaled(RangeCtx *c, Range a, int64_t by) {
    if (by < 0) return scaled(c, range_neg(c, a), -by);
    if (by == 0) return number(c->pool, 0);
    if (by == 1) return a;
    if (!fits(by, by)) return unknown();
    const Ex *f = num(c->pool, by);
    if (!fits(a.nlo * by, a.nhi * by))
        a = within(c, a, num(c->pool, RANGE_PRODUCT / by), RANGE_PRODUCT / by);
    return checked(
        (Range){both(c, EX_MUL, a.lo, f), both(c, EX_MUL, a.hi, f), a.nlo * by, a.nhi * by});
}

static Range extremum(RangeCtx *c, ExOp op, Range a, Range b) {
    bool max = op == EX_MAX;
    Range r = {both(c, op, a.lo, b.lo), both(c, op, a.hi, b.hi),
               max ? max64(a.nlo, b.nlo) : min64(a.nlo, b.nlo),
               max ? max64(a.nhi, b.nhi) : min64(a.nhi, b.nhi)};
    // max(x, 3) is at least 3 whatever x is.
    if (max && !r.lo) r.lo = a.lo ? a.lo : b.lo;
    if (!max && !r.hi) r.hi = a.hi ? a.hi : b.hi;
    return r;
}

static Range absolute(RangeCtx *c, Range a) {
    if (a.nlo >= 0) return a;
    if (a.nlo <= INT32_MIN) return unknown(); // of which it is itself
    Range n = range_neg(c, a), r = extremum(c, EX_MAX, a, n);
    Range zero = number(c->pool, 0);
    r.lo = r.lo ? simp_2(c->pool, EX_MAX, r.lo, zero.lo) : zero.lo;
    r.nlo = max64(r.nlo, 0);
    return r;
}

// By a positive constant; 2^31, which is no i32, is what a shift divides by.
static Range divide(RangeCtx *c, Range a, int64_t by) {
    bool fit = fits(by, by);
    ExOp op = fit ? EX_DIV : EX_SHR;
    const Ex *d = num(c->pool, fit ? by : 31);
    return (Range){both(c, op, a.lo, d), both(c, op, a.hi, d), floor_div(a.nlo, by),
                   floor_div(a.nhi, by)};
}

static Range modulo(RangeCtx *c, Range a, int64_t by) {
    ExPool *p = c->pool;
    Range r = {num(p, 0), num(p, by - 1), 0, by - 1};
    if (!a.lo || !a.hi || !fits(by, by)) return r;
    const Ex *d = num(p, by);
    // Within one period it is a difference.
    const Ex *one = simp_2(p, EX_EQ, simp_2(p, EX_DIV, a.lo, d), simp_2(p, EX_DIV, a.hi, d));
    r.lo = simp_select(p, one, simp_2(p, EX_MOD, a.lo, d), r.lo);
    r.hi = simp_select(p, one, simp_2(p, EX_MOD, a.hi, d), r.hi);
    return r;
}

// By one unknown number, which is assumed to be positive where nothing is known of it: 0 gives 0, a
// negative one gives what is above it.
static Range modulo_of_point(RangeCtx *c, Range a, const Ex *b, Range of) {
    ExPool *p = c->pool;
    if (any_i32(of) && !c->fixed) {
        of.nlo = 1, of.nhi = RANGE_SCALAR;
        range_assume(c, simp_2(p, EX_AND, simp_2(p, EX_LE, num(p, of.nlo), b),
                               simp_2(p, EX_LE, b, num(p, of.nhi))));
    }
    const Ex *lo = simp_2(p, EX_ADD, simp_2(p, EX_MIN, b, num(p, -1)), num(p, 1));
    const Ex *hi = simp_2(p, EX_SUB, simp_2(p, EX_MAX, b, num(p, 1)), num(p, 1));
    Range r = {lo, hi, min64(of.nlo, -1) + 1, max64(of.nhi, 1) - 1};
    if (!a.lo || !a.hi) return r;
    const Ex *one = simp_2(p, EX_EQ, simp_2(p, EX_DIV, a.lo, b), simp_2(p, EX_DIV, a.hi, b));
    r.lo = simp_select(p, one, simp_2(p, EX_MOD, a.lo, b), lo);
    r.hi = simp_select(p, one, simp_2(p, EX_MOD, a.hi, b), hi);
    return r;
}

// By one unknown number: 0 gives 0, a negative one turns the order round.
static Range divide_by_point(RangeCtx *c, Range a, Range b) {
    const Ex *lo = both(c, EX_DIV, a.lo, b.lo), *hi = both(c, EX_DIV, a.hi, b.hi);
    int64_t most = max64(llabs(a.nlo), llabs(a.nhi));
    if (b.nlo >= 0) return checked((Range){lo, hi, min64(a.nlo, 0), max64(a.nhi, 0)});
    return checked((Range){both(c, EX_MIN, lo, hi), both(c, EX_MAX, lo, hi), -most - 1, most + 1});
}

static bool is_point(Range r) { return r.lo && r.lo == r.hi; }

// Of two symbolic numbers whose products cannot wrap, all four.
static Range corners(RangeCtx *c, Range a, Range b) {
    const Ex *x = both(c, EX_MUL, a.lo, b.lo), *y = both(c, EX_MUL, a.hi, b.hi);
    int64_t most = magnitude_of(a) * magnitude_of(b);
    if (a.nlo >= 0 && b.nlo >= 0) return (Range){x, y, a.nlo * b.nlo, most};
    if (!is_point(a) && !is_point(b)) {
        const Ex *z = both(c, EX_MUL, a.lo, b.hi), *w = both(c, EX_MUL, a.hi, b.lo);
        const Ex *lo = both(c, EX_MIN, z, w), *hi = both(c, EX_MAX, z, w);
        return (Range){both(c, EX_MIN, both(c, EX_MIN, x, y), lo),
                       both(c, EX_MAX, both(c, EX_MAX, x, y), hi), -most, most};
    }
    return (Range){both(c, EX_MIN, x, y), both(c, EX_MAX, x, y), -most, most};
}

static Range absolute(RangeCtx *c, Range a);

// b within what a leaves it, so that their product stays small.
static Range beside(RangeCtx *c, Range a, Range b) {
    ExPool *p = c->pool;
    if (!a.lo || !a.hi || c->fixed) return unknown();
    Range size = absolute(c, a);
    const Ex *most = size.hi ? simp_2(p, EX_MAX, size.hi, num(p, 1)) : NULL;
    if (!most) return unknown();
    return within(c, b, simp_2(p, EX_DIV, num(p, RANGE_PRODUCT), most), RANGE_PRODUCT);
}

static Range multiply(RangeCtx *c, Range a, Range b, bool same) {
    if (b.nlo == b.nhi && is_point(b)) return scaled(c, a, b.nlo);
    if (a.nlo == a.nhi && is_point(a)) return scaled(c, b, a.nlo);
    if (same) a = b = absolute(c, a);
    int64_t most = magnitude_of(a) * magnitude_of(b);
    if (fits(-most, most)) return corners(c, a, b);
    b = beside(c, a, b);
    if (!b.lo) return unknown();
    Range r = corners(c, a, b);
    return (Range){r.lo, r.hi, max64(r.nlo, -RANGE_PRODUCT), min64(r.nhi, RANGE_PRODUCT)};
}

// ---- ranges of expressions

void range_init(RangeCtx *c, ExPool *p, int q_axis, int k_axis, const Ex *q0, const Ex *q1,
                const Ex *k0, const Ex *k1) {
    *c = (RangeCtx){.pool = p, .q_axis = q_axis, .k_axis = k_axis};
    // The last of an empty axis is -1.
    c->q = (Range){q0, q1, -1, RANGE_POSITION};
    c->k = (Range){k0, k1, -1, RANGE_POSITION};
}

static Range point_of_symbol(const Ex *e) {
    switch ((int)e->sym) {
    case SYM_SIZE:
        return (Range){e, e, e->index == SIZE_Q_OFFSET ? -RANGE_POSITION : 0, RANGE_POSITION};
    case SYM_B:
    case SYM_H:
    case SYM_STEP:
    case SYM_TILE: return (Range){e, e, 0, RANGE_POSITION};
    default: return (Range){e, e, INT32_MIN, INT32_MAX};
    }
}

// What may be any i32 takes part in the arithmetic of what varies only under the guard that it is not
// huge.
static Range tamed(RangeCtx *c, const Ex *e, Range r) {
    if (!r.lo || !r.hi || c->fixed || !any_i32(r)) return r;
    ExPool *p = c->pool;
    const Ex *most = num(p, RANGE_SCALAR), *least = num(p, -RANGE_SCALAR);
    range_assume(c, simp_2(p, EX_AND, simp_2(p, EX_LE, least, r.lo), simp_2(p, EX_LE, r.hi, most)));
    ex_memo_put(ex_arena(p), &c->tame, e, e);
    return (Range){r.lo, r.hi, -RANGE_SCALAR, RANGE_SCALAR};
}

static bool is_tame(const RangeCtx *c, const Ex *e) {
    const void *known;
    return ex_memo_has(&c->tame, e, &known);
}

static Range range_arg(RangeCtx *c, const Ex *e, int i) {
    return tamed(c, e->args[i], range_of(c, e->args[i]));
}

static bool constant(const Ex *e, int64_t *v) {
    if (e->op != EX_CONST) return false;
    *v = e->i;
    return true;
}

static Range range_divided(RangeCtx *c, const Ex *e) {
    Range a = range_of(c, e->args[0]);
    int64_t by;
    if (constant(e->args[1], &by)) {
        if (by == 0) return number(c->pool, 0);
        if (e->op == EX_DIV && by < 0) return divide(c, range_neg(c, range_arg(c, e, 0)), -by);
        if (e->op == EX_DIV) return divide(c, a, by);
        return by > 0 ? modulo(c, a, by) : unknown();
    }
    Range b = range_of(c, e->args[1]);
    if (!is_point(b)) return unknown();
    return e->op == EX_DIV ? divide_by_point(c, a, b) : modulo_of_point(c, a, b.lo, b);
}

static Range range_bits(RangeCtx *c, const Ex *e) {
    int64_t by;
    if (!constant(e->args[1], &by)) return unknown();
    if (e->op == EX_SHL) return scaled(c, range_arg(c, e, 0), (int64_t)1 << (by & 31));
    Range a = range_of(c, e->args[0]);
    if (e->op == EX_SHR) return divide(c, a, (int64_t)1 << (by & 31));
    if (e->op != EX_BAND) return unknown();
    if (by >= 0 && !(by & (by + 1))) return modulo(c, a, by + 1);
    if (by < 0 && !(~by & (~by + 1))) // all but the last bits
        return (Range){both(c, EX_BAND, a.lo, e->args[1]), both(c, EX_BAND, a.hi, e->args[1]),
                       a.nlo & by, a.nhi & by};
    return unknown();
}

static Range hull(RangeCtx *c, Range a, Range b) {
    return (Range){both(c, EX_MIN, a.lo, b.lo), both(c, EX_MAX, a.hi, b.hi), min64(a.nlo, b.nlo),
                   max64(a.nhi, b.nhi)};
}

static Range range_select(RangeCtx *c, const Ex *e) {
    Range a = range_of(c, e->args[1]), b = range_of(c, e->args[2]);
    if (range_varies(c, e->args[0])) return hull(c, a, b);
    Range r = hull(c, a, b);
    if (a.lo && b.lo) r.lo = simp_select(c->pool, e->args[0], a.lo, b.lo);
    if (a.hi && b.hi) r.hi = simp_select(c->pool, e->args[0], a.hi, b.hi);
    return r;
}

// i32 of an f32 keeps order, and of the ends of i32 it gives these.
static Range range_converted(RangeCtx *c, const Ex *e) {
    if (e->args[0]->type != EX_F32) return unknown();
    FloatRange f = range_of_float(c, e->args[0]);
    if (!f.lo || !isfinite(f.nlo) || !isfinite(f.nhi)) return unknown();
    return (Range){ex_conv(c->pool, EX_I32, f.lo), ex_conv(c->pool, EX_I32, f.hi),
                   (int64_t)fmax(f.nlo, INT32_MIN), (int64_t)fmin(f.nhi, INT32_MAX)};
}

static Range range_varying(RangeCtx *c, const Ex *e) {
    switch ((int)e->op) {
    case EX_SYM:
        if (e->sym == SYM_POS && e->index == c->q_axis) return c->q;
        if (e->sym == SYM_POS && e->index == c->k_axis) return c->k;
        if (e->sym == SYM_LET && e->index < c->nlets) return c->lets[e->index];
        return unknown();
    case EX_ADD: return range_add(c, range_arg(c, e, 0), range_arg(c, e, 1));
    case EX_SUB: return range_add(c, range_arg(c, e, 0), range_neg(c, range_arg(c, e, 1)));
    case EX_NEG: return range_neg(c, range_arg(c, e, 0));
    case EX_MUL:
        return multiply(c, range_arg(c, e, 0), range_arg(c, e, 1), e->args[0] == e->args[1]);
    case EX_MIN:
    case EX_MAX: return extremum(c, e->op, range_of(c, e->args[0]), range_of(c, e->args[1]));
    case EX_ABS: return absolute(c, range_arg(c, e, 0));
    case EX_DIV:
    case EX_MOD: return range_divided(c, e);
    case EX_SHL:
    case EX_SHR:
    case EX_BAND: return range_bits(c, e);
    case EX_SELECT: return range_select(c, e);
    case EX_CONV: return range_converted(c, e);
    default: return unknown();
    }
}

// What does not vary: the expression itself is both bounds.
static Range range_point(RangeCtx *c, const Ex *e) {
    if (e->op == EX_CONST) return number(c->pool, e->i);
    if (e->op == EX_SYM) return point_of_symbol(e);
    c->fixed++;
    Range r = e->op == EX_LOAD || e->op == EX_CONV ? unknown() : range_varying(c, e);
    c->fixed--;
    return (Range){e, e, r.nlo, r.nhi};
}

Range range_of(RangeCtx *c, const Ex *e) {
    assert(e->type == EX_I32);
    const Range *known = ex_memo_get(&c->ranges, e);
    if (known) return *known;
    bool one = !range_varies(c, e);
    if (c->depth >= RANGE_MAX_DEPTH) return one ? (Range){e, e, INT32_MIN, INT32_MAX} : unknown();
    Range *r = ARENA_NEW(ex_arena(c->pool), Range);
    c->depth++;
    *r = one ? range_point(c, e) : range_varying(c, e);
    c->depth--;
    ex_memo_put(ex_arena(c->pool), &c->ranges, e, r);
    return *r;
}

static Range range_term(RangeCtx *c, const Ex *e) { return tamed(c, e, range_of(c, e)); }

Range range_linear(RangeCtx *c, const Linear *l) {
    Range r = number(c->pool, l->c);
    for (int i = 0; i < l->n; i++)
        r = range_add(c, r, scaled(c, range_term(c, l->term[i].e), l->term[i].coef));
    return r;
}

// ---- sums

Linear linear_const(int64_t v) { return (Linear){.ok = true, .c = v}; }

static int find_term(const Linear *l, const Ex *term) {
    for (int i = 0; i < l->n; i++)
        if (l->term[i].e == term) return i;
    return -1;
}

void linear_drop(Linear *l, int i) { l->term[i] = l->term[--l->n]; }

static void add_term(Linear *l, const Ex *e, int64_t coef) {
    int i = find_term(l, e);
    if (i < 0 && l->n == RANGE_MAX_TERMS) l->ok = false;
    if (!l->ok) return;
    if (i < 0) {
        i = l->n++;
        l->term[i].e = e;
        l->term[i].coef = 0;
    }
    l->term[i].coef += coef;
    if (!l->term[i].coef) linear_drop(l, i);
}

Linear linear_sum(Linear a, Linear b, int64_t times) {
    const int64_t most = INT32_MAX;
    a.ok = a.ok && b.ok && llabs(times) <= most;
    if (!a.ok) return a;
    a.c += times * b.c;
    for (int i = 0; i < b.n && a.ok; i++) add_term(&a, b.term[i].e, times * b.term[i].coef);
    for (int i = 0; i < a.n; i++) a.ok = a.ok && llabs(a.term[i].coef) <= most;
    a.ok = a.ok && llabs(a.c) <= most;
    return a;
}

bool linear_equal_terms(const Linear *a, const Linear *b, int64_t sign) {
    if (!a->ok || !b->ok || a->n != b->n) return false;
    for (int i = 0; i < a->n; i++) {
        int j = find_term(b, a->term[i].e);
        if (j < 0 || a->term[i].coef != sign * b->term[j].coef) return false;
    }
    return true;
}

static bool unbounded(Range r) { return r.nlo <= INT32_MIN && r.nhi >= INT32_MAX; }

// What has no bounds is a term all the same: it may cancel, or be clamped.
static Linear linear_term(const Ex *e) {
    Linear l = linear_const(0);
    add_term(&l, e, 1);
    return l;
}

// A multiple that cannot leave i32; one that a guard keeps there is a term.
static Linear linear_multiple(RangeCtx *c, const Ex *e, const Ex *x, int64_t by) {
    Range r = range_of(c, x);
    int64_t most = magnitude_of(r) * llabs(by);
    if (!fits(-most, most)) return linear_term(e);
    return linear_sum(linear_const(0), linear_of(c, x), by);
}

static Linear linear_product(RangeCtx *c, const Ex *e) {
    const Ex *a = e->args[0], *b = e->args[1];
    if (b->op == EX_CONST) return linear_multiple(c, e, a, b->i);
    return a->op == EX_CONST ? linear_multiple(c, e, b, a->i) : linear_term(e);
}

// x & -2^n is 2^n * (x >> n); 0: e is no such thing.
static int low_bits(const Ex *e) {
    if (e->op != EX_BAND || e->args[1]->op != EX_CONST) return 0;
    int64_t low = ~(int64_t)e->args[1]->i;
    for (int n = 1; n <= 24; n++)
        if (low == ((int64_t)1 << n) - 1) return n;
    return 0;
}

static Linear make_linear(RangeCtx *c, const Ex *e) {
    if (e->op == EX_CONST) return linear_const(e->i);
    int bits = low_bits(e);
    if (bits) {
        Linear l = linear_term(simp_2(c->pool, EX_SHR, e->args[0], num(c->pool, bits)));
        return linear_sum(linear_const(0), l, (int64_t)1 << bits);
    }
    bool sum = e->op == EX_ADD || e->op == EX_SUB || e->op == EX_NEG || e->op == EX_MUL;
    if (!sum || unbounded(range_of(c, e))) return linear_term(e); // it may have wrapped
    if (e->op == EX_MUL) return linear_product(c, e);
    if (e->op == EX_NEG) return linear_sum(linear_const(0), linear_of(c, e->args[0]), -1);
    return linear_sum(linear_of(c, e->args[0]), linear_of(c, e->args[1]), e->op == EX_ADD ? 1 : -1);
}

Linear linear_of(RangeCtx *c, const Ex *e) {
    const Linear *known = ex_memo_get(&c->linears, e);
    if (known) return *known;
    if (c->depth >= RANGE_MAX_DEPTH) return (Linear){.ok = false};
    Linear *l = ARENA_NEW(ex_arena(c->pool), Linear);
    c->depth++;
    *l = make_linear(c, e);
    c->depth--;
    ex_memo_put(ex_arena(c->pool), &c->linears, e, l);
    return *l;
}

// ---- signs of sums

// How large a term can be, at most.
static int64_t magnitude(RangeCtx *c, const Ex *e) {
    Range r = range_of(c, e);
    return any_i32(r) && is_tame(c, e) ? RANGE_SCALAR : magnitude_of(r);
}

typedef struct Extent { // of a sum
    int64_t lo, hi;
    int64_t size; // of all terms, however they are added up
    int64_t most; // of the largest
    int largest;  // which one
} Extent;

static int64_t capped(int64_t v) {
    const int64_t most = INT64_MAX / 32;
    return v > most ? most : v < -most ? -most : v;
}

static Extent extent_of(RangeCtx *c, const Linear *l) {
    Extent x = {l->c, l->c, llabs(l->c), -1, -1};
    for (int i = 0; i < l->n; i++) {
        Range r = range_of(c, l->term[i].e);
        int64_t by = l->term[i].coef, size = capped(llabs(by) * magnitude(c, l->term[i].e));
        int64_t lo = by > 0 ? r.nlo : r.nhi, hi = by > 0 ? r.nhi : r.nlo;
        x.lo += any_i32(r) ? -size : capped(by * lo);
        x.hi += any_i32(r) ? size : capped(by * hi);
        x.size += size;
        if (size > x.most) x.most = size, x.largest = i;
    }
    return x;
}

static int64_t gcd(int64_t a, int64_t b) {
    while (b) {
        int64_t r = a % b;
        a = b, b = r;
    }
    return a;
}

Linear linear_reduced(Linear l) {
    int64_t by = 0;
    for (int i = 0; i < l.n; i++) by = gcd(by, llabs(l.term[i].coef));
    if (!l.ok || by <= 1) return l;
    for (int i = 0; i < l.n; i++) l.term[i].coef /= by;
    l.c = -floor_div(-l.c, by);
    return l;
}

static const Ex *linear_expr(RangeCtx *c, const Linear *l) {
    const Ex *e = num(c->pool, l->c);
    for (int i = 0; i < l->n; i++)
        e = simp_2(c->pool, EX_ADD, e,
                   simp_2(c->pool, EX_MUL, l->term[i].e, num(c->pool, l->term[i].coef)));
    return e;
}

Linear linear_divided(RangeCtx *c, Linear l, int64_t by) {
    if (!l.ok || by == 1) return l;
    bool each = l.c % by == 0;
    for (int i = 0; i < l.n; i++) each = each && l.term[i].coef % by == 0;
    l.ok = each || extent_of(c, &l).size <= RANGE_SUM;
    if (!l.ok) return l;
    if (!each) return linear_of(c, simp_2(c->pool, EX_DIV, linear_expr(c, &l), num(c->pool, by)));
    for (int i = 0; i < l.n; i++) l.term[i].coef /= by;
    l.c /= by;
    return l;
}

Linear linear_sign(RangeCtx *c, Linear l) {
    if (!l.ok) return l;
    Extent x = extent_of(c, &l);
    if (x.lo > 0 || x.hi < 0) return linear_const(x.lo > 0 ? 1 : -1);
    if (x.size <= RANGE_SUM) return l;
    const Ex *e = l.term[x.largest].e;
    int64_t coef = l.term[x.largest].coef, by = llabs(coef), rest = x.size - x.most;
    int64_t most = rest / by + 1;
    l.ok = rest <= RANGE_SUM;
    if (!l.ok || ex_uses(e, SYM_POS, c->k_axis)) return l; // the key is what is asked for
    l.ok = rest + by * most <= RANGE_SUM;
    if (!l.ok) return l;
    e = simp_2(c->pool, EX_MIN, e, num(c->pool, most));
    e = simp_2(c->pool, EX_MAX, e, num(c->pool, -most));
    linear_drop(&l, x.largest);
    add_term(&l, e, coef);
    return l;
}
