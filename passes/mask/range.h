// range.h: what is known of integer expressions over a rectangle of tile positions: sums of
// multiples, and symbolic intervals.
//
// Positions along two axes move within bounds that are expressions ([q0, q1] x [k0, k1]);
// everything else (sizes, heads, scalars, inputs read at an index without a position) is one
// unknown number for the whole rectangle. Bounds are expressions over those.
//
// i32 wraps, intervals must not: every range also carries numbers that bound it at compile time,
// and what might leave i32 is "unknown". Positions, sizes and q_offset are within RANGE_POSITION (the
// runtime refuses a launch beyond). What does not vary is taken as it stands, wrapped or not. Where it
// meets a position in the source's own arithmetic, it is assumed within RANGE_SCALAR: the assumption
// is collected in `guard`, which holds at run time or the result counts for nothing.
//
// A comparison is a sum against 0 (linear_sign). Moving terms of it from side to side wraps nothing: the sum
// of all terms' magnitudes is within RANGE_SUM. Where one term is larger than all others together, only
// whether it is beyond them matters, and it is clamped to what they can be.
#ifndef PASSES_RANGE_H
#define PASSES_RANGE_H

#include "ir/tile.h"

enum {
    RANGE_POSITION = SIZE_LIMIT,
    RANGE_SCALAR = 1 << 24,
    RANGE_SUM = 1 << 29,
    RANGE_PRODUCT = 1 << 26, // what a product that might leave i32 is assumed within
    RANGE_MAX_TERMS = 8,
    RANGE_MAX_DEPTH = 200
};

typedef struct Range {
    const Ex *lo, *hi; // NULL: nothing is known on that side
    int64_t nlo, nhi;  // for all launches; where the expression is there
} Range;

typedef struct FloatRange { // of an f32; both NULL: nothing is known
    const Ex *lo, *hi;
    double nlo, nhi; // infinite: it may be infinite, or NaN
} FloatRange;

// c + sum of coef * term; terms are distinct and neither sums nor constants.
typedef struct Linear {
    bool ok;
    int64_t c;
    int n;
    struct {
        const Ex *e;
        int64_t coef;
    } term[RANGE_MAX_TERMS];
} Linear;

typedef struct RangeCtx {
    ExPool *pool;
    int q_axis, k_axis;
    Range q, k;               // of POS(q_axis), POS(k_axis)
    const Ex *guard;          // NULL: nothing was assumed
    int fixed;                // within what does not vary: nothing is assumed
    const struct Range *lets; // of SYM_LET, by number
    int nlets;
    int depth;      // of the recursion: a longer chain of operators is unknown
    ExMemo varies;  // expression -> whether it depends on a position
    ExMemo ranges;  // -> Range
    ExMemo linears; // -> Linear
    ExMemo floats;  // -> FloatRange
    ExMemo tame;    // what the guard is about
} RangeCtx;

void range_init(RangeCtx *c, ExPool *p, int q_axis, int k_axis, const Ex *q0, const Ex *q1,
                const Ex *k0, const Ex *k1);
bool range_varies(RangeCtx *c, const Ex *e); // depends on one of the two positions

Range range_of(RangeCtx *c, const Ex *e);            // of an i32
FloatRange range_of_float(RangeCtx *c, const Ex *e); // of an f32; range_float.c
Range range_linear(RangeCtx *c, const Linear *l);
void range_assume(RangeCtx *c, const Ex *ok); // in the guard
Range range_add(RangeCtx *c, Range a, Range b);
Range range_neg(RangeCtx *c, Range a);

// The sum that an i32 expression is, with no wrap on the way (else not ok).
Linear linear_of(RangeCtx *c, const Ex *e);
Linear linear_sum(Linear a, Linear b, int64_t times); // a + times * b
Linear linear_const(int64_t v);
bool linear_equal_terms(const Linear *a, const Linear *b,
                        int64_t sign); // a's terms are sign * b's, in any order
void linear_drop(Linear *l, int i);
// By the largest number that divides all terms: at most 0 where l is.
Linear linear_reduced(Linear l);
// floor(l / by), of a sum that cannot leave i32 (else not ok).
Linear linear_divided(RangeCtx *c, Linear l, int64_t by);
// A sum that is negative, 0 or positive where l is, and of which no part leaves i32, but for a term that
// holds the key's position; a number where that is the same everywhere. Not ok where there is none.
Linear linear_sign(RangeCtx *c, Linear l);

#endif
