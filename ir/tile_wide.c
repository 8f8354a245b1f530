// tile_wide.c: see tile_wide.h.
#include "ir/tile_wide.h"

enum { WMMA_LANES = 32 }; // WMMA wants all of a row in each lane

bool tile_may_be_wide(const TileKernel *k, const Target *t, int axis) {
    int rows = k->schedule.matrix_rows;
    bool contracted = false;
    if (!rows || t->lanes == WMMA_LANES || k->axes[axis].extent % (8 * t->lanes / rows))
        return false;
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        if (op->kind != TILE_MMA) continue;
        if (tile_has_axis(op->results.data[0], axis)) return false;
        contracted |= tile_contracted_axis(op) == axis && dtype_half(op->args.data[0]->dtype);
    }
    return contracted;
}
