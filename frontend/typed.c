// typed.c: nodes of the typed AST, and the arithmetic of constants.
#include "frontend/typed.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    TxType type;
    bool row;
} symbols[] = {
#define TSYM(e, name, type, row, sym, doc) {name, type, row},
#include "symbols.def"
#undef TSYM
};

const char *tx_type_name(TxType t) {
    switch (t) {
    case TX_BOOL: return "bool";
    case TX_I32: return "i32";
    case TX_F32: return "f32";
    case TX_TILE: return "vector";
    case TX_BAD: return "?";
    }
    return "?";
}

static Tx *node(TxPool *p, ExOp op, TxType type, Span span) {
    Tx *e = ARENA_NEW(p->arena, Tx);
    e->op = op;
    e->type = type;
    e->span = span;
    e->id = p->next++;
    return e;
}

Tx *tx_bad(TxPool *p) { return node(p, EX_CONST, TX_BAD, (Span){0}); }

Tx *tx_value(TxPool *p, TxType type, TxValue v, Span span) {
    Tx *e = node(p, EX_CONST, type, span);
    e->known = true;
    e->value = v;
    if (type == TX_F32) e->value.f = v.written; // a constant is one f32
    return e;
}

Tx *tx_f32(TxPool *p, double v, Span span) { return tx_value(p, TX_F32, tx_number(v), span); }
Tx *tx_i32(TxPool *p, int32_t v, Span span) { return tx_value(p, TX_I32, (TxValue){.i = v}, span); }
Tx *tx_bool(TxPool *p, bool v, Span span) { return tx_value(p, TX_BOOL, (TxValue){.i = v}, span); }

Tx *tx_sym(TxPool *p, TxSym sym, int index, Span span) {
    Tx *e = node(p, EX_SYM, symbols[sym].type, span);
    e->sym = sym;
    e->index = index;
    e->row = symbols[sym].row;
    return e;
}

static void set_args(TxPool *p, Tx *e, Tx *const *args, int n) {
    e->nargs = n;
    e->args = ARENA_ARRAY(p->arena, Tx *, n);
    memcpy(e->args, args, sizeof *args * (size_t)n);
    for (int i = 0; i < n; i++) e->row |= args[i]->row;
}

// `false && x` is known whatever x is; the value of what is not known reads as 0.
static bool is_known(ExOp op, Tx *const *args, int n) {
    int known = 0;
    for (int i = 0; i < n; i++) {
        bool decides = (op == EX_AND && !args[i]->value.i) || (op == EX_OR && args[i]->value.i);
        if (args[i]->known && decides) return true;
        known += args[i]->known;
    }
    if (op == EX_SELECT && args[0]->known) return args[args[0]->value.i ? 1 : 2]->known;
    return known == n;
}

Tx *tx_op(TxPool *p, ExOp op, TxType type, Tx *const *args, int n, Span span) {
    assert(n >= 1 && n <= 3);
    Tx *e = node(p, op, type, span);
    set_args(p, e, args, n);
    p->ops++;
    if (op == EX_ROWMAX || op == EX_ROWMIN || op == EX_ROWSUM) {
        e->row = false;
        return e;
    }
    TxValue values[3];
    for (int i = 0; i < n; i++) values[i] = args[i]->value;
    e->known = is_known(op, args, n);
    if (e->known) e->value = tx_apply(op, type, args[n - 1]->type, values);
    if (e->known && type == TX_F32) e->value.f = e->value.written;
    return e;
}

Tx *tx_conv(TxPool *p, TxType to, Tx *a, bool counts, Span span) {
    if (a->type == to) return a;
    if (a->op == EX_CONST) // 2 where an f32 is needed is 2.0
        return tx_value(p, to, tx_apply(EX_CONV, to, a->type, &a->value), a->span);
    Tx *e = tx_op(p, EX_CONV, to, &a, 1, span);
    p->ops -= !counts;
    return e;
}

Tx *tx_load(TxPool *p, int input, TxType type, Tx *const *idx, int n, Span span) {
    Tx *e = node(p, EX_LOAD, type, span);
    set_args(p, e, idx, n);
    p->ops++;
    e->index = input;
    return e;
}

TxNodes tx_nodes(Arena *a, const Tx *const *roots, int n) {
    TxNodes nodes = {0};
    uint32_t end = 0;
    for (int i = 0; i < n; i++)
        if (roots[i] && roots[i]->id >= end) end = roots[i]->id + 1;
    const Tx **needed = ARENA_ARRAY(a, const Tx *, end);
    for (int i = 0; i < n; i++)
        if (roots[i]) needed[roots[i]->id] = roots[i];
    for (uint32_t id = end; id-- > 0;)
        for (int i = 0; needed[id] && i < needed[id]->nargs; i++)
            needed[needed[id]->args[i]->id] = needed[id]->args[i];
    for (uint32_t id = 0; id < end; id++)
        if (needed[id]) VEC_PUSH(a, &nodes, needed[id]);
    return nodes;
}

int tx_row_width(const TxInput *in, RowSide *side) {
    const TxExtent *x = in->extent;
    bool keys = in->rank == 4 && x[2].size == SIZE_SK;
    *side = keys ? ROW_KEYS : ROW_QUERIES;
    bool rows = in->rank == 4 && (keys || x[2].size == SIZE_SQ) && x[0].size == SIZE_B;
    bool floats = dtype_reads(in->dtype) == EX_F32 && !dtype_byte(in->dtype);
    return rows && x[3].size < 0 && floats ? x[3].value : 0;
}

Tx *tx_of_input(TxPool *p, const TxInput *in, Tx *x) {
    return in->dtype == DT_I8 ? tx_op(p, EX_CONV, TX_I32, &x, 1, x->span) : x;
}

const char *tx_sym_name(TxSym sym) { return symbols[sym].name; }

bool tx_is_sym(const Tx *e, TxSym sym) { return e->op == EX_SYM && e->sym == sym; }

// ---- arithmetic

static int32_t wrap(uint32_t x) {
    int32_t r;
    memcpy(&r, &x, sizeof r);
    return r;
}

static int32_t floor_div(int32_t a, int32_t b) {
    if (b == 0) return 0;
    if (b == -1) return wrap(0u - (uint32_t)a);
    int32_t q = a / b;
    return q - (a % b != 0 && (a < 0) != (b < 0));
}

static int32_t floor_mod(int32_t a, int32_t b) {
    if (b == 0 || b == -1) return 0;
    int32_t r = a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

static int32_t saturate(double x) {
    if (isnan(x)) return 0;
    return x >= 2147483647.0 ? INT32_MAX : x <= -2147483648.0 ? INT32_MIN : (int32_t)x;
}

static int32_t apply_i32(ExOp op, const TxValue *v) {
    int32_t a = v[0].i, b = v[1].i;
    uint32_t ua = (uint32_t)a, ub = (uint32_t)b;
    switch ((int)op) {
    case EX_ADD: return wrap(ua + ub);
    case EX_SUB: return wrap(ua - ub);
    case EX_MUL: return wrap(ua * ub);
    case EX_DIV: return floor_div(a, b);
    case EX_MOD: return floor_mod(a, b);
    case EX_NEG: return wrap(0u - ua);
    case EX_MIN: return a < b ? a : b;
    case EX_MAX: return a > b ? a : b;
    case EX_ABS: return a < 0 ? wrap(0u - ua) : a;
    case EX_BAND: return a & b;
    case EX_BOR: return a | b;
    case EX_BXOR: return a ^ b;
    case EX_BNOT: return ~a;
    case EX_SHL: return wrap(ua << (ub & 31));
    case EX_SHR: return a >> (ub & 31);
    }
    assert(!"not an operation on i32");
    return 0;
}

static double flushed(double x) { return fabs(x) < FLT_MIN ? copysign(0, x) : x; }

TxValue tx_number(double x) {
    return (TxValue){.f = flushed(x), .written = (float)flushed((float)x)};
}

// Rounded to f32 once, as every operation's result is.
static float f32_of(double x) { return (float)flushed((float)x); }

static float modulo(float a, float b) {
    float quotient = f32_of(a / b), product = f32_of(b * floorf(quotient));
    return f32_of(a - product);
}

// Sums, products and quotients of two f32, and square roots, are the same when float64's are
// rounded once more.
static double apply_f32(ExOp op, double a, double b) {
    switch ((int)op) {
    case EX_ADD: return a + b;
    case EX_SUB: return a - b;
    case EX_MUL: return a * b;
    case EX_DIV: return a / b;
    case EX_NEG: return -a;
    case EX_MIN: return fmin(a, b);
    case EX_MAX: return fmax(a, b);
    case EX_ABS: return fabs(a);
    case EX_EXP: return exp(a);
    case EX_EXP2: return exp2(a);
    case EX_LOG: return log(a);
    case EX_LOG2: return log2(a);
    case EX_SQRT: return sqrt(a);
    case EX_RSQRT: return 1 / sqrt(a);
    case EX_TANH: return tanh(a);
    case EX_SIGMOID: return 1 / (1 + exp(-a));
    case EX_SIN: return sin(a);
    case EX_COS: return cos(a);
    case EX_ERF: return erf(a);
    case EX_POW: return pow(a, b);
    }
    assert(!"not an operation on f32");
    return 0;
}

static TxValue number(ExOp op, const TxValue *v) {
    if (op == EX_FLOOR || op == EX_MOD) {
        float w = op == EX_FLOOR ? floorf(v[0].written) : modulo(v[0].written, v[1].written);
        return (TxValue){.f = w, .written = w};
    }
    double w = apply_f32(op, v[0].written, v[1].written);
    return (TxValue){.f = flushed(apply_f32(op, v[0].f, v[1].f)), .written = f32_of(w)};
}

static bool compare(ExOp op, TxType from, const TxValue *v) {
    bool f = from == TX_F32;
    switch ((int)op) {
    case EX_EQ: return f ? v[0].written == v[1].written : v[0].i == v[1].i;
    case EX_NE: return f ? v[0].written != v[1].written : v[0].i != v[1].i;
    case EX_LT: return f ? v[0].written < v[1].written : v[0].i < v[1].i;
    case EX_LE: return f ? v[0].written <= v[1].written : v[0].i <= v[1].i;
    case EX_AND: return v[0].i && v[1].i;
    case EX_OR: return v[0].i || v[1].i;
    case EX_NOT: return !v[0].i;
    case EX_BAND: return v[0].i & v[1].i;
    case EX_BOR: return v[0].i | v[1].i;
    case EX_BXOR: return v[0].i ^ v[1].i;
    }
    assert(!"not an operation that gives a bool");
    return false;
}

static TxValue convert(TxType to, TxType from, TxValue v) {
    bool f = from == TX_F32;
    if (to == TX_F32) return f ? v : tx_number((float)v.i); // rounded everywhere alike
    if (to == TX_BOOL) return (TxValue){.i = f ? v.written != 0 : v.i != 0};
    return (TxValue){.i = f ? saturate(v.written) : v.i};
}

TxValue tx_apply(ExOp op, TxType type, TxType from, const TxValue *args) {
    if (op == EX_SELECT) return args[0].i ? args[1] : args[2];
    if (op == EX_CONV) return convert(type, from, args[0]);
    _Static_assert(EX_POW - EX_ABS == 14 && EX_FLOOR == EX_ABS + 1 && EX_ERF == EX_POW - 1,
                   "from abs to before pow all functions have one argument");
    TxValue two[2] = {args[0]}; // unary operations have no second
    if (op != EX_NEG && op != EX_NOT && op != EX_BNOT && (op < EX_ABS || op >= EX_POW))
        two[1] = args[1];
    if (type == TX_F32) return number(op, two);
    return (TxValue){.i = type == TX_I32 ? apply_i32(op, two) : compare(op, from, two)};
}
