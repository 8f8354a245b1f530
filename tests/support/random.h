// random.h: tensors for the interpreter of tile programs, and how far two runs are apart.
//
//     TileData *x = tile_data_random(a, before, sizes, 4, 1), *y = tile_data_random(a, after, sizes, 4, 1);
//     tile_eval(before, x, true, &diags) && tile_eval(after, y, true, &diags) && tile_data_distance(before, x, after, y) < 1e-5
#ifndef TESTS_RANDOM_H
#define TESTS_RANDOM_H

#include "ir/tile_eval.h"

// Tensors for a program at these sizes (one per size; derived ones may be anything). What is read
// is random and exact in its element type: standard normal floats, i32 in 0..3, bools. A tensor's
// content depends on the seed and its name only. What a kernel writes begins as NaN, or as 0 where
// a kernel adds to it.
TileData *tile_data_random(Arena *a, const TileProgram *p, const int32_t *size, int workers,
                           uint64_t seed);

// The largest |x - y| / (1 + |y|) over outputs and emits, matched by name; infinite where only one
// is NaN or infinite, where shapes differ, or where one of the programs lacks the tensor.
double tile_data_distance(const TileProgram *p, const TileData *x, const TileProgram *q,
                          const TileData *y);

#endif
