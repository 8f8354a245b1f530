// bool.c: comparisons, connectives, selections and conversions. All exact, NaN included:
// an f32 comparison is turned round only where that is right for NaN too.
#include "passes/simplify/rules.h"

#include <math.h>

static bool is_bool(const Ex *e, bool v) {
    return e->op == EX_CONST && e->type == EX_BOOL && (e->i != 0) == v;
}

static const Ex *negation(ExPool *p, const Ex *e) {
    const Ex *a = e->args[0];
    bool whole = a->nargs == 2 && a->args[0]->type != EX_F32;
    switch ((int)a->op) {
    case EX_NOT: return a->args[0];
    case EX_EQ: return ex_2(p, EX_NE, a->args[0], a->args[1]);
    case EX_NE: return ex_2(p, EX_EQ, a->args[0], a->args[1]);
    case EX_LT: return whole ? ex_2(p, EX_LE, a->args[1], a->args[0]) : e;
    case EX_LE: return whole ? ex_2(p, EX_LT, a->args[1], a->args[0]) : e;
    default: return e;
    }
}

static bool opposite(const Ex *a, const Ex *b) {
    return (a->op == EX_NOT && a->args[0] == b) || (b->op == EX_NOT && b->args[0] == a);
}

static const Ex *connective(ExPool *p, const Ex *e) {
    bool is_and = e->op == EX_AND;
    const Ex *a = e->args[0], *b = e->args[1];
    if (a == b || is_bool(b, is_and)) return a;
    if (is_bool(a, is_and)) return b;
    if (is_bool(a, !is_and) || is_bool(b, !is_and) || opposite(a, b)) return ex_bool(p, !is_and);
    if (a->op == e->op && (a->args[0] == b || a->args[1] == b)) return a;
    if (b->op == e->op && (b->args[0] == a || b->args[1] == a)) return b;
    return e;
}

static const Ex *bool_bits(ExPool *p, const Ex *e) {
    if (e->op == EX_BXOR) return simp_2(p, EX_NE, e->args[0], e->args[1]);
    return simp_2(p, e->op == EX_BAND ? EX_AND : EX_OR, e->args[0], e->args[1]);
}

// select(c, x, k) == k where x cannot be k: not c. A masked score against -inf.
static const Ex *selected_equality(ExPool *p, ExOp op, const Ex *a, const Ex *b) {
    if (a->args[1]->op != EX_CONST && a->args[2]->op != EX_CONST) return NULL; // one way to go down
    const Ex *x = simp_2(p, op, a->args[1], b), *y = simp_2(p, op, a->args[2], b);
    if (x->op != EX_CONST || y->op != EX_CONST) return NULL;
    return simp_select(p, a->args[0], x, y);
}

static const Ex *equality(ExPool *p, const Ex *e) {
    const Ex *a = e->args[0], *b = e->args[1];
    bool eq = e->op == EX_EQ;
    if (a->op == EX_CONST) return simp_2(p, e->op, b, a);
    if (a == b && (a->type != EX_F32 || simp_finite(a))) return ex_bool(p, eq);
    if (ex_is_f32(b, -INFINITY) && simp_not_negative(a)) return ex_bool(p, !eq);
    if (a->op == EX_SELECT && a->type == EX_F32 && b->op == EX_CONST) {
        const Ex *r = selected_equality(p, e->op, a, b);
        if (r) return r;
    }
    if (a->type == EX_BOOL && b->op == EX_CONST) return is_bool(b, eq) ? a : simp_1(p, EX_NOT, a);
    if (a->type == EX_I32) { // differences are exact where i32 wraps; the order is not
        const Ex *d = simp_2(p, EX_SUB, a, b);
        if (d->op == EX_CONST) return ex_bool(p, (d->i == 0) == eq);
    }
    return e;
}

static const Ex *order(ExPool *p, const Ex *e) {
    const Ex *a = e->args[0], *b = e->args[1];
    if (a == b && (a->type != EX_F32 || simp_finite(a))) return ex_bool(p, e->op == EX_LE);
    if (a == b && e->op == EX_LT) return ex_bool(p, false); // NaN < NaN is false too
    return e;
}

static const Ex *bool_select(ExPool *p, const Ex *c, const Ex *a, const Ex *b, const Ex *e) {
    if (is_bool(a, true)) return simp_2(p, EX_OR, c, b);
    if (is_bool(b, false)) return simp_2(p, EX_AND, c, a);
    if (is_bool(a, false)) return simp_2(p, EX_AND, simp_1(p, EX_NOT, c), b);
    if (is_bool(b, true)) return simp_2(p, EX_OR, simp_1(p, EX_NOT, c), a);
    return e;
}

static const Ex *selection(ExPool *p, const Ex *e) {
    const Ex *c = e->args[0], *a = e->args[1], *b = e->args[2];
    if (c->op == EX_CONST) return c->i ? a : b;
    if (a == b) return a;
    if (c->op == EX_NOT) return simp_select(p, c->args[0], b, a);
    if (c->op == EX_NE) return simp_select(p, ex_2(p, EX_EQ, c->args[0], c->args[1]), b, a);
    if (a->op == EX_SELECT && a->args[0] == c) return simp_select(p, c, a->args[1], b);
    if (b->op == EX_SELECT && b->args[0] == c) return simp_select(p, c, a, b->args[2]);
    return e->type == EX_BOOL ? bool_select(p, c, a, b, e) : e;
}

const Ex *simp_bool_node(ExPool *p, const Ex *e) {
    switch ((int)e->op) {
    case EX_NOT: return negation(p, e);
    case EX_AND:
    case EX_OR: return connective(p, e);
    case EX_BAND:
    case EX_BOR:
    case EX_BXOR: return bool_bits(p, e);
    case EX_EQ:
    case EX_NE: return equality(p, e);
    case EX_LT:
    case EX_LE: return order(p, e);
    case EX_SELECT: return selection(p, e);
    default: return e;
    }
}
