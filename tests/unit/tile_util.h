// tile_util.h: tile programs as text.
#ifndef TESTS_UNIT_TILE_UTIL_H
#define TESTS_UNIT_TILE_UTIL_H

#include "ir/tile.h"
#include "tests/unit/test.h"

// A file, which the caller may change.
static inline char *tu_file(Arena *a, const char *path) {
    FILE *f = fopen(path, "rb");
    ck_assert_msg(f != NULL, "%s: cannot be opened", path);
    char *s = arena_alloc(a, 1 << 16);
    s[fread(s, 1, (1 << 16) - 1, f)] = 0;
    fclose(f);
    return s;
}

static inline char *tu_tile(Arena *a, const char *name) {
    return tu_file(a, arena_printf(a, "tests/tile/%s.tile", name));
}

static inline TileProgram *tu_parse(Arena *a, const char *text) {
    Diags diags = diag_list(a);
    TileProgram *p = tile_parse(a, text, strlen(text), &diags);
    ck_assert_msg(p != NULL, "%s", diags.first ? diags.first->message : "");
    return p;
}

static inline const char *tu_printed(Arena *a, const TileProgram *p) {
    Text t = text_new(a);
    tile_print(&t, p);
    return t.s;
}

// As it is printed: valid, and printed as the same.
static inline TileProgram *tu_read_back(Arena *a, const TileProgram *p) {
    Diags diags = diag_list(a);
    const char *text = tu_printed(a, p);
    TileProgram *q = tu_parse(a, text);
    ck_assert_msg(tile_verify(q, &diags), "%s", diags.first ? diags.first->message : "");
    ck_assert_str_eq(tu_printed(a, q), text);
    return q;
}

// With every `old` replaced.
static inline const char *tu_with(Arena *a, const char *text, const char *old, const char *new) {
    Text t = text_new(a);
    ck_assert_msg(strstr(text, old) != NULL, "'%s' is not in the text", old);
    for (const char *at; (at = strstr(text, old)); text = at + strlen(old))
        text_printf(&t, "%.*s%s", (int)(at - text), text, new);
    text_puts(&t, text);
    return t.s;
}

static inline TileOp *tu_first(const TileBlock *b, TileKind kind) {
    TileOp *op = tile_next(b, NULL);
    while (op && op->kind != kind) op = tile_next(b, op);
    return op;
}

#endif
