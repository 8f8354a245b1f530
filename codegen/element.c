// element.c: coordinates that are said for each place along an axis, or for each element.
//
// In: a load, store or copy, and a position along an axis. Out: where the tensor has what goes there, and whether
// the axis has such a place.
#include "codegen/cg.h"

#include <limits.h>

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

void cg_element_indices(Cg *cg, const TileOp *op, int axis, Val pos, Val *index) {
    Val at[TILE_MAX_AXES] = {NULL};
    at[axis] = pos;
    for (int d = 0; d < cg->p->tensors.data[op->tensor].rank; d++)
        if (op->each[d] && op->coord[d].axis == axis) index[d] = index_at(cg, op, d, at);
}

Val cg_scatter_offset(Cg *cg, const TileOp *op, Val *pos) { return offset(cg, op, -1, pos); }

Val cg_first_index(Cg *cg, const TileCoord *at) {
    Val i = cg_uniform(cg, at->at);
    return at->axis < 0 ? i : cg_times(cg, i, cg->k->axes[at->axis].extent);
}

// ---- places in a row

static int power_of_two_in(int n) { return n & -n; }

// By how much an expression grows from place to place, in runs of which `places` becomes the shortest; -1: unknown.
static int growth(const Ex *e, int axis, int *places) {
    if (!ex_uses(e, SYM_POS, axis)) return 0;
    if (e->op == EX_SYM) return 1;
    bool divides = e->op == EX_DIV || e->op == EX_MOD;
    if (divides && e->args[0]->op == EX_SYM && e->args[1]->op == EX_CONST && e->args[1]->i > 0) {
        int run = power_of_two_in((int)e->args[1]->i);
        if (run < *places) *places = run;
        return e->op == EX_MOD;
    }
    if (e->op != EX_ADD && e->op != EX_LOAD) return -1;
    int sum = 0;
    for (int i = 0; i < e->nargs; i++) {
        int by = growth(e->args[i], axis, places);
        if (by < 0) return -1;
        sum += by;
    }
    return e->op == EX_LOAD && sum ? -1 : sum;
}

CgRun cg_element_run(const Cg *cg, const TileOp *op, int axis) {
    CgRun run = {INT_MAX, -1};
    for (int d = 0; d < cg->p->tensors.data[op->tensor].rank; d++) {
        if (!op->each[d] || op->coord[d].axis != axis) continue;
        int by = growth(op->coord[d].at, axis, &run.places);
        if (by < 0 || by > 1 || (by && run.dim >= 0)) return (CgRun){1, -1};
        if (by) run.dim = d;
    }
    int whole = power_of_two_in(cg->k->axes[axis].extent); // where tiles begin
    if (run.places < INT_MAX && run.places > whole) run.places = whole;
    return run;
}

// ---- the operation's own tile

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
