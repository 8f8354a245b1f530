// unscale.c: moves a constant scale of the score out of it, into the formulas that use the score.
//
//     s = dot * 0.125;  m = rowmax(s);          w = exp(s - m) / l
//     s = dot;          m = rowmax(s * 0.125);  w = exp(s * 0.125 - m) / l
//
// In: a row program. Out: one with the same reductions, weights and emits. A maximum then runs over
// the bare score and an exponent takes the scale into its own factor: one multiplication less for
// every score. The scale is positive, so that -inf, which marks a masked key, stays -inf.
#include "passes/unscale.h"

#include "passes/simplify_rules.h"

#include <math.h>
#include <string.h>

// The constant c of x * c, or NULL.
static const Ex *scale_of(const Ex *modified) {
    if (modified->op != EX_MUL) return NULL;
    const Ex *c = modified->args[1];
    return c->op == EX_CONST && isnormal(c->f) && c->f > 0 ? c : NULL;
}

const RowProgram *row_unscaled(Arena *a, const RowProgram *row) {
    ExPool *p = row->pool;
    const Ex *modified = simp_open(p, row->modified), *c = scale_of(modified);
    if (!c) return row;
    const Ex *scaled = ex_2(p, EX_MUL, ex_symbol(p, SYM_S), c);
    RowProgram *out = ARENA_NEW(a, RowProgram);
    *out = *row;
    out->modified = modified->args[0];
    out->weight = ex_subst(p, row->weight, SYM_S, 0, scaled);
    out->reduces.data = ARENA_ARRAY(a, RowReduce, row->reduces.n + 1);
    out->reduces.cap = row->reduces.n + 1;
    for (int i = 0; i < row->reduces.n; i++) {
        out->reduces.data[i] = row->reduces.data[i];
        out->reduces.data[i].f = ex_subst(p, row->reduces.data[i].f, SYM_S, 0, scaled);
    }
    return out;
}
