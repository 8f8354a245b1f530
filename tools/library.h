// library.h: the modules of `std`, which are part of the compiler.
#ifndef TOOLS_LIBRARY_H
#define TOOLS_LIBRARY_H

#include <stddef.h>

// As FeOptions.stdlib: no folder. The modules have paths that begin so: "<std>/mask.attn".
extern const char library_folder[];

typedef struct LibraryFile {
    const char *path, *text;
    size_t n;
} LibraryFile;
const LibraryFile *library_find(const char *path); // NULL: none has this path
// All of them: 0, 1, ...; NULL after the last. Variants of the library are among them.
const LibraryFile *library_at(size_t i);

#endif
