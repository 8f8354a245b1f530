// parse.h: what lexer and grammar share. Private to lex.l, gram.y, parse.c and syntax.c.
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
    int braces;             // open ones, as the parser has been told
    VEC(Span) open;         // brackets of all kinds that are open
    Span enclosing;         // the innermost of them before the token at hand; start == end: none
    Span before;            // the token before `last`
    Span last, now;         // the token before the one at hand, and that one
    int token;              // of the lexer
    Span next;              // its place
    bool held;              // it has not been handed on
    int missing;            // braces that come before it
    bool ends;              // or a ';' does
    bool unended;           // in a statement that a ';' ends, behind what it begins with
    bool operand;           // the token before it may end an expression or the path of a module
    bool word;              // it is a word of a path, if it is a reserved one
    bool returning;         // in a `return`
    bool returned;          // after one: a '}' comes next
    bool failed_deep;       // the nesting limit was reported
    bool failed_long;       // a name that is too long was reported
    AstModule *module;
    AstTokens *tokens; // NULL: not wanted
} Parse;

void parse_token(Parse *p, AstTokenKind kind, Span at); // notes that it stands there

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

// What stands where something else was expected.
typedef enum Wanted {
    WANTED_OPERAND = 1,
    WANTED_OPERATOR = 2,
    WANTED_STATEMENT = 4, // let, emit, return
    WANTED_ITEM = 8,      // of a variant: dim, input, a clause
    WANTED_PARAMS = 16,
    WANTED_COLON = 32,
    WANTED_EXTENT = 64,
    WANTED_SEMICOLON = 128,
    WANTED_DEFINITION = 1024, // import, const, fn, normalization, attention, recurrence
    WANTED_AFTER = 256,       // of a hint: it is about the token before
    MET_RESERVED = 512        // a reserved word stands there
} Wanted;
// A syntax error at a token: `what` is what the parser says of it, `keyword` the one that was probably
// meant, or NULL.
void parse_unexpected(Parse *p, Span at, const char *what, unsigned wanted, const char *keyword);
// What another language has there is said with a way on: of a character that is no token, of a number.
const char *parse_character_hint(char c);
const char *parse_number_hint(Parse *p, Span at);

// Literals; what does not fit is reported and reads as 0.
uint32_t parse_int(Parse *p, Span span);
float parse_float(Parse *p, Span span);

#endif
