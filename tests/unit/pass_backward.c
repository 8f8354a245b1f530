// Tile programs of the derived backward, interpreted, against the reference's derivative: with what the tile program of the forward saved.
#include "backward_util.h"

static void check_file(const char *path, int how) {
    if (how < 0)
        check(path, NULL, DT_F32);
    else
        check_scheduled(path, NULL, (TargetId)how, how == TARGET_GFX1100 ? DT_F32 : DT_BF16);
}

#define HEAD                                                                                       \
    "import std.normalization;\nattention a { dim D = 4, Dv = 3; input t: f32[4] grad; input g: "  \
    "f32 grad; input e: f32[H, Sq] grad; input u: f32[B, Sk] grad; input z: f32[H, Sq, Sk] grad; " \
    "input y: f32[Dv] grad;\n"                                                                     \
    "score(q, k) = dot(q, k) * 0.5; "

static const char *const bodies[] = {
    HEAD "normalize(s) = s / max(rowsum(abs(s)), 1); }",
    HEAD "normalize(s) = (s - rowmin(s)) / (rowmax(s) - rowmin(s) + 0.1); }",
    HEAD "normalize(s) { let m = rowsum(s) / rowsum(1.0); let c = rowsum((s - m) * (s - m)); emit "
         "c = c; return (s - m) * rsqrt(c + 0.1); } }",
    HEAD "normalize(s) = softmax(softmax(s * g) * 3 + retention(s)) * g; }",
    HEAD "normalize(s, b, h, i) = softmax_with_sink(s, e[h, i - q_offset]); }",
    HEAD "modify(s, b, h, i, j) = s * u[b, j] + z[h, i - q_offset, j] + t[1]; mask(b, h, i, j) = j "
         "!= 2; normalize(s) = softmax(s); }",
    HEAD "normalize(s) { emit top = rowmax(s * t[2]); emit low = rowmin(abs(s)) + g; return "
         "softmax(s); } }",
    HEAD "modify(s, b, h, i, j) = j == 1 ? -inf : s / (1.0 + g * g); normalize(s) = softmax(s); }",
    HEAD "modify(s, b, h, i, j) = s + log(f32(j - 1)); mask(b, h, i, j) = j > 1; normalize(s) = "
         "softmax(s); }",
    HEAD "modify(s, b, h, i, j) = s * t[abs(i - j) % 4] + z[h, (i + 2 * j) % 3, j / 2]; "
         "normalize(s) = softmax(s); }",
    HEAD "modify(s, b, h, i, j) = s + t[i / 2] * u[b, j / 3] + e[h, (i * i) % 5]; "
         "normalize(s) = softmax(s); }",
    HEAD "modify(s) = floor(s) * 0.5; normalize(s) = s; }", // no score has a gradient
    "import std.normalization; attention a { dim D = 4, Dv = 3; input y: f32[H, Dv]; score(q, k) = "
    "dot(q, k); "
    "normalize(s) = softmax(s); output(o, b, h, i, d) = o * y[h, d]; }",
    "import std.normalization; attention a { dim D = 200, Dv = 192; score(q, k) = dot(q, k) * "
    "0.05; mask(b, h, i, j) = j <= i; "
    "normalize(s) = softmax(s); }", // on GPUs dv has a kernel of its own
    "import std.normalization; attention a { dim D = 4, Dv = 3; score(q, k) = -0.3 * (sqnorm(q) + "
    "sqnorm(k) - 2 * dot(q, k)); normalize(s) = softmax(s); }",
    "import std.normalization; attention a { dim D = 176, Dv = 160; score(q, k) = dot(q, k) * "
    "0.05; mask(b, h, i, j) = j <= i; "
    "normalize(s) = softmax(s); }",
};

TEST(chosen) {
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        check(strstr(bodies[i], "q, k) = ") + 8, bodies[i], DT_F32);
}

// Weights that f16 does not hold before they are divided: the forward scales them, and the backward knows nothing of it. A row's own
// magnitude is one of the first's numbers anyway.
static const char *const wide[] = {
    HEAD "normalize(s) = s / max(rowmax(abs(s)), 0.001); }",
    HEAD "normalize(s) { let x = exp(s); return x / rowsum(x); } }",
    HEAD "normalize(s) = s * 1e6 / max(rowsum(abs(s * 1e6)), 1); }",
    HEAD
    "normalize(s) { let x = exp(s - rowmax(s)); return x * s * 1e5 / rowsum(x * abs(s * 1e5)); } }",
    HEAD
    "modify(s, b, h, i, j) = tanh(s) + 0.5 * f32(j); mask(b, h, i, j) = j <= i + 3; normalize(s) = "
    "exp(s) / rowsum(exp(s)) + 1e5 * z[0, 0, 0]; }",
};

TEST(of_f16) {
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
        check(strstr(wide[i], "q, k) = ") + 8, wide[i], DT_F16);
        check_scheduled(strstr(wide[i], "q, k) = ") + 8, wide[i], TARGET_SM80, DT_F16);
        check_scheduled(strstr(wide[i], "q, k) = ") + 8, wide[i], TARGET_SM90A, DT_F16);
    }
}

// Scores so large that no row is tame, of which kernels of roles have a weight of their own.
TEST(of_wild_rows) {
    const char *text = "import std.normalization; attention a { dim D = 16, Dv = 16; score(q, k) = "
                       "dot(q, k) * 2000; mask(b, h, i, j) = j <= i; normalize(s) = softmax(s); }";
    check_scheduled("wild", text, TARGET_SM90A, DT_BF16);
}

// Rows that are not tame are not in any part of their keys.
ARENA_TEST(of_wild_rows_in_parts) {
    enum { B = 1, H = 2, SQ = 5, SK = 20 };
    Diags diags = diag_list(a);
    Variant *v;
    const char *text = "import std.normalization; attention a { dim D = 16; score(q, k) = dot(q, "
                       "k) * 2000; mask(b, h, i, j) = j <= i; normalize(s) = softmax(s); }";
    const Stream *s = pu_stream(a, "t.attn", text, 0, &v);
    PassOptions o = {.target = *target_get(TARGET_SM90A), .dtype = DT_BF16};
    o.phase = PHASE_PART_BWD;
    const TileProgram *p =
        pass_backward_program(a, pass_backward(a, s->written, &diags), &o, &diags);
    test_good(p != NULL, &diags);
    int32_t size[64] = {0};
    pu_sizes(v, size, B, H, H, SQ, SK, 60);
    for (int i = 0; i < p->sizes.n; i++) {
        if (!strcmp(p->sizes.data[i].name, "kv_first")) size[i] = 30;
        if (!strcmp(p->sizes.data[i].name, "Sq_all")) size[i] = SQ;
        if (!strcmp(p->sizes.data[i].name, "Sk_all")) size[i] = 70;
    }
    TileData *x = tile_data_random(a, p, size, 4, 5);
    int saved = pu_named(p, "saved0"), wild = pu_named(p, "wild");
    for (int i = 0; i < B * H * SQ; i++) x->tensor[saved][i] = i % 3 ? 1e6 : 1;
    ck_assert(tile_eval(p, x, false, &diags));
    ck_assert_double_eq(x->tensor[wild][0], 6);
}

// More columns than one warpgroup has sums of: three roles. What goes to gradients of scores is a weight, a score, or nothing.
TEST(of_chains) {
#define WIDE                                                                                       \
    "import std.normalization; attention a { dim D = 176, Dv = 160; input u: f32[B, Sk]; "         \
    "score(q, k) = dot(q, k) * 0.05; "
    static const char *const texts[] = {
        WIDE "mask(b, h, i, j) = j <= i; normalize(s) = softmax(s); }",
        WIDE "modify(s) = 2 * tanh(s / 2); normalize(s) = softmax(s); }",
        WIDE "modify(s) = max(s, 0); mask(b, h, i, j) = i - j < 9; normalize(s) = s; }",
        WIDE "modify(s, b, h, i, j) = s * exp2(-0.1 * abs(i - j)); mask(b, h, i, j) = j <= i; "
             "normalize(s) = s; }",
        WIDE "modify(s, b, h, i, j) = s + u[b, j]; mask(b, h, i, j) = u[b, j] > -1; normalize(s) = "
             "softmax(s); }",
        WIDE "modify(s) = 1 / (1 + exp(-s)); normalize(s) = s; }",
        "import std.normalization; attention a { dim D = 256, Dv = 16; score(q, k) = dot(q, k) * "
        "2000; mask(b, h, i, j) = j <= i; "
        "normalize(s) = softmax(s); }",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        check_scheduled("chain", texts[i], TARGET_SM90A, i % 2 ? DT_F16 : DT_BF16);
}

// So many that two warpgroups just have registers for them.
TEST(of_tight_nests) {
#define TIGHT                                                                                      \
    "import std.normalization; attention a { dim D = 192, Dv = 128; score(q, k) = dot(q, k) * "
    static const char *const texts[] = {
        TIGHT "0.05; mask(b, h, i, j) = j <= i; normalize(s) = softmax(s); }",
        TIGHT "2000; normalize(s) = softmax(s); }",
        TIGHT "0.05; modify(s) = 2 * tanh(s / 2); normalize(s) = softmax(s); }",
        TIGHT "0.05; modify(s) = max(s, 0); mask(b, h, i, j) = i - j < 9; normalize(s) = s; }",
        "import std.normalization; attention a { dim D = 64, Dv = 256; score(q, k) = dot(q, k) * "
        "0.1; mask(b, h, i, j) = j <= i; normalize(s) = softmax(s); }",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        check_chosen("tight", texts[i], TARGET_SM90A, i % 2 ? DT_F16 : DT_BF16,
                     pu_knobs("warpgroups=2"));
}

// A step's dq is made in the next one, or not, as is said.
TEST(of_nests_in_turns) {
    static const char *const texts[] = {
        "import std.normalization; attention a { dim D = 48, Dv = 32; score(q, k) = dot(q, k) * "
        "0.2; mask(b, h, i, j) = j <= i; normalize(s) = softmax(s); }",
        "import std.normalization; attention a { dim D = 128; score(q, k) = dot(q, k) * 2000; "
        "normalize(s) = softmax(s); }",
        "attention a { dim D = 64; score(q, k) = dot(q, k) * 0.1; modify(s) = max(s, 0); mask(b, "
        "h, i, j) = i - j < 9; normalize(s) = s; }",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (int turns = 0; turns < 2; turns++)
            check_chosen("turns", texts[i], TARGET_SM90A, i % 2 ? DT_F16 : DT_BF16,
                         pu_knobs(turns ? "turns=1" : "turns=0"));
}

// What Hopper's nests for it have of a choice; -1: it has none.
static int nests_have(const char *text, BatchLayout batch, KnobName knob) {
    Arena *a = arena_new();
    Diags diags = diag_list(a);
    const Backward *b = pass_backward(a, pu_stream(a, "t.attn", text, 0, NULL)->written, NULL);
    PassOptions o = {.target = *target_get(TARGET_SM90A), .dtype = DT_BF16, .saves = b};
    o.batch = batch;
    TileProgram *p = pass_backward_program(a, b, &o, &diags);
    test_good(p != NULL, &diags);
    int n = -1;
    for (int i = 0; i < p->kernels.n; i++) {
        const Knobs *s = &p->kernels.data[i]->schedule.knobs;
        if (s->said != knobs_of(FORM_SM90_NEST)) continue;
        ck_assert(n < 0 || n == s->value[knob]);
        n = s->value[knob];
    }
    arena_free(a);
    return n;
}

static int nests_of(const char *text, BatchLayout batch) {
    return nests_have(text, batch, KNOB_warpgroups);
}

// Two warpgroups have them where weights are little work: neither places, nor sizes, nor masks that are looked up.
TEST(tight_by_choice) {
    static const struct {
        const char *body;
        int warpgroups;
    } cases[] = {
        {"0.05; mask(b, h, i, j) = i - j < 9 && j <= i; normalize(s) = softmax(s); }", 2},
        {"0.05; modify(s, b, h, i, j) = s - 0.1 * (i - j); normalize(s) = softmax(s); }", 3},
        {"0.05; modify(s) = max(s, 0) / Sk; normalize(s) = s; }", 3},
        {"0.05; modify(s) = 2 * tanh(s / 2); normalize(s) = softmax(s); }", 3},
        {"0.05; input doc: i32[B, Sk]; mask(b, h, i, j) = doc[b, i] == doc[b, j]; normalize(s) = "
         "softmax(s); }",
         3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        snprintf(text, sizeof text, TIGHT "%s", cases[i].body);
        ck_assert_msg(nests_of(text, BATCH_DENSE) == cases[i].warpgroups, "%s", cases[i].body);
    }
}

// What a forward whose shifts stay has saved tells which rows have keys, also where none of them moved the shift that a sink began with. In
// parts, too.
ARENA_TEST_EACH(of_shifts_that_stay, 0, 8) {
    static const int32_t launch[] = {1, 2, 1, 100, 500, 400};
    static const char *const texts[] = {
        "softmax_with_sink(s, sink[h] + 9); }",
        "{ let m = max(rowmax(s), sink[h] + 9); let l = rowsum(exp(s - m)) + exp(sink[h] + 9 - m); "
        "emit lse = m + log(l); return exp(s - m) / l; } }",
        // and where their weights beside it count as 0
        "{ let z = sink[h] * 0.01 + f32(h + 1) * 1000; let m = max(rowmax(s), z); let l = "
        "rowsum(exp(s - m)) + exp(z - m); emit lse = m + log(l); return exp(s - m) / l; } }",
        "{ let m = max(rowmax(s - 3000), sink[h]); let l = rowsum(exp(s - 3000 - m)) + exp(sink[h] "
        "- "
        "m); emit lse = m + log(l); return exp(s - 3000 - m) / l; } }",
    };
    const char *by = texts[_i % 4],
               *text =
                   arena_printf(a,
                                "import std.mask; import std.normalization; attention a { dim D = "
                                "64; input sink: f32[H] grad; score(q, k) = dot(q, k) * 0.2; "
                                "mask(b, h, i, j) = window(i, j, 300); normalize(s, b, h) %s%s",
                                *by == '{' ? "" : "= ", by);
    Diags diags = diag_list(a);
    Case c = {.a = a};
    PassOptions host = {.target = *target_get(TARGET_HOST), .dtype = DT_F32},
                o = {.target = *target_get(TARGET_SM90A), .dtype = DT_BF16, .shape = SHAPE_SHORT};
    host.saves = o.saves = c.b =
        pass_backward(a, pu_stream(a, "t.attn", text, 64, &c.v)->written, NULL);
    o.split = _i > 3;
    o.schedule = pu_knobs("keys=64,part_keys=16,fixed_shift=1");
    c.forward = pass_pipeline(a, c.b->s, &o, &diags);
    c.backward =
        shaped(a, pass_build_backward(a, c.b, &host, true, &diags), (PuTiles){0, 0}, "sink");
    check_one(&c, launch, text);
}

// A table of distances gets its gradient in the nest, too.
TEST(of_tables) {
    static const char *const texts[] = {
        "import std.normalization; attention a { dim D = 16; input t: f32[H, SPAN] grad; score(q, "
        "k) = dot(q, k) * 0.3; modify(s, b, h, i, j) = s + t[h, i - j + Sk]; mask(b, h, i, j) = j "
        "<= i; normalize(s) = softmax(s); }",
        "import std.normalization; attention a { dim D = 64; input t: f32[H, 9] grad; score(q, k) "
        "= "
        "dot(q, k) * 0.1; modify(s, b, h, i, j) = s * t[h, min(max(i - j, 0), 8)]; normalize(s) = "
        "softmax(s); }",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        check_scheduled("table", texts[i], TARGET_SM90A, i ? DT_F16 : DT_BF16);
        check_scheduled("table", texts[i], TARGET_SM80, i ? DT_F16 : DT_BF16);
    }
}

// Where a warp has registers for the sums of 16 keys, and dq is nothing but a product.
TEST(nests_of_warps) {
    static const struct {
        const char *path;
        int columns;
        Dtype dtype;
        bool nest;
    } cases[] = {
        {"stdlib/softmax.attn", 64, DT_BF16, true},
        {"stdlib/causal.attn", 128, DT_F16, true},
        {"stdlib/causal.attn", 128, DT_F32, false},
        {"stdlib/causal.attn", 192, DT_BF16, false},
        {"stdlib/causal.attn", 40, DT_BF16, false},
        {"stdlib/gaussian_kernel.attn", 64, DT_BF16, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena *a = arena_new();
        Diags diags = diag_list(a);
        const Stream *s = pu_stream(a, cases[i].path, NULL, cases[i].columns, NULL);
        PassOptions o = {.target = *target_get(TARGET_SM80), .dtype = cases[i].dtype};
        const TileProgram *p =
            pass_backward_program(a, pass_backward(a, s->written, &diags), &o, &diags);
        bool blocked = false, queries = false;
        ck_assert_ptr_nonnull(p);
        for (int t = 0; t < p->tensors.n; t++) blocked |= p->tensors.data[t].blocked;
        for (int k = 0; k < p->kernels.n; k++)
            queries |= strstr(p->kernels.data[k]->name, "queries") != NULL;
        ck_assert_msg(blocked == cases[i].nest && queries != cases[i].nest, "%s %d", cases[i].path,
                      cases[i].columns);
        arena_free(a);
    }
}

// Warps that share rows of dq evenly, or not: those that neither rows nor columns take have copies.
TEST(nests_of_any_warps) {
    static const char *const texts[] = {
        "import std.normalization; attention a { dim D = 32, Dv = 96; score(q, k) = dot(q, k) * "
        "0.2; mask(b, h, i, j) = j <= i; normalize(s) = softmax(s); }",
        "import std.normalization; attention a { dim D = 160, Dv = 32; score(q, k) = dot(q, k) * "
        "0.1; normalize(s) = softmax(s); }",
    };
    static const char *const knobs[] = {"rows=64,warps=4,keys=48", "rows=48,warps=3,keys=16",
                                        "rows=80,warps=5,keys=32"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        check_scheduled("columns", texts[i], TARGET_SM80, i ? DT_F16 : DT_BF16);
        for (size_t n = 0; n < sizeof knobs / sizeof *knobs; n++)
            check_chosen("warps", texts[i], TARGET_SM80, DT_BF16, pu_knobs(knobs[n]));
    }
}

// Nobody asks for it there, nor for packed documents.
TEST(nests_by_choice) {
#define NARROW                                                                                     \
    "import std.normalization; attention a { dim D = 64; input t: f32[H, SPAN] grad; score(q, k) " \
    "= dot(q, k); mask(b, h, i, j) = j <= i; normalize(s) = softmax(s); "
    ck_assert_int_eq(nests_of(NARROW "}", BATCH_RAGGED), 2);
    ck_assert_int_eq(
        nests_of(NARROW "modify(s, b, h, i, j) = s + t[h, i - j + Sk]; }", BATCH_DENSE), 2);
}

// Where a warpgroup has all sums of its keys, and nothing hangs on comparisons of products.
TEST(turns_by_choice) {
#define OF(d) "import std.normalization; attention a { dim D = " d "; score(q, k) = dot(q, k); "
    static const struct {
        const char *text;
        BatchLayout batch;
        int turns;
    } cases[] = {
        {OF("64") "mask(b, h, i, j) = j <= i; normalize(s) = softmax(s); }", BATCH_DENSE, 1},
        {OF("64") "mask(b, h, i, j) = j <= i; normalize(s) = softmax(s); }", BATCH_RAGGED, 0},
        {OF("64") "modify(s) = max(s, 0); normalize(s) = s; }", BATCH_DENSE, 0},
        {OF("64") "input n: i32[B]; mask(b, h, i, j) = j < n[b]; normalize(s) = softmax(s); }",
         BATCH_DENSE, 1},
        {OF("64") "modify(s, b, h, i, j) = s - 0.1 * (i - j); normalize(s) = softmax(s); }",
         BATCH_DENSE, 1},
        {OF("128") "modify(s) = sigmoid(s); normalize(s) = s; }", BATCH_DENSE, 1},
        {OF("128") "normalize(s) = softmax(s); }", BATCH_DENSE, 1},
        {OF("128") "modify(s) = max(s, 0); normalize(s) = s; }", BATCH_DENSE, 0},
        {OF("256") "normalize(s) = softmax(s); }", BATCH_DENSE, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ck_assert_int_eq(nests_have(cases[i].text, cases[i].batch, KNOB_turns), cases[i].turns);
}

static const TargetId gpus[] = {TARGET_SM80, TARGET_GFX942, TARGET_GFX1100, TARGET_SM90A};

// Outputs of which the aggregated row is more than a factor's.
TEST(of_outputs) {
    static const char *const outputs[] = {
        "import std.normalization; attention a { dim D = 16, Dv = 16; input gate: f32[B, H, Sq, "
        "Dv] grad; "
        "score(q, k) = dot(q, k) * 0.3; normalize(s) = softmax(s); "
        "output(o, b, h, i, d) = o * sigmoid(gate[b, h, i - q_offset, d]); }",
        "import std.normalization; attention a { dim D = 16, Dv = 32; input gain: f32[H, Dv] grad; "
        "score(q, k) = dot(q, k) * 0.3; mask(b, h, i, j) = j <= i; normalize(s) = softmax(s); "
        "output(o, b, h, i, d) = tanh(o) * rsqrt(sqnorm(o) / Dv + 0.01) * gain[h, d]; }",
    };
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        check("output", outputs[i], DT_F32);
        for (int t = 0; t < 4; t++)
            check_scheduled("output", outputs[i], gpus[t], i ? DT_BF16 : DT_F16);
    }
}

TEST(library) { pu_library(check_file, -1); }

TEST_EACH(scheduled_library, 0, 4) { pu_library(check_file, (int)gpus[_i]); }

TEST_EACH(scheduled_chosen, 0, 4) {
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        bool wide = gpus[_i] == TARGET_GFX1100 && strstr(bodies[i], "Dv = 1"); // has up to 128
        if (wide) continue;
        check_scheduled(strstr(bodies[i], "q, k) = ") + 8, bodies[i], gpus[_i],
                        i % 2 ? DT_F32 : DT_BF16);
    }
}

// Gradients of inputs are exact sums, which a kernel of their own rounds.
TEST_EACH(in_one_order, 0, 4) {
    enum { FIRST = 3, LAST = 10 }; // of all ranks, of which some have no gradient here
    for (int i = FIRST; i <= LAST; i++)
        check_as(strstr(bodies[i], "q, k) = ") + 8, bodies[i], true, gpus[_i],
                 (i + _i) % 2 ? DT_F32 : DT_BF16, (Knobs){0});
}

// A sweep that reads keys ahead is followed by one that does not: what came ahead of its last step is nobody's.
TEST(further_sweeps_wait_for_their_own_tiles) {
    static const TargetId targets[] = {TARGET_SM80, TARGET_SM90A, TARGET_GFX942};
    const char *text =
        HEAD "normalize(s) { let w = exp(max(s - rowmax(s), -2.0)); return w / rowsum(w); } "
             "output(o, b, h, i, d) = tanh(o); }";
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++)
        check_scheduled("further", text, targets[i], DT_F32);
}

// Squared norms grow with a row's columns, whatever the scale is by: weights hang on their last bits. A softmax's do not.
TEST(long_norms_are_alike) {
    static const int columns[] = {64, 128, 160, 256, 512};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        Arena *a = arena_new();
        Diags diags = diag_list(a);
        Stream *norms = pu_stream(a, "stdlib/gaussian_kernel.attn", NULL, columns[i], NULL),
               *dots = pu_stream(a, "stdlib/softmax.attn", NULL, columns[i], NULL);
        ck_assert(pass_backward(a, norms->written, &diags)->same_dots);
        ck_assert(!pass_backward(a, dots->written, &diags)->same_dots);
        arena_free(a);
    }
}

// The last keys of a window have fewer queries, not more: the first ones begin.
TEST(windows_begin_with_the_first_keys) {
    static const TargetId targets[] = {TARGET_SM80, TARGET_SM90A, TARGET_GFX942};
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        Arena *a = arena_new();
        Case c = make(a, "stdlib/sliding_window.attn", NULL, false, (PuTiles){0}, targets[i],
                      DT_BF16, (Knobs){0});
        for (int k = 0; k < c.backward->kernels.n; k++) {
            const TileKernel *kernel = c.backward->kernels.data[k];
            for (int g = 0; g < kernel->ngrid && kernel->purpose == PURPOSE_GRADIENTS; g++)
                ck_assert_msg(!kernel->grid[g].reversed, "%s", kernel->name);
            ck_assert(kernel->purpose != PURPOSE_GRADIENTS || !kernel->schedule.last);
        }
        arena_free(a);
    }
}
