// tilemap.c: see tilemap.h.
//
// In: a sweep over key tiles whose mask depends on data. Out: one or two small kernels before it,
// which write for each tile of queries the list of the key tiles with a pair: those in which some
// pair is masked, then those in which none is. One warp makes one list, a tile a lane at a time.
//
// What a list says follows from the mask itself, evaluated over intervals (mask.c). A part of the
// mask that reads inputs and depends on the query alone, or on the key alone, is evaluated at every
// position of a tile, so that its least and greatest value are exact however it is computed; the
// keys' are worked out once for all lists (the kernel of bounds). An input that is indexed by both
// is looked up at all indices that a pair of tiles can have, where these are few. For the rest
// nothing is known, and the tile counts as partial.
//
//     q >= k && doc[b, q] == doc[b, k]
//
//     bounds:  least0[n], most0[n] = rowmin, rowmax of doc[b, k] over the tile's keys
//     map:     least, most = rowmin, rowmax of doc[b, q] over the tile's queries
//              some pair:  n * BN <= q1 && least <= most0[n] && least0[n] <= most
//              all pairs:  n * BN + BN - 1 <= q0 && least0[n] == most == least == most0[n]
//
// The list of a tile: [0] how many partial tiles, [1] how many in all, [2..] which.
#include "passes/mask/tilemap.h"

#include "passes/mask/mask.h"
#include "passes/simplify/rules.h"
#include "passes/tile/rewrite.h"

enum {
    MAX_BOX = 256,   // elements of an input that a pair of tiles can reach
    PART_MAX = 400,  // operations of a part; it is evaluated some times in a row
    TEST_MAX = 2000, // of what is asked of a pair of tiles
    HEAD = 2,        // of a list: its counts
};

typedef enum Along { BY_QUERY = 1, BY_KEY = 2 } Along;

typedef struct Part { // of the mask; SYM_LET with its number stands for it
    const Ex *e;
    int along; // bits; both: a LOAD whose indices are in the terms of other parts
    const Ex *index[EX_MAX_RANK]; // of such a LOAD: the least
    int span[EX_MAX_RANK];        // and how many from there
    const Ex *last[EX_MAX_RANK];
    const Ex *least, *most; // in the map's kernel; NULL: not known
} Part;

typedef struct Build {
    const TileMapQuery *q;
    TileProgram *p;
    ExPool *x;
    Arena *scratch;
    const Ex *b, *h; // the list's coordinates: 0 where the mask does not depend on them
    Part part[MASK_PARTS];
    int nparts;
    const Ex *mask; // in terms of parts
    // the current kernel
    TileKernel *k;
    TileBlock *block;
    int lanes;             // of a warp
    int lane, seen;        // axes: of tiles, of a tile's elements
    VEC(TileValue *) args; // of every map: least and most of parts
    int bounds, list;      // tensors
    int bounds_input, list_input;
} Build;

static const Ex *num(Build *b, int64_t v) { return ex_i32(b->x, (int32_t)v); }
static const Ex *op2(Build *b, ExOp op, const Ex *x, const Ex *y) { return simp_2(b->x, op, x, y); }
static const Ex *tile_of(Build *b, int axis) { return ex_sym(b->x, SYM_TILE, axis, EX_I32); }
static const Ex *pos_of(Build *b, int axis) { return ex_sym(b->x, SYM_POS, axis, EX_I32); }
static const Ex *size_less_1(Build *b, int axis) {
    return op2(b, EX_SUB, b->q->k->axes[axis].size, num(b, 1));
}
static int extent_of(const Build *b, int axis) { return b->q->k->axes[axis].extent; }

static const Ex *tiles_along(Build *b, int axis) {
    const TileAxis *a = &b->q->k->axes[axis];
    const Ex *up = op2(b, EX_ADD, a->size, num(b, a->extent - 1));
    return op2(b, EX_DIV, up, num(b, a->extent));
}

// ---- parts of the mask

typedef struct Node {
    int along;  // which positions it depends on
    bool reads; // an input, at an index that depends on one
    const Ex *new;
} Node;

static const Node *node_of(const ExMemo *nodes, const Ex *e) { return ex_memo_get(nodes, e); }

static bool is_short(const Ex *e, int most) {
    Arena *scratch = arena_new();
    const Ex **order;
    int n = ex_order(scratch, &e, 1, &order);
    arena_free(scratch);
    return n <= most;
}

static const Ex *add_part(Build *b, Part part, const Ex *instead) {
    int i = 0;
    while (i < b->nparts && b->part[i].e != part.e) i++;
    if (i == MASK_PARTS) return instead;
    if (i == b->nparts) b->part[b->nparts++] = part;
    return ex_sym(b->x, SYM_LET, i, part.e->type);
}

// What a user of e, which depends on both positions, sees in its place.
static const Ex *seen_as(Build *b, const Ex *e, const Node *n) {
    bool one = n->reads && (n->along == BY_QUERY || n->along == BY_KEY);
    if (!one || e->type == EX_F32 || !is_short(e, PART_MAX)) return n->new;
    return add_part(b, (Part){.e = e, .along = n->along}, n->new);
}

static int along_of(const Build *b, const Ex *e) {
    if (e->op != EX_SYM || e->sym != SYM_POS) return 0;
    return e->index == b->q->q_axis ? BY_QUERY : e->index == b->q->k_axis ? BY_KEY : 0;
}

static void look_at(Build *b, ExMemo *nodes, const Ex *e) {
    Node *n = ARENA_NEW(b->scratch, Node);
    const Ex *args[EX_MAX_RANK];
    n->along = along_of(b, e);
    for (int i = 0; i < e->nargs; i++) {
        const Node *a = node_of(nodes, e->args[i]);
        n->along |= a->along;
        n->reads |= a->reads;
    }
    n->reads |= e->op == EX_LOAD && n->along;
    n->new = e;
    if (n->along == (BY_QUERY | BY_KEY)) {
        for (int i = 0; i < e->nargs; i++)
            args[i] = seen_as(b, e->args[i], node_of(nodes, e->args[i]));
        n->new = ex_with_args(b->x, e, args);
        if (e->op == EX_LOAD && e->type != EX_F32)
            n->new = add_part(b, (Part){.e = n->new, .along = n->along}, n->new);
    }
    ex_memo_put(b->scratch, nodes, e, n);
}

static void find_parts(Build *b) {
    const Ex *mask = b->q->mask, **order;
    ExMemo nodes = {0};
    int n = ex_order(b->scratch, &mask, 1, &order);
    for (int i = 0; i < n; i++) look_at(b, &nodes, order[i]);
    b->mask = seen_as(b, mask, node_of(&nodes, mask));
}

// ---- kernels

// Whether a coordinate of the lists goes along a dimension of the grid.
static bool is_at(const Ex *at, const TileGrid *g) { return at->op == EX_SYM && at->sym == g->sym; }

static TileKernel *begin_kernel(Build *b, const char *suffix, int tiles_of) {
    TileKernel *from = b->q->k;
    const char *name = arena_printf(b->p->arena, "%s_%s", from->name, suffix);
    TileKernel *k = b->k = tile_kernel(b->p, name, PURPOSE_TILE_MAP);
    int last = b->q->q_axis > b->q->k_axis ? b->q->q_axis : b->q->k_axis;
    k->naxes = last + 1; // expressions of the sweep's kernel mean the same here
    for (int i = 0; i <= last; i++) k->axes[i] = from->axes[i];
    k->mask = ex_bool(b->x, true);
    for (int i = 0; i < from->ngrid; i++)
        if (is_at(b->b, &from->grid[i]) || is_at(b->h, &from->grid[i]))
            k->grid[k->ngrid++] = from->grid[i];
    k->grid[k->ngrid++] =
        (TileGrid){.sym = SYM_TILE, .axis = tiles_of, .count = tiles_along(b, tiles_of)};
    int n = extent_of(b, tiles_of);
    b->seen = tile_axis(k, "I", num(b, n), true);
    k->axes[b->seen].extent = n;
    k->schedule = (TileSchedule){.lane_axis = b->seen, .warps = 1};
    b->block = &k->body;
    return k;
}

static TileOp *map_over(Build *b, AxisSet axes) {
    TileOp *map = pass_map(b->p, b->k, b->block, axes, b->q->mask->span);
    for (int i = 0; i < b->args.n; i++) tile_arg(b->p, map, b->args.data[i]);
    return map;
}

static TileValue *result(Build *b, TileOp *map, const char *name, Dtype t, const Ex *e, ExOp reduce,
                         int axis) {
    return pass_out(b->p, b->k, map, name, t, ex_simplify(b->x, e), reduce, axis);
}

static TileValue *uniform(Build *b, const char *name, const Ex *e) {
    return result(b, map_over(b, 0), name, DT_I32, e, EX_CONST, 0);
}

static void store(Build *b, int tensor, const Ex *const *at, TileValue *v) {
    TileOp *op = tile_op(b->p, b->k, b->block, TILE_STORE, b->q->mask->span);
    op->tensor = tensor;
    for (int d = 0; d < b->p->tensors.data[tensor].rank; d++)
        op->coord[d] = (TileCoord){.axis = -1, .at = at[d]};
    tile_arg(b->p, op, v);
}

// A part at each of a tile's positions; past the end the last one again.
static const Ex *at_each(Build *b, const Part *part, int axis) {
    const Ex *first = op2(b, EX_MUL, tile_of(b, axis), num(b, extent_of(b, axis)));
    const Ex *at = op2(b, EX_ADD, first, pos_of(b, b->seen));
    at = op2(b, EX_MIN, at, size_less_1(b, axis));
    return ex_conv(b->x, EX_I32, ex_subst(b->x, part->e, SYM_POS, axis, at));
}

// Least and most of the parts that depend on one axis alone.
static TileOp *extremes(Build *b, int along, int axis) {
    TileOp *map = NULL;
    for (int i = 0; i < b->nparts; i++) {
        if (b->part[i].along != along) continue;
        if (!map) map = pass_map(b->p, b->k, b->block, 1u << b->seen, b->q->mask->span);
        const Ex *e = at_each(b, &b->part[i], axis);
        result(b, map, "least", DT_I32, e, EX_ROWMIN, b->seen);
        result(b, map, "most", DT_I32, e, EX_ROWMAX, b->seen);
    }
    return map;
}

// ---- bounds of tiles of keys

static int parts_along(const Build *b, int along) {
    int n = 0;
    for (int i = 0; i < b->nparts; i++) n += b->part[i].along == along;
    return n;
}

static const Ex *points_along(Build *b, const Ex *at) {
    for (int i = 0; i < b->q->k->ngrid; i++)
        if (is_at(at, &b->q->k->grid[i])) return b->q->k->grid[i].count;
    return num(b, 1);
}

static void make_bounds(Build *b) {
    int n = 2 * parts_along(b, BY_KEY);
    if (!n) return;
    const char *name = arena_printf(b->p->arena, "%s_bounds", b->q->k->name);
    const Ex *extent[] = {points_along(b, b->b), points_along(b, b->h), num(b, n),
                          tiles_along(b, b->q->k_axis)};
    b->bounds = tile_work(b->p, name, extent, 4, &b->bounds_input);
    begin_kernel(b, "bounds", b->q->k_axis);
    const TileOp *map = extremes(b, BY_KEY, b->q->k_axis);
    for (int i = 0; i < n; i++) {
        const Ex *at[] = {b->b, b->h, num(b, i), tile_of(b, b->q->k_axis)};
        store(b, b->bounds, at, map->results.data[i]);
    }
}

static void use_bounds(Build *b, const Ex *tile) {
    for (int i = 0, n = 0; i < b->nparts; i++) {
        Part *part = &b->part[i];
        if (part->along != BY_KEY) continue;
        const Ex *at[] = {b->b, b->h, num(b, n++), tile};
        part->least = ex_load(b->x, b->bounds_input, EX_I32, at, 4, false);
        at[2] = num(b, n++);
        part->most = ex_load(b->x, b->bounds_input, EX_I32, at, 4, false);
    }
}

// ---- bounds of tiles of queries

static const Ex *argument(Build *b, TileValue *v) {
    VEC_PUSH(b->p->arena, &b->args, v);
    return ex_sym(b->x, SYM_PARAM, b->args.n - 1, EX_I32);
}

static void make_query_bounds(Build *b) {
    const TileOp *map = extremes(b, BY_QUERY, b->q->q_axis);
    for (int i = 0, n = 0; i < b->nparts; i++) {
        Part *part = &b->part[i];
        if (part->along != BY_QUERY) continue;
        part->least = argument(b, map->results.data[n++]);
        part->most = argument(b, map->results.data[n++]);
    }
}

// ---- inputs indexed by both positions: all elements that a pair of tiles can reach

// How far apart the values of e can be within a pair of tiles, at most; -1: not known.
static int64_t reach(const Build *b, const Ex *e) {
    int64_t r[2] = {0, 0};
    if (e->op == EX_SYM && e->sym == SYM_POS)
        return along_of(b, e) ? extent_of(b, e->index) - 1 : -1;
    if (e->op == EX_SYM && e->sym == SYM_LET) return -1;
    if (e->nargs > 2) return -1;
    for (int i = 0; i < e->nargs; i++)
        if ((r[i] = reach(b, e->args[i])) < 0) return -1;
    int64_t c = e->nargs == 2 && e->args[1]->op == EX_CONST ? e->args[1]->i : 0;
    if (!r[0] && !r[1]) return 0;
    switch ((int)e->op) {
    case EX_ADD:
    case EX_SUB: return r[0] + r[1];
    case EX_NEG:
    case EX_ABS: return r[0];
    case EX_MIN:
    case EX_MAX: return r[0] > r[1] ? r[0] : r[1];
    case EX_MUL: return c > 0 && c <= MAX_BOX && r[0] <= MAX_BOX ? r[0] * c : -1;
    case EX_DIV: return c > 0 ? (r[0] + c - 1) / c : -1;
    case EX_SHR: return c > 0 && c < 24 ? (r[0] + (1 << c) - 1) >> c : -1;
    case EX_MOD: return c > 0 ? c - 1 : -1;
    case EX_BAND: return c > 0 && !(c & (c + 1)) ? c : -1;
    default: return -1;
    }
}

static bool bound_indices(Build *b, RangeCtx *c, Part *part) {
    int64_t box = 1;
    for (int d = 0; d < part->e->nargs; d++) {
        const Ex *e = part->e->args[d];
        part->index[d] = part->last[d] = e;
        part->span[d] = 1;
        if (!range_varies(c, e)) continue;
        Range r = range_of(c, e);
        int64_t far = reach(b, e);
        if (!r.lo || !r.hi || far < 0 || far >= MAX_BOX) return false;
        part->index[d] = r.lo, part->last[d] = r.hi, part->span[d] = (int)far + 1;
        box *= part->span[d];
        if (box > MAX_BOX) return false;
    }
    return true;
}

static int box_of(const Part *part) {
    int n = 1;
    for (int d = 0; d < part->e->nargs; d++) n *= part->span[d];
    return n;
}

// Axes of boxes are a kernel's: as many as there is room for, and one of each size.
static int find_axis(const TileKernel *k, int n) {
    for (int i = 0; i < k->naxes; i++)
        if (k->axes[i].whole && k->axes[i].extent == n && k->axes[i].name[0] == 'A') return i;
    return -1;
}

// One axis over the whole box, whose number is taken apart.
static void make_box(Build *b, Part *part) {
    int n = box_of(part), axis = find_axis(b->k, n);
    if (axis < 0) axis = tile_axis(b->k, arena_printf(b->p->arena, "A%d", n), num(b, n), true);
    b->k->axes[axis].extent = n;
    const Ex *rest = pos_of(b, axis), *index[EX_MAX_RANK];
    for (int d = part->e->nargs - 1; d >= 0; d--) {
        index[d] = part->index[d];
        if (part->span[d] == 1) continue;
        const Ex *at = op2(b, EX_MOD, rest, num(b, part->span[d]));
        rest = op2(b, EX_DIV, rest, num(b, part->span[d]));
        index[d] = op2(b, EX_MIN, op2(b, EX_ADD, index[d], at), part->last[d]);
    }
    const Ex *e = ex_conv(b->x, EX_I32, ex_with_args(b->x, part->e, index));
    TileOp *map = map_over(b, 1u << b->lane | 1u << axis);
    part->least = argument(b, result(b, map, "least", DT_I32, e, EX_ROWMIN, axis));
    part->most = argument(b, result(b, map, "most", DT_I32, e, EX_ROWMAX, axis));
}

// ---- lists

typedef struct Test { // of the tile that a lane looks at
    const Ex *tile, *inside;
    MaskBounds pairs;
} Test;

static void set_ranges(Build *b, RangeCtx *c, Range *known, const Ex *tile) {
    const Ex *n = num(b, extent_of(b, b->q->k_axis));
    const Ex *k0 = op2(b, EX_MUL, tile, n), *end = op2(b, EX_ADD, k0, n);
    const Ex *k1 = op2(b, EX_MIN, op2(b, EX_SUB, end, num(b, 1)), size_less_1(b, b->q->k_axis));
    range_init(c, b->x, b->q->q_axis, b->q->k_axis, b->q->q.lo, b->q->q.hi, k0, k1);
    for (int i = 0; i < b->nparts; i++)
        known[i] = (Range){b->part[i].least, b->part[i].most, INT32_MIN, INT32_MAX};
    c->lets = known;
    c->nlets = b->nparts;
}

static void make_boxes(Build *b, const Ex *tile) {
    Range known[MASK_PARTS];
    RangeCtx c;
    for (int i = 0; i < b->nparts; i++) {
        Part *part = &b->part[i];
        if (part->along != (BY_QUERY | BY_KEY)) continue;
        part->least = part->most = NULL;
        set_ranges(b, &c, known, tile); // what earlier boxes gave is known
        if (!bound_indices(b, &c, part) || c.guard) continue;
        bool room = b->k->naxes < TILE_MAX_AXES || find_axis(b->k, box_of(part)) >= 0;
        if (room) make_box(b, part);
    }
}

// A list begins with the last tile: for causal masks the one at the diagonal.
static Test test_of(Build *b) {
    Test t;
    Range known[MASK_PARTS];
    RangeCtx c;
    const Ex *last = op2(b, EX_SUB, b->q->hi, num(b, 1));
    t.tile = op2(b, EX_SUB, last, pos_of(b, b->lane));
    t.inside = op2(b, EX_LE, b->q->lo, t.tile);
    const Ex *at = op2(b, EX_MAX, t.tile, num(b, 0));
    use_bounds(b, at);
    make_boxes(b, at);
    set_ranges(b, &c, known, at);
    t.pairs = pass_mask_bounds_in(&c, b->mask);
    return t;
}

// A full tile has no position past the last key: what comes from there is not masked.
static const Ex *within_keys(Build *b, const Ex *tile) {
    const Ex *n = num(b, extent_of(b, b->q->k_axis)), *end = op2(b, EX_ADD, tile, num(b, 1));
    return op2(b, EX_LE, op2(b, EX_MUL, end, n), b->q->k->axes[b->q->k_axis].size);
}

static TileValue *carried(Build *b, TileOp *loop, TileValue *start) {
    tile_arg(b->p, loop, start);
    TileValue *v = tile_value(b->p, b->k, "n", DT_I32, NULL, 0);
    v->def = loop;
    VEC_PUSH(b->p->arena, &loop->carried, v);
    return v;
}

// Adds the tiles of a kind behind the `start` that the list has; how many it has then.
static TileValue *append_tiles(Build *b, bool full, TileValue *start) {
    TileOp *loop = tile_op(b->p, b->k, &b->k->body, TILE_LOOP, b->q->mask->span);
    const Ex *count = op2(b, EX_SUB, b->q->hi, b->q->lo);
    loop->axis = b->lane;
    loop->from = num(b, 0);
    loop->to = op2(b, EX_DIV, op2(b, EX_ADD, count, num(b, b->lanes - 1)), num(b, b->lanes));
    loop->index = ex_symbol(b->x, SYM_STEP);
    TileValue *n = carried(b, loop, start);
    b->block = &loop->body;
    int nargs = b->args.n;
    Test t = test_of(b);
    const Ex *must = op2(b, EX_AND, t.pairs.must, within_keys(b, t.tile));
    if (b->q->inside) must = op2(b, EX_AND, must, b->q->inside);
    const Ex *take = full ? must : op2(b, EX_AND, t.pairs.may, simp_1(b->x, EX_NOT, must));
    TileOp *map = map_over(b, 1u << b->lane);
    TileValue *tile = result(b, map, "tile", DT_I32, t.tile, EX_CONST, 0);
    TileValue *is = result(b, map, full ? "full" : "part", DT_BOOL, op2(b, EX_AND, t.inside, take),
                           EX_CONST, 0);
    TileOp *op = tile_op(b->p, b->k, b->block, TILE_APPEND, b->q->mask->span);
    tile_arg(b->p, op, tile), tile_arg(b->p, op, is), tile_arg(b->p, op, n);
    op->tensor = b->list;
    const Ex *number = ex_sym(b->x, SYM_PARAM, 2, EX_I32);
    const Ex *at[] = {b->b, b->h, tile_of(b, b->q->q_axis), op2(b, EX_ADD, number, num(b, HEAD))};
    for (int d = 0; d < 4; d++) op->coord[d] = (TileCoord){.axis = -1, .at = at[d]};
    TileValue *now = tile_result(b->p, b->k, op, "n", DT_I32, NULL, 0);
    tile_arg(b->p, tile_op(b->p, b->k, b->block, TILE_YIELD, b->q->mask->span), now);
    b->block = &b->k->body;
    b->args.n = nargs; // boxes are the loop's own
    return tile_result(b->p, b->k, loop, "n", DT_I32, NULL, 0);
}

static void store_count(Build *b, int at, TileValue *n) {
    const Ex *coord[] = {b->b, b->h, tile_of(b, b->q->q_axis), num(b, at)};
    store(b, b->list, coord, n);
}

static void make_lists(Build *b, bool full) {
    const char *name = arena_printf(b->p->arena, "%s_tiles", b->q->k->name);
    const Ex *extent[] = {points_along(b, b->b), points_along(b, b->h),
                          tiles_along(b, b->q->q_axis),
                          op2(b, EX_ADD, tiles_along(b, b->q->k_axis), num(b, HEAD))};
    b->list = tile_work(b->p, name, extent, 4, &b->list_input);
    begin_kernel(b, "map", b->q->q_axis);
    b->lane = tile_axis(b->k, "J", tiles_along(b, b->q->k_axis), false);
    b->k->axes[b->lane].extent = b->lanes;
    b->k->schedule.lane_axis = b->lane;
    make_query_bounds(b);
    TileValue *n = uniform(b, "none", num(b, 0));
    n = append_tiles(b, false, n);
    store_count(b, 0, n);
    if (full) n = append_tiles(b, true, n);
    store_count(b, 1, n);
}

// ---- before the sweep

static void insert_kernel(TileProgram *p, TilePlan *plan, int before, int kernel) {
    VEC_PUSH(p->arena, &plan->kernels, kernel);
    for (int i = plan->kernels.n - 1; i > before; i--)
        plan->kernels.data[i] = plan->kernels.data[i - 1];
    plan->kernels.data[before] = kernel;
}

static void run_before(Build *b, int first, int end) {
    TileProgram *p = b->p;
    int sweep = 0;
    while (p->kernels.data[sweep] != b->q->k) sweep++;
    for (int i = 0; i < p->plans.n; i++) {
        TilePlan *plan = &p->plans.data[i];
        for (int j = 0; j < plan->kernels.n; j++) {
            if (plan->kernels.data[j] != sweep) continue;
            for (int k = first; k < end; k++) insert_kernel(p, plan, j++, k);
        }
    }
}

static void use_lists(Build *b, TileMapLists *out) {
    const Ex *at[] = {b->b, b->h, tile_of(b, b->q->q_axis), num(b, 0)};
    out->partial = ex_load(b->x, b->list_input, EX_I32, at, 4, true);
    at[3] = num(b, 1);
    out->all = ex_load(b->x, b->list_input, EX_I32, at, 4, true);
    at[3] = op2(b, EX_ADD, ex_symbol(b->x, SYM_STEP), num(b, HEAD));
    out->tile = ex_load(b->x, b->list_input, EX_I32, at, 4, false);
}

// What could be said of a pair of tiles, before anything is made of it: symbols stand for bounds.
static MaskBounds outlook(Build *b) {
    RangeCtx c;
    Range known[MASK_PARTS];
    for (int i = 0; i < b->nparts; i++) {
        Part *part = &b->part[i];
        if (part->along == (BY_QUERY | BY_KEY)) { // in a box, or not at all
            set_ranges(b, &c, known, tile_of(b, b->q->k_axis));
            if (!bound_indices(b, &c, part) || c.guard) continue;
        }
        part->least = ex_sym(b->x, SYM_LET, MASK_PARTS + 2 * i, EX_I32);
        part->most = ex_sym(b->x, SYM_LET, MASK_PARTS + 2 * i + 1, EX_I32);
    }
    set_ranges(b, &c, known, tile_of(b, b->q->k_axis));
    return pass_mask_bounds_in(&c, b->mask);
}

static void begin(Build *b) {
    const TileMapQuery *q = b->q;
    bool by_b = ex_uses(q->mask, SYM_B, -1), by_h = ex_uses(q->mask, SYM_H, -1);
    b->b = by_b ? ex_symbol(b->x, SYM_B) : num(b, 0);
    b->h = by_h ? ex_symbol(b->x, SYM_H) : num(b, 0);
    find_parts(b);
}

void pass_mask_parts(const TileMapQuery *q, MaskParts *out) {
    Build b = {.q = q, .p = q->p, .x = q->p->pool, .scratch = arena_new()};
    begin(&b);
    *out = (MaskParts){.pairs = outlook(&b), .n = b.nparts};
    for (int i = 0; i < b.nparts; i++) {
        const Part *part = &b.part[i];
        MaskPart *to = &out->part[i];
        to->e = part->least ? part->e : NULL;
        to->of_query = part->along & BY_QUERY, to->of_key = part->along & BY_KEY;
        for (int d = 0; d < EX_MAX_RANK; d++)
            to->first[d] = part->index[d], to->last[d] = part->last[d];
    }
    arena_free(b.scratch);
}

static bool is_constant(const Ex *e, bool v) { return e->op == EX_CONST && e->i == v; }

bool pass_tile_map(const TileMapQuery *q, TileMapLists *out) {
    Build b = {.q = q, .p = q->p, .x = q->p->pool, .scratch = arena_new()};
    const Target *target = target_get(q->p->target);
    b.lanes =
        target->kind == KIND_HOST ? 1 : target->lanes; // a thread of the host is a warp of one
    begin(&b);
    MaskBounds hope = outlook(&b);
    out->full = !is_constant(hope.must, false);
    bool useful = !is_constant(hope.may, true) || out->full;
    useful = useful && is_short(hope.may, TEST_MAX) && is_short(hope.must, TEST_MAX);
    if (useful) {
        int first = b.p->kernels.n;
        make_bounds(&b);
        make_lists(&b, out->full);
        run_before(&b, first, b.p->kernels.n);
        use_lists(&b, out);
    }
    arena_free(b.scratch);
    return useful;
}

// ---- the schedule

void pass_schedule_lanes(const TileProgram *p, TileKernel *k) {
    bool host = target_get(p->target)->kind == KIND_HOST;
    TileHome home = host ? HOME_SCRATCH : HOME_FRAGMENT;
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        for (int i = 0; i < op->results.n; i++) op->results.data[i]->home = home;
        for (int i = 0; i < op->carried.n; i++) op->carried.data[i]->home = home;
    }
}
