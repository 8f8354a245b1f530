// candidates.c: the schedules that a program may have, ranked by what counting expects of them.
//
// In: a streaming form. Each target proposes choices for the program's main kernel (cost_*.c): the
// one that runs where no other plan fits. Whether a choice is legal is asked where it is known: the
// pass `tile` takes it or not. Out: the compiler's own choice, then the others, the cheapest first,
// each with all its knobs.
#include "passes/schedule/cost.h"
#include "passes/schedule/schedule.h"
#include "passes/tile/rewrite.h"

#include <stdlib.h>
#include <string.h>

static int by_cycles(const void *a, const void *b) {
    const Candidate *x = a, *y = b;
    if (x->cycles != y->cycles) return x->cycles < y->cycles ? -1 : 1;
    return knobs_order(&x->knobs, &y->knobs); // any order, but always the same
}

// ---- the main kernel

typedef struct Launch {
    const TileProgram *p;
    const int32_t *sizes;
    int workers;
} Launch;

static ExValue symbol(void *ctx, const Ex *e) {
    const Launch *l = ctx;
    ExEnv env = {.sym = symbol, .ctx = ctx, .round = true};
    const Ex *def = e->sym == SYM_SIZE ? l->p->sizes.data[e->index].def : NULL;
    if (def) return ex_eval(def, &env);
    ExValue v = {.i = 1};
    if (e->sym == SYM_SIZE && e->index < SIZE_FREE) v.i = l->sizes[e->index];
    if (e->sym == SYM_WORKERS) v.i = l->workers;
    return v;
}

enum { HOST_WORKERS = 8 };

static bool runs(const TileProgram *p, const TilePlan *plan, const PassOptions *o) {
    int units = target_rates(o->target.id)->units;
    Launch l = {p, o->sizes, units ? units : HOST_WORKERS};
    ExEnv env = {.sym = symbol, .ctx = &l, .round = true};
    if (!plan->when) return true;
    if (!o->sizes) return false;
    return ex_eval(plan->when, &env).i ||
           (o->target.kind == KIND_HOST && o->sizes[SIZE_SQ] <= HOST_FEW);
}

// Of a program with extents: the first kernel with choices of the plan that runs.
static int main_kernel(TileProgram *p, const PassOptions *o) {
    int i = 0;
    pass_set_splits(p);
    while (!runs(p, &p->plans.data[i], o)) i++;
    const TilePlan *plan = &p->plans.data[i];
    for (int j = 0; j < plan->kernels.n; j++)
        if (p->kernels.data[plan->kernels.data[j]]->schedule.knobs.said)
            return plan->kernels.data[j];
    return plan->kernels.data[0];
}

// All knobs of the program's main kernel under a schedule; none: it is not legal. main: which kernel that
// is, where the caller wants to know.
static Knobs taken(const TileProgram *p, const PassOptions *o, Knobs schedule, int *main) {
    Arena *scratch = arena_new();
    Diags diags = diag_list(scratch);
    PassOptions own = *o;
    own.schedule = schedule;
    TileProgram *copy = tile_copy(scratch, p);
    Knobs knobs = {0};
    if (pass_tile(copy, &own, &diags)) {
        int i = main_kernel(copy, o);
        knobs = copy->kernels.data[i]->schedule.knobs;
        if (main) *main = i;
    }
    arena_free(scratch);
    return knobs;
}

static void propose(Proposals *to, const Knobs *own) {
    switch (to->target->kind) {
    case KIND_HOST: cost_host(to); return;
    case KIND_AMDGPU: cost_amd(to); return;
    case KIND_NVPTX:
        if (knobs_say(own, KNOB_warpgroups))
            cost_sm90(to);
        else if (dtype_half(to->p->dtype)) // of f32 nothing is counted
            cost_sm80(to);
        return;
    }
}

// The compiler's own choice first, with what counting expects of it.
static void own_first(Arena *a, Candidates *c, Knobs own) {
    int i = 0;
    while (i < c->n && !knobs_same(&c->data[i].knobs, &own)) i++;
    Candidate first = {own, i < c->n ? c->data[i].cycles : 0};
    if (i == c->n) VEC_PUSH(a, c, first);
    memmove(c->data + 1, c->data, (size_t)i * sizeof *c->data);
    c->data[0] = first;
}

// ---- tiles in parts

// As compiling makes it for a class, which knows of no launch.
static TileProgram *unsized(Arena *a, const Stream *s, const PassOptions *o, ShapeClass shape,
                            Knobs schedule) {
    PassOptions own = *o;
    Diags diags = diag_list(a);
    own.sizes = NULL;
    own.shape = shape;
    own.schedule = schedule;
    return pass_pipeline(a, s, &own, &diags);
}

bool pass_in_parts(const Stream *s, const PassOptions *o) {
    if (!o->sizes || !pass_shares(o, s->row->D, s->row->Dv)) return false;
    Arena *scratch = arena_new();
    TileProgram *p = unsized(scratch, s, o, SHAPE_SHORT, (Knobs){0});
    int i = 0;
    while (p && !runs(p, &p->plans.data[i], o)) i++;
    bool parts = p && pass_is_shared(p, &p->plans.data[i]);
    arena_free(scratch);
    return parts;
}

// Whether some launches' tiles are in parts.
static bool may_have_parts(const Stream *s, const PassOptions *o, Knobs schedule) {
    Arena *scratch = arena_new();
    TileProgram *p = unsized(scratch, s, o, o->shape, schedule);
    bool any = false;
    for (int i = 0; p && i < p->plans.n; i++) any |= pass_is_shared(p, &p->plans.data[i]);
    arena_free(scratch);
    return any;
}

// ---- beside a schedule

// Choices that counting says nothing of, as they may be tried; a schedule without such a knob is
// not asked.
static const struct {
    KnobName knob;
    int value;
    bool parts; // of launches that have some
} changes[] = {
#define CHANGE(knob, value) {KNOB_##knob, value, false},
#define PARTS(knob, value) {KNOB_##knob, value, true},
#include "passes/schedule/neighbours.def"
#undef CHANGE
#undef PARTS
};

Candidates pass_neighbours(Arena *a, const Stream *s, const PassOptions *o, const Knobs *knobs) {
    Candidates found = {0};
    Diags diags = diag_list(a);
    TileProgram *p = pass_algorithm(a, s, o, &diags);
    if (!p) return found;
    bool here = pass_in_parts(s, o), others = !here && may_have_parts(s, o, *knobs);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        if (!knobs_say(knobs, changes[i].knob) || (changes[i].parts && !here)) continue;
        Knobs changed = *knobs;
        changed.value[changes[i].knob] = changes[i].value;
        changed = taken(p, o, changed, NULL);
        if (!changed.said || knobs_same(&changed, knobs)) continue;
        if (others && !may_have_parts(s, o, changed))
            continue; // what they lose is not measured here
        VEC_PUSH(a, &found, ((Candidate){changed, 0}));
    }
    return found;
}

// ---- what a program gets

static Proposals proposals(Arena *a, TileProgram *p, const PassOptions *o, const Knobs *own,
                           int main, int part_keys, int32_t *typical) {
    shape_typical(o->shape, typical);
    Proposals all = {.arena = a,
                     .p = p,
                     .k = p->kernels.data[main],
                     .target = &o->target,
                     .sizes = o->sizes ? o->sizes : typical,
                     .part_keys = part_keys};
    if (all.k->purpose == PURPOSE_ATTENTION) propose(&all, own); // of others nothing is counted
    if (all.list.n) qsort(all.list.data, (size_t)all.list.n, sizeof *all.list.data, by_cycles);
    return all;
}

// Targets' own choices were measured: counting has to promise more than it may be wrong by.
enum { CLEARLY = 12 }; // percent

Knobs pass_counted(Arena *a, TileProgram *p, const PassOptions *o) {
    const Knobs none = {0};
    int32_t typical[SIZE_FREE];
    if (o->target.id != TARGET_SM90A || p->phase != PHASE_FWD)
        return none; // counting was held against figures of the forward there
    int main;
    Knobs own = taken(p, o, none, &main);
    if (!own.said) return none;
    PassOptions many = *o; // and of many tiles
    if (o->shape == SHAPE_FEW) {
        many.shape = SHAPE_SHORT;
        Knobs others = taken(p, &many, none, &main);
        if (!knobs_same(&own, &others)) return none;
    }
    Proposals all = proposals(a, p, &many, &own, main, 0, typical);
    double cycles = 0; // counting says nothing of the other knobs
    for (int i = 0; i < all.list.n && !cycles; i++)
        if (knobs_hold(&own, &all.list.data[i].knobs)) cycles = all.list.data[i].cycles;
    for (int i = 0; i < all.list.n && all.list.data[i].cycles * (100 + CLEARLY) < cycles * 100;
         i++) {
        Knobs knobs = taken(p, o, all.list.data[i].knobs, NULL);
        if (knobs.said) return knobs;
    }
    return none;
}

Candidates pass_candidates(Arena *a, const Stream *s, const PassOptions *o) {
    Candidates found = {0};
    int32_t typical[SIZE_FREE];
    Diags diags = diag_list(a);
    TileProgram *p = pass_algorithm(a, s, o, &diags);
    if (!p) return found;
    PassOptions compiled = *o;
    compiled.sizes = NULL; // compiling knows of no launch
    int main;
    Knobs own = taken(p, o, pass_counted(a, p, &compiled), &main);
    if (!own.said) return found;
    Proposals all =
        proposals(a, p, o, &own, main, pass_in_parts(s, o) ? own.part_keys : 0, typical);
    for (int i = 0; i < all.list.n; i++) {
        Candidate c = all.list.data[i];
        c.knobs = taken(p, o, c.knobs, NULL);
        if (c.knobs.said) VEC_PUSH(a, &found, c);
    }
    own_first(a, &found, own);
    return found;
}
