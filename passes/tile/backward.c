// backward.c: the derived backward -> tile program, algorithm level.
//
// In: a Backward (ir/backward.h). Out: a program of phase bwd. For softmax:
//
//     delta      grid b, h, M:    %delta = rowsum over E of do * o; store
//     gradients  grid b, hkv, N:  a tile of keys; the heads of its group, and their tiles of queries:
//         %s = mma k, q;  %w = select(mask, exp2(s * 0.18 + L), 0);  %dw = mma v, do;  %ds = w * (dw - delta)
//         dv += mma w, do;  dk += mma ds, q;  store dq += mma ds, k
//
// With `deterministic`, and where dq is no f32, dq has a kernel of its own over tiles of queries, and each number is added up
// in one order. A pair that takes no part is selected to 0 in the weight and in each gradient.
#include "passes/derive/backward.h"
#include "passes/tile/build.h"

#include <math.h>

typedef struct Nest {
    Build b;
    const Backward *back;
    Dtype dtype;
    Diags *diags;
    int tensor_do, tensor_dq, tensor_dk, tensor_dv;
    int *row;        // by row scalar: its tensor, -1: it stays in the kernel `delta`
    int *demit;      // by emit
    int *grad;       // by input; -1
    const Ex *head;  // of the queries; NULL: h
    const Ex *takes; // bool: the pair takes part
} Nest;

// ---- small things

static const Ex *of_head(Nest *n, const Ex *e) {
    return n->head ? ex_subst(n->b.pool, e, SYM_H, 0, n->head) : e;
}

static const Ex *head_of_queries(Nest *n) {
    return n->head ? n->head : ex_symbol(n->b.pool, SYM_H);
}

static TileValue *map(Nest *n, const char *name, Dtype t, int x, int y, const Ex *e) {
    return build_map(&n->b, name, t, x, y, of_head(n, e));
}

static const Ex *tile_at(Build *b, int axis) {
    return b->k->axes[axis].whole ? ex_i32(b->pool, 0) : ex_sym(b->pool, SYM_TILE, axis, EX_I32);
}

// [batch, head, rows], and columns where there are some.
static void access(Build *b, TileOp *op, int tensor, const Ex *head, AxisRole rows, int columns) {
    op->tensor = tensor;
    op->coord[0] = (TileCoord){-1, ex_symbol(b->pool, SYM_B)};
    op->coord[1] = (TileCoord){-1, head};
    op->coord[2] = (TileCoord){b->axis[rows], tile_at(b, b->axis[rows])};
    if (columns != AX_NONE)
        op->coord[3] = (TileCoord){b->axis[columns], tile_at(b, b->axis[columns])};
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
    return pass_out(b->p, b->k, op, name, DT_F32, build_resolve(b, op, of_head(n, e)), EX_ROWSUM,
                    b->axis[over]);
}

static TileValue *squares(Nest *n, const char *name, TileValue *v, AxisRole rows,
                          AxisRole columns) {
    Build *b = &n->b;
    TileOp *op = build_open_map(b, rows, columns, b->row->span);
    const Ex *e = pass_operand(b->p, op, v);
    return pass_out(b->p, b->k, op, name, DT_F32, ex_2(b->pool, EX_MUL, e, e), EX_ROWSUM,
                    b->axis[columns]);
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
    return any;
}

// ---- tensors

static int tensor(Nest *n, const char *name, TensorRole role, int index, Dtype t, int heads,
                  int rows, int columns) {
    Build *b = &n->b;
    TileTensor x = {.name = name,
                    .role = role,
                    .index = index,
                    .dtype = t,
                    .rank = columns ? 4 : 3,
                    .extent = {build_size(b, SIZE_B), build_size(b, heads), build_size(b, rows)}};
    if (columns) x.extent[3] = ex_i32(b->pool, columns);
    return build_tensor(b, x);
}

static const char *numbered(Nest *n, const char *name, int i) {
    return arena_printf(n->b.arena, "%s%d", name, i);
}

static bool main_needs(const Backward *b, int row) {
    const Ex *all[] = {b->weight, b->ds, b->d_dot, b->d_sqq, b->d_sqk, b->d_o};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] && ex_uses(all[i], SYM_ROW, row)) return true;
    for (int i = 0; i < b->grads.n; i++)
        if (b->grads.data[i].per == BACK_PAIR && ex_uses(b->grads.data[i].value, SYM_ROW, row))
            return true;
    return false;
}

static void add_tensors(Nest *n) {
    const RowProgram *row = n->b.row;
    const Backward *b = n->back;
    build_tensors(&n->b, n->dtype, false);
    n->tensor_do = tensor(n, "do", TENSOR_DO, 0, n->dtype, SIZE_HQ, SIZE_SQ, row->Dv);
    n->tensor_dq = tensor(n, "dq", TENSOR_DQ, 0, n->dtype, SIZE_HQ, SIZE_SQ, row->D);
    n->tensor_dk = tensor(n, "dk", TENSOR_DK, 0, n->dtype, SIZE_HKV, SIZE_SK, row->D);
    n->tensor_dv = tensor(n, "dv", TENSOR_DV, 0, n->dtype, SIZE_HKV, SIZE_SK, row->Dv);
    n->demit = ARENA_ARRAY(n->b.arena, int, row->emits.n + 1);
    for (int i = 0; i < row->emits.n; i++)
        n->demit[i] = tensor(n, arena_printf(n->b.arena, "d%s", row->emits.data[i].name),
                             TENSOR_DEMIT, i, DT_F32, SIZE_HQ, SIZE_SQ, 0);
    n->row = ARENA_ARRAY(n->b.arena, int, b->rows.n + 1);
    for (int i = 0; i < b->rows.n; i++) {
        bool saved = i < b->nsaved;
        n->row[i] = -1;
        if (saved)
            n->row[i] =
                tensor(n, numbered(n, "saved", i), TENSOR_SAVED, i, DT_F32, SIZE_HQ, SIZE_SQ, 0);
        if (!saved && main_needs(b, i))
            n->row[i] = tensor(n, numbered(n, "row", i), TENSOR_WORK, i - b->nsaved, DT_F32,
                               SIZE_HQ, SIZE_SQ, 0);
    }
    n->grad = ARENA_ARRAY(n->b.arena, int, row->inputs.n + 1);
    for (int i = 0; i < row->inputs.n; i++) {
        const RowInput *in = &row->inputs.data[i];
        TileTensor t = {.name = arena_printf(n->b.arena, "d%s", in->name),
                        .role = TENSOR_GRAD,
                        .index = i,
                        .dtype = DT_F32,
                        .rank = in->rank};
        for (int d = 0; d < in->rank; d++) t.extent[d] = in->extent[d];
        if (!in->rank) t.extent[t.rank++] = ex_i32(n->b.pool, 1); // of a scalar: one number
        n->grad[i] = in->grad ? build_tensor(&n->b, t) : -1;
    }
}

// ---- gradients of inputs

typedef struct Sampled {
    int32_t at; // POS of the axis
    int axis;
} Sampled;

static ExValue sample(void *ctx, const Ex *e) {
    const Sampled *s = ctx;
    ExValue v = {.f = 0};
    v.i = e->sym == SYM_POS && e->index == s->axis ? s->at : 3 + (int)e->sym * 5 + e->index * 7;
    return v;
}

static ExValue no_load(void *ctx, const Ex *e, const int32_t *index) {
    (void)ctx, (void)e, (void)index;
    return (ExValue){.f = 0};
}

// Whether neighbours along the axis are neighbours in the tensor: no two of a tile are added to one element.
static bool goes_by_one(const Ex *e, int axis) {
    int32_t v[3];
    for (int i = 0; i < 3; i++) {
        Sampled s = {100 + i, axis};
        ExEnv env = {.sym = sample, .load = no_load, .ctx = &s};
        v[i] = ex_eval(e, &env).i;
    }
    return v[1] - v[0] == 1 && v[2] - v[1] == 1;
}

static bool refuse(Nest *n, const BackGrad *g) {
    if (n->diags)
        diag_error(n->diags, g->at->span,
                   "the gradient of '%s' has no kernel yet: it is read at an index that is no "
                   "position of the query or the key, but made of them",
                   n->b.row->inputs.data[g->input].name);
    return false;
}

static const Ex *clamped(Nest *n, const Ex *at, const Ex *extent) {
    ExPool *x = n->b.pool;
    const Ex *last = ex_2(x, EX_SUB, extent, ex_i32(x, 1));
    return ex_2(x, EX_MAX, ex_2(x, EX_MIN, at, last), ex_i32(x, 0));
}

// Adds a value of a tile of queries and of keys or columns, summed over the axes that the index does not go along.
static bool add_grad(Nest *n, const BackGrad *g, AxisRole other, const Ex *value) {
    Build *b = &n->b;
    const AxisRole roles[] = {AX_M, other};
    const ExSym syms[] = {SYM_Q_IDX, other == AX_N ? SYM_KV_IDX : SYM_D_IDX};
    const TileTensor *t = &b->p->tensors.data[n->grad[g->input]];
    bool along[2] = {false, false};
    int rank = g->at->op == EX_LOAD ? t->rank : 0;
    for (int d = 0; d < rank; d++) {
        bool both = uses(g->at->args[d], syms[0]) && uses(g->at->args[d], syms[1]);
        for (int k = 0; k < 2; k++) {
            if (!uses(g->at->args[d], syms[k])) continue;
            const Ex *at = build_resolve(b, NULL, of_head(n, g->at->args[d]));
            if (both || !goes_by_one(at, b->axis[roles[k]])) return refuse(n, g);
            along[k] = true;
        }
    }
    TileValue *v;
    if (along[0] && along[1]) {
        v = map(n, "g", DT_F32, AX_M, (int)other, value);
    } else {
        AxisRole first = along[0] ? other : AX_M, rest = along[0] ? AX_M : other;
        v = sum_over(n, "g", AX_M, (int)other, first, value);
        if (!along[0] && !along[1]) {
            TileOp *op = build_open_map(b, (int)rest, AX_NONE, b->row->span);
            v = pass_out(b->p, b->k, op, "g", DT_F32, pass_operand(b->p, op, v), EX_ROWSUM,
                         b->axis[rest]);
        }
    }
    TileOp *op = tile_op(b->p, b->k, b->block, TILE_STORE, g->at->span);
    op->tensor = n->grad[g->input];
    op->add = true;
    tile_arg(b->p, op, v);
    op->coord[0] = (TileCoord){-1, ex_i32(b->pool, 0)}; // a scalar's
    for (int d = 0; d < rank; d++) {
        const Ex *at = ex_simplify(b->pool, build_resolve(b, NULL, of_head(n, g->at->args[d])));
        int k = uses(g->at->args[d], syms[0]) ? 0 : uses(g->at->args[d], syms[1]) ? 1 : -1;
        op->coord[d] = k < 0 ? (TileCoord){-1, clamped(n, at, t->extent[d])}
                             : (TileCoord){b->axis[roles[k]], at};
        op->each[d] = k >= 0;
    }
    return true;
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

// From a tile of q and k to the weight, and from do and v to its gradient.
static TileValue *weights(Nest *n, TileValue *q, TileValue *k, TileValue *v, TileValue *doa) {
    Build *b = &n->b;
    ExPool *x = b->pool;
    const Ex *modified = b->row->modified, *mask = ex_symbol(x, SYM_MASK), *s = ex_symbol(x, SYM_S);
    const Backward *back = n->back;
    if (uses(modified, SYM_DOT) || pairs_use(back, SYM_DOT))
        build_bind(b, SYM_DOT, 0, mma(n, "dot", k, q, NULL, AX_M, AX_N));
    if (uses(modified, SYM_SQQ) || pairs_use(back, SYM_SQQ))
        build_bind(b, SYM_SQQ, 0, squares(n, "sqq", q, AX_M, AX_D));
    if (uses(modified, SYM_SQK) || pairs_use(back, SYM_SQK))
        build_bind(b, SYM_SQK, 0, squares(n, "sqk", k, AX_N, AX_D));
    build_bind(b, SYM_S, 0, map(n, "s", DT_F32, AX_M, AX_N, modified));
    n->takes = build_score_is_finite(b)
                   ? mask
                   : ex_2(x, EX_AND, mask, ex_2(x, EX_NE, s, ex_f32(x, -INFINITY)));
    TileValue *w = of_pairs(n, "w", DT_F32, back->weight);
    build_bind(b, SYM_W, 0, w);
    if (pairs_use(back, SYM_DW)) build_bind(b, SYM_DW, 0, mma(n, "dw", v, doa, NULL, AX_M, AX_N));
    return w;
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
    for (int i = 0; i < back->rows.n; i++)
        if (n->row[i] >= 0 && main_needs(back, i))
            build_bind(b, SYM_ROW, i,
                       load(n, numbered(n, "row", i), n->row[i], head, AX_M, AX_NONE));
    for (int i = 0; i < b->row->emits.n; i++)
        build_bind(b, SYM_DEMIT, i, load(n, "demit", n->demit[i], head, AX_M, AX_NONE));
    TileValue *come = load(n, "do", n->tensor_do, head, AX_M, AX_E);
    if (back->d_o->op == EX_SYM && back->d_o->sym == SYM_DO) return come;
    build_bind(b, SYM_DO, 0, come);
    if (uses(back->d_o, SYM_O))
        build_bind(b, SYM_O, 0, load(n, "o", b->tensor_o, head, AX_M, AX_E));
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

static TileValue *sum_of(Nest *n, const char *name, TileValue *x, AxisRole over, TileValue *to) {
    Build *b = &n->b;
    AxisRole rows = over == AX_M ? AX_N : AX_M;
    TileOp *op = build_open_map(b, AX_M, AX_N, b->row->span);
    TileValue *sum =
        pass_out(b->p, b->k, op, name, DT_F32, pass_operand(b->p, op, x), EX_ROWSUM, b->axis[over]);
    if (!to) return sum;
    op = build_open_map(b, rows, AX_NONE, b->row->span);
    const Ex *e = ex_2(b->pool, EX_ADD, pass_operand(b->p, op, to), pass_operand(b->p, op, sum));
    return pass_out(b->p, b->k, op, name, DT_F32, e, EX_CONST, 0);
}

static void set_mask(Nest *n) {
    Build *b = &n->b;
    ExPool *x = b->pool;
    const Ex *keys = ex_2(x, EX_LT, build_pos(b, AX_N), build_size(b, SIZE_SK)),
             *queries = ex_2(x, EX_LT, build_pos(b, AX_M), build_size(b, SIZE_SQ));
    b->k->mask =
        ex_2(x, EX_AND, ex_2(x, EX_AND, build_resolve(b, NULL, of_head(n, b->row->mask)), keys),
             queries);
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

// The further sweep: sums over the keys, all in one loop.
static void sweep(Nest *n) {
    Build *b = &n->b;
    const Backward *back = n->back;
    TileValue *start[ROW_MAX_REDUCES * 3], *last[ROW_MAX_REDUCES * 3];
    int sums = 0;
    const Ex *hkv = ex_2(b->pool, EX_DIV,
                         ex_2(b->pool, EX_MUL, ex_symbol(b->pool, SYM_H), build_size(b, SIZE_HKV)),
                         build_size(b, SIZE_HQ));
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
        TileOp *op = build_open_map(b, AX_M, AX_NONE, b->row->span);
        const Ex *e =
            ex_2(b->pool, EX_ADD, pass_operand(b->p, op, last[k]), pass_operand(b->p, op, tile));
        last[k++] = pass_out(b->p, b->k, op, "t", DT_F32, e, EX_CONST, 0);
    }
    yield(n, last, sums);
    b->env.n = mark;
    b->block = outer;
    for (int i = 0, k = 0; i < back->rows.n; i++)
        if (back->rows.data[i].made == BACK_KEYS)
            build_bind(b, SYM_ROW, i, loop->results.data[k++]);
}

// What nothing adds to is 0, too: the launch zeroes what kernels add to.
static void unused_grads(Nest *n) {
    Build *b = &n->b;
    for (int i = 0; i < b->row->inputs.n; i++) {
        bool grows = n->grad[i] < 0;
        for (int k = 0; k < n->back->grads.n; k++) grows |= n->back->grads.data[k].input == i;
        if (grows) continue;
        TileOp *zero = build_open_map(b, AX_NONE, AX_NONE, b->row->span);
        TileValue *v = pass_out(b->p, b->k, zero, "none", DT_F32, ex_f32(b->pool, 0), EX_CONST, 0);
        TileOp *op = tile_op(b->p, b->k, b->block, TILE_STORE, b->row->span);
        op->tensor = n->grad[i];
        op->add = true;
        tile_arg(b->p, op, v);
        for (int d = 0; d < b->p->tensors.data[op->tensor].rank; d++)
            op->coord[d] = (TileCoord){-1, ex_i32(b->pool, 0)};
    }
}

static bool row_grads(Nest *n) {
    Build *b = &n->b;
    ExPool *x = b->pool;
    const Backward *back = n->back;
    const Ex *in = ex_2(x, EX_LT, build_pos(b, AX_M), build_size(b, SIZE_SQ));
    for (int i = 0; i < back->grads.n; i++) {
        const BackGrad *g = &back->grads.data[i];
        if (g->per == BACK_PAIR) continue;
        const Ex *value = g->value, *zero = ex_f32(x, 0);
        if (g->per == BACK_ROW && back->empty) value = ex_select(x, back->empty, zero, value);
        // a number of the row stands in its first column
        if (g->per == BACK_ROW)
            value = ex_select(x, ex_2(x, EX_EQ, build_pos(b, AX_E), ex_i32(x, 0)), value, zero);
        value = ex_select(x, in, in_columns(n, value), zero);
        if (!add_grad(n, g, AX_E, value)) return false;
    }
    return true;
}

static bool build_delta(Nest *n) {
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
    TileValue *o = load(n, "o", b->tensor_o, h, AX_M, AX_E);
    build_bind(b, SYM_DO, 0, load(n, "do", n->tensor_do, h, AX_M, AX_E));
    build_bind(b, SYM_O, 0, o);
    build_bind(b, SYM_SQO, 0, squares(n, "sqo", o, AX_M, AX_E));
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
    for (int i = back->nsaved; i < back->rows.n; i++)
        if (n->row[i] >= 0)
            store(n, n->row[i], h, AX_M, AX_NONE, build_bound(b, SYM_ROW, i), false);
    unused_grads(n);
    return row_grads(n);
}

// ---- kernel: gradients, over tiles of keys

static bool pair_grads(Nest *n) {
    for (int i = 0; i < n->back->grads.n; i++) {
        const BackGrad *g = &n->back->grads.data[i];
        if (g->per == BACK_PAIR && !add_grad(n, g, AX_N, selected(n, g->value))) return false;
    }
    return true;
}

enum { DK, DV, DSQ, SUMS }; // what the loops carry

static TileOp *open_loop(Nest *n, int axis, const Ex *to, TileValue *const *from, TileValue **in,
                         int count) {
    Build *b = &n->b;
    static const char *const names[SUMS] = {"dk", "dv", "sq"};
    TileOp *loop = tile_op(b->p, b->k, b->block, TILE_LOOP, b->row->span);
    loop->axis = axis;
    loop->from = ex_i32(b->pool, 0);
    loop->to = to;
    loop->index = ex_symbol(b->pool, SYM_STEP);
    for (int i = 0; i < count; i++) in[i] = build_carry(b, loop, names[i], from[i]);
    loop->body.owner = loop;
    b->block = &loop->body;
    return loop;
}

// One tile of queries against the tile of keys.
static bool step(Nest *n, TileValue *k, TileValue *v, TileValue **sum, int count, bool with_dq) {
    Build *b = &n->b;
    int mark = b->env.n;
    TileValue *q = load(n, "q", b->tensor_q, n->head, AX_M, AX_D), *doa = come(n);
    Pair p = pair(n, q, k, v, doa);
    TileValue *w = p.w;
    if (n->dtype != DT_F32) w = map(n, "w", n->dtype, AX_M, AX_N, ex_symbol(b->pool, SYM_W));
    sum[DV] = mma(n, "dv", w, doa, sum[DV], AX_N, AX_E);
    if (p.d_dot) sum[DK] = mma(n, "dk", p.d_dot, q, sum[DK], AX_N, AX_D);
    if (count > DSQ) sum[DSQ] = sum_of(n, "sq", p.d_sqk, AX_M, sum[DSQ]);
    if (with_dq && (p.d_dot || p.d_sqq)) {
        TileValue *dq = p.d_dot ? mma(n, "dq", p.d_dot, k, NULL, AX_M, AX_D) : NULL;
        if (p.d_sqq) dq = twice(n, "dq", q, sum_of(n, "sq", p.d_sqq, AX_N, NULL), dq, AX_M);
        store(n, n->tensor_dq, n->head, AX_M, AX_D, dq, true);
    }
    bool good = pair_grads(n);
    b->env.n = mark;
    return good;
}

static bool build_gradients(Nest *n, bool with_dq) {
    Build *b = &n->b;
    ExPool *x = b->pool;
    TileKernel *k = build_kernel(b, PURPOSE_GRADIENTS, "gradients", all_axes, 4);
    const Ex *heads = ex_2(x, EX_DIV, build_size(b, SIZE_HQ), build_size(b, SIZE_HKV)),
             *h = ex_symbol(x, SYM_H);
    int group = tile_axis(k, "G", heads, false);
    k->axes[group].extent = 1;
    k->grid[1].count = build_size(b, SIZE_HKV);
    k->grid[2].axis = b->axis[AX_N];
    n->head = ex_2(x, EX_ADD, ex_2(x, EX_MUL, h, heads), ex_sym(x, SYM_TILE, group, EX_I32));
    set_mask(n);
    TileValue *keys = load(n, "k", b->tensor_k, h, AX_N, AX_D),
              *values = load(n, "v", b->tensor_v, h, AX_N, AX_E);
    int count = n->back->d_sqk ? SUMS : DSQ;
    TileValue *start[SUMS] = {zeros(n, "dk0", AX_N, AX_D), zeros(n, "dv0", AX_N, AX_E)},
              *head[SUMS], *sum[SUMS];
    if (count > DSQ) start[DSQ] = zeros(n, "sq0", AX_N, AX_NONE);
    TileOp *over_heads = open_loop(n, group, heads, start, head, count),
           *over_rows = open_loop(n, b->axis[AX_M], ex_i32(x, 1), head, sum, count);
    if (!step(n, keys, values, sum, count, with_dq)) return false;
    yield(n, sum, count);
    b->block = &over_heads->body;
    for (int i = 0; i < count; i++) sum[i] = over_rows->results.data[i];
    yield(n, sum, count);
    b->block = &k->body;
    TileValue *dk = over_heads->results.data[DK];
    if (count > DSQ) dk = twice(n, "dk", keys, over_heads->results.data[DSQ], dk, AX_N);
    store(n, n->tensor_dk, h, AX_N, AX_D, dk, false);
    store(n, n->tensor_dv, h, AX_N, AX_E, over_heads->results.data[DV], false);
    n->head = NULL;
    return true;
}

// ---- kernel: dq, over tiles of queries

static void build_queries(Nest *n) {
    Build *b = &n->b;
    ExPool *x = b->pool;
    build_kernel(b, PURPOSE_GRADIENTS, "queries", all_axes, 4);
    set_mask(n);
    const Ex *h = ex_symbol(x, SYM_H),
             *hkv = ex_2(x, EX_DIV, ex_2(x, EX_MUL, h, build_size(b, SIZE_HKV)),
                         build_size(b, SIZE_HQ));
    TileValue *q = load(n, "q", b->tensor_q, h, AX_M, AX_D), *doa = come(n);
    int count = n->back->d_sqq ? 2 : 1;
    TileValue *start[2] = {zeros(n, "dq0", AX_M, AX_D)}, *sum[2];
    if (count > 1) start[1] = zeros(n, "sq0", AX_M, AX_NONE);
    TileOp *loop = build_loop(b, AX_N, ex_i32(x, 1));
    for (int i = 0; i < count; i++) sum[i] = build_carry(b, loop, i ? "sq" : "dq", start[i]);
    loop->body.owner = loop;
    b->block = &loop->body;
    TileValue *k = load(n, "k", b->tensor_k, hkv, AX_N, AX_D);
    Pair p = pair(n, q, k, load(n, "v", b->tensor_v, hkv, AX_N, AX_E), doa);
    if (p.d_dot) sum[0] = mma(n, "dq", p.d_dot, k, sum[0], AX_M, AX_D);
    if (count > 1) sum[1] = sum_of(n, "sq", p.d_sqq, AX_N, sum[1]);
    yield(n, sum, count);
    b->block = &b->k->body;
    TileValue *dq = loop->results.data[0];
    if (count > 1) dq = twice(n, "dq", q, loop->results.data[1], dq, AX_M);
    store(n, n->tensor_dq, h, AX_M, AX_D, dq, false);
}

// ---- the program

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
    if (back->aggregate)
        diag_error(diags, row->output->span,
                   "the gradient of '%s' has no kernel yet: its output is no multiple of what is "
                   "aggregated",
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

TileProgram *pass_build_backward(Arena *a, const Backward *back, const PassOptions *o,
                                 bool deterministic, Diags *diags) {
    const RowProgram *row = back->row;
    if (!accepts(back, diags)) return NULL;
    Nest n = {.back = back, .dtype = o->dtype, .diags = diags};
    n.b = (Build){
        .arena = a, .pool = row->pool, .s = back->s, .row = row, .fixed = -1, .tf32 = o->tf32};
    TileProgram *p = n.b.p = tile_program(a, row->pool, row->name);
    bool some = back->d_dot || back->d_sqq, with_dq = some && !deterministic && o->dtype == DT_F32;
    p->phase = PHASE_BWD;
    p->target = o->target.id;
    p->dtype = o->dtype;
    p->D = row->D, p->Dv = row->Dv;
    tile_sizes(p, &row->sizes);
    add_tensors(&n);
    TilePlan plan = {0};
    if (!build_delta(&n) || !build_gradients(&n, with_dq)) return NULL;
    if (!with_dq) build_queries(&n);
    for (int i = 0; i < p->kernels.n; i++) VEC_PUSH(a, &plan.kernels, i);
    VEC_PUSH(a, &p->plans, plan);
    return p;
}
