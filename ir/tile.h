// tile.h: the tile IR. A program is one or more kernels over tensors; a kernel is a grid of
// independent tiles, each a straight line of tile operations with loops; an operation works on
// values that have named axes.
//
// Axes carry the meaning: `mma` of f32[M,D] and f32[N,D] giving f32[M,N] contracts D because D is
// in both operands and not in the result; a map broadcasts an f32[M] along the axes it lacks; a
// reduction names its axis. Which axis lies along vector lanes, warps or registers is the
// schedule's affair, so the same operations express S and S transposed.
//
// Two levels, one IR. Algorithm level: load, map, mma, loop, yield, store; extents of tiled axes
// are 0 (not chosen). Scheduled level: extents bound, TileSchedule filled, loops split by tile
// class with SYM_MASK expanded or gone, and, where the target wants it, copies made asynchronous
// into shared buffers (alloc, view, copy, commit, wait, barrier), or the block is split into roles
// that hand tiles to each other through pipes (role, pipe, fill, take, drop, next, tiles). A
// lowering translates op by op. Text form: docs/tile-ir.md; tile_print and
// tile_parse are inverse to each other.
//
// Meaning of a kernel: for every point of the grid, in any order, run the body. Positions: POS(a) =
// TILE(a) * extent + i for an axis over a run-time size, where TILE(a) is bound by the grid or by
// the enclosing loop over a. While an extent is not chosen one tile is the whole axis (counts and
// bounds at the algorithm level are 1). A load outside a tensor gives 0, a store outside stores
// nothing. LOADs in expressions are clamped into the tensor (row.h). Arithmetic is
// f32; a value whose dtype is narrower is rounded to it when it is made; mma accumulates in f32.
#ifndef IR_TILE_H
#define IR_TILE_H

#include "knobs.h"
#include "layout.h"
#include "rec.h"
#include "target.h"

enum {
    TILE_MAX_AXES = 8,     // of a kernel
    TILE_MAX_ROLES = 8,    // likewise
    TILE_MAX_RANK = 4,     // axes of one value
    TILE_EXACT_WORDS = 20, // codegen/exact_sums.c
    TILE_MAX_DIMS = 8,     // of a tensor (EX_MAX_RANK)
    TILE_MAX_GRID = 5,
    TILE_MAX_OPERANDS = 64, // of a map: what a fused score with every input as a tile may need
};

// Of a program. The forward in two: a range of keys leaves a state (part), states become results (combine).
// The backward of a range of keys has the numbers of whole rows. A piece has some rows of a whole sequence, and all keys that they see.
typedef enum TilePhase {
    PHASE_FWD,
    PHASE_BWD,
    PHASE_PART,
    PHASE_COMBINE,
    PHASE_PART_BWD,
    PHASE_PIECE,
    PHASE_PIECE_BWD,
    PHASE_COUNT
} TilePhase;

typedef enum TilePurpose { // of a kernel
#define PURPOSE(e, name) PURPOSE_##e,
#include "tile_purposes.def"
#undef PURPOSE
    PURPOSE_COUNT
} TilePurpose;

typedef enum TensorRole { // what a tensor is for
#define ROLE(e, ...) TENSOR_##e,
#include "tile_roles.def"
#undef ROLE
    TENSOR_ROLE_COUNT
} TensorRole;

typedef enum TensorSide { SIDE_NEITHER, SIDE_QUERIES, SIDE_KEYS } TensorSide;
enum { USE_UNUSED, USE_READ, USE_WRITTEN, USE_BOTH }; // bits of TensorTraits.use

typedef struct TensorTraits { // a row of tile_roles.def
    const char *name;
    bool indexed;
    TensorSide side;
    uint8_t use[2]; // of the backward; of other phases (tile_use)
    bool matrix, sums, optional;
} TensorTraits;

typedef struct TileTensor {
    const char *name;
    TensorRole role;
    int index; // INPUT, GRAD: the row program's input; EMIT, DEMIT: its emit; WORK, SAVED: which
    Dtype dtype;
    int rank;                        // 0: a scalar input
    const Ex *extent[TILE_MAX_DIMS]; // over SIZE symbols and constants
    bool bare_q;                     // INPUT: refuse a launch whose q_offset is not 0 (row.h)
    bool rows;                       // INPUT: products read its rows (row.h)
    bool blocked; // WORK of f32: in memory, blocks of 16 rows and 8 columns follow each other, each
                  // in the order in which the lanes of a fragment have it
    // WORK of f32: sums of numbers that are not rounded, the same in any order. An element has TILE_EXACT_WORDS words, the last
    // dimension, and is accessed at the first.
    bool exact;
} TileTensor;

// A run-time size. The first SIZE_FREE are fixed (row.h), then the free sizes, then derived ones
// (`def` over earlier sizes and WORKERS, computed at launch): e.g. the number of key splits.
typedef struct TileSize {
    const char *name;
    const Ex *def; // NULL: given by the tensors or the caller
    // A sequence's own: over b, sizes and the tensors that say where rows lie. Kernels know it, launches do not. Those
    // of the fixed sizes that are so (Sq, Sk, q_offset) have a definition, too.
    bool own;
    // An own one of several sequences: the sum or the maximum (ROWSUM, ROWMAX; CONST: it is of one) of the definition, which uses no
    // other own size, over the first `among`, a launch's number. Without any it is 0.
    ExOp over;
    const Ex *among;
} TileSize;

// How the keys of rows are split between blocks: which derived sizes say so (passes/tile/split.c, which alone
// defines them). 0: there is no such size.
typedef struct TileSplit {
    int few;  // parts of a launch of few queries, which has a kernel for parts
    int keys; // of a batch, whose sequences have parts of their own: keys of a part
    // Of a batch: queries of a sequence whose kernel is that of few, of many, or of tiles of one head; 0 of other sequences. Where none of
    // them is a size, one kernel has all sequences of a launch.
    int few_queries, many_queries, long_queries;
    // Each launch has the kernels of few and of many, and parts follow from the own sequence alone.
    bool apart;
    int rows;    // of a batch: how many places of workspace there are for rows that have parts,
    int first;   // and where a sequence's begin
    int beside;  // of a batch: 1 in launches whose long sequences have a kernel beside that of few
    int longest; // of the kernel for many: steps of its longest tile,
    int wanted;  // parts that it would have if they cost nothing,
    int parts;   // parts of a launch, of few queries or of many,
    int share;   // the share of a part, in 1024ths,
    int whole;   // heads (b * H + h) before this one have one part
    int segment; // of a recurrence whose positions go in segments: how many one has (passes/tile/recur_segments.c),
    int steps; // and in a backward how many chunks
} TileSplit;

typedef struct TileAxis {
    const char *name; // "M"
    const Ex *size;   // elements of the whole axis
    int extent; // elements of a tile; a whole axis (constant size, never tiled): that size padded
                // as the target needs; 0: not chosen
    bool whole; // not tiled: TILE is 0 and POS(axis) = i
    int beside; // an axis before it whose positions it has again: of the same size and extent, and bound where
        // that is; -1: it is an axis of its own
    bool wide; // AMD: of columns along it a lane of a fragment has eight that follow each other,
               // then the next lane; otherwise four, as a matrix instruction leaves them
} TileAxis;

typedef enum TileHome { // where a value lives; chosen by scheduling
    HOME_ANY,           // not chosen
    HOME_FRAGMENT,      // registers, spread over the block's threads (TileValue.layout)
    HOME_SHARED,        // memory shared by the block
    HOME_SCRATCH,       // memory of the one thread that runs the tile (host), lanes along
                        // TileSchedule.lane_axis
    HOME_STRIP, // shared memory of the threads that have some rows: a number for each key of the
                // tile, or for each of its diagonals
} TileHome;

typedef struct TileOp TileOp;
typedef struct TileValue {
    int id;
    const char *name; // without '%'; unique in its kernel
    Dtype dtype;
    int rank;
    uint8_t axis[TILE_MAX_RANK]; // strictly by kernel axis number: a set, in canonical order
    TileHome home;
    int layout; // HOME_FRAGMENT: which of its kernel's, -1: not chosen
    int stages; // HOME_SHARED buffers and pipes: tiles it has room for; otherwise 1
    bool parts; // HOME_FRAGMENT, a number for each row: the threads that share the row have parts
                // of it, which add up to it (tile_parts.h); otherwise each has the number
    bool unguarded; // narrow: a NaN of it may be lost when it is rounded (tile_unguarded.h)
    TileOp *def;    // the op that makes it; for a loop's carried value the loop
} TileValue;

typedef enum TileKind {
#define TILE_OP(e, ...) TILE_##e,
#include "tile_ops.def"
#undef TILE_OP
    TILE_KIND_COUNT
} TileKind;

enum { TILE_ANY = -1, OP_PURE = 1, OP_BODY = 2, OP_ROLES = 4, OP_MAKES = 8 };
typedef struct TileOpInfo { // a row of tile_ops.def
    const char *name;
    int results, least, most;
    unsigned flags, homes; // homes: bit h for TileHome h
} TileOpInfo;

typedef enum TileMark { // how a map is made
#define MARK(e, name) TILE_##e,
#include "tile_marks.def"
#undef MARK
    TILE_MARK_COUNT
} TileMark;

// One dimension of a tensor access: a scalar index, or a whole tile along an axis.
typedef struct TileCoord {
    int axis;       // -1: scalar
    const Ex *at;   // scalar: the index; axis: which tile (TILE(axis) unless a copy runs ahead)
    const Ex *tile; // said for each place (TileOp.each): which tile; NULL: TILE(axis)
} TileCoord;

// A scan gives each place along its axis the reduction of all up to it, or from it on, itself among them
// unless it is strict.
typedef enum TileScan { SCAN_NONE, SCAN_PREFIX, SCAN_SUFFIX } TileScan;

typedef struct TileResult { // one result of a map
    const Ex *body;         // over PARAM (operand k), POS, B, H, SIZE, SCALAR, LOAD, MASK
    ExOp reduce; // EX_ROWMAX, EX_ROWMIN, EX_ROWSUM over `reduce_axis`, or EX_CONST for none
    int reduce_axis;
    TileScan scan; // a scan along `reduce_axis`, which the result has then
    bool strict;
    int by; // it begins anew after so many places of a tile; 0: at the tile's beginning alone
} TileResult;

typedef struct TileBlock {
    TileOp *first, *last;
    TileOp *owner; // the loop, role, ...; NULL for a kernel's body
} TileBlock;

// Where an operation stands in a pipeline. Iteration i of its loop is done at time i + stage; of one time
// a role does operations by order, then by text.
typedef struct TilePlace {
    int stage, order;
} TilePlace;

typedef enum TileClass { CLASS_ANY, CLASS_PARTIAL, CLASS_FULL } TileClass; // of a loop's tiles

struct TileOp {
    TileKind kind;
    Span span;
    TileOp *prev, *next;
    TileBlock *block;
    VEC(TileValue *) results;
    VEC(TileValue *) args;
    // LOAD, STORE, COPY: the tensor and a coordinate for each of its dimensions
    int tensor;
    TileCoord coord[TILE_MAX_DIMS];
    // By dimension: the coordinate's `at` is the index for each place along its axis, over POS(axis), clamped
    // into the tensor. An axis may stand so in several dimensions. Places that it does not have are outside.
    // STORE, axis -1: the index is said for each element, over the positions of all axes.
    bool each[TILE_MAX_DIMS];
    // LOAD, COPY, FILL, BESIDE (of its operand): of the last dimension `width` columns from `from_column` on are the tensor's; 0: all.
    int from_column, width;
    bool add; // STORE: adds to what is there
    // MAP: iterates over `axes` (the union of its results' axes and reduced axes)
    int naxes;
    uint8_t axes[TILE_MAX_RANK];
    VEC(TileResult) outs; // one per result
    // APPEND: stores the elements of args[0], a value along one axis, for which args[1] holds, in
    // their order. args[2] is the number of elements before, the result the number after.
    // Coordinates are indices, in which PARAM 2 is the number of the element that goes there.
    // LOOP over the tiles of `axis`: for STEP from `from` to `to` (exclusive), skipping steps where
    // `where` is false, with TILE(axis) = index. args: initial values; carried: their names inside;
    // results: their last values.
    int axis;
    const Ex *from, *to, *index, *where; // index over STEP; where: bool over STEP, or NULL
    TileClass tiles;
    VEC(TileValue *) carried;
    TileBlock body; // ends with YIELD, whose args are the next carried values
    // VIEW: args[0] a buffer, `stage` which of its tiles; or a pipe (no `stage`): the stage that
    // was taken last and is held still. COPY: args[0] the buffer, `stage` likewise; `when`: bool,
    // or NULL for always. WAIT: until at most `pending` committed groups of copies are in flight.
    const Ex *stage, *when;
    int pending;
    // COPY: the tensor has every row of the tile (promised, as a loop's class is).
    bool inside;

    // STORE: `when`: bool, or NULL for always.

    // ---- roles. `when` of FILL, TAKE, DROP: where it is false they do nothing. The result of such
    // a TAKE may be multiplied, but nothing made of it may be stored.
    // ROLE: `role` its name, `body`; one of them is called "producer" and decides what `next` is.
    // Other operations of an assigned kernel, whose roles have no bodies yet: which role does them,
    // and their place. A kernel's body is there the body of a loop over its tiles.
    const char *role;
    TilePlace place;
    // The copy of a step that is done before the loop, or behind it, has a place in the body around:
    // `peeled`. Otherwise it stands beside the loop.
    bool peels;
    TilePlace peeled;
    bool begins; // LOOP over full tiles: the first step may be one of them, and is done as one then
    // MMA: what it makes has landed when the map of this order has made `after` elements (below); 0: not said.
    int lands;
    bool turn;      // LOAD, MMA, MAP: is acquired, issued, made while the warpgroup has its turn
    bool holds;     // MMA: and the turn ends when it has landed. TURN: this one ends so
    int warpgroups; // ROLE: of 4 warps each
    int registers;  // ROLE: of a thread; 0: as the kernel begins
    // FILL: args[0] the pipe, tensor and coordinates as COPY. TAKE: args[0] the pipe. DROP: args[0]
    // the view. STORE: args[1], where there is one, the shared buffer that the tile goes through.
    // MMA: the product is issued, as a group of its own. Nothing may read the result before an
    // MMA_WAIT (or a waiting map) for it. Groups complete in order.
    bool async;
    // MMA, AT: `when` is evaluated once for each warpgroup; POS of the grid's axis in it is the
    // warpgroup's first row. Where it holds, only the first `first` elements of the tile along `axis`
    // count for these rows: others are not computed, and sums leave them out. 0: all count.
    int first;
    // MMA of f32: operands are rounded to tf32, 11 bits; sums stay f32.
    bool tf32;
    unsigned marks; // MAP, STORE, FILL, REDO, DROP: of a schedule, by 1 << TileMark
    // MAP: after `after` elements of each thread were computed, wait until at most `pending` groups
    // of products are in flight; `after` -1: anywhere before results are narrowed, which is always
    // behind the wait. What the wait lands is known to be there behind the map.
    bool waits;
    int after;
    // MAP, STORE, FILL behind a NEXT of the same block: b, h, TILE and POS mean the tile before it.
    bool behind;
    // REDO, in a role: args[0] is an f32 for each row of the grid's axis. In rows in which |x| <= 2^bits
    // the results are args[1], args[2], ..; in the others, those in which x is no number among them,
    // what the body yields in their order. The body is maps of rows. (A device may take what the body
    // yields in other rows too, those that its threads have together.) shift_bits > 0: the last argument,
    // behind what stands, is asked about too, with these bits.
    // BOUND, behind an algorithm's loops: args[0], which a loop carries, is what REDO will ask with
    // these bits where full tiles keep their shifts (KEPT). It changes nothing.
    int bits, shift_bits;
    bool pass; // TURN: the turn goes to the next warpgroup (else: wait for this one's)
    // TILES: args, carried, results, body as of a loop; the body has one NEXT. AT: `axis`, `index`,
    // `tiles`, body; the results are what the body yields.
};

typedef struct TileGrid { // one dimension of the grid, outermost first
    ExSym sym;            // SYM_B, SYM_H or SYM_TILE
    int axis;             // SYM_TILE
    const Ex *count;
    const Ex *from; // i32 of sizes: heads (b * H + h) before this one have one point along the
                    // dimension, which is the last; NULL: none
    const Ex *
        shared; // i32, also of a sequence's sizes: tiles of this sequence, which the dimension's points share, each takes every
                // count-th; NULL: one each
    // SYM_TILE, i32 over b: the first row of sequence b. The tiles of all sequences follow each other: tile t of sequence b is point
    // packed / extent + b + t, of the first one t, from which b is known: the dimension of b has one point, or none. Other points are tiles behind a sequence's last.
    const Ex *packed;
    // The dimension goes over the tiles of all sequences, of which a launch has `batch`; the grid's b is that of the tile, and has no
    // points of its own. NULL: it does not. Where the launch says `together`, tiles are numbered one sequence after the other; elsewhere
    // number n is tile n / batch of sequence n % batch, and there are a multiple of `batch` points. Points come from both ends by turns where it says `ends`. i32, 0: no.
    const Ex *batch, *together, *ends;
    bool
        slow; // points that are one apart along other dimensions follow each other; otherwise those along the last dimension do
    bool reversed; // from the last to the first: longest tiles first
} TileGrid;

typedef enum TilePersist {
    PERSIST_NONE,   // one tile a block
    PERSIST_STATIC, // as many blocks as fit the device; of n blocks each takes every n-th tile
    PERSIST_DYNAMIC // each takes the next one, by a counter
} TilePersist;

typedef struct TileSchedule {
    int lane_axis; // host: the axis along vector lanes; of a kernel of lanes, along a warp's; else -1
    int warps;     // GPU: warps of a block; rows of M are spread over them evenly
    int min_blocks;  // blocks that should fit an SM together (launch bounds); 0: no wish
    int matrix_rows; // AMD: of a matrix instruction, 16 or 32; 0 elsewhere
    bool crowded; // AMD: no registers are left for addresses: they are computed again for each tile
    // Kernels of roles: which tiles a block has (`next`).
    TilePersist persist;
    // GPU: tiles are taken of so many heads (i32 of sizes) before those of the next ones, the first tiles of
    // all of them first, so that their K and V stay in the L2 cache. NULL: head after head. The last tiles of all
    // heads, so many of each, come behind all sections; NULL: none. Of a cluster's points (tile_points).
    const Ex *section, *last;
    int cluster; // blocks whose tiles are neighbours and have the same steps: tiles without rows
                 // are copied to all of them at once; 0 and 1: one block
    const Ex
        *cluster_rows; // i32 of sizes, 1 or `cluster`: over so many tiles of rows; the tiles of
                       // a cluster are neighbouring heads' where it is 1; NULL: `cluster`
    // i32 of sizes that are alike for all sequences: so many blocks take tiles, the others leave their multiprocessors to the next kernel,
    // which begins meanwhile; NULL: all.
    const Ex *beside;
    // A nest of gradients, and the kernel that converts what it sums: 1 + the workspace by which they tell each other of what is summed, and
    // converted already (passes/schedule/meanwhile.c). It changes no result. 0: none.
    int finish;
    int next; // of an assigned kernel: the order of its step to the next tile; 0: behind all else
    Knobs knobs; // all that the target chose; none said: nothing yet
} TileSchedule;

typedef struct TileLayout { // `is` over the kernel's axes
    const char *name;       // without '@'
    Layout is;
} TileLayout;

typedef struct TileKernel {
    const char *name;
    TilePurpose purpose;
    int naxes;
    TileAxis axes[TILE_MAX_AXES];
    VEC(TileLayout) layouts;
    int ngrid;
    TileGrid grid[TILE_MAX_GRID];
    const Ex
        *mask; // bool over B, H, POS, TILE, SIZE, LOAD: what SYM_MASK means; includes POS(N) < Sk
    const Ex *
        where; // bool over SIZE, SCALAR, LOAD at constants: where it is false the kernel does nothing; NULL: it does
    TileBlock body;
    TileSchedule schedule;
    int nvalues;
    struct TileNames *names; // of its values so far (tile.c)
} TileKernel;

// Which kernels run, in order, for sizes for which `when` holds; the first plan that fits is taken,
// the last has no `when`.
typedef struct TilePlan {
    const Ex *when;
    VEC(int) kernels;
} TilePlan;

typedef struct TileProgram {
    Arena *arena;
    ExPool *pool;
    const char *name;
    TargetId target;
    Dtype dtype; // of q, k, v, o
    TilePhase phase;
    bool recurrence;   // its first sizes are those of rec.h
    BatchLayout batch; // where rows lie
    int page;          // BATCH_PAGED: keys of a page; 0: a launch's size says
    bool scheduled;
    int D, Dv;
    VEC(TileSize) sizes;
    TileSplit split;
    int chunks; // of a recurrence: the size that says how many there are, defined when extents are bound; 0: none
    VEC(TileTensor) tensors;
    VEC(int)
    inputs; // tensor of the row program's input k (what LOAD and SCALAR refer to); behind
            // them WORK tensors that expressions read, of an earlier kernel
    VEC(TileKernel *) kernels;
    VEC(TilePlan) plans;
} TileProgram;

// ---- building (tile.c)
TileProgram *tile_program(Arena *a, ExPool *pool,
                          const char *name);             // with the fixed sizes, and nothing else
void tile_sizes(TileProgram *p, const SizeNames *names); // given ones in place of those it has
TileKernel *tile_kernel(TileProgram *p, const char *name, TilePurpose purpose);
int tile_axis(TileKernel *k, const char *name, const Ex *size, bool whole);
// An i32 workspace tensor that expressions may read; *input: what LOAD calls it.
int tile_work(TileProgram *p, const char *name, const Ex *const *extent, int rank, int *input);
// A workspace gives way to a name of the source: `x_` where there is an `x`, whichever comes first. Returns the tensor's number.
int tile_tensor(TileProgram *p, TileTensor t);
// Appends an op to a block (NULL: to none yet); results are made by tile_result.
TileOp *tile_op(TileProgram *p, TileKernel *k, TileBlock *b, TileKind kind, Span span);
// A value whose name is `name`, or that with a number where the kernel has it already. A loop's
// carried values are made so.
TileValue *tile_value(TileProgram *p, TileKernel *k, const char *name, Dtype t, const uint8_t *axes,
                      int rank);
TileValue *tile_result(TileProgram *p, TileKernel *k, TileOp *op, const char *name, Dtype t,
                       const uint8_t *axes, int rank);
void tile_arg(TileProgram *p, TileOp *op, TileValue *v);
void tile_unlink(TileOp *op);
void tile_insert_before(TileOp *where, TileOp *op);
void tile_append(TileBlock *b, TileOp *op);
bool tile_has_axis(const TileValue *v, int axis);
int tile_root_axis(const TileKernel *k,
                   int axis); // the axis whose tiles it has: itself, or that it is beside
bool tile_makes_shared(const TileOp *op); // computes what lies in shared memory
const TileValue *
tile_source(const TileValue *v);    // in shared memory what lies beside a value is the value itself
bool tile_scans(const TileOp *map); // some result is a scan
bool tile_goes_by_element(const TileOp *op, int axis); // an access, along the axis (-1: any)
// Of a coordinate that is said for each place, where the tensor's rows follow each other as the axis' places do: the first one; NULL: they do not.
const Ex *tile_run_from(ExPool *x, const TileOp *op, int dim);
bool tile_goes_by_runs(const TileProgram *p,
                       const TileOp *op); // all that are said for each place are such
// A fill that no tensor copy makes: the threads of its role copy pieces of rows.
bool tile_fills_by_threads(const TileProgram *p, const TileKernel *k, const TileOp *op);
// Whether a tile that copies fill lies in bands (ir/tile_shared.h): each of a kernel's steps whose scores are apart.
bool tile_in_bands(const TileKernel *k, const TileValue *v);
// Whether points of the grid are the tiles that there are, of all sequences: those of a sequence follow each other.
bool tile_counts_own(const TileKernel *k);
int tile_columns(const TileProgram *p,
                 const TileOp *op);   // that an access sees of the last dimension, a constant
bool tile_scatters(const TileOp *op); // some index is said for each element
int tile_contracted_axis(const TileOp *mma); // in both operands and not in the result
// Whether the same numbers may lie along another axis: beside it, or whole as it is, with no more elements: its first ones.
bool tile_lies_beside(const TileKernel *k, int from, int to);
int tile_beside_from(const TileOp *beside);       // the axis that the operand has alone; -1
int tile_beside_to(const TileOp *beside);         // and that the result has in its place; -1
bool tile_in_grid(const TileKernel *k, int axis); // whether the grid tiles the axis
// Whether the body adds up, or reduces otherwise, what is along the axis: then its padding counts.
bool tile_sums_over(const TileKernel *k, int axis);
bool tile_is_own(const TileProgram *p, const Ex *e); // uses a sequence's own sizes
int tile_grid_rows(const TileKernel *k);             // the first dimension of tiles; -1: none
int tile_grid_axis(const TileKernel *k);             // the axis of those; -1: none
// A tile with a number for each query and key. Each thread reads those of its scores from shared memory; a drop waits for
// all threads of a warpgroup.
bool tile_is_of_scores(const TileKernel *k, const TileValue *v);
// Of tiles of rows, or of heads: how many a cluster has, 1 without clusters. Points along a dimension of the grid, for clusters as
// many as they have, rounded up.
const Ex *tile_of_cluster(ExPool *x, const TileKernel *k, bool rows);
const Ex *tile_points(ExPool *x, const TileKernel *k, int dim);
// Whether an own size is the same for all sequences: over several, or made of such ones. Those are known before the others.
bool tile_is_common(const TileProgram *p, int size);
bool tile_has_lanes(const TileKernel *k); // of one warp, numbers in its threads (codegen/lanes.c)
Layout tile_layout(const TileKernel *k, const TileValue *v); // of the value's own axes
// The one of a kernel's layouts in which an op's values in registers and its axes lie, without copies
// if there is such a one; -1: none.
int tile_common_layout(const TileKernel *k, const TileOp *op, const uint8_t *axes, int naxes);
// The elements of a tile along an axis: its extent, or the axis' constant size; 0: the run-time
// size, one tile is the whole axis.
int tile_extent(const TileAxis *a);
// The next op after `op` (NULL: the first) in reading order, bodies of loops included: loops before
// their bodies.
TileOp *tile_next(const TileBlock *root, const TileOp *op);
bool tile_has(const TileBlock *b, TileKind kind); // within loops, too
int tile_uses(const TileOp *op,
              const TileValue *v); // how often op, or one within it, has it as an operand
bool tile_stores_to(const TileKernel *k, int tensor);
// Puts `to` where `from` is used, in a block and all within.
void tile_replace(TileBlock *b, const TileValue *from, TileValue *to);
// Rewrites the op's own expressions (not those of a loop's body).
void tile_map_exprs(TileOp *op, const Ex *(*map)(void *ctx, const Ex *e), void *ctx);
// Of the nodes of a map's results.
bool tile_map_any(const TileOp *map, bool (*is)(void *ctx, const Ex *e), void *ctx);
// Deep copy of a loop (or any op) with its body, not yet in a block; uses of outer values stay,
// inner ones are fresh. map(ctx, e) rewrites every expression on the way (NULL: keep).
TileOp *tile_clone(TileProgram *p, TileKernel *k, const TileOp *op,
                   const Ex *(*map)(void *ctx, const Ex *e), void *ctx);
TileKernel *tile_copy_kernel(TileProgram *to, const TileKernel *from);
TileProgram *tile_copy(Arena *a, const TileProgram *p); // an independent copy, in the same pool
const TileOpInfo *tile_op_info(TileKind k);
const char *tile_kind_name(TileKind k);
const char *tile_purpose_name(TilePurpose purpose);
const char *tile_phase_name(TilePhase phase);
// Tensor roles (tile_roles.c).
const TensorTraits *tensor_traits(TensorRole role);
bool tile_is_backward(const TileProgram *p);
unsigned tile_use(const TileProgram *p, TensorRole role);     // USE_*, by a program of this phase
bool tile_is_read(const TileProgram *p, const TileTensor *t); // by the program's kernels
bool tile_is_written(const TileProgram *p, const TileTensor *t); // likewise
bool tile_is_result(const TileProgram *p, const TileTensor *t);  // written, and the caller's
bool tensor_may_be_absent(TensorRole role);                      // it is read, and 0 then
bool tile_is_matrix(const TileTensor *t); // rows that are moved 16 bytes at a time
bool tile_is_operand(const TileProgram *p, const TileTensor *t); // a matrix that is read
// Whether expressions may read it at places of their own, as an input: an i32 workspace; in a backward numbers of rows, too.
bool tile_may_index(const TileProgram *p, const TileTensor *t);
bool tile_is_index(const TileTensor *t); // says where a layout's rows lie
// The launch makes it 0 first: some kernel adds to it, or it is the gradient of an input that none depends on.
bool tile_is_zeroed(const TileProgram *p, int tensor);
const char *tile_mark_name(TileMark m);
bool tile_is_marked(const TileOp *map, TileMark m);
// The tile in registers that a map multiplies by a number for each row, and does nothing else; NULL: it is no such map.
const TileValue *tile_rescaled(const TileOp *map, const TileValue **factor);
// The pipe whose stage a value is a view of; NULL: none.
TileValue *tile_pipe_of(const TileValue *v);
const TileOp *tile_role_of(const TileOp *op); // the role that an op stands in; NULL: none
// Of an assigned body: the stage of what is computed, the earliest. What is loaded may have an earlier one.
int tile_stage(const TileBlock *b);

// How an expression of a map varies over two of its axes (diagonal.c): not at all; with the
// difference of the two positions only; or otherwise.
typedef enum TileAlong { ALONG_ALL, ALONG_DIAGONALS, ALONG_NONE } TileAlong;
// Of n expressions, arguments before their users (ex_order).
void tile_along(Arena *a, const TileOp *map, int row, int col, const Ex *const *order, int n,
                TileAlong *out);
// Whether all indices of a sum that is scattered over two axes are the same along their diagonals.
bool tile_scatters_diagonals(const TileOp *store);

// Loads of a map (tile_reads.c): whether it is one whose last index is the position along an axis;
// whether those before it may be others from place to place along an axis.
bool tile_ends_along(const Ex *e, int axis);
bool tile_lead_varies(const TileOp *map, const Ex *load, int axis);
// A load, or some load, has a number for each place of the map along `axis`, and those of a row stand side by side.
bool tile_reads_row(const TileProgram *p, const TileKernel *k, const TileOp *map, const Ex *load,
                    int axis);
bool tile_reads_rows(const TileProgram *p, const TileKernel *k, const TileOp *map, int axis);
// Numbers along one axis, which is in registers and lanes alone: a warp's lanes can look each up once, as many at a time as they are.
bool tile_hands_around(const TileKernel *k, const TileOp *map);

// ---- text, checks, meaning
void tile_print(Text *out, const TileProgram *p); // tile_text.c
// The same, and what each line says: the operation that begins on it; an expression of it alone (the mask,
// or a result of a map that is told on several lines). Both may be NULL. The text ends soon after `most` bytes (0: it is whole).
typedef struct TileLine {
    const TileOp *op;
    const Ex *e;
} TileLine;
typedef VEC(TileLine) TileLines; // one for each line, in the text's arena
void tile_print_lines(Text *out, const TileProgram *p, size_t most, TileLines *lines);
// Names for expressions of a program: of an op's map body (PARAM), of a kernel (POS, TILE), of the
// program (sizes, inputs). k and op may be NULL.
ExNames tile_names(Arena *a, const TileProgram *p, const TileKernel *k, const TileOp *op);
TileProgram *tile_parse(Arena *a, const char *text, size_t n,
                        Diags *diags); // tile_parse.c; NULL with errors in diags
// False and an error for the first thing that does not hold: types, axes, dominance, loops, buffers
// written before they are read, copies waited for before a view is used.
bool tile_verify(const TileProgram *p, Diags *diags); // tile_verify.c

// The interpreter: slow and obviously right; the oracle that every pass is checked against. Tensors
// are dense row-major doubles; what a kernel does not write stays as it was. `round`: f32
// arithmetic and rounding to narrow dtypes; off: float64.
typedef struct TileData {
    double **tensor;      // one per tensor of the program; WORK tensors too
    const int32_t *size;  // one per size; derived ones are computed by tile_eval
    const double *scalar; // one per input; used for rank 0
    int workers;
} TileData;
// False with an error: a step outside the IR's rules at run time (a view read before its copy was
// waited for, an index along a tile out of range).
bool tile_eval(const TileProgram *p, const TileData *data, bool round, Diags *diags); // tile_eval.c

#endif
