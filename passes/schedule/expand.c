// expand.c: software pipelining, for any nest of loops.
//
// In: a kernel whose operations have places (TilePlace), and roles without bodies. Iteration i of a loop
// does an operation of stage s at time i + s. Out: the roles, each with a loop over the block's tiles of
// the grid, and in it what the role does of the kernel, in the order of the places:
//
//     loop t = 0 .. n {                     s(0)                    prologue: time 0
//         s = .. @0:1        /    ->        loop t = 1 .. n {       steady state: s is one step
//         o = f(s) @1:2                         s(t); o(t - 1) }    ahead of o
//     }                                     o(n - 1)                epilogue
//
// What a later stage needs of a step is carried from one time to the next. Loops that follow each other
// (the tiles of one sweep by class) are one chain: one prologue, one epilogue. The first step takes the
// body of the first class, partial tiles, which is right for all tiles; or that of its own class, where
// the full loop `begins`. A sweep without steps does one, of the keys behind the last one: all masked.
// Where a loop skips steps (`where`) its first step is never skipped: it costs a tile of masked keys.
//
// The tiles of the grid are a loop of the same kind, which ends when none is valid: there is no epilogue, and the operations of stage 0
// (copies with a `peeled` place among them) are of the next tile. What is done of a tile after the step to the next one is marked `behind`.
// A role reads a tile that another one fills where its first reader stands (take). pass_waits puts in what products and stages wait for.
//
// Where all that is computed is of one stage, and only loads are of earlier ones, nothing is carried: a step
// loads the tiles of later steps, `when` there are such, and there is no epilogue.
//
// A kernel with one role has a tile a block: the role's body becomes the kernel's. It fills what it reads,
// buffers with stages by number (copy, view), and pass_wait_copies puts in what is waited for.
#include "passes/schedule/expand.h"
#include "passes/schedule/schedule.h"

#include <limits.h>
#include <string.h>

typedef struct Ops {
    TileOp **op;
    int n;
} Ops;

// What goes from one time to the next: a value that the loops carry, or what an operation of stage 1 needs.
typedef struct Carry {
    int carried; // which one; -1: an operand
    int op, arg; // of the op-th operation of stage 1
} Carry;

typedef struct Chain { // loops that follow each other
    TileOp **loop;
    int n;
    TileOp *none;  // behind them, without steps: the body of a first step that is full; or NULL
    TileOp *first; // behind the first of them, likewise: that of a first step; or NULL
    bool staged;   // what is computed has two stages
    int ahead;     // otherwise: the stage of all that is computed; loads may have earlier ones
    bool skips;
    Carry *carry;
    int ncarry;
    TileValue **state;
} Chain;

typedef struct Item { // of the body of the loop over tiles of the grid
    TilePlace at;
    TileOp *op; // NULL: the step to the next tile
    bool copy;  // of a loop's operation: of the first step (stage 0) or the last one
} Item;

typedef struct Expand {
    TileProgram *p;
    TileKernel *k;
    ExPool *x;
    const char *role;
    TileBlock *block; // where ops are appended
    TileValue **pipe; // by id of what is loaded
    TileValue **to;   // by id: what stands for a value of the kernel now
    TileValue **view; // by id of what is loaded: the stage
    bool *held;       // by id: it was taken one tile of the grid before
    int nvalues;
    bool staged;             // tiles of the grid have two stages
    bool own;                // there is one role, which fills what it reads
    bool many;               // several compute
    const TileBlock *steady; // the body that is expanded
    const Ex *when;          // of what is filled and taken
    bool behind;
    Chain *chain; // that copies of steps are of
    VEC(Item) items;
} Expand;

static const Ex *num(Expand *e, int v) { return ex_i32(e->x, v); }
static const Ex *tidy(Expand *e, const Ex *x) { return ex_simplify(e->x, x); }
static const Ex *step_symbol(Expand *e) { return ex_symbol(e->x, SYM_STEP); }

static TileOp *append(Expand *e, TileKind kind, Span span) {
    return tile_op(e->p, e->k, e->block, kind, span);
}

// ---- what a role does of a block

static bool does(const Expand *e, const TileOp *op) {
    if (op->kind == TILE_ROLE) return false;
    if (op->role) return !strcmp(op->role, e->role);
    for (const TileOp *in = op->body.first; in; in = in->next)
        if (does(e, in)) return true;
    return false;
}

static bool is_staged(const TileBlock *b) {
    for (const TileOp *op = b->first; op; op = op->next)
        if (op->place.stage) return true;
    return false;
}

static bool reads(const Expand *e, const TileOp *op, const TileValue *v) {
    for (int i = 0; i < op->args.n && does(e, op); i++)
        if (op->args.data[i] == v) return true;
    for (const TileOp *in = op->body.first; in; in = in->next)
        if (reads(e, in, v)) return true;
    return false;
}

// The operations that are done one time behind others, all of which are not loads.
static bool is_split(const TileBlock *b) { return is_staged(b) && !tile_stage(b); }

// A tile that another role fills, and that is taken where it is loaded: everywhere but ahead of its reader, or where several
// roles compute, each of which reads it where it needs it.
static bool takes(const Expand *e, const TileOp *op) {
    if (op->kind != TILE_LOAD || does(e, op) || !pass_is_piped(op->results.data[0])) return false;
    if (e->many && op->block != &e->k->body) return false;
    if (op->block == &e->k->body ? op->place.stage != e->staged : is_split(op->block)) return false;
    for (const TileOp *in = op->next; in; in = in->next)
        if (reads(e, in, op->results.data[0])) return true;
    return false;
}

static Ops by_order(const Expand *e, const TileBlock *b) {
    Ops ops = {NULL, 0};
    for (const TileOp *op = b->first; op; op = op->next) ops.n++;
    ops.op = ARENA_ARRAY(e->p->arena, TileOp *, ops.n + 1);
    ops.n = 0;
    for (TileOp *op = b->first; op; op = op->next) {
        if (!does(e, op) && !takes(e, op)) continue;
        int i = ops.n++;
        for (; i && ops.op[i - 1]->place.order > op->place.order; i--) ops.op[i] = ops.op[i - 1];
        ops.op[i] = op;
    }
    return ops;
}

static Ops of_stage_1(const Expand *e, const TileOp *loop) {
    Ops ops = by_order(e, &loop->body);
    int n = 0;
    for (int i = 0; i < ops.n; i++)
        if (is_split(&loop->body) && ops.op[i]->place.stage) ops.op[n++] = ops.op[i];
    return (Ops){ops.op, n};
}

// ---- chains

bool pass_follows(const TileOp *before, const TileOp *loop) {
    if (loop->kind != TILE_LOOP || before->kind != TILE_LOOP || loop->axis != before->axis)
        return false;
    if (loop->from != before->to || loop->args.n != before->results.n) return false;
    for (int i = 0; i < loop->args.n; i++)
        if (loop->args.data[i] != before->results.data[i]) return false;
    return true;
}

// Whether the loop is of the chain of the one before it.
static bool goes_on(const TileOp *before, const TileOp *loop) {
    return before && loop->kind == TILE_LOOP && is_staged(&before->body) &&
           pass_follows(before, loop);
}

static Chain chain_from(const Expand *e, TileOp *loop) {
    Chain c = {.staged = is_split(&loop->body), .ahead = tile_stage(&loop->body)};
    int loops = 0, carries = loop->carried.n;
    for (const TileOp *op = loop; op; op = op->next) loops++;
    for (const TileOp *op = loop->body.first; op; op = op->next) carries += op->args.n;
    c.loop = ARENA_ARRAY(e->p->arena, TileOp *, loops);
    c.carry = ARENA_ARRAY(e->p->arena, Carry, carries + 1);
    c.state = ARENA_ARRAY(e->p->arena, TileValue *, carries + 1);
    for (TileOp *op = loop; op; op = op->next) {
        if (op != loop && (!is_staged(&loop->body) || !pass_follows(op->prev, op))) break;
        c.skips |= op->where != NULL;
        if (op->from == op->to && op != loop && op->tiles == CLASS_PARTIAL)
            c.first = op;
        else if (op->from == op->to && op != loop)
            c.none = op;
        else
            c.loop[c.n++] = op;
    }
    return c;
}

static const Ex *begin_of(const Chain *c) { return c->loop[0]->from; }
static const Ex *end_of(const Chain *c) { return c->loop[c->n - 1]->to; }

// The tile of a step of loop i or a later one.
static const Ex *tile_at(Expand *e, const Chain *c, int i, const Ex *step) {
    const Ex *here = ex_subst(e->x, c->loop[i]->index, SYM_STEP, 0, step);
    if (i + 1 == c->n) return here;
    const Ex *in = ex_2(e->x, EX_LT, step, c->loop[i]->to);
    return ex_select(e->x, in, here, tile_at(e, c, i + 1, step));
}

static const Ex *or_behind(Expand *e, const Chain *c, const Ex *tile) {
    const TileAxis *a = &e->k->axes[c->loop[0]->axis];
    const Ex *n = num(e, a->extent), *up = ex_2(e->x, EX_ADD, a->size, num(e, a->extent - 1));
    const Ex *any = ex_2(e->x, EX_LT, begin_of(c), end_of(c));
    return tidy(e, ex_select(e->x, any, tile, ex_2(e->x, EX_DIV, up, n)));
}

static const Ex *last_step(Expand *e, const Chain *c) {
    return ex_2(e->x, EX_SUB, end_of(c), num(e, 1));
}

static const Ex *first_tile(Expand *e, const Chain *c) {
    return or_behind(e, c, tile_at(e, c, 0, begin_of(c)));
}

static const Ex *last_tile(Expand *e, const Chain *c) {
    return or_behind(e, c, tile_at(e, c, 0, last_step(e, c)));
}

// Loop j: of times at which both stages have a step.
static TileOp *loop_like(Expand *e, const Chain *c, int j) {
    const TileOp *from = c->loop[j];
    TileOp *loop = append(e, TILE_LOOP, from->span);
    loop->axis = from->axis;
    loop->from = from->from;
    if (c->staged) {
        const Ex *second = ex_2(e->x, EX_ADD, begin_of(c), num(e, 1));
        loop->from = tidy(e, j ? ex_2(e->x, EX_MAX, second, from->from) : second);
    }
    loop->to = from->to, loop->index = from->index, loop->where = from->where;
    loop->tiles = from->tiles;
    return loop;
}

// In loop j, the tile of the step before this one.
static const Ex *tile_before(Expand *e, const Chain *c, int j) {
    const Ex *before = ex_2(e->x, EX_SUB, step_symbol(e), num(e, 1));
    return tidy(e, j ? tile_at(e, c, 0, before)
                     : ex_subst(e->x, c->loop[j]->index, SYM_STEP, 0, before));
}

// ---- warpgroups that need only the first keys of a tile (narrow.c)

// Of the tile of a step, asked as if all tiles were of the first loop: for a step behind its end that
// gives one of the full tiles, of which everybody needs everything. Where a tile has no keys at all any
// answer will do.
static const Ex *sees_few(Expand *e, const Chain *c, const Ex *step, int first) {
    const TileOp *loop = c->loop[0];
    if (!first || c->skips || loop->tiles != CLASS_PARTIAL) return NULL;
    const Ex *tile = ex_subst(e->x, loop->index, SYM_STEP, 0, step);
    return pass_sees_few(e->p, e->k, loop->axis, tile, first);
}

static void only_first(TileOp *op, int first, int axis, const Ex *few) {
    bool never = !few || (few->op == EX_CONST && !few->i);
    op->first = never ? 0 : first;
    op->when = never ? NULL : few;
    if (!never) op->axis = axis;
}

// Of what is done one step behind. In a loop over full tiles the step before is a partial one's only where
// the loop begins: there is one comparison a step.
static const Ex *few_before(Expand *e, const Chain *c, const TileOp *loop, int first) {
    const Ex *t = step_symbol(e), *one = num(e, 1);
    if (loop->tiles == CLASS_PARTIAL) return sees_few(e, c, ex_2(e->x, EX_SUB, t, one), first);
    const Ex *few = sees_few(e, c, ex_2(e->x, EX_SUB, loop->from, one), first);
    if (!few) return NULL;
    return tidy(e, ex_2(e->x, EX_EQ, t, ex_select(e->x, few, loop->from, num(e, -1))));
}

// ---- copies of operations

// Of a role's own: where the tile of a step lies.
static const Ex *stage_of(Expand *e, const TileOp *load, const Ex *step) {
    int n = load->results.data[0]->stages;
    if (n == 1 || load->block == &e->k->body) return num(e, 0);
    bool power = !(n & (n - 1));
    return tidy(e, ex_2(e->x, power ? EX_BAND : EX_MOD, step, num(e, power ? n - 1 : n)));
}

static TileValue *view_of(Expand *e, const TileValue *v) {
    TileValue **view = &e->view[v->id];
    if (e->view[v->id]) return *view;
    const TileOp *load = v->def;
    bool again = e->own || (e->held[v->id] && !e->when && load->block != e->steady);
    TileOp *op = append(e, again ? TILE_VIEW : TILE_TAKE, load->span);
    tile_arg(e->p, op, e->pipe[load->results.data[0]->id]);
    if (e->own) op->stage = stage_of(e, load, step_symbol(e));
    op->when = e->when;
    op->turn = load->turn;
    *view = tile_result(e->p, e->k, op, v->name, v->dtype, v->axis, v->rank);
    (*view)->home = HOME_SHARED;
    return *view;
}

static TileValue *now(Expand *e, TileValue *v) {
    if (v->id >= e->nvalues) return v;
    if (pass_is_piped(v)) return view_of(e, v);
    return e->to[v->id] ? e->to[v->id] : v;
}

static void redirect(Expand *e, TileOp *op) {
    for (int i = 0; i < op->args.n; i++) op->args.data[i] = now(e, op->args.data[i]);
    for (TileOp *in = op->body.first; in; in = in->next) redirect(e, in);
}

// What a map has made, to another role.
static TileOp *give(Expand *e, const TileOp *map) {
    TileOp *n = append(e, TILE_GIVE, map->span);
    tile_arg(e->p, n, e->pipe[map->results.data[0]->id]);
    tile_arg(e->p, n, now(e, map->args.data[0]));
    return n;
}

static TileOp *copy(Expand *e, const TileOp *op) {
    if (op->kind == TILE_MAP && pass_is_piped(op->results.data[0])) return give(e, op);
    TileOp *n = tile_clone(e->p, e->k, op, NULL, NULL);
    redirect(e, n);
    tile_append(e->block, n);
    n->behind = e->behind && op->kind != TILE_MMA;
    for (int i = 0; i < op->results.n; i++) e->to[op->results.data[i]->id] = n->results.data[i];
    return n;
}

static void swap_names(TileValue *a, TileValue *b) {
    const char *name = a->name;
    a->name = b->name;
    b->name = name;
}

// The copy that says what an operation does, among several, has the names of what it makes.
static TileOp *named(TileOp *n, const TileOp *op) {
    for (int i = 0; i < n->results.n; i++) swap_names(n->results.data[i], op->results.data[i]);
    return n;
}

static const Ex *both(Expand *e, const Ex *a, const Ex *b) {
    const Ex *all = !a ? b : !b ? a : ex_2(e->x, EX_AND, a, b);
    if (all) all = tidy(e, all);
    return all && all->op == EX_CONST && all->i ? NULL : all;
}

static TileOp *fill(Expand *e, const TileOp *load, const Ex *tile, int axis) {
    TileOp *op = append(e, e->own ? TILE_COPY : TILE_FILL, load->span);
    tile_arg(e->p, op, e->pipe[load->results.data[0]->id]);
    op->tensor = load->tensor;
    memcpy(op->coord, load->coord, sizeof op->coord);
    memcpy(op->each, load->each, sizeof op->each);
    op->from_column = load->from_column, op->width = load->width;
    for (int d = 0; tile && d < e->p->tensors.data[load->tensor].rank; d++) {
        op->coord[d].at = tidy(e, ex_subst(e->x, op->coord[d].at, SYM_TILE, axis, tile));
        bool its = op->coord[d].axis >= 0 && tile_root_axis(e->k, op->coord[d].axis) == axis;
        if (op->each[d] && its) op->coord[d].tile = tidy(e, tile);
    }
    if (e->own) op->stage = stage_of(e, load, step_symbol(e));
    op->when = e->when;
    op->behind = e->behind;
    return op;
}

// A full tile of keys has all rows.
static bool is_inside(const Expand *e, const TileOp *load) {
    const TileOp *loop = load->block->owner;
    bool inside = e->own && loop && loop->tiles == CLASS_FULL;
    for (int d = 0; d < e->p->tensors.data[load->tensor].rank && inside; d++) {
        if (load->coord[d].axis < 0 || load->coord[d].axis == loop->axis) continue;
        const TileAxis *a = &e->k->axes[load->coord[d].axis];
        inside = a->whole || a->size->op == EX_CONST;
    }
    return inside;
}

// A load is a fill, and for roles that read the tile a take.
static void load(Expand *e, TileOp *op, const Ex *tile, int axis) {
    if (does(e, op))
        fill(e, op, tile, axis)->inside = is_inside(e, op);
    else
        view_of(e, op->results.data[0]);
}

// What a role fills itself it sees where it first reads it.
static void see_own(Expand *e, const TileBlock *b, const TileOp *reader) {
    for (TileOp *op = b->first; op && e->own; op = op->next)
        if (op->kind == TILE_LOAD && pass_is_piped(op->results.data[0]) &&
            reads(e, reader, op->results.data[0]))
            view_of(e, op->results.data[0]);
}

static void forget_views(Expand *e, const TileBlock *b) {
    for (const TileOp *op = b->first; op; op = op->next)
        for (int i = 0; i < op->results.n; i++) e->view[op->results.data[i]->id] = NULL;
}

static void yield(Expand *e, TileValue *const *v, int n) {
    TileOp *op = append(e, TILE_YIELD, (Span){0});
    for (int i = 0; i < n; i++) tile_arg(e->p, op, v[i]);
}

// ---- what goes from one time to the next

static int maker_of(const Ops *late, const TileValue *v) {
    for (int a = 0; a < late->n; a++)
        if (v->def == late->op[a]) return a;
    return -1;
}

// An operand of stage 1 that the step has made before, or carries.
static bool crosses(const TileOp *loop, const TileValue *v) {
    if (v->def == loop) return true;
    return v->def && v->def->block == &loop->body && !v->def->place.stage && !pass_is_piped(v);
}

static TileValue *operand_of(const Ops *late, const Carry *c) {
    return late->op[c->op]->args.data[c->arg];
}

static void add_operand(Chain *c, const Ops *late, int op, int arg) {
    Carry carry = {-1, op, arg};
    const TileValue *v = operand_of(late, &carry);
    if (!crosses(c->loop[0], v)) return;
    for (int i = 0; i < c->ncarry; i++)
        if (c->carry[i].carried < 0 && operand_of(late, &c->carry[i]) == v) return;
    c->carry[c->ncarry++] = carry;
}

// A loop that a role goes round for its copies alone makes nothing.
static bool makes(const Expand *e, const TileValue *v) {
    const TileOp *op = v->def;
    if (op->kind != TILE_LOOP) return does(e, op);
    for (int i = 0; i < op->results.n; i++) {
        const TileValue *from = op->body.last->args.data[i];
        if (op->results.data[i] == v) return from->def && from->def != op && makes(e, from);
    }
    return false;
}

// In the place of what stage 1 makes is what it will add to.
static void plan_carries(Expand *e, Chain *c) {
    const TileOp *loop = c->loop[0], *yields = loop->body.last;
    Ops late = of_stage_1(e, loop);
    c->ncarry = 0;
    for (int i = 0; i < loop->carried.n; i++) {
        const TileValue *v = yields->args.data[i];
        int a = maker_of(&late, v);
        bool inside = v->def && v->def->block == &loop->body;
        if (inside && !makes(e, v)) continue;
        if (a < 0)
            c->carry[c->ncarry++] = (Carry){i, 0, 0};
        else
            add_operand(c, &late, a, late.op[a]->args.n - 1);
    }
    for (int a = 0; a < late.n; a++)
        for (int i = 0; i < late.op[a]->args.n; i++) add_operand(c, &late, a, i);
}

// What a step leaves, of a loop whose operations were copied.
static TileValue *leaves(Expand *e, const TileOp *loop, const Carry *carry) {
    if (carry->carried >= 0) return now(e, loop->body.last->args.data[carry->carried]);
    Ops late = of_stage_1(e, loop);
    return now(e, operand_of(&late, carry));
}

// ---- the steady state

// Where an operation of a step stores to.
static void store_at(Expand *e, TileOp *store, int axis, const Ex *tile) {
    for (int d = 0; d < e->p->tensors.data[store->tensor].rank; d++) {
        TileCoord *c = &store->coord[d];
        c->at = tidy(e, ex_subst(e->x, c->at, SYM_TILE, axis, tile));
        bool its = c->axis >= 0 && tile_root_axis(e->k, c->axis) == axis;
        if (store->each[d] && its) c->tile = tile;
    }
}

// The a-th operation of stage 1: of the step before, or of the last one, whose tile is given.
static void stage_1(Expand *e, const Chain *c, const TileOp *loop, const Ops *late, int a,
                    const Ex *tile) {
    const TileOp *op = late->op[a];
    Ops like = of_stage_1(e, c->loop[0]);
    TileValue **saved = ARENA_ARRAY(e->p->arena, TileValue *, op->args.n + 1);
    for (int i = 0; i < op->args.n; i++) {
        TileValue *v = op->args.data[i];
        saved[i] = e->to[v->id];
        for (int s = 0; s < c->ncarry; s++)
            if (c->carry[s].carried < 0 &&
                operand_of(&like, &c->carry[s]) == like.op[a]->args.data[i])
                e->to[v->id] = c->state[s];
    }
    TileOp *n = copy(e, op);
    if (n->kind == TILE_STORE) store_at(e, n, loop->axis, tile);
    for (int i = 0; i < op->args.n; i++) e->to[op->args.data[i]->id] = saved[i];
    for (int i = 0; i < loop->carried.n; i++)
        if (loop->body.last->args.data[i]->def == op)
            e->to[loop->carried.data[i]->id] = now(e, loop->body.last->args.data[i]);
    const TileOp *in = n->block->owner;
    if (in->kind == TILE_LOOP) named(n, op);
    if (op->first && in->kind == TILE_LOOP)
        only_first(n, op->first, op->axis, few_before(e, c, in, op->first));
}

// Of a step from loop j on, which may be behind the last one.
static TileOp *fill_step(Expand *e, const Chain *c, int j, const TileOp *load, const Ex *step) {
    TileOp *op = fill(e, load, tile_at(e, c, j, step), c->loop[0]->axis);
    op->when = both(e, e->when, ex_2(e->x, EX_LT, step, end_of(c)));
    if (e->own) op->stage = stage_of(e, load, step);
    return op;
}

// Those that are loaded ahead of a first step.
static void fill_first(Expand *e, const Chain *c, const TileOp *load) {
    for (int i = 0; i < c->ahead - load->place.stage; i++)
        fill_step(e, c, 0, load, ex_2(e->x, EX_ADD, begin_of(c), num(e, i)));
}

static void load_in_step(Expand *e, const Chain *c, int j, TileOp *op) {
    const TileOp *loop = c->loop[j];
    int ahead = c->ahead - op->place.stage;
    if (ahead > 0 && does(e, op)) {
        const Ex *step = ex_2(e->x, EX_ADD, step_symbol(e), num(e, ahead));
        bool last = j + 1 == c->n; // what a loop before the last one loads at its end is another's
        fill_step(e, c, j, op, step)->inside = last && is_inside(e, op);
        return;
    }
    load(e, op, c->staged && op->place.stage ? tile_before(e, c, j) : NULL, loop->axis);
}

static void chain(Expand *e, Chain *c);

static void step(Expand *e, const Chain *c, int j) {
    const TileOp *loop = c->loop[j];
    Ops ops = by_order(e, &loop->body), late = of_stage_1(e, loop);
    for (int i = 0, a = 0; i < ops.n; i++) {
        TileOp *op = ops.op[i];
        see_own(e, &loop->body, op);
        if (op->kind == TILE_LOOP) {
            Chain inner = chain_from(e, op);
            if (!goes_on(op->prev, op)) chain(e, &inner);
        } else if (op->kind == TILE_LOAD && pass_is_piped(op->results.data[0])) {
            load_in_step(e, c, j, op);
        } else if (c->staged && op->place.stage) {
            stage_1(e, c, loop, &late, a++, tile_before(e, c, j));
        } else {
            TileOp *n = named(copy(e, op), op);
            if (op->first)
                only_first(n, op->first, op->axis,
                           j ? NULL : sees_few(e, c, step_symbol(e), op->first));
        }
    }
}

static void carry_in(Expand *e, Chain *c, TileOp *loop, const TileOp *from) {
    for (int i = 0; i < c->ncarry; i++) {
        const TileValue *init = c->state[i];
        int carried = c->carry[i].carried;
        tile_arg(e->p, loop, c->state[i]);
        const char *name = carried < 0 ? init->name : from->carried.data[carried]->name;
        TileValue *v = tile_value(e->p, e->k, name, init->dtype, init->axis, init->rank);
        v->def = loop;
        VEC_PUSH(e->p->arena, &loop->carried, v);
        c->state[i] = v;
        if (e->own) swap_names(v, from->carried.data[carried]);
        if (carried >= 0) e->to[from->carried.data[carried]->id] = v;
    }
}

static void carry_out(Expand *e, Chain *c, TileOp *loop, const TileOp *from) {
    for (int i = 0; i < c->ncarry; i++) {
        const TileValue *v = loop->carried.data[i];
        c->state[i] = tile_result(e->p, e->k, loop, v->name, v->dtype, v->axis, v->rank);
        if (e->own) swap_names(c->state[i], from->results.data[c->carry[i].carried]);
    }
}

static void steady(Expand *e, Chain *c, int j) {
    const TileOp *from = c->loop[j];
    TileOp *loop = loop_like(e, c, j);
    TileBlock *outer = e->block;
    const TileBlock *around = e->steady;
    TileValue **out = ARENA_ARRAY(e->p->arena, TileValue *, c->ncarry + 1);
    carry_in(e, c, loop, from);
    e->block = &loop->body;
    e->steady = &from->body;
    forget_views(e, &from->body);
    step(e, c, j);
    for (int i = 0; i < c->ncarry; i++) out[i] = leaves(e, from, &c->carry[i]);
    yield(e, out, c->ncarry);
    forget_views(e, &from->body);
    e->block = outer;
    e->steady = around;
    carry_out(e, c, loop, from);
}

// ---- the first step

// Zero times anything finite, as the factor is that a product's sums are scaled by.
static TileValue *stays_zero(Expand *e, const TileOp *loop, const TileOp *op) {
    if (op->kind != TILE_MAP || op->outs.n != 1 || op->outs.data[0].body->op != EX_MUL) return NULL;
    Ops late = of_stage_1(e, loop);
    bool added = false;
    for (int a = 0; a < late.n; a++)
        added |= late.op[a]->args.n == 3 && late.op[a]->args.data[2] == op->results.data[0];
    for (int i = 0; added && i < op->args.n; i++) {
        TileValue *v = now(e, op->args.data[i]);
        if (pass_is_zero(v) && v->rank == op->results.data[0]->rank) return v;
    }
    return NULL;
}

// What another body has made before is the same in this one, and what that one took for it is not taken again.
static void made_before(Expand *e, const TileOp *op, const TileOp *like) {
    e->to[op->results.data[0]->id] = now(e, like->results.data[0]);
    for (int i = 0; i < op->args.n; i++)
        e->held[op->args.data[i]->id] |= e->held[like->args.data[i]->id];
}

// Of a loop's body, in which nothing was added yet: what it leaves is c->state, and what was made here is yielded.
static void first_step(Expand *e, Chain *c, const TileOp *loop) {
    Ops ops = by_order(e, &loop->body), like = by_order(e, &c->loop[0]->body);
    for (int i = 0; i < loop->carried.n; i++)
        e->to[loop->carried.data[i]->id] = now(e, c->loop[0]->args.data[i]);
    for (int i = 0, j = 0; i < ops.n; i++) {
        if (!ops.op[i]->peels) continue;
        while (!like.op[j]->peels) j++;
        made_before(e, ops.op[i], like.op[j++]);
    }
    for (int i = 0; i < ops.n; i++) {
        TileOp *op = ops.op[i];
        if (op->peels || op->place.stage) continue;
        TileValue *zero = stays_zero(e, loop, op);
        if (zero)
            e->to[op->results.data[0]->id] = zero;
        else
            copy(e, op);
    }
    TileOp *out = append(e, TILE_YIELD, loop->span);
    for (int i = 0; i < c->ncarry; i++) {
        c->state[i] = leaves(e, loop, &c->carry[i]);
        if (c->state[i]->def->block == e->block) tile_arg(e->p, out, c->state[i]);
    }
    forget_views(e, &loop->body);
}

// Outside, what was yielded is known as the block's results.
static void first_results(Expand *e, Chain *c, TileOp *op) {
    for (int i = 0, n = 0; i < c->ncarry; i++) {
        const TileValue *v = c->state[i];
        if (v->def->block != &op->body) continue; // known outside
        if (n == op->results.n) tile_result(e->p, e->k, op, v->name, v->dtype, v->axis, v->rank);
        c->state[i] = op->results.data[n++];
    }
}

// A block whose maps all make something for each row by itself.
static bool of_rows(const Expand *e, const TileOp *at) {
    for (const TileOp *op = at->body.first; op; op = op->next)
        for (int i = 0; i < op->results.n; i++) {
            const TileValue *v = op->results.data[i];
            bool elsewhere = v->home != HOME_ANY && v->home != HOME_FRAGMENT;
            if (op->kind != TILE_MAP || elsewhere || !tile_has_axis(v, tile_grid_axis(e->k)))
                return false;
        }
    return true;
}

static int first_of(const TileOp *loop) {
    for (const TileOp *op = loop->body.first; op; op = op->next)
        if (op->first && !op->place.stage) return op->first;
    return 0;
}

static TileOp *once(Expand *e, Chain *c, TileKind kind, const TileOp *like) {
    TileOp *op = append(e, kind, like->span);
    op->axis = like->axis;
    op->index = first_tile(e, c);
    op->tiles = like->tiles;
    TileBlock *outer = e->block;
    e->block = &op->body;
    first_step(e, c, like);
    e->block = outer;
    return op;
}

static void first_at(Expand *e, Chain *c) {
    const TileOp *loop = c->loop[0];
    TileOp *at = once(e, c, TILE_AT, c->first ? c->first : loop);
    int first = first_of(loop);
    if (of_rows(e, at)) only_first(at, first, loop->axis, sees_few(e, c, begin_of(c), first));
    first_results(e, c, at);
    if (at->body.first == at->body.last) tile_unlink(at); // all that the role does is a step behind
}

static TileOp *loop_once(Expand *e, Chain *c, const TileOp *like, const Ex *from, const Ex *to) {
    TileOp *loop = once(e, c, TILE_LOOP, like);
    loop->from = from, loop->to = to;
    return loop;
}

// What stands for the results of a loop that does not go round.
static TileValue *nothing_like(Expand *e, TileOp *before, const TileValue *v) {
    TileOp *map = pass_map_before(e->p, before, pass_axes_of(v));
    return pass_out(e->p, e->k, map, v->name, v->dtype, ex_f32(e->x, 0), EX_CONST, 0);
}

static void carry_through(Expand *e, TileOp *loop, TileValue *const *start) {
    const TileOp *out = loop->body.last;
    for (int i = 0; i < out->args.n; i++) {
        const TileValue *v = out->args.data[i];
        tile_arg(e->p, loop, start ? start[i] : nothing_like(e, loop, v));
        TileValue *in = tile_value(e->p, e->k, v->name, v->dtype, v->axis, v->rank);
        in->def = loop;
        VEC_PUSH(e->p->arena, &loop->carried, in);
    }
    for (int i = 0; i < out->args.n; i++) {
        const TileValue *v = out->args.data[i];
        tile_result(e->p, e->k, loop, v->name, v->dtype, v->axis, v->rank);
    }
}

// The first step twice, in loops of which one goes round, and that once. The second begins with what the
// first one leaves.
static void first_of_either(Expand *e, Chain *c) {
    const TileOp *partial = c->loop[0], *begins = c->none ? c->none : c->loop[1];
    const Ex *some = ex_2(e->x, EX_LT, partial->from, partial->to);
    const Ex *any = ex_2(e->x, EX_LT, begin_of(c), end_of(c));
    const Ex *full = ex_2(e->x, EX_AND, any, ex_1(e->x, EX_NOT, some));
    const Ex *times = tidy(e, ex_select(e->x, full, num(e, 0), num(e, 1)));
    TileOp *first = loop_once(e, c, partial, num(e, 0), times);
    carry_through(e, first, NULL);
    TileOp *second = loop_once(e, c, begins, times, num(e, 1));
    carry_through(e, second, first->results.data);
    first_results(e, c, second);
}

static void prologue(Expand *e, Chain *c) {
    Ops ops = by_order(e, &c->loop[0]->body);
    bool makes = false;
    for (int i = 0; i < ops.n; i++) {
        TileOp *op = ops.op[i];
        if (op->kind == TILE_LOAD && !op->place.stage && !op->peels)
            fill(e, op, first_tile(e, c), c->loop[0]->axis);
        makes |= op->kind != TILE_LOAD;
    }
    if (makes && c->n > 1 && c->loop[1]->begins)
        first_of_either(e, c);
    else if (makes)
        first_at(e, c);
}

// ---- a chain

static void epilogue(Expand *e, Chain *c) {
    const TileOp *loop = c->loop[c->n - 1];
    Ops late = of_stage_1(e, loop);
    for (int a = 0, n = 0; a < late.n; a++) {
        const TileOp *op = late.op[a];
        if (op->kind == TILE_LOAD) {
            if (!op->peels) fill(e, op, last_tile(e, c), loop->axis);
            continue;
        }
        stage_1(e, c, loop, &late, n++, last_tile(e, c));
        TileOp *made = e->block->last;
        made->lands = 0;
        if (op->first)
            only_first(made, op->first, op->axis, sees_few(e, c, last_step(e, c), op->first));
    }
}

static void begin(Expand *e, Chain *c) {
    for (TileOp *op = c->loop[0]->body.first; op; op = op->next)
        if (op->kind == TILE_LOAD && does(e, op) && !op->peels) fill_first(e, c, op);
    for (int i = 0; i < c->ncarry; i++)
        c->state[i] = now(e, c->loop[0]->args.data[c->carry[i].carried]);
}

static void chain(Expand *e, Chain *c) {
    plan_carries(e, c);
    const TileOp *around = e->block->last;
    if (c->staged)
        prologue(e, c);
    else
        begin(e, c);
    for (int j = 0; j < c->n; j++) steady(e, c, j);
    TileOp *first = around ? around->next : e->block->first;
    if (c->staged && first) first->begins = true;
    if (c->staged) epilogue(e, c);
    const TileOp *body = c->loop[c->n - 1], *last = c->n == 1 && c->first ? c->first : body;
    if (c->none) last = c->none;
    for (int i = 0; i < last->results.n; i++)
        e->to[last->results.data[i]->id] = e->to[body->body.last->args.data[i]->id];
    for (int i = 0; i < c->ncarry; i++)
        if (c->carry[i].carried >= 0)
            e->to[last->results.data[c->carry[i].carried]->id] = c->state[i];
}

// ---- tiles of the grid

static void add_item(Expand *e, TilePlace at, TileOp *op, bool copy) {
    Item item = {at, op, copy};
    VEC_PUSH(e->p->arena, &e->items, item);
    int i = e->items.n - 1;
    for (; i && e->items.data[i - 1].at.order > at.order; i--)
        e->items.data[i] = e->items.data[i - 1];
    e->items.data[i] = item;
}

static void add_copies(Expand *e, TileOp *loop) {
    for (TileOp *op = loop->body.first; op; op = op->next)
        if (op->peels && does(e, op)) add_item(e, op->peeled, op, true);
}

static void add_items(Expand *e) {
    const TileOp *before = NULL;
    memset(&e->items, 0, sizeof e->items);
    for (TileOp *op = e->k->body.first; op; before = op, op = op->next) {
        if (!does(e, op) && !takes(e, op)) continue;
        bool more = goes_on(before, op);
        TilePlace at = op->kind == TILE_LOOP ? (TilePlace){e->staged, 0} : op->place;
        if (op->kind == TILE_LOOP && !more) add_copies(e, op);
        if (!more) add_item(e, at, op, false);
    }
    int next = e->k->schedule.next;
    if (!e->own) add_item(e, (TilePlace){0, next ? next : INT_MAX}, NULL, false);
}

static void copy_of_step(Expand *e, TileOp *op) {
    Chain c = chain_from(e, op->block->owner);
    const Ex *last = last_step(e, &c);
    bool behind = op->place.stage > 0;
    if (op->kind == TILE_LOAD) {
        if (c.ahead)
            fill_first(e, &c, op);
        else
            fill(e, op, behind ? last_tile(e, &c) : first_tile(e, &c), c.loop[0]->axis);
        return;
    }
    TileOp *n = copy(e, op);
    if (op->first)
        only_first(n, op->first, op->axis,
                   sees_few(e, &c, behind ? last : begin_of(&c), op->first));
}

static void do_item(Expand *e, const Item *item) {
    TileOp *op = item->op;
    e->when = e->staged && !item->at.stage ? ex_symbol(e->x, SYM_VALID) : NULL;
    if (!op) {
        append(e, TILE_NEXT, (Span){0});
        e->behind = e->staged;
        memset(e->view, 0, sizeof *e->view * (size_t)e->nvalues);
        return;
    }
    bool behind = e->behind;
    e->behind = behind && item->at.stage;
    see_own(e, &e->k->body, op);
    if (item->copy) {
        copy_of_step(e, op);
    } else if (op->kind == TILE_LOOP) {
        Chain c = chain_from(e, op);
        chain(e, &c);
    } else if (op->kind == TILE_LOAD && pass_is_piped(op->results.data[0])) {
        load(e, op, NULL, 0);
    } else {
        named(copy(e, op), op);
    }
    e->behind = behind;
    e->when = NULL;
}

// What is made of the next tile goes on to it.
static int ahead(Expand *e, TileValue **out) {
    int n = 0;
    for (int i = 0; i < e->items.n; i++) {
        const Item *item = &e->items.data[i];
        if (!item->op || item->at.stage || !e->staged) continue;
        for (int a = 0; a < item->op->args.n; a++)
            e->held[item->op->args.data[a]->id] |= pass_is_piped(item->op->args.data[a]);
        for (int r = 0; r < item->op->results.n && item->op->kind != TILE_LOAD; r++)
            out[n++] = item->op->results.data[r];
    }
    return n;
}

static void tile_body(Expand *e) {
    memset(e->view, 0, sizeof *e->view * (size_t)e->nvalues);
    e->behind = false;
    for (const TileOp *op = e->k->body.first; op; op = op->next)
        if (op->kind == TILE_LOAD && e->held[op->results.data[0]->id])
            view_of(e, op->results.data[0]);
    for (int i = 0; i < e->items.n; i++) do_item(e, &e->items.data[i]);
    e->behind = false;
}

static void begin_role(Expand *e, TileOp *op) {
    e->role = op->role;
    memset(e->to, 0, sizeof *e->to * (size_t)e->nvalues);
    memset(e->view, 0, sizeof *e->view * (size_t)e->nvalues);
    memset(e->held, 0, (size_t)e->nvalues);
    e->block = &op->body;
    add_items(e);
}

static void role(Expand *e, TileOp *op) {
    TileValue **made = ARENA_ARRAY(e->p->arena, TileValue *, e->nvalues + 1);
    begin_role(e, op);
    for (int i = 0; i < e->items.n; i++)
        if (!e->items.data[i].at.stage && (e->staged || !e->items.data[i].op))
            do_item(e, &e->items.data[i]);
    int n = ahead(e, made);
    TileOp *tiles = append(e, TILE_TILES, (Span){0});
    for (int i = 0; i < n; i++) {
        TileValue *init = now(e, made[i]);
        tile_arg(e->p, tiles, init);
        TileValue *v = tile_value(e->p, e->k, init->name, init->dtype, init->axis, init->rank);
        v->def = tiles;
        VEC_PUSH(e->p->arena, &tiles->carried, v);
        e->to[made[i]->id] = v;
    }
    e->block = &tiles->body;
    tile_body(e);
    for (int i = 0; i < n; i++) made[i] = now(e, made[i]);
    yield(e, made, n);
    for (int i = 0; i < n; i++)
        tile_result(e->p, e->k, tiles, made[i]->name, made[i]->dtype, made[i]->axis, made[i]->rank);
}

// The only one: its body is the kernel's, of one tile of the grid.
static void only_role(Expand *e, TileOp *op) {
    e->staged = false;
    begin_role(e, op);
    for (int i = 0; i < e->items.n; i++) do_item(e, &e->items.data[i]);
}

// ---- the kernel

bool pass_is_zero(const TileValue *v) {
    const TileOp *def = v->def;
    return def->kind == TILE_MAP && def->outs.n == 1 && ex_is_f32(def->outs.data[0].body, 0);
}

static bool goes_ahead(const TileKernel *k) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (op->peels || (op->block == &k->body && op->place.stage)) return true;
    return false;
}

static void move(TileBlock *from, TileOp *before) {
    while (from->first) {
        TileOp *op = from->first;
        tile_unlink(op);
        tile_insert_before(before, op);
    }
}

static void forget_places(TileBlock *b) {
    for (TileOp *op = tile_next(b, NULL); op; op = tile_next(b, op)) {
        if (op->kind != TILE_ROLE) op->role = NULL;
        op->place = op->peeled = (TilePlace){0};
        op->peels = op->turn = op->holds = op->begins = false;
        if (op->kind == TILE_MMA) op->lands = op->after = 0;
    }
}

// What lies nowhere else is in registers.
static void give_homes(TileKernel *k) {
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        for (int i = 0; i < op->results.n; i++)
            if (op->results.data[i]->home == HOME_ANY) op->results.data[i]->home = HOME_FRAGMENT;
        for (int i = 0; i < op->carried.n; i++) op->carried.data[i]->home = HOME_FRAGMENT;
    }
}

void pass_expand(TileProgram *p, TileKernel *k) {
    Arena *a = p->arena;
    int n = k->nvalues;
    Expand e = {.p = p, .k = k, .x = p->pool, .nvalues = n, .staged = goes_ahead(k)};
    e.pipe = ARENA_ARRAY(a, TileValue *, n + 1);
    e.to = ARENA_ARRAY(a, TileValue *, n + 1);
    e.view = ARENA_ARRAY(a, TileValue *, n + 1);
    e.held = ARENA_ARRAY(a, bool, n + 1);
    TileOp *roles = k->body.first;
    while (roles && roles->kind != TILE_ROLE) roles = roles->next;
    if (!roles) return;
    e.own = !roles->next;
    e.many = roles->next && roles->next->next;
    TileBlock pipes = {0};
    pass_pipes(p, k, &pipes, e.pipe, e.own);
    for (TileOp *op = roles; op && !e.own; op = op->next) role(&e, op);
    if (e.own) only_role(&e, roles);
    while (k->body.first != roles) tile_unlink(k->body.first);
    move(&pipes, roles);
    k->schedule.next = 0;
    for (TileOp *op = roles; op && !e.own; op = op->next) pass_waits(p, k, op);
    if (e.own) {
        move(&roles->body, roles);
        tile_unlink(roles);
        pass_wait_copies(p, k);
    }
    forget_places(&k->body);
    give_homes(k);
}
