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

#define MOST 0x1.fffffep127

static const double INDEX = 1 << 24;
static const BoundsRule rule = {{-MOST, MOST}, {-INFINITY, INFINITY}};

static Bounds of_size(int index) {
    if (index == SIZE_Q_OFFSET) return bounds_within(INDEX);
    return (Bounds){index < SIZE_FREE, INDEX}; // there is a key where there is a score
}

Bounds limits_of_index(const Ex *e) {
    switch (e->op == EX_SYM ? (int)e->sym : -1) {
    case SYM_B:
    case SYM_H:
    case SYM_KV_IDX: return (Bounds){0, INDEX};
    case SYM_Q_IDX:
    case SYM_POS: return bounds_within(2 * INDEX);
    case SYM_SIZE: return of_size(e->index);
    default: return bounds_within(0x1p31);
    }
}

static Bounds of_leaf(const Ex *e, const LimitFacts *facts) {
    if (e->op == EX_CONST && e->type == EX_F32 && !isfinite(e->f)) return (Bounds){0, 0};
    if (e->op == EX_CONST) return bounds_of_constant(e);
    if (e->type == EX_BOOL) return (Bounds){0, 1};
    if (e->op == EX_SYM && e->sym == SYM_PARAM && facts->param) return facts->param[e->index];
    if (e->type == EX_I32) return limits_of_index(e);
    switch (e->op == EX_SYM ? (int)e->sym : -1) {
    case SYM_DOT: return bounds_within(LIMITS_DOT);
    case SYM_SQQ:
    case SYM_SQK: return (Bounds){0, LIMITS_DOT};
    default: break;
    }
    bool input = e->op == EX_LOAD || e->sym == SYM_SCALAR;
    return input ? bounds_within(MOST) : bounds_unknown;
}

// In a choice an infinity that is written is not a number.
static int written_infinity(const Ex *e) {
    for (int k = 1; k < 3 && e->op == EX_SELECT; k++)
        if (ex_is_f32(e->args[k], INFINITY)) return k;
    return 0;
}

// The distance of a query and a key, where the mask keeps keys from lying behind.
Bounds limits_of_distance(const Ex *e, Bounds l, const LimitFacts *facts) {
    if (!facts->causal || e->op != EX_SUB) return l;
    if (ex_is_sym(e->args[0], SYM_Q_IDX, -1) && ex_is_sym(e->args[1], SYM_KV_IDX, -1)) l.lo = 0;
    if (ex_is_sym(e->args[0], SYM_KV_IDX, -1) && ex_is_sym(e->args[1], SYM_Q_IDX, -1)) l.hi = 0;
    return l;
}

Bounds limits_of_node(const Ex *e, const Bounds *a, const LimitFacts *facts) {
    bool leaf = !e->nargs || e->op == EX_LOAD;
    int infinity = leaf ? 0 : written_infinity(e);
    Bounds l = leaf       ? of_leaf(e, facts)
               : infinity ? a[3 - infinity]
                          : limits_of_distance(e, bounds_of_operation(e, a, &rule), facts);
    if (l.lo <= -LIMITS_F32 && e->type == EX_F32) l.lo = -INFINITY;
    if (l.hi >= LIMITS_F32 && e->type == EX_F32) l.hi = INFINITY;
    return l;
}

enum { CONDITIONS_DEEP = 64 };

// kv_idx <= q_idx or kv_idx < q_idx, among what the mask asks.
static bool is_causal(const Ex *mask, int depth) {
    if (mask->op == EX_AND && depth < CONDITIONS_DEEP)
        return is_causal(mask->args[0], depth + 1) || is_causal(mask->args[1], depth + 1);
    bool orders = mask->op == EX_LE || mask->op == EX_LT;
    return orders && ex_is_sym(mask->args[0], SYM_KV_IDX, -1) &&
           ex_is_sym(mask->args[1], SYM_Q_IDX, -1);
}

LimitFacts row_facts(const RowProgram *row) {
    return (LimitFacts){.causal = is_causal(row->mask, 0)};
}

static const double LARGE = 0x1p100;

// A sum of two numbers that are large, or a product of one that may have become an infinity: computed in another order
// it may be finite, or the other way round.
static bool depends_on_order(const Ex *e, const Bounds *a) {
    if (e->type != EX_F32) return false;
    switch ((int)e->op) {
    case EX_ADD:
    case EX_SUB: return bounds_size(a[0]) > LARGE && bounds_size(a[1]) > LARGE;
    case EX_MUL:
    case EX_DIV: return isinf(bounds_size(a[0])) || isinf(bounds_size(a[1]));
    default: return false;
    }
}

// *fragile: something in e depends on the order of operations.
static Bounds limits_of(const RowProgram *row, const Ex *e, bool *fragile) {
    Arena *scratch = arena_new();
    const Ex **order;
    int n = ex_order(scratch, &e, 1, &order);
    Bounds *of = ARENA_ARRAY(scratch, Bounds, n);
    LimitFacts facts = row_facts(row);
    ExMemo at = {0};
    *fragile = false;
    for (int i = 0; i < n; i++) {
        Bounds a[EX_MAX_RANK];
        for (int k = 0; k < order[i]->nargs; k++)
            a[k] = *(const Bounds *)ex_memo_get(&at, order[i]->args[k]);
        of[i] = limits_of_node(order[i], a, &facts);
        *fragile |= depends_on_order(order[i], a);
        ex_memo_put(scratch, &at, order[i], &of[i]);
    }
    Bounds all = of[n - 1];
    arena_free(scratch);
    return all;
}

bool row_overflows(const RowProgram *row) {
    bool fragile;
    Bounds score = limits_of(row, row->modified, &fragile);
    return fragile && score.lo <= -LIMITS_F32;
}

bool row_is_far(const RowProgram *row, const Ex *e) {
    bool fragile;
    return bounds_size(limits_of(row, e, &fragile)) > LARGE;
}
