// tile_reads.c: which elements of a tensor a map's load reads along an axis.
//
// In: a load of a map, and an axis. Out: whether its last index is the position along the axis; whether
// the indices before it may be others at the axis' next position, for then what stands beside an element
// in memory is not what the next position reads; whether a map has loads that read rows so.
#include "tile.h"

typedef struct Along {
    const TileProgram *p;
    const TileKernel *k;
    const TileOp *map;
    int axis;
} Along;

static bool is_varying(void *ctx, const Ex *e) {
    const Along *a = ctx;
    return ex_is_sym(e, SYM_POS, a->axis) || ex_is_sym(e, SYM_MASK, -1) ||
           (ex_is_sym(e, SYM_PARAM, -1) && tile_has_axis(a->map->args.data[e->index], a->axis));
}

bool tile_ends_along(const Ex *e, int axis) {
    if (e->op != EX_LOAD || !e->nargs) return false;
    return ex_is_sym(e->args[e->nargs - 1], SYM_POS, axis);
}

bool tile_lead_varies(const TileOp *map, const Ex *load, int axis) {
    Along a = {.map = map, .axis = axis};
    for (int i = 0; i + 1 < load->nargs; i++)
        if (ex_any(load->args[i], is_varying, &a)) return true;
    return false;
}

bool tile_reads_row(const TileProgram *p, const TileKernel *k, const TileOp *map, const Ex *load,
                    int axis) {
    if (!tile_ends_along(load, axis) || !load->inside || tile_lead_varies(map, load, axis))
        return false;
    int tensor = p->inputs.data[load->input], bytes = dtype_bytes(p->tensors.data[tensor].dtype);
    return (bytes == 2 || bytes == 4) && !tile_stores_to(k, tensor);
}

static bool is_row(void *ctx, const Ex *e) {
    const Along *a = ctx;
    return tile_reads_row(a->p, a->k, a->map, e, a->axis);
}

bool tile_reads_rows(const TileProgram *p, const TileKernel *k, const TileOp *map, int axis) {
    return tile_map_any(map, is_row, &(Along){p, k, map, axis});
}

bool tile_hands_around(const TileKernel *k, const TileOp *map) {
    enum { LANES = 32 };
    if (map->naxes != 1 || map->args.n || !tile_role_of(map)) return false;
    int axis = map->axes[0], layout = tile_common_layout(k, map, map->axes, 1), least = 0;
    if (layout < 0) return false;
    for (int i = 0; i < map->outs.n; i++) {
        const TileValue *v = map->results.data[i];
        bool word = v->dtype == DT_F32 || v->dtype == DT_I32;
        if (!word || v->home != HOME_FRAGMENT || v->rank != 1 ||
            map->outs.data[i].reduce != EX_CONST)
            return false;
    }
    const Layout own = layout_restrict(&k->layouts.data[layout].is, map->axes, 1);
    for (int i = 0; i < own.n; i++) {
        const LayoutDigit *d = &own.digit[i];
        if (d->axis != axis) continue;
        if (d->place == LAYOUT_LANE) least += d->step * (d->count - 1);
        if (d->place > LAYOUT_LANE) return false;
    }
    return least < LANES && k->axes[axis].extent % LANES == 0 &&
           k->axes[axis].extent / LANES < layout_count(&own, LAYOUT_REG);
}
