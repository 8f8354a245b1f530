// hoist.c: moves what does not depend on an axis out of maps over it, and what does not depend on a
// loop out of the loop.
//
// In: a program, tidied. Out: the same computation, less often. Holds afterwards: no map evaluates,
// element by element, a subexpression of some weight (a load of an input, a division, a
// transcendental function) that is the same along one of its axes; no load or map in a loop is the
// same in every step.
//
//     loop N
//       %s = map { dot + bias[h, q] * slope[h] * 1.44 }
//
//     ->  %b = map () { slope[h] * 1.44 }
//         %r = map over M (b = %b) { bias[h, q] * b }
//         loop N
//           %s = map (r = %r) { dot + r }
//
// Cheap things stay: recomputing `q_idx + 1` costs less than a register held through a loop. A load
// that moves out of a select is harmless: its index is clamped into the tensor.
#include "passes/mask/tilemap.h"
#include "passes/passes.h"
#include "passes/tile/rewrite.h"

// ---- weight

enum { WEIGHT_WORTH = 4 };

static int weight_of(const Ex *e) {
    static const int weights[] = {
        [C_FREE] = 0, [C_PLAIN] = 1, [C_DIVIDE] = 4, [C_LOAD] = 8, [C_SPECIAL] = 8};
    return weights[ex_op_cost(e->op, e->type)];
}

// ---- out of maps

// What is known of each node of a map's bodies, arguments before their users.
typedef struct Node {
    const Ex *e;
    AxisSet axes; // along which it varies
    int weight;   // as a tree, up to WEIGHT_WORTH
    bool reached; // from a body, through nodes that stay
    bool leaves;
    const Ex *new;
} Node;

typedef struct Hoist {
    TileProgram *p;
    TileKernel *k;
    TileOp *map;
    Arena *scratch;
    ExMemo at; // expression -> its Node
    Node *node;
    int n;
} Hoist;

static Node *node_of(const Hoist *h, const Ex *e) { return ex_memo_get(&h->at, e); }

// A choice between two that a pass makes: of the two one is left.
static bool is_decided(const Ex *e) {
    return e->op == EX_SELECT && e->args[0]->op == EX_SYM && e->args[0]->sym == SYM_STAY;
}

static void describe(Hoist *h, Node *node) {
    const Ex *e = node->e;
    node->axes = e->nargs ? 0 : pass_expr_axes(h->k, h->map, e);
    node->weight = weight_of(e);
    for (int i = 0; i < e->nargs; i++) {
        const Node *arg = node_of(h, e->args[i]);
        node->axes |= arg->axes;
        node->weight += arg->weight;
    }
    if (is_decided(e)) {
        const Node *stays = node_of(h, e->args[1]), *moves = node_of(h, e->args[2]);
        node->weight = stays->weight > moves->weight ? stays->weight : moves->weight;
    }
    if (node->weight > WEIGHT_WORTH) node->weight = WEIGHT_WORTH;
    ex_memo_put(h->scratch, &h->at, e, node);
}

// A map before this one that computes e once for each element of its own axes.
static const Ex *move_out(Hoist *h, const Ex *e, AxisSet axes) {
    TileOp *map = pass_map_before(h->p, h->map, axes);
    const Ex *body = pass_transplant(h->p, map, h->map, e);
    const char *name = axes ? "t" : "u";
    TileValue *v = pass_out(h->p, h->k, map, name, pass_dtype_of(e->type), body, EX_CONST, 0);
    return pass_operand(h->p, h->map, v);
}

static bool may_leave(const Hoist *h, const Node *node) {
    return node->weight >= WEIGHT_WORTH && node->axes != pass_map_axes(h->map);
}

static const Ex *with_new_args(const Hoist *h, const Ex *e) {
    const Ex *args[EX_MAX_RANK];
    for (int i = 0; i < e->nargs; i++) args[i] = node_of(h, e->args[i])->new;
    return ex_with_args(h->p->pool, e, args);
}

// Users before arguments, so that what leaves is as large as it can be; then what stays is rebuilt.
static void hoist_nodes(Hoist *h) {
    int room = PASS_MAX_OPERANDS - h->map->args.n;
    for (int i = h->n - 1; i >= 0; i--) {
        Node *node = &h->node[i];
        if (!node->reached) continue;
        node->leaves = room > 0 && may_leave(h, node);
        if (node->leaves) room--;
        for (int a = 0; a < node->e->nargs && !node->leaves; a++)
            node_of(h, node->e->args[a])->reached = true;
    }
    for (int i = 0; i < h->n; i++) {
        Node *node = &h->node[i];
        if (!node->reached) continue;
        node->new = node->leaves ? move_out(h, node->e, node->axes) : with_new_args(h, node->e);
    }
}

static void hoist_map(TileProgram *p, TileKernel *k, TileOp *map) {
    Hoist h = {.p = p, .k = k, .map = map, .scratch = arena_new()};
    const Ex **roots = ARENA_ARRAY(h.scratch, const Ex *, map->outs.n + 1), **order;
    for (int i = 0; i < map->outs.n; i++) roots[i] = map->outs.data[i].body;
    h.n = ex_order(h.scratch, roots, map->outs.n, &order);
    h.node = ARENA_ARRAY(h.scratch, Node, h.n + 1);
    for (int i = 0; i < h.n; i++) {
        h.node[i].e = order[i];
        describe(&h, &h.node[i]);
    }
    for (int i = 0; i < map->outs.n; i++) node_of(&h, roots[i])->reached = true;
    hoist_nodes(&h);
    for (int i = 0; i < map->outs.n; i++) map->outs.data[i].body = node_of(&h, roots[i])->new;
    pass_compact(p, map);
    arena_free(h.scratch);
}

// ---- out of loops

typedef struct Moves {
    const TileKernel *k;
    const TileOp *loop;
    bool yes;
} Moves;

static bool stays(void *ctx, const Ex *e) {
    const Moves *m = ctx;
    if (ex_is_sym(e, SYM_MASK, -1)) return ex_any(m->k->mask, stays, ctx);
    bool placed = ex_is_sym(e, SYM_TILE, -1) || ex_is_sym(e, SYM_POS, -1);
    return ex_is_sym(e, SYM_STEP, -1) ||
           (placed && tile_root_axis(m->k, e->index) == m->loop->axis);
}

static const Ex *check_expr(void *ctx, const Ex *e) {
    Moves *m = ctx;
    m->yes = m->yes && !ex_any(e, stays, m);
    return e;
}

static bool moves_out(const TileKernel *k, const TileOp *loop, TileOp *op) {
    if (op->kind != TILE_MAP && op->kind != TILE_LOAD) return false;
    if (op->kind == TILE_LOAD && tile_stores_to(k, op->tensor)) return false;
    for (int i = 0; i < op->naxes; i++)
        if (tile_root_axis(k, op->axes[i]) == loop->axis) return false;
    for (int i = 0; i < op->args.n; i++)
        if (pass_within(&loop->body, op->args.data[i]->def) || op->args.data[i]->def == loop)
            return false;
    Moves m = {k, loop, true};
    tile_map_exprs(op, check_expr, &m);
    return m.yes;
}

// Loops within first: what leaves them may go on.
static void empty_loop(TileKernel *k, TileOp *loop) {
    for (TileOp *op = loop->body.first; op; op = op->next)
        if (op->kind == TILE_LOOP) empty_loop(k, op);
    for (TileOp *op = loop->body.first, *next; op; op = next) {
        next = op->next;
        if (moves_out(k, loop, op)) pass_move_before(loop, op);
    }
}

static void hoist_kernel(TileProgram *p, TileKernel *k) {
    // Maps that move_out makes stand before the current map and may hold something for yet fewer
    // axes.
    for (bool again = true; again;) {
        int before = k->nvalues;
        for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
            if (op->kind == TILE_MAP) hoist_map(p, k, op);
        again = k->nvalues != before;
    }
    for (TileOp *op = k->body.first; op; op = op->next)
        if (op->kind == TILE_LOOP) empty_loop(k, op);
}

void pass_hoist(TileProgram *p) {
    for (int i = 0; i < p->kernels.n; i++)
        if (!tile_has_lanes(p->kernels.data[i])) hoist_kernel(p, p->kernels.data[i]);
    pass_tidy(p);
}
