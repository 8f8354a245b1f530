// tile_verify.h: what the verifier's two files share: tile_verify.c holds the rules of all
// programs, tile_verify_roles.c those of kernels of roles.
#ifndef IR_TILE_VERIFY_H
#define IR_TILE_VERIFY_H

#include "tile.h"

// How far the copies into a buffer have come, in the order of the text.
typedef enum Arrival { NOTHING, COPIED, WAITED, ARRIVED } Arrival;

typedef struct Verify {
    const TileProgram *p;
    Diags *diags;
    Arena *scratch;
    const TileKernel *k;
    const TileOp *op;
    const TileValue **value; // by id: the value, where it may be used; NULL elsewhere
    VEC(int) known;          // the ids of those, in order
    bool *defined;           // by id: somewhere in the kernel
    Arrival *arrival;        // by id of a buffer
    bool bound[TILE_MAX_AXES];
    bool grid_b, grid_h;
    int depth;          // of loops
    int steps;          // of those that have a step
    bool in_full;       // in a loop over full tiles
    bool in_class;      // in one over tiles that are full or partial
    const TileOp *role; // the current one; NULL: none
    bool roles;         // some role stands before
} Verify;

// An error; always false.
bool __attribute__((format(printf, 2, 3))) verify_fail(Verify *V, const char *fmt, ...);

// What an expression may refer to. POS and PARAM have an axis set: where the expression is
// evaluated.
typedef struct Scope {
    const char *what; // "the index", for messages
    unsigned syms;    // bit s: symbol s
    int sizes;        // how many of the sizes are known
    bool loads;       // also scalars
    bool own;         // a sequence's sizes too, and what tells them
    bool anywhere;    // every POS may be used (a mask)
    uint8_t axes[TILE_MAX_RANK + 1];
    int naxes;
    bool step;
    int tile; // an axis whose TILE is known beside those bound; -1: none
} Scope;

Scope verify_scope(const Verify *V, const char *what); // one value for the whole tile
bool verify_ex(Verify *V, const Ex *e, ExType type, const Scope *s);

bool verify_together(Verify *V, const TileGrid *g, const Scope *s);
bool verify_own(Verify *V); // the sizes of sequences   tile_verify_own.c
// What the schedule chose; what it marked for AMD.   tile_verify_schedule.c
bool verify_schedule(Verify *V);
bool verify_matrix(Verify *V);

// ---- the current op
bool verify_access(Verify *V, const TileValue *v); // its tensor and coordinates, for a tile like v
bool verify_columns(
    Verify *V,
    const TileTensor
        *t); // some of them: a constant number, along an axis of as many   tile_verify_columns.c
bool verify_axis(Verify *V);             // that it is over can be gone along
bool verify_body(Verify *V, bool binds); // its body; binds: its axis is known there
bool verify_carry_counts(Verify *V);
bool verify_carry(Verify *V); // what its body yields fits what it carries
bool verify_carried(Verify *V, const TileValue *inside, const TileValue *other, const char *what);
bool verify_same_type(const TileValue *v, const TileValue *w);
bool verify_is_name(const char *s);
bool verify_in(const uint8_t *axes, int n, int axis); // whether it is one of them

bool verify_map(Verify *V);    // tile_verify_map.c
bool verify_beside(Verify *V); // tile_verify_beside.c
bool verify_invert(Verify *V);
bool verify_marks(Verify *V);   // of a map, store or fill (tile_verify_marks.c)
bool verify_layouts(Verify *V); // of a kernel (tile_verify_layout.c)
bool verify_place(Verify *V);   // in a pipeline (tile_verify_places.c)

// ---- tensors in blocks (tile_blocks.c)
bool verify_blocked(Verify *V, const TileTensor *t);
bool verify_blocks(Verify *V, const TileValue *v); // the op's access to a tensor, for a tile like v

// ---- roles (tile_verify_roles.c)
bool verify_behind(Verify *V); // an op that is behind
bool verify_pipe(Verify *V);
bool verify_role(Verify *V);
bool verify_fill(Verify *V);
bool verify_give(Verify *V);
bool verify_take(Verify *V);
bool verify_drop(Verify *V);
bool verify_next(Verify *V);
bool verify_tiles(Verify *V);
bool verify_redo(Verify *V);
bool verify_bound(Verify *V);
bool verify_first(Verify *V); // of AT and MMA: the part that counts for some rows
bool verify_at(Verify *V);

#endif
