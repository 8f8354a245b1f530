// sm90_nest.c: how Hopper computes gradients: a nest of five products.
//
// In: a kernel of gradients whose block has a tile of keys: loops over the heads of its group, and in them
// over tiles of queries. Scores are made as S^T = K Q^T, so that weights and gradients of scores leave the
// registers of their products as left operands: dV += P^T dO, dK += dS^T Q. Only dQ = dS K wants dS in another
// order, which goes through shared memory, and is added to memory by the copy engine.
//
// Out: extents, choices, and the roles to which sm90_roles.c gives the operations. K and V are taken once for a tile, through pipes of two
// stages where there is room; what belongs to queries, numbers of rows among it, comes through pipes of `stages`. Sums that are complete
// are converted meanwhile (meanwhile.c).
//
// The sums of k and v for 64 keys are (D + Dv) / 2 words of a thread of one warpgroup. Where that is more than there are registers for,
// three roles of one warpgroup each have the same 64 keys: weights, their gradients, and what is summed over keys. Or, where it is not
// much more and a score's weight is little work, two warpgroups have hardly registers for them, and make weights narrow first (tight).
//
// Measured (bf16, d 128): 64 queries a step, two warpgroups of 64 keys; with 128 queries a step at 64 columns.
#include "passes/schedule/resources.h"
#include "passes/schedule/sm90.h"

#include "ir/tile_blocks.h"
#include "ir/tile_shared.h"

enum {
    PANEL = 64,        // columns of shared memory that lie together
    GROUP_KEYS = 64,   // rows of a warpgroup's product
    MAX_COLUMNS = 256, // of either
    MAX_MAPS = 8,      // tensor maps of a kernel, each of a tensor that is loaded
    SUM_COLUMNS =
        256,      // of both, whose sums a warpgroup has registers for, beside scores or a step's dq
    BESIDE = 32,  // registers of a thread beside its sums and dq, where they are tight
    SLACK = 1024, // barriers, the tile's number, alignment
    WIDE_STEP = 64, // columns up to which a step has as many queries as warpgroups have rows
    REGISTERS = 240,
    CHAIN = 3,
    CHAIN_REGISTERS = 208, // which leave enough for 64 columns of dq
    PRODUCER_REGISTERS = 24,
    LEAST_REGISTERS = 24,
    SPARING_REGISTERS = 232, // with which nothing is spilled in steps of 64 queries
    FINISHER_REGISTERS = 40, // and with what is left the producer's warps convert sums
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
    return !is_nested(op) || sm90_piped(op) || pass_is_vector(p, op);
}

// Whether sums of keys and of values are in different roles.
static bool has_wide_sums(const TileProgram *p) { return p->D + p->Dv > SUM_COLUMNS; }

// Of the tile's keys, which lie along the threads, and not across them. Nothing is summed over several warpgroups.
static bool fits_map(const TileOp *op, int keys) {
    bool has = op->naxes == 0;
    for (int i = 0; i < op->naxes; i++) has |= op->axes[i] == keys;
    for (int i = 0; i < op->outs.n; i++) {
        const TileResult *out = &op->outs.data[i];
        has &= out->reduce == EX_CONST || out->reduce_axis != keys;
    }
    return has;
}

// Of gradients of scores, what goes to a table of distances: each warp adds up its own diagonals.
bool sm90_scatters(const TileOp *op) {
    return op->kind == TILE_STORE && op->add && op->args.data[0]->rank == 2 &&
           op->args.data[0]->def->kind == TILE_MAP && tile_scatters_diagonals(op);
}

static bool fits_op(const TileProgram *p, const TileKernel *k, const TileOp *op) {
    int keys = tile_grid_axis(k);
    if (sm90_scatters(op)) return !has_wide_sums(p);
    if (!tile_goes_by_runs(p, op)) return false;
    if (op->kind == TILE_MMA) return is_nested(op) && fits_product(k, op);
    if (op->kind == TILE_LOAD) return fits_load(p, op);
    if (op->kind == TILE_STORE && is_nested(op))
        return op->add && op->args.data[0]->def->kind == TILE_MMA &&
               tile_may_block(&p->tensors.data[op->tensor]);
    if (op->kind == TILE_MAP) return fits_map(op, keys);
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
    if (has_wide_sums(p) && !sm90_may_part(p, k)) return false;
    return products > 0 && tensors <= MAX_MAPS && !sm90_has_long_body(k);
}

static void find_places(void *ctx, const Ex *e) {
    bool *found = ctx;
    *found |= e->op == EX_LOAD || (e->op == EX_SYM && e->sym != SYM_PARAM && e->sym != SYM_MASK);
}

// Whether weights may be narrow before their gradients are made, of nothing but products and numbers of rows: what asks where a pair lies,
// or for a size, takes registers.
static bool may_narrow_first(const TileProgram *p, const TileKernel *k) {
    bool first = false, places = sm90_has_dear_mask(k);
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        if (op->kind != TILE_MAP || !is_nested(op)) continue;
        for (int i = 0; i < op->outs.n; i++) {
            first |= sm90_goes_first(p->pool, op, i);
            ex_visit(op->outs.data[i].body, find_places, &places);
        }
    }
    return first && !places;
}

// ---- extents

static bool is_chain(Knobs s) { return s.warpgroups == CHAIN; }

// Keys of a block.
static int keys_of(Knobs s) { return GROUP_KEYS * (is_chain(s) ? 1 : s.warpgroups); }

// Columns of dq for which the last role's registers do: each two are one.
static int columns_of(Knobs s) { return 2 * (sm90_left_registers(s, 2) - BESIDE); }

// Columns of the warpgroups are whole panels where each has some of dq's, or, where sums are tight, halves of them; so are parts of dq in a chain.
static int unit_of(const TileProgram *p, Knobs s) {
    if (is_chain(s)) return p->D > 2 * PANEL || p->D > columns_of(s) ? PANEL : 16;
    return s.rows < keys_of(s)
               ? (has_wide_sums(p) || p->D <= PANEL ? PANEL / 2 : PANEL) * s.warpgroups
               : 16;
}

static Extents extents_of(const TileProgram *p, Knobs s) {
    int unit = unit_of(p, s);
    return (Extents){keys_of(s), s.rows, unit, unit, MAX_COLUMNS};
}

// Stages of gradients of scores, so many tiles of keys and values, and what goes from role to role, or the buffer of dq.
static bool fits_all(const TileProgram *p, const TileKernel *k, Knobs s, int shares, int tiles) {
    enum { WORD = 4 };
    Extents e = extents_of(p, s);
    s.queries = tiles;
    Block b = pass_block(p, k, &e, s, keys_of(s) / 16);
    b.gives = shares;
    int own = is_chain(s) ? keys_of(s) : pass_padded(p->D, unit_of(p, s));
    int bytes = pass_shared(&b) + s.rows * own * WORD + SLACK;
    return bytes <= target_get(p->target)->shared_bytes;
}

static bool has_room(const TileProgram *p, const TileKernel *k, Knobs s, int shares) {
    return fits_all(p, k, s, shares, 1);
}

static bool has_scatter(const TileKernel *k) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (sm90_scatters(op)) return true;
    return false;
}

// Gradients of scores of one step wait for the next one's: there are two stages of them.
static bool may_turn(const TileProgram *p, const TileKernel *k, Knobs s) {
    return s.warpgroups == 2 && !has_wide_sums(p) && has_room(p, k, s, 2);
}

static Knobs fit(const TileProgram *p, const TileKernel *k, bool chain) {
    int wide = p->D > p->Dv ? p->D : p->Dv;
    Knobs s = {.said = knobs_of(FORM_SM90_NEST), .warpgroups = chain ? CHAIN : 2, .stages = 2};
    bool many = wide <= WIDE_STEP && !chain && !has_scatter(k); // queries a step
    bool spares = !many && !chain && !has_wide_sums(p) && !has_scatter(k);
    s.registers = chain ? CHAIN_REGISTERS : spares ? SPARING_REGISTERS : REGISTERS;
    s.producer_registers = spares ? FINISHER_REGISTERS : PRODUCER_REGISTERS;
    s.rows = many ? s.warpgroups * GROUP_KEYS : GROUP_KEYS;
    if (!has_room(p, k, s, chain || has_wide_sums(p) ? 1 : 2)) s.stages = 1;
    return s;
}

// Whether two warpgroups have registers for sums of so many columns after all, if weights are narrow before their gradients are made.
static bool fits_tight(const TileProgram *p, Knobs s) {
    int d = pass_padded(p->D, unit_of(p, s)), dv = pass_padded(p->Dv, unit_of(p, s));
    return s.warpgroups == 2 && (d + dv) / 2 + d / 4 + BESIDE <= s.registers;
}

// Of panels, which may be more columns: 384 where D is 96 and Dv 160.
static bool has_sums(const TileProgram *p, Knobs s) {
    int unit = unit_of(p, s);
    return pass_padded(p->D, unit) + pass_padded(p->Dv, unit) <= SUM_COLUMNS;
}

// Whether that is faster than three roles, which have half as many keys for each sum of dq (docs/experiments.md). Lookups and
// long masks take registers: ptxas then lets no product run beside another.
static bool is_for_two(const TileProgram *p, const TileKernel *k) {
    Knobs s = fit(p, k, false);
    if (has_wide_sums(p)) return fits_tight(p, s) && may_narrow_first(p, k);
    return has_sums(p, s) || has_scatter(k) || !sm90_may_part(p, k);
}

static bool compares(void *ctx, const Ex *e) {
    (void)ctx;
    return e->type == EX_BOOL && ex_uses(e, SYM_PARAM, -1);
}

// Whether something of a pair hangs on a comparison of its products.
static bool has_kinks(const TileKernel *k) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; op->kind == TILE_MAP && is_nested(op) && i < op->outs.n; i++)
            if (ex_any(op->outs.data[i].body, compares, NULL)) return true;
    return false;
}

// Measured (docs/experiments.md). It takes registers, for where the step before was: kinks leave none, and ptxas lets no product run beside
// another.
static bool should_turn(const TileProgram *p, const TileKernel *k, Knobs s) {
    return may_turn(p, k, s) && !has_scatter(k) && !p->batch && !has_kinks(k);
}

static bool legal(const TileProgram *p, const TileKernel *k, Knobs s, Diags *diags) {
    if (s.turns && !may_turn(p, k, s))
        return diag_refuse(
            diags, (Span){0},
            "schedule: two warpgroups take turns where one has all sums of its keys, and "
            "gradients of scores have two stages");
    // Of three roles the last one has what the others leave.
    int own = is_chain(s) ? 2 * s.registers + LEAST_REGISTERS : s.warpgroups * s.registers;
    if (!sm90_has_registers(s, own, diags)) return false;
    if (!is_chain(s) && s.rows > keys_of(s))
        return diag_refuse(
            diags, (Span){0},
            "schedule: a step has up to 64 queries for each warpgroup; there are %d for %d", s.rows,
            s.warpgroups);
    if (!is_chain(s) && (!has_wide_sums(p) || fits_tight(p, s))) return true;
    if (is_chain(s) && s.rows == GROUP_KEYS && sm90_may_part(p, k)) return true;
    return diag_refuse(
        diags, (Span){0},
        is_chain(s)
            ? "schedule: three roles have steps of 64 queries, and gradients of scores that need "
              "more products than weights do"
            : "schedule: one warpgroup has no registers for sums of %d columns: warpgroups=3",
        p->D + p->Dv);
}

bool sm90_bind_nest(TileProgram *p, TileKernel *k, const PassOptions *o, Diags *diags) {
    Knobs *s = &k->schedule.knobs;
    const Knobs *asked = &o->schedule;
    bool chain = knobs_say(asked, KNOB_warpgroups) ? asked->warpgroups == CHAIN : !is_for_two(p, k);
    k->schedule = (TileSchedule){.lane_axis = -1, .min_blocks = 1, .knobs = fit(p, k, chain)};
    if (!knobs_take(s, FORM_SM90_NEST, asked, diags)) return false;
    if (!knobs_say(asked, KNOB_rows) && s->warpgroups == 1) s->rows = GROUP_KEYS;
    if (!knobs_say(asked, KNOB_turns)) s->turns = should_turn(p, k, *s);
    if (!legal(p, k, *s, diags)) return false;
    k->schedule.warps = keys_of(*s) / 16;
    Extents e = extents_of(p, *s);
    pass_bind_all(p, k, &e);
    if (p->batch) sm90_pack(p, k);
    return true;
}

// ---- roles

// Keys and values of the next tile come while those of this one are in use, where there is room for both. With packed documents no device has
// run that yet.
static int tiles_of_keys(const Sm90 *s) {
    bool may = !is_chain(s->shape) && !s->p->batch;
    return may && fits_all(s->p, s->k, s->shape, 2, 2) ? 2 : 1;
}

void sm90_assign_nest(Sm90 *s) {
    Knobs shape = s->shape;
    bool chain = is_chain(shape);
    s->gives = has_room(s->p, s->k, shape, 2) ? 2 : 1;
    s->shape.queries = tiles_of_keys(s);
    s->tight = has_wide_sums(s->p) && !chain;
    s->columns = columns_of(shape);
    s->nroles = chain ? CHAIN : 1;
    s->role[0] = (Sm90Role){"consumer", shape.warpgroups, shape.registers};
    if (chain) {
        s->role[0] = (Sm90Role){"weights", 1, shape.registers};
        s->role[1] = (Sm90Role){"gradients", 1, shape.registers};
        s->role[2] = (Sm90Role){"sums", 1, sm90_left_registers(shape, 2)};
    }
    sm90_assign_roles(s, NULL, 0);
}
