// simplify.h: algebraic simplification of scalar expressions.
#ifndef PASSES_SIMPLIFY_H
#define PASSES_SIMPLIFY_H

#include "ir/expr.h"

// Constant folding (by ex_apply, so that it cannot differ from evaluation), identities, exp to exp2 with the constant folded into
// the argument's own scale, division by a constant to multiplication, a*b + c to fma, shared subexpressions (by hash-consing).
// Exact on i32 and bool; on f32 it may round differently by a few ulp but never turns a finite result into a non-finite one, and
// keeps what NaN and infinities select: x*0 stays where x may be infinite. The sign of a zero may change.
const Ex *ex_simplify(ExPool *p, const Ex *e);

#endif
