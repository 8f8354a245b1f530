// interval.h: tests and conversions of positions in the form that costs least per element.
#ifndef PASSES_INTERVAL_H
#define PASSES_INTERVAL_H

#include "ir/tile.h"

// In maps over rows and keys: what a conjunction asks of a key becomes one interval of a row, and a
// number made of positions is converted in parts. Afterwards each costs an instruction or two per
// element, and what is left depends on the row or on the key alone. The interval is asked
// first, or `last`, behind what is none: LLVM makes a chain of selections in this order, and which takes fewer
// registers and instructions is a matter of the target.
void pass_interval(TileProgram *p, TileKernel *k, int row_axis, int key_axis, bool last);

#endif
