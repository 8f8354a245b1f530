// schedule_sm80.c: how NVIDIA devices from sm_80 on run a kernel: tile extents, and
// FlashAttention-2's order of copies.
//
// A block is 4 warps, each with 16 or 32 rows; two m16 tiles a warp use every fragment of K and V
// that is read from shared memory twice, which is what keeps the matrix units busy. Tiles of q, k
// and v are copied asynchronously into shared memory; of k and v there is room for one tile each,
// and each is fetched while the other is computed with:
//
//     %k = load k[.., N]           ->   wait 0; barrier; copy v[TILE(N)]; commit; %k = view
//     %dot = mma %q, %k                 %dot = mma %q, %k
//     ...                               wait 0; barrier; copy k[next tile]; commit; %v = view
//     %v = load v[.., N]                ...
//     %acc = mma %p, %v, ..             %acc = mma %p, %v, ..
//
// The barrier before a copy says that all warps have finished with what the buffer held. A loop
// with one load has two stages of it instead. Loops that follow each other (the tiles of one sweep
// by class) are one sequence of tiles: the last step of a loop fetches the first tile of the next.
// Where a loop skips steps (`where`), the next tile is not known: it fetches what the step itself
// needs.
#include "interval.h"
#include "knobs.h"
#include "rewrite.h"
#include "schedule.h"
#include "schedule_sm80_few.h"
#include "strips.h"
#include "tilemap.h"

#include <assert.h>
#include <string.h>

enum {
    MAX_LOADS = 4, // of a loop's body: one of k and one of v, which a sweep loads at most once each
    MAX_CHAIN = 8, // loops that share a pipeline; what follows begins another
    MAX_COLUMNS = 256, // of v in a tile
    UNIT_COLUMNS = 64,
    WIDE = 256,           // columns of q and k, beyond which tiles have the fewest keys
    OTHER_REGISTERS = 32, // of a thread, beside scores and accumulator
    REGISTERS = 65536,    // of an SM
    SECTION = 512,        // tiles whose heads' K and V fit the L2 cache together
};

// ---- extents

typedef struct Sm80Shape {
#define KNOB(field, least, most, step, what) int field;
#include "schedule_sm80.def"
#undef KNOB
} Sm80Shape;

static const Knob knob_rows[] = {
#define KNOB(...) KNOB_ROW(Sm80Shape, __VA_ARGS__)
#include "schedule_sm80.def"
#undef KNOB
};
static const KnobTable knobs = {knob_rows, sizeof knob_rows / sizeof *knob_rows};

// Two blocks an SM with 255 registers a thread. Beyond 128 columns an accumulator of two m16 tiles
// a warp has no room. f32 products are FMAs over registers: small tiles.
static Sm80Shape shape_for(const TileProgram *p, bool tf32) {
    int dv = p->Dv < MAX_COLUMNS ? p->Dv : MAX_COLUMNS, d = p->D > dv ? p->D : dv;
    if (tf32 && d <= 128) return (Sm80Shape){64, d <= 64 ? 64 : 32, 4, 2};
    if (!dtype_half(p->dtype)) return (Sm80Shape){64, d <= 128 ? 32 : 16, 4, 1};
    if (d > WIDE) return (Sm80Shape){64, 32, 4, 1};
    if (d <= 64) return (Sm80Shape){128, 128, 4, 2};
    if (d <= 128) return (Sm80Shape){128, 64, 4, 2};
    return (Sm80Shape){64, 64, 4, 2};
}

Sm80Tiles sm80_tiles(const TileProgram *p, int rows, int keys) {
    return (Sm80Tiles){.elem = dtype_bytes(p->dtype),
                       .rows = rows,
                       .keys = keys,
                       .d = p->D,
                       .dv = p->Dv < MAX_COLUMNS ? p->Dv : MAX_COLUMNS,
                       .k_stages = pass_stages(p, TENSOR_K),
                       .v_stages = pass_stages(p, TENSOR_V)};
}

int sm80_shared_bytes(Sm80Tiles t) {
    int d = pass_padded(t.d, 16) * t.elem + 16, dv = pass_padded(t.dv, 16) * t.elem + 16;
    return t.rows * d + t.keys * (t.k_stages * d + t.v_stages * dv);
}

// How many columns of q and k have room beside a tile of v.
static int most_columns(const TileProgram *p, Sm80Shape s, const Target *t) {
    Sm80Tiles tiles = sm80_tiles(p, s.rows, s.keys);
    for (tiles.d = 16; sm80_shared_bytes(tiles) <= t->shared_bytes; tiles.d += 16) continue;
    return tiles.d - 16;
}

static bool bind_axes(TileProgram *p, TileKernel *k, Sm80Shape s, Diags *diags) {
    if (!pass_tile_columns(p, k, MAX_COLUMNS, UNIT_COLUMNS, diags)) return false;
    for (int a = 0; a < k->naxes; a++) {
        const TileAxis *axis = &k->axes[a];
        if (axis->extent) continue; // chosen when the kernel was built
        if (!axis->whole) {
            pass_bind(p, k, a, a == tile_grid_axis(k) ? s.rows : s.keys);
        } else {
            pass_bind(p, k, a, pass_padded(axis->size->i, 16));
        }
    }
    return true;
}

// A thread has its share of scores and accumulator at once.
static int registers_of(const TileProgram *p, Sm80Shape s) {
    int dv = p->Dv < MAX_COLUMNS ? p->Dv : MAX_COLUMNS;
    return (pass_padded(dv, 16) + s.keys) * s.rows / (32 * s.warps) + OTHER_REGISTERS;
}

// What no single knob tells.
static bool legal(const TileProgram *p, Sm80Shape s, const Target *t, Diags *diags) {
    int shared = sm80_shared_bytes(sm80_tiles(p, s.rows, s.keys));
    int registers = REGISTERS / (32 * s.warps * s.blocks);
    if (registers > t->registers) registers = t->registers;
    const char *what = NULL;
    if (shared > t->shared_bytes)
        what = arena_printf(p->arena, "%d bytes of shared memory; there are %d", shared,
                            t->shared_bytes);
    else if (s.rows % (16 * s.warps))
        what = arena_printf(p->arena,
                            "tiles of 16 rows, or a multiple, for each of %d warps; "
                            "there are %d rows",
                            s.warps, s.rows);
    else if (registers_of(p, s) > registers)
        what = arena_printf(p->arena,
                            "%d registers of a thread for scores and accumulator; "
                            "there are %d",
                            registers_of(p, s), registers);
    if (what) diag_error(diags, (Span){0}, "schedule: it needs %s", what);
    return !what;
}

// The one place where a program's shape is chosen.
static bool choose(const TileProgram *p, const PassOptions *o, Diags *diags, Sm80Shape *s) {
    *s = shape_for(p, o->tf32);
    int most = most_columns(p, *s, &o->target);
    if (p->D > most) {
        diag_error(diags, (Span){0}, "target '%s' supports a D up to %d of %s, not %d",
                   o->target.name, most, dtype_name(p->dtype), p->D);
        return false;
    }
    return !o->schedule ||
           (knob_read(knobs, s, o->schedule, diags) && legal(p, *s, &o->target, diags));
}

bool pass_tile_sm80(TileProgram *p, const PassOptions *o, Diags *diags) {
    Sm80Shape main;
    Sm80Few few;
    const char *few_text;
    if (!p->kernels.n) return true; // as where another target hands over its rest
    if (!choose(p, o, diags, &main) || !sm80_few(p, o, diags, &few, &few_text)) return false;
    for (int i = 0; i < p->kernels.n; i++) {
        TileKernel *k = p->kernels.data[i];
        bool is_few = sm80_is_few(p, k);
        Sm80Shape s = is_few ? (Sm80Shape){SM80_FEW_ROWS, few.few_keys, 1, few.few_blocks} : main;
        if (!bind_axes(p, k, s, diags)) return false;
        k->schedule = (TileSchedule){.lane_axis = -1,
                                     .warps = s.warps,
                                     .min_blocks = s.blocks,
                                     .knobs = is_few ? few_text : knob_text(knobs, &s, p->arena)};
    }
    return true;
}

// ---- the parts of a schedule

typedef struct Sched {
    TileProgram *p;
    TileKernel *k;
    ExPool *x;
    TileValue **buffer; // by tensor; NULL until needed
    bool *used;         // by tensor: a sweep has read the buffer already
} Sched;

typedef struct Chain { // loops that make one sequence of tiles
    TileOp *loop[MAX_CHAIN];
    int nloops;
    int nloads; // of each body
    bool skips; // some loop has `where`
} Chain;

static TileOp *insert(Sched *s, TileOp *before, TileKind kind) {
    TileOp *op = tile_op(s->p, s->k, NULL, kind, before->span);
    tile_insert_before(before, op);
    return op;
}

static TileValue *buffer_for(Sched *s, const TileOp *load, int stages) {
    TileValue **b = &s->buffer[load->tensor];
    if (!*b) {
        const TileValue *v = load->results.data[0];
        TileOp *op = insert(s, s->k->body.first, TILE_ALLOC);
        const char *name =
            arena_printf(s->p->arena, "%s_buf", s->p->tensors.data[load->tensor].name);
        *b = tile_result(s->p, s->k, op, name, v->dtype, v->axis, v->rank);
        (*b)->home = HOME_SHARED;
        (*b)->stages = 1;
    }
    if ((*b)->stages < stages) (*b)->stages = stages;
    return *b;
}

// `tile`: of the loop's axis, in place of TILE(axis); NULL for the tile at hand.
static void copy_before(Sched *s, TileOp *before, const TileOp *load, const Ex *tile, int axis,
                        const Ex *stage, const Ex *when) {
    TileOp *op = insert(s, before, TILE_COPY);
    op->tensor = load->tensor;
    memcpy(op->coord, load->coord, sizeof op->coord);
    if (tile)
        for (int d = 0; d < s->p->tensors.data[load->tensor].rank; d++)
            op->coord[d].at =
                ex_simplify(s->x, ex_subst(s->x, op->coord[d].at, SYM_TILE, axis, tile));
    op->stage = ex_simplify(s->x, stage);
    op->when = when ? ex_simplify(s->x, when) : NULL;
    if (op->when && op->when->op == EX_CONST && op->when->i) op->when = NULL;
    tile_arg(s->p, op, s->buffer[load->tensor]);
}

static void wait_before(Sched *s, TileOp *before, int pending) {
    insert(s, before, TILE_WAIT)->pending = pending;
    insert(s, before, TILE_BARRIER);
}

// The load becomes a view of its buffer, standing before `before`.
static void view_for(Sched *s, TileOp *before, TileOp *load, const Ex *stage) {
    TileOp *op = insert(s, before, TILE_VIEW);
    TileValue *old = load->results.data[0];
    tile_arg(s->p, op, s->buffer[load->tensor]);
    op->stage = ex_simplify(s->x, stage);
    TileValue *v = tile_result(s->p, s->k, op, old->name, old->dtype, old->axis, old->rank);
    v->home = HOME_SHARED;
    TileBlock *block = load->block;
    tile_unlink(load);
    tile_replace(block, old, v);
}

// ---- which loops make one sequence

// What goes through shared memory: the operands of products. Anything else that is loaded is small
// and goes to registers.
static bool is_operand(const TileProgram *p, const TileOp *op) {
    if (op->kind != TILE_LOAD) return false;
    TensorRole role = p->tensors.data[op->tensor].role;
    return role == TENSOR_Q || role == TENSOR_K || role == TENSOR_V;
}

static int loads_of(const TileProgram *p, const TileOp *loop, TileOp **loads) {
    int n = 0;
    for (TileOp *op = loop->body.first; op; op = op->next)
        if (is_operand(p, op)) {
            assert(n < MAX_LOADS);
            loads[n++] = op;
        }
    return n;
}

static bool same_loads(const TileProgram *p, const TileOp *a, const TileOp *b) {
    TileOp *x[MAX_LOADS], *y[MAX_LOADS];
    int n = loads_of(p, a, x);
    if (n != loads_of(p, b, y)) return false;
    for (int i = 0; i < n; i++)
        if (x[i]->tensor != y[i]->tensor) return false;
    return true;
}

static Chain chain_from(const TileProgram *p, TileOp *loop) {
    TileOp *loads[MAX_LOADS];
    Chain c = {.loop = {loop},
               .nloops = 1,
               .nloads = loads_of(p, loop, loads),
               .skips = loop->where != NULL};
    for (TileOp *op = loop->next; op && c.nloops < MAX_CHAIN; op = op->next) {
        if (op->kind == TILE_MAP) continue;
        const TileOp *last = c.loop[c.nloops - 1];
        if (op->kind != TILE_LOOP || op->axis != last->axis || op->from != last->to ||
            !same_loads(p, last, op))
            break;
        c.loop[c.nloops++] = op;
        c.skips |= op->where != NULL;
    }
    return c;
}

// ---- the sequence: which tile a step is about, for steps from loop i on

static const Ex *index_at(Sched *s, const TileOp *loop, const Ex *step) {
    return ex_subst(s->x, loop->index, SYM_STEP, 0, step);
}

static const Ex *tile_at(Sched *s, const Chain *c, int i, const Ex *step) {
    const Ex *here = index_at(s, c->loop[i], step);
    if (i + 1 == c->nloops) return here;
    const Ex *in = ex_2(s->x, EX_LT, step, c->loop[i]->to);
    return ex_select(s->x, in, here, tile_at(s, c, i + 1, step));
}

static const Ex *exists(Sched *s, const Chain *c, const Ex *step) {
    return ex_2(s->x, EX_LT, step, c->loop[c->nloops - 1]->to);
}

static const Ex *stage_at(Sched *s, const Chain *c, const Ex *step) {
    if (c->nloads != 1 || c->skips) return ex_i32(s->x, 0);
    return ex_2(s->x, EX_BAND, step, ex_i32(s->x, 1));
}

// ---- one body

static TileOp *after_last_use(TileOp *load) {
    TileOp *last = load;
    for (TileOp *op = load->next; op; op = op->next)
        if (pass_uses(op, load->results.data[0])) last = op;
    return last->next;
}

static TileOp *before_first_use(TileOp *load) {
    TileOp *op = load->next;
    while (op->next && !pass_uses(op, load->results.data[0])) op = op->next;
    return op;
}

// Loads are used one after the other: no use of one after the first use of the next.
static bool in_turn(TileOp **loads, int n) {
    for (int i = 0; i + 1 < n; i++)
        for (TileOp *op = after_last_use(loads[i]); op != loads[i]; op = op->prev)
            if (op->prev != loads[i] && pass_uses(op->prev, loads[i + 1]->results.data[0]))
                return false;
    return true;
}

// Numbers per key that need nothing of the step are made first: with them the mask can be looked at
// before anything is fetched.
static void raise_columns(TileOp *loop) {
    TileOp *first = loop->body.first;
    for (TileOp *op = first, *next; op; op = next) {
        next = op->next;
        bool free = op->kind == TILE_MAP && op->naxes == 1 && op->axes[0] == loop->axis;
        for (int i = 0; i < op->args.n && free; i++)
            free = !op->args.data[i]->def || op->args.data[i]->def->block != &loop->body;
        if (free && op != first) pass_move_before(first, op);
    }
}

// What a step needs is fetched in the step itself: for loops that skip steps or use their loads all
// at once.
static void fetch_in_step(Sched *s, TileOp *loop, TileOp **loads, int n) {
    raise_columns(loop);
    TileOp *first = loop->body.first;
    while (first->kind == TILE_MAP) first = first->next;
    const Ex *zero = ex_i32(s->x, 0);
    insert(s, first, TILE_BARRIER);
    for (int i = 0; i < n; i++) {
        copy_before(s, first, loads[i], NULL, 0, zero, NULL);
        insert(s, first, TILE_COMMIT);
    }
    for (int i = 0; i < n; i++) {
        TileOp *at = i ? loads[i] : first;
        wait_before(s, at, n - 1 - i);
        view_for(s, at, loads[i], zero);
    }
}

// Before load i is used: it has arrived, all have finished with the buffer that is filled next. As
// early as that holds; where weights are made of scores alone, as late: they then stand in one
// piece with the product before them.
static void fetch_ahead(Sched *s, const Chain *c, int j, TileOp **loads, int n) {
    TileOp *loop = c->loop[j];
    const Ex *step = ex_symbol(s->x, SYM_STEP), *next = ex_2(s->x, EX_ADD, step, ex_i32(s->x, 1));
    TileOp *place[MAX_LOADS];
    bool plain = loop->carried.n ==
                 1; // nothing but an accumulator: no statistics stand between the products
    for (int i = 0; i < n; i++) {
        place[i] = !i      ? loop->body.first
                   : plain ? before_first_use(loads[i])
                           : after_last_use(loads[i - 1]);
        while (is_operand(s->p, place[i])) place[i] = place[i]->next;
    }
    for (int i = 0; i < n; i++) {
        TileOp *at = place[i];
        wait_before(s, at, 0);
        if (i + 1 < n)
            copy_before(s, at, loads[i + 1], NULL, 0, stage_at(s, c, step), NULL);
        else
            copy_before(s, at, loads[0], tile_at(s, c, j, next), loop->axis, stage_at(s, c, next),
                        exists(s, c, next));
        insert(s, at, TILE_COMMIT);
    }
    for (int i = 0; i < n; i++) view_for(s, place[i], loads[i], stage_at(s, c, step));
}

static void schedule_chain(Sched *s, Chain *c) {
    TileOp *loads[MAX_LOADS];
    if (!c->nloads) return;
    for (int j = 0; j < c->nloops; j++) {
        int n = loads_of(s->p, c->loop[j], loads);
        if (!in_turn(loads, n)) c->skips = true;
    }
    bool used = false;
    loads_of(s->p, c->loop[0], loads);
    for (int i = 0; i < c->nloads; i++) {
        buffer_for(s, loads[i], c->nloads == 1 && !c->skips ? 2 : 1);
        used |= s->used[loads[i]->tensor];
        s->used[loads[i]->tensor] = true;
    }
    if (!c->skips) {
        TileOp *first = c->loop[0];
        const Ex *from = first->from;
        if (used) insert(s, first, TILE_BARRIER);
        copy_before(s, first, loads[0], tile_at(s, c, 0, from), first->axis, stage_at(s, c, from),
                    exists(s, c, from));
        insert(s, first, TILE_COMMIT);
    }
    for (int j = 0; j < c->nloops; j++) {
        int n = loads_of(s->p, c->loop[j], loads);
        if (c->skips)
            fetch_in_step(s, c->loop[j], loads, n);
        else
            fetch_ahead(s, c, j, loads, n);
    }
}

// ---- outside loops

// A tile that is loaded once (q). What uses it before the first loop has to wait for it; otherwise
// the loop's own first wait does.
static void schedule_load(Sched *s, TileOp *load) {
    TileOp *at = load->next;
    const Ex *zero = ex_i32(s->x, 0);
    bool early = true;
    for (TileOp *op = load->next; op && early; op = op->next)
        if (op->kind == TILE_LOOP)
            early = false;
        else if (pass_uses(op, load->results.data[0]))
            break;
    buffer_for(s, load, 1);
    copy_before(s, at, load, NULL, 0, zero, NULL);
    insert(s, at, TILE_COMMIT);
    if (early) wait_before(s, at, 0);
    view_for(s, at, load, zero);
}

// ---- homes

static void set_homes(Sched *s) {
    for (TileOp *op = tile_next(&s->k->body, NULL); op; op = tile_next(&s->k->body, op)) {
        bool shared = op->kind == TILE_MAP && pass_cooperative(s->k, op);
        for (int i = 0; i < op->results.n; i++)
            if (op->results.data[i]->home == HOME_ANY)
                op->results.data[i]->home = shared ? HOME_SHARED : HOME_FRAGMENT;
        for (int i = 0; i < op->carried.n; i++) op->carried.data[i]->home = HOME_FRAGMENT;
        if (shared) insert(s, op->next, TILE_BARRIER);
    }
}

// The accumulator's rescaling as early as its factor is known: before the exponentials, which then
// stand next to the product that can run beside them.
static bool feeds_product(const TileOp *map) {
    const TileOp *op = map->next;
    while (op && op->kind == TILE_LOAD) op = op->next;
    return op && op->kind == TILE_MMA && op->args.n == 3 &&
           op->args.data[2] == map->results.data[0];
}

static void raise_rescales(TileKernel *k) {
    for (TileOp *op = tile_next(&k->body, NULL), *next; op; op = next) {
        next = tile_next(&k->body, op);
        if (op->kind != TILE_MAP || op->results.n != 1 || !feeds_product(op)) continue;
        TileOp *to = op;
        while (to->prev && !pass_uses_result(op, to->prev)) to = to->prev;
        if (to != op) pass_move_before(to, op);
    }
}

static int room_for_strips(const TileProgram *p, const TileKernel *k) {
    Sm80Tiles t = sm80_tiles(p, 0, 0);
    for (int a = 0; a < k->naxes; a++) {
        if (a == tile_grid_axis(k)) t.rows = k->axes[a].extent;
        if (!k->axes[a].whole && !tile_in_grid(k, a)) t.keys = k->axes[a].extent;
    }
    t.dv = pass_value_columns(p, k);
    t.k_stages = pass_kernel_stages(p, k, TENSOR_K); // other kernels may have theirs already
    t.v_stages = pass_kernel_stages(p, k, TENSOR_V);
    return target_get(p->target)->shared_bytes - sm80_shared_bytes(t);
}

static void schedule_kernel(TileProgram *p, TileKernel *k) {
    Sched s = {.p = p, .k = k, .x = p->pool};
    raise_rescales(k);
    pass_strips(p, k, k->schedule.warps, room_for_strips(p, k));
    for (TileOp *op = k->body.first; op; op = op->next)
        if (op->kind == TILE_LOOP) pass_raise_strips(op);
    for (TileOp *op = k->body.first; op; op = op->next)
        if (op->kind == TILE_LOOP) pass_interval(p, k, tile_grid_axis(k), op->axis);
    s.buffer = ARENA_ARRAY(p->arena, TileValue *, p->tensors.n);
    s.used = ARENA_ARRAY(p->arena, bool, p->tensors.n);
    for (TileOp *op = k->body.first, *next; op; op = next) {
        next = op->next;
        if (is_operand(p, op)) schedule_load(&s, op);
        if (op->kind != TILE_LOOP) continue;
        Chain c = chain_from(p, op);
        schedule_chain(&s, &c);
        next = c.loop[c.nloops - 1]->next;
    }
    set_homes(&s);
}

// Whether tiles of rows take times of their own. Where they take the same, those of one head after
// the other read the keys and values of a head from the L2 cache.
static bool rows_differ(const TileKernel *k) {
    for (int i = 0; i < k->ngrid; i++)
        if (k->grid[i].reversed) return true;
    return false;
}

bool pass_schedule_sm80(TileProgram *p, const PassOptions *o, Diags *diags) {
    for (int i = 0; i < p->kernels.n; i++) {
        TileKernel *k = p->kernels.data[i];
        if (!pass_few_loads(p, k, MAX_LOADS, diags)) return false;
        if (pass_is_lanes(p, k))
            pass_schedule_lanes(k);
        else
            schedule_kernel(p, k);
        if (rows_differ(k) && !sm80_is_few(p, k)) k->schedule.section = SECTION;
    }
    if (o->target.id == TARGET_SM80) pass_prefer_parts(p, SM80_FEW_ROWS);
    return true;
}
