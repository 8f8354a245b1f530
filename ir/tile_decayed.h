// tile_decayed.h: sums over pairs of positions that have decays of their own for each channel: scores of a recurrence's chunk, and what
// comes back from them.
//
// Of rows t and columns u, the same positions, and channels d, a result of a map is one of
//
//     sum over d of  read[t, d] * write[u, d] * G
//     sum over u of  pair[t, u] * write[u, d] * G * number[t] * constant, where u < t      numbers: or there is none
//     sum over t of  pair[t, u] * read[t, d] * G * number[t] * constant, where u < t
//
//     G = select(zero[t, d] <= u.pos, exp2(sum[t, d] - at_write[u, d]), 0)
//
// For u at or before t the factor G may be split at any position between the two, or near them: then it is a product of matrices.
#ifndef IR_TILE_DECAYED_H
#define IR_TILE_DECAYED_H

#include "tile.h"

typedef struct TileDecayed {
    const TileValue *sum, *at_write, *zero;
    const TileValue *read, *write, *pair, *number; // NULL: it has none
    const Ex *constant;
    int rows, columns, channels; // axes
    int over;                    // the axis of the sum
} TileDecayed;

// Whether the result is one.
bool tile_is_decayed(const TileOp *map, int result, TileDecayed *out);
// Whether all results of the map are, over channels or over positions, and their matrices are narrow: then products of 16-bit elements make
// them.
bool tile_all_decayed(const TileOp *map);

// Warps that each sum up some of the channels of a block of scores, as more warps than blocks can; 1: a warp sums up all. What they leave in
// shared memory, of this map and of all of a kernel: each but the first its own sums.
int tile_decayed_warps(const TileProgram *p, const TileKernel *k, const TileOp *map);
int tile_decayed_bytes(const TileProgram *p, const TileKernel *k, const TileOp *map);
int tile_all_decayed_bytes(const TileProgram *p, const TileKernel *k);

// What a map's comparison asks: whether no decay up to a position, or from one on, is 0. The position of the chunk's last decay of 0, a number
// below 0 where there is none: then the comparison holds. NULL: it asks something else.
const TileValue *tile_asked_zero(const TileOp *map, const Ex *e);
// The same of all selects of a map that ask so; NULL: none does, or of several.
const TileValue *tile_last_zero(const TileOp *map);

#endif
