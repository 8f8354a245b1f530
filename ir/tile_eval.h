// tile_eval.h: what tests of passes need beside tile_eval: tensors to run a program on, and how far
// two runs are apart.
//
//     TileData *x = tile_data_random(a, before, sizes, 4, 1), *y = tile_data_random(a, after,
//     sizes, 4, 1); tile_eval(before, x, true, &diags) && tile_eval(after, y, true, &diags) &&
//     tile_data_distance(before, x, after, y) < 1e-5
#ifndef IR_TILE_EVAL_H
#define IR_TILE_EVAL_H

#include "tile.h"

// The nearest value of an element type (ties to even), as a double. Floats overflow to infinity.
double dtype_round(Dtype t, double v);
double tf32_round(double v); // as products by tf32 take it

// An expression of launch geometry (over SIZE and WORKERS) at these sizes.
int32_t tile_eval_launch(const Ex *e, const int32_t *size, int workers);
// size: one per size; fills in the derived ones.
void tile_eval_sizes(const TileProgram *p, int32_t *size, int workers);
int64_t tile_tensor_elements(const TileTensor *t, const int32_t *size); // -1: too many

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
