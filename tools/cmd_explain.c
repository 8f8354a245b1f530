// cmd_explain.c: `attnc explain`: what the compiler derived, as mathematics.
#include "cmd.h"
#include "files.h"
#include "service/explained.h"

// Where a formula comes from, for a page that shows the source beside it.
static void put_range(void *ctx, Text *out, Span span) {
    const Diags *d = ctx;
    DiagPosition from = diag_position(d, span.file, span.start);
    DiagPosition to = diag_position(d, span.file, span.end);
    explained_range(out, (uint32_t[]){from.line, from.column}, (uint32_t[]){to.line, to.column},
                    span.file == 1 ? NULL : d->files.data[span.file].name);
}

static cJSON *position(const Diags *d, Span span, uint32_t at) {
    DiagPosition p = diag_position(d, span.file, at);
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "line", p.line);
    cJSON_AddNumberToObject(o, "character", p.column);
    return o;
}

static cJSON *place(void *ctx, Span span) {
    const Diags *d = ctx;
    if (!span.file) return cJSON_CreateNull();
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "uri", d->files.data[span.file].name);
    cJSON *range = cJSON_AddObjectToObject(o, "range");
    cJSON_AddItemToObject(range, "start", position(d, span, span.start));
    cJSON_AddItemToObject(range, "end", position(d, span, span.end));
    return o;
}

// Of the variant i: attentions first, then recurrences.
static const Explanation *explanation(const Compile *c, int i) {
    int k = i - c->streams.n;
    return k < 0 ? pass_explain(c->streams.data[i])
                 : pass_explain_chunk(c->recurrences.data[k], c->chunks.data[k]);
}

static void put_json(Text *t, Compile *c) {
    ExplainedAs as = {{true, true, true}, put_range, place, &c->diags};
    cJSON *all = cJSON_CreateArray();
    for (int i = 0; i < c->streams.n + c->chunks.n; i++)
        cJSON_AddItemToArray(all, explained(explanation(c, i), &as));
    char *text = cJSON_PrintUnformatted(all);
    text_printf(t, "%s\n", text);
    cJSON_free(text);
    cJSON_Delete(all);
}

static void put(Text *t, Compile *c, Format format) {
    static const ExForm forms[] = {EX_TEXT, EX_MATHML, EX_TEX};
    ExplainForm form = {forms[format], 0, put_range, &c->diags};
    for (int i = 0; i < c->streams.n + c->chunks.n; i++) {
        if (i && form.form == EX_TEXT) text_puts(t, "\n");
        explain_print(t, explanation(c, i), &form);
    }
}

Status cmd_explain(const Options *o) {
    Compile c;
    Status s = cmd_open(&c, o, o->files.data[0], TARGET_HOST, o->has_dtype ? o->dtype : DT_F32);
    if (s == STATUS_DONE) {
        bool good = compile_streams(&c);
        s = cmd_report(&c, good ? STATUS_DONE : STATUS_INPUT);
    }
    if (s == STATUS_DONE) {
        Text t = text_new(c.arena);
        text_puts(&t, "");
        if (o->format == FORMAT_JSON)
            put_json(&t, &c);
        else
            put(&t, &c, o->format);
        s = file_write(o->output ? o->output : "-", t.s, t.n);
    }
    compile_close(&c);
    return s;
}
