// Places and what they are expanded to: tests/tile/assigned*.tile; and the first three with places, orders and depths of pipes
// changed one at a time, and, expanded, with what it waits for taken away.
#include "passes/schedule/expand.h"
#include "tests/support/random.h"
#include "tests/unit/tile_util.h"

enum { MOST_KEYS = 17, TILES = 3, QUERIES = 4 * TILES };

static const char ring[] = "tests/tile/assigned_ring.tile";
static const char *const files[] = {"tests/tile/assigned.tile", "tests/tile/assigned_one.tile",
                                    ring, "tests/tile/assigned_two.tile",
                                    "tests/tile/assigned_twice.tile"};
enum { CHANGED = 3 }; // so many of them are

static bool is_valid(Arena *a, const TileProgram *p) {
    Diags diags = diag_list(a);
    return tile_verify(p, &diags);
}

static void expand(TileProgram *p) {
    TileKernel *k = p->kernels.data[0];
    pass_expand(p, k);
    if (k->body.last->kind == TILE_ROLE)
        k->schedule.persist = PERSIST_STATIC; // one block has all tiles
    p->scheduled = true;
}

static TileData *run(Arena *a, const TileProgram *p, int keys, bool *good) {
    int32_t z[SIZE_FREE] = {0};
    z[SIZE_B] = z[SIZE_HKV] = z[SIZE_HQ] = 1;
    z[SIZE_SQ] = QUERIES;
    z[SIZE_SK] = keys;
    z[SIZE_Q_OFFSET] = keys > QUERIES ? keys - QUERIES : 0;
    Diags diags = diag_list(a);
    TileData *d = tile_data_random(a, p, z, 1, 1);
    *good = tile_eval(p, d, true, &diags);
    return d;
}

typedef enum Verdict { RIGHT, REFUSED, WRONG } Verdict;

// Of three tiles, with 0 to 6 steps each; the interpreter stops at what is not waited for, dropped too early
// or not at all, and where nobody can go on. `erased`: without places.
static Verdict verdict(Arena *a, const TileProgram *erased, const TileProgram *p) {
    for (int keys = 0; keys <= MOST_KEYS; keys++) {
        bool good, ran;
        TileData *want = run(a, erased, keys, &good), *got = run(a, p, keys, &ran);
        ck_assert(good);
        if (!ran) return REFUSED;
        if (!(tile_data_distance(erased, want, p, got) < 1e-5)) return WRONG;
    }
    return RIGHT;
}

ARENA_TEST_EACH(an_assignment_is_expanded, 0, sizeof files / sizeof *files) {
    const char *text = tu_file(a, files[_i]);
    TileProgram *p = tu_parse(a, text);
    ck_assert(is_valid(a, p));
    expand(p);
    ck_assert(is_valid(a, p));
    ck_assert_int_eq(verdict(a, tu_parse(a, text), p), RIGHT);
}

// ---- other places

typedef struct Count {
    int by_text, by_run, right;
} Count;

static TileOp *op_at(TileProgram *p, int n) {
    const TileBlock *b = &p->kernels.data[0]->body;
    TileOp *op = tile_next(b, NULL);
    while (op && n--) op = tile_next(b, op);
    return op;
}

// The rules of the text and the run refuse what is wrong: nothing else may come out.
static void judge(Arena *a, const char *text, TileProgram *p, const char *what, int n, Count *c) {
    if (!is_valid(a, p)) {
        c->by_text++;
        return;
    }
    expand(p);
    Verdict v = is_valid(a, p) ? verdict(a, tu_parse(a, text), p) : REFUSED;
    c->by_run += v == REFUSED;
    c->right += v == RIGHT;
    ck_assert_msg(v != WRONG, "%s of operation %d: wrong, and not refused", what, n);
}

static void deepen(TileProgram *p, const TileOp *op) {
    const TileBlock *b = &p->kernels.data[0]->body;
    int stages = 1 + op->results.data[0]->stages % 4;
    for (TileOp *at = tile_next(b, NULL); at; at = tile_next(b, at))
        if (at->kind == TILE_LOAD && at->tensor == op->tensor) at->results.data[0]->stages = stages;
}

static void change(TileProgram *p, TileOp *op, int how) {
    if (how == 0) op->place.stage = !op->place.stage;
    if (how == 1) op->peels = !op->peels;
    if (how == 2) deepen(p, op);
    if (how > 2) op->place.order = how - 3; // before, among or behind the others
}

static Count change_all(int file, int how, const char *what) {
    Arena *a = arena_new();
    const char *text = tu_file(a, files[file]);
    Count c = {0, 0, 0};
    for (int i = 0;; i++) {
        TileProgram *p = tu_parse(a, text);
        TileOp *op = op_at(p, i);
        if (!op) break;
        if (!op->role || op->kind == TILE_ROLE) continue;
        if (how == 2 && op->kind != TILE_LOAD) continue;
        change(p, op, how);
        judge(a, text, p, what, i, &c);
    }
    arena_free(a);
    return c;
}

TEST_EACH(wrong_stages_are_refused, 0, CHANGED) {
    Count c = change_all(_i, 0, "stage");
    ck_assert_int_gt(c.by_text, 8);
}

TEST_EACH(copies_of_steps_may_stand_beside_loops, 0, CHANGED) {
    Count c = change_all(_i, 1, "copy");
    ck_assert_int_gt(c.by_text + c.right, 4);
}

TEST_EACH(pipes_may_be_deeper, 0, CHANGED) {
    Count c = change_all(_i, 2, "depth");
    ck_assert_int_ge(c.right, files[_i] == ring ? 2 : 3);
}

TEST_EACH(wrong_orders_are_refused, 0, CHANGED) {
    Count c = {0, 0, 0};
    for (int order = 0; order < 16; order++) {
        Count n = change_all(_i, 3 + order, "order");
        c.by_text += n.by_text, c.right += n.right;
    }
    ck_assert_int_gt(c.by_text, 40);
    ck_assert_int_gt(c.right, 40);
}

// ---- less waiting

static TileProgram *expanded(Arena *a, const char *text) {
    TileProgram *p = tu_parse(a, text);
    expand(p);
    return p;
}

static bool waits_in_map(const TileOp *op) { return op->kind == TILE_MAP && op->waits; }

// Whatever is taken away is missed.
static void weaken_all(int file, bool (*has)(const TileOp *op), void (*weaken)(TileOp *op),
                       int least) {
    Arena *a = arena_new();
    const char *text = tu_file(a, files[file]);
    int n = 0;
    for (int i = 0;; i++) {
        TileProgram *p = expanded(a, text);
        TileOp *op = op_at(p, i);
        if (!op) break;
        if (!has(op)) continue;
        weaken(op);
        bool refused = !is_valid(a, p) || verdict(a, tu_parse(a, text), p) == REFUSED;
        ck_assert_msg(refused, "%s, operation %d, is not missed", tile_kind_name(op->kind), i);
        n++;
    }
    ck_assert_int_ge(n, least);
    arena_free(a);
}

static bool is_wait(const TileOp *op) { return op->kind == TILE_MMA_WAIT || waits_in_map(op); }
static void wait_less(TileOp *op) { op->pending++; }
static bool is_drop(const TileOp *op) { return op->kind == TILE_DROP; }
static bool is_turn(const TileOp *op) { return op->kind == TILE_TURN; }
static bool is_conditional(const TileOp *op) { // a block has a first tile, not always a next one
    bool next = op->block->owner && op->block->owner->kind == TILE_TILES;
    return next && (op->kind == TILE_TAKE || op->kind == TILE_FILL) && op->when;
}
static void always(TileOp *op) { op->when = NULL; }

TEST_EACH(waits_are_needed, 0, 1) { weaken_all(_i, is_wait, wait_less, 6); }
TEST_EACH(drops_are_needed, 0, 1) { weaken_all(_i, is_drop, tile_unlink, 8); }
TEST_EACH(turns_are_needed, 0, 1) { weaken_all(_i, is_turn, tile_unlink, 6); }
static bool is_barrier(const TileOp *op) { return op->kind == TILE_BARRIER; }
static bool is_copy_wait(const TileOp *op) { return op->kind == TILE_WAIT; }

// A ring waits once a step.
TEST_EACH(waits_for_copies_are_needed, 1, CHANGED) {
    weaken_all(_i, is_copy_wait, wait_less, files[_i] == ring ? 2 : 4);
}
TEST_EACH(barriers_are_needed, 1, CHANGED) { weaken_all(_i, is_barrier, tile_unlink, 4); }
TEST_EACH(conditions_are_needed, 0, 1) { weaken_all(_i, is_conditional, always, 4); }
