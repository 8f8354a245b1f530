// Every pass keeps what a program computes: variants of the library and others, after each stage of
// the pipeline and with several tile extents, in the interpreter, against the float64 reference of
// the source.
#include "passes/derive/backward.h"
#include "tests/unit/pass_util.h"

// Clauses of an attention with D = 8, Dv = 4.
static const char *const texts[] = {
    // softmax, several statistics, emits
    "normalize(s) { let m = rowmax(s); let e = exp(s - m); let l = rowsum(e); emit lse = m + "
    "log(l); emit top = m; return e / l; }",
    // NaN and infinities where the mask does not look
    "modify(s, b, h, q, k) = k > q ? log(0.0 - 1.0) : s; mask(b, h, q, k) = k <= q; normalize(s) = "
    "exp(s - rowmax(s)) / rowsum(exp(s - rowmax(s)));",
    "modify(s, b, h, q, k) = k > q ? inf : s; mask(b, h, q, k) = k <= q; normalize(s) = max(s, 0);",
    // a modified score of -inf is masked
    "modify(s, b, h, q, k) = (q + k) % 3 == 0 ? -inf : s; normalize(s) = exp(s - rowmax(s)) / "
    "rowsum(exp(s - rowmax(s)));",
    "modify(s, b, h, q, k) = q % 2 == 0 ? -inf : s; normalize(s) = s * s;",
    // without rescaling; counts; constants
    "normalize(s) = s / max(rowsum(abs(s)), 1);",
    "normalize(s) = s / rowsum(1.0);",
    "normalize(s) = 1.0; mask(b, h, q, k) = k <= q;",
    "normalize(s) = rowsum(s) * 0.1;",
    "normalize(s) { let lo = rowmin(s); let hi = rowmax(s); emit range = hi - lo; return (s - lo) "
    "/ (hi - lo + 1.0); }",
    // several sweeps
    "normalize(s) { let n = rowsum(1.0); let mean = rowsum(s) / n; let var = rowsum((s - mean) * "
    "(s - mean)) / n; emit mean = mean;"
    " return exp((s - mean) * rsqrt(var + 0.01)); }",
    "normalize(s) { let m = rowmax(s); let l = rowsum(exp(s - m)); let p = exp(s - m) / l; let t = "
    "rowmax(p * p + s); return p * t + tanh(s - t); }",
    "normalize(s) { let m = rowmax(abs(s)); return sin(s / (m + 1.0)); }",
    // two softmaxes of one row
    "normalize(s) { let m = rowmax(s); let e = exp(s - m); let n = rowmax(-s); let f = exp(-s - "
    "n); return e / rowsum(e) - 0.5 * f / rowsum(f); }",
    // what may be in a score, an output
    "score(q, k) = dot(q, k) / sqrt(sqnorm(q) * sqnorm(k) + 0.1); normalize(s) = sigmoid(s);",
    "score(q, k) = 2.0 * dot(q, k) - sqnorm(q) - sqnorm(k); normalize(s) = exp(s - rowmax(s)) / "
    "rowsum(exp(s - rowmax(s)));",
    "score(q, k) = sqnorm(k); normalize(s) = s;",
    // a row of NaNs alone, which is no row without a key
    "modify(s, b, h, q, k) = q == 2 ? sqrt(-1.0) : s; mask(b, h, q, k) = k < q; normalize(s) = "
    "exp(s - rowmax(s)) / rowsum(exp(s - rowmax(s))); output(o) = 2 * o + 1;",
    "modify(s, b, h, q, k) = q == 2 ? sqrt(-1.0) : s; mask(b, h, q, k) = k < q; normalize(s) = "
    "exp(s - rowmax(s)) / rowsum(exp(s - rowmax(s)));",
    "normalize(s) = s; output(o, b, h, q, d) = o * rsqrt(sqnorm(o) + 1.0) + f32(d) * 0.25 + "
    "f32(q);",
    // inputs of every kind; gathers; heads, batches; per row, per column, per tile
    "input bias: f32[H, Sq, Sk]; modify(s, b, h, q, k) = s + bias[h, q - q_offset, k]; "
    "normalize(s) = exp(s - rowmax(s)) / rowsum(exp(s - rowmax(s)));",
    "input row: f16[B, Sq]; input column: f32[B, Sk]; input head: bf16[H]; input cap: f32; "
    "modify(s, b, h, q, k) ="
    " cap * tanh(s / (1.0 + cap * cap)) + row[b, q - q_offset] * exp(head[h]) + exp(column[b, k]); "
    "normalize(s) = s;",
    "input keep: bool[B, Sk]; input kind: i32[Sk]; input table: f32[4]; mask(b, h, q, k) = keep[b, "
    "k] && k <= q;"
    " modify(s, b, h, q, k) = s * table[kind[k]]; normalize(s) = exp(s - rowmax(s)) / rowsum(exp(s "
    "- rowmax(s)));",
    "input t: f32[N]; modify(s, b, h, q, k) = s + t[q - k + 3]; mask(b, h, q, k) = (q - k) % 3 != "
    "1; normalize(s) = s;",
    "input sink: f32[H]; normalize(s, b, h) { let m = max(rowmax(s), sink[h]); let e = exp(s - m); "
    "return e / (rowsum(e) + exp(sink[h] - m)); }",
    "input len: i32[B]; mask(b, h, q, k) = k < len[b] * 6 && (h == 1 || k <= q); normalize(s) = "
    "exp(s - rowmax(s)) / rowsum(exp(s - rowmax(s)));",
    "mask(b, h, q, k) = false; normalize(s) { let m = rowmax(s); let l = rowsum(exp(s - m)); emit "
    "lse = m + log(l); return exp(s - m) / l; }",
    "mask(b, h, q, k) = k <= q && q - k < 9; modify(s, b, h, q, k) = s - 0.3 * f32(abs(q - k)); "
    "normalize(s, b, h, q) ="
    " exp(s - rowmax(s)) * f32(q % 5) / rowsum(exp(s - rowmax(s)));",
    "modify(s, b, h, q, k) = s * 1000000.0; normalize(s) = exp(s - rowmax(s)) / rowsum(exp(s - "
    "rowmax(s)));",
};
enum { TEXTS = sizeof texts / sizeof *texts };

static const char *const library[] = {"alibi",
                                      "attention_sink",
                                      "causal",
                                      "cosine_similarity",
                                      "document",
                                      "gaussian_kernel",
                                      "gqa",
                                      "mla",
                                      "natten_2d",
                                      "prefix_lm",
                                      "relative_bias",
                                      "relu",
                                      "retention",
                                      "sigmoid",
                                      "sliding_window",
                                      "softcap",
                                      "softmax",
                                      "squared_relu"};
enum { LIBRARY = sizeof library / sizeof *library };

static const int shapes[][6] = { // B, H, Hkv, Sq, Sk, q_offset
    {2, 4, 2, 17, 40, 23}, {1, 2, 1, 40, 17, 0}, {1, 1, 1, 3, 0, 0},
    {1, 2, 2, 0, 7, 0},    {1, 2, 1, 1, 40, 39}, {1, 2, 1, 9, 33, -4}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static bool bare_q(const Variant *v) {
    for (int i = 0; i < v->inputs.n; i++)
        if (v->inputs.data[i].bare_q) return true;
    return false;
}

static void check_program(Arena *a, const Variant *v, const TileProgram *p, const char *what,
                          PuStage stage) {
    for (int i = 0; i < SHAPES; i++) {
        const int *s = shapes[i];
        if (bare_q(v) && s[5]) continue;
        int32_t size[64];
        pu_sizes(v, size, s[0], s[1], s[2], s[3], s[4], s[5]);
        double error = pu_error(a, v, p, size, false, 17 + (uint64_t)i);
        ck_assert_msg(error < 1e-5, "%s after %s, Sq %d Sk %d offset %d: %g", what,
                      pu_stage_name[stage], s[3], s[4], s[5], error);
    }
}

static void check_variant(const char *path, const char *text, const char *what) {
    static const PuTiles tiles[] = {{8, 8}, {5, 32}, {64, 3}};
    Arena *a = arena_new();
    Variant *v;
    const Stream *s = pu_stream(a, path, text, 8, &v);
    for (PuStage stage = PU_BUILT; stage < PU_STAGES; stage++)
        for (size_t t = 0; t < sizeof tiles / sizeof *tiles; t++)
            if (t == 0 || stage == PU_SHAPED)
                check_program(a, v, pu_program(a, s, DT_F32, stage, tiles[t]), what, stage);
    arena_free(a);
}

TEST_EACH(variants_of_the_library, 0, LIBRARY) {
    const char *path = library[_i];
    char file[64];
    snprintf(file, sizeof file, "stdlib/%s.attn", path);
    check_variant(file, NULL, path);
}

static const char *whole_text(Arena *a, const char *clauses) {
    const char *score = strstr(clauses, "score(") ? "" : "score(q, k) = dot(q, k) * 0.25;";
    return arena_printf(a, "attention t { dim D = 8, Dv = 4; %s %s }", score, clauses);
}

ARENA_TEST_EACH(variants_of_every_kind, 0, TEXTS) {
    check_variant("t.attn", whole_text(a, texts[_i]), texts[_i]);
}

// In the kernels' own arithmetic, with operands rounded: near the reference still, and the same
// before and after the passes but for what the rounding of the weights makes of another order of
// tiles.
TEST(narrow_types) {
    static const Dtype types[] = {DT_BF16, DT_F16};
    for (int i = 0; i < 2; i++) {
        Arena *a = arena_new();
        Variant *v;
        const Stream *s = pu_stream(a, "stdlib/causal.attn", NULL, 8, &v);
        TileProgram *p = pu_program(a, s, types[i], PU_SHAPED, (PuTiles){8, 8});
        int32_t size[64];
        pu_sizes(v, size, 1, 2, 1, 40, 40, 0);
        double error = pu_error(a, v, p, size, true, 3);
        ck_assert_msg(error < (types[i] == DT_BF16 ? 2e-2 : 3e-3), "%g", error);
        arena_free(a);
    }
}

// The keys in parts, merged by the derived rule; before and after the passes.
ARENA_TEST_EACH(split_keys, 0, TEXTS + LIBRARY) {
    static const struct {
        int parts;
        TargetId target;
    } splits[] = {
        {1, TARGET_HOST}, {2, TARGET_HOST}, {5, TARGET_HOST}, {5, TARGET_SM80}, {11, TARGET_SM80}};
    static const PuStage stages[] = {PU_BUILT, PU_FUSED, PU_BOUND, PU_SHAPED};
    PassOptions o = {.dtype = DT_F32, .split = true};
    Variant *v;
    const char *what = _i < TEXTS ? texts[_i] : library[_i - TEXTS];
    const char *path = _i < TEXTS ? "t.attn" : arena_printf(a, "stdlib/%s.attn", what);
    const Stream *s = pu_stream(a, path, _i < TEXTS ? whole_text(a, what) : NULL, 8, &v);
    for (int i = 0; i < 4; i++)
        for (int n = 0; n < 5; n++) {
            o.target = *target_get(splits[n].target);
            TileProgram *p = pu_staged(a, s, &o, stages[i], (PuTiles){8, 4});
            ck_assert_int_eq(p->plans.n, s->nsweeps == 1 ? 3 : 2);
            if (s->nsweeps == 1)
                p->sizes.data[p->sizes.n - 1].def = ex_i32(p->pool, splits[n].parts);
            check_program(a, v, p, what, stages[i]);
        }
}

// As many parts as make the blocks as many as the workers, but none for nearly nothing.
ARENA_TEST(number_of_parts) {
    static const int cases[][5] = {// B, H, Sq, Sk, parts of 64 workers, tiles of 8
                                   {1, 4, 1, 4096, 64}, {1, 4, 16, 4096, 8}, {2, 8, 1, 4096, 32},
                                   {8, 32, 1, 4096, 2}, {1, 1, 1, 64, 4},    {1, 1, 1, 7, 1},
                                   {1, 1, 0, 4096, 1},  {1, 1, 1, 0, 1}};
    PassOptions o = {.target = *target_get(TARGET_HOST), .dtype = DT_F32, .split = true};
    const Stream *s = pu_stream(a, "stdlib/softmax.attn", NULL, 8, NULL);
    const TileProgram *p = pu_staged(a, s, &o, PU_SHAPED, (PuTiles){8, 8});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t size[SIZE_FREE + 2] = {cases[i][0], cases[i][1], 1, cases[i][2], cases[i][3], 0};
        tile_eval_sizes(p, size, 64);
        ck_assert_int_eq(size[SIZE_FREE], cases[i][1]); // of a group
        ck_assert_int_eq(size[SIZE_FREE + 1], cases[i][4]);
    }
}

// A program that a pass leaves wrong is an error, which names the pass, not the end of the process.
static void spoil(void *ctx, const Pass *pass, const TileProgram *p) {
    if (!strcmp(pass->name, ctx)) p->kernels.data[0]->axes[0].name = "0 is no name";
}

static void check_internal(const Diags *diags, const char *pass) {
    const char *begin = arena_printf(diags->arena, "internal: after pass '%s', in t_", pass);
    ck_assert(diags->errors == 1 && diags->internal);
    const char *message = diags->last->message;
    ck_assert_msg(strstr(message, begin) == message, "%s", message);
    ck_assert_msg(strstr(message, "axis 0 has no name of its own") != NULL, "%s", message);
}

ARENA_TEST(internal_faults) {
    static const char *const spoilt[] = {"tidy", "fuse", "tile", "classify", "schedule"};
    const Stream *s = pu_stream(a, "t.attn", whole_text(a, "normalize(s) = s;"), 0, NULL);
    const Backward *back = pass_backward(a, s->written, NULL);
    for (size_t i = 0; i < sizeof spoilt / sizeof *spoilt; i++) {
        PassOptions o = {.target = *target_get(TARGET_SM80),
                         .dtype = DT_BF16,
                         .seen = spoil,
                         .seen_ctx = (void *)spoilt[i]};
        Diags of[] = {diag_list(a), diag_list(a), diag_list(a)};
        ck_assert_ptr_null(pass_pipeline(a, s, &o, &of[0]));
        ck_assert_ptr_null(pass_program(a, s, &o, NULL, &of[1]));
        ck_assert_ptr_null(pass_backward_program(a, back, &o, &of[2]));
        for (int k = 0; k < 3; k++) check_internal(&of[k], spoilt[i]);
    }
}
