// exact_sums.c: sums of f32 that are the same in any order (TileTensor.exact).
//
// An element has ten counters of 64 bits. Counter i < 9 counts units of 2^(32 i - 149), of which each f32 is a whole number:
// its 24 bits go to two counters that follow each other, 32 bits to the lower one, so that 2^31 numbers fit. Integers are the same in
// whatever order they are added. The last counter counts what is not finite: infinities in the lower half,
// those below 0 in the upper half, NaN in both. A sum is read as the sum of the counters in f64, which is rounded to f32.
#include "codegen/cg.h"

#include <math.h>

enum { COUNTERS = TILE_EXACT_WORDS / 2, OTHERS = COUNTERS - 1, COUNTER_BITS = 32, LEAST = -149 };

static Val all_bits(Cg *cg, int n) { return cg_i64(cg, (int64_t)((UINT64_C(1) << n) - 1)); }

static void count(Cg *cg, Val p, Val i, Val n) {
    Val at = cg_element(cg, cg->i64, p, cg_zext(cg, i, cg->i64));
    LLVMBuildAtomicRMW(cg->b, LLVMAtomicRMWBinOpAdd, at, n, LLVMAtomicOrderingMonotonic, false);
}

void cg_exact_add(Cg *cg, Val x, Val p) {
    Val bits = cg_bitcast(cg, x, cg->i32), zero = cg_i64(cg, 0);
    Blk done = cg_if(cg, cg_fcmp(cg, LLVMRealUNE, x, cg_f32(cg, 0)), "exact");
    Val exponent = cg_and(cg, cg_lshr(cg, bits, cg_i32(cg, 23)), cg_i32(cg, 255));
    Val rest = cg_and(cg, bits, cg_i32(cg, (1 << 23) - 1));
    Val normal = cg_zext(cg, cg_icmp(cg, LLVMIntNE, exponent, cg_i32(cg, 0)), cg->i32);
    Val finite = cg_icmp(cg, LLVMIntNE, exponent, cg_i32(cg, 255));
    Val below = cg_icmp(cg, LLVMIntSLT, bits, cg_i32(cg, 0));
    Val shift = cg_sub(cg, exponent, normal);
    Val all = cg_or(cg, rest, cg_shl(cg, normal, cg_i32(cg, 23)));
    all = cg_shl(cg, cg_zext(cg, all, cg->i64),
                 cg_zext(cg, cg_and(cg, shift, cg_i32(cg, COUNTER_BITS - 1)), cg->i64));
    Val low = cg_and(cg, all, all_bits(cg, COUNTER_BITS)),
        high = cg_lshr(cg, all, cg_i64(cg, COUNTER_BITS));
    low = cg_select(cg, below, cg_sub(cg, zero, low), low);
    high = cg_select(cg, below, cg_sub(cg, zero, high), high);
    Val one = cg_i64(cg, 1), upper = cg_i64(cg, INT64_C(1) << 32),
        both = cg_i64(cg, (INT64_C(1) << 32) + 1);
    Val other = cg_select(cg, below, upper, one);
    other = cg_select(cg, cg_icmp(cg, LLVMIntNE, rest, cg_i32(cg, 0)), both, other);
    Val i = cg_select(cg, finite, cg_lshr(cg, shift, cg_i32(cg, 5)), cg_i32(cg, OTHERS));
    Val next = cg_select(cg, finite, cg_plus(cg, i, 1), i);
    count(cg, p, i, cg_select(cg, finite, low, other));
    count(cg, p, next, cg_select(cg, finite, high, zero));
    cg_end_if(cg, done);
}

static Val counter(Cg *cg, Val p, int i) {
    Val n = cg_load(cg, cg->i64, cg_element(cg, cg->i64, p, cg_i64(cg, i)));
    LLVMSetAlignment(n, 8);
    return n;
}

Val cg_exact_read(Cg *cg, Val p) {
    Ty f64 = LLVMDoubleTypeInContext(cg->c);
    Val sum = LLVMConstReal(f64, 0), none = cg_f32(cg, 0);
    for (int i = OTHERS; i-- > 0;) {
        Val unit = LLVMConstReal(f64, ldexp(1, COUNTER_BITS * i + LEAST));
        sum = cg_fadd(cg, sum, cg_fmul(cg, cg_sitofp(cg, counter(cg, p, i), f64), unit));
    }
    Val others = counter(cg, p, OTHERS);
    Val above = cg_icmp(cg, LLVMIntNE, cg_and(cg, others, all_bits(cg, 32)), cg_i64(cg, 0)),
        below = cg_icmp(cg, LLVMIntUGT, others, all_bits(cg, 32));
    Val inf = cg_f32(cg, INFINITY);
    Val sums = cg_fadd(cg, cg_select(cg, above, inf, none),
                       cg_select(cg, below, cg_f32(cg, -INFINITY), none));
    Val finite = cg_icmp(cg, LLVMIntEQ, others, cg_i64(cg, 0));
    return cg_select(cg, finite, cg_fptrunc(cg, sum, cg->f32), sums);
}
