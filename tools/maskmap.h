// maskmap.h: a variant's mask over given sizes, tile by tile as the compiler classifies it, for one
// batch and head, with the tiles of the compile's target at these sizes. What `attnc mask` draws, and how bench knows the share of pairs
// inside the mask.
#ifndef TOOLS_MASKMAP_H
#define TOOLS_MASKMAP_H

#include "bind.h"
#include "compile.h"

typedef enum MaskClass { MASK_SKIPPED, MASK_PARTIAL, MASK_FULL, MASK_CLASSES } MaskClass;

typedef struct MaskMap {
    int queries, keys;  // Sq, Sk
    int tile_q, tile_k; // extents of a tile
    int rows, columns;  // of tiles
    uint8_t *cls;       // MaskClass, rows x columns
    int64_t count[MASK_CLASSES];
    double
        inside; // share of the pairs that the mask lets through (sampled where there are very many)
    // the mask itself, for single pairs
    ExPlan *pair;
    ExEnv env;
    struct MaskCursor *at;
} MaskMap;

// Of the compile's only variant, whose tiles are made (compile_tiles). NULL, or why there
// is no map.
const char *mask_map(MaskMap *m, Arena *a, const Compile *c, const Binding *b, int batch, int head);
// By argument: whether the mask reads it.
const bool *mask_reads(Arena *a, const Compile *c, const Signature *sig);
bool mask_at(const MaskMap *m, int query, int key);

#endif
