// shifts.c: whether shifts stay where they are in full tiles (passes/derive/fixed_shift.h).
//
// In: a program of which some kernels may be built for both (`bound`): expressions with `stay` and `kept`, and,
// once loops are classed, behind a loop in whose tiles they stay one of no steps in which shifts move. Out: one of
// the two, for each kernel as soon as it is known which. They stay on sm_90a, where the schedule says so (the choice
// fixed_shift) and the classed kernel is one sweep whose steps can be done again; otherwise they follow their extrema.
#include "passes/derive/fixed_shift.h"
#include "passes/passes.h"
#include "passes/schedule/sm90.h"

static const Ex *decide_one(void *ctx, ExPool *x, const Ex *e) {
    bool stays = *(const bool *)ctx;
    if (e->op != EX_SYM) return e;
    if (e->sym == SYM_STAY) return ex_bool(x, stays);
    return e->sym == SYM_KEPT && !stays ? ex_bool(x, false) : e;
}

typedef struct Decide {
    ExPool *x;
    bool stays;
} Decide;

static const Ex *decide(void *ctx, const Ex *e) {
    Decide *d = ctx;
    return ex_map(d->x, e, decide_one, &d->stays);
}

static TileOp *first_of(TileKernel *k, TileKind kind) {
    TileOp *op = k->body.first;
    while (op && op->kind != kind) op = op->next;
    return op;
}

// A loop in which shifts stay gives way to that in which they move.
static void drop_kept(TileKernel *k) {
    for (TileOp *op = first_of(k, TILE_LOOP), *next; op; op = next) {
        next = op->next;
        bool pair = op->tiles != CLASS_ANY && next && next->kind == TILE_LOOP;
        if (!pair || next->tiles != op->tiles || next->from != next->to) continue;
        next->from = op->from;
        next->to = op->to;
        for (int i = 0; i < op->args.n; i++) next->args.data[i] = op->args.data[i];
        tile_unlink(op);
    }
}

// max(m, x) of a shift that may be any number near the maximum: it moves where x is so much more that sums have no room left.
static const Ex *seldom_one(void *ctx, ExPool *x, const Ex *e) {
    (void)ctx;
    if (e->op != EX_SELECT || !ex_is_sym(e->args[0], SYM_KEPT, -1)) return e;
    const Ex *old = e->args[1], *max = e->args[2];
    if (max->op != EX_MAX || max->args[0] != old) return e;
    const Ex *most = ex_2(x, EX_ADD, old, ex_f32(x, FIXED_SHIFT_ROOM));
    return ex_select(x, ex_2(x, EX_LT, most, max->args[1]), max->args[1], old);
}

static const Ex *seldom(void *ctx, const Ex *e) {
    TileProgram *p = ctx;
    return ex_map(p->pool, e, seldom_one, NULL);
}

// Where a branch leaves out the sums while all factors are 1: where another role multiplies them, and where warpgroups share scores.
static void move_seldom(TileProgram *p, TileKernel *k) {
    uint32_t said = k->schedule.knobs.said;
    bool wide = said == knobs_of(FORM_SM90_WIDE) && !p->batch; // no GPU has run those of a batch
    if (said != knobs_of(FORM_SM90_APART) && !wide) return;
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        tile_map_exprs(op, seldom, p);
}

static void decide_all(TileProgram *p, TileKernel *k, bool stays) {
    Decide d = {p->pool, stays};
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        tile_map_exprs(op, decide, &d);
}

// Of a kernel that may be built for both. *waits: it is not known yet; *stay: they do.
static bool decide_kernel(TileProgram *p, TileKernel *k, const PassOptions *o, Diags *diags,
                          bool *waits, bool *stay) {
    const TileOp *loop = first_of(k, TILE_LOOP);
    bool chosen = p->target != TARGET_SM90A || k->axes[loop->axis].extent > 0;
    bool stays = k->schedule.knobs.fixed_shift, classed = loop->tiles != CLASS_ANY;
    if (!chosen || (stays && !classed)) return *waits = true;
    Sm90 s = sm90_begin(p, k);
    if (stays && !sm90_overlaps(&s)) {
        stays = false;
        drop_kept(k);
        if (!sm90_move_shifts(p, k, o, diags)) return false;
    }
    if (!stays) move_seldom(p, k);
    decide_all(p, k, stays);
    if (!stays) tile_unlink(first_of(k, TILE_BOUND));
    *stay |= stays;
    return true;
}

// In the others shifts follow their extrema; what they know a row without a key by fits what any kernel leaves.
bool pass_shifts(TileProgram *p, const PassOptions *o, Diags *diags) {
    bool waits = false, stay = false, bound = false;
    for (int i = 0; i < p->kernels.n; i++) {
        TileKernel *k = p->kernels.data[i];
        if (!tile_has(&k->body, TILE_BOUND)) continue;
        bound = true;
        if (!decide_kernel(p, k, o, diags, &waits, &stay)) return false;
    }
    if (waits || !bound) return true;
    for (int i = 0; i < p->kernels.n; i++)
        if (!tile_has(&p->kernels.data[i]->body, TILE_BOUND))
            decide_all(p, p->kernels.data[i], stay);
    pass_tidy(p);
    return true;
}
