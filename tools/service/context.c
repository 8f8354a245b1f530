// context.c: see context.h.
//
// In: tokens. Out: what may stand at a position. Holds: braces that are missing before it do no harm
// beyond the item that they are missing in, as in the parser (frontend/syntax.c).
#include "context.h"

#include <string.h>

bool context_is(const Context *c, int token, const char *word) {
    if (token < 0 || token >= c->n) return false;
    Span s = c->tokens->data[token].span;
    return s.end - s.start == strlen(word) && !memcmp(c->text + s.start, word, strlen(word));
}

const char *context_word(const Context *c, Arena *arena, int token) {
    Span s = c->tokens->data[token].span;
    return arena_strndup(arena, c->text + s.start, s.end - s.start);
}

static bool is_any(const Context *c, int token, const char *const *words, int n) {
    for (int i = 0; i < n; i++)
        if (context_is(c, token, words[i])) return true;
    return false;
}

static bool begins_item(const Context *c, int token) {
    static const char *const words[] = {"import",        "const",     "fn",
                                        "normalization", "attention", "recurrence"};
    uint32_t start = c->tokens->data[token].span.start;
    return is_any(c, token, words, 6) && (start == 0 || c->text[start - 1] == '\n');
}

static bool defines(const Context *c, int token) { // a new name comes after it
    static const char *const words[] = {"const", "fn",   "normalization", "attention", "recurrence",
                                        "let",   "emit", "input",         "dim"};
    return is_any(c, token, words, 9);
}

// Follows the braces; c->body and c->variant are the innermost open ones.
static void follow_braces(Context *c, Arena *arena) {
    VEC(int) open = {0}; // the statements that opened them
    int statement = 0;
    VEC(int) braces = {0};
    for (int i = 0; i < c->n; i++) {
        if (c->tokens->data[i].kind == AST_TOKEN_COMMENT) {
            if (statement == i) statement = i + 1;
            continue;
        }
        if (begins_item(c, i)) open.n = braces.n = 0, statement = i;
        if (context_is(c, i, "{")) {
            VEC_PUSH(arena, &open, statement);
            VEC_PUSH(arena, &braces, i);
        } else if (context_is(c, i, "}") && open.n) {
            open.n--, braces.n--;
        }
        if (is_any(c, i, (const char *const[]){"{", "}", ";"}, 3)) statement = i + 1;
    }
    c->statement = statement;
    for (int k = 0; k < open.n; k++) {
        bool recurrence = context_is(c, open.data[k], "recurrence");
        if (recurrence || context_is(c, open.data[k], "attention")) {
            c->variant = braces.data[k];
            c->recurrence = recurrence;
        } else {
            c->body = braces.data[k];
            c->header = open.data[k];
        }
    }
}

// How many brackets of the statement are open; *equals: whether a '=' stands outside of them.
static int open_brackets(const Context *c, bool *equals) {
    int depth = 0;
    *equals = false;
    for (int i = c->statement; i < c->n; i++) {
        if (context_is(c, i, "(") || context_is(c, i, "[")) depth++;
        if ((context_is(c, i, ")") || context_is(c, i, "]")) && depth) depth--;
        if (context_is(c, i, "=") && !depth) *equals = true;
    }
    return depth;
}

static Where where_in_statement(const Context *c) {
    bool equals;
    int depth = open_brackets(c, &equals), first = c->statement, last = c->n - 1;
    bool function = context_is(c, first, "fn") || context_is(c, first, "normalization");
    bool clause = c->variant >= 0 && c->body < 0 && c->tokens->data[first].kind == AST_TOKEN_NAME;
    if (context_is(c, first, "import")) return WHERE_IMPORT;
    if (defines(c, last) || (context_is(c, first, "dim") && context_is(c, last, ",") && !depth))
        return WHERE_NOWHERE;
    if (context_is(c, first, "input"))
        return depth ? WHERE_EXTENT : context_is(c, last, ":") ? WHERE_TYPE : WHERE_NOWHERE;
    if ((function || clause) && !equals) return depth ? WHERE_PARAMETER : WHERE_NOWHERE;
    return WHERE_EXPRESSION;
}

Context context_at(Analysis *a, Arena *arena, uint32_t at) {
    Context c = {.at = at, .word = at, .body = -1, .header = -1, .variant = -1};
    c.tokens = analysis_tokens(a, 1);
    c.text = a->diags.files.data[1].text;
    while (c.n < c.tokens->n && c.tokens->data[c.n].span.end <= at) c.n++;
    int inside = c.n < c.tokens->n && c.tokens->data[c.n].span.start < at ? c.n : -1;
    if (inside < 0 && c.n && c.tokens->data[c.n - 1].span.end == at) inside = c.n - 1;
    if (inside >= 0) {
        const AstToken *t = &c.tokens->data[inside];
        bool line = t->kind == AST_TOKEN_COMMENT && c.text[t->span.start + 1] == '/';
        bool word = t->kind == AST_TOKEN_NAME || t->kind == AST_TOKEN_KEYWORD;
        if (t->kind == AST_TOKEN_NUMBER ||
            (t->kind == AST_TOKEN_COMMENT && (line || at < t->span.end)))
            return c;
        if (word) c.word = t->span.start, c.n = inside;
    }
    follow_braces(&c, arena);
    if (c.statement < c.n)
        c.where = where_in_statement(&c);
    else
        c.where = c.body >= 0 ? WHERE_BODY : c.variant >= 0 ? WHERE_VARIANT : WHERE_MODULE;
    return c;
}

bool context_over_rows(const Context *c) {
    int first = c->body >= 0 ? c->header : c->statement;
    return context_is(c, first, "normalization") || context_is(c, first, "normalize");
}
