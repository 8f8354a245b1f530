// maskmap.h: a variant's mask over given sizes, tile by tile as the compiler classifies it, for one
// batch and head. What `attnc mask` and the playground draw, and how bench knows the share of pairs
// inside the mask.
#ifndef TOOLS_MASKMAP_H
#define TOOLS_MASKMAP_H

#include "bind.h"
#include "ir/tile.h"

typedef enum MaskClass { MASK_SKIPPED, MASK_PARTIAL, MASK_FULL, MASK_CLASSES } MaskClass;

typedef struct MaskMap {
    int queries, keys;  // Sq, Sk
    int tile_q, tile_k; // extents of a tile
    int rows, columns;  // of tiles
    uint8_t *cls;       // MaskClass, rows x columns
    int64_t count[MASK_CLASSES];
    // the mask itself, for single pairs
    ExPlan *pair;
    ExEnv env;
    struct MaskCursor *at;
    TileProgram *program;
    TileKernel *kernel;
} MaskMap;

// Of a program whose tiles are bound, with those of the kernel that these sizes take. NULL, or why
// there is no map.
const char *mask_map(MaskMap *m, Arena *a, TileProgram *p, const Binding *b, int batch, int head);
// Of a kernel whose two axes have extents, at any level.
const char *mask_map_of(MaskMap *m, Arena *a, TileProgram *p, TileKernel *k, const Binding *b,
                        int batch, int head);
// The kernel that goes through the keys in a launch of these sizes, whose tiles mask_map shows; NULL:
// none does.
TileKernel *mask_kernel(const TileProgram *p, const int32_t *size, Arena *a);
// Tiles for what reads the map: powers: their extents are powers of two of keys, as places of its own often are; coarser ones where there are many.
void mask_widen(TileKernel *k, const Binding *b, bool powers);
int mask_axis(const TileKernel *k, int size); // the kernel's axis over a size; -1: none
// By argument: whether the mask reads it.
const bool *mask_reads(Arena *a, const TileProgram *p, const Signature *sig);
bool mask_at(const MaskMap *m, int query, int key);
// The share of the pairs that the mask lets through (sampled where there are very many).
double mask_inside(const MaskMap *m);

// The same question of a part of the mask, over the kernel's positions: what is known of the map's tiles.
typedef struct MaskJudge MaskJudge;
MaskJudge *mask_judge(const MaskMap *m, Arena *a, const Ex *part);
bool mask_judge_is_blind(const MaskJudge *j); // it can tell nothing of any tile
void mask_judged(MaskJudge *j, int row, int column, bool *some, bool *all);

#endif
