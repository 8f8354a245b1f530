// unscale.h: a row program without a constant scale on its score.
#ifndef PASSES_UNSCALE_H
#define PASSES_UNSCALE_H

#include "ir/row.h"

// The program itself where its modified score is no positive constant times something.
const RowProgram *row_unscaled(Arena *a, const RowProgram *row);

#endif
