// syntax.c: between lexer and parser: closing braces and ends of statements that are missing, and what is said of a syntax
// error.
//
// In: tokens. Out: the same tokens, with a '}' before what cannot stand inside braces (reported once,
// with the place where the block was opened), and a ';' before a line that begins a statement, so that what follows is read as it was meant. A message
// says what to write instead where it is known what other languages have there (habits.def).
#include "frontend/describe.h"
#include "frontend/gram.h"
#include "frontend/parse.h"

#include <ctype.h>
#include <string.h>

int ast_scan(AST_YYSTYPE *value, Span *span, void *scanner);
Parse *ast_yyget_extra(void *scanner);

// ---- text around a token

static bool stands(const Parse *p, Span at, const char *word) {
    return at.end - at.start == strlen(word) &&
           !memcmp(p->text + at.start, word, at.end - at.start);
}

// The first character from a place on that is no blank, 0 at the end of the text.
static uint32_t skip_blanks(const Parse *p, uint32_t at) {
    while (at < p->n && strchr(" \t", p->text[at])) at++;
    return at;
}

static char char_at(const Parse *p, uint32_t at) { return at < p->n ? p->text[at] : '\0'; }
static char char_before(const Parse *p, Span at) { return at.start ? p->text[at.start - 1] : '\n'; }

static bool same_line(const Parse *p, uint32_t from, uint32_t to) {
    return from >= to || !memchr(p->text + from, '\n', to - from);
}

// ---- brackets

static Span top(const Parse *p) { return p->open.n ? p->open.data[p->open.n - 1] : (Span){0}; }

static void open_and_close(Parse *p, int token, Span at) {
    p->enclosing = top(p);
    if (token == '{' || token == '(' || token == '[') {
        VEC_PUSH(p->arena, &p->open, at);
        p->braces += token == '{';
    } else if (token == '}') {
        p->braces--;
        while (p->open.n && p->text[top(p).start] != '{') p->open.n--; // their ends are missing
        if (p->open.n) p->open.n--;
    } else if (token == ';') {
        while (p->open.n && p->text[top(p).start] != '{') p->open.n--;
    } else if (token == ')' || token == ']') {
        if (p->open.n && p->text[top(p).start] == (token == ')' ? '(' : '[')) p->open.n--;
    }
}

static bool begins_item(int token) {
    return token == IMPORT || token == CONST || token == FN || token == NORMALIZATION ||
           token == ATTENTION || token == RECURRENCE;
}

static bool begins_clause(const Parse *p, int token,
                          Span at) { // or declares something of a variant
    bool clause = token == NAME && char_at(p, skip_blanks(p, at.end)) == '(';
    return token == DIM || token == INPUT || clause;
}

// How many '}' are missing before the token: all where it begins an item of the module, at the
// beginning of a line or after a block's `return`; one where it begins an item of a variant there.
static int count_missing(const Parse *p, int token, Span at) {
    if (p->braces <= 0) return 0;
    if (begins_item(token) && (p->returned || char_before(p, at) == '\n')) return p->braces;
    return p->returned && p->braces == 2 && begins_clause(p, token, at) &&
           !same_line(p, p->now.end, at.start);
}

static void report_missing(Parse *p, Span at) {
    Diag *g = diag_error(p->diags, at, "'}' is missing before '%.*s'", (int)(at.end - at.start),
                         p->text + at.start);
    enum { MOST_NOTES = 3 };
    int left = p->missing < MOST_NOTES ? p->missing : MOST_NOTES;
    for (int i = p->open.n; i-- > 0 && left;)
        if (p->text[p->open.data[i].start] == '{') {
            diag_note(p->diags, g, p->open.data[i], "it would close this block");
            left--;
        }
}

static AstTokenKind kind_of(int token) {
    if (token >= IMPORT && token <= RETURN) return AST_TOKEN_KEYWORD;
    if (token == NAME || token == SHARE) return AST_TOKEN_NAME;
    return token == INT || token == FLOAT ? AST_TOKEN_NUMBER : AST_TOKEN_OPERATOR;
}

// Does the token begin a statement in a new line, or close a block there, while the statement before lacks its ';'?
static bool lacks_end(const Parse *p, int token, Span at) {
    bool bracketed = p->open.n && p->text[top(p).start] != '{';
    if (!p->unended || !p->operand || bracketed || same_line(p, p->now.end, at.start)) return false;
    if (begins_item(token)) return p->braces == 0;
    if (token == LET || token == EMIT || token == RETURN || token == '}') return p->braces > 0;
    return p->braces == 1 && begins_clause(p, token, at);
}

static bool floor_division(const Parse *p, uint32_t from, bool in_brackets);

#define DIVISION "'//' begins a comment: '/' of two i32 rounds down by itself"

static void report_end(Parse *p, uint32_t end) {
    Span at = {p->file, end - 1, end};
    bool comment = floor_division(p, end, false);
    Diag *g =
        diag_error(p->diags, at, "expected ';' after this%s", comment ? " (" DIVISION ")" : "");
    diag_fix(p->diags, g, (Span){at.file, end, end}, comment ? NULL : ";");
}

static void follow(Parse *p, int token) {
    bool bracketed = p->open.n && p->text[top(p).start] != '{';
    p->operand = token == NAME || token == SHARE || token == INT || token == FLOAT ||
                 token == ')' || token == ']' || p->word;
    p->word = token == IMPORT || token == '.';
    if (token == ';' || token == '{' || token == '}')
        p->unended = false;
    else if (token == RETURN || token == IMPORT || (!bracketed && (token == '=' || token == ':')))
        p->unended = true;
}

int ast_yylex(AST_YYSTYPE *value, Span *span, void *scanner) {
    Parse *p = ast_yyget_extra(scanner);
    if (!p->held) {
        p->token = ast_scan(value, span, scanner);
        p->next = *span;
        if (p->token > 0 && p->token != AST_YYerror) parse_token(p, kind_of(p->token), *span);
        p->missing = count_missing(p, p->token, *span);
        p->ends = !p->missing && lacks_end(p, p->token, *span);
        if (p->missing) report_missing(p, *span);
        if (p->ends) report_end(p, p->now.end);
    }
    bool brace = p->missing > 0, made = brace || p->ends;
    int token = brace ? '}' : p->ends ? ';' : p->token;
    *span = made ? (Span){p->file, p->next.start, p->next.start} : p->next;
    p->missing -= brace;
    p->ends = false;
    p->held = made;
    open_and_close(p, token, *span);
    follow(p, token);
    p->returned = p->returning && token == ';';
    p->returning = token == RETURN || (p->returning && token != ';' && token != '}');
    p->before = p->last;
    p->last = p->now;
    p->now = *span;
    return token;
}

// ---- hints

typedef struct Hint {
    unsigned wanted;
    const char *token, *what;
} Hint;

static const Hint hints[] = {
#define HABIT(name, what)
#define HABIT_TOKEN(wanted, token, what) {WANTED_##wanted, token, what},
#include "habits.def"
#undef HABIT_TOKEN
#undef HABIT
};

const char *parse_character_hint(char c) {
    switch (c) {
    case '@': return " (the product of the rows q and k is dot(q, k))";
    case '#': return " (a comment begins with '//')";
    case '"':
    case '\'': return " (there are no strings; infinity is written inf)";
    }
    return "";
}

const char *parse_number_hint(Parse *p, Span at) {
    const char *s = p->text + at.start, *digits = "0123456789abcdef";
    uint32_t n = at.end - at.start;
    if (n > 2 && n < 10 && s[0] == '0' && (s[1] == 'x' || s[1] == 'X')) {
        uint32_t v = 0;
        for (uint32_t i = 2; i < n; i++) {
            const char *d = strchr(digits, tolower((unsigned char)s[i]));
            if (!d || !*d) return "";
            v = v * 16 + (uint32_t)(d - digits);
        }
        return arena_printf(p->arena, " (numbers are decimal: this is %u)", v);
    }
    uint32_t number = 0;
    while (number < n && (isdigit((unsigned char)s[number]) || s[number] == '.')) number++;
    if (number + 1 == n && strchr("fFlLuUh", s[number]))
        return arena_printf(p->arena, " (numbers have no suffix: %.*s)", (int)number, s);
    return "";
}

// `x = 2;` or `float x = 2;` or `x += 2;` where a statement should stand.
static const char *assignment_hint(const Parse *p, Span at) {
    uint32_t i = skip_blanks(p, at.end);
    if (!isalpha((unsigned char)char_at(p, at.start))) return NULL;
    if (strchr("+-*/", char_at(p, i)) && char_at(p, i) && char_at(p, i + 1) == '=')
        return "names are never changed: a new value gets a name of its own, 'let x2 = x + 1;'";
    while (isalnum((unsigned char)char_at(p, i)) || char_at(p, i) == '_') i++;
    i = skip_blanks(p, i);
    return char_at(p, i) == '=' && char_at(p, i + 1) != '='
               ? "a value gets its name by 'let x = ...;'"
               : NULL;
}

static const char *word_hint(const Parse *p, Span at, unsigned wanted) {
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++) {
        if (!(hints[i].wanted & wanted)) continue;
        if (hints[i].wanted == WANTED_AFTER ? stands(p, p->last, hints[i].token)
                                            : stands(p, at, hints[i].token))
            return hints[i].what;
    }
    return NULL;
}

// The name before has the parameters of its clause, where there is one.
static const char *params_hint(const Parse *p) {
    FeWords words = fe_words(p->arena);
    for (int i = 0; i < words.n; i++) {
        const FeWord *w = &words.data[i];
        if (w->kind != FE_CLAUSE || !stands(p, p->last, w->name)) continue;
        int n = w->nparams -
                (!strcmp(w->name, "decay") || !strcmp(w->name, "bonus")); // d: for each channel
        Text t = text_new(p->arena);
        for (int k = 0; k < n; k++) text_printf(&t, "%s%s", k ? ", " : "", w->params[k].name);
        return arena_printf(
            p->arena,
            "parameters come first, in parentheses: %s(%s) = ...; trailing ones may be left out",
            w->name, t.s);
    }
    return "parameters come first, in parentheses: normalize(s) = ...";
}

// `if (c) a`, in the expression that goes on here: the parenthesis passes for a call's.
static bool after_if(const Parse *p, Span at) {
    uint32_t i = at.start;
    while (i > 0 && !strchr(";{}", char_at(p, i - 1)) &&
           (char_at(p, i - 1) != '=' || (i > 1 && strchr("<>=!", char_at(p, i - 2)))))
        i--;
    i = skip_blanks(p, i);
    return char_at(p, i) == 'i' && char_at(p, i + 1) == 'f' &&
           char_at(p, skip_blanks(p, i + 2)) == '(';
}

static const char *hint(const Parse *p, Span at, unsigned wanted) {
    char before = at.start == p->last.end ? char_before(p, at) : ' ', c = char_at(p, at.start);
    bool in_call = p->enclosing.end && p->text[p->enclosing.start] == '(';
    if (wanted & WANTED_OPERAND && c == '*' && before == '*') return "a power is pow(x, y)";
    if (wanted & WANTED_OPERAND && c == '>' && (before == '=' || before == '-'))
        return "a body is '= expression;' or '{ ... return expression; }'";
    if (wanted & WANTED_OPERAND && c == '>' && before == '<') return "'<>' is written '!='";
    if (wanted & WANTED_OPERAND && c == '+') return "there is no unary '+'";
    if (c == '[' && before == ']')
        return "indices and extents stand in one pair of brackets, x[i, j]";
    if (wanted & WANTED_OPERATOR && stands(p, at, "="))
        return in_call ? "arguments have no names, and to compare is '=='" : "did you mean '=='?";
    if (wanted & WANTED_OPERAND && in_call && stands(p, at, "dim"))
        return "reductions go over the keys of a row: softmax(s), rowmax(x)";
    if (wanted & WANTED_OPERATOR && after_if(p, at))
        return "a choice is written 'condition ? a : b'";
    if (c == ')' && !in_call) return "there is no '(' for it";
    if (c == '}' && p->braces < 0) return "there is no '{' for it";
    const char *known = word_hint(p, at, wanted | WANTED_AFTER);
    if (!known && wanted & WANTED_STATEMENT) known = assignment_hint(p, at);
    if (!known && wanted & WANTED_STATEMENT && (isalnum((unsigned char)c) || c == '('))
        known = "the result is given by 'return ...;'";
    if (!known && wanted & WANTED_PARAMS) known = params_hint(p);
    if (!known && wanted & WANTED_DEFINITION)
        known = "here stand import, const, fn, normalization, attention and recurrence";
    if (!known && wanted & WANTED_COLON) known = "an input is written 'input x: f32[H, D];'";
    if (!known && wanted & WANTED_EXTENT)
        known = "an extent is a name or a number: 'dim E = 2 * D;' names one, and a new name takes "
                "its size from the tensor";
    if (known || !(wanted & MET_RESERVED)) return known;
    return wanted & WANTED_SEMICOLON ? "';' ends each statement" : "this is a reserved word";
}

// Is the rest of the line a comment that was meant as a division? It holds what ends the statement, or within
// brackets what closes them or a number.
static bool floor_division(const Parse *p, uint32_t from, bool in_brackets) {
    uint32_t i = skip_blanks(p, from);
    const char *s = p->text + i, *end = i < p->n ? memchr(s, '\n', p->n - i) : NULL;
    size_t n = end ? (size_t)(end - s) : p->n - i;
    if (n < 3 || memcmp(s, "//", 2) != 0) return false;
    bool closes = memchr(s, ')', n) || memchr(s, ']', n);
    return memchr(s, ';', n) ||
           (in_brackets && (closes || isdigit((unsigned char)char_at(p, skip_blanks(p, i + 2)))));
}

void parse_unexpected(Parse *p, Span at, const char *what, unsigned wanted, const char *keyword) {
    if (at.start == at.end && at.start < p->n) return; // a brace that was missing, and reported
    // `input x: f32` and, in the next line, `score(`: the name passes for what may stand behind a type.
    bool begins = char_at(p, at.start) == '(' && !same_line(p, p->before.end, p->last.start);
    uint32_t ends = begins ? p->before.end : p->last.end;
    bool line_ended = wanted & WANTED_SEMICOLON && !same_line(p, ends, at.start);
    if (line_ended) {
        report_end(p, ends);
        return;
    }
    bool bracketed = p->enclosing.end && p->text[p->enclosing.start] != '{';
    bool divided =
        bracketed && !same_line(p, p->last.end, at.start) && floor_division(p, p->last.end, true);
    const char *more = divided   ? DIVISION
                       : keyword ? arena_printf(p->arena, "did you mean '%s'?", keyword)
                                 : hint(p, at, wanted);
    const char *fix = more && strstr(more, "did you mean '=='?") ? "==" : divided ? NULL : keyword;
    Diag *g = diag_error(p->diags, at, more ? "%s (%s)" : "%s", what, more);
    diag_fix(p->diags, g, at, fix);
    char c = char_at(p, at.start);
    bool closes = at.start >= p->n || c == ';' || c == '}';
    if (closes && p->enclosing.end &&
        p->text[p->enclosing.start] != (c == '}' || c == ';' ? '{' : '\0'))
        diag_note(p->diags, g, p->enclosing, "this '%c' is open", p->text[p->enclosing.start]);
}
