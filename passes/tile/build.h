// build.h: what the files that build tile programs from streaming forms share: the kernel under
// construction, what the streaming form's symbols stand for in it, and its maps, loads and stores.
#ifndef PASSES_BUILD_H
#define PASSES_BUILD_H

#include "passes/derive/fixed_shift.h"
#include "passes/passes.h"
#include "passes/tile/rewrite.h"
#include "passes/tile/sequences.h"

// The parts that axes play. Queries and keys of one head, columns of q and k and of v and o, and
// the parts that the keys of a row are split into; the heads that are split, of all batches.
// The columns of rows of other widths than D.
typedef enum AxisRole {
    AX_M,
    AX_N,
    AX_D,
    AX_E,
    AX_S,
    AX_G,
    AX_W,
    AX_COUNT = AX_W + PASS_MAX_WIDTHS
} AxisRole;
enum { AX_NONE = -1 };

typedef struct Binding { // what a symbol of the streaming form stands for at this place
    ExSym sym;
    int index;
    TileValue *value;
} Binding;

typedef struct Whole { // the sequence of which a part has some rows and keys: sizes (state.c)
    int q_first, kv_first, Sq, Sk, parts;
} Whole;

typedef struct Kept { // tensors: sums of each row, and numbers beside them; -1: there are none
    int sums, rows;
} Kept;

typedef struct Build {
    Arena *arena;
    ExPool *pool;
    const Stream *s;
    const RowProgram *row;
    TileProgram *p;
    bool tf32; // products
    bool far;  // parts leave shifts that are more than f32's exponents apart
    int fixed; // the state that sums the weights where shifts may stay in full tiles; -1: they may not
    int weights, extremum; // what sums them in any kernel; the state that such a shift is made of
    TileKernel *k;
    TileBlock *block;
    int axis[AX_COUNT];    // of the kernel, by role; -1: it has none
    VEC(Binding) env;      // later ones hide earlier ones
    const Backward *saves; // whose row scalars are stored; NULL: none
    bool packed;           // the kernel's rows are a query's heads of a group, query after query
    int group;             // the size: heads of a group
    Places at;             // where rows lie, unless the layout is dense
    int tensor_q, tensor_k, tensor_v, tensor_o, first_emit, first_saved;
    int width[PASS_MAX_WIDTHS], nwidths; // those of AX_W and on
    AxisRole columns;                    // what SYM_D_IDX is a place along; AX_M: AX_E
    TileValue **tile[ROW_SIDES]; // of the kernel, or of the step: tiles of the row program's rows
    int few;                     // queries of launches that always have packed rows
    int own_parts;               // the size of a sequence that says in how many its keys are, or 0
    bool split;                  // keys of rows may be split between blocks
    bool share;                  // the main kernel is over parts too
    const Ex *when;              // of stores; NULL: always
    const Ex *part;              // that loads are of; NULL: the current one
    TileValue *bare_score; // the modified score, masked or not; NULL where it may be -inf by itself
    TileValue **raw_shift; // by shift: the carried one's last value; NULL: it is not carried
    int *works;            // tensors of what parts leave (state.c)
    TilePhase phase;
    Whole whole;   // of phases part and combine
    Kept from, to; // what these read, and what a part leaves
    bool within;   // what is kept is kept for blocks of the same launch: in its workspaces
    int number;    // which number of a row is read or left
} Build;

// ---- expressions
const Ex *build_size(Build *b, int index);
const Ex *build_pos(Build *b, AxisRole axis);
const Ex *build_head(Build *b);  // which of all batches' heads the tile is of
const Ex *build_parts(Build *b); // how many parts a launch has
bool build_may_finish(const Build *b);
const Ex *build_own_parts(Build *b);   // and the sequence at hand, of a batch
const Ex *build_split_heads(Build *b); // and how many of them are split, the last ones
const Ex *build_identity(Build *b, ExOp reduce);
ExOp build_merge(ExOp reduce);
// An expression of the streaming form in a map's terms; map NULL: outside of maps.
const Ex *build_resolve(Build *b, TileOp *map, const Ex *e);

// ---- what symbols stand for
void build_bind(Build *b, ExSym sym, int index, TileValue *v);
TileValue *build_bound(const Build *b, ExSym sym, int index); // NULL: nothing yet
const Ex *build_of(Build *b,
                   TileValue *v); // what an expression calls a value, until the map is built

void build_batch(Build *b, const PassOptions *o); // where rows lie: sizes, before there are tensors

// ---- kernels
TileKernel *build_kernel(Build *b, TilePurpose purpose, const char *suffix, const AxisRole *axes,
                         int n);
int build_tensor(Build *b, TileTensor t);
// [batch, head, rows], and columns where there are some; of sequences [rows, head], in a backward's workspace [head, rows].
TileTensor build_open_tensor(Build *b, const char *name, TensorRole role, int index, Dtype t,
                             int heads, int rows, int columns);
int build_main_tensor(Build *b, const char *name, TensorRole role, int index, Dtype t, int heads,
                      int rows, int columns);
void build_tensors(Build *b, Dtype t, Dtype kv, bool emits); // q, k, v, o, inputs; emits
int build_input(Build *b, int tensor);                       // as which expressions read it

// ---- operations, appended to b->block
void build_width_axes(Build *b); // those of the rows' other widths
TileOp *build_open_map(Build *b, int x, int y, Span span);
// The sums of squares over the columns: sqnorm of q, k, o. `alike`: the same to the bit in kernels of any tiles.   squares.c
TileValue *build_squares(Build *b, const char *name, TileValue *v, AxisRole rows, AxisRole columns,
                         bool alike);
TileValue *build_map(Build *b, const char *name, Dtype t, int x, int y, const Ex *e);
TileValue *build_row(Build *b, const char *name, const Ex *e); // one f32 for each query
TileValue *build_reduce(Build *b, const char *name, ExOp op, AxisRole over, const Ex *e,
                        Span span); // of the map, where e has none
TileValue *build_mma(Build *b, const char *name, TileValue *x, TileValue *y, TileValue *sum,
                     AxisRole rows, AxisRole columns, Span span); // span: none, or its own
// Tiles along one axis or two (columns AX_NONE) of a tensor [batch, head, rows, columns]: of the rows' head, or of its keys'.
TileValue *build_load(Build *b, const char *name, int tensor, AxisRole rows, int columns);
TileValue *build_load_of(Build *b, const char *name, int tensor, AxisRole rows, int columns,
                         const Ex *head);
// Of one of the row program's rows: of q or k the head `own`, of an input its head for the queries' head h.
TileValue *build_load_row(Build *b, RowSide side, int row, const Ex *own, const Ex *h);
TileValue *build_own_row(Build *b, RowSide side, int row); // those of the tile's rows
// Each of an input's heads is for as many of the queries'; where rows are packed a tile is of one of the keys'.
const Ex *build_head_among(Build *b, RowSide side, const RowOperand *r, const Ex *own, const Ex *h);
bool build_is_slice(const Build *b, const RowOperand *r); // some columns of the tensor
AxisRole build_row_columns(const Build *b, RowSide side, int row);
void build_store(Build *b, int tensor, TileValue *v, int columns);
TileOp *build_store_of(Build *b, int tensor, TileValue *v, AxisRole rows, int columns,
                       const Ex *head);
// Sums for dq and numbers of rows in workspace: those of each sequence begin at a whole block (ir/tile_blocks.h), behind all of the
// one before. Tensor copies begin at multiples of 16 bytes.
const Ex *build_place_of_work(Build *b, AxisRole rows);
// What a loop carries: its start before the loop, its name in it, its last value after it.
TileValue *build_carry(Build *b, TileOp *loop, const char *name, TileValue *start);
TileOp *build_loop(Build *b, int axis, const Ex *to); // from 0, along the kernel's axis
// What a step leaves (NULL: nothing); operations then go behind the loop.
void build_yield(Build *b, const TileOp *loop, TileValue *const *v, int n);

// ---- scores
// Whether the modified score is never -inf by itself.   sweep.c
bool build_score_is_finite(Build *b);

// ---- row scalars
TileValue *build_raw_shift(Build *b, int shift, const char *name);
TileValue *build_safe_shift(Build *b, TileValue *raw);
TileValue *build_rescale(Build *b, int shift, TileValue *now, TileValue *before,
                         bool half); // exp2((now - before) * unit), or its root
// By what the scale's sums are multiplied when states are `now` and were `before` (NULL: not carried).
TileValue *build_ratio(Build *b, int scale, TileValue *const *now, TileValue *const *before);
TileValue *build_product(Build *b, TileValue *x,
                         TileValue *y); // of two row scalars; NULL stands for 1
void build_finished(Build *b);          // binds the reductions whose states are known by now

// ---- what is kept of a row whose keys are not all seen (state.c)
void build_whole_sizes(Build *b);     // of phases part and combine
void build_own_whole_sizes(Build *b); // of sequences, likewise
void build_state_tensors(Build *b);   // likewise
// An expression's size or position, where formulas mean the whole sequence.
const Ex *build_in_whole(Build *b, const Ex *e);
bool build_carries_shift(const Build *b, int sweep, int shift); // from tile to tile
bool build_keeps_shift(const Build *b, int shift);              // in the last sweep
bool build_asks_begun(const Build *b); // whether 0 is not the identity of each number
const Ex *build_has_row(Build *b);     // whether the place of a tile has a row
// Whether what a row alone adds to gradients counts here: of its parts that with the first key, or of no key the one there is.
const Ex *build_counts_row(Build *b);
// What is kept: i of states, then of shifts, then the sums (build_sums), then whether there is anything (build_begun).
int build_sums(const Build *b);
int build_begun(const Build *b);
TileValue *build_load_kept(Build *b, const char *name, int i);
// v where the row has begun (NULL: it has), else none.
TileValue *build_if_begun(Build *b, const char *name, TileValue *begun, TileValue *v,
                          const Ex *none);
void build_leave(Build *b, TileValue *acc); // all of it

// ---- kernels
void build_forward(Build *b); // sweep.c
void build_part(Build *b);    // sweep.c
void build_combine(Build *b); // combine.c
// The rest of a kernel once all states are bound: emits, the deferred factor, output; or, of a part, what is left.   sweep.c
void build_end(Build *b, TileValue *acc);

#endif
