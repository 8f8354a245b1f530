// main.c: every variant of the standard library on the CPU against the float64 reference, over
// lengths, head counts, dims, positions and element types that tiles do not divide.
//
//     check_run FOLDER [NAME]      the variants of FOLDER, or the one; a process for each core
//
// A file whose first line is `// data: NAME=VALUE ...` runs with these inputs as well, as --in takes them, interpreted as
// scheduled for every target. With `dtype=TYPE` among them its own dims alone run, and GPUs have that type: row inputs are of it.
// With `kv=8` k and v are stored in 8 bits there, in each case as another type.
//
// QUICK=1 in the environment leaves the longest rows out (for slow builds: sanitizers).
#include "tests/support/differ.h"
#include "tests/support/workers.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILES = 256 };

typedef struct Case {
    const char *shape, *offset; // as the command takes them
    const char *D, *Dv;         // NULL: the variant's own
    Dtype dtype;
} Case;

static const Case cases[] = {
    {"B=1,H=1,Sq=1,Sk=1", NULL, NULL, NULL, DT_F32},
    {"B=2,H=2,Sq=17,Sk=17", NULL, NULL, NULL, DT_F32},
    {"B=1,H=2,Sq=129,Sk=129", NULL, NULL, NULL, DT_F32},
    {"B=1,H=4,Hkv=2,Sq=33,Sk=65", NULL, NULL, NULL, DT_F32},
    {"B=2,H=6,Hkv=1,Sq=1,Sk=129", NULL, NULL, NULL, DT_F32},
    {"B=1,H=1,Sq=3,Sk=1000", NULL, NULL, NULL, DT_F32}, // few rows: the keys are split
    {"B=1,H=9,Hkv=1,Sq=7,Sk=1000", NULL, NULL, NULL,
     DT_F32}, // and packed: a group is no power of two
    {"B=2,H=15,Hkv=3,Sq=3,Sk=300", "-1", "40", "24", DT_F32},
    {"B=1,H=1,Sq=129,Sk=17", NULL, NULL, NULL, DT_F32},
    {"B=1,H=1,Sq=1000,Sk=1000", NULL, NULL, NULL, DT_F32},
    {"B=1,H=2,Sq=70,Sk=129", "-50", NULL, NULL, DT_F32}, // causal: the first rows see no key
    {"B=1,H=2,Sq=65,Sk=40", "7", NULL, NULL, DT_F32},
    {"B=1,H=1,Sq=5,Sk=0", NULL, NULL, NULL, DT_F32}, // no key at all
    {"B=1,H=1,Sq=65,Sk=65", NULL, "8", "8", DT_F32},
    {"B=1,H=1,Sq=65,Sk=65", NULL, "40", "40", DT_F32},
    {"B=1,H=1,Sq=65,Sk=65", NULL, "96", "96", DT_F32},
    {"B=1,H=1,Sq=65,Sk=65", NULL, "128", "128", DT_F32},
    {"B=1,H=1,Sq=65,Sk=65", NULL, "256", "256", DT_F32},
    {"B=1,H=1,Sq=65,Sk=65", NULL, "64", "24", DT_F32},
    {"B=1,H=1,Sq=65,Sk=65", NULL, "7", "130", DT_F32},
    {"B=1,H=4,Hkv=2,Sq=129,Sk=129", NULL, NULL, NULL, DT_BF16},
    {"B=1,H=2,Sq=1,Sk=1000", NULL, NULL, NULL, DT_BF16},
    {"B=1,H=1,Sq=65,Sk=65", NULL, "40", "24", DT_BF16},
    {"B=1,H=4,Hkv=2,Sq=129,Sk=129", NULL, NULL, NULL, DT_F16},
    {"B=1,H=1,Sq=65,Sk=65", NULL, "96", "256", DT_F16},
};

static void run_case(Tally *t, const char *path, const Case *c, int index, DifferKernels *kernels) {
    if (getenv("QUICK") && strstr(c->shape, "1000")) return;
    FeDefine defines[] = {{"D", c->D}, {"Dv", c->Dv}};
    int each = strstr(path, "stdlib/") ? 2 : 4; // the gradients of the last case of so many
    Differ d = {.path = path,
                .shape = c->shape,
                .offset = c->offset,
                .defines = defines,
                .ndefines = c->D ? 2 : 0,
                .dtype = c->dtype,
                .level = index % 4,
                .kernels = kernels,
                .parts = index % each == 1 ? 1 + index % 4 : 0,
                .gradients =
                    index % each == each - 1 && c->dtype == DT_F32 && !strstr(c->shape, "1000"),
                .log = stdout};
    Stage s = differ_run(&d);
    if (s == STAGE_NONE) {
        t->passed++;
        return;
    }
    t->failed++;
    printf("FAILED: %s --shape=%s q_offset=%s D=%s Dv=%s %s -O%d: %s\n", path, c->shape,
           c->offset ? c->offset : "default", c->D ? c->D : "own", c->Dv ? c->Dv : "own",
           dtype_name(c->dtype), index % 4, stage_name(s));
    fflush(stdout);
}

// ---- given data

static const Case given[] = {{"B=1,H=2,Sq=33,Sk=200", NULL, NULL, NULL, DT_F32},
                             {"B=1,H=2,Sq=3,Sk=700", "600", NULL, NULL, DT_F32},
                             {"B=1,H=2,Sq=70,Sk=129", "-50", NULL, NULL, DT_BF16}};
static const Dtype kv_types[] = {DT_E4M3, DT_E5M2, DT_I8};
static const TargetId everywhere[] = {TARGET_SM80, TARGET_SM90A, TARGET_GFX942, TARGET_GFX1100};

// What the first line says, taken apart; false: nothing. only: the type that it says, else DT_COUNT.
static bool read_data(Options *to, Arena *a, const char *path, Dtype *only, bool *bytes) {
    char line[256] = "", *at = line + strlen("// data:");
    FILE *f = fopen(path, "r");
    bool some = f && fgets(line, sizeof line, f) && strncmp(line, "// data:", 8) == 0;
    if (f) fclose(f);
    for (char *word = some ? strtok(at, " \n") : NULL; word; word = strtok(NULL, " \n")) {
        char *value = strchr(word, '=');
        if (!value) continue;
        *value = '\0';
        for (int t = 0; t < DT_COUNT && !strcmp(word, "dtype"); t++)
            if (!strcmp(value + 1, dtype_name((Dtype)t))) *only = (Dtype)t;
        *bytes |= !strcmp(word, "kv");
        if (!strcmp(word, "dtype") || !strcmp(word, "kv")) continue;
        NameValue in = {arena_strdup(a, word), arena_strdup(a, value + 1)};
        VEC_PUSH(a, &to->in, in);
    }
    return some;
}

static void run_given(Tally *t, const char *path) {
    Arena *a = arena_new();
    Options options = {.seed = 1};
    Dtype only = DT_COUNT;
    bool bytes = false, some = read_data(&options, a, path, &only, &bytes);
    for (size_t i = 0; some && i < sizeof given / sizeof *given; i++)
        for (size_t k = 0; k < sizeof everywhere / sizeof *everywhere; k++) {
            const Case *c = &given[i];
            Options in = options;
            NameValue offset = {"q_offset", c->offset ? c->offset : "0"};
            in.in.data = NULL, in.in.n = in.in.cap = 0;
            for (int j = 0; j < options.in.n; j++) VEC_PUSH(a, &in.in, options.in.data[j]);
            VEC_PUSH(a, &in.in, offset);
            Differ d = {.path = path,
                        .shape = c->shape,
                        .inputs = &in,
                        .dtype = only < DT_COUNT ? only : c->dtype,
                        .kv = bytes ? kv_types[i] : DT_F32,
                        .level = 2,
                        .interpret = true,
                        .parts = i ? 0 : 3, // of the first, by every target
                        .target = everywhere[k],
                        .log = stdout};
            Stage s = differ_run(&d);
            t->passed += s == STAGE_NONE, t->failed += s != STAGE_NONE;
            if (s != STAGE_NONE)
                printf("FAILED: %s --shape=%s --dtype=%s, with its data, for %s: %s\n", path,
                       c->shape, dtype_name(d.dtype), cg_target(everywhere[k]).name, stage_name(s));
        }
    arena_free(a);
}

// Each target has kernels of both phases, for each type of elements, or says why it has none.
static void run_compiled(Tally *t, const char *path) {
    static const Dtype types[] = {DT_F32, DT_BF16, DT_F16};
    enum { TARGETS = sizeof everywhere / sizeof *everywhere };
    for (int i = 0; i < TARGETS * (int)(sizeof types / sizeof *types); i++) {
        CompileOptions o = {.source = {.path = path},
                            .target = everywhere[i % TARGETS],
                            .dtype = types[i / TARGETS],
                            .level = 2,
                            .phases = COMPILE_FWD | COMPILE_BWD};
        Compile c;
        bool good = compile_open(&c, &o) != FE_OK || compile_tiles(&c) || !c.diags.internal;
        t->passed += good, t->failed += !good;
        if (!good) {
            diag_print(&c.diags, stdout);
            printf("FAILED: gradients of %s, %s, for %s\n", path, dtype_name(o.dtype),
                   cg_target(o.target).name);
        }
        compile_close(&c);
    }
}

static bool has_own_type(const char *path) {
    Arena *a = arena_new();
    Options options = {0};
    Dtype only = DT_COUNT;
    bool bytes = false;
    read_data(&options, a, path, &only, &bytes);
    arena_free(a);
    return only < DT_COUNT;
}

// A module of functions only (mask, normalization) has nothing to run.
static bool holds_variant(const char *path) {
    CompileOptions o = {.source = {.path = path}, .target = TARGET_HOST};
    Compile c;
    bool good = compile_open(&c, &o) == FE_OK && c.variants.n == 1 &&
                c.variants.data[0]->kind == VARIANT_ATTENTION;
    compile_close(&c);
    return good;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int list(const char *folder, const char *only, char **path) {
    struct dirent *e;
    int n = 0;
    DIR *d = opendir(folder);
    while (d && (e = readdir(d)) && n < MAX_FILES) {
        const char *dot = strrchr(e->d_name, '.');
        if (!dot || strcmp(dot, ".attn") != 0) continue;
        if (only && (strlen(only) != (size_t)(dot - e->d_name) ||
                     memcmp(only, e->d_name, strlen(only)) != 0))
            continue;
        path[n] = malloc(strlen(folder) + strlen(e->d_name) + 2);
        sprintf(path[n], "%s/%s", folder, e->d_name);
        if (holds_variant(path[n]))
            n++;
        else
            free(path[n]);
    }
    if (d) closedir(d);
    qsort(path, (size_t)n, sizeof *path, by_name);
    return n;
}

// Of a file: its cases, then its data, then what is compiled only.
enum { CASES = sizeof cases / sizeof *cases, PIECES = CASES + 2 };

static bool is_same(const char *a, const char *b) { return a && b ? !strcmp(a, b) : a == b; }

// Whether one compilation serves both.
static bool share_kernels(int i, int k) {
    const Case *a = &cases[i], *b = &cases[k];
    return i % 4 == k % 4 && a->dtype == b->dtype && is_same(a->D, b->D) && is_same(a->Dv, b->Dv);
}

// The case, and those after it that share its kernels; nothing where one before it does.
static void run_cases(Tally *t, const char *path, int k) {
    for (int i = 0; i < k; i++)
        if (share_kernels(i, k)) return;
    DifferKernels *kernels = differ_kernels();
    for (int i = k; i < CASES; i++)
        if (share_kernels(i, k)) run_case(t, path, &cases[i], i, kernels);
    differ_forget(kernels);
}

static void run_piece(void *context, int i, Tally *t) {
    const char *path = ((char **)context)[i / PIECES];
    int k = i % PIECES;
    if (k == CASES)
        run_given(t, path);
    else if (k > CASES)
        run_compiled(t, path);
    else if (!cases[k].D || !has_own_type(path))
        run_cases(t, path, k);
}

int main(int argc, char **argv) {
    char *path[MAX_FILES];
    int n = list(argc > 1 ? argv[1] : "stdlib", argc > 2 ? argv[2] : NULL, path);
    Tally all = workers_run(argv[0], n * PIECES, run_piece, path);
    for (int i = 0; i < n; i++) free(path[i]);
    if (!n) all.failed++, printf("FAILED: no variants found\n");
    printf("%d passed, %d failed\n", all.passed, all.failed);
    return all.failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
