// symbols.c: the outline of a document, and its canonical form.
//
// In: a document. Out: document symbols, of all items that could be read; the edits of formatting.
#include "internal.h"

#include <string.h>

enum { // of LSP
    SYMBOL_MODULE = 2,
    SYMBOL_CLASS = 5,
    SYMBOL_METHOD = 6,
    SYMBOL_PROPERTY = 7,
    SYMBOL_FUNCTION = 12,
    SYMBOL_CONSTANT = 14
};

static int symbol_kind(AstItemKind k) {
    switch (k) {
    case AST_IMPORT: return SYMBOL_MODULE;
    case AST_CONST:
    case AST_DIM: return SYMBOL_CONSTANT;
    case AST_FN:
    case AST_NORMALIZATION: return SYMBOL_FUNCTION;
    case AST_ATTENTION:
    case AST_RECURRENCE: return SYMBOL_CLASS;
    case AST_INPUT:
    case AST_SHARE: return SYMBOL_PROPERTY;
    case AST_CLAUSE: return SYMBOL_METHOD;
    }
    return SYMBOL_CONSTANT;
}

static const char *symbol_detail(Analysis *a, const AstItem *item) {
    static const char *const words[] = {[AST_FN] = "fn",
                                        [AST_NORMALIZATION] = "normalization",
                                        [AST_ATTENTION] = "attention",
                                        [AST_RECURRENCE] = "recurrence",
                                        [AST_INPUT] = "input",
                                        [AST_SHARE] = "share",
                                        [AST_DIM] = "dim",
                                        [AST_CONST] = "const",
                                        [AST_CLAUSE] = ""};
    if (item->kind == AST_CONST || item->kind == AST_DIM)
        return item->value ? analysis_text(a, item->value->span) : "";
    return words[item->kind];
}

static void put_symbols(Service *s, Analysis *a, const AstItems *items, const char *container,
                        const Document *d, cJSON *out) {
    for (int i = 0; i < items->n; i++) {
        const AstItem *item = items->data[i];
        Span span = item->span, name = item->name.span;
        if (item->kind == AST_IMPORT || !item->name.s[0]) continue;
        if (name.start < span.start) span.start = name.start;
        if (name.end > span.end) span.end = name.end;
        cJSON *symbol = json_pair("name", cJSON_CreateString(item->name.s), "kind",
                                  cJSON_CreateNumber(symbol_kind(item->kind)));
        cJSON_AddItemToArray(out, symbol);
        if (s->client.hierarchical) {
            cJSON_AddStringToObject(symbol, "detail", symbol_detail(a, item));
            cJSON_AddItemToObject(symbol, "range", analysis_range(s, a, span));
            cJSON_AddItemToObject(symbol, "selectionRange", analysis_range(s, a, name));
            put_symbols(s, a, &item->items, NULL, d, cJSON_AddArrayToObject(symbol, "children"));
            continue;
        }
        cJSON_AddItemToObject(
            symbol, "location",
            json_pair("uri", cJSON_CreateString(d->uri), "range", analysis_range(s, a, span)));
        if (container) cJSON_AddStringToObject(symbol, "containerName", container);
        put_symbols(s, a, &item->items, item->name.s, d, out);
    }
}

cJSON *symbols_document(Service *s, const cJSON *params) {
    Document *d = document_of(s, params);
    if (!d) return NULL;
    Analysis *a = document_analysis(s, d);
    cJSON *symbols = cJSON_CreateArray();
    put_symbols(s, a, &a->uses.ast->items, NULL, d, symbols);
    return symbols;
}

// ---- formatting

// The lines that differ, as one edit.
static cJSON *edits_between(const Service *s, const Document *d, const Text *to) {
    cJSON *edits = cJSON_CreateArray();
    size_t start = 0, end = d->n, to_end = to->n;
    if (d->n == to->n && !memcmp(d->text, to->s, to->n)) return edits;
    for (size_t i = 0; i < d->n && i < to->n && d->text[i] == to->s[i]; i++)
        if (d->text[i] == '\n') start = i + 1;
    size_t line = end, to_line = to_end; // where the last equal line so far begins
    while (end > start && to_end > start && d->text[end - 1] == to->s[to_end - 1]) {
        end--, to_end--;
        if (end == start || to_end == start || d->text[end - 1] == '\n')
            line = end, to_line = to_end;
    }
    const char *text = arena_strndup(to->arena, to->s + start, to_line - start);
    cJSON_AddItemToArray(
        edits,
        json_pair("range", lines_range(&d->lines, s->client.utf8, (uint32_t)start, (uint32_t)line),
                  "newText", cJSON_CreateString(text)));
    return edits;
}

cJSON *symbols_format(Service *s, const cJSON *params) {
    Document *d = document_of(s, params);
    if (!d) return NULL;
    Arena *arena = arena_new();
    Diags diags = diag_list(arena);
    Text to = text_new(arena);
    cJSON *result = NULL;
    if (fe_format(arena, &diags, d->path, d->text, d->n, &to)) {
        text_puts(&to, "");
        result = edits_between(s, d, &to);
    } else {
        service_fail(s, RPC_REQUEST_FAILED, NULL, "it does not parse: %s",
                     diags.first ? diags.first->message : "");
    }
    arena_free(arena);
    return result;
}
