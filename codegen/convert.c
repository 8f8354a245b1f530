// convert.c: between what tensors hold and what expressions compute with.
//
// In: storage elements (cg_dtype), scalar or vector. Out: f32, i32 or i1, and back. bf16 is done in
// integers, so that no target needs an instruction or a library function for it.
#include "codegen/cg.h"

#include <assert.h>

static Val shift_up(Cg *cg, Val v, int bits, Ty wide) {
    int n = cg_lanes(v);
    Val w = cg_zext(cg, v, wide);
    Val by = LLVMConstInt(LLVMGetElementType(wide), (uint64_t)bits, false);
    return cg_shl(cg, w, cg_splat(cg, by, n));
}

static Val read_bf16(Cg *cg, Val v) {
    int n = cg_lanes(v);
    Val bits = n == 1 ? cg_shl(cg, cg_zext(cg, v, cg->i32), cg_i32(cg, 16))
                      : shift_up(cg, v, 16, cg_vector(cg->i32, n));
    return cg_bitcast(cg, bits, cg_vector(cg->f32, n));
}

Val cg_read(Cg *cg, Val v, Dtype from) {
    int n = cg_lanes(v);
    switch (from) {
    case DT_F32:
    case DT_I32: return v;
    case DT_F16: return cg_fpext(cg, v, cg_vector(cg->f32, n));
    case DT_BF16: return read_bf16(cg, v);
    case DT_BOOL: return cg_icmp(cg, LLVMIntNE, v, LLVMConstNull(LLVMTypeOf(v)));
    case DT_COUNT: break;
    }
    assert(!"a dtype");
    return NULL;
}

// To nearest even by adding half of the last place kept; a NaN, which that could carry into
// infinity, is made the quiet one.
static Val write_bf16(Cg *cg, Val v) {
    int n = cg_lanes(v);
    LLVMBuilderRef b = cg->b;
    Val bits = LLVMBuildBitCast(b, v, cg_vector(cg->i32, n), "");
    Val by16 = cg_splat(cg, cg_i32(cg, 16), n), one = cg_splat(cg, cg_i32(cg, 1), n);
    Val odd = LLVMBuildAnd(b, LLVMBuildLShr(b, bits, by16, ""), one, "");
    Val up =
        LLVMBuildAdd(b, bits, LLVMBuildAdd(b, odd, cg_splat(cg, cg_i32(cg, 0x7fff), n), ""), "");
    Val nan = LLVMBuildFCmp(b, LLVMRealUNO, v, v, "");
    up = LLVMBuildSelect(b, nan, cg_splat(cg, cg_i32(cg, 0x7fc00000), n), up, "");
    return LLVMBuildTrunc(b, LLVMBuildLShr(b, up, by16, ""), cg_vector(cg->i16, n), "");
}

Val cg_write(Cg *cg, Val v, Dtype to) {
    int n = cg_lanes(v);
    switch (to) {
    case DT_F32:
    case DT_I32: return v;
    case DT_F16: return LLVMBuildFPTrunc(cg->b, v, cg_vector(cg->f16, n), "");
    case DT_BF16: return write_bf16(cg, v);
    case DT_BOOL: return cg_zext(cg, v, cg_vector(cg->i8, n));
    case DT_COUNT: break;
    }
    assert(!"a dtype that kernels write");
    return NULL;
}

Val cg_round(Cg *cg, Val v, Dtype to) {
    return to == DT_F16 || to == DT_BF16 ? cg_read(cg, cg_write(cg, v, to), to) : v;
}
