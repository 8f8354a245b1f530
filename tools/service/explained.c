// explained.c: see explained.h.
#include "explained.h"

typedef struct Telling {
    const Explanation *x;
    const ExplainedAs *as;
    const ExplainSection *section;
    const ExplainLine *line;
} Telling;

static const char *part_text(const Telling *t, const ExplainPart *part, ExForm form) {
    ExplainForm f = {form, EXPLAINED_MOST, t->as->attributes, t->as->ctx};
    Text text = text_new(t->x->arena);
    text_puts(&text, "");
    explain_part(&text, t->x, t->section, t->line, part, &f);
    return text.s;
}

static cJSON *part(const Telling *t, const ExplainPart *p) {
    cJSON *o = cJSON_CreateObject();
    for (int form = 0; form < EX_FORM_COUNT; form++)
        if (p->prose ? form == EX_TEXT : t->as->form[form])
            cJSON_AddStringToObject(o, ex_form_name((ExForm)form), part_text(t, p, (ExForm)form));
    return o;
}

static cJSON *line(const Telling *t) {
    const ExplainLine *l = t->line;
    cJSON *o = cJSON_CreateObject(), *parts = cJSON_CreateArray();
    Text text = text_new(t->x->arena);
    text_puts(&text, "");
    for (int i = 0; i < l->parts.n; i++) {
        text_puts(&text, part_text(t, &l->parts.data[i], EX_TEXT));
        cJSON_AddItemToArray(parts, part(t, &l->parts.data[i]));
    }
    cJSON_AddStringToObject(o, "kind", l->note ? "note" : "equation");
    cJSON_AddItemToObject(o, "defines",
                          l->defines ? cJSON_CreateString(l->defines) : cJSON_CreateNull());
    cJSON_AddItemToObject(o, "place", t->as->place(t->as->ctx, l->span));
    cJSON_AddStringToObject(o, "text", text.s);
    cJSON_AddItemToObject(o, "parts", parts);
    return o;
}

void explained_range(Text *out, const uint32_t from[2], const uint32_t to[2], const char *uri) {
    text_printf(out, " data-range=\"%u:%u-%u:%u\"", from[0], from[1], to[0], to[1]);
    if (!uri) return;
    text_puts(out, " data-uri=\"");
    for (; *uri; uri++) {
        char c[2] = {*uri, 0};
        text_puts(out, *uri == '<' ? "&lt;" : *uri == '&' ? "&amp;" : *uri == '"' ? "&quot;" : c);
    }
    text_puts(out, "\"");
}

static void streaming(cJSON *o, const Stream *s) {
    const char *blocking = s->blocking >= 0 ? s->row->reduces.data[s->blocking].name : NULL;
    cJSON_AddStringToObject(o, "variant", s->row->name);
    cJSON_AddNumberToObject(o, "sweeps", s->nsweeps);
    cJSON_AddItemToObject(o, "blocking",
                          blocking ? cJSON_CreateString(blocking) : cJSON_CreateNull());
}

static void chunked(cJSON *o, const Chunk *c) {
    cJSON_AddStringToObject(o, "variant", c->rec->name);
    cJSON_AddNumberToObject(o, "writes", c->nwrites);
    cJSON_AddStringToObject(o, "decay", !c->decay ? "none" : c->channel ? "channel" : "scalar");
}

cJSON *explained(const Explanation *x, const ExplainedAs *as) {
    Telling t = {.x = x, .as = as};
    cJSON *o = cJSON_CreateObject();
    if (x->s)
        streaming(o, x->s);
    else
        chunked(o, x->chunk);
    cJSON *sections = cJSON_AddArrayToObject(o, "sections");
    for (int i = 0; i < x->sections.n; i++) {
        cJSON *section = cJSON_CreateObject();
        t.section = &x->sections.data[i];
        cJSON_AddStringToObject(section, "id", t.section->id);
        cJSON_AddStringToObject(section, "title", t.section->title);
        cJSON *lines = cJSON_AddArrayToObject(section, "lines");
        for (int k = 0; k < t.section->lines.n; k++) {
            t.line = &t.section->lines.data[k];
            cJSON_AddItemToArray(lines, line(&t));
        }
        cJSON_AddItemToArray(sections, section);
    }
    return o;
}
