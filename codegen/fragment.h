// fragment.h: values in the registers of a GPU's threads, by their layouts (ir/layout.h).
//
// The number of an element along an axis is a sum: what the thread's lane and warp say of it, which
// is computed once, and what the register says, which is a constant. `part` is that constant, by
// axis: it names a register of every value whose layout agrees, and of a value that lacks an axis
// the one that the elements along it share.
#ifndef CODEGEN_FRAGMENT_H
#define CODEGEN_FRAGMENT_H

#include "cg.h"

typedef struct CgFragment { // of a value
    Layout is;
    int registers; // of a thread
    int each;      // elements in one: 2 where they are narrow and side by side along columns
} CgFragment;

// Of a map's result that goes on to shared memory: where its map makes it.
const CgFragment *cg_fragment(Cg *cg, const TileValue *v);
int cg_slot(const CgFragment *f, const int *part); // the register
CgValue *cg_make(Cg *cg, const TileValue *v);      // with room for its registers
// Where this thread is: what its lane and warp say, for every layout of the kernel. late: what only
// the lane says is multiplied by its step where it is used, so that no register holds it meanwhile.
void cg_place_thread(Cg *cg, Val lane, Val warp, bool late);
// i32: of an element's number along an axis, in one of the kernel's layouts.
Val cg_thread_part(Cg *cg, int layout, int axis);

// ---- maps
typedef struct CgSpace { // the elements of a map that a thread makes
    const TileOp *op;
    int layout;
    Layout is; // of the map's axes
    int n;
    const int *order;        // their registers, in the order in which they are made
    int part[TILE_MAX_AXES]; // of the current one
} CgSpace;

// slow: the axis along which the map comes back last to the next of an instruction's tiles.
CgSpace cg_space(Cg *cg, const TileOp *map, int slow);
void cg_space_at(CgSpace *s, int i);
// A result without one of the map's axes is made once, not for every element along it.
bool cg_is_made(const CgSpace *s, int result);
Val cg_space_position(Cg *cg, const CgSpace *s, int axis); // in the tensor
// What the elements past the size of a padded axis must not add to.
Val cg_masked(Cg *cg, const CgSpace *s, const TileResult *out, Val v);
// Of one register: over the lanes that share what is reduced.
Val cg_across(Cg *cg, const Layout *l, int axis, ExOp reduce, Val v,
              Val (*exchange)(Cg *cg, Val v, int mask));

#endif
