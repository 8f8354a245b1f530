// tile_data.c: element types' rounding, and sizes of launches. See tile_eval.h.
#include "ir/tile_eval.h"

#include <assert.h>
#include <math.h>
#include <string.h>

// Rounds to `bits` of significand; below 2^min the spacing stays that of 2^min.
static double round_bits(double v, int bits, int min) {
    if (v == 0 || !isfinite(v)) return v;
    int e;
    frexp(v, &e); // |v| in [2^(e-1), 2^e)
    int unit = (e - 1 > min ? e - 1 : min) - (bits - 1);
    return ldexp(nearbyint(ldexp(v, -unit)), unit);
}

static double overflow(double v, double largest) {
    return fabs(v) > largest ? copysign(INFINITY, v) : v;
}

static double saturated(double v, double largest) {
    return fabs(v) > largest ? copysign(largest, v) : v;
}

double tf32_round(double v) { return round_bits(v, 11, -126); }

double dtype_round(Dtype t, double v) {
    switch (t) {
    case DT_F32: return (double)(float)v;
    case DT_F16: return overflow(round_bits(v, 11, -14), 65504);
    case DT_BF16: return overflow(round_bits(v, 8, -126), 0x1.fep127);
    case DT_E4M3: return saturated(round_bits(v, 4, -6), 448);
    case DT_E5M2: return saturated(round_bits(v, 3, -14), 57344);
    case DT_I8: return fmin(saturated(nearbyint(v), 128), 127);
    case DT_I32:
    case DT_BOOL:
    case DT_COUNT: break;
    }
    return v;
}

// ---- sizes

typedef struct Launch {
    const int32_t *size;
    int workers;
} Launch;

static ExValue launch_sym(void *ctx, const Ex *e) {
    const Launch *l = ctx;
    assert(e->sym == SYM_SIZE || e->sym == SYM_WORKERS);
    ExValue v = {.f = 0};
    v.i = e->sym == SYM_SIZE ? l->size[e->index] : l->workers;
    return v;
}

int32_t tile_eval_launch(const Ex *e, const int32_t *size, int workers) {
    Launch l = {size, workers};
    ExEnv env = {.sym = launch_sym, .ctx = &l, .round = true};
    return ex_eval(e, &env).i;
}

void tile_eval_sizes(const TileProgram *p, int32_t *size, int workers) {
    for (int i = 0; i < p->sizes.n; i++)
        if (p->sizes.data[i].def && !p->sizes.data[i].own)
            size[i] = tile_eval_launch(p->sizes.data[i].def, size, workers);
}

int64_t tile_tensor_elements(const TileTensor *t, const int32_t *size) {
    int64_t n = 1;
    for (int d = 0; d < t->rank; d++) {
        int64_t extent = tile_eval_launch(t->extent[d], size, 0);
        if (extent <= 0) return 0;
        n = n < 0 || n * extent > INT32_MAX ? -1 : n * extent;
    }
    return n;
}
