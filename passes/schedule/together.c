// together.c: what all threads of a block make together, in shared memory.
//
// In: a kernel for a GPU, before its values have homes. Rows, of the grid's axis, lie over the warps; a recurrence's state has
// them, and the scores of its chunk have not. Out: in shared memory lies what is made by an operation whose results have no
// rows and that is a product, goes to an axis beside another, inverts, scans, or makes a matrix; and what such an operation
// reads of other maps.
#include "passes/schedule/resources.h"
#include "passes/tile/rewrite.h"

enum {
    MOST = 64, // places: more make more products than they save
    TWO_BLOCKS = 112 << 10,
    SM90_SHARED = 228 << 10, // of an SM, and what a block takes beside its own
    SM90_OF_A_BLOCK = 1 << 10,
};

static bool lacks_rows(const TileKernel *k, const TileOp *op) {
    int rows = tile_grid_axis(k);
    for (int i = 0; i < op->results.n; i++)
        for (int a = 0; a < op->results.data[i]->rank; a++)
            if (tile_root_axis(k, op->results.data[i]->axis[a]) == rows) return false;
    return rows >= 0;
}

// Numbers of positions or channels, made of nothing or of what lies in shared memory: each thread would make many of them.
static bool is_of_numbers(const TileProgram *p, const TileKernel *k, const TileOp *map) {
    bool all = map->kind == TILE_MAP && map->naxes == 1;
    for (int i = 0; i < map->args.n && all; i++) {
        const TileOp *def = tile_source(map->args.data[i])->def;
        while (def && def->kind == TILE_BESIDE) def = def->args.data[0]->def;
        bool made = def && def->kind == TILE_MAP, copied = def && pass_is_operand(p, def);
        all = copied ||
              (made && (def->results.data[0]->home == HOME_SHARED || pass_cooperative(k, def)));
    }
    return all;
}

static bool needs_all(const TileProgram *p, const TileKernel *k, const TileOp *op) {
    bool all = op->kind != TILE_MAP || tile_scans(op);
    for (int i = 0; i < op->results.n; i++) all |= op->results.data[i]->rank > 1;
    bool chunk = pass_is_chunk(k), loaded = true;
    for (int i = 0; i < op->args.n; i++)
        loaded &= op->args.data[i]->def && op->args.data[i]->def->kind == TILE_LOAD;
    all |= chunk && is_of_numbers(p, k, op);
    for (int i = 0; i < op->outs.n && chunk; i++) // a sum over the warps, or of what is no tile
        all |= op->outs.data[i].reduce != EX_CONST &&
               (!loaded || op->outs.data[i].reduce_axis == tile_grid_axis(k));
    return all;
}

bool pass_is_chunk(const TileKernel *k) {
    return k->purpose == PURPOSE_CHUNK || k->purpose == PURPOSE_FEW ||
           k->purpose == PURPOSE_STATES || k->purpose == PURPOSE_ADJOINT ||
           k->purpose == PURPOSE_ONE_CHUNK;
}

bool pass_makes_together(const TileProgram *p, const TileKernel *k) {
    if (pass_nest(k)) return false; // dq of a step alone, which leaves it
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if ((tile_op_info(op->kind)->flags & OP_MAKES) && needs_all(p, k, op) && lacks_rows(k, op))
            return true;
    return false;
}

static bool is_shared(const TileOp *op) {
    return op && op->results.n && op->results.data[0]->home == HOME_SHARED;
}

// What it makes goes to an operation of all threads, or comes from one.
static bool joins(const TileKernel *k, const TileOp *op) {
    for (int i = 0; i < op->args.n; i++)
        if (is_shared(op->args.data[i]->def)) return true;
    for (const TileOp *at = tile_next(&k->body, NULL); at; at = tile_next(&k->body, at)) {
        if (is_shared(at) && pass_uses_result(at, op)) return true;
    }
    return false;
}

static int shared_bytes(const TileProgram *p, const TileKernel *k, const Extents *e, Knobs s,
                        int warps) {
    Block b = pass_block(p, k, e, s, warps);
    return pass_shared(&b);
}

void pass_fit_together(const TileProgram *p, TileKernel *k, Extents *e, Knobs s, int warps,
                       int least) {
    const Target *t = target_get(p->target);
    int room = t->kind == KIND_NVPTX ? TWO_BLOCKS : t->shared_bytes;
    if (s.groups) room = SM90_SHARED / s.blocks - SM90_OF_A_BLOCK;
    if (!pass_makes_together(p, k)) return;
    pass_together(p, k);
    if (e->step > MOST) e->step = MOST;
    while (e->step > least && shared_bytes(p, k, e, s, warps) > room) e->step /= 2;
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; i < op->results.n; i++) op->results.data[i]->home = HOME_ANY;
}

// ---- what has rows, and goes through shared memory all the same

static bool lies_shared(const TileProgram *p, const TileValue *v) {
    const TileOp *def = tile_source(v)->def;
    if (def && def->kind == TILE_LOAD) return pass_is_operand(p, def);
    return def && v->home == HOME_SHARED;
}

static bool is_elementwise(const TileOp *map) {
    bool plain = map->naxes == 2;
    for (int i = 0; i < map->outs.n; i++)
        plain &= map->outs.data[i].reduce == EX_CONST && map->results.data[i]->rank == 2;
    return plain;
}

// Elements that are made in registers, and put into shared memory from there.
static bool is_spread(const TileProgram *p, const TileOp *map) {
    bool registers = false;
    for (int i = 0; i < map->args.n; i++)
        registers |= map->args.data[i]->rank == 2 && !lies_shared(p, map->args.data[i]);
    return registers && is_elementwise(map);
}

// Not where each warp has its part of the contracted axis, or of the other operand.
static bool takes_registers(const TileKernel *k, const TileOp *mma, const TileValue *v) {
    enum { ROWS = 16 };
    int rows = tile_grid_axis(k);
    bool whole = !pass_by_positions(k) || k->axes[rows].extent >= ROWS * k->schedule.warps;
    return whole && tile_has_axis(v, rows) && tile_has_axis(mma->results.data[0], rows);
}

static bool asks_shared(const TileProgram *p, const TileKernel *k, const TileOp *op, int arg) {
    if (op->kind == TILE_MMA) return arg < 2 && !takes_registers(k, op, op->args.data[arg]);
    if (op->kind == TILE_INVERT) return true;
    if (op->kind == TILE_STORE && pass_by_positions(k)) // of copies one would have to add
        return op->add && op->args.data[arg]->rank == 1;
    return op->kind == TILE_MAP && is_shared(op) && !is_spread(p, op);
}

bool pass_goes_through(const TileProgram *p, const TileKernel *k, const TileValue *v) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; i < op->args.n; i++)
            if (op->args.data[i] == v && asks_shared(p, k, op, i)) return true;
    return false;
}

// Numbers of rows of what lies in shared memory.
static bool is_of_shared(const TileProgram *p, const TileKernel *k, const TileOp *map) {
    bool all = pass_by_positions(k);
    for (int i = 0; i < map->args.n; i++) all &= lies_shared(p, map->args.data[i]);
    for (int i = 0; i < map->results.n; i++) all &= map->results.data[i]->rank < 2;
    return all;
}

static bool wants_shared(const TileProgram *p, const TileKernel *k, const TileOp *op) {
    if (op->kind == TILE_BESIDE) return lies_shared(p, op->args.data[0]);
    if (op->kind != TILE_MAP) return false;
    bool through = false;
    for (int i = 0; i < op->results.n && is_elementwise(op); i++)
        through |= pass_goes_through(p, k, op->results.data[i]);
    through |= !tile_has(&k->body, TILE_MMA); // which alone wants registers
    return through || lacks_rows(k, op) || pass_goes_through_rows(k, op) || is_of_shared(p, k, op);
}

// Where a product is one of matrix instructions, or of a thread's own multiply-adds.
static bool takes_mma(const TileProgram *p, const TileKernel *k, const TileOp *mma) {
    return target_get(p->target)->kind == KIND_NVPTX || !lacks_rows(k, mma);
}

static bool give_chunk_homes(const TileProgram *p, TileKernel *k) {
    bool more = false;
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        bool registers = op->kind == TILE_MMA && takes_mma(p, k, op);
        bool makes = (tile_op_info(op->kind)->flags & OP_MAKES) && !is_shared(op);
        if (!makes || registers) continue;
        if (op->kind != TILE_MMA && op->kind != TILE_INVERT && !wants_shared(p, k, op)) continue;
        pass_to_shared(op);
        more = true;
    }
    return more;
}

// Another name of a tile that lies in shared memory.
static bool is_copied(const TileProgram *p, const TileOp *op) {
    return op->kind == TILE_BESIDE && op->args.data[0]->def &&
           pass_is_operand(p, op->args.data[0]->def);
}

void pass_together(const TileProgram *p, TileKernel *k) {
    const Target *target = target_get(p->target);
    if (k->purpose == PURPOSE_ONE_CHUNK) {
        while (give_chunk_homes(p, k)) continue;
        return;
    }
    for (bool again = true; again;) {
        again = false;
        for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
            bool makes = tile_op_info(op->kind)->flags & OP_MAKES;
            bool copied = is_copied(p, op);
            if (!makes || is_shared(op) || (!copied && !lacks_rows(k, op))) continue;
            if (op->results.data[0]->home == HOME_FRAGMENT) continue; // a product's, as below
            if (!copied && !needs_all(p, k, op) && !joins(k, op)) continue;
            bool registers = op->kind == TILE_MMA && target->kind == KIND_NVPTX;
            for (int i = 0; i < op->results.n; i++)
                op->results.data[i]->home = registers ? HOME_FRAGMENT : HOME_SHARED;
            again = true;
        }
    }
}

static bool puts_through(const TileKernel *k) {
    return k->purpose == PURPOSE_ONE_CHUNK || k->purpose == PURPOSE_GRADIENTS;
}

// Where it is first asked for; gradients of scores where they are made, so that a product stands before the barrier.
void pass_put_through(TileProgram *p, TileKernel *k) {
    if (!puts_through(k)) return;
    TileValue **put = ARENA_ARRAY(p->arena, TileValue *, k->nvalues + 1);
    int n = k->nvalues;
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; i < op->args.n; i++) {
            TileValue *v = op->args.data[i];
            if (v->id >= n || lies_shared(p, v) || !asks_shared(p, k, op, i)) continue;
            bool early = k->purpose == PURPOSE_GRADIENTS && v->def->block == op->block;
            if (!put[v->id]) put[v->id] = pass_put_shared(p, k, early ? v->def->next : op, v);
            op->args.data[i] = put[v->id];
        }
}
