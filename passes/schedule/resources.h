// resources.h: what a kernel asks of a block: shared memory, and registers of a thread. Sums over its operations, whatever
// they compute, for extents and choices that may only be considered.
#ifndef PASSES_RESOURCES_H
#define PASSES_RESOURCES_H

#include "passes/schedule/schedule.h"

typedef struct Block {
    const TileProgram *p;
    Extents e;
    TileKernel k; // with extents, warps and choices of its own; its operations are the kernel's
    bool flies; // products are in flight beside the maps of the next step, and hold their operands
    int gives;  // stages of gradients of scores that go through shared memory
} Block;

// A kernel as it would run. Extents that it has already stay.
Block pass_block(const TileProgram *p, const TileKernel *k, const Extents *e, Knobs s, int warps);

// Bytes of tiles that are copied or made in shared memory, and of vectors of a step. Barriers and strips come on top.
int pass_shared(const Block *b);
// Registers of a thread for what lives at once of matrices. Numbers of rows, addresses and what expressions need come on top.
int pass_registers(const Block *b);
// For numbers of columns that a map of a matrix takes, and as many for each lookup of an element but the first.
int pass_column_registers(const Block *b);

// Whether scores are tested with more than a causal mask and the end of the keys, or look something up for
// each element: what they are tested with lives in registers, while they are.
bool pass_many_tests(const TileKernel *k);
// Whether a map of a matrix takes a number for each column that is made in the same loop; whether such numbers are
// sums over a column (norms).
bool pass_takes_key_numbers(const TileKernel *k);
bool pass_makes_norms(const TileKernel *k);

#endif
