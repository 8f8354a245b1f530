// sm90_store.c: results to global memory by way of a shared buffer.
//
// In: a TILE_STORE of a fragment through a buffer of panels. Out: each warp writes its 16 rows
// there and has the copy engine store them, as many columns at a time as the buffer has; nobody waits
// for another warp. The copy engine leaves out what lies past the tensor's ends. The buffer is written
// again once the engine has read it.
#include "codegen/nvptx/sm90.h"

#include <assert.h>

static Val low(Cg *cg, Val a, int mask) { return LLVMBuildAnd(cg->b, a, cg_i32(cg, mask), ""); }
static Val right(Cg *cg, Val a, int by) { return LLVMBuildLShr(cg->b, a, cg_i32(cg, by), ""); }

// Two neighbouring columns of row 8 r and column 8 n of the instruction's tiles.
static Val pair(Cg *cg, const TileValue *v, Dtype t, int n, int r) {
    const CgFragment *f = cg_fragment(cg, v);
    int part[TILE_MAX_AXES] = {0};
    part[v->axis[0]] = 8 * r, part[v->axis[1]] = 8 * n;
    if (f->each == 2 && v->dtype == t) return cg->value[v->id].e[cg_slot(f, part)];
    Val low = nv_element(cg, v, v->layout, part);
    part[v->axis[1]]++;
    return nv_pack(cg, t, low, nv_element(cg, v, v->layout, part));
}

// From column `first` on. Four 8 x 8 matrices at a time: rows 0 and 8, columns n and n + 1. Lane l gives the address of row
// l % 8 of matrix l / 8.
static void write_panels(Cg *cg, const TileValue *v, Dtype t, const TileShared *tile, int first,
                         Val warp_base) {
    Val lane = nv_state(cg)->gpu.lane;
    Val row = cg_sum(cg, low(cg, lane, 7), cg_times(cg, low(cg, right(cg, lane, 3), 1), 8));
    Val high = right(cg, lane, 4), key = low(cg, row, 7);
    Val at = cg_sum(cg, warp_base, cg_times(cg, row, HOME_PITCH));
    for (int n = 0; n < tile->cols / 8; n += 2) {
        Val piece = LLVMBuildXor(cg->b, cg_plus(cg, high, n % 8), key, "");
        Val to =
            cg_plus(cg, cg_sum(cg, at, cg_times(cg, piece, 16)), n / 8 * tile->rows * HOME_PITCH);
        Val x[4];
        for (int i = 0; i < 4; i++) x[i] = pair(cg, v, t, first / 8 + n + i / 2, i % 2);
        nv90_stmatrix(cg, to, x);
    }
}

static void start_store(Cg *cg, const TileOp *op, const TileShared *tile, int first, Val warp_base,
                        Val warp_row) {
    const TileTensor *t = &cg->p->tensors.data[op->tensor];
    Val at[CG_MAP_RANK];
    int col = t->rank - 1;
    for (int d = 0; d < t->rank; d++) {
        at[d] = cg_uniform(cg, op->coord[d].at);
        if (op->coord[d].axis == tile->row_axis)
            at[d] = cg_sum(cg, cg_times(cg, at[d], cg->k->axes[tile->row_axis].extent), warp_row);
    }
    Val lead = LLVMBuildICmp(cg->b, LLVMIntEQ, nv_state(cg)->gpu.lane, cg_i32(cg, 0), "");
    int all = cg->k->axes[op->coord[col].axis].extent;
    Val map = nv90_map_param(cg, op->tensor, 16),
        column = cg_plus(cg, cg_times(cg, at[col], all), first);
    for (int i = 0; i * HOME_PANEL < tile->cols; i++) {
        at[col] = cg_plus(cg, column, i * HOME_PANEL);
        Val from = cg_plus(cg, warp_base, i * tile->rows * HOME_PITCH);
        nv90_bulk_store(cg, map, from, at, t->rank, lead);
    }
    nv90_bulk_commit(cg);
}

void nv90_store_through(Cg *cg, const TileOp *op) {
    const TileValue *v = op->args.data[0], *buffer = op->args.data[1];
    TileShared tile = tile_shared(cg->p, cg->k, buffer);
    Dtype t = cg->p->tensors.data[op->tensor].dtype;
    assert(tile.order == ORDER_PANELS && dtype_half(t) && tile.cols % 16 == 0);
    Val warp_row = cg_times(cg, nv_state(cg)->warp, 16);
    Val base = cg_sum(cg, cg->value[buffer->id].mem, cg_times(cg, warp_row, HOME_PITCH));
    for (int first = 0; first < cg->k->axes[v->axis[1]].extent; first += tile.cols) {
        nv90_bulk_wait_read(cg);
        nv90_warp_sync(cg);
        write_panels(cg, v, t, &tile, first, base);
        nv90_proxy_fence(cg);
        nv90_warp_sync(cg);
        start_store(cg, op, &tile, first, base, warp_row);
    }
}

// The warpgroup's last product that read the place has landed when all of it are here.
void nv90_share(Cg *cg, const TileValue *v) {
    const NvState *s = nv_state(cg);
    TileShared tile = tile_shared(cg->p, cg->k, v);
    assert(tile.order == ORDER_PANELS && dtype_half(v->dtype) && tile.cols % 16 == 0);
    Val base = nv90_shared(cg, s->gpu.offset[v->id]);
    Val mine = cg_sum(cg, base, cg_times(cg, s->warp, 16 * HOME_PITCH));
    nv90_pack(cg);
    nv90_group_sync(cg);
    write_panels(cg, v, v->dtype, &tile, 0, mine);
    nv90_proxy_fence(cg);
    nv90_group_sync(cg);
    cg->value[v->id].mem = base;
}

// Shared memory stays until the copy engine has read it.
void nv90_stores_end(Cg *cg) {
    const TileBlock *body = &nv90_state(cg)->role->body;
    for (const TileOp *op = tile_next(body, NULL); op; op = tile_next(body, op))
        if (op->kind == TILE_STORE && op->args.n > 1) {
            nv90_bulk_wait_read(cg);
            return;
        }
}
