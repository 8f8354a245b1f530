// parse.c: ast_parse, and the nodes that the grammar's actions make.
//
// In: a source file of the diagnostics. Out: its AST. Holds afterwards: any bytes at all give a
// module and diagnostics, within bounded stack: what nests deeper than AST_MAX_NESTING is reported
// where the limit is passed and not read further.
#include "frontend/parse.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

int ast_yyparse(void *scanner, Parse *p);
int ast_yylex_init_extra(Parse *p, void **scanner);
int ast_yylex_destroy(void *scanner);
void *ast_yy_scan_bytes(const char *bytes, int n, void *scanner);

void parse_too_deep(Parse *p, Span at) {
    if (!p->failed_deep) diag_error(p->diags, at, "nesting deeper than %d levels", AST_MAX_NESTING);
    p->failed_deep = true;
}

bool parse_nest(Parse *p, AstExpr *e, Span at) {
    bool list = e->kind == AST_CALL || e->kind == AST_INDEX || e->kind == AST_SLICE;
    for (int i = 0; list && i < e->args.n; i++)
        if (e->args.data[i] && e->depth < e->args.data[i]->depth) e->depth = e->args.data[i]->depth;
    if (++e->depth <= AST_MAX_NESTING) return true;
    parse_too_deep(p, at);
    return false;
}

AstExpr *parse_expr(Parse *p, AstKind kind, Span span, AstExpr *a, AstExpr *b, AstExpr *c) {
    AstExpr *e = ARENA_NEW(p->arena, AstExpr);
    e->kind = kind;
    e->span = span;
    AstExpr *args[] = {a, b, c};
    for (int i = 0; i < 3 && args[i]; i++) {
        VEC_PUSH(p->arena, &e->args, args[i]);
        if (e->depth < args[i]->depth) e->depth = args[i]->depth;
    }
    return e;
}

AstExpr *parse_operator(Parse *p, AstOp op, Span span, Span op_span, AstExpr *a, AstExpr *b) {
    AstExpr *e = parse_expr(p, b ? AST_BINARY : AST_UNARY, span, a, b, NULL);
    e->op = op;
    e->op_span = op_span;
    return e;
}

AstItem *parse_item(Parse *p, AstItemKind kind, Span span, AstName name) {
    AstItem *item = ARENA_NEW(p->arena, AstItem);
    item->kind = kind;
    item->span = span;
    item->name = name;
    return item;
}

AstItem *parse_broken(Parse *p, AstItemKind kind, Span span, AstName name) {
    AstItem *item = parse_item(p, kind, span, name);
    item->broken = true;
    return item;
}

AstItem *parse_variant(Parse *p, AstItemKind kind, Span span, AstName name, AstItems items) {
    AstItem *item = parse_item(p, kind, span, name);
    item->items = items;
    for (int i = 0; i < items.n; i++) item->broken |= items.data[i]->broken;
    return item;
}

AstName parse_name(Parse *p, Span span) {
    if (span.end - span.start > AST_MAX_NAME && !p->failed_long) {
        diag_error(p->diags, (Span){span.file, span.start, span.start + 1},
                   "this name has %u characters; %d are supported", span.end - span.start,
                   AST_MAX_NAME);
        p->failed_long = true;
    }
    return (AstName){arena_strndup(p->arena, p->text + span.start, span.end - span.start), span};
}

uint32_t parse_int(Parse *p, Span span) {
    uint64_t v = 0;
    for (uint32_t i = span.start; i < span.end && v <= UINT32_MAX; i++)
        v = v * 10 + (uint64_t)(p->text[i] - '0');
    if (v <= (uint64_t)INT32_MAX + 1) return (uint32_t)v;
    diag_error(p->diags, span, "this number does not fit an i32 (at most %d)", INT32_MAX);
    return 0;
}

float parse_float(Parse *p, Span span) {
    const char *s = arena_strndup(p->arena, p->text + span.start, span.end - span.start);
    float v = strtof(s, NULL);
    bool zero = strcspn(s, "123456789eE") == strcspn(s, "eE"); // no digit but 0 before the exponent
    if (isinf(v)) {
        diag_error(p->diags, span, "this number does not fit an f32 (at most 3.4028235e38)");
        return 0;
    }
    if (v == 0 && !zero)
        diag_error(p->diags, span, "this number does not fit an f32: it is nearer to 0 than any");
    else if (v < FLT_MIN && !zero)
        diag_warning(p->diags, span,
                     "this number counts as 0, as every number below 1.1754944e-38");
    return v;
}

// Bytes of text before its first ill-formed UTF-8 sequence (Unicode's table of well-formed
// sequences).
static size_t valid_utf8(const char *text, size_t n) {
    const unsigned char *s = (const unsigned char *)text;
    size_t i = 0;
    while (i < n) {
        unsigned c = s[i];
        if (c < 0x80) {
            i++;
            continue;
        }
        size_t more = c >= 0xc2 && c <= 0xdf   ? 1
                      : c >= 0xe0 && c <= 0xef ? 2
                      : c >= 0xf0 && c <= 0xf4 ? 3
                                               : 0;
        if (more == 0 || n - i <= more) return i;
        unsigned low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
        unsigned high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
        if (s[i + 1] < low || s[i + 1] > high) return i;
        for (size_t k = 2; k <= more; k++)
            if ((s[i + k] & 0xc0) != 0x80) return i;
        i += more + 1;
    }
    return n;
}

void parse_token(Parse *p, AstTokenKind kind, Span at) {
    AstToken t = {kind, at};
    if (p->tokens) VEC_PUSH(p->arena, p->tokens, t);
}

AstModule *ast_parse(Arena *a, Diags *d, uint16_t file, AstTokens *tokens) {
    const Source *s = &d->files.data[file];
    AstModule *m = ARENA_NEW(a, AstModule);
    m->file = file;
    if (s->n > AST_MAX_BYTES) {
        diag_error(d, (Span){file, 0, 0}, "a source file holds at most %d MiB",
                   AST_MAX_BYTES >> 20);
        return m;
    }
    const char *zero = s->n ? memchr(s->text, 0, s->n) : NULL;
    if (zero) { // a line of it would be noise
        diag_error(d, (Span){0}, "'%s' is no text: it holds a zero byte (at byte %zu)", s->name,
                   (size_t)(zero - s->text));
        return m;
    }
    size_t ok = valid_utf8(s->text, s->n);
    if (ok < s->n) {
        diag_error(d, (Span){file, (uint32_t)ok, (uint32_t)ok + 1}, "this is not UTF-8");
        return m;
    }
    uint32_t skip =
        s->n >= 3 && memcmp(s->text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0; // a byte order mark
    Parse p = {.arena = a,
               .diags = d,
               .file = file,
               .text = s->text,
               .n = s->n,
               .offset = skip,
               .module = m,
               .tokens = tokens};
    void *scanner;
    if (ast_yylex_init_extra(&p, &scanner) ||
        !ast_yy_scan_bytes(s->text + skip, (int)(s->n - skip), scanner)) {
        diag_error(d, (Span){0}, "out of memory while reading '%s'", s->name);
        return m;
    }
    ast_yyparse(scanner, &p);
    ast_yylex_destroy(scanner);
    return m;
}
