// shared.c: values in the memory that a block shares: where they begin, and their elements.
#include "codegen/gpu/gpu.h"

#include <assert.h>

void cg_alloc(Cg *cg, const TileValue *v) {
    cg->value[v->id].mem = cg_gpu(cg)->hooks->place(cg, v);
}

void cg_view(Cg *cg, const TileOp *op) {
    const TileValue *buffer = op->args.data[0];
    Val stage = cg_times(cg, cg_uniform(cg, op->stage), tile_shared(cg->p, cg->k, buffer).bytes);
    cg->value[op->results.data[0]->id].mem = cg_add(cg, cg->value[buffer->id].mem, stage);
}

void cg_beside(Cg *cg, const TileOp *op) {
    assert(!op->from_column && "only products of roles find columns within a tile");
    cg->value[op->results.data[0]->id] = cg->value[op->args.data[0]->id];
}

Val cg_shared_pointer(Cg *cg, const TileValue *v, int axis, Val own, Val other) {
    TileShared t = tile_shared(cg->p, cg->k, v);
    bool along = t.col_axis == axis;
    Val row = t.row_axis < 0 ? NULL : along ? other : own;
    Val offset = cg_gpu(cg)->hooks->offset(cg, &t, row, along ? own : other);
    return cg_gpu(cg)->hooks->pointer(cg, cg_add(cg, cg->value[v->id].mem, offset));
}

// Where rows are not permuted, the thread's elements have one base, and constants beyond it: a place for each would take a register for each.
Val cg_shared_at(Cg *cg, const TileValue *v, int layout, const int *part) {
    TileShared t = tile_shared(cg->p, cg->k, v);
    bool plain = t.order == ORDER_PADDED || (t.row_axis < 0 && t.order != ORDER_PANELS);
    int axis[2] = {t.col_axis, t.row_axis}, bytes[2] = {t.elem, t.pitch}, beyond = 0;
    Val at[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        if (axis[i] < 0) continue;
        at[i] = cg_plus(cg, cg_thread_part(cg, layout, axis[i]), plain ? 0 : part[axis[i]]);
        if (plain) beyond += part[axis[i]] * bytes[i];
    }
    Val p = cg_shared_pointer(cg, v, t.col_axis, at[0], at[1]);
    return beyond ? cg_element(cg, cg->i8, p, cg_i32(cg, beyond)) : p;
}

Val cg_shared_element(Cg *cg, const TileValue *v, int layout, const int *part) {
    return cg_read(cg, cg_load(cg, cg_dtype(cg, v->dtype), cg_shared_at(cg, v, layout, part)),
                   v->dtype);
}
