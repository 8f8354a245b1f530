// tidy.c: simplifies every expression and removes what nothing uses.
//
// In: any program. Out: the same program, smaller. Holds afterwards: every expression is in
// ex_simplify's form; every op but stores and loops around them makes something that is used; no
// map has two results alike, an operand twice, or one it does not read.
//
//     %a = map (p0 = %s, p1 = %m) { p0 + 0.0 }        ->  gone: its uses read %s
//     %b, %c = map { p0 * 2.0, p0 * 2.0 }             ->  %b = map { p0 * 2.0 }
//     %x = load ...                                   ->  gone when unused
#include "passes/passes.h"
#include "passes/tile/rewrite.h"

#include <assert.h>

// ---- expressions

static const Ex *simplify(void *ctx, const Ex *e) { return ex_simplify(ctx, e); }

static void simplify_kernel(TileProgram *p, TileKernel *k) {
    k->mask = ex_simplify(p->pool, k->mask);
    if (k->where) k->where = ex_simplify(p->pool, k->where);
    for (int i = 0; i < k->ngrid; i++) {
        TileGrid *g = &k->grid[i];
        g->count = ex_simplify(p->pool, g->count);
        if (g->from) g->from = ex_simplify(p->pool, g->from);
        const Ex **of[] = {&g->batch, &g->together, &g->ends};
        for (int j = 0; j < 3 && g->batch; j++) *of[j] = ex_simplify(p->pool, *of[j]);
    }
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        tile_map_exprs(op, simplify, p->pool);
        bool always =
            op->kind == TILE_LOOP && op->where && op->where->op == EX_CONST && op->where->i;
        if (always) op->where = NULL;
    }
}

static void simplify_program(TileProgram *p) {
    for (int i = 0; i < p->sizes.n; i++) {
        TileSize *s = &p->sizes.data[i];
        if (s->def) s->def = ex_simplify(p->pool, s->def);
        if (s->among) s->among = ex_simplify(p->pool, s->among);
    }
    for (int i = 0; i < p->plans.n; i++) {
        TilePlan *plan = &p->plans.data[i];
        if (plan->when) plan->when = ex_simplify(p->pool, plan->when);
    }
}

// ---- doubles and copies

static bool same_result(const TileOp *map, int i, int j) {
    const TileResult *a = &map->outs.data[i], *b = &map->outs.data[j];
    if (a->body != b->body || a->reduce != b->reduce) return false;
    if (a->reduce != EX_CONST && a->reduce_axis != b->reduce_axis) return false;
    if (a->scan != b->scan || a->strict != b->strict || a->by != b->by) return false;
    return map->results.data[i]->dtype == map->results.data[j]->dtype;
}

static void join_doubles(TileKernel *k, TileOp *map) {
    for (int i = 0; i < map->outs.n; i++)
        for (int j = map->outs.n - 1; j > i; j--)
            if (same_result(map, i, j)) {
                tile_replace(&k->body, map->results.data[j], map->results.data[i]);
                pass_drop_result(map, j);
            }
}

// A result that is its operand unchanged: uses read the operand.
static void forward_copies(TileKernel *k, TileOp *map) {
    for (int i = map->outs.n - 1; i >= 0; i--) {
        const TileResult *r = &map->outs.data[i];
        if (r->reduce != EX_CONST || r->body->op != EX_SYM || r->body->sym != SYM_PARAM) continue;
        TileValue *from = map->args.data[r->body->index], *to = map->results.data[i];
        if (from->dtype != to->dtype || pass_axes_of(from) != pass_axes_of(to)) continue;
        tile_replace(&k->body, to, from);
        pass_drop_result(map, i);
    }
}

static bool same_load(const TileOp *a, const TileOp *b) {
    if (b->kind != TILE_LOAD || a->tensor != b->tensor || a->width != b->width ||
        a->from_column != b->from_column)
        return false;
    if (pass_axes_of(a->results.data[0]) != pass_axes_of(b->results.data[0])) return false;
    for (int d = 0; d < TILE_MAX_DIMS; d++)
        if (a->coord[d].axis != b->coord[d].axis || a->coord[d].at != b->coord[d].at ||
            a->each[d] != b->each[d] || a->coord[d].tile != b->coord[d].tile)
            return false;
    return true;
}

static void join_loads(TileKernel *k, TileOp *load) {
    for (TileOp *op = load->next, *next; op; op = next) {
        next = op->next;
        if (!same_load(load, op)) continue;
        tile_replace(&k->body, op->results.data[0], load->results.data[0]);
        tile_unlink(op);
    }
}

static void join(TileProgram *p, TileKernel *k) {
    for (TileOp *op = tile_next(&k->body, NULL), *next; op; op = next) {
        if (op->kind == TILE_LOAD) join_loads(k, op);
        next = tile_next(&k->body, op);
        if (op->kind != TILE_MAP) continue;
        pass_compact(p, op);
        join_doubles(k, op);
        forward_copies(k, op);
        if (!op->results.n) tile_unlink(op);
    }
}

// A carried value that no step changes is what it was before the loop. Loops within first. Those of full and partial
// tiles go on with each other's values, and keep the same ones.
static void forward_carried(TileKernel *k, TileBlock *b) {
    for (TileOp *op = b->first; op; op = op->next) {
        if (op->kind != TILE_LOOP) continue;
        forward_carried(k, &op->body);
        if (op->tiles != CLASS_ANY) continue;
        for (int i = op->results.n - 1; i >= 0; i--) {
            if (op->body.last->args.data[i] != op->carried.data[i]) continue;
            tile_replace(&k->body, op->carried.data[i], op->args.data[i]);
            tile_replace(&k->body, op->results.data[i], op->args.data[i]);
            pass_drop_result(op, i);
        }
    }
}

// ---- what nothing uses

typedef struct Live {
    Arena *arena;
    bool *value;           // by id
    VEC(TileValue *) todo; // not yet followed to what made it
} Live;

static void mark(Live *l, TileValue *v) {
    if (l->value[v->id]) return;
    l->value[v->id] = true;
    VEC_PUSH(l->arena, &l->todo, v);
}

static int index_of(TileValue *const *v, int n, const TileValue *x) {
    for (int i = 0; i < n; i++)
        if (v[i] == x) return i;
    return -1;
}

// Carried value i of a loop: its start, what becomes of it, and both names for it live together.
static void follow_loop(Live *l, TileOp *loop, TileValue *v) {
    int i = index_of(loop->results.data, loop->results.n, v);
    if (i < 0) i = index_of(loop->carried.data, loop->carried.n, v);
    assert(i >= 0);
    mark(l, loop->results.data[i]);
    mark(l, loop->carried.data[i]);
    mark(l, loop->args.data[i]);
    mark(l, loop->body.last->args.data[i]);
}

static void follow(Live *l, TileValue *v) {
    TileOp *def = v->def;
    if (def->kind == TILE_LOOP) {
        follow_loop(l, def, v);
        return;
    }
    if (def->kind != TILE_MAP) {
        for (int i = 0; i < def->args.n; i++) mark(l, def->args.data[i]);
        return;
    }
    // Of a map only the operands that this result reads.
    const Ex *body = def->outs.data[index_of(def->results.data, def->results.n, v)].body;
    for (int i = 0; i < def->args.n; i++)
        if (ex_uses(body, SYM_PARAM, i)) mark(l, def->args.data[i]);
}

// What happens whether or not anybody reads a result.
static bool has_effect(const TileOp *op) { return !(tile_op_info(op->kind)->flags & OP_PURE); }

static bool loop_stays(const TileOp *loop) {
    if (loop->results.n) return true;
    for (const TileOp *op = tile_next(&loop->body, NULL); op; op = tile_next(&loop->body, op))
        if (has_effect(op)) return true;
    return false;
}

static void sweep_results(const Live *l, TileProgram *p, TileOp *op) {
    for (int i = op->results.n - 1; i >= 0; i--)
        if (!l->value[op->results.data[i]->id]) pass_drop_result(op, i);
    if (op->kind == TILE_MAP) pass_compact(p, op);
}

static void sweep_block(const Live *l, TileProgram *p, TileBlock *b) {
    for (TileOp *op = b->first, *next; op; op = next) {
        next = op->next;
        if (has_effect(op) || op->kind == TILE_YIELD) continue;
        sweep_results(l, p, op);
        if (op->kind == TILE_LOOP) sweep_block(l, p, &op->body);
        bool stays = op->kind == TILE_LOOP ? loop_stays(op) : op->results.n > 0;
        if (!stays) tile_unlink(op);
    }
}

void pass_remove_unused(TileProgram *p, TileKernel *k) {
    Arena *scratch = arena_new();
    Live l = {.arena = scratch, .value = ARENA_ARRAY(scratch, bool, k->nvalues + 1)};
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (has_effect(op))
            for (int i = 0; i < op->args.n; i++) mark(&l, op->args.data[i]);
    while (l.todo.n) follow(&l, l.todo.data[--l.todo.n]);
    sweep_block(&l, p, &k->body);
    arena_free(scratch);
}

void pass_tidy(TileProgram *p) {
    simplify_program(p);
    for (int i = 0; i < p->kernels.n; i++) {
        TileKernel *k = p->kernels.data[i];
        simplify_kernel(p, k);
        join(p, k);
        forward_carried(k, &k->body);
        simplify_kernel(p, k); // a copy that was forwarded may have made a body simpler
        pass_remove_unused(p, k);
    }
}
