// The sm_80 schedule of the standard library: on small tiles of odd sizes the interpreter gives
// what it gives before scheduling, for launches with no keys, one key, fewer keys than queries;
// copies are waited for, buffers are not overwritten while they are read.
#include "pass_util.h"

static const PuTiles tiles = {4, 3};

static TileProgram *shaped(Arena *a, const Stream *s, bool split) {
    PassOptions o = {.target = *target_get(TARGET_SM80), .dtype = DT_BF16, .split = split};
    return pu_staged(a, s, &o, PU_SHAPED, tiles);
}

static TileProgram *scheduled(Arena *a, const Stream *s, bool split) {
    PassOptions o = {.target = *target_get(TARGET_SM80), .dtype = DT_BF16, .split = split};
    TileProgram *p = shaped(a, s, split);
    Diags diags = diag_list(a);
    ck_assert(pass_schedule(p, &o, &diags));
    p->scheduled = true;
    pu_verify(p, p->name, PU_SHAPED);
    return p;
}

static void check_variant(const char *path, const char *text, bool split) {
    Arena *a = arena_new();
    Variant *v;
    const Stream *s = pu_stream(a, path, text, 8, &v);
    TileProgram *before = shaped(a, s, split), *after = scheduled(a, s, split);
    pu_same_anywhere(a, v, before, after, 1e-9);
    arena_free(a);
}

static void check_one(const char *path, int split) { check_variant(path, NULL, split); }
static void check_library(bool split) { pu_library(check_one, split); }

TEST(library) { check_library(false); }

TEST(split_library) { check_library(true); }

// Several sweeps over the keys: the first with one load a step, which has two stages; buffers are
// taken over from sweep to sweep.
TEST(sweeps) {
    check_variant("t.attn",
                  "attention t { dim D = 8; score(q, k) = dot(q, k); normalize(s) { let n = "
                  "rowsum(1.0); let mu = rowsum(s) / n; "
                  "return exp((s - mu) * rsqrt(rowsum((s - mu) * (s - mu)) / n + 0.1)); } }",
                  false);
}

// A mask of several bounds is one interval of each row; a number made of positions is converted in
// parts.
TEST(intervals) {
    check_variant("t.attn",
                  "attention t { dim D = 8; score(q, k) = dot(q, k); modify(s, b, h, q, k) = s + "
                  "0.5 * (k - q); "
                  "mask(b, h, q, k) = k <= q && q - k < 4 && k >= 1 && (k + q) % 2 == 0 && q < 2 * "
                  "k + 5; normalize(s) = s; }",
                  false);
}

// Products by tf32 are said so in the text, and round their operands.
ARENA_TEST(tf32) {
    Variant *v;
    const Stream *s = pu_stream(a, "stdlib/causal.attn", NULL, 8, &v);
    PassOptions o = {.target = *target_get(TARGET_SM80), .dtype = DT_F32, .tf32 = true};
    TileProgram *p = pu_staged(a, s, &o, PU_SHAPED, tiles);
    Diags diags = diag_list(a);
    Text t = text_new(a), again = text_new(a);
    tile_print(&t, p);
    ck_assert_ptr_nonnull(strstr(t.s, "mma tf32 %q, %k"));
    TileProgram *read = tile_parse(a, t.s, t.n, &diags);
    ck_assert_ptr_nonnull(read);
    tile_print(&again, read);
    ck_assert_str_eq(again.s, t.s);
    int32_t size[64] = {0};
    pu_sizes(v, size, 1, 2, 2, 9, 30, 21);
    TileData *exact = tile_data_random(a, p, size, 3, 7), *x = tile_data_random(a, p, size, 3, 7);
    ck_assert(tile_eval(p, exact, false, &diags) && tile_eval(read, x, true, &diags));
    double d = tile_data_distance(p, exact, read, x);
    ck_assert_msg(d > 1e-5 && d < 2e-3, "%g", d);
    o.target = *target_get(TARGET_HOST);
    ck_assert_ptr_null(pass_pipeline(a, s, &o, &diags));
    ck_assert_ptr_nonnull(strstr(diags.first->message, "tf32"));
}

// Half the keys where an input has a number for each query and key, which a tile of the output has not.
TEST(dense_keys) {
    static const struct {
        const char *formula;
        int keys;
    } cases[] = {
        {"modify(s, b, h, i, j) = s + g[h, i - q_offset, j];", 64},
        {"modify(s, b, h, i, j) = s + e[i - q_offset, j, j];", 64},
        {"modify(s, b, h, i, j) = s + g[0, j, j];", 128},
        {"output(o, b, h, i, d) = o * w[h, i - q_offset, d];", 128},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena *a = arena_new();
        Diags diags = diag_list(a);
        const char *text = arena_printf(
            a,
            "import std.normalization; attention t { dim D = 64; input g: f32[H, Sq, Sk]; input e: "
            "f32[Sq, Sk, Sk]; input w: f32[H, Sq, Dv]; score(q, k) = dot(q, k); normalize(s) = "
            "softmax(s); %s }",
            cases[i].formula);
        PassOptions o = {.target = *target_get(TARGET_SM80), .dtype = DT_BF16, .split = true};
        const TileProgram *p = pass_pipeline(a, pu_stream(a, "t.attn", text, 0, NULL), &o, &diags);
        ck_assert_ptr_nonnull(p);
        ck_assert_msg(p->kernels.data[0]->schedule.knobs.keys == cases[i].keys, "%s",
                      cases[i].formula);
        arena_free(a);
    }
}
