// pane.c: documents, errors and results of the requests of docs/service.md.
#include "pane.h"

#include "explained.h"

#include <math.h>
#include <string.h>

// ---- documents

// As -D gives it.
static const char *define_text(Arena *a, const cJSON *item) {
    double v;
    if (cJSON_IsBool(item)) return cJSON_IsTrue(item) ? "true" : "false";
    if (cJSON_IsNumber(item) && item->valuedouble == floor(item->valuedouble) &&
        fabs(item->valuedouble) < 1e15)
        return arena_printf(a, "%.0f", item->valuedouble);
    if (cJSON_IsNumber(item)) return arena_printf(a, "%.9g", item->valuedouble);
    return pane_is_number(item, &v) || cJSON_IsString(item) ? item->valuestring : NULL;
}

static bool read_constants(Pane *p, FeOptions *o) {
    const cJSON *all = json_get(p->params, "constants"), *item;
    FeDefine *defines = ARENA_ARRAY(p->arena, FeDefine, cJSON_GetArraySize(all) + 1);
    cJSON_ArrayForEach(item, all) {
        const char *value = item->string ? define_text(p->arena, item) : NULL;
        if (!value) return pane_wrong(p, "'constants' holds numbers, booleans and strings by name");
        defines[o->ndefines++] = (FeDefine){item->string, value};
    }
    o->defines = defines;
    return true;
}

bool pane_load(Pane *p, Service *s, const cJSON *params, Uses *uses) {
    Arena *a = arena_new();
    FeStatus status;
    *p = (Pane){.s = s, .params = params, .arena = a, .source = {.arena = a}};
    p->source.diags = diag_list(a);
    Document *d = document_of(s, params);
    if (!d) return false;
    FeOptions o = document_options(s, d);
    o.uses = uses;
    if (!read_constants(p, &o)) return false;
    p->source.module = fe_load(a, &p->source.diags, &o, &status);
    return p->source.module || pane_refused(p);
}

// The attention that is asked for, or the first.
static bool find_variant(Pane *p) {
    const char *entry = json_string(p->params, "entry");
    const Variants *all = &p->source.module->variants;
    for (int i = 0; i < all->n && !p->variant; i++) {
        Variant *v = all->data[i];
        if (entry ? !strcmp(v->name, entry) : v->kind == VARIANT_ATTENTION) p->variant = v;
    }
    if (!p->variant && !entry && all->n) p->variant = all->data[0];
    if (!p->variant && entry) return pane_wrong(p, "there is no attention '%.100s'", entry);
    if (p->variant && p->variant->kind == VARIANT_ATTENTION) return true;
    if (p->variant)
        diag_error(&p->source.diags, p->variant->span,
                   "'%s' is a recurrence, of which nothing is derived", p->variant->name);
    else
        diag_error(&p->source.diags, (Span){0}, "the document holds no attention");
    return pane_refused(p);
}

bool pane_open(Pane *p, Service *s, const cJSON *params, PaneNeed need) {
    if (!pane_load(p, s, params, NULL) || !find_variant(p)) return false;
    if (need == PANE_VARIANT) return true;
    p->row = fe_lower(p->arena, &p->source.diags, p->variant);
    if (!p->row) return pane_refused(p);
    p->stream = pass_derive(p->arena, p->row, &p->source.diags);
    return true;
}

cJSON *pane_close(Pane *p, cJSON *result) {
    arena_free(p->arena);
    return result;
}

cJSON *pane_wrong(Pane *p, const char *fmt, ...) {
    va_list ap;
    Text t = text_new(p->arena);
    va_start(ap, fmt);
    text_vprintf(&t, fmt, ap);
    va_end(ap);
    return service_fail(p->s, RPC_INVALID_PARAMS, NULL, "%s", t.s);
}

cJSON *pane_refused(Pane *p) {
    const Diag *first = p->source.diags.first;
    while (first && first->severity != DIAG_ERROR) first = first->next;
    cJSON *data = cJSON_CreateObject();
    cJSON_AddItemToObject(data, "diagnostics", diagnostics_of(p->s, &p->source));
    return service_fail(p->s, RPC_REQUEST_FAILED, data, "%s",
                        first ? first->message : "the source cannot be read");
}

// ---- numbers

bool pane_is_number(const cJSON *item, double *value) {
    static const char *const words[] = {"nan", "inf", "-inf"};
    static const double values[] = {NAN, INFINITY, -INFINITY};
    *value = cJSON_IsNumber(item) ? item->valuedouble : cJSON_IsTrue(item);
    for (int i = 0; i < 3 && cJSON_IsString(item); i++)
        if (!strcmp(item->valuestring, words[i])) return *value = values[i], true;
    return cJSON_IsNumber(item) || cJSON_IsBool(item);
}

static void put_number(Text *t, double v) {
    if (isnan(v))
        text_puts(t, "\"nan\"");
    else if (isinf(v))
        text_puts(t, v < 0 ? "\"-inf\"" : "\"inf\"");
    else
        text_printf(t, "%.9g", v);
}

cJSON *pane_number(double v) {
    if (isnan(v)) return cJSON_CreateString("nan");
    if (isinf(v)) return cJSON_CreateString(v < 0 ? "-inf" : "inf");
    return cJSON_CreateNumber(v);
}

// As text: an item for each of many thousand numbers takes long.
cJSON *pane_numbers(Pane *p, const double *v, int64_t n) {
    Text t = text_new(p->arena);
    text_puts(&t, "[");
    for (int64_t i = 0; i < n; i++) {
        if (i) text_puts(&t, ",");
        put_number(&t, v[i]);
    }
    text_puts(&t, "]");
    return cJSON_CreateRaw(t.s);
}

cJSON *pane_bits(Pane *p, const unsigned char *bits, int64_t n) {
    char *s = arena_alloc(p->arena, (size_t)n + 1);
    for (int64_t i = 0; i < n; i++) s[i] = bits[i] ? '1' : '0';
    return cJSON_CreateString(s);
}

// ---- formulas and places

cJSON *pane_span(Pane *p, Span span) {
    cJSON *place = analysis_location(p->s, &p->source, span);
    return place ? place : cJSON_CreateNull();
}

void pane_range(void *pane, Text *out, Span span) {
    Pane *p = pane;
    const Lines *l = analysis_lines(&p->source, span.file);
    uint32_t from[2], to[2];
    lines_position(l, p->s->client.utf8, span.start, &from[0], &from[1]);
    lines_position(l, p->s->client.utf8, span.end, &to[0], &to[1]);
    bool here = span.file == 1; // in the document itself
    const char *path = p->source.diags.files.data[span.file].name;
    explained_range(out, from, to, here ? NULL : uri_of_path(p->s, p->arena, path));
}

static void attributes(void *pane, Text *out, const Ex *e) {
    if (e->span.file) pane_range(pane, out, e->span);
}

void pane_formula(Pane *p, cJSON *to, const Ex *e, const ExNames *names) {
    for (int form = 0; form < EX_FORM_COUNT; form++) {
        ExStyle style = {(ExForm)form, EXPLAINED_MOST, EX_OVER_KEYS, names, attributes, p};
        Text t = text_new(p->arena);
        text_puts(&t, form == EX_MATHML ? "<math><mrow>" : "");
        ex_print_styled(&t, e, &style);
        text_puts(&t, form == EX_MATHML ? "</mrow></math>" : "");
        cJSON_AddStringToObject(to, ex_form_name((ExForm)form), t.s);
    }
}

static const char *itself(void *name, ExSym sym, int index) {
    (void)sym, (void)index;
    return name;
}

const char *pane_name(Pane *p, const char *name) {
    ExNames names = {.name = itself, .ctx = arena_strdup(p->arena, name)};
    ExStyle style = {.form = EX_MATHML, .names = &names};
    Text t = text_new(p->arena);
    text_puts(&t, "<math><mrow>");
    ex_print_styled(&t, ex_sym(ex_pool(p->arena), SYM_PARAM, 0, EX_F32), &style);
    text_puts(&t, "</mrow></math>");
    return t.s;
}
