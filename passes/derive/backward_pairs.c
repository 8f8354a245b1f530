// backward_pairs.c: the gradients that each pair of a query and a key has: ds, d_dot, and those of inputs.
//
// In: the gradients of the reductions. Out: formulas over s, w, dw and row scalars.
//
// Where weights hold an exponential of the score, all of ds is w times something, and w is what the forward has computed:
//
//     dw exp(s - m) / l - delta / l exp(s - m)   ->   w * (dw - delta)
//
// Otherwise ds stands as the derivatives are written, so that it keeps the guards that formulas have.
#include "passes/derive/backward.h"

#include "passes/derive/differentiate.h"
#include "passes/derive/tame.h"
#include "passes/simplify/rules.h"
#include "passes/simplify/simplify.h"

typedef struct Group { // of what w is multiplied by: key * (dw * by + rest)
    Term key;
    Poly by, rest;
} Group;
typedef VEC(Group) Groups;

static Group *group_of(Derivative *d, Groups *to, const Term *key) {
    for (int i = 0; i < to->n; i++)
        if (poly_same(&to->data[i].key, key)) return &to->data[i];
    Group new = {.key = *key};
    VEC_PUSH(d->scratch, to, new);
    return &to->data[to->n - 1];
}

// Adds df * (dw or rho); false where w does not divide it.
static bool divide(Derivative *d, Groups *to, const Ex *df, const Poly *rho) {
    Polys *s = d->polys;
    if (!df) return true;
    Poly a = poly_of(s, df);
    for (int i = 0; i < a.n; i++) {
        Term q, key, row;
        if (!poly_divide(s, &a.term[i], d->of_apart.term, true, &q)) return false;
        poly_split(s, &q, &key, &row);
        Group *g = group_of(d, to, &key);
        Poly one = {1, ARENA_NEW(d->scratch, Term)};
        *one.term = row;
        if (rho) {
            one = poly_times(s, rho, &one);
            one = poly_spread(s, &one);
        }
        Poly *sum = rho ? &g->rest : &g->by;
        *sum = poly_plus(s, sum, &one);
    }
    return true;
}

static bool is_sum(const Derivative *d, int k) { return d->row->reduces.data[k].op == EX_ROWSUM; }

static bool holds_exponential(const Poly *w) {
    for (int i = 0; w->n == 1 && i < w->term->n; i++) {
        const PolyFactor *f = &w->term->factor[i];
        bool power = f->atom->op == EX_EXP || f->atom->op == EX_EXP2;
        if (power && f->power == 1 && !poly_is_of_row(f->atom)) return true;
    }
    return false;
}

// w * (..) for the derivative by x of all that is smooth; NULL where it is not of that form. A score is multiplied last: beside a weight of
// 0 it may be as large as f32 holds.
static const Ex *weighted(Derivative *d, const Ex *x) {
    ExPool *p = d->p;
    Groups groups = {0};
    const Ex *sum = NULL, *scored = NULL, *w = d->apart ? d->apart : ex_symbol(p, SYM_W);
    if (!holds_exponential(&d->of_apart) ||
        !divide(d, &groups, ex_derivative(p, d->weight, x), NULL))
        return NULL;
    for (int k = 0; k < d->row->reduces.n; k++)
        if (d->rho[k].n && is_sum(d, k) &&
            !divide(d, &groups, ex_derivative(p, d->f[k], x), &d->rho[k]))
            return NULL;
    for (int i = 0; i < groups.n; i++) {
        Group *g = &groups.data[i];
        const Ex *key = poly_term_ex(d->polys, &g->key), *in = NULL;
        bool number = g->by.n == 1 && !g->by.term->n;
        if (g->by.n) in = ex_symbol(p, SYM_DW);
        if (g->by.n && !number) in = ex_chain(p, in, back_scalar(d, &g->by));
        g->rest = poly_reduced(d->polys, &g->rest);
        if (number) {
            Poly by = poly_of(d->polys, ex_f32(p, (float)(1 / g->by.term->coef)));
            g->rest = poly_times(d->polys, &g->rest, &by);
            key = ex_chain(p, ex_f32(p, (float)g->by.term->coef), key);
        }
        if (g->rest.n && !in) {
            sum = ex_plus(p, sum, back_come_row(d, &g->rest, key));
            continue;
        }
        if (g->rest.n) in = ex_plus(p, in, back_scalar(d, &g->rest));
        if (in && row_has_element(key))
            scored = ex_plus(p, scored, ex_chain(p, ex_chain(p, w, in), key));
        else if (in)
            sum = ex_plus(p, sum, ex_chain(p, in, key));
    }
    return ex_plus(p, ex_chain(p, sum ? w : NULL, sum), scored);
}

// A sum of scores that scores are subtracted from: its gradient is subtracted from dw's part, of which it is the sum.
static bool is_subtracted(const Derivative *d, int k) {
    return d->rho[k].n && is_sum(d, k) && d->row->reduces.data[k].exact;
}

// Rounded once, so that with one key the difference is 0.
static const Ex *rounded(Derivative *d, const Ex *part) {
    return part ? ex_1(d->p, EX_ROUNDED, ex_simplify(d->p, part)) : NULL;
}

// The derivative by x of all that belongs to the pair; NULL: 0.
static const Ex *of_pair(Derivative *d, const Ex *x) {
    ExPool *p = d->p;
    const Ex *sum = weighted(d, x), *dw = ex_symbol(p, SYM_DW);
    bool smooth = sum != NULL;
    if (!smooth) sum = back_come(d, dw, ex_derivative(p, d->weight, x));
    for (int k = 0; k < d->row->reduces.n && !smooth; k++)
        if (is_subtracted(d, k)) sum = rounded(d, sum);
    for (int k = 0; k < d->row->reduces.n; k++) {
        if (!d->rho[k].n || (smooth && is_sum(d, k))) continue;
        const Ex *df = ex_derivative(p, d->f[k], x);
        if (!df) continue;
        if (is_sum(d, k)) {
            const Ex *part = back_come_row(d, &d->rho[k], df);
            sum = ex_plus(p, sum, is_subtracted(d, k) ? rounded(d, part) : part);
            continue;
        }
        Poly n = poly_of(d->polys, ex_1(p, EX_RCP, d->count[k])),
             share = poly_times(d->polys, &d->rho[k], &n);
        const Ex *part = back_come_row(d, &share, df);
        sum = ex_plus(p, sum, ex_select(p, back_attains(d, k), part, ex_f32(p, 0)));
    }
    return sum && d->weight->nargs ? ex_replace(p, sum, d->weight, ex_symbol(p, SYM_W)) : sum;
}

// ---- inputs

static void add_grad(Derivative *d, const Ex *at, BackPer per, const Ex *value) {
    int input = at->op == EX_LOAD ? at->input : at->index;
    BackGrad g = {
        .input = input, .at = at, .per = per, .value = value ? ex_simplify(d->p, value) : NULL};
    if (value && !ex_is_f32(g.value, 0)) VEC_PUSH(d->arena, &d->out->grads, g);
}

// What a number of the row that normalize and emits read adds to its gradient: for the row as a whole, or by the pair.
static void of_normalize(Derivative *d, const Ex *at, const Ex *of_modified) {
    Polys *s = d->polys;
    Poly sum = {0}, emits = back_by_emits(d, at);
    d->may_sweep = d->failed = false;
    if (poly_is_of_row(at)) sum = back_by(d, at, -1);
    bool by_row = poly_is_of_row(at) && !d->failed;
    d->may_sweep = true;
    const Ex *pair = by_row ? NULL : of_pair(d, at);
    if (by_row) emits = poly_plus(s, &emits, &sum);
    emits = poly_reduced(s, &emits);
    add_grad(d, at, BACK_PAIR, ex_plus(d->p, pair, of_modified));
    if (emits.n) add_grad(d, at, BACK_ROW, back_ex(d, &emits));
}

// ds times the derivative of the modified score. Where ds is 0 nothing goes through, however steep that is.
static const Ex *through_score(Derivative *d, const Ex *x) {
    const Ex *by = ex_is_f32(d->out->ds, 0) ? NULL : ex_derivative(d->p, d->modified, x);
    return back_come(d, ex_symbol(d->p, SYM_DS), by);
}

static void score_by(Derivative *d, ExSym sym, int count) {
    for (int i = 0; i < count; i++) {
        const Ex *e = through_score(d, ex_sym(d->p, sym, i, EX_F32));
        BackProduct new = {sym, i, e ? ex_simplify(d->p, e) : NULL};
        if (e) VEC_PUSH(d->arena, &d->out->products, new);
    }
}

// Factors of channels: each element of a query's row adds to them when all its products with keys are summed up.
static void of_factor(Derivative *d, const int *pair) {
    const Ex *factor = row_factor(d->row, pair), *come = ex_symbol(d->p, SYM_DO);
    int row = pair[ROW_QUERIES], before = d->out->grads.n;
    BackReads r = {0};
    if (!factor) return;
    for (int i = 0; i < before; i++)
        if (d->out->grads.data[i].factor == factor && d->out->grads.data[i].row == row) return;
    come = ex_2(d->p, EX_MUL, ex_sym(d->p, SYM_Q, row, EX_F32), come);
    back_reads(d, simp_open(d->p, factor), &r);
    for (int i = 0; i < r.n; i++)
        add_grad(d, r.data[i], BACK_CHANNEL,
                 ex_chain(d->p, come, ex_derivative(d->p, simp_open(d->p, factor), r.data[i])));
    for (int k = before; k < d->out->grads.n; k++)
        d->out->grads.data[k].row = row, d->out->grads.data[k].factor = factor;
}

void back_pairs(Derivative *d) {
    const Ex *ds = of_pair(d, ex_symbol(d->p, SYM_S));
    d->out->ds = ex_simplify(d->p, ds ? ds : ex_f32(d->p, 0));
    score_by(d, SYM_DOT, d->row->dots.n);
    score_by(d, SYM_SQQ, d->row->rows[ROW_QUERIES].n);
    score_by(d, SYM_SQK, d->row->rows[ROW_KEYS].n);
    BackReads r = {0};
    back_reads(d, d->modified, &r);
    back_reads(d, d->weight, &r);
    for (int k = 0; k < d->row->reduces.n; k++) back_reads(d, d->f[k], &r);
    for (int i = 0; i < d->row->emits.n; i++) back_reads(d, d->emit[i], &r);
    back_reads(d, d->output, &r);
    for (int i = 0; i < r.n; i++) {
        const Ex *at = r.data[i], *by = ex_derivative(d->p, d->output, at);
        of_normalize(d, at, through_score(d, at));
        if (by) add_grad(d, at, BACK_COLUMN, ex_chain(d->p, ex_symbol(d->p, SYM_DO), by));
    }
    for (int i = 0; i < d->row->dots.n; i++)
        for (int k = 0; k < d->row->dots.data[i].pairs.n && back_product(d->out, SYM_DOT, i); k++)
            of_factor(d, d->row->dots.data[i].pairs.data[k].row);
}
