// diagnostics.c: what the compiler says of a document, while it is written.
//
// In: an analysis. Out: textDocument/publishDiagnostics. Holds: each diagnostic has a place in the
// document itself: what is said of an imported file stands at its import, with the place there beside it.
#include "internal.h"

#include <string.h>

enum { LSP_ERROR = 1, LSP_WARNING = 2, LSP_INFORMATION = 3 };

static cJSON *related_of(Service *s, Analysis *a, const Diag *first) {
    cJSON *all = cJSON_CreateArray();
    for (const Diag *g = first; g; g = g->note) {
        cJSON *place = analysis_location(s, a, g->span);
        if (!place) continue;
        cJSON_AddItemToArray(
            all, json_pair("location", place, "message", cJSON_CreateString(g->message)));
    }
    return all;
}

// Of what is said of an imported file: the import by which the document has it.
Span diagnostics_place(const Analysis *a, Span at) {
    while (at.file > 1 && at.file < a->uses.imported.n) at = a->uses.imported.data[at.file];
    return at.file == 1 ? at : (Span){1, 0, 0};
}

static cJSON *diagnostic_of(Service *s, Analysis *a, const Diag *g) {
    static const int severities[] = {LSP_ERROR, LSP_WARNING, LSP_INFORMATION};
    bool here = g->span.file == 1;
    Span at = diagnostics_place(a, g->span);
    const char *message = g->message;
    if (!here && g->span.file)
        message =
            arena_printf(a->arena, "in '%s': %s", a->diags.files.data[g->span.file].name, message);
    if (!s->client.related)
        for (const Diag *note = g->note; note; note = note->note)
            message = arena_printf(a->arena, "%s\nnote: %s", message, note->message);
    cJSON *d = json_pair("range", analysis_range(s, a, at), "message", cJSON_CreateString(message));
    cJSON_AddNumberToObject(d, "severity", severities[g->severity]);
    cJSON_AddStringToObject(d, "source", "attnc");
    const Diag *related = here ? g->note : g;
    if (s->client.related && related)
        cJSON_AddItemToObject(d, "relatedInformation", related_of(s, a, related));
    return d;
}

cJSON *diagnostics_of(Service *s, Analysis *a) {
    cJSON *all = cJSON_CreateArray();
    for (const Diag *g = a->diags.first; g; g = g->next)
        cJSON_AddItemToArray(all, diagnostic_of(s, a, g));
    return all;
}

// ---- mends

static bool touches(Span s, uint32_t start, uint32_t end) {
    return s.start <= end && s.end >= start;
}

static cJSON *action_of(Service *s, Analysis *a, const Document *d, const Diag *g) {
    cJSON *edits = cJSON_CreateArray(), *changes = cJSON_CreateObject(),
          *edit = cJSON_CreateObject(), *action = cJSON_CreateObject(),
          *diagnostics = cJSON_CreateArray();
    const char *title =
        g->fix_at.start < g->fix_at.end
            ? arena_printf(a->arena, "Replace by '%s'", g->fix)
            : arena_printf(a->arena, "Insert '%.*s'", (int)strcspn(g->fix, "\n"), g->fix);
    cJSON_AddItemToArray(edits, json_pair("range", analysis_range(s, a, g->fix_at), "newText",
                                          cJSON_CreateString(g->fix)));
    cJSON_AddItemToObject(changes, d->uri, edits);
    cJSON_AddItemToObject(edit, "changes", changes);
    cJSON_AddItemToArray(diagnostics, diagnostic_of(s, a, g));
    cJSON_AddStringToObject(action, "title", title);
    cJSON_AddStringToObject(action, "kind", "quickfix");
    cJSON_AddTrueToObject(action, "isPreferred");
    cJSON_AddItemToObject(action, "diagnostics", diagnostics);
    cJSON_AddItemToObject(action, "edit", edit);
    return action;
}

cJSON *diagnostics_actions(Service *s, const cJSON *params) {
    uint32_t start, end;
    Document *d = document_of(s, params);
    if (!d || !document_offset(s, d, json_get(params, "range.start"), &start) ||
        !document_offset(s, d, json_get(params, "range.end"), &end))
        return NULL;
    Analysis *a = document_analysis(s, d);
    cJSON *actions = cJSON_CreateArray();
    for (const Diag *g = a->diags.first; g && s->client.literals; g = g->next)
        if (g->fix && g->fix_at.file == 1 && g->span.file == 1 && touches(g->span, start, end))
            cJSON_AddItemToArray(actions, action_of(s, a, d, g));
    return actions;
}

void diagnostics_publish(Service *s, Document *d) {
    if (!document_derive(s, d)) return; // messages have come: later
    cJSON *params = json_pair("uri", cJSON_CreateString(d->uri), "diagnostics",
                              diagnostics_of(s, document_analysis(s, d)));
    if (d->has_version) cJSON_AddNumberToObject(params, "version", d->version);
    d->due = false;
    service_notify(s, "textDocument/publishDiagnostics", params);
}
