// hover.c: what is said of a name under the pointer.
//
// In: a position. Out: Markdown (or plain text): the definition with its comment, type and value; of what
// is built in its description (frontend/describe.h); of `normalize` and of an attention what was derived.
#include "frontend/describe.h"
#include "internal.h"
#include "passes/derive/explain.h"

#include <string.h>

enum { LONGEST_DEFINITION = 1200 }; // bytes that are shown of it

typedef struct Hover {
    Service *s;
    Analysis *a; // of the name
    Text *out;
} Hover;

static void put_code(const Hover *h, const char *code) {
    bool markdown = h->s->client.markdown;
    text_printf(h->out, markdown ? "```attn\n%s\n```\n" : "%s\n", code);
}

static void put_paragraph(const Hover *h, const char *text) {
    if (text && *text) text_printf(h->out, "\n%s\n", text);
}

// ---- types and values

void hover_put_type(Text *out, const Tx *v, bool varies) {
    if (!v)
        text_puts(out, "?");
    else if (varies)
        text_puts(out, "any");
    else
        text_printf(out, "%s%s", v->row ? "row of " : "", tx_type_name(v->type));
}

static void put_value(Text *out, const Tx *v) {
    if (!v->known)
        return;
    else if (v->type == TX_F32)
        text_f32(out, v->value.written);
    else if (v->type == TX_BOOL)
        text_puts(out, v->value.i ? "true" : "false");
    else
        text_printf(out, "%d", v->value.i);
}

static void put_typed(const Hover *h, const Tx *v, bool varies) {
    if (!v || v->type == TX_BAD) return;
    text_puts(h->out, h->s->client.markdown ? "\n`" : "\n");
    hover_put_type(h->out, v, varies);
    if (v->known && !varies) {
        text_puts(h->out, " = ");
        put_value(h->out, v);
    }
    text_puts(h->out, h->s->client.markdown ? "`\n" : "\n");
}

// The parameters and result of a function, as its calls have them.
void hover_put_signature(Text *out, const Analysis *a, const Decl *d) {
    const AstItem *item = d->item;
    text_printf(out, "%s(", d->name);
    for (int i = 0; i < item->params.n; i++) {
        text_printf(out, "%s%s", i ? ", " : "", item->params.data[i].s);
        const Decl *p = NULL;
        for (int k = 0; k < a->uses.all.n && !p; k++) {
            const Use *u = &a->uses.all.data[k];
            bool here = u->defines && u->span.file == item->span.file &&
                        u->span.start == item->params.data[i].span.start;
            if (here) p = u->decl;
        }
        if (!p || !p->seen) continue;
        text_puts(out, ": ");
        hover_put_type(out, p->seen, p->varies);
    }
    text_puts(out, ")");
    if (!d->seen || d->seen->type == TX_BAD) return;
    text_puts(out, " -> ");
    hover_put_type(out, d->seen, d->varies);
}

// ---- what is built in

static bool put_word(const Hover *h, const char *name, FeWordKind kind) {
    FeWords words = fe_words(h->a->arena);
    const FeWord *w;
    int next = 0;
    bool any = false;
    while ((w = fe_word(&words, name, &next))) {
        if (w->kind != kind) continue;
        Text code = text_new(h->a->arena);
        fe_put_signature(&code, w);
        put_code(h, code.s);
        put_paragraph(h, w->doc);
        for (int i = 0; i < w->nparams; i++)
            if (*w->params[i].doc)
                text_printf(h->out, "\n* %s: %s", w->params[i].name, w->params[i].doc);
        if (w->nparams) text_puts(h->out, "\n");
        if (w->absent)
            put_paragraph(h, arena_printf(h->a->arena, "Where it is not written: %s.", w->absent));
        any = true;
    }
    return any;
}

// ---- what was derived

static const Derived *derived_of(const Hover *h, Document *d, const Decl *clause) {
    if (h->a != d->now || !document_derive(h->s, d)) return NULL;
    for (int i = 0; i < h->a->attentions.n; i++) {
        const Derived *x = &h->a->attentions.data[i];
        const AstItems *items = &h->a->uses.ast->items;
        for (int k = 0; k < items->n; k++) {
            const AstItem *item = items->data[k];
            bool inside = item->name.span.start == x->variant->span.start &&
                          item->span.start <= clause->span.start &&
                          clause->span.start < item->span.end;
            if (inside) return x;
        }
    }
    return NULL;
}

static void put_states(const Hover *h, const Stream *s) {
    static const char *const kinds[] = {"maximum", "minimum", "sum"};
    text_printf(h->out, "\n%s", s->nsweeps == 1 ? "One sweep over the keys." : "");
    if (s->nsweeps > 1) {
        text_printf(h->out, "%d sweeps over the keys", s->nsweeps);
        const char *name = s->blocking >= 0 ? s->row->reduces.data[s->blocking].name : NULL;
        text_printf(h->out, name ? ": '%s' is needed before the first key is weighted." : ".",
                    name);
    }
    text_puts(h->out, " State of each row: ");
    for (int i = 0; i < s->states.n; i++) {
        const StreamState *x = &s->states.data[i];
        int kind = x->op == EX_ROWMAX ? 0 : x->op == EX_ROWMIN ? 1 : 2;
        text_printf(h->out, "%s (%s), ", x->name ? x->name : "a number", kinds[kind]);
    }
    text_puts(h->out, "the accumulator of the output.\n");
}

// The sections that have one of these names.
static void put_sections(const Hover *h, const Explanation *x, const char *const *ids, int n) {
    Explanation some = {.arena = x->arena, .program = x->program, .s = x->s, .names = x->names};
    for (int i = 0; i < x->sections.n; i++)
        for (int k = 0; k < n; k++)
            if (!strcmp(x->sections.data[i].id, ids[k]))
                VEC_PUSH(h->a->arena, &some.sections, x->sections.data[i]);
    Text text = text_new(h->a->arena);
    text_puts(&text, "");
    explain_print(&text, &some, &(ExplainForm){.form = EX_TEXT});
    text_printf(h->out, h->s->client.markdown ? "\n```text\n%s```\n" : "\n%s", text.s);
}

static void put_derived(const Hover *h, Document *d, const Decl *decl) {
    static const char *const online[] = {"sweep", "end", "combine"}, *const row[] = {"row"};
    const Derived *x = derived_of(h, d, decl);
    if (!x) return;
    if (decl->kind == DECL_CLAUSE) put_states(h, x->stream);
    put_sections(h, pass_explain(x->stream), decl->kind == DECL_CLAUSE ? online : row,
                 decl->kind == DECL_CLAUSE ? 3 : 1);
}

// ---- what is written

// The comment above a definition, whose name or keyword is at `start`.
static void put_comment(const Hover *h, const Decl *d, uint32_t start) {
    const Source *source = &h->a->diags.files.data[d->span.file];
    const AstTokens *tokens = analysis_tokens(h->a, d->span.file);
    for (int i = 1; i < tokens->n && tokens->data[i].span.start <= start; i++)
        if (tokens->data[i].span.start == start && tokens->data[i - 1].kind == AST_TOKEN_KEYWORD) {
            start = tokens->data[i - 1].span.start; // of `let`, `dim`
            break;
        }
    put_paragraph(h, fe_comment_above(h->a->arena, source->text, tokens, start));
}

static const AstLet *let_of(const Decl *d) {
    for (int i = 0; d->item && i < d->item->body.lets.n; i++)
        if (d->item->body.lets.data[i].name.span.start == d->span.start)
            return &d->item->body.lets.data[i];
    return NULL;
}

static const char *shortened(const Hover *h, Span span, const char *before) {
    const char *text = analysis_text(h->a, span);
    bool longer = strlen(text) > LONGEST_DEFINITION;
    return arena_printf(h->a->arena, "%s%.*s%s", before, LONGEST_DEFINITION, text,
                        longer ? " ..." : "");
}

static void put_local(const Hover *h, const Decl *d) {
    const AstLet *let = let_of(d);
    const char *word = d->kind == DECL_EMIT ? "emit" : "let";
    if (let && let->value)
        put_code(h, arena_printf(h->a->arena, "%s %s = %s;", word, d->name,
                                 shortened(h, let->value->span, "")));
    else
        put_code(h, d->name);
    if (d->kind == DECL_PARAM && d->item)
        put_paragraph(h, arena_printf(h->a->arena, "A parameter of '%s'.", d->item->name.s));
    const TxSym sym =
        d->kind == DECL_PARAM && d->seen && d->seen->op == EX_SYM ? d->seen->sym : TS_COUNT;
    FeWords words = fe_words(h->a->arena);
    if (sym != TS_COUNT && d->item->kind == AST_CLAUSE) { // its place says what it is
        int next = 0;
        const FeWord *w = fe_word(&words, d->item->name.s, &next);
        for (int i = 0; w && i < w->nparams; i++)
            if (!strcmp(w->params[i].name, tx_sym_name(sym))) put_paragraph(h, w->params[i].doc);
    }
    put_typed(h, d->seen, d->varies);
    if (let) put_comment(h, d, d->span.start);
}

static void put_item(const Hover *h, Document *document, const Decl *d) {
    const AstItem *item = d->item;
    bool function = d->kind == DECL_FN || d->kind == DECL_NORMALIZATION;
    if (d->kind == DECL_VARIANT)
        put_code(h,
                 arena_printf(h->a->arena, "%s %s",
                              item->kind == AST_ATTENTION ? "attention" : "recurrence", d->name));
    else
        put_code(h, d->kind == DECL_DIM
                        ? arena_printf(h->a->arena, "%s;", shortened(h, item->span, "dim "))
                        : shortened(h, item->span, ""));
    if (function && d->seen) {
        text_puts(h->out, h->s->client.markdown ? "\n`" : "\n");
        hover_put_signature(h->out, h->a, d);
        text_puts(h->out, h->s->client.markdown ? "`\n" : "\n");
    }
    if (d->kind == DECL_CONST || d->kind == DECL_DIM) put_typed(h, d->value, false);
    put_comment(h, d, item->span.start);
    if (d->kind == DECL_VARIANT) put_derived(h, document, d);
}

static void put_module(const Hover *h, const Decl *d) {
    const Source *source = &h->a->diags.files.data[d->span.file];
    const AstTokens *tokens = analysis_tokens(h->a, d->span.file);
    put_code(h, arena_printf(h->a->arena, "import %s;", d->name));
    if (tokens->n > 1 && tokens->data[0].kind == AST_TOKEN_COMMENT)
        put_paragraph(
            h, fe_comment_above(h->a->arena, source->text, tokens, tokens->data[0].span.end + 1));
    text_puts(h->out, "\n");
    for (int i = 0, n = 0; i < h->a->uses.all.n; i++) {
        const Use *u = &h->a->uses.all.data[i];
        DeclKind k = u->decl->kind;
        bool exported = k == DECL_CONST || k == DECL_FN || k == DECL_NORMALIZATION;
        if (u->defines && u->span.file == d->span.file && exported)
            text_printf(h->out, "%s%s", n++ ? ", " : "It defines ", u->decl->name);
    }
    text_puts(h->out, "\n");
}

static void put_decl(const Hover *h, Document *document, const Decl *d) {
    switch (d->kind) {
    case DECL_BUILTIN: put_word(h, d->name, FE_BUILTIN); return;
    case DECL_CONSTANT: put_word(h, d->name, FE_CONSTANT); return;
    case DECL_CLAUSE:
        put_word(h, d->name, FE_CLAUSE);
        put_comment(h, d, d->item->span.start);
        if (!strcmp(d->name, "normalize")) put_derived(h, document, d);
        return;
    case DECL_SIZE:
        if (!d->span.file) {
            put_word(h, d->name, FE_SIZE);
            return;
        }
        put_code(h, d->name);
        put_paragraph(h, arena_printf(h->a->arena, "A size: '%s' brings it at each launch.",
                                      d->item->name.s));
        return;
    case DECL_MODULE: put_module(h, d); return;
    case DECL_PARAM:
    case DECL_LET:
    case DECL_EMIT: put_local(h, d); return;
    case DECL_CONST:
    case DECL_FN:
    case DECL_NORMALIZATION:
    case DECL_VARIANT:
    case DECL_DIM:
    case DECL_INPUT: break;
    }
    if (d->item)
        put_item(h, document, d);
    else
        put_word(h, d->name, FE_SIZE); // a Dv that is not written
}

static cJSON *hover_result(const Hover *h, const Document *d, Span span) {
    cJSON *contents =
        json_pair("kind", cJSON_CreateString(h->s->client.markdown ? "markdown" : "plaintext"),
                  "value", cJSON_CreateString(h->out->s));
    return json_pair("contents", contents, "range",
                     lines_range(&d->lines, h->s->client.utf8, span.start, span.end));
}

cJSON *hover_hover(Service *s, const cJSON *params) {
    Named x;
    uint32_t at;
    Text text;
    bool named = name_at(s, params, &x);
    Document *d = s->error.code ? NULL : document_of(s, params);
    if (!d || !document_offset(s, d, json_get(params, "position"), &at)) return NULL;
    Hover h = {s, named ? x.analysis : document_analysis(s, d), &text};
    text = text_new(h.a->arena);
    text_puts(&text, "");
    if (named) {
        put_decl(&h, d, x.decl);
        return text.n ? hover_result(&h, d, x.span) : NULL;
    }
    const AstToken *token = analysis_token(h.a, at);
    static const FeWordKind kinds[] = {FE_KEYWORD, FE_TYPE, FE_OPERATOR, FE_CLAUSE, FE_TENSOR};
    bool found = false;
    for (int i = 0; token && i < 5 && !found; i++)
        found = put_word(&h, analysis_text(h.a, token->span), kinds[i]);
    return found ? hover_result(&h, d, token->span) : NULL;
}
