// memory.c: which values share memory.
//
// In: a kernel. Out: a slot for every value, and the slots' sizes.
// Holds afterwards: values whose lives overlap have different slots, unless one is made in place of
// the other:
//
//   - a loop's results, its carried values and, where nothing else needs them, their initial values
//     lie in one slot;
//   - an elementwise map's result takes the place of an operand, a product's that of its summand,
//     when it is their last use;
//   - a yielded value is made in the carried one's slot where that is not read any more;
//
// so that an accumulator is scaled, added to and carried without a copy. What yields into another's
// slot is copied by the loop. Every slot is a stack variable of its own: LLVM then knows that slots
// do not alias.
#include "codegen/host/host.h"

#include <assert.h>

typedef struct Life { // in steps of a walk over the ops
    int def, last;    // last explicit use
    int end; // of the memory: later than `last` where an enclosing loop needs the value again
    const TileBlock *block;
    int group;             // representative value id: those in one slot
    bool fixed_use;        // used by something that needs it in its slot (a loop's start, a yield)
    const TileOp *carrier; // the loop that carries it
} Life;

typedef struct Plan {
    Cg *cg;
    Host *h;
    const TileValue **value;
    Life *life;
    int step;
    int *loop_end; // by depth
} Plan;

static int find(Plan *p, int v) {
    while (p->life[v].group != v) v = p->life[v].group;
    return v;
}

// ---- lives

static void define(Plan *p, const TileValue *v, const TileBlock *block, const TileOp *carrier) {
    p->value[v->id] = v;
    p->life[v->id] = (Life){p->step, p->step, p->step, block, v->id, false, carrier};
}

static bool inside(const TileBlock *inner, const TileBlock *outer) {
    for (; inner; inner = inner->owner ? inner->owner->block : NULL)
        if (inner == outer) return true;
    return false;
}

static void use(Plan *p, const TileValue *v, const TileBlock *at, bool fixed) {
    Life *l = &p->life[v->id];
    l->last = p->step;
    l->fixed_use |= fixed;
    assert(inside(at, l->block));
    (void)at;
}

static void walk(Plan *p, const TileBlock *b);

static void walk_loop(Plan *p, const TileOp *op) {
    for (int i = 0; i < op->args.n; i++) use(p, op->args.data[i], op->block, true);
    for (int i = 0; i < op->carried.n; i++) define(p, op->carried.data[i], &op->body, op);
    int begin = p->step++;
    walk(p, &op->body);
    int end = p->step++;
    // What lives across the loop's body lives to its end; what it carries is its results.
    for (int id = 0; id < p->cg->k->nvalues; id++) {
        Life *l = &p->life[id];
        if (p->value[id] && l->def <= begin && l->last > begin && l->block != &op->body)
            l->last = end;
        if (p->value[id] && l->last > l->end) l->end = l->last;
    }
    for (int i = 0; i < op->results.n; i++) {
        p->life[op->carried.data[i]->id].end = end;
        define(p, op->results.data[i], op->block, NULL);
    }
}

static void walk(Plan *p, const TileBlock *b) {
    for (const TileOp *op = b->first; op; op = op->next) {
        p->step++;
        if (op->kind == TILE_LOOP) {
            walk_loop(p, op);
            continue;
        }
        for (int i = 0; i < op->args.n; i++) use(p, op->args.data[i], b, op->kind == TILE_YIELD);
        for (int i = 0; i < op->results.n; i++) define(p, op->results.data[i], b, NULL);
    }
}

// ---- sharing

static bool same_shape(const TileValue *a, const TileValue *b) {
    if (a->rank != b->rank) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->axis[i] != b->axis[i]) return false;
    return true;
}

static void join(Plan *p, int into, int v) {
    Life *a = &p->life[find(p, into)], *b = &p->life[find(p, v)];
    if (a == b) return;
    if (b->def < a->def) a->def = b->def;
    if (b->end > a->end) a->end = b->end;
    b->group = a->group;
}

// Nobody but this op, the last of its users, looks at v: its place may be taken.
static bool dies_here(const Plan *p, const TileValue *v, const TileOp *op, int step) {
    const Life *l = &p->life[v->id];
    return l->last == step && l->block == op->block && !p->h->place[v->id].view;
}

static bool used_twice(const TileOp *op, int arg) {
    for (int i = 0; i < op->args.n; i++)
        if (i != arg && op->args.data[i] == op->args.data[arg]) return true;
    return false;
}

// Whether another result of the op was already made in v's place.
static bool taken(Plan *p, const TileOp *op, const TileValue *v) {
    for (int i = 0; i < op->results.n; i++)
        if (find(p, op->results.data[i]->id) == find(p, v->id)) return true;
    return false;
}

static void take_place(Plan *p, const TileOp *op, int result, int arg, int step) {
    const TileValue *v = op->args.data[arg], *r = op->results.data[result];
    if (find(p, r->id) != r->id || !same_shape(v, r) || !dies_here(p, v, op, step) ||
        taken(p, op, v))
        return;
    if (used_twice(op, arg)) return;
    join(p, v->id, r->id);
}

static void share_starts(Plan *p, const TileOp *op, int step) {
    for (int i = 0; i < op->args.n; i++) {
        const TileValue *v = op->args.data[i];
        if (dies_here(p, v, op, step) && !used_twice(op, i))
            join(p, v->id, op->carried.data[i]->id);
    }
}

static void share(Plan *p, const TileBlock *b) {
    for (const TileOp *op = b->first; op; op = op->next) {
        p->step++;
        int step = p->step;
        if (op->kind == TILE_LOOP) {
            for (int i = 0; i < op->results.n; i++)
                join(p, op->carried.data[i]->id, op->results.data[i]->id);
            share_starts(p, op, step);
            p->step++;
            share(p, &op->body);
            p->step++;
        } else if (op->kind == TILE_MMA && op->args.n > 2) {
            take_place(p, op, 0, 2, step);
        } else if (op->kind == TILE_MAP) {
            for (int r = 0; r < op->results.n; r++)
                for (int a = 0; a < op->args.n && op->outs.data[r].reduce == EX_CONST; a++)
                    take_place(p, op, r, a, step);
        }
    }
}

// A yielded value that still has a slot of its own goes to the carried one's, when that is no
// longer read by then.
static void share_yield(Plan *p, const TileOp *loop) {
    const TileOp *yield = loop->body.last;
    for (int i = 0; i < loop->carried.n; i++) {
        const TileValue *y = yield->args.data[i], *c = loop->carried.data[i];
        const Life *ly = &p->life[y->id], *lc = &p->life[c->id];
        bool alone = find(p, y->id) == y->id && ly->block == &loop->body && ly->carrier == NULL;
        for (int id = 0; alone && id < p->cg->k->nvalues; id++)
            if (p->value[id] && id != y->id && p->life[id].group == y->id) alone = false;
        if (alone && !p->h->place[y->id].view && !used_twice(yield, i) && lc->last < ly->def &&
            same_shape(y, c)) {
            bool free = true; // nothing else was made in the carried one's place
            for (int id = 0; id < p->cg->k->nvalues; id++)
                if (p->value[id] && p->life[id].block == &loop->body && id != c->id &&
                    find(p, id) == find(p, c->id))
                    free = false;
            if (free) join(p, c->id, y->id);
        }
    }
}

static void share_yields(Plan *p, const TileBlock *b) {
    for (const TileOp *op = b->first; op; op = op->next)
        if (op->kind == TILE_LOOP) {
            share_yields(p, &op->body);
            share_yield(p, op);
        }
}

// ---- slots

static bool overlap(const Life *a, const Life *b) { return a->def <= b->end && b->def <= a->end; }

static bool fits(Plan *p, int slot, int v, int64_t bytes) {
    int64_t has = p->h->slots[slot].bytes;
    if (bytes > has || has > 2 * bytes)
        return false; // a slot of about the right size, so that small things stay together
    for (int id = 0; id < p->cg->k->nvalues; id++)
        if (p->value[id] && p->life[id].group == id && p->h->place[id].slot == slot &&
            overlap(&p->life[id], &p->life[v]))
            return false;
    return true;
}

static void place_groups(Plan *p) {
    Host *h = p->h;
    int n = p->cg->k->nvalues;
    h->slots = ARENA_ARRAY(p->cg->arena, HostSlot, n + 1);
    for (int id = 0; id < n; id++) h->place[id].slot = -1;
    for (int id = 0; id < n; id++) {
        if (!p->value[id] || find(p, id) != id) continue;
        int64_t bytes = host_bytes(p->cg, p->value[id]);
        int slot = 0;
        while (slot < h->nslots && !fits(p, slot, id, bytes)) slot++;
        if (slot == h->nslots) h->slots[h->nslots++].bytes = bytes;
        h->place[id].slot = slot;
    }
    for (int id = 0; id < n; id++)
        if (p->value[id]) h->place[id].slot = h->place[find(p, id)].slot;
}

// ---- views: what is loaded without the lane axis, as f32, and by nobody stored

// Loaded for products that sum over the lanes, and for nothing else: they want vectors along what is
// left.
static bool wants_rows(const Plan *p, const TileValue *v) {
    const TileBlock *body = &p->cg->k->body;
    bool any = false;
    for (const TileOp *op = tile_next(body, NULL); op; op = tile_next(body, op))
        for (int i = 0; i < op->args.n; i++) {
            if (op->args.data[i] != v) continue;
            if (op->kind != TILE_MMA || tile_contracted_axis(op) != p->h->lane_axis) return false;
            any = true;
        }
    return any && v->rank == 2;
}

static void find_rows(Plan *p) {
    const TileBlock *body = &p->cg->k->body;
    for (const TileOp *op = tile_next(body, NULL); op; op = tile_next(body, op))
        if (op->kind == TILE_LOAD && tile_has_axis(op->results.data[0], p->h->lane_axis))
            p->h->place[op->results.data[0]->id].rows = wants_rows(p, op->results.data[0]);
}

static void find_views(Plan *p, const TileBlock *b) {
    for (const TileOp *op = b->first; op; op = op->next) {
        if (op->kind == TILE_LOOP) find_views(p, &op->body);
        if (op->kind != TILE_LOAD) continue;
        const TileValue *v = op->results.data[0];
        Dtype d = p->cg->p->tensors.data[op->tensor].dtype;
        bool lanes = tile_has_axis(v, p->h->lane_axis) && !p->h->place[v->id].rows,
             exact = p->cg->p->tensors.data[op->tensor].exact;
        p->h->place[v->id].view = !lanes && !exact && !tile_goes_by_element(op, -1) &&
                                  d == DT_F32 && v->dtype == DT_F32 && !p->life[v->id].fixed_use &&
                                  !tile_stores_to(p->cg->k, op->tensor);
    }
}

void host_plan(Cg *cg, Host *h) {
    int n = cg->k->nvalues;
    Plan p = {.cg = cg, .h = h};
    h->place = ARENA_ARRAY(cg->arena, HostPlace, n + 1);
    p.value = ARENA_ARRAY(cg->arena, const TileValue *, n + 1);
    p.life = ARENA_ARRAY(cg->arena, Life, n + 1);
    walk(&p, &cg->k->body);
    for (int id = 0; id < n; id++)
        if (p.life[id].last > p.life[id].end) p.life[id].end = p.life[id].last;
    find_rows(&p);
    find_views(&p, &cg->k->body);
    p.step = 0;
    share(&p, &cg->k->body);
    share_yields(&p, &cg->k->body);
    place_groups(&p);
}
