// tile_parts.c: see tile_parts.h.
//
// In: an op whose operands and results are marked. Out: whether the marks go together. An
// expression is worked out on how the threads' values add up.
#include "ir/tile_parts.h"

typedef enum Part {
    WHOLE,
    ZERO,
    PART,
    NEITHER
} Part; // of an expression: how the threads' values add up

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

static Part part_of(const TileOp *op, const Ex *e) {
    if (e->op == EX_CONST) return e->type == EX_F32 && e->f == 0 ? ZERO : WHOLE;
    if (e->op == EX_SYM)
        return e->sym == SYM_PARAM && op->args.data[e->index]->parts ? PART : WHOLE;
    Part a[3] = {WHOLE, WHOLE, WHOLE};
    for (int i = 0; i < e->nargs && i < 3; i++) a[i] = part_of(op, e->args[i]);
    switch ((int)e->op) {
    case EX_ADD:
    case EX_SUB: return sum_of(a[0], a[1]);
    case EX_NEG: return a[0];
    case EX_MUL: return product_of(a[0], a[1]);
    case EX_FMA: return sum_of(product_of(a[0], a[1]), a[2]);
    case EX_SELECT: return a[0] == WHOLE ? sum_of(a[1], a[2]) : NEITHER;
    default: break;
    }
    for (int i = 0; i < e->nargs && i < 3; i++)
        if (a[i] == PART || a[i] == NEITHER) return NEITHER;
    return WHOLE;
}

static bool uses_parts(const TileOp *op, const Ex *e) {
    for (int i = 0; i < op->args.n; i++)
        if (op->args.data[i]->parts && ex_uses(e, SYM_PARAM, i)) return true;
    return false;
}

bool tile_takes_parts(const TileOp *op) {
    if (op->kind == TILE_REDO) return true;
    if (op->kind != TILE_MAP) return false;
    for (int i = 0; i < op->outs.n; i++) {
        const TileResult *out = &op->outs.data[i];
        if (!uses_parts(op, out->body)) continue;
        if (out->reduce != EX_CONST || !op->results.data[i]->parts) return false;
        if (part_of(op, out->body) != PART) return false;
    }
    return true;
}

bool tile_first_has_all(const TileOp *map, int result) {
    const TileResult *out = &map->outs.data[result];
    bool same = out->body->op == EX_SYM && out->body->sym == SYM_PARAM;
    return same && out->reduce == EX_CONST && !map->args.data[out->body->index]->parts;
}

static bool may_be_in_parts(const TileOp *map, int result) {
    const TileResult *out = &map->outs.data[result];
    if (out->reduce != EX_CONST) return out->reduce == EX_ROWSUM && !out->scan;
    Part p = part_of(map, out->body);
    return p == ZERO || tile_first_has_all(map, result) || (p == PART && tile_takes_parts(map));
}

static bool differ(TileValue *a, TileValue *b, TileValue *out[2]) {
    out[0] = a, out[1] = b;
    return a->parts != b->parts;
}

static bool result_conflict(const TileOp *op, int i, TileValue *out[2]) {
    TileValue *v = op->results.data[i];
    switch ((int)op->kind) {
    case TILE_LOOP:
    case TILE_TILES: return differ(v, op->carried.data[i], out);
    case TILE_AT: return differ(v, op->body.last->args.data[i], out);
    case TILE_REDO:
        return differ(v, op->args.data[i + 1], out) || differ(v, op->body.last->args.data[i], out);
    default:
        out[0] = out[1] = v;
        return v->parts && op->kind != TILE_LOAD &&
               !(op->kind == TILE_MAP && may_be_in_parts(op, i));
    }
}

bool tile_parts_conflict(const TileOp *op, TileValue *out[2]) {
    for (int i = 0; i < op->results.n; i++)
        if (result_conflict(op, i, out)) return true;
    for (int i = 0; i < op->carried.n; i++)
        if (differ(op->carried.data[i], op->args.data[i], out) ||
            differ(op->carried.data[i], op->body.last->args.data[i], out))
            return true;
    return false;
}
