// vectors.c: numbers of positions and of channels that come with the tiles.
//
// In: a kernel over chunks of a recurrence, for an NVIDIA device, before its axes have extents. Out: what its maps read of an input
// with a number for each position (decays, beta, dt) is loaded as a tile is:
//
//     %L = map [T] () { prefix sum over T of dt[b, h, T.pos] }    ->    %dt: f32[T] = load dt[b, h, T:]
//                                                                       %L = map [T] (%dt) { prefix sum over T of %dt }
//
// so that a copy brings it into shared memory a step ahead, and no map waits for memory: a load would come back behind all
// copies that were begun before it. Behind the sequence's end a tile has zeros, and a map that is the load alone goes. Likewise decays of
// channels, and numbers that a kernel before left in workspace.
#include "passes/mask/mask.h"
#include "passes/schedule/schedule.h"
#include "passes/tile/rewrite.h"

typedef struct Vectors {
    TileProgram *p;
    TileKernel *k;
    TileOp *map;
    int blocks; // of an SM; 0: no step of a loop is copied ahead as a whole
} Vectors;

// Where an input is read: along which tiled axis its positions, and along which axis its columns.
typedef struct Place {
    int rows, columns; // -1: positions are the last dimension
} Place;

static const TileTensor *input_of(const Vectors *v, const Ex *e) {
    return &v->p->tensors.data[v->p->inputs.data[e->input]];
}

// The axis whose positions dimension d is read at, of all that the tensor has there; -1: it is not so.
static int axis_of(const Vectors *v, const Ex *e, int d) {
    const Ex *at = d < 0 ? NULL : e->args[d];
    if (!at || at->op != EX_SYM || at->sym != SYM_POS) return -1;
    return input_of(v, e)->extent[d] == v->k->axes[at->index].size ? at->index : -1;
}

// A copy does not clamp an index.
static bool is_inside(const Vectors *v, const Ex *e, int d) {
    const TileTensor *t = input_of(v, e);
    return e->inside || t->role == TENSOR_WORK ||
           pass_is_inside(v->p, v->k, e->args[d], t->extent[d]);
}

static bool find_place(const Vectors *v, const Ex *e, Place *out) {
    const TileTensor *t = input_of(v, e);
    int last = axis_of(v, e, e->nargs - 1), before = axis_of(v, e, e->nargs - 2);
    if (last < 0 || t->dtype != DT_F32 || e->type != EX_F32) return false;
    if (t->role != TENSOR_INPUT && (t->role != TENSOR_WORK || before >= 0)) return false;
    *out = before < 0 ? (Place){last, -1} : (Place){before, last};
    bool steps = !v->k->axes[out->rows].whole;
    for (int i = 0; i < e->nargs - 1 - (before >= 0); i++) {
        if (ex_uses(e->args[i], SYM_POS, -1) || ex_uses(e->args[i], SYM_PARAM, -1) ||
            ex_reads(e->args[i]) || !is_inside(v, e, i))
            return false;
        steps |= ex_uses(e->args[i], SYM_TILE, -1);
    }
    return steps && (out->columns < 0 || out->rows < out->columns);
}

static TileCoord tile_of(const Vectors *v, int axis) {
    ExPool *x = v->p->pool;
    bool whole = v->k->axes[axis].whole;
    return (TileCoord){.axis = axis,
                       .at = whole ? ex_i32(x, 0) : ex_sym(x, SYM_TILE, axis, EX_I32)};
}

static bool same_numbers(const TileOp *load, const TileOp *as, int rank) {
    bool same = load->kind == TILE_LOAD && load->tensor == as->tensor;
    for (int i = 0; i < rank && same; i++)
        same = load->coord[i].axis == as->coord[i].axis && load->coord[i].at == as->coord[i].at;
    return same;
}

static TileValue *result(Vectors *v, TileOp *op, const char *name, int rows, int columns) {
    uint8_t axes[] = {(uint8_t)rows, (uint8_t)columns};
    return tile_result(v->p, v->k, op, name, DT_F32, axes, columns < 0 ? 1 : 2);
}

// Of a block: made where it is not there.
static TileValue *load_of(Vectors *v, const Ex *e, Place at) {
    TileProgram *p = v->p;
    TileBlock *b = v->map->block;
    int root = tile_root_axis(v->k, at.rows), d = e->nargs - 1;
    TileOp *new = tile_op(p, v->k, NULL, TILE_LOAD, v->map->span), *load = b->first;
    new->tensor = p->inputs.data[e->input];
    if (at.columns >= 0) new->coord[d--] = tile_of(v, at.columns);
    new->coord[d--] = tile_of(v, root);
    for (; d >= 0; d--) new->coord[d] = (TileCoord){.axis = -1, .at = e->args[d]};
    while (load && !same_numbers(load, new, e->nargs)) load = load->next;
    if (!load) {
        load = new;
        result(v, load, p->tensors.data[new->tensor].name, root, at.columns);
        tile_insert_before(b->first, load);
    }
    TileValue *of = load->results.data[0];
    if (at.rows == root) return of;
    for (TileOp *op = load->next; op != v->map; op = op->next)
        if (op->kind == TILE_BESIDE && op->args.data[0] == of) return op->results.data[0];
    TileOp *other = tile_op(p, v->k, NULL, TILE_BESIDE, v->map->span);
    tile_arg(p, other, of);
    tile_insert_before(v->map, other); // no wait stands before the loads behind
    return result(v, other, of->name, at.rows, at.columns);
}

// `select((T.pos < S), %x, 0.0)` of a number that is zero there anyhow.
static bool is_zero_behind(const Vectors *v, const Ex *e) {
    if (e->op != EX_SELECT || e->args[1]->op != EX_SYM || e->args[1]->sym != SYM_PARAM)
        return false;
    const TileValue *of = v->map->args.data[e->args[1]->index];
    const TileOp *def =
        of->def && of->def->kind == TILE_BESIDE ? of->def->args.data[0]->def : of->def;
    const Ex *in = e->args[0], *zero = e->args[2];
    return def && def->kind == TILE_LOAD && pass_is_operand(v->p, def) && zero->op == EX_CONST &&
           zero->f == 0 && in->op == EX_LT && in->args[0]->op == EX_SYM &&
           in->args[0]->sym == SYM_POS && in->args[0]->index == of->axis[0] &&
           in->args[1] == v->k->axes[of->axis[0]].size;
}

typedef struct Asked {
    const Vectors *v;
    const Ex *e;
    bool is;
} Asked;

static void ask(void *ctx, const Ex *e) {
    Asked *a = ctx;
    a->is |= e->op == EX_LOAD && e->input == a->e->input;
}

// A scan of numbers that needs nothing else of the step stands before all copies: what it reads of an input lies in the L1 cache behind it.
// Where an SM has other blocks, they run while it waits.
static bool is_read_first(const Vectors *v, const Ex *e) {
    const TileOp *loop = v->map->block->owner;
    Asked a = {v, e, false};
    if (v->blocks < 2) return false;
    for (const TileOp *op = loop ? loop->body.first : NULL; op; op = op->next) {
        bool free = op->kind == TILE_MAP && tile_scans(op) && op->naxes == 1;
        for (int i = 0; i < op->args.n && free; i++)
            free = !op->args.data[i]->def || op->args.data[i]->def->block != &loop->body;
        for (int i = 0; i < op->outs.n && free; i++) ex_visit(op->outs.data[i].body, ask, &a);
    }
    return a.is;
}

static const Ex *load_one(void *ctx, ExPool *x, const Ex *e) {
    (void)x;
    Vectors *v = ctx;
    Place at;
    if (is_zero_behind(v, e)) return e->args[1];
    if (e->op != EX_LOAD || !find_place(v, e, &at) || is_read_first(v, e)) return e;
    return pass_operand(v->p, v->map, load_of(v, e, at));
}

// A map that is a load and nothing else: what it makes is what was loaded.
static void leave_out(TileKernel *k, TileOp *map) {
    const Ex *e = map->outs.data[0].body;
    if (map->outs.n > 1 || map->outs.data[0].reduce != EX_CONST || map->outs.data[0].scan ||
        e->op != EX_SYM || e->sym != SYM_PARAM)
        return;
    TileValue *of = map->args.data[e->index];
    const TileValue *made = map->results.data[0];
    if (!of->def || of->rank != made->rank || of->dtype != made->dtype) return;
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; i < op->args.n; i++)
            if (op->args.data[i] == made) op->args.data[i] = of;
    tile_unlink(map);
}

// Not of the grid's positions beside a loop, which has its own.
static bool has_tile(const TileKernel *k, const TileOp *map, int blocks) {
    bool chunk = k->purpose == PURPOSE_ONE_CHUNK && !map->block->owner;
    return chunk || (blocks && map->block->owner && map->block->owner->kind == TILE_LOOP);
}

void pass_load_vectors(TileProgram *p, TileKernel *k, int blocks) {
    if (!p->recurrence || p->batch || !pass_is_chunk(k) || k->purpose == PURPOSE_FEW) return;
    for (TileOp *op = tile_next(&k->body, NULL), *next; op; op = next) {
        next = tile_next(&k->body, op);
        if (op->kind != TILE_MAP || !has_tile(k, op, blocks)) continue;
        Vectors v = {p, k, op, blocks};
        int loaded = op->args.n;
        for (int i = 0; i < op->outs.n; i++)
            op->outs.data[i].body = ex_map(p->pool, op->outs.data[i].body, load_one, &v);
        if (!loaded) leave_out(k, op);
    }
}
