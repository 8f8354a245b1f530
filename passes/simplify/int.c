// int.c: i32. Sums, differences and multiples by constants are kept as one sum of
// multiples of distinct terms and a constant: exact, since i32 wraps and so is a ring. Terms keep
// the order in which they first stand.
#include "passes/simplify/rules.h"

enum {
    MAX_TERMS = 12
}; // a longer sum is a term of its own in what uses it, so that long chains stay cheap

enum { MAX_DEPTH = MAX_TERMS + 2 };

typedef struct Affine {
    struct {
        const Ex *e;
        uint32_t times;
    } term[MAX_TERMS];
    int n;
    uint32_t constant;
    bool full; // there was a term too many
} Affine;

static void add_term(Affine *f, const Ex *e, uint32_t times) {
    for (int i = 0; i < f->n; i++)
        if (f->term[i].e == e) {
            f->term[i].times += times;
            return;
        }
    if (f->n == MAX_TERMS) {
        f->full = true;
        return;
    }
    f->term[f->n].e = e;
    f->term[f->n++].times = times;
}

// Adds times * e. An argument is in this form already, so the sum leans left and is no deeper than
// MAX_DEPTH, unless it has too many terms.
static void gather(Affine *f, const Ex *e, uint32_t times, int depth) {
    if (depth > MAX_DEPTH) f->full = true;
    while (!f->full) {
        if (e->op == EX_CONST) {
            f->constant += times * (uint32_t)e->i;
            return;
        }
        if (e->op == EX_NEG) {
            times = 0u - times;
            e = e->args[0];
        } else if (e->op == EX_MUL && e->args[1]->op == EX_CONST) {
            times *= (uint32_t)e->args[1]->i;
            e = e->args[0];
        } else if (e->op == EX_ADD || e->op == EX_SUB) {
            gather(f, e->args[0], times, depth + 1);
            if (e->op == EX_SUB) times = 0u - times;
            e = e->args[1];
        } else {
            add_term(f, e, times);
            return;
        }
    }
}

static const Ex *multiple(ExPool *p, const Ex *e, uint32_t times) {
    return times == 1 ? e : ex_2(p, EX_MUL, e, ex_i32(p, (int32_t)times));
}

static bool is_negative(uint32_t v) { return v >> 31 && v != 1u << 31; }

// The terms whose factor has this sign, added to sum or subtracted from it.
static const Ex *with_terms(ExPool *p, const Affine *f, const Ex *sum, bool negative) {
    for (int i = 0; i < f->n; i++) {
        uint32_t times = f->term[i].times;
        if (!times || is_negative(times) != negative) continue;
        const Ex *t = multiple(p, f->term[i].e, negative ? 0u - times : times);
        if (sum)
            sum = ex_2(p, negative ? EX_SUB : EX_ADD, sum, t);
        else
            sum = negative ? ex_1(p, EX_NEG, t) : t;
    }
    return sum;
}

// What is added, then what is subtracted, then the constant; `c - x` where nothing else is added.
static const Ex *sum_of(ExPool *p, const Affine *f) {
    const Ex *constant = ex_i32(p, (int32_t)f->constant);
    const Ex *sum = with_terms(p, f, NULL, false);
    bool leads = !sum && f->constant;
    sum = with_terms(p, f, leads ? constant : sum, true);
    if (!sum) return constant;
    if (!f->constant || leads) return sum;
    if (is_negative(f->constant))
        return ex_2(p, EX_SUB, sum, ex_i32(p, (int32_t)(0u - f->constant)));
    return ex_2(p, EX_ADD, sum, constant);
}

static const Ex *affine(ExPool *p, const Ex *e) {
    Affine f = {.n = 0};
    gather(&f, e, 1, 0);
    return f.full ? e : sum_of(p, &f);
}

static const Ex *product(ExPool *p, const Ex *e) {
    const Ex *a = e->args[0], *b = e->args[1];
    if (a->op == EX_CONST) return simp_2(p, EX_MUL, b, a);
    return b->op == EX_CONST ? affine(p, e) : e;
}

static const Ex *extremum(ExPool *p, const Ex *e) {
    const Ex *a = e->args[0], *b = e->args[1];
    if (a == b) return a;
    if (a->op == EX_CONST) return simp_2(p, e->op, b, a);
    if (b->op == EX_CONST && a->op == e->op && a->args[1]->op == EX_CONST)
        return simp_2(p, e->op, a->args[0], simp_2(p, e->op, a->args[1], b));
    if (ex_is_i32(b, e->op == EX_MAX ? INT32_MIN : INT32_MAX)) return a;
    return e;
}

static const Ex *bits(ExPool *p, const Ex *e) {
    const Ex *a = e->args[0], *b = e->args[1];
    if (a->op == EX_CONST) return simp_2(p, e->op, b, a);
    if (a == b) return e->op == EX_BXOR ? ex_i32(p, 0) : a;
    if (ex_is_i32(b, 0)) return e->op == EX_BAND ? b : a;
    if (ex_is_i32(b, -1) && e->op != EX_BXOR) return e->op == EX_BAND ? a : b;
    return e;
}

const Ex *simp_int_node(ExPool *p, const Ex *e) {
    const Ex *a = e->args[0], *b = e->nargs > 1 ? e->args[1] : NULL;
    switch ((int)e->op) {
    case EX_ADD:
    case EX_SUB:
    case EX_NEG: return affine(p, e);
    case EX_MUL: return product(p, e);
    case EX_MIN:
    case EX_MAX: return extremum(p, e);
    case EX_BAND:
    case EX_BOR:
    case EX_BXOR: return bits(p, e);
    case EX_DIV: return ex_is_i32(b, 1) ? a : ex_is_i32(b, 0) ? b : e;
    case EX_MOD: return ex_is_i32(b, 1) || ex_is_i32(b, 0) ? ex_i32(p, 0) : e;
    case EX_SHR: return b->op == EX_CONST && !(b->i & 31) ? a : e;
    case EX_SHL:
        if (b->op == EX_CONST) return simp_2(p, EX_MUL, a, ex_i32(p, (int32_t)(1u << (b->i & 31))));
        return e;
    case EX_BNOT: return a->op == EX_BNOT ? a->args[0] : e;
    case EX_ABS: return a->op == EX_ABS ? a : a->op == EX_NEG ? simp_1(p, EX_ABS, a->args[0]) : e;
    default: return e;
    }
}
