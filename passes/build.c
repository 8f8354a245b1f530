// build.c: streaming form -> tile program, algorithm level.
//
// In: a Stream. Out: a program with one kernel that computes it, no target in it: extents are not
// chosen (tiles of one element), nothing is fused or hoisted, every row scalar is a map of its own.
// Afterwards tile_verify holds.
//
// Axes: M the queries of one head, N the keys, D and E the columns of q, k and of v, o. For
// softmax:
//
//     grid b, h, M
//     %q = load q[b, h, M, D]
//     loop N carry %m = -inf, %l = 0, %acc = 0
//       %k = load k[b, h * Hkv / H, N, D]
//       %dot = mma %q, %k                                  f32[M, N]
//       %s = map select(mask, dot * 0.125, -inf)
//       %m_tile = map rowmax over N of s                   f32[M]
//       %m_new = map max(m, m_tile)
//       %a_old = map -(m * log2e); %a = map safe(-(m_new * log2e)); %c = map exp2(a - a_old)
//       %l_tile = map rowsum over N of exp2(s * log2e + a); %l_new = map l * c + l_tile
//       %p = map exp2(s * log2e + a)                       v's dtype [M, N]
//       %v = load v; %acc_new = mma %p, %v, map(acc * c)
//     %o = map select(m == -inf, 0, acc * (1 / l)); store o
//
// A masked key reaches the reductions as s = -inf whatever modify made of it (select lets no NaN
// through).
#include "passes.h"
#include "rewrite.h"

#include <assert.h>
#include <math.h>

enum { AX_M, AX_N, AX_D, AX_E, AX_COUNT };
enum { SET_M = 1 << AX_M, SET_MN = 1 << AX_M | 1 << AX_N, SET_ME = 1 << AX_M | 1 << AX_E };

typedef struct Binding { // what a symbol of the streaming form stands for at this place
    ExSym sym;
    int index;
    TileValue *value;
} Binding;

typedef struct Build {
    Arena *arena;
    ExPool *pool;
    const Stream *s;
    const RowProgram *row;
    TileProgram *p;
    TileKernel *k;
    TileBlock *block;
    VEC(Binding) env; // later ones hide earlier ones
    int tensor_q, tensor_k, tensor_v, tensor_o;
} Build;

// ---- small expressions

static const Ex *size_of(Build *b, int index) { return ex_sym(b->pool, SYM_SIZE, index, EX_I32); }

static const Ex *pos_of(Build *b, int axis) { return ex_sym(b->pool, SYM_POS, axis, EX_I32); }

static const Ex *q_idx(Build *b) {
    return ex_2(b->pool, EX_ADD, size_of(b, SIZE_Q_OFFSET), pos_of(b, AX_M));
}

static const Ex *identity_of(Build *b, ExOp reduce) {
    if (reduce == EX_ROWSUM) return ex_f32(b->pool, 0.0f);
    return ex_f32(b->pool, reduce == EX_ROWMAX ? -INFINITY : INFINITY);
}

static ExOp merge_of(ExOp reduce) {
    if (reduce == EX_ROWSUM) return EX_ADD;
    return reduce == EX_ROWMAX ? EX_MAX : EX_MIN;
}

// ---- the environment

static void bind(Build *b, ExSym sym, int index, TileValue *v) {
    Binding new = {sym, index, v};
    VEC_PUSH(b->arena, &b->env, new);
}

static TileValue *bound(const Build *b, ExSym sym, int index) {
    for (int i = b->env.n; i-- > 0;)
        if (b->env.data[i].sym == sym && b->env.data[i].index == index) return b->env.data[i].value;
    return NULL;
}

// ---- maps from expressions of the streaming form

typedef struct Resolve {
    Build *b;
    TileOp *map; // NULL: an expression outside maps, where nothing is bound to values
} Resolve;

static const Ex *resolve_one(void *ctx, ExPool *pool, const Ex *e) {
    Resolve *r = ctx;
    // What is inside for every query and key need not be for a tile that goes past the last of them
    // (inside.c).
    if (e->op == EX_LOAD && e->inside)
        return ex_load(pool, e->input, e->type, e->args, e->nargs, false);
    if (e->op != EX_SYM) return e;
    if (e->sym == SYM_Q_IDX) return q_idx(r->b);
    if (e->sym == SYM_KV_IDX) return pos_of(r->b, AX_N);
    if (e->sym == SYM_D_IDX) return pos_of(r->b, AX_E);
    TileValue *v = r->map ? bound(r->b, e->sym, e->index) : NULL;
    return v ? pass_operand(r->b->p, r->map, v) : e;
}

static const Ex *resolve(Build *b, TileOp *map, const Ex *e) {
    Resolve r = {b, map};
    return ex_map(b->pool, e, resolve_one, &r);
}

static TileValue *map_of(Build *b, const char *name, Dtype t, AxisSet axes, const Ex *e) {
    TileOp *map = pass_map(b->p, b->k, b->block, axes, e->span);
    return pass_out(b->p, b->k, map, name, t, resolve(b, map, e), EX_CONST, 0);
}

static TileValue *reduce_of(Build *b, const char *name, AxisSet axes, ExOp op, int axis,
                            const Ex *e) {
    TileOp *map = pass_map(b->p, b->k, b->block, axes, e->span);
    return pass_out(b->p, b->k, map, name, DT_F32, resolve(b, map, e), op, axis);
}

static TileValue *row_map(Build *b, const char *name, const Ex *e) {
    return map_of(b, name, DT_F32, SET_M, e);
}

// ---- tensors and axes

static int add_tensor(Build *b, TileTensor t) {
    VEC_PUSH(b->arena, &b->p->tensors, t);
    return b->p->tensors.n - 1;
}

static int add_main_tensor(Build *b, const char *name, TensorRole role, Dtype t, int heads,
                           int rows, int columns) {
    return add_tensor(b, (TileTensor){.name = name,
                                      .role = role,
                                      .dtype = t,
                                      .rank = 4,
                                      .extent = {size_of(b, SIZE_B), size_of(b, heads),
                                                 size_of(b, rows), ex_i32(b->pool, columns)}});
}

static void add_inputs(Build *b) {
    for (int i = 0; i < b->row->inputs.n; i++) {
        const RowInput *in = &b->row->inputs.data[i];
        TileTensor t = {.name = in->name,
                        .role = TENSOR_INPUT,
                        .index = i,
                        .dtype = in->dtype,
                        .rank = in->rank,
                        .bare_q = in->bare_q};
        for (int d = 0; d < in->rank; d++) t.extent[d] = in->extent[d];
        int tensor = add_tensor(b, t);
        VEC_PUSH(b->arena, &b->p->inputs, tensor);
    }
}

static void add_tensors(Build *b, Dtype t) {
    const RowProgram *row = b->row;
    b->tensor_q = add_main_tensor(b, "q", TENSOR_Q, t, SIZE_HQ, SIZE_SQ, row->D);
    b->tensor_k = add_main_tensor(b, "k", TENSOR_K, t, SIZE_HKV, SIZE_SK, row->D);
    b->tensor_v = add_main_tensor(b, "v", TENSOR_V, t, SIZE_HKV, SIZE_SK, row->Dv);
    b->tensor_o = add_main_tensor(b, "o", TENSOR_O, t, SIZE_HQ, SIZE_SQ, row->Dv);
    add_inputs(b);
    for (int i = 0; i < row->emits.n; i++)
        add_tensor(b, (TileTensor){.name = row->emits.data[i].name,
                                   .role = TENSOR_EMIT,
                                   .index = i,
                                   .dtype = DT_F32,
                                   .rank = 3,
                                   .extent = {size_of(b, SIZE_B), size_of(b, SIZE_HQ),
                                              size_of(b, SIZE_SQ)}});
}

static int emit_tensor(const Build *b, int emit) { return 4 + b->row->inputs.n + emit; }

static void begin_kernel(Build *b, const char *name) {
    ExPool *x = b->pool;
    TileKernel *k = b->k = tile_kernel(b->p, name);
    tile_axis(k, "M", size_of(b, SIZE_SQ), false);
    tile_axis(k, "N", size_of(b, SIZE_SK), false);
    tile_axis(k, "D", ex_i32(x, b->row->D), true);
    tile_axis(k, "E", ex_i32(x, b->row->Dv), true);
    k->ngrid = 3;
    k->grid[0] = (TileGrid){.sym = SYM_B, .count = size_of(b, SIZE_B)};
    k->grid[1] = (TileGrid){.sym = SYM_H, .count = size_of(b, SIZE_HQ)};
    k->grid[2] = (TileGrid){.sym = SYM_TILE, .axis = AX_M, .count = ex_i32(x, 1)};
    k->mask = ex_2(x, EX_AND, resolve(b, NULL, b->row->mask),
                   ex_2(x, EX_LT, pos_of(b, AX_N), size_of(b, SIZE_SK)));
    b->block = &k->body;
    b->env.n = 0;
}

// ---- loads and stores

static TileCoord along(Build *b, int axis) {
    const Ex *tile =
        b->k->axes[axis].whole ? ex_i32(b->pool, 0) : ex_sym(b->pool, SYM_TILE, axis, EX_I32);
    return (TileCoord){axis, tile};
}

static void set_coords(Build *b, TileOp *op, const Ex *head, int rows, int columns) {
    op->coord[0] = (TileCoord){-1, ex_symbol(b->pool, SYM_B)};
    op->coord[1] = (TileCoord){-1, head};
    op->coord[2] = along(b, rows);
    if (columns >= 0) op->coord[3] = along(b, columns);
}

static TileValue *load(Build *b, const char *name, int tensor, const Ex *head, int rows,
                       int columns) {
    TileOp *op = tile_op(b->p, b->k, b->block, TILE_LOAD, b->row->span);
    op->tensor = tensor;
    set_coords(b, op, head, rows, columns);
    uint8_t axes[] = {(uint8_t)rows, (uint8_t)columns};
    return tile_result(b->p, b->k, op, name, b->p->dtype, axes, 2);
}

static void store(Build *b, int tensor, TileValue *v, int columns) {
    TileOp *op = tile_op(b->p, b->k, b->block, TILE_STORE, b->row->span);
    op->tensor = tensor;
    set_coords(b, op, ex_symbol(b->pool, SYM_H), AX_M, columns);
    tile_arg(b->p, op, v);
}

static const Ex *kv_head(Build *b) {
    const Ex *scaled = ex_2(b->pool, EX_MUL, ex_symbol(b->pool, SYM_H), size_of(b, SIZE_HKV));
    return ex_2(b->pool, EX_DIV, scaled, size_of(b, SIZE_HQ));
}

static TileValue *mma(Build *b, const char *name, TileValue *x, TileValue *y, TileValue *sum,
                      uint8_t columns) {
    TileOp *op = tile_op(b->p, b->k, b->block, TILE_MMA, b->row->span);
    tile_arg(b->p, op, x);
    tile_arg(b->p, op, y);
    if (sum) tile_arg(b->p, op, sum);
    uint8_t axes[] = {AX_M, columns};
    return tile_result(b->p, b->k, op, name, DT_F32, axes, 2);
}

// The sum of squares over the columns: sqnorm_q, sqnorm_k.
static TileValue *sqnorm(Build *b, const char *name, TileValue *x, int rows, int columns) {
    TileOp *map = pass_map(b->p, b->k, b->block, 1u << rows | 1u << columns, b->row->span);
    const Ex *e = pass_operand(b->p, map, x);
    return pass_out(b->p, b->k, map, name, DT_F32, ex_2(b->pool, EX_MUL, e, e), EX_ROWSUM, columns);
}

// ---- row scalars: shifts and finished reductions

typedef struct Ready {
    const Build *b;
    bool ok;
} Ready;

static void need_bound(void *ctx, const Ex *e) {
    Ready *r = ctx;
    if (e->op == EX_SYM && (e->sym == SYM_STATE || e->sym == SYM_R) &&
        !bound(r->b, e->sym, e->index))
        r->ok = false;
}

// Binds every reduction whose states are known by now. Those that nothing reads are removed later
// (pass_tidy).
static void finish_reductions(Build *b) {
    for (int i = 0; i < b->s->finished.n; i++) {
        Ready r = {b, !bound(b, SYM_R, i)};
        ex_visit(b->s->finished.data[i], need_bound, &r);
        if (r.ok)
            bind(b, SYM_R, i, row_map(b, b->row->reduces.data[i].name, b->s->finished.data[i]));
    }
}

static TileValue *raw_shift(Build *b, int shift, const char *name) {
    return row_map(b, name, b->s->shifts.data[shift]);
}

// The value that elements use: 0 while the row is empty (raw = +inf).
static TileValue *safe_shift(Build *b, TileValue *raw) {
    ExPool *x = b->pool;
    TileOp *map = pass_map(b->p, b->k, b->block, SET_M, b->row->span);
    const Ex *r = pass_operand(b->p, map, raw);
    const Ex *none = ex_2(x, EX_EQ, r, ex_f32(x, INFINITY));
    return pass_out(b->p, b->k, map, "a", DT_F32, ex_select(x, none, ex_f32(x, 0.0f), r), EX_CONST,
                    0);
}

// ---- one sweep

typedef struct Sweep {
    int number;
    bool last;
    TileOp *loop;
    TileValue *acc;      // carried
    TileValue **old;     // by state: carried value; NULL for other sweeps' states
    TileValue **rescale; // by shift: what accumulated sums are multiplied by; NULL until needed
} Sweep;

// One carried value: its start before the loop, its name in it, its last value after it.
static TileValue *carry(Build *b, TileOp *loop, const char *name, TileValue *start) {
    TileProgram *p = b->p;
    tile_arg(p, loop, start);
    TileValue *inside = tile_value(p, b->k, name, DT_F32, start->axis, start->rank);
    inside->def = loop;
    VEC_PUSH(b->arena, &loop->carried, inside);
    const char *after = arena_printf(b->arena, "%s_end", name);
    tile_result(p, b->k, loop, after, DT_F32, start->axis, start->rank);
    return inside;
}

static void open_loop(Build *b, Sweep *w, TileValue **start, TileValue *acc_start) {
    TileOp *loop = w->loop = tile_op(b->p, b->k, b->block, TILE_LOOP, b->row->span);
    loop->axis = AX_N;
    loop->from = ex_i32(b->pool, 0);
    loop->to = ex_i32(b->pool, 1);
    loop->index = ex_symbol(b->pool, SYM_STEP);
    for (int i = 0; i < b->s->states.n; i++)
        if (start[i]) w->old[i] = carry(b, loop, b->s->states.data[i].name, start[i]);
    if (acc_start) w->acc = carry(b, loop, "acc", acc_start);
    b->block = &loop->body;
}

// The modified score, -inf where the key is masked.
static TileValue *scores(Build *b, TileValue *q, TileValue *sqq) {
    ExPool *x = b->pool;
    const Ex *modified = b->row->modified;
    TileValue *k = load(b, "k", b->tensor_k, kv_head(b), AX_N, AX_D);
    if (ex_uses(modified, SYM_DOT, 0)) bind(b, SYM_DOT, 0, mma(b, "dot", q, k, NULL, AX_N));
    if (ex_uses(modified, SYM_SQQ, 0)) bind(b, SYM_SQQ, 0, sqq);
    if (ex_uses(modified, SYM_SQK, 0)) bind(b, SYM_SQK, 0, sqnorm(b, "sqk", k, AX_N, AX_D));
    const Ex *masked = ex_select(x, ex_symbol(x, SYM_MASK), modified, ex_f32(x, -INFINITY));
    return map_of(b, "s", DT_F32, SET_MN, masked);
}

// Makes a shift's new value and its rescale factor, once its states are up to date.
static void advance_shift(Build *b, Sweep *w, int shift) {
    if (shift < 0 || w->rescale[shift]) return;
    int mark = b->env.n;
    for (int i = 0; i < b->s->states.n; i++)
        if (w->old[i]) bind(b, SYM_STATE, i, w->old[i]);
    TileValue *before = raw_shift(b, shift, "a_old");
    b->env.n = mark;
    TileValue *now = safe_shift(b, raw_shift(b, shift, "a_new"));
    TileOp *map = pass_map(b->p, b->k, b->block, SET_M, b->row->span);
    const Ex *step =
        ex_2(b->pool, EX_SUB, pass_operand(b->p, map, now), pass_operand(b->p, map, before));
    w->rescale[shift] =
        pass_out(b->p, b->k, map, "c", DT_F32, ex_1(b->pool, EX_EXP2, step), EX_CONST, 0);
    bind(b, SYM_SHIFT, shift, now);
}

static void advance_shifts_of(Build *b, Sweep *w, const Ex *elem, int shift) {
    advance_shift(b, w, shift);
    for (int i = 0; i < b->s->shifts.n; i++)
        if (ex_uses(elem, SYM_SHIFT, i)) advance_shift(b, w, i);
}

static TileValue *advance_state(Build *b, Sweep *w, int state) {
    const StreamState *st = &b->s->states.data[state];
    advance_shifts_of(b, w, st->elem, st->shift);
    TileValue *tile =
        reduce_of(b, arena_printf(b->arena, "%s_tile", st->name), SET_MN, st->op, AX_N, st->elem);
    TileOp *map = pass_map(b->p, b->k, b->block, SET_M, st->span);
    const Ex *old = pass_operand(b->p, map, w->old[state]);
    if (st->shift >= 0)
        old = ex_2(b->pool, EX_MUL, old, pass_operand(b->p, map, w->rescale[st->shift]));
    const Ex *merged = ex_2(b->pool, merge_of(st->op), old, pass_operand(b->p, map, tile));
    return pass_out(b->p, b->k, map, arena_printf(b->arena, "%s_new", st->name), DT_F32, merged,
                    EX_CONST, 0);
}

static TileValue *advance_acc(Build *b, Sweep *w) {
    const Stream *s = b->s;
    bool narrow = b->p->dtype == DT_F16 || b->p->dtype == DT_BF16;
    advance_shifts_of(b, w, s->elem, s->shift);
    TileValue *weights = map_of(b, "p", narrow ? b->p->dtype : DT_F32, SET_MN, s->elem);
    TileValue *sum = w->acc;
    if (s->shift >= 0) {
        TileOp *map = pass_map(b->p, b->k, b->block, SET_ME, b->row->span);
        const Ex *old = pass_operand(b->p, map, w->acc);
        const Ex *scaled =
            ex_2(b->pool, EX_MUL, old, pass_operand(b->p, map, w->rescale[s->shift]));
        sum = pass_out(b->p, b->k, map, "acc_scaled", DT_F32, scaled, EX_CONST, 0);
    }
    TileValue *v = load(b, "v", b->tensor_v, kv_head(b), AX_N, AX_E);
    return mma(b, "acc_new", weights, v, sum, AX_E);
}

static void close_loop(Build *b, Sweep *w, TileValue *const *new, TileValue *acc) {
    TileOp *yield = tile_op(b->p, b->k, b->block, TILE_YIELD, b->row->span);
    for (int i = 0; i < b->s->states.n; i++)
        if (w->old[i]) tile_arg(b->p, yield, new[i]);
    if (acc) tile_arg(b->p, yield, acc);
    b->block = w->loop->block;
}

// One loop over the keys; afterwards its states are bound to their last values. Gives the
// accumulator of the last sweep.
static TileValue *sweep(Build *b, int number, TileValue *q, TileValue *sqq) {
    const Stream *s = b->s;
    int n = s->states.n;
    Sweep w = {.number = number,
               .last = number == s->nsweeps - 1,
               .old = ARENA_ARRAY(b->arena, TileValue *, n + 1),
               .rescale = ARENA_ARRAY(b->arena, TileValue *, s->shifts.n + 1)};
    TileValue **start = ARENA_ARRAY(b->arena, TileValue *, n + 1),
              **new = ARENA_ARRAY(b->arena, TileValue *, n + 1);
    for (int i = 0; i < n; i++) {
        const StreamState *st = &s->states.data[i];
        if (st->sweep == number)
            start[i] = map_of(b, arena_printf(b->arena, "%s_0", st->name), DT_F32, SET_M,
                              identity_of(b, st->op));
    }
    TileValue *acc = w.last ? map_of(b, "acc_0", DT_F32, SET_ME, ex_f32(b->pool, 0.0f)) : NULL;
    open_loop(b, &w, start, acc);
    int mark = b->env.n;
    bind(b, SYM_S, 0, scores(b, q, sqq));
    for (int i = 0; i < n; i++)
        if (w.old[i]) bind(b, SYM_STATE, i, new[i] = advance_state(b, &w, i));
    acc = w.last ? advance_acc(b, &w) : NULL;
    close_loop(b, &w, new, acc);
    b->env.n = mark;
    int result = 0;
    for (int i = 0; i < n; i++)
        if (w.old[i]) bind(b, SYM_STATE, i, w.loop->results.data[result++]);
    return w.last ? w.loop->results.data[result] : NULL;
}

// ---- after the sweeps

// acc times the deferred factor; 0 for a row without a key, whatever the factor makes of it.
static TileValue *aggregated(Build *b, TileValue *acc) {
    ExPool *x = b->pool;
    const Stream *s = b->s;
    TileValue *factor = s->factor ? row_map(b, "factor", s->factor) : NULL;
    TileOp *map = pass_map(b->p, b->k, b->block, SET_ME, b->row->span);
    const Ex *e = pass_operand(b->p, map, acc);
    if (factor) e = ex_2(x, EX_MUL, e, pass_operand(b->p, map, factor));
    if (s->empty) e = ex_select(x, resolve(b, map, s->empty), ex_f32(x, 0.0f), e);
    return pass_out(b->p, b->k, map, "agg", DT_F32, e, EX_CONST, 0);
}

static void finish(Build *b, TileValue *acc) {
    const RowProgram *row = b->row;
    finish_reductions(b);
    for (int i = 0; i < row->emits.n; i++)
        store(b, emit_tensor(b, i), row_map(b, row->emits.data[i].name, row->emits.data[i].value),
              -1);
    TileValue *agg = aggregated(b, acc);
    bind(b, SYM_O, 0, agg);
    if (ex_uses(row->output, SYM_SQO, 0)) {
        // Columns past Dv (a padded tile) must not count.
        ExPool *x = b->pool;
        const Ex *o = ex_symbol(x, SYM_O);
        const Ex *in = ex_2(x, EX_LT, pos_of(b, AX_E), ex_i32(x, row->Dv));
        const Ex *square = ex_select(x, in, ex_2(x, EX_MUL, o, o), ex_f32(x, 0.0f));
        bind(b, SYM_SQO, 0, reduce_of(b, "sqo", SET_ME, EX_ROWSUM, AX_E, square));
    }
    store(b, b->tensor_o, map_of(b, "o", DT_F32, SET_ME, row->output), AX_E);
}

static void build_forward(Build *b) {
    begin_kernel(b, arena_printf(b->arena, "%s_fwd", b->row->name));
    TileValue *q = load(b, "q", b->tensor_q, ex_symbol(b->pool, SYM_H), AX_M, AX_D);
    TileValue *sqq = sqnorm(b, "sqq", q, AX_M, AX_D);
    TileValue *acc = NULL;
    for (int i = 0; i < b->s->nsweeps; i++) {
        finish_reductions(b);
        acc = sweep(b, i, q, sqq);
    }
    finish(b, acc);
}

TileProgram *pass_build(Arena *a, const Stream *s, const PassOptions *o) {
    const RowProgram *row = s->row;
    Build b = {.arena = a, .pool = row->pool, .s = s, .row = row};
    TileProgram *p = b.p = tile_program(a, row->pool, row->name);
    p->target = o->target.id;
    p->dtype = o->dtype;
    p->D = row->D;
    p->Dv = row->Dv;
    p->sizes.n = 0;
    for (int i = 0; i < row->sizes.n; i++) {
        TileSize size = {.name = row->sizes.data[i]};
        VEC_PUSH(a, &p->sizes, size);
    }
    add_tensors(&b, o->dtype);
    build_forward(&b);
    TilePlan plan = {0};
    VEC_PUSH(a, &plan.kernels, 0);
    VEC_PUSH(a, &p->plans, plan);
    return p;
}
