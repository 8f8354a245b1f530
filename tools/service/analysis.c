// analysis.c: what the compiler knows of a document.
//
// In: a document's text. Out: diagnostics, the module, and what is derived of its attentions. Holds:
// each text is analysed once, when it is asked for; an imported document that is open is read as it
// is there, not as on disk.
#include "frontend/ast.h"
#include "internal.h"
#include "tools/library.h"

#include <string.h>

static bool read_overlay(void *ctx, Arena *a, const char *path, const char **text, size_t *n,
                         const char **why) {
    const Service *s = ctx;
    const LibraryFile *module = library_find(path);
    if (module) {
        *text = module->text;
        *n = module->n;
        return true;
    }
    for (const Document *d = s->documents; d; d = d->next)
        if (!strcmp(d->path, path)) {
            *text = arena_strndup(a, d->text, d->n); // it may be closed while this is in use
            *n = d->n;
            return true;
        }
    *why = "it is not open";
    return s->host.read && s->host.read(s->host.ctx, a, path, text, n, why);
}

FeOptions document_options(Service *s, const Document *d) {
    return (FeOptions){.path = d ? d->path : NULL,
                       .text = d ? d->text : NULL,
                       .text_bytes = d ? d->n : 0,
                       .stdlib = library_folder,
                       .dirs = s->host.dirs,
                       .ndirs = s->host.ndirs,
                       .module = true,
                       .read = read_overlay,
                       .read_ctx = s};
}

void analysis_free(Analysis *a) {
    if (a) arena_free(a->arena);
}

Analysis *document_analysis(Service *s, Document *d) {
    if (d->now) return d->now;
    Arena *arena = arena_new();
    Analysis *a = ARENA_NEW(arena, Analysis);
    FeStatus status;
    a->arena = arena;
    a->diags = diag_list(arena);
    FeOptions o = document_options(s, d);
    o.text = arena_strndup(arena, d->text, d->n);
    o.uses = &a->uses;
    a->module = fe_load(arena, &a->diags, &o, &status);
    d->now = a;
    if (a->module) {
        analysis_free(d->good);
        d->good = a;
    }
    return a;
}

// Terms of the mask that keep no tile of this extent from being visited.
static void note_blind_terms(Analysis *a, const Stream *stream) {
    enum { QUERIES = 64, KEYS = 64 };
    MaskTerms blind = pass_blind_terms(stream, QUERIES, KEYS);
    ExNames names = row_names(stream->row);
    for (int i = 0; i < blind.n; i++) {
        Text term = text_new(a->arena);
        ex_print_pretty(&term, blind.data[i], &names);
        Span at = blind.data[i]->span.file ? blind.data[i]->span : stream->row->mask->span;
        diag_note(&a->diags, NULL, at,
                  "nothing is known of '%s' over a tile of %d queries and %d keys: it skips none",
                  term.s, QUERIES, KEYS);
    }
}

// The derivation of a very long program takes seconds or more, and cannot be stopped: it is left out.
static bool is_short(Analysis *a, const Variant *v) {
    enum { MOST = 2000 }; // a quarter of a second; programs that people write have some hundred
    const Tx **roots = ARENA_ARRAY(a->arena, const Tx *, CLAUSE_COUNT + v->emits.n);
    for (int i = 0; i < CLAUSE_COUNT; i++) roots[i] = v->clause[i];
    for (int i = 0; i < v->emits.n; i++) roots[CLAUSE_COUNT + i] = v->emits.data[i].value;
    int n = tx_nodes(a->arena, roots, CLAUSE_COUNT + v->emits.n).n;
    if (n <= MOST) return true;
    diag_note(&a->diags, NULL, v->span,
              "'%s' has %d operations: with more than %d an editor is not told what is derived",
              v->name, n, MOST);
    return false;
}

static void derive(Analysis *a, Variant *v) {
    if (!is_short(a, v)) return;
    Derived x = {.variant = v, .row = fe_lower(a->arena, &a->diags, v)};
    if (!x.row) return;
    x.stream = pass_derive(a->arena, x.row, &a->diags);
    note_blind_terms(a, x.stream);
    VEC_PUSH(a->arena, &a->attentions, x);
}

bool document_derive(Service *s, Document *d) {
    Analysis *a = document_analysis(s, d);
    for (; a->module && a->looked_at < a->module->variants.n; a->looked_at++) {
        Variant *v = a->module->variants.data[a->looked_at];
        if (service_stopped(s)) return false;
        if (v->kind == VARIANT_ATTENTION) derive(a, v);
    }
    return true;
}

const AstTokens *analysis_tokens(Analysis *a, uint16_t file) {
    const Source *source = &a->diags.files.data[file];
    while (a->tokens.n < a->diags.files.n) VEC_PUSH(a->arena, &a->tokens, NULL);
    AstTokens *tokens = a->tokens.data[file];
    if (tokens) return tokens;
    tokens = a->tokens.data[file] = ARENA_NEW(a->arena, AstTokens);
    Diags quiet = diag_list(a->arena);
    ast_parse(a->arena, &quiet, diag_add_file(&quiet, source->name, source->text, source->n),
              tokens);
    return tokens;
}

const AstToken *analysis_token(Analysis *a, uint32_t at) {
    const AstTokens *tokens = analysis_tokens(a, 1);
    const AstToken *before = NULL;
    for (int i = 0; i < tokens->n && tokens->data[i].span.start <= at; i++)
        if (at <= tokens->data[i].span.end) {
            bool after = at == tokens->data[i].span.end;
            if (!after && !(before && before->kind == AST_TOKEN_NAME)) return &tokens->data[i];
            if (!after) return before;
            before = &tokens->data[i];
        }
    return before;
}

const Use *analysis_use(const Analysis *a, uint32_t at) {
    const Use *found = NULL;
    for (int i = 0; i < a->uses.all.n; i++) {
        const Use *u = &a->uses.all.data[i];
        if (u->span.file != 1 || at < u->span.start || at > u->span.end) continue;
        if (!found || u->defines) found = u;
    }
    return found;
}

bool analysis_same(const Analysis *a, const Decl *x, const Analysis *b, const Decl *y) {
    if (x->kind != y->kind || x->span.start != y->span.start || strcmp(x->name, y->name))
        return false;
    return !strcmp(a->diags.files.data[x->span.file].name, b->diags.files.data[y->span.file].name);
}

const char *analysis_text(Analysis *a, Span span) {
    const Source *source = &a->diags.files.data[span.file];
    return arena_strndup(a->arena, source->text + span.start, span.end - span.start);
}

const Lines *analysis_lines(Analysis *a, uint16_t file) {
    Lines none = {0};
    while (a->lines.n < a->diags.files.n) VEC_PUSH(a->arena, &a->lines, none);
    Lines *l = &a->lines.data[file];
    const Source *source = &a->diags.files.data[file];
    if (!l->text) lines_init(l, a->arena, source->text, source->n);
    return l;
}

cJSON *analysis_range(Service *s, Analysis *a, Span span) {
    return lines_range(analysis_lines(a, span.file), s->client.utf8, span.start, span.end);
}

cJSON *analysis_location(Service *s, Analysis *a, Span span) {
    if (!span.file || span.file >= a->diags.files.n) return NULL;
    const char *uri = uri_of_path(s, a->arena, a->diags.files.data[span.file].name);
    return json_pair("uri", cJSON_CreateString(uri), "range", analysis_range(s, a, span));
}
