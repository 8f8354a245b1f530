// grid.c: which point of the grid a number stands for.
//
// Without sections the innermost dimension is the fast one. With them (TileSchedule.section) tiles
// are taken of some heads before those of the next ones, so that the keys and values of those at
// work stay in the L2 cache; in a section the row tile is the slow index, the head the fast one,
// and within it what the grid goes over besides (tiles of v's columns). Where rows are longest first
// the shortest of all heads are left for the end, when blocks run out of work at different times.
//
// A number is a cluster's where there are clusters: the grid has fewer tiles of rows then, or fewer
// heads, which of the two the launch's sizes say (TileSchedule.cluster_rows); and no heads in parts.
#include "codegen/cg.h"

// A count as wide as the number that it divides: the host's numbers are of 64 bits.
static Val as_wide(Cg *cg, Val v, Val number) {
    return LLVMBuildZExtOrBitCast(cg->b, v, LLVMTypeOf(number), "");
}

// The remainder, i32; *number becomes the quotient.
static Val take_of(Cg *cg, Val *number, Val by, Val inverse) {
    if (inverse) *number = LLVMBuildTruncOrBitCast(cg->b, *number, cg->i32, ""); // a GPU's
    by = as_wide(cg, by, *number);
    Val q = inverse ? cg_times_inverse(cg, *number, inverse) : cg_udiv(cg, *number, by);
    Val r = cg_sub(cg, *number, cg_mul(cg, q, by));
    *number = q;
    return LLVMBuildTruncOrBitCast(cg->b, r, cg->i32, "");
}

static Val take(Cg *cg, Val *number, Val by) { return take_of(cg, number, by, NULL); }

// Tiles of rows, or heads, of a cluster: one or two, so that a division by them is a shift.
static Val by_pairs(Cg *cg, Val count, Val by) {
    Val more = cg_sub(cg, by, cg_i32(cg, 1));
    return cg_lshr(cg, cg_add(cg, count, more), more);
}

// Points of a sequence along a dimension that has tiles of its own, in pairs where a cluster has two.
static const Ex *own_points(Cg *cg, int d) {
    ExPool *x = cg->p->pool;
    const TileGrid *g = &cg->k->grid[d];
    if (!g->shared) return NULL;
    const Ex *by = tile_of_cluster(x, cg->k, true), *one = ex_i32(x, 1);
    if (d != tile_grid_rows(cg->k)) return g->shared;
    return ex_2(x, EX_DIV, ex_2(x, EX_SUB, ex_2(x, EX_ADD, g->shared, by), one), by);
}

static const Ex *points_of_each(Cg *cg) {
    const Ex *n = ex_i32(cg->p->pool, 1);
    for (int d = 0; d < cg->k->ngrid; d++)
        if (cg->k->grid[d].shared) n = ex_2(cg->p->pool, EX_MUL, n, own_points(cg, d));
    return n;
}

CgGrid cg_grid(Cg *cg) {
    const TileKernel *k = cg->k;
    CgGrid g = {.rows = tile_grid_rows(k)};
    if (tile_counts_own(k)) g.each = points_of_each(cg);
    if (k->schedule.cluster > 1) {
        g.of_rows = cg_uniform(cg, tile_of_cluster(cg->p->pool, k, true));
        g.of_heads = cg_uniform(cg, tile_of_cluster(cg->p->pool, k, false));
    }
    for (int i = 0; i < k->ngrid; i++) {
        bool halved = g.of_rows && (i == g.rows || k->grid[i].sym == SYM_H);
        g.count[i] = cg_uniform(cg, k->grid[i].count);
        g.inverse[i] = halved ? NULL : cg_inverse(cg, k->grid[i].count);
        if (k->grid[i].from && !g.of_rows) g.whole = cg_uniform(cg, k->grid[i].from);
        if (halved) g.count[i] = by_pairs(cg, g.count[i], i == g.rows ? g.of_rows : g.of_heads);
    }
    return g;
}

static Val product(Cg *cg, const CgGrid *g, int from, int to) {
    Val n = cg_i32(cg, 1);
    for (int i = from; i < to; i++) n = cg_mul(cg, n, g->count[i]);
    return n;
}

// Tiles of the heads that have one point of the last dimension.
static Val whole_tiles(Cg *cg, const CgGrid *g) { return cg_mul(cg, g->whole, g->count[g->rows]); }

// Of dimensions that are alike for all sequences, but that of the sequences.
static Val others(Cg *cg, const CgGrid *g) {
    Val n = cg_i32(cg, 1);
    for (int i = 1; i < cg->k->ngrid; i++)
        if (!cg->k->grid[i].shared) n = cg_mul(cg, n, g->count[i]);
    return n;
}

Val cg_grid_total(Cg *cg, const CgGrid *g) {
    int last = cg->k->ngrid - 1;
    if (g->each) return cg_mul(cg, others(cg, g), cg_count_own(cg, g->each, g->count[0]));
    if (!g->whole) return product(cg, g, 0, last + 1);
    Val whole = whole_tiles(cg, g), others = cg_sub(cg, product(cg, g, 0, last), whole);
    return cg_add(cg, whole, cg_mul(cg, others, g->count[last]));
}

typedef struct Range {  // of heads, whose tiles are numbered together
    Val heads, section; // how many; and of a section
    Val first;          // NULL: 0
} Range;

// number, of rows and heads: becomes the head (of all dimensions before the rows'); the row.
static Val take_row(Cg *cg, const CgGrid *g, Range range, Val *number) {
    const Ex *last = cg->k->schedule.last;
    Val all = range.heads, end = last ? cg_uniform(cg, last) : cg_i32(cg, 0);
    Val first = cg_sub(cg, g->count[g->rows], end),
        before = as_wide(cg, cg_mul(cg, all, first), *number);
    Val ends = cg_icmp(cg, LLVMIntUGE, *number, before);
    Val section = cg_select(cg, ends, all, range.section);
    Val rows = cg_select(cg, ends, end, first);
    *number = cg_select(cg, ends, cg_sub(cg, *number, before), *number);
    Val place = take(cg, number, cg_mul(cg, section, rows));
    Val which = LLVMBuildTruncOrBitCast(cg->b, *number, cg->i32, "");
    Val base = cg_mul(cg, which, section), left[] = {section, cg_sub(cg, all, base)};
    Val head = take(cg, &place, cg_intrinsic(cg, "llvm.smin", &cg->i32, 1, left, 2));
    if (range.first) base = cg_add(cg, base, range.first);
    *number = as_wide(cg, cg_add(cg, base, head), *number);
    return cg_add(cg, place, cg_select(cg, ends, first, cg_i32(cg, 0)));
}

// number, behind the tiles in one part: becomes the tile's; its part. Branched to: a division takes
// as long as a tenth of a step, and most launches have no parts.
static Val divide_by_parts(Cg *cg, const CgGrid *g, Val split, Val *number) {
    Val by = g->count[cg->k->ngrid - 1];
    if (LLVMIsAConstantInt(split)) // of constant counts
        return LLVMConstIntGetZExtValue(split) ? take(cg, number, by) : cg_i32(cg, 0);
    Blk here = cg_here(cg), divide = cg_block(cg, "parts"), on = cg_block(cg, "part");
    cg_branch(cg, split, divide, on);
    Val tile = *number, part = take(cg, &tile, by);
    cg_enter(cg, on);
    *number = cg_join(cg, tile, divide, *number, here);
    return cg_join(cg, part, divide, cg_i32(cg, 0), here);
}

// The part of a tile, i32; number becomes the tile's within the range of its head. Heads in one part
// come first.
static Val take_part(Cg *cg, const CgGrid *g, Range *range, Val *number) {
    Val zero = cg_i32(cg, 0), whole = as_wide(cg, whole_tiles(cg, g), *number);
    Val split = cg_icmp(cg, LLVMIntUGE, *number, whole);
    Val behind = cg_sub(cg, *number, whole);
    Val part = divide_by_parts(cg, g, split, &behind);
    if (!cg->k->schedule.section) behind = cg_add(cg, behind, whole); // of all heads
    *number = cg_select(cg, split, behind, *number);
    Val others = cg_sub(cg, range->heads, g->whole);
    range->first = cg_select(cg, split, g->whole, zero);
    range->heads = cg_select(cg, split, others, g->whole);
    // Split tiles are few: their heads are one section.
    if (range->section) range->section = cg_select(cg, split, others, range->section);
    return part;
}

// Where the tiles of sequence b begin among all: the first one's at 0, whatever rows are before it.
static Val first_tile(Cg *cg, const TileGrid *g, Val b) {
    Val now = cg->grid_b, zero = cg_i32(cg, 0);
    cg->grid_b = b;
    Val row = cg_uniform(cg, g->packed);
    cg->grid_b = now;
    Val tile = cg_add(cg, cg_udiv(cg, row, cg_i32(cg, cg->k->axes[g->axis].extent)), b);
    return cg_select(cg, cg_icmp(cg, LLVMIntEQ, b, zero), zero, tile);
}

// The last sequence whose tiles begin at `tile` or before it: one of `from` and the `n` - 1 behind it, of which it has half each time.
static void find_sequence(Cg *cg, const TileGrid *g, Val *b, Val *tile) {
    Blk pre = cg_here(cg), head = cg_block(cg, "sequences"), half = cg_block(cg, "half"),
        done = cg_block(cg, "sequence");
    Val all = cg_size(cg, SIZE_B), one = cg_i32(cg, 1);
    cg_enter(cg, head);
    Val from = cg_phi(cg, cg->i32), n = cg_phi(cg, cg->i32);
    cg_branch(cg, cg_less(cg, one, n), half, done);
    Val lower = cg_lshr(cg, n, one), mid = cg_add(cg, from, lower);
    Val behind = cg_icmp(cg, LLVMIntULE, first_tile(cg, g, mid), *tile);
    Val next = cg_select(cg, behind, mid, from),
        left = cg_select(cg, behind, cg_sub(cg, n, lower), lower);
    LLVMAddIncoming(from, (Val[]){cg_i32(cg, 0), next}, (Blk[]){pre, cg_here(cg)}, 2);
    LLVMAddIncoming(n, (Val[]){all, left}, (Blk[]){pre, cg_here(cg)}, 2);
    cg_br(cg, head);
    cg_go_on(cg, done);
    *b = from;
    *tile = cg_sub(cg, *tile, first_tile(cg, g, from));
}

static int slow_dimension(const TileKernel *k) {
    for (int i = 0; i < k->ngrid; i++)
        if (k->grid[i].slow) return i;
    return -1;
}

static void reverse(Cg *cg, const CgGrid *g, int i, Val *at) {
    if (cg->k->grid[i].reversed) at[i] = cg_sub(cg, cg_sub(cg, g->count[i], at[i]), cg_i32(cg, 1));
}

// Neighbours have the same keys: tiles of rows before parts.
static void own_point(Cg *cg, const CgGrid *g, Val number, Val *at) {
    const TileKernel *k = cg->k;
    Val tile;
    for (int i = 1; i < k->ngrid; i++)
        if (!k->grid[i].shared) at[i] = take_of(cg, &number, g->count[i], g->inverse[i]);
    cg_find_own(cg, g->each, g->count[0], number, &at[0], &tile);
    Val is = cg_not(cg, cg_below(cg, at[0], 0));
    cg->grid_b = at[0] = cg_or_zero(cg, is, at[0]);
    tile = cg_or_zero(cg, is, tile);
    cg_meet_sequence(cg);
    for (int i = 1; i < k->ngrid; i++) {
        if (!k->grid[i].shared) continue;
        Val n = cg_uniform(cg, own_points(cg, i)), one = cg_i32(cg, 1);
        n = cg_intrinsic(cg, "llvm.smax", &cg->i32, 1, (Val[]){n, one}, 2);
        at[i] = take(cg, &tile, n);
        if (k->grid[i].reversed) at[i] = cg_sub(cg, cg_sub(cg, n, at[i]), one);
    }
}

void cg_grid_point(Cg *cg, const CgGrid *g, Val number, Val *at) {
    const TileKernel *k = cg->k;
    if (g->each) {
        own_point(cg, g, number, at);
        return;
    }
    int slow = slow_dimension(k),
        last = slow < 0 ? 0 : slow; // which has what is left of the number
    Range range = {.heads = g->rows < 0 ? NULL : product(cg, g, 0, g->rows)};
    if (k->schedule.section) range.section = cg_uniform(cg, k->schedule.section);
    for (int i = k->ngrid - 1; i >= 0; i--) {
        bool sections = i == g->rows && k->schedule.section;
        if (i == last) continue;
        if (g->whole && i == k->ngrid - 1)
            at[i] = take_part(cg, g, &range, &number);
        else if (sections)
            at[i] = take_row(cg, g, range, &number);
        else
            at[i] = take_of(cg, &number, g->count[i], g->inverse[i]);
        reverse(cg, g, i, at);
    }
    at[last] = LLVMBuildTruncOrBitCast(cg->b, number, cg->i32, "");
    reverse(cg, g, last, at);
    for (int i = 0; i < k->ngrid; i++)
        if (k->grid[i].packed) find_sequence(cg, &k->grid[i], &at[0], &at[i]);
}

// This block's of the `n` that its cluster has: one or two.
static Val own(Cg *cg, Val i, Val n, Val rank) {
    Val more = cg_sub(cg, n, cg_i32(cg, 1));
    Val first = cg_shl(cg, i, more);
    return cg_or(cg, first, cg_and(cg, rank, more));
}

void cg_grid_own(Cg *cg, const CgGrid *g, Val rank, Val *at) {
    for (int i = 0; i < cg->k->ngrid; i++) {
        if (i == g->rows) at[i] = own(cg, at[i], g->of_rows, rank);
        if (cg->k->grid[i].sym == SYM_H) at[i] = own(cg, at[i], g->of_heads, rank);
    }
}

static Val *symbol_of(Cg *cg, const TileGrid *g) {
    return g->sym == SYM_B ? &cg->grid_b : g->sym == SYM_H ? &cg->grid_h : &cg->tile[g->axis];
}

void cg_grid_stand(Cg *cg, const Val *at) {
    for (int i = 0; i < cg->k->ngrid; i++) *symbol_of(cg, &cg->k->grid[i]) = at[i];
}

void cg_grid_here(Cg *cg, Val *at) {
    for (int i = 0; i < cg->k->ngrid; i++) at[i] = *symbol_of(cg, &cg->k->grid[i]);
}

Val cg_tile_begin(Cg *cg, int axis) {
    const TileAxis *a = &cg->k->axes[axis];
    Val tile = cg->tile[tile_root_axis(cg->k, axis)];
    if (a->whole || !tile) return cg_i32(cg, 0);
    return cg_times(cg, tile, a->extent);
}
