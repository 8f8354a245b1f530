// sm90.c: kernels with roles: how a block splits into them, and each operation to what builds it.
//
// In: a scheduled kernel whose body ends with roles. Out: its roles' code. The roles' warpgroups come
// in the order of the text. Whatever lowers an operation by itself, before or within another, does so
// through the target's hook, which leads here.
#include "codegen/nvptx/sm90.h"

#include <assert.h>
#include <string.h>

// ---- roles

static bool is_producer(const TileOp *role) { return !strcmp(role->role, "producer"); }

static bool shares_in_turns(const TileOp *role) {
    for (const TileOp *op = tile_next(&role->body, NULL); op; op = tile_next(&role->body, op))
        if (op->kind == TILE_MAP && op->results.n && op->results.data[0]->stages > 1) return true;
    return false;
}

static Nv90Walk walk_from(Cg *cg, int parity) {
    Nv90Walk w = {cg_alloca(cg, cg->i32, "stage"), cg_alloca(cg, cg->i32, "parity")};
    cg_store(cg, cg_i32(cg, 0), w.stage);
    cg_store(cg, cg_i32(cg, parity), w.parity);
    return w;
}

static bool takes(const TileOp *op, const TileValue *ring) {
    return op->kind == TILE_TAKE && op->args.data[0] == ring;
}

// Whether each tile of `ring` is taken behind one of `first`, in the same block, and each of that before one of this.
static bool follows(const TileBlock *b, const TileValue *first, const TileValue *ring) {
    int ahead = 0;
    for (const TileOp *op = b->first; op; op = op->next) {
        ahead += takes(op, first) - takes(op, ring);
        bool either = takes(op, first) || takes(op, ring);
        if ((either && op->when) || ahead < 0 || ahead > 1 || !follows(&op->body, first, ring))
            return false;
    }
    return ahead == 0;
}

static bool is_taken(const TileOp *role, const TileValue *ring) {
    for (const TileOp *op = tile_next(&role->body, NULL); op; op = tile_next(&role->body, op))
        if (takes(op, ring)) return true;
    return false;
}

static int taken_with(const Nv90 *h, int pipe) {
    const Nv90Pipe *p = &h->pipes.data[pipe];
    if (p->leader >= 0 || p->giver || !is_taken(h->role, p->ring)) return -1;
    for (int i = 0; i < h->pipes.n; i++) {
        const Nv90Pipe *first = &h->pipes.data[i];
        if (i == pipe || first->leader >= 0 || first->giver || first->with >= 0 ||
            first->ring->stages != p->ring->stages)
            continue;
        if (follows(&h->role->body, first->ring, p->ring)) return i;
    }
    return -1;
}

// A role's variables: every pipe is followed from its beginning.
static void begin_variables(Cg *cg) {
    Nv90 *h = nv90_state(cg);
    for (int i = 0; i < h->pipes.n; i++) h->pipes.data[i].with = -1;
    for (int i = 0; i < h->pipes.n; i++) {
        Nv90Pipe *p = &h->pipes.data[i];
        p->fills = walk_from(cg, 1), p->takes = walk_from(cg, 0);
        p->last = walk_from(cg, 0);
        p->with = taken_with(h, i);
        p->place = nv90_place(cg, nv90_shared(cg, p->data));
    }
    h->shared = shares_in_turns(h->role) ? cg_alloca(cg, cg->i32, "shared") : NULL;
    if (h->shared) cg_store(cg, cg_i32(cg, 0), h->shared);
    h->flight.n = h->wide.n = 0;
    nv90_begin_notes(cg);
    nv90_tiles_begin(cg);
}

static int turn_barrier(const Nv90 *h) { return 1 + h->first_group; }

// The first warpgroup has the first turn.
static void first_turn(Cg *cg) {
    Nv90 *h = nv90_state(cg);
    Blk on = cg_if(cg, cg_is(cg, h->group, h->role->warpgroups - 1), "turn");
    nv90_bar_arrive(cg, cg_i32(cg, turn_barrier(h)), 2 * NV90_GROUP);
    cg_enter(cg, on);
}

static void turn(Cg *cg, const TileOp *op) {
    Nv90 *h = nv90_state(cg);
    int n = h->role->warpgroups;
    if (n == 1) return;
    if (!op->pass) {
        nv90_bar_sync(cg, cg_plus(cg, h->group, turn_barrier(h)), 2 * NV90_GROUP);
        return;
    }
    Val wraps = cg_is(cg, h->group, n - 1);
    Val next = cg_select(cg, wraps, cg_i32(cg, 0), cg_plus(cg, h->group, 1));
    nv90_bar_arrive(cg, cg_plus(cg, next, turn_barrier(h)), 2 * NV90_GROUP);
}

// The producer's warps but the first, of which one thread has something to do.
static void others(Cg *cg) {
    Val warp = nv_state(cg)->warp;
    if (tile_hands_over(cg->p, cg->k)) {
        Blk on = cg_if(cg, cg_is(cg, warp, 1), "second");
        nv90_hand_over(cg);
        cg_enter(cg, on);
    }
    if (cg->k->schedule.finish) {
        Blk on = cg_if(cg, cg_icmp(cg, LLVMIntUGT, warp, cg_i32(cg, 1)), "others");
        nv90_finish(cg);
        cg_enter(cg, on);
    }
}

// One thread of the producer's warps runs; the others are done.
static void only_one(Cg *cg) {
    Blk idle = nv90_one(cg), one = cg_here(cg);
    cg_at(cg, idle);
    others(cg);
    LLVMBuildRetVoid(cg->b);
    cg_at(cg, one);
}

static int even_share(const Cg *cg) { // of the registers, when a block's roles do not say
    return 65536 / cg->launch.threads & ~7;
}

// The threads' numbers within the role: rows of a tile are spread over its warps.
static void role_threads(Cg *cg, const TileOp *op) {
    NvState *s = nv_state(cg);
    Nv90 *h = s->roles;
    s->gpu.threads = NV90_GROUP * op->warpgroups;
    s->gpu.tid = cg_sub(cg, s->gpu.tid, cg_i32(cg, h->first_group * NV90_GROUP));
    s->warp = cg_sub(cg, s->warp, cg_i32(cg, 4 * h->first_group));
    h->group = cg_lshr(cg, s->warp, cg_i32(cg, 2));
    h->lead = cg_is(cg, cg_and(cg, s->gpu.tid, cg_i32(cg, NV90_GROUP - 1)), 0);
    cg_place_thread(cg, s->gpu.lane, s->warp, false);
}

static void role(Cg *cg, const TileOp *op) {
    NvState *s = nv_state(cg), outer = *s;
    Nv90 *h = s->roles;
    Blk mine = cg_block(cg, op->role), others = cg_block(cg, "others");
    Val until = cg_i32(cg, 4 * (h->first_group + op->warpgroups));
    cg_branch(cg, cg_icmp(cg, LLVMIntULT, s->warp, until), mine, others);
    h->role = op;
    if (op->registers) nv90_set_registers(cg, op->registers, op->registers > even_share(cg));
    role_threads(cg, op);
    assert(!tile_hands_over(cg->p, cg->k) || !h->all_produce);
    if (is_producer(op) && !h->all_produce) only_one(cg);
    if (op->warpgroups > 1 && tile_has(&op->body, TILE_TURN)) first_turn(cg);
    begin_variables(cg);
    cg_lower_block(cg, &op->body, NULL);
    if (!is_producer(op)) nv90_stores_end(cg);
    if (is_producer(op) && cg->k->schedule.finish)
        nv90_barrier_arrive(cg, nv90_shared(cg, h->over), NULL);
    if (h->blocks > 1) nv90_cluster_sync(cg); // nobody tells or copies to a block that is gone
    LLVMBuildRetVoid(cg->b);
    *s = outer;
    h->first_group += op->warpgroups;
    h->role = NULL;
    cg_go_on(cg, others);
}

// ---- operations

static void store(Cg *cg, const TileOp *op) {
    bool asks = op->behind && op->when; // otherwise lower.c has asked
    Blk done = cg_if(cg, asks ? cg_uniform(cg, op->when) : NULL, "when");
    if (op->args.n > 1 && op->add)
        nv90_add_through(cg, op);
    else if (op->args.n > 1)
        nv90_store_through(cg, op);
    else if (op->add && cg->p->tensors.data[op->tensor].blocked)
        nv90_add_blocks(cg, op);
    else
        nv_store(cg, op);
    if (done) cg_enter(cg, done);
}

// Where the next sums go to is said before they have landed.
static void wait(Cg *cg, const TileOp *op) {
    const TileOp *to = op->next;
    while (to && (to->kind == TILE_DROP || to->kind == TILE_TURN)) to = to->next;
    bool adds = to && to->kind == TILE_STORE && to->add && to->args.n > 1;
    if (adds && !to->behind && !to->when) nv90_announce(cg, to);
    nv90_mma_wait(cg, op->pending);
}

static void lower(Cg *cg, const TileOp *op) {
    switch ((int)op->kind) {
    case TILE_PIPE: return;
    case TILE_ALLOC: cg_alloc(cg, op->results.data[0]); return;
    case TILE_ROLE: role(cg, op); return;
    case TILE_FILL: nv90_fill(cg, op); return;
    case TILE_GIVE: nv90_give(cg, op); return;
    case TILE_TAKE: nv90_take(cg, op); return;
    case TILE_BESIDE: nv90_beside(cg, op); return;
    case TILE_VIEW: nv90_view(cg, op); return;
    case TILE_DROP: nv90_drop(cg, op); return;
    case TILE_NEXT: nv90_next(cg, op); return;
    case TILE_TILES: nv90_tiles(cg, op); return;
    case TILE_AT: nv90_at(cg, op); return;
    case TILE_MMA: nv90_mma(cg, op); return;
    case TILE_MMA_WAIT: wait(cg, op); return;
    case TILE_TURN: turn(cg, op); return;
    case TILE_REDO: nv90_redo(cg, op); return;
    case TILE_BARRIER: nv90_role_sync(cg); return;
    case TILE_MAP: nv_map(cg, op); return;
    case TILE_LOAD: nv_load(cg, op); return;
    case TILE_STORE: store(cg, op); return;
    }
    assert(!"an operation of a kernel with roles");
}

static bool uses_wide(Cg *cg, const TileOp *op) {
    const Nv90 *h = nv90_state(cg);
    for (int i = 0; i < h->wide.n; i++)
        for (int a = 0; a < op->args.n; a++)
            if (h->wide.data[i].value == &cg->value[op->args.data[a]->id]) return true;
    return false;
}

static void lower_whole(Cg *cg, const TileOp *op) { nv_with_sums(cg, op, lower); }

void nv90_op(Cg *cg, const TileOp *op) {
    bool reads = op->kind == TILE_MAP || op->kind == TILE_STORE;
    if (uses_wide(cg, op)) nv90_pack(cg);
    void (*how)(Cg *, const TileOp *) = reads ? lower_whole : lower;
    if (op->behind)
        nv90_behind(cg, op, how);
    else
        how(cg, op);
}
