// convert.c: between what tensors hold and what expressions compute with.
//
// In: storage elements (cg_dtype), scalar or vector. Out: f32, i32 or i1, and back. bf16, e4m3 and e5m2 are done in
// integers, so that no target needs an instruction or a library function for it; one that has an instruction to bf16 says so.
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

// Exponent and fraction go to their places, and the exponent gets f32's bias. Below the smallest normal number the one that stands
// before the fraction is taken away again.
static Val read_e4m3_e5m2(Cg *cg, Val v, Dtype from) {
    int n = cg_lanes(v), places = from == DT_E4M3 ? 20 : 21, bias = from == DT_E4M3 ? 120 : 112;
    int least = 1 << (23 - places), special = from == DT_E4M3 ? 0x7f : 0x7c;
    LLVMBuilderRef b = cg->b;
    Ty floats = cg_vector(cg->f32, n);
#define K(x) cg_splat(cg, cg_i32(cg, x), n)
    Val bits = cg_zext(cg, v, cg_vector(cg->i32, n)), mag = cg_and(cg, bits, K(0x7f));
    Val sign = cg_shl(cg, cg_and(cg, bits, K(0x80)), K(24));
    Val at = cg_add(cg, cg_shl(cg, mag, K(places)), K(bias << 23)), one = K((bias + 1) << 23);
    Val low = cg_bitcast(cg, cg_add(cg, at, K(1 << 23)), floats);
    low = cg_bitcast(cg, LLVMBuildFSub(b, low, cg_bitcast(cg, one, floats), ""), LLVMTypeOf(bits));
    Val out = cg_select(cg, LLVMBuildICmp(b, LLVMIntULT, mag, K(least), ""), low, at);
    Val none = LLVMBuildICmp(b, LLVMIntUGE, mag, K(special), "");
    out = cg_select(cg, none, LLVMBuildOr(b, at, K(0x7f800000), ""), out);
#undef K
    return cg_bitcast(cg, LLVMBuildOr(b, out, sign, ""), floats);
}

Val cg_read(Cg *cg, Val v, Dtype from) {
    int n = cg_lanes(v);
    switch (from) {
    case DT_F32:
    case DT_I32: return v;
    case DT_F16: return cg_fpext(cg, v, cg_vector(cg->f32, n));
    case DT_BF16: return read_bf16(cg, v);
    case DT_BOOL: return cg_icmp(cg, LLVMIntNE, v, LLVMConstNull(LLVMTypeOf(v)));
    case DT_E4M3:
    case DT_E5M2: return read_e4m3_e5m2(cg, v, from);
    case DT_I8:
        v = LLVMBuildSExt(cg->b, v, cg_vector(cg->i32, n), "");
        return LLVMBuildSIToFP(cg->b, v, cg_vector(cg->f32, n), "");
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
    if (cg->hooks->bf16) return cg->hooks->bf16(cg, v);
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
    case DT_E4M3: // only read
    case DT_E5M2:
    case DT_I8:
    case DT_COUNT: break;
    }
    assert(!"a dtype that kernels write");
    return NULL;
}

Val cg_round(Cg *cg, Val v, Dtype to) {
    return to == DT_F16 || to == DT_BF16 ? cg_read(cg, cg_write(cg, v, to), to) : v;
}
