// random.c: see random.h.
//
// In: a program and sizes. Out: dense row-major tensors of doubles. Holds afterwards: the same seed gives the same tensors on every machine,
// and every element is a value of its tensor's type.
#include "tests/support/random.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static uint64_t next_random(uint64_t *state) { // splitmix64
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

// A sum of twelve uniform numbers is near enough to a normal one, and exact everywhere.
static double next_normal(uint64_t *state) {
    double sum = -6;
    for (int i = 0; i < 12; i++) sum += (double)(next_random(state) >> 40) * 0x1p-24;
    return sum;
}

static double random_element(Dtype t, uint64_t *state) {
    switch (dtype_reads(t)) {
    case EX_F32: return dtype_round(t, next_normal(state));
    case EX_I32: return (double)(next_random(state) & 3);
    case EX_BOOL: return (double)(next_random(state) & 1);
    }
    return 0;
}

static void fill(const TileProgram *p, int tensor, double *data, int64_t n, uint64_t seed) {
    const TileTensor *t = &p->tensors.data[tensor];
    uint64_t state = seed;
    for (const char *s = t->name; *s; s++) state = state * 0x100000001b3u + (unsigned char)*s;
    for (int64_t i = 0; i < n; i++)
        data[i] = tile_is_written(p, t) ? (double)NAN : random_element(t->dtype, &state);
}

TileData *tile_data_random(Arena *a, const TileProgram *p, const int32_t *size, int workers,
                           uint64_t seed) {
    TileData *d = ARENA_NEW(a, TileData);
    int32_t *sizes = ARENA_ARRAY(a, int32_t, p->sizes.n);
    memcpy(sizes, size, sizeof *sizes * (size_t)p->sizes.n);
    tile_eval_sizes(p, sizes, workers);
    double *scalar = ARENA_ARRAY(a, double, p->inputs.n);
    d->tensor = ARENA_ARRAY(a, double *, p->tensors.n);
    for (int i = 0; i < p->tensors.n; i++) {
        const TileTensor *t = &p->tensors.data[i];
        int64_t n = tile_tensor_elements(t, sizes);
        assert(n >= 0);
        d->tensor[i] = ARENA_ARRAY(a, double, n);
        fill(p, i, d->tensor[i], n, seed);
        if (t->role == TENSOR_INPUT && !t->rank) scalar[t->index] = d->tensor[i][0];
    }
    d->size = sizes;
    d->scalar = scalar;
    d->workers = workers;
    return d;
}

// ---- distances

static double distance(double x, double y) {
    if (isnan(x) && isnan(y)) return 0;
    if (x == y) return 0;
    if (!isfinite(x) || !isfinite(y)) return INFINITY;
    return fabs(x - y) / (1 + fabs(y));
}

static int find_tensor(const TileProgram *p, const TileTensor *t) {
    for (int i = 0; i < p->tensors.n; i++)
        if (p->tensors.data[i].role == t->role && !strcmp(p->tensors.data[i].name, t->name))
            return i;
    return -1;
}

double tile_data_distance(const TileProgram *p, const TileData *x, const TileProgram *q,
                          const TileData *y) {
    double worst = 0;
    for (int i = 0; i < p->tensors.n; i++) {
        const TileTensor *t = &p->tensors.data[i];
        if (!tile_is_result(p, t)) continue;
        int j = find_tensor(q, t);
        if (j < 0) return INFINITY;
        int64_t n = tile_tensor_elements(t, x->size);
        if (n != tile_tensor_elements(&q->tensors.data[j], y->size)) return INFINITY;
        for (int64_t e = 0; e < n; e++)
            worst = fmax(worst, distance(x->tensor[i][e], y->tensor[j][e]));
    }
    return worst;
}
