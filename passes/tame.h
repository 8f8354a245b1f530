// tame.h: how large numbers of a row can be, as far as formulas tell. See docs/derivation.md.
#ifndef PASSES_TAME_H
#define PASSES_TAME_H

#include "ir/row.h"

// Whether what elements add to an exponent e, over the row's scores and reductions, stays small where
// dot products, squared norms and positions count as 1.
bool row_tame(const RowProgram *row, const Ex *e);

// Whether e has an upper bound, however large dot products are.
bool row_limited(const RowProgram *row, const Ex *e);

#endif
