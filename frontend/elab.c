// elab.c: runs the code of bodies on typed values: types and inlines.
//
// In: a body and the typed nodes of its arguments. Out: the node of its result. Holds afterwards:
// every node is well typed, all conversions are nodes, and a variant has at most SEMA_MAX_OPS
// operations: what a `let` or two calls with the same argument nodes share is one node, made and
// counted once. Work stays near the size of the result even where inlining would double at each level.
#include "frontend/sema.h"

#include <assert.h>
#include <string.h>

static const struct {
    const char *name;
    Typing typing;
    ExOp op;
} builtins[] = {
#define BUILTIN(name, n, typing, op, ...) {#name, typing, op},
#include "builtins.def"
#undef BUILTIN
};

static const struct {
    ExOp op;
    bool swap;
} operators[] = {
#define OPERATOR(e, text, prec, n, op, swap, doc) {op, swap},
#include "operators.def"
#undef OPERATOR
};

typedef struct Frame Frame;
struct Frame { // a call being inlined
    const char *callee;
    Span at;
    const Frame *up;
};

typedef struct Memo { // of a call
    const Body *body;
    bool dead;
    Tx *result, **args;
    uint64_t hash;
} Memo;

struct Elab {
    Sema *s;
    Variant *variant;
    VEC(Tx *) stack;
    VEC(Span) places; // of the stack's values: where each is written
    const Frame *top;
    ElabEmits emits;
    int dead;  // inside branches that a constant condition rules out
    int calls; // inlined so far
    VEC(Memo) memos;
    int *slots; // hash table of index + 1 into memos
    int nslots;
};

static void push(Elab *e, Tx *v, Span at) {
    VEC_PUSH(e->s->arena, &e->stack, v);
    VEC_PUSH(e->s->arena, &e->places, at);
}

static void pop(Elab *e, int n) {
    e->stack.n -= n;
    e->places.n -= n;
}

Elab *elab_new(Sema *s, Variant *variant) {
    Elab *e = ARENA_NEW(s->arena, Elab);
    e->s = s;
    e->variant = variant;
    push(e, NULL, (Span){0}); // so that there is a stack
    return e;
}

void sema_begin_ops(Sema *s) {
    s->first_op = s->tx.ops;
    s->over_ops = false;
}

ElabEmits *elab_emits(Elab *e) { return &e->emits; }

// ---- reports

bool sema_said(const Diags *d, Span at, const char *message) {
    for (const Diag *g = d->first; g; g = g->next)
        if (g->span.file == at.file && g->span.start == at.start && !strcmp(g->message, message))
            return true;
    return false;
}

// The first calls that led to a mistake in a function.
static void note_calls(Elab *e, Diag *g) {
    enum { MOST_NOTES = 3 };
    int n = 0;
    for (const Frame *f = e->top; f && n < MOST_NOTES; f = f->up, n++)
        diag_note(e->s->diags, g, f->at, "in this call of '%s'", f->callee);
}

static Tx *fail(Elab *e, Span at, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static Tx *fail(Elab *e, Span at, const char *fmt, ...) {
    Text t = text_new(e->s->arena);
    va_list ap;
    va_start(ap, fmt);
    text_vprintf(&t, fmt, ap);
    va_end(ap);
    if (!sema_said(e->s->diags, at, t.s)) note_calls(e, diag_error(e->s->diags, at, "%s", t.s));
    return tx_bad(&e->s->tx);
}

static Tx *too_large(Elab *e, Span at) {
    if (!e->s->over_ops) fail(e, at, "more than %d operations after inlining", SEMA_MAX_OPS);
    e->s->over_ops = true;
    return tx_bad(&e->s->tx);
}

static Tx *limited(Elab *e, Tx *v, Span at) {
    return e->s->tx.ops - e->s->first_op > SEMA_MAX_OPS ? too_large(e, at) : v;
}

static const char *type_of(const Tx *v) {
    return v->type == TX_TILE ? "a vector (only dot and sqnorm take it)" : tx_type_name(v->type);
}

// ---- divisions that round down
//
// `exp2(-8 * (h + 1) / H)` divides two i32, and their fraction is lost before the f32. A result of such
// a division carries it (Tx.floored) to where it becomes f32 unasked.

static bool same(const Tx *a, const Tx *b) {
    if (a->known && b->known) return a->value.i == b->value.i;
    return a == b ||
           (a->op == EX_SYM && b->op == EX_SYM && a->sym == b->sym && a->index == b->index);
}

static bool is_size(const Elab *e, const Tx *v, const char *first) {
    return tx_is_sym(v, TS_SIZE) && e->variant &&
           strchr(first, e->variant->sizes.data[v->index][0]);
}

// A number that counts positions, heads or batch entries from 0.
static bool is_counter(const Tx *v) {
    static const TxSym counters[] = {TS_B, TS_H, TS_Q_IDX, TS_KV_IDX, TS_D, TS_T, TS_E};
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++)
        if (tx_is_sym(v, counters[i])) return true;
    return v->op == EX_SUB && tx_is_sym(v->args[0], TS_Q_IDX) && tx_is_sym(v->args[1], TS_SIZE);
}

// Is the fraction lost unawares? Not where rounding down is what people mean: blocks and groups
// (kv_idx / 64), heads of a group (H / 2, H / Hkv), (n + 63) / 64, and what comes out even.
static bool loses_fraction(const Elab *e, Tx *const *v) {
    const Tx *a = v[0], *b = v[1], *up = a->op == EX_ADD ? a->args[1] : NULL;
    if (a->known && b->known) return b->value.i && (int64_t)a->value.i % b->value.i;
    if (is_counter(a)) return is_size(e, b, "BHS");
    if (is_size(e, a, "H")) return !b->known && !is_size(e, b, "H");
    return !(up && up->known && b->known && up->value.i == b->value.i - 1);
}

// Rounding down is meant in `x / n * n`, and in differences of blocks, `i / n - j / n`.
static const Tx *floored(const Elab *e, ExOp op, const Tx *r, Tx *const *v, int n) {
    if (r->type != TX_I32) return NULL;
    if (op == EX_DIV) return loses_fraction(e, v) ? r : NULL;
    if (op == EX_SELECT) v++, n--;
    const Tx *a = v[0]->floored, *b = n > 1 ? v[1]->floored : NULL;
    bool block = op == EX_MUL && ((a && same(a->args[1], v[1])) || (b && same(b->args[1], v[0])));
    bool distance = op == EX_SUB && a && b && same(a->args[1], b->args[1]);
    bool carries = op == EX_ADD || op == EX_SUB || op == EX_MUL || op == EX_NEG || op == EX_ABS ||
                   op == EX_MIN || op == EX_MAX || op == EX_SELECT;
    return !carries || block || distance ? NULL : a ? a : b;
}

static Tx *computed(Elab *e, ExOp op, TxType type, Tx **v, int n, Span at) {
    Tx *r = tx_op(&e->s->tx, op, type, v, n, at);
    r->floored = floored(e, op, r, v, n);
    return r;
}

static void warn_floored(Elab *e, const Tx *division, Span at) {
    Diags *d = e->s->diags;
    const char *text = diag_quote(d, division->span);
    const char *message =
        arena_printf(e->s->arena,
                     "'/' of two i32 rounds down, and an f32 is made of it: to keep the fraction "
                     "make one side f32, as in "
                     "'x / 2.0' or 'f32(x) / y'; 'f32(%s)' says that rounding is meant",
                     text ? text : "x / y");
    if (e->dead || sema_said(d, division->span, message)) return;
    Diag *g = diag_warning(d, division->span, "%s", message);
    if (at.file != division->span.file || at.start > division->span.end ||
        at.end < division->span.start)
        diag_note(d, g, at, "it becomes f32 here");
    note_calls(e, g);
}

// ---- conversions

static bool is_number(const Tx *v) { return v->type == TX_I32 || v->type == TX_F32; }

static Tx *to_f32(Elab *e, Tx *v, Span at) {
    if (v->floored) warn_floored(e, v->floored, at);
    return tx_conv(&e->s->tx, TX_F32, v, false, at);
}

Tx *elab_coerce(Elab *e, TxType to, Tx *v, Span span, const char *what) {
    if (v->type == TX_BAD || v->type == to) return v;
    if (to == TX_F32 && v->type == TX_I32) return to_f32(e, v, span);
    return fail(e, span, "%s is %s, not %s%s", what, tx_type_name(to), type_of(v),
                to == TX_BOOL && is_number(v) ? ": compare it, 'x != 0'"
                : to == TX_F32 && v->type == TX_BOOL
                    ? ": f32(c) is 1 or 0, and a choice is 'c ? a : b'"
                    : "");
}

// Two numbers to their common type.
static void unify(Elab *e, Tx **v, int n, Span at) {
    bool f = false;
    for (int i = 0; i < n; i++) f |= v[i]->type == TX_F32;
    for (int i = 0; f && i < n; i++) v[i] = to_f32(e, v[i], at);
}

// ---- operators

static bool is_comparison(const Tx *v) {
    return v->op == EX_EQ || v->op == EX_NE || v->op == EX_LT || v->op == EX_LE;
}

static bool is_tile(const Tx *v) { return v->type == TX_TILE; }

// What C, Python or plain habit may have meant.
static const char *operand_hint(AstOp oper, Tx *const *v) {
    bool bits = oper == AST_BAND || oper == AST_BOR || oper == AST_BXOR;
    bool mixed = v[0]->type != v[1]->type && (v[0]->type == TX_BOOL || v[1]->type == TX_BOOL);
    if (oper == AST_BXOR && (v[0]->type == TX_F32 || v[1]->type == TX_F32))
        return " (a power is pow(x, y))";
    if (is_tile(v[0]) && is_tile(v[1]))
        return oper == AST_MUL   ? ": the product of the rows is dot(q, k)"
               : oper == AST_SUB ? ": the squared distance is sqnorm(q) + sqnorm(k) - 2 * dot(q, k)"
                                 : "";
    if (is_tile(v[0]) || is_tile(v[1]))
        return oper == AST_MUL || oper == AST_DIV
                   ? ": a factor stands outside of the product, c * dot(q, k), and one of each "
                     "channel in the clause 'query(q, b, h, q_idx, d)' or 'key'"
                   : "";
    bool order = oper == AST_LT || oper == AST_LE || oper == AST_GT || oper == AST_GE;
    if (order && mixed && (is_comparison(v[0]) || is_comparison(v[1])))
        return " (a chain is written 'a <= b && b < c')";
    if (!bits && mixed) return " (f32(c) is 1 or 0, and a choice is 'c ? a : b')";
    if (bits && mixed && (is_comparison(v[0]) || is_comparison(v[1])))
        return " (comparisons bind tighter than '&', '^' and '|', as in C: write parentheses)";
    return "";
}

static Tx *wrong_operands(Elab *e, AstOp oper, const char *takes, Tx **v, int n, Span at) {
    if (n == 1)
        return fail(e, at, "'%s' takes %s, not %s", ast_op_text(oper), takes, type_of(v[0]));
    const char *first = is_tile(v[0]) && is_tile(v[1]) ? "a vector" : type_of(v[0]);
    return fail(e, at, "'%s' takes %s, not %s and %s%s", ast_op_text(oper), takes, first,
                type_of(v[1]), operand_hint(oper, v));
}

static bool all_of(Tx **v, int n, TxType t) {
    for (int i = 0; i < n; i++)
        if (v[i]->type != t) return false;
    return true;
}

static bool all_numbers(Tx **v, int n) {
    for (int i = 0; i < n; i++)
        if (!is_number(v[i])) return false;
    return true;
}

static Tx *arithmetic(Elab *e, AstOp oper, ExOp op, Tx **v, int n, Span at) {
    if (!all_numbers(v, n))
        return wrong_operands(e, oper, n == 1 ? "a number" : "numbers", v, n, at);
    unify(e, v, n, at);
    bool divides = op == EX_DIV || op == EX_MOD;
    if (divides && v[0]->type == TX_I32 && v[1]->known && v[1]->value.i == 0 && !e->dead)
        return fail(e, at, "division by the constant 0");
    return computed(e, op, v[0]->type, v, n, at);
}

static Tx *compare(Elab *e, AstOp oper, ExOp op, Tx **v, Span at) {
    bool equality = op == EX_EQ || op == EX_NE;
    if (!(equality && all_of(v, 2, TX_BOOL))) {
        if (!all_numbers(v, 2))
            return wrong_operands(e, oper, equality ? "two numbers or two bools" : "two numbers", v,
                                  2, at);
        unify(e, v, 2, at);
    }
    return tx_op(&e->s->tx, op, TX_BOOL, v, 2, at);
}

static Tx *apply_operator(Elab *e, AstOp oper, Tx **v, int n, Span at) {
    ExOp op = operators[oper].op;
    for (int i = 0; i < n; i++)
        if (v[i]->type == TX_BAD) return v[i];
    if (operators[oper].swap) {
        Tx *first = v[0];
        v[0] = v[1];
        v[1] = first;
    }
    switch ((int)op) {
    case EX_EQ:
    case EX_NE:
    case EX_LT:
    case EX_LE: return compare(e, oper, op, v, at);
    case EX_AND:
    case EX_OR:
    case EX_NOT:
        if (!all_of(v, n, TX_BOOL))
            return wrong_operands(e, oper, n == 1 ? "a bool" : "bools", v, n, at);
        return tx_op(&e->s->tx, op, TX_BOOL, v, n, at);
    case EX_BAND:
    case EX_BOR:
    case EX_BXOR:
        if (!all_of(v, n, TX_BOOL) && !all_of(v, n, TX_I32))
            return wrong_operands(e, oper, "two i32 or two bools", v, n, at);
        return tx_op(&e->s->tx, op, v[0]->type, v, n, at);
    case EX_BNOT:
    case EX_SHL:
    case EX_SHR:
        if (!all_of(v, n, TX_I32))
            return wrong_operands(e, oper, n == 1 ? "an i32" : "two i32", v, n, at);
        return tx_op(&e->s->tx, op, TX_I32, v, n, at);
    }
    Tx *r = arithmetic(e, oper, op, v, n, at);
    bool literal = op == EX_NEG && v[0]->op == EX_CONST &&
                   r->known; // -8.0 is a number, not an operation on one
    return literal ? tx_value(&e->s->tx, r->type, r->value, at) : r;
}

static Tx *conditional(Elab *e, Tx **v, const Span *places, Span at) {
    if (v[0]->type == TX_BAD || v[1]->type == TX_BAD || v[2]->type == TX_BAD)
        return tx_bad(&e->s->tx);
    if (v[0]->type != TX_BOOL)
        return fail(e, places[0], "the condition of '?:' is bool, not %s", type_of(v[0]));
    if (!all_of(v + 1, 2, TX_BOOL)) {
        if (!all_numbers(v + 1, 2))
            return fail(e, at, "the branches of '?:' are two numbers or two bools, not %s and %s",
                        type_of(v[1]), type_of(v[2]));
        unify(e, v + 1, 2, at);
    }
    return computed(e, EX_SELECT, v[1]->type, v, 3, at);
}

// ---- rows

static bool is_row(const Tx *v) { return tx_is_sym(v, TS_TILE_Q) || tx_is_sym(v, TS_TILE_K); }

static RowSide side_of(const Tx *row) { return row->sym == TS_TILE_Q ? ROW_QUERIES : ROW_KEYS; }

static const TxRow *row_of(const Elab *e, const Tx *v) {
    return &e->variant->rows[side_of(v)].data[v->index];
}

static Tx *row_value(Elab *e, RowSide side, TxRow row, Span at) {
    enum { MOST_ROWS = 64 };
    TxSym sym = side == ROW_QUERIES ? TS_TILE_Q : TS_TILE_K;
    Variant *v = e->variant;
    for (int i = 0; i < v->rows[side].n; i++)
        if (!memcmp(&v->rows[side].data[i], &row, sizeof row)) return tx_sym(&e->s->tx, sym, i, at);
    if (v->rows[side].n == MOST_ROWS)
        return fail(e, at, "more than %d different rows and slices", MOST_ROWS);
    VEC_PUSH(e->s->arena, &v->rows[side], row);
    return tx_sym(&e->s->tx, sym, v->rows[side].n - 1, at);
}

static Tx *row_of_input(Elab *e, const Instr *in) {
    TxInput *input = &e->variant->inputs.data[in->decl->input];
    RowSide side;
    int width = tx_row_width(input, &side);
    if (!width)
        return fail(e, in->span,
                    "'%s' stands without an index: a row input has extents [B, heads, Sq or Sk, "
                    "channels] and elements of f32, f16 or bf16",
                    input->name);
    input->rows = true;
    return row_value(e, side, (TxRow){in->decl->input, 0, width}, in->span);
}

static Tx *slice(Elab *e, Tx **v, const Span *places, int n, Span at) {
    for (int i = 0; i < n; i++)
        if (v[i]->type == TX_BAD) return v[i];
    if (!is_row(v[0]))
        return fail(e, places[0],
                    "a slice is of the q or k of 'score', or of a row input, not of %s",
                    type_of(v[0]));
    for (int i = 1; i < n; i++)
        if (!v[i]->known || v[i]->type != TX_I32)
            return fail(e, places[i], "bounds of a slice are constants");
    TxRow row = *row_of(e, v[0]);
    int from = v[1]->value.i, to = n > 2 ? v[2]->value.i : row.width;
    const char *name = row.input >= 0           ? e->variant->inputs.data[row.input].name
                       : v[0]->sym == TS_TILE_Q ? "q"
                                                : "k";
    if (from < 0 || to > row.width || from >= to)
        return fail(e, at, "slice %d:%d of %s, which has %d channels%s", from, to, name, row.width,
                    from >= to ? ": it is empty" : "");
    return row_value(e, side_of(v[0]), (TxRow){row.input, row.from + from, to - from}, at);
}

// ---- built-in functions

static Tx *squared_norm(Elab *e, const Tx *v, Span at) {
    static const struct {
        TxSym of, norm;
    } norms[] = {{TS_TILE_Q, TS_SQQ}, {TS_TILE_K, TS_SQK}, {TS_O, TS_SQO},
                 {TS_EQ, TS_SQEQ},    {TS_EK, TS_SQEK},    {TS_EV, TS_SQEV}};
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++)
        if (tx_is_sym(v, norms[i].of)) return tx_sym(&e->s->tx, norms[i].norm, v->index, at);
    return fail(e, at, "sqnorm takes the q or k of its clause, a row input, or the o of 'output'");
}

// The q, k or v of a clause that gives it.
static bool element_of_row(const Tx *v) {
    return tx_is_sym(v, TS_EQ) || tx_is_sym(v, TS_EK) || tx_is_sym(v, TS_EV) || tx_is_sym(v, TS_O);
}

static Tx *dot_product(Elab *e, Tx **v, Span at) {
    Variant *variant = e->variant;
    bool swapped = is_row(v[0]) && v[0]->sym == TS_TILE_K;
    const Tx *q = v[swapped], *k = v[!swapped];
    bool itself =
        (is_row(q) && is_row(k)) || (element_of_row(q) && element_of_row(k) && q->sym == k->sym);
    if (!is_row(q) || !is_row(k) || q->sym != TS_TILE_Q || k->sym != TS_TILE_K)
        return fail(
            e, at,
            "dot takes a row of the query's side and one of the key's, as q and k of 'score'%s",
            itself ? "; the dot product of one with itself is sqnorm" : "");
    if (row_of(e, q)->width != row_of(e, k)->width)
        return fail(e, at, "dot of %d and %d channels", row_of(e, q)->width, row_of(e, k)->width);
    RowPair pair = {{q->index, k->index}};
    for (int i = 0; i < variant->dots.n; i++)
        if (!memcmp(&variant->dots.data[i], &pair, sizeof pair))
            return tx_sym(&e->s->tx, TS_DOT, i, at);
    VEC_PUSH(e->s->arena, &variant->dots, pair);
    return tx_sym(&e->s->tx, TS_DOT, variant->dots.n - 1, at);
}

// The call that a user knows a place in the library by: the first one that stands in another file, or
// else the clause's own.
static Span known_call(const Elab *e, Span at) {
    const Frame *f = e->top;
    while (f && f->up && f->at.file == at.file) f = f->up;
    return f ? f->at : (Span){0};
}

static Tx *apply_builtin(Elab *e, int builtin, Tx **v, const Span *places, int n, Span at) {
    const char *name = builtins[builtin].name;
    ExOp op = builtins[builtin].op;
    TxPool *p = &e->s->tx;
    for (int i = 0; i < n; i++)
        if (v[i]->type == TX_BAD) return v[i];
    Typing typing = builtins[builtin].typing;
    if (typing == BI_DOT) return dot_product(e, v, at);
    if (typing == BI_SQNORM) return squared_norm(e, v[0], at);
    if (typing == BI_CONV) {
        if (v[0]->type == TX_TILE)
            return fail(e, at, "'%s' takes a number or a bool, not %s", name, type_of(v[0]));
        TxType to = !strcmp(name, "f32") ? TX_F32 : !strcmp(name, "i32") ? TX_I32 : TX_BOOL;
        if (to == TX_I32 && v[0]->floored) return tx_op(p, EX_CONV, to, v, 1, at); // it is meant
        return tx_conv(p, to, v[0], true, at);
    }
    if (!all_numbers(v, n)) {
        int bad = is_number(v[0]);
        return fail(e, places[bad], "'%s' takes %s, not %s", name, n == 1 ? "a number" : "numbers",
                    type_of(v[bad]));
    }
    if (typing == BI_NUM)
        unify(e, v, n, at);
    else
        for (int i = 0; i < n; i++)
            v[i] = op == EX_FLOOR ? tx_conv(p, TX_F32, v[i], false, at) : to_f32(e, v[i], at);
    Tx *r = computed(e, op, v[0]->type, v, n, at);
    if (typing == BI_ROW) r->call = known_call(e, at);
    return r;
}

// ---- inputs

// Is it q_idx, or q_idx plus or minus a constant: an absolute position, with no q_offset taken off
// it?
static bool is_bare_q(const Tx *i) {
    if (tx_is_sym(i, TS_Q_IDX)) return true;
    if (i->op == EX_ADD || i->op == EX_SUB)
        return (tx_is_sym(i->args[0], TS_Q_IDX) && i->args[1]->known) ||
               (i->op == EX_ADD && tx_is_sym(i->args[1], TS_Q_IDX) && i->args[0]->known);
    return false;
}

// What an index is at least, at every launch: so many times the extent's size, and so much more. false: nobody knows.
typedef struct Least {
    int sizes;
    int64_t more;
} Least;

static bool least_of(const Elab *e, const Tx *i, int size, Least *out) {
    bool attends = e->variant->kind == VARIANT_ATTENTION;
    Least a, b;
    *out = (Least){.sizes = tx_is_sym(i, TS_SIZE) && i->index == size};
    if (i->known) return out->more = i->value.i, true;
    if (tx_is_sym(i, TS_SIZE)) return !attends || i->index != SIZE_Q_OFFSET;
    if (i->op == EX_SYM) return is_counter(i) && !tx_is_sym(i, TS_Q_IDX);
    bool less = i->op == EX_SUB && i->args[1]->known;
    if (i->op != EX_ADD && !less) return false;
    if (!least_of(e, i->args[0], size, &a) || !least_of(e, i->args[1], size, &b)) return false;
    *out = (Least){a.sizes + b.sizes, a.more + (less ? -b.more : b.more)};
    return out->more <= INT32_MAX / 2; // no sum of sizes wraps
}

static bool is_behind(const Elab *e, const Tx *i, const TxExtent *x) {
    Least l;
    if (!least_of(e, i, x->size, &l)) return false;
    return x->size < 0 ? l.more >= x->value : l.sizes > 0 && l.more >= 0;
}

static Tx *index_input(Elab *e, int input, Tx **v, const Span *places, int n, Span at) {
    TxInput *in = &e->variant->inputs.data[input];
    if (n != in->rank)
        return fail(e, at, "'%s' has %d extent%s, and is indexed with %d", in->name, in->rank,
                    in->rank == 1 ? "" : "s", n);
    for (int i = 0; i < n; i++) {
        const TxExtent *x = &in->extent[i];
        if (v[i]->type == TX_BAD) return v[i];
        if (v[i]->type != TX_I32)
            return fail(e, places[i], "an index is i32, not %s%s", type_of(v[i]),
                        v[i]->type == TX_F32 ? ": i32(x) truncates, i32(floor(x)) rounds down"
                                             : "");
        bool below = v[i]->known && v[i]->value.i < 0;
        bool above = v[i]->known && x->size < 0 && v[i]->value.i >= x->value;
        if (below && !e->dead)
            return fail(e, places[i], "index %d is outside '%s': indices start at 0", v[i]->value.i,
                        in->name);
        if (above && !e->dead)
            return fail(e, places[i], "index %d is outside '%s': its extent is %d here",
                        v[i]->value.i, in->name, x->value);
        if (!e->dead && is_behind(e, v[i], x))
            return fail(e, places[i],
                        "this index is outside '%s' at every launch: its extent is %s", in->name,
                        x->size < 0 ? arena_printf(e->s->arena, "%d", x->value)
                                    : e->variant->sizes.data[x->size]);
        if (x->size == SIZE_SQ && e->variant->kind == VARIANT_ATTENTION && is_bare_q(v[i]))
            in->bare_q = true;
    }
    Tx *x = tx_load(&e->s->tx, input, (TxType)dtype_reads(in->dtype), v, n, at);
    return tx_of_input(&e->s->tx, in, x);
}

// ---- calls

static uint64_t hash_call(const Body *b, bool dead, Tx *const *args, int n) {
    uint64_t h = (uint64_t)(uintptr_t)b * 2 + dead;
    for (int i = 0; i < n; i++) h = (h ^ args[i]->id) * 1099511628211u;
    return h ^ h >> 29;
}

static int *find_memo(Elab *e, const Memo *m) {
    for (uint64_t i = m->hash;; i++) {
        int *slot = &e->slots[i & (uint64_t)(e->nslots - 1)];
        if (!*slot) return slot;
        const Memo *o = &e->memos.data[*slot - 1];
        if (o->hash == m->hash && o->body == m->body && o->dead == m->dead &&
            (m->body->nparams == 0 ||
             !memcmp(o->args, m->args, sizeof *m->args * (size_t)m->body->nparams)))
            return slot;
    }
}

static void rehash(Elab *e) {
    e->nslots = e->nslots ? e->nslots * 2 : 64;
    e->slots = ARENA_ARRAY(e->s->arena, int, e->nslots);
    for (int i = 0; i < e->memos.n; i++) *find_memo(e, &e->memos.data[i]) = i + 1;
}

static Tx *call(Elab *e, const Decl *d, Tx **args, int n, Span at) {
    Memo m = {.body = d->body,
              .dead = e->dead > 0,
              .args = args,
              .hash = hash_call(d->body, e->dead > 0, args, n)};
    if (e->memos.n * 2 >= e->nslots) rehash(e);
    int *slot = find_memo(e, &m);
    if (*slot) return e->memos.data[*slot - 1].result;
    if (++e->calls > SEMA_MAX_OPS) return too_large(e, at);
    m.args = ARENA_ARRAY(e->s->arena, Tx *, n);
    if (n) memcpy(m.args, args, sizeof *args * (size_t)n);
    Frame f = {d->name, at, e->top};
    e->top = &f;
    m.result = elab_run(e, d->body, m.args);
    e->top = f.up;
    VEC_PUSH(e->s->arena, &e->memos, m);
    if (e->memos.n * 2 >= e->nslots)
        rehash(e);
    else
        *find_memo(e, &m) = e->memos.n;
    return m.result;
}

// ---- the machine

static void run_emit(Elab *e, const Body *b, const Instr *in, Tx *v) {
    if (v->row) {
        fail(e, in->span, "'emit %s' takes a number per row, and this is one per key: reduce it",
             in->name);
        return;
    }
    v = elab_coerce(e, TX_F32, v, in->span, "what is emitted");
    if (v->type == TX_BAD) return;
    ElabEmit emit = {{in->name, v, in->span}, e->top == NULL, b->name};
    VEC_PUSH(e->s->arena, &e->emits, emit);
}

static void name_reduction(Tx *v, const char *name) {
    if ((v->op == EX_ROWMAX || v->op == EX_ROWMIN || v->op == EX_ROWSUM) && !v->name)
        v->name = name;
}

static Tx *value_of(Elab *e, const Instr *in) {
    if (in->value) return in->value;
    const Tx *v = in->decl->value;
    // A constant or dim stands where it is used, so that messages about it point there.
    if (!v->known) return in->decl->value;
    Tx *c = tx_value(&e->s->tx, v->type, v->value, in->span);
    if (in->decl->kind == DECL_CONST) c->floored = v->floored;
    return c;
}

// Is the side that comes next ruled out by the constant on its left? `taken` is the value that lets
// it be used.
static bool ruled_out(const Tx *condition, bool taken) {
    return condition->known && condition->type == TX_BOOL && condition->value.i != taken;
}

static Tx *step(Elab *e, const Instr *in, Tx **v, const Span *places) {
    switch (in->op) {
    case I_UNARY: return apply_operator(e, in->oper, v, 1, in->span);
    case I_BINARY:
        if (in->oper == AST_AND || in->oper == AST_OR)
            e->dead -= ruled_out(v[0], in->oper == AST_AND);
        return apply_operator(e, in->oper, v, 2, in->span);
    case I_COND: e->dead -= ruled_out(v[0], false); return conditional(e, v, places, in->span);
    case I_CALL: return call(e, in->decl, v, in->n, in->span);
    case I_BUILTIN: return apply_builtin(e, in->decl->builtin, v, places, in->n, in->span);
    case I_INDEX: return index_input(e, in->decl->input, v, places, in->n, in->span);
    case I_SLICE: return slice(e, v, places, in->n, in->span);
    case I_BAD: return tx_bad(&e->s->tx);
    case I_VALUE:
    case I_SLOT:
    case I_ROW:
    case I_SHORT:
    case I_THEN:
    case I_ELSE:
    case I_LET:
    case I_EMIT: break;
    }
    assert(!"not a step that computes");
    return NULL;
}

static int operands(const Instr *in) {
    return in->op == I_UNARY ? 1 : in->op == I_BINARY ? 2 : in->op == I_COND ? 3 : in->n;
}

// Takes the operands off, computes, pushes. The operands are copied first: a call may move the
// stack.
static void apply_instr(Elab *e, const Instr *in) {
    enum { FEW = 4 };
    Tx *v[FEW], **args = v;
    Span s[FEW], *places = s;
    int n = operands(in);
    if (n > FEW) {
        args = ARENA_ARRAY(e->s->arena, Tx *, n);
        places = ARENA_ARRAY(e->s->arena, Span, n);
    }
    for (int i = 0; i < n; i++) {
        args[i] = e->stack.data[e->stack.n - n + i];
        places[i] = e->places.data[e->places.n - n + i];
    }
    Tx *result = limited(e, step(e, in, args, places), in->span);
    pop(e, n);
    push(e, result, in->span);
}

// What a name stands for, for uses.h.
static void see(Decl *d, const Tx *v) {
    if (v->type == TX_BAD) return;
    d->varies |= d->seen && (d->seen->type != v->type || d->seen->row != v->row);
    if (!d->seen) d->seen = v;
}

static void run_instr(Elab *e, const Body *b, const Instr *in, Tx **slots) {
    Tx **top = e->stack.data + e->stack.n;
    switch (in->op) {
    case I_VALUE: push(e, value_of(e, in), in->span); return;
    case I_SLOT: push(e, slots[in->n], in->span); return;
    case I_ROW: push(e, row_of_input(e, in), in->span); return;
    case I_SHORT: e->dead += ruled_out(top[-1], in->oper == AST_AND); return;
    case I_THEN: e->dead += ruled_out(top[-1], true); return;
    case I_ELSE:
        e->dead -= ruled_out(top[-2], true);
        e->dead += ruled_out(top[-2], false);
        return;
    case I_LET:
        slots[in->n] = top[-1];
        see(in->decl, top[-1]);
        name_reduction(top[-1], in->name);
        pop(e, 1);
        return;
    case I_EMIT:
        see(in->decl, top[-1]);
        if (in->name) run_emit(e, b, in, top[-1]);
        pop(e, 1);
        return;
    case I_UNARY:
    case I_BINARY:
    case I_COND:
    case I_CALL:
    case I_BUILTIN:
    case I_BAD:
    case I_SLICE:
    case I_INDEX: break;
    }
    apply_instr(e, in);
}

Tx *elab_run(Elab *e, const Body *b, Tx *const *args) {
    if (b->bad || e->s->over_ops) return tx_bad(&e->s->tx);
    int base = e->stack.n, dead = e->dead;
    Tx **slots = ARENA_ARRAY(e->s->arena, Tx *, b->nslots);
    if (b->nparams) memcpy(slots, args, sizeof *args * (size_t)b->nparams);
    for (int i = 0; i < b->nparams; i++) see(b->slots.data[i], args[i]);
    for (int i = 0; i < b->code.n && !e->s->over_ops; i++) run_instr(e, b, &b->code.data[i], slots);
    Tx *result = e->s->over_ops ? tx_bad(&e->s->tx) : e->stack.data[e->stack.n - 1];
    if (b->decl) see(b->decl, result);
    pop(e, e->stack.n - base);
    e->dead = dead;
    return result;
}
