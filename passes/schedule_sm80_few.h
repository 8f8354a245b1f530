// schedule_sm80_few.h: tile extents of kernels for parts of a row, and for their combination.
#ifndef PASSES_SCHEDULE_SM80_FEW_H
#define PASSES_SCHEDULE_SM80_FEW_H

#include "passes.h"

enum { SM80_FEW_ROWS = 16 }; // one m16 tile of one warp

typedef struct Sm80Few {
#define KNOB(field, least, most, step, what) int field;
#include "schedule_sm80_few.def"
#undef KNOB
} Sm80Few;

// Whether a kernel is one of these.
bool sm80_is_few(const TileProgram *p, const TileKernel *k);
// Their shape, also as text; false with an error where a choice that was asked for cannot be.
bool sm80_few(const TileProgram *p, const PassOptions *o, Diags *diags, Sm80Few *out,
              const char **text);

#endif
