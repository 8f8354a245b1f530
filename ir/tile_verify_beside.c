// tile_verify_beside.c: the rules of operations over an axis and one that has its places again.
//
// In: a TILE_BESIDE or TILE_INVERT. Out: whether its operand and result have such axes.
#include "ir/tile_verify.h"

// The operand's axes, one of them replaced by one that lies beside it, or by a whole one of no more elements: its first ones, or those from a
// column on.
bool verify_beside(Verify *V) {
    const TileOp *op = V->op;
    const TileValue *x = op->args.data[0], *v = op->results.data[0];
    int from = tile_beside_from(V->op), to = tile_beside_to(V->op);
    bool good = x->dtype == v->dtype && x->rank == v->rank && from >= 0 && to >= 0 &&
                tile_lies_beside(V->k, from, to);
    int width = op->width ? op->width : good ? V->k->axes[to].extent : 0, first = op->from_column;
    if (good && op->width) good = v->home == HOME_SHARED && width == V->k->axes[to].extent;
    if (good && first) good = first > 0 && first <= V->k->axes[from].extent - width;
    for (int i = 0; good && i < v->rank; i++)
        good = v->axis[i] == to || tile_has_axis(x, v->axis[i]);
    return good ||
           verify_fail(V, "%%%s is not %%%s along an axis beside one of its own", v->name, x->name);
}

bool verify_invert(Verify *V) {
    const TileValue *x = V->op->args.data[0], *v = V->op->results.data[0];
    if (x->dtype != DT_F32 || x->rank != 2 ||
        tile_root_axis(V->k, x->axis[0]) != tile_root_axis(V->k, x->axis[1]))
        return verify_fail(V, "%%%s is no f32 matrix over two axes beside each other", x->name);
    bool same = v->rank == 2 && v->axis[0] == x->axis[0] && v->axis[1] == x->axis[1];
    if (!same || dtype_reads(v->dtype) != EX_F32)
        return verify_fail(V, "%%%s is not over the axes of %%%s", v->name, x->name);
    int readers = 0;
    for (const TileOp *op = tile_next(&V->k->body, NULL); op; op = tile_next(&V->k->body, op))
        for (int i = 0; i < op->args.n; i++) readers += op->args.data[i] == x;
    return v->home != HOME_SHARED || readers == 1 ||
           verify_fail(V, "%%%s is inverted in its place, and read elsewhere, too", x->name);
}
