// sm90_ahead.c: weights that are handed over once the next step's scores are multiplied.
//
// In: a kernel whose scores are apart (sm90_apart.c), each operation with its role. Out: places of two stages in its loops:
//
//     producer   fill k                       0
//     scores     take k   s                   0, first
//                give p                       1, beside that product
//                maps   give c                0, last
//     sums       take c, k, p   acc * c + p v 1
//
// A warp that issues products goes on when most of them are done. So the sums of a step are added up while the weights of
// the next one are made, by other warps, and sums and scores do not contend for the tensor cores. A tile of keys is held until
// its sums are added up, so that there are three under way.
#include "passes/schedule/expand.h"
#include "passes/schedule/sm90.h"

#include <string.h>

enum { FIRST = 1, BESIDE = 2, LAST = 3, END = 4 }; // orders

static TileOp *next_behind(TileOp *op) {
    while (op && !op->place.stage) op = op->next;
    return op;
}

static bool is_weights(const TileOp *op) {
    const TileValue *v = op->kind == TILE_MAP ? op->results.data[0] : NULL;
    return v && v->home == HOME_SHARED && v->rank == 2;
}

static TilePlace place_of(const TileOp *op) {
    if (op->kind == TILE_LOAD) return (TilePlace){0, 0};
    if (is_weights(op) || !strcmp(op->role, "sums")) return (TilePlace){1, BESIDE};
    if (op->kind != TILE_MAP) return (TilePlace){0, FIRST};
    return (TilePlace){0, op->results.data[0]->home == HOME_SHARED ? END : LAST};
}

// One step behind the kind of a tile is not known.
static bool depends_on_tile(const TileOp *loop, const TileOp *op) {
    bool does = false;
    for (int i = 0; i < op->outs.n; i++) {
        const Ex *e = op->outs.data[i].body;
        does |= ex_uses(e, SYM_POS, loop->axis) || ex_uses(e, SYM_TILE, loop->axis) ||
                ex_uses(e, SYM_STEP, -1) || ex_uses(e, SYM_MASK, -1);
    }
    return does;
}

static bool place_step(TileOp *loop) {
    bool good = true;
    for (TileOp *op = loop->body.first; op != loop->body.last; op = op->next) {
        op->place = place_of(op);
        good &= !(op->place.stage && depends_on_tile(loop, op));
    }
    return good;
}

static bool same(const TileOp *x, const TileOp *y) {
    bool is = x->kind == y->kind && x->args.n == y->args.n && x->outs.n == y->outs.n &&
              !strcmp(x->role, y->role) && x->naxes == y->naxes &&
              !memcmp(x->axes, y->axes, sizeof *x->axes * (size_t)x->naxes);
    for (int i = 0; is && i < x->outs.n; i++) {
        const TileResult *a = &x->outs.data[i], *b = &y->outs.data[i];
        is = a->reduce == b->reduce && a->body == b->body;
    }
    return is;
}

static bool go_together(const TileOp *a, const TileOp *b) {
    TileOp *x = next_behind(a->body.first), *y = next_behind(b->body.first);
    for (; x && y; x = next_behind(x->next), y = next_behind(y->next))
        if (!same(x, y)) return false;
    return !x && !y;
}

static void forget(TileKernel *k) {
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        op->place = (TilePlace){0, 0};
}

void sm90_run_ahead(Sm90 *s) {
    bool good = true;
    const TileOp *first = NULL;
    for (TileOp *op = s->k->body.first; op && good; op = op->next) {
        if (op->kind != TILE_LOOP) continue;
        bool follows = first && pass_follows(op->prev, op);
        good = place_step(op) && (!follows || go_together(first, op));
        if (!follows) first = op;
    }
    if (!good) forget(s->k);
}
