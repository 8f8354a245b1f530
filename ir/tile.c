// tile.c: tile programs in memory: building, walking, cloning, copying.
//
// In: a builder's or a pass's calls. Out: a program in one arena. Holds afterwards: values of a
// kernel have names and ids of their own; axes of a value are in the kernel's order; every op knows
// its block and every block its loop.
#include "ir/tile.h"

#include <assert.h>
#include <ctype.h>
#include <limits.h>
#include <string.h>

enum {
    HOMES_SHARED = 1 << HOME_SHARED,
    HOMES_VALUE = 1 << HOME_ANY | 1 << HOME_FRAGMENT | 1 << HOME_SHARED | 1 << HOME_SCRATCH,
    HOMES_MAP = HOMES_VALUE | 1 << HOME_STRIP,
};

static const TileOpInfo infos[TILE_KIND_COUNT] = {
#define TILE_OP(e, name, results, least, most, flags, homes, text, rule)                           \
    {#name, results, least, most, flags, homes},
#include "tile_ops.def"
#undef TILE_OP
};

const TileOpInfo *tile_op_info(TileKind k) { return &infos[k]; }
const char *tile_kind_name(TileKind k) { return infos[k].name; }

static const char *const mark_names[TILE_MARK_COUNT] = {
#define MARK(e, name) name,
#include "tile_marks.def"
#undef MARK
};

static const char *const purpose_names[PURPOSE_COUNT] = {
#define PURPOSE(e, name) name,
#include "tile_purposes.def"
#undef PURPOSE
};

const char *tile_purpose_name(TilePurpose purpose) { return purpose_names[purpose]; }

const char *tile_phase_name(TilePhase phase) {
    static const char *const names[PHASE_COUNT] = {"fwd",      "bwd",   "part",     "combine",
                                                   "part_bwd", "piece", "piece_bwd"};
    return names[phase];
}

const char *tile_mark_name(TileMark m) { return mark_names[m]; }

bool tile_is_marked(const TileOp *map, TileMark m) { return map->marks >> m & 1; }

const TileValue *tile_rescaled(const TileOp *map, const TileValue **factor) {
    if (map->kind != TILE_MAP || map->results.n != 1) return NULL;
    const Ex *e = map->outs.data[0].body;
    const TileValue *result = map->results.data[0], *v[2] = {NULL, NULL};
    if (map->outs.data[0].reduce != EX_CONST || e->op != EX_MUL) return NULL;
    for (int i = 0; i < 2; i++)
        if (e->args[i]->op == EX_SYM && e->args[i]->sym == SYM_PARAM)
            v[i] = map->args.data[e->args[i]->index];
    if (!v[0] || !v[1]) return NULL;
    int big = v[0]->rank == 2 ? 0 : 1;
    *factor = v[1 - big];
    bool plain = v[big]->rank == 2 && v[big]->home == HOME_FRAGMENT && v[big]->dtype == DT_F32;
    if (!plain || (*factor)->rank != 1 || result->rank != 2 || result->dtype != DT_F32) return NULL;
    return v[big];
}

void tile_sizes(TileProgram *p, const SizeNames *names) {
    p->sizes.n = 0;
    for (int i = 0; i < names->n; i++) {
        TileSize s = {.name = names->data[i]};
        VEC_PUSH(p->arena, &p->sizes, s);
    }
}

TileProgram *tile_program(Arena *a, ExPool *pool, const char *name) {
    TileProgram *p = ARENA_NEW(a, TileProgram);
    p->arena = a;
    p->pool = pool;
    p->name = arena_strdup(a, name);
    SizeNames fixed;
    sizes_init(a, &fixed);
    tile_sizes(p, &fixed);
    return p;
}

// ---- names of values

// A hash set: which names a kernel has, and for each the number to try next when it is asked for
// again.
typedef struct NameSlot {
    const char *name; // NULL: free
    int next;
} NameSlot;

typedef struct TileNames {
    NameSlot *slots;
    uint32_t cap, n; // cap is a power of two
} TileNames;

static uint32_t hash_name(const char *s) {
    uint32_t h = 2166136261u;
    for (; *s; s++) h = (h ^ (unsigned char)*s) * 16777619u;
    return h ^ h >> 15;
}

static NameSlot *name_slot(const TileNames *t, const char *name) {
    uint32_t i = hash_name(name) & (t->cap - 1);
    while (t->slots[i].name && strcmp(t->slots[i].name, name)) i = (i + 1) & (t->cap - 1);
    return &t->slots[i];
}

static NameSlot *take_name(Arena *a, TileNames *t, const char *name) {
    if (t->n * 2 >= t->cap) {
        TileNames old = *t;
        t->cap = old.cap ? old.cap * 2 : 32;
        t->slots = ARENA_ARRAY(a, NameSlot, t->cap);
        for (uint32_t i = 0; i < old.cap; i++)
            if (old.slots[i].name) *name_slot(t, old.slots[i].name) = old.slots[i];
    }
    NameSlot *s = name_slot(t, name);
    if (!s->name) {
        s->name = name;
        s->next = 1;
        t->n++;
    }
    return s;
}

// `name` where it is free; otherwise it without its digits and with the next number that is.
static const char *fresh_name(Arena *a, TileNames *t, const char *name) {
    if (!t->cap || !name_slot(t, name)->name) return take_name(a, t, arena_strdup(a, name))->name;
    size_t n = strlen(name);
    while (n > 1 && isdigit((unsigned char)name[n - 1])) n--;
    const char *base = arena_strndup(a, name, n);
    int next = take_name(a, t, base)->next;
    const char *made;
    do made = arena_printf(a, "%s%d", base, next++);
    while (name_slot(t, made)->name);
    take_name(a, t, made);
    name_slot(t, base)->next = next;
    return made;
}

// ---- building

static TileKernel *new_kernel(TileProgram *p, const char *name) {
    TileKernel *k = ARENA_NEW(p->arena, TileKernel);
    k->name = arena_strdup(p->arena, name);
    k->schedule.lane_axis = -1;
    k->names = ARENA_NEW(p->arena, TileNames);
    VEC_PUSH(p->arena, &p->kernels, k);
    return k;
}

TileKernel *tile_kernel(TileProgram *p, const char *name, TilePurpose purpose) {
    TileKernel *k = new_kernel(p, name);
    k->purpose = purpose;
    k->mask = ex_bool(p->pool, true);
    return k;
}

int tile_axis(TileKernel *k, const char *name, const Ex *size, bool whole) {
    assert(k->naxes < TILE_MAX_AXES);
    k->axes[k->naxes] = (TileAxis){.name = name, .size = size, .whole = whole, .beside = -1};
    return k->naxes++;
}

void tile_append(TileBlock *b, TileOp *op) {
    op->block = b;
    op->next = NULL;
    op->prev = b->last;
    if (b->last)
        b->last->next = op;
    else
        b->first = op;
    b->last = op;
}

TileOp *tile_op(TileProgram *p, TileKernel *k, TileBlock *b, TileKind kind, Span span) {
    (void)k;
    TileOp *op = ARENA_NEW(p->arena, TileOp);
    op->kind = kind;
    op->span = span;
    op->body.owner = op;
    if (b) tile_append(b, op);
    return op;
}

TileValue *tile_value(TileProgram *p, TileKernel *k, const char *name, Dtype t, const uint8_t *axes,
                      int rank) {
    assert(rank <= TILE_MAX_RANK);
    TileValue *v = ARENA_NEW(p->arena, TileValue);
    v->id = k->nvalues++;
    v->name = fresh_name(p->arena, k->names, name);
    v->dtype = t;
    v->stages = 1;
    v->layout = -1;
    for (int i = 0; i < rank; i++) { // a set, in canonical order
        int at = v->rank;
        while (at > 0 && v->axis[at - 1] > axes[i]) at--;
        if (at > 0 && v->axis[at - 1] == axes[i]) continue;
        memmove(&v->axis[at + 1], &v->axis[at], (size_t)(v->rank - at));
        v->axis[at] = axes[i];
        v->rank++;
    }
    return v;
}

TileValue *tile_result(TileProgram *p, TileKernel *k, TileOp *op, const char *name, Dtype t,
                       const uint8_t *axes, int rank) {
    TileValue *v = tile_value(p, k, name, t, axes, rank);
    v->def = op;
    VEC_PUSH(p->arena, &op->results, v);
    return v;
}

void tile_arg(TileProgram *p, TileOp *op, TileValue *v) { VEC_PUSH(p->arena, &op->args, v); }

void tile_unlink(TileOp *op) {
    TileBlock *b = op->block;
    *(op->prev ? &op->prev->next : &b->first) = op->next;
    *(op->next ? &op->next->prev : &b->last) = op->prev;
    op->prev = op->next = NULL;
    op->block = NULL;
}

void tile_insert_before(TileOp *where, TileOp *op) {
    op->block = where->block;
    op->next = where;
    op->prev = where->prev;
    *(where->prev ? &where->prev->next : &where->block->first) = op;
    where->prev = op;
}

static TileTensor *called(const TileProgram *p, const char *name) {
    for (int i = 0; i < p->tensors.n; i++)
        if (!strcmp(p->tensors.data[i].name, name)) return &p->tensors.data[i];
    return NULL;
}

int tile_tensor(TileProgram *p, TileTensor t) {
    TileTensor *old = called(p, t.name);
    TileTensor *yields = t.role == TENSOR_WORK ? &t : old && old->role == TENSOR_WORK ? old : NULL;
    VEC_PUSH(p->arena, &p->tensors, t);
    if (!old || !yields) return p->tensors.n - 1; // the verifier tells of two others
    if (yields == &t) yields = &p->tensors.data[p->tensors.n - 1];
    const char *name = yields->name;
    while (called(p, name)) name = arena_printf(p->arena, "%s_", name);
    yields->name = name;
    return p->tensors.n - 1;
}

int tile_work(TileProgram *p, const char *name, const Ex *const *extent, int rank, int *input) {
    int index = 0;
    for (int i = 0; i < p->tensors.n; i++) index += p->tensors.data[i].role == TENSOR_WORK;
    TileTensor t = {
        .name = name, .role = TENSOR_WORK, .index = index, .dtype = DT_I32, .rank = rank};
    for (int d = 0; d < rank; d++) t.extent[d] = extent[d];
    *input = p->inputs.n;
    VEC_PUSH(p->arena, &p->inputs, p->tensors.n);
    return tile_tensor(p, t);
}

// ---- looking

bool tile_has_axis(const TileValue *v, int axis) {
    for (int i = 0; i < v->rank; i++)
        if (v->axis[i] == axis) return true;
    return false;
}

int tile_root_axis(const TileKernel *k, int axis) {
    return k->axes[axis].beside < 0 ? axis : k->axes[axis].beside;
}

bool tile_makes_shared(const TileOp *op) {
    return (tile_op_info(op->kind)->flags & OP_MAKES) && op->results.n &&
           op->results.data[0]->home == HOME_SHARED && op->kind != TILE_BESIDE;
}

const TileValue *tile_source(const TileValue *v) {
    while (v->def && v->def->kind == TILE_BESIDE && v->home == HOME_SHARED)
        v = v->def->args.data[0];
    return v;
}

bool tile_scans(const TileOp *map) {
    for (int i = 0; i < map->outs.n; i++)
        if (map->outs.data[i].scan != SCAN_NONE) return true;
    return false;
}

bool tile_goes_by_element(const TileOp *op, int axis) {
    for (int d = 0; d < TILE_MAX_DIMS; d++)
        if (op->each[d] && (axis < 0 || op->coord[d].axis < 0 || op->coord[d].axis == axis))
            return true;
    return false;
}

const Ex *tile_run_from(ExPool *x, const TileOp *op, int dim) {
    const TileCoord *c = &op->coord[dim];
    if (!op->each[dim] || c->axis < 0 || c->at->op != EX_ADD) return NULL;
    for (int i = 0; i < 2; i++) {
        const Ex *pos = c->at->args[i], *from = c->at->args[1 - i];
        if (pos == ex_sym(x, SYM_POS, c->axis, EX_I32) && !ex_uses(from, SYM_POS, -1)) return from;
    }
    return NULL;
}

bool tile_goes_by_runs(const TileProgram *p, const TileOp *op) {
    bool runs = true;
    for (int d = 0; d < p->tensors.data[op->tensor].rank; d++)
        runs &= !op->each[d] || tile_run_from(p->pool, op, d);
    return runs;
}

bool tile_fills_by_threads(const TileProgram *p, const TileKernel *k, const TileOp *op) {
    return op->kind == TILE_FILL && !tile_goes_by_runs(p, op) &&
           !tile_in_bands(k, op->args.data[0]);
}

bool tile_in_bands(const TileKernel *k, const TileValue *v) {
    bool apart = k->schedule.knobs.said == knobs_of(FORM_SM90_APART);
    return apart && v->rank == 2 && dtype_half(v->dtype) && !tile_has_axis(v, tile_grid_axis(k));
}

bool tile_counts_own(const TileKernel *k) {
    bool shared = false;
    for (int i = 0; i < k->ngrid; i++) shared |= k->grid[i].shared != NULL;
    return shared && k->schedule.persist == PERSIST_DYNAMIC;
}

int tile_columns(const TileProgram *p, const TileOp *op) {
    const TileTensor *t = &p->tensors.data[op->tensor];
    return op->width ? op->width : t->extent[t->rank - 1]->i;
}

bool tile_scatters(const TileOp *op) {
    for (int d = 0; d < TILE_MAX_DIMS; d++)
        if (op->each[d] && op->coord[d].axis < 0) return true;
    return false;
}

int tile_contracted_axis(const TileOp *mma) {
    const TileValue *a = mma->args.data[0], *b = mma->args.data[1];
    for (int i = 0; i < a->rank; i++)
        if (tile_has_axis(b, a->axis[i]) && !tile_has_axis(mma->results.data[0], a->axis[i]))
            return a->axis[i];
    assert(!"an axis in both operands");
    return -1;
}

// The axis of a that b lacks.
static int own_axis(const TileValue *a, const TileValue *b) {
    for (int i = 0; i < a->rank; i++)
        if (!tile_has_axis(b, a->axis[i])) return a->axis[i];
    return -1;
}

bool tile_lies_beside(const TileKernel *k, int from, int to) {
    const TileAxis *all = &k->axes[from], *few = &k->axes[to];
    bool begins = all->whole && few->size->op == EX_CONST && few->extent <= all->extent;
    return tile_root_axis(k, from) == tile_root_axis(k, to) ||
           (begins && few->size->i <= all->size->i);
}

int tile_beside_from(const TileOp *op) { return own_axis(op->args.data[0], op->results.data[0]); }
int tile_beside_to(const TileOp *op) { return own_axis(op->results.data[0], op->args.data[0]); }

bool tile_in_grid(const TileKernel *k, int axis) {
    for (int i = 0; i < k->ngrid; i++)
        if (k->grid[i].sym == SYM_TILE && k->grid[i].axis == axis) return true;
    return false;
}

static bool sums_over(const TileOp *op, int axis) {
    if (op->kind == TILE_MMA) return tile_contracted_axis(op) == axis;
    for (int i = 0; op->kind == TILE_MAP && i < op->outs.n; i++)
        if (op->outs.data[i].reduce != EX_CONST && op->outs.data[i].reduce_axis == axis)
            return true;
    return false;
}

bool tile_sums_over(const TileKernel *k, int axis) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (sums_over(op, axis)) return true;
    return false;
}

bool tile_has_lanes(const TileKernel *k) {
    return k->schedule.lane_axis >= 0 && k->schedule.warps == 1;
}

static bool is_own(void *ctx, const Ex *e) {
    const TileProgram *p = ctx;
    return ex_is_sym(e, SYM_SIZE, -1) && e->index < p->sizes.n && p->sizes.data[e->index].own;
}

bool tile_is_own(const TileProgram *p, const Ex *e) { return ex_any(e, is_own, (void *)p); }

int tile_grid_rows(const TileKernel *k) {
    for (int i = 0; i < k->ngrid; i++)
        if (k->grid[i].sym == SYM_TILE) return i;
    return -1;
}

bool tile_is_of_scores(const TileKernel *k, const TileValue *v) {
    return v->rank == 2 && !k->axes[v->axis[0]].whole && !k->axes[v->axis[1]].whole;
}

int tile_grid_axis(const TileKernel *k) {
    int rows = tile_grid_rows(k);
    return rows < 0 ? -1 : k->grid[rows].axis;
}

const Ex *tile_of_cluster(ExPool *x, const TileKernel *k, bool rows) {
    const TileSchedule *s = &k->schedule;
    if (s->cluster < 2 || (!rows && !s->cluster_rows)) return ex_i32(x, 1);
    const Ex *n = s->cluster_rows ? s->cluster_rows : ex_i32(x, s->cluster);
    return rows ? n : ex_2(x, EX_SUB, ex_i32(x, s->cluster + 1), n);
}

const Ex *tile_points(ExPool *x, const TileKernel *k, int dim) {
    const TileGrid *g = &k->grid[dim];
    bool rows = dim == tile_grid_rows(k);
    const Ex *by = tile_of_cluster(x, k, rows);
    if ((!rows && g->sym != SYM_H) || ex_is_i32(by, 1)) return g->count;
    const Ex *more = ex_2(x, EX_SUB, ex_2(x, EX_ADD, g->count, by), ex_i32(x, 1));
    return ex_2(x, EX_DIV, more, by);
}

static bool is_of_one(void *ctx, const Ex *e) {
    return e->op == EX_LOAD || ex_is_sym(e, SYM_B, -1) ||
           (is_own(ctx, e) && !tile_is_common(ctx, e->index));
}

bool tile_is_common(const TileProgram *p, int size) {
    const TileSize *s = &p->sizes.data[size];
    return s->own && (s->over || !ex_any(s->def, is_of_one, (void *)p));
}

TileValue *tile_pipe_of(const TileValue *v) {
    const TileOp *def = v->def;
    if (!def || (def->kind != TILE_TAKE && def->kind != TILE_VIEW) || !def->args.n) return NULL;
    TileValue *pipe = def->args.data[0];
    return pipe->def && pipe->def->kind == TILE_PIPE ? pipe : NULL;
}

const TileOp *tile_role_of(const TileOp *op) {
    while (op && op->kind != TILE_ROLE) op = op->block ? op->block->owner : NULL;
    return op;
}

int tile_stage(const TileBlock *b) {
    int least = INT_MAX;
    for (const TileOp *op = b->first; op; op = op->next)
        if (op->role && op->kind != TILE_LOAD && op->place.stage < least) least = op->place.stage;
    return least == INT_MAX ? 0 : least;
}

Layout tile_layout(const TileKernel *k, const TileValue *v) {
    return layout_restrict(&k->layouts.data[v->layout].is, v->axis, v->rank);
}

// A narrow value may lie as the result of a shuffle, or as what a shuffle has left.
static bool lies_in(const TileKernel *k, const TileValue *v, const Layout *l) {
    if (v->layout < 0) return true;
    Layout own = tile_layout(k, v), there = layout_restrict(l, v->axis, v->rank);
    if (layout_equal(&own, &there)) return true;
    return dtype_bytes(v->dtype) < 4 && layout_move(&own, &there, 16) <= MOVE_SELECT;
}

int tile_common_layout(const TileKernel *k, const TileOp *op, const uint8_t *axes, int naxes) {
    int found = -1;
    for (int i = 0; i < k->layouts.n; i++) {
        const Layout *l = &k->layouts.data[i].is, own = layout_restrict(l, axes, naxes);
        bool all = true;
        for (int a = 0; a < naxes; a++)
            all = all && layout_covers(l, axes[a]) == k->axes[axes[a]].extent;
        for (int v = 0; v < op->args.n; v++) all = all && lies_in(k, op->args.data[v], l);
        for (int v = 0; v < op->results.n; v++) all = all && lies_in(k, op->results.data[v], l);
        if (all && !layout_copies(&own)) return i;
        if (all && found < 0) found = i;
    }
    return found;
}

int tile_extent(const TileAxis *a) {
    if (a->extent) return a->extent;
    return a->size->op == EX_CONST ? a->size->i : 0;
}

TileOp *tile_next(const TileBlock *root, const TileOp *op) {
    if (!op) return root->first;
    if (op->body.first) return op->body.first;
    while (!op->next) {
        if (op->block == root || !op->block->owner) return NULL;
        op = op->block->owner;
    }
    return op->next;
}

int tile_uses(const TileOp *op, const TileValue *v) {
    int n = 0;
    for (int i = 0; i < op->args.n; i++) n += op->args.data[i] == v;
    for (const TileOp *in = op->body.first; in; in = in->next) n += tile_uses(in, v);
    return n;
}

bool tile_has(const TileBlock *b, TileKind kind) {
    const TileOp *op = tile_next(b, NULL);
    while (op && op->kind != kind) op = tile_next(b, op);
    return op != NULL;
}

bool tile_stores_to(const TileKernel *k, int tensor) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if ((op->kind == TILE_STORE || op->kind == TILE_APPEND) && op->tensor == tensor)
            return true;
    return false;
}

void tile_replace(TileBlock *b, const TileValue *from, TileValue *to) {
    for (TileOp *op = tile_next(b, NULL); op; op = tile_next(b, op))
        for (int i = 0; i < op->args.n; i++)
            if (op->args.data[i] == from) op->args.data[i] = to;
}

void tile_map_exprs(TileOp *op, const Ex *(*map)(void *ctx, const Ex *e), void *ctx) {
    const Ex **own[] = {&op->from, &op->to, &op->index, &op->where, &op->stage, &op->when};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (*own[i]) *own[i] = map(ctx, *own[i]);
    for (int i = 0; i < TILE_MAX_DIMS; i++) {
        if (op->coord[i].at) op->coord[i].at = map(ctx, op->coord[i].at);
        if (op->coord[i].tile) op->coord[i].tile = map(ctx, op->coord[i].tile);
    }
    for (int i = 0; i < op->outs.n; i++) op->outs.data[i].body = map(ctx, op->outs.data[i].body);
}

bool tile_map_any(const TileOp *map, bool (*is)(void *ctx, const Ex *e), void *ctx) {
    for (int i = 0; i < map->outs.n; i++)
        if (ex_any(map->outs.data[i].body, is, ctx)) return true;
    return false;
}

// ---- cloning and copying

// Where values and ops go while they are duplicated. `fresh`: into the same kernel, so that values
// need ids and names of their own; otherwise into a copy of the kernel, where they keep them.
typedef struct Dup {
    TileProgram *p;
    TileKernel *k;
    bool fresh;
    TileValue **value; // by old id; NULL: not from inside
    int nvalues;       // of the old kernel
} Dup;

static TileValue *dup_value(Dup *d, const TileValue *v, TileOp *def) {
    TileValue *w;
    if (d->fresh) {
        w = tile_value(d->p, d->k, v->name, v->dtype, v->axis, v->rank);
        w->home = v->home;
        w->layout = v->layout;
        w->stages = v->stages;
        w->parts = v->parts;
        w->unguarded = v->unguarded;
    } else {
        w = ARENA_NEW(d->p->arena, TileValue);
        *w = *v;
        w->name = take_name(d->p->arena, d->k->names, arena_strdup(d->p->arena, v->name))->name;
    }
    w->def = def;
    return d->value[v->id] = w;
}

static TileValue *dup_use(const Dup *d, TileValue *v) {
    TileValue *w = v->id < d->nvalues ? d->value[v->id] : NULL;
    return w ? w : v;
}

static TileOp *dup_op(Dup *d, const TileOp *op);

static void dup_block(Dup *d, const TileBlock *from, TileBlock *to) {
    for (const TileOp *op = from->first; op; op = op->next) tile_append(to, dup_op(d, op));
}

static TileOp *dup_op(Dup *d, const TileOp *op) {
    Arena *a = d->p->arena;
    TileOp *n = ARENA_NEW(a, TileOp);
    *n = *op;
    n->prev = n->next = NULL;
    n->block = NULL;
    n->body = (TileBlock){.owner = n};
    if (op->role) n->role = arena_strdup(a, op->role);
    memset(&n->results, 0, sizeof n->results);
    memset(&n->args, 0, sizeof n->args);
    memset(&n->outs, 0, sizeof n->outs);
    memset(&n->carried, 0, sizeof n->carried);
    for (int i = 0; i < op->args.n; i++) VEC_PUSH(a, &n->args, dup_use(d, op->args.data[i]));
    for (int i = 0; i < op->outs.n; i++) VEC_PUSH(a, &n->outs, op->outs.data[i]);
    for (int i = 0; i < op->carried.n; i++)
        VEC_PUSH(a, &n->carried, dup_value(d, op->carried.data[i], n));
    dup_block(d, &op->body, &n->body);
    for (int i = 0; i < op->results.n; i++)
        VEC_PUSH(a, &n->results, dup_value(d, op->results.data[i], n));
    return n;
}

TileOp *tile_clone(TileProgram *p, TileKernel *k, const TileOp *op,
                   const Ex *(*map)(void *ctx, const Ex *e), void *ctx) {
    Arena *scratch = arena_new();
    Dup d = {p, k, true, ARENA_ARRAY(scratch, TileValue *, k->nvalues), k->nvalues};
    TileOp *n = dup_op(&d, op);
    if (map) {
        tile_map_exprs(n, map, ctx);
        for (TileOp *in = tile_next(&n->body, NULL); in; in = tile_next(&n->body, in))
            tile_map_exprs(in, map, ctx);
    }
    arena_free(scratch);
    return n;
}

TileKernel *tile_copy_kernel(TileProgram *to, const TileKernel *from) {
    TileKernel *k = new_kernel(to, from->name);
    TileNames *names = k->names;
    const char *name = k->name;
    *k = *from;
    k->names = names;
    k->name = name;
    k->body = (TileBlock){0};
    for (int i = 0; i < k->naxes; i++)
        k->axes[i].name = arena_strdup(to->arena, from->axes[i].name);
    memset(&k->layouts, 0, sizeof k->layouts);
    for (int i = 0; i < from->layouts.n; i++) {
        TileLayout l = from->layouts.data[i];
        l.name = arena_strdup(to->arena, l.name);
        VEC_PUSH(to->arena, &k->layouts, l);
    }
    Arena *scratch = arena_new();
    Dup d = {to, k, false, ARENA_ARRAY(scratch, TileValue *, k->nvalues), k->nvalues};
    dup_block(&d, &from->body, &k->body);
    arena_free(scratch);
    return k;
}

TileProgram *tile_copy(Arena *a, const TileProgram *p) {
    TileProgram *n = ARENA_NEW(a, TileProgram);
    *n = (TileProgram){.arena = a,
                       .pool = p->pool,
                       .name = arena_strdup(a, p->name),
                       .target = p->target,
                       .dtype = p->dtype,
                       .phase = p->phase,
                       .recurrence = p->recurrence,
                       .scheduled = p->scheduled,
                       .batch = p->batch,
                       .page = p->page,
                       .split = p->split,
                       .D = p->D,
                       .Dv = p->Dv};
    for (int i = 0; i < p->sizes.n; i++) {
        TileSize s = p->sizes.data[i];
        s.name = arena_strdup(a, s.name);
        VEC_PUSH(a, &n->sizes, s);
    }
    for (int i = 0; i < p->tensors.n; i++) {
        TileTensor t = p->tensors.data[i];
        t.name = arena_strdup(a, t.name);
        VEC_PUSH(a, &n->tensors, t);
    }
    for (int i = 0; i < p->inputs.n; i++) VEC_PUSH(a, &n->inputs, p->inputs.data[i]);
    for (int i = 0; i < p->kernels.n; i++) tile_copy_kernel(n, p->kernels.data[i]);
    for (int i = 0; i < p->plans.n; i++) {
        TilePlan plan = {.when = p->plans.data[i].when};
        for (int j = 0; j < p->plans.data[i].kernels.n; j++)
            VEC_PUSH(a, &plan.kernels, p->plans.data[i].kernels.data[j]);
        VEC_PUSH(a, &n->plans, plan);
    }
    return n;
}
