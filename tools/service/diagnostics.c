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

static cJSON *diagnostic_of(Service *s, Analysis *a, const Diag *g) {
    static const int severities[] = {LSP_ERROR, LSP_WARNING, LSP_INFORMATION};
    bool here = g->span.file == 1;
    Span at = here ? g->span : (Span){1, 0, 0};
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

void diagnostics_publish(Service *s, Document *d) {
    if (!document_derive(s, d)) return; // messages have come: later
    cJSON *params = json_pair("uri", cJSON_CreateString(d->uri), "diagnostics",
                              diagnostics_of(s, document_analysis(s, d)));
    if (d->has_version) cJSON_AddNumberToObject(params, "version", d->version);
    d->due = false;
    service_notify(s, "textDocument/publishDiagnostics", params);
}
