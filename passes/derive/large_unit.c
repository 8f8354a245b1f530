// large_unit.c: see large_unit.h.
#include "passes/derive/large_unit.h"

#include "passes/simplify/rules.h"
#include "passes/simplify/simplify.h"

#include <math.h>

// A product is at most 2^from, or at least 1.2 times that.
static const double APART = 1.2, BETWEEN = 1.1;

static double next_power(double c) {
    int exponent;
    double size = fabs(c), mantissa = frexp(size * APART, &exponent);
    return copysign(ldexp(1, mantissa == 0.5 ? exponent - 1 : exponent), c);
}

static const Ex *choice(ExPool *p, const Ex *x, double beyond, double large, double usual) {
    const Ex *is_large = ex_2(p, EX_LT, ex_f32(p, (float)beyond), simp_1(p, EX_ABS, x));
    return ex_select(p, is_large, ex_f32(p, (float)large), ex_f32(p, (float)usual));
}

static double beyond_factor(double c, LargeFrom from) { return ldexp(1, (int)from) / fabs(c); }
static double beyond_product(LargeFrom from) { return ldexp(BETWEEN, (int)from); }

const Ex *large_product(ExPool *p, const Ex *x, double c, LargeFrom from) {
    return ex_2(p, EX_MUL, x, choice(p, x, beyond_factor(c, from), next_power(c), c));
}

const Ex *large_unit(ExPool *p, const Ex *product, double c, LargeFrom from) {
    return choice(p, product, beyond_product(from), next_power(c), c);
}

const Ex *large_inverse(ExPool *p, const Ex *product, double c, LargeFrom from) {
    return choice(p, product, beyond_product(from), 1 / next_power(c), 1 / c);
}

const Ex *large_own_unit(ExPool *p, const Ex *x, double c, LargeFrom from) {
    return choice(p, x, beyond_factor(c, from), 1, c);
}

// x where e chooses a unit by the size of x.
static const Ex *chosen_by(const Ex *e) {
    if (e->op != EX_SELECT || e->type != EX_F32 || e->args[0]->op != EX_LT) return NULL;
    const Ex *k = e->args[0]->args[0], *x = e->args[0]->args[1], *a = e->args[1], *b = e->args[2];
    if (k->op != EX_CONST || a->op != EX_CONST || b->op != EX_CONST || x->op != EX_ABS) return NULL;
    bool found = false;
    for (int i = 0; i < 2; i++) {
        LargeFrom from = i ? LARGE_FROM_HALF : LARGE_FROM;
        found |= k->f == (float)beyond_product(from) ||
                 (k->f == (float)beyond_factor((double)b->f, from) &&
                  (a->f == (float)next_power((double)b->f) || a->f == 1));
    }
    return found ? x->args[0] : NULL;
}

const Ex *large_factor_of(const Ex *e) {
    if (e->op != EX_MUL || e->type != EX_F32) return NULL;
    return chosen_by(e->args[1]) == e->args[0] ? e->args[0] : NULL;
}

const Ex *large_product_of(ExPool *p, const Ex *product, const Ex *x) {
    const Ex *unit = product->args[1], *is_large = unit->args[0];
    is_large = ex_2(p, EX_LT, is_large->args[0], ex_1(p, EX_ABS, x));
    return ex_2(p, EX_MUL, x, ex_select(p, is_large, unit->args[1], unit->args[2]));
}

typedef struct Visit {
    void (*of)(void *ctx, const Ex *x);
    void *ctx;
} Visit;

static void visit(void *ctx, const Ex *e) {
    const Visit *v = ctx;
    if (chosen_by(e)) v->of(v->ctx, chosen_by(e));
}

void large_visit(const Ex *e, void (*of)(void *ctx, const Ex *x), void *ctx) {
    Visit v = {of, ctx};
    ex_visit(e, visit, &v);
}

static const Ex *usual(void *ctx, ExPool *p, const Ex *e) {
    (void)ctx;
    (void)p;
    return chosen_by(e) ? e->args[2] : e;
}

const Ex *large_left_out(ExPool *p, const Ex *e) {
    const Ex *rest = e ? ex_map(p, e, usual, NULL) : NULL;
    return rest == e ? e : ex_simplify(p, rest);
}
