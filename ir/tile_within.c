// tile_within.c: see tile_within.h.
//
// In: an operation of a role. Out: in which one it may be done.
#include "ir/tile_within.h"

static int uses_of(const TileKernel *k, const TileValue *v) {
    int n = 0;
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; i < op->args.n; i++) n += op->args.data[i] == v;
    return n;
}

static bool is_taken(const TileOp *op) { return op->kind == TILE_TAKE || op->kind == TILE_BESIDE; }

bool tile_goes_on(const TileKernel *k, const TileOp *mma) {
    const TileOp *next = mma->next;
    int takes = 0;
    for (; next && is_taken(next); next = next->next) takes += next->kind == TILE_TAKE;
    return next && next->kind == TILE_MMA && next->args.n > 2 && takes <= 1 &&
           next->args.data[2] == mma->results.data[0] && mma->async && next->async && !mma->first &&
           !next->first && uses_of(k, mma->results.data[0]) == 1;
}

// Of several steps, alone.
static bool has_room(const TileKernel *k, const TileOp *mma) {
    enum { STEP = 16 };
    const TileOp *before = mma->prev;
    while (before && is_taken(before)) before = before->prev;
    bool chain =
        tile_goes_on(k, mma) || (before && before->kind == TILE_MMA && tile_goes_on(k, before));
    return mma->async && !mma->first && !chain && k->axes[tile_contracted_axis(mma)].extent > STEP;
}

// Something between them that is not done before it makes what it takes.
static bool comes_late(const TileOp *op, const TileOp *around) {
    for (const TileOp *at = op->prev; at != around; at = at->prev)
        for (int i = 0; i < op->args.n && !tile_is_marked(at, TILE_WITHIN); i++)
            if (op->args.data[i]->def == at) return true;
    return false;
}

static bool is_free(const TileOp *op, const TileOp *around) {
    if (op->kind == TILE_DROP) return true;
    for (int i = 0; i < op->args.n; i++)
        if (op->args.data[i]->def == around) return false;
    return !op->waits && op->behind == around->behind && op->results.n &&
           op->results.data[0]->home == HOME_FRAGMENT;
}

// Before its last element: otherwise it waits at its end.
static bool waits_within(const TileKernel *k, const TileOp *map) {
    if (!map->waits || map->after < 0) return false;
    int layout = tile_common_layout(k, map, map->axes, map->naxes);
    if (layout < 0) return true;
    Layout own = layout_restrict(&k->layouts.data[layout].is, map->axes, map->naxes);
    return map->after < layout_count(&own, LAYOUT_REG);
}

static bool is_step(const TileOp *op) { return op->kind == TILE_DROP || op->kind == TILE_MAP; }

const TileOp *tile_around(const TileKernel *k, const TileOp *op) {
    const TileOp *at = op->prev;
    if (!at || !is_step(op) || !tile_role_of(op)) return NULL;
    if (at->kind == TILE_MMA)
        return op->kind == TILE_MAP && has_room(k, at) && is_free(op, at) ? at : NULL;
    while (at && is_step(at) && !waits_within(k, at)) at = at->prev;
    return at && is_step(at) && is_free(op, at) && !comes_late(op, at) ? at : NULL;
}
