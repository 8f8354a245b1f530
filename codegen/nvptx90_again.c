// nvptx90_again.c: tiles that are computed again (TILE_AGAIN): who asks for it and who finds it.
//
// In: a value of each row, and the turn of a tile. Out, in shared memory: a word of flags with one bit
// for each of the last NV90_TURNS turns, which consumers set if their tile failed; a ring of the tile
// numbers of those turns, where the producer finds the number of a failed tile; and how many it took. In
// a cluster all of these are the first block's, and its producer chooses for all.
//
// Verdicts come a few turns late. A tile may be started again before the last of its consumers has set
// its bit. Then it is computed twice, which changes nothing. But a bit must never belong to two turns
// at once. When turn t is chosen, no consumer can set the bit of turn t - L or an earlier one. In a block alone
// L is 4: t - 1 was told when all had heard of t - 3, behind their verdict on t - 4. In a cluster the
// first block is ahead of the other's consumers only as far as the pipes that both empty let it. A
// tile has a copy at least through such a pipe, and that of t - 1 waited until one of a turn u, not
// before t - 1 - stages, was read in both blocks. So the other's producer had told u too, and had
// waited until all had heard of u - 2, behind their verdict on u - 3: L is stages + 4. At every
// choice one more turn can set no flag any more, and a choice takes the oldest flag. So a flag is at
// most L turns old when it is taken. When a later round begins, all verdicts are in, on L turns at most.
// Its turns take a flag each, oldest first, and add none, because a tile that is computed again is not
// tested.
#include "codegen/nvptx90.h"

#include <assert.h>
#include <math.h>

static Val add(Cg *cg, Val a, Val b) { return LLVMBuildAdd(cg->b, a, b, ""); }
static Val low(Cg *cg, Val v, int mask) { return LLVMBuildAnd(cg->b, v, cg_i32(cg, mask), ""); }
static Val bit(Cg *cg, Val i) { return LLVMBuildShl(cg->b, cg_i32(cg, 1), i, ""); }

static Val of_three(Cg *cg, const char *name, Val a, Val b, Val c) {
    return cg_intrinsic(cg, name, &cg->i32, 1, (Val[]){a, b, c}, c ? 3 : 2);
}

int nv90_place_again(Nv90 *h, int at) {
    if (!h->has_again) return at;
    for (int i = 0; i < h->pipes.n; i++)
        assert(h->pipes.data[i].ring->stages + 4 <= NV90_TURNS && "verdicts are in by then");
    h->settled = at;
    h->flags = at + 8;
    h->failures = h->flags + 4;
    h->told_numbers = h->failures + 4;
    h->grid_words = h->told_numbers + 4 * NV90_TURNS;
    return h->grid_words + 4 * NV90_GRID_WORDS;
}

void nv90_init_again(Cg *cg) {
    const Nv90 *h = nv90_state(cg);
    if (!h->has_again) return;
    nv90_barrier_init(cg, nv90_shared(cg, h->settled), 1);
    LLVMBuildStore(cg->b, cg_i32(cg, 0), nv_shared_ptr(cg, nv90_shared(cg, h->flags)));
    LLVMBuildStore(cg->b, cg_i32(cg, 0), nv_shared_ptr(cg, nv90_shared(cg, h->failures)));
}

// ---- consumers

// ptxas lets one lane of a warp ask for all, behind a branch: no product is in flight.
void nv90_again(Cg *cg, const TileOp *op) {
    const Nv90 *h = nv90_state(cg);
    const CgValue *v = &cg->value[op->args.data[0]->id];
    Val bound = cg_f32(cg, ldexp(1.0, op->bits)), bad = LLVMConstNull(cg->i1);
    assert(v->n > 0 && "what is asked about is in registers");
    for (int i = 0; i < v->n; i++) {
        Val size = cg_intrinsic(cg, "llvm.fabs", &cg->f32, 1, &v->e[i], 1);
        Val beyond = LLVMBuildFCmp(cg->b, LLVMRealUGT, size, bound, ""); // or no number
        bad = LLVMBuildOr(cg->b, bad, beyond, "");
    }
    bad = LLVMBuildAnd(cg->b, bad, LLVMBuildNot(cg->b, cg->again, ""), "");
    Val next = LLVMBuildLoad2(cg->b, cg->i32, h->turn, ""); // has counted the current tile
    Val turn = low(cg, add(cg, next, cg_i32(cg, -1)), NV90_TURNS - 1);
    Val at = nv90_shared(cg, h->flags);
    if (h->rank) at = nv90_remote(cg, at, cg_i32(cg, 0));
    nv90_set_bits(cg, at, bit(cg, turn), bad, h->rank != NULL);
}

// ---- the producer

Val nv90_failed(Cg *cg) {
    return nv90_keep_bits(cg, nv90_shared(cg, nv90_state(cg)->flags), cg_i32(cg, -1));
}

// In shared memory, as the grid is: it is needed once a tile, and the producer has no register left.
Val nv90_failures(Cg *cg) {
    Val at = nv_shared_ptr(cg, nv90_shared(cg, nv90_state(cg)->failures));
    Val n = LLVMBuildLoad2(cg->b, cg->i32, at, "");
    LLVMSetVolatile(n, true);
    return n;
}

static void count_failure(Cg *cg) {
    Val n = add(cg, nv90_failures(cg), cg_i32(cg, 1));
    Val at = nv_shared_ptr(cg, nv90_shared(cg, nv90_state(cg)->failures));
    LLVMSetVolatile(LLVMBuildStore(cg->b, n, at), true);
}

static Val number_place(Cg *cg, Val turn) {
    Val i = low(cg, turn, NV90_TURNS - 1);
    Val at = LLVMBuildMul(cg->b, i, cg_i32(cg, 4), "");
    return nv_shared_ptr(cg, add(cg, nv90_shared(cg, nv90_state(cg)->told_numbers), at));
}

void nv90_told(Cg *cg, Val turn, Val choice) {
    LLVMSetVolatile(LLVMBuildStore(cg->b, choice, number_place(cg, turn)), true);
}

// Rotated by `turn` the word has the oldest turn's bit lowest: that of turn - NV90_TURNS.
Val nv90_take_failed(Cg *cg, Val failed, Val turn) {
    Val by_age = of_three(cg, "llvm.fshr", failed, failed, turn);
    Val first = of_three(cg, "llvm.cttz", by_age, LLVMConstInt(cg->i1, 1, false), NULL);
    Val oldest = low(cg, add(cg, first, turn), NV90_TURNS - 1);
    nv90_keep_bits(cg, nv90_shared(cg, nv90_state(cg)->flags),
                   LLVMBuildNot(cg->b, bit(cg, oldest), ""));
    count_failure(cg);
    Val number = LLVMBuildLoad2(cg->b, cg->i32, number_place(cg, oldest), "");
    LLVMSetVolatile(number, true);
    return LLVMBuildOr(cg->b, number, cg_i32(cg, INT32_MIN), "");
}

// In a cluster: the first block waits until the other's consumers are through as well.
void nv90_settle(Cg *cg) {
    const Nv90 *h = nv90_state(cg);
    if (!h->rank) return;
    Val first = LLVMBuildICmp(cg->b, LLVMIntEQ, h->rank, cg_i32(cg, 0), "");
    Val settled = nv90_shared(cg, h->settled);
    Blk done = cg_if(cg, first, "settle");
    Val parity = LLVMBuildLoad2(cg->b, cg->i32, h->settles, "");
    nv90_remote_wait(cg, settled, parity);
    LLVMBuildStore(cg->b, LLVMBuildXor(cg->b, parity, cg_i32(cg, 1), ""), h->settles);
    cg_end_if(cg, done);
    done = cg_if(cg, LLVMBuildNot(cg->b, first, ""), "settled");
    nv90_remote_signal(cg, nv90_remote(cg, settled, cg_i32(cg, 0)));
    cg_end_if(cg, done);
}
