// Pass by pass through text: every pass takes the program as it is printed behind the one before, and in
// the end it is the program of the pipeline. So a step takes nothing but what is in the text.
#include "tests/unit/pass_util.h"

// Values get names anew: what was there for a while has some of the numbers, where it was not printed.
static const char *text_of(Arena *a, TileProgram *p) {
    int n = 0;
    Text t = text_new(a);
    for (int i = 0; i < p->kernels.n; i++) {
        TileKernel *k = p->kernels.data[i];
        for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
            for (int j = 0; j < op->results.n + op->carried.n; j++) {
                TileValue *v =
                    j < op->results.n ? op->results.data[j] : op->carried.data[j - op->results.n];
                v->name = arena_printf(a, "v%d", n++);
            }
    }
    tile_print(&t, p);
    return t.s;
}

static void expect_same(const char *path, const char *want, const char *is) {
    size_t at = 0;
    while (want[at] && want[at] == is[at]) at++;
    if (!want[at] && !is[at]) return;
    while (at && want[at - 1] != '\n') at--;
    ck_abort_msg("%s: by text\n%.*s\nand in one go\n%.*s", path, (int)strcspn(is + at, "\n"),
                 is + at, (int)strcspn(want + at, "\n"), want + at);
}

static void replay(const char *path, const char *text, int D, const PassOptions *o) {
    Arena *a = arena_new();
    Diags diags = diag_list(a);
    const Stream *s = pu_stream(a, path, text, D, NULL);
    TileProgram *all = pass_pipeline(a, s, o, &diags);
    ck_assert_msg(all != NULL, "%s", path);
    PassOptions built = *o;
    built.few = pass_few(o);
    built.split = built.few > 0;
    built.share = pass_shares(o, s->row->D, s->row->Dv);
    TileProgram *p = pass_build(a, s, &built);
    const PassId *order;
    for (int i = 0, n = pass_order(&order); i < n; i++) {
        const char *name = pass_get(order[i])->name;
        p = tu_read_back(a, p);
        PassOptions alone = {.target = *target_get(p->target),
                             .dtype = p->dtype,
                             .shape = o->shape,
                             .schedule = o->schedule};
        ck_assert_msg(pass_run(p, order[i], &alone, &diags), "%s: %s", path, name);
    }
    expect_same(path, text_of(a, all), text_of(a, tu_read_back(a, p)));
    arena_free(a);
}

static const struct Case {
    const char *path;
    int D;
} cases[] = {
    {"stdlib/softmax.attn", 128},
    {"stdlib/causal.attn", 64},
    {"stdlib/gqa.attn", 128},
    {"stdlib/document.attn", 64},
    {"stdlib/cosine_similarity.attn", 64},
    {"stdlib/attention_sink.attn", 128},
    {"stdlib/relative_bias.attn", 256},
    {"tests/regress/quotients.attn", 0}, // steps that cannot be done again: shifts move after all
    {"tests/regress/exact_maximum.attn", 64}, // two sweeps
};
enum { CASES = sizeof cases / sizeof *cases };

static void replay_on(TargetId target, Dtype dtype, ShapeClass shape, const char *schedule) {
    for (int i = 0; i < CASES; i++) {
        PassOptions o = {.target = *target_get(target),
                         .dtype = dtype,
                         .shape = shape,
                         .split = true,
                         .schedule = pu_knobs(schedule)};
        replay(cases[i].path, NULL, cases[i].D, &o);
    }
}

TEST_EACH(every_target, 0, TARGET_COUNT) {
    TargetId t = (TargetId)_i;
    replay_on(t, t == TARGET_HOST ? DT_F32 : DT_BF16, SHAPE_LONG, NULL);
}

TEST_EACH(every_class, 0, SHAPE_COUNT) {
    replay_on(TARGET_SM90A, DT_BF16, (ShapeClass)_i, NULL);
    replay_on(TARGET_SM90A, DT_F16, (ShapeClass)_i, "keys=64");
}

// f32 by tf32 is in the text too.
TEST(tf32) {
    PassOptions o = {.target = *target_get(TARGET_SM80), .tf32 = true, .split = true};
    replay("stdlib/causal.attn", NULL, 64, &o);
}
