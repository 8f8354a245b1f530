// rewrite.h: what the passes share for taking kernels apart and putting them together.
#ifndef PASSES_REWRITE_H
#define PASSES_REWRITE_H

#include "ir/tile.h"

// A set of a kernel's axes, bit a for axis a.
typedef uint32_t AxisSet;
AxisSet pass_axes_of(const TileValue *v);
AxisSet pass_map_axes(const TileOp *map);
// Axes along which an expression of a map varies from element to element: by itself (POS, SYM_MASK)
// or through operands.
AxisSet pass_expr_axes(const TileKernel *k, const TileOp *map, const Ex *e);

// Of a map that passes make: each is a row of registers or of scratch memory while the map runs.
enum { PASS_MAX_OPERANDS = 24 };

// ---- building maps
// An operation, a map, or a map that gives a value once more, before another operation.
TileOp *pass_op_before(TileProgram *p, TileOp *at, TileKind kind);
TileOp *pass_map_before(TileProgram *p, TileOp *at, AxisSet axes);
TileValue *pass_same_before(TileProgram *p, TileKernel *k, TileOp *at, TileValue *v);
TileOp *pass_map(TileProgram *p, TileKernel *k, TileBlock *b, AxisSet axes,
                 Span span); // b NULL: in no block yet
// Operand `v` of a map, as an expression; added to its arguments when it is new.
const Ex *pass_operand(TileProgram *p, TileOp *map, TileValue *v);
// One more result: a value for each element, or a reduction (ROWMAX, ROWMIN, ROWSUM; EX_CONST:
// none) over one of the map's axes.
TileValue *pass_out(TileProgram *p, TileKernel *k, TileOp *map, const char *name, Dtype t,
                    const Ex *body, ExOp reduce, int reduce_axis);
// A map's expression in the terms of another map: operands of `from` become operands of `to`.
const Ex *pass_transplant(TileProgram *p, TileOp *to, const TileOp *from, const Ex *e);
// Operands that no body uses are dropped, doubled ones joined; PARAMs renumbered.
void pass_compact(TileProgram *p, TileOp *map);
// Removes result `i` of a map or loop (for a loop also what carries it); nothing may use it.
void pass_drop_result(TileOp *op, int i);

// ---- sweeps that several blocks share (split.c)
enum {
    PASS_WHOLE_BITS = 10,
    PASS_WHOLE = 1 << PASS_WHOLE_BITS, // what a part's share is of
};
// The sizes of a program that is split (TileSplit), which is told what they are when the tiles are known; share:
// its kernel for many queries may be over parts, too.
void pass_add_split(TileProgram *p, bool share);
// Whether the rows of a launch are split as those of few queries are.
const Ex *pass_few_are_split(TileProgram *p);
// The grid's axis over parts, whose number is derived at launch; -1: the kernel is not split.
int pass_split_axis(const TileProgram *p, const TileKernel *k);
int pass_split_size(const TileProgram *p, const TileKernel *k); // that number; -1
// Whether a plan is for launches whose tiles are in parts, of a kernel that also runs without.
bool pass_is_shared(const TileProgram *p, const TilePlan *plan);
// A loop's from and to: this block's share of `total` steps; all of them where the kernel is not
// split.
void pass_share_steps(TileProgram *p, TileKernel *k, TileOp *loop, const Ex *total);
// How many parts, once extents are bound.
void pass_set_splits(TileProgram *p);
void pass_name_rows(TileProgram *p);
// Of a batch whose long sequences have kernel k, beside that of few: which of its blocks take tiles.
void pass_share_blocks(TileProgram *p, TileKernel *k);
void pass_set_segments(TileProgram *p); // recur_segments.c
// And of a kernel that also runs without, by the steps of its sweep.
void pass_set_parts(TileProgram *p, const TileKernel *k, const TileOp *loop, const Ex *total);
// Where nothing was said of them (masks that read inputs, clusters, long bodies), the kernel for few
// queries takes every launch whose rows it would split.
void pass_free_splits(TileProgram *p);
// The order in which tiles are taken.   passes/schedule/sections.c
void pass_sections(TileProgram *p);
void pass_meanwhile(TileProgram *p); // passes/schedule/meanwhile.c

// An expression of what sequences have of their own, as a launch can tell it: of the longest one (sequences.c).
const Ex *pass_at_launch(const TileProgram *p, const Ex *e);
const Ex *pass_all_queries(const TileProgram *p);
const Ex *pass_all_keys(const TileProgram *p); // as many as there may be, of all sequences together

// ---- looking
bool pass_before(const TileOp *a, const TileOp *b); // both of one block, a != b
// The op of block `b` that is `op` or holds it; NULL when op is not within b.
TileOp *pass_within(const TileBlock *b, TileOp *op);
// Whether an op, or one within it, uses a result of `def`.
bool pass_uses_result(const TileOp *op, const TileOp *def);
bool pass_reads(const TileOp *op, const TileOp *def); // an operand of op's own is one
void pass_move_before(TileOp *where, TileOp *op);

// ---- what schedules share
// A size that a launch computes, one for each definition: called `name`, with a _ behind for as long
// as there is another of that name.
int pass_size(TileProgram *p, const char *name, const Ex *def);
// A sequence's own, or, with `over`, one of several (TileSize.over).
int pass_own_size(TileProgram *p, const char *name, ExOp over, const Ex *among, const Ex *def);
int pass_padded(int n, int to); // the next multiple of `to`
Dtype pass_dtype_of(ExType t);
// A vector made of a tile in shared memory, whose rows are not the grid's: all threads make it
// together, and all read it.
// Whether rows of the gradients of a recurrence's chunk are its positions.
bool pass_by_positions(const TileKernel *k);
// Whether a map goes through the rows of a tile: it scans, has three axes, or sums over them.
bool pass_goes_through_rows(const TileKernel *k, const TileOp *map);
bool pass_cooperative(const TileKernel *k, const TileOp *map);
void pass_to_shared(TileOp *op); // all of its results
// A value of registers in shared memory: a map before `at` puts it there.
TileValue *pass_put_shared(TileProgram *p, TileKernel *k, TileOp *at, TileValue *v);
void pass_place(TileOp *op, const char *role, int stage, int order);

#endif
