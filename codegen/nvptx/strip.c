// strip.c: strips: numbers of a step that belong to keys or diagonals, made once by the threads
// that share some rows and read by all of them from shared memory.
//
// In: a TILE_MAP whose result is a strip. Out: its numbers in shared memory, readable behind it. The
// threads are those of a warp, in kernels of roles those of a warpgroup: they come here together
// anyhow. A number of a diagonal stands at row - column, from the last column of the first row on:
//
//     rank 1    column                  rank 2    row - column + (columns - 1)
//
// so that a thread reads at a constant distance from one address. Strips of different steps lie in
// the same place; before they are written all have read the last ones.
#include "codegen/nvptx/sm90.h"

#include <assert.h>

// ---- where they lie

typedef struct Group { // of threads that share a strip
    int warps, rows;
} Group;

static Group group_of(const TileKernel *k) {
    int warps = nv90_has_roles(k) ? NV90_GROUP / NV_WARP : 1;
    int rows = k->axes[tile_grid_axis(k)].extent;
    return (Group){warps, rows / k->schedule.warps * warps};
}

static bool is_strip(const TileOp *op) {
    return op && op->kind == TILE_MAP && op->results.data[0]->home == HOME_STRIP;
}

static int columns_of(const TileKernel *k, const TileValue *v) {
    return k->axes[v->axis[v->rank - 1]].extent;
}

static int count_of(const TileKernel *k, const TileValue *v) {
    return columns_of(k, v) + (v->rank == 2 ? group_of(k).rows - 1 : 0);
}

static int pitch_of(const TileKernel *k, const TileValue *v) { // of a group's
    return (count_of(k, v) * dtype_bytes(v->dtype) + 15) & ~15;
}

static int bytes_of(const TileKernel *k, const TileValue *v) {
    return pitch_of(k, v) * (k->schedule.warps / group_of(k).warps);
}

int nv_place_strips(const TileKernel *k, int at, int *offset) {
    int end = at;
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        if (!is_strip(op)) continue;
        int mine = at;
        for (const TileOp *in = op->block->first; in != op; in = in->next)
            if (is_strip(in)) mine += bytes_of(k, in->results.data[0]);
        if (offset) offset[op->results.data[0]->id] = mine;
        mine += bytes_of(k, op->results.data[0]);
        if (mine > end) end = mine;
    }
    return end;
}

// ---- making one

static Val plus(Cg *cg, Val a, int b) { return LLVMBuildAdd(cg->b, a, cg_i32(cg, b), ""); }
static Val times(Cg *cg, Val a, int b) { return LLVMBuildMul(cg->b, a, cg_i32(cg, b), ""); }
static Val sum(Cg *cg, Val a, Val b) { return LLVMBuildAdd(cg->b, a, b, ""); }

static Val group_number(Cg *cg) {
    const NvState *s = nv_state(cg);
    return s->roles ? s->roles->group : s->warp;
}

static Val base_of(Cg *cg, const TileValue *v) {
    const NvState *s = nv_state(cg);
    Val mine = times(cg, group_number(cg), pitch_of(cg->k, v));
    return sum(cg, plus(cg, s->shared, s->offset[v->id]), mine);
}

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
    Val first = times(cg, cg->tile[axis], a->extent);
    if (v->rank == 1) return sum(cg, first, at->index);
    if (axis != v->axis[0]) return first;
    first = sum(cg, first, times(cg, group_number(cg), group_of(cg->k).rows));
    return sum(cg, first, plus(cg, at->index, 1 - columns_of(cg->k, v)));
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
    int threads = group_of(cg->k).warps * NV_WARP, n = count_of(cg->k, v);
    int chunks = (n + threads - 1) / threads, elem = dtype_bytes(v->dtype);
    Val in_group = LLVMBuildAnd(cg->b, s->tid, cg_i32(cg, threads - 1), "");
    Val *x = ARENA_ARRAY(cg->arena, Val, chunks), *at = ARENA_ARRAY(cg->arena, Val, chunks);
    for (int i = 0; i < chunks; i++) {
        at[i] = plus(cg, in_group, i * threads);
        Val last[] = {at[i], cg_i32(cg, n - 1)};
        if ((i + 1) * threads > n) at[i] = cg_intrinsic(cg, "llvm.smin", &cg->i32, 1, last, 2);
        x[i] = cg_write(cg, number(cg, op, at[i]), v->dtype);
    }
    Val base = base_of(cg, v);
    if (!is_strip(op->prev)) meet(cg);
    for (int i = 0; i < chunks; i++)
        LLVMBuildStore(cg->b, x[i], nv_shared_ptr(cg, sum(cg, base, times(cg, at[i], elem))));
    if (!is_strip(op->next)) meet(cg);
    int layout = tile_common_layout(cg->k, op, v->axis, v->rank); // of what reads it
    Val col = cg_thread_part(cg, layout, v->axis[v->rank - 1]), here = col;
    if (v->rank == 2) {
        Val row = cg_thread_part(cg, layout, v->axis[0]);
        row = LLVMBuildSub(cg->b, row, times(cg, group_number(cg), group_of(cg->k).rows), "");
        here = plus(cg, LLVMBuildSub(cg->b, row, col, ""), columns_of(cg->k, v) - 1);
    }
    cg->value[v->id].mem = nv_shared_ptr(cg, sum(cg, base, times(cg, here, elem)));
}

// ---- reading it

static Val load_at(Cg *cg, const TileValue *v, Ty type, int offset, unsigned align) {
    Val by = cg_i32(cg, offset * dtype_bytes(v->dtype));
    Val p = LLVMBuildGEP2(cg->b, cg->i8, cg->value[v->id].mem, &by, 1, "");
    Val x = LLVMBuildLoad2(cg->b, type, p, "");
    LLVMSetAlignment(x, align);
    return x;
}

// Columns come in pairs: one load for both.
Val nv_strip_element(Cg *cg, const TileValue *v, const int *part) {
    unsigned elem = (unsigned)dtype_bytes(v->dtype);
    Ty t = cg_dtype(cg, v->dtype);
    int col = part[v->axis[v->rank - 1]];
    if (v->rank == 2) return cg_read(cg, load_at(cg, v, t, part[v->axis[0]] - col, elem), v->dtype);
    Val both = load_at(cg, v, cg_vector(t, 2), col & ~1, 2 * elem);
    return cg_read(cg, LLVMBuildExtractElement(cg->b, both, cg_i32(cg, col & 1), ""), v->dtype);
}
