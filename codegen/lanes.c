// lanes.c: kernels of lanes: one warp for each tile of the grid, numbers in its threads.
//
// In: a kernel of lanes (tile_has_lanes): numbers, rows of as many of them as a warp has threads, and loops; what
// makes lists of tiles. Out: a number is the same in all threads, of a row each thread has the
// element of its lane. A reduction to a number is shared by the lanes, one to a row is each lane's
// own. On the host a thread is a warp of one. What such a kernel has not (products, copies, values of two
// axes) is refused.
#include "codegen/lanes.h"

#include <assert.h>

enum { UNROLLED = 8 }; // elements that a lane goes through without a loop

typedef struct At { // the current element
    const CgLanes *l;
    const TileOp *op;
    Val pos[TILE_MAX_AXES]; // NULL: not over this axis
    Val number;             // APPEND: of the element; otherwise NULL
} At;

// ---- elements

static Val param(Cg *cg, CgElem *elem, int k) {
    const At *at = elem->ctx;
    if (at->number) return at->number;
    return cg->value[at->op->args.data[k]->id].e[0];
}

static Val pos(Cg *cg, CgElem *elem, int axis) {
    const At *at = elem->ctx;
    (void)cg;
    assert(at->pos[axis] && "verified");
    return at->pos[axis];
}

static CgElem element(At *at) {
    return (CgElem){.lanes = 1, .param = param, .pos = pos, .lane_axis = -1, .ctx = at};
}

static void set(Cg *cg, const TileValue *v, Val x) {
    CgValue *value = &cg->value[v->id];
    value->n = 1;
    value->e = ARENA_ARRAY(cg->arena, Val, 1);
    value->e[0] = x;
}

// An error; what the op makes is 0 from there on.
static void refuse(Cg *cg, const TileOp *op, const char *what) {
    diag_error(cg->diags, op->span, "a kernel of lanes has no %s on %s", what, cg->target->name);
    for (int i = 0; i < op->results.n; i++) {
        ExType t = dtype_reads(op->results.data[i]->dtype);
        Ty of = t == EX_F32 ? cg->f32 : t == EX_I32 ? cg->i32 : cg->i1;
        set(cg, op->results.data[i], LLVMConstNull(of));
    }
}

static Val lane_position(Cg *cg, const CgLanes *l, int axis) {
    return cg_add(cg, cg_times(cg, cg->tile[axis], l->n), l->lane);
}

// ---- reductions

Val cg_lanes_merge(Cg *cg, ExOp reduce, Val a, Val b) {
    if (!a) return b;
    Val v[] = {a, b};
    bool is_float = LLVMTypeOf(a) == cg->f32;
    if (reduce == EX_ROWSUM) return is_float ? cg_fadd(cg, a, b) : cg_add(cg, a, b);
    if (is_float) return cg_math(cg, reduce == EX_ROWMAX ? EX_MAX : EX_MIN, v, 2);
    const char *name = reduce == EX_ROWMAX ? "llvm.smax" : "llvm.smin";
    return cg_intrinsic(cg, name, &cg->i32, 1, v, 2);
}

static Val identity(Cg *cg, ExOp reduce, ExType t) {
    if (t == EX_F32) return cg_f32(cg, ex_identity(reduce));
    return cg_i32(cg, reduce == EX_ROWSUM ? 0 : reduce == EX_ROWMAX ? INT32_MIN : INT32_MAX);
}

Val cg_lanes_all(Cg *cg, const CgLanes *l, ExOp reduce, Val v) {
    for (int mask = l->n / 2; mask; mask /= 2)
        v = cg_lanes_merge(cg, reduce, v, l->shuffle(cg, v, mask));
    return v;
}

// Adds the current element to what each reduction of the map has so far.
static void add_element(Cg *cg, At *at, Val *sum, Val in) {
    CgElem elem = element(at);
    for (int i = 0; i < at->op->outs.n; i++) {
        const TileResult *out = &at->op->outs.data[i];
        if (out->reduce == EX_CONST) continue;
        Val x = cg_expr(cg, out->body, &elem);
        if (in) x = cg_select(cg, in, x, identity(cg, out->reduce, out->body->type));
        sum[i] = cg_lanes_merge(cg, out->reduce, sum[i], x);
    }
}

// To numbers: each lane takes every n-th element.
static void across_lanes(Cg *cg, At *at, int axis, int n, Val *sum) {
    for (int first = 0; first < n; first += at->l->n) {
        Val i = cg_plus(cg, at->l->lane, first);
        bool all = first + at->l->n <= n;
        Val in = all ? NULL : cg_below(cg, i, n);
        at->pos[axis] = i;
        add_element(cg, at, sum, in);
    }
    for (int i = 0; i < at->op->outs.n; i++)
        if (sum[i]) sum[i] = cg_lanes_all(cg, at->l, at->op->outs.data[i].reduce, sum[i]);
}

// To rows: each lane goes through all elements.
static void along_lane(Cg *cg, At *at, int axis, int n, Val *sum) {
    if (n <= UNROLLED) {
        for (int i = 0; i < n; i++) {
            at->pos[axis] = cg_i32(cg, i);
            add_element(cg, at, sum, NULL);
        }
        return;
    }
    for (int o = 0; o < at->op->outs.n; o++) { // what is not reduced stays so
        const TileResult *out = &at->op->outs.data[o];
        bool sums = out->reduce != EX_CONST;
        sum[o] = sums ? identity(cg, out->reduce, out->body->type) : cg_i32(cg, 0);
    }
    CgTurns t = cg_turns(cg, cg_i32(cg, 0), sum, at->op->outs.n);
    at->pos[axis] = t.i;
    add_element(cg, at, sum, NULL);
    Val next = cg_plus(cg, t.i, 1);
    cg_end_turns(cg, &t, next, cg_below(cg, next, n), sum);
}

// ---- operations

// The axis that the map's reductions go over, -1: none; what cannot be done, NULL: nothing.
static const char *reduced_axis(Cg *cg, const CgLanes *l, const TileOp *op, int *axis) {
    *axis = -1;
    for (int i = 0; i < op->outs.n; i++) {
        const TileResult *r = &op->outs.data[i];
        if (r->reduce == EX_CONST) continue;
        if ((*axis >= 0 && *axis != r->reduce_axis) || !cg->k->axes[r->reduce_axis].whole)
            return "such reductions";
        *axis = r->reduce_axis;
    }
    for (int i = 0; i < op->naxes; i++)
        if (op->axes[i] != *axis &&
            (op->axes[i] != cg->k->schedule.lane_axis || cg->k->axes[op->axes[i]].extent != l->n))
            return "rows but those of a warp's lanes";
    return NULL;
}

static void map(Cg *cg, const CgLanes *l, const TileOp *op) {
    int axis;
    const char *wrong = reduced_axis(cg, l, op, &axis);
    At at = {.l = l, .op = op};
    bool row = false;
    if (wrong) {
        refuse(cg, op, wrong);
        return;
    }
    for (int i = 0; i < op->naxes; i++) {
        if (op->axes[i] == axis) continue;
        row = true;
        at.pos[op->axes[i]] = lane_position(cg, l, op->axes[i]);
    }
    Val *made = ARENA_ARRAY(cg->arena, Val, op->outs.n);
    CgElem elem = element(&at);
    for (int i = 0; i < op->outs.n; i++)
        if (op->outs.data[i].reduce == EX_CONST)
            made[i] = cg_expr(cg, op->outs.data[i].body, &elem);
    Val *sum = ARENA_ARRAY(cg->arena, Val, op->outs.n);
    int n = axis >= 0 ? cg->k->axes[axis].size->i : 0;
    bool own = row || l->n == 1;
    if (axis >= 0 && own) along_lane(cg, &at, axis, n, sum);
    if (axis >= 0 && !own) across_lanes(cg, &at, axis, n, sum);
    for (int i = 0; i < op->outs.n; i++) {
        const TileResult *out = &op->outs.data[i];
        if (out->reduce != EX_CONST)
            made[i] = sum[i] ? sum[i] : identity(cg, out->reduce, out->body->type);
        set(cg, op->results.data[i], made[i]);
    }
}

static void store_where(Cg *cg, const TileOp *op, CgElem *elem, Val where, Val x) {
    const TileTensor *t = &cg->p->tensors.data[op->tensor];
    Val at = cg_i64(cg, 0);
    Blk done = cg_if(cg, where, "store");
    for (int d = 0; d < t->rank; d++) {
        Val i = cg_sext(cg, cg_expr(cg, op->coord[d].at, elem), cg->i64);
        at = cg_add(cg, at, cg_mul(cg, i, cg_stride(cg, op->tensor, d)));
    }
    Val p = cg_element(cg, cg_dtype(cg, t->dtype), cg_pointer(cg, op->tensor), at);
    cg_store(cg, cg_write(cg, x, t->dtype), p);
    cg_enter(cg, done);
}

// Of a number, by the first lane.
static void store(Cg *cg, const CgLanes *l, const TileOp *op) {
    const TileValue *v = op->args.data[0];
    At at = {.l = l, .op = op};
    CgElem elem = element(&at);
    if (v->rank || op->add || op->args.n > 1) {
        refuse(cg, op, "stores but of numbers");
        return;
    }
    Val first = cg_is(cg, l->lane, 0);
    store_where(cg, op, &elem, first, cg->value[v->id].e[0]);
}

static Val count_bits(Cg *cg, Val v) {
    Ty t = LLVMTypeOf(v);
    Val n = cg_intrinsic(cg, "llvm.ctpop", &t, 1, &v, 1);
    return t == cg->i32 ? n : cg_trunc(cg, n, cg->i32);
}

// How many of the warp's elements are appended before this thread's, and how many in all.
static void count(Cg *cg, const CgLanes *l, Val mine, Val *before, Val *all) {
    if (l->n == 1) {
        *before = cg_i32(cg, 0);
        *all = cg_zext(cg, mine, cg->i32);
        return;
    }
    Val votes = l->ballot(cg, mine), one = LLVMConstInt(LLVMTypeOf(votes), 1, false);
    Val lane = cg_zext(cg, l->lane, LLVMTypeOf(votes));
    Val below = cg_sub(cg, cg_shl(cg, one, lane), one);
    *before = count_bits(cg, cg_and(cg, votes, below));
    *all = count_bits(cg, votes);
}

static void append(Cg *cg, const CgLanes *l, const TileOp *op) {
    Val v[3], before, all;
    for (int i = 0; i < 3; i++) v[i] = cg->value[op->args.data[i]->id].e[0];
    count(cg, l, v[1], &before, &all);
    At at = {.l = l, .op = op, .number = cg_add(cg, v[2], before)};
    CgElem elem = element(&at);
    store_where(cg, op, &elem, v[1], v[0]);
    set(cg, op->results.data[0], cg_add(cg, v[2], all));
}

void cg_lanes_op(Cg *cg, const CgLanes *l, const TileOp *op) {
    switch ((int)op->kind) {
    case TILE_MAP: map(cg, l, op); return;
    case TILE_STORE: store(cg, l, op); return;
    case TILE_APPEND: append(cg, l, op); return;
    default: break;
    }
    refuse(cg, op, tile_kind_name(op->kind));
}
