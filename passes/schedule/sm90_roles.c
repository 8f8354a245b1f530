// sm90_roles.c: which role does what of a kernel in roles, and when; of all but a sweep whose products overlap with maps (sm90_assign.c).
//
// In: a kernel with its extents, in classes, and the roles that it is to have (sm90_nest.c, sm90_apart.c). Out: places, and roles without
// bodies. A producer copies tiles. Where one role computes, it has all else, by text but in a nest. Where several do, each has what is made
// of its level's products; the last one has all levels above:
//
//     level                0              1                   2
//     gradients            s, w, dv       dp, ds, dk          dq, which sums over the tile's keys, added to memory
//     an attention         s, w           o, which sums over keys, and all that has its columns
//
// What a role needs that another makes of products goes through shared memory, what needs none it makes for itself. All is of stage 0;
// in a role
//
//     products of scores   maps   give   sums   what is read across warpgroups   dq   sums that need it   add dq
//
// so that maps run under products, ds is written under dv, and dq leaves under dk. There are three exceptions:
//
// * Where warpgroups take turns (`turns`) dq is of the step before, and ds goes to it through a pipe: a warpgroup has its turn from s until
//   dp has landed, and makes its maps beside the other's products.
// * Where one warpgroup has hardly registers for its sums (tight), weights are narrow before their gradients are made of them, and dq is
//   alone in flight:   s   weights   dp   dv   maps   dk   share ds   (all has landed)   dq   add dq
// * Scores apart are by text, or, with three stages of keys, a step ahead: weights are handed over beside the next step's product, and
//   the sums of a step are added up while the weights of the next one are made, by other warps:
//
//     scores     s 0   give p 1   maps 0   give c 0
//     sums       acc * c + p v 1
#include "passes/mask/interval.h"
#include "passes/schedule/expand.h"
#include "passes/schedule/sm90.h"
#include "passes/schedule/strips.h"

#include <string.h>

enum {
    PANEL = 64,
    MAX_GIVEN = 2,
    AHEAD = 3, // stages with which scores are a step ahead of their sums
};

// Orders within a role.
enum {
    SCORES,
    WEIGHTS,
    OTHER_SCORES,
    THEIR_SUM,
    MAPS,
    SCATTER,
    GIVE,
    FIRST_SUM,
    SHARE,
    ACROSS,
    SUMS,
    ADD
};

typedef struct Step { // of a kernel, and of one of its innermost loops
    Sm90 *s;
    TileBlock *b;
    TileOp *across; // the product that sums over keys
    unsigned early,
        late; // products of scores, by number: of weights, and of what only gradients need
} Step;

static bool is_gradients(const Sm90 *s) { return s->k->purpose == PURPOSE_GRADIENTS; }
static bool is_sum(const TileOp *op) { return op->kind == TILE_MMA && op->args.n > 2; }

static bool is_across(const TileKernel *k, const TileOp *op) {
    return op->kind == TILE_MMA && !tile_has_axis(op->results.data[0], tile_grid_axis(k));
}

static bool is_step(const TileBlock *b) {
    for (const TileOp *op = b->first; op; op = op->next)
        if (op->kind == TILE_LOOP) return false;
    return b->owner != NULL;
}

static bool is_ahead(Knobs s) { return s.stages >= AHEAD; }

// Where scores are ahead, they hand over a step's before the sums of the step before have landed.
int sm90_stages_of_numbers(Knobs s) { return is_ahead(s) ? 2 : 1; }

// ---- which products a value is made of, by their number in the step

static unsigned products_of(const TileBlock *b, const TileValue *v);

static unsigned made_of(const TileBlock *b, const TileOp *map, const Ex *e) {
    unsigned set = 0;
    for (int i = 0; i < map->args.n; i++)
        if (ex_uses(e, SYM_PARAM, i)) set |= products_of(b, map->args.data[i]);
    return set;
}

static int number_of(const TileOp *op) {
    int n = 0;
    for (const TileOp *at = op->block->first; at != op; at = at->next) n += at->kind == TILE_MMA;
    return n;
}

static int result_of(const TileOp *op, const TileValue *v) {
    int i = 0;
    while (op->results.data[i] != v) i++;
    return i;
}

static unsigned products_of(const TileBlock *b, const TileValue *v) {
    const TileOp *def = v->def;
    if (!def || def->block != b) return 0;
    if (def->kind == TILE_MMA) return 1u << number_of(def);
    return def->kind == TILE_MAP ? made_of(b, def, def->outs.data[result_of(def, v)].body) : 0;
}

static const TileValue *left_of(const TileOp *product) { // which a map makes; NULL: none is
    for (int i = 0; i < 2; i++) {
        const TileValue *v = product->args.data[i];
        if (v->def && v->def->kind == TILE_MAP && v->def->block == product->block) return v;
    }
    return NULL;
}

// Whether weights and gradients may have roles of their own: the sums of weights need fewer products than what is summed over keys.
static bool find_products(Step *c) {
    int sums = 0, across = 0;
    c->early = c->late = 0;
    for (TileOp *op = c->b->first; op; op = op->next) {
        for (int i = 0; op->kind == TILE_MAP && i < op->outs.n; i++)
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

bool sm90_may_part(const TileProgram *p, const TileKernel *k) {
    Sm90 s = {.p = (TileProgram *)p, .k = (TileKernel *)k, .x = p->pool};
    TileOp *op = tile_next(&s.k->body, NULL);
    while (op && !(op->kind == TILE_LOOP && is_step(&op->body))) op = tile_next(&s.k->body, op);
    return op && find_products(&(Step){.s = &s, .b = &op->body});
}

// ---- levels

// Of an attention: what has the columns of v.
static bool has_columns(const Sm90 *s, const TileValue *v) {
    return tile_has_axis(v, pass_value_axis(s->p, s->k));
}

static const char *named(const Sm90 *s, int level) {
    return s->role[level < s->nroles ? level : s->nroles - 1].name;
}

static const char *role_in_step(const Step *c, const TileOp *op) {
    if (is_across(c->s->k, op) || op->kind == TILE_STORE) return named(c->s, 2);
    const TileValue *v = is_sum(op) ? left_of(op) : op->results.data[0];
    return named(c->s, v && products_of(c->b, v) & c->late ? 1 : 0);
}

// Of what stands around the steps: who makes the value, or begins what a step carries; NULL: nobody does.
static const char *role_of(const Sm90 *s, const TileValue *v) {
    const TileOp *def = v->def;
    if (!is_gradients(s)) return named(s, has_columns(s, v));
    if (!def) return NULL;
    for (int i = 0; def->kind == TILE_LOOP && i < def->results.n; i++)
        if (def->results.data[i] == v) return role_of(s, def->body.last->args.data[i]);
    if (def->role) return def->role;
    for (const TileOp *op = def->next; op; op = op->next)
        for (int i = 0; op->kind == TILE_LOOP && i < op->args.n; i++)
            if (op->args.data[i] == v) return role_of(s, op->results.data[i]);
    return NULL;
}

static const char *around(const Sm90 *s, const TileOp *op) {
    const char *role = role_of(s, op->kind == TILE_STORE ? op->args.data[0] : op->results.data[0]);
    return role ? role : named(s, 0);
}

// ---- a part of a map that stands before it

static TileValue *made_before(const Step *c, TileOp *early, const TileOp *map, const char *name,
                              Dtype t, const Ex *body) {
    body = pass_transplant(c->s->p, early, map, body);
    return pass_out(c->s->p, c->s->k, early, name, t, body, EX_CONST, 0);
}

static void read_instead(const Step *c, TileOp *map, const Ex *body, TileValue *v) {
    const Ex *made = pass_operand(c->s->p, map, v);
    for (int i = 0; i < map->outs.n; i++)
        map->outs.data[i].body = ex_replace(c->s->x, map->outs.data[i].body, body, made);
}

static void stand_for(const Step *c, TileOp *map, int result, TileValue *v) {
    tile_replace(&c->s->k->body, map->results.data[result], v);
    pass_drop_result(map, result);
}

// Whether the other results need what it is made of no more, but some product that it does not need.
bool sm90_goes_first(ExPool *x, const TileOp *map, int result) {
    const Ex *own = map->outs.data[result].body, *none = ex_f32(x, 0);
    unsigned mine = made_of(map->block, map, own), others = 0;
    for (int i = 0; i < map->outs.n; i++) {
        if (map->outs.data[i].reduce != EX_CONST) return false;
        const Ex *rest = ex_replace(x, map->outs.data[i].body, own, none);
        others |= made_of(map->block, map, rest);
    }
    return mine && others && !(mine & others);
}

// Weights before the gradients of scores: what needs fewer products is a map of its own, which runs under the others. In partial tiles
// the mask would be asked twice.
static void make_first(const Step *c, TileOp *map) {
    int i = 0;
    while (i < map->outs.n && !sm90_goes_first(c->s->x, map, i)) i++;
    if (i == map->outs.n) return;
    const TileValue *whole = map->results.data[i];
    const Ex *body = map->outs.data[i].body;
    Dtype t = c->s->tight ? whole->dtype : DT_F32;
    TileOp *first = pass_map_before(c->s->p, map, pass_axes_of(whole));
    TileValue *v = made_before(c, first, map, whole->name, t, body);
    read_instead(c, map, body, v);
    if (c->s->tight) stand_for(c, map, i, v);
    pass_compact(c->s->p, map);
}

// ---- maps of two levels

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
    const Step *c = cut->c;
    if (!(made_of(c->b, cut->map, e) & c->late)) return;
    for (int i = 0; i < e->nargs; i++) {
        unsigned set = made_of(c->b, cut->map, e->args[i]);
        if (!(set & c->late) && set & c->early) give(cut, e->args[i]);
    }
}

static void find_scores(Cut *cut) {
    cut->n = 0;
    for (int i = 0; i < cut->map->args.n; i++)
        if (products_of(cut->c->b, cut->map->args.data[i]) & cut->c->early)
            give(cut, ex_sym(cut->c->s->x, SYM_PARAM, i, EX_F32));
}

// What needs no late product is a map of its own. Gradients of scores want something of the scores: the one number x that all of it goes
// into (the weight, for softmax), or else the score.
static void cut_map(const Step *c, TileOp *map) {
    TileOp *early = pass_map_before(c->s->p, map, pass_map_axes(map));
    for (int i = map->outs.n - 1; i >= 0; i--) {
        const TileValue *v = map->results.data[i];
        const Ex *body = map->outs.data[i].body;
        if (!(made_of(c->b, map, body) & c->late))
            stand_for(c, map, i, made_before(c, early, map, v->name, v->dtype, body));
    }
    Cut cut = {.c = c, .map = map};
    for (int i = 0; i < map->outs.n; i++) ex_visit(map->outs.data[i].body, find_given, &cut);
    if (cut.n > 1 || (cut.n && cut.given[0]->type != EX_F32)) find_scores(&cut);
    for (int n = 0; n < cut.n && n < MAX_GIVEN; n++)
        read_instead(c, map, cut.given[n], made_before(c, early, map, "x", DT_F32, cut.given[n]));
    pass_compact(c->s->p, map);
    if (!early->outs.n) tile_unlink(early);
}

static void cut_maps(Step *c) {
    for (TileOp *op = c->b->first; op; op = op->next) {
        bool late = false;
        for (int i = 0; op->kind == TILE_MAP && i < op->outs.n; i++)
            late |= made_of(c->b, op, op->outs.data[i].body) & c->late;
        if (late) cut_map(c, op);
    }
}

// ---- parts of a product: columns of dq one after the other, or of q, of which some stay in registers

static int axis_of_part(Sm90 *s, int all, const char *mark, int extent, bool whole) {
    const char *name = arena_printf(s->p->arena, "%s%s", s->k->axes[all].name, mark);
    for (int a = 0; a < s->k->naxes; a++)
        if (!strcmp(s->k->axes[a].name, name)) return a;
    const Ex *size = whole ? ex_i32(s->x, extent) : s->k->axes[all].size;
    int axis = tile_axis(s->k, name, size, whole);
    s->k->axes[axis].extent = pass_padded(extent, 16);
    return axis;
}

static TileValue *columns_of(Sm90 *s, TileOp *at, TileValue *v, int axis, int from) {
    TileOp *beside = pass_op_before(s->p, at, TILE_BESIDE);
    tile_arg(s->p, beside, v);
    beside->from_column = from, beside->width = s->k->axes[axis].extent;
    uint8_t axes[] = {v->axis[0], (uint8_t)axis};
    return tile_result(s->p, s->k, beside, v->name, v->dtype, axes, 2);
}

static TileValue *product_of(Sm90 *s, TileOp *at, TileValue *a, TileValue *b, TileValue *sum,
                             const TileValue *like, int axis) {
    TileOp *part = pass_op_before(s->p, at, TILE_MMA);
    tile_arg(s->p, part, a), tile_arg(s->p, part, b);
    if (sum) tile_arg(s->p, part, sum);
    uint8_t axes[] = {like->axis[0], axis < 0 ? like->axis[1] : (uint8_t)axis};
    return tile_result(s->p, s->k, part, like->name, like->dtype, axes, 2);
}

static TileOp *with_columns(Sm90 *s, TileOp *at, TileOp *access, int axis) {
    TileOp *part = tile_clone(s->p, s->k, access, NULL, NULL);
    tile_insert_before(at, part);
    part->coord[s->p->tensors.data[part->tensor].rank - 1].axis = axis;
    return part;
}

static TileOp *store_of(TileOp *product) {
    TileOp *op = product->next;
    while (op && !(op->kind == TILE_STORE && op->args.data[0] == product->results.data[0]))
        op = op->next;
    return op;
}

// All columns at once, or whole panels.
static void split_across(Step *c) {
    Sm90 *s = c->s;
    TileOp *product = c->across, *store = store_of(product);
    const TileValue *sum = product->results.data[0];
    int all = sum->axis[1], columns = s->k->axes[all].extent, part = columns;
    while (part > PANEL && (part > s->columns || columns % part)) part -= PANEL;
    if (part == columns) return;
    int axis = axis_of_part(s, all, "p", part, false);
    TileValue *whole = product->args.data[tile_has_axis(product->args.data[1], all)];
    TileValue *ds = product->args.data[product->args.data[0] == whole];
    for (int from = 0; from < columns; from += part) {
        TileValue *some = columns_of(s, product, whole, axis, from);
        TileValue *v = product_of(s, product, ds, some, NULL, sum, axis);
        TileOp *add = with_columns(s, product, store, axis);
        add->args.data[0] = v;
        add->coord[s->p->tensors.data[add->tensor].rank - 1].at = ex_i32(s->x, from / part);
        for (TileOp *op = some->def; op != product; op = op->next)
            pass_place(op, named(s, 2), 0, ACROSS);
    }
    tile_unlink(store);
    tile_unlink(product);
}

static TileValue *load_columns(Sm90 *s, TileOp *load, const char *mark, int from, int columns) {
    int axis = axis_of_part(s, load->results.data[0]->axis[1], mark, columns, true);
    TileOp *part = with_columns(s, load, load, axis);
    part->results.data[0]->axis[1] = (uint8_t)axis;
    part->from_column = from, part->width = columns;
    return part->results.data[0];
}

// The first columns of q stay in registers of the scores, the others come to shared memory.
static void hold_queries(Sm90 *s, TileOp *load, int held) {
    const TileValue *q = load->results.data[0];
    int all = (int)s->k->axes[q->axis[1]].size->i;
    TileValue *own = load_columns(s, load, "h", 0, held);
    TileValue *part[] = {load_columns(s, load, "r", held, all - held), own};
    own->def->role = named(s, 0);
    for (TileOp *op = tile_next(&s->k->body, NULL), *next; op; op = next) {
        next = tile_next(&s->k->body, op);
        if (op->kind != TILE_MMA || op->args.data[0] != q) continue;
        TileValue *sum = op->args.n > 2 ? op->args.data[2] : NULL, *k = op->args.data[1];
        for (int i = 0; i < 2; i++) {
            TileValue *some = columns_of(s, op, k, part[i]->axis[1], i ? 0 : held);
            sum = product_of(s, op, part[i], some, sum, op->results.data[0], -1);
        }
        tile_replace(&s->k->body, op->results.data[0], sum);
        tile_unlink(op);
    }
    tile_unlink(load);
}

// ---- what goes from one role to another

// What needs no product is made by each role that reads it; of an attention numbers that places and sizes alone tell.
static bool is_made_anywhere(const Sm90 *s, const TileValue *v) {
    const TileOp *def = v->def;
    bool all = def && (def->kind == TILE_MAP || def->kind == TILE_LOAD);
    if (all && !is_gradients(s)) return !def->args.n && v->rank < 2;
    for (int i = 0; all && i < def->args.n; i++) all = is_made_anywhere(s, def->args.data[i]);
    return all;
}

static bool is_given(const Sm90 *s, const TileOp *reader, const TileValue *v) {
    const TileOp *def = v->def;
    if (!def || !reader->role || v->home == HOME_SHARED || is_made_anywhere(s, v)) return false;
    const char *maker = role_of(s, v);
    return maker && strcmp(maker, reader->role) != 0;
}

// What stands before an operation that reads it in shared memory; NULL: nothing does.
static TileValue *put_before(const TileOp *reader, const TileValue *v) {
    for (TileOp *op = reader->block->first; op != reader; op = op->next)
        if (op->kind == TILE_MAP && op->results.data[0]->home == HOME_SHARED && op->args.n == 1 &&
            op->args.data[0] == v)
            return op->results.data[0];
    return NULL;
}

// In the block of who reads it; the first reader's is for all.
static TileValue *given(Sm90 *s, TileValue *v, TileOp *reader) {
    TileOp *def = v->def;
    TileValue *there = put_before(reader, v);
    if (there) return there;
    TileOp *at = def->block == reader->block ? def->next : reader->block->first;
    TileValue *shared = pass_put_shared(s->p, s->k, at, v);
    shared->stages = v->rank == 1 ? sm90_stages_of_numbers(s->shape) : 1;
    pass_place(shared->def, role_of(s, v), 0, GIVE);
    return shared;
}

static void give_all(Sm90 *s, TileBlock *b) {
    for (TileOp *op = b->first; op; op = op->next)
        for (int i = 0; i < op->args.n; i++)
            if (is_given(s, op, op->args.data[i]))
                op->args.data[i] = given(s, op->args.data[i], op);
}

// ---- a step

// What a product across warpgroups reads goes through shared memory, once.
static TileValue *share(Sm90 *s, TileOp *product, int operand) {
    TileValue *from = product->args.data[operand], *v = put_before(product, from);
    if (!v) {
        v = pass_put_shared(s->p, s->k, product, from);
        v->stages = s->gives;
    }
    product->args.data[operand] = v;
    return from;
}

// The product of weights that stand alone runs under what is made of the other scores.
static void place_tight(TileBlock *b) {
    TileOp *first = b->first;
    while (first && first->kind != TILE_MAP) first = first->next;
    bool alone = false;
    for (TileOp *op = first ? first->next : NULL; op; op = op->next)
        alone |= op->kind == TILE_MAP && pass_reads(op, first);
    if (!alone) return;
    first->place.order = WEIGHTS;
    for (TileOp *op = b->first; op; op = op->next) {
        if (op->kind != TILE_MMA) continue;
        if (op->place.order == SCORES && !pass_reads(first, op)) op->place.order = OTHER_SCORES;
        if (op->place.order == FIRST_SUM && pass_reads(op, first)) op->place.order = THEIR_SUM;
    }
}

// A vector that only gradients read comes behind their tile.
static int order_of_load(const Sm90 *s, const TileOp *load) {
    const TileValue *v = load->results.data[0];
    bool early = false;
    for (const TileOp *op = load->next; op; op = op->next)
        if (tile_uses(op, v)) early |= !strcmp(op->role, named(s, 0));
    return v->rank == 2 ? 2 * !early : early ? 1 : 3;
}

static void place_step(Sm90 *s, TileBlock *b) {
    Step c = {.s = s, .b = b};
    bool parted = s->nroles > 1, roomy = b->owner->tiles == CLASS_FULL && !s->tight;
    if (parted && find_products(&c)) cut_maps(&c), find_products(&c); // their numbers are others
    for (TileOp *op = b->first; op && !parted; op = op->next)
        if (op->kind == TILE_MAP && (roomy || s->tight)) make_first(&c, op);
    // Under the first sum's product warpgroups wait for each other for nothing; partial tiles have no registers for that.
    int behind = s->shape.turns, share_at = parted || (roomy && !behind) ? GIVE : SHARE;
    const TileValue *shared = NULL;
    TileOp *last = NULL;
    for (TileOp *op = b->first; op; op = op->next) {
        if (!is_across(s->k, op)) continue;
        const char *maker = parted ? named(s, 1) : named(s, 0);
        for (int i = 0; i < 2; i++)
            if (op->args.data[i]->def->kind == TILE_MAP) shared = share(s, op, i);
        pass_place(op, named(s, 2), behind, ACROSS);
        pass_place(op->prev, maker, 0, share_at);
    }
    for (TileOp *op = b->first; op; op = op->next) {
        if (op->role || op->kind == TILE_YIELD || op->kind == TILE_LOAD) continue;
        bool late = is_sum(op) && (op->args.data[0] == shared || op->args.data[1] == shared);
        int order = sm90_scatters(op)        ? SCATTER
                    : op->kind == TILE_STORE ? ADD
                    : late && !s->tight      ? SUMS
                    : is_sum(op)             ? FIRST_SUM
                    : op->kind == TILE_MAP   ? MAPS
                                             : SCORES;
        pass_place(op, role_in_step(&c, op), order == ADD ? behind : 0, order);
        if (order == SCORES && behind) op->turn = true, last = op;
    }
    if (last) last->holds = true;
    if (s->tight) place_tight(b);
    if (parted) split_across(&c);
    for (TileOp *op = b->first; op && parted; op = op->next)
        if (op->kind == TILE_LOAD) op->place.order = order_of_load(s, op);
}

static void place_block(Sm90 *s, TileBlock *b) {
    bool step = is_step(b);
    if (step) pass_interval(s->p, s->k, tile_grid_axis(s->k), b->owner->axis, true);
    if (step) pass_raise_strips(b->owner);
    if (step && is_gradients(s)) place_step(s, b);
    for (TileOp *op = b->first; op; op = op->next)
        if (op->kind == TILE_LOOP) place_block(s, &op->body);
    for (TileOp *op = b->first; op; op = op->next) {
        TileValue *v = op->kind == TILE_LOAD ? op->results.data[0] : NULL;
        if (op->kind == TILE_LOOP || op->kind == TILE_YIELD || (op->role && !step)) continue;
        bool piped = v && (sm90_piped(op) || (step && is_gradients(s)));
        if (op->kind == TILE_MAP && pass_cooperative(s->k, op)) pass_to_shared(op);
        if (op->kind == TILE_BESIDE) op->results.data[0]->home = HOME_SHARED;
        if (piped) {
            v->home = HOME_SHARED;
            v->stages = step ? s->shape.stages : s->shape.queries;
            op->role = "producer";
        } else if (!op->role) {
            op->role = around(s, op);
        }
    }
    give_all(s, b);
}

// ---- what needs no product

// For roles that read it, in loops as what these begin with.
static void make_for_each(Sm90 *s, TileOp *maker) {
    for (int role = 0; role < s->nroles; role++) {
        TileOp *copy = NULL;
        for (TileOp *op = maker->next; op; op = tile_next(&s->k->body, op))
            for (int i = 0; strcmp(maker->role, named(s, role)) && i < op->args.n; i++) {
                TileValue *v = op->args.data[i];
                if (v->def != maker) continue;
                const char *own =
                    op->kind == TILE_LOOP ? role_of(s, op->results.data[i]) : op->role;
                if (!own || strcmp(own, named(s, role))) continue;
                if (!copy) {
                    copy = tile_clone(s->p, s->k, maker, NULL, NULL);
                    tile_insert_before(maker->next, copy);
                    copy->role = own;
                }
                op->args.data[i] = copy->results.data[result_of(maker, v)];
            }
    }
}

static void make_copies(Sm90 *s) {
    VEC(TileOp *) makers = {0};
    for (TileOp *op = tile_next(&s->k->body, NULL); op; op = tile_next(&s->k->body, op)) {
        bool makes = op->kind == TILE_MAP || op->kind == TILE_LOAD;
        if (makes && op->results.data[0]->home != HOME_SHARED) VEC_PUSH(s->p->arena, &makers, op);
    }
    for (int i = makers.n; i-- > 0;) make_for_each(s, makers.data[i]);
}

// ---- scores a step ahead

static bool adds_up(const Sm90 *s, const TileOp *op) {
    return op->role && !strcmp(op->role, named(s, 1));
}

static const TileOp *next_sum(const Sm90 *s, const TileOp *op) {
    while (op && !adds_up(s, op)) op = op->next;
    return op;
}

// One step behind the kind of a tile is not known.
static bool depends_on_tile(const TileOp *loop, const TileOp *op) {
    bool does = false;
    for (int i = 0; i < op->outs.n; i++) {
        const Ex *e = op->outs.data[i].body;
        does |= ex_uses(e, SYM_POS, loop->axis) || ex_uses(e, SYM_TILE, loop->axis) ||
                ex_uses(e, SYM_STEP, -1) || ex_uses(e, SYM_MASK, -1);
    }
    return does;
}

static bool same(const TileOp *x, const TileOp *y) {
    bool is = x->kind == y->kind && x->args.n == y->args.n && x->outs.n == y->outs.n &&
              pass_map_axes(x) == pass_map_axes(y);
    for (int i = 0; is && i < x->outs.n; i++)
        is = x->outs.data[i].reduce == y->outs.data[i].reduce &&
             x->outs.data[i].body == y->outs.data[i].body;
    return is;
}

// Sums of a step may be those of the step before: whatever tiles the two have, the same is done.
static bool may_run_ahead(const Sm90 *s) {
    const TileOp *first = NULL;
    for (const TileOp *loop = s->k->body.first; loop; loop = loop->next) {
        if (loop->kind != TILE_LOOP) continue;
        if (!first || !pass_follows(loop->prev, loop)) first = loop;
        const TileOp *x = next_sum(s, first->body.first), *y = next_sum(s, loop->body.first);
        for (; x && y; x = next_sum(s, x->next), y = next_sum(s, y->next))
            if (!same(x, y) || depends_on_tile(loop, y)) return false;
        if (x || y) return false;
    }
    return true;
}

static void run_ahead(Sm90 *s) {
    for (TileOp *op = tile_next(&s->k->body, NULL); op; op = tile_next(&s->k->body, op)) {
        if (!is_step(op->block) || op->kind == TILE_YIELD || op->kind == TILE_LOAD) continue;
        const TileValue *v = op->results.data[0];
        bool gives = op->kind == TILE_MAP && v->home == HOME_SHARED;
        if (adds_up(s, op) || (gives && v->rank == 2))
            op->place = (TilePlace){1, WEIGHTS};
        else
            op->place = (TilePlace){0, gives ? GIVE : op->kind == TILE_MAP ? MAPS : SCORES};
    }
}

// ---- the kernel

static void add_role(Sm90 *s, Sm90Role role) {
    TileOp *op = tile_op(s->p, s->k, &s->k->body, TILE_ROLE, (Span){0});
    op->role = role.name;
    op->warpgroups = role.warpgroups;
    op->registers = role.registers;
}

void sm90_add_roles(Sm90 *s) {
    add_role(s, (Sm90Role){"producer", 1, s->shape.producer_registers});
    for (int i = 0; i < s->nroles; i++) add_role(s, s->role[i]);
}

void sm90_assign_roles(Sm90 *s, TileOp *queries, int held) {
    if (held) hold_queries(s, queries, held);
    place_block(s, &s->k->body);
    make_copies(s);
    if (!is_gradients(s)) {
        bool ahead = is_ahead(s->shape) && may_run_ahead(s);
        for (TileOp *op = tile_next(&s->k->body, NULL); op; op = tile_next(&s->k->body, op))
            op->place = (TilePlace){0, 0};
        if (ahead) run_ahead(s);
    }
    sm90_add_roles(s);
}
