// tile_let.c: which expressions of a kernel get a name in its text.
//
// In: a kernel, at any level. Out: names and what they stand for. Holds afterwards: putting what
// the names stand for in their place gives the expressions back; the same kernel has the same names
// after it was printed and read.
//
//     loop N from 0 to max((((Sk - 1) / 64) + 1), 0) .. when (0 < max((((Sk - 1) / 64) + 1), 0))
//
//     ->  let e0 = max((((Sk - 1) / 64) + 1), 0)
//         loop N from 0 to e0 .. when (0 < e0)
#include "ir/tile_let.h"

enum { LEAST_OPS = 3 }; // shorter ones are easier to read in their place

typedef struct Node { // what is known of an expression
    int uses;         // in other expressions and ops
    int ops;          // operations in its text; no more than LEAST_OPS
    bool varies;      // from step to step or from element to element
    const Ex *text;
} Node;

typedef struct Finder {
    Arena *scratch;
    const TileKernel *k;
    VEC(const Ex *) roots;
    ExMemo nodes;
} Finder;

static const Ex *add_root(void *ctx, const Ex *e) {
    Finder *f = ctx;
    VEC_PUSH(f->scratch, &f->roots, e);
    return e;
}

// tile_map_exprs gives back what it is given, so the op stays as it is.
static void find_roots(Finder *f) {
    const TileBlock *b = &f->k->body;
    for (const TileOp *op = tile_next(b, NULL); op; op = tile_next(b, op))
        tile_map_exprs((TileOp *)op, add_root, f);
}

static bool symbol_varies(const TileKernel *k, const Ex *e) {
    switch ((int)e->sym) {
    case SYM_B:
    case SYM_H:
    case SYM_SIZE:
    case SYM_SCALAR:
    case SYM_WORKERS: return false;
    case SYM_TILE: return !tile_in_grid(k, e->index);
    default: return true;
    }
}

static Node *node(Finder *f, const Ex *e) { return ex_memo_get(&f->nodes, e); }

static void look_at(Finder *f, const Ex *e) {
    Node *n = ARENA_NEW(f->scratch, Node);
    n->varies = e->op == EX_SYM && symbol_varies(f->k, e);
    for (int i = 0; i < e->nargs; i++) {
        Node *arg = node(f, e->args[i]);
        arg->uses++;
        n->varies |= arg->varies;
    }
    ex_memo_put(f->scratch, &f->nodes, e, n);
}

static void write_node(TileLets *l, Finder *f, const Ex *e) {
    Node *n = node(f, e);
    const Ex *args[EX_MAX_RANK];
    n->ops = e->nargs > 0;
    for (int i = 0; i < e->nargs; i++) {
        const Node *arg = node(f, e->args[i]);
        args[i] = arg->text;
        n->ops += arg->ops;
    }
    if (n->ops > LEAST_OPS) n->ops = LEAST_OPS;
    n->text = ex_with_args(l->pool, e, args);
    if (n->uses > 1 && n->ops == LEAST_OPS && !n->varies && e->type != EX_F32) {
        VEC_PUSH(l->arena, &l->defs, n->text);
        n->text = ex_sym(l->pool, SYM_LET, l->defs.n - 1, e->type);
        n->ops = 0;
    }
    ex_memo_put(l->arena, &l->text, e, n->text);
}

bool tile_let_may(const TileKernel *k, const Ex *e) {
    Arena *scratch = arena_new();
    const Ex **order;
    int n = ex_order(scratch, &e, 1, &order);
    bool ok = e->type != EX_F32;
    for (int i = 0; i < n; i++) ok &= order[i]->op != EX_SYM || !symbol_varies(k, order[i]);
    arena_free(scratch);
    return ok;
}

TileLets *tile_lets(Arena *a, const TileKernel *k) {
    TileLets *l = ARENA_NEW(a, TileLets);
    Finder f = {.scratch = arena_new(), .k = k};
    const Ex **order;
    l->arena = a;
    l->pool = ex_pool(a);
    find_roots(&f);
    int n = ex_order(f.scratch, f.roots.data, f.roots.n, &order);
    for (int i = 0; i < n; i++) look_at(&f, order[i]);
    for (int i = 0; i < f.roots.n; i++) node(&f, f.roots.data[i])->uses++;
    for (int i = 0; i < n; i++) write_node(l, &f, order[i]);
    arena_free(f.scratch);
    return l;
}

const Ex *tile_lets_text(const TileLets *l, const Ex *e) {
    const Ex *text = ex_memo_get(&l->text, e);
    return text ? text : e;
}
