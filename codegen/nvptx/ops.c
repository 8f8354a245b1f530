// ops.c: the instructions that LLVM has no operation for: NVVM intrinsics, and inline PTX
// where there is none.
//
// In: scalars. Out: a value at the builder's place. Nothing here knows the tile IR.
#include "codegen/nvptx/nvptx.h"

#include <assert.h>

Val nv_special(Cg *cg, const char *name) {
    return cg_intrinsic(cg, arena_printf(cg->arena, "llvm.nvvm.read.ptx.sreg.%s", name), NULL, 0,
                        NULL, 0);
}

Val nv_f32(Cg *cg, const char *intrinsic, Val x) {
    return cg_intrinsic(cg, intrinsic, NULL, 0, &x, 1);
}

Val nv_asm1(Cg *cg, Ty result, const char *text, const char *constraints, Val x) {
    return cg_asm(cg, result, &x, 1, text, constraints, false);
}

Val nv_hidden(Cg *cg, Val v) {
    Ty t = LLVMTypeOf(v);
    const char *same = t == cg->i64 ? "=l,0" : t == cg->f32 ? "=f,0" : "=r,0";
    return cg_asm(cg, t, &v, 1, "", same, true);
}

Val nv_bf16(Cg *cg, Val v) {
    int n = cg_lanes(v);
    if (n == 1) return cg_trunc(cg, nv_pack(cg, DT_BF16, v, cg_f32(cg, 0)), cg->i16);
    Val all = LLVMGetPoison(cg_vector(cg->i16, n));
    for (int i = 0; i < n; i += 2) {
        Val x[2] = {cg_extract(cg, v, cg_i32(cg, i)), cg_f32(cg, 0)};
        if (i + 1 < n) x[1] = cg_extract(cg, v, cg_i32(cg, i + 1));
        Val pair = cg_bitcast(cg, nv_pack(cg, DT_BF16, x[0], x[1]), cg_vector(cg->i16, 2));
        for (int c = 0; c < 2 && i + c < n; c++)
            all = cg_insert(cg, all, cg_extract(cg, pair, cg_i32(cg, c)), cg_i32(cg, i + c));
    }
    return all;
}

Val nv_pack(Cg *cg, Dtype t, Val low, Val high) {
    Val v[] = {high, low};
    const char *name = t == DT_BF16 ? "llvm.nvvm.ff2bf16x2.rn" : "llvm.nvvm.ff2f16x2.rn";
    return cg_bitcast(cg, cg_intrinsic(cg, name, NULL, 0, v, 2), cg->i32);
}

Val nv_unpack(Cg *cg, Dtype t, Val pair, int c) {
    if (t == DT_BF16) {
        Val bits = c ? cg_and(cg, pair, cg_i32(cg, 0xffff0000)) : cg_shl(cg, pair, cg_i32(cg, 16));
        return cg_bitcast(cg, bits, cg->f32);
    }
    Val both = cg_bitcast(cg, pair, cg_vector(cg->f16, 2));
    return cg_fpext(cg, cg_extract(cg, both, cg_i32(cg, c)), cg->f32);
}

// Bytes of a, by number, and of b, from 4 on: the lowest first.
static Val permuted(Cg *cg, Val a, Val b, int selector) {
    Val v[] = {a, b, cg_i32(cg, selector)};
    return cg_intrinsic(cg, "llvm.nvvm.prmt", NULL, 0, v, 3);
}

static Val with_halves(Cg *cg, const char *op, Val pair, int with) {
    Val v[] = {pair, cg_i32(cg, with * 0x10001)};
    return cg_asm(cg, cg->i32, v, 2, arena_printf(cg->arena, "%s.f16x2 $0, $1, $2;", op), "=r,r,r",
                  false);
}

// An integer's byte, 128 more, is the lower one of 1024 and that. e4m3 is f16 but for one place and a factor; only NaN has its bits there.
static void f16_of_bytes(Cg *cg, Dtype from, Val word, Val out[2]) {
    Val zero = cg_i32(cg, 0);
    if (from == DT_I8) word = cg_xor(cg, word, cg_i32(cg, (int)0x80808080));
    for (int i = 0; i < 2; i++) {
        if (from == DT_I8) {
            Val sum = permuted(cg, word, cg_i32(cg, 0x64646464), i ? 0x4342 : 0x4140);
            out[i] = with_halves(cg, "sub", sum, 0x6480);
            continue;
        }
        Val upper = permuted(cg, word, zero, i ? 0x3424 : 0x1404);
        out[i] = upper;
        if (from == DT_E5M2) continue;
        Val sign = cg_and(cg, upper, cg_i32(cg, (int)0x80008000));
        Val mag = cg_and(cg, upper, cg_i32(cg, 0x7f007f00));
        Val nan = cg_and(cg, cg_add(cg, mag, cg_i32(cg, 0x01000100)), cg_i32(cg, (int)0x80008000));
        mag = cg_lshr(cg, cg_or(cg, mag, nan), cg_i32(cg, 1));
        out[i] = with_halves(cg, "mul", cg_or(cg, mag, sign), 0x5c00);
    }
}

void nv_halves(Cg *cg, Dtype from, Dtype to, Val word, Val out[2]) {
    if (from == DT_E4M3 && cg->target->id == TARGET_SM90A) {
        Ty pairs[] = {cg->i32, cg->i32};
        cg_struct_asm(cg, pairs, 2, &word, 1,
                      "{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, $2;\n\t"
                      "cvt.rn.f16x2.e4m3x2 $0, l;\n\tcvt.rn.f16x2.e4m3x2 $1, h;\n\t}",
                      "=r,=r,r", out);
    } else
        f16_of_bytes(cg, from, word, out);
    for (int i = 0; i < 2 && to == DT_BF16; i++)
        out[i] = nv_pack(cg, DT_BF16, nv_unpack(cg, DT_F16, out[i], 0),
                         nv_unpack(cg, DT_F16, out[i], 1));
}

static Val shuffle(Cg *cg, const char *mode, Val v, Val which) {
    bool f = LLVMTypeOf(v) == cg->f32;
    Val args[] = {cg_i32(cg, -1), v, which, cg_i32(cg, NV_WARP - 1)};
    const char *name =
        arena_printf(cg->arena, "llvm.nvvm.shfl.sync.%s.%s", mode, f ? "f32" : "i32");
    return cg_intrinsic(cg, name, NULL, 0, args, 4);
}

void nv_barrier(Cg *cg) { cg_intrinsic(cg, "llvm.nvvm.barrier0", NULL, 0, NULL, 0); }

Val nv_shuffle(Cg *cg, Val v, int mask) { return shuffle(cg, "bfly", v, cg_i32(cg, mask)); }
Val nv_shuffle_from(Cg *cg, Val v, Val lane) { return shuffle(cg, "idx", v, lane); }

Val nv_every(Cg *cg, Val bit) {
    Val args[] = {cg_i32(cg, -1), bit};
    return cg_intrinsic(cg, "llvm.nvvm.vote.all.sync", NULL, 0, args, 2);
}

Val nv_shared_ptr(Cg *cg, Val address) {
    return cg_inttoptr(cg, address, LLVMPointerTypeInContext(cg->c, 3));
}

void nv_ldmatrix(Cg *cg, Val address, bool transposed, Val out[4]) {
    Ty t = LLVMPointerTypeInContext(cg->c, 3);
    Val p = nv_shared_ptr(cg, address);
    const char *name = transposed ? "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4.trans.b16"
                                  : "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4.b16";
    Val r = cg_intrinsic(cg, name, &t, 1, &p, 1);
    for (unsigned i = 0; i < 4; i++) out[i] = LLVMBuildExtractValue(cg->b, r, i, "");
}

void nv_mma16(Cg *cg, Dtype t, Val acc[4], const Val a[4], Val b0, Val b1) {
    Val v[10] = {a[0], a[1], a[2], a[3], b0, b1, acc[0], acc[1], acc[2], acc[3]};
    assert(dtype_half(t));
    if (t == DT_F16)
        for (int i = 0; i < 6; i++) v[i] = cg_bitcast(cg, v[i], cg_vector(cg->f16, 2));
    const char *name = t == DT_BF16 ? "llvm.nvvm.mma.m16n8k16.row.col.bf16"
                                    : "llvm.nvvm.mma.m16n8k16.row.col.f32.f32";
    Val r = cg_intrinsic(cg, name, NULL, 0, v, 10);
    for (unsigned i = 0; i < 4; i++) acc[i] = LLVMBuildExtractValue(cg->b, r, i, "");
}

Val nv_tf32(Cg *cg, Val bits) {
    return cg_asm(cg, cg->i32, &bits, 1, "cvt.rna.tf32.f32 $0, $1;", "=r,r", false);
}

void nv_mma8_tf32(Cg *cg, Val acc[4], const Val a[4], Val b0, Val b1) {
    Val v[10] = {a[0], a[1], a[2], a[3], b0, b1, acc[0], acc[1], acc[2], acc[3]};
    Val r = cg_intrinsic(cg, "llvm.nvvm.mma.m16n8k8.row.col.tf32", NULL, 0, v, 10);
    for (unsigned i = 0; i < 4; i++) acc[i] = LLVMBuildExtractValue(cg->b, r, i, "");
}
