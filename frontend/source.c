// source.c: finds and reads source files, from the file system or through the caller's FeRead.
#include "frontend/source.h"
#include "frontend/ast.h"
#include "ir/read.h"

#include <stdlib.h>
#include <string.h>

static bool read_source(Arena *a, const char *path, const char **text, size_t *n,
                        const char **why) {
    void *bytes;
    *why = read_file(path, AST_MAX_BYTES, &bytes, n);
    if (*why) return false;
    *text = arena_strndup(a, bytes, *n);
    free(bytes);
    return true;
}

static bool read_path(Arena *a, const FeOptions *o, const char *path, SourceText *out,
                      const char **why) {
    *out = (SourceText){.path = path, .key = path};
    if (o->read) return o->read(o->read_ctx, a, path, &out->text, &out->n, why);
    if (!read_source(a, path, &out->text, &out->n, why)) return false;
#ifndef __wasi__ // which has no links, and no realpath
    char *real = realpath(path, NULL);
    if (real) out->key = arena_strdup(a, real);
    free(real);
#endif
    return true;
}

bool source_main(Arena *a, const FeOptions *o, SourceText *out, const char **why) {
    if (!o->text) return read_path(a, o, o->path, out, why);
    *out = (SourceText){o->path, o->path, o->text, o->text_bytes};
    return true;
}

// dir/a/b.attn for the path a.b
static const char *join(Arena *a, const char *dir, size_t ndir, const char *path) {
    char *s = arena_printf(a, "%.*s%s%s.attn", (int)ndir, dir,
                           ndir && dir[ndir - 1] != '/' ? "/" : "", path);
    size_t n = strlen(s) - strlen(".attn");
    for (size_t i = n - strlen(path); i < n; i++)
        if (s[i] == '.') s[i] = '/';
    return s;
}

bool source_import(Arena *a, const FeOptions *o, const char *importer, const char *path,
                   SourceText *out) {
    const char *why;
    bool std = strncmp(path, "std.", 4) == 0;
    if (std && o->stdlib &&
        read_path(a, o, join(a, o->stdlib, strlen(o->stdlib), path + 4), out, &why))
        return true;
    const char *slash = strrchr(importer, '/');
    size_t ndir = slash ? (size_t)(slash - importer) + 1 : 0;
    if (read_path(a, o, join(a, importer, ndir, path), out, &why)) return true;
    for (int i = 0; i < o->ndirs; i++)
        if (read_path(a, o, join(a, o->dirs[i], strlen(o->dirs[i]), path), out, &why)) return true;
    return false;
}
