// bounds.c: intervals of numbers, and what operations make of them.
//
// In: an operation, and bounds of its arguments. Out: bounds of its value, and anything where an i32 wraps. What
// rounding and f32's range make of it, and what symbols are, is the caller's (limits.c, tame.c).
#include "passes/derive/bounds.h"

#include <math.h>

const Bounds bounds_unknown = {-INFINITY, INFINITY};

Bounds bounds_within(double size) { return (Bounds){-size, size}; }

double bounds_size(Bounds b) { return fmax(fabs(b.lo), fabs(b.hi)); }

double bounds_product(double a, double b) { return a == 0 || b == 0 ? 0 : a * b; }

Bounds bounds_of_constant(const Ex *e) {
    return e->type == EX_F32 ? (Bounds){e->f, e->f} : (Bounds){e->i, e->i};
}

static Bounds sum(Bounds a, Bounds b) { return (Bounds){a.lo + b.lo, a.hi + b.hi}; }
static Bounds minus(Bounds a) { return (Bounds){-a.hi, -a.lo}; }

static Bounds times(Bounds a, Bounds b) {
    double v[] = {bounds_product(a.lo, b.lo), bounds_product(a.lo, b.hi),
                  bounds_product(a.hi, b.lo), bounds_product(a.hi, b.hi)};
    return (Bounds){fmin(fmin(v[0], v[1]), fmin(v[2], v[3])),
                    fmax(fmax(v[0], v[1]), fmax(v[2], v[3]))};
}

enum { MOST_FACTORS = 16, MOST_STEPS = 64 };

typedef struct Odd { // the factors that stand an odd number of times
    const Ex *e[MOST_FACTORS];
    int n, steps;
} Odd;

static bool find_odd(Odd *odd, const Ex *e) {
    while (e->op == EX_ROUNDED) e = e->args[0];
    if (++odd->steps > MOST_STEPS || odd->n == MOST_FACTORS) return false;
    if (e->op == EX_MUL)
        return e->args[0] == e->args[1] || (find_odd(odd, e->args[0]) && find_odd(odd, e->args[1]));
    int i = 0;
    while (i < odd->n && odd->e[i] != e) i++;
    if (i < odd->n)
        odd->e[i] = odd->e[--odd->n];
    else
        odd->e[odd->n++] = e;
    return true;
}

bool bounds_is_square(const Ex *e) {
    Odd odd = {.n = 0};
    return e->op == EX_MUL && e->type == EX_F32 && find_odd(&odd, e) && odd.n == 0;
}

static Bounds product(const Ex *e, const Bounds *a) {
    Bounds b = times(a[0], a[1]);
    if (bounds_is_square(e)) b.lo = fmax(b.lo, 0);
    return b;
}

Bounds bounds_over(Bounds a, Bounds b, const BoundsRule *rule) {
    if (b.lo <= 0 && b.hi >= 0) return rule->by_zero;
    return times(a, (Bounds){1 / b.hi, 1 / b.lo});
}

static Bounds power(Bounds x, Bounds n) {
    if (n.lo != n.hi || x.lo < 0 || (n.lo < 0 && x.lo <= 0)) return bounds_unknown;
    double a = pow(x.lo, n.lo), b = pow(x.hi, n.lo);
    return (Bounds){fmin(a, b), fmax(a, b)};
}

static Bounds logarithm(Bounds x, double per_octave, Bounds log2s) {
    double lo = fmax(log2(fmax(x.lo, 0)), log2s.lo), hi = fmin(log2(fmax(x.hi, 0)), log2s.hi);
    hi = fmax(hi, log2s.lo);
    return (Bounds){lo * per_octave, hi * per_octave};
}

static Bounds root(Bounds x) { return (Bounds){sqrt(fmax(x.lo, 0)), sqrt(fmax(x.hi, 0))}; }

static Bounds function(const Ex *e, const Bounds *a, const BoundsRule *rule) {
    static const Bounds one = {1, 1};
    switch ((int)e->op) {
    case EX_FLOOR: return (Bounds){floor(a->lo), floor(a->hi)};
    case EX_EXP: return (Bounds){exp(a->lo), exp(a->hi)};
    case EX_EXP2: return (Bounds){exp2(a->lo), exp2(a->hi)};
    case EX_LOG: return logarithm(*a, log(2), rule->log2);
    case EX_LOG2: return logarithm(*a, 1, rule->log2);
    case EX_SQRT: return root(*a);
    case EX_RSQRT: return bounds_over(one, root(*a), rule);
    case EX_RCP: return bounds_over(one, *a, rule);
    case EX_SIGMOID: return (Bounds){0, 1};
    case EX_TANH:
    case EX_ERF:
    case EX_SIN:
    case EX_COS: return bounds_within(1);
    case EX_POW: return power(a[0], a[1]);
    default: return bounds_unknown;
    }
}

static Bounds select(const Ex *e, Bounds a, Bounds b) {
    if (ex_is_f32(e->args[1], -INFINITY)) return b;
    if (ex_is_f32(e->args[2], -INFINITY)) return a;
    return (Bounds){fmin(a.lo, b.lo), fmax(a.hi, b.hi)};
}

static Bounds operation(const Ex *e, const Bounds *a, const BoundsRule *rule) {
    bool whole = e->type == EX_I32;
    switch ((int)e->op) {
    case EX_SELECT: return select(e, a[1], a[2]);
    case EX_CONV: return whole && e->args[0]->type == EX_F32 ? bounds_within(0x1p31) : a[0];
    case EX_ADD: return sum(a[0], a[1]);
    case EX_SUB: return sum(a[0], minus(a[1]));
    case EX_MUL: return product(e, a);
    case EX_DIV: return whole ? bounds_within(bounds_size(a[0])) : bounds_over(a[0], a[1], rule);
    case EX_MOD: // the divisor's sign, but for what an f32 rounds
        if (!whole) return bounds_within(bounds_size(a[1]));
        return (Bounds){fmin(a[1].lo, 0), fmax(a[1].hi, 0)};
    case EX_NEG: return minus(a[0]);
    case EX_ABS: return (Bounds){fmax(fmax(a->lo, -a->hi), 0), bounds_size(*a)};
    case EX_FMA: return sum(times(a[0], a[1]), a[2]);
    case EX_ROUNDED: return a[0];
    case EX_MIN: return (Bounds){fmin(a[0].lo, a[1].lo), fmin(a[0].hi, a[1].hi)};
    case EX_MAX: return (Bounds){fmax(a[0].lo, a[1].lo), fmax(a[0].hi, a[1].hi)};
    default: return whole ? bounds_within(0x1p31) : function(e, a, rule);
    }
}

Bounds bounds_of_operation(const Ex *e, const Bounds *args, const BoundsRule *rule) {
    if (e->type == EX_BOOL) return (Bounds){0, 1};
    Bounds b = operation(e, args, rule);
    bool wraps = e->type == EX_I32 && (b.lo < -0x1p31 || b.hi >= 0x1p31);
    if (wraps) return bounds_within(0x1p31);
    return isnan(b.lo) || isnan(b.hi) ? bounds_unknown : b;
}
