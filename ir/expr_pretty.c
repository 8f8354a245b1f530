// expr_pretty.c: scalar expressions for people: as text, MathML or TeX, with as few parentheses as precedence
// allows.
//
// In: an expression, the names of what it refers to, a style. Out: `s * 0.5 + bias[h, q_idx]`. Holds afterwards: MathML is
// well-formed, one row of elements, and every element that stands for a node with a place has its attributes.
// Walks keep their own stack: a formula may be as deep as a program is long.
#include "ir/expr_ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// How tightly an operation binds, as in C; calls and fractions are P_PRIMARY, names and numbers P_ATOM.
enum {
    P_NONE,
    P_COND,
    P_OR,
    P_AND,
    P_BOR,
    P_BXOR,
    P_BAND,
    P_EQ,
    P_REL,
    P_SHIFT,
    P_ADD,
    P_MUL,
    P_UNARY,
    P_PRIMARY,
    P_ATOM
};

static int precedence_as_in_c(ExOp op) {
    switch ((int)op) {
    case EX_OR: return P_OR;
    case EX_AND: return P_AND;
    case EX_BOR: return P_BOR;
    case EX_BXOR: return P_BXOR;
    case EX_BAND: return P_BAND;
    case EX_EQ:
    case EX_NE: return P_EQ;
    case EX_LT:
    case EX_LE: return P_REL;
    case EX_SHL:
    case EX_SHR: return P_SHIFT;
    case EX_ADD:
    case EX_SUB:
    case EX_FMA: return P_ADD;
    case EX_MUL:
    case EX_DIV:
    case EX_MOD: return P_MUL;
    case EX_NEG:
    case EX_NOT:
    case EX_BNOT: return P_UNARY;
    default: return P_PRIMARY;
    }
}

const char *ex_form_name(ExForm form) {
    static const char *const names[EX_FORM_COUNT] = {
        [EX_TEXT] = "text", [EX_MATHML] = "mathml", [EX_TEX] = "tex"};
    return names[form];
}

typedef struct Row {
    int precedence, least[3];
    const char *text;
} Row;

static const Row rows[EX_FORM_COUNT][EX_OP_COUNT] = {
#define PRETTY(form, op, precedence, a, b, c, text)                                                \
    [EX_##form][EX_##op] = {precedence, {a, b, c}, text},
#include "pretty.def"
#undef PRETTY
};

static const struct {
    const char *open, *close, *index, *index_end; // `index`: below the line
    const char *comma, *plus, *minus, *times, *dots;
} marks[EX_FORM_COUNT] = {
    [EX_TEXT] = {"(", ")", "[", "]", ", ", " + ", " - ", " * ", "..."},
    [EX_MATHML] = {"<mrow><mo>(</mo>", "<mo>)</mo></mrow>", "<mrow>", "</mrow></msub>",
                   "<mo>,</mo>", "<mo>+</mo>", "<mo>−</mo>", "<mo>⋅</mo>", "<mo>…</mo>"},
    [EX_TEX] = {"\\left(", "\\right)", "_{", "}", ", ", " + ", " - ", " \\cdot ", "\\dots "},
};

// What is still to be written: text, or an expression that needs parentheses below a precedence.
typedef struct Piece {
    const char *text;
    size_t n;
    const Ex *e;
    int least;
} Piece;

typedef struct Printer {
    Text *out;
    const ExStyle *style;
    Arena *scratch;
    int left;         // pieces that may still be written
    VEC(Piece) todo;  // last first
    VEC(Piece) parts; // of the node at hand, in reading order
} Printer;

static void wordn(Printer *p, const char *text, size_t n) {
    Piece piece = {text, n, NULL, 0};
    VEC_PUSH(p->scratch, &p->parts, piece);
}
static void word(Printer *p, const char *text) { wordn(p, text, strlen(text)); }
static void term(Printer *p, const Ex *e, int least) {
    Piece piece = {NULL, 0, e, least};
    VEC_PUSH(p->scratch, &p->parts, piece);
}

// ---- names and numbers

static void put_escaped(Text *out, const char *s, size_t n, ExForm form) {
    for (size_t i = 0; i < n; i++) {
        char c[2] = {s[i], 0};
        const char *xml = c[0] == '<' ? "&lt;" : c[0] == '>' ? "&gt;" : c[0] == '&' ? "&amp;" : c;
        if (form == EX_TEX && strchr("_%&#$", c[0])) text_puts(out, "\\");
        text_puts(out, form == EX_MATHML ? xml : c);
    }
}

static void put_word(Text *out, const char *s, size_t n, ExForm form) {
    if (form == EX_TEX && n > 1) text_puts(out, "\\mathrm{");
    put_escaped(out, s, n, form);
    if (form == EX_TEX && n > 1) text_puts(out, "}");
}

typedef struct Name { // "m_2~'_a": what stands where
    const char *s;
    size_t base;
    bool tilde, prime;
    char below[2][8];
    int nbelow;
} Name;

// The end of a name that is written below: digits, or one letter or some digits after '_'.
static size_t below(const char *s, size_t n, size_t *from) {
    size_t digits = n;
    while (digits && s[digits - 1] >= '0' && s[digits - 1] <= '9') digits--;
    bool letter = digits == n && n > 2 && s[n - 2] == '_' && s[n - 1] >= 'a' && s[n - 1] <= 'z';
    *from = letter ? n - 1 : digits;
    if (!*from || n - *from > 6 || *from == n) return n;
    bool line = s[*from - 1] == '_';
    return *from > line ? *from - line : n;
}

static Name name_of(const char *s) {
    Name m = {.s = s};
    size_t n = strlen(s), from;
    while (m.nbelow < 2) {
        if (n && s[n - 1] == '\'') m.prime = true, n--;
        if (n && s[n - 1] == '~') m.tilde = true, n--;
        size_t end = below(s, n, &from);
        if (end == n) break;
        memcpy(m.below[m.nbelow], s + from, n - from);
        m.below[m.nbelow++][n - from] = 0;
        n = end;
    }
    m.base = n;
    return m;
}

static void put_below(Text *out, const Name *m) {
    for (int i = m->nbelow; i-- > 0;) text_printf(out, "%s%s", m->below[i], i ? "," : "");
}

static void mathml_name(Text *out, const char *s, const char *attributes) {
    Name m = name_of(s);
    const char *tag = m.nbelow && m.prime ? "msubsup" : m.nbelow ? "msub" : m.prime ? "msup" : NULL;
    if (tag) text_printf(out, "<%s%s>", tag, attributes);
    const char *inner = tag ? "" : attributes;
    if (m.tilde) text_printf(out, "<mover%s>", inner);
    text_printf(out, "<mi%s>", m.tilde ? "" : inner);
    put_escaped(out, m.s, m.base, EX_MATHML);
    text_puts(out, m.tilde ? "</mi><mo>~</mo></mover>" : "</mi>");
    if (m.nbelow) text_puts(out, "<mi>"), put_below(out, &m), text_puts(out, "</mi>");
    if (m.prime) text_puts(out, "<mo>′</mo>");
    if (tag) text_printf(out, "</%s>", tag);
}

static void tex_name(Text *out, const char *s) {
    Name m = name_of(s);
    if (m.tilde) text_puts(out, "\\tilde{");
    put_word(out, m.s, m.base, EX_TEX);
    if (m.tilde) text_puts(out, "}");
    if (m.nbelow) text_puts(out, "_{"), put_below(out, &m), text_puts(out, "}");
    if (m.prime) text_puts(out, "'");
}

static void put_name(Text *out, const char *s, ExForm form, const char *attributes) {
    if (form == EX_MATHML)
        mathml_name(out, s, attributes);
    else if (form == EX_TEX)
        tex_name(out, s);
    else
        text_puts(out, s);
}

static const char *attributes_of(Printer *p, const Ex *e) {
    Text t = text_new(p->scratch);
    text_puts(&t, "");
    if (p->style->form == EX_MATHML && p->style->attributes)
        p->style->attributes(p->style->ctx, &t, e);
    return t.s;
}

static bool negative(const Ex *e) {
    return e->op == EX_CONST &&
           (e->type == EX_F32 ? signbit(e->f) != 0 : e->type == EX_I32 && e->i < 0);
}

// Without its sign.
static const char *magnitude(Printer *p, const Ex *e) {
    ExForm form = p->style->form;
    Text t = text_new(p->scratch);
    ex_print(&t, e, NULL);
    const char *s = t.s + (t.s[0] == '-');
    if (form == EX_TEXT) return s;
    const char *ten = strchr(s, 'e');
    bool plain = *s >= '0' && *s <= '9', tex = form == EX_TEX;
    if (!strcmp(s, "inf")) return tex ? "\\infty " : "<mi>∞</mi>";
    if (!plain) return arena_printf(p->scratch, tex ? "\\mathrm{%s}" : "<mi>%s</mi>", s);
    size_t n = ten ? (size_t)(ten - s) : strlen(s);
    if (n > 2 && !strcmp(s + n - 2, ".0")) n -= 2; // 64.0
    if (!ten) return arena_printf(p->scratch, tex ? "%.*s" : "<mn>%.*s</mn>", (int)n, s);
    return arena_printf(p->scratch,
                        tex ? "%.*s \\cdot 10^{%d}"
                            : "<mn>%.*s</mn><mo>⋅</mo><msup><mn>10</mn><mn>%d</mn></msup>",
                        (int)n, s, atoi(ten + 1));
}

static void constant(Printer *p, const Ex *e, int least) {
    bool minus = negative(e), parens = minus && least > P_ADD;
    const ExForm form = p->style->form;
    const char *sign = form == EX_MATHML ? "<mo>−</mo>" : "-";
    const char *attributes = attributes_of(p, e);
    if (parens) word(p, marks[form].open);
    if (*attributes) word(p, arena_printf(p->scratch, "<mrow%s>", attributes));
    if (minus) word(p, sign);
    word(p, magnitude(p, e));
    if (*attributes) word(p, "</mrow>");
    if (parens) word(p, marks[form].close);
}

// Names that mathematics has signs for; NULL: no such one.
static const char *sign_of(ExSym sym, ExForm form) {
    bool tex = form == EX_TEX;
    switch ((int)sym) {
    case SYM_DOT:
        return tex ? "q^{\\top} k" : "<mrow><msup><mi>q</mi><mo>⊤</mo></msup><mi>k</mi></mrow>";
    case SYM_SQQ:
        return tex ? "\\|q\\|^2"
                   : "<msup><mrow><mo>‖</mo><mi>q</mi><mo>‖</mo></mrow><mn>2</mn></msup>";
    case SYM_SQK:
        return tex ? "\\|k\\|^2"
                   : "<msup><mrow><mo>‖</mo><mi>k</mi><mo>‖</mo></mrow><mn>2</mn></msup>";
    case SYM_SQO:
        return tex ? "\\|o\\|^2"
                   : "<msup><mrow><mo>‖</mo><mi>o</mi><mo>‖</mo></mrow><mn>2</mn></msup>";
    case SYM_SQV:
        return tex ? "\\|v\\|^2"
                   : "<msup><mrow><mo>‖</mo><mi>v</mi><mo>‖</mo></mrow><mn>2</mn></msup>";
    default: return NULL;
    }
}

static void symbol(Printer *p, const Ex *e) {
    const ExNames *n = p->style->names;
    ExForm form = p->style->form;
    const char *name = n && n->name ? n->name(n->ctx, e->sym, e->index) : NULL;
    const char *sign = form != EX_TEXT ? sign_of(e->sym, form) : NULL;
    const char *attributes = attributes_of(p, e);
    if (sign && *attributes)
        text_printf(p->out, "<mrow%s>%s</mrow>", attributes, sign);
    else if (sign)
        text_puts(p->out, sign);
    else if (name)
        put_name(p->out, name, form, attributes);
    else {
        Text own = text_new(p->scratch);
        ex_print(&own, e, n);
        put_name(p->out, own.s, form, attributes);
    }
}

// ---- operations

static void arguments(Printer *p, const Ex *e) {
    for (int i = 0; i < e->nargs; i++) {
        if (i) word(p, marks[p->style->form].comma);
        term(p, e->args[i], P_NONE);
    }
}

// Formulas cannot be read below the line: only names stand there.
static bool has_plain_indices(const Ex *load) {
    for (int i = 0; i < load->nargs; i++)
        if (load->args[i]->nargs) return false;
    return true;
}

static void load(Printer *p, const Ex *e) {
    static const char *const brackets[EX_FORM_COUNT][2] = {
        {"[", "]"}, {"<mrow><mo>[</mo>", "<mo>]</mo></mrow>"}, {"\\left[", "\\right]"}};
    const ExNames *n = p->style->names;
    ExForm form = p->style->form;
    bool below = form != EX_TEXT && has_plain_indices(e);
    const char *name = n && n->input ? n->input(n->ctx, e->input) : NULL;
    Text t = text_new(p->scratch);
    if (form == EX_MATHML && below) text_puts(&t, "<msub>");
    if (!name) name = arena_printf(p->scratch, "input%d:%s", e->input, ex_type_name(e->type));
    if (form == EX_MATHML) {
        text_puts(&t, "<mi>");
        put_escaped(&t, name, strlen(name), form);
        text_puts(&t, "</mi>");
    } else {
        put_word(&t, name, strlen(name), form);
    }
    word(p, t.s);
    word(p, below ? marks[form].index : brackets[form][0]);
    arguments(p, e);
    word(p, below ? marks[form].index_end : brackets[form][1]);
}

// `+ b`: `- x` where b is -x, be it a number, a product with one or a negation.
static void added(Printer *p, const Ex *b) {
    ExForm form = p->style->form;
    bool product = b->op == EX_MUL && negative(b->args[1]);
    bool minus = b->op == EX_NEG || negative(b) || product;
    word(p, minus ? marks[form].minus : marks[form].plus);
    if (b->op == EX_NEG) {
        term(p, b->args[0], P_MUL);
    } else if (negative(b)) {
        word(p, magnitude(p, b));
    } else if (product) {
        term(p, b->args[0], P_MUL);
        word(p, marks[form].times);
        word(p, magnitude(p, b->args[1]));
    } else {
        term(p, b, P_MUL);
    }
}

static bool is_reduction(ExOp op) { return op == EX_ROWMAX || op == EX_ROWMIN || op == EX_ROWSUM; }

// "sum over keys of x", or "sum x" over a tile.
static void reduction(Printer *p, const Ex *e) {
    static const char *const over[EX_FORM_COUNT][2] = {
        [EX_TEXT] = {"%s over keys of ", "%s "},
        [EX_MATHML] = {"<munder><mo>%s</mo><mi>j</mi></munder>",
                       "<munder><mo>%s</mo><mrow><mi>j</mi><mo>∈</mo><mi>T</mi></mrow></munder>"},
        [EX_TEX] = {"\\%s_j ", "\\%s_{j \\in T} "},
    };
    ExForm form = p->style->form;
    bool tile = p->style->over == EX_OVER_TILE, sum = e->op == EX_ROWSUM;
    const Ex *x = e->args[0];
    bool quotient = (x->op == EX_DIV || x->op == EX_MOD) && tile && form == EX_TEXT;
    const char *name = !sum ? e->op == EX_ROWMAX ? "max" : "min" : form == EX_MATHML ? "∑" : "sum";
    word(p, arena_printf(p->scratch, over[form][tile], name));
    term(p, x, quotient ? P_UNARY : form == EX_TEXT && (!tile || !sum) ? P_NONE : P_MUL);
}

static void call(Printer *p, const Ex *e) {
    ExForm form = p->style->form;
    const char *name = e->op == EX_CONV ? ex_type_name(e->type) : ex_op_name(e->op);
    if (form == EX_MATHML) name = arena_printf(p->scratch, "<mi>%s</mi>", name);
    if (form == EX_TEX) name = arena_printf(p->scratch, "\\operatorname{%s}", name);
    word(p, name);
    word(p, marks[form].open);
    arguments(p, e);
    word(p, marks[form].close);
}

static void infix(Printer *p, const Ex *e) {
    ExForm form = p->style->form;
    int least = precedence_as_in_c(e->op);
    const char *name = ex_op_name(e->op);
    Text t = text_new(p->scratch);
    text_puts(&t, form == EX_MATHML ? "<mo>" : " ");
    put_escaped(&t, name, strlen(name), form);
    text_puts(&t, form == EX_MATHML ? "</mo>" : " ");
    term(p, e->args[0], least);
    word(p, t.s);
    term(p, e->args[1], least + 1);
}

static void filled(Printer *p, const Ex *e, const Row *row) {
    for (const char *s = row->text; *s;) {
        size_t n = strcspn(s, "@");
        if (n) wordn(p, s, n);
        s += n;
        if (!*s) break;
        int i = s[1] - '0';
        term(p, e->args[i], row->least[i]);
        s += 2;
    }
}

// A quotient of whole numbers is rounded down.
static bool is_floored(const Printer *p, const Ex *e) {
    return e->op == EX_DIV && e->type == EX_I32 && p->style->form != EX_TEXT;
}

static bool is_called(const Printer *p, const Ex *e) {
    return is_reduction(e->op) && p->style->over == EX_OVER_CALL;
}

static int precedence(const Printer *p, const Ex *e) {
    if (e->op == EX_SYM || e->op == EX_CONST)
        return e->op == EX_SYM && e->sym == SYM_DOT ? P_PRIMARY : P_ATOM;
    if (is_reduction(e->op)) return is_called(p, e) ? P_PRIMARY : P_MUL;
    const Row *row = &rows[p->style->form][e->op];
    return row->text ? row->precedence : precedence_as_in_c(e->op);
}

static void operation(Printer *p, const Ex *e) {
    ExForm form = p->style->form;
    const Row *row = &rows[form][e->op];
    bool floored = is_floored(p, e);
    if (floored) word(p, form == EX_MATHML ? "<mrow><mo>⌊</mo>" : "\\left\\lfloor ");
    if (e->op == EX_LOAD)
        load(p, e);
    else if (e->op == EX_ADD)
        term(p, e->args[0], P_ADD), added(p, e->args[1]);
    else if (e->op == EX_FMA) {
        term(p, e->args[0], P_MUL);
        word(p, marks[form].times);
        term(p, e->args[1], P_UNARY);
        added(p, e->args[2]);
    } else if (is_reduction(e->op) && !is_called(p, e))
        reduction(p, e);
    else if (row->text)
        filled(p, e, row);
    else if (ex_ops[e->op].fix == X_INFIX)
        infix(p, e);
    else
        call(p, e);
    if (floored) word(p, form == EX_MATHML ? "<mo>⌋</mo></mrow>" : "\\right\\rfloor ");
}

// In mathematics a whole number is a number.
static bool is_no_change(const Printer *p, const Ex *e) {
    return p->style->form != EX_TEXT && e->op == EX_CONV && e->type == EX_F32 &&
           e->args[0]->type == EX_I32;
}

static void print_node(Printer *p, const Ex *e, int least) {
    ExForm form = p->style->form;
    if (is_no_change(p, e)) e = e->args[0];
    p->parts.n = 0;
    if (p->left <= 0) {
        text_puts(p->out, marks[form].dots);
    } else if (e->op == EX_CONST) {
        constant(p, e, least);
    } else if (e->op == EX_SYM) {
        symbol(p, e);
    } else {
        bool parens = precedence(p, e) < least;
        if (parens) word(p, marks[form].open);
        if (form == EX_MATHML) word(p, arena_printf(p->scratch, "<mrow%s>", attributes_of(p, e)));
        operation(p, e);
        if (form == EX_MATHML) word(p, "</mrow>");
        if (parens) word(p, marks[form].close);
    }
    while (p->parts.n) VEC_PUSH(p->scratch, &p->todo, p->parts.data[--p->parts.n]);
}

// What is shared is printed each time: at most so many pieces, then dots, for there may be no end of them.
enum { MOST_PIECES = 1 << 22, MOST_MATHEMATICS = 1 << 15 };

void ex_print_styled(Text *out, const Ex *e, const ExStyle *style) {
    Printer p = {.out = out, .style = style, .scratch = arena_new()};
    p.left = style->most ? style->most : style->form == EX_TEXT ? MOST_PIECES : MOST_MATHEMATICS;
    text_puts(out, "");
    print_node(&p, e, P_NONE);
    for (; p.todo.n; p.left--) {
        Piece piece = p.todo.data[--p.todo.n];
        if (piece.text)
            text_putn(out, piece.text, piece.n);
        else
            print_node(&p, piece.e, piece.least);
    }
    arena_free(p.scratch);
}

void ex_print_pretty(Text *out, const Ex *e, const ExNames *names) {
    ExStyle style = {.form = EX_TEXT, .names = names};
    ex_print_styled(out, e, &style);
}
