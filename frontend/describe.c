// describe.c: see describe.h.
#include "frontend/describe.h"
#include "frontend/typed.h"

#include <string.h>

// ---- words

static FeParam clause_param(TxSym s) {
    static const struct {
        const char *name;
        TxType type;
        bool row;
        const char *doc;
    } symbols[] = {
#define TSYM(e, name, type, row, sym, doc) {name, type, row, doc},
#include "symbols.def"
#undef TSYM
    };
    const char *type = symbols[s].row ? "row" : tx_type_name(symbols[s].type);
    return (FeParam){symbols[s].name, type, symbols[s].doc};
}

// What it takes; what it gives is f32 but for BI_NUM, which gives what it takes, and BI_CONV.
static const char *const takes[] = {[BI_F32] = "f32", [BI_NUM] = "number", [BI_CONV] = "any",
                                    [BI_ROW] = "row", [BI_DOT] = "vector", [BI_SQNORM] = "vector"};

static void put_form(Arena *a, FeWord *w) {
    Text t = text_new(a);
    text_printf(&t, "%s(", w->name);
    for (int i = 0; i < w->nparams; i++) text_printf(&t, "%s%s", i ? ", " : "", w->params[i].name);
    text_puts(&t, ")");
    w->form = t.s;
}

static FeWord clause(Arena *a, const char *name, VariantKind of, TxType result, const char *absent,
                     const TxSym *params, int n, const char *doc) {
    FeWord w = {.kind = FE_CLAUSE,
                .name = name,
                .doc = doc,
                .result = tx_type_name(result),
                .absent = absent,
                .attention = of == VARIANT_ATTENTION,
                .recurrence = of == VARIANT_RECURRENCE,
                .nparams = n};
    for (int i = 0; i < n; i++) w.params[i] = clause_param(params[i]);
    if (!strcmp(name, "normalize")) w.result = "row";
    put_form(a, &w);
    return w;
}

static FeWord builtin(Arena *a, const char *name, int n, Typing typing, const char *params,
                      const char *doc) {
    FeWord w = {.kind = FE_BUILTIN,
                .name = name,
                .doc = doc,
                .result = typing == BI_CONV  ? name
                          : typing == BI_NUM ? takes[BI_NUM]
                                             : "f32",
                .attention = true,
                .recurrence = typing != BI_ROW && typing != BI_DOT,
                .nparams = n};
    for (int i = 0; i < n; i++) {
        size_t length = strcspn(params, ",");
        w.params[i] = (FeParam){arena_strndup(a, params, length), takes[typing], ""};
        params += length + 2;
    }
    put_form(a, &w);
    return w;
}

static FeWord plain(FeWordKind kind, const char *name, const char *form, const char *doc) {
    return (FeWord){.kind = kind,
                    .name = name,
                    .form = form,
                    .doc = doc,
                    .attention = true,
                    .recurrence = true};
}

static FeWord of(const char *variants, FeWord w) {
    w.attention = strcmp(variants, "RECURRENCE") != 0;
    w.recurrence = strcmp(variants, "ATTENTION") != 0;
    return w;
}

static FeWord operator_of(const char *text, int precedence, const char *doc) {
    FeWord w = plain(FE_OPERATOR, text, text, doc);
    w.precedence = precedence;
    return w;
}

FeWords fe_words(Arena *a) {
    FeWords words = {0};
#define ADD(w)                                                                                     \
    do {                                                                                           \
        FeWord new_ = w;                                                                           \
        VEC_PUSH(a, &words, new_);                                                                 \
    } while (0)
#define KEYWORD(token, word, form, doc) ADD(plain(FE_KEYWORD, word, form, doc));
#include "keywords.def"
#undef KEYWORD
#define PARAMS(...)                                                                                \
    (const TxSym[]){__VA_ARGS__}, (int)(sizeof((TxSym[]){__VA_ARGS__}) / sizeof(TxSym))
#define CLAUSE(e, kind, name, result, required, absent, params, doc)                               \
    ADD(clause(a, name, VARIANT_##kind, result, required ? NULL : absent, params, doc));
#include "clauses.def"
#undef CLAUSE
#undef PARAMS
#define BUILTIN(name, n, typing, op, params, doc) ADD(builtin(a, #name, n, typing, params, doc));
#include "builtins.def"
#undef BUILTIN
#define CONSTANT(name, value, doc) ADD(plain(FE_CONSTANT, #name, #name, doc));
#define TYPE(dtype, doc) ADD(plain(FE_TYPE, dtype_name(DT_##dtype), dtype_name(DT_##dtype), doc));
#define SIZE(variants, name, doc) ADD(of(#variants, plain(FE_SIZE, #name, #name, doc)));
#define TENSOR(variants, name, shape, doc) ADD(of(#variants, plain(FE_TENSOR, #name, shape, doc)));
#include "predefined.def"
#define OPERATOR(e, text, prec, n, op, swap, doc) ADD(operator_of(text, prec, doc));
#include "operators.def"
#undef OPERATOR
#undef ADD
    return words;
}

const FeWord *fe_word(const FeWords *words, const char *name, int *next) {
    while (*next < words->n) {
        const FeWord *w = &words->data[(*next)++];
        if (!strcmp(w->name, name)) return w;
    }
    return NULL;
}

void fe_put_signature(Text *out, const FeWord *w) {
    if (!w->result) {
        text_puts(out, w->form);
        return;
    }
    text_printf(out, "%s(", w->name);
    for (int i = 0; i < w->nparams; i++)
        text_printf(out, "%s%s: %s", i ? ", " : "", w->params[i].name, w->params[i].type);
    text_printf(out, ") -> %s", w->result);
}

bool fe_habit(int i, const char **name, const char **what) {
    static const char *const habits[][2] = {
#define HABIT(name, what) {name, what},
#define HABIT_TOKEN(wanted, token, what)
#include "habits.def"
#undef HABIT_TOKEN
#undef HABIT
    };
    if (i >= (int)(sizeof habits / sizeof *habits)) return false;
    *name = habits[i][0];
    *what = habits[i][1];
    return true;
}

// ---- comments

static int lines_between(const char *text, uint32_t from, uint32_t to) {
    int n = 0;
    for (; from < to; from++) n += text[from] == '\n';
    return n;
}

static bool begins_line(const char *text, uint32_t at) {
    while (at > 0 && (text[at - 1] == ' ' || text[at - 1] == '\t')) at--;
    return at == 0 || text[at - 1] == '\n';
}

static void put_line(Text *t, const char *s, size_t n) {
    while (n && strchr(" \t\r*", *s)) s++, n--; // also the column of * of a block
    while (n && strchr(" \t\r", s[n - 1])) n--;
    bool paragraph = t->n && t->s[t->n - 1] == '\n';
    if (!n)
        text_puts(t, t->n && !paragraph ? "\n" : "");
    else
        text_printf(t, "%s%.*s", t->n && !paragraph ? " " : "", (int)n, s);
}

static void put_comment(Text *t, const char *s, size_t n) {
    n -= s[1] == '*' ? 4 : 2;
    s += 2;
    for (;;) {
        const char *eol = memchr(s, '\n', n);
        put_line(t, s, eol ? (size_t)(eol - s) : n);
        if (!eol) return;
        n -= (size_t)(eol + 1 - s);
        s = eol + 1;
    }
}

const char *fe_comment_above(Arena *a, const char *text, const AstTokens *tokens, uint32_t start) {
    int end = 0;
    while (end < tokens->n && tokens->data[end].span.start < start) end++;
    int first = end;
    uint32_t below = start;
    while (first > 0) {
        const AstToken *t = &tokens->data[first - 1];
        if (t->kind != AST_TOKEN_COMMENT || !begins_line(text, t->span.start) ||
            lines_between(text, t->span.end, below) != 1)
            break;
        below = t->span.start;
        first--;
    }
    if (first == end) return NULL;
    Text t = text_new(a);
    text_puts(&t, "");
    for (int i = first; i < end; i++) {
        Span at = tokens->data[i].span;
        put_comment(&t, text + at.start, at.end - at.start);
    }
    while (t.n && t.s[t.n - 1] == '\n') t.s[--t.n] = '\0';
    return t.n ? t.s : NULL;
}
