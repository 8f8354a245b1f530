// bounded.c: whether a running shift keeps an exponent small at every moment of a sweep, and not
// only at its end.
//
// In: the exponent of a key, x, and the shift that is added to it. Out: true where both are made of
// differences k * (g - m), m being the running maximum or minimum of g itself, and of what the row
// knows beforehand.
//
//     x = s*1.44, with shift
//       m*-1.44,               m = rowmax s    s - m is never above 0: bounded
//       max(m, sink)*-1.44,    m = rowmax s    the same, or smaller
//       exp(m)*1.44,           m = rowmin s    enormous until the minimum is met: not bounded
//       m*-1.44 + lo*-0.7,     lo = rowmin s   lo has no partner: not bounded
//
// Both are written as sums of multiples of terms, each m replaced by its g; bounded is what
// cancels.
#include "passes/derive/normal_form.h"
#include "passes/derive/tame.h"
#include "passes/simplify/rules.h"

#include <math.h>

enum { MAX_TERMS = 32, MAX_DEPTH = 64 };

typedef struct Sum {
    ExPool *p;
    const NfRow *row;
    struct {
        const Ex *e, *scale; // times * scale * e; scale NULL for 1
        double times, size;  // size: of what was added up, for rounding
    } term[MAX_TERMS];
    int n;
    bool keys;  // there is a key's exponent
    bool loose; // an extremum is clamped on the side that it leaves
    bool full;
} Sum;

static bool is_moving(void *ctx, const Ex *e) {
    const NfRow *row = ((const Sum *)ctx)->row;
    if (!ex_is_sym(e, SYM_R, -1)) return false;
    return row->motion[e->index] == NF_RISING || row->motion[e->index] == NF_FALLING;
}

static bool is_known(Sum *s, const Ex *e) {
    return !row_has_element(e) && !ex_any(e, is_moving, s);
}

static void add_term(Sum *s, const Ex *e, double times, const Ex *scale) {
    for (int i = 0; i < s->n; i++)
        if (s->term[i].e == e && s->term[i].scale == scale) {
            s->term[i].times += times;
            s->term[i].size += fabs(times);
            return;
        }
    s->full |= s->n == MAX_TERMS;
    if (s->full) return;
    s->term[s->n].e = e;
    s->term[s->n].scale = scale;
    s->term[s->n].times = times;
    s->term[s->n++].size = fabs(times);
}

static void gather(Sum *s, const Ex *e, double times, const Ex *scale, int depth);

static void gather_product(Sum *s, const Ex *e, double times, const Ex *scale, int depth) {
    const Ex *a = e->args[0], *b = e->args[1];
    if (b->op == EX_CONST)
        gather(s, a, times * (double)b->f, scale, depth);
    else if (is_known(s, b))
        gather(s, a, times, scale ? simp_2(s->p, EX_MUL, scale, b) : b, depth);
    else if (is_known(s, a))
        gather(s, b, times, scale ? simp_2(s->p, EX_MUL, scale, a) : a, depth);
    else
        add_term(s, e, times, scale);
}

// A clamp by what is known lets the moving side through or keeps it at a fixed value; neither
// grows. Without a key's exponent to cancel with, the fixed value must be a bound from the start:
// max(m, known) of a maximum, min(m, known) of a minimum.
static void gather_clamp(Sum *s, const Ex *e, double times, const Ex *scale, int depth) {
    int known = is_known(s, e->args[1]) ? 1 : 0;
    const Ex *moving = e->args[!known];
    bool from_start =
        is_moving(s, moving) && (s->row->motion[moving->index] == NF_RISING) == (e->op == EX_MAX);
    if (!is_known(s, e->args[known]) || !ex_any(moving, is_moving, s))
        add_term(s, e, times, scale);
    else if (s->keys) {
        s->loose |= !from_start;
        gather(s, moving, times, scale, depth);
    } else if (from_start)
        add_term(s, e->args[known], times, scale);
    else
        s->full = true;
}

static void gather(Sum *s, const Ex *e, double times, const Ex *scale, int depth) {
    s->full |= ++depth > MAX_DEPTH;
    if (s->full) return;
    switch ((int)e->op) {
    case EX_SYM:
        if (is_moving(s, e))
            gather(s, s->row->reduced[e->index], times, scale, depth);
        else
            add_term(s, e, times, scale);
        break;
    case EX_ADD:
    case EX_SUB:
        gather(s, e->args[0], times, scale, depth);
        gather(s, e->args[1], e->op == EX_SUB ? -times : times, scale, depth);
        break;
    case EX_NEG: gather(s, e->args[0], -times, scale, depth); break;
    case EX_MUL: gather_product(s, e, times, scale, depth); break;
    case EX_MAX:
    case EX_MIN: gather_clamp(s, e, times, scale, depth); break;
    case EX_SELECT: // exp2 of -inf: no key
        if (ex_is_f32(e->args[2], -INFINITY))
            gather(s, e->args[1], times, scale, depth);
        else if (ex_is_f32(e->args[1], -INFINITY))
            gather(s, e->args[2], times, scale, depth);
        else
            add_term(s, e, times, scale);
        break;
    default: add_term(s, e, times, scale);
    }
}

// A term that stays, beside what the clamped extrema have.
static double excess(const Sum *s, int i) {
    const Ex *e = s->term[i].e, *scale = s->term[i].scale;
    double times = s->term[i].times;
    if (e->op == EX_CONST && !scale) return times * (double)e->f;
    double by = scale ? row_most(s->row->program, scale) : 1;
    return fabs(times) * row_most(s->row->program, e) * by;
}

double nf_excess(ExPool *p, const Ex *x, const NfRow *row) {
    Sum s = {.p = p, .row = row, .keys = true};
    double most = 0;
    gather(&s, x, 1, NULL, 0);
    for (int i = 0; i < s.n; i++)
        if (fabs(s.term[i].times) > 1e-5 * s.term[i].size) most += excess(&s, i);
    return s.full || s.loose || isnan(most) ? INFINITY : most;
}

bool nf_bounded(ExPool *p, const Ex *x, const Ex *shift, const NfRow *row) {
    Sum s = {.p = p, .row = row, .keys = x != NULL};
    if (x) gather(&s, x, 1, NULL, 0);
    gather(&s, shift, 1, NULL, 0);
    for (int i = 0; i < s.n; i++) {
        bool cancels = fabs(s.term[i].times) <= 1e-5 * s.term[i].size; // the constants are rounded
        if (!cancels && !is_known(&s, s.term[i].e)) return false;
    }
    return !s.full;
}
