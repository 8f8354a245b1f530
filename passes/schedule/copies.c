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
#include "passes/schedule/expand.h"

#include <assert.h>
#include <limits.h>

enum { LONG_AGO = 1 << 16 };

typedef struct Tile {
    int since;  // groups committed since its own; INT_MAX: it was not copied
    bool there; // waited for, and behind a barrier
    bool read;  // since the last barrier
} Tile;

typedef struct Buffer {
    const TileValue *v;
    int coming; // copied, and not viewed yet
    Tile *tile; // as many as it has stages, the newest first
} Buffer;

typedef struct View {
    const TileValue *v;
    int buffer, age; // of its tile
} View;

typedef struct State { // at a place of the kernel
    Buffer *buffer;
    View *view;
    int nbuffers, nviews;
} State;

typedef struct Copies {
    TileProgram *p;
    TileKernel *k;
    Arena *scratch;
    bool puts; // a copy goes through registers
    bool dry;  // nothing is put in
} Copies;

typedef struct Need {
    bool barrier; // because of who reads
    int pending;  // groups that may be in flight; INT_MAX: any
} Need;

static const Need nothing = {false, INT_MAX};

static bool any(Need n) { return n.barrier || n.pending < INT_MAX; }

static TileOp *before(Copies *c, TileOp *at, TileKind kind) {
    TileOp *op = tile_op(c->p, c->k, NULL, kind, at->span);
    tile_insert_before(at, op);
    return op;
}

// ---- the state

static bool is_made(const TileOp *op) { // by all threads
    return tile_makes_shared(op);
}

static int buffer_of(const State *s, const TileValue *v) {
    for (int i = 0; i < s->nbuffers; i++)
        if (s->buffer[i].v == v) return i;
    assert(!"a buffer");
    return 0;
}

static State copy_of(const Copies *c, const State *from) {
    State s = *from;
    s.buffer = ARENA_ARRAY(c->scratch, Buffer, s.nbuffers + 1);
    s.view = ARENA_ARRAY(c->scratch, View, c->k->nvalues + 1);
    for (int i = 0; i < s.nviews; i++) s.view[i] = from->view[i];
    for (int i = 0; i < s.nbuffers; i++) {
        int n = from->buffer[i].v->stages;
        s.buffer[i] = from->buffer[i];
        s.buffer[i].tile = ARENA_ARRAY(c->scratch, Tile, n);
        for (int t = 0; t < n; t++) s.buffer[i].tile[t] = from->buffer[i].tile[t];
    }
    return s;
}

// The next tile of a buffer, in the place of its oldest.
static void push(State *s, int buffer, Tile tile) {
    Buffer *b = &s->buffer[buffer];
    for (int i = b->v->stages - 1; i > 0; i--) b->tile[i] = b->tile[i - 1];
    b->tile[0] = tile;
    b->coming++;
    for (int i = 0; i < s->nviews; i++) s->view[i].age += s->view[i].buffer == buffer;
}

static void see(State *s, const TileValue *v, int buffer) {
    Buffer *b = &s->buffer[buffer];
    if (b->coming) b->coming--;
    for (int i = s->nviews; i-- > 0;) // what lies there no more
        if (s->view[i].v == v || s->view[i].age >= s->buffer[s->view[i].buffer].v->stages)
            s->view[i] = s->view[--s->nviews];
    if (b->coming < b->v->stages) s->view[s->nviews++] = (View){v, buffer, b->coming};
}

static Tile *tile_of(const State *s, const TileValue *v) { // that a view, or what was made, shows
    for (int i = 0; i < s->nviews; i++) {
        const Buffer *b = &s->buffer[s->view[i].buffer];
        if (s->view[i].v == v && s->view[i].age < b->v->stages) return &b->tile[s->view[i].age];
    }
    return NULL;
}

static void commit(State *s) {
    for (int i = 0; i < s->nbuffers; i++)
        for (int t = 0; t < s->buffer[i].v->stages; t++)
            if (s->buffer[i].tile[t].since < LONG_AGO) s->buffer[i].tile[t].since++;
}

static void land(State *s, int pending) {
    for (int i = 0; i < s->nbuffers; i++)
        for (int t = 0; t < s->buffer[i].v->stages; t++)
            s->buffer[i].tile[t].there |= s->buffer[i].tile[t].since >= pending;
}

static void pass_barrier(State *s, int pending) {
    land(s, pending);
    for (int i = 0; i < s->nbuffers; i++)
        for (int t = 0; t < s->buffer[i].v->stages; t++) s->buffer[i].tile[t].read = false;
}

// ---- what an operation needs, and what it does

static void add(Need *n, const Tile *tile) {
    if (tile->there) return;
    n->barrier |= tile->since == INT_MAX;
    if (tile->since < n->pending) n->pending = tile->since;
}

static Need needs(const State *s, const TileOp *op) {
    Need n = nothing;
    bool copies = op->kind == TILE_COPY;
    for (int i = 0; i < op->args.n && !copies; i++) {
        const Tile *tile = tile_of(s, op->args.data[i]);
        if (tile) add(&n, tile);
    }
    for (int i = 0; i < op->results.n + copies; i++) {
        if (!copies && !is_made(op)) continue;
        const TileValue *v = copies ? op->args.data[0] : op->results.data[i];
        const Tile *oldest = &s->buffer[buffer_of(s, v)].tile[v->stages - 1];
        add(&n, oldest);
        n.barrier |= oldest->read;
    }
    return n;
}

static void done(State *s, const TileOp *op) {
    if (op->kind == TILE_COPY) {
        push(s, buffer_of(s, op->args.data[0]), (Tile){-1, false, false});
        commit(s);
        return;
    }
    if (op->kind == TILE_VIEW) see(s, op->results.data[0], buffer_of(s, op->args.data[0]));
    for (int i = 0; i < op->args.n; i++) {
        Tile *tile = tile_of(s, op->args.data[i]);
        if (tile) tile->read = true;
    }
    for (int i = 0; i < op->results.n && is_made(op); i++) {
        const TileValue *v = op->results.data[i];
        push(s, buffer_of(s, v), (Tile){INT_MAX, false, false});
        see(s, v, buffer_of(s, v));
    }
}

// A barrier is needed before `at`. Who reads behind it, up to the next one, and needs no later group, is
// served here too.
static int pending_at(const Copies *c, const State *now, const TileOp *at, int pending) {
    State s = copy_of(c, now);
    int since = 0; // groups committed behind the barrier
    pass_barrier(&s, pending);
    for (const TileOp *op = at; op && !op->body.first; op = op->next) {
        Need n = needs(&s, op);
        if (n.barrier || n.pending < since) break;
        if (n.pending < INT_MAX && n.pending - since < pending) pending = n.pending - since;
        land(&s, n.pending);
        done(&s, op);
        since += op->kind == TILE_COPY;
    }
    return pending;
}

static void put_barrier(Copies *c, TileOp *at, State *s, int pending) {
    pending = pending_at(c, s, at, pending);
    pass_barrier(s, pending);
    if (c->dry) return;
    if (pending < INT_MAX) before(c, at, TILE_WAIT)->pending = pending;
    before(c, at, TILE_BARRIER);
}

// ---- blocks

static void walk(Copies *c, TileBlock *b, State *s);

static bool merge(State *s, const State *from) { // whether anything is new
    bool changed = false;
    for (int i = 0; i < s->nbuffers; i++)
        for (int t = 0; t < s->buffer[i].v->stages; t++) {
            Tile *a = &s->buffer[i].tile[t], was = *a;
            const Tile *b = &from->buffer[i].tile[t];
            if (b->since < a->since) a->since = b->since;
            a->there &= b->there, a->read |= b->read;
            changed |= a->since != was.since || a->there != was.there || a->read != was.read;
        }
    return changed;
}

static bool is_copied(const TileOp *loop, const TileValue *v) {
    for (const TileOp *op = tile_next(&loop->body, NULL); op; op = tile_next(&loop->body, op))
        if (op->kind == TILE_COPY && op->args.data[0] == v) return true;
    return false;
}

static void land_before(Copies *c, TileOp *at, State *s) {
    Need n = nothing;
    const TileOp *loop = at;
    while (loop && !loop->body.first) loop = loop->next;
    for (int i = 0; i < s->nbuffers; i++)
        for (int t = 0; t < s->buffer[i].v->stages; t++)
            if (s->buffer[i].tile[t].since < INT_MAX && !(loop && is_copied(loop, s->buffer[i].v)))
                add(&n, &s->buffer[i].tile[t]);
    if (any(n)) put_barrier(c, at, s, n.pending);
}

// What was copied ahead of a step that does not come is nobody's: nothing sees it before the next copy, which
// begins with any stage.
static void forget(const TileOp *loop, State *s) {
    for (int i = 0; i < s->nbuffers; i++) {
        Buffer *b = &s->buffer[i];
        const TileOp *op = loop->next;
        while (op && !pass_uses(op, b->v)) op = op->next;
        if (!is_copied(loop, b->v) || (op && op->kind != TILE_COPY)) continue;
        for (; b->coming; b->coming--) b->tile[b->coming - 1].there = true;
        for (int t = 0; t < b->v->stages; t++) b->tile[b->v->stages - 1].read |= b->tile[t].read;
    }
}

// A step begins as the loop does, or as the step before left things.
static void go_round(Copies *c, TileOp *loop, State *s) {
    Copies trial = *c;
    trial.dry = true;
    State at;
    do {
        at = copy_of(c, s);
        walk(&trial, &loop->body, &at);
    } while (merge(s, &at));
    at = copy_of(c, s);
    if (!c->dry) walk(c, &loop->body, &at);
    forget(loop, s);
}

static void walk(Copies *c, TileBlock *b, State *s) {
    for (TileOp *op = b->first, *next; op; op = next) {
        next = op->next;
        bool copies = op->kind == TILE_COPY;
        if (c->puts && (op->body.first || (copies && b == &c->k->body))) land_before(c, op, s);
        Need n = needs(s, op);
        if (any(n)) put_barrier(c, op, s, n.pending);
        done(s, op);
        if (op->body.first) go_round(c, op, s);
        if (!copies || c->dry) continue;
        before(c, op, TILE_COMMIT);
        pass_move_before(op->prev, op); // it stands behind
    }
}

void pass_wait_copies(TileProgram *p, TileKernel *k) {
    Copies c = {p, k, arena_new(), target_get(p->target)->kind == KIND_AMDGPU, false};
    State s = {.buffer = ARENA_ARRAY(c.scratch, Buffer, k->nvalues + 1),
               .view = ARENA_ARRAY(c.scratch, View, k->nvalues + 1)};
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; i < op->results.n; i++) {
            if (op->kind != TILE_ALLOC && !is_made(op)) continue;
            const TileValue *v = op->results.data[i];
            Tile *tile = ARENA_ARRAY(c.scratch, Tile, v->stages);
            for (int t = 0; t < v->stages; t++) tile[t] = (Tile){INT_MAX, true, false};
            s.buffer[s.nbuffers++] = (Buffer){v, 0, tile};
        }
    walk(&c, &k->body, &s);
    arena_free(c.scratch);
}
