// The signs of inputs that are drawn: with them, a recurrence's state decays.
#include "tests/unit/ref_util.h"
#include "tools/decay.h"

// The signs of inputs g and A for one decay.
static void signs_are(const char *decay, int g, int scale) {
    Arena *a = arena_new();
    Variant *v = ref_compile(
        a, arena_printf(a,
                        "recurrence r { dim D = 4, Dv = 4; input _g: f32[B, H, S]; input _A: "
                        "f32[H]; input _doc: i32[B, S]; decay(b, h, t) = %s; }",
                        decay));
    int sign[3];
    decay_signs(a, v, sign);
    ck_assert_msg(sign[0] == g && sign[1] == scale && !sign[2], "%s: %d %d %d", decay, sign[0],
                  sign[1], sign[2]);
    arena_free(a);
}

TEST(logarithms_are_negative) {
    signs_are("exp(_g[b, h, t])", -1, 0);
    signs_are("exp2(3 * _g[b, h, t])", -1, 0);
    signs_are("exp(-_g[b, h, t])", 1, 0);
    signs_are("_doc[b, t] != _doc[b, max(t - 1, 0)] ? 0 : exp(_g[b, h, t])", -1, 0);
}

TEST(factors_have_signs) {
    signs_are("exp(_g[b, h, t] * _A[h])", 1, -1);
    signs_are("exp(-abs(_g[b, h, t]) * _A[h])", 0, 1);
    signs_are("exp(-exp(_A[h]) * log(1 + exp(_g[b, h, t])))", 0, 0);
}

TEST(what_decays_with_any_has_none) {
    signs_are("sigmoid(_g[b, h, t])", 0, 0);
    signs_are("exp(-abs(_g[b, h, t]))", 0, 0);
    signs_are("0.9", 0, 0);
    signs_are("1.5 + exp(_g[b, h, t])", 0, 0); // with no sign
}

TEST(recurrences_without_a_decay_have_none) {
    Arena *a = arena_new();
    Variant *v = ref_compile(a, "recurrence r { dim D = 4, Dv = 4; input _g: f32[H]; }");
    int sign[1] = {1};
    decay_signs(a, v, sign);
    ck_assert_int_eq(sign[0], 0);
    arena_free(a);
}

// Which of k, a and b are drawn with rows of norm 1.
static void units_are(const char *erase, const char *write, bool k, bool x, bool y) {
    Arena *a = arena_new();
    Variant *v = ref_compile(
        a, arena_printf(
               a,
               "recurrence r { dim D = 4, Dv = 4; input _a: f32[B, H, S, D]; input _b: "
               "f32[B, H, S, D]; decay(b, h, t, d) = exp(_b[b, h, t, d]); erase(k, b, h, t, d) "
               "= %s; write(k, b, h, t, d) = %s; }",
               erase, write));
    bool is[] = {decay_takes_unit(a, v, -1), decay_takes_unit(a, v, 0), decay_takes_unit(a, v, 1)};
    ck_assert_msg(is[0] == k && is[1] == x && is[2] == y, "%s, %s: %d %d %d", erase, write, is[0],
                  is[1], is[2]);
    arena_free(a);
}

TEST(what_is_erased_and_written_has_a_norm_of_1) {
    units_are("k", "-_a[b, h, t, d]", true, true, false);
    units_are("k * rsqrt(sqnorm(k) + 1e-6)", "-k", false, false, false);
    units_are("_a[b, h, t, d] * exp(_b[b, h, t, d])", "-_a[b, h, t, d]", false, true, false);
}
