// schedule.h: the two questions that every target answers for itself; pass_tile and pass_schedule
// ask by target kind.
//
// pass_tile_*: which tile extents.
//   Before: algorithm level; simplified, hoisted and fused; verified. Axes over run-time sizes have
//   extent 0, whole axes (D, E) too; the loops
//           over N are one per sweep, with SYM_MASK in them, over one tile, which is the whole
//           axis.
//   Work:   looks at the kernels (D, Dv, dtype, what is live in the loop) and calls pass_bind(p, k,
//   axis, extent) once for every axis of every
//           kernel of p; pass_bind rewrites grid counts and loop bounds to tiles of that extent.
//           May set kernel->schedule. Nothing else changes.
//   After:  every axis has extent >= 1 (a whole axis: its size, padded as the target's matrix
//   instruction needs). False:  an error is in diags (no extent fits); the program is not used any
//   more.
//
// pass_schedule_*: how the target runs it.
//   Before: extents bound; each loop over N split by class: a CLASS_PARTIAL loop, whose SYM_MASK is
//   expanded to the kernel's mask, followed
//           by a CLASS_FULL loop without any mask (either may be missing). The full loop's STEP
//           begins where the partial loop's ends (from of the one is to of the other), so one
//           sequence of tiles may be prefetched across both. Hoisted, fused, tidied, verified.
//   Work:   homes, buffers, copies, commits, waits, views, barriers; kernel->schedule. Must not
//   change what is computed. After:  tile_verify holds, the interpreter gives what it gave before
//   (up to f32 rounding). pass_schedule sets p->scheduled.
#ifndef PASSES_SCHEDULE_H
#define PASSES_SCHEDULE_H

#include "passes.h"

bool pass_tile_host(TileProgram *p, const PassOptions *o, Diags *diags);     // schedule_host.c
bool pass_tile_sm80(TileProgram *p, const PassOptions *o, Diags *diags);     // schedule_sm80.c
bool pass_schedule_host(TileProgram *p, const PassOptions *o, Diags *diags); // schedule_host.c
bool pass_schedule_sm80(TileProgram *p, const PassOptions *o, Diags *diags); // schedule_sm80.c
bool pass_tile_sm90(TileProgram *p, const PassOptions *o, Diags *diags);     // schedule_sm90.c
bool pass_schedule_sm90(TileProgram *p, const PassOptions *o, Diags *diags); // schedule_sm90.c

// Gives an axis its extent: grid counts over the axis become ceil(size / extent), loops over it run
// over as many tiles.   schedule.c
void pass_bind(TileProgram *p, TileKernel *k, int axis, int extent);

#endif
