// derive_extrema.c: when scores are tame, when an extremum is kept to the last bit, and factors that leave f32 as one number.
#include "ir/math.h"
#include "ir/stream.h"
#include "passes/derive/derive.h"
#include "passes/derive/magnitude.h"
#include "passes/derive/tame.h"
#include "tests/unit/test.h"

static const char *symbol_name(void *ctx, ExSym sym, int index) {
    (void)ctx, (void)sym, (void)index;
    return NULL;
}

static bool find_symbol(void *ctx, const char *name, ExSym *sym, int *index, ExType *type) {
    (void)ctx;
    if (strcmp(name, "m") != 0 && strcmp(name, "t") != 0) return false;
    *sym = *name == 'm' ? SYM_R : SYM_SCALAR;
    *index = 0;
    *type = EX_F32;
    return true;
}

static const Ex *read(ExPool *p, const char *text) {
    ExNames names = {.name = symbol_name, .find = find_symbol};
    const char *error = NULL;
    const Ex *e = ex_parse(p, &text, &names, &error);
    ck_assert_msg(e != NULL, "%s", error);
    return e;
}

// m = rowmax of s, and an input t.
static RowProgram *row(Arena *a, const char *modified, const char *weight) {
    RowProgram *p = ARENA_NEW(a, RowProgram);
    *p = (RowProgram){.arena = a, .pool = ex_pool(a), .name = "row", .D = 8, .Dv = 8};
    RowInput t = {.name = "t", .dtype = DT_F32};
    RowReduce m = {.op = EX_ROWMAX, .f = ex_symbol(p->pool, SYM_S), .name = "m"};
    VEC_PUSH(a, &p->inputs, t);
    VEC_PUSH(a, &p->reduces, m);
    sizes_init(a, &p->sizes);
    p->score = p->modified = read(p->pool, modified);
    p->mask = ex_bool(p->pool, true);
    p->weight = read(p->pool, weight);
    p->output = ex_symbol(p->pool, SYM_O);
    return p;
}

TEST(tame_scores) {
    static const struct {
        const char *modified;
        bool tame;
    } cases[] = {
        {"(dot * 0.125)", true},
        {"(tanh((dot * 1e9)) * 50.0)", true},
        {"(dot + (exp2((f32((h + 1)) * -0.5)) * f32((kv_idx - q_idx))))", true},
        {"(dot + (f32((kv_idx * kv_idx)) * 0.5))", false},
        {"select((kv_idx < 4), dot, -inf)", true},
        {"(dot * rsqrt(((sqnorm_q * sqnorm_k) + 0.001)))", true},
        {"(dot - log((exp(neg(abs(dot))) + 1.0)))", true},
        {"select((kv_idx < 4), dot, -1e30)", false},
        {"(dot + -65504.0)", false},
        {"(dot + t)", false},
        {"(dot / sqnorm_k)", false},
        {"exp2((dot * 100.0))", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena *a = arena_new();
        RowProgram *p = row(a, cases[i].modified, "exp((s - m))");
        ck_assert_msg(row_tame(p, ex_symbol(p->pool, SYM_S)) == cases[i].tame, "%s",
                      cases[i].modified);
        arena_free(a);
    }
}

// Tame scores under an exponent share one fma with it; all else keeps the maximum as it is. In f32 weights that nothing divides do, too.
TEST(maximum_kept) {
    static const struct {
        const char *modified, *weight;
        bool kept, subtracted;
    } cases[] = {
        {"(dot * 0.3)", "exp((s - m))", false, false},
        {"select((kv_idx < 4), dot, -1e30)", "exp((s - m))", true, true},
        {"(dot * 0.3)", "floor(exp((s - m)))", true, false},
        {"(dot * 0.3)", "(s - m)", true, false},
        {"(dot * 0.3)", "select((s < m), 0.0, 1.0)", true, false},
        {"(dot + t)", "exp(((s - m) / (abs(t) + 1.0)))", true, true},
    };
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        Arena *a = arena_new();
        RowProgram *p = row(a, cases[i / 2].modified, cases[i / 2].weight);
        p->bf16 = i % 2;
        Stream *s = pass_derive(a, p, NULL);
        bool subtracted = cases[i / 2].subtracted || i == 0;
        ck_assert_msg((s->row->modified->op == EX_ROUNDED) == cases[i / 2].kept, "%s of %s",
                      cases[i / 2].weight, cases[i / 2].modified);
        ck_assert_int_eq(s->shifts.n && s->units.data[0], subtracted);
        arena_free(a);
    }
}

// Weights that are narrowed to f16 are shifted where nothing bounds them, by a maximum of their own, or else scaled
// where they are not known to fit.
TEST(weights_of_f16) {
    static const struct {
        const char *modified, *weight;
        bool shifted, scaled;
        int sweeps;
    } cases[] = {
        {"(dot * 0.3)", "exp((s - m))", true, false, 1}, // by m
        {"(dot * 0.3)", "exp(s)", true, false, 1},
        {"(dot * 0.3)", "(exp((s - t)) * 0.5)", true, false, 1},
        {"(dot * 0.3)", "(exp((s - t)) * t)", true, false, 1},
        {"(dot * 0.3)", "exp2(neg((s + (t - s))))", true, false, 1},
        {"exp((dot * 0.3))", "s", true, false, 1},
        {"exp(((dot * 0.3) + t))", "s", false, true, 1}, // t may be -inf, and then a key is masked
        {"(dot * 0.3)", "max(s, 0.0)", false, true, 1},
        {"(dot * 0.3)", "min(max(s, 0.0), 65504.0)", false, false, 1},
        {"(dot * 0.3)", "min(max(s, 0.0), 65505.0)", false, true, 1},
        {"(dot * 0.3)", "exp(tanh(s))", false, false, 1},
        {"(dot * 0.3)", "exp((tanh(s) * 11.0))", false, false, 1},
        {"(dot * 0.3)", "exp((tanh(s) * 12.0))", true, false, 1},
        {"(dot * 0.3)", "exp2((tanh(s) * 15.9))", false, false, 1},
        {"(dot * 0.3)", "exp2((tanh(s) * 16.0))", true, false, 1},
        {"(dot * 0.3)", "exp(((s - m) + 11.0))", true, false, 1},
        {"(dot * 0.3)", "exp(((s - m) + 12.0))", false, true, 2},
        {"(dot * 0.3)", "exp((s - max(m, 3.0)))", true, false, 1},
        {"(dot * 0.3)", "exp((s - min(m, 3.0)))", false, true, 2},
        {"(dot * 0.3)", "(exp((s - m)) * s)", false, true, 2},
        {"(dot * 0.3)", "exp(neg((s * s)))", false, false, 1},
        {"(dot * 0.3)", "log((exp(s) + 1.0))", false, false, 1},
        {"(dot * 0.3)", "(exp(s) / (exp(s) + 1.0))", false, false, 1},
        {"(dot * 0.3)", "(exp(s) + exp(neg(s)))", false, true, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena *a = arena_new();
        Diags diags = diag_list(a);
        RowProgram *p = row(a, cases[i].modified, cases[i].weight);
        Stream *s = pass_derive_half(a, p, &diags);
        ck_assert_msg((s->shift >= 0) == cases[i].shifted, "%s", cases[i].weight);
        ck_assert_msg((s->scale >= 0) == cases[i].scaled, "%s", cases[i].weight);
        ck_assert_msg((diags.first != NULL) == (s->nsweeps > 1), "%s", cases[i].weight);
        ck_assert_msg(s->nsweeps == cases[i].sweeps, "%s", cases[i].weight);
        arena_free(a);
    }
}

static ExValue value_of_m(void *ctx, const Ex *e) {
    (void)e;
    return (ExValue){.f = *(const double *)ctx};
}

// What x becomes by the factors of a row scalar, one after the other, in a device's f32.
static double multiplied(const RowProgram *p, const char *scalar, double m, const Math *math,
                         double x) {
    const Ex *factor[MAX_FACTORS];
    ExEnv env = {.sym = value_of_m, .ctx = &m, .round = true, .math = math};
    int n = row_factors(p, read(p->pool, scalar), factor);
    ck_assert_int_eq(n, 2);
    for (int i = 0; i < n; i++) x = (double)((float)x * (float)ex_eval(factor[i], &env).f);
    return x;
}

// 0 times a deferred factor is 0, however large that is, and whatever its divisor is in a row without
// a key; what is in range is as the formula has it.
TEST(factors_of_devices) {
    static const struct {
        const char *scalar;
        double m, x, is;
    } cases[] = {
        {"rcp((m * m))", -INFINITY, 0, 0},
        {"rcp((m * m))", 0x1p66, 0x1p100, 0x1p-32},
        {"pow(rcp(max(m, 1e-30)), 1.3)", 0, 0, 0},
        {"pow(rcp(max(m, 1e-30)), 4.0)", 0x1p-40, 0x1p-120, 0x1p40},
        {"((rcp(max(m, 1e-30)) / max(m, 1e-30)) / max(m, 1e-30))", 0, 0, 0},
        {"((rcp(max(m, 1e-30)) / max(m, 1e-30)) / max(m, 1e-30))", 0x1p-60, 0x1p-120, 0x1p60},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint32_t seed = 0; seed < 64; seed++) {
            Arena *a = arena_new();
            RowProgram *p = row(a, "dot", "s");
            Math math = math_of(seed % 2 ? TARGET_SM80 : TARGET_GFX942, DT_F32);
            math.seed = seed;
            double x = multiplied(p, cases[i].scalar, cases[i].m, &math, cases[i].x);
            ck_assert_msg(fabs(x - cases[i].is) <= 1e-5 * fabs(cases[i].is), "%s: %g",
                          cases[i].scalar, x);
            arena_free(a);
        }
}
