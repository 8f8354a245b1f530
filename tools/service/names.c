// names.c: where names are defined and used, and renaming.
//
// In: a position. Out: places, in open documents and in what these import. Holds: a rename leaves no
// new error behind (the sources are checked as they would be), and never changes the library.
#include "internal.h"
#include "tools/library.h"

#include <stdlib.h>
#include <string.h>

// ---- which name

// What is local to a body means nothing in another; an older text may have it some bytes aside.
static bool may_mean(const Decl *d, const AstToken *token) {
    bool local = d->kind == DECL_PARAM || d->kind == DECL_LET || d->kind == DECL_EMIT;
    if (!local || !d->item) return true;
    return d->item->span.start <= token->span.start && token->span.start <= d->item->span.end;
}

// Where the text does not read: by its letters alone, of this text or of the last one that read.
static bool by_letters(Document *d, Analysis *a, const AstToken *token, Named *out) {
    if (!token || token->kind != AST_TOKEN_NAME) return false;
    const char *name = analysis_text(a, token->span);
    for (Analysis *x = a; x; x = x == a && d->good != a ? d->good : NULL)
        for (int i = 0; i < x->uses.all.n; i++) {
            const Use *u = &x->uses.all.data[i];
            if (u->span.file != 1 || strcmp(u->decl->name, name)) continue;
            if (!may_mean(u->decl, token)) continue;
            *out = (Named){d, x, u->decl, token->span};
            return true;
        }
    return false;
}

const Decl *names_visible(const Analysis *a, const char *name, uint32_t at) {
    for (int i = 0; i < a->uses.scopes.n; i++) {
        const ScopeAt *x = &a->uses.scopes.data[i];
        if (x->span.file != 1 || at < x->span.start || at > x->span.end) continue;
        const Decl *d = names_get(&x->scope->names, name);
        if (d) return d;
    }
    return NULL;
}

bool name_at(Service *s, const cJSON *params, Named *out) {
    uint32_t at;
    Document *d = document_of(s, params);
    if (!d || !document_offset(s, d, json_get(params, "position"), &at)) return false;
    Analysis *a = document_analysis(s, d);
    const Use *u = analysis_use(a, at);
    if (!u) return by_letters(d, a, analysis_token(a, at), out);
    *out = (Named){d, a, u->decl, u->span};
    return true;
}

cJSON *names_definition(Service *s, const cJSON *params) {
    Named x;
    return name_at(s, params, &x) ? analysis_location(s, x.analysis, x.decl->span) : NULL;
}

// ---- all uses

typedef struct Place {
    Analysis *analysis;
    const Use *use;
} Place;
typedef VEC(Place) Places;

static bool is_open(const Service *s, const char *path) {
    const Document *d = s->documents;
    while (d && strcmp(d->path, path)) d = d->next;
    return d != NULL;
}

static bool listed(Arena *a, NameMap *seen, const char *path) {
    if (names_get(seen, path)) return true;
    names_put(a, seen, path, (void *)path);
    return false;
}

// In every open document, and in each imported file that is not open, once.
static Places find_uses(Service *s, Arena *arena, const Named *x) {
    Places found = {0};
    NameMap seen = {0};
    for (Document *d = s->documents; d; d = d->next) {
        Analysis *a = d == x->document ? x->analysis : document_analysis(s, d);
        bool *skip = ARENA_ARRAY(arena, bool, a->diags.files.n);
        for (int i = 2; i < a->diags.files.n; i++) {
            const char *path = a->diags.files.data[i].name;
            skip[i] = is_open(s, path) || listed(arena, &seen, path);
        }
        for (int i = 0; i < a->uses.all.n; i++) {
            Place p = {a, &a->uses.all.data[i]};
            if (skip[p.use->span.file] || !analysis_same(x->analysis, x->decl, a, p.use->decl))
                continue;
            VEC_PUSH(arena, &found, p);
        }
    }
    return found;
}

cJSON *names_references(Service *s, const cJSON *params) {
    Named x;
    if (!name_at(s, params, &x)) return NULL;
    bool all = json_true(params, "context.includeDeclaration");
    cJSON *result = cJSON_CreateArray();
    Arena *arena = arena_new();
    Places found = find_uses(s, arena, &x);
    for (int i = 0; i < found.n; i++)
        if (all || !found.data[i].use->defines)
            cJSON_AddItemToArray(
                result, analysis_location(s, found.data[i].analysis, found.data[i].use->span));
    arena_free(arena);
    return result;
}

cJSON *names_highlight(Service *s, const cJSON *params) {
    enum { READ = 2, WRITE = 3 };
    Named x;
    if (!name_at(s, params, &x)) return NULL;
    cJSON *result = cJSON_CreateArray();
    for (int i = 0; i < x.analysis->uses.all.n; i++) {
        const Use *u = &x.analysis->uses.all.data[i];
        if (u->span.file != 1 || u->decl != x.decl) continue;
        cJSON_AddItemToArray(result,
                             json_pair("range", analysis_range(s, x.analysis, u->span), "kind",
                                       cJSON_CreateNumber(u->defines ? WRITE : READ)));
    }
    return result;
}

// ---- renaming

// Why a name has to stay as it is, or NULL.
static const char *fixed(const Named *x, const Places *found) {
    const Decl *d = x->decl;
    const char *file = x->analysis->diags.files.data[d->span.file].name;
    bool defined = false;
    for (int i = 0; i < found->n; i++) defined |= found->data[i].use->defines;
    if (d->kind == DECL_CLAUSE) return "is the name of a clause";
    if (d->kind == DECL_MODULE) return "is the name of a file";
    if (!d->span.file) return "is built in";
    if (library_find(file)) return "is of the library";
    if (x->analysis != x->document->now) return "cannot be renamed while the source has mistakes";
    return defined ? NULL : "is not written: nothing defines it here";
}

static bool is_name(Arena *a, const char *s) {
    AstTokens tokens = {0};
    size_t n = strlen(s);
    Diags quiet = diag_list(a);
    ast_parse(a, &quiet, diag_add_file(&quiet, "", s, n), &tokens);
    return n <= AST_MAX_NAME && tokens.n == 1 && tokens.data[0].kind == AST_TOKEN_NAME &&
           tokens.data[0].span.end == n;
}

typedef struct Renamed { // sources as they would be
    Service *service;
    NameMap texts; // of Text, by path
} Renamed;

static bool read_renamed(void *ctx, Arena *a, const char *path, const char **text, size_t *n,
                         const char **why) {
    const Renamed *r = ctx;
    const Text *t = names_get(&r->texts, path);
    FeOptions o = document_options(r->service, NULL);
    if (!t) return o.read(o.read_ctx, a, path, text, n, why);
    *text = t->s;
    *n = t->n;
    return true;
}

// The text of a file with a new name in all of the places that are in it; in their order.
static Text *rename_in(Arena *arena, const Places *found, const char *path, const char *name) {
    Text *t = ARENA_NEW(arena, Text);
    const Source *source = NULL;
    uint32_t at = 0;
    *t = text_new(arena);
    text_puts(t, "");
    for (int i = 0; i < found->n; i++) {
        Span span = found->data[i].use->span;
        const Source *of = &found->data[i].analysis->diags.files.data[span.file];
        if (strcmp(of->name, path) || (source && span.start < at)) continue;
        source = of;
        text_putn(t, source->text + at, span.start - at);
        text_puts(t, name);
        at = span.end;
    }
    if (source) text_putn(t, source->text + at, source->n - at);
    return t;
}

static int compare_places(const void *x, const void *y) {
    const Place *a = x, *b = y;
    uint32_t s = a->use->span.start, t = b->use->span.start;
    return s < t ? -1 : s > t;
}

// What would be wrong in an open document afterwards, or NULL.
static const char *new_mistake(Service *s, Arena *arena, Renamed *r, Document *d) {
    FeStatus status;
    FeOptions o = document_options(s, d);
    const Text *t = names_get(&r->texts, d->path);
    if (t) o.text = t->s, o.text_bytes = t->n;
    o.read = read_renamed;
    o.read_ctx = r;
    Diags after = diag_list(arena);
    fe_load(arena, &after, &o, &status);
    if (after.errors <= document_analysis(s, d)->diags.errors) return NULL;
    for (const Diag *g = after.first; g; g = g->next)
        if (g->severity == DIAG_ERROR) return g->message;
    return "the source would have mistakes";
}

static cJSON *rename_edits(Service *s, const Places *found, const char *name) {
    cJSON *changes = cJSON_CreateObject();
    Arena *arena = arena_new();
    for (int i = 0; i < found->n; i++) {
        Span span = found->data[i].use->span;
        Analysis *a = found->data[i].analysis;
        const char *uri = uri_of_path(s, arena, a->diags.files.data[span.file].name);
        cJSON *edits = cJSON_GetObjectItemCaseSensitive(changes, uri);
        if (!edits) edits = cJSON_AddArrayToObject(changes, uri);
        cJSON_AddItemToArray(edits, json_pair("range", analysis_range(s, a, span), "newText",
                                              cJSON_CreateString(name)));
    }
    arena_free(arena);
    cJSON *edit = cJSON_CreateObject();
    cJSON_AddItemToObject(edit, "changes", changes);
    return edit;
}

static cJSON *rename_checked(Service *s, Arena *arena, const Places *found, const char *name) {
    Renamed r = {.service = s};
    for (int i = 0; i < found->n; i++) {
        const Place *p = &found->data[i];
        const char *path = p->analysis->diags.files.data[p->use->span.file].name;
        if (!names_get(&r.texts, path))
            names_put(arena, &r.texts, path, rename_in(arena, found, path, name));
    }
    for (Document *d = s->documents; d; d = d->next) {
        const char *why = new_mistake(s, arena, &r, d);
        if (why) return service_fail(s, RPC_REQUEST_FAILED, NULL, "%s", why);
    }
    return rename_edits(s, found, name);
}

cJSON *names_rename(Service *s, const cJSON *params) {
    Named x;
    const char *name = json_string(params, "newName");
    if (!name_at(s, params, &x)) {
        if (s->error.code) return NULL;
        return service_fail(s, RPC_REQUEST_FAILED, NULL, "there is no name here");
    }
    Arena *arena = arena_new();
    Places found = find_uses(s, arena, &x);
    if (found.n) qsort(found.data, (size_t)found.n, sizeof *found.data, compare_places);
    const char *why = fixed(&x, &found);
    cJSON *result = NULL;
    if (why)
        service_fail(s, RPC_REQUEST_FAILED, NULL, "'%s' %s", x.decl->name, why);
    else if (!name || !is_name(arena, name))
        service_fail(s, RPC_INVALID_PARAMS, NULL, "'%.100s' is not a name", name ? name : "");
    else
        result = rename_checked(s, arena, &found, name);
    arena_free(arena);
    return result;
}

cJSON *names_prepare_rename(Service *s, const cJSON *params) {
    Named x;
    if (!name_at(s, params, &x)) return NULL;
    Arena *arena = arena_new();
    Places found = find_uses(s, arena, &x);
    const char *why = fixed(&x, &found);
    arena_free(arena);
    if (why) return service_fail(s, RPC_REQUEST_FAILED, NULL, "'%s' %s", x.decl->name, why);
    return json_pair("range",
                     lines_range(&x.document->lines, s->client.utf8, x.span.start, x.span.end),
                     "placeholder", cJSON_CreateString(x.decl->name));
}
