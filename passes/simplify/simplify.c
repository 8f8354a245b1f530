// simplify.c: algebraic simplification: the walk and constant folding. The rules are in
// simplify_{float,int,bool}.c.
//
// In: any scalar expression. Out: an equivalent one. Holds afterwards: no operation has only
// constant arguments; a constant stands right of +, *, min and max; there is no exp, no log, no
// division by a constant, no a*b + c but as fma.
//
//     exp(((dot / 8.0) - 0.0))                 ->  exp2((dot * 0.18033688))
//     ((q_offset + (tile0 * 64)) + (64 - 1))   ->  ((q_offset + (tile0 * 64)) + 63)
//     ((s * p0) + p1)                          ->  fma(s, p0, p1)
//
// What stands under `rounded` is computed as it is written: it is rewritten only where the result is the
// same to the last bit, and no sum there becomes an fma.
//
//     rounded((x / 41.0))  stays;    rounded((x / 4.0))  ->  rounded((x * 0.25));    rounded((x * 1.0))  ->  x
//
// Two walks: the first simplifies with every fma taken apart, the second forms them, so that
// simplifying again, after a substitution say, sees sums and products only. What is simplified
// depends on the expression alone, never on ids.
#include "passes/simplify/simplify.h"

#include "ir/expr_ops.h"
#include "passes/simplify/rules.h"

static ExValue const_value(const Ex *e) {
    ExValue v = {.f = e->type == EX_F32 ? (double)e->f : 0};
    if (e->type != EX_F32) v.i = e->i;
    return v;
}

const Ex *simp_fold(ExPool *p, const Ex *e) {
    ExType types[EX_MAX_RANK];
    ExValue values[EX_MAX_RANK];
    if (!e->nargs || e->op == EX_LOAD || ex_ops[e->op].typing == T_RED) return NULL;
    for (int i = 0; i < e->nargs; i++) {
        if (e->args[i]->op != EX_CONST) return NULL;
        types[i] = e->args[i]->type;
        values[i] = const_value(e->args[i]);
    }
    ExValue v = ex_apply(e->op, e->type, types, values, true);
    if (e->type == EX_F32) return ex_f32(p, (float)v.f);
    return e->type == EX_I32 ? ex_i32(p, v.i) : ex_bool(p, v.i != 0);
}

static const Ex *simplify_node(ExPool *p, const Ex *e) {
    if (!e->nargs) return e;
    const Ex *c = simp_fold(p, e);
    if (c) return c;
    if (e->op == EX_ROUNDED) return simp_rounded(p, e->args[0]);
    if (e->op == EX_SELECT || e->op == EX_CONV || e->type == EX_BOOL) return simp_bool_node(p, e);
    if (e->op == EX_LOAD || ex_ops[e->op].typing == T_RED) return e;
    return e->type == EX_F32 ? simp_float_node(p, e) : simp_int_node(p, e);
}

const Ex *simp_1(ExPool *p, ExOp op, const Ex *a) { return simplify_node(p, ex_1(p, op, a)); }

const Ex *simp_2(ExPool *p, ExOp op, const Ex *a, const Ex *b) {
    return simplify_node(p, ex_2(p, op, a, b));
}

const Ex *simp_select(ExPool *p, const Ex *c, const Ex *a, const Ex *b) {
    return simplify_node(p, ex_select(p, c, a, b));
}

static const Ex *fuse_one(void *ctx, ExPool *p, const Ex *e) {
    (void)ctx;
    if (e->type != EX_F32 || (e->op != EX_ADD && e->op != EX_SUB)) return e;
    const Ex *a = e->args[0], *b = e->args[1];
    if (a == b) return e; // x*y - x*y is 0, which a product that is not rounded would miss
    if (a->op == EX_MUL) {
        const Ex *c = e->op == EX_ADD ? b : simp_1(p, EX_NEG, b);
        const Ex *args[] = {a->args[0], a->args[1], c};
        return ex_at(p, ex_op(p, EX_FMA, args, 3), e->span);
    }
    if (b->op == EX_MUL) { // a - x*y: the sign goes to the factor that is a constant, if one is
        const Ex *y = b->args[1], *x = b->args[0];
        if (e->op == EX_SUB && y->op == EX_CONST)
            y = simp_1(p, EX_NEG, y);
        else if (e->op == EX_SUB)
            x = simp_1(p, EX_NEG, x);
        const Ex *args[] = {x, y, a};
        return ex_at(p, ex_op(p, EX_FMA, args, 3), e->span);
    }
    return e;
}

const Ex *simp_open(ExPool *p, const Ex *e) {
    Arena *scratch = arena_new();
    ExMemo done = {0};
    const Ex **order, *r = e;
    int n = ex_order(scratch, &e, 1, &order);
    for (int i = 0; i < n; i++) {
        const Ex *x = order[i];
        if (x->op == EX_ROUNDED) // of what is rounded the arguments are simplified, and not itself
            r = simp_rounded(p, ex_renewed(p, &done, x->args[0]));
        else
            r = simplify_node(p, ex_renewed(p, &done, x));
        r = r == x ? r : ex_at(p, r, x->span);
        ex_memo_put(scratch, &done, x, r);
    }
    arena_free(scratch);
    return r; // e is the last in its order
}

// Every pass leaves programs simplified: most of what it is asked for has been before.
const Ex *ex_simplify(ExPool *p, const Ex *e) {
    const Ex *known = ex_memo_get(ex_simple(p), e);
    if (known) return known;
    const Ex *r = ex_map(p, simp_open(p, e), fuse_one, NULL);
    ex_memo_put(ex_arena(p), ex_simple(p), e, r);
    return r;
}
