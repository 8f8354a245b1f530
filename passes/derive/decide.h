// decide.h: which numbers of a row program decide, and are computed as written. See docs/derivation.md.
#ifndef PASSES_DECIDE_H
#define PASSES_DECIDE_H

#include "ir/row.h"

// The same program with what decides under `rounded`; the program itself where nothing does. Of a program that is
// decided already: itself, or what means the same.
const RowProgram *row_decide(Arena *a, const RowProgram *row);

#endif
