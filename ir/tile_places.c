// tile_places.c: see tile_places.h.
//
// In: a kernel. Out: places, so that at no operation that makes a tile another one of its place lives.
// Operations are counted in reading order. What lives at the end of a loop's body lives at its
// beginning, too.
#include "tile_places.h"
#include "tile_shared.h"

#include <string.h>

typedef struct Life { // of a tile
    const TileValue *v;
    int made;    // by which operation
    bool *lives; // at an operation, by its number
    int place;
} Life;

typedef struct Places {
    Arena *arena;
    VEC(const TileOp *) op; // by number
    VEC(Life) lives;
} Places;

static bool is_placed(const TileOp *op, const TileValue *v) {
    return tile_makes_shared(op) && v->home == HOME_SHARED && v->rank == 2;
}

static int number_of(const Places *s, const TileOp *op) {
    int n = 0;
    while (s->op.data[n] != op) n++;
    return n;
}

static bool is_loop(const TileOp *op) { return op->kind == TILE_LOOP || op->kind == TILE_TILES; }

static int end_of(const Places *s, const TileOp *op) { // behind it and all that is in it
    const TileOp *last = op;
    while (last->body.last) last = last->body.last;
    return number_of(s, last) + 1;
}

// ---- products in flight

typedef struct Flight {
    Places *s;
    const TileOp *role;
    bool *lives;
    int *
        fewest; // products that were begun since, by operation: with which it was reached; -1: not yet
} Flight;

static bool lands(const TileOp *op, int since) {
    bool waits = op->kind == TILE_MMA_WAIT || (op->kind == TILE_MAP && op->waits);
    return waits && since >= op->pending;
}

// From operation `at` on, behind a product since which `since` were begun, until it has landed.
static void fly(const Flight *f, int at, int since) {
    for (; at < f->s->op.n; at++) {
        const TileOp *op = f->s->op.data[at];
        if (tile_role_of(op) != f->role) return;
        bool landed = lands(op, since);
        f->lives[at] |= landed && op->kind == TILE_MAP; // which may not make a tile in its place
        if (landed) return;
        if (f->fewest[at] >= 0 && f->fewest[at] <= since) return;
        f->fewest[at] = since;
        f->lives[at] = true;
        if (op->kind == TILE_MMA && op->async) since++;
        if (op->body.first && op->kind != TILE_AT) fly(f, end_of(f->s, op), since); // not at all
        for (; !op->next && op->block->owner; op = op->block->owner)
            if (is_loop(op->block->owner)) fly(f, number_of(f->s, op->block->owner) + 1, since);
    }
}

// ---- lives

// To a reader; where that is in a loop which the tile is not made in, to the loop's end.
static void live_until(Places *s, Life *l, const TileOp *reader) {
    int last = number_of(s, reader);
    for (const TileBlock *b = reader->block; b != l->v->def->block && b->owner; b = b->owner->block)
        if (is_loop(b->owner)) last = end_of(s, b->owner) - 1;
    for (int i = l->made + 1; i <= last; i++) l->lives[i] = true;
    if (reader->kind != TILE_MMA || !reader->async) return;
    Flight f = {s, tile_role_of(reader), l->lives, ARENA_ARRAY(s->arena, int, s->op.n)};
    for (int i = 0; i < s->op.n; i++) f.fewest[i] = -1;
    fly(&f, number_of(s, reader) + 1, 0);
}

static void live(Places *s, const TileValue *v, int made) {
    Life l = {v, made, ARENA_ARRAY(s->arena, bool, s->op.n), -1};
    for (int i = 0; i < s->op.n; i++)
        for (int a = 0; a < s->op.data[i]->args.n; a++)
            if (tile_source(s->op.data[i]->args.data[a]) == v) live_until(s, &l, s->op.data[i]);
    VEC_PUSH(s->arena, &s->lives, l);
}

static bool together(const Life *a, const Life *b) {
    if (tile_role_of(a->v->def) != tile_role_of(b->v->def)) return true;
    return a->made == b->made || a->lives[b->made] || b->lives[a->made];
}

static bool has_room(const Places *s, int place, const Life *l) {
    for (int i = 0; i < s->lives.n; i++)
        if (s->lives.data[i].place == place && together(&s->lives.data[i], l)) return false;
    return true;
}

// Without roles: where no loop stands between a tile and its readers, and tiles are many or large.
static bool has_places(const TileKernel *k) {
    bool passes = k->purpose == PURPOSE_ONE_CHUNK || k->purpose == PURPOSE_GRADIENTS ||
                  k->schedule.knobs.share;
    return passes || tile_has_roles(k);
}

int tile_places(const TileKernel *k, int *place) {
    int n = 0;
    for (int i = 0; i < k->nvalues; i++) place[i] = -1;
    if (!has_places(k)) return 0;
    Places s = {.arena = arena_new()};
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        VEC_PUSH(s.arena, &s.op, op);
    for (int i = 0; i < s.op.n; i++)
        for (int r = 0; r < s.op.data[i]->results.n; r++) {
            const TileValue *v = s.op.data[i]->results.data[r];
            if (is_placed(s.op.data[i], v)) live(&s, v, i);
        }
    for (int i = 0; i < s.lives.n; i++) {
        Life *l = &s.lives.data[i];
        int at = 0;
        while (!has_room(&s, at, l)) at++;
        place[l->v->id] = l->place = at;
        if (at == n) n++;
    }
    arena_free(s.arena);
    return n;
}
