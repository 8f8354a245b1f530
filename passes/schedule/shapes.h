// shapes.h: classes of launches. The best schedule of a GPU differs between long and short
// sequences. So a program may have kernels for each class (shapes.def), and its plans choose.
#ifndef PASSES_SHAPES_H
#define PASSES_SHAPES_H

#include "ir/tile.h"

typedef enum ShapeClass {
#define SHAPE(e, ...) SHAPE_##e,
#include "passes/schedule/shapes.def"
#undef SHAPE
    SHAPE_COUNT
} ShapeClass;

const char *shape_name(ShapeClass c);
bool shape_find(const char *name, ShapeClass *out);
// Whether programs for the target choose by class; otherwise the last class stands for all.
bool shape_matters(const Target *t);
ShapeClass shape_of(const Target *t, const int32_t *size); // by the fixed sizes (row.h)
void shape_typical(ShapeClass c, int32_t *size);           // SIZE_FREE of them

// Adds another schedule's kernels to those of a program, for launches of a class. Both come from one
// streaming form. Workspace that differs is there twice. If other tensors or sizes differ, does
// nothing and returns false.
bool shape_join(TileProgram *p, const TileProgram *other, ShapeClass c);

#endif
