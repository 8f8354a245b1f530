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
#include "passes/derive/backward.h"
#include "passes/tile/build.h"

#include "ir/tile_blocks.h"

#include <math.h>

typedef struct Nest {
    Build b;
    const Backward *back;
    Dtype dtype;
    int tensor_do, tensor_dq, tensor_dk, tensor_dv;
    int tensor_sums; // what is added to for dq
    int tensor_doa; // the gradient of what is aggregated, where it is made of that; -1: kernels make it of do
    int tensor_wild; // how many rows are not tame; -1: nobody asks
    int *row;        // by row scalar: its tensor, -1: it stays in the kernel `delta`
    int *near;       // the same as the nest of a GPU loads it: rows begin at a multiple of 16 bytes
    int *demit;      // by emit
    int *grad;       // by input; -1
    const Ex *head;  // of the queries; NULL: h
    const Ex *takes; // bool: the pair takes part
    bool by_keys;    // rows of the kernel are keys: what is of a query is read at the pair
    bool
        by_element; // a tile may be added to one element, and each block adds up the rows that are its own
} Nest;

// ---- small things

static const Ex *head_of_queries(Nest *n) {
    return n->head ? n->head : ex_symbol(n->b.pool, SYM_H);
}

static bool is_work(const Build *b, int tensor) {
    return b->p->tensors.data[tensor].role == TENSOR_WORK;
}

// Sums for dq and numbers of rows: those of each sequence begin at a whole block (ir/tile_blocks.h), behind all of the one before. Tensor
// copies begin at multiples of 16 bytes.
static const Ex *place_of_work(Build *b) {
    ExPool *x = b->pool;
    const Ex *first, *unit = ex_i32(x, TILE_BLOCK_ROWS);
    places_query(&b->at, ex_i32(x, 0), &first);
    first = ex_2(x, EX_ADD, ex_2(x, EX_DIV, first, unit), ex_symbol(x, SYM_B));
    return ex_2(x, EX_ADD, ex_2(x, EX_MUL, first, unit), build_pos(b, AX_M));
}

// A number of the query, as an input is read.
static const Ex *read(Nest *n, int tensor) {
    Build *b = &n->b;
    const Ex *at[] = {ex_symbol(b->pool, SYM_B), head_of_queries(n), build_pos(b, AX_M)};
    const Ex *row[] = {at[1], NULL}, *swap;
    int input = build_input(b, tensor);
    if (!b->p->batch) return ex_load(b->pool, input, EX_F32, at, 3, false);
    places_query(&b->at, at[2], &row[1]);
    if (is_work(b, tensor))
        row[1] = place_of_work(b);
    else
        swap = row[0], row[0] = row[1], row[1] = swap;
    return ex_load(b->pool, input, EX_F32, row, 2, false);
}

// With the heads of the kernel, and numbers of queries where they are read.
static const Ex *placed(Nest *n, const Ex *e) {
    ExPool *x = n->b.pool;
    if (n->head) e = ex_subst(x, e, SYM_H, 0, n->head);
    for (int i = 0; i < n->back->rows.n && n->by_keys; i++)
        if (n->row[i] >= 0 && ex_uses(e, SYM_ROW, i))
            e = ex_subst(x, e, SYM_ROW, i, read(n, n->row[i]));
    for (int i = 0; i < n->b.row->emits.n && n->by_keys; i++)
        if (ex_uses(e, SYM_DEMIT, i)) e = ex_subst(x, e, SYM_DEMIT, i, read(n, n->demit[i]));
    return e;
}

static TileValue *map(Nest *n, const char *name, Dtype t, int x, int y, const Ex *e) {
    return build_map(&n->b, name, t, x, y, placed(n, e));
}

static const Ex *tile_at(Build *b, int axis) {
    return b->k->axes[axis].whole ? ex_i32(b->pool, 0) : ex_sym(b->pool, SYM_TILE, axis, EX_I32);
}

// [batch, head, rows], and columns where there are some; of sequences [rows, head], in workspace [head, rows].
static void access(Build *b, TileOp *op, int tensor, const Ex *head, AxisRole rows, int columns) {
    TileCoord *at = op->coord;
    const Ex *row;
    op->tensor = tensor;
    if (b->p->batch) {
        bool work = is_work(b, tensor);
        (rows == AX_M ? places_query : places_key)(&b->at, build_pos(b, rows), &row);
        if (work && b->p->tensors.data[tensor].dtype == DT_F32) row = place_of_work(b);
        op->each[work] = true;
        at[work] = (TileCoord){.axis = b->axis[rows], .at = row};
        at[!work] = (TileCoord){.axis = -1, .at = head};
        at += 2;
    } else {
        at[0] = (TileCoord){.axis = -1, .at = ex_symbol(b->pool, SYM_B)};
        at[1] = (TileCoord){.axis = -1, .at = head};
        at[2] = (TileCoord){.axis = b->axis[rows], .at = tile_at(b, b->axis[rows])};
        at += 3;
    }
    if (columns != AX_NONE)
        *at = (TileCoord){.axis = b->axis[columns], .at = tile_at(b, b->axis[columns])};
}

static TileValue *load(Nest *n, const char *name, int tensor, const Ex *head, AxisRole rows,
                       int columns) {
    Build *b = &n->b;
    TileOp *op = tile_op(b->p, b->k, b->block, TILE_LOAD, b->row->span);
    access(b, op, tensor, head, rows, columns);
    uint8_t axes[2] = {(uint8_t)b->axis[rows]};
    if (columns != AX_NONE) axes[1] = (uint8_t)b->axis[columns];
    return tile_result(b->p, b->k, op, name, b->p->tensors.data[tensor].dtype, axes,
                       columns == AX_NONE ? 1 : 2);
}

static void store(Nest *n, int tensor, const Ex *head, AxisRole rows, int columns, TileValue *v,
                  bool add) {
    Build *b = &n->b;
    TileOp *op = tile_op(b->p, b->k, b->block, TILE_STORE, b->row->span);
    access(b, op, tensor, head, rows, columns);
    op->add = add;
    tile_arg(b->p, op, v);
}

static TileValue *mma(Nest *n, const char *name, TileValue *x, TileValue *y, TileValue *sum,
                      AxisRole rows, AxisRole columns) {
    Build *b = &n->b;
    TileOp *op = tile_op(b->p, b->k, b->block, TILE_MMA, b->row->span);
    op->tf32 = b->tf32;
    tile_arg(b->p, op, x);
    tile_arg(b->p, op, y);
    if (sum) tile_arg(b->p, op, sum);
    uint8_t axes[] = {(uint8_t)b->axis[rows], (uint8_t)b->axis[columns]};
    return tile_result(b->p, b->k, op, name, DT_F32, axes, 2);
}

static TileValue *sum_over(Nest *n, const char *name, int x, int y, AxisRole over, const Ex *e) {
    Build *b = &n->b;
    TileOp *op = build_open_map(b, x, y, b->row->span);
    return pass_out(b->p, b->k, op, name, DT_F32, build_resolve(b, op, placed(n, e)), EX_ROWSUM,
                    b->axis[over]);
}

static TileValue *zeros(Nest *n, const char *name, int x, int y) {
    return map(n, name, DT_F32, x, y, ex_f32(n->b.pool, 0));
}

static bool uses(const Ex *e, ExSym s) { return e && ex_uses(e, s, -1); }

static bool pairs_use(const Backward *b, ExSym s) {
    bool any = uses(b->weight, s) || uses(b->ds, s) || uses(b->d_dot, s) || uses(b->d_sqq, s) ||
               uses(b->d_sqk, s);
    for (int i = 0; i < b->grads.n; i++)
        any |= b->grads.data[i].per == BACK_PAIR && uses(b->grads.data[i].value, s);
    for (int i = 0; i < b->rows.n; i++) // the further sweep's
        any |= b->rows.data[i].made == BACK_KEYS && uses(b->rows.data[i].value, s);
    return any;
}

// ---- tensors

static TileTensor open_tensor(Nest *n, const char *name, TensorRole role, int index, Dtype t,
                              int heads, int rows, int columns) {
    Build *b = &n->b;
    TileTensor x = {.name = name,
                    .role = role,
                    .index = index,
                    .dtype = t,
                    .rank = columns ? 4 : 3,
                    .extent = {build_size(b, SIZE_B), build_size(b, heads), build_size(b, rows)}};
    if (b->p->batch) {
        places_rows(&b->at, &x, rows == SIZE_SK);
        x.extent[x.rank++] = build_size(b, heads);
        if (role == TENSOR_WORK) {
            ExPool *pool = b->pool;
            const Ex *unit = ex_i32(pool, TILE_BLOCK_ROWS), // with room for what rows are padded by
                *blocks = ex_2(pool, EX_ADD, ex_2(pool, EX_DIV, x.extent[0], unit),
                               build_size(b, SIZE_B));
            x.extent[1] = ex_2(pool, EX_MUL, ex_2(pool, EX_ADD, blocks, ex_i32(pool, 1)), unit);
            x.extent[0] = build_size(b, heads);
        }
        if (columns) x.rank++;
    }
    if (columns) x.extent[x.rank - 1] = ex_i32(b->pool, columns);
    return x;
}

static int tensor(Nest *n, const char *name, TensorRole role, int index, Dtype t, int heads,
                  int rows, int columns) {
    return build_tensor(&n->b, open_tensor(n, name, role, index, t, heads, rows, columns));
}

// A number of each query in workspace.
static int work(Nest *n, const char *name, int index, bool aligned) {
    enum { TOGETHER = 4 };
    ExPool *x = n->b.pool;
    TileTensor t = open_tensor(n, name, TENSOR_WORK, index, DT_F32, SIZE_HQ, SIZE_SQ, 0);
    const Ex **rows = &t.extent[t.rank - 1], *four = ex_i32(x, TOGETHER);
    const Ex *up = ex_2(x, EX_ADD, *rows, ex_i32(x, TOGETHER - 1));
    if (aligned) *rows = ex_2(x, EX_MUL, ex_2(x, EX_DIV, up, four), four);
    return build_tensor(&n->b, t);
}

static const char *numbered(Nest *n, const char *name, int i) {
    return arena_printf(n->b.arena, "%s%d", name, i);
}

static bool main_needs(const Backward *b, int row) {
    const Ex *all[] = {b->weight, b->tame_weight, b->ds, b->d_dot, b->d_sqq, b->d_sqk, b->d_o};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] && ex_uses(all[i], SYM_ROW, row)) return true;
    for (int i = 0; i < b->grads.n; i++)
        if (b->grads.data[i].per == BACK_PAIR && ex_uses(b->grads.data[i].value, SYM_ROW, row))
            return true;
    return false;
}

static void add_tensors(Nest *n, bool nest) {
    const RowProgram *row = n->b.row;
    bool aligned = nest && n->by_element;
    const Backward *b = n->back;
    build_tensors(&n->b, n->dtype, n->dtype, false);
    n->tensor_do = tensor(n, "do", TENSOR_DO, 0, n->dtype, SIZE_HQ, SIZE_SQ, row->Dv);
    n->tensor_dq = tensor(n, "dq", TENSOR_DQ, 0, n->dtype, SIZE_HQ, SIZE_SQ, row->D);
    n->tensor_dk = tensor(n, "dk", TENSOR_DK, 0, n->dtype, SIZE_HKV, SIZE_SK, row->D);
    n->tensor_dv = tensor(n, "dv", TENSOR_DV, 0, n->dtype, SIZE_HKV, SIZE_SK, row->Dv);
    n->demit = ARENA_ARRAY(n->b.arena, int, row->emits.n + 1);
    for (int i = 0; i < row->emits.n; i++)
        n->demit[i] = tensor(n, arena_printf(n->b.arena, "d%s", row->emits.data[i].name),
                             TENSOR_DEMIT, i, DT_F32, SIZE_HQ, SIZE_SQ, 0);
    n->tensor_sums = n->tensor_dq;
    if (nest && n->dtype != DT_F32)
        n->tensor_sums =
            tensor(n, "sums", TENSOR_WORK, 2 * b->rows.n, DT_F32, SIZE_HQ, SIZE_SQ, row->D);
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
    n->grad = ARENA_ARRAY(n->b.arena, int, row->inputs.n + 1);
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
        n->grad[i] = in->grad ? build_tensor(&n->b, t) : -1;
    }
}

// ---- gradients of inputs

// Where the layout has what they add to; a sequence that has no such row gets nothing.
static void place_grads(Nest *n, Backward *back) {
    Build *b = &n->b;
    ExPool *x = b->pool;
    const Ex *key = ex_symbol(x, SYM_KV_IDX),
             *query = ex_2(x, EX_SUB, ex_symbol(x, SYM_Q_IDX), build_size(b, SIZE_Q_OFFSET));
    VEC(BackGrad) own = {0};
    for (int i = 0; i < back->grads.n; i++) {
        BackGrad g = back->grads.data[i];
        if (g.at->op == EX_LOAD)
            g.at = places_load(&b->at, &b->row->inputs.data[g.input], g.at, query, key);
        if (g.at->op == EX_SELECT) {
            g.value = ex_select(x, g.at->args[0], g.value, ex_f32(x, 0));
            g.at = g.at->args[1];
        }
        VEC_PUSH(b->arena, &own, g);
    }
    back->grads.data = own.data;
}

static const Ex *clamped(Nest *n, const Ex *at, const Ex *extent) {
    ExPool *x = n->b.pool;
    const Ex *last = ex_2(x, EX_SUB, extent, ex_i32(x, 1));
    return ex_2(x, EX_MAX, ex_2(x, EX_MIN, at, last), ex_i32(x, 0));
}

static int rank_of(Nest *n, const BackGrad *g) { // of a scalar 0
    return g->at->op == EX_LOAD ? n->b.p->tensors.data[n->grad[g->input]].rank : 0;
}

static const ExSym other_symbol[] = {[AX_N] = SYM_KV_IDX, [AX_E] = SYM_D_IDX};

// Which of the two axes the d-th index goes along; AX_NONE: neither.
static int index_along(const BackGrad *g, int d, AxisRole other) {
    if (uses(g->at->args[d], SYM_Q_IDX)) return AX_M;
    return uses(g->at->args[d], other_symbol[other]) ? (int)other : AX_NONE;
}

static bool goes_along(Nest *n, const BackGrad *g, AxisRole axis, AxisRole other) {
    bool any = false;
    for (int d = 0; d < rank_of(n, g); d++) any |= index_along(g, d, other) == (int)axis;
    return any;
}

// Whether some index is made of places along both axes.
static bool scatters(Nest *n, const BackGrad *g, AxisRole other) {
    for (int d = 0; d < rank_of(n, g); d++)
        if (index_along(g, d, other) == AX_M && uses(g->at->args[d], other_symbol[other]))
            return true;
    return false;
}

// Adds a tile. `rides`: an axis of the tile that no index goes along, of which all places are added to one; or AX_NONE.
static void store_grad(Nest *n, const BackGrad *g, AxisRole other, int rides, TileValue *v) {
    Build *b = &n->b;
    const TileTensor *t = &b->p->tensors.data[n->grad[g->input]];
    TileOp *op = tile_op(b->p, b->k, b->block, TILE_STORE, g->at->span);
    op->tensor = n->grad[g->input];
    op->add = true;
    tile_arg(b->p, op, v);
    for (int d = 0; d < t->rank; d++) {
        bool scalar = !rank_of(n, g);
        int role = scalar ? AX_NONE : index_along(g, d, other);
        const Ex *at = scalar ? ex_i32(b->pool, 0) : placed(n, g->at->args[d]);
        at = ex_simplify(b->pool, build_resolve(b, NULL, at));
        if (role == AX_NONE) at = clamped(n, at, t->extent[d]);
        if (role == AX_NONE) role = rides, rides = AX_NONE;
        op->coord[d] = (TileCoord){.axis = role == AX_NONE ? -1 : b->axis[role], .at = at};
        op->each[d] = role != AX_NONE;
    }
    for (int d = 0; d < t->rank && (rides != AX_NONE || scatters(n, g, other)); d++)
        if (op->each[d]) op->coord[d].axis = -1;
}

// Adds a value of a tile of queries and of keys or columns, summed over the axes that the index does not go along.
static void add_grad(Nest *n, const BackGrad *g, AxisRole other, const Ex *value) {
    Build *b = &n->b;
    bool rows = goes_along(n, g, AX_M, other), columns = goes_along(n, g, other, other),
         both = scatters(n, g, other);
    if (both || (columns && (rows || n->by_element))) {
        TileValue *v = map(n, "g", DT_F32, AX_M, (int)other, value);
        store_grad(n, g, other, rows ? AX_NONE : AX_M, v);
        return;
    }
    AxisRole first = columns ? AX_M : other, rest = columns ? other : AX_M;
    TileValue *v = sum_over(n, "g", AX_M, (int)other, first, value);
    if (!rows && !columns && !n->by_element) {
        TileOp *op = build_open_map(b, (int)rest, AX_NONE, b->row->span);
        v = pass_out(b->p, b->k, op, "g", DT_F32, pass_operand(b->p, op, v), EX_ROWSUM,
                     b->axis[rest]);
        rows = true;
    }
    store_grad(n, g, other, rows || columns ? AX_NONE : AX_M, v);
}

// ---- pairs

typedef struct Pair {
    TileValue *w, *d_dot, *d_sqq, *d_sqk; // of the pairs of a tile; NULL: 0
} Pair;

static const Ex *selected(Nest *n, const Ex *e) {
    return ex_select(n->b.pool, n->takes, e, ex_f32(n->b.pool, 0));
}

static TileValue *of_pairs(Nest *n, const char *name, Dtype t, const Ex *e) {
    return e ? map(n, name, t, AX_M, AX_N, selected(n, e)) : NULL;
}

// From a tile of q and k to the weight.
static TileValue *weight(Nest *n, TileValue *q, TileValue *k) {
    Build *b = &n->b;
    ExPool *x = b->pool;
    const Ex *modified = b->row->modified, *mask = ex_symbol(x, SYM_MASK), *s = ex_symbol(x, SYM_S);
    const Backward *back = n->back;
    if (uses(modified, SYM_DOT) || pairs_use(back, SYM_DOT))
        build_bind(b, SYM_DOT, 0, mma(n, "dot", k, q, NULL, AX_M, AX_N));
    if (uses(modified, SYM_SQQ) || pairs_use(back, SYM_SQQ))
        build_bind(b, SYM_SQQ, 0, build_squares(b, "sqq", q, AX_M, AX_D, back->same_dots));
    if (uses(modified, SYM_SQK) || pairs_use(back, SYM_SQK))
        build_bind(b, SYM_SQK, 0, build_squares(b, "sqk", k, AX_N, AX_D, back->same_dots));
    build_bind(b, SYM_S, 0, map(n, "s", DT_F32, AX_M, AX_N, modified));
    n->takes = build_score_is_finite(b)
                   ? mask
                   : ex_2(x, EX_AND, mask, ex_2(x, EX_NE, s, ex_f32(x, -INFINITY)));
    TileValue *w = of_pairs(n, "w", DT_F32, back->weight);
    build_bind(b, SYM_W, 0, w);
    return w;
}

// And from do and v to its gradient.
static TileValue *weights(Nest *n, TileValue *q, TileValue *k, TileValue *v, TileValue *doa) {
    TileValue *w = weight(n, q, k);
    if (pairs_use(n->back, SYM_DW))
        build_bind(&n->b, SYM_DW, 0, mma(n, "dw", v, doa, NULL, AX_M, AX_N));
    return w;
}

// A weight or a gradient as products take it.
static TileValue *narrow(Nest *n, TileValue *w) {
    return n->dtype == DT_F32 ? w : map(n, "w", n->dtype, AX_M, AX_N, ex_symbol(n->b.pool, SYM_W));
}

// And on to the gradients of the scores.
static Pair pair(Nest *n, TileValue *q, TileValue *k, TileValue *v, TileValue *doa) {
    Build *b = &n->b;
    const Backward *back = n->back;
    Pair p = {.w = weights(n, q, k, v, doa)};
    build_bind(b, SYM_DS, 0, of_pairs(n, "ds", DT_F32, back->ds));
    p.d_dot = of_pairs(n, "d_dot", n->dtype, back->d_dot);
    p.d_sqq = of_pairs(n, "d_sqq", DT_F32, back->d_sqq);
    p.d_sqk = of_pairs(n, "d_sqk", DT_F32, back->d_sqk);
    return p;
}

// Loads do, and what makes of it the gradient of what is aggregated; binds row scalars.
static TileValue *come(Nest *n) {
    Build *b = &n->b;
    const Backward *back = n->back;
    const Ex *head = head_of_queries(n);
    for (int i = 0; i < back->rows.n && !n->by_keys; i++)
        if (n->row[i] >= 0 && main_needs(back, i))
            build_bind(b, SYM_ROW, i,
                       load(n, numbered(n, "row", i), n->near[i], head, AX_M, AX_NONE));
    for (int i = 0; i < b->row->emits.n && !n->by_keys; i++)
        build_bind(b, SYM_DEMIT, i, load(n, "demit", n->demit[i], head, AX_M, AX_NONE));
    if (n->tensor_doa >= 0) return load(n, "doa", n->tensor_doa, head, AX_M, AX_E);
    TileValue *come = load(n, "do", n->tensor_do, head, AX_M, AX_E);
    if (back->d_o->op == EX_SYM && back->d_o->sym == SYM_DO) return come;
    build_bind(b, SYM_DO, 0, come);
    return map(n, "doa", n->dtype, AX_M, AX_E, back->d_o);
}

// Twice the rows of x by the numbers of these rows.
static TileValue *twice(Nest *n, const char *name, TileValue *x, TileValue *by, TileValue *to,
                        AxisRole rows) {
    Build *b = &n->b;
    TileOp *op = build_open_map(b, rows, AX_D, b->row->span);
    const Ex *e = ex_2(b->pool, EX_MUL, pass_operand(b->p, op, x), pass_operand(b->p, op, by));
    e = ex_2(b->pool, EX_MUL, e, ex_f32(b->pool, 2));
    if (to) e = ex_2(b->pool, EX_ADD, pass_operand(b->p, op, to), e);
    return pass_out(b->p, b->k, op, name, DT_F32, e, EX_CONST, 0);
}

static TileValue *plus(Nest *n, const char *name, TileValue *x, TileValue *y, AxisRole rows) {
    Build *b = &n->b;
    TileOp *op = build_open_map(b, rows, AX_NONE, b->row->span);
    const Ex *e = ex_2(b->pool, EX_ADD, pass_operand(b->p, op, x), pass_operand(b->p, op, y));
    return pass_out(b->p, b->k, op, name, DT_F32, e, EX_CONST, 0);
}

static TileValue *sum_of(Nest *n, const char *name, TileValue *x, AxisRole over, TileValue *to) {
    Build *b = &n->b;
    TileOp *op = build_open_map(b, AX_M, AX_N, b->row->span);
    TileValue *sum =
        pass_out(b->p, b->k, op, name, DT_F32, pass_operand(b->p, op, x), EX_ROWSUM, b->axis[over]);
    return to ? plus(n, name, to, sum, over == AX_M ? AX_N : AX_M) : sum;
}

static void set_mask(Nest *n) {
    Build *b = &n->b;
    ExPool *x = b->pool;
    const Ex *keys = ex_2(x, EX_LT, build_pos(b, AX_N), build_size(b, SIZE_SK)),
             *queries = ex_2(x, EX_LT, build_pos(b, AX_M), build_size(b, SIZE_SQ));
    b->k->mask = ex_2(
        x, EX_AND, ex_2(x, EX_AND, build_resolve(b, NULL, placed(n, b->row->mask)), keys), queries);
}

// ---- kernel: row scalars

static const AxisRole all_axes[] = {AX_M, AX_N, AX_D, AX_E};

static void yield(Nest *n, TileValue *const *v, int count) {
    TileOp *op = tile_op(n->b.p, n->b.k, n->b.block, TILE_YIELD, n->b.row->span);
    for (int i = 0; i < count; i++) tile_arg(n->b.p, op, v[i]);
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
    TileValue *q = load(n, "q", b->tensor_q, head_of_queries(n), AX_M, AX_D),
              *start = zeros(n, "o0", AX_M, AX_E);
    TileOp *loop = build_loop(b, AX_N, ex_i32(b->pool, 1));
    TileValue *sum = build_carry(b, loop, "o", start);
    TileBlock *outer = b->block;
    b->block = &loop->body, loop->body.owner = loop;
    int mark = b->env.n;
    TileValue *w = narrow(n, weight(n, q, load(n, "k", b->tensor_k, head_of_keys(n), AX_N, AX_D)));
    sum = mma(n, "o", w, load(n, "v", b->tensor_v, head_of_keys(n), AX_N, AX_E), sum, AX_M, AX_E);
    yield(n, &sum, 1);
    b->env.n = mark;
    b->block = outer;
    return loop->results.data[0];
}

// The further sweep: sums over the keys, all in one loop.
static void sweep(Nest *n) {
    Build *b = &n->b;
    const Backward *back = n->back;
    TileValue *start[ROW_MAX_REDUCES * 3], *last[ROW_MAX_REDUCES * 3];
    int sums = 0;
    const Ex *hkv = head_of_keys(n);
    for (int i = 0; i < back->rows.n; i++) sums += back->rows.data[i].made == BACK_KEYS;
    if (!sums) return;
    TileValue *doa = build_bound(b, SYM_DO, 0),
              *q = load(n, "q", b->tensor_q, head_of_queries(n), AX_M, AX_D);
    if (back->d_o->op != EX_SYM) doa = map(n, "doa", n->dtype, AX_M, AX_E, back->d_o);
    for (int i = 0; i < sums; i++) start[i] = zeros(n, "t0", AX_M, AX_NONE);
    TileOp *loop = build_loop(b, AX_N, ex_i32(b->pool, 1));
    for (int i = 0; i < sums; i++) last[i] = build_carry(b, loop, "t", start[i]);
    TileBlock *outer = b->block;
    b->block = &loop->body, loop->body.owner = loop;
    int mark = b->env.n;
    weights(n, q, load(n, "k", b->tensor_k, hkv, AX_N, AX_D),
            load(n, "v", b->tensor_v, hkv, AX_N, AX_E), doa);
    for (int i = 0, k = 0; i < back->rows.n; i++) {
        if (back->rows.data[i].made != BACK_KEYS) continue;
        TileValue *tile = sum_over(n, "t", AX_M, AX_N, AX_N, selected(n, back->rows.data[i].value));
        last[k] = plus(n, "t", last[k], tile, AX_M);
        k++;
    }
    yield(n, last, sums);
    b->env.n = mark;
    b->block = outer;
    for (int i = 0, k = 0; i < back->rows.n; i++)
        if (back->rows.data[i].made == BACK_KEYS)
            build_bind(b, SYM_ROW, i, loop->results.data[k++]);
}

static void row_grads(Nest *n) {
    Build *b = &n->b;
    ExPool *x = b->pool;
    const Backward *back = n->back;
    const Ex *in = build_counts_row(b);
    for (int i = 0; i < back->grads.n; i++) {
        const BackGrad *g = &back->grads.data[i];
        if (g->per == BACK_PAIR) continue;
        const Ex *value = g->value, *zero = ex_f32(x, 0);
        if (g->per == BACK_ROW && back->empty) value = ex_select(x, back->empty, zero, value);
        // a number of the row stands in its first column
        if (g->per == BACK_ROW)
            value = ex_select(x, ex_2(x, EX_EQ, build_pos(b, AX_E), ex_i32(x, 0)), value, zero);
        value = ex_select(x, in, in_columns(n, value), zero);
        add_grad(n, g, AX_E, value);
    }
}

static void count_wild(Nest *n) {
    Build *b = &n->b;
    ExPool *x = b->pool;
    const Ex *wild = ex_1(x, EX_NOT, n->back->tame), *in = build_counts_row(b);
    wild = ex_select(x, ex_2(x, EX_AND, in, wild), ex_f32(x, 1), ex_f32(x, 0));
    TileValue *v = map(n, "wild", DT_F32, AX_M, AX_NONE, wild);
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
    n->head = NULL;
    set_mask(n);
    const Ex *h = ex_symbol(b->pool, SYM_H);
    for (int i = 0; i < back->nsaved; i++)
        build_bind(b, SYM_ROW, i, load(n, numbered(n, "saved", i), n->row[i], h, AX_M, AX_NONE));
    for (int i = 0; i < b->row->emits.n; i++)
        build_bind(b, SYM_DEMIT, i, load(n, "demit", n->demit[i], h, AX_M, AX_NONE));
    TileValue *o = back->aggregate ? aggregate(n) : load(n, "o", b->tensor_o, h, AX_M, AX_E);
    build_bind(b, SYM_DO, 0, load(n, "do", n->tensor_do, h, AX_M, AX_E));
    build_bind(b, SYM_O, 0, o);
    build_bind(b, SYM_SQO, 0, build_squares(b, "sqo", o, AX_M, AX_E, false));
    for (int pass = 0; pass < 2; pass++) { // the columns, then the keys, then what is made of both
        for (int i = back->nsaved; i < back->rows.n; i++) {
            const BackRow *r = &back->rows.data[i];
            if (r->made == BACK_COLUMNS && !pass)
                build_bind(b, SYM_ROW, i,
                           sum_over(n, r->name, AX_M, AX_E, AX_E, in_columns(n, r->value)));
            if (r->made == BACK_SCALAR && pass)
                build_bind(b, SYM_ROW, i, map(n, r->name, DT_F32, AX_M, AX_NONE, r->value));
        }
        if (!pass) sweep(n);
    }
    for (int i = 0; i < back->rows.n; i++)
        if (n->near[i] >= 0 && (i >= back->nsaved || n->near[i] != n->row[i]))
            store(n, n->near[i], h, AX_M, AX_NONE, build_bound(b, SYM_ROW, i), false);
    if (n->tensor_doa >= 0)
        store(n, n->tensor_doa, h, AX_M, AX_E,
              map(n, "doa", n->dtype, AX_M, AX_E, in_columns(n, back->d_o)), false);
    if (n->tensor_wild >= 0) count_wild(n);
    row_grads(n);
    for (const TileOp *op = b->k->body.first; op; op = op->next)
        if (op->kind == TILE_STORE) return;
    b->p->kernels.n--; // nobody needs it
}

// ---- kernel: gradients, over tiles of keys

// Whether blocks of such rows add a pair's gradient up over the whole loop.
static bool is_carried(Nest *n, const BackGrad *g, AxisRole rows) {
    bool pairs = n->by_element && g->per == BACK_PAIR && !scatters(n, g, AX_N),
         keys = pairs && goes_along(n, g, AX_N, AX_N);
    if (rows == AX_N) return keys && !goes_along(n, g, AX_M, AX_N);
    return pairs && !keys;
}

// Of each step.
static void pair_grads(Nest *n) {
    for (int i = 0; i < n->back->grads.n; i++) {
        const BackGrad *g = &n->back->grads.data[i];
        bool carried = is_carried(n, g, AX_M) || is_carried(n, g, AX_N);
        if (g->per != BACK_PAIR || carried) continue;
        add_grad(n, g, AX_N, selected(n, g->value));
    }
}

// What a loop carries for them, behind `count` others.
static int begin_grads(Nest *n, AxisRole rows, TileValue **start, int count) {
    for (int i = 0; i < n->back->grads.n; i++)
        if (is_carried(n, &n->back->grads.data[i], rows))
            start[count++] = zeros(n, "g0", (int)rows, AX_NONE);
    return count;
}

static void grow_grads(Nest *n, AxisRole rows, TileValue **sum) {
    AxisRole over = rows == AX_M ? AX_N : AX_M;
    for (int i = 0; i < n->back->grads.n; i++) {
        const BackGrad *g = &n->back->grads.data[i];
        if (!is_carried(n, g, rows)) continue;
        TileValue *tile = sum_over(n, "g", AX_M, AX_N, over, selected(n, g->value));
        *sum = plus(n, "g", *sum, tile, rows);
        sum++;
    }
}

static void end_grads(Nest *n, AxisRole rows, TileValue *const *sum) {
    for (int i = 0; i < n->back->grads.n; i++) {
        const BackGrad *g = &n->back->grads.data[i];
        if (!is_carried(n, g, rows)) continue;
        int rides = goes_along(n, g, rows, AX_N) ? AX_NONE : (int)rows;
        store_grad(n, g, AX_N, rides, *sum++);
    }
}

enum { DV, DK, DSQ, SUMS };

typedef struct Sums { // what the loops carry: those that are wanted, then gradients of inputs
    bool dq, dk;      // dk, and what else comes of the gradients of scores
    int at[SUMS], n;  // -1: not wanted
    TileValue **v;
} Sums;

static Sums sums_of(Nest *n, bool dq, bool dk, bool dv) {
    const bool wanted[SUMS] = {dv, dk, dk && n->back->d_sqk};
    Sums s = {.dq = dq, .dk = dk};
    for (int i = 0; i < SUMS; i++) s.at[i] = wanted[i] ? s.n++ : -1;
    s.v = ARENA_ARRAY(n->b.arena, TileValue *, s.n + n->back->grads.n);
    if (dv) s.v[s.at[DV]] = zeros(n, "dv", AX_N, AX_E);
    if (dk) s.v[s.at[DK]] = zeros(n, "dk", AX_N, AX_D);
    if (wanted[DSQ]) s.v[s.at[DSQ]] = zeros(n, "sq", AX_N, AX_NONE);
    return s;
}

static TileOp *open_loop(Nest *n, int axis, const Ex *to, TileValue **v, int count) {
    Build *b = &n->b;
    TileOp *loop = tile_op(b->p, b->k, b->block, TILE_LOOP, b->row->span);
    loop->axis = axis;
    loop->from = ex_i32(b->pool, 0);
    loop->to = to;
    loop->index = ex_symbol(b->pool, SYM_STEP);
    for (int i = 0; i < count; i++) v[i] = build_carry(b, loop, v[i]->name, v[i]);
    loop->body.owner = loop;
    b->block = &loop->body;
    return loop;
}

static void close_loop(Nest *n, TileOp *loop, TileBlock *outer, TileValue **v, int count) {
    yield(n, v, count);
    n->b.block = outer;
    for (int i = 0; i < count; i++) v[i] = loop->results.data[i];
}

// One tile of queries against the tile of keys.
static void step(Nest *n, TileValue *k, TileValue *v, const Sums *s) {
    Build *b = &n->b;
    int mark = b->env.n;
    TileValue *q = load(n, "q", b->tensor_q, n->head, AX_M, AX_D), *doa = come(n);
    Pair p = pair(n, q, k, v, doa);
    TileValue *w = p.w, **dv = &s->v[s->at[DV]], **dk = &s->v[s->at[DK]], **sq = &s->v[s->at[DSQ]];
    w = narrow(n, w);
    if (s->at[DV] >= 0) *dv = mma(n, "dv", w, doa, *dv, AX_N, AX_E);
    if (s->at[DK] >= 0 && p.d_dot) *dk = mma(n, "dk", p.d_dot, q, *dk, AX_N, AX_D);
    if (s->at[DSQ] >= 0) *sq = sum_of(n, "sq", p.d_sqk, AX_M, *sq);
    if (s->dq && (p.d_dot || p.d_sqq)) {
        TileValue *dq = p.d_dot ? mma(n, "dq", p.d_dot, k, NULL, AX_M, AX_D) : NULL;
        if (p.d_sqq) dq = twice(n, "dq", q, sum_of(n, "sq", p.d_sqq, AX_N, NULL), dq, AX_M);
        store(n, n->tensor_sums, n->head, AX_M, AX_D, dq, true);
    }
    if (s->dk) grow_grads(n, AX_N, s->v + s->n);
    if (s->dk) pair_grads(n);
    b->env.n = mark;
}

static TileKernel *build_keys(Nest *n, const char *name, bool dq, bool dk, bool dv) {
    Build *b = &n->b;
    ExPool *x = b->pool;
    TileKernel *k = build_kernel(b, PURPOSE_GRADIENTS, name, all_axes, 4);
    const Ex *heads = ex_2(x, EX_DIV, build_size(b, SIZE_HQ), build_size(b, SIZE_HKV)),
             *h = ex_symbol(x, SYM_H);
    int group = tile_axis(k, "G", heads, false);
    k->axes[group].extent = 1;
    k->grid[1].count = build_size(b, SIZE_HKV);
    k->grid[2].axis = b->axis[AX_N];
    n->head = ex_2(x, EX_ADD, ex_2(x, EX_MUL, h, heads), ex_sym(x, SYM_TILE, group, EX_I32));
    n->by_keys = !dq;
    set_mask(n);
    TileValue *keys = load(n, "k", b->tensor_k, h, AX_N, AX_D),
              *values = load(n, "v", b->tensor_v, h, AX_N, AX_E);
    Sums s = sums_of(n, dq, dk, dv);
    TileOp *over_heads = open_loop(n, group, heads, s.v, s.n);
    int all = dk ? begin_grads(n, AX_N, s.v, s.n) : s.n; // of a head of the group
    TileOp *over_rows = open_loop(n, b->axis[AX_M], ex_i32(x, 1), s.v, all);
    step(n, keys, values, &s);
    close_loop(n, over_rows, &over_heads->body, s.v, all);
    if (dk) end_grads(n, AX_N, s.v + s.n);
    close_loop(n, over_heads, &k->body, s.v, s.n);
    TileValue *of_keys = dk ? s.v[s.at[DK]] : NULL;
    if (s.at[DSQ] >= 0) of_keys = twice(n, "dk", keys, s.v[s.at[DSQ]], of_keys, AX_N);
    if (dk) store(n, n->tensor_dk, h, AX_N, AX_D, of_keys, false);
    if (dv) store(n, n->tensor_dv, h, AX_N, AX_E, s.v[s.at[DV]], false);
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
    set_mask(n);
    const Ex *h = ex_symbol(x, SYM_H), *hkv = head_of_keys(n);
    TileValue *q = load(n, "q", b->tensor_q, h, AX_M, AX_D), *doa = come(n);
    int count = n->back->d_sqq ? 2 : 1;
    TileValue **start = ARENA_ARRAY(b->arena, TileValue *, count + n->back->grads.n),
              **sum = ARENA_ARRAY(b->arena, TileValue *, count + n->back->grads.n);
    start[0] = zeros(n, "dq0", AX_M, AX_D);
    if (count > 1) start[1] = zeros(n, "sq0", AX_M, AX_NONE);
    int all = begin_grads(n, AX_M, start, count);
    TileOp *loop = build_loop(b, AX_N, ex_i32(x, 1));
    for (int i = 0; i < all; i++)
        sum[i] = build_carry(b, loop, !i ? "dq" : i < count ? "sq" : "g", start[i]);
    loop->body.owner = loop;
    b->block = &loop->body;
    TileValue *k = load(n, "k", b->tensor_k, hkv, AX_N, AX_D);
    Pair p = pair(n, q, k, load(n, "v", b->tensor_v, hkv, AX_N, AX_E), doa);
    if (p.d_dot) sum[0] = mma(n, "dq", p.d_dot, k, sum[0], AX_M, AX_D);
    if (count > 1) sum[1] = sum_of(n, "sq", p.d_sqq, AX_N, sum[1]);
    grow_grads(n, AX_M, sum + count);
    yield(n, sum, all);
    b->block = &b->k->body;
    TileValue *dq = loop->results.data[0];
    if (count > 1) dq = twice(n, "dq", q, loop->results.data[1], dq, AX_M);
    store(n, n->tensor_dq, h, AX_M, AX_D, dq, false);
    end_grads(n, AX_M, loop->results.data + count);
}

// ---- kernel: what was summed becomes dq

static void build_convert(Nest *n) {
    static const AxisRole axes[] = {AX_M, AX_D};
    Build *b = &n->b;
    TileKernel *k = build_kernel(b, PURPOSE_CONVERT, "convert", axes, 2);
    const Ex *h = ex_symbol(b->pool, SYM_H);
    k->mask = ex_bool(b->pool, true);
    store(n, n->tensor_dq, h, AX_M, AX_D, load(n, "sum", n->tensor_sums, h, AX_M, AX_D), false);
}

// ---- the program

enum { MOST_COLUMNS = 384 }; // of dk and dv in the registers of a GPU's block

static void find_attained(void *ctx, const Ex *e) {
    bool *found = ctx;
    *found |= e->op == EX_EQ && e->args[0]->type == EX_F32 &&
              (ex_uses(e->args[0], SYM_ROW, -1) || ex_uses(e->args[1], SYM_ROW, -1));
}

// Whether a pair's gradient hangs on whether its score is the row's extremum, bit for bit.
static bool looks_for_extremum(const Backward *back) {
    const Ex *of_pair[] = {back->weight, back->ds, back->d_dot, back->d_sqq, back->d_sqk};
    bool found = false;
    for (int i = 0; i < 5; i++)
        if (of_pair[i]) ex_visit(of_pair[i], find_attained, &found);
    for (int i = 0; i < back->rows.n; i++)
        ex_visit(back->rows.data[i].value, find_attained, &found);
    for (int i = 0; i < back->grads.n; i++)
        ex_visit(back->grads.data[i].value, find_attained, &found);
    return found;
}

// What has no kernel yet.
static bool accepts(const Backward *back, Diags *diags) {
    const RowProgram *row = back->row;
    bool norms = uses(row->modified, SYM_SQQ) || uses(row->modified, SYM_SQK);
    if (row->v_in_k)
        diag_error(diags, row->span,
                   "the gradient of '%s' has no kernel yet: its v is in k ('share v = k')",
                   row->name);
    else if (!row_is_plain(row))
        diag_error(diags, row->span,
                   "the gradient of '%s' has no kernel yet: it has row inputs, slices or clauses "
                   "of q, k and v",
                   row->name);
    else if (norms && looks_for_extremum(back)) // sums of squares are rounded by how tiles lie
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
    if (back->aggregate) {
        diag_error(diags, back->row->span,
                   "the gradient of '%s' has no parts: it needs what is aggregated over all keys",
                   back->row->name);
        return false;
    }
    for (int i = 0; i < back->rows.n; i++)
        if (back->rows.data[i].made == BACK_KEYS) {
            diag_error(diags, back->row->span,
                       "the gradient of '%s' has no parts: it needs '%s', a sum over all keys",
                       back->row->name, back->rows.data[i].name);
            return false;
        }
    return true;
}

// Blocks of a GPU add up the gradients of inputs by tiles of queries, too: a nest has none of those.
static bool has_pair_grads(const Backward *back) {
    for (int i = 0; i < back->grads.n; i++)
        if (back->grads.data[i].per == BACK_PAIR) return true;
    return false;
}

TileProgram *pass_build_backward(Arena *a, const Backward *back, const PassOptions *o, bool nest,
                                 Diags *diags) {
    const RowProgram *row = back->row;
    if (!accepts(back, diags) || (o->phase && !has_parts(back, diags))) return NULL;
    bool gpu = o->target.kind != KIND_HOST;
    if (nest && gpu && has_pair_grads(back)) return NULL;
    Backward plain = *back; // for whom the weight of all rows is as fast
    plain.tame_weight = plain.tame = NULL;
    back = nest && gpu ? pass_row_numbers(a, back) : &plain;
    Nest n = {.back = back, .dtype = o->dtype};
    n.b = (Build){
        .arena = a, .pool = row->pool, .s = back->s, .row = row, .fixed = -1, .tf32 = o->tf32};
    TileProgram *p = n.b.p = tile_program(a, row->pool, row->name);
    bool with_dq = nest && (back->d_dot || back->d_sqq);
    p->phase = o->phase ? o->phase : PHASE_BWD;
    p->target = o->target.id;
    p->dtype = o->dtype;
    p->D = row->D, p->Dv = row->Dv;
    tile_sizes(p, &row->sizes);
    n.b.phase = o->phase;
    if (o->phase) build_whole_sizes(&n.b);
    build_batch(&n.b, o);
    n.by_element = gpu;
    add_tensors(&n, with_dq);
    Backward placed = *back;
    if (o->batch) place_grads(&n, &placed), n.back = &placed;
    TilePlan plan = {0};
    build_delta(&n);
    if (n.by_element && !nest && row->D + row->Dv > MOST_COLUMNS) {
        build_keys(&n, "values", false, false, true);
        build_keys(&n, "keys", false, true, false);
    } else {
        build_nests(&n, with_dq);
    }
    if (!with_dq) build_queries(&n);
    if (n.tensor_sums != n.tensor_dq) build_convert(&n);
    for (int i = 0; i < p->kernels.n; i++) VEC_PUSH(a, &plan.kernels, i);
    VEC_PUSH(a, &p->plans, plan);
    return p;
}
