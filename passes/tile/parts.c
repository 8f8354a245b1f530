// parts.c: marks sums of rows that may stay in parts (ir/tile_parts.h).
//
// In: a kernel whose values have homes. Out: as many values marked as possible. It begins with all
// candidates, and removes those that contradict a rule until none is left.
#include "passes/schedule/schedule.h"

#include "ir/tile_parts.h"

static void mark(const TileKernel *k, TileValue *v) {
    v->parts = v->rank == 1 && v->axis[0] == tile_grid_axis(k) && v->dtype == DT_F32 &&
               v->home == HOME_FRAGMENT;
}

static bool settle(const TileOp *op) {
    TileValue *pair[2];
    if (!tile_parts_conflict(op, pair)) return false;
    pair[0]->parts = pair[1]->parts = false;
    return true;
}

// What is loaded is whole, unless all that uses it takes parts.
static bool is_used_whole(const TileKernel *k, const TileOp *load) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; i < op->args.n; i++) {
            bool carries = op->kind == TILE_LOOP || op->kind == TILE_TILES;
            if (op->args.data[i] == load->results.data[0] && !carries && !tile_takes_parts(op))
                return true;
        }
    return false;
}

static bool make_whole(const TileKernel *k, TileOp *op) {
    bool whole = op->kind == TILE_LOAD && op->results.data[0]->parts && is_used_whole(k, op);
    if (whole) op->results.data[0]->parts = false;
    return whole;
}

void pass_mark_parts(TileKernel *k) {
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        for (int i = 0; i < op->results.n; i++) mark(k, op->results.data[i]);
        for (int i = 0; i < op->carried.n; i++) mark(k, op->carried.data[i]);
    }
    for (bool changed = true; changed;) {
        changed = false;
        for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
            while (settle(op)) changed = true;
        for (TileOp *op = tile_next(&k->body, NULL); op && !changed; op = tile_next(&k->body, op))
            changed = make_whole(k, op);
    }
}
