// Kernels of recurrences, made of their chunked forms, against the reference's recurrence: the algorithm and the host's
// schedules in the interpreter, in float64, and the host's code in f32; the library's recurrences and random ones, lengths
// around the chunks' and none, with state0 and without.
#include "codegen_util.h"
#include "ir/read.h"
#include "pass_util.h"
#include "rec_util.h"

typedef struct Shape {
    int32_t size[RSIZE_FREE];
} Shape;

static const char *library_source(Arena *a, const char *name) {
    void *text;
    size_t n;
    const char *why = read_file(arena_printf(a, "stdlib/%s.attn", name), 1 << 20, &text, &n);
    ck_assert_msg(!why, "%s: %s", name, why);
    char *copy = arena_strndup(a, text, n);
    free(text);
    return copy;
}

// The case's tensors as a program's.
static TileData *tensors(const RuCase *x, const TileProgram *p) {
    TileData *d = tile_data_random(x->a, p, x->size, 4, 1);
    for (int i = 0; i < p->tensors.n; i++) {
        const TileTensor *t = &p->tensors.data[i];
        size_t bytes = sizeof(double) * (size_t)tile_tensor_elements(t, d->size);
        const void *from = t->role == TENSOR_Q        ? x->q
                           : t->role == TENSOR_K      ? x->k
                           : t->role == TENSOR_V      ? x->values
                           : t->role == TENSOR_STATE0 ? x->state0
                           : t->role == TENSOR_INPUT  ? x->inputs[t->index]
                                                      : NULL;
        if (t->role == TENSOR_STATE0 && !from) memset(d->tensor[i], 0, bytes);
        if (from && bytes) memcpy(d->tensor[i], from, bytes);
    }
    return d;
}

static int tensor_of(const TileProgram *p, TensorRole role) {
    int i = 0;
    while (p->tensors.data[i].role != role) i++;
    return i;
}

// o relative to the largest of all, which later positions are made of.
static void check(const RuCase *x, const TileProgram *p, const TileData *d, const char *source,
                  const char *what, double bound) {
    int o = tensor_of(p, TENSOR_O), state = tensor_of(p, TENSOR_STATE);
    const char *name = arena_printf(x->a, "%s: o", what);
    ru_alike(name, source, d->tensor[o], x->o, tile_tensor_elements(&p->tensors.data[o], d->size),
             bound);
    name = arena_printf(x->a, "%s: state", what);
    ru_alike(name, source, d->tensor[state], x->state,
             tile_tensor_elements(&p->tensors.data[state], d->size), bound);
}

static void interpret(const RuCase *x, const TileProgram *p, const char *source, const char *what) {
    Diags diags;
    diag_init(&diags, x->a);
    TileData *d = tensors(x, p);
    bool ok = tile_eval(p, d, false, &diags);
    if (!ok) diag_print(&diags, stderr);
    ck_assert_msg(ok, "%s", source);
    check(x, p, d, source, what, 1e-6);
}

static TileProgram *scheduled(RuCase *x, PassOptions *o, const char *knobs) {
    Diags diags;
    diag_init(&diags, x->a);
    o->schedule = pu_knobs(knobs);
    o->dtype = DT_F32;
    TileProgram *p = pass_recurrence(x->a, x->c, o, &diags);
    if (!p) diag_print(&diags, stderr);
    ck_assert(p != NULL);
    return p;
}

// Its text reads back as the same text.
static void same_text(Arena *a, const TileProgram *p) {
    Text once, twice;
    Diags diags;
    diag_init(&diags, a);
    text_init(&once, a);
    text_init(&twice, a);
    tile_print(&once, p);
    TileProgram *read = tile_parse(a, once.s, once.n, &diags);
    if (!read) diag_print(&diags, stderr);
    ck_assert(read && read->recurrence && tile_verify(read, &diags));
    tile_print(&twice, read);
    ck_assert_str_eq(once.s, twice.s);
}

static bool tame(const RuCase *x) { // f32 holds it
    const int32_t *n = x->size;
    int64_t heads = (int64_t)n[RSIZE_B] * n[RSIZE_H];
    double o = ru_largest(x->o, heads * n[RSIZE_S] * x->v->Dv),
           s = ru_largest(x->state, heads * x->v->D * x->v->Dv);
    return o < 1e12 && s < 1e12;
}

static void try(const char *source, const int32_t size[RSIZE_FREE], uint32_t seed, bool slow,
                double bound) {
    static const char *const chunks[] = {NULL, "keys=8", "keys=16", "keys=24"};
    static const int lanes[] = {4, 8, 16};
    RuCase x = {.a = arena_new()};
    ru_compile(&x, source);
    ru_fill(&x, size, seed, ru_draw(&seed, 3) > 0);
    ru_reference(&x);
    PassOptions o = {.dtype = DT_F32};
    int most = lanes[ru_draw(&seed, 3)];
    cu_target(4, &o.target);
    if (slow && size[RSIZE_S]) {
        TileProgram *p = pass_recurrence_algorithm(x.a, x.c, &o);
        same_text(x.a, p);
        interpret(&x, p, source, "algorithm");
    }
    if (cu_target(most, &o.target)) {
        const char *knobs = chunks[ru_draw(&seed, 4)];
        TileProgram *p = scheduled(&x, &o, knobs);
        if (slow) interpret(&x, p, source, "scheduled");
        TileData *d = tensors(&x, p);
        cu_run(x.a, p, d, most, seed % 2);
        if (tame(&x)) check(&x, p, d, source, "code", bound);
    }
    arena_free(x.a);
}

START_TEST(the_library) {
    static const char *const names[] = {"linear_attention", "retnet", "mamba2", "gla",
                                        "gated_deltanet",   "kda",    "rwkv6",  "rwkv7"};
    static const int lengths[] = {0, 1, 70, 128};
    Arena *a = arena_new();
    for (int i = 0; i < 4; i++) {
        int32_t size[] = {1 + i % 2, 4, 2, 1, 4, lengths[i]};
        try(library_source(a, names[_i]), size, 7 + (uint32_t)i, false, 1e-5);
    }
    arena_free(a);
}
END_TEST

START_TEST(random_ones) {
    static const int lengths[] = {0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 65, 130, 300};
    static const int widths[] = {1, 2, 3, 5, 8, 16, 17, 33, 80, 96};
    uint32_t start = 5000 + (uint32_t)_i, *seed = &start;
    Arena *a = arena_new();
    bool slow = _i % 3 == 0;
    int D = widths[ru_draw(seed, slow ? 7 : 10)], Dv = widths[ru_draw(seed, slow ? 7 : 9)],
        H = 1 << ru_draw(seed, 3);
    int S = lengths[ru_draw(seed, slow ? 11 : 14)];
    int32_t size[] = {1 + (int)ru_draw(seed, 2), H, H >> ru_draw(seed, 2),
                      H >> ru_draw(seed, 3),     H, S};
    for (int i = RSIZE_HQ; i <= RSIZE_HK; i++) size[i] = size[i] ? size[i] : 1;
    try(ru_random_source(a, D, Dv, seed), size, start, slow, 2e-5);
    arena_free(a);
}
END_TEST

START_TEST(other_targets_have_none) {
    RuCase x = {.a = arena_new()};
    ru_compile(&x, "recurrence r { dim D = 8; }");
    for (int t = 0; t < TARGET_COUNT; t++) {
        Diags diags;
        diag_init(&diags, x.a);
        PassOptions o = {.target = *target_get((TargetId)t), .dtype = DT_F32};
        if (o.target.kind == KIND_HOST) continue;
        ck_assert_ptr_null(pass_recurrence(x.a, x.c, &o, &diags));
        ck_assert_ptr_nonnull(strstr(diags.first->message, "has no kernels of recurrences yet"));
    }
    arena_free(x.a);
}
END_TEST

Suite *codegen_recur_suite(void);
Suite *codegen_recur_suite(void) {
    Suite *s = suite_create("codegen recur");
    TCase *c = tcase_create("recurrences");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, the_library, 0, 8);
    tcase_add_loop_test(c, random_ones, 0, 60);
    tcase_add_test(c, other_targets_have_none);
    suite_add_tcase(s, c);
    return s;
}
