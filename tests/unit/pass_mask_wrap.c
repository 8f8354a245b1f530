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
    "abs(two) * (q / 64) < min(Sk, abs(least))",
    "max(abs(far[b, q - q_offset]), -1) >= kv - q",
};
enum { MASKS = sizeof masks / sizeof *masks, SEEDS = 100 };

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
    Diags diags = diag_list(a);
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
    Diags diags = diag_list(a);
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
    const TileData *y = pu_reference(a, v, p, x);
    const char *where = arena_printf(a, "%s: %s, Sq %d Sk %d offset %d", target_get(target)->name,
                                     mask, sq, sk, offset);
    double error = tile_data_distance(p, x, p, y);
    ck_assert_msg(error < 2e-2, "%s: %g off", where, error);
    int count = pu_tensor(p, TENSOR_EMIT, 0);
    for (int i = 0; i < 2 * sq; i++)
        ck_assert_msg(x->tensor[count][i] == y->tensor[count][i], "%s: row %d has %g keys, not %g",
                      where, i, x->tensor[count][i], y->tensor[count][i]);
    arena_free(a);
}

TEST_EACH(every_target, 0, MASKS) {
    const char *mask = masks[_i];
    for (int t = 0; t < TARGETS; t++) {
        check(mask, targets[t], 40, 200, 160);
        check(mask, targets[t], 33, 70, 9000000);
        check(mask, targets[t], 70, 1, -16777216);
        check(mask, targets[t], 5, 90, 16777000);
    }
}

// ---- masks by seed

typedef struct Draw {
    Text t;
    uint64_t state;
} Draw;

static int upto(Draw *d, int n) {
    d->state = d->state * 6364136223846793005u + 1442695040888963407u;
    return (int)((d->state >> 33) % (uint64_t)n);
}

static void draw_number(Draw *d, int depth);

static void draw_leaf(Draw *d) {
    static const char *const leaves[] = {"q",
                                         "kv",
                                         "q",
                                         "kv",
                                         "q",
                                         "kv",
                                         "most",
                                         "least",
                                         "two",
                                         "ten",
                                         "win[h]",
                                         "Sk",
                                         "Sq",
                                         "q_offset",
                                         "far[b, q - q_offset]",
                                         "far2[b, kv]",
                                         "1",
                                         "3",
                                         "17",
                                         "64",
                                         "-1",
                                         "2147483647",
                                         "-2147483647",
                                         "(-2147483647 - 1)",
                                         "16777216",
                                         "-1000000",
                                         "46341",
                                         "1073741824",
                                         "h"};
    text_puts(&d->t, leaves[upto(d, sizeof leaves / sizeof *leaves)]);
}

static void draw_two(Draw *d, const char *before, const char *between, int depth) {
    text_puts(&d->t, before);
    draw_number(d, depth - 1);
    text_puts(&d->t, between);
    draw_number(d, depth - 1);
    text_puts(&d->t, ")");
}

static void draw_by(Draw *d, const char *op, int depth) {
    static const char *const by[] = {"2",   "3",    "7",      "-4",    "64",
                                     "ten", "zero", "win[h]", "least", "two"};
    text_puts(&d->t, "(");
    draw_number(d, depth - 1);
    text_printf(&d->t, " %s %s)", op, by[upto(d, sizeof by / sizeof *by)]);
}

static void draw_bits(Draw *d, int depth) {
    static const char *const ops[] = {"<< 31", "<< 3",  ">> 31", ">> 2", "& 7",
                                      "& -16", "& ten", "^ 5",   "| 3"};
    text_puts(&d->t, "(");
    draw_number(d, depth - 1);
    text_printf(&d->t, " %s)", ops[upto(d, sizeof ops / sizeof *ops)]);
}

static void draw_number(Draw *d, int depth) {
    switch (depth > 0 ? upto(d, 14) : 0) {
    case 0:
    case 1: draw_leaf(d); return;
    case 2:
    case 3: draw_two(d, "(", " + ", depth); return;
    case 4:
    case 5:
    case 6: draw_two(d, "(", " - ", depth); return;
    case 7: draw_two(d, "(", " * ", depth); return;
    case 8: draw_by(d, "/", depth); return;
    case 9: draw_by(d, "%", depth); return;
    case 10: draw_bits(d, depth); return;
    case 11: draw_two(d, "min(", ", ", depth); return;
    case 12: draw_two(d, "max(", ", ", depth); return;
    default:
        text_puts(&d->t, "abs(");
        draw_number(d, depth - 1);
        text_puts(&d->t, ")");
    }
}

static void draw_mask(Draw *d, int depth) {
    static const char *const compare[] = {" <= ", " < ",  " >= ", " > ",
                                          " == ", " != ", " <= ", " < "};
    int kind = depth > 0 ? upto(d, 7) : 0;
    if (kind < 3) {
        draw_two(d, "(", compare[upto(d, 8)], 3);
        return;
    }
    text_puts(&d->t, kind == 5 ? "!(" : "(");
    draw_mask(d, depth - 1);
    if (kind == 6) {
        text_puts(&d->t, " ? ");
        draw_mask(d, depth - 1);
    }
    if (kind != 5) {
        text_puts(&d->t, kind == 3 ? " && " : kind == 4 ? " || " : " : ");
        draw_mask(d, depth - 1);
    }
    text_puts(&d->t, ")");
}

ARENA_TEST_EACH(drawn, 0, SEEDS) {
    Draw d = {.state = (uint64_t)_i * 0x9e3779b97f4a7c15u + 77};
    d.t = text_new(a);
    draw_mask(&d, 3);
    TargetId target = targets[_i % TARGETS];
    check(d.t.s, target, 40, 200, 160);
    check(d.t.s, target, 33, 70, 9000000);
    check(d.t.s, target, 70, 1, -16777216);
    check(d.t.s, target, 9, 130, 16777000);
}

static const char *printed(Arena *a, const char *extent) {
    const char *text =
        arena_printf(a,
                     "attention m { dim D = 16; input t: f32[%s]; score(q, k) = dot(q, k); "
                     "modify(s, b, h, i, j) = s + t[h * %s / H] + f32(j - i); normalize(s) = s; }",
                     extent, extent);
    const Stream *s = pu_stream(a, "index.attn", text, 16, NULL);
    PassOptions o = {.target = *target_get(TARGET_SM80), .dtype = DT_BF16};
    Diags diags = diag_list(a);
    TileProgram *p = pass_pipeline(a, s, &o, &diags);
    ck_assert_ptr_nonnull(p);
    Text t = text_new(a);
    tile_print(&t, p);
    return t.s;
}

// A product of a head and a size that is not Hkv may wrap: the index is not proved inside.
ARENA_TEST(index_of_product) {
    ck_assert_ptr_nonnull(strstr(printed(a, "Hkv"), "t![((h * Hkv) / H)]"));
    ck_assert_ptr_nonnull(strstr(printed(a, "NT"), "t[((h * NT) / H)]"));
}
