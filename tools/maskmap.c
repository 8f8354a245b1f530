// maskmap.c: see maskmap.h. The bounds that the compiler derived from the mask (pass_mask_bounds)
// are evaluated for every tile with the sizes and inputs of the binding: no pair may take part:
// skipped; every pair must: full; otherwise partial.
#include "maskmap.h"
#include <string.h>

enum { MAX_TILES = 1 << 22, MAX_SAMPLES = 1 << 21 };

typedef struct MaskCursor { // what the symbols are at present
    const Binding *binding;
    int axis_q, axis_k;
    int32_t batch, head, tile_q, tile_k, query, key;
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
    case SYM_SCALAR: {
        double x = at->binding->scalar[3 + e->index]; // q, k, v come first
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
    const Tensor *t = &at->binding->tensor[3 + e->input];
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

// The axis over a size; -1: none.
static int axis_over(const TileKernel *k, int size) {
    for (int i = 0; i < k->naxes; i++) {
        const Ex *n = k->axes[i].size;
        if (n->op == EX_SYM && n->sym == SYM_SIZE && n->index == size) return i;
    }
    return -1;
}

// A kernel that sweeps the keys of tiles of queries; NULL: none does.
static const TileKernel *sweeping(const TileProgram *p) {
    for (int i = 0; i < p->kernels.n; i++) {
        const TileKernel *k = p->kernels.data[i];
        if (k->mask && axis_over(k, SIZE_SQ) >= 0 && axis_over(k, SIZE_SK) >= 0) return k;
    }
    return NULL;
}

// First and last position of the current tile.
static void span(ExPool *p, int axis, int extent, int size, const Ex **first, const Ex **last) {
    const Ex *tile = ex_sym(p, SYM_TILE, axis, EX_I32), *n = ex_i32(p, extent);
    *first = ex_2(p, EX_MUL, tile, n);
    const Ex *end = ex_2(p, EX_ADD, *first, ex_i32(p, extent - 1));
    *last = ex_2(p, EX_MIN, end, ex_i32(p, size - 1));
}

bool mask_at(const MaskMap *m, int query, int key) {
    m->at->query = query;
    m->at->key = key;
    return ex_run(m->pair, &m->env).i != 0;
}

static void classify(MaskMap *m, Arena *a, const MaskBounds *bounds) {
    ExPlan *may = ex_plan(a, bounds->may), *must = ex_plan(a, bounds->must);
    for (int r = 0; r < m->rows; r++)
        for (int c = 0; c < m->columns; c++) {
            m->at->tile_q = r;
            m->at->tile_k = c;
            MaskClass k = !ex_run(may, &m->env).i   ? MASK_SKIPPED
                          : ex_run(must, &m->env).i ? MASK_FULL
                                                    : MASK_PARTIAL;
            m->cls[(int64_t)r * m->columns + c] = (uint8_t)k;
            m->count[k]++;
        }
}

// Full tiles count whole; of partial ones every step-th query is looked at.
static double count_inside(const MaskMap *m) {
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

const char *mask_map(MaskMap *m, Arena *a, const Compile *c, const Binding *b, int batch,
                     int head) {
    const TileProgram *p = c->tiles.data[0];
    const TileKernel *k = sweeping(p);
    if (!k) return "no kernel goes through the keys";
    const Ex *q0, *q1, *k0, *k1;
    MaskCursor *at = ARENA_NEW(a, MaskCursor);
    *at = (MaskCursor){b, axis_over(k, SIZE_SQ), axis_over(k, SIZE_SK), batch, head, 0, 0, 0, 0};
    *m = (MaskMap){.queries = b->size[SIZE_SQ],
                   .keys = b->size[SIZE_SK],
                   .at = at,
                   .env = {symbol, element, at, true}};
    m->tile_q = k->axes[at->axis_q].extent;
    m->tile_k = k->axes[at->axis_k].extent;
    m->rows = (int)(((int64_t)m->queries + m->tile_q - 1) / m->tile_q);
    m->columns = (int)(((int64_t)m->keys + m->tile_k - 1) / m->tile_k);
    if ((int64_t)m->rows * m->columns > MAX_TILES)
        return "too many tiles to draw: choose smaller sizes";
    m->cls = arena_alloc(a, (size_t)m->rows * (size_t)m->columns + 1);
    m->pair = ex_plan(a, k->mask);
    span(p->pool, at->axis_q, m->tile_q, m->queries, &q0, &q1);
    span(p->pool, at->axis_k, m->tile_k, m->keys, &k0, &k1);
    MaskBounds bounds = pass_mask_bounds(p->pool, k->mask, at->axis_q, at->axis_k, q0, q1, k0, k1);
    classify(m, a, &bounds);
    m->inside = count_inside(m);
    return NULL;
}
