// parse.h: what lexer and grammar share. Private to lex.l, gram.y and parse.c.
#ifndef FRONTEND_PARSE_H
#define FRONTEND_PARSE_H

#include "frontend/ast.h"

typedef struct Parse {
    Arena *arena;
    Diags *diags;
    uint16_t file;
    const char *text;
    size_t n;
    uint32_t offset;        // of the lexer
    uint32_t comment_start; // of the block comment being read
    int braces;             // open ones, as the lexer has seen them
    bool failed_deep;       // the nesting limit was reported
    bool failed_long;       // a name that is too long was reported
    AstModule *module;
} Parse;

// Nodes. parse_nest counts one more level around e and says whether the limit still holds (it
// reports when not).
AstExpr *parse_expr(Parse *p, AstKind kind, Span span, AstExpr *a, AstExpr *b, AstExpr *c);
AstExpr *parse_operator(Parse *p, AstOp op, Span span, Span op_span, AstExpr *a, AstExpr *b);
bool parse_nest(Parse *p, AstExpr *e, Span at);
AstItem *parse_item(Parse *p, AstItemKind kind, Span span, AstName name);
AstItem *parse_broken(Parse *p, AstItemKind kind, Span span, AstName name);
AstItem *parse_variant(Parse *p, AstItemKind kind, Span span, AstName name, AstItems items);
AstName parse_name(Parse *p, Span span);
void parse_too_deep(Parse *p, Span at);

// Literals; what does not fit is reported and reads as 0.
uint32_t parse_int(Parse *p, Span span);
float parse_float(Parse *p, Span span);

#endif
