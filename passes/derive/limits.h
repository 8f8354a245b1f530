// limits.h: how large f32 numbers can be, so that sums and products of finite ones are known to stay finite.
#ifndef PASSES_LIMITS_H
#define PASSES_LIMITS_H

#include "ir/row.h"

typedef struct Limits {
    double lo, hi; // of the value where it is finite
} Limits;

// What a dot product and a squared norm are at most, as far as these limits go.
#define LIMITS_DOT 0x1p60
// The first number that f32 rounds to infinity.
#define LIMITS_F32 0x1.ffffffp127

typedef struct LimitFacts {
    const Limits *param; // of SYM_PARAM, by index; NULL: unknown
    bool causal;         // a key is never behind the query
} LimitFacts;

// Of a node by its arguments'.
Limits limits_of_node(const Ex *e, const Limits *args, const LimitFacts *facts);
LimitFacts row_facts(const RowProgram *row); // what its mask says
extern const Limits limits_unknown;

// Whether the modified score can be -inf where nothing that it is made of is infinite, and be so or not by the order of
// operations.
bool row_overflows(const RowProgram *row);

#endif
