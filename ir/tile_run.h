// tile_run.h: what the interpreter's files share: tile_eval.c knows what an operation computes,
// tile_flow.c which one is next, tile_pairs.c what blocks of a cluster have to do with each other.
#ifndef IR_TILE_RUN_H
#define IR_TILE_RUN_H

#include "tile_eval.h"

enum { RUN_MAX_NEST = 72 }; // more than tile_verify lets loops be nested

typedef struct RunTensor {
    const TileTensor *t;
    double *data;
    int64_t extent[TILE_MAX_DIMS], n;
    uint32_t *writer; // the tile that stored an element in this kernel; 0: none
} RunTensor;

typedef struct RunRead { // of a pipe's stage, by a role
    int reader;          // the last group of products that reads it
    int read_group;      // products issued when a map read it last; -1: none did
    int read_at;         // barriers of the role passed by then
    bool dropped;
} RunRead;

typedef struct RunStage { // of a buffer or a pipe
    double *data;
    bool filled;         // a copy into it began (a pipe: it is not free)
    bool visible;        // and has landed, and a barrier has told everybody (a pipe: it was taken)
    int group;           // which it belongs to
    uint32_t generation; // copies so far
    int read_at;         // barriers passed when it was last read; -1: never
    RunRead by[TILE_MAX_ROLES]; // of a pipe: how each role has read it
} RunStage;

typedef struct RunSlot { // of a value
    double *data;
    int64_t n;
    RunStage *stages;                 // of a buffer or a pipe
    RunStage *view;                   // of a view: the stage
    uint32_t generation;              // and its content
    int fills, takes[TILE_MAX_ROLES]; // of a pipe: so far
    int readers;                      // of a pipe: roles that take from it
    bool given;  // of a pipe: by a role that computes, to threads that each drop for themselves
    bool poison; // made of what was not taken
    int group;   // of an asynchronous product's result: its group
    int reader;  // of a tile that a map made in shared memory: the last product that reads it
    const TileValue *by; // likewise: another tile was made in its place since; else NULL
} RunSlot;

typedef struct RunPlace { // where in the grid and in the loops
    uint32_t point;       // the tile's number, from 1; 0: none
    bool valid;
    int32_t b, h, step, tile[TILE_MAX_AXES];
} RunPlace;

typedef struct RunFrame { // a block that is being run
    const TileOp *owner;  // NULL: the kernel's body
    const TileOp *op;     // what is next in it
    int32_t t, to, step, tile;
} RunFrame;

typedef struct RunRole { // a role, or the kernel's body
    const TileOp *op;    // NULL: the body
    RunFrame frame[RUN_MAX_NEST];
    int nframes;
    RunPlace here, before; // `before`: the tile of the grid before the last `next`
    int issued, landed;    // groups of products
    int barriers;
    int nexts;
    int64_t number; // of its tile, from 0
    bool turn;
    const TileOp *waits; // where it is held up
} RunRole;

typedef struct Eval {
    const TileProgram *p;
    const TileData *data;
    bool round, failed;
    Diags *diags;
    Arena *arena; // of the run
    int32_t *size;
    RunTensor *tensors;
    ExEnv env;
    ExMemo plans;
    // the kernel
    const TileKernel *k;
    int64_t extent[TILE_MAX_AXES], length[TILE_MAX_AXES]; // of a tile; of the axis
    RunSlot *slots;
    int *
        place; // by TileValue.id: of tiles that maps make in shared memory (tile_places.h); -1: none
    uint8_t mask_axes[TILE_MAX_AXES];
    bool summed[TILE_MAX_AXES]; // the body sums over the axis
    int nmask_axes;
    int32_t count[TILE_MAX_GRID]; // of the grid
    int64_t whole;                // tiles that have one point of its last dimension (TileGrid.from)
    int64_t points;
    uint64_t *copied; // clusters: by point, from 1, a sum of what was copied to shared pipes
    // the block
    int64_t block, blocks;
    int committed, landed, barriers;
    RunRole *roles;
    int nroles;
    // the role, the tile, the element and the op
    RunRole *role;
    RunPlace here;
    int64_t at[TILE_MAX_AXES];
    const TileOp *op;
} Eval;

void __attribute__((format(printf, 2, 3))) run_fail(Eval *E, const char *fmt, ...);
ExValue run_ex(Eval *E, const Ex *e);
// What computes: LOAD, STORE, MAP, MMA, BESIDE, INVERT, and the copying part of FILL and COPY.
void run_load(Eval *E, const TileOp *op);
void run_store(Eval *E, const TileOp *op);
void run_append(Eval *E, const TileOp *op);
void run_map(Eval *E, const TileOp *op);
void run_mma(Eval *E, const TileOp *op);
void run_beside(Eval *E, const TileOp *op);
void run_invert(Eval *E, const TileOp *op);
// REDO: whether any row takes what the body yields; and the results, when that was run.
bool run_any_beyond(Eval *E, const TileOp *redo);
void run_choose(Eval *E, const TileOp *redo);
void run_fetch(Eval *E, const TileOp *op, const TileValue *buffer, double *to);
// In a tile that is classed full the mask must hold at every element that exists.
void run_check_full(Eval *E);
// The tile of the grid with this number, from 0.
void run_point(Eval *E, int64_t number, RunPlace *place);
void run_sequence(Eval *E, const RunPlace *place); // sizes are those of the place's sequence

// Blocks of a cluster copy the same to the pipes that they share (tile_pairs.c).
void run_pairs_begin(Eval *E);
void run_pairs_note(Eval *E, const TileOp *fill);
void run_pairs_check(Eval *E);

// Runs a block of the grid from the kernel's first op to its end (tile_flow.c).
void run_block(Eval *E);

#endif
