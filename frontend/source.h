// source.h: where source files come from: the one place of the front end that reads any. Private to
// the front end.
#ifndef FRONTEND_SOURCE_H
#define FRONTEND_SOURCE_H

#include "frontend/frontend.h"

typedef struct SourceText {
    const char *path; // where it was found, for diagnostics
    const char *key;  // the same for the same file
    const char *text;
    size_t n;
} SourceText;

bool source_main(Arena *a, const FeOptions *o, SourceText *out, const char **why);
// The file of `import std.mask;`: std.* in the library's folder; then, as for any other path, in
// the folder of the importing file and in those of -I, in order.
bool source_import(Arena *a, const FeOptions *o, const char *importer, const char *path,
                   SourceText *out);

#endif
