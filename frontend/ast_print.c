// ast_print.c: the AST as source, in a canonical layout (--emit=ast).
//
// Holds afterwards: the text parses to an equal tree. So parentheses stand exactly where precedence
// asks for them: a long chain `a + b + ...` needs none, and so stays within the nesting limit when
// it is read back.
#include "frontend/ast.h"

static const struct {
    const char *text;
    int precedence;
} operators[] = {
#define OPERATOR(e, text, prec, n, op, swap, doc) {text, prec},
#include "operators.def"
#undef OPERATOR
};

enum { PREC_COND = 1, PREC_UNARY = 12, PREC_PRIMARY = 13 };

const char *ast_op_text(AstOp op) { return operators[op].text; }
int ast_op_precedence(AstOp op) { return operators[op].precedence; }

static int precedence(const AstExpr *e) {
    switch (e->kind) {
    case AST_COND: return PREC_COND;
    case AST_BINARY:
    case AST_UNARY: return operators[e->op].precedence;
    case AST_INT:
    case AST_FLOAT:
    case AST_NAME:
    case AST_CALL:
    case AST_INDEX:
    case AST_SLICE: return PREC_PRIMARY;
    }
    return PREC_PRIMARY;
}

static void put_expr(Text *out, const AstExpr *e);

static void put_at(Text *out, const AstExpr *e, int least) {
    bool parens = precedence(e) < least;
    text_puts(out, parens ? "(" : "");
    put_expr(out, e);
    text_puts(out, parens ? ")" : "");
}

static void put_args(Text *out, const AstExpr *e, const char *open, const char *close) {
    text_puts(out, e->name.s);
    text_puts(out, open);
    for (int i = 0; i < e->args.n; i++) {
        text_puts(out, i ? ", " : "");
        put_expr(out, e->args.data[i]);
    }
    text_puts(out, close);
}

static void put_slice(Text *out, const AstExpr *e) {
    text_printf(out, "%s[", e->name.s);
    if (e->args.data[0]) put_expr(out, e->args.data[0]);
    text_puts(out, ":");
    if (e->args.data[1]) put_expr(out, e->args.data[1]);
    text_puts(out, "]");
}

// The left spine of a chain, from its innermost operand outwards: a chain may be longer than the
// stack is deep.
static void put_binary(Text *out, const AstExpr *e) {
    Arena *scratch = arena_new();
    VEC(const AstExpr *) spine = {0};
    const AstExpr *first = e;
    while (first->kind == AST_BINARY &&
           (first == e || precedence(first) >= precedence(spine.data[spine.n - 1]))) {
        VEC_PUSH(scratch, &spine, first);
        first = first->args.data[0];
    }
    put_at(out, first, precedence(spine.data[spine.n - 1]));
    for (int i = spine.n - 1; i >= 0; i--) {
        const AstExpr *b = spine.data[i];
        text_printf(out, " %s ", operators[b->op].text);
        put_at(out, b->args.data[1], precedence(b) + 1);
    }
    arena_free(scratch);
}

static void put_expr(Text *out, const AstExpr *e) {
    switch (e->kind) {
    case AST_INT: text_printf(out, "%u", e->i); return;
    case AST_FLOAT: text_f32(out, e->f); return;
    case AST_NAME: text_puts(out, e->name.s); return;
    case AST_CALL: put_args(out, e, "(", ")"); return;
    case AST_INDEX: put_args(out, e, "[", "]"); return;
    case AST_SLICE: put_slice(out, e); return;
    case AST_BINARY: put_binary(out, e); return;
    case AST_UNARY:
        text_puts(out, operators[e->op].text);
        put_at(out, e->args.data[0], PREC_UNARY);
        return;
    case AST_COND:
        put_at(out, e->args.data[0], PREC_COND + 1);
        text_puts(out, " ? ");
        put_at(out, e->args.data[1], PREC_COND);
        text_puts(out, " : ");
        put_at(out, e->args.data[2], PREC_COND);
        return;
    }
}

static void put_params(Text *out, const AstItem *item) {
    text_puts(out, "(");
    for (int i = 0; i < item->params.n; i++)
        text_printf(out, "%s%s", i ? ", " : "", item->params.data[i].s);
    text_puts(out, ")");
}

static void put_body(Text *out, const AstBody *b, const char *indent) {
    if (!b->block) {
        text_puts(out, " = ");
        if (b->result) put_expr(out, b->result);
        text_puts(out, ";\n");
        return;
    }
    text_puts(out, " {\n");
    for (int i = 0; i < b->lets.n; i++) {
        const AstLet *l = &b->lets.data[i];
        text_printf(out, "%s    %s %s = ", indent, l->emit ? "emit" : "let", l->name.s);
        put_expr(out, l->value);
        text_puts(out, ";\n");
    }
    text_printf(out, "%s    return ", indent);
    if (b->result) put_expr(out, b->result);
    text_printf(out, ";\n%s}\n", indent);
}

static void put_type(Text *out, const AstItem *input) {
    text_printf(out, ": %s", input->type.s);
    for (int i = 0; i < input->extents.n; i++) {
        const AstExtent *x = &input->extents.data[i];
        text_puts(out, i ? ", " : "[");
        if (x->name.s)
            text_puts(out, x->name.s);
        else
            text_printf(out, "%u", x->i);
    }
    text_puts(out, input->extents.n ? "]" : "");
    if (input->grad.s) text_printf(out, " %s", input->grad.s);
}

void ast_print_head(Text *out, const AstItem *item) {
    static const char *const words[] = {
        [AST_IMPORT] = "import ",
        [AST_CONST] = "const ",
        [AST_FN] = "fn ",
        [AST_NORMALIZATION] = "normalization ",
        [AST_ATTENTION] = "attention ",
        [AST_RECURRENCE] = "recurrence ",
        [AST_DIM] = "dim ",
        [AST_INPUT] = "input ",
        [AST_SHARE] = "share ",
        [AST_CLAUSE] = "",
    };
    AstItemKind k = item->kind;
    text_printf(out, "%s%s", words[k], item->name.s);
    if (k == AST_FN || k == AST_NORMALIZATION || k == AST_CLAUSE) put_params(out, item);
    if (k == AST_INPUT && item->type.s) put_type(out, item);
    if (k == AST_SHARE) text_printf(out, " = %s", item->of.s);
}

static void put_item(Text *out, const AstItem *item, const char *indent) {
    text_puts(out, indent);
    ast_print_head(out, item);
    switch (item->kind) {
    case AST_IMPORT:
    case AST_INPUT:
    case AST_SHARE: text_puts(out, ";\n"); return;
    case AST_CONST:
    case AST_DIM:
        text_puts(out, " = ");
        put_expr(out, item->value);
        text_puts(out, ";\n");
        return;
    case AST_FN:
    case AST_NORMALIZATION:
    case AST_CLAUSE: put_body(out, &item->body, indent); return;
    case AST_ATTENTION:
    case AST_RECURRENCE:
        text_puts(out, " {\n");
        for (int i = 0; i < item->items.n; i++) put_item(out, item->items.data[i], "    ");
        text_puts(out, "}\n");
        return;
    }
}

void ast_print(Text *out, const AstModule *m) {
    for (int i = 0; i < m->items.n; i++) put_item(out, m->items.data[i], "");
}
