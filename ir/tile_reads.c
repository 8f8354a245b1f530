// tile_reads.c: which elements of a tensor a map's load reads along an axis.
//
// In: a load of a map, and an axis. Out: whether its last index is the position along the axis; whether
// the indices before it may be others at the axis' next position, for then what stands beside an element
// in memory is not what the next position reads.
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
