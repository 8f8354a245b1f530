// explain_print.c: an explanation as text, MathML and TeX (passes/derive/explain.h).
#include "passes/derive/explain.h"

typedef struct Printing {
    const Explanation *x;
    const ExplainForm *form;
    ExNames row;
} Printing;

static const char *name_of(void *ctx, ExSym sym, int index) {
    const Printing *p = ctx;
    switch ((int)sym) {
    case SYM_PARAM: return p->x->names.data[index].name;
    case SYM_DOT:
    case SYM_SQQ:
    case SYM_SQK:
        if (index > 0) return row_product_name(p->x->s->row, sym, index);
        return sym == SYM_DOT ? "dot(q, k)" : sym == SYM_SQQ ? "sqnorm(q)" : "sqnorm(k)";
    case SYM_SQV: return "sqnorm(v)";
    case SYM_SQO: return "sqnorm(o)";
    default: return p->row.name(p->row.ctx, sym, index);
    }
}

static const char *input_of(void *ctx, int input) {
    const Printing *p = ctx;
    return p->row.input(p->row.ctx, input);
}

static void attributes(void *ctx, Text *out, const Ex *e) {
    const Printing *p = ctx;
    bool name = e->op == EX_SYM && e->sym == SYM_PARAM;
    Span span = name ? p->x->names.data[e->index].span : e->span;
    if (span.file && p->form->attributes) p->form->attributes(p->form->ctx, out, span);
}

static void put_prose(Text *out, const char *s, ExForm form) {
    for (; *s; s++) {
        char c[2] = {*s, 0};
        if (form == EX_MATHML)
            text_puts(out, *s == '<' ? "&lt;" : *s == '&' ? "&amp;" : c);
        else
            text_puts(out, c);
    }
}

// An equation without words beside it.
static bool alone(const ExplainLine *l) { return !l->note && l->parts.n == 1; }

void explain_part(Text *out, const Explanation *x, const ExplainSection *s, const ExplainLine *line,
                  const ExplainPart *part, const ExplainForm *f) {
    Printing p = {x, f, x->program};
    ExNames names = {.name = name_of, .input = input_of, .ctx = &p};
    ExStyle style = {.form = f->form,
                     .most = f->most,
                     .over = s->over,
                     .names = &names,
                     .attributes = attributes,
                     .ctx = &p};
    if (part->prose) {
        put_prose(out, part->prose, f->form);
        return;
    }
    if (f->form == EX_MATHML) {
        text_puts(out, alone(line) ? "<math display=\"block\"" : "<math");
        if (line->span.file && f->attributes) f->attributes(f->ctx, out, line->span);
        text_puts(out, "><mrow>");
    }
    if (part->name) {
        ex_print_styled(out, part->name, &style);
        text_puts(out, f->form == EX_MATHML ? "<mo>=</mo>" : " = ");
    }
    ex_print_styled(out, part->value, &style);
    if (f->form == EX_MATHML) text_puts(out, "</mrow></math>");
}

static void put_line(Text *out, const Explanation *x, const ExplainSection *s, const ExplainLine *l,
                     const ExplainForm *f) {
    const char *dollars = alone(l) ? "$$" : "$";
    if (f->form == EX_TEXT) text_puts(out, "    ");
    if (f->form == EX_MATHML) text_printf(out, "<p class=\"%s\">", l->note ? "note" : "equation");
    for (int i = 0; i < l->parts.n; i++) {
        const ExplainPart *part = &l->parts.data[i];
        bool tex = f->form == EX_TEX && !part->prose;
        if (tex) text_puts(out, dollars);
        explain_part(out, x, s, l, part, f);
        if (tex) text_puts(out, dollars);
    }
    text_puts(out, f->form == EX_MATHML ? "</p>\n" : f->form == EX_TEX ? "\n\n" : "\n");
}

void explain_print(Text *out, const Explanation *x, const ExplainForm *f) {
    static const char *const before[] = {
        [EX_TEXT] = "", [EX_MATHML] = "<section>\n<h3>", [EX_TEX] = "### "};
    static const char *const after[] = {
        [EX_TEXT] = "\n", [EX_MATHML] = "</h3>\n", [EX_TEX] = "\n\n"};
    for (int i = 0; i < x->sections.n; i++) {
        const ExplainSection *s = &x->sections.data[i];
        if (i && f->form == EX_TEXT) text_puts(out, "\n");
        text_puts(out, before[f->form]);
        put_prose(out, s->title, f->form);
        text_puts(out, after[f->form]);
        for (int k = 0; k < s->lines.n; k++) put_line(out, x, s, &s->lines.data[k], f);
        if (f->form == EX_MATHML) text_puts(out, "</section>\n");
    }
}
