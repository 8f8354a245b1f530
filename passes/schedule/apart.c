// apart.c: inputs with a number for each query and key (a dense bias), apart from the maps that take them.
//
// Copied as keys are (pass_copy_apart), where their rows begin at multiples of 16 bytes. In: a kernel before its extents are
// chosen. Out: what its loops' maps read of such inputs, wherever no element's place is looked up, is a tile of theirs:
//
//     %p = map [M, N] (%s, %a) { exp2((%s + bias[b, h, (q_offset + M.pos), N.pos]) + %a) }
//     %bias = load bias[b, h, M:, N:]
//     %p = map [M, N] (%s, %a, %bias) { exp2((%s + %bias) + %a) }
//
// Or read before scores are waited for (pass_read_apart).
// In: the body of a loop over full tiles. Out: what its maps read of such inputs, where two elements are one word, is read by
// maps of their own, as it is stored:
//
//     %p = map [M, N] (%s, %a) { exp2((%s + bias![b, h, M.pos, N.pos]) + %a) }
//     %bias = map [M, N] () { bias![b, h, M.pos, N.pos] }
//     %p = map [M, N] (%s, %a, %bias) { exp2((%s + %bias) + %a) }
#include "passes/schedule/strips.h"
#include "passes/tile/rewrite.h"

typedef struct Apart {
    TileProgram *p;
    TileKernel *k;
    TileOp *loop, *map;
    bool left; // something is read that no copy has
} Apart;

static const TileTensor *tensor_of(const Apart *a, const Ex *load) {
    return &a->p->tensors.data[a->p->inputs.data[load->input]];
}

static bool is_apart(const Apart *a, const Ex *e) {
    int columns = a->loop->axis;
    AxisSet both = 1u << columns | 1u << tile_grid_axis(a->k);
    return tile_ends_along(e, columns) && e->inside && dtype_half(tensor_of(a, e)->dtype) &&
           !tile_lead_varies(a->map, e, columns) && pass_expr_axes(a->k, a->map, e) == both;
}

static void find_param(void *ctx, const Ex *e) {
    *(bool *)ctx |= e->op == EX_SYM && e->sym == SYM_PARAM;
}

// An operand is written out: a row's index that was made before.
static const Ex *written_out(void *ctx, ExPool *x, const Ex *e) {
    const Apart *a = ctx;
    (void)x;
    if (e->op != EX_SYM || e->sym != SYM_PARAM) return e;
    const TileValue *v = a->map->args.data[e->index];
    const TileOp *def = v->def;
    for (int i = 0; def && def->kind == TILE_MAP && !def->args.n && i < def->outs.n; i++)
        if (def->results.data[i] == v && def->outs.data[i].reduce == EX_CONST)
            return def->outs.data[i].body;
    return e;
}

static const Ex *read_apart(void *ctx, ExPool *x, const Ex *e) {
    Apart *a = ctx;
    if (e->op != EX_LOAD || !is_apart(a, e)) return e;
    const Ex *as_it_was = e;
    bool left = false;
    e = ex_map(x, e, written_out, a);
    ex_visit(e, find_param, &left);
    if (left) return as_it_was;
    for (TileOp *op = a->loop->body.first; op != a->map; op = op->next)
        if (pass_is_apart(op) && op->outs.data[0].body == e)
            return pass_operand(a->p, a->map, op->results.data[0]);
    TileOp *op = pass_map(a->p, a->k, NULL, pass_expr_axes(a->k, a->map, e), a->map->span);
    tile_insert_before(a->loop->body.first, op);
    const TileTensor *t = tensor_of(a, e);
    TileValue *v = pass_out(a->p, a->k, op, t->name, t->dtype, e, EX_CONST, 0);
    v->home = HOME_FRAGMENT;
    return pass_operand(a->p, a->map, v);
}

// ---- copied

static bool is_position(const Apart *a, const TileTensor *t, const Ex *e, int axis) {
    bool first = e->op == EX_ADD && t->bare_q && e->args[0]->op == EX_SYM &&
                 e->args[0]->sym == SYM_SIZE && e->args[0]->index == SIZE_Q_OFFSET; // 0, then
    if (first) e = e->args[1];
    return e->op == EX_SYM && e->sym == SYM_POS && e->index == axis && a->k->axes[axis].size;
}

static void find_place(void *ctx, const Ex *e) {
    bool place =
        e->op == EX_SYM && (e->sym == SYM_POS || e->sym == SYM_PARAM || e->sym == SYM_MASK);
    *(bool *)ctx |= place || e->op == EX_LOAD;
}

// Rows are the grid's and columns the loop's; all else is the same for the tile.
static bool is_tile(const Apart *a, const Ex *e) {
    const TileTensor *t = tensor_of(a, e);
    int n = t->rank, rows = tile_grid_axis(a->k);
    bool elsewhere = false;
    if (n < 2 || t->role != TENSOR_INPUT || t->rows || !dtype_half(t->dtype)) return false;
    for (int d = 0; d + 2 < n; d++) ex_visit(e->args[d], find_place, &elsewhere);
    return !elsewhere && is_position(a, t, e->args[n - 2], rows) &&
           is_position(a, t, e->args[n - 1], a->loop->axis) &&
           t->extent[n - 2] == a->k->axes[rows].size &&
           t->extent[n - 1] == a->k->axes[a->loop->axis].size;
}

static bool loads_same(const TileOp *load, int tensor, const Ex *e) {
    bool same = load->kind == TILE_LOAD && load->tensor == tensor;
    for (int d = 0; same && d + 2 < e->nargs; d++) same = load->coord[d].at == e->args[d];
    return same;
}

static const Ex *copy_apart(void *ctx, ExPool *x, const Ex *e) {
    Apart *a = ctx;
    if (e->op != EX_LOAD || !is_tile(a, e)) return e;
    int tensor = a->p->inputs.data[e->input], n = e->nargs;
    for (TileOp *op = a->loop->body.first; op != a->map; op = op->next)
        if (loads_same(op, tensor, e)) return pass_operand(a->p, a->map, op->results.data[0]);
    TileOp *op = tile_op(a->p, a->k, NULL, TILE_LOAD, a->map->span);
    tile_insert_before(a->loop->body.first, op);
    op->tensor = tensor;
    uint8_t axes[] = {(uint8_t)tile_grid_axis(a->k), (uint8_t)a->loop->axis};
    for (int d = 0; d < n; d++) {
        int axis = d + 2 < n ? -1 : axes[d + 2 - n];
        op->coord[d] = (TileCoord){.axis = axis,
                                   .at = axis < 0 ? e->args[d] : ex_sym(x, SYM_TILE, axis, EX_I32)};
    }
    const TileTensor *t = tensor_of(a, e);
    return pass_operand(a->p, a->map, tile_result(a->p, a->k, op, t->name, t->dtype, axes, 2));
}

static void find_left(void *ctx, const Ex *e) {
    Apart *a = ctx;
    AxisSet both = e->op == EX_LOAD ? pass_expr_axes(a->k, a->map, e) : 0;
    a->left |=
        (both & 1u << a->loop->axis) && (both & 1u << tile_grid_axis(a->k)) && !is_tile(a, e);
}

// Whether a map also looks up numbers of queries and keys that are no such tile: there are no registers for both.
static bool looks_up(TileProgram *p, TileKernel *k) {
    Apart a = {.p = p, .k = k};
    for (a.map = tile_next(&k->body, NULL); a.map; a.map = tile_next(&k->body, a.map)) {
        a.loop = a.map->block->owner;
        if (a.map->kind != TILE_MAP || !a.loop || a.loop->kind != TILE_LOOP) continue;
        for (int i = 0; i < a.map->outs.n; i++) ex_visit(a.map->outs.data[i].body, find_left, &a);
    }
    return a.left;
}

void pass_copy_apart(TileProgram *p, TileKernel *k) {
    Apart a = {.p = p, .k = k};
    if (looks_up(p, k)) return;
    for (a.map = tile_next(&k->body, NULL); a.map; a.map = tile_next(&k->body, a.map)) {
        a.loop = a.map->block->owner;
        if (a.map->kind != TILE_MAP || a.map->naxes != 2 || !a.loop || a.loop->kind != TILE_LOOP)
            continue;
        for (int i = 0; i < a.map->outs.n; i++)
            a.map->outs.data[i].body = ex_map(p->pool, a.map->outs.data[i].body, copy_apart, &a);
    }
}

bool pass_copies_apart(const TileKernel *k) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        const TileOp *loop = op->block->owner;
        if (op->kind == TILE_LOAD && loop &&
            tile_has_axis(op->results.data[0], tile_grid_axis(k)) &&
            tile_has_axis(op->results.data[0], loop->axis))
            return true;
    }
    return false;
}

// ---- read

bool pass_is_apart(const TileOp *op) {
    return op->kind == TILE_MAP && op->outs.n == 1 && op->outs.data[0].body->op == EX_LOAD &&
           op->results.data[0]->rank == 2 && !op->args.n;
}

void pass_read_apart(TileProgram *p, TileKernel *k, TileOp *loop) {
    Apart a = {.p = p, .k = k, .loop = loop};
    for (a.map = loop->body.first; a.map; a.map = a.map->next) {
        if (a.map->kind != TILE_MAP || a.map->naxes != 2 || pass_is_apart(a.map)) continue;
        for (int i = 0; i < a.map->outs.n; i++)
            a.map->outs.data[i].body = ex_map(p->pool, a.map->outs.data[i].body, read_apart, &a);
        pass_compact(p, a.map);
    }
}
