// fixed_shift.h: streams whose shifts need not follow their extrema. See docs/derivation.md.
#ifndef PASSES_FIXED_SHIFT_H
#define PASSES_FIXED_SHIFT_H

#include "ir/stream.h"

// Sums up to 2^FIXED_SHIFT_BITS are let through: numbers of f32's exponents keep their precision, and
// an accumulator stays finite with values up to 2^(127 - FIXED_SHIFT_BITS).
enum { FIXED_SHIFT_BITS = 48 };

// Whether any shift near the extremum does: what the stream gives does not change with it, and a
// state is the sum of all weights and bounds them. Which one, and which state is the extremum: if that
// has seen no key, but the sum has, the row has to be done again, since it passes for one without keys.
bool pass_may_fix_shift(const Stream *s, int *sum, int *extremum);
// Whether a state is an extremum that shifts are made of.
bool pass_moves_shift(const Stream *s, int state);

#endif
