// combine.c: the kernel that merges the parts of a row.
//
// In: a Build whose part kernel leaves, for each part, states and an accumulator. Out: a kernel
// that merges them by the derived rule and finishes the row: maxima and minima as such; sums, each
// side first rescaled from its own shift to the merged one.
//
//     loop S carry %m = -inf, %l = 0, %acc = 0
//       %m_part, %l_part, %acc_part = load ..          of several parts on a GPU, which arrive together
//       %m_new = max(m, m_part)
//       %c = exp2(a(m_new) - a(m)), %c_part = exp2(a(m_new) - a(m_part))
//       %l_new = l * c + l_part * c_part, %acc_new = acc * c + acc_part * c_part
//
// where a is the shift as in the sweep, made safe on the left; one that rounds (passes/derive/exact_shift.h) is
// carried, and left by the parts, like a state. Behind this loop another one takes the last parts, fewer at once.
// Where shifts stay in full tiles (passes/derive/fixed_shift.h) c is the factor's root, by which sums are multiplied twice.
// A part without a key is the identity: its raw shift is +inf, so what it left is multiplied by 0. A part behind the last is
// read as one.
#include "passes/tile/build.h"

#include <math.h>

// Parts that are asked for at once, on a GPU: one after the other, each would wait for memory. Where fewer are there, some are read in vain,
// so two have a loop of their own. A caller keeps few, and with fewer registers more of their rows are in flight.
enum { TOGETHER = 8 };
static const int gpu_steps[] = {TOGETHER, 2}, *const kept_steps = gpu_steps + 1,
                 other_steps[] = {1};
enum {
    WIDE = 256
}; // columns of v from which heads go 16 to a warp here, too (60 us of 168 otherwise; fewer columns were not measured)

typedef struct Side {         // what is merged: what is carried, and parts
    TileValue **state, **raw; // by state; by shift, NULL: not carried
    TileValue **c, **r;       // what it is multiplied by, by shift and by scale; NULL until needed
    TileValue *acc;
} Side;

typedef struct Merge { // of one loop
    TileOp *loop;
    int n;           // sides
    const Ex *first; // part
    Side side[1 + TOGETHER];
    TileValue **new, **raw_new; // by state, by shift
} Merge;

static TileValue *raw_of(Build *b, int shift, TileValue *const *states, const char *name) {
    int mark = b->env.n;
    for (int i = 0; i < b->s->states.n; i++)
        if (states[i]) build_bind(b, SYM_STATE, i, states[i]);
    TileValue *raw = build_raw_shift(b, shift, name);
    b->env.n = mark;
    return raw;
}

// ---- merging

static void merge_shift(Build *b, Merge *m, int shift) {
    if (shift < 0 || m->raw_new[shift]) return;
    m->raw_new[shift] = raw_of(b, shift, m->new, "a_new");
    TileValue *now = build_safe_shift(b, m->raw_new[shift]);
    for (int i = 0; i < m->n; i++) {
        Side *s = &m->side[i];
        TileValue *raw = s->raw[shift] ? s->raw[shift] : raw_of(b, shift, s->state, "a_old");
        s->c[shift] = build_rescale(b, shift, now, raw, b->far);
    }
}

static void merge_scale(Build *b, Merge *m, int scale) {
    if (scale < 0 || m->side[0].r[scale]) return;
    for (int i = 0; i < m->n; i++)
        m->side[i].r[scale] = build_ratio(b, scale, m->new, m->side[i].state);
}

// A state of one side (-1: the accumulator), times its factor.
static const Ex *weighted(Build *b, const Side *s, int state, TileValue *by) {
    const Ex *x = build_of(b, state < 0 ? s->acc : s->state[state]);
    for (int n = 0; by && n < (b->far ? 2 : 1); n++) x = ex_2(b->pool, EX_MUL, x, build_of(b, by));
    return x;
}

// A state of all sides, each times its factor where there is a shift or a scale, joined by op.
static TileValue *merged(Build *b, Merge *m, const char *name, ExOp op, int shift, int scale,
                         int columns, int state) {
    TileValue *by[1 + TOGETHER];
    merge_shift(b, m, shift);
    merge_scale(b, m, scale);
    for (int i = 0; i < m->n; i++)
        by[i] = build_product(b, shift < 0 ? NULL : m->side[i].c[shift],
                              scale < 0 ? NULL : m->side[i].r[scale]);
    const Ex *all = weighted(b, &m->side[0], state, by[0]);
    for (int i = 1; i < m->n; i++)
        all = ex_2(b->pool, op, all, weighted(b, &m->side[i], state, by[i]));
    return build_map(b, name, DT_F32, AX_M, columns, all);
}

// ---- parts

// By loop, how many a step takes.
static int steps_of(const Build *b, const int **parts) {
    bool gpu = target_get(b->p->target)->kind == KIND_NVPTX, kept = b->phase == PHASE_COMBINE;
    *parts = !gpu ? other_steps : kept ? kept_steps : gpu_steps;
    return gpu && !kept ? 2 : 1;
}

// Which part is part i of this step; the last one in the place of those behind it.
static const Ex *begin_part(Build *b, const Merge *m, int i) {
    ExPool *x = b->pool;
    const Ex *step = ex_sym(x, SYM_TILE, b->axis[AX_S], EX_I32), *parts = build_own_parts(b);
    const Ex *number = ex_2(x, EX_MUL, step, ex_i32(x, m->n - 1));
    number = ex_2(x, EX_ADD, ex_2(x, EX_ADD, m->first, number), ex_i32(x, i));
    number = ex_simplify(x, number);
    b->part = i ? ex_2(x, EX_MIN, number, ex_2(x, EX_SUB, parts, ex_i32(x, 1))) : number;
    return number;
}

// A number or a tile of part i of this step. Behind the last it is `none`, and another part is read.
static TileValue *load_part(Build *b, const Merge *m, const char *name, int kept, int i,
                            TileValue *begun, const Ex *none) {
    ExPool *x = b->pool;
    int columns = kept == build_sums(b) ? AX_E : AX_NONE;
    const Ex *number = begin_part(b, m, i);
    TileValue *v = build_if_begun(b, name, begun, build_load_kept(b, name, kept), none);
    if (!i) return v;
    const Ex *there = ex_2(x, EX_LT, number, build_own_parts(b));
    return build_map(b, name, DT_F32, AX_M, columns, ex_select(x, there, build_of(b, v), none));
}

static void load_side(Build *b, const Merge *m, Side *to, int part) {
    const Stream *s = b->s;
    int n = s->states.n;
    TileValue *begun = NULL;
    if (!b->within && build_asks_begun(b)) {
        begin_part(b, m, part);
        begun = build_load_kept(b, "begun_part", build_begun(b));
    }
    for (int i = 0; i < n; i++) {
        const StreamState *st = &s->states.data[i];
        const char *name = arena_printf(b->arena, "%s_part", st->name);
        to->state[i] = load_part(b, m, name, i, part, st->op == EX_ROWSUM ? NULL : begun,
                                 build_identity(b, st->op));
    }
    for (int i = 0; i < s->shifts.n; i++)
        if (build_keeps_shift(b, i))
            to->raw[i] = load_part(b, m, "a_part", n + i, part, begun, ex_f32(b->pool, INFINITY));
    to->acc = load_part(b, m, "acc_part", build_sums(b), part, NULL, ex_f32(b->pool, 0.0f));
}

static const Ex *are_several(Build *b) {
    return ex_2(b->pool, EX_LT, ex_i32(b->pool, 1), build_own_parts(b));
}

static Side new_side(const Build *b) {
    int n = b->s->states.n, shifts = b->s->shifts.n, scales = b->s->scales.n;
    return (Side){.state = ARENA_ARRAY(b->arena, TileValue *, n + 1),
                  .raw = ARENA_ARRAY(b->arena, TileValue *, shifts + 1),
                  .c = ARENA_ARRAY(b->arena, TileValue *, shifts + 1),
                  .r = ARENA_ARRAY(b->arena, TileValue *, scales + 1)};
}

// What no part leaves: states, raw shifts, the accumulator.
static Side no_part(Build *b) {
    const Stream *s = b->s;
    Side v = new_side(b);
    for (int i = 0; i < s->states.n; i++)
        v.state[i] = build_row(b, arena_printf(b->arena, "%s_0", s->states.data[i].name),
                               build_identity(b, s->states.data[i].op));
    for (int i = 0; i < s->shifts.n; i++)
        v.raw[i] = build_keeps_shift(b, i) ? raw_of(b, i, v.state, "a_0") : NULL;
    v.acc = build_map(b, "acc_0", DT_F32, AX_M, AX_E, ex_f32(b->pool, 0.0f));
    return v;
}

static Merge open_loop(Build *b, const Side *start, int together, const Ex *first,
                       const Ex *steps) {
    const Stream *s = b->s;
    Merge m = {.n = 1 + together,
               .first = first,
               .new = ARENA_ARRAY(b->arena, TileValue *, s->states.n + 1),
               .raw_new = ARENA_ARRAY(b->arena, TileValue *, s->shifts.n + 1)};
    for (int i = 0; i < m.n; i++) m.side[i] = new_side(b);
    Side *to = &m.side[0];
    m.loop = build_loop(b, b->axis[AX_S], steps);
    for (int i = 0; i < s->states.n; i++)
        to->state[i] = build_carry(b, m.loop, s->states.data[i].name, start->state[i]);
    for (int i = 0; i < s->shifts.n; i++)
        if (start->raw[i]) to->raw[i] = build_carry(b, m.loop, "a_old", start->raw[i]);
    to->acc = build_carry(b, m.loop, "acc", start->acc);
    b->block = &m.loop->body;
    return m;
}

static void step(Build *b, Merge *m) {
    const Stream *s = b->s;
    for (int i = 1; i < m->n; i++) load_side(b, m, &m->side[i], i - 1);
    for (int i = 0; i < s->states.n; i++) {
        const StreamState *st = &s->states.data[i];
        const char *name = arena_printf(b->arena, "%s_new", st->name);
        m->new[i] = merged(b, m, name, build_merge(st->op), st->shift, st->scale, AX_NONE, i);
    }
    TileValue *acc = merged(b, m, "acc_new", EX_ADD, s->shift, s->scale, AX_E, -1);
    int n = s->states.n;
    TileValue **v = ARENA_ARRAY(b->arena, TileValue *, n + s->shifts.n + 1);
    for (int i = 0; i < n; i++) v[i] = m->new[i];
    for (int i = 0; i < s->shifts.n; i++) v[n + i] = m->side[0].raw[i] ? m->raw_new[i] : NULL;
    v[n + s->shifts.n] = acc;
    build_yield(b, m->loop, v, n + s->shifts.n + 1);
}

static Side left_by(const Build *b, const Merge *m) {
    Side v = new_side(b);
    TileValue *const *end = m->loop->results.data;
    for (int i = 0; i < b->s->states.n; i++) v.state[i] = *end++;
    for (int i = 0; i < b->s->shifts.n; i++) v.raw[i] = m->side[0].raw[i] ? *end++ : NULL;
    v.acc = *end;
    return v;
}

// All parts: of a loop's steps the last is left to the next loop, where that has as many.
static Side merge_parts(Build *b) {
    ExPool *x = b->pool;
    const int *parts;
    const Ex *first = ex_i32(x, 0), *all = build_own_parts(b);
    if (build_may_finish(b)) all = ex_select(x, are_several(b), all, first);
    Side v = no_part(b);
    for (int i = 0, n = steps_of(b, &parts); i < n; i++) {
        int later = i + 1 < n ? parts[i + 1] : 0;
        const Ex *up = ex_2(x, EX_SUB, all, first), *each = ex_i32(x, parts[i]);
        up = ex_2(x, EX_ADD, up, ex_i32(x, parts[i] - 1 - later));
        const Ex *steps = ex_simplify(x, ex_2(x, EX_DIV, up, each));
        Merge m = open_loop(b, &v, parts[i], first, steps);
        step(b, &m);
        v = left_by(b, &m);
        first = ex_simplify(x, ex_2(x, EX_ADD, first, ex_2(x, EX_MUL, steps, each)));
    }
    return v;
}

// ---- the grid

static const Ex *placed(void *ctx, const Ex *e) {
    Build *b = ctx;
    ExPool *x = b->pool;
    const Ex *g = ex_sym(x, SYM_TILE, b->axis[AX_G], EX_I32), *heads = build_size(b, SIZE_HQ);
    const Ex *head = ex_2(x, EX_ADD, g, build_size(b, b->p->split.whole));
    e = ex_subst(x, e, SYM_B, 0, ex_2(x, EX_DIV, head, heads));
    return ex_subst(x, e, SYM_H, 0, ex_2(x, EX_MOD, head, heads));
}

// Over the heads that are split only: b and h are said by which of them it is.
static void over_split_heads(Build *b) {
    TileKernel *k = b->k;
    k->ngrid = 2;
    k->grid[0] = k->grid[2];
    k->grid[1] =
        (TileGrid){.sym = SYM_TILE, .axis = b->axis[AX_G], .count = k->axes[b->axis[AX_G]].size};
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        tile_map_exprs(op, placed, b);
}

void build_combine(Build *b) {
    static const AxisRole axes[] = {AX_M, AX_E, AX_S, AX_G};
    bool some = b->p->split.whole > 0, packed = b->packed;
    b->within = b->phase != PHASE_COMBINE;
    b->packed |= b->group && !some && b->within && b->row->Dv > WIDE; // as the parts are
    const char *name = !b->phase                 ? "combine"
                       : b->phase == PHASE_PIECE ? "piece_combine"
                       : b->within               ? "state_combine"
                                                 : "result";
    build_kernel(b, PURPOSE_COMBINE, name, axes, some ? 4 : 3);
    Side all = merge_parts(b);
    b->within = false;
    for (int i = 0; i < b->s->states.n; i++) build_bind(b, SYM_STATE, i, all.state[i]);
    b->raw_shift = all.raw;
    if (build_may_finish(b)) b->when = are_several(b); // the others' rows are finished
    build_end(b, all.acc);
    b->when = NULL;
    if (some) over_split_heads(b);
    b->packed = packed;
}
