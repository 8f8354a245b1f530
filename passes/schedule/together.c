// together.c: what all threads of a block make together, in shared memory.
//
// In: a kernel for a GPU, before its values have homes. Rows, of the grid's axis, lie over the warps; a recurrence's state has
// them, and the scores of its chunk have not. Out: in shared memory lies what is made by an operation whose results have no
// rows and that is a product, goes to an axis beside another, inverts, scans, or makes a matrix; and what such an operation
// reads of other maps.
#include "passes/schedule/resources.h"
#include "passes/tile/rewrite.h"

enum {
    MOST = 64, // places: more make more products than they save
    TWO_BLOCKS = 112 << 10,
    SM90_SHARED = 228 << 10, // of an SM, and what a block takes beside its own
    SM90_OF_A_BLOCK = 1 << 10,
};

static bool lacks_rows(const TileKernel *k, const TileOp *op) {
    int rows = tile_grid_axis(k);
    for (int i = 0; i < op->results.n; i++)
        if (tile_has_axis(op->results.data[i], rows)) return false;
    return rows >= 0;
}

static bool needs_all(const TileKernel *k, const TileOp *op) {
    bool all = op->kind != TILE_MAP || tile_scans(op);
    for (int i = 0; i < op->results.n; i++) all |= op->results.data[i]->rank > 1;
    bool chunk = k->purpose == PURPOSE_CHUNK || k->purpose == PURPOSE_STEPS, loaded = true;
    for (int i = 0; i < op->args.n; i++) loaded &= op->args.data[i]->def->kind == TILE_LOAD;
    for (int i = 0; i < op->outs.n && chunk; i++) // a sum over the warps, or of what is no tile
        all |= op->outs.data[i].reduce != EX_CONST &&
               (!loaded || op->outs.data[i].reduce_axis == tile_grid_axis(k));
    return all;
}

bool pass_makes_together(const TileKernel *k) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if ((tile_op_info(op->kind)->flags & OP_MAKES) && needs_all(k, op) && lacks_rows(k, op))
            return true;
    return false;
}

static bool is_shared(const TileOp *op) {
    return op && op->results.n && op->results.data[0]->home == HOME_SHARED;
}

// What it makes goes to an operation of all threads, or comes from one.
static bool joins(const TileKernel *k, const TileOp *op) {
    for (int i = 0; i < op->args.n; i++)
        if (is_shared(op->args.data[i]->def)) return true;
    for (const TileOp *at = tile_next(&k->body, NULL); at; at = tile_next(&k->body, at)) {
        if (is_shared(at) && pass_uses_result(at, op)) return true;
    }
    return false;
}

static int shared_bytes(const TileProgram *p, const TileKernel *k, const Extents *e, Knobs s,
                        int warps) {
    Block b = pass_block(p, k, e, s, warps);
    return pass_shared(&b);
}

void pass_fit_together(const TileProgram *p, TileKernel *k, Extents *e, Knobs s, int warps,
                       int least) {
    const Target *t = target_get(p->target);
    int room = t->kind == KIND_NVPTX ? TWO_BLOCKS : t->shared_bytes;
    if (s.groups) room = SM90_SHARED / s.blocks - SM90_OF_A_BLOCK;
    if (!pass_makes_together(k)) return;
    pass_together(p, k);
    if (e->step > MOST) e->step = MOST;
    while (e->step > least && shared_bytes(p, k, e, s, warps) > room) e->step /= 2;
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; i < op->results.n; i++) op->results.data[i]->home = HOME_ANY;
}

void pass_together(const TileProgram *p, TileKernel *k) {
    const Target *target = target_get(p->target);
    for (bool again = true; again;) {
        again = false;
        for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
            bool makes = tile_op_info(op->kind)->flags & OP_MAKES;
            if (!makes || is_shared(op) || !lacks_rows(k, op)) continue;
            if (op->results.data[0]->home == HOME_FRAGMENT) continue; // a product's, as below
            if (!needs_all(k, op) && !joins(k, op)) continue;
            bool registers = op->kind == TILE_MMA && target->kind == KIND_NVPTX;
            for (int i = 0; i < op->results.n; i++)
                op->results.data[i]->home = registers ? HOME_FRAGMENT : HOME_SHARED;
            again = true;
        }
    }
}
