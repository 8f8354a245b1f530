// sm90_state.c: what all operations of a role ask: its pipes, places and barriers, and how copies end with a sequence.
#include "codegen/nvptx/sm90.h"

#include "runtime/abi.h"

#include <assert.h>

Val nv90_shared(Cg *cg, int offset) { return cg_plus(cg, nv_state(cg)->shared, offset); }

Nv90Pipe *nv90_pipe(Cg *cg, const TileValue *v) {
    Nv90 *h = nv90_state(cg);
    const TileValue *ring = v->def->kind == TILE_PIPE ? v : tile_pipe_of(v);
    for (int i = 0; i < h->pipes.n; i++)
        if (h->pipes.data[i].ring == ring) return &h->pipes.data[i];
    assert(!"a pipe of the kernel");
    return NULL;
}

// What has no rows of the grid's is copied to all blocks of a cluster, each of which copies a part.
bool nv90_goes_everywhere(Cg *cg, const TileShared *t) {
    int rows = cg->k->grid[tile_grid_rows(cg->k)].axis;
    return nv90_state(cg)->blocks > 1 && t->row_axis != rows && t->col_axis != rows;
}

int nv90_copied_rows(Cg *cg, const TileShared *t) {
    return nv90_goes_everywhere(cg, t) ? t->rows / nv90_state(cg)->blocks : t->rows;
}

// Boxes begin where a row's place in the panels' pattern repeats.
int nv90_box_rows(const Cg *cg, const TileOp *op) {
    enum { LEAST = 8 };
    int axis = op->args.data[0]->axis[0], rows = cg->k->axes[axis].extent;
    CgRun run = cg_element_run(cg, op, axis);
    if (run.dim < 0 || run.places < LEAST) return 0;
    return run.places < rows ? run.places : rows;
}

Val nv90_map_param(Cg *cg, int tensor, int rows) {
    Nv90 *h = nv90_state(cg);
    for (int i = 0; i < h->maps.n; i++) {
        if (h->maps.data[i].tensor != tensor || h->maps.data[i].rows != rows) continue;
        for (int slot = 0; slot < cg->args.n; slot++)
            if (cg->args.data[slot].kind == CG_ARG_TENSOR_MAP && cg->args.data[slot].index == i)
                return LLVMGetParam(cg->fn, (unsigned)slot);
    }
    assert(!"a map that was added");
    return NULL;
}

int nv90_ends(const Cg *cg, const TileOp *op) {
    int last = cg->p->tensors.data[op->tensor].rank - 1;
    for (int d = 0; d < last; d++)
        if (op->each[d]) return 1 + d;
    return 0;
}

// Numbers of rows, along the tensor's last dimension, are not cut: nobody reads those behind the last.
Val nv90_run(Cg *cg, const TileOp *op, int d, Val *end) {
    int axis = op->coord[d].axis;
    const Ex *from = tile_run_from(cg->p->pool, op, d), *size = cg->k->axes[axis].size;
    Val first = cg_uniform(cg, from), row = cg_element_begin(cg, op, axis);
    if (nv90_ends(cg, op) != 1 + d) return cg_add(cg, first, row);
    Val count = cg_uniform(cg, size);
    *end = cg_add(cg, first, count);
    return cg_add(cg, cg_sub(cg, cg_i32(cg, ABI_ENDS), count), row);
}

int nv90_cut(Cg *cg, Val *at, int rank, Val end) {
    for (int d = rank; d-- > 0;) at[d + ABI_ENDS_RANK] = at[d];
    at[0] = cg_i32(cg, ABI_ENDS), at[1] = end;
    return rank + ABI_ENDS_RANK;
}

// Named barriers: 0 is the block's; one for the turn of each warpgroup (turn_barrier); one for each role; one for each warpgroup.
static int role_barrier(const Nv90 *h) { return 1 + h->warpgroups + h->first_group; }

void nv90_role_sync(Cg *cg) {
    const Nv90 *h = nv90_state(cg);
    nv90_bar_sync(cg, cg_i32(cg, role_barrier(h)), h->role->warpgroups * NV90_GROUP);
}

void nv90_group_sync(Cg *cg) {
    const Nv90 *h = nv90_state(cg);
    int id = 1 + 2 * h->warpgroups + h->first_group;
    nv90_bar_sync(cg, cg_plus(cg, h->group, id), NV90_GROUP);
}

Val nv90_has_elements(Cg *cg, const TileTensor *t) {
    Val all = LLVMConstInt(cg->i1, 1, false);
    for (int d = 0; d < t->rank; d++) {
        Val n = cg_uniform(cg, t->extent[d]);
        all = cg_and(cg, all, cg_icmp(cg, LLVMIntSGT, n, cg_i32(cg, 0)));
    }
    return all;
}
