// marks.c: how the maps and copies of a schedule are made, where a target has more than one way (ir/tile_marks.def).
//
// In: a scheduled program for NVIDIA devices; of any target, for sums that are scattered. Out: the same with maps marked. The lowering follows the marks, and does nothing of this
// kind without one. A mark is set where measurements showed a gain (docs/experiments.md).
#include "ir/tile.h"
#include "ir/tile_decayed.h"
#include "ir/tile_within.h"
#include "passes/schedule/schedule.h"

// Its elements are in registers, laid out as products leave them; in roles also those that go on to shared memory.
static bool is_of_fragments(const TileOp *map) {
    const TileValue *v = map->results.data[0];
    return v->home == HOME_FRAGMENT ||
           (v->home == HOME_SHARED && v->rank == 2 && tile_role_of(map));
}

static bool is_sigmoids(const TileOp *map) {
    const TileResult *out = &map->outs.data[0];
    const TileValue *v = map->results.data[0];
    return map->outs.n == 1 && out->reduce == EX_CONST && out->body->op == EX_SIGMOID &&
           v->dtype == DT_BF16 && v->rank == 2;
}

static bool reads_diagonals(const TileOp *map) {
    for (int i = 0; i < map->args.n; i++)
        if (map->args.data[i]->home == HOME_STRIP && map->args.data[i]->rank == 2) return true;
    return false;
}

static int column_axis(const TileKernel *k, const TileOp *map) {
    for (int i = 0; i < map->naxes; i++)
        if (map->axes[i] != tile_grid_axis(k)) return map->axes[i];
    return -1;
}

// The next tile of the loop is known without reading which it is.
static bool knows_the_next(const TileOp *map, int axis) {
    const TileOp *loop = map->block->owner;
    return loop && loop->kind == TILE_LOOP && loop->tiles == CLASS_FULL && loop->axis == axis &&
           !ex_reads(loop->index);
}

static bool gives_tiles(const TileOp *role) {
    for (const TileOp *op = tile_next(&role->body, NULL); op; op = tile_next(&role->body, op))
        if (op->kind == TILE_GIVE && op->args.data[1]->rank == 2) return true;
    return false;
}

// Elements and their sums, of a warpgroup that makes them for others: each of its warps has a scheduler to itself, and nothing to do while it waits.
static bool is_alone(const TileOp *map) {
    const TileOp *role = tile_role_of(map);
    bool sums = false, makes = false;
    for (int i = 0; i < map->outs.n; i++) {
        sums |= map->outs.data[i].reduce == EX_ROWSUM;
        makes |= map->outs.data[i].reduce == EX_CONST && map->results.data[i]->rank == 2;
    }
    return sums && makes && role->warpgroups == 1 && gives_tiles(role);
}

// Where warpgroups take no turns nobody's products are beside the end of a step: the question whether to do it again.
static bool is_exposed(const TileOp *redo) {
    const TileOp *role = tile_role_of(redo);
    for (const TileOp *op = tile_next(&role->body, NULL); op; op = tile_next(&role->body, op))
        if (op->kind == TILE_TURN) return false;
    return true;
}

static bool in_flight(const TileOp *at) {
    for (const TileOp *op = at->prev; op; op = op->prev) {
        if (op->kind == TILE_MMA) return op->async;
        if (op->kind == TILE_MMA_WAIT || (op->kind == TILE_MAP && op->waits))
            return op->pending > 0;
    }
    return false;
}

// Registers from which a branch saves more than it costs, as measured: where mma.sync is, with two m16
// tiles a warp, where warpgroups share the scores, or where a role's factors come from another. A branch would serialize products in flight.
static bool is_lazy(const TileKernel *k, const TileOp *map) {
    enum { WORTH_A_BRANCH = 96, MANY_ROWS = 4 };
    const TileValue *factor;
    if (!tile_rescaled(map, &factor) || !map->block->owner) return false;
    if (map->results.data[0]->layout < 0) return false;
    Layout own = tile_layout(k, map->results.data[0]);
    if (layout_count(&own, LAYOUT_REG) < WORTH_A_BRANCH) return false;
    if (tile_role_of(map)) return tile_pipe_of(factor) && !in_flight(map);
    return layout_share(&own, LAYOUT_REG, factor->axis[0]) >= MANY_ROWS || k->schedule.knobs.share;
}

static unsigned marks_of(const TileProgram *p, const TileKernel *k, const TileOp *map) {
    int columns = column_axis(k, map);
    unsigned marks = 0;
    if (columns >= 0 && tile_reads_rows(p, k, map, columns)) {
        marks |= 1u << TILE_PAIRS;
        if (map->naxes == 2 && knows_the_next(map, columns)) marks |= 1u << TILE_AHEAD;
    }
    if (is_lazy(k, map)) marks |= 1u << TILE_LAZY;
    if (!tile_role_of(map)) return marks;
    if (reads_diagonals(map)) marks |= 1u << TILE_DIAGONALS;
    if (is_alone(map)) marks |= 1u << TILE_LATE;
    if (is_sigmoids(map)) marks |= 1u << TILE_HALVES;
    return marks;
}

void pass_mark_sums(TileProgram *p) {
    for (int i = 0; i < p->kernels.n; i++) {
        TileBlock *b = &p->kernels.data[i]->body;
        for (TileOp *op = tile_next(b, NULL); op; op = tile_next(b, op))
            if (op->kind == TILE_STORE && tile_scatters_diagonals(op))
                op->marks = 1u << TILE_DIAGONALS;
    }
}

static int takers(const TileKernel *k, const TileValue *pipe) {
    int n = 0;
    for (const TileOp *role = k->body.first; role; role = role->next) {
        bool takes = false;
        for (const TileOp *op = tile_next(&role->body, NULL); op && role->kind == TILE_ROLE;
             op = tile_next(&role->body, op))
            takes |= op->kind == TILE_TAKE && op->args.data[0] == pipe;
        n += takes;
    }
    return n;
}

// Where one role after the other reads a tile that the blocks of a cluster share its place is free late: its copy should find the next tile in the L2 cache.
static bool is_held(const TileKernel *k, const TileOp *fill) {
    const TileValue *pipe = fill->args.data[0];
    const TileOp *loop = fill->block->owner;
    return k->schedule.cluster > 1 && !tile_has_axis(pipe, tile_grid_axis(k)) &&
           loop->kind == TILE_LOOP && !ex_reads(loop->index) && takers(k, pipe) > 1;
}

static bool is_lookup(void *ctx, const Ex *e) {
    (void)ctx;
    return e->op == EX_LOAD;
}

// What masks ask of a query, in a nest: each thread has many, the same as others of its warp.
static bool asks_around(const TileKernel *k, const TileOp *map) {
    return k->purpose == PURPOSE_GRADIENTS && tile_hands_around(k, map) &&
           tile_map_any(map, is_lookup, NULL) && !map->waits;
}

// Elements of a chunk that are made in registers.
static bool asks_zeros(const TileKernel *k, const TileOp *map) {
    bool registers = false;
    for (int i = 0; i < map->args.n; i++)
        registers |= map->args.data[i]->home == HOME_FRAGMENT && map->args.data[i]->rank == 2;
    return registers && pass_is_chunk(k) && k->purpose != PURPOSE_ONE_CHUNK && tile_last_zero(map);
}

void pass_mark(TileProgram *p) {
    for (int i = 0; i < p->kernels.n; i++) {
        TileKernel *k = p->kernels.data[i];
        if (k->schedule.lane_axis >= 0) continue;
        for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
            if (tile_around(k, op)) op->marks = 1u << TILE_WITHIN;
        for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
            if (op->kind == TILE_MAP && asks_zeros(k, op))
                op->marks |= 1u << TILE_ZEROS;
            else if (op->kind == TILE_MAP && asks_around(k, op))
                op->marks |= 1u << TILE_LANES;
            else if (op->kind == TILE_MAP && op->results.n && is_of_fragments(op))
                op->marks |= marks_of(p, k, op);
            else if (op->kind == TILE_FILL && is_held(k, op))
                op->marks |= 1u << TILE_AHEAD;
            else if (op->kind == TILE_REDO && is_exposed(op))
                op->marks |= 1u << TILE_EARLY;
            else if (tile_all_decayed(op) && op->results.data[0]->home == HOME_SHARED)
                op->marks |= 1u << TILE_FACTORS;
    }
}
