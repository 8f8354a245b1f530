// limits.c: how large f32 numbers can be, by intervals.
//
// In: a scalar expression. Out: bounds of its finite values, in which a dot product is at most 2^60, an
// input anything that its type holds, and positions and sizes are what launches allow. Where a bound is beyond
// f32, finite numbers may have become an infinity.
//
//     dot * 0.125 + slope * (kv_idx - q_idx)     stays in f32 where the slope is bounded
//     dot - 3.4e38 - 3.4e38                      may be -inf
//     log(f32(h % 2))                            may be -inf
//
// A score that may be -inf decides where that depends on the order of its operations. (That dot - slope * 2^24 is -inf for an
// enormous slope does not.)
// An infinity that is written, read, or made by a division by 0 is not looked for here: classes.c knows these.
#include "passes/derive/limits.h"

#include <math.h>

static const double MOST = 0x1.fffffep127, INDEX = 1 << 24;

const Limits limits_unknown = {-INFINITY, INFINITY};

static Limits within(double size) { return (Limits){-size, size}; }

static double product(double a, double b) { return a == 0 || b == 0 ? 0 : a * b; }

static double size_of(Limits a) { return fmax(fabs(a.lo), fabs(a.hi)); }

static Limits times(Limits a, Limits b) {
    double v[] = {product(a.lo, b.lo), product(a.lo, b.hi), product(a.hi, b.lo),
                  product(a.hi, b.hi)};
    return (Limits){fmin(fmin(v[0], v[1]), fmin(v[2], v[3])),
                    fmax(fmax(v[0], v[1]), fmax(v[2], v[3]))};
}

static Limits over(Limits a, Limits b) {
    if (b.lo <= 0 && b.hi >= 0) return within(MOST);
    return times(a, (Limits){1 / b.hi, 1 / b.lo});
}

static Limits sum(Limits a, Limits b) { return (Limits){a.lo + b.lo, a.hi + b.hi}; }
static Limits negated(Limits a) { return (Limits){-a.hi, -a.lo}; }

static Limits of_size(int index) {
    if (index == SIZE_Q_OFFSET) return within(INDEX);
    return (Limits){index < SIZE_FREE, INDEX}; // there is a key where there is a score
}

static Limits of_leaf(const Ex *e, const LimitFacts *facts) {
    if (e->op == EX_CONST && e->type == EX_F32 && !isfinite(e->f)) return (Limits){0, 0};
    if (e->op == EX_CONST) return e->type == EX_F32 ? (Limits){e->f, e->f} : (Limits){e->i, e->i};
    switch (e->op == EX_SYM ? (int)e->sym : -1) {
    case SYM_DOT: return within(LIMITS_DOT);
    case SYM_SQQ:
    case SYM_SQK: return (Limits){0, LIMITS_DOT};
    case SYM_B:
    case SYM_H:
    case SYM_KV_IDX: return (Limits){0, INDEX};
    case SYM_Q_IDX:
    case SYM_POS: return within(2 * INDEX);
    case SYM_SIZE: return of_size(e->index);
    case SYM_PARAM: return facts->param ? facts->param[e->index] : limits_unknown;
    default: break;
    }
    bool input = e->op == EX_LOAD || e->sym == SYM_SCALAR;
    if (e->type == EX_BOOL) return (Limits){0, 1};
    if (e->type == EX_I32) return within(0x1p31);
    return input ? within(MOST) : limits_unknown;
}

static Limits of_power(Limits x, Limits n) {
    if (n.lo != n.hi || x.lo < 0 || (n.lo < 0 && x.lo <= 0)) return limits_unknown;
    double a = pow(x.lo, n.lo), b = pow(x.hi, n.lo);
    return (Limits){fmin(a, b), fmax(a, b)};
}

static Limits of_magnitude(Limits a) {
    double least = a.lo > 0 ? a.lo : a.hi < 0 ? -a.hi : 0;
    return (Limits){least, size_of(a)};
}

static Limits of_function(ExOp op, const Limits *a) {
    double lo = fmax(a->lo, 0), hi = fmax(a->hi, 0); // where a root or a logarithm has a value
    switch ((int)op) {
    case EX_FLOOR: return (Limits){floor(a->lo), floor(a->hi)};
    case EX_EXP: return (Limits){exp(a->lo), exp(a->hi)};
    case EX_EXP2: return (Limits){exp2(a->lo), exp2(a->hi)};
    case EX_LOG: return (Limits){log(lo), log(hi)};
    case EX_LOG2: return (Limits){log2(lo), log2(hi)};
    case EX_SQRT: return (Limits){sqrt(lo), sqrt(hi)};
    case EX_RSQRT: return over((Limits){1, 1}, (Limits){sqrt(lo), sqrt(hi)});
    case EX_RCP: return over((Limits){1, 1}, *a);
    case EX_SIGMOID: return (Limits){0, 1};
    case EX_TANH:
    case EX_ERF:
    case EX_SIN:
    case EX_COS: return within(1);
    case EX_POW: return of_power(a[0], a[1]);
    default: return limits_unknown;
    }
}

static Limits of_modulo(Limits a, Limits b) { // the divisor's sign, and 0 by 0
    (void)a;
    return (Limits){fmin(b.lo, 0), fmax(b.hi, 0)};
}

static Limits of_arithmetic(const Ex *e, const Limits *a) {
    bool whole = e->type == EX_I32;
    switch ((int)e->op) {
    case EX_ADD: return sum(a[0], a[1]);
    case EX_SUB: return sum(a[0], negated(a[1]));
    case EX_MUL: {
        Limits b = times(a[0], a[1]);
        if (e->args[0] == e->args[1]) b.lo = fmax(b.lo, 0);
        return b;
    }
    case EX_DIV: return whole ? within(size_of(a[0])) : over(a[0], a[1]);
    case EX_MOD: return of_modulo(a[0], a[1]);
    case EX_NEG: return negated(a[0]);
    case EX_ABS: return of_magnitude(a[0]);
    case EX_FMA: return sum(times(a[0], a[1]), a[2]);
    case EX_ROUNDED: return a[0];
    case EX_MIN: return (Limits){fmin(a[0].lo, a[1].lo), fmin(a[0].hi, a[1].hi)};
    case EX_MAX: return (Limits){fmax(a[0].lo, a[1].lo), fmax(a[0].hi, a[1].hi)};
    default: return whole ? within(0x1p31) : of_function(e->op, a);
    }
}

static Limits of_select(const Ex *e, const Limits *a) {
    for (int k = 1; k < 3; k++) // an infinity that is written
        if (e->args[k]->op == EX_CONST && e->type == EX_F32 && !isfinite(e->args[k]->f))
            return a[3 - k];
    return (Limits){fmin(a[1].lo, a[2].lo), fmax(a[1].hi, a[2].hi)};
}

static bool is_symbol(const Ex *e, ExSym sym) { return e->op == EX_SYM && e->sym == sym; }

// The distance of a query and a key, where the mask keeps keys from lying behind.
static Limits of_distance(const Ex *e, Limits l, const LimitFacts *facts) {
    if (!facts->causal || e->op != EX_SUB) return l;
    if (is_symbol(e->args[0], SYM_Q_IDX) && is_symbol(e->args[1], SYM_KV_IDX)) l.lo = 0;
    if (is_symbol(e->args[0], SYM_KV_IDX) && is_symbol(e->args[1], SYM_Q_IDX)) l.hi = 0;
    return l;
}

Limits limits_of_node(const Ex *e, const Limits *a, const LimitFacts *facts) {
    Limits l;
    if (e->type == EX_BOOL) return (Limits){0, 1};
    if (!e->nargs || e->op == EX_LOAD)
        l = of_leaf(e, facts);
    else if (e->op == EX_SELECT)
        l = of_select(e, a);
    else if (e->op == EX_CONV)
        l = e->type == EX_I32 && e->args[0]->type == EX_F32 ? within(0x1p31) : a[0];
    else
        l = of_distance(e, of_arithmetic(e, a), facts);
    bool wraps = e->type == EX_I32 && (l.lo < -0x1p31 || l.hi >= 0x1p31);
    if (wraps) return within(0x1p31);
    if (l.lo <= -LIMITS_F32 && e->type == EX_F32) l.lo = -INFINITY;
    if (l.hi >= LIMITS_F32 && e->type == EX_F32) l.hi = INFINITY;
    return isnan(l.lo) || isnan(l.hi) ? limits_unknown : l;
}

enum { CONDITIONS_DEEP = 64 };

// kv_idx <= q_idx or kv_idx < q_idx, among what the mask asks.
static bool is_causal(const Ex *mask, int depth) {
    if (mask->op == EX_AND && depth < CONDITIONS_DEEP)
        return is_causal(mask->args[0], depth + 1) || is_causal(mask->args[1], depth + 1);
    bool orders = mask->op == EX_LE || mask->op == EX_LT;
    return orders && is_symbol(mask->args[0], SYM_KV_IDX) && is_symbol(mask->args[1], SYM_Q_IDX);
}

LimitFacts row_facts(const RowProgram *row) {
    return (LimitFacts){.causal = is_causal(row->mask, 0)};
}

// A sum of two numbers that are large, or a product of one that may have become an infinity: computed in another order
// it may be finite, or the other way round.
static bool depends_on_order(const Ex *e, const Limits *a) {
    static const double large = 0x1p100;
    if (e->type != EX_F32) return false;
    switch ((int)e->op) {
    case EX_ADD:
    case EX_SUB: return size_of(a[0]) > large && size_of(a[1]) > large;
    case EX_MUL:
    case EX_DIV: return isinf(size_of(a[0])) || isinf(size_of(a[1]));
    default: return false;
    }
}

bool row_overflows(const RowProgram *row) {
    Arena *scratch = arena_new();
    const Ex **order;
    int n = ex_order(scratch, &row->modified, 1, &order);
    Limits *of = ARENA_ARRAY(scratch, Limits, n);
    LimitFacts facts = row_facts(row);
    ExMemo at = {0};
    bool fragile = false;
    for (int i = 0; i < n; i++) {
        Limits a[EX_MAX_RANK];
        for (int k = 0; k < order[i]->nargs; k++) {
            const void *l = NULL;
            ex_memo_has(&at, order[i]->args[k], &l);
            a[k] = *(const Limits *)l;
        }
        of[i] = limits_of_node(order[i], a, &facts);
        fragile |= depends_on_order(order[i], a);
        ex_memo_put(scratch, &at, order[i], &of[i]);
    }
    bool overflows = fragile && of[n - 1].lo <= -LIMITS_F32;
    arena_free(scratch);
    return overflows;
}
