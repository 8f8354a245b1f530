// Shifts of sums: outputs and emits are those of the reference, whether extrema stay, creep, jump or
// fall, and whatever the tiles; what is carried of them from tile to tile.
#include "tests/unit/pass_util.h"

static const PuTiles tilings[] = {{1, 1}, {4, 3}, {2, 7}};
static const int32_t launches[][6] = {
    {1, 1, 1, 5, 7, 2}, {1, 2, 1, 9, 23, 14}, {1, 1, 1, 3, 0, 0}, {1, 1, 1, 13, 5, 0}};

static const char *variant(Arena *a, const char *text) {
    return arena_printf(a,
                        "import std.mask; import std.normalization; attention t { dim D = 256; "
                        "score(q, k) = dot(q, k); %s }",
                        text);
}

// At a stage before classes no tile is full, and shifts that may stay move all the same.
static void check_stream(Arena *a, const Variant *v, const Stream *s, PuStage stage) {
    PassOptions o = {.target = *target_get(TARGET_SM90A), .dtype = DT_BF16};
    for (size_t t = 0; t < sizeof tilings / sizeof *tilings; t++) {
        TileProgram *p = pu_staged(a, s, &o, stage, tilings[t]);
        for (size_t i = 0; i < sizeof launches / sizeof *launches; i++) {
            int32_t size[64];
            const int32_t *n = launches[i];
            pu_sizes(v, size, n[0], n[1], n[2], n[3], n[4], n[5]);
            double error = pu_error(a, v, p, size, false, 11 + i);
            ck_assert_msg(error < 1e-6, "%s: error %g at Sk=%d", p->name, error, n[4]);
        }
    }
}

// A shift that is rounded: a product of its extremum.
#define SCALED                                                                                     \
    "input w: f32[H]; input u: f32[H]; normalize(s, b, h) { let m = rowmax(s); "                   \
    "let l = rowsum(exp(w[h] * s - max(w[h] * m, w[h] * u[h]))); emit lse = log(l); "              \
    "return exp(w[h] * s - max(w[h] * m, w[h] * u[h])) / l; } "

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
    SCALED "modify(s, b, h, i, j) = s * 9;",
};

ARENA_TEST_EACH(moves, 0, sizeof moving / sizeof *moving) {
    Variant *v;
    const Stream *s = pu_stream(a, "t.attn", variant(a, moving[_i]), 0, &v);
    ck_assert_int_eq(s->nsweeps, 1);
    check_stream(a, v, s, PU_SHAPED);
    check_stream(a, v, s, PU_BOUND);
}

// A weight that another factor makes thousands fits its type.
ARENA_TEST(large_weights) {
    Variant *v;
    const Stream *s = pu_stream(a, "t.attn",
                                "attention t { dim D = 128; score(q, k) = dot(q, k); "
                                "modify(s, b, h, i, j) = 0.5 * s + 70 + 0.3 * j; "
                                "normalize(s) { let m = rowmax(s); let l = rowsum(exp(s - m)); "
                                "return exp(s - m) * s * s / l; } }",
                                0, &v);
    PassOptions o = {.target = *target_get(TARGET_SM90A), .dtype = DT_BF16, .shape = SHAPE_SHORT};
    TileProgram *p = pu_staged(a, s, &o, PU_SHAPED, tilings[1]);
    int32_t size[64];
    pu_sizes(v, size, 1, 2, 1, 9, 23, 14);
    double error = pu_error(a, v, p, size, true, 3);
    ck_assert_msg(error < 10, "error %g of some 5000", error);
}

static int carried_values(const TileProgram *p) {
    for (const TileOp *op = tile_next(&p->kernels.data[0]->body, NULL); op;
         op = tile_next(&p->kernels.data[0]->body, op))
        if (op->kind == TILE_LOOP) return op->carried.n;
    return 0;
}

// Where nothing in a shift is rounded it is made again of its extremum; otherwise it is carried too.
TEST(carried) {
    static const struct {
        const char *text;
        int values; // maximum, sum, accumulator; the shift
    } all[] = {
        {"normalize(s) = softmax(s);", 3},
        {"input w: f32[H]; modify(s, b, h, i, j) = s * 8 * w[h]; normalize(s) = softmax(s);", 3},
        {SCALED, 4}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        Arena *a = arena_new();
        const Stream *s = pu_stream(a, "t.attn", variant(a, all[i].text), 0, NULL);
        PassOptions o = {
            .target = *target_get(TARGET_SM90A), .dtype = DT_BF16, .shape = SHAPE_SHORT};
        ck_assert_int_eq(carried_values(pass_build(a, s, &o)), all[i].values);
        arena_free(a);
    }
}
