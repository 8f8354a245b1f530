// recur_grads.c: from the gradients of the pieces of a chunk (ir/chunk.h) to those of inputs, and what files of the backward share.
//
// In: gradients of pieces along T, with columns or without. Out: for each place of an input that they are made of the sum over the
// pieces, added to the input's gradient; it is summed over the axes that the place's index does not go along.
#include "passes/tile/recur_back.h"

// ---- small things

const Ex *recur_add(Recur *r, const Ex *a, const Ex *b) {
    return !a ? b : !b ? a : ex_2(r->x, EX_ADD, a, b);
}

// Where the element is one of the sequence, and not of a tile's padding.
const Ex *recur_inside(Recur *r, int rows, int columns) {
    const Ex *e = rows < 0 ? NULL : recur_exists(r, rows);
    int size = columns == r->D ? r->rec->D : r->rec->Dv;
    if (columns < 0) return e;
    return recur_both(r, e, ex_2(r->x, EX_LT, recur_pos(r, columns), ex_i32(r->x, size)));
}

TileValue *recur_plus(Recur *r, const char *name, TileValue *a, TileValue *b) {
    if (!a || !b) return a ? a : b;
    TileOp *map = recur_open(r, a->axis[0], a->rank > 1 ? a->axis[1] : -1, -1);
    return recur_out(r, map, name, ex_2(r->x, EX_ADD, recur_in(r, map, a), recur_in(r, map, b)));
}

TileValue *recur_along_t(Recur *r, TileValue *v) {
    return v ? recur_beside(r, arena_printf(r->arena, "%st", v->name), v, r->U, r->T) : NULL;
}

TileValue *recur_summed(Recur *r, TileValue *v, int axis) {
    TileOp *map = recur_open(r, v->axis[0], v->rank > 1 ? v->axis[1] : -1, -1);
    return recur_reduce(r, map, "g", EX_ROWSUM, axis, recur_in(r, map, v));
}

// a * b * number, summed over columns.
TileValue *recur_dot(Recur *r, const char *name, TileValue *a, TileValue *b, Number n) {
    int columns = a->axis[1] == r->T || a->axis[1] == r->U ? a->axis[0] : a->axis[1];
    int rows = columns == a->axis[1] ? a->axis[0] : a->axis[1];
    TileOp *map = recur_open(r, rows, columns, -1);
    const Ex *e = ex_2(r->x, EX_MUL, recur_in(r, map, a), recur_in(r, map, b));
    TileValue *v = recur_reduce(r, map, name, EX_ROWSUM, columns, e);
    if (!n.v && !n.constant) return v;
    map = recur_open(r, rows, -1, -1);
    return recur_out(r, map, name, recur_times(r, recur_in(r, map, v), recur_factor(r, map, n)));
}

// ---- gradients of inputs

static bool refuse(Back *b, const ChunkSlope *s, const char *why) {
    diag_error(b->diags, s->of->span, "the gradient of '%s' has no kernel yet: it is read at %s",
               b->r.rec->inputs.data[s->input].name, why);
    b->good = false;
    return false;
}

static int columns_of(const Recur *r, ChunkPieceId id) {
    switch ((int)id) {
    case PIECE_QUERY:
    case PIECE_ERASE:
    case PIECE_WRITE:
    case PIECE_WRITE2:
    case PIECE_BONUS: return r->D;
    case PIECE_VALUE:
    case PIECE_OUTPUT: return r->E;
    case PIECE_DECAY: return r->c->channel ? r->D : -1;
    default: return -1;
    }
}

// slope * gradient of the piece, in a map along T and `columns`.
static const Ex *through(Back *b, TileOp *map, const Pieces *g, ChunkPieceId id, const Ex *by) {
    Recur *r = &b->r;
    Clause c = {.r = r, .map = map, .along = ALONG_T, .o = g->o, .norm_o = g->norm_o};
    const Ex *d = recur_in(r, map, g->of[id]), *e = recur_times(r, d, recur_clause_of(&c, by));
    if (id != PIECE_DECAY || !b->back->at_zero) return e;
    return recur_where(r, ex_2(r->x, EX_NE, d, recur_number(r, 0)), e); // at 0 a root is steep
}

// The sum over pieces with such columns of slope * gradient; NULL: none has one.
const Ex *recur_sum_of_slopes(Back *b, TileOp *map, const Pieces *g, int columns, const Ex *of) {
    const Ex *sum = NULL;
    for (int id = 0; id < PIECE_COUNT; id++) {
        const ChunkSlopes *s = &b->back->piece[id];
        for (int i = 0; i < s->n && g->of[id] && columns_of(&b->r, id) == columns; i++)
            if (s->data[i].of == of)
                sum = recur_add(&b->r, sum, through(b, map, g, id, s->data[i].by));
    }
    return sum ? recur_where(&b->r, recur_inside(&b->r, b->r.T, columns), sum) : NULL;
}

// A map of the sum; NULL where there is none.
TileValue *recur_slopes(Back *b, const char *name, const Pieces *g, int columns, const Ex *of) {
    Recur *r = &b->r;
    TileOp *map = recur_open(r, r->T, columns, -1);
    const Ex *sum = recur_sum_of_slopes(b, map, g, columns, of);
    if (sum) return recur_out(r, map, name, sum);
    tile_unlink(map);
    return NULL;
}

static const Ex *clamped(Recur *r, const Ex *at, const Ex *extent) {
    const Ex *last = ex_2(r->x, EX_SUB, extent, ex_i32(r->x, 1));
    return ex_2(r->x, EX_MAX, ex_2(r->x, EX_MIN, at, last), ex_i32(r->x, 0));
}

// Where a dimension of an input is read at.
typedef struct Dim {
    int axis;   // -1: neither the position nor the column
    bool plain; // the position or column itself
} Dim;

static Dim dim_of(const Recur *r, const Ex *at, int columns) {
    ExSym column = columns == r->E ? SYM_E_IDX : SYM_D_IDX;
    if (ex_uses(at, SYM_T_IDX, 0)) return (Dim){r->T, at->op == EX_SYM};
    if (columns >= 0 && ex_uses(at, column, 0)) return (Dim){columns, at->op == EX_SYM};
    return (Dim){-1, false};
}

static bool has_place(Back *b, const ChunkSlope *s, int columns) {
    const Recur *r = &b->r;
    for (int d = 0; s->of->op == EX_LOAD && d < s->of->nargs; d++) {
        const Ex *at = s->of->args[d];
        Dim dim = dim_of(r, at, columns);
        bool two =
            ex_uses(at, SYM_T_IDX, 0) && (ex_uses(at, SYM_D_IDX, 0) || ex_uses(at, SYM_E_IDX, 0));
        if (two || (dim.axis >= 0 && !dim.plain))
            return refuse(b, s, "an index made of the position or the column, not the one itself");
        for (int e = 0; e < d; e++)
            if (dim.axis >= 0 && dim_of(r, s->of->args[e], columns).axis == dim.axis)
                return refuse(b, s, "the same index twice");
    }
    return true;
}

static bool goes_along(const Recur *r, const ChunkSlope *s, int axis, int columns) {
    for (int d = 0; s->of->op == EX_LOAD && d < s->of->nargs; d++)
        if (dim_of(r, s->of->args[d], columns).axis == axis) return true;
    return false;
}

// Whether no other place of the input is one.
static bool only_place(const Back *b, const ChunkSlope *s) {
    for (int id = 0; id < PIECE_COUNT; id++) {
        const ChunkSlopes *all = &b->back->piece[id];
        for (int i = 0; i < all->n; i++)
            if (all->data[i].input == s->input && all->data[i].of != s->of) return false;
    }
    return true;
}

// Whether a dimension of the input is all of what its index is: batches, heads, positions or columns. Which one.
static int whole_dim(const Recur *r, const Ex *at, const Ex *extent, int columns) {
    bool of_v = columns == r->E;
    const struct {
        ExSym sym;
        const Ex *all;
    } of[] = {{SYM_B, ex_sym(r->x, SYM_SIZE, RSIZE_B, EX_I32)},
              {SYM_H, ex_sym(r->x, SYM_SIZE, RSIZE_H, EX_I32)},
              {SYM_T_IDX, ex_sym(r->x, SYM_SIZE, RSIZE_S, EX_I32)},
              {of_v ? SYM_E_IDX : SYM_D_IDX, ex_i32(r->x, of_v ? r->rec->Dv : r->rec->D)}};
    for (int i = 0; i < 3 + (columns >= 0); i++)
        if (at->op == EX_SYM && at->sym == of[i].sym && extent == of[i].all) return i;
    return -1;
}

// Whether each element is made once, by one point of the grid, so that nothing is added.
static bool is_own(const Back *b, const ChunkSlope *s, int columns) {
    const RowInput *in = &b->r.rec->inputs.data[s->input];
    int seen = 0, all = columns < 0 ? 7 : 15;
    if (s->of->op != EX_LOAD || !only_place(b, s)) return false;
    for (int d = 0; d < s->of->nargs; d++) {
        int dim = whole_dim(&b->r, s->of->args[d], in->extent[d], columns);
        if (dim < 0) return false;
        seen |= 1 << dim;
    }
    return seen == all;
}

static void store_grad(Back *b, const ChunkSlope *s, int columns, TileValue *v) {
    Recur *r = &b->r;
    const TileTensor *t = &r->p->tensors.data[b->grad[s->input]];
    TileOp *op = tile_op(r->p, r->k, r->block, TILE_STORE, s->of->span);
    op->tensor = b->grad[s->input];
    op->add = !is_own(b, s, columns);
    tile_arg(r->p, op, v);
    for (int d = 0; d < t->rank; d++) {
        bool scalar = s->of->op != EX_LOAD;
        const Ex *at = scalar ? ex_i32(r->x, 0) : s->of->args[d];
        Dim dim = scalar ? (Dim){-1, false} : dim_of(r, at, columns);
        if (dim.axis < 0 && !scalar) at = clamped(r, at, t->extent[d]);
        op->coord[d] =
            (TileCoord){.axis = dim.axis,
                        .at = dim.axis < 0 ? ex_simplify(r->x, at) : recur_tile_of(r, dim.axis)};
    }
}

// Of the place of an input that a slope is of, from the pieces with such columns.
static void add_grad(Back *b, const Pieces *g, const ChunkSlope *s, int columns) {
    Recur *r = &b->r;
    if (b->grad[s->input] < 0 || !has_place(b, s, columns)) return;
    TileValue *v = recur_slopes(b, "g", g, columns, s->of);
    if (!v) return;
    if (columns >= 0 && !goes_along(r, s, columns, columns)) v = recur_summed(r, v, columns);
    if (!goes_along(r, s, r->T, columns)) v = recur_summed(r, v, r->T);
    store_grad(b, s, columns, v);
}

// Each place of an input once for all pieces with the same columns.
void recur_add_grads(Back *b, const Pieces *g) {
    for (int id = 0; id < PIECE_COUNT; id++) {
        const ChunkSlopes *s = &b->back->piece[id];
        int columns = columns_of(&b->r, id);
        for (int i = 0; i < s->n && g->of[id]; i++) {
            bool before = s->data[i].input < 0;
            for (int k = 0; k < id && !before; k++) {
                const ChunkSlopes *o = &b->back->piece[k];
                for (int j = 0; j < o->n && g->of[k] && columns_of(&b->r, k) == columns; j++)
                    before |= o->data[j].of == s->data[i].of;
            }
            if (!before) add_grad(b, g, &s->data[i], columns);
        }
    }
}
