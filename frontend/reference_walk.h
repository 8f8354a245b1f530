// reference_walk.h: the reference's way through a variant, row by row or step by step: what the
// evaluation (reference.c, reference_recur.c) and its derivative (reference_grad.c) share. Of the
// reference only.
#ifndef FRONTEND_REFERENCE_WALK_H
#define FRONTEND_REFERENCE_WALK_H

#include "frontend/reference_eval.h"

// ---- attention

typedef struct RefDot { // of a pair, or of a vector with itself
    double value, error;
} RefDot;

typedef struct
    RefRows { // what a TxRow is of: [B, heads, n, stride], in a batch of sequences [rows, heads, stride]
    const double *data;
    RowSide side;
    bool batch;
    int32_t heads, n;
    int from, width, stride;
    RefDot *square; // of the keys, those of all heads; of queries the one at hand
    int *grain;     // likewise: elements are whole multiples of 2^grain
} RefRows;

typedef struct RefAttention {
    const RefRun *run;
    int32_t B, H, Hkv, Sq, Sk, q_offset;
    int32_t first; // what b is in formulas where it is 0 in q, k, v and o
    int D, Dv;
    RefProgram *score, *modify, *mask, *normalize, *output;
    int *key;                           // those that take part
    TxValue *row;                       // their modified scores
    TxValue *o;                         // the aggregated row
    double *mass;                       // sum of (w v)^2 of each element
    unsigned on;                        // what decisions before `output` hang on
    RefRows *rows[ROW_SIDES];           // one for each of the variant's
    RefDot *dot;                        // of the row's pairs, for each of the variant's dots
    TxValue *dots, *squares[ROW_SIDES]; // of the pair at hand
    const double *q, *k, *v;            // as clauses give them
    int v_stride;                       // from row to row of v
    bool rough;                         // a dot of this row is not exact
    bool near;                          // a score of this row is hardly finite
    int rounding;                       // of scores: a trial's direction; 0: none
    RefTaken taken;
    size_t at; // the row
} RefAttention;

RefAttention ref_attention(Arena *a, const RefRun *r);
// What a clause of q, k or v changes: the first `width` of `stride` elements of each row, [B, heads, rows].
typedef struct RefElements {
    ClauseId clause;
    const double *from;
    int32_t heads, rows;
    int stride, width;
} RefElements;
RefElements ref_elements(const RefAttention *t, ClauseId clause);
// Turns to row r, of all: its stored elements; and what the clause gives for one of them, e->d.
const double *ref_elements_row(const RefAttention *t, const RefElements *x, int64_t r, RefEnv *e);
TxValue ref_element(const RefProgram *p, RefEnv *e, double value);
// Turns to row i of a head: its place in o's rows; e says where it is.
size_t ref_row(RefAttention *t, RefEnv *e, int b, int h, int i);
// The keys that take part for a query, and their modified scores; -1 where in another trial others do.
int ref_gather(RefAttention *t, RefEnv *e);
// The modified score of the pair that e names; t->score and t->modify hold what they are made of.
TxValue ref_modified(RefAttention *t, RefEnv *e);
// Where the pair's row begins in what it is of: a query, or e->kv_idx.
size_t ref_row_place(const RefAttention *t, const RefEnv *e, const RefRows *rows);
// t->o, from the weights that t->normalize holds.
void ref_aggregate(const RefAttention *t, const RefEnv *e, int keys);
size_t ref_kv_row(const RefAttention *t, const RefEnv *e, int j); // of k and v
const double *ref_v_row(const RefAttention *t, const RefEnv *e, int j);

// ---- recurrence

typedef struct RefRecurrence {
    const RefRun *run;
    int32_t B, H, Hq, Hk, Hv, S;
    int32_t first; // what b is in formulas where it is 0 in q, k, v, o and the state
    int D, Dv;
    RefProgram *clause[CLAUSE_COUNT];
    // Of one step: the clauses' values.
    double *query, *key, *decay, *erase, *write, *bonus; // [D]
    double *value, *erased, *out;                        // [Dv]
} RefRecurrence;

RefRecurrence ref_recurrence(Arena *a, const RefRun *r);
// Where the row of position e->t begins in an array of so many heads.
size_t ref_place_at(const RefRecurrence *t, const RefEnv *e, int32_t heads, int width);
// Evaluates the clauses of a step, makes the state [D, Dv] that before it is `state` the one after
// it, and `out` of it.
void ref_step(const RefRecurrence *t, RefEnv *e, double *state);
void ref_recur(const RefRecurrence *t, double *state, int b, int h);

// ---- both

double ref_inner(const double *x, const double *y, int n);
// The clause's value where it is written, `absent` where not.
TxValue ref_value_or(const RefProgram *p, const RefEnv *e, TxValue absent);

#endif
