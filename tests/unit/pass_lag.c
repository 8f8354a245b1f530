// Shifts that lag behind their extrema: outputs and emits are those of the reference, whether maxima
// stay, creep, jump or fall, and whatever the tiles.
#include "tests/unit/pass_util.h"

static const PuTiles tilings[] = {{1, 1}, {4, 3}, {2, 7}};
static const int32_t launches[][6] = {
    {1, 1, 1, 5, 7, 2}, {1, 2, 1, 9, 23, 14}, {1, 1, 1, 3, 0, 0}, {1, 1, 1, 13, 5, 0}};

static void check_stream(Arena *a, const Variant *v, const Stream *s, Dtype dtype) {
    PassOptions o = {.target = *target_get(TARGET_SM90A), .dtype = dtype, .lag = 8};
    for (size_t t = 0; t < sizeof tilings / sizeof *tilings; t++) {
        TileProgram *p = pu_staged(a, s, &o, PU_SHAPED, tilings[t]);
        for (size_t i = 0; i < sizeof launches / sizeof *launches; i++) {
            int32_t size[64];
            const int32_t *n = launches[i];
            pu_sizes(v, size, n[0], n[1], n[2], n[3], n[4], n[5]);
            double error = pu_error(a, v, p, size, false, 11 + i);
            ck_assert_msg(error < 1e-6, "%s: error %g at Sk=%d", p->name, error, n[4]);
        }
    }
}

static void check_one(const char *path, int dtype) {
    Arena *a = arena_new();
    Variant *v;
    const Stream *s = pu_stream(a, path, NULL, 256, &v);
    check_stream(a, v, s, (Dtype)dtype);
    arena_free(a);
}

START_TEST(library) { pu_library(check_one, DT_BF16); }
END_TEST

static const char *const moving[] = {
    "modify(s, b, h, i, j) = s * 30; normalize(s) = softmax(s);",
    "modify(s, b, h, i, j) = s + 1.7 * j; normalize(s) = softmax(s);",
    "modify(s, b, h, i, j) = s - 2.5 * j; normalize(s) = softmax(s);",
    "modify(s, b, h, i, j) = s * 20 - abs(j - i) * 3; mask(b, h, i, j) = causal(i, j); "
    "normalize(s) = softmax(s);",
    "input w: f32[H]; modify(s, b, h, i, j) = s * 8 * w[h]; normalize(s) = softmax(s);",
    "modify(s, b, h, i, j) = j % 5 == 0 ? s : -1e30; normalize(s) = softmax(s);",
    "normalize(s) { let m = rowmin(s); let l = rowsum(exp(m - s)); emit low = m; "
    "emit sum = l; return exp(m - s) / l; } modify(s, b, h, i, j) = s * 9;",
};

START_TEST(moves) {
    Arena *a = arena_new();
    Variant *v;
    const char *text = arena_printf(
        a,
        "import std.mask; import std.normalization; attention t { dim D = 256; score(q, k) = "
        "dot(q, k); %s }",
        moving[_i]);
    const Stream *s = pu_stream(a, "t.attn", text, 0, &v);
    ck_assert_int_eq(s->nsweeps, 1);
    check_stream(a, v, s, DT_BF16);
    arena_free(a);
}
END_TEST

// A weight that another factor makes thousands fits its type, with a lag and without.
START_TEST(large_weights) {
    Arena *a = arena_new();
    Variant *v;
    const Stream *s = pu_stream(a, "t.attn",
                                "attention t { dim D = 128; score(q, k) = dot(q, k); "
                                "modify(s, b, h, i, j) = 0.5 * s + 70 + 0.3 * j; "
                                "normalize(s) { let m = rowmax(s); let l = rowsum(exp(s - m)); "
                                "return exp(s - m) * s * s / l; } }",
                                0, &v);
    PassOptions o = {.target = *target_get(TARGET_SM90A), .dtype = DT_BF16, .lag = _i ? 8 : 0};
    TileProgram *p = pu_staged(a, s, &o, PU_SHAPED, tilings[1]);
    int32_t size[64];
    pu_sizes(v, size, 1, 2, 1, 9, 23, 14);
    double error = pu_error(a, v, p, size, true, 3);
    ck_assert_msg(error < 10, "error %g of some 5000", error);
    arena_free(a);
}
END_TEST

static int carried_values(const TileProgram *p) {
    for (const TileOp *op = tile_next(&p->kernels.data[0]->body, NULL); op;
         op = tile_next(&p->kernels.data[0]->body, op))
        if (op->kind == TILE_LOOP) return op->carried.n;
    return 0;
}

// Where a row of the target's table says so: narrow elements, values as wide as queries.
START_TEST(only_where_told) {
    static const struct {
        TargetId target;
        Dtype dtype;
        const char *path, *asked;
        int columns, lag;
    } rows[] = {{TARGET_SM90A, DT_BF16, "stdlib/softmax.attn", NULL, 128, 8},
                {TARGET_SM90A, DT_BF16, "stdlib/softmax.attn", NULL, 64, 0},
                {TARGET_SM90A, DT_BF16, "stdlib/softmax.attn", "lag=4", 64, 4},
                {TARGET_SM90A, DT_F32, "stdlib/softmax.attn", NULL, 128, 0},
                {TARGET_SM90A, DT_BF16, "stdlib/causal.attn", NULL, 256, 8},
                {TARGET_SM90A, DT_BF16, "stdlib/causal.attn", "lag=0", 256, 0},
                {TARGET_SM90A, DT_F16, "stdlib/causal.attn", NULL, 256, 0},
                {TARGET_SM90A, DT_BF16, "stdlib/relu.attn", NULL, 128, 0},
                {TARGET_SM80, DT_BF16, "stdlib/causal.attn", NULL, 256, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Arena *a = arena_new();
        Variant *v;
        Diags diags;
        diag_init(&diags, a);
        const Stream *s = pu_stream(a, rows[i].path, NULL, rows[i].columns, &v);
        PassOptions o = {.target = *target_get(rows[i].target),
                         .dtype = rows[i].dtype,
                         .shape = SHAPE_LONG,
                         .schedule = rows[i].asked};
        TileProgram *p = pass_pipeline(a, s, &o, &diags);
        ck_assert_ptr_nonnull(p);
        o.lag = p->kernels.data[0]->schedule.lag;
        ck_assert_int_eq(o.lag, rows[i].lag);
        if (strstr(rows[i].path, "relu") == NULL) // maximum, sum, accumulator; the shift
            ck_assert_int_eq(carried_values(pass_build(a, s, &o)), o.lag ? 4 : 3);
        arena_free(a);
    }
}
END_TEST

// Weights of f16 may be large already; sums that nothing rescales have no shift.
START_TEST(refused) {
    static const struct {
        Dtype dtype;
        const char *path;
    } rows[] = {{DT_F16, "stdlib/softmax.attn"}, {DT_BF16, "stdlib/relu.attn"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Arena *a = arena_new();
        Variant *v;
        Diags diags;
        diag_init(&diags, a);
        const Stream *s = pu_stream(a, rows[i].path, NULL, 128, &v);
        PassOptions o = {
            .target = *target_get(TARGET_SM90A), .dtype = rows[i].dtype, .schedule = "lag=8"};
        ck_assert_ptr_null(pass_pipeline(a, s, &o, &diags));
        ck_assert_str_eq(
            diags.first->message,
            "schedule: shifts lag where an accumulator is rescaled and weights are bf16");
        arena_free(a);
    }
}
END_TEST

Suite *pass_lag_suite(void);
Suite *pass_lag_suite(void) {
    Suite *s = suite_create("pass_lag");
    TCase *t = tcase_create("lag");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, library);
    tcase_add_loop_test(t, large_weights, 0, 2);
    tcase_add_loop_test(t, moves, 0, sizeof moving / sizeof *moving);
    tcase_add_test(t, only_where_told);
    tcase_add_test(t, refused);
    suite_add_tcase(s, t);
    return s;
}
