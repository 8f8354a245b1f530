// recur_back.h: what the files that build the backward of a recurrence share.
#ifndef PASSES_RECUR_BACK_H
#define PASSES_RECUR_BACK_H

#include "passes/tile/recur.h"

typedef struct Back {
    Recur r;
    const ChunkBack *back;
    Diags *diags;
    bool shared;               // heads share q, k or v
    bool by_positions;         // rows of the gradients' blocks are positions; else channels
    int chunks, all_chunks;    // sizes: of a sequence; of the heads
    int works;                 // workspace tensors
    int dout, dstate, dstate0; // tensors; dout: of o before `output`
    int grad_o;                // that of o, as it comes
    int states, adjoints;      // [B, H, chunks, D, Dv]
    int solved, dx,
        dsolved;        // what was solved; gradients of the values written, and of those solved
    int to[3], sums[3]; // dq, dk, dv; where they are added up
    int *grad;          // by input: tensor; -1
    bool part;          // the gradient of the state alone, that what comes for o gives
    bool good;
} Back;

// Gradients of the pieces of a chunk, along T, T and D, or T and E; NULL: 0.
typedef struct Pieces {
    TileValue *of[PIECE_COUNT];
    TileValue *o, *norm_o; // of what `output` reads
} Pieces;

typedef struct Reads {
    Read query, erase;
    Number erased; // of what is erased, from x's solved: erase.number * erased
} Reads;

typedef struct BackRead {
    Read is;
    Number n;        // what comes to the writes is times this
    TileValue *g;    // what comes to the read, [T, E]
    TileValue *a[2]; // by write, [T, U]: g x' with the number of x
    TileValue
        *pair[2]; // the read's elements times the write's, [T, U]; NULL: by channel, or not needed
    TileValue *of_writes[2], *to_writes[2]; // by channel, of pairs of two positions: to z, to dw
    TileValue *z, *state;                   // the gradient of its elements, [T, D]; g S0
} BackRead;

typedef struct Chunked { // of the chunk at hand
    int nreads;          // the query, and erase
    BackRead read[2];
    Write w[2];
    TileValue *s0, *f1;  // [D, E]
    TileValue *reach[2]; // x F1, [U, D]
    TileValue *dw[2];    // gradients of the writes' elements, [U, D]
} Chunked;

const Ex *recur_add(Recur *r, const Ex *a, const Ex *b);
const Ex *recur_inside(Recur *r, int rows, int columns);
TileValue *recur_plus(Recur *r, const char *name, TileValue *a, TileValue *b);
TileValue *recur_along_t(Recur *r, TileValue *v);
TileValue *recur_summed(Recur *r, TileValue *v, int axis);
TileValue *recur_dot(Recur *r, const char *name, TileValue *a, TileValue *b, Number n);
const Ex *recur_sum_of_slopes(Back *b, TileOp *map, const Pieces *g, int columns, const Ex *of);
TileValue *recur_slopes(Back *b, const char *name, const Pieces *g, int columns, const Ex *of);
void recur_add_grads(Back *b, const Pieces *g);

// The gradient of the decay's piece, along T, or T and D.   recur_decay.c
TileValue *recur_decay_piece(Back *b, const Chunked *x);

#endif
