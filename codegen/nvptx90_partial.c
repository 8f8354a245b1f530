// nvptx90_partial.c: row sums that stay divided among a quad's threads until somebody needs them.
//
// In: a kernel with roles. Out: for each value whether its elements are partial: the row's number is
// the sum over the four threads of a quad. Such are a map's row sums, and what is linear in them:
//
//     %lt = map .. rowsum of ..      %l1 = map (%l, %c, %lt) { fma(%l, %c, %lt) }
//
// so that a loop which only adds and scales does not shuffle. Holds afterwards: what a loop or a
// block carries on is partial everywhere or nowhere; a use that is not linear gets the whole sum.
#include "codegen/nvptx90.h"

typedef enum Part {
    WHOLE,
    ZERO,
    PART,
    NEITHER
} Part; // of an expression: how the threads' values add up

// ---- one map

static Part sum_of(Part a, Part b) {
    if (a == NEITHER || b == NEITHER) return NEITHER;
    if (a == ZERO) return b;
    if (b == ZERO || a == b) return a;
    return NEITHER;
}

static Part product_of(Part a, Part b) {
    if (a == NEITHER || b == NEITHER || (a == PART && b == PART)) return NEITHER;
    if (a == ZERO || b == ZERO) return ZERO;
    return a == PART || b == PART ? PART : WHOLE;
}

static Part part_of(const bool *partial, const TileOp *op, const Ex *e) {
    if (e->op == EX_CONST) return e->type == EX_F32 && e->f == 0 ? ZERO : WHOLE;
    if (e->op == EX_SYM)
        return e->sym == SYM_PARAM && partial[op->args.data[e->index]->id] ? PART : WHOLE;
    Part a[3] = {WHOLE, WHOLE, WHOLE};
    for (int i = 0; i < e->nargs && i < 3; i++) a[i] = part_of(partial, op, e->args[i]);
    switch ((int)e->op) {
    case EX_ADD:
    case EX_SUB: return sum_of(a[0], a[1]);
    case EX_NEG: return a[0];
    case EX_MUL: return product_of(a[0], a[1]);
    case EX_FMA: return sum_of(product_of(a[0], a[1]), a[2]);
    default: break;
    }
    for (int i = 0; i < e->nargs && i < 3; i++)
        if (a[i] == PART || a[i] == NEITHER) return NEITHER;
    return WHOLE;
}

static bool uses_partial(const bool *partial, const TileOp *op, const Ex *e) {
    for (int i = 0; i < op->args.n; i++)
        if (partial[op->args.data[i]->id] && ex_uses(e, SYM_PARAM, i)) return true;
    return false;
}

// Every result that depends on partial operands is linear in them, and partial itself.
static bool linear(const bool *partial, const TileOp *op) {
    for (int i = 0; i < op->outs.n; i++) {
        const TileResult *out = &op->outs.data[i];
        if (!uses_partial(partial, op, out->body)) continue;
        if (out->reduce != EX_CONST || !partial[op->results.data[i]->id]) return false;
        if (part_of(partial, op, out->body) != PART) return false;
    }
    return true;
}

static bool stays(const bool *partial, const TileOp *op, int result) {
    const TileResult *out = &op->outs.data[result];
    if (out->reduce != EX_CONST) return out->reduce == EX_ROWSUM;
    Part p = part_of(partial, op, out->body);
    return p == ZERO || (p == PART && linear(partial, op));
}

// ---- the kernel: all that could be is taken to be partial, until nothing contradicts

static bool could_be(const Cg *cg, const TileValue *v) {
    return v->rank == 1 && v->axis[0] == nv_state((Cg *)cg)->row_axis && v->dtype == DT_F32 &&
           v->home == HOME_FRAGMENT;
}

static bool clear(bool *partial, const TileValue *v) {
    bool was = partial[v->id];
    partial[v->id] = false;
    return was;
}

static bool same(bool *partial, const TileValue *a, const TileValue *b) {
    if (partial[a->id] == partial[b->id]) return false;
    clear(partial, a);
    clear(partial, b);
    return true;
}

static bool check_op(bool *partial, const TileOp *op) {
    bool changed = false;
    const TileOp *yield = op->body.last;
    for (int i = 0; i < op->results.n; i++) {
        const TileValue *v = op->results.data[i];
        if (op->kind == TILE_MAP) {
            if (partial[v->id] && !stays(partial, op, i)) changed |= clear(partial, v);
        } else if (op->kind == TILE_LOOP || op->kind == TILE_TILES) {
            changed |= same(partial, v, op->carried.data[i]);
        } else if (op->kind == TILE_AT) {
            changed |= same(partial, v, yield->args.data[i]);
        } else {
            changed |= clear(partial, v);
        }
    }
    for (int i = 0; i < op->carried.n; i++) {
        changed |= same(partial, op->carried.data[i], op->args.data[i]);
        changed |= same(partial, op->carried.data[i], yield->args.data[i]);
    }
    return changed;
}

static void candidates(const Cg *cg, bool *partial) {
    const TileBlock *body = &cg->k->body;
    for (const TileOp *op = tile_next(body, NULL); op; op = tile_next(body, op)) {
        for (int i = 0; i < op->results.n; i++)
            partial[op->results.data[i]->id] = could_be(cg, op->results.data[i]);
        for (int i = 0; i < op->carried.n; i++)
            partial[op->carried.data[i]->id] = could_be(cg, op->carried.data[i]);
    }
}

bool *nv90_find_partial(Cg *cg) {
    bool *partial = ARENA_ARRAY(cg->arena, bool, cg->k->nvalues + 1), changed = true;
    const TileBlock *body = &cg->k->body;
    candidates(cg, partial);
    while (changed) {
        changed = false;
        for (const TileOp *op = tile_next(body, NULL); op; op = tile_next(body, op))
            changed |= check_op(partial, op);
    }
    return partial;
}

// ---- uses

static CgValue whole(Cg *cg, const CgValue *v) {
    CgValue sum = {ARENA_ARRAY(cg->arena, Val, v->n), v->n, NULL};
    for (int i = 0; i < v->n; i++) sum.e[i] = nv_across_quad(cg, EX_ROWSUM, v->e[i]);
    return sum;
}

void nv90_with_sums(Cg *cg, const TileOp *op, void (*lower)(Cg *cg, const TileOp *op)) {
    const bool *partial = nv_state(cg)->partial;
    bool any = false;
    for (int i = 0; i < op->args.n; i++) any |= partial[op->args.data[i]->id];
    if (!any || (op->kind == TILE_MAP && linear(partial, op))) {
        lower(cg, op);
        return;
    }
    CgValue *kept = ARENA_ARRAY(cg->arena, CgValue, op->args.n);
    for (int i = 0; i < op->args.n; i++) {
        CgValue *v = &cg->value[op->args.data[i]->id];
        kept[i] = *v;
        if (partial[op->args.data[i]->id]) *v = whole(cg, v);
    }
    lower(cg, op);
    for (int i = op->args.n - 1; i >= 0; i--) cg->value[op->args.data[i]->id] = kept[i];
}
