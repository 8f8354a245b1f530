// blocks.c: workspace in the layout of fragments (ir/tile_blocks.h).
//
// In: a scheduled program. Out: workspace that only fragments are stored to and loaded from (the
// accumulators of parts) is in blocks, its rows padded to whole blocks. So what a warp accesses at once
// is contiguous. In row order it would be 32 bytes in each of 8 rows. Where threads add tiles to it, rows
// are padded to whole tiles in kernels of many warps: there such an addition asks for no row.
#include "passes/schedule/schedule.h"
#include "passes/tile/rewrite.h"

#include "ir/tile_blocks.h"
#include "ir/tile_shared.h"

static const TileValue *accessed(const TileOp *op) {
    if (op->kind == TILE_LOAD) return op->results.data[0];
    return op->kind == TILE_STORE ? op->args.data[0] : NULL;
}

static bool touches(const TileOp *op) {
    return op->kind == TILE_LOAD || op->kind == TILE_STORE || op->kind == TILE_COPY ||
           op->kind == TILE_FILL || op->kind == TILE_APPEND;
}

typedef struct Lookup { // of a tensor's elements, by formulas
    const TileProgram *p;
    int tensor;
    bool found;
} Lookup;

static bool is_lookup(void *ctx, const Ex *e) {
    const Lookup *l = ctx;
    return e->op == EX_LOAD && l->p->inputs.data[e->input] == l->tensor;
}

static const Ex *look(void *ctx, const Ex *e) {
    Lookup *l = ctx;
    l->found |= ex_any(e, is_lookup, l);
    return e;
}

static bool fits(const TileProgram *p, int tensor) {
    const TileTensor *t = &p->tensors.data[tensor];
    Lookup l = {.p = p, .tensor = tensor};
    for (int i = 0; i < p->kernels.n; i++) {
        const TileKernel *k = p->kernels.data[i];
        for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
            const TileValue *v = accessed(op);
            tile_map_exprs(op, look, &l);
            if (!touches(op) || op->tensor != tensor) continue;
            if (!v || !tile_fits_blocks(k, t, op, v)) return false;
        }
    }
    return !l.found;
}

// Rows of the longest tile that threads add to it. (With four warps, at 64 columns, asking is 5 to 9% faster: nothing moves over a branch.
// With eight, causal at 128 columns, it is 3% slower.)
static int rows_added(const TileProgram *p, int tensor) {
    enum { FEW_WARPS = 4 };
    int most = TILE_BLOCK_ROWS;
    for (int i = 0; i < p->kernels.n; i++) {
        const TileKernel *k = p->kernels.data[i];
        for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
            int d = p->tensors.data[tensor].rank - 2;
            bool adds = op->kind == TILE_STORE && op->tensor == tensor && op->add && !op->each[d];
            if (!adds || tile_has_roles(k) || k->schedule.warps <= FEW_WARPS) continue;
            int rows = k->axes[op->coord[d].axis].extent;
            if (rows > most) most = rows;
        }
    }
    return most;
}

void pass_blocks(TileProgram *p) {
    ExPool *x = p->pool;
    for (int i = 0; i < p->tensors.n; i++) {
        TileTensor *t = &p->tensors.data[i];
        if (t->blocked || !tile_may_block(t) || !fits(p, i)) continue;
        int whole = rows_added(p, i);
        const Ex **rows = &t->extent[t->rank - 2], *n = ex_i32(x, whole);
        const Ex *up = ex_2(x, EX_ADD, *rows, ex_i32(x, whole - 1));
        *rows = ex_simplify(x, ex_2(x, EX_MUL, ex_2(x, EX_DIV, up, n), n));
        t->blocked = true;
    }
}
