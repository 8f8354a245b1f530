// schedule.c: which target answers for tile extents and schedules, and how an extent is bound.
#include "passes/schedule/schedule.h"
#include "passes/mask/tilemap.h"
#include "passes/schedule/sm80_few.h"
#include "passes/schedule/sm90.h"
#include "passes/tile/rewrite.h"

#include <assert.h>

static const struct {
    bool (*tile)(TileProgram *p, const PassOptions *o, Diags *diags);
    void (*schedule)(TileProgram *p, TileKernel *k, const PassOptions *o);
    void (*assign)(TileProgram *p, TileKernel *k); // NULL: its schedule has no places
    int few; // queries up to which rows are packed, whether their keys are split or not; 0: it has no such schedule
    int shares; // columns up to which its main kernel may be over parts; 0: never
} target_passes[TARGET_COUNT] = {
    [TARGET_HOST] = {pass_tile_host, pass_schedule_host, NULL, HOST_FEW, 0},
    [TARGET_SM80] = {pass_tile_sm80, pass_schedule_sm80, pass_assign_sm80, FEW_QUERIES, 0},
    [TARGET_SM90A] = {pass_tile_sm90, pass_schedule_sm90, pass_assign_sm90, FEW_QUERIES, 256},
    [TARGET_GFX90A] = {pass_tile_amd, pass_schedule_amd, pass_assign_amd, FEW_QUERIES, 0},
    [TARGET_GFX942] = {pass_tile_amd, pass_schedule_amd, pass_assign_amd, FEW_QUERIES, 0},
    [TARGET_GFX1100] = {pass_tile_amd, pass_schedule_amd, pass_assign_amd, FEW_QUERIES, 0},
};

bool pass_same_dots(const PassOptions *o) { return o->saves && o->saves->same_dots; }

int pass_few(const PassOptions *o) { return o->split ? target_passes[o->target.id].few : 0; }

bool pass_shares(const PassOptions *o, int D, int Dv) {
    int most = target_passes[o->target.id].shares;
    bool fit = D <= most && Dv <= most && D % 8 == 0 && Dv % 8 == 0;
    return pass_few(o) && !o->batch && fit && dtype_half(o->dtype);
}

// Every choice that was asked for is one that some kernel has.
static bool has_knobs(const TileProgram *p, const Knobs *asked, Diags *diags) {
    Knobs left = *asked;
    for (int i = 0; i < p->kernels.n; i++) left.said &= ~p->kernels.data[i]->schedule.knobs.said;
    if (!left.said) return true;
    return diag_refuse(diags, (Span){0},
                       "schedule: no kernel of %s has a choice '%s' on %s; there are: %s", p->name,
                       knobs_first(&left), target_get(p->target)->name,
                       knobs_text(p->arena, &p->kernels.data[0]->schedule.knobs));
}

// Products take numbers of 8 bits as they lie in memory on the host, and beside f16 and bf16 on NVIDIA devices; elsewhere tiles hold what
// they are multiplied with.
static void widen_bytes(TileProgram *p, TargetKind kind) {
    if (kind == KIND_HOST || (kind == KIND_NVPTX && dtype_half(p->dtype))) return;
    for (int i = 0; i < p->kernels.n; i++) {
        const TileBlock *b = &p->kernels.data[i]->body;
        for (const TileOp *op = tile_next(b, NULL); op; op = tile_next(b, op))
            if (op->kind == TILE_LOAD && dtype_byte(op->results.data[0]->dtype))
                op->results.data[0]->dtype = p->dtype;
    }
}

bool pass_tile(TileProgram *p, const PassOptions *o, Diags *diags) {
    widen_bytes(p, o->target.kind);
    return target_passes[o->target.id].tile(p, o, diags) && has_knobs(p, &o->schedule, diags);
}

// Kernels of lanes have one warp a block, and copy nothing. What a program that was read loads and nobody uses is not copied.
static void assign(TileProgram *p, TileKernel *k) {
    bool places = target_passes[p->target].assign;
    if (tile_has_lanes(k))
        pass_schedule_lanes(p, k);
    else if (places && k->body.last->kind != TILE_ROLE) {
        pass_remove_unused(p, k);
        target_passes[p->target].assign(p, k);
    }
}

bool pass_assign(TileProgram *p, Diags *diags) {
    bool places = target_passes[p->target].assign;
    if (!places)
        diag_error(diags, (Span){0}, "a schedule of target '%s' has no places",
                   target_get(p->target)->name);
    for (int i = 0; places && i < p->kernels.n; i++) assign(p, p->kernels.data[i]);
    return places;
}

// A tile that a loop within another makes without the rows of the grid, by a product or to be stored, as dq in a backward by tiles of
// keys: it lies along other threads than what stays.
const TileOp *pass_nest(const TileKernel *k) {
    const TileBlock *b = &k->body;
    for (const TileOp *op = tile_next(b, NULL); op; op = tile_next(b, op)) {
        const TileOp *loop = op->block->owner;
        const TileValue *v = op->kind == TILE_MMA     ? op->results.data[0]
                             : op->kind == TILE_STORE ? op->args.data[0]
                                                      : NULL;
        bool inner = v && v->rank == 2 && loop && loop->kind == TILE_LOOP;
        if (!inner || !loop->block->owner || loop->block->owner->kind != TILE_LOOP) continue;
        if (!tile_has_axis(v, tile_grid_axis(k))) return loop;
    }
    return NULL;
}

static bool is_nest(const TileProgram *p, const TileKernel *k) {
    if (p->target == TARGET_SM80) return sm80_is_nest(p, k);
    return p->target == TARGET_SM90A && sm90_is_nest(p, k);
}

bool pass_has_nest(const TileProgram *p) {
    bool all = true;
    for (int i = 0; i < p->kernels.n && all; i++)
        all = !pass_nest(p->kernels.data[i]) || is_nest(p, p->kernels.data[i]);
    return all;
}

static bool refuse_nests(const TileProgram *p, Diags *diags) {
    for (int i = 0; i < p->kernels.n; i++) {
        const TileKernel *k = p->kernels.data[i];
        const TileOp *loop = pass_nest(k);
        bool plain = p->target == TARGET_SM80 && sm80_is_nest(p, k);
        if (!loop || plain || k->schedule.knobs.said == knobs_of(FORM_SM90_NEST)) continue;
        diag_error(diags, loop->span,
                   "target '%s' has no schedule for products in a loop within another",
                   target_get(p->target)->name);
        return true;
    }
    return false;
}

bool pass_schedule(TileProgram *p, const PassOptions *o, Diags *diags) {
    if (o->target.kind != KIND_HOST && refuse_nests(p, diags)) return false;
    for (int i = 0; i < p->kernels.n; i++) assign(p, p->kernels.data[i]);
    for (int i = 0; i < p->kernels.n; i++)
        target_passes[p->target].schedule(p, p->kernels.data[i], o);
    p->scheduled = true;
    pass_mark_sums(p);
    if (o->target.kind != KIND_HOST) pass_layouts(p);
    if (o->target.kind != KIND_NVPTX) return true;
    pass_mark(p);
    pass_blocks(p);
    return true;
}

// ---- binding extents

int pass_extent(const TileProgram *p, const TileKernel *k, int axis, const Extents *e) {
    const TileAxis *a = &k->axes[axis];
    if (a->extent) return a->extent; // chosen when the kernel was built
    if (a->beside >= 0) return pass_extent(p, k, a->beside, e);
    if (!a->whole) return axis == tile_grid_axis(k) ? e->rows : e->step;
    bool value = axis == pass_value_axis(p, k);
    int size = value && a->size->i > e->columns ? e->columns : a->size->i;
    return pass_padded(size, value ? e->value_pad : e->pad);
}

void pass_bind_all(TileProgram *p, TileKernel *k, const Extents *e) {
    for (int a = 0; a < k->naxes; a++)
        if (!k->axes[a].extent) pass_bind(p, k, a, pass_extent(p, k, a, e));
}

// ceil(size / extent); sizes are far enough from 2^31 (passes/mask/range.h).
static const Ex *tiles_of(ExPool *x, const Ex *size, int extent) {
    const Ex *up = ex_2(x, EX_ADD, size, ex_i32(x, extent - 1));
    return ex_simplify(x, ex_2(x, EX_DIV, up, ex_i32(x, extent)));
}

void pass_go_over_all(TileProgram *p, TileKernel *k, int dimension, const Ex *together,
                      const Ex *points, const Ex *ends) {
    ExPool *x = p->pool;
    TileGrid *g = &k->grid[dimension], *batch = &k->grid[0];
    g->batch = batch->count;
    g->together = ex_simplify(x, ex_select(x, together, ex_i32(x, 1), ex_i32(x, 0)));
    g->ends = ex_simplify(x, ex_select(x, ends, ex_i32(x, 1), ex_i32(x, 0)));
    g->count =
        ex_simplify(x, ex_select(x, together, points, ex_2(x, EX_MUL, batch->count, g->count)));
    g->slow = true;
    batch->count = ex_i32(x, 1);
}

// The row tiles of all sequences are numbered together: where one sequence has many of them, there is no point for each that another might
// have. Where sequences have other numbers of queries, blocks that read much and blocks that multiply much run beside each other.
static void number_rows(TileProgram *p, TileKernel *k, int extent) {
    enum {
        ROWS = 2,
        UNLIKE = 8,
        MOST = 1024
    }; // sequences: a block looks for its own among all of them
    ExPool *x = p->pool;
    bool gpu = target_get(p->target)->kind !=
               KIND_HOST; // pages: 2% slower where sequences are alike, not found out why
    if (p->batch != BATCH_RAGGED || !gpu || k->purpose != PURPOSE_ATTENTION ||
        !k->grid[ROWS].shared)
        return;
    const Ex *all = pass_all_queries(p), *batch = k->grid[0].count;
    const Ex *group = ex_2(x, EX_DIV, ex_sym(x, SYM_SIZE, SIZE_HQ, EX_I32),
                           ex_sym(x, SYM_SIZE, SIZE_HKV, EX_I32));
    const Ex *each = ex_2(x, EX_DIV, all, ex_2(x, EX_MAX, batch, ex_i32(x, 1)));
    const Ex *full = ex_2(x, EX_ADD, ex_2(x, EX_DIV, all, ex_i32(x, extent)), ex_i32(x, 1));
    const Ex *points = ex_2(x, EX_ADD, ex_2(x, EX_MUL, full, group), batch);
    const Ex *most = pass_at_launch(p, ex_sym(x, SYM_SIZE, SIZE_SQ, EX_I32));
    const Ex *together = ex_2(x, EX_LE, batch, ex_i32(x, MOST));
    const Ex *unlike = ex_2(x, EX_LT, ex_2(x, EX_MUL, each, ex_i32(x, UNLIKE)), most);
    pass_go_over_all(p, k, ROWS, together, points, ex_2(x, EX_AND, together, unlike));
}

// Where a batch has many sequences, a block of the combination goes over several tiles of one: most have nothing to combine, and to begin
// and end takes a block longer than to find that out.
static const Ex *combined_points(TileProgram *p, const Ex *tiles) {
    enum { POINTS = 256 }; // of all sequences and heads, beside those of columns
    ExPool *x = p->pool;
    const Ex *n = ex_2(x, EX_DIV, ex_i32(x, POINTS), ex_sym(x, SYM_SIZE, SIZE_B, EX_I32));
    n = ex_2(x, EX_DIV, n, ex_sym(x, SYM_SIZE, SIZE_HKV, EX_I32));
    return ex_simplify(x, ex_2(x, EX_MIN, tiles, ex_2(x, EX_MAX, n, ex_i32(x, 1))));
}

void pass_bind(TileProgram *p, TileKernel *k, int axis, int extent) {
    TileAxis *a = &k->axes[axis];
    assert(a->extent == 0 && extent > 0);
    a->extent = extent;
    for (int i = axis; i < k->naxes; i++)
        if (k->axes[i].beside == axis) k->axes[i].extent = extent;
    if (a->whole) return;
    const Ex *count = tiles_of(p->pool, a->size, extent);
    if (p->chunks && axis + 1 < k->naxes && k->axes[axis + 1].beside == axis)
        p->sizes.data[p->chunks].def = count;
    for (int i = 0; i < k->ngrid; i++)
        if (k->grid[i].sym == SYM_TILE && k->grid[i].axis == axis) {
            if (axis != pass_split_axis(p, k))
                k->grid[i].count = ex_simplify(p->pool, pass_at_launch(p, count));
            if (!tile_is_own(p, count)) continue;
            k->grid[i].shared = count;
            if (k->purpose == PURPOSE_COMBINE && target_get(p->target)->kind == KIND_NVPTX)
                k->grid[i].count = combined_points(p, k->grid[i].count);
        }
    bool roles = knobs_say(&k->schedule.knobs, KNOB_warpgroups);
    if (axis == tile_grid_axis(k) && !roles) number_rows(p, k, extent);
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (op->kind == TILE_LOOP && op->axis == axis) pass_share_steps(p, k, op, count);
}
