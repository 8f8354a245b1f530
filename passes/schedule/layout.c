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
#include "ir/tile_shared.h"
#include "passes/schedule/schedule.h"
#include "passes/tile/rewrite.h"

#include <assert.h>
#include <ctype.h>

enum {
    OTHER = TILE_MAX_AXES,
    WMMA_LANES = 32,
    MMA_COLUMNS = 256, // of a warpgroup's result
    OPERAND = 16
}; // columns that are not there; of an operand at the least

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

// Of what warps make of rows and columns that all of them read from shared memory, so many have rows of their own that a warp reads the
// fewest of both.
static int warps_of_rows(const Lay *s, int row, int col, int rows) {
    const TileKernel *k = s->k;
    int warps = k->schedule.warps, groups = k->axes[row].extent / rows, least = 0, best = 0;
    for (int n = warps; n; n /= 2) {
        int columns = k->axes[col].extent * n / warps, reads = k->axes[row].extent / n + columns;
        bool whole = groups % n == 0 && warps % n == 0 && columns % OPERAND == 0;
        if (!whole || (best && reads >= least)) continue;
        best = n, least = reads;
    }
    return best;
}

static int common(int a, int b) { return b ? common(b, a % b) : a; } // divisor, the greatest

// `whole`: as WMMA wants an operand, all columns of a row in each of its lanes. Warps that rows do not take, columns do, or they
// have copies.
static Layout laid(const Lay *s, int row, int col, bool whole) {
    const TileKernel *k = s->k;
    bool swapped = s->t->kind == KIND_AMDGPU;
    int axis[] = {swapped ? col : row, swapped ? row : col, col};
    Layout l;
    bool there = mma_fragment(s->kind, whole ? MMA_B : MMA_C, &l);
    assert(there);
    (void)there;
    l = layout_rename(&l, axis);
    if (col < OTHER && k->axes[col].wide) widen(&l, col);
    int rows = layout_covers(&l, row), groups = k->axes[row].extent / rows, across, copies;
    int warps = k->schedule.warps / layout_count(&l, LAYOUT_WARP);
    int most = col < OTHER ? k->axes[col].extent / OPERAND : 1;
    bool reads = k->purpose == PURPOSE_GRADIENTS && s->kind == MMA_MMA16 && row != s->row;
    int own = reads && col < OTHER ? warps_of_rows(s, row, col, rows) : 0;
    if (!own) own = common(warps, groups);
    across = warps / own, warps = own;
    if (s->kind == MMA_WGMMA && col < OTHER && k->axes[col].extent > MMA_COLUMNS)
        across = k->axes[col].extent / MMA_COLUMNS; // warpgroups of a role have columns each
    copies = across / common(across, most), across /= copies;
    if (col < OTHER) extend(&l, col, k->axes[col].extent / across);
    groups /= warps;
    layout_add(&l, LAYOUT_REG, row, rows, groups);
    layout_add(&l, LAYOUT_WARP, row, rows * groups, warps);
    if (across > 1) layout_add(&l, LAYOUT_WARP, col, k->axes[col].extent / across, across);
    layout_add(&l, LAYOUT_WARP, LAYOUT_COPIES, 0, copies);
    uint8_t only = (uint8_t)row;
    return col < OTHER ? l : layout_restrict(&l, &only, 1);
}

// Of a kernel without products that goes over a recurrence's state: four columns side by side in each lane, and eight rows or more over
// the lanes, so that sums of a column stay in a warp. The grid's axis are the columns, which memory has side by side.
static Layout laid_by_state(const Lay *s) {
    enum { SIDE_BY_SIDE = 4 };
    const TileKernel *k = s->k;
    Layout l = {0};
    int columns = s->row, rows = 0;
    while (rows == columns || !k->axes[rows].whole) rows++;
    int over = pass_state_lanes(k->axes[rows].extent), lanes = s->t->lanes / over;
    int of_warp = SIDE_BY_SIDE * lanes;
    int tiles = k->axes[columns].extent / of_warp / k->schedule.warps;
    layout_add(&l, LAYOUT_REG, columns, 1, SIDE_BY_SIDE);
    layout_add(&l, LAYOUT_REG, columns, of_warp, tiles);
    layout_add(&l, LAYOUT_REG, rows, over, k->axes[rows].extent / over);
    layout_add(&l, LAYOUT_LANE, columns, SIDE_BY_SIDE, lanes);
    layout_add(&l, LAYOUT_LANE, rows, 1, over);
    layout_add(&l, LAYOUT_WARP, columns, of_warp * tiles, k->schedule.warps);
    return l;
}

// Of a combination, which multiplies nothing: a row for each of eight lanes, and four columns side by side.
static Layout laid_by_rows(const Lay *s, int columns) {
    enum { SIDE_BY_SIDE = 4, LANES = 4 };
    Layout l = {0};
    if (columns < OTHER) {
        layout_add(&l, LAYOUT_REG, columns, 1, SIDE_BY_SIDE);
        layout_add(&l, LAYOUT_REG, columns, SIDE_BY_SIDE * LANES,
                   s->k->axes[columns].extent / (SIDE_BY_SIDE * LANES));
    }
    layout_add(&l, LAYOUT_LANE, columns < OTHER ? columns : LAYOUT_COPIES, SIDE_BY_SIDE, LANES);
    layout_add(&l, LAYOUT_LANE, s->row, 1, COMBINED_ROWS);
    return l;
}

bool pass_combines_by_rows(const TileProgram *p, const TileKernel *k) {
    enum {
        WIDE = 256
    }; // columns of v from which parts fill a multiprocessor, and the combination follows them
    bool early = p->batch && !p->phase && p->target == TARGET_SM90A && p->Dv <= WIDE;
    return k->purpose == PURPOSE_COMBINE && !early;
}

static bool combines(const Lay *s) {
    return s->t->kind == KIND_NVPTX && pass_combines_by_rows(s->p, s->k);
}

// A program that was read may have tiles of fewer rows than an instruction, or other warps: no target lowers
// it, and its values lie in registers somehow.
static bool lies(const Lay *s) {
    const TileKernel *k = s->k;
    Layout l;
    if (tile_has_lanes(k) || s->row < 0) return true;
    if (k->purpose == PURPOSE_STEPS)
        return k->axes[s->row].extent %
                   (4 * s->t->lanes / pass_state_lanes(s->p->D) * k->schedule.warps) ==
               0;
    if (combines(s)) return k->axes[s->row].extent == COMBINED_ROWS && k->schedule.warps == 1;
    if (!mma_fragment(s->kind, MMA_C, &l)) return false;
    bool swapped = s->t->kind == KIND_AMDGPU;
    int axis[] = {swapped ? OTHER : s->row, swapped ? s->row : OTHER, OTHER};
    l = layout_rename(&l, axis);
    int rows = layout_covers(&l, s->row);
    int warps = k->schedule.warps / layout_count(&l, LAYOUT_WARP), extent = k->axes[s->row].extent;
    if (s->kind == MMA_WGMMA && extent == rows) return warps > 0; // warpgroups have columns each
    if ((tile_by_groups(k) || k->purpose == PURPOSE_ONE_CHUNK) && extent < rows * warps)
        return extent >= rows && rows * warps % extent == 0;
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

static const char *name_of(const Lay *s, int row, int col, bool whole) {
    Arena *a = s->p->arena;
    const TileAxis *axes = s->k->axes;
    char *name = arena_printf(a, "%s%s", row == s->row ? "" : axes[row].name,
                              col < OTHER ? axes[col].name : "rows");
    for (char *c = name; *c; c++) *c = (char)tolower((unsigned char)*c);
    return whole ? arena_printf(a, "%s_whole", name) : name;
}

static int add(Lay *s, const Layout *l, const char *name) {
    TileKernel *k = s->k;
    for (int i = 0; i < k->layouts.n; i++)
        if (layout_equal(&k->layouts.data[i].is, l)) return i;
    TileLayout own = {name, *l};
    VEC_PUSH(s->p->arena, &k->layouts, own);
    return k->layouts.n - 1;
}

// The first layout that has an axis as rows.
static int beside_tile(const TileKernel *k, int axis) {
    for (int i = 0; i < k->layouts.n; i++) {
        const Layout *l = &k->layouts.data[i].is;
        for (int d = 0; d < l->n; d++)
            if (l->digit[d].place == LAYOUT_LANE && l->digit[d].axis == axis &&
                l->digit[d].step == 1)
                return i;
    }
    return 0;
}

// The layout of a tile with such axes, narrow or not; -1: it has no columns, and comes later. A tile without the grid's rows
// has its first axis as rows.
static int layout_for(Lay *s, const uint8_t *axes, int n, bool narrow) {
    int row = s->row, col = OTHER;
    if (tile_has_lanes(s->k)) {
        Layout l = lanes(s->k, s->t);
        return add(s, &l, "lanes");
    }
    if (s->k->purpose == PURPOSE_STEPS) {
        Layout l = laid_by_state(s);
        return add(s, &l, "state");
    }
    bool beside = n && pass_by_positions(s->k) && tile_root_axis(s->k, axes[0]) == row;
    if ((n == 2 && axes[0] != row && axes[1] != row) || (n == 1 && beside)) row = axes[0];
    for (int i = 0; i < n; i++)
        if (axes[i] != row) col = axes[i];
    if (col == OTHER && s->tiles) return -1;
    if (col == OTHER && s->k->layouts.n) return beside_tile(s->k, axes[0]);
    bool whole = s->kind == MMA_WMMA && col < OTHER && narrow;
    Layout l = combines(s) ? laid_by_rows(s, col) : laid(s, row, col, whole);
    return add(s, &l, name_of(s, row, col, whole));
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

static Lay lay_of(const TileProgram *p, const TileKernel *k) {
    const Target *t = target_get(p->target);
    return (Lay){(TileProgram *)p,     (TileKernel *)k,   t,
                 instruction_of(k, t), tile_grid_axis(k), true};
}

int pass_words(const TileProgram *p, const TileKernel *k, const uint8_t *axes, int rank, Dtype t) {
    Lay s = lay_of(p, k);
    int64_t bytes = dtype_bytes(t), threads = s.t->lanes * (int64_t)k->schedule.warps;
    int col = OTHER;
    bool has_rows = false;
    for (int i = 0; i < rank; i++) {
        bytes *= k->axes[axes[i]].extent;
        if (axes[i] == s.row) has_rows = true;
        if (axes[i] != s.row) col = axes[i];
    }
    if (s.row >= 0 && (has_rows || rank == 1) && !tile_has_lanes(k) && lies(&s)) {
        Layout l = k->purpose == PURPOSE_STEPS ? laid_by_state(&s)
                   : combines(&s)
                       ? laid_by_rows(&s, col)
                       : laid(&s, s.row, col, col < OTHER && s.kind == MMA_WMMA && dtype_half(t));
        l = layout_restrict(&l, axes, rank);
        bytes = (int64_t)layout_count(&l, LAYOUT_REG) * dtype_bytes(t);
        threads = 1;
    }
    return (int)((bytes + 4 * threads - 1) / (4 * threads));
}

void pass_layouts(TileProgram *p) {
    for (int i = 0; i < p->kernels.n; i++) {
        TileKernel *k = p->kernels.data[i];
        Lay s = lay_of(p, k);
        if (!lies(&s)) continue;
        lay_all(&s);
        s.tiles = false;
        lay_all(&s);
    }
}
