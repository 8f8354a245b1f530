// amd.c: how AMD devices run a kernel: where tiles live, and when they are copied.
//
// A block is `warps` waves, each with its part of the rows. A tile of q is loaded into registers and
// stays there; products read it from there. If it does not fit, it is copied to shared memory. Tiles of
// k and v go through shared memory and are copied ahead (assign.c). A copy goes through registers
// (codegen/amdgpu/copy.c), and `wait` writes the tile to shared memory. No barrier is needed before
// that, since the copy began after one.
#include "ir/tile_wide.h"
#include "passes/mask/interval.h"
#include "passes/schedule/expand.h"
#include "passes/schedule/schedule.h"

void pass_assign_amd(TileProgram *p, TileKernel *k) {
    const Target *target = target_get(p->target);
    for (int a = 0; a < k->naxes; a++) k->axes[a].wide = tile_may_be_wide(k, target, a);
    for (TileOp *op = k->body.first; op; op = op->next) {
        if (op->kind == TILE_LOOP) pass_interval(p, k, tile_grid_axis(k), op->axis, false);
        if (op->kind == TILE_LOAD && tile_is_operand(p, &p->tensors.data[op->tensor]) &&
            k->schedule.knobs.keep)
            op->results.data[0]->home = HOME_FRAGMENT;
    }
    pass_assign_all(p, k, false);
}

// Columns in eights are added up in another order than those in fours.
static void narrow(TileKernel *k) {
    for (int a = 0; a < k->naxes; a++) k->axes[a].wide = false;
}

void pass_schedule_amd(TileProgram *p, TileKernel *k, const PassOptions *o) {
    if (pass_same_dots(o)) narrow(k);
    pass_expand(p, k);
    pass_unguard(p, k);
}
