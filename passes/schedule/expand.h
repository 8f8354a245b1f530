// expand.h: from operations with places to roles.
#ifndef PASSES_EXPAND_H
#define PASSES_EXPAND_H

#include "passes/tile/rewrite.h"

// What lies in shared memory and is filled by one role for others: loaded, or given by a role that computes. pipes.c
bool pass_is_piped(const TileValue *v);
// A pipe for each of these (own: a buffer), in a block; by id of what is loaded or given.
void pass_pipes(TileProgram *p, TileKernel *k, TileBlock *b, TileValue **pipe, bool own);
// A loop continues where the one before ends, with its results.
bool pass_follows(const TileOp *before, const TileOp *loop);
// A map whose results are 0.
bool pass_is_zero(const TileValue *v);

// The roles of a kernel get their bodies, and values homes; a kernel without roles stays as it is. expand.c
void pass_expand(TileProgram *p, TileKernel *k);
// and a role's products, turns and the stages that it holds what they need to wait for; waits.c
void pass_waits(TileProgram *p, TileKernel *k, TileOp *role);
// where one role fills what it reads, its copies. copies.c
void pass_wait_copies(TileProgram *p, TileKernel *k);

#endif
