// tilemap.h: which key tiles a tile of queries visits, worked out on the device before the sweep.
//
// For masks that the affine analysis does not solve (solve.c): documents, block lists, lengths of
// single rows. The lists depend on the mask alone and what it reads: a caller may keep them.
#ifndef PASSES_TILEMAP_H
#define PASSES_TILEMAP_H

#include "range.h"

// The sweep that asks: its kernel, its axes, and between which tiles of keys pairs may be at all.
typedef struct TileMapQuery {
    TileProgram *p;
    TileKernel *k;
    const Ex *mask; // simplified
    int q_axis, k_axis;
    const Ex *lo, *hi; // tile indices, hi exclusive; over the tile of queries
    Range q;           // positions of the tile of queries
} TileMapQuery;

typedef struct TileMapLists {
    const Ex *partial, *all; // how many tiles: those that need the mask come first
    const Ex *tile;          // which one: over SYM_STEP
    bool full;               // there may be tiles that need no mask
} TileMapLists;

// Adds the kernels that make the lists, and runs them before the sweep in every plan. False, and
// nothing done, where nothing could be left out.
bool pass_tile_map(const TileMapQuery *q, TileMapLists *out);
// Homes of the values of a kernel that pass_tile_map made, which is shaped and has its schedule.
void pass_schedule_lanes(const TileProgram *p, TileKernel *k);

#endif
