// magnitude.h: how large and how small numbers of a row can be, as powers of two. See docs/derivation.md.
#ifndef PASSES_MAGNITUDE_H
#define PASSES_MAGNITUDE_H

#include "passes/derive/normal_form.h"

// An element that is summed up, or weights values, may be as large as 2^94: v counts as at most 2^32.
enum { MAGNITUDE_MOST = 94, MAGNITUDE_LEAST = -110 };

typedef struct Magnitude {
    double least, most; // log2 of what e can be where it is not 0
} Magnitude;

// Of e, whose operations need not be those of a formula: each of them is looked at.
Magnitude row_magnitude(const RowProgram *row, const Ex *e);

// log2 of the largest that e is, where it is divided by a power of an extremum, or of a sum, of which
// it is a part itself: s / rowmax(abs(s)) is 0 then. Running extrema count as what has been seen.
double row_relative(const RowProgram *row, const Ex *e);

// log2 of the largest that e is, by either way, where an exponent counts as its extrema leave it:
// exp(s - rowmax(s)) is 0 then.
double row_tight(const RowProgram *row, const Ex *e);

// A row scalar as factors, by which something is multiplied one after the other: e itself, or two where
// it may leave f32. Returns how many.
enum { MAX_FACTORS = 2 };
int row_factors(const RowProgram *row, const Ex *e, const Ex *out[MAX_FACTORS]);

#endif
