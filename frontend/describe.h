// describe.h: what the language has, in words: for `attnc help`, and for hover, completion and
// signature help of editors. All of it comes from the .def files that the compiler itself is made of.
#ifndef FRONTEND_DESCRIBE_H
#define FRONTEND_DESCRIBE_H

#include "frontend/ast.h"

typedef enum FeWordKind {
    FE_KEYWORD,
    FE_CLAUSE,
    FE_BUILTIN, // functions, with the conversions f32, i32 and bool
    FE_CONSTANT,
    FE_TYPE, // of inputs
    FE_SIZE,
    FE_TENSOR,
    FE_OPERATOR
} FeWordKind;

enum { FE_MAX_PARAMS = 5 };

typedef struct FeParam {
    const char *name;
    const char *type; // "f32", "i32", "row" of f32, "vector" (a row of q or k), "number", "any"
    const char *doc;  // "": there is nothing to say
} FeParam;

typedef struct FeWord {
    FeWordKind kind;
    const char *name;
    const char *
        form; // KEYWORD: "import std.mask;"; CLAUSE, BUILTIN: "min(x, y)"; TENSOR: its shape; else the name
    const char *doc;    // what it is, gives or takes: begins with a small letter, has no full stop
    const char *result; // CLAUSE, BUILTIN: the type of what it gives; else NULL
    const char *absent; // CLAUSE: what it is where it is not written ("true"); NULL: it is required
    bool attention, recurrence; // where it is known
    int precedence;             // OPERATOR
    int nparams;                // CLAUSE, BUILTIN
    FeParam params[FE_MAX_PARAMS];
} FeWord;
typedef VEC(FeWord) FeWords;

FeWords fe_words(Arena *a); // in the order of the .def files
// The word at or after *next with this name; *next then stands behind it. NULL: none. Some names mean
// several things: `output`, `f32`, `-`.
const FeWord *fe_word(const FeWords *words, const char *name, int *next);
// "modify(s: f32, b: i32, h: i32, q_idx: i32, kv_idx: i32) -> f32"; else the form.
void fe_put_signature(Text *out, const FeWord *w);

// What other languages call otherwise ("relu": "it is written max(x, 0)"): the i-th; false: no more.
bool fe_habit(int i, const char **name, const char **what);

// The comment that ends on the line above `start` (of a definition), without what marks it; its lines
// are joined by blanks where they are of one paragraph. NULL: there is none.
const char *fe_comment_above(Arena *a, const char *text, const AstTokens *tokens, uint32_t start);

#endif
