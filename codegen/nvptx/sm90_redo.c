// sm90_redo.c: maps that are done again where what they made is too large (TILE_REDO).
//
// In: a number or two for each row, what stands, and a block of maps that makes it anew. Out: what stands, or
// behind a branch that a warp takes as one what the block yields. No thread of another warp needs to
// know: rows are a warp's own, and nothing is in flight. What the block reads, the scores, stays in
// registers until then.
#include "codegen/nvptx/sm90.h"

#include <assert.h>
#include <math.h>

// Each thread asks for its rows, or its parts of them, together; NULL: beside nothing.
static Val size_of(Cg *cg, const TileValue *of, Val size) {
    const CgValue *v = &cg->value[of->id];
    assert(v->n > 0 && "what is asked about is in registers");
    for (int i = 0; i < v->n; i++) {
        Val one = cg_intrinsic(cg, "llvm.fabs", &cg->f32, 1, &v->e[i], 1);
        size = size ? cg_fadd(cg, size, one) : one;
    }
    return size;
}

// One comparison for both: the shift, which is there long before, counts in the other's unit. No number is beyond, too.
static Val any_beyond(Cg *cg, const TileOp *op) {
    Val size = NULL;
    if (op->shift_bits) {
        Val unit = cg_f32(cg, ldexp(1.0, op->bits - op->shift_bits));
        size = cg_fmul(cg, size_of(cg, op->args.data[op->args.n - 1], NULL), unit);
    }
    size = size_of(cg, op->args.data[0], size);
    Val any = cg_fcmp(cg, LLVMRealUGT, size, cg_f32(cg, ldexp(1.0, op->bits)));
    Val vote[] = {cg_i32(cg, -1), any};
    return cg_intrinsic(cg, "llvm.nvvm.vote.any.sync", NULL, 0, vote, 2);
}

void nv90_redo(Cg *cg, const TileOp *op) {
    const TileOp *yield = op->body.last;
    assert(!nv90_state(cg)->flight.n);
    nv90_pack(cg);
    Val any = any_beyond(cg, op);
    Blk before = cg_here(cg), on = cg_if(cg, any, "redo");
    cg_lower_block(cg, &op->body, NULL);
    Blk work = cg_here(cg);
    cg_end_if(cg, on);
    for (int i = 0; i < op->results.n; i++) {
        const CgValue *made = &cg->value[yield->args.data[i]->id];
        const CgValue *stands = &cg->value[op->args.data[i + 1]->id];
        CgValue v = {ARENA_ARRAY(cg->arena, Val, made->n), made->n, NULL};
        for (int e = 0; e < v.n; e++) v.e[e] = cg_join(cg, stands->e[e], before, made->e[e], work);
        cg->value[op->results.data[i]->id] = v;
    }
}
