// sm90.h: what the parts of a Hopper schedule share: its shape (sm90.c), and which role does what when
// (sm90_assign.c).
#ifndef PASSES_SCHEDULE_SM90_H
#define PASSES_SCHEDULE_SM90_H

#include "passes/schedule/schedule.h"
#include "passes/tile/rewrite.h"

typedef struct Sm90 {
    TileProgram *p;
    TileKernel *k;
    ExPool *x;
    Knobs shape; // how it runs: a row of the table in sm90.c, fitted to it, or what was asked for
    int gives; // of a nest: stages of gradients of scores, which dq's product reads in shared memory
} Sm90;

// Whether a map of it becomes functions, which are called.
bool sm90_has_long_body(const TileKernel *k);
// Whether some keys within the tensor do not count.
bool sm90_is_masked(const TileKernel *k);
bool sm90_has_dear_mask(const TileKernel *k); // which is read where the pair is, or long
// Columns of v that a tile takes, padded; registers of a consumer's thread for all but long tests.
int sm90_value_columns(const TileProgram *p, const TileKernel *k);
int sm90_registers(const TileProgram *p, const TileKernel *k, Knobs s);
// What a kernel gets, for launches of a class; moving: its shifts follow their extrema.
Knobs sm90_fit(const TileProgram *p, const TileKernel *k, ShapeClass launches, bool moving);
// Of so many keys those of a tile that a row of the mask's grid has a whole number of, where it has one and they are not too few.
int sm90_within_grid_row(const TileKernel *k, int keys);
// Whether a block shares no keys with its neighbour: what they visit differs.
void sm90_pack(TileProgram *p, TileKernel *k); // of a batch: its grid
bool sm90_stays_alone(const TileProgram *p, const TileKernel *k);
// The shape that a kernel was bound to.
Knobs sm90_shape_of(const TileKernel *k);
Sm90 sm90_begin(TileProgram *p, TileKernel *k);
// The choices of a kernel whose shifts cannot stay after all. False with an error where that was asked for.
bool sm90_move_shifts(const TileProgram *p, TileKernel *k, const PassOptions *o, Diags *diags);
// A tile of a tensor that comes through a pipe.
bool sm90_piped(const TileOp *op);
// Places, and roles without bodies: products beside the maps of the next step where `overlap` and the kernel
// is one sweep; by text otherwise.
void sm90_assign(Sm90 *s, bool overlap);
// Of the numbers by which a block's maps multiply sums, the roots, twice.   root.c
void sm90_root_factors(TileProgram *p, TileBlock *b);
bool sm90_overlaps(Sm90 *s); // whether it is such a sweep, of a kernel that is still whole
// Gradients in a nest: a block has a tile of keys, and queries pass, head by head. sm90_nest.c
bool sm90_is_nest(const TileProgram *p, const TileKernel *k);
bool sm90_bind_nest(TileProgram *p, TileKernel *k, const PassOptions *o,
                    Diags *diags); // its extents
void sm90_assign_nest(Sm90 *s);
static inline bool sm90_is_chain(Knobs s) { return s.warpgroups == 3; } // of a nest's
// The same as a chain of roles: whether it may be one, places of a step whose gradients of scores have so many stages, and the
// role of what stands around the steps; NULL: none needs it. sm90_chain.c
bool sm90_can_chain(const TileProgram *p, const TileKernel *k);
int sm90_chain_registers(Knobs s); // of a thread of its last role
int sm90_chain_columns(Knobs s);   // of dq, for which these do: each two are a register
void sm90_place_chain(Sm90 *s, TileBlock *step, int stages);
void sm90_chain_copies(
    Sm90 *s); // once all has its place: several roles make what each of them reads
const char *sm90_chain_role(const TileValue *v);
void sm90_sum_through(Sm90 *s); // of one in roles: what is added to memory goes through a buffer
void sm90_add_role(Sm90 *s, const char *name, int warpgroups, int registers);
// A kernel whose v has too many columns for one warpgroup; its extents. sm90_wide.c
bool sm90_is_wide(const TileProgram *p, const TileKernel *k);
bool sm90_bind_wide(TileProgram *p, TileKernel *k, const PassOptions *o, Diags *diags);
void sm90_lay_beside(TileProgram *p, TileKernel *k); // v that lies in k
void sm90_share_wide(TileProgram *p, TileKernel *k);
void sm90_fly_wide(TileProgram *p, TileKernel *k); // once it is scheduled
// The same where scores have a role of their own. sm90_apart.c
bool sm90_can_apart(const TileProgram *p, const TileKernel *k);
bool sm90_bind_apart(TileProgram *p, TileKernel *k, const PassOptions *o, Diags *diags);
void sm90_add_pairs(TileProgram *p, int kernel); // for launches whose tiles of rows go in pairs
void sm90_assign_apart(Sm90 *s);
void sm90_run_ahead(
    Sm90 *s); // of one whose operations have roles: scores a step ahead. sm90_ahead.c
// Of a kernel in roles: outputs leave through a shared buffer, where there is room for one.
void sm90_stores(Sm90 *s);

#endif
