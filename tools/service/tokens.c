// tokens.c: what is told of the text as it stands: the kind of every token, what may be folded.
//
// In: tokens and what their names mean. Out: semantic tokens, folding ranges, of any text: also where
// it does not parse.
#include "internal.h"

#include <stdlib.h>
#include <string.h>

typedef enum Kind {
#define TOKEN_KIND(e, name) KIND_##e,
#include "tokens.def"
#undef TOKEN_KIND
    KIND_COUNT,
    KIND_NONE
} Kind;
enum { DEFINES = 1, READONLY = 2, LIBRARY = 4 }; // bits, in the order of the legend's modifiers

cJSON *tokens_legend(void) {
    static const char *const kinds[] = {
#define TOKEN_KIND(e, name) name,
#include "tokens.def"
#undef TOKEN_KIND
    };
    static const char *const modifiers[] = {"definition", "readonly", "defaultLibrary"};
    return json_pair("tokenTypes", cJSON_CreateStringArray(kinds, KIND_COUNT), "tokenModifiers",
                     cJSON_CreateStringArray(modifiers, 3));
}

static Kind kind_of_decl(DeclKind k) {
    switch (k) {
    case DECL_BUILTIN:
    case DECL_FN:
    case DECL_NORMALIZATION: return KIND_FUNCTION;
    case DECL_CLAUSE: return KIND_METHOD;
    case DECL_VARIANT: return KIND_CLASS;
    case DECL_MODULE: return KIND_NAMESPACE;
    case DECL_PARAM: return KIND_PARAMETER;
    case DECL_INPUT: return KIND_PROPERTY;
    case DECL_CONSTANT:
    case DECL_CONST:
    case DECL_SIZE:
    case DECL_DIM:
    case DECL_LET:
    case DECL_EMIT: return KIND_VARIABLE;
    }
    return KIND_NONE;
}

static int modifiers_of(const Analysis *a, const Use *u) {
    const Decl *d = u->decl;
    bool library = !d->span.file || !strncmp(a->diags.files.data[d->span.file].name, "<std>/", 6);
    bool fixed = d->kind == DECL_CONSTANT || d->kind == DECL_CONST || d->kind == DECL_DIM ||
                 d->kind == DECL_SIZE;
    return (u->defines ? DEFINES : 0) | (fixed ? READONLY : 0) |
           (library && d->kind != DECL_MODULE ? LIBRARY : 0);
}

static int compare_uses(const void *x, const void *y) {
    const Use *a = x, *b = y;
    if (a->span.start != b->span.start) return a->span.start < b->span.start ? -1 : 1;
    return b->defines - a->defines;
}

// The uses in the document, from its beginning.
static Use *sorted_uses(const Analysis *a, Arena *arena, int *n) {
    Use *uses = ARENA_ARRAY(arena, Use, a->uses.all.n);
    *n = 0;
    for (int i = 0; i < a->uses.all.n; i++)
        if (a->uses.all.data[i].span.file == 1) uses[(*n)++] = a->uses.all.data[i];
    if (*n) qsort(uses, (size_t)*n, sizeof *uses, compare_uses);
    return uses;
}

// ---- semantic tokens

typedef struct Writer {
    cJSON *data;
    const Lines *lines;
    bool utf8;
    uint32_t at, line, column;       // walks through the text, so that long lines cost no more
    uint32_t last_line, last_column; // of the token before
} Writer;

// Columns that the text takes from the walk's place to an offset on the same line.
static uint32_t width(const Writer *w, uint32_t end) {
    uint32_t columns = 0;
    for (uint32_t i = w->at; i < end; i++) {
        unsigned char c = (unsigned char)w->lines->text[i];
        columns += w->utf8 ? 1 : ((c & 0xc0) != 0x80) + (c >= 0xf0);
    }
    return columns;
}

static void walk_to(Writer *w, uint32_t at) {
    const Lines *l = w->lines;
    while (w->line + 1 < (uint32_t)l->starts.n && l->starts.data[w->line + 1] <= at) {
        w->at = l->starts.data[++w->line];
        w->column = 0;
    }
    w->column += width(w, at);
    w->at = at;
}

// One line of a token.
static void put_piece(Writer *w, uint32_t start, uint32_t end, Kind kind, int modifiers) {
    walk_to(w, start);
    uint32_t columns = width(w, end);
    if (!columns) return;
    uint32_t same = w->line == w->last_line ? w->last_column : 0;
    const double values[] = {w->line - w->last_line, w->column - same, columns, kind, modifiers};
    for (int i = 0; i < 5; i++) cJSON_AddItemToArray(w->data, cJSON_CreateNumber(values[i]));
    w->last_line = w->line;
    w->last_column = w->column;
}

static void put_token(Writer *w, Span span, Kind kind, int modifiers) {
    const char *text = w->lines->text;
    for (uint32_t at = span.start, end; at < span.end; at = end + 1) {
        for (end = at; end < span.end && text[end] != '\n' && text[end] != '\r';) end++;
        put_piece(w, at, end, kind, modifiers);
    }
}

static Kind kind_of_token(const AstToken *t) {
    switch (t->kind) {
    case AST_TOKEN_KEYWORD: return KIND_KEYWORD;
    case AST_TOKEN_NUMBER: return KIND_NUMBER;
    case AST_TOKEN_OPERATOR: return KIND_OPERATOR;
    case AST_TOKEN_COMMENT: return KIND_COMMENT;
    case AST_TOKEN_NAME: break;
    }
    return KIND_NONE;
}

// `f32` in `input x: f32[H];`
static bool is_type(const AstTokens *tokens, int i, const char *text) {
    return i >= 3 && text[tokens->data[i - 1].span.start] == ':' &&
           tokens->data[i - 2].kind == AST_TOKEN_NAME &&
           tokens->data[i - 3].kind == AST_TOKEN_KEYWORD;
}

cJSON *tokens_semantic(Service *s, const cJSON *params) {
    Document *d = document_of(s, params);
    if (!d) return NULL;
    Analysis *a = document_analysis(s, d);
    Arena *arena = arena_new();
    const AstTokens *tokens = analysis_tokens(a, 1);
    int n, next = 0;
    const Use *uses = sorted_uses(a, arena, &n);
    Writer w = {.data = cJSON_CreateArray(), .lines = analysis_lines(a, 1), .utf8 = s->client.utf8};
    for (int i = 0; i < tokens->n; i++) {
        const AstToken *t = &tokens->data[i];
        Kind kind = kind_of_token(t);
        int modifiers = 0;
        while (next < n && uses[next].span.end <= t->span.start) next++;
        bool used = next < n && uses[next].span.start <= t->span.start &&
                    uses[next].span.end >= t->span.end;
        if (used && t->kind != AST_TOKEN_OPERATOR) {
            kind = kind_of_decl(uses[next].decl->kind);
            modifiers = modifiers_of(a, &uses[next]);
        } else if (is_type(tokens, i, w.lines->text)) {
            kind = KIND_TYPE;
        }
        if (kind != KIND_NONE) put_token(&w, t->span, kind, modifiers);
    }
    arena_free(arena);
    cJSON *result = cJSON_CreateObject();
    cJSON_AddItemToObject(result, "data", w.data);
    return result;
}

// ---- folding

static void put_fold(Service *s, cJSON *folds, const Lines *l, uint32_t start, uint32_t end,
                     const char *kind) {
    uint32_t first, last, column;
    lines_position(l, s->client.utf8, start, &first, &column);
    lines_position(l, s->client.utf8, end, &last, &column);
    if (first >= last) return;
    cJSON *fold =
        json_pair("startLine", cJSON_CreateNumber(first), "endLine", cJSON_CreateNumber(last));
    if (kind) cJSON_AddStringToObject(fold, "kind", kind);
    cJSON_AddItemToArray(folds, fold);
}

static bool only_blanks(const char *text, uint32_t from, uint32_t to, int most_lines) {
    for (; from < to; from++) {
        if (text[from] == '\n' && --most_lines < 0) return false;
        if (!strchr(" \t\r\n", text[from])) return false;
    }
    return true;
}

// Braces, and comments on lines that follow each other.
cJSON *tokens_folds(Service *s, const cJSON *params) {
    Document *d = document_of(s, params);
    if (!d) return NULL;
    Analysis *a = document_analysis(s, d);
    const AstTokens *tokens = analysis_tokens(a, 1);
    const Lines *l = analysis_lines(a, 1);
    cJSON *folds = cJSON_CreateArray();
    Arena *arena = arena_new();
    VEC(uint32_t) open = {0};
    for (int i = 0; i < tokens->n; i++) {
        const AstToken *t = &tokens->data[i];
        char c = l->text[t->span.start];
        if (t->kind == AST_TOKEN_OPERATOR && c == '{') VEC_PUSH(arena, &open, t->span.start);
        if (t->kind == AST_TOKEN_OPERATOR && c == '}' && open.n)
            put_fold(s, folds, l, open.data[--open.n], t->span.start, NULL);
        if (t->kind != AST_TOKEN_COMMENT) continue;
        int last = i;
        while (
            last + 1 < tokens->n && tokens->data[last + 1].kind == AST_TOKEN_COMMENT &&
            only_blanks(l->text, tokens->data[last].span.end, tokens->data[last + 1].span.start, 1))
            last++;
        put_fold(s, folds, l, t->span.start, tokens->data[last].span.end - 1, "comment");
        i = last;
    }
    arena_free(arena);
    return folds;
}
