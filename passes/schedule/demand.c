// demand.c: see demand.h.
#include "passes/schedule/demand.h"
#include "passes/schedule/strips.h"
#include "passes/tile/rewrite.h"

enum { FEW_TESTS = 2 }; // comparisons of positions in a mask: a causal one and the end of the keys

static bool is_of_keys(const TileKernel *k, const TileValue *v) {
    return v->rank == 1 && !tile_in_grid(k, v->axis[0]) && !k->axes[v->axis[0]].whole;
}

int pass_key_vectors(const TileKernel *k) {
    int n = 0;
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; op->kind == TILE_MAP && i < op->results.n; i++)
            n += is_of_keys(k, op->results.data[i]);
    return n;
}

enum { MOST_LOADS = 8 }; // told apart

typedef struct Loads {
    const Ex *load[MOST_LOADS];
    int n;
} Loads;

typedef struct Tests {
    int comparisons, loads;
} Tests;

static void count_tests(void *ctx, const Ex *e) {
    Tests *t = ctx;
    bool compares = e->op == EX_LT || e->op == EX_LE || e->op == EX_EQ || e->op == EX_NE;
    if (compares && t->comparisons <= FEW_TESTS) t->comparisons += ex_uses(e, SYM_POS, -1);
    t->loads += e->op == EX_LOAD;
}

// What is looked up for a row is a register, what is for a key or a distance a strip.
static void find_load(void *ctx, const Ex *e) {
    Loads *l = ctx;
    if (e->op != EX_LOAD || l->n == MOST_LOADS) return;
    for (int i = 0; i < l->n; i++)
        if (l->load[i] == e) return;
    l->load[l->n++] = e;
}

int pass_element_loads(const TileKernel *k) {
    Loads l = {.n = 0};
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; op->kind == TILE_MAP && op->naxes > 1 && i < op->outs.n; i++)
            pass_visit_elements(k, op, op->outs.data[i].body, find_load, &l);
    return l.n;
}

bool pass_many_tests(const TileKernel *k) {
    Tests t = {0, 0};
    ex_visit(k->mask, count_tests, &t);
    return t.comparisons > FEW_TESTS || t.loads > 0 || pass_element_loads(k) > 0;
}

bool pass_takes_key_numbers(const TileKernel *k) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; op->kind == TILE_MAP && op->naxes > 1 && i < op->args.n; i++)
            if (is_of_keys(k, op->args.data[i])) return true;
    return false;
}

bool pass_makes_norms(const TileKernel *k) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; op->kind == TILE_MAP && op->naxes > 1 && i < op->results.n; i++)
            if (is_of_keys(k, op->results.data[i])) return true;
    return false;
}
