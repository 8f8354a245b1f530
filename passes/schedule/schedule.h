// schedule.h: the two questions that every target answers for itself; pass_tile and pass_schedule
// ask by target.
//
// pass_tile_*: which tile extents?
//
// Before: algorithm level; simplified, hoisted, fused, verified. Axes have extent 0 (but for the
// parts of a split row, S, whose tiles are one part). There is one loop over N for each sweep, with
// SYM_MASK in it, over one tile, which is the whole axis.
// Work: looks at the kernels (D, Dv, dtype, what is live in the loop) and calls pass_bind once for
// every axis of every kernel that has no extent yet. May set kernel->schedule; nothing else
// changes. After: every axis has an extent of at least 1 (a whole axis: its size, padded as the
// target's matrix instruction needs). False: an error is in diags, and the program is not used any
// more.
//
// pass_schedule_*: how does the target run a kernel of it?
//
// Before: extents are bound. Each loop over N is two: a CLASS_PARTIAL loop, whose SYM_MASK is
// expanded to the kernel's mask, then a CLASS_FULL loop without any mask (missing where no tile can
// be full). The full loop begins with the step at which the partial one ends, so that one sequence
// of tiles may be prefetched across both. Hoisted, fused, tidied, verified.
// Work: homes, buffers, copies, commits, waits, views, barriers; kernel->schedule. What is computed
// stays.
// After: tile_verify holds, and the interpreter gives what it gave before, up to f32 rounding.
#ifndef PASSES_SCHEDULE_H
#define PASSES_SCHEDULE_H

#include "passes/passes.h"

bool pass_tile_host(TileProgram *p, const PassOptions *o, Diags *diags);      // host.c
bool pass_tile_sm80(TileProgram *p, const PassOptions *o, Diags *diags);      // sm80.c
void pass_schedule_host(TileProgram *p, TileKernel *k, const PassOptions *o); // host.c
void pass_schedule_sm80(TileProgram *p, TileKernel *k, const PassOptions *o); // sm80.c
bool pass_tile_sm90(TileProgram *p, const PassOptions *o, Diags *diags);      // sm90.c
void pass_schedule_sm90(TileProgram *p, TileKernel *k, const PassOptions *o); // sm90.c
// Whether launches of few rows have schedules of their own.  sm90.c
bool pass_knows_few(const PassOptions *o, int d, int dv);
bool pass_tile_amd(TileProgram *p, const PassOptions *o, Diags *diags);      // amd_shape.c
void pass_schedule_amd(TileProgram *p, TileKernel *k, const PassOptions *o); // amd.c

// Workspace that lies as fragments have it.  passes/tile/blocks.c
void pass_blocks(TileProgram *p);
// Whether to build the form for few queries, and up to how many all launches take it: asked for, and the target has a
// schedule for it.
int pass_few(const PassOptions *o);        // schedule.c
bool pass_same_dots(const PassOptions *o); // of the forward and the backward
// Whether the target has a schedule for all nests of products in a program.
bool pass_has_nest(const TileProgram *p); // schedule.c
// In a kernel: the loop that adds up within another what has no rows of the grid; NULL: none.   schedule.c
const TileOp *pass_nest(const TileKernel *k);
bool pass_shares(const PassOptions *o, int D, int Dv); // schedule.c

// Queries of a launch up to which the form for few is the better one on its own account: on the host it takes them one at a
// time; elsewhere the heads of a group read their keys no oftener than a group.
enum { HOST_FEW = 8, FEW_QUERIES = 16 };

// The axis of the columns of v and o; -1: the kernel has none. How many columns a tile has.
int pass_value_axis(const TileProgram *p, const TileKernel *k); // passes/tile/columns.c
int pass_value_columns(const TileProgram *p, const TileKernel *k);
int pass_most_columns(const Target *t); // of v in a tile of a GPU
// Where v has more than `most` columns, the grid goes over blocks of them, of a multiple of `unit`
// columns. False: an error is in diags.
bool pass_tile_columns(TileProgram *p, TileKernel *k, int most, int unit, Diags *diags);

// Places of a kernel's operations, and roles without bodies.
void pass_assign_sm80(TileProgram *p, TileKernel *k); // sm80.c
void pass_assign_sm90(TileProgram *p, TileKernel *k); // sm90.c
void pass_assign_amd(TileProgram *p, TileKernel *k);  // amd.c
// Where all of a block's threads copy and compute: one role. `late`: in loops that carry nothing but an
// accumulator, tiles are waited for as late as they are needed; weights that are made of scores alone then
// stand in one piece with the product before them. assign.c
void pass_assign_all(TileProgram *p, TileKernel *k, bool late);
// Loops stand together: a map between two of them that needs neither goes before the first.
void pass_gather_loops(TileKernel *k);

// Whether a tile goes through shared memory there; stages of the buffer for those of a tensor: two where a loop loads
// nothing else.   assign.c
bool pass_is_operand(const TileProgram *p, const TileOp *load);
bool pass_is_vector(const TileProgram *p,
                    const TileOp *load); // of a nest: on sm_80 it goes there, too
int pass_stages(const TileProgram *p, const TileKernel *k, int tensor);
// Numbers of positions that maps read of inputs are loaded as tiles are.   vectors.c
void pass_load_vectors(TileProgram *p, TileKernel *k, int blocks);

// Sums of rows that may stay in parts are marked, in a kernel whose values have homes.   passes/tile/parts.c
void pass_mark_parts(TileKernel *k);
void pass_part_sums(TileProgram *p, TileKernel *k); // of loops of a kernel without roles

// Weights that need not be looked at for NaN when they are rounded to bf16 are marked, in a kernel
// whose values have homes; the sum that tells of NaN is put where it is needed.   passes/tile/unguard.c
void pass_unguard(TileProgram *p, TileKernel *k);

// Where values in registers lie.   layout.c
void pass_layouts(TileProgram *p);
// Words of a thread for a tile with such axes, of a kernel with extents and warps.
int pass_words(const TileProgram *p, const TileKernel *k, const uint8_t *axes, int rank, Dtype t);

// How maps are made, where a scheduled program for NVIDIA devices has more than one way.   passes/tile/marks.c
void pass_mark(TileProgram *p);
// Of scattered sums those whose indices are the same along diagonals. passes/tile/marks.c
void pass_mark_sums(TileProgram *p);

// A bool over POS of the grid's axis: of the 64 rows that begin there none sees more of a tile of keys
// than its first ones. NULL: not known, or never.   narrow.c
const Ex *pass_sees_few(TileProgram *p, const TileKernel *k, int keys, const Ex *tile, int first);

// What the axes of a kernel get that have no extent yet.
typedef struct Extents {
    int rows, step;     // of the grid's tiles, of a loop's
    int pad, value_pad; // whole axes are a multiple of so many elements; that of v's columns,
    int columns;        // of which a tile has at most so many
} Extents;
int pass_extent(const TileProgram *p, const TileKernel *k, int axis,
                const Extents *e); // schedule.c
void pass_bind_all(TileProgram *p, TileKernel *k, const Extents *e);

// Gives an axis its extent: grid counts over the axis become ceil(size / extent), loops over it run
// over as many tiles.   schedule.c
void pass_go_over_all(
    TileProgram *p, TileKernel *k, int dimension, const Ex *together, const Ex *points,
    const Ex *ends); // a dimension over the tiles of all sequences (TileGrid.batch)
void pass_bind(TileProgram *p, TileKernel *k, int axis, int extent);

// Whether a combination's tile is a row for each of eight lanes, on NVIDIA GPUs. Where it begins early (codegen/nvptx/nvptx.c) its blocks wait
// on the first multiprocessors that have room, and the fewer registers they have, the fewer these are: there it has a matrix product's.
enum { COMBINED_ROWS = 8 };
bool pass_combines_by_rows(const TileProgram *p, const TileKernel *k);
enum { PASS_FEW_POSITIONS = 16 }; // of a recurrence, on GPUs: one chunk of the shortest
// together.c: gives homes in shared memory to what all threads make together.
void pass_together(const TileProgram *p, TileKernel *k);
bool pass_is_chunk(const TileKernel *k); // of a recurrence
// In a kernel of a chunk's gradients: whether a value is read in shared memory; what registers hold, and is, is put there.
bool pass_goes_through(const TileProgram *p, const TileKernel *k, const TileValue *v);
void pass_put_through(TileProgram *p, TileKernel *k);
// steps.c: of a recurrence that goes position after position: the columns of a block, and its warps. All values are in registers.
int pass_steps(const TileProgram *p, TileKernel *k, int *warps);
int pass_state_lanes(int channels); // the lanes that a column of the state is spread over
// stateless.c: what needs nothing that a loop carries comes first.
void pass_stateless_first(TileProgram *p, TileKernel *k);
void sm90_products_early(TileProgram *p, TileKernel *k); // once it is expanded
bool pass_makes_together(const TileProgram *p,
                         const TileKernel *k); // whether there is anything of the kind
// Where something is made together, tiles of a loop have half as many places as often as what lies in shared memory has no
// room there, but no fewer than `least`. No value has a home yet, nor has one then.
void pass_fit_together(const TileProgram *p, TileKernel *k, Extents *e, Knobs s, int warps,
                       int least);

#endif
