// classify.c: which tiles a loop over keys visits, and which of them need the mask.
//
// In: a program whose extents are bound; loops over all tiles of an axis, with SYM_MASK in them, and
// SYM_KEPT where shifts may be fixed.
// Out: each such loop is two, over one common sequence of tiles: first the partial ones, with the
// kernel's mask where SYM_MASK stood and KEPT false, then those where every pair takes part, with
// no mask and KEPT true. Tiles without a pair are never visited where the mask can be solved
// (solve.c), else not on the list that the device makes (tilemap.c), or, where none would tell more,
// skipped by `where` (mask.c). Holds afterwards: neither SYM_MASK nor SYM_KEPT in a body; loads of inputs that
// cannot leave their tensor are marked so.
//
//     loop N from 0 to ceil(Sk / 64) { select(mask, ...) }              causal, tiles of 64 keys
//
//     ->  lo = 0, hi = min(q1, Sk - 1) / 64 + 1, fhi = min(q0 + 1, Sk) / 64
//         loop N from 0 to hi - fhi, tile hi - 1 - t, partial { select(k <= q && k < Sk, ...) }
//         loop N from hi - fhi to hi, tile t - (hi - fhi), full { ... }
//
// The tile at the diagonal comes first: it is where the maximum moves most. Tiles of queries are
// taken longest first.
#include "passes/mask/mask.h"
#include "passes/mask/tilemap.h"
#include "passes/tile/rewrite.h"

#include "passes/simplify/rules.h"

typedef struct Classify {
    TileProgram *p;
    TileKernel *k;
    ExPool *x;
    TileOp *loop;
    int q_axis, k_axis; // bound by the grid; the loop's
    const Ex *mask;     // of positions that exist along the grid's axis
    const Ex *inside;   // whether the tile along it has no others, where those would count; or NULL
    RangeCtx range;
    TileMapLists *lists; // of the kernel's mask, once they are made
} Classify;

static const Ex *num(Classify *c, int64_t v) { return ex_i32(c->x, (int32_t)v); }
static const Ex *op2(Classify *c, ExOp op, const Ex *a, const Ex *b) {
    return simp_2(c->x, op, a, b);
}

// ---- positions of a tile

// Blocks of a cluster take the same steps: those of all rows that they have together. How many
// tiles these are, or NULL: this one.
static const Ex *tiles_together(const Classify *c, int axis) {
    const TileSchedule *s = &c->k->schedule;
    if (s->cluster < 2 || axis != c->q_axis) return NULL;
    return s->cluster_rows ? s->cluster_rows : ex_i32(c->x, s->cluster);
}

static const Ex *first_of(Classify *c, int axis) {
    const TileAxis *a = &c->k->axes[axis];
    if (a->whole) return num(c, 0);
    const Ex *tile = ex_sym(c->x, SYM_TILE, axis, EX_I32), *n = tiles_together(c, axis);
    if (n) // one or two
        tile = op2(c, EX_SUB, tile, op2(c, EX_BAND, tile, op2(c, EX_SUB, n, num(c, 1))));
    return op2(c, EX_MUL, tile, num(c, a->extent));
}

static const Ex *last_of(Classify *c, int axis) {
    const TileAxis *a = &c->k->axes[axis];
    const Ex *rows = num(c, a->extent), *n = tiles_together(c, axis);
    if (n) rows = op2(c, EX_MUL, n, rows);
    const Ex *end = op2(c, EX_ADD, first_of(c, axis), rows);
    return op2(c, EX_SUB, op2(c, EX_MIN, end, a->size), num(c, 1));
}

// The grid's axis that the mask is about, or, where it is about none, the first one.
static int fixed_axis(const TileKernel *k) {
    int first = -1;
    for (int i = 0; i < k->ngrid; i++) {
        int axis = k->grid[i].axis;
        if (k->grid[i].sym != SYM_TILE || k->axes[axis].whole) continue;
        if (ex_uses(k->mask, SYM_POS, axis)) return axis;
        if (first < 0) first = axis;
    }
    return first;
}

static const Ex *without_end(void *ctx, ExPool *x, const Ex *e) {
    const Classify *c = ctx;
    if (e->op != EX_LT || e->args[1] != c->k->axes[c->q_axis].size) return e;
    const Ex *at = e->args[0];
    bool is = at->op == EX_SYM && at->sym == SYM_POS && at->index == c->q_axis;
    return is ? ex_bool(x, true) : e;
}

// What the mask says of the end of the grid's axis holds for positions that exist. Others count
// where the body sums over the axis; a tile with such positions is not full.
static void find_mask_of(Classify *c) {
    const TileAxis *a = &c->k->axes[c->q_axis];
    c->mask = ex_simplify(c->x, ex_map(c->x, ex_simplify(c->x, c->k->mask), without_end, c));
    if (!tile_sums_over(c->k, c->q_axis)) return;
    const Ex *behind = op2(c, EX_ADD, first_of(c, c->q_axis), num(c, a->extent));
    c->inside = op2(c, EX_LE, behind, a->size);
}

// ---- from positions to tiles

typedef struct Tiles { // lo <= flo <= fhi <= hi, tile indices; [lo, hi) is visited, [flo, fhi) is
                       // full
    const Ex *lo, *hi, *flo, *fhi;
    bool full;  // there may be full tiles
    bool exact; // all of them have a pair
} Tiles;

static const Ex *clamp(Classify *c, const Ex *e, const Ex *lo, const Ex *hi) {
    return op2(c, EX_MIN, op2(c, EX_MAX, e, lo), hi);
}

// Whether points of the grid are tiles of all sequences.
static bool is_packed(const Classify *c) {
    bool is = false;
    for (int i = 0; i < c->k->ngrid; i++)
        is |= c->k->grid[i].packed && c->k->grid[i].axis == c->q_axis;
    return is;
}

static void hull_tiles(Classify *c, Tiles *t, const KeySet *s) {
    const TileAxis *a = &c->k->axes[c->k_axis];
    const Ex *n = num(c, a->extent), *zero = num(c, 0);
    const Ex *last = op2(c, EX_SUB, a->size, num(c, 1));
    const Ex *khi = s->hi ? s->hi : last; // the mask holds the end of the keys already
    t->lo = s->lo ? op2(c, EX_DIV, op2(c, EX_MAX, s->lo, zero), n) : zero;
    t->hi = op2(c, EX_ADD, op2(c, EX_DIV, khi, n), num(c, 1));
    if (s->lo) { // both ends may lie in one tile and nothing between them
        const Ex *any = op2(c, EX_LE, op2(c, EX_MAX, s->lo, zero), khi);
        t->hi = simp_select(c->x, any, t->hi, t->lo);
    }
    t->hi = op2(c, EX_MAX, t->hi, t->lo);
    if (is_packed(c)) { // a point may be behind its sequence's last tile
        const Ex *rows = c->k->axes[c->q_axis].size;
        const Ex *some = op2(c, EX_LT, first_of(c, c->q_axis), rows);
        t->hi = simp_select(c->x, some, t->hi, t->lo);
    }
}

static void full_tiles(Classify *c, Tiles *t, const KeySet *s) {
    const TileAxis *a = &c->k->axes[c->k_axis];
    const Ex *n = num(c, a->extent);
    t->full = !s->none;
    t->flo = t->fhi = t->lo;
    if (s->none) return;
    const Ex *end = s->hi ? op2(c, EX_ADD, s->hi, num(c, 1)) : a->size;
    if (s->lo) {
        const Ex *up = op2(c, EX_ADD, s->lo, num(c, a->extent - 1));
        t->flo = clamp(c, op2(c, EX_DIV, up, n), t->lo, t->hi);
    }
    t->fhi = clamp(c, op2(c, EX_DIV, end, n), t->flo, t->hi);
}

// Operations of a test per tile; beyond them it costs as much as it might save.
enum { WHERE_MAX = 300 };

static bool is_long(const Ex *e) {
    Arena *scratch = arena_new();
    const Ex **order;
    int n = ex_order(scratch, &e, 1, &order);
    arena_free(scratch);
    return n > WHERE_MAX;
}

static const Ex *where_of(Classify *c, const Ex *mask) {
    MaskBounds b = pass_mask_bounds(c->x, mask, c->q_axis, c->k_axis, c->range.q.lo, c->range.q.hi,
                                    first_of(c, c->k_axis), last_of(c, c->k_axis));
    bool always = b.may->op == EX_CONST && b.may->i;
    return always || is_long(b.may) ? NULL : b.may;
}

static Tiles tiles_of(Classify *c, KeySet *hull) {
    // The key's bounds are what is asked for.
    range_init(&c->range, c->x, c->q_axis, c->k_axis, first_of(c, c->q_axis), last_of(c, c->q_axis),
               NULL, NULL);
    Tiles t = {0};
    *hull = mask_hull(&c->range, c->mask);
    hull_tiles(c, &t, hull);
    KeySet inner = mask_inner(&c->range, c->mask);
    full_tiles(c, &t, &inner);
    if (c->inside) t.fhi = simp_select(c->x, c->inside, t.fhi, t.flo);
    const Ex *ok = c->range.guard;
    if (ok) { // a scalar so large that the arithmetic of the mask might wrap: every tile is partial
        const TileAxis *a = &c->k->axes[c->k_axis];
        const Ex *last = op2(c, EX_SUB, a->size, num(c, 1));
        const Ex *count = op2(c, EX_ADD, op2(c, EX_DIV, last, num(c, a->extent)), num(c, 1));
        t.lo = simp_select(c->x, ok, t.lo, num(c, 0));
        t.hi = simp_select(c->x, ok, t.hi, count);
        t.flo = simp_select(c->x, ok, t.flo, t.lo);
        t.fhi = simp_select(c->x, ok, t.fhi, t.flo);
    }
    t.exact = hull->exact;
    return t;
}

// ---- rewriting bodies

typedef struct Expand {
    ExPool *x;
    const Ex *mask;
    bool kept; // shifts
} Expand;

static const Ex *expand_one(void *ctx, ExPool *x, const Ex *e) {
    const Expand *m = ctx;
    if (e->op != EX_SYM) return e;
    return e->sym == SYM_MASK ? m->mask : e->sym == SYM_KEPT ? ex_bool(x, m->kept) : e;
}

static const Ex *expand(void *ctx, const Ex *e) {
    Expand *m = ctx;
    return ex_simplify(m->x, ex_map(m->x, e, expand_one, m));
}

static void expand_body(TileOp *loop, Expand *m) {
    for (TileOp *op = tile_next(&loop->body, NULL); op; op = tile_next(&loop->body, op))
        tile_map_exprs(op, expand, m);
}

// Of a key's position in a grid (`k / 64`, `k % 64`) whose rows are whole tiles: the row is the same for all of a tile, and the
// column is as far from the tile's first as the key is.
static const Ex *in_grid(void *ctx, ExPool *x, const Ex *e) {
    Classify *c = ctx;
    if (e->op != EX_DIV && e->op != EX_MOD) return e;
    const Ex *pos = e->args[0], *by = e->args[1];
    bool key = pos->op == EX_SYM && pos->sym == SYM_POS && pos->index == c->k_axis;
    int extent = c->k->axes[c->k_axis].extent;
    if (!key || by->op != EX_CONST || by->i < extent || by->i % extent) return e;
    const Ex *tile = ex_sym(x, SYM_TILE, c->k_axis, EX_I32);
    const Ex *at = op2(c, e->op, tile, num(c, by->i / extent));
    if (e->op == EX_DIV) return at;
    const Ex *first = op2(c, EX_MUL, op2(c, EX_SUB, at, tile), num(c, extent));
    return op2(c, EX_ADD, pos, first);
}

static void make_partial(Classify *c, TileOp *loop, const Ex *index, const Ex *where, bool kept) {
    loop->index = index;
    loop->tiles = CLASS_PARTIAL;
    if (where) loop->where = ex_simplify(c->x, ex_subst(c->x, where, SYM_TILE, c->k_axis, index));
    const Ex *mask = ex_map(c->x, ex_simplify(c->x, c->k->mask), in_grid, c);
    Expand m = {c->x, ex_simplify(c->x, mask), kept};
    expand_body(loop, &m);
}

// A loop goes on with what the one before leaves.
static void put_behind(Classify *c, TileOp *before, TileOp *loop) {
    if (before->next)
        tile_insert_before(before->next, loop);
    else
        tile_append(before->block, loop);
    for (int i = 0; i < loop->results.n; i++) {
        tile_replace(&c->k->body, before->results.data[i], loop->results.data[i]);
        loop->args.data[i] = before->results.data[i];
    }
}

static void make_full(Classify *c, TileOp *before, TileOp *full, const Ex *index, bool kept) {
    full->index = index;
    full->tiles = CLASS_FULL;
    Expand m = {c->x, ex_bool(c->x, true), kept};
    expand_body(full, &m);
    put_behind(c, before, full);
}

// Clones of a loop for its full tiles; where shifts stay in these, another one in which they do not. It
// has no steps, and stands for what a schedule puts in the place of one that went wrong. Where most tiles
// are partial shifts stay in these, too.
typedef struct Loops {
    TileOp *again;          // of partial tiles, without steps; or NULL
    TileOp *full, *follows; // or NULL
} Loops;

static Loops clone_loops(Classify *c, bool full, bool most_partial) {
    Loops l = {NULL, NULL, NULL};
    bool stays = tile_has(&c->k->body, TILE_BOUND);
    if (stays && most_partial && !ex_reads(c->mask))
        l.again = tile_clone(c->p, c->k, c->loop, NULL, NULL);
    if (full) l.full = tile_clone(c->p, c->k, c->loop, NULL, NULL);
    if (full && stays) l.follows = tile_clone(c->p, c->k, c->loop, NULL, NULL);
    return l;
}

static void make_loops(Classify *c, const Loops *l, const Ex *partial, const Ex *where,
                       const Ex *full) {
    make_partial(c, c->loop, partial, where, l->again);
    if (l->again) make_partial(c, l->again, partial, where, false);
    if (l->again) put_behind(c, c->loop, l->again);
    if (l->full) make_full(c, l->again ? l->again : c->loop, l->full, full, true);
    if (l->follows) make_full(c, l->full, l->follows, full, false);
}

// Both loops' steps of all, `partial` of them partial; of a split row those of this part.
static void share_steps(Classify *c, const Loops *f, const Ex *partial, const Ex *total) {
    TileOp *loop = c->loop;
    pass_share_steps(c->p, c->k, loop, total);
    if (f->again) f->again->from = f->again->to = loop->to;
    if (!f->full) return;
    const Ex *end = loop->to, *middle = partial;
    if (pass_split_axis(c->p, c->k) >= 0) middle = clamp(c, partial, loop->from, end);
    loop->to = f->full->from = middle;
    if (f->again) f->again->from = f->again->to = middle;
    f->full->to = end;
    if (f->follows) f->follows->from = f->follows->to = end;
}

static bool moves(const Classify *c, const Ex *bound) {
    return bound && ex_uses(bound, SYM_TILE, c->q_axis);
}

// The later the tile of queries, the more keys, or in a window at least not fewer: start with the last. In a window of the
// backward the last tiles of keys have fewer queries.
static void order_tiles(Classify *c, const KeySet *hull) {
    bool gradients = c->k->purpose == PURPOSE_GRADIENTS;
    if (!moves(c, hull->hi) || (gradients && moves(c, hull->lo))) return;
    for (int i = 0; i < c->k->ngrid; i++) {
        TileGrid *g = &c->k->grid[i];
        if (g->sym == SYM_TILE && g->axis == c->q_axis) g->reversed = true;
    }
}

// The steps of a list that the device makes: the partial tiles, then the full ones.
static bool follow_list(Classify *c, const Tiles *t) {
    TileMapQuery q = {c->p,  c->k,  c->mask,   c->q_axis, c->k_axis,
                      t->lo, t->hi, c->inside, c->range.q};
    for (int a = 0; a < c->k->naxes; a++) // of which a list knows nothing
        if (a != c->q_axis && a != c->k_axis && ex_uses(c->mask, SYM_TILE, a)) return false;
    if (t->exact || c->p->batch) return false; // a list is of all sequences
    if (!c->lists->tile && !pass_tile_map(&q, c->lists)) return false;
    Loops loops = clone_loops(c, c->lists->full, true);
    make_loops(c, &loops, c->lists->tile, NULL, c->lists->tile);
    share_steps(c, &loops, c->lists->partial, c->lists->all);
    return true;
}

// The partial tiles from the upper end down to the full ones, then those below them.
static const Ex *partial_index(Classify *c, const Tiles *t, const Ex *above, const Ex *partial) {
    const Ex *step = ex_symbol(c->x, SYM_STEP);
    const Ex *down = op2(c, EX_SUB, op2(c, EX_SUB, t->hi, num(c, 1)), step);
    if (above == partial) return down;
    const Ex *up = op2(c, EX_ADD, t->lo, op2(c, EX_SUB, step, above));
    return simp_select(c->x, op2(c, EX_LT, step, above), down, up);
}

static void split_loop(Classify *c) {
    KeySet hull;
    find_mask_of(c);
    Tiles t = tiles_of(c, &hull);
    order_tiles(c, &hull);
    if (follow_list(c, &t)) return;
    const Ex *above = op2(c, EX_SUB, t.hi, t.fhi);
    const Ex *partial = op2(c, EX_ADD, above, op2(c, EX_SUB, t.flo, t.lo));
    const Ex *where = t.exact ? NULL : where_of(c, c->mask);
    const Ex *step = op2(c, EX_SUB, ex_symbol(c->x, SYM_STEP), partial);
    Loops loops = clone_loops(c, t.full, above != partial); // a window: tiles of both its ends
    make_loops(c, &loops, partial_index(c, &t, above, partial), where, op2(c, EX_ADD, t.flo, step));
    const Ex *total = op2(c, EX_ADD, partial, op2(c, EX_SUB, t.fhi, t.flo));
    if (t.exact) pass_set_parts(c->p, c->k, c->loop, total); // of others no launch knows the steps
    share_steps(c, &loops, partial, total);
}

static const Ex *look_for_mask(void *ctx, const Ex *e) {
    *(bool *)ctx |= ex_uses(e, SYM_MASK, -1);
    return e;
}

static bool is_masked(const TileBlock *b) {
    bool found = false;
    for (TileOp *op = tile_next(b, NULL); op; op = tile_next(b, op))
        tile_map_exprs(op, look_for_mask, &found);
    return found;
}

// A sweep: the innermost loop around what is masked; not, say, one over parts, or over heads.
static bool sweeps(const TileOp *loop, int q_axis) {
    if (loop->kind != TILE_LOOP || loop->tiles != CLASS_ANY || loop->axis == q_axis) return false;
    for (const TileOp *op = tile_next(&loop->body, NULL); op; op = tile_next(&loop->body, op))
        if (op->kind == TILE_LOOP && is_masked(&op->body)) return false;
    return q_axis >= 0 && is_masked(&loop->body);
}

static void classify_block(TileProgram *p, TileKernel *k, TileBlock *b, TileMapLists *lists) {
    int q_axis = fixed_axis(k);
    for (TileOp *op = b->first, *next; op; op = next) {
        next = op->next;
        Classify c = {
            .p = p, .k = k, .x = p->pool, .loop = op, .q_axis = q_axis, .k_axis = op->axis};
        c.lists = lists;
        if (sweeps(op, q_axis))
            split_loop(&c);
        else if (op->kind == TILE_LOOP)
            classify_block(p, k, &op->body, lists);
    }
}

void pass_classify(TileProgram *p) {
    for (int i = 0, n = p->kernels.n; i < n; i++) { // lists are made by kernels behind these
        TileMapLists lists = {0};
        classify_block(p, p->kernels.data[i], &p->kernels.data[i]->body, &lists);
        pass_prove_inside(p, p->kernels.data[i]);
    }
    pass_tidy(p);
}
