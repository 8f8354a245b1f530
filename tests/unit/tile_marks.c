// What schedules mark in the IR, and that the verifier knows wrong marks: sums of rows in parts
// (Hopper), a matrix instruction's rows, wide axes, weights whose NaN may be lost (AMD), ways to make
// a map (NVIDIA).
#include "pass_util.h"
#include "passes/derive/backward.h"

static const char *schedule_phase(Arena *a, const char *variant, TargetId id, TilePhase phase) {
    Diags diags = diag_list(a);
    Text t = text_new(a);
    PassOptions o = {.target = *target_get(id), .dtype = DT_BF16, .phase = phase};
    const Stream *s = pu_stream(a, arena_printf(a, "stdlib/%s.attn", variant), NULL, 64, NULL);
    TileProgram *p = pass_pipeline(a, s, &o, &diags);
    ck_assert_ptr_nonnull(p);
    tile_print(&t, p);
    return t.s;
}

static const char *schedule(Arena *a, const char *variant, TargetId id) {
    return schedule_phase(a, variant, id, PHASE_FWD);
}

// With the first `what` made `by`, whether the text is still a program.
static bool holds(Arena *a, const char *text, const char *what, const char *by) {
    const char *at = strstr(text, what);
    ck_assert_msg(at != NULL, "no %s", what);
    const char *changed =
        arena_printf(a, "%.*s%s%s", (int)(at - text), text, by, at + strlen(what));
    Diags diags = diag_list(a);
    TileProgram *p = tile_parse(a, changed, strlen(changed), &diags);
    return p && tile_verify(p, &diags);
}

ARENA_TEST(parts) {
    const char *text = schedule(a, "causal", TARGET_SM90A);
    static const char l[] = "%l_tile: f32[M] @n parts", m[] = "%m_tile: f32[M] @n";
    ck_assert(holds(a, text, l, l)); // as it is: carried sums and what they are made of
    ck_assert(!holds(a, text, l, "%l_tile: f32[M] @n"));           // half a sum
    ck_assert(!holds(a, text, m, arena_printf(a, "%s parts", m))); // a maximum
    ck_assert(!holds(a, text, "%l_0: f32[M] @n parts", "%l_0: f32[M] @n"));
    ck_assert(!holds(a, text, "%factor: f32[M] @n", "%factor: f32[M] @n parts"));
}

// A sum that goes on is one thread's part; a maximum is whole, and the step is that of a kernel that begins.
ARENA_TEST(parts_go_on) {
    const char *text = schedule_phase(a, "causal", TARGET_SM90A, PHASE_PART);
    static const char sum[] = "%l_0: f32[M] @n parts = load", max[] = "%m_0: f32[M] @n = load";
    ck_assert(holds(a, text, sum, sum) && holds(a, text, max, max));
    ck_assert(!holds(a, text, sum, "%l_0: f32[M] @n = load"));
    ck_assert_ptr_nonnull(strstr(text, "mma_wait 1"));
    ck_assert_ptr_nonnull(strstr(text, "redo"));
    ck_assert_ptr_nonnull(
        strstr(text, "fma((%l_0 * %c")); // its shift may have stayed: by the root, twice
}

// Without roles a sum is in parts within its loop, and whole before and behind it.
ARENA_TEST(parts_of_a_loop) {
    const char *text = schedule(a, "attention_sink", TARGET_SM80);
    static const char begin[] = "%r1_2: f32[M] @e parts = map [M] (%r1_0) { %r1_0 }",
                      end[] = "%r1_end2: f32[M] @e = map [M] (%r1_end) { %r1_end }";
    ck_assert(holds(a, text, begin, begin) && holds(a, text, end, end));
    ck_assert(!holds(a, text, begin, "%r1_2: f32[M] @e = map [M] (%r1_0) { %r1_0 }"));
    ck_assert(!holds(a, text, begin, "%r1_2: f32[M] @e parts = map [M] (%r1_0) { (%r1_0 + 1.0) }"));
    ck_assert(holds(a, text, end, "%r1_end2: f32[M] @e = map [M] (%r1_end) { log(%r1_end) }"));
}

// A tile that one role after the other reads: the next one of the loop is asked for. Queries have no loop.
static const char *scores_apart(Arena *a) {
    Diags diags = diag_list(a);
    Text t = text_new(a);
    PassOptions o = {.target = *target_get(TARGET_SM90A), .dtype = DT_BF16};
    const char *mla = "attention t { dim D = 576, Dv = 512; share v = k; score(q, k) = dot(q, k);"
                      "normalize(s) { let e = exp(s - rowmax(s)); return e / rowsum(e); } }";
    TileProgram *p = pass_pipeline(a, pu_stream(a, "mla", mla, 0, NULL), &o, &diags);
    ck_assert_ptr_nonnull(p);
    tile_print(&t, p);
    return t.s;
}

ARENA_TEST(fills_ahead) {
    const char *text = scores_apart(a);
    static const char keys[] = "N:, D:] ahead", queries[] = "columns 192 from 384\n";
    ck_assert(holds(a, text, keys, keys) && holds(a, text, keys, "N:, D:]"));
    ck_assert(holds(a, text, queries, queries));
    ck_assert(!holds(a, text, queries, "columns 192 from 384 ahead\n"));
    ck_assert(!holds(a, text, keys, "N:, D:] pairs"));
}

// Of the warpgroup that makes weights for others; not of maps without a sum.
ARENA_TEST(sums_late) {
    const char *text = scores_apart(a), *causal = schedule(a, "causal", TARGET_SM90A);
    ck_assert(holds(a, text, "} late\n", "} late\n") && holds(a, text, "} late\n", "}\n"));
    ck_assert(!holds(a, text, "rowmax over N of %dot5 }", "rowmax over N of %dot5 } late"));
    ck_assert_ptr_null(strstr(causal, " late"));
}

// The accumulator of a role that takes its factors from another; where two tiles of rows are a warp's.
ARENA_TEST(lazy_rescaling) {
    const char *apart = scores_apart(a), *causal = schedule(a, "causal", TARGET_SM90A);
    ck_assert(holds(a, apart, "} lazy\n", "} lazy\n") && holds(a, apart, "} lazy\n", "}\n"));
    ck_assert(!holds(a, apart, "} late\n", "} lazy\n"));
    ck_assert_ptr_null(strstr(causal, "} lazy pairs"));
}

// What needs nothing of a product, or of a map that waits, is done within it.
ARENA_TEST(done_within) {
    const char *text = schedule(a, "softcap", TARGET_SM90A);
    static const char waits[] = "} waiting 0\n          drop %v4\n";
    ck_assert(holds(a, text, waits, waits));
    ck_assert(holds(a, text, waits, "} waiting 0 after 20\n          drop %v4 within\n"));
    ck_assert(!holds(a, text, waits, "} waiting 0\n          drop %v4 within\n")); // at its end
    ck_assert(!holds(a, text, waits, "} within waiting 0 after 20\n          drop %v4\n"));
    ck_assert(!holds(a, text, "drop %k4 when valid", "drop %k4 within when valid"));
}

ARENA_TEST(first_keys) {
    const char *text = schedule(a, "causal", TARGET_SM90A);
    static const char dot[] = " first 64 of N when (", at[] = "class partial first 64 when (";
    ck_assert(holds(a, text, dot, dot)); // as it is
    ck_assert(holds(a, text, dot, " first 48 of N when ("));
    ck_assert(!holds(a, text, dot, " first 40 of N when (")); // a product takes 16 at a time
    ck_assert(!holds(a, text, dot, " first 128 of N when ("));
    ck_assert(!holds(a, text, dot, " first 32 of D when ("));
    ck_assert(!holds(a, text, dot, " first 64 of E when ("));
    ck_assert(!holds(a, text, dot, " first 64 of N when (N.pos <= "));
    ck_assert(holds(a, text, at, at));
    ck_assert(!holds(a, text, at, "class partial first 64 when (t <= "));
    ck_assert(!holds(a, text, "%p5: bf16[M, N] @n", "%p5: bf16[M, N] in shared"));
    ck_assert(strstr(schedule(a, "softmax", TARGET_SM90A), " first ") == NULL);
    ck_assert(strstr(schedule(a, "document", TARGET_SM90A), " first ") == NULL);
}

static const struct {
    TargetId target;
    bool right;
    const char *what, *by;
} layouts[] = {
    {TARGET_SM80, true, " @n", " @n"},
    {TARGET_SM80, false, "reg(N%2, M/8%2,", "reg(N%4, M/8%2,"}, // not all digits of N
    {TARGET_SM80, false, "lane(N/2%4, M%8) warp(M/32%4)", "lane(N/2%4, M%8, 2) warp(M/32%4)"},
    {TARGET_SM80, false, "lane(N/2%4, M%8) warp(M/32%4)", "lane(N/2%4, M%8) warp(M/32%2, 2)"},
    {TARGET_SM80, false, "layout n:", "layout e:"},
    {TARGET_SM80, false, "%dot: f32[M, N] @n", "%dot: f32[M, N] @e"}, // which has no N
    {TARGET_SM80, false, "%dot: f32[M, N] @n", "%dot: f32[M, N] in fragment"},
    {TARGET_SM80, false, "%acc_0: f32[M, E] @e", "%acc_0: f32[M, E] @n"},
    {TARGET_SM80, true, "%m_0: f32[M] @e", "%m_0: f32[M] @n"}, // rows are the same in both
    {TARGET_SM80, true, "  mask", "  layout r: reg(M%4) lane(M/4%8, 4) warp(M/32%4)\n  mask"},
    // columns over lanes as no instruction leaves them
    {TARGET_SM80, false, "N/8%16, M/16%2) lane(N/2%4, M%8)", "N/8%16, M/16%2) lane(M%8, N/2%4)"},
    {TARGET_SM90A, true, " @n", " @n"},
    {TARGET_SM90A, false, "lane(N/2%4, M%8) warp(", "lane(M%8, N/2%4) warp("},
    {TARGET_GFX942, true, " @n", " @n"},
    // any columns that both operands read alike, but rows where the instruction wants them
    {TARGET_GFX942, true, "reg(D%8, D/16%4) lane(M%32, D/8%2)",
     "reg(D%4, D/8%8) lane(M%32, D/4%2)"},
    {TARGET_GFX942, false, "lane(M%32, D/8%2)", "lane(D/8%2, M%32)"},
    {TARGET_GFX1100, true, " @n", " @n"},
    {TARGET_GFX1100, false, "%p: bf16[M, N] @n_whole", "%p: bf16[M, N] @n"}, // all of a row
};

ARENA_TEST_EACH(values_lie_as_instructions_do, 0, sizeof layouts / sizeof *layouts) {
    const char *text = schedule(a, "causal", layouts[_i].target);
    ck_assert_int_eq(holds(a, text, layouts[_i].what, layouts[_i].by), layouts[_i].right);
}

ARENA_TEST(wide_axes) {
    const char *text = schedule(a, "causal", TARGET_GFX942);
    static const char d[] = "axis D: 64 whole tile 64 wide", e[] = "axis E: 64 whole tile 64",
                      n[] = "axis N: Sk tile 64", rows[] = " matrix_rows 32";
    ck_assert(holds(a, text, d, d)); // as it is: q and k are read in eights
    ck_assert(holds(a, text, d, "axis D: 64 whole tile 64"));
    ck_assert(!holds(a, text, e, arena_printf(a, "%s wide", e))); // a product leaves it
    ck_assert(!holds(a, text, n, arena_printf(a, "%s wide", n))); // contracted, but left as well
    ck_assert(!holds(a, text, d, "axis D: 64 whole tile 72 wide"));
    ck_assert(!holds(a, text, rows, "")); // how many lanes share a row is not known
    ck_assert(strstr(schedule(a, "causal", TARGET_GFX1100), " wide") == NULL);
}

ARENA_TEST(unguarded) {
    const char *text = schedule(a, "causal", TARGET_GFX942), *all = " != %l_end1)";
    static const char p[] = "%p: bf16[M, N] @n unguarded", plain[] = "%p: bf16[M, N] @n";
    ck_assert(holds(a, text, p, p)); // as it is: the sum makes what is left NaN
    ck_assert(holds(a, text, p, plain));
    ck_assert(!holds(a, text, all, " == %l_end1)"));
    ck_assert(!holds(a, text, "fma(%l, %c, %l_tile)", "fma(%l, %c, %c)")); // an earlier step's only
    ck_assert(!holds(a, text, "fma(%l, %c, %l_tile)", "max(%l, %l_tile)")); // passes over it
    ck_assert(
        !holds(a, text, "{ fma(%l2, %c1, %l_tile1) }", "{ %l_tile1 }")); // the last step's only
    ck_assert(strstr(schedule(a, "relu", TARGET_GFX942), p) != NULL);    // is never NaN
    text = schedule(a, "sigmoid", TARGET_GFX942);
    ck_assert(holds(a, text, plain, plain));
    ck_assert(!holds(a, text, plain, p)); // no sum
}

ARENA_TEST(matrix_rows) {
    const char *text = schedule(a, "causal", TARGET_GFX942),
               *wave32 = schedule(a, "causal", TARGET_GFX1100);
    static const char rows[] = " matrix_rows 32";
    ck_assert(holds(a, text, rows, " matrix_rows 16"));
    ck_assert(!holds(a, text, rows, " matrix_rows 8"));
    ck_assert(!holds(a, wave32, " matrix_rows 16", rows));
    ck_assert(!holds(a, schedule(a, "causal", TARGET_SM80), " warps 4", " warps 4 matrix_rows 16"));
}

// A way to make a map is one for maps that have what it is about.
ARENA_TEST(ways) {
    const char *table = schedule(a, "relative_bias", TARGET_SM90A),
               *sigmoids = schedule(a, "sigmoid", TARGET_SM90A),
               *dense = schedule(a, "../tests/regress/dense_bias", TARGET_SM90A);
    ck_assert(holds(a, table, "} diagonals", "} diagonals"));
    ck_assert(holds(a, table, "} diagonals", "}")); // as slow as it is right
    ck_assert(!holds(a, table, "} diagonals", "} halves"));
    ck_assert(!holds(a, table, "} diagonals", "} pairs"));
    ck_assert(holds(a, sigmoids, "} halves", "}"));
    ck_assert(!holds(a, sigmoids, "} halves", "} diagonals"));
    ck_assert(!holds(a, sigmoids, "} halves", "} often"));
    ck_assert(holds(a, dense, "} pairs ahead", "} pairs"));
    ck_assert(!holds(a, dense, "} pairs ahead", "} ahead"));                           // of what?
    ck_assert(strstr(schedule(a, "relative_bias", TARGET_SM80), "diagonals") == NULL); // no roles
    ck_assert(strstr(schedule(a, "sigmoid", TARGET_HOST), "halves") == NULL);
}

static const char *schedule_backward(Arena *a, const char *variant, int D) {
    Diags diags = diag_list(a);
    Text t = text_new(a);
    PassOptions o = {.target = *target_get(TARGET_SM90A), .dtype = DT_BF16, .phase = PHASE_BWD};
    const Stream *s = pu_stream(a, arena_printf(a, "stdlib/%s.attn", variant), NULL, D, NULL);
    TileProgram *p = pass_backward_program(a, pass_backward(a, s->written, &diags), &o, &diags);
    ck_assert_ptr_nonnull(p);
    tile_print(&t, p);
    return t.s;
}

// What a mask looks up of queries, which lie in registers and lanes. Keys lie along the warps, too.
ARENA_TEST(looked_up_by_lanes) {
    const char *text = schedule_backward(a, "document", 64);
    static const char queries[] = "{ doc[b, (q_offset + M.pos)] } lanes";
    const char *keys = strstr(text, "map [N] () { doc");
    ck_assert_ptr_nonnull(keys);
    keys = arena_printf(a, "%.*s", (int)strcspn(keys, "\n"), keys);
    ck_assert(holds(a, text, queries, queries));
    ck_assert(holds(a, text, queries, "{ doc[b, (q_offset + M.pos)] }"));
    ck_assert(!holds(a, text, keys, arena_printf(a, "%s lanes", keys)));
}

// Of a row and of what an input has for its head a number is made before: a nest copies few numbers of rows, and looks nothing up.
ARENA_TEST(sinks_are_numbers_of_rows) {
    const char *text = schedule_backward(a, "attention_sink", 64),
               *nest = strstr(text, "kernel attention_sink_gradients");
    ck_assert_ptr_nonnull(strstr(text, "kernel attention_sink_convert"));
    ck_assert_ptr_nonnull(nest);
    ck_assert_ptr_null(strstr(nest, "sink["));
}
