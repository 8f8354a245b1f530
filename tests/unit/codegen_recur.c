// Kernels of recurrences, made of their chunked forms, against the reference's recurrence: the algorithm and the host's
// schedules in the interpreter, in float64, and the host's code in f32; the library's recurrences and random ones, lengths
// around the chunks' and none, with state0 and without.
#include "codegen_util.h"
#include "ir/tile_decayed.h"
#include "ir/tile_shared.h"
#include "pass_util.h"
#include "rec_util.h"

typedef struct Shape {
    int32_t size[RSIZE_FREE];
} Shape;

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
    Diags diags = diag_list(x->a);
    TileData *d = tensors(x, p);
    bool ok = tile_eval(p, d, false, &diags);
    if (!ok) diag_print(&diags, stderr);
    ck_assert_msg(ok, "%s", source);
    check(x, p, d, source, what, 1e-6);
}

static TileProgram *scheduled(RuCase *x, PassOptions *o, const char *knobs) {
    Diags diags = diag_list(x->a);
    o->schedule = pu_knobs(knobs);
    o->dtype = DT_F32;
    TileProgram *p = pass_recurrence(x->a, x->c, o, &diags);
    test_good(p, &diags);
    return p;
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
    static const char *const chunks[] = {NULL, "keys=8", "keys=16", "keys=24", "keys=32"};
    static const int lanes[] = {4, 8, 16};
    RuCase x = {.a = arena_new()};
    ru_compile(&x, source);
    ru_fill(&x, size, seed, test_draw(&seed, 3) > 0);
    ru_reference(&x);
    PassOptions o = {.dtype = DT_F32};
    int most = lanes[test_draw(&seed, 3)];
    cu_target(4, &o.target);
    if (slow && size[RSIZE_S]) {
        Diags diags = diag_list(x.a);
        TileProgram *p = pass_recurrence_algorithm(x.a, x.c, &o, &diags);
        ck_assert(tu_read_back(x.a, p)->recurrence);
        interpret(&x, p, source, "algorithm");
    }
    if (cu_target(most, &o.target)) {
        const char *knobs = chunks[test_draw(&seed, 5)];
        TileProgram *p = scheduled(&x, &o, knobs);
        if (slow) interpret(&x, p, source, "scheduled");
        TileData *d = tensors(&x, p);
        cu_run(x.a, p, d, most, seed % 2);
        if (tame(&x)) check(&x, p, d, source, "code", bound);
    }
    arena_free(x.a);
}

// What a part makes of state0: Phi S + Psi, phi being a matrix, a factor for each channel, or 1.
static double *applied(const RuCase *x, const TileProgram *p, const TileData *d) {
    int psi = tensor_of(p, TENSOR_STATE), D = x->v->D, Dv = x->v->Dv;
    bool matrix = x->c->erase.elem != NULL, factor = !matrix && x->c->decay;
    int64_t heads = (int64_t)x->size[RSIZE_B] * x->size[RSIZE_H];
    const double *phi = matrix || factor ? d->tensor[psi + 1] : NULL;
    double *made = ARENA_ARRAY(x->a, double, heads *D *Dv + 1);
    memcpy(made, d->tensor[psi], sizeof *made * (size_t)(heads * D * Dv));
    for (int64_t i = 0; i < heads * D * Dv; i++) {
        int64_t head = i / (D * Dv), row = i / Dv % D, column = i % Dv;
        for (int64_t from = 0; from < D; from++) {
            double by = matrix        ? phi[(head * D + row) * D + from]
                        : from != row ? 0
                        : factor      ? phi[head * D + row]
                                      : 1;
            made[i] += by * x->state0[(head * D + from) * Dv + column];
        }
    }
    return made;
}

ARENA_TEST_EACH(parts, 0, RU_NAMES) {
    const char *source = ru_library(a, ru_names[_i]);
    int32_t size[] = {2, 4, 2, 1, 4, 70};
    RuCase x = {.a = a};
    PassOptions o = {.dtype = DT_F32, .phase = PHASE_PART};
    ru_compile(&x, source);
    ru_fill(&x, size, 5, true);
    ru_reference(&x);
    ck_assert(cu_target(4, &o.target));
    TileProgram *p = scheduled(&x, &o, NULL);
    TileData *d = tensors(&x, p);
    cu_run(a, p, d, 4, false);
    ru_alike("state", source, applied(&x, p, d), x.state, (int64_t)2 * 4 * x.v->D * x.v->Dv, 1e-5);
}

ARENA_TEST_EACH(the_library, 0, RU_NAMES) {
    static const int lengths[] = {0, 1, 70, 128};
    for (int i = 0; i < 4; i++) {
        int32_t size[] = {1 + i % 2, 4, 2, 1, 4, lengths[i]};
        try(ru_library(a, ru_names[_i]), size, 7 + (uint32_t)i, false, 1e-5);
    }
}

ARENA_TEST_EACH(random_ones, 0, 60) {
    static const int lengths[] = {0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 65, 130, 300};
    static const int widths[] = {1, 2, 3, 5, 8, 16, 17, 33, 80, 96};
    uint32_t start = 5000 + (uint32_t)_i, *seed = &start;
    bool slow = _i % 3 == 0;
    int D = widths[test_draw(seed, slow ? 7 : 10)], Dv = widths[test_draw(seed, slow ? 7 : 9)],
        H = 1 << test_draw(seed, 3);
    int S = lengths[test_draw(seed, slow ? 11 : 14)];
    int32_t size[] = {1 + (int)test_draw(seed, 2), H, H >> test_draw(seed, 2),
                      H >> test_draw(seed, 3),     H, S};
    for (int i = RSIZE_HQ; i <= RSIZE_HK; i++) size[i] = size[i] ? size[i] : 1;
    try(ru_random_source(a, D, Dv, seed), size, start, slow, 2e-5);
}

// ---- hard decays and keys, by the host's code in f32

static double relative(const double *got, const double *want, int64_t n, int64_t from, int64_t to) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        if (i >= from && i < to) continue;
        if (!isfinite(want[i])) {
            if (isfinite(got[i])) return INFINITY;
            continue;
        }
        difference += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    return sqrt(difference / size);
}

static void infinite(RuCase *x);

// One head of S positions. change: what is not random.
static void hard(const char *source, int S, double bound, void (*change)(RuCase *x)) {
    RuCase x = {.a = arena_new()};
    int32_t size[] = {1, 1, 1, 1, 1, S};
    ru_compile(&x, source);
    ru_fill(&x, size, 5, true);
    if (change) change(&x);
    ru_reference(&x);
    const char *const chunks[] = {NULL, x.c->channel ? "keys=8" : "keys=32"};
    int64_t n = x.v->D * x.v->Dv;
    for (int i = 0; i < 2; i++) {
        PassOptions o = {.dtype = DT_F32};
        cu_target(4, &o.target);
        TileProgram *p = scheduled(&x, &o, chunks[i]);
        TileData *d = tensors(&x, p);
        cu_run(x.a, p, d, 4, false);
        int from = change == infinite ? 64 * 8 : 0, to = change == infinite ? 96 * 8 : 0;
        double error =
            relative(d->tensor[tensor_of(p, TENSOR_O)], x.o, (int64_t)S * x.v->Dv, from, to);
        double of_state = relative(d->tensor[tensor_of(p, TENSOR_STATE)], x.state, n, 0, 0);
        ck_assert_msg(error <= bound && of_state <= bound, "%s\no %g, state %g, at most %g", source,
                      error, of_state, bound);
    }
    arena_free(x.a);
}

#define INPUTS "recurrence r { dim D = 32, Dv = 8; input x: f32[S]; "
#define CHANNELS "recurrence r { dim D = 32, Dv = 8; input x: f32[S, D]; "
#define DELTA " erase(k) = k; write(k, b, h, t) = -k * x[t]; key(k, b, h, t) = k * x[t]; }"

static double *given(RuCase *x) { return (double *)x->inputs[0]; }

static void zeros(RuCase *x) { // at the start, at ends of chunks, adjacent
    static const int at[] = {0, 31, 32, 33, 63, 64, 65, 100, 101, 127, 191, 192};
    for (int t = 0; t < x->size[RSIZE_S]; t++) given(x)[t] = 0.9;
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) given(x)[at[i]] = 0;
    x->state0[0] = INFINITY;
}

static void infinite(RuCase *x) { // forgotten at 100; o of its chunk is not compared
    zeros(x);
    x->values[90 * 8] = INFINITY;
}

static void everywhere(RuCase *x) {
    memset(given(x), 0, sizeof(double) * (size_t)x->size[RSIZE_S]);
}

static void draw_from(RuCase *x, const double *list, uint32_t n, int count) {
    uint32_t seed = 9;
    for (int i = 0; i < count; i++) given(x)[i] = (float)list[test_draw(&seed, n)];
}

static void mixed(RuCase *x) {
    static const double list[] = {0, -1e-4, -0.1, -5, -20, -80, -INFINITY};
    draw_from(x, list, 7, x->size[RSIZE_S]);
}

static void mixed_channels(RuCase *x) {
    static const double list[] = {0, -1e-4, -0.1, -5, -20, -80, -INFINITY};
    draw_from(x, list, 7, x->size[RSIZE_S] * 32);
}

static void some_zeros(RuCase *x) {
    static const double list[] = {0, 0.3, 0.9, 0.999, 1, 0.99, 0.7, 0.5};
    draw_from(x, list, 8, x->size[RSIZE_S]);
}

static void beta(RuCase *x) {
    uint32_t seed = 4;
    for (int t = 0; t < x->size[RSIZE_S]; t++)
        given(x)[t] = (float)(1 + 0.999 * test_uniform(&seed));
}

static void normalized(RuCase *x, double length) {
    for (int t = 0; t < x->size[RSIZE_S]; t++) {
        double size = 0;
        for (int d = 0; d < 32; d++) size += x->k[t * 32 + d] * x->k[t * 32 + d];
        for (int d = 0; d < 32; d++)
            x->k[t * 32 + d] = (float)(x->k[t * 32 + d] * length / sqrt(size));
    }
}

static void beta_of_2(RuCase *x) {
    beta(x);
    normalized(x, 1);
}

static void equal_keys(RuCase *x) {
    for (int t = 0; t < x->size[RSIZE_S]; t++) given(x)[t] = 1;
    normalized(x, 1);
    for (int t = 1; t < x->size[RSIZE_S]; t++) memcpy(x->k + t * 32, x->k, 32 * sizeof *x->k);
}

static void long_keys(RuCase *x) {
    for (int t = 0; t < x->size[RSIZE_S]; t++) given(x)[t] = 1;
    normalized(x, 2);
}

static void falls(RuCase *x) { // by 2^115 and 2^117 over 8 and 16 positions, in one channel of two
    for (int t = 0; t < x->size[RSIZE_S]; t++)
        for (int d = 0; d < 32; d++) given(x)[t * 32 + d] = d % 2 ? -1e-3 : d % 4 ? -4.98 : -10.14;
}

TEST(hard_decays) {
    hard(INPUTS "decay(b, h, t) = x[t]; }", 200, 1e-6, zeros);
    hard(INPUTS "decay(b, h, t) = x[t]; }", 200, 1e-6, infinite);
    hard(INPUTS "decay(b, h, t) = x[t];"
                " erase(k) = k; write(k) = -k; }",
         200, 1e-6, zeros);
    hard(INPUTS "decay(b, h, t) = x[t]; }", 100, 1e-6, everywhere);
    hard(INPUTS "decay(b, h, t) = x[t]; }", 1000, 1e-6, some_zeros);
    hard(INPUTS "decay(b, h, t) = exp(x[t]); }", 1000, 1e-5, mixed);
    hard(CHANNELS "decay(b, h, t, d) = exp(x[t, d]); }", 1000, 1e-5, mixed_channels);
    hard(CHANNELS "decay(b, h, t, d) = exp(x[t, d]); erase(k, b, h, t, d) = exp(x[t, d]) * k; "
                  "write(k) = -k; }",
         300, 1e-5, mixed_channels);
    hard(CHANNELS "decay(b, h, t, d) = exp(x[t, d]); }", 300, 1e-5, falls);
    hard("recurrence r { dim D = 8, Dv = 2; decay(b, h, t) = exp(-1e-5); }", 1 << 16, 1e-5, NULL);
    hard("recurrence r { dim D = 8, Dv = 2; decay(b, h, t) = exp(-20 + 0 * t); }", 1000, 1e-6,
         NULL);
    hard("recurrence r { dim D = 8, Dv = 2; }", 1 << 16, 1e-5, NULL);
    hard("recurrence r { dim D = 8, Dv = 2; decay(b, h, t) = 1.01; }", 1000, 1e-5, NULL);
}

TEST(hard_keys) {
    hard(INPUTS DELTA, 1000, 1e-5, beta_of_2);
    hard(INPUTS DELTA, 300, 1e-5, equal_keys);
    hard(INPUTS "decay(b, h) = 0.3; erase(k) = 0.3 * k; write(k, b, h, t) = -k * x[t]; key(k, b, "
                "h, t) = k * x[t]; }",
         500, 1e-5, long_keys);
}

// GPUs' schedules, interpreted: as f32, which is exact here, and as bf16, which is only placed differently.
static void try_gpu(const char *source, const int32_t size[RSIZE_FREE], TargetId target, Dtype t,
                    uint32_t seed) {
    RuCase x = {.a = arena_new()};
    Diags diags = diag_list(x.a);
    ru_compile(&x, source);
    ru_fill(&x, size, seed, test_draw(&seed, 3) > 0);
    ru_reference(&x);
    PassOptions o = {.dtype = t, .target = *target_get(target)};
    TileProgram *p = pass_recurrence(x.a, x.c, &o, &diags);
    bool refused = !p && strstr(diags.first->message, "sqnorm(o) has kernels for the CPU only");
    if (!p && !refused) diag_print(&diags, stderr);
    ck_assert_msg(refused == (strstr(source, "sqnorm(o)") != NULL), "%s", source);
    if (p) interpret(&x, p, source, o.target.name);
    arena_free(x.a);
}

ARENA_TEST_EACH(gpu_schedules, 0, 24) {
    static const TargetId targets[] = {TARGET_SM80, TARGET_SM90A, TARGET_GFX90A, TARGET_GFX1100};
    static const int lengths[] = {0, 1, 9, 16, 17, 35}, widths[] = {1, 3, 8, 17, 33};
    uint32_t start = 900 + (uint32_t)_i, *seed = &start;
    int D = widths[test_draw(seed, 5)], Dv = widths[test_draw(seed, 5)];
    int32_t size[] = {1, 2, 1 + (int)test_draw(seed, 2), 1, 2, lengths[test_draw(seed, 6)]};
    const char *source = ru_random_source(a, D, Dv, seed);
    try_gpu(source, size, targets[_i % 4], _i % 3 ? DT_F32 : DT_BF16, start);
}

// Few positions, one after the other: columns that are no whole accesses, shares of a thread in more lanes, and warps that are
// not a power of two.
ARENA_TEST_EACH(position_after_position, 0, 24) {
    enum { MOST = 64 * 128 };
    static const int channels[] = {1, 8, 33, 130, 300}, columns[] = {3, 8, 33, 72, 128};
    static const int lengths[] = {1, 1, 2, 5};
    static const TargetId targets[] = {TARGET_SM80, TARGET_SM90A, TARGET_GFX90A, TARGET_GFX1100};
    uint32_t start = 7000 + (uint32_t)_i, *seed = &start;
    int D = channels[test_draw(seed, 5)], Dv = columns[test_draw(seed, 5)];
    int32_t size[] = {2, 2, 1 + (int)test_draw(seed, 2), 1, 2, lengths[test_draw(seed, 4)]};
    const char *source = ru_random_source(a, D, Dv, seed);
    if (D * Dv > MOST && strstr(source, "sqnorm(v)"))
        return; // a tile of chunks has not all columns
    try_gpu(source, size, targets[_i % 4], _i % 3 ? DT_BF16 : DT_F32, start);
}

// Of the library's recurrences: no products, no shared memory, and a thread's share of the state within registers.
ARENA_TEST(steps_stay_in_registers) {
    enum { MOST = 128 };
    static const char *const names[] = {"mamba2", "gla", "kda", "mlstm", "rwkv6", "rwkv7"};
    for (int i = 0; i < 6; i++) {
        RuCase x = {.a = a};
        Diags diags = diag_list(a);
        ru_compile(&x, ru_library(a, names[i]));
        PassOptions o = {.dtype = DT_BF16, .target = *target_get(TARGET_SM90A)};
        const TileProgram *p = pass_recurrence(a, x.c, &o, &diags);
        test_good(p, &diags);
        const TileKernel *k = p->kernels.data[1];
        ck_assert_int_eq(k->purpose, PURPOSE_STEPS);
        ck_assert_int_eq(k->layouts.n, 1);
        const Layout *l = &k->layouts.data[0].is;
        ck_assert_int_le(layout_count(l, LAYOUT_REG), MOST);
        for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
            ck_assert(op->kind != TILE_MMA && op->kind != TILE_BARRIER);
            for (int j = 0; j < op->results.n; j++)
                ck_assert_int_eq(op->results.data[j]->home, HOME_FRAGMENT);
        }
    }
}

// Columns of v lie over warps there, and a sum over them has chunks.
ARENA_TEST(sums_over_columns_are_of_chunks) {
    static const TargetId targets[] = {TARGET_SM80, TARGET_SM90A, TARGET_GFX942, TARGET_GFX1100};
    RuCase x = {.a = a};
    ru_compile(&x, "recurrence r { dim D = 32, Dv = 64; value(v) = v - 0.1 * sqnorm(v); }");
    for (int i = 0; i < 4; i++) {
        Diags diags = diag_list(a);
        PassOptions o = {.dtype = DT_BF16, .target = *target_get(targets[i])};
        const TileProgram *p = pass_recurrence(a, x.c, &o, &diags);
        test_good(p, &diags);
        for (int k = 0; k < p->kernels.n; k++)
            ck_assert_int_ne(p->kernels.data[k]->purpose, PURPOSE_STEPS);
    }
}

// Several chunks whose products are those of warpgroups, with all stages and with one each: the interpreter finds what is
// used before it came, and what is overwritten while it is read.
static void try_groups(const char *source, int S, const char *knobs, int ahead) {
    RuCase x = {.a = arena_new()};
    Diags diags = diag_list(x.a);
    ru_compile(&x, source);
    ru_fill(&x, (int32_t[]){1, 1, 1, 1, 1, S}, 77, true);
    ru_reference(&x);
    PassOptions o = {
        .dtype = DT_BF16, .target = *target_get(TARGET_SM90A), .schedule = pu_knobs(knobs)};
    TileProgram *p = pass_recurrence(x.a, x.c, &o, &diags);
    if (!p) diag_print(&diags, stderr);
    ck_assert_msg(p != NULL, "%s", source);
    const TileKernel *k = p->kernels.data[0];
    ck_assert(tile_by_groups(k));
    ck_assert_int_eq(k->schedule.knobs.ahead, ahead);
    ck_assert_int_eq(tile_has(&k->body, TILE_MMA_WAIT), tile_has(&k->body, TILE_INVERT));
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; i < op->results.n; i++) // a strip has the places of one layout
            ck_assert_int_ne(op->results.data[i]->home, HOME_STRIP);
    ck_assert(tu_read_back(x.a, p)->recurrence);
    interpret(&x, p, source, knobs);
    arena_free(x.a);
}

TEST_EACH(chunks_of_groups, 0, 3) {
    static const char *const sources[] = {
        "recurrence x { dim D = 32, Dv = 16; }",
        "recurrence x { dim D = 32, Dv = 64; decay(b, h) = 0.9; }",
        INPUTS "decay(b, h, t) = exp(-abs(x[t])); erase(k) = 0.1 * k; write(k, b, h, t) = -k * "
               "x[t]; key(k, b, h, t) = k * x[t]; }",
    };
    static const char *const knobs[] = {"ahead=4", "ahead=1", "ahead=0"};
    static const int ahead[] = {4, 1, 0};
    for (int i = 0; i < 3; i++) try_groups(sources[_i], i ? 150 : 200, knobs[i], ahead[i]);
}

// A number of another head may lie outside the input, where an index is clamped: it comes by no copy, which would not ask.
ARENA_TEST(numbers_of_other_heads) {
    static const char source[] =
        "recurrence r { dim D = 32, Dv = 16; input g: f32[B, H, S]; input e: f32[B, H, S];"
        "decay(b, h, t) = exp(-abs(g[b, h + 1, t])); key(k, b, h, t) = k * e[b, h, t]; }";
    RuCase x = {.a = a};
    Diags diags = diag_list(a);
    ru_compile(&x, source);
    ru_fill(&x, (int32_t[]){2, 2, 2, 2, 2, 150}, 77, true);
    ru_reference(&x);
    PassOptions o = {.dtype = DT_BF16, .target = *target_get(TARGET_SM90A)};
    TileProgram *p = pass_recurrence(a, x.c, &o, &diags);
    test_good(p, &diags);
    int copied[2] = {0};
    for (int k = 0; k < p->kernels.n; k++)
        for (const TileOp *op = tile_next(&p->kernels.data[k]->body, NULL); op;
             op = tile_next(&p->kernels.data[k]->body, op))
            for (int i = 0; i < 2; i++)
                copied[i] += op->kind == TILE_COPY && op->tensor == p->inputs.data[i];
    ck_assert_int_eq(copied[0], 0);
    ck_assert_int_gt(copied[1], 0);
    interpret(&x, p, source, "");
}

// An input with a number for each column of v comes as a tile, whose second name is in shared memory, too.
ARENA_TEST(numbers_of_values) {
    static const char source[] =
        "recurrence r { dim D = 32, Dv = 96; input u: f32[B, H, S, Dv]; decay(b, h) = 0.9;"
        "value(v, b, h, t, e) = v * u[b, h, t, e]; }";
    RuCase x = {.a = a};
    Diags diags = diag_list(a);
    size_t n;
    void *ptx;
    ru_compile(&x, source);
    ru_fill(&x, (int32_t[]){1, 2, 2, 2, 2, 150}, 77, true);
    ru_reference(&x);
    PassOptions o = {.dtype = DT_BF16, .target = *target_get(TARGET_SM90A)};
    TileProgram *p = pass_recurrence(a, x.c, &o, &diags);
    test_good(p, &diags);
    interpret(&x, p, source, "");
    CgOptions to = {.opt = 3};
    const TileProgram *made = p;
    test_good(cg_emit(&made, 1, &to, CG_ASM, &diags, &ptx, &n), &diags);
    free(ptx);
}

static TileProgram *in_groups(Arena *a, const char *name) {
    RuCase x = {.a = a};
    Diags diags = diag_list(a);
    PassOptions o = {.dtype = DT_BF16, .target = *target_get(TARGET_SM90A)};
    ru_compile(&x, ru_library(a, name));
    TileProgram *p = pass_recurrence(a, x.c, &o, &diags);
    test_good(p, &diags);
    return p;
}

// What a chunk reads comes a step ahead, also the numbers that a kernel before left: a step waits once, at its beginning.
TEST_EACH(steps_wait_once, 0, 4) {
    static const char *const names[] = {"kda", "hgrn2", "gla", "rwkv6"};
    Arena *a = arena_new();
    TileProgram *p = in_groups(a, names[_i]);
    const TileKernel *k = p->kernels.data[0];
    int barriers = 0, waits = 0;
    ck_assert_int_eq(k->purpose, PURPOSE_CHUNK);
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        bool within = op->block->owner && op->block->owner->kind == TILE_LOOP;
        barriers += within && op->kind == TILE_BARRIER;
        waits += within && op->kind == TILE_WAIT;
        for (int i = 0; i < op->outs.n && within; i++) ck_assert(!ex_reads(op->outs.data[i].body));
    }
    ck_assert_int_eq(barriers, 1);
    ck_assert_int_eq(waits, 1);
    arena_free(a);
}

// Warps that have no block of scores of their own have channels of another's.
TEST(warps_share_channels) {
    Arena *a = arena_new();
    TileProgram *p = in_groups(a, "kda");
    const TileKernel *k = NULL;
    const TileOp *scores = NULL;
    for (int i = 0; i < p->kernels.n; i++)
        if (p->kernels.data[i]->purpose == PURPOSE_ONE_CHUNK) k = p->kernels.data[i];
    ck_assert(k != NULL);
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (tile_is_marked(op, TILE_FACTORS)) scores = op;
    ck_assert(scores != NULL);
    int bytes = tile_shared_layout(p, k, NULL, NULL);
    ck_assert_int_eq(tile_decayed_warps(p, k, scores), 2); // of 8, four blocks of 16 by 16
    ck_assert_int_eq(tile_decayed_bytes(p, k, scores), 2 * 32 * (4 * 32 + HOME_PIECE));
    TileKernel few = *k;
    few.schedule.warps = 4;
    ck_assert_int_eq(tile_decayed_warps(p, &few, scores), 1);
    ck_assert_int_eq(tile_shared_layout(p, &few, NULL, NULL),
                     bytes - tile_decayed_bytes(p, k, scores));
    arena_free(a);
}

// Segments of a sequence, from workers that are enough for several: in the interpreter, and the host's code.
static void check_segments(const RuCase *x, const TileProgram *p, const char *source, int number,
                           bool code) {
    TileData *d = tensors(x, p);
    Diags diags = diag_list(x->a);
    const TilePlan *plan = &p->plans.data[p->plans.n - 2];
    int segments = p->split.segment + 1;
    if (code)
        cu_run(x->a, p, d, 4, true);
    else
        ck_assert_msg(tile_eval(p, d, false, &diags), "%s", source);
    ck_assert_str_eq(p->sizes.data[segments].name, "segments");
    ck_assert(d->size[segments] > 1 && d->size[segments] <= number);
    ck_assert(tile_eval_launch(plan->when, d->size, d->workers));
    check(x, p, d, source, code ? "code" : "segments", code ? 2e-5 : 1e-6);
}

static const struct {
    const char *source;
    int S, segments;
} in_segments[] = {
    {"recurrence x { dim D = 16, Dv = 8; }", 601, 2},
    {"recurrence x { dim D = 3, Dv = 5; decay(b, h) = 0.99; }", 1100, 4},
    {INPUTS "decay(b, h, t) = t % 300 == 7 ? 0 : exp(-0.1 * abs(x[t])); }", 1200, 4},
    {CHANNELS "decay(b, h, t, d) = t % 300 == 7 && d < 9 ? 0 : exp(-0.1 * abs(x[t, d])); "
              "bonus(b, h, d) = 0.5; }",
     800, 3},
    {INPUTS "decay(b, h, t) = exp(-0.1 * abs(x[t])); erase(k) = 0.2 * k; "
            "write(k, b, h, t) = -k * abs(tanh(x[t])); key(k, b, h, t) = k * x[t]; }",
     1111, 4},
    {CHANNELS "decay(b, h, t, d) = exp(-0.1 * abs(x[t, d])); erase(k) = 0.1 * k; "
              "write(k, b, h, t, d) = -0.2 * k * abs(tanh(x[t, d])); }",
     900, 3},
};

TEST_EACH(segments, 0, 6 * 5) {
    static const TargetId targets[] = {TARGET_HOST, TARGET_SM80, TARGET_SM90A, TARGET_GFX90A,
                                       TARGET_GFX1100};
    RuCase x = {.a = arena_new()};
    Diags diags = diag_list(x.a);
    const char *source = in_segments[_i / 5].source;
    TargetId target = targets[_i % 5];
    ru_compile(&x, source);
    ru_fill(&x, (int32_t[]){1, 1, 1, 1, 1, in_segments[_i / 5].S}, 77, true);
    ru_reference(&x);
    PassOptions o = {.dtype = target == TARGET_HOST ? DT_F32 : DT_BF16,
                     .target = *target_get(target)};
    if (target == TARGET_HOST) cu_target(4, &o.target);
    const TileProgram *p = pass_recurrence(x.a, x.c, &o, &diags);
    test_good(p, &diags);
    ck_assert(tu_read_back(x.a, p)->split.segment == p->split.segment);
    check_segments(&x, p, source, in_segments[_i / 5].segments, false);
    if (target == TARGET_HOST) check_segments(&x, p, source, in_segments[_i / 5].segments, true);
    arena_free(x.a);
}

// Two matrices of 256 by 256 have no room in LDS: then the sequence is gone through as one.
ARENA_TEST(segments_that_have_no_room) {
    RuCase x = {.a = a};
    Diags diags = diag_list(a);
    ru_compile(&x, "recurrence x { dim D = 128, Dv = 16; erase(k) = k; write(k) = -0.5 * k; }");
    PassOptions o = {.dtype = DT_F32, .target = *target_get(TARGET_GFX942)};
    const TileProgram *p = pass_recurrence(a, x.c, &o, &diags);
    test_good(p, &diags);
    ck_assert_int_eq(p->plans.n, 2); // position after position, and all others
    ck_assert_int_eq(p->kernels.n, 2);
    ck_assert_int_eq(p->kernels.data[1]->purpose, PURPOSE_STEPS);
}

static const TileOp *pairs_of(const TileProgram *p, TilePurpose purpose) {
    for (int i = 0; i < p->kernels.n; i++) {
        const TileKernel *k = p->kernels.data[i];
        for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
            if (k->purpose == purpose && op->kind == TILE_MAP && op->naxes == 3) return op;
    }
    return NULL;
}

// Where channels have decays of their own, what no state goes into is made before: loops have products with the state alone.
ARENA_TEST(chunks_prepared) {
    static const char *const names[] = {"gla", "kda", "hgrn2", "rwkv6"};
    for (int i = 0; i < 4; i++) {
        RuCase x = {.a = a};
        Diags diags = diag_list(a);
        int loops = 0;
        ru_compile(&x, ru_library(a, names[i]));
        PassOptions o = {.dtype = DT_BF16, .target = *target_get(TARGET_SM90A)};
        const TileProgram *p = pass_recurrence(a, x.c, &o, &diags);
        test_good(p, &diags);
        const TilePlan *last = &p->plans.data[p->plans.n - 1];
        ck_assert_int_eq(last->kernels.n, 2);
        ck_assert_int_eq(p->kernels.data[last->kernels.data[0]]->purpose, PURPOSE_ONE_CHUNK);
        for (int j = 0; j < p->kernels.n; j++) {
            const TileKernel *k = p->kernels.data[j];
            if (k->purpose != PURPOSE_CHUNK) continue;
            ck_assert_msg(!tile_has(&k->body, TILE_INVERT), "%s, %s", names[i], k->name);
            loops++;
        }
        ck_assert_int_eq(loops, 4); // fwd, parts, transitions, segments
        ck_assert_ptr_null(pairs_of(p, PURPOSE_CHUNK));
    }
}

// Pairs of positions whose channels have decays of their own are products of 16-bit elements, in both directions; f32 makes them one by one.
ARENA_TEST(channels_by_products) {
    static const char *const names[] = {"gla", "kda", "hgrn2", "rwkv6", "rwkv7"};
    static const struct {
        TargetId target;
        Dtype dtype;
        bool products;
    } cases[] = {{TARGET_SM90A, DT_BF16, true},
                 {TARGET_SM80, DT_F16, true},
                 {TARGET_SM80, DT_F32, false},
                 {TARGET_GFX942, DT_BF16, false}};
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 4; j++) {
            RuCase x = {.a = a};
            Diags diags = diag_list(a);
            ru_compile(&x, ru_library(a, names[i]));
            PassOptions o = {.dtype = cases[j].dtype, .target = *target_get(cases[j].target)};
            const TileProgram *p = pass_recurrence(a, x.c, &o, &diags);
            bool before = cases[j].products && x.c->nwrites == 1;
            const TileOp *map = p ? pairs_of(p, before ? PURPOSE_ONE_CHUNK : PURPOSE_CHUNK) : NULL;
            ck_assert_msg(map && tile_is_marked(map, TILE_FACTORS) == cases[j].products, "%s, %d",
                          names[i], j);
            bool groups = cases[j].products && cases[j].target == TARGET_SM90A;
            ck_assert_int_eq(tile_by_groups(p->kernels.data[0]), groups);
        }
}
