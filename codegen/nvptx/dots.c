// dots.c: sums along the rows of two tiles' products, as norms of keys are, on tensor cores.
//
// In: a result of a map that sums a * b along the columns of tiles of 16 bits in shared memory. Out: its numbers there, readable
// behind the next barrier. A warp makes eight rows at a time: half of their columns are the left operand's first eight rows, the
// others its last ones; b's are the columns of a right operand each. The sums stand on the diagonals.
#include "codegen/nvptx/nvptx.h"

enum {
    ROWS = 8,
    COLUMNS = 32,
    K = 16
}; // of a warp at a time; that a load brings; of an instruction

typedef struct Rows { // the lane's part of a tile's rows
    const TileValue *v;
    TileShared tile;
    Val at; // of the first columns
} Rows;

static const TileValue *tile_of(const TileOp *map, const Ex *e) {
    return e->op == EX_SYM && e->sym == SYM_PARAM ? map->args.data[e->index] : NULL;
}

static bool is_tile(Cg *cg, const TileValue *v, int rows, int columns) {
    if (!v || v->rank != 2 || v->home != HOME_SHARED || !dtype_half(v->dtype)) return false;
    TileShared t = tile_shared(cg->p, cg->k, v);
    bool whole = t.order == ORDER_PANELS || (t.order == ORDER_PADDED && t.pitch % HOME_PIECE == 0);
    return whole && t.row_axis == rows && t.col_axis == columns;
}

static bool is_whole(Cg *cg, int axis, int n) {
    const TileAxis *a = &cg->k->axes[axis];
    return a->extent % n == 0 &&
           (!a->whole || (a->size->op == EX_CONST && a->size->i == a->extent));
}

static bool is_dot(Cg *cg, const TileOp *map, int result, const TileValue *of[2]) {
    const TileResult *out = &map->outs.data[result];
    const TileValue *v = map->results.data[result];
    if (!cg->p->recurrence || out->reduce != EX_ROWSUM || out->scan || v->rank != 1) return false;
    if (v->dtype != DT_F32 || out->body->op != EX_MUL) return false;
    for (int i = 0; i < 2; i++) {
        of[i] = tile_of(map, out->body->args[i]);
        if (!is_tile(cg, of[i], v->axis[0], out->reduce_axis)) return false;
    }
    return of[0]->dtype == of[1]->dtype && is_whole(cg, out->reduce_axis, COLUMNS) &&
           cg->k->axes[v->axis[0]].extent % ROWS == 0;
}

static Rows rows_of(Cg *cg, const TileValue *v, Val lane, Val row) {
    Rows r = {v, tile_shared(cg->p, cg->k, v), NULL};
    Val column = cg_times(cg, cg_lshr(cg, lane, cg_i32(cg, 3)), ROWS);
    r.at = nv_tile_offset(cg, &r.tile, cg_add(cg, row, cg_and(cg, lane, cg_i32(cg, ROWS - 1))),
                          column);
    return r;
}

// From the c-th column on. Pieces of a panel's row lie exclusive-or its number, which the column does not touch.
static void load(Cg *cg, const Rows *r, int c, Val x[4]) {
    int bytes = c * r->tile.elem;
    Val at = r->at;
    if (r->tile.order == ORDER_PANELS) {
        at = cg_xor(cg, at, cg_i32(cg, bytes % HOME_PITCH));
        bytes = bytes / HOME_PITCH * r->tile.rows * HOME_PITCH;
    }
    at = cg_plus(cg, at, bytes);
    nv_ldmatrix(cg, cg_add(cg, cg->value[r->v->id].mem, at), false, x);
}

// The first product has its sums in the left operand's first rows, the second one in the others.
static Val diagonal(Cg *cg, Val lane, Val acc[2][4]) {
    Val odd = cg_is(cg, cg_and(cg, cg_lshr(cg, lane, cg_i32(cg, 2)), cg_i32(cg, 1)), 1), x[2];
    for (int c = 0; c < 2; c++) x[c] = LLVMBuildFAdd(cg->b, acc[0][c], acc[1][2 + c], "");
    return cg_select(cg, odd, x[1], x[0]);
}

static void make_rows(Cg *cg, const TileValue *v, const TileValue *const of[2], int columns,
                      Val lane, Val row) {
    Rows a = rows_of(cg, of[0], lane, row), b = rows_of(cg, of[1], lane, row);
    Val acc[2][4];
    for (int i = 0; i < 8; i++) acc[i / 4][i % 4] = cg_f32(cg, 0);
    for (int c = 0; c < columns; c += COLUMNS) {
        Val x[4], y[4];
        load(cg, &a, c, x);
        if (of[0] != of[1]) load(cg, &b, c, y);
        for (int k = 0; k < COLUMNS / K; k++) {
            const Val *right = of[0] != of[1] ? y : x;
            nv_mma16(cg, of[0]->dtype, acc[k], x, right[k], right[k + 2]);
        }
    }
    Val own =
        cg_icmp(cg, LLVMIntEQ, cg_lshr(cg, lane, cg_i32(cg, 3)), cg_and(cg, lane, cg_i32(cg, 3)));
    Val x = diagonal(cg, lane, acc);
    Blk done = cg_if(cg, own, "dot");
    Val at = cg_add(cg, row, cg_lshr(cg, lane, cg_i32(cg, 2)));
    cg_store(cg, x, cg_shared_pointer(cg, v, v->axis[0], at, NULL));
    cg_end_if(cg, done);
}

bool nv_dots(Cg *cg, const TileOp *map, int result) {
    const TileValue *of[2], *v = map->results.data[result];
    if (!is_dot(cg, map, result, of)) return false;
    int rows = cg->k->axes[v->axis[0]].extent, step = ROWS * cg_gpu(cg)->threads / NV_WARP;
    int columns = cg->k->axes[map->outs.data[result].reduce_axis].extent;
    Val lane = nv_hidden(cg, cg_gpu(cg)->lane);
    for (int first = 0; first < rows; first += step) {
        Val row = cg_plus(cg, cg_times(cg, nv_state(cg)->warp, ROWS), first);
        Blk done = rows - first < step ? cg_if(cg, cg_below(cg, row, rows), "rows") : NULL;
        make_rows(cg, v, of, columns, lane, row);
        if (done) cg_end_if(cg, done);
    }
    return true;
}
