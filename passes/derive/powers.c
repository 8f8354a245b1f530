// powers.c: exponentials that stand in several formulas of a row are one number.
//
// In: a formula over scores and finished reductions, and a streaming form. Out: the formula, where each exponential that the stream
// has, too, is written as there:
//
//     exp2((s * 2500 - m) * 1.44)   ->   exp2((rounded(s) + A) * 3606.7)      l = rowsum exp2((rounded(s) + A) * 3606.7)
//
// Why: where scores are large, exponents that are rounded in another way make exponentials that differ by far more than their own
// rounding; divided by their sum they no longer add up to 1. Equal exponents are told by polynomials, over states.
#include "passes/derive/powers.h"

#include "passes/derive/large_unit.h"
#include "passes/derive/tame.h"
#include "passes/simplify/rules.h"

#include <math.h>

enum { MOST_POWERS = 8 };

typedef struct Powers {
    Polys *polys;
    const Stream *s;
    const Ex *of[MOST_POWERS]; // the stream's
    int n;
} Powers;

static bool is_power(const Ex *e) {
    return (e->op == EX_EXP || e->op == EX_EXP2) && row_has_element(e);
}

static void find_power(void *ctx, const Ex *e) {
    Powers *w = ctx;
    if (is_power(e) && ex_uses(e, SYM_SHIFT, -1) && w->n < MOST_POWERS) w->of[w->n++] = e;
}

static const Ex *over_states(void *ctx, ExPool *p, const Ex *e) {
    const Stream *s = ctx;
    (void)p;
    if (e->op == EX_SYM && e->sym == SYM_SHIFT) return s->shifts.data[e->index];
    return e->op == EX_SYM && e->sym == SYM_R ? s->finished.data[e->index] : e;
}

// What e is the power of.
static Poly exponent(const Powers *w, const Ex *e) {
    ExPool *p = w->s->row->pool;
    const Ex *x = ex_map(p, e->args[0], over_states, (void *)w->s);
    x = simp_open(p, large_left_out(p, x));
    return poly_of(w->polys, e->op == EX_EXP ? x : ex_2(p, EX_MUL, x, ex_f32(p, (float)M_LN2)));
}

static const Ex *as_streamed(void *ctx, ExPool *p, const Ex *e) {
    const Powers *w = ctx;
    if (!is_power(e)) return e;
    Poly x = exponent(w, e), minus = poly_of(w->polys, ex_f32(p, -1));
    for (int i = 0; i < w->n; i++) {
        Poly y = exponent(w, w->of[i]);
        y = poly_times(w->polys, &y, &minus);
        y = poly_plus(w->polys, &x, &y);
        if (poly_is_zero(w->polys, &y)) return w->of[i];
    }
    return e;
}

const Ex *pass_stream_powers(Polys *polys, const Stream *s, int sweep, const Ex *e) {
    Powers w = {.polys = polys, .s = s};
    if (!e) return NULL;
    if (sweep == s->nsweeps) ex_visit(s->elem, find_power, &w);
    for (int i = 0; i < s->states.n; i++)
        if (s->states.data[i].sweep < sweep) ex_visit(s->states.data[i].elem, find_power, &w);
    return w.n ? ex_map(s->row->pool, e, as_streamed, &w) : e;
}
