// diagonal.c: what is the same along the diagonals of a tile.
//
// In: expressions of a map, arguments before their users, and two of its axes. Out: for each, how
// it varies: not at all, from diagonal to diagonal (it depends on the two positions through their
// difference only), or otherwise. Integers wrap, so sums of multiples of positions are told exactly;
// of anything else made of positions it is only known whether all of its arguments are alike.
#include "tile.h"

typedef struct
    Slope { // of an integer: row * POS(row) + col * POS(col) + what is the same everywhere
    uint32_t row, col;
    bool linear;
    TileAlong along;
} Slope;

static Slope linear(uint32_t row, uint32_t col) {
    TileAlong along = !row && !col ? ALONG_ALL : row + col == 0 ? ALONG_DIAGONALS : ALONG_NONE;
    return (Slope){row, col, true, along};
}

static Slope made_of(TileAlong along) {
    return along == ALONG_ALL ? linear(0, 0) : (Slope){.along = along};
}

static Slope leaf(const TileOp *map, const Ex *e, int row, int col) {
    if (e->op != EX_SYM) return linear(0, 0);
    switch ((int)e->sym) {
    case SYM_POS:
        if (e->index == row) return linear(1, 0);
        return e->index == col ? linear(0, 1) : made_of(ALONG_NONE);
    case SYM_PARAM: return made_of(map->args.data[e->index]->rank ? ALONG_NONE : ALONG_ALL);
    case SYM_MASK: return made_of(ALONG_NONE);
    default: return linear(0, 0);
    }
}

// Sums, differences and constant multiples; false: it is none.
static bool combined(const Ex *e, const Slope *a, const Slope *b, Slope *out) {
    if (e->type != EX_I32 || !a->linear || (b && !b->linear)) return false;
    switch ((int)e->op) {
    case EX_NEG: *out = linear(-a->row, -a->col); return true;
    case EX_ADD: *out = linear(a->row + b->row, a->col + b->col); return true;
    case EX_SUB: *out = linear(a->row - b->row, a->col - b->col); return true;
    case EX_MUL: {
        bool first = e->args[0]->op == EX_CONST;
        if (!first && e->args[1]->op != EX_CONST) return false;
        uint32_t by = (uint32_t)e->args[first ? 0 : 1]->i;
        const Slope *s = first ? b : a;
        *out = linear(by * s->row, by * s->col);
        return true;
    }
    default: return false;
    }
}

static const Slope *slope_of(const ExMemo *known, const Ex *e) { return ex_memo_get(known, e); }

static Slope node(const ExMemo *known, const TileOp *map, const Ex *e, int row, int col) {
    if (!e->nargs) return leaf(map, e, row, col);
    Slope s;
    const Slope *x = slope_of(known, e->args[0]), *y = NULL;
    if (e->nargs > 1) y = slope_of(known, e->args[1]);
    if (e->nargs <= 2 && combined(e, x, y, &s)) return s;
    TileAlong along = ALONG_ALL;
    for (int i = 0; i < e->nargs; i++) {
        TileAlong arg = slope_of(known, e->args[i])->along;
        if (arg > along) along = arg;
    }
    return made_of(along);
}

void tile_along(Arena *a, const TileOp *map, int row, int col, const Ex *const *order, int n,
                TileAlong *out) {
    ExMemo known = {0};
    Slope *all = ARENA_ARRAY(a, Slope, n + 1);
    for (int i = 0; i < n; i++) {
        all[i] = node(&known, map, order[i], row, col);
        ex_memo_put(a, &known, order[i], &all[i]);
        out[i] = all[i].along;
    }
}

bool tile_scatters_diagonals(const TileOp *store) {
    const TileValue *v = store->args.data[0];
    bool all = tile_scatters(store) && v->rank == 2;
    Arena *a = arena_new();
    for (int d = 0; d < TILE_MAX_DIMS && all; d++) {
        if (!store->each[d]) continue;
        const Ex **order;
        int n = ex_order(a, &store->coord[d].at, 1, &order);
        TileAlong *along = ARENA_ARRAY(a, TileAlong, n + 1);
        tile_along(a, store, v->axis[0], v->axis[1], order, n, along);
        all = along[n - 1] != ALONG_NONE;
    }
    arena_free(a);
    return all;
}
