// map.c: maps: elementwise over fragments, with reductions in the lane and then across the
// lanes of a row; and, where the schedule gives a result to LDS, by all threads together.
//
// In: a TILE_MAP whose operands are fragments or lie in LDS. Out: its results, in registers
// (codegen/fragment.h) or in their LDS (readable after the next barrier).
#include "codegen/amdgpu/amdgpu.h"

#include <assert.h>

typedef struct At { // the current element
    CgSpace space;
    int e;       // its number among the columns of its row
    Val *before; // by result: the element before, where two make a register
    Val **odd;   // by result that is reduced: of each row the sum (or maximum) of the odd elements,
                 // which is its own until the end: two chains take half the time of one
    Val first;   // the column of this lane's element 0, or NULL
} At;

// ---- operands and positions

static Val fragment_param(Cg *cg, CgElem *elem, int k) {
    const CgSpace *s = &((const At *)elem->ctx)->space;
    return am_element(cg, s->op->args.data[k], s->layout, s->part);
}

static Val first_column(Cg *cg, const CgSpace *s, int axis) { // of this lane
    return LLVMBuildAdd(cg->b, cg_tile_begin(cg, axis), cg_thread_part(cg, s->layout, axis), "");
}

// Where positions are asked for. LLVM would else think long about what each element's address, of
// those that look something up, is from step to step.
static Val hidden_first(Cg *cg, const CgSpace *s, int axis) {
    bool asked = false;
    for (int i = 0; i < s->op->outs.n && axis >= 0; i++)
        asked |= ex_uses(s->op->outs.data[i].body, SYM_POS, axis);
    return asked ? am_hidden(cg, first_column(cg, s, axis)) : NULL;
}

static bool fragment_place(Cg *cg, CgElem *elem, int axis, Val *first, int *offset) {
    const At *at = elem->ctx;
    if (axis == am_state(cg)->row_axis) return false;
    *first = at->first ? at->first : first_column(cg, &at->space, axis);
    *offset = at->space.part[axis];
    return true;
}

static Val fragment_pos(Cg *cg, CgElem *elem, int axis) {
    Val first;
    int offset;
    if (!fragment_place(cg, elem, axis, &first, &offset))
        return cg_space_position(cg, &((const At *)elem->ctx)->space, axis);
    return cg_plus(cg, first, offset);
}

// ---- fragments

static void set_element(Cg *cg, const At *at, int i, Val x) {
    const TileValue *v = at->space.op->results.data[i];
    const CgFragment *f = cg_fragment(cg, v);
    Val *to = &cg->value[v->id].e[cg_slot(f, at->space.part)];
    if (f->each == 1) {
        *to = dtype_half(v->dtype) ? cg_round(cg, x, v->dtype) : x;
    } else if (at->e % 2 == 0) {
        at->before[i] = x;
    } else {
        Val pair = v->unguarded ? am_pack_unguarded(cg, v->dtype, at->before[i], x)
                                : am_pack(cg, v->dtype, at->before[i], x);
        if (am_state(cg)->wmma)
            am_share_pairs(cg, pair, to - 1);
        else
            *to = pair;
    }
}

static void element(Cg *cg, CgElem *elem) {
    At *at = elem->ctx;
    const TileOp *op = at->space.op;
    cg_elem_begin(cg, elem);
    for (int i = 0; i < op->outs.n; i++) {
        const TileResult *out = &op->outs.data[i];
        if (cg_is_made(&at->space, i)) continue;
        Val x = cg_expr(cg, out->body, elem);
        if (out->reduce == EX_CONST) {
            set_element(cg, at, i, x);
        } else {
            const TileValue *v = op->results.data[i];
            Val *even = cg->value[v->id].e;
            Val *acc =
                &(at->e % 2 ? at->odd[i] : even)[cg_slot(cg_fragment(cg, v), at->space.part)];
            *acc = cg_merge(cg, out->reduce, *acc, cg_masked(cg, &at->space, out, x));
        }
    }
}

static void reduce(Cg *cg, const At *at, int i) {
    const TileResult *out = &at->space.op->outs.data[i];
    CgValue *value = &cg->value[at->space.op->results.data[i]->id];
    for (int j = 0; out->reduce != EX_CONST && j < value->n; j++) {
        if (at->odd[i][j]) value->e[j] = cg_merge(cg, out->reduce, value->e[j], at->odd[i][j]);
        value->e[j] =
            cg_across(cg, &at->space.is, out->reduce_axis, out->reduce, value->e[j], am_exchange);
    }
}

static void fragment_map(Cg *cg, const TileOp *op) {
    At at = {.space = cg_space(cg, op, -1)};
    int col = -1;
    for (int i = 0; i < op->naxes; i++)
        if (op->axes[i] != am_state(cg)->row_axis) col = op->axes[i];
    int columns = col < 0 ? 1 : layout_share(&at.space.is, LAYOUT_REG, col);
    at.first = hidden_first(cg, &at.space, col);
    CgElem elem = {
        .lanes = 1, .param = fragment_param, .pos = fragment_pos, .lane_axis = -1, .ctx = &at};
    elem.place = fragment_place;
    elem.copies = at.space.n;
    at.before = ARENA_ARRAY(cg->arena, Val, op->outs.n);
    at.odd = ARENA_ARRAY(cg->arena, Val *, op->outs.n);
    for (int i = 0; i < op->results.n; i++)
        at.odd[i] = ARENA_ARRAY(cg->arena, Val, cg_make(cg, op->results.data[i])->n);
    for (int i = 0; i < at.space.n; i++) {
        cg_space_at(&at.space, i);
        at.e = i % columns;
        element(cg, &elem);
    }
    for (int i = 0; i < op->results.n; i++) reduce(cg, &at, i);
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
