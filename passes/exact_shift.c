// exact_shift.c: extrema are carried in the unit of the exponents that they shift.
//
// In: a streaming form. Out: the same, where the shift is a state as it is carried, with nothing
// left to round:
//
//     m = max s;           A = m * -0.18     ->     m = max (s * 0.18);         A = -m
//     m = max s;           A = max(m * 0.125, sink) * -1.44
//                                            ->     m = max (s * 0.18);         A = -max(m, sink * 1.44)
//
// Why: sums are rescaled by exp2(A' - A), which must be exactly 1 where A did not move, or they
// drift with every tile. A rounded product that is made again may be an fma's, which is not rounded;
// then the old number must be carried too. Rounding is monotone, so the maximum of the products is
// the product of the maximum: a tile is still reduced over the bare score.
#include "passes/exact_shift.h"

#include "passes/simplify.h"
#include "passes/simplify_rules.h"

#include <math.h>

// Beyond, a state's own precision would suffer from the unit: its products may leave f32.
static const float LEAST_UNIT = 0x1p-40f, LARGEST_UNIT = 0x1p40f;

typedef struct Units {
    ExPool *p;
    float *unit; // by state
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
    for (int i = 0; i < s->states.n; i++)
        if (is_element_of(s, s->states.data[i].elem, state)) return true;
    return is_element_of(s, s->elem, state);
}

// The accumulator's shift has the first say.
static float unit_for(const Stream *s, int state) {
    if (s->states.data[state].op == EX_ROWSUM || meets_keys(s, state)) return 1;
    float by = s->shift < 0 ? 0 : multiple_in(s->shifts.data[s->shift], state, 1);
    for (int i = 0; i < s->shifts.n && by == 0; i++) by = multiple_in(s->shifts.data[i], state, 1);
    by = fabsf(by);
    bool fits = by >= LEAST_UNIT && by <= LARGEST_UNIT;
    return fits && !is_power_of_two(by) ? by : 1;
}

// ---- in the new units

static const Ex *replace_state(void *ctx, ExPool *p, const Ex *e) {
    const Units *u = ctx;
    if (e->op == EX_SYM && e->sym == SYM_STATE) return scaled(p, e, 1 / u->unit[e->index]);
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
    if (!ex_uses(e, SYM_STATE, -1)) return scaled(p, e, by);
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

static void change_units(Stream *s, const Units *u) {
    for (int i = 0; i < s->shifts.n; i++)
        s->shifts.data[i] = ex_simplify(u->p, inwards(u, s->shifts.data[i], 1));
    for (int i = 0; i < s->states.n; i++)
        s->states.data[i].elem = scaled(u->p, s->states.data[i].elem, u->unit[i]);
    for (int i = 0; i < s->finished.n; i++) s->finished.data[i] = in_units(u, s->finished.data[i]);
    for (int i = 0; i < s->emits.n; i++) s->emits.data[i] = in_units(u, s->emits.data[i]);
    s->factor = in_units(u, s->factor);
    s->empty = in_units(u, s->empty);
}

void pass_exact_shifts(Arena *a, Stream *s) {
    Units u = {.p = s->row->pool, .unit = ARENA_ARRAY(a, float, s->states.n + 1)};
    bool any = false;
    for (int i = 0; i < s->states.n; i++) any |= (u.unit[i] = unit_for(s, i)) != 1;
    if (any) change_units(s, &u);
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
