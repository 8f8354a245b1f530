// passes.h: the passes over the tile IR, in the order of the pipeline. passes.def has a row for each. Each
// keeps tile_verify true and the interpreter's result as it was.
#ifndef PASSES_PASSES_H
#define PASSES_PASSES_H

#include "ir/backward.h"
#include "ir/tile.h"
#include "passes/derive/chunk.h"
#include "passes/derive/derive.h"
#include "passes/schedule/shapes.h"
#include "passes/simplify/simplify.h"

typedef enum PassId {
#define PASS(name, ...) PASS_##name,
#include "passes/passes.def"
#undef PASS
    PASS_COUNT
} PassId;

typedef enum PassWants { // which program
    PASS_STREAM,         // none: it makes the first one
    PASS_ALGORITHM,      // one that is not scheduled
    PASS_TILED,          // one that is not scheduled, whose axes have extents
    PASS_SCHEDULED,      // any
} PassWants;

typedef struct Pass {
    const char *name, *what;
    PassWants wants;
} Pass;

typedef struct PassOptions {
    Target target;   // data of the target to schedule for
    Dtype dtype;     // of q, k, v, o
    bool tf32;       // products of f32 by tf32, where the target has that
    Dtype kv;        // of k and v; 0: as q
    TilePhase phase; // fwd, or one of parts or pieces, which have programs of their own
    bool split;      // add the form for few queries: packed rows, their keys split between blocks
    int few;         // with it, queries of launches that always take it
    bool share;      // with it, the main kernel's tiles may be split as well
    const Backward *saves; // the stream is its forward, and stores what it needs; NULL: it does not
    BatchLayout batch;     // where rows lie
    int page;              // BATCH_PAGED: keys of a page; 0: any
    bool deterministic;    // of the backward: dq, dk and dv are added up in one order
    bool
        by_positions; // of a recurrence's backward: the gradients of a chunk have its positions as rows; else channels
    bool invariant; // of a batch: what a sequence gives follows from it alone, bit for bit
    // Inputs with a number for each query and key may be copied (dense.c): launches that cannot have that take other kernels.
    bool dense;
    ShapeClass shape;     // which launches the schedule is for
    const int32_t *sizes; // of a launch it is for (SIZE_FREE); NULL: what the class is like
    Knobs schedule;       // choices in place of the target's
    // Called after each pass; NULL: nobody watches.
    void (*seen)(void *ctx, const Pass *pass, const TileProgram *p);
    void *seen_ctx;
} PassOptions;

const Pass *pass_get(PassId id);
bool pass_find(const char *name, PassId *out);
// Runs one pass, and shows what it leaves to who watches. False: an error is in diags.
bool pass_run(TileProgram *p, PassId id, const PassOptions *o, Diags *diags);

// Stream -> tile program, algorithm level: one sweep after the other, one loop each. passes/tile/build.c
TileProgram *pass_build(Arena *a, const Stream *s, const PassOptions *o);
// The same of a recurrence's chunked form.  passes/tile/recur.c
// few: up to how many positions have kernels of their own; 0: none.
TileProgram *pass_build_recurrence(Arena *a, const Chunk *c, const PassOptions *o, int few);
// And of its derived backward, of phase bwd. NULL with an error in diags where the gradient of an input has no kernel. passes/tile/recur_back.c
TileProgram *pass_build_recurrence_backward(Arena *a, const ChunkBack *back, const PassOptions *o,
                                            Diags *diags);
// The same backward, in which pairs compute nothing that is of a row alone. passes/tile/row_numbers.c
const Backward *pass_row_numbers(Arena *a, const Backward *back);
// A derived backward -> tile program of phase bwd, algorithm level. nest: the kernel over tiles of keys adds to dq, in any order;
// otherwise dq has a kernel of its own. NULL with an error in diags where the gradient of an input has no kernel. passes/tile/backward.c
TileProgram *pass_build_backward(Arena *a, const Backward *back, const PassOptions *o, bool nest,
                                 Diags *diags);
// Simplifies every expression, removes what nothing uses. passes/tile/tidy.c
void pass_tidy(TileProgram *p);
void pass_remove_unused(TileProgram *p, TileKernel *k); // alone
// Moves what does not depend on an axis (or on the loop) out of maps over it: per-row, per-column,
// per-tile values.  passes/tile/hoist.c
void pass_hoist(TileProgram *p);
// Joins maps over the same axes into one, so that a tile is walked once. passes/tile/fuse.c
void pass_fuse(TileProgram *p);
// Chooses tile extents for the target and binds them; false with an error where nothing fits.
// passes/schedule/schedule.c
bool pass_tile(TileProgram *p, const PassOptions *o, Diags *diags);
// Whether shifts stay in full tiles, as soon as it is known.   passes/schedule/shifts.c
bool pass_shifts(TileProgram *p, const PassOptions *o, Diags *diags);
// Bounds of key loops, and their split by tile class, from the mask: skipped tiles are never
// visited, full ones test nothing.
void pass_classify(TileProgram *p); // passes/mask/classify.c
// In loops over full tiles, choices that can go only one way are taken. passes/mask/settle.c
void pass_settle(TileProgram *p);
// The first half of a GPU's schedule alone: which role does what, and when. False with an error where a
// target has no places. pass_schedule goes on from there. passes/schedule/schedule.c
bool pass_assign(TileProgram *p, Diags *diags);
// Homes, copies, barriers: what the target runs. passes/schedule/
bool pass_schedule(TileProgram *p, const PassOptions *o, Diags *diags);

// The order in which the pipeline runs them on what pass_build makes. How many they are.   pipeline.c
int pass_order(const PassId **out);
// All of them.
TileProgram *pass_pipeline(Arena *a, const Stream *s, const PassOptions *o, Diags *diags);
// The rest of them, for a program at the algorithm level (pass_algorithm); false with an error in diags.
bool pass_finish(TileProgram *p, const PassOptions *o, Diags *diags);
// A recurrence's algorithm, and the same as the target runs it; NULL with an error where it has no kernels of them.
TileProgram *pass_recurrence_algorithm(Arena *a, const Chunk *c, const PassOptions *o,
                                       Diags *diags);
TileProgram *pass_recurrence(Arena *a, const Chunk *c, const PassOptions *o, Diags *diags);
TileProgram *pass_recurrence_backward_algorithm(Arena *a, const ChunkBack *back,
                                                const PassOptions *o, Diags *diags);
TileProgram *pass_recurrence_backward(Arena *a, const ChunkBack *back, const PassOptions *o,
                                      Diags *diags);
// The same of a derived backward, whose forward is made with `saves`; NULL with an error in diags.
TileProgram *pass_backward_algorithm(Arena *a, const Backward *back, const PassOptions *o,
                                     Diags *diags);
TileProgram *pass_backward_program(Arena *a, const Backward *back, const PassOptions *o,
                                   Diags *diags);
// The same for launches of all classes: one program, with kernels for each class whose schedule is
// another. schedules: NULL, or by class, in place of o->schedule where they say something.
TileProgram *pass_program(Arena *a, const Stream *s, const PassOptions *o,
                          const Knobs schedules[SHAPE_COUNT], Diags *diags);
// Schedules of a program's main kernel that fit the target, with the cycles that a launch
// is expected to take: the one that would be chosen first, then by cycles.   passes/schedule/candidates.c
typedef struct Candidate {
    Knobs knobs;
    double cycles; // of the device, or of a core
} Candidate;
typedef VEC(Candidate) Candidates;
Candidates pass_candidates(Arena *a, const Stream *s, const PassOptions *o);
// Whether a launch of o->sizes runs tiles in parts, by the compiler's own choices: by the kernels of the
// short class then, whatever class its sizes are of. passes/schedule/candidates.c
bool pass_in_parts(const Stream *s, const PassOptions *o);
// What counting prefers clearly to the target's own choice, for a program at the algorithm level;
// none said: nothing.
Knobs pass_counted(Arena *a, TileProgram *p, const PassOptions *o);
// Those that differ from one in a choice that counting says nothing of. None of them takes parts away
// from all launches of a class, or says how many there are, unless the current launch has some.
Candidates pass_neighbours(Arena *a, const Stream *s, const PassOptions *o, const Knobs *knobs);
// Whether there is a tile program for it at all: a head's columns are one tile, whose extent
// tile_verify bounds. False with an error otherwise.
enum { PASS_MAX_DIM = 1 << 16 };
enum { PASS_MAX_WIDTHS = 3 }; // of rows that dots and norms are of, beside D
bool pass_accepts(const RowProgram *row, Diags *diags);
// Whether a pair's score is made of that row; the widths other than D of those rows, and how many they are.   passes/tile/build.c
bool pass_uses_row(const RowProgram *row, RowSide side, int of);
int pass_widths(const RowProgram *row, int *width);
// Whether it can be had in a layout.   passes/tile/sequences.c
bool pass_accepts_layout(const RowProgram *row, BatchLayout batch, Diags *diags);
bool pass_accepts_recurrence_layout(const RecProgram *rec, BatchLayout batch, Diags *diags);
// Whether what a range of its keys leaves can be told and merged.   passes/tile/state.c
bool pass_accepts_parts(const Stream *s, bool states, Diags *diags); // states: they are merged
bool pass_accepts_parts_of_layout(const RowProgram *row, BatchLayout batch, Diags *diags);
// The algorithm level only (--emit=tile), of what pass_accepts.
TileProgram *pass_algorithm(Arena *a, const Stream *s, const PassOptions *o, Diags *diags);

// What mask analysis knows of a rectangle of tiles: over queries [q0, q1] and keys [k0, k1] (all
// inclusive, expressions), whether some / every pair takes part. Conservative: may is never false
// wrongly, must never true wrongly.  passes/mask/mask.c
typedef struct MaskBounds {
    const Ex *may, *must;
} MaskBounds;
MaskBounds pass_mask_bounds(ExPool *p, const Ex *mask, int q_axis, int k_axis, const Ex *q0,
                            const Ex *q1, const Ex *k0, const Ex *k1);
// The terms of a mask for which no tile of `rows` queries and `keys` keys is known to have no pair, or all,
// as the source has them.  passes/mask/mask_terms.c
typedef VEC(const Ex *) MaskTerms;
MaskTerms pass_blind_terms(const Stream *s, int rows, int keys);

#endif
