// copies.c: what the copies of a role that fills its own buffers wait for.
//
// In: the body of a kernel's only role, expanded (expand.c): it copies tiles to buffers, each as a group of
// its own, and views them. A buffer's tiles are viewed in the order in which they were copied. Out: commits,
// waits and barriers, no more than
//
// * what is read was waited for, and all threads know it. Groups land in order: n may be in flight, those
//   committed since, the fewest on any way that leads here. A wait stands as late as it can: where a barrier
//   is needed anyway, or before the first reader;
// * a tile lies where another one lay only behind a barrier that its readers have passed;
// * what all threads make together in shared memory is read behind a barrier, and so made again;
// * where a copy goes through registers (AMD), a tile that a loop does not copy has landed before it, and
//   before the next copy.
//
// Holds afterwards: the interpreter finds each copy waited for (tile_flow.c).
#include "ir/tile_places.h"
#include "ir/tile_shared.h"
#include "passes/schedule/expand.h"

#include <limits.h>
#include <string.h>

enum { LONG_AGO = 1 << 16 };

typedef struct Tile {
    int since;  // groups committed since its own; INT_MAX: it was not copied
    bool there; // waited for, and behind a barrier
    bool read;  // since the last barrier
} Tile;

typedef struct State { // at a place of the kernel
    Tile *tile;        // of each buffer as many as it has stages, the newest first
    int *copied;       // by a buffer's id: tiles so far
    int *seen; // by a buffer's id: of them were viewed; by a view's id: the tile that it shows
} State;

typedef struct Copies {
    TileProgram *p;
    TileKernel *k;
    Arena *scratch;
    int *first, ntiles; // by a buffer's id: its tiles
    int nplaces,
        *place; // by id, of what all threads make: those of one place never live together; -1: its own
    bool puts; // a copy goes through registers
    bool dry;  // nothing is put in
} Copies;

typedef struct Need {
    bool barrier; // because of who reads
    int pending;  // groups that may be in flight; INT_MAX: any
} Need;

static bool any(Need n) { return n.barrier || n.pending < INT_MAX; }

// ---- the state

static State state(const Copies *c, const State *from) {
    size_t tiles = sizeof(Tile) * (size_t)c->ntiles, ids = sizeof(int) * (size_t)c->k->nvalues;
    State s = {arena_alloc(c->scratch, tiles + 1), arena_alloc(c->scratch, ids + 1),
               arena_alloc(c->scratch, ids + 1)};
    memcpy(s.tile, from->tile, tiles);
    memcpy(s.copied, from->copied, ids);
    memcpy(s.seen, from->seen, ids);
    return s;
}

// What a view, or what was made, shows; NULL: it is none, or its place has another tile.
static Tile *shown(const Copies *c, const State *s, const TileValue *v) {
    v = tile_source(v);
    const TileOp *def = v->def;
    if (!def || (def->kind != TILE_VIEW && !tile_makes_shared(def))) return NULL;
    const TileValue *b = tile_makes_shared(def) ? v : def->args.data[0];
    int age = s->copied[b->id] - 1 - s->seen[v->id];
    return age < b->stages ? &s->tile[c->first[b->id] + age] : NULL;
}

static void push(const Copies *c, State *s, const TileValue *buffer, Tile tile) {
    Tile *newest = &s->tile[c->first[buffer->id]];
    memmove(newest + 1, newest, sizeof tile * (size_t)(buffer->stages - 1));
    *newest = tile;
    s->copied[buffer->id]++;
}

static void land(const Copies *c, State *s, int pending) {
    for (int i = 0; i < c->ntiles; i++) s->tile[i].there |= s->tile[i].since >= pending;
}

static void pass_barrier(const Copies *c, State *s, int pending) {
    land(c, s, pending);
    for (int i = 0; i < c->ntiles; i++) s->tile[i].read = false;
}

// ---- what an operation needs, and what it does

static void add(Need *n, const Tile *tile) {
    if (tile->there) return;
    n->barrier |= tile->since == INT_MAX;
    if (tile->since < n->pending) n->pending = tile->since;
}

static void add_place(const Copies *c, const State *s, const TileValue *buffer, Need *n) {
    const Tile *oldest = &s->tile[c->first[buffer->id] + buffer->stages - 1];
    add(n, oldest);
    n->barrier |= oldest->read;
}

// And of all that lie in the same place.
static void add_made(const Copies *c, const State *s, const TileValue *v, Need *n) {
    add_place(c, s, v, n);
    for (int id = 0; id < c->nplaces && c->place[v->id] >= 0; id++) {
        const Tile *tile = &s->tile[c->first[id]];
        if (id == v->id || c->place[id] != c->place[v->id]) continue;
        add(n, tile);
        n->barrier |= tile->read;
    }
}

static Need needs(const Copies *c, const State *s, const TileOp *op) {
    Need n = {false, INT_MAX};
    if (op->kind == TILE_COPY) add_place(c, s, op->args.data[0], &n);
    for (int i = 0; i < op->args.n; i++) {
        const Tile *tile = shown(c, s, op->args.data[i]);
        bool names = op->kind == TILE_BESIDE && tile && tile->since == INT_MAX; // it reads nothing
        if (tile && !names) add(&n, tile);
    }
    for (int i = 0; i < op->results.n && tile_makes_shared(op); i++)
        add_made(c, s, op->results.data[i], &n);
    return n;
}

static void done(const Copies *c, State *s, const TileOp *op) {
    for (int i = 0; i < op->args.n && op->kind != TILE_BESIDE; i++) {
        Tile *tile = shown(c, s, op->args.data[i]);
        if (tile) tile->read = true;
    }
    if (op->kind == TILE_COPY) { // and its commit
        for (int i = 0; i < c->ntiles; i++) s->tile[i].since += s->tile[i].since < LONG_AGO;
        push(c, s, op->args.data[0], (Tile){0, false, false});
    } else if (op->kind == TILE_VIEW) {
        const TileValue *b = op->args.data[0];
        bool comes = s->seen[b->id] < s->copied[b->id];
        s->seen[op->results.data[0]->id] = comes ? s->seen[b->id]++ : s->copied[b->id] - 1;
    }
    for (int i = 0; i < op->results.n && tile_makes_shared(op); i++) {
        const TileValue *v = op->results.data[i];
        push(c, s, v, (Tile){INT_MAX, false, false});
        s->seen[v->id] = s->copied[v->id] - 1;
    }
}

// A barrier is needed before `at`. Who reads behind it, up to the next one, and needs no later group, is
// served here too. In a body without a loop nothing was copied a step before: who needs a later group waits for it alone.
static void put_barrier(Copies *c, TileOp *at, State *s, int pending) {
    State then = state(c, s);
    bool straight = c->k->purpose == PURPOSE_ONE_CHUNK;
    int since = 0; // groups committed behind the barrier
    pass_barrier(c, &then, pending);
    for (const TileOp *op = at; op && !op->body.first; op = op->next) {
        Need n = needs(c, &then, op);
        if (n.barrier || n.pending < since) break;
        if (straight && n.pending - since < pending) break;
        if (n.pending < INT_MAX && n.pending - since < pending) pending = n.pending - since;
        if (!straight) land(c, &then, n.pending);
        done(c, &then, op);
        since += op->kind == TILE_COPY;
    }
    pass_barrier(c, s, pending);
    if (c->dry) return;
    if (pending < INT_MAX) pass_op_before(c->p, at, TILE_WAIT)->pending = pending;
    pass_op_before(c->p, at, TILE_BARRIER);
}

// ---- blocks

static void walk(Copies *c, TileBlock *b, State *s);

static bool merge(const Copies *c, State *s, const State *from) { // whether anything is new
    bool changed = false;
    for (int i = 0; i < c->ntiles; i++) {
        Tile *a = &s->tile[i], b = from->tile[i];
        changed |= b.since < a->since || (a->there && !b.there) || (b.read && !a->read);
        if (b.since < a->since) a->since = b.since;
        a->there &= b.there, a->read |= b.read;
    }
    return changed;
}

static bool is_copied(const TileOp *loop, const TileValue *v) {
    for (const TileOp *op = tile_next(&loop->body, NULL); op; op = tile_next(&loop->body, op))
        if (op->kind == TILE_COPY && op->args.data[0] == v) return true;
    return false;
}

static bool is_buffer(const TileOp *op) { return op->kind == TILE_ALLOC; } // they stand first

static void land_before(Copies *c, TileOp *at, State *s) {
    Need n = {false, INT_MAX};
    const TileOp *loop = at;
    while (loop && !loop->body.first) loop = loop->next;
    for (const TileOp *op = c->k->body.first; is_buffer(op); op = op->next) {
        const TileValue *v = op->results.data[0];
        for (int t = 0; t < v->stages && !(loop && is_copied(loop, v)); t++)
            add(&n, &s->tile[c->first[v->id] + t]);
    }
    if (any(n)) put_barrier(c, at, s, n.pending);
}

// From op on, in the order of the text; within loops, too.
static const TileOp *first_use(const TileOp *op, const TileValue *v) {
    while (op && !tile_uses(op, v)) op = op->next;
    return op && op->body.first ? first_use(op->body.first, v) : op;
}

// Whether op begins with another tile than what was copied before: outside of the loop behind, or in it for the step that reads it.
static bool begins_anew(const TileOp *op, const TileBlock *outer, const TileValue *v) {
    if (op->kind != TILE_COPY || op->block == outer) return op->kind == TILE_COPY;
    const TileOp *view = first_use(op->next, v);
    return view && view->kind == TILE_VIEW && view->stage == op->stage;
}

// What was copied ahead of a step that does not come is nobody's: nothing sees it before the next copy, which
// begins with any stage.
static void forget(const Copies *c, const TileOp *loop, State *s) {
    for (const TileOp *op = c->k->body.first; is_buffer(op); op = op->next) {
        const TileValue *v = op->results.data[0];
        const TileOp *next = first_use(loop->next, v);
        if (!is_copied(loop, v) || (next && !begins_anew(next, loop->block, v))) continue;
        Tile *tile = &s->tile[c->first[v->id]];
        for (int t = 0; t < v->stages; t++) {
            tile[t].there |= t < s->copied[v->id] - s->seen[v->id];
            tile[v->stages - 1].read |= tile[t].read;
        }
        s->seen[v->id] = s->copied[v->id];
    }
}

// A step begins as the loop does, or as the step before left things.
static void go_round(Copies *c, TileOp *loop, State *s) {
    Copies trial = *c;
    trial.dry = true;
    State at;
    do {
        at = state(c, s);
        walk(&trial, &loop->body, &at);
    } while (merge(c, s, &at));
    at = state(c, s);
    if (!c->dry) walk(c, &loop->body, &at);
    forget(c, loop, s);
}

static void walk(Copies *c, TileBlock *b, State *s) {
    for (TileOp *op = b->first, *next; op; op = next) {
        next = op->next;
        bool copies = op->kind == TILE_COPY;
        if (c->puts && (op->body.first || (copies && b == &c->k->body))) land_before(c, op, s);
        Need n = needs(c, s, op);
        if (any(n)) put_barrier(c, op, s, n.pending);
        done(c, s, op);
        if (op->body.first) go_round(c, op, s);
        if (!copies || c->dry) continue;
        pass_op_before(c->p, op, TILE_COMMIT);
        pass_move_before(op->prev, op); // it stands behind
    }
}

void pass_wait_copies(TileProgram *p, TileKernel *k) {
    bool puts = target_get(p->target)->kind == KIND_AMDGPU;
    Copies c = {.p = p, .k = k, .scratch = arena_new(), .puts = puts};
    c.first = ARENA_ARRAY(c.scratch, int, k->nvalues + 1);
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; i < op->results.n && (is_buffer(op) || tile_makes_shared(op)); i++) {
            c.first[op->results.data[i]->id] = c.ntiles;
            c.ntiles += op->results.data[i]->stages;
        }
    c.nplaces = k->nvalues;
    c.place = ARENA_ARRAY(c.scratch, int, k->nvalues + 1);
    tile_places(k, c.place);
    State s = {ARENA_ARRAY(c.scratch, Tile, c.ntiles + 1), ARENA_ARRAY(c.scratch, int, k->nvalues),
               ARENA_ARRAY(c.scratch, int, k->nvalues)};
    for (int i = 0; i < c.ntiles; i++) s.tile[i] = (Tile){INT_MAX, true, false};
    walk(&c, &k->body, &s);
    arena_free(c.scratch);
}
