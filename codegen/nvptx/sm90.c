// sm90.c: kernels with roles: where their pipes and barriers lie, how a block splits into roles,
// and the operations that hand tiles from one to the other.
//
// In: a scheduled kernel whose body ends with roles. Out: its frame and those operations. A pipe is
// a ring of stages with two barriers each: `full`, completed by the bytes of a copy, and `empty`,
// by an arrival of every warpgroup that reads. Whoever waits counts stages and parities for itself,
// in variables that mem2reg makes registers. The roles' warpgroups come in the order of the text.
#include "codegen/nvptx/sm90.h"
#include "runtime/abi.h"

#include <assert.h>
#include <string.h>

bool nv90_has_roles(const TileKernel *k) {
    for (const TileOp *op = k->body.first; op; op = op->next)
        if (op->kind == TILE_ROLE) return true;
    return false;
}

Val nv90_shared(Cg *cg, int offset) {
    return LLVMBuildAdd(cg->b, nv_state(cg)->shared, cg_i32(cg, offset), "");
}

Nv90Pipe *nv90_pipe(Cg *cg, const TileValue *v) {
    Nv90 *h = nv90_state(cg);
    const TileValue *ring = v->def->kind == TILE_PIPE ? v : tile_pipe_of(v);
    for (int i = 0; i < h->pipes.n; i++)
        if (h->pipes.data[i].ring == ring) return &h->pipes.data[i];
    assert(!"a pipe of the kernel");
    return NULL;
}

static Val plus(Cg *cg, Val a, int b) { return LLVMBuildAdd(cg->b, a, cg_i32(cg, b), ""); }
static Val times(Cg *cg, Val a, int b) { return LLVMBuildMul(cg->b, a, cg_i32(cg, b), ""); }

// ---- shared memory: buffers of panels first, which want to be aligned to 1024 bytes

static int readers_of(const TileKernel *k, const TileValue *ring) {
    int n = 0;
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        if (op->kind != TILE_TAKE || op->args.data[0] != ring) continue;
        n = tile_role_of(op)->warpgroups;
    }
    assert(n > 0 && "somebody takes from a pipe");
    return n;
}

static int place_pipes(Cg *cg, int at) {
    Nv90 *h = nv90_state(cg);
    for (const TileOp *op = cg->k->body.first; op; op = op->next) {
        if (op->kind != TILE_PIPE) continue;
        const TileValue *v = op->results.data[0];
        Nv90Pipe p = {.ring = v, .tile = nv_tile(cg->k, v), .data = at};
        p.readers = readers_of(cg->k, v);
        VEC_PUSH(cg->arena, &h->pipes, p);
        at += p.tile.bytes * v->stages;
    }
    return at;
}

static int place_buffers(Cg *cg, int at, bool panels) {
    NvState *s = nv_state(cg);
    int weights = -1, bytes = 0;
    const TileBlock *body = &cg->k->body;
    for (const TileOp *op = tile_next(body, NULL); op; op = tile_next(body, op)) {
        if (op->kind != TILE_ALLOC && op->kind != TILE_MAP) continue;
        for (int i = 0; i < op->results.n; i++) {
            const TileValue *v = op->results.data[i];
            if (v->home != HOME_SHARED || nv_tile(cg->k, v).panels != panels) continue;
            bool matrix = op->kind == TILE_MAP && v->rank == 2; // one place for all
            assert((!matrix || !bytes || bytes == nv_tile(cg->k, v).bytes) &&
                   "weights of one size");
            s->offset[v->id] = matrix && weights >= 0 ? weights : at;
            if (matrix && weights >= 0) continue;
            if (matrix) weights = at, bytes = nv_tile(cg->k, v).bytes;
            at += nv_tile(cg->k, v).bytes * (v->stages > 1 ? v->stages : 1);
        }
    }
    return at;
}

static int place_barriers(Nv90 *h, int at) {
    for (int i = 0; i < h->pipes.n; i++) {
        Nv90Pipe *p = &h->pipes.data[i];
        p->full = at;
        p->empty = at + 8 * p->ring->stages;
        at += 16 * p->ring->stages;
    }
    h->done = at;
    h->nobody = at + 8;
    h->told = at + 16;
    h->heard = h->told + 8 * NV90_AHEAD;
    h->asked = h->heard + 8 * NV90_AHEAD;
    h->answers = h->asked + (h->blocks > 1 ? 8 * NV90_ANSWERS : 0);
    h->numbers = (h->answers + (h->blocks > 1 ? 4 * NV90_ANSWERS : 0) + 15) & ~15;
    return h->numbers + 16 * NV90_AHEAD;
}

// ---- arguments

static void add_map(Cg *cg, int tensor, const int *box) {
    Nv90 *h = nv90_state(cg);
    CgMap m = {.tensor = tensor, .swizzle = 3};
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

// What has no rows of the grid's is copied to all blocks of a cluster, each of which copies a part.
static bool goes_everywhere(Cg *cg, const NvTile *t) {
    return nv90_state(cg)->blocks > 1 && t->row_axis != nv_state(cg)->row_axis;
}

static int copied_rows(Cg *cg, const NvTile *t) {
    return goes_everywhere(cg, t) ? t->rows / nv90_state(cg)->blocks : t->rows;
}

static void add_maps(Cg *cg) {
    const TileBlock *body = &cg->k->body;
    for (const TileOp *op = tile_next(body, NULL); op; op = tile_next(body, op)) {
        bool fill = op->kind == TILE_FILL, through = op->kind == TILE_STORE && op->args.n > 1;
        if (!fill && !through) continue;
        NvTile t = nv_tile(cg->k, op->args.data[0]);
        int box[CG_MAP_RANK] = {0};
        const TileTensor *tensor = &cg->p->tensors.data[op->tensor];
        assert(tensor->rank <= CG_MAP_RANK);
        for (int d = 0; d < tensor->rank; d++) {
            int axis = op->coord[d].axis;
            box[d] = axis < 0             ? 1
                     : axis == t.col_axis ? NV90_PANEL
                     : through            ? 16
                                          : copied_rows(cg, &t);
        }
        add_map(cg, op->tensor, box);
    }
}

Val nv90_map_param(Cg *cg, int tensor, int rows) {
    Nv90 *h = nv90_state(cg);
    for (int i = 0; i < h->maps.n; i++) {
        if (h->maps.data[i].tensor != tensor || h->maps.data[i].rows != rows) continue;
        for (int slot = 0; slot < cg->args.n; slot++)
            if (cg->args.data[slot].kind == CG_ARG_TENSOR_MAP && cg->args.data[slot].index == i)
                return LLVMGetParam(cg->fn, (unsigned)slot);
    }
    assert(!"a map that was added");
    return NULL;
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

void nv90_prepare(Cg *cg) {
    NvState *s = nv_state(cg);
    Nv90 *h = s->roles = ARENA_NEW(cg->arena, Nv90);
    h->blocks = nv_blocks(cg->k);
    assert(h->blocks <= NV90_CLUSTER);
    cg->launch.cluster = h->blocks;
    for (const TileOp *op = cg->k->body.first; op; op = op->next)
        if (op->kind == TILE_ROLE) h->warpgroups += op->warpgroups;
    for (int i = 0; i < cg->k->nvalues; i++) s->offset[i] = -1;
    int at = place_buffers(cg, place_pipes(cg, 0), true);
    at = nv_place_strips(cg->k, place_buffers(cg, at, false), s->offset);
    at = (at + 7) & ~7;
    cg->launch.shared = place_barriers(h, at);
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

static Val has_elements(Cg *cg, const TileTensor *t) {
    Val all = LLVMConstInt(cg->i1, 1, false);
    for (int d = 0; d < t->rank; d++) {
        Val n = cg_uniform(cg, t->extent[d]);
        Val some = LLVMBuildICmp(cg->b, LLVMIntSGT, n, cg_i32(cg, 0), "");
        all = LLVMBuildAnd(cg->b, all, some, "");
    }
    return all;
}

// Stages of tensors that have no elements are read all the same, and then must hold numbers.
static void clear_pipes(Cg *cg) {
    const Nv90 *h = nv90_state(cg);
    const Nv90Pipe *last = &h->pipes.data[h->pipes.n - 1];
    int end = last->data + last->tile.bytes * last->ring->stages, step = 16 * cg->launch.threads;
    Val tid = nv_state(cg)->tid, four = LLVMConstNull(cg_vector(cg->i32, 4));
    Val first = LLVMBuildMul(cg->b, tid, cg_i32(cg, 16), "");
    Blk from = LLVMGetInsertBlock(cg->b), loop = cg_block(cg, "clear"),
        done = cg_block(cg, "clean");
    LLVMBuildBr(cg->b, loop);
    LLVMPositionBuilderAtEnd(cg->b, loop);
    Val at = LLVMBuildPhi(cg->b, cg->i32, "");
    Val p = nv_shared_ptr(cg, LLVMBuildAdd(cg->b, nv90_shared(cg, 0), at, ""));
    LLVMSetAlignment(LLVMBuildStore(cg->b, four, p), 16);
    Val next = LLVMBuildAdd(cg->b, at, cg_i32(cg, step), "");
    LLVMAddIncoming(at, (Val[]){first, next}, (Blk[]){from, loop}, 2);
    Val more = LLVMBuildICmp(cg->b, LLVMIntSLT, next, cg_i32(cg, end), "");
    LLVMBuildCondBr(cg->b, more, loop, done);
    LLVMPositionBuilderAtEnd(cg->b, done);
    nv90_proxy_fence(cg);
}

static void clear_for_empty(Cg *cg) {
    Val all = LLVMConstInt(cg->i1, 1, false);
    const Nv90 *h = nv90_state(cg);
    for (int i = 0; i < h->maps.n; i++) {
        const TileTensor *t = &cg->p->tensors.data[h->maps.data[i].tensor];
        if (tensor_traits(t->role)->side == SIDE_KEYS)
            all = LLVMBuildAnd(cg->b, all, has_elements(cg, t), "");
    }
    Blk clear = cg_block(cg, "empty"), on = cg_block(cg, "full");
    LLVMBuildCondBr(cg->b, all, on, clear);
    LLVMPositionBuilderAtEnd(cg->b, clear);
    clear_pipes(cg);
    LLVMBuildBr(cg->b, on);
    LLVMPositionBuilderAtEnd(cg->b, on);
}

static void init_ring(Cg *cg, int barriers, int stages, int count) {
    for (int i = 0; i < stages; i++)
        nv90_barrier_init(cg, nv90_shared(cg, barriers + 8 * i), count);
}

static int listeners(const TileKernel *k) { // threads that read a tile's number
    int n = 0;
    for (const TileOp *op = k->body.first; op; op = op->next)
        if (op->kind == TILE_ROLE && strcmp(op->role, "producer")) n += NV90_GROUP * op->warpgroups;
    return n;
}

static void init_barriers(Cg *cg) {
    Nv90 *h = nv90_state(cg);
    for (int i = 0; i < h->pipes.n; i++) {
        const Nv90Pipe *p = &h->pipes.data[i];
        init_ring(cg, p->full, p->ring->stages, 1);
        int blocks = goes_everywhere(cg, &p->tile) ? h->blocks : 1;
        init_ring(cg, p->empty, p->ring->stages, p->readers * blocks);
    }
    init_ring(cg, h->done, 1, 1);
    init_ring(cg, h->nobody, 1, 1);
    init_ring(cg, h->told, NV90_AHEAD, 1);
    init_ring(cg, h->heard, NV90_AHEAD, listeners(cg->k));
    if (h->blocks > 1) init_ring(cg, h->asked, NV90_ANSWERS, 1);
    nv90_barrier_fence(cg);
}

void nv90_enter(Cg *cg) {
    NvState *s = nv_state(cg);
    Blk init = cg_block(cg, "barriers"), done = cg_block(cg, "ready");
    s->warp = nv_shuffle_from(cg, s->warp, cg_i32(cg, 0)); // so that it is seen to be uniform
    Val first = LLVMBuildICmp(cg->b, LLVMIntEQ, s->tid, cg_i32(cg, 0), "");
    LLVMBuildCondBr(cg->b, first, init, done);
    LLVMPositionBuilderAtEnd(cg->b, init);
    for (int slot = 0; slot < cg->args.n; slot++)
        if (cg->args.data[slot].kind == CG_ARG_TENSOR_MAP)
            nv90_prefetch_map(cg, LLVMGetParam(cg->fn, (unsigned)slot));
    init_barriers(cg);
    LLVMBuildBr(cg->b, done);
    LLVMPositionBuilderAtEnd(cg->b, done);
    clear_for_empty(cg);
    if (s->roles->blocks == 1) {
        cg_intrinsic(cg, "llvm.nvvm.barrier0", NULL, 0, NULL, 0);
        return;
    }
    nv90_cluster_sync(cg);
    s->roles->rank = nv_special(cg, "cluster.ctarank");
}

// ---- roles

static bool is_producer(const TileOp *role) { return !strcmp(role->role, "producer"); }

// A role's variables: every pipe is followed from its beginning.
static void begin_variables(Cg *cg) {
    Nv90 *h = nv90_state(cg);
    Val zero = cg_i32(cg, 0);
    for (int i = 0; i < h->pipes.n; i++) {
        Nv90Pipe *p = &h->pipes.data[i];
        p->stage = cg_alloca(cg, cg->i32, "stage");
        p->parity = cg_alloca(cg, cg->i32, "parity");
        p->last = cg_alloca(cg, cg->i32, "last");
        p->place = nv90_place(cg, nv90_shared(cg, p->data));
        LLVMBuildStore(cg->b, zero, p->stage);
        LLVMBuildStore(cg->b, zero, p->last);
        LLVMBuildStore(cg->b, cg_i32(cg, is_producer(h->role)), p->parity);
    }
    h->flight.n = h->wide.n = 0;
    nv90_tiles_begin(cg);
}

static bool takes_turns(const TileOp *role) {
    for (const TileOp *op = tile_next(&role->body, NULL); op; op = tile_next(&role->body, op))
        if (op->kind == TILE_TURN) return true;
    return false;
}

// Named barriers: 0 is the block's; one for the turn of each warpgroup; one for each role.
static int turn_barrier(const Nv90 *h) { return 1 + h->first_group; }
static int role_barrier(const Nv90 *h) { return 1 + h->warpgroups + h->first_group; }

// The first warpgroup has the first turn.
static void first_turn(Cg *cg) {
    Nv90 *h = nv90_state(cg);
    Blk pass = cg_block(cg, "turn"), on = cg_block(cg, "role");
    Val last = cg_i32(cg, h->role->warpgroups - 1);
    LLVMBuildCondBr(cg->b, LLVMBuildICmp(cg->b, LLVMIntEQ, h->group, last, ""), pass, on);
    LLVMPositionBuilderAtEnd(cg->b, pass);
    nv90_bar_arrive(cg, cg_i32(cg, turn_barrier(h)), 2 * NV90_GROUP);
    LLVMBuildBr(cg->b, on);
    LLVMPositionBuilderAtEnd(cg->b, on);
}

static void turn(Cg *cg, const TileOp *op) {
    Nv90 *h = nv90_state(cg);
    int n = h->role->warpgroups;
    if (n == 1) return;
    if (!op->pass) {
        nv90_bar_sync(cg, plus(cg, h->group, turn_barrier(h)), 2 * NV90_GROUP);
        return;
    }
    Val wraps = LLVMBuildICmp(cg->b, LLVMIntEQ, h->group, cg_i32(cg, n - 1), "");
    Val next = LLVMBuildSelect(cg->b, wraps, cg_i32(cg, 0), plus(cg, h->group, 1), "");
    nv90_bar_arrive(cg, plus(cg, next, turn_barrier(h)), 2 * NV90_GROUP);
}

// One thread of the producer's warps runs; the others are done.
static void only_one(Cg *cg, Val group_warp) {
    Blk first = cg_block(cg, "warp"), one = cg_block(cg, "one"), exit = cg_block(cg, "idle");
    Val is = LLVMBuildICmp(cg->b, LLVMIntEQ, group_warp, cg_i32(cg, 0), "");
    LLVMBuildCondBr(cg->b, is, first, exit);
    LLVMPositionBuilderAtEnd(cg->b, first);
    LLVMBuildCondBr(cg->b, nv90_elect(cg), one, exit);
    LLVMPositionBuilderAtEnd(cg->b, exit);
    LLVMBuildRetVoid(cg->b);
    LLVMPositionBuilderAtEnd(cg->b, one);
}

static int even_share(const Cg *cg) { // of the registers, when a block's roles do not say
    return 65536 / cg->launch.threads & ~7;
}

// The threads' numbers within the role: rows of a tile are spread over its warps.
static void role_threads(Cg *cg, const TileOp *op) {
    NvState *s = nv_state(cg);
    Nv90 *h = s->roles;
    s->warps = 4 * op->warpgroups;
    s->tid = LLVMBuildSub(cg->b, s->tid, cg_i32(cg, h->first_group * NV90_GROUP), "");
    s->warp = LLVMBuildSub(cg->b, s->warp, cg_i32(cg, 4 * h->first_group), "");
    h->group = LLVMBuildLShr(cg->b, s->warp, cg_i32(cg, 2), "");
    Val in_group = LLVMBuildAnd(cg->b, s->tid, cg_i32(cg, NV90_GROUP - 1), "");
    h->lead = LLVMBuildICmp(cg->b, LLVMIntEQ, in_group, cg_i32(cg, 0), "");
    cg_place_thread(cg, s->lane, s->warp, false);
}

static void role(Cg *cg, const TileOp *op) {
    NvState *s = nv_state(cg), outer = *s;
    Nv90 *h = s->roles;
    Blk mine = cg_block(cg, op->role), others = cg_block(cg, "others");
    Val until = cg_i32(cg, 4 * (h->first_group + op->warpgroups));
    LLVMBuildCondBr(cg->b, LLVMBuildICmp(cg->b, LLVMIntULT, s->warp, until, ""), mine, others);
    LLVMPositionBuilderAtEnd(cg->b, mine);
    h->role = op;
    if (op->registers) nv90_set_registers(cg, op->registers, op->registers > even_share(cg));
    role_threads(cg, op);
    if (is_producer(op)) only_one(cg, s->warp);
    if (op->warpgroups > 1 && takes_turns(op)) first_turn(cg);
    begin_variables(cg);
    cg_lower_block(cg, &op->body, NULL);
    if (!is_producer(op)) nv90_stores_end(cg);
    if (h->blocks > 1) nv90_cluster_sync(cg); // nobody tells or copies to a block that is gone
    LLVMBuildRetVoid(cg->b);
    *s = outer;
    h->first_group += op->warpgroups;
    h->role = NULL;
    LLVMMoveBasicBlockAfter(others, LLVMGetInsertBlock(cg->b));
    LLVMPositionBuilderAtEnd(cg->b, others);
}

// ---- pipes

static Val get(Cg *cg, Val variable) { return LLVMBuildLoad2(cg->b, cg->i32, variable, ""); }

static Val barrier_at(Cg *cg, int ring, Val stage) {
    return LLVMBuildAdd(cg->b, nv90_shared(cg, ring), times(cg, stage, 8), "");
}

static Val stage_of(Cg *cg, const Nv90Pipe *p, Val variable) {
    return p->ring->stages == 1 ? cg_i32(cg, 0) : get(cg, variable);
}

// The stage after this one, and whether the ring begins again (i32), which turns the parity.
static Val next_stage(Cg *cg, const Nv90Pipe *p, Val stage, Val *turns) {
    int n = p->ring->stages;
    *turns = n == 1 ? cg_i32(cg, 1) : stage;
    if (n == 1) return stage;
    if (n == 2) return LLVMBuildXor(cg->b, stage, cg_i32(cg, 1), "");
    Val next = plus(cg, stage, 1), wraps = LLVMBuildICmp(cg->b, LLVMIntEQ, next, cg_i32(cg, n), "");
    *turns = nv90_if(cg, wraps);
    return LLVMBuildSelect(cg->b, wraps, cg_i32(cg, 0), next, "");
}

static void advance(Cg *cg, const Nv90Pipe *p, Val when) { // when: i1 or NULL
    Val stage = stage_of(cg, p, p->stage), parity = get(cg, p->parity), turns;
    Val next = next_stage(cg, p, stage, &turns);
    Val turned = LLVMBuildXor(cg->b, parity, turns, "");
    if (when) {
        next = LLVMBuildSelect(cg->b, when, next, stage, "");
        turned = LLVMBuildSelect(cg->b, when, turned, parity, "");
    }
    LLVMBuildStore(cg->b, next, p->stage);
    LLVMBuildStore(cg->b, turned, p->parity);
}

static Val stage_address(Cg *cg, const Nv90Pipe *p, Val stage) {
    return LLVMBuildAdd(cg->b, nv90_shared(cg, p->data), times(cg, stage, p->tile.bytes), "");
}

typedef struct Copy { // of a tile, all that it takes
    Val to, full, at[CG_MAP_RANK], map;
    Val column; // i32: the tile's first
    Val there;  // i1: the tensor has elements; NULL: it has
    int rank;
    bool everywhere; // each block of the cluster copies a part, to all
} Copy;

static Copy copy_of(Cg *cg, const TileOp *op, const Nv90Pipe *p, Val stage) {
    const TileTensor *t = &cg->p->tensors.data[op->tensor];
    Val rank = nv90_state(cg)->rank;
    int rows = copied_rows(cg, &p->tile);
    Copy c = {.to = stage_address(cg, p, stage), .full = barrier_at(cg, p->full, stage)};
    c.rank = t->rank;
    c.everywhere = goes_everywhere(cg, &p->tile);
    if (c.everywhere) c.to = LLVMBuildAdd(cg->b, c.to, times(cg, rank, rows * NV90_PITCH), "");
    for (int d = 0; d < t->rank; d++) {
        int axis = op->coord[d].axis;
        c.at[d] = cg_uniform(cg, op->coord[d].at);
        if (axis < 0 || axis == p->tile.col_axis) continue;
        c.at[d] = times(cg, c.at[d], cg->k->axes[axis].extent);
        if (c.everywhere) c.at[d] = LLVMBuildAdd(cg->b, c.at[d], times(cg, rank, rows), "");
    }
    assert(op->coord[t->rank - 1].axis == p->tile.col_axis);
    c.column = times(cg, c.at[t->rank - 1], p->tile.cols);
    c.map = nv90_map_param(cg, op->tensor, rows);
    const TileOp *loop = op->block->owner; // over tiles: there are elements
    if (t->role != TENSOR_Q && loop->kind != TILE_LOOP) c.there = has_elements(cg, t);
    return c;
}

// Nothing is copied of an empty tensor, whose map says nothing; its stages are zeros from the start.
static void start_copy(Cg *cg, const Nv90Pipe *p, Copy *c) {
    Val bytes = cg_i32(cg, p->tile.bytes);
    if (c->there) bytes = LLVMBuildSelect(cg->b, c->there, bytes, cg_i32(cg, 0), "");
    nv90_barrier_expect(cg, c->full, bytes);
    for (int i = 0; i * NV90_PANEL < p->tile.cols; i++) {
        c->at[c->rank - 1] = plus(cg, c->column, i * NV90_PANEL);
        Val to = plus(cg, c->to, i * p->tile.rows * NV90_PITCH);
        nv90_bulk_load(cg, to, c->map, c->full, c->at, c->rank, c->there, c->everywhere);
    }
}

static Blk begin_if(Cg *cg, const Ex *when) {
    if (!when) return NULL;
    Blk work = cg_block(cg, "when"), done = cg_block(cg, "when.done");
    LLVMBuildCondBr(cg->b, cg_uniform(cg, when), work, done);
    LLVMPositionBuilderAtEnd(cg->b, work);
    return done;
}

static void end_if(Cg *cg, Blk done) {
    if (!done) return;
    LLVMBuildBr(cg->b, done);
    LLVMPositionBuilderAtEnd(cg->b, done);
}

// Everything is there when the stage is free: from then on the consumers wait for the copy.
static void fill(Cg *cg, const TileOp *op) {
    const Nv90Pipe *p = nv90_pipe(cg, op->args.data[0]);
    Blk done = begin_if(cg, op->when);
    Val stage = stage_of(cg, p, p->stage);
    Copy c = copy_of(cg, op, p, stage);
    nv90_barrier_wait(cg, barrier_at(cg, p->empty, stage), get(cg, p->parity));
    start_copy(cg, p, &c);
    advance(cg, p, NULL);
    end_if(cg, done);
}

static void bind_view(Cg *cg, const TileValue *v, const Nv90Pipe *p, Val stage) {
    nv90_state(cg)->stage[v->id] = stage;
    cg->value[v->id] = (CgValue){.mem = stage_address(cg, p, stage)};
    bool rows = p->tile.row_axis == nv_state(cg)->row_axis;
    nv90_state(cg)->rows[v->id] = rows ? nv90_left(cg, v) : NULL;
}

// Where `when` is false the wait is for a barrier that is always complete: a branch would let no
// product be in flight across it.
static void take(Cg *cg, const TileOp *op) {
    const Nv90 *h = nv90_state(cg);
    const Nv90Pipe *p = nv90_pipe(cg, op->args.data[0]);
    Val stage = stage_of(cg, p, p->stage), parity = get(cg, p->parity);
    Val full = barrier_at(cg, p->full, stage), when = op->when ? cg_uniform(cg, op->when) : NULL;
    if (when) {
        full = LLVMBuildSelect(cg->b, when, full, nv90_shared(cg, h->done), "");
        parity = LLVMBuildSelect(cg->b, when, parity, cg_i32(cg, 1), "");
    }
    nv90_barrier_wait(cg, full, parity);
    LLVMBuildStore(cg->b, stage, p->last);
    advance(cg, p, when);
    bind_view(cg, op->results.data[0], p, stage);
}

static bool read_by_map(const TileKernel *k, const TileValue *v) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; op->kind == TILE_MAP && i < op->args.n; i++)
            if (op->args.data[i] == v) return true;
    return false;
}

void nv90_group_sync(Cg *cg) {
    const Nv90 *h = nv90_state(cg);
    int id = 1 + 2 * h->warpgroups + h->first_group;
    nv90_bar_sync(cg, plus(cg, h->group, id), NV90_GROUP);
}

// Products are of the whole warpgroup; what single threads read has to be waited for. Where `when` is
// false the arrival is at a barrier that nobody waits for: ptxas puts off what has a predicate of its
// own until the weights are done, and the producer waits.
static void drop(Cg *cg, const TileOp *op) {
    const Nv90 *h = nv90_state(cg);
    const TileValue *v = op->args.data[0];
    const Nv90Pipe *p = nv90_pipe(cg, v);
    Val when = h->lead, empty = barrier_at(cg, p->empty, h->stage[v->id]);
    Val yes = op->when ? cg_uniform(cg, op->when) : NULL;
    if (yes && !goes_everywhere(cg, &p->tile))
        empty = LLVMBuildSelect(cg->b, yes, empty, nv90_shared(cg, h->nobody), "");
    else if (yes)
        when = LLVMBuildAnd(cg->b, when, yes, "");
    if (read_by_map(cg->k, v)) nv90_group_sync(cg);
    nv90_barrier_arrive(cg, empty, when);
    if (!goes_everywhere(cg, &p->tile)) return;
    Val other = LLVMBuildXor(cg->b, h->rank, cg_i32(cg, 1), "");
    nv90_remote_arrive(cg, nv90_remote(cg, empty, other), when);
}

// ---- others

static void barrier(Cg *cg) {
    const Nv90 *h = nv90_state(cg);
    nv90_bar_sync(cg, cg_i32(cg, role_barrier(h)), h->role->warpgroups * NV90_GROUP);
}

static void view(Cg *cg, const TileOp *op) {
    const Nv90Pipe *p = nv90_pipe(cg, op->args.data[0]);
    bind_view(cg, op->results.data[0], p, stage_of(cg, p, p->last));
}

static void place(Cg *cg, const TileValue *v) {
    cg->value[v->id].mem = nv90_shared(cg, nv_state(cg)->offset[v->id]);
}

static void store(Cg *cg, const TileOp *op) {
    Blk done = op->behind ? begin_if(cg, op->when) : NULL; // otherwise lower.c has asked
    if (op->args.n > 1)
        nv90_store_through(cg, op);
    else
        nv_store(cg, op);
    end_if(cg, done);
}

static void lower(Cg *cg, const TileOp *op) {
    switch ((int)op->kind) {
    case TILE_PIPE: return;
    case TILE_ALLOC: place(cg, op->results.data[0]); return;
    case TILE_ROLE: role(cg, op); return;
    case TILE_FILL: fill(cg, op); return;
    case TILE_TAKE: take(cg, op); return;
    case TILE_VIEW: view(cg, op); return;
    case TILE_DROP: drop(cg, op); return;
    case TILE_NEXT: nv90_next(cg, op); return;
    case TILE_TILES: nv90_tiles(cg, op); return;
    case TILE_AT: nv90_at(cg, op); return;
    case TILE_MMA: nv90_mma(cg, op); return;
    case TILE_MMA_WAIT: nv90_mma_wait(cg, op->pending); return;
    case TILE_TURN: turn(cg, op); return;
    case TILE_REDO: nv90_redo(cg, op); return;
    case TILE_BARRIER: barrier(cg); return;
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

static void lower_whole(Cg *cg, const TileOp *op) { nv90_with_sums(cg, op, lower); }

void nv90_op(Cg *cg, const TileOp *op) {
    const Nv90 *h = nv90_state(cg);
    for (int i = 0; i < h->early.n; i++)
        if (h->early.data[i] == op) return;
    bool reads = op->kind == TILE_MAP || op->kind == TILE_STORE;
    if (uses_wide(cg, op)) nv90_pack(cg);
    void (*how)(Cg *, const TileOp *) = reads ? lower_whole : lower;
    if (op->behind)
        nv90_behind(cg, op, how);
    else
        how(cg, op);
}
