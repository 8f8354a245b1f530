// module.c: a module from its making to its code.
//
// In: programs and a context. Out: their kernels in a module of a target's machine, checked and
// optimized; assembly or an object of it.
#include "codegen/jit.h"

#include <pthread.h>

static const CgHooks *hooks_of(TargetKind kind) {
    switch (kind) {
    case KIND_HOST: return &cg_host_hooks;
    case KIND_NVPTX: return &cg_nvptx_hooks;
    case KIND_AMDGPU: return &cg_amdgpu_hooks;
    }
    return NULL;
}

// ---- the module

static void types(Cg *cg) {
    cg->i1 = LLVMInt1TypeInContext(cg->c);
    cg->i8 = LLVMInt8TypeInContext(cg->c);
    cg->i16 = LLVMInt16TypeInContext(cg->c);
    cg->i32 = LLVMInt32TypeInContext(cg->c);
    cg->i64 = LLVMInt64TypeInContext(cg->c);
    cg->f16 = LLVMHalfTypeInContext(cg->c);
    cg->bf16 = LLVMBFloatTypeInContext(cg->c);
    cg->f32 = LLVMFloatTypeInContext(cg->c);
    cg->ptr = LLVMPointerTypeInContext(cg->c, 0);
    cg->void_ = LLVMVoidTypeInContext(cg->c);
}

// LLVM keeps its targets in a list of the process, and adds to it without a lock: one thread at a
// time. Nothing else in codegen outlives a compilation.
static LLVMTargetMachineRef make_machine(Cg *cg) {
    static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&turn);
    LLVMTargetMachineRef tm = cg->hooks->machine(cg);
    pthread_mutex_unlock(&turn);
    return tm;
}

bool cg_open(Cg *cg, const TileProgram *p, LLVMContextRef context) {
    cg->c = context;
    cg->hooks = hooks_of(cg->target->kind);
    if (!cg->hooks)
        return diag_refuse(cg->diags, (Span){0}, "target '%s' is not supported by this version",
                           cg->target->name);
    types(cg);
    cg->tm = make_machine(cg);
    if (!cg->tm) return false;
    cg->m = LLVMModuleCreateWithNameInContext(p->name, cg->c);
    cg->b = LLVMCreateBuilderInContext(cg->c);
    char *triple = LLVMGetTargetMachineTriple(cg->tm);
    LLVMTargetDataRef layout = LLVMCreateTargetDataLayout(cg->tm);
    LLVMSetTarget(cg->m, triple);
    LLVMSetModuleDataLayout(cg->m, layout);
    LLVMDisposeTargetData(layout);
    LLVMDisposeMessage(triple);
    return true;
}

void cg_close(Cg *cg) {
    if (cg->b) LLVMDisposeBuilder(cg->b);
    if (cg->m) LLVMDisposeModule(cg->m);
    if (cg->tm) LLVMDisposeTargetMachine(cg->tm);
}

static bool optimize(Cg *cg) {
    LLVMPassBuilderOptionsRef options = LLVMCreatePassBuilderOptions();
    LLVMErrorRef error = LLVMRunPasses(cg->m, cg->hooks->passes(cg), cg->tm, options);
    LLVMDisposePassBuilderOptions(options);
    if (!error) return true;
    char *text = LLVMGetErrorMessage(error);
    diag_error(cg->diags, (Span){0}, "LLVM: %s", text);
    LLVMDisposeErrorMessage(text);
    return false;
}

static bool sound(Cg *cg) {
    char *text = NULL;
    bool broken = LLVMVerifyModule(cg->m, LLVMReturnStatusAction, &text);
    if (broken) diag_error(cg->diags, (Span){0}, "the code that was made is not sound: %s", text);
    LLVMDisposeMessage(text);
    return !broken;
}

bool cg_finish(Cg *cg) {
    if (!sound(cg) || !optimize(cg)) return false;
    if (cg->hooks->polish) cg->hooks->polish(cg);
    return true;
}

bool cg_build(Cg *cg, const TileProgram *const *programs, int count) {
    for (int i = 0; i < count; i++)
        for (int k = 0; k < programs[i]->kernels.n; k++) {
            const TileKernel *kernel = programs[i]->kernels.data[k];
            const char *symbol = cg_symbol(cg, kernel);
            if (!symbol || !cg_kernel(cg, programs[i], kernel, symbol)) return false;
        }
    return cg_finish(cg);
}

LLVMMemoryBufferRef cg_code(Cg *cg, LLVMCodeGenFileType type) {
    char *error = NULL;
    LLVMMemoryBufferRef buffer;
    int errors = cg->diags->errors;
    if (LLVMTargetMachineEmitToMemoryBuffer(cg->tm, cg->m, type, &error, &buffer)) {
        diag_error(cg->diags, (Span){0}, "LLVM: %s", error);
        LLVMDisposeMessage(error);
        return NULL;
    }
    if (cg->diags->errors == errors) return buffer;
    LLVMDisposeMemoryBuffer(buffer); // an error came through a handler of the target's
    return NULL;
}
