// unscale.h: a row program without a constant scale on its score.
#ifndef PASSES_UNSCALE_H
#define PASSES_UNSCALE_H

#include "ir/row.h"

// The program itself where its modified score has no such scale. *scaled: its modified score, as an
// expression of the new one's.
const RowProgram *row_unscaled(Arena *a, const RowProgram *row, const Ex **scaled);

#endif
