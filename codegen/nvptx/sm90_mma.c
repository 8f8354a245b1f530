// sm90_mma.c: products of a warpgroup.
//
// In: a TILE_MMA whose right operand lies in shared memory as tensor copies leave it, and whose
// left one does too or is a fragment of pairs. Out: one group of wgmmas; its accumulators may be
// touched once a wait has let it land, so every wait passes them through.
#include "codegen/nvptx/sm90.h"
#include "ir/tile_within.h"

#include <assert.h>

typedef struct Operands {
    const TileValue *left, *right; // left has the rows
    int axis;                      // contracted
} Operands;

static Operands operands(Cg *cg, const TileOp *op) {
    Operands o = {op->args.data[0], op->args.data[1], tile_contracted_axis(op)};
    if (!tile_has_axis(o.left, cg_fragment(cg, op->results.data[0])->rows)) {
        o.left = op->args.data[1];
        o.right = op->args.data[0];
    }
    assert(o.right->home == HOME_SHARED &&
           tile_shared(cg->p, cg->k, o.right).order == ORDER_PANELS);
    return o;
}

bool nv90_is_left(Cg *cg, const TileValue *v) {
    const TileBlock *body = &cg->k->body;
    for (const TileOp *op = tile_next(body, NULL); op; op = tile_next(body, op))
        if (op->kind == TILE_MMA && operands(cg, op).left == v) return true;
    return false;
}

// What to add to a descriptor, in its units of 16 bytes, for each 16 of the contracted axis.
static int *steps(Cg *cg, const TileShared *t, bool along_rows, int n) {
    int *s = ARENA_ARRAY(cg->arena, int, n);
    for (int k = 0; k < n; k++)
        s[k] = (along_rows ? 16 / HOME_ROWS * k * tile_rows_bytes(t)
                           : k / 4 * tile_panel_bytes(t) + k % 4 * 32) /
               16;
    return s;
}

static Val *left_registers(Cg *cg, const Operands *o, int n) {
    const CgFragment *f = cg_fragment(cg, o->left);
    Val *r = ARENA_ARRAY(cg->arena, Val, 4 * n);
    assert(f->each == 2 && f->columns == o->axis && cg_share(f, f->rows) == 2);
    for (int k = 0; k < n; k++)
        for (int i = 0; i < 4; i++)
            r[4 * k + i] =
                cg->value[o->left->id].e[cg_register(f, 8 * (i % 2), 16 * k + 8 * (i / 2))];
    return r;
}

// Of descriptors, or their words.
static Val by_constant(Cg *cg, Val at, int by) {
    return by ? cg_add(cg, at, LLVMConstInt(LLVMTypeOf(at), (uint64_t)by, true)) : at;
}
static Val by_number(Cg *cg, Val n, int each) {
    return cg_mul(cg, n, LLVMConstInt(LLVMTypeOf(n), (uint64_t)each, true));
}
static Val group_of(Cg *cg, bool word) {
    Val group = nv90_state(cg)->group;
    return word ? group : cg_zext(cg, group, cg->i64);
}

// A nest of gradients has so many descriptors that ptxas has no uniform registers for them: they are words, whose constants the products add.
static bool in_words(const Cg *cg) { return cg->k->purpose == PURPOSE_GRADIENTS; }

// In a descriptor's units.
static int bytes16(int bytes) { return bytes / 16; }

// From where the next panel is, for an operand whose contracted axis runs along its rows; 16: of no effect.
static int leading_of(const TileShared *t, bool transposed) {
    return transposed ? tile_panel_bytes(t) : 16;
}

// Which does not change: where a ring lies, or a panel of it, and what a descriptor says besides.
static int fixed_part(Cg *cg, const TileValue *v, bool transposed) {
    TileShared t = tile_shared(cg->p, cg->k, v);
    int fixed = in_words(cg) ? bytes16(leading_of(&t, transposed)) << 16 : 0;
    if (v->def->kind == TILE_MAP) return fixed;
    const Nv90Pipe *p = nv90_pipe(cg, tile_source(v));
    if (in_words(cg)) fixed += bytes16(p->data);
    assert(v->def->from_column % HOME_PANEL == 0 && "of whole panels");
    return fixed + v->def->from_column / HOME_PANEL * bytes16(tile_panel_bytes(&t));
}

// The rest. A stage's descriptor is the ring's and so many stages: one instruction in a loop.
static Val changing_part(Cg *cg, const TileValue *v, bool transposed) {
    TileShared t = tile_shared(cg->p, cg->k, v);
    bool piped = v->def->kind != TILE_MAP; // otherwise it has one place
    const Nv90Pipe *p = piped ? nv90_pipe(cg, tile_source(v)) : NULL;
    Val place = !piped         ? nv90_place(cg, cg->value[v->id].mem)
                : in_words(cg) ? nv90_place(cg, nv90_shared(cg, 0))
                               : p->place;
    Val first = in_words(cg)
                    ? cg_trunc(cg, place, cg->i32)
                    : nv90_descriptor(cg, place, leading_of(&t, transposed), tile_rows_bytes(&t));
    if (!piped) return first;
    Val stage = nv90_state(cg)->stage[v->id];
    if (!in_words(cg)) stage = cg_zext(cg, stage, cg->i64);
    return cg_add(cg, first, by_number(cg, stage, bytes16(p->tile.bytes)));
}

static Val shared_operand(Cg *cg, const TileValue *v, bool transposed) {
    return by_constant(cg, changing_part(cg, v, transposed), fixed_part(cg, v, transposed));
}

Val nv90_left(Cg *cg, const TileValue *v) {
    Val mine = by_number(cg, group_of(cg, in_words(cg)), bytes16(64 * HOME_PITCH));
    Val at = cg_add(cg, changing_part(cg, v, false), mine);
    return by_constant(cg, at, fixed_part(cg, v, false));
}

// From how many steps on a descriptor that changes is less than one that does not: of what a loop does not
// change ptxas takes the sums for all steps out of it, has no registers for them, and makes each of them
// again where it is used, in two instructions. A stage's number is far below 2^16, which ptxas cannot know.
enum { WORTH_A_CHANGE = 5 };

static Val changing(Cg *cg, Val descriptor, Val stage) {
    Val v[] = {descriptor, stage};
    return cg_asm(
        cg, cg->i64, v, 2,
        "{\n\t.reg .b32 zero;\n\tshr.u32 zero, $2, 16;\n\tmad.wide.u32 $0, zero, 3, $1;\n\t}",
        "=l,l,r", false);
}

// The warpgroups have rows of their own, or all have the same, and columns of their own.
static bool has_rows(const CgFragment *sum) {
    return layout_share(&sum->is, LAYOUT_WARP, sum->rows) == layout_count(&sum->is, LAYOUT_WARP);
}

static Val left_descriptor(Cg *cg, const Operands *o, const TileShared *t, int steps,
                           const CgFragment *sum) {
    const Nv90 *h = nv90_state(cg);
    bool transposed = t->row_axis == o->axis;
    assert(t->order == ORDER_PANELS && !(transposed && has_rows(sum)));
    Val taken = h->rows[o->left->id], stage = h->stage[o->right->id];
    if (!has_rows(sum)) return shared_operand(cg, o->left, transposed);
    if (!taken || in_words(cg)) return nv90_left(cg, o->left);
    return stage && steps >= WORTH_A_CHANGE ? changing(cg, taken, stage) : taken;
}

// From where so many columns lie to where the next ones do.
static int beyond(const TileShared *right, bool transposed, int columns) {
    int bytes = transposed ? columns / HOME_PANEL * tile_panel_bytes(right)
                           : columns / HOME_ROWS * tile_rows_bytes(right);
    return bytes / 16;
}

// Where a warpgroup has half panels the odd ones among its columns lie in the first one's panel, or in the next: the second warpgroup begins in
// the middle of a panel.
static Val right_descriptor(Cg *cg, const Operands *o, const TileShared *t, const CgFragment *sum,
                            Nv90Product *p) {
    bool transposed = t->row_axis == o->axis;
    int fixed = fixed_part(cg, o->right, transposed);
    Val all = changing_part(cg, o->right, transposed);
    if (has_rows(sum)) return by_constant(cg, all, fixed);
    int columns = layout_share(&sum->is, LAYOUT_REG, sum->columns) * // of a warpgroup
                  layout_share(&sum->is, LAYOUT_LANE, sum->columns);
    assert(columns % (transposed ? HOME_PANEL / 2 : 8) == 0 &&
           "a warpgroup's are whole halves of panels, or rows");
    Val group = group_of(cg, in_words(cg));
    int half = bytes16(HOME_PITCH / 2), panel = bytes16(tile_panel_bytes(t));
    Val first = by_number(cg, group, beyond(t, transposed, columns));
    if (transposed && columns % HOME_PANEL) {
        first = cg_add(cg, first, by_number(cg, group, half));
        Val middle = by_number(cg, group, panel - 2 * half);
        p->middle = by_constant(cg, cg_add(cg, cg_add(cg, all, first), middle), fixed + half);
        p->most = HOME_PANEL / 2;
    }
    Val mine = by_constant(cg, cg_add(cg, all, first), fixed),
        stage = nv90_state(cg)->stage[o->left->id];
    return stage && p->steps >= WORTH_A_CHANGE && !in_words(cg) ? changing(cg, mine, stage) : mine;
}

static void begin_sum(Cg *cg, const TileOp *op) {
    CgValue *value = cg_make(cg, op->results.data[0]);
    for (int i = 0; op->args.n > 2 && i < value->n; i++)
        value->e[i] = cg->value[op->args.data[2]->id].e[i];
}

// A map beside a product. Its factors are hidden: what only loop-carried values make, LLVM would
// rather make at the end of the step before.
static void lower_within(Cg *cg, const TileOp *map) {
    CgValue *kept = ARENA_ARRAY(cg->arena, CgValue, map->args.n);
    for (int i = 0; i < map->args.n; i++) {
        CgValue *v = &cg->value[map->args.data[i]->id];
        kept[i] = *v;
        if (map->args.data[i]->rank > 1 || v->n == 0) continue;
        v->e = ARENA_ARRAY(cg->arena, Val, v->n);
        for (int e = 0; e < v->n; e++) v->e[e] = nv_hidden(cg, kept[i].e[e]);
    }
    cg->hooks->op(cg, map);
    for (int i = map->args.n - 1; i >= 0; i--) cg->value[map->args.data[i]->id] = kept[i];
}

// Before a product: what maps shared, and it reads.
static void see_shared(Cg *cg, const TileOp *mma) {
    Nv90 *h = nv90_state(cg);
    bool reads = false;
    for (int i = 0; i < 2; i++) {
        const TileValue *v = mma->args.data[i];
        reads |= v->home == HOME_SHARED && v->def && v->def->kind == TILE_MAP;
    }
    if (!reads || !h->unseen) return;
    nv90_proxy_fence(cg);
    nv90_role_sync(cg);
    h->unseen = false;
}

// Of an instruction. The assembler refuses 256 columns in blocks of 512 threads, whatever a role's registers are.
static int most_columns(Cg *cg) { return cg->launch.threads < 512 ? 256 : 128; }

void nv90_mma(Cg *cg, const TileOp *op) {
    Nv90 *h = nv90_state(cg);
    see_shared(cg, op);
    Operands o = operands(cg, op);
    TileShared right = tile_shared(cg->p, cg->k, o.right);
    CgValue *value = &cg->value[op->results.data[0]->id];
    begin_sum(cg, op);
    Nv90Product p = {.dtype = o.right->dtype, .columns = 2 * value->n, .acc = value->e};
    p.accumulate = op->args.n > 2;
    p.words = in_words(cg);
    p.steps = cg->k->axes[o.axis].extent / 16;
    p.transposed = right.row_axis == o.axis;
    p.right_step = steps(cg, &right, p.transposed, p.steps);
    const CgFragment *sum = cg_fragment(cg, op->results.data[0]);
    p.most = most_columns(cg);
    p.right = right_descriptor(cg, &o, &right, sum, &p);
    if (o.left->home == HOME_SHARED) {
        TileShared left = tile_shared(cg->p, cg->k, o.left);
        p.left = left_descriptor(cg, &o, &left, p.steps, sum);
        p.left_transposed = left.row_axis == o.axis;
        p.left_step = steps(cg, &left, p.left_transposed, p.steps);
    } else {
        p.registers = left_registers(cg, &o, p.steps);
    }
    p.beyond = beyond(&right, p.transposed, p.middle ? HOME_PANEL : p.most);
    if (op->first) {
        bool terms = op->axis == o.axis;
        p.few = nv90_few(cg, op);
        p.few_columns = terms ? p.columns : op->first;
        p.few_steps = terms ? op->first / 16 : p.steps;
    }
    p.before = h->chain, p.full = h->chain_full, p.parity = h->chain_parity;
    h->chain = NULL, h->chain_full = NULL;
    if (tile_goes_on(cg->k, op)) {
        Nv90Product *kept = ARENA_NEW(cg->arena, Nv90Product);
        *kept = p;
        h->chain = kept;
        CgValue *none = ARENA_NEW(cg->arena, CgValue); // the last one has the sum
        VEC_PUSH(cg->arena, &h->flight, none);
        return;
    }
    const TileOp *within = op->next;
    if (within && tile_is_marked(within, TILE_WITHIN)) { // it runs while the first step does
        nv90_wgmma(cg, &p, 0, 1);
        lower_within(cg, within);
        nv90_wgmma(cg, &p, 1, p.steps);
    } else {
        nv90_wgmma(cg, &p, 0, p.steps);
    }
    VEC_PUSH(cg->arena, &h->flight, value);
    if (!op->async) nv90_mma_wait(cg, 0);
}

// Groups land in order: the oldest first.
void nv90_mma_wait(Cg *cg, int pending) {
    Nv90 *h = nv90_state(cg);
    int landed = h->flight.n - pending, n = 0, at = 0;
    if (landed <= 0) return;
    for (int i = 0; i < landed; i++) n += h->flight.data[i]->n;
    Val *all = ARENA_ARRAY(cg->arena, Val, n);
    for (int i = 0; i < landed; i++)
        for (int e = 0; e < h->flight.data[i]->n; e++) all[at++] = h->flight.data[i]->e[e];
    nv90_wgmma_wait(cg, h->flight.n - landed, all, n);
    at = 0;
    for (int i = 0; i < landed; i++)
        for (int e = 0; e < h->flight.data[i]->n; e++) h->flight.data[i]->e[e] = all[at++];
    for (int i = landed; i < h->flight.n; i++) h->flight.data[i - landed] = h->flight.data[i];
    h->flight.n -= landed;
    if (!h->flight.n) nv90_pack(cg);
}

// Registers that a product in flight reads may not be written, and ptxas takes those of its successor
// for them: pairs are made when nothing is in flight.
void nv90_pack(Cg *cg) {
    Nv90 *h = nv90_state(cg);
    for (int i = 0; i < h->wide.n; i++) {
        const Nv90Wide *w = &h->wide.data[i];
        for (int e = 0; e < w->value->n; e++) {
            const Val *pair = &w->elements[2 * e];
            if (!pair[0]) continue; // it is a pair already
            w->value->e[e] =
                w->sigmoids ? nv_sigmoids_end(cg, pair) : nv_pack(cg, w->dtype, pair[0], pair[1]);
        }
    }
    h->wide.n = 0;
}

void nv90_do_within(Cg *cg, const TileOp *map, TileKind kind) {
    for (const TileOp *op = map->next; op; op = op->next)
        if (op->kind == kind && tile_is_marked(op, TILE_WITHIN) && tile_around(cg->k, op) == map)
            cg->hooks->op(cg, op);
}

// ptxas moves what it likes over a wait for products, but not over a branch: two waits for a barrier
// that is always complete bound it. What the products held is free at once, not at the map's end.
void nv90_pinned_wait(Cg *cg, const TileOp *map, Val *held, int n) {
    Nv90 *h = nv90_state(cg);
    Val done = nv90_shared(cg, h->done), odd = cg_i32(cg, 1);
    const CgValue *acc = h->flight.n ? h->flight.data[0] : NULL;
    nv90_barrier_wait(cg, done, odd);
    nv90_mma_wait(cg, map->pending);
    nv90_do_within(cg, map, TILE_DROP);
    nv90_barrier_wait(cg, done, odd);
    Val stage = cg_load(cg, cg->i32, h->pipes.data[0].takes.stage);
    for (int i = 0; acc && i < n; i++) held[i] = nv90_behind_landed(cg, held[i], acc->e[0], stage);
    nv90_do_within(cg, map, TILE_MAP);
}
