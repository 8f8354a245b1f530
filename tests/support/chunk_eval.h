// chunk_eval.h: runs a chunked form on one head, chunk by chunk, in float64.
//
//     ChunkEval *x = chunk_eval(a, c, &outer, 64);
//     chunk_run(x, &head, 0, S, state);               // o, and the state behind it
//     chunk_merge(x, &p, &q), chunk_apply(x, &part, state)
#ifndef TESTS_CHUNK_EVAL_H
#define TESTS_CHUNK_EVAL_H

#include "ir/chunk.h"

typedef struct ChunkEval ChunkEval;

typedef struct ChunkHead {   // of q, k, v those that the head reads
    const double *q, *k, *v; // [S, D], [S, D], [S, Dv]
    double *o;               // [S, Dv]; NULL: not wanted
} ChunkHead;

typedef struct ChunkPart { // of the positions: S -> phi S + psi
    double *phi, *psi;     // [D, D], [D, Dv]
} ChunkPart;

// outer: what clauses refer to beside their own symbols: the batch entry and the head, sizes, inputs. C: positions of a chunk.
ChunkEval *chunk_eval(Arena *a, const Chunk *c, const ExEnv *outer, int C);
// Positions [from, to), from the state before them to the one behind.
void chunk_run(ChunkEval *x, const ChunkHead *head, int from, int to, double *state);
ChunkPart chunk_part(ChunkEval *x, const ChunkHead *head, int from, int to);
ChunkPart chunk_merge(ChunkEval *x, const ChunkPart *p,
                      const ChunkPart *q); // p's positions before q's
void chunk_apply(ChunkEval *x, const ChunkPart *p, double *state);

#endif
