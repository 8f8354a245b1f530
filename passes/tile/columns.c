// columns.c: values with more columns than a tile may have are computed in blocks of columns.
//
// In: a kernel whose axis of the columns of v and o is whole and has no extent yet. Out: the axis is
// tiled, and the grid's last dimension goes over its tiles, so that those of the same rows run next
// to each other and find q and k in the cache:
//
//     axis E: 512 whole                    axis E: 512 tile 256
//     grid b, h, M                   ->    grid b, h, M, E
//     store lse[b, h, M:] = %lse           store lse[b, h, M:] = %lse when (E.tile == 0)
//
// Parts that each sequence has of its own stay last, since all sequences' are numbered together.
// Each block computes the scores again. What is one number for a row is stored by the first of them.
// Where all that is made of the columns is sums over them (of a backward: delta, the gradient of a
// weight) the axis stays whole. Holds afterwards: the last block may have fewer columns than its extent.
#include "passes/schedule/schedule.h"
#include "passes/tile/rewrite.h"

int pass_value_axis(const TileProgram *p, const TileKernel *k) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        if (op->kind != TILE_LOAD && op->kind != TILE_STORE) continue;
        const TileTensor *t = &p->tensors.data[op->tensor];
        bool sums = t->role == TENSOR_STATE || t->role == TENSOR_STATE0;
        bool values = t->role == TENSOR_V || t->role == TENSOR_O || t->role == TENSOR_DO;
        if (values || sums) return op->coord[t->rank - 1].axis;
    }
    return -1;
}

int pass_value_columns(const TileProgram *p, const TileKernel *k) {
    int axis = pass_value_axis(p, k);
    return axis >= 0 && k->axes[axis].extent ? k->axes[axis].extent : p->Dv;
}

int pass_most_columns(const Target *t) {
    bool half = t->kind == KIND_AMDGPU && t->lanes == 32; // the registers of a lane
    return half ? 128 : 256;
}

// A sum over all columns of a row (a norm of the output, the gradient of a weight) needs them in one place.
static bool reduced(const TileKernel *k, int axis) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        if (op->kind == TILE_MMA && tile_contracted_axis(op) == axis) return true;
        for (int i = 0; op->kind == TILE_MAP && i < op->outs.n; i++)
            if (op->outs.data[i].reduce != EX_CONST && op->outs.data[i].reduce_axis == axis)
                return true;
    }
    return false;
}

// Whether products are added up along the columns, which takes registers for each of them.
static bool accumulated(const TileKernel *k, int axis) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (op->kind == TILE_MMA && tile_has_axis(op->results.data[0], axis)) return true;
    return false;
}

static void tile_access(TileProgram *p, TileOp *op, int axis) {
    const TileTensor *t = &p->tensors.data[op->tensor];
    const Ex *tile = ex_sym(p->pool, SYM_TILE, axis, EX_I32);
    bool found = false;
    for (int d = 0; d < t->rank; d++) {
        if (op->coord[d].axis != axis) continue;
        op->coord[d].at = tile;
        found = true;
    }
    if (op->kind != TILE_STORE || found) return;
    const Ex *first = ex_2(p->pool, EX_EQ, tile, ex_i32(p->pool, 0));
    op->when = op->when ? ex_2(p->pool, EX_AND, op->when, first) : first;
}

bool pass_tile_columns(TileProgram *p, TileKernel *k, int most, int unit, Diags *diags) {
    int axis = pass_value_axis(p, k);
    if (axis < 0 || k->axes[axis].extent || !k->axes[axis].whole) return true;
    int size = k->axes[axis].size->i, blocks = (size + most - 1) / most;
    if (blocks == 1) return true;
    bool sums = reduced(k, axis), whole = sums || k->ngrid == TILE_MAX_GRID;
    if (sums && !accumulated(k, axis)) {
        pass_bind(p, k, axis, pass_padded(size, unit));
        return true;
    }
    if (whole && !diags) return true;
    if (whole)
        return diag_refuse(
            diags, k->body.first ? k->body.first->span : (Span){0},
            "target '%s' supports a Dv up to %d, not %d, where the output needs all columns "
            "of a row",
            target_get(p->target)->name, most, size);
    k->axes[axis].whole = false;
    int at = k->ngrid++;
    if (k->grid[at - 1].shared && pass_split_axis(p, k) == k->grid[at - 1].axis) {
        k->grid[at] = k->grid[at - 1];
        at--;
    }
    k->grid[at] = (TileGrid){.sym = SYM_TILE, .axis = axis, .count = ex_i32(p->pool, blocks)};
    pass_bind(p, k, axis, pass_padded((size + blocks - 1) / blocks, unit));
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (op->kind == TILE_LOAD || op->kind == TILE_STORE) tile_access(p, op, axis);
    return true;
}
