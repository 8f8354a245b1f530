// candidates.c: the schedules that a program may have, ranked by what counting expects of them.
//
// In: a streaming form. Each target proposes choices for the program's main kernel (cost_*.c): the
// one that runs where no other plan fits. Whether a choice is legal is asked where it is known: the
// pass `tile` takes it or not. Out: the compiler's own choice, then the others, the cheapest first,
// each with all its knobs.
#include "cost.h"
#include "knobs.h"

#include <stdlib.h>
#include <string.h>

static int by_clocks(const void *a, const void *b) {
    const Candidate *x = a, *y = b;
    if (x->clocks != y->clocks) return x->clocks < y->clocks ? -1 : 1;
    return strcmp(x->knobs, y->knobs); // any order, but always the same
}

static int main_kernel(const TileProgram *p) {
    return p->plans.data[p->plans.n - 1].kernels.data[0];
}

// All knobs of the program's main kernel under a schedule (NULL: the compiler's own), from a; NULL:
// it is not legal.
static const char *taken(Arena *a, const TileProgram *p, const PassOptions *o,
                         const char *schedule) {
    Arena *scratch = arena_new();
    Diags diags;
    diag_init(&diags, scratch);
    PassOptions own = *o;
    own.schedule = schedule;
    TileProgram *copy = tile_copy(scratch, p);
    const char *knobs = NULL;
    if (pass_tile(copy, &own, &diags))
        knobs = copy->kernels.data[main_kernel(copy)]->schedule.knobs;
    if (knobs) knobs = arena_strdup(a, knobs);
    arena_free(scratch);
    return knobs;
}

static void propose(Proposals *to, const char *own) {
    if (shape_matters(to->target) && !dtype_half(to->p->dtype)) return; // FMAs: nothing is counted
    switch (to->target->id) {
    case TARGET_HOST: cost_host(to); return;
    case TARGET_SM90A:
        if (knob_has(own, "warpgroups", strlen("warpgroups")))
            cost_sm90(to);
        else
            cost_sm80(to);
        return;
    case TARGET_SM80: cost_sm80(to); return;
    case TARGET_GFX90A:
    case TARGET_GFX942:
    case TARGET_GFX1100:
    case TARGET_COUNT: return; // one schedule
    }
}

// The compiler's own choice first, with what counting expects of it.
static void own_first(Arena *a, Candidates *c, const char *own) {
    int i = 0;
    while (i < c->n && strcmp(c->data[i].knobs, own)) i++;
    Candidate first = {own, i < c->n ? c->data[i].clocks : 0};
    if (i == c->n) VEC_PUSH(a, c, first);
    memmove(c->data + 1, c->data, (size_t)i * sizeof *c->data);
    c->data[0] = first;
}

// Choices that counting says nothing of, as they may be tried; a schedule without such a knob is
// not asked.
static const char *const changes[] = {
#define CHANGE(text) text,
#include "neighbours.def"
#undef CHANGE
};

Candidates pass_neighbours(Arena *a, const Stream *s, const PassOptions *o, const char *knobs) {
    Candidates found = {0};
    TileProgram *p = pass_algorithm(a, s, o);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        const char *change = changes[i];
        if (!knob_has(knobs, change, strcspn(change, "="))) continue;
        const char *text = taken(a, p, o, knob_with(a, knobs, change));
        if (text && strcmp(text, knobs)) VEC_PUSH(a, &found, ((Candidate){text, 0}));
    }
    return found;
}

Candidates pass_candidates(Arena *a, const Stream *s, const PassOptions *o) {
    Candidates found = {0};
    int32_t typical[SIZE_FREE];
    shape_typical(o->shape, typical);
    TileProgram *p = pass_algorithm(a, s, o);
    const char *own = taken(a, p, o, NULL);
    if (!own) return found;
    Proposals all = {.arena = a,
                     .p = p,
                     .k = p->kernels.data[main_kernel(p)],
                     .target = &o->target,
                     .sizes = o->sizes ? o->sizes : typical};
    propose(&all, own);
    for (int i = 0; i < all.list.n; i++) {
        Candidate c = all.list.data[i];
        c.knobs = taken(a, p, o, c.knobs);
        if (c.knobs) VEC_PUSH(a, &found, c);
    }
    if (found.n) qsort(found.data, (size_t)found.n, sizeof *found.data, by_clocks);
    own_first(a, &found, own);
    return found;
}
