// tile_eval.h: what the interpreter and the runtime's callers ask beside tile_eval: element types' rounding, sizes, and expressions of
// launches. tile_data.c
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

#endif
