// pipes.c: which pipes the roles of a kernel have.
//
// In: a kernel whose operations have places. Out: a pipe for each tile that one role loads, or makes in shared memory, for
// others; loops that load or make the same one after the other share it. Where there is only one role it is a buffer.
#include "passes/schedule/expand.h"

#include <string.h>

bool pass_is_piped(const TileValue *v) {
    const TileOp *def = v->def;
    if (!def || v->home != HOME_SHARED) return false;
    for (const TileOp *op = def->next; op && def->kind == TILE_MAP && def->role; op = op->next)
        if (op->role && (strcmp(op->role, def->role) != 0 || op->place.stage > def->place.stage) &&
            tile_uses(op, v))
            return true;
    return def->kind == TILE_LOAD;
}

static bool has_pipe(const TileBlock *b, TileValue *const *pipe, const TileValue *which) {
    for (const TileOp *op = b->first; op; op = op->next)
        if (op->results.n && pipe[op->results.data[0]->id] == which) return true;
    return false;
}

static bool alike(const TileOp *a, const TileOp *b) {
    const TileValue *v = a->results.data[0], *w = b->results.n ? b->results.data[0] : NULL;
    if (a->kind != b->kind || (a->kind == TILE_LOAD && a->tensor != b->tensor)) return false;
    return v->dtype == w->dtype && v->rank == w->rank &&
           !memcmp(v->axis, w->axis, sizeof *v->axis * (size_t)v->rank);
}

static TileValue *pipe_before(const TileKernel *k, TileValue *const *pipe, const TileOp *maker) {
    for (const TileOp *op = tile_next(&k->body, NULL); op != maker; op = tile_next(&k->body, op)) {
        if (!op->results.n || !pipe[op->results.data[0]->id] || !alike(maker, op)) continue;
        TileValue *own = pipe[op->results.data[0]->id];
        if (!has_pipe(maker->block, pipe, own)) return own;
    }
    return NULL;
}

// Or, of a role's own, a buffer.
static void make_pipe(TileProgram *p, TileKernel *k, TileBlock *b, TileValue **pipe, TileOp *maker,
                      bool own) {
    const TileValue *v = maker->results.data[0];
    if ((pipe[v->id] = pipe_before(k, pipe, maker))) return;
    TileOp *op = tile_op(p, k, NULL, own ? TILE_ALLOC : TILE_PIPE, maker->span);
    if (own && b->first)
        tile_insert_before(b->first, op);
    else
        tile_append(b, op);
    const char *of = maker->kind == TILE_LOAD ? p->tensors.data[maker->tensor].name : v->name;
    const char *name = arena_printf(p->arena, own ? "%s_buf" : "%sp", of);
    TileValue *made = tile_result(p, k, op, name, v->dtype, v->axis, v->rank);
    made->home = HOME_SHARED;
    made->stages = v->stages;
    pipe[v->id] = made;
}

void pass_pipes(TileProgram *p, TileKernel *k, TileBlock *b, TileValue **pipe, bool own) {
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (op->results.n && pass_is_piped(op->results.data[0])) make_pipe(p, k, b, pipe, op, own);
}
