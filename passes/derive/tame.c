// tame.c: which numbers of a row are small, as far as formulas tell.
//
// In: a row program and an expression over its scores. Out: true if its value is within TAME when a
// dot product, a squared norm, a position and a size count as 1, and within FAR when positions and sizes are as
// large as launches allow. Constants count as they are, and an input as the range of its type. Functions that
// grow faster than their argument are tested with larger dot products: a power with LARGE ones, an
// exponential with any.
//
//     dot * 0.125 + exp2(-8 (h + 1) / H) * (kv_idx - q_idx)     tame, but not small: no position counts as 1 there
//     50 * tanh(dot / 50)                                       tame
//     mask ? dot : -1e30;   dot + bias[j];   exp(dot)           not
//
// An addend that is the same for all keys of a row does not count: it cancels, or masks every key.
// Intervals are computed once for each node. -inf is not a number here but a masked key.
#include "passes/derive/tame.h"

#include "passes/derive/limits.h"

#include <float.h>
#include <math.h>

static const double TAME = 0x1p12, SMALL = 0x1p9, LARGE = 0x1p6, LARGEST = 0x1p64;
enum { LEAST_COLUMNS = 64 }; // of a squared norm; each adds up to LARGE
// What its product with log2(e) rounds, in an exponent, is a factor below 2^12 that a division cancels.
static const double FAR = 0x1p27;

enum { MOST_GIVEN = 4, MOST_NESTED = 3, MOST_IN_ARMS = 1000 }; // nodes

typedef struct Given { // numbers that are within bounds in an arm of a selection, by its condition
    const Ex *e[MOST_GIVEN];
    Bounds within[MOST_GIVEN];
    int n, nested;
} Given;

typedef struct Tame {
    const RowProgram *row;
    Arena *scratch;
    ExMemo known;         // bounds of nodes
    ExMemo sizes;         // what elements add to them
    double dot, norm;     // a dot product is within this, and a squared norm
    struct Tame *any_dot; // the same where it is any number; NULL: this is it
    double input;         // a float input is within this, unless scores read it; 0: none counts
    LimitFacts facts;     // of the mask
    bool moderate;        // positions and sizes count as 1, not as what launches allow
    Given given;          // in this arm
    int *in_arms;         // nodes looked at under conditions; beyond MOST_IN_ARMS none hold
} Tame;

static const Bounds sign = {-1, 1}, share = {0, 1};
static const BoundsRule rule = {{-INFINITY, INFINITY}, {-150, 128}}; // an f32 is 2^-149 at least

static Bounds bounds_of(Tame *t, const Ex *e);

// ---- leaves

static bool is_input(void *ctx, const Ex *e) {
    const int *input = ctx;
    return (e->op == EX_LOAD && e->input == *input) ||
           (e->op == EX_SYM && e->sym == SYM_SCALAR && e->index == *input);
}

// What scores read may be any number: masks are.
static Bounds of_float(const Tame *t, int input) {
    bool counts = t->input > 0, of_scores = ex_any(t->row->modified, is_input, &input);
    return bounds_within(counts && of_scores ? fmax(t->input, (double)FLT_MAX) : t->input);
}

static Bounds of_input(const Tame *t, int input) {
    switch (t->row->inputs.data[input].dtype) {
    case DT_F16: return bounds_within(65504);
    case DT_I32: return bounds_within(0x1p31);
    case DT_BOOL: return share;
    case DT_F32:
    case DT_BF16:
    case DT_E4M3:
    case DT_E5M2:
    case DT_I8:
    case DT_COUNT: break;
    }
    return of_float(t, input);
}

// Of a symbol that is an i32. Positions that count as 1 are as large as that, but nobody knows where they are.
static Bounds of_index(const Tame *t, const Ex *e) {
    if (!t->moderate) return limits_of_index(e);
    switch ((int)e->sym) {
    case SYM_Q_IDX: return sign;
    case SYM_SIZE: return e->index == SIZE_Q_OFFSET ? sign : (Bounds){1, 1};
    case SYM_KV_IDX:
    case SYM_B:
    case SYM_H: return share;
    default: return bounds_unknown;
    }
}

static Bounds of_symbol(Tame *t, const Ex *e) {
    switch ((int)e->sym) {
    case SYM_S: return bounds_of(t, t->row->modified);
    case SYM_R: {
        const RowReduce *r = &t->row->reduces.data[e->index];
        return r->op == EX_ROWSUM ? bounds_unknown : bounds_of(t, r->f);
    }
    case SYM_SCALAR: return of_input(t, e->index);
    case SYM_DOT: return bounds_within(t->dot);
    case SYM_SQQ:
    case SYM_SQK: return (Bounds){0, t->norm};
    default: return e->type == EX_I32 ? of_index(t, e) : bounds_unknown;
    }
}

// What an extremum cuts off a position depends on where that is, and not on its size alone.
static bool cuts_position(const Tame *t, const Ex *e) {
    bool cuts = e->op == EX_MIN || e->op == EX_MAX || e->op == EX_ABS || e->op == EX_MOD;
    return t->moderate && cuts && (ex_uses(e, SYM_Q_IDX, 0) || ex_uses(e, SYM_KV_IDX, 0));
}

static Bounds both(Bounds a, Bounds b) { return (Bounds){fmax(a.lo, b.lo), fmin(a.hi, b.hi)}; }

static void give(Given *g, const Ex *e, Bounds b) {
    if (e->op == EX_ABS) give(g, e->args[0], bounds_within(b.hi));
    if (g->n == MOST_GIVEN) return;
    g->e[g->n] = e;
    g->within[g->n++] = b;
}

// What a condition says where it is `truth`. A comparison with NaN says nothing of a number.
static void give_condition(Given *g, const Ex *e, bool truth, int depth) {
    const Ex *a = e->nargs ? e->args[0] : NULL, *b = e->nargs > 1 ? e->args[1] : NULL;
    if (depth == MOST_NESTED) return;
    if (e->op == EX_NOT) give_condition(g, a, !truth, depth + 1);
    if (e->op == (truth ? EX_AND : EX_OR)) {
        give_condition(g, a, truth, depth + 1);
        give_condition(g, b, truth, depth + 1);
    }
    if ((e->op != EX_LT && e->op != EX_LE) || a->type != EX_F32) return;
    if (b->op == EX_CONST)
        give(g, a, truth ? (Bounds){-INFINITY, b->f} : (Bounds){b->f, INFINITY});
    else if (a->op == EX_CONST)
        give(g, b, truth ? (Bounds){a->f, INFINITY} : (Bounds){-INFINITY, a->f});
}

static Bounds of_arm(Tame *t, const Ex *e, int arm) {
    Tame in = *t;
    if (e->args[arm]->nargs && *t->in_arms < MOST_IN_ARMS && in.given.nested++ < MOST_NESTED)
        give_condition(&in.given, e->args[0], arm == 1, 0);
    if (in.given.n == t->given.n) return bounds_of(t, e->args[arm]);
    in.known = (ExMemo){0};
    return bounds_of(&in, e->args[arm]);
}

// An exponential that grows with dot products is as good as unbounded.
static Bounds of_operation(Tame *t, const Ex *e) {
    Bounds a[3] = {share, share, share};
    for (int i = 0; i < e->nargs && i < 3; i++)
        a[i] = e->op == EX_SELECT && i ? of_arm(t, e, i) : bounds_of(t, e->args[i]);
    Bounds b = bounds_of_operation(e, a, &rule);
    if (!t->moderate) b = limits_of_distance(e, b, &t->facts);
    if (cuts_position(t, e)) b = bounds_within(fmax(bounds_size(a[0]), bounds_size(a[1])));
    bool power = e->op == EX_EXP || e->op == EX_EXP2;
    if (power && t->any_dot && bounds_of(t->any_dot, e->args[0]).hi == INFINITY) b.hi = INFINITY;
    return b;
}

static Bounds of_node(Tame *t, const Ex *e) {
    if (e->type == EX_BOOL) return share;
    switch ((int)e->op) {
    case EX_CONST: return bounds_of_constant(e);
    case EX_SYM: return of_symbol(t, e);
    case EX_LOAD: return of_input(t, e->input);
    default: return of_operation(t, e);
    }
}

static Bounds bounds_of(Tame *t, const Ex *e) {
    const Bounds *known = ex_memo_get(&t->known, e);
    const Ex **order;
    if (known) return *known;
    int n = ex_order_beyond(t->scratch, &t->known, e, &order);
    if (t->given.n) *t->in_arms += n;
    for (int i = 0; i < n; i++) {
        Bounds *b = ARENA_NEW(t->scratch, Bounds);
        *b = of_node(t, order[i]);
        for (int k = 0; k < t->given.n; k++)
            if (t->given.e[k] == order[i]) *b = both(*b, t->given.within[k]);
        if (isnan(b->lo) || isnan(b->hi)) *b = bounds_unknown;
        ex_memo_put(t->scratch, &t->known, order[i], b);
    }
    return *(const Bounds *)ex_memo_get(&t->known, e);
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
        return bounds_product(element_size(t, a, depth), bounds_size(bounds_of(t, b))) +
               element_size(t, e->args[2], depth);
    case EX_NEG:
    case EX_ROUNDED: return element_size(t, a, depth);
    case EX_MUL:
        if (!row_has_element(b))
            return bounds_product(element_size(t, a, depth), bounds_size(bounds_of(t, b)));
        if (!row_has_element(a))
            return bounds_product(element_size(t, b, depth), bounds_size(bounds_of(t, a)));
        break;
    case EX_DIV:
        if (row_has_element(b)) break;
        return bounds_product(element_size(t, a, depth),
                              bounds_size(bounds_over((Bounds){1, 1}, bounds_of(t, b), &rule)));
    case EX_SELECT:
        return fmax(ex_is_f32(b, -INFINITY) ? 0 : element_size(t, b, depth),
                    ex_is_f32(e->args[2], -INFINITY) ? 0 : element_size(t, e->args[2], depth));
    default: break;
    }
    return bounds_size(bounds_of(t, e));
}

// Once for each node, however often it is used.
static double element_size(Tame *t, const Ex *e, int depth) {
    double *size = ex_memo_get(&t->sizes, e);
    if (size) return *size;
    size = ARENA_NEW(t->scratch, double);
    *size = size_by_op(t, e, depth);
    ex_memo_put(t->scratch, &t->sizes, e, size);
    return *size;
}

typedef enum Counted { AS_ONE, AS_THEY_ARE } Counted;

static double size_with(const RowProgram *row, const Ex *e, double dot, double norm,
                        Counted positions, Counted inputs) {
    int in_arms = 0;
    Tame any = {row,
                arena_new(),
                .in_arms = &in_arms,
                .dot = INFINITY,
                .norm = INFINITY,
                .input = inputs == AS_ONE ? 1 : INFINITY,
                .facts = row_facts(row),
                .moderate = positions == AS_ONE},
         t = any;
    t.dot = dot, t.norm = norm, t.any_dot = &any;
    double size = element_size(&t, e, 0);
    arena_free(any.scratch);
    return size;
}

bool row_tame(const RowProgram *row, const Ex *e) {
    return size_with(row, e, 1, 1, AS_ONE, AS_THEY_ARE) <= TAME &&
           size_with(row, e, LARGE, LARGE, AS_ONE, AS_THEY_ARE) <= TAME * LARGE &&
           size_with(row, e, LARGE, LARGE, AS_THEY_ARE, AS_THEY_ARE) <= FAR;
}

bool row_small(const RowProgram *row, const Ex *e) {
    return size_with(row, e, LARGE, LARGE, AS_THEY_ARE, AS_THEY_ARE) <= SMALL;
}

bool row_dots_small(const RowProgram *row, const Ex *e) {
    double columns = fmax(fmax(row->D, row->Dv), LEAST_COLUMNS);
    return size_with(row, e, LARGE, LARGE * columns, AS_ONE, AS_ONE) <= SMALL;
}

static Tame *tame_new(Arena *scratch, const RowProgram *row, double size) {
    Tame *t = ARENA_NEW(scratch, Tame);
    *t = (Tame){.row = row,
                .scratch = scratch,
                .in_arms = ARENA_NEW(scratch, int),
                .dot = size,
                .norm = size,
                .input = size,
                .facts = row_facts(row)};
    return t;
}

static Bounds where(const RowProgram *row, const Ex *e, double size) {
    Arena *scratch = arena_new();
    Bounds b = bounds_of(tame_new(scratch, row, size), e);
    arena_free(scratch);
    return b;
}

RowBounds row_bounds(Arena *scratch, const RowProgram *row) {
    return (RowBounds){tame_new(scratch, row, INFINITY), tame_new(scratch, row, LARGEST)};
}

static Bounds anew(Tame *t, const Ex *e) {
    *t->in_arms = 0;
    return bounds_of(t, e);
}

double row_bounds_most(RowBounds b, const Ex *e) { return bounds_size(anew(b.largest, e)); }
double row_bounds_least(RowBounds b, const Ex *e) { return anew(b.any, e).lo; }

bool row_within(const RowProgram *row, const Ex *e, double most) {
    return bounds_size(where(row, e, INFINITY)) <= most;
}

bool row_below(const RowProgram *row, const Ex *e, double most) {
    return where(row, e, INFINITY).hi <= most;
}

bool row_not_negative(const RowProgram *row, const Ex *e) {
    return where(row, e, INFINITY).lo >= 0;
}

double row_most(const RowProgram *row, const Ex *e) { return bounds_size(where(row, e, LARGEST)); }
