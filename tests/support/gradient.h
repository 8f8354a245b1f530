// gradient.h: the derived backward over whole arrays, evaluated directly (backward_eval.h): what the reference's own derivative
// is compared with.
#ifndef TESTS_GRADIENT_H
#define TESTS_GRADIENT_H

#include "frontend/frontend.h"
#include "frontend/reference.h"
#include "ir/backward.h"

// The first variant of a file, with D = 6 and Dv = 5, or of a text (NULL: of the file); NULL where there is none. A mistake in it
// ends the test.
Variant *gradient_variant(Arena *a, const char *path, const char *text);

// As ref_grad, by the derived formulas. round: they are computed in f32, sums in float64.
void gradient_derived(const Backward *b, const RefGrad *g, bool round);

// The derived gradients of one row of queries, or of all (-1), against the reference's: the largest difference relative to the
// largest number of the gradient; NAN where the reference's is not finite, or where a formula of the row is infinitely steep and the derived gradient not finite. round: computed in f32. Otherwise in float64, where a decision
// may fall otherwise and numbers may cancel: the nearer of both counts, and 1e-4 is as much as both are apart. g's own arrays are not written.
double gradient_distance(const Backward *b, const RefGrad *g, int64_t row, bool round);

#endif
