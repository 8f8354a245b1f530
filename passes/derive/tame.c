// tame.c: which numbers of a row are small, as far as formulas tell.
//
// In: a row program and an expression over its scores. Out: true if its value is within TAME when a
// dot product, a squared norm, a position and a size count as 1; every attention assumes that these
// are moderate. Constants count as they are, and an input as the range of its type. Functions that grow
// faster than their argument are tested with larger dot products: a power with LARGE ones, an
// exponential with any.
//
//     dot * 0.125 + exp2(-8 (h + 1) / H) * (kv_idx - q_idx)     tame
//     50 * tanh(dot / 50)                                       tame
//     mask ? dot : -1e30;   dot + bias[j];   exp(dot)           not
//
// An addend that is the same for all keys of a row does not count: it cancels, or masks every key.
// Intervals are computed once for each node. -inf is not a number here but a masked key.
#include "passes/derive/tame.h"

#include <math.h>

static const double TAME = 0x1p12, SMALL = 0x1p9, LARGE = 0x1p6, MOST = 0x1p31, LARGEST = 0x1p64;

typedef struct Bounds {
    double lo, hi;
} Bounds;

typedef struct Tame {
    const RowProgram *row;
    Arena *scratch;
    ExMemo known;         // bounds of nodes
    ExMemo sizes;         // what elements add to them
    double dot;           // a dot product and a squared norm are within this
    struct Tame *any_dot; // the same where it is any number; NULL: this is it
    double input;         // a float input is within this
} Tame;

static const Bounds anything = {-INFINITY, INFINITY}, sign = {-1, 1}, share = {0, 1};

static Bounds bounds_of(Tame *t, const Ex *e);

static Bounds join(Bounds a, Bounds b) { return (Bounds){fmin(a.lo, b.lo), fmax(a.hi, b.hi)}; }
static Bounds within(double size) { return (Bounds){-size, size}; }
static double size_of(Bounds b) { return fmax(fabs(b.lo), fabs(b.hi)); }

static double product(double a, double b) { return a == 0 || b == 0 ? 0 : a * b; }

static Bounds times(Bounds a, Bounds b) {
    double v[] = {product(a.lo, b.lo), product(a.lo, b.hi), product(a.hi, b.lo),
                  product(a.hi, b.hi)};
    return (Bounds){fmin(fmin(v[0], v[1]), fmin(v[2], v[3])),
                    fmax(fmax(v[0], v[1]), fmax(v[2], v[3]))};
}

static Bounds over(Bounds a, Bounds b) {
    if (b.lo <= 0 && b.hi >= 0) return anything;
    return times(a, (Bounds){1 / b.hi, 1 / b.lo});
}

static Bounds sum(Bounds a, Bounds b) { return (Bounds){a.lo + b.lo, a.hi + b.hi}; }
static Bounds minus(Bounds a) { return (Bounds){-a.hi, -a.lo}; }

// ---- leaves

static Bounds of_input(const Tame *t, int input) {
    switch (t->row->inputs.data[input].dtype) {
    case DT_F16: return within(65504);
    case DT_E4M3: return within(448);
    case DT_E5M2: return within(57344);
    case DT_I8: return within(128);
    case DT_I32: return within(MOST);
    case DT_BOOL: return share;
    case DT_F32:
    case DT_BF16:
    case DT_COUNT: break;
    }
    return within(t->input);
}

static Bounds of_symbol(Tame *t, const Ex *e) {
    switch ((int)e->sym) {
    case SYM_S: return bounds_of(t, t->row->modified);
    case SYM_R: {
        const RowReduce *r = &t->row->reduces.data[e->index];
        return r->op == EX_ROWSUM ? anything : bounds_of(t, r->f);
    }
    case SYM_SCALAR: return of_input(t, e->index);
    case SYM_DOT: return within(t->dot);
    case SYM_Q_IDX: return sign;
    case SYM_SIZE: return e->index == SIZE_Q_OFFSET ? sign : (Bounds){1, 1};
    case SYM_SQQ:
    case SYM_SQK: return (Bounds){0, t->dot};
    case SYM_KV_IDX:
    case SYM_B:
    case SYM_H: return share;
    default: return anything;
    }
}

// ---- functions

static Bounds power(Bounds x, Bounds n) {
    if (n.lo != n.hi || x.lo < 0 || (n.lo < 0 && x.lo <= 0)) return anything;
    double a = pow(x.lo, n.lo), b = pow(x.hi, n.lo);
    return (Bounds){fmin(a, b), fmax(a, b)};
}

static Bounds logarithm(Bounds x, double per_octave) { // of an f32, which is 2^-149 at least
    double least = x.lo > 0 ? log2(x.lo) : -150, most = x.hi < 0x1p128 ? log2(x.hi) : 128;
    return (Bounds){least * per_octave, (x.hi > 0 ? most : -150) * per_octave};
}

static Bounds root(Bounds x) { return (Bounds){sqrt(fmax(x.lo, 0)), sqrt(fmax(x.hi, 0))}; }

static Bounds function(const Ex *e, const Bounds *a) {
    switch ((int)e->op) {
    case EX_ABS: return (Bounds){a->lo > 0 ? a->lo : a->hi < 0 ? -a->hi : 0, size_of(*a)};
    case EX_FLOOR: return (Bounds){a->lo - 1, a->hi};
    case EX_EXP: return (Bounds){exp(a->lo), exp(a->hi)};
    case EX_EXP2: return (Bounds){exp2(a->lo), exp2(a->hi)};
    case EX_LOG: return logarithm(*a, log(2));
    case EX_LOG2: return logarithm(*a, 1);
    case EX_SQRT: return root(*a);
    case EX_RSQRT: return over((Bounds){1, 1}, root(*a));
    case EX_RCP: return over((Bounds){1, 1}, *a);
    case EX_SIGMOID: return share;
    case EX_TANH:
    case EX_ERF:
    case EX_SIN:
    case EX_COS: return sign;
    case EX_POW: return power(a[0], a[1]);
    default: return anything;
    }
}

// What i32 and f32 have in common.
static Bounds arithmetic(const Ex *e, const Bounds *a) {
    bool whole = e->type == EX_I32;
    switch ((int)e->op) {
    case EX_ADD: return sum(a[0], a[1]);
    case EX_SUB: return sum(a[0], minus(a[1]));
    case EX_MUL: {
        Bounds b = times(a[0], a[1]);
        if (e->args[0] == e->args[1]) b.lo = fmax(b.lo, 0);
        return b;
    }
    case EX_DIV: return whole ? within(size_of(a[0])) : over(a[0], a[1]);
    case EX_MOD: return within(size_of(a[1]));
    case EX_NEG: return minus(a[0]);
    case EX_FMA: return sum(times(a[0], a[1]), a[2]);
    case EX_ROUNDED: return a[0];
    case EX_MIN: return (Bounds){fmin(a[0].lo, a[1].lo), fmin(a[0].hi, a[1].hi)};
    case EX_MAX: return (Bounds){fmax(a[0].lo, a[1].lo), fmax(a[0].hi, a[1].hi)};
    default: return whole ? within(MOST) : function(e, a);
    }
}

// An exponential that grows with dot products is as good as unbounded.
static Bounds exponential(Tame *t, const Ex *e, const Bounds *a) {
    Bounds b = function(e, a);
    if (t->any_dot && bounds_of(t->any_dot, e->args[0]).hi == INFINITY) b.hi = INFINITY;
    return b;
}

static Bounds of_node(Tame *t, const Ex *e) {
    Bounds a[3] = {share, share, share};
    if (e->type == EX_BOOL) return share;
    if (e->op == EX_CONST) return e->type == EX_F32 ? (Bounds){e->f, e->f} : (Bounds){e->i, e->i};
    if (e->op == EX_SYM) return of_symbol(t, e);
    if (e->op == EX_LOAD) return of_input(t, e->input);
    for (int i = 0; i < e->nargs && i < 3; i++) a[i] = bounds_of(t, e->args[i]);
    if (e->op == EX_CONV)
        return e->type == EX_I32 && e->args[0]->type == EX_F32 ? within(MOST) : a[0];
    if (e->op == EX_EXP || e->op == EX_EXP2) return exponential(t, e, a);
    if (e->op != EX_SELECT) return arithmetic(e, a);
    if (ex_is_f32(e->args[1], -INFINITY)) return a[2];
    return ex_is_f32(e->args[2], -INFINITY) ? a[1] : join(a[1], a[2]);
}

static Bounds bounds_of(Tame *t, const Ex *e) {
    const void *known = NULL;
    const Ex **order;
    if (ex_memo_has(&t->known, e, &known)) return *(const Bounds *)known;
    int n = ex_order_beyond(t->scratch, &t->known, e, &order);
    for (int i = 0; i < n; i++) {
        Bounds *b = ARENA_NEW(t->scratch, Bounds);
        *b = of_node(t, order[i]);
        if (isnan(b->lo) || isnan(b->hi)) *b = anything;
        ex_memo_put(t->scratch, &t->known, order[i], b);
    }
    ex_memo_has(&t->known, e, &known);
    return *(const Bounds *)known;
}

// ---- what elements add to an exponent

bool row_has_element(const Ex *e) { return ex_uses(e, SYM_S, 0) || ex_uses(e, SYM_KV_IDX, 0); }

static double element_size(Tame *t, const Ex *e, int depth);

static double size_by_op(Tame *t, const Ex *e, int depth) {
    const Ex *a = e->nargs ? e->args[0] : NULL, *b = e->nargs > 1 ? e->args[1] : NULL;
    if (!row_has_element(e)) return 0;
    if (++depth > ROW_MAX_DEPTH) return INFINITY;
    switch ((int)e->op) {
    case EX_ADD:
    case EX_SUB:
    case EX_MIN:
    case EX_MAX: return element_size(t, a, depth) + element_size(t, b, depth);
    case EX_FMA:
        if (row_has_element(b)) break;
        return product(element_size(t, a, depth), size_of(bounds_of(t, b))) +
               element_size(t, e->args[2], depth);
    case EX_NEG:
    case EX_ROUNDED: return element_size(t, a, depth);
    case EX_MUL:
        if (!row_has_element(b))
            return product(element_size(t, a, depth), size_of(bounds_of(t, b)));
        if (!row_has_element(a))
            return product(element_size(t, b, depth), size_of(bounds_of(t, a)));
        break;
    case EX_DIV:
        if (row_has_element(b)) break;
        return product(element_size(t, a, depth), size_of(over((Bounds){1, 1}, bounds_of(t, b))));
    case EX_SELECT:
        return fmax(ex_is_f32(b, -INFINITY) ? 0 : element_size(t, b, depth),
                    ex_is_f32(e->args[2], -INFINITY) ? 0 : element_size(t, e->args[2], depth));
    default: break;
    }
    return size_of(bounds_of(t, e));
}

// Once for each node, however often it is used.
static double element_size(Tame *t, const Ex *e, int depth) {
    const void *known;
    if (ex_memo_has(&t->sizes, e, &known)) return *(const double *)known;
    double *size = ARENA_NEW(t->scratch, double);
    *size = size_by_op(t, e, depth);
    ex_memo_put(t->scratch, &t->sizes, e, size);
    return *size;
}

static double size_with(const RowProgram *row, Arena *scratch, const Ex *e, double dot) {
    Tame any = {.row = row, .scratch = scratch, .dot = INFINITY, .input = INFINITY},
         t = {.row = row, .scratch = scratch, .dot = dot, .any_dot = &any, .input = INFINITY};
    return element_size(&t, e, 0);
}

bool row_tame(const RowProgram *row, const Ex *e) {
    Arena *scratch = arena_new();
    bool tame =
        size_with(row, scratch, e, 1) <= TAME && size_with(row, scratch, e, LARGE) <= TAME * LARGE;
    arena_free(scratch);
    return tame;
}

bool row_small(const RowProgram *row, const Ex *e) {
    Arena *scratch = arena_new();
    bool small = size_with(row, scratch, e, LARGE) <= SMALL;
    arena_free(scratch);
    return small;
}

static Bounds bounds_within(const RowProgram *row, const Ex *e, double size) {
    Tame t = {.row = row, .scratch = arena_new(), .dot = size, .input = size};
    Bounds b = bounds_of(&t, e);
    arena_free(t.scratch);
    return b;
}

bool row_below(const RowProgram *row, const Ex *e, double most) {
    return bounds_within(row, e, INFINITY).hi <= most;
}

bool row_not_negative(const RowProgram *row, const Ex *e) {
    return bounds_within(row, e, INFINITY).lo >= 0;
}

double row_most(const RowProgram *row, const Ex *e) {
    return size_of(bounds_within(row, e, LARGEST));
}
