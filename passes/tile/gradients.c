// gradients.c: what kernels of a backward load, compute and store, and the gradients of inputs.
#include "passes/tile/gradients.h"

static bool uses(const Ex *e, ExSym s) { return ex_uses(e, s, -1); }

// ---- small things

const Ex *grad_head(Nest *n) { return n->head ? n->head : ex_symbol(n->b.pool, SYM_H); }

// A number of the query, as an input is read.
static const Ex *read(Nest *n, int tensor) {
    Build *b = &n->b;
    const Ex *at[] = {ex_symbol(b->pool, SYM_B), grad_head(n), build_pos(b, AX_M)};
    const Ex *row[] = {at[1], NULL}, *swap;
    int input = build_input(b, tensor);
    if (!b->p->batch) return ex_load(b->pool, input, EX_F32, at, 3, false);
    places_query(&b->at, at[2], &row[1]);
    if (b->p->tensors.data[tensor].role == TENSOR_WORK)
        row[1] = build_place_of_work(b, AX_M);
    else
        swap = row[0], row[0] = row[1], row[1] = swap;
    return ex_load(b->pool, input, EX_F32, row, 2, false);
}

const Ex *grad_placed(Nest *n, const Ex *e) {
    ExPool *x = n->b.pool;
    if (n->head) e = ex_subst(x, e, SYM_H, 0, n->head);
    for (int i = 0; i < n->back->rows.n && n->by_keys; i++)
        if (n->row[i] >= 0 && ex_uses(e, SYM_ROW, i))
            e = ex_subst(x, e, SYM_ROW, i, read(n, n->row[i]));
    for (int i = 0; i < n->b.row->emits.n && n->by_keys; i++)
        if (ex_uses(e, SYM_DEMIT, i)) e = ex_subst(x, e, SYM_DEMIT, i, read(n, n->demit[i]));
    return e;
}

TileValue *grad_map(Nest *n, const char *name, Dtype t, int x, int y, const Ex *e) {
    return build_map(&n->b, name, t, x, y, grad_placed(n, e));
}

TileValue *grad_load(Nest *n, const char *name, int tensor, const Ex *head, AxisRole rows,
                     int columns) {
    return build_load_of(&n->b, name, tensor, rows, columns, head);
}

TileOp *grad_store(Nest *n, int tensor, const Ex *head, AxisRole rows, int columns, TileValue *v,
                   bool add) {
    TileOp *op = build_store_of(&n->b, tensor, v, rows, columns, head);
    op->add = add;
    return op;
}

TileValue *grad_mma(Nest *n, const char *name, TileValue *x, TileValue *y, TileValue *sum,
                    AxisRole rows, AxisRole columns) {
    return build_mma(&n->b, name, x, y, sum, rows, columns, n->b.row->span);
}

TileValue *grad_sum_over(Nest *n, const char *name, int x, int y, AxisRole over, const Ex *e) {
    Build *b = &n->b;
    TileOp *op = build_open_map(b, x, y, b->row->span);
    return pass_out(b->p, b->k, op, name, DT_F32, build_resolve(b, op, grad_placed(n, e)),
                    EX_ROWSUM, b->axis[over]);
}

TileValue *grad_zeros(Nest *n, const char *name, int x, int y) {
    return grad_map(n, name, DT_F32, x, y, ex_f32(n->b.pool, 0));
}

TileValue *grad_plus(Nest *n, const char *name, TileValue *x, TileValue *y, AxisRole rows,
                     int columns) {
    Build *b = &n->b;
    const Ex *e = ex_2(b->pool, EX_ADD, build_of(b, x), build_of(b, y));
    return build_map(b, name, DT_F32, (int)rows, columns, e);
}

// ---- gradients of inputs

void grad_places(Nest *n, Backward *back) {
    Build *b = &n->b;
    ExPool *x = b->pool;
    const Ex *key = ex_symbol(x, SYM_KV_IDX),
             *query = ex_2(x, EX_SUB, ex_symbol(x, SYM_Q_IDX), build_size(b, SIZE_Q_OFFSET));
    if (b->phase) { // rows at hand: formulas mean positions of the whole
        key = ex_2(x, EX_SUB, key, build_size(b, b->whole.kv_first));
        query = ex_2(x, EX_SUB, query, build_size(b, b->whole.q_first));
    }
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

static ExSym other_symbol(AxisRole other) { return other == AX_N ? SYM_KV_IDX : SYM_D_IDX; }

// Which of the two axes the d-th index goes along; AX_NONE: neither.
static int index_along(const BackGrad *g, int d, AxisRole other) {
    if (uses(g->at->args[d], SYM_Q_IDX)) return AX_M;
    return uses(g->at->args[d], other_symbol(other)) ? (int)other : AX_NONE;
}

bool grad_goes_along(Nest *n, const BackGrad *g, AxisRole axis, AxisRole other) {
    bool any = false;
    for (int d = 0; d < rank_of(n, g); d++) any |= index_along(g, d, other) == (int)axis;
    return any;
}

// Whether some index is made of places along both axes.
bool grad_scatters(Nest *n, const BackGrad *g, AxisRole other) {
    for (int d = 0; d < rank_of(n, g); d++)
        if (index_along(g, d, other) == AX_M && uses(g->at->args[d], other_symbol(other)))
            return true;
    return false;
}

void grad_store_input(Nest *n, const BackGrad *g, AxisRole other, int rides, TileValue *v) {
    Build *b = &n->b;
    const TileTensor *t = &b->p->tensors.data[n->grad[g->input]];
    TileOp *op = tile_op(b->p, b->k, b->block, TILE_STORE, g->at->span);
    op->tensor = n->adds[g->input];
    op->add = true;
    if (op->tensor != n->grad[g->input]) // the first of an element's words
        op->coord[t->rank] = (TileCoord){.axis = -1, .at = ex_i32(b->pool, 0)};
    tile_arg(b->p, op, v);
    for (int d = 0; d < t->rank; d++) {
        bool scalar = !rank_of(n, g);
        int role = scalar ? AX_NONE : index_along(g, d, other);
        const Ex *at = scalar ? ex_i32(b->pool, 0) : grad_placed(n, g->at->args[d]);
        at = ex_simplify(b->pool, build_resolve(b, NULL, at));
        if (role == AX_NONE) at = clamped(n, at, t->extent[d]);
        if (role == AX_NONE) role = rides, rides = AX_NONE;
        op->coord[d] = (TileCoord){.axis = role == AX_NONE ? -1 : b->axis[role], .at = at};
        op->each[d] = role != AX_NONE;
    }
    for (int d = 0; d < t->rank && (rides != AX_NONE || grad_scatters(n, g, other)); d++)
        if (op->each[d]) op->coord[d].axis = -1;
}

void grad_add(Nest *n, const BackGrad *g, AxisRole other, const Ex *value) {
    bool rows = grad_goes_along(n, g, AX_M, other), columns = grad_goes_along(n, g, other, other),
         both = grad_scatters(n, g, other);
    if (both || (columns && (rows || n->by_element))) {
        TileValue *v = grad_map(n, "g", DT_F32, AX_M, (int)other, value);
        grad_store_input(n, g, other, rows ? AX_NONE : AX_M, v);
        return;
    }
    AxisRole first = columns ? AX_M : other, rest = columns ? other : AX_M;
    TileValue *v = grad_sum_over(n, "g", AX_M, (int)other, first, value);
    if (!rows && !columns && !n->by_element) {
        v = grad_sum_over(n, "g", (int)rest, AX_NONE, rest, build_of(&n->b, v));
        rows = true;
    }
    grad_store_input(n, g, other, rows || columns ? AX_NONE : AX_M, v);
}
