// maskmap.c: see maskmap.h. The bounds that the compiler derived from the mask (pass_mask_parts)
// are evaluated for every tile with the sizes and inputs of the binding, and for what the mask reads of
// inputs, which the bounds name, the least and the largest in the tile: no pair may take part:
// skipped; every pair must: full; otherwise partial.
#include "maskmap.h"
#include "ir/tile_eval.h"
#include "passes/mask/tilemap.h"
#include <string.h>

enum { MAX_TILES = 1 << 22, MAX_SAMPLES = 1 << 21 };

typedef struct MaskCursor { // what the symbols are at present
    const Binding *binding;
    int axis_q, axis_k;
    int32_t batch, head, tile_q, tile_k, query, key;
    int32_t bound[2 * MASK_PARTS]; // least and most of each part
} MaskCursor;

static ExValue symbol(void *ctx, const Ex *e) {
    const MaskCursor *at = ctx;
    ExValue v = {.i = 0};
    switch ((int)e->sym) {
    case SYM_B: v.i = at->batch; break;
    case SYM_H: v.i = at->head; break;
    case SYM_SIZE:
        v.i = e->index < at->binding->sig->sizes.n ? at->binding->size[e->index] : 0;
        break;
    case SYM_TILE: v.i = e->index == at->axis_q ? at->tile_q : at->tile_k; break;
    case SYM_POS: v.i = e->index == at->axis_q ? at->query : at->key; break;
    case SYM_LET: v.i = at->bound[e->index - MASK_PARTS]; break;
    case SYM_SCALAR: {
        double x = at->binding->scalar[sig_operands(at->binding->sig) + e->index];
        if (e->type == EX_F32)
            v.f = x;
        else
            v.i = (int32_t)x;
        break;
    }
    default: break;
    }
    return v;
}

static ExValue element(void *ctx, const Ex *e, const int32_t *index) {
    const MaskCursor *at = ctx;
    const Tensor *t = &at->binding->tensor[sig_operands(at->binding->sig) + e->input];
    int64_t i = 0;
    ExValue v = {.i = 0};
    if (t->count == 0) return v;
    for (int d = 0; d < t->rank; d++) {
        int64_t k = index[d] < 0            ? 0
                    : index[d] >= t->dim[d] ? t->dim[d] - 1
                                            : index[d]; // clamped, as kernels do
        i = i * t->dim[d] + k;
    }
    if (e->type == EX_F32)
        v.f = tensor_get(t, i);
    else
        v.i = (int32_t)tensor_get(t, i);
    return v;
}

int mask_axis(const TileKernel *k, int size) {
    for (int i = 0; i < k->naxes; i++) {
        const Ex *n = k->axes[i].size;
        if (n->op == EX_SYM && n->sym == SYM_SIZE && n->index == size) return i;
    }
    return -1;
}

// Of the plan that a launch of these sizes takes.
TileKernel *mask_kernel(const TileProgram *p, const int32_t *given, Arena *a) {
    int workers = p->target == TARGET_HOST ? 1 : target_rates(p->target)->units;
    int32_t *size = ARENA_ARRAY(a, int32_t, p->sizes.n + 1);
    for (int i = 0; i < p->sizes.n; i++) size[i] = p->sizes.data[i].def ? 0 : given[i];
    tile_eval_sizes(p, size, workers);
    for (int i = 0; i < p->plans.n; i++) {
        const TilePlan *plan = &p->plans.data[i];
        if (plan->when && !tile_eval_launch(plan->when, size, workers)) continue;
        for (int j = 0; j < plan->kernels.n; j++) {
            TileKernel *k = p->kernels.data[plan->kernels.data[j]];
            bool sweeps = mask_axis(k, SIZE_SQ) >= 0 && mask_axis(k, SIZE_SK) >= 0;
            if (sweeps && !tile_has_lanes(k)) return k;
        } // rows that are packed are none of queries: the next plan's
    }
    return NULL;
}

static int64_t tiles_of(int n, int extent) { return ((int64_t)n + extent - 1) / extent; }

void mask_widen(TileKernel *k, const Binding *b, bool powers) {
    enum { MOST = 1 << 18 };
    TileAxis *q = &k->axes[mask_axis(k, SIZE_SQ)], *keys = &k->axes[mask_axis(k, SIZE_SK)];
    for (int n = 1; powers && n < 2 * keys->extent; n *= 2)
        if (n >= keys->extent) keys->extent = n;
    while (tiles_of(b->size[SIZE_SQ], q->extent) * tiles_of(b->size[SIZE_SK], keys->extent) > MOST)
        q->extent *= 2, keys->extent *= 2;
}

// ---- what the mask reads of inputs

typedef struct Bounds { // of a part
    const MaskPart *part;
    ExPlan *value;                                  // of the query or the key alone
    ExPlan *first[EX_MAX_RANK], *last[EX_MAX_RANK]; // of both: indices
    int32_t *of_tile;                               // of one: least and most of each tile
} Bounds;

static void widen(int32_t *bound, int32_t v, bool begin) {
    if (begin || v < bound[0]) bound[0] = v;
    if (begin || v > bound[1]) bound[1] = v;
}

// Every tile of queries, or of keys.
static void look_along(const MaskMap *m, Bounds *b, Arena *a, int tile, int n) {
    int32_t *at = b->part->of_query ? &m->at->query : &m->at->key;
    b->of_tile = ARENA_ARRAY(a, int32_t, 2 * ((n + tile - 1) / tile) + 1);
    for (*at = 0; *at < n; ++*at)
        widen(b->of_tile + *at / tile * 2, ex_run(b->value, &m->env).i, *at % tile == 0);
}

// All elements that the pair of tiles at hand may read.
static void look_in_box(const MaskMap *m, const Bounds *b, int32_t *bound) {
    int32_t lo[EX_MAX_RANK], hi[EX_MAX_RANK], at[EX_MAX_RANK];
    int rank = b->part->e->nargs, d = rank;
    for (int i = 0; i < rank; i++) {
        at[i] = lo[i] = ex_run(b->first[i], &m->env).i;
        hi[i] = ex_run(b->last[i], &m->env).i;
    }
    for (bool begin = true; d >= 0; begin = false) {
        widen(bound, element(m->at, b->part->e, at).i, begin);
        for (d = rank - 1; d >= 0 && at[d] >= hi[d]; d--) at[d] = lo[d];
        if (d >= 0) at[d]++;
    }
}

static Bounds *bounds_of(const MaskMap *m, Arena *a, const MaskParts *parts) {
    Bounds *b = ARENA_ARRAY(a, Bounds, parts->n + 1);
    for (int i = 0; i < parts->n; i++) {
        const MaskPart *part = b[i].part = &parts->part[i];
        if (!part->e) continue;
        if (part->of_query && part->of_key) {
            for (int d = 0; d < part->e->nargs; d++) {
                b[i].first[d] = ex_plan(a, part->first[d]);
                b[i].last[d] = ex_plan(a, part->last[d]);
            }
            continue;
        }
        b[i].value = ex_plan(a, part->e);
        look_along(m, &b[i], a, part->of_query ? m->tile_q : m->tile_k,
                   part->of_query ? m->queries : m->keys);
    }
    return b;
}

static void set_bounds(const MaskMap *m, const Bounds *b, int n) {
    for (int i = 0; i < n; i++) {
        int32_t *bound = &m->at->bound[2 * i],
                tile = b[i].part->of_query ? m->at->tile_q : m->at->tile_k;
        if (b[i].of_tile)
            memcpy(bound, b[i].of_tile + 2 * tile, 2 * sizeof *bound);
        else if (b[i].part->e)
            look_in_box(m, &b[i], bound);
    }
}

// ---- tiles

bool mask_at(const MaskMap *m, int query, int key) {
    m->at->query = query;
    m->at->key = key;
    return ex_run(m->pair, &m->env).i != 0;
}

struct MaskJudge {
    const MaskMap *m;
    ExPlan *may, *must;
    MaskParts parts;
    const Bounds *bounds;
};

MaskJudge *mask_judge(const MaskMap *m, Arena *a, const Ex *part) {
    MaskJudge *j = ARENA_NEW(a, MaskJudge);
    TileMapQuery query = pass_mask_query(m->program, m->kernel, m->at->axis_q, m->at->axis_k);
    query.mask = ex_simplify(m->program->pool, part);
    pass_mask_parts(&query, &j->parts);
    j->m = m;
    j->may = ex_plan(a, j->parts.pairs.may);
    j->must = ex_plan(a, j->parts.pairs.must);
    j->bounds = bounds_of(m, a, &j->parts);
    return j;
}

static bool is_constant(const Ex *e, bool v) { return e->op == EX_CONST && (e->i != 0) == v; }

bool mask_judge_is_blind(const MaskJudge *j) {
    return is_constant(j->parts.pairs.may, true) && is_constant(j->parts.pairs.must, false);
}

void mask_judged(MaskJudge *j, int row, int column, bool *some, bool *all) {
    j->m->at->tile_q = row;
    j->m->at->tile_k = column;
    set_bounds(j->m, j->bounds, j->parts.n);
    *some = ex_run(j->may, &j->m->env).i;
    *all = *some && ex_run(j->must, &j->m->env).i;
}

static void classify(MaskMap *m, Arena *a) {
    MaskJudge *j = mask_judge(m, a, m->kernel->mask);
    for (int r = 0; r < m->rows; r++)
        for (int c = 0; c < m->columns; c++) {
            bool some, all;
            mask_judged(j, r, c, &some, &all);
            MaskClass k = !some ? MASK_SKIPPED : all ? MASK_FULL : MASK_PARTIAL;
            m->cls[(int64_t)r * m->columns + c] = (uint8_t)k;
            m->count[k]++;
        }
}

// Full tiles count whole; of partial ones every step-th query is looked at.
double mask_inside(const MaskMap *m) {
    double pairs = 0;
    double partial = (double)m->count[MASK_PARTIAL] * m->tile_q * m->tile_k;
    int step = (int)(partial / MAX_SAMPLES) + 1;
    for (int r = 0; r < m->rows; r++)
        for (int c = 0; c < m->columns; c++) {
            int q0 = r * m->tile_q, q1 = q0 + m->tile_q < m->queries ? q0 + m->tile_q : m->queries;
            int k0 = c * m->tile_k, k1 = k0 + m->tile_k < m->keys ? k0 + m->tile_k : m->keys;
            MaskClass k = (MaskClass)m->cls[(int64_t)r * m->columns + c];
            int64_t seen = 0, inside = 0;
            if (k == MASK_FULL) pairs += (double)(q1 - q0) * (k1 - k0);
            if (k != MASK_PARTIAL) continue;
            for (int q = q0; q < q1; q++)
                for (int key = k0 + (q - q0) % step; key < k1; key += step, seen++)
                    inside += mask_at(m, q, key);
            if (seen) pairs += (double)(q1 - q0) * (k1 - k0) * (double)inside / (double)seen;
        }
    return m->queries && m->keys ? pairs / ((double)m->queries * m->keys) : 0;
}

static void note_read(void *ctx, const Ex *e) { // ctx: of the inputs
    if (e->op == EX_LOAD) ((bool *)ctx)[e->input] = true;
    if (e->op == EX_SYM && e->sym == SYM_SCALAR) ((bool *)ctx)[e->index] = true;
}

const bool *mask_reads(Arena *a, const TileProgram *p, const Signature *sig) {
    bool *read = ARENA_ARRAY(a, bool, sig->args.n + 1);
    for (int i = 0; i < p->kernels.n; i++)
        ex_visit(p->kernels.data[i]->mask, note_read, read + sig_operands(sig));
    return read;
}

const char *mask_map(MaskMap *m, Arena *a, TileProgram *p, const Binding *b, int batch, int head) {
    TileKernel *k = mask_kernel(p, b->size, a);
    return k ? mask_map_of(m, a, p, k, b, batch, head) : "no kernel goes through the keys";
}

const char *mask_map_of(MaskMap *m, Arena *a, TileProgram *p, TileKernel *k, const Binding *b,
                        int batch, int head) {
    MaskCursor *at = ARENA_NEW(a, MaskCursor);
    *at = (MaskCursor){.binding = b, .batch = batch, .head = head};
    at->axis_q = mask_axis(k, SIZE_SQ), at->axis_k = mask_axis(k, SIZE_SK);
    *m = (MaskMap){.queries = b->size[SIZE_SQ],
                   .keys = b->size[SIZE_SK],
                   .at = at,
                   .env = {symbol, element, at, true},
                   .program = p,
                   .kernel = k};
    m->tile_q = k->axes[at->axis_q].extent;
    m->tile_k = k->axes[at->axis_k].extent;
    m->rows = (int)tiles_of(m->queries, m->tile_q);
    m->columns = (int)tiles_of(m->keys, m->tile_k);
    if ((int64_t)m->rows * m->columns > MAX_TILES)
        return "too many tiles to draw: choose smaller sizes";
    m->cls = arena_alloc(a, (size_t)m->rows * (size_t)m->columns + 1);
    m->pair = ex_plan(a, k->mask);
    classify(m, a);
    return NULL;
}
