// split.c: a sweep over the keys shared between blocks: which steps a part takes, and how many
// parts there are.
//
// In: a program with a part kernel (an axis in its grid whose size is derived at launch). A loop's
// steps [0, total) are cut into shares of ceil(total / splits). Holds afterwards (pass_set_splits):
// the number of parts is chosen at launch so that the blocks are as many as the workers run at a
// time, and a part has at least SPLIT_TILES tiles of keys; the plan of the split form is taken where
// that gives more than one.
#include "rewrite.h"

#include "passes.h"
#include "simplify_rules.h"

enum {
    SPLIT_TILES = 2,
    MAX_PARTS = 64, // of a row, which the combination goes through one after the other
};

static int derived_size(const TileProgram *p, const Ex *e) {
    if (e->op != EX_SYM || e->sym != SYM_SIZE) return -1;
    return p->sizes.data[e->index].def ? e->index : -1;
}

int pass_split_axis(const TileProgram *p, const TileKernel *k) {
    for (int i = 0; i < k->ngrid; i++) {
        const TileGrid *g = &k->grid[i];
        if (g->sym == SYM_TILE && derived_size(p, k->axes[g->axis].size) >= 0) return g->axis;
    }
    return -1;
}

void pass_share_steps(TileProgram *p, TileKernel *k, TileOp *loop, const Ex *total) {
    ExPool *x = p->pool;
    int axis = pass_split_axis(p, k);
    loop->from = ex_i32(x, 0);
    loop->to = total;
    if (axis < 0) return;
    const Ex *parts = k->axes[axis].size, *one = ex_i32(x, 1);
    const Ex *share =
        simp_2(x, EX_DIV, simp_2(x, EX_SUB, simp_2(x, EX_ADD, total, parts), one), parts);
    const Ex *from = simp_2(x, EX_MUL, ex_sym(x, SYM_TILE, axis, EX_I32), share);
    loop->from = simp_2(x, EX_MIN, from, total);
    loop->to = simp_2(x, EX_MIN, simp_2(x, EX_ADD, from, share), total);
}

static const Ex *row_tiles(const TileKernel *k) {
    for (int i = 0; i < k->ngrid; i++)
        if (k->grid[i].sym == SYM_TILE) return k->grid[i].count;
    return NULL;
}

static int key_extent(const TileKernel *k) {
    for (const TileOp *op = k->body.first; op; op = op->next)
        if (op->kind == TILE_LOOP) return k->axes[op->axis].extent;
    return 0;
}

// Divisions one after the other: the product of the counts might leave i32. By zero is zero, and
// then one part is enough.
static const Ex *parts_for(TileProgram *p, const TileKernel *k) {
    ExPool *x = p->pool;
    const Ex *n = ex_symbol(x, SYM_WORKERS), *one = ex_i32(x, 1);
    if (k->schedule.min_blocks > 1) n = ex_2(x, EX_MUL, n, ex_i32(x, k->schedule.min_blocks));
    const Ex *by[] = {ex_sym(x, SYM_SIZE, SIZE_B, EX_I32), ex_sym(x, SYM_SIZE, SIZE_HQ, EX_I32),
                      row_tiles(k)};
    for (int i = 0; i < 3; i++) n = ex_2(x, EX_DIV, n, by[i]);
    const Ex *sk = ex_sym(x, SYM_SIZE, SIZE_SK, EX_I32);
    const Ex *most = ex_2(x, EX_DIV, sk, ex_i32(x, key_extent(k) * SPLIT_TILES));
    most = ex_2(x, EX_MIN, most, ex_i32(x, MAX_PARTS));
    return ex_simplify(x, ex_2(x, EX_MAX, ex_2(x, EX_MIN, n, most), one));
}

void pass_set_splits(TileProgram *p) {
    for (int i = 0; i < p->kernels.n; i++) {
        TileKernel *k = p->kernels.data[i];
        int axis = pass_split_axis(p, k);
        if (axis < 0) continue;
        p->sizes.data[k->axes[axis].size->index].def = parts_for(p, k);
    }
}

static bool has_parts(const TileProgram *p, const TilePlan *plan) {
    for (int i = 0; i < plan->kernels.n; i++)
        if (pass_split_axis(p, p->kernels.data[plan->kernels.data[i]]) >= 0) return true;
    return false;
}

void pass_prefer_parts(TileProgram *p, int queries) {
    ExPool *x = p->pool;
    const Ex *few = ex_2(x, EX_LE, ex_sym(x, SYM_SIZE, SIZE_SQ, EX_I32), ex_i32(x, queries));
    for (int i = 0; i < p->plans.n; i++) {
        TilePlan *plan = &p->plans.data[i];
        if (plan->when && has_parts(p, plan)) plan->when = ex_2(x, EX_OR, few, plan->when);
    }
}
