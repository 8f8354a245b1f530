// access.c: where in a tensor a fragment's elements are.
//
// In: a TILE_LOAD or TILE_STORE of a fragment whose columns are along the tensor's last dimension. Out: the
// tile's first element, the thread's first row, and how far the tensor goes.
#include "codegen/gpu/gpu.h"

#include <assert.h>

Val cg_global(Cg *cg, Val p) {
    return LLVMBuildAddrSpaceCast(cg->b, p, LLVMPointerTypeInContext(cg->c, 1), "");
}

static Val scaled(Cg *cg, Val index, Val by) { return cg_mul(cg, cg_sext(cg, index, cg->i64), by); }

// All columns of the tensor, or a tile of them, the last of which may have fewer.
static void find_columns(Cg *cg, CgAccess *a, const TileAxis *axis, Val first, int d, int each) {
    int all = tile_columns(cg->p, a->op);
    assert(d == a->t->rank - 1 && a->t->extent[d]->op == EX_CONST);
    a->cols = axis->whole ? all : axis->extent;
    if (axis->whole) return;
    a->begin = cg_add(cg, a->begin, scaled(cg, first, cg_i64(cg, each)));
    if (all % axis->extent) a->ncols = cg_sub(cg, cg_i32(cg, all), first);
}

static Val first_row(Cg *cg, const CgAccess *a, Val tile) {
    return cg_add(cg, tile, cg_thread_part(cg, a->v->layout, a->f->rows));
}

CgAccess cg_access(Cg *cg, const TileOp *op, const TileValue *v, Val from, int unit, int column) {
    CgAccess a = {op, &cg->p->tensors.data[op->tensor], v, cg_fragment(cg, v), .begin = from};
    a.unit = unit;
    for (int d = 0; d < a.t->rank; d++) {
        const TileCoord *at = &op->coord[d];
        if (op->each[d]) continue;
        Val i = cg_uniform(cg, at->at), stride = cg_stride(cg, op->tensor, d);
        if (unit > 1) stride = cg_mul(cg, stride, cg_i64(cg, unit));
        if (at->axis < 0 || cg->k->axes[at->axis].extent == 1) {
            a.begin = cg_add(cg, a.begin, scaled(cg, i, stride));
            continue;
        }
        const TileAxis *axis = &cg->k->axes[at->axis];
        i = cg_times(cg, i, axis->extent);
        if (at->axis != a.f->rows) {
            find_columns(cg, &a, axis, i, d, column);
            continue;
        }
        a.row = first_row(cg, &a, i);
        a.nrows = cg_extent(cg, op->tensor, d);
        a.stride = stride;
    }
    if (tile_goes_by_element(op, a.f->rows)) {
        a.row = first_row(cg, &a, cg_element_begin(cg, op, a.f->rows));
        a.nrows = cg_axis_size(cg, a.f->rows);
    }
    return a;
}

Val cg_row_offset(Cg *cg, const CgAccess *a, Val row) {
    if (a->stride) return scaled(cg, row, a->stride);
    Val at = cg_element_offset(cg, a->op, a->f->rows, row);
    return a->unit > 1 ? cg_mul(cg, at, cg_i64(cg, a->unit)) : at;
}

Val cg_number(Cg *cg, const CgAccess *a, int row, int column) {
    int part[TILE_MAX_AXES] = {0};
    part[a->f->rows] = row;
    if (a->f->columns >= 0) part[a->f->columns] = column;
    return cg_gpu(cg)->hooks->element(cg, a->v, a->v->layout, part);
}
