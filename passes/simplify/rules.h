// rules.h: shared by the files of ex_simplify.
#ifndef PASSES_SIMPLIFY_RULES_H
#define PASSES_SIMPLIFY_RULES_H

#include "ir/expr.h"

// Builds an operation over simplified arguments, simplified.
const Ex *simp_1(ExPool *p, ExOp op, const Ex *a);
const Ex *simp_2(ExPool *p, ExOp op, const Ex *a, const Ex *b);
const Ex *simp_select(ExPool *p, const Ex *c, const Ex *a, const Ex *b);
// ex_simplify without its last step: exp2 and log2 only, and no fma.
const Ex *simp_open(ExPool *p, const Ex *e);
bool simp_finite(const Ex *e);       // an f32 that is neither NaN nor infinite whatever the data
bool simp_not_negative(const Ex *e); // nor -0 (sqrt may be); NaN only where an argument is

// An operation on constants; NULL where an argument is none.
const Ex *simp_fold(ExPool *p, const Ex *e);
// e, whose arguments are simplified, as the number that it is (rounded.c).
const Ex *simp_rounded(ExPool *p, const Ex *e);

// The rules of one node, its arguments simplified and not all constant. They return the node itself
// where nothing applies.
const Ex *simp_float_node(ExPool *p, const Ex *e);
const Ex *simp_int_node(ExPool *p, const Ex *e);  // i32 arithmetic
const Ex *simp_bool_node(ExPool *p, const Ex *e); // comparisons, connectives, select, conv

#endif
