// sweep.c: the kernels that sweep the keys: the whole forward, and the part of it for a part of the
// keys.
//
// In: a Build. Out: a kernel in b->p (build.c shows what it looks like).
#include "passes/derive/classes.h"
#include "passes/derive/large_unit.h"
#include "passes/derive/magnitude.h"
#include "passes/simplify/simplify.h"
#include "passes/tile/build.h"

#include <float.h>
#include <math.h>

typedef struct Sweep {
    TileOp *loop;
    TileValue *acc;      // carried; NULL but in the last sweep
    TileValue **old;     // by state: carried value; NULL for other sweeps' states
    TileValue **raw_old; // by shift: its carried value; NULL where it is not carried
    TileValue **raw_new; // by shift: raw, with this tile
    TileValue **rescale; // by shift: what accumulated sums are multiplied by; NULL until needed
    TileValue **ratio;   // by scale: likewise
    TileValue **now;     // by state: with this tile; NULL until known
} Sweep;

// ---- a step

// `select(s == -inf, identity, f(s))`, which keeps masked keys out of a reduction.
static bool is_guarded(const Ex *e) {
    const Ex *test = e->op == EX_SELECT ? e->args[0] : e;
    return test->op == EX_EQ && test->args[0]->op == EX_SYM && test->args[0]->sym == SYM_S &&
           ex_is_f32(test->args[1], -INFINITY) && e->op == EX_SELECT;
}

static bool is_infinity(void *ctx, const Ex *e) {
    (void)ctx;
    return e->op == EX_CONST && e->type == EX_F32 && isinf(e->f);
}

// Whether the modified score is never -inf by itself, so that only what is outside the mask is a
// masked key.
bool build_score_is_finite(Build *b) {
    const Ex *e = b->row->modified;
    ClassEnv env = {.s = CL_FINITE,
                    .wild_inputs = true,
                    .wild_scores = true,
                    .overflows = true,
                    .facts = row_facts(b->row)};
    return !ex_any(e, is_infinity, NULL) && !(class_of(e, &env) & CL_NINF);
}

// What is reduced, with the test of the mask instead of one of the score: full tiles lose it.
static const Ex *begin_element(Build *b, const Ex *e) {
    if (!b->bare_score || !is_guarded(e)) return e;
    build_bind(b, SYM_S, 0, b->bare_score);
    return ex_select(b->pool, ex_symbol(b->pool, SYM_MASK), e->args[2], e->args[1]);
}

// ---- rows

// Those beside q or k, which is there.
static void load_rows(Build *b, RowSide side, TileValue *first) {
    const RowProgram *row = b->row;
    b->tile[side] = ARENA_ARRAY(b->arena, TileValue *, row->rows[side].n + 1);
    b->tile[side][0] = first;
    for (int i = 1; i < row->rows[side].n; i++)
        if (pass_uses_row(row, side, i)) b->tile[side][i] = build_own_row(b, side, i);
}

static void bind_squares(Build *b, RowSide side) {
    bool keys = side == ROW_KEYS;
    ExSym sym = keys ? SYM_SQK : SYM_SQQ;
    for (int i = 0; i < b->row->rows[side].n; i++)
        if (ex_uses(b->row->modified, sym, i))
            build_bind(b, sym, i,
                       build_squares(b, keys ? "sqk" : "sqq", b->tile[side][i], keys ? AX_N : AX_M,
                                     build_row_columns(b, side, i),
                                     b->saves && b->saves->same_dots));
}

// The query's row times what multiplies its channels and those of the key that it meets.
static TileValue *scaled_query(Build *b, const int *row) {
    TileValue *q = b->tile[ROW_QUERIES][row[ROW_QUERIES]];
    ExPool *x = b->pool;
    AxisRole columns = build_row_columns(b, ROW_QUERIES, row[ROW_QUERIES]);
    const Ex *factor = row_factor(b->row, row);
    if (!factor) return q;
    b->columns = columns;
    q = build_map(b, "q", q->dtype, AX_M, (int)columns, ex_2(x, EX_MUL, build_of(b, q), factor));
    b->columns = AX_M;
    return q;
}

// The products of some pairs of rows, one after the other.
static TileValue *chain(Build *b, int dot) {
    const RowDot *d = &b->row->dots.data[dot];
    TileValue *sum = NULL;
    for (int i = 0; i < d->pairs.n; i++) {
        const int *row = d->pairs.data[i].row;
        sum = build_mma(b, "dot", scaled_query(b, row), b->tile[ROW_KEYS][row[ROW_KEYS]], sum, AX_M,
                        AX_N, ex_sym(b->pool, SYM_DOT, dot, EX_F32)->span);
    }
    return sum;
}

// The modified score, -inf where the key is masked.
static TileValue *scores(Build *b) {
    ExPool *x = b->pool;
    const Ex *modified = b->row->modified;
    load_rows(b, ROW_KEYS, build_load(b, "k", b->tensor_k, AX_N, AX_D));
    for (int i = 0; i < b->row->dots.n; i++)
        if (ex_uses(modified, SYM_DOT, i)) build_bind(b, SYM_DOT, i, chain(b, i));
    bind_squares(b, ROW_KEYS);
    const Ex *masked = ex_select(x, ex_symbol(x, SYM_MASK), modified, ex_f32(x, -INFINITY));
    b->bare_score =
        build_score_is_finite(b) ? build_map(b, "x", DT_F32, AX_M, AX_N, modified) : NULL;
    return build_map(b, "s", DT_F32, AX_M, AX_N, masked);
}

// Where shifts stay, one is infinite as long as the row has no key, also beside a sink: the first step with keys is done again then,
// and finds the extremum, by which rows without a key are known.
static TileValue *raw_shift(Build *b, int shift, const char *name) {
    ExPool *x = b->pool;
    const Ex *raw = b->s->shifts.data[shift], *inf = ex_f32(x, INFINITY);
    if (b->fixed < 0) return build_row(b, name, raw);
    const Ex *none = build_identity(b, b->s->states.data[b->extremum].op);
    if (ex_simplify(x, ex_subst(x, raw, SYM_STATE, b->extremum, none)) == inf)
        return build_row(b, name, raw);
    none = ex_2(x, EX_EQ, ex_sym(x, SYM_STATE, b->extremum, EX_F32), none);
    none = ex_2(x, EX_AND, ex_symbol(x, SYM_STAY), none);
    return build_row(b, name, ex_select(x, none, inf, raw));
}

// A shift as it was before this tile, computed from the states of that time. If nothing in it is
// rounded, this is the number that the earlier elements had. Otherwise the shift is carried: a
// product that is computed again may become part of an fma, which does not round it, and then the
// factor would differ from 1 although nothing moved.
static TileValue *old_shift(Build *b, const Sweep *w, int shift) {
    if (w->raw_old[shift]) return w->raw_old[shift];
    int mark = b->env.n;
    for (int i = 0; i < b->s->states.n; i++)
        if (w->old[i]) build_bind(b, SYM_STATE, i, w->old[i]);
    TileValue *raw = raw_shift(b, shift, "a_old");
    b->env.n = mark;
    return raw;
}

// ---- fixed shifts
//
// In full tiles a shift may stay what it is (`kept`), where results do not depend on it (passes/derive/fixed_shift.h): its
// extremum is not looked for, and nothing is rescaled, unless the sum of the weights comes out too large, which the
// schedule asks at every step. Whether it does, the pass `shifts` decides (`stay`). It is the raw one: a row without a key so far has +inf there, and a sum that
// says so.

static const Ex *unless_fixed(const Build *b, const Ex *stays, const Ex *moves) {
    return b->fixed < 0 ? moves : ex_select(b->pool, ex_symbol(b->pool, SYM_KEPT), stays, moves);
}

static bool is_state(const Ex *e) { return e->op == EX_SYM && e->sym == SYM_STATE; }

// What is added to a maximum at which shifts stay, so that there is room above: it may be any number that
// is near. In its own unit, where a shift is its negative, or that of it and something else.
static double headroom(const Build *b, int state) {
    const Stream *s = b->s;
    if (b->fixed < 0 || state != b->extremum || s->states.data[state].op != EX_ROWMAX) return 0;
    const Ex *e = s->shifts.data[s->shift], *unit = s->units.data[s->shift];
    if (e->op != EX_NEG) return 0;
    e = e->args[0];
    bool near = is_state(e) || (e->op == EX_MAX && (is_state(e->args[0]) || is_state(e->args[1])));
    return near ? FIXED_SHIFT_ROOM / (unit ? large_left_out(b->pool, unit)->f : 1.0) : 0;
}

static TileValue *shift_unless_fixed(Build *b, const char *name, TileValue *before,
                                     TileValue *now) {
    if (b->fixed < 0) return now;
    return build_row(b, name, unless_fixed(b, build_of(b, before), build_of(b, now)));
}

static void say_bound(Build *b) {
    if (b->fixed < 0) return;
    TileOp *op = tile_op(b->p, b->k, b->block, TILE_BOUND, b->row->span);
    op->bits = FIXED_SHIFT_BITS;
    tile_arg(b->p, op, build_bound(b, SYM_STATE, b->fixed));
}

// Makes a shift's new value and its rescale factor, once its states are up to date.
static void advance_shift(Build *b, Sweep *w, int shift) {
    if (shift < 0 || w->rescale[shift]) return;
    TileValue *raw = raw_shift(b, shift, "a_new"), *before = old_shift(b, w, shift);
    TileValue *now = shift_unless_fixed(b, "a_now", before, build_safe_shift(b, raw));
    w->raw_new[shift] = shift_unless_fixed(b, "a_next", before, raw);
    w->rescale[shift] = build_rescale(b, shift, now, before, false);
    build_bind(b, SYM_SHIFT, shift, now);
}

static void advance_shifts_of(Build *b, Sweep *w, const Ex *elem, int shift) {
    advance_shift(b, w, shift);
    for (int i = 0; i < b->s->shifts.n; i++)
        if (ex_uses(elem, SYM_SHIFT, i)) advance_shift(b, w, i);
}

// What sums with this shift and this scale are multiplied by; NULL for 1.
static TileValue *moved_by(Build *b, Sweep *w, int shift, int scale) {
    if (scale >= 0 && !w->ratio[scale]) w->ratio[scale] = build_ratio(b, scale, w->now, w->old);
    return build_product(b, shift < 0 ? NULL : w->rescale[shift],
                         scale < 0 ? NULL : w->ratio[scale]);
}

static TileValue *advance_state(Build *b, Sweep *w, int state) {
    const StreamState *st = &b->s->states.data[state];
    advance_shifts_of(b, w, st->elem, st->shift);
    const char *name = arena_printf(b->arena, "%s_tile", st->name);
    int mark = b->env.n;
    TileValue *tile = build_reduce(b, name, st->op, AX_N, begin_element(b, st->elem), st->span);
    b->env.n = mark;
    TileValue *by = moved_by(b, w, st->shift, st->scale);
    const Ex *old = build_of(b, w->old[state]), *as_it_was = old, *more = build_of(b, tile);
    if (by) old = unless_fixed(b, old, ex_2(b->pool, EX_MUL, old, build_of(b, by)));
    double up = headroom(b, state);
    if (up)
        more = ex_select(b->pool, ex_symbol(b->pool, SYM_STAY),
                         ex_2(b->pool, EX_ADD, more, ex_f32(b->pool, (float)up)), more);
    const Ex *merged = ex_2(b->pool, build_merge(st->op), old, more);
    if (pass_moves_shift(b->s, state)) merged = unless_fixed(b, as_it_was, merged);
    return build_row(b, arena_printf(b->arena, "%s_new", st->name), merged);
}

static TileValue *advance_acc(Build *b, Sweep *w) {
    const Stream *s = b->s;
    bool narrow = b->p->dtype == DT_F16 || b->p->dtype == DT_BF16;
    advance_shifts_of(b, w, s->elem, s->shift);
    int mark = b->env.n;
    const Ex *elem = begin_element(b, s->elem);
    if (b->row->changes && ex_uses(elem, SYM_KV_IDX, 0)) // factors of values that no sequence has
        elem = ex_select(b->pool, ex_symbol(b->pool, SYM_MASK), elem, ex_f32(b->pool, 0));
    TileValue *weights = build_map(b, "p", narrow ? b->p->dtype : DT_F32, AX_M, AX_N, elem);
    b->env.n = mark;
    TileValue *sum = w->acc, *by = moved_by(b, w, s->shift, s->scale);
    if (by) {
        const Ex *old = build_of(b, w->acc), *scaled = ex_2(b->pool, EX_MUL, old, build_of(b, by));
        sum = build_map(b, "acc_scaled", DT_F32, AX_M, AX_E, unless_fixed(b, old, scaled));
    }
    TileValue *v = build_load(b, "v", b->tensor_v, AX_N, AX_E);
    return build_mma(b, "acc_new", weights, v, sum, AX_M, AX_E, s->elem->span);
}

// ---- one sweep

// Where keys are split the first part alone goes on.
static TileValue *if_first(Build *b, const char *name, TileValue *v, int columns, const Ex *none) {
    ExPool *x = b->pool;
    if (b->axis[AX_S] < 0) return v;
    const Ex *part = ex_sym(x, SYM_TILE, b->axis[AX_S], EX_I32);
    const Ex *first = ex_2(x, EX_LT, part, ex_i32(x, 1));
    return build_map(b, name, DT_F32, AX_M, columns, ex_select(x, first, build_of(b, v), none));
}

// A state is the identity before the first key, unless it goes on.
static TileValue *first_state(Build *b, int state, TileValue *begun) {
    const StreamState *st = &b->s->states.data[state];
    const char *name = arena_printf(b->arena, "%s_0", st->name);
    const Ex *none = build_identity(b, st->op);
    if (b->phase != PHASE_PART) return build_row(b, name, none);
    TileValue *v = build_load_kept(b, name, state);
    if (st->op != EX_ROWSUM) return build_if_begun(b, name, begun, v, none);
    return if_first(b, name, v, AX_NONE, none);
}

static TileValue *first_shift(Build *b, int shift, TileValue *begun) {
    TileValue *raw = raw_shift(b, shift, "a_0");
    if (b->phase != PHASE_PART) return raw;
    TileValue *v = build_load_kept(b, "a_0", b->s->states.n + shift);
    return build_if_begun(b, "a_0", begun, v, build_of(b, raw));
}

static TileValue *first_sums(Build *b) {
    const Ex *none = ex_f32(b->pool, 0.0f);
    if (b->phase != PHASE_PART) return build_map(b, "acc_0", DT_F32, AX_M, AX_E, none);
    return if_first(b, "acc_0", build_load_kept(b, "acc_0", build_sums(b)), AX_E, none);
}

// What is carried from tile to tile, and what it starts as: states, then raw shifts that are, then
// the accumulator.
static void open_loop(Build *b, Sweep *w, int number) {
    const Stream *s = b->s;
    int n = s->states.n, mark = b->env.n;
    TileValue *begun = NULL;
    if (b->phase == PHASE_PART && build_asks_begun(b)) {
        begun = build_load_kept(b, "begun", build_begun(b));
        begun = if_first(b, "begun", begun, AX_NONE, ex_f32(b->pool, 0.0f));
    }
    TileValue **start = ARENA_ARRAY(b->arena, TileValue *, n + s->shifts.n + 1), *acc = NULL;
    for (int i = 0; i < n; i++) {
        const StreamState *st = &s->states.data[i];
        if (st->sweep != number) continue;
        start[i] = first_state(b, i, begun);
        build_bind(b, SYM_STATE, i, start[i]);
    }
    for (int i = 0; i < s->shifts.n; i++)
        if (build_carries_shift(b, number, i)) start[n + i] = first_shift(b, i, begun);
    b->env.n = mark;
    if (number == s->nsweeps - 1) acc = first_sums(b);
    w->loop = build_loop(b, b->axis[AX_N], ex_i32(b->pool, 1));
    if (b->axis[AX_S] >= 0) pass_share_steps(b->p, b->k, w->loop, w->loop->to);
    for (int i = 0; i < n; i++)
        if (start[i]) w->old[i] = build_carry(b, w->loop, s->states.data[i].name, start[i]);
    for (int i = 0; i < s->shifts.n; i++)
        if (start[n + i]) w->raw_old[i] = build_carry(b, w->loop, "a_old", start[n + i]);
    if (acc) w->acc = build_carry(b, w->loop, "acc", acc);
    b->block = &w->loop->body;
}

static void close_loop(Build *b, const Sweep *w, TileValue *acc) {
    int n = b->s->states.n, shifts = b->s->shifts.n;
    TileValue **v = ARENA_ARRAY(b->arena, TileValue *, n + shifts + 1);
    for (int i = 0; i < n; i++) v[i] = w->now[i];
    for (int i = 0; i < shifts; i++) v[n + i] = w->raw_old[i] ? w->raw_new[i] : NULL;
    v[n + shifts] = acc;
    build_yield(b, w->loop, v, n + shifts + 1);
}

static void step(Build *b, Sweep *w) {
    int mark = b->env.n;
    build_bind(b, SYM_S, 0, scores(b));
    for (int i = 0; i < b->s->states.n; i++)
        if (w->old[i]) build_bind(b, SYM_STATE, i, w->now[i] = advance_state(b, w, i));
    close_loop(b, w, w->acc ? advance_acc(b, w) : NULL);
    b->env.n = mark;
}

// One loop over the keys; afterwards its states are bound to their last values. Gives the
// accumulator of the last sweep.
static TileValue *sweep(Build *b, int number) {
    const Stream *s = b->s;
    int n = s->states.n, nshifts = s->shifts.n, result = 0;
    Sweep w = {.old = ARENA_ARRAY(b->arena, TileValue *, n + 1),
               .raw_old = ARENA_ARRAY(b->arena, TileValue *, nshifts + 1),
               .raw_new = ARENA_ARRAY(b->arena, TileValue *, nshifts + 1),
               .rescale = ARENA_ARRAY(b->arena, TileValue *, nshifts + 1),
               .ratio = ARENA_ARRAY(b->arena, TileValue *, s->scales.n + 1),
               .now = ARENA_ARRAY(b->arena, TileValue *, n + 1)};
    open_loop(b, &w, number);
    step(b, &w);
    for (int i = 0; i < n; i++)
        if (w.old[i]) build_bind(b, SYM_STATE, i, w.loop->results.data[result++]);
    for (int i = 0; i < nshifts; i++)
        if (w.raw_old[i]) b->raw_shift[i] = w.loop->results.data[result++];
    return w.acc ? w.loop->results.data[result] : NULL;
}

static TileValue *sweeps(Build *b) {
    TileValue *acc = NULL;
    load_rows(b, ROW_QUERIES, build_load(b, "q", b->tensor_q, AX_M, AX_D));
    bind_squares(b, ROW_QUERIES);
    b->raw_shift = ARENA_ARRAY(b->arena, TileValue *, b->s->shifts.n + 1);
    for (int i = 0; i < b->s->nsweeps; i++) {
        build_finished(b);
        acc = sweep(b, i);
        say_bound(b);
    }
    return acc;
}

// ---- after the sweeps

// acc times the deferred factor, which is 0 for a row without a key, whatever it is made of. What is
// chosen is the factor, not the product: a row of NaNs alone leaves its maximum at -inf too, and
// its accumulator, which is NaN, has to say so.
static TileValue *aggregated(Build *b, TileValue *acc) {
    ExPool *x = b->pool;
    const Stream *s = b->s;
    const Ex *part[MAX_FACTORS];
    TileValue *factor[MAX_FACTORS];
    int n = s->factor ? row_factors(s->row, s->factor, part) : 0;
    for (int i = 0; i < n; i++) factor[i] = build_row(b, "factor", part[i]);
    const Ex *e = build_of(b, acc);
    for (int i = 0; i < n; i++) {
        const Ex *f = build_of(b, factor[i]);
        e = ex_2(x, EX_MUL, e, s->empty ? ex_select(x, s->empty, ex_f32(x, 0.0f), f) : f);
    }
    return build_map(b, "agg", DT_F32, AX_M, AX_E, e);
}

// A row whose sum says that it has keys has them. Its extremum says so by itself (raw_shift): without this kernels of softmax would be
// others than those that were timed.
static void show_keys(Build *b) {
    ExPool *x = b->pool;
    if (!b->s->empty || !b->far) return;
    bool parts = b->phase == PHASE_PART || b->phase == PHASE_COMBINE;
    bool max = b->s->states.data[b->extremum].op == EX_ROWMAX;
    const Ex *stay = parts ? ex_bool(x, true) : ex_symbol(x, SYM_STAY),
             *sum = ex_sym(x, SYM_STATE, b->weights, EX_F32),
             *best = ex_sym(x, SYM_STATE, b->extremum, EX_F32);
    const Ex *some = ex_2(x, EX_AND, stay, ex_2(x, EX_NE, sum, ex_f32(x, 0)));
    const Ex *near = ex_2(x, max ? EX_MAX : EX_MIN, best, ex_f32(x, max ? -FLT_MAX : FLT_MAX));
    build_bind(b, SYM_STATE, b->extremum, build_row(b, "best", ex_select(x, some, near, best)));
}

static void finish(Build *b, TileValue *acc) {
    const RowProgram *row = b->row;
    show_keys(b);
    build_finished(b);
    for (int i = 0; i < row->emits.n; i++) {
        TileValue *v = build_row(b, row->emits.data[i].name, b->s->emits.data[i]);
        build_store(b, b->first_emit + i, v, AX_NONE);
    }
    for (int i = 0; b->saves && i < b->saves->nsaved; i++) {
        const BackRow *r = &b->saves->rows.data[i];
        build_store(b, b->first_saved + i, build_row(b, r->name, r->value), AX_NONE);
    }
    build_bind(b, SYM_O, 0, aggregated(b, acc));
    if (ex_uses(row->output, SYM_SQO, 0)) {
        // Columns past Dv (a padded tile) must not count.
        ExPool *x = b->pool;
        const Ex *o = ex_symbol(x, SYM_O);
        const Ex *in = ex_2(x, EX_LT, build_pos(b, AX_E), ex_i32(x, row->Dv));
        const Ex *square = ex_select(x, in, ex_2(x, EX_MUL, o, o), ex_f32(x, 0.0f));
        build_bind(b, SYM_SQO, 0, build_reduce(b, "sqo", EX_ROWSUM, AX_E, square, b->row->span));
    }
    build_store(b, b->tensor_o, build_map(b, "o", DT_F32, AX_M, AX_E, row->output), AX_E);
}

// ---- kernels

static void set_mask(Build *b) {
    ExPool *x = b->pool;
    const Ex *end = ex_2(x, EX_LT, build_pos(b, AX_N), build_size(b, SIZE_SK));
    b->k->mask = ex_2(x, EX_AND, build_resolve(b, NULL, b->row->mask), end);
}

// A grid that has the parts as its last dimension.
static void add_parts(Build *b) {
    TileKernel *k = b->k;
    TileGrid g = {.sym = SYM_TILE, .axis = b->axis[AX_S], .count = k->axes[b->axis[AX_S]].size};
    if (b->own_parts) g.shared = k->axes[g.axis].size = build_own_parts(b);
    k->grid[k->ngrid++] = g;
}

void build_end(Build *b, TileValue *acc) {
    if (b->phase == PHASE_PART)
        build_leave(b, acc);
    else
        finish(b, acc);
}

// Rows in one part (the first is less than the second) are finished; others' parts are left to the combination.
static void leave_or_end(Build *b, TileValue *acc, const Ex *first, const Ex *second) {
    b->when = ex_2(b->pool, EX_LE, second, first);
    b->within = true;
    build_leave(b, acc);
    b->within = false;
    b->when = ex_2(b->pool, EX_LT, first, second);
    build_end(b, acc);
    b->when = NULL;
}

void build_forward(Build *b) {
    static const AxisRole axes[] = {AX_M, AX_N, AX_D, AX_E, AX_S};
    bool rest = b->packed || !b->p->batch;
    build_kernel(b, PURPOSE_ATTENTION,
                 b->phase == PHASE_PIECE ? "piece"
                 : b->phase              ? "state"
                 : rest                  ? "fwd"
                                         : "long",
                 axes, b->share ? 5 : 4);
    build_width_axes(b);
    if (b->share) add_parts(b);
    if (b->share) b->k->grid[b->k->ngrid - 1].from = build_size(b, b->p->split.whole);
    set_mask(b);
    TileValue *acc = sweeps(b);
    if (b->share)
        leave_or_end(b, acc, build_head(b), build_size(b, b->p->split.whole));
    else
        build_end(b, acc);
}

// Of few queries: the rows of a group, which reads its keys once. Each point of the grid sweeps its part of the steps; all of
// them, where there are several sweeps.
void build_part(Build *b) {
    static const AxisRole axes[] = {AX_M, AX_N, AX_D, AX_E, AX_S};
    const Ex *parts = b->split ? build_size(b, b->p->split.few) : NULL;
    bool packed = b->packed;
    b->packed = true;
    const char *name = b->phase == PHASE_PIECE ? "piece_few" : b->phase ? "state_few" : "part";
    build_kernel(b, PURPOSE_PART, name, axes, b->split ? 5 : 4);
    build_width_axes(b);
    if (b->split) b->k->axes[b->axis[AX_S]].size = parts;
    if (b->split) add_parts(b);
    set_mask(b);
    TileValue *acc = sweeps(b);
    if (b->split)
        leave_or_end(b, acc, build_may_finish(b) ? build_own_parts(b) : parts, ex_i32(b->pool, 2));
    else
        build_end(b, acc);
    b->packed = packed;
}
