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
            for (int invariant = 0; invariant < 2; invariant++) {
                o.invariant = invariant;
                TileProgram *p = finished(a, s, &o);
                check(a, v, p, &all[i], 1e-3, o.target.name);
                tu_read_back(a, p);
            }
            if (o.target.kind != KIND_NVPTX)
                continue; // products of warpgroups have elements of 16 bits
            o.dtype = DT_F16;
            check(a, v, finished(a, s, &o), &all[i], 1e-2, o.target.name);
            o.dtype = DT_F32;
        }
        arena_free(a);
    }
}

TEST_EACH(texts_keep_their_meaning, 0, TEXTS *LAUNCHES) {
    check_variant(NULL, texts[_i / LAUNCHES], _i % LAUNCHES);
}

// Of absorbed attention with whole pairs of tiles for each query: scores apart, in bands of rows that lie in one page each.
TEST_EACH(pairs_of_sequences_are_right, 0, 4) {
    static const int q[] = {0, 3, 3, 4, 5, 7}, k[] = {2, 7, 12, 12, 112, 172},
                     lengths[] = {101, 0, 1, 48, 60};
    static int pages[5 * 13];
    Launch l = ragged;
    l.H = 128, l.Hkv = 1, l.Tq = 8, l.Tk = 175, l.q_start = q, l.kv_start = k;
    l.max_q = _i / 2 ? 1 : 3; // the hint may be too small
    for (int i = 0; i < 5 * 13; i++) pages[i] = (7 * i + 3) % 66 - 1;
    if (_i % 2) {
        l.batch = BATCH_PAGED, l.page = 8, l.pages = 64, l.table = 13;
        l.page_table = pages, l.kv_len = lengths;
    }
    Arena *a = arena_new();
    Variant *v;
    PassOptions o = {.dtype = DT_BF16, .batch = l.batch, .page = l.page, .split = true};
    o.target = *target_get(TARGET_SM90A);
    const Stream *s = pu_stream(
        a, "t.attn",
        "attention t { dim D = 576, Dv = 512; share v = k; score(q, k) = dot(q, k) * 0.05;"
        "mask(b, h, i, j) = j <= i;"
        "normalize(s) { let m = rowmax(s); let e = exp(s - m); return e / rowsum(e); } }",
        0, &v);
    TileProgram *p = finished(a, s, &o);
    int pairs = 0;
    for (int i = 0; i < p->kernels.n; i++) pairs += p->kernels.data[i]->schedule.cluster == 2;
    ck_assert_int_eq(pairs, 2);
    check(a, v, p, &l, 2e-2, "pairs");
    tu_read_back(a, p);
    arena_free(a);
}

// A tile of keys has one page, which each key reads for itself: its document is read before anything else of the step.
TEST(documents_in_pages_as_long_as_tiles) {
    static const int lengths[] = {200, 0, 1, 390, 128};
    static const TargetId targets[] = {TARGET_SM80, TARGET_SM90A, TARGET_GFX942};
    Launch l = with(paged, starts, offsets, 17);
    l.kv_len = lengths, l.longest = 600;
    for (size_t i = 0; i < 2 * sizeof targets / sizeof *targets; i++) {
        Arena *a = arena_new();
        Variant *v;
        Stream *s = pu_stream(a, "stdlib/document.attn", NULL, 64, &v);
        l.page = i % 2 ? 128 : 64;
        PassOptions o = {.dtype = DT_F16, .batch = l.batch, .split = true, .page = l.page};
        o.target = *target_get(targets[i / 2]);
        check(a, v, finished(a, s, &o), &l, 1e-2, o.target.name);
        arena_free(a);
    }
}

// Of uneven sequences the long one is in parts: none of the others has a second one.
static void has_own_parts(const char *path, const char *text, int parts) {
    static const int queries[] = {0, 1, 3, 4, 5}, keys[] = {0, 40, 40, 770, 1026};
    Launch l = {.batch = BATCH_RAGGED, .B = 4, .H = 2, .Hkv = 1, .Tq = 5, .max_q = 2, .Tk = 1026};
    l.q_start = queries, l.kv_start = keys, l.longest = 1026;
    static const TargetId targets[] = {TARGET_SM80, TARGET_SM90A, TARGET_GFX942};
    for (size_t t = 0; t < sizeof targets / sizeof *targets; t++) {
        Arena *a = arena_new();
        Variant *v;
        Stream *s = pu_stream(a, text ? "t.attn" : path, text, text ? 0 : 8, &v);
        PassOptions o = {.dtype = DT_F32, .batch = l.batch, .split = true};
        o.target = *target_get(targets[t]);
        TileProgram *p = finished(a, s, &o);
        TileData *x = data_of(a, p, &l);
        ck_assert_int_ge(x->size[p->split.few], parts);
        check(a, v, p, &l, 1e-3, o.target.name);
        arena_free(a);
    }
}

TEST(sequences_have_parts_of_their_own) { has_own_parts("stdlib/causal.attn", NULL, 3); }

// Each block of columns of v has all parts; with so many blocks there may be only one.
TEST(blocks_of_columns_have_parts_of_their_own) {
    has_own_parts(NULL,
                  "import std.normalization; attention t { dim D = 8, Dv = 520; "
                  "score(q, k) = dot(q, k); normalize(s) = softmax(s); }",
                  1);
}

// Whether steps over full tiles take their largest score.
static bool looks_for_maxima(const TileKernel *k) {
    bool do_they = false;
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        const TileOp *in = op->kind == TILE_LOOP && op->tiles == CLASS_FULL ? op->body.first : NULL;
        for (; in; in = in->next)
            for (int i = 0; i < in->outs.n; i++) do_they |= in->outs.data[i].reduce == EX_ROWMAX;
    }
    return do_they;
}

static void spoilt(Arena *a, const TileProgram *p, const char *why) {
    Diags diags = diag_list(a);
    ck_assert(!tile_verify(p, &diags));
    ck_assert_msg(strstr(diags.first->message, why), "%s, not %s", diags.first->message, why);
}

// Of the long sequences' kernel some blocks leave, for the parts of the others: how many is the same for all sequences.
static void runs_beside_parts(Arena *a, TileProgram *p) {
    TileSchedule *s = &p->kernels.data[p->kernels.n - 1]->schedule;
    const TilePlan *plan = &p->plans.data[0];
    const Ex *blocks = s->beside;
    ck_assert_int_eq(plan->kernels.n, 3);
    ck_assert_int_eq(plan->kernels.data[0], p->kernels.n - 1);
    ck_assert_int_eq(p->kernels.data[plan->kernels.data[1]]->purpose, PURPOSE_PART);
    ck_assert(blocks);
    s->beside = ex_sym(p->pool, SYM_SIZE, SIZE_SQ, EX_I32);
    spoilt(a, p, "which each sequence has of its own");
    s->beside = blocks;
    s->persist = PERSIST_STATIC;
    spoilt(a, p, "whose blocks do not take the next tile");
    s->persist = PERSIST_DYNAMIC;
}

// Sequences of many queries have a kernel of roles, in which shifts stay, and the others that of packed rows; which it is the hint does not
// say. Between and behind them are sequences without queries, without keys, and rows of nobody.
TEST(long_sequences_have_a_kernel_of_their_own) {
    static const int queries[] = {3, 73, 74, 74, 204, 274}, keys[] = {0, 73, 300, 300, 400, 400};
    static const char *const files[] = {"stdlib/causal.attn", "stdlib/softmax.attn",
                                        "stdlib/attention_sink.attn", "stdlib/sliding_window.attn"};
    static const int hints[] = {130, 64, 1000};
    Launch l = {.batch = BATCH_RAGGED, .B = 5, .H = 4, .Hkv = 2, .Tq = 280, .Tk = 410};
    l.q_start = queries, l.kv_start = keys, l.longest = 227;
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        Arena *a = arena_new();
        Variant *v;
        Stream *s = pu_stream(a, files[f], NULL, 8, &v);
        PassOptions o = {.dtype = DT_BF16, .batch = l.batch, .split = true};
        o.target = *target_get(TARGET_SM90A);
        TileProgram *p = finished(a, s, &o);
        const TileKernel *k = p->kernels.data[p->kernels.n - 1];
        ck_assert(p->split.long_queries && k->schedule.persist && !looks_for_maxima(k));
        for (size_t i = 0; i < sizeof hints / sizeof *hints; i++) {
            l.max_q = hints[i];
            check(a, v, p, &l, 2e-2, files[f]);
        }
        tu_read_back(a, p);
        runs_beside_parts(a, p);
        arena_free(a);
    }
}

// Their keys lie in pages, of which some are shared, in any order; a tile has several, or a part of one.
TEST(long_sequences_in_pages_have_it_too) {
    enum { TABLE = 50, PAGE = 8, PAGES = 70 };
    static const int queries[] = {3, 73, 74, 74, 204, 274}, lens[] = {73, 227, 0, 100, 399};
    Launch l = {.batch = BATCH_PAGED, .B = 5, .H = 4, .Hkv = 2, .Tq = 280, .max_q = 130};
    int table[5 * TABLE];
    for (int i = 0; i < 5 * TABLE; i++) table[i] = i * 37 % PAGES;
    l.pages = PAGES, l.page = PAGE, l.table = TABLE, l.q_start = queries, l.kv_len = lens,
    l.page_table = table;
    for (int page = 0; page <= PAGE; page += PAGE) {
        Arena *a = arena_new();
        Variant *v;
        Stream *s = pu_stream(a, "stdlib/causal.attn", NULL, 8, &v);
        PassOptions o = {.dtype = DT_BF16, .batch = l.batch, .page = page, .split = true};
        o.target = *target_get(TARGET_SM90A);
        TileProgram *p = finished(a, s, &o);
        ck_assert(p->split.long_queries && p->kernels.data[p->kernels.n - 1]->schedule.persist);
        check(a, v, p, &l, 2e-2, "pages");
        tu_read_back(a, p);
        arena_free(a);
    }
}

static TileProgram *ragged_sm90(Arena *a, const char *path) {
    PassOptions o = {.dtype = DT_BF16, .batch = BATCH_RAGGED, .split = true};
    o.target = *target_get(TARGET_SM90A);
    return finished(a, pu_stream(a, path, NULL, 64, NULL), &o);
}

// Scores without q: what is stored says where a sequence's rows begin.
TEST(long_sequences_need_no_q) {
    Arena *a = arena_new();
    const TileProgram *p = ragged_sm90(a, "tests/regress/level_scores.attn");
    const TileKernel *k = p->kernels.data[p->kernels.n - 1];
    ck_assert(k->schedule.persist && k->grid[2].packed);
    arena_free(a);
}

// Where the variant rules roles out, there is no such kernel.
TEST(long_bodies_have_no_kernel_of_long_sequences) {
    Arena *a = arena_new();
    const TileProgram *p = ragged_sm90(a, "tests/regress/long_body.attn");
    for (int i = 0; i < p->kernels.n; i++)
        ck_assert(!strstr(p->kernels.data[i]->name, "long_body_long"));
    for (int i = 0; i < p->plans.n; i++)
        for (int j = 0; j < p->plans.data[i].kernels.n; j++)
            ck_assert_int_lt(p->plans.data[i].kernels.data[j], p->kernels.n);
    arena_free(a);
}

static int own_of(const TileProgram *p, const char *name) {
    for (int i = 0; i < p->sizes.n; i++)
        if (!strcmp(p->sizes.data[i].name, name)) return i;
    ck_abort_msg("no size %s", name);
}

// Where lengths even the parts, all sequences' parts are about as many as run at once, however large the pool is: there are points of the grid
// for them, and not for what sequences might have.
TEST(parts_follow_from_all_lengths) {
    static const TargetId targets[] = {TARGET_SM80, TARGET_SM90A, TARGET_GFX942};
    for (size_t t = 0; t < sizeof targets / sizeof *targets; t++) {
        Arena *a = arena_new();
        Stream *s = pu_stream(a, "stdlib/causal.attn", NULL, 64, NULL);
        PassOptions o = {.dtype = DT_BF16, .batch = BATCH_PAGED, .page = 16, .split = true};
        o.target = *target_get(targets[t]);
        TileProgram *p = finished(a, s, &o);
        int32_t *size = ARENA_ARRAY(a, int32_t, p->sizes.n);
        for (int pages = 1024; pages <= 65536; pages *= 64) {
            Launch l = {.batch = BATCH_PAGED, .B = 2, .H = 4, .Hkv = 1, .Tq = 2, .max_q = 1};
            l.pages = pages, l.page = 16, l.table = pages / 2;
            set_sizes(p, &l, size);
            tile_eval_sizes(p, size, 100);
            int room = size[own_of(p, "part_room")], evened = size[own_of(p, "evened")];
            ck_assert_int_ge(room, 100);
            ck_assert_int_eq(evened, 2);
            ck_assert_int_eq(size[own_of(p, "part_points")], room);
            ck_assert_int_ge(size[p->split.few], 16);
        }
        arena_free(a);
    }
}

// Beside a prompt decoding sequences have as many parts as without it: rows of theirs have places of workspace, not all rows of the batch.
TEST(places_are_for_rows_that_may_have_parts) {
    for (int invariant = 0; invariant < 2; invariant++) {
        Arena *a = arena_new();
        Stream *s = pu_stream(a, "stdlib/causal.attn", NULL, 64, NULL);
        PassOptions o = {.dtype = DT_BF16, .batch = BATCH_PAGED, .page = 16, .split = true};
        o.target = *target_get(TARGET_SM90A), o.invariant = invariant;
        TileProgram *p = finished(a, s, &o);
        int32_t *size = ARENA_ARRAY(a, int32_t, p->sizes.n);
        Launch l = {.batch = BATCH_PAGED, .B = 8, .H = 32, .Hkv = 8, .Tq = 8199, .max_q = 8192};
        l.pages = 65536, l.page = 16, l.table = 8192;
        set_sizes(p, &l, size);
        tile_eval_sizes(p, size, 132);
        ck_assert_int_eq(size[own_of(p, "part_rows")], 8 * (invariant ? 16 : 32));
        ck_assert_int_eq(size[p->split.few], 64);
        l.Tq = 8 * 1024, l.max_q = 1024; // all sequences are long
        set_sizes(p, &l, size);
        tile_eval_sizes(p, size, 132);
        ck_assert_int_eq(size[own_of(p, "part_rows")], invariant ? 8 * 16 : l.Tq);
        l.Tq = 8, l.max_q = 1; // all rows are fewer
        set_sizes(p, &l, size);
        tile_eval_sizes(p, size, 132);
        ck_assert_int_eq(size[own_of(p, "part_rows")], 8);
        arena_free(a);
    }
}

static const double *outputs(Arena *a, const TileProgram *p, const Launch *l) {
    Diags diags = diag_list(a);
    TileData *x = data_of(a, p, l);
    ck_assert(tile_eval(p, x, true, &diags));
    return x->tensor[pu_tensor(p, TENSOR_O, 0)];
}

// How many of the sequences have other bits when they are alone, and when they are told to have other numbers of queries.
static int differing(Arena *a, const TileProgram *p) {
    enum { B = 4, H = 2, D = 8 };
    static const int q[] = {0, 1, 4, 24, 26}, k[] = {0, 40, 2300, 2360, 4460}, max_q[] = {1, 24};
    Launch all = {
        .batch = BATCH_RAGGED, .B = B, .H = H, .Hkv = 1, .Tq = 26, .max_q = 20, .Tk = 4460};
    all.q_start = q, all.kv_start = k, all.longest = 4460;
    const double *together = outputs(a, p, &all);
    int n = 0;
    for (int b = 0; b < B; b++) {
        Launch one = all;
        one.B = 1, one.q_start = &q[b], one.kv_start = &k[b], one.max_q = max_q[b % 2];
        const double *alone = outputs(a, p, &one);
        size_t first = (size_t)(q[b] * H * D),
               bytes = (size_t)((q[b + 1] - q[b]) * H * D) * sizeof *alone;
        n += memcmp(&together[first], &alone[first], bytes) != 0;
    }
    return n;
}

TEST(invariant_sequences_have_the_same_bits_in_any_batch) {
    static const TargetId targets[] = {TARGET_HOST, TARGET_SM80, TARGET_SM90A, TARGET_GFX942};
    int others = 0;
    for (size_t t = 0; t < sizeof targets / sizeof *targets; t++) {
        Arena *a = arena_new();
        Stream *s = pu_stream(a, "stdlib/causal.attn", NULL, 8, NULL);
        PassOptions o = {.dtype = DT_BF16, .batch = BATCH_RAGGED, .split = true};
        o.target = *target_get(targets[t]);
        if (targets[t] == TARGET_HOST) o.dtype = DT_F32;
        others += differing(a, finished(a, s, &o));
        o.invariant = true;
        ck_assert_int_eq(differing(a, finished(a, s, &o)), 0);
        arena_free(a);
    }
    ck_assert_int_gt(others, 0);
}

TEST(sizes_of_all_sequences_are_known_first) {
    Arena *a = arena_new();
    Stream *s = pu_stream(a, "stdlib/causal.attn", NULL, 64, NULL);
    PassOptions o = {.dtype = DT_BF16, .batch = BATCH_RAGGED, .split = true};
    o.target = *target_get(TARGET_SM80);
    TileProgram *p = finished(a, s, &o);
    TileSize *all = &p->sizes.data[own_of(p, "all_steps")], was = *all;
    all->def = ex_sym(p->pool, SYM_SIZE, SIZE_SK, EX_I32);
    spoilt(a, p, "all_steps is of several sequences, and uses what one has of its own");
    *all = was, all->over = EX_ROWMIN;
    spoilt(a, p, "all_steps is no sum and no maximum of sequences");
    *all = was, all->among = ex_sym(p->pool, SYM_SIZE, SIZE_SQ, EX_I32);
    spoilt(a, p, "uses Sq, which each sequence has of its own");
    *all = was;
    for (int i = 0; i < p->kernels.n; i++) p->kernels.data[i]->grid[0].count = ex_i32(p->pool, 2);
    spoilt(a, p, "tiles of all sequences that are not shared, or beside a grid over b");
    arena_free(a);
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
