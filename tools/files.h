// files.h: whole files in and out. Reading gives bytes with a terminating 0 after them; writing
// replaces a file atomically, so that a failed command never leaves half an output behind.
#ifndef TOOLS_FILES_H
#define TOOLS_FILES_H

#include "status.h"
#include <stdbool.h>
#include <stddef.h>

// *out is malloc'ed, *n without the terminating 0. STATUS_SYSTEM and a message when the file cannot
// be read.
Status file_read(const char *path, void **out, size_t *n);
// A file to write. temp and real are files_write's own.
typedef struct FileOut {
    const char *path;
    const void *data;
    size_t n;
    bool durable; // it replaces what the user wrote: it is on the disk before that is gone
    char *temp, *real;
} FileOut;

// All of them, or after a mistake none (but what is no regular file, and is written before any other
// is replaced). Prints what is wrong.
Status files_write(FileOut *files, int n);
// Whether there is no reason yet why it could not be written: to be asked before long work. Changes
// nothing, and prints what is wrong.
Status file_may_be_written(const char *path);
// Whether two outputs are one regular file (devices and stdout may be written twice).
bool file_same(const char *a, const char *b);
// "-" is stdout. What is no regular file (/dev/null, a pipe) is written in place; a link is
// followed.
Status file_write(const char *path, const void *data, size_t n);

#endif
