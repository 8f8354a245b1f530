// parts.c: row sums that are in parts (ir/tile_parts.h).
//
// In: a map, or a store. Out: the same, its operands made whole where it does not take them in parts: a row's number is the
// sum over the threads that share it. What it takes whole and gives in parts is that of the first of these threads.
#include "codegen/nvptx/nvptx.h"

#include "ir/tile_parts.h"

// A row's number from what the threads of a warp that share it have of it.
static Val whole_of(Cg *cg, const TileValue *v, Val part) {
    return cg_across(cg, &cg_fragment(cg, v)->is, LAYOUT_COPIES, EX_ROWSUM, part);
}

// The axis along which several warps share v's rows; -1: none do.
static int shared_by_warps(const Cg *cg, const TileValue *v) {
    const Layout *l = &cg->k->layouts.data[v->layout].is;
    for (int a = 0; a < cg->k->naxes; a++)
        if (!tile_has_axis(v, a) && layout_share(l, LAYOUT_WARP, a) > 1) return a;
    return -1;
}

static void make_whole(Cg *cg, const TileValue *v) {
    CgValue *value = &cg->value[v->id];
    const Val *parts = value->e;
    int axis = shared_by_warps(cg, v);
    value->e = ARENA_ARRAY(cg->arena, Val, value->n);
    for (int i = 0; i < value->n; i++) value->e[i] = whole_of(cg, v, parts[i]);
    if (axis >= 0) cg_across_warps(cg, v->layout, axis, EX_ROWSUM, v);
}

static void give_to_first(Cg *cg, const TileValue *v) {
    CgValue *value = &cg->value[v->id];
    int axis = shared_by_warps(cg, v);
    Val first = cg_is_first_copy(cg, &cg_fragment(cg, v)->is);
    if (axis >= 0) first = cg_and(cg, first, cg_is(cg, cg_warp_part(cg, v->layout, axis, 1), 0));
    for (int i = 0; i < value->n; i++)
        value->e[i] = cg_select(cg, first, value->e[i], cg_f32(cg, 0));
}

void nv_with_sums(Cg *cg, const TileOp *op, void (*lower)(Cg *cg, const TileOp *op)) {
    bool takes = tile_takes_parts(op), any = false;
    CgValue *kept = ARENA_ARRAY(cg->arena, CgValue, op->args.n + 1);
    for (int i = 0; i < op->args.n; i++) {
        kept[i] = cg->value[op->args.data[i]->id];
        any |= op->args.data[i]->parts;
        if (op->args.data[i]->parts && !takes) make_whole(cg, op->args.data[i]);
    }
    lower(cg, op);
    for (int i = op->args.n - 1; i >= 0 && any && !takes; i--)
        cg->value[op->args.data[i]->id] = kept[i];
    for (int i = 0; i < op->results.n && op->kind == TILE_MAP; i++)
        if (op->results.data[i]->parts && tile_first_has_all(op, i))
            give_to_first(cg, op->results.data[i]);
}
