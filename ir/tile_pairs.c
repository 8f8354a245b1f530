// tile_pairs.c: blocks of a cluster, to the interpreter (tile_eval.h).
//
// In: a kernel whose blocks run in clusters, tile by tile. Out: an error where two tiles that a
// cluster runs together do not copy the same, in the same order, to the pipes that its blocks
// share: each copies half of every tile to both. Which tiles those are is said twice, here and in
// codegen/grid.c: two neighbouring tiles of rows, or two heads (TileSchedule.cluster_rows).
#include "ir/tile_run.h"

static bool in_clusters(const Eval *E) { return E->k->schedule.cluster > 1; }

void run_pairs_begin(Eval *E) {
    E->copied = in_clusters(E) ? ARENA_ARRAY(E->arena, uint64_t, E->points + 1) : NULL;
}

static uint64_t with(uint64_t sum, uint64_t v) {
    return (sum ^ (v + 1)) * UINT64_C(0x9e3779b97f4a7c15) + (sum >> 29);
}

// Pipes of tiles with the grid's rows are each block's own.
void run_pairs_note(Eval *E, const TileOp *op) {
    const TileValue *pipe = op->args.data[0];
    if (!E->copied || tile_has_axis(pipe, tile_grid_axis(E->k))) return;
    uint64_t *sum = &E->copied[E->here.point];
    *sum = with(*sum, (uint64_t)pipe->id);
    for (int d = 0; d < E->p->tensors.data[op->tensor].rank; d++)
        *sum = with(*sum, (uint32_t)run_ex(E, op->coord[d].at).i);
}

// Where points are sequences' own tiles, of which those of rows are the first to go on.
static int64_t own_partner(Eval *E, int64_t number) {
    RunPlace place = {0}, here = E->here;
    int64_t step = 1;
    int rows = tile_grid_axis(E->k);
    for (int i = 1; i < E->k->ngrid; i++)
        if (!E->k->grid[i].shared) step *= E->count[i];
    run_point(E, number, &place);
    E->here = place;
    int64_t n = run_ex(E, E->k->grid[tile_grid_rows(E->k)].shared).i;
    E->here = here;
    int64_t at = place.tile[rows], other = at ^ 1;
    return other >= n ? -1 : number + step * (other - at);
}

// The number of the tile beside this one, or -1: there is none, beyond the last rows.
static int64_t partner(Eval *E, int64_t number, bool rows) {
    int64_t step = 1, at = 0;
    if (tile_counts_own(E->k)) return own_partner(E, number);
    for (int i = E->k->ngrid; i-- > 0; step *= E->count[i]) {
        const TileGrid *g = &E->k->grid[i];
        bool is = rows ? g->sym == SYM_TILE && g->axis == tile_grid_axis(E->k) : g->sym == SYM_H;
        if (!is) continue;
        int64_t last = E->count[i] - 1, place = number / step % E->count[i];
        at = g->reversed ? last - place : place;
        int64_t other = at ^ 1;
        return other > last ? -1 : number + step * (g->reversed ? at - other : other - at);
    }
    return -1;
}

static bool pairs_of_rows(const Eval *E) {
    const Ex *of_rows = E->k->schedule.cluster_rows;
    return !of_rows || tile_eval_launch(of_rows, E->size, E->data->workers) > 1;
}

void run_pairs_check(Eval *E) {
    if (!E->copied || E->failed) return;
    bool rows = pairs_of_rows(E);
    for (int64_t i = 0; i < E->points; i++) {
        int64_t other = partner(E, i, rows);
        if (other >= 0 && E->copied[i + 1] != E->copied[other + 1])
            return run_fail(E, "two blocks of a cluster copy different tiles to pipes they share");
    }
}
