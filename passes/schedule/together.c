// together.c: what all threads of a block make together, in shared memory.
//
// In: a kernel for a GPU, before its values have homes. Rows, of the grid's axis, lie over the warps; a recurrence's state has
// them, and the scores of its chunk have not. Out: in shared memory lies what is made by an operation whose results have no
// rows and that is a product, goes to an axis beside another, inverts, scans, or makes a matrix; and what such an operation
// reads of other maps.
#include "passes/schedule/schedule.h"
#include "passes/tile/rewrite.h"

static bool lacks_rows(const TileKernel *k, const TileOp *op) {
    int rows = tile_grid_axis(k);
    for (int i = 0; i < op->results.n; i++)
        if (tile_has_axis(op->results.data[i], rows)) return false;
    return rows >= 0;
}

static bool needs_all(const TileOp *op) {
    bool all = op->kind != TILE_MAP || tile_scans(op);
    for (int i = 0; i < op->results.n; i++) all |= op->results.data[i]->rank > 1;
    return all;
}

bool pass_makes_together(const TileKernel *k) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if ((tile_op_info(op->kind)->flags & OP_MAKES) && needs_all(op) && lacks_rows(k, op))
            return true;
    return false;
}

// What it makes goes to an operation of all threads, or comes from one.
static bool joins(const TileKernel *k, const TileOp *op) {
    for (int i = 0; i < op->args.n; i++)
        if (tile_makes_shared(op->args.data[i]->def)) return true;
    for (const TileOp *at = tile_next(&k->body, NULL); at; at = tile_next(&k->body, at)) {
        if (tile_makes_shared(at) && pass_uses_result(at, op)) return true;
    }
    return false;
}

// Of a tile with so many places along axes that have no extent yet.
static int bytes_of(const TileKernel *k, const TileValue *v, int places) {
    enum { PITCH = 16, PLACE = 128 }; // a row has up to so many bytes more; where a value begins
    int n = dtype_bytes(v->dtype), rows = 1;
    for (int i = 0; i < v->rank; i++) {
        const TileAxis *a = &k->axes[v->axis[i]];
        int extent = tile_extent(a) ? tile_extent(a) : places;
        n *= extent;
        if (i + 1 < v->rank) rows *= extent;
    }
    return (n + rows * PITCH + PLACE - 1) / PLACE * PLACE;
}

// Of what is made together, and of tiles that are copied. 0: nothing is made together.
static int shared_bytes(const TileKernel *k, int places) {
    int made = 0, copied = 0;
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; i < op->results.n; i++) {
            const TileValue *v = op->results.data[i];
            bool copy = op->kind == TILE_LOAD && v->rank > 1 && !pass_begins_loop(op);
            if (tile_makes_shared(op)) made += bytes_of(k, v, places);
            if (copy) copied += bytes_of(k, v, places);
        }
    return made ? made + copied : 0;
}

int pass_together_places(TileKernel *k, int places, int least, int room) {
    pass_together(k);
    while (places > least && shared_bytes(k, places) > room) places /= 2;
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; i < op->results.n; i++) op->results.data[i]->home = HOME_ANY;
    return places;
}

void pass_together(TileKernel *k) {
    for (bool again = true; again;) {
        again = false;
        for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
            bool makes = tile_op_info(op->kind)->flags & OP_MAKES;
            if (!makes || tile_makes_shared(op) || !lacks_rows(k, op)) continue;
            if (!needs_all(op) && !joins(k, op)) continue;
            for (int i = 0; i < op->results.n; i++) op->results.data[i]->home = HOME_SHARED;
            again = true;
        }
    }
}
