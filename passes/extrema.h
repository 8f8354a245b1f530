// extrema.h: scores that must be found again to the last bit. See docs/derivation.md.
#ifndef PASSES_EXTREMA_H
#define PASSES_EXTREMA_H

#include "ir/row.h"

// The program itself where no element is compared with the extremum that it may be.
const RowProgram *row_with_exact_extrema(Arena *a, const RowProgram *row);

#endif
