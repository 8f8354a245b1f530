// The reference against loops written out here for one variant of each kind, on random data of
// awkward sizes; and against the row program's expressions, which are evaluated by other code.
#include "tests/unit/ref_util.h"

enum { B = 2, H = 4, HKV = 2, SQ = 3, SK = 7, D = 5, DV = 3 };

static void near(double got, double want) {
    ck_assert_msg(fabs(got - want) <= 1e-12 * (1 + fabs(want)), "%.17g is not %.17g", got, want);
}

ARENA_TEST(causal_softmax_in_groups) {
    const Variant *variant =
        ref_compile(a, "import std.normalization; import std.mask;\n"
                       "attention a { dim D = 5, Dv = 3; score(q, k) = dot(q, k);\n"
                       "mask(b, h, i, j) = causal(i, j); normalize(s) = softmax(s); }");
    double *q = ref_numbers(a, B * H * SQ * D, 1), *k = ref_numbers(a, B * HKV * SK * D, 2);
    double *v = ref_numbers(a, B * HKV * SK * DV, 3), *o = ARENA_ARRAY(a, double, B *H *SQ *DV);
    double *lse = ARENA_ARRAY(a, double, B *H *SQ), *emits[] = {lse};
    int32_t sizes[] = {B, H, HKV, SQ, SK, SK - SQ};
    RefRun r = {.variant = variant, .sizes = sizes, .q = q, .k = k, .v = v, .o = o, .emits = emits};
    ck_assert_ptr_null(ref_check(&r));
    ref_run(&r);
    for (int row = 0; row < B * H * SQ; row++) {
        int b = row / (H * SQ), h = row / SQ % H, i = row % SQ, kv = (b * HKV + h / (H / HKV)) * SK;
        double sum = 0, out[DV] = {0};
        for (int j = 0; j <= i + SK - SQ; j++) {
            double s = 0;
            for (int d = 0; d < D; d++) s += q[row * D + d] * k[(kv + j) * D + d];
            sum += exp(s);
            for (int d = 0; d < DV; d++) out[d] += exp(s) * v[(kv + j) * DV + d];
        }
        near(lse[row], log(sum));
        for (int d = 0; d < DV; d++) near(o[row * DV + d], out[d] / sum);
    }
}

ARENA_TEST(sizes_are_checked) {
    const Variant *v =
        ref_compile(a, "attention a { dim D = 1; score(q, k) = 0; normalize(s) = s; }");
    int32_t sizes[] = {1, 3, 2, 1, 1, 0};
    RefRun r = {.variant = v, .sizes = sizes};
    ck_assert_ptr_nonnull(ref_check(&r));
    sizes[SIZE_HKV] = 3;
    ck_assert_ptr_null(ref_check(&r));
    sizes[SIZE_SK] = -1;
    ck_assert_ptr_nonnull(ref_check(&r));
}

ARENA_TEST(mask_alone) {
    const Variant *v = ref_compile(
        a, "import std.mask;\nattention a { dim D = 1; score(q, k) = 0; normalize(s) = s;\n"
           "input n: i32[B]; mask(b, h, i, j) = window(i, j, n[b]); }");
    int32_t sizes[] = {2, 1, 1, SQ, SK, 2}, n[] = {1, 3};
    const void *inputs[] = {n};
    RefRun r = {.variant = v, .sizes = sizes, .inputs = inputs};
    unsigned char mask[SQ * SK];
    for (int b = 0; b < 2; b++) {
        ref_mask(&r, b, 0, mask);
        for (int i = 0; i < SQ; i++)
            for (int j = 0; j < SK; j++)
                ck_assert_int_eq(mask[i * SK + j], j <= i + 2 && i + 2 - j < n[b]);
    }
}

// S_t = decay S_{t-1} + write (x) (erase . S_{t-1}) + key (x) value, as matrices.
ARENA_TEST(delta_rule) {
    enum { S = 6 };
    const Variant *variant = ref_compile(
        a, "recurrence r { dim D = 5, Dv = 3; input g: f32[B, H, S]; input beta: f32[S];\n"
           "decay(b, h, t) = g[b, h, t]; key(k, b, h, t) = k * beta[t];\n"
           "erase(k, b, h, t) = k * g[b, h, t]; write(k, b, h, t) = -k * beta[t]; }");
    double *q = ref_numbers(a, H * S * D, 1), *k = ref_numbers(a, S * D, 2),
           *v = ref_numbers(a, H * S * DV, 3);
    double *g = ref_numbers(a, H * S, 4), *beta = ref_numbers(a, S, 5),
           *start = ref_numbers(a, H * D * DV, 6);
    double *o = ARENA_ARRAY(a, double, H *S *DV), *end = ARENA_ARRAY(a, double, H *D *DV);
    for (int i = 0; i < H * S; i++) g[i] = fabs(g[i]);
    int32_t sizes[] = {1, H, H, 1, H, S};
    const void *inputs[] = {g, beta};
    RefRun r = ref_of(variant, sizes, q, k, v, inputs, o);
    r.state0 = start, r.state = end;
    ck_assert_ptr_null(ref_check(&r));
    ref_run(&r);
    for (int h = 0; h < H; h++) {
        double *s = start + h * D * DV;
        for (int t = 0; t < S; t++)
            for (int e = 0; e < DV; e++) {
                double recalled = 0, out = 0;
                for (int d = 0; d < D; d++) recalled += g[h * S + t] * k[t * D + d] * s[d * DV + e];
                for (int d = 0; d < D; d++) {
                    double change = beta[t] * k[t * D + d] * (v[(h * S + t) * DV + e] - recalled);
                    s[d * DV + e] = g[h * S + t] * s[d * DV + e] + change;
                    out += q[(h * S + t) * D + d] * s[d * DV + e];
                }
                near(o[(h * S + t) * DV + e], out);
            }
        for (int i = 0; i < D * DV; i++) near(end[h * D * DV + i], s[i]);
    }
}

typedef struct Point {
    double s;
    int32_t index[4];
} Point;

static ExValue point_sym(void *ctx, const Ex *e) {
    const Point *p = ctx;
    switch ((int)e->sym) {
    case SYM_DOT: return (ExValue){.f = p->s};
    case SYM_B: return (ExValue){.i = p->index[0]};
    case SYM_H: return (ExValue){.i = p->index[1]};
    case SYM_Q_IDX: return (ExValue){.i = p->index[2]};
    case SYM_KV_IDX: return (ExValue){.i = p->index[3]};
    default: return (ExValue){.i = SK};
    }
}

// `modify` by the reference (one key at a time, weight s, value 1) and by the row program.
ARENA_TEST(agrees_with_the_row_program) {
    static const char *const bodies[] = {
        "s * 0.5 + h - i / 3 + j % 2",
        "j - i < -1 ? tanh(s) : max(s, exp2(-s))",
        "pow(abs(s), 1.5) * ((i ^ j) & 3) + (i << h) - (~j >> 1)",
        "f32(i != j && (b == 1 || s > 0)) + i32(s * 10) / -3 + i32(s * 10) % -3",
        "sin(s) * cos(s) + erf(s) + sigmoid(s) + floor(s * 7) + log2(abs(s) + 1) + s % 0.3",
    };
    for (size_t n = 0; n < sizeof bodies / sizeof *bodies; n++) {
        const Variant *v = ref_compile(
            a, arena_printf(a,
                            "attention a { dim D = 1; score(q, k) = dot(q, k); normalize(s) = s;\n"
                            "modify(s, b, h, i, j) = %s; mask(b, h, i, j) = j == %d; }",
                            bodies[n], (int)n));
        Diags d = diag_list(a);
        RowProgram *p = fe_lower(a, &d, v);
        double *q = ref_numbers(a, B * H * SQ, 1), *k = ref_numbers(a, B * H * SK, 2),
               *o = ARENA_ARRAY(a, double, B *H *SQ);
        double *ones = ARENA_ARRAY(a, double, B *H *SK);
        for (int i = 0; i < B * H * SK; i++) ones[i] = 1;
        int32_t sizes[] = {B, H, H, SQ, SK, 0};
        RefRun r = {.variant = v, .sizes = sizes, .q = q, .k = k, .v = ones, .o = o};
        ref_run(&r);
        for (int row = 0; row < B * H * SQ; row++) {
            Point at = {q[row] * k[row / SQ * SK + (int)n],
                        {row / (H * SQ), row / SQ % H, row % SQ, (int32_t)n}};
            ExEnv env = {.sym = point_sym, .ctx = &at};
            double want = ex_eval(p->modified, &env).f;
            ck_assert_msg(fabs(o[row] - want) <= 1e-6 * (1 + fabs(want)), "%s: %g, not %g",
                          bodies[n], o[row], want);
        }
    }
}

// ---- what decides

enum { ROWS = 4, KEYS = 64, WIDE = 8 };

typedef struct Decided {
    double counts[ROWS];
    RefOpen open;
} Decided;

// Runs `body`, an attention over ROWS x KEYS that emits `n`, with q and k of this spacing.
static Decided decided(Arena *a, const char *body, double grain) {
    Variant *variant = ref_compile(
        a, arena_printf(a, "import std.normalization;\nattention a { dim D = 8; %s }", body));
    double *q = ref_numbers(a, ROWS * WIDE, 1), *k = ref_numbers(a, KEYS * WIDE, 2),
           *v = ref_numbers(a, KEYS * WIDE, 3), *o = ARENA_ARRAY(a, double, ROWS *WIDE);
    for (int i = 0; grain > 0 && i < ROWS * WIDE; i++) q[i] = rint(q[i] / grain) * grain;
    for (int i = 0; grain > 0 && i < KEYS * WIDE; i++) k[i] = rint(k[i] / grain) * grain;
    for (int i = 0; i < ROWS * WIDE; i++) q[i] = (float)q[i];
    for (int i = 0; i < KEYS * WIDE; i++) k[i] = (float)k[i];
    Decided d = {.open = {.row = ARENA_ARRAY(a, unsigned char, ROWS),
                          .o = ARENA_ARRAY(a, unsigned char, ROWS *WIDE)}};
    int32_t sizes[] = {1, 1, 1, ROWS, KEYS, 0};
    double *emits[] = {d.counts, d.counts};
    RefRun r = ref_of(variant, sizes, q, k, v, NULL, o);
    r.emits = emits, r.open = &d.open, r.dot_error = 0x1p-20, r.o_error = 1e-5;
    ref_run(&r);
    return d;
}

#define SCORE "score(q, k) = dot(q, k);"

// Where f32's operations, one by one, come out otherwise than float64's.
ARENA_TEST(f32_decides) {
    static const struct {
        const char *what;
        double count;
    } cases[] = {
        {"f32(j) % 0.3 == 0.0", 10},
        {"f32(j) * 0.1 * 10.0 == f32(j)", 55},
        {"floor(f32(j) / 41.0) == 1.0", 23},
        {"i32(f32(j) * 0.1 * 30.0) == 3 * j", 64},
        {"16777216.0 + f32(j % 2) == 16777216.0", 64},
        {"1e-30 * 1e-10 * f32(j + 1) > 0.0", 0},
        {"3e38 * f32(j) < inf", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Decided d = decided(a,
                            arena_printf(a,
                                         SCORE "mask(b, h, i, j) = %s;"
                                               "normalize(s) { emit n = rowsum(1.0); return s; }",
                                         cases[i].what),
                            0);
        ck_assert_msg(d.counts[0] == cases[i].count, "%s: %g keys, not %g", cases[i].what,
                      d.counts[0], cases[i].count);
        ck_assert_int_eq(d.open.decisions, 0);
    }
}

// Decisions on dots whose every partial sum is exact have one answer; others within their rounding
// do not, but a score is its own maximum whatever its dot was rounded to.
ARENA_TEST(open_decisions) {
    static const struct {
        const char *body;
        double grain;
        int rows;
    } cases[] = {
        {SCORE "normalize(s) { emit n = rowsum((s > 0.25 ? 1.0 : 0.0)); return s; }", 0.25, 0},
        {SCORE "normalize(s) { emit n = rowsum((s == rowmax(s) ? 1.0 : 0.0)); return s; }", 0, 0},
        {SCORE "normalize(s) { emit n = rowsum((s - rowmax(s) < 0.0 ? 1.0 : 0.0)); return s; }", 0,
         0},
        {SCORE "modify(s, b, h, i, j) = s - s + (j < i + 3 ? 1.0 : 2.0);"
               "normalize(s) { emit n = rowsum((s > 1.0 ? 1.0 : 0.0)); return s; }",
         0, 0},
        // a score and itself, computed in another way
        {"score(q, k) = dot(q, k) * 0.3 - 0.3 * dot(q, k);"
         "normalize(s) { emit n = rowsum((s >= 0.0 ? 1.0 : 0.0)); return s; }",
         0, 0},
        // whole numbers of spacing 2^-24 and more digits than f32 has
        {"score(q, k) = 4194304.0 * dot(q, k);"
         "normalize(s) { emit n = rowsum((s - floor(s) > 0.5 ? 1.0 : 0.0)); return s; }",
         0, ROWS},
        {SCORE "normalize(s) { emit n = rowsum((exp(s) > 1.0 ? 1.0 : 0.0)); return s; }", 0.25, 0},
        {SCORE "normalize(s) { emit n = rowsum((tanh(s) * 1000.0 % 1.0 < 0.5 ? 1.0 : 0.0)); "
               "return s; }",
         0.25, ROWS},
        {SCORE "normalize(s) = s; output(o, b, h, i, d) = floor(o * 1e6);", 0.25, ROWS},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Decided d = decided(a, cases[i].body, cases[i].grain);
        ck_assert_msg(d.open.rows == cases[i].rows, "%s: %d rows are open, not %d", cases[i].body,
                      (int)d.open.rows, cases[i].rows);
        ck_assert(d.open.decisions >= d.open.rows);
    }
}
