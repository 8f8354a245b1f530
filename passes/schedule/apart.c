// apart.c: inputs with a number for each query and key (a dense bias), read before scores are waited for.
//
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

bool pass_is_apart(const TileOp *op) {
    return op->kind == TILE_MAP && op->outs.n == 1 && op->outs.data[0].body->op == EX_LOAD &&
           op->results.data[0]->rank == 2 && !op->args.n;
}

void pass_read_apart(TileProgram *p, TileKernel *k, TileOp *loop) {
    Apart a = {p, k, loop, NULL};
    for (a.map = loop->body.first; a.map; a.map = a.map->next) {
        if (a.map->kind != TILE_MAP || a.map->naxes != 2 || pass_is_apart(a.map)) continue;
        for (int i = 0; i < a.map->outs.n; i++)
            a.map->outs.data[i].body = ex_map(p->pool, a.map->outs.data[i].body, read_apart, &a);
        pass_compact(p, a.map);
    }
}
