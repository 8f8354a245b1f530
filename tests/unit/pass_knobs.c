// The choices of a schedule as text, the schedules that a program may have, and programs with a
// schedule for each class of launches.
#include "tests/unit/pass_util.h"

static const char causal[] = "import std.mask; import std.normalization; attention t { dim D = 64; "
                             "score(q, k) = dot(q, k) * rsqrt(D); mask(b, h, q, k) = causal(q, k); "
                             "normalize(s) = softmax(s); }";

static PassOptions options(TargetId target, ShapeClass shape) {
    return (PassOptions){.target = *target_get(target),
                         .dtype = target == TARGET_HOST ? DT_F32 : DT_BF16,
                         .shape = shape};
}

ARENA_TEST(text) {
    Diags diags = diag_list(a);
    Knobs own = {.said = knobs_of(FORM_SM90), .keys = 16}, k = pu_knobs("after=-1,keys=48,rows=7");
    ck_assert_str_eq(knobs_text(a, &k), "rows=7,keys=48,after=-1"); // in the order of knobs.def
    ck_assert(knobs_take(&own, FORM_SM90, &k, &diags));
    ck_assert(own.keys == 48 && own.after == -1 && !own.rows); // which is others' to take
    ck_assert(knobs_say(&k, KNOB_after) && !knobs_say(&k, KNOB_stages));
    Knobs has = pu_knobs("keys=48,after=-1"), others = pu_knobs("after=8,stages=2"),
          joined = knobs_joined(has, &others);
    ck_assert_str_eq(knobs_text(a, &joined), "keys=48,stages=2,after=8");
    ck_assert(knobs_hold(&joined, &others) && !knobs_hold(&has, &others));
    ck_assert(knobs_same(&has, &has) && !knobs_same(&has, &joined));
    static const char *const wrong[] = {"keys=47",   "keys=0",  "keys=272",    "after=-2",
                                        "after=129", "turns=2", "keys=-999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int errors = diags.errors;
        Knobs asked = pu_knobs(wrong[i]), before = own;
        ck_assert_msg(!knobs_take(&own, FORM_SM90, &asked, &diags), "%s", wrong[i]);
        ck_assert_int_eq(diags.errors, errors + 1);
        ck_assert(knobs_same(&own, &before));
    }
    Knobs host = pu_knobs("keys=47"), none = {0}; // another form's range
    ck_assert(knobs_take(&none, FORM_HOST, &host, &diags) && none.keys == 47);
    static const char *const malformed[] = {
        "",         "keys",           "keys=",         "=3",           "keys=3,",
        ",keys=3",  "keys=3,,rows=4", "keys=3;rows=4", "keys=1e3",     "KEYS=3",
        "keys=--3", "keys=3,keys=4",  "keys = 3",      "keys=1234567", "3=3",
        "unknown=3"};
    for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++)
        ck_assert_msg(knobs_parse(a, malformed[i], &k) != NULL, "%s", malformed[i]);
    Knobs mixed = pu_knobs("keys=48,after=-1"), wide = {.said = knobs_of(FORM_HOST), .keys = 9999};
    ck_assert(knobs_wrong(a, &mixed) && knobs_wrong(a, &wide));
    wide.keys = 47, wide.rows = 1;
    ck_assert(!knobs_wrong(a, &wide));
}

// The compiler's own comes first, the others by cycles; each is legal and says all there is to say.
static void check_candidates(TargetId target, ShapeClass shape, int D) {
    Arena *a = arena_new();
    Diags diags = diag_list(a);
    Stream *s = pu_stream(a, "t.attn", arena_strdup(a, causal), D, NULL);
    PassOptions o = options(target, shape);
    Candidates c = pass_candidates(a, s, &o);
    ck_assert_int_gt(c.n, 3);
    const TileProgram *own = pass_pipeline(a, s, &o, &diags);
    ck_assert(knobs_same(&own->kernels.data[0]->schedule.knobs, &c.data[0].knobs));
    for (int i = 0; i < c.n; i++) {
        const char *text = knobs_text(a, &c.data[i].knobs);
        ck_assert_msg(c.data[i].cycles > 0, "%s", text);
        if (i > 1) ck_assert(c.data[i - 1].cycles <= c.data[i].cycles);
        o.schedule = c.data[i].knobs;
        const TileProgram *p = pass_pipeline(a, s, &o, &diags);
        ck_assert_msg(p && !diags.errors, "%s", text);
        ck_assert_str_eq(knobs_text(a, &p->kernels.data[0]->schedule.knobs), text);
    }
    arena_free(a);
}

TEST(candidates) {
    static const int dims[] = {64, 128, 256};
    for (int i = 0; i < 3; i++) {
        check_candidates(TARGET_SM90A, SHAPE_SHORT, dims[i]);
        check_candidates(TARGET_SM90A, SHAPE_LONG, dims[i]);
    }
    check_candidates(TARGET_SM80, SHAPE_LONG, 128);
    check_candidates(TARGET_HOST, SHAPE_LONG, 64);
    static const TargetId amd[] = {TARGET_GFX90A, TARGET_GFX942, TARGET_GFX1100};
    for (int i = 0; i < 3; i++) {
        check_candidates(amd[i], SHAPE_LONG, 64);
        check_candidates(amd[i], SHAPE_SHORT, 128);
    }
}

// With few queries the kernel of parts is the one that is tuned.
TEST(few_queries) {
    static const TargetId targets[] = {TARGET_HOST, TARGET_SM80, TARGET_SM90A};
    static const int32_t few[SIZE_FREE] = {1, 2, 2, 1, 8192, 8191},
                         many[SIZE_FREE] = {8, 64, 64, 64, 64, 0};
    for (int i = 0; i < 3; i++) {
        Arena *a = arena_new();
        Stream *s = pu_stream(a, "t.attn", arena_strdup(a, causal), 64, NULL);
        PassOptions o = options(targets[i], SHAPE_LONG);
        o.split = true;
        o.sizes = few;
        Candidates c = pass_candidates(a, s, &o);
        ck_assert_int_eq(c.n, 1);
        ck_assert_int_gt(c.data[0].knobs.few_keys, 0);
        Candidates n = pass_neighbours(a, s, &o, &c.data[0].knobs);
        ck_assert_int_gt(n.n, 1);
        for (int j = 0; j < n.n; j++) ck_assert_int_gt(n.data[j].knobs.few_keys, 0);
        o.sizes = many;
        ck_assert_int_gt(pass_candidates(a, s, &o).n, 1);
        arena_free(a);
    }
}

// Choices are judged where they are taken: more keys than a tile of sm_80 has registers for, beside
// kernels for few queries that have their own.
ARENA_TEST(beside_few_queries) {
    Diags diags = diag_list(a);
    Stream *s = pu_stream(a, "t.attn", arena_strdup(a, causal), 128, NULL);
    PassOptions o = options(TARGET_SM90A, SHAPE_LONG);
    o.split = true;
    o.schedule = pu_knobs("keys=160");
    const TileProgram *p = pass_pipeline(a, s, &o, &diags);
    ck_assert(p && !diags.errors);
    ck_assert_int_eq(p->kernels.data[0]->schedule.knobs.keys, 160);
}

ARENA_TEST(neighbours) {
    Stream *s = pu_stream(a, "t.attn", arena_strdup(a, causal), 64, NULL);
    PassOptions o = options(TARGET_SM90A, SHAPE_LONG);
    Candidates c = pass_candidates(a, s, &o), n = pass_neighbours(a, s, &o, &c.data[0].knobs);
    ck_assert_int_gt(n.n, 3);
    for (int i = 0; i < n.n; i++) ck_assert(!knobs_same(&n.data[i].knobs, &c.data[0].knobs));
}

// ---- launches whose tiles are in parts

static const char full[] = "import std.normalization; attention t { dim D = 64; "
                           "score(q, k) = dot(q, k) * rsqrt(D); normalize(s) = softmax(s); }";
static const char documents[] =
    "import std.normalization; attention t { dim D = 64; input doc: i32[Sk]; "
    "score(q, k) = dot(q, k) * rsqrt(D); mask(b, h, q, k) = doc[q] == doc[k]; "
    "normalize(s) = softmax(s); }";

static const struct PartsRow {
    TargetId target;
    const char *text;
    int32_t sizes[SIZE_FREE];
    ShapeClass of;
    bool parts;
} parts_rows[] = {
    {TARGET_SM90A, full, {1, 1, 1, 8192, 8192, 0}, SHAPE_LONG, true}, // 43 tiles, or 64
    {TARGET_SM90A, full, {2, 1, 1, 4097, 4097, 0}, SHAPE_LONG, true},
    {TARGET_SM90A, full, {1, 16, 16, 2048, 2048, 0}, SHAPE_SHORT, true},
    {TARGET_SM90A, causal, {1, 2, 2, 8192, 8192, 0}, SHAPE_LONG, true},
    {TARGET_SM90A, full, {1, 16, 16, 16384, 16384, 0}, SHAPE_LONG, false},
    {TARGET_SM90A, full, {8, 16, 16, 2048, 2048, 0}, SHAPE_SHORT, false},
    {TARGET_SM90A, full, {1, 1, 1, 16, 8192, 8176}, SHAPE_SHORT, false}, // other kernels
    {TARGET_SM90A, documents, {1, 1, 1, 8192, 8192, 0}, SHAPE_LONG, false},
    {TARGET_SM80, full, {1, 1, 1, 8192, 8192, 0}, SHAPE_LONG, false},
    {TARGET_HOST, full, {1, 1, 1, 8192, 8192, 0}, SHAPE_LONG, false},
};

static PassOptions options_of(const struct PartsRow *r) {
    PassOptions o = options(r->target, shape_of(target_get(r->target), r->sizes));
    o.split = true;
    o.sizes = r->sizes;
    return o;
}

ARENA_TEST_EACH(in_parts, 0, (int)(sizeof parts_rows / sizeof *parts_rows)) {
    const struct PartsRow *r = &parts_rows[_i];
    Stream *s = pu_stream(a, "t.attn", arena_strdup(a, r->text), 64, NULL);
    PassOptions o = options_of(r);
    ck_assert(!shape_matters(&o.target) || o.shape == r->of);
    ck_assert_int_eq(pass_in_parts(s, &o), r->parts);
    o.split = false;
    ck_assert(!pass_in_parts(s, &o));
}

// What is kept for a class is what its launches run: those in parts run the short ones' kernels,
// however many keys they have.
ARENA_TEST_EACH(parts_are_short, 0, 7) {
    const struct PartsRow *r = &parts_rows[_i];
    const Knobs schedules[SHAPE_COUNT] = {[SHAPE_TINY] = pu_knobs("keys=64"),
                                          [SHAPE_SHORT] = pu_knobs("keys=64"),
                                          [SHAPE_LONG] = pu_knobs("keys=96")};
    Diags diags = diag_list(a);
    Stream *s = pu_stream(a, "t.attn", arena_strdup(a, r->text), 64, NULL);
    PassOptions o = options_of(r);
    o.sizes = NULL;
    TileProgram *p = pass_program(a, s, &o, schedules, &diags);
    ck_assert(p && !diags.errors);
    int32_t size[64] = {0};
    int i = 0, workers = target_rates(r->target)->units;
    memcpy(size, r->sizes, sizeof r->sizes);
    tile_eval_sizes(p, size, workers);
    while (p->plans.data[i].when && !tile_eval_launch(p->plans.data[i].when, size, workers)) i++;
    const TileKernel *k = p->kernels.data[p->plans.data[i].kernels.data[0]];
    if (!k->schedule.knobs.few_keys)
        ck_assert_int_eq(k->schedule.knobs.keys == 64, r->parts || r->of == SHAPE_SHORT);
}

static int plans_of(Arena *a, const Stream *s, const PassOptions *o, Knobs schedule) {
    PassOptions own = *o;
    Diags diags = diag_list(a);
    own.schedule = schedule;
    own.sizes = NULL;
    return pass_pipeline(a, s, &own, &diags)->plans.n;
}

// Where it has no parts itself, a launch's tuning takes none from others, and says nothing of them;
// where it has, that they cost more than they save may be found.
ARENA_TEST_EACH(neighbours_keep_parts, 0, 6) {
    const struct PartsRow *r = &parts_rows[_i];
    Stream *s = pu_stream(a, "t.attn", arena_strdup(a, r->text), 64, NULL);
    PassOptions o = options_of(r);
    if (r->parts) o.shape = SHAPE_SHORT;
    Knobs knobs = pass_candidates(a, s, &o).data[0].knobs;
    Candidates n = pass_neighbours(a, s, &o, &knobs);
    int keys = knobs.part_keys, others = 0, plans = plans_of(a, s, &o, knobs);
    ck_assert_int_gt(n.n, 3);
    for (int i = 0; i < n.n; i++) {
        others += n.data[i].knobs.part_keys != keys;
        ck_assert_msg(r->parts || plans_of(a, s, &o, n.data[i].knobs) == plans, "%s takes parts",
                      knobs_text(a, &n.data[i].knobs));
    }
    ck_assert_int_eq(others > 0, r->parts);
}

// Tiles in parts are no reason for small ones: nothing is counted to be far better than the row.
ARENA_TEST_EACH(parts_are_counted, 0, 4) {
    const struct PartsRow *r = &parts_rows[_i];
    Stream *s = pu_stream(a, "t.attn", arena_strdup(a, r->text), 64, NULL);
    PassOptions o = options_of(r);
    o.shape = SHAPE_SHORT;
    Candidates c = pass_candidates(a, s, &o);
    ck_assert_int_gt(c.n, 3);
    ck_assert_msg(c.data[1].cycles > 0.88 * c.data[0].cycles, "%s",
                  knobs_text(a, &c.data[1].knobs));
}

// One kernel where both classes want the same (a width with one row for both); else one for each, and the launch decides.
ARENA_TEST(classes) {
    const Knobs three = pu_knobs("keys=64,stages=3"), k64 = pu_knobs("keys=64"),
                schedules[SHAPE_COUNT] = {[SHAPE_TINY] = three, [SHAPE_SHORT] = three},
                same[SHAPE_COUNT] = {k64, k64, k64, k64};
    Variant *v;
    Diags diags = diag_list(a);
    Stream *s = pu_stream(a, "t.attn", arena_strdup(a, causal), 136, &v);
    PassOptions o = options(TARGET_SM90A, SHAPE_LONG);
    TileProgram *one = pass_program(a, s, &o, same, &diags);
    TileProgram *two = pass_program(a, s, &o, schedules, &diags);
    ck_assert(one && two && !diags.errors);
    ck_assert_int_eq(one->kernels.n, 1);
    ck_assert_int_eq(two->kernels.n, 2);
    ck_assert_int_eq(two->plans.n, 2);
    ck_assert_ptr_nonnull(two->plans.data[0].when);
    ck_assert_ptr_null(two->plans.data[1].when);
    ck_assert(knobs_hold(&two->kernels.data[1]->schedule.knobs, &three));
    ck_assert_int_ne(two->kernels.data[0]->schedule.knobs.keys, 64);
    ck_assert_str_ne(two->kernels.data[0]->name, two->kernels.data[1]->name);
    ck_assert(tile_verify(two, &diags));
    int32_t size[16] = {0};
    pu_sizes(v, size, 1, 2, 1, 70, 90, 20);
    ck_assert_double_lt(pu_error(a, v, two, size, false, 3), 1e-6);
    o.split = true; // what both classes do alike is there once
    ck_assert_int_eq(pass_program(a, s, &o, schedules, &diags)->kernels.n, 4);
    const Knobs few[SHAPE_COUNT] = {[SHAPE_SHORT] = pu_knobs("few_keys=32,few_blocks=1")};
    ck_assert_ptr_null(diags.last);
    ck_assert_int_eq(pass_program(a, s, &o, few, &diags)->kernels.n, 3); // of one class
    ck_assert(diags.last && strstr(diags.last->message, "it is left out"));
    PassOptions host = options(TARGET_HOST, SHAPE_LONG);
    const Knobs short_only[SHAPE_COUNT] = {[SHAPE_SHORT] = pu_knobs("keys=36")};
    ck_assert_int_eq(pass_program(a, s, &host, short_only, &diags)->kernels.n, 1);
    const Knobs bad[SHAPE_COUNT] = {[SHAPE_SHORT] = pu_knobs("keys=17")};
    ck_assert_ptr_null(pass_program(a, s, &o, bad, &diags));
}

TEST(class_of_launches) {
    int32_t size[SIZE_FREE];
    ShapeClass c;
    for (int i = 0; i < SHAPE_COUNT; i++) { // what a class is like is in it
        shape_typical((ShapeClass)i, size);
        ck_assert_int_eq(shape_of(target_get(TARGET_SM90A), size), i);
        ck_assert_int_eq(shape_of(target_get(TARGET_HOST), size), SHAPE_COUNT - 1);
        ck_assert(shape_find(shape_name((ShapeClass)i), &c) && c == (ShapeClass)i);
    }
    ck_assert(!shape_find("none", &c));
}
