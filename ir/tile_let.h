// tile_let.h: names for what the text of a kernel would say again and again.
#ifndef IR_TILE_LET_H
#define IR_TILE_LET_H

#include "tile.h"

typedef struct TileLets {
    Arena *arena;
    ExPool *pool;         // of the expressions with names in them
    VEC(const Ex *) defs; // what e0, e1, .. are; each in terms of those before it
    ExMemo text;          // by expression: how it is written
} TileLets;

// Finds what is worth a name in a kernel: whole numbers and conditions that are the same in the
// whole tile (of b, h, the grid's tiles, sizes and tensors), of some length, in more than one
// place. Names go by where things are read first.
TileLets *tile_lets(Arena *a, const TileKernel *k);
// Whether an expression may have a name: it is the same in the whole tile, and not a float.
bool tile_let_may(const TileKernel *k, const Ex *e);
// How an expression of the kernel is written.
const Ex *tile_lets_text(const TileLets *l, const Ex *e);

#endif
