// sm90_flat.c: the flat form of a Hopper schedule, for kernels that are one sweep.
//
// In: a kernel of maps, one chain of loops over the tiles of keys (by class), and maps and stores
// after it. Each loop's step loads k, multiplies q by it, maps, loads v and adds a product of the
// weights to one accumulator, perhaps rescaled before:
//
//     dot(t) = q . k(t);   p(t), c(t), .. = maps(dot(t), ..);   acc(t) = p(t) . v(t) + acc(t-1) *
//     c(t)
//
// Out: the consumer has two products in flight at a time, the scores of one step and the sum of the
// previous step, and computes maps meanwhile. The steps of all tiles of a block are one sequence: the
// first scores of a tile are computed beside the end of the previous tile:
//
//     next; dot = q . k(0)
//     tiles carry dot {
//         p, .. = at N: 0 { maps(dot) }
//         loop t = 1.. carry p, acc, .. {
//             dot = async q . k(t);  sum = async p . v(t-1) + acc
//             wait for dot; drop k;  p', c, .. = maps(dot) (wait for sum among them); drop v
//             acc = sum * c }
//         sum = async p . v(last);  next;  dot = async q . k(0)       of the next tile
//         wait for sum; the end of the previous tile; wait for dot }
//
// (where q has one stage the end goes before `dot`: the next queries are on their way meanwhile).
// A tile without keys has one step all the same, of the keys behind the last one: all masked. Where
// a loop skips steps (`where`) its first step is never skipped: it costs a tile of masked keys.
//
// Where shifts stay in full tiles the chain ends with a loop of no steps, whose maps are those of a full
// tile in which they do not: a step of the others ends with them in a `redo`.
#include "passes/schedule/sm90.h"
#include "passes/schedule/strips.h"

#include <string.h>

enum { MAX_CHAIN = 4, MAX_COLUMNS = 4 };

typedef struct Step { // the parts of a loop's body
    TileOp *loop, *load_k, *load_v, *dot, *sum, *weights, *yield;
    TileOp *rescale;              // NULL: none
    int acc;                      // which of the carried values
    uint64_t from_step;           // bit i: operand i of rescale is made in the step
    TileOp *columns[MAX_COLUMNS]; // maps of k alone, a number for each key (norms)
    int ncolumns;
} Step;

typedef struct Flat {
    Sm90 *s;
    TileOp **ops;
    int nops;
    TileOp *load_q;
    int first, last; // of ops: the chain
    TileOp *bound;   // NULL: shifts follow their extrema
    Step step[MAX_CHAIN];
    Step
        follows; // where they stay in full tiles: a step of these in which they do not; no loop: they never do
    int nsteps;
    bool skips;
    // while building
    TileValue **to; // by id: what stands for a value of the kernel
    int nvalues;
    TileValue *q, *dot; // in the tile: the view; its first scores
    TileValue **state;  // what goes from step to step (carries_of)
    int nstate;
} Flat;

// ---- recognizing

static int uses_of(const TileOp *op, const TileValue *v) {
    int n = 0;
    for (int i = 0; i < op->args.n; i++) n += op->args.data[i] == v;
    for (const TileOp *in = op->body.first; in; in = in->next) n += uses_of(in, v);
    return n;
}

static bool is_map_of(const TileValue *v, const TileOp *loop) {
    return v->def && v->def->kind == TILE_MAP && v->def->block == &loop->body;
}

static bool sort_ops(Step *st) {
    for (TileOp *op = st->loop->body.first; op; op = op->next) {
        TileOp **place = NULL;
        if (sm90_piped(op))
            place = !st->load_k ? &st->load_k : &st->load_v;
        else if (op->kind == TILE_MMA)
            place = !st->dot ? &st->dot : &st->sum;
        else if (op->kind == TILE_YIELD)
            place = &st->yield;
        else if (op->kind != TILE_MAP)
            return false;
        if (place && *place) return false;
        if (place) *place = op;
    }
    return st->load_v && st->sum && st->yield;
}

// Maps of k give a number for each key and need nothing else of the step.
static bool match_columns(Step *st) {
    const TileValue *k = st->load_k->results.data[0];
    for (TileOp *op = st->loop->body.first; op; op = op->next) {
        if (op->kind != TILE_MAP || !uses_of(op, k)) continue;
        if (st->ncolumns == MAX_COLUMNS || op->args.n != 1 || op->results.n != 1) return false;
        if (op->results.data[0]->rank != 1) return false;
        st->columns[st->ncolumns++] = op;
    }
    return true;
}

static bool is_column(const Step *st, const TileOp *op) {
    for (int i = 0; i < st->ncolumns; i++)
        if (st->columns[i] == op) return true;
    return false;
}

// The loads are for the products and nothing else but norms; the first product is of q.
static bool match_products(const Flat *f, const Step *st) {
    const TileValue *k = st->load_k->results.data[0], *v = st->load_v->results.data[0];
    const TileValue *q = f->load_q->results.data[0];
    if (st->dot->args.n != 2 || st->sum->args.n != 3) return false;
    if (st->dot->args.data[0] != q || st->dot->args.data[1] != k) return false;
    if (st->sum->args.data[1] != v || !is_map_of(st->sum->args.data[0], st->loop)) return false;
    return uses_of(st->loop, k) == 1 + st->ncolumns && uses_of(st->loop, v) == 1 &&
           uses_of(st->loop, q) == 1;
}

// The accumulator is touched by its rescaling and the product only.
static bool match_sum(Step *st) {
    const TileValue *sum = st->sum->results.data[0];
    TileValue *into = st->sum->args.data[2];
    st->acc = -1;
    for (int i = 0; i < st->yield->args.n; i++)
        if (st->yield->args.data[i] == sum) st->acc = i;
    if (st->acc < 0 || uses_of(st->loop, sum) != 1) return false;
    const TileValue *acc = st->loop->carried.data[st->acc];
    if (uses_of(st->loop, acc) != 1) return false;
    if (into == acc) return true;
    if (!is_map_of(into, st->loop) || into->def->results.n != 1) return false;
    st->rescale = into->def;
    for (int i = 0; i < st->rescale->args.n; i++)
        if (is_map_of(st->rescale->args.data[i], st->loop)) st->from_step |= UINT64_C(1) << i;
    return uses_of(st->rescale, acc) == 1 && uses_of(st->loop, into) == 1;
}

static bool match_step(Flat *f, TileOp *loop) {
    if (f->nsteps == MAX_CHAIN) return false;
    Step *st = &f->step[f->nsteps++];
    *st = (Step){.loop = loop};
    f->skips |= loop->where != NULL;
    if (!sort_ops(st) || !match_columns(st) || !match_products(f, st) || !match_sum(st))
        return false;
    st->weights = st->sum->args.data[0]->def;
    const Step *head = &f->step[0];
    return st->load_k->tensor == head->load_k->tensor &&
           st->load_v->tensor == head->load_v->tensor && st->acc == head->acc &&
           (!st->rescale == !head->rescale || f->s->shape.fixed_shift) &&
           st->ncolumns == head->ncolumns;
}

// A step is done again for some rows (tile_verify_roles.c): all that it makes is made for each row by itself.
static bool is_redone(const Flat *f, const Step *st) {
    int rows = tile_grid_axis(f->s->k);
    for (const TileOp *op = st->loop->body.first; op; op = op->next) {
        if (op->kind != TILE_MAP || is_column(st, op) || pass_is_strip(op)) continue;
        for (int i = 0; i < op->results.n; i++)
            if (!tile_has_axis(op->results.data[i], rows)) return false;
    }
    return true;
}

// A loop continues where the previous one ends, with its results.
static bool follows(const TileOp *before, const TileOp *loop) {
    if (loop->axis != before->axis || loop->from != before->to || loop->args.n != before->results.n)
        return false;
    for (int i = 0; i < loop->args.n; i++)
        if (loop->args.data[i] != before->results.data[i]) return false;
    return true;
}

static bool match_chain(Flat *f) {
    for (int i = 0; i < f->nops; i++)
        if (sm90_piped(f->ops[i])) {
            if (f->load_q) return false;
            f->load_q = f->ops[i];
        }
    if (!f->load_q) return false;
    f->first = -1;
    for (int i = 0; i < f->nops; i++) {
        TileOp *op = f->ops[i];
        if (op->kind == TILE_LOOP) {
            if (f->first < 0) f->first = i;
            if (f->nsteps && (f->last != i - 1 || !follows(f->ops[i - 1], op))) return false;
            if (!match_step(f, op)) return false;
            f->last = i;
        } else if (op->kind == TILE_BOUND && f->nsteps) {
            f->bound = op;
        } else if (op->kind != TILE_MAP && op != f->load_q &&
                   !(op->kind == TILE_STORE && f->nsteps)) {
            return false;
        }
    }
    if (!f->nsteps || f->step[0].loop->tiles != CLASS_PARTIAL) return false;
    const Step *last = &f->step[f->nsteps - 1]; // of no steps, where shifts stay in the loop before
    if (f->bound && last->loop->from == last->loop->to) f->follows = f->step[--f->nsteps];
    return f->nsteps > 0 && (!f->follows.loop || is_redone(f, &f->follows));
}

// Loops stand together: a map between two of them that needs neither goes before the first.
static void gather_loops(TileKernel *k) {
    TileOp *first = k->body.first;
    while (first && first->kind != TILE_LOOP) first = first->next;
    TileOp *last = k->body.last;
    while (last && last->kind != TILE_LOOP) last = last->prev;
    if (!first || first == last) return;
    for (TileOp *op = first->next, *next; op != last; op = next) {
        next = op->next;
        bool free = op->kind == TILE_MAP;
        for (TileOp *in = first; free && in != op; in = in->next) free = !pass_uses_result(op, in);
        if (free) pass_move_before(first, op);
    }
}

// ---- the sequence of tiles

static ExPool *pool(const Flat *f) { return f->s->x; }
static const Ex *num(Flat *f, int v) { return ex_i32(pool(f), v); }
static const Ex *tidy(Flat *f, const Ex *e) { return ex_simplify(pool(f), e); }
static int key_axis(const Flat *f) { return f->step[0].loop->axis; }
static const Ex *begin_of(const Flat *f) { return f->step[0].loop->from; }
static const Ex *end_of(const Flat *f) { return f->step[f->nsteps - 1].loop->to; }

// The tile of a step of loop i or a later one.
static const Ex *tile_at(Flat *f, int i, const Ex *step) {
    const TileOp *loop = f->step[i].loop;
    const Ex *here = ex_subst(pool(f), loop->index, SYM_STEP, 0, step);
    if (i + 1 == f->nsteps) return here;
    const Ex *in = ex_2(pool(f), EX_LT, step, loop->to);
    return ex_select(pool(f), in, here, tile_at(f, i + 1, step));
}

static const Ex *or_behind(Flat *f, const Ex *tile) {
    const TileAxis *a = &f->s->k->axes[key_axis(f)];
    const Ex *n = num(f, a->extent), *up = ex_2(pool(f), EX_ADD, a->size, num(f, a->extent - 1));
    const Ex *any = ex_2(pool(f), EX_LT, begin_of(f), end_of(f));
    return tidy(f, ex_select(pool(f), any, tile, ex_2(pool(f), EX_DIV, up, n)));
}

static const Ex *first_tile(Flat *f) { return or_behind(f, tile_at(f, 0, begin_of(f))); }

static const Ex *last_tile(Flat *f) {
    return or_behind(f, tile_at(f, 0, ex_2(pool(f), EX_SUB, end_of(f), num(f, 1))));
}

static const Ex *second_step(Flat *f) { return ex_2(pool(f), EX_ADD, begin_of(f), num(f, 1)); }

// A loop like loop i, but for the first step of all.
static TileOp *loop_like(Flat *f, int i) {
    const TileOp *from = f->step[i].loop;
    TileOp *loop = sm90_op(f->s, TILE_LOOP, from->span);
    const Ex *second = second_step(f);
    loop->axis = from->axis;
    loop->from = tidy(f, i ? ex_2(pool(f), EX_MAX, second, from->from) : second);
    loop->to = from->to, loop->index = from->index, loop->where = from->where;
    loop->tiles = from->tiles;
    return loop;
}

// ---- the producer

static void fill_step(Flat *f, int i) {
    const Step *st = &f->step[i];
    const Ex *before = ex_2(pool(f), EX_SUB, ex_symbol(pool(f), SYM_STEP), num(f, 1));
    TileOp *loop = loop_like(f, i);
    TileBlock *outer = f->s->block;
    f->s->block = &loop->body;
    sm90_fill(f->s, st->load_k, NULL, 0, NULL, false);
    const Ex *tile = f->skips ? NULL : tidy(f, tile_at(f, 0, before));
    if (!i && !f->skips) tile = tidy(f, ex_subst(pool(f), loop->index, SYM_STEP, 0, before));
    sm90_fill(f->s, st->load_v, tile, loop->axis, NULL, false);
    sm90_yield(f->s, NULL, 0);
    f->s->block = outer;
}

static void first_fills(Flat *f, bool behind) {
    const Step *st = &f->step[0];
    const Ex *valid = sm90_valid(f->s);
    sm90_fill(f->s, st->load_k, first_tile(f), key_axis(f), valid, false);
    if (behind && !f->skips) sm90_fill(f->s, st->load_v, last_tile(f), key_axis(f), NULL, true);
    sm90_fill(f->s, f->load_q, NULL, 0, valid, false);
}

// v is one step behind k, as the consumer needs it. Not if steps are skipped, because then the
// previous step is not known.
static void produce(Flat *f) {
    Sm90 *s = f->s;
    s->block = &s->producer->body;
    sm90_op(s, TILE_NEXT, (Span){0});
    first_fills(f, false);
    TileOp *tiles = sm90_op(s, TILE_TILES, (Span){0});
    s->block = &tiles->body;
    if (f->skips) sm90_fill(s, f->step[0].load_v, first_tile(f), key_axis(f), NULL, false);
    for (int i = 0; i < f->nsteps; i++) fill_step(f, i);
    sm90_op(s, TILE_NEXT, (Span){0});
    first_fills(f, true);
    sm90_yield(s, NULL, 0);
}

// ---- warpgroups that need only the first keys of a tile (narrow.c)

// Of the tile of a step, asked as if all tiles were of the first loop: for a step behind its end that
// gives one of the full tiles, of which everybody needs everything. Where a tile has no keys at all any
// answer will do.
static const Ex *sees_few(const Flat *f, const Ex *step) {
    const TileOp *loop = f->step[0].loop;
    int first = f->s->shape.narrow;
    if (!first || f->skips || loop->tiles != CLASS_PARTIAL) return NULL;
    const Ex *tile = ex_subst(pool(f), loop->index, SYM_STEP, 0, step);
    return pass_sees_few(f->s->p, f->s->k, key_axis(f), tile, first);
}

static void only_first(const Flat *f, TileOp *op, const Ex *few) {
    if (!few || (few->op == EX_CONST && !few->i)) return;
    op->first = f->s->shape.narrow;
    op->axis = key_axis(f);
    op->when = few;
}

// Of the weights that a step takes: those of the step before. In a loop over full tiles these are a
// partial one's only where it begins: there is one comparison a step.
static const Ex *weights_few(Flat *f, const TileOp *loop) {
    const Ex *t = ex_symbol(pool(f), SYM_STEP), *one = num(f, 1);
    if (loop->tiles == CLASS_PARTIAL) return sees_few(f, ex_2(pool(f), EX_SUB, t, one));
    const Ex *few = sees_few(f, ex_2(pool(f), EX_SUB, loop->from, one));
    return few ? tidy(f, ex_2(pool(f), EX_EQ, t, ex_select(pool(f), few, loop->from, num(f, -1))))
               : NULL;
}

// A block whose maps all make something for each row by itself.
static bool of_rows(const Flat *f, const TileOp *at) {
    for (const TileOp *op = at->body.first; op; op = op->next)
        for (int i = 0; i < op->results.n; i++) {
            const TileValue *v = op->results.data[i];
            bool elsewhere = v->home != HOME_ANY && v->home != HOME_FRAGMENT;
            if (op->kind != TILE_MAP || elsewhere || !tile_has_axis(v, tile_grid_axis(f->s->k)))
                return false;
        }
    return true;
}

// ---- the consumer: values

static TileValue *now(const Flat *f, TileValue *v) {
    return v->id < f->nvalues && f->to[v->id] ? f->to[v->id] : v;
}

static void translate(const Flat *f, TileOp *op) {
    for (int i = 0; i < op->args.n; i++) op->args.data[i] = now(f, op->args.data[i]);
}

// The op itself, at the end of the current block.
static void move(Flat *f, TileOp *op) {
    if (op->block) tile_unlink(op);
    tile_append(f->s->block, op);
    translate(f, op);
}

static TileOp *copy(Flat *f, const TileOp *op) {
    TileOp *n = tile_clone(f->s->p, f->s->k, op, NULL, NULL);
    tile_append(f->s->block, n);
    translate(f, n);
    for (int i = 0; i < op->results.n; i++) f->to[op->results.data[i]->id] = n->results.data[i];
    return n;
}

// What goes from one step to the next, as values of the loop's body: what it yields (in the place
// of the accumulator what the next product adds to), the weights, and, where the accumulator is
// rescaled late, what with.
static int carries_of(const Flat *f, const Step *st, TileValue **out) {
    int n = 0;
    bool late = f->s->shape.late_rescale && st->rescale;
    for (int i = 0; i < st->yield->args.n; i++) {
        out[n] = st->yield->args.data[i];
        if (i == st->acc && st->rescale && !late) out[n] = st->rescale->results.data[0];
        n++;
    }
    out[n++] = st->sum->args.data[0];
    for (int i = 0; late && i < st->rescale->args.n; i++)
        if (st->from_step >> i & 1) out[n++] = st->rescale->args.data[i];
    return n;
}

static TileValue *product(Flat *f, const TileOp *like, TileValue *x, TileValue *y, TileValue *sum) {
    TileOp *op = sm90_op(f->s, TILE_MMA, like->span);
    const TileValue *v = like->results.data[0];
    tile_arg(f->s->p, op, x);
    tile_arg(f->s->p, op, y);
    if (sum) tile_arg(f->s->p, op, sum);
    op->async = true;
    return tile_result(f->s->p, f->s->k, op, v->name, v->dtype, v->axis, v->rank);
}

// Where the schedule says so, weights go to the product by way of shared memory: each warpgroup
// writes and reads its own rows.
static TileValue *shared_weights(Flat *f, TileValue *weights) {
    Sm90 *s = f->s;
    if (!s->shape.share) return weights;
    AxisSet axes = pass_axes_of(weights);
    TileOp *op = pass_map(s->p, s->k, s->block, axes, weights->def->span);
    const Ex *same = pass_operand(s->p, op, weights);
    TileValue *v = pass_out(s->p, s->k, op, weights->name, weights->dtype, same, EX_CONST, 0);
    v->home = HOME_SHARED;
    return v;
}

static void turn(Flat *f, bool pass) {
    if (f->s->shape.turns) sm90_op(f->s, TILE_TURN, (Span){0})->pass = pass;
}

// ---- the consumer: numbers of keys, made of k by all threads together and read by all

static void barrier(Flat *f) { sm90_op(f->s, TILE_BARRIER, (Span){0}); }

static void columns(Flat *f, const Step *st, TileValue *k, bool again) {
    if (!st->ncolumns) return;
    f->to[st->load_k->results.data[0]->id] = k;
    barrier(f); // everybody has read the last ones
    for (int i = 0; i < st->ncolumns; i++) {
        st->columns[i]->results.data[0]->home = HOME_SHARED;
        if (again)
            move(f, st->columns[i]);
        else
            copy(f, st->columns[i]);
    }
    barrier(f);
    f->to[st->load_k->results.data[0]->id] = NULL;
}

// What needs nothing of the products is made beside them.
static void strips(Flat *f, const Step *st) {
    for (TileOp *op = st->loop->body.first, *next; op; op = next) {
        next = op->next;
        if (pass_is_strip(op)) move(f, op);
    }
}

// ---- the consumer: steps

static bool is_zero(const TileValue *v) {
    const TileOp *def = v->def;
    return def->kind == TILE_MAP && def->outs.n == 1 && ex_is_f32(def->outs.data[0].body, 0);
}

// Zero times anything finite; the weights' factor is.
static bool stays_zero(const Flat *f) {
    const Step *st = &f->step[0];
    const Ex *e = st->rescale->outs.data[0].body;
    return e->op == EX_MUL && is_zero(st->loop->args.data[st->acc]);
}

// The maps of a tile's first step, as step `st` has them; its scores are there. Afterwards f->state
// holds what it leaves; the values computed in the block are yielded. Where shifts are fixed, the maps of
// full tiles compute no maximum, but a row's first tile needs one. If that is a full tile, it takes the
// maps of the partial tiles, without the mask.
static void first_maps(Flat *f, const Step *st) {
    Sm90 *s = f->s;
    bool full = f->follows.loop && st->loop->tiles == CLASS_FULL;
    if (full) st = &f->follows;
    bool late = s->shape.late_rescale, zero = st->rescale && stays_zero(f);
    for (int i = 0; i < st->loop->carried.n; i++)
        f->to[st->loop->carried.data[i]->id] = now(f, f->step[0].loop->args.data[i]);
    f->to[st->dot->results.data[0]->id] = f->dot;
    TileValue *acc = f->to[st->loop->carried.data[st->acc]->id];
    f->to[st->sum->results.data[0]->id] = acc; // as if the product had been of nothing
    if (st->ncolumns) {                        // the first k is held until now
        TileValue *k = sm90_view(s, st->load_k);
        columns(f, st, k, false);
        sm90_drop(s, k, NULL);
    }
    for (TileOp *op = st->loop->body.first; op; op = op->next)
        if (op->kind == TILE_MAP && !is_column(st, op) && (op != st->rescale || (!zero && !late)))
            copy(f, op);
    if (zero) f->to[st->rescale->results.data[0]->id] = acc;
    f->nstate = carries_of(f, st, f->state);
    TileOp *yield = sm90_op(s, TILE_YIELD, st->loop->span);
    for (int i = 0; i < f->nstate; i++) {
        f->state[i] = now(f, f->state[i]);
        if (f->state[i]->def->block == s->block) tile_arg(s->p, yield, f->state[i]);
    }
    for (TileOp *op = st->loop->body.first; op; op = op->next) // the loop itself comes yet
        for (int i = 0; i < op->results.n; i++) f->to[op->results.data[i]->id] = NULL;
}

// Outside, what was yielded is known as the block's results.
static void first_results(Flat *f, TileOp *op) {
    for (int i = 0, n = 0; i < f->nstate; i++) {
        TileValue *v = f->state[i];
        if (v->def->block != &op->body) continue; // known outside
        if (n == op->results.n)
            tile_result(f->s->p, f->s->k, op, v->name, v->dtype, v->axis, v->rank);
        f->state[i] = op->results.data[n++];
    }
}

static void first_step(Flat *f) {
    Sm90 *s = f->s;
    const Step *st = &f->step[0];
    TileOp *at = sm90_op(s, TILE_AT, st->loop->span);
    at->axis = key_axis(f);
    at->index = first_tile(f);
    at->tiles = st->loop->tiles;
    TileBlock *outer = s->block;
    s->block = &at->body;
    first_maps(f, st);
    s->block = outer;
    if (of_rows(f, at)) only_first(f, at, sees_few(f, begin_of(f)));
    first_results(f, at);
}

// ---- the consumer: a first step that is a full tile, as likely as not
//
// Where nothing is masked but what lies behind the last key, only a tile of that end is partial. Then
// the first step stands twice, in loops of which one goes round, and that once. The second begins
// with the weights of the first.

static bool may_begin_full(const Flat *f) {
    const Step *st = &f->step[0];
    const Sm90 *s = f->s;
    bool acc_waits = !st->rescale || stays_zero(f) || s->shape.late_rescale;
    bool room = sm90_registers(s->p, s->k, s->shape) + s->shape.keys / 4 <= s->shape.registers;
    return !sm90_is_masked(s->k) && f->nsteps == 2 && f->step[1].loop->tiles == CLASS_FULL &&
           !st->ncolumns && acc_waits && room;
}

static TileOp *once(Flat *f, int i, const Ex *from, const Ex *to) {
    TileOp *loop = sm90_op(f->s, TILE_LOOP, f->step[i].loop->span);
    loop->axis = key_axis(f);
    loop->from = from, loop->to = to;
    loop->index = first_tile(f);
    loop->tiles = f->step[i].loop->tiles;
    TileBlock *outer = f->s->block;
    f->s->block = &loop->body;
    first_maps(f, &f->step[i]);
    f->s->block = outer;
    return loop;
}

// What stands for the results of a loop that does not go round.
static TileValue *nothing_like(Flat *f, const TileOp *before, const TileValue *v) {
    AxisSet axes = pass_axes_of(v);
    TileOp *map = pass_map(f->s->p, f->s->k, NULL, axes, before->span);
    tile_insert_before((TileOp *)before, map);
    return pass_out(f->s->p, f->s->k, map, v->name, v->dtype, ex_f32(pool(f), 0), EX_CONST, 0);
}

static void carry_through(Flat *f, TileOp *loop, TileValue *const *start) {
    const TileOp *yield = loop->body.last;
    for (int i = 0; i < yield->args.n; i++) {
        const TileValue *v = yield->args.data[i];
        tile_arg(f->s->p, loop, start ? start[i] : nothing_like(f, loop, v));
        TileValue *c = tile_value(f->s->p, f->s->k, v->name, v->dtype, v->axis, v->rank);
        c->def = loop;
        VEC_PUSH(f->s->p->arena, &loop->carried, c);
    }
    for (int i = 0; i < yield->args.n; i++) {
        const TileValue *v = yield->args.data[i];
        tile_result(f->s->p, f->s->k, loop, v->name, v->dtype, v->axis, v->rank);
    }
}

static void first_step_of_either(Flat *f) {
    const TileOp *partial = f->step[0].loop;
    const Ex *some = ex_2(pool(f), EX_LT, partial->from, partial->to);
    const Ex *any = ex_2(pool(f), EX_LT, begin_of(f), end_of(f));
    const Ex *full = ex_2(pool(f), EX_AND, any, ex_1(pool(f), EX_NOT, some));
    const Ex *times = tidy(f, ex_select(pool(f), full, num(f, 0), num(f, 1)));
    TileOp *first = once(f, 0, num(f, 0), times);
    carry_through(f, first, NULL);
    TileOp *second = once(f, 1, times, num(f, 1));
    carry_through(f, second, first->results.data);
    first_results(f, second);
}

// Where the accumulator is in f->state, and the weights behind what is yielded.
static TileValue *acc_now(Flat *f, const Step *st) {
    if (!st->rescale || !f->s->shape.late_rescale) return f->state[st->acc];
    int n = st->yield->args.n + 1;
    f->to[st->loop->carried.data[st->acc]->id] = f->state[st->acc];
    for (int i = 0; i < st->rescale->args.n; i++) {
        if (st->from_step >> i & 1) f->to[st->rescale->args.data[i]->id] = f->state[n++];
    }
    TileValue *acc = copy(f, st->rescale)->results.data[0];
    for (int i = 0; i < st->rescale->args.n; i++) // the step makes new ones
        f->to[st->rescale->args.data[i]->id] = NULL;
    f->to[st->rescale->results.data[0]->id] = NULL;
    return acc;
}

// Maps under the products in flight: those of the scores first, the accumulator's last.
static void maps_of(Flat *f, const Step *st, TileValue *sum, TileValue *v) {
    Sm90 *s = f->s;
    bool late = s->shape.late_rescale;
    for (TileOp *op = st->loop->body.first, *next; op; op = next) {
        next = op->next;
        if (op->kind != TILE_MAP || op == st->rescale || is_column(st, op)) continue;
        move(f, op);
        if (op != st->weights) continue;
        op->waits = true;
        op->after = s->shape.after;
        if (f->follows.loop && st->loop->tiles == CLASS_FULL) op->half = s->shape.half;
        op->pending = 0;
        sm90_drop(s, v, NULL);
    }
    f->to[st->sum->results.data[0]->id] = sum;
    f->to[st->loop->carried.data[st->acc]->id] = sum;
    if (st->rescale && !late) move(f, st->rescale);
}

static const Ex *at_last(Flat *f) {
    const Ex *t = ex_2(pool(f), EX_ADD, ex_symbol(pool(f), SYM_STEP), num(f, 1));
    return tidy(f, ex_2(pool(f), EX_EQ, t, end_of(f)));
}

static void carry(Flat *f, const Step *st, TileOp *loop) {
    Sm90 *s = f->s;
    for (int i = 0; i < f->nstate; i++) {
        TileValue *init = f->state[i];
        tile_arg(s->p, loop, init);
        const char *name = i < st->yield->args.n ? st->loop->carried.data[i]->name : init->name;
        TileValue *v = tile_value(s->p, s->k, name, init->dtype, init->axis, init->rank);
        v->def = loop;
        VEC_PUSH(s->p->arena, &loop->carried, v);
        f->state[i] = v;
    }
}

// ---- the consumer: a step of a full tile, where shifts stay and its weights came out too large. Then
// the step's maps are done again as a partial tile's, without the mask: of the scores, which are still
// in registers, and of what was there before the step.

// What the step makes of the tile, whatever shifts do: numbers of keys, strips.
static void share_with_step(Flat *f, const Step *st) {
    const Step *like = &f->follows;
    for (int i = 0; i < st->ncolumns; i++)
        f->to[like->columns[i]->results.data[0]->id] = st->columns[i]->results.data[0];
    for (const TileOp *op = like->loop->body.first; op; op = op->next)
        for (TileOp *own = st->loop->body.first; pass_is_strip(op) && own; own = own->next)
            if (pass_is_strip(own) && !own->args.n && !op->args.n && own->naxes == op->naxes &&
                own->outs.data[0].body == op->outs.data[0].body)
                f->to[op->results.data[0]->id] = own->results.data[0];
}

// Strips that only such maps need, made where the step's are.
static void strips_to_follow(Flat *f) {
    for (TileOp *op = f->follows.loop->body.first; op; op = op->next)
        if (pass_is_strip(op) && !f->to[op->results.data[0]->id]) copy(f, op);
}

static void follow(Flat *f, TileValue *const *before, TileValue *dot, TileValue *sum) {
    const Step *like = &f->follows;
    for (int i = 0; i < like->loop->carried.n; i++)
        f->to[like->loop->carried.data[i]->id] = i == like->acc ? sum : before[i];
    f->to[like->dot->results.data[0]->id] = dot;
    f->to[like->sum->results.data[0]->id] = sum;
    for (TileOp *op = like->loop->body.first; op; op = op->next)
        if (op->kind == TILE_MAP && !is_column(like, op) && !pass_is_strip(op)) copy(f, op);
}

// `out`: what the step yields, the place of the sum that is asked among it.
static void redo(Flat *f, const Step *st, TileValue *const *before, TileValue *dot, TileValue *sum,
                 TileValue **out, int n) {
    Sm90 *s = f->s;
    TileOp *op = sm90_op(s, TILE_REDO, st->loop->span), *last = f->ops[f->last];
    TileValue **made = ARENA_ARRAY(s->p->arena, TileValue *, n);
    op->bits = f->bound->bits;
    for (int i = 0; i < last->results.n; i++)
        if (last->results.data[i] == f->bound->args.data[0]) tile_arg(s->p, op, out[i]);
    for (int i = 0; i < n; i++) tile_arg(s->p, op, out[i]);
    TileBlock *outer = s->block;
    s->block = &op->body;
    follow(f, before, dot, sum);
    carries_of(f, &f->follows, made);
    for (int i = 0; i < n; i++) made[i] = now(f, made[i]);
    sm90_yield(s, made, n);
    s->block = outer;
    for (TileOp *in = f->follows.loop->body.first; in; in = in->next)
        for (int i = 0; i < in->results.n; i++) f->to[in->results.data[i]->id] = NULL;
    for (int i = 0; i < n; i++)
        out[i] =
            tile_result(s->p, s->k, op, out[i]->name, out[i]->dtype, out[i]->axis, out[i]->rank);
}

static void steps(Flat *f, int i) {
    Sm90 *s = f->s;
    const Step *st = &f->step[i];
    TileOp *loop = loop_like(f, i);
    TileBlock *outer = s->block;
    bool stays = f->follows.loop && loop->tiles == CLASS_FULL;
    carry(f, st, loop);
    s->block = &loop->body;
    if (stays) share_with_step(f, st);
    int nyield = st->yield->args.n;
    for (int j = 0; j < nyield; j++) f->to[st->loop->carried.data[j]->id] = f->state[j];
    TileValue *weights = f->state[nyield];
    TileValue *k = sm90_take(s, st->load_k, NULL);
    turn(f, false);
    TileValue *dot = product(f, st->dot, f->q, k, NULL);
    if (!i) only_first(f, dot->def, sees_few(f, ex_symbol(pool(f), SYM_STEP)));
    weights = shared_weights(f, weights);
    TileValue *acc = acc_now(f, st), *v = sm90_take(s, st->load_v, NULL);
    TileValue *sum = product(f, st->sum, weights, v, acc);
    only_first(f, sum->def, weights_few(f, loop));
    turn(f, true);
    columns(f, st, k, true);
    strips(f, st);
    if (stays) strips_to_follow(f);
    sm90_wait(s, 1);
    sm90_drop(s, k, NULL);
    if (!f->skips) sm90_drop(s, f->q, at_last(f));
    f->to[st->dot->results.data[0]->id] = dot;
    TileValue **out = ARENA_ARRAY(s->p->arena, TileValue *, f->nvalues + 1);
    int n = carries_of(f, st, out);
    maps_of(f, st, sum, v);
    for (int j = 0; j < n; j++) out[j] = now(f, out[j]);
    if (stays) redo(f, st, f->state, dot, sum, out, n);
    sm90_yield(s, out, n);
    s->block = outer;
    for (int j = 0; j < n; j++) {
        const TileValue *c = loop->carried.data[j];
        f->state[j] = tile_result(s->p, s->k, loop, c->name, c->dtype, c->axis, c->rank);
    }
}

// ---- the consumer: tiles

// Where the queries of the next tile come only now, the end of this one is what there is to do
// meanwhile; otherwise it is done under the next one's first product.
static bool waits_for_q(const Flat *f) { return f->s->shape.queries == 1; }

// Behind a `next`, or before all: the first scores of the current tile, in flight. `turns`: they have
// a turn of their own.
static TileValue *first_scores(Flat *f, TileValue **k, bool turns) {
    const Step *st = &f->step[0];
    const Ex *valid = sm90_valid(f->s);
    TileValue *q = sm90_take(f->s, f->load_q, valid);
    *k = sm90_take(f->s, st->load_k, valid);
    if (turns) turn(f, false);
    TileValue *dot = product(f, st->dot, q, *k, NULL);
    only_first(f, dot->def, sees_few(f, begin_of(f)));
    if (turns) turn(f, true);
    return dot;
}

// By maps, of which nobody knows when the other threads are through.
static bool q_is_read(const Flat *f) {
    for (int i = 0; i < f->first; i++)
        if (uses_of(f->ops[i], f->q)) return true;
    return false;
}

static void begin_tile(Flat *f) {
    Sm90 *s = f->s;
    f->q = sm90_view(s, f->load_q);
    f->to[f->load_q->results.data[0]->id] = f->q;
    for (int i = 0; i < f->first; i++)
        if (f->ops[i] != f->load_q) move(f, f->ops[i]);
    if (q_is_read(f)) barrier(f);
    if (f->skips) return;
    const Ex *single = ex_2(pool(f), EX_LE, end_of(f), second_step(f));
    sm90_drop(s, f->q, tidy(f, single));
}

// What is left to do of the tile when its last product has landed.
static void last_maps(Flat *f, TileValue *sum) {
    const Step *st = &f->step[f->nsteps - 1];
    for (int i = 0; i < st->yield->args.n; i++)
        f->to[f->ops[f->last]->results.data[i]->id] = i == st->acc ? sum : f->state[i];
    for (int i = f->last + 1; i < f->nops; i++) {
        if (f->ops[i] == f->bound) continue;
        f->ops[i]->behind = true;
        move(f, f->ops[i]);
    }
}

// The tile's last product, the next tile's first, and what is left to do of the tile.
static void end_tile(Flat *f) {
    Sm90 *s = f->s;
    const Step *st = &f->step[f->nsteps - 1];
    if (f->skips) sm90_drop(s, f->q, NULL);
    turn(f, false);
    TileValue *weights = shared_weights(f, f->state[st->yield->args.n]);
    TileValue *acc = acc_now(f, &f->step[0]), *v = sm90_take(s, st->load_v, NULL), *k;
    TileValue *sum = product(f, st->sum, weights, v, acc), *dot = NULL;
    const Ex *last = ex_2(pool(f), EX_SUB, end_of(f), num(f, 1));
    only_first(f, sum->def, sees_few(f, last));
    sm90_op(s, TILE_NEXT, (Span){0});
    if (!waits_for_q(f)) dot = first_scores(f, &k, false);
    turn(f, true);
    sm90_wait(s, dot != NULL);
    sm90_drop(s, v, NULL);
    last_maps(f, sum);
    if (!dot) dot = first_scores(f, &k, true);
    sm90_wait(s, 0);
    if (!f->step[0].ncolumns) sm90_drop(s, k, sm90_valid(s));
    sm90_yield(s, &dot, 1);
}

static void consume(Flat *f) {
    Sm90 *s = f->s;
    TileValue *k;
    s->block = &s->consumer->body;
    sm90_op(s, TILE_NEXT, (Span){0});
    TileValue *dot = first_scores(f, &k, false);
    sm90_wait(s, 0);
    if (!f->step[0].ncolumns) sm90_drop(s, k, sm90_valid(s));
    TileOp *tiles = sm90_op(s, TILE_TILES, (Span){0});
    tile_arg(s->p, tiles, dot);
    f->dot = tile_value(s->p, s->k, dot->name, dot->dtype, dot->axis, dot->rank);
    f->dot->def = tiles;
    VEC_PUSH(s->p->arena, &tiles->carried, f->dot);
    s->block = &tiles->body;
    begin_tile(f);
    if (may_begin_full(f))
        first_step_of_either(f);
    else
        first_step(f);
    for (int i = 0; i < f->nsteps; i++) steps(f, i);
    end_tile(f);
    tile_result(s->p, s->k, tiles, dot->name, dot->dtype, dot->axis, dot->rank);
}

static bool recognize(Flat *f) {
    Sm90 *s = f->s;
    gather_loops(s->k);
    for (TileOp *op = s->k->body.first; op; op = op->next) f->nops++;
    f->ops = ARENA_ARRAY(s->p->arena, TileOp *, f->nops);
    f->nops = 0;
    for (TileOp *op = s->k->body.first; op; op = op->next) f->ops[f->nops++] = op;
    return match_chain(f);
}

bool sm90_is_flat(Sm90 *s) {
    Flat f = {.s = s, .nvalues = s->k->nvalues};
    return recognize(&f);
}

bool sm90_flat(Sm90 *s) {
    Flat f = {.s = s, .nvalues = s->k->nvalues};
    if (!recognize(&f)) return false;
    sm90_begin(s, &f.ops);
    f.nvalues = s->k->nvalues;
    f.to = ARENA_ARRAY(s->p->arena, TileValue *, f.nvalues);
    f.state = ARENA_ARRAY(s->p->arena, TileValue *, f.nvalues + 1);
    produce(&f);
    consume(&f);
    return true;
}
