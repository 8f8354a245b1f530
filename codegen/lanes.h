// lanes.h: what a target gives kernels of lanes (lanes.c): its threads, and how they hear of each other.
#ifndef CODEGEN_LANES_H
#define CODEGEN_LANES_H

#include "codegen/cg.h"

typedef struct CgLanes {
    int n;    // threads of a warp; 1: there is no other, and neither function
    Val lane; // i32: this thread's number
    Val (*shuffle)(Cg *cg, Val v,
                   int mask);       // of 32 bits, from the lane whose number differs in `mask`
    Val (*ballot)(Cg *cg, Val bit); // every lane's: an integer of n bits
} CgLanes;

void cg_lanes_op(Cg *cg, const CgLanes *l, const TileOp *op);

#endif
