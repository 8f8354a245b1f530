// Shifts that stay where they are: who may, and that tiles in which they should have moved
// are done again and are right.
#include "tests/unit/pass_util.h"

#include "passes/derive/fixed_shift.h"
#include "passes/schedule/sm90.h"

static PassOptions options(void) {
    return (PassOptions){.target = *target_get(TARGET_SM90A),
                         .dtype = DT_BF16,
                         .shape = SHAPE_SHORT,
                         .schedule = pu_knobs("fixed_shift=1")};
}

static const char *variant(Arena *a, const char *text) {
    return arena_printf(a,
                        "import std.mask; import std.normalization; attention t { dim D = 64; "
                        "score(q, k) = dot(q, k); %s }",
                        text);
}

static bool may(const Stream *s) {
    int sum, extremum;
    return pass_may_fix_shift(s, &sum, &extremum);
}

#define SOFTMAX "normalize(s) { let m = rowmax(s); let e = exp(s - m); let l = rowsum(e); "
#define BY_HEAD "normalize(s, b, h) { let m = rowmax(s); let e = exp(s - m); let l = rowsum(e); "

TEST(who_may) {
    static const struct {
        const char *text;
        bool may;
    } all[] = {
        {"normalize(s) = softmax(s);", true},
        {"normalize(s) = softmax(s); mask(b, h, i, j) = causal(i, j);", true},
        {"normalize(s) { let m = rowmax(s); let l = rowsum(exp(s - m)); emit lse = m + log(l); "
         "return exp(s - m) / l; }",
         true},
        {"normalize(s) { let m = rowmax(s); let l = rowsum(exp(s - m)); emit m = m; "
         "return exp(s - m) / l; }",
         false},
        {"normalize(s) { let m = rowmax(s); let l = rowsum(exp(s - m)); "
         "return exp(s - m) / (l + 1); }",
         false}, // not softmax plus one: what is added is not shifted
        {"normalize(s) { let m = max(rowmax(s), 0.0); let l = rowsum(exp(s - m)) + exp(-m); "
         "return exp(s - m) / l; }",
         true},
        {"input sink: f32[H]; normalize(s, b, h) { let m = rowmax(s); "
         "let l = rowsum(exp(s - m)) + exp(sink[h] - m); return exp(s - m) / l; }",
         true},
        // Branches, bounds and roundings that hold for some numbers only.
        {SOFTMAX "return e / (Sk > 64 ? l + 1 : l); }", false},
        {BY_HEAD "return e / (h < 4 ? l + 1 : l); }", false},
        {"input plain: bool; " SOFTMAX "return e / (plain ? l : l + 1); }", false},
        {SOFTMAX "let n = rowsum(1.0); return e / (n > 8 ? l + 1 : l); }", false},
        {SOFTMAX "return e / (m > 5 ? l + 1 : l); }", false},
        {SOFTMAX "return e / min(l, 1000); }", false},
        {SOFTMAX "return e / (l > 64 ? l * 2 : l); }", false},
        {SOFTMAX "return e / sqrt(l * min(l, 100)); }", false},
        {SOFTMAX "return e / (l + 1e-30 * exp(m * 3)); }", false},
        {SOFTMAX "emit x = m * 1e-10; return e / l; }", false},
        {SOFTMAX "emit x = min(1, 100 / m); return e / l; }", false},
        {SOFTMAX "emit x = max(m, 20); return e / l; }", false},
        {SOFTMAX "emit x = m > 11 ? 1 : 0; return e / l; }", false},
        {SOFTMAX "emit x = floor(m / 8); return e / l; }", false},
        {SOFTMAX "emit x = tanh(m * 20); return e / l; }", false},
        {SOFTMAX "emit x = max(log(l), 6); return e / l; }", false},
        {SOFTMAX "emit x = exp(-30 - m); return e / l; }", false},
        {"input on: bool; " SOFTMAX "emit x = on ? m + log(l) : m; return e / l; }", false},
        {"input t: f32[H]; " BY_HEAD "return e / (t[h] < 0.5 ? l + 1 : l); }", false},
        {"input eps: f32; " SOFTMAX "return e / (l + max(eps - 5, 0)); }", false},
        {"normalize(s) { let m = max(rowmax(s), 20); let e = exp(s - m); "
         "return e / (rowsum(e) + 1); }",
         false},
        {"normalize(s) { let m = max(rowmax(s), 20); let e = exp(s - m); let l = rowsum(e); "
         "emit x = max(rowmax(s), 25); return e / l; }",
         false},
        // A sum that is large by itself must not make what is made of it infinite.
        {SOFTMAX "emit x = m + log(l * l * l) / 3; return e / l; }", false},
        {SOFTMAX "emit x = sigmoid(m + log(l)); return e / l; }", true},
        {SOFTMAX "emit x = max(m + log(l), 1); return e / l; }", true},
        {"normalize(s) { let m = max(rowmax(s), 20); let e = exp(s - m); return e / rowsum(e); }",
         true},
        // Where the unit is negative a row that had no key so far has weights of 0.
        {"input w: f32[H]; normalize(s, b, h) { let m = rowmax(s); let e = exp((s - m) / w[h]); "
         "return e / rowsum(e); }",
         false},
        {"normalize(s) = max(s, 0);", false},
        {"normalize(s) = sigmoid(s);", false},
        {"normalize(s) { let m = rowmax(s); let l = rowsum(exp(s - m)); "
         "return exp(s - m) * s / l; }",
         false}, // the sum does not bound the weights
        {"normalize(s) { let m = rowmax(s); let l = rowsum(exp(2 * s - 2 * m)); "
         "return exp(s - m) / l; }",
         false},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        Arena *a = arena_new();
        const Stream *s = pu_stream(a, "t.attn", variant(a, all[i].text), 0, NULL);
        ck_assert_msg(may(s) == all[i].may, "%s", all[i].text);
        arena_free(a);
    }
}

static bool finds_maximum(const Stream *s) {
    for (int i = 0; i < s->states.n; i++)
        if (s->states.data[i].op == EX_ROWMAX) return true;
    return false;
}

// Where scores are proved small a softmax is the quotient of two sums.
TEST(who_needs_none) {
    static const struct {
        const char *text;
        bool needs;
    } all[] = {
        {"modify(s) = 50 * tanh(s); normalize(s) = softmax(s);", false},
        {"modify(s) = 54 * tanh(s); normalize(s) = softmax(s);", true},
        {"modify(s) = min(max(s, -20), 40); " SOFTMAX "emit lse = m + log(l); return e / l; }",
         false},
        {"modify(s) = 50 * tanh(s) - 20; normalize(s) = softmax(s);", true},
        {"modify(s) = min(s, 40); normalize(s) = softmax(s);", true},
        {"input cap: f32; modify(s) = cap * tanh(s); normalize(s) = softmax(s);", true},
        {"modify(s) = 50 * tanh(s); " SOFTMAX "emit m = m; return e / l; }", true},
        {"input sink: f32[H]; modify(s) = 50 * tanh(s); normalize(s, b, h) { "
         "let m = max(rowmax(s), sink[h]); let e = exp(s - m); "
         "return e / (rowsum(e) + exp(sink[h] - m)); }",
         true},
        {"modify(s) = 50 * tanh(s); " SOFTMAX "return e / (l + 1); }", true},
        {"modify(s) = 50 * tanh(s); " SOFTMAX "emit x = rowsum(e * s); return e / l; }", true},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        Arena *a = arena_new();
        RowProgram row = *pu_stream(a, "t.attn", variant(a, all[i].text), 0, NULL)->written;
        ck_assert(finds_maximum(pass_derive(a, &row, NULL))); // f32 has smaller values
        row.bf16 = true;
        ck_assert_msg(finds_maximum(pass_derive(a, &row, NULL)) == all[i].needs, "%s", all[i].text);
        arena_free(a);
    }
}

// Of a full tile: a partial one may have a row's first key.
static TileOp *first_redo(const TileProgram *p) {
    TileBlock *b = &p->kernels.data[0]->body;
    TileClass tiles = CLASS_ANY;
    for (TileOp *op = tile_next(b, NULL); op; op = tile_next(b, op)) {
        if (op->kind == TILE_LOOP || op->kind == TILE_AT) tiles = op->tiles;
        if (op->kind == TILE_REDO && tiles == CLASS_FULL) return op;
    }
    return NULL;
}

// What stands is taken whatever it is.
static void drop_redo(TileProgram *p) {
    for (TileOp *op; (op = first_redo(p)); tile_unlink(op))
        for (int i = 0; i < op->results.n; i++)
            tile_replace(&p->kernels.data[0]->body, op->results.data[i], op->args.data[i + 1]);
}

// redoes: whether steps may be done again.
static void check(Arena *a, const char *path, const char *text, const char *schedule,
                  const PuLaunch launch, bool redoes) {
    PassOptions o = options();
    o.schedule = pu_knobs(schedule);
    Variant *v;
    Diags diags = diag_list(a);
    const Stream *s = pu_stream(a, path, text, 64, &v);
    ck_assert(may(s) || !text);
    if (!may(s)) return;
    TileProgram *p = pass_pipeline(a, s, &o, &diags);
    ck_assert_msg(p != NULL, "%s", path);
    ck_assert_ptr_nonnull(first_redo(p));
    if (!redoes) drop_redo(p);
    p->plans.data[0] = p->plans.data[p->plans.n - 1];
    p->plans.n = 1;
    pu_same(a, v, pu_algorithm(a, s, &o), p, launch, 1e-6);
}

static void check_one(const char *path, int of) {
    static const PuLaunch launch = {1, 2, 1, 200, 300, 100};
    static const char *const forms[] = {"fixed_shift=1,keys=32",
                                        "fixed_shift=1,warpgroups=1,turns=0,keys=48,cluster=2,"
                                        "queries=1"};
    Arena *a = arena_new();
    bool lists = strstr(path, "document") || strstr(path, "natten"); // no clusters there
    if (!of || !lists) check(a, path, NULL, forms[of], launch, false);
    arena_free(a);
}

// Of ordinary scores no step needs to be done again.
TEST_EACH(library, 0, 2) { pu_library(check_one, _i); }

// Scores that outgrow what stood first, towards either end, in some rows, or all at once.
static const char *const moving[] = {
    "modify(s, b, h, i, j) = s * 60; normalize(s) = softmax(s);",
    "input bias: bf16[H, Sq, Sk]; modify(s, b, h, i, j) = (s + bias[h, i - q_offset, j]) * 60; "
    "normalize(s) = softmax(s);",
    "modify(s, b, h, i, j) = s - 1.7 * j; normalize(s) = softmax(s);",
    // What was summed before counts as much as what moves the shift, far above it.
    "modify(s, b, h, i, j) = j < 190 ? s + 64.5 : s; normalize(s) = softmax(s);",
    "modify(s, b, h, i, j) = j < 190 ? s + 85 : s; normalize(s) = softmax(s);",
    "modify(s, b, h, i, j) = j < 190 ? s + 100.5 : s; normalize(s) = softmax(s);",
    // The same by more than f32's exponents: the sum is nearly as large as it may be when the shift moves.
    "modify(s, b, h, i, j) = j < 190 ? s + 92 + 0.03 * j : s; normalize(s) = softmax(s);",
    "modify(s, b, h, i, j) = j < 190 ? s + 94 + 0.01 * j : s; normalize(s) = softmax(s);",
    "modify(s, b, h, i, j) = s + 1.7 * j; normalize(s) = softmax(s);",
    "modify(s, b, h, i, j) = s + (i - j) * (i % 3); mask(b, h, i, j) = causal(i, j); "
    "normalize(s) = softmax(s);",
    "mask(b, h, i, j) = causal(i, j); modify(s, b, h, i, j) = j < 40 ? s + 3000 : s; "
    "normalize(s) = softmax(s);",
    "modify(s, b, h, i, j) = j < 40 ? s : -1e30; normalize(s) = softmax(s);",
    // Rows that have no key before the full tiles.
    "mask(b, h, i, j) = j < 128 || (j < 560 && i % 2 == 0); normalize(s) = softmax(s);",
    "input sink: f32[H]; mask(b, h, i, j) = j < 128 || (j < 560 && i % 2 == 0); "
    "normalize(s, b, h) = softmax_with_sink(s, sink[h]);",
    "modify(s, b, h, i, j) = j >= 250 ? -inf : s; normalize(s) = softmax(s);",
    "input sink: f32[H]; modify(s, b, h, i, j) = j >= 250 ? -inf : s; "
    "normalize(s, b, h) = softmax_with_sink(s, sink[h]);",
    "modify(s, b, h, i, j) = j >= 250 ? -inf : s; normalize(s) { let m = max(rowmax(s), -5); "
    "let e = exp(s - m); return e / rowsum(e); }",
    "input sink: f32[H]; modify(s, b, h, i, j) = s - 2 * j; normalize(s, b, h) { "
    "let m = max(rowmax(s), sink[h]); let l = rowsum(exp(s - m)) + exp(sink[h] - m); "
    "emit lse = m + log(l); return exp(s - m) / l; }",
};

static int32_t size_called(const TileProgram *p, const int32_t *size, const char *name) {
    for (int i = 0; i < p->sizes.n; i++)
        if (!strcmp(p->sizes.data[i].name, name)) return size[i];
    return 0;
}

ARENA_TEST_EACH(moves, 0, sizeof moving / sizeof *moving) {
    static const PuLaunch launches[] = {{1, 2, 1, 200, 300, 100}, {1, 1, 1, 70, 50, 0}};
    static const char *const forms[] = {"fixed_shift=1,keys=32", "fixed_shift=1,keys=64,queries=1",
                                        "fixed_shift=1,warpgroups=1,turns=0,keys=48,cluster=2"};
    for (size_t i = 0; i < sizeof launches / sizeof *launches; i++)
        for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
            bool lists = strstr(moving[_i], "i % 2"); // no clusters there
            if (lists && strstr(forms[f], "cluster")) continue;
            check(a, "t.attn", variant(a, moving[_i]), forms[f], launches[i], true);
        }
}

// The same where tiles are in parts, on three multiprocessors.
static void check_parts(Arena *a, const char *path, const char *text, bool redoes, bool known) {
    static const PuLaunch launches[] = {{1, 1, 1, 100, 500, 400}, {1, 1, 1, 120, 600, 480}};
    Variant *v;
    Diags diags = diag_list(a);
    const Stream *s = pu_stream(a, path, text, 64, &v);
    ck_assert(may(s) || !text);
    if (!may(s)) return;
    PassOptions o = options();
    o.schedule = pu_knobs("keys=64,part_keys=16,fixed_shift=1");
    o.split = true;
    TileProgram *p = pass_pipeline(a, s, &o, &diags);
    ck_assert_ptr_nonnull(p);
    if (!redoes) drop_redo(p);
    o.split = false;
    for (size_t i = 0; i < sizeof launches / sizeof *launches; i++) {
        int32_t size[64] = {0};
        const int32_t *n = launches[i];
        pu_sizes(v, size, n[0], n[1], n[2], n[3], n[4], n[5]);
        tile_eval_sizes(p, size, 3);
        if (known) ck_assert_int_gt(size_called(p, size, "parts"), 1);
        pu_same(a, v, pu_algorithm(a, s, &o), p, n, 1e-5);
    }
}

ARENA_TEST_EACH(moves_in_parts, 0, sizeof moving / sizeof *moving) {
    bool known = !strstr(moving[_i], "i % 2"); // how many steps such a mask has no launch knows
    check_parts(a, "t.attn", variant(a, moving[_i]), true, known);
}

static void check_one_in_parts(const char *path, int unused) {
    Arena *a = arena_new();
    (void)unused;
    check_parts(a, path, NULL, false, false);
    arena_free(a);
}

TEST(library_in_parts) { pu_library(check_one_in_parts, 0); }

// No step is done again for its shift.
static void drop_shifts(TileProgram *p) {
    TileBlock *b = &p->kernels.data[0]->body;
    for (TileOp *op = tile_next(b, NULL); op; op = tile_next(b, op)) {
        if (!op->shift_bits) continue;
        op->shift_bits = 0;
        op->args.n--;
    }
}

// Whether results are right, of queries that are multiplied by `far`, without what `drop` takes away.
static bool is_right(Arena *a, const char *text, double far, void (*drop)(TileProgram *p)) {
    static const PuLaunch l = {1, 2, 1, 200, 300, 100};
    PassOptions o = options();
    Variant *v;
    Diags diags = diag_list(a);
    RowProgram row = *pu_stream(a, "t.attn", variant(a, text), 64, &v)->written;
    row.bf16 = true;
    const Stream *s = pass_derive(a, &row, NULL);
    TileProgram *p = pass_pipeline(a, s, &o, &diags), *before = pu_algorithm(a, s, &o);
    ck_assert_ptr_nonnull(p);
    if (drop) drop(p);
    int32_t size[64] = {0};
    pu_sizes(v, size, l[0], l[1], l[2], l[3], l[4], l[5]);
    TileData *x = tile_data_random(a, before, size, 3, 7), *y = tile_data_random(a, p, size, 3, 7);
    for (int i = 0; i < l[0] * l[1] * l[3] * 64; i++)
        x->tensor[0][i] *= far, y->tensor[0][i] *= far;
    ck_assert(tile_eval(before, x, true, &diags));
    return tile_eval(p, y, true, &diags) && tile_data_distance(before, x, p, y) < 1e-2;
}

// The tests above need it.
ARENA_TEST(redo_is_needed) { ck_assert(!is_right(a, moving[11], 1, drop_redo)); }

// Shifts so large that they have a unit of their own.
ARENA_TEST(large_shifts) {
    static const char *const c[] = {
        "normalize(s) = softmax(s);",
        "input sink: f32[H]; normalize(s, b, h) = softmax_with_sink(s, sink[h] * 1e10);"};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++)
        for (double far = -1e10; far <= 1e10; far += 2e10) {
            ck_assert(is_right(a, c[i], far, NULL));
            ck_assert(!is_right(a, c[i], far, drop_shifts));
        }
}

TEST(refused) {
    static const struct {
        Dtype dtype;
        const char *path, *schedule, *message;
    } all[] = {{DT_F16, "stdlib/softmax.attn", "fixed_shift=1",
                "schedule: shifts stay where results do not depend on them, a sum of all weights "
                "bounds these, and they are bf16"},
               {DT_BF16, "stdlib/relu.attn", "fixed_shift=1",
                "schedule: shifts stay where results do not depend on them, a sum of all weights "
                "bounds these, and they are bf16"},
               {DT_BF16, "stdlib/softmax.attn", "fixed_shift=1,late_rescale=1",
                "schedule: where shifts stay nothing is rescaled late"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        Arena *a = arena_new();
        PassOptions o = options();
        o.dtype = all[i].dtype;
        o.schedule = pu_knobs(all[i].schedule);
        Diags diags = diag_list(a);
        const Stream *s = pu_stream(a, all[i].path, NULL, 128, NULL);
        ck_assert_ptr_null(pass_pipeline(a, s, &o, &diags));
        ck_assert_str_eq(diags.first->message, all[i].message);
        arena_free(a);
    }
}
