// fixed_shift.c: streams whose shifts need not follow their extrema.
//
// In: a streaming form. Out: whether what it gives stays the same whatever number stands where its
// extremum does, the shifted sums being of that number:
//
//     m = rowmax(s);  l = rowsum(exp(s - m));  lse = m + log(l);  w = exp(s - m) / l       yes
//     the same, and emit m                                                                 no: m itself is seen
//
// Softmax in all its forms is like that (with a sink, with one added, with its log-sum-exp). Whether a
// stream is is found by computing: its results at random states, and at those that another extremum
// would have left. The two agree for all numbers or, but for accidents, for none of a few tries.
//
// A weight may then be as large as its type lets it: that it was not too large is asked of a state
// that is the sum of all weights, which are positive.
#include "fixed_shift.h"

#include <math.h>

enum { TRIES = 6, MAX_STATES = 16, MAX_NEST = 64 };

typedef struct Trial {
    const Stream *s;
    unsigned seed;
    double state[MAX_STATES];
    int depth; // of finished reductions in each other
} Trial;

// From 1 to 3, the same for the same question.
static double number(unsigned seed, unsigned a, unsigned b) {
    uint64_t h = seed * UINT64_C(0x9e3779b97f4a7c15) + a * UINT64_C(0xbf58476d1ce4e5b9) +
                 b * UINT64_C(0x94d049bb133111eb);
    h = (h ^ h >> 31) * UINT64_C(0xd6e8feb86659fd93);
    return 1.0 + (double)(h >> 40) / (double)(1 << 23);
}

static ExValue value_of(Trial *t, const Ex *e);

static ExValue given(const Ex *e, double f) {
    ExValue v = {.f = f};
    if (e->type != EX_F32) v.i = (int32_t)(f * 4);
    if (e->type == EX_BOOL) v.i = 1;
    return v;
}

static ExValue sym_of(void *ctx, const Ex *e) {
    Trial *t = ctx;
    if (e->sym == SYM_STATE) return (ExValue){.f = t->state[e->index]};
    if (e->sym == SYM_R && t->depth < MAX_NEST) return value_of(t, t->s->finished.data[e->index]);
    return given(e, number(t->seed, 1 + (unsigned)e->sym, 1 + (unsigned)e->index));
}

static ExValue load_of(void *ctx, const Ex *e, const int32_t *index) {
    const Trial *t = ctx;
    (void)index;
    return given(e, number(t->seed, 100, 1 + (unsigned)e->input));
}

static ExValue value_of(Trial *t, const Ex *e) {
    ExEnv env = {.sym = sym_of, .load = load_of, .ctx = t};
    t->depth++;
    ExValue v = ex_eval(e, &env);
    t->depth--;
    return v;
}

bool pass_moves_shift(const Stream *s, int state) {
    for (int i = 0; i < s->shifts.n; i++)
        if (s->states.data[state].op != EX_ROWSUM && ex_uses(s->shifts.data[i], SYM_STATE, state))
            return true;
    return false;
}

static double factor_of(Trial *t) { return t->s->factor ? value_of(t, t->s->factor).f : 1.0; }

static bool alike(double a, double b) {
    return isfinite(a) && isfinite(b) && fabs(a - b) <= 1e-6 * (fabs(a) + fabs(b)) + 1e-9;
}

// What sums are multiplied by when the shift is that of the second trial.
static double moved_by(Trial *a, Trial *b) {
    const Stream *s = a->s;
    const Ex *shift = s->shifts.data[s->shift], *unit = s->units.data[s->shift];
    double step = value_of(b, shift).f - value_of(a, shift).f;
    return exp2(unit ? step * value_of(a, unit).f : step);
}

static bool agree(Trial *a, Trial *b, double moved) {
    const Stream *s = a->s;
    if (!alike(factor_of(a), factor_of(b) * moved)) return false;
    if (s->empty && (value_of(a, s->empty).i || value_of(b, s->empty).i)) return false;
    for (int i = 0; i < s->emits.n; i++)
        if (!alike(value_of(a, s->emits.data[i]).f, value_of(b, s->emits.data[i]).f)) return false;
    return alike(value_of(a, s->row->output).f, value_of(b, s->row->output).f);
}

static bool try_once(const Stream *s, unsigned seed) {
    Trial a = {.s = s, .seed = seed}, b = a;
    for (int i = 0; i < s->states.n; i++) {
        a.state[i] = b.state[i] = number(seed, 200, (unsigned)i);
        if (pass_moves_shift(s, i)) b.state[i] = number(seed, 201, (unsigned)i);
    }
    double moved = moved_by(&a, &b);
    if (!isfinite(moved)) return false;
    for (int i = 0; i < s->states.n; i++)
        if (s->states.data[i].shift == s->shift) b.state[i] = a.state[i] * moved;
    return agree(&a, &b, moved);
}

// A power, or one with 0 in place of it: positive, and what the others are shifted like.
static bool is_power(const Ex *e) {
    if (e->op == EX_SELECT)
        return ex_is_f32(e->args[1], 0.0f) ? is_power(e->args[2])
                                           : ex_is_f32(e->args[2], 0.0f) && is_power(e->args[1]);
    return e->op == EX_EXP2;
}

static int sum_of_weights(const Stream *s) {
    for (int i = 0; i < s->states.n; i++) {
        const StreamState *st = &s->states.data[i];
        if (st->op == EX_ROWSUM && st->shift == s->shift && st->elem == s->elem) return i;
    }
    return -1;
}

bool pass_may_fix_shift(const Stream *s, int *bound) {
    if (s->nsweeps != 1 || s->shift < 0 || s->shifts.n != 1) return false;
    if (s->states.n > MAX_STATES || !is_power(s->elem)) return false;
    int extrema = 0;
    for (int i = 0; i < s->states.n; i++) extrema += pass_moves_shift(s, i);
    *bound = sum_of_weights(s);
    if (extrema != 1 || *bound < 0) return false;
    for (unsigned i = 0; i < TRIES; i++)
        if (!try_once(s, i + 1)) return false;
    return true;
}
