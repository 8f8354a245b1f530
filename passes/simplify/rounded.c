// rounded.c: f32 that is computed as written.
//
// In: an operation whose result is a number of its own: it decides, or must be the same wherever it stands
// (passes/derive/decide.c). Out: one with the same result to the last bit, under `rounded` where something can be rounded.
// Operands are rounded themselves or need not be; a zero may change its sign, as elsewhere.
//
//     x / 8.0  ->  rounded((x * 0.125))         x * 1.0, x + 0.0, x / 1.0  ->  x
//     x / 41.0  stays                           x - c                      ->  rounded((x + -c))
#include "passes/simplify/rules.h"

#include <math.h>

static const Ex *rounded(ExPool *p, const Ex *e) {
    bool is_number = e->op == EX_CONST || e->op == EX_LOAD || e->op == EX_ROUNDED;
    return is_number ? e : ex_1(p, EX_ROUNDED, e);
}

static bool is_power_of_two(float v) {
    int exponent;
    return isnormal(v) && fabsf(frexpf(v, &exponent)) == 0.5f;
}

static const Ex *product(ExPool *p, const Ex *e) {
    const Ex *a = e->args[0], *b = e->args[1];
    if (a->op == EX_CONST) return simp_rounded(p, ex_2(p, EX_MUL, b, a));
    if (ex_is_f32(b, 1)) return a;
    if (ex_is_f32(b, -1)) return simp_1(p, EX_NEG, a);
    return rounded(p, e);
}

static const Ex *quotient(ExPool *p, const Ex *e) {
    const Ex *a = e->args[0], *b = e->args[1];
    if (b->op != EX_CONST || !is_power_of_two(b->f) || !isnormal(1 / b->f)) return rounded(p, e);
    return simp_rounded(p, ex_2(p, EX_MUL, a, ex_f32(p, 1 / b->f)));
}

static const Ex *sum(ExPool *p, const Ex *e) {
    const Ex *a = e->args[0], *b = e->args[1];
    if (a->op == EX_CONST) return simp_rounded(p, ex_2(p, EX_ADD, b, a));
    if (ex_is_f32(b, 0)) return a;
    return rounded(p, b->op == EX_NEG ? ex_2(p, EX_SUB, a, b->args[0]) : e);
}

static const Ex *difference(ExPool *p, const Ex *e) {
    const Ex *a = e->args[0], *b = e->args[1];
    if (b->op == EX_CONST) return simp_rounded(p, ex_2(p, EX_ADD, a, ex_f32(p, -b->f)));
    if (ex_is_f32(a, 0)) return simp_1(p, EX_NEG, b);
    return rounded(p, b->op == EX_NEG ? ex_2(p, EX_ADD, a, b->args[0]) : e);
}

const Ex *simp_rounded(ExPool *p, const Ex *e) {
    const Ex *c = simp_fold(p, e);
    if (c) return c;
    switch ((int)e->op) {
    case EX_ADD: return sum(p, e);
    case EX_SUB: return difference(p, e);
    case EX_MUL: return product(p, e);
    case EX_DIV: return quotient(p, e);
    case EX_SELECT: return rounded(p, simp_select(p, e->args[0], e->args[1], e->args[2]));
    case EX_NEG: // these round nothing
    case EX_ABS:
    case EX_FLOOR:
    case EX_MIN:
    case EX_MAX: return rounded(p, simp_float_node(p, e));
    default: return rounded(p, e);
    }
}
