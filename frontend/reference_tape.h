// reference_tape.h: reverse mode over a program that was just evaluated (reference_eval.h): the tape
// is its nodes with the values that they have. Of the reference only.
//
// Kinks (derivation.md): max and min of two expressions that tie give half to each, and nothing at a
// tie with a constant; abs gives 0 at 0; a row's extremum gives even shares to those that attain it;
// floor, i32(), comparisons and conditions give 0. Sides are those of the formula as written in f32.
// What has no part in a result (a branch that is not taken) gets 0 whatever its own slope is.
#ifndef FRONTEND_REFERENCE_TAPE_H
#define FRONTEND_REFERENCE_TAPE_H

#include "frontend/reference_eval.h"

typedef struct RefTape {
    const RefProgram *p;
    double *one;                     // of each node that is one value: its adjoint
    double **row;                    // of each node that is a row: one per key
    double sym[TS_COUNT];            // what comes out: the adjoints of symbols that are one value
    double *dot, *square[ROW_SIDES]; // of an attention's score: those of its dots and sqnorms
    int ndots, nsquares[ROW_SIDES];
    double *s; // and of the row of scores, one per key
    RefKind kind;
    double noise;  // by so much of itself what a sum of the row gets is off
    bool sums;     // extrema of the row pass nothing on
    int64_t apart; // sides of kinks so far that are others in float64
} RefTape;

// NULL where p is NULL. keys: at most.
RefTape *ref_tape(Arena *a, const RefProgram *p, const Variant *v, int keys);
void ref_tape_clear(RefTape *t, int keys);
// To f32, of what is as written.
double ref_rounded(RefKind kind, double x);
// Adds to the adjoint of a node, at a key where it is a row.
void ref_tape_add(RefTape *t, int node, int key, double adjoint);
// Down to the symbols; what was loaded of input i adds to dinputs[i], where it is not NULL.
void ref_tape_reverse(RefTape *t, const RefRun *r, int keys, double *const *dinputs);
// All three of a program without rows, with this adjoint of its result.
void ref_tape_of(RefTape *t, const RefRun *r, double adjoint, double *const *dinputs);

#endif
