// tile_verify_map.c: the rules of maps: what each result is over, what is reduced or scanned, and strips.
//
// In: the current map, of a verifier that goes through a kernel. Out: whether it keeps the rules.
#include "ir/expr_ops.h"
#include "ir/tile_verify.h"

#include <string.h>

static bool check_out(Verify *V, int i, unsigned *reached) {
    const TileOp *op = V->op;
    const TileResult *r = &op->outs.data[i];
    const TileValue *v = op->results.data[i];
    Scope s = {.what = arena_printf(V->scratch, "the body of %%%s", v->name),
               .syms = 1u << SYM_PARAM | 1u << SYM_POS | 1u << SYM_B | 1u << SYM_H |
                       1u << SYM_SIZE | 1u << SYM_SCALAR | 1u << SYM_TILE | 1u << SYM_MASK |
                       1u << SYM_KEPT | 1u << SYM_STAY,
               .sizes = V->p->sizes.n,
               .loads = true,
               .own = true,
               .naxes = v->rank,
               .tile = -1};
    memcpy(s.axes, v->axis, (size_t)v->rank);
    for (int d = 0; d < v->rank; d++) {
        if (!verify_in(op->axes, op->naxes, v->axis[d]))
            return verify_fail(V, "%%%s has an axis that the map is not over", v->name);
        *reached |= 1u << v->axis[d];
    }
    if (r->reduce != EX_CONST) {
        if (ex_ops[r->reduce].typing != T_RED)
            return verify_fail(V, "%%%s is reduced by what is no reduction", v->name);
        if (!verify_in(op->axes, op->naxes, r->reduce_axis))
            return verify_fail(V, "%%%s is reduced over an axis that the map is not over", v->name);
        if (tile_has_axis(v, r->reduce_axis) != (r->scan != SCAN_NONE))
            return verify_fail(V, "%%%s %s", v->name,
                               r->scan ? "has not the axis that it is a scan along"
                                       : "has the axis that it is reduced over");
        int extent = V->k->axes[r->reduce_axis].extent;
        if (r->by < 0 || (r->by && extent % r->by != 0))
            return verify_fail(V, "%%%s begins anew every %d of %d", v->name, r->by, extent);
        if (dtype_reads(v->dtype) == EX_BOOL)
            return verify_fail(V, "%%%s is a reduction and not a number", v->name);
        if (!r->scan) s.axes[s.naxes++] = (uint8_t)r->reduce_axis;
        *reached |= 1u << r->reduce_axis;
    }
    return verify_ex(V, r->body, dtype_reads(v->dtype), &s);
}

// A strip has one number for each key or for each diagonal, made of what is the same everywhere.
static bool check_strip(Verify *V, const TileValue *v) {
    const TileOp *op = V->op;
    int row = tile_grid_axis(V->k);
    bool keys = v->rank == 1 && v->axis[0] != row, both = v->rank == 2 && v->axis[0] == row;
    if (op->outs.n != 1 || op->outs.data[0].reduce != EX_CONST || row < 0 || (!keys && !both))
        return verify_fail(V, "%%%s is a strip, but not a number for each key or diagonal",
                           v->name);
    for (int i = 0; i < op->args.n; i++)
        if (op->args.data[i]->rank)
            return verify_fail(V, "%%%s is a strip and made of tiles", v->name);
    if (keys) return true;
    const Ex **order;
    int n = ex_order(V->scratch, &op->outs.data[0].body, 1, &order);
    TileAlong *along = ARENA_ARRAY(V->scratch, TileAlong, n + 1);
    tile_along(V->scratch, op, row, v->axis[1], order, n, along);
    return along[n - 1] != ALONG_NONE ||
           verify_fail(V, "%%%s is a strip and varies along its diagonals", v->name);
}

bool verify_map(Verify *V) {
    const TileOp *op = V->op;
    if (op->results.n != op->outs.n)
        return verify_fail(V, "it makes %d values, not %d", op->results.n, op->outs.n);
    if (!op->outs.n) return verify_fail(V, "it makes nothing");
    if (op->naxes < 0 || op->naxes > TILE_MAX_RANK)
        return verify_fail(V, "it is over %d axes", op->naxes);
    for (int i = 0; i < op->naxes; i++) {
        if (op->axes[i] >= V->k->naxes)
            return verify_fail(V, "it is over an axis that is not there");
        if (i && op->axes[i] <= op->axes[i - 1]) return verify_fail(V, "its axes are out of order");
    }
    if (op->waits && (op->pending < 0 || op->after < -1 || !V->role))
        return verify_fail(V, "it waits for products in no role, or for less than nothing");
    unsigned reached = 0;
    for (int i = 0; i < op->outs.n; i++)
        if (!check_out(V, i, &reached)) return false;
    for (int i = 0; i < op->naxes; i++)
        if (!(reached & 1u << op->axes[i]))
            return verify_fail(V, "it is over %s, which no result has or reduces",
                               V->k->axes[op->axes[i]].name);
    for (int i = 0; i < op->results.n; i++)
        if (op->results.data[i]->home == HOME_STRIP && !check_strip(V, op->results.data[i]))
            return false;
    return true;
}
