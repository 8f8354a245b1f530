// solve.c: which keys a tile of queries needs, as an interval: a mask's comparisons solved for the
// key's position.
//
// In: a mask and a range of queries. Out: the hull (the least interval with every key that some
// query sees) and an inner interval (keys that all of the queries see). Sums of positions are
// solved exactly, under floor division by a constant, abs, min and max of what holds the key too;
// anything else gives everything for the hull and nothing for the inner.
//
//     k <= q && q - k < W      hull [q0 - W + 1, q1]       inner [q1 - W + 1, q0]
//     q / c == k / c           hull [q0 / c * c, q1 / c * c + c - 1]
//
// A hull is exact when every key in it is seen by some query. An intersection of exact hulls is, if
// what they ask of the query can be had together: half lines of queries that meet the tile have a
// point of it in common once those that open upwards meet those that open downwards (Helly), which
// is what the sums of their comparisons say.
#include "passes/mask/mask.h"

#include "passes/simplify/rules.h"

enum {
    SOLVE_BUDGET = 4000,
    SOLVE_DEPTH = 300,
    SOLVE_JOINS = 4, // of intervals closed on both sides: each names their bounds several times
    FAR = RANGE_SUM, // beyond every position; bounds are within it
};

typedef struct Solve {
    RangeCtx *c;
    ExPool *p;
    bool inner; // for all queries, not for some
    int budget, depth, joins;
} Solve;

static KeySet solve(Solve *s, const Ex *e, bool want);
static KeySet solve_le(Solve *s, Linear d);

static const Ex *num(Solve *s, int64_t v) { return ex_i32(s->p, (int32_t)v); }

// ---- sets

static KeySet all_keys(void) { return (KeySet){.exact = true}; }

static KeySet no_keys(Solve *s) {
    return (KeySet){.none = true, .exact = true, .lo = num(s, FAR), .hi = num(s, -FAR)};
}

static KeySet unknown_keys(Solve *s) {
    KeySet k = s->inner ? no_keys(s) : all_keys();
    k.exact = false;
    k.natoms = -1;
    return k;
}

// Everything or nothing, as a condition says that does not depend on positions.
static KeySet keys_if(Solve *s, const Ex *cond) {
    if (cond->op == EX_CONST) return cond->i ? all_keys() : no_keys(s);
    KeySet k = all_keys();
    k.lo = simp_select(s->p, cond, num(s, -FAR), num(s, FAR));
    k.hi = simp_select(s->p, cond, num(s, FAR), num(s, -FAR));
    return k;
}

// The extremum of two bounds, where NULL is the weaker / the stronger.
static const Ex *tighter(Solve *s, ExOp op, const Ex *a, const Ex *b) {
    return a && b ? simp_2(s->p, op, a, b) : a ? a : b;
}
static const Ex *looser(Solve *s, ExOp op, const Ex *a, const Ex *b) {
    return a && b ? simp_2(s->p, op, a, b) : NULL;
}

// Whether each comparison of a that opens upwards meets each of b that opens downwards, and the
// reverse.
static bool meet_somewhere(const KeySet *a, const KeySet *b) {
    if (!(a->up || b->up) || !(a->down || b->down)) return true;
    if (a->natoms < 0 || b->natoms < 0) return false;
    for (int i = 0; i < a->natoms; i++)
        for (int j = 0; j < b->natoms; j++) {
            if (a->atom[i].way == b->atom[j].way) continue;
            Linear sum = linear_sum(a->atom[i].d, b->atom[j].d, 1);
            if (!sum.ok || sum.n || sum.c > 0) return false;
        }
    return true;
}

static KeySet intersect(Solve *s, KeySet a, KeySet b) {
    if (a.none || b.none) return no_keys(s);
    KeySet r = {.lo = tighter(s, EX_MAX, a.lo, b.lo), .hi = tighter(s, EX_MIN, a.hi, b.hi)};
    r.exact = a.exact && b.exact && meet_somewhere(&a, &b);
    r.up = a.up || b.up;
    r.down = a.down || b.down;
    r.natoms = a.natoms < 0 || b.natoms < 0 || a.natoms + b.natoms > 4 ? -1 : a.natoms;
    for (int i = 0; i < a.natoms; i++) r.atom[i] = a.atom[i];
    for (int i = 0; i < b.natoms && r.natoms >= 0; i++) r.atom[r.natoms++] = b.atom[i];
    return r;
}

// Bounds of an interval that may be empty, so that it adds nothing to a hull.
static void normalize(Solve *s, KeySet *k) {
    if (!k->lo || !k->hi) return;
    const Ex *some = simp_2(s->p, EX_LE, k->lo, k->hi);
    k->lo = simp_select(s->p, some, k->lo, num(s, FAR));
    k->hi = simp_select(s->p, some, k->hi, num(s, -FAR));
}

static KeySet hull_of(Solve *s, KeySet a, KeySet b) {
    normalize(s, &a);
    normalize(s, &b);
    KeySet r = {
        .lo = looser(s, EX_MIN, a.lo, b.lo), .hi = looser(s, EX_MAX, a.hi, b.hi), .natoms = -1};
    bool joined = (!a.lo && !b.lo) || (!a.hi && !b.hi);
    r.exact = a.exact && b.exact && joined;
    r.up = a.up || b.up;
    r.down = a.down || b.down;
    return r;
}

// Of two intervals the union where they touch, else the longer one.
static KeySet longest(Solve *s, KeySet a, KeySet b) {
    ExPool *p = s->p;
    KeySet r = {.natoms = -1, .up = a.up || b.up, .down = a.down || b.down};
    if ((!a.lo && !b.lo) || (!a.hi && !b.hi)) {
        r.lo = looser(s, EX_MIN, a.lo, b.lo);
        r.hi = looser(s, EX_MAX, a.hi, b.hi);
        return r;
    }
    const Ex *alo = a.lo ? a.lo : num(s, -FAR), *ahi = a.hi ? a.hi : num(s, FAR);
    const Ex *blo = b.lo ? b.lo : num(s, -FAR), *bhi = b.hi ? b.hi : num(s, FAR);
    const Ex *gap = simp_2(p, EX_SUB, simp_2(p, EX_MAX, alo, blo), simp_2(p, EX_MIN, ahi, bhi));
    const Ex *touch = simp_2(p, EX_LE, gap, num(s, 1));
    const Ex *longer = simp_2(p, EX_LE, simp_2(p, EX_SUB, bhi, blo), simp_2(p, EX_SUB, ahi, alo));
    r.lo = simp_select(p, touch, simp_2(p, EX_MIN, alo, blo), simp_select(p, longer, alo, blo));
    r.hi = simp_select(p, touch, simp_2(p, EX_MAX, ahi, bhi), simp_select(p, longer, ahi, bhi));
    return r;
}

static KeySet unite(Solve *s, KeySet a, KeySet b) {
    if (a.none) return b;
    if (b.none) return a;
    bool closed = a.lo && a.hi && b.lo && b.hi;
    if (closed && s->joins++ >= SOLVE_JOINS) return unknown_keys(s);
    return s->inner ? longest(s, a, b) : hull_of(s, a, b);
}

static KeySet choose(Solve *s, const Ex *cond, KeySet a, KeySet b) {
    const Ex *far = num(s, FAR), *near = num(s, -FAR);
    KeySet r = {
        .natoms = -1, .exact = a.exact && b.exact, .up = a.up || b.up, .down = a.down || b.down};
    if (a.lo || b.lo) r.lo = simp_select(s->p, cond, a.lo ? a.lo : near, b.lo ? b.lo : near);
    if (a.hi || b.hi) r.hi = simp_select(s->p, cond, a.hi ? a.hi : far, b.hi ? b.hi : far);
    return r;
}

// ---- how a sum moves with the query: +1, -1, 0 (not at all), 2 (not known)

static int direction(Solve *s, const Ex *e);

static int combined(int a, int b) { return a == 0 ? b : b == 0 || a == b ? a : 2; }

static int linear_direction(Solve *s, const Linear *l) {
    int d = l->ok ? 0 : 2;
    for (int i = 0; i < l->n; i++) {
        int t = direction(s, l->term[i].e);
        d = combined(d, t == 2 || l->term[i].coef > 0 ? t : -t);
    }
    return d;
}

static int direction(Solve *s, const Ex *e) {
    if (!range_varies(s->c, e)) return 0;
    if (e->op == EX_SYM) return e->sym == SYM_POS && e->index == s->c->q_axis ? 1 : 2;
    if (e->op == EX_DIV || e->op == EX_SHR) {
        Linear l = linear_of(s->c, e->args[0]);
        bool keeps = e->op == EX_SHR || range_of(s->c, e->args[1]).nlo >= 0; // order; 0 gives 0
        return keeps && !range_varies(s->c, e->args[1]) ? linear_direction(s, &l) : 2;
    }
    if (e->op != EX_MIN && e->op != EX_MAX) return 2;
    Linear a = linear_of(s->c, e->args[0]), b = linear_of(s->c, e->args[1]);
    return combined(linear_direction(s, &a), linear_direction(s, &b));
}

// ---- one comparison, d <= 0

// Notes what d <= 0 asks of the query, which is in `rest`.
static void ask(Solve *s, KeySet *k, const Linear *d, const Linear *rest) {
    int way = linear_direction(s, rest);
    k->exact = way != 2;
    k->up = way == -1;
    k->down = way == 1;
    k->natoms = way == 2 ? -1 : way == 0 ? 0 : 1;
    k->atom[0].d = *d;
    k->atom[0].way = way;
}

// d = coef * k + rest: k <= floor(-rest / coef), or k >= ceil(rest / -coef); with the rest at its
// least (for some query) or at its most (for all).
static KeySet solve_position(Solve *s, const Linear *d, int64_t coef, const Linear *rest) {
    ExPool *p = s->p;
    Range r = range_linear(s->c, rest);
    const Ex *at = s->inner ? r.hi : r.lo;
    if (!at) return unknown_keys(s);
    KeySet k = all_keys();
    ask(s, &k, d, rest);
    if (coef > 0) k.hi = simp_2(p, EX_DIV, simp_1(p, EX_NEG, at), num(s, coef));
    if (coef < 0) k.lo = simp_2(p, EX_DIV, simp_2(p, EX_ADD, at, num(s, -coef - 1)), num(s, -coef));
    return k;
}

static KeySet solve_queries(Solve *s, const Linear *d) {
    Range r = range_linear(s->c, d);
    const Ex *at = s->inner ? r.hi : r.lo;
    if (!at) return unknown_keys(s);
    KeySet k = keys_if(s, simp_2(s->p, EX_LE, at, num(s, 0)));
    if (!k.none) ask(s, &k, d, d);
    return k;
}

// d with term i put as an expression instead.
static Linear replaced(Solve *s, const Linear *d, int i, const Ex *by, int64_t times) {
    Linear rest = *d, l = linear_of(s->c, by);
    linear_drop(&rest, i);
    return linear_sum(rest, l, times);
}

static KeySet solve_two(Solve *s, Linear a, Linear b, bool both) {
    KeySet x = solve_le(s, a), y = solve_le(s, b);
    return both ? intersect(s, x, y) : unite(s, x, y);
}

// With n = floor(-rest / m): m * (x / by) + rest <= 0 is x <= n * by + by - 1, and
// -m * (x / by) + rest <= 0 is -n * by <= x.
static KeySet solve_quotient(Solve *s, const Linear *d, int i, const Ex *x, int64_t by) {
    int64_t m = d->term[i].coef, sign = m > 0 ? 1 : -1;
    Linear rest = *d;
    linear_drop(&rest, i);
    Linear n = linear_divided(s->c, linear_sum(linear_const(0), rest, -1), m * sign);
    Linear scaled = linear_sum(linear_const(m > 0 ? 1 - by : 0), n, -by);
    return solve_le(s, linear_sum(scaled, linear_of(s->c, x), sign));
}

// A term that holds the key inside something else than a sum.
static KeySet solve_term(Solve *s, const Linear *d, int i) {
    const Ex *e = d->term[i].e;
    int64_t coef = d->term[i].coef;
    switch ((int)e->op) {
    case EX_DIV:
        if (e->args[1]->op != EX_CONST || e->args[1]->i <= 0) return unknown_keys(s);
        return solve_quotient(s, d, i, e->args[0], e->args[1]->i);
    case EX_SHR:
        if (e->args[1]->op != EX_CONST || (e->args[1]->i & 31) > 24) return unknown_keys(s);
        return solve_quotient(s, d, i, e->args[0], (int64_t)1 << (e->args[1]->i & 31));
    case EX_ABS: // |x| <= r: both x and -x are; r <= |x|: one of them is
        return solve_two(s, replaced(s, d, i, e->args[0], coef),
                         replaced(s, d, i, e->args[0], -coef), coef > 0);
    case EX_MIN:
    case EX_MAX:
        return solve_two(s, replaced(s, d, i, e->args[0], coef),
                         replaced(s, d, i, e->args[1], coef), (coef > 0) == (e->op == EX_MAX));
    default: return unknown_keys(s);
    }
}

static KeySet solve_le(Solve *s, Linear d) {
    d = linear_sign(s->c, linear_reduced(d));
    if (!d.ok || s->budget-- <= 0) return unknown_keys(s);
    int holder = -1, holders = 0;
    for (int i = 0; i < d.n; i++)
        if (ex_uses(d.term[i].e, SYM_POS, s->c->k_axis)) holder = i, holders++;
    if (!holders) return solve_queries(s, &d);
    if (holders > 1) return unknown_keys(s);
    if (d.term[holder].e->op != EX_SYM) return solve_term(s, &d, holder);
    Linear rest = d;
    linear_drop(&rest, holder);
    return solve_position(s, &d, d.term[holder].coef, &rest);
}

// ---- masks

static Linear shifted(Linear d, int64_t sign, int64_t by) {
    Linear l = linear_sum(linear_const(by), d, sign);
    return l;
}

static KeySet solve_compared(Solve *s, const Ex *e, bool want) {
    Linear d;
    bool equal, differs;
    if (!mask_atom(s->c, e, want, &d, &equal, &differs)) return unknown_keys(s);
    if (equal) return solve_two(s, d, shifted(d, -1, 0), true);
    if (differs) return solve_two(s, shifted(d, 1, 1), shifted(d, -1, 1), false);
    return solve_le(s, d);
}

static KeySet solve_pair(Solve *s, const Ex *e, bool want) {
    bool both = want == (e->op == EX_AND);
    const Ex *a = e->args[0], *b = e->args[1];
    if (!both && range_varies(s->c, a) != range_varies(s->c, b)) { // "these heads see everything"
        const Ex *cond = range_varies(s->c, a) ? b : a, *rest = cond == a ? b : a;
        return choose(s, want ? cond : simp_1(s->p, EX_NOT, cond), all_keys(),
                      solve(s, rest, want));
    }
    KeySet x = solve(s, a, want), y = solve(s, b, want);
    return both ? intersect(s, x, y) : unite(s, x, y);
}

static KeySet solve_selected(Solve *s, const Ex *e, bool want) {
    KeySet a = solve(s, e->args[1], want), b = solve(s, e->args[2], want);
    if (!range_varies(s->c, e->args[0])) return choose(s, e->args[0], a, b);
    a = intersect(s, a, solve(s, e->args[0], true));
    b = intersect(s, b, solve(s, e->args[0], false));
    return unite(s, a, b);
}

static KeySet solve_varying(Solve *s, const Ex *e, bool want) {
    switch ((int)e->op) {
    case EX_NOT: return solve(s, e->args[0], !want);
    case EX_AND:
    case EX_OR: return solve_pair(s, e, want);
    case EX_SELECT: return solve_selected(s, e, want);
    case EX_EQ:
    case EX_NE:
    case EX_LT:
    case EX_LE: return solve_compared(s, e, want);
    default: return unknown_keys(s);
    }
}

static KeySet solve(Solve *s, const Ex *e, bool want) {
    if (!range_varies(s->c, e)) return keys_if(s, want ? e : simp_1(s->p, EX_NOT, e));
    if (s->budget-- <= 0 || s->depth >= SOLVE_DEPTH) return unknown_keys(s);
    s->depth++;
    KeySet k = solve_varying(s, e, want);
    s->depth--;
    return k;
}

static KeySet solve_mask(RangeCtx *c, const Ex *mask, bool inner) {
    Solve s = {.c = c, .p = c->pool, .inner = inner, .budget = SOLVE_BUDGET};
    return solve(&s, mask, true);
}

KeySet mask_hull(RangeCtx *c, const Ex *mask) { return solve_mask(c, mask, false); }
KeySet mask_inner(RangeCtx *c, const Ex *mask) { return solve_mask(c, mask, true); }
