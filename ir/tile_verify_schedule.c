// tile_verify_schedule.c: the rules of what a schedule chose for a kernel: clusters, the order of tiles, AMD's marks.
#include "ir/tile_verify.h"
#include "ir/tile_wide.h"

enum { MAX_CLUSTER = 2 };

// The rows of a tile are spread over the warps evenly.
static bool check_cluster(Verify *V) {
    const TileSchedule *s = &V->k->schedule;
    int axis = tile_grid_axis(V->k);
    if (s->cluster < 0 || s->cluster > MAX_CLUSTER)
        return verify_fail(V, "a cluster of %d blocks", s->cluster);
    if (s->cluster < 2) return true;
    if (!s->persist || axis < 0)
        return verify_fail(V, "a cluster, but blocks that do not take rows tile by tile");
    int rows = V->k->axes[axis].extent;
    Scope sizes = {.what = "the rows of a cluster", .syms = 1u << SYM_SIZE, .sizes = V->p->sizes.n};
    if (s->cluster_rows && !verify_ex(V, s->cluster_rows, EX_I32, &sizes)) return false;
    return rows % (16 * (s->warps ? s->warps : 1)) == 0 ||
           verify_fail(V, "%d rows for %d warps", rows, s->warps);
}

// AMD's marks.
bool verify_matrix(Verify *V) {
    const TileKernel *k = V->k;
    const Target *t = target_get(V->p->target);
    int rows = k->schedule.matrix_rows;
    if (rows && (t->kind != KIND_AMDGPU || (rows != 16 && (rows != 32 || t->lanes == 32))))
        return verify_fail(V, "matrix instructions of %d rows on '%s'", rows, t->name);
    for (int a = 0; a < k->naxes; a++)
        if (k->axes[a].wide && !tile_may_be_wide(k, t, a))
            return verify_fail(V, "%s cannot be wide", k->axes[a].name);
    return true;
}

static bool is_of_one(void *ctx, const Ex *e) {
    const TileProgram *p = ctx;
    return e->op == EX_SYM && e->sym == SYM_SIZE && p->sizes.data[e->index].own &&
           !tile_is_common(p, e->index);
}

static bool check_beside(Verify *V, const TileSchedule *s) {
    Scope sizes = {.what = "the blocks that take tiles",
                   .syms = 1u << SYM_SIZE,
                   .sizes = V->p->sizes.n,
                   .own = true};
    if (!verify_ex(V, s->beside, EX_I32, &sizes)) return false;
    if (ex_any(s->beside, is_of_one, (void *)V->p))
        return verify_fail(
            V, "the blocks that take tiles are a number which each sequence has of its own");
    return (s->persist == PERSIST_DYNAMIC && s->cluster < 2) ||
           verify_fail(V, "a kernel beside another, whose blocks do not take the next tile");
}

// The one kernel that converts what is told of in a tensor.
static const TileKernel *converter_of(const TileProgram *p, int tensor) {
    const TileKernel *found = NULL;
    for (int i = 0; i < p->kernels.n; i++) {
        const TileKernel *k = p->kernels.data[i];
        if (k->schedule.finish != 1 + tensor || k->purpose != PURPOSE_CONVERT) continue;
        if (found) return NULL;
        found = k;
    }
    return found;
}

// Whether the copy engine adds to what the other kernel loads.
static bool adds_for(const TileKernel *k, const TileKernel *to) {
    for (const TileOp *load = tile_next(&to->body, NULL); load; load = tile_next(&to->body, load))
        for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
            if (load->kind == TILE_LOAD && op->kind == TILE_STORE && op->tensor == load->tensor &&
                op->add && op->args.n > 1)
                return true;
    return false;
}

static bool check_finish(Verify *V, int tensor) {
    const TileTensor *t = tensor < V->p->tensors.n ? &V->p->tensors.data[tensor] : NULL;
    if (!t || t->role != TENSOR_WORK || t->dtype != DT_F32 || t->rank != 3)
        return verify_fail(V, "what is summed and converted is told in no such tensor");
    const TileKernel *to = converter_of(V->p, tensor);
    if (!to) return verify_fail(V, "not one kernel converts what is told of in '%s'", t->name);
    if (V->k == to) return true;
    if (V->k->purpose != PURPOSE_GRADIENTS || !adds_for(V->k, to))
        return verify_fail(V, "what '%s' converts is not summed here", to->name);
    return V->k->schedule.persist == PERSIST_DYNAMIC ||
           verify_fail(V, "sums are converted beside blocks that do not take the next tile");
}

bool verify_schedule(Verify *V) {
    const TileSchedule *s = &V->k->schedule;
    if (s->lane_axis < -1 || s->lane_axis >= V->k->naxes)
        return verify_fail(V, "lanes along an axis that is not there");
    if (s->warps < 0 || s->warps > 32) return verify_fail(V, "%d warps", s->warps);
    if ((unsigned)s->persist > PERSIST_DYNAMIC || (s->section && tile_grid_rows(V->k) < 0))
        return verify_fail(V, "no such way of taking tiles");
    const Ex *order[] = {s->section, s->last};
    Scope sizes = {.what = "the order of tiles", .syms = 1u << SYM_SIZE, .sizes = V->p->sizes.n};
    for (int i = 0; i < 2; i++)
        if (order[i] && (tile_is_own(V->p, order[i]) || !verify_ex(V, order[i], EX_I32, &sizes)))
            return verify_fail(V, "an order of tiles that a launch does not know");
    if (s->beside && !check_beside(V, s)) return false;
    if (s->finish && !check_finish(V, s->finish - 1)) return false;
    if (s->min_blocks < 0 || s->min_blocks > 64) return verify_fail(V, "%d blocks", s->min_blocks);
    const char *wrong = knobs_wrong(V->scratch, &s->knobs);
    return wrong ? verify_fail(V, "%s", wrong) : check_cluster(V);
}
