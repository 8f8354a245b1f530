// sm90_assign.c: which role does what of a kernel on Hopper, and when.
//
// In: a kernel with its extents, in classes. Out: places (TilePlace) and two roles without bodies: a
// producer copies tiles, a consumer of several warpgroups takes them (expand.c). Two assignments:
//
// * Products overlap with maps, of a kernel that is one sweep. A step loads k, multiplies q by it, maps,
//   loads v and adds a product of the weights to one accumulator, perhaps rescaled before. The last product
//   is of stage 1, everything else of stage 0: the scores of a step are computed beside the sum of the step
//   before, and the maps under both. Those of a tile's first step are computed beside the end of the tile
//   before. (Where q has one stage the end goes before them: the next queries are on their way meanwhile.)
//
//       k 0:1 / 0:2   s 0:1 / 0:5 turn   v 1:2 / 1:3   o 1:4 turn   maps 0:..   q 0:4   end of the tile 1:..
//
//   Where no weight is made beside the sum (`after` is 0) the sum goes before the scores, and its registers are free
//   when they are there: for three warpgroups, whose products are work enough beside the weights of one.
//
//   Behind a loop in whose tiles shifts stay there is one of no steps, whose maps are those of a tile
//   in which they do not: a step ends with them in a `redo`, and the first step of all has them alone.
// * Anything else: all of stage 0, by text (sm90_roles.c). Copies run ahead as far as the pipes have stages.
#include "passes/derive/large_unit.h"
#include "passes/schedule/expand.h"
#include "passes/schedule/sm90.h"
#include "passes/schedule/strips.h"

#include <assert.h>

enum { MAX_CHAIN = 6, MAX_COLUMNS = 4 };

// Orders in the body of the loop over tiles: the loops stand at 0.
enum { NEXT = 1, END_EARLY, FIRST_K, LAST_V, NEXT_Q, FIRST_S, END };
// And in a step. Maps have the orders from MAPS on, the rescaling and the redo those behind.
enum { K = 1, DENSE, S, LATE, V, O, COLUMNS, EARLY, MAPS };
// What belongs to the sum goes before K where no weight is made beside it (`after` is 0).
enum { BEFORE = -O };

typedef struct Step { // the parts of a loop's body
    TileOp *loop, *load_k, *load_v, *dot, *sum, *yield;
    TileOp *rescale;      // NULL: none
    int acc;              // which of the carried values
    int ncolumns;         // maps of k alone, a number for each key (norms)
    struct Step *follows; // of no steps: the maps where shifts do not stay; NULL: they do not here
} Step;

typedef struct Sweep {
    Sm90 *s;
    TileOp *load_q, *bound; // bound NULL: shifts follow their extrema
    Step step[MAX_CHAIN], followers[MAX_CHAIN];
    int nsteps, nfollowers;
    bool skips, goes_on; // a state is loaded
    int sums;            // added to the orders of what belongs to the sum: 0 or BEFORE
} Sweep;

// ---- recognizing

static bool is_map_of(const TileValue *v, const TileOp *loop) {
    return v->def && v->def->kind == TILE_MAP && v->def->block == &loop->body;
}

static bool is_column(const Step *st, const TileOp *op) {
    return op->kind == TILE_MAP && tile_uses(op, st->load_k->results.data[0]);
}

// A tile of numbers for queries and keys (dense.c).
static bool is_dense(const Sweep *f, const TileOp *op) {
    return sm90_piped(op) && tile_has_axis(op->results.data[0], tile_grid_axis(f->s->k));
}

static bool is_sum(const TileOp *op) { return op->kind == TILE_MMA && op->args.n > 2; }

static bool is_for_sum(const TileOp *load) {
    const TileOp *op = load->next;
    while (op && !(is_sum(op) && tile_uses(op, load->results.data[0]))) op = op->next;
    return op != NULL;
}

// One product of each kind, and a tile for each, in any order.
static bool sort_ops(const Sweep *f, Step *st) {
    for (TileOp *op = st->loop->body.first; op; op = op->next) {
        TileOp **place = NULL;
        if (is_dense(f, op)) continue;
        if (sm90_piped(op))
            place = is_for_sum(op) ? &st->load_v : &st->load_k;
        else if (op->kind == TILE_MMA)
            place = is_sum(op) ? &st->sum : &st->dot;
        else if (op->kind == TILE_YIELD)
            place = &st->yield;
        else if (op->kind != TILE_MAP)
            return false;
        if (place && *place) return false;
        if (place) *place = op;
    }
    return st->load_k && st->load_v && st->dot && st->sum;
}

// Maps of k give a number for each key and need nothing else of the step.
static bool match_columns(Step *st) {
    for (TileOp *op = st->loop->body.first; op; op = op->next) {
        if (!is_column(st, op)) continue;
        if (++st->ncolumns > MAX_COLUMNS || op->args.n != 1 || op->results.n != 1) return false;
        if (op->results.data[0]->rank != 1) return false;
    }
    return true;
}

// The loads are for the products and nothing else but norms; the first product is of q.
static bool match_products(const Sweep *f, const Step *st) {
    const TileValue *k = st->load_k->results.data[0], *v = st->load_v->results.data[0];
    const TileValue *q = f->load_q->results.data[0];
    if (st->dot->args.data[0] != q || st->dot->args.data[1] != k) return false;
    if (st->sum->args.data[1] != v || !is_map_of(st->sum->args.data[0], st->loop)) return false;
    return tile_uses(st->loop, k) == 1 + st->ncolumns && tile_uses(st->loop, v) == 1 &&
           tile_uses(st->loop, q) == 1;
}

// The accumulator is touched by its rescaling and the product only.
static bool match_sum(Step *st) {
    const TileValue *sum = st->sum->results.data[0];
    TileValue *into = st->sum->args.data[2];
    st->acc = -1;
    for (int i = 0; i < st->yield->args.n; i++)
        if (st->yield->args.data[i] == sum) st->acc = i;
    if (st->acc < 0 || tile_uses(st->loop, sum) != 1) return false;
    const TileValue *acc = st->loop->carried.data[st->acc];
    if (tile_uses(st->loop, acc) != 1) return false;
    if (into == acc) return true;
    if (!is_map_of(into, st->loop) || into->def->results.n != 1) return false;
    st->rescale = into->def;
    return tile_uses(st->rescale, acc) == 1 && tile_uses(st->loop, into) == 1;
}

static bool match_step(Sweep *f, TileOp *loop) {
    if (f->nsteps == MAX_CHAIN) return false;
    Step *st = &f->step[f->nsteps++];
    *st = (Step){.loop = loop};
    f->skips |= loop->where != NULL;
    if (!sort_ops(f, st) || !match_columns(st) || !match_products(f, st) || !match_sum(st))
        return false;
    const Step *head = &f->step[0];
    return st->load_k->tensor == head->load_k->tensor &&
           st->load_v->tensor == head->load_v->tensor && st->acc == head->acc &&
           (!st->rescale == !head->rescale || f->s->shape.fixed_shift) &&
           st->ncolumns == head->ncolumns;
}

// What a test knows of a key by its position alone.
static bool is_of_keys(const Sweep *f, const TileOp *op) {
    return op->kind == TILE_MAP && !op->args.n && op->results.n == 1 &&
           !tile_has_axis(op->results.data[0], tile_grid_axis(f->s->k));
}

// What needs no scores: it is read or made beside the products.
static bool is_early(const Sweep *f, const TileOp *op) {
    return pass_is_strip(op) || pass_reads_dense(op) || is_of_keys(f, op);
}

// A step is done again for some rows (tile_verify_roles.c): all that it makes is made for each row by itself.
static bool is_redone(const Sweep *f, const Step *st) {
    int rows = tile_grid_axis(f->s->k);
    for (const TileOp *op = st->loop->body.first; op; op = op->next) {
        if (op->kind != TILE_MAP || is_column(st, op) || is_early(f, op)) continue;
        for (int i = 0; i < op->results.n; i++)
            if (!tile_has_axis(op->results.data[i], rows)) return false;
    }
    return true;
}

static bool match_op(Sweep *f, TileOp *op) {
    switch ((int)op->kind) {
    case TILE_LOOP: {
        bool chain = !f->nsteps || (op->prev->kind == TILE_LOOP && pass_follows(op->prev, op));
        return chain && match_step(f, op);
    }
    case TILE_LOAD:
        if (!sm90_piped(op)) return f->goes_on = true, !f->nsteps;
        if (f->load_q) return false;
        f->load_q = op;
        return true;
    case TILE_BOUND: f->bound = op; return f->nsteps > 0;
    case TILE_STORE: return f->nsteps > 0;
    default: return op->kind == TILE_MAP;
    }
}

// Those of no steps, where shifts stay in the loop before.
static bool match_followers(Sweep *f) {
    int n = 0;
    for (int i = 0; i < f->nsteps; i++) {
        Step *st = &f->step[i];
        if (!n || st->loop->from != st->loop->to) {
            f->step[n++] = *st;
            continue;
        }
        Step *like = &f->followers[f->nfollowers++];
        *like = *st;
        if (f->step[n - 1].loop->tiles != like->loop->tiles || !is_redone(f, like)) return false;
        f->step[n - 1].follows = like;
    }
    f->nsteps = n;
    return true;
}

// What is done of a tile after its loops does not read q, which is not held so long.
static bool match_chain(Sweep *f) {
    pass_gather_loops(f->s->k);
    for (TileOp *op = f->s->k->body.first; op; op = op->next) {
        if (op->kind == TILE_LOOP && !f->load_q) return false;
        if (!match_op(f, op)) return false;
        if (f->nsteps && op->kind != TILE_LOOP && tile_uses(op, f->load_q->results.data[0]))
            return false;
    }
    if (!f->nsteps || f->step[0].loop->tiles != CLASS_PARTIAL) return false;
    return !f->bound || match_followers(f);
}

bool sm90_overlaps(Sm90 *s) {
    Sweep f = {.s = s};
    return match_chain(&f);
}

// ---- a step in which shifts stay and whose weights came out too large. Then the step's maps are done again
// as where they do not: of the scores, which are still in registers, and of what was there before the step.

// What both steps make of the tile, whatever shifts do: numbers of keys, strips, dense inputs.
static TileValue *shared_of(Sweep *f, const Step *st, const TileOp *op) {
    bool column = is_column(st->follows, op), dense = is_dense(f, op);
    for (TileOp *own = st->loop->body.first; own; own = own->next) {
        if (dense && is_dense(f, own) && own->tensor == op->tensor) return own->results.data[0];
        if (dense || own->kind != TILE_MAP) continue;
        bool early = is_early(f, own) && !own->args.n && !op->args.n && own->naxes == op->naxes;
        if (column ? is_column(st, own) : early && !is_column(st, own))
            if (own->outs.data[0].body == op->outs.data[0].body) return own->results.data[0];
    }
    return NULL;
}

static void stands_for(TileOp *op, const TileValue *from, TileValue *to) {
    for (int i = 0; i < op->args.n; i++)
        if (op->args.data[i] == from) op->args.data[i] = to;
    tile_replace(&op->body, from, to);
}

// What a step leaves, as values of its body: what it yields, what the product adds to, the weights.
static TileValue *left_of(const Step *st, int i) {
    if (i == st->yield->args.n) return st->sum->args.data[0];
    return i == st->acc ? st->sum->args.data[2] : st->yield->args.data[i];
}

typedef struct Unit { // of a step's exponents
    const TileOp *map;
    TileValue *shift; // by whose size it is chosen
    int rows;
    bool others; // something else chooses, too
} Unit;

static void find_shift(void *ctx, const Ex *x) {
    Unit *u = ctx;
    TileValue *v = x->op == EX_SYM && x->sym == SYM_PARAM ? u->map->args.data[x->index] : NULL;
    u->others |= !v || v->rank != 1 || v->axis[0] != u->rows || (u->shift && u->shift != v);
    u->shift = v;
}

static const Ex *without_choice(void *ctx, const Ex *e) { return large_left_out(ctx, e); }

// Shifts so large that their size chooses the unit of the exponents hardly ever are: a step that has one is done again, and
// no other step chooses.
static void choose_no_unit(Sweep *f, Step *st, TileOp *redo) {
    Unit u = {.rows = tile_grid_axis(f->s->k)};
    for (TileOp *op = st->loop->body.first; op; op = op->next)
        for (int i = 0; u.map = op, i < op->outs.n; i++)
            large_visit(op->outs.data[i].body, find_shift, &u);
    if (!u.shift || u.others) return;
    for (TileOp *op = st->loop->body.first; op; op = op->next)
        if (op->kind == TILE_MAP) tile_map_exprs(op, without_choice, f->s->p->pool);
    redo->shift_bits = f->s->p->dtype == DT_F16 ? LARGE_FROM_HALF : LARGE_FROM;
    tile_arg(f->s->p, redo, u.shift);
}

static void redo(Sweep *f, Step *st) {
    TileProgram *p = f->s->p;
    TileKernel *k = f->s->k;
    const Step *like = st->follows;
    const TileOp *last = f->followers[f->nfollowers - 1].loop;
    int n = st->yield->args.n + 1;
    TileOp *again = tile_clone(p, k, like->loop, NULL, NULL), *next;
    TileOp *op = pass_op_before(p, st->yield, TILE_REDO);
    op->bits = f->bound->bits;
    for (int i = 0; i < n - 1; i++)
        if (last->results.data[i] == f->bound->args.data[0]) tile_arg(p, op, left_of(st, i));
    Step copy = {.loop = again};
    bool good = sort_ops(f, &copy) && match_columns(&copy) && match_sum(&copy);
    assert(good && "it is as what was matched");
    (void)good;
    TileOp *out = tile_op(p, k, NULL, TILE_YIELD, st->loop->span);
    for (int i = 0; i < n; i++) {
        TileValue *v = left_of(st, i);
        tile_arg(p, op, v);
        tile_arg(p, out, left_of(&copy, i));
        tile_result(p, k, op, v->name, v->dtype, v->axis, v->rank);
    }
    choose_no_unit(f, st, op);
    const TileOp *original = like->loop->body.first;
    for (TileOp *in = again->body.first; in; in = next, original = original->next) {
        next = in->next;
        bool early = is_early(f, in), column = is_column(like, original);
        bool shared = early || column || is_dense(f, original);
        TileValue *own = shared ? shared_of(f, st, original) : NULL;
        if (in->kind != TILE_MAP && !own) continue;
        tile_unlink(in);
        if (own) {
            for (TileOp *u = next; u; u = u->next) stands_for(u, in->results.data[0], own);
            for (TileOp *u = op->body.first; u; u = u->next)
                stands_for(u, in->results.data[0], own);
        } else if (early) {
            tile_insert_before(op, in);
        } else {
            tile_append(&op->body, in);
        }
    }
    tile_append(&op->body, out);
    for (TileOp *in = op->body.first; in; in = in->next) {
        stands_for(in, copy.dot->results.data[0], st->dot->results.data[0]);
        for (int i = 0; i < again->carried.n; i++)
            stands_for(in, again->carried.data[i], st->loop->carried.data[i]);
    }
    sm90_root_factors(p, &op->body);
    for (int i = 0; i < n; i++) {
        TileValue *r = op->results.data[i];
        if (i == n - 1)
            st->sum->args.data[0] = r;
        else if (i == st->acc)
            st->sum->args.data[2] = r;
        else
            st->yield->args.data[i] = r;
    }
    tile_unlink(st->sum); // it stands behind what it is made of
    tile_insert_before(st->yield, st->sum);
}

// ---- places

static void peel(TileOp *op, int stage, int order) {
    op->peels = true;
    op->peeled = (TilePlace){stage, order};
}

static void pipe_of(TileOp *load, int stages) {
    load->results.data[0]->home = HOME_SHARED;
    load->results.data[0]->stages = stages;
}

static void place_maps(Sweep *f, Step *st) {
    const Knobs *shape = &f->s->shape;
    int order = MAPS;
    const TileOp *weights = st->sum->args.data[0]->def;
    for (TileOp *op = st->loop->body.first; op; op = op->next) {
        if (op->kind != TILE_MAP || op == st->rescale || op->role) continue;
        bool column = is_column(st, op);
        if (column) pass_to_shared(op);
        pass_place(op, "consumer", 0, column ? COLUMNS : is_early(f, op) ? EARLY : order++);
        if (op == weights && !f->sums) st->sum->lands = op->place.order;
    }
    if (st->rescale && shape->late_rescale) {
        pass_place(st->rescale, "consumer", 1, LATE + f->sums);
        st->rescale->turn = shape->turns;
    } else if (st->rescale)
        pass_place(st->rescale, "consumer", 0, order++);
    st->sum->after = shape->after;
}

static void place_step(Sweep *f, Step *st) {
    const Knobs *shape = &f->s->shape;
    pass_place(st->load_k, "producer", 0, K);
    peel(st->load_k, 0, FIRST_K);
    pass_place(st->load_v, "producer", !f->skips, V + f->sums);
    if (!f->skips) peel(st->load_v, 1, LAST_V);
    pipe_of(st->load_k, shape->stages);
    pipe_of(st->load_v, shape->stages);
    pass_place(st->dot, "consumer", 0, S);
    peel(st->dot, 0, FIRST_S);
    pass_place(st->sum, "consumer", 1, O + f->sums);
    st->dot->turn = st->sum->turn = st->load_v->turn = shape->turns;
    for (TileOp *op = st->loop->body.first; op; op = op->next) {
        if (!is_dense(f, op)) continue;
        pass_place(op, "producer", 0, DENSE);
        pipe_of(op, shape->stages);
    }
    if (shape->narrow && !f->skips) {
        st->dot->first = st->sum->first = shape->narrow;
        st->dot->axis = st->sum->axis = st->loop->axis;
    }
    place_maps(f, st);
    if (st->follows) {
        redo(f, st);
        for (TileOp *op = st->loop->body.first; op; op = op->next)
            if (!op->role && op->kind != TILE_YIELD)
                pass_place(op, "consumer", 0, op->kind == TILE_REDO ? MAPS + 100 : EARLY);
    }
}

// For a second tile of narrow elements beside the weights.
static bool has_room(const Sweep *f) {
    const Sm90 *s = f->s;
    int needs = sm90_registers(s->p, s->k, s->shape) + s->shape.keys / 4;
    return needs <= s->shape.registers;
}

// Where nothing is masked but what lies behind the last key, only a tile of that end is partial, and the
// first step is a full tile as likely as not.
static bool may_begin_full(const Sweep *f) {
    const Step *st = &f->step[0];
    const Sm90 *s = f->s;
    bool acc_waits = !st->rescale || s->shape.late_rescale ||
                     (st->rescale->outs.data[0].body->op == EX_MUL &&
                      pass_is_zero(st->loop->args.data[st->acc]));
    return !sm90_is_masked(s->k) && f->nsteps == 2 && f->step[1].loop->tiles == CLASS_FULL &&
           !st->ncolumns && acc_waits && has_room(f);
}

static void place_sweep(Sweep *f) {
    const Knobs *shape = &f->s->shape;
    TileKernel *k = f->s->k;
    bool waits_for_q = shape->queries == 1, behind = false;
    if (may_begin_full(f)) f->step[1].loop->begins = true;
    f->sums = shape->after ? 0 : BEFORE;
    bool apart = has_room(f);
    for (int i = 0; i < f->nsteps && apart; i++)
        if (f->step[i].loop->tiles == CLASS_FULL) pass_read_dense(f->s->p, k, f->step[i].loop);
    for (int i = 0; i < f->nfollowers && apart; i++)
        if (f->followers[i].loop->tiles == CLASS_FULL)
            pass_read_dense(f->s->p, k, f->followers[i].loop);
    for (int i = 0; i < f->nsteps && f->nfollowers && f->goes_on; i++) // from shifts that stayed
        if (!f->step[i].follows) sm90_root_factors(f->s->p, &f->step[i].loop->body);
    for (int i = 0; i < f->nsteps; i++) place_step(f, &f->step[i]);
    for (int i = 0; i < f->nfollowers; i++) {
        Step *first = &f->followers[i]; // a `redo` has roots already
        if (f->goes_on && first->loop->tiles == CLASS_PARTIAL)
            sm90_root_factors(f->s->p, &first->loop->body);
        place_step(f, first);
    }
    for (TileOp *op = k->body.first; op; op = op->next) {
        behind |= op->kind == TILE_LOOP;
        if (op->kind != TILE_LOOP && op != f->load_q && op != f->bound)
            pass_place(op, "consumer", 1, !behind ? 0 : waits_for_q ? END_EARLY : END);
    }
    pass_place(f->load_q, "producer", 0, NEXT_Q);
    pipe_of(f->load_q, shape->queries);
    if (f->bound) tile_unlink(f->bound);
    k->schedule.next = NEXT;
}

void sm90_assign(Sm90 *s, bool overlap) {
    Sweep f = {.s = s};
    s->role[0] = (Sm90Role){"consumer", s->shape.warpgroups, s->shape.registers};
    s->nroles = 1;
    if (overlap && match_chain(&f)) {
        place_sweep(&f);
        sm90_add_roles(s);
        return;
    }
    assert(!tile_has(&s->k->body, TILE_BOUND) && "no loop here does steps again");
    sm90_assign_roles(s, NULL, 0);
}
