// Sums of rows in parts: what the Hopper schedule marks, and that the verifier knows wrong marks.
#include "pass_util.h"

static const char *schedule(Arena *a) {
    Variant *v;
    Diags diags;
    Text t;
    diag_init(&diags, a);
    text_init(&t, a);
    PassOptions o = {.target = *target_get(TARGET_SM90A), .dtype = DT_BF16};
    const Stream *s = pu_stream(a, "stdlib/causal.attn", NULL, 64, &v);
    TileProgram *p = pass_pipeline(a, s, &o, &diags);
    ck_assert_ptr_nonnull(p);
    tile_print(&t, p);
    return t.s;
}

// With the first `what` made `by`, whether the text is still a program.
static bool holds(Arena *a, const char *text, const char *what, const char *by) {
    const char *at = strstr(text, what);
    ck_assert_msg(at != NULL, "no %s", what);
    const char *changed =
        arena_printf(a, "%.*s%s%s", (int)(at - text), text, by, at + strlen(what));
    Diags diags;
    diag_init(&diags, a);
    TileProgram *p = tile_parse(a, changed, strlen(changed), &diags);
    return p && tile_verify(p, &diags);
}

START_TEST(marks_that_cannot_be_are_refused) {
    Arena *a = arena_new();
    const char *text = schedule(a);
    static const char l[] = "%l_tile: f32[M] in fragment parts",
                      m[] = "%m_tile: f32[M] in fragment";
    ck_assert(holds(a, text, l, l)); // as it is: carried sums and what they are made of
    ck_assert(!holds(a, text, l, "%l_tile: f32[M] in fragment"));  // half a sum
    ck_assert(!holds(a, text, m, arena_printf(a, "%s parts", m))); // a maximum
    ck_assert(!holds(a, text, "%l_0: f32[M] in fragment parts", "%l_0: f32[M] in fragment"));
    ck_assert(!holds(a, text, "%factor: f32[M] in fragment", "%factor: f32[M] in fragment parts"));
    arena_free(a);
}
END_TEST

Suite *tile_parts_suite(void);
Suite *tile_parts_suite(void) {
    Suite *s = suite_create("tile_parts");
    TCase *t = tcase_create("marks");
    tcase_add_test(t, marks_that_cannot_be_are_refused);
    suite_add_tcase(s, t);
    return s;
}
