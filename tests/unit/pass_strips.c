// Strips: what varies with the key or with the distance only is made once for each of them; the
// interpreter gives what it gives without, the verifier refuses a strip that is none, and where
// there is no room everything stays in the maps.
#include "pass_util.h"
#include "passes/schedule/strips.h"

static const PuTiles tiles = {4, 3};

static PassOptions options(TargetId t) {
    return (PassOptions){.target = *target_get(t), .dtype = DT_BF16};
}

static int strips_in(const TileProgram *p) {
    int n = 0;
    const TileBlock *b = &p->kernels.data[0]->body;
    for (const TileOp *op = tile_next(b, NULL); op; op = tile_next(b, op)) n += pass_is_strip(op);
    return n;
}

static TileProgram *with_strips(Arena *a, const Stream *s, int room) {
    PassOptions o = options(TARGET_SM80);
    TileProgram *p = pu_staged(a, s, &o, PU_SHAPED, tiles);
    pass_strips(p, p->kernels.data[0], 2, room);
    pu_verify(p, p->name, PU_SHAPED);
    return p;
}

static double apart(Arena *a, const Variant *v, const TileProgram *x, const TileProgram *y) {
    int32_t size[64] = {0};
    Diags diags = diag_list(a);
    pu_sizes(v, size, 1, 2, 1, 9, 11, 2);
    TileData *dx = tile_data_random(a, x, size, 3, 7), *dy = tile_data_random(a, y, size, 3, 7);
    test_good(tile_eval(x, dx, false, &diags) && tile_eval(y, dy, false, &diags), &diags);
    return tile_data_distance(x, dx, y, dy);
}

#define VARIANT(inputs, modify, mask)                                                              \
    "import std.normalization; attention t { dim D = 8; " inputs                                   \
    " score(q, k) = dot(q, k); modify(s, b, h, q, k) = " modify "; mask(b, h, q, k) = " mask       \
    "; normalize(s) = softmax(s); }"

static const struct {
    const char *text;
    int strips; // of the loop over partial tiles and that over full ones together
} variants[] = {
    {VARIANT("input t: f32[H, 30];", "s + t[h, q - k + 9]", "k <= q"), 2},
    {VARIANT("input t: f32[30];", "s + t[3 * (q + h) - k * 3]", "k <= q"), 2},
    {VARIANT("input t: f32[H, 30];", "s + t[h, q + k]", "k <= q"), 0}, // not of the distance
    {VARIANT("input t: f32[H, 30];", "s + t[h, 2 * q - k]", "k <= q"), 0},
    {VARIANT("", "s * exp(0.1 * (k - q))", "k <= q"), 2},
    {VARIANT("", "s + 0.5 * (k - q)", "k <= q"), 0}, // too light
    {VARIANT("", "s", "(q - k) % 3 == 0 && k <= q"), 1},
    {VARIANT("input w: f32[Sk];", "s * w[k]", "k <= q"), 2},
    {VARIANT("input w: f32[Sq];", "s * w[q - q_offset]", "k <= q"), 0}, // of a row: once a tile
    {VARIANT("input d: i32[Sk];", "s", "k <= q && d[k] == d[q]"), 1}, // nothing is known to be full
    {VARIANT("input t: f32[30]; input w: f32[Sk];", "s * t[q - k] + w[k]", "k <= q"), 4},
};

ARENA_TEST_EACH(strips_are_found_and_right, 0, sizeof variants / sizeof *variants) {
    Variant *v;
    PassOptions o = options(TARGET_SM80);
    const Stream *s = pu_stream(a, "t.attn", variants[_i].text, 8, &v);
    TileProgram *before = pu_staged(a, s, &o, PU_SHAPED, tiles), *after = with_strips(a, s, 4096);
    ck_assert_msg(strips_in(after) == variants[_i].strips, "%d strips in %s", strips_in(after),
                  variants[_i].text);
    ck_assert_double_lt(apart(a, v, before, after), 1e-9);
    ck_assert_int_eq(strips_in(with_strips(a, s, 8)), 0); // no room
}

// Scheduled for both targets, with the extents that are chosen.
ARENA_TEST_EACH(schedules_with_strips_are_right, 0, 2 * sizeof variants / sizeof *variants) {
    static const TargetId targets[] = {TARGET_SM80, TARGET_SM90A};
    Variant *v;
    Diags diags = diag_list(a);
    PassOptions o = options(targets[_i % 2]);
    const Stream *s = pu_stream(a, "t.attn", variants[_i / 2].text, 16, &v);
    TileProgram *p = pass_pipeline(a, s, &o, &diags);
    ck_assert_ptr_nonnull(p);
    ck_assert_int_eq(strips_in(p) > 0, variants[_i / 2].strips > 0);
    ck_assert_double_lt(apart(a, v, pu_algorithm(a, s, &o), p), 1e-6);
}

// What the map of a strip may not be: body, home of its axes.
ARENA_TEST_EACH(others_are_refused, 0, 7) {
    static const char *const lines[] = {
        "%x: f32[M, N] in strip = map [M, N] () { f32((M.pos - N.pos)) }", // as it should be
        "%x: f32[N] in strip = map [N] () { f32(N.pos) }",
        "%x: f32[M, N] in strip = map [M, N] () { f32((M.pos + N.pos)) }",
        "%x: f32[M, N] in strip = map [M, N] () { f32(((2 * M.pos) - N.pos)) }",
        "%x: f32[M] in strip = map [M] () { f32(M.pos) }",
        "%x: f32[M, N] in strip = map [M, N] (%dot) { %dot }",
        "%x: f32[M, N] in strip = mma %q, %k",
    };
    Diags diags = diag_list(a);
    const char *text = arena_printf(
        a,
        "program t algorithm target sm_80 dtype bf16 dims D=8 Dv=8\n"
        "tensor q: bf16[B, H, Sq, 8] q\ntensor k: bf16[B, Hkv, Sk, 8] k\n"
        "tensor o: bf16[B, H, Sq, 8] o\nplan t\nkernel t axis M: Sq tile 4 axis N: Sk tile 4 "
        "axis D: 8 whole tile 8 grid b: B grid h: H grid M: ((Sq + 3) / 4) {\n"
        "%%q: bf16[M, D] = load q[b, h, M:, D:]\n"
        "%%l: f32[M] = map [M] () { 0.0 }\n"
        "%%e: f32[M] = loop N from 0 to 1 carry (%%c: f32[M] = %%l) {\n"
        "%%k: bf16[N, D] = load k[b, 0, N:, D:]\n%%dot: f32[M, N] = mma %%q, %%k\n%s\nyield %%c }\n"
        "%%o: f32[M, D] = map [M, D] (%%e) { (%%e + f32(D.pos)) }\nstore o[b, h, M:, D:] = %%o }\n",
        lines[_i]);
    TileProgram *p = tile_parse(a, text, strlen(text), &diags);
    if (!p) diag_print(&diags, stderr);
    ck_assert_ptr_nonnull(p);
    ck_assert_int_eq(tile_verify(p, &diags), _i < 2);
}
