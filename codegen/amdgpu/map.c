// map.c: maps: elementwise over fragments, with reductions in the lane and then across the
// lanes of a row; and, where the schedule gives a result to LDS, by all threads together.
//
// In: a TILE_MAP whose operands are fragments or lie in LDS. Out: its results, in registers in the
// layout of amdgpu.h or in their LDS (readable after the next barrier).
#include "codegen/amdgpu/amdgpu.h"

#include <assert.h>

typedef struct At { // the current element
    const TileOp *op;
    AmShape space; // of the map's axes
    int m, e;
    Val *before; // by result: the element before, where two make a register
    Val **odd;   // by result that is reduced: of each row the sum (or maximum) of the odd elements,
                 // which is its own until the end: two chains take half the time of one
    Val first;   // the column of this lane's element 0, or NULL
} At;

// ---- operands and positions

static Val fragment_param(Cg *cg, CgElem *elem, int k) {
    const At *at = elem->ctx;
    return am_element(cg, at->op->args.data[k], at->m, at->e);
}

static Val first_column(Cg *cg, int axis) { // of this lane
    return LLVMBuildAdd(cg->b, cg_tile_begin(cg, axis), am_column_part(cg, axis), "");
}

// Where positions are asked for. LLVM would else think long about what each element's address, of
// those that look something up, is from step to step.
static Val hidden_first(Cg *cg, const TileOp *op, int axis) {
    bool asked = false;
    for (int i = 0; i < op->outs.n && axis >= 0; i++)
        asked |= ex_uses(op->outs.data[i].body, SYM_POS, axis);
    return asked ? am_hidden(cg, first_column(cg, axis)) : NULL;
}

static bool fragment_place(Cg *cg, CgElem *elem, int axis, Val *first, int *offset) {
    const At *at = elem->ctx;
    if (axis == am_state(cg)->row_axis) return false;
    *first = at->first ? at->first : first_column(cg, axis);
    *offset = am_column_base(cg, axis, at->e);
    return true;
}

static Val fragment_pos(Cg *cg, CgElem *elem, int axis) {
    const At *at = elem->ctx;
    const AmState *s = am_state(cg);
    if (axis == s->row_axis)
        return am_plus(cg, LLVMBuildAdd(cg->b, cg_tile_begin(cg, axis), s->row0, ""),
                       s->rows * at->m);
    Val first;
    int offset;
    fragment_place(cg, elem, axis, &first, &offset);
    return am_plus(cg, first, offset);
}

// ---- reductions

static Val across_row(Cg *cg, ExOp reduce, Val v) {
    const AmState *s = am_state(cg);
    for (int mask = s->rows; mask < s->wave; mask *= 2)
        v = cg_merge(cg, reduce, v, am_exchange(cg, v, mask));
    return v;
}

// What the columns past the size of a padded axis must not add to.
static Val masked_padding(Cg *cg, const At *at, const TileResult *out, Val v) {
    const TileAxis *a = &cg->k->axes[out->reduce_axis];
    if (!a->whole || a->size->op != EX_CONST || a->size->i == a->extent) return v;
    Val col = am_column(cg, out->reduce_axis, at->e);
    Val in = LLVMBuildICmp(cg->b, LLVMIntSLT, col, cg_i32(cg, a->size->i), "");
    return LLVMBuildSelect(cg->b, in, v, cg_f32(cg, ex_identity(out->reduce)), "");
}

// ---- fragments

static void set_element(Cg *cg, const At *at, int i, AmShape s, Val x) {
    const TileValue *v = at->op->results.data[i];
    Val *to = &cg->value[v->id].e[am_index(s, at->m, at->e)];
    if (!s.packed) {
        *to = am_narrow(v->dtype) ? cg_round(cg, x, v->dtype) : x;
    } else if (at->e % 2 == 0) {
        at->before[i] = x;
    } else {
        Val pair = v->unguarded ? am_pack_unguarded(cg, v->dtype, at->before[i], x)
                                : am_pack(cg, v->dtype, at->before[i], x);
        if (s.pair == 2)
            *to = pair;
        else
            am_share_pairs(cg, pair, to - 1);
    }
}

// A result without one of the map's axes is made once, not for every element along it.
static bool again(const At *at, const TileResult *out, AmShape s) {
    bool column = s.col_axis >= 0 || out->reduce != EX_CONST;
    return (!column && at->e) || (!s.rows && at->m);
}

static void element(Cg *cg, CgElem *elem) {
    At *at = elem->ctx;
    const TileOp *op = at->op;
    cg_elem_begin(cg, elem);
    for (int i = 0; i < op->outs.n; i++) {
        const TileResult *out = &op->outs.data[i];
        AmShape s = am_shape(cg, op->results.data[i]);
        if (again(at, out, s)) continue;
        Val x = cg_expr(cg, out->body, elem);
        if (out->reduce == EX_CONST) {
            set_element(cg, at, i, s, x);
        } else {
            Val *even = cg->value[op->results.data[i]->id].e;
            Val *acc = &(at->e % 2 ? at->odd[i] : even)[am_index(s, at->m, 0)];
            *acc = cg_merge(cg, out->reduce, *acc, masked_padding(cg, at, out, x));
        }
    }
}

static AmShape space_of(Cg *cg, const TileOp *op) {
    TileValue all = {.dtype = DT_F32, .rank = op->naxes};
    for (int i = 0; i < op->naxes; i++) all.axis[i] = op->axes[i];
    return am_shape(cg, &all);
}

static void fragment_map(Cg *cg, const TileOp *op) {
    At at = {.op = op, .space = space_of(cg, op)};
    at.first = hidden_first(cg, op, at.space.col_axis);
    CgElem elem = {
        .lanes = 1, .param = fragment_param, .pos = fragment_pos, .lane_axis = -1, .ctx = &at};
    elem.place = fragment_place;
    elem.copies = am_count(at.space);
    at.before = ARENA_ARRAY(cg->arena, Val, op->outs.n);
    at.odd = ARENA_ARRAY(cg->arena, Val *, op->outs.n);
    for (int i = 0; i < op->results.n; i++) {
        CgValue *value = &cg->value[op->results.data[i]->id];
        value->n = am_count(am_shape(cg, op->results.data[i]));
        value->e = ARENA_ARRAY(cg->arena, Val, value->n);
        at.odd[i] = ARENA_ARRAY(cg->arena, Val, value->n);
    }
    for (at.m = 0; at.m < at.space.mt; at.m++)
        for (at.e = 0; at.e < at.space.n; at.e++) element(cg, &elem);
    for (int i = 0; i < op->results.n; i++) {
        const TileResult *out = &op->outs.data[i];
        CgValue *value = &cg->value[op->results.data[i]->id];
        if (out->reduce == EX_CONST) continue;
        assert(out->reduce_axis != am_state(cg)->row_axis && "rows are not reduced in registers");
        for (int j = 0; j < value->n; j++) {
            if (at.odd[i][j]) value->e[j] = cg_merge(cg, out->reduce, value->e[j], at.odd[i][j]);
            value->e[j] = across_row(cg, out->reduce, value->e[j]);
        }
    }
}

// ---- cooperative

static Val shared_offset(Cg *cg, const TileValue *v, int axis, Val own, Val walked) {
    AmTile t = am_tile(cg, v);
    bool along = t.inner == axis;
    return am_tile_offset(cg, &t, t.outer < 0 ? NULL : along ? walked : own, along ? own : walked);
}

static Val shared_place(Cg *cg, const TileValue *v) {
    return cg_i32(cg, am_state(cg)->offset[v->id]);
}

static void cooperative_map(Cg *cg, const TileOp *op) {
    const AmState *s = am_state(cg);
    CgShared shared = {s->tid, s->waves * s->wave, shared_place, am_lds, shared_offset, false,
                       NULL};
    cg_cooperative_map(cg, op, &shared);
}

void am_map(Cg *cg, const TileOp *op) {
    if (op->results.n && op->results.data[0]->home == HOME_SHARED)
        cooperative_map(cg, op);
    else
        fragment_map(cg, op);
}
