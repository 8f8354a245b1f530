// half.c: weights that an f16 can hold.
//
// In: a row program, and its streaming form. Out: the same form, or one of the program with another
// maximum, by which its exponentials are shifted:
//
//     l = rowsum(exp(s));                                    w = exp(s - log(l))
//     l = rowsum(exp(s));   top = rowmax(s);                 w = exp(s - top) * exp(top - log(l))
//
// Weights are narrowed for the product with v before what belongs to the row is multiplied in, and
// exp(s) is beyond f16, 65504, from s = 11.1 on. What the row is multiplied by stays f32. An exponent
// to be shifted is one that holds scores, is not bounded by log(65504), by the intervals of tame.c, and holds no extremum:
// where there is one the formula takes care of itself. A modified score that is such an exponential goes
// into the formulas first. What decides about a weight is not touched: the power that is compared stays what it is
// (decide.c), and the one that is chosen is shifted. Nor is an exact power in a sum, which may be the difference to its own extremum. Where that costs another sweep over the keys, and for all other weights that
// are not proved to fit, derive.c scales the elements.
#include "passes/derive/derive.h"

#include "passes/derive/classes.h"
#include "passes/derive/decide.h"
#include "passes/derive/tame.h"
#include "passes/simplify/rules.h"

#include <math.h>
#include <string.h>

typedef struct Half {
    Arena *arena;
    ExPool *p;
    const RowProgram *row; // as it was
    RowProgram *out;
    ExMemo damped; // nodes that a logarithm or a quotient stands over
    bool any;      // exponentials that may not fit
    bool failed;   // to shift one
} Half;

// ---- exponents

typedef struct Parts {
    const Ex *elem, *row; // NULL: none
} Parts;

static const Ex *sum(ExPool *p, const Ex *a, const Ex *b, bool minus) {
    if (!b) return a;
    if (!a) return minus ? simp_1(p, EX_NEG, b) : b;
    return simp_2(p, minus ? EX_SUB : EX_ADD, a, b);
}

static void take_apart(ExPool *p, const Ex *e, bool minus, Parts *to, int depth) {
    bool adds = e->op == EX_ADD || e->op == EX_SUB;
    if ((adds || e->op == EX_NEG) && depth < ROW_MAX_DEPTH) {
        take_apart(p, e->args[0], minus != (e->op == EX_NEG), to, depth + 1);
        if (adds) take_apart(p, e->args[1], minus != (e->op == EX_SUB), to, depth + 1);
        return;
    }
    const Ex **part = row_has_element(e) ? &to->elem : &to->row;
    *part = sum(p, *part, e, minus);
}

static bool is_extremum(void *ctx, const Ex *e) {
    const RowProgram *row = ctx;
    return ex_is_sym(e, SYM_R, -1) && row->reduces.data[e->index].op != EX_ROWSUM;
}

static void damp(void *ctx, const Ex *e) {
    Half *h = ctx;
    ex_memo_put(h->arena, &h->damped, e, e);
}

// log(1 + exp(s)) and exp(s) / (1 + exp(s)) stay small.
static void find_damped(void *ctx, const Ex *e) {
    bool over = e->op == EX_DIV;
    if (over || e->op == EX_RCP || e->op == EX_RSQRT || e->op == EX_LOG || e->op == EX_LOG2 ||
        e->op == EX_SIGMOID || e->op == EX_TANH || e->op == EX_ERF)
        ex_visit(e->args[over], damp, ctx);
}

static bool is_bounded(Half *h, const Ex *e) {
    const Ex *x = e->args[0];
    double most = log(HALF_MOST) / (e->op == EX_EXP ? 1 : log(2));
    return ex_any(x, is_extremum, h->out) || row_below(h->out, x, most);
}

// ---- the shift

static const Ex *maximum_of(Half *h, const Ex *elem) {
    RowProgram *row = h->out;
    for (int i = 0; i < row->reduces.n; i++)
        if (row->reduces.data[i].op == EX_ROWMAX && row->reduces.data[i].f == elem)
            return ex_sym(h->p, SYM_R, i, EX_F32);
    const char *name = arena_printf(h->arena, "top%d", row->reduces.n);
    VEC_PUSH(h->arena, &row->reduces,
             ((RowReduce){
                 .op = EX_ROWMAX, .f = elem, .name = name, .span = row->span, .written = name}));
    return ex_sym(h->p, SYM_R, row->reduces.n - 1, EX_F32);
}

static bool is_power(const Ex *e) { return e->op == EX_EXP || e->op == EX_EXP2; }

// The power that e is, exact or not; NULL where it is none.
static const Ex *power_of(const Ex *e) {
    if (e->op == EX_ROUNDED) e = e->args[0];
    return is_power(e) ? e : NULL;
}

static const Ex *shifted(Half *h, const Ex *e) {
    ExPool *p = h->p;
    Parts x = {NULL, NULL};
    if (ex_memo_get(&h->damped, e) || !row_has_element(e) || is_bounded(h, e)) return e;
    take_apart(p, e->args[0], false, &x, 0);
    h->any = true;
    if (ex_uses(x.elem, SYM_R, -1)) { // known only when the keys are through
        h->failed = true;
        return e;
    }
    const Ex *top = maximum_of(h, x.elem);
    return ex_2(p, EX_MUL, ex_1(p, e->op, ex_2(p, EX_SUB, x.elem, top)),
                ex_1(p, e->op, sum(p, top, x.row, false)));
}

// Whether an argument of e flows into e's value, and is not what decides about it: a condition is left as it is, and so is
// what is exact, but for powers themselves.
static bool flows(const Ex *e, int argument) {
    bool decides = e->op == EX_FLOOR || e->op == EX_CONV || e->op == EX_LOAD || e->op == EX_ROUNDED;
    return e->type == EX_F32 && !decides && !power_of(e) && e->args[argument]->type == EX_F32;
}

static bool adds(const Ex *e) { return e->op == EX_ADD || e->op == EX_SUB || e->op == EX_FMA; }

// The weight with its powers shifted, where they flow into it.
static const Ex *shifted_weight(Half *h, const Ex *weight) {
    Arena *scratch = arena_new();
    ExMemo reached = {0}, added = {0}, done = {0};
    const Ex **order, *r = weight;
    int n = ex_order(scratch, &weight, 1, &order);
    ex_memo_put(scratch, &reached, weight, weight);
    for (int i = n; i-- > 0;) // users before their arguments
        for (int k = 0; ex_memo_get(&reached, order[i]) && k < order[i]->nargs; k++) {
            const Ex *e = order[i], *part = e->args[k];
            if (!flows(e, k)) continue;
            ex_memo_put(scratch, &reached, part, part);
            if (adds(e) || ex_memo_get(&added, e)) ex_memo_put(scratch, &added, part, part);
        }
    for (int i = 0; i < n; i++) {
        const Ex *e = order[i], *args[EX_MAX_RANK], *power = power_of(e), *s = NULL;
        if (!ex_memo_get(&reached, e)) continue;
        for (int k = 0; k < e->nargs; k++) {
            const Ex *arg = flows(e, k) ? ex_memo_get(&done, e->args[k]) : NULL;
            args[k] = arg ? arg : e->args[k];
        }
        r = ex_with_args(h->p, e, args);
        bool differs = e->op == EX_ROUNDED && ex_memo_get(&added, e);
        if (power && !differs && (s = shifted(h, power)) != power) r = s;
        ex_memo_put(scratch, &done, e, r);
    }
    arena_free(scratch);
    return r; // the weight is the last in its order
}

// A copy of the program, whose reductions may be added to. exp(u) as the modified score is a score u;
// keys stay what they were where u is never -inf, the mark of a masked one.
static void open_score(Half *h) {
    const RowProgram *row = h->row;
    const Ex *m = row->modified, *power = power_of(m), *s = ex_symbol(h->p, SYM_S), *score = s;
    ClassEnv env = {.s = CL_FINITE,
                    .wild_inputs = true,
                    .wild_scores = true,
                    .overflows = true,
                    .facts = row_facts(row)};
    h->out = ARENA_NEW(h->arena, RowProgram);
    *h->out = *row;
    memset(&h->out->reduces, 0, sizeof h->out->reduces);
    if (power && !(class_of(power->args[0], &env) & CL_NINF)) {
        h->out->modified = power->args[0];
        score = ex_1(h->p, power->op, s);
        if (m != power) score = ex_1(h->p, EX_ROUNDED, score);
    }
    for (int i = 0; i < row->reduces.n; i++) {
        RowReduce r = row->reduces.data[i];
        r.f = ex_subst(h->p, r.f, SYM_S, 0, score);
        VEC_PUSH(h->arena, &h->out->reduces, r);
    }
    h->out->weight = ex_subst(h->p, row->weight, SYM_S, 0, score);
}

Stream *pass_derive_half(Arena *a, const RowProgram *row, Diags *diags) {
    Half h = {.arena = a, .p = row->pool, .row = row_decide(a, row)};
    Stream *s = pass_derive_for(a, row, diags, true, false);
    open_score(&h);
    ex_visit(h.out->weight, find_damped, &h);
    h.out->weight = shifted_weight(&h, h.out->weight);
    if (!h.any || h.failed) return s;
    Stream *other = pass_derive_for(a, h.out, NULL, true, false);
    return other->nsweeps <= s->nsweeps ? other : s;
}
