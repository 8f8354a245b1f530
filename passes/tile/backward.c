// backward.c: the derived backward -> tile program, algorithm level.
//
// In: a Backward (ir/backward.h). Out: a program of phase bwd. For softmax:
//
//     delta      grid b, h, M:    %delta = rowsum over E of do * o; store
//     gradients  grid b, hkv, N:  a tile of keys; the heads of its group, and their tiles of queries:
//         %s = mma k, q;  %w = select(mask, exp2(s * 0.18 + L), 0);  %dw = mma v, do;  %ds = w * (dw - delta)
//         dv += mma w, do;  dk += mma ds, q;  store dq += mma ds, k
//
// So as a `nest`, where dq is summed in f32 workspace unless it is f32 itself, and a last kernel converts it. Otherwise dq has a
// kernel of its own over tiles of queries, and each number is added up in one order. A pair that takes no part is selected to 0 in the weight and in each gradient.
#include "passes/schedule/schedule.h"
#include "passes/tile/gradients.h"

#include <assert.h>
#include <math.h>

// Whether the main kernel's formulas use a symbol.
static bool main_uses(const Backward *b, ExSym s, int k) {
    const Ex *all[] = {b->weight, b->tame_weight, b->ds, b->d_o};
    bool any = false;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) any |= all[i] && ex_uses(all[i], s, k);
    for (int i = 0; i < b->products.n; i++) any |= ex_uses(b->products.data[i].d, s, k);
    for (int i = 0; i < b->grads.n; i++)
        any |= b->grads.data[i].per == BACK_PAIR && ex_uses(b->grads.data[i].value, s, k);
    return any;
}

static bool pairs_use(const Backward *b, ExSym s, int k) {
    bool any = main_uses(b, s, k);
    for (int i = 0; i < b->rows.n; i++) // the further sweep's
        any |= b->rows.data[i].made == BACK_KEYS && ex_uses(b->rows.data[i].value, s, k);
    return any;
}

// ---- tensors

static int tensor(Nest *n, const char *name, TensorRole role, int index, Dtype t, int heads,
                  int rows, int columns) {
    return build_main_tensor(&n->b, name, role, index, t, heads, rows, columns);
}

// A number of each query in workspace.
static int work(Nest *n, const char *name, int index, bool aligned) {
    enum { TOGETHER = 4 };
    ExPool *x = n->b.pool;
    TileTensor t = build_open_tensor(&n->b, name, TENSOR_WORK, index, DT_F32, SIZE_HQ, SIZE_SQ, 0);
    const Ex **rows = &t.extent[t.rank - 1], *four = ex_i32(x, TOGETHER);
    const Ex *up = ex_2(x, EX_ADD, *rows, ex_i32(x, TOGETHER - 1));
    if (aligned) *rows = ex_2(x, EX_MUL, ex_2(x, EX_DIV, up, four), four);
    return build_tensor(&n->b, t);
}

static const char *numbered(Nest *n, const char *name, int i) {
    return arena_printf(n->b.arena, "%s%d", name, i);
}

static bool main_needs(const Backward *b, int row) { return main_uses(b, SYM_ROW, row); }

static void add_input_gradients(Nest *n) {
    const RowProgram *row = n->b.row;
    int work = 2 * n->back->rows.n + 4 + n->seen.n;
    n->grad = ARENA_ARRAY(n->b.arena, int, row->inputs.n + 1);
    n->adds = ARENA_ARRAY(n->b.arena, int, row->inputs.n + 1);
    for (int i = 0; i < row->inputs.n; i++) {
        const RowInput *in = &row->inputs.data[i];
        TileTensor t = {.name = arena_printf(n->b.arena, "d%s", in->name),
                        .role = TENSOR_GRAD,
                        .index = i,
                        .dtype = DT_F32};
        const TileTensor *of =
            &n->b.p->tensors.data[n->b.p->inputs.data[i]]; // which lies as its gradient
        for (int d = t.rank = of->rank; d-- > 0;) t.extent[d] = of->extent[d];
        if (!in->rank) t.extent[t.rank++] = ex_i32(n->b.pool, 1); // of a scalar: one number
        n->adds[i] = n->grad[i] = in->grad ? build_tensor(&n->b, t) : -1;
        if (!in->grad || !n->exact) continue;
        t.name = numbered(n, "exact", i);
        t.role = TENSOR_WORK, t.index = work++, t.exact = true;
        t.extent[t.rank++] = ex_i32(n->b.pool, TILE_EXACT_WORDS);
        n->adds[i] = build_tensor(&n->b, t);
    }
}

static void add_tensors(Nest *n, bool nest) {
    const RowProgram *row = n->b.row;
    bool aligned = nest && n->by_element;
    const Backward *b = n->back;
    build_tensors(&n->b, n->dtype, n->dtype, false);
    n->tensor_do = tensor(n, "do", TENSOR_DO, 0, n->dtype, SIZE_HQ, SIZE_SQ, row->Dv);
    n->tensor_dq = tensor(n, "dq", TENSOR_DQ, 0, n->dtype, SIZE_HQ, SIZE_SQ, row->D);
    n->tensor_dk = tensor(n, "dk", TENSOR_DK, 0, n->dtype, SIZE_HKV, SIZE_SK, row->D);
    n->tensor_dv = row->v_in_k
                       ? n->tensor_dk
                       : tensor(n, "dv", TENSOR_DV, 0, n->dtype, SIZE_HKV, SIZE_SK, row->Dv);
    n->demit = ARENA_ARRAY(n->b.arena, int, row->emits.n + 1);
    for (int i = 0; i < row->emits.n; i++)
        n->demit[i] = tensor(n, arena_printf(n->b.arena, "d%s", row->emits.data[i].name),
                             TENSOR_DEMIT, i, DT_F32, SIZE_HQ, SIZE_SQ, 0);
    n->sums[ROW_QUERIES] = n->tensor_dq, n->sums[ROW_KEYS] = n->tensor_dk;
    if ((nest || n->pieces[ROW_QUERIES]) && n->dtype != DT_F32)
        n->sums[ROW_QUERIES] =
            tensor(n, "sums", TENSOR_WORK, 2 * b->rows.n, DT_F32, SIZE_HQ, SIZE_SQ, row->D);
    if (n->pieces[ROW_KEYS] && n->dtype != DT_F32)
        n->sums[ROW_KEYS] =
            tensor(n, "sums_k", TENSOR_WORK, 2 * b->rows.n + 3, DT_F32, SIZE_HKV, SIZE_SK, row->D);
    for (int i = 0; i < n->seen.n; i++) {
        Seen *s = &n->seen.data[i];
        s->tensor = tensor(n, numbered(n, "seen", i), TENSOR_WORK, 2 * b->rows.n + 4 + i, n->dtype,
                           SIZE_HQ, SIZE_SQ, row->rows[ROW_QUERIES].data[s->row].width);
    }
    n->row = ARENA_ARRAY(n->b.arena, int, b->rows.n + 1);
    n->near = ARENA_ARRAY(n->b.arena, int, b->rows.n + 1);
    for (int i = 0; i < b->rows.n; i++) {
        bool saved = i < b->nsaved;
        n->row[i] = -1;
        if (saved)
            n->row[i] =
                tensor(n, numbered(n, "saved", i), TENSOR_SAVED, i, DT_F32, SIZE_HQ, SIZE_SQ, 0);
        if (!saved && main_needs(b, i))
            n->row[i] = work(n, numbered(n, "row", i), i - b->nsaved, aligned);
        n->near[i] = n->row[i];
        if (saved && aligned && main_needs(b, i))
            n->near[i] = work(n, numbered(n, "near", i), b->rows.n + i, true);
    }
    n->tensor_doa = b->aggregate ? tensor(n, "doa", TENSOR_WORK, 2 * b->rows.n + 2, n->dtype,
                                          SIZE_HQ, SIZE_SQ, row->Dv)
                                 : -1;
    TileTensor wild = {.name = "wild",
                       .role = TENSOR_WORK,
                       .index = 2 * b->rows.n + 1,
                       .dtype = DT_F32,
                       .rank = 1,
                       .extent = {ex_i32(n->b.pool, 1)}};
    n->tensor_wild = b->tame ? build_tensor(&n->b, wild) : -1;
    add_input_gradients(n);
}

// ---- pairs

static const Ex *selected(Nest *n, const Ex *e) {
    return ex_select(n->b.pool, n->takes, e, ex_f32(n->b.pool, 0));
}

static TileValue *of_pairs(Nest *n, const char *name, Dtype t, const Ex *e) {
    return e ? grad_map(n, name, t, AX_M, AX_N, selected(n, e)) : NULL;
}

// Of tiles of the rows, which are there.
static TileValue *weight(Nest *n) {
    Build *b = &n->b;
    ExPool *x = b->pool;
    const RowProgram *row = b->row;
    const Ex *modified = row->modified, *mask = ex_symbol(x, SYM_MASK), *s = ex_symbol(x, SYM_S);
    const Backward *back = n->back;
    for (int i = 0; i < row->dots.n; i++)
        if (ex_uses(modified, SYM_DOT, i) || pairs_use(back, SYM_DOT, i))
            build_bind(b, SYM_DOT, i, grad_dot(n, i));
    for (int side = 0; side < ROW_SIDES; side++)
        for (int i = 0; i < row->rows[side].n; i++) {
            ExSym norm = side == ROW_KEYS ? SYM_SQK : SYM_SQQ;
            if (ex_uses(modified, norm, i) || pairs_use(back, norm, i))
                build_bind(b, norm, i, grad_squares(n, (RowSide)side, i));
        }
    build_bind(b, SYM_S, 0, grad_map(n, "s", DT_F32, AX_M, AX_N, modified));
    n->takes = build_score_is_finite(b)
                   ? mask
                   : ex_2(x, EX_AND, mask, ex_2(x, EX_NE, s, ex_f32(x, -INFINITY)));
    TileValue *w = of_pairs(n, "w", DT_F32, back->weight);
    build_bind(b, SYM_W, 0, w);
    return w;
}

// And from do and v to its gradient.
static TileValue *weights(Nest *n, TileValue *v, TileValue *doa) {
    TileValue *w = weight(n);
    if (pairs_use(n->back, SYM_DW, -1))
        build_bind(&n->b, SYM_DW, 0, grad_mma(n, "dw", v, doa, NULL, AX_M, AX_N));
    return w;
}

// A weight or a gradient as products take it.
static TileValue *narrow(Nest *n, TileValue *w) {
    return n->dtype == DT_F32 ? w
                              : grad_map(n, "w", n->dtype, AX_M, AX_N, ex_symbol(n->b.pool, SYM_W));
}

// And on to the gradients of the scores.
static Pair pair(Nest *n, TileValue *v, TileValue *doa) {
    Build *b = &n->b;
    const Backward *back = n->back;
    Pair p = {.w = weights(n, v, doa),
              .products = ARENA_ARRAY(b->arena, TileValue *, back->products.n + 1)};
    build_bind(b, SYM_DS, 0, of_pairs(n, "ds", DT_F32, back->ds));
    for (int i = 0; i < back->products.n; i++) {
        const BackProduct *d = &back->products.data[i];
        const char *name = d->sym == SYM_DOT ? "d_dot" : d->sym == SYM_SQQ ? "d_sqq" : "d_sqk";
        p.products[i] = of_pairs(n, name, d->sym == SYM_DOT ? n->dtype : DT_F32, d->d);
    }
    return p;
}

// Loads do, and what makes of it the gradient of what is aggregated; binds row scalars.
static TileValue *come(Nest *n) {
    Build *b = &n->b;
    const Backward *back = n->back;
    const Ex *head = grad_head(n);
    for (int i = 0; i < back->rows.n && !n->by_keys; i++)
        if (n->row[i] >= 0 && main_needs(back, i))
            build_bind(b, SYM_ROW, i,
                       grad_load(n, numbered(n, "row", i), n->near[i], head, AX_M, AX_NONE));
    for (int i = 0; i < b->row->emits.n && !n->by_keys; i++)
        build_bind(b, SYM_DEMIT, i, grad_load(n, "demit", n->demit[i], head, AX_M, AX_NONE));
    if (n->tensor_doa >= 0) return grad_load(n, "doa", n->tensor_doa, head, AX_M, AX_E);
    TileValue *come = grad_load(n, "do", n->tensor_do, head, AX_M, AX_E);
    if (back->d_o->op == EX_SYM && back->d_o->sym == SYM_DO) return come;
    build_bind(b, SYM_DO, 0, come);
    return grad_map(n, "doa", n->dtype, AX_M, AX_E, back->d_o);
}

static void set_mask(Nest *n) {
    Build *b = &n->b;
    ExPool *x = b->pool;
    const Ex *keys = ex_2(x, EX_LT, build_pos(b, AX_N), build_size(b, SIZE_SK)),
             *queries = ex_2(x, EX_LT, build_pos(b, AX_M), build_size(b, SIZE_SQ));
    b->k->mask =
        ex_2(x, EX_AND, ex_2(x, EX_AND, build_resolve(b, NULL, grad_placed(n, b->row->mask)), keys),
             queries);
}

// ---- kernel: row scalars

static const AxisRole all_axes[] = {AX_M, AX_N, AX_D, AX_E};

// v: what goes round, before the loop, in it, and behind it.
static TileOp *open_loop(Nest *n, int axis, const Ex *to, TileValue **v, int count) {
    Build *b = &n->b;
    TileOp *loop = build_loop(b, axis, to);
    for (int i = 0; i < count; i++) v[i] = build_carry(b, loop, v[i]->name, v[i]);
    b->block = &loop->body;
    return loop;
}

static void close_loop(Nest *n, const TileOp *loop, TileValue **v, int count) {
    build_yield(&n->b, loop, v, count);
    for (int i = 0; i < count; i++) v[i] = loop->results.data[i];
}

static TileOp *open_sweep(Nest *n, TileValue **v, int count) {
    return open_loop(n, n->b.axis[AX_N], ex_i32(n->b.pool, 1), v, count);
}

static const Ex *in_columns(Nest *n, const Ex *e) {
    ExPool *x = n->b.pool;
    return ex_select(x, ex_2(x, EX_LT, build_pos(&n->b, AX_E), ex_i32(x, n->b.row->Dv)), e,
                     ex_f32(x, 0));
}

static const Ex *head_of_keys(Nest *n) {
    Build *b = &n->b;
    const Ex *h = ex_2(b->pool, EX_MUL, ex_symbol(b->pool, SYM_H), build_size(b, SIZE_HKV));
    return ex_2(b->pool, EX_DIV, h, build_size(b, SIZE_HQ));
}

// What is aggregated, once more: `output` does not tell.
static TileValue *aggregate(Nest *n) {
    Build *b = &n->b;
    grad_load_rows(n, ROW_QUERIES, grad_head(n), true, true);
    TileValue *sum = grad_zeros(n, "o", AX_M, AX_E);
    TileOp *loop = open_sweep(n, &sum, 1);
    int mark = b->env.n;
    grad_load_rows(n, ROW_KEYS, head_of_keys(n), true, true);
    TileValue *w = narrow(n, weight(n));
    sum = grad_mma(n, "o", w, grad_load(n, "v", b->tensor_v, head_of_keys(n), AX_N, AX_E), sum,
                   AX_M, AX_E);
    close_loop(n, loop, &sum, 1);
    b->env.n = mark;
    return sum;
}

// The further sweep: sums over the keys, all in one loop.
static void sweep(Nest *n) {
    Build *b = &n->b;
    const Backward *back = n->back;
    TileValue *sum[ROW_MAX_REDUCES * 3];
    int sums = 0;
    const Ex *hkv = head_of_keys(n);
    for (int i = 0; i < back->rows.n; i++) sums += back->rows.data[i].made == BACK_KEYS;
    if (!sums) return;
    TileValue *doa = build_bound(b, SYM_DO, 0);
    grad_load_rows(n, ROW_QUERIES, grad_head(n), true, true);
    if (back->d_o->op != EX_SYM) doa = grad_map(n, "doa", n->dtype, AX_M, AX_E, back->d_o);
    for (int i = 0; i < sums; i++) sum[i] = grad_zeros(n, "t", AX_M, AX_NONE);
    TileOp *loop = open_sweep(n, sum, sums);
    int mark = b->env.n;
    grad_load_rows(n, ROW_KEYS, hkv, true, true);
    weights(n, grad_load(n, "v", b->tensor_v, hkv, AX_N, AX_E), doa);
    for (int i = 0, k = 0; i < back->rows.n; i++) {
        if (back->rows.data[i].made != BACK_KEYS) continue;
        TileValue *tile =
            grad_sum_over(n, "t", AX_M, AX_N, AX_N, selected(n, back->rows.data[i].value));
        sum[k] = grad_plus(n, "t", sum[k], tile, AX_M, AX_NONE);
        k++;
    }
    close_loop(n, loop, sum, sums);
    b->env.n = mark;
    for (int i = 0, k = 0; i < back->rows.n; i++)
        if (back->rows.data[i].made == BACK_KEYS) build_bind(b, SYM_ROW, i, sum[k++]);
}

static void row_grads(Nest *n) {
    Build *b = &n->b;
    ExPool *x = b->pool;
    const Backward *back = n->back;
    const Ex *in = build_counts_row(b);
    for (int i = 0; i < back->grads.n; i++) {
        const BackGrad *g = &back->grads.data[i];
        if (g->per == BACK_PAIR || g->per == BACK_CHANNEL) continue;
        const Ex *value = g->value, *zero = ex_f32(x, 0);
        if (g->per == BACK_ROW && back->empty) value = ex_select(x, back->empty, zero, value);
        // a number of the row stands in its first column
        if (g->per == BACK_ROW)
            value = ex_select(x, ex_2(x, EX_EQ, build_pos(b, AX_E), ex_i32(x, 0)), value, zero);
        value = ex_select(x, in, in_columns(n, value), zero);
        grad_add(n, g, AX_E, value);
    }
}

static void count_wild(Nest *n) {
    Build *b = &n->b;
    ExPool *x = b->pool;
    const Ex *wild = ex_1(x, EX_NOT, n->back->tame), *in = build_has_row(b);
    wild = ex_select(x, ex_2(x, EX_AND, in, wild), ex_f32(x, 1), ex_f32(x, 0));
    TileValue *v = grad_map(n, "wild", DT_F32, AX_M, AX_NONE, wild);
    TileOp *op = tile_op(b->p, b->k, b->block, TILE_STORE, b->row->span);
    op->tensor = n->tensor_wild;
    op->add = op->each[0] = true;
    op->coord[0] = (TileCoord){.axis = b->axis[AX_M], .at = ex_i32(x, 0)};
    tile_arg(b->p, op, v);
}

static void build_delta(Nest *n) {
    Build *b = &n->b;
    const Backward *back = n->back;
    build_kernel(b, PURPOSE_DELTA, "delta", all_axes, 4);
    build_width_axes(b);
    n->head = NULL;
    set_mask(n);
    grad_leave_seen(n);
    const Ex *h = ex_symbol(b->pool, SYM_H);
    for (int i = 0; i < back->nsaved; i++)
        build_bind(b, SYM_ROW, i,
                   grad_load(n, numbered(n, "saved", i), n->row[i], h, AX_M, AX_NONE));
    for (int i = 0; i < b->row->emits.n; i++)
        build_bind(b, SYM_DEMIT, i, grad_load(n, "demit", n->demit[i], h, AX_M, AX_NONE));
    TileValue *o = back->aggregate ? aggregate(n) : grad_load(n, "o", b->tensor_o, h, AX_M, AX_E);
    build_bind(b, SYM_DO, 0, grad_load(n, "do", n->tensor_do, h, AX_M, AX_E));
    build_bind(b, SYM_O, 0, o);
    build_bind(b, SYM_SQO, 0, build_squares(b, "sqo", o, AX_M, AX_E, false));
    for (int pass = 0; pass < 2; pass++) { // the columns, then the keys, then what is made of both
        for (int i = back->nsaved; i < back->rows.n; i++) {
            const BackRow *r = &back->rows.data[i];
            if (r->made == BACK_COLUMNS && !pass)
                build_bind(b, SYM_ROW, i,
                           grad_sum_over(n, r->name, AX_M, AX_E, AX_E, in_columns(n, r->value)));
            if (r->made == BACK_SCALAR && pass)
                build_bind(b, SYM_ROW, i, grad_map(n, r->name, DT_F32, AX_M, AX_NONE, r->value));
        }
        if (!pass) sweep(n);
    }
    for (int i = 0; i < back->rows.n; i++)
        if (n->near[i] >= 0 && (i >= back->nsaved || n->near[i] != n->row[i]))
            grad_store(n, n->near[i], h, AX_M, AX_NONE, build_bound(b, SYM_ROW, i), false);
    if (n->tensor_doa >= 0)
        grad_store(n, n->tensor_doa, h, AX_M, AX_E,
                   grad_map(n, "doa", n->dtype, AX_M, AX_E, in_columns(n, back->d_o)), false);
    if (n->tensor_wild >= 0) count_wild(n);
    row_grads(n);
    for (const TileOp *op = b->k->body.first; op; op = op->next)
        if (op->kind == TILE_STORE) return;
    b->p->kernels.n--; // nobody needs it
}

// ---- kernel: gradients, over tiles of keys

// Whether blocks of such rows add a pair's gradient up over the whole loop.
static bool is_carried(Nest *n, const BackGrad *g, AxisRole rows) {
    bool pairs = n->by_element && g->per == BACK_PAIR && !grad_scatters(n, g, AX_N),
         keys = pairs && grad_goes_along(n, g, AX_N, AX_N);
    if (rows == AX_N) return keys && !grad_goes_along(n, g, AX_M, AX_N);
    return pairs && !keys;
}

// Of each step.
static void pair_grads(Nest *n) {
    for (int i = 0; i < n->back->grads.n; i++) {
        const BackGrad *g = &n->back->grads.data[i];
        bool carried = is_carried(n, g, AX_M) || is_carried(n, g, AX_N);
        if (g->per != BACK_PAIR || carried) continue;
        grad_add(n, g, AX_N, selected(n, g->value));
    }
}

// What a loop carries for them, behind `count` others.
static int begin_grads(Nest *n, AxisRole rows, TileValue **start, int count) {
    for (int i = 0; i < n->back->grads.n; i++)
        if (is_carried(n, &n->back->grads.data[i], rows))
            start[count++] = grad_zeros(n, "g0", (int)rows, AX_NONE);
    return count;
}

static void grow_grads(Nest *n, AxisRole rows, TileValue **sum) {
    AxisRole over = rows == AX_M ? AX_N : AX_M;
    for (int i = 0; i < n->back->grads.n; i++) {
        const BackGrad *g = &n->back->grads.data[i];
        if (!is_carried(n, g, rows)) continue;
        TileValue *tile = grad_sum_over(n, "g", AX_M, AX_N, over, selected(n, g->value));
        *sum = grad_plus(n, "g", *sum, tile, rows, AX_NONE);
        sum++;
    }
}

static void end_grads(Nest *n, AxisRole rows, TileValue *const *sum) {
    for (int i = 0; i < n->back->grads.n; i++) {
        const BackGrad *g = &n->back->grads.data[i];
        if (!is_carried(n, g, rows)) continue;
        int rides = grad_goes_along(n, g, rows, AX_N) ? AX_NONE : (int)rows;
        grad_store_input(n, g, AX_N, rides, *sum++);
    }
}

typedef struct
    Sums { // what the loops carry: those that are wanted, then of a head those of row inputs and of inputs
    bool dq, dk, dv; // dk, and what else comes of the gradients of scores
    int n, all;
    int *at; // by part of the keys; -1: not wanted
    TileValue **v;
} Sums;

static void begin_parts(Nest *n, Sums *s, bool own) {
    const Parts *parts = &n->parts[ROW_KEYS];
    for (int i = 0; i < parts->n && s->dk; i++) {
        if (grad_is_own(n, ROW_KEYS, parts->data[i].row) != own) continue;
        s->at[i] = s->all;
        s->v[s->all++] = grad_start(n, ROW_KEYS, &parts->data[i]);
    }
}

static Sums sums_of(Nest *n, bool dq, bool dk, bool dv) {
    int parts = n->parts[ROW_KEYS].n;
    Sums s = {.dq = dq, .dk = dk, .dv = dv};
    s.at = ARENA_ARRAY(n->b.arena, int, parts + 1);
    for (int i = 0; i < parts; i++) s.at[i] = -1;
    s.v = ARENA_ARRAY(n->b.arena, TileValue *, 1 + parts + n->back->grads.n);
    if (dv) s.v[s.all++] = grad_zeros(n, "dv", AX_N, AX_E);
    begin_parts(n, &s, true);
    s.n = s.all;
    return s;
}

// What parts of rows of keys came to.
static void give_keys(Nest *n, const Sums *s, bool own) {
    int parts = n->parts[ROW_KEYS].n;
    TileValue **sum = ARENA_ARRAY(n->b.arena, TileValue *, parts + 1);
    for (int i = 0; i < parts; i++) sum[i] = s->at[i] < 0 ? NULL : s->v[s->at[i]];
    if (s->dk) grad_give_rows(n, ROW_KEYS, sum, own, !own, !own || n->pieces[ROW_KEYS]);
}

static void grow_parts(Nest *n, const Pair *p, const Sums *s, bool own) {
    const Parts *parts = &n->parts[ROW_KEYS];
    for (int i = 0; i < parts->n; i++) {
        if (s->at[i] < 0 || grad_is_own(n, ROW_KEYS, parts->data[i].row) != own) continue;
        TileValue **sum = &s->v[s->at[i]], *more = grad_part(n, ROW_KEYS, &parts->data[i], p, *sum);
        if (more) *sum = more;
    }
}

// One tile of queries against the tile of keys.
static void step(Nest *n, TileValue *v, const Sums *s) {
    Build *b = &n->b;
    int mark = b->env.n;
    grad_load_rows(n, ROW_QUERIES, n->head, true, true);
    TileValue *doa = come(n);
    Pair p = pair(n, v, doa);
    TileValue *w = narrow(n, p.w);
    if (s->dv) s->v[0] = grad_mma(n, "dv", w, doa, s->v[0], AX_N, AX_E);
    grow_parts(n, &p, s, true);
    if (s->dq) {
        const Parts *parts = &n->parts[ROW_QUERIES];
        TileValue **sum = ARENA_ARRAY(b->arena, TileValue *, parts->n + 1);
        for (int i = 0; i < parts->n; i++)
            sum[i] = grad_part(n, ROW_QUERIES, &parts->data[i], &p, NULL);
        grad_give_rows(n, ROW_QUERIES, sum, true, true, true);
    }
    grow_parts(n, &p, s, false);
    if (s->dk) grow_grads(n, AX_N, s->v + s->all);
    if (s->dk) pair_grads(n);
    b->env.n = mark;
}

static TileKernel *build_keys(Nest *n, const char *name, bool dq, bool dk, bool dv) {
    Build *b = &n->b;
    ExPool *x = b->pool;
    TileKernel *k = build_kernel(b, PURPOSE_GRADIENTS, name, all_axes, 4);
    const Ex *heads = ex_2(x, EX_DIV, build_size(b, SIZE_HQ), build_size(b, SIZE_HKV)),
             *h = ex_symbol(x, SYM_H);
    build_width_axes(b);
    int group = tile_axis(k, "G", heads, false);
    k->axes[group].extent = 1;
    k->grid[1].count = build_size(b, SIZE_HKV);
    k->grid[2].axis = b->axis[AX_N];
    n->head = ex_2(x, EX_ADD, ex_2(x, EX_MUL, h, heads), ex_sym(x, SYM_TILE, group, EX_I32));
    n->by_keys = !dq;
    set_mask(n);
    grad_load_rows(n, ROW_KEYS, h, true, false);
    TileValue *values = grad_load(n, "v", b->tensor_v, h, AX_N, AX_E);
    Sums s = sums_of(n, dq, dk, dv);
    TileOp *over_heads = open_loop(n, group, heads, s.v, s.n);
    grad_load_rows(n, ROW_KEYS, h, false, true);
    begin_parts(n, &s, false);
    int all = dk ? begin_grads(n, AX_N, s.v, s.all) : s.all; // of a head of the group
    TileOp *over_rows = open_loop(n, b->axis[AX_M], ex_i32(x, 1), s.v, all);
    step(n, values, &s);
    close_loop(n, over_rows, s.v, all);
    give_keys(n, &s, false);
    if (dk) end_grads(n, AX_N, s.v + s.all);
    close_loop(n, over_heads, s.v, s.n);
    give_keys(n, &s, true);
    if (dv) grad_give_values(n, h, s.v[0]);
    n->head = NULL;
    n->by_keys = false;
    return k;
}

// Once where all rows are tame, and once where some are not: one of them runs.
static void build_nests(Nest *n, bool dq) {
    Build *b = &n->b;
    ExPool *x = b->pool;
    const Backward *back = n->back;
    Backward wild = *back, tame = *back;
    wild.tame_weight = tame.tame_weight = NULL;
    n->back = &wild;
    TileKernel *any = build_keys(n, "gradients", dq, true, true);
    if (back->tame) {
        const Ex *at = ex_i32(x, 0), *zero = ex_f32(x, 0),
                 *count = ex_load(x, build_input(b, n->tensor_wild), EX_F32, &at, 1, false);
        any->where = ex_2(x, EX_NE, count, zero);
        tame.weight = back->tame_weight;
        n->back = &tame;
        build_keys(n, "tame", dq, true, true)->where = ex_2(x, EX_EQ, count, zero);
    }
    n->back = back;
}

// ---- kernel: dq, over tiles of queries

static void build_queries(Nest *n) {
    Build *b = &n->b;
    ExPool *x = b->pool;
    build_kernel(b, PURPOSE_GRADIENTS, "queries", all_axes, 4);
    build_width_axes(b);
    set_mask(n);
    const Ex *h = ex_symbol(x, SYM_H), *hkv = head_of_keys(n);
    grad_load_rows(n, ROW_QUERIES, h, true, true);
    TileValue *doa = come(n);
    const Parts *parts = &n->parts[ROW_QUERIES];
    int count = parts->n;
    TileValue **sum = ARENA_ARRAY(b->arena, TileValue *, count + n->back->grads.n);
    for (int i = 0; i < count; i++) sum[i] = grad_start(n, ROW_QUERIES, &parts->data[i]);
    int all = begin_grads(n, AX_M, sum, count);
    TileOp *loop = open_sweep(n, sum, all);
    grad_load_rows(n, ROW_KEYS, hkv, true, true);
    Pair p = pair(n, grad_load(n, "v", b->tensor_v, hkv, AX_N, AX_E), doa);
    for (int i = 0; i < count; i++) {
        TileValue *more = grad_part(n, ROW_QUERIES, &parts->data[i], &p, sum[i]);
        if (more) sum[i] = more;
    }
    grow_grads(n, AX_M, sum + count);
    close_loop(n, loop, sum, all);
    grad_give_rows(n, ROW_QUERIES, sum, true, true, n->pieces[ROW_QUERIES]);
    end_grads(n, AX_M, sum + count);
}

// ---- kernel: what was summed becomes dq

static void build_convert(Nest *n, RowSide side) {
    bool keys = side == ROW_KEYS;
    AxisRole rows = keys ? AX_N : AX_M;
    const AxisRole axes[] = {rows, AX_D};
    Build *b = &n->b;
    int to = keys ? n->tensor_dk : n->tensor_dq;
    if (n->sums[side] == to) return;
    TileKernel *k = build_kernel(b, PURPOSE_CONVERT, keys ? "convert_k" : "convert", axes, 2);
    const Ex *h = ex_symbol(b->pool, SYM_H);
    if (keys) k->grid[1].count = build_size(b, SIZE_HKV), k->grid[2].axis = b->axis[AX_N];
    k->mask = ex_bool(b->pool, true);
    grad_store(n, to, h, rows, AX_D, grad_load(n, "sum", n->sums[side], h, rows, AX_D), false);
}

// ---- kernels: what was summed exactly becomes the gradient of an input

static bool is_stored(const TileProgram *p, int tensor) {
    bool found = false;
    for (int k = 0; k < p->kernels.n; k++) {
        const TileBlock *body = &p->kernels.data[k]->body;
        for (const TileOp *op = tile_next(body, NULL); op; op = tile_next(body, op))
            found |= op->kind == TILE_STORE && op->tensor == tensor;
    }
    return found;
}

// Rows go along the last dimension; of the others the last has a place of its own in the grid.
static void build_rounded(Nest *n, int input) {
    Build *b = &n->b;
    ExPool *x = b->pool;
    const TileTensor *t = &b->p->tensors.data[n->grad[input]];
    const AxisRole axes[] = {AX_M};
    int rows = t->rank - 1;
    const Ex *at[TILE_MAX_DIMS] = {NULL}, *left = ex_symbol(x, SYM_B), *others = ex_i32(x, 1);
    TileKernel *k = build_kernel(b, PURPOSE_CONVERT, t->name, axes, 1);
    for (int d = rows - 2; d >= 0; d--) {
        at[d] = ex_2(x, EX_MOD, left, t->extent[d]);
        left = ex_2(x, EX_DIV, left, t->extent[d]);
        others = ex_2(x, EX_MUL, others, t->extent[d]);
    }
    if (rows) at[rows - 1] = ex_symbol(x, SYM_H);
    at[rows] = ex_sym(x, SYM_TILE, b->axis[AX_M], EX_I32);
    k->mask = ex_bool(x, true);
    k->axes[b->axis[AX_M]].size = t->extent[rows];
    k->grid[0].count = others, k->grid[1].count = rows ? t->extent[rows - 1] : ex_i32(x, 1);
    TileOp *load = tile_op(b->p, k, b->block, TILE_LOAD, b->row->span);
    TileOp *store = tile_op(b->p, k, b->block, TILE_STORE, b->row->span);
    load->tensor = n->adds[input], store->tensor = n->grad[input];
    for (int d = 0; d <= rows; d++)
        load->coord[d] = store->coord[d] =
            (TileCoord){.axis = d == rows ? b->axis[AX_M] : -1, .at = at[d]};
    load->coord[t->rank] = (TileCoord){.axis = -1, .at = ex_i32(x, 0)};
    uint8_t along[] = {(uint8_t)b->axis[AX_M]};
    tile_arg(b->p, store, tile_result(b->p, k, load, "sum", DT_F32, along, 1));
}

// ---- the program

enum { MOST_COLUMNS = 384 }; // of dk and dv in the registers of a GPU's block

static bool asks_for_extremum(void *ctx, const Ex *e) {
    (void)ctx;
    return e->op == EX_EQ && e->args[0]->type == EX_F32 && ex_uses(e, SYM_ROW, -1);
}

static bool asks(const Ex *e) { return ex_any(e, asks_for_extremum, NULL); }

// Whether a pair's gradient hangs on whether its score is the row's extremum, bit for bit.
static bool looks_for_extremum(const Backward *back) {
    bool found = asks(back->weight) || asks(back->ds);
    for (int i = 0; i < back->products.n; i++) found |= asks(back->products.data[i].d);
    for (int i = 0; i < back->rows.n; i++) found |= asks(back->rows.data[i].value);
    for (int i = 0; i < back->grads.n; i++) found |= asks(back->grads.data[i].value);
    return found;
}

// What has no kernel yet.
static bool accepts(const Backward *back, Diags *diags) {
    const RowProgram *row = back->row;
    bool norms = ex_uses(row->modified, SYM_SQQ, -1) || ex_uses(row->modified, SYM_SQK, -1);
    if (norms && looks_for_extremum(back)) // sums of squares are rounded by how tiles lie
        diag_error(diags, row->span,
                   "the gradient of '%s' has no kernel yet: it goes to the keys that attain an "
                   "extremum of scores with sqnorm",
                   row->name);
    else
        return true;
    return false;
}

// A sum over the pairs of a row is over all its keys.
static bool has_parts(const Backward *back, Diags *diags) {
    if (back->aggregate)
        return diag_refuse(
            diags, back->row->span,
            "the gradient of '%s' has no parts: it needs what is aggregated over all keys",
            back->row->name);
    for (int i = 0; i < back->rows.n; i++)
        if (back->rows.data[i].made == BACK_KEYS)
            return diag_refuse(
                diags, back->row->span,
                "the gradient of '%s' has no parts: it needs a sum over all keys of a row, '%s' of "
                "`attnc explain`",
                back->row->name, back->rows.data[i].name);
    return true;
}

// A nest is of q and k as they are.
static bool is_for_nest(const Backward *back) {
    const RowProgram *row = back->row;
    if (row->v_in_k || row->dots.n > 1 || row->rows[ROW_QUERIES].n > 1 ||
        row->rows[ROW_KEYS].n > 1 || row->channel[ROW_QUERIES] || row->channel[ROW_KEYS])
        return false;
    return true;
}

// Blocks of a GPU add up some gradients of inputs by tiles of queries, of which a nest has none.
static bool needs_queries(Nest *n) {
    for (int i = 0; i < n->back->grads.n; i++)
        if (is_carried(n, &n->back->grads.data[i], AX_M)) return true;
    return false;
}

// Of the sums that a block of keys has in its registers.
static int columns_of_keys(const Nest *n) {
    int all = n->b.row->Dv;
    for (int i = 0; i < n->parts[ROW_KEYS].n; i++)
        if (!n->parts[ROW_KEYS].data[i].norm)
            all += n->b.row->rows[ROW_KEYS].data[n->parts[ROW_KEYS].data[i].row].width;
    return all;
}

// Whether each input that has a gradient gets it from some kernel.
static bool gives_inputs(const Nest *n) {
    const TileProgram *p = n->b.p;
    int missing = 0;
    for (int i = 0; i < n->back->grads.n; i++) {
        missing += !is_stored(p, n->grad[n->back->grads.data[i].input]);
    }
    return !missing;
}

TileProgram *pass_build_backward(Arena *a, const Backward *back, const PassOptions *o, bool nest,
                                 Diags *diags) {
    const RowProgram *row = back->row;
    if (!accepts(back, diags) || (o->phase == PHASE_PART_BWD && !has_parts(back, diags)))
        return NULL;
    bool gpu = o->target.kind != KIND_HOST;
    if (nest && gpu && !is_for_nest(back)) return NULL;
    Backward plain = *back; // for whom the weight of all rows is as fast
    plain.tame_weight = plain.tame = NULL;
    back = nest && gpu ? pass_row_numbers(a, back) : &plain;
    Nest n = {.back = back, .dtype = o->dtype, .exact = o->deterministic};
    n.b = (Build){
        .arena = a, .pool = row->pool, .s = back->s, .row = row, .fixed = -1, .tf32 = o->tf32};
    TileProgram *p = n.b.p = tile_program(a, row->pool, row->name);
    p->phase = o->phase ? o->phase : PHASE_BWD;
    p->target = o->target.id;
    p->dtype = o->dtype;
    p->D = row->D, p->Dv = row->Dv;
    tile_sizes(p, &row->sizes);
    n.b.phase = o->phase;
    build_batch(&n.b, o);
    if (o->phase) build_whole_sizes(&n.b);
    n.b.nwidths = pass_widths(row, n.b.width);
    n.by_element = gpu;
    grad_find_rows(&n);
    bool with_dq = false;
    for (int i = 0; i < back->products.n && nest; i++)
        with_dq |= back->products.data[i].sym != SYM_SQK;
    add_tensors(&n, with_dq);
    if (with_dq && gpu && needs_queries(&n)) return NULL;
    Backward placed = *back;
    if (o->batch) grad_places(&n, &placed), n.back = &placed;
    TilePlan plan = {0};
    build_delta(&n);
    bool wide = row->Dv > pass_most_columns(&o->target); // dv has blocks of columns, and dk has not
    if (n.by_element && !nest && (wide || columns_of_keys(&n) > MOST_COLUMNS)) {
        build_keys(&n, "values", false, false, true);
        build_keys(&n, "keys", false, true, false);
    } else {
        build_nests(&n, with_dq);
    }
    if (!with_dq) build_queries(&n);
    build_convert(&n, ROW_QUERIES);
    build_convert(&n, ROW_KEYS);
    for (int i = 0; i < row->inputs.n; i++)
        if (n.adds[i] != n.grad[i] && is_stored(p, n.adds[i])) build_rounded(&n, i);
    for (int i = 0; i < p->kernels.n; i++) VEC_PUSH(a, &plan.kernels, i);
    VEC_PUSH(a, &p->plans, plan);
    assert(gives_inputs(&n));
    return p;
}
