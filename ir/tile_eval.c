// tile_eval.c: the interpreter of the tile IR: what a program means, said as plainly as possible.
//
// In: a program, tensors and sizes. Out: the tensors as the program's kernels leave them. Holds
// afterwards: what came out is what every correct lowering gives, up to rounding, of a scheduled
// program in its target's arithmetic (math.h); false where the program broke a rule that only running it shows (docs/tile-ir.md, "Checks").
//
// One block of the grid runs after the other, and in it one op after the other (tile_flow.c);
// copies take effect when they begin, and are kept from being seen until the rules say that they
// are there. Here stands what the operations compute.
#include "ir/math.h"
#include "ir/tile_places.h"
#include "ir/tile_run.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

enum { MAX_ELEMENTS = 1 << 24 }; // of one value: 128 MB of doubles

void __attribute__((format(printf, 2, 3))) run_fail(Eval *E, const char *fmt, ...) {
    if (E->failed) return;
    E->failed = true;
    va_list ap;
    va_start(ap, fmt);
    Text t = text_new(E->arena);
    text_vprintf(&t, fmt, ap);
    va_end(ap);
    Span none = {0};
    const char *where = E->k ? E->k->name : E->p->name,
               *what = E->op ? tile_kind_name(E->op->kind) : "launch";
    diag_error(E->diags, E->op ? E->op->span : none, "in %s, %s: %s", where, what, t.s);
}

// ---- expressions

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

ExValue run_ex(Eval *E, const Ex *e) { return ex_run(ex_planned(E->arena, &E->plans, e), &E->env); }

static int32_t *tile_of(Eval *E, int axis) { return &E->here.tile[tile_root_axis(E->k, axis)]; }

static int64_t position(Eval *E, int axis) {
    return (E->k->axes[axis].whole ? 0 : *tile_of(E, axis) * E->extent[axis]) + E->at[axis];
}

static int64_t element(const Eval *E, const TileValue *v) {
    int64_t i = 0;
    for (int d = 0; d < v->rank; d++) i = i * E->extent[v->axis[d]] + E->at[v->axis[d]];
    return i;
}

static double get(const Eval *E, const TileValue *v) {
    const RunSlot *s = &E->slots[v->id];
    return (s->view ? s->view->data : s->data)[element(E, v)];
}

static void set(Eval *E, const TileValue *v, double x) {
    bool wide = E->p->target == TARGET_HOST && dtype_half(v->dtype); // its registers hold f32
    E->slots[v->id].data[element(E, v)] = narrow(E, wide ? DT_F32 : v->dtype, x);
}

// Whether a role knows its tile of the grid already.
static void check_placed(Eval *E) {
    if (E->role && E->role->op && !E->role->nexts)
        run_fail(E, "the tile of the grid is asked for before the first 'next'");
}

static ExValue of_int(int64_t v) { return to_ex(EX_I32, (double)v); }

static ExValue symbol(void *ctx, const Ex *e) {
    Eval *E = ctx;
    bool grid = e->sym == SYM_B || e->sym == SYM_H || e->sym == SYM_VALID ||
                ((e->sym == SYM_TILE || e->sym == SYM_POS) && tile_in_grid(E->k, e->index));
    if (grid) check_placed(E);
    switch ((int)e->sym) {
    case SYM_VALID: return of_int(E->here.valid);
    case SYM_KEPT:
    case SYM_STAY: return of_int(false);
    case SYM_B: return of_int(E->here.b);
    case SYM_H: return of_int(E->here.h);
    case SYM_SIZE: return of_int(E->size[e->index]);
    case SYM_WORKERS: return of_int(E->data->workers);
    case SYM_STEP: return of_int(E->here.step);
    case SYM_TILE: return of_int(E->k->axes[e->index].whole ? 0 : E->here.tile[e->index]);
    case SYM_POS: return of_int(position(E, e->index));
    case SYM_MASK: return run_ex(E, E->k->mask);
    case SYM_PARAM: return to_ex(e->type, get(E, E->op->args.data[e->index]));
    case SYM_SCALAR: {
        const RunTensor *t = &E->tensors[E->p->inputs.data[e->index]];
        return to_ex(e->type, narrow(E, t->t->dtype, E->data->scalar[e->index]));
    }
    default: assert(!"a symbol of the tile IR"); return of_int(0);
    }
}

static void check_written(Eval *E, const RunTensor *t, int64_t at) {
    if (t->writer[at] && t->writer[at] != E->here.point)
        run_fail(E, "an element of '%s' is read that another tile of this kernel stores",
                 t->t->name);
}

// An input's element, the index clamped into the tensor; an empty tensor reads as 0.
static ExValue load(void *ctx, const Ex *e, const int32_t *index) {
    Eval *E = ctx;
    const RunTensor *t = &E->tensors[E->p->inputs.data[e->input]];
    if (!t->n) return to_ex(e->type, 0);
    int64_t at = 0;
    for (int d = 0; d < e->nargs; d++) {
        int64_t i = index[d], last = t->extent[d] - 1;
        if (e->inside && (i < 0 || i > last))
            run_fail(E, "index %d of '%s' is %lld, said to be inside 0..%lld", d, t->t->name,
                     (long long)i, (long long)last);
        at = at * t->extent[d] + (i < 0 ? 0 : i > last ? last : i);
    }
    if (t->t->role == TENSOR_WORK) check_written(E, t, at);
    if (e->type == EX_I32 && isnan(t->data[at])) return to_ex(e->type, -1); // nobody stored it
    return to_ex(e->type, narrow(E, t->t->dtype, t->data[at]));
}

// ---- walking elements: for (bool more = first(..); more; more = next(..))

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

// ---- tensors

typedef struct Access {
    RunTensor *t;
    const TileOp *op;
    int64_t start
        [TILE_MAX_DIMS]; // of a scalar coordinate the index itself; said for each place: which tile
} Access;

static Access access(Eval *E, const TileOp *op) {
    Access a = {.t = &E->tensors[op->tensor], .op = op};
    for (int d = 0; d < a.t->t->rank; d++) {
        const TileCoord *c = &op->coord[d];
        if (op->each[d]) {
            if (c->axis >= 0) a.start[d] = c->tile ? run_ex(E, c->tile).i : *tile_of(E, c->axis);
            continue;
        }
        a.start[d] = run_ex(E, c->at).i;
        if (c->axis >= 0) a.start[d] *= E->extent[c->axis];
    }
    return a;
}

// Whether the current element's places along all axes of v are there.
static bool has_places(Eval *E, const TileValue *v) {
    for (int i = 0; i < v->rank; i++)
        if (position(E, v->axis[i]) >= E->length[v->axis[i]]) return false;
    return true;
}

// What a coordinate says for the current place of a tile, or for the current element; false: there is no such place.
static bool index_at(Eval *E, const TileOp *op, const TileCoord *c, int64_t tile, int64_t *index) {
    int32_t *here = c->axis < 0 ? NULL : tile_of(E, c->axis), before = here ? *here : 0;
    if (here) *here = (int32_t)tile;
    bool in = here ? position(E, c->axis) >= 0 && position(E, c->axis) < E->length[c->axis]
                   : has_places(E, op->args.data[0]);
    if (in) *index = run_ex(E, c->at).i;
    if (here) *here = before;
    return in;
}

// Where the current element is in the tensor; -1: outside.
static int64_t address(Eval *E, const Access *a) {
    int64_t at = 0;
    for (int d = 0; d < a->t->t->rank; d++) {
        const TileCoord *c = &a->op->coord[d];
        bool part = a->op->width && d == a->t->t->rank - 1;
        int64_t first = part ? a->op->from_column : 0, last = a->t->extent[d] - 1;
        int64_t i = first + a->start[d] + (c->axis >= 0 ? E->at[c->axis] : 0);
        if (part) last = first + a->op->width - 1;
        if (a->op->each[d]) {
            if (!index_at(E, a->op, c, a->start[d], &i)) return -1;
            i = i < 0 ? 0 : i > last ? last : i;
        }
        if (i < 0 || i > last) return -1;
        at = at * a->t->extent[d] + i;
    }
    return at;
}

static double fetch(Eval *E, const Access *a) {
    int64_t at = address(E, a);
    if (at < 0) return 0;
    check_written(E, a->t, at);
    return a->t->data[at];
}

void run_load(Eval *E, const TileOp *op) {
    const TileValue *v = op->results.data[0];
    Access a = access(E, op);
    for (bool more = first(E, v->axis, v->rank); more; more = next(E, v->axis, v->rank))
        set(E, v, fetch(E, &a));
}

static void put(Eval *E, const Access *a, int64_t at, double x) {
    if (a->op->add)
        x += a->t->data[at];
    else if (a->t->writer[at] && a->t->writer[at] != E->here.point)
        run_fail(E, "an element of '%s' is stored by two tiles", a->t->t->name);
    else
        a->t->writer[at] = E->here.point;
    a->t->data[at] = narrow(E, a->t->t->dtype, x);
}

void run_store(Eval *E, const TileOp *op) {
    const TileValue *v = op->args.data[0];
    if (op->when && !run_ex(E, op->when).i) return;
    Access a = access(E, op);
    if (E->slots[v->id].poison)
        return run_fail(E, "%%%s is stored, but it was made of what was not taken", v->name);
    if (!E->here.point) return run_fail(E, "it stores for a tile that the grid has not");
    for (bool more = first(E, v->axis, v->rank); more; more = next(E, v->axis, v->rank)) {
        int64_t at = address(E, &a);
        if (at < 0) continue;
        put(E, &a, at, get(E, v));
    }
}

// The count of what came before is the number of the current element.
void run_append(Eval *E, const TileOp *op) {
    const TileValue *x = op->args.data[0], *take = op->args.data[1];
    RunSlot *count = &E->slots[op->args.data[2]->id];
    double before = count->data[0];
    for (bool more = first(E, x->axis, 1); more && !E->failed; more = next(E, x->axis, 1)) {
        if (get(E, take) == 0) continue;
        Access a = access(E, op);
        int64_t at = address(E, &a);
        if (at < 0) return run_fail(E, "an element goes outside of '%s'", a.t->t->name);
        put(E, &a, at, get(E, x));
        count->data[0]++;
    }
    set(E, op->results.data[0], count->data[0]);
    count->data[0] = before;
}

// Columns, of which there is a constant number, may be padded past the tensor's end; tiles of others are inside.
static bool has_rows(const Eval *E, const TileOp *op, const Access *a) {
    for (int d = 0; d < a->t->t->rank; d++) {
        int axis = op->coord[d].axis;
        if (axis < 0 || E->k->axes[axis].whole || E->k->axes[axis].size->op == EX_CONST) continue;
        if (op->each[d] && (a->start[d] + 1) * E->extent[axis] > E->length[axis]) return false;
        if (op->each[d]) continue;
        if (a->start[d] < 0 || a->start[d] + E->extent[axis] > a->t->extent[d]) return false;
    }
    return true;
}

// A tensor's tile, into a stage of a buffer or pipe.
void run_fetch(Eval *E, const TileOp *op, const TileValue *buffer, double *to) {
    Access a = access(E, op);
    if (op->inside && !has_rows(E, op, &a))
        return run_fail(E, "a copy of what is inside '%s' goes past its end", a.t->t->name);
    for (bool more = first(E, buffer->axis, buffer->rank); more;
         more = next(E, buffer->axis, buffer->rank))
        to[element(E, buffer)] = narrow(E, buffer->dtype, fetch(E, &a));
}

// ---- maps and products

static double add(const Eval *E, double x, double y) {
    return E->round ? (double)(float)(x + y) : x + y;
}

// How many elements of a tile along op->axis count for the current row: its warpgroup's rows have
// one answer.
static int64_t counted(Eval *E, const TileOp *op) {
    int64_t all = E->extent[op->axis];
    if (!op->first) return all;
    int axis = tile_grid_axis(E->k);
    int64_t row = E->at[axis];
    E->at[axis] -= row % (E->extent[axis] / E->role->op->warpgroups);
    bool few = run_ex(E, op->when).i;
    E->at[axis] = row;
    return few ? op->first : all;
}

// The block that says which elements of a map count; NULL: they all do.
static const TileOp *counting(const TileOp *op) {
    const TileOp *at = op->block->owner;
    return at && at->kind == TILE_AT && at->first ? at : NULL;
}

static double joined(const Eval *E, ExOp reduce, double x, double y) {
    if (reduce == EX_ROWSUM) return add(E, x, y);
    return reduce == EX_ROWMAX ? fmax(x, y) : fmin(x, y);
}

static double reduce(Eval *E, const TileResult *r) {
    uint8_t axis = (uint8_t)r->reduce_axis;
    const TileOp *at = counting(E->op);
    int64_t n = at && at->axis == axis ? counted(E, at) : E->extent[axis];
    double x = ex_identity(r->reduce);
    for (bool more = first(E, &axis, 1); more && E->at[axis] < n; more = next(E, &axis, 1))
        x = joined(E, r->reduce, x, from_ex(r->body->type, run_ex(E, r->body)));
    return x;
}

// Of all before the current place or behind it, itself among them unless it is strict.
static double scan(Eval *E, const TileResult *r) {
    int axis = r->reduce_axis, step = r->scan == SCAN_PREFIX ? 1 : -1;
    int64_t here = E->at[axis], n = r->by ? r->by : E->extent[axis], first = here / n * n;
    double x = ex_identity(r->reduce);
    E->at[axis] = step > 0 ? first : first + n - 1;
    for (; E->at[axis] != here + (r->strict ? 0 : step); E->at[axis] += step)
        x = joined(E, r->reduce, x, from_ex(r->body->type, run_ex(E, r->body)));
    E->at[axis] = here;
    return x;
}

static double mapped(Eval *E, const TileOp *op, const TileValue *v, const TileResult *r) {
    const TileOp *at = counting(op);
    if (at && tile_has_axis(v, at->axis) && E->at[at->axis] >= counted(E, at)) return NAN;
    if (r->scan) return scan(E, r);
    return r->reduce == EX_CONST ? from_ex(r->body->type, run_ex(E, r->body)) : reduce(E, r);
}

void run_map(Eval *E, const TileOp *op) {
    for (int i = 0; i < op->outs.n && !E->failed; i++) {
        const TileValue *v = op->results.data[i];
        for (bool more = first(E, v->axis, v->rank); more; more = next(E, v->axis, v->rank))
            set(E, v, mapped(E, op, v, &op->outs.data[i]));
    }
}

static double factor(Eval *E, const TileOp *op, const TileValue *v) {
    double x = get(E, v);
    return E->round && op->tf32 ? tf32_round(x) : x;
}

void run_mma(Eval *E, const TileOp *op) {
    const TileValue *v = op->results.data[0], *x = op->args.data[0], *y = op->args.data[1];
    uint8_t inner = 0; // the axis that is in both and not in the result
    for (int i = 0; i < x->rank; i++)
        if (tile_has_axis(y, x->axis[i]) && !tile_has_axis(v, x->axis[i])) inner = x->axis[i];
    for (bool more = first(E, v->axis, v->rank); more; more = next(E, v->axis, v->rank)) {
        double sum = op->args.n > 2 ? get(E, op->args.data[2]) : 0;
        int64_t n = counted(E, op), terms = op->first && op->axis == inner ? n : E->extent[inner];
        if (op->first && op->axis != inner && E->at[op->axis] >= n) sum = NAN; // it is not made
        for (bool in = first(E, &inner, 1); in && E->at[inner] < terms; in = next(E, &inner, 1))
            sum = add(E, sum, factor(E, op, x) * factor(E, op, y));
        set(E, v, sum);
    }
}

void run_beside(Eval *E, const TileOp *op) {
    const TileValue *v = op->results.data[0];
    int from = tile_beside_from(op), to = tile_beside_to(op);
    for (bool more = first(E, v->axis, v->rank); more; more = next(E, v->axis, v->rank)) {
        E->at[from] = E->at[to] + op->from_column;
        set(E, v, get(E, op->args.data[0]));
    }
}

// Column after column by substitution: x_u = sum over j < u of N(u, j) x_j, and 1 more at u = t. The element of
// the result at (t, u) is x_u of column t.
void run_invert(Eval *E, const TileOp *op) {
    const TileValue *N = op->args.data[0], *v = op->results.data[0];
    int row = v->axis[0], col = v->axis[1];
    int64_t n = E->extent[row];
    double *x = ARENA_ARRAY(E->arena, double, n);
    for (int64_t t = 0; t < n; t++)
        for (int64_t u = 0; u < n; u++) {
            x[u] = u == t;
            for (int64_t j = t; j < u; j++) {
                E->at[row] = u, E->at[col] = j;
                x[u] = add(E, x[u], E->round ? (float)(get(E, N) * x[j]) : get(E, N) * x[j]);
            }
            E->at[row] = t, E->at[col] = u;
            set(E, v, x[u]);
        }
}

// Of the threads that have parts of a number each is asked for its own on a device; here a number is
// a number.
static bool is_beyond(Eval *E, const TileOp *redo) {
    if (redo->shift_bits &&
        !(fabs(get(E, redo->args.data[redo->args.n - 1])) <= ldexp(1, redo->shift_bits)))
        return true;
    return !(fabs(get(E, redo->args.data[0])) <= ldexp(1, redo->bits));
}

bool run_any_beyond(Eval *E, const TileOp *redo) {
    const TileValue *v = redo->args.data[0];
    for (bool more = first(E, v->axis, v->rank); more; more = next(E, v->axis, v->rank))
        if (is_beyond(E, redo)) return true;
    return false;
}

void run_choose(Eval *E, const TileOp *redo) {
    for (int i = 0; i < redo->results.n; i++) {
        const TileValue *v = redo->results.data[i];
        const TileValue *both[] = {redo->args.data[i + 1], redo->body.last->args.data[i]};
        for (bool more = first(E, v->axis, v->rank); more; more = next(E, v->axis, v->rank))
            set(E, v, get(E, both[is_beyond(E, redo)]));
        E->slots[v->id].poison = E->slots[both[0]->id].poison || E->slots[both[1]->id].poison;
    }
}

// ---- tile classes

// In a tile that is classed full the mask must hold at every element: along an axis that is summed
// over also past the end, since nothing else keeps those out; along others at those that exist.
void run_check_full(Eval *E) {
    for (bool more = first(E, E->mask_axes, E->nmask_axes); more;
         more = next(E, E->mask_axes, E->nmask_axes)) {
        bool exists = true;
        for (int i = 0; i < E->nmask_axes; i++) {
            int axis = E->mask_axes[i];
            exists &= E->summed[axis] || position(E, axis) < E->length[axis];
        }
        if (exists && !run_ex(E, E->k->mask).i)
            return run_fail(E, "a masked element in tile %d, which is classed full", E->here.step);
    }
}

// ---- kernels

// ---- the grid

// Of the last dimension, where some heads have one point of it: their tiles come first. The number
// becomes that of the tile.
static int32_t take_part(const Eval *E, int64_t *number) {
    int64_t behind = *number - E->whole, n = E->count[E->k->ngrid - 1];
    if (behind < 0) return 0;
    *number = E->whole + behind / n;
    return (int32_t)(behind % n);
}

// What the axes of a kernel have; those without an extent are one tile.
static void measure(Eval *E) {
    const TileKernel *k = E->k;
    for (int a = 0; a < k->naxes; a++) {
        E->length[a] = run_ex(E, k->axes[a].size).i;
        E->extent[a] = tile_extent(&k->axes[a]);
        if (!E->extent[a] && E->length[a] > 0) E->extent[a] = E->length[a];
    }
}

static void make_slots(Eval *E);

// Of all sequences that the size is over.
static int32_t over_sequences(Eval *E, const TileSize *z) {
    RunPlace here = E->here;
    int32_t n = run_ex(E, z->among).i, all = 0;
    for (E->here.b = 0; E->here.b < n; E->here.b++) {
        int32_t one = run_ex(E, z->def).i;
        all = z->over == EX_ROWSUM ? all + one : one > all ? one : all;
    }
    E->here = here;
    return all;
}

// The sizes of a sequence, and with them those of the axes.
void run_sequence(Eval *E, const RunPlace *place) {
    if (!E->p->batch) return;
    RunPlace here = E->here;
    E->here = *place;
    for (int common = 1; common >= 0; common--)
        for (int i = 0; i < E->p->sizes.n; i++) {
            const TileSize *z = &E->p->sizes.data[i];
            if (z->own && tile_is_common(E->p, i) == (common == 1))
                E->size[i] = z->over ? over_sequences(E, z) : run_ex(E, z->def).i;
        }
    measure(E);
    bool open = false;
    for (int a = 0; a < E->k->naxes; a++) open |= !tile_extent(&E->k->axes[a]);
    if (open) make_slots(E);
    E->here = here;
}

// Of the place whose tile is numbered among all sequences'.
static void find_sequence(Eval *E, const TileGrid *g, RunPlace *place) {
    RunPlace here = E->here, found = *place; // `place` may be E->here
    int64_t point = place->tile[g->axis], extent = E->k->axes[g->axis].extent;
    for (int32_t b = 0; b < E->size[SIZE_B]; b++) {
        E->here.b = b;
        int64_t first = b ? run_ex(E, g->packed).i / extent + b : 0;
        if (first > point) break;
        found.b = b;
        found.tile[g->axis] = (int32_t)(point - first);
    }
    E->here = here;
    *place = found;
}

// Points of the sequence at hand, where they are its own tiles.
static int64_t own_points(Eval *E) {
    int64_t n = 1;
    for (int i = 0; i < E->k->ngrid; i++)
        if (E->k->grid[i].shared) n *= run_ex(E, E->k->grid[i].shared).i;
    return n;
}

static int64_t points_of_all(Eval *E) {
    int64_t n = 0, each = 1;
    for (int i = 1; i < E->k->ngrid; i++)
        if (!E->k->grid[i].shared) each *= E->count[i];
    for (int32_t b = 0; b < E->count[0]; b++) {
        RunPlace of = {.b = b};
        run_sequence(E, &of);
        RunPlace here = E->here;
        E->here = of;
        n += own_points(E);
        E->here = here;
    }
    return n * each;
}

static void set_point(const TileGrid *g, int32_t at, RunPlace *place) {
    *(g->sym == SYM_B ? &place->b : g->sym == SYM_H ? &place->h : &place->tile[g->axis]) = at;
}

// Where points are the tiles of all sequences, one after the other.
static void run_own_point(Eval *E, int64_t number, RunPlace *place) {
    const TileKernel *k = E->k;
    RunPlace here = E->here, at = *place; // `place` may be E->here
    for (int i = 1; i < k->ngrid; i++) {
        if (k->grid[i].shared) continue;
        set_point(&k->grid[i], (int32_t)(number % E->count[i]), &at);
        number /= E->count[i];
    }
    for (at.b = 0; at.b < E->count[0]; at.b++) {
        run_sequence(E, &at);
        E->here = at;
        int64_t own = own_points(E);
        if (number < own || at.b + 1 == E->count[0]) break;
        number -= own;
    }
    for (int i = 1; i < k->ngrid; i++) {
        if (!k->grid[i].shared) continue;
        int64_t n = run_ex(E, k->grid[i].shared).i;
        if (n < 1) n = 1;
        set_point(&k->grid[i], (int32_t)(number % n), &at);
        number /= n;
    }
    E->here = here;
    *place = at;
    run_sequence(E, place);
}

void run_point(Eval *E, int64_t number, RunPlace *place) {
    if (tile_counts_own(E->k)) return run_own_point(E, number, place);
    int last = E->k->ngrid - 1;
    if (last >= 0 && E->k->grid[last].from)
        place->tile[E->k->grid[last].axis] = take_part(E, &number);
    else
        last++;
    for (int turn = 0; turn < 2; turn++) // slow ones behind the others
        for (int i = last; i-- > 0;) {
            const TileGrid *g = &E->k->grid[i];
            if (g->slow != (turn == 1)) continue;
            int32_t n = E->count[i], at = (int32_t)(number % n);
            number /= n;
            if (g->reversed) at = n - 1 - at;
            set_point(g, at, place);
        }
    for (int i = 0; i < E->k->ngrid; i++)
        if (E->k->grid[i].packed) find_sequence(E, &E->k->grid[i], place);
    run_sequence(E, place);
}

static bool has_roles(const TileKernel *k) {
    return k->body.last && k->body.last->kind == TILE_ROLE && k->body.last->body.first;
}

static void count_points(Eval *E) {
    const TileKernel *k = E->k;
    int64_t heads = 1;
    E->points = 1;
    for (int i = 0; i < k->ngrid; i++) {
        const TileGrid *g = &k->grid[i];
        int64_t n = tile_eval_launch(g->count, E->size, E->data->workers);
        E->count[i] = (int32_t)(n = n > 0 ? n : 0);
        if (g->sym != SYM_TILE) heads *= n;
        if (g->from && heads > 0) { // so far they are tiles
            E->whole = E->points / heads * tile_eval_launch(g->from, E->size, E->data->workers);
            E->points = E->whole + (E->points - E->whole) * n;
        } else {
            E->points *= n;
        }
    }
    if (tile_counts_own(k)) E->points = points_of_all(E);
}

// The tiles that a point of the grid has, along dimension d and those behind it.
static void run_tiles(Eval *E, int d) {
    while (d < E->k->ngrid && (!E->k->grid[d].shared || E->k->grid[d].batch)) d++;
    if (d == E->k->ngrid) return run_block(E);
    const TileGrid *g = &E->k->grid[d];
    int64_t all = run_ex(E, g->shared).i, step = E->count[d];
    int32_t first = E->here.tile[g->axis];
    for (int64_t t = first; t < all && !E->failed; t += step) {
        E->here.tile[g->axis] = (int32_t)t;
        run_tiles(E, d + 1);
    }
    E->here.tile[g->axis] = first;
}

// The point that is number t, where points are numbered from both ends by turns.
static int64_t from_ends(int64_t t, int64_t n) { return t % 2 ? n - 1 - t / 2 : t / 2; }

// What of number n is a tile of sequence b; the others come behind it.
static bool is_of(Eval *E, int d, int64_t *n, int32_t b) {
    const TileGrid *g = &E->k->grid[d];
    int64_t all = run_ex(E, g->shared).i, tile = *n;
    if (!run_ex(E, g->together).i) {
        E->here.tile[g->axis] = (int32_t)(tile / run_ex(E, g->batch).i);
        return tile % run_ex(E, g->batch).i == b && E->here.tile[g->axis] < all;
    }
    E->here.tile[g->axis] = (int32_t)tile;
    *n -= all;
    return tile >= 0 && tile < all;
}

// Those of all sequences.
static void run_tiles_of_all(Eval *E, int d) {
    const TileGrid *g = &E->k->grid[d];
    int64_t step = E->count[d], next = E->here.tile[g->axis];
    int32_t batch = run_ex(E, g->batch).i;
    bool found = true;
    if (run_ex(E, g->ends).i) next = from_ends(next, step);
    for (; found && !E->failed; next += step) {
        int64_t n = next;
        found = false;
        for (int32_t b = 0; b < batch && !found; b++) {
            E->here.b = b;
            RunPlace here = E->here;
            run_sequence(E, &here);
            found = is_of(E, d, &n, b);
        }
        if (found) run_tiles(E, 0);
    }
}

static void run_all_tiles(Eval *E) {
    if (tile_counts_own(E->k)) return run_block(E);
    for (int d = 0; d < E->k->ngrid; d++)
        if (E->k->grid[d].batch) return run_tiles_of_all(E, d);
    run_tiles(E, 0);
}

static void run_blocks(Eval *E) {
    for (E->block = 0; E->block < E->blocks && !E->failed; E->block++) {
        E->here = (RunPlace){0};
        if (!has_roles(E->k)) {
            E->here.point = (uint32_t)E->block + 1;
            run_point(E, E->block, &E->here);
        }
        run_all_tiles(E);
    }
}

static void run_grid(Eval *E) {
    const TileKernel *k = E->k;
    count_points(E);
    run_pairs_begin(E);
    E->blocks = E->points;
    if (k->schedule.persist && E->data->workers < E->blocks) E->blocks = E->data->workers;
    run_blocks(E);
    run_pairs_check(E);
}

static void make_slot(Eval *E, const TileValue *v) {
    RunSlot *s = &E->slots[v->id];
    s->n = 1;
    for (int d = 0; d < v->rank && s->n <= MAX_ELEMENTS; d++) s->n *= E->extent[v->axis[d]];
    if (s->n * v->stages > MAX_ELEMENTS) return run_fail(E, "%%%s has too many elements", v->name);
    if (v->def->kind != TILE_ALLOC && v->def->kind != TILE_PIPE) {
        s->data = ARENA_ARRAY(E->arena, double, s->n);
        return;
    }
    s->stages =
        ARENA_ARRAY(E->arena, RunStage, v->stages + 1); // the last one, without data, ends them
    for (int i = 0; i < v->stages; i++) s->stages[i].data = ARENA_ARRAY(E->arena, double, s->n);
}

static void make_slots(Eval *E) {
    const TileKernel *k = E->k;
    E->slots = ARENA_ARRAY(E->arena, RunSlot, k->nvalues);
    E->place = ARENA_ARRAY(E->arena, int, k->nvalues);
    tile_places(k, E->place);
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
    measure(E);
    for (int a = 0; a < k->naxes; a++) {
        E->summed[a] = tile_sums_over(k, a);
        if (ex_uses(k->mask, SYM_POS, a)) E->mask_axes[E->nmask_axes++] = (uint8_t)a;
    }
    for (int i = 0; i < E->p->tensors.n; i++)
        memset(E->tensors[i].writer, 0, sizeof *E->tensors[i].writer * (size_t)E->tensors[i].n);
    make_slots(E);
    bool runs = E->failed || !k->where || run_ex(E, k->where).i;
    if (!E->failed && runs) run_grid(E);
    E->k = NULL;
    E->op = NULL;
}

// ---- the program

static void make_tensors(Eval *E) {
    const TileProgram *p = E->p;
    E->tensors = ARENA_ARRAY(E->arena, RunTensor, p->tensors.n);
    for (int i = 0; i < p->tensors.n; i++) {
        RunTensor *t = &E->tensors[i];
        t->t = &p->tensors.data[i];
        t->data = E->data->tensor[i];
        t->n = tile_tensor_elements(t->t, E->size);
        if (t->n < 0) return run_fail(E, "tensor '%s' has too many elements", t->t->name);
        for (int d = 0; d < t->t->rank; d++)
            t->extent[d] = tile_eval_launch(t->t->extent[d], E->size, E->data->workers);
        for (int64_t e = 0; tile_is_zeroed(p, i) && e < t->n; e++) t->data[e] = 0;
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
    Math math = math_of(p->target, p->dtype);
    E.env = (ExEnv){.sym = symbol, .load = load, .ctx = &E, .round = round};
    if (p->scheduled) E.env.math = &math;
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
