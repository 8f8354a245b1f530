// layout.c: where values in registers lie.
//
// In: a scheduled kernel for a GPU whose values have homes. Out: its layouts, one for each axis of
// columns, and each value in registers in one of them. Holds afterwards: tile_verify_layout.c.
//
// Rows are the grid's. A layout begins as the target's matrix instruction leaves its result; AMD's
// leave rows where the instruction has columns, so that weights are the next product's operand where
// they are. Further columns are in further registers. Further rows are in registers too, and then in
// warps, so that a warp's rows follow each other:
//
//     mma16, 128 rows, 64 columns, 4 warps:
//         reg(N%2, M/8%2) lane(N/2%4, M%8)
//      -> reg(N%2, M/8%2, N/8%8, M/16%2) lane(N/2%4, M%8) warp(M/32%4)
//
// A kernel of lanes has an element in each lane.
#include "passes/schedule/schedule.h"

#include <assert.h>
#include <ctype.h>

enum { OTHER = TILE_MAX_AXES, WMMA_LANES = 32 }; // columns that are not there

typedef struct Lay {
    TileProgram *p;
    TileKernel *k;
    const Target *t;
    MmaKind kind;
    int row;
    bool tiles; // numbers of rows come later: they lie beside whatever tile is there
} Lay;

static MmaKind instruction_of(const TileKernel *k, const Target *t) {
    if (t->kind == KIND_AMDGPU) {
        if (t->lanes == WMMA_LANES) return MMA_WMMA;
        return k->schedule.matrix_rows == 32 ? MMA_MFMA32 : MMA_MFMA16;
    }
    for (const TileOp *op = k->body.first; op; op = op->next)
        if (op->kind == TILE_ROLE) return MMA_WGMMA;
    return MMA_MMA16;
}

// Twice as many columns follow each other in a lane.
static void widen(Layout *l, int col) {
    for (int i = 0; i < l->n; i++) {
        LayoutDigit *d = &l->digit[i];
        if (d->axis == col) *(d->step == 1 ? &d->count : &d->step) *= 2;
    }
}

// All columns: the slowest digit of them goes on in registers.
static void extend(Layout *l, int col, int extent) {
    int columns = layout_covers(l, col);
    LayoutDigit *last = NULL;
    for (int i = 0; i < l->n; i++)
        if (l->digit[i].axis == col && (!last || l->digit[i].step > last->step))
            last = &l->digit[i];
    if (last && last->place == LAYOUT_REG)
        last->count = (uint16_t)(extent / last->step);
    else
        layout_add(l, LAYOUT_REG, col, columns, extent / columns);
}

// `whole`: as WMMA wants an operand, all columns of a row in each of its lanes.
static Layout laid(const Lay *s, int col, bool whole) {
    const TileKernel *k = s->k;
    bool swapped = s->t->kind == KIND_AMDGPU;
    int axis[] = {swapped ? col : s->row, swapped ? s->row : col, col};
    Layout l;
    bool there = mma_fragment(s->kind, whole ? MMA_B : MMA_C, &l);
    assert(there);
    (void)there;
    l = layout_rename(&l, axis);
    if (col < OTHER && k->axes[col].wide) widen(&l, col);
    int rows = layout_covers(&l, s->row);
    int warps = k->schedule.warps / layout_count(&l, LAYOUT_WARP);
    if (col < OTHER) extend(&l, col, k->axes[col].extent);
    int groups = k->axes[s->row].extent / (rows * warps);
    layout_add(&l, LAYOUT_REG, s->row, rows, groups);
    layout_add(&l, LAYOUT_WARP, s->row, rows * groups, warps);
    uint8_t row = (uint8_t)s->row;
    return col < OTHER ? l : layout_restrict(&l, &row, 1);
}

// A program that was read may have tiles of fewer rows than an instruction, or other warps: no target lowers
// it, and its values lie in registers somehow.
static bool lies(const Lay *s) {
    const TileKernel *k = s->k;
    Layout l;
    if (tile_has_lanes(k) || s->row < 0) return true;
    if (!mma_fragment(s->kind, MMA_C, &l)) return false;
    bool swapped = s->t->kind == KIND_AMDGPU;
    int axis[] = {swapped ? OTHER : s->row, swapped ? s->row : OTHER, OTHER};
    l = layout_rename(&l, axis);
    int rows = layout_covers(&l, s->row);
    int warps = k->schedule.warps / layout_count(&l, LAYOUT_WARP), extent = k->axes[s->row].extent;
    return warps > 0 && extent >= rows * warps && extent % (rows * warps) == 0;
}

// What has more elements than there are lanes is only reduced, and makes no value.
static Layout lanes(const TileKernel *k, const Target *t) {
    Layout l = {0};
    int axis = k->schedule.lane_axis;
    bool each = k->axes[axis].extent == t->lanes;
    layout_add(&l, LAYOUT_LANE, each ? axis : LAYOUT_COPIES, each, t->lanes);
    return l;
}

static const char *name_of(Arena *a, const TileKernel *k, int col, bool whole) {
    char *s = arena_strdup(a, col < OTHER ? k->axes[col].name : "rows");
    for (char *c = s; *c; c++) *c = (char)tolower((unsigned char)*c);
    return whole ? arena_printf(a, "%s_whole", s) : s;
}

static int add(Lay *s, const Layout *l, const char *name) {
    TileKernel *k = s->k;
    for (int i = 0; i < k->layouts.n; i++)
        if (layout_equal(&k->layouts.data[i].is, l)) return i;
    TileLayout own = {name, *l};
    VEC_PUSH(s->p->arena, &k->layouts, own);
    return k->layouts.n - 1;
}

// The layout of a tile with such axes, narrow or not; -1: it has no columns, and comes later.
static int layout_for(Lay *s, const uint8_t *axes, int n, bool narrow) {
    int col = OTHER;
    if (tile_has_lanes(s->k)) {
        Layout l = lanes(s->k, s->t);
        return add(s, &l, "lanes");
    }
    for (int i = 0; i < n; i++)
        if (axes[i] != s->row) col = axes[i];
    if (col == OTHER && s->tiles) return -1;
    if (col == OTHER && s->k->layouts.n) return 0;
    bool whole = s->kind == MMA_WMMA && col < OTHER && narrow;
    Layout l = laid(s, col, whole);
    return add(s, &l, name_of(s->p->arena, s->k, col, whole));
}

static void lay(Lay *s, TileValue *v) {
    if (v->home == HOME_FRAGMENT && v->layout < 0)
        v->layout = layout_for(s, v->axis, v->rank, dtype_half(v->dtype));
}

static void lay_all(Lay *s) {
    for (TileOp *op = tile_next(&s->k->body, NULL); op; op = tile_next(&s->k->body, op)) {
        for (int i = 0; i < op->results.n; i++) lay(s, op->results.data[i]);
        for (int i = 0; i < op->carried.n; i++) lay(s, op->carried.data[i]);
        bool made = op->kind == TILE_MAP && op->results.data[0]->home == HOME_FRAGMENT;
        if (made) layout_for(s, op->axes, op->naxes, false);
    }
}

void pass_layouts(TileProgram *p) {
    const Target *t = target_get(p->target);
    for (int i = 0; i < p->kernels.n; i++) {
        TileKernel *k = p->kernels.data[i];
        Lay s = {p, k, t, instruction_of(k, t), tile_grid_axis(k), true};
        if (!lies(&s)) continue;
        lay_all(&s);
        s.tiles = false;
        lay_all(&s);
    }
}
