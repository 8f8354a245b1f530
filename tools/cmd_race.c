// cmd_race.c: see race.h.
//
// A GPU's clock falls while it is busy, and neighbours come and go: what is compared is measured in
// turns, a few launches at a time with a pause before, and of each round the ratio to the first
// runner counts, which is in all of them. Runners
// use the tensors of the first one; on a GPU each has its own context of the runtime, so that they
// can be opened by several threads.
#include "race.h"
#include "runtime/device.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    THREADS = 8,
    ROUNDS = 15, // enough for the difference that counts
    FIRST_LAUNCHES = 2,
    LAUNCHES = 40,       // of a runner in a round, at most
    ROUND_MS = 20,       // about as long as they take
    PAUSE_MS = 10,       // before each
    NOISE_PERMILLE = 10, // another is better than the first when it is faster by more than this
};

// How far behind the best one leaves, after so many rounds, in percent.
static const int far_behind[] = {100, 30, 15, 8, 5, 5, 4, 3};
enum { LOOKS = sizeof far_behind / sizeof *far_behind };

double race_now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

void race_progress(const Race *r, const char *what, int i, int n) {
    bool terminal = isatty(STDERR_FILENO);
    if (!terminal && i && i != n) return; // a line for each stage
    if (!what)
        fprintf(stderr, "%s", terminal ? "\r\033[K" : "");
    else
        fprintf(stderr, "%sattnc: %s: %s %d of %d, %.1f s%s", terminal ? "\r\033[K" : "", r->path,
                what, i, n, (race_now_ms() - r->begin) / 1e3, terminal ? "" : "\n");
    fflush(stderr);
}

void race_add(Race *r, const Knobs *knobs, double expected) {
    for (int i = 0; i < r->runners.n; i++)
        if (knobs_same(&r->runners.data[i]->knobs, knobs)) return;
    Runner *new = ARENA_NEW(r->arena, Runner);
    *new = (Runner){.knobs = *knobs, .expected = expected, .status = STATUS_USAGE};
    VEC_PUSH(r->arena, &r->runners, new);
}

// ---- on threads: what the processor, or the driver, does of each runner

typedef struct Work {
    Race *race;
    const char *what;
    bool (*is_due)(const Runner *x);
    void (*does)(Race *r, Runner *x);
    pthread_mutex_t lock;
    int next, done;
} Work;

static Runner *take(Work *w) {
    Runner *x = NULL;
    pthread_mutex_lock(&w->lock);
    bool late = w->next > 1 && race_now_ms() > w->race->until; // two are a race
    while (!late && !x && w->next < w->race->runners.n) {
        x = w->race->runners.data[w->next++];
        if (!w->is_due(x)) x = NULL;
    }
    pthread_mutex_unlock(&w->lock);
    return x;
}

static void *work(void *arg) {
    Work *w = arg;
    for (Runner *x = take(w); x; x = take(w)) {
        w->does(w->race, x);
        pthread_mutex_lock(&w->lock);
        race_progress(w->race, w->what, ++w->done, w->race->runners.n);
        pthread_mutex_unlock(&w->lock);
    }
    return NULL;
}

static void for_each(Race *r, const char *what, bool (*is_due)(const Runner *x),
                     void (*does)(Race *r, Runner *x)) {
    Work w = {.race = r, .what = what, .is_due = is_due, .does = does};
    pthread_t thread[THREADS];
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    int n = r->context ? 0 : processors < THREADS ? (int)processors : THREADS, started = 0;
    for (int i = 0; i < r->runners.n; i++) w.done += !is_due(r->runners.data[i]);
    pthread_mutex_init(&w.lock, NULL);
    while (started < n - 1 && !pthread_create(&thread[started], NULL, work, &w)) started++;
    work(&w);
    for (int i = 0; i < started; i++) pthread_join(thread[i], NULL);
    pthread_mutex_destroy(&w.lock);
}

// ---- opening

static bool is_closed(const Runner *x) { return !x->c.arena; }

static void open_one(Race *r, Runner *x) {
    Options o = *r->o;
    o.schedule = x->knobs;
    o.no_cache = true;
    x->l.context = r->context;
    x->status = cmd_open(&x->c, &o, r->path, r->target, r->dtype);
    if (x->status != STATUS_DONE) return;
    x->status = launch_open_source(&x->l, x->c.arena, &x->c, &o);
    if (x->status != STATUS_DONE) diag_print(&x->c.diags, stderr);
}

Status race_open(Race *r) {
    for_each(r, "compiled", is_closed, open_one);
    for (int i = 0; i < r->runners.n; i++) {
        Runner *x = r->runners.data[i];
        if (x->status != STATUS_DONE) x->out = true;
    }
    return r->runners.data[0]->status;
}

void race_close(Race *r) {
    for (int i = r->runners.n - 1; i >= 0; i--) { // the first has the memory
        launch_close(&r->runners.data[i]->l);
        if (r->runners.data[i]->c.arena) compile_close(&r->runners.data[i]->c);
    }
    for (int i = 0; r->want && i < r->b->sig->args.n; i++) free(r->want[i]);
}

// ---- on the device

static bool is_unbound(const Runner *x) { return !x->out && !x->l.prepared; }

static void bind_one(Race *r, Runner *x) {
    const Launch *first = &r->runners.data[0]->l;
    if (&x->l != first) x->l.lender = first;
    x->status = launch_bind(&x->l, r->b);
}

// The first has the memory. That the driver compiles their kernels takes longer than all else.
static Status bind(Race *r) {
    Status s = STATUS_DONE;
    if (is_unbound(r->runners.data[0])) bind_one(r, r->runners.data[0]);
    if (r->runners.data[0]->status == STATUS_DONE) for_each(r, "loaded", is_unbound, bind_one);
    for (int i = 0; i < r->runners.n && s == STATUS_DONE; i++) {
        Runner *x = r->runners.data[i];
        s = x->out ? s : x->status;
        x->out = x->out || is_unbound(x); // there was no time
    }
    return s;
}

// ---- agreement

static Status poison(const Race *r, const Launch *first) {
    attn_error e;
    for (int i = 0; i < r->b->sig->args.n; i++) {
        const Tensor *t = &r->b->tensor[i];
        size_t bytes = (size_t)t->count * (size_t)dtype_bytes(t->dtype);
        if (r->b->sig->args.data[i].role != ARG_OUTPUT || !bytes) continue;
        memset(t->data, 0xff, bytes); // NaN
        if (first->device.kind != ATTN_CPU &&
            attn_memory_fill(first->context, first->device, first->memory[i], 0xff, bytes, &e))
            return launch_failed(&e);
    }
    return STATUS_DONE;
}

static Status keep(Race *r) {
    r->want = ARENA_ARRAY(r->arena, double *, r->b->sig->args.n);
    for (int i = 0; i < r->b->sig->args.n; i++) {
        if (r->b->sig->args.data[i].role != ARG_OUTPUT) continue;
        r->want[i] = tensor_doubles(&r->b->tensor[i]);
        if (!r->want[i]) return cmd_fail(STATUS_SYSTEM, "out of memory");
    }
    return STATUS_DONE;
}

static Status compare(const Race *r, const Runner *x) {
    double one = r->o->tf32 ? tensor_tolerance_tf32() : tensor_tolerance(r->dtype);
    double bound = 2 * one; // both may be off
    for (int i = 0; i < r->b->sig->args.n; i++) {
        if (!r->want[i]) continue;
        Error e = cmd_error(&r->b->tensor[i], r->want[i], NULL, r->b->tensor[i].rank == 3);
        if (!e.wrong && e.relative <= bound) continue;
        return cmd_fail(STATUS_INPUT,
                        "two schedules disagree about %s, by %.3g: one is compiled wrongly, and "
                        "nothing is kept; `attnc check --schedule=...` tells which: %s and %s",
                        r->b->sig->args.data[i].name, e.relative,
                        knobs_text(r->arena, &r->runners.data[0]->knobs),
                        knobs_text(r->arena, &x->knobs));
    }
    return STATUS_DONE;
}

static Status agree_one(Race *r, Runner *x) {
    Status s = poison(r, &r->runners.data[0]->l);
    if (s == STATUS_DONE) s = launch_run(&x->l);
    if (s == STATUS_DONE) s = launch_fetch(&x->l);
    if (s == STATUS_DONE) s = r->want ? compare(r, x) : keep(r);
    return s;
}

Status race_agree(Race *r) {
    Status s = bind(r);
    for (int i = 0; i < r->runners.n && s == STATUS_DONE; i++) {
        Runner *x = r->runners.data[i];
        if (!x->out && !x->agrees) s = agree_one(r, x);
        x->agrees = s == STATUS_DONE;
        race_progress(r, "checked", i + 1, r->runners.n);
    }
    return s;
}

// ---- timing

// Some launches one behind the other, ms of each; by the device's clock where it has one.
static Status timed(Launch *l, int n, double *ms) {
    attn_mark *from = NULL, *to = NULL;
    attn_error e;
    float elapsed = 0;
    double start = race_now_ms();
    bool cpu = l->device.kind == ATTN_CPU;
    bool bad = !cpu && attn_mark_now(l->context, l->device, &from, &e);
    for (int i = 0; i < n && !bad; i++) bad = attn_launch_prepared(l->prepared, NULL, &e);
    bad = bad || (!cpu && attn_mark_now(l->context, l->device, &to, &e)) ||
          attn_synchronize(l->context, l->device, &e) ||
          (!cpu && attn_elapsed_ms(l->context, l->device, from, to, &elapsed, &e));
    *ms = (cpu ? race_now_ms() - start : elapsed) / n;
    attn_mark_free(l->context, l->device, from);
    attn_mark_free(l->context, l->device, to);
    return bad ? launch_failed(&e) : STATUS_DONE;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(Arena *a, const double *x, int n) {
    double *sorted = ARENA_ARRAY(a, double, n);
    memcpy(sorted, x, (size_t)n * sizeof *x);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    return sorted[n / 2];
}

static double last_of(const Runner *x) { return x->samples.data[x->samples.n - 1]; }

// As many for each, since the first ones take longer.
static int launches(const Runner *first) {
    int n = first->ms > 0 ? (int)(ROUND_MS / first->ms) : FIRST_LAUNCHES;
    return n < 1 ? 1 : n > LAUNCHES ? LAUNCHES : n;
}

// How long the first one takes, and whether it runs: no sample of it.
static Status warm_up(Race *r) {
    Runner *first = r->runners.data[0];
    return first->ms > 0 ? STATUS_DONE : timed(&first->l, FIRST_LAUNCHES, &first->ms);
}

static Status sample(Race *r, Runner *x) {
    struct timespec pause = {0, PAUSE_MS * 1000000L};
    double ms;
    nanosleep(&pause, NULL);
    Status s = timed(&x->l, launches(r->runners.data[0]), &ms);
    if (s != STATUS_DONE) return s;
    double first = x == r->runners.data[0] ? ms : last_of(r->runners.data[0]);
    VEC_PUSH(r->arena, &x->samples, ms);
    VEC_PUSH(r->arena, &x->ratios, ms / first);
    x->ms = median(r->arena, x->samples.data, x->samples.n);
    x->ratio = median(r->arena, x->ratios.data, x->ratios.n);
    return s;
}

// Who is far behind leaves, but for the first, and comes back where the others have fallen behind
// since. How many are left.
static int drop(Race *r) {
    double best = 1;
    int left = 1;
    for (int i = 1; i < r->runners.n; i++) {
        const Runner *x = r->runners.data[i];
        if (x->samples.n && x->ratio < best) best = x->ratio;
    }
    for (int i = 1; i < r->runners.n; i++) {
        Runner *x = r->runners.data[i];
        double far = 1 + far_behind[x->samples.n < LOOKS ? x->samples.n : LOOKS - 1] / 100.0;
        if (x->samples.n) x->out = x->ratio > best * far;
        left += !x->out;
    }
    return left;
}

Status race_run(Race *r) {
    Status s = warm_up(r);
    int left = 2;
    for (int round = 0; round < ROUNDS && left > 1 && s == STATUS_DONE; round++) {
        for (int i = 0; i < r->runners.n && s == STATUS_DONE; i++) {
            bool late = round > 1 && race_now_ms() > r->until; // two rounds are for all
            r->cut_short |= late;                              // this stage, or one before it
            if (late) return drop(r), s;
            if (!r->runners.data[i]->out) s = sample(r, r->runners.data[i]);
        }
        left = drop(r);
        race_progress(r, "round", round + 1, ROUNDS);
    }
    return s;
}

Runner *race_best(const Race *r) {
    Runner *best = r->runners.data[0];
    double least = 1 - NOISE_PERMILLE / 1000.0;
    for (int i = 1; i < r->runners.n; i++) {
        Runner *x = r->runners.data[i];
        if (x->out || !x->samples.n || x->ratio >= least) continue;
        best = x;
        least = x->ratio;
    }
    return best;
}

const char *race_why_not(const Race *r, const Runner *x) {
    const Runner *best = race_best(r);
    if (x == best || !x->samples.n || x->ratio >= best->ratio) return NULL;
    return "faster than the default by less than may be noise";
}
