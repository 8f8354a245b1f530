// complete.c: what may come next.
//
// In: a position. Out: completions: names in scope there, built-ins, clauses with their parameters, the
// library. Holds: what is offered may stand there; what is being written need not parse.
#include "context.h"
#include "frontend/describe.h"
#include "tools/library.h"

#include <string.h>

typedef enum ItemKind { // of LSP
    ITEM_METHOD = 2,
    ITEM_FUNCTION = 3,
    ITEM_FIELD = 5,
    ITEM_VARIABLE = 6,
    ITEM_MODULE = 9,
    ITEM_KEYWORD = 14,
    ITEM_CONSTANT = 21,
    ITEM_TYPE = 25
} ItemKind;

enum { NEAR, MODULE, BUILT_IN, LIBRARY }; // what comes first

typedef struct Complete {
    Service *s;
    Document *d;
    Analysis *a;
    Arena *arena;
    Context c;
    FeWords words;
    NameMap seen;
    cJSON *items;
    bool called; // a '(' stands after the word already
} Complete;

typedef struct Item {
    const char *label, *detail, *doc;
    const char *insert; // NULL: the label; a snippet where `snippet`
    bool snippet;
    ItemKind kind;
    int order;
    const char *import; // the module to be imported for it
} Item;

// ---- items

static cJSON *edit_at(const Complete *c, uint32_t start, uint32_t end, const char *text) {
    return json_pair("range", lines_range(&c->d->lines, c->s->client.utf8, start, end), "newText",
                     cJSON_CreateString(text));
}

static void put_import(const Complete *c, cJSON *item, const char *module) {
    const AstItems *items = &c->a->uses.ast->items;
    uint32_t at = items->n ? items->data[0]->span.start : 0;
    cJSON *edits = cJSON_AddArrayToObject(item, "additionalTextEdits");
    cJSON_AddItemToArray(edits, edit_at(c, at, at, arena_printf(c->arena, "import %s;\n", module)));
}

static void put(Complete *c, Item x) {
    enum { SNIPPET = 2 };
    if (names_get(&c->seen, x.label)) return;
    names_put(c->arena, &c->seen, x.label, c);
    bool markdown = c->s->client.completion_markdown;
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "label", x.label);
    cJSON_AddNumberToObject(item, "kind", x.kind);
    if (x.detail) cJSON_AddStringToObject(item, "detail", x.detail);
    if (x.doc && *x.doc)
        cJSON_AddItemToObject(item, "documentation",
                              json_pair("kind",
                                        cJSON_CreateString(markdown ? "markdown" : "plaintext"),
                                        "value", cJSON_CreateString(x.doc)));
    cJSON_AddStringToObject(item, "sortText", arena_printf(c->arena, "%d%s", x.order, x.label));
    if (x.snippet) cJSON_AddNumberToObject(item, "insertTextFormat", SNIPPET);
    cJSON_AddItemToObject(item, "textEdit",
                          edit_at(c, c->c.word, c->c.at, x.insert ? x.insert : x.label));
    if (x.import) put_import(c, item, x.import);
    cJSON_AddItemToArray(c->items, item);
}

// "window(${1:q_idx}, ${2:kv_idx})", or the name alone.
static void put_call(Complete *c, Item x, const char *const *params, int n) {
    Text t = text_new(c->arena);
    text_printf(&t, "%s(", x.label);
    for (int i = 0; i < n; i++) text_printf(&t, "%s${%d:%s}", i ? ", " : "", i + 1, params[i]);
    text_puts(&t, ")");
    x.snippet = c->s->client.snippets && !c->called;
    if (x.snippet) x.insert = t.s;
    put(c, x);
}

// ---- names

static ItemKind kind_of(const Decl *d) {
    switch (d->kind) {
    case DECL_FN:
    case DECL_NORMALIZATION:
    case DECL_BUILTIN: return ITEM_FUNCTION;
    case DECL_CONST:
    case DECL_CONSTANT:
    case DECL_DIM:
    case DECL_SIZE: return ITEM_CONSTANT;
    case DECL_INPUT: return ITEM_FIELD;
    case DECL_CLAUSE: return ITEM_METHOD;
    case DECL_MODULE:
    case DECL_VARIANT: return ITEM_MODULE;
    case DECL_PARAM:
    case DECL_LET:
    case DECL_EMIT: break;
    }
    return ITEM_VARIABLE;
}

static void put_function(Complete *c, Analysis *a, const Decl *d, const char *import) {
    const AstItem *item = d->item;
    const char **params = ARENA_ARRAY(c->arena, const char *, item->params.n + 1);
    const AstTokens *tokens = analysis_tokens(a, d->span.file);
    Text detail = text_new(c->arena);
    hover_put_signature(&detail, a, d);
    for (int i = 0; i < item->params.n; i++) params[i] = item->params.data[i].s;
    const char *doc = fe_comment_above(c->arena, a->diags.files.data[d->span.file].text, tokens,
                                       item->span.start);
    put_call(
        c, (Item){d->name, detail.s, doc, .kind = ITEM_FUNCTION, .order = MODULE, .import = import},
        params, item->params.n);
}

static void put_decl(Complete *c, Analysis *a, const Decl *d) {
    bool value = c->c.where == WHERE_EXPRESSION;
    bool extent = d->kind == DECL_DIM || d->kind == DECL_CONST || d->kind == DECL_SIZE;
    if (!value && !extent) return;
    if (d->kind == DECL_FN || (d->kind == DECL_NORMALIZATION && context_over_rows(&c->c))) {
        if (!d->item->broken) put_function(c, a, d, NULL);
    } else if (d->kind == DECL_INPUT && !d->value) {
        Item x = {d->name, analysis_text(a, d->item->span), NULL, .kind = ITEM_FIELD,
                  .order = NEAR};
        x.snippet = c->s->client.snippets;
        if (x.snippet) x.insert = arena_printf(c->arena, "%s[$1]", d->name);
        put(c, x);
    } else if (d->kind != DECL_BUILTIN && d->kind != DECL_CONSTANT &&
               d->kind != DECL_NORMALIZATION) {
        bool local = d->kind == DECL_PARAM || d->kind == DECL_LET;
        const char *detail =
            d->item && !local ? analysis_text(a, d->item->span) : decl_kind_name(d);
        put(c, (Item){d->name, detail, NULL, .kind = kind_of(d),
                      .order = d->kind == DECL_CONST ? MODULE : NEAR});
    }
}

// Whether the name stands later, or in the statement that is being written.
static bool comes_later(const Complete *c, const Decl *d) {
    uint32_t statement =
        c->c.statement < c->c.n ? c->c.tokens->data[c->c.statement].span.start : c->c.word;
    if (d->kind == DECL_INPUT || d->kind == DECL_DIM || d->kind == DECL_PARAM) return false;
    return d->span.file == 1 && d->span.start >= (d->kind == DECL_SIZE ? c->c.word : statement);
}

// exact: the analysis is of the text as it is. Otherwise what it imported may not be imported any more.
static void put_scopes(Complete *c, Analysis *a, bool exact) {
    for (int i = 0; i < a->uses.scopes.n; i++) {
        const ScopeAt *x = &a->uses.scopes.data[i];
        if (x->span.file != 1 || c->c.at < x->span.start || c->c.at > x->span.end) continue;
        const NameMap *names = &x->scope->names;
        for (int k = 0; k < names->entries.n; k++) {
            const Decl *d = names->entries.data[k].value;
            bool local = d->kind == DECL_PARAM || d->kind == DECL_LET;
            if (exact ? !comes_later(c, d) : !local && d->span.file <= 1) put_decl(c, a, d);
        }
    }
}

// Parameters and lets before the position, also of a body that does not parse.
static void put_locals(Complete *c) {
    const Context *x = &c->c;
    int first = x->body >= 0 ? x->header : x->statement;
    bool header = true;
    for (int i = first; i < x->n && x->where == WHERE_EXPRESSION; i++) {
        bool name = x->tokens->data[i].kind == AST_TOKEN_NAME;
        header &= !context_is(x, i, ")");
        bool parameter = header && (context_is(x, i - 1, "(") || context_is(x, i - 1, ","));
        bool let = context_is(x, i - 1, "let") && i < x->statement;
        if (!name || !(parameter || let) || context_is(x, first, "const") ||
            context_is(x, first, "dim"))
            continue;
        put(c, (Item){context_word(x, c->arena, i), parameter ? "a parameter" : "a let", NULL,
                      .kind = ITEM_VARIABLE, .order = NEAR});
    }
}

// ---- what is built in

static bool known_here(const Complete *c, const FeWord *w) {
    if (c->c.variant < 0) return true;
    return c->c.recurrence ? w->recurrence : w->attention;
}

static void put_builtin(Complete *c, const FeWord *w) {
    const char *params[FE_MAX_PARAMS];
    bool row = w->nparams && !strcmp(w->params[0].type, "row");
    if (row && !context_over_rows(&c->c)) return;
    Text detail = text_new(c->arena);
    fe_put_signature(&detail, w);
    for (int i = 0; i < w->nparams; i++) params[i] = w->params[i].name;
    put_call(c, (Item){w->name, detail.s, w->doc, .kind = ITEM_FUNCTION, .order = BUILT_IN}, params,
             w->nparams);
}

// "mask(b, h, q_idx, kv_idx) = $0;": the parameters nearly always stay as they are.
static const char *clause_text(const Complete *c, const FeWord *w) {
    Text t = text_new(c->arena);
    text_printf(&t, "%s(", w->name);
    for (int i = 0; i < w->nparams; i++) text_printf(&t, "%s%s", i ? ", " : "", w->params[i].name);
    text_puts(&t, c->s->client.snippets ? ") = $0;" : ") = ");
    return t.s;
}

static bool has_clause(const Complete *c, const char *name) {
    const AstItems *items = &c->a->uses.ast->items;
    for (int i = 0; i < items->n; i++) {
        const AstItem *v = items->data[i];
        if (c->c.at < v->span.start || c->c.at > v->span.end) continue;
        for (int k = 0; k < v->items.n; k++) {
            const AstItem *x = v->items.data[k];
            bool itself = x->name.span.start == c->c.word;
            if (x->kind == AST_CLAUSE && !strcmp(x->name.s, name) && !itself) return true;
        }
    }
    return false;
}

static void put_clause(Complete *c, const FeWord *w) {
    if (has_clause(c, w->name)) return;
    Text detail = text_new(c->arena);
    fe_put_signature(&detail, w);
    Item x = {w->name, detail.s, w->doc, .kind = ITEM_METHOD, .order = NEAR};
    x.snippet = c->s->client.snippets && !c->called;
    if (!c->called) x.insert = clause_text(c, w);
    put(c, x);
}

// attention ${1:name} { ... } with the clauses that are required.
static const char *variant_text(const Complete *c, const FeWord *w) {
    int stop = 1;
    bool recurrence = !strcmp(w->name, "recurrence");
    Text t = text_new(c->arena);
    text_printf(&t, "%s ${%d:name} {\n    dim D = ${%d:64};\n", w->name, stop, stop + 1);
    stop += 2;
    for (int i = 0; i < c->words.n; i++) {
        const FeWord *x = &c->words.data[i];
        if (x->kind != FE_CLAUSE || x->absent || !(recurrence ? x->recurrence : x->attention))
            continue;
        text_printf(&t, "    %s(%s", x->name, x->params[0].name);
        if (!strcmp(x->params[0].type, "vector")) text_printf(&t, ", %s", x->params[1].name);
        text_printf(&t, ") = $%d;\n", stop++);
    }
    text_puts(&t, "}");
    return t.s;
}

static bool keyword_fits(const Complete *c, const char *word) {
    static const struct {
        const char *word;
        Where where;
    } places[] = {{"import", WHERE_MODULE},    {"const", WHERE_MODULE},
                  {"fn", WHERE_MODULE},        {"normalization", WHERE_MODULE},
                  {"attention", WHERE_MODULE}, {"recurrence", WHERE_MODULE},
                  {"dim", WHERE_VARIANT},      {"input", WHERE_VARIANT},
                  {"let", WHERE_BODY},         {"emit", WHERE_BODY},
                  {"return", WHERE_BODY}};
    if (!strcmp(word, "emit") && !context_over_rows(&c->c)) return false;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (!strcmp(places[i].word, word)) return places[i].where == c->c.where;
    return false;
}

static void put_keyword(Complete *c, const FeWord *w) {
    if (!keyword_fits(c, w->name)) return;
    bool variant = !strcmp(w->name, "attention") || !strcmp(w->name, "recurrence");
    Item x = {w->name, w->form, w->doc, .kind = ITEM_KEYWORD, .order = MODULE};
    x.insert = arena_printf(c->arena, "%s ", w->name);
    x.snippet = variant && c->s->client.snippets;
    if (x.snippet) x.insert = variant_text(c, w);
    put(c, x);
}

static void put_words(Complete *c) {
    Where where = c->c.where;
    for (int i = 0; i < c->words.n; i++) {
        const FeWord *w = &c->words.data[i];
        bool value = where == WHERE_EXPRESSION;
        if (!known_here(c, w)) continue;
        if (w->kind == FE_KEYWORD) put_keyword(c, w);
        if (w->kind == FE_CLAUSE && where == WHERE_VARIANT) put_clause(c, w);
        if (w->kind == FE_BUILTIN && value) put_builtin(c, w);
        if (w->kind == FE_CONSTANT && value)
            put(c, (Item){w->name, NULL, w->doc, .kind = ITEM_CONSTANT, .order = BUILT_IN});
        if (w->kind == FE_TYPE && where == WHERE_TYPE)
            put(c, (Item){w->name, NULL, w->doc, .kind = ITEM_TYPE, .order = NEAR});
        if (w->kind == FE_SIZE && c->c.variant >= 0 && (value || where == WHERE_EXTENT))
            put(c, (Item){w->name, NULL, w->doc, .kind = ITEM_CONSTANT, .order = BUILT_IN});
    }
}

// In the parentheses of a clause's definition: the names of its parameters.
static void put_parameters(Complete *c) {
    const char *clause = context_word(&c->c, c->arena, c->c.statement);
    const FeWord *w;
    for (int next = 0; (w = fe_word(&c->words, clause, &next));)
        for (int i = 0; w->kind == FE_CLAUSE && known_here(c, w) && i < w->nparams; i++)
            put(c, (Item){w->params[i].name, w->params[i].type, w->params[i].doc,
                          .kind = ITEM_VARIABLE});
}

// ---- the library

// A module of the library: what it has for others; a variant has nothing.
static const AstModule *library_module(Complete *c, const LibraryFile *f) {
    Diags quiet = diag_list(c->arena);
    const AstModule *m =
        ast_parse(c->arena, &quiet, diag_add_file(&quiet, f->path, f->text, f->n), NULL);
    for (int i = 0; i < m->items.n; i++)
        if (m->items.data[i]->kind == AST_ATTENTION || m->items.data[i]->kind == AST_RECURRENCE)
            return NULL;
    return m;
}

static const char *module_name(const Complete *c, const LibraryFile *f) {
    const char *file = f->path + strlen(library_folder) + 1;
    return arena_printf(c->arena, "std.%.*s", (int)strcspn(file, "."), file);
}

static void put_library(Complete *c) {
    const LibraryFile *f;
    for (size_t i = 0; (f = library_at(i)); i++) {
        const AstModule *m = library_module(c, f);
        for (int k = 0; m && k < m->items.n; k++) {
            const AstItem *item = m->items.data[k];
            bool rows = item->kind == AST_NORMALIZATION;
            if ((item->kind != AST_FN && !rows) || (rows && !context_over_rows(&c->c))) continue;
            const char **params = ARENA_ARRAY(c->arena, const char *, item->params.n + 1);
            for (int p = 0; p < item->params.n; p++) params[p] = item->params.data[p].s;
            const char *module = module_name(c, f);
            put_call(c,
                     (Item){item->name.s, module, NULL, .kind = ITEM_FUNCTION, .order = LIBRARY,
                            .import = module},
                     params, item->params.n);
        }
    }
}

// The whole path is replaced.
static void put_imports(Complete *c) {
    const LibraryFile *f;
    if (c->c.n > c->c.statement + 1) c->c.word = c->c.tokens->data[c->c.statement + 1].span.start;
    for (size_t i = 0; (f = library_at(i)); i++)
        if (library_module(c, f))
            put(c, (Item){module_name(c, f), NULL, NULL, .kind = ITEM_MODULE, .order = LIBRARY});
}

// ---- the request

static void put_all(Complete *c) {
    Where where = c->c.where;
    if (where == WHERE_NOWHERE) return;
    if (where == WHERE_IMPORT) put_imports(c);
    if (where == WHERE_PARAMETER) put_parameters(c);
    if (where == WHERE_EXPRESSION || where == WHERE_EXTENT) {
        put_scopes(c, c->a, true);
        put_locals(c);
        if (c->d->good && c->d->good != c->a) put_scopes(c, c->d->good, false);
    }
    put_words(c);
    if (where == WHERE_EXPRESSION) put_library(c);
}

cJSON *complete_completion(Service *s, const cJSON *params) {
    uint32_t at;
    Document *d = document_of(s, params);
    if (!d || !document_offset(s, d, json_get(params, "position"), &at)) return NULL;
    Analysis *a = document_analysis(s, d);
    Complete c = {.s = s, .d = d, .a = a, .arena = arena_new(), .items = cJSON_CreateArray()};
    c.c = context_at(a, c.arena, at);
    c.words = fe_words(c.arena);
    c.called = at < d->n && d->text[at] == '(';
    put_all(&c);
    arena_free(c.arena);
    return json_pair("isIncomplete", cJSON_CreateFalse(), "items", c.items);
}
