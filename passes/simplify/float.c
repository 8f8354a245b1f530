// float.c: f32. Rounds differently by a few ulp at most, and never loses a NaN or an
// infinity: 0 * x, x - x and x / x stay unless x is finite. Constants are gathered at the outside
// of products, where exp2's log2(e) meets the score's own scale.
//
// A constant moves into a sum, a selection or an extremum only where every part has a constant to
// take it, so that no operation is added. It moves into one factor of a product only where it is
// mild: a large one could overflow there.
#include "ir/row.h"
#include "passes/simplify/rules.h"

#include <math.h>

bool simp_finite(const Ex *e) {
    if (e->op == EX_CONST) return isfinite(e->f);
    return e->op == EX_CONV;
}

static bool is_const(const Ex *e) { return e->op == EX_CONST; }
static bool normal(float v) { return isnormal(v) != 0; }

// At least 0: q_offset, which stands among the sizes, need not be.
static bool is_size(const Ex *e) {
    return e->op == EX_SYM && e->sym == SYM_SIZE && e->index != SIZE_Q_OFFSET;
}

bool simp_not_negative(const Ex *e) {
    switch ((int)e->op) {
    case EX_EXP:
    case EX_EXP2:
    case EX_ABS:
    case EX_SIGMOID: return true;
    case EX_CONST: return !signbit(e->f) && !isnan(e->f);
    case EX_MAX: return simp_not_negative(e->args[1]); // constants stand right
    case EX_CONV: return is_size(e->args[0]);
    case EX_DIV: {
        const Ex *by = e->args[1];
        return (is_const(by) || by->op == EX_CONV) && simp_not_negative(by) &&
               simp_not_negative(e->args[0]);
    }
    case EX_MUL: return e->args[0] == e->args[1];
    default: return false;
    }
}

enum { ABSORB_DEPTH = 6 };

// Whether c * e costs nothing: c is taken up by constants that e has already.
static bool absorbs(const Ex *e, float c, int depth) {
    if (is_const(e)) return true;
    if (depth == 0) return false;
    switch ((int)e->op) {
    case EX_NEG: return absorbs(e->args[0], c, depth - 1);
    case EX_MUL: {
        if (is_const(e->args[1])) return normal(e->args[1]->f * c);
        float size = fabsf(c);
        if (size < 0.0625f || size > 16) return false;
        return absorbs(e->args[0], c, depth - 1) || absorbs(e->args[1], c, depth - 1);
    }
    case EX_ADD:
    case EX_SUB: return absorbs(e->args[0], c, depth - 1) && absorbs(e->args[1], c, depth - 1);
    case EX_MIN:
    case EX_MAX:
        return c > 0 && absorbs(e->args[0], c, depth - 1) && absorbs(e->args[1], c, depth - 1);
    case EX_SELECT: return absorbs(e->args[1], c, depth - 1) && absorbs(e->args[2], c, depth - 1);
    default: return false;
    }
}

static const Ex *absorb(ExPool *p, const Ex *e, const Ex *c, int depth) {
    if (is_const(e)) return simp_2(p, EX_MUL, e, c);
    const Ex *a = e->args[0];
    switch ((int)e->op) {
    case EX_NEG: return simp_1(p, EX_NEG, absorb(p, a, c, depth - 1));
    case EX_MUL:
        if (is_const(e->args[1])) return simp_2(p, EX_MUL, a, simp_2(p, EX_MUL, e->args[1], c));
        if (absorbs(a, c->f, depth - 1))
            return simp_2(p, EX_MUL, absorb(p, a, c, depth - 1), e->args[1]);
        return simp_2(p, EX_MUL, a, absorb(p, e->args[1], c, depth - 1));
    case EX_SELECT:
        return simp_select(p, a, absorb(p, e->args[1], c, depth - 1),
                           absorb(p, e->args[2], c, depth - 1));
    default:
        return simp_2(p, e->op, absorb(p, a, c, depth - 1), absorb(p, e->args[1], c, depth - 1));
    }
}

// a * c
static const Ex *scaled(ExPool *p, const Ex *e, const Ex *a, const Ex *c) {
    if (c->f == 1) return a;
    if (c->f == -1) return simp_1(p, EX_NEG, a);
    if (c->f == 0 && simp_finite(a)) return ex_f32(p, 0);
    if (a->op == EX_DIV && is_const(a->args[0]) && normal(a->args[0]->f * c->f))
        return simp_2(p, EX_DIV, simp_2(p, EX_MUL, a->args[0], c), a->args[1]);
    if (a->op == EX_RCP && c->f != 0) return ex_2(p, EX_DIV, c, a->args[0]);
    if (normal(c->f) && absorbs(a, c->f, ABSORB_DEPTH)) return absorb(p, a, c, ABSORB_DEPTH);
    return e;
}

static const Ex *product(ExPool *p, const Ex *e) {
    const Ex *a = e->args[0], *b = e->args[1];
    if (is_const(a)) return simp_2(p, EX_MUL, b, a);
    if (is_const(b)) return scaled(p, e, a, b);
    if (a->op == EX_NEG && b->op == EX_NEG) return simp_2(p, EX_MUL, a->args[0], b->args[0]);
    if (a->op == EX_NEG) return simp_1(p, EX_NEG, simp_2(p, EX_MUL, a->args[0], b));
    if (b->op == EX_NEG) return simp_1(p, EX_NEG, simp_2(p, EX_MUL, a, b->args[0]));
    return e;
}

static const float log2_e = 1.44269504f, ln_2 = 0.693147181f;

// 1 / (1 + exp(x)) is sigmoid(-x), which targets have a form for; b is the divisor. NULL for others.
static const Ex *logistic(ExPool *p, const Ex *b, float sign) {
    if (b->op != EX_ADD || !ex_is_f32(b->args[1], 1) || b->args[0]->op != EX_EXP2) return NULL;
    const Ex *x = simp_2(p, EX_MUL, b->args[0]->args[0], ex_f32(p, sign * ln_2));
    return ex_1(p, EX_SIGMOID, x);
}

static const Ex *quotient(ExPool *p, const Ex *e) {
    const Ex *a = e->args[0], *b = e->args[1], *less = logistic(p, b, -1);
    // not with another numerator, which may be as large as what the share is too small for
    if (less && a == b->args[0]) return logistic(p, b, 1);
    if (less && ex_is_f32(a, 1)) return less;
    if (is_const(b) && normal(b->f) && normal(1 / b->f))
        return simp_2(p, EX_MUL, a, ex_f32(p, 1 / b->f));
    if (ex_is_f32(a, 1)) return simp_1(p, EX_RCP, b);
    if (b->op == EX_SQRT) return simp_2(p, EX_MUL, a, ex_1(p, EX_RSQRT, b->args[0]));
    if (a->op == EX_NEG) return simp_1(p, EX_NEG, simp_2(p, EX_DIV, a->args[0], b));
    if (b->op == EX_NEG) return simp_1(p, EX_NEG, simp_2(p, EX_DIV, a, b->args[0]));
    return e;
}

// x * c + x * d as one product, where neither is infinite against the other.
static const Ex *like_terms(ExPool *p, const Ex *a, const Ex *b) {
    if (a->op != EX_MUL || b->op != EX_MUL || a->args[0] != b->args[0]) return NULL;
    const Ex *c = a->args[1], *d = b->args[1];
    if (!is_const(c) || !is_const(d) || c->f * d->f <= 0 || !normal(c->f + d->f)) return NULL;
    return simp_2(p, EX_MUL, a->args[0], ex_f32(p, c->f + d->f));
}

static const Ex *sum(ExPool *p, const Ex *e) {
    const Ex *a = e->args[0], *b = e->args[1], *one = like_terms(p, a, b);
    if (one) return one;
    if (is_const(a)) return simp_2(p, EX_ADD, b, a);
    if (ex_is_f32(b, 0)) return a;
    if (b->op == EX_NEG) return simp_2(p, EX_SUB, a, b->args[0]);
    if (a->op == EX_NEG) return simp_2(p, EX_SUB, b, a->args[0]);
    return e;
}

static const Ex *difference(ExPool *p, const Ex *e) {
    const Ex *a = e->args[0], *b = e->args[1];
    if (is_const(b)) return simp_2(p, EX_ADD, a, ex_f32(p, -b->f));
    if (ex_is_f32(a, 0)) return simp_1(p, EX_NEG, b);
    if (b->op == EX_NEG) return simp_2(p, EX_ADD, a, b->args[0]);
    if (a == b) return simp_finite(a) ? ex_f32(p, 0) : e; // 0 or NaN, but exactly so
    if (b->op == EX_MUL && is_const(b->args[1]) && b->args[1]->f < 0)
        return simp_2(p, EX_ADD, a, simp_1(p, EX_NEG, b));
    return e;
}

static const Ex *minus(ExPool *p, const Ex *e) {
    const Ex *a = e->args[0];
    if (a->op == EX_NEG) return a->args[0];
    if (a->op == EX_SUB) return simp_2(p, EX_SUB, a->args[1], a->args[0]);
    if ((a->op == EX_MUL || a->op == EX_ADD) && is_const(a->args[1])) {
        const Ex *c = ex_f32(p, -a->args[1]->f);
        if (a->op == EX_MUL) return simp_2(p, EX_MUL, a->args[0], c);
        return simp_2(p, EX_SUB, c, a->args[0]);
    }
    return e;
}

static const Ex *extremum(ExPool *p, const Ex *e) {
    const Ex *a = e->args[0], *b = e->args[1];
    if (a == b) return a;
    if (is_const(a)) return simp_2(p, e->op, b, a);
    if (is_const(b) && a->op == e->op && is_const(a->args[1]))
        return simp_2(p, e->op, a->args[0], simp_2(p, e->op, a->args[1], b));
    if (simp_finite(a) && is_const(b) && isinf(b->f))
        return (b->f < 0) == (e->op == EX_MAX) ? a : b;
    return e;
}

static const Ex *magnitude(ExPool *p, const Ex *e) {
    const Ex *a = e->args[0];
    if (simp_not_negative(a)) return a;
    if (a->op == EX_NEG) return simp_1(p, EX_ABS, a->args[0]);
    if (a->op == EX_MUL && is_const(a->args[1]))
        return simp_2(p, EX_MUL, simp_1(p, EX_ABS, a->args[0]), ex_f32(p, fabsf(a->args[1]->f)));
    return e;
}

static const Ex *reciprocal(ExPool *p, const Ex *e) {
    const Ex *a = e->args[0];
    const Ex *share = logistic(p, a, -1);
    if (share) return share;
    if (a->op == EX_SQRT) return ex_1(p, EX_RSQRT, a->args[0]);
    if (a->op == EX_RSQRT) return ex_1(p, EX_SQRT, a->args[0]);
    if (a->op == EX_NEG) return simp_1(p, EX_NEG, simp_1(p, EX_RCP, a->args[0]));
    return e;
}

static const Ex *power(ExPool *p, const Ex *e) {
    const Ex *x = e->args[0], *n = e->args[1];
    if (ex_is_f32(x, 2)) return simp_1(p, EX_EXP2, n);
    if (!is_const(n)) return e;
    if (n->f == 0) return ex_f32(p, 1); // pow(NaN, 0) too
    if (n->f == 1) return x;
    if (n->f == -1) return simp_1(p, EX_RCP, x);
    const Ex *square = n->f == 2 || n->f == 3 || n->f == 4 ? simp_2(p, EX_MUL, x, x) : NULL;
    if (n->f == 2) return square;
    if (n->f == 3) return simp_2(p, EX_MUL, square, x);
    if (n->f == 4) return simp_2(p, EX_MUL, square, square);
    if (n->f == 0.5f && simp_not_negative(x)) return simp_1(p, EX_SQRT, x);
    if (n->f == -0.5f && simp_not_negative(x)) return simp_1(p, EX_RSQRT, x);
    return e;
}

const Ex *simp_float_node(ExPool *p, const Ex *e) {
    const Ex *a = e->args[0];
    switch ((int)e->op) {
    case EX_ADD: return sum(p, e);
    case EX_SUB: return difference(p, e);
    case EX_MUL: return product(p, e);
    case EX_DIV: return quotient(p, e);
    case EX_NEG: return minus(p, e);
    case EX_FMA: return simp_2(p, EX_ADD, simp_2(p, EX_MUL, a, e->args[1]), e->args[2]);
    case EX_MIN:
    case EX_MAX: return extremum(p, e);
    case EX_ABS: return magnitude(p, e);
    case EX_FLOOR: return a->op == EX_FLOOR || a->op == EX_CONV ? a : e;
    case EX_EXP: return simp_1(p, EX_EXP2, simp_2(p, EX_MUL, a, ex_f32(p, log2_e)));
    case EX_LOG: return simp_2(p, EX_MUL, simp_1(p, EX_LOG2, a), ex_f32(p, ln_2));
    case EX_RCP: return reciprocal(p, e);
    case EX_POW: return power(p, e);
    default: return e;
    }
}
