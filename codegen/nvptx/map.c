// map.c: maps: elementwise over fragments, with reductions in the thread and then across the
// quad; and, where the schedule gives a result to shared memory, by all threads together.
//
// In: a TILE_MAP whose operands are fragments or lie in shared memory. Out: its results, in
// registers (codegen/fragment.h) or in their shared buffer (readable after the next barrier).
#include "codegen/nvptx/sm90.h"

#include <assert.h>

typedef struct At { // the current element
    CgSpace space;
    Val **wide; // in roles: by result that is packed its elements, until all are there
    NvPairs pairs;
} At;

// ---- operands and positions

static Val fragment_param(Cg *cg, CgElem *elem, int k) {
    const CgSpace *s = &((const At *)elem->ctx)->space;
    return nv_element(cg, s->op->args.data[k], s->layout, s->part);
}

static Val fragment_pos(Cg *cg, CgElem *elem, int axis) {
    return cg_space_position(cg, &((const At *)elem->ctx)->space, axis);
}

static bool fragment_place(Cg *cg, CgElem *elem, int axis, Val *first, int *offset) {
    const CgSpace *s = &((const At *)elem->ctx)->space;
    if (axis == nv_state(cg)->row_axis) return false;
    Val mine = cg_thread_part(cg, s->layout, axis);
    *first = LLVMBuildAdd(cg->b, cg_tile_begin(cg, axis), mine, "");
    *offset = s->part[axis];
    return true;
}

static Val fragment_read(Cg *cg, CgElem *elem, const Ex *load, Val first, int offset) {
    At *at = elem->ctx;
    return nv_read_pair(cg, &at->pairs, at->space.op, load, first, offset);
}

// ---- fragments

// Which of two in a register.
static int half_of(const CgFragment *f, const int *part) {
    return layout_number(&f->is, LAYOUT_REG, part) % 2;
}

static void set_element(Cg *cg, const TileValue *v, const int *part, Val x, Val *pair) {
    const CgFragment *f = cg_fragment(cg, v);
    Val *to = &cg->value[v->id].e[cg_slot(f, part)];
    if (f->each == 1)
        *to = dtype_half(v->dtype) ? cg_round(cg, x, v->dtype) : x;
    else if (half_of(f, part) == 0)
        *pair = x;
    else
        *to = nv_pack(cg, v->dtype, *pair, x);
}

// Sigmoids that are rounded to bf16: two of them are finished together.
static void sigmoid_element(Cg *cg, CgElem *elem, Val *pair, int half) {
    const At *at = elem->ctx;
    const Ex *e = at->space.op->outs.data[0].body->args[0];
    pair[half] = nv_sigmoid_exponential(cg, cg_expr(cg, e, elem));
    if (half) nv_sigmoids_begin(cg, pair);
}

static void element(Cg *cg, CgElem *elem, Val *pair) {
    At *at = elem->ctx;
    const CgSpace *s = &at->space;
    cg_elem_begin(cg, elem);
    for (int i = 0; i < s->op->outs.n; i++) {
        const TileResult *out = &s->op->outs.data[i];
        const TileValue *v = s->op->results.data[i];
        const CgFragment *f = cg_fragment(cg, v);
        if (cg_is_made(s, i)) continue;
        Val *wide = at->wide && at->wide[i] ? at->wide[i] + 2 * cg_slot(f, s->part) : NULL;
        if (wide && tile_is_marked(s->op, TILE_HALVES)) {
            sigmoid_element(cg, elem, wide, half_of(f, s->part));
            continue;
        }
        Val x = cg_expr(cg, out->body, elem);
        if (out->reduce == EX_CONST && wide) {
            wide[half_of(f, s->part)] = x;
        } else if (out->reduce == EX_CONST) {
            set_element(cg, v, s->part, x, &pair[i]);
        } else {
            Val *acc = &cg->value[v->id].e[cg_slot(f, s->part)];
            *acc = cg_merge(cg, out->reduce, *acc, cg_masked(cg, s, out, x));
        }
    }
}

static void walk(Cg *cg, CgElem *elem) {
    At *at = elem->ctx;
    Val *pair = ARENA_ARRAY(cg->arena, Val, at->space.op->outs.n);
    for (int i = 0; i < at->space.n; i++) {
        cg_space_at(&at->space, i);
        element(cg, elem, pair);
    }
}

static void pack_wide(Cg *cg, const At *at) {
    Nv90 *h = nv90_state(cg);
    const TileOp *op = at->space.op;
    for (int i = 0; i < op->outs.n; i++) {
        const TileValue *v = op->results.data[i];
        Nv90Wide w = {&cg->value[v->id], v->dtype, at->wide[i], tile_is_marked(op, TILE_HALVES)};
        if (w.elements) VEC_PUSH(cg->arena, &h->wide, w);
    }
    if (!h->flight.n) nv90_pack(cg);
}

static void widen_packed(Cg *cg, At *at) {
    const TileOp *op = at->space.op;
    at->wide = ARENA_ARRAY(cg->arena, Val *, op->outs.n);
    for (int i = 0; i < op->outs.n; i++) {
        const TileValue *v = op->results.data[i];
        if (cg_fragment(cg, v)->each == 2)
            at->wide[i] = ARENA_ARRAY(cg->arena, Val, 2 * cg->value[v->id].n);
    }
}

// Elements that do not count are not made (nvptx/sm90_first.c): how many along `axis` are.
static int leave_out(Cg *cg, At *at, int axis) {
    const Nv90 *h = nv90_state(cg);
    const TileOp *op = at->space.op;
    int all = axis < 0 ? 1 : cg->k->axes[axis].extent;
    if (!h->counted || axis != h->counted_axis) return all;
    for (int i = 0; i < op->results.n; i++) {
        const TileValue *v = op->results.data[i];
        CgValue *value = &cg->value[v->id];
        bool made = !tile_has_axis(v, axis);
        for (int e = 0; !made && e < value->n; e++) value->e[e] = LLVMGetUndef(cg->f32);
        for (int e = 0; at->wide[i] && e < 2 * value->n; e++) at->wide[i][e] = cg_f32(cg, 0);
    }
    return h->counted;
}

// Where the scores are needed once more (TILE_REDO) the weights do not take their registers, and the
// assembler would bring them all before the wait: then the rows' operands come from behind it.
static bool keeps_scores(const TileOp *map) {
    for (const TileOp *op = map->next; op; op = op->next)
        if (op->kind == TILE_REDO) return true;
    return false;
}

static bool is_of_rows(Cg *cg, const TileOp *map, int i) {
    const CgValue *v = &cg->value[map->args.data[i]->id];
    return map->args.data[i]->rank == 1 && v->n && LLVMTypeOf(v->e[0]) == cg->f32;
}

static void wait_within(Cg *cg, const TileOp *map, bool half) {
    VEC(Val) held = {0};
    for (int i = 0; i < map->args.n && keeps_scores(map); i++) {
        const CgValue *v = &cg->value[map->args.data[i]->id];
        for (int e = 0; is_of_rows(cg, map, i) && e < v->n; e++)
            VEC_PUSH(cg->arena, &held, v->e[e]);
    }
    if (half)
        nv90_half_wait(cg);
    else
        nv90_pinned_wait(cg, map, held.data, held.n);
    for (int i = 0, n = 0; n < held.n; i++) {
        CgValue *v = &cg->value[map->args.data[i]->id];
        if (!is_of_rows(cg, map, i)) continue;
        v->e = &held.data[n];
        n += v->n;
    }
}

// Pairs of the first so many columns, as far as their elements are there.
static void pack_first(Cg *cg, const At *at, int axis, int columns) {
    const TileOp *op = at->space.op;
    for (int i = 0; i < op->outs.n; i++) {
        const TileValue *v = op->results.data[i];
        const CgFragment *f = cg_fragment(cg, v);
        for (int e = 0; at->wide[i] && e < f->registers; e++) {
            Val *pair = at->wide[i] + 2 * e;
            bool first = layout_part(&f->is, LAYOUT_REG, axis, 2 * e) < columns;
            if (!first || !pair[0] || !pair[1]) continue;
            cg->value[v->id].e[e] = nv_pack(cg, v->dtype, pair[0], pair[1]);
            pair[0] = NULL;
        }
    }
}

typedef struct Walk {
    CgElem *elem;
    Val *pair;
    int done; // elements
    int axis; // of columns
    int half; // columns of the product's first half; 0: the product is one
} Walk;

static void walked(Cg *cg, Walk *w) {
    At *at = w->elem->ctx;
    const TileOp *op = at->space.op;
    if (w->half && w->done == op->half) wait_within(cg, op, true);
    if (op->waits && w->done == op->after) wait_within(cg, op, false);
    w->done++;
    element(cg, w->elem, w->pair);
    if (w->half && w->done > op->half && w->done <= op->after) pack_first(cg, at, w->axis, w->half);
}

static void walk_columns(Cg *cg, Walk *w, int from, int to) {
    CgSpace *s = &((At *)w->elem->ctx)->space;
    for (int i = 0; i < s->n; i++) {
        cg_space_at(s, i);
        int column = w->axis < 0 ? 0 : s->part[w->axis];
        if (column >= from && column < to) walked(cg, w);
    }
}

// Where the product lands by halves the weights of its first half, whose registers are free by then, come first.
static void walk_rows(Cg *cg, CgElem *elem, int axis) {
    At *at = elem->ctx;
    const TileOp *op = at->space.op;
    widen_packed(cg, at);
    int columns = leave_out(cg, at, axis), half = op->half ? columns / 32 * 16 : 0; // whole steps
    Walk w = {elem, ARENA_ARRAY(cg->arena, Val, op->outs.n), 0, axis, half};
    if (half) walk_columns(cg, &w, 0, half);
    walk_columns(cg, &w, half, columns);
    if (op->waits && (op->after < 0 || w.done <= op->after)) nv90_mma_wait(cg, op->pending);
    pack_wide(cg, at);
}

static void walk_roles(Cg *cg, CgElem *elem, int axis) {
    const TileOp *op = ((const At *)elem->ctx)->space.op;
    CgValue *own = ARENA_ARRAY(cg->arena, CgValue, op->args.n + 1);
    for (int i = 0; i < op->args.n; i++) own[i] = cg->value[op->args.data[i]->id];
    walk_rows(cg, elem, axis);
    for (int i = 0; i < op->args.n; i++) cg->value[op->args.data[i]->id] = own[i];
}

static void prefetch_rows(Cg *cg, At at, CgElem elem, int axis) {
    elem.ctx = &at;
    for (int i = 0; i < at.space.n; i++) {
        cg_space_at(&at.space, i);
        if (!at.space.part[axis]) nv_prefetch_rows(cg, at.space.op, axis, elem);
    }
}

// In roles row by row (marked: column by column); else rows share what is read of a column.
static void fragment_map(Cg *cg, const TileOp *op) {
    NvState *s = nv_state(cg);
    int col = -1;
    for (int i = 0; i < op->naxes; i++)
        if (op->axes[i] != s->row_axis) col = op->axes[i];
    bool rows = s->roles && !tile_is_marked(op, TILE_DIAGONALS);
    At at = {.space = cg_space(cg, op, rows ? s->row_axis : col)};
    CgElem elem = {
        .lanes = 1, .param = fragment_param, .pos = fragment_pos, .lane_axis = -1, .ctx = &at};
    elem.place = fragment_place;
    elem.read = fragment_read;
    elem.copies = s->roles ? 1 : at.space.n;
    for (int i = 0; i < op->results.n; i++) cg_make(cg, op->results.data[i]);
    if (op->naxes == 2) prefetch_rows(cg, at, elem, col);
    if (s->roles)
        walk_roles(cg, &elem, col);
    else
        walk(cg, &elem);
    for (int i = 0; i < op->results.n; i++) {
        const TileResult *out = &op->outs.data[i];
        const TileValue *v = op->results.data[i];
        CgValue *value = &cg->value[v->id];
        if (out->reduce == EX_CONST || v->parts || (s->partial && s->partial[v->id])) continue;
        for (int j = 0; j < value->n; j++)
            value->e[j] =
                cg_across(cg, &at.space.is, out->reduce_axis, out->reduce, value->e[j], nv_shuffle);
    }
}

// ---- cooperative

static Val shared_offset(Cg *cg, const TileValue *v, int axis, Val own, Val walked) {
    (void)axis; // a matrix has it first
    NvTile t = nv_tile(cg->k, v);
    bool matrix = t.row_axis >= 0;
    return nv_tile_offset(cg, &t, matrix ? own : NULL, matrix ? walked : own);
}

static Val shared_place(Cg *cg, const TileValue *v) {
    const NvState *s = nv_state(cg);
    return LLVMBuildAdd(cg->b, s->shared, cg_i32(cg, s->offset[v->id]), "");
}

static void cooperative_map(Cg *cg, const TileOp *op) {
    const NvState *s = nv_state(cg);
    CgShared shared = {s->tid, s->warps * NV_WARP, shared_place, nv_shared_ptr, shared_offset,
                       true,   nv_shuffle};
    cg_cooperative_map(cg, op, &shared);
}

// ---- an accumulator's rescaling

// Registers from which a branch saves more than it costs, as measured: where mma.sync is, with two m16
// tiles a warp. In roles a branch would serialize the products in flight.
enum { WORTH_A_BRANCH = 96 };

static bool worth_a_branch(Cg *cg, const TileOp *op, NvShape s) {
    if (!op->block->owner || nv_state(cg)->roles) return false;
    return s.mt >= 2 && s.f->registers >= WORTH_A_BRANCH;
}

// The operand that is multiplied by a number per row and nothing else, or NULL: `acc * c`.
static const TileValue *scaled_by_row(Cg *cg, const TileOp *op, const TileValue **factor) {
    const Ex *e = op->outs.data[0].body;
    if (op->results.n != 1 || op->outs.data[0].reduce != EX_CONST || e->op != EX_MUL) return NULL;
    const TileValue *v[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++)
        if (e->args[i]->op == EX_SYM && e->args[i]->sym == SYM_PARAM)
            v[i] = op->args.data[e->args[i]->index];
    if (!v[0] || !v[1]) return NULL;
    int big = v[0]->rank == 2 ? 0 : 1;
    const TileValue *result = op->results.data[0];
    *factor = v[1 - big];
    bool row = (*factor)->rank == 1 && (*factor)->axis[0] == nv_state(cg)->row_axis;
    bool plain = v[big]->rank == 2 && v[big]->home == HOME_FRAGMENT && v[big]->dtype == DT_F32;
    if (!row || !plain || result->rank != 2 || result->dtype != DT_F32) return NULL;
    return worth_a_branch(cg, op, nv_shape(cg, result)) ? v[big] : NULL;
}

// Some lane's factor is not 1.
static Val any_moved(Cg *cg, const CgValue *factor) {
    Val any = NULL;
    for (int i = 0; i < factor->n; i++) {
        Val moved = LLVMBuildFCmp(cg->b, LLVMRealUNE, factor->e[i], cg_f32(cg, 1), "");
        any = any ? LLVMBuildOr(cg->b, any, moved, "") : moved;
    }
    Val v[] = {cg_i32(cg, -1), any};
    return cg_intrinsic(cg, "llvm.nvvm.vote.any.sync", NULL, 0, v, 2);
}

// Once the rows' maxima have settled the factors are all 1, and the accumulator, which is most of the registers, need not be touched.
static void rescale(Cg *cg, const TileOp *op, const TileValue *acc, const TileValue *factor) {
    Val any = any_moved(cg, &cg->value[factor->id]);
    Blk before = LLVMGetInsertBlock(cg->b), work = cg_block(cg, "rescale"),
        done = cg_block(cg, "rescaled");
    LLVMBuildCondBr(cg->b, any, work, done);
    LLVMPositionBuilderAtEnd(cg->b, work);
    fragment_map(cg, op);
    work = LLVMGetInsertBlock(cg->b);
    LLVMBuildBr(cg->b, done);
    LLVMPositionBuilderAtEnd(cg->b, done);
    CgValue *value = &cg->value[op->results.data[0]->id];
    for (int i = 0; i < value->n; i++) {
        Val phi = LLVMBuildPhi(cg->b, cg->f32, "");
        LLVMAddIncoming(phi, (Val[]){value->e[i], cg->value[acc->id].e[i]}, (Blk[]){work, before},
                        2);
        value->e[i] = phi;
    }
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
    nv90_share(cg, v);
}

void nv_map(Cg *cg, const TileOp *op) {
    const TileValue *factor, *acc = op->results.n ? scaled_by_row(cg, op, &factor) : NULL;
    if (acc)
        rescale(cg, op, acc, factor);
    else if (op->results.n && op->results.data[0]->home == HOME_SHARED && nv_state(cg)->roles &&
             op->results.data[0]->rank == 2)
        through_panels(cg, op);
    else if (op->results.n && op->results.data[0]->home == HOME_SHARED)
        cooperative_map(cg, op);
    else if (op->results.n && op->results.data[0]->home == HOME_STRIP)
        nv_strip_map(cg, op);
    else
        fragment_map(cg, op);
}
