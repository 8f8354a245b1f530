// The Hopper schedules of the standard library: tile by tile on small tiles of odd sizes, the
// interpreter gives what it gives before scheduling, whatever the schedule. (Up to how constants
// are folded in partial and full tiles: the flat form may take a full tile for a partial one.)
#include "ir/tile_shared.h"
#include "passes/schedule/expand.h"
#include "passes/schedule/sm90.h"
#include "tests/unit/pass_util.h"

static const PuTiles tiles = {4, 3};

static PassOptions options(void) {
    return (PassOptions){
        .target = *target_get(TARGET_SM90A), .dtype = DT_BF16, .shape = SHAPE_SHORT};
}

static TileProgram *shaped(Arena *a, const Stream *s, bool share) {
    PassOptions o = options();
    o.split = o.share = share;
    TileProgram *p = pass_build(a, s, &o);
    pass_tidy(p);
    pass_hoist(p);
    pass_fuse(p);
    pu_bind(p, tiles);
    pass_set_splits(p);
    ck_assert(pass_shifts(p, &o, NULL)); // nothing says that they stay
    pass_classify(p);
    pass_settle(p);
    pass_tidy(p);
    pass_hoist(p);
    pass_fuse(p);
    pu_verify(p, p->name, PU_SHAPED);
    return p;
}

typedef enum Form { CHOSEN, PLAIN, LATE, FORMS } Form;

// The whole program, or its first kernel in another form, by way of the text of its assignment.
static TileProgram *scheduled(Arena *a, const Stream *s, Form form, bool share) {
    PassOptions o = options();
    TileProgram *p = shaped(a, s, share);
    Diags diags = diag_list(a);
    TileKernel *k = p->kernels.data[0]; // in roles: as pass_tile_sm90 says
    k->schedule.knobs = sm90_fit(p, k, SHAPE_SHORT, false);
    k->schedule.warps = 4 * k->schedule.knobs.warpgroups;
    if (form == CHOSEN) {
        ck_assert(pass_schedule(p, &o, &diags));
        ck_assert(p->kernels.data[0]->body.last->kind == TILE_ROLE);
    } else {
        Sm90 sm = {.p = p, .k = k, .x = p->pool, .shape = sm90_shape_of(k)};
        sm.shape.late_rescale = form == LATE;
        sm.shape.after = 3;
        sm.shape.queries = form == LATE ? 1 : 2;
        sm90_assign(&sm, form != PLAIN);
        sm.p = p = tu_read_back(a, p);
        sm.k = k = p->kernels.data[0];
        sm.x = p->pool;
        pass_expand(p, k);
        sm90_stores(&sm);
    }
    p->scheduled = form == CHOSEN; // otherwise the other kernels are as they were
    pu_verify(p, p->name, PU_SHAPED);
    return p;
}

static void check_variant(const char *path, Form form) {
    Arena *a = arena_new();
    Variant *v;
    const Stream *s = pu_stream(a, path, NULL, 8, &v);
    TileProgram *before = shaped(a, s, false), *after = scheduled(a, s, form, false);
    pu_same_anywhere(a, v, before, after, 1e-6);
    arena_free(a);
}

static void check_one(const char *path, int form) { check_variant(path, (Form)form); }
static void check_all(Form form) { pu_library(check_one, (int)form); }

TEST_EACH(every_form_is_right, 0, FORMS) { check_all((Form)_i); }

// ---- parts of the keys, where tiles are too few

enum { PARTS = 3 };

// More than most tiles of queries have steps: some parts have none. Of all heads but the first.
static void make_parts(TileProgram *p) {
    for (int i = 0; i < p->sizes.n; i++) {
        TileSize *s = &p->sizes.data[i];
        if (!strcmp(s->name, "parts")) s->def = ex_i32(p->pool, PARTS);
        if (!strcmp(s->name, "whole_heads")) s->def = ex_i32(p->pool, 1);
    }
}

static void check_parts(const char *path, int form) {
    Arena *a = arena_new();
    Variant *v;
    const Stream *s = pu_stream(a, path, NULL, 8, &v);
    TileProgram *before = shaped(a, s, false), *after = scheduled(a, s, (Form)form, true);
    make_parts(after);
    if (s->nsweeps == 1) ck_assert_int_eq(after->plans.n, 4);
    for (int i = 2; i < after->plans.n; i++) after->plans.data[i - 2] = after->plans.data[i];
    if (after->plans.n > 1) after->plans.n -= 2; // packed rows are tried elsewhere
    pu_same_anywhere(a, v, before, after, 1e-5);
    arena_free(a);
}

TEST_EACH(parts_are_right, 0, FORMS) { pu_library(check_parts, _i); }

typedef struct Real {
    Variant *v;
    const Stream *s;
    PassOptions o;
    TileProgram *p;
} Real;

// With the extents that are chosen; text: of the file, where it is none of the library's.
static Real real_program(Arena *a, const char *path, const char *text, int D,
                         const char *schedule) {
    Real r = {.o = options()};
    r.o.schedule = pu_knobs(schedule);
    Diags diags = diag_list(a);
    r.s = pu_stream(a, path, text, D, &r.v);
    r.p = pass_pipeline(a, r.s, &r.o, &diags);
    ck_assert_msg(r.p != NULL, "%s at D=%d", path, D);
    r.p->plans.data[0] = r.p->plans.data[r.p->plans.n - 1]; // the form of one sweep, not of parts
    r.p->plans.n = 1;
    return r;
}

// With padding along every axis.
static void check_real(const char *path, int D, const char *schedule) {
    static const PuLaunch launch = {1, 2, 1, 200, 300, 100};
    Arena *a = arena_new();
    Real r = real_program(a, path, NULL, D, schedule);
    pu_same(a, r.v, pu_algorithm(a, r.s, &r.o), r.p, launch, 1e-6);
    arena_free(a);
}

TEST_EACH(real_extents_are_right, 0, 6) {
    static const int dims[] = {24, 64, 128, 136, 256, 264};
    check_real(_i % 2 ? "stdlib/causal.attn" : "stdlib/relu.attn", dims[_i], NULL);
}

// Values too wide for one warpgroup, of queries of one head and of a group's; v in k, and beside it; rows of their own.
// Columns of q stay in registers; with three stages weights are given a step late; two are asked for. Scores that rise move shifts far.
ARENA_TEST_EACH(wide_values_are_right, 0, 7) {
    static const char *const dims[] = {
        "dim D = 576, Dv = 512; share v = k;",
        "dim D = 264;",
        "dim D = 304, Dv = 272; share v = k;",
        "dim D = 512, Dv = 512; share v = k; input q_pe: bf16[B, H, Sq, 24];"
        "input k_pe: bf16[B, 1, Sk, 24];",
        "dim D = 576, Dv = 512; share v = k;",
        "dim D = 512, Dv = 512; share v = k; input q_pe: bf16[B, H, Sq, 24];"
        "input k_pe: bf16[B, 1, Sk, 24];",
        "dim D = 576, Dv = 512; share v = k;"};
    static const char *const extra = " + dot(q_pe, k_pe)",
                             *const rising = "modify(s, b, h, i, j) = s + 0.9 * j;";
    static const PuLaunch few = {1, 4, 2, 1, 70, 69}, many = {1, 1, 1, 66, 70, 4},
                          pairs = {1, 68, 1, 1, 200, 199};
    const char *text = arena_printf(
        a,
        "attention t { %s score(q, k) = (dot(q, k)%s) * 0.05; %s mask(b, h, i, j) = j <= i;"
        "normalize(s) { let m = rowmax(s); let e = exp(s - m); return e / rowsum(e); } }",
        dims[_i], _i == 3 || _i == 5 ? extra : "", _i == 6 ? rising : "");
    PassOptions o = options();
    Diags diags = diag_list(a);
    Variant *v;
    o.split = true;
    if (_i == 4 || _i == 5) o.schedule = pu_knobs("keys=64,stages=2,producer_registers=56");
    const Stream *stream = pu_stream(a, "wide", text, 0, &v);
    TileProgram *p = pass_pipeline(a, stream, &o, &diags);
    ck_assert_ptr_nonnull(p);
    int apart = 0;
    for (int i = 0; i < p->kernels.n; i++) {
        const TileKernel *k = p->kernels.data[i];
        apart += tile_has_roles(k);
        ck_assert((tile_by_groups(k) || tile_has_roles(k)) == (k->purpose != PURPOSE_COMBINE));
    }
    ck_assert_int_eq(apart, _i == 0 || _i > 2 ? 2 : 0); // where two tiles of k fit, with v in it
    TileProgram *before = pass_algorithm(a, stream, &o, &diags);
    pu_same(a, v, before, p, few, 1e-6);
    pu_same(a, v, before, p, many, 1e-6);
    pu_same(a, v, before, p, pairs, 1e-6);
}

TEST_EACH(choices_are_right, 0, 5) {
    static const char *const choices[] = {"cluster=2", "keys=96,stages=3,after=8",
                                          "warpgroups=1,turns=0,cluster=2", "late_rescale=1",
                                          "keys=64,queries=1"};
    check_real("stdlib/softmax.attn", 64, choices[_i]);
    check_real("stdlib/causal.attn", 128, choices[_i]);
}

// Inputs with a number for each query and key are copied as keys are, where they have 16 bits and no place is looked up.
ARENA_TEST_EACH(dense_inputs_are_right, 0, 4) {
    static const struct {
        const char *clauses, *choice;
        int pipes;
    } cases[] = {
        {"input bias: bf16[B, H, Sq, Sk]; modify(s, b, h, i, j) = s + bias[b, h, i, j]; ", NULL, 4},
        {"input bias: f16[1, Sq, Sk]; input gate: bf16[Sq, Sk]; mask(b, h, i, j) = j <= i + 9; "
         "modify(s, b, h, i, j) = s * gate[i - q_offset, j] + bias[0, i, j]; ",
         "keys=64,cluster=2", 5},
        {"input bias: f32[Sq, Sk]; input far: bf16[Sq, Sk]; modify(s, b, h, i, j) = "
         "s + bias[i, j] + far[i, max(j, 1)]; ",
         NULL, 3},
        {"input bias: bf16[H, Sq, Sk]; modify(s, b, h, i, j) = s + bias[h, i, j] * bias[0, i, j]; ",
         NULL, 3}};
    static const PuLaunch launch = {2, 2, 1, 200, 300, 0};
    const char *text = arena_printf(
        a,
        "attention t { dim D = 64; score(q, k) = dot(q, k) * 0.1; %s"
        "normalize(s) { let m = rowmax(s); let e = exp(s - m); return e / rowsum(e); } }",
        cases[_i].clauses);
    PassOptions o = options();
    Diags diags = diag_list(a);
    Variant *v;
    o.dense = true;
    o.schedule = pu_knobs(cases[_i].choice);
    const Stream *s = pu_stream(a, "dense", text, 0, &v);
    TileProgram *p = pass_pipeline(a, s, &o, &diags);
    ck_assert_ptr_nonnull(p);
    int pipes = 0;
    for (TileOp *op = p->kernels.data[0]->body.first; op; op = op->next)
        pipes += op->kind == TILE_PIPE;
    ck_assert_int_eq(pipes, cases[_i].pipes);
    ck_assert_int_eq(p->kernels.data[0]->schedule.knobs.dense, pipes > 3);
    pu_same(a, v, pu_algorithm(a, s, &o), p, launch, 1e-6);
    // a launch whose inputs copies cannot take has a kernel without
    TileProgram *all = pass_program(a, s, &o, NULL, &diags);
    const TilePlan *last = &all->plans.data[all->plans.n - 1];
    ck_assert(!last->when && !all->kernels.data[last->kernels.data[0]]->schedule.knobs.dense);
    if (pipes > 3) ck_assert_int_gt(all->kernels.n, p->kernels.n + 1);
}

// The first keys of a tile do for some warpgroups: what the others would have been is poison to the
// interpreter. Offsets that are no multiple of a warpgroup's rows, windows, blocks of a cluster.
ARENA_TEST_EACH(narrow_is_right, 0, 8) {
    static const char *const paths[] = {"causal", "sliding_window", "prefix_lm",
                                        "alibi",  "retention",      "softcap",
                                        "gqa",    "relative_bias"};
    static const char *const choices[] = {"narrow=64", "warpgroups=2,keys=96,cluster=2,narrow=32",
                                          "keys=48,narrow=16,late_rescale=1,queries=1"};
    const char *path = arena_printf(a, "stdlib/%s.attn", paths[_i]);
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) check_real(path, 64, choices[i]);
}

// The text with the i-th part that counts for some rows counting for all, or NULL: there are fewer.
static const char *always(Arena *a, const char *text, int i) {
    static const char mark[] = " first 64", when[] = " when ";
    const char *at = text;
    for (; i >= 0; i--) {
        at = strstr(at, mark);
        if (!at) return NULL;
        at += sizeof mark - 1;
    }
    const char *from = strstr(at, when) + sizeof when - 1, *to = from;
    int open = 0;
    do open += (*to == '(') - (*to == ')');
    while (to++, open);
    return arena_printf(a, "%.*strue%s", (int)(from - text), text, to);
}

// Each condition is needed: where one of them holds always, the result is another or none.
ARENA_TEST(narrow_conditions_are_needed) {
    static const PuLaunch l = {1, 2, 1, 380, 380, 0};
    Real r = real_program(a, "stdlib/causal.attn", NULL, 64,
                          "warpgroups=2,keys=96,narrow=64,fixed_shift=0");
    TileProgram *before = pu_algorithm(a, r.s, &r.o);
    const char *t = tu_printed(a, r.p);
    int32_t size[64] = {0};
    pu_sizes(r.v, size, l[0], l[1], l[2], l[3], l[4], l[5]);
    TileData *x = tile_data_random(a, before, size, 3, 7);
    Diags diags = diag_list(a);
    ck_assert(tile_eval(before, x, true, &diags));
    int n = 0;
    for (const char *text; (text = always(a, t, n)); n++) {
        TileProgram *p = tile_parse(a, text, strlen(text), &diags);
        ck_assert_msg(p && tile_verify(p, &diags), "%s", text);
        TileData *y = tile_data_random(a, p, size, 3, 7);
        ck_assert_msg(!tile_eval(p, y, true, &diags) ||
                          !(tile_data_distance(before, x, p, y) < 1e-2),
                      "condition %d", n);
    }
    ck_assert_int_eq(n, 7);
}

static int32_t size_called(const TileProgram *p, const int32_t *size, const char *name) {
    for (int i = 0; i < p->sizes.n; i++)
        if (!strcmp(p->sizes.data[i].name, name)) return size[i];
    ck_abort_msg("no size %s", name);
    return 0;
}

typedef struct Shared {
    const char *path;
    PuLaunch launch;
    int parts, whole; // on three multiprocessors
} Shared;

// How many parts launches have, of which heads.
ARENA_TEST_EACH(parts_of_launches, 0, 7) {
    static const Shared all[] = {
        {"stdlib/softmax.attn", {1, 2, 1, 200, 300, 0}, 2, 1},  // a round, and one tile
        {"stdlib/softmax.attn", {1, 3, 1, 300, 300, 0}, 1, 3},  // three rounds
        {"stdlib/softmax.attn", {2, 5, 1, 100, 200, 0}, 2, 9},  // the last head of ten
        {"stdlib/softmax.attn", {1, 1, 1, 120, 300, 0}, 2, 0},  // fewer tiles
        {"stdlib/softmax.attn", {1, 1, 1, 120, 60, 0}, 1, 1},   // no more keys than a part has
        {"stdlib/causal.attn", {1, 1, 1, 120, 300, 180}, 2, 0}, // the longest takes too long
        {"stdlib/causal.attn", {1, 2, 2, 400, 400, 0}, 1, 2},
    };
    const Shared *t = &all[_i];
    PassOptions o = options();
    o.split = true;
    o.schedule = pu_knobs("keys=64,part_keys=16");
    Variant *v;
    Diags diags = diag_list(a);
    const Stream *s = pu_stream(a, t->path, NULL, 128, &v);
    TileProgram *p = pass_pipeline(a, s, &o, &diags);
    ck_assert_ptr_nonnull(p);
    int32_t size[64] = {0};
    const int *n = t->launch;
    pu_sizes(v, size, n[0], n[1], n[2], n[3], n[4], n[5]);
    tile_eval_sizes(p, size, 3);
    ck_assert_int_eq(size_called(p, size, "parts"), t->parts);
    ck_assert_int_eq(size_called(p, size, "whole_heads"), t->whole);
    pu_same(a, v,
            pu_algorithm(
                a, s, &(PassOptions){.target = o.target, .dtype = DT_BF16, .shape = SHAPE_SHORT}),
            p, t->launch, 1e-5);
}

// Few tiles have as many parts as run at once, but more than 64 only of so many keys that each is long.
ARENA_TEST(parts_of_few_tiles) {
    static const struct {
        int heads, groups, keys, parts;
    } all[] = {{32, 8, 131072, 33}, {8, 1, 4096, 16},    {8, 1, 16384, 64},
               {8, 1, 131072, 128}, {8, 1, 262144, 256}, {16, 2, 262144, 132}};
    PassOptions o = options();
    o.split = true;
    Variant *v;
    Diags diags = diag_list(a);
    const Stream *s = pu_stream(a, "stdlib/causal.attn", NULL, 128, &v);
    TileProgram *p = pass_pipeline(a, s, &o, &diags);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int32_t size[64] = {0};
        pu_sizes(v, size, 1, all[i].heads, all[i].groups, 1, all[i].keys, all[i].keys - 1);
        tile_eval_sizes(p, size, 132);
        ck_assert_int_eq(size_called(p, size, "splits"), all[i].parts);
    }
}

// Where a kernel has no parts of its own, that of few queries takes all launches it would split.
ARENA_TEST_EACH(splits_where_no_parts, 0, 3) {
    static const struct {
        const char *path, *schedule;
        int plans;
        int kernels; // none that no plan has
    } all[] = {{"stdlib/causal.attn", NULL, 5, 4},
               {"stdlib/causal.attn", "cluster=2", 4, 4},
               {"stdlib/document.attn", NULL, 3, 7}};
    const Knobs asked = pu_knobs(all[_i].schedule),
                schedules[SHAPE_COUNT] = {[SHAPE_TINY] = asked, [SHAPE_SHORT] = asked};
    PassOptions o = options();
    o.split = true;
    Diags diags = diag_list(a);
    const Stream *s = pu_stream(a, all[_i].path, NULL, 128, NULL);
    TileProgram *p = pass_program(a, s, &o, schedules, &diags);
    ck_assert_ptr_nonnull(p);
    ck_assert_int_eq(p->plans.n, all[_i].plans);
    ck_assert_int_eq(p->kernels.n, all[_i].kernels);
    ck_assert_int_eq(ex_uses(p->plans.data[0].when, SYM_SIZE, SIZE_SQ), all[_i].plans == 5);
}

static const Ex *rows_of_clusters(const Real *r) {
    return r->p->kernels.data[0]->schedule.cluster_rows;
}

// Two heads of a group, or two tiles of rows: the interpreter sees that their blocks copy the same.
// An odd number of tiles of rows, of heads, of heads a group.
ARENA_TEST(clusters_take_the_same_steps) {
    static const PuLaunch launches[] = {{1, 2, 1, 130, 300, 70}, {2, 4, 2, 257, 260, 3},
                                        {1, 2, 2, 300, 300, 0},  {1, 3, 1, 260, 200, 0},
                                        {1, 3, 3, 129, 140, 11}, {1, 4, 1, 5, 140, 135}};
    Real r = real_program(a, "stdlib/causal.attn", NULL, 64, "warpgroups=2,keys=64,cluster=2");
    ck_assert_ptr_nonnull(rows_of_clusters(&r));
    TileProgram *before = pu_algorithm(a, r.s, &r.o);
    for (size_t i = 0; i < sizeof launches / sizeof *launches; i++)
        pu_same(a, r.v, before, r.p, launches[i], 1e-6);
}

// Bounds on both sides, steps that are skipped, bounds that are looked up.
TEST_EACH(clusters_with_masks, 0, 4) {
    static const char *const paths[] = {"stdlib/sliding_window.attn", "stdlib/alibi.attn",
                                        "stdlib/prefix_lm.attn", "stdlib/mla.attn"};
    check_real(paths[_i], 64, "warpgroups=1,turns=0,keys=32,cluster=2");
}

// Heads whose masks differ do not take the same steps; without a mask all tiles do.
ARENA_TEST(clusters_of_rows) {
    static const char text[] = "import std.normalization; attention t { dim D = 64; "
                               "score(q, k) = dot(q, k); normalize(s) = softmax(s); "
                               "mask(b, h, q, k) = k <= q + 32 * h; }";
    static const PuLaunch launch = {1, 4, 1, 300, 300, 0};
    Real r = real_program(a, "t.attn", text, 64, "warpgroups=1,turns=0,keys=64,cluster=2");
    ck_assert_ptr_null(rows_of_clusters(&r));
    pu_same(a, r.v, pu_algorithm(a, r.s, &r.o), r.p, launch, 1e-6);
    r = real_program(a, "stdlib/softmax.attn", NULL, 64, "cluster=2");
    ck_assert_ptr_null(rows_of_clusters(&r));
}

static void find_division(void *ctx, const Ex *e) {
    bool divides = e->op == EX_DIV || e->op == EX_MOD;
    const Ex *pos = divides ? e->args[0] : NULL;
    *(int *)ctx |= pos && pos->op == EX_SYM && pos->sym == SYM_POS ? 1 << pos->index : 0;
}

// A map of a kernel in roles.
static bool divides_keys(const TileKernel *k) {
    int found = 0;
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; i < op->outs.n; i++) ex_visit(op->outs.data[i].body, find_division, &found);
    return found & ~(1 << tile_grid_axis(k));
}

// Keys that are a grid: where the schedule may choose, a tile is within a row of it, and its tests do not divide then.
TEST(grids) {
    static const struct {
        int width, keys;
        const char *schedule;
    } cases[] = {
        {64, 64, NULL}, {256, 128, NULL}, {48, 48, NULL}, {48, 16, "keys=16"}, {10, 0, NULL}};
    static const PuLaunch launches[] = {{1, 2, 1, 384, 384, 0}, {1, 1, 1, 70, 450, 380}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena *a = arena_new();
        const char *text = arena_printf(
            a,
            "import std.normalization; const W = %d; attention t { dim D = 64; "
            "score(q, k) = dot(q, k); normalize(s) = softmax(s); "
            "mask(b, h, q, k) = abs(q / W - k / W) <= 1 && abs(q %% W - k %% W) <= 2; }",
            cases[i].width);
        Real r = real_program(a, "t.attn", text, 64, cases[i].schedule);
        const TileKernel *k = r.p->kernels.data[0];
        if (cases[i].keys) ck_assert_int_eq(sm90_shape_of(k).keys, cases[i].keys);
        ck_assert_int_eq(divides_keys(k), !cases[i].keys);
        for (size_t l = 0; l < sizeof launches / sizeof *launches; l++)
            pu_same(a, r.v, pu_algorithm(a, r.s, &r.o), r.p, launches[l], 1e-6);
        arena_free(a);
    }
}

// Extents of the user's called as what a launch computes for itself.
ARENA_TEST(names_of_sizes) {
    static const char text[] = "import std.normalization; attention t { dim D = 64; "
                               "input a: f32[splits]; input c: f32[cluster_rows]; "
                               "score(q, k) = dot(q, k); normalize(s) = softmax(s); "
                               "mask(b, h, q, k) = k <= q; "
                               "modify(s, b, h, q, k) = s + a[3] - c[4]; }";
    static const PuLaunch launch = {1, 4, 2, 150, 130, 0};
    Real r = real_program(a, "t.attn", text, 64, "warpgroups=1,turns=0,keys=64,cluster=2");
    ck_assert_ptr_nonnull(rows_of_clusters(&r));
    pu_same(a, r.v, pu_algorithm(a, r.s, &r.o), r.p, launch, 1e-6);
}

// What the interpreter is asked for: blocks that are paired otherwise than their bounds say.
ARENA_TEST(wrong_pairs_are_found) {
    Real r = real_program(a, "stdlib/causal.attn", NULL, 64, "warpgroups=2,keys=64,cluster=2");
    ExPool *x = r.p->pool;
    const Ex **rows = &r.p->kernels.data[0]->schedule.cluster_rows;
    *rows = ex_2(x, EX_SUB, ex_i32(x, 3), *rows);
    for (int groups = 1; groups <= 2; groups++) {
        int32_t size[64] = {0};
        Diags diags = diag_list(a);
        pu_sizes(r.v, size, 1, 2, groups, 300, 300, 0);
        TileData *data = tile_data_random(a, r.p, size, 3, 7);
        ck_assert(!tile_eval(r.p, data, false, &diags));
        ck_assert_ptr_nonnull(strstr(diags.first->message, "two blocks of a cluster"));
    }
}

// Lists of tiles are each tile's own.
// Also where a mask that reads nothing is no interval: not asked for, and not by a row of the table.
ARENA_TEST_EACH(no_clusters_with_lists, 0, 2) {
    static const char *const paths[] = {"stdlib/document.attn", "tests/regress/late_rows.attn"};
    Diags diags = diag_list(a);
    PassOptions o = options();
    o.shape = SHAPE_LONG;
    const Stream *s = pu_stream(a, paths[_i], NULL, 128, NULL);
    const TileProgram *p = pass_pipeline(a, s, &o, &diags);
    ck_assert_ptr_nonnull(p);
    ck_assert_int_le(p->kernels.data[0]->schedule.cluster, 1);
    o.schedule = pu_knobs("cluster=2");
    ck_assert_ptr_null(pass_pipeline(a, s, &o, &diags));
    ck_assert_int_eq(diags.errors, 1);
}

// Schedules with other tiles, of one program: each has its own lists of tiles, and the plans choose.
ARENA_TEST(lists_of_each_class) {
    static const PuLaunch launch = {1, 2, 1, 100, 150, 50};
    const Knobs schedules[SHAPE_COUNT] = {[SHAPE_FEW] = pu_knobs("keys=64"),
                                          [SHAPE_TINY] = pu_knobs("keys=64"),
                                          [SHAPE_SHORT] = pu_knobs("keys=64"),
                                          [SHAPE_LONG] = pu_knobs("keys=96")};
    Variant *v;
    PassOptions o = options();
    Diags diags = diag_list(a);
    const Stream *s = pu_stream(a, "stdlib/document.attn", NULL, 64, &v);
    TileProgram *p = pass_program(a, s, &o, schedules, &diags), *before = pu_algorithm(a, s, &o);
    ck_assert_ptr_nonnull(p);
    pu_verify(p, p->name, PU_SHAPED);
    ck_assert_int_eq(p->plans.n, 2);
    ck_assert_int_eq(p->kernels.n, 6);
    pu_same(a, v, before, p, launch, 1e-6);
    p->plans.data[0] = p->plans.data[1]; // the long ones' too
    p->plans.n = 1;
    pu_same(a, v, before, p, launch, 1e-6);
}

// Of fewer keys than are said to do all count, if nobody says otherwise.
ARENA_TEST(narrow_is_less_than_a_tile) {
    PassOptions o = options();
    const Stream *s = pu_stream(a, "stdlib/causal.attn", NULL, 64, NULL);
    Diags diags = diag_list(a);
    o.schedule = pu_knobs("keys=48");
    TileProgram *p = pass_pipeline(a, s, &o, &diags);
    ck_assert_ptr_nonnull(p);
    ck_assert_int_eq(p->kernels.data[0]->schedule.knobs.narrow, 0);
    o.schedule = pu_knobs("keys=48,narrow=48");
    ck_assert_ptr_null(pass_pipeline(a, s, &o, &diags));
    ck_assert_int_eq(diags.errors, 1);
}

ARENA_TEST(too_many_columns_are_refused) {
    PassOptions o = options();
    Diags diags = diag_list(a);
    ck_assert_ptr_null(
        pass_pipeline(a, pu_stream(a, "stdlib/relu.attn", NULL, 4096, NULL), &o, &diags));
    ck_assert_int_eq(diags.errors, 1);
}
