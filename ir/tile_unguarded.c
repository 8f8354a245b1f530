// tile_unguarded.c: see tile_unguarded.h.
//
// In: a kernel and weights of it, made in a loop. Of every value it is worked out what a NaN weight
// of a row does to the row's elements: whether they depend on what the weight was rounded to
// (`touched`), and whether they are NaN for certain without it, for a weight of an earlier step
// (`earlier`) and for one of the current step (`now`). What is touched must be NaN when it is stored.
#include "ir/tile_unguarded.h"

typedef struct Fate {
    bool touched, earlier, now;
} Fate;

typedef struct Walk {
    Arena *scratch;
    const TileKernel *k;
    const TileValue *v;
    const TileOp *loop; // in which v is made
    int row;            // axis
    Fate *fate;         // by value
    bool good;          // nothing has been found that a wrong weight spoils
    bool never;         // no weight is ever NaN
} Walk;

// ---- expressions

typedef enum Known { ANY, IS_NAN, NO_NAN, IS_FALSE, IS_TRUE } Known;

static Known negated(Known a) { return a == IS_FALSE ? IS_TRUE : a == IS_TRUE ? IS_FALSE : ANY; }

static Known selected(const Known *a) {
    if (a[0] == IS_TRUE || a[0] == IS_FALSE) return a[0] == IS_TRUE ? a[1] : a[2];
    return a[1] == a[2] ? a[1] : ANY;
}

static Known constant(const Ex *e) {
    if (e->type == EX_BOOL) return e->i ? IS_TRUE : IS_FALSE;
    return e->type == EX_F32 && e->f == e->f ? NO_NAN : ANY;
}

static Known combined(const Ex *e, const Known *a) {
    bool nan = false;
    for (int i = 0; i < e->nargs && i < 3; i++) nan |= a[i] == IS_NAN;
    switch ((int)e->op) {
    case EX_CONST: return constant(e);
    case EX_NEG:
    case EX_ABS:
    case EX_ROUNDED:
    case EX_EXP:
    case EX_EXP2: return a[0];
    case EX_MIN: // a NaN is passed over
    case EX_MAX: return a[0] == NO_NAN || a[1] == NO_NAN ? NO_NAN : ANY;
    case EX_MUL: // not of 0 and infinity
        return nan ? IS_NAN : a[0] == NO_NAN && e->args[0] == e->args[1] ? NO_NAN : ANY;
    case EX_ADD:
    case EX_SUB:
    case EX_DIV:
    case EX_FMA:
    case EX_LOG:
    case EX_LOG2:
    case EX_SQRT:
    case EX_RSQRT:
    case EX_RCP: return nan ? IS_NAN : ANY;
    case EX_EQ:
    case EX_LT:
    case EX_LE: return nan ? IS_FALSE : ANY;
    case EX_NE: return nan ? IS_TRUE : ANY;
    case EX_NOT: return negated(a[0]);
    case EX_AND: return a[0] == IS_FALSE || a[1] == IS_FALSE ? IS_FALSE : a[0] == a[1] ? a[0] : ANY;
    case EX_OR: return a[0] == IS_TRUE || a[1] == IS_TRUE ? IS_TRUE : a[0] == a[1] ? a[0] : ANY;
    case EX_SELECT: return selected(a);
    default: return ANY;
    }
}

// What is known of a map's expression where all operands that are NaN for a weight (of an earlier
// step, or of this one) are.
static Known known_of(const Walk *w, const TileOp *map, const Ex *body, bool earlier) {
    const Ex **order;
    ExMemo known = {0};
    const Known *got;
    int n = ex_order(w->scratch, &body, 1, &order);
    static const Known values[] = {ANY, IS_NAN, NO_NAN, IS_FALSE, IS_TRUE};
    for (int i = 0; i < n; i++) {
        const Ex *e = order[i];
        Known a[3] = {ANY, ANY, ANY}, x;
        for (int j = 0; j < e->nargs && j < 3; j++)
            if ((got = ex_memo_get(&known, e->args[j]))) a[j] = *got;
        if (e->op == EX_SYM && e->sym == SYM_PARAM) {
            const Fate *f = &w->fate[map->args.data[e->index]->id];
            x = (earlier ? f->earlier : f->now) ? IS_NAN : ANY;
        } else {
            x = combined(e, a);
        }
        ex_memo_put(w->scratch, &known, e, &values[x]);
    }
    got = ex_memo_get(&known, body);
    return got ? *got : ANY;
}

// ---- operations

static bool must_be_nan(const Walk *w, const TileOp *map, const Ex *body, bool earlier) {
    bool any = false; // of its operands is
    for (int i = 0; i < map->args.n; i++) {
        const Fate *f = &w->fate[map->args.data[i]->id];
        any |= earlier ? f->earlier : f->now;
    }
    return any && known_of(w, map, body, earlier) == IS_NAN;
}

static bool touched(const Walk *w, const TileValue *v) { return w->fate[v->id].touched; }

static void map(Walk *w, const TileOp *op) {
    for (int i = 0; i < op->results.n; i++) {
        const TileResult *out = &op->outs.data[i];
        const TileValue *r = op->results.data[i];
        Fate f = {false, false, false};
        for (int k = 0; k < op->args.n; k++)
            f.touched |= touched(w, op->args.data[k]) && ex_uses(out->body, SYM_PARAM, k);
        bool mixes = out->reduce != EX_CONST && out->reduce_axis == w->row;
        if (f.touched && (mixes || !tile_has_axis(r, w->row))) w->good = false;
        if (!mixes && !out->scan && (out->reduce == EX_CONST || out->reduce == EX_ROWSUM)) {
            f.earlier = must_be_nan(w, op, out->body, true);
            f.now = must_be_nan(w, op, out->body, false);
        }
        w->fate[r->id] = f;
    }
}

// The map that makes the weights, and with them their sum.
static void weights(Walk *w, const TileOp *op) {
    const Ex *body = NULL;
    map(w, op);
    for (int i = 0; i < op->results.n; i++)
        if (op->results.data[i] == w->v) body = op->outs.data[i].body;
    for (int i = 0; i < op->results.n; i++) {
        const TileResult *out = &op->outs.data[i];
        bool sum = out->reduce == EX_ROWSUM && !out->scan && out->reduce_axis != w->row &&
                   out->body == body;
        if (sum && tile_has_axis(w->v, out->reduce_axis))
            w->fate[op->results.data[i]->id].now = true;
    }
    w->never = body && known_of(w, op, body, false) == NO_NAN;
    w->fate[w->v->id] = (Fate){.touched = true};
}

static void product(Walk *w, const TileOp *op) {
    const TileValue *r = op->results.data[0];
    Fate f = {false, false, false};
    for (int i = 0; i < op->args.n; i++) {
        const TileValue *a = op->args.data[i];
        if (!touched(w, a)) continue;
        f.touched = true;
        if (!tile_has_axis(a, w->row)) w->good = false;
    }
    if (f.touched && !tile_has_axis(r, w->row)) w->good = false;
    w->fate[r->id] = f;
}

static void run(Walk *w, const TileBlock *b, const TileOp *from);

// What a loop carries, until another turn changes nothing: certainty is only lost, touch only won.
static void loop(Walk *w, const TileOp *op) {
    bool own = op == w->loop;
    for (int i = 0; i < op->carried.n; i++) {
        Fate *f = &w->fate[op->carried.data[i]->id];
        *f = w->fate[op->args.data[i]->id];
        f->now &= !own; // the step's weight is to come
    }
    for (bool changed = true; changed;) {
        changed = false;
        run(w, &op->body, op->body.first);
        for (int i = 0; i < op->carried.n; i++) {
            Fate *f = &w->fate[op->carried.data[i]->id], was = *f;
            const Fate *y = &w->fate[op->body.last->args.data[i]->id];
            f->touched |= y->touched;
            f->earlier &= y->earlier && (y->now || !own);
            f->now &= y->now;
            changed |= was.touched != f->touched || was.earlier != f->earlier || was.now != f->now;
        }
    }
    for (int i = 0; i < op->results.n; i++)
        w->fate[op->results.data[i]->id] = w->fate[op->carried.data[i]->id];
}

static void other(Walk *w, const TileOp *op) {
    for (int i = 0; i < op->args.n; i++)
        if (touched(w, op->args.data[i])) w->good = false;
    for (int i = 0; i < op->results.n; i++) w->fate[op->results.data[i]->id] = (Fate){0};
}

static void run(Walk *w, const TileBlock *b, const TileOp *from) {
    for (const TileOp *op = from; op; op = op->next) {
        if (op == w->v->def) {
            weights(w, op);
        } else if (op->kind == TILE_MAP) {
            map(w, op);
        } else if (op->kind == TILE_MMA) {
            product(w, op);
        } else if (op->kind == TILE_LOOP) {
            loop(w, op);
        } else if (op->kind == TILE_STORE) {
            const Fate *f = &w->fate[op->args.data[0]->id];
            w->good &= !f->touched || (f->earlier && b->owner != w->loop);
        } else if (op->kind != TILE_YIELD) {
            other(w, op);
        }
    }
}

// False: the value is none of a loop's weights by rows. Of what is made before the loop everything
// holds: there is no weight yet.
static bool walk(Walk *w, Arena *scratch, const TileKernel *k, const TileValue *v) {
    const TileOp *made = v->def, *loop = made && made->block ? made->block->owner : NULL;
    *w = (Walk){scratch, k, v, loop, tile_grid_axis(k), NULL, true, false};
    if (v->rank != 2 || w->row < 0 || !tile_has_axis(v, w->row) || made->kind != TILE_MAP ||
        !loop || loop->kind != TILE_LOOP || loop->block != &k->body)
        return false;
    w->fate = ARENA_ARRAY(scratch, Fate, k->nvalues + 1);
    for (const TileOp *op = tile_next(&k->body, NULL); op != loop; op = tile_next(&k->body, op))
        for (int i = 0; i < op->results.n; i++) w->fate[op->results.data[i]->id].earlier = true;
    run(w, &k->body, loop);
    return true;
}

bool tile_may_be_unguarded(Arena *scratch, const TileKernel *k, const TileValue *v) {
    Walk w;
    return walk(&w, scratch, k, v) && (w.good || w.never);
}

bool tile_tells_nan(Arena *scratch, const TileKernel *k, const TileValue *v, const TileValue *x) {
    Walk w;
    return walk(&w, scratch, k, v) && w.fate[x->id].earlier && !w.fate[x->id].touched;
}
