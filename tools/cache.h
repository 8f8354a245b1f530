// cache.h: what `attnc tune` found, kept between runs: a folder with one small text file for each
// program, target and element type, in it a line for each class of launches that was tuned.
//
//     attnc schedules 1
//     key 3f0c..                            the file's own name: a renamed or foreign file is none
//     program causal sm_90a bf16 D=128 Dv=128
//     long warpgroups=2,keys=176,stages=2 3.012 NVIDIA H200: B=1 H=16 ...
//     end
//
// Files are replaced as a whole. What does not read is ignored, with a warning.
#ifndef TOOLS_CACHE_H
#define TOOLS_CACHE_H

#include "ir/row.h"
#include "passes/passes.h"
#include "status.h"

typedef struct CacheKey {
    const char *name;    // 32 hexadecimal digits
    const char *program; // for people: name, target, element type, dims
} CacheKey;

// By class: choices, if there are any. `note` is for people, one line.
typedef struct CacheEntry {
    Knobs knobs[SHAPE_COUNT];
    const char *note[SHAPE_COUNT];
    double ms[SHAPE_COUNT];
} CacheEntry;

// $ATTNC_CACHE, or attnc in $XDG_CACHE_HOME, or .cache/attnc in $HOME; NULL: there is none.
const char *cache_folder(Arena *a);
// Of everything that a schedule depends on: the elaborated program with its dims, the target's
// data, the element type (and how f32 is multiplied) and the compiler's version.
CacheKey cache_key(Arena *a, const RowProgram *row, const PassOptions *o);
// None of any class where nothing is kept.
CacheEntry cache_read(Arena *a, const char *folder, const CacheKey *key, Diags *diags);
// Makes the folder where it is missing. What is wrong with it is printed: before measuring.
Status cache_may_be_written(Arena *a, const char *folder);
// Two that tune at once do not lose what the other found: held from reading an entry to writing it.
int cache_hold(const char *folder);
void cache_release(int held);
// Prints what is wrong.
Status cache_write(Arena *a, const char *folder, const CacheKey *key, const CacheEntry *e);

#endif
