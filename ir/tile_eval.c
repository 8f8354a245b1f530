// tile_eval.c: the interpreter of the tile IR: what a program means, said as plainly as possible.
//
// In: a program, tensors and sizes. Out: the tensors as the program's kernels leave them. Holds
// afterwards: what came out is what every correct lowering gives, up to rounding; false where the
// program broke a rule that only running it shows:
//
//   - a view of a buffer's stage is used while its copy has not landed (no wait), is not known to
//   have landed for all threads (no
//     barrier since), or after a later copy into the same stage began;
//   - a copy into a stage begins while another is on its way, or while other threads may still read
//   it (no barrier since);
//   - a stage that the buffer does not have; a load marked as inside that is not; a masked element
//   in a tile classed full;
//   - two tiles of one kernel store to one element, or one reads what another stores: tiles run in
//   any order.
//
// One tile of the grid runs after the other, and in it one op after the other; copies take effect
// when they begin, and are kept from being seen until the rules say that they are there.
#include "ir/tile_eval.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

enum { MAX_ELEMENTS = 1 << 24 }; // of one value: 128 MB of doubles

typedef struct Tensor {
    const TileTensor *t;
    double *data;
    int64_t extent[TILE_MAX_DIMS], n;
    uint32_t *writer; // the tile that stored an element in this kernel; 0: none
} Tensor;

typedef struct Stage { // of a buffer
    double *data;
    bool filled;         // a copy into it began
    bool visible;        // and has landed, and a barrier has told everybody
    int group;           // which it belongs to
    uint32_t generation; // copies so far
    int read_at;         // barriers passed when it was last read; -1: never
} Stage;

typedef struct Slot { // of a value
    double *data;
    int64_t n;
    Stage *stages;       // of a buffer
    Stage *view;         // of a view: the stage
    uint32_t generation; // and its content
} Slot;

typedef struct Eval {
    const TileProgram *p;
    const TileData *data;
    bool round, failed;
    Diags *diags;
    Arena *arena; // of the run
    int32_t *size;
    Tensor *tensors;
    ExEnv env;
    ExMemo plans;
    // the kernel
    const TileKernel *k;
    int64_t extent[TILE_MAX_AXES], length[TILE_MAX_AXES]; // of a tile; of the axis
    Slot *slots;
    uint8_t mask_axes[TILE_MAX_AXES];
    int nmask_axes;
    // the tile
    uint32_t point; // its number, from 1
    int32_t b, h, step, tile[TILE_MAX_AXES];
    int committed, landed, barriers;
    // the element and the op
    int64_t at[TILE_MAX_AXES];
    const TileOp *op;
} Eval;

static void __attribute__((format(printf, 2, 3))) fail(Eval *E, const char *fmt, ...) {
    if (E->failed) return;
    E->failed = true;
    va_list ap;
    va_start(ap, fmt);
    Text t;
    text_init(&t, E->arena);
    text_vprintf(&t, fmt, ap);
    va_end(ap);
    Span none = {0};
    const char *where = E->k ? E->k->name : E->p->name,
               *what = E->op ? tile_kind_name(E->op->kind) : "launch";
    diag_error(E->diags, E->op ? E->op->span : none, "in %s, %s: %s", where, what, t.s);
}

// ---- expressions
// ----------------------------------------------------------------------------------------------------

static double narrow(const Eval *E, Dtype t, double v) { return E->round ? dtype_round(t, v) : v; }

static ExValue to_ex(ExType type, double v) {
    ExValue r = {.f = 0};
    if (type == EX_F32)
        r.f = v;
    else
        r.i = (int32_t)v;
    return r;
}

static double from_ex(ExType type, ExValue v) { return type == EX_F32 ? v.f : v.i; }

static ExValue run(Eval *E, const Ex *e) {
    const void *plan = NULL;
    if (!ex_memo_has(&E->plans, e, &plan))
        ex_memo_put(E->arena, &E->plans, e, plan = ex_plan(E->arena, e));
    return ex_run((ExPlan *)plan, &E->env);
}

static int64_t position(const Eval *E, int axis) {
    return (E->k->axes[axis].whole ? 0 : E->tile[axis] * E->extent[axis]) + E->at[axis];
}

static int64_t element(const Eval *E, const TileValue *v) {
    int64_t i = 0;
    for (int d = 0; d < v->rank; d++) i = i * E->extent[v->axis[d]] + E->at[v->axis[d]];
    return i;
}

static double get(const Eval *E, const TileValue *v) {
    const Slot *s = &E->slots[v->id];
    return (s->view ? s->view->data : s->data)[element(E, v)];
}

static void set(Eval *E, const TileValue *v, double x) {
    E->slots[v->id].data[element(E, v)] = narrow(E, v->dtype, x);
}

static ExValue of_int(int64_t v) { return to_ex(EX_I32, (double)v); }

static ExValue symbol(void *ctx, const Ex *e) {
    Eval *E = ctx;
    switch ((int)e->sym) {
    case SYM_B: return of_int(E->b);
    case SYM_H: return of_int(E->h);
    case SYM_SIZE: return of_int(E->size[e->index]);
    case SYM_WORKERS: return of_int(E->data->workers);
    case SYM_STEP: return of_int(E->step);
    case SYM_TILE: return of_int(E->k->axes[e->index].whole ? 0 : E->tile[e->index]);
    case SYM_POS: return of_int(position(E, e->index));
    case SYM_MASK: return run(E, E->k->mask);
    case SYM_PARAM: return to_ex(e->type, get(E, E->op->args.data[e->index]));
    case SYM_SCALAR: {
        const Tensor *t = &E->tensors[E->p->inputs.data[e->index]];
        return to_ex(e->type, narrow(E, t->t->dtype, E->data->scalar[e->index]));
    }
    default: assert(!"a symbol of the tile IR"); return of_int(0);
    }
}

// An input's element, the index clamped into the tensor; an empty tensor reads as 0.
static ExValue load(void *ctx, const Ex *e, const int32_t *index) {
    Eval *E = ctx;
    const Tensor *t = &E->tensors[E->p->inputs.data[e->input]];
    if (!t->n) return to_ex(e->type, 0);
    int64_t at = 0;
    for (int d = 0; d < e->nargs; d++) {
        int64_t i = index[d], last = t->extent[d] - 1;
        if (e->inside && (i < 0 || i > last))
            fail(E, "index %d of '%s' is %lld, said to be inside 0..%lld", d, t->t->name,
                 (long long)i, (long long)last);
        at = at * t->extent[d] + (i < 0 ? 0 : i > last ? last : i);
    }
    return to_ex(e->type, narrow(E, t->t->dtype, t->data[at]));
}

// ---- walking elements: for (bool more = first(..); more; more = next(..))
// --------------------------------------------

static bool first(Eval *E, const uint8_t *axes, int n) {
    bool any = true;
    for (int i = 0; i < n; i++) {
        E->at[axes[i]] = 0;
        any &= E->extent[axes[i]] > 0;
    }
    return any;
}

static bool next(Eval *E, const uint8_t *axes, int n) {
    for (int i = n; i-- > 0;) {
        if (++E->at[axes[i]] < E->extent[axes[i]]) return true;
        E->at[axes[i]] = 0;
    }
    return false;
}

// ---- buffers
// --------------------------------------------------------------------------------------------------------

// The stage that a copy or a view names, or NULL with an error.
static Stage *stage_of(Eval *E, const TileOp *op) {
    const TileValue *buffer = op->args.data[0];
    int at = run(E, op->stage).i;
    if (at < 0 || at >= buffer->stages) {
        fail(E, "stage %d of %%%s, which has %d", at, buffer->name, buffer->stages);
        return NULL;
    }
    return &E->slots[buffer->id].stages[at];
}

// Every use of a view: its copy must be there, and still be the one that the view was made of.
static bool check_views(Eval *E, const TileOp *op) {
    for (int i = 0; i < op->args.n; i++) {
        const TileValue *v = op->args.data[i];
        Stage *s = E->slots[v->id].view;
        if (!s) continue;
        if (s->generation != E->slots[v->id].generation)
            fail(E, "%%%s is used after a later copy into its stage began", v->name);
        else if (!s->filled)
            fail(E, "%%%s is used, but nothing was copied into its stage", v->name);
        else if (s->group > E->landed)
            fail(E, "%%%s is used before its copy was waited for", v->name);
        else if (!s->visible)
            fail(E, "%%%s is used without a barrier after the wait for its copy", v->name);
        s->read_at = E->barriers;
    }
    return !E->failed;
}

static void barrier(Eval *E) {
    E->barriers++;
    for (int id = 0; id < E->k->nvalues; id++) {
        Slot *s = &E->slots[id];
        if (!s->stages) continue;
        for (int i = 0; s->stages[i].data; i++)
            if (s->stages[i].filled && s->stages[i].group <= E->landed) s->stages[i].visible = true;
    }
}

// ---- tensors
// --------------------------------------------------------------------------------------------------------

typedef struct Access {
    Tensor *t;
    const TileOp *op;
    int64_t start[TILE_MAX_DIMS]; // of a scalar coordinate the index itself
} Access;

static Access access(Eval *E, const TileOp *op) {
    Access a = {.t = &E->tensors[op->tensor], .op = op};
    for (int d = 0; d < a.t->t->rank; d++) {
        const TileCoord *c = &op->coord[d];
        a.start[d] = run(E, c->at).i;
        if (c->axis >= 0) a.start[d] *= E->extent[c->axis];
    }
    return a;
}

// Where the element at hand is in the tensor; -1: outside.
static int64_t address(const Eval *E, const Access *a) {
    int64_t at = 0;
    for (int d = 0; d < a->t->t->rank; d++) {
        int axis = a->op->coord[d].axis;
        int64_t i = a->start[d] + (axis >= 0 ? E->at[axis] : 0);
        if (i < 0 || i >= a->t->extent[d]) return -1;
        at = at * a->t->extent[d] + i;
    }
    return at;
}

static double fetch(Eval *E, const Access *a) {
    int64_t at = address(E, a);
    if (at < 0) return 0;
    if (a->t->writer[at] && a->t->writer[at] != E->point)
        fail(E, "an element of '%s' is read that another tile of this kernel stores",
             a->t->t->name);
    return a->t->data[at];
}

static void eval_load(Eval *E, const TileOp *op) {
    const TileValue *v = op->results.data[0];
    Access a = access(E, op);
    for (bool more = first(E, v->axis, v->rank); more; more = next(E, v->axis, v->rank))
        set(E, v, fetch(E, &a));
}

static void eval_store(Eval *E, const TileOp *op) {
    const TileValue *v = op->args.data[0];
    Access a = access(E, op);
    for (bool more = first(E, v->axis, v->rank); more; more = next(E, v->axis, v->rank)) {
        int64_t at = address(E, &a);
        if (at < 0) continue;
        double x = get(E, v);
        if (op->add)
            x += a.t->data[at];
        else if (a.t->writer[at] && a.t->writer[at] != E->point)
            fail(E, "an element of '%s' is stored by two tiles", a.t->t->name);
        else
            a.t->writer[at] = E->point;
        a.t->data[at] = narrow(E, a.t->t->dtype, x);
    }
}

static void eval_copy(Eval *E, const TileOp *op) {
    if (op->when && !run(E, op->when).i) return;
    const TileValue *buffer = op->args.data[0];
    Stage *s = stage_of(E, op);
    if (!s) return;
    if (s->filled && !s->visible)
        return fail(E, "a copy into %%%s begins while another into that stage is on its way",
                    buffer->name);
    if (s->read_at == E->barriers)
        return fail(E, "a copy into %%%s begins without a barrier since that stage was read",
                    buffer->name);
    s->filled = true;
    s->visible = false;
    s->group = E->committed + 1;
    s->generation++;
    Access a = access(E, op);
    for (bool more = first(E, buffer->axis, buffer->rank); more;
         more = next(E, buffer->axis, buffer->rank))
        s->data[element(E, buffer)] = narrow(E, buffer->dtype, fetch(E, &a));
}

static void eval_view(Eval *E, const TileOp *op) {
    Slot *s = &E->slots[op->results.data[0]->id];
    s->view = stage_of(E, op);
    if (s->view) s->generation = s->view->generation;
}

// ---- maps and products
// ----------------------------------------------------------------------------------------------

static double add(const Eval *E, double x, double y) {
    return E->round ? (double)(float)(x + y) : x + y;
}

static double reduce(Eval *E, const TileResult *r) {
    uint8_t axis = (uint8_t)r->reduce_axis;
    double x = r->reduce == EX_ROWSUM ? 0 : r->reduce == EX_ROWMAX ? -INFINITY : INFINITY;
    for (bool more = first(E, &axis, 1); more; more = next(E, &axis, 1)) {
        double y = run(E, r->body).f;
        x = r->reduce == EX_ROWSUM   ? add(E, x, y)
            : r->reduce == EX_ROWMAX ? fmax(x, y)
                                     : fmin(x, y);
    }
    return x;
}

static void eval_map(Eval *E, const TileOp *op) {
    for (int i = 0; i < op->outs.n && !E->failed; i++) {
        const TileValue *v = op->results.data[i];
        const TileResult *r = &op->outs.data[i];
        for (bool more = first(E, v->axis, v->rank); more; more = next(E, v->axis, v->rank))
            set(E, v,
                r->reduce == EX_CONST ? from_ex(r->body->type, run(E, r->body)) : reduce(E, r));
    }
}

static void eval_mma(Eval *E, const TileOp *op) {
    const TileValue *v = op->results.data[0], *x = op->args.data[0], *y = op->args.data[1];
    uint8_t inner = 0; // the axis that is in both and not in the result
    for (int i = 0; i < x->rank; i++)
        if (tile_has_axis(y, x->axis[i]) && !tile_has_axis(v, x->axis[i])) inner = x->axis[i];
    for (bool more = first(E, v->axis, v->rank); more; more = next(E, v->axis, v->rank)) {
        double sum = op->args.n > 2 ? get(E, op->args.data[2]) : 0;
        for (bool in = first(E, &inner, 1); in; in = next(E, &inner, 1))
            sum = add(E, sum, get(E, x) * get(E, y));
        set(E, v, sum);
    }
}

// ---- loops
// ----------------------------------------------------------------------------------------------------------

static void eval_block(Eval *E, const TileBlock *b);

static void assign(Eval *E, const TileValue *to, const double *from) {
    if (E->slots[to->id].n)
        memcpy(E->slots[to->id].data, from, sizeof *from * (size_t)E->slots[to->id].n);
}

// In a tile that is classed full the mask must hold at every element: for queries (and other axes)
// at those that exist, for keys also past the end, since nothing else keeps those out.
static void check_full(Eval *E) {
    for (bool more = first(E, E->mask_axes, E->nmask_axes); more;
         more = next(E, E->mask_axes, E->nmask_axes)) {
        bool exists = true;
        for (int i = 0; i < E->nmask_axes; i++) {
            int axis = E->mask_axes[i];
            const Ex *size = E->k->axes[axis].size;
            bool keys = size->op == EX_SYM && size->sym == SYM_SIZE && size->index == SIZE_SK;
            exists &= keys || position(E, axis) < E->length[axis];
        }
        if (exists && !run(E, E->k->mask).i)
            return fail(E, "a masked element in tile %d, which is classed full", E->step);
    }
}

// The yielded values become the carried ones all at once: one may be yielded in another's place.
static void carry_over(Eval *E, const TileOp *loop) {
    const TileOp *yield = loop->body.last;
    Arena *scratch = arena_new();
    double **temp = ARENA_ARRAY(scratch, double *, loop->carried.n);
    for (int i = 0; i < loop->carried.n; i++) {
        const Slot *s = &E->slots[yield->args.data[i]->id];
        temp[i] = ARENA_ARRAY(scratch, double, s->n);
        if (s->n) memcpy(temp[i], s->data, sizeof(double) * (size_t)s->n);
    }
    for (int i = 0; i < loop->carried.n; i++) assign(E, loop->carried.data[i], temp[i]);
    arena_free(scratch);
}

static void eval_loop(Eval *E, const TileOp *op) {
    int32_t from = run(E, op->from).i, to = run(E, op->to).i;
    int32_t outer_step = E->step, outer_tile = E->tile[op->axis];
    for (int i = 0; i < op->carried.n; i++)
        assign(E, op->carried.data[i], E->slots[op->args.data[i]->id].data);
    for (int32_t t = from; t < to && !E->failed; t++) {
        E->step = t;
        E->tile[op->axis] = run(E, op->index).i;
        if (op->where && !run(E, op->where).i) continue;
        if (op->tiles == CLASS_FULL) check_full(E);
        eval_block(E, &op->body);
        E->op = op;
        if (!E->failed) carry_over(E, op);
    }
    for (int i = 0; i < op->results.n; i++)
        assign(E, op->results.data[i], E->slots[op->carried.data[i]->id].data);
    E->step = outer_step;
    E->tile[op->axis] = outer_tile;
}

static void eval_op(Eval *E, const TileOp *op) {
    E->op = op;
    bool uses_buffer = op->kind == TILE_COPY || op->kind == TILE_VIEW;
    if (!uses_buffer && !check_views(E, op)) return;
    switch (op->kind) {
    case TILE_LOAD: return eval_load(E, op);
    case TILE_STORE: return eval_store(E, op);
    case TILE_MAP: return eval_map(E, op);
    case TILE_MMA: return eval_mma(E, op);
    case TILE_LOOP: return eval_loop(E, op);
    case TILE_COPY: return eval_copy(E, op);
    case TILE_VIEW: return eval_view(E, op);
    case TILE_COMMIT: E->committed++; return;
    case TILE_WAIT:
        if (E->committed - op->pending > E->landed) E->landed = E->committed - op->pending;
        return;
    case TILE_BARRIER: return barrier(E);
    case TILE_PIPE:
    case TILE_ROLE:
    case TILE_FILL:
    case TILE_TAKE:
    case TILE_DROP:
    case TILE_NEXT:
    case TILE_TILES:
    case TILE_AT:
    case TILE_MMA_WAIT:
    case TILE_TURN: return fail(E, "roles are not interpreted");
    case TILE_YIELD: // the loop takes its arguments
    case TILE_ALLOC:
    case TILE_KIND_COUNT: return;
    }
}

static void eval_block(Eval *E, const TileBlock *b) {
    for (const TileOp *op = b->first; op && !E->failed; op = op->next) eval_op(E, op);
}

// ---- kernels
// --------------------------------------------------------------------------------------------------------

static void start_tile(Eval *E) {
    E->point++;
    E->committed = E->landed = E->barriers = 0;
    for (int id = 0; id < E->k->nvalues; id++)
        for (Stage *s = E->slots[id].stages; s && s->data; s++)
            *s = (Stage){.data = s->data, .read_at = -1};
}

static void eval_grid(Eval *E, int dim) {
    if (dim == E->k->ngrid) {
        start_tile(E);
        eval_block(E, &E->k->body);
        return;
    }
    const TileGrid *g = &E->k->grid[dim];
    int32_t n = tile_eval_launch(g->count, E->size, E->data->workers);
    int32_t *index = g->sym == SYM_B ? &E->b : g->sym == SYM_H ? &E->h : &E->tile[g->axis];
    for (int32_t i = 0; i < n && !E->failed; i++) {
        *index = g->reversed ? n - 1 - i : i;
        eval_grid(E, dim + 1);
    }
}

static void make_slot(Eval *E, const TileValue *v) {
    Slot *s = &E->slots[v->id];
    s->n = 1;
    for (int d = 0; d < v->rank && s->n <= MAX_ELEMENTS; d++) s->n *= E->extent[v->axis[d]];
    if (s->n * v->stages > MAX_ELEMENTS) return fail(E, "%%%s has too many elements", v->name);
    if (v->def->kind != TILE_ALLOC) {
        s->data = ARENA_ARRAY(E->arena, double, s->n);
        return;
    }
    s->stages =
        ARENA_ARRAY(E->arena, Stage, v->stages + 1); // the last one, without data, ends them
    for (int i = 0; i < v->stages; i++) s->stages[i].data = ARENA_ARRAY(E->arena, double, s->n);
}

static void make_slots(Eval *E) {
    const TileKernel *k = E->k;
    E->slots = ARENA_ARRAY(E->arena, Slot, k->nvalues);
    for (const TileOp *op = tile_next(&k->body, NULL); op && !E->failed;
         op = tile_next(&k->body, op)) {
        E->op = op;
        for (int i = 0; i < op->results.n; i++) make_slot(E, op->results.data[i]);
        for (int i = 0; i < op->carried.n; i++) make_slot(E, op->carried.data[i]);
    }
    E->op = NULL;
}

static void eval_kernel(Eval *E, const TileKernel *k) {
    E->k = k;
    E->nmask_axes = 0;
    for (int a = 0; a < k->naxes; a++) {
        E->length[a] = tile_eval_launch(k->axes[a].size, E->size, E->data->workers);
        E->extent[a] = tile_extent(&k->axes[a]);
        if (!E->extent[a] && E->length[a] > 0) E->extent[a] = E->length[a];
        if (ex_uses(k->mask, SYM_POS, a)) E->mask_axes[E->nmask_axes++] = (uint8_t)a;
    }
    for (int i = 0; i < E->p->tensors.n; i++)
        memset(E->tensors[i].writer, 0, sizeof *E->tensors[i].writer * (size_t)E->tensors[i].n);
    E->point = 0;
    memset(E->tile, 0, sizeof E->tile);
    make_slots(E);
    if (!E->failed) eval_grid(E, 0);
    E->k = NULL;
    E->op = NULL;
}

// ---- the program
// ----------------------------------------------------------------------------------------------------

static void make_tensors(Eval *E) {
    const TileProgram *p = E->p;
    E->tensors = ARENA_ARRAY(E->arena, Tensor, p->tensors.n);
    for (int i = 0; i < p->tensors.n; i++) {
        Tensor *t = &E->tensors[i];
        t->t = &p->tensors.data[i];
        t->data = E->data->tensor[i];
        t->n = tile_tensor_elements(t->t, E->size);
        if (t->n < 0) return fail(E, "tensor '%s' has too many elements", t->t->name);
        for (int d = 0; d < t->t->rank; d++)
            t->extent[d] = tile_eval_launch(t->t->extent[d], E->size, E->data->workers);
        t->writer = ARENA_ARRAY(E->arena, uint32_t, t->n);
    }
}

static const TilePlan *choose_plan(Eval *E) {
    for (int i = 0; i < E->p->plans.n; i++) {
        const TilePlan *plan = &E->p->plans.data[i];
        if (!plan->when || tile_eval_launch(plan->when, E->size, E->data->workers)) return plan;
    }
    return NULL; // the last plan has no `when`: no plans at all
}

bool tile_eval(const TileProgram *p, const TileData *data, bool round, Diags *diags) {
    if (!tile_verify(p, diags)) return false;
    Eval E = {.p = p, .data = data, .round = round, .diags = diags, .arena = arena_new()};
    E.env = (ExEnv){.sym = symbol, .load = load, .ctx = &E, .round = round};
    E.size = ARENA_ARRAY(E.arena, int32_t, p->sizes.n);
    if (p->sizes.n) memcpy(E.size, data->size, sizeof *E.size * (size_t)p->sizes.n);
    tile_eval_sizes(p, E.size, data->workers);
    make_tensors(&E);
    const TilePlan *plan = E.failed ? NULL : choose_plan(&E);
    for (int i = 0; plan && i < plan->kernels.n && !E.failed; i++)
        eval_kernel(&E, p->kernels.data[plan->kernels.data[i]]);
    arena_free(E.arena);
    return !E.failed;
}
