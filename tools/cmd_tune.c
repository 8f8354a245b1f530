// cmd_tune.c: `attnc tune`: measures the schedules that counting ranks first, then what differs
// from the best of them in one choice, and keeps the fastest where compiling finds it (cache.h).
#include "cache.h"
#include "race.h"
#include "runtime/device.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST = 16, // in a stage
    DEFAULT_SECONDS = 20,
    // Percent behind the best by counting, which is off by less (pass_counted.c) but for parts,
    // which were not held against figures.
    HOPELESS = 12,
};

typedef struct Tune {
    Race race;
    Compile c; // without a schedule: what is tuned
    PassOptions passes;
    CacheKey key;
    const char *folder; // of the cache
    ShapeClass shape;   // whose kernels the launch runs
    bool parts;         // its tiles are in
    const Options *o;
} Tune;

// ---- stages

// As many as there is time for, the compiler's own choice among them.
static int most_of(const Options *o) {
    int n = o->budget ? o->budget : DEFAULT_SECONDS;
    return n < 2 ? 2 : n > MOST ? MOST : n;
}

static void add_ranked(Tune *t) {
    Candidates all = pass_candidates(t->c.arena, t->c.streams.data[0], &t->passes);
    int most = most_of(t->o);
    for (int i = 0; i < all.n && i < most; i++) {
        bool hopeless =
            i && !t->parts && all.data[i].cycles * 100 > all.data[1].cycles * (100 + HOPELESS);
        if (!hopeless) race_add(&t->race, &all.data[i].knobs, all.data[i].cycles);
    }
}

static void add_neighbours(Tune *t, const Runner *best) {
    Candidates all = pass_neighbours(t->c.arena, t->c.streams.data[0], &t->passes, &best->knobs);
    int most = most_of(t->o);
    for (int i = 0; i < all.n && i < most; i++)
        race_add(&t->race, &all.data[i].knobs, best->expected);
}

static Status stage(Tune *t, double until) {
    t->race.until = until;
    Status s = race_open(&t->race);
    if (s == STATUS_DONE) s = race_agree(&t->race);
    return s == STATUS_DONE ? race_run(&t->race) : s;
}

static Status measure(Tune *t) {
    double budget = 1e3 * (t->o->budget ? t->o->budget : DEFAULT_SECONDS);
    double half = t->race.begin + budget / 2, end = t->race.begin + budget;
    add_ranked(t);
    if (!t->race.runners.n)
        return cmd_fail(STATUS_INPUT, "%s: there is no schedule to choose on %s", t->race.path,
                        target_get(t->race.target)->name);
    Status s = stage(t, half);
    const Runner *best = NULL;
    while (s == STATUS_DONE && best != race_best(&t->race) && race_now_ms() < end) {
        int n = t->race.runners.n;
        best = race_best(&t->race);
        add_neighbours(t, best);
        if (n < t->race.runners.n) s = stage(t, end);
    }
    return s;
}

// ---- what comes of it

static int by_ms(const void *a, const void *b) {
    const Runner *x = *(Runner *const *)a, *y = *(Runner *const *)b;
    if (!x->samples.n != !y->samples.n) return x->samples.n ? -1 : 1;
    return x->ratio < y->ratio ? -1 : x->ratio > y->ratio;
}

static const char *type_of(const Tune *t) {
    return t->o->tf32 ? "tf32" : dtype_name(t->race.dtype);
}

// Fastest first; what counting expected, relative to what it expected of the compiler's own choice.
static void print(const Tune *t, const char *sizes) {
    const Race *r = &t->race;
    const Runner *own = r->runners.data[0], *best = race_best(r);
    Runner **sorted = ARENA_ARRAY(r->arena, Runner *, r->runners.n);
    memcpy(sorted, r->runners.data, (size_t)r->runners.n * sizeof *sorted);
    qsort(sorted, (size_t)r->runners.n, sizeof *sorted, by_ms);
    printf("%s, %s, %s, %s\n", t->c.variants.data[0]->name, target_get(r->target)->name, type_of(t),
           sizes);
    printf("%10s %9s %9s  %s\n", "ms", "measured", "counted", "schedule");
    for (int i = 0; i < r->runners.n; i++) {
        const Runner *x = sorted[i];
        if (!x->samples.n) continue;
        printf("%10.4f %9.3f", x->ratio * own->ms, x->ratio);
        if (x->expected > 0 && own->expected > 0)
            printf(" %9.3f", x->expected / own->expected);
        else
            printf(" %9s", "-");
        const char *why = race_why_not(r, x);
        printf("  %s%s%s%s%s%s\n", knobs_text(r->arena, &x->knobs), x == best ? " (kept)" : "",
               x == own ? " (default)" : "", why ? " (" : "", why ? why : "", why ? ")" : "");
    }
    if (r->cut_short)
        printf("measured in %d rounds, as the budget allowed: a longer --budget tells small "
               "differences better\n",
               own->samples.n);
    fflush(stdout);
}

// Before minutes are spent on what cannot be kept.
static Status find_folder(Tune *t) {
    t->folder = cache_folder(t->c.arena);
    if (t->folder) return cache_may_be_written(t->c.arena, t->folder);
    return cmd_fail(STATUS_SYSTEM, "there is no place to keep it: ATTNC_CACHE, XDG_CACHE_HOME and "
                                   "HOME are not set");
}

// What was kept before, of other kernels, where this compiler takes it.
static Knobs joined(Tune *t, Knobs old, const Knobs *knobs) {
    PassOptions o = t->passes;
    Diags diags = diag_list(t->c.arena);
    o.schedule = knobs_joined(old, knobs);
    return pass_pipeline(t->c.arena, t->c.streams.data[0], &o, &diags) ? o.schedule : *knobs;
}

static Status store(Tune *t, const char *sizes) {
    Arena *a = t->c.arena;
    const Runner *best = race_best(&t->race);
    char device[256];
    attn_error e;
    const Launch *l = &t->race.runners.data[0]->l;
    if (attn_device_name(l->context, l->device, device, sizeof device, &e))
        return launch_failed(&e);
    int held = cache_hold(t->folder);
    CacheEntry entry = cache_read(a, t->folder, &t->key, &t->c.diags);
    // Kernels for few queries are the same in all classes, and choices of other kernels stay.
    bool few = knobs_say(&best->knobs, KNOB_few_keys);
    for (int c = 0; c < SHAPE_COUNT; c++) {
        if (!few && c != (int)t->shape) continue;
        entry.knobs[c] = joined(t, entry.knobs[c], &best->knobs);
        entry.ms[c] = best->ratio * t->race.runners.data[0]->ms;
        entry.note[c] = arena_printf(a, "%s: %s", device, sizes);
    }
    Status s = cache_write(a, t->folder, &t->key, &entry);
    cache_release(held);
    return s;
}

// ---- without a device

static void print_ranked(Tune *t, const char *sizes) {
    Candidates all = pass_candidates(t->c.arena, t->c.streams.data[0], &t->passes);
    printf("%s, %s, %s, %s: %s%s\n", t->c.variants.data[0]->name, target_get(t->race.target)->name,
           type_of(t), sizes, shape_name(t->shape), t->parts ? ", in parts" : "");
    printf("%9s  %s\n", "counted", "schedule");
    for (int i = 0; i < all.n; i++) {
        if (all.data[i].cycles > 0 && all.data[0].cycles > 0)
            printf("%9.3f", all.data[i].cycles / all.data[0].cycles);
        else
            printf("%9s", "-");
        printf("  %s%s\n", knobs_text(t->c.arena, &all.data[i].knobs), i ? "" : " (default)");
    }
}

// ---- one launch

// The class of a launch is that of the kernels it runs: short ones, where its tiles are in parts.
static void set_launch(Tune *t, const Binding *b) {
    t->race.b = b;
    t->passes.sizes = b->size;
    t->parts = pass_in_parts(t->c.streams.data[0], &t->passes);
    t->shape = t->parts ? SHAPE_SHORT : shape_of(&t->passes.target, b->size);
    t->passes.shape = t->shape;
}

static Status tune_binding(Tune *t, const Binding *b) {
    char sizes[512];
    set_launch(t, b);
    bind_describe(b, sizes, sizeof sizes);
    if (t->o->dry) return print_ranked(t, sizes), STATUS_DONE;
    Status s = measure(t);
    race_progress(&t->race, NULL, 0, 0);
    if (s == STATUS_DONE) {
        print(t, sizes);
        s = store(t, sizes);
    }
    race_close(&t->race);
    return s;
}

static Status tune_shape(Tune *t, const char *shape) {
    Arena *a = arena_new();
    Binding b = {0};
    Race race = {.arena = a,
                 .o = t->o,
                 .path = t->race.path,
                 .target = t->race.target,
                 .dtype = t->race.dtype,
                 .context = t->race.context,
                 .begin = race_now_ms()};
    t->race = race;
    const Signature *sig = sig_of_variant(a, t->c.variants.data[0], t->race.dtype);
    Status s = (t->o->dry ? bind_inputs : bind_make)(&b, a, sig, t->o, shape);
    if (s == STATUS_DONE) s = tune_binding(t, &b);
    bind_free(&b);
    arena_free(a);
    return s;
}

static Status tune_file(Tune *t, attn_context *context) {
    const Options *o = t->o;
    attn_error e;
    char name[256];
    attn_device device = {o->device == DEVICE_CPU    ? ATTN_CPU
                          : o->device == DEVICE_CUDA ? ATTN_CUDA
                                                     : ATTN_HIP,
                          o->ordinal};
    if (!o->dry && attn_device_name(context, device, name, sizeof name, &e))
        return launch_failed(&e);
    t->race.path = o->files.data[0];
    t->race.target = cmd_device_target(o, context);
    t->race.dtype = o->has_dtype                                    ? o->dtype
                    : target_get(t->race.target)->kind == KIND_HOST ? DT_F32
                                                                    : DT_BF16;
    t->race.context = o->device == DEVICE_CPU ? context : NULL;
    Options plain = *o;
    plain.no_cache = true;
    Status s = cmd_open(&t->c, &plain, t->race.path, t->race.target, t->race.dtype);
    if (s == STATUS_DONE) s = cmd_only(&t->c, o);
    if (s == STATUS_DONE && !compile_streams(&t->c)) s = STATUS_INPUT;
    if (s == STATUS_DONE && !t->c.streams.n)
        s = cmd_fail(STATUS_INPUT, "%s is a recurrence: there is nothing to tune",
                     t->c.variants.data[0]->name);
    t->passes = (PassOptions){.target = cg_target(t->race.target),
                              .dtype = t->race.dtype,
                              .tf32 = o->tf32,
                              .split = o->level > 0};
    if (s == STATUS_DONE) t->key = cache_key(t->c.arena, t->c.streams.data[0]->row, &t->passes);
    if (s == STATUS_DONE && !o->dry) s = find_folder(t);
    for (int i = 0; s == STATUS_DONE && (i == 0 || i < o->shapes.n); i++)
        s = tune_shape(t, o->shapes.n ? o->shapes.data[i] : NULL);
    diag_print(&t->c.diags, stderr);
    compile_close(&t->c);
    return s;
}

Status cmd_tune(const Options *o) {
    Tune t = {.o = o};
    if (strcmp(o->files.data[0], "-") == 0)
        return cmd_fail(STATUS_USAGE, "tune reads its source more than once: it takes a file");
    attn_context *context = attn_create();
    Status s = context ? tune_file(&t, context) : cmd_fail(STATUS_SYSTEM, "out of memory");
    attn_destroy(context);
    return s;
}
