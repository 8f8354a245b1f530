// strips.h: values that a step has one of for each key or diagonal (TileHome: HOME_STRIP).
#ifndef PASSES_STRIPS_H
#define PASSES_STRIPS_H

#include "passes/tile/rewrite.h"

// Takes them out of the maps of scores, as far as `room` bytes of shared memory reach, where the
// rows of a block's tile are spread over so many groups of threads. How many bytes they take.
int pass_strips(TileProgram *p, TileKernel *k, int groups, int room);
// Calls fn for the nodes of a map's expression that are left for every element; before or after the
// strips are taken out.
void pass_visit_elements(const TileKernel *k, TileOp *map, const Ex *e,
                         void (*fn)(void *ctx, const Ex *e), void *ctx);
// To the beginning of the loop's step.
void pass_raise_strips(TileOp *loop);

static inline bool pass_is_strip(const TileOp *op) {
    return op->kind == TILE_MAP && op->results.data[0]->home == HOME_STRIP;
}

// What loops read of dense inputs, as tiles that are copied.   dense.c
void pass_copy_dense(TileProgram *p, TileKernel *k);
bool pass_copies_dense(const TileKernel *k);
// What a loop over full tiles reads of them, by maps of their own; whether a map is one.
void pass_read_dense(TileProgram *p, TileKernel *k, TileOp *loop);
bool pass_reads_dense(const TileOp *op);

#endif
