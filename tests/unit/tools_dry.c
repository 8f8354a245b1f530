// bench --dry's counting: which loop of an assembly is the one over full tiles, what it consists of,
// and what the rates make of it.
#include "tests/unit/test.h"
#include "tools/dry.h"

// Two loops in one: the first, over full tiles, skips a block now and then; the second has a test.
// A third has no product, and neither has what is around them.
static const char amd[] = "\t.type\tk_fwd,@function\n"
                          "k_fwd:                          ; @k_fwd\n"
                          "\tv_mov_b32_e32 v0, 0\n"
                          ".LBB0_1:\n"
                          "\tv_add_f32_e32 v1, v1, v2\n"
                          ".LBB0_2:                        ; over full tiles\n"
                          "\tds_read_b128 v[0:3], v9\n"
                          "\ts_waitcnt lgkmcnt(0)\n"
                          "\tv_mfma_f32_32x32x8_bf16 v[0:15], v[0:1], v[2:3], v[0:15]\n"
                          "\ts_cbranch_vccnz .LBB0_3\n"
                          "\tv_mul_f32_e32 v1, v1, v2\n"
                          ".LBB0_3:\n"
                          "\tv_exp_f32_e32 v1, v1\n"
                          "\tv_mfma_f32_32x32x8_bf16 v[0:15], v[0:1], v[2:3], v[0:15]\n"
                          "\ts_cbranch_scc1 .LBB0_2\n"
                          ".LBB0_4:                        ; over partial ones\n"
                          "\tds_read_b128 v[0:3], v9\n"
                          "\tv_exp_f32_e32 v1, v1\n"
                          "\tv_cndmask_b32_e32 v1, v1, v2, vcc\n"
                          "\tv_cndmask_b32_e32 v1, v1, v2, vcc\n"
                          "\tv_mfma_f32_32x32x8_bf16 v[0:15], v[0:1], v[2:3], v[0:15]\n"
                          "\ts_cbranch_scc1 .LBB0_4\n"
                          ".LBB0_5:\n"
                          "\tv_add_f32_e32 v1, v1, v2\n"
                          "\ts_cbranch_scc1 .LBB0_5\n"
                          "\ts_cbranch_scc1 .LBB0_1\n"
                          "\ts_endpgm\n"
                          ".Lfunc_end0:\n"
                          "\t.type\tother,@function\n"
                          "other:\n"
                          "\ts_endpgm\n"
                          ".Lfunc_end1:\n";

ARENA_TEST(amd_loop) {
    DryKernels all = dry_count(a, amd, sizeof amd - 1, TARGET_GFX942);
    ck_assert_int_eq(all.kernels.n, 2);
    const DryKernel *k = &all.kernels.data[0];
    ck_assert_str_eq(k->name, "k_fwd");
    ck_assert_int_eq(k->count[DRY_MATRIX], 2);
    ck_assert_int_eq(k->count[DRY_PLAIN], 1);
    ck_assert_int_eq(k->count[DRY_SPECIAL], 1);
    ck_assert_int_eq(k->count[DRY_SHARED], 1);
    ck_assert_int_eq(k->count[DRY_SCALAR], 3);
    ck_assert_int_eq(k->instructions, 8);
    ck_assert_double_eq(k->flop, 2 * 2.0 * 32 * 32 * 8);
    ck_assert_double_eq(k->matrix, 64);     // 2048 FLOP a clock of four SIMDs
    ck_assert_double_eq(k->vector, 4 + 16); // 16 and 4 lanes of 64
    ck_assert_double_eq(k->shared, 32);     // 1 KB at 128 bytes a clock, for one SIMD of four
    ck_assert_double_eq(k->overlapped, 64);
    ck_assert_double_eq(k->alone, 64 + 20 + 32);
    ck_assert_double_eq_tol(dry_rate(k, TARGET_GFX942, 64) * 1e-12, 1307.4, 0.1);
    ck_assert_double_eq(all.kernels.data[1].flop, 0);
}

static const char ptx[] =
    ".visible .entry k_fwd(\n"
    "\t.param .u64 k_fwd_param_0\n"
    ")\n"
    "{\n"
    "\t.reg .pred \t%p<3>;\n"
    "$L__BB0_1:\n"
    "\t// begin inline asm\n"
    "\t{\n"
    "\tWAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [a], b;\n"
    "\t@p bra DONE;\n"
    "\tbra WAIT;\n"
    "\tDONE:\n"
    "\t}\n"
    "\twgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%f1}, a, b, 1, 1, 1;\n"
    "\twgmma.commit_group.sync.aligned;\n"
    "\tex2.approx.ftz.f32 %f1, %f2;\n"
    "\tmov.f32 %f3, %f1;\n"
    "\tfma.rn.ftz.f32 %f1, %f2, %f3, %f4; add.s32 %r1, %r1, 1;\n"
    "\t@%p1 bra \t$L__BB0_1;\n"
    "\tret;\n"
    "}\n";

ARENA_TEST(ptx_loop) {
    DryKernels all = dry_count(a, ptx, sizeof ptx - 1, TARGET_SM90A);
    ck_assert_int_eq(all.kernels.n, 1);
    const DryKernel *k = &all.kernels.data[0];
    ck_assert_str_eq(k->name, "k_fwd");
    ck_assert_int_eq(k->count[DRY_MATRIX], 1);
    ck_assert_int_eq(k->count[DRY_SPECIAL], 1);
    ck_assert_int_eq(k->count[DRY_PLAIN], 2);
    ck_assert_int_eq(k->count[DRY_FREE], 1);
    ck_assert_double_eq(k->matrix, 64); // 64 x 128 x 16 by four warps
    ck_assert_double_eq(k->vector, 2 + 8);
}
