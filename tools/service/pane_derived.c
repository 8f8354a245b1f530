// pane_derived.c: `attn/derived`: what the compiler derived, as mathematics.
#include "explained.h"
#include "pane.h"

static cJSON *place(void *pane, Span span) { return pane_span(pane, span); }

// Whether the request names a form; without a list, those that a page shows.
static bool wants(const cJSON *params, ExForm form) {
    const cJSON *formats = json_get(params, "formats");
    return formats ? json_lists(formats, ex_form_name(form)) : form != EX_TEX;
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
