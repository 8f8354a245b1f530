// map.c: maps, as all GPUs make them (codegen/gpu/map.c), and what is NVIDIA's own of them.
//
// In: a TILE_MAP whose operands are fragments or lie in shared memory. Out: its results, in
// registers (codegen/gpu/gpu.h) or in their shared buffer (readable after the next barrier).
#include "codegen/nvptx/sm90.h"
#include "ir/tile_decayed.h"

#include <assert.h>

static Val read_pair(Cg *cg, CgElem *elem, const Ex *load, Val first, int offset) {
    CgWalk *m = elem->ctx;
    NvMap *own = m->own;
    return nv_read_pair(cg, &own->pairs, m->space.op, load, first, offset);
}

// Sigmoids that are rounded to bf16: two of them are finished together.
static Val map_body(Cg *cg, CgWalk *m, int i) {
    const TileOp *op = m->space.op;
    if (!nv_state(cg)->roles || !tile_is_marked(op, TILE_HALVES)) return NULL;
    if (cg_fragment(cg, op->results.data[i])->each == 1) return NULL;
    return nv_sigmoid_exponential(cg, cg_expr(cg, op->outs.data[i].body->args[0], &m->elem));
}

static void map_pair(Cg *cg, CgWalk *m, int i, Val low, Val high) {
    if (nv_state(cg)->roles)
        nv90_keep_pair(cg, m, i, low, high);
    else
        *cg_walk_register(cg, m, i) = nv_pack(cg, m->space.op->results.data[i]->dtype, low, high);
}

static void prefetch_rows(Cg *cg, CgWalk m) {
    int columns = m.space.columns;
    if (m.space.rows < 0 || columns < 0) return;
    m.elem.ctx = &m;
    for (int i = 0; i < m.space.n; i++) {
        cg_walk_at(&m, i);
        if (!m.space.part[columns]) nv_prefetch_rows(cg, m.space.op, columns, m.elem);
    }
}

// The same for all elements in a chunk without a decay of 0.
static bool is_kept(CgElem *elem, const Ex *e) {
    const CgWalk *m = elem->ctx;
    return tile_asked_zero(m->space.op, e);
}

// ---- numbers that lanes look up for each other

typedef struct Lookup {
    int axis;
    Val at; // i32: the lane's own
} Lookup;

static Val looked_up_at(Cg *cg, CgElem *elem, int axis) {
    const Lookup *l = elem->ctx;
    (void)cg;
    assert(axis == l->axis && "no other axis");
    return l->at;
}

// As many at a time as a warp has lanes; then each lane has those of its layout from the others.
static void look_up(Cg *cg, const TileOp *op) {
    CgWalk m = cg_walk_begin(cg, op, CG_ROW_BY_ROW);
    int axis = op->axes[0], times = cg->k->axes[axis].extent / NV_WARP;
    Val lane = nv_state(cg)->gpu.lane, own = cg_thread_part(cg, m.space.layout, axis);
    Val first = cg_add(cg, cg_tile_begin(cg, axis), lane), *found[NV_WARP];
    assert(times <= (int)(sizeof found / sizeof *found));
    for (int t = 0; t < times; t++) {
        Lookup l = {axis, cg_plus(cg, first, NV_WARP * t)};
        CgElem elem = {.lanes = 1, .pos = looked_up_at, .lane_axis = -1, .copies = 1, .ctx = &l};
        cg_elem_begin(cg, &elem);
        found[t] = ARENA_ARRAY(cg->arena, Val, op->outs.n);
        for (int i = 0; i < op->outs.n; i++)
            found[t][i] = cg_expr(cg, op->outs.data[i].body, &elem);
    }
    for (int i = 0; i < m.space.n; i++) {
        cg_walk_at(&m, i);
        int part = m.space.part[axis];
        Val from = cg_plus(cg, own, part % NV_WARP);
        for (int r = 0; r < op->outs.n; r++)
            *cg_walk_register(cg, &m, r) = nv_shuffle_from(cg, found[part / NV_WARP][r], from);
    }
}

// In roles row by row (marked: column by column); else rows share what is read of a column.
static void make_fragments(Cg *cg, const TileOp *op, bool no_zeros) {
    bool roles = nv_state(cg)->roles, rows = roles && !tile_is_marked(op, TILE_DIAGONALS);
    NvMap own = {0};
    CgWalk m = cg_walk_begin(cg, op, rows ? CG_ROW_BY_ROW : CG_COLUMN_BY_COLUMN);
    m.own = &own;
    m.elem.read = read_pair;
    m.elem.between = nv_between;
    m.elem.holds = no_zeros ? is_kept : NULL;
    if (roles) m.elem.copies = 1;
    prefetch_rows(cg, m);
    bool fetches = roles || tile_by_groups(cg->k) || cg->k->purpose == PURPOSE_ONE_CHUNK;
    if (fetches) nv_fetch_operands(cg, op, m.space.layout);
    if (nv_reads_rows(cg, op)) {
        nv_read_rows(cg, &m);
        return;
    }
    if (roles) nv90_map_walk(cg, &m);
    for (int i = 0; i < m.space.n && !roles; i++) {
        cg_walk_at(&m, i);
        cg_walk_element(cg, &m);
    }
    cg_walk_end(cg, &m);
    if (fetches) nv_forget_operands(cg, op);
}

// Twice where it is so marked: most chunks have no decay of 0.
static void fragment_map(Cg *cg, const TileOp *op) {
    Val no_zeros = tile_is_marked(op, TILE_ZEROS) ? nv_state(cg)->no_zeros : NULL;
    if (!no_zeros) {
        make_fragments(cg, op, false);
        return;
    }
    Val **e = ARENA_ARRAY(cg->arena, Val *, op->results.n);
    Blk some = cg_block(cg, "zeros"), done = cg_block(cg, "done");
    cg_branch(cg, no_zeros, cg_block(cg, "no_zeros"), some);
    make_fragments(cg, op, true);
    for (int i = 0; i < op->results.n; i++) e[i] = cg->value[op->results.data[i]->id].e;
    Blk quick = cg_here(cg);
    LLVMBuildBr(cg->b, done);
    cg_at(cg, some);
    make_fragments(cg, op, false);
    some = cg_here(cg);
    cg_enter(cg, done);
    for (int i = 0; i < op->results.n; i++) {
        CgValue *v = &cg->value[op->results.data[i]->id];
        for (int r = 0; r < v->n; r++) v->e[r] = cg_join(cg, e[i][r], quick, v->e[r], some);
    }
}

// ---- shared memory

static Val shared_place(Cg *cg, const TileValue *v) {
    const NvState *s = nv_state(cg);
    return v ? cg_plus(cg, s->shared, s->gpu.offset[v->id]) : s->shared;
}

// What was stored is read by products of warpgroups behind it. The fence waits for all that the thread has asked of memory.
static void block_barrier(Cg *cg) {
    NvState *s = nv_state(cg);
    if (s->unfenced && tile_by_groups(cg->k)) nv90_proxy_fence(cg);
    s->unfenced = false;
    nv_barrier(cg);
    if (!s->last_zero || s->no_zeros) return;
    Val last = cg_load(cg, cg->f32, cg_shared_pointer(cg, s->last_zero, -1, NULL, NULL));
    s->no_zeros = nv_every(cg, cg_fcmp(cg, LLVMRealOLT, last, cg_f32(cg, 0)));
}

static void prefetch(Cg *cg, Val p) {
    Val at = cg_ptrtoint(cg, p, cg->i64);
    cg_asm(cg, cg->void_, &at, 1, "prefetch.global.L1 [$0];", "l", true);
}

const CgGpuHooks nv_gpu_hooks = {
    .element = nv_element,
    .body = map_body,
    .pair = map_pair,
    .exchange = nv_shuffle,
    .from = nv_shuffle_from,
    .every = nv_every,
    .barrier = block_barrier,
    .place = shared_place,
    .pointer = nv_shared_ptr,
    .offset = nv_tile_offset,
    .add = nv_add,
    .invert = nv_invert,
    .decayed = nv_decayed,
    .dots = nv_dots,
    .prefetch = prefetch,
    .pieces = true,
};

// ---- an accumulator's rescaling

// Some lane's factor is not 1.
static Val any_moved(Cg *cg, const TileOp *op, const TileValue *factor) {
    int layout = tile_common_layout(cg->k, op, op->axes, op->naxes), part[TILE_MAX_AXES] = {0};
    Layout rows = layout_restrict(&cg->k->layouts.data[layout].is, factor->axis, 1);
    Val any = NULL;
    for (int i = 0; i < layout_count(&rows, LAYOUT_REG); i++) {
        part[factor->axis[0]] = layout_part(&rows, LAYOUT_REG, factor->axis[0], i);
        Val x = nv_element(cg, factor, layout, part);
        Val moved = cg_fcmp(cg, LLVMRealUNE, x, cg_f32(cg, 1));
        any = any ? cg_or(cg, any, moved) : moved;
    }
    Val v[] = {cg_i32(cg, -1), any};
    return cg_intrinsic(cg, "llvm.nvvm.vote.any.sync", NULL, 0, v, 2);
}

// Once the rows' maxima have settled the factors are all 1, and the accumulator, which is most of the registers, need not be touched.
static void rescale(Cg *cg, const TileOp *op) {
    const TileValue *factor, *acc = tile_rescaled(op, &factor);
    Val any = any_moved(cg, op, factor);
    Blk before = cg_here(cg), done = cg_if(cg, any, "rescale");
    fragment_map(cg, op);
    Blk work = cg_here(cg);
    cg_enter(cg, done);
    CgValue *value = &cg->value[op->results.data[0]->id];
    for (int i = 0; i < value->n; i++)
        value->e[i] = cg_join(cg, value->e[i], work, cg->value[acc->id].e[i], before);
}

// In roles: each thread's elements as in a fragment, then from there to shared memory. Pairs that
// are only moved stay pairs.
static void through_panels(Cg *cg, const TileOp *op) {
    const TileValue *v = op->results.data[0];
    const Ex *e = op->outs.data[0].body;
    assert(op->results.n == 1);
    bool moves = e->op == EX_SYM && e->sym == SYM_PARAM;
    const TileValue *from = moves ? op->args.data[e->index] : NULL;
    if (from && from->dtype == v->dtype && from->home == HOME_FRAGMENT && from->rank == v->rank)
        cg->value[v->id] = cg->value[from->id];
    else
        fragment_map(cg, op);
    nv90_share(cg, op);
}

void nv_map(Cg *cg, const TileOp *op) {
    if (tile_is_marked(op, TILE_LAZY))
        rescale(cg, op);
    else if (cg_is_spread(op) && !nv_state(cg)->roles) {
        fragment_map(cg, op);
        cg_spread(cg, op);
    } else if (op->results.n && op->results.data[0]->home == HOME_SHARED && nv_state(cg)->roles &&
               op->results.data[0]->rank == 2)
        through_panels(cg, op);
    else if (op->results.n && op->results.data[0]->home == HOME_SHARED)
        cg_cooperative_map(cg, op);
    else if (op->results.n && op->results.data[0]->home == HOME_STRIP)
        nv_strip_map(cg, op);
    else if (tile_is_marked(op, TILE_LANES))
        look_up(cg, op);
    else
        fragment_map(cg, op);
}
