// sm90_tiles.c: which tiles of the grid a block has, and what the grid's symbols mean.
//
// In: TILE_NEXT and TILE_TILES. Out: the tile, decided by the producer and read by the others
// through shared memory (a ring of HOME_AHEAD tiles with two barriers each). Numbers of tiles are
// the grid's (grid.c).
#include "codegen/nvptx/sm90.h"

#include <assert.h>
#include <string.h>

static Val get(Cg *cg, Val variable) { return cg_load(cg, cg->i32, variable); }
static void set(Cg *cg, Val variable, Val v) { cg_store(cg, v, variable); }

// ---- the grid

// Past the last number: the first point, and not valid.
static Nv90Point point_of(Cg *cg, const CgGrid *g, Val number) {
    Nv90Point p = {{NULL}, cg_icmp(cg, LLVMIntULT, number, nv90_state(cg)->total)};
    Val first = cg_select(cg, p.valid, number, cg_i32(cg, 0));
    cg_grid_point(cg, g, first, p.at);
    if (g->of_rows) cg_grid_own(cg, g, nv90_state(cg)->rank, p.at);
    return p;
}

// ---- what the symbols mean

static Nv90Point point_now(Cg *cg) {
    Nv90Point p = {.valid = cg->valid};
    cg_grid_here(cg, p.at);
    return p;
}

static void stand(Cg *cg, Nv90Point p) {
    cg_grid_stand(cg, p.at);
    cg->valid = p.valid;
    if (cg->p->batch) cg_meet_sequence(cg);
}

static void store_point(Cg *cg, Nv90Point p) {
    const Nv90 *h = nv90_state(cg);
    for (int i = 0; i < cg->k->ngrid; i++) set(cg, h->now.at[i], p.at[i]);
    cg_store(cg, p.valid, h->now.valid);
}

static Nv90Point load_point(Cg *cg) {
    const Nv90 *h = nv90_state(cg);
    Nv90Point p;
    for (int i = 0; i < cg->k->ngrid; i++) p.at[i] = get(cg, h->now.at[i]);
    p.valid = cg_load(cg, cg->i1, h->now.valid);
    return p;
}

void nv90_behind(Cg *cg, const TileOp *op, void (*lower)(Cg *cg, const TileOp *op)) {
    Nv90Point now = point_now(cg);
    stand(cg, nv90_state(cg)->behind);
    lower(cg, op);
    stand(cg, now);
}

// ---- next

static bool is_producer(const Nv90 *h) { return !strcmp(h->role->role, "producer"); }

// Of blocks, those of a cluster count as one.
static Val clusters(Cg *cg, const char *what) {
    Val n = nv_special(cg, what);
    int blocks = nv90_state(cg)->blocks;
    return blocks > 1 ? cg_udiv(cg, n, cg_i32(cg, blocks)) : n;
}

void nv90_tiles_begin(Cg *cg) {
    Nv90 *h = nv90_state(cg);
    int n = cg->k->ngrid;
    for (int i = 0; i < n + 2; i++) {
        Val *word = i < n ? &h->now.at[i] : i == n ? &h->turn : &h->ahead;
        *word = cg_alloca(cg, cg->i32, "tile");
        set(cg, *word, cg_i32(cg, 0));
    }
    h->now.valid = cg_alloca(cg, cg->i1, "valid");
    cg_store(cg, LLVMConstNull(cg->i1), h->now.valid);
    if (is_producer(h)) {
        CgGrid g = cg_grid(cg);
        h->total = g.each ? cg_grid_total(cg, &g) : NULL;
        set(cg, h->ahead, clusters(cg, "ctaid.x"));
    }
    stand(cg, load_point(cg));
}

static Val counter(Cg *cg) {
    for (int slot = 0; slot < cg->args.n; slot++)
        if (cg->args.data[slot].kind == CG_ARG_COUNTER) return LLVMGetParam(cg->fn, (unsigned)slot);
    assert(!"a counter among the arguments");
    return NULL;
}

// ---- clusters: the first block asks for all, and tells the other's producer in a ring of answers.
// Consumers that heard of a tile were through with the one before, which took copies of both blocks:
// when a tile is asked for, that of HOME_ANSWERS tiles before has been read.

static Val is_first(Cg *cg) { return cg_is(cg, nv90_state(cg)->rank, 0); }

static Val answer_place(Cg *cg, Val turn, int ring, int bytes) {
    Val i = cg_and(cg, turn, cg_i32(cg, HOME_ANSWERS - 1));
    return cg_add(cg, nv90_shared(cg, ring), cg_times(cg, i, bytes));
}

// To the other block, the number of the tile that begins.
static void answer(Cg *cg, Val turn, Val number) {
    const Nv90 *h = nv90_state(cg);
    Val other = cg_i32(cg, 1);
    nv90_remote_tell(cg, nv90_remote(cg, answer_place(cg, turn, h->answers, 4), other), number,
                     nv90_remote(cg, answer_place(cg, turn, h->asked, 8), other));
}

static Val await_answer(Cg *cg, Val turn) {
    const Nv90 *h = nv90_state(cg);
    Val round = cg_udiv(cg, turn, cg_i32(cg, HOME_ANSWERS));
    // The ring's first place is not used in the first round: the first tile is not asked for.
    Val place = cg_and(cg, turn, cg_i32(cg, HOME_ANSWERS - 1));
    Val late = cg_zext(cg, cg_is(cg, place, 0), cg->i32);
    Val parity = cg_and(cg, cg_sub(cg, round, late), cg_i32(cg, 1));
    nv90_remote_wait(cg, answer_place(cg, turn, h->asked, 8), parity);
    Val number = cg_load(cg, cg->i32, nv_shared_ptr(cg, answer_place(cg, turn, h->answers, 4)));
    LLVMSetVolatile(number, true);
    return number;
}

// Asked once behind every tile of the grid, the counter is 0 again when all are done.
static Val ask(Cg *cg, Val n) {
    Val before = nv90_count_up(cg, counter(cg), cg_sub(cg, n, cg_i32(cg, 1)));
    const Nv90 *h = nv90_state(cg);
    return cg_add(cg, h->takers ? h->takers : clusters(cg, "nctaid.x"), before);
}

static void ask_in_cluster(Cg *cg, Val n) {
    const Nv90 *h = nv90_state(cg);
    Val turn = cg_sub(cg, get(cg, h->turn), cg_i32(cg, 1)); // which has counted this tile
    Blk first = cg_block(cg, "ask"), other = cg_block(cg, "answer"), on = cg_block(cg, "asked");
    cg_branch(cg, is_first(cg), first, other);
    Val number = ask(cg, n);
    set(cg, h->ahead, number);
    answer(cg, turn, number);
    cg_br(cg, on);
    cg_at(cg, other);
    set(cg, h->ahead, await_answer(cg, turn));
    cg_enter(cg, on);
}

// The number of the tile that begins, behind another. Whoever asked earlier would have the next tile
// while it is at a long one, and others end idle. The producer is two steps ahead: that is longer
// than an answer takes.
static void next_number(Cg *cg, Val n) {
    const Nv90 *h = nv90_state(cg);
    TilePersist persist = cg->k->schedule.persist;
    if (persist == PERSIST_DYNAMIC && h->rank)
        ask_in_cluster(cg, n);
    else if (persist == PERSIST_DYNAMIC)
        set(cg, h->ahead, ask(cg, n));
    else
        set(cg, h->ahead,
            persist == PERSIST_NONE ? n : cg_add(cg, get(cg, h->ahead), clusters(cg, "nctaid.x")));
}

typedef struct Slot {      // of the ring of tiles, for the one that begins
    Val tile, told, heard; // addresses
    Val parity;            // of `told`; `heard` is one round behind
} Slot;

static Slot next_slot(Cg *cg) {
    const Nv90 *h = nv90_state(cg);
    Val turn = get(cg, h->turn);
    Val i = cg_and(cg, turn, cg_i32(cg, HOME_AHEAD - 1));
    Val round = cg_udiv(cg, turn, cg_i32(cg, HOME_AHEAD));
    set(cg, h->turn, cg_plus(cg, turn, 1));
    Val by8 = cg_times(cg, i, 8), by16 = cg_times(cg, i, 16);
    return (Slot){cg_add(cg, nv90_shared(cg, h->numbers), by16),
                  cg_add(cg, nv90_shared(cg, h->told), by8),
                  cg_add(cg, nv90_shared(cg, h->heard), by8), cg_and(cg, round, cg_i32(cg, 1))};
}

// A tile in shared memory is four words: whether it is valid, and three numbers; a fourth one shares the
// first.
enum { WORDS = 4 };

static Nv90Point tell(Cg *cg, Slot s, bool behind) {
    Nv90 *h = nv90_state(cg);
    int n = cg->k->ngrid;
    assert(n <= WORDS);
    CgGrid g = cg_grid(cg);
    if (!g.each) h->total = cg_grid_total(cg, &g);
    // A sequence is looked for by a warp, of which one thread asks and tells.
    assert((!g.each || h->all_produce) && "a producer of one thread has no warp");
    Blk asked = g.each && behind ? cg_if(cg, h->lead, "asks") : NULL;
    if (behind) next_number(cg, h->total);
    if (asked) cg_enter(cg, asked);
    Val number = get(cg, h->ahead);
    if (g.each) number = nv_shuffle_from(cg, number, cg_i32(cg, 0));
    Nv90Point p = point_of(cg, &g, number);
    Blk told = g.each ? cg_if(cg, h->lead, "tells") : NULL;
    nv90_barrier_wait(cg, s.heard, cg_xor(cg, s.parity, cg_i32(cg, 1)));
    Val last = n == WORDS ? cg_shl(cg, p.at[n - 1], cg_i32(cg, 1)) : NULL;
    Val words[WORDS] = {nv90_if(cg, p.valid)};
    if (last) words[0] = cg_or(cg, words[0], last);
    for (int i = 1; i < WORDS; i++) words[i] = i <= n ? p.at[i - 1] : cg_i32(cg, 0);
    nv90_store_words(cg, s.tile, words);
    nv90_barrier_arrive(cg, s.told, NULL);
    if (told) cg_enter(cg, told);
    return p;
}

// Every thread says so itself: one of its warp, behind a synchronization, would speak for reads that
// are not ordered before it, since ptxas leaves a warp's synchronization out. It takes no longer.
static Nv90Point hear(Cg *cg, Slot s) {
    Val words[WORDS];
    nv90_barrier_wait(cg, s.told, s.parity);
    nv90_load_words(cg, s.tile, words);
    nv90_barrier_arrive(cg, s.heard, NULL);
    Nv90Point p = {.valid = cg_trunc(cg, words[0], cg->i1)};
    for (int i = 0; i < cg->k->ngrid; i++)
        p.at[i] = i + 1 < WORDS ? words[i + 1] : cg_lshr(cg, words[0], cg_i32(cg, 1));
    return p;
}

// The divisions are the producer's: it is ahead.
void nv90_next(Cg *cg, const TileOp *op) {
    bool behind = op->block->owner->kind == TILE_TILES; // a tile; the others begin
    Nv90 *h = nv90_state(cg);
    if (behind) nv90_tile_is_summed(cg);
    h->behind = point_now(cg);
    Slot s = next_slot(cg);
    Val first = tile_counts_own(cg->k) ? cg_is(cg, nv_state(cg)->warp, 0) : h->lead;
    Blk told = is_producer(h) && h->all_produce ? cg_if(cg, first, "tell") : NULL;
    Nv90Point p;
    if (is_producer(h)) p = tell(cg, s, behind);
    if (told) cg_enter(cg, told);
    if (told || !is_producer(h)) p = hear(cg, s);
    store_point(cg, p);
    stand(cg, p);
}

// ---- tiles: a loop whose carried values are variables until mem2reg

typedef struct Carried {
    Val *variable; // by element
    int n;
} Carried;

static Carried *carry(Cg *cg, const TileOp *op) {
    Carried *c = ARENA_ARRAY(cg->arena, Carried, op->carried.n + 1);
    for (int i = 0; i < op->carried.n; i++) {
        const CgValue *init = &cg->value[op->args.data[i]->id];
        assert(init->n > 0 && "what is carried is in registers");
        c[i] = (Carried){ARENA_ARRAY(cg->arena, Val, init->n), init->n};
        for (int e = 0; e < init->n; e++) {
            c[i].variable[e] = cg_alloca(cg, LLVMTypeOf(init->e[e]), "carried");
            cg_store(cg, init->e[e], c[i].variable[e]);
        }
    }
    return c;
}

static void load_carried(Cg *cg, const Carried *c, const TileValue *v) {
    CgValue *to = &cg->value[v->id];
    *to = (CgValue){ARENA_ARRAY(cg->arena, Val, c->n), c->n, NULL};
    for (int e = 0; e < c->n; e++)
        to->e[e] = cg_load(cg, LLVMGetAllocatedType(c->variable[e]), c->variable[e]);
}

void nv90_tiles(Cg *cg, const TileOp *op) {
    Blk head = cg_block(cg, "tiles"), body = cg_block(cg, "tile"), exit = cg_block(cg, "tiles.end");
    Carried *c = carry(cg, op);
    cg_enter(cg, head);
    stand(cg, load_point(cg));
    for (int i = 0; i < op->carried.n; i++) load_carried(cg, &c[i], op->carried.data[i]);
    cg_branch(cg, cg->valid, body, exit);
    cg_lower_block(cg, &op->body, NULL);
    const TileOp *yield = op->body.last;
    for (int i = 0; i < op->carried.n; i++) {
        const CgValue *v = &cg->value[yield->args.data[i]->id];
        assert(v->n == c[i].n);
        for (int e = 0; e < v->n; e++) cg_store(cg, v->e[e], c[i].variable[e]);
    }
    cg_br(cg, head);
    cg_go_on(cg, exit);
    stand(cg, load_point(cg));
    for (int i = 0; i < op->results.n; i++)
        cg->value[op->results.data[i]->id] = cg->value[op->carried.data[i]->id];
}
