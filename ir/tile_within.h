// tile_within.h: what is done inside an operation that stands before it, as the mark `within` says.
//
//     mma async ..                  a map right behind it is made between the product's first step and its rest
//     map .. waiting n after e      drops and maps behind it are done at once behind its wait
//
// They need nothing of that operation, so the order of the text says what they make.
#ifndef IR_TILE_WITHIN_H
#define IR_TILE_WITHIN_H

#include "tile.h"

// Whether the next product adds to this one's sum, and nothing stands between them but what it takes: both are one
// block of assembly then, since a sum in flight may not change its registers.
bool tile_goes_on(const TileKernel *k, const TileOp *mma);
// The operation in which a drop or a map of a role may be done; those that stand between them and are so marked are done there
// before it. NULL: none.
const TileOp *tile_around(const TileKernel *k, const TileOp *op);

#endif
