// recur.h: what the files that build tile programs of recurrences share: recur.c the forward, recur_back.c the backward.
#ifndef PASSES_RECUR_H
#define PASSES_RECUR_H

#include "passes/derive/chunk.h"
#include "passes/passes.h"
#include "passes/tile/rewrite.h"
#include "passes/tile/sequences.h"

typedef struct Number { // of a row; neither: 1
    TileValue *v;
    const Ex *constant;
} Number;

// A sum of exponents, of one decay in two parts: of their nearest whole numbers, which is exact, and
// of the rest, which is small. So the difference of two sums is as exact as what lies between them,
// however strong the decays before are.
typedef struct Sum {
    TileValue *rest, *whole; // NULL: all is in the rest
} Sum;

// Over T, or over T and D: of the positions up to this one; `before`: up to the one before it.
typedef struct Decays {
    Sum sum, sum_before;
    TileValue *zero, *zero_before; // the last position with decay 0, or below 0
    Sum to_write;                  // along U
    Sum end;                       // of the whole chunk
    TileValue *zero_end;
} Decays;

typedef struct Recur {
    Arena *arena;
    ExPool *x;
    const Chunk *c;
    const RecProgram *rec;
    TileProgram *p;
    TileKernel *k;
    TileBlock *block;
    int T, U, D, E; // axes; T and U -1: `position` is the one at hand
    const Ex *position;
    int q, key, v, o, state0, state; // tensors
    bool no_values;                  // the recurrence without `value`: what it makes of a state
    TileValue *raw_q, *raw_k[2],
        *raw_v[2]; // of the chunk; k and v along T, along U; NULL: not needed
    TileValue *norm_q, *norm_k[2], *norm_v[2];
    Decays decay;
    Places at; // where rows and states lie, unless the layout is dense
} Recur;

enum { ALONG_T, ALONG_U };

typedef struct Clause { // what its symbols stand for in a map
    Recur *r;
    TileOp *map;
    int along;
    TileValue *o, *norm_o;
} Clause;

typedef struct Read {
    const ChunkRead *is;
    TileValue *elem; // [T, D]
    Number number;   // along T
} Read;

typedef struct Write {
    TileValue *elem; // [U, D]
    TileValue *x;    // [U, E]
    Number number;   // of x, along U
} Write;

// ---- operations, appended to r->block
TileOp *recur_open(Recur *r, int a, int b, int c);
const Ex *recur_in(Recur *r, TileOp *map, TileValue *v);
TileValue *recur_out(Recur *r, TileOp *map, const char *name, const Ex *e);
TileValue *recur_narrow(Recur *r, TileOp *map, const char *name, const Ex *e);
TileValue *recur_reduce(Recur *r, TileOp *map, const char *name, ExOp op, int over, const Ex *e);
TileValue *recur_scan(Recur *r, TileOp *map, const char *name, ExOp op, bool strict, const Ex *e);
TileValue *recur_product(Recur *r, const char *name, TileValue *a, TileValue *b, TileValue *c,
                         int rows, int columns);
TileValue *recur_operand(Recur *r, const char *name, TileValue *v);
TileValue *recur_beside(Recur *r, const char *name, TileValue *v, int from, int to);
const Ex *recur_size(Recur *r, int index);
const Ex *recur_pos(Recur *r, int axis);
const Ex *recur_number(Recur *r, double v);
const Ex *recur_times(Recur *r, const Ex *a, const Ex *b);
const Ex *recur_where(Recur *r, const Ex *c, const Ex *e);
const Ex *recur_both(Recur *r, const Ex *a, const Ex *b);
const Ex *recur_exists(Recur *r, int axis);
const Ex *recur_tile_of(Recur *r, int axis);
void recur_set_coords(Recur *r, TileOp *op, int tensor, const Ex *head, int rows, int columns);
TileValue *recur_load(Recur *r, const char *name, int tensor, int heads, int rows, int columns);
void recur_store(Recur *r, int tensor, TileValue *v, int rows);
const Ex *recur_clause(Recur *r, TileOp *map, int along, const Ex *e);
Number recur_row_number(Recur *r, const char *name, const Ex *e, int along);
const Ex *recur_factor(Recur *r, TileOp *map, Number n);
TileValue *recur_elements(Recur *r, const char *name, const Ex *e, int along, int columns);
bool recur_uses(const Ex *e, ExSym sym);
TileValue *recur_norm(Recur *r, const char *name, TileValue *v, int along, int columns);
void recur_make_decays(Recur *r);
Sum recur_sum_of(const Recur *r, const ChunkRead *read);
TileValue *recur_zero_of(const Recur *r, const ChunkRead *read);
const Ex *recur_fall(Recur *r, TileOp *map, Sum sum, bool write);
const Ex *recur_from_write(Recur *r, TileOp *map, Sum sum, TileValue *zero);
const Ex *recur_from_start(Recur *r, TileOp *map, Sum sum, TileValue *zero, const Ex *e);
TileValue *recur_scores(Recur *r, const char *name, const Read *read, const Write *write,
                        Number of_row);
TileValue *recur_inverse(Recur *r, const Read *erase, const Write *write, Number of_row);
TileValue *recur_decayed_state(Recur *r, TileValue *state);
TileValue *recur_new_state(Recur *r, const Write *w, TileValue *state);
void recur_make_writes(Recur *r, Write *w, TileValue *state);
int recur_tensor(Recur *r, const char *name, TensorRole role, Dtype t, int heads, const Ex *rows,
                 int columns);
void recur_load_rows(Recur *r);
TileValue *recur_output(Recur *r, const Write *w, TileValue *state);
TileValue *recur_aggregate(Recur *r, const Read *query,
                           TileValue *o);        // with the bonus and the query's number
TileValue *recur_finish(Recur *r, TileValue *o); // as `output` says
void recur_add_operands(Recur *r, Dtype t);
void recur_add_state0(Recur *r);
const Ex *recur_clause_of(Clause *c, const Ex *e);
TileProgram *recur_program(Arena *a, const RecProgram *rec, const PassOptions *o);

// ---- kernels
void recur_grid(
    Recur *
        r); // of r->k, over batches, heads and tiles of columns; operations are appended to it then
void recur_kernel(Recur *r, const char *name, TilePurpose purpose);
TileValue *recur_first(Recur *r, const char *name, int tensor);
// A loop that carries f32[D, E], over the chunks, of which `index` says which a step has. What it ends with.
TileValue *recur_chunks(Recur *r, const char *name, TileValue *first, const Ex *index,
                        TileValue *(*chunk)(void *ctx, TileValue *state), void *ctx);
TileValue *recur_loop(Recur *r, const char *name, int axis, TileValue *first, const Ex *to,
                      const Ex *index, TileValue *(*step)(void *ctx, TileValue *state), void *ctx);

// Position after position, without products.   recur_steps.c
void recur_steps(Recur *r);

// What needs no state, made before by a kernel of its own.   recur_prepare.c
typedef struct Taken { // what is made before
    TileValue *v;      // in the kernel that makes it
    int tensor, input; // where it lies; what expressions call it, -1: it is a tile
} Taken;

typedef struct Prepare {
    Recur *r;
    TileKernel *k;
    int axis[4];       // T, U, D, E
    int index;         // of the kernel
    int works, chunks; // workspace tensors so far; the size that says how many chunks there are
    VEC(Taken) taken;
    VEC(TileOp *) stores;
} Prepare;

bool recur_prepares(const Chunk *c, const PassOptions *o); // whether there is such a kernel
void recur_prepare(Prepare *a, Recur *r, const char *name, int works, int chunks);
void recur_cut(Prepare *a,
               int from); // kernels that go from chunk to chunk, from one on, once they are built
void recur_load_first(TileKernel *k); // of a kernel of one chunk

// What a piece makes of the state before it, Phi S + Psi: in the kernel at hand, Psi, or Phi in its place.   recur_segments.c
TileValue *recur_part(Recur *r);
TileValue *recur_transition(Recur *r);
// Likewise of the gradient of the state behind it, from the last chunk to the first: what the gradient of o adds.
TileValue *recur_adjoint_part(Recur *r, const Ex *index,
                              TileValue *(*chunk)(void *ctx, TileValue *state), void *ctx);

// A sequence in segments.   recur_segments.c
typedef struct Segments {
    Recur *r;
    int number, states; // sizes: of a sequence, and of all heads
    int chunks;         // likewise, of a backward: of a sequence; 0: a forward
    int works;          // workspace tensors so far
    int part, start;    // tensors: Psi, and the states before the segments
    int transition[2];  // Phi; -1: 1
    int factors;        // what expressions call it, where it is a factor for each channel
    int G;              // axis
} Segments;

Segments recur_segments(Recur *r, int works, int chunks);
void recur_segment_kernel(Segments *s, const char *name, TilePurpose purpose);
TileValue *recur_segment_first(Segments *s, const char *name);
// The kernels before those of segments: from a tensor to another.
void recur_segment_starts(Segments *s, int first, int last);
// The same from the last segment to the first: `chunk` adds to the gradient of a state. `recur_segment_index`: which chunk a step has.
const Ex *recur_segment_index(Segments *s);
void recur_segment_adjoints(Segments *s, int first, int last,
                            TileValue *(*chunk)(void *ctx, TileValue *state), void *ctx);

#endif
