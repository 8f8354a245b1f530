// steps.c: a recurrence position after position, over the state in registers (passes/tile/recur_steps.c).
//
// In: such a kernel for a GPU. Out: columns of the state for a block, and its warps; all values in registers, in one layout (layout.c).
// All lanes of a column are of one warp, so that no warp waits for another.
#include "passes/schedule/schedule.h"
#include "passes/tile/rewrite.h"

enum { UNIT = 16 };

int pass_state_lanes(int channels) {
    enum { LEAST = 8, MOST = 16, SHARE = 32 };
    int lanes = LEAST;
    while (lanes < MOST && pass_padded(channels, UNIT) / lanes > SHARE) lanes *= 2;
    return lanes;
}

// Four columns side by side in a lane, once, or twice where the share of a thread is not too large then (0.98 of the time on an H100).
static int columns_of_warp(const TileProgram *p) {
    enum { SIDE_BY_SIDE = 4, MOST_CHANNELS = 128 };
    int once = SIDE_BY_SIDE * target_get(p->target)->lanes / pass_state_lanes(p->D);
    return p->D <= MOST_CHANNELS && p->Dv % (2 * once) == 0 ? 2 * once : once;
}

int pass_steps(const TileProgram *p, TileKernel *k, int *warps) {
    enum { MOST_WARPS = 5 };
    int columns = columns_of_warp(p);
    int parts = pass_padded(p->Dv, columns > UNIT ? columns : UNIT) / columns;
    *warps = MOST_WARPS;
    while (parts % *warps || columns * *warps % UNIT) --*warps;
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; i < op->results.n; i++) op->results.data[i]->home = HOME_FRAGMENT;
    return columns * *warps;
}
