// cmd_help.c: `attnc help`: the language, for the terminal. What is told comes from the .def files of
// the front end (frontend/describe.h), from the library's sources and their comments, and from the
// tables of verbs and options.
#include "cmd.h"
#include "frontend/describe.h"
#include "frontend/names.h"
#include "library.h"
#include "passes/passes.h"
#include <stdio.h>
#include <string.h>

enum { WIDTH = 100, COLUMN = 42 };

typedef struct Help {
    Arena *arena;
    FeWords words;
    const char *wanted;
    int found;
    NameGuess guess;
} Help;

// ---- text

// The text from a column on that is reached already, its further lines from `indent` on.
static void put_wrapped(const char *s, int column, int indent) {
    bool blank = false;
    while (*s) {
        int n = (int)strcspn(s, " \n");
        if (blank && column + 1 + n > WIDTH)
            printf("\n%*s", column = indent, "");
        else if (blank)
            putchar(' '), column++;
        printf("%.*s", n, s);
        column += n;
        blank = s[n] == ' ';
        if (s[n] == '\n') printf("\n%*s", column = indent, "");
        s += n + (s[n] != '\0');
    }
    putchar('\n');
}

static void put_entry(const char *left, const char *right) {
    int n = printf("  %s", left);
    if (!*right) {
        putchar('\n');
        return;
    }
    if (n + 2 > COLUMN)
        printf("\n%*s", COLUMN, "");
    else
        printf("%*s", COLUMN - n, "");
    put_wrapped(right, COLUMN, COLUMN);
}

static void put_title(const char *s) { printf("\n%s\n\n", s); }

// ---- words

static const char *signature(const Help *h, const FeWord *w) {
    Text t = text_new(h->arena);
    fe_put_signature(&t, w);
    return t.s;
}

static void put_word(const Help *h, const FeWord *w) {
    Text t = text_new(h->arena);
    text_puts(&t, w->doc);
    if (w->kind == FE_CLAUSE)
        text_printf(&t, w->absent ? ". If absent: %s" : ". Required", w->absent);
    bool shape = w->kind == FE_TENSOR;
    const char *left = w->kind == FE_CLAUSE ? arena_printf(h->arena, "%s -> %s", w->form, w->result)
                       : shape              ? arena_printf(h->arena, "%s %s", w->name, w->form)
                                            : signature(h, w);
    put_entry(left, t.s);
}

static void put_words(const Help *h, FeWordKind kind) {
    for (int i = 0; i < h->words.n; i++)
        if (h->words.data[i].kind == kind) put_word(h, &h->words.data[i]);
}

// Those of attentions, or those of recurrences.
static void put_words_of(const Help *h, FeWordKind kind, bool recurrence) {
    for (int i = 0; i < h->words.n; i++) {
        const FeWord *w = &h->words.data[i];
        if (w->kind == kind && (recurrence ? w->recurrence : w->attention)) put_word(h, w);
    }
}

// The parameters of clauses, each once.
static void put_params(const Help *h, bool recurrence) {
    NameMap seen = {0};
    for (int i = 0; i < h->words.n; i++) {
        const FeWord *w = &h->words.data[i];
        for (int k = 0; w->kind == FE_CLAUSE && w->recurrence == recurrence && k < w->nparams;
             k++) {
            const FeParam *p = &w->params[k];
            const char *left = arena_printf(h->arena, "%s: %s", p->name, p->type);
            if (names_get(&seen, left)) continue;
            names_put(h->arena, &seen, left, (void *)p);
            put_entry(left, p->doc);
        }
    }
}

// ---- the library

typedef struct LibrarySource {
    const LibraryFile *file;
    AstModule *module;
    AstTokens tokens;
} LibrarySource;

static LibrarySource parse_library(const Help *h, const LibraryFile *f) {
    LibrarySource s = {.file = f};
    Diags d = diag_list(h->arena);
    s.module = ast_parse(h->arena, &d, diag_add_file(&d, f->path, f->text, f->n), &s.tokens);
    return s;
}

static const char *comment(const Help *h, const LibrarySource *s, const AstItem *item) {
    const char *c = fe_comment_above(h->arena, s->file->text, &s->tokens, item->span.start);
    return c ? c : "";
}

static const char *head(const Help *h, const AstItem *item) {
    Text t = text_new(h->arena);
    ast_print_head(&t, item);
    return t.s;
}

static bool is_variant(const AstItem *item) {
    return item->kind == AST_ATTENTION || item->kind == AST_RECURRENCE;
}

static void put_module(const Help *h, const char *name) {
    const char *path = arena_printf(h->arena, "%s/%s.attn", library_folder, name);
    LibrarySource s = parse_library(h, library_find(path));
    printf("import std.%s;\n\n", name);
    for (int i = 0; i < s.module->items.n; i++) {
        const AstItem *item = s.module->items.data[i];
        if (item->kind != AST_IMPORT)
            put_entry(strchr(head(h, item), ' ') + 1, comment(h, &s, item));
    }
}

// ---- pages

static void put_clauses(const Help *h) {
    puts(
        "Parameters are known by their place: their names are free, and the last ones may be left\n"
        "out. A body is `= expression;` or `{ let ...; return expression; }`.");
    put_title("Of an attention:");
    put_words_of(h, FE_CLAUSE, false);
    put_title("Their parameters:");
    put_params(h, false);
    put_title("Of a recurrence:");
    put_words_of(h, FE_CLAUSE, true);
    put_title("Their parameters:");
    put_params(h, true);
}

static void put_statements(const Help *h) { put_words(h, FE_KEYWORD); }

static void put_builtins(const Help *h) {
    put_words(h, FE_BUILTIN);
    putchar('\n');
    put_words(h, FE_CONSTANT);
    puts("\nA number is an i32 or an f32; the result is an i32 if all arguments are. Functions of "
         "numbers\n"
         "take rows, too, element by element.");
}

static void put_operators(const Help *h) {
    put_entry("c ? a : b", "a bool; two numbers or two bools, whose type it gives");
    put_words(h, FE_OPERATOR);
}

static void put_types(const Help *h) {
    put_words(h, FE_TYPE);
    puts("\nExpressions are f32, i32 or bool. Conversions:\n");
    for (int i = 0; i < h->words.n; i++) {
        const FeWord *w = &h->words.data[i];
        if (w->kind == FE_BUILTIN && strcmp(w->params[0].type, "any") == 0) put_word(h, w);
    }
}

static void put_inputs(const Help *h) {
    int next = 0;
    put_word(h, fe_word(&h->words, "input", &next));
    put_title("Types:");
    put_words(h, FE_TYPE);
    put_title("The command gets them by:");
    options_help_on("in");
}

static void put_shapes(const Help *h) {
    puts("Of an attention:\n");
    put_words_of(h, FE_TENSOR, false);
    putchar('\n');
    put_words_of(h, FE_SIZE, false);
    put_title("Of a recurrence:");
    put_words_of(h, FE_TENSOR, true);
    putchar('\n');
    put_words_of(h, FE_SIZE, true);
    put_title("The command gets them by:");
    options_help_on("in");
    options_help_on("shape");
    options_help_on("define");
}

static void put_gradients(const Help *h) {
    static const char *const rows[][2] = {
        {"do", "comes: the gradient of o; drawn like any tensor where nothing names it"},
        {"dlse, dNAME",
         "comes: the gradient of an emit; 0 where nothing names it, and drawn by check"},
        {"dstate", "comes, of a recurrence: the gradient of the last state; likewise 0"},
        {"dq, dk, dv", "goes out, in the shapes of q, k and v; heads that share k and v add up"},
        {"dNAME", "goes out: the gradient of an input that is marked `grad`; [1] of a number"},
        {"dstate0", "goes out, of a recurrence: the gradient of the first state"},
        {"max, min", "half to each side at a tie; nothing at a tie with a constant"},
        {"abs", "0 at 0"},
        {"rowmax, rowmin", "shared evenly among the keys that attain it"},
        {"floor, i32, <, ==, ?:", "0 to what decides; a branch that is not taken gets 0"},
        {"mask", "a key outside gets 0, whatever stands there; a row without a key has none"},
    };
    (void)h;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) put_entry(rows[i][0], rows[i][1]);
    put_title("The command takes and gives them by:");
    options_help_on("in");
    options_help_on("out");
    options_help_on("phase");
}

static void put_masks(const Help *h) { put_module(h, "mask"); }
static void put_scores(const Help *h) { put_module(h, "modify"); }
static void put_functions(const Help *h) { put_module(h, "math"); }
static void put_normalizations(const Help *h) { put_module(h, "normalization"); }

static void put_variants(const Help *h) {
    const LibraryFile *f;
    for (size_t i = 0; (f = library_at(i)); i++) {
        LibrarySource s = parse_library(h, f);
        for (int k = 0; k < s.module->items.n; k++)
            if (is_variant(s.module->items.data[k]))
                put_entry(head(h, s.module->items.data[k]),
                          comment(h, &s, s.module->items.data[0]));
    }
}

static void put_habits(const Help *h) {
    const char *name, *what;
    (void)h;
    for (int i = 0; fe_habit(i, &name, &what); i++) put_entry(name, what);
}

static void put_passes(const Help *h) {
    (void)h;
    for (int i = 0; i < PASS_COUNT; i++) {
        const Pass *pass = pass_get((PassId)i);
        put_entry(pass->name, pass->what);
    }
}

static const struct {
    const char *name;
    void (*put)(const Help *h);
    const char *what;
} topics[] = {
#define TOPIC(name, function, what) {name, function, what},
#include "topics.def"
#undef TOPIC
};
enum { TOPICS = sizeof topics / sizeof *topics };

// ---- what is asked for

// Whether a name is what is wanted; `builtins` is `built-ins`.
static bool matches(Help *h, const char *name) {
    const char *a = h->wanted, *b = name;
    while (*a && *b) {
        while (*a == '-' && a[1]) a++;
        while (*b == '-' && b[1]) b++;
        if (*a != *b) break;
        a++, b++;
    }
    bool same = *a == *b;
    if (same && h->found++) putchar('\n');
    if (!same) names_guess(&h->guess, name);
    return same;
}

static void find_word(Help *h) {
    static const char *const kinds[] = {
        [FE_KEYWORD] = "a reserved word", [FE_CLAUSE] = "a clause",     [FE_BUILTIN] = "built in",
        [FE_CONSTANT] = "built in",       [FE_TYPE] = "a type",         [FE_SIZE] = "a size",
        [FE_TENSOR] = "a tensor",         [FE_OPERATOR] = "an operator"};
    for (int i = 0; i < h->words.n; i++) {
        const FeWord *w = &h->words.data[i];
        bool all = w->attention && w->recurrence;
        if (!matches(h, w->name)) continue;
        printf("%s: %s%s\n\n", w->name, kinds[w->kind],
               all            ? ""
               : w->attention ? " of attentions"
                              : " of recurrences");
        put_word(h, w);
        for (int k = 0; k < w->nparams && *w->params[k].doc; k++)
            put_entry(arena_printf(h->arena, "    %s: %s", w->params[k].name, w->params[k].type),
                      w->params[k].doc);
    }
}

// The clauses that give a value this name, in the pages; names of parameters are free.
static void find_param(Help *h) {
    bool any = false;
    for (int i = 0; i < h->words.n; i++) {
        const FeWord *w = &h->words.data[i];
        for (int k = 0; w->kind == FE_CLAUSE && k < w->nparams; k++) {
            const FeParam *p = &w->params[k];
            if (strcmp(p->name, h->wanted) != 0) continue;
            if (!any && matches(h, p->name)) printf("%s: a parameter of clauses\n\n", p->name);
            put_entry(arena_printf(h->arena, "%s: %s", w->form, p->type), p->doc);
            any = true;
        }
    }
}

// What a normalization of the library emits.
static void find_emits(Help *h, const LibrarySource *s, const AstItem *item, const char *file) {
    for (int i = 0; i < item->body.lets.n; i++) {
        const AstLet *l = &item->body.lets.data[i];
        if (!l->emit || !matches(h, l->name.s)) continue;
        printf("%s: a number of each row beside o, by std.%.*s\n\n", l->name.s,
               (int)strcspn(file, "."), file);
        put_entry(head(h, item), comment(h, s, item));
    }
}

static void find_in_library(Help *h) {
    const LibraryFile *f;
    for (size_t i = 0; (f = library_at(i)); i++) {
        LibrarySource s = parse_library(h, f);
        for (int k = 0; k < s.module->items.n; k++) {
            const AstItem *item = s.module->items.data[k];
            const char *file = f->path + strlen(library_folder) + 1;
            find_emits(h, &s, item, file);
            if (item->kind == AST_IMPORT || item->kind == AST_CONST || !matches(h, item->name.s))
                continue;
            if (is_variant(item))
                printf("%s: a variant of the library, stdlib/%s\n\n%s", item->name.s, file,
                       f->text);
            else
                printf("%s: of the library, import std.%.*s;\n\n", item->name.s,
                       (int)strcspn(file, "."), file);
            if (!is_variant(item)) put_entry(head(h, item), comment(h, &s, item));
        }
    }
}

static void find_habit(Help *h) {
    const char *name, *what;
    for (int i = 0; fe_habit(i, &name, &what); i++) {
        if (!matches(h, name)) continue;
        printf("%s: of other languages\n\n", name);
        put_entry(name, what);
    }
}

static Status find_all(Help *h) {
    const char *what;
    names_guess_init(&h->guess, h->wanted);
    for (int v = 0; v < VERB_COUNT; v++)
        if (matches(h, options_verb((Verb)v, &what))) options_help((Verb)v);
    for (int i = 0; i < TOPICS; i++) {
        if (!matches(h, topics[i].name)) continue;
        printf("%s: %s\n\n", topics[i].name, topics[i].what);
        topics[i].put(h);
    }
    find_word(h);
    find_param(h);
    find_in_library(h);
    find_habit(h);
    if (h->found) return STATUS_DONE;
    if (h->guess.best)
        return cmd_fail(STATUS_USAGE, "there is no help on '%s'; did you mean '%s'?", h->wanted,
                        h->guess.best);
    return cmd_fail(STATUS_USAGE,
                    "there is no help on '%s'; `attnc help` lists what there is, and `attnc "
                    "help variants` the library's attentions",
                    h->wanted);
}

static void put_overview(void) {
    puts("attnc help TOPIC tells of the language, attnc help VERB of a verb of the command, and "
         "attnc help\n"
         "NAME of any word of the language or name of the library.\n\nTopics:\n");
    for (int i = 0; i < TOPICS; i++) printf("  %-16s %s\n", topics[i].name, topics[i].what);
    puts("\nVerbs:\n");
    for (int v = 0; v < VERB_COUNT; v++) {
        const char *what, *name = options_verb((Verb)v, &what);
        printf("  %-16s %s\n", name, what);
    }
}

Status cmd_help(const Options *o) {
    if (!o->files.n) {
        put_overview();
        return STATUS_DONE;
    }
    Help h = {.arena = arena_new(), .wanted = o->files.data[0]};
    h.words = fe_words(h.arena);
    Status s = find_all(&h);
    arena_free(h.arena);
    return s;
}
