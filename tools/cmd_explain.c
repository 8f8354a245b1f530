// cmd_explain.c: `attnc explain`: what the compiler derived, as mathematics.
#include "cmd.h"
#include "files.h"
#include "passes/derive/explain.h"

// Where a formula comes from, for a page that shows the source beside it.
static void put_range(void *ctx, Text *out, Span span) {
    const Diags *d = ctx;
    DiagPosition from = diag_position(d, span.file, span.start);
    DiagPosition to = diag_position(d, span.file, span.end);
    text_printf(out, " data-range=\"%u:%u-%u:%u\"", from.line, from.column, to.line, to.column);
    if (span.file == 1) return; // the main file
    text_puts(out, " data-uri=\"");
    for (const char *s = d->files.data[span.file].name; *s; s++) {
        char c[2] = {*s, 0};
        text_puts(out, *s == '<' ? "&lt;" : *s == '&' ? "&amp;" : *s == '"' ? "&quot;" : c);
    }
    text_puts(out, "\"");
}

Status cmd_explain(const Options *o) {
    Compile c;
    Text t;
    Status s = cmd_open(&c, o, o->files.data[0], TARGET_HOST, DT_F32);
    if (s == STATUS_DONE) {
        bool good = compile_streams(&c);
        s = cmd_report(&c, good ? STATUS_DONE : STATUS_INPUT);
    }
    if (s == STATUS_DONE) {
        static const ExForm forms[] = {EX_TEXT, EX_MATHML, EX_TEX};
        ExplainForm form = {forms[o->format], put_range, &c.diags};
        text_init(&t, c.arena);
        text_puts(&t, "");
        for (int i = 0; i < c.streams.n; i++) {
            if (i && form.form == EX_TEXT) text_puts(&t, "\n");
            explain_print(&t, pass_explain(c.streams.data[i]), &form);
        }
        s = file_write(o->output ? o->output : "-", t.s, t.n);
    }
    compile_close(&c);
    return s;
}
