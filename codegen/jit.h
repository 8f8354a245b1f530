// jit.h: what emit.c shares with jit.c.
#ifndef CODEGEN_JIT_H
#define CODEGEN_JIT_H

#include "codegen/cg.h"

// Opens a module for the program's target in a context; false with a diagnostic. cg_close releases
// what was opened, and is right after a failure too; a member that was given away is set to NULL
// before.
bool cg_open(Cg *cg, const TileProgram *p, LLVMContextRef context);
void cg_close(Cg *cg);
// Builds, checks and optimizes all kernels of the programs.
bool cg_build(Cg *cg, const TileProgram *const *programs, int count);
// cg_jit for a given target: the host with narrower vectors than it has, for tests.
CgJit *cg_jit_on(const Target *target, const TileProgram *const *programs, int count,
                 const CgOptions *o, Diags *diags);

#endif
