// sm90_redo.c: maps that are done again where what they made is too large (TILE_REDO).
//
// In: a number or two for each row, what stands, and a block of maps that makes it anew. Out: what stands, or
// behind a branch that a warp takes as one what the block yields. No thread of another warp needs to
// know: rows are a warp's own, and nothing is in flight. What the block reads, the scores, stays in
// registers until then.
#include "codegen/nvptx/sm90.h"

#include <assert.h>
#include <math.h>
#include <string.h>

// Each thread asks for its rows, or its parts of them, together; NULL: beside nothing.
static Val size_of(Cg *cg, const Val *of, int n, Val size) {
    assert(n > 0 && "what is asked about is in registers");
    for (int i = 0; i < n; i++) {
        Val v = of[i], one = cg_intrinsic(cg, "llvm.fabs", &cg->f32, 1, &v, 1);
        size = size ? cg_fadd(cg, size, one) : one;
    }
    return size;
}

static Val summand(Val sum, unsigned i) {
    bool adds = sum && LLVMIsAInstruction(sum) && LLVMGetInstructionOpcode(sum) == LLVMFAdd;
    return adds ? LLVMGetOperand(sum, i) : NULL;
}

// y of 2^y; NULL: it is something else.
static Val exponent_of(Val weight) {
    static const char power[] = "llvm.nvvm.ex2.approx.ftz.f";
    bool is = weight && LLVMIsACallInst(weight) &&
              LLVMGetIntrinsicID(LLVMGetCalledValue(weight)) ==
                  LLVMLookupIntrinsicID(power, sizeof power - 1);
    return is ? LLVMGetOperand(weight, 0) : NULL;
}

enum { LAST = 6 }; // weights of a row

// What was there before a step, and its weights one after the other, are added up: *sum becomes that without the last of these. `any`, or
// whether one of their exponents is over the limit.
static Val any_last(Cg *cg, Val *sum, Val limit, Val any) {
    Val step = summand(*sum, 1), before = summand(*sum, 0), exponent;
    int n = 0;
    for (; n < LAST && (exponent = exponent_of(summand(step, 1))); n++) {
        Val is = cg_fcmp(cg, LLVMRealUGT, exponent, limit);
        any = any ? cg_or(cg, any, is) : is;
        step = summand(step, 0);
    }
    if (n) *sum = cg_fadd(cg, before, step);
    return any;
}

// The last weights of each row have half of the bound. NULL: no sum ends with powers of 2.
static Val any_early(Cg *cg, int bits, Val *sum, int n) {
    enum { LAST_BITS = 3 };
    Val limit = cg_f32(cg, bits - 1 - LAST_BITS), any = NULL;
    for (int i = 0; i < n; i++) any = any_last(cg, &sum[i], limit, any);
    return any;
}

// One comparison for both: the shift, which is there long before, counts in the other's unit. No number is beyond, too.
static Val any_beyond(Cg *cg, const TileOp *op) {
    const CgValue *sums = &cg->value[op->args.data[0]->id];
    Val *sum = ARENA_ARRAY(cg->arena, Val, sums->n), size = NULL;
    memcpy(sum, sums->e, sizeof *sum * (size_t)sums->n);
    bool early = tile_is_marked(op, TILE_EARLY);
    Val last = early ? any_early(cg, op->bits, sum, sums->n) : NULL;
    int bits = last ? op->bits - 1 : op->bits;
    if (op->shift_bits) {
        const CgValue *shift = &cg->value[op->args.data[op->args.n - 1]->id];
        Val unit = cg_f32(cg, ldexp(1.0, bits - op->shift_bits));
        size = cg_fmul(cg, size_of(cg, shift->e, shift->n, NULL), unit);
    }
    size = size_of(cg, sum, sums->n, size);
    Val any = cg_fcmp(cg, LLVMRealUGT, size, cg_f32(cg, ldexp(1.0, bits)));
    if (last) any = cg_or(cg, last, any);
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
