// magnitude.c: how large and how small numbers of a row can be, as powers of two.
//
// In: a row program and an expression over its scores. Out: bounds of log2 |e| where e is not 0. A dot
// product is between 2^-70 and 2^64, and so is any other number that each key has and that has no
// bound of its own, but for inputs that scores read, which f32 alone bounds; a row has 2^24 keys. An exponential with a shift counts as no less than 1: beside the
// largest it may vanish.
//
//     s                         -70 .. 64            pow(s, 8)      -560 .. 512: leaves f32
//     pow(s / rowmax(abs(s)), 8)         .. 0        relative to the extremum that it is divided by
#include "passes/derive/magnitude.h"

#include "passes/derive/tame.h"
#include "passes/simplify/rules.h"

#include <math.h>

enum { MAX_TERMS = 32, MAX_DEPTH = 64, MAX_STEPS = 1000, MAX_PARTS = 16, MAX_POWER = 8 };
static const double LEAST = -70, SMALLEST = -126, KEYS = 24, SHIFTED = 16, FACTOR = 120,
                    BEYOND = 1e6;

typedef struct Walk {
    const RowProgram *row;
    Arena *scratch;
    const Ex **reduced; // what each reduction reduces, simplified
    NfMotion *motion;   // of extrema
    ExMemo known;       // Magnitude * by expression
    RowBounds bounds;
    bool tight; // exponents with a shift count as what they are
} Walk;

static Walk walk_new(const RowProgram *row) {
    Arena *scratch = arena_new();
    int n = row->reduces.n;
    Walk w = {.row = row, .scratch = scratch, .bounds = row_bounds(scratch, row)};
    w.reduced = ARENA_ARRAY(scratch, const Ex *, n + 1);
    w.motion = ARENA_ARRAY(scratch, NfMotion, n + 1);
    for (int k = 0; k < n; k++) {
        const RowReduce *r = &row->reduces.data[k];
        w.reduced[k] = simp_open(row->pool, r->f);
        w.motion[k] = r->op == EX_ROWMAX   ? NF_RISING
                      : r->op == EX_ROWMIN ? NF_FALLING
                                           : NF_SETTLING;
    }
    return w;
}

static Magnitude magnitude(Walk *w, const Ex *e);

static Magnitude limited(double least, double most) {
    return (Magnitude){fmin(fmax(least, -BEYOND), BEYOND), fmin(fmax(most, -BEYOND), BEYOND)};
}

static Magnitude power(Magnitude m, double n) {
    return n < 0 ? limited(m.most * n, m.least * n) : limited(m.least * n, m.most * n);
}

// 0 times what leaves f32 is no number: it counts as that.
static Magnitude product(Magnitude a, Magnitude b) {
    if (a.least > a.most) return b;
    if (b.least > b.most) return a;
    return limited(a.least + b.least, a.most + b.most);
}

// What has no form of its own here: by intervals. What belongs to the row is taken as it is.
static Magnitude of_leaf(Walk *w, const Ex *e) {
    return limited(row_has_element(e) ? LEAST : 0, log2(row_bounds_most(w->bounds, e)));
}

static Magnitude of_symbol(Walk *w, const Ex *e) {
    if (e->sym == SYM_S) return magnitude(w, w->row->modified);
    if (e->sym == SYM_SHIFT) return limited(0, SHIFTED);
    if (e->sym != SYM_R) return of_leaf(w, e);
    const RowReduce *r = &w->row->reduces.data[e->index];
    Magnitude m = magnitude(w, w->reduced[e->index]);
    return limited(m.least, m.most + (r->op == EX_ROWSUM ? KEYS : 0));
}

static bool is_sum_of_positive(const Walk *w, const Ex *e) {
    return e->op == EX_ADD && row_bounds_least(w->bounds, e->args[0]) >= 0 &&
           row_bounds_least(w->bounds, e->args[1]) >= 0;
}

static Magnitude either(Walk *w, const Ex *e, int first) {
    Magnitude a = magnitude(w, e->args[first]), b = magnitude(w, e->args[first + 1]);
    bool sum = e->op == EX_ADD || e->op == EX_SUB, cancels = sum && !is_sum_of_positive(w, e);
    double least = fmin(a.least, b.least), most = fmax(a.most, b.most) + sum;
    const Ex *right = e->args[first + 1];
    if (sum && !cancels) least = fmax(least, log2(row_bounds_least(w->bounds, e)));
    if (e->op == EX_MAX && right->op == EX_CONST && right->f > 0) least = b.least;
    return limited(cancels ? fmin(least, LEAST) : least,
                   fmin(most, log2(row_bounds_most(w->bounds, e))));
}

static NfRow nf_row(const Walk *w) {
    return (NfRow){.motion = w->motion, .reduced = w->reduced, .program = w->row};
}

// An extremum in the exponent is a shift as well, where it bounds it.
static bool is_shifted(Walk *w, const Ex *e) {
    NfRow row = nf_row(w);
    ExPool *p = w->row->pool;
    return ex_uses(e, SYM_SHIFT, -1) || (e->op != EX_SIGMOID && ex_uses(e, SYM_R, -1) &&
                                         nf_bounded(p, e->args[0], ex_f32(p, 0), &row));
}

static double shifted_most(Walk *w, const Ex *e) {
    NfRow row = nf_row(w);
    if (!w->tight) return SHIFTED;
    return nf_excess(w->row->pool, e->args[0], &row) * (e->op == EX_EXP ? 1 / log(2) : 1);
}

static Magnitude exponential(Walk *w, const Ex *e) {
    if (row_has_element(e) && is_shifted(w, e)) return limited(0, shifted_most(w, e));
    if (!row_has_element(e) && !w->tight) return limited(0, SHIFTED);
    return limited(SMALLEST, of_leaf(w, e).most);
}

// a / (a + b) of what is not negative.
static bool is_share(const Walk *w, const Ex *a, const Ex *b) {
    if (b->op != EX_ADD || (b->args[0] != a && b->args[1] != a)) return false;
    return row_not_negative(w->row, b->args[0]) && row_not_negative(w->row, b->args[1]);
}

static Magnitude quotient(Walk *w, const Ex *a, const Ex *b) {
    Magnitude m = product(magnitude(w, a), power(magnitude(w, b), -1));
    return w->tight && is_share(w, a, b) ? limited(m.least, fmin(m.most, 0)) : m;
}

static Magnitude of_node(Walk *w, const Ex *e) {
    static const Magnitude zero = {BEYOND, -BEYOND};
    const Ex *a = e->nargs ? e->args[0] : NULL, *b = e->nargs > 1 ? e->args[1] : NULL;
    switch ((int)e->op) {
    case EX_CONST: return e->f == 0 ? zero : limited(log2(fabs(e->f)), log2(fabs(e->f)));
    case EX_SYM: return of_symbol(w, e);
    case EX_MUL: return product(magnitude(w, a), magnitude(w, b));
    case EX_DIV: return quotient(w, a, b);
    case EX_RCP: return power(magnitude(w, a), -1);
    case EX_NEG:
    case EX_ABS:
    case EX_ROUNDED: return magnitude(w, a);
    case EX_SQRT: return power(magnitude(w, a), 0.5);
    case EX_RSQRT: return power(magnitude(w, a), -0.5);
    case EX_POW: return b->op == EX_CONST ? power(magnitude(w, a), b->f) : of_leaf(w, e);
    case EX_ADD:
    case EX_SUB:
    case EX_MIN:
    case EX_MAX: return either(w, e, 0);
    case EX_SELECT: return either(w, e, 1);
    case EX_EXP:
    case EX_EXP2:
    case EX_SIGMOID: return exponential(w, e);
    default: return of_leaf(w, e);
    }
}

static Magnitude magnitude(Walk *w, const Ex *e) {
    const Ex **order;
    int n = ex_order_beyond(w->scratch, &w->known, e, &order);
    for (int i = 0; i < n; i++) {
        if (order[i]->type != EX_F32) continue;
        Magnitude *m = ARENA_NEW(w->scratch, Magnitude);
        *m = of_node(w, order[i]);
        ex_memo_put(w->scratch, &w->known, order[i], m);
    }
    return *(const Magnitude *)ex_memo_get(&w->known, e);
}

Magnitude row_magnitude(const RowProgram *row, const Ex *e) {
    Walk w = walk_new(row);
    Magnitude m = magnitude(&w, e);
    arena_free(w.scratch);
    return m;
}

// ---- relative to what it is divided by

typedef struct Product {
    Walk *w;
    struct {
        const Ex *e;
        double power, size; // size: of what was added up
    } term[MAX_TERMS];
    int n;
    double constant;
    int steps; // a shared expression is gone through as a tree
    bool full;
} Product;

static void add_term(Product *p, const Ex *e, double n) {
    for (int i = 0; i < p->n; i++)
        if (p->term[i].e == e) {
            p->term[i].power += n;
            p->term[i].size += fabs(n);
            return;
        }
    p->full |= p->n == MAX_TERMS;
    if (p->full) return;
    p->term[p->n].e = e;
    p->term[p->n].power = n;
    p->term[p->n++].size = fabs(n);
}

static void gather(Product *p, const Ex *e, double n, int depth);

// What a row scalar is no smaller than, for each key: an extremum of what is not negative; NULL where
// it is not known.
static const Ex *bound_of(const Product *p, const Ex *e) {
    if (e->op == EX_SYM && e->sym == SYM_R) {
        const Ex *f = p->w->reduced[e->index];
        if (p->w->motion[e->index] == NF_FALLING) return NULL;
        return row_not_negative(p->w->row, f) ? f : NULL;
    }
    if (e->op == EX_SELECT && ex_is_f32(e->args[1], 1))
        return bound_of(p, e->args[2]); // where it is not 0
    if (e->op != EX_MAX) return NULL;
    const Ex *a = bound_of(p, e->args[0]);
    return a ? a : bound_of(p, e->args[1]);
}

static void gather_term(Product *p, const Ex *e, double n, int depth) {
    const Ex *bound = n < 0 && !row_has_element(e) ? bound_of(p, e) : NULL;
    if (bound)
        gather(p, bound, n, depth);
    else
        add_term(p, e, n);
}

static void gather(Product *p, const Ex *e, double n, int depth) {
    const Ex *a = e->nargs ? e->args[0] : NULL, *b = e->nargs > 1 ? e->args[1] : NULL;
    p->full |= ++depth > MAX_DEPTH || ++p->steps > MAX_STEPS;
    if (p->full) return;
    switch ((int)e->op) {
    case EX_CONST: p->constant += e->f == 0 ? 0 : n * log2(fabs(e->f)); break;
    case EX_MUL:
    case EX_DIV:
        gather(p, a, n, depth);
        gather(p, b, e->op == EX_DIV ? -n : n, depth);
        break;
    case EX_RCP: gather(p, a, -n, depth); break;
    case EX_NEG:
    case EX_ABS:
    case EX_ROUNDED: gather(p, a, n, depth); break;
    case EX_SQRT: gather(p, a, n * 0.5, depth); break;
    case EX_RSQRT: gather(p, a, n * -0.5, depth); break;
    case EX_POW:
        if (b->op == EX_CONST)
            gather(p, a, n * b->f, depth);
        else
            add_term(p, e, n);
        break;
    default: gather_term(p, e, n, depth);
    }
}

static double relative(Walk *w, const Ex *e) {
    Product p = {.w = w};
    gather(&p, e, 1, 0);
    double most = p.full ? BEYOND : p.constant;
    for (int i = 0; i < p.n && !p.full; i++)
        if (fabs(p.term[i].power) > 1e-5 * p.term[i].size)
            most += power(magnitude(w, p.term[i].e), p.term[i].power).most;
    return most;
}

double row_relative(const RowProgram *row, const Ex *e) {
    Walk w = walk_new(row);
    double most = relative(&w, e);
    arena_free(w.scratch);
    return most;
}

double row_tight(const RowProgram *row, const Ex *e) {
    Walk w = walk_new(row);
    w.tight = true;
    double most = fmin(magnitude(&w, e).most, relative(&w, e));
    arena_free(w.scratch);
    return most;
}

// ---- factors that leave f32 as one number

typedef struct Factors {
    Walk *w;
    const Ex *product, *exponent; // of all: product * 2^exponent; NULL: none yet
    int parts;                    // taken apart; beyond MAX_PARTS as they are
} Factors;

static const Ex *clamped(ExPool *p, const Ex *e) {
    e = ex_2(p, EX_MAX, e, ex_f32(p, -(float)FACTOR));
    return ex_2(p, EX_MIN, e, ex_f32(p, (float)FACTOR));
}

// A part e^n as a number around 1 and a power of two, which stays in f32 where exp2 is an approximation.
static void take_part(Factors *f, const Ex *e, float n, bool over) {
    ExPool *p = f->w->row->pool;
    const Ex *bits = clamped(p, ex_1(p, EX_FLOOR, ex_1(p, EX_LOG2, ex_1(p, EX_ABS, e))));
    const Ex *part = ex_2(p, EX_MUL, e, ex_1(p, EX_EXP2, ex_1(p, EX_NEG, bits)));
    if (n != 1) {
        part = ex_2(p, EX_POW, part, ex_f32(p, n));
        bits = ex_2(p, EX_MUL, bits, ex_f32(p, n));
    }
    if (over) part = ex_1(p, EX_RCP, part), bits = ex_1(p, EX_NEG, bits);
    f->product = f->product ? ex_2(p, EX_MUL, f->product, part) : part;
    f->exponent = f->exponent ? ex_2(p, EX_ADD, f->exponent, bits) : bits;
}

static void take_parts(Factors *f, const Ex *e, bool over, int depth) {
    const Ex *a = e->nargs ? e->args[0] : NULL, *b = e->nargs > 1 ? e->args[1] : NULL;
    Magnitude m = magnitude(f->w, e);
    bool fits = m.least >= -FACTOR && m.most <= FACTOR, div = e->op == EX_DIV,
         parts = e->op == EX_MUL || div || e->op == EX_RCP;
    if (++f->parts > MAX_PARTS || depth > MAX_DEPTH || fits) {
        take_part(f, e, 1, over);
    } else if (parts) {
        take_parts(f, a, over != (e->op == EX_RCP), depth + 1);
        if (b) take_parts(f, b, over != div, depth + 1);
    } else if (e->op == EX_POW && b->op == EX_CONST && fabsf(b->f) <= MAX_POWER) {
        take_part(f, a, b->f, over);
    } else {
        take_part(f, e, 1, over);
    }
}

// Both go the same way, so that what is between them is between the first number and the last.
int row_factors(const RowProgram *row, const Ex *e, const Ex *out[MAX_FACTORS]) {
    ExPool *p = row->pool;
    Walk w = walk_new(row);
    Factors f = {.w = &w};
    Magnitude m = magnitude(&w, e);
    int n = 1;
    out[0] = e;
    if (m.least < -FACTOR || m.most > FACTOR) {
        take_parts(&f, e, false, 0);
        const Ex *half = ex_1(p, EX_FLOOR, ex_2(p, EX_MUL, f.exponent, ex_f32(p, 0.5f)));
        half = clamped(p, half); // of three parts it may be more, and is times 0
        out[0] = ex_2(p, EX_MUL, f.product, ex_1(p, EX_EXP2, half));
        out[n++] = ex_1(p, EX_EXP2, clamped(p, ex_2(p, EX_SUB, f.exponent, half)));
    }
    arena_free(w.scratch);
    return n;
}
