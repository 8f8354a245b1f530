// backward_eval.h: runs a backward on one row. Sums are in float64; expressions too, or in f32, operation by operation.
//
//     BackEval *e = back_eval(a, b, &row, Dv);
//     for each row: back_rows(e, saved, &pairs, &come); for each pair that takes part: back_pair(e, &pairs, j, &p);
//                   back_grads(e, ..) tells what inputs get
#ifndef TESTS_BACKWARD_EVAL_H
#define TESTS_BACKWARD_EVAL_H

#include "ir/backward.h"

typedef struct BackEval BackEval;

typedef struct BackPairs { // of one row
    int n;
    const double *s; // modified scores of b->row; -inf: takes no part
    // Of key j: SYM_DOT, SYM_SQQ, SYM_SQK.
    double (*product)(void *ctx, const Ex *sym, int j);
    void *ctx;
    const double *v; // [n, Dv]
} BackPairs;

typedef struct BackCome {
    const double *o;   // Dv: what is aggregated, or with !b->aggregate what the forward gave
    const double *d_o; // Dv: the gradient of what the forward gave
    const double *demit;
} BackCome;

typedef struct BackPair { // what a pair gives
    double w, *products;  // as b->products
} BackPair;

// A gradient: where it is added, the indices as computed, not yet clamped.
typedef void (*BackAdd)(void *ctx, int input, int rank, const int32_t *index, double value);

// row: what expressions refer to beside the backward's own symbols, kv_idx and d; and whether they are rounded.
BackEval *back_eval(Arena *a, const Backward *b, const ExEnv *row, int Dv);
// Begins a row: its row scalars, the saved ones as they are given. aggregated: Dv, the gradient before `output`.
void back_rows(BackEval *e, const double *saved, const BackPairs *pairs, const BackCome *come,
               double *aggregated);
BackPair back_pair(BackEval *e, const BackPairs *pairs, int j);
void back_grads(BackEval *e, const BackPairs *pairs, const BackCome *come, BackAdd add, void *ctx);
// Of a pair's element in column d: what a BACK_CHANNEL adds, and the value of a formula (a factor of channels).
void back_channel(BackEval *e, const BackGrad *g, double q, double come, int d, BackAdd add,
                  void *ctx);
double back_value(BackEval *e, const Ex *formula, int d);

#endif
