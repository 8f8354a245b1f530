// strip.c: strips: numbers of a step that belong to keys or diagonals, made once by the threads
// that share some rows and read by all of them from shared memory.
//
// In: a TILE_MAP whose result is a strip. Out: its numbers in shared memory, readable behind it. The
// threads are those of a warp, in kernels of roles those of a warpgroup: they come here together
// anyhow. A number of a diagonal stands at row - column, from the last column of the first row on:
//
//     rank 1    column                  rank 2    row - column + (columns - 1)
//
// so that a thread reads at a constant distance from one address for each layout. Strips of different steps lie in
// the same place; before they are written all have read the last ones.
#include "codegen/nvptx/sm90.h"

// ---- making one

typedef struct At { // the current number
    const TileOp *op;
    Val index;
} At;

static Val strip_param(Cg *cg, CgElem *elem, int k) {
    const At *at = elem->ctx;
    const int none[TILE_MAX_AXES] = {0};
    return nv_element(cg, at->op->args.data[k], -1, none); // the same everywhere
}

static Val strip_pos(Cg *cg, CgElem *elem, int axis) {
    const At *at = elem->ctx;
    const TileValue *v = at->op->results.data[0];
    const TileAxis *a = &cg->k->axes[axis];
    Val first = cg_times(cg, cg->tile[axis], a->extent);
    if (v->rank == 1) return cg_add(cg, first, at->index);
    if (axis != v->axis[0]) return first;
    first = cg_add(cg, first, cg_times(cg, nv_strip_group(cg), tile_strip_rows(cg->k, v)));
    return cg_add(cg, first, cg_plus(cg, at->index, 1 - cg->k->axes[v->axis[1]].extent));
}

static Val number(Cg *cg, const TileOp *op, Val index) {
    At at = {op, index};
    CgElem elem = {.lanes = 1, .param = strip_param, .pos = strip_pos, .lane_axis = -1, .ctx = &at};
    cg_elem_begin(cg, &elem);
    return cg_expr(cg, op->outs.data[0].body, &elem);
}

static void meet(Cg *cg) {
    const NvState *s = nv_state(cg);
    if (s->roles)
        nv90_group_sync(cg);
    else
        nv90_warp_sync(cg);
}

// Numbers first: their loads are on their way while the others come. Past the end several threads
// make the last number.
void nv_strip_map(Cg *cg, const TileOp *op) {
    const NvState *s = nv_state(cg);
    const TileValue *v = op->results.data[0];
    int threads = tile_strip_warps(cg->k) * NV_WARP, n = tile_strip_count(cg->k, v);
    int chunks = (n + threads - 1) / threads, elem = dtype_bytes(v->dtype);
    Val in_group = cg_and(cg, s->gpu.tid, cg_i32(cg, threads - 1));
    Val *x = ARENA_ARRAY(cg->arena, Val, chunks), *at = ARENA_ARRAY(cg->arena, Val, chunks);
    for (int i = 0; i < chunks; i++) {
        at[i] = cg_plus(cg, in_group, i * threads);
        Val last[] = {at[i], cg_i32(cg, n - 1)};
        if ((i + 1) * threads > n) at[i] = cg_intrinsic(cg, "llvm.smin", &cg->i32, 1, last, 2);
        x[i] = cg_write(cg, number(cg, op, at[i]), v->dtype);
    }
    Val base = nv_strip_base(cg, v);
    if (!tile_is_strip(op->prev)) meet(cg);
    for (int i = 0; i < chunks; i++)
        cg_store(cg, x[i], nv_shared_ptr(cg, cg_add(cg, base, cg_times(cg, at[i], elem))));
    if (!tile_is_strip(op->next)) meet(cg);
}
