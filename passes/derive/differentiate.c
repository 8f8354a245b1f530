// differentiate.c: derivatives of expressions.
//
// In: an expression and one of its nodes, x. Out: the derivative by x, as an expression; NULL for 0.
//
//     exp(s - m) / l  by l    ->  -(exp(s - m) / l / l)
//     tanh(s / 30)    by s    ->  (1 - y * y) * 0.0333,  y the tanh
//     sqrt(max(s, 0)) by s    ->  0 < s ? 0.5 / sqrt(max(s, 0)) : 0
//
// Forwards along the expression, so that what a selection leaves out does not exist: a derivative that is infinite
// there is never multiplied by 0. Kinks: a tie of two expressions gives half of each, one with a constant nothing; abs
// gives 0 at 0; floor, conversions and conditions give 0. Nothing is simplified but ones and zeros.
#include "passes/derive/differentiate.h"

#include "passes/derive/classes.h"
#include "passes/derive/tame.h"
#include "passes/simplify/simplify.h"

#include <math.h>

enum {
    MOST_CHOICES = 64,
    CHOICE_DEPTH = 8
}; // through which a factor is taken, of one node; under sums and products

typedef struct Rows { // what partials.def is read with
    ExPool *p;
    const Ex *a, *b, *c, *y;
} Rows;

static bool is_one(const Ex *e) { return ex_is_f32(e, 1); }

// Two constants whose product f32 does not hold stay two, and a factor goes first: it may be 0.
static bool is_large(const Ex *e) {
    return e->op == EX_MUL && e->args[0]->op == EX_CONST && e->args[1]->op == EX_CONST;
}

const Ex *ex_unless_zero(ExPool *p, const Ex *come, const Ex *e) {
    const Ex *zero = ex_f32(p, 0);
    return ex_select(p, ex_2(p, EX_EQ, come, zero), zero, e);
}

static bool is_infinite(const Ex *e) { return e->op == EX_CONST && isinf(e->f); }

static const Ex *times(ExPool *p, const Ex *a, const Ex *b) {
    if (is_infinite(b)) return ex_unless_zero(p, a, ex_2(p, EX_MUL, a, b));
    if (is_large(b)) return times(p, times(p, a, b->args[0]), b->args[1]);
    if (is_one(a)) return b;
    if (is_one(b)) return a;
    if (ex_is_f32(a, -1)) return ex_1(p, EX_NEG, b);
    return ex_is_f32(b, -1) ? ex_1(p, EX_NEG, a) : ex_2(p, EX_MUL, a, b);
}

const Ex *ex_plus(ExPool *p, const Ex *a, const Ex *b) {
    if (!a || !b) return a ? a : b;
    return b->op == EX_NEG ? ex_2(p, EX_SUB, a, b->args[0]) : ex_2(p, EX_ADD, a, b);
}

static const Ex *or_zero(ExPool *p, const Ex *e) { return e ? e : ex_f32(p, 0); }

static const Ex *choice(ExPool *p, const Ex *c, const Ex *a, const Ex *b) {
    return a == b ? a : ex_select(p, c, or_zero(p, a), or_zero(p, b));
}

// ---- products

static bool chooses_within(const Ex *e, int depth) {
    if (e->op == EX_SELECT) return true;
    bool through = e->op == EX_ADD || e->op == EX_SUB || e->op == EX_NEG || e->op == EX_MUL;
    for (int k = 0; through && depth && k < e->nargs; k++)
        if (chooses_within(e->args[k], depth - 1)) return true;
    return false;
}

static bool chooses(const Ex *e) { return chooses_within(e, CHOICE_DEPTH); }

// a * b for an `a` that may be infinite: into what b chooses from. budget: of choices, since each doubles what is written.
static const Ex *chain(ExPool *p, const Ex *a, const Ex *b, int *budget) {
    if (ex_is_f32(b, 0)) return b;
    if (--*budget < 0 || !chooses(b)) return times(p, a, b);
    const Ex *x = b->args[0], *y = b->nargs > 1 ? b->args[1] : NULL;
    switch ((int)b->op) {
    case EX_SELECT: return ex_select(p, x, chain(p, a, y, budget), chain(p, a, b->args[2], budget));
    case EX_NEG: return ex_1(p, EX_NEG, chain(p, a, x, budget));
    case EX_ADD:
    case EX_SUB: return ex_2(p, b->op, chain(p, a, x, budget), chain(p, a, y, budget));
    default: // a product: into the factor that chooses
        return chooses(x) ? chain(p, times(p, a, y), x, budget)
                          : chain(p, times(p, a, x), y, budget);
    }
}

// Of ds nothing is known: a row whose scores are infinite, or whose divisor is as small as f32 has it.
static bool may_be_infinite(const Ex *e) {
    if (e->op == EX_SYM && e->sym == SYM_DS) return true;
    ClassEnv env = {.s = CL_FINITE, .wild_inputs = false, .wild_scores = true};
    return class_of(e, &env) & ~(unsigned)CL_FINITE;
}

// Signs and zeros: to choose from products is no more than to multiply by what is chosen.
static bool is_sign(const Ex *e) {
    if (e->op == EX_CONST) return e->f == 0 || fabsf(e->f) == 1;
    return e->op == EX_SELECT && is_sign(e->args[1]) && is_sign(e->args[2]);
}

const Ex *ex_chain(ExPool *p, const Ex *a, const Ex *b) {
    if (!a || !b) return NULL;
    int budget = MOST_CHOICES;
    bool plain = is_one(a) || is_one(b) || !chooses(b) || (!is_sign(b) && !may_be_infinite(a));
    return plain ? times(p, a, b) : chain(p, a, b, &budget);
}

// ---- one operation

static const Ex *row_neg(const Rows *r, const Ex *a) { return ex_1(r->p, EX_NEG, a); }

#define A (r->a)
#define B (r->b)
#define C (r->c)
#define Y (r->y)
#define NUM(x) ex_f32(r->p, x)
#define NEG(a) row_neg(r, a)
#define RCP(a) ex_1(r->p, EX_RCP, a)
#define EXP(a) ex_1(r->p, EX_EXP, a)
#define LOG(a) ex_1(r->p, EX_LOG, a)
#define SIN(a) ex_1(r->p, EX_SIN, a)
#define COS(a) ex_1(r->p, EX_COS, a)
#define FLOOR(a) ex_1(r->p, EX_FLOOR, a)
#define SUB(a, b) ex_2(r->p, EX_SUB, a, b)
#define MUL(a, b) ex_2(r->p, EX_MUL, a, b)
#define DIV(a, b) ex_2(r->p, EX_DIV, a, b)
#define POW(a, b) ex_2(r->p, EX_POW, a, b)
#define EQ(a, b) ex_2(r->p, EX_EQ, a, b)
#define IF(c, a, b) ex_select(r->p, c, a, b)

static const Ex *partial(const Rows *r, int argument) {
    switch ((int)r->y->op * EX_MAX_RANK + argument) {
#define PARTIAL(op, k, value)                                                                      \
    case EX_##op *EX_MAX_RANK + k:                                                                 \
        return value;
#include "ir/partials.def"
#undef PARTIAL
    default: return NULL;
    }
}

static bool is_constant(ExPool *p, const Ex *e) { return ex_simplify(p, e)->op == EX_CONST; }

static bool is_nan(ExPool *p, const Ex *constant) {
    float v = ex_simplify(p, constant)->f;
    return v != v;
}

// max(a, b), or min with the comparisons the other way round: the derivative of the larger one.
static const Ex *larger(const Rows *r, const Ex *da, const Ex *db) {
    ExPool *p = r->p;
    if (A == B) return da;
    bool max = r->y->op == EX_MAX;
    const Ex *a_wins = max ? ex_2(p, EX_LT, B, A) : ex_2(p, EX_LT, A, B),
             *b_wins = max ? ex_2(p, EX_LT, A, B) : ex_2(p, EX_LT, B, A);
    if (is_constant(p, B)) return is_nan(p, B) ? da : choice(p, a_wins, da, NULL);
    if (is_constant(p, A)) return is_nan(p, A) ? db : choice(p, b_wins, db, NULL);
    const Ex *both = ex_chain(p, NUM(0.5f), ex_plus(p, da, db));
    return choice(p, ex_2(p, EX_NE, B, Y), da, choice(p, EQ(A, B), both, db)); // no NaN is chosen
}

static const Ex *magnitude(const Rows *r, const Ex *da) {
    const Ex *zero = NUM(0);
    return choice(r->p, ex_2(r->p, EX_LT, zero, A), da,
                  choice(r->p, ex_2(r->p, EX_LT, A, zero), NEG(da), NULL));
}

// pow(x, 2) is the derivative of pow(x, 3) without a power of 1; pow(x, 1) that of x.
static const Ex *of_power(const Rows *r, const Ex *da, const Ex *db) {
    const Ex *n = B->op == EX_CONST ? B : ex_simplify(r->p, B), *by = partial(r, 0);
    if (ex_is_f32(n, 0)) return NULL;
    if (ex_is_f32(n, 1)) return da;
    if (n->op == EX_CONST) by = MUL(n, n->f == 2 ? A : POW(A, NUM(n->f - 1)));
    const Ex *more = db ? ex_chain(r->p, partial(r, 1), db) : NULL;
    return ex_plus(r->p, da ? ex_chain(r->p, by, da) : NULL, more);
}

// It hangs on scores and may leave f32: an exponential of one, or a product with a number near f32's largest.
static bool leaves_f32(const Ex *d) {
    ClassEnv env = {.s = CL_FINITE, .limited = true, .overflows = true};
    bool of_score = row_has_element(d) || ex_uses(d, SYM_DOT, -1);
    return of_score && class_of(d, &env) & ~(unsigned)CL_FINITE;
}

// by * d, where a function is so flat that `by` is 0 and d leaves f32: 5 / (2 + exp(-s)), tanh(exp(s)), tanh(s * 3e38).
static const Ex *flattened(const Rows *r, const Ex *by, const Ex *d) {
    const Ex *e = ex_chain(r->p, by, d);
    return leaves_f32(d) ? ex_unless_zero(r->p, by, e) : e;
}

// d / b; of an exponential times a slope that first.
static const Ex *over(const Rows *r, const Ex *d) {
    if (d->op != EX_MUL || !leaves_f32(d)) return DIV(d, B);
    return MUL(DIV(d->args[0], B), d->args[1]);
}

static bool is_flat(ExOp op) {
    return op == EX_EXP || op == EX_EXP2 || op == EX_TANH || op == EX_SIGMOID || op == EX_ERF;
}

static const Ex *of_node(const Rows *r, const Ex *const *d) {
    const Ex *sum = NULL, *y = r->y;
    switch ((int)y->op) {
    case EX_MIN:
    case EX_MAX: return larger(r, d[0], d[1]);
    case EX_ABS: return d[0] ? magnitude(r, d[0]) : NULL;
    case EX_SELECT: return d[1] || d[2] ? choice(r->p, A, d[1], d[2]) : NULL;
    case EX_POW: return of_power(r, d[0], d[1]);
    case EX_DIV: // x / b stays a quotient
        if (d[0] && !d[1] && !chooses(d[0])) return DIV(d[0], B);
        if (d[1] && !is_one(d[1]) && !chooses(d[1])) { // f32 may hold no x / b / b
            const Ex *by_b = NEG(flattened(r, y, over(r, d[1])));
            return ex_plus(r->p, d[0] ? ex_chain(r->p, RCP(B), d[0]) : NULL, by_b);
        }
        break;
    default: break;
    }
    for (int k = 0; k < y->nargs && k < 3; k++)
        if (d[k])
            sum = ex_plus(r->p, sum,
                          (is_flat(y->op) ? flattened(r, partial(r, k), d[k])
                                          : ex_chain(r->p, partial(r, k), d[k])));
    return sum;
}

const Ex *ex_derivative(ExPool *p, const Ex *e, const Ex *x) {
    Arena *scratch = arena_new();
    ExMemo done = {0};
    const Ex **order, *by = NULL;
    int n = ex_order(scratch, &e, 1, &order);
    for (int i = 0; i < n; i++) {
        const Ex *y = order[i], *d[EX_MAX_RANK] = {NULL};
        bool any = false;
        const void *known = NULL;
        for (int k = 0; k < y->nargs; k++)
            if (ex_memo_has(&done, y->args[k], &known)) d[k] = known, any |= known != NULL;
        Rows r = {p, y->nargs ? y->args[0] : NULL, y->nargs > 1 ? y->args[1] : NULL,
                  y->nargs > 2 ? y->args[2] : NULL, y};
        by = y == x                                         ? ex_f32(p, 1)
             : any && y->type == EX_F32 && y->op != EX_LOAD ? of_node(&r, d)
                                                            : NULL;
        if (by) ex_memo_put(scratch, &done, y, by);
    }
    arena_free(scratch);
    return by; // e is the last in its order
}
