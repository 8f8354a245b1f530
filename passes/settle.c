// settle.c: tests that a tile without masked keys has settled beforehand.
//
// In: loops split by class. Out: the same, where in loops over full tiles a choice whose condition
// can go only one way is that way:
//
//     %m_tile = map rowmax over N of %dot
//     %a = map select((-max(%m, %m_tile) == inf), 0, -max(..))    ->    -max(%m, %m_tile)
//
// since a tile has a key, whose score is finite, and no row is empty any more. (Where shifts stay they
// may still be those of an empty row: what is carried may be anything, and is taken so in any loop.)
// The test would stand between a tile's maximum and its first exponential, where nothing else can be
// done.
//
// Holds afterwards: what is computed is what was computed, where products are finite (classes.h).
#include "passes.h"

#include "classes.h"
#include "rewrite.h"
#include "simplify.h"

static const Ex *settle_one(void *ctx, ExPool *x, const Ex *e) {
    const ClassEnv *env = ctx;
    (void)x;
    if (e->op != EX_SELECT) return e;
    if (!class_may(e->args[0], env, false)) return e->args[1];
    if (!class_may(e->args[0], env, true)) return e->args[2];
    return e;
}

static ClassSet class_of_result(const TileResult *out, const ClassEnv *env) {
    ClassSet c = class_of(out->body, env);
    return out->reduce == EX_ROWSUM ? class_sum(c) : c;
}

static void settle_map(TileProgram *p, TileOp *map, ClassSet *of, Arena *scratch) {
    ClassSet *param = ARENA_ARRAY(scratch, ClassSet, map->args.n + 1);
    for (int i = 0; i < map->args.n; i++) param[i] = of[map->args.data[i]->id];
    ClassEnv env = {
        .s = CL_ALL, .r = param, .wild_inputs = true, .wild_scores = true, .limited = true};
    for (int i = 0; i < map->outs.n; i++) {
        TileResult *out = &map->outs.data[i];
        out->body = ex_simplify(p->pool, ex_map(p->pool, out->body, settle_one, &env));
        of[map->results.data[i]->id] = class_of_result(out, &env);
    }
}

static void settle_loop(TileProgram *p, TileOp *loop, ClassSet *of, Arena *scratch) {
    for (TileOp *op = loop->body.first; op; op = op->next) {
        if (op->kind == TILE_MAP) settle_map(p, op, of, scratch);
        bool product = op->kind == TILE_MMA && op->args.n == 2;
        if (product) of[op->results.data[0]->id] = CL_FINITE;
    }
}

void pass_settle(TileProgram *p) {
    for (int i = 0; i < p->kernels.n; i++) {
        TileKernel *k = p->kernels.data[i];
        Arena *scratch = arena_new();
        ClassSet *of = ARENA_ARRAY(scratch, ClassSet, k->nvalues + 1);
        for (int v = 0; v < k->nvalues; v++) of[v] = CL_ALL;
        for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
            if (op->kind == TILE_LOOP && op->tiles == CLASS_FULL) settle_loop(p, op, of, scratch);
        arena_free(scratch);
    }
}
