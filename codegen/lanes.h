// lanes.h: what a target gives kernels of lanes (lanes.c): its threads, and how they hear of each other.
#ifndef CODEGEN_LANES_H
#define CODEGEN_LANES_H

#include "codegen/cg.h"

void cg_lanes_op(Cg *cg, const CgLanes *l, const TileOp *op);
Val cg_lanes_merge(Cg *cg, ExOp reduce, Val a, Val b);          // a NULL: b
Val cg_lanes_all(Cg *cg, const CgLanes *l, ExOp reduce, Val v); // of all lanes, in all of them

#endif
