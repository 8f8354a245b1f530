// tile_wide.h: AMD's MFMA: along which axes columns may lie in eights (TileAxis.wide).
//
// A product leaves columns of a row in fours: the first lane of the row has columns 0 to 3, the next
// one 4 to 7, and so on. What is only contracted may lie in any order, the same in both operands: in
// eights a lane reads 16 bytes of two-byte elements at once.
#ifndef IR_TILE_WIDE_H
#define IR_TILE_WIDE_H

#include "tile.h"

// The kernel's matrix_rows is chosen; its products are verified.
bool tile_may_be_wide(const TileKernel *k, const Target *t, int axis);

#endif
