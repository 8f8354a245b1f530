// split.c: blocks share a sweep over the keys: which steps each part takes, and how many parts
// there are.
//
// In: a program with a part kernel (an axis of its grid whose size is derived at launch). The steps
// [0, total) of a loop are cut into shares of ceil(total / splits). Holds afterwards
// (pass_set_splits): the launch chooses the number of parts. There are as many blocks as the workers
// run at the same time, and a part has at least SPLIT_TILES tiles of keys. If that gives more than
// one part, the plan of the split form is taken.
//
// A kernel for many queries may have parts as well: the last dimension of its grid, `from` a head
// on. How many parts, and which heads have them, are expressions of the steps of its tiles
// (pass_set_parts). Without such expressions, launches with few tiles go to the part kernel
// (pass_free_splits).
#include "passes/tile/rewrite.h"

#include "passes/passes.h"
#include "passes/schedule/schedule.h"
#include "passes/simplify/rules.h"

#include <string.h>

enum {
    SPLIT_TILES = 2,
    MAX_PARTS = 64,   // of a row, which the combination goes through one after the other,
    MANY_PARTS = 256, // or as many where each has LONG_PART / 2 keys
    FEW_ROUNDS = 3,   // of all workers, by tiles of few queries; a part has LONG_PART keys then
    LONG_PART = 2048,
    MOST_KEYS = 2048,    // of a part of a sequence that has a length of its own,
    MOST_BLOCKS = 32,    // of which a worker gets as many at most: most of them may have no part
    MOST_PLACES = 16384, // of rows that may have parts, with all of these, beside long sequences
    MAX_ROUNDS = 8,      // of all workers, of which the last one is split
    PART_STEPS = 2,      // of a part of many queries, at least
    MAX_NODES = 120,     // of an expression that is evaluated for several tiles
};

static int derived_size(const TileProgram *p, const Ex *e) {
    if (e->op != EX_SYM || e->sym != SYM_SIZE) return -1;
    const TileSize *size = &p->sizes.data[e->index];
    return size->def && !size->own ? e->index : -1;
}

// As many parts as a size says; rows are a size of a launch, or made of several.
static const TileGrid *split_grid(const TileProgram *p, const TileKernel *k) {
    for (int i = 0; i < k->ngrid; i++) {
        const TileGrid *g = &k->grid[i];
        bool parts = g->sym == SYM_TILE && k->axes[g->axis].size->op == EX_SYM;
        if (parts && derived_size(p, g->count) >= 0) return g;
    }
    return NULL;
}

int pass_split_axis(const TileProgram *p, const TileKernel *k) {
    const TileGrid *g = split_grid(p, k);
    return g ? g->axis : -1;
}

int pass_split_size(const TileProgram *p, const TileKernel *k) {
    const TileGrid *g = split_grid(p, k);
    return g ? g->count->index : -1;
}

// ---- the sizes

static const Ex *size_of(TileProgram *p, int size) {
    return ex_sym(p->pool, SYM_SIZE, size, EX_I32);
}

static const Ex *heads_of(TileProgram *p) {
    return ex_2(p->pool, EX_MUL, size_of(p, SIZE_B), size_of(p, SIZE_HQ));
}

static const Ex *share_of_parts(TileProgram *p, const Ex *parts) {
    ExPool *x = p->pool;
    const Ex *up = ex_2(x, EX_ADD, parts, ex_i32(x, PASS_WHOLE - 1));
    return ex_simplify(x, ex_2(x, EX_DIV, up, parts));
}

// Queries of a launch, and keys of its parts, up to which their own kernel for parts is the better
// one, where others may be shared as well: each of its blocks of 16 rows reads all keys.
enum { SOME_QUERIES = 64, FEW_KEYS = 256 };

static const Ex *are_few(TileProgram *p, bool share) {
    ExPool *x = p->pool;
    const Ex *parts = size_of(p, p->split.few), *most = ex_i32(x, FEW_KEYS);
    const Ex *split = ex_2(x, EX_LT, ex_i32(x, 1), parts);
    if (!share) return split;
    const Ex *queries = ex_2(x, EX_LE, size_of(p, SIZE_SQ), ex_i32(x, SOME_QUERIES));
    const Ex *keys = ex_2(x, EX_LE, size_of(p, SIZE_SK), ex_2(x, EX_MUL, most, parts));
    return ex_2(x, EX_AND, split, ex_2(x, EX_OR, queries, keys));
}

// One part, until more is known. Launches of few queries have their own kernel for parts, and say so first.
void pass_add_split(TileProgram *p, bool share) {
    ExPool *x = p->pool;
    TileSplit *s = &p->split;
    const Ex *one = ex_i32(x, 1);
    if (p->batch) s->keys = pass_size(p, "part_keys", ex_i32(x, MOST_KEYS));
    s->few = pass_size(p, "splits", one);
    if (!share) return;
    const Ex *few = are_few(p, true);
    s->longest = pass_size(p, "longest", size_of(p, SIZE_SK));
    s->wanted = pass_size(p, "wanted", ex_2(x, EX_MAX, size_of(p, s->longest), one));
    s->parts = pass_size(p, "parts", ex_select(x, few, size_of(p, s->few), one));
    s->share = pass_size(p, "part_share", share_of_parts(p, size_of(p, s->parts)));
    s->whole = pass_size(p, "whole_heads", ex_select(x, few, ex_i32(x, 0), heads_of(p)));
}

// What decides between few and many, of a size that both define.
static const Ex **args_of(const TileProgram *p, int size) {
    const Ex *def = p->sizes.data[size].def;
    return def->op == EX_SELECT ? (const Ex **)def->args : NULL;
}

const Ex *pass_few_are_split(TileProgram *p) {
    return p->split.parts ? args_of(p, p->split.parts)[0] : are_few(p, false);
}

// Of many queries.
static void define(TileProgram *p, int size, const Ex *otherwise) {
    const Ex **args = args_of(p, size);
    p->sizes.data[size].def = ex_select(p->pool, args[0], args[1], ex_simplify(p->pool, otherwise));
}

// ---- steps of a part

// A share of a part, in 1024ths: of the current head, some of which have one part. A size of its own,
// so that tiles need no division.
static const Ex *share_of(TileProgram *p, const TileKernel *k) {
    ExPool *x = p->pool;
    const Ex *from = k->grid[k->ngrid - 1].from, *heads = size_of(p, SIZE_HQ);
    const Ex *head =
        ex_2(x, EX_ADD, ex_2(x, EX_MUL, ex_symbol(x, SYM_B), heads), ex_symbol(x, SYM_H));
    return ex_select(x, ex_2(x, EX_LT, head, from), ex_i32(x, PASS_WHOLE),
                     size_of(p, p->split.share));
}

// Steps [part * share, part * share + share) of shares of ceil(total / parts).
static const Ex *bound_by_steps(TileProgram *p, const Ex *parts, const Ex *total, const Ex *part) {
    ExPool *x = p->pool;
    const Ex *up = simp_2(x, EX_SUB, simp_2(x, EX_ADD, total, parts), ex_i32(x, 1));
    return simp_2(x, EX_MIN, simp_2(x, EX_MUL, part, simp_2(x, EX_DIV, up, parts)), total);
}

// Of a recurrence: those whose positions are the segment's.
static const Ex *bound_by_segment(TileProgram *p, int extent, const Ex *total, const Ex *part) {
    ExPool *x = p->pool;
    const Ex *steps = simp_2(x, EX_DIV, size_of(p, p->split.segment), ex_i32(x, extent));
    return simp_2(x, EX_MIN, simp_2(x, EX_MUL, part, steps), total);
}

// What is of the part alone first: the steps of a tile are known late.
static const Ex *bound_by_share(TileProgram *p, const Ex *share, const Ex *total, const Ex *part) {
    ExPool *x = p->pool;
    const Ex *all = ex_i32(x, PASS_WHOLE);
    const Ex *end = simp_2(x, EX_MIN, simp_2(x, EX_MUL, part, share), all);
    return simp_2(x, EX_SHR, simp_2(x, EX_MUL, total, end), ex_i32(x, PASS_WHOLE_BITS));
}

void pass_share_steps(TileProgram *p, TileKernel *k, TileOp *loop, const Ex *total) {
    ExPool *x = p->pool;
    int axis = pass_split_axis(p, k);
    loop->from = ex_i32(x, 0);
    loop->to = total;
    if (axis < 0) return;
    const Ex *part = ex_sym(x, SYM_TILE, axis, EX_I32);
    const Ex *next = simp_2(x, EX_ADD, part, ex_i32(x, 1));
    if (p->split.segment) {
        int extent = k->axes[loop->axis].extent;
        loop->from = bound_by_segment(p, extent, total, part);
        loop->to = bound_by_segment(p, extent, total, next);
        return;
    }
    bool some = k->grid[k->ngrid - 1].from != NULL;
    const Ex *by = some ? share_of(p, k) : k->axes[axis].size;
    const Ex *(*bound)(TileProgram *, const Ex *, const Ex *, const Ex *) =
        some ? bound_by_share : bound_by_steps;
    loop->from = bound(p, by, total, part);
    loop->to = bound(p, by, total, next);
}

static const Ex *row_tiles(const TileKernel *k) {
    for (int i = 0; i < k->ngrid; i++)
        if (k->grid[i].sym == SYM_TILE) return k->grid[i].count;
    return NULL;
}

static int key_extent(const TileKernel *k) {
    for (const TileOp *op = k->body.first; op; op = op->next)
        if (op->kind == TILE_LOOP) return k->axes[op->axis].extent;
    return 0;
}

// n by the number of tiles, the first three dimensions of the grid: divisions one after the other, since the
// product of the counts might leave i32. By zero is zero, and then one part is enough.
static const Ex *by_tiles(TileProgram *p, const TileKernel *k, const Ex *n) {
    for (int i = 0; i < 3; i++) n = ex_2(p->pool, EX_DIV, n, k->grid[i].count);
    return n;
}

static const Ex *few_queries(TileProgram *p) {
    int own = p->split.few_queries;
    return ex_2(p->pool, EX_LE, size_of(p, own ? own : SIZE_SQ), ex_i32(p->pool, FEW_QUERIES));
}

static const Ex *are_beside(TileProgram *p) { // few beside long ones
    return ex_2(p->pool, EX_LT, ex_i32(p->pool, 0), size_of(p, p->split.beside));
}

// Blocks that run at the same time.
static const Ex *workers_of(TileProgram *p, const TileKernel *k) {
    const Ex *all = ex_symbol(p->pool, SYM_WORKERS);
    if (k->schedule.min_blocks <= 1) return all;
    return ex_2(p->pool, EX_MUL, all, ex_i32(p->pool, k->schedule.min_blocks));
}

static const Ex *over(TileProgram *p, const Ex *n, const Ex *by) { // rounded up
    const Ex *up = ex_2(p->pool, EX_SUB, ex_2(p->pool, EX_ADD, n, by), ex_i32(p->pool, 1));
    return ex_2(p->pool, EX_DIV, up, by);
}

// A part costs less than what it saves where tiles have few rows. Of others whole ones are not left and combined.
static bool is_cheap(const TileKernel *k) {
    return k->axes[tile_grid_axis(k)].extent <= FEW_QUERIES;
}

// Whether n parts of all tiles end an eighth earlier than whole ones. Counts are cut where there are enough rounds anyhow.
static const Ex *pays_rounds(TileProgram *p, const TileKernel *k, const Ex *n) {
    ExPool *x = p->pool;
    const Ex *all = workers_of(p, k), *tiles = ex_i32(x, 1);
    const Ex *most = ex_2(x, EX_MUL, all, ex_i32(x, MAX_ROUNDS));
    for (int i = 0; i < 3; i++)
        tiles =
            ex_2(x, EX_MIN, ex_2(x, EX_MUL, tiles, ex_2(x, EX_MIN, k->grid[i].count, most)), most);
    const Ex *whole = ex_2(x, EX_MUL, over(p, tiles, all), n);
    return ex_2(x, EX_LT, ex_2(x, EX_MUL, over(p, ex_2(x, EX_MUL, tiles, n), all), ex_i32(x, 8)),
                ex_2(x, EX_MUL, whole, ex_i32(x, 7)));
}

// Where tiles of few queries are more than run at once, the launch ends when the last of them do: it has some rounds at least,
// of parts that are long.
static const Ex *for_rounds(TileProgram *p, const TileKernel *k, const Ex *n) {
    ExPool *x = p->pool;
    const Ex *one = ex_i32(x, 1), *keys = size_of(p, SIZE_SK);
    n = ex_2(x, EX_SUB, ex_2(x, EX_MUL, n, ex_i32(x, FEW_ROUNDS)), one);
    n = ex_2(x, EX_MIN, ex_2(x, EX_ADD, by_tiles(p, k, n), one),
             ex_2(x, EX_DIV, keys, ex_i32(x, LONG_PART)));
    const Ex *few = few_queries(p);
    if (!is_cheap(k)) few = ex_2(x, EX_AND, few, pays_rounds(p, k, n));
    return ex_select(x, few, n, one);
}

// ---- sequences with lengths of their own: parts have about as many keys, and each sequence has as many parts as it needs

// Keys of a part, by what a launch knows: a worker's share of all that there may be, but not more than MOST_KEYS, so that the launch
// ends soon after the first worker is idle. Where lengths even the parts, the fewest.
static const Ex *keys_of_part(TileProgram *p, const TileKernel *k, const Ex *room,
                              const Ex *evened) {
    ExPool *x = p->pool;
    const Ex *most = ex_i32(x, is_cheap(k) ? MOST_KEYS : SIZE_LIMIT), *none = ex_i32(x, 0);
    const Ex *least = ex_i32(x, key_extent(k) * SPLIT_TILES);
    const Ex *share = ex_2(x, EX_MIN, ex_2(x, EX_DIV, pass_all_keys(p), room), most);
    share = ex_2(x, EX_MAX, ex_select(x, ex_2(x, EX_LT, none, room), share, most), least);
    return ex_simplify(x, ex_select(x, ex_2(x, EX_LT, none, evened), least, share));
}

// Steps of the keys of all sequences, or of the longest one.
static const Ex *steps_over(TileProgram *p, const TileKernel *k, const char *name, ExOp op,
                            const Ex *among) {
    const Ex *def = p->sizes.data[SIZE_SK].def, *extent = ex_i32(p->pool, key_extent(k));
    def = ex_simplify(p->pool, over(p, def, extent));
    return size_of(p, pass_own_size(p, name, op, among, def));
}

// Steps of a part where kernels know all lengths: so many that all parts run at once, if those are at most twice a worker's share
// (whoever is left alone reads faster); otherwise that share, but at most MOST_KEYS.
static const Ex *even_steps(TileProgram *p, const TileKernel *k, const Ex *room, const Ex *evened) {
    ExPool *x = p->pool;
    const Ex *all = steps_over(p, k, "all_steps", EX_ROWSUM, evened),
             *longest = steps_over(p, k, "longest_steps", EX_ROWMAX, evened);
    const Ex *most = ex_i32(x, is_cheap(k) ? MOST_KEYS / key_extent(k) : SIZE_LIMIT);
    const Ex *share = over(p, all, room),
             *rest = size_of(p, pass_size(p, "part_rest", ex_2(x, EX_SUB, room, evened)));
    // each sequence has at most one part that is not full, or as many parts as the others
    const Ex *each = size_of(p, pass_size(p, "parts_each", ex_2(x, EX_DIV, room, evened)));
    const Ex *at_once = over(p, longest, each);
    const Ex *full = ex_2(x, EX_MIN, over(p, all, rest), at_once);
    at_once = ex_select(x, ex_2(x, EX_LT, ex_i32(x, 0), rest), full, at_once);
    const Ex *good = ex_2(x, EX_LE, at_once, ex_2(x, EX_MUL, share, ex_i32(x, 2)));
    const Ex *steps = ex_select(x, good, at_once, ex_2(x, EX_MIN, share, most));
    steps = ex_simplify(x, ex_2(x, EX_MAX, steps, ex_i32(x, SPLIT_TILES)));
    return size_of(p, pass_own_size(p, "part_steps", EX_CONST, NULL, steps));
}

// Few tiles need more parts than MAX_PARTS, to fill all workers. The combination of so many pays where they are long.
static const Ex *most_parts(TileProgram *p) {
    ExPool *x = p->pool;
    const Ex *n = ex_2(x, EX_DIV, size_of(p, SIZE_SK), ex_i32(x, LONG_PART / 2));
    n = ex_2(x, EX_MIN, n, ex_i32(x, MANY_PARTS));
    return ex_2(x, EX_MAX, n, ex_i32(x, MAX_PARTS));
}

// Parts of the longest sequence that there may be.
static const Ex *parts_of_longest(TileProgram *p, const TileKernel *k) {
    ExPool *x = p->pool;
    const Ex *n = over(p, size_of(p, SIZE_SK), size_of(p, p->split.keys));
    const Ex *room = by_tiles(p, k, ex_2(x, EX_MUL, workers_of(p, k), ex_i32(x, MOST_BLOCKS)));
    const Ex *most = most_parts(p);
    if (p->split.beside) // their rows have places of workspace, too
        most = ex_select(x, are_beside(p),
                         ex_2(x, EX_DIV, ex_i32(x, MOST_PLACES), size_of(p, p->split.rows)), most);
    return ex_2(x, EX_MIN, ex_2(x, EX_MIN, n, most_parts(p)), ex_2(x, EX_MIN, room, most));
}

// Lengths even the parts where there are no more sequences than parts that run at once. Then parts of all sequences are numbered
// together: a point for each that a sequence might have would be for nothing in most of them.
static void set_own_parts(TileProgram *p, TileKernel *k) {
    ExPool *x = p->pool;
    const TileSplit *s = &p->split;
    const Ex *room = workers_of(p, k), *none = ex_i32(x, 0), *batch = size_of(p, SIZE_B);
    for (int i = 1; i < k->ngrid - 1; i++) room = ex_2(x, EX_DIV, room, k->grid[i].count);
    const Ex *some =
        ex_2(x, EX_AND, pass_at_launch(p, few_queries(p)), ex_2(x, EX_LE, batch, room));
    if (p->split.beside) some = ex_2(x, EX_AND, some, ex_1(x, EX_NOT, are_beside(p)));
    const Ex *evened = ex_simplify(x, ex_select(x, some, batch, none));
    p->sizes.data[s->keys].def = keys_of_part(p, k, room, evened);
    room = size_of(p, pass_size(p, "part_room", ex_simplify(x, room)));
    evened = size_of(p, pass_size(p, "evened", evened));
    const Ex *sk = size_of(p, SIZE_SK);
    const Ex *even = ex_2(x, EX_MUL, even_steps(p, k, room, evened), ex_i32(x, key_extent(k)));
    const Ex *n =
        over(p, sk, ex_select(x, ex_2(x, EX_LT, none, evened), even, size_of(p, s->keys)));
    n = ex_2(x, EX_MAX, ex_2(x, EX_MIN, n, size_of(p, s->few)), ex_i32(x, 1));
    p->sizes.data[k->axes[pass_split_axis(p, k)].size->index].def = ex_simplify(x, n);
    TileGrid *parts = &k->grid[k->ngrid - 1];
    // a block takes a further one where there are more: points without a part took others' time (383 us to 366)
    pass_go_over_all(p, k, k->ngrid - 1, ex_2(x, EX_LT, none, evened), room, ex_bool(x, false));
    parts->count = size_of(p, pass_size(p, "part_points", parts->count));
}

// Parts of MOST_KEYS of the own sequence, at least places for two: all are combined. Of all sequences they are numbered together, if there are
// not too many to look through.
static void set_fixed_parts(TileProgram *p, TileKernel *k) {
    enum { MOST_SEQUENCES = 1024, ROUNDS = 4 };
    ExPool *x = p->pool;
    const Ex *batch = size_of(p, SIZE_B), *most = ex_i32(x, MAX_PARTS);
    const Ex *n = over(p, size_of(p, SIZE_SK), size_of(p, p->split.keys));
    n = ex_2(x, EX_MAX, ex_2(x, EX_MIN, n, most), ex_i32(x, 1));
    int own = k->axes[pass_split_axis(p, k)].size->index;
    const Ex *places = ex_2(x, EX_MAX, pass_at_launch(p, n), ex_i32(x, 2));
    p->sizes.data[p->split.few].def = ex_simplify(x, places);
    p->sizes.data[own].def = ex_simplify(x, n);
    if (p->target == TARGET_HOST) return;
    const Ex *room = ex_2(x, EX_MUL, workers_of(p, k), ex_i32(x, ROUNDS));
    TileGrid *parts = &k->grid[k->ngrid - 1];
    room = ex_2(x, EX_ADD, ex_2(x, EX_DIV, room, size_of(p, SIZE_HKV)), batch);
    pass_go_over_all(p, k, k->ngrid - 1, ex_2(x, EX_LE, batch, ex_i32(x, MOST_SEQUENCES)), room,
                     ex_bool(x, false));
    parts->count = size_of(p, pass_size(p, "part_points", parts->count));
}

// ---- beside a kernel of long sequences

// What a sequence takes of a kernel, in steps of 64 by 64.
static const Ex *work_of(TileProgram *p, const TileKernel *k, const char *name, int queries,
                         const Ex *rows) {
    enum { MOST_TILES = 1024, MOST_STEPS = 2048, MOST_SEQUENCES = 512 }; // a sum is below 2^31
    ExPool *x = p->pool;
    const Ex *sq = p->sizes.data[SIZE_SQ].def, *sk = p->sizes.data[SIZE_SK].def,
             *batch = size_of(p, SIZE_B);
    const Ex *tiles = over(p, rows, ex_i32(x, k->axes[tile_grid_axis(k)].extent));
    const Ex *steps = over(p, sk, ex_i32(x, key_extent(k)));
    tiles = ex_subst(x, tiles, SYM_SIZE, queries, p->sizes.data[queries].def);
    tiles = ex_subst(x, tiles, SYM_SIZE, SIZE_SQ, sq);
    const Ex *n = ex_2(x, EX_MUL, ex_2(x, EX_MIN, tiles, ex_i32(x, MOST_TILES)),
                       ex_2(x, EX_MIN, steps, ex_i32(x, MOST_STEPS)));
    const Ex *among =
        ex_select(x, ex_2(x, EX_LE, batch, ex_i32(x, MOST_SEQUENCES)), batch, ex_i32(x, 0));
    return size_of(p, pass_own_size(p, name, EX_ROWSUM, among, ex_simplify(x, n)));
}

// Long sequences multiply and the others read: a step of either takes about as long, and a third of all multiprocessors reads nearly as
// fast as all of them. So each kernel has its share of the steps, and the blocks that long sequences leave are the others'.
void pass_share_blocks(TileProgram *p, TileKernel *k) {
    ExPool *x = p->pool;
    const TileSplit *s = &p->split;
    const TileKernel *few = p->kernels.data[1];
    const Ex *none = ex_i32(x, 0), *one = ex_i32(x, 1),
             *all = size_of(p, pass_size(p, "multiprocessors", ex_symbol(x, SYM_WORKERS)));
    const Ex *group = size_of(
        p, pass_size(p, "group", ex_2(x, EX_DIV, size_of(p, SIZE_HQ), size_of(p, SIZE_HKV))));
    const Ex *short_ =
        work_of(p, few, "short_work", s->few_queries, few->axes[tile_grid_axis(few)].size);
    const Ex *long_ = work_of(p, k, "long_work", s->long_queries, k->axes[tile_grid_axis(k)].size);
    long_ = ex_2(x, EX_ADD, long_, size_of(p, SIZE_B)); // each sequence has a tile that is not full
    const Ex *sum = ex_2(x, EX_ADD, long_, ex_2(x, EX_DIV, short_, group));
    const Ex *share = ex_2(x, EX_MAX, ex_2(x, EX_DIV, sum, all), one);
    const Ex *own = ex_2(x, EX_MIN, ex_2(x, EX_ADD, ex_2(x, EX_DIV, long_, share), one), all);
    own = ex_simplify(x, ex_select(x, ex_2(x, EX_LT, none, short_), own, all));
    k->schedule.persist = PERSIST_DYNAMIC;
    k->schedule.beside = size_of(p, pass_own_size(p, "long_blocks", EX_CONST, NULL, own));
}

// ---- how many parts

static const Ex *parts_for(TileProgram *p, const TileKernel *k) {
    ExPool *x = p->pool;
    const Ex *all = workers_of(p, k), *one = ex_i32(x, 1);
    const Ex *most = ex_2(x, EX_DIV, size_of(p, SIZE_SK), ex_i32(x, key_extent(k) * SPLIT_TILES));
    const Ex *n = by_tiles(p, k, all), *some = ex_2(x, EX_LT, ex_i32(x, 0), n);
    n = ex_2(x, EX_MIN, n, ex_2(x, EX_MIN, most, most_parts(p)));
    if (p->target != TARGET_HOST) n = ex_select(x, some, n, for_rounds(p, k, all));
    if (p->target != TARGET_HOST && p->batch)
        n = ex_select(x, few_queries(p), parts_of_longest(p, k), n);
    return ex_simplify(x, pass_at_launch(p, ex_2(x, EX_MAX, n, one)));
}

// Whether a kernel for many queries is over parts.
static bool is_shared(const TileProgram *p, const TileKernel *k) {
    return pass_split_axis(p, k) >= 0 && k->purpose != PURPOSE_PART;
}

bool pass_is_shared(const TileProgram *p, const TilePlan *plan) {
    return plan->when && is_shared(p, p->kernels.data[plan->kernels.data[0]]);
}

void pass_set_splits(TileProgram *p) {
    for (int i = 0; i < p->kernels.n; i++) {
        TileKernel *k = p->kernels.data[i];
        int size = pass_split_size(p, k);
        if (k->purpose != PURPOSE_PART || size < 0) continue;
        if (p->split.apart) {
            set_fixed_parts(p, k);
            continue;
        }
        if (tile_counts_own(k)) continue; // it has the parts of the kernel that it is a copy of
        p->sizes.data[size].def = parts_for(p, k);
        if (p->batch && p->target != TARGET_HOST) set_own_parts(p, k);
    }
}

// A count that is made of sizes becomes one, by which a kernel divides fast.
static void name_rows(TileProgram *p, TileKernel *k) {
    for (int i = 0; i < k->ngrid; i++) {
        TileGrid *g = &k->grid[i];
        if (g->sym == SYM_TILE && g->count->nargs)
            g->count = size_of(p, pass_size(p, "row_tiles", g->count));
    }
}

void pass_name_rows(TileProgram *p) {
    for (int i = 0; i < p->kernels.n && p->target != TARGET_HOST; i++)
        if (p->kernels.data[i]->purpose == PURPOSE_PART) name_rows(p, p->kernels.data[i]);
}

// ---- parts of a kernel that also runs without

// Steps of a tile of queries: `total`, where the launch's sizes say it, otherwise all there are.
typedef struct Steps {
    const Ex *longest, *mean;
    bool alike; // all tiles have the same number
} Steps;

static void find_other(void *ctx, const Ex *e) {
    bool known = e->op != EX_LOAD && (e->op != EX_SYM || e->sym == SYM_SIZE || e->sym == SYM_TILE);
    if (!known) *(bool *)ctx = true;
}

// Counted as a tree: launch expressions share no nodes.
static int nodes(const Ex *e) {
    int n = 1;
    for (int i = 0; i < e->nargs && n <= MAX_NODES; i++) n += nodes(e->args[i]);
    return n;
}

static const Ex *at_tile(TileProgram *p, const Ex *total, int axis, const Ex *tile) {
    return ex_simplify(p->pool, ex_subst(p->pool, total, SYM_TILE, axis, tile));
}

// Steps grow or shrink along the queries about evenly, if they do: the middle tile has the mean.
static Steps steps_of(TileProgram *p, const TileKernel *k, const TileOp *loop, const Ex *total) {
    ExPool *x = p->pool;
    const TileAxis *keys = &k->axes[loop->axis];
    const Ex *n = row_tiles(k), *one = ex_i32(x, 1);
    int rows = tile_grid_axis(k);
    bool other = false;
    ex_visit(total, find_other, &other);
    if (other || nodes(total) > MAX_NODES)
        total = ex_2(x, EX_DIV, ex_2(x, EX_ADD, keys->size, ex_i32(x, keys->extent - 1)),
                     ex_i32(x, keys->extent));
    if (!ex_uses(total, SYM_TILE, rows)) return (Steps){total, total, true};
    const Ex *last = at_tile(p, total, rows, ex_2(x, EX_SUB, n, one));
    const Ex *mean = at_tile(p, total, rows, ex_2(x, EX_DIV, n, ex_i32(x, 2)));
    return (Steps){ex_2(x, EX_MAX, last, mean), ex_2(x, EX_MAX, mean, one), false};
}

// If tiles differ in length, the launch ends when the longest tile does. Its number of parts is the
// ratio of its steps to a worker's average, rounded up from three quarters on.
static const Ex *for_longest(TileProgram *p, const TileKernel *k, const Ex *longest,
                             const Ex *mean) {
    ExPool *x = p->pool;
    const Ex *n = ex_symbol(x, SYM_WORKERS), *four = ex_i32(x, 4);
    n = by_tiles(p, k, ex_2(x, EX_DIV, ex_2(x, EX_MUL, ex_2(x, EX_MUL, n, four), longest), mean));
    return ex_2(x, EX_DIV, ex_2(x, EX_ADD, n, ex_i32(x, 1)), four);
}

// The number of tiles in the last round of all workers, where all tiles take equally long. Among
// many rounds the last one matters too little.
static const Ex *last_round(TileProgram *p, const TileKernel *k) {
    ExPool *x = p->pool;
    const Ex *tiles = ex_2(x, EX_MUL, heads_of(p), row_tiles(k)), *n = ex_symbol(x, SYM_WORKERS);
    const Ex *few = ex_2(x, EX_LT, tiles, ex_2(x, EX_MUL, n, ex_i32(x, MAX_ROUNDS)));
    return ex_select(x, few, ex_2(x, EX_MOD, tiles, n), ex_i32(x, 0));
}

// Whether parts save the longest tile at least this many keys.
static const Ex *pays(TileProgram *p, const Ex *longest, const Ex *wanted, int extent, int keys) {
    ExPool *x = p->pool;
    const Ex *fewer = ex_2(x, EX_SUB, longest, ex_2(x, EX_DIV, longest, wanted));
    const Ex *enough = ex_2(x, EX_LE, ex_i32(x, keys), ex_2(x, EX_MUL, fewer, ex_i32(x, extent)));
    return ex_2(x, EX_AND, ex_2(x, EX_LT, ex_i32(x, 1), wanted), enough);
}

// Tells what a size is that only these use.
static const Ex *tell(TileProgram *p, int size, const Ex *def) {
    p->sizes.data[size].def = ex_simplify(p->pool, def);
    return size_of(p, size);
}

// If all tiles have the same number of steps, only the tiles of the last round are split: the last
// heads, so that all workers have a part. Otherwise all tiles are split. Then they do not end at the
// same time, so splitting must save a third more.
void pass_set_parts(TileProgram *p, const TileKernel *k, const TileOp *loop, const Ex *total) {
    ExPool *x = p->pool;
    if (!is_shared(p, k) || !p->split.parts || k->schedule.cluster > 1) return;
    int keys = k->schedule.knobs.part_keys, extent = k->axes[loop->axis].extent;
    if (!keys) return;
    Steps s = steps_of(p, k, loop, total);
    const Ex *one = ex_i32(x, 1), *heads = heads_of(p), *tiles = row_tiles(k), *split = heads;
    const Ex *parts = size_of(p, p->split.parts), *longest = tell(p, p->split.longest, s.longest);
    const Ex *left = last_round(p, k), *wanted = ex_2(x, EX_DIV, ex_symbol(x, SYM_WORKERS), left);
    if (s.alike)
        split = ex_2(x, EX_DIV, ex_2(x, EX_SUB, ex_2(x, EX_ADD, left, tiles), one), tiles);
    else
        wanted = for_longest(p, k, longest, s.mean);
    wanted = ex_2(x, EX_MIN, wanted, ex_2(x, EX_DIV, longest, ex_i32(x, PART_STEPS)));
    wanted = ex_2(x, EX_MIN, wanted, ex_i32(x, MAX_PARTS));
    wanted = tell(p, p->split.wanted, wanted);
    const Ex *good = pays(p, longest, wanted, extent, s.alike ? keys : keys * 4 / 3);
    define(p, p->split.parts, ex_select(x, good, wanted, one));
    split = ex_select(x, ex_2(x, EX_LT, one, parts), split, ex_i32(x, 0));
    define(p, p->split.whole, ex_2(x, EX_SUB, heads, split));
}

// ---- plans

// Whether a plan has a kernel for many queries over parts of which nothing was told.
static bool is_untold(const TileProgram *p, const TilePlan *plan) {
    const Ex **args = p->split.parts ? args_of(p, p->split.parts) : NULL;
    bool shared = false;
    for (int i = 0; i < plan->kernels.n; i++)
        shared |= is_shared(p, p->kernels.data[plan->kernels.data[i]]);
    return shared && args && args[2] == ex_i32(p->pool, 1);
}

static void replace_few(TileProgram *p, const Ex *few, const Ex *by) {
    const int sizes[] = {p->split.parts, p->split.whole};
    for (int i = 0; i < 2; i++) {
        const Ex **args = args_of(p, sizes[i]);
        if (args) p->sizes.data[sizes[i]].def = ex_select(p->pool, by, args[1], args[2]);
    }
    for (int i = 0; i < p->plans.n; i++)
        if (p->plans.data[i].when == few) p->plans.data[i].when = by;
}

void pass_free_splits(TileProgram *p) {
    const Ex *one = ex_i32(p->pool, 1);
    for (int i = p->plans.n - 1; i >= 0; i--) {
        if (!is_untold(p, &p->plans.data[i])) continue;
        const Ex *parts = size_of(p, p->split.parts);
        replace_few(p, pass_few_are_split(p), ex_2(p->pool, EX_LT, one, size_of(p, p->split.few)));
        if (p->plans.data[i].when != ex_2(p->pool, EX_LT, one, parts)) continue;
        p->plans.n--; // it has always one part, and needs no combination
        memmove(&p->plans.data[i], &p->plans.data[i + 1],
                (size_t)(p->plans.n - i) * sizeof p->plans.data[0]);
    }
}
