// sm90_early.c: products beside an inverse.
//
// In: an expanded kernel whose products are of warpgroups, without roles, that inverts a triangle. Out: the products behind the
// inverse that do not need it are issued before it, and have landed behind it: few warps make the inverse, and all others
// would wait. What they read is there before: maps in registers of tiles and numbers go with them, and of what lies in shared memory somebody has read.
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

// A vector of it is read while a product is in flight, for which ptxas waits (C7517).
static bool reads_vector(const TileOp *map) {
    for (int i = 0; i < map->args.n; i++)
        if (map->args.data[i]->rank == 1) return true;
    return false;
}

static bool feeds_product(const TileOp *map, const TileOp *inverse) {
    for (const TileOp *op = map->next; op; op = op->next)
        for (int i = 0; i < map->results.n && op->kind == TILE_MMA; i++)
            if (op->args.data[0] == map->results.data[i] ||
                op->args.data[1] == map->results.data[i])
                return op->args.n == 2 && !pass_uses_result(op, inverse);
    return false;
}

static void raise_products(TileProgram *p, TileKernel *k, TileOp *inverse) {
    bool met = false;
    int n = 0;
    for (TileOp *op = inverse->next, *next; op; op = next) {
        next = op->next;
        met |= op->kind == TILE_BARRIER || op->kind == TILE_WAIT;
        bool product = op->kind == TILE_MMA && n < MOST && op->args.n == 2,
             map = op->kind == TILE_MAP && !met && !reads_vector(op) && feeds_product(op, inverse);
        if ((!product && !map) || !can_go(op, inverse, met)) continue;
        pass_move_before(inverse, op);
        op->async = product;
        n += product;
    }
    if (n) tile_insert_before(inverse->next, tile_op(p, k, NULL, TILE_MMA_WAIT, inverse->span));
}

void sm90_products_early(TileProgram *p, TileKernel *k) {
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (op->kind == TILE_INVERT && tile_by_groups(k)) raise_products(p, k, op);
}
