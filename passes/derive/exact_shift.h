// exact_shift.h: shifts that are a state as it is carried. See docs/derivation.md.
#ifndef PASSES_EXACT_SHIFT_H
#define PASSES_EXACT_SHIFT_H

#include "ir/stream.h"

// Gives extrema the unit of the exponents that they shift. `narrows`: weights become f16.
void pass_exact_shifts(Arena *a, Stream *s, bool narrows);

// Whether a shift that is computed again from the same states is the same number: no operation in it
// rounds a state.
bool pass_shift_is_exact(const Ex *shift);

#endif
