// The AMD schedule of the standard library: on small tiles of odd sizes the interpreter gives what
// it gives before scheduling, for launches with no keys, one key, fewer keys than queries; copies
// are waited for, buffers are not overwritten while they are read. And the shapes that are chosen:
// what they need is what the chip has.
#include "pass_util.h"

static const TargetId ids[] = {TARGET_GFX90A, TARGET_GFX942, TARGET_GFX1100};
static const PuTiles tiles = {4, 3};

static PassOptions options(TargetId id, Dtype t) {
    return (PassOptions){.target = *target_get(id), .dtype = t};
}

static TileProgram *shaped(Arena *a, const Stream *s) {
    PassOptions o = options(TARGET_GFX942, DT_BF16);
    return pu_staged(a, s, &o, PU_SHAPED, tiles);
}

static TileProgram *scheduled(Arena *a, const Stream *s) {
    PassOptions o = options(TARGET_GFX942, DT_BF16);
    TileProgram *p = shaped(a, s);
    Diags diags = diag_list(a);
    ck_assert(pass_schedule(p, &o, &diags));
    p->scheduled = true;
    pu_verify(p, p->name, PU_SHAPED);
    return p;
}

static void check_variant(const char *path, const char *text) {
    Arena *a = arena_new();
    Variant *v;
    const Stream *s = pu_stream(a, path, text, 8, &v);
    TileProgram *before = shaped(a, s), *after = scheduled(a, s);
    pu_same_anywhere(a, v, before, after, 1e-9);
    arena_free(a);
}

static void check_one(const char *path, int unused) {
    (void)unused;
    check_variant(path, NULL);
}

TEST(library) { pu_library(check_one, 0); }

// Several sweeps over the keys: the first with one load a step, which has two stages; buffers are
// taken over from sweep to sweep.
TEST(sweeps) {
    check_variant("t.attn",
                  "attention t { dim D = 8; score(q, k) = dot(q, k); normalize(s) { let n = "
                  "rowsum(1.0); let mu = rowsum(s) / n; "
                  "return exp((s - mu) * rsqrt(rowsum((s - mu) * (s - mu)) / n + 0.1)); } }");
}

// Copies of full tiles are promised to be inside; a promise that does not hold is refused.
ARENA_TEST(inside) {
    Variant *v;
    const Stream *s = pu_stream(a, "stdlib/softmax.attn", NULL, 8, &v);
    const TileProgram *p = scheduled(a, s);
    const char *t = tu_printed(a, p);
    const char *promise = strstr(t, " inside -> %k_buf"), *none = strstr(t, "] -> %v_buf");
    ck_assert(promise && none);
    const char *wrong = arena_printf(a, "%.*s] inside%s", (int)(none - t), t, none + 1);
    Diags diags = diag_list(a);
    TileProgram *q = tile_parse(a, wrong, strlen(wrong), &diags);
    int32_t size[64] = {0};
    pu_sizes(v, size, 1, 1, 1, 5, 7, 2);
    ck_assert(q && tile_verify(q, &diags));
    ck_assert(!tile_eval(q, tile_data_random(a, q, size, 3, 7), false, &diags));
    ck_assert_msg(strstr(diags.first->message, "goes past its end") != NULL, "%s",
                  diags.first->message);
}

// ---- shapes

static const TileProgram *program(Arena *a, TargetId id, Dtype t, int d, int dv, Diags *diags) {
    const char *text = arena_printf(a,
                                    "import std.normalization; attention t { dim D = %d, Dv = %d; "
                                    "score(q, k) = dot(q, k); normalize(s) = softmax(s); }",
                                    d, dv);
    const Stream *s = pu_stream(a, "t.attn", text, 0, NULL);
    PassOptions o = options(id, t);
    *diags = diag_list(a);
    return pass_pipeline(a, s, &o, diags);
}

// Elements of shared buffers, whose rows are padded to what eight chunks of 16 bytes take.
static int64_t shared_bytes(const TileKernel *k) {
    int64_t n = 0;
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; op->kind == TILE_ALLOC && i < op->results.n; i++) {
            const TileValue *v = op->results.data[i];
            int64_t all = dtype_bytes(v->dtype) * v->stages;
            for (int d = 0; d < v->rank; d++) all *= k->axes[v->axis[d]].extent;
            n += all;
        }
    return n;
}

TEST(shapes) {
    static const int dims[][2] = {{1, 1},     {16, 16},   {40, 24},  {64, 64},
                                  {64, 128},  {96, 96},   {128, 64}, {128, 128},
                                  {192, 128}, {256, 256}, {64, 512}};
    static const Dtype types[] = {DT_BF16, DT_F16, DT_F32};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        for (size_t k = 0; k < sizeof dims / sizeof *dims; k++)
            for (int t = 0; t < 3; t++) {
                Arena *a = arena_new();
                Diags diags;
                const TileProgram *p = program(a, ids[i], types[t], dims[k][0], dims[k][1], &diags);
                const char *name = target_get(ids[i])->name;
                ck_assert_msg(p != NULL, "%s D=%d", name, dims[k][0]);
                const TileKernel *kernel = p->kernels.data[0];
                int rows = kernel->axes[tile_grid_axis(kernel)].extent;
                ck_assert_int_eq(rows % (16 * kernel->schedule.warps), 0);
                ck_assert_msg(shared_bytes(kernel) <= target_get(ids[i])->shared_bytes,
                              "%s D=%d Dv=%d", name, dims[k][0], dims[k][1]);
                arena_free(a);
            }
}

ARENA_TEST(too_wide) {
    Diags diags;
    ck_assert_ptr_null(program(a, TARGET_GFX1100, DT_F32, 4096, 64, &diags));
    ck_assert_int_eq(diags.errors, 1);
    ck_assert_str_eq(diags.first->message,
                     "target 'gfx1100' has no room for tiles of a D of 4096 and f32");
}
