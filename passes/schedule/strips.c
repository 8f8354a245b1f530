// strips.c: what a step computes once for each key or each diagonal, not for each element.
//
// In: a kernel whose maps stand in loops over keys, before it is scheduled. Out: what a score takes
// from a table of distances, or of keys, is a map of its own, whose result is a strip:
//
//     loop N                                     loop N
//       %s = map [M, N] (%dot) {          ->       %b: f32[M, N] in strip = map [M, N] () {
//         %dot + table[h, M.pos - N.pos]             table[h, M.pos - N.pos]
//       }                                          }
//                                                  %s = map [M, N] (%dot, %b) { %dot + %b }
//
// A tile of 64 rows and 128 keys has 8192 elements, 191 diagonals and 128 keys: loads and functions
// are done that often, and an element costs a load from shared memory, or less where neighbours
// share one. Holds afterwards: the strips of a step have room in `room` bytes.
// What is light stays: a multiply-add costs less than a load.
#include "passes/schedule/strips.h"

enum { STRIP_WORTH = 4 }; // of weights as below: a load, a function or a division

static int weight_of(const Ex *e) {
    static const int weights[] = {
        [C_FREE] = 0, [C_PLAIN] = 0, [C_DIVIDE] = 4, [C_LOAD] = 8, [C_SPECIAL] = 8};
    return weights[ex_op_cost(e->op, e->type)];
}

typedef struct Made { // of a step, by expression
    const Ex *e;
    TileValue *strip;
} Made;

typedef struct Strips {
    TileProgram *p;
    TileKernel *k;
    Arena *scratch;
    TileOp *loop;
    int row, col, rows, room;
    VEC(Made) made;
} Strips;

typedef struct Node {
    const Ex *e;
    TileAlong along;
    int weight; // as a tree, up to STRIP_WORTH
    bool reached, leaves;
    const Ex *now;
} Node;

typedef struct Walk {
    Strips *s;
    TileOp *map;
    Node *node;
    int n;
    ExMemo at;
} Walk;

static Node *node_of(const Walk *w, const Ex *e) { return ex_memo_get(&w->at, e); }

static int bytes_of(const TileKernel *k, const TileValue *v, int rows) {
    int n = k->axes[v->axis[v->rank - 1]].extent;
    if (v->rank == 2) n += rows - 1;
    return pass_padded(n * dtype_bytes(v->dtype), 16);
}

static bool has_room(Strips *s, const TileValue *v) {
    int bytes = bytes_of(s->k, v, s->rows);
    if (bytes > s->room) return false;
    s->room -= bytes;
    return true;
}

// ---- out of a map

static TileValue *strip_of(Strips *s, TileOp *map, const Ex *e) {
    for (int i = 0; i < s->made.n; i++)
        if (s->made.data[i].e == e) return s->made.data[i].strip;
    TileOp *op = pass_map(s->p, s->k, NULL, pass_map_axes(map), map->span);
    const Ex *body = pass_transplant(s->p, op, map, e);
    TileValue *v = pass_out(s->p, s->k, op, "strip", pass_dtype_of(e->type), body, EX_CONST, 0);
    if (!has_room(s, v)) return NULL;
    v->home = HOME_STRIP;
    tile_insert_before(map, op);
    // Operands are numbered by map: without any, what is equal is the same.
    if (!op->args.n) VEC_PUSH(s->scratch, &s->made, ((Made){e, v}));
    return v;
}

static const Ex *with_new_args(const Walk *w, const Ex *e) {
    const Ex *args[EX_MAX_RANK];
    for (int i = 0; i < e->nargs; i++) args[i] = node_of(w, e->args[i])->now;
    return ex_with_args(w->s->p->pool, e, args);
}

static void describe(Walk *w, const Ex **order, const TileAlong *along) {
    for (int i = 0; i < w->n; i++) {
        Node *node = &w->node[i];
        *node = (Node){.e = order[i], .along = along[i], .weight = weight_of(order[i])};
        for (int a = 0; a < order[i]->nargs; a++)
            node->weight += node_of(w, order[i]->args[a])->weight;
        if (node->weight > STRIP_WORTH) node->weight = STRIP_WORTH;
        ex_memo_put(w->s->scratch, &w->at, order[i], node);
    }
}

static bool is_worth(const Node *n) {
    return n->along == ALONG_DIAGONALS && n->weight >= STRIP_WORTH;
}

// Users before arguments, so that what leaves is as large as it can be; then what stays is rebuilt.
static void take_out(Walk *w) {
    for (int i = w->n - 1; i >= 0; i--) {
        Node *node = &w->node[i];
        if (!node->reached) continue;
        node->leaves = is_worth(node);
        for (int a = 0; a < node->e->nargs && !node->leaves; a++)
            node_of(w, node->e->args[a])->reached = true;
    }
    for (int i = 0; i < w->n; i++) {
        Node *node = &w->node[i];
        if (!node->reached) continue;
        bool room = w->map->args.n < PASS_MAX_OPERANDS;
        TileValue *v = node->leaves && room ? strip_of(w->s, w->map, node->e) : NULL;
        node->now = v              ? pass_operand(w->s->p, w->map, v)
                    : node->leaves ? node->e
                                   : with_new_args(w, node->e);
    }
}

// What a map makes of numbers alone, in place of its result.
static const Ex *opened(const Walk *w, const Ex *e) {
    const TileValue *v = w->map->args.data[e->index];
    const TileOp *def = v->def;
    if (def->kind != TILE_MAP) return e;
    for (int i = 0; i < def->args.n; i++)
        if (def->args.data[i]->rank) return e;
    for (int i = 0; i < def->results.n; i++)
        if (def->results.data[i] == v && def->outs.data[i].reduce == EX_CONST)
            return pass_transplant(w->s->p, w->map, def, def->outs.data[i].body);
    return e;
}

// An index of a row that was made outside of the loop (passes/tile/hoist.c), as what it was made of: half of a
// difference does not tell that it is one.
static const Ex *whole_index(void *ctx, ExPool *x, const Ex *e) {
    const Walk *w = ctx;
    (void)x;
    if (e->op != EX_SYM || e->sym != SYM_PARAM || e->type != EX_I32) return e;
    const TileValue *v = w->map->args.data[e->index];
    return v->rank == 1 && v->axis[0] == w->s->row ? opened(w, e) : e;
}

static bool any_leaves(const Walk *w) {
    bool any = false;
    for (int i = 0; i < w->n; i++) any |= is_worth(&w->node[i]);
    return any;
}

static void diagonals_of(Strips *s, TileOp *map) {
    Walk w = {.s = s, .map = map};
    const Ex **roots = ARENA_ARRAY(s->scratch, const Ex *, map->outs.n + 1), **order;
    for (int i = 0; i < map->outs.n; i++)
        roots[i] = ex_map(s->p->pool, map->outs.data[i].body, whole_index, &w);
    w.n = ex_order(s->scratch, roots, map->outs.n, &order);
    w.node = ARENA_ARRAY(s->scratch, Node, w.n + 1);
    TileAlong *along = ARENA_ARRAY(s->scratch, TileAlong, w.n + 1);
    tile_along(s->scratch, map, s->row, s->col, order, w.n, along);
    describe(&w, order, along);
    if (any_leaves(&w)) {
        for (int i = 0; i < map->outs.n; i++) node_of(&w, roots[i])->reached = true;
        take_out(&w);
        for (int i = 0; i < map->outs.n; i++) map->outs.data[i].body = node_of(&w, roots[i])->now;
    }
    pass_compact(s->p, map); // operands that were looked into may be of no use
}

// ---- numbers of keys are maps of their own already (passes/tile/hoist.c)

// A number of the step, as the page of a tile: a strip is made before any other map of the step.
static const Ex *number_of_step(void *ctx, ExPool *x, const Ex *e) {
    const Walk *w = ctx;
    (void)x;
    if (e->op != EX_SYM || e->sym != SYM_PARAM) return e;
    const TileValue *v = w->map->args.data[e->index];
    return !v->rank && v->def->block == &w->s->loop->body ? opened(w, e) : e;
}

static void open_numbers(Strips *s, TileOp *map) {
    Walk w = {.s = s, .map = map};
    map->outs.data[0].body = ex_map(s->p->pool, map->outs.data[0].body, number_of_step, &w);
    pass_compact(s->p, map);
}

static void loads_something(void *ctx, const Ex *e) { *(int *)ctx += weight_of(e); }

static bool is_for_keys(const Strips *s, const TileOp *map) {
    if (map->naxes != 1 || map->axes[0] != s->col || map->outs.n != 1) return false;
    if (map->outs.data[0].reduce != EX_CONST) return false;
    for (int i = 0; i < map->args.n; i++)
        if (map->args.data[i]->rank) return false;
    int weight = 0;
    ex_visit(map->outs.data[0].body, loads_something, &weight);
    return weight >= STRIP_WORTH;
}

static bool is_score(const Strips *s, const TileOp *map) {
    return map->naxes == 2 && map->axes[0] == s->row && map->axes[1] == s->col;
}

static void strips_of_step(Strips *s) {
    for (TileOp *op = s->loop->body.first, *next; op; op = next) {
        next = op->next;
        if (op->kind != TILE_MAP || op->results.data[0]->home != HOME_ANY) continue;
        if (is_score(s, op)) diagonals_of(s, op);
        if (is_for_keys(s, op) && has_room(s, op->results.data[0])) {
            open_numbers(s, op);
            op->results.data[0]->home = HOME_STRIP;
        }
    }
}

int pass_strips(TileProgram *p, TileKernel *k, int groups, int room) {
    int row = tile_grid_axis(k), most = 0;
    if (row < 0) return 0;
    if (groups < 1) groups = 1;
    int rows = pass_padded(k->axes[row].extent, groups) / groups;
    room /= groups;
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        if (op->kind != TILE_LOOP || op->axis == row) continue;
        Strips s = {p, k, arena_new(), op, row, op->axis, rows, room, {0}};
        strips_of_step(&s);
        if (room - s.room > most) most = room - s.room;
        arena_free(s.scratch);
    }
    return most * groups;
}

void pass_visit_elements(const TileKernel *k, TileOp *map, const Ex *e,
                         void (*fn)(void *ctx, const Ex *e), void *ctx) {
    Strips s = {.k = (TileKernel *)k, .scratch = arena_new(), .row = tile_grid_axis(k)};
    Walk w = {.s = &s, .map = map};
    const Ex **order;
    for (int i = 0; i < map->naxes; i++)
        if (map->axes[i] != s.row) s.col = map->axes[i];
    w.n = ex_order(s.scratch, &e, 1, &order);
    w.node = ARENA_ARRAY(s.scratch, Node, w.n + 1);
    TileAlong *along = ARENA_ARRAY(s.scratch, TileAlong, w.n + 1);
    tile_along(s.scratch, map, s.row, s.col, order, w.n, along);
    describe(&w, order, along);
    node_of(&w, e)->reached = true;
    for (int i = w.n - 1; i >= 0; i--) {
        Node *node = &w.node[i];
        if (!node->reached || is_worth(node)) continue;
        fn(ctx, node->e);
        for (int a = 0; a < node->e->nargs; a++) node_of(&w, node->e->args[a])->reached = true;
    }
    arena_free(s.scratch);
}

// As early as what they are made of is there: loads run beside the products.
void pass_raise_strips(TileOp *loop) {
    TileOp *first = loop->body.first;
    for (TileOp *op = first, *next; op; op = next) {
        next = op->next;
        if (op != first && pass_is_strip(op)) pass_move_before(first, op);
    }
}
