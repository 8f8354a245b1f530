// math.c: f32 functions on the special function unit, and sigmoids two at a time.
//
// In: an op of ops.def and its arguments. Out: its value, or NULL where the shared formulas
// (math.c) are to be used: they stand on what is given here. ex2, lg2, rcp, rsqrt and sqrt .approx
// are within 2 ulp (2^-22), which f32 kernels may use too. tanh.approx has a relative error of
// 2^-11, as bf16's own rounding: kernels whose tensors are f16 or bf16 take it, f32 kernels the
// formula.
#include "codegen/nvptx/nvptx.h"

#include <string.h>

static Val min_max(Cg *cg, ExOp op, const Val *args) {
    Val v[] = {args[0], args[1]};
    const char *name = op == EX_MAX ? "llvm.maxnum" : "llvm.minnum";
    return cg_intrinsic(cg, name, &cg->f32, 1, v, 2);
}

static Val divide(Cg *cg, const Val *args) {
    Val v[] = {args[0], args[1]};
    return cg_asm(cg, cg->f32, v, 2, "div.full.ftz.f32 $0, $1, $2;", "=f,f,f", false);
}

// 1 / x for 1 <= x < 2^127 by multiplications: two steps of Newton from what the exponent tells, to
// 7e-6.
static Val fma_reciprocal(Cg *cg, Val x) {
    Val r = cg_bitcast(cg, cg_sub(cg, cg_i32(cg, 0x7ef311c3), cg_bitcast(cg, x, cg->i32)), cg->f32);
    for (int i = 0; i < 2; i++) {
        Val v[] = {cg_fneg(cg, x), r, cg_f32(cg, 2)};
        r = cg_fmul(cg, r, cg_intrinsic(cg, "llvm.fma", &cg->f32, 1, v, 3));
    }
    return r;
}

// x * c, where x is a * k + b with a constant k: a * (k c) + (b c), of which the latter is the same
// for many elements.
static Val scaled(Cg *cg, Val x, double c) {
    Val by = cg_f32(cg, c);
    bool fma = LLVMIsACallInst(x) && LLVMGetNumOperands(x) == 4 &&
               LLVMGetIntrinsicID(LLVMGetCalledValue(x)) == LLVMLookupIntrinsicID("llvm.fma", 8);
    if (!fma || !LLVMIsConstant(LLVMGetOperand(x, 1))) return cg_fast(cg_fmul(cg, x, by));
    Val v[] = {LLVMGetOperand(x, 0), cg_fmul(cg, LLVMGetOperand(x, 1), by),
               cg_fmul(cg, LLVMGetOperand(x, 2), by)};
    return cg_intrinsic(cg, "llvm.fma", &cg->f32, 1, v, 3);
}

// 1 / (1 + exp2(-x log2 e)): exp2 overflows to infinity, of which rcp is 0. Two special functions
// an element are more than the unit keeps up with beside the matrix products: every fourth
// reciprocal is made of multiplications. Not of what decides, which has the same bits everywhere.
static Val sigmoid(Cg *cg, Val x) {
    const double unit = -0x1.715476p+0;
    Val y = cg->decides ? cg_fmul(cg, x, cg_f32(cg, unit)) : scaled(cg, x, unit);
    bool multiply = !cg->decides && nv_state(cg)->sigmoids++ % 4 == 3;
    Val most = cg_f32(cg, 126); // compared so that a NaN stays one
    if (multiply) y = cg_select(cg, cg_fcmp(cg, LLVMRealOGT, y, most), most, y);
    Val e = nv_f32(cg, "llvm.nvvm.ex2.approx.ftz.f", y);
    Val d = cg_fast(cg_fadd(cg, e, cg_f32(cg, 1)));
    return multiply ? fma_reciprocal(cg, d) : nv_f32(cg, "llvm.nvvm.rcp.approx.ftz.f", d);
}

// ---- sigmoids that are bf16 weights and nothing else
//
// 1 / (1 + e) of two elements at once in bf16, which they are rounded to anyway: what the exponent tells
// of the reciprocal, 5% off, and a step of third order. Three roundings for one: the relative error
// is 2.3e-3 (root mean square) for 1.5e-3. In f32 a reciprocal takes the special function unit as
// long as the exponential, and one of multiplications twice as many instructions.

Val nv_sigmoid_exponential(Cg *cg, Val x) {
    return nv_f32(cg, "llvm.nvvm.ex2.approx.ftz.f", scaled(cg, x, -0x1.715476p+0));
}

// With n = -(1 + e): r from the bits, h = 1 + n r, which is small, and h + h^2. e is at most 2^126, and a
// NaN stays one.
void nv_sigmoids_begin(Cg *cg, Val pair[2]) {
    Val e = nv_pack(cg, DT_BF16, pair[0], pair[1]);
    Ty both[] = {cg->i32, cg->i32};
    const char *text = "{\n\t.reg .b32 one, minus, least, n, h;\n\t"
                       "mov.b32 one, 0x3f803f80;\n\tmov.b32 minus, 0xbf80bf80;\n\t"
                       "mov.b32 least, 0xfe80fe80;\n\t"
                       "fma.rn.bf16x2 n, $2, minus, minus;\n\tmax.NaN.bf16x2 n, n, least;\n\t"
                       "sub.u32 $0, 0xfef2fef2, n;\n\t"
                       "fma.rn.bf16x2 h, n, $0, one;\n\tfma.rn.bf16x2 $1, h, h, h;\n\t}";
    Val r =
        cg_asm(cg, LLVMStructTypeInContext(cg->c, both, 2, false), &e, 1, text, "=&r,=r,r", false);
    for (int i = 0; i < 2; i++) pair[i] = LLVMBuildExtractValue(cg->b, r, (unsigned)i, "");
}

Val nv_sigmoids_end(Cg *cg, const Val pair[2]) {
    Val v[] = {pair[0], pair[1]};
    return cg_asm(cg, cg->i32, v, 2, "fma.rn.bf16x2 $0, $1, $2, $1;", "=r,r,r", false);
}

Val nv_math(Cg *cg, ExOp op, const Val *args) {
    bool narrow = dtype_half(cg->p->dtype);
    switch ((int)op) {
    case EX_MIN:
    case EX_MAX: return min_max(cg, op, args);
    case EX_DIV: return divide(cg, args);
    case EX_RCP: return nv_f32(cg, "llvm.nvvm.rcp.approx.ftz.f", args[0]);
    case EX_EXP2: return nv_f32(cg, "llvm.nvvm.ex2.approx.ftz.f", args[0]);
    case EX_LOG2: return nv_f32(cg, "llvm.nvvm.lg2.approx.ftz.f", args[0]);
    case EX_SQRT: return nv_f32(cg, "llvm.nvvm.sqrt.approx.ftz.f", args[0]);
    case EX_RSQRT: return nv_f32(cg, "llvm.nvvm.rsqrt.approx.ftz.f", args[0]);
    case EX_SIGMOID: return narrow ? sigmoid(cg, args[0]) : NULL;
    case EX_TANH:
        return narrow ? nv_asm1(cg, cg->f32, "tanh.approx.f32 $0, $1;", "=f,f", args[0]) : NULL;
    default: return NULL;
    }
}

// ---- abs of i32

// ptxas takes abs.s32 for at least 0, and abs(x) < 0 for false: it is true of the least i32, whose abs is itself. LLVM makes
// abs.s32 of abs, of maxima and of choices, if it sees them. That of numbers which may be the least is asked for by `false`.
static void replace_abs(Cg *cg, Val call) {
    if (!LLVMIsACallInst(call) || LLVMTypeOf(call) != cg->i32) return;
    Val called = LLVMIsAFunction(LLVMGetCalledValue(call)); // NULL: assembly
    if (!called || LLVMGetIntrinsicID(called) != LLVMLookupIntrinsicID("llvm.abs", 8)) return;
    if (LLVMConstIntGetZExtValue(LLVMGetOperand(call, 1))) return;
    LLVMPositionBuilderBefore(cg->b, call);
    const char *text = "{\n\t.reg .s32 n;\n\tneg.s32 n, $1;\n\tmax.s32 $0, $1, n;\n\t}";
    Ty type = LLVMFunctionType(cg->i32, &cg->i32, 1, false);
    Val code = LLVMGetInlineAsm(type, text, strlen(text), "=r,r", 4, false, false,
                                LLVMInlineAsmDialectATT, false),
        x = LLVMGetOperand(call, 0);
    LLVMReplaceAllUsesWith(call, LLVMBuildCall2(cg->b, type, code, &x, 1, ""));
    LLVMInstructionEraseFromParent(call);
}

void nv_replace_abs(Cg *cg) {
    for (Val f = LLVMGetFirstFunction(cg->m); f; f = LLVMGetNextFunction(f))
        for (Blk b = LLVMGetFirstBasicBlock(f); b; b = LLVMGetNextBasicBlock(b))
            for (Val i = LLVMGetFirstInstruction(b), next; i; i = next) {
                next = LLVMGetNextInstruction(i);
                replace_abs(cg, i);
            }
}
