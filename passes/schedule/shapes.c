// shapes.c: see shapes.h.
#include "passes/schedule/shapes.h"
#include "passes/tile/rewrite.h"

#include <string.h>

static const struct {
    const char *name;
    int keys, queries, rows, b, h, s;
} shapes[] = {
#define SHAPE(e, name, ...) {name, __VA_ARGS__},
#include "passes/schedule/shapes.def"
#undef SHAPE
};

const char *shape_name(ShapeClass c) { return shapes[c].name; }

bool shape_find(const char *name, ShapeClass *out) {
    for (int i = 0; i < SHAPE_COUNT; i++)
        if (!strcmp(name, shapes[i].name)) {
            *out = (ShapeClass)i;
            return true;
        }
    return false;
}

bool shape_matters(const Target *t) { return t->kind == KIND_NVPTX; }

static bool is_in(int c, const int32_t *size) {
    int64_t rows = (int64_t)size[SIZE_B] * size[SIZE_HQ] * size[SIZE_SQ];
    if (shapes[c].rows && rows > shapes[c].rows) return false;
    return !shapes[c].keys || size[SIZE_SK] <= shapes[c].keys || size[SIZE_SQ] <= shapes[c].queries;
}

ShapeClass shape_of(const Target *t, const int32_t *size) {
    int c = shape_matters(t) ? 0 : SHAPE_COUNT - 1;
    while (!is_in(c, size)) c++;
    return (ShapeClass)c;
}

void shape_typical(ShapeClass c, int32_t *size) {
    memset(size, 0, SIZE_FREE * sizeof *size);
    size[SIZE_B] = shapes[c].b;
    size[SIZE_HQ] = size[SIZE_HKV] = shapes[c].h;
    size[SIZE_SQ] = size[SIZE_SK] = shapes[c].s;
}

// Where a tile has more than half of the class's keys those of one tile: a second one would be mostly empty.
static int keys_of(const TileProgram *other, ShapeClass c) {
    int most = shapes[c].keys;
    for (int i = 0; i < other->kernels.n; i++) {
        const TileKernel *k = other->kernels.data[i];
        int tile = k->purpose == PURPOSE_ATTENTION ? k->schedule.knobs.keys : 0;
        if (tile > most / 2 && tile < most) return tile;
    }
    return most;
}

// Launches in the class, but for those of classes before it.
static const Ex *condition(ExPool *x, const TileProgram *other, ShapeClass c) {
    const Ex *keys = ex_sym(x, SYM_SIZE, SIZE_SK, EX_I32);
    const Ex *queries = ex_sym(x, SYM_SIZE, SIZE_SQ, EX_I32);
    if (!shapes[c].keys) return ex_bool(x, true);
    const Ex *in = ex_2(x, EX_LE, keys, ex_i32(x, keys_of(other, c)));
    if (shapes[c].queries)
        in = ex_2(x, EX_OR, in, ex_2(x, EX_LE, queries, ex_i32(x, shapes[c].queries)));
    if (!shapes[c].rows) return in;
    const Ex *heads =
        ex_2(x, EX_MUL, ex_sym(x, SYM_SIZE, SIZE_B, EX_I32), ex_sym(x, SYM_SIZE, SIZE_HQ, EX_I32));
    const Ex *each =
        ex_2(x, EX_DIV, ex_i32(x, shapes[c].rows), ex_2(x, EX_MAX, heads, ex_i32(x, 1)));
    return ex_2(x, EX_AND, in, ex_2(x, EX_LE, queries, each));
}

// ---- joining

static bool same_tensor(const TileTensor *t, const TileTensor *u) {
    return t->role == u->role && t->dtype == u->dtype && t->rank == u->rank &&
           memcmp(t->extent, u->extent, sizeof t->extent) == 0;
}

// The next tensor that is no workspace, from i on.
static int next_given(const TileProgram *p, int i) {
    while (i < p->tensors.n && p->tensors.data[i].role == TENSOR_WORK) i++;
    return i;
}

// Whether a grid of p's is over the size, or over one that is made of it.
static bool is_grids(const TileProgram *p, int size) {
    for (int i = size + 1; i < p->sizes.n; i++) {
        const Ex *def = p->sizes.data[i].def;
        if (def && ex_uses(def, SYM_SIZE, size) && is_grids(p, i)) return true;
    }
    for (int i = 0; i < p->kernels.n; i++) {
        const TileKernel *k = p->kernels.data[i];
        const Ex *from = k->ngrid ? k->grid[k->ngrid - 1].from : NULL;
        if (pass_split_size(p, k) == size) return true;
        if (from && from->index == size) return true;
    }
    return false;
}

// A derived size of both that the grids of only one are over is that one's to say.
static bool same_size(const TileProgram *p, const TileProgram *q, int i) {
    const TileSize *s = &p->sizes.data[i], *t = &q->sizes.data[i];
    bool free = !is_grids(p, i) || !is_grids(q, i);
    return s->def == t->def || (s->def && t->def && !strcmp(s->name, t->name) && free);
}

static bool alike(const TileProgram *p, const TileProgram *q) {
    if (p->pool != q->pool) return false;
    for (int i = 0; i < p->sizes.n && i < q->sizes.n; i++)
        if (!same_size(p, q, i)) return false;
    int i = next_given(p, 0), j = next_given(q, 0);
    for (; i < p->tensors.n && j < q->tensors.n;
         i = next_given(p, i + 1), j = next_given(q, j + 1)) {
        const TileTensor *t = &p->tensors.data[i], *u = &q->tensors.data[j];
        if (t->index != u->index || !same_tensor(t, u)) return false;
    }
    return i == p->tensors.n && j == q->tensors.n;
}

typedef struct Moved { // where the other program's tensors and inputs are in this one
    TileProgram *p;
    Arena *scratch;
    int *tensor, *input;
} Moved;

static int find_tensor(const TileProgram *p, const TileTensor *t) {
    for (int i = 0; i < p->tensors.n; i++)
        if (!strcmp(p->tensors.data[i].name, t->name) && same_tensor(&p->tensors.data[i], t))
            return i;
    return -1;
}

// A workspace that differs (lists of other tiles) is one more.
static int add_work(TileProgram *p, TileTensor t, ShapeClass c) {
    t.name = arena_printf(p->arena, "%s_%s", t.name, shapes[c].name);
    t.index = 0;
    for (int i = 0; i < p->tensors.n; i++) t.index += p->tensors.data[i].role == TENSOR_WORK;
    return tile_tensor(p, t);
}

static int find_input(TileProgram *p, int tensor) {
    for (int i = 0; i < p->inputs.n; i++)
        if (p->inputs.data[i] == tensor) return i;
    VEC_PUSH(p->arena, &p->inputs, tensor);
    return p->inputs.n - 1;
}

static const Ex *move_load(void *ctx, ExPool *x, const Ex *e) {
    const Moved *m = ctx;
    if (e->op != EX_LOAD || m->input[e->input] == e->input) return e;
    return ex_load(x, m->input[e->input], e->type, e->args, e->nargs, e->inside);
}

static const Ex *move_expr(void *ctx, const Ex *e) {
    Moved *m = ctx;
    return ex_map(m->p->pool, e, move_load, m);
}

static void move_kernel(Moved *m, TileKernel *k) {
    k->mask = move_expr(m, k->mask);
    if (k->where) k->where = move_expr(m, k->where);
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        op->tensor = m->tensor[op->tensor];
        tile_map_exprs(op, move_expr, m);
    }
}

static void move_kernels(TileProgram *p, const TileProgram *other, ShapeClass c) {
    Moved m = {.p = p, .scratch = arena_new()};
    m.tensor = ARENA_ARRAY(m.scratch, int, other->tensors.n + 1);
    m.input = ARENA_ARRAY(m.scratch, int, other->inputs.n + 1);
    for (int i = 0; i < other->tensors.n; i++) {
        m.tensor[i] = find_tensor(p, &other->tensors.data[i]);
        if (m.tensor[i] < 0) m.tensor[i] = add_work(p, other->tensors.data[i], c);
    }
    for (int i = 0; i < other->inputs.n; i++)
        m.input[i] = find_input(p, m.tensor[other->inputs.data[i]]);
    for (int i = 0; i < other->kernels.n; i++) move_kernel(&m, other->kernels.data[i]);
    arena_free(m.scratch);
}

// The kernel of a program that is the other's: made of the same by the same choices. -1: none.
static int twin_of(const TileProgram *p, const TileKernel *k) {
    for (int i = 0; i < p->kernels.n; i++) {
        const Knobs *knobs = &p->kernels.data[i]->schedule.knobs;
        if (knobs->said && knobs_same(knobs, &k->schedule.knobs) &&
            !strcmp(p->kernels.data[i]->name, k->name))
            return i;
    }
    return -1;
}

static int add_kernel(TileProgram *p, TileKernel *k, ShapeClass c) {
    int twin = twin_of(p, k);
    if (twin >= 0) return twin;
    k->name = arena_printf(p->arena, "%s_%s", k->name, shapes[c].name);
    VEC_PUSH(p->arena, &p->kernels, k);
    return p->kernels.n - 1;
}

// A plan whose launches another takes first.
static bool is_taken(const TilePlan *first, int n, const TilePlan *plan) {
    for (int i = 0; i < n; i++)
        if (plan->when && first[i].when == plan->when) return true;
    return false;
}

// Kernels that no plan has, after others took its launches.
static void drop_idle(TileProgram *p) {
    int n = 0, *at = ARENA_ARRAY(p->arena, int, p->kernels.n);
    for (int i = 0; i < p->kernels.n; i++) at[i] = -1;
    for (int i = 0; i < p->plans.n; i++)
        for (int j = 0; j < p->plans.data[i].kernels.n; j++)
            at[p->plans.data[i].kernels.data[j]] = 0;
    for (int i = 0; i < p->kernels.n; i++) {
        if (at[i] < 0) continue;
        p->kernels.data[n] = p->kernels.data[i];
        at[i] = n++;
    }
    p->kernels.n = n;
    for (int i = 0; i < p->plans.n; i++)
        for (int j = 0; j < p->plans.data[i].kernels.n; j++)
            p->plans.data[i].kernels.data[j] = at[p->plans.data[i].kernels.data[j]];
}

bool shape_join(TileProgram *p, const TileProgram *other, ShapeClass c) {
    if (!alike(p, other)) return false;
    for (int i = 0; i < other->sizes.n; i++) {
        bool has = i < p->sizes.n;
        if (has && !is_grids(p, i)) p->sizes.data[i] = other->sizes.data[i];
        if (!has) VEC_PUSH(p->arena, &p->sizes, other->sizes.data[i]);
    }
    move_kernels(p, other, c);
    int *at = ARENA_ARRAY(p->arena, int, other->kernels.n);
    const Ex *in = condition(p->pool, other, c);
    VEC(TilePlan) plans = {0};
    for (int i = 0; i < other->kernels.n; i++) at[i] = add_kernel(p, other->kernels.data[i], c);
    for (int i = 0; i < other->plans.n; i++) {
        TilePlan plan = other->plans.data[i];
        if (!plan.when) plan.when = in; // parts are for launches of all classes that want them
        for (int j = 0; j < plan.kernels.n; j++) plan.kernels.data[j] = at[plan.kernels.data[j]];
        VEC_PUSH(p->arena, &plans, plan);
    }
    for (int i = 0; i < p->plans.n; i++)
        if (!is_taken(plans.data, plans.n, &p->plans.data[i]))
            VEC_PUSH(p->arena, &plans, p->plans.data[i]);
    p->plans.data = plans.data;
    p->plans.n = plans.n;
    p->plans.cap = plans.cap;
    drop_idle(p);
    return true;
}
