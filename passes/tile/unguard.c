// unguard.c: marks weights of which a NaN may be lost when they are rounded (ir/tile_unguarded.h),
// for targets that round by several instructions.
//
// In: a scheduled kernel. Out: where a number of the row that is carried beside an accumulator is NaN
// when a weight was (the sum of the weights), what the sweeps leave of the accumulator is made NaN by
// it, once, and the weights are marked:
//
//     %acc_end, %l_end = loop ..   ->   %acc_end, %l_end = loop .. { .. %p: bf16[M, N] unguarded .. }
//                                       %acc_kept = map (%acc_end, %l_end) {
//                                           select((%l_end != %l_end), %l_end, %acc_end) }
#include "passes/schedule/schedule.h"
#include "passes/tile/rewrite.h"

#include "ir/tile_unguarded.h"

enum { MAX_WEIGHTS = 16 };

typedef struct Weights { // of a kernel
    TileValue *v[MAX_WEIGHTS];
    int n;
    TileOp *last; // the loop behind which no weights are made
} Weights;

static bool is_factor(const TileValue *v) {
    for (const TileOp *op = v->def->next; op; op = op->next)
        if (op->kind == TILE_MMA && op->args.data[0] == v) return true;
    return false;
}

static Weights weights_of(TileKernel *k) {
    Weights w = {.n = 0};
    for (TileOp *loop = k->body.first; loop; loop = loop->next)
        for (TileOp *op = loop->kind == TILE_LOOP ? loop->body.first : NULL; op; op = op->next)
            for (int i = 0; op->kind == TILE_MAP && i < op->results.n; i++) {
                TileValue *v = op->results.data[i];
                if (v->dtype != DT_BF16 || v->home != HOME_FRAGMENT || w.n == MAX_WEIGHTS ||
                    !is_factor(v))
                    continue;
                w.v[w.n++] = v;
                w.last = loop;
            }
    return w;
}

// A number for each row that the last loop leaves and that tells of every weight.
static TileValue *teller(Arena *a, const TileKernel *k, const Weights *w) {
    for (int i = 0; i < w->last->results.n; i++) {
        TileValue *x = w->last->results.data[i];
        bool tells = x->rank == 1 && x->axis[0] == tile_grid_axis(k) && x->dtype == DT_F32;
        for (int j = 0; j < w->n && tells; j++) tells = tile_tells_nan(a, k, w->v[j], x);
        if (tells) return x;
    }
    return NULL;
}

// What is used behind the loop in place of `x`.
static void keep(TileProgram *p, TileKernel *k, TileOp *loop, TileValue *x, TileValue *l) {
    TileOp *map = pass_map_before(p, loop->next, pass_axes_of(x));
    const Ex *of = pass_operand(p, map, x), *nan = pass_operand(p, map, l);
    const Ex *body = ex_select(p->pool, ex_2(p->pool, EX_NE, nan, nan), nan, of);
    TileValue *kept = pass_out(p, k, map, x->name, x->dtype, body, EX_CONST, 0);
    kept->home = HOME_FRAGMENT;
    for (TileOp *op = map->next; op; op = op->next)
        for (int i = 0; i < op->args.n; i++)
            if (op->args.data[i] == x) op->args.data[i] = kept;
}

static void mark(TileProgram *p, const TileKernel *k, const Weights *w) {
    for (int i = 0; i < w->n; i++) w->v[i]->unguarded = tile_may_be_unguarded(p->arena, k, w->v[i]);
}

void pass_unguard(TileProgram *p, TileKernel *k) {
    Weights w = weights_of(k);
    mark(p, k, &w);
    bool all = true;
    for (int i = 0; i < w.n; i++) all &= w.v[i]->unguarded;
    TileValue *l = all ? NULL : teller(p->arena, k, &w);
    if (!l) return;
    for (int i = 0; i < w.last->results.n; i++)
        if (w.last->results.data[i]->rank == 2) keep(p, k, w.last, w.last->results.data[i], l);
    mark(p, k, &w);
}
