// meanwhile.c: gradients that a nest's blocks have summed are converted while it runs (TileSchedule.finish).
//
// In: a scheduled program. Out: where a nest adds to sums in workspace, which a later kernel converts, and its producer's idle warps have
// registers for that: a tensor by which its blocks tell each other what is summed, and the later kernel what is done. For each head of
// queries: how many warps have added all that their tiles have, said at the first head of a group; and for each tile of the later kernel
// whether it is converted. Tiles are taken head after head then, or section after section: what all heads have at the end would let none be finished.
#include "passes/schedule/schedule.h"
#include "passes/tile/rewrite.h"

enum { ENOUGH_REGISTERS = 40 };

static TileOp *only(TileKernel *k, TileKind kind) {
    TileOp *found = NULL;
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        if (op->kind == kind && found) return NULL;
        if (op->kind == kind) found = op;
    }
    return found;
}

// Of queries, whose sums lie in blocks; NULL: there is none.
static TileKernel *converter(TileProgram *p) {
    for (int i = 0; i < p->kernels.n; i++) {
        TileKernel *k = p->kernels.data[i];
        const TileOp *load = only(k, TILE_LOAD), *store = only(k, TILE_STORE);
        if (k->purpose != PURPOSE_CONVERT || !load || !store) continue;
        const TileTensor *to = &p->tensors.data[store->tensor];
        if (to->role == TENSOR_DQ && dtype_half(to->dtype) && p->tensors.data[load->tensor].blocked)
            return k;
    }
    return NULL;
}

static bool adds_through(const TileKernel *k, int tensor) {
    bool adds = false;
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        if (op->kind != TILE_STORE || op->tensor != tensor) continue;
        if (!op->add || op->args.n < 2) return false;
        adds = true;
    }
    return adds;
}

static bool may_finish(const TileKernel *k, int sums) {
    const TileSchedule *s = &k->schedule;
    return s->knobs.said == knobs_of(FORM_SM90_NEST) && s->persist == PERSIST_DYNAMIC &&
           s->cluster < 2 && s->knobs.producer_registers >= ENOUGH_REGISTERS &&
           adds_through(k, sums);
}

static int add_tensor(TileProgram *p, const TileKernel *to) {
    ExPool *x = p->pool;
    int rows = tile_grid_axis(to);
    const Ex *n = ex_i32(x, to->axes[rows].extent);
    const Ex *up = ex_2(x, EX_ADD, to->axes[rows].size, ex_i32(x, to->axes[rows].extent - 1));
    TileTensor t = {.name = "finished", .role = TENSOR_WORK, .dtype = DT_F32, .rank = 3};
    for (int i = 0; i < p->tensors.n; i++)
        if (p->tensors.data[i].role == TENSOR_WORK && p->tensors.data[i].index >= t.index)
            t.index = p->tensors.data[i].index + 1;
    t.extent[0] = ex_sym(x, SYM_SIZE, SIZE_B, EX_I32);
    t.extent[1] = ex_sym(x, SYM_SIZE, SIZE_HQ, EX_I32);
    t.extent[2] = ex_simplify(x, ex_2(x, EX_ADD, ex_2(x, EX_DIV, up, n), ex_i32(x, 1)));
    return tile_tensor(p, t);
}

void pass_meanwhile(TileProgram *p) {
    TileKernel *to = p->target == TARGET_SM90A && !p->batch ? converter(p) : NULL;
    int sums = to ? only(to, TILE_LOAD)->tensor : -1, tensor = 0;
    for (int i = 0; to && i < p->kernels.n; i++) {
        TileKernel *k = p->kernels.data[i];
        if (!may_finish(k, sums)) continue;
        if (!tensor) tensor = add_tensor(p, to);
        k->schedule.finish = to->schedule.finish = 1 + tensor;
        k->schedule.last = NULL;
    }
}
