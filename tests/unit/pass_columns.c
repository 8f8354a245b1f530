// Values in blocks of columns over the grid: on small tiles of odd sizes every schedule gives what
// the interpreter gives without blocks, whether or not the last block is full; what is one number
// for a row is stored once.
#include "backward_util.h"
#include "passes/schedule/sm90.h"

static const PuTiles tiles = {4, 3};

static PassOptions options(TargetId t, bool split) {
    return (PassOptions){.target = *target_get(t), .dtype = DT_BF16, .split = split};
}

// Taken apart before its extents are bound, as targets do; scheduled for one.
static TileProgram *in_blocks(Arena *a, const Stream *s, TargetId target, bool split, int most) {
    PassOptions o = options(target, split);
    Diags diags = diag_list(a);
    TileProgram *p = pu_staged(a, s, &o, PU_FUSED, tiles);
    for (int i = 0; i < p->kernels.n; i++)
        ck_assert(pass_tile_columns(p, p->kernels.data[i], most, 1, &diags));
    pu_bind(p, tiles);
    pass_set_splits(p);
    ck_assert(pass_shifts(p, &o, NULL)); // nothing says that they stay
    pass_classify(p);
    pass_settle(p);
    pass_hoist(p);
    pass_fuse(p);
    pu_verify(p, p->name, PU_SHAPED);
    if (target == TARGET_SM90A)
        p->kernels.data[0]->schedule.knobs = sm90_fit(p, p->kernels.data[0], SHAPE_SHORT, false);
    ck_assert(pass_schedule(p, &o, &diags));
    pu_verify(p, p->name, PU_SHAPED);
    return p;
}

static bool stores_twice(const TileProgram *p) {
    const TileBlock *b = &p->kernels.data[0]->body;
    for (const TileOp *op = tile_next(b, NULL); op; op = tile_next(b, op))
        if (op->kind == TILE_STORE && op->args.data[0]->rank == 1 && !op->when) return true;
    return false;
}

// B, H, Hkv, Sq, Sk, q_offset
static const int32_t launches[][6] = {
    {1, 1, 1, 5, 7, 2}, {2, 2, 1, 9, 10, 1}, {1, 1, 1, 3, 0, 0}, {1, 2, 2, 4, 1, 0}};

static void check_launches(Arena *a, const Variant *v, TileProgram *before, TileProgram *after) {
    Diags diags = diag_list(a);
    for (size_t i = 0; i < sizeof launches / sizeof *launches; i++) {
        const int32_t *l = launches[i];
        int32_t size[64] = {0};
        pu_sizes(v, size, l[0], l[1], l[2], l[3], l[4], l[5]);
        TileData *x = tile_data_random(a, before, size, 3, 7),
                 *y = tile_data_random(a, after, size, 3, 7);
        bool ok = tile_eval(before, x, false, &diags) && tile_eval(after, y, false, &diags);
        if (!ok) diag_print(&diags, stderr);
        ck_assert_msg(ok, "%s does not run", after->name);
        double d = tile_data_distance(before, x, after, y);
        ck_assert_msg(d < 1e-6, "%s: %g apart at Sq=%d Sk=%d", after->name, d, l[3], l[4]);
    }
}

static void check_blocks(const char *path, TargetId target, bool split, int most) {
    Arena *a = arena_new();
    Variant *v;
    const Stream *s = pu_stream(a, path, NULL, 8, &v);
    PassOptions o = options(target, split);
    TileProgram *before = pu_staged(a, s, &o, PU_SHAPED, tiles);
    TileProgram *after = in_blocks(a, s, target, split, most);
    ck_assert_int_eq(after->kernels.data[0]->ngrid, 4);
    ck_assert(!stores_twice(after));
    check_launches(a, v, before, after);
    arena_free(a);
}

static void check_host(const char *path, int most) { check_blocks(path, TARGET_HOST, false, most); }
static void check_sm80(const char *path, int most) { check_blocks(path, TARGET_SM80, false, most); }
static void check_sm90(const char *path, int most) {
    check_blocks(path, TARGET_SM90A, false, most);
}
static void check_parts(const char *path, int most) { check_blocks(path, TARGET_HOST, true, most); }

TEST_EACH(library_in_blocks, 0, 8) {
    static void (*const check[])(const char *, int) = {check_host, check_sm80, check_sm90,
                                                       check_parts};
    pu_library(check[_i / 2], _i % 2 ? 4 : 3); // of 8 columns: two even blocks; 3, 3, 2
}

ARENA_TEST(a_norm_of_the_output_is_refused) {
    static const char text[] =
        "import std.normalization; attention t { dim D = 8, Dv = D; score(q, k) = dot(q, k); "
        "normalize(s) = softmax(s); output(o, b, h, q_idx, d) = o * rsqrt(sqnorm(o) + 1); }";
    Diags diags = diag_list(a);
    PassOptions o = options(TARGET_SM80, false);
    const Stream *s = pu_stream(a, "t.attn", text, 512, NULL);
    ck_assert_ptr_null(pass_pipeline(a, s, &o, &diags));
    ck_assert_int_eq(diags.errors, 1);
}

// Of a backward: columns of dv are computed in blocks; those that a weight's gradient is a sum over are not, nor those of delta.
TEST(gradients_of_wide_values) {
    static const char *const texts[] = {
        "attention a { dim D = 32, Dv = 512; score(q, k) = dot(q, k) * 0.2; modify(s) = max(s, 0); "
        "mask(b, h, i, j) = j <= i; normalize(s) = s / Sk; }",
        "import std.normalization; attention a { dim D = 256, Dv = 512; score(q, k) = dot(q, k) * "
        "0.06; mask(b, h, i, j) = j <= i; normalize(s) = retention(s); }",
        "import std.normalization; attention a { dim D = 16, Dv = 320; score(q, k) = dot(q, k) * "
        "0.2; normalize(s) = softmax(s); }",
    };
    static const TargetId gpus[] = {TARGET_SM80, TARGET_SM90A, TARGET_GFX942};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (size_t t = 0; t < sizeof gpus / sizeof *gpus; t++)
            check_scheduled("wide", texts[i], gpus[t], i ? DT_BF16 : DT_F16);
}
