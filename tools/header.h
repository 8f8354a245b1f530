// header.h: the C header that goes with a host object file.
#ifndef TOOLS_HEADER_H
#define TOOLS_HEADER_H

#include "status.h"
#include <stddef.h>

// Writes path with its extension replaced by .h, from the metadata inside the object.
Status header_write(const char *path, const void *object, size_t n);

#endif
