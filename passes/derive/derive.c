// derive.c: from row mathematics to the streaming form.
//
// In: a row program. Out: sweeps over the keys with their running states, shifts and deferred
// factors (ir/stream.h).
//
//     m = rowmax(s); l = rowsum(exp(s - m)); w = exp(s - m) / l
//     ->  one sweep: m = max s*log2e;  A = -m;  l = sum exp2(s*log2e + A);
//                    acc = sum exp2(s*log2e + A) v;  then acc / l
//
// Holds afterwards: the reductions are handled in their order, each in the sweep of the deepest one
// it depends on where its normal form allows that, else in the one after. Everything that is used
// is proved: a masked key (s = -inf) adds a state's identity, a shift is finite in a row with keys
// and never NaN nor -inf in one without, an empty row gives 0.
#include "passes/derive/derive.h"

#include "passes/derive/decide.h"
#include "passes/derive/exact_shift.h"
#include "passes/derive/fixed_shift.h"
#include "passes/derive/magnitude.h"
#include "passes/derive/normal_form.h"
#include "passes/derive/powers.h"
#include "passes/derive/tame.h"
#include "passes/derive/unscale.h"
#include "passes/simplify/rules.h"
#include "passes/simplify/simplify.h"

#include <assert.h>
#include <math.h>

typedef struct Derive {
    Arena *arena, *scratch;
    ExPool *p;
    const RowProgram *row;
    Diags *diags;
    Stream *out;
    int n;              // reductions
    bool *needed;       // by the weight or an emit
    int *sweep;         // of each needed reduction
    bool *running;      // max and min whose finished value stands on running states and on earlier
                        // sweeps only
    const Ex **reduced; // what each reduces, simplified
    ClassSet *full;     // classes of each reduction in a row with keys
    ClassSet *empty;    // ... and without
    ClassSet *loose;    // full or empty, with f32's overflow and underflow
    ClassSet *any;      // full or empty
    ExMemo uses;        // const bool * by the reductions
    bool narrows;       // weights become f16
    bool counts;        // the row without a key is told from others
} Derive;

static ClassSet identity_class(ExOp op) {
    return op == EX_ROWMAX ? CL_NINF : op == EX_ROWMIN ? CL_PINF : CL_ZERO;
}

static const Ex *identity(ExPool *p, ExOp op) { return ex_f32(p, (float)ex_identity(op)); }

// ---- what is needed, and what it can be

static void note_use(void *ctx, const Ex *e) {
    if (e->op == EX_SYM && e->sym == SYM_R) ((bool *)ctx)[e->index] = true;
}

// Which reductions an expression refers to.
static const bool *uses(Derive *d, const Ex *e) {
    bool *used = ex_memo_get(&d->uses, e);
    if (used) return used;
    used = ARENA_ARRAY(d->scratch, bool, d->n + 1);
    ex_visit(e, note_use, used);
    ex_memo_put(d->scratch, &d->uses, e, used);
    return used;
}

static void need(Derive *d, const Ex *e) {
    for (int k = 0; k < d->n; k++)
        if (uses(d, e)[k]) d->needed[k] = true;
}

static void find_needed(Derive *d) {
    need(d, d->row->weight);
    for (int i = 0; i < d->row->emits.n; i++) need(d, d->row->emits.data[i].value);
    for (int k = d->n - 1; k >= 0; k--) // what it uses stands before it
        if (d->needed[k]) need(d, d->row->reduces.data[k].f);
}

static void find_classes(Derive *d, int k) {
    const RowReduce *r = &d->row->reduces.data[k];
    ClassEnv full = {.s = CL_FINITE, .r = d->full},
             loose = {.s = CL_FINITE, .r = d->loose, .limited = true};
    d->full[k] = class_reduced(r, &full);
    d->empty[k] = identity_class(r->op);
    d->any[k] = d->full[k] | d->empty[k];
    d->loose[k] = class_reduced(r, &loose) | d->empty[k];
}

// ---- states and shifts

// A masked key must leave the state as it was. It stands as s = -inf; what the formula cannot be
// proved to give there is selected.
static const Ex *guarded(Derive *d, ExOp op, const Ex *elem) {
    ClassEnv env = {.s = CL_NINF, .r = d->loose, .limited = true};
    if (class_of(elem, &env) == identity_class(op)) return elem;
    const Ex *s = ex_symbol(d->p, SYM_S), *none = ex_f32(d->p, -INFINITY);
    return simp_select(d->p, ex_2(d->p, EX_EQ, s, none), identity(d->p, op), elem);
}

static int add_own_state(Derive *d, StreamState st) {
    st.elem = ex_simplify(d->p, guarded(d, st.op, st.elem));
    VEC_PUSH(d->arena, &d->out->states, st);
    return d->out->states.n - 1;
}

static int add_state(Derive *d, StreamState st) {
    Stream *s = d->out;
    st.elem = ex_simplify(d->p, guarded(d, st.op, st.elem));
    for (int i = 0; i < s->states.n; i++) {
        const StreamState *o = &s->states.data[i];
        bool same = o->op == st.op && o->sweep == st.sweep && o->elem == st.elem &&
                    o->shift == st.shift && o->scale == st.scale;
        if (!same) continue;
        s->states.data[i].exact |= st.exact;
        return i;
    }
    return add_own_state(d, st);
}

static const Ex *state(Derive *d, int i) { return ex_sym(d->p, SYM_STATE, i, EX_F32); }

// Reductions of this sweep by the states that run for them.
static const Ex *running_value(Derive *d, const Ex *e, int sweep) {
    for (int k = 0; k < d->out->finished.n; k++)
        if (d->needed[k] && d->sweep[k] == sweep && uses(d, e)[k])
            e = ex_subst(d->p, e, SYM_R, k, d->out->finished.data[k]);
    return e;
}

static ClassSet shift_class(const Ex *raw, const ClassSet *r) {
    ClassEnv env = {.s = CL_FINITE, .r = r};
    return class_of(raw, &env);
}

// Whether a shift and all extrema that it stands on are finite in every row with keys. Such extrema
// leave their starting values together, with the first key.
static bool shift_is_sound(Derive *d, const Ex *raw, int sweep) {
    for (int k = 0; k < d->n; k++)
        if (d->needed[k] && d->sweep[k] == sweep && d->full[k] & ~(unsigned)CL_FINITE &&
            uses(d, raw)[k])
            return false;
    return !(shift_class(raw, d->full) & ~(unsigned)CL_FINITE);
}

// Until a sweep has seen a key, a shift must be +inf or finite, so that what was accumulated, 0, is
// rescaled by a number. The formula gives that where it is a maximum with a minus; otherwise it is
// selected.
static const Ex *shift_from_start(Derive *d, const Ex *raw, int sweep) {
    ClassSet *before = ARENA_ARRAY(d->scratch, ClassSet, d->n);
    const Ex *none = NULL; // no key yet
    for (int k = 0; k < d->n; k++) {
        bool moves = d->needed[k] && d->sweep[k] == sweep;
        before[k] = moves ? d->empty[k] : d->full[k];
        if (moves && uses(d, raw)[k])
            none = ex_2(d->p, EX_EQ, ex_sym(d->p, SYM_R, k, EX_F32),
                        identity(d->p, d->row->reduces.data[k].op));
    }
    ClassSet start = shift_class(raw, before) | shift_class(raw, d->empty);
    if (!none || !(start & (CL_NAN | CL_NINF))) return raw;
    return simp_select(d->p, none, ex_f32(d->p, INFINITY), raw);
}

static int add_shift(Derive *d, const Ex *raw, int sweep) {
    raw = ex_simplify(d->p, running_value(d, shift_from_start(d, raw, sweep), sweep));
    for (int i = 0; i < d->out->shifts.n; i++)
        if (d->out->shifts.data[i] == raw) return i;
    VEC_PUSH(d->arena, &d->out->shifts, raw);
    VEC_PUSH(d->arena, &d->out->units, NULL);
    return d->out->shifts.n - 1;
}

// ---- running scales

static int add_scale(Derive *d, StreamScale new, int sweep) {
    for (int i = 0; i < new.n; i++)
        new.base[i] = ex_simplify(d->p, running_value(d, new.base[i], sweep));
    for (int k = 0; k < d->out->scales.n; k++) {
        const StreamScale *old = &d->out->scales.data[k];
        bool same = old->ratio == new.ratio && old->n == new.n;
        for (int i = 0; i < new.n &&same; i++) same = old->base[i] == new.base[i];
        if (same) return k;
    }
    VEC_PUSH(d->arena, &d->out->scales, new);
    return d->out->scales.n - 1;
}

// A sum that is carried as it is, of what is not negative.
static bool is_bare_sum(Derive *d, int k, int sweep) {
    const RowReduce *r = &d->row->reduces.data[k];
    if (r->op != EX_ROWSUM || !d->needed[k] || d->sweep[k] != sweep) return false;
    const Ex *f = d->out->finished.data[k];
    return f->op == EX_SYM && f->sym == SYM_STATE && d->out->states.data[f->index].shift < 0 &&
           d->out->states.data[f->index].scale < 0 &&
           (!(d->full[k] & (CL_NAN | CL_NINF | CL_NEG)) || row_not_negative(d->row, d->reduced[k]));
}

enum { MOST_ABOVE = 24 }; // log2

// The sum of this sweep that the factor has, and of which elem is a part; -1: none.
static int find_sum_above(Derive *d, const Ex *elem, const Ex *factor, int sweep) {
    for (int k = 0; k < d->n; k++) {
        if (!uses(d, factor)[k] || !is_bare_sum(d, k, sweep)) continue;
        const Ex *share = ex_2(d->p, EX_DIV, elem, ex_sym(d->p, SYM_R, k, EX_F32));
        if (row_relative(d->row, share) <= MOST_ABOVE) return k;
    }
    return -1;
}

// Elements that are as large as the sum they are divided by in the end, and with v larger than f32
// holds, are added up as so many times less once the sum is large. What is then lost of the small ones is
// nothing beside it.
static const Ex *smaller(Derive *d, const Ex *sum) {
    ExPool *p = d->p;
    const Ex *large = ex_2(p, EX_LT, ex_f32(p, 0x1p62f), sum);
    return ex_select(p, large, ex_f32(p, 0x1p-64f), ex_f32(p, 1));
}

// factor / c, where c goes into a divisor that has the sum.
static const Ex *factor_over(Derive *d, const Ex *factor, int k, const Ex *c) {
    const Ex *a = factor->nargs ? factor->args[0] : NULL,
             *b = factor->nargs > 1 ? factor->args[1] : NULL;
    ExPool *p = d->p;
    if (factor->op == EX_RCP && uses(d, a)[k]) return simp_1(p, EX_RCP, simp_2(p, EX_MUL, a, c));
    if (factor->op == EX_DIV && uses(d, b)[k]) return simp_2(p, EX_DIV, a, simp_2(p, EX_MUL, b, c));
    if (factor->op == EX_DIV && uses(d, a)[k]) return simp_2(p, EX_DIV, factor_over(d, a, k, c), b);
    if (factor->op == EX_MUL && uses(d, a)[k]) return simp_2(p, EX_MUL, factor_over(d, a, k, c), b);
    if (factor->op == EX_MUL && uses(d, b)[k]) return simp_2(p, EX_MUL, a, factor_over(d, b, k, c));
    return simp_2(p, EX_DIV, factor, c);
}

// The weight's element and factor, both with such a scale where one is needed.
static void scale_by_sum(Derive *d, NormalForm *nf, int sweep) {
    if (!nf->wide) return;
    int k = find_sum_above(d, nf->elem, nf->factor, sweep);
    if (k < 0) return;
    const Ex *sum = ex_sym(d->p, SYM_R, k, EX_F32), *c = smaller(d, sum);
    nf->scale = (StreamScale){.ratio = ex_sym(d->p, SYM_RISE, 0, EX_F32), .base = {c}, .n = 1};
    nf->elem = ex_2(d->p, EX_MUL, nf->elem, c);
    nf->factor = factor_over(d, nf->factor, k, c);
}

// ---- placing a reduction or the weight in a sweep

// What e is like when reductions of `sweep` are not finished; `only` >= 0 takes all but that one as
// finished.
static bool separable(Derive *d, const Ex *e, int sweep, int only, NormalForm *nf) {
    NfMotion *motion = ARENA_ARRAY(d->scratch, NfMotion, d->n);
    for (int k = 0; k < d->n; k++) {
        bool open = d->needed[k] && d->sweep[k] == sweep && (only < 0 || only == k);
        bool rises = d->row->reduces.data[k].op == EX_ROWMAX;
        motion[k] = !open            ? NF_KNOWN
                    : !d->running[k] ? NF_SETTLING
                    : rises          ? NF_RISING
                                     : NF_FALLING;
    }
    NfRow row = {motion, d->full, d->reduced, d->row};
    return normal_form(d->p, e, &row, nf) && (!nf->shift || shift_is_sound(d, nf->shift, sweep));
}

static bool uses_open(Derive *d, const Ex *e, int sweep) {
    for (int k = 0; k < d->n; k++)
        if (d->needed[k] && d->sweep[k] == sweep && uses(d, e)[k]) return true;
    return false;
}

// A max or min goes through a positive factor, and has no shift. One that is known already had
// better stay inside: the running value is then the reduction's own. A sum must not leave f32 where
// what its factor makes of it does not.
static bool suits(Derive *d, ExOp op, const NormalForm *nf, int sweep) {
    if (op == EX_ROWSUM) return !nf->wide || find_sum_above(d, nf->elem, nf->factor, sweep) >= 0;
    if (nf->shift || nf->scale.n) return false;
    if (!nf->factor) return true;
    if (nf->factor->op != EX_CONST && !uses_open(d, nf->factor, sweep)) return false;
    ClassEnv env = {.s = CL_FINITE, .r = d->any};
    return class_of(nf->factor, &env) == CL_POS;
}

static int deepest(Derive *d, const Ex *e) {
    int sweep = 0;
    for (int k = 0; k < d->n; k++)
        if (d->needed[k] && d->sweep[k] > sweep && uses(d, e)[k]) sweep = d->sweep[k];
    return sweep;
}

enum { MAX_CULPRITS = 8 }; // tried one by one; among more any is as good a name

// The first reduction that alone keeps e out of this sweep, of the scores before one that only counts
// keys; the last that e uses where it takes several together.
static int find_blocking(Derive *d, const Ex *e, ExOp op, int sweep) {
    int last = -1, counts = -1, tried = 0;
    for (int k = 0; k < d->n && tried < MAX_CULPRITS; k++) {
        if (!d->needed[k] || d->sweep[k] != sweep || !uses(d, e)[k]) continue;
        NormalForm nf;
        bool blocks = !separable(d, e, sweep, k, &nf) || !suits(d, op, &nf, sweep);
        if (blocks && ex_uses(d->row->reduces.data[k].f, SYM_S, 0)) return k;
        if (blocks && counts < 0) counts = k;
        last = k;
        tried++;
    }
    return counts >= 0 ? counts : last;
}

const char *pass_reduce_written(const RowReduce *r, const Diags *diags) {
    const char *text = r->written;
    if (!text && diags) text = diag_quote(diags, r->span);
    return text ? text : r->name;
}

// What would have to hold, and what a formula may say so that it does.
static const char *why_blocked(Derive *d, const Ex *e, int sweep) {
    NormalForm nf;
    NfWhy why = separable(d, e, sweep, -1, &nf) ? NF_RANGE : nf.why;
    switch (why) {
    case NF_UNBOUNDED:
        return "an exponent has no bound beside its shift; sigmoid(x) and tanh(x) have one, and "
               "exp(x) has none";
    case NF_RANGE:
        return "what is summed may leave f32 before it is divided; min(max(x, -1e6), 1e6) bounds x";
    case NF_MIXED: break;
    }
    return "it is neither a factor of all of a key's part nor the shift of its exponents";
}

static void say_blocked(Derive *d, const Ex *e, ExOp op, int sweep, const char *what) {
    int k = find_blocking(d, e, op, sweep);
    assert(k >= 0);
    if (d->out->blocking < 0) d->out->blocking = k;
    if (!d->diags) return;
    const RowReduce *r = &d->row->reduces.data[k];
    bool library = r->call.file && r->call.file != r->span.file; // the user knows its call
    Diag *g = diag_note(
        d->diags, NULL, library ? r->call : r->span,
        "%s needs the finished value of '%s' before its first key: no form of a single sweep was "
        "found, %d sweeps over the keys: %s",
        what, pass_reduce_written(r, d->diags), sweep + 2, why_blocked(d, e, sweep));
    if (r->call.file)
        diag_note(d->diags, g, library ? r->span : r->call,
                  library ? "it stands here" : "in this call");
}

// The sweep in which e is reduced, `least` or later, and its form there.
static int place(Derive *d, const Ex *e, ExOp op, int least, const char *what, NormalForm *nf) {
    int first = deepest(d, e), sweep = first > least ? first : least;
    for (;; sweep++) {
        if (separable(d, e, sweep, -1, nf) && suits(d, op, nf, sweep)) return sweep;
        *nf = (NormalForm){.elem = e};
        if (!uses_open(d, e, sweep)) return sweep; // nothing to wait for: as it stands
        say_blocked(d, e, op, sweep, what);
    }
}

// ---- the row without a key

static int find_extremum_of_s(Derive *d) {
    const Ex *s = ex_symbol(d->p, SYM_S);
    for (int i = 0; i < d->out->states.n; i++) {
        const StreamState *st = &d->out->states.data[i];
        if (st->op != EX_ROWSUM && st->elem == ex_simplify(d->p, guarded(d, st->op, s))) return i;
    }
    return -1;
}

// Of powers that are no less than 2^-126, of every key: more than 0 where there is one.
static int find_sum_of_powers(Derive *d) {
    for (int i = 0; i < d->out->states.n; i++) {
        const StreamState *st = &d->out->states.data[i];
        const Ex *e = st->elem;
        if (e->op == EX_EXP2 && st->op == EX_ROWSUM && st->shift < 0 && st->scale < 0 &&
            row_within(d->row, e->args[0], 126))
            return i;
    }
    return -1;
}

static const Ex *row_is_empty(Derive *d) {
    int i = find_extremum_of_s(d);
    if (i < 0) i = find_sum_of_powers(d);
    if (i < 0) {
        StreamState count = {EX_ROWSUM, 0, ex_f32(d->p, 1), -1, -1, "count", d->row->span, false};
        int before = d->out->states.n;
        i = add_state(d, count);
        if (i == before) d->out->added_count = i; // else the program counts its keys itself
    }
    const StreamState *st = &d->out->states.data[i];
    return ex_2(d->p, EX_EQ, state(d, i), identity(d->p, st->op));
}

// Where the row tells for nothing that it is empty, inputs need not be trusted to be finite either:
// a sink of -inf.
static bool finite_when_empty(Derive *d, const Ex *factor) {
    ClassEnv env = {
        .s = CL_FINITE, .r = d->empty, .wild_inputs = find_extremum_of_s(d) >= 0, .limited = true};
    return !factor || !(class_of(factor, &env) & ~(unsigned)CL_FINITE);
}

// ---- the parts

// What is reduced, with the shift and the running extrema that are its own.
static const Ex *running_elem(Derive *d, const NormalForm *nf, int shift, int sweep) {
    const Ex *elem = nf->scale.n ? running_value(d, nf->elem, sweep) : nf->elem;
    if (shift < 0) return elem;
    return ex_subst(d->p, elem, SYM_SHIFT, NF_SHIFT, ex_sym(d->p, SYM_SHIFT, shift, EX_F32));
}

// A row scalar that sums are multiplied by at the end, so that a launch without any key divides by
// no size of 0: for rows with keys it stays what it was.
static const Ex *outside(Derive *d, const Ex *factor) {
    const Ex *sk = ex_sym(d->p, SYM_SIZE, SIZE_SK, EX_I32);
    if (!factor) return NULL;
    return ex_subst(d->p, factor, SYM_SIZE, SIZE_SK, ex_2(d->p, EX_MAX, sk, ex_i32(d->p, 1)));
}

// The state times its factor; what the row without a key has, where that product may not.
static const Ex *finished_value(Derive *d, const RowReduce *r, int st, const Ex *factor) {
    if (!factor) return state(d, st);
    const Ex *none = NULL, *v = state(d, st), *start = identity(d->p, r->op), *part[MAX_FACTORS];
    int n = row_factors(d->row, factor, part);
    for (int i = 0; i < n; i++) v = simp_2(d->p, EX_MUL, v, part[i]);
    bool constant = factor->op == EX_CONST;
    if (r->op != EX_ROWSUM && !constant) none = ex_2(d->p, EX_EQ, state(d, st), start); // -inf * 0
    if (r->op == EX_ROWSUM && !finite_when_empty(d, factor)) none = row_is_empty(d);
    return ex_simplify(d->p, none ? simp_select(d->p, none, start, v) : v);
}

static void derive_reduction(Derive *d, int k) {
    const RowReduce *r = &d->row->reduces.data[k];
    const Ex *finished = identity(d->p, r->op);
    if (d->needed[k]) {
        NormalForm nf;
        const Ex *f = d->reduced[k] = simp_open(d->p, r->f);
        const char *what = arena_printf(d->arena, "'%s'", pass_reduce_written(r, d->diags));
        int sweep = place(d, f, r->op, 0, what, &nf);
        int shift = nf.shift ? add_shift(d, nf.shift, sweep) : -1;
        int scale = nf.scale.n ? add_scale(d, nf.scale, sweep) : -1;
        StreamState st = {r->op,   sweep,   running_elem(d, &nf, shift, sweep),
                          shift,   scale,   r->name,
                          r->span, r->exact};
        d->running[k] = r->op != EX_ROWSUM && (!nf.factor || nf.factor->op == EX_CONST);
        d->sweep[k] = sweep;
        finished = finished_value(d, r, add_state(d, st), outside(d, nf.factor));
    }
    VEC_PUSH(d->arena, &d->out->finished, finished);
}

// Whether f16 holds the weights' elements, up to 65504, by intervals: as they are, or as they are written.
static bool fits_half(Derive *d, const NormalForm *nf) {
    const Ex *e = nf->elem, *written = d->row->weight;
    if (nf->shift) e = ex_subst(d->p, e, SYM_SHIFT, NF_SHIFT, nf->shift);
    return row_tight(d->row, e) <= log2(HALF_MOST) ||
           (!nf->shift && !nf->factor && row_tight(d->row, written) <= log2(HALF_MOST));
}

// Elements times a power of two, by which the largest so far is between 2^14 and 2^15. A row of less
// than 2^-100 counts as 2^-100.
static void scale_by_largest(Derive *d, NormalForm *nf, int sweep) {
    ExPool *p = d->p;
    StreamState top = {EX_ROWMAX,    sweep, ex_1(p, EX_ABS, nf->elem), -1, -1, "top",
                       d->row->span, false};
    d->out->largest = add_own_state(d, top);
    const Ex *largest = ex_2(p, EX_MAX, state(d, d->out->largest), ex_f32(p, 0x1p-100f)),
             *bits = ex_1(p, EX_FLOOR, ex_1(p, EX_LOG2, largest)),
             *c = ex_simplify(p, ex_1(p, EX_EXP2, ex_2(p, EX_SUB, ex_f32(p, 14), bits)));
    nf->scale = (StreamScale){.ratio = ex_sym(p, SYM_RISE, 0, EX_F32), .base = {c}, .n = 1};
    nf->elem = ex_2(p, EX_MUL, nf->elem, c);
    nf->factor = nf->factor ? ex_2(p, EX_DIV, nf->factor, c) : ex_1(p, EX_RCP, c);
    nf->wide = false;
}

// What an element with a running shift or scale is at most is known when they are: in the next sweep.
static int narrow_weight(Derive *d, const Ex *weight, int sweep, NormalForm *nf) {
    if (!d->narrows || fits_half(d, nf)) return sweep;
    if (nf->shift || nf->scale.n) {
        int k = 0;
        while (!(d->needed[k] && d->sweep[k] == sweep && uses(d, weight)[k])) k++;
        if (d->out->blocking < 0) d->out->blocking = k;
        if (d->diags)
            diag_note(d->diags, NULL, d->row->span,
                      "weights of f16 end at 65504, and those of '%s' are not known to: to scale "
                      "them takes %d sweeps over the keys; bf16 needs no scale",
                      d->row->name, sweep + 2);
        sweep = place(d, weight, EX_ROWSUM, sweep + 1, "the weight", nf);
        if (fits_half(d, nf)) return sweep;
    }
    scale_by_largest(d, nf, sweep);
    return sweep;
}

// A product or quotient with a power of two in the factor that hangs on the key alone; NULL: there is none.
static const Ex *with_lift(ExPool *p, const Ex *e, float power) {
    if (!ex_uses(e, SYM_S, 0) && !ex_uses(e, SYM_SHIFT, -1) && !ex_uses(e, SYM_R, -1))
        return ex_2(p, EX_MUL, e, ex_f32(p, power));
    if (e->op != EX_MUL && e->op != EX_DIV) return NULL;
    const Ex *a = with_lift(p, e->args[0], power);
    if (a) return ex_2(p, e->op, a, e->args[1]);
    const Ex *b = e->op == EX_MUL ? with_lift(p, e->args[1], power) : NULL;
    return b ? ex_2(p, e->op, e->args[0], b) : NULL;
}

// Where values have a factor of their own, its product with the weight may count as 0 though what v makes of it does not: it takes a
// power of two, and what is deferred the same one less. v counts as at most 2^32. (f16 holds weights by a scale of its own.)
static void lift_gate(Derive *d, NormalForm *nf) {
    enum { LIFT = 32, SMALLEST = -126 }; // log2
    ExPool *p = d->p;
    if (!d->row->gates || d->narrows) return;
    Magnitude m = row_magnitude(d->row, nf->elem);
    if (m.least >= SMALLEST + LIFT || m.most > MAGNITUDE_MOST - LIFT) return;
    const Ex *lifted = with_lift(p, nf->elem, ldexpf(1, LIFT)), *less = ex_f32(p, ldexpf(1, -LIFT));
    if (!lifted) return;
    nf->elem = lifted;
    nf->factor = nf->factor ? ex_2(p, EX_MUL, nf->factor, less) : less;
}

static void derive_weight(Derive *d) {
    NormalForm nf;
    int last = 0;
    const Ex *weight = simp_open(d->p, d->row->weight);
    for (int k = 0; k < d->n; k++)
        if (d->needed[k] && d->sweep[k] > last) last = d->sweep[k];
    last = place(d, weight, EX_ROWSUM, last, "the weight", &nf);
    last = narrow_weight(d, weight, last, &nf);
    lift_gate(d, &nf);
    Stream *s = d->out;
    s->nsweeps = last + 1;
    s->shift = nf.shift ? add_shift(d, nf.shift, last) : -1;
    scale_by_sum(d, &nf, last);
    s->scale = nf.scale.n ? add_scale(d, nf.scale, last) : -1;
    s->elem = ex_simplify(d->p, guarded(d, EX_ROWSUM, running_elem(d, &nf, s->shift, last)));
    nf.factor = outside(d, nf.factor);
    s->factor = nf.factor ? ex_simplify(d->p, nf.factor) : NULL;
    s->empty = !d->counts && finite_when_empty(d, nf.factor) ? NULL : row_is_empty(d);
}

// An emit is what its formula gives, for a row without a key that of the reductions' identities;
// where there it may be NaN, -inf instead.
static void derive_emits(Derive *d) {
    ExPool *p = d->p;
    for (int i = 0; i < d->row->emits.n; i++) {
        const Ex *v = d->row->emits.data[i].value;
        ClassEnv env = {.s = CL_FINITE, .r = d->empty, .limited = true};
        if (class_of(v, &env) & CL_NAN) {
            const Ex *none = ex_2(p, EX_AND, row_is_empty(d), ex_2(p, EX_NE, v, v));
            v = ex_select(p, none, ex_f32(p, -INFINITY), v);
        }
        VEC_PUSH(d->arena, &d->out->emits, v);
    }
}

// What was made of a formula stands where the formula does. Names and numbers are shared by all.
static void put_at(ExPool *p, const Ex *e, Span span) {
    if (e && e->nargs) ex_at(p, e, span);
}

static void put_places(Stream *s, const RowProgram *row) {
    ExPool *p = row->pool;
    for (int i = 0; i < s->states.n; i++)
        for (int k = 0; k < row->reduces.n; k++) {
            const RowReduce *r = &row->reduces.data[k];
            bool of = r->name == s->states.data[i].name;
            if (of) put_at(p, s->states.data[i].elem, r->f->span.file ? r->f->span : r->span);
            for (int j = 0; of && j < s->shifts.n; j++)
                if (ex_uses(s->shifts.data[j], SYM_STATE, i)) put_at(p, s->shifts.data[j], r->span);
        }
    for (int k = 0; k < row->reduces.n; k++)
        put_at(p, s->finished.data[k], row->reduces.data[k].span);
    for (int i = 0; i < row->emits.n; i++) put_at(p, s->emits.data[i], row->emits.data[i].span);
    put_at(p, s->elem, row->weight->span);
    put_at(p, s->factor, row->weight->span);
}

// Exponentials that a sweep has again are those of the sums before it.
static void share_powers(Derive *d) {
    Stream *s = d->out;
    Polys *polys = polys_new(d->scratch, d->p, d->full);
    for (int i = 0; i < s->states.n; i++) {
        StreamState *st = &s->states.data[i];
        st->elem = ex_simplify(d->p, pass_stream_powers(polys, s, st->sweep, st->elem));
    }
    s->elem = ex_simplify(d->p, pass_stream_powers(polys, s, s->nsweeps - 1, s->elem));
}

static Stream *derive_row(Arena *a, const RowProgram *written, Diags *diags, bool narrows,
                          bool counts) {
    const Ex *scaled;
    const RowProgram *row = row_unscaled(a, row_decide(a, written), &scaled);
    int n = row->reduces.n;
    Derive d = {.arena = a,
                .scratch = arena_new(),
                .p = row->pool,
                .row = row,
                .diags = diags,
                .n = n,
                .narrows = narrows,
                .counts = counts};
    d.needed = ARENA_ARRAY(d.scratch, bool, n + 1);
    d.running = ARENA_ARRAY(d.scratch, bool, n + 1);
    d.sweep = ARENA_ARRAY(d.scratch, int, n + 1);
    d.reduced = ARENA_ARRAY(d.scratch, const Ex *, n + 1);
    d.full = ARENA_ARRAY(d.scratch, ClassSet, n + 1);
    d.empty = ARENA_ARRAY(d.scratch, ClassSet, n + 1);
    d.loose = ARENA_ARRAY(d.scratch, ClassSet, n + 1);
    d.any = ARENA_ARRAY(d.scratch, ClassSet, n + 1);
    d.out = ARENA_NEW(a, Stream);
    *d.out = (Stream){.row = row,
                      .written = written,
                      .scaled = scaled,
                      .shift = -1,
                      .scale = -1,
                      .added_count = -1,
                      .largest = -1,
                      .blocking = -1};
    find_needed(&d);
    for (int k = 0; k < n; k++) {
        find_classes(&d, k);
        derive_reduction(&d, k);
    }
    derive_weight(&d);
    derive_emits(&d);
    pass_exact_shifts(d.scratch, d.out, narrows);
    if (d.out->nsweeps > 1) share_powers(&d);
    put_places(d.out, row);
    arena_free(d.scratch);
    return d.out;
}

static const Ex *without_maxima(const RowProgram *row, const Ex *e) {
    bool has = false;
    for (int k = 0; k < row->reduces.n; k++) {
        if (row->reduces.data[k].op != EX_ROWMAX || !ex_uses(e, SYM_R, k)) continue;
        e = ex_subst(row->pool, e, SYM_R, k, ex_f32(row->pool, 0));
        has = true;
    }
    return has ? simp_open(row->pool, e) : e;
}

// The same program with 0 in place of its maxima.
static const RowProgram *unshifted(Arena *a, const RowProgram *row) {
    RowProgram *out = ARENA_NEW(a, RowProgram);
    *out = *row;
    out->reduces.data = ARENA_ARRAY(a, RowReduce, row->reduces.n + 1);
    out->emits.data = ARENA_ARRAY(a, RowEmit, row->emits.n + 1);
    for (int i = 0; i < row->reduces.n; i++) {
        out->reduces.data[i] = row->reduces.data[i];
        out->reduces.data[i].f = without_maxima(row, row->reduces.data[i].f);
    }
    for (int i = 0; i < row->emits.n; i++) {
        out->emits.data[i] = row->emits.data[i];
        out->emits.data[i].value = without_maxima(row, row->emits.data[i].value);
    }
    out->weight = without_maxima(row, row->weight);
    out->output = without_maxima(row, row->output);
    return out;
}

// Weights that are small without their shift have none: the maximum is not looked for.
Stream *pass_derive_for(Arena *a, const RowProgram *row, Diags *diags, bool narrows, bool counts) {
    Stream *s = derive_row(a, row, diags, narrows, counts);
    if (narrows || !pass_may_drop_shift(s)) return s;
    s = derive_row(a, unshifted(a, row), NULL, false, counts);
    s->written = row;
    return s;
}

Stream *pass_derive(Arena *a, const RowProgram *row, Diags *diags) {
    return pass_derive_for(a, row, diags, false, false);
}
