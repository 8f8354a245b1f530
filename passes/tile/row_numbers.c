// row_numbers.c: what the pairs of a backward need of a row alone.
//
// In: a backward. Out: the same, in which formulas of pairs compute nothing that is the same for all pairs of a row: such numbers are made
// once, before (BACK_SCALAR), and a pair reads them.
//
//     exp2(fma(s, select(big < abs(A), 0.25, 0.18), A)) * f      ->   exp2(fma(s, u, A)) * f,  u = select(..)
//     e * rcp(l + exp2((sink[h] - m) * 1.44))                     ->   e * u,  u = rcp(..), also where an input has a number for the row's head
//     w * (dw + r) * 0.125                                        ->   w * fma(dw, 0.125, u),  u = r * 0.125
#include "passes/passes.h"

typedef struct RowNumbers {
    Arena *arena;
    ExPool *p;
    Backward *out;
} RowNumbers;

static bool is_of_head(const Ex *e) {
    return e->op == EX_LOAD || (e->op == EX_SYM && (e->sym == SYM_H || e->sym == SYM_B));
}

static bool is_other(void *ctx, const Ex *e) {
    const bool *looks_up = ctx;
    return !(*looks_up && is_of_head(e)) &&
           (e->op == EX_LOAD || (e->op == EX_SYM && e->sym != SYM_ROW));
}

static bool is_load(void *ctx, const Ex *e) {
    (void)ctx;
    return e->op == EX_LOAD;
}

// What an input has for the row's head is the row's, too.
static bool is_of_row(const Ex *e) {
    bool looks_up = ex_any(e, is_load, NULL);
    return ex_uses(e, SYM_ROW, -1) && !ex_any(e, is_other, &looks_up);
}

static const Ex *number_for(RowNumbers *r, const Ex *value) {
    int i = r->out->nsaved;
    while (i < r->out->rows.n && r->out->rows.data[i].value != value) i++;
    BackRow new = {"u", BACK_SCALAR, value};
    if (i == r->out->rows.n) VEC_PUSH(r->arena, &r->out->rows, new);
    return ex_sym(r->p, SYM_ROW, i, EX_F32);
}

// (dw + row) * c, as one operation for each pair; NULL: it is none. Other sums stay: that of a score and a large shift is 0 at the maximum, and
// what its parts' products round, or leave f32 by, would stand in an exponent.
static const Ex *scaled_sum(RowNumbers *r, const Ex *e, const Ex *c) {
    for (int i = 0; e->op == EX_ADD && i < 2; i++) {
        if (!is_of_row(e->args[i]) || !ex_uses(e->args[1 - i], SYM_DW, -1)) continue;
        const Ex *args[] = {e->args[1 - i], c, number_for(r, ex_2(r->p, EX_MUL, e->args[i], c))};
        return ex_op(r->p, EX_FMA, args, 3);
    }
    return NULL;
}

// Such a sum, or a product with one, times a constant.
static const Ex *scaled(RowNumbers *r, const Ex *e) {
    for (int i = 0; e->op == EX_MUL && i < 2; i++) {
        const Ex *c = e->args[i], *of = e->args[1 - i];
        if (c->op != EX_CONST) continue;
        const Ex *sum = scaled_sum(r, of, c);
        for (int k = 0; !sum && of->op == EX_MUL && k < 2; k++) {
            sum = scaled_sum(r, of->args[k], c);
            if (sum) sum = ex_2(r->p, EX_MUL, of->args[1 - k], sum);
        }
        if (sum) return sum;
    }
    return e;
}

// Signs cost nothing where they are.
static const Ex *made_before(void *ctx, ExPool *p, const Ex *e) {
    (void)p;
    bool computes = e->op != EX_SYM && e->op != EX_CONST && e->op != EX_NEG && e->op != EX_ABS;
    if (!computes || e->type != EX_F32) return e;
    return is_of_row(e) ? number_for(ctx, e) : scaled(ctx, e);
}

static const Ex *formula(RowNumbers *r, const Ex *e) {
    return e ? ex_map(r->p, e, made_before, r) : NULL;
}

// Whether gradients of scores are wanted as they are, too.
static bool gives_scores(const Backward *b) {
    for (int i = 0; i < b->grads.n; i++)
        if (b->grads.data[i].per == BACK_PAIR) return true;
    return false;
}

// ds times a constant is one formula, where nothing else is made of it.
static const Ex *whole(RowNumbers *r, const Ex *ds, const Ex *e) {
    bool scales = e->op == EX_MUL;
    for (int i = 0; scales && i < 2; i++)
        scales = e->args[i]->op == EX_CONST || e->args[i]->op == EX_SYM;
    return scales ? ex_subst(r->p, e, SYM_DS, 0, ds) : e;
}

// Whether the kernel that makes them asks for weights first.
static bool has_sweep(const Backward *b) {
    for (int i = 0; i < b->rows.n; i++)
        if (b->rows.data[i].made == BACK_KEYS) return true;
    return b->aggregate;
}

const Backward *pass_row_numbers(Arena *a, const Backward *back) {
    RowNumbers r = {a, back->row->pool, ARENA_NEW(a, Backward)};
    Backward *out = r.out;
    *out = *back;
    if (has_sweep(back)) {
        out->tame_weight = out->tame = NULL;
        return out;
    }
    out->rows.data = NULL, out->rows.n = out->rows.cap = 0;
    out->grads.data = NULL, out->grads.n = out->grads.cap = 0;
    out->products.data = NULL, out->products.n = out->products.cap = 0;
    for (int i = 0; i < back->rows.n; i++) VEC_PUSH(a, &out->rows, back->rows.data[i]);
    for (int i = 0; i < back->products.n; i++) {
        BackProduct x = back->products.data[i];
        x.d = formula(&r, x.sym == SYM_DOT && !gives_scores(back) ? whole(&r, back->ds, x.d) : x.d);
        VEC_PUSH(a, &out->products, x);
    }
    out->weight = formula(&r, back->weight);
    out->tame_weight = formula(&r, back->tame_weight);
    out->ds = formula(&r, back->ds);
    for (int i = 0; i < back->grads.n; i++) {
        BackGrad g = back->grads.data[i];
        if (g.per == BACK_PAIR) g.value = formula(&r, g.value);
        VEC_PUSH(a, &out->grads, g);
    }
    return out;
}
