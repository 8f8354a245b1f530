// tile_verify_roles.c: the rules of kernels of roles, as far as the order of the text tells; the
// rest is the interpreter's (tile_flow.c).
//
// In: the current op, of a verifier that goes through a kernel. Out: whether it keeps the rules.
// Holds afterwards: roles stand last and are not nested; a pipe has one role that fills it, always in one way, and
// others that take, or also itself what it gives; what stands behind a `next` has one before it in its block.
#include "ir/tile_verify.h"

#include <string.h>

enum { MAX_WARPGROUPS = 4, MAX_REGISTERS = 248, MAX_BITS = 126 };

bool verify_pipe(Verify *V) {
    return (!V->depth && !V->role) || verify_fail(V, "a pipe in a loop or a role");
}

static bool check_when(Verify *V) {
    Scope s = verify_scope(V, "the condition");
    return !V->op->when || verify_ex(V, V->op->when, EX_BOOL, &s);
}

// One role fills a pipe, others take from it, or also itself what it gives: whoever else does is the first that stands wrong.
static bool check_partner(Verify *V, const TileValue *pipe) {
    const TileBlock *b = &V->k->body;
    bool takes = V->op->kind == TILE_TAKE;
    for (const TileOp *op = tile_next(b, NULL); op && op != V->op; op = tile_next(b, op)) {
        bool fills = op->kind == TILE_FILL || op->kind == TILE_GIVE;
        if ((!fills && op->kind != TILE_TAKE) || op->args.data[0] != pipe) continue;
        bool same_role = tile_role_of(op) == V->role;
        if (fills && !takes && !same_role)
            return verify_fail(V, "%%%s is filled by two roles", pipe->name);
        if (fills && !takes && op->kind != V->op->kind)
            return verify_fail(V, "%%%s is filled in two ways", pipe->name);
        bool gives = op->kind == TILE_GIVE || V->op->kind == TILE_GIVE;
        if (fills == takes && same_role && !gives)
            return verify_fail(V, "%%%s is filled and taken from by one role", pipe->name);
    }
    return true;
}

bool verify_fill(Verify *V) {
    const TileValue *b = V->op->args.data[0];
    if (!verify_access(V, b) || !check_when(V)) return false;
    const TileTensor *t = &V->p->tensors.data[V->op->tensor];
    if (b->dtype != t->dtype)
        return verify_fail(V, "%%%s is %s, '%s' is %s", b->name, dtype_name(b->dtype), t->name,
                           dtype_name(t->dtype));
    return check_partner(V, b);
}

// In registers: a matrix of narrow elements for products or of f32 for the same threads of the other role, or numbers of rows.
bool verify_give(Verify *V) {
    const TileValue *b = V->op->args.data[0], *v = V->op->args.data[1];
    bool whole = v->rank == 2 || (v->rank == 1 && v->dtype == DT_F32);
    if (!whole || !verify_same_type(b, v) || v->home != HOME_FRAGMENT)
        return verify_fail(V, "%%%s is no matrix or vector in registers of %%%s's type", v->name,
                           b->name);
    return check_partner(V, b);
}

bool verify_take(Verify *V) {
    const TileValue *b = V->op->args.data[0], *v = V->op->results.data[0];
    if (!verify_same_type(b, v))
        return verify_fail(V, "%%%s is not of %%%s's type", v->name, b->name);
    return check_when(V) && check_partner(V, b);
}

bool verify_drop(Verify *V) {
    const TileValue *v = V->op->args.data[0];
    if (!tile_pipe_of(v)) return verify_fail(V, "%%%s is no view of a pipe's stage", v->name);
    return check_when(V);
}

bool verify_next(Verify *V) {
    const TileOp *owner = V->op->block->owner;
    return owner == V->role || owner->kind == TILE_TILES ||
           verify_fail(V, "it stands in a loop over other things than tiles of the grid");
}

static bool stands_behind_next(const TileOp *op) {
    for (const TileOp *at = op->prev; at; at = at->prev)
        if (at->kind == TILE_NEXT) return true;
    return false;
}

// Behind a `next` of the same block.
bool verify_behind(Verify *V) {
    const TileOp *op = V->op;
    if (op->kind != TILE_MAP && op->kind != TILE_STORE && op->kind != TILE_FILL)
        return verify_fail(V, "it cannot be behind");
    return stands_behind_next(op) ||
           verify_fail(V, "it is behind, but no 'next' stands before it in its block");
}

bool verify_tiles(Verify *V) {
    const TileOp *op = V->op;
    if (op->block->owner != V->role || !V->role)
        return verify_fail(V, "it stands outside roles, or within");
    int nexts = 0;
    for (const TileOp *in = op->body.first; in; in = in->next) nexts += in->kind == TILE_NEXT;
    if (nexts != 1) return verify_fail(V, "its body goes on %d times, not once", nexts);
    return verify_carry_counts(V) && verify_body(V, false) && verify_carry(V);
}

// What is done for all rows together, as in shared memory, cannot be done for some of them.
static bool of_rows_only(const TileBlock *b, int rows, TileHome home) {
    for (const TileOp *op = b->first; op; op = op->next) {
        if (op->kind == TILE_YIELD) continue;
        if (op->kind != TILE_MAP || op->waits) return false;
        for (int i = 0; i < op->results.n; i++) {
            const TileValue *v = op->results.data[i];
            if (!tile_has_axis(v, rows) || v->home != home) return false;
        }
    }
    return true;
}

static bool check_bits(Verify *V, const TileValue *v, int bits) {
    if (v->dtype != DT_F32 || v->rank != 1 || v->axis[0] != tile_grid_axis(V->k))
        return verify_fail(V, "%%%s is not an f32 for each row of the grid", v->name);
    return (bits >= 1 && bits <= MAX_BITS) || verify_fail(V, "a bound of %d bits", bits);
}

static bool is_carried(const TileValue *v) {
    return v->def && v->def->kind == TILE_LOOP && v->def->results.n > 0;
}

bool verify_bound(Verify *V) {
    const TileOp *op = V->op;
    if (!check_bits(V, op->args.data[0], op->bits)) return false;
    if (V->p->scheduled || V->depth)
        return verify_fail(V, "it stands elsewhere than behind an algorithm's loops");
    if (!is_carried(op->args.data[0]))
        return verify_fail(V, "%%%s is not what a loop carries", op->args.data[0]->name);
    const TileBlock *b = &V->k->body;
    for (const TileOp *at = b->first; at != op; at = at->next)
        if (at->kind == TILE_BOUND) return verify_fail(V, "a kernel says twice what is bound");
    return true;
}

bool verify_first(Verify *V) {
    const TileOp *op = V->op;
    int rows = tile_grid_axis(V->k);
    if (!op->first) return true;
    if (op->role && op->kind == TILE_MMA) return !op->when || verify_fail(V, "with a condition");
    if (!V->role || rows < 0) return verify_fail(V, "there are no warpgroups that have some rows");
    if (op->axis < 0 || op->axis >= V->k->naxes) return verify_fail(V, "no such axis");
    const TileAxis *a = &V->k->axes[op->axis];
    if (a->whole || op->axis == rows || op->first % 16 || op->first < 0 || op->first >= a->extent)
        return verify_fail(V, "the first %d of a tile along %s", op->first, a->name);
    Scope s = verify_scope(V, "the condition");
    s.syms |= 1u << SYM_POS;
    s.axes[s.naxes++] = (uint8_t)rows;
    if (!op->when || !verify_ex(V, op->when, EX_BOOL, &s))
        return op->when ? false : verify_fail(V, "without a condition");
    if (op->kind == TILE_AT)
        return of_rows_only(&op->body, rows, HOME_FRAGMENT) ||
               verify_fail(V, "some rows of what is not made for each row by itself");
    return (op->async && tile_has_axis(op->results.data[0], rows) &&
            tile_has_axis(op->args.data[1], op->axis)) ||
           verify_fail(V, "a part of %s in a product without it, or without rows", a->name);
}

static bool check_yielded(Verify *V) {
    const TileOp *op = V->op, *yield = op->body.last;
    if (!yield || yield->kind != TILE_YIELD)
        return verify_fail(V, "its body does not end with yield");
    if (yield->args.n != op->results.n)
        return verify_fail(V, "%d values are yielded for %d results", yield->args.n, op->results.n);
    for (int i = 0; i < op->results.n; i++)
        if (!verify_carried(V, op->results.data[i], yield->args.data[i], "what is yielded"))
            return false;
    return true;
}

bool verify_at(Verify *V) {
    const TileOp *op = V->op;
    Scope index = verify_scope(V, "the tile's index");
    if (!verify_axis(V)) return false;
    if (!verify_ex(V, op->index, EX_I32, &index) || !verify_first(V)) return false;
    return verify_body(V, true) && check_yielded(V);
}

// In a step of a consumer, where nothing of the rows' is in flight (the interpreter looks).
bool verify_redo(Verify *V) {
    const TileOp *op = V->op;
    int rows = tile_grid_axis(V->k), stand = op->args.n - 1 - (op->shift_bits > 0);
    if (op->results.n != stand)
        return verify_fail(V, "%d results, and %d values that stand", op->results.n, stand);
    if (!check_bits(V, op->args.data[0], op->bits)) return false;
    if (op->shift_bits && !check_bits(V, op->args.data[op->args.n - 1], op->shift_bits))
        return false;
    if (!V->role && !op->role) return verify_fail(V, "it stands outside roles");
    TileHome home = V->role ? HOME_FRAGMENT : HOME_ANY;
    for (int i = 0; i < op->results.n; i++) {
        const TileValue *v = op->results.data[i];
        if (!verify_carried(V, v, op->args.data[i + 1], "what stands")) return false;
        if (!tile_has_axis(v, rows) || v->home != home)
            return verify_fail(V, "%%%s has no rows, or not in registers", v->name);
    }
    return verify_body(V, false) && check_yielded(V) &&
           (of_rows_only(&op->body, rows, home) ||
            verify_fail(V, "some rows of what is not made for each row by itself"));
}

// What the roles up to this one ask for, where each says it: a block begins with so many.
static bool verify_registers(Verify *V) {
    int threads = 0, registers = 0;
    if (V->op->next && V->op->next->kind == TILE_ROLE) return true; // the last one is asked
    for (const TileOp *at = V->op; at; at = at->prev) {
        if (at->kind != TILE_ROLE) continue;
        if (!at->registers) return true;
        threads += 128 * at->warpgroups;
        registers += 128 * at->warpgroups * at->registers;
    }
    int has = target_block_registers(threads);
    return registers <= has || verify_fail(V, "roles have %d registers of %d", registers, has);
}

bool verify_role(Verify *V) {
    const TileOp *op = V->op;
    if (V->role || V->depth) return verify_fail(V, "a role in a loop or in a role");
    if (!verify_is_name(op->role)) return verify_fail(V, "a role without a name");
    for (const TileOp *at = op->prev; at; at = at->prev)
        if (at->kind == TILE_ROLE && !strcmp(at->role, op->role))
            return verify_fail(V, "two roles are called %s", op->role);
    if (op->warpgroups < 1 || op->warpgroups > MAX_WARPGROUPS)
        return verify_fail(V, "it has %d warpgroups", op->warpgroups);
    if (op->registers < 0 || op->registers > MAX_REGISTERS || op->registers % 8)
        return verify_fail(V, "it has %d registers a thread", op->registers);
    if (!verify_registers(V)) return false;
    int roles = 1;
    for (const TileOp *at = op->prev; at; at = at->prev) roles += at->kind == TILE_ROLE;
    if (roles > TILE_MAX_ROLES) return verify_fail(V, "there are %d roles before it", roles - 1);
    V->role = op;
    V->roles = true;
    bool ok = verify_body(V, false);
    V->role = NULL;
    return ok;
}
