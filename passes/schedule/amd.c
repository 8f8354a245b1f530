// amd.c: how AMD devices run a kernel: where tiles live, and when they are fetched.
//
// A block is `warps` waves, each with its part of the rows. A tile of q is loaded into registers and
// stays there; products read it from there. If it does not fit, it is copied to shared memory. Tiles of
// k and v go through shared memory and are fetched ahead (chain.h). A copy goes through registers
// (codegen/amdgpu/copy.c), and `wait` writes the tile to shared memory. No barrier is needed before
// that, since the copy began after one.
#include "passes/mask/interval.h"
#include "passes/mask/tilemap.h"
#include "passes/schedule/chain.h"
#include "passes/schedule/schedule.h"

#include "ir/tile_wide.h"

// In a loop over full tiles every row is there, of the current tile and of the loop's next one. What
// a loop before the last fetches at its end is another's tile.
static void mark_inside(TileOp *last) {
    for (TileOp *op = last->body.first; op; op = op->next)
        if (op->kind == TILE_COPY && last->tiles == CLASS_FULL) op->inside = true;
}

// q, where it has no room in registers, is waited for where it is loaded: it is once a block.
static void schedule_kernel(TileProgram *p, TileKernel *k, const Target *target) {
    Chains c = chain_kernel(p, k);
    for (int a = 0; a < k->naxes; a++) k->axes[a].wide = tile_may_be_wide(k, target, a);
    for (TileOp *op = k->body.first; op; op = op->next)
        if (op->kind == TILE_LOOP) pass_interval(p, k, tile_grid_axis(k), op->axis, false);
    for (TileOp *op = k->body.first, *next; op; op = next) {
        next = op->next;
        if (chain_operand(p, op)) {
            if (k->schedule.knobs.keep)
                op->results.data[0]->home = HOME_FRAGMENT;
            else
                chain_load(&c, op, true);
        }
        if (op->kind != TILE_LOOP) continue;
        TileOp *last = chain_loops(&c, op);
        mark_inside(last);
        next = last->next;
    }
    chain_homes(&c);
    pass_unguard(p, k);
}

bool pass_schedule_amd(TileProgram *p, const PassOptions *o, Diags *diags) {
    for (int i = 0; i < p->kernels.n; i++) {
        if (tile_has_lanes(p->kernels.data[i])) {
            pass_schedule_lanes(p, p->kernels.data[i]);
            continue;
        }
        if (!pass_few_loads(p, p->kernels.data[i], CHAIN_MAX_LOADS, diags)) return false;
        schedule_kernel(p, p->kernels.data[i], &o->target);
    }
    return true;
}
