// chain.c: see chain.h.
//
// In: a kernel whose extents are bound and whose loops are split by class; operands of products are
// loaded where they are used. Out: buffers, copies, waits, barriers; each such load is a view. What
// is computed stays.
#include "passes/schedule/chain.h"
#include "passes/passes.h"
#include "passes/tile/rewrite.h"

#include <assert.h>
#include <string.h>

enum { MAX_CHAIN = 8 }; // loops that share a pipeline; what follows begins another

typedef struct Loads {
    TileOp *op[CHAIN_MAX_LOADS];
    int n;
} Loads;

typedef struct Chain { // loops that make one sequence of tiles
    TileOp *loop[MAX_CHAIN];
    int nloops;
    int nloads; // of each body
    bool alone; // each step fetches for itself
} Chain;

Chains chain_kernel(TileProgram *p, TileKernel *k) {
    return (Chains){.p = p,
                    .k = k,
                    .x = p->pool,
                    .buffer = ARENA_ARRAY(p->arena, TileValue *, p->tensors.n),
                    .used = ARENA_ARRAY(p->arena, bool, p->tensors.n)};
}

// ---- parts

static TileOp *insert(Chains *s, TileOp *before, TileKind kind) {
    TileOp *op = tile_op(s->p, s->k, NULL, kind, before->span);
    tile_insert_before(before, op);
    return op;
}

static TileValue *buffer_for(Chains *s, const TileOp *load, int stages) {
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

// `tile`: of `axis`, in place of TILE(axis); NULL for the current tile.
static void fetch(Chains *s, TileOp *before, const TileOp *load, const Ex *tile, int axis,
                  const Ex *stage, const Ex *when) {
    TileOp *op = insert(s, before, TILE_COPY);
    op->tensor = load->tensor;
    memcpy(op->coord, load->coord, sizeof op->coord);
    memcpy(op->each, load->each, sizeof op->each);
    for (int d = 0; tile && d < s->p->tensors.data[load->tensor].rank; d++)
        op->coord[d].at = ex_simplify(s->x, ex_subst(s->x, op->coord[d].at, SYM_TILE, axis, tile));
    op->stage = ex_simplify(s->x, stage);
    op->when = when ? ex_simplify(s->x, when) : NULL;
    if (op->when && op->when->op == EX_CONST && op->when->i) op->when = NULL;
    tile_arg(s->p, op, s->buffer[load->tensor]);
    insert(s, before, TILE_COMMIT);
}

static void arrive(Chains *s, TileOp *before, int pending) {
    insert(s, before, TILE_WAIT)->pending = pending;
    insert(s, before, TILE_BARRIER);
}

// The load becomes a view of its buffer, standing before `before`.
static void view_for(Chains *s, TileOp *before, TileOp *load, const Ex *stage) {
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

bool chain_operand(const TileProgram *p, const TileOp *op) {
    if (op->kind != TILE_LOAD || op->results.data[0]->home == HOME_FRAGMENT) return false;
    return tile_is_operand(p, &p->tensors.data[op->tensor]);
}

static Loads loads_of(const TileProgram *p, const TileOp *loop) {
    Loads l = {.n = 0};
    for (TileOp *op = loop->body.first; op; op = op->next)
        if (chain_operand(p, op)) {
            assert(l.n < CHAIN_MAX_LOADS);
            l.op[l.n++] = op;
        }
    return l;
}

static bool same_loads(const TileProgram *p, const TileOp *a, const TileOp *b) {
    Loads x = loads_of(p, a), y = loads_of(p, b);
    bool same = x.n == y.n;
    for (int i = 0; i < x.n && same; i++) same = x.op[i]->tensor == y.op[i]->tensor;
    return same;
}

static TileOp *behind_last_use(TileOp *load) {
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
static bool in_turn(const Loads *l) {
    for (int i = 0; i + 1 < l->n; i++) {
        const TileOp *end = behind_last_use(l->op[i]);
        for (const TileOp *op = l->op[i]; op != end; op = op->next)
            if (pass_uses(op, l->op[i + 1]->results.data[0])) return false;
    }
    return true;
}

static void join(Chain *c, const TileProgram *p, TileOp *loop) {
    Loads l = loads_of(p, loop);
    c->alone |= loop->where != NULL || !in_turn(&l);
    c->loop[c->nloops++] = loop;
}

static Chain chain_from(const TileProgram *p, TileOp *loop) {
    Chain c = {.nloads = loads_of(p, loop).n};
    join(&c, p, loop);
    for (TileOp *op = loop->next; op && c.nloops < MAX_CHAIN; op = op->next) {
        if (op->kind == TILE_MAP) continue;
        const TileOp *last = c.loop[c.nloops - 1];
        if (op->kind != TILE_LOOP || op->axis != last->axis || op->from != last->to ||
            !same_loads(p, last, op))
            break;
        join(&c, p, op);
    }
    return c;
}

// ---- the sequence: which tile a step is about, for steps from loop i on

static const Ex *tile_at(Chains *s, const Chain *c, int i, const Ex *step) {
    const Ex *here = ex_subst(s->x, c->loop[i]->index, SYM_STEP, 0, step);
    if (i + 1 == c->nloops) return here;
    const Ex *in = ex_2(s->x, EX_LT, step, c->loop[i]->to);
    return ex_select(s->x, in, here, tile_at(s, c, i + 1, step));
}

static const Ex *exists(Chains *s, const Chain *c, const Ex *step) {
    return ex_2(s->x, EX_LT, step, c->loop[c->nloops - 1]->to);
}

static int stages_of(const Chain *c) { return c->nloads == 1 && !c->alone ? 2 : 1; }

static const Ex *stage_at(Chains *s, const Chain *c, const Ex *step) {
    const Ex *last = ex_i32(s->x, stages_of(c) - 1);
    return ex_2(s->x, EX_BAND, step, last);
}

// ---- one body

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

static void fetch_in_step(Chains *s, TileOp *loop) {
    Loads l = loads_of(s->p, loop);
    raise_columns(loop);
    TileOp *first = loop->body.first;
    while (first->kind == TILE_MAP) first = first->next;
    const Ex *zero = ex_i32(s->x, 0);
    insert(s, first, TILE_BARRIER);
    for (int i = 0; i < l.n; i++) fetch(s, first, l.op[i], NULL, 0, zero, NULL);
    for (int i = 0; i < l.n; i++) {
        TileOp *at = i ? l.op[i] : first;
        arrive(s, at, l.n - 1 - i);
        view_for(s, at, l.op[i], zero);
    }
}

// Before load i is used: it has arrived, and all have finished with the buffer that is filled next.
static void fetch_ahead(Chains *s, const Chain *c, int j) {
    TileOp *loop = c->loop[j], *place[CHAIN_MAX_LOADS];
    Loads l = loads_of(s->p, loop);
    const Ex *step = ex_symbol(s->x, SYM_STEP), *next = ex_2(s->x, EX_ADD, step, ex_i32(s->x, 1));
    bool late = s->late && loop->carried.n == 1;
    for (int i = 0; i < l.n; i++) {
        place[i] = !i     ? loop->body.first
                   : late ? before_first_use(l.op[i])
                          : behind_last_use(l.op[i - 1]);
        while (chain_operand(s->p, place[i])) place[i] = place[i]->next;
    }
    for (int i = 0; i < l.n; i++) {
        arrive(s, place[i], 0);
        if (i + 1 < l.n)
            fetch(s, place[i], l.op[i + 1], NULL, 0, stage_at(s, c, step), NULL);
        else
            fetch(s, place[i], l.op[0], tile_at(s, c, j, next), loop->axis, stage_at(s, c, next),
                  exists(s, c, next));
    }
    for (int i = 0; i < l.n; i++) view_for(s, place[i], l.op[i], stage_at(s, c, step));
}

TileOp *chain_loops(Chains *s, TileOp *first) {
    Chain c = chain_from(s->p, first);
    Loads l = loads_of(s->p, first);
    bool used = false;
    for (int i = 0; i < l.n; i++) {
        buffer_for(s, l.op[i], stages_of(&c));
        used |= s->used[l.op[i]->tensor];
        s->used[l.op[i]->tensor] = true;
    }
    if (l.n && !c.alone) {
        if (used) insert(s, first, TILE_BARRIER);
        fetch(s, first, l.op[0], tile_at(s, &c, 0, first->from), first->axis,
              stage_at(s, &c, first->from), exists(s, &c, first->from));
    }
    for (int j = 0; j < c.nloops && l.n; j++)
        if (c.alone)
            fetch_in_step(s, c.loop[j]);
        else
            fetch_ahead(s, &c, j);
    return c.loop[c.nloops - 1];
}

// ---- outside loops

void chain_load(Chains *s, TileOp *load, bool now) {
    TileOp *at = load->next;
    const Ex *zero = ex_i32(s->x, 0);
    buffer_for(s, load, 1);
    fetch(s, at, load, NULL, 0, zero, NULL);
    if (now) arrive(s, at, 0);
    view_for(s, at, load, zero);
}

void chain_homes(Chains *s) {
    for (TileOp *op = tile_next(&s->k->body, NULL); op; op = tile_next(&s->k->body, op)) {
        bool shared = op->kind == TILE_MAP && pass_cooperative(s->k, op);
        for (int i = 0; i < op->results.n; i++)
            if (op->results.data[i]->home == HOME_ANY)
                op->results.data[i]->home = shared ? HOME_SHARED : HOME_FRAGMENT;
        for (int i = 0; i < op->carried.n; i++) op->carried.data[i]->home = HOME_FRAGMENT;
        if (shared) insert(s, op->next, TILE_BARRIER);
    }
}
