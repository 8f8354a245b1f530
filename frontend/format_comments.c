// format_comments.c: the source as tokens, each with the comments before it.
//
// Holds afterwards: every comment is in one remark, in the order of the source. Whether lines end
// before and after a remark is all that is kept of its place: printed so, it reads back the same.
#include "frontend/format.h"

#include <string.h>

typedef struct Reader {
    Arena *arena;
    const char *text;
    uint32_t end; // of the token or comment before
    uint32_t
        column; // of the remark before, where it was alone after code or under such a one; or 0
} Reader;

static int newlines(const char *text, uint32_t from, uint32_t to) {
    int n = 0;
    for (; from < to; from++) n += text[from] == '\n';
    return n;
}

static uint32_t column_of(const char *text, uint32_t at) {
    uint32_t n = 0;
    for (; at > 0 && text[at - 1] != '\n'; at--) n += (text[at - 1] & 0xc0) != 0x80;
    return n;
}

static bool many_lines(const char *s) { return strchr(s, '\n') != NULL; }

// A comment without the blanks at the end of its lines.
static const char *trimmed(Arena *a, const char *s, uint32_t n) {
    char *out = arena_strndup(a, s, n), *to = out;
    for (const char *from = out; *from; from++) {
        if (*from == '\n')
            while (to > out && strchr(" \t\r\f\v", to[-1])) to--;
        *to++ = *from;
    }
    while (to > out && strchr(" \t\r\f\v", to[-1])) to--;
    *to = '\0';
    return out;
}

static void read_comment(Reader *r, Remarks *list, Span at) {
    int lines = newlines(r->text, r->end, at.start);
    const char *s = trimmed(r->arena, r->text + at.start, at.end - at.start);
    Remark *last = list->n ? &list->data[list->n - 1] : NULL;
    bool first = r->end == 0;
    r->end = at.end;
    if (last && !lines && !many_lines(last->s)) {
        last->s = arena_printf(r->arena, "%s %s", last->s, s);
        r->column = 0;
        return;
    }
    uint32_t column = column_of(r->text, at.start);
    bool below = last && lines == 1 && s[1] == '/' && column && column == r->column;
    Remark new = {s, lines || last || first, true, lines > 1, below};
    r->column = (below || !new.before) && !many_lines(s) ? column : 0;
    VEC_PUSH(r->arena, list, new);
}

Words format_words(Arena *a, const char *text, const AstTokens *tokens) {
    Words words = {0};
    Reader r = {.arena = a, .text = text};
    Remarks remarks = {0};
    for (int i = 0; i < tokens->n; i++) {
        Span at = tokens->data[i].span;
        if (tokens->data[i].kind == AST_TOKEN_COMMENT) {
            read_comment(&r, &remarks, at);
            continue;
        }
        int lines = newlines(text, r.end, at.start);
        Remark *last = remarks.n ? &remarks.data[remarks.n - 1] : NULL;
        if (last) last->after = lines || many_lines(last->s);
        Word w = {text + at.start, at.end - at.start, at.start, lines > 1, remarks};
        VEC_PUSH(a, &words, w);
        remarks = (Remarks){0};
        r.end = at.end;
        r.column = 0;
    }
    Word end = {.s = "", .start = UINT32_MAX, .remarks = remarks};
    VEC_PUSH(a, &words, end);
    return words;
}

void format_add_remarks(Arena *a, Remarks *list, const Remarks *more) {
    bool moved = list->n > 0;
    for (int i = 0; i < more->n; i++) {
        Remark r = more->data[i];
        if (moved) {
            list->data[list->n - 1].after = true;
            r.before = true;
            r.below = false;
        }
        VEC_PUSH(a, list, r);
    }
}
