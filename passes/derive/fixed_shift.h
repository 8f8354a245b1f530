// fixed_shift.h: streams whose shifts need not follow their extrema. See docs/derivation.md.
#ifndef PASSES_FIXED_SHIFT_H
#define PASSES_FIXED_SHIFT_H

#include "ir/stream.h"

// Each thread's part of a sum may be up to 2^FIXED_SHIFT_BITS: an accumulator stays finite with values up to
// 2^57. A shift that follows its maximum is 2^FIXED_SHIFT_ROOM above it, so that there is room to grow. Both
// together are 2^100: where a factor between two shifts is below 2^-126, and 0, what it takes to 0 is below
// 2^-24 of what it is added to.
enum { FIXED_SHIFT_BITS = 68, FIXED_SHIFT_ROOM = 32 };

// Whether any shift near the extremum does: what the stream gives does not change with it, and a
// state is the sum of all weights and bounds them. Which one, and which state is the extremum.
bool pass_may_fix_shift(const Stream *s, int *sum, int *extremum);
// Whether a state is an extremum that shifts are made of.
bool pass_moves_shift(const Stream *s, int state);

#endif
