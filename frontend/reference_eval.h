// reference_eval.h: one clause, or several that share their nodes, evaluated node by node as
// language.md writes them; and what was decided on the way. Of the reference (reference.c) only.
//
// What decides has one right answer, computed in IEEE f32 as written, except where it hangs on an
// operation that each target rounds in its own way: dot, sqnorm, a function, a sum, `o`. Whether it
// does is found by trials: a row is evaluated again with those results moved within their error, up,
// down, by signs that hang on their operands, and onto two grids, where results that are near each other are equal. A decision that comes out otherwise is open.
#ifndef FRONTEND_REFERENCE_EVAL_H
#define FRONTEND_REFERENCE_EVAL_H

#include "frontend/reference.h"

enum { REF_TRIALS = 8 };              // beside trial 0, in which nothing is moved
enum { REF_DOTS = 1, REF_ROUGH = 2 }; // what moves: dot and sqnorm; functions, sums, o

typedef struct RefTaken { // the decisions of a row, in the order in which they are taken
    int32_t *value;       // of trial 0
    bool *open;           // another trial took it otherwise
    int64_t n, at, before_output;
} RefTaken;

typedef struct RefEnv { // what symbols stand for at the moment
    const RefRun *run;
    int32_t b, h, q_idx, kv_idx, d, t, e;
    TxValue s, q, k, v, o, sqq, sqk, sqv, sqo;
    const TxValue *dots, *squares[ROW_SIDES]; // an attention's, by their numbers
    const TxValue *row;                       // of modified scores
    int trial;
    int rounding;    // of functions: as which trial they are off by a rounding or two; 0: not
    RefTaken *taken; // NULL: nobody asks
} RefEnv;

typedef struct RefProgram {
    TxNodes nodes;
    int *args;      // of all nodes, as indices into nodes
    TxValue *value; // of each node: one
    TxValue **row;  // or one per key, where the node is a row
    int result;     // index of the first root
    bool *inner;    // of each node: it is an argument of another
    bool *demanded; // scratch
    bool *decides;  // of each node: what it gives hangs on `moves` by steps
    int decisions;  // how many nodes do
    unsigned on;    // what they hang on: REF_DOTS, REF_ROUGH
    unsigned result_moves;
} RefProgram;

// roots[0] may be NULL: so is the program. s_moves: what the scores that it reads hang on.
// kinks: which side of a kink is taken is a decision, too.
RefProgram *ref_program(Arena *a, const Tx *const *roots, int n, int keys, unsigned s_moves,
                        bool kinks);
int ref_index_of(const TxNodes *nodes, const Tx *t);
// Evaluates all nodes; keys is how many take part, 0 outside of `normalize`. The first root's value.
TxValue ref_evaluate(const RefProgram *p, const RefEnv *e, int keys);
TxValue ref_row_value(const RefProgram *p, int node, int key);
// Which element of an input is loaded, with these indices; -1: it has none.
int64_t ref_place(const RefRun *r, const Tx *load, const TxValue *index);
// Notes a decision in trial 0 and compares it in the others; false where it comes out otherwise.
bool ref_decide(const RefEnv *e, int32_t value);
// Whether this trial moves functions onto a grid.
bool ref_is_coarse(int trial);
// +1 or -1: which way a result moves in this trial. what: tells its operands apart.
double ref_direction(int trial, uint64_t what);

#endif
