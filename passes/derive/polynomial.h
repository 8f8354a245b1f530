// polynomial.h: expressions as sums of products of powers, to tell equal ones, to prove that one is 0, and to divide by one.
//
//     exp(s - m) / l             exp(s - m)^1 l^-1
//     exp(s) * exp(-m - log(l))  the same, once exp(s - m) has been seen
//     c ? a : b                  [c] a + [!c] b
//
// What does not change from key to key stands in exponents by itself (exp(t)^2 is exp(2 t)); of the others the first one seen is
// what all that differ by a number of the row are multiples of. A sum is a power of a sum where it is a factor.
#ifndef PASSES_POLYNOMIAL_H
#define PASSES_POLYNOMIAL_H

#include "passes/derive/classes.h"

typedef struct PolyFactor {
    const Ex *atom;
    double power;
} PolyFactor;

typedef struct Term {
    double coef;
    int n;
    PolyFactor *factor; // by the atoms' ids
} Term;

typedef struct Poly { // n 0: 0
    int n;
    Term *term;
} Poly;

typedef struct Polys Polys;

// classes: of SYM_R in a row with keys.
Polys *polys_new(Arena *scratch, ExPool *p, const ClassSet *classes);
Poly poly_of(Polys *s, const Ex *e); // e: f32
Poly poly_plus(Polys *s, const Poly *a, const Poly *b);
Poly poly_times(Polys *s, const Poly *a, const Poly *b);
Poly poly_spread(Polys *s, const Poly *a); // sums that are factors multiplied out
bool poly_is_zero(Polys *s, const Poly *a);
// a = *quotient * by, where the quotient has numbers of the row alone; or, with `keys`, also powers of others that `by` does not
// divide by. False where it is not so.
bool poly_divide(Polys *s, const Term *a, const Term *by, bool keys, Term *quotient);
// Without terms that add up to 0.
Poly poly_reduced(Polys *s, const Poly *a);
// The part of a term that changes from key to key, and the rest.
void poly_split(Polys *s, const Term *a, Term *key, Term *row);
bool poly_same(const Term *a, const Term *b); // but for the coefficient
const Ex *poly_ex(Polys *s, const Poly *a);
const Ex *poly_term_ex(Polys *s, const Term *a);
bool poly_is_of_row(const Ex *e); // the same for all keys of a row

#endif
