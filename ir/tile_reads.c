// tile_reads.c: which elements of a tensor a map's load reads along an axis.
//
// In: a load of a map, and an axis. Out: whether its last index is the position along the axis; whether
// the indices before it may be others at the axis' next position, for then what stands beside an element
// in memory is not what the next position reads; whether a map has loads that read rows so.
#include "tile.h"

typedef struct Varies {
    const TileOp *map;
    int axis;
    bool found;
} Varies;

static void find_varying(void *ctx, const Ex *e) {
    Varies *v = ctx;
    if (e->op != EX_SYM) return;
    bool position = e->sym == SYM_POS && e->index == v->axis;
    bool value = e->sym == SYM_PARAM && tile_has_axis(v->map->args.data[e->index], v->axis);
    v->found |= position || value || e->sym == SYM_MASK;
}

bool tile_ends_along(const Ex *e, int axis) {
    if (e->op != EX_LOAD || !e->nargs) return false;
    const Ex *last = e->args[e->nargs - 1];
    return last->op == EX_SYM && last->sym == SYM_POS && last->index == axis;
}

bool tile_lead_varies(const TileOp *map, const Ex *load, int axis) {
    Varies v = {map, axis, false};
    for (int i = 0; i + 1 < load->nargs; i++) ex_visit(load->args[i], find_varying, &v);
    return v.found;
}

typedef struct Rows {
    const TileProgram *p;
    const TileKernel *k;
    const TileOp *map;
    int axis;
    bool found;
} Rows;

static bool is_stored(const TileKernel *k, int tensor) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if ((op->kind == TILE_STORE || op->kind == TILE_APPEND) && op->tensor == tensor)
            return true;
    return false;
}

static void find_row(void *ctx, const Ex *e) {
    Rows *r = ctx;
    if (!tile_ends_along(e, r->axis) || !e->inside || tile_lead_varies(r->map, e, r->axis)) return;
    int tensor = r->p->inputs.data[e->input], bytes = dtype_bytes(r->p->tensors.data[tensor].dtype);
    r->found |= (bytes == 2 || bytes == 4) && !is_stored(r->k, tensor);
}

bool tile_reads_rows(const TileProgram *p, const TileKernel *k, const TileOp *map, int axis) {
    Rows r = {p, k, map, axis, false};
    for (int i = 0; i < map->outs.n; i++) ex_visit(map->outs.data[i].body, find_row, &r);
    return r.found;
}
