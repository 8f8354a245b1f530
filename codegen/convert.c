// convert.c: between what tensors hold and what expressions compute with.
//
// In: storage elements (cg_dtype), scalar or vector. Out: f32, i32 or i1, and back. bf16 is done in
// integers, so that no target needs an instruction or a library function for it.
#include "codegen/cg.h"

#include <assert.h>

static Val shift_up(Cg *cg, Val v, int bits, Ty wide) {
    int n = cg_lanes(v);
    Val w = LLVMBuildZExt(cg->b, v, wide, "");
    Val by = LLVMConstInt(LLVMGetElementType(wide), (uint64_t)bits, false);
    return LLVMBuildShl(cg->b, w, cg_splat(cg, by, n), "");
}

static Val read_bf16(Cg *cg, Val v) {
    int n = cg_lanes(v);
    Val bits = n == 1
                   ? LLVMBuildShl(cg->b, LLVMBuildZExt(cg->b, v, cg->i32, ""), cg_i32(cg, 16), "")
                   : shift_up(cg, v, 16, cg_vector(cg->i32, n));
    return LLVMBuildBitCast(cg->b, bits, cg_vector(cg->f32, n), "");
}

// e4m3 has no infinity and its exponent is 8 more than where its bits land in an f32: times 2^120,
// subnormals included.
static Val read_e4m3(Cg *cg, Val v) {
    int n = cg_lanes(v);
    Ty wide = cg_vector(cg->i32, n), f = cg_vector(cg->f32, n);
    Val bits = LLVMBuildZExt(cg->b, v, wide, "");
    Val low = LLVMBuildAnd(cg->b, bits, cg_splat(cg, cg_i32(cg, 0x7f), n), "");
    Val sign = LLVMBuildAnd(cg->b, bits, cg_splat(cg, cg_i32(cg, 0x80), n), "");
    sign = LLVMBuildShl(cg->b, sign, cg_splat(cg, cg_i32(cg, 24), n), "");
    Val mag = LLVMBuildShl(cg->b, low, cg_splat(cg, cg_i32(cg, 20), n), "");
    mag = LLVMBuildBitCast(cg->b, LLVMBuildOr(cg->b, mag, sign, ""), f, "");
    mag = LLVMBuildFMul(cg->b, mag, cg_splat(cg, cg_f32(cg, 0x1p120), n), "");
    Val nan = LLVMBuildICmp(cg->b, LLVMIntEQ, low, cg_splat(cg, cg_i32(cg, 0x7f), n), "");
    Val quiet = LLVMBuildBitCast(cg->b, cg_splat(cg, cg_i32(cg, 0x7fc00000), n), f, "");
    return LLVMBuildSelect(cg->b, nan, quiet, mag, "");
}

Val cg_read(Cg *cg, Val v, Dtype from) {
    int n = cg_lanes(v);
    switch (from) {
    case DT_F32:
    case DT_I32: return v;
    case DT_F16: return LLVMBuildFPExt(cg->b, v, cg_vector(cg->f32, n), "");
    case DT_BF16: return read_bf16(cg, v);
    case DT_BOOL: return LLVMBuildICmp(cg->b, LLVMIntNE, v, LLVMConstNull(LLVMTypeOf(v)), "");
    case DT_I8: return LLVMBuildSExt(cg->b, v, cg_vector(cg->i32, n), "");
    case DT_E4M3: return read_e4m3(cg, v);
    case DT_E5M2: {
        Val half = LLVMBuildZExt(cg->b, v, cg_vector(cg->i16, n), "");
        Val eight = cg_splat(cg, LLVMConstInt(cg->i16, 8, false), n);
        half = LLVMBuildBitCast(cg->b, LLVMBuildShl(cg->b, half, eight, ""), cg_vector(cg->f16, n),
                                "");
        return LLVMBuildFPExt(cg->b, half, cg_vector(cg->f32, n), "");
    }
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
    case DT_BOOL: return LLVMBuildZExt(cg->b, v, cg_vector(cg->i8, n), "");
    case DT_I8: return LLVMBuildTrunc(cg->b, v, cg_vector(cg->i8, n), "");
    case DT_E4M3:
    case DT_E5M2:
    case DT_COUNT: break;
    }
    assert(!"a dtype that kernels write");
    return NULL;
}

Val cg_round(Cg *cg, Val v, Dtype to) {
    return to == DT_F16 || to == DT_BF16 ? cg_read(cg, cg_write(cg, v, to), to) : v;
}
