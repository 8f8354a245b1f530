// cost.c: see cost.h.
#include "passes/schedule/cost.h"
#include "passes/mask/mask.h"

#include <math.h>

enum { MAX_COLUMNS = 256 }; // of v in a block: more are blocks of their own, whatever the schedule

// ---- operations

// An operation of the special unit, with a multiplication or an addition where it is of another base
// or form; others are long formulas.
static bool one_special(ExOp op, int *plain) {
    *plain = op == EX_EXP || op == EX_LOG || op == EX_SIGMOID;
    return op >= EX_EXP && op <= EX_COS;
}

static void count(void *ctx, const Ex *e) {
    CostWork *w = ctx;
    int plain = 0;
    if (one_special(e->op, &plain))
        w->special++;
    else if (ex_op_cost(e->op, e->type) != C_FREE)
        plain = ex_weight(e);
    w->plain += plain;
}

// Of a map the weights and of the others everything: a sum of weights has them in it again.
static void count_map(CostWork *w, const TileOp *map) {
    for (int i = 0; i < map->outs.n; i++) {
        const TileResult *r = &map->outs.data[i];
        bool reduces = r->reduce != EX_CONST, again = map->outs.n > 1 && reduces;
        w->plain += reduces;
        w->reductions += reduces;
        if (!again) ex_visit(r->body, count, w);
    }
}

CostWork cost_work(const TileProgram *p, const TileKernel *k) {
    CostWork w = {.d = p->D, .dv = p->Dv < MAX_COLUMNS ? p->Dv : MAX_COLUMNS};
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        if (op->kind != TILE_MAP || !op->block->owner) continue;
        const TileOp *loop = op->block->owner;
        bool has_rows = false, has_keys = false;
        for (int i = 0; i < op->naxes; i++) {
            has_rows |= tile_in_grid(k, op->axes[i]);
            has_keys |= loop->kind == TILE_LOOP && op->axes[i] == loop->axis;
        }
        if (has_rows && has_keys) count_map(&w, op);
    }
    w.plain += 0.5; // two weights are narrowed at a time
    return w;
}

// ---- tiles

typedef struct Launch {
    const int32_t *sizes;
    int32_t tile;
} Launch;

static ExValue symbol(void *ctx, const Ex *e) {
    const Launch *l = ctx;
    ExValue v = {.i = 0};
    if (e->sym == SYM_SIZE) v.i = e->index < SIZE_FREE ? l->sizes[e->index] : 1;
    if (e->sym == SYM_TILE) v.i = l->tile;
    if (e->type == EX_F32) v.f = 0;
    return v;
}

static ExValue no_load(void *ctx, const Ex *e, const int32_t *index) {
    (void)ctx, (void)index;
    ExValue v = {.i = 0};
    if (e->type == EX_F32) v.f = 0;
    return v;
}

static double value(const Ex *e, Launch *l, double otherwise) {
    ExEnv env = {.sym = symbol, .load = no_load, .ctx = l, .round = true};
    return e ? ex_eval(e, &env).i : otherwise;
}

static KeySet hull_of(TileProgram *p, const TileKernel *k, int rows) {
    ExPool *x = p->pool;
    int q_axis = tile_grid_axis(k), k_axis = -1;
    for (const TileOp *op = tile_next(&k->body, NULL); op && k_axis < 0;
         op = tile_next(&k->body, op))
        if (op->kind == TILE_LOOP) k_axis = op->axis;
    const Ex *tile = ex_sym(x, SYM_TILE, q_axis, EX_I32);
    const Ex *q0 = ex_simplify(x, ex_2(x, EX_MUL, tile, ex_i32(x, rows)));
    const Ex *end =
        ex_2(x, EX_MIN, ex_2(x, EX_ADD, q0, ex_i32(x, rows)), ex_sym(x, SYM_SIZE, SIZE_SQ, EX_I32));
    RangeCtx range;
    range_init(&range, x, q_axis, k_axis, q0, ex_simplify(x, ex_2(x, EX_SUB, end, ex_i32(x, 1))),
               NULL, NULL);
    return mask_hull(&range, ex_simplify(x, k->mask));
}

CostRows cost_rows(TileProgram *p, const TileKernel *k, int rows, const int32_t *sizes) {
    KeySet hull = hull_of(p, k, rows);
    int n = (sizes[SIZE_SQ] + rows - 1) / rows, m = n < COST_SAMPLES ? n : COST_SAMPLES;
    CostRows r = {.tiles = (double)sizes[SIZE_B] * sizes[SIZE_HQ] * n, .n = m};
    for (int i = 0; i < m; i++) {
        Launch l = {sizes, (int32_t)((int64_t)i * (n - 1) / (m > 1 ? m - 1 : 1))};
        double last = sizes[SIZE_SK] - 1;
        r.first[i] = fmax(value(hull.lo, &l, 0), 0);
        r.last[i] = hull.none ? -1 : fmin(value(hull.hi, &l, last), last);
    }
    return r;
}

CostTiles cost_tiles(const CostRows *r, int keys) {
    CostTiles t = {.tiles = r->tiles, .shortest = INFINITY, .parts = 1};
    for (int i = 0; i < r->n; i++) {
        bool any = r->last[i] >= r->first[i];
        double steps = any ? floor(r->last[i] / keys) - floor(r->first[i] / keys) + 1 : 0;
        t.steps += steps / r->n;
        t.longest = fmax(t.longest, steps);
        t.shortest = fmin(t.shortest, steps);
    }
    return t;
}

// ---- time

// What the units do overlaps, but for this share: each waits for the others' results at times.
#define APART 0.23

static double step_cycles(CostStep s) {
    double most = fmax(fmax(s.matrix, s.special), s.plain), all = s.matrix + s.special + s.plain;
    double busy = most + APART * (all - most);
    return fmax(busy, fmax(s.shared, s.l2)) + s.latency;
}

static bool are_alike(CostTiles n) { return n.longest == n.shortest; }

// If all tiles have the same number of steps, only those of the last round are split.
double cost_parts(const Target *t, CostTiles n, int keys, int least) {
    double units = target_rates(t->id)->units, left = fmod(n.tiles, units), parts = 1;
    if (are_alike(n) && left > 0) parts = floor(units / left);
    if (!are_alike(n)) parts = floor(units * n.longest / (n.steps * n.tiles) + 0.25);
    parts = fmax(fmin(parts, floor(n.longest / 2)), 1);
    double saved = (n.longest - n.longest / parts) * keys;
    return saved >= (are_alike(n) ? least : least * 4 / 3.0) ? parts : 1;
}

double cost_launch(const Target *t, CostTiles n, CostStep s, int blocks, double tile) {
    s.latency /= blocks; // in which the other blocks go on
    tile /= blocks;
    double step = step_cycles(s), shares = n.tiles / target_rates(t->id)->units;
    double longest = n.longest / n.parts * step + tile, mean = n.steps * step + tile;
    // Tiles of equal length end together, and the last round runs alone, or in parts. Otherwise
    // the shortest tiles come last.
    if (are_alike(n) && n.parts > 1) return floor(shares) * mean + longest;
    if (are_alike(n)) return ceil(shares / blocks) * blocks * mean;
    mean += (n.parts - 1) * tile;
    return fmax(shares * mean, longest) + (n.shortest / n.parts * step + tile * blocks) / 2;
}
