// together.c: what all threads of a block make together in shared memory, for GPUs: values without the rows that lie over
// the warps, as the scores of a recurrence's chunk.
//
// In: a map, a product, a beside or an invert whose operands and results lie in shared memory. Out: loops in which each
// thread makes every so-many-th element of a result; readable behind the next barrier. (cooperative.c has vectors that are
// made of a tile's rows, with loads of many elements.)
#include "codegen/gpu/gpu.h"

#include <assert.h>

typedef struct Elem { // the element at hand
    const TileOp *op;
    Val index[TILE_MAX_AXES]; // i32, within the tile
} Elem;

static int extent(Cg *cg, int axis) { return tile_extent(&cg->k->axes[axis]); }

static Val pointer(Cg *cg, const Elem *e, const TileValue *v) {
    int axis = v->rank ? v->axis[0] : -1;
    assert(v->home == HOME_SHARED && v->rank <= 2);
    return cg_shared_pointer(cg, v, axis, v->rank ? e->index[axis] : NULL,
                             v->rank > 1 ? e->index[v->axis[1]] : NULL);
}

static Val get(Cg *cg, const Elem *e, const TileValue *v) {
    return cg_read(cg, LLVMBuildLoad2(cg->b, cg_dtype(cg, v->dtype), pointer(cg, e, v), ""),
                   v->dtype);
}

static void put(Cg *cg, const Elem *e, const TileValue *v, Val x) {
    LLVMBuildStore(cg->b, cg_write(cg, x, v->dtype), pointer(cg, e, v));
}

static Val operand(Cg *cg, CgElem *at, int k) {
    const Elem *e = at->ctx;
    return get(cg, e, e->op->args.data[k]);
}

static Val position(Cg *cg, CgElem *at, int axis) {
    const Elem *e = at->ctx;
    return LLVMBuildAdd(cg->b, cg_tile_begin(cg, axis), e->index[axis], "");
}

// ---- loops of one thread: from `from`, by `step`, while below `to`

typedef struct Loop {
    Blk pre, head, body, done;
    Val i, sum; // sum: what is carried, NULL: nothing
} Loop;

static Loop loop_begin(Cg *cg, Val from, Val to, Val start) {
    Loop l = {.pre = LLVMGetInsertBlock(cg->b), .head = cg_block(cg, "each")};
    l.body = cg_block(cg, "each.body");
    l.done = cg_block(cg, "each.done");
    LLVMBuildBr(cg->b, l.head);
    LLVMPositionBuilderAtEnd(cg->b, l.head);
    l.i = LLVMBuildPhi(cg->b, cg->i32, "");
    LLVMAddIncoming(l.i, &from, &l.pre, 1);
    if (start) {
        l.sum = LLVMBuildPhi(cg->b, LLVMTypeOf(start), "");
        LLVMAddIncoming(l.sum, &start, &l.pre, 1);
    }
    Val more = LLVMBuildICmp(cg->b, LLVMIntSLT, l.i, to, "");
    LLVMBuildCondBr(cg->b, more, l.body, l.done);
    LLVMPositionBuilderAtEnd(cg->b, l.body);
    return l;
}

static Val loop_end(Cg *cg, Loop *l, int step, Val sum) {
    Blk latch = LLVMGetInsertBlock(cg->b);
    Val next = LLVMBuildAdd(cg->b, l->i, cg_i32(cg, step), "");
    LLVMAddIncoming(l->i, &next, &latch, 1);
    if (sum) LLVMAddIncoming(l->sum, &sum, &latch, 1);
    LLVMBuildBr(cg->b, l->head);
    LLVMMoveBasicBlockAfter(l->done, latch);
    LLVMPositionBuilderAtEnd(cg->b, l->done);
    return l->sum;
}

// The elements of a value, one after the other, that are this thread's.
static Loop deal(Cg *cg, Elem *e, const TileValue *v) {
    int all = 1;
    for (int i = 0; i < v->rank; i++) all *= extent(cg, v->axis[i]);
    Loop l = loop_begin(cg, cg_gpu(cg)->tid, cg_i32(cg, all), NULL);
    Val rest = l.i;
    for (int i = v->rank - 1; i >= 0; i--) {
        int n = extent(cg, v->axis[i]);
        e->index[v->axis[i]] = i ? LLVMBuildURem(cg->b, rest, cg_i32(cg, n), "") : rest;
        rest = LLVMBuildUDiv(cg->b, rest, cg_i32(cg, n), "");
    }
    return l;
}

static void dealt(Cg *cg, Loop *l) { loop_end(cg, l, cg_gpu(cg)->threads, NULL); }

// ---- maps

// Whether place `j` counts for the scan at place `here`.
static Val counts(Cg *cg, const TileResult *r, Val j, Val here) {
    LLVMIntPredicate before = r->strict ? LLVMIntSLT : LLVMIntSLE;
    bool prefix = r->scan == SCAN_PREFIX;
    Val in = LLVMBuildICmp(cg->b, before, prefix ? j : here, prefix ? here : j, "");
    if (!r->by) return in;
    Val by = cg_i32(cg, r->by), own = LLVMBuildUDiv(cg->b, here, by, "");
    Val same = LLVMBuildICmp(cg->b, LLVMIntEQ, LLVMBuildUDiv(cg->b, j, by, ""), own, "");
    return LLVMBuildAnd(cg->b, in, same, "");
}

// A reduction or a scan, of which places beyond the axis' size do not count.
static Val reduced(Cg *cg, Elem *e, CgElem *at, const TileResult *r) {
    int axis = r->reduce_axis, n = extent(cg, axis);
    const TileAxis *a = &cg->k->axes[axis];
    if (a->whole && a->size->i < n) n = a->size->i;
    Val here = e->index[axis], none = cg_f32(cg, ex_identity(r->reduce));
    Loop l = loop_begin(cg, cg_i32(cg, 0), cg_i32(cg, n), none);
    Val place = r->scan == SCAN_SUFFIX ? LLVMBuildSub(cg->b, cg_i32(cg, n - 1), l.i, "") : l.i;
    e->index[axis] = place;
    cg_elem_begin(cg, at);
    Val x = cg_expr(cg, r->body, at);
    if (r->scan) x = LLVMBuildSelect(cg->b, counts(cg, r, place, here), x, none, "");
    e->index[axis] = here;
    Val sum = loop_end(cg, &l, 1, cg_merge(cg, r->reduce, l.sum, x));
    cg_elem_begin(cg, at);
    return sum;
}

static void map(Cg *cg, Elem *e) {
    for (int i = 0; i < e->op->results.n; i++) {
        const TileResult *r = &e->op->outs.data[i];
        const TileValue *v = e->op->results.data[i];
        CgElem at = {.lanes = 1, .param = operand, .pos = position, .lane_axis = -1, .ctx = e};
        Loop l = deal(cg, e, v);
        Val x = r->reduce == EX_CONST ? cg_expr(cg, r->body, &at) : reduced(cg, e, &at, r);
        put(cg, e, v, x);
        dealt(cg, &l);
    }
}

// ---- the others

static void product(Cg *cg, Elem *e) {
    const TileValue *v = e->op->results.data[0];
    const TileValue *add = e->op->args.n > 2 ? e->op->args.data[2] : NULL;
    int inner = tile_contracted_axis(e->op);
    Loop l = deal(cg, e, v);
    Val start = add ? get(cg, e, add) : cg_f32(cg, 0);
    Loop terms = loop_begin(cg, cg_i32(cg, 0), cg_i32(cg, extent(cg, inner)), start);
    e->index[inner] = terms.i;
    Val f[] = {get(cg, e, e->op->args.data[0]), get(cg, e, e->op->args.data[1]), terms.sum};
    Val sum = cg_intrinsic(cg, "llvm.fma", &cg->f32, 1, f, 3);
    put(cg, e, v, loop_end(cg, &terms, 1, sum));
    dealt(cg, &l);
}

static void beside(Cg *cg, Elem *e) {
    const TileValue *v = e->op->results.data[0];
    Loop l = deal(cg, e, v);
    e->index[tile_beside_from(e->op)] = e->index[tile_beside_to(e->op)];
    put(cg, e, v, get(cg, e, e->op->args.data[0]));
    dealt(cg, &l);
}

static Val at_place(Cg *cg, Elem *e, const TileValue *v, Val row, Val col) {
    e->index[v->axis[0]] = row, e->index[v->axis[1]] = col;
    return get(cg, e, v);
}

// A thread has column u of W. W(t, u) = N(u, t) + the sum over t < j < u of N(j, t) W(j, u), from t = u - 1 down. As f32 it
// lies above the diagonal of N, of which nobody else reads that part; then the whole column goes to the result.
static void invert(Cg *cg, Elem *e) {
    const TileValue *v = e->op->results.data[0], *N = e->op->args.data[0];
    int row = v->axis[0], col = v->axis[1], n = extent(cg, row);
    Val zero = cg_i32(cg, 0);
    Loop l = loop_begin(cg, cg_gpu(cg)->tid, cg_i32(cg, n), NULL);
    Val u = l.i;
    Loop up = loop_begin(cg, zero, u, NULL);
    Val t = LLVMBuildSub(cg->b, LLVMBuildSub(cg->b, u, up.i, ""), cg_i32(cg, 1), "");
    Loop terms =
        loop_begin(cg, LLVMBuildAdd(cg->b, t, cg_i32(cg, 1), ""), u, at_place(cg, e, N, u, t));
    Val f[] = {at_place(cg, e, N, terms.i, t), at_place(cg, e, N, terms.i, u), terms.sum};
    Val x = loop_end(cg, &terms, 1, cg_intrinsic(cg, "llvm.fma", &cg->f32, 1, f, 3));
    e->index[row] = t, e->index[col] = u;
    put(cg, e, N, x);
    loop_end(cg, &up, 1, NULL);
    Loop out = loop_begin(cg, zero, cg_i32(cg, n), NULL);
    Val above = LLVMBuildICmp(cg->b, LLVMIntSLT, out.i, u, "");
    Val same = LLVMBuildICmp(cg->b, LLVMIntEQ, out.i, u, "");
    x = LLVMBuildSelect(cg->b, above, at_place(cg, e, N, out.i, u), cg_f32(cg, 0), "");
    put(cg, e, v, LLVMBuildSelect(cg->b, same, cg_f32(cg, 1), x, ""));
    loop_end(cg, &out, 1, NULL);
    dealt(cg, &l);
}

bool cg_is_together(const TileOp *op) {
    bool map = op->kind == TILE_MAP;
    if (!tile_makes_shared(op)) return false;
    bool more = !map || op->results.n > 1 || tile_scans(op) || op->outs.data[0].reduce == EX_CONST;
    for (int i = 0; i < op->results.n; i++) more |= op->results.data[i]->rank != 1;
    return more;
}

void cg_together(Cg *cg, const TileOp *op) {
    Elem e = {.op = op};
    for (int i = 0; i < op->results.n; i++) cg_alloc(cg, op->results.data[i]);
    switch ((int)op->kind) {
    case TILE_MAP: map(cg, &e); return;
    case TILE_MMA: product(cg, &e); return;
    case TILE_BESIDE: beside(cg, &e); return;
    default: invert(cg, &e); return;
    }
}
