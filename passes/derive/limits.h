// limits.h: how large f32 numbers can be, so that sums and products of finite ones are known to stay finite.
#ifndef PASSES_LIMITS_H
#define PASSES_LIMITS_H

#include "ir/row.h"
#include "passes/derive/bounds.h"

// What a dot product and a squared norm are at most, as far as these limits go.
#define LIMITS_DOT 0x1p60
// The first number that f32 rounds to infinity.
#define LIMITS_F32 0x1.ffffffp127

typedef struct LimitFacts {
    const Bounds *param; // of SYM_PARAM, by index; NULL: unknown
    bool causal;         // a key is never behind the query
} LimitFacts;

// Of an i32 symbol: what launches allow. Of an operation within b: what the mask allows as well.
Bounds limits_of_index(const Ex *e);
Bounds limits_of_distance(const Ex *e, Bounds b, const LimitFacts *facts);
// Of a node, where it is finite, by its arguments'.
Bounds limits_of_node(const Ex *e, const Bounds *args, const LimitFacts *facts);
LimitFacts row_facts(const RowProgram *row); // what its mask says

// Whether the modified score can be -inf where nothing that it is made of is infinite, and be so or not by the order of
// operations.
bool row_overflows(const RowProgram *row);
// Whether a number of a pair may be so large that the one next to it is far away in an exponent.
bool row_is_far(const RowProgram *row, const Ex *e);

#endif
