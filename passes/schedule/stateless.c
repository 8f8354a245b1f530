// stateless.c: what a step of a loop makes first.
//
// In: a loop that carries values. Out: the same operations, in the order
//
//     what needs neither what the loop carries nor an inverse: all of a recurrence's scores of a chunk stand together,
//     so that maps of them can be one
//     what needs an inverse
//     what needs what is carried, or has the grid's rows, in registers: while a triangle is inverted, the state is all that
//     they hold
//
// and otherwise as before.
#include "passes/schedule/schedule.h"
#include "passes/tile/rewrite.h"

typedef enum Turn { OF_NONE, OF_INVERSE, OF_CARRIED } Turn;

static Turn turn_of(const TileKernel *k, const TileOp *op, const Turn *of) {
    Turn turn = op->kind == TILE_INVERT  ? OF_INVERSE
                : op->kind == TILE_YIELD ? OF_CARRIED
                                         : OF_NONE;
    bool makes = op->kind == TILE_MAP || op->kind == TILE_MMA;
    for (int i = 0; i < op->results.n && makes; i++)
        if (tile_has_axis(op->results.data[i], tile_grid_axis(k))) turn = OF_CARRIED;
    for (int i = 0; i < op->args.n; i++)
        if (of[op->args.data[i]->id] > turn) turn = of[op->args.data[i]->id];
    return turn;
}

static void order(TileProgram *p, const TileKernel *k, TileOp *loop) {
    Turn *of = ARENA_ARRAY(p->arena, Turn, k->nvalues);
    TileOp *end[OF_CARRIED + 1] = {0}; // the first operation of the next turn
    for (int i = 0; i < loop->carried.n; i++) of[loop->carried.data[i]->id] = OF_CARRIED;
    for (TileOp *op = loop->body.first, *next; op; op = next) {
        next = op->next;
        Turn turn = turn_of(k, op, of);
        for (int i = 0; i < op->results.n; i++) of[op->results.data[i]->id] = turn;
        TileOp *before = NULL;
        for (int t = turn; t < OF_CARRIED && !before; t++) before = end[t];
        if (before) pass_move_before(before, op);
        for (int t = 0; t < (int)turn; t++)
            if (!end[t] || end[t] == before) end[t] = op;
    }
}

void pass_stateless_first(TileProgram *p, TileKernel *k) {
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (op->kind == TILE_LOOP && op->carried.n) order(p, k, op);
}
