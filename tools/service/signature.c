// signature.c: the parameters of the call that is being written.
//
// In: a position. Out: the innermost call or clause whose parentheses are open there, and which of its
// parameters comes.
#include "context.h"
#include "frontend/describe.h"

#include <string.h>

typedef struct Call {
    int name;     // its token; -1: none is open
    int argument; // from 0
} Call;

static Call open_call(const Context *c) {
    int depth = 0, commas = 0;
    for (int i = c->n - 1; i >= c->statement; i--) {
        bool opens = context_is(c, i, "(") || context_is(c, i, "[");
        depth += context_is(c, i, ")") || context_is(c, i, "]");
        commas += !depth && context_is(c, i, ",");
        if (!opens) continue;
        if (depth-- > 0) continue;
        depth = 0;
        if (context_is(c, i, "(") && i > 0 && c->tokens->data[i - 1].kind == AST_TOKEN_NAME)
            return (Call){i - 1, commas};
        commas = 0; // parentheses of an expression, or an index
    }
    return (Call){-1, 0};
}

// Of a definition that is written: what its parameters are called.
static cJSON *of_decl(Analysis *a, Arena *arena, const Decl *d, cJSON *parameters) {
    Text label = text_new(arena);
    hover_put_signature(&label, a, d);
    for (int i = 0; i < d->item->params.n; i++) {
        cJSON *p = cJSON_CreateObject();
        cJSON_AddStringToObject(p, "label", d->item->params.data[i].s);
        cJSON_AddItemToArray(parameters, p);
    }
    cJSON *signature = json_pair("label", cJSON_CreateString(label.s), "parameters", parameters);
    const Source *source = &a->diags.files.data[d->span.file];
    const char *comment = fe_comment_above(arena, source->text, analysis_tokens(a, d->span.file),
                                           d->item->span.start);
    if (comment) cJSON_AddStringToObject(signature, "documentation", comment);
    return signature;
}

static cJSON *of_word(Arena *arena, const FeWord *w, cJSON *parameters) {
    Text label = text_new(arena);
    fe_put_signature(&label, w);
    for (int i = 0; i < w->nparams; i++) {
        const FeParam *x = &w->params[i];
        cJSON *p = cJSON_CreateObject();
        cJSON_AddStringToObject(p, "label", arena_printf(arena, "%s: %s", x->name, x->type));
        if (*x->doc) cJSON_AddStringToObject(p, "documentation", x->doc);
        cJSON_AddItemToArray(parameters, p);
    }
    cJSON *signature = json_pair("label", cJSON_CreateString(label.s), "parameters", parameters);
    cJSON_AddStringToObject(signature, "documentation", w->doc);
    return signature;
}

static const FeWord *word_of(Arena *arena, const Context *c, const char *name) {
    FeWords *words = ARENA_NEW(arena, FeWords);
    *words = fe_words(arena);
    const FeWord *w;
    FeWordKind kind = c->where == WHERE_PARAMETER ? FE_CLAUSE : FE_BUILTIN;
    for (int next = 0; (w = fe_word(words, name, &next));)
        if (w->kind == kind && (c->recurrence ? w->recurrence : w->attention)) return w;
    return NULL;
}

static cJSON *signature_of(Analysis *a, Arena *arena, const Context *c, const char *name, int *n) {
    cJSON *parameters = cJSON_CreateArray(), *signature = NULL;
    const FeWord *w = word_of(arena, c, name);
    const Decl *d = names_visible(a, name, c->at);
    bool function = d && (d->kind == DECL_FN || d->kind == DECL_NORMALIZATION);
    if (w) {
        *n = w->nparams;
        signature = of_word(arena, w, parameters);
    } else if (function && c->where != WHERE_PARAMETER) {
        *n = d->item->params.n;
        signature = of_decl(a, arena, d, parameters);
    } else {
        cJSON_Delete(parameters);
    }
    return signature;
}

cJSON *signature_help(Service *s, const cJSON *params) {
    uint32_t at;
    int n = 0;
    Document *d = document_of(s, params);
    if (!d || !document_offset(s, d, json_get(params, "position"), &at)) return NULL;
    Analysis *a = document_analysis(s, d);
    Arena *arena = arena_new();
    Context c = context_at(a, arena, at);
    Call call = open_call(&c);
    cJSON *signature = NULL, *result = NULL;
    if (call.name >= 0) {
        const char *name = context_word(&c, arena, call.name);
        signature = signature_of(a, arena, &c, name, &n);
        if (!signature && d->good && d->good != a)
            signature = signature_of(d->good, arena, &c, name, &n);
    }
    if (signature) {
        cJSON *all = cJSON_CreateArray();
        cJSON_AddItemToArray(all, signature);
        result = json_pair("signatures", all, "activeSignature", cJSON_CreateNumber(0));
        cJSON_AddNumberToObject(result, "activeParameter", call.argument < n ? call.argument : n);
    }
    arena_free(arena);
    return result;
}
