// sm90.h: what the two forms of a Hopper schedule share. Both make a kernel of two roles:
// a producer, one thread of which fills pipes of shared tiles, and a consumer of several
// warpgroups, 64 rows of queries each, which takes them.
#ifndef PASSES_SCHEDULE_SM90_H
#define PASSES_SCHEDULE_SM90_H

#include "passes/schedule/schedule.h"
#include "passes/tile/rewrite.h"

// How a kernel runs: a row of the table in sm90.c, fitted to the current kernel, or what
// PassOptions.schedule says.
typedef struct Sm90Shape {
#define KNOB(field, least, most, step, what) int field;
#include "passes/schedule/sm90.def"
#undef KNOB
} Sm90Shape;

typedef struct Sm90 {
    TileProgram *p;
    TileKernel *k;
    ExPool *x;
    Sm90Shape shape;
    TileValue **pipe; // by tensor; NULL: none
    int strips;       // bytes of shared memory that they take
    TileOp *producer, *consumer;
    TileBlock *block; // where ops are appended
} Sm90;

// Whether some keys within the tensor do not count.
bool sm90_is_masked(const TileKernel *k);
// Registers that a consumer's thread needs.
int sm90_registers(const TileProgram *p, const TileKernel *k, Sm90Shape s);
// The shape that a kernel was bound to.
Sm90Shape sm90_shape_of(const TileProgram *p, const TileKernel *k);

// ---- building (sm90.c)
// A tile of a tensor that comes through a pipe.
bool sm90_piped(const TileOp *op);
// Takes the kernel's ops out of its body; makes the pipes of what they load, and the roles.
int sm90_begin(Sm90 *s, TileOp ***ops);
TileOp *sm90_op(Sm90 *s, TileKind kind, Span span); // appended to s->block
void sm90_fill(Sm90 *s, const TileOp *load, const Ex *tile, int axis, const Ex *when, bool behind);
TileValue *sm90_take(Sm90 *s, const TileOp *load, const Ex *when);
TileValue *sm90_view(Sm90 *s, const TileOp *load); // the stage that is held
void sm90_drop(Sm90 *s, TileValue *view, const Ex *when);
void sm90_wait(Sm90 *s, int pending);
void sm90_yield(Sm90 *s, TileValue *const *values, int n);
const Ex *sm90_valid(Sm90 *s);
// Outputs leave through a shared buffer, where there is room for one.
void sm90_stores(Sm90 *s);
// Every value that has no home yet is in registers.
void sm90_homes(Sm90 *s);

// One tile after the other, one product after the other: any kernel. (sm90_plain.c)
void sm90_plain(Sm90 *s);
// The products of one step run beside the exponentials of the next, over all tiles of a block as
// one sequence; false, and nothing done, where the kernel is not one sweep. (sm90_flat.c)
bool sm90_flat(Sm90 *s);
bool sm90_is_flat(Sm90 *s); // whether it will be, of a kernel that is still whole

#endif
