// sm80_few.h: tile extents of kernels for parts of a row, and for their combination.
#ifndef PASSES_SCHEDULE_SM80_FEW_H
#define PASSES_SCHEDULE_SM80_FEW_H

#include "passes/passes.h"

enum { SM80_FEW_ROWS = 16 }; // one m16 tile of one warp

typedef struct Sm80Tiles { // of a block: of q, and of k and v, of which there are stages
    int elem, rows, keys, d, dv, k_stages, v_stages;
} Sm80Tiles;

// What a program's kernels need of shared memory, as the lowering lays it out: 16 bytes behind each
// row. Vectors and strips come on top.   sm80.c
Sm80Tiles sm80_tiles(const TileProgram *p, int rows, int keys);
int sm80_shared_bytes(Sm80Tiles t);

bool sm80_has_product(const TileKernel *k);
// Whether a kernel is one of these.
bool sm80_is_few(const TileKernel *k);
// Their shape; false with an error where a choice that was asked for cannot be.
bool sm80_few(const TileProgram *p, const PassOptions *o, Diags *diags, Knobs *out);

#endif
