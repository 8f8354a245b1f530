// map.c: maps: elementwise over fragments, with reductions in the thread and then across the
// quad; and, where the schedule gives a result to shared memory, by all threads together.
//
// In: a TILE_MAP whose operands are fragments or lie in shared memory. Out: its results, in
// registers in the layout of nvptx.h or in their shared buffer (readable after the next barrier).
#include "codegen/nvptx/sm90.h"

#include <assert.h>

typedef struct At { // the current element
    const TileOp *op;
    NvShape space; // of the map's axes
    int m, n, r, c;
    Val **wide; // in roles: by result that is packed its elements, until all are there
    NvPairs pairs;
} At;

// ---- operands and positions

static Val fragment_param(Cg *cg, CgElem *elem, int k) {
    const At *at = elem->ctx;
    return nv_element(cg, at->op->args.data[k], at->m, at->n, at->r, at->c);
}

static Val fragment_pos(Cg *cg, CgElem *elem, int axis) {
    const At *at = elem->ctx;
    const NvState *s = nv_state(cg);
    bool row = axis == s->row_axis;
    Val base = LLVMBuildAdd(cg->b, cg_tile_begin(cg, axis), row ? nv_first_row(cg) : s->col0, "");
    return LLVMBuildAdd(cg->b, base, cg_i32(cg, row ? 16 * at->m + 8 * at->r : 8 * at->n + at->c),
                        "");
}

Val nv_at(Cg *cg, const TileOp *map, const Ex *e, int m, int n, int r, int c) {
    At at = {.op = map, .m = m, .n = n, .r = r, .c = c};
    CgElem elem = {
        .lanes = 1, .param = fragment_param, .pos = fragment_pos, .lane_axis = -1, .ctx = &at};
    elem.copies = NV_WARP; // or so: mask tests, of all elements
    return cg_expr(cg, e, &elem);
}

static bool fragment_place(Cg *cg, CgElem *elem, int axis, Val *first, int *offset) {
    const At *at = elem->ctx;
    const NvState *s = nv_state(cg);
    if (axis == s->row_axis) return false;
    *first = LLVMBuildAdd(cg->b, cg_tile_begin(cg, axis), s->col0, "");
    *offset = 8 * at->n + at->c;
    return true;
}

static Val fragment_read(Cg *cg, CgElem *elem, const Ex *load, Val first, int offset) {
    At *at = elem->ctx;
    return nv_read_pair(cg, &at->pairs, at->op, load, first, offset);
}

// ---- reductions

typedef struct Reduce {
    ExOp op;  // ROWMAX, ROWMIN, ROWSUM
    Val *acc; // by (m, r): index 2 m + r
} Reduce;

Val nv_across_quad(Cg *cg, ExOp reduce, Val v) {
    for (int mask = 1; mask <= 2; mask *= 2) v = cg_merge(cg, reduce, v, nv_shuffle(cg, v, mask));
    return v;
}

// ---- fragments

// What the columns past the size of a padded axis must not add to.
static Val masked_padding(Cg *cg, const At *at, const TileResult *out, Val v) {
    const TileAxis *a = &cg->k->axes[out->reduce_axis];
    if (!a->whole || a->size->op != EX_CONST || 8 * at->n + 8 <= a->size->i) return v;
    Val col = LLVMBuildAdd(cg->b, nv_state(cg)->col0, cg_i32(cg, 8 * at->n + at->c), "");
    Val in = LLVMBuildICmp(cg->b, LLVMIntSLT, col, cg_i32(cg, a->size->i), "");
    return LLVMBuildSelect(cg->b, in, v, cg_f32(cg, ex_identity(out->reduce)), "");
}

static void set_element(CgValue *v, NvShape s, const At *at, Val x, Val *pair, Dtype t, Cg *cg) {
    int i = nv_index(s, at->m, at->n, at->r, at->c);
    if (!s.packed) {
        v->e[i] = x;
    } else if (at->c == 0) {
        *pair = x;
    } else {
        v->e[i] = nv_pack(cg, t, *pair, x);
    }
}

// Rounds to the value's dtype where that is not done by packing.
static Val rounded(Cg *cg, const TileValue *v, NvShape s, Val x) {
    if (s.packed || !nv_narrow(v->dtype)) return x;
    return nv_unpack(cg, v->dtype, nv_pack(cg, v->dtype, x, x), 0);
}

// Sigmoids that are rounded to bf16: two of them are finished together.
static void sigmoid_element(Cg *cg, CgElem *elem, Val *pair) {
    const At *at = elem->ctx;
    pair[at->c] = nv_sigmoid_exponential(cg, cg_expr(cg, at->op->outs.data[0].body->args[0], elem));
    if (at->c) nv_sigmoids_begin(cg, pair);
}

// A result without one of the map's axes is made once, not for every element along it.
static bool again(const At *at, const TileResult *out, NvShape s) {
    bool column = s.col_axis >= 0 || out->reduce != EX_CONST;
    return (!column && (at->n || at->c)) || (!s.rows && (at->m || at->r));
}

static void element(Cg *cg, CgElem *elem, Val *pair) {
    At *at = elem->ctx;
    const TileOp *op = at->op;
    cg_elem_begin(cg, elem);
    for (int i = 0; i < op->outs.n; i++) {
        const TileResult *out = &op->outs.data[i];
        const TileValue *v = op->results.data[i];
        NvShape s = nv_shape(cg, v);
        CgValue *value = &cg->value[v->id];
        if (again(at, out, s)) continue;
        Val *wide = at->wide && at->wide[i] ? at->wide[i] : NULL;
        if (wide) wide += 2 * nv_index(s, at->m, at->n, at->r, at->c);
        if (wide && tile_is_marked(op, TILE_HALVES)) {
            sigmoid_element(cg, elem, wide);
            continue;
        }
        Val x = cg_expr(cg, out->body, elem);
        if (out->reduce == EX_CONST && wide) {
            wide[at->c] = x;
        } else if (out->reduce == EX_CONST) {
            set_element(value, s, at, rounded(cg, v, s, x), &pair[i], v->dtype, cg);
        } else {
            Val *acc = &value->e[nv_index(s, at->m, 0, at->r, 0)];
            *acc = cg_merge(cg, out->reduce, *acc, masked_padding(cg, at, out, x));
        }
    }
}

static void walk(Cg *cg, CgElem *elem) {
    At *at = elem->ctx;
    NvShape s = at->space;
    Val *pair = ARENA_ARRAY(cg->arena, Val, at->op->outs.n);
    int rows = s.rows ? 2 : 1, cols = s.col_axis >= 0 ? 2 : 1;
    for (at->n = 0; at->n < s.nt; at->n++)
        for (at->m = 0; at->m < s.mt; at->m++)
            for (at->r = 0; at->r < rows; at->r++)
                for (at->c = 0; at->c < cols; at->c++) element(cg, elem, pair);
}

static void pack_wide(Cg *cg, const At *at) {
    Nv90 *h = nv90_state(cg);
    for (int i = 0; i < at->op->outs.n; i++) {
        const TileValue *v = at->op->results.data[i];
        Nv90Wide w = {&cg->value[v->id], v->dtype, at->wide[i],
                      tile_is_marked(at->op, TILE_HALVES)};
        if (w.elements) VEC_PUSH(cg->arena, &h->wide, w);
    }
    if (!h->flight.n) nv90_pack(cg);
}

static void widen_packed(Cg *cg, At *at) {
    at->wide = ARENA_ARRAY(cg->arena, Val *, at->op->outs.n);
    for (int i = 0; i < at->op->outs.n; i++) {
        const TileValue *v = at->op->results.data[i];
        if (nv_shape(cg, v).packed)
            at->wide[i] = ARENA_ARRAY(cg->arena, Val, 2 * cg->value[v->id].n);
    }
}

// Elements that do not count are not made (sm90_first.c).
static void leave_out(Cg *cg, At *at) {
    const Nv90 *h = nv90_state(cg);
    if (!h->counted || at->space.col_axis != h->counted_axis) return;
    at->space.nt = h->counted / 8;
    for (int i = 0; i < at->op->results.n; i++) {
        const TileValue *v = at->op->results.data[i];
        CgValue *value = &cg->value[v->id];
        bool made = nv_shape(cg, v).col_axis != h->counted_axis;
        for (int e = 0; !made && e < value->n; e++) value->e[e] = LLVMGetUndef(cg->f32);
        for (int e = 0; at->wide[i] && e < 2 * value->n; e++) at->wide[i][e] = cg_f32(cg, 0);
    }
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
static void pack_first(Cg *cg, const At *at, int columns) {
    for (int i = 0; i < at->op->outs.n; i++) {
        const TileValue *v = at->op->results.data[i];
        for (int k = 0; at->wide[i] && k < columns / 8 * 2; k++) {
            int e = nv_index(nv_shape(cg, v), 0, k / 2, k % 2, 0);
            Val *pair = at->wide[i] + 2 * e;
            if (!pair[0] || !pair[1]) continue;
            cg->value[v->id].e[e] = nv_pack(cg, v->dtype, pair[0], pair[1]);
            pair[0] = NULL;
        }
    }
}

typedef struct Walk {
    CgElem *elem;
    Val *pair;
    int done; // elements
} Walk;

static void walked(Cg *cg, Walk *w, int half) { // half: columns of the first; 0: the product is one
    At *at = w->elem->ctx;
    const TileOp *op = at->op;
    if (half && w->done == op->half) wait_within(cg, op, true);
    if (op->waits && w->done == op->after) wait_within(cg, op, false);
    w->done++;
    element(cg, w->elem, w->pair);
    if (half && w->done > op->half && w->done <= op->after) pack_first(cg, at, half);
}

// Row by row (marked: column by column), with the wait for a product after so many elements.
static void walk_part(Cg *cg, Walk *w, int from, int to, int half) {
    At *at = w->elem->ctx;
    NvShape s = at->space;
    int rows = s.rows ? 2 : 1, cols = s.col_axis >= 0 ? 2 : 1;
    bool across = tile_is_marked(at->op, TILE_DIAGONALS);
    int outer = across ? to - from : rows, inner = across ? rows : to - from;
    for (int i = 0; i < outer; i++)
        for (int j = 0; j < inner; j++)
            for (at->c = 0; at->c < cols; at->c++) {
                at->r = across ? j : i, at->n = from + (across ? i : j);
                walked(cg, w, half);
            }
}

// Where the product lands by halves the weights of its first half, whose registers are free by then, come first.
static void walk_rows(Cg *cg, CgElem *elem) {
    At *at = elem->ctx;
    widen_packed(cg, at);
    leave_out(cg, at);
    int nt = at->space.nt, half = at->op->half ? nt / 4 * 2 : 0; // whole steps of 16
    Walk w = {elem, ARENA_ARRAY(cg->arena, Val, at->op->outs.n), 0};
    assert(at->space.mt == 1);
    if (half) walk_part(cg, &w, 0, half, 8 * half);
    walk_part(cg, &w, half, nt, 8 * half);
    if (at->op->waits && (at->op->after < 0 || w.done <= at->op->after))
        nv90_mma_wait(cg, at->op->pending);
    pack_wide(cg, at);
}

static void walk_roles(Cg *cg, CgElem *elem) {
    const TileOp *op = ((const At *)elem->ctx)->op;
    CgValue *own = ARENA_ARRAY(cg->arena, CgValue, op->args.n + 1);
    for (int i = 0; i < op->args.n; i++) own[i] = cg->value[op->args.data[i]->id];
    walk_rows(cg, elem);
    for (int i = 0; i < op->args.n; i++) cg->value[op->args.data[i]->id] = own[i];
}

static NvShape space_of(Cg *cg, const TileOp *op) {
    TileValue all = {.dtype = DT_F32, .rank = op->naxes};
    for (int i = 0; i < op->naxes; i++) all.axis[i] = op->axes[i];
    return nv_shape(cg, &all);
}

static int elements_of(NvShape s) {
    return s.mt * s.nt * (s.rows ? 2 : 1) * (s.col_axis >= 0 ? 2 : 1);
}

static void prefetch_rows(Cg *cg, At at, CgElem elem) {
    elem.ctx = &at;
    for (at.m = 0; at.m < at.space.mt; at.m++)
        for (at.r = 0; at.r < 2; at.r++) nv_prefetch_rows(cg, at.op, at.space.col_axis, elem);
}

static void fragment_map(Cg *cg, const TileOp *op) {
    At at = {.op = op, .space = space_of(cg, op)};
    CgElem elem = {
        .lanes = 1, .param = fragment_param, .pos = fragment_pos, .lane_axis = -1, .ctx = &at};
    elem.place = fragment_place;
    elem.read = fragment_read;
    elem.copies = nv_state(cg)->roles ? 1 : elements_of(at.space);
    for (int i = 0; i < op->results.n; i++) {
        const TileValue *v = op->results.data[i];
        CgValue *value = &cg->value[v->id];
        value->n = nv_count(nv_shape(cg, v));
        value->e = ARENA_ARRAY(cg->arena, Val, value->n);
    }
    if (at.space.rows && at.space.col_axis >= 0) prefetch_rows(cg, at, elem);
    if (nv_state(cg)->roles)
        walk_roles(cg, &elem);
    else
        walk(cg, &elem);
    for (int i = 0; i < op->results.n; i++) {
        const TileResult *out = &op->outs.data[i];
        CgValue *value = &cg->value[op->results.data[i]->id];
        const bool *partial = nv_state(cg)->partial;
        const TileValue *v = op->results.data[i];
        if (out->reduce == EX_CONST || v->parts || (partial && partial[v->id])) continue;
        assert(out->reduce_axis != nv_state(cg)->row_axis && "rows are not reduced in registers");
        for (int j = 0; j < value->n; j++)
            value->e[j] = nv_across_quad(cg, out->reduce, value->e[j]);
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
    return s.mt >= 2 && nv_count(s) >= WORTH_A_BRANCH;
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
