// fuse.c: joins maps, so that a tile is walked once and scales fold into what reads them.
//
// In: a program, tidied. Out: the same computation in fewer maps. Holds afterwards: no map is
// followed by a joinable one: over the same axes, in the same block, reading a result or an operand
// of it, with nothing between them that needs the one and is needed by the other.
//
//     %s = map (d = %dot) { select(mask, d * 0.125, -inf) }
//     %t = map (s = %s) { rowmax N of s }
//     %m = map (m = %m0, t = %t) { max(m, t) }
//     %p = map (s = %s, a = %a) { exp2(s * 1.44 + a) }
//
//     ->  %s, %t = map (d = %dot) { select(mask, d, -inf); rowmax N of select(mask, d, -inf) }
//         %m = map (m = %m0, t = %t) { max(m, t * 0.125) }
//         %p = map (s = %s, a = %a) { exp2(s * 0.18 + a) }
//
// A positive factor goes out of selects and maxima and into what reads them, where it costs
// nothing: in an fma, or once a row. What needs the row maximum cannot be joined with what it is
// the maximum of.
#include "passes/derive/large_unit.h"
#include "passes/passes.h"
#include "passes/tile/rewrite.h"

#include <math.h>

// ---- factors

// c of x * c, where c is a positive constant, so that order and infinities stay.
static const Ex *positive_factor(const Ex *e) {
    if (e->op != EX_MUL || e->type != EX_F32) return NULL;
    const Ex *c = e->args[1];
    return c->op == EX_CONST && c->f > 0.0f && isfinite(c->f) ? c : NULL;
}

static bool infinite(const Ex *e) { return e->op == EX_CONST && isinf(e->f); }

// select(c, x * f, -inf) -> select(c, x, -inf) * f
static const Ex *factor_out_of_select(ExPool *x, const Ex *e) {
    if (e->op != EX_SELECT || e->type != EX_F32) return e;
    bool first = infinite(e->args[2]);
    if (!first && !infinite(e->args[1])) return e;
    const Ex *inner = factor_out_of_select(x, e->args[first ? 1 : 2]);
    const Ex *f = positive_factor(inner);
    if (!f) return e;
    const Ex *rest = inner->args[0];
    const Ex *s = first ? ex_select(x, e->args[0], rest, e->args[2])
                        : ex_select(x, e->args[0], e->args[1], rest);
    return ex_2(x, EX_MUL, s, f);
}

typedef struct Scale {
    int param;
    const Ex *product; // what the parameter stands for: x * c
} Scale;

static const Ex *scale_param(void *ctx, ExPool *x, const Ex *e) {
    const Scale *s = ctx;
    if (e->op != EX_SYM || e->sym != SYM_PARAM || e->index != s->param) return e;
    if (large_factor_of(s->product)) return large_product_of(x, s->product, e);
    return ex_2(x, EX_MUL, e, s->product->args[1]);
}

// Only maps can take a factor on; other ops need the value as it is.
static bool only_maps_use(const TileKernel *k, const TileValue *v) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; i < op->args.n; i++)
            if (op->args.data[i] == v && op->kind != TILE_MAP) return false;
    return true;
}

static void give_factor(TileProgram *p, TileKernel *k, const TileValue *v, const Ex *product) {
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        if (op->kind != TILE_MAP) continue;
        for (int i = 0; i < op->args.n; i++) {
            if (op->args.data[i] != v) continue;
            Scale s = {i, product};
            for (int j = 0; j < op->outs.n; j++) {
                const Ex *body = ex_map(p->pool, op->outs.data[j].body, scale_param, &s);
                op->outs.data[j].body = ex_simplify(p->pool, body);
            }
        }
    }
}

// A factor at the top of a body moves to the result's readers: past a maximum or minimum too, and
// past a plain result where that leaves a bare value or a select. (Past anything else it would only
// cost a multiplication at each reader.)
static bool sink_factor(TileProgram *p, TileKernel *k, TileOp *map, int i) {
    TileResult *r = &map->outs.data[i];
    TileValue *v = map->results.data[i];
    if (v->dtype != DT_F32 || r->reduce == EX_ROWSUM) return false;
    const Ex *body = factor_out_of_select(p->pool, r->body);
    bool monotone = positive_factor(body) || (r->reduce != EX_CONST && large_factor_of(body));
    if (!monotone || !only_maps_use(k, v)) return false;
    const Ex *rest = body->args[0];
    bool light = rest->op == EX_SELECT || rest->op == EX_SYM;
    if (r->reduce == EX_CONST && !light) return false;
    r->body = ex_simplify(p->pool, rest);
    give_factor(p, k, v, body);
    return true;
}

static void sink_factors(TileProgram *p, TileKernel *k) {
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (op->kind == TILE_MAP)
            for (int i = 0; i < op->outs.n; i++) sink_factor(p, k, op, i);
}

// ---- joining

static bool share_operand(const TileOp *a, const TileOp *b) {
    for (int i = 0; i < a->args.n; i++)
        for (int j = 0; j < b->args.n; j++)
            if (a->args.data[i] == b->args.data[j]) return true;
    return false;
}

// `later` reads only whole f32, i32 or bool elements of `first`, never its reductions nor what was
// rounded.
static bool reads_elements_only(const TileOp *first, const TileOp *later) {
    for (int i = 0; i < later->args.n; i++) {
        const TileValue *v = later->args.data[i];
        if (v->def != first) continue;
        for (int j = 0; j < first->results.n; j++)
            if (first->results.data[j] == v && first->outs.data[j].reduce != EX_CONST) return false;
        if (v->dtype == DT_F16 || v->dtype == DT_BF16) return false;
    }
    return true;
}

// Whether nothing from `first` (exclusive) to `later` uses a result of first, so that first may
// move down to later.
static bool may_sink(const TileOp *first, const TileOp *later) {
    for (const TileOp *op = first->next; op != later; op = op->next)
        if (pass_uses_result(op, first)) return false;
    return true;
}

// Whether all that `later` reads is there at `first` already, but for first's own results: later
// may move up to first.
static bool may_rise(const TileOp *first, TileOp *later) {
    for (int i = 0; i < later->args.n; i++) {
        TileOp *def = later->args.data[i]->def;
        if (def == first || def->block != later->block) continue;
        if (pass_before(first, def)) return false;
    }
    return true;
}

typedef struct Inline {
    TileProgram *p;
    TileOp *to;
    const TileOp *first, *later;
} Inline;

static const Ex *inline_one(void *ctx, ExPool *x, const Ex *e) {
    Inline *in = ctx;
    (void)x;
    if (e->op != EX_SYM || e->sym != SYM_PARAM) return e;
    TileValue *v = in->later->args.data[e->index];
    for (int j = 0; j < in->first->results.n; j++)
        if (in->first->results.data[j] == v) return in->first->outs.data[j].body;
    return pass_operand(in->p, in->to, v);
}

// Puts `later`'s results into `first`, which stays where it is, or goes to later's place.
static void join_maps(TileProgram *p, TileOp *first, TileOp *later, bool down) {
    TileOp snapshot = *first; // results and bodies of before
    Inline in = {p, first, &snapshot, later};
    int old = first->results.n;
    snapshot.results.n = snapshot.outs.n = old;
    for (int i = 0; i < later->outs.n; i++) {
        TileResult r = later->outs.data[i];
        r.body = ex_simplify(p->pool, ex_map(p->pool, r.body, inline_one, &in));
        VEC_PUSH(p->arena, &first->outs, r);
        VEC_PUSH(p->arena, &first->results, later->results.data[i]);
        later->results.data[i]->def = first;
    }
    if (down) pass_move_before(later, first);
    tile_unlink(later);
}

static bool try_join(TileProgram *p, const TileKernel *k, TileOp *first, TileOp *later) {
    if (later->kind != TILE_MAP || pass_map_axes(first) != pass_map_axes(later)) return false;
    if (pass_by_positions(k) && first->naxes > 1 &&
        pass_goes_through_rows(k, first) != pass_goes_through_rows(k, later))
        return false; // one is made in registers, the other in shared memory
    if (!pass_reads(later, first) && !share_operand(first, later)) return false;
    if (!reads_elements_only(first, later)) return false;
    if (first->args.n + later->args.n > PASS_MAX_OPERANDS) return false;
    bool up = may_rise(first, later);
    if (!up && !may_sink(first, later)) return false;
    join_maps(p, first, later, !up);
    return true;
}

static bool join_in_block(TileProgram *p, const TileKernel *k, TileBlock *b) {
    for (TileOp *first = b->first; first; first = first->next) {
        if (first->kind == TILE_LOOP && join_in_block(p, k, &first->body)) return true;
        if (first->kind != TILE_MAP) continue;
        for (TileOp *later = first->next; later; later = later->next)
            if (try_join(p, k, first, later)) return true;
    }
    return false;
}

void pass_fuse(TileProgram *p) {
    for (int i = 0; i < p->kernels.n; i++) {
        TileKernel *k = p->kernels.data[i];
        if (tile_has_lanes(k)) continue;
        sink_factors(p, k);
        pass_tidy(p); // forwards what is a bare value by now
        while (join_in_block(p, k, &k->body)) {
        }
        sink_factors(p, k);
    }
    pass_tidy(p);
}
