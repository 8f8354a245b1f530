// schedule_amd_shape.c: tile extents for AMD devices.
#include "rewrite.h"
#include "schedule.h"
#include "schedule_amd.h"

bool pass_amd_keeps(const TileProgram *p, const TileKernel *k, const Target *t,
                    const TileValue *v) {
    (void)p, (void)k, (void)t, (void)v;
    return true;
}

bool pass_tile_amd(TileProgram *p, const PassOptions *o, Diags *diags) {
    (void)o, (void)diags;
    bool wmma = o->target.lanes == 32;
    for (int i = 0; i < p->kernels.n; i++) {
        TileKernel *k = p->kernels.data[i];
        for (int a = 0; a < k->naxes; a++) {
            const TileAxis *axis = &k->axes[a];
            if (axis->extent) continue;
            if (axis->whole)
                pass_bind(p, k, a, pass_padded(axis->size->i, 32));
            else
                pass_bind(p, k, a, a == tile_grid_axis(k) ? wmma ? 64 : 128 : 64);
        }
        k->schedule = (TileSchedule){.lane_axis = -1, .warps = 4, .min_blocks = 1};
    }
    return true;
}
