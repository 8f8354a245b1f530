// Building, cloning and copying tile programs; names; rounding; hazards that only moving operations
// about makes; and texts that are no programs.
#include "tests/support/random.h"
#include "tests/unit/tile_util.h"

static const char *const scale_text =
    "program scale algorithm target host dtype f32 dims D=4 Dv=4\n"
    "size splits = min(16, (workers + B))\n"
    "tensor q: f32[B, H, Sq, 4] q\n"
    "tensor o: f32[B, H, Sq, 4] o\n"
    "plan fwd\n"
    "\n"
    "kernel fwd\n"
    "  axis M: Sq tile 2\n"
    "  axis N: Sk tile 2\n"
    "  axis D: 4 whole tile 4\n"
    "  grid b: B\n"
    "  grid h: H\n"
    "  grid M: ((Sq + 1) / 2)\n"
    "  mask true\n"
    "  {\n"
    "    %q: f32[M, D] = load q[b, h, M:, D:]\n"
    "    %x9: f32[M, D] = loop N from 0 to Sk carry (%x: f32[M, D] = %q) {\n"
    "      %x1: f32[M, D] = map [M, D] (%x, %q) { (%x + %q) }\n"
    "      yield %x1\n"
    "    }\n"
    "    store o[b, h, M:, D:] = %x9\n"
    "  }\n";

static TileProgram *parse(Arena *a, const char *text, Diags *diags) {
    *diags = diag_list(a);
    return tile_parse(a, text, strlen(text), diags);
}

ARENA_TEST(names_and_axes_are_canonical) {
    ExPool *x = ex_pool(a);
    TileProgram *p = tile_program(a, x, "p");
    ck_assert_int_eq(p->sizes.n, SIZE_FREE);
    TileKernel *k = tile_kernel(p, "k", PURPOSE_ATTENTION);
    for (const char *n = "A\0B\0C\0"; *n; n += 2) tile_axis(k, n, ex_i32(x, 4), true);
    const uint8_t axes[] = {2, 0, 2};
    TileValue *v = tile_value(p, k, "s", DT_F32, axes, 3);
    ck_assert_int_eq(v->rank, 2);
    ck_assert(v->axis[0] == 0 && v->axis[1] == 2);
    ck_assert(tile_has_axis(v, 2) && !tile_has_axis(v, 1));
    ck_assert_str_eq(v->name, "s");
    ck_assert_str_eq(tile_value(p, k, "s", DT_F32, axes, 0)->name, "s1");
    ck_assert_str_eq(tile_value(p, k, "s1", DT_F32, axes, 0)->name, "s2");
    ck_assert_str_eq(tile_value(p, k, "s9", DT_F32, axes, 0)->name, "s9");
    ck_assert_str_eq(tile_value(p, k, "s9", DT_F32, axes, 0)->name, "s3");
    ck_assert_int_eq(k->nvalues, 5);
}

ARENA_TEST(ops_are_linked) {
    TileProgram *p = tile_program(a, ex_pool(a), "p");
    TileKernel *k = tile_kernel(p, "k", PURPOSE_ATTENTION);
    Span none = {0};
    TileOp *x = tile_op(p, k, &k->body, TILE_COMMIT, none),
           *y = tile_op(p, k, &k->body, TILE_BARRIER, none);
    TileOp *z = tile_op(p, k, NULL, TILE_WAIT, none);
    tile_insert_before(y, z);
    ck_assert(k->body.first == x && x->next == z && z->next == y && y->prev == z &&
              k->body.last == y);
    tile_unlink(x);
    ck_assert(k->body.first == z && !z->prev && !x->block);
    tile_unlink(y);
    ck_assert(k->body.last == z && !z->next);
    tile_append(&k->body, x);
    ck_assert(tile_next(&k->body, NULL) == z && tile_next(&k->body, z) == x &&
              !tile_next(&k->body, x));
}

static const Ex *twice(void *ctx, const Ex *e) {
    ExPool *x = ctx;
    return e->type == EX_F32 ? ex_2(x, EX_MUL, ex_f32(x, 2), e) : e;
}

ARENA_TEST(clones_have_values_of_their_own) {
    Diags diags;
    TileProgram *p = parse(a, scale_text, &diags);
    TileKernel *k = p->kernels.data[0];
    TileOp *loop = tu_first(&k->body, TILE_LOOP), *store = tu_first(&k->body, TILE_STORE);
    TileOp *clone = tile_clone(p, k, loop, twice, p->pool);
    tile_insert_before(store, clone);
    tile_replace(&k->body, loop->results.data[0], clone->results.data[0]);
    clone->args.data[0] = loop->results.data[0]; // replaced with the others
    ck_assert(tile_verify(p, &diags));
    const char *text = tu_printed(a, p);
    ck_assert_ptr_nonnull(strstr(text, "carry (%x2: f32[M, D] = %x9)"));
    ck_assert_ptr_nonnull(strstr(text, "{ (2.0 * (%"));
    TileProgram *q = parse(a, text, &diags);
    ck_assert_ptr_nonnull(q);
    ck_assert_str_eq(tu_printed(a, q), text);
}

TEST(a_copy_is_independent) {
    Arena *a = arena_new(), *other = arena_new();
    Diags diags;
    TileProgram *p = parse(a, scale_text, &diags), *q = tile_copy(other, p);
    tile_unlink(tu_first(&p->kernels.data[0]->body, TILE_STORE));
    p->tensors.data[0].name = "gone";
    p->sizes.data[SIZE_FREE].name = "gone";
    ck_assert_str_eq(tu_printed(a, q), scale_text);
    diags = diag_list(a);
    ck_assert(tile_verify(q, &diags));
    uint8_t none = 0;
    ck_assert_str_ne(tile_value(q, q->kernels.data[0], "x1", DT_F32, &none, 0)->name, "x1");
    arena_free(other);
    arena_free(a);
}

ARENA_TEST(runs_and_distances) {
    Diags diags;
    TileProgram *p = parse(a, scale_text, &diags);
    int32_t z[SIZE_FREE + 1] = {1, 2, 1, 3, 4, 0, -1};
    TileData *x = tile_data_random(a, p, z, 4, 7), *y = tile_data_random(a, p, z, 4, 7);
    ck_assert_int_eq(x->size[SIZE_FREE], 5);
    ck_assert(tile_eval(p, x, false, &diags));
    for (int i = 0; i < 1 * 2 * 3 * 4; i++) // 1 + 1 + 1 + 1 + 1
        ck_assert(fabs(x->tensor[1][i] - 5 * x->tensor[0][i]) < 1e-12);
    ck_assert(isinf(tile_data_distance(p, x, p, y))); // y has not run: NaN
    ck_assert(tile_eval(p, y, true, &diags));
    ck_assert(tile_data_distance(p, x, p, y) < 1e-5);
    y->tensor[1][5] += 1;
    ck_assert(tile_data_distance(p, x, p, y) > 1e-2);
}

TEST(element_types_round_to_even) {
    ck_assert(dtype_round(DT_BF16, 1 + 0x1p-8) == 1 &&
              dtype_round(DT_BF16, 1 + 0x3p-8) == 1 + 0x1p-6);
    ck_assert(dtype_round(DT_BF16, 0x1.ffp127) == INFINITY &&
              dtype_round(DT_BF16, 0x1.fep127) == 0x1.fep127);
    ck_assert(dtype_round(DT_F16, 65519) == 65504 && dtype_round(DT_F16, -65520) == -INFINITY);
    ck_assert(dtype_round(DT_F16, 0x1p-24) == 0x1p-24 && dtype_round(DT_F16, 0x1p-25) == 0);
    ck_assert(dtype_round(DT_F16, 0x1.8p-24) == 0x1p-23);
    ck_assert(dtype_round(DT_F32, 0.1) == (double)0.1f);
    ck_assert(isnan(dtype_round(DT_F16, NAN)) && dtype_round(DT_BF16, -INFINITY) == -INFINITY);
}

TEST(targets_are_found_by_name) {
    for (int i = 0; i < TARGET_COUNT; i++) {
        TargetId id = TARGET_COUNT;
        ck_assert(target_find(target_get((TargetId)i)->name, &id));
        ck_assert_int_eq(id, i);
        ck_assert_int_gt(target_get(id)->shared_bytes, 0);
    }
    TargetId id;
    ck_assert(!target_find("sm_1", &id));
    ck_assert_int_eq(target_get(TARGET_SM80)->shared_bytes, 166912);
    ck_assert_int_eq(target_get(TARGET_SM90A)->shared_bytes, 232448);
}

// ---- hazards that text edits do not make: operations moved

static const char *const copies_text =
    "program copies scheduled target sm_80 dtype f32 dims D=4 Dv=4\n"
    "tensor k: f32[B, Hkv, Sk, 4] k\n"
    "tensor o: f32[B, Hkv, Sk, 4] o\n"
    "plan fwd\n"
    "kernel fwd\n"
    "  axis N: Sk tile 2\n"
    "  axis D: 4 whole tile 4\n"
    "  axis R: 1 tile 1\n"
    "  grid b: B\n"
    "  mask true\n"
    "  {\n"
    "    %kb: f32[N, D] in shared = alloc\n"
    "    loop N from 0 to ((Sk + 1) / 2) {\n"
    "      barrier\n"
    "      copy k[b, 0, N:, D:] -> %kb[0]\n"
    "      commit\n"
    "      wait 0\n"
    "      barrier\n"
    "      %k: f32[N, D] = view %kb[0]\n"
    "      store o[b, 0, N:, D:] = %k\n"
    "      yield\n"
    "    }\n"
    "  }\n";

static const char *run_copies(Arena *a, TileProgram *p, Diags *diags) {
    int32_t z[SIZE_FREE] = {1, 1, 1, 5, 5, 0};
    *diags = diag_list(a);
    TileData *d = tile_data_random(a, p, z, 4, 1);
    return tile_eval(p, d, true, diags) ? NULL : diags->first->message;
}

ARENA_TEST(a_stage_is_not_overwritten_while_read) {
    Diags diags;
    TileProgram *p = parse(a, copies_text, &diags);
    ck_assert_msg(p != NULL, "%s", diags.first ? diags.first->message : "");
    ck_assert_ptr_null(run_copies(a, p, &diags));
    tile_unlink(tu_first(&p->kernels.data[0]->body, TILE_BARRIER));
    const char *said = run_copies(a, p, &diags);
    ck_assert_ptr_nonnull(said);
    ck_assert_ptr_nonnull(strstr(said, "without a barrier since that stage was read"));
}

ARENA_TEST(a_view_does_not_outlive_its_copy) {
    Diags diags;
    TileProgram *p = parse(a, copies_text, &diags);
    TileBlock *b = &p->kernels.data[0]->body;
    TileOp *store = tu_first(b, TILE_STORE), *copy = tu_first(b, TILE_COPY);
    tile_insert_before(store, tile_clone(p, p->kernels.data[0], copy, NULL, NULL));
    const char *said = run_copies(a, p, &diags);
    ck_assert_ptr_nonnull(said);
    ck_assert_ptr_nonnull(strstr(said, "after a later copy into its stage began"));
}

ARENA_TEST(an_order_that_cannot_be_right_is_refused_unrun) {
    Diags diags;
    TileProgram *p = parse(a, copies_text, &diags);
    tile_unlink(tu_first(&p->kernels.data[0]->body, TILE_COPY));
    ck_assert(!tile_verify(p, &diags));
    ck_assert_ptr_nonnull(strstr(diags.first->message, "nothing is copied into %kb before"));
    diags = diag_list(a);
    p = parse(a, copies_text, &diags);
    tile_unlink(tu_first(&p->kernels.data[0]->body, TILE_WAIT));
    ck_assert(!tile_verify(p, &diags));
    ck_assert_ptr_nonnull(strstr(diags.first->message, "the copy into %kb is not waited for"));
}

ARENA_TEST(a_load_said_to_be_inside_is) {
    Diags diags;
    TileProgram *p = parse(a,
                           "program p algorithm target host dtype f32 dims D=1 Dv=1\n"
                           "tensor o: f32[Sq] o\n"
                           "tensor x: f32[Sq] input 0\n"
                           "plan k\n"
                           "kernel k axis M: Sq tile 4 grid M: ((Sq + 3) / 4) mask true {\n"
                           "  %v: f32[M] = map [M] () { x![M.pos] } store o[M:] = %v }\n",
                           &diags);
    ck_assert_msg(p != NULL, "%s", diags.first ? diags.first->message : "");
    int32_t z[SIZE_FREE] = {1, 1, 1, 4, 4, 0};
    ck_assert(tile_eval(p, tile_data_random(a, p, z, 1, 1), true, &diags));
    z[SIZE_SQ] = 5;
    ck_assert(!tile_eval(p, tile_data_random(a, p, z, 1, 1), true, &diags));
    ck_assert_ptr_nonnull(
        strstr(diags.first->message, "index 0 of 'x' is 5, said to be inside 0..4"));
}

ARENA_TEST(plans_adds_and_several_kernels) {
    Diags diags;
    TileProgram *p = parse(
        a,
        "program p algorithm target host dtype f32 dims D=1 Dv=1\n"
        "size splits = max(1, (workers / B))\n"
        "tensor q: f32[Sq] q\n"
        "tensor o: f32[Sq] o\n"
        "tensor part: f32[splits, Sq] work 0\n"
        "plan one when (splits == 1)\n"
        "plan parts, combine\n"
        "kernel one axis M: Sq grid M: 1 mask true { %x: f32[M] = load q[M:] store o[M:] = %x }\n"
        "kernel parts axis M: Sq axis S: splits tile 1 grid S: splits grid M: 1 mask true {\n"
        "  %x: f32[M] = load q[M:] store part[S.tile, M:] = %x }\n"
        "kernel combine axis M: Sq axis S: splits tile 1 grid S: splits grid M: 1 mask true {\n"
        "  %x: f32[M] = load part[S.tile, M:] store o[M:] += %x }\n",
        &diags);
    ck_assert_msg(p != NULL, "%s", diags.first ? diags.first->message : "");
    int32_t z[SIZE_FREE + 1] = {1, 1, 1, 3, 3, 0, 0};
    TileData *d = tile_data_random(a, p, z, 4, 1);
    ck_assert(tile_eval(p, d, true, &diags));
    ck_assert(d->tensor[1][2] == (double)(float)(4 * d->tensor[0][2]));
    d = tile_data_random(a, p, z, 1, 1);
    ck_assert(tile_eval(p, d, true, &diags));
    ck_assert(d->tensor[1][2] == d->tensor[0][2]);
}

// ---- texts that are no programs

static void try_text(const char *text, size_t n) {
    Arena *a = arena_new();
    Diags diags = diag_list(a);
    TileProgram *p = tile_parse(a, text, n, &diags);
    ck_assert(p || diags.errors > 0);
    if (p) {
        const char *once = tu_printed(a, p);
        TileProgram *q = tile_parse(a, once, strlen(once), &diags);
        ck_assert_msg(q != NULL, "not read back: %s", once);
        ck_assert_str_eq(tu_printed(a, q), once);
        tile_verify(p, &diags);
    }
    arena_free(a);
}

static uint32_t step(uint32_t *state) {
    return *state = *state * 1664525u + 1013904223u, *state >> 8;
}

TEST(damaged_texts_are_refused_or_read) {
    const char *const from[] = {scale_text, copies_text};
    const char *const bits[] = {"(",
                                ")",
                                "[",
                                "{",
                                "}",
                                "%",
                                ":",
                                " loop N from 0 to t {",
                                "999999999999",
                                "-",
                                "M",
                                "q",
                                "@",
                                "\xff",
                                "=",
                                ",",
                                "//",
                                "f32[M]",
                                "t",
                                ".pos"};
    uint32_t state = 1;
    char buffer[4096];
    for (int i = 0; i < 4000; i++) {
        const char *text = from[i % 2];
        size_t n = strlen(text), at = step(&state) % n, cut = step(&state) % 12;
        const char *bit = bits[step(&state) % (sizeof bits / sizeof *bits)];
        if (cut > n - at) cut = n - at;
        int made = snprintf(buffer, sizeof buffer, "%.*s%s%s", (int)at, text,
                            step(&state) % 2 ? bit : "", text + at + cut);
        try_text(buffer, (size_t)made);
    }
    for (size_t n = 0; n < strlen(scale_text); n += 3) try_text(scale_text, n);
}

ARENA_TEST(deep_and_long_texts_end) {
    Text t = text_new(a);
    const char *head =
        "program p algorithm target host dtype f32 dims D=1 Dv=1 plan k kernel k axis N: Sk mask ";
    text_puts(&t, head);
    for (int i = 0; i < 100000; i++) text_puts(&t, "(1 + ");
    try_text(t.s, t.n);
    t = text_new(a);
    text_printf(&t, "%strue {", head);
    for (int i = 0; i < 100000; i++) text_puts(&t, "loop N from 0 to 1 {");
    try_text(t.s, t.n);
    t = text_new(a);
    text_printf(&t, "%strue {", head);
    for (int i = 0; i < 100000; i++) text_puts(&t, "commit\n");
    try_text(t.s, t.n);
    t = text_new(a);
    text_printf(&t, "%strue {", head);
    for (int i = 0; i < 20000; i++) text_printf(&t, "%%x%d: f32[] = map [] () { 1.0 }\n", i);
    try_text(t.s, t.n);
    try_text("program\0p", 9);
    try_text("", 0);
}
