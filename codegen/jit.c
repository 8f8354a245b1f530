// jit.c: the host's kernels as functions in this process.
//
// In: programs scheduled for the host. Out: their functions by name, and the metadata that the
// runtime binds tensors with. Holds afterwards: code lives until cg_jit_free. Symbols that code
// refers to (memcpy, memset) come from this process.
#include "codegen/jit.h"
#include "runtime/abi.h"

#include <assert.h>
#include <llvm-c/LLJIT.h>
#include <llvm-c/Orc.h>
#include <stdlib.h>

struct CgJit {
    LLVMOrcLLJITRef jit;
    uint8_t *meta;
    size_t meta_n;
};

static bool failed(Cg *cg, LLVMErrorRef error) {
    if (!error) return false;
    char *text = LLVMGetErrorMessage(error);
    diag_error(cg->diags, (Span){0}, "the host's code cannot be loaded: %s", text);
    LLVMDisposeErrorMessage(text);
    return true;
}

// Takes cg->tm.
static bool start(Cg *cg, CgJit *j) {
    LLVMOrcLLJITBuilderRef builder = LLVMOrcCreateLLJITBuilder();
    LLVMOrcLLJITBuilderSetJITTargetMachineBuilder(
        builder, LLVMOrcJITTargetMachineBuilderCreateFromTargetMachine(cg->tm));
    cg->tm = NULL;
    if (failed(cg, LLVMOrcCreateLLJIT(&j->jit, builder))) {
        j->jit = NULL;
        return false;
    }
    LLVMOrcDefinitionGeneratorRef process;
    char prefix = LLVMOrcLLJITGetGlobalPrefix(j->jit);
    if (failed(cg,
               LLVMOrcCreateDynamicLibrarySearchGeneratorForProcess(&process, prefix, NULL, NULL)))
        return false;
    LLVMOrcJITDylibAddGenerator(LLVMOrcLLJITGetMainJITDylib(j->jit), process);
    return true;
}

static bool write_metadata(Cg *cg, CgJit *j, const TileProgram *const *programs, int count) {
    AbiMeta meta;
    if (!cg_metadata(cg, programs, count, &meta)) return false;
    const char *wrong = abi_write(&meta, &j->meta, &j->meta_n);
    if (wrong) diag_error(cg->diags, (Span){0}, "%s", wrong);
    return !wrong;
}

static bool load(Cg *cg, CgJit *j, LLVMOrcThreadSafeContextRef context,
                 const TileProgram *const *programs, int count) {
    if (!cg_open(cg, programs[0], LLVMOrcThreadSafeContextGetContext(context)) ||
        !cg_build(cg, programs, count))
        return false;
    if (!write_metadata(cg, j, programs, count) || !start(cg, j)) return false;
    LLVMOrcThreadSafeModuleRef module = LLVMOrcCreateNewThreadSafeModule(cg->m, context);
    cg->m = NULL;
    return !failed(
        cg, LLVMOrcLLJITAddLLVMIRModule(j->jit, LLVMOrcLLJITGetMainJITDylib(j->jit), module));
}

CgJit *cg_jit(const TileProgram *const *programs, int count, const CgOptions *o, Diags *diags) {
    Target target = cg_target(TARGET_HOST);
    return cg_jit_on(&target, programs, count, o, diags);
}

CgJit *cg_jit_on(const Target *target, const TileProgram *const *programs, int count,
                 const CgOptions *o, Diags *diags) {
    assert(count > 0);
    CgJit *j = calloc(1, sizeof *j);
    if (!j) {
        diag_error(diags, (Span){0}, "out of memory");
        return NULL;
    }
    Cg cg = {.arena = arena_new(), .diags = diags, .opt = o, .target = target};
    LLVMOrcThreadSafeContextRef context = LLVMOrcCreateNewThreadSafeContext();
    bool ok = load(&cg, j, context, programs, count);
    cg_close(&cg);
    for (int i = 0; ok && i < cg.made.n; i++) { // code is made now, so that what fails does so here
        LLVMOrcExecutorAddress at;
        ok = !failed(&cg, LLVMOrcLLJITLookup(j->jit, &at, cg.made.data[i].symbol));
    }
    LLVMOrcDisposeThreadSafeContext(context);
    arena_free(cg.arena);
    if (ok) return j;
    cg_jit_free(j);
    return NULL;
}

void *cg_jit_function(CgJit *j, const char *kernel) {
    LLVMOrcExecutorAddress at = 0;
    LLVMErrorRef error = LLVMOrcLLJITLookup(j->jit, &at, kernel);
    if (error) LLVMConsumeError(error);
    return error ? NULL : (void *)(uintptr_t)at;
}

const void *cg_jit_metadata(const CgJit *j, size_t *n) {
    *n = j->meta_n;
    return j->meta;
}

void cg_jit_free(CgJit *j) {
    if (!j) return;
    if (j->jit) {
        LLVMErrorRef error = LLVMOrcDisposeLLJIT(j->jit);
        if (error) LLVMConsumeError(error);
    }
    free(j->meta);
    free(j);
}
