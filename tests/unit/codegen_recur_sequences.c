// Ragged recurrences: the algorithm, and the schedules of all targets in the interpreter; the host's code, with tensors that end where no
// memory is. Against the float64 reference of such batches: random recurrences, lengths of 0, 1 and around chunks, slots that no sequence
// names, tensors that say nonsense.
#include "codegen_util.h"
#include "frontend/reference_batch.h"
#include "pass_util.h"
#include "rec_util.h"

enum { B = 5, TQ = 61, SLOTS = 8, LONGEST = 64 };
#define STAYS 0.125

typedef struct Launch {
    int Tq, slots, max_q;
    const int *q_start, *state_index; // NULL: left out
} Launch;

static const int starts[] = {1, 18, 18, 19, 52, 60}, wild[] = {5, -3, 90, 1000000000, 24, -7};
static const int slots[] = {3, 1, 7, 0, 4}, far[] = {-5, 6, 100, 3, 2};
static const Launch launches[] = {{TQ, B, TQ, starts, NULL},    {TQ, SLOTS, 1, starts, slots},
                                  {TQ, SLOTS, 17, starts, far}, {TQ, SLOTS, 5, wild, slots},
                                  {B, B, 1, NULL, NULL},        {8 * B, SLOTS, 8, NULL, slots}};
enum { LAUNCHES = sizeof launches / sizeof *launches };

static void set(const TileProgram *p, int32_t *size, const char *name, int value) {
    for (int i = 0; i < p->sizes.n; i++)
        if (!strcmp(p->sizes.data[i].name, name)) size[i] = value;
}

static double *of_role(const TileProgram *p, const TileData *x, TensorRole role) {
    return x->tensor[pu_tensor(p, role, 0)];
}

static int64_t elements(const TileProgram *p, const TileData *x, TensorRole role) {
    return tile_tensor_elements(&p->tensors.data[pu_tensor(p, role, 0)], x->size);
}

static void put(const TileProgram *p, const TileData *x, TensorRole role, const int *from) {
    int64_t n = from ? elements(p, x, role) : 0;
    for (int64_t i = 0; i < n; i++) of_role(p, x, role)[i] = from[i];
}

static RefBatch batch_of(const Launch *l) {
    return (RefBatch){.B = B,
                      .Tq = l->Tq,
                      .q_start = l->q_start,
                      .state_index = l->state_index,
                      .slots = l->slots};
}

static void fill(double *x, int64_t n, double value) {
    for (int64_t i = 0; i < n; i++) x[i] = value;
}

// What no sequence has is NaN where it is read, and stays where it is written.
static void spoil(const TileProgram *p, const TileData *x, const Launch *l) {
    static const TensorRole rows[] = {TENSOR_Q, TENSOR_K, TENSOR_V};
    bool live[TQ] = {false}, named[SLOTS] = {false};
    RefBatch batch = batch_of(l);
    int64_t first, each = elements(p, x, TENSOR_STATE0) / l->slots;
    for (int b = 0; b < B; b++) {
        int n = ref_queries(&batch, b, &first);
        for (int i = 0; i < n; i++) live[first + i] = named[ref_slot(&batch, b)] = true;
    }
    for (int i = 0; i < l->slots; i++)
        if (!named[i]) fill(of_role(p, x, TENSOR_STATE0) + i * each, each, (double)NAN);
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < l->Tq; i++) {
            int64_t width = elements(p, x, rows[k]) / l->Tq;
            if (!live[i]) fill(of_role(p, x, rows[k]) + i * width, width, (double)NAN);
        }
    fill(of_role(p, x, TENSOR_O), elements(p, x, TENSOR_O), STAYS);
    fill(of_role(p, x, TENSOR_STATE), elements(p, x, TENSOR_STATE), STAYS);
}

static TileData *data_of(RuCase *x, const TileProgram *p, const Launch *l, uint32_t seed) {
    int32_t *size = ARENA_ARRAY(x->a, int32_t, p->sizes.n + 1);
    const struct {
        const char *name;
        int value;
    } sizes[] = {{"B", B},
                 {"H", 4},
                 {"Hq", 2},
                 {"Hk", 1},
                 {"Hv", 4},
                 {"Tq", l->Tq},
                 {"slots", l->slots},
                 {"max_q", l->max_q},
                 {"q_start_0", l->q_start ? B + 1 : 0},
                 {"state_index_0", l->state_index ? B : 0}};
    for (int i = 0; i < p->sizes.n; i++) size[i] = LONGEST; // extents of what has S and no B
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        set(p, size, sizes[i].name, sizes[i].value);
    TileData *d = tile_data_random(x->a, p, size, 4, 3);
    for (int i = 0; i < p->tensors.n; i++) {
        const TileTensor *t = &p->tensors.data[i];
        bool keys = t->role == TENSOR_Q || t->role == TENSOR_K;
        double scale = keys ? 1.7 / sqrt(x->v->D) : 1;
        for (int64_t e = 0; e < tile_tensor_elements(t, size); e++)
            d->tensor[i][e] = (float)(t->role == TENSOR_INPUT && t->dtype != DT_I32
                                          ? ru_drawn(t->name, &seed)
                                          : scale * test_uniform(&seed));
    }
    put(p, d, TENSOR_Q_START, l->q_start), put(p, d, TENSOR_STATE_INDEX, l->state_index);
    spoil(p, d, l);
    return d;
}

static double *copy_of(RuCase *x, const TileProgram *p, const TileData *d, TensorRole role) {
    int64_t n = elements(p, d, role);
    return memcpy(ARENA_ARRAY(x->a, double, n + 1), of_role(p, d, role),
                  sizeof(double) * (size_t)n);
}

// Outputs as the reference has them. What several sequences name is as it comes. state: before the launch.
static void compare(RuCase *x, const TileProgram *p, const TileData *got, const double *state0,
                    double *state, const Launch *l, const char *source, const char *what,
                    double bound) {
    const void **inputs = ARENA_ARRAY(x->a, const void *, p->inputs.n + 1);
    int64_t(*extent)[EX_MAX_RANK] =
        (void *)ARENA_ARRAY(x->a, int64_t, (p->inputs.n + 1) * EX_MAX_RANK);
    int64_t no = elements(p, got, TENSOR_O), ns = elements(p, got, TENSOR_STATE),
            each = ns / l->slots;
    double *o = ARENA_ARRAY(x->a, double, no + 1);
    int32_t *owners = ARENA_ARRAY(x->a, int32_t, l->Tq + l->slots + 1);
    for (int i = 0; i < x->v->inputs.n; i++) {
        inputs[i] = pu_input(x->a, p, got, i);
        for (int d = 0; d < EX_MAX_RANK; d++) extent[i][d] = LONGEST;
    }
    fill(o, no, STAYS);
    RefBatch batch = batch_of(l);
    batch.extent = (const int64_t(*)[EX_MAX_RANK])extent;
    RefRun r = {.variant = x->v,
                .sizes = got->size,
                .q = of_role(p, got, TENSOR_Q),
                .k = of_role(p, got, TENSOR_K),
                .v = of_role(p, got, TENSOR_V),
                .inputs = inputs,
                .o = o,
                .state0 = state0,
                .state = state};
    ref_batch_run(&batch, &r, owners);
    for (int i = 0; i < l->slots; i++)
        if (owners[l->Tq + i] > 1)
            memcpy(state + i * each, of_role(p, got, TENSOR_STATE) + i * each,
                   sizeof *state * (size_t)each);
    for (int64_t i = 0; i < no; i++) // rows of several sequences
        if (owners[i / (no / l->Tq)] > 1) o[i] = of_role(p, got, TENSOR_O)[i];
    ru_alike(arena_printf(x->a, "%s: o", what), source, of_role(p, got, TENSOR_O), o, no, bound);
    ru_alike(arena_printf(x->a, "%s: state", what), source, of_role(p, got, TENSOR_STATE), state,
             ns, bound);
}

static void interpret(RuCase *x, const TileProgram *p, const Launch *l, const char *source,
                      bool in_place, uint32_t seed) {
    Diags diags = diag_list(x->a);
    TileData *d = data_of(x, p, l, seed);
    int state = pu_tensor(p, TENSOR_STATE, 0);
    if (in_place) d->tensor[state] = of_role(p, d, TENSOR_STATE0);
    double *from = copy_of(x, p, d, TENSOR_STATE0), *before = copy_of(x, p, d, TENSOR_STATE);
    bool ok = tile_eval(p, d, false, &diags);
    if (!ok) diag_print(&diags, stderr);
    ck_assert_msg(ok, "%s", source);
    compare(x, p, d, from, before, l, source, target_get(p->target)->name, 1e-6);
}

static TileProgram *program(RuCase *x, PassOptions *o, const char *source) {
    Diags diags = diag_list(x->a);
    TileProgram *p = pass_recurrence(x->a, x->c, o, &diags);
    ck_assert_msg(p != NULL, "%s\n%s", diags.first ? diags.first->message : "", source);
    return p;
}

// Its text reads back as the same text.
static void same_text(Arena *a, const TileProgram *p) {
    Diags diags = diag_list(a);
    Text once = text_new(a), twice = text_new(a);
    tile_print(&once, p);
    TileProgram *read = tile_parse(a, once.s, once.n, &diags);
    if (!read) diag_print(&diags, stderr);
    ck_assert(read && tile_verify(read, &diags));
    tile_print(&twice, read);
    ck_assert_str_eq(once.s, twice.s);
}

TEST_EACH(random_ones, 0, 24) {
    static const TargetId targets[] = {TARGET_SM80, TARGET_SM90A, TARGET_GFX90A, TARGET_GFX1100};
    static const int widths[] = {1, 3, 8, 16, 17, 33};
    const Launch *l = &launches[_i % LAUNCHES];
    uint32_t start = 100 + (uint32_t)_i, *seed = &start;
    RuCase x = {.a = arena_new()};
    int D = widths[test_draw(seed, 6)], Dv = widths[test_draw(seed, 6)];
    const char *source = ru_random_source(x.a, D, Dv, seed);
    ru_compile(&x, source);
    PassOptions o = {.dtype = _i % 3 ? DT_F32 : DT_BF16, .batch = BATCH_RAGGED};
    o.target = *target_get(targets[_i % 4]);
    bool held = !strstr(source, "sqnorm(o)"); // by GPUs
    TileProgram *p = held ? program(&x, &o, source) : NULL;
    if (held) same_text(x.a, p);
    if (held) interpret(&x, p, l, source, l->state_index == slots, start);
    o.dtype = DT_F32;
    cu_target(4, &o.target);
    Diags diags = diag_list(x.a);
    if (_i % 4 == 0)
        interpret(&x, pass_recurrence_algorithm(x.a, x.c, &o, &diags), l, source, false, start);
    cu_target(8, &o.target);
    p = program(&x, &o, source);
    TileData *d = data_of(&x, p, l, start);
    double *from = copy_of(&x, p, d, TENSOR_STATE0), *before = copy_of(&x, p, d, TENSOR_STATE);
    cu_run(x.a, p, d, o.target.lanes, _i % 2);
    compare(&x, p, d, from, before, l, source, "code", 2e-5);
    arena_free(x.a);
}

TEST(says_what_has_no_layout) {
    static const char *const sources[] = {
        "recurrence r { dim D = 8; input q_start: f32[S]; decay(b, h, t) = q_start[t]; }",
        "recurrence r { dim D = 8; input x: f32[slots]; decay(b, h, t) = x[t]; }",
        "recurrence r { dim D = 8; input x: f32[B, S, S]; decay(b, h, t) = x[b, t, 0]; }"};
    static const char *const messages[] = {
        "input 'q_start' has the name of a tensor of layout ragged",
        "size 'slots' has the name of a size of layout ragged",
        "'x' has B and 2 dimensions of rows: layout ragged has no such tensor"};
    for (int i = 0; i < 3; i++) {
        RuCase x = {.a = arena_new()};
        Diags diags = diag_list(x.a);
        ru_compile(&x, sources[i]);
        ck_assert(pass_accepts_recurrence_layout(x.rec, BATCH_DENSE, &diags));
        ck_assert(!pass_accepts_recurrence_layout(x.rec, BATCH_RAGGED, &diags));
        ck_assert_str_eq(diags.first->message, messages[i]);
        arena_free(x.a);
    }
}
