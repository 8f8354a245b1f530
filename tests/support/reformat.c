// reformat.c: see reformat.h.
#include "tests/support/reformat.h"
#include "frontend/ast.h"
#include "frontend/frontend.h"

#include <stdbool.h>
#include <string.h>

// ---- what must hold

typedef struct Read {
    bool good;
    AstTokens tokens;
    Text tree;
} Read;

static Read read_text(Arena *a, const char *text, size_t n) {
    Read r = {0};
    Diags d = diag_list(a);
    const AstModule *m = ast_parse(a, &d, diag_add_file(&d, "text", text, n), &r.tokens);
    r.good = d.errors == 0;
    r.tree = text_new(a);
    text_puts(&r.tree, "");
    if (r.good) ast_print(&r.tree, m);
    return r;
}

static bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Tokens of one kind, each on a line; comments without the blanks at the end of theirs.
static Text tokens_of(Arena *a, const Read *r, const char *text, bool comments) {
    Text t = text_new(a);
    text_puts(&t, "");
    for (int i = 0; i < r->tokens.n; i++) {
        Span at = r->tokens.data[i].span;
        if ((r->tokens.data[i].kind == AST_TOKEN_COMMENT) != comments) continue;
        for (uint32_t k = at.start; k < at.end; k++) {
            uint32_t end = k;
            while (end < at.end && is_blank(text[end]) && text[end] != '\n') end++;
            if (end > k && (end == at.end || text[end] == '\n')) k = end;
            if (k < at.end) text_putn(&t, text + k, 1);
        }
        text_puts(&t, "\n");
    }
    return t;
}

static bool same(const Text *x, const Text *y) {
    return x->n == y->n && memcmp(x->s, y->s, x->n) == 0;
}

static bool format(Arena *a, const char *text, size_t n, Text *out) {
    Diags d = diag_list(a);
    *out = text_new(a);
    text_puts(out, "");
    return fe_format(a, &d, "text", text, n, out);
}

const char *reformat_wrong(Arena *a, const char *text, size_t n) {
    Text once, twice;
    Read before = read_text(a, text, n);
    bool good = format(a, text, n, &once);
    if (good != before.good)
        return "a text is formatted that does not parse, or one is not that does";
    if (!good) return once.n ? "text is put though it does not parse" : NULL;
    Read after = read_text(a, once.s, once.n);
    if (!after.good) return "the formatted text does not parse";
    if (!same(&before.tree, &after.tree)) return "the tree has changed";
    for (int comments = 0; comments < 2; comments++) {
        Text x = tokens_of(a, &before, text, comments), y = tokens_of(a, &after, once.s, comments);
        if (!same(&x, &y)) return comments ? "a comment has changed" : "a token has changed";
    }
    if (!format(a, once.s, once.n, &twice) || !same(&once, &twice))
        return "formatted again, it changes";
    if (once.n && once.s[once.n - 1] != '\n') return "the last line does not end";
    for (size_t i = 0; i + 1 < once.n; i++)
        if (is_blank(once.s[i]) && once.s[i] != '\n' && once.s[i + 1] == '\n')
            return "a line ends in blanks";
    return NULL;
}

// ---- texts

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state >> 16;
}

static void put_between(Text *t, bool needed, uint64_t *state) {
    static const char *const some[] = {" ",
                                       "\n",
                                       "\n\n",
                                       "\t",
                                       "  \r\n",
                                       "\n\n\n   ",
                                       " // after\n",
                                       "// tight\n",
                                       "\n// alone\n",
                                       "\n   // alone\t \n\n",
                                       " /* in */ ",
                                       "/**/",
                                       "\n/* at */",
                                       " /* ends */\n",
                                       "/* many\n   lines  \n*/",
                                       " // \xc3\xa9t\xc3\xa9\n",
                                       " // first\n          // below\n",
                                       "\n/* a */ /* b */ // c\n"};
    enum { SOME = sizeof some / sizeof *some };
    size_t start = t->n;
    if (next(state) % 4) {
        text_puts(t, needed || next(state) % 2 ? " " : "");
        return;
    }
    for (uint64_t k = 1 + next(state) % 2; k > 0; k--) text_puts(t, some[next(state) % SOME]);
    if (needed && t->n == start) text_puts(t, " ");
}

Text reformat_shake(Arena *a, const char *text, size_t n, uint64_t *state) {
    Read r = read_text(a, text, n);
    Text t = text_new(a);
    text_puts(&t, "");
    uint64_t longer = next(state) % 8 ? 0 : 40;
    bool rare = next(state) % 2; // few changes, or many
    for (int i = 0; i < r.tokens.n; i++) {
        const AstToken *x = &r.tokens.data[i];
        const char *s = text + x->span.start;
        bool bracket = x->kind == AST_TOKEN_OPERATOR && strchr("()[]{},;", *s);
        bool comment = x->kind == AST_TOKEN_COMMENT;
        if (comment && next(state) % 2) continue;
        text_putn(&t, s, x->span.end - x->span.start);
        if (longer && x->kind == AST_TOKEN_NAME && x->span.end - x->span.start > 2)
            text_printf(&t, "%0*d", (int)longer, 0);
        if (comment && s[1] == '/')
            text_puts(&t, "\n");
        else if (rare && next(state) % 8)
            text_puts(&t, *s == ';' ? "\n" : " ");
        else
            put_between(&t, !bracket, state);
    }
    return t;
}
