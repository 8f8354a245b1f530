// header.h: the C header that goes with a host object file.
#ifndef TOOLS_HEADER_H
#define TOOLS_HEADER_H

#include "ir/arena.h"
#include "status.h"

// The path of an object with its extension replaced by .h.
const char *header_path(Arena *a, const char *path);
// The header of the object, from the metadata inside it, in arena a.
Status header_text(Arena *a, const char *path, const void *object, size_t n, Text *t);

#endif
