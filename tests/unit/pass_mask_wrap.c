// Masks at the ends of i32, for every target: what a scheduled program gives, interpreted, against the
// reference. Windows of INT32_MAX, positions of ten millions, sums and products that wrap.
#include "pass_util.h"

static const char *const masks[] = {
    // each row's own bound, from a table
    "kv - q <= far[b, q - q_offset]",
    "q - kv < far[b, q - q_offset] && kv - q <= far[b, q - q_offset]",
    "kv <= q + far[b, q - q_offset]",
    "kv - far[b, q - q_offset] <= q && kv < 20",
    "q - kv <= far2[b, kv] && kv <= q",
    "kv + far2[b, kv] <= q",
    // scalars
    "q - kv < most",
    "q - kv <= least || kv == 3",
    "kv <= q + most",
    "kv >= q + least && kv <= q",
    "kv - q <= most && q - kv <= most",
    "q - kv < two * most",
    "q - kv - least <= most",
    "abs(q - kv) <= most * two",
    "abs(kv - q) < -least",
    "abs(q - kv) <= two * win[h]",
    "abs(q - kv) <= ten * win[h] && kv - q < most",
    "kv <= q - most + most",
    "min(kv, most) <= q && max(q, least) - kv < 30",
    "(q - kv) / 3 <= most",
    "kv < most && kv > least",
    "q * two >= kv * ten",
    "q * most >= kv",
    // offsets times constants
    "kv == 3 || (120 * q_offset <= kv - 120 * q_offset + q && kv < 50)",
    "240 * q_offset - kv <= q * 121 && kv < 50",
    "kv * 100 <= q - q_offset + 1000",
    "kv * 2000 <= q * 3",
    // constants
    "kv <= -1073741824 || kv >= 1073741824",
    "kv - 1073741824 <= q - 1073741824 && kv < 2147483647",
    "q - kv < 2147483647",
    "kv - q > -2147483647 - 1",
    "kv < 9 || kv > 2147483600",
    "(kv < 9 && kv > -2000000000) || (kv > 20 && kv < 2000000000 && kv <= q)",
    // shifts, bits, products
    "(q - kv) >> 31 == 0",
    "(q - kv) << 31 == 0",
    "q << 20 >= kv << 20",
    "(q & ~7) <= kv",
    "(kv & ~7) <= q && (q & ~31) == (kv & ~31)",
    "(q - kv) * (q - kv) <= 50",
    "(q - kv) * (q - kv) * 1000000 <= 50000000",
    "(q - kv) % ten == 0",
    "(q - kv) % zero == 0 && kv <= q",
    "(q - kv) % least <= 3",
    "(q - kv) % win[h] == 1",
    "q / ten == kv / ten",
    "q / zero == kv / zero && kv <= q",
    "q * kv <= 900",
    "abs(q * 2 - kv * ten) < 100",
};
enum { MASKS = sizeof masks / sizeof *masks };

static const TargetId targets[] = {TARGET_HOST, TARGET_SM80, TARGET_SM90A, TARGET_GFX942,
                                   TARGET_GFX1100};
enum { TARGETS = sizeof targets / sizeof *targets };

static const double scalars[] = {2147483647.0, -2147483648.0, 2, 10, 0};

static TileProgram *program(Arena *a, const char *mask, TargetId target, Variant **v) {
    const char *text = arena_printf(
        a,
        "attention m { dim D = 16; input far: i32[B, Sq]; input far2: i32[B, Sk]; input win: "
        "i32[H];"
        "input most: i32; input least: i32; input two: i32; input ten: i32; input zero: i32;"
        "score(q, k) = dot(q, k) * 0.25; mask(b, h, q, kv) = %s;"
        "normalize(s) { let e = exp(s); emit count = rowsum(1.0); return e / rowsum(e); } }",
        mask);
    const Stream *s = pu_stream(a, "wrap.attn", text, 16, v);
    PassOptions o = {.target = *target_get(target),
                     .dtype = target == TARGET_HOST ? DT_F32 : DT_BF16};
    Diags diags;
    diag_init(&diags, a);
    TileProgram *p = pass_pipeline(a, s, &o, &diags);
    if (!p) diag_print(&diags, stderr);
    ck_assert_msg(p != NULL, "%s: no program", mask);
    return p;
}

static void spread(double *x, int64_t n) {
    static const double ends[] = {2147483647.0, -2147483648.0, 0, 5, 2147483640.0,
                                  -7,           -2147483640.0, 1, 40};
    for (int64_t i = 0; i < n; i++) x[i] = ends[(i * 7 + i / 9) % 9];
}

static void check(const char *mask, TargetId target, int sq, int sk, int offset) {
    Arena *a = arena_new();
    Variant *v;
    Diags diags;
    diag_init(&diags, a);
    const TileProgram *p = program(a, mask, target, &v);
    int32_t size[64] = {1, 2, 1, sq, sk, offset};
    tile_eval_sizes(p, size, 4);
    TileData *x = tile_data_random(a, p, size, 4, 3);
    for (int i = 0; i < p->tensors.n; i++) {
        const TileTensor *t = &p->tensors.data[i];
        if (t->role != TENSOR_INPUT) continue;
        if (!strncmp(t->name, "far", 3)) spread(x->tensor[i], tile_tensor_elements(t, size));
        if (!strcmp(t->name, "win")) x->tensor[i][0] = 3, x->tensor[i][1] = 7;
    }
    double scalar[64] = {0};
    for (int i = 0; i < 5; i++) // behind far, far2 and win; the reference reads the tensors
        scalar[3 + i] = x->tensor[p->inputs.data[3 + i]][0] = scalars[i];
    x->scalar = scalar;
    bool ok = tile_eval(p, x, true, &diags);
    if (!ok) diag_print(&diags, stderr);
    ck_assert_msg(ok, "%s does not run", mask);
    double error = tile_data_distance(p, x, p, pu_reference(a, v, p, x));
    ck_assert_msg(error < 2e-2, "%s: %s, Sq %d Sk %d offset %d: %g off", target_get(target)->name,
                  mask, sq, sk, offset, error);
    arena_free(a);
}

START_TEST(every_target) {
    const char *mask = masks[_i];
    for (int t = 0; t < TARGETS; t++) {
        check(mask, targets[t], 40, 200, 160);
        check(mask, targets[t], 33, 70, 9000000);
        check(mask, targets[t], 70, 1, -16777216);
        check(mask, targets[t], 5, 90, 16777000);
    }
}
END_TEST

static const char *printed(Arena *a, const char *extent) {
    Variant *v;
    const char *text =
        arena_printf(a,
                     "attention m { dim D = 16; input t: f32[%s]; score(q, k) = dot(q, k); "
                     "modify(s, b, h, i, j) = s + t[h * %s / H] + f32(j - i); normalize(s) = s; }",
                     extent, extent);
    const Stream *s = pu_stream(a, "index.attn", text, 16, &v);
    PassOptions o = {.target = *target_get(TARGET_SM80), .dtype = DT_BF16};
    Diags diags;
    diag_init(&diags, a);
    TileProgram *p = pass_pipeline(a, s, &o, &diags);
    ck_assert_ptr_nonnull(p);
    Text t;
    text_init(&t, a);
    tile_print(&t, p);
    return t.s;
}

// A product of a head and a size that is not Hkv may wrap: the index is not proved inside.
START_TEST(index_of_product) {
    Arena *a = arena_new();
    ck_assert_ptr_nonnull(strstr(printed(a, "Hkv"), "t![((h * Hkv) / H)]"));
    ck_assert_ptr_nonnull(strstr(printed(a, "NT"), "t[((h * NT) / H)]"));
    arena_free(a);
}
END_TEST

Suite *pass_mask_wrap_suite(void) {
    Suite *s = suite_create("pass_mask_wrap");
    TCase *t = tcase_create("wrap");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, every_target, 0, MASKS);
    tcase_add_test(t, index_of_product);
    suite_add_tcase(s, t);
    return s;
}
