// waits.c: what the operations of a role wait for.
//
// In: a role that was expanded (expand.c), whose operations still have their marks. Out: its products are
// asynchronous, and
//
// * a result is waited for before it is read, before a loop, and before the next step. Behind products that
//   are issued the oldest one in flight is waited for before anything is computed, so that the stages that it
//   reads are free. Groups land in order: n may be in flight, those issued behind it. Where a product `lands` in a map, the map
//   waits;
// * a stage is dropped behind its last reader, once all products that read it have landed; what was taken
//   one tile before, and is read in loops, in their last step. Where maps read it, everybody has: behind a barrier,
//   or, of a vector, behind a product that all have issued since;
// * what all threads make together in shared memory stands between barriers;
// * the products of a turn, one behind the other, stand between `turn take` and `turn pass`, and so does the wait for one that `holds`
//   the turn. No turn is taken before the loop over tiles: nobody has anything else to do then.
//
// Holds afterwards: nothing is in flight where a loop's step begins or ends.
#include "passes/schedule/expand.h"
#include "passes/schedule/schedule.h"
#include "passes/schedule/strips.h"
#include "passes/simplify/simplify.h"

enum { MAX_FLIGHT = 16, MAX_EARLY = 8 };

typedef struct Early { // a view that is dropped in the last step of a chain of loops
    TileValue *view;
    const TileOp *last;
} Early;

typedef struct Waits {
    TileProgram *p;
    TileKernel *k;
    TileOp *role;
    Early early[MAX_EARLY];
    int nearly;
} Waits;

typedef struct Flight { // of a block
    TileOp *product[MAX_FLIGHT];
    int n;
    bool issued; // since something was computed
} Flight;

static bool
is_of_keys(const TileOp *op) { // all threads', a strip, or what is read apart: it needs no product
    if (op->kind != TILE_MAP) return false;
    if (pass_reads_dense(op)) return true;
    TileHome home = op->results.data[0]->home;
    return home == HOME_SHARED || home == HOME_STRIP;
}

static bool is_shared(const TileOp *op) {
    return op && op->kind == TILE_MAP && op->results.data[0]->home == HOME_SHARED &&
           op->results.data[0]->rank == 1;
}

// ---- turns

static bool reads_any(const TileOp *op, const Flight *f) {
    for (int i = 0; i < f->n; i++)
        if (tile_uses(op, f->product[i]->results.data[0])) return true;
    return false;
}

// Whether the next that has to do with products is one that is issued.
static bool still_issues(const TileOp *op, const Flight *f) {
    for (; op && !op->body.first && op->kind != TILE_YIELD; op = op->next) {
        if (op->kind == TILE_MMA) return true;
        if (op->lands || reads_any(op, f)) return false;
    }
    return false;
}

static bool in_turn(const TileOp *op, Flight *f) {
    if (op->kind == TILE_TAKE || op->kind == TILE_NEXT) return true;
    if (op->kind != TILE_MMA) return op->kind == TILE_MAP && still_issues(op, f);
    f->product[f->n++] = (TileOp *)op;
    return op->turn;
}

// The product that a turn waits for at its end; NULL: none.
static const TileOp *held(const Flight *f) {
    for (int i = f->n; i-- > 0;)
        if (f->product[i]->holds) return f->product[i];
    return NULL;
}

static void take_turns(Waits *w, TileBlock *b) {
    for (TileOp *op = b->first; op; op = op->next) {
        take_turns(w, &op->body);
        if (!op->turn || b == &w->role->body) continue;
        Flight f = {.n = 0};
        pass_op_before(w->p, op, TILE_TURN);
        while (in_turn(op, &f)) op = op->next;
        const TileOp *last = held(&f);
        while (last && !tile_uses(op, last->results.data[0])) op = op->next;
        TileOp *pass = pass_op_before(w->p, op, TILE_TURN);
        pass->pass = true, pass->holds = last != NULL;
    }
}

// ---- stages

// A tile, or what lies beside it.
static bool uses_tile(const TileOp *op, const TileValue *v) {
    if (tile_uses(op, v)) return true;
    for (int i = 0; i < op->args.n; i++) {
        const TileOp *def = op->args.data[i]->def;
        if (def && def->kind == TILE_BESIDE && def->args.data[0] == v) return true;
    }
    return false;
}

static const TileOp *last_reader(const TileValue *v) {
    const TileOp *last = v->def;
    for (const TileOp *op = v->def->next; op; op = op->next)
        if (uses_tile(op, v)) last = op;
    return last;
}

static bool is_viewed(const TileBlock *b, const TileValue *pipe) {
    for (const TileOp *op = tile_next(b, NULL); op; op = tile_next(b, op))
        if (op->kind == TILE_VIEW && op->args.data[0] == pipe) return true;
    return false;
}

// What is taken for the next tile is dropped there.
static bool stays(const Waits *w, const TileOp *take) {
    return take->kind == TILE_TAKE && take->when && is_viewed(&w->role->body, take->args.data[0]);
}

static bool is_early(const Waits *w, const TileValue *v) {
    for (int i = 0; i < w->nearly; i++)
        if (w->early[i].view == v) return true;
    return false;
}

static bool behind(const TileOp *op, const TileOp *at) { // op stands before `at`, or is it
    for (; at; at = at->prev)
        if (op == at) return true;
    return false;
}

static bool is_read(const Flight *f, const TileValue *v) {
    for (int i = 0; i < f->n; i++)
        if (uses_tile(f->product[i], v)) return true;
    return false;
}

static void drop(Waits *w, TileOp *at, TileValue *v, const Ex *when) {
    TileOp *op = pass_op_before(w->p, at, TILE_DROP);
    tile_arg(w->p, op, v);
    op->when = when;
}

static bool is_dropped(const TileValue *v) {
    for (const TileOp *op = v->def->next; op; op = op->next)
        if (op->kind == TILE_DROP && op->args.data[0] == v) return true;
    return false;
}

static bool is_vector(const TileValue *v) { return v->rank == 1 && tile_pipe_of(v); }

static bool issues_from(const TileOp *at) {
    while (at && at->kind != TILE_MMA) at = at->next;
    return at != NULL;
}

// A product that all threads have issued since they read has landed.
static bool has_landed_since(const TileOp *reader, const TileOp *at, const Flight *f) {
    for (const TileOp *op = reader->next; op != at; op = op->next) {
        bool flies = op->kind != TILE_MMA;
        for (int i = 0; i < f->n; i++) flies |= f->product[i] == op;
        if (!flies) return true;
    }
    return false;
}

// Numbers of rows, which maps read, are dropped when a product lands anyway.
static bool waits_for_product(const TileValue *v, const TileOp *at, const Flight *f) {
    return is_vector(v) && issues_from(at) && !has_landed_since(last_reader(v), at, f);
}

static void drop_those(Waits *w, TileOp *at, const Flight *f, bool vectors) {
    for (TileOp *op = at->block->first; op != at; op = op->next) {
        if (op->kind != TILE_TAKE && op->kind != TILE_VIEW) continue;
        TileValue *v = op->results.data[0];
        if (is_vector(v) != vectors) continue;
        const TileOp *last = last_reader(v);
        if (stays(w, op) || is_early(w, v) || is_dropped(v) || waits_for_product(v, at, f))
            continue;
        if (behind(last, at->prev) && !is_read(f, v)) drop(w, at, v, op->when);
    }
}

// Of the stages that were taken in the block and that nobody reads from `at` on: vectors before the tiles that they come with.
static void drop_stages(Waits *w, TileOp *at, const Flight *f) {
    drop_those(w, at, f, true);
    drop_those(w, at, f, false);
}

// And of those around a loop, in its last step.
static void drop_early(Waits *w, TileOp *at, const TileOp *landed) {
    ExPool *x = w->p->pool;
    for (int i = 0; i < w->nearly; i++) {
        Early *e = &w->early[i];
        if (!tile_uses(landed, e->view)) continue;
        const Ex *next = ex_2(x, EX_ADD, ex_symbol(x, SYM_STEP), ex_i32(x, 1));
        drop(w, at, e->view, ex_simplify(x, ex_2(x, EX_EQ, next, e->last->to)));
    }
}

// ---- products

// The oldest `n` have landed before `at`.
static void land(Waits *w, TileOp *at, Flight *f, int n) {
    Flight landed = *f;
    f->n -= n;
    for (int i = 0; i < f->n; i++) f->product[i] = f->product[i + n];
    drop_stages(w, at, f);
    for (int i = 0; i < n && at->block->owner->kind == TILE_LOOP; i++)
        drop_early(w, at, landed.product[i]);
}

// Whether the oldest n are the last that read some pipe's only stage, whose next tile waits for it.
static bool free_a_stage(const TileOp *at, const Flight *f, int n) {
    Flight oldest = {.n = n}, rest = {.n = f->n - n};
    for (int i = 0; i < f->n; i++)
        *(i < n ? &oldest.product[i] : &rest.product[i - n]) = f->product[i];
    for (const TileOp *op = at->block->first; op != at; op = op->next) {
        if (op->kind != TILE_TAKE || op->args.data[0]->stages > 1) continue;
        const TileValue *v = op->results.data[0];
        if (behind(last_reader(v), at->prev) && is_read(&oldest, v) && !is_read(&rest, v))
            return !is_dropped(v);
    }
    return false;
}

static void wait_for(Waits *w, TileOp *at, Flight *f, int n) {
    if (!n) return;
    int first = 1;
    while (first < n && !(at->block->owner->kind == TILE_LOOP && free_a_stage(at, f, first)))
        first++;
    pass_op_before(w->p, at, TILE_MMA_WAIT)->pending = f->n - first;
    land(w, at, f, first);
    wait_for(w, at, f, n - first);
}

static bool computes(const TileOp *op) {
    return op->kind == TILE_MAP || op->kind == TILE_STORE || op->kind == TILE_APPEND;
}

// A sum in flight may be added to: products complete in order.
static bool needs_result(const TileOp *op, const TileValue *v) {
    bool adds = op->kind == TILE_MMA && op->args.n > 2 && op->args.data[2] == v;
    return tile_uses(op, v) && !adds;
}

// How many of the products in flight an operation needs.
static int needs(const TileOp *op, const Flight *f) {
    int n = 0;
    if (!f->n) return 0;
    if (op->kind == TILE_TURN && op->holds) return needs(op->next, f);
    if (op->body.first || op->kind == TILE_YIELD) return f->n;
    for (int i = 0; i < f->n; i++)
        if (needs_result(op, f->product[i]->results.data[0])) n = i + 1;
    bool free = !f->issued || f->product[0]->lands;
    return n || free || !computes(op) || is_of_keys(op) || still_issues(op, f) ? n : 1;
}

static void land_within(Waits *w, TileOp *map, Flight *f) {
    for (int i = f->n; i-- > 0;) {
        const TileOp *product = f->product[i];
        if (map->kind != TILE_MAP || !product->lands || product->lands != map->place.order)
            continue;
        map->waits = true;
        map->after = product->after;
        map->pending = f->n - i - 1;
        land(w, map->next, f, i + 1);
        return;
    }
}

// ---- blocks

static bool read_by_map(const TileOp *first, const TileOp *end, const TileValue *v) {
    for (const TileOp *op = first; op != end; op = op->next)
        if (op->kind == TILE_MAP && tile_uses(op, v)) return true;
    return false;
}

static const TileOp *first_loop_reading(const TileOp *op, const TileValue *v) {
    while (op && !(op->kind == TILE_LOOP && tile_uses(op, v))) op = op->next;
    return op;
}

// Where a tile's loops begin (expand.c marks it): what was taken for it, and has no reader behind them, is dropped in
// the last step of all, or here, where there is none.
static void plan_early(Waits *w, TileOp *at) {
    for (TileOp *op = at->block->first; op != at; op = op->next) {
        if (op->kind != TILE_VIEW || w->nearly == MAX_EARLY) continue;
        TileValue *v = op->results.data[0];
        const TileOp *first = first_loop_reading(at, v), *last = last_reader(v);
        if (!first || last->kind != TILE_LOOP) continue;
        if (read_by_map(op, at, v)) pass_op_before(w->p, at, TILE_BARRIER);
        if (last->where || first->where) continue;
        w->early[w->nearly++] = (Early){v, last};
        ExPool *x = w->p->pool;
        drop(w, at, v, ex_simplify(x, ex_2(x, EX_LE, last->to, first->from)));
    }
}

static void wait_in(Waits *w, TileBlock *b);

// All threads have read what they made last before they make it again, and made it before they read it.
static void guard(Waits *w, TileOp *op) {
    if (!is_shared(op)) return;
    if (!is_shared(op->prev)) pass_op_before(w->p, op, TILE_BARRIER);
    if (!is_shared(op->next)) pass_op_before(w->p, op->next, TILE_BARRIER);
}

// What each thread has of the same thread of another role.
static bool is_own(const TileValue *v) { return v->rank == 2 && v->dtype == DT_F32; }

// What maps have read is dropped when all threads have.
static void read_by_all(Waits *w, TileOp *at) {
    const TileOp *op = at->prev;
    for (int i = 0; i < op->args.n && op->kind == TILE_MAP && !is_shared(op); i++) {
        const TileValue *v = op->args.data[i];
        if (!tile_pipe_of(v) || v->def->block != op->block || is_own(v) ||
            tile_is_of_scores(w->k, v))
            continue;
        if (v->def->kind == TILE_VIEW && last_reader(v)->kind == TILE_LOOP) continue; // plan_early
        if (is_vector(v) && issues_from(at)) continue;
        pass_op_before(w->p, at, TILE_BARRIER);
        return;
    }
}

static int words(const Waits *w, const TileValue *v) {
    return v->home != HOME_SHARED ? pass_words(w->p, w->k, v->axis, v->rank, v->dtype) : 0;
}

// Whether a product of gradients has no registers for its result beside what the loop carries and what those in flight read.
static bool is_crowded(const Waits *w, const TileOp *op, const Flight *f) {
    enum { OTHER = 24 };
    const TileOp *loop = op->block->owner;
    if (op->kind != TILE_MMA || w->k->purpose != PURPOSE_GRADIENTS || op->args.n > 2) return false;
    int n = words(w, op->results.data[0]);
    for (int i = 0; i < loop->carried.n; i++) n += words(w, loop->carried.data[i]);
    for (int i = 0; i < f->n; i++)
        for (int a = 0; a < 2; a++) n += words(w, f->product[i]->args.data[a]);
    return n + OTHER > w->role->registers;
}

static void wait_in(Waits *w, TileBlock *b) {
    Flight f = {.n = 0};
    for (TileOp *op = b->first, *next; op; op = next) {
        next = op->next;
        wait_for(w, op, &f, is_crowded(w, op, &f) ? f.n : needs(op, &f));
        if (op->kind == TILE_MMA) {
            op->async = f.issued = true;
            f.product[f.n++] = op;
            continue;
        }
        f.issued &= !computes(op) || is_of_keys(op) || still_issues(op, &f);
        if (op->begins) plan_early(w, op);
        wait_in(w, &op->body);
        guard(w, op);
        land_within(w, op, &f);
        if (!next || (!computes(op) && !op->body.first)) continue;
        read_by_all(w, next);
        drop_stages(w, next, &f);
    }
}

void pass_waits(TileProgram *p, TileKernel *k, TileOp *role) {
    Waits w = {.p = p, .k = k, .role = role};
    take_turns(&w, &role->body);
    wait_in(&w, &role->body);
}
