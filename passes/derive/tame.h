// tame.h: how large numbers of a row can be, as far as formulas tell. See docs/derivation.md.
#ifndef PASSES_TAME_H
#define PASSES_TAME_H

#include "ir/row.h"

enum { ROW_MAX_DEPTH = 64 }; // to which a sum is taken apart

// Whether e has something of each key in it.
bool row_has_element(const Ex *e);

// Whether what elements add to an exponent e, over the row's scores and reductions, stays within 2^12 where
// dot products, squared norms and positions count as 1, and within 2^27 wherever positions are.
bool row_tame(const RowProgram *row, const Ex *e);

// Whether that is within 2^9 where dot products are 64, wherever positions are: what rounding it loses, 2^-15, hardly
// shows beside 1.
bool row_small(const RowProgram *row, const Ex *e);

// The same of what dot products add, where inputs are within 1, whatever positions do.
bool row_dots_small(const RowProgram *row, const Ex *e);

// How large |e| can be where dot products, squared norms and float inputs that no score reads are within 2^64.
double row_most(const RowProgram *row, const Ex *e);

// The same of several expressions: what they share is looked at once.
typedef struct RowBounds {
    struct Tame *any, *largest;
} RowBounds;
RowBounds row_bounds(Arena *scratch, const RowProgram *row);
double row_bounds_most(RowBounds b, const Ex *e);  // row_most
double row_bounds_least(RowBounds b, const Ex *e); // what e is never below, whatever scores are

// Whether that is 0 or more.
bool row_not_negative(const RowProgram *row, const Ex *e);

// Whether |e| is never above `most`, however large dot products and inputs are.
bool row_within(const RowProgram *row, const Ex *e, double most);

// Whether e is never above `most`, however large dot products are.
bool row_below(const RowProgram *row, const Ex *e, double most);

#endif
