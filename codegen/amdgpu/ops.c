// ops.c: instructions that LLVM has no operation for, and f32 functions.
//
// exp2, log2, rcp, rsqrt and sqrt are one instruction each, within 1 ulp; subnormals are flushed.
#include "codegen/amdgpu/amdgpu.h"

Val am_vector(Cg *cg, Ty element, const Val *v, int n) {
    Val r = LLVMGetPoison(cg_vector(element, n));
    for (int i = 0; i < n; i++) r = cg_insert(cg, r, v[i], cg_i32(cg, i));
    return r;
}

Val am_at(Cg *cg, Val vector, int i) { return cg_extract(cg, vector, cg_i32(cg, i)); }

// ---- pairs

static Val permute_bytes(Cg *cg, Val high, Val low, Val selector) {
    Val args[] = {high, low, selector};
    return cg_intrinsic(cg, "llvm.amdgcn.perm", NULL, 0, args, 3);
}

// Rounded to bf16 in the upper half, as in convert.c; what is in the lower one is of no use.
static Val rounded_up(Cg *cg, Val v, bool guarded) {
    LLVMBuilderRef b = cg->b;
    Val bits = LLVMBuildBitCast(b, v, cg->i32, "");
    Val odd = LLVMBuildAnd(b, LLVMBuildLShr(b, bits, cg_i32(cg, 16), ""), cg_i32(cg, 1), "");
    Val up = LLVMBuildAdd(b, LLVMBuildAdd(b, bits, odd, ""), cg_i32(cg, 0x7fff), "");
    if (!guarded) return up;
    Val nan = LLVMBuildFCmp(b, LLVMRealUNO, v, v, "");
    return LLVMBuildSelect(b, nan, cg_i32(cg, 0x7fc00000), up, "");
}

static Val pack_bf16(Cg *cg, Val low, Val high, bool guarded) {
    return permute_bytes(cg, rounded_up(cg, high, guarded), rounded_up(cg, low, guarded),
                         cg_i32(cg, 0x07060302));
}

Val am_pack_unguarded(Cg *cg, Dtype t, Val low, Val high) {
    return t == DT_BF16 ? pack_bf16(cg, low, high, false) : am_pack(cg, t, low, high);
}

Val am_pack(Cg *cg, Dtype t, Val low, Val high) {
    if (t == DT_BF16) return pack_bf16(cg, low, high, true);
    Val v[] = {cg_write(cg, low, t), cg_write(cg, high, t)};
    return cg_bitcast(cg, am_vector(cg, cg_dtype(cg, t), v, 2), cg->i32);
}

static Val read_half(Cg *cg, Dtype t, Val bits) { // the low 16 of an i32
    Val x = cg_trunc(cg, bits, cg->i16);
    return cg_read(cg, cg_bitcast(cg, x, cg_dtype(cg, t)), t);
}

Val am_unpack(Cg *cg, Dtype t, Val pair, int half) {
    return read_half(cg, t, half ? cg_lshr(cg, pair, cg_i32(cg, 16)) : pair);
}

Val am_unpack_part(Cg *cg, Dtype t, Val pair) {
    Val by = cg_times(cg, am_state(cg)->part, 16);
    return read_half(cg, t, cg_lshr(cg, pair, by));
}

// ---- between lanes

static Val permute_rows(Cg *cg, Val v) { // between lanes 0..15 and 16..31
    Val f = LLVMConstNull(cg->i1);
    Val args[] = {v, v, cg_i32(cg, 0x76543210), cg_i32(cg, 0xfedcba98), f, f};
    return cg_intrinsic(cg, "llvm.amdgcn.permlanex16", &cg->i32, 1, args, 6);
}

// LLVM moves some of these into a branch that alone uses them, unless they are pinned: not all lanes would be there.
Val am_from(Cg *cg, Val v, Val lane) {
    Val args[] = {cg_times(cg, lane, 4), cg_bitcast(cg, v, cg->i32)};
    Val got = cg_intrinsic(cg, "llvm.amdgcn.ds.bpermute", NULL, 0, args, 2);
    return cg_bitcast(cg, am_pinned(cg, got), LLVMTypeOf(v));
}

Val am_exchange(Cg *cg, Val v, int mask) {
    const AmState *s = am_state(cg);
    if (s->wave != 32 || mask != 16)
        return am_from(cg, v, cg_xor(cg, s->gpu.lane, cg_i32(cg, mask)));
    Val got = permute_rows(cg, cg_bitcast(cg, v, cg->i32));
    return cg_bitcast(cg, am_pinned(cg, got), LLVMTypeOf(v));
}

Val am_ballot(Cg *cg, Val bit) {
    Ty t = am_state(cg)->wave == 64 ? cg->i64 : cg->i32;
    return cg_intrinsic(cg, "llvm.amdgcn.ballot", &t, 1, &bit, 1);
}

Val am_every(Cg *cg, Val bit) {
    Val none = am_ballot(cg, cg_not(cg, bit));
    return LLVMBuildIsNull(cg->b, none, "");
}

// Part 0 has the even columns, part 1 the odd ones.
void am_share_pairs(Cg *cg, Val own, Val out[2]) {
    Val other = am_exchange(cg, own, 16);
    Val first = cg_is(cg, am_state(cg)->part, 0);
    for (int i = 0; i < 2; i++) { // bytes of `own` are 0..3 of the selector's, of `other` 4..7
        Val mine = cg_i32(cg, i ? 0x07060302 : 0x05040100);
        Val theirs = cg_i32(cg, i ? 0x03020706 : 0x01000504);
        Val selector = cg_select(cg, first, mine, theirs);
        out[i] = permute_bytes(cg, other, own, selector);
    }
}

Val am_hidden(Cg *cg, Val v) { return cg_asm(cg, LLVMTypeOf(v), &v, 1, "", "=v,0", true); }

// Known to leave memory alone: LLVM would hold every load against every one of them.
Val am_pinned(Cg *cg, Val v) {
    Val pinned = am_hidden(cg, v);
    LLVMAttributeIndex on = (LLVMAttributeIndex)LLVMAttributeFunctionIndex;
    unsigned memory = LLVMGetEnumAttributeKindForName("memory", 6);
    LLVMAddCallSiteAttribute(pinned, on, LLVMCreateEnumAttribute(cg->c, memory, 0));
    return pinned;
}

// ---- the block

void am_schedule_fence(Cg *cg) {
    Val none = cg_i32(cg, 0);
    cg_intrinsic(cg, "llvm.amdgcn.sched.barrier", NULL, 0, &none, 1);
}

static void fence(Cg *cg, LLVMAtomicOrdering order) {
    Val f = LLVMBuildFence(cg->b, order, false, "");
    unsigned kind = LLVMGetMDKindIDInContext(cg->c, "mmra", 4);
    LLVMMetadataRef v[] = {LLVMMDStringInContext2(cg->c, "amdgpu-as", 9),
                           LLVMMDStringInContext2(cg->c, "local", 5)};
    LLVMMetadataRef node = LLVMMDNodeInContext2(cg->c, v, 2);
    LLVMSetMetadata(f, kind, LLVMMetadataAsValue(cg->c, node));
}

// Of LDS alone: loads of the next tile may be on their way across it.
void am_barrier(Cg *cg) {
    fence(cg, LLVMAtomicOrderingRelease);
    cg_intrinsic(cg, "llvm.amdgcn.s.barrier", NULL, 0, NULL, 0);
    fence(cg, LLVMAtomicOrderingAcquire);
}

// ---- functions

static Val f32_op(Cg *cg, const char *name, const Val *args, int n) {
    Val v[] = {args[0], n > 1 ? args[1] : NULL};
    return cg_intrinsic(cg, name, &cg->f32, 1, v, n);
}

Val am_math(Cg *cg, ExOp op, const Val *args) {
    switch ((int)op) {
    case EX_MAX: return f32_op(cg, "llvm.maxnum", args, 2);
    case EX_MIN: return f32_op(cg, "llvm.minnum", args, 2);
    case EX_DIV: {
        Val v[] = {args[0], args[1]};
        return cg_intrinsic(cg, "llvm.amdgcn.fdiv.fast", NULL, 0, v, 2);
    }
    case EX_RCP: return f32_op(cg, "llvm.amdgcn.rcp", args, 1);
    case EX_EXP2: return f32_op(cg, "llvm.amdgcn.exp2", args, 1);
    case EX_LOG2: return f32_op(cg, "llvm.amdgcn.log", args, 1);
    case EX_SQRT: return f32_op(cg, "llvm.amdgcn.sqrt", args, 1);
    case EX_RSQRT: return f32_op(cg, "llvm.amdgcn.rsq", args, 1);
    default: return NULL;
    }
}
