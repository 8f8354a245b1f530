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
    Val hash = cg_mul(cg, cg_ptrtoint(cg, begin, cg->i64),
                      LLVMConstInt(cg->i64, 0x9e3779b97f4a7c15u, false));
    hash = cg_lshr(cg, hash, cg_i64(cg, 56));
    Val at = cg_mul(cg, hash, cg_i64(cg, LOCK_BYTES));
    return cg_element(cg, cg->i8, all, at);
}

void host_take_lock(Cg *cg, Val lock) {
    Blk attempt = cg_block(cg, "lock"), wait = cg_block(cg, "locked"), on = cg_block(cg, "add");
    Val one = cg_i32(cg, 1), none = cg_i32(cg, 0);
    cg_enter(cg, attempt);
    Val was = LLVMBuildAtomicRMW(cg->b, LLVMAtomicRMWBinOpXchg, lock, one,
                                 LLVMAtomicOrderingAcquire, false);
    cg_fork(cg, cg_same(cg, was, none), on, wait);
    cg_at(cg, wait);
    if (host_of(cg)->sse) cg_intrinsic(cg, "llvm.x86.sse2.pause", NULL, 0, NULL, 0);
    Val now = cg_load(cg, cg->i32, lock);
    LLVMSetOrdering(now, LLVMAtomicOrderingMonotonic);
    LLVMSetAlignment(now, 4);
    cg_fork(cg, cg_same(cg, now, none), attempt, wait);
    cg_at(cg, on);
}

void host_drop_lock(Cg *cg, Val lock) {
    Val store = cg_store(cg, cg_i32(cg, 0), lock);
    LLVMSetOrdering(store, LLVMAtomicOrderingRelease);
    LLVMSetAlignment(store, 4);
}
