// powers.h: exponentials that stand in several formulas of a row are one number.
#ifndef PASSES_POWERS_H
#define PASSES_POWERS_H

#include "ir/stream.h"
#include "passes/derive/polynomial.h"

// e, over scores, SYM_R and row scalars, where exponentials of the score that equal one of a sum of a sweep before `sweep`, or of the
// weight (`sweep` is s->nsweeps), are written as the stream has them.
const Ex *pass_stream_powers(Polys *polys, const Stream *s, int sweep, const Ex *e);

#endif
