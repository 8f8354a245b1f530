// chain.h: copies that run ahead of what they are for, on targets where all of a block's threads
// copy and compute (sm_80, AMD).
//
// Tiles of k and v go through shared memory, in which each has room for one; each is fetched while
// the other is computed with:
//
//     %k = load k[.., N]           ->   wait 0; barrier; copy v[TILE(N)]; commit; %k = view
//     %dot = mma %q, %k                 %dot = mma %q, %k
//     ...                               wait 0; barrier; copy k[next tile]; commit; %v = view
//     %v = load v[.., N]                ...
//     %acc = mma %p, %v, ..             %acc = mma %p, %v, ..
//
// The barrier before a copy says that all threads have finished with what the buffer held. A loop
// with one load has two stages of it instead. Loops that follow each other (the tiles of one sweep
// by class) are one sequence of tiles, a chain: the last step of a loop fetches the first tile of
// the next. Where a loop skips steps (`where`), or uses what it loads all at once, a step fetches
// what it needs itself.
#ifndef PASSES_CHAIN_H
#define PASSES_CHAIN_H

#include "ir/tile.h"

// Of a loop's body: one of k and one of v, which a sweep loads at most once each.
enum { CHAIN_MAX_LOADS = 4 };

typedef struct Chains { // of a kernel
    TileProgram *p;
    TileKernel *k;
    ExPool *x;
    TileValue **buffer; // by tensor; NULL until needed
    bool *used;         // by tensor: a sweep has read the buffer already
    // A step's later tiles are waited for as early as their buffer is free; or, in loops that carry
    // nothing but an accumulator, as late as they are needed: weights that are made of scores alone
    // then stand in one piece with the product before them.
    bool late;
} Chains;

Chains chain_kernel(TileProgram *p, TileKernel *k);
// Operands of products, which go through shared memory. Anything else that is loaded is small and
// goes to registers, as do those that have this home already.
bool chain_operand(const TileProgram *p, const TileOp *op);
// An operand that is loaded once, outside of loops. `now`: it is waited for here; otherwise where
// the next wait for all copies stands.
void chain_load(Chains *c, TileOp *load, bool now);
// The loops of a chain, from its first one on; gives the last one.
TileOp *chain_loops(Chains *c, TileOp *first);
// Values without a home get theirs: registers, but vectors that all threads make together; those
// are behind a barrier.
void chain_homes(Chains *c);

#endif
