// stream_eval.h: runs a streaming form on one row, tile by tile. Sums are in float64; expressions too, or
// in f32, operation by operation, as kernels compute them.
//
//     StreamEval *e = stream_eval(a, s, &row, Dv);
//     StreamPart p = stream_begin(e);
//     for each sweep: for each tile: stream_add(e, sweep, &keys, from, to, &p, NULL, NULL); then stream_finish(e, &p);
//     stream_output(e, &p, o);
#ifndef IR_STREAM_EVAL_H
#define IR_STREAM_EVAL_H

#include "stream.h"

typedef struct StreamEval StreamEval;

typedef struct StreamPart { // what is carried of some of the keys
    double *state, *acc;    // one per state; Dv
} StreamPart;

typedef struct StreamKeys {
    const double *s; // modified scores; -inf: masked
    const double *v; // [keys, Dv]
} StreamKeys;

typedef struct StreamMoves { // what was multiplied on what was carried so far
    double *state, acc;      // 1 of an extremum
} StreamMoves;

// row: what expressions refer to beside the stream's own symbols and kv_idx: heads, sizes, inputs; and
// whether they are rounded.
StreamEval *stream_eval(Arena *a, const Stream *s, const ExEnv *row, int Dv);
StreamPart stream_begin(const StreamEval *e); // of no key
StreamPart stream_copy(const StreamEval *e, const StreamPart *p);
StreamMoves stream_moves(const StreamEval *e);
// Adds keys [from, to). moves, elements (of [from, to), in the last sweep): NULL or room for them.
void stream_add(StreamEval *e, int sweep, const StreamKeys *keys, int from, int to, StreamPart *p,
                StreamMoves *moves, double *elements);
// Two parts of the keys, of one sweep. a and b: NULL or room.
StreamPart stream_merge(StreamEval *e, int sweep, const StreamPart *p, const StreamPart *q,
                        StreamMoves *a, StreamMoves *b);
double stream_shift(StreamEval *e, int shift, const StreamPart *p); // the safe one
// As if all keys of the sweeps so far were in: reductions.
void stream_finish(StreamEval *e, const StreamPart *p);
double stream_reduction(const StreamEval *e, int k);
double stream_emitted(StreamEval *e, const StreamPart *p, int i);
double stream_factor(StreamEval *e);                      // what the accumulator is multiplied by
bool stream_is_empty(StreamEval *e, const StreamPart *p); // the row has no key
double
stream_scalar(StreamEval *e, const StreamPart *p,
              const Ex *scalar); // over reductions, states and shifts, as they are at the end
void stream_aggregate(StreamEval *e, const StreamPart *p, double *o); // Dv: before `output`
void stream_output(StreamEval *e, const StreamPart *p, double *o);    // Dv

#endif
