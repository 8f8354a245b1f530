// The language in words: every row of the .def files is there, as the compiler takes it; and the
// comments above definitions.
#include "frontend/describe.h"
#include "frontend/frontend.h"
#include "tests/unit/test.h"

// What a source of this text is told; NULL: nothing.
static const char *mistake(Arena *a, const char *text) {
    Diags d = diag_list(a);
    FeStatus status;
    FeOptions o = {.path = "a.attn", .text = text, .text_bytes = strlen(text), .module = true};
    fe_load(a, &d, &o, &status);
    return d.errors ? d.first->message : NULL;
}

static const FeWord *find(const FeWords *words, FeWordKind kind, const char *name) {
    int next = 0;
    for (const FeWord *w; (w = fe_word(words, name, &next));)
        if (w->kind == kind) return w;
    ck_abort_msg("%s is not there", name);
    return NULL;
}

ARENA_TEST(words_are_described) {
    FeWords words = fe_words(a);
    int kinds[FE_OPERATOR + 1] = {0};
    for (int i = 0; i < words.n; i++) {
        const FeWord *w = &words.data[i];
        kinds[w->kind]++;
        ck_assert_msg(*w->doc && w->doc[strlen(w->doc) - 1] != '.', "%s: '%s'", w->name, w->doc);
        ck_assert(w->attention || w->recurrence);
        ck_assert_int_eq(w->result != NULL, w->kind == FE_CLAUSE || w->kind == FE_BUILTIN);
        for (int k = 0; k < w->nparams; k++) ck_assert(*w->params[k].name && *w->params[k].type);
    }
    for (int k = 0; k <= FE_OPERATOR; k++) ck_assert_int_gt(kinds[k], 0);
    ck_assert_int_eq(kinds[FE_OPERATOR], AST_OP_COUNT);
}

// A name that is said to be reserved, built in, a size or a tensor may not be defined anew.
ARENA_TEST(words_are_taken) {
    FeWords words = fe_words(a);
    for (int i = 0; i < words.n; i++) {
        const FeWord *w = &words.data[i];
        const char *form = w->attention ? "attention" : "recurrence";
        const char *rest = w->attention ? "score(q, k) = dot(q, k); normalize(s) = s;" : "";
        const char *text = NULL;
        if (w->kind == FE_KEYWORD || w->kind == FE_CONSTANT)
            text = arena_printf(a, "const %s = 1;", w->name);
        if (w->kind == FE_BUILTIN) text = arena_printf(a, "fn %s(x) = x;", w->name);
        if (w->kind == FE_SIZE && strcmp(w->name, "D") && strcmp(w->name, "Dv"))
            text = arena_printf(a, "const %s = 1; %s a { dim D = 1; %s }", w->name, form, rest);
        if (w->kind == FE_TENSOR)
            text = arena_printf(a, "%s a { dim D = 1; input %s: f32; %s }", form, w->name, rest);
        if (text) ck_assert_msg(mistake(a, text) != NULL, "'%s' is no mistake", text);
        if (w->kind != FE_TYPE) continue;
        text = arena_printf(a, "recurrence a { dim D = 1; input _x: %s; }", w->name);
        ck_assert_msg(!mistake(a, text), "'%s': %s", text, mistake(a, text));
    }
}

// A call with as many arguments as are shown is right, and one with another more is not.
ARENA_TEST(calls_are_as_described) {
    FeWords words = fe_words(a);
    static const char form[] =
        "attention a { dim D = 1; score(q, k) = f32(%s(%s%s)); normalize(s) = s; }",
                      row[] = "normalization n(s) = f32(%s(%s%s)) * s;";
    for (int i = 0; i < words.n; i++) {
        const FeWord *w = &words.data[i];
        if (w->kind != FE_BUILTIN) continue;
        const char *args = !strcmp(w->params[0].type, "vector") ? (w->nparams == 2 ? "q, k" : "k")
                           : w->nparams == 2                    ? "1.5, 2"
                                                                : "1.5";
        const char *good =
            arena_printf(a, !strcmp(w->params[0].type, "row") ? row : form, w->name, args, "");
        const char *more = arena_printf(a, form, w->name, args, ", 1");
        ck_assert_msg(!mistake(a, good), "'%s': %s", good, mistake(a, good));
        ck_assert_msg(mistake(a, more) != NULL, "'%s' is no mistake", more);
    }
}

static const char *signature(Arena *a, const FeWord *w) {
    Text t = text_new(a);
    fe_put_signature(&t, w);
    return t.s;
}

ARENA_TEST(signatures) {
    FeWords w = fe_words(a);
    ck_assert_str_eq(signature(a, find(&w, FE_CLAUSE, "mask")),
                     "mask(b: i32, h: i32, q_idx: i32, kv_idx: i32) -> bool");
    ck_assert_str_eq(signature(a, find(&w, FE_CLAUSE, "score")),
                     "score(q: vector, k: vector) -> f32");
    ck_assert_str_eq(signature(a, find(&w, FE_BUILTIN, "min")),
                     "min(x: number, y: number) -> number");
    ck_assert_str_eq(signature(a, find(&w, FE_BUILTIN, "i32")), "i32(x: any) -> i32");
    ck_assert_str_eq(signature(a, find(&w, FE_BUILTIN, "rowmax")), "rowmax(s: row) -> f32");
    ck_assert_str_eq(signature(a, find(&w, FE_KEYWORD, "let")), "let NAME = expression;");
    ck_assert_str_eq(find(&w, FE_CLAUSE, "modify")->form, "modify(s, b, h, q_idx, kv_idx)");
    ck_assert_str_eq(find(&w, FE_CLAUSE, "mask")->absent, "true");
    ck_assert_ptr_null(find(&w, FE_CLAUSE, "score")->absent);
}

TEST(comments_above) {
    static const struct {
        const char *text, *comment;
    } cases[] = {
        {"// one\nfn f() = 1;", "one"},
        {"//one\n//  two \nfn f() = 1;", "one two"},
        {"// one\n//\n// two\nfn f() = 1;", "one\ntwo"},
        {"/* one\n * two\n */\nfn f() = 1;", "one two"},
        {"// head\n\n// one\nfn f() = 1;", "one"},
        {"// one\n\nfn f() = 1;", NULL},
        {"const A = 1; // a\nfn f() = 1;", NULL},
        {"/* one */ fn f() = 1;", NULL},
        {"//\nfn f() = 1;", NULL},
        {"// one\r\n  // two\r\n  fn f() = 1;", "one two"},
        {"fn f() = 1;", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena *a = arena_new();
        Diags d = diag_list(a);
        const char *text = cases[i].text;
        AstTokens tokens = {0};
        AstModule *m = ast_parse(a, &d, diag_add_file(&d, "c", text, strlen(text)), &tokens);
        const AstItem *f = m->items.data[m->items.n - 1];
        const char *comment = fe_comment_above(a, text, &tokens, f->span.start);
        ck_assert_pstr_eq(comment, cases[i].comment);
        arena_free(a);
    }
}

ARENA_TEST(heads) {
    static const char text[] = "import std.mask; const A = 1; fn f(x, y) = x; attention a { input "
                               "i: f32[H, 4] grad; input j: i32; mask(b) = true; }";
    static const char *const heads[] = {
        "import std.mask",         "const A",      "fn f(x, y)", "attention a",
        "input i: f32[H, 4] grad", "input j: i32", "mask(b)"};
    Diags d = diag_list(a);
    AstModule *m = ast_parse(a, &d, diag_add_file(&d, "h", text, sizeof text - 1), NULL);
    for (int i = 0; i < 7; i++) {
        Text t = text_new(a);
        ast_print_head(&t, i < 4 ? m->items.data[i] : m->items.data[3]->items.data[i - 4]);
        ck_assert_str_eq(t.s, heads[i]);
    }
}
