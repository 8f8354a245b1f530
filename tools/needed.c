// needed.c: see needed.h. The binding is made of the call: sizes by their names and by the extents of arrays, then defaults.
#include "needed.h"
#include <math.h>
#include <string.h>

typedef struct Given {
    Binding *b;
    Arena *arena;
    bool *known; // by size
    const bool *read;
} Given;

static const char *size_is(Given *g, int size, int64_t value) {
    const char *name = g->b->sig->sizes.data[size];
    bool offset = size == SIZE_Q_OFFSET;
    if (value > SIZE_LIMIT || value < (offset ? -SIZE_LIMIT : 0))
        return arena_printf(g->arena, "%s = %lld is out of range", name, (long long)value);
    if (g->known[size] && g->b->size[size] != value)
        return arena_printf(g->arena, "%s is %d and %lld", name, g->b->size[size],
                            (long long)value);
    g->b->size[size] = (int32_t)value;
    g->known[size] = true;
    return NULL;
}

static const char *array(Given *g, int arg, const attn_tensor *t) {
    const SigArg *s = &g->b->sig->args.data[arg];
    Tensor *to = &g->b->tensor[arg];
    if (!t->data || t->device.kind != ATTN_CPU)
        return arena_printf(g->arena, "%s: is not in the CPU's memory", t->name);
    if ((int)t->dtype != (int)s->dtype)
        return arena_printf(g->arena, "%s: expected elements of type %s", t->name,
                            dtype_name(s->dtype));
    if (t->rank != s->rank)
        return arena_printf(g->arena, "%s: has %d dimensions, expected %d", t->name, t->rank,
                            s->rank);
    if (!t->shape) return arena_printf(g->arena, "%s: is given without a shape", t->name);
    *to = (Tensor){.dtype = s->dtype, .rank = s->rank, .count = 1, .data = t->data};
    for (int d = s->rank - 1; d >= 0; d--) {
        const SigExtent *e = &s->extent[d];
        if (t->strides && t->shape[d] > 1 && t->strides[d] != to->count)
            return arena_printf(g->arena, "%s: its elements do not follow each other", t->name);
        const char *why = NULL;
        if (e->size >= 0)
            why = size_is(g, e->size, t->shape[d] - e->value);
        else if (t->shape[d] != e->value)
            why = arena_printf(g->arena, "%s: dimension %d is %lld, expected %lld", t->name, d,
                               (long long)t->shape[d], (long long)e->value);
        if (why) return why;
        to->dim[d] = t->shape[d];
        to->count *= t->shape[d];
    }
    return NULL;
}

static bool called(const char *given, const char *name) {
    return given && strcmp(given, name) == 0;
}

// What the mask reads, of what is given.
static const char *argument(Given *g, int arg, const attn_call *call) {
    const SigArg *s = &g->b->sig->args.data[arg];
    for (size_t i = 0; s->rank && i < call->ntensors; i++)
        if (called(call->tensors[i].name, s->name)) return array(g, arg, &call->tensors[i]);
    for (size_t i = 0; !s->rank && i < call->nscalars; i++) {
        if (!called(call->scalars[i].name, s->name)) continue;
        double v = call->scalars[i].value;
        if (!sig_holds(s, v))
            return arena_printf(g->arena, "%s: %g is no %s", s->name, v, dtype_name(s->dtype));
        g->b->scalar[arg] = v;
        return NULL;
    }
    return arena_printf(g->arena, "the mask reads %s", s->name);
}

static const char *not_given(Given *g, int size) {
    return arena_printf(g->arena, "the size %s is not given", g->b->sig->sizes.data[size]);
}

static const char *bound(Given *g, const attn_call *call) {
    const Signature *sig = g->b->sig;
    const char *why = NULL;
    for (size_t i = 0; i < call->nsizes && !why; i++) {
        const char *name = call->sizes[i].name;
        int size = name ? sig_size(sig, name) : -1;
        why = size < 0 ? arena_printf(g->arena, "%s: there is no such size",
                                      name ? name : "a name of NULL")
                       : size_is(g, size, call->sizes[i].value);
    }
    for (int i = 0; i < sig->args.n && !why; i++)
        if (g->read[i]) why = argument(g, i, call);
    if (why) return why;
    int32_t *n = g->b->size;
    const struct {
        int size;
        int32_t value;
    } defaults[] = {{SIZE_B, 1},
                    {SIZE_HQ, 1},
                    {SIZE_HKV, g->known[SIZE_HQ] ? n[SIZE_HQ] : 1},
                    {SIZE_Q_OFFSET, n[SIZE_SK] > n[SIZE_SQ] ? n[SIZE_SK] - n[SIZE_SQ] : 0}};
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
        if (!g->known[defaults[i].size])
            n[defaults[i].size] = defaults[i].value, g->known[defaults[i].size] = true;
    for (int i = 0; i <= SIZE_SK; i++)
        if (!g->known[i]) return not_given(g, i);
    if (n[SIZE_HKV] == 0 || n[SIZE_HQ] % n[SIZE_HKV])
        return arena_printf(g->arena, "H = %d is no multiple of Hkv = %d", n[SIZE_HQ], n[SIZE_HKV]);
    return NULL;
}

static const char *lacks_size(Given *g, const Ex *mask) {
    for (int i = SIZE_FREE; i < g->b->sig->sizes.n; i++)
        if (!g->known[i] && ex_uses(mask, SYM_SIZE, i)) return not_given(g, i);
    return NULL;
}

const char *needed_map(MaskMap *m, Arena *a, Compile *c, const attn_call *call, int batch, int head,
                       bool powers) {
    if (c->variants.n != 1) return "the source holds several variants: choose one by entry";
    if (c->options.batch != BATCH_DENSE) return "only the dense layout has a map";
    const Signature *sig = sig_of_variant(a, c->variants.data[0], c->options.dtype);
    if (sig->recurrence) return arena_printf(a, "%s is a recurrence: it has no mask", sig->name);
    TileProgram *p = c->tiles.data[0];
    Binding b = {.sig = sig,
                 .size = ARENA_ARRAY(a, int32_t, sig->sizes.n + 1),
                 .tensor = ARENA_ARRAY(a, Tensor, sig->args.n + 1),
                 .scalar = ARENA_ARRAY(a, double, sig->args.n + 1),
                 .unnamed = ARENA_ARRAY(a, bool, sig->args.n + 1)};
    Given g = {&b, a, ARENA_ARRAY(a, bool, sig->sizes.n + 1), mask_reads(a, p, sig)};
    const char *why = bound(&g, call);
    if (why) return why;
    if (batch < 0 || head < 0 || batch >= b.size[SIZE_B] || head >= b.size[SIZE_HQ])
        return arena_printf(a, "there are B = %d batch entries and H = %d heads", b.size[SIZE_B],
                            b.size[SIZE_HQ]);
    TileKernel *k = mask_kernel(p, b.size, a);
    if (k && (why = lacks_size(&g, k->mask))) return why;
    if (k) mask_widen(k, &b, powers);
    return mask_map(m, a, p, &b, batch, head);
}

// The columns of tiles that rows [first, last) visit, from `at` on: the first such run.
static bool next_run(const MaskMap *m, int first, int last, int at, int run[2]) {
    for (run[0] = -1; at <= m->columns; at++) {
        bool in = false;
        for (int r = first; r < last && !in && at < m->columns; r++)
            in = m->cls[(int64_t)r * m->columns + at] != MASK_SKIPPED;
        if (in && run[0] < 0) run[0] = at;
        if (!in && run[0] >= 0) {
            run[1] = at;
            return true;
        }
    }
    return false;
}

static int upto(int64_t a, int b) { return a < b ? (int)a : b; }

int needed_keys(const MaskMap *m, int first, int end, int (*keys)[2], int room) {
    int n = 0, run[2] = {0, 0};
    first = first < 0 ? 0 : first, end = upto(end, m->queries);
    if (first >= end) return 0;
    while (next_run(m, first / m->tile_q, (end - 1) / m->tile_q + 1, run[1], run)) {
        if (n < room)
            keys[n][0] = run[0] * m->tile_k,
            keys[n][1] = upto((int64_t)run[1] * m->tile_k, m->keys);
        n++;
    }
    return n;
}

long long needed_pairs(const MaskMap *m, int first, int end) {
    long long pairs = 0;
    first = first < 0 ? 0 : first, end = upto(end, m->queries);
    for (int at = first, to; at < end; at = to) {
        int row = at / m->tile_q, run[2] = {0, 0};
        to = upto((int64_t)(row + 1) * m->tile_q, end);
        while (next_run(m, row, row + 1, run[1], run))
            pairs += (long long)(to - at) *
                     (upto((int64_t)run[1] * m->tile_k, m->keys) - run[0] * m->tile_k);
    }
    return pairs;
}
