// pass_util.h: what the tests of passes share: a variant taken through the passes up to a stage,
// run in the interpreter on small random tensors, and held against the float64 reference.
#ifndef TESTS_UNIT_PASS_UTIL_H
#define TESTS_UNIT_PASS_UTIL_H

#include "passes/passes.h"
#include "passes/schedule/schedule.h"
#include "passes/tile/rewrite.h"
#include "tests/support/random.h"
#include "tests/unit/ref_util.h"
#include "tests/unit/tile_util.h"

#include <dirent.h>

typedef enum PuStage {
    PU_BUILT,
    PU_TIDY,
    PU_HOISTED,
    PU_FUSED,
    PU_BOUND,
    PU_CLASSIFIED,
    PU_SHAPED,
    PU_STAGES
} PuStage;
static const char *const pu_stage_name[] = {"build", "tidy",     "hoist", "fuse",
                                            "bind",  "classify", "shape"};

static inline Knobs pu_knobs(const char *text) { // NULL: none
    Arena *a = arena_new();
    Knobs k = {0};
    const char *wrong = text ? knobs_parse(a, text, &k) : NULL;
    ck_assert_msg(!wrong, "%s", wrong);
    arena_free(a);
    return k;
}

typedef struct PuTiles {
    int m, n;
} PuTiles;

// A score's modification of 1 + 4 * terms operations.
static inline const char *pu_long_body(Arena *a, int terms) {
    Text t = text_new(a);
    text_puts(
        &t, "import std.normalization; attention t { dim D = 16; input w: f32[100]; score(q, k) = "
            "dot(q, k); modify(s, b, h, i, j) = s");
    for (int i = 0; i < terms; i++) {
        if (i % 10 == 0)
            text_printf(&t, " + 0.01 * w[(i + j * %d) %% 100]", i + 1);
        else
            text_printf(&t, i % 2 ? " + 0.01 * cos(s * %d.5)" : " + 0.01 * max(s, %d - s)", i % 40);
    }
    text_puts(&t, "; normalize(s) = softmax(s); }");
    return t.s;
}

static inline Stream *pu_stream(Arena *a, const char *path, const char *text, int D,
                                Variant **variant) {
    Diags diags = diag_list(a);
    const char *d = arena_printf(a, "%d", D), *dv = arena_printf(a, "%d", D == 8 ? 4 : D);
    bool has_dv = text && strstr(text, "Dv");
    FeDefine defines[] = {{"D", d}, {"Dv", dv}};
    FeOptions o = {.path = path,
                   .text = text,
                   .text_bytes = text ? strlen(text) : 0,
                   .stdlib = "stdlib",
                   .defines = defines,
                   .ndefines = D ? has_dv ? 2 : 1 : 0};
    FeStatus status;
    Module *m = fe_load(a, &diags, &o, &status);
    if (!m) diag_print(&diags, stderr);
    ck_assert_msg(m != NULL, "%s does not load", path);
    Variant *v = fe_find(m, NULL);
    ck_assert_msg(v != NULL, "%s is not one variant", path);
    if (variant) *variant = v;
    RowProgram *row = fe_lower(a, &diags, v);
    ck_assert_msg(row != NULL, "%s is not lowered", path);
    return pass_derive(a, row, NULL);
}

static inline TileProgram *pu_algorithm(Arena *a, const Stream *s, const PassOptions *o) {
    Diags diags = diag_list(a);
    TileProgram *p = pass_algorithm(a, s, o, &diags);
    if (!p) diag_print(&diags, stderr);
    ck_assert(p != NULL);
    return p;
}

static inline void pu_verify(const TileProgram *p, const char *what, PuStage stage) {
    Diags diags = diag_list(p->arena);
    if (tile_verify(p, &diags)) return;
    Text t = text_new(p->arena);
    tile_print(&t, p);
    fprintf(stderr, "%s\n", t.s);
    diag_print(&diags, stderr);
    ck_abort_msg("%s after %s does not verify", what, pu_stage_name[stage]);
}

static inline void pu_bind(TileProgram *p, PuTiles tiles) {
    for (int i = 0; i < p->kernels.n; i++) {
        TileKernel *k = p->kernels.data[i];
        for (int x = 0; x < k->naxes; x++) {
            if (k->axes[x].extent) continue;
            int extent =
                k->axes[x].whole && k->axes[x].size->op == EX_CONST ? k->axes[x].size->i : 1;
            if (k->axes[x].name[0] == 'M') extent = tiles.m;
            if (k->axes[x].name[0] == 'N') extent = tiles.n;
            pass_bind(p, k, x, extent);
        }
    }
}

static inline TileProgram *pu_staged(Arena *a, const Stream *s, const PassOptions *o, PuStage stage,
                                     PuTiles tiles) {
    TileProgram *p = pass_build(a, s, o);
    if (stage >= PU_TIDY) pass_tidy(p);
    if (stage >= PU_HOISTED) pass_hoist(p);
    if (stage >= PU_FUSED) pass_fuse(p);
    if (stage >= PU_BOUND) pu_bind(p, tiles);
    if (stage >= PU_BOUND) pass_set_splits(p);
    if (stage >= PU_CLASSIFIED) ck_assert(pass_shifts(p, o, NULL)); // nothing says that they stay
    if (stage >= PU_CLASSIFIED) pass_classify(p);
    if (stage >= PU_SHAPED) {
        pass_settle(p);
        pass_hoist(p);
        pass_fuse(p);
    }
    pu_verify(p, p->name, stage);
    return p;
}

static inline TileProgram *pu_program(Arena *a, const Stream *s, Dtype dtype, PuStage stage,
                                      PuTiles tiles) {
    PassOptions o = {.target = *target_get(TARGET_HOST), .dtype = dtype};
    return pu_staged(a, s, &o, stage, tiles);
}

// ---- the reference on a program's data

static inline const void *pu_input(Arena *a, const TileProgram *p, const TileData *x, int input) {
    int tensor = p->inputs.data[input];
    const TileTensor *t = &p->tensors.data[tensor];
    if (dtype_reads(t->dtype) == EX_F32) return x->tensor[tensor];
    int64_t n = tile_tensor_elements(t, x->size);
    int32_t *v = ARENA_ARRAY(a, int32_t, n + 1);
    for (int64_t i = 0; i < n; i++) v[i] = (int32_t)x->tensor[tensor][i];
    return v;
}

static inline int pu_tensor(const TileProgram *p, TensorRole role, int index) {
    for (int i = 0; i < p->tensors.n; i++)
        if (p->tensors.data[i].role == role && p->tensors.data[i].index == index) return i;
    return -1;
}

static inline int pu_named(const TileProgram *p, const char *name) {
    for (int i = 0; i < p->tensors.n; i++)
        if (!strcmp(p->tensors.data[i].name, name)) return i;
    return -1;
}

// The reference on a forward's data; o: where it is to go, or NULL.
static inline RefRun pu_run(Arena *a, const Variant *v, const TileProgram *p, const TileData *x,
                            double *o) {
    const void **inputs = ARENA_ARRAY(a, const void *, p->inputs.n + 1);
    for (int i = 0; i < p->inputs.n; i++) inputs[i] = pu_input(a, p, x, i);
    int value = pu_tensor(p, TENSOR_V, 0); // -1: it is in k
    return ref_of(v, x->size, x->tensor[pu_tensor(p, TENSOR_Q, 0)],
                  x->tensor[pu_tensor(p, TENSOR_K, 0)], value < 0 ? NULL : x->tensor[value], inputs,
                  o);
}

// Data like x, with what the reference gives as outputs.
static inline TileData *pu_reference(Arena *a, const Variant *v, const TileProgram *p,
                                     const TileData *x) {
    TileData *y = ARENA_NEW(a, TileData);
    *y = *x;
    y->tensor = ARENA_ARRAY(a, double *, p->tensors.n);
    memcpy(y->tensor, x->tensor, sizeof *y->tensor * (size_t)p->tensors.n);
    double **emits = ARENA_ARRAY(a, double *, v->emits.n + 1);
    for (int i = 0; i < p->tensors.n; i++) {
        TileTensor *t = &p->tensors.data[i];
        if (t->role != TENSOR_O && t->role != TENSOR_EMIT) continue;
        y->tensor[i] = ARENA_ARRAY(a, double, tile_tensor_elements(t, x->size) + 1);
        if (t->role == TENSOR_EMIT) emits[t->index] = y->tensor[i];
    }
    RefRun r = pu_run(a, v, p, x, y->tensor[pu_tensor(p, TENSOR_O, 0)]);
    r.emits = emits;
    ck_assert(ref_check(&r) == NULL);
    ref_run(&r);
    return y;
}

static inline void pu_sizes(const Variant *v, int32_t *size, int b, int h, int hkv, int sq, int sk,
                            int offset) {
    int32_t fixed[SIZE_FREE] = {b, h, hkv, sq, sk, offset};
    memcpy(size, fixed, sizeof fixed);
    for (int i = SIZE_FREE; i < v->sizes.n; i++) size[i] = 5;
}

// How far the program is from the reference at these sizes.
static inline double pu_error(Arena *a, const Variant *v, const TileProgram *p, const int32_t *size,
                              bool round, uint64_t seed) {
    Diags diags = diag_list(a);
    int32_t all[64] = {0};
    memcpy(all, size, sizeof *all * (size_t)v->sizes.n);
    TileData *x = tile_data_random(a, p, all, 4, seed);
    bool ok = tile_eval(p, x, round, &diags);
    if (!ok) diag_print(&diags, stderr);
    ck_assert_msg(ok, "%s does not run", p->name);
    return tile_data_distance(p, x, p, pu_reference(a, v, p, x));
}

// ---- the standard library

typedef int32_t PuLaunch[6]; // B, H, Hkv, Sq, Sk, q_offset

// Two programs of a variant give the same, but for how sums are rounded.
static inline void pu_same(Arena *a, const Variant *v, const TileProgram *before,
                           const TileProgram *after, const PuLaunch launch, double may) {
    int32_t size[64] = {0};
    pu_sizes(v, size, launch[0], launch[1], launch[2], launch[3], launch[4], launch[5]);
    Diags diags = diag_list(a);
    TileData *x = tile_data_random(a, before, size, 3, 7),
             *y = tile_data_random(a, after, size, 3, 7);
    bool ok = tile_eval(before, x, false, &diags) && tile_eval(after, y, false, &diags);
    double d = ok ? tile_data_distance(before, x, after, y) : INFINITY;
    if (!(d < may)) {
        Text t = text_new(a);
        tile_print(&t, after);
        fprintf(stderr, "%s\n", t.s);
        diag_print(&diags, stderr);
    }
    ck_assert_msg(ok, "%s does not run", after->name);
    ck_assert_msg(d < may, "%s: %g apart at Sq=%d Sk=%d", after->name, d, launch[3], launch[4]);
}

// Also for no keys, fewer keys than queries, one step, several heads.
static inline void pu_same_anywhere(Arena *a, const Variant *v, const TileProgram *before,
                                    const TileProgram *after, double may) {
    static const PuLaunch launches[] = {
        {1, 1, 1, 5, 7, 2},  {2, 2, 1, 9, 10, 1}, {1, 2, 2, 4, 1, 0},  {1, 1, 1, 3, 0, 0},
        {1, 1, 1, 13, 5, 0}, {1, 3, 1, 6, 3, 0},  {1, 1, 1, 8, 12, 4}, {1, 1, 1, 1, 17, 16}};
    for (size_t i = 0; i < sizeof launches / sizeof *launches; i++)
        pu_same(a, v, before, after, launches[i], may);
}

static inline int pu_attn_file(const struct dirent *e) {
    size_t n = strlen(e->d_name);
    return n > 5 && !strcmp(e->d_name + n - 5, ".attn");
}

static inline bool pu_is_attention(const char *path) {
    Arena *a = arena_new();
    Diags diags = diag_list(a);
    FeOptions o = {.path = path, .stdlib = "stdlib"};
    FeStatus status;
    Module *m = fe_load(a, &diags, &o, &status);
    Variant *v = m ? fe_find(m, NULL) : NULL;
    bool one = v && v->kind == VARIANT_ATTENTION && fe_lower(a, &diags, v);
    arena_free(a);
    return one;
}

// Every attention of the standard library, in alphabetical order.
static inline void pu_library(void (*check)(const char *path, int how), int how) {
    struct dirent **files;
    int n = scandir("stdlib", &files, pu_attn_file, alphasort);
    ck_assert_int_gt(n, 0);
    for (int i = 0; i < n; i++) {
        char path[512];
        snprintf(path, sizeof path, "stdlib/%s", files[i]->d_name);
        if (pu_is_attention(path)) check(path, how);
        free(files[i]);
    }
    free(files);
}

#endif
