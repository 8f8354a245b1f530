// exact_shift.c: extrema are carried in the unit of the exponents that they shift.
//
// In: a streaming form. Out: the same, where the shift is a state as it is carried, with nothing
// left to round:
//
//     m = max s;           A = m * -0.18     ->     m = max (s * 0.18);         A = -m
//     m = max s;           A = max(m * 0.125, sink) * -1.44
//                                            ->     m = max (s * 0.18);         A = -max(m, sink * 1.44)
//
// And where scores are not known to be small (tame.h), an extremum is subtracted before anything is
// multiplied. They are to be smaller where the result depends on the shift (fixed_shift.h):
//
//     m = max s;  A = m * -1.44;  exp2(s * 1.44 + A)      ->     A = -m;  exp2((s + A) * 1.44)
//
// Where a division cancels a factor of the row, the shift is multiplied once, and not each difference (large_unit.h):
//
//     exp2((s + A) * 1.44)      ->     exp2(fma(s, u, rounded(A * u))),  u = abs(A) > 2^30 / 1.44 ? 1 : 1.44
//
// In a later sweep the extremum is finished, and is a product that was rounded:
//
//     exp2(fma(s, 3535, -m))                              ->     exp2(rounded(s * 3535) - rounded(m))
//
// Why: sums are rescaled by exp2(A' - A), which must be exactly 1 where A did not move, or they
// drift with every tile. A rounded product that is made again may be an fma's, which is not rounded;
// then the old number must be carried too. Rounding is monotone, so the maximum of the products is
// the product of the maximum: a tile is still reduced over the bare score.
#include "passes/derive/exact_shift.h"

#include "passes/derive/fixed_shift.h"
#include "passes/derive/large_unit.h"
#include "passes/derive/tame.h"
#include "passes/simplify/rules.h"
#include "passes/simplify/simplify.h"

#include <math.h>
#include <string.h>

// Beyond, a state's own precision would suffer from the unit: its products may leave f32.
static const float LEAST_UNIT = 0x1p-40f, LARGEST_UNIT = 0x1p40f;
// Of numbers beyond, a product with a unit may leave f32.
static const double LARGEST = 0x1p120;
// Of a larger unit, one of large numbers that is 1 leaves a weight of some that are not the largest.
static const float LARGEST_OWN = 2;

typedef struct Units {
    ExPool *p;
    float *unit; // by state
    bool *large; // by state: what it is carried as may be large (large_unit.h)
    bool shift;  // what is written is a shift that follows such a state
    LargeFrom from;
} Units;

static bool is_power_of_two(float v) {
    int exponent;
    return v != 0 && fabsf(frexpf(v, &exponent)) == 0.5f;
}

static const Ex *scaled(ExPool *p, const Ex *e, float by) {
    return by == 1 ? e : simp_2(p, EX_MUL, e, ex_f32(p, by));
}

// ---- which unit

// What a shift multiplies the state by; 0 where it does something else with it, or nothing.
static float multiple_in(const Ex *e, int state, float by) {
    const Ex *a = e->nargs ? e->args[0] : NULL, *b = e->nargs > 1 ? e->args[1] : NULL;
    float first;
    if (!ex_uses(e, SYM_STATE, state)) return 0;
    switch ((int)e->op) {
    case EX_SYM: return by;
    case EX_NEG: return multiple_in(a, state, -by);
    case EX_MUL: return b->op == EX_CONST ? multiple_in(a, state, by * b->f) : 0;
    case EX_SELECT: a = e->args[2]; // fallthrough
    case EX_MAX:
    case EX_MIN: return (first = multiple_in(a, state, by)) ? first : multiple_in(b, state, by);
    default: return 0;
    }
}

// The state itself is wanted by what looks at keys: it must stay what it is.
static bool is_element_of(const Stream *s, const Ex *e, int state) {
    if (ex_uses(e, SYM_STATE, state)) return true;
    for (int k = 0; k < s->finished.n; k++)
        if (ex_uses(e, SYM_R, k) && is_element_of(s, s->finished.data[k], state)) return true;
    return false;
}

static bool meets_keys(const Stream *s, int state) {
    for (int k = 0; k < s->scales.n; k++)
        for (int i = 0; i < s->scales.data[k].n; i++)
            if (ex_uses(s->scales.data[k].base[i], SYM_STATE, state)) return true;
    for (int i = 0; i < s->states.n; i++)
        if (is_element_of(s, s->states.data[i].elem, state)) return true;
    return is_element_of(s, s->elem, state);
}

static bool is_subtracted(const Stream *s, int state) {
    for (int i = 0; i < s->shifts.n; i++)
        if (s->units.data[i] && ex_uses(s->shifts.data[i], SYM_STATE, state)) return true;
    return false;
}

// The accumulator's shift has the first say.
static float unit_for(const Stream *s, int state) {
    if (is_subtracted(s, state) || s->states.data[state].exact) return 1;
    if (s->states.data[state].op == EX_ROWSUM || meets_keys(s, state)) return 1;
    float by = s->shift < 0 ? 0 : multiple_in(s->shifts.data[s->shift], state, 1);
    for (int i = 0; i < s->shifts.n && by == 0; i++) by = multiple_in(s->shifts.data[i], state, 1);
    by = fabsf(by);
    bool fits = by >= LEAST_UNIT && by <= LARGEST_UNIT;
    return fits && !is_power_of_two(by) ? by : 1;
}

// ---- shifts that are subtracted first

typedef struct First {
    Stream *s;
    ExPool *p;
    int shift;
    float by;        // what the exponent has the state times ...
    const Ex *scale; // ... and a row scalar; NULL: none
    LargeFrom large; // 0: the shift is subtracted
    LargeFrom own;   // not 0: it is a number in its own unit, and multiplied by itself
    bool failed;
} First;

static void split_scale(const Ex *e, float *by, const Ex **scale) {
    bool constant = e->op == EX_MUL && e->args[1]->op == EX_CONST;
    *by *= constant ? e->args[1]->f : 1;
    *scale = constant ? e->args[0] : e;
}

// The factor of the first state in e.
static bool find_unit(First *f, const Ex *e) {
    const Ex *a = e->nargs ? e->args[0] : NULL, *b = e->nargs > 1 ? e->args[1] : NULL;
    if (!ex_uses(e, SYM_STATE, -1)) return false;
    switch ((int)e->op) {
    case EX_SYM: return true;
    case EX_NEG: return find_unit(f, a);
    case EX_MUL:
        if (b->op == EX_CONST) {
            f->by *= b->f;
            return find_unit(f, a);
        }
        if (f->scale || (ex_uses(a, SYM_STATE, -1) && ex_uses(b, SYM_STATE, -1))) return false;
        split_scale(ex_uses(a, SYM_STATE, -1) ? b : a, &f->by, &f->scale);
        return find_unit(f, ex_uses(a, SYM_STATE, -1) ? a : b);
    case EX_SELECT: return find_unit(f, b) || find_unit(f, e->args[2]);
    case EX_ADD:
    case EX_SUB:
    case EX_MIN:
    case EX_MAX: return find_unit(f, a) || find_unit(f, b);
    default: return false;
    }
}

static bool near(double a, double b) { return fabs(a - b) <= 1e-6 * fabs(b); }

static const Ex *multiple(First *f, const Ex *e, double by) {
    if (near(by, -1)) return simp_1(f->p, EX_NEG, e);
    return near(by, 1) ? e : simp_2(f->p, EX_MUL, e, ex_f32(f->p, (float)by));
}

// e * by, over the scale where it is still there to be taken out.
static const Ex *divided(First *f, const Ex *e, double by, const Ex *scale) {
    ExPool *p = f->p;
    const Ex *a = e->nargs ? e->args[0] : NULL, *b = e->nargs > 1 ? e->args[1] : NULL;
    const Ex *part = NULL;
    float here = 1;
    if (e->op == EX_CONST && isinf(e->f)) return by < 0 ? ex_f32(p, -e->f) : e;
    switch ((int)e->op) {
    case EX_NEG: return divided(f, a, -by, scale);
    case EX_ADD:
    case EX_SUB: return simp_2(p, e->op, divided(f, a, by, scale), divided(f, b, by, scale));
    case EX_SELECT:
        return simp_select(p, a, divided(f, b, by, scale), divided(f, e->args[2], by, scale));
    case EX_MUL:
        if (b->op == EX_CONST) return divided(f, a, by * (double)b->f, scale);
        if (!scale) break;
        split_scale(b, &here, &part);
        if (part == scale) return divided(f, a, by * (double)here, NULL);
        here = 1;
        split_scale(a, &here, &part);
        if (part == scale) return divided(f, b, by * (double)here, NULL);
        break;
    case EX_MIN:
    case EX_MAX: {
        if (scale) break;
        const Ex *x =
            simp_2(p, e->op, divided(f, a, fabs(by), NULL), divided(f, b, fabs(by), NULL));
        return by < 0 ? simp_1(p, EX_NEG, x) : x;
    }
    default: break;
    }
    f->failed |= scale != NULL;
    return multiple(f, e, by);
}

// Alike but for the rounding of constants.
static bool alike(const Ex *a, const Ex *b) {
    if (a == b) return true;
    if (a->op != b->op || a->type != b->type || a->nargs != b->nargs) return false;
    if (a->op == EX_CONST) return a->type == EX_F32 && near(a->f, b->f);
    if (!a->nargs || a->op == EX_LOAD) return false;
    for (int k = 0; k < a->nargs; k++)
        if (!alike(a->args[k], b->args[k])) return false;
    return true;
}

// The very number that an extremum was taken of, where x is that; else NULL.
static const Ex *as_reduced(First *f, const Ex *x) {
    for (int i = 0; i < f->s->states.n; i++) {
        const StreamState *st = &f->s->states.data[i];
        const Ex *elem = simp_open(f->p, st->elem);
        if (st->op == EX_ROWSUM) continue;
        if (alike(x, elem)) return elem;
        if (x->op == EX_NEG && alike(x->args[0], elem)) return simp_1(f->p, EX_NEG, elem);
    }
    return NULL;
}

typedef struct Terms {
    const Ex *elem, *row; // NULL: none
    int shifts;
} Terms;

static void add_to(First *f, const Ex **sum, const Ex *e, bool minus) {
    if (!*sum)
        *sum = minus ? simp_1(f->p, EX_NEG, e) : e;
    else
        *sum = simp_2(f->p, minus ? EX_SUB : EX_ADD, *sum, e);
}

static void collect(First *f, const Ex *e, bool minus, Terms *t) {
    bool elem = row_has_element(e);
    if (e->op == EX_SYM && e->sym == SYM_SHIFT && e->index == f->shift) {
        t->shifts++;
        f->failed |= minus;
    } else if (e->op == EX_ADD || e->op == EX_SUB) {
        collect(f, e->args[0], minus, t);
        collect(f, e->args[1], minus != (e->op == EX_SUB), t);
    } else {
        f->failed |= ex_uses(e, SYM_SHIFT, f->shift);
        add_to(f, elem ? &t->elem : &t->row, e, minus);
    }
}

// What a shift is subtracted from goes into no fma; nor does a quotient, which may stay approximate.
static const Ex *uncontracted(First *f, const Ex *x) {
    const Ex *reduced = as_reduced(f, x);
    if (reduced) x = reduced;
    const Ex *made = ex_is_sym(x, SYM_S, -1) ? f->s->row->modified : x;
    return made->op == EX_DIV ? x : simp_1(f->p, EX_ROUNDED, x);
}

// (x / unit + shift) * unit
static const Ex *difference(First *f, const Ex *x, const Ex *shift) {
    ExPool *p = f->p;
    if (x) x = simp_2(p, EX_ADD, uncontracted(f, x), shift);
    x = simp_2(p, EX_MUL, x ? x : shift, ex_f32(p, fabsf(f->by)));
    return f->scale ? simp_2(p, EX_MUL, x, f->scale) : x;
}

// x * unit + shift, in the unit that the shift has by its size.
static const Ex *large_sum(First *f, const Ex *x, const Ex *shift) {
    ExPool *p = f->p;
    if (!x) return shift;
    x = as_reduced(f, x);
    f->failed |= !x;
    if (f->failed) return shift;
    const Ex *unit = large_unit(p, shift, fabs((double)f->by), f->large);
    return simp_2(p, EX_ADD, simp_2(p, EX_MUL, x, unit), shift);
}

// x * unit + rounded(shift * unit), where the shift's size says which unit.
static const Ex *own_sum(First *f, const Ex *x, const Ex *shift) {
    ExPool *p = f->p;
    const Ex *unit = large_own_unit(p, shift, fabs((double)f->by), f->own);
    shift = simp_1(p, EX_ROUNDED, simp_2(p, EX_MUL, shift, unit));
    if (!x) return shift;
    return simp_2(p, EX_ADD, simp_2(p, EX_MUL, uncontracted(f, x), unit), shift);
}

// exp2(x + shift + row), another way. Without an x the shift stands alone: exp(s - m) - exp(-m).
static const Ex *rewritten_power(void *ctx, ExPool *p, const Ex *e) {
    First *f = ctx;
    Terms t = {NULL, NULL, 0};
    if (e->op != EX_EXP2 || !ex_uses(e, SYM_SHIFT, f->shift)) return e;
    collect(f, e->args[0], false, &t);
    f->failed |= t.shifts != 1;
    if (f->failed) return e;
    const Ex *shift = ex_sym(p, SYM_SHIFT, f->shift, EX_F32), *x = NULL;
    if (t.elem) x = divided(f, t.elem, 1 / fabs((double)f->by), f->scale);
    x = f->large ? large_sum(f, x, shift) : f->own ? own_sum(f, x, shift) : difference(f, x, shift);
    return simp_1(p, EX_EXP2, t.row ? simp_2(p, EX_ADD, x, t.row) : x);
}

static const Ex *rewritten(First *f, const Ex *e) {
    if (!ex_uses(e, SYM_SHIFT, f->shift)) return e;
    return ex_simplify(f->p, ex_map(f->p, simp_open(f->p, e), rewritten_power, f));
}

// All that has the shift in an exponent.
static bool rewrite_powers(Arena *a, First *f) {
    Stream *s = f->s;
    int n = s->states.n;
    const Ex **elem = ARENA_ARRAY(a, const Ex *, n + 1);
    for (int i = 0; i < n; i++) elem[i] = rewritten(f, s->states.data[i].elem);
    elem[n] = rewritten(f, s->elem);
    if (f->failed) return false;
    for (int i = 0; i < n; i++) s->states.data[i].elem = elem[i];
    s->elem = elem[n];
    return true;
}

typedef struct Tameness {
    const RowProgram *row;
    int shift;
    bool wild, small; // small: what rounding the shift loses hardly shows
} Tameness;

static bool cancels(Arena *a, const Stream *s, bool half);

static void ask_exponent(void *ctx, const Ex *e) {
    Tameness *t = ctx;
    if (e->op != EX_EXP2 || !ex_uses(e, SYM_SHIFT, t->shift)) return;
    t->wild |= !row_tame(t->row, e->args[0]);
    t->small = t->small && row_small(t->row, e->args[0]);
}

// Where scores may be large, what the product with the unit rounds is large too, and would stand in
// an exponent: the extremum is subtracted as it is. Where all weights of a row may be off by one factor it may be rounded once, and
// an element is one fma.
static void subtract_first(Arena *a, Stream *s, int shift, LargeFrom from, bool half) {
    First f = {.s = s, .p = s->row->pool, .shift = shift, .by = 1};
    const Ex *raw = simp_open(f.p, s->shifts.data[shift]);
    if (!find_unit(&f, raw) || !isnormal(f.by)) return;
    raw = divided(&f, raw, 1 / fabs((double)f.by), f.scale);
    if (!f.scale && fabsf(f.by) <= LARGEST_OWN && cancels(a, s, half)) f.own = from;
    if (!rewrite_powers(a, &f)) return;
    s->shifts.data[shift] = ex_simplify(f.p, raw);
    const Ex *unit = ex_f32(f.p, fabsf(f.by));
    s->units.data[shift] = f.scale ? simp_2(f.p, EX_MUL, f.scale, unit) : unit;
    const Ex *number = ex_sym(f.p, SYM_SHIFT, shift, EX_F32);
    if (f.own) s->units.data[shift] = large_own_unit(f.p, number, fabs((double)f.by), f.own);
}

// ---- in the new units

// What a state is, of what is carried.
static const Ex *natural(const Units *u, const Ex *state) {
    float unit = u->unit[state->index];
    if (!u->large[state->index]) return scaled(u->p, state, 1 / unit);
    return ex_2(u->p, EX_MUL, state, large_inverse(u->p, state, (double)unit, u->from));
}

static const Ex *replace_state(void *ctx, ExPool *p, const Ex *e) {
    const Units *u = ctx;
    if (e->op == EX_SYM && e->sym == SYM_STATE) return natural(u, e);
    bool compared = e->op == EX_EQ || e->op == EX_NE; // with the start, which has no unit
    if (!compared || e->args[1]->op != EX_CONST || e->args[1]->type != EX_F32) return e;
    const Ex *a = e->args[0];
    bool product = isinf(e->args[1]->f) && a->op == EX_MUL && a->args[0]->op == EX_SYM;
    if (!product || a->args[0]->sym != SYM_STATE) return e;
    return ex_2(p, e->op, a->args[0], e->args[1]);
}

static const Ex *in_units(const Units *u, const Ex *e) {
    if (!e || !ex_uses(e, SYM_STATE, -1)) return e;
    return ex_simplify(u->p, ex_map(u->p, e, replace_state, (void *)u));
}

// e * by, factors taken as far inwards as they go.
static const Ex *inwards(const Units *u, const Ex *e, float by) {
    ExPool *p = u->p;
    if (!ex_uses(e, SYM_STATE, -1))
        return u->shift ? large_product(p, e, (double)by, u->from) : scaled(p, e, by);
    switch ((int)e->op) {
    case EX_SYM: by /= u->unit[e->index]; return by == -1 ? ex_1(p, EX_NEG, e) : scaled(p, e, by);
    case EX_NEG: return inwards(u, e->args[0], -by);
    case EX_MUL:
        if (e->args[1]->op == EX_CONST) return inwards(u, e->args[0], by * e->args[1]->f);
        break;
    case EX_SELECT:
        return simp_select(p, in_units(u, e->args[0]), inwards(u, e->args[1], by),
                           inwards(u, e->args[2], by));
    case EX_MAX:
    case EX_MIN: {
        float size = fabsf(by);
        const Ex *x = simp_2(p, e->op, inwards(u, e->args[0], size), inwards(u, e->args[1], size));
        return by < 0 ? simp_1(p, EX_NEG, x) : x;
    }
    default: break;
    }
    return scaled(p, in_units(u, e), by);
}

static bool follows_large(const Stream *s, const Units *u, int shift) {
    for (int i = 0; i < s->states.n; i++)
        if (u->large[i] && ex_uses(s->shifts.data[shift], SYM_STATE, i)) return true;
    return false;
}

static const Ex *carried(const Units *u, const StreamState *st, int i) {
    if (!u->large[i]) return scaled(u->p, st->elem, u->unit[i]);
    return large_product(u->p, simp_open(u->p, st->elem), (double)u->unit[i], u->from);
}

static void change_units(Stream *s, Units *u) {
    for (int i = 0; i < s->shifts.n; i++) {
        u->shift = follows_large(s, u, i);
        s->shifts.data[i] = ex_simplify(u->p, inwards(u, s->shifts.data[i], 1));
    }
    for (int i = 0; i < s->states.n; i++)
        s->states.data[i].elem = carried(u, &s->states.data[i], i);
    for (int i = 0; i < s->finished.n; i++) s->finished.data[i] = in_units(u, s->finished.data[i]);
    for (int i = 0; i < s->emits.n; i++) s->emits.data[i] = in_units(u, s->emits.data[i]);
    s->factor = in_units(u, s->factor);
    s->empty = in_units(u, s->empty);
}

static void carry_in_units(Arena *a, Stream *s, bool *large, LargeFrom from) {
    int n = s->states.n;
    Units u = {
        .p = s->row->pool, .unit = ARENA_ARRAY(a, float, n + 1), .large = large, .from = from};
    bool any = false;
    for (int i = 0; i < n; i++) any |= (u.unit[i] = unit_for(s, i)) != 1;
    if (any) change_units(s, &u);
}

static void *copied(Arena *a, const void *data, size_t size) {
    void *copy = arena_alloc(a, size + 1);
    if (size) memcpy(copy, data, size);
    return copy;
}

// ---- states that may be large

static float by_in(const Stream *s, int shift, int state) {
    return fabsf(multiple_in(simp_open(s->row->pool, s->shifts.data[shift]), state, 1));
}

// A shift that follows the state by a product that may be large and is rounded.
static bool is_residual(const Stream *s, int shift, int state, LargeFrom from) {
    ExPool *p = s->row->pool;
    if (s->units.data[shift] || !ex_uses(s->shifts.data[shift], SYM_STATE, state)) return false;
    float by = by_in(s, shift, state);
    const Ex *product = ex_2(p, EX_MUL, s->states.data[state].elem, ex_f32(p, by));
    return !is_power_of_two(by) && !(by != 0 && row_within(s->row, product, ldexp(1, (int)from)));
}

static bool has_one_extremum(const Stream *s, int shift) {
    int n = 0;
    for (int i = 0; i < s->states.n; i++) n += ex_uses(s->shifts.data[shift], SYM_STATE, i);
    return n == 1;
}

// The elements of all shifts that follow the state; false: one cannot be written so.
static bool write_large(Arena *a, Stream *s, int state, LargeFrom from) {
    float unit = unit_for(s, state);
    size_t size = sizeof *s->states.data * (size_t)s->states.n;
    const StreamState *states = copied(a, s->states.data, size);
    const Ex *elem = s->elem;
    bool all = unit != 1 && row_most(s->row, s->states.data[state].elem) < LARGEST;
    for (int k = 0; k < s->shifts.n && all; k++) {
        if (!ex_uses(s->shifts.data[k], SYM_STATE, state)) continue;
        First f = {.s = s, .p = s->row->pool, .shift = k, .by = unit, .large = from};
        all = by_in(s, k, state) == unit && has_one_extremum(s, k) && rewrite_powers(a, &f);
    }
    if (!all) {
        memcpy(s->states.data, states, size);
        s->elem = elem;
    }
    return all;
}

// What an exponent has left at the maximum stays small: in a unit that is a power of two where
// scores are large, or by a subtraction.
static bool settle_large(Arena *a, Stream *s, int state, LargeFrom from, bool half) {
    bool any = false;
    for (int k = 0; k < s->shifts.n; k++) any |= is_residual(s, k, state, from);
    if (!any) return false;
    if (write_large(a, s, state, from)) return true;
    for (int k = 0; k < s->shifts.n; k++)
        if (is_residual(s, k, state, from)) subtract_first(a, s, k, from, half);
    return false;
}

static bool is_power_of_row(void *ctx, const Ex *e) {
    (void)ctx;
    return (e->op == EX_EXP || e->op == EX_EXP2) && ex_uses(e, SYM_R, -1);
}

// A sink's exp(sink - m), which is not off by what the sums are off by.
static bool has_power_beside(const Stream *s) {
    bool has = s->factor && ex_any(s->factor, is_power_of_row, NULL);
    for (int i = 0; i < s->emits.n; i++) has |= ex_any(s->emits.data[i], is_power_of_row, NULL);
    return has;
}

// Whether all weights and sums may be off by the same factor: softmax divides it out, and
// exp(s - m) / (l + 1) does not. Asked in the units of the exponents, on a copy.
static bool cancels(Arena *a, const Stream *s, bool half) {
    if (!half && has_power_beside(s)) return false;
    Stream t = *s;
    int sum, extremum;
    t.states.data = copied(a, t.states.data, sizeof *t.states.data * (size_t)t.states.n);
    t.shifts.data = copied(a, t.shifts.data, sizeof *t.shifts.data * (size_t)t.shifts.n);
    t.finished.data = copied(a, t.finished.data, sizeof *t.finished.data * (size_t)t.finished.n);
    t.emits.data = copied(a, t.emits.data, sizeof *t.emits.data * (size_t)t.emits.n);
    carry_in_units(a, &t, ARENA_ARRAY(a, bool, t.states.n + 1), 0);
    return pass_may_fix_shift(&t, &sum, &extremum);
}

// ---- in later sweeps

static bool is_finished_extremum(const Stream *s, const Ex *e) {
    if (e->op == EX_NEG) e = e->args[0];
    if (e->op != EX_SYM || e->sym != SYM_R) return false;
    for (int i = 0; i < s->states.n; i++)
        if (s->states.data[i].op != EX_ROWSUM && ex_uses(s->finished.data[e->index], SYM_STATE, i))
            return true;
    return false;
}

// A product that an extremum is subtracted from is rounded as the extremum was: at the extremum
// itself the difference is 0.
static const Ex *round_product(void *ctx, ExPool *p, const Ex *e) {
    if (e->op != EX_ADD && e->op != EX_SUB) return e;
    for (int k = 0; k < 2; k++) {
        const Ex *x = e->args[k], *m = e->args[1 - k];
        if (x->op != EX_MUL || !row_has_element(x) || !is_finished_extremum(ctx, m)) continue;
        x = simp_1(p, EX_ROUNDED, x);
        m = simp_1(p, EX_ROUNDED, m);
        return k ? simp_2(p, e->op, m, x) : simp_2(p, e->op, x, m);
    }
    return e;
}

static const Ex *round_exponent(void *ctx, ExPool *p, const Ex *e) {
    const Stream *s = ctx;
    if (e->op != EX_EXP2 || row_small(s->row, e->args[0])) return e;
    return simp_1(p, EX_EXP2, ex_map(p, e->args[0], round_product, ctx));
}

static const Ex *rounded_exponents(Stream *s, const Ex *e) {
    ExPool *p = s->row->pool;
    if (!ex_uses(e, SYM_R, -1)) return e;
    return ex_simplify(p, ex_map(p, simp_open(p, e), round_exponent, s));
}

// What rounds weights to 16 bits hides what hardly shows.
static bool is_wild(Arena *a, const Stream *s, int shift, bool half) {
    Tameness t = {s->row, shift, false, half};
    for (int i = 0; i < s->states.n; i++)
        t.wild |= s->states.data[i].exact && ex_uses(s->shifts.data[shift], SYM_STATE, i);
    for (int i = 0; i < s->states.n; i++) ex_visit(s->states.data[i].elem, ask_exponent, &t);
    ex_visit(s->elem, ask_exponent, &t);
    return t.wild || (!t.small && !cancels(a, s, half));
}

void pass_exact_shifts(Arena *a, Stream *s, bool narrows) {
    LargeFrom from = narrows ? LARGE_FROM_HALF : LARGE_FROM;
    bool half = narrows || s->row->bf16; // what weights become
    bool *large = ARENA_ARRAY(a, bool, s->states.n + 1);
    for (int i = 0; i < s->shifts.n; i++)
        if (is_wild(a, s, i, half)) subtract_first(a, s, i, from, half);
    for (int i = 0; i < s->states.n; i++)
        if (s->states.data[i].op != EX_ROWSUM) large[i] = settle_large(a, s, i, from, half);
    for (int i = 0; i < s->states.n; i++)
        s->states.data[i].elem = rounded_exponents(s, s->states.data[i].elem);
    s->elem = rounded_exponents(s, s->elem);
    carry_in_units(a, s, large, from);
}

bool pass_shift_is_exact(const Ex *e) {
    switch ((int)e->op) {
    case EX_CONST:
    case EX_SYM: return true;
    case EX_NEG: return pass_shift_is_exact(e->args[0]);
    case EX_MUL: // by a power of two: nothing is rounded
        return e->args[1]->op == EX_CONST && is_power_of_two(e->args[1]->f) &&
               pass_shift_is_exact(e->args[0]);
    case EX_MAX:
    case EX_MIN: return pass_shift_is_exact(e->args[0]) && pass_shift_is_exact(e->args[1]);
    case EX_SELECT: return pass_shift_is_exact(e->args[1]) && pass_shift_is_exact(e->args[2]);
    default: return !ex_uses(e, SYM_STATE, -1) && !ex_uses(e, SYM_R, -1); // the same at every tile
    }
}
