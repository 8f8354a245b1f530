// large_unit.h: the unit of exponents where scores are large.
//
// exp2(s * c - M), where M is the maximum times c: that product is rounded, and the one in the fma is not. At the maximum the
// residue is left, up to M * 2^-24. Where it reaches 128, beyond 2^31, its power is infinite or 0. But scores as large as this
// differ by more than 128 or not at all. So every weight is 0 or alike, whatever c is, and the next power of two serves:
// the product with it is exact.
//
//     s * c     ->     s * (abs(s) > 2^30 / c ? c2 : c),     c2 a power of two from 1.2 c on
//
// This is monotone in s. What is made of such a product tells by its size which unit it has.
#ifndef PASSES_LARGE_UNIT_H
#define PASSES_LARGE_UNIT_H

#include "ir/expr.h"

// How large a product becomes before the unit changes. Weights in f16 end at 2^16.
typedef enum LargeFrom { LARGE_FROM = 30, LARGE_FROM_HALF = 28 } LargeFrom;

// x * c, where x may be large; of either sign.
const Ex *large_product(ExPool *p, const Ex *x, double c, LargeFrom from);
// The unit of such a product, and what takes it back: 1 / c.
const Ex *large_unit(ExPool *p, const Ex *product, double c, LargeFrom from);
const Ex *large_inverse(ExPool *p, const Ex *product, double c, LargeFrom from);

// The unit of a number that is carried as it is, and may be as large as f32 goes: 1 beyond. What it is at two sizes does not compare.
const Ex *large_own_unit(ExPool *p, const Ex *x, double c, LargeFrom from);

// x where e is such a product, else NULL.
const Ex *large_factor_of(const Ex *e);
// Such a product of another x.
const Ex *large_product_of(ExPool *p, const Ex *product, const Ex *x);
// Calls of for every x by whose size e chooses a unit.
void large_visit(const Ex *e, void (*of)(void *ctx, const Ex *x), void *ctx);
// The same formula for numbers that are not large.
const Ex *large_left_out(ExPool *p, const Ex *e);

#endif
