// dense.c: inputs with a number for each query and key (a dense bias), read by themselves and not by the maps that take them.
//
// pass_copy_dense. In: a kernel before its extents are chosen. Out: its loops copy tiles of such inputs as they do those of
// keys, where the input has 16-bit elements and nothing else is looked up for a pair:
//
//     %p = map [M, N] (%s, %a) { exp2((%s + bias[b, h, (q_offset + M.pos), N.pos]) + %a) }
//     ->
//     %bias = load bias[b, h, M:, N:]
//     %p = map [M, N] (%s, %a, %bias) { exp2((%s + %bias) + %a) }
//
// pass_read_dense. In: the body of a loop over full tiles. Out: maps of their own read what others read of such inputs, as it
// is stored, before scores are waited for, where two elements are one word:
//
//     %p = map [M, N] (%s, %a) { exp2((%s + bias![b, h, M.pos, N.pos]) + %a) }
//     ->
//     %bias = map [M, N] () { bias![b, h, M.pos, N.pos] }
//     %p = map [M, N] (%s, %a, %bias) { exp2((%s + %bias) + %a) }
#include "passes/schedule/strips.h"
#include "passes/tile/rewrite.h"

typedef struct Dense {
    TileProgram *p;
    TileKernel *k;
    TileOp *loop, *map;
    const Ex **tile; // by input: the load of its tile
    bool others;     // something else is looked up for a pair
} Dense;

static const TileTensor *tensor_of(const Dense *a, const Ex *load) {
    return &a->p->tensors.data[a->p->inputs.data[load->input]];
}

// ---- read

static bool is_word(const Dense *a, const Ex *e) {
    int columns = a->loop->axis;
    AxisSet both = 1u << columns | 1u << tile_grid_axis(a->k);
    return tile_ends_along(e, columns) && e->inside && dtype_half(tensor_of(a, e)->dtype) &&
           !tile_lead_varies(a->map, e, columns) && pass_expr_axes(a->k, a->map, e) == both;
}

// An operand is written out: a row's index that was made before.
static const Ex *written_out(void *ctx, ExPool *x, const Ex *e) {
    const Dense *a = ctx;
    (void)x;
    if (e->op != EX_SYM || e->sym != SYM_PARAM) return e;
    const TileValue *v = a->map->args.data[e->index];
    const TileOp *def = v->def;
    for (int i = 0; def && def->kind == TILE_MAP && !def->args.n && i < def->outs.n; i++)
        if (def->results.data[i] == v && def->outs.data[i].reduce == EX_CONST)
            return def->outs.data[i].body;
    return e;
}

static const Ex *read_dense(void *ctx, ExPool *x, const Ex *e) {
    Dense *a = ctx;
    if (e->op != EX_LOAD || !is_word(a, e)) return e;
    const Ex *as_it_was = e;
    e = ex_map(x, e, written_out, a);
    if (ex_uses(e, SYM_PARAM, -1)) return as_it_was;
    for (TileOp *op = a->loop->body.first; op != a->map; op = op->next)
        if (pass_reads_dense(op) && op->outs.data[0].body == e)
            return pass_operand(a->p, a->map, op->results.data[0]);
    TileOp *op = pass_map_before(a->p, a->loop->body.first, pass_expr_axes(a->k, a->map, e));
    const TileTensor *t = tensor_of(a, e);
    TileValue *v = pass_out(a->p, a->k, op, t->name, t->dtype, e, EX_CONST, 0);
    v->home = HOME_FRAGMENT;
    return pass_operand(a->p, a->map, v);
}

bool pass_reads_dense(const TileOp *op) {
    return op->kind == TILE_MAP && op->outs.n == 1 && op->outs.data[0].body->op == EX_LOAD &&
           op->results.data[0]->rank == 2 && !op->args.n;
}

void pass_read_dense(TileProgram *p, TileKernel *k, TileOp *loop) {
    Dense a = {.p = p, .k = k, .loop = loop};
    for (a.map = loop->body.first; a.map; a.map = a.map->next) {
        if (a.map->kind != TILE_MAP || a.map->naxes != 2 || pass_reads_dense(a.map)) continue;
        for (int i = 0; i < a.map->outs.n; i++)
            a.map->outs.data[i].body = ex_map(p->pool, a.map->outs.data[i].body, read_dense, &a);
        pass_compact(p, a.map);
    }
}

// ---- copied

static bool is_position(const TileTensor *t, const Ex *e, int axis) {
    bool first = e->op == EX_ADD && t->bare_q && e->args[0]->op == EX_SYM &&
                 e->args[0]->sym == SYM_SIZE && e->args[0]->index == SIZE_Q_OFFSET; // 0, then
    if (first) e = e->args[1];
    return e->op == EX_SYM && e->sym == SYM_POS && e->index == axis;
}

static bool is_place(void *ctx, const Ex *e) {
    (void)ctx;
    return e->op == EX_LOAD ||
           (e->op == EX_SYM && (e->sym == SYM_POS || e->sym == SYM_PARAM || e->sym == SYM_MASK));
}

// Rows are the grid's and columns the loop's; all else is the same for the tile.
static bool is_tile(const Dense *a, const Ex *e) {
    const TileTensor *t = tensor_of(a, e);
    int n = t->rank, rows = tile_grid_axis(a->k);
    bool elsewhere = false;
    if (n < 2 || t->role != TENSOR_INPUT || t->rows || !dtype_half(t->dtype)) return false;
    for (int d = 0; d + 2 < n; d++) elsewhere |= ex_any(e->args[d], is_place, NULL);
    return !elsewhere && is_position(t, e->args[n - 2], rows) &&
           is_position(t, e->args[n - 1], a->loop->axis) &&
           t->extent[n - 2] == a->k->axes[rows].size &&
           t->extent[n - 1] == a->k->axes[a->loop->axis].size;
}

static const Ex *copy_dense(void *ctx, ExPool *x, const Ex *e) {
    Dense *a = ctx;
    if (e->op != EX_LOAD || !is_tile(a, e)) return e;
    int tensor = a->p->inputs.data[e->input], n = e->nargs;
    for (TileOp *op = a->loop->body.first; op != a->map; op = op->next)
        if (op->kind == TILE_LOAD && op->tensor == tensor)
            return pass_operand(a->p, a->map, op->results.data[0]);
    TileOp *op = pass_op_before(a->p, a->loop->body.first, TILE_LOAD);
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

static bool same_tile(const Ex *a, const Ex *b) {
    for (int d = 0; d + 2 < a->nargs; d++)
        if (a->args[d] != b->args[d]) return false;
    return true;
}

static void find_others(void *ctx, const Ex *e) {
    Dense *a = ctx;
    if (e->op != EX_LOAD) return;
    AxisSet of = pass_expr_axes(a->k, a->map, e);
    bool pair = (of & 1u << a->loop->axis) && (of & 1u << tile_grid_axis(a->k));
    const Ex **tile = &a->tile[e->input];
    if (!pair || !is_tile(a, e))
        a->others |= pair;
    else if (!*tile)
        *tile = e;
    else
        a->others |= !same_tile(*tile, e);
}

// Whether more is looked up for a pair than one tile of each input: there are no registers for both.
static bool looks_up(TileProgram *p, TileKernel *k) {
    Dense a = {.p = p, .k = k, .tile = ARENA_ARRAY(p->arena, const Ex *, p->inputs.n + 1)};
    for (a.map = tile_next(&k->body, NULL); a.map; a.map = tile_next(&k->body, a.map)) {
        a.loop = a.map->block->owner;
        if (a.map->kind != TILE_MAP || !a.loop || a.loop->kind != TILE_LOOP) continue;
        for (int i = 0; i < a.map->outs.n; i++) ex_visit(a.map->outs.data[i].body, find_others, &a);
    }
    return a.others;
}

void pass_copy_dense(TileProgram *p, TileKernel *k) {
    Dense a = {.p = p, .k = k};
    if (looks_up(p, k)) return;
    for (a.map = tile_next(&k->body, NULL); a.map; a.map = tile_next(&k->body, a.map)) {
        a.loop = a.map->block->owner;
        if (a.map->kind != TILE_MAP || a.map->naxes != 2 || !a.loop || a.loop->kind != TILE_LOOP)
            continue;
        for (int i = 0; i < a.map->outs.n; i++)
            a.map->outs.data[i].body = ex_map(p->pool, a.map->outs.data[i].body, copy_dense, &a);
    }
}

bool pass_copies_dense(const TileKernel *k) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        const TileOp *loop = op->block->owner;
        if (op->kind == TILE_LOAD && loop &&
            tile_has_axis(op->results.data[0], tile_grid_axis(k)) &&
            tile_has_axis(op->results.data[0], loop->axis))
            return true;
    }
    return false;
}
