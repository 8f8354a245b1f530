// sm90_plain.c: the plain form of a Hopper schedule, for any kernel.
//
// In: a kernel of loads, products, maps, loops and stores, without BOUND. Out: two roles that go
// through the same tiles and loops: the producer fills a pipe where the consumer takes from it. Loads
// run ahead as far as the pipes have stages; everything else is in the order of the algorithm.
//
//     %q = load q                      producer                       consumer
//     loop N {                         next                           next
//         %k = load k            ->    tiles { fill qp = q            tiles { %q = take qp
//         %s = mma %q, %k                loop N { fill kp = k }         loop N { %k = take kp
//         ...                            next }                           %s = mma async %q, %k
//     }                                                                   mma_wait 0; drop %k
//     store o                                                             ... }
//                                                                       drop %q; store o; next }
#include "passes/schedule/sm90.h"
#include "passes/schedule/strips.h"

#include <assert.h>

// ---- the producer: what the ops load, in their order

static bool loads_within(const TileOp *op) {
    if (sm90_piped(op)) return true;
    for (const TileOp *in = op->body.first; in; in = in->next)
        if (loads_within(in)) return true;
    return false;
}

static void mirror(Sm90 *s, const TileOp *op) {
    if (sm90_piped(op)) sm90_fill(s, op, NULL, 0, NULL, false);
    if (op->kind != TILE_LOOP || !loads_within(op)) return;
    TileOp *loop = sm90_op(s, TILE_LOOP, op->span);
    loop->axis = op->axis;
    loop->from = op->from, loop->to = op->to, loop->index = op->index, loop->where = op->where;
    loop->tiles = op->tiles;
    TileBlock *outer = s->block;
    s->block = &loop->body;
    for (const TileOp *in = op->body.first; in; in = in->next) mirror(s, in);
    sm90_yield(s, NULL, 0);
    s->block = outer;
}

// ---- the consumer

static TileOp *insert_behind(Sm90 *s, TileOp *op, TileKind kind) {
    TileOp *n = tile_op(s->p, s->k, NULL, kind, op->span);
    if (op->next)
        tile_insert_before(op->next, n);
    else
        tile_append(op->block, n);
    return n;
}

// What all threads have read with a map is dropped when all of them have.
static TileOp *everybody_behind(Sm90 *s, TileOp *map) {
    if (map->next && map->next->kind == TILE_BARRIER) return map->next;
    return insert_behind(s, map, TILE_BARRIER);
}

// A load becomes a take; the view is dropped behind its last use.
static void take_load(Sm90 *s, TileOp *load) {
    TileOp *take = tile_op(s->p, s->k, NULL, TILE_TAKE, load->span);
    TileValue *old = load->results.data[0];
    tile_insert_before(load, take);
    tile_arg(s->p, take, s->pipe[load->tensor]);
    TileValue *v = tile_result(s->p, s->k, take, old->name, old->dtype, old->axis, old->rank);
    v->home = HOME_SHARED;
    tile_replace(load->block, old, v);
    tile_unlink(load);
    TileOp *last = take;
    for (TileOp *op = take->next; op; op = op->next)
        if (pass_uses(op, v)) last = op->kind == TILE_MAP ? everybody_behind(s, op) : op;
    if (last->kind == TILE_MMA && last->next && last->next->kind == TILE_MMA_WAIT)
        last = last->next;
    tile_arg(s->p, insert_behind(s, last, TILE_DROP), v);
}

static void share(Sm90 *s, TileOp *map) {
    map->results.data[0]->home = HOME_SHARED;
    TileOp *before = tile_op(s->p, s->k, NULL, TILE_BARRIER, map->span);
    tile_insert_before(map, before); // everybody has read the last one
    insert_behind(s, map, TILE_BARRIER);
}

static void consume(Sm90 *s, TileBlock *b) {
    for (TileOp *op = b->first, *next; op; op = next) {
        next = op->next;
        if (op->kind == TILE_MMA) {
            op->async = true;
            insert_behind(s, op, TILE_MMA_WAIT);
        } else if (op->kind == TILE_MAP && pass_cooperative(s->k, op)) {
            share(s, op);
        }
        consume(s, &op->body);
    }
    for (TileOp *op = b->first, *next; op; op = next) {
        next = op->next;
        if (sm90_piped(op)) take_load(s, op);
    }
}

void sm90_plain(Sm90 *s) {
    TileOp **ops;
    assert(!tile_is_bound(s->k) && "no loop here does steps again");
    int n = sm90_begin(s, &ops);
    TileOp *tiles[2];
    for (int role = 0; role < 2; role++) {
        s->block = role ? &s->consumer->body : &s->producer->body;
        sm90_op(s, TILE_NEXT, (Span){0});
        tiles[role] = sm90_op(s, TILE_TILES, (Span){0});
    }
    s->block = &tiles[0]->body;
    for (int i = 0; i < n; i++) mirror(s, ops[i]);
    s->block = &tiles[1]->body;
    for (int i = 0; i < n; i++) tile_append(s->block, ops[i]);
    for (int i = 0; i < n; i++)
        if (ops[i]->kind == TILE_LOOP) pass_raise_strips(ops[i]);
    consume(s, s->block);
    for (int role = 0; role < 2; role++) {
        s->block = &tiles[role]->body;
        sm90_op(s, TILE_NEXT, (Span){0});
        sm90_yield(s, NULL, 0);
    }
}
