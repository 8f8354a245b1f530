// jit.h: a compile's variants as code in this process, opened by the runtime.
#ifndef TOOLS_JIT_H
#define TOOLS_JIT_H

#include "compile.h"
#include "runtime/attn.h"

typedef struct Jit {
    CgJit *code;
    attn_artifact *artifact;
} Jit;

// False after a mistake, which is in the compile's diagnostics or, when the runtime refuses, in
// *error. Neither the compile nor its arena need outlive it; the context must.
bool jit_open(Jit *j, attn_context *context, Compile *c, attn_error *error);
void jit_close(Jit *j);

#endif
