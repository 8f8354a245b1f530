// lock.c: what several tiles may add to.
//
// Out: locks of the module. A thread holds one at a time, for as long as an addition takes.
#include "codegen/host/host.h"

enum { LOCKS = 256, LOCK_BYTES = 64 }; // of a module; each has a line of the cache

// The lock of a tile, or of a tensor, by where it begins: one of the module's. A thread holds one at a time, for as long as an
// addition takes.
Val host_lock(Cg *cg, Val begin) {
    Ty t = LLVMArrayType2(cg->i8, LOCKS * LOCK_BYTES);
    Val all = LLVMGetNamedGlobal(cg->m, "attn.locks");
    if (!all) {
        all = LLVMAddGlobal(cg->m, t, "attn.locks");
        LLVMSetLinkage(all, LLVMInternalLinkage);
        LLVMSetInitializer(all, LLVMConstNull(t));
        LLVMSetAlignment(all, LOCK_BYTES);
    }
    Val hash = LLVMBuildMul(cg->b, LLVMBuildPtrToInt(cg->b, begin, cg->i64, ""),
                            LLVMConstInt(cg->i64, 0x9e3779b97f4a7c15u, false), "");
    hash = LLVMBuildLShr(cg->b, hash, cg_i64(cg, 56), "");
    Val at = LLVMBuildMul(cg->b, hash, cg_i64(cg, LOCK_BYTES), "");
    return LLVMBuildGEP2(cg->b, cg->i8, all, &at, 1, "");
}

void host_take_lock(Cg *cg, Val lock) {
    Blk attempt = cg_block(cg, "lock"), wait = cg_block(cg, "locked"), on = cg_block(cg, "add");
    Val one = cg_i32(cg, 1), none = cg_i32(cg, 0);
    LLVMBuildBr(cg->b, attempt);
    LLVMPositionBuilderAtEnd(cg->b, attempt);
    Val was = LLVMBuildAtomicRMW(cg->b, LLVMAtomicRMWBinOpXchg, lock, one,
                                 LLVMAtomicOrderingAcquire, false);
    LLVMBuildCondBr(cg->b, LLVMBuildICmp(cg->b, LLVMIntEQ, was, none, ""), on, wait);
    LLVMPositionBuilderAtEnd(cg->b, wait);
    if (host_of(cg)->sse) cg_intrinsic(cg, "llvm.x86.sse2.pause", NULL, 0, NULL, 0);
    Val now = LLVMBuildLoad2(cg->b, cg->i32, lock, "");
    LLVMSetOrdering(now, LLVMAtomicOrderingMonotonic);
    LLVMSetAlignment(now, 4);
    LLVMBuildCondBr(cg->b, LLVMBuildICmp(cg->b, LLVMIntEQ, now, none, ""), attempt, wait);
    LLVMPositionBuilderAtEnd(cg->b, on);
}

void host_drop_lock(Cg *cg, Val lock) {
    Val store = LLVMBuildStore(cg->b, cg_i32(cg, 0), lock);
    LLVMSetOrdering(store, LLVMAtomicOrderingRelease);
    LLVMSetAlignment(store, 4);
}
