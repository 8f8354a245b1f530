// Tile programs of the derived backward, interpreted, against the reference's derivative: with what the tile program of the forward saved.
#include "pass_util.h"

#include "passes/derive/backward.h"

typedef struct Case {
    Arena *a;
    Variant *v;
    const Backward *b;
    TileProgram *forward, *backward;
} Case;

static TileProgram *shaped(Arena *a, TileProgram *p, PuTiles tiles, const char *what) {
    (void)a;
    pass_tidy(p);
    pass_hoist(p);
    pass_fuse(p);
    if (tiles.m) pu_bind(p, tiles);
    pu_verify(p, what, PU_FUSED);
    return p;
}

// For the host an algorithm, for GPUs as it is scheduled.
static Case make(Arena *a, const char *path, const char *text, bool deterministic, PuTiles tiles,
                 TargetId target, Dtype dtype, Knobs schedule) {
    Case c = {.a = a};
    PassOptions o = {.target = *target_get(TARGET_HOST), .dtype = DT_F32};
    Diags diags = diag_list(a);
    int columns = target == TARGET_SM90A ? 16 : 8; // a nest is for whole steps of its products
    const Stream *s = pu_stream(a, path, text, text ? 0 : columns, &c.v);
    c.b = dtype == DT_F16 ? pass_backward_narrow(a, s->written, NULL)
                          : pass_backward(a, s->written, NULL);
    o.saves = c.b;
    o.dtype = target == TARGET_HOST ? DT_F32 : dtype;
    c.forward = shaped(a, pass_build(a, c.b->s, &o), tiles, path);
    if (target != TARGET_HOST) {
        o.target = *target_get(target);
        o.schedule = schedule;
        c.backward = pass_backward_program(a, c.b, &o, &diags);
        if (!c.backward) diag_print(&diags, stderr);
        return c;
    }
    TileProgram *p = pass_build_backward(a, c.b, &o, !deterministic, &diags);
    if (!p) return c;
    pu_verify(p, path, PU_BUILT);
    c.backward = shaped(a, p, tiles, path);
    return c;
}

static int named(const TileProgram *p, const char *name) {
    for (int i = 0; i < p->tensors.n; i++)
        if (!strcmp(p->tensors.data[i].name, name)) return i;
    return -1;
}

static void check_one(const Case *c, const int32_t *launch, const char *what) {
    int32_t size[64] = {0};
    Diags diags = diag_list(c->a);
    pu_sizes(c->v, size, launch[0], launch[1], launch[2], launch[3], launch[4], launch[5]);
    TileData *x = tile_data_random(c->a, c->forward, size, 4, 5),
             *y = tile_data_random(c->a, c->backward, size, 4, 9);
    ck_assert_msg(tile_eval(c->forward, x, false, &diags), "%s: the forward does not run", what);
    for (int i = 0; i < c->forward->tensors.n; i++) {
        int to = named(c->backward, c->forward->tensors.data[i].name);
        bool work = c->forward->tensors.data[i].role == TENSOR_WORK;
        if (to >= 0 && !work) y->tensor[to] = x->tensor[i];
    }
    y->scalar = x->scalar;
    bool ran = tile_eval(c->backward, y, false, &diags);
    if (!ran) diag_print(&diags, stderr);
    ck_assert_msg(ran, "%s does not run", what);
    const void **inputs = ARENA_ARRAY(c->a, const void *, c->v->inputs.n + 1);
    for (int i = 0; i < c->v->inputs.n; i++) inputs[i] = pu_input(c->a, c->forward, x, i);
    const double **demits = ARENA_ARRAY(c->a, const double *, c->v->emits.n + 1);
    double **dinputs = ARENA_ARRAY(c->a, double *, c->v->inputs.n + 1), *want[3];
    static const char *const names[] = {"dq", "dk", "dv"};
    for (int i = 0; i < 3; i++) {
        const TileTensor *t = &c->backward->tensors.data[named(c->backward, names[i])];
        want[i] = ARENA_ARRAY(c->a, double, tile_tensor_elements(t, y->size) + 1);
    }
    for (int i = 0; i < c->backward->tensors.n; i++) {
        const TileTensor *t = &c->backward->tensors.data[i];
        if (t->role == TENSOR_DEMIT) demits[t->index] = y->tensor[i];
        if (t->role == TENSOR_GRAD)
            dinputs[t->index] = ARENA_ARRAY(c->a, double, tile_tensor_elements(t, y->size) + 1);
    }
    RefRun run =
        ref_of(c->v, y->size, x->tensor[named(c->forward, "q")], x->tensor[named(c->forward, "k")],
               x->tensor[named(c->forward, "v")], inputs, NULL);
    RefGrad g = {.run = &run,
                 .d_o = y->tensor[named(c->backward, "do")],
                 .demits = demits,
                 .dq = want[0],
                 .dk = want[1],
                 .dv = want[2],
                 .dinputs = dinputs};
    ref_grad(&g);
    for (int i = 0; i < c->backward->tensors.n; i++) {
        const TileTensor *t = &c->backward->tensors.data[i];
        const double *expected = t->role == TENSOR_GRAD ? dinputs[t->index] : NULL;
        for (int k = 0; k < 3; k++)
            if (!strcmp(t->name, names[k])) expected = want[k];
        double most = 0, size_of = 1e-3;
        for (int64_t e = 0; expected && e < tile_tensor_elements(t, y->size); e++) {
            most =
                fmax(most, isnan(y->tensor[i][e]) ? INFINITY : fabs(expected[e] - y->tensor[i][e]));
            size_of = fmax(size_of, fabs(expected[e]));
        }
        ck_assert_msg(most <= 1e-5 * size_of, "%s: %s is off by %g of %g", what, t->name, most,
                      size_of);
    }
}

static void check(const char *path, const char *text, Dtype dtype) {
    static const int32_t launches[][6] = {{1, 1, 1, 5, 7, 2},
                                          {2, 4, 2, 9, 10, 1},
                                          {1, 2, 2, 4, 1, 0},
                                          {1, 1, 1, 3, 0, 0},
                                          {1, 2, 1, 13, 5, 0}};
    static const PuTiles tiles[] = {{0, 0}, {4, 3}};
    for (int t = 0; t < 2; t++)
        for (int d = 0; d < 2; d++) {
            Arena *a = arena_new();
            Case c = make(a, path, text, d, tiles[t], TARGET_HOST, dtype, (Knobs){0});
            ck_assert_msg(c.backward, "%s", text ? text : path);
            for (size_t i = 0; i < sizeof launches / sizeof *launches; i++)
                check_one(&c, launches[i], path);
            arena_free(a);
        }
}

static void check_chosen(const char *path, const char *text, TargetId target, Dtype dtype,
                         Knobs schedule) {
    static const int32_t launches[][6] = {{1, 4, 2, 70, 133, 2}, {1, 1, 1, 3, 0, 0}};
    Arena *a = arena_new();
    Case c = make(a, path, text, false, (PuTiles){0, 0}, target, dtype, schedule);
    ck_assert_msg(c.backward, "%s", text ? text : path);
    for (size_t i = 0; i < sizeof launches / sizeof *launches; i++)
        check_one(&c, launches[i], path);
    arena_free(a);
}

static void check_scheduled(const char *path, const char *text, TargetId target, Dtype dtype) {
    check_chosen(path, text, target, dtype, (Knobs){0});
}

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

// So many that two warpgroups just have registers for them, where that is asked for.
TEST(of_tight_nests) {
#define TIGHT                                                                                      \
    "import std.normalization; attention a { dim D = 192, Dv = 128; score(q, k) = dot(q, k) * "
    static const char *const texts[] = {
        TIGHT "0.05; mask(b, h, i, j) = j <= i; normalize(s) = softmax(s); }",
        TIGHT "2000; normalize(s) = softmax(s); }",
        TIGHT "0.05; modify(s) = 2 * tanh(s / 2); normalize(s) = softmax(s); }",
        TIGHT "0.05; modify(s) = max(s, 0); mask(b, h, i, j) = i - j < 9; normalize(s) = s; }",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        check_chosen("tight", texts[i], TARGET_SM90A, i % 2 ? DT_F16 : DT_BF16,
                     pu_knobs("warpgroups=2"));
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
