// library.c: see library.h. Makefile writes the texts into stdlib.inc.
#include "library.h"
#include <string.h>

const char library_folder[] = "<std>";

static const LibraryFile files[] = {
#define STD_MODULE(path, bytes) {path, bytes, sizeof bytes - 1},
#include "stdlib.inc"
#undef STD_MODULE
};

const LibraryFile *library_at(size_t i) {
    return i < sizeof files / sizeof *files ? &files[i] : NULL;
}

const LibraryFile *library_find(const char *path) {
    const LibraryFile *f = files;
    while ((size_t)(f - files) < sizeof files / sizeof *files && strcmp(path, f->path) != 0) f++;
    return library_at((size_t)(f - files));
}
