// derive.h: from row mathematics to the streaming form, and its explanation. See docs/derivation.md.
#ifndef PASSES_DERIVE_H
#define PASSES_DERIVE_H

#include "ir/stream.h"

// Never fails on a valid row program: what is not separable costs a further sweep, which a note in `diags` tells, naming the
// reduction (silent when diags is NULL).
Stream *pass_derive(Arena *a, const RowProgram *row, Diags *diags);

// A reduction as whoever wrote it knows it: by its `let`, or else as it is written (diags, which has the text, may be NULL).
const char *pass_reduce_written(const RowReduce *r, const Diags *diags);

// The same. narrows: elements that weight v become f16; those that are not proved below HALF_MOST are scaled by a power of two for
// each row. counts: the row without a key is always told from others (->empty).
#define HALF_MOST 65504.0
Stream *pass_derive_for(Arena *a, const RowProgram *row, Diags *diags, bool narrows, bool counts);

// The same for weights that are narrowed to f16 where they meet v: those that would grow beyond its
// range are shifted by a maximum of their own. half.c
Stream *pass_derive_half(Arena *a, const RowProgram *row, Diags *diags);

#endif
