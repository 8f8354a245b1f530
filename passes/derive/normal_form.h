// normal_form.h: the multiplicative normal form of an expression over a row: elem * factor, where
// elem may be shifted in its exponents by a row scalar and knows no other unfinished reduction.
#ifndef PASSES_NORMAL_FORM_H
#define PASSES_NORMAL_FORM_H

#include "ir/stream.h"
#include "passes/derive/classes.h"

typedef enum NfMotion { // of a reduction, seen from a sweep
    NF_KNOWN,           // finished in an earlier sweep
    NF_RISING,          // a max of this sweep: its running value may be a shift
    NF_FALLING,         // a min, likewise
    NF_SETTLING,        // known only when this sweep is over
} NfMotion;

typedef struct NfRow { // by the index of SYM_R
    const NfMotion *motion;
    const ClassSet *classes;  // of finished values in a row with keys
    const Ex *const *reduced; // what each reduces, simplified like e
    const RowProgram *program;
} NfRow;

enum { NF_SHIFT = -1 }; // SYM_SHIFT's index in NormalForm.elem: to be replaced

typedef enum NfWhy { // what keeps an expression from its form
    NF_MIXED,        // an unfinished reduction is neither a factor nor a shift
    NF_UNBOUNDED,    // a running shift would not keep the exponent small
    NF_RANGE,        // without what is deferred it may leave f32
} NfWhy;

// e = elem[shift for SYM_SHIFT] * factor, for every value of the reductions; elem[x] = elem[0] *
// exp2(x). Where there is a scale, elem knows the bases' extrema: with other bases it is elem times
// the ratio of their quotients.
typedef struct NormalForm {
    const Ex *elem; // over S, KV_IDX, SYM_SHIFT NF_SHIFT, reductions that are known and the scale's
    const Ex *shift;   // over reductions that are known or move; NULL: elem has none
    const Ex *factor;  // over all reductions; NULL for 1
    StreamScale scale; // bases over reductions that move; n 0: none
    bool wide; // elem is as large as numbers of the formula may be: with v more than f32 holds
    NfWhy why; // where there is no such form
} NormalForm;

// Whether exp2(x + shift) stays as small while the shift moves as it is in the end. bounded.c
bool nf_bounded(ExPool *p, const Ex *x, const Ex *shift, const NfRow *row);

// What x, an exponent that nf_bounded takes, is at most; INFINITY where it is not known.
double nf_excess(ExPool *p, const Ex *x, const NfRow *row);

// False where e is not of this form as far as the rules see, or where a running shift would not
// keep its exponent small. e is simplified without fma (simp_open).
bool normal_form(ExPool *p, const Ex *e, const NfRow *row, NormalForm *out);

#endif
