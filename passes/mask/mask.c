// mask.c: does some pair of a rectangle of positions take part, do all?
//
// In: a mask and a rectangle. Out: two bool expressions over what is one number for the whole
// rectangle. Conservative: `may` is never false wrongly, `must` never true wrongly; exact for
// comparisons of sums of positions (also under abs, min, max, floor division) and for (q - k) % c,
// alone and together with comparisons of that same difference.
//
//     q >= k            may: k0 <= q1            must: k1 <= q0
//     (q - k) % 8 == 0  may: (q1 - k0) / 8 > (q0 - k1 - 1) / 8
//
// There is one question only, `some`: may the expression be true (or false) somewhere; must(e) is
// !some(e is false).
#include "passes/mask/mask.h"

#include "passes/simplify/rules.h"

// Steps and nesting; beyond them the answer is "perhaps". A mask may have 100,000 operations, and
// an equality of bools asks twice.
enum { MASK_BUDGET = 20000, MASK_DEPTH = 500 };

// Within a conjunction a pair satisfies all of it: what the other parts say of a sum of positions
// narrows its range.
typedef struct Narrow {
    Linear sum; // varying terms only
    Range range;
} Narrow;

typedef struct Some {
    RangeCtx *c;
    ExPool *p;
    VEC(Narrow) narrow;
    int budget, depth;
} Some;

static const Ex *some(Some *m, const Ex *e, bool want);

static const Ex *truth(Some *m, bool v) { return ex_bool(m->p, v); }

static const Ex *le(Some *m, const Ex *a, const Ex *b) { return simp_2(m->p, EX_LE, a, b); }

// ---- ranges of sums, narrowed

static void split_varying(RangeCtx *c, const Linear *l, Linear *varying, Linear *rest) {
    *varying = linear_const(0);
    *rest = linear_const(l->c);
    varying->ok = rest->ok = l->ok;
    for (int i = 0; i < l->n; i++) {
        Linear *to = range_varies(c, l->term[i].e) ? varying : rest;
        to->term[to->n++] = l->term[i];
    }
}

static Range meet(Some *m, Range a, Range b) {
    Range r = a;
    if (b.lo) r.lo = a.lo ? simp_2(m->p, EX_MAX, a.lo, b.lo) : b.lo;
    if (b.hi) r.hi = a.hi ? simp_2(m->p, EX_MIN, a.hi, b.hi) : b.hi;
    if (b.lo && b.nlo > r.nlo) r.nlo = b.nlo;
    if (b.hi && b.nhi < r.nhi) r.nhi = b.nhi;
    if (r.nhi < r.nlo) r.nhi = r.nlo;
    return r;
}

static Range narrowed(Some *m, const Linear *l) {
    Linear sum, rest;
    split_varying(m->c, l, &sum, &rest);
    Range r = range_linear(m->c, &sum);
    for (int i = 0; i < m->narrow.n; i++) {
        const Narrow *n = &m->narrow.data[i];
        if (linear_equal_terms(&sum, &n->sum, 1)) r = meet(m, r, n->range);
        if (linear_equal_terms(&sum, &n->sum, -1)) r = meet(m, r, range_neg(m->c, n->range));
    }
    return range_add(m->c, r, range_linear(m->c, &rest));
}

// ---- remainders

typedef struct Remainder { // x % by, by > 0
    const Ex *x, *by;
    int64_t most; // of by
} Remainder;

// By a constant, also as x & (2^n - 1); or by what does not vary, which is assumed to be positive.
static bool is_remainder(Some *m, const Ex *e, Remainder *r) {
    ExPool *p = m->p;
    if (e->nargs != 2 || e->type != EX_I32) return false;
    const Ex *by = e->args[1];
    int64_t c = by->op == EX_CONST ? by->i : 0;
    *r = (Remainder){e->args[0], by, e->op == EX_MOD ? c : c + 1};
    if (e->op == EX_BAND && c > 0 && c < INT32_MAX && !(c & (c + 1))) {
        r->by = ex_i32(p, (int32_t)r->most);
        return true;
    }
    if (e->op != EX_MOD || by->op == EX_CONST) return e->op == EX_MOD && c > 0;
    if (range_varies(m->c, by)) return false;
    const Ex *low = le(m, ex_i32(p, 1), by), *high = le(m, by, ex_i32(p, RANGE_SCALAR));
    range_assume(m->c, simp_2(p, EX_AND, low, high));
    r->most = RANGE_SCALAR;
    return true;
}

// Some x % by lies in [a, b]: a period's stretch [a + t by, b + t by] meets x's range for some t.
static const Ex *some_remainder(Some *m, const Remainder *rem, const Ex *a, const Ex *b) {
    ExPool *p = m->p;
    int64_t by = rem->most;
    a = simp_2(p, EX_MAX, a, ex_i32(p, 0));
    b = simp_2(p, EX_MIN, b, simp_2(p, EX_SUB, rem->by, ex_i32(p, 1)));
    const Ex *stretch = le(m, a, b);
    Linear l = linear_of(m->c, rem->x);
    Range r = l.ok ? narrowed(m, &l) : range_of(m->c, rem->x);
    if (!r.lo || !r.hi || r.nhi >= INT32_MAX - by || r.nlo <= INT32_MIN + by) return stretch;
    const Ex *last = simp_2(p, EX_DIV, simp_2(p, EX_SUB, r.hi, a), rem->by);
    const Ex *below = simp_2(p, EX_SUB, simp_2(p, EX_SUB, r.lo, b), ex_i32(p, 1));
    return simp_2(p, EX_AND, stretch, simp_2(p, EX_LT, simp_2(p, EX_DIV, below, rem->by), last));
}

// d is +-(x % by) plus what does not vary.
static bool one_remainder(Some *m, const Linear *d, Remainder *of, int64_t *sign, Range *rest) {
    Linear varying, r;
    split_varying(m->c, d, &varying, &r);
    if (!d->ok || varying.n != 1) return false;
    *sign = varying.term[0].coef;
    *rest = range_linear(m->c, &r);
    if ((*sign != 1 && *sign != -1) || !rest->lo || rest->lo != rest->hi) return false;
    return is_remainder(m, varying.term[0].e, of);
}

// ---- comparisons

static const Ex *some_negative_or_zero(Some *m, Linear d) {
    if (!d.ok) return truth(m, true);
    Remainder of;
    int64_t sign;
    Range rest;
    if (one_remainder(m, &d, &of, &sign, &rest)) {
        if (sign < 0) return some_remainder(m, &of, rest.lo, of.by);
        Range most = range_neg(m->c, rest);
        return most.hi ? some_remainder(m, &of, ex_i32(m->p, 0), most.hi) : truth(m, true);
    }
    Range r = narrowed(m, &d);
    return r.lo ? le(m, r.lo, ex_i32(m->p, 0)) : truth(m, true);
}

static const Ex *some_zero(Some *m, Linear d) {
    if (!d.ok) return truth(m, true);
    const Ex *zero = ex_i32(m->p, 0);
    Remainder of;
    int64_t sign;
    Range rest;
    if (one_remainder(m, &d, &of, &sign, &rest)) {
        Range at = sign > 0 ? range_neg(m->c, rest) : rest;
        return at.lo ? some_remainder(m, &of, at.lo, at.lo) : truth(m, true);
    }
    Range r = narrowed(m, &d);
    const Ex *below = r.lo ? le(m, r.lo, zero) : truth(m, true);
    const Ex *above = r.hi ? le(m, zero, r.hi) : truth(m, true);
    return simp_2(m->p, EX_AND, below, above);
}

static Linear plus(Linear l, int64_t v) {
    l.c += v;
    return l;
}

static Linear negated(Linear l) { return linear_sum(linear_const(0), l, -1); }

// The comparison as d <= 0 (true), or as d == 0 (false); `want` false: its contrary.
bool mask_atom(RangeCtx *c, const Ex *e, bool want, Linear *d, bool *equal, bool *differs) {
    if (e->nargs != 2 || e->args[0]->type != EX_I32 || e->type != EX_BOOL) return false;
    *equal = (e->op == EX_EQ && want) || (e->op == EX_NE && !want);
    *differs = (e->op == EX_NE && want) || (e->op == EX_EQ && !want);
    bool order = e->op == EX_LT || e->op == EX_LE;
    if (!order && !*equal && !*differs) return false;
    Linear a = linear_of(c, e->args[0]), b = linear_of(c, e->args[1]);
    *d = linear_sum(a, b, -1);
    if (order && !want) *d = negated(*d);
    if (order && (e->op == EX_LT) == want) *d = plus(*d, 1);
    *d = linear_sign(c, *d);
    return true;
}

static bool is_leaf(const Ex *e) { return e->op == EX_SYM || e->op == EX_LOAD; }

// Of a number that may be any i32: nothing is added to it, so nothing needs to be assumed of it.
static bool is_plain(Some *m, const Ex *e, Range *a, Range *b) {
    if (e->nargs != 2 || e->args[0]->type != EX_I32) return false;
    if (!is_leaf(e->args[0]) && !is_leaf(e->args[1])) return false;
    *a = range_of(m->c, e->args[0]), *b = range_of(m->c, e->args[1]);
    bool any = a->nlo <= INT32_MIN || b->nlo <= INT32_MIN;
    return any && a->lo && a->hi && b->lo && b->hi;
}

static const Ex *some_compared_plainly(Some *m, ExOp op, Range a, Range b, bool want) {
    ExPool *p = m->p;
    if (op == EX_LT) return want ? simp_2(p, EX_LT, a.lo, b.hi) : le(m, b.lo, a.hi);
    if (op == EX_LE) return want ? le(m, a.lo, b.hi) : simp_2(p, EX_LT, b.lo, a.hi);
    if ((op == EX_EQ) == want) return simp_2(p, EX_AND, le(m, a.lo, b.hi), le(m, b.lo, a.hi));
    const Ex *below = simp_2(p, EX_LT, a.lo, b.hi);
    return simp_2(p, EX_OR, below, simp_2(p, EX_LT, b.lo, a.hi));
}

static const Ex *some_floats(Some *m, const Ex *e, bool want);

static const Ex *some_compared(Some *m, const Ex *e, bool want) {
    Linear d;
    Range a, b;
    if (e->args[0]->type == EX_F32) return some_floats(m, e, want);
    if (is_plain(m, e, &a, &b)) return some_compared_plainly(m, e->op, a, b, want);
    bool equal, differs;
    if (!mask_atom(m->c, e, want, &d, &equal, &differs)) return truth(m, true);
    if (equal) return some_zero(m, d);
    if (!differs) return some_negative_or_zero(m, d);
    const Ex *below = some_negative_or_zero(m, plus(d, 1));
    return simp_2(m->p, EX_OR, below, some_negative_or_zero(m, plus(negated(d), 1)));
}

// Of f32: only what surely does not hold is excluded, so a NaN counts as it does in the pair.
static const Ex *some_floats(Some *m, const Ex *e, bool want) {
    ExPool *p = m->p;
    FloatRange a = range_of_float(m->c, e->args[0]), b = range_of_float(m->c, e->args[1]);
    if (!a.lo || !b.lo) return truth(m, true);
    if (e->op == EX_NE) want = !want;
    if (e->op == EX_EQ || e->op == EX_NE) {
        const Ex *x = want ? a.lo : a.hi, *y = want ? b.lo : b.hi;
        const Ex *both = simp_2(p, EX_AND, ex_2(p, EX_LE, x, want ? b.hi : b.lo),
                                ex_2(p, EX_LE, y, want ? a.hi : a.lo));
        return want ? both : simp_1(p, EX_NOT, both);
    }
    if (want) return ex_2(p, e->op, a.lo, b.hi);
    return ex_1(p, EX_NOT, ex_2(p, e->op, a.hi, b.lo));
}

// ---- conjunctions

typedef struct Part {
    const Ex *e;
    bool want;
} Part;
typedef VEC(Part) Parts;

// The parts of a conjunction, from left to right.
static void gather(Some *m, Parts *out, const Ex *e, bool want) {
    Arena *a = ex_arena(m->p);
    Parts todo = {0};
    Part part = {e, want};
    VEC_PUSH(a, &todo, part);
    while (todo.n) {
        part = todo.data[--todo.n];
        if (part.e->op == EX_NOT) {
            part = (Part){part.e->args[0], !part.want};
            VEC_PUSH(a, &todo, part);
        } else if (part.e->op == (part.want ? EX_AND : EX_OR)) {
            Part first = {part.e->args[0], part.want};
            part.e = part.e->args[1];
            VEC_PUSH(a, &todo, part);
            VEC_PUSH(a, &todo, first);
        } else {
            VEC_PUSH(a, out, part);
        }
    }
}

static void narrow_by(Some *m, const Part *part) {
    Linear d, sum, rest;
    Range a, b;
    bool equal, differs;
    if (is_plain(m, part->e, &a, &b)) return;
    if (!range_varies(m->c, part->e) || !mask_atom(m->c, part->e, part->want, &d, &equal, &differs))
        return;
    if (differs || !d.ok) return;
    split_varying(m->c, &d, &sum, &rest);
    Range r = range_neg(m->c, range_linear(m->c, &rest)); // sum <= r, or sum == r
    if (!equal) r.lo = NULL;
    Narrow n = {sum, r};
    if (r.hi) VEC_PUSH(ex_arena(m->p), &m->narrow, n);
}

static const Ex *some_of_all(Some *m, const Ex *e, bool want) {
    Parts parts = {0};
    gather(m, &parts, e, want);
    int mark = m->narrow.n;
    for (int i = 0; i < parts.n; i++) narrow_by(m, &parts.data[i]);
    const Ex *all = truth(m, true);
    for (int i = 0; i < parts.n; i++)
        all = simp_2(m->p, EX_AND, all, some(m, parts.data[i].e, parts.data[i].want));
    m->narrow.n = mark;
    return all;
}

// ---- everything

static const Ex *some_of_two(Some *m, const Ex *a, bool wa, const Ex *b, bool wb) {
    return simp_2(m->p, EX_AND, some(m, a, wa), some(m, b, wb));
}

static const Ex *some_selected(Some *m, const Ex *e, bool want) {
    const Ex *first = some_of_two(m, e->args[0], true, e->args[1], want);
    return simp_2(m->p, EX_OR, first, some_of_two(m, e->args[0], false, e->args[2], want));
}

static const Ex *some_same(Some *m, const Ex *a, const Ex *b, bool same) {
    return simp_2(m->p, EX_OR, some_of_two(m, a, true, b, same),
                  some_of_two(m, a, false, b, !same));
}

// A bool that a name stands for: its least and greatest value are 0 or 1.
static const Ex *some_named(Some *m, const Ex *e, bool want) {
    bool known = e->sym == SYM_LET && e->index < m->c->nlets;
    const Ex *at = known ? want ? m->c->lets[e->index].hi : m->c->lets[e->index].lo : NULL;
    return at ? simp_2(m->p, want ? EX_NE : EX_EQ, at, ex_i32(m->p, 0)) : truth(m, true);
}

static const Ex *some_varying(Some *m, const Ex *e, bool want) {
    ExPool *p = m->p;
    switch ((int)e->op) {
    case EX_SYM: return some_named(m, e, want);
    case EX_NOT: return some(m, e->args[0], !want);
    case EX_AND:
    case EX_OR:
        if (want == (e->op == EX_AND)) return some_of_all(m, e, want);
        return simp_2(p, EX_OR, some(m, e->args[0], want), some(m, e->args[1], want));
    case EX_SELECT: return some_selected(m, e, want);
    case EX_EQ:
    case EX_NE:
        if (e->args[0]->type == EX_BOOL)
            return some_same(m, e->args[0], e->args[1], want == (e->op == EX_EQ));
        return some_compared(m, e, want);
    case EX_LT:
    case EX_LE: return some_compared(m, e, want);
    case EX_CONV:
        if (e->args[0]->type == EX_I32)
            return some(m, ex_2(p, EX_NE, e->args[0], ex_i32(p, 0)), want);
        return truth(m, true);
    default: return truth(m, true);
    }
}

static const Ex *some(Some *m, const Ex *e, bool want) {
    if (!range_varies(m->c, e)) return want ? e : simp_1(m->p, EX_NOT, e);
    if (m->budget-- <= 0 || m->depth >= MASK_DEPTH) return truth(m, true);
    m->depth++;
    e = some_varying(m, e, want);
    m->depth--;
    return e;
}

MaskBounds pass_mask_bounds_in(RangeCtx *c, const Ex *mask) {
    ExPool *p = c->pool;
    mask = ex_simplify(p, mask);
    Some m = {.c = c, .p = p, .budget = MASK_BUDGET};
    const Ex *may = some(&m, mask, true);
    m.budget = MASK_BUDGET;
    const Ex *must = simp_1(p, EX_NOT, some(&m, mask, false));
    if (c->guard) {
        may = simp_2(p, EX_OR, simp_1(p, EX_NOT, c->guard), may);
        must = simp_2(p, EX_AND, c->guard, must);
    }
    return (MaskBounds){ex_simplify(p, may), ex_simplify(p, must)};
}

MaskBounds pass_mask_bounds(ExPool *p, const Ex *mask, int q_axis, int k_axis, const Ex *q0,
                            const Ex *q1, const Ex *k0, const Ex *k1) {
    RangeCtx c;
    range_init(&c, p, q_axis, k_axis, q0, q1, k0, k1);
    return pass_mask_bounds_in(&c, mask);
}
