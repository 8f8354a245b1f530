// ast.h: a source file as written. Made by ast_parse (lex.l, gram.y), read by sema.
//
// Every node carries its span. Nothing is resolved yet: names are texts, a clause is known by its
// name only. Long chains of binary operators lean to the left and may be as long as the file, so
// walks follow args[0] of a binary in a loop; all other nesting is at most AST_MAX_NESTING deep.
#ifndef FRONTEND_AST_H
#define FRONTEND_AST_H

#include "ir/arena.h"
#include "ir/diag.h"
#include <stdbool.h>
#include <stdint.h>

enum {
    AST_MAX_NESTING = 256, // parentheses, calls, indices, unary operators and ?: inside one another
    AST_MAX_NAME = 200,    // bytes: artifacts hold 255, of names that are made of these
    AST_MAX_BYTES = 1 << 24 // of one source file: beyond it a file is data, not a program
};

typedef enum AstOp {
#define OPERATOR(e, text, prec, n, op, swap, doc) AST_##e,
#include "operators.def"
#undef OPERATOR
    AST_OP_COUNT
} AstOp;
const char *ast_op_text(AstOp op);
int ast_op_precedence(AstOp op); // a larger one binds tighter

typedef enum AstKind {
    AST_INT,
    AST_FLOAT,
    AST_NAME,
    AST_CALL,
    AST_INDEX,
    AST_SLICE,
    AST_UNARY,
    AST_BINARY,
    AST_COND
} AstKind;

typedef struct AstName {
    const char *s; // NULL: not written
    Span span;
} AstName;
typedef VEC(AstName) AstNames;

typedef struct AstExpr AstExpr;
typedef VEC(AstExpr *) AstExprs;
struct AstExpr {
    AstKind kind;
    Span span;
    int depth;    // of nesting, see above
    AstOp op;     // UNARY, BINARY
    Span op_span; // BINARY: of the operator itself
    uint32_t i;   // INT: at most 2^31, which only a `-` before it makes fit
    float f;      // FLOAT
    AstName name; // NAME, CALL, INDEX, SLICE
    AstExprs
        args; // operands, arguments, indices; COND: condition, then, else; SLICE: begin, end, NULL where absent
};

typedef struct AstLet {
    bool emit;
    AstName name;
    AstExpr *value; // NULL after a syntax error in it
} AstLet;
typedef VEC(AstLet) AstLets;

typedef struct AstBody {
    bool block; // { ... return e; } rather than = e;
    AstLets lets;
    AstExpr *result; // NULL after a syntax error in it
} AstBody;

typedef struct AstExtent {
    AstName name; // s is NULL for an integer
    uint32_t i;
} AstExtent;
typedef VEC(AstExtent) AstExtents;

typedef enum AstItemKind {
    AST_IMPORT,
    AST_CONST,
    AST_FN,
    AST_NORMALIZATION,
    AST_ATTENTION,
    AST_RECURRENCE, // of a module
    AST_DIM,
    AST_INPUT,
    AST_SHARE,
    AST_CLAUSE // of a variant
} AstItemKind;

typedef struct AstItem AstItem;
typedef VEC(AstItem *) AstItems;
struct AstItem {
    AstItemKind kind;
    Span span;
    bool broken;        // a syntax error in it was reported; of a variant: or in one of its items
    AstName name;       // of what is defined; IMPORT: the whole path "std.mask"
    AstNames params;    // FN, NORMALIZATION, CLAUSE
    AstBody body;       // these
    AstExpr *value;     // CONST, DIM; NULL where it is broken
    AstItems items;     // ATTENTION, RECURRENCE
    AstName type, grad; // INPUT
    AstName of;         // SHARE: what `name` is taken from
    AstExtents extents; // INPUT
};

typedef struct AstModule {
    uint16_t file;
    AstItems items;
    AstNames without_let; // names that stood where a statement was expected; reported
} AstModule;

typedef enum AstTokenKind {
    AST_TOKEN_KEYWORD,
    AST_TOKEN_NAME,
    AST_TOKEN_NUMBER,
    AST_TOKEN_OPERATOR, // and brackets, separators
    AST_TOKEN_COMMENT
} AstTokenKind;
typedef struct AstToken {
    AstTokenKind kind;
    Span span;
} AstToken;
typedef VEC(AstToken) AstTokens;

// Parses source `file` of d. Always gives a module, of the parts that could be read; mistakes are
// in d. tokens: gets all that the text is made of but blanks, in its order; NULL: not wanted.
AstModule *ast_parse(Arena *a, Diags *d, uint16_t file, AstTokens *tokens);

// What an item begins with: "fn window(q_idx, kv_idx, size)", "const WINDOW", "attention causal",
// "input x: f32[H] grad".
void ast_print_head(Text *out, const AstItem *item);
// The module as source again, each item in a canonical layout; what is printed parses to the same
// tree (--emit=ast).
void ast_print(Text *out, const AstModule *m);

#endif
