// backward_saved.c: what the forward saves for the backward.
//
// In: the formulas of the backward, over reductions of the forward and row scalars that are made. Out: the same over row scalars
// alone, the saved ones first, and the weight of a pair as the forward computed it.
//
//     exp2(s * 0.18 + A) / l     ->   exp2(s * 0.18 + L),  L = A - log2(l)             weights become bf16 or f16, and scores are proved
//                                                                                      small, with and without A
//                                     exp2(s * 0.18 + A) * f,  f = 1 / l               otherwise: rounding L would show in weights
//
// In the second case the first one is the weight of a tame row, whose A is small: nearly all rows are, and whoever looks may take it.
// A row without a key has L = -inf. Made row scalars that nothing needs are dropped.
#include "passes/derive/backward.h"

#include "passes/derive/magnitude.h"
#include "passes/derive/powers.h"
#include "passes/derive/tame.h"
#include "passes/simplify/simplify.h"

#include <assert.h>
#include <math.h>

enum {
    FOLDED = -1,
    FACTOR = -2
}; // SYM_ROW of what the weight alone needs: L; the deferred factor's parts from here down

typedef struct Saving {
    Derivative *d;
    const Stream *s;
    VEC(BackRow) rows;       // saved
    VEC(const Ex *) symbols; // that each stands for
    bool *live;              // made row scalars
    int *place;              // of them, among all
} Saving;

// ---- which

static const Ex *symbol_of(const Saving *v, int i) { return v->symbols.data[i]; }

static int find_saved(const Saving *v, const Ex *e) {
    for (int i = 0; i < v->rows.n; i++)
        if (symbol_of(v, i) == e) return i;
    return -1;
}

static void save(Saving *v, const char *name, const Ex *symbol, const Ex *value) {
    BackRow new = {name, BACK_SAVED, value};
    if (find_saved(v, symbol) >= 0) return;
    VEC_PUSH(v->d->arena, &v->rows, new);
    VEC_PUSH(v->d->scratch, &v->symbols, symbol);
}

// As elements use it when all keys are in, over states.
static const Ex *safe_shift(Saving *v, int shift) {
    ExPool *p = v->d->p;
    const Ex *raw = v->s->shifts.data[shift], *none = ex_2(p, EX_EQ, raw, ex_f32(p, INFINITY));
    return ex_simplify(p, ex_select(p, none, ex_f32(p, 0), raw));
}

static void save_symbol(void *ctx, const Ex *e) {
    Saving *v = ctx;
    if (e->op != EX_SYM) return;
    if (e->sym == SYM_R) save(v, v->d->row->reduces.data[e->index].name, e, e);
    if (e->sym == SYM_STATE) save(v, v->s->states.data[e->index].name, e, e);
    if (e->sym == SYM_SHIFT) save(v, "A", e, safe_shift(v, e->index));
}

// ---- what is needed

static void mark(void *ctx, const Ex *e) {
    Saving *v = ctx;
    if (e->op == EX_SYM && e->sym == SYM_ROW && e->index >= 0) v->live[e->index] = true;
}

static void for_formulas(Saving *v, void (*fn)(void *, const Ex *)) {
    const Backward *b = v->d->out;
    ex_visit(b->ds, fn, v);
    ex_visit(b->d_o, fn, v);
    for (int i = 0; i < b->products.n; i++) ex_visit(b->products.data[i].d, fn, v);
    for (int i = 0; i < b->grads.n; i++) ex_visit(b->grads.data[i].value, fn, v);
}

// Exponentials of pairs are the forward's own numbers.
static const Ex *streamed(Saving *v, const Ex *e) {
    return pass_stream_powers(v->d->polys, v->s, v->s->nsweeps, e);
}

static void find_powers(Saving *v) {
    Backward *b = v->d->out;
    b->ds = streamed(v, b->ds);
    for (int i = 0; i < b->products.n; i++)
        b->products.data[i].d = streamed(v, b->products.data[i].d);
    for (int i = 0; i < b->grads.n; i++)
        b->grads.data[i].value = streamed(v, b->grads.data[i].value);
    for (int i = 0; i < b->rows.n; i++) b->rows.data[i].value = streamed(v, b->rows.data[i].value);
}

static void find_live(Saving *v) {
    const Backward *b = v->d->out;
    for_formulas(v, mark);
    for (int i = b->rows.n; i-- > 0;) // what it uses stands before it
        if (v->live[i]) ex_visit(b->rows.data[i].value, mark, v);
    for_formulas(v, save_symbol);
    for (int i = 0; i < b->rows.n; i++)
        if (v->live[i]) ex_visit(b->rows.data[i].value, save_symbol, v);
}

// ---- the weight

static const Ex *unguarded(const Ex *e) {
    bool guard =
        e->op == EX_SELECT && e->args[0]->op == EX_EQ && ex_is_f32(e->args[0]->args[1], -INFINITY);
    return guard ? e->args[2] : e;
}

// Up to this size of exponents rounding L to f32 changes a weight by less than 3e-6: ten times what f32 rounds.
static const double MOST_FOLDED = 0x1p7;

// A may be as large where bf16 or f16 weights are made, with an error of 2^-13.
static const float MOST_TAME = 0x1p11f;

// The exponent with L in place of its shift; where it has none, as of 0.
static const Ex *shifted_by(const Saving *v, const Ex *x, const Ex *l) {
    int shift = v->s->shift;
    return shift < 0 ? ex_2(v->d->p, EX_ADD, x, l) : ex_subst(v->d->p, x, SYM_SHIFT, shift, l);
}

// Whether shift and factor may become one number, where rows are tame.
static bool may_fold(const Saving *v, const Ex *elem) {
    const Stream *s = v->s;
    bool unit = s->shift >= 0 && s->units.data[s->shift];
    if (unit || s->scale >= 0 || !s->factor || elem->op != EX_EXP2) return false;
    ClassEnv env = {.s = CL_FINITE, .r = class_reductions(v->d->scratch, v->d->row)};
    return class_of(s->factor, &env) == CL_POS;
}

// Whether all rows are.
static bool folds(const Saving *v, const Ex *elem) {
    if (!v->d->half || !may_fold(v, elem)) return false;
    const Ex *x = shifted_by(v, elem->args[0], ex_f32(v->d->p, 0));
    return row_most(v->d->row, x) <= MOST_FOLDED;
}

static const Ex *folded_weight(Saving *v, const Ex *elem) {
    ExPool *p = v->d->p;
    const Stream *s = v->s;
    bool divides = s->factor->op == EX_RCP;
    const Ex *l = ex_sym(p, SYM_ROW, FOLDED, EX_F32), *raw = ex_f32(p, 0), *shift = raw,
             *log = ex_1(p, EX_LOG2, divides ? s->factor->args[0] : s->factor);
    if (s->shift >= 0) raw = s->shifts.data[s->shift], shift = safe_shift(v, s->shift);
    const Ex *both = ex_2(p, divides ? EX_SUB : EX_ADD, shift, log);
    const Ex *shifted = ex_1(p, EX_EXP2, shifted_by(v, elem->args[0], l));
    ex_visit(shifted, save_symbol, v);
    if (s->empty) { // which is when the shift is not what it is a function of
        both = ex_2(p, divides ? EX_SUB : EX_ADD, raw, log);
        both = ex_select(p, s->empty, ex_f32(p, -INFINITY), both);
    }
    save(v, "L", l, ex_simplify(p, both));
    return shifted;
}

// A part of the factor is a number of its own where the forward's reductions are not saved anyway.
static const Ex *factor_part(Saving *v, const Ex *part, int i) {
    bool known = true;
    for (int k = 0; k < v->d->row->reduces.n; k++) {
        const Ex *r = ex_sym(v->d->p, SYM_R, k, EX_F32);
        known &= !ex_uses(part, SYM_R, k) || find_saved(v, r) >= 0;
    }
    if (known || part->op == EX_SYM) return part;
    const Ex *e = ex_sym(v->d->p, SYM_ROW, FACTOR - i, EX_F32);
    save(v, "f", e, ex_simplify(v->d->p, part));
    return e;
}

// Of the forward's element or factor: without the power of two that is for f16 in the one and against it in the other.
static const Ex *unscaled(const Saving *v, const Ex *e) {
    ExPool *p = v->d->p;
    if (!e || v->s->largest < 0) return e;
    return ex_simplify(p, ex_subst(p, e, SYM_STATE, v->s->largest, ex_f32(p, 0x1p14f)));
}

// A comparison of the shift's size with something larger.
static const Ex *is_tame(void *ctx, ExPool *p, const Ex *e) {
    const Ex *shift = ctx;
    bool asks = e->op == EX_LT && e->args[0]->op == EX_CONST && e->args[1]->op == EX_ABS &&
                e->args[1]->args[0] == shift;
    return asks && e->args[0]->f >= MOST_TAME ? ex_bool(p, false) : e;
}

// The shift and the factor's parts are saved.
static void tame(Saving *v, const Ex *elem, const Ex *const *part, int n) {
    ExPool *p = v->d->p;
    Backward *b = v->d->out;
    const Ex *shift = ex_sym(p, SYM_SHIFT, v->s->shift, EX_F32), *both = shift;
    for (int i = 0; i < n; i++) both = ex_2(p, EX_ADD, both, ex_1(p, EX_LOG2, part[i]));
    elem = ex_map(p, elem, is_tame, (void *)shift);
    b->tame_weight = ex_subst(p, elem, SYM_SHIFT, v->s->shift, both);
    b->tame = ex_2(p, EX_LE, ex_1(p, EX_ABS, shift), ex_f32(p, MOST_TAME));
}

static const Ex *weight(Saving *v) {
    const Ex *elem = unguarded(unscaled(v, v->s->elem)), *part[MAX_FACTORS],
             *factor = unscaled(v, v->s->factor);
    if (folds(v, elem)) return folded_weight(v, elem);
    int n = factor ? row_factors(v->d->row, factor, part) : 0;
    ex_visit(elem, save_symbol, v);
    for (int i = 0; i < n; i++) part[i] = factor_part(v, part[i], i);
    if (n && v->s->shift >= 0 && may_fold(v, elem)) tame(v, elem, part, n);
    for (int i = 0; i < n; i++) elem = ex_2(v->d->p, EX_MUL, elem, part[i]);
    return elem;
}

// ---- everything in its place

static const Ex *place_one(void *ctx, ExPool *p, const Ex *e) {
    const Saving *v = ctx;
    if (e->op != EX_SYM) return e;
    int saved = find_saved(v, e);
    if (saved >= 0) return ex_sym(p, SYM_ROW, saved, EX_F32);
    assert(e->sym != SYM_R && e->sym != SYM_STATE && e->sym != SYM_SHIFT);
    return e->sym == SYM_ROW ? ex_sym(p, SYM_ROW, v->place[e->index], EX_F32) : e;
}

static const Ex *placed(Saving *v, const Ex *e) {
    return e ? ex_simplify(v->d->p, ex_map(v->d->p, e, place_one, v)) : NULL;
}

static void place_rows(Saving *v) {
    Backward *b = v->d->out;
    int made = b->rows.n, n = v->rows.n;
    const BackRow *old = b->rows.data;
    for (int i = 0; i < made; i++)
        if (v->live[i]) v->place[i] = n++;
    b->nsaved = v->rows.n;
    b->rows.data = v->rows.data, b->rows.n = v->rows.n, b->rows.cap = v->rows.cap;
    for (int i = 0; i < made; i++) {
        if (!v->live[i]) continue;
        BackRow new = old[i];
        new.value = placed(v, new.value);
        VEC_PUSH(v->d->arena, &b->rows, new);
        if (new.made == BACK_KEYS && b->further < 0) b->further = v->d->reduction.data[i];
    }
}

void back_saved(Derivative *d) {
    Backward *b = d->out;
    Saving v = {.d = d, .s = b->s};
    v.live = ARENA_ARRAY(d->scratch, bool, b->rows.n + 1);
    v.place = ARENA_ARRAY(d->scratch, int, b->rows.n + 1);
    find_powers(&v);
    find_live(&v);
    b->found = ARENA_ARRAY(d->arena, bool, d->row->reduces.n + 1);
    for (int k = 0; k < d->row->reduces.n; k++)
        b->found[k] = d->count[k] && v.live[d->count[k]->index];
    b->weight = weight(&v);
    bool by_row = false;
    for (int i = 0; i < b->grads.n; i++) by_row |= b->grads.data[i].per == BACK_ROW;
    const Ex *folded = ex_sym(d->p, SYM_ROW, FOLDED, EX_F32);
    if (by_row && b->s->empty)
        b->empty = find_saved(&v, folded) >= 0 ? ex_2(d->p, EX_EQ, folded, ex_f32(d->p, -INFINITY))
                                               : b->s->empty;
    if (b->empty) ex_visit(b->empty, save_symbol, &v);
    place_rows(&v);
    b->weight = placed(&v, b->weight);
    if (b->tame) // as it stands: exp2(a + log2(b)) would become a product
        b->tame_weight = ex_map(d->p, b->tame_weight, place_one, &v), b->tame = placed(&v, b->tame);
    b->ds = placed(&v, b->ds);
    b->d_o = placed(&v, b->d_o);
    for (int i = 0; i < b->products.n; i++)
        b->products.data[i].d = placed(&v, b->products.data[i].d);
    b->empty = placed(&v, b->empty);
    for (int i = 0; i < b->grads.n; i++)
        b->grads.data[i].value = placed(&v, b->grads.data[i].value);
}
