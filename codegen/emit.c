// emit.c: from programs to a module, and from the module to text, objects or functions in memory.
//
// In: scheduled programs for one target. Out: what codegen.h promises. A module holds all programs'
// kernels and, in an object, their metadata. Everything of LLVM is released on every way out.
#include "codegen/cg.h"
#include "codegen/jit.h"
#include "runtime/abi.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

// ---- output

static void *copy(const void *bytes, size_t n) {
    char *out = malloc(n + 1);
    if (!out) return NULL;
    memcpy(out, bytes, n);
    out[n] = 0;
    return out;
}

static bool out_of_memory(Cg *cg) { return diag_refuse(cg->diags, (Span){0}, "out of memory"); }

static bool emit_llvm(Cg *cg, void **out, size_t *n) {
    char *text = LLVMPrintModuleToString(cg->m);
    *n = strlen(text);
    *out = copy(text, *n);
    LLVMDisposeMessage(text);
    return *out || out_of_memory(cg);
}

// A global in the section that tools look for, kept though nothing refers to it.
static bool add_metadata(Cg *cg, AbiMeta *meta, const char *name) {
    uint8_t *bytes;
    size_t n;
    const char *wrong = abi_write(meta, &bytes, &n);
    if (wrong) return diag_refuse(cg->diags, (Span){0}, "%s", wrong);
    Val data = LLVMConstStringInContext2(cg->c, (const char *)bytes, n, true);
    free(bytes);
    Val g = LLVMAddGlobalInAddressSpace(cg->m, LLVMTypeOf(data),
                                        arena_printf(cg->arena, "%s_attn_meta", name),
                                        cg->target->kind == KIND_HOST ? 0 : 1);
    LLVMSetInitializer(g, data);
    LLVMSetGlobalConstant(g, true);
    LLVMSetSection(g, ABI_ELF_SECTION);
    LLVMSetAlignment(g, 8);
    return true;
}

static bool emit_code(Cg *cg, CgForm form, AbiMeta *meta, void **out, size_t *n) {
    LLVMMemoryBufferRef buffer = cg_code(cg, form == CG_ASM ? LLVMAssemblyFile : LLVMObjectFile);
    if (!buffer) return false;
    const char *start = LLVMGetBufferStart(buffer);
    const char *wrong = NULL;
    *n = LLVMGetBufferSize(buffer);
    bool linked = true;
    if (form == CG_ASM && cg->target->kind == KIND_NVPTX)
        wrong = abi_ptx(start, *n, meta, (char **)out, n);
    else if (form == CG_OBJECT && cg->target->kind == KIND_AMDGPU)
        linked = cg_link(cg, start, *n, out, n);
    else
        *out = copy(start, *n);
    if (*out && form == CG_OBJECT) wrong = abi_seal(*out, *n);
    LLVMDisposeMemoryBuffer(buffer);
    if (wrong) diag_error(cg->diags, (Span){0}, "%s", wrong);
    return linked && !wrong && (*out || out_of_memory(cg));
}

// False: the kernels are to be made in one module, or *ok is false.
static bool emit_apart(Cg *cg, const TileProgram *const *programs, int count, void **out, size_t *n,
                       bool *ok) {
    AbiMeta meta;
    char *text;
    *ok = cg_apart(cg, programs, count, &text, n);
    if (!text) return false;
    *ok = cg_metadata(cg, programs, count, &meta);
    const char *wrong = *ok ? abi_ptx(text, *n, &meta, (char **)out, n) : NULL;
    free(text);
    if (wrong) diag_error(cg->diags, (Span){0}, "%s", wrong);
    *ok = *ok && !wrong;
    return true;
}

static bool emit(Cg *cg, const TileProgram *const *programs, int count, CgForm form, void **out,
                 size_t *n) {
    AbiMeta meta;
    bool ok = true;
    if (form == CG_ASM && cg->target->kind == KIND_NVPTX &&
        (emit_apart(cg, programs, count, out, n, &ok) || !ok))
        return ok;
    if (!cg_open(cg, programs[0], cg->c)) return false;
    if (!cg_build(cg, programs, count)) return false;
    if (form == CG_LLVM) return emit_llvm(cg, out, n);
    if (!cg_metadata(cg, programs, count, &meta)) return false;
    if (form == CG_OBJECT && !add_metadata(cg, &meta, programs[0]->name)) return false;
    return emit_code(cg, form, &meta, out, n);
}

bool cg_emit(const TileProgram *const *programs, int count, const CgOptions *o, CgForm form,
             Diags *diags, void **out, size_t *n) {
    assert(count > 0);
    Target target = cg_target(programs[0]->target);
    Cg cg = {.arena = arena_new(), .diags = diags, .opt = o, .target = &target};
    cg.c = LLVMContextCreate();
    *out = NULL;
    bool ok = emit(&cg, programs, count, form, out, n);
    if (!ok) {
        free(*out);
        *out = NULL;
    }
    cg_close(&cg);
    LLVMContextDispose(cg.c);
    arena_free(cg.arena);
    return ok;
}
