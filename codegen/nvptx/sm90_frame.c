// sm90_frame.c: the frame of a kernel with roles: where its pipes, buffers and barriers lie in shared
// memory, the arguments that it needs besides, and what a block does before its roles begin.
#include "codegen/nvptx/sm90.h"

#include "runtime/abi.h"

#include <assert.h>
#include <string.h>

// ---- pipes and barriers

// Warpgroups of all roles that take from it.
static int readers_of(const TileKernel *k, const TileValue *ring) {
    int n = 0;
    const TileOp *last = NULL;
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        if (op->kind != TILE_TAKE || op->args.data[0] != ring) continue;
        const TileOp *role = tile_role_of(op);
        n += role == last ? 0 : role->warpgroups;
        last = role;
    }
    assert(n > 0 && "somebody takes from a pipe");
    return n;
}

static const TileOp *giver_of(const TileKernel *k, const TileValue *ring) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (op->kind == TILE_GIVE && op->args.data[0] == ring) return tile_role_of(op);
    return NULL;
}

// What fills it with a tensor's rows, one by one; NULL: nothing does.
static const TileOp *copied_by_threads(const Cg *cg, const TileValue *ring) {
    for (const TileOp *op = tile_next(&cg->k->body, NULL); op; op = tile_next(&cg->k->body, op))
        if (tile_fills_by_threads(cg->p, cg->k, op) && op->args.data[0] == ring) return op;
    return NULL;
}

// Whether a role takes a vector in a step where it has not taken the tile.
static bool is_taken_alone(const TileKernel *k, const TileValue *ring, const TileValue *leader) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        const TileOp *at = op;
        if (op->kind != TILE_TAKE || op->args.data[0] != ring) continue;
        while (at && (at->kind != TILE_TAKE || at->args.data[0] != leader)) at = at->prev;
        if (!at) return true;
    }
    return false;
}

static bool fills(const TileOp *op, const TileValue *ring) {
    return op && op->kind == TILE_FILL && op->args.data[0] == ring;
}

// The tile that a vector is filled right behind, always, and that is dropped behind it; NULL: there is none.
static const TileValue *leader_of(const TileKernel *k, const TileValue *ring) {
    const TileValue *leader = NULL;
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        bool drops = op->kind == TILE_DROP && tile_pipe_of(op->args.data[0]) == ring;
        const TileOp *at = op;
        while (fills(op, ring) && fills(at, at->args.data[0]) && at->args.data[0]->rank == 1)
            at = at->prev;
        if (fills(op, ring)) {
            if (!at || at->kind != TILE_FILL || at->when || op->when) return NULL;
            if (leader && leader != at->args.data[0]) return NULL;
            leader = at->args.data[0];
        }
        while (drops && at && !(at->kind == TILE_DROP && tile_pipe_of(at->args.data[0]) == leader))
            at = at->next;
        if (!at) return NULL;
    }
    bool alike = leader && leader->stages == ring->stages;
    return alike && !is_taken_alone(k, ring, leader) ? leader : NULL;
}

// Vectors come with tiles: one barrier tells of both.
static void find_leaders(Cg *cg) {
    Nv90 *h = nv90_state(cg);
    for (int i = 0; i < h->pipes.n; i++) {
        Nv90Pipe *p = &h->pipes.data[i];
        const TileValue *leader = p->ring->rank == 1 ? leader_of(cg->k, p->ring) : NULL;
        for (int j = 0; leader && j < h->pipes.n; j++) {
            if (h->pipes.data[j].ring != leader) continue;
            p->leader = j;
            h->pipes.data[j].bytes += p->tile.bytes;
        }
    }
}

static void find_pipes(Cg *cg) {
    Nv90 *h = nv90_state(cg);
    for (const TileOp *op = cg->k->body.first; op; op = op->next) {
        if (op->kind != TILE_PIPE) continue;
        const TileValue *v = op->results.data[0];
        Nv90Pipe p = {.ring = v, .tile = tile_shared(cg->p, cg->k, v)};
        p.data = cg_gpu(cg)->offset[v->id];
        p.readers = readers_of(cg->k, v);
        p.giver = giver_of(cg->k, v);
        p.leader = -1, p.bytes = p.tile.bytes;
        const TileOp *copies = copied_by_threads(cg, v);
        p.by_threads = copies != NULL;
        p.boxes = copies && nv90_box_rows(cg, copies) > 0;
        h->all_produce |= p.by_threads;
        assert(v->rank == 1 || p.giver || (p.tile.rows % 8 == 0 && dtype_half(v->dtype)));
        VEC_PUSH(cg->arena, &h->pipes, p);
    }
    find_leaders(cg);
}

static void place_barriers(Cg *cg, int at) {
    Nv90 *h = nv90_state(cg);
    for (int i = 0; i < h->pipes.n; i++) {
        Nv90Pipe *p = &h->pipes.data[i];
        p->full = at;
        p->empty = at + 8 * p->ring->stages;
        at += 16 * p->ring->stages;
    }
    h->done = at;
    h->nobody = at + 8;
    h->over = at + 16;
    h->told = at + 24;
    h->heard = h->told + 8 * HOME_AHEAD;
    h->asked = h->heard + 8 * HOME_AHEAD;
    h->answers = h->asked + (h->blocks > 1 ? 8 * HOME_ANSWERS : 0);
    at = h->answers + (h->blocks > 1 ? 4 * HOME_ANSWERS : 0);
    for (int i = 0; i < h->pipes.n; i++) {
        Nv90Pipe *p = &h->pipes.data[i];
        if (!tile_tells_ends(cg->p, cg->k, p->ring)) continue;
        p->ends = at;
        at += 4 * p->ring->stages;
    }
    h->numbers = (at + 15) & ~15;
    h->notes = h->numbers + 16 * HOME_AHEAD;
}

// ---- arguments

static void add_map(Cg *cg, int tensor, const int *box, bool panels, int ends) {
    Nv90 *h = nv90_state(cg);
    CgMap m = {.tensor = tensor, .swizzle = panels ? 3 : 0, .ends = ends};
    memcpy(m.box, box, sizeof m.box);
    for (int i = 0; i < cg->maps.n; i++)
        if (!memcmp(&cg->maps.data[i], &m, sizeof m)) return;
    Nv90Map own = {tensor, 0};
    for (int d = 0; d < cg->p->tensors.data[tensor].rank - 1; d++)
        if (box[d] > 1 || own.rows == 0) own.rows = box[d];
    CgArg arg = {CG_ARG_TENSOR_MAP, cg->maps.n, 0};
    VEC_PUSH(cg->arena, &cg->args, arg);
    VEC_PUSH(cg->arena, &cg->maps, m);
    VEC_PUSH(cg->arena, &h->maps, own);
}

// Of rows in pages: those that follow each other.
static int box_along(const Cg *cg, const TileOp *op, int dim, int rows) {
    return !op->each[dim] || cg_element_run(cg, op, op->coord[dim].axis).dim == dim ? rows : 1;
}

static void add_maps(Cg *cg) {
    const TileBlock *body = &cg->k->body;
    for (const TileOp *op = tile_next(body, NULL); op; op = tile_next(body, op)) {
        bool fill = op->kind == TILE_FILL,
             through = op->kind == TILE_STORE && op->args.n > 1 && !op->add;
        bool boxes = tile_fills_by_threads(cg->p, cg->k, op);
        if ((!fill && !through) || (boxes && !nv90_box_rows(cg, op))) continue;
        TileShared t = tile_shared(cg->p, cg->k, op->args.data[0]);
        bool panels = op->args.data[0]->rank == 2,
             bands = fill && tile_in_bands(cg->k, op->args.data[0]);
        int box[CG_MAP_RANK] = {0}, ends = boxes || bands ? 0 : nv90_ends(cg, op);
        const TileTensor *tensor = &cg->p->tensors.data[op->tensor];
        assert(tensor->rank + (ends ? ABI_ENDS_RANK : bands && t.cols > HOME_PANEL) <= CG_MAP_RANK);
        for (int d = 0; d < tensor->rank; d++) {
            int axis = op->coord[d].axis;
            box[d] = axis < 0 ? 1
                     : axis == t.col_axis
                         ? !panels || (bands && t.cols > HOME_PANEL) ? t.cols : HOME_PANEL
                     : through ? 16
                     : bands   ? box_along(cg, op, d, HOME_ROWS)
                     : boxes   ? box_along(cg, op, d, nv90_box_rows(cg, op))
                               : nv90_copied_rows(cg, &t);
        }
        add_map(cg, op->tensor, box, panels, ends);
    }
}

// Where the runtime finds zeros for counters: one for each of 256 streams, and for each launch that is
// captured into a graph.
static void words(Cg *cg) {
    enum { WORDS = 16384, GLOBAL = 1 };
    if (LLVMGetNamedGlobal(cg->m, ABI_WORDS)) return;
    Ty type = LLVMArrayType2(cg->i32, WORDS);
    Val g = LLVMAddGlobalInAddressSpace(cg->m, type, ABI_WORDS, GLOBAL);
    LLVMSetInitializer(g, LLVMConstNull(type));
    LLVMSetAlignment(g, 4);
}

void nv90_prepare(Cg *cg, int barriers) {
    NvState *s = nv_state(cg);
    Nv90 *h = s->roles = ARENA_NEW(cg->arena, Nv90);
    h->blocks = nv_blocks(cg->k);
    assert(h->blocks <= NV90_CLUSTER);
    cg->launch.cluster = h->blocks;
    for (const TileOp *op = cg->k->body.first; op; op = op->next)
        if (op->kind == TILE_ROLE) h->warpgroups += op->warpgroups;
    find_pipes(cg);
    place_barriers(cg, barriers);
    cg->launch.threads = h->warpgroups * NV90_GROUP;
    cg->launch.persistent = cg->k->schedule.persist != PERSIST_NONE;
    h->stage = ARENA_ARRAY(cg->arena, Val, cg->k->nvalues + 1);
    h->rows = ARENA_ARRAY(cg->arena, Val, cg->k->nvalues + 1);
    add_maps(cg);
    CgArg counter = {CG_ARG_COUNTER, 0, 0};
    if (cg->k->schedule.persist != PERSIST_DYNAMIC) return;
    VEC_PUSH(cg->arena, &cg->args, counter);
    words(cg);
}

// ---- the beginning

// Stages of tensors that have no elements are read all the same, and then must hold numbers.
static void clear_pipes(Cg *cg) {
    const Nv90 *h = nv90_state(cg);
    const Nv90Pipe *last = &h->pipes.data[h->pipes.n - 1];
    int end = last->data + last->tile.bytes * last->ring->stages, step = 16 * cg->launch.threads;
    Val tid = nv_state(cg)->gpu.tid, four = LLVMConstNull(cg_vector(cg->i32, 4));
    CgTurns t = cg_turns(cg, cg_times(cg, tid, 16), NULL, 0);
    Val p = nv_shared_ptr(cg, cg_add(cg, nv90_shared(cg, 0), t.i));
    LLVMSetAlignment(cg_store(cg, four, p), 16);
    Val next = cg_plus(cg, t.i, step);
    cg_end_turns(cg, &t, next, cg_below(cg, next, end), NULL);
    nv90_proxy_fence(cg);
}

static void clear_for_empty(Cg *cg) {
    Val all = LLVMConstInt(cg->i1, 1, false);
    const Nv90 *h = nv90_state(cg);
    for (int i = 0; i < h->maps.n; i++) {
        const TileTensor *t = &cg->p->tensors.data[h->maps.data[i].tensor];
        if (tensor_traits(t->role)->side == SIDE_KEYS)
            all = cg_and(cg, all, nv90_has_elements(cg, t));
    }
    Blk clear = cg_block(cg, "empty"), on = cg_block(cg, "full");
    cg_fork(cg, all, on, clear);
    cg_at(cg, clear);
    clear_pipes(cg);
    cg_enter(cg, on);
}

static void init_ring(Cg *cg, int barriers, int stages, int count) {
    for (int i = 0; i < stages; i++)
        nv90_barrier_init(cg, nv90_shared(cg, barriers + 8 * i), count);
}

static int listeners(Cg *cg) { // threads that read a tile's number
    int n = 0;
    bool all = nv90_state(cg)->all_produce;
    for (const TileOp *op = cg->k->body.first; op; op = op->next)
        if (op->kind == TILE_ROLE && (all || strcmp(op->role, "producer")))
            n += NV90_GROUP * op->warpgroups;
    return n;
}

static void init_barriers(Cg *cg) {
    Nv90 *h = nv90_state(cg);
    for (int i = 0; i < h->pipes.n; i++) {
        const Nv90Pipe *p = &h->pipes.data[i];
        if (p->leader >= 0) continue;
        int each = p->giver ? NV90_GROUP : 1; // every thread arrives
        int fillers = p->giver ? each * p->giver->warpgroups : p->by_threads ? NV90_GROUP : 1;
        init_ring(cg, p->full, p->ring->stages, fillers);
        int blocks = nv90_goes_everywhere(cg, &p->tile) ? h->blocks : each;
        init_ring(cg, p->empty, p->ring->stages, p->readers * blocks);
    }
    init_ring(cg, h->done, 1, 1);
    init_ring(cg, h->nobody, 1, 1);
    init_ring(cg, h->over, 1, 1);
    init_ring(cg, h->told, HOME_AHEAD, 1);
    init_ring(cg, h->heard, HOME_AHEAD, listeners(cg));
    if (h->blocks > 1) init_ring(cg, h->asked, HOME_ANSWERS, 1);
    nv90_barrier_fence(cg);
}

void nv90_enter(Cg *cg) {
    NvState *s = nv_state(cg);
    Blk init = cg_block(cg, "barriers"), done = cg_block(cg, "ready");
    s->warp = nv_shuffle_from(cg, s->warp, cg_i32(cg, 0)); // so that it is seen to be uniform
    cg_branch(cg, cg_is(cg, s->gpu.tid, 0), init, done);
    for (int slot = 0; slot < cg->args.n; slot++)
        if (cg->args.data[slot].kind == CG_ARG_TENSOR_MAP)
            nv90_prefetch_map(cg, LLVMGetParam(cg->fn, (unsigned)slot));
    init_barriers(cg);
    cg_enter(cg, done);
    clear_for_empty(cg);
    if (s->roles->blocks == 1) {
        cg_intrinsic(cg, "llvm.nvvm.barrier0", NULL, 0, NULL, 0);
        return;
    }
    nv90_cluster_sync(cg);
    s->roles->rank = nv_special(cg, "cluster.ctarank");
}
