// interval.c: tests and conversions of positions in the form that costs least per element.
//
// In: a kernel whose masks stand in maps over rows and keys. Out: the same values, with
//
//     N.pos <= q_offset + M.pos && N.pos < Sk            ->  N.pos <= min(q_offset + M.pos, Sk - 1)
//     q_offset + M.pos - N.pos < 1024 && ..              ->  q_offset + M.pos - 1023 <= N.pos && ..
//     f32(N.pos - (q_offset + M.pos))                    ->  f32(N.pos) + f32(-(q_offset + M.pos))
//
// A thread holds many keys of few rows: bounds are computed once per row, then a key costs one
// comparison for each side however many conditions there were. A bound is of terms that cannot leave i32
// together (linear_sign in range.h); and converting an integer, which
// runs at an eighth of the rate of an addition, is done once per key and once per row. Positions
// are below 2^24 (the runtime refuses others), so the converted parts are exact.
#include "passes/mask/interval.h"
#include "passes/mask/mask.h"
#include "passes/tile/rewrite.h"

typedef struct Interval {
    ExPool *x;
    RangeCtx c;
    const TileKernel *k;
    const TileOp *map;
    int key_axis;
    bool last;
} Interval;

typedef struct Conjunction {
    const Ex *low, *high; // of the key's position, inclusive; NULL: no bound
    const Ex *rest;       // what is no bound of it; NULL: nothing
} Conjunction;

// c + sum of coef * term, times `sign`, without term `skip`.
static const Ex *sum_of(Interval *s, const Linear *l, int skip, int64_t sign) {
    const Ex *sum = NULL;
    for (int i = 0; i < l->n; i++) {
        if (i == skip) continue;
        int64_t by = sign * l->term[i].coef;
        const Ex *t = l->term[i].e;
        if (by == -1 && sum) {
            sum = ex_2(s->x, EX_SUB, sum, t);
            continue;
        }
        if (by != 1) t = ex_2(s->x, EX_MUL, t, ex_i32(s->x, (int32_t)by));
        sum = sum ? ex_2(s->x, EX_ADD, sum, t) : t;
    }
    const Ex *c = ex_i32(s->x, (int32_t)(sign * l->c));
    if (!sum) return c;
    return l->c ? ex_2(s->x, EX_ADD, sum, c) : sum;
}

static bool uses_key(const Interval *s, const Ex *e) {
    return pass_expr_axes(s->k, s->map, e) >> s->key_axis & 1;
}

// The term that is the key's position; -1 where there is none or another term depends on it.
static int key_term(const Interval *s, const Linear *l) {
    int found = -1;
    for (int i = 0; i < l->n; i++) {
        const Ex *e = l->term[i].e;
        if (e->op == EX_SYM && e->sym == SYM_POS && e->index == s->key_axis)
            found = i;
        else if (uses_key(s, e))
            return -1;
    }
    return found;
}

static void meet(Interval *s, const Ex **bound, ExOp op, const Ex *e) {
    *bound = *bound && *bound != e ? ex_2(s->x, op, *bound, e) : e;
}

// One part of a conjunction: a bound of the key's position where it is one, which cannot wrap
// (mask_atom), and nothing was assumed so far (RangeCtx.guard) to say so.
static void add_part(Interval *s, Conjunction *j, const Ex *e) {
    Linear d;
    bool equal = false, differs = false;
    bool atom = mask_atom(&s->c, e, true, &d, &equal, &differs) && d.ok && !equal && !differs &&
                !s->c.guard;
    int key = atom ? key_term(s, &d) : -1;
    int64_t coef = key < 0 ? 0 : d.term[key].coef;
    if (coef == 1)
        meet(s, &j->high, EX_MIN, sum_of(s, &d, key, -1));
    else if (coef == -1)
        meet(s, &j->low, EX_MAX, sum_of(s, &d, key, 1));
    else
        j->rest = j->rest ? ex_2(s->x, EX_AND, j->rest, e) : e;
}

static void collect(Interval *s, Conjunction *j, const Ex *e) {
    if (e->op != EX_AND) {
        add_part(s, j, e);
        return;
    }
    collect(s, j, e->args[0]);
    collect(s, j, e->args[1]);
}

static const Ex *both(Interval *s, const Ex *a, const Ex *b) {
    if (!a || !b) return a ? a : b;
    return ex_2(s->x, EX_AND, a, b);
}

static const Ex *as_interval(Interval *s, const Ex *e) {
    Conjunction j = {NULL, NULL, NULL};
    collect(s, &j, e);
    const Ex *key = ex_sym(s->x, SYM_POS, s->key_axis, EX_I32);
    const Ex *low = j.low ? ex_2(s->x, EX_LE, j.low, key) : NULL;
    const Ex *high = j.high ? ex_2(s->x, EX_LE, key, j.high) : NULL;
    const Ex *interval = both(s, high, low);
    return s->last ? both(s, j.rest, interval) : both(s, interval, j.rest);
}

static bool is_row(const Interval *s, const Ex *e) {
    return e->op == EX_SYM && e->sym == SYM_POS && e->index == s->c.q_axis;
}

// The coefficient of q_offset where the row's position has the same: their sum is the query's position.
static int64_t position_coef(const Interval *s, const Linear *l) {
    int64_t offset = 0, row = 0;
    for (int i = 0; i < l->n; i++) {
        const Ex *e = l->term[i].e;
        if (e->op == EX_SYM && e->sym == SYM_SIZE && e->index == SIZE_Q_OFFSET)
            offset = l->term[i].coef;
        if (is_row(s, e)) row = l->term[i].coef;
    }
    return offset == row ? row : 0;
}

// Whether the sum is a number that f32 has, at every launch. Positions are below 2^24, that of a query
// at least -2^24.
static bool exact(Interval *s, const Linear *l) {
    int64_t most = RANGE_POSITION, position = position_coef(s, l);
    int64_t lo = l->c, hi = lo;
    for (int i = 0; i < l->n; i++) {
        const Ex *e = l->term[i].e;
        int64_t by = l->term[i].coef;
        bool row = is_row(s, e), key = e->op == EX_SYM && e->sym == SYM_POS && !row;
        bool offset = e->op == EX_SYM && e->sym == SYM_SIZE && e->index == SIZE_Q_OFFSET;
        if (offset && position) continue;
        Range r = range_of(&s->c, e);
        if (row || key) r.nlo = row && position ? -most : 0, r.nhi = most - 1;
        if (!r.lo || !r.hi || by * by != 1) return false;
        lo += by > 0 ? r.nlo : -r.nhi;
        hi += by > 0 ? r.nhi : -r.nlo;
    }
    return lo >= -most && hi <= most;
}

// The key's part and the rest's, each converted: where both are exact, their sum is rounded once, as the
// conversion of the whole is. The constant goes with the rest where it may, else with the key.
static const Ex *in_parts(Interval *s, const Ex *e) {
    Linear l = linear_of(&s->c, e->args[0]);
    int at = l.ok && !s->c.guard ? key_term(s, &l) : -1;
    if (at < 0 || l.n < 2) return e;
    Linear rest = l, key = linear_const(0);
    key.term[key.n++] = l.term[at];
    linear_drop(&rest, at);
    bool with_rest = exact(s, &rest);
    if (!with_rest) key.c = l.c, rest.c = l.c = 0;
    if (!exact(s, &key) || !exact(s, &rest)) return e;
    bool minus = with_rest && l.term[at].coef < 0;
    const Ex *r = ex_conv(s->x, EX_F32, sum_of(s, &l, at, 1));
    const Ex *k = minus ? l.term[at].e : sum_of(s, &key, -1, 1);
    return ex_2(s->x, minus ? EX_SUB : EX_ADD, r, ex_conv(s->x, EX_F32, k));
}

// An AND within an AND is rewritten with the outer one again, which finds the inner one's bounds as
// they are.
static const Ex *rewrite(void *ctx, ExPool *x, const Ex *e) {
    Interval *s = ctx;
    (void)x;
    if (e->op == EX_AND && uses_key(s, e)) return as_interval(s, e);
    if (e->op == EX_CONV && e->type == EX_F32 && e->args[0]->type == EX_I32) return in_parts(s, e);
    return e;
}

void pass_interval(TileProgram *p, TileKernel *k, int row_axis, int key_axis, bool last) {
    const Ex *zero = ex_i32(p->pool, 0), *most = ex_i32(p->pool, RANGE_POSITION);
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        if (op->kind != TILE_MAP || op->naxes < 2) continue;
        if (op->results.data[0]->home == HOME_STRIP) continue; // made of differences as they are
        for (int i = 0; i < op->outs.n; i++) {
            Interval s = {.x = p->pool, .k = k, .map = op, .key_axis = key_axis, .last = last};
            range_init(&s.c, p->pool, row_axis, key_axis, zero, most, zero, most);
            op->outs.data[i].body = ex_map(p->pool, op->outs.data[i].body, rewrite, &s);
        }
    }
}
