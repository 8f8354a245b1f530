// settle.c: tests that a tile without masked keys has settled beforehand.
//
// In: loops split by class. Out: the same, where in loops over full tiles a choice whose condition
// can go only one way is that way:
//
//     %m_tile = map rowmax over N of %dot
//     %a = map select((-max(%m, %m_tile) == inf), 0, -max(..))    ->    -max(%m, %m_tile)
//
// since a full tile has a key with a finite score, so no row is empty after it. (A fixed shift may still
// be that of an empty row: carried values may be anything, in every loop.) The test would be between a
// tile's maximum and its first exponential, where nothing else can run.
//
// Holds afterwards: what is computed is what was computed, where products are finite (passes/derive/classes.h).
#include "passes/passes.h"

#include "passes/derive/classes.h"
#include "passes/simplify/simplify.h"
#include "passes/tile/rewrite.h"

static const Ex *settle_one(void *ctx, ExPool *x, const Ex *e) {
    const ClassEnv *env = ctx;
    (void)x;
    if (e->op != EX_SELECT) return e;
    if (!class_may(e->args[0], env, false)) return e->args[1];
    if (!class_may(e->args[0], env, true)) return e->args[2];
    return e;
}

typedef struct Known { // of a kernel's values, by id
    ClassSet *set;
    Bounds *limits;
} Known;

static void learn(const Known *of, const TileValue *v, const TileResult *out, const ClassEnv *env) {
    ClassSet c = class_and_limits(out->body, env, &of->limits[v->id]);
    bool sum = out->reduce == EX_ROWSUM;
    of->set[v->id] = out->scan ? CL_ALL : sum ? class_sum(c) : c;
    if (sum || out->scan) of->limits[v->id] = bounds_unknown;
}

static void settle_map(TileProgram *p, TileOp *map, const Known *of, Arena *scratch) {
    ClassSet *param = ARENA_ARRAY(scratch, ClassSet, map->args.n + 1);
    Bounds *limits = ARENA_ARRAY(scratch, Bounds, map->args.n + 1);
    for (int i = 0; i < map->args.n; i++) {
        param[i] = of->set[map->args.data[i]->id];
        limits[i] = of->limits[map->args.data[i]->id];
    }
    ClassEnv env = {.s = CL_ALL,
                    .r = param,
                    .wild_inputs = true,
                    .wild_scores = true,
                    .limited = true,
                    .overflows = true,
                    .facts = {.param = limits}};
    for (int i = 0; i < map->outs.n; i++) {
        TileResult *out = &map->outs.data[i];
        out->body = ex_simplify(p->pool, ex_map(p->pool, out->body, settle_one, &env));
        learn(of, map->results.data[i], out, &env);
    }
}

static void settle_loop(TileProgram *p, TileOp *loop, const Known *of, Arena *scratch) {
    for (TileOp *op = loop->body.first; op; op = op->next) {
        if (op->kind == TILE_MAP) settle_map(p, op, of, scratch);
        bool product = op->kind == TILE_MMA && op->args.n == 2;
        if (!product) continue;
        of->set[op->results.data[0]->id] = CL_FINITE;
        of->limits[op->results.data[0]->id] = (Bounds){-LIMITS_DOT, LIMITS_DOT};
    }
}

void pass_settle(TileProgram *p) {
    for (int i = 0; i < p->kernels.n; i++) {
        TileKernel *k = p->kernels.data[i];
        Arena *scratch = arena_new();
        Known of = {ARENA_ARRAY(scratch, ClassSet, k->nvalues + 1),
                    ARENA_ARRAY(scratch, Bounds, k->nvalues + 1)};
        for (int v = 0; v < k->nvalues; v++) of.set[v] = CL_ALL, of.limits[v] = bounds_unknown;
        for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
            if (op->kind == TILE_LOOP && op->tiles == CLASS_FULL) settle_loop(p, op, &of, scratch);
        arena_free(scratch);
    }
}
