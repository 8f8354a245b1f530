// recur_prepare.c: what the chunks of a recurrence need of no state, made by a kernel before those that go from chunk to chunk.
//
// In: kernels whose loop goes from chunk to chunk. Out: a kernel `prepared`, grid b, h, T, which makes of all chunks, beside each other,
// what their operations take that no state goes into: reads and writes by the decays, the inverse, scores, numbers of rows. It leaves them
// in workspace, and the loops read them there. Loads as they are, and what has columns of v, stay in the loops.
#include "passes/tile/recur.h"

#include <string.h>

typedef struct Cut { // one kernel's
    Prepare *by;
    TileKernel *k;
    TileOp *loop;
    bool *state;      // by value: a state goes into it, or it has columns of v
    TileValue **read; // in place of a value
} Cut;

void recur_prepare(Prepare *a, Recur *r, const char *name, int works, int chunks) {
    *a = (Prepare){.r = r, .works = works, .chunks = chunks};
    recur_kernel(r, name, PURPOSE_ONE_CHUNK);
    a->index = r->p->kernels.n - 1;
    a->k = r->k;
    int axis[] = {r->T, r->U, r->D, r->E};
    memcpy(a->axis, axis, sizeof axis);
    a->k->axes[r->D].whole = false; // it lies over the warps
    a->k->axes[r->E].whole = true, a->k->axes[r->E].size = ex_i32(r->x, 1); // nothing has it
    a->k->grid[2].axis = r->D;
    a->k->grid[a->k->ngrid++] = (TileGrid){.sym = SYM_TILE, .axis = r->T, .count = ex_i32(r->x, 1)};
}

// ---- into the other kernel

static bool same_coord(const TileCoord *a, const TileCoord *b) {
    return a->axis == b->axis && a->at == b->at && a->tile == b->tile;
}

static bool same_out(const TileResult *a, const TileResult *b) {
    return a->body == b->body && a->reduce == b->reduce && a->reduce_axis == b->reduce_axis &&
           a->scan == b->scan && a->strict == b->strict && a->by == b->by;
}

// Whether they make the same, of operands that are the same.
static bool same(const TileOp *a, const TileOp *b) {
    bool alike = a->kind == b->kind && a->args.n == b->args.n && a->outs.n == b->outs.n &&
                 a->results.n == b->results.n && a->naxes == b->naxes &&
                 !memcmp(a->axes, b->axes, (size_t)a->naxes);
    for (int i = 0; alike && i < a->args.n; i++) alike = a->args.data[i] == b->args.data[i];
    for (int i = 0; alike && i < a->outs.n; i++)
        alike = same_out(&a->outs.data[i], &b->outs.data[i]);
    for (int i = 0; alike && i < a->results.n; i++)
        alike = pass_axes_of(a->results.data[i]) == pass_axes_of(b->results.data[i]) &&
                a->results.data[i]->dtype == b->results.data[i]->dtype;
    if (!alike || a->kind != TILE_LOAD) return alike;
    alike = a->tensor == b->tensor;
    for (int i = 0; alike && i < TILE_MAX_DIMS; i++) alike = same_coord(&a->coord[i], &b->coord[i]);
    return alike;
}

static TileValue *moved(Prepare *a, const TileValue *v) {
    TileProgram *p = a->r->p;
    const TileOp *from = v->def;
    TileOp *op = ARENA_NEW(p->arena, TileOp);
    int which = 0;
    *op = *from;
    op->prev = op->next = NULL, op->block = NULL;
    memset(&op->args, 0, sizeof op->args);
    memset(&op->results, 0, sizeof op->results);
    for (int i = 0; i < from->args.n; i++) tile_arg(p, op, moved(a, from->args.data[i]));
    while (from->results.data[which] != v) which++;
    for (TileOp *at = a->k->body.first; at; at = at->next) {
        op->results = from->results; // to compare
        if (same(at, op)) return at->results.data[which];
    }
    memset(&op->results, 0, sizeof op->results);
    memset(&op->outs, 0, sizeof op->outs);
    for (int i = 0; i < from->outs.n; i++) VEC_PUSH(p->arena, &op->outs, from->outs.data[i]);
    tile_append(&a->k->body, op);
    for (int i = 0; i < from->results.n; i++) {
        const TileValue *of = from->results.data[i];
        tile_result(p, a->k, op, of->name, of->dtype, of->axis, of->rank);
    }
    return op->results.data[which];
}

// ---- in memory

// A tile of rows has rows of its own; pairs of positions have as many columns as a chunk may have positions.
static TileOp *access(Prepare *a, TileKernel *k, TileKind kind, int tensor, const TileValue *v) {
    Recur *r = a->r;
    TileOp *op = tile_op(r->p, k, NULL, kind, r->rec->span);
    int n = 0;
    op->tensor = tensor;
    op->coord[n++] = (TileCoord){.axis = -1, .at = ex_symbol(r->x, SYM_B)};
    op->coord[n++] = (TileCoord){.axis = -1, .at = ex_symbol(r->x, SYM_H)};
    if (v->rank < 2 && v->axis[0] == r->D)
        op->coord[n++] = (TileCoord){.axis = -1, .at = recur_tile_of(r, r->T)};
    for (int i = 0; i < v->rank; i++) {
        bool columns = v->axis[i] == r->D || i == 1;
        op->coord[n++] = (TileCoord){
            .axis = v->axis[i], .at = columns ? ex_i32(r->x, 0) : recur_tile_of(r, v->axis[i])};
    }
    return op;
}

enum { POSITIONS = 64 }; // of a chunk that is prepared, at most

static int tensor_for(Prepare *a, const TileValue *v) {
    Recur *r = a->r;
    TileTensor t = {.name = arena_printf(r->arena, "prepared_%s", v->name),
                    .role = TENSOR_WORK,
                    .index = a->works++,
                    .dtype = v->dtype};
    bool channels = v->axis[v->rank - 1] == r->D;
    t.extent[t.rank++] = recur_size(r, RSIZE_B);
    t.extent[t.rank++] = recur_size(r, RSIZE_H);
    t.extent[t.rank++] = recur_size(r, v->rank == 1 && channels ? a->chunks : RSIZE_S);
    if (v->rank > 1 || channels)
        t.extent[t.rank++] = ex_i32(r->x, channels ? r->rec->D : POSITIONS);
    return tile_tensor(r->p, t);
}

static const Taken *take(Prepare *a, TileValue *v) {
    Recur *r = a->r;
    v = moved(a, v);
    for (int i = 0; i < a->taken.n; i++)
        if (a->taken.data[i].v == v) return &a->taken.data[i];
    Taken t = {.v = v, .tensor = tensor_for(a, v), .input = -1};
    if (v->rank == 1) {
        t.input = r->p->inputs.n;
        VEC_PUSH(r->arena, &r->p->inputs, t.tensor);
    }
    TileOp *store = access(a, a->k, TILE_STORE, t.tensor, v);
    tile_arg(r->p, store, v);
    VEC_PUSH(r->arena, &a->stores, store);
    VEC_PUSH(r->arena, &a->taken, t);
    return &a->taken.data[a->taken.n - 1];
}

// ---- a loop

static TileValue *number(Cut *c, const Taken *t, const TileValue *v, TileOp *at) {
    Recur *r = c->by->r;
    bool channels = v->axis[0] == r->D;
    const Ex *place[] = {ex_symbol(r->x, SYM_B), ex_symbol(r->x, SYM_H),
                         channels ? recur_tile_of(r, r->T) : recur_pos(r, v->axis[0]),
                         recur_pos(r, r->D)};
    const Ex *e = ex_load(r->x, t->input, EX_F32, place, channels ? 4 : 3, false);
    if (!channels) e = recur_where(r, recur_exists(r, v->axis[0]), e);
    TileOp *map = pass_map_before(r->p, at, pass_axes_of(v));
    return pass_out(r->p, c->k, map, v->name, DT_F32, e, EX_CONST, 0);
}

static TileValue *tile(Cut *c, const Taken *t, const TileValue *v, TileOp *at) {
    TileOp *load = access(c->by, c->k, TILE_LOAD, t->tensor, v);
    tile_insert_before(at, load);
    return tile_result(c->by->r->p, c->k, load, v->name, v->dtype, v->axis, v->rank);
}

// A load, also as it lies beside; what no tile goes into.
static bool is_near(const TileValue *v) {
    const TileOp *def = v->def;
    if (def->kind == TILE_BESIDE) return is_near(def->args.data[0]);
    return def->kind == TILE_LOAD || (def->kind == TILE_MAP && !def->args.n && !tile_scans(def));
}

static bool is_within(const Cut *c, const TileOp *op) { return op && op->block == &c->loop->body; }

static void read_before(Cut *c, TileOp *op) {
    for (int i = 0; i < op->args.n; i++) {
        TileValue *v = op->args.data[i];
        if (!is_within(c, v->def) || c->state[v->id] || is_near(v)) continue;
        if (!c->read[v->id]) {
            const Taken *t = take(c->by, v);
            c->read[v->id] = (t->input < 0 ? tile : number)(c, t, v, op);
        }
        op->args.data[i] = c->read[v->id];
    }
}

static bool has_state(const Cut *c, const TileOp *op) {
    bool has = !op->results.n; // a store, a yield
    for (int i = 0; i < op->args.n; i++) has |= c->state[op->args.data[i]->id];
    for (int i = 0; i < op->results.n; i++) has |= tile_has_axis(op->results.data[i], c->by->r->E);
    return has && op->kind != TILE_LOAD;
}

static void cut(Prepare *a, TileKernel *k) {
    int n = k->nvalues;
    Cut c = {.by = a, .k = k, .loop = k->body.first};
    while (c.loop->kind != TILE_LOOP) c.loop = c.loop->next;
    c.state = ARENA_ARRAY(a->r->arena, bool, n + 1);
    c.read = ARENA_ARRAY(a->r->arena, TileValue *, n + 1);
    for (int i = 0; i < c.loop->carried.n; i++) c.state[c.loop->carried.data[i]->id] = true;
    for (TileOp *op = c.loop->body.first, *next; op; op = next) {
        next = op->next;
        if (!has_state(&c, op)) continue;
        for (int i = 0; i < op->results.n; i++) c.state[op->results.data[i]->id] = true;
        read_before(&c, op);
    }
}

static bool needs_no_tile(const TileOp *op) {
    bool none = op->kind == TILE_MAP;
    for (int i = 0; i < op->args.n && none; i++) none = needs_no_tile(op->args.data[i]->def);
    return none;
}

// It is made while tiles are on their way.
static void decays_first(TileKernel *k) {
    TileOp *first = k->body.first;
    while (first && needs_no_tile(first)) first = first->next;
    for (TileOp *op = first, *next; op; op = next) {
        next = op->next;
        if (needs_no_tile(op)) pass_move_before(first, op);
    }
}

void recur_cut(Prepare *a, int from) {
    Recur *r = a->r;
    for (int i = from; i < r->p->kernels.n; i++) {
        TileKernel *k = r->k = r->p->kernels.data[i];
        r->T = a->axis[0], r->U = a->axis[1], r->D = a->axis[2], r->E = a->axis[3];
        if (k->purpose == PURPOSE_CHUNK || k->purpose == PURPOSE_STATES ||
            k->purpose == PURPOSE_ADJOINT)
            cut(a, k);
    }
    for (int i = 0; i < a->stores.n; i++) tile_append(&a->k->body, a->stores.data[i]);
    decays_first(a->k);
    recur_load_first(a->k);
}

// Four kinds of scores, of two reads and two writes, take as long before as in the loop.
bool recur_prepares(const Chunk *c, const PassOptions *o) {
    bool narrow = o->target.kind == KIND_NVPTX && dtype_half(o->dtype);
    bool few = !knobs_say(&o->schedule, KNOB_keys) || o->schedule.keys <= POSITIONS;
    return narrow && few && c->channel && c->nwrites == 1 && !o->batch;
}

// There is no step before that could copy tiles for this one.
void recur_load_first(TileKernel *k) {
    TileOp *first = k->body.first;
    for (TileOp *op = first, *next; op; op = next) {
        next = op->next;
        if (op->kind == TILE_LOAD && op != first) pass_move_before(first, op);
    }
}
