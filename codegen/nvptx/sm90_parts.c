// sm90_parts.c: uses of row sums that are in parts (ir/tile_parts.h).
//
// In: an operation of a role. Out: the same, its operands made whole where it does not take them in
// parts: a row's number is the sum over the threads that share it.
#include "codegen/nvptx/sm90.h"

#include "ir/tile_parts.h"

static CgValue whole(Cg *cg, const TileValue *v) {
    const CgValue *parts = &cg->value[v->id];
    CgValue sum = {ARENA_ARRAY(cg->arena, Val, parts->n), parts->n, NULL};
    for (int i = 0; i < parts->n; i++) sum.e[i] = nv_whole(cg, v, parts->e[i]);
    return sum;
}

void nv90_with_sums(Cg *cg, const TileOp *op, void (*lower)(Cg *cg, const TileOp *op)) {
    bool any = false;
    for (int i = 0; i < op->args.n; i++) any |= op->args.data[i]->parts;
    if (!any || tile_takes_parts(op)) {
        lower(cg, op);
        return;
    }
    CgValue *kept = ARENA_ARRAY(cg->arena, CgValue, op->args.n);
    for (int i = 0; i < op->args.n; i++) {
        CgValue *v = &cg->value[op->args.data[i]->id];
        kept[i] = *v;
        if (op->args.data[i]->parts) *v = whole(cg, op->args.data[i]);
    }
    lower(cg, op);
    for (int i = op->args.n - 1; i >= 0; i--) cg->value[op->args.data[i]->id] = kept[i];
}
