// sm90_nest.c: how Hopper computes gradients: a nest of five products.
//
// In: a kernel of gradients whose block has a tile of keys: loops over the heads of its group, and in them
// over tiles of queries. Scores are made as S^T = K Q^T, so that weights and gradients of scores leave the
// registers of their products as left operands: dV += P^T dO, dK += dS^T Q. Only dQ = dS K wants dS in another
// order, which goes through shared memory, and is added to memory by the copy engine.
//
// Out: places, and two roles without bodies. K and V are taken once for a tile; what belongs to queries, numbers
// of rows among it, comes through pipes of `stages`. All is of stage 0:
//
//     loads   s   dp   maps   dv   share ds   dq   dk   add dq
//
// so that maps run under dp, ds is written under dv, and dq leaves under dk.
//
// The sums of k and v for 64 keys are (D + Dv) / 2 words of a thread of one warpgroup. Where that is more than there are registers for,
// all warpgroups have the same 64 keys, and queries, and columns of the sums, of their own. Then weights go through shared memory, too:
//
//     loads   s   dp   maps   share w, ds   dv   dk   dq   add dq
//
// Measured (bf16, d 128): 64 queries a step, two warpgroups of 64 keys; with 128 queries a step at 64 columns.
#include "passes/mask/interval.h"
#include "passes/schedule/expand.h"
#include "passes/schedule/sm90.h"

#include "ir/tile_blocks.h"

enum {
    PANEL = 64,        // columns of shared memory that lie together
    GROUP_KEYS = 64,   // rows of a warpgroup's product
    MAX_COLUMNS = 256, // of either
    MAX_MAPS = 8,      // tensor maps of a kernel, each of a tensor that is loaded
    SUM_COLUMNS =
        256,      // of both, whose sums a warpgroup has registers for, beside scores or a step's dq
    SLACK = 2048, // barriers, the tile's number, alignment
    WIDE_STEP = 64, // columns up to which a step has as many queries as warpgroups have rows
    REGISTERS = 240,
    PRODUCER_REGISTERS = 24,
};

static bool is_loop(const TileOp *op) { return op && op->kind == TILE_LOOP; }

static bool is_nested(const TileOp *op) {
    const TileOp *loop = op->block->owner;
    return is_loop(loop) && is_loop(loop->block->owner);
}

// Results of products have rows of keys, or sum over the keys; what is added has queries and columns.
static bool fits_product(const TileKernel *k, const TileOp *op) {
    const TileValue *v = op->results.data[0];
    int keys = tile_grid_axis(k);
    return v->rank == 2 && (tile_has_axis(v, keys) || tile_contracted_axis(op) == keys);
}

// What comes by tensor copies: tiles of 16-bit elements, and vectors whose rows begin at a multiple of 16 bytes.
static bool fits_load(const TileProgram *p, const TileOp *op) {
    const TileTensor *t = &p->tensors.data[op->tensor];
    if (!is_nested(op) || sm90_piped(op)) return true;
    return t->role == TENSOR_WORK && t->dtype == DT_F32 && op->results.data[0]->rank == 1 &&
           tile_is_multiple(t->extent[t->rank - 1], 4);
}

// Whether the warpgroups have the same keys.
static bool shares_keys(const TileProgram *p) { return p->D + p->Dv > SUM_COLUMNS; }

// Of the tile's keys, which lie along the threads, and not across them. Nothing is summed over several warpgroups.
static bool fits_map(const TileProgram *p, const TileOp *op, int keys) {
    bool has = op->naxes == 0;
    for (int i = 0; i < op->naxes; i++) has |= op->axes[i] == keys;
    for (int i = 0; i < op->outs.n; i++) {
        const TileResult *out = &op->outs.data[i];
        has &= out->reduce == EX_CONST || (out->reduce_axis != keys && !shares_keys(p));
    }
    return has;
}

static bool fits_op(const TileProgram *p, const TileKernel *k, const TileOp *op) {
    int keys = tile_grid_axis(k);
    if (!tile_goes_by_runs(p, op)) return false;
    if (op->kind == TILE_MMA) return is_nested(op) && fits_product(k, op);
    if (op->kind == TILE_LOAD) return fits_load(p, op);
    if (op->kind == TILE_STORE && is_nested(op))
        return op->add && op->args.data[0]->def->kind == TILE_MMA &&
               tile_may_block(&p->tensors.data[op->tensor]);
    if (op->kind == TILE_MAP) return fits_map(p, op, keys);
    return op->kind == TILE_STORE || op->kind == TILE_YIELD || op->kind == TILE_LOOP;
}

// Of the loads of its tensor.
static bool is_first_of(const TileKernel *k, const TileOp *load) {
    const TileOp *op = tile_next(&k->body, NULL);
    while (op != load && (op->kind != TILE_LOAD || op->tensor != load->tensor))
        op = tile_next(&k->body, op);
    return op == load;
}

bool sm90_is_nest(const TileProgram *p, const TileKernel *k) {
    int keys = tile_grid_axis(k), products = 0, tensors = 0;
    bool mapped = p->D % 16 == 0 && p->Dv % 16 == 0 && p->D <= MAX_COLUMNS && p->Dv <= MAX_COLUMNS;
    if (k->purpose != PURPOSE_GRADIENTS || !dtype_half(p->dtype) || !mapped || keys < 0)
        return false;
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        if (!fits_op(p, k, op)) return false;
        products += op->kind == TILE_MMA;
        tensors += op->kind == TILE_LOAD && is_first_of(k, op);
    }
    return products > 0 && tensors <= MAX_MAPS && !sm90_has_long_body(k);
}

// ---- extents

// Keys of a block.
static int keys_of(const TileProgram *p, Knobs s) {
    return GROUP_KEYS * (shares_keys(p) ? 1 : s.warpgroups);
}

// Columns of the warpgroups are whole panels where each has some of dq's, or of the sums.
static int unit_of(const TileProgram *p, Knobs s) {
    bool apart = s.rows < GROUP_KEYS * s.warpgroups || shares_keys(p);
    return apart ? PANEL * s.warpgroups : 16;
}

// Of a block: keys and values, stages of what belongs to queries, what is shared, and the buffer of dq.
static int shared_bytes(const TileProgram *p, Knobs s) {
    enum { ELEM = 2, VECTORS = 8 };
    int d = pass_padded(p->D, unit_of(p, s)), both = d + pass_padded(p->Dv, unit_of(p, s));
    int keys = keys_of(p, s), stage = s.rows * (both * ELEM + VECTORS * 4);
    int shared =
        2 * keys * s.rows * ELEM; // weights and gradients of scores, or two stages of these
    return keys * both * ELEM + s.stages * stage + shared + s.rows * d * 4 + SLACK;
}

static Knobs fit(const TileProgram *p) {
    int wide = p->D > p->Dv ? p->D : p->Dv;
    Knobs s = {.said = knobs_of(FORM_SM90_NEST), .warpgroups = 2, .stages = 2};
    s.registers = REGISTERS, s.producer_registers = PRODUCER_REGISTERS;
    s.rows = wide <= WIDE_STEP ? s.warpgroups * GROUP_KEYS : GROUP_KEYS;
    if (shared_bytes(p, s) > target_get(p->target)->shared_bytes) s.stages = 1;
    return s;
}

// A sequence's own sizes by what they are made of.
static const Ex *defined(void *ctx, ExPool *x, const Ex *e) {
    const TileProgram *p = ctx;
    bool own = e->op == EX_SYM && e->sym == SYM_SIZE && p->sizes.data[e->index].own;
    return own ? ex_map(x, p->sizes.data[e->index].def, defined, ctx) : e;
}

// Blocks have tiles of all sequences, one after the other: where a sequence's keys begin the keys' tile says.
static void pack(TileProgram *p, TileKernel *k) {
    ExPool *x = p->pool;
    const TileOp *load = tile_next(&k->body, NULL);
    const Ex *from = NULL, *batch = ex_sym(x, SYM_SIZE, SIZE_B, EX_I32);
    for (; load && !from; load = tile_next(&k->body, load))
        for (int d = 0; load->kind == TILE_LOAD && d < p->tensors.data[load->tensor].rank; d++)
            if (load->coord[d].axis == tile_grid_axis(k)) from = tile_run_from(x, load, d);
    TileGrid *g = &k->grid[tile_grid_rows(k)];
    const Ex *tiles = ex_2(x, EX_DIV, pass_all_keys(p), ex_i32(x, k->axes[g->axis].extent));
    k->grid[0].count = ex_2(x, EX_MIN, batch, ex_i32(x, 1));
    g->count = ex_2(x, EX_ADD, tiles, batch);
    g->packed = ex_simplify(x, ex_map(x, from, defined, p));
    g->shared = NULL;
}

bool sm90_bind_nest(TileProgram *p, TileKernel *k, const PassOptions *o, Diags *diags) {
    Knobs *s = &k->schedule.knobs;
    k->schedule = (TileSchedule){.lane_axis = -1, .min_blocks = 1, .knobs = fit(p)};
    if (!knobs_take(s, FORM_SM90_NEST, &o->schedule, diags)) return false;
    k->schedule.warps = 4 * s->warpgroups;
    for (int a = 0; a < k->naxes; a++) {
        if (k->axes[a].extent) continue; // one head at a time
        if (k->axes[a].whole)
            pass_bind(p, k, a, pass_padded(k->axes[a].size->i, unit_of(p, *s)));
        else
            pass_bind(p, k, a, a == tile_grid_axis(k) ? keys_of(p, *s) : s->rows);
    }
    if (p->batch) pack(p, k);
    return true;
}

// ---- weights before the gradients of scores: what needs fewer products is a map of its own, which runs under the others. In partial
// tiles the mask would be asked twice.

static unsigned products_of(const TileOp *map, const Ex *e) { // by operand
    unsigned set = 0;
    for (int i = 0; i < map->args.n; i++)
        if (map->args.data[i]->def->kind == TILE_MMA && ex_uses(e, SYM_PARAM, i)) set |= 1u << i;
    return set;
}

typedef struct Swap {
    const Ex *from, *to;
} Swap;

static const Ex *swap(void *ctx, ExPool *x, const Ex *e) {
    const Swap *s = ctx;
    (void)x;
    return e == s->from ? s->to : e;
}

typedef struct Common {
    const Ex *with, *part;
    bool dear; // both have it
} Common;

static void find_again(void *ctx, const Ex *e) {
    Common *c = ctx;
    c->dear |= e == c->part;
}

static void find_common(void *ctx, const Ex *e) {
    Common *c = ctx;
    c->part = e;
    if (ex_op_cost(e->op, e->type) == C_SPECIAL) ex_visit(c->with, find_again, c);
}

// Whether the other results need what it is made of no more, but some product that it does not need; nor an exponential of its
// own, which would wait in registers.
static bool goes_first(Sm90 *s, const TileOp *map, int result) {
    Swap own = {map->outs.data[result].body, ex_f32(s->x, 0)};
    unsigned mine = products_of(map, own.from), others = 0;
    Common c = {.with = own.from};
    for (int i = 0; i < map->outs.n; i++) {
        if (map->outs.data[i].reduce != EX_CONST) return false;
        const Ex *rest = ex_map(s->x, map->outs.data[i].body, swap, &own);
        others |= products_of(map, rest);
        ex_visit(rest, find_common, &c);
    }
    return mine && others && !(mine & others) && !c.dear;
}

static void make_first(Sm90 *s, TileOp *map, int result) {
    TileOp *op = pass_map(s->p, s->k, NULL, pass_axes_of(map->results.data[result]), map->span);
    tile_insert_before(map, op);
    const Ex *body = map->outs.data[result].body;
    TileValue *v = pass_out(s->p, s->k, op, map->results.data[result]->name, DT_F32,
                            pass_transplant(s->p, op, map, body), EX_CONST, 0);
    Swap own = {body, pass_operand(s->p, map, v)};
    for (int i = 0; i < map->outs.n; i++)
        map->outs.data[i].body = ex_map(s->x, map->outs.data[i].body, swap, &own);
    pass_compact(s->p, map);
}

static void split(Sm90 *s, TileOp *map) {
    for (int i = 0; i < map->outs.n; i++)
        if (goes_first(s, map, i)) {
            make_first(s, map, i);
            return;
        }
}

// ---- places

enum {
    SCORES,
    MAPS,
    EARLY_SHARE,
    FIRST_SUM,
    SHARE,
    ACROSS,
    SUMS,
    ADD
}; // warpgroups have keys of their own
enum { SHARE_ALL = EARLY_SHARE, ALL_SUMS, ALL_ACROSS, ALL_ADD = ADD }; // or the same ones

// What a product across warpgroups reads goes through shared memory, once.
static TileValue *share(Sm90 *s, TileOp *product, int operand) {
    TileValue *from = product->args.data[operand];
    for (TileOp *op = product->block->first; op != product; op = op->next) {
        bool same = op->kind == TILE_MAP && op->results.data[0]->home == HOME_SHARED;
        if (!same || op->args.data[0] != from) continue;
        product->args.data[operand] = op->results.data[0];
        return from;
    }
    TileOp *op = pass_map(s->p, s->k, NULL, pass_axes_of(from), product->span);
    tile_insert_before(product, op);
    const Ex *same = pass_operand(s->p, op, from);
    TileValue *v = pass_out(s->p, s->k, op, from->name, from->dtype, same, EX_CONST, 0);
    v->home = HOME_SHARED;
    v->stages = shares_keys(s->p) ? 1 : 2;
    product->args.data[operand] = v;
    return from;
}

static void place(TileOp *op, const char *role, int order) {
    op->role = role;
    op->place = (TilePlace){0, order};
}

// Where warpgroups have the same keys: whatever products make of maps is shared.
static void place_shared(Sm90 *s, TileBlock *b) {
    int keys = tile_grid_axis(s->k);
    for (TileOp *op = b->first; op; op = op->next)
        for (int i = 0; op->kind == TILE_MMA && i < 2; i++)
            if (op->args.data[i]->def->kind == TILE_MAP) share(s, op, i);
    for (TileOp *op = b->first; op; op = op->next) {
        bool sums = op->kind == TILE_MMA && op->args.n > 2;
        bool across = op->kind == TILE_MMA && !tile_has_axis(op->results.data[0], keys);
        bool shared = op->kind == TILE_MAP && op->results.data[0]->home == HOME_SHARED;
        int order = op->kind == TILE_STORE ? ALL_ADD
                    : across               ? ALL_ACROSS
                    : sums                 ? ALL_SUMS
                    : shared               ? SHARE_ALL
                    : op->kind == TILE_MAP ? MAPS
                                           : SCORES;
        if (op->kind != TILE_YIELD) place(op, "consumer", order);
    }
}

static void place_step(Sm90 *s, TileBlock *b) {
    int keys = tile_grid_axis(s->k);
    TileValue *shared = NULL;
    for (TileOp *op = b->first; op; op = op->next)
        if (op->kind == TILE_MAP && b->owner->tiles == CLASS_FULL) split(s, op);
    if (shares_keys(s->p)) {
        place_shared(s, b);
        return;
    }
    // Under the first sum's product warpgroups wait for each other for nothing; partial tiles have no registers for that.
    int share_at = b->owner->tiles == CLASS_FULL ? EARLY_SHARE : SHARE;
    for (TileOp *op = b->first; op; op = op->next) {
        bool across = op->kind == TILE_MMA && !tile_has_axis(op->results.data[0], keys);
        for (int i = 0; across && i < 2; i++)
            if (op->args.data[i]->def->kind == TILE_MAP) shared = share(s, op, i);
        if (across) place(op, "consumer", ACROSS), place(op->prev, "consumer", share_at);
    }
    for (TileOp *op = b->first; op; op = op->next) {
        if (op->role || op->kind == TILE_YIELD) continue;
        bool sums = op->kind == TILE_MMA && op->args.n > 2;
        bool late = sums && (op->args.data[0] == shared || op->args.data[1] == shared);
        int order = op->kind == TILE_STORE ? ADD
                    : late                 ? SUMS
                    : sums                 ? FIRST_SUM
                    : op->kind == TILE_MAP ? MAPS
                                           : SCORES;
        place(op, "consumer", order);
    }
}

static void place_block(Sm90 *s, TileBlock *b) {
    bool nested = b->owner && is_loop(b->owner->block->owner);
    if (nested) pass_interval(s->p, s->k, tile_grid_axis(s->k), b->owner->axis, true);
    if (nested) place_step(s, b);
    for (TileOp *op = b->first; op; op = op->next) {
        TileValue *v = op->kind == TILE_LOAD ? op->results.data[0] : NULL;
        if (op->kind == TILE_LOOP) place_block(s, &op->body);
        if (op->kind == TILE_LOOP || op->kind == TILE_YIELD) continue;
        if (!nested) place(op, "consumer", 0);
        if (!v || (!nested && !sm90_piped(op))) continue;
        v->home = HOME_SHARED;
        v->stages = nested ? s->shape.stages : 1;
        op->role = "producer";
    }
}

void sm90_assign_nest(Sm90 *s) {
    place_block(s, &s->k->body);
    sm90_add_role(s, "producer", 1, s->shape.producer_registers);
    sm90_add_role(s, "consumer", s->shape.warpgroups, s->shape.registers);
}

// ---- sums

static TileValue *buffer_for(Sm90 *s, TileOp *before, const TileOp *store) {
    const TileValue *v = store->args.data[0];
    TileOp *op = tile_op(s->p, s->k, NULL, TILE_ALLOC, store->span);
    tile_insert_before(before, op);
    const char *name = arena_printf(s->p->arena, "%sb", s->p->tensors.data[store->tensor].name);
    TileValue *b = tile_result(s->p, s->k, op, name, DT_F32, v->axis, v->rank);
    b->home = HOME_SHARED;
    return b;
}

// All through one: each warp has its own part of it.
void sm90_sum_through(Sm90 *s) {
    TileOp *roles = s->k->body.first;
    TileValue *buffer = NULL;
    while (roles->kind != TILE_ROLE) roles = roles->next;
    for (TileOp *op = tile_next(&s->k->body, NULL); op; op = tile_next(&s->k->body, op)) {
        if (op->kind != TILE_STORE || !op->add || op->args.n != 1) continue;
        if (!tile_may_block(&s->p->tensors.data[op->tensor])) continue;
        if (!buffer) buffer = buffer_for(s, roles, op);
        tile_arg(s->p, op, buffer);
    }
}
