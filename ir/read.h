// read.h: whole files.
#ifndef IR_READ_H
#define IR_READ_H

#include <stddef.h>
#include <stdio.h>

// All there is to read, malloc'ed, with a 0 after its *n bytes. NULL, or why there is nothing: more
// than `most` bytes, a folder, what the system says.
const char *read_stream(FILE *f, size_t most, void **out, size_t *n);
const char *read_file(const char *path, size_t most, void **out, size_t *n);

#endif
