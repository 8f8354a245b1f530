// run.c: a launch: work-groups one after the other, their waves in pieces that a seed chooses.
#include "tests/gcn/wave.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_PIECE = 96, PACKET_BYTES = 64, KERNARG_ALIGN = 16 };
static const uint64_t most_steps = 1u << 28;

void gcn_fault(Wave *w, const Op *op, const char *fmt, ...) {
    const Group *g = w->group;
    GcnError *e = g->error;
    va_list ap;
    if (e->text[0]) return;
    int n = snprintf(e->text, sizeof e->text,
                     "%s, group %u,%u,%u, wave %d, at 0x%x: `%s`: ", g->launch->kernel->name,
                     g->id[0], g->id[1], g->id[2], w->index, op->at, op->text);
    if (n < 0 || (size_t)n >= sizeof e->text) return;
    va_start(ap, fmt);
    vsnprintf(e->text + n, sizeof e->text - (size_t)n, fmt, ap);
    va_end(ap);
}

static uint64_t draw(uint64_t *state) { // splitmix64
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

// ---- how a wave begins

static void give(Wave *w, int *at, uint64_t value, int registers) {
    for (int i = 0; i < registers && *at < GCN_VCC; i++, (*at)++) {
        w->s[*at] = i < 2 ? (uint32_t)(value >> 32 * i) : 0;
        w->has_s[*at] = ~0u;
    }
}

// What the kernel descriptor asks for, in the order that it prescribes.
static void scalars(Wave *w, const struct GcnKernel *k) {
    const Group *g = w->group;
    uint64_t args = (uint64_t)(uintptr_t)g->own[1].base;
    const struct {
        int bit, registers;
        uint64_t value;
    } user[] = {{0, 4, GCN_SCRATCH}, {1, 2, (uint64_t)(uintptr_t)g->own[2].base},
                {2, 2, 0},           {3, 2, args},
                {4, 2, 0},           {5, 2, 0},
                {6, 1, k->scratch}};
    int at = 0, preload = k->preload & 127, from = k->preload >> 7;
    for (size_t i = 0; i < sizeof user / sizeof *user; i++)
        if (k->props >> user[i].bit & 1) give(w, &at, user[i].value, user[i].registers);
    for (int i = 0; i < preload; i++) {
        uint32_t u = 0;
        size_t byte = 4 * (size_t)(from + i);
        if (byte + 4 <= g->launch->kernarg_bytes)
            memcpy(&u, (const uint8_t *)g->launch->kernarg + byte, 4);
        give(w, &at, u, 1);
    }
    at = (int)(k->rsrc2 >> 1 & 31);
    for (int d = 0; d < 3; d++)
        if (k->rsrc2 >> (7 + d) & 1) give(w, &at, g->id[d], 1);
    if (k->rsrc2 >> 10 & 1) give(w, &at, 0, 1);
    if ((k->rsrc2 & 1) && k->code->gfx90a) give(w, &at, 0, 1);
}

static void begin(Wave *w, Group *g, int index) {
    const struct GcnKernel *k = g->launch->kernel;
    const GcnCode *c = k->code;
    uint8_t *scratch = w->scratch;
    int first = index * c->lanes, left = (int)g->launch->threads - first;
    memset(w, 0, offsetof(Wave, v));
    memset(w->v, 0xff, sizeof w->v); // NaN in every type
    w->scratch = scratch;
    memset(scratch, 0xff, (size_t)c->lanes * k->scratch);
    w->code = c;
    w->group = g;
    w->index = index;
    w->lanes = c->lanes;
    w->flush = (k->rsrc1 >> 16 & 3) == 0;
    w->all = c->lanes == 64 ? ~0ull : (1ull << c->lanes) - 1;
    uint64_t exec = left >= c->lanes ? w->all : (1ull << left) - 1;
    w->s[GCN_EXEC] = (uint32_t)exec;
    w->s[GCN_EXEC + 1] = (uint32_t)(exec >> 32);
    w->has_s[GCN_EXEC] = w->has_s[GCN_EXEC + 1] = w->has_s[GCN_SCC] = w->has_s[GCN_NULL] = ~0u;
    for (int i = 0; i < c->lanes; i++) w->v[0][i] = (uint32_t)(first + i);
    w->has_v[0] = w->all;
    scalars(w, k);
    w->pc = &c->op[c->op_at[(k->entry - c->text) / 4]];
}

// ---- a work-group

static void piece(Wave *w, uint64_t steps, uint64_t most) {
    const GcnError *e = w->group->error;
    const GcnWatch *watch = &w->group->launch->watch;
    for (uint64_t i = 0; i < steps && w->state == WAVE_RUNS && !e->text[0]; i++) {
        const Op *op = w->pc++;
        if (op->problem) {
            gcn_fault(w, op, "%s", op->problem);
            return;
        }
        if (w->busy && !gcn_ready(w, op)) return;
        w->defined = w->defined_low = ~0ull;
        op->run(w, op);
        if (watch->ran) watch->ran(watch->ctx, w, op);
        if (++w->steps >= most) gcn_fault(w, op, "the wave does not end");
    }
}

// A wave that can go on; NULL when none can.
static Wave *choose(Group *g, uint64_t *state) {
    int n = 0, pick;
    for (int i = 0; i < g->nwaves; i++) n += g->wave[i].state == WAVE_RUNS;
    if (!n) return NULL;
    pick = (int)(draw(state) % (uint64_t)n);
    for (int i = 0;; i++)
        if (g->wave[i].state == WAVE_RUNS && pick-- == 0) return &g->wave[i];
}

static bool pass_barrier(Group *g) {
    bool any = false;
    for (int i = 0; i < g->nwaves; i++) {
        Wave *w = &g->wave[i];
        if (w->state != WAVE_AT_BARRIER) continue;
        w->state = WAVE_RUNS;
        w->epoch++;
        any = true;
    }
    return any;
}

static bool group(Group *g, uint64_t *state) {
    uint64_t most = g->launch->most ? g->launch->most : most_steps;
    memset(g->lds, 0xff, g->lds_bytes);
    memset(g->shadow, 0, g->lds_bytes * sizeof *g->shadow);
    for (int i = 0; i < g->nwaves; i++) begin(&g->wave[i], g, i);
    do
        for (Wave *w; (w = choose(g, state)) && !g->error->text[0];)
            piece(w, 1 + draw(state) % MOST_PIECE, most);
    while (!g->error->text[0] && pass_barrier(g));
    for (int i = 0; i < g->nwaves; i++) g->launch->executed += g->wave[i].steps;
    return !g->error->text[0];
}

// ---- a launch

static void packet(const GcnLaunch *l, uint8_t *p) {
    uint16_t size[] = {(uint16_t)l->threads, 1, 1};
    uint32_t grid[] = {l->grid[0] * l->threads, l->grid[1], l->grid[2]};
    memset(p, 0, PACKET_BYTES);
    memcpy(p + 4, size, sizeof size);
    memcpy(p + 12, grid, sizeof grid);
}

static uint64_t gcd(uint64_t a, uint64_t b) { return b ? gcd(b, a % b) : a; }

static bool groups(Group *g) {
    const GcnLaunch *l = g->launch;
    uint64_t n = (uint64_t)l->grid[0] * l->grid[1] * l->grid[2], state = l->seed;
    if (!n) return true;
    uint64_t start = draw(&state) % n, step = 1 + draw(&state) % n;
    while (gcd(step, n) != 1) step++;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t k = (start + i * step) % n;
        g->id[0] = (uint32_t)(k % l->grid[0]);
        g->id[1] = (uint32_t)(k / l->grid[0] % l->grid[1]);
        g->id[2] = (uint32_t)(k / l->grid[0] / l->grid[1]);
        if (!group(g, &state)) return false;
    }
    return true;
}

static bool refuse(GcnError *e, const GcnLaunch *l, const char *why) {
    snprintf(e->text, sizeof e->text, "%s: %s", l->kernel->name, why);
    return false;
}

static bool check(const GcnLaunch *l, const Group *g, GcnError *e) {
    const struct GcnKernel *k = l->kernel;
    uint32_t at = k->entry - k->code->text;
    if (l->threads == 0 || g->nwaves > GCN_MAX_WAVES)
        return refuse(e, l, "a work-group of this size is not launched");
    if (k->threads && l->threads > k->threads)
        return refuse(e, l, "the work-group is larger than the code object allows");
    uint32_t rounding = k->rsrc1 >> 12 & 15, narrow = k->rsrc1 >> 18 & 3, f32 = k->rsrc1 >> 16 & 3;
    if (rounding || narrow != 3 || (f32 != 3 && f32 != 0))
        return refuse(e, l, "its mode of rounding or of denormals is not modelled");
    if (g->lds_bytes > GCN_LDS_BYTES) return refuse(e, l, "needs more LDS than there is");
    if (l->kernarg_bytes < k->kernarg) return refuse(e, l, "gets too few bytes of arguments");
    if (k->entry < k->code->text || at >= k->code->text_bytes || k->code->op_at[at / 4] < 0)
        return refuse(e, l, "its entry is no instruction");
    return true;
}

bool gcn_launch(GcnLaunch *l, GcnError *e) {
    const struct GcnKernel *k = l->kernel;
    uint8_t dispatch[PACKET_BYTES];
    int lanes = k->code->lanes;
    // LLVM reads arguments in pieces of up to 16 bytes, also beyond the last one.
    size_t padded = (l->kernarg_bytes / KERNARG_ALIGN + 1) * KERNARG_ALIGN;
    Group g = {.launch = l, .error = e, .lds_bytes = k->lds + l->dynamic};
    e->text[0] = 0;
    l->executed = 0;
    g.nwaves = (int)((l->threads + (uint32_t)lanes - 1) / (uint32_t)lanes);
    if (!check(l, &g, e)) return false;
    packet(l, dispatch);
    g.own[0] = (GcnBuffer){k->code->image, k->code->image_bytes, false};
    g.own[2] = (GcnBuffer){dispatch, sizeof dispatch, false};
    g.lds = malloc(g.lds_bytes + 1);
    g.shadow = malloc((g.lds_bytes + 1) * sizeof *g.shadow);
    g.wave = calloc((size_t)g.nwaves, sizeof *g.wave);
    uint8_t *scratch = malloc((size_t)g.nwaves * (size_t)lanes * k->scratch + 1);
    uint8_t *args = calloc(padded, 1);
    bool good = g.lds && g.shadow && g.wave && scratch && args;
    if (good) memcpy(args, l->kernarg, l->kernarg_bytes);
    g.own[1] = (GcnBuffer){args, padded, false};
    for (int i = 0; good && i < g.nwaves; i++)
        g.wave[i].scratch = scratch + (size_t)i * (size_t)lanes * k->scratch;
    good = good ? groups(&g) : refuse(e, l, "out of memory");
    free(g.lds);
    free(g.shadow);
    free(g.wave);
    free(scratch);
    free(args);
    return good;
}
