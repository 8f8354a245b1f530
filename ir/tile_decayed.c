// tile_decayed.c: see tile_decayed.h.
#include "tile_decayed.h"
#include "tile_shared.h"

enum { FACTORS = 5 };

typedef struct Factors {
    const Ex *of[FACTORS];
    int n;
} Factors;

static bool take(Factors *f, const Ex *e) {
    if (e->op == EX_MUL) return take(f, e->args[0]) && take(f, e->args[1]);
    if (f->n == FACTORS) return false;
    f->of[f->n++] = e;
    return true;
}

static const TileValue *operand(const TileOp *map, const Ex *e) {
    return e->op == EX_SYM && e->sym == SYM_PARAM ? map->args.data[e->index] : NULL;
}

static bool has_axes(const TileValue *v, int a, int b) {
    return v && v->rank == 2 && tile_has_axis(v, a) && tile_has_axis(v, b);
}

static bool is_position(const Ex *e, int axis) {
    return e->op == EX_SYM && e->sym == SYM_POS && e->index == axis;
}

// select(zero <= u.pos, exp2(sum - at_write), 0)
static bool take_decay(const TileOp *map, const Ex *e, TileDecayed *d) {
    if (e->op != EX_SELECT || !ex_is_f32(e->args[2], 0)) return false;
    const Ex *kept = e->args[0], *power = e->args[1];
    if (kept->op != EX_LE || kept->args[1]->op != EX_CONV || power->op != EX_EXP2) return false;
    const Ex *at = kept->args[1]->args[0], *fall = power->args[0];
    if (at->op != EX_SYM || at->sym != SYM_POS || fall->op != EX_SUB) return false;
    d->zero = operand(map, kept->args[0]);
    d->sum = operand(map, fall->args[0]);
    d->at_write = operand(map, fall->args[1]);
    d->columns = at->index;
    if (!d->zero || !d->sum || !d->at_write || d->sum->rank != 2 || d->at_write->rank != 2)
        return false;
    d->channels = d->at_write->axis[d->at_write->axis[0] == d->columns];
    d->rows = d->sum->axis[d->sum->axis[0] == d->channels];
    return has_axes(d->zero, d->rows, d->channels) && has_axes(d->sum, d->rows, d->channels) &&
           has_axes(d->at_write, d->columns, d->channels);
}

static bool take_factor(const TileOp *map, const Ex *e, TileDecayed *d) {
    const TileValue *v = operand(map, e);
    if (e->op == EX_CONST && e->type == EX_F32 && !d->constant) return d->constant = e, true;
    const TileValue **to = !v                                      ? NULL
                           : has_axes(v, d->rows, d->columns)      ? &d->pair
                           : has_axes(v, d->rows, d->channels)     ? &d->read
                           : has_axes(v, d->columns, d->channels)  ? &d->write
                           : v->rank == 1 && v->axis[0] == d->rows ? &d->number
                                                                   : NULL;
    if (!to || *to) return false;
    *to = v;
    return true;
}

// Which factors a sum has, and that those over positions are of u < t alone.
static bool is_whole(const TileDecayed *d, const Ex *of) {
    if (d->over == d->channels)
        return d->read && d->write && !d->pair && !d->number && !d->constant && !of;
    if (!of || of->op != EX_LT || !is_position(of->args[0], d->columns) ||
        !is_position(of->args[1], d->rows) || !d->pair)
        return false;
    return d->over == d->columns ? d->write && !d->read
                                 : d->over == d->rows && d->read && !d->write;
}

bool tile_is_decayed(const TileOp *map, int result, TileDecayed *out) {
    const TileResult *r = &map->outs.data[result];
    const Ex *body = r->body, *of = NULL;
    TileDecayed d = {.over = r->reduce_axis};
    Factors f = {.n = 0};
    int decay = -1;
    if (map->naxes != 3 || r->reduce != EX_ROWSUM || r->scan) return false;
    if (body->op == EX_SELECT && ex_is_f32(body->args[2], 0))
        of = body->args[0], body = body->args[1];
    if (!take(&f, body)) return false;
    for (int i = 0; i < f.n && decay < 0; i++)
        if (take_decay(map, f.of[i], &d)) decay = i;
    if (decay < 0) return false;
    for (int i = 0; i < f.n; i++)
        if (i != decay && !take_factor(map, f.of[i], &d)) return false;
    *out = d;
    return is_whole(&d, of);
}

bool tile_all_decayed(const TileOp *map) {
    TileDecayed d;
    bool channels = false, positions = false;
    if (map->kind != TILE_MAP) return false;
    for (int i = 0; i < map->outs.n; i++) {
        if (!tile_is_decayed(map, i, &d)) return false;
        const TileValue *v = d.read ? d.read : d.write;
        if (!dtype_half(v->dtype) || (d.write && d.write->dtype != v->dtype)) return false;
        if (d.over == d.channels)
            channels = true;
        else
            positions = true;
    }
    return channels != positions;
}

// ---- warps that share a block

int tile_decayed_warps(const TileProgram *p, const TileKernel *k, const TileOp *map) {
    enum { BLOCK = 16 };
    TileDecayed d;
    if (target_get(p->target)->kind != KIND_NVPTX || !tile_all_decayed(map)) return 1;
    if (k->purpose == PURPOSE_FEW) return 1; // blocks that share an SM have no registers for it
    tile_is_decayed(map, 0, &d);
    if (d.over != d.channels) return 1;
    int rows = k->axes[d.rows].extent / BLOCK, blocks = rows * rows, n = 1;
    int channels = k->axes[d.channels].extent / BLOCK;
    while (2 * n * blocks <= k->schedule.warps && channels % (2 * n) == 0) n *= 2;
    return n;
}

int tile_decayed_bytes(const TileProgram *p, const TileKernel *k, const TileOp *map) {
    int sum = 0;
    for (int i = 0; i < map->results.n; i++) sum += tile_shared(p, k, map->results.data[i]).bytes;
    return (tile_decayed_warps(p, k, map) - 1) * sum;
}

int tile_all_decayed_bytes(const TileProgram *p, const TileKernel *k) {
    int sum = 0;
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (tile_is_marked(op, TILE_FACTORS)) sum += tile_decayed_bytes(p, k, op);
    return sum;
}

// ---- decays of 0

static int result_of(const TileOp *map, const TileValue *v) {
    int i = 0;
    while (map->results.data[i] != v) i++;
    return i;
}

// The largest of all positions' numbers, whose prefixes v may be.
static const TileValue *largest(const TileValue *v) {
    v = tile_source(v);
    const TileOp *map = v->def;
    if (!map || map->kind != TILE_MAP) return NULL;
    const TileResult *of = &map->outs.data[result_of(map, v)];
    for (int i = 0; i < map->outs.n && of->reduce == EX_ROWMAX && !of->by; i++) {
        const TileResult *all = &map->outs.data[i];
        bool same = all->reduce == EX_ROWMAX && !all->scan && all->body == of->body &&
                    all->reduce_axis == of->reduce_axis;
        if (same && map->results.data[i]->rank == 0) return map->results.data[i];
    }
    return NULL;
}

const TileValue *tile_asked_zero(const TileOp *map, const Ex *e) {
    const TileValue *v = e->op == EX_LT || e->op == EX_LE ? operand(map, e->args[0]) : NULL;
    if (!v) return NULL;
    const Ex *to = e->args[1];
    bool start = e->op == EX_LT && ex_is_f32(to, 0),
         position = to->op == EX_CONV && to->args[0]->op == EX_SYM && to->args[0]->sym == SYM_POS;
    return start || position ? largest(v) : NULL;
}

typedef struct Asked {
    const TileOp *map;
    const TileValue *zero;
    bool several;
} Asked;

static void ask(void *ctx, const Ex *e) {
    Asked *a = ctx;
    const TileValue *zero = e->op == EX_SELECT ? tile_asked_zero(a->map, e->args[0]) : NULL;
    if (!zero) return;
    a->several |= a->zero && a->zero != zero;
    a->zero = zero;
}

const TileValue *tile_last_zero(const TileOp *map) {
    Asked a = {.map = map};
    for (int i = 0; i < map->outs.n; i++) ex_visit(map->outs.data[i].body, ask, &a);
    return a.several ? NULL : a.zero;
}
