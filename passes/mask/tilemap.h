// tilemap.h: which key tiles a tile of queries visits, worked out on the device before the sweep.
//
// For masks that the affine analysis does not solve (solve.c): documents, block lists, lengths of
// single rows. The lists depend on the mask alone and what it reads: a caller may keep them.
#ifndef PASSES_TILEMAP_H
#define PASSES_TILEMAP_H

#include "passes/mask/mask.h"

// The sweep that asks: its kernel, its axes, and between which tiles of keys pairs may be at all.
typedef struct TileMapQuery {
    TileProgram *p;
    TileKernel *k;
    const Ex *mask; // simplified
    int q_axis, k_axis;
    const Ex *lo, *hi; // tile indices, hi exclusive; over the tile of queries
    const Ex *inside;  // whether that may be with tiles that need no mask; NULL: it may
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
// What a list says of a pair of tiles, for who has the inputs at hand. Numbers that are read from inputs
// have names, SYM_LET MASK_PARTS + 2 i and the next for the least and the largest that part i is.
enum { MASK_PARTS = 16 };

typedef struct MaskPart {
    const Ex *e;           // what reads inputs at the query or the key; NULL: not in `pairs`
    bool of_query, of_key; // both: a LOAD, at the indices from `first` to `last`
    const Ex *first[EX_MAX_RANK], *last[EX_MAX_RANK];
} MaskPart;

typedef struct MaskParts {
    MaskBounds pairs; // over the tiles of queries and of keys
    MaskPart part[MASK_PARTS];
    int n;
} MaskParts;

void pass_mask_parts(const TileMapQuery *q, MaskParts *out);

// Of a kernel whose tiles are bound, without lo and hi. mask_terms.c
TileMapQuery pass_mask_query(TileProgram *p, TileKernel *k, int q_axis, int k_axis);

// Homes of the values of a kernel that pass_tile_map made, which is shaped and has its schedule.
void pass_schedule_lanes(const TileProgram *p, TileKernel *k);

#endif
