// main.c: random variants (gen.h).
//
//     check_gen [FIRST-SEED [COUNT]] [--device=cpu|cuda|amd] [--jobs=N] [--seconds=S] [--limit=S]
//               [--reduce=N] [--print] [--gradients] [--as-on-cuda]
//
// Without --device every variant goes through every stage in one process (differ.h): interpreted
// before and after the passes, for the CPU and as scheduled for GPUs, then run on the CPU. With
// --device it is compiled for the device and launched there (rig.h), --jobs processes at a time;
// amd is the interpreter of AMD's instructions. --seconds: no seed is begun after that; the last
// line says with which seed to go on. --limit: seconds for one variant. --reduce: with how many
// steps a failure is made smaller. --print: the variants, and nothing is run. --gradients: the
// kernels of the backward run as well, where there are some: the host's, or the device's; without --device
// the variant's target's are interpreted, too.
// --as-on-cuda, without --device: the variants that --device=cuda draws, with its targets.
//
// A failure prints its seed, what is wrong, and the variant after reduction with its command.
#include "gen.h"
#include "pool.h"
#include "rig.h"
#include "tests/support/differ.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NO_DEVICE = 3 }; // the status where there is nothing to run on

typedef struct Settings {
    bool on_device, print, gradients, as_on_cuda;
    RigKind kind;
    int reduce;
    Pool pool;
} Settings;

// One variant and how it is tried; `is` is what came out.
typedef struct Attempt {
    const Settings *o;
    Rig *rig;
    PoolHand *hand;
    int is;
} Attempt;

static const TargetId interpreted[] = {TARGET_HOST,  TARGET_HOST,   TARGET_SM80,
                                       TARGET_SM90A, TARGET_GFX942, TARGET_GFX1100};

static void make_case(GenCase *c, Arena *a, const GenProgram *p, const Attempt *t) {
    if (t->rig)
        gen_case(c, a, p, t->hand->seed, t->rig->target, t->rig->ntargets);
    else if (t->o->as_on_cuda)
        gen_case(c, a, p, t->hand->seed, interpreted + 2, 2);
    else
        gen_case(c, a, p, t->hand->seed, interpreted, 6);
}

static int outcome(const Attempt *t, const GenCase *c, FILE *log) {
    if (t->rig) return (int)rig_run(t->rig, c, &t->hand->checked, log);
    Differ d = {.source = c->source,
                .name = "random.attn",
                .shape = c->shape,
                .inputs = &c->options,
                .dtype = c->dtype,
                .target = c->target,
                .level = c->level,
                .interpret = true,
                .gradients = t->o->gradients,
                .parts = c->level, // of 0 to 3
                .log = log};
    return (int)differ_run(&d);
}

static bool fails(void *ctx, const GenProgram *p) {
    const Attempt *t = ctx;
    Arena *a = arena_new();
    GenCase c;
    pool_again(t->hand);
    make_case(&c, a, p, t);
    bool same = outcome(t, &c, NULL) == t->is;
    arena_free(a);
    return same;
}

static void show(const Attempt *t, Arena *a, const GenProgram *p) {
    GenCase c;
    make_case(&c, a, p, t);
    Text text = text_new(a);
    gen_print_case(&text, &c);
    fprintf(t->hand->log, "%s", text.s);
}

static bool one(void *ctx, void *opened, PoolHand *h) {
    Arena *a = arena_new();
    GenProgram p;
    GenCase c;
    Attempt t = {.o = ctx, .rig = opened == ctx ? NULL : opened, .hand = h};
    // What is fast, and the reference's gradients are not.
    bool fast = (t.rig ? t.rig->kind != RIG_AMD : t.o->as_on_cuda) && !t.o->gradients;
    gen_program(&p, a, h->seed, fast ? GEN_DEVICE : GEN_SMALL);
    make_case(&c, a, &p, &t);
    if (t.o->print) {
        show(&t, a, &p);
        arena_free(a);
        return false; // so that it is written
    }
    t.is = outcome(&t, &c, h->log);
    bool fault = t.rig && t.is == RIG_FAULT;
    h->checked += !t.rig;
    if (t.is) {
        fprintf(h->log, "FAILED: seed %llu%s%s\n", (unsigned long long)h->seed,
                t.rig ? "" : ", stage ", t.rig ? "" : stage_name((Stage)t.is));
        if (!fault && t.o->reduce) gen_reduce(&p, a, fails, &t, t.o->reduce);
        show(&t, a, &p);
        make_case(&c, a, &p, &t);
        if (!fault) outcome(&t, &c, h->log);
        h->broken = fault;
    }
    arena_free(a);
    return !t.is;
}

static void *open_rig(void *ctx) {
    const Settings *o = ctx;
    char message[480];
    Rig *r = calloc(1, sizeof *r);
    if (!o->on_device) return ctx;
    if (r && rig_open(r, o->kind, message, sizeof message)) {
        r->gradients = o->gradients;
        return r;
    }
    fprintf(stderr, "check_gen: %s\n", message);
    free(r);
    return NULL;
}

static bool number(const char *arg, const char *name, int *out) {
    size_t n = strlen(name);
    if (strncmp(arg, name, n) != 0) return false;
    *out = atoi(arg + n);
    return true;
}

static bool parse(Settings *o, int argc, char **argv) {
    static const char *const devices[] = {"cpu", "cuda", "amd"};
    uint64_t *seeds[] = {&o->pool.first, &o->pool.count};
    int nseeds = 0;
    for (int i = 1; i < argc; i++) {
        if (number(argv[i], "--jobs=", &o->pool.jobs) ||
            number(argv[i], "--seconds=", &o->pool.seconds) ||
            number(argv[i], "--limit=", &o->pool.limit) || number(argv[i], "--reduce=", &o->reduce))
            continue;
        if (strcmp(argv[i], "--print") == 0)
            o->print = true;
        else if (strcmp(argv[i], "--gradients") == 0)
            o->gradients = true;
        else if (strcmp(argv[i], "--as-on-cuda") == 0)
            o->as_on_cuda = true;
        else if (strncmp(argv[i], "--device=", 9) == 0) {
            o->on_device = true;
            while (o->kind < 3 && strcmp(argv[i] + 9, devices[o->kind]) != 0) o->kind++;
            if (o->kind == 3) return false;
        } else if (nseeds < 2 && argv[i][0] != '-')
            *seeds[nseeds++] = strtoull(argv[i], NULL, 10);
        else
            return false;
    }
    return o->pool.jobs >= 1 && o->pool.jobs <= POOL_MOST;
}

int main(int argc, char **argv) {
    Settings o = {
        .reduce = 300,
        .pool = {.first = 1, .count = 200, .jobs = 1, .limit = 120, .open = open_rig, .run = one}};
    o.pool.ctx = &o;
    if (!parse(&o, argc, argv)) {
        fprintf(stderr, "check_gen: what these options mean, the head of tests/gen/main.c says\n");
        return 2;
    }
    setenv("CUDA_CACHE_DISABLE", "1", 0); // what the driver compiles is not asked for again
    PoolTotal t = pool_run(&o.pool);
    if (o.print) return EXIT_SUCCESS;
    if (t.nowhere) {
        printf("SKIPPED: there is no such device, NO VARIANT WAS RUN\n");
        return NO_DEVICE;
    }
    printf("seeds %llu..%llu: %lld run, %lld failed; %lld %s compared; %.1f s, %.1f a second; go "
           "on with %llu\n",
           (unsigned long long)o.pool.first, (unsigned long long)t.next - 1, (long long)t.run,
           (long long)t.failed, (long long)t.checked, o.on_device ? "rows" : "variants", t.seconds,
           (double)t.run / t.seconds, (unsigned long long)t.next);
    printf("%lld passed, %lld failed\n", (long long)(t.run - t.failed), (long long)t.failed);
    return t.failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
