// The backward of recurrences, made of their chunked forms, against the reference's own derivative: the algorithm and the
// schedules of the host and of GPUs in the interpreter, and the host's code in f32; the library's recurrences and random ones,
// lengths around the chunks' and none, zeros of the decay, with state0, dstate and without.
#include "codegen_util.h"
#include "ir/tile_shared.h"
#include "pass_util.h"
#include "rec_util.h"

typedef struct Case {
    RuCase x;
    ChunkBack *back;
    double *d_o, *dstate, *dq, *dk, *dv, *dstate0, **dinputs;
} Case;

// All inputs have gradients, but where a root is infinitely steep at 0.
static const char *with_grads(Arena *a, const char *source) {
    Text t = text_new(a);
    for (const char *c = source; *c; c++) {
        bool input = c == source || c[-1] == ' ' || c[-1] == '\n' || c[-1] == '{';
        if (!input || strncmp(c, "input ", 6) != 0) {
            text_printf(&t, "%c", *c);
            continue;
        }
        bool steep = !strncmp(c, "input n2", 8) && strstr(source, "sqrt(n2");
        for (; *c != ';' && strncmp(c, " grad", 5) != 0; c++) text_printf(&t, "%c", *c);
        while (*c != ';') c++;
        text_puts(&t, steep ? ";" : " grad;");
    }
    return t.s;
}

static int64_t count(const Case *c, const TxInput *in) {
    int64_t n = 1;
    for (int d = 0; d < in->rank; d++)
        n *= in->extent[d].size < 0 ? in->extent[d].value : c->x.size[in->extent[d].size];
    return n;
}

static void differentiate(Case *c, uint32_t seed, bool ends) {
    RuCase *x = &c->x;
    const int32_t *n = x->size;
    int64_t heads = (int64_t)n[RSIZE_B] * n[RSIZE_H], rows = heads * n[RSIZE_S];
    int64_t state = heads * x->v->D * x->v->Dv, each = (int64_t)n[RSIZE_B] * n[RSIZE_S];
    c->d_o = ru_numbers(x->a, rows * x->v->Dv, 1, &seed);
    c->dstate = ends ? ru_numbers(x->a, state, 1, &seed) : NULL;
    c->dq = ARENA_ARRAY(x->a, double, each *n[RSIZE_HQ] * x->v->D + 1);
    c->dk = ARENA_ARRAY(x->a, double, each *n[RSIZE_HK] * x->v->D + 1);
    c->dv = ARENA_ARRAY(x->a, double, each *n[RSIZE_HV] * x->v->Dv + 1);
    c->dstate0 = ARENA_ARRAY(x->a, double, state + 1);
    c->dinputs = ARENA_ARRAY(x->a, double *, x->v->inputs.n + 1);
    for (int i = 0; i < x->v->inputs.n; i++)
        c->dinputs[i] = ARENA_ARRAY(x->a, double, count(c, &x->v->inputs.data[i]) + 1);
    RefRun r = ref_of(x->v, n, x->q, x->k, x->values, x->inputs, NULL);
    r.state0 = x->state0;
    RefGrad g = {.run = &r,
                 .d_o = c->d_o,
                 .dstate = c->dstate,
                 .dq = c->dq,
                 .dk = c->dk,
                 .dv = c->dv,
                 .dinputs = c->dinputs,
                 .dstate0 = c->dstate0};
    ck_assert_ptr_null(ref_check(&r));
    ref_grad(&g);
}

static const double *given(const Case *c, const TileTensor *t) {
    const RuCase *x = &c->x;
    return t->role == TENSOR_Q        ? x->q
           : t->role == TENSOR_K      ? x->k
           : t->role == TENSOR_V      ? x->values
           : t->role == TENSOR_STATE0 ? x->state0
           : t->role == TENSOR_DO     ? c->d_o
           : t->role == TENSOR_DSTATE ? c->dstate
           : t->role == TENSOR_INPUT  ? x->inputs[t->index]
                                      : NULL;
}

static const double *wanted(const Case *c, const TileTensor *t) {
    return t->role == TENSOR_DQ        ? c->dq
           : t->role == TENSOR_DK      ? c->dk
           : t->role == TENSOR_DV      ? c->dv
           : t->role == TENSOR_DSTATE0 ? c->dstate0
           : t->role == TENSOR_GRAD    ? c->dinputs[t->index]
                                       : NULL;
}

static TileData *tensors(const Case *c, const TileProgram *p) {
    TileData *d = tile_data_random(c->x.a, p, c->x.size, 4, 1);
    for (int i = 0; i < p->tensors.n; i++) {
        const TileTensor *t = &p->tensors.data[i];
        size_t bytes = sizeof(double) * (size_t)tile_tensor_elements(t, d->size);
        const double *from = given(c, t);
        if (tensor_may_be_absent(t->role) && !from) memset(d->tensor[i], 0, bytes);
        if (from && bytes) memcpy(d->tensor[i], from, bytes);
    }
    return d;
}

static void check(const Case *c, const TileProgram *p, const TileData *d, const char *source,
                  const char *what, double bound) {
    for (int i = 0; i < p->tensors.n; i++) {
        const TileTensor *t = &p->tensors.data[i];
        if (!wanted(c, t)) continue;
        ru_alike(arena_printf(c->x.a, "%s: %s", what, t->name), source, d->tensor[i], wanted(c, t),
                 tile_tensor_elements(t, d->size), bound);
    }
}

static void interpret(const Case *c, const TileProgram *p, const char *source, const char *what) {
    Diags diags = diag_list(c->x.a);
    TileData *d = tensors(c, p);
    bool ok = tile_eval(p, d, false, &diags);
    if (!ok) diag_print(&diags, stderr);
    ck_assert_msg(ok, "%s: %s", what, source);
    check(c, p, d, source, what, 1e-6);
}

static TileProgram *made(Case *c, PassOptions *o, bool scheduled, const char *source) {
    Diags diags = diag_list(c->x.a);
    TileProgram *p = scheduled ? pass_recurrence_backward(c->x.a, c->back, o, &diags)
                               : pass_recurrence_backward_algorithm(c->x.a, c->back, o, &diags);
    if (!p) diag_print(&diags, stderr);
    ck_assert_msg(p != NULL, "%s", source);
    return p;
}

static void open(Case *c, const char *source, const int32_t size[RSIZE_FREE], uint32_t seed) {
    *c = (Case){.x = {.a = arena_new()}};
    ru_compile(&c->x, with_grads(c->x.a, source));
    ru_fill(&c->x, size, seed, test_draw(&seed, 3) > 0);
    for (int i = 0; i < c->x.v->inputs.n;
         i++) { // small decays of channels divide differences of sums
        const TxInput *in = &c->x.v->inputs.data[i];
        double *n = (double *)c->x.inputs[i];
        for (int64_t k = 0; !strcmp(in->name, "n2") && k < count(c, in); k++)
            n[k] = n[k] > 0 ? (float)fmax(n[k], 0.05) : n[k];
    }
    c->back = pass_chunk_back(c->x.c);
    differentiate(c, seed, test_draw(&seed, 3) > 0);
}

static bool tame(const Case *c) { // f32 holds it
    const int32_t *n = c->x.size;
    int64_t rows = (int64_t)n[RSIZE_B] * n[RSIZE_HK] * n[RSIZE_S];
    double most = ru_largest(c->dk, rows * c->x.v->D);
    for (int i = 0; i < c->x.v->inputs.n; i++)
        most = fmax(most, ru_largest(c->dinputs[i], count(c, &c->x.v->inputs.data[i])));
    return most < 1e12;
}

static void run_host(Case *c, const char *source, uint32_t seed, bool slow, double bound) {
    static const char *const chunks[] = {NULL, "keys=8", "keys=16", "keys=24", "keys=32"};
    static const int lanes[] = {4, 8, 16};
    PassOptions o = {.dtype = DT_F32};
    int most = lanes[test_draw(&seed, 3)];
    cu_target(4, &o.target);
    if (slow && c->x.size[RSIZE_S]) interpret(c, made(c, &o, false, source), source, "algorithm");
    if (!cu_target(most, &o.target)) return;
    o.schedule = pu_knobs(chunks[test_draw(&seed, 5)]);
    TileProgram *p = made(c, &o, true, source);
    if (slow) interpret(c, p, source, "scheduled");
    TileData *d = tensors(c, p);
    cu_run(c->x.a, p, d, most, seed % 2);
    if (tame(c)) check(c, p, d, source, "code", bound);
}

// A part: the gradient of state0, where none comes for the state.
ARENA_TEST_EACH(parts, 0, RU_NAMES) {
    const char *source = ru_library(a, ru_names[_i]);
    int32_t size[] = {2, 4, 2, 1, 4, 70};
    PassOptions o = {.dtype = DT_F32, .phase = PHASE_PART_BWD};
    Case c;
    open(&c, source, size, 5);
    differentiate(&c, 5, false);
    ck_assert(cu_target(4, &o.target));
    interpret(&c, made(&c, &o, false, source), source, "algorithm");
    TileProgram *p = made(&c, &o, true, source);
    TileData *d = tensors(&c, p);
    cu_run(c.x.a, p, d, 4, false);
    check(&c, p, d, source, "code", 3e-5);
    arena_free(c.x.a);
}

ARENA_TEST_EACH(the_library, 0, RU_NAMES) {
    static const int lengths[] = {2, 70};
    const char *source = ru_library(a, ru_names[_i]);
    for (int i = _i % 2; i < 2; i += 2) {
        int32_t size[] = {1, 4, i % 2 ? 4 : 2, i % 2 ? 4 : 1, 4, lengths[i]};
        Case c;
        open(&c, source, size, 7 + (uint32_t)i);
        run_host(&c, source, 7 + (uint32_t)i, false, 3e-5);
        arena_free(c.x.a);
    }
}

ARENA_TEST_EACH(random_ones, 0, 24) {
    static const int lengths[] = {0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 65, 130, 200};
    static const int widths[] = {1, 2, 3, 5, 8, 16, 17, 33, 80, 96};
    uint32_t start = 7000 + (uint32_t)_i, *seed = &start;
    bool slow = _i % 3 == 0;
    int D = widths[test_draw(seed, slow ? 5 : 10)], Dv = widths[test_draw(seed, slow ? 5 : 9)],
        H = 1 << test_draw(seed, 3);
    int S = lengths[test_draw(seed, slow ? 10 : 14)];
    int32_t size[] = {1 + (int)test_draw(seed, 2), H, H >> test_draw(seed, 2),
                      H >> test_draw(seed, 3),     H, S};
    for (int i = RSIZE_HQ; i <= RSIZE_HK; i++) size[i] = size[i] ? size[i] : 1;
    const char *source = ru_random_source(a, D, Dv, seed);
    Case c;
    open(&c, source, size, start);
    run_host(&c, source, start, slow, 1e-4);

    arena_free(c.x.a);
}

// Schedules for NVIDIA devices in the interpreter, as f32, which is exact here, and as bf16, which is only placed differently;
// and that they become code.
ARENA_TEST_EACH(gpu_gradients, 0, 16) {
    static const TargetId targets[] = {TARGET_SM80, TARGET_SM90A};
    static const int lengths[] = {0, 1, 9, 16, 17, 35}, widths[] = {1, 3, 8, 17, 33};
    uint32_t start = 1900 + (uint32_t)_i, *seed = &start;
    int D = widths[test_draw(seed, 5)], Dv = widths[test_draw(seed, 5)];
    int32_t size[] = {1, 2, 1 + (int)test_draw(seed, 2), 1, 2, lengths[test_draw(seed, 6)]};
    const char *source = ru_random_source(a, D, Dv, seed);
    PassOptions o = {.dtype = _i % 3 ? DT_F32 : DT_BF16, .target = *target_get(targets[_i % 2])};
    Diags diags = diag_list(a);
    Case c;
    open(&c, source, size, start);
    TileProgram *p = pass_recurrence_backward(c.x.a, c.back, &o, &diags);
    bool refused = !p && strstr(diags.first->message, "sqnorm(o) has kernels for the CPU only");
    if (!p && !refused) diag_print(&diags, stderr);
    ck_assert_msg(refused == (strstr(source, "sqnorm(o)") != NULL), "%s", source);
    if (p) interpret(&c, p, source, o.target.name);
    CgOptions co = {.opt = 0};
    void *text = NULL;
    size_t n;
    ck_assert_msg(!p || cg_emit((const TileProgram **)&p, 1, &co, CG_ASM, &diags, &text, &n), "%s",
                  source);
    free(text);
    arena_free(c.x.a);
}

// Two writes, each with pairs of its own, where rows of tiles are in registers and in shared memory by turns.
ARENA_TEST(gpu_two_writes) {
    int32_t size[] = {1, 1, 1, 1, 1, 37};
    const char *source = ru_library(a, "rwkv7");
    for (int i = 0; i < 2; i++) {
        PassOptions o = {.dtype = i ? DT_BF16 : DT_F32, .target = *target_get(TARGET_SM80)};
        Diags diags = diag_list(a);
        Case c;
        open(&c, source, size, 3);
        TileProgram *p = pass_recurrence_backward(c.x.a, c.back, &o, &diags);
        ck_assert(p != NULL);
        interpret(&c, p, source, o.target.name);
        int marked = 0;
        for (const TileOp *op = tile_next(&p->kernels.data[2]->body, NULL); op;
             op = tile_next(&p->kernels.data[2]->body, op))
            marked += op->kind == TILE_MAP && tile_is_marked(op, TILE_FACTORS);
        ck_assert_int_eq(marked > 0, i);
        arena_free(c.x.a);
    }
}

// Segments of a sequence, from workers that are enough for several; heads that share keys as well.
TEST_EACH(segments, 0, 4 * 3) {
    static const char *const sources[] = {
        "recurrence r { dim D = 3, Dv = 5; decay(b, h) = 0.99; }",
        "recurrence r { dim D = 8, Dv = 4; input x: f32[S, D]; "
        "decay(b, h, t, d) = exp(-0.1 * abs(x[t, d])); bonus(b, h, d) = 0.5; }",
        "recurrence r { dim D = 16, Dv = 8; input x: f32[S]; decay(b, h, t) = exp(-0.01 * "
        "abs(x[t])); "
        "erase(k) = 0.2 * k; write(k, b, h, t) = -k * abs(tanh(x[t])); "
        "key(k, b, h, t) = k * x[t]; }",
        "recurrence r { dim D = 5, Dv = 3; erase(k) = 0.5 * k; write(k, b, h, t) = -k * k; }"};
    static const TargetId targets[] = {TARGET_HOST, TARGET_SM80, TARGET_SM90A};
    const char *source = sources[_i / 3];
    TargetId target = targets[_i % 3];
    PassOptions o = {.dtype = target == TARGET_HOST ? DT_F32 : DT_BF16,
                     .target = *target_get(target)};
    if (target == TARGET_HOST) cu_target(4, &o.target);
    int H = _i < 6 ? 2 : 1; // where erase is, there are three segments at least
    int32_t size[] = {1, H, 1, 1, H, 1030 + _i};
    Case c;
    open(&c, source, size, 31);
    TileProgram *p = made(&c, &o, true, source);
    for (int code = 0; code < (target == TARGET_HOST ? 2 : 1); code++) {
        TileData *d = tensors(&c, p);
        Diags diags = diag_list(c.x.a);
        int segments = p->split.segment + 1;
        ck_assert_str_eq(p->sizes.data[segments].name, "segments");
        ck_assert_int_gt(d->size[segments], 1);
        if (code)
            cu_run(c.x.a, p, d, 4, true);
        else
            ck_assert_msg(tile_eval(p, d, false, &diags), "%s", source);
        check(&c, p, d, source, code ? "code" : "segments", code ? 1e-4 : 1e-6);
    }
    arena_free(c.x.a);
}

// Forward and backward are compiled into one module.
ARENA_TEST(kernels_of_both_phases) {
    Case c;
    int32_t size[] = {1, 1, 1, 1, 1, 5};
    open(&c, "recurrence r { dim D = 16, Dv = 8; erase(k) = k; write(k) = -0.1 * k; }", size, 5);
    PassOptions o = {.dtype = DT_BF16, .target = *target_get(TARGET_SM80)};
    CgOptions co = {.opt = 0};
    Diags diags = diag_list(a);
    const TileProgram *both[] = {pass_recurrence(c.x.a, c.x.c, &o, &diags),
                                 pass_recurrence_backward(c.x.a, c.back, &o, &diags)};
    void *text;
    size_t n;
    ck_assert(both[0] && both[1]);
    ck_assert(cg_emit(both, 2, &co, CG_ASM, &diags, &text, &n));
    free(text);
    ck_assert(
        !cg_emit((const TileProgram *[]){both[0], both[0]}, 2, &co, CG_ASM, &diags, &text, &n));
    ck_assert_str_eq(diags.last->message, "two kernels are called 'r_fwd'");
    arena_free(c.x.a);
}

// ---- kernels of one chunk

static TileProgram *of_library(Arena *a, Case *c, const char *name) {
    int32_t size[] = {1, 1, 1, 1, 1, 5};
    PassOptions o = {.dtype = DT_BF16, .target = *target_get(TARGET_SM90A)};
    open(c, ru_library(a, name), size, 5);
    Diags diags = diag_list(c->x.a);
    TileProgram *p = pass_recurrence_backward(c->x.a, c->back, &o, &diags);
    test_good(p, &diags);
    return p;
}

static const TileKernel *gradients_of(const TileProgram *p) {
    int i = 0;
    while (p->kernels.data[i]->purpose != PURPOSE_ONE_CHUNK) i++;
    return p->kernels.data[i];
}

static bool reads(const TileOp *op, const TileValue *v) {
    for (int i = 0; i < op->args.n; i++) {
        const TileValue *at = op->args.data[i];
        while (at != v && at->def && at->home == HOME_SHARED &&
               (at->def->kind == TILE_VIEW || at->def->kind == TILE_BESIDE))
            at = at->def->args.data[0];
        if (at == v) return true;
    }
    return false;
}

// Whether b is made before a barrier parts it from the last reader of a, which was made first.
static bool meet(const TileKernel *k, const TileValue *a, const TileValue *b) {
    bool made = false, parted = false;
    for (const TileOp *op = b->def; op; op = tile_next(&k->body, op)) made |= reads(op, a);
    for (const TileOp *op = a->def; op != b->def; op = tile_next(&k->body, op)) {
        if (op->kind == TILE_BARRIER) parted = true;
        if (reads(op, a)) parted = false;
    }
    return made || !parted;
}

// What is made in shared memory may lie where a tile was that nothing reads any more, behind a barrier.
ARENA_TEST_EACH(places_of_a_chunk_are_free_again, 0, 5) {
    static const char *const names[] = {"kda", "gla", "rwkv6", "rwkv7", "gated_deltanet"};
    Case c;
    const TileProgram *p = of_library(a, &c, names[_i]);
    const TileKernel *k = gradients_of(p);
    int *offset = ARENA_ARRAY(c.x.a, int, k->nvalues), sum = 0, again = 0;
    int bytes = tile_shared_layout(p, k, offset, NULL);
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        for (int i = 0; i < op->results.n; i++) {
            const TileValue *v = op->results.data[i];
            if (v->home != HOME_SHARED || offset[v->id] < 0) continue;
            int own = tile_shared(p, k, v).bytes;
            sum += own;
            ck_assert_int_le(offset[v->id] + own, bytes);
            for (const TileOp *to = tile_next(&k->body, op); to; to = tile_next(&k->body, to))
                for (int j = 0; j < to->results.n; j++) {
                    const TileValue *w = to->results.data[j];
                    if (w->home != HOME_SHARED || offset[w->id] < 0) continue;
                    bool apart = offset[w->id] >= offset[v->id] + own ||
                                 offset[w->id] + tile_shared(p, k, w).bytes <= offset[v->id];
                    again += !apart;
                    ck_assert_msg(apart || !meet(k, v, w), "%s: %s and %s", names[_i], v->name,
                                  w->name);
                }
        }
    ck_assert_int_lt(bytes, sum);
    ck_assert_int_gt(again, 0);
    arena_free(c.x.a);
}

// The gradient of what each head and position has of its own is stored; others are added up.
ARENA_TEST(own_gradients_are_stored) {
    static const struct {
        const char *name, *input;
        bool adds;
    } cases[] = {{"kda", "dlog_decay", false},
                 {"kda", "dbeta", false},
                 {"mamba2", "ddt", false},
                 {"mamba2", "dA", true},
                 {"rwkv6", "du", true}};
    for (int i = 0; i < 5; i++) {
        Case c;
        int stores = 0;
        const TileProgram *p = of_library(a, &c, cases[i].name);
        const TileKernel *k = gradients_of(p);
        for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
            if (op->kind != TILE_STORE) continue;
            if (strcmp(p->tensors.data[op->tensor].name, cases[i].input) != 0) continue;
            ck_assert_int_eq(op->add, cases[i].adds);
            ck_assert_int_eq(tile_is_zeroed(p, op->tensor), cases[i].adds);
            stores++;
        }
        ck_assert_int_eq(stores, 1);
        arena_free(c.x.a);
    }
}

// An input that is read at two places adds both up.
TEST(two_places_are_added) {
    Case c;
    int32_t size[] = {1, 2, 1, 1, 1, 5};
    PassOptions o = {.dtype = DT_F32, .target = *target_get(TARGET_HOST)};
    open(&c,
         "recurrence r { dim D = 8, Dv = 4; input x: f32[B, H, S, D] grad; "
         "key(k, b, h, t, d) = k * x[b, h, t, d]; decay(b, h, t) = exp(-abs(x[b, h, t, 0])); }",
         size, 5);
    cu_target(4, &o.target);
    Diags diags = diag_list(c.x.a);
    const TileProgram *p = pass_recurrence_backward(c.x.a, c.back, &o, &diags);
    test_good(p, &diags);
    ck_assert(tile_is_zeroed(p, pu_tensor(p, TENSOR_GRAD, 0)));
    arena_free(c.x.a);
}
