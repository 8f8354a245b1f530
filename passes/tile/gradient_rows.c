// gradient_rows.c: the rows that products are made of, and their gradients.
//
// In: a backward's gradients by dots and squared norms (Backward.products). Each row gets, of each dot that it is in, the products of these
// gradients with the row that it meets; and of its squared norm twice itself:
//
//     q_pe, in dot(q, k) + dot(q_pe, k_pe):    %dq_pe = mma d_dot, k_pe
//
// Where channels have factors, products see q * f, which the kernel `delta` leaves for the others, rounded as the forward rounds it. What
// comes to it goes on to q, multiplied by f, and to what f reads.
//
// dq and dk are one sum of a row's parts, unless they are in pieces: slices, and a v that lies in k, add to some of their columns.
#include "passes/tile/gradients.h"

// ---- which there are

static const RowOperand *operand(const Nest *n, RowSide side, int row) {
    return &n->b.row->rows[side].data[row];
}

bool grad_is_own(const Nest *n, RowSide side, int row) { return operand(n, side, row)->input < 0; }

static bool is_wanted(const Nest *n, RowSide side, int row) {
    int input = operand(n, side, row)->input;
    return input < 0 || n->b.row->inputs.data[input].grad;
}

static ExSym norm_of(RowSide side) { return side == ROW_KEYS ? SYM_SQK : SYM_SQQ; }

static int seen_of(const Nest *n, const int *pair) {
    const Ex *factor = row_factor(n->b.row, pair);
    for (int i = 0; i < n->seen.n && factor; i++)
        if (n->seen.data[i].row == pair[ROW_QUERIES] && n->seen.data[i].factor == factor) return i;
    return -1;
}

static void add_seen(Nest *n, const int *pair) {
    Seen new = {.row = pair[ROW_QUERIES], .factor = row_factor(n->b.row, pair), .tensor = -1};
    if (new.factor && seen_of(n, pair) < 0) VEC_PUSH(n->b.arena, &n->seen, new);
}

static void add_part(Nest *n, RowSide side, Part new) {
    Parts *parts = &n->parts[side];
    for (int i = 0; i < parts->n; i++) {
        const Part *p = &parts->data[i];
        if (p->row == new.row && p->seen == new.seen && p->norm == new.norm) return;
    }
    bool piece = new.row != 0 && grad_is_own(n, side, new.row);
    n->pieces[side] |= piece;
    if (is_wanted(n, side, new.row)) VEC_PUSH(n->b.arena, parts, new);
}

void grad_find_rows(Nest *n) {
    const RowProgram *row = n->b.row;
    n->pieces[ROW_KEYS] = row->v_in_k;
    for (int i = 0; i < row->dots.n; i++)
        for (int k = 0; k < row->dots.data[i].pairs.n; k++) {
            const int *pair = row->dots.data[i].pairs.data[k].row;
            bool used = ex_uses(row->modified, SYM_DOT, i);
            if (used) add_seen(n, pair);
            if (!back_product(n->back, SYM_DOT, i)) continue;
            add_part(n, ROW_QUERIES, (Part){pair[ROW_QUERIES], seen_of(n, pair), false});
            add_part(n, ROW_KEYS, (Part){pair[ROW_KEYS], -1, false});
        }
    for (int side = 0; side < ROW_SIDES; side++) {
        bool whole = false;
        for (int i = 0; i < n->parts[side].n; i++) whole |= n->parts[side].data[i].row == 0;
        if (!whole) add_part(n, (RowSide)side, (Part){0, -1, false}); // 0 where nothing is added
        for (int i = 0; i < row->rows[side].n; i++)
            if (back_product(n->back, norm_of((RowSide)side), i))
                add_part(n, (RowSide)side, (Part){i, -1, true});
    }
}

// ---- what they are

static AxisRole rows_of(RowSide side) { return side == ROW_KEYS ? AX_N : AX_M; }
static ExSym symbol_of(RowSide side) { return side == ROW_KEYS ? SYM_K : SYM_Q; }

static TileValue *tile_of(Nest *n, RowSide side, int row) {
    return build_bound(&n->b, symbol_of(side), row);
}

static TileValue *times_factor(Nest *n, const char *name, const Seen *s, TileValue *x, Dtype t) {
    Build *b = &n->b;
    AxisRole columns = b->columns = build_row_columns(b, ROW_QUERIES, s->row);
    const Ex *e = ex_2(b->pool, EX_MUL, build_of(b, x), s->factor);
    TileValue *v = grad_map(n, name, t, AX_M, (int)columns, e);
    b->columns = AX_M;
    return v;
}

// Behind the rows, in what SYM_Q stands for.
static int place_of_seen(const Nest *n, int seen) { return n->b.row->rows[ROW_QUERIES].n + seen; }

static void load_seen(Nest *n) {
    Build *b = &n->b;
    for (int i = 0; i < n->seen.n; i++) {
        const Seen *s = &n->seen.data[i];
        TileValue *v = b->k->purpose == PURPOSE_DELTA
                           ? times_factor(n, "q", s, tile_of(n, ROW_QUERIES, s->row), n->dtype)
                           : grad_load(n, "q", s->tensor, grad_head(n), AX_M,
                                       build_row_columns(b, ROW_QUERIES, s->row));
        build_bind(b, SYM_Q, place_of_seen(n, i), v);
    }
}

void grad_load_rows(Nest *n, RowSide side, const Ex *head, bool own, bool inputs) {
    for (int i = 0; i < n->b.row->rows[side].n; i++) {
        bool is_own = grad_is_own(n, side, i);
        if ((i && !pass_uses_row(n->b.row, side, i)) || !(is_own ? own : inputs)) continue;
        build_bind(&n->b, symbol_of(side), i, build_load_row(&n->b, side, i, head, grad_head(n)));
    }
    if (side == ROW_QUERIES) load_seen(n);
}

void grad_leave_seen(Nest *n) {
    Build *b = &n->b;
    if (!n->seen.n) return;
    grad_load_rows(n, ROW_QUERIES, grad_head(n), true, true);
    for (int i = 0; i < n->seen.n; i++)
        grad_store(n, n->seen.data[i].tensor, grad_head(n), AX_M,
                   build_row_columns(b, ROW_QUERIES, n->seen.data[i].row),
                   build_bound(b, SYM_Q, place_of_seen(n, i)), false);
}

// ---- products

static TileValue *query_in(Nest *n, const int *pair) {
    int seen = seen_of(n, pair);
    return build_bound(&n->b, SYM_Q, seen < 0 ? pair[ROW_QUERIES] : place_of_seen(n, seen));
}

TileValue *grad_dot(Nest *n, int dot) {
    const RowDot *d = &n->b.row->dots.data[dot];
    TileValue *sum = NULL;
    for (int i = 0; i < d->pairs.n; i++) {
        const int *pair = d->pairs.data[i].row;
        sum = grad_mma(n, "dot", tile_of(n, ROW_KEYS, pair[ROW_KEYS]), query_in(n, pair), sum, AX_M,
                       AX_N);
    }
    return sum;
}

TileValue *grad_squares(Nest *n, RowSide side, int row) {
    return build_squares(&n->b, side == ROW_KEYS ? "sqk" : "sqq", tile_of(n, side, row),
                         rows_of(side), build_row_columns(&n->b, side, row), n->back->same_dots);
}

// ---- gradients

static TileValue *sum_of(Nest *n, const char *name, TileValue *x, AxisRole over, TileValue *to) {
    TileValue *sum = grad_sum_over(n, name, AX_M, AX_N, over, build_of(&n->b, x));
    return to ? grad_plus(n, name, to, sum, over == AX_M ? AX_N : AX_M, AX_NONE) : sum;
}

// Whether the pair's gradient is of this part.
static bool is_in(const Nest *n, RowSide side, const Part *part, const int *pair) {
    return pair[side] == part->row && (side == ROW_KEYS || seen_of(n, pair) == part->seen);
}

TileValue *grad_part(Nest *n, RowSide side, const Part *part, const Pair *p, TileValue *sum) {
    const Backward *back = n->back;
    const char *name = side == ROW_KEYS ? "dk" : "dq";
    AxisRole columns = build_row_columns(&n->b, side, part->row);
    TileValue *all = NULL;
    for (int i = 0; i < back->products.n; i++) {
        const BackProduct *d = &back->products.data[i];
        if (part->norm && d->sym == norm_of(side) && d->index == part->row)
            return sum_of(n, "sq", p->products[i], side == ROW_KEYS ? AX_M : AX_N, sum);
        if (part->norm || d->sym != SYM_DOT) continue;
        const RowDot *dot = &n->b.row->dots.data[d->index];
        for (int k = 0; k < dot->pairs.n; k++) {
            const int *pair = dot->pairs.data[k].row;
            if (!is_in(n, side, part, pair)) continue;
            TileValue *other =
                side == ROW_KEYS ? query_in(n, pair) : tile_of(n, ROW_KEYS, pair[ROW_KEYS]);
            all = grad_mma(n, name, p->products[i], other, all ? all : sum, rows_of(side), columns);
        }
    }
    return all;
}

TileValue *grad_start(Nest *n, RowSide side, const Part *part) {
    const char *name = part->norm ? "sq" : side == ROW_KEYS ? "dk" : "dq";
    int columns = part->norm ? AX_NONE : (int)build_row_columns(&n->b, side, part->row);
    return grad_zeros(n, name, (int)rows_of(side), columns);
}

// Twice the rows of x by the numbers of these rows.
static TileValue *twice(Nest *n, const char *name, TileValue *x, TileValue *by, TileValue *to,
                        AxisRole rows, AxisRole columns) {
    Build *b = &n->b;
    const Ex *e = ex_2(b->pool, EX_MUL, build_of(b, x), build_of(b, by));
    e = ex_2(b->pool, EX_MUL, e, ex_f32(b->pool, 2));
    if (to) e = ex_2(b->pool, EX_ADD, build_of(b, to), e);
    return build_map(b, name, DT_F32, (int)rows, (int)columns, e);
}

// From the gradient of what products see to that of the row, and to what the factor reads.
static TileValue *through_factor(Nest *n, const Seen *s, TileValue *come) {
    Build *b = &n->b;
    int mark = b->env.n;
    AxisRole columns = build_row_columns(b, ROW_QUERIES, s->row);
    build_bind(b, SYM_DO, 0, come);
    b->columns = columns;
    for (int i = 0; i < n->back->grads.n; i++) {
        const BackGrad *g = &n->back->grads.data[i];
        if (g->per == BACK_CHANNEL && g->row == s->row && g->factor == s->factor)
            grad_add(n, g, columns, g->value);
    }
    b->columns = AX_M;
    b->env.n = mark;
    return times_factor(n, "dq", s, come, DT_F32);
}

static TileValue *gradient_of(Nest *n, RowSide side, int row, TileValue *const *sum) {
    const char *name = side == ROW_KEYS ? "dk" : "dq";
    AxisRole columns = build_row_columns(&n->b, side, row);
    TileValue *all = NULL;
    for (int i = 0; i < n->parts[side].n; i++) {
        const Part *part = &n->parts[side].data[i];
        if (part->row != row || !sum[i]) continue;
        if (part->norm) {
            all = twice(n, name, tile_of(n, side, row), sum[i], all, rows_of(side), columns);
            continue;
        }
        TileValue *v =
            part->seen < 0 ? sum[i] : through_factor(n, &n->seen.data[part->seen], sum[i]);
        all = all ? grad_plus(n, name, all, v, rows_of(side), (int)columns) : v;
    }
    return all;
}

// To some columns of a tensor: each element where it belongs. Blocks of a GPU add all pieces so.
static void place_columns(Nest *n, TileOp *op, RowSide side, AxisRole columns, int from) {
    Build *b = &n->b;
    int last = b->p->tensors.data[op->tensor].rank - 1, rows = b->axis[rows_of(side)];
    for (int d = 0; d < last; d++)
        if (op->coord[d].axis == rows && !op->each[d]) {
            op->each[d] = true;
            op->coord[d].at = build_pos(b, rows_of(side));
        }
    op->each[last] = true;
    op->coord[last].at = ex_2(b->pool, EX_ADD, build_pos(b, columns), ex_i32(b->pool, from));
}

void grad_give_rows(Nest *n, RowSide side, TileValue *const *sum, bool own, bool inputs, bool add) {
    Build *b = &n->b;
    for (int i = 0; i < b->row->rows[side].n; i++) {
        const RowOperand *r = operand(n, side, i);
        if (!(r->input < 0 ? own : inputs)) continue;
        TileValue *v = gradient_of(n, side, i, sum);
        if (!v) continue;
        bool adds = add || r->input >= 0;
        int tensor = r->input >= 0 ? n->grad[r->input]
                     : adds        ? n->sums[side]
                     : side        ? n->tensor_dk
                                   : n->tensor_dq;
        const Ex *head = side == ROW_QUERIES ? grad_head(n) : ex_symbol(b->pool, SYM_H);
        AxisRole columns = build_row_columns(b, side, i);
        TileOp *op = grad_store(n, tensor, build_head_among(b, side, r, head, grad_head(n)),
                                rows_of(side), (int)columns, v, adds);
        bool piece = r->input >= 0 || n->pieces[side];
        if (adds && (build_is_slice(b, r) || (piece && n->by_element)))
            place_columns(n, op, side, columns, r->from);
        if (r->input >= 0) op->tensor = n->adds[r->input];
        if (op->tensor != tensor) // the first of an element's words
            op->coord[b->p->tensors.data[tensor].rank] =
                (TileCoord){.axis = -1, .at = ex_i32(b->pool, 0)};
    }
}

// Where v is the first columns of k, more of its gradient.
void grad_give_values(Nest *n, const Ex *head, TileValue *dv) {
    bool in_k = n->b.row->v_in_k;
    TileOp *op = grad_store(n, in_k ? n->sums[ROW_KEYS] : n->tensor_dv, head, AX_N, AX_E, dv, in_k);
    if (in_k) place_columns(n, op, ROW_KEYS, AX_E, 0);
}
