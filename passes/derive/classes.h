// classes.h: which kinds of f32 an expression can give: a small abstract interpretation behind all
// proofs of the derivation (what a masked key adds, what an empty row gives, whether a factor is
// positive).
#ifndef PASSES_CLASSES_H
#define PASSES_CLASSES_H

#include "passes/derive/limits.h"

typedef unsigned ClassSet; // of these
enum {
    CL_NAN = 1,
    CL_NINF = 2,
    CL_NEG = 4,
    CL_ZERO = 8,
    CL_POS = 16,
    CL_PINF = 32,
    CL_FINITE = CL_NEG | CL_ZERO | CL_POS,
    CL_ALL = 63
};

// What symbols are. Loads, scalars, indices and anything not named here are finite: a tensor that
// holds infinities makes rows that the proofs do not cover and that the formula itself makes
// infinite or NaN.
typedef struct ClassEnv {
    ClassSet s;        // SYM_S
    const ClassSet *r; // SYM_R, or SYM_PARAM of a map, by index; NULL: finite
    bool wild_inputs;  // inputs may hold anything, infinities and NaN too
    bool wild_scores;  // what positions and products make may be a divisor of 0, a logarithm of it;
                       // otherwise, as for what heads and sizes make, that is taken not to happen
    bool limited;      // exp2 of a finite number may be infinite or 0, as in f32
    // Sums, products and functions of finite numbers may be infinite, as in f32, where limits.h does not bound them.
    bool overflows;
    LimitFacts facts; // behind these bounds
} ClassEnv;

// Overflow and underflow are not looked for unless asked: the classes are those of the mathematics,
// with IEEE's infinities and NaN.
ClassSet class_of(const Ex *e, const ClassEnv *env);                         // e: f32
ClassSet class_and_limits(const Ex *e, const ClassEnv *env, Bounds *limits); // with `overflows`
// Whether a bool can be true, or false.
bool class_may(const Ex *e, const ClassEnv *env, bool truth);
// Of the sum of one or more values of these classes.
ClassSet class_sum(ClassSet of);
ClassSet class_reduced(const RowReduce *r, const ClassEnv *env);
// Of each reduction of a row whose scores are finite.
ClassSet *class_reductions(Arena *a, const RowProgram *row);

#endif
