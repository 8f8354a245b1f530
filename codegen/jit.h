// jit.h: modules (module.c), for emit.c, jit.c and apart.c.
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
// The last two of these, of what was built.
bool cg_finish(Cg *cg);
// Assembly or an object of the module; NULL with a diagnostic.
LLVMMemoryBufferRef cg_code(Cg *cg, LLVMCodeGenFileType type);
// PTX of all kernels, each made apart from the others (apart.c), and cg->made. *text is malloc'ed;
// true and NULL: they are to be made together.
bool cg_apart(Cg *cg, const TileProgram *const *programs, int count, char **text, size_t *n);
// cg_jit for a given target: the host with narrower vectors than it has, for tests.
CgJit *cg_jit_on(const Target *target, const TileProgram *const *programs, int count,
                 const CgOptions *o, Diags *diags);

#endif
