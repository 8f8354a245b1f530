// map.c: maps and their reductions as loops over vectors.
//
// In: a map. Out: loops that store its results. Vectors run along the lane axis, or in a map
// without it along what its first operand is contiguous in; a reduced axis is the innermost loop,
// its accumulators in registers:
//
//     map [M, N] rowsum over N   ->   for N: 4 vectors of M: load, compute, acc += ..
//                                     store 4 vectors
//
// A scan is a walk of its own, in order along its axis. Results that reduce over different axes take a walk each; plain results go with the last one,
// since they may be made in the place of an operand.
#include "codegen/host/host.h"

#include <math.h>

typedef struct MapElem {
    const TileOp *op;
    Val index[TILE_MAX_AXES];
} MapElem;

typedef struct MapWalk {
    const TileOp *op;
    int along, lanes; // the vectors' axis
    int unroll;       // vectors side by side
    int reduced;      // axis, or -1
    bool plain;       // stores the results that are not reduced
    Val index[TILE_MAX_AXES];
    Val (*acc)[HOST_MAX_VECTORS]; // by result: the reductions' values so far
} MapWalk;

// ---- the element

static Val param(Cg *cg, CgElem *at, int k) {
    MapElem *e = at->ctx;
    return host_load(cg, e->op->args.data[k], e->index, at->lanes, at->lane_axis);
}

static Val position(Cg *cg, const Val *index, int axis) {
    Val i = cg_trunc(cg, index[axis], cg->i32);
    if (cg->k->axes[axis].whole) return i;
    return cg_add(cg, cg_tile_begin(cg, axis), i);
}

static Val pos(Cg *cg, CgElem *at, int axis) {
    MapElem *e = at->ctx;
    if (axis != at->lane_axis || at->lanes == 1) return position(cg, e->index, axis);
    Val lane[64];
    for (int i = 0; i < at->lanes; i++) lane[i] = cg_i32(cg, i);
    Val first = cg_splat(cg, at->lane_first, at->lanes);
    return cg_add(cg, first, LLVMConstVector(lane, (unsigned)at->lanes));
}

// ---- one walk over the elements

// A NaN is passed over by maximum and minimum: the compare is false.
static Val merge(Cg *cg, ExOp reduce, Val acc, Val v) {
    if (reduce == EX_ROWSUM) return cg_fast(cg_fadd(cg, acc, v));
    LLVMRealPredicate better = reduce == EX_ROWMAX ? LLVMRealOGT : LLVMRealOLT;
    return cg_select(cg, cg_fcmp(cg, better, v, acc), v, acc);
}

static bool in_walk(const MapWalk *w, int result) {
    const TileResult *r = &w->op->outs.data[result];
    if (r->scan) return false;
    return r->reduce == EX_CONST ? w->plain : r->reduce_axis == w->reduced;
}

static bool is_reduced(const MapWalk *w, int result) {
    return in_walk(w, result) && w->op->outs.data[result].reduce != EX_CONST;
}

// The results at one vector: stores the plain ones, adds to the others' accumulators.
static void element(Cg *cg, MapWalk *w, int u) {
    MapElem e = {.op = w->op};
    for (int i = 0; i < w->op->naxes; i++) e.index[w->op->axes[i]] = w->index[w->op->axes[i]];
    CgElem at = {.lanes = w->lanes, .param = param, .pos = pos, .lane_axis = w->along, .ctx = &e};
    if (w->along >= 0) {
        e.index[w->along] = cg_add(cg, w->index[w->along], cg_i64(cg, u * w->lanes));
        at.lane_first = position(cg, e.index, w->along);
    }
    Val *v = ARENA_ARRAY(cg->arena, Val, w->op->outs.n);
    for (int r = 0; r < w->op->outs.n; r++)
        if (in_walk(w, r)) v[r] = cg_expr(cg, w->op->outs.data[r].body, &at);
    for (int r = 0; r < w->op->outs.n; r++) {
        const TileResult *out = &w->op->outs.data[r];
        const TileValue *to = w->op->results.data[r];
        if (!v[r]) continue;
        int lanes = out->reduce != EX_CONST || tile_has_axis(to, w->along) ? w->lanes : 1;
        v[r] = cg_widen(cg, v[r], lanes);
        if (out->reduce == EX_CONST)
            host_store(cg, to, e.index, v[r]);
        else
            w->acc[r][u] = merge(cg, out->reduce, w->acc[r][u], v[r]);
    }
}

static Val across(Cg *cg, ExOp reduce, Val v) {
    if (cg_lanes(v) == 1) return v;
    Ty t = LLVMTypeOf(v);
    if (reduce == EX_ROWSUM) return host_sum(cg, v);
    const char *name = reduce == EX_ROWMAX ? "llvm.vector.reduce.fmax" : "llvm.vector.reduce.fmin";
    return cg_intrinsic(cg, name, &t, 1, &v, 1);
}

static void store_reduced(Cg *cg, MapWalk *w, int r) {
    ExOp reduce = w->op->outs.data[r].reduce;
    Val index[TILE_MAX_AXES];
    for (int a = 0; a < TILE_MAX_AXES; a++) index[a] = w->index[a];
    if (w->along >= 0 && w->along != w->reduced) {
        for (int u = 0; u < w->unroll; u++) {
            index[w->along] = cg_add(cg, w->index[w->along], cg_i64(cg, u * w->lanes));
            host_store(cg, w->op->results.data[r], index, w->acc[r][u]);
        }
        return;
    }
    Val sum = w->acc[r][0];
    for (int u = 1; u < w->unroll; u++) sum = merge(cg, reduce, sum, w->acc[r][u]);
    host_store(cg, w->op->results.data[r], index, across(cg, reduce, sum));
}

// The innermost loop, over the reduced axis.
static void reduce_loop(Cg *cg, MapWalk *w) {
    Val(*phi)[HOST_MAX_VECTORS] = arena_alloc(cg->arena, sizeof *phi * (size_t)w->op->outs.n);
    int64_t step = w->along == w->reduced ? (int64_t)w->lanes * w->unroll : 1;
    HostLoop l = host_loop(cg, host_extent(cg, w->reduced), step);
    w->index[w->reduced] = l.i;
    for (int r = 0; r < w->op->outs.n; r++)
        for (int u = 0; u < w->unroll && is_reduced(w, r); u++) {
            Val start = cg_splat(cg, cg_f32(cg, ex_identity(w->op->outs.data[r].reduce)), w->lanes);
            w->acc[r][u] = phi[r][u] = host_loop_phi(cg, &l, start);
        }
    for (int u = 0; u < w->unroll; u++) element(cg, w, u);
    for (int r = 0; r < w->op->outs.n; r++)
        for (int u = 0; u < w->unroll && is_reduced(w, r); u++)
            host_loop_next(cg, &l, phi[r][u], w->acc[r][u]);
    host_loop_end(cg, &l);
    for (int r = 0; r < w->op->outs.n; r++)
        if (is_reduced(w, r)) store_reduced(cg, w, r);
}

static void walk(Cg *cg, MapWalk *w) {
    HostLoop loops[TILE_MAX_RANK];
    int n = 0;
    for (int i = 0; i < w->op->naxes; i++) {
        int a = w->op->axes[i];
        if (a == w->along || a == w->reduced) continue;
        loops[n] = host_loop(cg, host_extent(cg, a), 1);
        w->index[a] = loops[n++].i;
    }
    if (w->along >= 0 && w->along != w->reduced) {
        loops[n] = host_loop(cg, host_extent(cg, w->along), (int64_t)w->lanes * w->unroll);
        w->index[w->along] = loops[n++].i;
    }
    if (w->reduced >= 0)
        reduce_loop(cg, w);
    else
        for (int u = 0; u < w->unroll; u++) element(cg, w, u);
    while (n > 0) host_loop_end(cg, &loops[--n]);
}

// ---- scans

static Val scan_start(Cg *cg, const TileResult *r, int lanes) {
    return cg_splat(cg, cg_f32(cg, ex_identity(r->reduce)), lanes);
}

// The step along the axis: takes what was summed up to here, stores, gives what is summed then.
static Val scan_step(Cg *cg, const TileOp *op, int result, CgElem *at, Val step, Val acc) {
    const TileResult *r = &op->outs.data[result];
    MapElem *e = at->ctx;
    if (r->by) {
        Val begins = cg_urem(cg, step, cg_i64(cg, r->by));
        begins = cg_same(cg, begins, cg_i64(cg, 0));
        acc = cg_select(cg, begins, scan_start(cg, r, at->lanes), acc);
    }
    Val next = merge(cg, r->reduce, acc, cg_widen(cg, cg_expr(cg, r->body, at), at->lanes));
    host_store(cg, op->results.data[result], e->index, r->strict ? acc : next);
    return next;
}

static void scan(Cg *cg, const TileOp *op, int result) {
    const TileResult *r = &op->outs.data[result];
    const TileValue *v = op->results.data[result];
    int along = host_stride1(cg, v), axis = r->reduce_axis, n = 0;
    MapElem e = {.op = op};
    HostLoop loops[TILE_MAX_RANK];
    if (along == axis || host_width(cg, along) == 1) along = -1;
    CgElem at = {
        .lanes = host_width(cg, along), .param = param, .pos = pos, .lane_axis = along, .ctx = &e};
    for (int i = 0; i < v->rank; i++) {
        int a = v->axis[i];
        if (a == axis) continue;
        loops[n] = host_loop(cg, host_extent(cg, a), a == along ? at.lanes : 1);
        e.index[a] = loops[n++].i;
    }
    if (along >= 0) at.lane_first = position(cg, e.index, along);
    HostLoop l = host_loop(cg, host_extent(cg, axis), 1);
    Val acc = host_loop_phi(cg, &l, scan_start(cg, r, at.lanes)), last = cg_i64(cg, l.count - 1);
    e.index[axis] = r->scan == SCAN_PREFIX ? l.i : cg_sub(cg, last, l.i);
    host_loop_next(cg, &l, acc, scan_step(cg, op, result, &at, l.i, acc));
    host_loop_end(cg, &l);
    while (n > 0) host_loop_end(cg, &loops[--n]);
}

// ---- the map

// About how many instructions a vector takes: long bodies are not repeated side by side.
static int weight(Cg *cg, const TileOp *op) {
    int n = 0;
    for (int i = 0; i < op->outs.n; i++) {
        const Ex **order;
        int count = ex_order(cg->arena, &op->outs.data[i].body, 1, &order);
        for (int k = 0; k < count; k++) {
            bool math = order[k]->op >= EX_EXP && order[k]->op <= EX_POW && order[k]->op != EX_EXP2;
            n += math ? 20 : order[k]->op == EX_LOAD || order[k]->op == EX_DIV ? 8 : 1;
        }
        for (int k = 0; k < count; k++)
            if (order[k]->op == EX_SYM && order[k]->sym == SYM_MASK) n += 8;
    }
    return n;
}

static int vector_axis(Cg *cg, const TileOp *op) {
    int lane = host_of(cg)->lane_axis;
    for (int i = 0; i < op->naxes; i++)
        if (op->axes[i] == lane) return lane;
    int axis = op->args.n ? host_stride1(cg, op->args.data[0]) : -1;
    if (axis < 0 && op->naxes) axis = op->axes[op->naxes - 1];
    for (int i = 0; i < op->outs.n;
         i++) { // plain results are stored as vectors, so they must be contiguous along it
        const TileValue *v = op->results.data[i];
        if (op->outs.data[i].reduce == EX_CONST && v->rank && host_stride1(cg, v) != axis)
            return -1;
        if (op->outs.data[i].reduce != EX_CONST && !op->outs.data[i].scan &&
            tile_has_axis(v, axis) && host_stride1(cg, v) != axis)
            return -1;
    }
    return axis;
}

static int pick_unroll(Cg *cg, const TileOp *op, const MapWalk *w) {
    if (w->along < 0) return 1;
    int n = weight(cg, op), vectors = host_extent(cg, w->along) / w->lanes;
    int most = n <= 24 ? HOST_MAX_VECTORS : n <= 60 ? 2 : 1;
    if (host_of(cg)->registers < 32 && most > 2) most = 2;
    while (vectors % most) most /= 2;
    return most;
}

static void reduce_and_store(Cg *cg, const TileOp *op) {
    MapWalk w = {.op = op, .along = vector_axis(cg, op)};
    w.lanes = host_width(cg, w.along);
    if (w.lanes == 1) w.along = -1;
    w.unroll = pick_unroll(cg, op, &w);
    w.acc = arena_alloc(cg->arena, sizeof *w.acc * (size_t)op->outs.n);
    for (int a = 0; a < TILE_MAX_AXES; a++) w.index[a] = cg_i64(cg, 0);
    bool any_plain = false;
    VEC(int) axes = {0};
    for (int i = 0; i < op->outs.n; i++) {
        const TileResult *r = &op->outs.data[i];
        bool seen = r->reduce == EX_CONST || r->scan;
        any_plain |= r->reduce == EX_CONST;
        for (int k = 0; k < axes.n; k++) seen |= axes.data[k] == r->reduce_axis;
        if (!seen) VEC_PUSH(cg->arena, &axes, r->reduce_axis);
    }
    for (int k = 0; k < axes.n; k++) {
        w.reduced = axes.data[k];
        w.plain = any_plain && k == axes.n - 1;
        walk(cg, &w);
    }
    w.reduced = -1;
    w.plain = true;
    if (!axes.n) walk(cg, &w);
}

static void build(Cg *cg, const TileOp *op) {
    bool only_scans = true;
    for (int i = 0; i < op->outs.n; i++) {
        if (op->outs.data[i].scan)
            scan(cg, op, i);
        else
            only_scans = false;
    }
    if (!only_scans) reduce_and_store(cg, op);
}

// ---- a function for each computation

// Only of its operands: nothing of the place in the grid, no size, no tensor. Such a map is a
// function, made once for all loops and kernels that compute the same (tiles by class, splits of
// the keys).
static bool pure(Cg *cg, const TileOp *op) {
    for (int i = 0; i < op->args.n; i++)
        if (host_place(cg, op->args.data[i])->view) return false;
    for (int i = 0; i < op->outs.n; i++) {
        const Ex **order;
        int n = ex_order(cg->arena, &op->outs.data[i].body, 1, &order);
        for (int k = 0; k < n; k++)
            if (order[k]->op == EX_LOAD || (order[k]->op == EX_SYM && order[k]->sym != SYM_PARAM))
                return false;
    }
    return true;
}

typedef struct Slots { // of the map's operands and results, each once: what is made in place is one
                       // parameter
    int n, *slot;
    Val *mem;
} Slots;

static int slot_of(Cg *cg, Slots *s, const TileValue *v) {
    const HostPlace *p = host_place(cg, v);
    for (int i = 0; i < s->n; i++)
        if (s->slot[i] == p->slot) return i;
    s->slot[s->n] = p->slot;
    s->mem[s->n] = p->mem;
    return s->n++;
}

static void name_value(Cg *cg, Text *name, Slots *slots, const TileValue *v) {
    text_printf(name, "_%d%s", slot_of(cg, slots, v), dtype_name(v->dtype));
    for (int i = 0; i < v->rank; i++)
        text_printf(name, "%c%lld", 'a' + v->axis[i],
                    LLVMConstIntGetSExtValue(host_place(cg, v)->stride[i]));
}

// Equal names are equal computations: expressions of one program are equal when their numbers are.
static const char *name_of(Cg *cg, const TileOp *op, Slots *slots) {
    Text name = text_new(cg->arena);
    text_printf(&name, "attn.map_%s_l%d", cg->p->name, host_of(cg)->lane_axis);
    for (int i = 0; i < op->naxes; i++)
        text_printf(&name, "_%c%d", 'a' + op->axes[i], host_extent(cg, op->axes[i]));
    for (int i = 0; i < op->args.n; i++) name_value(cg, &name, slots, op->args.data[i]);
    for (int i = 0; i < op->outs.n; i++) {
        const TileResult *r = &op->outs.data[i];
        text_printf(&name, "_e%u", r->body->id);
        if (r->reduce != EX_CONST)
            text_printf(&name, "_%s%d", ex_op_name(r->reduce), r->reduce_axis);
        if (r->scan) text_printf(&name, "_s%d_%d_%d", r->scan, r->strict, r->by);
        name_value(cg, &name, slots, op->results.data[i]);
    }
    return name.s;
}

static void build_function(Cg *cg, const TileOp *op, HostFunction *f, Slots *slots) {
    int n = op->args.n + op->results.n;
    Val *outer = ARENA_ARRAY(cg->arena, Val, n + 1);
    for (int i = 0; i < n; i++) {
        const TileValue *v = i < op->args.n ? op->args.data[i] : op->results.data[i - op->args.n];
        outer[i] = host_place(cg, v)->mem;
        host_place(cg, v)->mem = LLVMGetParam(f->fn, (unsigned)slot_of(cg, slots, v));
    }
    Val tile[TILE_MAX_AXES]; // places are built for every element, and dead here
    for (int a = 0; a < TILE_MAX_AXES; a++) {
        tile[a] = cg->tile[a];
        cg->tile[a] = cg_i32(cg, 0);
    }
    build(cg, op);
    for (int a = 0; a < TILE_MAX_AXES; a++) cg->tile[a] = tile[a];
    for (int i = n - 1; i >= 0;
         i--) { // an operand may stand there twice: the first one's is the outer
        const TileValue *v = i < op->args.n ? op->args.data[i] : op->results.data[i - op->args.n];
        host_place(cg, v)->mem = outer[i];
    }
    host_function_end(cg, f);
}

void host_map(Cg *cg, const TileOp *op) {
    for (int i = 0; i < op->results.n; i++) host_bind(cg, op->results.data[i]);
    if (!pure(cg, op)) {
        build(cg, op);
        return;
    }
    int most = op->args.n + op->results.n + 1;
    Slots slots = {0, ARENA_ARRAY(cg->arena, int, most), ARENA_ARRAY(cg->arena, Val, most)};
    const char *name = name_of(cg, op, &slots);
    Ty *params = ARENA_ARRAY(cg->arena, Ty, most);
    for (int i = 0; i < slots.n; i++) params[i] = cg->ptr;
    HostFunction f;
    if (host_function(cg, &f, name, params, slots.n)) build_function(cg, op, &f, &slots);
    host_call(cg, &f, slots.mem, slots.n);
}
