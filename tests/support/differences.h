// differences.h: the reference's own gradients against central differences of its values, for random variants: where the
// formula is smooth.
#ifndef TESTS_DIFFERENCES_H
#define TESTS_DIFFERENCES_H

#include "tools/oracle.h"

typedef struct Differences {
    int compared; // elements whose differences settle
    double
        worst; // of their gradients, relative to the gradient and to what the row's output is a sum of
    char element[200]; // which that was, and what was found
} Differences;

// A few rows of queries, each with a few elements of q, k, v and every f32 input; gradients of o and of emits are drawn.
Differences differences(const Variant *v, const Binding *b);

#endif
