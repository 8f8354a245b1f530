// reference.h: the naive evaluation of the typed AST: what a variant means, computed as language.md
// says it, row by row, with nothing derived: what decides in f32, operation by operation, the rest
// in float64. It knows nothing of ir/expr.h's expressions: what it agrees with was not computed by
// the same code.
#ifndef FRONTEND_REFERENCE_H
#define FRONTEND_REFERENCE_H

#include "frontend/typed.h"

// The first index of an input that was used outside its tensor: not where `&&`, `||`, `?:` or the
// mask discards what it reads.
typedef struct RefOutside {
    const Tx *load; // NULL: none
    int dim;
    int32_t index;
    int64_t extent;
    int32_t b, h, q_idx, kv_idx; // where; recurrence: q_idx is t
} RefOutside;

// Decisions with no single right answer: they come out otherwise where dots, sqnorms, functions and
// sums are off by what a target's may be. What hangs on one is not to be compared. Nor is what follows
// a state that f32 does not hold.
typedef struct RefOpen {
    unsigned char *row, *o; // [B,H,Sq], [B,H,Sq,Dv], zero before the run: 1 where it hangs on one
    unsigned char *state;   // recurrence: [B,H,D,Dv]
    int64_t decisions, rows;
    int64_t beyond; // recurrence: positions behind a state that f32 does not hold
    // Recurrence: positions with a decay below 0, behind which nothing is specified.
    int64_t negative;
} RefOpen;

typedef struct RefSequence RefSequence; // reference_batch.h

typedef struct RefRun {
    const Variant *variant;
    const int32_t *sizes; // one for each of variant->sizes (an attention's q_offset is one of them)
    // Attention: q [B,H,Sq,D] k [B,Hkv,Sk,D] v [B,Hkv,Sk,Dv] (not read where v is in k). Recurrence: q [B,Hq,S,D] k [B,Hk,S,D]
    // v [B,Hv,S,Dv].
    const double *q, *k, *v;
    // One for each of variant->inputs, by its declared shape: double* where it reads as f32,
    // int32_t* where as i32 or bool.
    const void *const *inputs;
    double *o; // [B,H,Sq,Dv], recurrence [B,H,S,Dv]
    double *const
        *emits; // one for each of variant->emits, [B,H,Sq]; NULL, or with NULLs: not wanted
    const double *state0; // recurrence: [B,H,D,Dv]; NULL: 0
    double *state;        // recurrence: [B,H,D,Dv]; NULL: not wanted
    RefOutside *outside;  // all zero; NULL: not wanted
    int64_t *pairs;       // attention: how many take part is added to it; NULL: not wanted
    // Of an attention, and NULL where not wanted: the same by the formula as written in f32; the
    // size of what o is a sum of, which its rounding is relative to; what is open.
    double *o_written, *const *emits_written, *o_size;
    RefOpen *open;
    bool kinks; // which side of a kink a pair is on (max, abs ...) counts as a decision
    const unsigned char *rows; // [B,H,Sq]: 0 where a row is not evaluated; NULL: all are
    // Of an attention, and NULL where not wanted: [B,H,Sq,Sk] of the rows that are evaluated. What normalize
    // reads, of all pairs; which take part; their weights, 0 of others.
    double *scores, *weights;
    unsigned char *taking_part;
    // The one sequence of a batch that q, k, v, o and emits hold (B = 1 there, not in formulas), while the
    // inputs are all the batch's; NULL: they hold the batch.
    const RefSequence *sequence;
    double dot_error; // of a target's dot, relative to the sum of its terms' magnitudes
    double o_error;   // of its o, relative to the row's root mean square
    int rounding; // where nothing is decided on a score: as which of several ways o_written and emits_written round it; 0: to the nearest
} RefRun;

// NULL, or what is wrong with the sizes ("H is not a multiple of Hkv").
const char *ref_check(const RefRun *r);
// The sizes must pass ref_check.
void ref_run(const RefRun *r);

// How gradients of an attention are computed.
typedef enum RefKind {
    REF_FLOAT64,
    REF_SIZES, // the sums of the magnitudes of all that adds to each gradient, whose rounding its own is relative to
    REF_PARTS, // likewise, but dot products are one number: of what is rounded before it is a factor of a product
    REF_WRITTEN, // from what the formula as written gives in f32, each step of the reverse mode rounded to f32
    REF_STORED, // in float64, but factors of products, and the o that do is multiplied by, are rounded to the type of q, k and v
} RefKind;

// What ref_grad takes: gradients of the outputs of `run`, whose own outputs may be NULL; and what it gives: those of what
// goes in, by the reverse mode over the same evaluation. All outputs are written; NULL: not wanted. Kinks are as
// derivation.md says. A row without a key gets no gradient but for what `output` reads.
typedef struct RefGrad {
    const RefRun *run;           // its `rows` are honoured
    const double *d_o;           // like o; NULL: 0
    const double *const *demits; // one for each of the variant's emits; NULL, or with NULLs: 0
    const double *dstate;        // recurrence; NULL: 0
    double *dq, *dk, *dv;        // like q, k, v
    double *const *dinputs;      // one for each of the variant's inputs; NULL, or with NULLs
    double *dstate0;             // recurrence
    RefKind kind;
    // Bits of that type's numbers: 11 of f16, 8 of bf16; 0: of f32. REF_WRITTEN rounds factors of products (weights, ds and the gradient of
    // what is aggregated) to f16, too.
    int bits;
    double unit; // REF_STORED: in which numbers are rounded
    // Of an attention: 1 of each row [B,H,Sq] that holds an infinity or a NaN that what follows hides, a sum that its weights hang on or
    // what is aggregated, or that `output` makes; NULL: not wanted.
    unsigned char *lost;
    // Of an attention: how many sides of kinks are others in float64 is added to it; NULL: not wanted.
    int64_t *apart;
} RefGrad;
void ref_grad(const RefGrad *g);

// The mask alone, of one batch entry and head: 1 where key j takes part for query i, [Sq, Sk]. q,
// k, v and o are not read.
void ref_mask(const RefRun *r, int b, int h, unsigned char *out);

#endif
