// loop.c: row sums that a loop carries are kept in parts.
//
// In: a loop. A carried number per row that only grows by a tile's row sum, `l * c + rowsum`, is a
// sum over the four threads of each quad at any time: they need not be added up at every step. So
// its start is given to one thread of the quad, each thread adds what it has itself, and the parts
// are added across the quad once, after the loop.
//
// Not where an accumulator is carried and nothing else goes across the quad at a step, such as a
// maximum: nothing then says that the sum must be ready, the assembler puts its additions off, and
// what is summed stays in registers, which the accumulator needs (a hundred words were spilled).
#include "codegen/nvptx/nvptx.h"

typedef struct PartialSum {
    int index;             // of the carried value
    const TileValue *tile; // the row sum that is not added across the quad
    CgValue start;         // what the loop's argument was
} PartialSum;

typedef struct LoopState {
    VEC(PartialSum) sums;
} LoopState;

static bool used_once(const TileBlock *b, const TileValue *v, const TileOp *by) {
    for (const TileOp *op = b->first; op; op = op->next)
        if (op != by && tile_uses(op, v)) return false;
    return true;
}

static int operand_of(const Ex *e) {
    return e->op == EX_SYM && e->sym == SYM_PARAM ? e->index : -1;
}

// `l * c + t` and `l + t`, whichever way it is written: the operands l and t, and c (NULL: none).
static bool grows_by(const Ex *e, int l, int *t, const Ex **c) {
    *c = NULL;
    if (e->op == EX_FMA) {
        int k = operand_of(e->args[0]) == l ? 0 : 1;
        *c = e->args[1 - k];
        *t = operand_of(e->args[2]);
        return operand_of(e->args[k]) == l && *t >= 0;
    }
    if (e->op != EX_ADD) return false;
    for (int k = 0; k < 2; k++) {
        const Ex *a = e->args[k];
        *t = operand_of(e->args[1 - k]);
        if (*t < 0 || *t == l) continue;
        if (operand_of(a) == l) return true;
        if (a->op != EX_MUL) continue;
        int m = operand_of(a->args[0]) == l ? 0 : 1;
        *c = a->args[1 - m];
        if (operand_of(a->args[m]) == l) return true;
    }
    return false;
}

static int result_index(const TileOp *op, const TileValue *v) {
    for (int i = 0; i < op->results.n; i++)
        if (op->results.data[i] == v) return i;
    return -1;
}

static int arg_index(const TileOp *op, const TileValue *v) {
    for (int i = 0; i < op->args.n; i++)
        if (op->args.data[i] == v) return i;
    return -1;
}

// Nothing else of the map looks at l or t, and c does not either.
static bool alone(const TileOp *map, int out, int l, int t, const Ex *c) {
    if (c && (ex_uses(c, SYM_PARAM, l) || ex_uses(c, SYM_PARAM, t))) return false;
    for (int i = 0; i < map->outs.n; i++)
        if (i != out && (ex_uses(map->outs.data[i].body, SYM_PARAM, l) ||
                         ex_uses(map->outs.data[i].body, SYM_PARAM, t)))
            return false;
    return true;
}

static const TileValue *partial_sum(const TileOp *loop, int i) {
    const TileValue *l = loop->carried.data[i], *next = loop->body.last->args.data[i];
    const TileOp *map = next->def;
    if (l->rank != 1 || l->dtype != DT_F32 || !map || map->kind != TILE_MAP ||
        map->block != &loop->body)
        return NULL;
    int out = result_index(map, next), at = arg_index(map, l), t;
    const Ex *c;
    if (out < 0 || at < 0 || map->outs.data[out].reduce != EX_CONST) return NULL;
    if (!grows_by(map->outs.data[out].body, at, &t, &c) || !alone(map, out, at, t, c)) return NULL;
    const TileValue *tile = map->args.data[t];
    const TileOp *def = tile->def;
    if (!def || def->kind != TILE_MAP || def->block != &loop->body) return NULL;
    if (def->outs.data[result_index(def, tile)].reduce != EX_ROWSUM) return NULL;
    bool private = used_once(&loop->body, l, map) && used_once(&loop->body, tile, map) &&
                   used_once(&loop->body, next, loop->body.last);
    return private ? tile : NULL;
}

static bool sums_have_time(const TileOp *loop) {
    bool accumulates = false, crosses = false;
    for (int i = 0; i < loop->carried.n; i++) accumulates |= loop->carried.data[i]->rank == 2;
    for (const TileOp *op = loop->body.first; op; op = op->next)
        for (int i = 0; op->kind == TILE_MAP && i < op->outs.n; i++)
            crosses |= op->outs.data[i].reduce == EX_ROWMAX || op->outs.data[i].reduce == EX_ROWMIN;
    return accumulates && !crosses;
}

// A row's number from what the threads that share it have of it.
Val nv_whole(Cg *cg, const TileValue *v, Val part) {
    const Layout *l = &cg_fragment(cg, v)->is;
    return cg_across(cg, l, LAYOUT_COPIES, EX_ROWSUM, part);
}

// What a map reduces of its tile: in one layout, along an axis.
static int reduced_by(Cg *cg, const TileValue *tile, int *axis) {
    const TileOp *map = tile->def;
    *axis = map->outs.data[result_index(map, tile)].reduce_axis;
    return tile_common_layout(cg->k, map, map->axes, map->naxes);
}

static Val only_first_of_quad(Cg *cg, const TileValue *tile, Val v) {
    int axis, layout = reduced_by(cg, tile, &axis);
    Val first = cg_is(cg, cg_and(cg, nv_state(cg)->gpu.lane, cg_i32(cg, 3)), 0);
    Val before = cg_warp_part(cg, layout, axis, 1);
    if (before) first = cg_and(cg, first, cg_is(cg, before, 0));
    return cg_select(cg, first, v, cg_f32(cg, 0));
}

void nv_loop_begin(Cg *cg, CgLoop *loop) {
    const TileOp *op = loop->op;
    NvState *s = nv_state(cg);
    LoopState *own = loop->own = ARENA_NEW(cg->arena, LoopState);
    if (!s->gpu.parts) s->gpu.parts = ARENA_ARRAY(cg->arena, bool, cg->k->nvalues + 1);
    if (sums_have_time(op)) return;
    for (int i = 0; i < op->carried.n; i++) {
        const TileValue *tile = partial_sum(op, i);
        if (!tile) continue;
        CgValue *start = &cg->value[op->args.data[i]->id];
        PartialSum sum = {i, tile, *start};
        VEC_PUSH(cg->arena, &own->sums, sum);
        s->gpu.parts[tile->id] = true;
        start->e = ARENA_ARRAY(cg->arena, Val, start->n);
        for (int e = 0; e < start->n; e++)
            start->e[e] = only_first_of_quad(cg, tile, sum.start.e[e]);
    }
}

void nv_loop_end(Cg *cg, CgLoop *loop) {
    const LoopState *own = loop->own;
    if (!own) return;
    for (int i = 0; i < own->sums.n; i++) {
        const PartialSum *sum = &own->sums.data[i];
        const TileValue *v = loop->op->results.data[sum->index];
        CgValue *result = &cg->value[v->id];
        Val *parts = result->e;
        result->e = ARENA_ARRAY(cg->arena, Val, result->n);
        for (int e = 0; e < result->n; e++) result->e[e] = nv_whole(cg, v, parts[e]);
        int axis, layout = reduced_by(cg, sum->tile, &axis);
        cg_across_warps(cg, layout, axis, EX_ROWSUM, v);
        cg->value[loop->op->args.data[sum->index]->id] = sum->start;
    }
}
