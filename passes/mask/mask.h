// mask.h: mask analysis, shared by mask.c (one rectangle), solve.c (which keys) and classify.c.
#ifndef PASSES_MASK_H
#define PASSES_MASK_H

#include "passes/mask/range.h"
#include "passes/passes.h"

// A comparison of i32 (or its contrary, `want` false) as a sum: d <= 0, or d == 0 where *equal, or
// d != 0 where *differs. False: not a comparison of i32. d may be not ok.
bool mask_atom(RangeCtx *c, const Ex *e, bool want, Linear *d, bool *equal, bool *differs);

// As pass_mask_bounds, of the rectangle that *c was set up with.
MaskBounds pass_mask_bounds_in(RangeCtx *c, const Ex *mask);

// Positions along k, as an interval. NULL: no bound on that side.
typedef struct KeySet {
    const Ex *lo, *hi;
    bool none;  // empty, at every launch
    bool exact; // hull: it holds no position beside those asked for
    // For which queries a key of the hull takes part: all, a key's later ones, its earlier ones;
    // for exactness of intersections.
    bool up, down;
    int natoms; // the comparisons that ask something of the query; -1: not a plain conjunction of
                // few
    struct {
        Linear d; // d <= 0
        int way;  // of d as the query grows: +1 or -1
    } atom[4];
} KeySet;

// The least interval that holds every k for which some q in c->q has the mask; an interval of k for
// which every q in c->q has it.
KeySet mask_hull(RangeCtx *c, const Ex *mask);
KeySet mask_inner(RangeCtx *c, const Ex *mask);

// Marks loads of inputs that cannot leave their tensor; after loops are split.   passes/tile/inside.c
void pass_prove_inside(TileProgram *p, TileKernel *k);
// Whether an index is inside an extent, in every tile.
bool pass_is_inside(const TileProgram *p, const TileKernel *k, const Ex *e, const Ex *extent);

#endif
