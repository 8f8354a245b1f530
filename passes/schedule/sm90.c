// sm90.c: how Hopper runs a kernel: tile extents, and which form of schedule.
//
// A kernel with products of 16-bit elements becomes one of roles (sm90_assign.c). Some kernels run as on sm_80: those without products,
// in f32, for a part of the keys of a few queries (passes/tile/split.c), with row inputs or slices, and those with long bodies. Long
// bodies become functions, and a call needs the registers that a wgmma in flight holds.
//
// Shapes were measured: 64 rows of queries for each warpgroup; two warpgroups with 240 registers a
// thread or three with 160. They take turns, so that one's exponentials run beside the other's
// products. A tile has as many keys as registers allow for scores and accumulator (a wgmma that
// spills is serialized), and as shared memory allows for the stages.
#include "passes/schedule/sm90.h"
#include "ir/tile_shared.h"
#include "passes/mask/interval.h"
#include "passes/mask/mask.h"
#include "passes/schedule/expand.h"
#include "passes/schedule/resources.h"
#include "passes/schedule/sm80_few.h"
#include "passes/schedule/strips.h"

#include <assert.h>
#include <string.h>

enum {
    MAX_COLUMNS = 256,
    PANEL = 64,           // columns of a panel of shared memory (128 bytes)
    OTHER_REGISTERS = 32, // of a thread, beside scores, weights and accumulator
    TEST_REGISTERS = 12,  // for more, and for what is looked up
    REDO_REGISTERS = 32,  // the same, where a step with a long test is done again
    LISTED =
        128, // tiles of a section where each visits few: documents, 1 to 2% faster than 512 and 2048
    LONG_BODY = 1400,      // weight (ex_weight) of what is computed of an element
    DEAR_MASK = 48,        // the same, of a mask
    GATHER_REGISTERS = 72, // of a thread of the producer that copies rows of pages
    SHARED_SLACK = 1024,   // barriers, the tile's number, alignment
};

// ---- shapes

enum { ANY = SHAPE_COUNT };

typedef struct Sm90Row {
    int d;                            // of the wider of k and v, at most
    enum { FULL, MASKED, OWN } steps; // OWN: masked, and of each tile its own (sm90_stays_alone)
    int launches;                     // the last ShapeClass that it is for; ANY: all
    int moving;                       // `after` where shifts follow their extrema
    Knobs shape;
} Sm90Row;

static const Sm90Row rows[] = {
#define ROW(d, steps, launches, moving, warps, ...)                                                \
    {d, steps, launches, moving, {.warpgroups = warps, __VA_ARGS__}},
#include "passes/schedule/sm90.def"
#undef ROW
};

// Whether some keys within the tensor do not count.
bool sm90_is_masked(const TileKernel *k) {
    const Ex *m = k->mask;
    return !(m->op == EX_LT || m->op == EX_CONST);
}

static int64_t weight(const Ex *const *roots, int n) {
    Arena *scratch = arena_new();
    const Ex **order;
    int64_t w = 0;
    for (int i = ex_order(scratch, roots, n, &order); i > 0; i--) w += ex_weight(order[i - 1]);
    arena_free(scratch);
    return w;
}

static bool long_map(const TileOp *op, int64_t mask) {
    VEC(const Ex *) bodies = {0};
    Arena *scratch = arena_new();
    for (int i = 0; i < op->outs.n; i++) VEC_PUSH(scratch, &bodies, op->outs.data[i].body);
    bool is = weight(bodies.data, bodies.n) + mask > LONG_BODY;
    arena_free(scratch);
    return is;
}

bool sm90_has_long_body(const TileKernel *k) {
    int64_t mask = k->mask ? weight(&k->mask, 1) : 0;
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (op->kind == TILE_MAP && long_map(op, mask)) return true;
    return false;
}

// Rows follow each other, but for those of keys that are loaded: the producer's threads copy them where they lie in pages.
static bool goes_by_runs(const TileProgram *p, const TileKernel *k) {
    bool runs = true;
    int rows = tile_grid_axis(k);
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        bool keys = op->kind == TILE_LOAD && !tile_has_axis(op->results.data[0], rows);
        if (!keys && (op->kind == TILE_LOAD || op->kind == TILE_STORE))
            runs &= tile_goes_by_runs(p, op);
    }
    return runs;
}

// Whether a kernel may be one of roles; the others are as on sm_80.
static bool fits_roles(const TileProgram *p, const TileKernel *k) {
    int rows = tile_grid_axis(k);
    bool tiled = rows >= 0 && k->axes[rows].extent != 1; // some are built for one query a tile
    bool mapped = p->D % 8 == 0 && p->Dv % 8 == 0; // tensor copies: rows of a multiple of 16 bytes
    mapped = mapped && p->D <= MAX_COLUMNS;
    return dtype_half(p->dtype) && mapped && tiled && tile_has(&k->body, TILE_MMA) &&
           k->purpose == PURPOSE_ATTENTION && !sm90_has_long_body(k) && goes_by_runs(p, k) &&
           !sm80_reads_rows(p, k) && !sm80_changes_query(k) && !pass_makes_together(p, k) &&
           !sm80_multiplies_bytes(k);
}

// Once it has its extents: later passes change bodies, and with them what would be chosen.
static bool in_roles(const TileProgram *p, const TileKernel *k) {
    return dtype_half(p->dtype) && knobs_say(&k->schedule.knobs, KNOB_warpgroups);
}

static bool is_nest(const TileKernel *k) {
    return k->schedule.knobs.said == knobs_of(FORM_SM90_NEST);
}

static bool is_apart(const TileKernel *k) {
    return k->schedule.knobs.said == knobs_of(FORM_SM90_APART);
}

int sm90_value_columns(const TileProgram *p, const TileKernel *k) {
    return pass_padded(pass_value_columns(p, k), PANEL);
}

static Extents extents_of(Knobs s) {
    return (Extents){64 * s.warpgroups, s.keys, 16, 16, MAX_COLUMNS};
}

static Block block_of(const TileProgram *p, const TileKernel *k, Knobs s) {
    Extents e = extents_of(s);
    Block b = pass_block(p, k, &e, s, 4 * s.warpgroups);
    b.flies = true;
    return b;
}

static int shared_bytes(const TileProgram *p, const TileKernel *k, Knobs s) {
    Block b = block_of(p, k, s);
    return pass_shared(&b) + SHARED_SLACK;
}

int sm90_registers(const TileProgram *p, const TileKernel *k, Knobs s) {
    Block b = block_of(p, k, s);
    return pass_registers(&b) + OTHER_REGISTERS;
}

int sm90_left_registers(Knobs s, int warpgroups) {
    enum { GROUP = 128, GROUPS = 4 };
    int all = target_block_registers(GROUP * GROUPS) / GROUP;
    return (all - s.producer_registers - warpgroups * s.registers) & ~7;
}

static int registers_of(const TileProgram *p, const TileKernel *k, Knobs s) {
    Block b = block_of(p, k, s);
    bool again = s.fixed_shift && !ex_reads(k->mask) && weight(&k->mask, 1) > DEAR_MASK;
    int tests = !pass_many_tests(k) ? 0 : again ? REDO_REGISTERS : TEST_REGISTERS;
    return sm90_registers(p, k, s) + pass_column_registers(&b) + tests;
}

static bool fits_shared(const TileProgram *p, const TileKernel *k, Knobs s) {
    return shared_bytes(p, k, s) <= target_get(p->target)->shared_bytes;
}

// ---- the wait among the weights

// Operations of the special function unit and reductions, of an element of the scores.
typedef struct Work {
    int special, reductions, extrema;
    bool looks_up; // an input, where the pair is
} Work;

static void count_special(void *ctx, const Ex *e) {
    bool divides = e->op == EX_DIV || e->op == EX_MOD; // their reciprocals are not counted
    ((Work *)ctx)->special += !divides && ex_op_cost(e->op, e->type) == C_SPECIAL;
}

static bool is_read(void *ctx, const Ex *e) {
    (void)ctx;
    return e->op == EX_LOAD && ex_uses(e, SYM_POS, -1);
}

// Of one map the weights and of the others everything: a sum of weights has them in it again.
static Work work_of(const TileKernel *k, TileOp *loop) {
    Work w = {0};
    for (TileOp *op = loop->body.first; op; op = op->next) {
        if (op->kind != TILE_MAP || op->naxes < 2) continue;
        for (int i = 0; i < op->outs.n; i++) {
            bool again = op->outs.n > 1 && op->outs.data[i].reduce != EX_CONST;
            ExOp reduce = op->outs.data[i].reduce;
            w.reductions += reduce != EX_CONST;
            w.looks_up |= ex_any(op->outs.data[i].body, is_read, NULL);
            w.extrema += reduce == EX_ROWMAX || reduce == EX_ROWMIN;
            if (!again) pass_visit_elements(k, op, op->outs.data[i].body, count_special, &w);
        }
    }
    return w;
}

// Where weights cost nothing beside the products, or twice as much as an exponential, more of them
// go before the wait, of the latter fewer where no maximum or norms of keys stand before them, and more where something is looked up for
// each, but at 64 columns fewer; where nothing is reduced the assembler's own order is the best. Measured at 128 columns.
enum {
    AFTER_CHEAP = 32,
    AFTER_DEAR = 56,
    AFTER_DEAR_FREE = 20,
    AFTER_NORMS = 32,
    AFTER_LOOKED_UP = 48,
    AFTER_LOOKED_UP_NARROW = 24,
};

static int after_for(const TileKernel *k, Knobs s, int wide) {
    TileOp *loop = k->body.first;
    while (loop && loop->kind != TILE_LOOP) loop = loop->next;
    if (s.after < 0 || !loop) return s.after;
    Work w = work_of(k, loop);
    int after = s.after;
    if (w.special == 0) after = AFTER_CHEAP;
    if (w.special > 1 && after) after = w.extrema ? AFTER_DEAR : AFTER_DEAR_FREE;
    if (w.special > 1 && after && pass_makes_norms(k)) after = AFTER_NORMS;
    if (w.looks_up && !s.dense && after && wide > PANEL) after = AFTER_LOOKED_UP;
    if (w.looks_up && !s.dense && after > AFTER_LOOKED_UP_NARROW && wide <= PANEL)
        after = AFTER_LOOKED_UP_NARROW;
    if (w.special == 1 && !w.reductions) return -1;
    return after < s.keys / 2 ? after : s.keys / 2;
}

static bool row_is_for(const Sm90Row *r, int wide, int steps, ShapeClass launches) {
    return r->d >= wide && (int)r->steps == steps && (int)launches <= r->launches;
}

bool pass_knows_few(const PassOptions *o, int d, int dv) {
    int wide = pass_padded(d > dv ? d : dv, PANEL);
    bool knows = false;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        knows |= rows[i].launches == SHAPE_FEW && rows[i].d >= wide;
    return knows && o->target.id == TARGET_SM90A;
}

// Whether the mask reads inputs where the pair is: its tiles are on lists (passes/mask/tilemap.c).
static bool reads_inputs(const TileKernel *k) { return ex_any(k->mask, is_read, NULL); }

bool sm90_has_dear_mask(const TileKernel *k) {
    return reads_inputs(k) || weight(&k->mask, 1) > DEAR_MASK;
}

// The keys that a tile of queries sees, of which nothing else is told than that they are not exact where
// the kernel has no loop over them.
static KeySet seen_keys(const TileProgram *p, const TileKernel *k) {
    int rows = tile_grid_axis(k);
    const TileOp *loop = k->body.first;
    while (loop && loop->kind != TILE_LOOP) loop = loop->next;
    if (!loop) return (KeySet){.exact = false};
    const Ex *first =
        ex_2(p->pool, EX_MUL, ex_sym(p->pool, SYM_TILE, rows, EX_I32), ex_i32(p->pool, 64));
    const Ex *last = ex_2(p->pool, EX_ADD, first, ex_i32(p->pool, 63));
    RangeCtx c;
    range_init(&c, p->pool, rows, loop->axis, first, last, NULL, NULL);
    return mask_hull(&c, ex_simplify(p->pool, k->mask));
}

// Whether both ends of the keys that a tile of queries sees move with it, as in a window: what two
// blocks visit together is more than either needs (18 and 20 tiles for a window of 1024).
static bool is_window(const TileProgram *p, const TileKernel *k) {
    int rows = tile_grid_axis(k);
    KeySet seen = seen_keys(p, k);
    return seen.lo && seen.hi && ex_uses(seen.lo, SYM_TILE, rows) &&
           ex_uses(seen.hi, SYM_TILE, rows);
}

// Whether a tile of queries may have a list of its own of what it visits (passes/mask/tilemap.c): blocks of a cluster
// have not the same steps then.
static bool has_lists(const TileProgram *p, const TileKernel *k) {
    return reads_inputs(k) || !seen_keys(p, k).exact;
}

typedef struct Grid { // what positions of keys are divided by: how wide a row of theirs is
    int rows, width;  // the axis of rows of queries; -1: widths differ
} Grid;

static void find_grid(void *ctx, const Ex *e) {
    Grid *g = ctx;
    if ((e->op != EX_DIV && e->op != EX_MOD) || e->args[1]->op != EX_CONST) return;
    const Ex *pos = e->args[0];
    if (pos->op != EX_SYM || pos->sym != SYM_POS || pos->index == g->rows) return;
    g->width = g->width && g->width != e->args[1]->i ? -1 : e->args[1]->i;
}

// Where keys are a grid, tiles of which a row of it has a whole number: tests then cost least (passes/mask/classify.c).
int sm90_within_grid_row(const TileKernel *k, int keys) {
    enum { FEWEST = 48 };
    Grid g = {tile_grid_axis(k), 0};
    ex_visit(k->mask, find_grid, &g);
    int within = keys;
    while (within >= FEWEST && g.width > 0 && g.width % within) within -= 16;
    return g.width > 0 && within >= FEWEST ? within : keys;
}

bool sm90_stays_alone(const TileProgram *p, const TileKernel *k) {
    return has_lists(p, k) || is_window(p, k) || pass_takes_key_numbers(k);
}

Knobs sm90_fit(const TileProgram *p, const TileKernel *k, ShapeClass launches, bool moving) {
    int d = pass_padded(p->D, PANEL), dv = sm90_value_columns(p, k), wide = d > dv ? d : dv;
    size_t i = 0, n = sizeof rows / sizeof *rows;
    // Tiles are few each, and those of two blocks differ; or large tiles' registers are all in use.
    bool listed = reads_inputs(k), alone = sm90_stays_alone(p, k);
    int steps = !sm90_is_masked(k) ? FULL : alone ? OWN : MASKED;
    if (alone) launches = SHAPE_SHORT;
    // Long tests are most of the work, and twelve warps hide more of it than eight (8%), where the assembler places the wait (2%) and a third
    // tile is on its way (2%). Hardly a tile is a full one there, so shifts stay in partial ones.
    bool dear = !listed && weight(&k->mask, 1) > DEAR_MASK;
    bool tests = wide <= PANEL && dear;
    if (tests) steps = MASKED, launches = SHAPE_LONG;
    while (i < n && !row_is_for(&rows[i], wide, steps, launches)) i++;
    assert(i < n && "no more columns than the last row has");
    Knobs s = rows[i].shape;
    s.said = knobs_of(FORM_SM90);
    s.dense = pass_copies_dense(k);
    if (alone || p->batch) s.cluster = 1;
    while (p->batch == BATCH_PAGED && s.producer_registers < GATHER_REGISTERS)
        s.registers -= 8, s.producer_registers += 8 * s.warpgroups;
    if (listed) s.section = LISTED;
    if (listed && wide <= PANEL) s.turns = 0; // 3 to 7%
    if (!tile_has(&k->body, TILE_BOUND) || moving || (dear && !tests)) s.fixed_shift = 0;
    if (tests)
        s.after = -1, s.stages = 3;
    else if (!s.fixed_shift)
        s.after = rows[i].moving;
    if (!fits_shared(p, k, s)) s.queries = 1;
    while (s.keys > 16 && (!fits_shared(p, k, s) || registers_of(p, k, s) > s.registers))
        s.keys -= 16;
    s.keys = sm90_within_grid_row(k, s.keys);
    s.after = after_for(k, s, wide);
    if (s.narrow >= s.keys) s.narrow = 0;
    return s;
}

// ---- what was chosen

static bool refuse(Diags *diags, const char *what, int needs, int has) {
    return diag_refuse(diags, (Span){0}, "schedule: it needs %d %s; there are %d", needs, what,
                       has);
}

bool sm90_has_registers(Knobs s, int own, Diags *diags) {
    enum { GROUP = 128 };
    int all = GROUP * (s.producer_registers + own);
    int launched = target_block_registers(GROUP * (1 + s.warpgroups));
    return all <= launched || refuse(diags, "registers for all threads of a block", all, launched);
}

// What no single knob tells.
static bool legal(const TileProgram *p, const TileKernel *k, Knobs s, Diags *diags) {
    int shared = shared_bytes(p, k, s), has = target_get(p->target)->shared_bytes;
    if (shared > has) return refuse(diags, "bytes of shared memory", shared, has);
    if (!sm90_has_registers(s, s.warpgroups * s.registers, diags)) return false;
    if (s.fixed_shift && !tile_has(&k->body, TILE_BOUND))
        return diag_refuse(
            diags, (Span){0},
            "schedule: shifts stay where results do not depend on them, a sum of all weights "
            "bounds these, and they are bf16");
    if (s.dense && !pass_copies_dense(k))
        return diag_refuse(
            diags, (Span){0},
            "schedule: inputs are copied that have a 16-bit number for each query and key, "
            "where nothing else is looked up for a pair, in layout dense");
    if (s.fixed_shift && s.late_rescale)
        return diag_refuse(diags, (Span){0},
                           "schedule: where shifts stay nothing is rescaled late");
    if (s.narrow >= s.keys)
        return diag_refuse(diags, (Span){0}, "schedule: the first %d keys of a tile of %d are all",
                           s.narrow, s.keys);
    if (s.cluster > 1 && has_lists(p, k))
        return diag_refuse(
            diags, (Span){0},
            "schedule: blocks of a cluster take the same steps; where the mask reads "
            "inputs, or is no interval of keys, each tile has a list of its own");
    if (registers_of(p, k, s) > s.registers)
        return refuse(diags, "registers of a thread for scores, weights and accumulator",
                      registers_of(p, k, s), s.registers);
    return true;
}

// The one place where a kernel's shape is chosen; it travels in the kernel.
static bool choose(TileProgram *p, TileKernel *k, const PassOptions *o, Diags *diags) {
    const Knobs *asked = &o->schedule;
    Knobs *s = &k->schedule.knobs;
    *s = sm90_fit(p, k, o->shape, false);
    if (!knobs_take(s, FORM_SM90, asked, diags)) return false;
    bool late = s->late_rescale && !knobs_say(asked, KNOB_fixed_shift);
    if (!s->fixed_shift || late) {
        *s = sm90_fit(p, k, o->shape, true);
        knobs_take(s, FORM_SM90, asked, diags);
    }
    if (!asked->said) return true;
    if (!knobs_say(asked, KNOB_queries) && !fits_shared(p, k, *s)) s->queries = 1;
    if (!knobs_say(asked, KNOB_narrow) && s->narrow >= s->keys) s->narrow = 0;
    return legal(p, k, *s, diags);
}

bool sm90_move_shifts(const TileProgram *p, TileKernel *k, const PassOptions *o, Diags *diags) {
    Knobs moving = sm90_fit(p, k, o->shape, true), *s = &k->schedule.knobs;
    if (o->schedule.fixed_shift)
        return diag_refuse(
            diags, (Span){0},
            "schedule: shifts stay in kernels of one sweep in roles; %s is no such one", k->name);
    if (!knobs_say(&o->schedule, KNOB_after)) s->after = moving.after;
    s->fixed_shift = 0;
    return true;
}

Knobs sm90_shape_of(const TileKernel *k) {
    Knobs s = k->schedule.knobs;
    for (int a = 0; a < k->naxes; a++)
        if (!k->axes[a].whole && !tile_in_grid(k, a)) s.keys = k->axes[a].extent;
    if (s.narrow >= s.keys) s.narrow = 0;
    return s;
}

// ---- extents

// A sequence's own sizes by what they are made of.
static const Ex *defined(void *ctx, ExPool *x, const Ex *e) {
    const TileProgram *p = ctx;
    bool own = e->op == EX_SYM && e->sym == SYM_SIZE && p->sizes.data[e->index].own;
    return own ? ex_map(x, p->sizes.data[e->index].def, defined, ctx) : e;
}

// Blocks have tiles of all sequences, one after the other: where a sequence's rows begin an access to a tile of them says.
void sm90_pack(TileProgram *p, TileKernel *k) {
    ExPool *x = p->pool;
    const TileOp *op = tile_next(&k->body, NULL);
    const Ex *from = NULL, *all = NULL, *batch = ex_sym(x, SYM_SIZE, SIZE_B, EX_I32);
    for (; op && !from; op = tile_next(&k->body, op)) {
        bool access = op->kind == TILE_LOAD || op->kind == TILE_STORE;
        for (int d = 0; access && !from && d < p->tensors.data[op->tensor].rank; d++)
            if (op->coord[d].axis == tile_grid_axis(k) && (from = tile_run_from(x, op, d)))
                all = p->tensors.data[op->tensor].extent[d];
    }
    TileGrid *g = &k->grid[tile_grid_rows(k)];
    const Ex *tiles = ex_2(x, EX_DIV, all, ex_i32(x, k->axes[g->axis].extent));
    k->grid[0].count = ex_2(x, EX_MIN, batch, ex_i32(x, 1));
    g->count = ex_2(x, EX_ADD, tiles, batch);
    g->packed = ex_simplify(x, ex_map(x, from, defined, p));
    g->shared = NULL;
}

// Where the heads that share keys and values go into pairs, blocks of a cluster take two heads at
// the same rows: their steps are the same ones. Otherwise two tiles of rows, each with the steps of
// both. The launch's sizes say which: it is one kernel.
static const Ex *rows_of_clusters(TileProgram *p) {
    ExPool *x = p->pool;
    const Ex *heads = ex_sym(x, SYM_SIZE, SIZE_HQ, EX_I32), *one = ex_i32(x, 1);
    const Ex *two = ex_i32(x, 2), *groups = ex_sym(x, SYM_SIZE, SIZE_HKV, EX_I32);
    const Ex *left = ex_2(x, EX_MOD, heads, ex_2(x, EX_MUL, two, groups));
    const Ex *rows = ex_select(x, ex_2(x, EX_EQ, left, ex_i32(x, 0)), one, two);
    return ex_sym(x, SYM_SIZE, pass_size(p, "cluster_rows", rows), EX_I32);
}

// Heads need the same mask for that; where there is none, all tiles take the same steps.
static void make_clusters(TileProgram *p, TileKernel *k, Knobs s) {
    if (s.cluster < 2) return;
    k->schedule.cluster = s.cluster;
    k->schedule.persist = PERSIST_DYNAMIC;
    bool alike = k->purpose == PURPOSE_ATTENTION && !p->batch && sm90_is_masked(k) &&
                 !ex_uses(k->mask, SYM_H, 0);
    if (alike) k->schedule.cluster_rows = rows_of_clusters(p);
}

static bool is_wide(const TileKernel *k) {
    return k->schedule.knobs.said == knobs_of(FORM_SM90_WIDE);
}

static bool is_bound(const TileProgram *p, const TileKernel *k) {
    return in_roles(p, k) || is_wide(k);
}

// A program of the kernels that one asks for, in place.
static TileProgram others(TileProgram *p, bool (*is_own)(const TileProgram *, const TileKernel *)) {
    TileProgram q = *p;
    memset(&q.kernels, 0, sizeof q.kernels);
    for (int i = 0; i < p->kernels.n; i++)
        if (!is_own(p, p->kernels.data[i])) VEC_PUSH(p->arena, &q.kernels, p->kernels.data[i]);
    return q;
}

// Of a batch: whether the last kernel is that of long sequences, which nothing is gained by without roles.
static bool is_long(TileProgram *p, const TileKernel *k) {
    int size = p->split.long_queries;
    const Ex *queries = ex_sym(p->pool, SYM_SIZE, size, EX_I32);
    return size && k->axes[tile_grid_axis(k)].size == queries;
}

static void drop_long(TileProgram *p) {
    int few = p->split.few_queries;
    TileSize *many = &p->sizes.data[few ? few : p->split.many_queries];
    int last = --p->kernels.n, left = 0;
    for (int i = 0; i < p->plans.n; i++)
        if (p->plans.data[i].kernels.data[0] != last) p->plans.data[left++] = p->plans.data[i];
    p->plans.n = left;
    many->def = ex_sym(p->pool, SYM_SIZE, SIZE_SQ, EX_I32);
    p->sizes.data[p->split.beside].def = ex_i32(p->pool, 0);
}

bool pass_tile_sm90(TileProgram *p, const PassOptions *o, Diags *diags) {
    const TileKernel *last = p->kernels.data[p->kernels.n - 1];
    if (is_long(p, last) && !fits_roles(p, last)) drop_long(p);
    for (int i = 0; i < p->kernels.n; i++) {
        TileKernel *k = p->kernels.data[i];
        if (sm90_is_nest(p, k) && !sm90_bind_nest(p, k, o, diags)) return false;
        bool pairs = k->schedule.cluster > 1; // it is a copy of one that is wide
        bool roles = fits_roles(p, k), wide = pairs || (!roles && sm90_is_wide(p, k));
        if (wide && !pairs) sm90_lay_beside(p, k);
        bool apart = wide && sm90_can_apart(p, k);
        bool whole = k->purpose == PURPOSE_ATTENTION && !p->batch; // others have packed rows
        if (apart && !whole && !pairs) sm90_add_pairs(p, i);
        apart &= whole || pairs;
        if (wide && !(apart ? sm90_bind_apart : sm90_bind_wide)(p, k, o, diags)) return false;
        if (apart) make_clusters(p, k, k->schedule.knobs);
        if (!roles) continue;
        k->schedule = (TileSchedule){.lane_axis = -1, .min_blocks = 1};
        if (!pass_tile_columns(p, k, MAX_COLUMNS, PANEL, diags)) return false;
        if (o->dense && (!knobs_say(&o->schedule, KNOB_dense) || o->schedule.dense))
            pass_copy_dense(p, k);
        if (!choose(p, k, o, diags)) return false;
        Knobs s = k->schedule.knobs;
        Extents e = extents_of(s);
        pass_bind_all(p, k, &e);
        if (p->batch) sm90_pack(p, k);
        k->schedule.warps = 4 * s.warpgroups;
        make_clusters(p, k, s);
    }
    TileProgram q = others(p, is_bound);
    if (!pass_tile_sm80(&q, o, diags)) return false;
    for (int i = 0; i < p->kernels.n; i++)
        if (p->split.few_queries && is_long(p, p->kernels.data[i]))
            pass_share_blocks(p, p->kernels.data[i]);
    return true;
}

bool sm90_piped(const TileOp *op) {
    if (op->kind != TILE_LOAD) return false;
    const TileValue *v = op->results.data[0];
    return v->rank == 2 && dtype_half(v->dtype);
}

// ---- the pass

Sm90 sm90_begin(TileProgram *p, TileKernel *k) {
    return (Sm90){.p = p, .k = k, .x = p->pool, .shape = sm90_shape_of(k)};
}

static void assign_roles(TileProgram *p, TileKernel *k) {
    Sm90 s = sm90_begin(p, k);
    int room = target_get(p->target)->shared_bytes - shared_bytes(p, k, s.shape);
    pass_strips(p, k, s.shape.warpgroups, room);
    for (TileOp *op = k->body.first; op; op = op->next)
        if (op->kind == TILE_LOOP) pass_interval(p, k, tile_grid_axis(k), op->axis, true);
    sm90_assign(&s, true);
}

void pass_assign_sm90(TileProgram *p, TileKernel *k) {
    Sm90 s = sm90_begin(p, k);
    if (is_wide(k)) sm90_share_wide(p, k);
    if (!in_roles(p, k))
        pass_assign_sm80(p, k);
    else if (is_nest(k))
        sm90_assign_nest(&s);
    else if (is_apart(k))
        sm90_assign_apart(&s);
    else
        assign_roles(p, k);
}

static void schedule_roles(TileProgram *p, TileKernel *k) {
    Sm90 s = sm90_begin(p, k);
    k->schedule.persist = PERSIST_DYNAMIC; // also where tiles take as long: 1% faster than turns
    pass_expand(p, k);
    if (is_nest(k))
        sm90_sum_through(&s);
    else if (!is_apart(k))
        sm90_stores(&s);
    pass_mark_parts(k);
}

void pass_schedule_sm90(TileProgram *p, TileKernel *k, const PassOptions *o) {
    if (in_roles(p, k))
        schedule_roles(p, k);
    else
        pass_schedule_sm80(p, k, o);
    if (is_wide(k)) sm90_fly_wide(p, k);
}
