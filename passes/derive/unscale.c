// unscale.c: moves a scale of the score out of it, into the formulas that use the score.
//
//     s = dot * 0.125;  m = rowmax(s);          w = exp(s - m) / l
//     s = dot;          m = rowmax(s * 0.125);  w = exp(s * 0.125 - m) / l
//
//     s = max(dot * 0.125, 0) / Sk;             w = s
//     s = max(dot, 0);                          w = s * 0.125 / Sk
//
// In: a row program. Out: one with the same reductions, weights and emits. A maximum then runs over
// the bare score, an exponent takes the scale into its own factor, and a sum is multiplied by it
// once: one operation less for every score. The scale is positive, so that -inf, which marks a
// masked key, stays -inf.
#include "passes/derive/unscale.h"

#include "passes/simplify/rules.h"

#include <math.h>

static bool is_scale(const Ex *e) { return e->op == EX_CONST && isnormal(e->f) && e->f > 0; }

// A launch's size, 1 at least where there is a key.
static bool is_size(const Ex *e) {
    if (e->op != EX_CONV || e->args[0]->op != EX_SYM) return false;
    return e->args[0]->sym == SYM_SIZE && e->args[0]->index <= SIZE_SK;
}

// An extremum goes by elements: a scale that is no constant would stay in them.
static bool has_extremum(const RowProgram *row) {
    for (int i = 0; i < row->reduces.n; i++)
        if (row->reduces.data[i].op != EX_ROWSUM) return true;
    return false;
}

// modified = what is given * the scale, or over it. Takes one off, replaces `scaled`, which stands
// for the modified score in formulas of the bare one.
static const Ex *take_scale(ExPool *p, const Ex *modified, bool sizes, const Ex **scaled) {
    const Ex *x = modified->nargs ? modified->args[0] : NULL;
    const Ex *y = modified->nargs == 2 ? modified->args[1] : NULL;
    bool relu = y && modified->op == EX_MAX && ex_is_f32(y, 0) && x->op == EX_MUL;
    if (relu && is_scale(x->args[1])) {
        *scaled = ex_2(p, EX_MUL, *scaled, x->args[1]);
        return ex_2(p, EX_MAX, x->args[0], y);
    }
    bool constant = y && modified->op == EX_MUL && is_scale(y);
    bool size = y && sizes && modified->op == EX_DIV && is_size(y);
    if (!constant && !size) return NULL;
    *scaled = ex_2(p, modified->op, *scaled, y);
    return x;
}

const RowProgram *row_unscaled(Arena *a, const RowProgram *row, const Ex **scaled_score) {
    ExPool *p = row->pool;
    const Ex *s = ex_symbol(p, SYM_S), *scaled = s, *modified = simp_open(p, row->modified), *rest;
    while ((rest = take_scale(p, modified, !has_extremum(row), &scaled))) modified = rest;
    *scaled_score = scaled;
    if (scaled == s) return row;
    RowProgram *out = ARENA_NEW(a, RowProgram);
    *out = *row;
    out->modified = modified;
    out->weight = ex_subst(p, row->weight, SYM_S, 0, scaled);
    out->reduces.data = ARENA_ARRAY(a, RowReduce, row->reduces.n + 1);
    out->reduces.cap = row->reduces.n + 1;
    for (int i = 0; i < row->reduces.n; i++) {
        out->reduces.data[i] = row->reduces.data[i];
        out->reduces.data[i].f = ex_subst(p, row->reduces.data[i].f, SYM_S, 0, scaled);
    }
    return out;
}
