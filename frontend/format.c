// format.c: source text to its canonical form (docs/format.md): the statements as rows of pieces.
//
// In: any text. Out: the same tokens and comments, in the same order, laid out anew; or diagnostics,
// where it does not parse. Holds afterwards: what is put parses to an equal tree, and formatted again
// it stays as it is. The tree says where lines may end; the tokens are put one by one beside it,
// because parentheses, the digits of numbers and comments are in no tree.
#include "frontend/format.h"
#include "frontend/frontend.h"

#include <string.h>

enum { STEP = 4 }; // columns that the inside of a bracket or an operand is moved in

typedef struct Format {
    Arena *arena;
    Words words;
    int at;        // the next word
    Remarks carry; // of places where no line may end: they come where the next one may
    Layout layout;
    Row row;    // being filled
    int depth;  // of braces
    int indent; // of the next line of the statement
} Format;

// ---- pieces

static void put(Format *f, PieceKind kind, const char *s, uint32_t n, int indent) {
    Piece p = {kind, indent, n, s};
    VEC_PUSH(f->arena, &f->layout.pieces, p);
}

static void put_text(Format *f, const char *s) { put(f, PIECE_TEXT, s, (uint32_t)strlen(s), 0); }
static void put_open(Format *f) { put(f, PIECE_OPEN, NULL, 0, 0); }
static void put_close(Format *f) { put(f, PIECE_CLOSE, NULL, 0, 0); }
static void put_end(Format *f) { put(f, PIECE_END, NULL, 0, f->indent); }

static const Word *word(const Format *f) { return &f->words.data[f->at]; }
static bool word_is(const Format *f, const char *s) {
    return word(f)->n == strlen(s) && !memcmp(word(f)->s, s, word(f)->n);
}

// The next token. What stands between it and the one before has been put.
static void token(Format *f) {
    put(f, PIECE_TEXT, word(f)->s, word(f)->n, 0);
    f->at++;
}

// The comments before the next token; they are then dealt with.
static Remarks take_remarks(Format *f) {
    Remarks r = f->carry;
    f->carry = (Remarks){0};
    format_add_remarks(f->arena, &r, &word(f)->remarks);
    return r;
}

// ---- between tokens of a statement

// No line may end here: a comment that needs an end of line waits for the next place that has one.
static void glue(Format *f, const char *blank) {
    Remarks r = take_remarks(f);
    if (r.n > 1 || (r.n && r.data[0].after)) {
        f->carry = r;
    } else if (r.n) {
        bool bracket = word_is(f, ")") || word_is(f, "]") || word_is(f, ",") || word_is(f, ";");
        put_text(f, " ");
        put_text(f, r.data[0].s);
        blank = bracket ? "" : " ";
    }
    if (*blank) put_text(f, blank);
}

// A line may end here. `before`: a comment on the line belongs to the token before (else to the
// next one). Comments on lines of their own are indented as f->indent says, the next token by
// `indent`.
static void gap(Format *f, uint32_t blanks, bool before, int indent) {
    Remarks r = take_remarks(f);
    const char *with_next = NULL;
    bool forced = false;
    for (int i = 0; i < r.n; i++) {
        const Remark *x = &r.data[i];
        bool last = i + 1 == r.n, alone = x->after || (before && x->before);
        if (!alone && !before && last) {
            with_next = x->s;
        } else {
            if (x->before) put_end(f);
            put(f, x->before ? PIECE_TEXT : PIECE_REMARK, x->s, (uint32_t)strlen(x->s), 0);
            forced |= alone;
        }
    }
    put(f, forced ? PIECE_END : PIECE_LINE, NULL, blanks, indent);
    if (with_next) {
        put_text(f, with_next);
        put_text(f, " ");
    }
}

static void gap_after(Format *f, uint32_t blanks) { gap(f, blanks, false, f->indent); }
static void gap_before(Format *f, uint32_t blanks, int indent) { gap(f, blanks, true, indent); }

// ---- expressions; what stands before their first token has been put

static void put_expr(Format *f, const AstExpr *e);

static bool in_parens(const Format *f, const AstExpr *e) { return word(f)->start < e->span.start; }

// An operand: what it breaks into is set in.
static void put_operand(Format *f, const AstExpr *e) {
    bool operators = (e->kind == AST_BINARY || e->kind == AST_COND) && !in_parens(f, e);
    f->indent += operators ? STEP : 0;
    put_expr(f, e);
    f->indent -= operators ? STEP : 0;
}

// From an opening bracket to its closing one, with n parts.
static void put_list(Format *f, int n, void (*part)(Format *, const void *, int), const void *x) {
    put_open(f);
    token(f);
    f->indent += STEP;
    for (int i = 0; i < n; i++) {
        if (i) {
            glue(f, "");
            token(f); // the comma
        }
        gap_after(f, i ? 1 : 0);
        part(f, x, i);
    }
    if (n) gap_before(f, 0, f->indent - STEP);
    f->indent -= STEP;
    if (!n) glue(f, "");
    token(f);
    put_close(f);
}

static void put_arg(Format *f, const void *x, int i) {
    put_expr(f, ((const AstExpr *)x)->args.data[i]);
}

// begin:end, of which either may be absent.
static void put_slice(Format *f, const void *x, int i) {
    const AstExpr *const *bounds = (const AstExpr *const *)((const AstExpr *)x)->args.data;
    (void)i;
    if (bounds[0]) put_operand(f, bounds[0]);
    if (bounds[0]) glue(f, "");
    token(f);
    if (bounds[1]) glue(f, "");
    if (bounds[1]) put_operand(f, bounds[1]);
}

static void put_paren(Format *f, const void *x, int i) {
    (void)i;
    put_expr(f, x);
}

// Operators of one precedence: all break, or none. The chain may be longer than the stack is deep.
static void put_chain(Format *f, const AstExpr *e) {
    int precedence = ast_op_precedence(e->op);
    VEC(const AstExpr *) spine = {0};
    const AstExpr *first = e;
    while (first->kind == AST_BINARY && ast_op_precedence(first->op) == precedence &&
           first->span.start == e->span.start) {
        VEC_PUSH(f->arena, &spine, first);
        first = first->args.data[0];
    }
    put_open(f);
    put_operand(f, first);
    for (int i = spine.n - 1; i >= 0; i--) {
        glue(f, " ");
        token(f);
        gap_after(f, 1);
        put_operand(f, spine.data[i]->args.data[1]);
    }
    put_close(f);
}

// condition ? value : condition ? value : value; a line for each condition.
static void put_choice(Format *f, const AstExpr *e) {
    put_open(f);
    do {
        put_open(f);
        put_operand(f, e->args.data[0]);
        gap_before(f, 1, f->indent + STEP);
        token(f);
        glue(f, " ");
        put_operand(f, e->args.data[1]);
        put_close(f);
        gap_before(f, 1, f->indent);
        token(f);
        glue(f, " ");
        e = e->args.data[2];
    } while (e->kind == AST_COND && !in_parens(f, e));
    put_operand(f, e);
    put_close(f);
}

static void put_expr(Format *f, const AstExpr *e) {
    if (in_parens(f, e)) {
        put_list(f, 1, put_paren, e);
        return;
    }
    switch (e->kind) {
    case AST_INT:
    case AST_FLOAT:
    case AST_NAME: token(f); return;
    case AST_CALL:
    case AST_INDEX:
        token(f);
        glue(f, "");
        put_list(f, e->args.n, put_arg, e);
        return;
    case AST_SLICE:
        token(f);
        glue(f, "");
        put_list(f, 1, put_slice, e);
        return;
    case AST_UNARY:
        token(f);
        glue(f, "");
        put_expr(f, e->args.data[0]);
        return;
    case AST_BINARY: put_chain(f, e); return;
    case AST_COND: put_choice(f, e); return;
    }
}

// ---- rows

static bool closes(const Format *f) { return word_is(f, "}") || !*word(f)->s; }

static void push_row(Format *f, Row r) { VEC_PUSH(f->arena, &f->layout.rows, r); }

// The comments before a statement or the end of a block; what is left of them stands before it on
// its line.
static const char *put_remarks(Format *f, bool *blank) {
    Remarks list = take_remarks(f);
    bool below = false; // the one before follows a statement on its line, or is under such a one
    for (int i = 0; i < list.n; i++) {
        const Remark *r = &list.data[i];
        Row *last = f->layout.rows.n ? &f->layout.rows.data[f->layout.rows.n - 1] : NULL;
        bool with_next = !r->after && !closes(f);
        if (with_next) {
            *blank = r->blank;
            return r->s;
        }
        below = r->before ? r->below && below : last && !last->opens;
        if (!r->before && last)
            last->trail = r->s;
        else
            push_row(f, (Row){.depth = f->depth,
                              .first = f->layout.pieces.n,
                              .trail = r->s,
                              .below = below,
                              .blank = r->blank});
    }
    return NULL;
}

static void begin(Format *f) {
    bool blank = word(f)->blank;
    const char *before = put_remarks(f, &blank);
    f->row = (Row){.depth = f->depth, .first = f->layout.pieces.n, .equals = -1, .blank = blank};
    put_open(f);
    if (before) {
        put_text(f, before);
        put_text(f, " ");
    }
}

static void end(Format *f) {
    put_close(f);
    f->row.n = f->layout.pieces.n - f->row.first;
    push_row(f, f->row);
}

static void end_statement(Format *f) {
    glue(f, "");
    token(f); // the semicolon
    end(f);
}

// From the `{` on which a row ends to the row of its `}`.
static void open_block(Format *f) {
    glue(f, " ");
    token(f);
    f->row.opens = true;
    end(f);
    f->depth++;
}

static void close_block(Format *f) {
    bool blank;
    put_remarks(f, &blank);
    f->depth--;
    f->row = (Row){.depth = f->depth, .first = f->layout.pieces.n, .equals = -1, .closes = true};
    put_open(f);
    token(f);
    end(f);
}

// ---- statements

// `= value;`, on the next line where it does not fit.
static void put_value(Format *f, const AstExpr *value, Alignment align) {
    glue(f, " ");
    f->row.equals = f->layout.pieces.n;
    f->row.align = align;
    token(f);
    f->indent = STEP;
    gap_after(f, 1);
    put_expr(f, value);
    f->indent = 0;
    end_statement(f);
}

static void put_words(Format *f, int n) { // with a blank between them
    for (int i = 0; i < n; i++) {
        if (i) glue(f, " ");
        token(f);
    }
}

static void put_name(Format *f, const void *x, int i) {
    (void)x;
    (void)i;
    token(f);
}

static void put_function(Format *f, const AstItem *item, Alignment align) {
    const AstBody *b = &item->body;
    glue(f, "");
    put_list(f, item->params.n, put_name, NULL);
    if (!b->block) {
        put_value(f, b->result, align);
        return;
    }
    open_block(f);
    for (int i = 0; i < b->lets.n; i++) {
        begin(f);
        put_words(f, 2);
        put_value(f, b->lets.data[i].value, ALIGN_NONE);
    }
    begin(f);
    put_words(f, 1); // return
    glue(f, " ");
    f->indent = STEP;
    put_expr(f, b->result);
    f->indent = 0;
    end_statement(f);
    close_block(f);
}

static void put_import(Format *f) {
    put_words(f, 2);
    while (!word_is(f, ";")) {
        glue(f, "");
        token(f);
    }
    end_statement(f);
}

// The dims of one statement. How many.
static int put_dims(Format *f, AstItem *const *dims) {
    int n = 0;
    begin(f);
    put_words(f, 1);
    glue(f, " ");
    f->indent = STEP;
    for (;;) {
        put_words(f, 2);
        glue(f, " ");
        put_operand(f, dims[n++]->value);
        glue(f, "");
        if (word_is(f, ";")) break;
        token(f);
        gap_after(f, 1);
    }
    f->indent = 0;
    token(f);
    end(f);
    return n;
}

static void put_input(Format *f, const AstItem *input) {
    begin(f);
    put_words(f, 2);
    glue(f, "");
    put_words(f, 2); // : type
    if (input->extents.n) {
        glue(f, "");
        put_list(f, input->extents.n, put_name, NULL);
    }
    if (input->grad.s) {
        glue(f, " ");
        token(f);
    }
    end_statement(f);
}

static void put_share(Format *f) {
    begin(f);
    put_words(f, 4); // share v = k
    end_statement(f);
}

static void put_variant(Format *f, const AstItem *v) {
    put_words(f, 2);
    open_block(f);
    for (int i = 0; i < v->items.n;) {
        const AstItem *item = v->items.data[i];
        if (item->kind == AST_DIM) {
            i += put_dims(f, v->items.data + i);
            continue;
        }
        if (item->kind == AST_INPUT) {
            put_input(f, item);
        } else if (item->kind == AST_SHARE) {
            put_share(f);
        } else {
            begin(f);
            token(f);
            put_function(f, item, ALIGN_CLAUSE);
        }
        i++;
    }
    close_block(f);
}

static void put_item(Format *f, const AstItem *item) {
    bool variant = item->kind == AST_ATTENTION || item->kind == AST_RECURRENCE;
    begin(f);
    f->row.item = true;
    f->row.large = variant || item->body.block;
    if (variant) {
        put_variant(f, item);
    } else if (item->kind == AST_IMPORT) {
        put_import(f);
    } else {
        put_words(f, 2);
        if (item->kind == AST_CONST)
            put_value(f, item->value, ALIGN_CONST);
        else
            put_function(f, item, ALIGN_NONE);
    }
}

bool fe_format(Arena *a, Diags *d, const char *path, const char *text, size_t n, Text *out) {
    int errors = d->errors;
    AstTokens tokens = {0};
    const AstModule *m = ast_parse(a, d, diag_add_file(d, path, text, n), &tokens);
    if (d->errors > errors) return false;
    Format f = {.arena = a, .words = format_words(a, text, &tokens), .layout = {.arena = a}};
    bool blank;
    for (int i = 0; i < m->items.n; i++) put_item(&f, m->items.data[i]);
    put_remarks(&f, &blank);
    format_layout(&f.layout, out);
    return true;
}
