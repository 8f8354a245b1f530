// sm90_first.c: what counts only in part for some warpgroups' rows, as at a mask's diagonal.
//
// In: an operation with a `first` (ir/tile.h), whose condition is one number for a warpgroup. Out:
// the operation in two ways, one for all elements and one for those that count. A block of maps
// stands twice behind a branch; nothing is in flight there. Products are in flight while others
// begin, and ptxas serializes them all where it sees one begin under a predicate: both ways of a
// product, each a whole group, stand in one piece of assembly (sm90_ops.c).
#include "codegen/nvptx/sm90.h"

#include <assert.h>

static Val no_param(Cg *cg, CgElem *at, int k) {
    (void)cg, (void)at, (void)k;
    assert(!"a condition has no operands");
    return NULL;
}

static Val first_row_of_group(Cg *cg, CgElem *at, int axis) {
    (void)at;
    assert(tile_in_grid(cg->k, axis));
    Val group = cg_times(cg, nv90_state(cg)->group, 64);
    return cg_add(cg, cg_tile_begin(cg, axis), group);
}

static CgElem question(void) {
    return (CgElem){.lanes = 1, .param = no_param, .pos = first_row_of_group, .lane_axis = -1};
}

static void ask_parts(Cg *cg, CgElem *elem, const TileOp *loop, const Ex *e) {
    Nv90 *h = nv90_state(cg);
    bool varies = ex_uses(e, SYM_STEP, -1) || ex_uses(e, SYM_TILE, loop->axis);
    if (!varies && e->nargs) {
        Nv90Asked a = {e, cg_expr(cg, e, elem)};
        VEC_PUSH(cg->arena, &h->known, a);
    }
    for (int i = 0; varies && i < e->nargs; i++) ask_parts(cg, elem, loop, e->args[i]);
}

// What is the same at every step of a loop is made once: nothing else moves it there.
void nv90_ask_before(Cg *cg, const TileOp *loop) {
    Nv90 *h = nv90_state(cg);
    CgElem elem = question();
    h->known_in = loop;
    h->known.n = 0;
    for (const TileOp *op = loop->body.first; op; op = op->next)
        if (op->first) ask_parts(cg, &elem, loop, op->when);
}

Val nv90_few(Cg *cg, const TileOp *op) {
    const Nv90 *h = nv90_state(cg);
    CgElem elem = question();
    for (int i = 0; op->block->owner == h->known_in && i < h->known.n; i++)
        ex_memo_put(cg->arena, &elem.memo, h->known.data[i].e, h->known.data[i].v);
    return cg_expr(cg, op->when, &elem);
}

static CgValue *lower_way(Cg *cg, const TileOp *op, int counted) {
    const TileOp *yield = op->body.last;
    CgValue *r = ARENA_ARRAY(cg->arena, CgValue, op->results.n);
    Nv90 *h = nv90_state(cg);
    h->counted = counted;
    h->counted_axis = op->axis;
    cg_lower_block(cg, &op->body, NULL);
    h->counted = 0;
    for (int i = 0; i < op->results.n; i++) {
        r[i] = cg->value[yield->args.data[i]->id];
        Val *e = ARENA_ARRAY(cg->arena, Val, r[i].n);
        for (int j = 0; j < r[i].n; j++) e[j] = r[i].e[j];
        r[i].e = e;
    }
    return r;
}

static void lower_both(Cg *cg, const TileOp *op) {
    Blk way[2] = {cg_block(cg, "all"), cg_block(cg, "few")}, done = cg_block(cg, "counted");
    CgValue *r[2];
    assert(!nv90_state(cg)->flight.n);
    cg_fork(cg, nv90_few(cg, op), way[1], way[0]);
    for (int i = 0; i < 2; i++) {
        cg_at(cg, way[i]);
        r[i] = lower_way(cg, op, i ? op->first : 0);
        way[i] = cg_here(cg);
        cg_br(cg, done);
    }
    cg_at(cg, done);
    for (int i = 0; i < op->results.n; i++) {
        CgValue *v = &cg->value[op->results.data[i]->id];
        *v = r[0][i];
        for (int j = 0; j < v->n; j++)
            v->e[j] = cg_join(cg, r[0][i].e[j], way[0], r[1][i].e[j], way[1]);
    }
}

void nv90_at(Cg *cg, const TileOp *op) {
    Val outer = cg->tile[op->axis];
    const TileOp *yield = op->body.last;
    cg->tile[op->axis] = cg_uniform(cg, op->index);
    if (op->first)
        lower_both(cg, op);
    else
        cg_lower_block(cg, &op->body, NULL);
    for (int i = 0; !op->first && i < op->results.n; i++)
        cg->value[op->results.data[i]->id] = cg->value[yield->args.data[i]->id];
    cg->tile[op->axis] = outer;
}
