// context.h: where in the language a position is, by the tokens before it alone: what is being written
// does not parse yet. Private to completion and signature help.
#ifndef SERVICE_CONTEXT_H
#define SERVICE_CONTEXT_H

#include "internal.h"

typedef enum Where {
    WHERE_NOWHERE,   // in a comment or a number, or a new name comes here
    WHERE_MODULE,    // an item of the module comes
    WHERE_VARIANT,   // an item of a variant
    WHERE_BODY,      // a statement of a block
    WHERE_IMPORT,    // the path of an import
    WHERE_TYPE,      // the type of an input
    WHERE_EXTENT,    // an extent of one
    WHERE_PARAMETER, // a parameter of a definition
    WHERE_EXPRESSION
} Where;

typedef struct Context {
    Where where;
    uint32_t at, word; // the position; where the word begins that ends there
    const AstTokens *tokens;
    int n;         // tokens before the word
    int statement; // the first of the statement at hand
    int body, header,
        variant;     // the braces around it, -1: none; the statement that opened the body's
    bool recurrence; // the variant is one
    const char *text;
} Context;

Context context_at(Analysis *a, Arena *arena, uint32_t at);
bool context_is(const Context *c, int token, const char *word); // false also where there is none
const char *context_word(const Context *c, Arena *arena, int token);
// In a normalization or a `normalize` clause.
bool context_over_rows(const Context *c);

#endif
