// expr_text.c: scalar expressions as text, and back.
//
// In: an expression and the names of what it refers to. Out: `((s * 0.5) + bias[h, q_idx])`. Holds
// afterwards: ex_parse of what ex_print wrote is the same node. For people: expr_pretty.c.
//
// Forms beside ops.def's: constants `12`, `-1.5`, `inf`, `nan`, `true`; an indexed symbol without a
// name of its own is its symbol's and its number, `tile0`, with `:i32` after it where the type is
// not the usual one; `t![i]` is a load that is proved inside.
#include "ir/expr_ops.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- printing

// What is still to be written: text, or an expression.
typedef struct Piece {
    const char *text;
    const Ex *e;
} Piece;

typedef struct Printer {
    Text *out;
    const ExNames *names;
    Arena *scratch;
    VEC(Piece) todo; // last first
} Printer;

// A node's pieces in reading order; at most 2 per argument and a few around them.
typedef struct Pieces {
    Piece p[2 * EX_MAX_RANK + 6];
    int n;
} Pieces;

static void word(Pieces *w, const char *text) { w->p[w->n++] = (Piece){text, NULL}; }
static void term(Pieces *w, const Ex *e) { w->p[w->n++] = (Piece){NULL, e}; }

static void print_const(Text *out, const Ex *e) {
    if (e->type == EX_F32)
        text_f32(out, e->f);
    else if (e->type == EX_I32)
        text_printf(out, "%d", e->i);
    else
        text_puts(out, e->i ? "true" : "false");
}

static void print_sym(Printer *pr, const Ex *e) {
    const ExNames *n = pr->names;
    const char *name = n && n->name ? n->name(n->ctx, e->sym, e->index) : NULL;
    if (name) {
        text_puts(pr->out, name);
        return;
    }
    text_puts(pr->out, ex_syms[e->sym].name);
    if (ex_syms[e->sym].indexed == 1 || e->index) text_printf(pr->out, "%d", e->index);
    if (e->type != ex_sym_type(e->sym)) text_printf(pr->out, ":%s", ex_type_name(e->type));
}

static void commas(Pieces *w, const Ex *e, const char *close) {
    for (int i = 0; i < e->nargs; i++) {
        if (i) word(w, ", ");
        term(w, e->args[i]);
    }
    word(w, close);
}

static void load_pieces(Printer *pr, Pieces *w, const Ex *e) {
    const ExNames *n = pr->names;
    const char *name = n && n->input ? n->input(n->ctx, e->input) : NULL;
    if (name)
        text_puts(pr->out, name);
    else
        text_printf(pr->out, "input%d:%s", e->input, ex_type_name(e->type));
    word(w, e->inside ? "![" : "[");
    commas(w, e, "]");
}

static void pieces(Pieces *w, const Ex *e) {
    switch (ex_ops[e->op].fix) {
    case X_INFIX:
        word(w, "(");
        term(w, e->args[0]);
        word(w, " ");
        word(w, ex_op_name(e->op));
        word(w, " ");
        term(w, e->args[1]);
        word(w, ")");
        break;
    case X_PREFIX:
        word(w, ex_op_name(e->op));
        term(w, e->args[0]);
        break;
    case X_CALL:
    case X_OTHER:
        word(w, e->op == EX_CONV ? ex_type_name(e->type) : ex_op_name(e->op));
        word(w, "(");
        commas(w, e, ")");
        break;
    }
}

static void print_node(Printer *pr, const Ex *e) {
    Pieces w = {.n = 0};
    if (e->op == EX_CONST)
        print_const(pr->out, e);
    else if (e->op == EX_SYM)
        print_sym(pr, e);
    else if (e->op == EX_LOAD)
        load_pieces(pr, &w, e);
    else
        pieces(&w, e);
    while (w.n) VEC_PUSH(pr->scratch, &pr->todo, w.p[--w.n]);
}

// What is shared is printed each time: at most so many pieces, then "...", for there may be no end of them.
enum { MOST_PIECES = 1 << 22 };

void ex_print_most(Text *out, const Ex *e, const ExNames *names, int most) {
    Printer pr = {.out = out, .names = names, .scratch = arena_new()};
    print_node(&pr, e);
    for (int n = 0; pr.todo.n; n++) {
        if (n == most) {
            text_puts(out, "...");
            break;
        }
        Piece p = pr.todo.data[--pr.todo.n];
        if (p.text)
            text_puts(out, p.text);
        else
            print_node(&pr, p.e);
    }
    arena_free(pr.scratch);
}

void ex_print(Text *out, const Ex *e, const ExNames *names) {
    ex_print_most(out, e, names, MOST_PIECES);
}

// ---- reading

enum { MAX_DEPTH = 4000 }; // the reader is recursive; deeper text is no text of ours

typedef struct Reader {
    ExPool *pool;
    const char *s;
    const ExNames *names;
    const char *error;
    int depth;
} Reader;

static const Ex *fail(Reader *r, const char *what) {
    int n = (int)strcspn(r->s, " \t\n");
    if (!r->error)
        r->error = arena_printf(ex_arena(r->pool), "%s at '%.*s'", what, n > 20 ? 20 : n, r->s);
    return NULL;
}

static void skip(Reader *r) {
    while (*r->s == ' ' || *r->s == '\t' || *r->s == '\n') r->s++;
}

static bool take(Reader *r, const char *text) {
    skip(r);
    size_t n = strlen(text);
    if (strncmp(r->s, text, n)) return false;
    r->s += n;
    return true;
}

static bool name_first(char c) {
    return isalpha((unsigned char)c) || c == '_' || c == '%' || c == '@';
}
static bool name_char(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '.' || c == '~';
}

static const Ex *read_expr(Reader *r);

static const Ex *read_number(Reader *r) {
    const char *s = r->s + (*r->s == '-');
    size_t digits = strspn(s, "0123456789");
    bool whole = digits && !strchr(".eE", s[digits]);
    if (s[digits] == 0) whole = true;
    char *end;
    errno = 0;
    if (whole) {
        long v = strtol(r->s, &end, 10);
        if (errno || v < INT32_MIN || v > INT32_MAX)
            return fail(r, "a number that does not fit i32");
        r->s = end;
        return ex_i32(r->pool, (int32_t)v);
    }
    float v = strtof(r->s, &end); // also inf and nan
    if (end == r->s) return fail(r, "expected a number");
    r->s = end;
    return ex_f32(r->pool, v);
}

// Arguments up to `close`; -1 when they cannot be read.
static int read_args(Reader *r, const char *close, const Ex **args, int max) {
    int n = 0;
    if (take(r, close)) return 0;
    do {
        if (n == max) return fail(r, "too many arguments"), -1;
        if (!(args[n] = read_expr(r))) return -1;
        n++;
    } while (take(r, ","));
    if (!take(r, close)) return fail(r, "expected ',' or a closing bracket"), -1;
    return n;
}

static const Ex *typed_op(Reader *r, ExOp op, const Ex *const *args, int n) {
    ExType types[EX_MAX_RANK], result;
    for (int i = 0; i < n; i++) types[i] = args[i]->type;
    if (!ex_op_typed(op, types, n, &result))
        return fail(r, "arguments that do not fit the operation");
    return ex_op(r->pool, op, args, n);
}

static bool type_named(const char *s, size_t n, ExType *type) {
    for (int t = EX_BOOL; t <= EX_F32; t++) {
        const char *name = ex_type_name((ExType)t);
        if (strlen(name) == n && !strncmp(name, s, n)) return *type = (ExType)t, true;
    }
    return false;
}

static const Ex *read_call(Reader *r, const char *name, size_t n) {
    const Ex *args[3];
    int count = read_args(r, ")", args, 3);
    ExType to;
    if (count < 0) return NULL;
    if (type_named(name, n, &to)) {
        if (count != 1) return fail(r, "a conversion takes one argument");
        return ex_conv(r->pool, to, args[0]);
    }
    for (int op = 0; op < EX_OP_COUNT; op++)
        if (ex_ops[op].fix == X_CALL && strlen(ex_ops[op].name) == n &&
            !strncmp(ex_ops[op].name, name, n))
            return typed_op(r, (ExOp)op, args, count);
    return fail(r, "no such function");
}

static const Ex *read_load(Reader *r, const char *name, bool inside) {
    ExType type = EX_F32;
    int input = -1;
    if (r->names && r->names->find_input) input = r->names->find_input(r->names->ctx, name, &type);
    const char *colon = strchr(name, ':');
    if (input < 0 && !strncmp(name, "input", 5) && colon && isdigit((unsigned char)name[5])) {
        if (!type_named(colon + 1, strlen(colon + 1), &type)) return fail(r, "no such type");
        input = atoi(name + 5);
    }
    if (input < 0) return fail(r, "no such input");
    const Ex *idx[EX_MAX_RANK];
    int n = read_args(r, "]", idx, EX_MAX_RANK);
    if (n < 0) return NULL;
    if (!n) return fail(r, "an index is missing");
    for (int i = 0; i < n; i++)
        if (idx[i]->type != EX_I32) return fail(r, "an index is not i32");
    return ex_load(r->pool, input, type, idx, n, inside);
}

// "tile0", "p3:i32", "s".
static const Ex *own_symbol(Reader *r, const char *name) {
    size_t n = strcspn(name, ":");
    for (int s = 0; s < SYM_COUNT; s++) {
        size_t len = strlen(ex_syms[s].name);
        if (strncmp(name, ex_syms[s].name, len)) continue;
        size_t digits = strspn(name + len, "0123456789");
        bool fits = ex_syms[s].indexed == 2 || (digits > 0) == ex_syms[s].indexed;
        if (len + digits != n || !fits || digits > 9) continue;
        ExType type = ex_sym_type((ExSym)s);
        if (name[n] == ':' && !type_named(name + n + 1, strlen(name + n + 1), &type)) continue;
        return ex_sym(r->pool, (ExSym)s, digits ? atoi(name + len) : 0, type);
    }
    return NULL;
}

static const Ex *read_symbol(Reader *r, const char *name) {
    if (!strcmp(name, "true") || !strcmp(name, "false")) return ex_bool(r->pool, name[0] == 't');
    if (!strcmp(name, "inf")) return ex_f32(r->pool, INFINITY);
    if (!strcmp(name, "nan")) return ex_f32(r->pool, NAN);
    ExSym sym;
    int index = 0;
    ExType type;
    if (r->names && r->names->find && r->names->find(r->names->ctx, name, &sym, &index, &type))
        return ex_sym(r->pool, sym, index, type);
    const Ex *e = own_symbol(r, name);
    return e ? e : fail(r, arena_printf(ex_arena(r->pool), "no such name: %s", name));
}

static const Ex *read_name(Reader *r) {
    const char *start = r->s++;
    while (name_char(*r->s)) r->s++;
    size_t n = (size_t)(r->s - start);
    if (take(r, "(")) return read_call(r, start, n);
    if (*r->s == ':' && isalpha((unsigned char)r->s[1])) // the type of a symbol without a name
        for (r->s++; name_char(*r->s);) r->s++;
    char *name = arena_strndup(ex_arena(r->pool), start, (size_t)(r->s - start));
    name[strcspn(name, " \t\n")] = 0;
    if (take(r, "![")) return read_load(r, name, true);
    if (take(r, "[")) return read_load(r, name, false);
    return read_symbol(r, name);
}

// The longest infix operator here.
static bool read_operator(Reader *r, ExOp *op) {
    size_t best = 0;
    skip(r);
    for (int i = 0; i < EX_OP_COUNT; i++) {
        size_t n = strlen(ex_ops[i].name);
        if (ex_ops[i].fix != X_INFIX || n <= best || strncmp(r->s, ex_ops[i].name, n)) continue;
        best = n;
        *op = (ExOp)i;
    }
    r->s += best;
    return best > 0;
}

static const Ex *read_parens(Reader *r) {
    const Ex *args[2];
    ExOp op;
    if (!(args[0] = read_expr(r))) return NULL;
    if (take(r, ")")) return args[0];
    if (!read_operator(r, &op)) return fail(r, "expected an operator or ')'");
    if (!(args[1] = read_expr(r))) return NULL;
    if (!take(r, ")")) return fail(r, "expected ')'");
    return typed_op(r, op, args, 2);
}

static const Ex *read_prefix(Reader *r, ExOp op) {
    const Ex *arg = read_expr(r);
    return arg ? typed_op(r, op, &arg, 1) : NULL;
}

static const Ex *read_expr(Reader *r) {
    if (++r->depth > MAX_DEPTH) return fail(r, "nested too deeply");
    const Ex *e;
    skip(r);
    char c = *r->s;
    if (take(r, "("))
        e = read_parens(r);
    else if (take(r, "!"))
        e = read_prefix(r, EX_NOT);
    else if (take(r, "~"))
        e = read_prefix(r, EX_BNOT);
    else if (c == '-' || c == '.' || isdigit((unsigned char)c))
        e = read_number(r);
    else if (name_first(c))
        e = read_name(r);
    else
        e = fail(r, "expected an expression");
    r->depth--;
    return e;
}

const Ex *ex_parse(ExPool *p, const char **s, const ExNames *names, const char **error) {
    Reader r = {.pool = p, .s = *s, .names = names};
    const Ex *e = read_expr(&r);
    *s = r.s;
    if (error) *error = r.error;
    return e;
}
