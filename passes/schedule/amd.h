// amd.h: what the choice of tiles (amd_shape.c) and the schedule (amd.c)
// of AMD devices ask of each other.
#ifndef PASSES_SCHEDULE_AMD_H
#define PASSES_SCHEDULE_AMD_H

#include "passes/passes.h"

// Whether a tile of the rows' own, loaded once, stays in registers.
bool pass_amd_keeps(const TileProgram *p, const TileKernel *k, const Target *t);

#endif
