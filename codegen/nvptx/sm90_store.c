// sm90_store.c: results to global memory by way of a shared buffer.
//
// In: a TILE_STORE of a fragment through a buffer of panels. Out: each warp writes its 16 rows
// there and has the copy engine store them, as many columns at a time as the buffer has; nobody waits
// for another warp. The copy engine leaves out what lies past the tensor's ends. The buffer is written
// again once the engine has read it. In a buffer of sums (sm90_add.c) a warp's rows go through its own part, a
// panel at a time.
#include "codegen/nvptx/sm90.h"
#include "ir/tile_blocks.h"

#include <assert.h>

static Val low(Cg *cg, Val a, int mask) { return cg_and(cg, a, cg_i32(cg, mask)); }
static Val right(Cg *cg, Val a, int by) { return cg_lshr(cg, a, cg_i32(cg, by)); }

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

// `columns` from column `first` on, panels `apart` bytes from each other. Four 8 x 8 matrices at a time: rows 0 and 8, columns n and
// n + 1. Lane l gives the address of row l % 8 of matrix l / 8.
static void write_panels(Cg *cg, const TileValue *v, Dtype t, int columns, int apart, int first,
                         Val warp_base) {
    Val lane = nv_state(cg)->gpu.lane;
    Val row = cg_add(cg, low(cg, lane, 7), cg_times(cg, low(cg, right(cg, lane, 3), 1), 8));
    Val high = right(cg, lane, 4), key = low(cg, row, 7);
    Val at = cg_add(cg, warp_base, cg_times(cg, row, HOME_PITCH));
    for (int n = 0; n < columns / 8; n += 2) {
        Val piece = cg_xor(cg, cg_plus(cg, high, n % 8), key);
        Val to = cg_plus(cg, cg_add(cg, at, cg_times(cg, piece, 16)), n / 8 * apart);
        Val x[4];
        for (int i = 0; i < 4; i++) x[i] = pair(cg, v, t, first / 8 + n + i / 2, i % 2);
        nv90_stmatrix(cg, to, x, false);
    }
}

// The same of a tile whose rows are the fragment's columns: a warp's 16 rows are columns of all of its rows, or of the
// warpgroup's part of them. Lane l gives the address of row l % 8 of matrix l / 8: columns 0 and 8, rows n and n + 1.
static void write_across(Cg *cg, const TileValue *v, Val base) {
    const CgFragment *f = cg_fragment(cg, v);
    Val lane = nv_state(cg)->gpu.lane, warp = nv_state(cg)->warp, key = low(cg, lane, 7);
    Val row = cg_add(cg, key, cg_times(cg, right(cg, lane, 4), 8));
    Val piece = cg_add(cg, cg_times(cg, low(cg, warp, 3), 2), low(cg, right(cg, lane, 3), 1));
    int rows = cg_share(f, f->columns) * layout_share(&f->is, LAYOUT_LANE, f->columns);
    Val group = cg_times(cg, right(cg, warp, 2), rows * HOME_PITCH); // its panel, or rows
    Val at = cg_add(cg, cg_add(cg, base, group), cg_times(cg, row, HOME_PITCH));
    at = cg_add(cg, at, cg_times(cg, cg_xor(cg, piece, key), 16));
    for (int n = 0; n < rows; n += 16) {
        Val x[4];
        for (int i = 0; i < 4; i++)
            x[i] = cg->value[v->id].e[cg_register(f, 8 * (i % 2), n + 8 * (i / 2))];
        nv90_stmatrix(cg, cg_plus(cg, at, n * HOME_PITCH), x, true);
    }
}

static bool lies_across(Cg *cg, const TileValue *v, const TileShared *tile) {
    return cg_fragment(cg, v)->columns == tile->row_axis;
}

void nv90_write_matrix(Cg *cg, const TileValue *v, const TileShared *tile, Val base) {
    assert(tile->order == ORDER_PANELS && dtype_half(v->dtype) && tile->cols % 16 == 0);
    Val mine = cg_times(cg, nv_state(cg)->warp, 16 * HOME_PITCH);
    if (lies_across(cg, v, tile))
        write_across(cg, v, base);
    else
        write_panels(cg, v, v->dtype, tile->cols, tile->rows * HOME_PITCH, 0,
                     cg_add(cg, base, mine));
}

// How a warp's rows go through a buffer: so many columns at a time, in one of its places for as many.
typedef struct Way {
    Val base;  // of the warp's rows in the first place
    int apart; // bytes from panel to panel
    int columns, places;
    int since; // how often places were taken, by the stores before this one, since all were free
} Way;

static void start_store(Cg *cg, const TileOp *op, const Way *way, int first, int columns,
                        Val from) {
    const TileTensor *t = &cg->p->tensors.data[op->tensor];
    Val at[CG_MAP_RANK], end = NULL;
    int col = t->rank - 1, rank = t->rank, row_axis = op->args.data[0]->axis[0];
    for (int d = 0; d < t->rank; d++) {
        bool rows = op->coord[d].axis == row_axis;
        at[d] = op->each[d] ? nv90_run(cg, op, d, &end) : cg_uniform(cg, op->coord[d].at);
        if (rows && !op->each[d]) at[d] = cg_times(cg, at[d], cg->k->axes[row_axis].extent);
        if (rows) at[d] = cg_add(cg, at[d], cg_times(cg, nv_state(cg)->warp, TILE_BLOCK_ROWS));
    }
    Val lead = cg_is(cg, nv_state(cg)->gpu.lane, 0);
    int all = cg->k->axes[op->coord[col].axis].extent;
    Val map = nv90_map_param(cg, op->tensor, TILE_BLOCK_ROWS),
        column = cg_plus(cg, cg_times(cg, at[col], all), first);
    if (end) rank = nv90_cut(cg, at, rank, end), col = rank - 1;
    for (int i = 0; i * HOME_PANEL < columns; i++) {
        at[col] = cg_plus(cg, column, i * HOME_PANEL);
        nv90_bulk_store(cg, map, cg_plus(cg, from, i * way->apart), at, rank, lead);
    }
    nv90_bulk_commit(cg);
}

// Of the stores that go through the same buffer behind the loops, one after the other: the panels before those of `op`.
static int panels_before(const Cg *cg, const TileOp *op) {
    int n = 0;
    for (const TileOp *other = op->prev; other && other->kind == TILE_STORE; other = other->prev)
        if (other->args.n > 1 && other->args.data[1] == op->args.data[1] && !other->add)
            n += (cg->k->axes[other->args.data[0]->axis[1]].extent + HOME_PANEL - 1) / HOME_PANEL;
    return n;
}

static Way way_through(Cg *cg, const TileOp *op) {
    const TileValue *buffer = op->args.data[1];
    TileShared tile = tile_shared(cg->p, cg->k, buffer);
    Val base = cg->value[buffer->id].mem, warp = nv_state(cg)->warp;
    enum { PANEL_BYTES = TILE_BLOCK_ROWS * HOME_PITCH }; // of a warp's rows
    if (tile.order == ORDER_PANELS)
        return (Way){cg_add(cg, base, cg_times(cg, warp, PANEL_BYTES)), tile.rows * HOME_PITCH,
                     tile.cols, 1, 0};
    int places = tile_own_panels(cg->p, cg->k, buffer);
    assert(tile.order == ORDER_BLOCKS && places > 0);
    return (Way){cg_add(cg, base, cg_times(cg, warp, places * PANEL_BYTES)), PANEL_BYTES,
                 HOME_PANEL, places, panels_before(cg, op)};
}

void nv90_store_through(Cg *cg, const TileOp *op) {
    const TileValue *v = op->args.data[0];
    Dtype t = cg->p->tensors.data[op->tensor].dtype;
    Way way = way_through(cg, op);
    int all = cg->k->axes[v->axis[1]].extent;
    assert(dtype_half(t) && way.columns % 16 == 0);
    if (tile_is_summed(cg->k, op->args.data[1]) && !panels_before(cg, op)) nv90_own_buffer(cg);
    for (int first = 0; first < all; first += way.columns) {
        int turn = way.since++, columns = all - first < way.columns ? all - first : way.columns;
        Val at = cg_plus(cg, way.base, turn % way.places * way.apart);
        nv90_bulk_wait_read(cg, turn < way.places ? turn : way.places - 1);
        nv90_warp_sync(cg);
        write_panels(cg, v, t, columns, way.apart, first, at);
        nv90_proxy_fence(cg);
        nv90_warp_sync(cg);
        start_store(cg, op, &way, first, columns, at);
    }
}

static bool is_shared(const TileOp *op) {
    return op && op->kind == TILE_MAP && op->results.n && op->results.data[0]->rank == 2 &&
           op->results.data[0]->home == HOME_SHARED;
}

// Of two stages, that which the last map did not make: the last product that read it has landed when all have passed the barrier
// behind the other.
static Val next_stage(Cg *cg, Val base, int bytes) {
    Val variable = nv90_state(cg)->shared, stage = cg_load(cg, cg->i32, variable);
    cg_store(cg, cg_xor(cg, stage, cg_i32(cg, 1)), variable);
    return cg_add(cg, base, cg_times(cg, stage, bytes));
}

// Of one, the last product that read the place has landed when all who read it are here: the warpgroup, or, of a
// tile whose columns the warps share, all. Of maps that follow each other the first waits.
void nv90_share(Cg *cg, const TileOp *map) {
    const NvState *s = nv_state(cg);
    const TileValue *v = map->results.data[0];
    TileShared tile = tile_shared(cg->p, cg->k, v);
    Val base = nv90_shared(cg, s->gpu.offset[v->id]);
    nv90_pack(cg);
    if (!lies_across(cg, v, &tile)) {
        nv90_group_sync(cg);
        nv90_write_matrix(cg, v, &tile, base);
        nv90_proxy_fence(cg);
        nv90_group_sync(cg);
    } else {
        if (v->stages > 1)
            base = next_stage(cg, base, tile.bytes);
        else if (!is_shared(map->prev))
            nv90_role_sync(cg);
        nv90_write_matrix(cg, v, &tile, base);
        nv90_state(cg)->unseen = true;
    }
    cg->value[v->id].mem = base;
}

// Shared memory stays until the copy engine has read it.
void nv90_stores_end(Cg *cg) {
    const TileBlock *body = &nv90_state(cg)->role->body;
    for (const TileOp *op = tile_next(body, NULL); op; op = tile_next(body, op))
        if (op->kind == TILE_STORE && op->args.n > 1) {
            nv90_bulk_wait_read(cg, 0);
            break;
        }
    nv90_sums_end(cg);
}
