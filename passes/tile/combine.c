// combine.c: the kernel that merges the parts of a row.
//
// In: a Build whose part kernel leaves, for each part, states and an accumulator. Out: a kernel
// that merges them by the derived rule and finishes the row: maxima and minima as such; sums, each
// side first rescaled from its own shift to the merged one.
//
//     loop S carry %m = -inf, %l = 0, %acc = 0, %m_part, %l_part, %acc_part = loads of part 0
//       loads of the next part, which arrive while this one is merged
//       %m_new = max(m, m_part)
//       %c = exp2(a(m_new) - a(m)), %c_part = exp2(a(m_new) - a(m_part))
//       %l_new = l * c + l_part * c_part, %acc_new = acc * c + acc_part * c_part
//
// where a is the shift as in the sweep, made safe on the left; one that rounds (passes/derive/exact_shift.h) is
// carried, and left by the parts, like a state.
// A part without a key is the identity: its raw shift is +inf, so what it left is multiplied by 0.
#include "passes/tile/build.h"

typedef struct Merge {
    TileOp *loop;
    TileValue **old, **part, **new;             // by state
    TileValue **raw_old, **raw_part, **raw_new; // by shift; NULL: not carried
    TileValue **c_old, **c_part;                // by shift; NULL until needed
    TileValue **r_old, **r_part;                // by scale; likewise
    TileValue *acc, *acc_part;
    TileValue *end; // the accumulator behind the loop
} Merge;

static void bind_states(Build *b, TileValue *const *v) {
    for (int i = 0; i < b->s->states.n; i++)
        if (v[i]) build_bind(b, SYM_STATE, i, v[i]);
}

static TileValue *raw_of(Build *b, int shift, TileValue *const *states, const char *name) {
    int mark = b->env.n;
    bind_states(b, states);
    TileValue *raw = build_raw_shift(b, shift, name);
    b->env.n = mark;
    return raw;
}

static void merge_shift(Build *b, Merge *m, int shift) {
    if (shift < 0 || m->c_old[shift]) return;
    TileValue *old = m->raw_old[shift], *part = m->raw_part[shift];
    m->raw_new[shift] = raw_of(b, shift, m->new, "a_new");
    TileValue *now = build_safe_shift(b, m->raw_new[shift]);
    m->c_old[shift] = build_rescale(b, shift, now, old ? old : raw_of(b, shift, m->old, "a_old"));
    m->c_part[shift] =
        build_rescale(b, shift, now, part ? part : raw_of(b, shift, m->part, "a_part"));
}

static void merge_scale(Build *b, Merge *m, int scale) {
    if (scale < 0 || m->r_old[scale]) return;
    m->r_old[scale] = build_ratio(b, scale, m->new, m->old);
    m->r_part[scale] = build_ratio(b, scale, m->new, m->part);
}

// old and part, each times its factor where there is a shift or a scale, joined by op.
static TileValue *merged(Build *b, Merge *m, const char *name, ExOp op, int shift, int scale,
                         int columns, TileValue *old, TileValue *part) {
    merge_shift(b, m, shift);
    merge_scale(b, m, scale);
    TileValue *of_old = build_product(b, shift < 0 ? NULL : m->c_old[shift],
                                      scale < 0 ? NULL : m->r_old[scale]),
              *of_part = build_product(b, shift < 0 ? NULL : m->c_part[shift],
                                       scale < 0 ? NULL : m->r_part[scale]);
    TileOp *map = build_open_map(b, AX_M, columns, b->row->span);
    const Ex *x = pass_operand(b->p, map, old), *y = pass_operand(b->p, map, part);
    if (of_old) {
        x = ex_2(b->pool, EX_MUL, x, pass_operand(b->p, map, of_old));
        y = ex_2(b->pool, EX_MUL, y, pass_operand(b->p, map, of_part));
    }
    return pass_out(b->p, b->k, map, name, DT_F32, ex_2(b->pool, op, x, y), EX_CONST, 0);
}

// All of a part that is merged.
static void load_parts(Build *b, Merge *m, const Ex *part) {
    const Stream *s = b->s;
    const Ex *head = ex_symbol(b->pool, SYM_H);
    b->part = part;
    for (int i = 0; i < s->states.n; i++) {
        const char *name = arena_printf(b->arena, "%s_part", s->states.data[i].name);
        m->part[i] = build_load(b, name, b->work_state[i], head, AX_M, AX_NONE);
    }
    for (int i = 0; i < s->shifts.n; i++)
        if (b->raw_shift[i])
            m->raw_part[i] = build_load(b, "a_part", b->work_shift[i], head, AX_M, AX_NONE);
    m->acc_part = build_load(b, "acc_part", b->work_acc, head, AX_M, AX_E);
}

static void carry_part(Build *b, Merge *m) {
    const Stream *s = b->s;
    for (int i = 0; i < s->states.n; i++)
        m->part[i] = build_carry(b, m->loop, m->part[i]->name, m->part[i]);
    for (int i = 0; i < s->shifts.n; i++)
        if (m->raw_part[i])
            m->raw_part[i] = build_carry(b, m->loop, m->raw_part[i]->name, m->raw_part[i]);
    m->acc_part = build_carry(b, m->loop, m->acc_part->name, m->acc_part);
}

static void yield_part(Build *b, const Merge *m, TileOp *yield) {
    const Stream *s = b->s;
    for (int i = 0; i < s->states.n; i++) tile_arg(b->p, yield, m->part[i]);
    for (int i = 0; i < s->shifts.n; i++)
        if (m->raw_part[i]) tile_arg(b->p, yield, m->raw_part[i]);
    tile_arg(b->p, yield, m->acc_part);
}

// Carried: states, raw shifts, the accumulator; the part that is merged next.
static void open_loop(Build *b, Merge *m) {
    const Stream *s = b->s;
    int n = s->states.n;
    TileValue **start = ARENA_ARRAY(b->arena, TileValue *, n + s->shifts.n + 1);
    for (int i = 0; i < n; i++)
        start[i] = build_row(b, arena_printf(b->arena, "%s_0", s->states.data[i].name),
                             build_identity(b, s->states.data[i].op));
    for (int i = 0; i < s->shifts.n; i++)
        if (b->raw_shift[i]) start[n + i] = raw_of(b, i, start, "a_0");
    load_parts(b, m, ex_i32(b->pool, 0));
    TileValue *acc = build_map(b, "acc_0", DT_F32, AX_M, AX_E, ex_f32(b->pool, 0.0f));
    m->loop = build_loop(b, AX_S, build_parts(b));
    for (int i = 0; i < n; i++)
        m->old[i] = build_carry(b, m->loop, s->states.data[i].name, start[i]);
    for (int i = 0; i < s->shifts.n; i++)
        if (start[n + i]) m->raw_old[i] = build_carry(b, m->loop, "a_old", start[n + i]);
    m->acc = build_carry(b, m->loop, "acc", acc);
    m->end = m->loop->results.data[m->loop->results.n - 1];
    carry_part(b, m);
    b->block = &m->loop->body;
}

// The last part is asked for again.
static const Ex *next_part(Build *b) {
    ExPool *x = b->pool;
    const Ex *one = ex_i32(x, 1), *last = ex_2(x, EX_SUB, build_parts(b), one);
    return ex_2(x, EX_MIN, ex_2(x, EX_ADD, ex_symbol(x, SYM_STEP), one), last);
}

static void step(Build *b, Merge *m) {
    const Stream *s = b->s;
    Merge next = *m;
    next.part = ARENA_ARRAY(b->arena, TileValue *, s->states.n + 1);
    next.raw_part = ARENA_ARRAY(b->arena, TileValue *, s->shifts.n + 1);
    load_parts(b, &next, next_part(b));
    for (int i = 0; i < s->states.n; i++) {
        const StreamState *st = &s->states.data[i];
        const char *name = arena_printf(b->arena, "%s_new", st->name);
        m->new[i] = merged(b, m, name, build_merge(st->op), st->shift, st->scale, AX_NONE,
                           m->old[i], m->part[i]);
    }
    TileValue *acc = merged(b, m, "acc_new", EX_ADD, s->shift, s->scale, AX_E, m->acc, m->acc_part);
    TileOp *yield = tile_op(b->p, b->k, b->block, TILE_YIELD, b->row->span);
    for (int i = 0; i < s->states.n; i++) tile_arg(b->p, yield, m->new[i]);
    for (int i = 0; i < s->shifts.n; i++)
        if (m->raw_old[i]) tile_arg(b->p, yield, m->raw_new[i]);
    tile_arg(b->p, yield, acc);
    yield_part(b, &next, yield);
    b->block = m->loop->block;
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
    int n = b->s->states.n, shifts = b->s->shifts.n, scales = b->s->scales.n;
    bool some = b->p->split.whole > 0;
    build_kernel(b, PURPOSE_COMBINE, "combine", axes, some ? 4 : 3);
    Merge m = {.old = ARENA_ARRAY(b->arena, TileValue *, n + 1),
               .part = ARENA_ARRAY(b->arena, TileValue *, n + 1),
               .new = ARENA_ARRAY(b->arena, TileValue *, n + 1),
               .raw_old = ARENA_ARRAY(b->arena, TileValue *, shifts + 1),
               .raw_part = ARENA_ARRAY(b->arena, TileValue *, shifts + 1),
               .raw_new = ARENA_ARRAY(b->arena, TileValue *, shifts + 1),
               .c_old = ARENA_ARRAY(b->arena, TileValue *, shifts + 1),
               .c_part = ARENA_ARRAY(b->arena, TileValue *, shifts + 1),
               .r_old = ARENA_ARRAY(b->arena, TileValue *, scales + 1),
               .r_part = ARENA_ARRAY(b->arena, TileValue *, scales + 1)};
    open_loop(b, &m);
    step(b, &m);
    bind_states(b, m.loop->results.data);
    build_finish(b, m.end);
    if (some) over_split_heads(b);
}
