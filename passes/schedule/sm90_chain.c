// sm90_chain.c: a nest of gradients as a chain of three roles that have the same keys, one warpgroup each.
//
// In: the step of a nest (sm90_nest.c), whose sums of keys and values one warpgroup has no registers for. Out: its places:
//
//     weights     s   maps                    give x    dv
//     gradients        dp         take x   maps   give ds    dk
//     sums                                           take ds   dq, in parts   add
//
// Gradients of scores want something of the scores: the one number x that all of it goes into (the weight, for softmax), or else
// the score. It goes in f32 from each thread to the same thread of the other role. Nobody waits for all: a role is as far
// ahead as the pipes have stages.
#include "passes/schedule/sm90.h"

#include <string.h>

enum {
    PANEL = 64,
    WARPGROUPS = 4, // of a block
    GROUP = 128,    // threads of each
    OTHER = 32,     // registers beside a part of dq
    MAX_GIVEN = 2,
};

// Orders within the roles.
enum { FIRST, MAKE, GIVE, SUM };

// ---- which products a value is made of

typedef struct Step {
    Sm90 *s;
    TileBlock *b;
    TileOp *across; // the product that sums over keys
    unsigned early,
        late; // products of scores, by their number in the step: of weights, and of what only gradients need
} Step;

static bool is_across(const TileKernel *k, const TileOp *op) {
    return op->kind == TILE_MMA && !tile_has_axis(op->results.data[0], tile_grid_axis(k));
}

static bool is_sum(const TileOp *op) { return op->kind == TILE_MMA && op->args.n > 2; }

static int number_of(const TileOp *op) {
    int n = 0;
    for (const TileOp *at = op->block->first; at != op; at = at->next) n += at->kind == TILE_MMA;
    return n;
}

static unsigned products_of(const TileBlock *b, const TileValue *v) {
    unsigned set = 0;
    if (!v->def || v->def->block != b) return 0;
    if (v->def->kind == TILE_MMA) return 1u << number_of(v->def);
    for (int i = 0; v->def->kind == TILE_MAP && i < v->def->args.n; i++) {
        int r = 0;
        while (v->def->results.data[r] != v) r++;
        if (ex_uses(v->def->outs.data[r].body, SYM_PARAM, i))
            set |= products_of(b, v->def->args.data[i]);
    }
    return set;
}

static const TileValue *left_of(const TileOp *product) { // which a map makes; NULL: none is
    for (int i = 0; i < 2; i++) {
        const TileValue *v = product->args.data[i];
        if (v->def && v->def->kind == TILE_MAP && v->def->block == product->block) return v;
    }
    return NULL;
}

// Whether there is a step to be made of it: the sums of weights need fewer products than what is summed over keys.
static bool find_products(Step *c) {
    int sums = 0, across = 0;
    c->early = c->late = 0;
    for (TileOp *op = c->b->first; op; op = op->next) {
        if (op->kind == TILE_MAP)
            for (int i = 0; i < op->outs.n; i++)
                if (op->outs.data[i].reduce != EX_CONST) return false;
        if (!is_across(c->s->k, op)) continue;
        c->across = op;
        across++;
    }
    const TileValue *ds = across == 1 ? left_of(c->across) : NULL;
    for (TileOp *op = c->b->first; ds && op; op = op->next) {
        if (!is_sum(op)) continue;
        const TileValue *w = left_of(op);
        if (!w) return false;
        if (w != ds) c->early |= products_of(c->b, w);
        sums++;
    }
    if (!ds || sums != 2) return false;
    c->late = products_of(c->b, ds) & ~c->early;
    return c->early && c->late;
}

static TileBlock *innermost(TileBlock *b) {
    for (TileOp *op = b->first; op; op = op->next)
        if (op->kind == TILE_LOOP) return innermost(&op->body);
    return b;
}

bool sm90_can_chain(const TileProgram *p, const TileKernel *k) {
    Sm90 s = {.p = (TileProgram *)p, .k = (TileKernel *)k, .x = p->pool};
    Step c = {.s = &s, .b = innermost(&s.k->body)};
    return find_products(&c);
}

// ---- what goes from one role to the other

static bool needs(const Step *c, const TileOp *map, const Ex *e, unsigned products) {
    for (int i = 0; i < map->args.n; i++)
        if (products_of(c->b, map->args.data[i]) & products && ex_uses(e, SYM_PARAM, i))
            return true;
    return false;
}

// What needs no late product is a map of its own, before the others.
static TileOp *make_early(Step *c, TileOp *map) {
    TileProgram *p = c->s->p;
    TileOp *early = pass_map(p, c->s->k, NULL, pass_map_axes(map), map->span);
    for (int i = map->outs.n - 1; i >= 0; i--) {
        TileResult out = map->outs.data[i];
        TileValue *v = map->results.data[i];
        if (needs(c, map, out.body, c->late)) continue;
        const Ex *body = pass_transplant(p, early, map, out.body);
        TileValue *same = pass_out(p, c->s->k, early, v->name, v->dtype, body, EX_CONST, 0);
        tile_replace(&c->s->k->body, v, same);
        pass_drop_result(map, i);
    }
    tile_insert_before(map, early);
    return early;
}

typedef struct Cut {
    const Step *c;
    const TileOp *map;
    const Ex *given[MAX_GIVEN];
    int n; // more than there is room for: it is not one number
} Cut;

static void give(Cut *cut, const Ex *e) {
    for (int i = 0; i < cut->n && i < MAX_GIVEN; i++)
        if (cut->given[i] == e) return;
    if (cut->n < MAX_GIVEN) cut->given[cut->n] = e;
    cut->n++;
}

// The largest parts of an expression that need scores, and no late product.
static void find_given(void *ctx, const Ex *e) {
    Cut *cut = ctx;
    if (!needs(cut->c, cut->map, e, cut->c->late)) return;
    for (int i = 0; i < e->nargs; i++) {
        const Ex *a = e->args[i];
        bool is =
            !needs(cut->c, cut->map, a, cut->c->late) && needs(cut->c, cut->map, a, cut->c->early);
        if (is) give(cut, a);
    }
}

static void find_scores(Cut *cut) {
    cut->n = 0;
    for (int i = 0; i < cut->map->args.n; i++)
        if (products_of(cut->c->b, cut->map->args.data[i]) & cut->c->early)
            give(cut, ex_sym(cut->c->s->x, SYM_PARAM, i, EX_F32));
}

// To shared memory, for another role.
static TileValue *share(Step *c, TileValue *v, TileOp *before, int stages) {
    TileValue *shared = pass_put_shared(c->s->p, c->s->k, before, v);
    shared->stages = stages;
    return shared;
}

static void cut_map(Step *c, TileOp *map, TileOp *early) {
    Cut cut = {.c = c, .map = map};
    for (int i = 0; i < map->outs.n; i++) ex_visit(map->outs.data[i].body, find_given, &cut);
    if (cut.n > 1 || (cut.n && cut.given[0]->type != EX_F32)) find_scores(&cut);
    for (int n = 0; n < cut.n && n < MAX_GIVEN; n++) {
        const Ex *body = pass_transplant(c->s->p, early, map, cut.given[n]);
        TileValue *x = pass_out(c->s->p, c->s->k, early, "x", DT_F32, body, EX_CONST, 0);
        const Ex *given = pass_operand(c->s->p, map, share(c, x, map, 1));
        for (int i = 0; i < map->outs.n; i++)
            map->outs.data[i].body =
                ex_replace(c->s->x, map->outs.data[i].body, cut.given[n], given);
    }
    pass_compact(c->s->p, map);
}

static void separate(Step *c) {
    for (TileOp *op = c->b->first; op; op = op->next) {
        bool late = false;
        for (int i = 0; op->kind == TILE_MAP && i < op->outs.n; i++)
            late |= needs(c, op, op->outs.data[i].body, c->late);
        if (!late) continue;
        TileOp *early = make_early(c, op);
        cut_map(c, op, early);
        if (!early->outs.n) tile_unlink(early);
    }
}

// ---- parts of dq

int sm90_chain_registers(Knobs s) {
    int all = target_block_registers(WARPGROUPS * GROUP) / GROUP;
    return (all - s.producer_registers - 2 * s.registers) & ~7;
}

int sm90_chain_columns(Knobs s) { return 2 * (sm90_chain_registers(s) - OTHER); }

// Columns of dq at once: all, or whole panels.
static int part_of(Knobs s, int columns) {
    int part = columns, most = sm90_chain_columns(s);
    while (part > PANEL && (part > most || columns % part)) part -= PANEL;
    return part;
}

static TileOp *store_of(TileOp *product) {
    TileOp *op = product->next;
    while (op && !(op->kind == TILE_STORE && op->args.data[0] == product->results.data[0]))
        op = op->next;
    return op;
}

static int axis_of_parts(Sm90 *s, int all, int part) {
    const char *name = arena_printf(s->p->arena, "%sp", s->k->axes[all].name);
    for (int a = 0; a < s->k->naxes; a++)
        if (!strcmp(s->k->axes[a].name, name)) return a;
    int axis = tile_axis(s->k, name, s->k->axes[all].size, false);
    s->k->axes[axis].extent = part;
    return axis;
}

static void make_part(Step *c, TileOp *store, int axis, int from) {
    Sm90 *s = c->s;
    TileOp *product = c->across;
    const TileValue *sum = product->results.data[0];
    TileValue *whole = product->args.data[tile_has_axis(product->args.data[1], sum->axis[1])];
    TileValue *ds = product->args.data[product->args.data[0] == whole];
    uint8_t axes[] = {whole->axis[0], (uint8_t)axis}, sums[] = {sum->axis[0], (uint8_t)axis};
    TileOp *beside = tile_op(s->p, s->k, NULL, TILE_BESIDE, product->span);
    tile_insert_before(product, beside);
    tile_arg(s->p, beside, whole);
    beside->from_column = from, beside->width = s->k->axes[axis].extent;
    TileValue *some = tile_result(s->p, s->k, beside, whole->name, whole->dtype, axes, 2);
    some->home = HOME_SHARED;
    TileOp *part = tile_op(s->p, s->k, NULL, TILE_MMA, product->span);
    tile_insert_before(product, part);
    tile_arg(s->p, part, ds), tile_arg(s->p, part, some);
    TileValue *v = tile_result(s->p, s->k, part, sum->name, sum->dtype, sums, 2);
    TileOp *add = tile_clone(s->p, s->k, store, NULL, NULL);
    tile_insert_before(product, add);
    add->args.data[0] = v;
    TileCoord *last = &add->coord[s->p->tensors.data[add->tensor].rank - 1];
    last->axis = axis, last->at = ex_i32(s->x, from / s->k->axes[axis].extent);
}

static void split_across(Step *c) {
    TileOp *store = store_of(c->across);
    int all = c->across->results.data[0]->axis[1], columns = c->s->k->axes[all].extent;
    int part = part_of(c->s->shape, columns);
    if (part == columns) return;
    int axis = axis_of_parts(c->s, all, part);
    for (int from = 0; from < columns; from += part) make_part(c, store, axis, from);
    tile_unlink(store);
    tile_unlink(c->across);
}

// ---- places

static const char *role_of(const Step *c, const TileOp *op) {
    if (is_across(c->s->k, op) || op->kind == TILE_STORE || op->kind == TILE_BESIDE) return "sums";
    const TileValue *v = is_sum(op) ? left_of(op) : op->results.data[0];
    return products_of(c->b, v) & c->late ? "gradients" : "weights";
}

// A vector that only gradients read comes behind their tile.
static int order_of_load(const TileOp *load) {
    const TileValue *v = load->results.data[0];
    bool early = false;
    for (const TileOp *op = load->next; op; op = op->next)
        if (tile_uses(op, v)) early |= strcmp(op->role, "weights") == 0;
    return v->rank == 2 ? 2 * !early : early ? 1 : 3;
}

void sm90_place_chain(Sm90 *s, TileBlock *b, int stages) {
    Step c = {.s = s, .b = b};
    bool found = find_products(&c);
    (void)found;
    separate(&c);
    find_products(&c); // their numbers are others
    int i = left_of(c.across) == c.across->args.data[1];
    c.across->args.data[i] = share(&c, c.across->args.data[i], c.across, stages);
    for (TileOp *op = b->first; op; op = op->next) {
        if (op->kind == TILE_LOAD || op->kind == TILE_YIELD) continue;
        bool gives = op->kind == TILE_MAP && op->results.data[0]->home == HOME_SHARED;
        pass_place(op, role_of(&c, op), 0,
                   is_sum(op)             ? SUM
                   : gives                ? GIVE
                   : op->kind == TILE_MAP ? MAKE
                                          : FIRST);
    }
    split_across(&c);
    for (TileOp *op = b->first; op; op = op->next)
        if (!op->role && op->kind != TILE_LOAD && op->kind != TILE_YIELD)
            pass_place(op, "sums", 0, FIRST);
    for (TileOp *op = b->first; op; op = op->next)
        if (op->kind == TILE_LOAD) pass_place(op, "producer", 0, order_of_load(op));
}

// Of what stands around the steps: who makes the value, or begins what a step carries.
const char *sm90_chain_role(const TileValue *v) {
    const TileOp *def = v->def;
    if (!def) return NULL;
    if (def->kind == TILE_LOOP)
        for (int i = 0; i < def->results.n; i++)
            if (def->results.data[i] == v) return sm90_chain_role(def->body.last->args.data[i]);
    if (def->role) return def->role;
    for (const TileOp *op = def->next; op; op = op->next)
        for (int i = 0; op->kind == TILE_LOOP && i < op->args.n; i++)
            if (op->args.data[i] == v) return sm90_chain_role(op->results.data[i]);
    return NULL;
}

// ---- what several roles need

static const char *reader(const TileOp *op,
                          const TileValue *v) { // the role that reads it there; NULL: none does
    for (int i = 0; i < op->args.n; i++)
        if (op->args.data[i] == v)
            return op->kind == TILE_LOOP ? sm90_chain_role(op->results.data[i]) : op->role;
    return NULL;
}

static void read_from(Sm90 *s, TileOp *maker, TileOp *copy, const char *role) {
    for (TileOp *op = maker->next ? maker->next : NULL; op; op = tile_next(&s->k->body, op))
        for (int r = 0; r < maker->results.n; r++) {
            const char *own = reader(op, maker->results.data[r]);
            for (int i = 0; own && !strcmp(own, role) && i < op->args.n; i++)
                if (op->args.data[i] == maker->results.data[r])
                    op->args.data[i] = copy->results.data[r];
        }
}

// What registers hold is made by each role that reads it.
static void make_for_each(Sm90 *s, TileOp *maker) {
    for (TileOp *op = maker->next; op; op = tile_next(&s->k->body, op))
        for (int r = 0; r < maker->results.n; r++) {
            const char *role = reader(op, maker->results.data[r]);
            if (!role || !strcmp(role, maker->role)) continue;
            TileOp *copy = tile_clone(s->p, s->k, maker, NULL, NULL);
            tile_insert_before(maker->next, copy);
            copy->role = role, copy->place = maker->place;
            read_from(s, maker, copy, role);
        }
}

void sm90_chain_copies(Sm90 *s) {
    VEC(TileOp *) makers = {0};
    for (TileOp *op = tile_next(&s->k->body, NULL); op; op = tile_next(&s->k->body, op)) {
        bool makes = op->kind == TILE_MAP || op->kind == TILE_LOAD;
        if (makes && op->results.data[0]->home != HOME_SHARED) VEC_PUSH(s->p->arena, &makers, op);
    }
    for (int i = makers.n; i-- > 0;) make_for_each(s, makers.data[i]);
}
