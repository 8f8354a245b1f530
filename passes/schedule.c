// schedule.c: which target answers for tile extents and schedules, and how an extent is bound.
#include "schedule.h"
#include "rewrite.h"

#include <assert.h>

typedef bool (*TargetPass)(TileProgram *p, const PassOptions *o, Diags *diags);

static bool unsupported(TileProgram *p, const PassOptions *o, Diags *diags) {
    (void)p;
    diag_error(diags, (Span){0}, "target '%s' is not supported by this version", o->target.name);
    return false;
}

// By TargetKind; Hopper answers for itself. Every other NVIDIA target runs what runs on sm_80.
static const struct {
    TargetPass tile, schedule;
} target_passes[] = {
    [KIND_HOST] = {pass_tile_host, pass_schedule_host},
    [KIND_NVPTX] = {pass_tile_sm80, pass_schedule_sm80},
    [KIND_AMDGPU] = {unsupported, unsupported},
};

bool pass_tile(TileProgram *p, const PassOptions *o, Diags *diags) {
    if (o->target.id == TARGET_SM90A) return pass_tile_sm90(p, o, diags);
    return target_passes[o->target.kind].tile(p, o, diags);
}

bool pass_schedule(TileProgram *p, const PassOptions *o, Diags *diags) {
    p->scheduled = o->target.id == TARGET_SM90A
                       ? pass_schedule_sm90(p, o, diags)
                       : target_passes[o->target.kind].schedule(p, o, diags);
    return p->scheduled;
}

// ---- binding an extent

// ceil(size / extent); sizes are far enough from 2^31 (range.h).
static const Ex *tiles_of(ExPool *x, const Ex *size, int extent) {
    const Ex *up = ex_2(x, EX_ADD, size, ex_i32(x, extent - 1));
    return ex_simplify(x, ex_2(x, EX_DIV, up, ex_i32(x, extent)));
}

void pass_bind(TileProgram *p, TileKernel *k, int axis, int extent) {
    TileAxis *a = &k->axes[axis];
    assert(a->extent == 0 && extent > 0);
    a->extent = extent;
    if (a->whole) return;
    const Ex *count = tiles_of(p->pool, a->size, extent);
    for (int i = 0; i < k->ngrid; i++)
        if (k->grid[i].sym == SYM_TILE && k->grid[i].axis == axis) k->grid[i].count = count;
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (op->kind == TILE_LOOP && op->axis == axis) pass_share_steps(p, k, op, count);
}
