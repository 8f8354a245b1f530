// dry.h: what a kernel's innermost loop consists of, counted in its assembly without a device, and
// what that says about its speed by the published rates of a chip (dry.def, ir/target.h).
//
// Of all loops that hold matrix products and no other such loop, the one with the least other work
// for each product counts: that is the one over full tiles. Of PTX this is an estimate, since ptxas
// makes other instructions of it; AMD's assembly is what runs. Blocks that a branch inside the loop
// may skip count as if they ran.
#ifndef TOOLS_DRY_H
#define TOOLS_DRY_H

#include "ir/arena.h"
#include "ir/target.h"

typedef enum DryClass {
    DRY_MATRIX,
    DRY_PLAIN,   // vector operations
    DRY_SPECIAL, // exp2, reciprocals
    DRY_SHARED,
    DRY_GLOBAL,
    DRY_SPILL,  // of registers, to memory
    DRY_SCALAR, // of a whole wave: branches, waits, addresses
    DRY_FREE,
    DRY_CLASSES
} DryClass;

typedef struct DryKernel {
    const char *name;
    int count[DRY_CLASSES]; // instructions of the loop; all 0: no loop has matrix products
    int instructions;
    // Of one step of one wave (warp): what it computes, and cycles of its SIMD in which each part is
    // busy. Shared memory serves all SIMDs of the multiprocessor.
    double flop, matrix, vector, shared;
    double overlapped, alone; // cycles of a step when all parts overlap, and when none does
} DryKernel;

typedef struct DryKernels {
    VEC(DryKernel) kernels;
} DryKernels;

// assembly: as CG_ASM is for a GPU target.
DryKernels dry_count(Arena *a, const char *assembly, size_t n, TargetId target);
const char *dry_chip(TargetId target, int *mhz);
// FLOP/s of the whole chip at `cycles` of a step.
double dry_rate(const DryKernel *k, TargetId target, double cycles);

#endif
