// backward.h: the backward of a row program (ir/backward.h). See docs/derivation.md.
#ifndef PASSES_BACKWARD_H
#define PASSES_BACKWARD_H

#include "ir/backward.h"
#include "passes/derive/polynomial.h"

// Never fails on a valid row program. The forward that it belongs to is its own: ->s, which may differ from pass_derive's in what
// is exact and in what tells an empty row. What needs a further sweep is told by a note (silent when diags is NULL).
Backward *pass_backward(Arena *a, const RowProgram *row, Diags *diags);
// The same, where the forward's weights become f16 before what belongs to the row is multiplied in.
Backward *pass_backward_narrow(Arena *a, const RowProgram *row, Diags *diags);

// ---- shared by its files

// A derivation under way. Formulas are over SYM_R, and over SYM_ROW k for row scalar k of those that are made; back_saved puts the
// saved ones before them.
typedef struct Derivative {
    Arena *arena, *scratch;
    ExPool *p;
    const RowProgram *row;
    Backward *out;
    Polys *polys;
    ClassSet *positive; // of each reduction
    ClassSet *finite;   // of each reduction of a row with keys, where it is finite
    // The program's formulas, simplified without fma.
    const Ex *weight, *modified, *output;
    const Ex **f, **emit; // what each reduction reduces; emits
    Poly of_weight, *of_f;
    Poly
        of_apart; // of the weight without numbers of the row that may be 0: of_weight where it has none
    const Ex *apart;    // the same as an expression; NULL: the weight
    bool sums_apart;    // such a number is made of the row's sums
    Poly *rho;          // the gradient of each reduction
    const Ex **count;   // of an extremum: how many keys attain it; NULL: nobody asks
    VEC(int) reduction; // by row scalar: for whose gradient it is, or -1
    int looking_at;     // that reduction now
    int delta;          // the row scalar; -1: none
    bool may_sweep;     // sums over the keys may be made
    bool half;          // weights become bf16 or f16 where they meet v
    bool failed;        // one was needed
} Derivative;

const Ex *back_row(Derivative *d, BackMade made, const char *name, const Ex *value);
// A number of the row; what comes by an emit is 0 where the emit's gradient is, as large as the rest may be.
const Ex *back_ex(Derivative *d, const Poly *a);
// The same as few symbols: itself where it is one, or a row scalar.
const Ex *back_scalar(Derivative *d, const Poly *a);
// The gradient by x of what the weights and reductions behind `after` are made of, summed up over the keys.
Poly back_by(Derivative *d, const Ex *x, int after);
Poly back_by_emits(Derivative *d, const Ex *x);
// A gradient that comes, times a slope: 0 adds nothing, however steep it is.
const Ex *back_come(Derivative *d, const Ex *come, const Ex *slope);
const Ex *back_come_row(Derivative *d, const Poly *come, const Ex *slope); // that of a reduction
const Ex *back_attains(Derivative *d, int k); // bool: the key attains the extremum
// The reads of inputs whose gradient is wanted.
typedef VEC(const Ex *) BackReads;
void back_reads(Derivative *d, const Ex *e, BackReads *to);
// Pairs: ds, d_dot, and the gradients of inputs. backward_pairs.c
void back_pairs(Derivative *d);
// What the forward saves; symbols get their places. backward_saved.c
void back_saved(Derivative *d);

#endif
