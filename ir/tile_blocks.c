// tile_blocks.c: tensors that lie in blocks (TileTensor.blocked): which may, and which accesses fit
// them.
//
// A workspace that only fragments go to and come from need not lie row by row: in blocks of 16 rows
// and 8 columns, in the order in which a warp's threads have them, each thread's four numbers of a
// block are 16 bytes and a warp's 512 follow each other. Where threads add to it one by one (sm_80), a thread's numbers are 128 bytes
// apart, so that those that a warp adds at a time follow each other. Its rows are padded to whole blocks.
#include "ir/tile_blocks.h"
#include "ir/tile_shared.h"
#include "ir/tile_verify.h"

bool tile_is_multiple(const Ex *e, int of) {
    if (e->op == EX_CONST) return e->i % of == 0;
    if (e->op == EX_ADD)
        return tile_is_multiple(e->args[0], of) && tile_is_multiple(e->args[1], of);
    return e->op == EX_MUL &&
           (tile_is_multiple(e->args[0], of) || tile_is_multiple(e->args[1], of));
}

bool tile_may_block(const TileTensor *t) {
    if (t->role != TENSOR_WORK || t->dtype != DT_F32 || t->rank < 2 || t->exact) return false;
    const Ex *columns = t->extent[t->rank - 1];
    return columns->op == EX_CONST && tile_is_multiple(columns, TILE_BLOCK_COLUMNS);
}

bool tile_fits_blocks(const TileKernel *k, const TileTensor *t, const TileOp *op,
                      const TileValue *v) {
    const TileCoord *row = &op->coord[t->rank - 2], *col = row + 1;
    if (op->kind != TILE_LOAD && op->kind != TILE_STORE) return false;
    for (int d = 0; d < t->rank; d++) { // rows that follow each other, from a whole block on
        if (!op->each[d]) continue;
        const Ex *at = d == t->rank - 2 ? op->coord[d].at : NULL;
        bool run = at && at->op == EX_ADD && !ex_uses(at->args[0], SYM_POS, -1) &&
                   at->args[1]->op == EX_SYM && at->args[1]->sym == SYM_POS;
        if (!run || !tile_is_multiple(at->args[0], TILE_BLOCK_ROWS)) return false;
    }
    bool rows = op->add ? row->axis >= 0 : row->axis == tile_grid_axis(k);
    if (!rows || col->axis < 0 || v->home != HOME_FRAGMENT) return false;
    bool nest = k->purpose == PURPOSE_GRADIENTS && row->axis != tile_grid_axis(k);
    bool way = op->add ? op->args.n > 1 || tile_has_roles(k) || nest : op->args.n < 2;
    return way && k->axes[row->axis].extent % TILE_BLOCK_ROWS == 0 &&
           k->axes[col->axis].extent % TILE_BLOCK_COLUMNS == 0;
}

bool verify_blocked(Verify *V, const TileTensor *t) {
    if (!t->blocked) return true;
    bool good = tile_may_block(t) && tile_is_multiple(t->extent[t->rank - 2], TILE_BLOCK_ROWS);
    return good || verify_fail(V, "tensor '%s' cannot lie in blocks", t->name);
}

bool verify_blocks(Verify *V, const TileValue *v) {
    const TileTensor *t = &V->p->tensors.data[V->op->tensor];
    return !t->blocked || tile_fits_blocks(V->k, t, V->op, v) ||
           verify_fail(V, "'%s' lies in blocks, of which this is none", t->name);
}
