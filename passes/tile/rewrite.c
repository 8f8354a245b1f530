// rewrite.c: the passes' shared tools. Nothing here changes what a kernel computes, except where a
// caller asks for a result to be dropped.
#include "passes/tile/rewrite.h"

#include <assert.h>
#include <string.h>

AxisSet pass_axes_of(const TileValue *v) {
    AxisSet s = 0;
    for (int i = 0; i < v->rank; i++) s |= 1u << v->axis[i];
    return s;
}

AxisSet pass_map_axes(const TileOp *map) {
    AxisSet s = 0;
    for (int i = 0; i < map->naxes; i++) s |= 1u << map->axes[i];
    return s;
}

static int axis_list(AxisSet set, uint8_t out[TILE_MAX_RANK]) {
    int n = 0;
    for (int a = 0; a < TILE_MAX_AXES; a++)
        if (set >> a & 1) {
            assert(n < TILE_MAX_RANK);
            out[n++] = (uint8_t)a;
        }
    return n;
}

typedef struct Varies {
    const TileKernel *k;
    const TileOp *map;
    AxisSet set;
} Varies;

static void collect_positions(void *ctx, const Ex *e) {
    Varies *v = ctx;
    if (e->op == EX_SYM && e->sym == SYM_POS) v->set |= 1u << e->index;
}

static void collect_axes(void *ctx, const Ex *e) {
    Varies *v = ctx;
    if (e->op != EX_SYM) return;
    if (e->sym == SYM_POS) v->set |= 1u << e->index;
    if (e->sym == SYM_PARAM) v->set |= pass_axes_of(v->map->args.data[e->index]);
    if (e->sym == SYM_MASK) ex_visit(v->k->mask, collect_positions, v);
}

AxisSet pass_expr_axes(const TileKernel *k, const TileOp *map, const Ex *e) {
    Varies v = {k, map, 0};
    ex_visit(e, collect_axes, &v);
    return v.set;
}

// ---- building maps

TileOp *pass_map(TileProgram *p, TileKernel *k, TileBlock *b, AxisSet axes, Span span) {
    TileOp *map = tile_op(p, k, b, TILE_MAP, span);
    map->naxes = axis_list(axes, map->axes);
    return map;
}

TileOp *pass_op_before(TileProgram *p, TileOp *at, TileKind kind) {
    TileOp *op = tile_op(p, NULL, NULL, kind, at->span);
    tile_insert_before(at, op);
    return op;
}

TileOp *pass_map_before(TileProgram *p, TileOp *at, AxisSet axes) {
    TileOp *map = pass_op_before(p, at, TILE_MAP);
    map->naxes = axis_list(axes, map->axes);
    return map;
}

TileValue *pass_same_before(TileProgram *p, TileKernel *k, TileOp *at, TileValue *v) {
    TileOp *map = pass_map_before(p, at, pass_axes_of(v));
    return pass_out(p, k, map, v->name, v->dtype, pass_operand(p, map, v), EX_CONST, 0);
}

const Ex *pass_operand(TileProgram *p, TileOp *map, TileValue *v) {
    int i = 0;
    while (i < map->args.n && map->args.data[i] != v) i++;
    if (i == map->args.n) tile_arg(p, map, v);
    return ex_sym(p->pool, SYM_PARAM, i, dtype_reads(v->dtype));
}

TileValue *pass_out(TileProgram *p, TileKernel *k, TileOp *map, const char *name, Dtype t,
                    const Ex *body, ExOp reduce, int reduce_axis) {
    AxisSet axes = pass_map_axes(map);
    if (reduce != EX_CONST) axes &= ~(1u << reduce_axis);
    uint8_t list[TILE_MAX_RANK];
    int rank = axis_list(axes, list);
    TileResult r = {
        .body = body, .reduce = reduce, .reduce_axis = reduce == EX_CONST ? 0 : reduce_axis};
    VEC_PUSH(p->arena, &map->outs, r);
    return tile_result(p, k, map, name, t, list, rank);
}

typedef struct Transplant {
    TileProgram *p;
    TileOp *to;
    const TileOp *from;
} Transplant;

static const Ex *transplant_one(void *ctx, ExPool *pool, const Ex *e) {
    Transplant *t = ctx;
    (void)pool;
    if (e->op != EX_SYM || e->sym != SYM_PARAM) return e;
    return pass_operand(t->p, t->to, t->from->args.data[e->index]);
}

const Ex *pass_transplant(TileProgram *p, TileOp *to, const TileOp *from, const Ex *e) {
    Transplant t = {p, to, from};
    return ex_map(p->pool, e, transplant_one, &t);
}

void pass_compact(TileProgram *p, TileOp *map) {
    TileOp *old = ARENA_NEW(p->arena, TileOp);
    *old = *map;
    memset(&map->args, 0, sizeof map->args);
    for (int i = 0; i < map->outs.n; i++)
        map->outs.data[i].body = pass_transplant(p, map, old, map->outs.data[i].body);
}

#define REMOVE_AT(v, i)                                                                            \
    (memmove(&(v)->data[i], &(v)->data[(i) + 1], sizeof *(v)->data * (size_t)((v)->n - (i)-1)),    \
     (v)->n--)

void pass_drop_result(TileOp *op, int i) {
    REMOVE_AT(&op->results, i);
    if (op->kind == TILE_MAP) REMOVE_AT(&op->outs, i);
    if (op->kind != TILE_LOOP) return;
    REMOVE_AT(&op->args, i);
    REMOVE_AT(&op->carried, i);
    REMOVE_AT(&op->body.last->args, i);
}

// ---- looking

bool pass_before(const TileOp *a, const TileOp *b) {
    while (a && a != b) a = a->next;
    return a != NULL;
}

TileOp *pass_within(const TileBlock *b, TileOp *op) {
    while (op && op->block != b) op = op->block ? op->block->owner : NULL;
    return op;
}

bool pass_reads(const TileOp *op, const TileOp *def) {
    for (int i = 0; i < op->args.n; i++)
        if (op->args.data[i]->def == def) return true;
    return false;
}

bool pass_uses_result(const TileOp *op, const TileOp *def) {
    if (pass_reads(op, def)) return true;
    if (op->kind != TILE_LOOP) return false;
    for (const TileOp *in = tile_next(&op->body, NULL); in; in = tile_next(&op->body, in))
        if (pass_reads(in, def)) return true;
    return false;
}

void pass_move_before(TileOp *where, TileOp *op) {
    tile_unlink(op);
    tile_insert_before(where, op);
}

static bool is_size(const TileProgram *p, const char *name) {
    for (int i = 0; i < p->sizes.n; i++)
        if (!strcmp(p->sizes.data[i].name, name)) return true;
    return false;
}

int pass_size(TileProgram *p, const char *name, const Ex *def) {
    for (int i = 0; i < p->sizes.n; i++)
        if (p->sizes.data[i].def == def) return i;
    while (is_size(p, name)) name = arena_printf(p->arena, "%s_", name);
    TileSize size = {.name = name, .def = def};
    VEC_PUSH(p->arena, &p->sizes, size);
    return p->sizes.n - 1;
}

int pass_own_size(TileProgram *p, const char *name, ExOp over, const Ex *among, const Ex *def) {
    while (is_size(p, name)) name = arena_printf(p->arena, "%s_", name);
    TileSize size = {.name = name, .def = def, .own = true, .over = over, .among = among};
    VEC_PUSH(p->arena, &p->sizes, size);
    return p->sizes.n - 1;
}

Dtype pass_dtype_of(ExType t) {
    if (t == EX_F32) return DT_F32;
    return t == EX_I32 ? DT_I32 : DT_BOOL;
}

int pass_padded(int n, int to) { return (n + to - 1) / to * to; }

void pass_to_shared(TileOp *op) {
    for (int i = 0; i < op->results.n; i++) op->results.data[i]->home = HOME_SHARED;
}

TileValue *pass_put_shared(TileProgram *p, TileKernel *k, TileOp *at, TileValue *v) {
    TileValue *to = pass_same_before(p, k, at, v);
    to->home = HOME_SHARED;
    return to;
}

void pass_place(TileOp *op, const char *role, int stage, int order) {
    op->role = role;
    op->place = (TilePlace){stage, order};
}

bool pass_by_positions(const TileKernel *k) {
    int rows = tile_grid_axis(k);
    return k->purpose == PURPOSE_ONE_CHUNK && rows >= 0 && rows + 1 < k->naxes &&
           k->axes[rows + 1].beside == rows;
}

// The grid's, or what lies beside them.
static int rows_of(const TileKernel *k, const TileOp *map) {
    int rows = tile_grid_axis(k), beside = -1;
    for (int i = 0; i < map->naxes; i++) {
        if (map->axes[i] == rows) return rows;
        if (tile_root_axis(k, map->axes[i]) == rows) beside = map->axes[i];
    }
    return beside;
}

bool pass_goes_through_rows(const TileKernel *k, const TileOp *map) {
    bool all = map->naxes > 2 || tile_scans(map);
    int rows = rows_of(k, map);
    for (int i = 0; i < map->outs.n && rows >= 0; i++)
        all |= map->outs.data[i].reduce != EX_CONST && map->outs.data[i].reduce_axis == rows;
    return all;
}

bool pass_cooperative(const TileKernel *k, const TileOp *map) {
    const TileValue *v = map->results.data[0];
    int rows = tile_grid_axis(k);
    return map->naxes == 2 && v->rank == 1 && map->axes[0] != rows && map->axes[1] != rows;
}
