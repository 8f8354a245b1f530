// draw.h: what --in says of a tensor, unless it is a file: numbers, or what to draw.
#ifndef TOOLS_DRAW_H
#define TOOLS_DRAW_H

#include "signature.h"

typedef enum DrawKind {
    DRAW_NOTHING, // not said, or a file's name
    DRAW_LIST,    // a,b,c: a vector; what follows is drawn
    DRAW_RANGE,   // lo..hi: whole numbers, both ends included
    DRAW_REALS,   // lo..hi where an end is written with a point: real numbers from lo to hi
    DRAW_TRUE,    // of a bool: true with this probability
} DrawKind;

typedef struct Draw {
    DrawKind kind;
    double lo, hi;
    double probability;
    int64_t n;
    double *list;
} Draw;

// Reads what is written of a tensor of this signature. DRAW_NOTHING: it is no numbers. NULL, or what
// is wrong with it.
const char *draw_read(Draw *d, Arena *a, const SigArg *g, const char *text);
// Fills a tensor, which has the list's length. The same for the same seed and name.
void draw_fill(const Draw *d, Tensor *t, uint64_t seed, const char *name);
// What nothing names: standard normal, of the argument's sign and the norm of its rows. repeated: as tensor_normal_repeated.
void draw_default(const SigArg *g, Tensor *t, uint64_t seed, bool repeated);
// A number, or true or false.
bool draw_number(const char *text, double *out);

#endif
