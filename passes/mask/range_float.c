// range_float.c: intervals of f32 expressions over a rectangle of positions, for masks that compare
// floats.
//
// In: an f32 expression of positions. Out: two f32 expressions that bound it. Sums, products, quotients by a
// number, floor, extrema and conversions are rounded to nearest, which keeps order: what the same operation
// gives at the ends of its arguments bounds it exactly, rounding included, so each is made once
// more with EX_ROUNDED around it, as a mask's own are. Special functions and elements of tensors
// are unknown. What does not vary is what it is; in arithmetic it is assumed finite
// (RangeCtx.guard), so no NaN comes from it.
#include "passes/mask/range.h"

#include "passes/simplify/rules.h"

#include <assert.h>
#include <math.h>

#define LARGEST 3e38 // no more: the result may be infinite
#define TAME 1e15f

static FloatRange unknown(void) { return (FloatRange){NULL, NULL, -INFINITY, INFINITY}; }

static bool is_finite(FloatRange r) { return r.lo && r.nlo >= -LARGEST && r.nhi <= LARGEST; }

// An unknown number in arithmetic.
static FloatRange tamed(RangeCtx *c, FloatRange r) {
    if (!r.lo || is_finite(r) || c->fixed) return r;
    ExPool *p = c->pool;
    const Ex *low = ex_2(p, EX_LE, ex_f32(p, -TAME), r.lo);
    range_assume(c, simp_2(p, EX_AND, low, ex_2(p, EX_LE, r.hi, ex_f32(p, TAME))));
    return (FloatRange){r.lo, r.hi, -TAME, TAME};
}

static const Ex *rounded(RangeCtx *c, const Ex *e) {
    return e->op == EX_CONST || e->op == EX_ROUNDED ? e : ex_1(c->pool, EX_ROUNDED, e);
}

// The operation of e at some ends of its arguments.
static const Ex *at(RangeCtx *c, const Ex *e, const Ex *const *args) {
    return rounded(c, ex_with_args(c->pool, e, args));
}

static double apply(const Ex *e, const double *x) {
    ExType types[3] = {EX_F32, EX_F32, EX_F32};
    ExValue v[3];
    for (int i = 0; i < e->nargs; i++) v[i].f = x[i];
    return ex_apply(e->op, EX_F32, types, v, true).f;
}

// Of an operation that is monotone in each argument where the others stay: the least and the largest of
// all ends.
static FloatRange ends(RangeCtx *c, const Ex *e, const FloatRange *arg) {
    FloatRange r = {NULL, NULL, INFINITY, -INFINITY};
    for (int which = 0; which < 1 << e->nargs; which++) {
        const Ex *args[3];
        double x[3];
        bool again = false;
        for (int i = 0; i < e->nargs; i++) {
            bool high = which >> i & 1;
            again = again || (high && arg[i].lo == arg[i].hi);
            args[i] = high ? arg[i].hi : arg[i].lo;
            x[i] = high ? arg[i].nhi : arg[i].nlo;
        }
        double v = apply(e, x);
        r.nlo = fmin(r.nlo, v), r.nhi = fmax(r.nhi, v);
        if (again) continue;
        const Ex *y = at(c, e, args);
        r.lo = r.lo ? ex_2(c->pool, EX_MIN, r.lo, y) : y;
        r.hi = r.hi ? ex_2(c->pool, EX_MAX, r.hi, y) : y;
    }
    return is_finite(r) ? r : unknown();
}

// Of one that grows with its arguments, where `falls` does not have its bit.
static FloatRange monotone(RangeCtx *c, const Ex *e, const FloatRange *arg, unsigned falls) {
    const Ex *lo[3], *hi[3];
    double nlo[3], nhi[3];
    for (int i = 0; i < e->nargs; i++) {
        bool down = falls >> i & 1;
        lo[i] = down ? arg[i].hi : arg[i].lo, nlo[i] = down ? arg[i].nhi : arg[i].nlo;
        hi[i] = down ? arg[i].lo : arg[i].hi, nhi[i] = down ? arg[i].nlo : arg[i].nhi;
    }
    FloatRange r = {at(c, e, lo), at(c, e, hi), apply(e, nlo), apply(e, nhi)};
    return is_finite(r) ? r : unknown();
}

static FloatRange absolute(RangeCtx *c, FloatRange a) {
    ExPool *p = c->pool;
    const Ex *zero = ex_f32(p, 0), *minus = ex_1(p, EX_NEG, a.hi);
    const Ex *lo = ex_2(p, EX_MAX, ex_2(p, EX_MAX, a.lo, minus), zero);
    const Ex *hi = ex_2(p, EX_MAX, a.hi, ex_1(p, EX_NEG, a.lo));
    return (FloatRange){lo, hi, 0, fmax(fabs(a.nlo), fabs(a.nhi))};
}

static FloatRange converted(RangeCtx *c, const Ex *e) {
    ExPool *p = c->pool;
    if (e->args[0]->type != EX_I32) return unknown();
    Range r = range_of(c, e->args[0]);
    if (!r.lo || !r.hi) return unknown();
    return (FloatRange){rounded(c, ex_conv(p, EX_F32, r.lo)), rounded(c, ex_conv(p, EX_F32, r.hi)),
                        (float)r.nlo, (float)r.nhi};
}

static FloatRange selected(RangeCtx *c, const Ex *e) {
    ExPool *p = c->pool;
    FloatRange a = tamed(c, range_of_float(c, e->args[1]));
    FloatRange b = tamed(c, range_of_float(c, e->args[2]));
    if (!a.lo || !b.lo) return unknown();
    return (FloatRange){ex_2(p, EX_MIN, a.lo, b.lo), ex_2(p, EX_MAX, a.hi, b.hi),
                        fmin(a.nlo, b.nlo), fmax(a.nhi, b.nhi)};
}

static FloatRange of_operation(RangeCtx *c, const Ex *e) {
    FloatRange arg[3];
    for (int i = 0; i < e->nargs; i++) {
        if (e->args[i]->type != EX_F32) return unknown();
        arg[i] = tamed(c, range_of_float(c, e->args[i]));
        if (!is_finite(arg[i])) return unknown();
    }
    switch ((int)e->op) {
    case EX_ADD:
    case EX_MIN:
    case EX_MAX:
    case EX_FLOOR: return monotone(c, e, arg, 0);
    case EX_SUB: return monotone(c, e, arg, 2);
    case EX_NEG: return monotone(c, e, arg, 1);
    case EX_ABS: return absolute(c, arg[0]);
    case EX_MUL: // x * x has no negative end
        if (e->args[0] == e->args[1]) arg[0] = arg[1] = absolute(c, arg[0]);
        if (e->args[0] == e->args[1]) return monotone(c, e, arg, 0);
        return ends(c, e, arg);
    case EX_FMA: return ends(c, e, arg);
    case EX_DIV: // by a number that is far enough from 0
        if (arg[1].nlo != arg[1].nhi || fabs(arg[1].nlo) < 1e-6) return unknown();
        return ends(c, e, arg);
    default: return unknown();
    }
}

static FloatRange of_varying(RangeCtx *c, const Ex *e) {
    switch ((int)e->op) {
    case EX_ROUNDED: return range_of_float(c, e->args[0]);
    case EX_CONV: return converted(c, e);
    case EX_SELECT: return selected(c, e);
    case EX_SYM:
    case EX_LOAD: return unknown();
    default: return of_operation(c, e);
    }
}

FloatRange range_of_float(RangeCtx *c, const Ex *e) {
    assert(e->type == EX_F32);
    const FloatRange *known = ex_memo_get(&c->floats, e);
    if (e->op == EX_CONST) return (FloatRange){e, e, e->f, e->f};
    if (!range_varies(c, e)) return (FloatRange){e, e, -INFINITY, INFINITY};
    if (known) return *known;
    if (c->depth >= RANGE_MAX_DEPTH) return unknown();
    FloatRange *r = ARENA_NEW(ex_arena(c->pool), FloatRange);
    c->depth++;
    *r = of_varying(c, e);
    c->depth--;
    ex_memo_put(ex_arena(c->pool), &c->floats, e, r);
    return *r;
}
