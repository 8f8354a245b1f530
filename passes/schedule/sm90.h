// sm90.h: what the parts of a Hopper schedule share: its shape (sm90.c), and which role does what when
// (sm90_assign.c, sm90_roles.c).
#ifndef PASSES_SCHEDULE_SM90_H
#define PASSES_SCHEDULE_SM90_H

#include "passes/schedule/schedule.h"
#include "passes/tile/rewrite.h"

typedef struct Sm90Role {
    const char *name;
    int warpgroups, registers; // of a thread
} Sm90Role;

typedef struct Sm90 {
    TileProgram *p;
    TileKernel *k;
    ExPool *x;
    Knobs shape; // how it runs: a row of the table in sm90.c, fitted to it, or what was asked for
    // Of sm90_roles.c:
    Sm90Role role[3]; // those that compute, by level
    int nroles;
    int gives;   // stages of gradients of scores, which dq's product reads in shared memory
    int columns; // of dq that its role has registers for
    bool tight;  // registers are hardly more than the sums
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
// Places and roles of what is no sweep whose products overlap; of `queries`, NULL: none, so many columns stay in registers. sm90_roles.c
void sm90_assign_roles(Sm90 *s, TileOp *queries, int held);
// Whether weights and their gradients may have roles of their own; whether a result of a map should stand before the others.
bool sm90_may_part(const TileProgram *p, const TileKernel *k);
bool sm90_goes_first(ExPool *x, const TileOp *map, int result);
int sm90_stages_of_numbers(Knobs s); // of rows, which scores apart hand over
// Whether there are registers for all threads, of whom each warpgroup's have `own` together beside the producer's. False: an error is in
// diags.
bool sm90_has_registers(Knobs s, int own, Diags *diags);
// Of a thread of the fourth warpgroup of a block, whose producer and `warpgroups` others have theirs.
int sm90_left_registers(Knobs s, int warpgroups);
// Gradients in a nest: a block has a tile of keys, and queries pass, head by head. sm90_nest.c
bool sm90_is_nest(const TileProgram *p, const TileKernel *k);
bool sm90_bind_nest(TileProgram *p, TileKernel *k, const PassOptions *o,
                    Diags *diags); // its extents
void sm90_assign_nest(Sm90 *s);
bool sm90_scatters(
    const TileOp *op);        // to a table of distances: each warp adds up its own diagonals
void sm90_add_roles(Sm90 *s); // once all is placed
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
// Of a kernel in roles: outputs leave through a shared buffer, where there is room for one; what is added to memory, too. sm90_stores.c
void sm90_stores(Sm90 *s);
void sm90_sum_through(Sm90 *s);

#endif
