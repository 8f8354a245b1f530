// sm90_early.c: products beside an inverse.
//
// In: an expanded kernel whose products are of warpgroups, without roles, that inverts a triangle. Out: the products behind the
// inverse that do not need it are issued before it, and have landed behind it: few warps make the inverse, and all others
// would wait. What they read is there before: of what lies in shared memory somebody has read. A map that makes an
// operand in registers stays: with it ptxas waits at once (C7517).
#include "ir/tile_shared.h"
#include "passes/schedule/schedule.h"
#include "passes/tile/rewrite.h"

enum { MOST = 2 }; // products in flight, for their registers

static bool stands_before(const TileOp *op, const TileOp *at) {
    while (at && at != op) at = at->prev;
    return at != NULL;
}

static bool is_read_before(const TileValue *v, const TileOp *at) {
    for (const TileOp *op = at->prev; op; op = op->prev)
        for (int i = 0; i < op->args.n && op->kind != TILE_BESIDE; i++)
            if (tile_source(op->args.data[i]) == tile_source(v)) return true;
    return false;
}

// met: a barrier stands between, which may be for what op reads.
static bool can_go(const TileOp *op, const TileOp *inverse, bool met) {
    for (int i = 0; i < op->args.n; i++) {
        const TileValue *v = op->args.data[i];
        const TileOp *def = v->def;
        if (def && def->block == op->block && def->kind != TILE_LOOP &&
            !stands_before(def, inverse))
            return false;
        if (met && v->home == HOME_SHARED && !is_read_before(v, inverse)) return false;
    }
    for (int i = 0; i < op->results.n; i++)
        if (op->results.data[i]->home == HOME_SHARED) return false;
    return true;
}

static void raise_products(TileProgram *p, TileKernel *k, TileOp *inverse) {
    bool met = false;
    int n = 0;
    for (TileOp *op = inverse->next, *next; op; op = next) {
        next = op->next;
        met |= op->kind == TILE_BARRIER || op->kind == TILE_WAIT;
        bool product = op->kind == TILE_MMA && n < MOST && op->args.n == 2;
        if (!product || !can_go(op, inverse, met)) continue;
        pass_move_before(inverse, op);
        op->async = true;
        n++;
    }
    if (n) tile_insert_before(inverse->next, tile_op(p, k, NULL, TILE_MMA_WAIT, inverse->span));
}

void sm90_products_early(TileProgram *p, TileKernel *k) {
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (op->kind == TILE_INVERT && tile_by_groups(k)) raise_products(p, k, op);
}
