// tile_places.h: where tiles that maps make in shared memory lie.
//
// Each has a place of its own, but two that never live together may share one: from where a map makes
// it a tile lives to its last reader, and where that is a product in flight until the product has landed.
// Tiles of different roles live together.
#ifndef IR_TILE_PLACES_H
#define IR_TILE_PLACES_H

#include "tile.h"

// The number of places; place, by TileValue.id: -1 for what is not such a tile.
int tile_places(const TileKernel *k, int *place);

#endif
