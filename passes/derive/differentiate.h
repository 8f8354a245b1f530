// differentiate.h: the derivative of an expression by a symbol.
#ifndef PASSES_DIFFERENTIATE_H
#define PASSES_DIFFERENTIATE_H

#include "ir/expr.h"

// de / dx, where x is a node: a symbol or a load. NULL where it is 0 everywhere. At kinks it is what derivation.md says; where e's
// own derivative is finite, so is what this gives.
const Ex *ex_derivative(ExPool *p, const Ex *e, const Ex *x);

// a * b where 0 stands for nothing: what b chooses not to be is not multiplied by an a that may be infinite. NULL: 0.
const Ex *ex_chain(ExPool *p, const Ex *a, const Ex *b);
// e, but 0 where what comes is 0.
const Ex *ex_unless_zero(ExPool *p, const Ex *come, const Ex *e);
const Ex *ex_plus(ExPool *p, const Ex *a, const Ex *b); // NULL: 0

#endif
