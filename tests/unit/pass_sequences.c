// Ragged and paged programs, from the first pass to the last, in the interpreter against the float64 reference of such batches.
#include "sequences_util.h"

static double error_of(Arena *a, const Variant *v, const TileProgram *p, const Launch *l,
                       bool round) {
    Diags diags = diag_list(a);
    TileData *x = data_of(a, p, l), *y = expected(a, v, p, x, l);
    bool ok = tile_eval(p, x, round, &diags);
    if (!ok) diag_print(&diags, stderr);
    ck_assert_msg(ok, "%s does not run", p->name);
    return tile_data_distance(p, x, p, y);
}

static void show(Arena *a, const TileProgram *p) {
    const char *t = tu_printed(a, p);
    fprintf(stderr, "%s\n", t);
}

static void check(Arena *a, const Variant *v, const TileProgram *p, const Launch *l, double may,
                  const char *what) {
    bool round = may > 1e-6;
    double d = error_of(a, v, p, l, round);
    if (!(d < may)) show(a, p);
    ck_assert_msg(d < may, "%s, %s, %s: %g apart", p->name, what, batch_name(l->batch), d);
}

static TileProgram *finished(Arena *a, const Stream *s, const PassOptions *o) {
    Diags diags = diag_list(a);
    TileProgram *p = pass_program(a, s, o, NULL, &diags);
    if (!p) diag_print(&diags, stderr);
    ck_assert_msg(p != NULL, "%s has no program", s->row->name);
    return p;
}

// After every pass, with several tiles; then as targets run it.
static void check_variant(const char *path, const char *text, int which) {
    Launch all[LAUNCHES];
    static const PuTiles tiles[] = {{4, 3}, {2, 5}};
    static const TargetId targets[] = {TARGET_HOST, TARGET_SM80, TARGET_SM90A, TARGET_GFX942};
    ck_assert_int_eq(launches(all), LAUNCHES);
    for (int i = which < 0 ? 0 : which; i < (which < 0 ? LAUNCHES : which + 1); i++) {
        Arena *a = arena_new();
        Variant *v;
        Stream *s = pu_stream(a, text ? "t.attn" : path, text, text ? 0 : 8, &v);
        PassOptions o = {.dtype = DT_F32, .batch = all[i].batch};
        o.page = all[i].batch == BATCH_PAGED && i % 2 ? all[i].page : 0;
        for (int stage = PU_BUILT; has_layout(a, s, o.batch) && stage < PU_STAGES; stage++)
            for (int t = 0; t < (stage < PU_BOUND ? 1 : 2); t++) {
                o.target = *target_get(TARGET_HOST);
                o.split = t, o.few = 2;
                TileProgram *p = pu_staged(a, s, &o, (PuStage)stage, tiles[t]);
                check(a, v, p, &all[i], 1e-6, pu_stage_name[stage]);
                tu_read_back(a, p);
            }
        for (size_t t = 0; has_layout(a, s, o.batch) && t < sizeof targets / sizeof *targets; t++) {
            o.target = *target_get(targets[t]);
            o.split = true;
            TileProgram *p = finished(a, s, &o);
            check(a, v, p, &all[i], 1e-3, o.target.name);
            tu_read_back(a, p);
        }
        arena_free(a);
    }
}

TEST_EACH(texts_keep_their_meaning, 0, TEXTS *LAUNCHES) {
    check_variant(NULL, texts[_i / LAUNCHES], _i % LAUNCHES);
}

// Of uneven sequences the long one is in parts: none of the others has a second one.
TEST(sequences_have_parts_of_their_own) {
    static const int queries[] = {0, 1, 3, 4, 5}, keys[] = {0, 40, 40, 770, 1026};
    Launch l = {.batch = BATCH_RAGGED, .B = 4, .H = 2, .Hkv = 1, .Tq = 5, .max_q = 2, .Tk = 1026};
    l.q_start = queries, l.kv_start = keys, l.longest = 1026;
    static const TargetId targets[] = {TARGET_SM80, TARGET_SM90A, TARGET_GFX942};
    for (size_t t = 0; t < sizeof targets / sizeof *targets; t++) {
        Arena *a = arena_new();
        Variant *v;
        Stream *s = pu_stream(a, "stdlib/causal.attn", NULL, 8, &v);
        PassOptions o = {.dtype = DT_F32, .batch = l.batch, .split = true};
        o.target = *target_get(targets[t]);
        TileProgram *p = finished(a, s, &o);
        TileData *x = data_of(a, p, &l);
        ck_assert_int_ge(x->size[p->split.few], 3);
        check(a, v, p, &l, 1e-3, o.target.name);
        arena_free(a);
    }
}

static void check_file(const char *path, int launch) { check_variant(path, NULL, launch); }

TEST(library_ragged) { pu_library(check_file, 1); }

TEST(library_paged) { pu_library(check_file, 5); }

// ---- what has no such layout

static void refused(const char *text, BatchLayout batch, const char *why) {
    Arena *a = arena_new();
    Diags diags = diag_list(a);
    Stream *s = pu_stream(a, "t.attn", text, 0, NULL);
    ck_assert(!pass_accepts_layout(s->row, batch, &diags));
    ck_assert_str_eq(diags.first->message, why);
    ck_assert(pass_accepts_layout(s->row, BATCH_DENSE, &diags));
    arena_free(a);
}

TEST(says_what_has_no_layout) {
    refused("attention t { dim D = 8; input bias: f32[H, Sq, Sk]; score(q, k) = dot(q, k); "
            "modify(s, b, h, "
            "i, j) = s + bias[h, i, j]; normalize(s) = s; }",
            BATCH_RAGGED, "'bias' is indexed by q_idx: in layout ragged write q_idx - q_offset");
    refused("attention t { dim D = 8; input kv_len: i32[B]; score(q, k) = dot(q, k); mask(b, h, i, "
            "j) = j < "
            "kv_len[b]; normalize(s) = s; }",
            BATCH_PAGED, "input 'kv_len' has the name of a tensor of layout paged");
    refused("attention t { dim D = 8; input x: f32[B, Sq, Sk]; score(q, k) = dot(q, k); modify(s, "
            "b, h, i, "
            "j) = s + x[b, i - q_offset, j]; normalize(s) = s; }",
            BATCH_PAGED, "'x' has B and 2 dimensions of rows: layout paged has no such tensor");
    refused("attention t { dim D = 8; input x: f32[table]; score(q, k) = dot(q, k); modify(s, b, "
            "h, i, j) = "
            "s + x[j]; normalize(s) = s; }",
            BATCH_PAGED, "size 'table' has the name of a size of layout paged");
}
