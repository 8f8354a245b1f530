// wide.c: products of 32-bit numbers that are 64 bits wide, as the one instruction that they are.
//
// In: the module's functions after their passes. Out: the same, where an i32 that is extended and then multiplied by a constant is
// `mul.wide`: so an index becomes an offset, and a stage's number what it adds to a descriptor. LLVM finds that instruction only where it
// optimizes while it selects, which takes it half as long again, and of which kernels for sm_90a need nothing else (nvptx.c).
#include "codegen/nvptx/nvptx.h"

#include <string.h>

typedef struct Wide {
    Ty type;
    Val code[2]; // without and with sign
    LLVMTargetDataRef layout;
} Wide;

static Wide wide_of(Cg *cg) {
    static const char *const text[] = {"mul.wide.u32 $0, $1, $2;", "mul.wide.s32 $0, $1, $2;"};
    Ty narrow[] = {cg->i32, cg->i32};
    Wide w = {.type = LLVMFunctionType(cg->i64, narrow, 2, false)};
    for (int i = 0; i < 2; i++)
        w.code[i] = LLVMGetInlineAsm(w.type, text[i], strlen(text[i]), "=l,r,n", 6, false, false,
                                     LLVMInlineAsmDialectATT, false);
    w.layout = LLVMGetModuleDataLayout(cg->m);
    return w;
}

// v * by, where v is an i32 extended; else NULL.
static Val product(Cg *cg, const Wide *w, Val v, uint64_t by) {
    bool sign = LLVMIsASExtInst(v) != NULL;
    if ((!sign && !LLVMIsAZExtInst(v)) || by < 2 || by > INT32_MAX) return NULL;
    Val from = LLVMGetOperand(v, 0);
    if (LLVMTypeOf(from) != cg->i32) return NULL;
    Val args[] = {from, cg_i32(cg, (int64_t)by)};
    return LLVMBuildCall2(cg->b, w->type, w->code[sign], args, 2, "");
}

static Val of_number(Cg *cg, const Wide *w, Val v) {
    LLVMOpcode op = LLVMGetInstructionOpcode(v);
    Val by = op == LLVMShl || op == LLVMMul ? LLVMGetOperand(v, 1) : NULL;
    if (!by || !LLVMIsAConstantInt(by)) return NULL;
    uint64_t n = LLVMConstIntGetZExtValue(by);
    if (op == LLVMShl) n = n < 31 ? UINT64_C(1) << n : 0;
    return product(cg, w, LLVMGetOperand(v, 0), n);
}

// Of a place in memory, but for shared memory, where places are numbers.
static Val of_place(Cg *cg, const Wide *w, Val v) {
    if (!LLVMIsAGetElementPtrInst(v) || LLVMGetNumOperands(v) != 2) return NULL;
    if (LLVMGetPointerAddressSpace(LLVMTypeOf(v)) > 1) return NULL;
    uint64_t size = LLVMABISizeOfType(w->layout, LLVMGetGEPSourceElementType(v));
    Val by = product(cg, w, LLVMGetOperand(v, 1), size);
    if (!by) return NULL;
    Val base = cg_ptrtoint(cg, LLVMGetOperand(v, 0), cg->i64);
    return cg_inttoptr(cg, cg_add(cg, base, by), LLVMTypeOf(v));
}

static void widen(Cg *cg, const Wide *w, Val v) {
    LLVMPositionBuilderBefore(cg->b, v);
    Val by = LLVMTypeOf(v) == cg->i64 ? of_number(cg, w, v) : of_place(cg, w, v);
    if (!by) return;
    LLVMReplaceAllUsesWith(v, by);
    LLVMInstructionEraseFromParent(v);
}

void nv_widen(Cg *cg) {
    Wide w = wide_of(cg);
    for (Val f = LLVMGetFirstFunction(cg->m); f; f = LLVMGetNextFunction(f))
        for (Blk b = LLVMGetFirstBasicBlock(f); b; b = LLVMGetNextBasicBlock(b))
            for (Val i = LLVMGetFirstInstruction(b), next; i; i = next) {
                next = LLVMGetNextInstruction(i);
                widen(cg, &w, i);
            }
}
