// tile_verify_columns.c: accesses that see some of the columns of a tensor.
#include "ir/tile_verify.h"

// Some of the columns: of a constant number, whole along an axis of as many.
bool verify_columns(Verify *V, const TileTensor *t) {
    const TileOp *op = V->op;
    const TileCoord *c = &op->coord[t->rank - 1];
    const Ex *all = t->extent[t->rank - 1];
    if (!op->width && !op->from_column) return true;
    if (op->kind == TILE_STORE || op->kind == TILE_APPEND || op->width < 1 || op->from_column < 0 ||
        all->op != EX_CONST || op->from_column > all->i - op->width)
        return verify_fail(V, "%d columns from %d of '%s'", op->width, op->from_column, t->name);
    return (c->axis >= 0 && V->k->axes[c->axis].whole &&
            ex_is_i32(V->k->axes[c->axis].size, op->width)) ||
           verify_fail(V, "an axis of other columns than those of '%s'", t->name);
}
