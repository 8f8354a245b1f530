// source.c: finds and reads source files, from the file system or through the caller's FeRead.
#include "frontend/source.h"
#include "frontend/ast.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool read_file(void *ctx, Arena *a, const char *path, const char **text, size_t *n,
                      const char **why) {
    (void)ctx;
    FILE *f = fopen(path, "rb");
    if (!f) {
        *why = strerror(errno);
        return false;
    }
    Text t;
    text_init(&t, a);
    char buf[1 << 14];
    size_t got;
    while ((got = fread(buf, 1, sizeof buf, f)) > 0 && t.n <= AST_MAX_BYTES)
        text_putn(&t, buf, got);
    bool failed = ferror(f);
    *why = failed ? strerror(errno) : "the file is too large for a source file";
    fclose(f);
    *text = t.s;
    *n = t.n;
    return !failed && t.n <= AST_MAX_BYTES;
}

static bool read_path(Arena *a, const FeOptions *o, const char *path, SourceText *out,
                      const char **why) {
    *out = (SourceText){.path = path, .key = path};
    if (o->read) return o->read(o->read_ctx, a, path, &out->text, &out->n, why);
    if (!read_file(NULL, a, path, &out->text, &out->n, why)) return false;
    char *real = realpath(path, NULL);
    if (real) out->key = arena_strdup(a, real);
    free(real);
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
