// fixed_shift.h: streams whose shifts need not follow their extrema. See docs/derivation.md.
#ifndef PASSES_FIXED_SHIFT_H
#define PASSES_FIXED_SHIFT_H

#include "ir/stream.h"

// Each thread's part of a sum may be up to 2^FIXED_SHIFT_BITS, and four threads share a row: with values up to
// 2^32 an accumulator stays below 2^120, and that of 128 parts of a row below 2^127. A shift that follows its maximum
// is 2^FIXED_SHIFT_ROOM above it, so that there is room to grow. The factor between two shifts may then be far below
// 2^-126 for a sum that still counts, so its root is applied twice (passes/schedule/root.c, combine.c): only what
// becomes less than 2^-126 is lost, and the new sum is at least 2^-FIXED_SHIFT_ROOM.
enum { FIXED_SHIFT_BITS = 86, FIXED_SHIFT_ROOM = 60 };

// Whether any shift near the extremum does: what the stream gives does not change with it, and a
// state is the sum of all weights and bounds them. Which one, and which state is the extremum.
bool pass_may_fix_shift(const Stream *s, int *sum, int *extremum);
// Whether 0 serves as well as the maximum: weights become bf16, and exponents are proved to be so near to 0 that
// neither weights nor sums of them leave f32, and no value is lost beside them.
bool pass_may_drop_shift(const Stream *s);
// Whether a state is an extremum that shifts are made of.
bool pass_moves_shift(const Stream *s, int state);

#endif
