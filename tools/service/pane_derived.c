// pane_derived.c: `attn/derived`: what the compiler derived, as mathematics.
#include "explained.h"
#include "pane.h"

#include <string.h>

static cJSON *place(void *pane, Span span) { return pane_span(pane, span); }

// Whether the request names a form; without a list, those that a page shows.
static bool wants(const cJSON *params, ExForm form) {
    static const char *const names[] = {
        [EX_TEXT] = "text", [EX_MATHML] = "mathml", [EX_TEX] = "tex"};
    const cJSON *formats = json_get(params, "formats"), *item;
    if (!formats) return form != EX_TEX;
    cJSON_ArrayForEach(item, formats) if (cJSON_IsString(item) &&
                                          !strcmp(item->valuestring, names[form])) return true;
    return false;
}

cJSON *pane_derived(Service *s, const cJSON *params) {
    Pane p;
    cJSON *result = NULL;
    if (pane_open(&p, s, params, PANE_DERIVED)) {
        ExplainedAs as = {.attributes = pane_range, .place = place, .ctx = &p};
        for (int form = 0; form < EX_FORM_COUNT; form++)
            as.form[form] = wants(params, (ExForm)form);
        result = explained(pass_explain(p.stream), &as);
    }
    return pane_close(&p, result);
}
