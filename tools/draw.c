// draw.c: see draw.h.
#include "draw.h"
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool draw_number(const char *text, double *out) {
    char *end;
    if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0) return *out = *text == 't', true;
    errno = 0;
    *out = strtod(text, &end);
    return end != text && !*end && !(errno == ERANGE && isinf(*out));
}

static bool read_range(Draw *d, Arena *a, const char *text) {
    const char *dots = strstr(text, "..");
    if (!dots || isalpha((unsigned char)*text) || isalpha((unsigned char)dots[2])) return false;
    const char *lo = arena_strndup(a, text, (size_t)(dots - text)), *hi = dots + 2;
    d->kind = strchr(lo, '.') || strchr(hi, '.') ? DRAW_REALS : DRAW_RANGE;
    return draw_number(lo, &d->lo) && draw_number(hi, &d->hi);
}

static bool whole(double x) { return x == floor(x) && x >= INT32_MIN && x <= INT32_MAX; }

static const char *range_fits(const Draw *d, Arena *a, const SigArg *g) {
    if (g->dtype == DT_BOOL)
        return arena_printf(a, "%s is bool and takes the probability of true, from 0 to 1",
                            g->name);
    if (d->kind == DRAW_REALS && sig_is_whole(g))
        return arena_printf(a, "%s is %s and takes whole numbers", g->name, dtype_name(g->dtype));
    if (d->kind == DRAW_RANGE && !(whole(d->lo) && whole(d->hi)))
        return "an end is no i32; with a point, as in 0.0..1.0, real numbers are drawn";
    for (int i = 0; i < 2; i++) {
        double end = i ? d->hi : d->lo;
        if (!sig_holds(g, end)) return arena_printf(a, "%g is no %s", end, dtype_name(g->dtype));
    }
    return d->lo <= d->hi ? NULL : "the range is empty";
}

static bool read_list(Draw *d, Arena *a, const char *text) {
    int64_t n = 1;
    for (const char *c = text; *c; c++) n += *c == ',';
    d->list = ARENA_ARRAY(a, double, n);
    for (const char *at = text; d->n < n; d->n++) {
        const char *end = at + strcspn(at, ",");
        if (!draw_number(arena_strndup(a, at, (size_t)(end - at)), &d->list[d->n])) return false;
        at = end + (*end == ',');
    }
    d->kind = DRAW_LIST;
    return true;
}

static const char *list_fits(const Draw *d, Arena *a, const SigArg *g) {
    bool chance = d->n == 1 && d->list[0] > 0 && d->list[0] < 1 && sig_is_whole(g);
    const char *way = chance ? "; a probability is for bool, and '0..3' draws whole numbers" : "";
    if (g->rank != 1)
        return arena_printf(a, "%s has %d dimensions, and numbers are a vector%s", g->name, g->rank,
                            way);
    for (int64_t i = 0; i < d->n; i++) {
        double x = d->list[i];
        if (!sig_holds(g, x)) return arena_printf(a, "%g is no %s%s", x, dtype_name(g->dtype), way);
    }
    return NULL;
}

const char *draw_read(Draw *d, Arena *a, const SigArg *g, const char *text) {
    *d = (Draw){.kind = DRAW_NOTHING};
    if (read_range(d, a, text)) return range_fits(d, a, g);
    *d = (Draw){.kind = DRAW_NOTHING};
    if (!read_list(d, a, text)) return NULL;
    if (g->dtype != DT_BOOL || d->n > 1) return list_fits(d, a, g);
    d->kind = DRAW_TRUE;
    d->probability = d->list[0];
    return d->probability >= 0 && d->probability <= 1 ? NULL : "a probability is from 0 to 1";
}

void draw_default(const SigArg *g, Tensor *t, uint64_t seed, bool repeated) {
    if (sig_is_whole(g))
        memset(t->data, 0, (size_t)t->count * (size_t)dtype_bytes(t->dtype));
    else
        (repeated ? tensor_normal_repeated : tensor_normal)(t, seed, g->name);
    for (int64_t i = 0; g->sign && i < t->count; i++)
        tensor_set(t, i, g->sign * fabs(tensor_get(t, i)));
    for (int64_t i = 0; g->unit && i < t->count; i++)
        tensor_set(t, i, tensor_get(t, i) / sqrt((double)t->dim[t->rank - 1]));
}

void draw_fill(const Draw *d, Tensor *t, uint64_t seed, const char *name) {
    for (int64_t i = 0; i < t->count; i++) {
        double u = d->kind == DRAW_LIST ? 0 : tensor_uniform(seed, name, i), x = 0;
        if (d->kind == DRAW_LIST)
            x = d->list[i];
        else if (d->kind == DRAW_RANGE)
            x = d->lo + floor(u * (d->hi - d->lo + 1));
        else if (d->kind == DRAW_REALS)
            x = d->lo + u * (d->hi - d->lo);
        else
            x = u < d->probability;
        tensor_set(t, i, x);
    }
}
