// sm80_few.h: tile extents of kernels for parts of a row, and for their combination.
#ifndef PASSES_SCHEDULE_SM80_FEW_H
#define PASSES_SCHEDULE_SM80_FEW_H

#include "passes/schedule/resources.h"

enum { SM80_WARP_ROWS = 16 }; // one m16 tile of a warp

// A kernel as it would run, few or not.   sm80.c
Block sm80_block(const TileProgram *p, const TileKernel *k, Knobs s);

bool sm80_is_nest(const TileProgram *p, const TileKernel *k);    // gradients, of five products
bool sm80_multiplies_bytes(const TileKernel *k);                 // with what is wider
bool sm80_reads_rows(const TileProgram *p, const TileKernel *k); // row inputs, or slices of rows
bool sm80_changes_query(
    const TileKernel *k); // a product over whole rows is of what was computed of q
// Whether a kernel is one of these.
bool sm80_has_parts(const TileKernel *k);
// Their shape; false with an error where a choice that was asked for cannot be.
bool sm80_few(const TileProgram *p, const PassOptions *o, Diags *diags, Knobs *out);

#endif
