// map.c: maps, as all GPUs make them (codegen/gpu/map.c), and what is AMD's own of them.
//
// In: a TILE_MAP whose operands are fragments or lie in LDS. Out: its results, in registers
// (codegen/gpu/gpu.h) or in their LDS (readable after the next barrier).
#include "codegen/amdgpu/amdgpu.h"

static void pair(Cg *cg, CgWalk *w, int i, Val low, Val high) {
    const TileValue *v = w->space.op->results.data[i];
    Val *to = cg_walk_register(cg, w, i);
    Val both = v->unguarded ? am_pack_unguarded(cg, v->dtype, low, high)
                            : am_pack(cg, v->dtype, low, high);
    if (am_state(cg)->wmma)
        am_share_pairs(cg, both, to - 1);
    else
        *to = both;
}

// Where positions are asked for. LLVM would else think long about what each element's address, of
// those that look something up, is from step to step.
static Val hidden_first(Cg *cg, const CgWalk *w) {
    const TileOp *op = w->space.op;
    bool asked = false;
    for (int i = 0; i < op->outs.n && w->space.columns >= 0; i++)
        asked |= ex_uses(op->outs.data[i].body, SYM_POS, w->space.columns);
    return asked ? am_hidden(cg, cg_walk_first(cg, w, w->space.columns)) : NULL;
}

static Val shared_place(Cg *cg, const TileValue *v) {
    return cg_i32(cg, am_state(cg)->gpu.offset[v->id]);
}

const CgGpuHooks am_gpu_hooks = {
    .element = am_element,
    .pair = pair,
    .exchange = am_exchange,
    .from = am_from,
    .every = am_every,
    .barrier = am_barrier,
    .two_chains = true,
    .place = shared_place,
    .pointer = am_lds,
    .offset = am_tile_offset,
    .add = am_add,
};

void am_map(Cg *cg, const TileOp *op) {
    if (op->results.n && op->results.data[0]->home == HOME_SHARED) {
        cg_cooperative_map(cg, op);
        return;
    }
    CgWalk w = cg_walk_begin(cg, op, CG_BY_REGISTER);
    w.first = hidden_first(cg, &w);
    for (int i = 0; i < w.space.n; i++) {
        cg_walk_at(&w, i);
        cg_walk_element(cg, &w);
    }
    cg_walk_end(cg, &w);
}
