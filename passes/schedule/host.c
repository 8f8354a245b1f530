// host.c: tile extents and homes for the host.
//
// In: a program for the host, algorithm level. Out: extents bound; the axis that the grid tiles
// (the queries, M) along vector lanes; every value in the scratch memory of the thread that runs
// its tile, computed ones as f32.
//
//     M     four vectors: the width of a register block of the products (codegen/host/mma.c)
//     N     keys whose scores and rows of K or V stay near the L1 cache, in multiples of the
//           products' blocks
//     D, E  whole, as they are: nothing is padded
//
// Of a recurrence the grid tiles the columns of v, E, and chunks are the keys' tiles.
//
// The form that splits keys (passes/tile/split.c) is also the one for a few queries, where vectors of queries
// would be mostly empty: one query a tile, vectors along the keys' columns, so that decoding runs
// at the speed of memory. A forward that saves for its backward has vectors of keys there, as the backward has: both add up a
// product in the same order, and an exponential of large scores differs by far more than the scores do.
#include "passes/mask/tilemap.h"
#include "passes/schedule/schedule.h"
#include "passes/tile/rewrite.h"

#include <limits.h>

enum {
    HOST_VECTORS = 4, // of M
    HOST_KEYS = 48,   // at most; a multiple of the 6 rows of a register block
    HOST_KEYS_STEP = 24,
    HOST_FEW_KEYS = 192,
    HOST_COLUMNS = 64, // of v: of a recurrence's tile
    HOST_CHUNK = 6,    // positions of its chunks: the rows of a register block; 24 are slow for few
    BACK_CHUNK = 48,   // of its backward, which keeps two states for each chunk
    BACK_CHANNELS = 12, // where channels have decays of their own: pairs take longer
};

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

// What a sweep visits: keys, or queries where gradients are summed, of which few are masked in vain.
static int keys_of(const Target *t, const TileKernel *k, int64_t columns) {
    int n = k->purpose == PURPOSE_GRADIENTS ? HOST_KEYS_STEP : HOST_KEYS;
    while (n > HOST_KEYS_STEP && n * columns * 4 > t->l2_bytes / 4) n -= HOST_KEYS_STEP;
    return n;
}

// ---- recurrences

static bool is_chunked(const TileKernel *k) {
    for (int a = 0; a < k->naxes; a++)
        if (k->axes[a].beside >= 0) return true;
    return false;
}

// Some map sums over the axis.
static bool is_summed(const TileKernel *k, int axis) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; op->kind == TILE_MAP && i < op->outs.n; i++) {
            const TileResult *r = &op->outs.data[i];
            if (r->reduce != EX_CONST && r->reduce_axis == axis) return true;
        }
    return false;
}

// Tiles of equal width; one where a row of v or o is summed, or all is of one chunk.
static int columns_of_chunks(const TileKernel *k, int lanes) {
    int axis = tile_grid_axis(k), n = k->axes[axis].size->i;
    bool whole = is_summed(k, axis) || k->purpose == PURPOSE_ONE_CHUNK;
    int tiles = whole ? 1 : (n + HOST_COLUMNS - 1) / HOST_COLUMNS;
    return pass_padded((n + tiles - 1) / tiles, lanes);
}

// Some map goes over pairs of positions and channels.
static bool pairs_of_channels(const TileProgram *p) {
    for (int i = 0; i < p->kernels.n; i++) {
        const TileBlock *b = &p->kernels.data[i]->body;
        for (const TileOp *op = tile_next(b, NULL); op; op = tile_next(b, op))
            if (op->kind == TILE_MAP && op->naxes > 2) return true;
    }
    return false;
}

// ---- choices

static bool choose(const TileProgram *p, TileKernel *k, const PassOptions *o, Diags *diags) {
    int columns = columns_of(k), lanes = o->target.lanes;
    Knobs *s = &k->schedule.knobs;
    *s = (Knobs){.said = knobs_of(FORM_HOST),
                 .rows = rows_of(&o->target, columns),
                 .keys = keys_of(&o->target, k, columns)};
    if (is_chunked(k) && k->axes[tile_grid_axis(k)].size->op == EX_CONST) {
        s->rows = columns_of_chunks(k, lanes);
        s->keys = !tile_is_backward(p)   ? HOST_CHUNK
                  : pairs_of_channels(p) ? BACK_CHANNELS
                                         : BACK_CHUNK;
    }
    if (!knobs_take(s, FORM_HOST, &o->schedule, diags)) return false;
    if (s->rows % lanes == 0) return true;
    return diag_refuse(diags, (Span){0},
                       "schedule: rows are a multiple of the %d lanes of a vector, not %d", lanes,
                       s->rows);
}

// The axis that is swept over.
static int swept_axis(const TileKernel *k) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (op->kind == TILE_LOOP) return op->axis;
    return -1;
}

static bool choose_few(TileKernel *k, const PassOptions *o, Diags *diags) {
    int lanes = o->target.lanes;
    k->schedule.knobs = (Knobs){.said = knobs_of(FORM_HOST_FEW), .few_keys = HOST_FEW_KEYS};
    if (!knobs_take(&k->schedule.knobs, FORM_HOST_FEW, &o->schedule, diags)) return false;
    if (!o->saves) return true;
    k->schedule.lane_axis = swept_axis(k);
    k->schedule.knobs.few_keys = pass_padded(k->schedule.knobs.few_keys, lanes);
    return true;
}

bool pass_tile_host(TileProgram *p, const PassOptions *o, Diags *diags) {
    for (int i = 0; i < p->kernels.n; i++) {
        TileKernel *k = p->kernels.data[i];
        bool few = k->purpose == PURPOSE_PART;
        k->schedule = (TileSchedule){.lane_axis = few ? -1 : tile_grid_axis(k)};
        if (!(few ? choose_few(k, o, diags) : choose(p, k, o, diags))) return false;
        const Knobs *s = &k->schedule.knobs;
        Extents e = {few ? 1 : s->rows, few ? s->few_keys : s->keys, 1, 1, INT_MAX};
        pass_bind_all(p, k, &e);
    }
    return true;
}

// Scratch memory holds f32, whatever the tensors do: weights are not rounded on their way into a
// product.
static void give_home(TileOp *op) {
    for (int i = 0; i < op->results.n && op->kind == TILE_MAP; i++) {
        TileValue *v = op->results.data[i];
        if (dtype_half(v->dtype)) v->dtype = DT_F32;
    }
    if (op->kind == TILE_BESIDE) op->results.data[0]->dtype = op->args.data[0]->dtype;
    for (int i = 0; i < op->results.n; i++) op->results.data[i]->home = HOME_SCRATCH;
    for (int i = 0; i < op->carried.n; i++) op->carried.data[i]->home = HOME_SCRATCH;
}

static bool sums_lanes(const TileOp *op, int lane_axis) {
    return op->kind == TILE_MMA && tile_contracted_axis(op) == lane_axis;
}

// A product that sums over the lanes takes one operand from the tensor, where rows are contiguous: what else has lanes along it is
// loaded a second time.
static void load_rows(TileProgram *p, TileKernel *k) {
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        for (int i = 0; i < 2 && sums_lanes(op, k->schedule.lane_axis); i++) {
            TileOp *load = op->args.data[i]->def;
            bool other = false;
            for (const TileOp *u = tile_next(&k->body, NULL); u && load->kind == TILE_LOAD;
                 u = tile_next(&k->body, u))
                other |= pass_uses_result(u, load) && !u->body.first &&
                         !sums_lanes(u, k->schedule.lane_axis);
            if (!other) continue;
            TileOp *rows = tile_clone(p, k, load, NULL, NULL);
            tile_insert_before(load, rows);
            for (TileOp *u = tile_next(&k->body, NULL); u; u = tile_next(&k->body, u))
                for (int a = 0; a < u->args.n && sums_lanes(u, k->schedule.lane_axis); a++)
                    if (u->args.data[a] == load->results.data[0])
                        u->args.data[a] = rows->results.data[0];
        }
    }
}

void pass_schedule_host(TileProgram *p, TileKernel *k, const PassOptions *o) {
    (void)o;
    if (tile_has_lanes(k)) return;
    load_rows(p, k);
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) give_home(op);
}
