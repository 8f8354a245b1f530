// chunk_decay.c: the logarithm of a decay.
//
// In: an expression that is at least 0. Out: its log2, whose error is relative to the logarithm itself, so
// that a sum of thousands of them is as exact as one: exp2 of it is the decay.
//
//     exp(x)         ->  x * log2e                     a * b, a / b    ->  log2 a + log2 b, log2 a - log2 b
//     sigmoid(x)     ->  min(y, 0) - log1p(exp2(-|y|)) * log2e,  y = x * log2e
//     max, min, ?:   ->  of the logarithms             1 + y           ->  log1p(y) * log2e
//
// (a product only where one of both is not negative: then the other is not, or they are 0)
//
//     a number n     ->  where n is about 1, log1p(n - 1) * log2e;  log2(n) elsewhere
//
// log1p(y) = 2 atanh(y / (2 + y)), by its series: targets' log2 has an absolute error about 1.
#include "passes/derive/chunk.h"

#include "passes/simplify/rules.h"

#include <math.h>

enum { SERIES = 9, MOST_NESTED = 50 };

static const Ex *number(ExPool *p, double v) { return ex_f32(p, (float)v); }

// log2(1 + y) for y from -1/2 to 1
static const Ex *log2_1p(ExPool *p, const Ex *y) {
    const Ex *s = ex_2(p, EX_DIV, y, ex_2(p, EX_ADD, y, number(p, 2)));
    const Ex *square = ex_2(p, EX_MUL, s, s), *sum = number(p, 2 * M_LOG2E / (2 * SERIES - 1));
    for (int i = SERIES - 2; i >= 0; i--)
        sum = ex_2(p, EX_ADD, ex_2(p, EX_MUL, sum, square), number(p, 2 * M_LOG2E / (2 * i + 1)));
    return ex_2(p, EX_MUL, sum, s);
}

// log2(e), e = 1 + y
static const Ex *near_1(ExPool *p, const Ex *e, const Ex *y) {
    const Ex *above = ex_2(p, EX_LE, number(p, -0.5), y), *below = ex_2(p, EX_LE, y, number(p, 1));
    const Ex *size = ex_select(p, ex_2(p, EX_LT, e, number(p, 0)), number(p, 0), e);
    return ex_select(p, ex_2(p, EX_AND, above, below), log2_1p(p, y), ex_1(p, EX_LOG2, size));
}

static const Ex *of_number(ExPool *p, const Ex *e) {
    return near_1(p, e, ex_2(p, EX_ADD, e, number(p, -1)));
}

static const Ex *of_sigmoid(ExPool *p, const Ex *x) {
    const Ex *y = ex_2(p, EX_MUL, x, number(p, M_LOG2E));
    const Ex *small = ex_1(p, EX_EXP2, ex_1(p, EX_NEG, ex_1(p, EX_ABS, y)));
    return ex_2(p, EX_SUB, ex_2(p, EX_MIN, y, number(p, 0)), log2_1p(p, small));
}

static const Ex *log2_of(ExPool *p, const Ex *e, int depth);

static bool not_negative(const Ex *e, int depth) {
    if (depth == MOST_NESTED) return false;
    bool a = e->nargs && e->args[0]->type == EX_F32 && not_negative(e->args[0], depth + 1);
    bool b = e->nargs > 1 && not_negative(e->args[1], depth + 1);
    switch ((int)e->op) {
    case EX_CONST: return e->f >= 0;
    case EX_EXP:
    case EX_EXP2:
    case EX_SIGMOID:
    case EX_ABS:
    case EX_SQRT: return true;
    case EX_MAX: return a || b;
    case EX_MUL: return (a && b) || e->args[0] == e->args[1];
    case EX_ADD:
    case EX_DIV:
    case EX_MIN: return a && b;
    case EX_ROUNDED: return a;
    case EX_SELECT: return b && not_negative(e->args[2], depth + 1);
    default: return false;
    }
}

static const Ex *of_product(ExPool *p, const Ex *e, int depth) {
    const Ex *a = e->args[0], *b = e->args[1];
    if (!not_negative(a, depth) && !not_negative(b, depth)) return of_number(p, e);
    return ex_2(p, e->op == EX_MUL ? EX_ADD : EX_SUB, log2_of(p, a, depth), log2_of(p, b, depth));
}

static const Ex *of_sum(ExPool *p, const Ex *e) {
    const Ex *a = e->args[0], *b = e->args[1];
    if (e->op == EX_ADD && ex_is_f32(b, 1)) return near_1(p, e, a);
    if (ex_is_f32(a, 1)) return near_1(p, e, e->op == EX_ADD ? b : ex_1(p, EX_NEG, b));
    return of_number(p, e);
}

static const Ex *of_power(ExPool *p, const Ex *e, int depth) {
    const Ex *n = e->args[1];
    if (n->op != EX_CONST || !(n->f > 0)) return of_number(p, e);
    return ex_2(p, EX_MUL, log2_of(p, e->args[0], depth), n);
}

static const Ex *log2_of(ExPool *p, const Ex *e, int depth) {
    const Ex *a = e->nargs ? e->args[0] : NULL, *b = e->nargs > 1 ? e->args[1] : NULL;
    if (e->op == EX_CONST) return number(p, log2((double)e->f));
    switch (depth < MOST_NESTED ? (int)e->op : -1) {
    case EX_EXP:
        if (a->op == EX_LOG) return log2_of(p, a->args[0], depth + 1);
        return ex_2(p, EX_MUL, a, number(p, M_LOG2E));
    case EX_EXP2: return a->op == EX_LOG2 ? log2_of(p, a->args[0], depth + 1) : a;
    case EX_SIGMOID: return of_sigmoid(p, a);
    case EX_MUL:
    case EX_DIV: return of_product(p, e, depth + 1);
    case EX_RCP: return ex_1(p, EX_NEG, log2_of(p, a, depth + 1));
    case EX_SQRT: return ex_2(p, EX_MUL, log2_of(p, a, depth + 1), number(p, 0.5));
    case EX_RSQRT: return ex_2(p, EX_MUL, log2_of(p, a, depth + 1), number(p, -0.5));
    case EX_POW: return of_power(p, e, depth + 1);
    case EX_MAX:
    case EX_MIN: return ex_2(p, e->op, log2_of(p, a, depth + 1), log2_of(p, b, depth + 1));
    case EX_SELECT:
        return ex_select(p, a, log2_of(p, b, depth + 1), log2_of(p, e->args[2], depth + 1));
    case EX_ADD:
    case EX_SUB: return of_sum(p, e);
    default: return of_number(p, e);
    }
}

const Ex *pass_log2(ExPool *p, const Ex *e) { return simp_open(p, log2_of(p, e, 0)); }
