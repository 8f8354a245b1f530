// demand.h: what the maps of a kernel ask of registers and shared memory, beside tiles.
#ifndef PASSES_DEMAND_H
#define PASSES_DEMAND_H

#include "ir/tile.h"

// Vectors with a number for each key (norms), each of which has a place of its own.
int pass_key_vectors(const TileKernel *k);
// Whether a map of scores takes such a number, made beside it.
bool pass_takes_key_numbers(const TileKernel *k);
// Whether such numbers are sums over a key's columns.
bool pass_makes_norms(const TileKernel *k);
// How many different numbers a map of scores looks up for each element (a dense bias is one).
int pass_element_loads(const TileKernel *k);
// Whether scores are tested with more than a causal mask and the end of the keys, or look something up for
// each element: what they are tested with lives in registers, while they are.
bool pass_many_tests(const TileKernel *k);

#endif
