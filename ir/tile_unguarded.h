// tile_unguarded.h: values of which a NaN need not be kept when they are rounded
// (TileValue.unguarded).
//
// Rounding to bf16 by adding half of the last place may carry a NaN into another number; to look for
// it costs as much again as to round. Of weights it is of no use where the sum of the same weights,
// which is not rounded, makes the row's results NaN by itself:
//
//     %lt, %p unguarded = map { rowsum over N of e; e }     %l1 = map (%l, %c, %lt) { fma(%l, %c, %lt) }
//     %acc1 = mma %p, %v, %acc                              %o = map (%acc, %l) { %acc / %l }
//
// Nor is it of use where there is none: max(%s, 0.0) passes over a NaN.
//
// In the interpreter a NaN is kept: the mark changes nothing that is stored.
#ifndef IR_TILE_UNGUARDED_H
#define IR_TILE_UNGUARDED_H

#include "tile.h"

// Whether all that a kernel stores is the same, whatever becomes of a NaN among the value's numbers.
// The kernel is verified.
bool tile_may_be_unguarded(Arena *scratch, const TileKernel *k, const TileValue *v);
// Whether `x`, made behind the loop that makes the value, is NaN in every row in which the value had
// one, without being made of it.
bool tile_tells_nan(Arena *scratch, const TileKernel *k, const TileValue *v, const TileValue *x);

#endif
