// tiles.h: a tile program of tests/tile, taken through the passes for an AMD target and run by the interpreter, at the sizes
// of its lines `// run: ..`, as it is and in f32, against what the algorithm means in float64.
#ifndef TESTS_GCN_TILES_H
#define TESTS_GCN_TILES_H

#include "ir/target.h"
#include <stdbool.h>
#include <stdint.h>

bool tiles_is_program(const char *path); // by its name
void tiles_check(const char *path, TargetId target, uint64_t seed, int *passed, int *failed);

#endif
