// element.c: coordinates that are said for each place along an axis, or for each element.
//
// In: a load, store or copy, and a position along an axis. Out: where the tensor has what goes there, and whether
// the axis has such a place.
#include "codegen/cg.h"

static Val position(Cg *cg, CgElem *at, int axis) {
    (void)cg;
    return ((const Val *)at->ctx)[axis];
}

// The index is clamped; an empty tensor has no place that is asked for.
static Val index_at(Cg *cg, const TileOp *op, int d, Val *pos) {
    CgElem at = {.lanes = 1, .pos = position, .lane_axis = -1, .ctx = pos};
    Val last = cg_sub(cg, cg_extent(cg, op->tensor, d), cg_i32(cg, 1));
    Val v[] = {cg_expr(cg, op->coord[d].at, &at), last};
    v[0] = cg_intrinsic(cg, "llvm.smin", &cg->i32, 1, v, 2);
    v[1] = cg_i32(cg, 0);
    return cg_intrinsic(cg, "llvm.smax", &cg->i32, 1, v, 2);
}

static Val offset(Cg *cg, const TileOp *op, int axis, Val *pos) {
    Val sum = cg_i64(cg, 0);
    for (int d = 0; d < cg->p->tensors.data[op->tensor].rank; d++) {
        if (!op->each[d] || op->coord[d].axis != axis) continue;
        Val i = cg_sext(cg, index_at(cg, op, d, pos), cg->i64);
        sum = cg_add(cg, sum, cg_mul(cg, i, cg_stride(cg, op->tensor, d)));
    }
    return sum;
}

Val cg_element_offset(Cg *cg, const TileOp *op, int axis, Val pos) {
    Val at[TILE_MAX_AXES] = {NULL};
    at[axis] = pos;
    return offset(cg, op, axis, at);
}

Val cg_scatter_offset(Cg *cg, const TileOp *op, Val *pos) { return offset(cg, op, -1, pos); }

// Of the tile that an access says for each place along an axis.
Val cg_element_begin(Cg *cg, const TileOp *op, int axis) {
    for (int d = 0; d < cg->p->tensors.data[op->tensor].rank; d++) {
        const TileCoord *c = &op->coord[d];
        if (!op->each[d] || c->axis != axis || !c->tile) continue;
        return cg_times(cg, cg_uniform(cg, c->tile), cg->k->axes[axis].extent);
    }
    return cg_tile_begin(cg, axis);
}

Val cg_axis_size(Cg *cg, int axis) { return cg_uniform(cg, cg->k->axes[axis].size); }
