// backward_eval.c: see backward_eval.h and the head of backward.h, which it follows word by word.
#include "tests/support/backward_eval.h"

#include <math.h>

struct BackEval {
    Arena *arena;
    const Backward *b;
    const ExEnv *outer;
    int Dv;
    ExEnv env;
    ExMemo plans;
    const BackCome *come;
    double *row, *d_o; // row scalars; the gradient of what is aggregated
    const BackPairs *pairs;
    double s, w, dw, ds, q, o, sqo, d;
    double *products;
    int32_t key, column;
};

static ExValue symbol(void *ctx, const Ex *e) {
    const BackEval *x = ctx;
    ExValue v = {.f = 0};
    switch ((int)e->sym) {
    case SYM_S: v.f = x->s; break;
    case SYM_W: v.f = x->w; break;
    case SYM_DW: v.f = x->dw; break;
    case SYM_DS: v.f = x->ds; break;
    case SYM_DOT:
    case SYM_SQQ:
    case SYM_SQK: v.f = x->pairs->product(x->pairs->ctx, e, x->key); break;
    case SYM_Q: v.f = x->q; break;
    case SYM_O: v.f = x->o; break;
    case SYM_SQO: v.f = x->sqo; break;
    case SYM_DO: v.f = x->d; break;
    case SYM_DEMIT: v.f = x->come->demit[e->index]; break;
    case SYM_ROW: v.f = x->row[e->index]; break;
    case SYM_KV_IDX: v.i = x->key; break;
    case SYM_D_IDX: v.i = x->column; break;
    default: return x->outer->sym(x->outer->ctx, e);
    }
    return v;
}

static ExValue element(void *ctx, const Ex *e, const int32_t *index) {
    const BackEval *x = ctx;
    return x->outer->load(x->outer->ctx, e, index);
}

BackEval *back_eval(Arena *a, const Backward *b, const ExEnv *row, int Dv) {
    BackEval *x = ARENA_NEW(a, BackEval);
    *x = (BackEval){.arena = a, .b = b, .outer = row, .Dv = Dv};
    x->env = (ExEnv){.sym = symbol, .load = element, .ctx = x, .round = row->round};
    x->row = ARENA_ARRAY(a, double, b->rows.n + 1);
    x->d_o = ARENA_ARRAY(a, double, Dv + 1);
    x->products = ARENA_ARRAY(a, double, b->products.n + 1);
    return x;
}

static ExValue run(BackEval *x, const Ex *e) {
    return ex_run(ex_planned(x->arena, &x->plans, e), &x->env);
}

static double value(BackEval *x, const Ex *e) { return e ? run(x, e).f : 0; }

// ---- columns

static void at_column(BackEval *x, int d) {
    x->column = d;
    x->o = x->come->o[d];
    x->d = x->come->d_o[d];
}

static double over_columns(BackEval *x, const Ex *e) {
    double sum = 0;
    for (int d = 0; d < x->Dv; d++) {
        at_column(x, d);
        sum += value(x, e);
    }
    return sum;
}

// ---- pairs

static bool takes_part(const BackPairs *pairs, int j) { return pairs->s[j] != -INFINITY; }

static void at_pair(BackEval *x, const BackPairs *pairs, int j) {
    x->key = j;
    x->s = pairs->s[j];
    x->pairs = pairs;
    x->dw = 0;
    for (int d = 0; d < x->Dv; d++)
        x->dw += x->d_o[d] * pairs->v[(size_t)j * (size_t)x->Dv + (size_t)d];
    x->w = value(x, x->b->weight);
}

static double over_keys(BackEval *x, const BackPairs *pairs, const Ex *e) {
    double sum = 0;
    for (int j = 0; j < pairs->n; j++) {
        if (!takes_part(pairs, j)) continue;
        at_pair(x, pairs, j);
        sum += value(x, e);
    }
    return sum;
}

BackPair back_pair(BackEval *x, const BackPairs *pairs, int j) {
    bool takes = takes_part(pairs, j);
    if (takes) at_pair(x, pairs, j);
    if (takes) x->ds = value(x, x->b->ds);
    for (int i = 0; i < x->b->products.n; i++)
        x->products[i] = takes ? value(x, x->b->products.data[i].d) : 0;
    return (BackPair){takes ? x->w : 0, x->products};
}

// ---- the row

void back_rows(BackEval *x, const double *saved, const BackPairs *pairs, const BackCome *come,
               double *aggregated) {
    const Backward *b = x->b;
    bool known = false; // d_o
    x->come = come;
    x->sqo = 0;
    for (int d = 0; d < x->Dv; d++) x->sqo += come->o[d] * come->o[d];
    for (int i = 0; i <= b->rows.n; i++) {
        const BackRow *r = i < b->rows.n ? &b->rows.data[i] : NULL;
        if (!known && (!r || r->made == BACK_KEYS)) {
            for (int d = 0; d < x->Dv; d++)
                at_column(x, d), x->d_o[d] = aggregated[d] = value(x, b->d_o);
            known = true;
        }
        if (!r) break;
        x->row[i] = r->made == BACK_SAVED     ? saved[i]
                    : r->made == BACK_COLUMNS ? over_columns(x, r->value)
                    : r->made == BACK_KEYS    ? over_keys(x, pairs, r->value)
                                              : value(x, r->value);
    }
}

// ---- inputs

static void add_at(BackEval *x, const BackGrad *g, BackAdd add, void *ctx) {
    int32_t index[EX_MAX_RANK];
    int rank = g->at->op == EX_LOAD ? g->at->nargs : 0;
    for (int k = 0; k < rank; k++) index[k] = run(x, g->at->args[k]).i;
    add(ctx, g->input, rank, index, value(x, g->value));
}

void back_grads(BackEval *x, const BackPairs *pairs, const BackCome *come, BackAdd add, void *ctx) {
    const Backward *b = x->b;
    x->come = come;
    for (int i = 0; i < b->grads.n; i++) {
        const BackGrad *g = &b->grads.data[i];
        for (int j = 0; j < pairs->n && g->per == BACK_PAIR; j++) {
            if (!takes_part(pairs, j)) continue;
            back_pair(x, pairs, j);
            add_at(x, g, add, ctx);
        }
        for (int d = 0; d < x->Dv && g->per == BACK_COLUMN; d++) {
            at_column(x, d);
            add_at(x, g, add, ctx);
        }
        bool empty = b->empty && run(x, b->empty).i;
        if (g->per == BACK_ROW && !empty) add_at(x, g, add, ctx);
    }
}

void back_channel(BackEval *x, const BackGrad *g, double q, double come, int d, BackAdd add,
                  void *ctx) {
    x->column = d;
    x->q = q, x->d = come;
    add_at(x, g, add, ctx);
}

double back_value(BackEval *x, const Ex *formula, int d) {
    x->column = d;
    return value(x, formula);
}
