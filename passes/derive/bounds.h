// bounds.h: intervals of numbers, and what operations make of them.
#ifndef PASSES_BOUNDS_H
#define PASSES_BOUNDS_H

#include "ir/expr.h"

typedef struct Bounds {
    double lo, hi;
} Bounds;

// Where an operation leaves the numbers, how much is said.
typedef struct BoundsRule {
    Bounds by_zero; // a quotient whose divisor may be 0
    Bounds log2;    // logarithms lie within
} BoundsRule;

extern const Bounds bounds_unknown;
Bounds bounds_within(double size);
double bounds_size(Bounds b);              // the largest magnitude
double bounds_product(double a, double b); // 0 by an infinity is 0
Bounds bounds_over(Bounds a, Bounds b, const BoundsRule *rule);
// Whether each factor of a product stands an even number of times: it is never negative.
bool bounds_is_square(const Ex *e);
Bounds bounds_of_constant(const Ex *e);
// Of an operation by its arguments'. -inf in a `select` is a masked key, and not a number.
Bounds bounds_of_operation(const Ex *e, const Bounds *args, const BoundsRule *rule);

#endif
