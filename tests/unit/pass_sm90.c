// The Hopper schedules of the standard library: tile by tile on small tiles of odd sizes, the
// interpreter gives what it gives before scheduling, whatever the schedule. (Up to how constants
// are folded in partial and full tiles: the flat form may take a full tile for a partial one.)
#include "passes/rewrite.h"
#include "passes/schedule_sm90.h"
#include "tests/unit/pass_util.h"

#include <stdlib.h>

static const PuTiles tiles = {4, 3};

static PassOptions options(void) {
    return (PassOptions){.target = *target_get(TARGET_SM90A), .dtype = DT_BF16};
}

static TileProgram *shaped(Arena *a, const Stream *s) {
    PassOptions o = options();
    TileProgram *p = pass_build(a, s, &o);
    pass_tidy(p);
    pass_hoist(p);
    pass_fuse(p);
    pu_bind(p, tiles);
    pass_set_splits(p);
    pass_classify(p);
    pass_settle(p);
    pass_tidy(p);
    pass_hoist(p);
    pass_fuse(p);
    pu_verify(p, p->name, PU_SHAPED);
    return p;
}

typedef enum Form { CHOSEN, PLAIN, LATE, FORMS } Form;

// The whole program, or its first kernel in another form.
static TileProgram *scheduled(Arena *a, const Stream *s, Form form) {
    PassOptions o = options();
    TileProgram *p = shaped(a, s);
    Diags diags;
    diag_init(&diags, a);
    if (form == CHOSEN) {
        p->kernels.data[0]->schedule.knobs = "warpgroups=3"; // in roles: as pass_tile_sm90 says
        ck_assert(pass_schedule_sm90(p, &o, &diags));
        ck_assert(p->kernels.data[0]->body.last->kind == TILE_ROLE);
    } else {
        TileKernel *k = p->kernels.data[0];
        Sm90 sm = {.p = p, .k = k, .x = p->pool, .shape = sm90_shape_of(p, k)};
        sm.shape.late_rescale = form == LATE;
        sm.shape.after = 3;
        if (form == PLAIN || !sm90_flat(&sm)) sm90_plain(&sm);
        sm90_stores(&sm);
        sm90_homes(&sm);
    }
    p->scheduled = form == CHOSEN; // otherwise the other kernels are as they were
    pu_verify(p, p->name, PU_SHAPED);
    return p;
}

static void check_variant(const char *path, Form form) {
    Arena *a = arena_new();
    Variant *v;
    const Stream *s = pu_stream(a, path, NULL, 8, &v);
    TileProgram *before = shaped(a, s), *after = scheduled(a, s, form);
    pu_same_anywhere(a, v, before, after, 1e-6);
    arena_free(a);
}

static void check_one(const char *path, int form) { check_variant(path, (Form)form); }
static void check_all(Form form) { pu_library(check_one, (int)form); }

START_TEST(every_form_is_right) { check_all((Form)_i); }
END_TEST

// The extents that are chosen, with padding along every axis.
static void check_real(const char *path, int D, const char *schedule) {
    static const PuLaunch launch = {1, 2, 1, 200, 300, 100};
    Arena *a = arena_new();
    Variant *v;
    PassOptions o = options();
    o.schedule = schedule;
    Diags diags;
    diag_init(&diags, a);
    const Stream *s = pu_stream(a, path, NULL, D, &v);
    TileProgram *p = pass_pipeline(a, s, &o, &diags);
    ck_assert_msg(p != NULL, "%s at D=%d", path, D);
    p->plans.data[0] = p->plans.data[p->plans.n - 1]; // the form of one sweep, not of parts
    p->plans.n = 1;
    pu_same(a, v, pass_algorithm(a, s, &o), p, launch, 1e-6);
    arena_free(a);
}

START_TEST(real_extents_are_right) {
    static const int dims[] = {24, 64, 128, 136, 256, 264};
    check_real(_i % 2 ? "stdlib/causal.attn" : "stdlib/relu.attn", dims[_i], NULL);
}
END_TEST

START_TEST(choices_are_right) {
    static const char *const choices[] = {"cluster=2", "keys=96,stages=3,after=8",
                                          "warpgroups=1,turns=0,cluster=2", "late_rescale=1"};
    check_real("stdlib/softmax.attn", 64, choices[_i]);
    check_real("stdlib/causal.attn", 128, choices[_i]);
}
END_TEST

// Schedules with other tiles, of one program: each has its own lists of tiles, and the plans choose.
START_TEST(lists_of_each_class) {
    static const PuLaunch launch = {1, 2, 1, 100, 150, 50};
    static const char *const schedules[SHAPE_COUNT] = {
        [SHAPE_SHORT] = "keys=64,cluster=1", [SHAPE_LONG] = "keys=96,cluster=2"};
    Arena *a = arena_new();
    Variant *v;
    PassOptions o = options();
    Diags diags;
    diag_init(&diags, a);
    const Stream *s = pu_stream(a, "stdlib/document.attn", NULL, 64, &v);
    TileProgram *p = pass_program(a, s, &o, schedules, &diags), *before = pass_algorithm(a, s, &o);
    ck_assert_ptr_nonnull(p);
    pu_verify(p, p->name, PU_SHAPED);
    ck_assert_int_eq(p->plans.n, 2);
    ck_assert_int_eq(p->kernels.n, 6);
    pu_same(a, v, before, p, launch, 1e-6);
    p->plans.data[0] = p->plans.data[1]; // the long ones' too
    p->plans.n = 1;
    pu_same(a, v, before, p, launch, 1e-6);
    arena_free(a);
}
END_TEST

START_TEST(too_many_columns_are_refused) {
    Arena *a = arena_new();
    Variant *v;
    PassOptions o = options();
    Diags diags;
    diag_init(&diags, a);
    ck_assert_ptr_null(
        pass_pipeline(a, pu_stream(a, "stdlib/relu.attn", NULL, 4096, &v), &o, &diags));
    ck_assert_int_eq(diags.errors, 1);
    arena_free(a);
}
END_TEST

Suite *pass_sm90_suite(void);
Suite *pass_sm90_suite(void) {
    Suite *s = suite_create("pass_sm90");
    TCase *t = tcase_create("stdlib");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, every_form_is_right, 0, FORMS);
    tcase_add_loop_test(t, real_extents_are_right, 0, 6);
    tcase_add_loop_test(t, choices_are_right, 0, 4);
    tcase_add_test(t, lists_of_each_class);
    tcase_add_test(t, too_many_columns_are_refused);
    suite_add_tcase(s, t);
    return s;
}
