// tile_verify_marks.c: what a map, a redo, a drop, a scattered sum or a fill must be to be made in one of the ways of tile_marks.def.
//
// In: the current one, of a verifier that goes through a kernel. Out: whether each of its marks has what it is about.
#include "ir/tile_decayed.h"
#include "ir/tile_verify.h"
#include "ir/tile_within.h"

static bool is_halves(const TileOp *map) {
    const TileResult *out = &map->outs.data[0];
    const TileValue *v = map->results.data[0];
    return tile_role_of(map) && map->outs.n == 1 && out->reduce == EX_CONST &&
           out->body->op == EX_SIGMOID && v->dtype == DT_BF16 && v->rank == 2;
}

static bool is_diagonals(const TileOp *map) {
    if (!tile_role_of(map)) return false;
    for (int i = 0; i < map->args.n; i++)
        if (map->args.data[i]->home == HOME_STRIP && map->args.data[i]->rank == 2) return true;
    return false;
}

static bool is_lazy(const TileOp *map) {
    const TileValue *factor;
    return tile_rescaled(map, &factor) && map->results.data[0]->home == HOME_FRAGMENT;
}

// Elements beside a sum of them.
static bool is_late(const TileOp *map) {
    bool sums = false, makes = false;
    for (int i = 0; i < map->outs.n; i++) {
        sums |= map->outs.data[i].reduce == EX_ROWSUM;
        makes |= map->outs.data[i].reduce == EX_CONST;
    }
    return tile_role_of(map) && sums && makes;
}

static bool is_pairs(const Verify *V) {
    for (int i = 0; i < V->op->naxes; i++)
        if (tile_reads_rows(V->p, V->k, V->op, V->op->axes[i])) return true;
    return false;
}

static bool is_ahead(const Verify *V) {
    const TileOp *map = V->op, *loop = map->block->owner;
    return tile_is_marked(map, TILE_PAIRS) && loop && loop->kind == TILE_LOOP &&
           loop->tiles == CLASS_FULL && tile_reads_rows(V->p, V->k, map, loop->axis);
}

// Which one comes next is known, and that it is another one.
static bool goes_on(const TileOp *fill) {
    const TileOp *loop = fill->block->owner;
    return loop && loop->kind == TILE_LOOP && !ex_reads(loop->index) &&
           ex_uses(loop->index, SYM_STEP, -1);
}

static bool may_be(const Verify *V, TileMark m) {
    if (m == TILE_WITHIN) return tile_around(V->k, V->op);
    if (V->op->kind == TILE_FILL) return m == TILE_AHEAD && goes_on(V->op);
    if (V->op->kind == TILE_STORE) return m == TILE_DIAGONALS && tile_scatters_diagonals(V->op);
    if (V->op->kind == TILE_REDO) return m == TILE_EARLY && tile_role_of(V->op);
    if (V->op->kind != TILE_MAP) return false;
    switch (m) {
    case TILE_PAIRS: return is_pairs(V);
    case TILE_AHEAD: return is_ahead(V);
    case TILE_DIAGONALS: return is_diagonals(V->op);
    case TILE_FACTORS: return tile_all_decayed(V->op);
    case TILE_ZEROS: return tile_last_zero(V->op) != NULL;
    case TILE_LATE: return is_late(V->op);
    case TILE_HALVES: return is_halves(V->op);
    case TILE_LANES: return tile_hands_around(V->k, V->op);
    case TILE_LAZY: return is_lazy(V->op);
    case TILE_WITHIN:
    case TILE_EARLY:
    case TILE_MARK_COUNT: break;
    }
    return false;
}

bool verify_marks(Verify *V) {
    for (int m = 0; m < TILE_MARK_COUNT; m++) {
        if (!tile_is_marked(V->op, (TileMark)m)) continue;
        if (!V->p->scheduled || !may_be(V, (TileMark)m))
            return verify_fail(V, "it cannot be made by '%s'", tile_mark_name((TileMark)m));
    }
    return true;
}
