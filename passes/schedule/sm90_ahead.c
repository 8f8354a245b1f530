// sm90_ahead.c: scores that are multiplied while the weights of the step before are made.
//
// In: a kernel whose scores are apart (sm90_apart.c), each operation with its role. Out: places of two stages in its loops:
//
//     producer   fill k                                        0
//     scores     take k   s                                    0, first
//                give c, p                                     1, beside that product
//                what of s the step's own tile decides         0, last
//     sums       take k, c, p   acc * c + p v                  1
//
// A tile of keys is held until its sums are added up, so that there are three under way. One step behind the kind of a tile is not
// known: what rows are made of there is what partial tiles need, for all.
#include "passes/schedule/expand.h"
#include "passes/schedule/sm90.h"

#include <string.h>

enum {
    FIRST = 1,
    BESIDE = 2,
    LAST = 3,
    NEVER = 4
}; // orders; NEVER: of no map, where a product could land

static TileOp *next_behind(TileOp *op) {
    while (op && !op->place.stage) op = op->next;
    return op;
}

// ---- whether

static bool reads_behind(const TileOp *loop, const TileOp *op) {
    for (int i = 0; i < op->args.n; i++) {
        const TileOp *def = op->args.data[i]->def;
        if (def == loop || (def && def->block == &loop->body && def->place.stage)) return true;
    }
    return false;
}

static bool depends_on_tile(const TileOp *loop, const TileOp *op) {
    bool does = false;
    for (int i = 0; i < op->outs.n; i++) {
        const Ex *e = op->outs.data[i].body;
        does |= ex_uses(e, SYM_POS, loop->axis) || ex_uses(e, SYM_TILE, loop->axis) ||
                ex_uses(e, SYM_STEP, -1) || ex_uses(e, SYM_MASK, -1);
    }
    return does;
}

static TilePlace place_of(const TileOp *loop, const TileOp *op) {
    if (op->kind == TILE_LOAD) return (TilePlace){0, 0};
    if (!strcmp(op->role, "sums") || reads_behind(loop, op)) return (TilePlace){1, BESIDE};
    return (TilePlace){0, op->kind == TILE_MAP ? LAST : FIRST};
}

// Whether products of scores are ahead, and what is behind says the same of all tiles.
static bool place_step(TileOp *loop) {
    bool ahead = false, good = true;
    for (TileOp *op = loop->body.first; op != loop->body.last; op = op->next) {
        op->place = place_of(loop, op);
        bool product = op->kind == TILE_MMA && strcmp(op->role, "sums") != 0;
        if (product) op->lands = NEVER;
        ahead |= product;
        good &= !(op->place.stage && (product || depends_on_tile(loop, op)));
    }
    return ahead && good;
}

// What stands for an operand in another loop of the chain is the same wherever it is read.
static bool always_for(const TileOp *a, const TileOp *b, const TileValue *v, const TileValue *w) {
    TileOp *x = next_behind(a->body.first), *y = next_behind(b->body.first);
    for (; x && y; x = next_behind(x->next), y = next_behind(y->next))
        for (int i = 0; i < x->args.n; i++)
            if ((x->args.data[i] == v) != (y->args.data[i] == w)) return false;
    return true;
}

static bool same_shape(const TileOp *x, const TileOp *y) {
    bool same = x->kind == y->kind && x->args.n == y->args.n && x->outs.n == y->outs.n &&
                !strcmp(x->role, y->role) && x->naxes == y->naxes &&
                !memcmp(x->axes, y->axes, sizeof *x->axes * (size_t)x->naxes);
    for (int i = 0; same && i < x->outs.n; i++)
        same = x->outs.data[i].reduce == y->outs.data[i].reduce;
    return same;
}

static bool go_together(const TileOp *a, const TileOp *b) {
    TileOp *x = next_behind(a->body.first), *y = next_behind(b->body.first);
    for (; x && y; x = next_behind(x->next), y = next_behind(y->next)) {
        if (!same_shape(x, y)) return false;
        for (int i = 0; i < x->args.n; i++)
            if (!always_for(a, b, x->args.data[i], y->args.data[i])) return false;
    }
    return !x && !y;
}

// ---- one step behind

static void take_over(const TileOp *a, const TileOp *b) {
    TileOp *x = next_behind(a->body.first), *y = next_behind(b->body.first);
    for (; x; x = next_behind(x->next), y = next_behind(y->next))
        for (int i = 0; i < x->outs.n; i++) y->outs.data[i].body = x->outs.data[i].body;
}

static void forget(TileKernel *k) {
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        op->place = (TilePlace){0, 0}, op->lands = 0;
}

void sm90_run_ahead(Sm90 *s) {
    bool good = true;
    const TileOp *first = NULL;
    for (TileOp *op = s->k->body.first; op && good; op = op->next) {
        if (op->kind != TILE_LOOP) continue;
        bool follows = first && pass_follows(op->prev, op);
        good = place_step(op) && (!follows || go_together(first, op));
        if (follows && good) take_over(first, op);
        if (!follows) first = op;
    }
    if (!good) forget(s->k);
}
