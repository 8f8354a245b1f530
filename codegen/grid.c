// grid.c: which point of the grid a number stands for.
//
// Without sections the innermost dimension is the fast one. With them (TileSchedule.section) tiles
// are taken of some heads before those of the next ones, so that the keys and values of those at
// work stay in the L2 cache; in a section the row tile is the slow index, the head the fast one,
// and within it what the grid goes over besides (tiles of v's columns). Rows that are longest first
// so leave short ones for the end, when blocks run out of work at different times.
#include "codegen/cg.h"

static Val mul(Cg *cg, Val a, Val b) { return LLVMBuildMul(cg->b, a, b, ""); }
static Val sub(Cg *cg, Val a, Val b) { return LLVMBuildSub(cg->b, a, b, ""); }

// A count as wide as the number that it divides: the host's numbers are of 64 bits.
static Val as_wide(Cg *cg, Val v, Val number) {
    return LLVMBuildZExtOrBitCast(cg->b, v, LLVMTypeOf(number), "");
}

// The remainder, i32; *number becomes the quotient.
static Val take(Cg *cg, Val *number, Val by) {
    by = as_wide(cg, by, *number);
    Val q = LLVMBuildUDiv(cg->b, *number, by, ""), r = sub(cg, *number, mul(cg, q, by));
    *number = q;
    return LLVMBuildTruncOrBitCast(cg->b, r, cg->i32, "");
}

CgGrid cg_grid(Cg *cg) {
    const TileKernel *k = cg->k;
    CgGrid g = {.rows = -1};
    int axis = tile_grid_axis(k);
    for (int i = 0; i < k->ngrid; i++) {
        g.count[i] = cg_uniform(cg, k->grid[i].count);
        if (k->grid[i].sym == SYM_TILE && k->grid[i].axis == axis && g.rows < 0) g.rows = i;
    }
    return g;
}

static Val product(Cg *cg, const CgGrid *g, int from, int to) {
    Val n = cg_i32(cg, 1);
    for (int i = from; i < to; i++) n = mul(cg, n, g->count[i]);
    return n;
}

Val cg_grid_total(Cg *cg, const CgGrid *g) { return product(cg, g, 0, cg->k->ngrid); }

// Heads of a section: sections are about as long as the schedule wishes, and about equally long, so
// that enough tiles are left for the last blocks.
static Val heads_of_section(Cg *cg, const CgGrid *g, Val all) {
    Val one = cg_i32(cg, 1), wish = cg_i32(cg, cg->k->schedule.section);
    Val least[] = {LLVMBuildUDiv(cg->b, cg_grid_total(cg, g), wish, ""), one};
    Val sections = cg_intrinsic(cg, "llvm.smax", &cg->i32, 1, least, 2);
    Val up = LLVMBuildAdd(cg->b, all, sub(cg, sections, one), "");
    Val some[] = {LLVMBuildUDiv(cg->b, up, sections, ""), one};
    return cg_intrinsic(cg, "llvm.smax", &cg->i32, 1, some, 2);
}

// number, of rows and heads: becomes the head (of all dimensions before the rows'); the row.
static Val take_row(Cg *cg, const CgGrid *g, Val *number) {
    Val all = product(cg, g, 0, g->rows), section = heads_of_section(cg, g, all);
    Val place = take(cg, number, mul(cg, section, g->count[g->rows]));
    Val which = LLVMBuildTruncOrBitCast(cg->b, *number, cg->i32, "");
    Val base = mul(cg, which, section), left[] = {section, sub(cg, all, base)};
    Val head = take(cg, &place, cg_intrinsic(cg, "llvm.smin", &cg->i32, 1, left, 2));
    *number = as_wide(cg, LLVMBuildAdd(cg->b, base, head, ""), *number);
    return place;
}

void cg_grid_point(Cg *cg, const CgGrid *g, Val number, Val *at) {
    const TileKernel *k = cg->k;
    for (int i = k->ngrid - 1; i >= 0; i--) {
        bool sections = i == g->rows && k->schedule.section;
        if (sections)
            at[i] = take_row(cg, g, &number);
        else if (i == 0)
            at[i] = LLVMBuildTruncOrBitCast(cg->b, number, cg->i32, "");
        else
            at[i] = take(cg, &number, g->count[i]);
        if (k->grid[i].reversed) at[i] = sub(cg, sub(cg, g->count[i], at[i]), cg_i32(cg, 1));
    }
}
