// main.c: every variant of the standard library for the AMD targets, run by the interpreter, against
// the float64 reference; NaN inputs (nan.h); then kernels that were made wrong on purpose (mutate.h).
//
//     check_gcn [PATH...] [--target=T] [--dtype=T] [--kv-dtype=T] [--shape=SIZES] [-DNAME=N] [--seed=N] [--all]
//               [--turns] [--schedule=KNOBS] [--mutate] [--gradients] [--parts] [--keep=FOLDER]
//
// PATH: a variant, a folder of them, or a tile program (tiles.h); stdlib. Every option narrows what runs down: --shape runs
// that shape alone, --schedule the variants with that schedule, --mutate only the wrong kernels.
// --gradients: the kernels of the backward run as well, where there are some. --parts: the keys in parts as well.
// --keep writes the launches into a folder, for beside.py.
// Without --all, the less usual dims run for one target of each variant, in turn; with --turns,
// which leaves the wrong kernels out, the usual ones do, too. QUICK=1 in the environment (slow
// builds) is --turns without the less usual dims.
#include "tests/gcn/mutate.h"
#include "tests/gcn/nan.h"
#include "tests/gcn/subject.h"
#include "tests/gcn/tiles.h"
#include "tests/support/differ.h"
#include "tests/support/workers.h"
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_FILES = 256, MAX_DEFINES = 8 };

typedef struct Shape {
    const char *sizes, *offset;
} Shape;

typedef struct Config { // one compilation
    Dtype dtype;
    const char *D, *Dv; // NULL: the variant's own
    const Shape *shapes;
    int nshapes;
    bool usual; // runs for every target
    BatchLayout batch;
} Config;

#define COUNT(list) ((int)(sizeof list / sizeof *list))
#define SHAPES(s) s, COUNT(s)

static const Shape many[] = {
    {"B=1,H=1,Sq=1,Sk=1", NULL},         {"B=2,H=2,Sq=17,Sk=17", NULL},
    {"B=1,H=4,Hkv=2,Sq=33,Sk=65", NULL}, {"B=1,H=1,Sq=129,Sk=17", NULL},
    {"B=1,H=2,Sq=70,Sk=129", "-50"}, // causal: the first rows see no key
    {"B=1,H=2,Sq=65,Sk=40", "7"},        {"B=1,H=1,Sq=5,Sk=0", NULL}, // no key at all
    {"B=1,H=1,Sq=3,Sk=260", NULL},
};
static const Shape few[] = {{"B=1,H=2,Hkv=1,Sq=65,Sk=129", NULL}, {"B=1,H=1,Sq=1,Sk=70", NULL}};

static const Shape chunks[] = {{"B=1,H=2,Hk=1,S=37", NULL}, {"B=1,H=1,S=1", NULL}};
static const Shape packed[] = {{"B=3,H=2,Hk=1,Tq=40,slots=5", NULL}, {"B=3,H=1,Tq=3", NULL}};
static const Config of_recurrences[] = {
    {DT_BF16, "16", "40", SHAPES(chunks), true, BATCH_DENSE},
    {DT_F32, "20", "40", SHAPES(chunks), true, BATCH_DENSE},
    {DT_BF16, "16", "24", SHAPES(packed), true, BATCH_RAGGED},
    {DT_F16, "16", "16", SHAPES(chunks), false, BATCH_DENSE},
};
static const Config of_attentions[] = {
    {DT_F16, NULL, NULL, SHAPES(many), true, BATCH_DENSE},
    {DT_BF16, NULL, NULL, SHAPES(few), true, BATCH_DENSE},
    {DT_F16, "128", "128", SHAPES(few), false, BATCH_DENSE},
    {DT_BF16, "40", "24", SHAPES(few), false, BATCH_DENSE},
    {DT_F16, "96", "96", SHAPES(few), false, BATCH_DENSE},
    {DT_BF16, "64", "128", SHAPES(few), false, BATCH_DENSE},
    {DT_F32, "7", "9", SHAPES(few), false, BATCH_DENSE},
    {DT_F32, "32", "48", SHAPES(few), false, BATCH_DENSE},
};

typedef struct Run {
    const char *path[MAX_FILES];
    int npaths;
    int target;        // -1: all three
    int dtype;         // -1: as the configurations say
    int kv;            // of k and v in 8 bits; 0: as q
    const char *shape; // NULL: theirs
    const char *offset;
    const char *schedule; // NULL: the compiler's choice; and read
    Knobs knobs;
    Arena *arena;
    const char *keep; // NULL: launches are not written
    FeDefine define[MAX_DEFINES];
    int ndefines;
    uint64_t seed;
    bool all, turns, only_mutate, gradients, parts;
    int passed, failed;
} Run;

static const TargetId targets[] = {TARGET_GFX90A, TARGET_GFX942, TARGET_GFX1100};

// ---- one compilation

static void failed(Run *run, const char *path, const CompileOptions *o, const Shape *s,
                   const char *why) {
    run->failed++;
    printf("FAILED: %s --target=%s --dtype=%s", path, cg_target(o->target).name,
           dtype_name(o->dtype));
    for (int i = 0; i < o->source.ndefines; i++)
        printf(" -D%s=%s", o->source.defines[i].name, o->source.defines[i].value);
    if (run->schedule) printf(" --schedule=%s", run->schedule);
    if (s)
        printf(" --shape=%s%s%s", s->sizes, s->offset ? " q_offset=" : "",
               s->offset ? s->offset : "");
    printf(": %s\n", why);
    fflush(stdout);
}

static void shapes(Run *run, Subject *s, const char *path, const CompileOptions *o,
                   const Shape *list, int n) {
    for (int i = 0; i < n; i++) {
        Trial t;
        Report r = {OUTCOME_REFUSED, "the inputs cannot be made"};
        if (trial_open(&t, s, list[i].sizes, list[i].offset))
            r = trial_run(&t, s, run->seed + (uint64_t)i);
        trial_close(&t);
        Differ d = {.path = path,
                    .shape = list[i].sizes,
                    .offset = list[i].offset,
                    .defines = o->source.defines,
                    .ndefines = o->source.ndefines,
                    .dtype = o->dtype,
                    .kv = o->kv,
                    .target = o->target,
                    .level = o->level,
                    .context = s->l.context,
                    .device = DEVICE_HIP,
                    .log = stdout};
        bool gradients = run->gradients && !s->l.sig->recurrence;
        d.parts = run->parts && !s->l.sig->recurrence ? 3 : 0;
        if (r.outcome == OUTCOME_RIGHT && d.parts && !differ_parts(&d))
            r = (Report){OUTCOME_WRONG, "parts"};
        if (r.outcome == OUTCOME_RIGHT && gradients && !differ_gradients(&d))
            r = (Report){OUTCOME_WRONG, "gradients"};
        if (r.outcome == OUTCOME_RIGHT)
            run->passed++;
        else
            failed(run, path, o, &list[i], r.text);
    }
}

static void compiled(Run *run, const char *path, const Config *c, TargetId target) {
    FeDefine dims[] = {{"D", c->D}, {"Dv", c->Dv}};
    CompileOptions o = {.source = {.path = path, .defines = dims, .ndefines = c->D ? 2 : 0},
                        .target = target,
                        .dtype = c->dtype,
                        .has_kv = run->kv > 0,
                        .kv = (Dtype)run->kv,
                        .batch = c->batch,
                        .level = 2,
                        .schedule = run->knobs};
    Shape given = {run->shape, run->offset};
    Subject s;
    Report r;
    if (run->ndefines) {
        o.source.defines = run->define;
        o.source.ndefines = run->ndefines;
    }
    bool open = subject_open(&s, &o, stdout);
    if (open) gcn_device_keep(s.device, run->keep);
    const Diag *why = s.c.diags.first;
    if (!open && why && strstr(why->message, "bytes of LDS")) // the only limit that a user meets
        printf("refused: %s --target=%s\n", path, cg_target(target).name);
    else if (!open)
        failed(run, path, &o, NULL, "does not compile");
    else if (!subject_load(&s, NULL, &r))
        failed(run, path, &o, NULL, r.text);
    else if (run->shape)
        shapes(run, &s, path, &o, &given, 1);
    else
        shapes(run, &s, path, &o, c->shapes, c->nshapes);
    subject_close(&s);
}

// ---- all of them

static void run_tiles(Run *run, const char *path) {
    for (int t = 0; t < 3; t++)
        if (run->target < 0 || targets[t] == (TargetId)run->target)
            tiles_check(path, targets[t], run->seed, &run->passed, &run->failed);
}

// Modules of functions only have nothing to run. `kind`: of what there is.
static bool holds_variant(const char *path, VariantKind *kind) {
    CompileOptions o = {.source = {.path = path}, .target = TARGET_HOST};
    Compile c;
    bool good = compile_open(&c, &o) == FE_OK && c.variants.n == 1;
    if (good) *kind = c.variants.data[0]->kind;
    compile_close(&c);
    return good;
}

static void attention(Run *run, int index, int k, int t) {
    VariantKind kind = VARIANT_ATTENTION;
    bool steps = holds_variant(run->path[index], &kind) && kind == VARIANT_RECURRENCE;
    const Config *configs = steps ? of_recurrences : of_attentions;
    bool narrowed = run->shape || run->ndefines || run->schedule;
    if (k >= (narrowed ? 1 : steps ? COUNT(of_recurrences) : COUNT(of_attentions))) return;
    Config c = configs[k];
    bool turn = (index + k) % 3 == t, quick = getenv("QUICK") != NULL;
    if (run->target >= 0 && targets[t] != (TargetId)run->target) return;
    if (quick && !narrowed && (!c.usual || !turn)) return;
    if ((run->turns || (!c.usual && !run->all)) && !turn) return;
    if (narrowed && run->dtype >= 0) c.dtype = (Dtype)run->dtype;
    if (run->dtype >= 0 && c.dtype != (Dtype)run->dtype) return;
    compiled(run, run->path[index], &c, targets[t]);
}

// First the kernels that were made wrong and those with NaN, which take longest.
enum { APART = 2, PIECES = COUNT(of_attentions) * COUNT(targets) };

static void piece(void *context, int i, Tally *t) {
    Run *run = context;
    bool quick =
        run->shape || run->ndefines || run->turns || run->schedule || run->kv || getenv("QUICK");
    int index = (i - APART) / PIECES, k = (i - APART) % PIECES;
    run->passed = run->failed = 0;
    if (i == 0 && (run->only_mutate || !quick))
        mutate_check(run->target, &run->passed, &run->failed);
    if (i == 1 && !run->only_mutate && !quick) nan_check(run->target, &run->passed, &run->failed);
    if (i >= APART && !run->only_mutate) {
        if (!tiles_is_program(run->path[index]))
            attention(run, index, k / COUNT(targets), k % COUNT(targets));
        else if (k == 0)
            run_tiles(run, run->path[index]);
    }
    t->passed += run->passed, t->failed += run->failed;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void add(Run *run, const char *path) {
    struct dirent *e;
    int first = run->npaths;
    DIR *d = opendir(path);
    if (!d && run->npaths < MAX_FILES) run->path[run->npaths++] = strdup(path);
    while (d && (e = readdir(d)) && run->npaths < MAX_FILES) {
        char name[1024];
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        const char *dot = strrchr(e->d_name, '.');
        VariantKind kind;
        if (dot && strcmp(dot, ".attn") == 0 && holds_variant(name, &kind))
            run->path[run->npaths++] = strdup(name);
    }
    if (d) closedir(d);
    qsort(run->path + first, (size_t)(run->npaths - first), sizeof *run->path, by_name);
}

// ---- the command line

static const char *value(const char *arg, const char *option) {
    size_t n = strlen(option);
    return strncmp(arg, option, n) == 0 ? arg + n : NULL;
}

static int named(const char *name, int n, const char *(*of)(int)) {
    for (int i = 0; i < n; i++)
        if (strcmp(of(i), name) == 0) return i;
    return -2;
}
static const char *name_of_target(int i) { return cg_target((TargetId)i).name; }
static const char *name_of_dtype(int i) { return dtype_name((Dtype)i); }

static bool option(Run *run, char *arg) {
    const char *v;
    if ((v = value(arg, "--target=")))
        run->target = named(v, TARGET_COUNT, name_of_target);
    else if ((v = value(arg, "--dtype=")))
        run->dtype = named(v, DT_COUNT, name_of_dtype);
    else if ((v = value(arg, "--kv-dtype=")))
        run->kv = named(v, DT_COUNT, name_of_dtype);
    else if ((v = value(arg, "--shape=")))
        run->shape = v;
    else if ((v = value(arg, "--offset=")))
        run->offset = v;
    else if ((v = value(arg, "--seed=")))
        run->seed = strtoull(v, NULL, 0);
    else if ((v = value(arg, "--schedule=")))
        run->schedule = knobs_parse(run->arena, v, &run->knobs) ? NULL : v;
    else if ((v = value(arg, "--keep=")))
        run->keep = v;
    else if (strcmp(arg, "--all") == 0)
        run->all = true;
    else if (strcmp(arg, "--turns") == 0)
        run->turns = true;
    else if (strcmp(arg, "--mutate") == 0)
        run->only_mutate = true;
    else if (strcmp(arg, "--parts") == 0)
        run->parts = true;
    else if (strcmp(arg, "--gradients") == 0)
        run->gradients = true;
    else if (arg[0] == '-' && arg[1] == 'D' && strchr(arg, '=') && run->ndefines < MAX_DEFINES) {
        char *equals = strchr(arg, '=');
        *equals = 0;
        run->define[run->ndefines++] = (FeDefine){arg + 2, equals + 1};
    } else {
        return false;
    }
    return run->target != -2 && run->dtype != -2 && run->kv != -2 &&
           (!value(arg, "--schedule=") || run->schedule);
}

int main(int argc, char **argv) {
    Run run = {.target = -1, .dtype = -1, .seed = 1, .arena = arena_new()};
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] != '-')
            add(&run, argv[i]);
        else if (!option(&run, argv[i])) {
            printf("check_gcn: %s: no such option or value\n", argv[i]);
            return 2;
        }
    }
    if (!run.npaths) add(&run, "stdlib");
    Tally all = workers_run(argv[0], APART + run.npaths * PIECES, piece, &run);
    if (!run.npaths) all.failed++, printf("FAILED: no variants found\n");
    for (int i = 0; i < run.npaths; i++) free((char *)run.path[i]);
    arena_free(run.arena);
    printf("%d passed, %d failed\n", all.passed, all.failed);
    return all.failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
