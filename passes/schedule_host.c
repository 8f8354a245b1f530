// schedule_host.c: tile extents and homes for the host.
//
// In: a program for the host, algorithm level. Out: extents bound; the axis that the grid tiles
// (the queries, M) along vector lanes; every value in the scratch memory of the thread that runs
// its tile, computed ones as f32.
//
//     M     four vectors: the width of a register block of the products (codegen/host_mma.c)
//     N     keys whose scores and rows of K or V stay near the L1 cache, in multiples of the
//           products' blocks
//     D, E  whole, as they are: nothing is padded
#include "schedule.h"

#include <assert.h>

enum {
    HOST_VECTORS = 4, // of M
    HOST_KEYS = 48,   // at most; a multiple of the 6 rows of a register block
    HOST_KEYS_STEP = 24,
};

static int tiled_axis(const TileKernel *k) {
    for (int i = 0; i < k->ngrid; i++)
        if (k->grid[i].sym == SYM_TILE) return k->grid[i].axis;
    return -1;
}

// Columns of q and o, or of k and v, that are held at a time.
static int columns_of(const TileKernel *k) {
    int n = 0;
    for (int a = 0; a < k->naxes; a++)
        if (k->axes[a].whole && k->axes[a].size->op == EX_CONST) n += k->axes[a].size->i;
    return n;
}

// Half of L2 for the rows of q and o, a quarter for those of k and v; very wide heads get fewer
// rows.
static int rows_of(const Target *t, int64_t columns) {
    int n = t->lanes * HOST_VECTORS;
    while (n > t->lanes && n * columns * 4 > t->l2_bytes / 2) n /= 2;
    return n;
}

static int keys_of(const Target *t, int64_t columns) {
    int n = HOST_KEYS;
    while (n > HOST_KEYS_STEP && n * columns * 4 > t->l2_bytes / 4) n -= HOST_KEYS_STEP;
    return n;
}

bool pass_tile_host(TileProgram *p, const PassOptions *o, Diags *diags) {
    (void)diags;
    for (int i = 0; i < p->kernels.n; i++) {
        TileKernel *k = p->kernels.data[i];
        int m = tiled_axis(k), columns = columns_of(k);
        k->schedule = (TileSchedule){.lane_axis = m};
        for (int a = 0; a < k->naxes; a++) {
            if (k->axes[a].extent) continue;
            if (k->axes[a].whole) {
                assert(k->axes[a].size->op == EX_CONST);
                pass_bind(p, k, a, k->axes[a].size->i);
            } else {
                pass_bind(p, k, a,
                          a == m ? rows_of(&o->target, columns) : keys_of(&o->target, columns));
            }
        }
    }
    return true;
}

// Scratch memory holds f32, whatever the tensors do: weights are not rounded on their way into a
// product.
static void give_home(TileOp *op) {
    for (int i = 0; i < op->results.n && op->kind == TILE_MAP; i++) {
        TileValue *v = op->results.data[i];
        if (v->dtype == DT_F16 || v->dtype == DT_BF16) v->dtype = DT_F32;
    }
    for (int i = 0; i < op->results.n; i++) op->results.data[i]->home = HOME_SCRATCH;
    for (int i = 0; i < op->carried.n; i++) op->carried.data[i]->home = HOME_SCRATCH;
}

bool pass_schedule_host(TileProgram *p, const PassOptions *o, Diags *diags) {
    (void)o, (void)diags;
    for (int i = 0; i < p->kernels.n; i++) {
        TileBlock *body = &p->kernels.data[i]->body;
        for (TileOp *op = tile_next(body, NULL); op; op = tile_next(body, op)) give_home(op);
    }
    return true;
}
