// tiles.c: see tiles.h. The code object is run as it is, by what its metadata says of arguments and plans.
#include "tests/gcn/tiles.h"
#include "codegen/codegen.h"
#include "passes/passes.h"
#include "passes/tile/rewrite.h"
#include "runtime/abi.h"
#include "tests/gcn/gcn.h"
#include "tests/support/random.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TEXT = 1 << 16, MAX_SIZES = 64, WORKERS = 4 };

typedef struct Tiles {
    Arena *arena;
    Diags diags;
    const char *text;
    TileProgram *algorithm, *p;
    AbiMeta meta;
    const GcnCode *code;
    int32_t size[MAX_SIZES];
    void **memory; // by tensor
    char why[600];
} Tiles;

bool tiles_is_program(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot && strcmp(dot, ".tile") == 0;
}

static bool fail(Tiles *t, const char *why) {
    snprintf(t->why, sizeof t->why, "%s", t->diags.first ? t->diags.first->message : why);
    return false;
}

// ---- the program

static TileProgram *parse(Tiles *t, TargetId target) {
    TileProgram *p = tile_parse(t->arena, t->text, strlen(t->text), &t->diags);
    if (p) p->target = target;
    return p;
}

static bool scheduled(Tiles *t, TargetId target) {
    if (!(t->algorithm = parse(t, target)) || !(t->p = parse(t, target)))
        return fail(t, "no program");
    PassOptions o = {.target = cg_target(target), .dtype = t->p->dtype};
    return pass_finish(t->p, &o, &t->diags) || fail(t, "no schedule");
}

static bool compiled(Tiles *t) {
    const TileProgram *p = t->p;
    CgOptions o = {.opt = 2};
    void *object;
    const void *code;
    size_t n, code_n;
    GcnError e = {""};
    if (!cg_emit(&p, 1, &o, CG_OBJECT, &t->diags, &object, &n)) return fail(t, "no code");
    const char *wrong = abi_find(&t->meta, object, n, &code, &code_n);
    if (!wrong) {
        void *own = memcpy(arena_alloc(t->arena, code_n + 1), code, code_n);
        t->code = gcn_open(t->arena, own, code_n, NULL, &e);
    }
    free(object);
    return t->code || fail(t, wrong ? wrong : e.text);
}

// ---- tensors in the kernels' memory

static void put(Dtype t, void *to, int64_t i, double v) {
    float f = (float)v;
    int32_t n = (int32_t)v;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint16_t narrow = (uint16_t)(bits >> 16);
    if (t == DT_F32) memcpy((char *)to + 4 * i, &f, 4);
    if (t == DT_I32) memcpy((char *)to + 4 * i, &n, 4);
    if (t == DT_BF16) memcpy((char *)to + 2 * i, &narrow, 2);
}

static double get(Dtype t, const void *from, int64_t i) {
    float f = 0;
    uint32_t bits = 0;
    if (t == DT_F32) memcpy(&f, (const char *)from + 4 * i, 4);
    if (t == DT_BF16) {
        memcpy((char *)&bits + 2, (const char *)from + 2 * i, 2);
        memcpy(&f, &bits, 4);
    }
    return (double)f;
}

static void put_tensors(Tiles *t, const TileData *d) {
    t->memory = ARENA_ARRAY(t->arena, void *, t->p->tensors.n);
    for (int i = 0; i < t->p->tensors.n; i++) {
        const TileTensor *x = &t->p->tensors.data[i];
        int64_t n = tile_tensor_elements(x, d->size);
        t->memory[i] = aligned_alloc(256, (size_t)(n * 4 / 256 + 1) * 256);
        bool zeroed = t->meta.variants[0].tensors[i].flags & ABI_ZEROED; // by the launch
        for (int64_t k = 0; k < n; k++)
            put(x->dtype, t->memory[i], k, zeroed ? 0 : d->tensor[i][k]);
    }
}

static uint64_t argument(const Tiles *t, const AbiArg *a) {
    int64_t stride = 1;
    const TileTensor *x = &t->p->tensors.data[a->index];
    switch ((int)a->kind) {
    case ABI_ARG_POINTER: return (uint64_t)(uintptr_t)t->memory[a->index];
    case ABI_ARG_SIZE: return (uint32_t)t->size[a->index];
    case ABI_ARG_STRIDE:
        for (int d = x->rank - 1; d > (int)a->dim; d--)
            stride *= tile_eval_launch(x->extent[d], t->size, WORKERS);
        return (uint64_t)stride;
    default: abort(); // these programs have no scalars
    }
}

// ---- launches

static bool launch(Tiles *t, const AbiKernel *k, uint64_t seed) {
    int64_t sizes[MAX_SIZES], total = 1, n;
    GcnBuffer buffer[MAX_SIZES];
    GcnError e;
    GcnArg at;
    for (int i = 0; i < t->p->sizes.n; i++) sizes[i] = t->size[i];
    for (uint32_t i = 0; i < k->ngrid; i++)
        total *= abi_eval(&k->grid[i], sizes, WORKERS, &n) ? n : 0;
    const GcnKernel *code = gcn_kernel(t->code, k->symbol);
    if (!code) return fail(t, "no such kernel");
    char *args = arena_alloc(t->arena, gcn_kernarg_bytes(code) + 1);
    for (uint32_t i = 0; i < k->nargs; i++) {
        uint64_t slot = argument(t, &k->args[i]);
        if (!gcn_arg(code, i, &at)) return fail(t, "an argument is missing");
        memcpy(args + at.offset, &slot, at.size);
    }
    for (int i = 0; i < t->p->tensors.n; i++) {
        const TileTensor *x = &t->p->tensors.data[i];
        size_t bytes = (size_t)(tile_tensor_elements(x, t->size) * dtype_bytes(x->dtype));
        buffer[i] = (GcnBuffer){t->memory[i], bytes, tile_is_written(t->p, x)};
    }
    GcnLaunch l = {.kernel = code,
                   .grid = {(uint32_t)total, 1, 1},
                   .threads = k->threads,
                   .dynamic = k->shared,
                   .kernarg = args,
                   .kernarg_bytes = gcn_kernarg_bytes(code),
                   .buffers = buffer,
                   .nbuffers = t->p->tensors.n,
                   .seed = seed};
    return !total || gcn_launch(&l, &e) || fail(t, e.text);
}

static bool run_plan(Tiles *t, uint64_t seed) {
    const AbiVariant *v = &t->meta.variants[0];
    int64_t sizes[MAX_SIZES], holds = 1;
    for (int i = 0; i < t->p->sizes.n; i++) sizes[i] = t->size[i];
    uint32_t plan = 0;
    while (v->plans[plan].when.n &&
           !(abi_eval(&v->plans[plan].when, sizes, WORKERS, &holds) && holds))
        plan++;
    for (uint32_t i = 0; i < v->plans[plan].nkernels; i++)
        if (!launch(t, &v->kernels[v->plans[plan].kernels[i]], seed + i)) return false;
    return true;
}

// ---- a run

// "B=1 H=2": the rest 1, q_offset as a launch takes it.
static void read_sizes(Tiles *t, const char *s) {
    for (int i = 0; i < MAX_SIZES; i++) t->size[i] = 1;
    t->size[SIZE_Q_OFFSET] = INT32_MIN;
    for (; *s && *s != '\n'; s += strcspn(s, " \n"), s += *s == ' ')
        for (int i = 0; i < t->p->sizes.n; i++) {
            size_t n = strlen(t->p->sizes.data[i].name);
            if (strncmp(s, t->p->sizes.data[i].name, n) == 0 && s[n] == '=')
                t->size[i] = atoi(s + n + 1);
        }
    int beyond = t->size[SIZE_SK] - t->size[SIZE_SQ];
    if (t->size[SIZE_Q_OFFSET] == INT32_MIN) t->size[SIZE_Q_OFFSET] = beyond > 0 ? beyond : 0;
}

// Inputs are a quarter of normal, so that what is summed and raised of them stays small.
static TileData *data_of(Tiles *t, const TileProgram *p) {
    TileData *d = tile_data_random(t->arena, p, t->size, WORKERS, 1);
    for (int i = 0; i < p->tensors.n; i++) {
        const TileTensor *x = &p->tensors.data[i];
        int64_t n = tile_tensor_elements(x, d->size);
        for (int64_t k = 0; k < n && x->role == TENSOR_INPUT && x->dtype == DT_F32; k++)
            d->tensor[i][k] /= 4;
    }
    return d;
}

// How large the numbers of a tensor are.
static double size_of(const double *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += isfinite(x[i]) ? x[i] * x[i] : 0;
    return n ? sqrt(sum / (double)n) : 0;
}

// Sums are of rounded operands as large as the results are, or larger.
static bool compare(Tiles *t, const TileData *want) {
    for (int i = 0; i < t->p->tensors.n; i++) {
        const TileTensor *x = &t->p->tensors.data[i];
        if (!tile_is_result(t->p, x)) continue;
        int64_t n = tile_tensor_elements(x, t->size);
        double size = size_of(want->tensor[i], n);
        for (int64_t k = 0; k < n; k++) {
            double got = get(x->dtype, t->memory[i], k), is = want->tensor[i][k];
            if (fabs(got - is) <= 2e-2 * (size + fabs(is)) || (isinf(is) && got == is)) continue;
            snprintf(t->why, sizeof t->why, "%s, element %lld: %g is not %g", x->name, (long long)k,
                     got, is);
            return false;
        }
    }
    return true;
}

static bool run(Tiles *t, const char *line, uint64_t seed) {
    read_sizes(t, line);
    TileData *want = data_of(t, t->algorithm), *d = data_of(t, t->p);
    memcpy(t->size, d->size, sizeof *t->size * (size_t)t->p->sizes.n);
    if (!tile_eval(t->algorithm, want, false, &t->diags))
        return fail(t, "the algorithm does not run");
    put_tensors(t, d);
    bool good = run_plan(t, seed) && compare(t, want);
    for (int i = 0; i < t->p->tensors.n; i++) free(t->memory[i]);
    return good;
}

static void check(const char *path, const char *text, TargetId target, uint64_t seed, int *passed,
                  int *failed) {
    Tiles t = {.arena = arena_new(), .text = text};
    t.diags = diag_list(t.arena);
    bool good = scheduled(&t, target) && compiled(&t);
    const char *dtype = t.p ? dtype_name(t.p->dtype) : "?", *name = cg_target(target).name;
    if (!good) ++*failed, printf("FAILED: %s, %s on %s: %s\n", path, dtype, name, t.why);
    for (const char *s = text; good && (s = strstr(s, "// run: ")); s++) {
        bool right = run(&t, s + 8, seed);
        ++*(right ? passed : failed);
        if (!right)
            printf("FAILED: %s, %s on %s, %.*s: %s\n", path, dtype, name, (int)strcspn(s, "\n"), s,
                   t.why);
    }
    abi_free(&t.meta);
    arena_free(t.arena);
}

void tiles_check(const char *path, TargetId target, uint64_t seed, int *passed, int *failed) {
    char *text = calloc(2, MAX_TEXT), *single = text + MAX_TEXT;
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(text, 1, MAX_TEXT - 1, f) : 0;
    if (f) fclose(f);
    if (!n) ++*failed, printf("FAILED: %s: cannot be read\n", path);
    check(path, text, target, seed, passed, failed);
    for (const char *s = text; *s; s++) { // shorter
        bool narrow = strncmp(s, "bf16", 4) == 0;
        memcpy(single, narrow ? "f32" : s, narrow ? 3 : 1);
        single += narrow ? 3 : 1;
        s += narrow ? 3 : 0;
    }
    check(path, text + MAX_TEXT, target, seed, passed, failed);
    free(text);
}
