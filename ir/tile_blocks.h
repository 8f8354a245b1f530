// tile_blocks.h: tensors that lie in blocks (TileTensor.blocked).
#ifndef IR_TILE_BLOCKS_H
#define IR_TILE_BLOCKS_H

#include "ir/tile.h"

enum { TILE_BLOCK_ROWS = 16, TILE_BLOCK_COLUMNS = 8 };

bool tile_is_multiple(const Ex *e, int of); // for certain
// Whether a tensor may, once its rows are padded.
bool tile_may_block(const TileTensor *t);
// Whether an access reads or writes whole blocks, as fragments have them.
bool tile_fits_blocks(const TileKernel *k, const TileTensor *t, const TileOp *op,
                      const TileValue *v);

#endif
