// tile_verify_places.c: the rules of places (TilePlace), as far as the text tells; the rest is the
// interpreter's, of the roles that they are expanded to.
//
// In: an operation of an assigned kernel, of a verifier that goes through it. Out: whether it keeps the
// rules. Holds afterwards: iteration i of each loop may do an operation of stage s at time i + s, and what
// crosses from one time to the next has one copy, or is a tile in shared memory.
#include "ir/tile_verify.h"

#include <string.h>

enum { MAX_STAGE = 7, MAX_ORDER = 1 << 16 };

static bool is_role(const TileKernel *k, const char *name) {
    for (const TileOp *op = k->body.last; op && op->kind == TILE_ROLE; op = op->prev)
        if (op->role && !strcmp(op->role, name)) return true;
    return false;
}

// All threads fill what they read, and a block has one tile of the grid.
static bool is_only_role(const TileKernel *k) {
    const TileOp *last = k->body.last;
    return last->kind == TILE_ROLE && (!last->prev || last->prev->kind != TILE_ROLE);
}

static bool is_place(TilePlace at) {
    return at.stage >= 0 && at.stage <= MAX_STAGE && at.order >= 0 && at.order <= MAX_ORDER;
}

static bool is_before(const TileOp *a, const TileOp *b) { // of one role and time
    if (a->place.order != b->place.order) return a->place.order < b->place.order;
    for (const TileOp *op = b->prev; op; op = op->prev)
        if (op == a) return true;
    return false;
}

// A use at a distance of so many iterations.
static bool check_distance(Verify *V, const TileValue *v, const TileOp *def, int distance) {
    const TileOp *op = V->op;
    int ahead = op->place.stage + distance - def->place.stage;
    bool crosses = strcmp(def->role, op->role) != 0;
    if (ahead < 0 || (!ahead && !crosses && !is_before(def, op)))
        return verify_fail(V, "%%%s is used before it is made", v->name);
    bool piped =
        v->home == HOME_SHARED && (def->kind == TILE_LOAD || (crosses && def->kind == TILE_MAP));
    if (crosses && !piped)
        return verify_fail(V, "%%%s is another role's, and no tile in shared memory", v->name);
    int copies = ahead + is_before(def, op);
    return !piped || crosses || v->stages >= copies ||
           verify_fail(V, "%%%s has %d stages, and needs %d", v->name, v->stages, copies);
}

static bool check_operand(Verify *V, const TileValue *v) {
    const TileOp *op = V->op, *loop = op->block->owner;
    if (!v->def) return true;
    if (v->def->block == op->block && v->def->role) return check_distance(V, v, v->def, 0);
    if (v->def != loop) return true;
    for (int i = 0; i < loop->carried.n; i++) {
        const TileValue *next = loop->body.last->args.data[i];
        if (loop->carried.data[i] != v || !next->def || next->def->block != op->block) continue;
        if (next->def->role && !check_distance(V, v, next->def, 1)) return false;
    }
    return true;
}

// Whether an operation of its role reads a tile at another time than one before it.
static bool reads_again(const TileOp *at, const TileValue *v) {
    for (const TileOp *op = at->prev; op; op = op->prev)
        for (int i = 0; i < op->args.n; i++)
            if (op->args.data[i] == v && op->role && !strcmp(op->role, at->role) &&
                op->place.stage != at->place.stage)
                return true;
    return false;
}

// One role fills a pipe, for others, each of which reads a tile in one of the times.
static bool check_filled(Verify *V) {
    const TileOp *op = V->op;
    if (op->kind != TILE_LOAD || op->results.data[0]->home != HOME_SHARED) return true;
    const TileBlock *b = &V->k->body;
    for (const TileOp *at = tile_next(b, NULL); at; at = tile_next(b, at)) {
        if (at->kind == TILE_LOAD && at->tensor == op->tensor && at->role &&
            strcmp(at->role, op->role) != 0)
            return verify_fail(V, "'%s' is filled by two roles",
                               V->p->tensors.data[op->tensor].name);
        else if (at->kind == TILE_LOAD && at->tensor == op->tensor &&
                 at->results.data[0]->stages != op->results.data[0]->stages)
            return verify_fail(V, "'%s' has other stages elsewhere",
                               V->p->tensors.data[op->tensor].name);
        for (int i = 0; i < at->args.n; i++)
            if (at->args.data[i] != op->results.data[0] || !at->role)
                continue;
            else if (!strcmp(at->role, op->role) && !is_only_role(V->k))
                return verify_fail(V, "%%%s is read by the role that fills it",
                                   op->results.data[0]->name);
            else if (at->block == op->block && reads_again(at, op->results.data[0]))
                return verify_fail(V, "%%%s is read at two times", op->results.data[0]->name);
    }
    return true;
}

// What is computed may have two stages; what is loaded ahead of it, in shared memory, any.
static bool check_stage(Verify *V) {
    const TileOp *op = V->op;
    bool alone = is_only_role(V->k), tiles = !op->block->owner;
    int all = tile_stage(op->block), most = tiles && alone ? 0 : all ? all : 1;
    if (!is_place(op->place) || op->place.stage > most)
        return verify_fail(V, "it is of stage %d: there are 0 to %d", op->place.stage, most);
    return op->place.stage >= all || op->results.data[0]->home == HOME_SHARED ||
           verify_fail(V, "it is loaded ahead, and not in shared memory");
}

// The copy of a first step stands in the body around the loop, of a last one's only what is loaded.
static bool check_peeled(Verify *V) {
    const TileOp *op = V->op;
    if (!op->peels) return true;
    if (!is_place(op->peeled)) return verify_fail(V, "the copy of a step is nowhere");
    if (!op->block->owner) return verify_fail(V, "a copy of a step outside loops");
    int all = tile_stage(op->block);
    bool ahead = op->place.stage < all && !op->peeled.stage;
    if (all ? !ahead
            : op->peeled.stage != op->place.stage || (op->place.stage && op->kind != TILE_LOAD))
        return verify_fail(V, "the copy of a step is of another tile than the step");
    return op->kind == TILE_LOAD || op->kind == TILE_MMA ||
           verify_fail(V, "only what is loaded or multiplied is copied");
}

// The next operation of a body, from `op` on, of another stage than all or with a copy.
static const TileOp *staged(const TileOp *op) {
    while (op && (!op->role || op->place.stage == tile_stage(op->block)) && !op->peels)
        op = op->next;
    return op;
}

static bool continues(const TileOp *loop) {
    const TileOp *before = loop->prev;
    if (!before || before->kind != TILE_LOOP || before->results.n != loop->args.n) return false;
    for (int i = 0; i < loop->args.n; i++)
        if (loop->args.data[i] != before->results.data[i]) return false;
    return true;
}

// Loops that follow each other are one: what the first step's copies and stage 1 do is the same in all.
static bool check_chain(Verify *V) {
    const TileOp *loop = V->op;
    if (!continues(loop)) return true;
    const TileOp *a = staged(loop->prev->body.first), *b = staged(loop->body.first);
    for (; a && b; a = staged(a->next), b = staged(b->next)) {
        bool alike = a->kind == b->kind && a->args.n == b->args.n && a->peels == b->peels &&
                     a->role && b->role && !strcmp(a->role, b->role);
        if (!alike || memcmp(&a->place, &b->place, sizeof a->place) != 0 ||
            memcmp(&a->peeled, &b->peeled, sizeof a->peeled) != 0)
            break;
    }
    return (!a && !b) || verify_fail(V, "its step has other stages than that of the loop before");
}

// What is done one step behind is the same for all tiles of the loop.
static bool check_behind(Verify *V) {
    const TileOp *op = V->op, *loop = op->block->owner;
    for (int i = 0; loop && op->place.stage > tile_stage(op->block) && i < op->outs.n; i++) {
        const Ex *e = op->outs.data[i].body;
        if (ex_uses(e, SYM_POS, loop->axis) || ex_uses(e, SYM_TILE, loop->axis) ||
            ex_uses(e, SYM_STEP, -1) || ex_uses(e, SYM_MASK, -1))
            return verify_fail(V, "it is done one step behind, and depends on the tile");
    }
    return true;
}

// The roles have no bodies yet: what no role does would be lost.
static bool is_assigned(const Verify *V) {
    const TileOp *last = V->k->body.last;
    return !V->p->scheduled && !V->role && last->kind == TILE_ROLE && !last->body.first;
}

bool verify_place(Verify *V) {
    const TileOp *op = V->op, *owner = op->block->owner;
    if (op->kind == TILE_LOOP) return check_chain(V);
    if (op->kind == TILE_ROLE || op->kind == TILE_YIELD) return true;
    if (!op->role)
        return !is_assigned(V) || (owner && owner->kind == TILE_REDO) ||
               verify_fail(V, "no role does it");
    if (V->p->scheduled || V->role)
        return verify_fail(V, "it has a place, and the program is scheduled");
    if (!is_role(V->k, op->role)) return verify_fail(V, "no role is called %s", op->role);
    if (!check_stage(V)) return false;
    for (int i = 0; i < op->args.n; i++)
        if (!check_operand(V, op->args.data[i])) return false;
    return check_filled(V) && check_peeled(V) && check_behind(V);
}
