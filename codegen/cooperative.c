// cooperative.c: maps whose results lie in the memory that a block shares, for GPUs: vectors along
// one axis. Each element is made by one of the block's threads, which walks the axis that is
// reduced, if any.
//
// In: a TILE_MAP whose operands lie in shared memory. Out: its results there, readable behind the
// next barrier. And what the maps of these targets say of reductions and positions.
#include "codegen/cg.h"

#include <assert.h>

Val cg_merge(Cg *cg, ExOp reduce, Val a, Val b) {
    if (!a) return b;
    Val v[] = {a, b};
    if (reduce == EX_ROWSUM) return cg_fast(LLVMBuildFAdd(cg->b, a, b, ""));
    return cg_math(cg, reduce == EX_ROWMAX ? EX_MAX : EX_MIN, v, 2);
}

Val cg_tile_begin(Cg *cg, int axis) {
    const TileAxis *a = &cg->k->axes[axis];
    if (a->whole || !cg->tile[axis]) return cg_i32(cg, 0);
    return LLVMBuildMul(cg->b, cg->tile[axis], cg_i32(cg, a->extent), "");
}

typedef struct At { // the element at hand
    const TileOp *op;
    const CgShared *shared;
    int axis;        // the vector's
    Val own, walked; // along it; along the other axis
} At;

static Val address(Cg *cg, const At *at, const TileValue *v, Val offset) {
    return at->shared->pointer(cg, LLVMBuildAdd(cg->b, cg->value[v->id].mem, offset, ""));
}

static Val operand(Cg *cg, CgElem *elem, int k) {
    const At *at = elem->ctx;
    const TileValue *v = at->op->args.data[k];
    assert(v->home == HOME_SHARED);
    Val p = address(cg, at, v, at->shared->offset(cg, v, at->axis, at->own, at->walked));
    return cg_read(cg, LLVMBuildLoad2(cg->b, cg_dtype(cg, v->dtype), p, ""), v->dtype);
}

static Val position(Cg *cg, CgElem *elem, int axis) {
    const At *at = elem->ctx;
    Val in = axis == at->axis ? at->own : at->walked;
    return LLVMBuildAdd(cg->b, cg_tile_begin(cg, axis), in, "");
}

// Of the element at hand: the body, or its reduction in a loop.
static Val made(Cg *cg, CgElem *elem, const TileResult *out) {
    At *at = elem->ctx;
    if (out->reduce == EX_CONST) return cg_expr(cg, out->body, elem);
    Blk pre = LLVMGetInsertBlock(cg->b), head = cg_block(cg, "column"),
        done = cg_block(cg, "reduced");
    LLVMBuildBr(cg->b, head);
    LLVMPositionBuilderAtEnd(cg->b, head);
    at->walked = LLVMBuildPhi(cg->b, cg->i32, "");
    Val acc = LLVMBuildPhi(cg->b, cg->f32, "");
    Val next = cg_merge(cg, out->reduce, acc, cg_expr(cg, out->body, elem));
    Val col = LLVMBuildAdd(cg->b, at->walked, cg_i32(cg, 1), "");
    Blk latch = LLVMGetInsertBlock(cg->b);
    LLVMAddIncoming(at->walked, (Val[]){cg_i32(cg, 0), col}, (Blk[]){pre, latch}, 2);
    LLVMAddIncoming(acc, (Val[]){cg_f32(cg, ex_identity(out->reduce)), next}, (Blk[]){pre, latch},
                    2);
    const Ex *size = cg->k->axes[out->reduce_axis].size;
    Val more = LLVMBuildICmp(cg->b, LLVMIntSLT, col, cg_uniform(cg, size), "");
    LLVMBuildCondBr(cg->b, more, head, done);
    LLVMPositionBuilderAtEnd(cg->b, done);
    return next;
}

// The elements from `first` on, one for each thread.
static void chunk(Cg *cg, const CgShared *shared, const TileOp *op, int i, int first, int width) {
    const TileValue *v = op->results.data[i];
    At at = {.op = op, .shared = shared, .axis = op->results.data[0]->axis[0]};
    at.own = LLVMBuildAdd(cg->b, shared->tid, cg_i32(cg, first), "");
    CgElem elem = {.lanes = 1, .param = operand, .pos = position, .lane_axis = -1, .ctx = &at};
    Blk work = cg_block(cg, "vector"), done = cg_block(cg, "vector.done");
    Val in = LLVMBuildICmp(cg->b, LLVMIntSLT, at.own, cg_i32(cg, width), "");
    LLVMBuildCondBr(cg->b, in, work, done);
    LLVMPositionBuilderAtEnd(cg->b, work);
    Val x = made(cg, &elem, &op->outs.data[i]);
    Val p = address(cg, &at, v, LLVMBuildMul(cg->b, at.own, cg_i32(cg, dtype_bytes(v->dtype)), ""));
    LLVMBuildStore(cg->b, cg_write(cg, x, v->dtype), p);
    LLVMBuildBr(cg->b, done);
    LLVMPositionBuilderAtEnd(cg->b, done);
}

void cg_cooperative_map(Cg *cg, const TileOp *op, const CgShared *shared) {
    for (int i = 0; i < op->results.n; i++) {
        const TileValue *v = op->results.data[i];
        assert(v->home == HOME_SHARED && v->rank == 1);
        int width = cg->k->axes[v->axis[0]].extent;
        cg->value[v->id].mem = shared->place(cg, v);
        for (int first = 0; first < width; first += shared->threads)
            chunk(cg, shared, op, i, first, width);
    }
}
