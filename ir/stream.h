// stream.h: the streaming (online) form of a row program, derived by passes/derive/derive.c (docs: derivation).
//
// The keys are swept once or several times; a sweep carries states, one f32 per row each. In every tile of a sweep, in order:
//
//     for each state k:  new_k = reduce(rescale_k * old_k, reduce over the tile of elem_k)
//                        rescale_k = exp2(shift'_k - shift_k)   where the state has a shift; 1 otherwise
//     in the last sweep: acc   = rescale * acc + sum_j elem_j v_j
//
// Worked example, softmax:  m = rowmax(s), l = rowsum(exp(s - m)), w = exp(s - m) / l
//     shifts  A0 = -(m * log2e), m = state 0
//     states  0: rowmax of s;   1: rowsum of exp2(s * log2e + A0), shift 0
//     acc     elem exp2(s * log2e + A0), shift 0;   factor 1 / l,   l = R1 = state 1
//
// Elements see SYM_S (the modified score; -inf marks a masked key), SYM_STATE of states of the same sweep only
// through shifts and scales, SYM_R of reductions finished in earlier sweeps, and indices. An elem gives the reduction's identity (0 for the
// acc) at s = -inf: derivation proves it from the formula, and where it cannot, writes select(s == -inf, identity, f).
//
// A shift is a function of max/min states that are still moving. Its raw value is +inf while a row has no key (m = -inf); the
// value that elements use is the safe one, select(raw == +inf, 0, raw), and rescale uses exp2(safe_new - raw_old): this is 0
// when the old sweep was empty and never NaN.
//
// A scale is what elements are divided by before they grow too large or too small: pow(s / m, 8), m being the largest |s| so far.
// When its bases move, what was summed is multiplied by `ratio`, over the quotients new / old of the bases (SYM_RISE), here
// pow(rise0, -8); by 0 where an old base is not above 0 yet.
#ifndef IR_STREAM_H
#define IR_STREAM_H

#include "row.h"

enum { STREAM_MAX_BASES = 4 };

typedef struct StreamScale {
    const Ex *ratio; // over SYM_RISE
    const Ex *base
        [STREAM_MAX_BASES]; // over SYM_STATE, above 0 as soon as there is something to be scaled
    int n;
} StreamScale;

typedef struct StreamState {
    ExOp op;          // EX_ROWMAX, EX_ROWMIN, EX_ROWSUM
    int sweep;        // in which it is carried
    const Ex *elem;   // what is reduced
    int shift;        // index into shifts, or -1; sums only
    int scale;        // index into scales, or -1; sums only
    const char *name; // "m", "l"
    Span span;
    bool exact; // an extremum that is found again to the last bit: it is carried as it is
} StreamState;

typedef struct Stream {
    // The program that is streamed. Its score and formulas may differ from those that pass_derive was given (a constant scale of
    // the score is moved into the formulas): SYM_S below is row->modified of this one.
    const RowProgram *row;
    const RowProgram *written; // that one
    const Ex *scaled;          // written's score over SYM_S, which is row's: `s * 0.125`, or `s`
    int nsweeps;               // at least 1; the last one carries the accumulator
    // Raw, over SYM_STATE of max/min states (of any finished or the current sweep) and row scalars.
    VEC(const Ex *) shifts;
    // By shift: what one of it is in the exponents, where scores are not known to be small. Its elements are exp2((x + shift) * unit),
    // and rescale_k = exp2((shift'_k - shift_k) * unit). A row scalar over SYM_R and inputs, or NULL for 1.
    VEC(const Ex *) units;
    VEC(StreamScale) scales;
    VEC(StreamState) states; // in dependency order
    // Row scalars once all sweeps they need are over: finished value of reduction k over SYM_STATE (and SYM_R of earlier ones).
    VEC(const Ex *) finished; // one per row->reduces
    const Ex *elem;           // weight of a key before the deferred factor
    int shift;                // of the accumulator, or -1
    int scale;                // likewise
    int largest; // state by which elements are scaled so that f16 holds them, by 1 where it is 2^14; or -1
    const Ex *factor; // deferred: row scalar over SYM_R multiplied into acc at the end; NULL for 1
    // bool over SYM_STATE: the row had no key; NULL where 0 * factor is proved to be 0 without asking.
    const Ex *empty;
    int added_count;       // state added to know `empty`, or -1
    VEC(const Ex *) emits; // one per row->emits: its value, over SYM_R and SYM_STATE
    // Why there is more than one sweep: the reduction that could not be streamed together with what needs it (-1: one sweep).
    int blocking; // index into row->reduces
} Stream;

// As text for --emit=row (after the row program).
void stream_print(Text *out, const Stream *s);

#endif
