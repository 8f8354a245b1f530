// cost.h: the cost model: what a kernel is expected to take before anything is measured
// (docs/tuning.md, "What limits a kernel"): cycles of a multiprocessor, from the kernel's own operations, the tiles that
// its mask leaves, and the target's rates. For ranking schedules: ratios count, not the numbers.
#ifndef PASSES_COST_H
#define PASSES_COST_H

#include "passes/passes.h"

// What a kernel does of each element of the scores, whatever its schedule.
typedef struct CostWork {
    int d, dv;      // columns of q and k, of v and o
    double special; // operations of the unit for special functions
    double plain;   // others
    int reductions; // statistics of a row that each tile of keys updates
} CostWork;

CostWork cost_work(const TileProgram *p, const TileKernel *k);

// Which keys tiles of some rows of queries look at, in a launch.
enum { COST_SAMPLES = 64 }; // of row tiles, at most
typedef struct CostRows {
    double tiles; // of queries, of all batches and heads
    int n;
    double first[COST_SAMPLES], last[COST_SAMPLES]; // key; last < first: none
} CostRows;

// sizes: SIZE_FREE of them. Where the mask depends on data, it is taken to leave what it may.
CostRows cost_rows(TileProgram *p, const TileKernel *k, int rows, const int32_t *sizes);

typedef struct CostTiles {
    double tiles;             // of queries
    double steps;             // tiles of keys that one of them visits, on average
    double longest, shortest; // of the same
    double parts;             // of a tile whose keys are shared
} CostTiles;

CostTiles cost_tiles(const CostRows *r, int keys); // in one part
// In how many a launch's tiles are (passes/tile/split.c), where that saves the longest so many keys.
double cost_parts(const Target *t, CostTiles n, int keys, int least);

// One block's step, a tile of keys: how long each unit has to do, in cycles of a multiprocessor.
typedef struct CostStep {
    double matrix, special, plain;
    double shared, l2; // bytes on their way: beside all else, or it waits for them
    double latency;    // in which nobody does anything
} CostStep;

// A launch: `blocks` of them side by side on a multiprocessor, `tile` cycles for each tile of
// queries besides its steps.
double cost_launch(const Target *t, CostTiles n, CostStep s, int blocks, double tile);

// ---- proposals: choices of a schedule that may be good, legal or not

typedef struct Proposals {
    Arena *arena;
    TileProgram *p;      // algorithm level
    const TileKernel *k; // its main kernel
    const Target *target;
    const int32_t *sizes; // of the launch
    int part_keys;        // that parts have to save its longest tile; 0: it has none
    Candidates list;
} Proposals;

void cost_host(Proposals *to); // cost_host.c
void cost_sm80(Proposals *to); // cost_gpu.c
void cost_sm90(Proposals *to);
void cost_amd(Proposals *to); // amd_shape.c

#endif
