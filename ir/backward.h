// backward.h: the backward of a row program, derived by passes/derive/backward.c (docs: derivation).
//
// For one query with its row of scores s_j, weights w_j, and o_d = output(sum_j w_j v_jd), the gradients that come are do (of o)
// and demit (of each emit: a number for each row). What goes out, summed up over all rows where several add to one element:
//
//     doa_d   = d_o                                 the gradient of what is aggregated, before `output`
//     dw_j    = sum_d doa_d v_jd                    a product, as the dot is
//     ds_j    = ds                                  of the modified score
//     dv_jd  += w_j doa_d
//     dq_i   += sum_j d_dot_j k_j + 2 q_i sum_j d_sqq_j        of each dot, to the rows that it is of; where channels have
//     dk_j   += d_dot_j q_i + 2 k_j d_sqk_j                    factors f, q_i is f q_i, and the sum to dq_i is multiplied by f
//     grad inputs: each of `grads`, at the index at which it was read
//
// Everything that is of a pair holds only for a pair that takes part. A masked pair, and one whose modified score is -inf, adds
// nothing to anything, whatever its formulas give there: they are to be selected, not multiplied by 0.
//
// Worked example, softmax with its lse:
//     rows    A, the shift, and f = 1 / l, stored by the forward;  delta = sum over columns of do * o;  r = dlse - delta
//     weight  exp2(s * 0.18 + A) * f        ds      w * (dw + r) * 0.125
//
// The three steps, in order:
//     1. The forward stores the row scalars BACK_SAVED: one f32 for each row, [B, H, Sq].
//     2. One kernel makes the others, in order, and the gradients of inputs that a row adds to (BACK_ROW, BACK_COLUMN).
//     3. The main kernel: s, w, dw, ds, d_dot of each pair, and what they are summed up to.
#ifndef IR_BACKWARD_H
#define IR_BACKWARD_H

#include "stream.h"

// How a row scalar is made. All are over b, h, q_idx and inputs too.
typedef enum BackMade {
    BACK_SAVED,   // by the forward, when all its sweeps are over: over SYM_R, SYM_STATE
    BACK_COLUMNS, // sum over the columns of o: over SYM_DO, SYM_O, SYM_SQO, d, earlier SYM_ROW
    BACK_KEYS, // sum over the pairs of the row: over SYM_S, SYM_W, SYM_DW, kv_idx, earlier SYM_ROW. A further sweep over the keys
    BACK_SCALAR, // over SYM_DEMIT, earlier SYM_ROW
} BackMade;

typedef struct BackRow {
    const char *name;
    BackMade made;
    const Ex *value;
} BackRow;

typedef enum BackPer { BACK_PAIR, BACK_ROW, BACK_COLUMN, BACK_CHANNEL } BackPer;

// One contribution to the gradient of an input for each pair, row, element of o, or element of a query's row that has factors.
// Contributions to one element add up.
typedef struct BackGrad {
    int input;
    const Ex *at; // the LOAD, or the SCALAR, whose gradient it is: its indices say where
    BackPer per;
    const Ex *
        value; // PAIR: as ds, d_dot and SYM_DS; ROW: as a row scalar; COLUMN: over SYM_DO, SYM_O, SYM_SQO, d, SYM_ROW;
    // CHANNEL: over SYM_Q, the row's element, SYM_DO, the gradient of its product with the factor, and d, its column in the pair
    int row; // CHANNEL: of the queries, wherever it is met with
    const Ex *factor;
} BackGrad;

// The gradient of a number of the pair that products make of rows.
typedef struct BackProduct {
    ExSym sym; // SYM_DOT, SYM_SQQ, SYM_SQK
    int index;
    const Ex *d; // over SYM_DS, SYM_DOT, SYM_SQQ, SYM_SQK, kv_idx
} BackProduct;

typedef struct Backward {
    const Stream *
        s; // the forward that stores row scalars; formulas of pairs are over its score: s->row->modified
    const RowProgram *row; // s->row
    VEC(BackRow) rows;     // SYM_ROW; those that the forward stores first
    int nsaved;
    // SYM_O is what is aggregated, before `output`, and has to be there; false: it is o as the forward stored it.
    bool aggregate;
    const Ex *d_o;    // over SYM_DO, SYM_O, d, SYM_ROW
    const Ex *weight; // over SYM_S, kv_idx, SYM_ROW
    // The same with fewer numbers of the row and operations, for rows of which `tame` holds, a bool over SYM_ROW; NULL: there is no such.
    const Ex *tame_weight, *tame;
    const Ex *ds;              // over SYM_S, kv_idx, SYM_W, SYM_DW, SYM_ROW
    VEC(BackProduct) products; // those whose gradient is not 0
    VEC(BackGrad) grads;
    // bool over SYM_ROW: the row has no key; where that is so no BACK_ROW gradient counts. NULL where there is none.
    const Ex *empty;
    // Pairs hang on the last bit of their scores: they are compared with an extremum of the forward's, or large in an exponent. All kernels, the forward's too, are to find the same dot products and norms.
    bool same_dots;
    bool *found; // by reduction: an extremum that is compared with what it is taken over
    int further; // the first reduction whose gradient needs a further sweep: an index into row->reduces; -1: none
} Backward;

const Ex *back_product(const Backward *b, ExSym sym, int index); // its gradient; NULL: 0

#endif
