// codegen.h: scheduled tile program -> LLVM -> object code, assembly or host functions. The public
// face of codegen/ for the driver; LLVM does not show through it.
#ifndef CODEGEN_CODEGEN_H
#define CODEGEN_CODEGEN_H

#include "ir/tile.h"

typedef struct CgOptions {
    int opt;     // -O level
    bool checks; // -g: report the first input index that was used outside its tensor
    int threads; // at most; 0: as many as there are processors. What comes out is the same
} CgOptions;

typedef enum CgForm { CG_LLVM, CG_ASM, CG_OBJECT } CgForm; // LLVM text; assembly (PTX); ELF object

// Target data with what is known only at run time filled in: the host's vector width and caches.
Target cg_target(TargetId id);

// Several variants give one module, one artifact. The text or bytes go to *out (malloc'ed, *n
// bytes); artifacts (CG_ASM of nvptx, CG_OBJECT of the host) carry their metadata. False with an
// error in diags.
bool cg_emit(const TileProgram *const *programs, int count, const CgOptions *o, CgForm form,
             Diags *diags, void **out, size_t *n);

// The host in memory: functions live as long as the CgJit.
typedef struct CgJit CgJit;
CgJit *cg_jit(const TileProgram *const *programs, int count, const CgOptions *o, Diags *diags);
// A kernel: void (*)(const uint64_t *args, int64_t first, int64_t last). NULL: there is none.
void *cg_jit_function(CgJit *j, const char *kernel);
const void *cg_jit_metadata(const CgJit *j, size_t *n); // as runtime/abi.h lays it out
void cg_jit_free(CgJit *j);

#endif
