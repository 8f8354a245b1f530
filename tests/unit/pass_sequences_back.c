// Backward programs of ragged batches, interpreted: as they are built, and as targets run them, against the reference's derivative of each
// sequence. Rows that no sequence has hold NaN where they are read. Gradients of parts, some packed queries with some packed keys, add up
// to those of the whole.
#include "sequences_util.h"

#include "passes/derive/backward.h"

typedef struct Range {
    int first, n;
} Range;

typedef struct Case {
    Arena *a;
    Variant *v;
    const Backward *b;
    TileProgram *forward, *backward, *part; // part: NULL: the whole is at hand
} Case;

static const char *const grads[] = {
    // of every kind: of the batch's sequences, their queries and keys, heads; of other sequences; of rows alone
    "import std.normalization; attention t { dim D = 8, Dv = 4; input bias: f32[B, H, Sk] grad; "
    "input gate: f32[B, Sq] grad; input slope: f32[H] grad; input scale: f32[B] grad; input shift: "
    "f32[Sk] grad; input far: f32[H, Sk, B] grad; input sink: f32[B, Sq, H] grad; input one: f32 "
    "grad; "
    "score(q, k) = dot(q, k) * 0.4; modify(s, b, h, i, j) = s * scale[b] + bias[b, h, j] + "
    "slope[h] "
    "* 0.1 * f32(i - j) + shift[j] + far[h, j - 1, b + 1] * one; mask(b, h, i, j) = i - j < 6 && "
    "j "
    "<= i; normalize(s, b, h, i) = softmax_with_sink(s, sink[b, i - q_offset, h] + bias[b, h, 0]); "
    "output(o, b, h, i, d) = o * gate[b, i - q_offset] + bias[b, h, 1]; }",
    // further sweeps, what is aggregated made again, norms
    "attention t { dim D = 8; score(q, k) = dot(q, k) - 0.2 * sqnorm(k); mask(b, h, i, j) = j < i; "
    "normalize(s) { let n = rowsum(1.0); let mean = rowsum(s) / n; emit mean = mean; return (s - "
    "mean) / (n + rowsum(s * s)); } output(o) = o * rsqrt(sqnorm(o) + 0.5); }",
    // rows beside q and k, v in k, factors of channels, slices
    "import std.normalization; attention t { dim D = 24, Dv = 16; input q_pe: bf16[B, H, Sq, 16] "
    "grad; input k_pe: bf16[B, 1, Sk, 16] grad; input gain: f32[D] grad; share v = k; query(x, b, "
    "h, i, d) = x * rsqrt(sqnorm(x) / D + 0.1) * gain[d]; score(q, k) = (dot(q, k) + dot(q_pe, "
    "k_pe)) * 0.3 + dot(q[8:24], k[:16]) * 0.1; mask(b, h, i, j) = j <= i; normalize(s) = "
    "softmax(s); }",
};
enum { GRADS = sizeof grads / sizeof *grads };

static const char *const parted[] = {
    // positions and sizes of the whole, arrays of the whole, rows of the pair's own
    "import std.normalization; attention t { dim D = 8, Dv = 4; input bias: f32[B, H, Sk] grad; "
    "input gate: f32[B, Sq] grad; input slope: f32[H] grad; input scale: f32[B] grad; input shift: "
    "f32[Sk] grad; input sink: f32[B, Sq, H] grad; input one: f32 grad; score(q, k) = dot(q, k) * "
    "0.4; modify(s, b, h, i, j) = s * scale[b] + bias[b, h, j] + slope[h] * 0.1 * f32(i - j) + "
    "shift[j] * f32(Sk - Sq) * one + shift[j + 1] + gate[b, i - q_offset] * 0.3; mask(b, h, i, j) "
    "= i - j < 6 && j <= i; normalize(s, b, h, i) = softmax_with_sink(s, sink[b, i - q_offset, h]);"
    " }",
    // rows of which nothing is saved
    "attention t { dim D = 16; score(q, k) = dot(q, k) * 0.4; modify(s, b, h, i, j) = max(s, 0) / "
    "Sk; mask(b, h, i, j) = j % 3 != 1 && j < i + 2; normalize(s) = s; }",
};
enum { PARTED = sizeof parted / sizeof *parted };

static TileProgram *good(TileProgram *p, Diags *diags) {
    if (!p) diag_print(diags, stderr);
    ck_assert(p != NULL);
    return p;
}

static bool has_parts(Arena *a, const Stream *s) {
    Diags diags = diag_list(a);
    return pass_accepts_parts(s, true, &diags) &&
           pass_accepts_parts_of_layout(s->row, BATCH_RAGGED, &diags);
}

// parts: of gradients that have parts; else no Case.b.
static Case make(Arena *a, const char *path, const char *text, TargetId target, Dtype dtype,
                 Knobs nest, bool parts) {
    Case c = {.a = a};
    Diags diags = diag_list(a);
    PassOptions o = {.target = *target_get(TARGET_HOST), .dtype = DT_F32, .batch = BATCH_RAGGED};
    const Stream *s = pu_stream(a, text ? "t.attn" : path, text,
                                text                     ? 0
                                : target == TARGET_SM90A ? 16
                                                         : 8,
                                &c.v);
    if (!pass_accepts_layout(s->row, BATCH_RAGGED, &diags)) return c;
    if (parts && !has_parts(a, s)) return c;
    c.b = pass_backward(a, s->written, &diags);
    o.saves = c.b;
    c.forward = good(pass_program(a, c.b->s, &o, NULL, &diags), &diags);
    o.target = *target_get(target);
    o.dtype = dtype;
    o.schedule = nest;
    c.backward = good(pass_backward_program(a, c.b, &o, &diags), &diags);
    tu_read_back(a, c.backward);
    o.phase = PHASE_PART_BWD;
    if (parts && !(c.part = pass_backward_program(a, c.b, &o, &diags))) {
        ck_assert_msg(strstr(diags.first->message, "has no parts"), "%s", diags.first->message);
        c.b = NULL;
    }
    if (c.part) tu_read_back(a, c.part);
    return c;
}

// How many sequences have each row.
static int *owners_of(const Case *c, const Launch *l, bool keys) {
    RefBatch x = batch_of(l);
    int64_t first;
    int *n = ARENA_ARRAY(c->a, int, (keys ? l->Tk : l->Tq) + 1);
    for (int b = 0; b < l->B; b++)
        for (int i = 0; i < (keys ? ref_keys(&x, b) : ref_queries(&x, b, &first)); i++)
            n[keys ? ref_key_row(&x, b, i) : first + i]++;
    return n;
}

static void spoil(const TileTensor *t, const TileData *x, double *at, const int *owners) {
    int64_t n = tile_tensor_elements(t, x->size),
            rows = ex_uses(t->extent[0], SYM_SIZE, -1) ? tile_eval_launch(t->extent[0], x->size, 4)
                                                       : 0;
    for (int64_t e = 0; rows && e < n; e++)
        if (!owners[e / (n / rows)]) at[e] = (double)NAN;
}

static void compare(const TileTensor *t, const double *want, const double *got, int64_t n,
                    int64_t each, const int *owners, double may, const char *what) {
    double most = 0, size = 1e-3;
    for (int64_t e = 0; e < n; e++) {
        if (owners && !owners[e / each]) {
            ck_assert_msg(got[e] == 0 || got[e] == -12345, "%s: %s has %g where no sequence is",
                          what, t->name, got[e]);
            continue;
        }
        most = fmax(most, isnan(got[e]) ? INFINITY : fabs(want[e] - got[e]));
        size = fmax(size, fabs(want[e]));
    }
    ck_assert_msg(most <= may * size, "%s: %s is off by %g of %g", what, t->name, most, size);
}

// How many elements of a tensor the rows before `at` have; 0: it has other rows.
static int64_t before(const TileProgram *p, const TileTensor *t, const TileData *x, Range at[2]) {
    static const char *const rows[] = {"Tq", "Tk"};
    const Ex *e = t->rank ? t->extent[0] : NULL;
    for (int i = 0; i < 2 && e && e->op == EX_SYM && e->sym == SYM_SIZE; i++)
        if (!strcmp(p->sizes.data[e->index].name, rows[i]) && at[i].n)
            return tile_tensor_elements(t, x->size) / at[i].n * at[i].first;
    return 0;
}

// Of some packed queries and keys; adds to what y has.
static bool add_part(const Case *c, const Launch *whole, const TileData *y, Range at[2],
                     Diags *diags) {
    Launch l = *whole;
    const TileProgram *p = c->part;
    l.Tq = at[0].n, l.Tk = at[1].n;
    cut_line(c->a, l.B, whole->q_start, at[0].first, l.Tq, &l.q_start, &l.q_first);
    cut_line(c->a, l.B, whole->kv_start, at[1].first, l.Tk, &l.kv_start, &l.kv_first);
    set_whole(c->a, whole, &l);
    int *offset = ARENA_ARRAY(c->a, int, l.B + 1);
    for (int b = 0; b < l.B && l.q_offset; b++) offset[b] = whole->q_offset[b] + l.q_first[b];
    if (l.q_offset) l.q_offset = offset;
    TileData *x = data_of(c->a, p, &l);
    for (int i = 0; i < p->tensors.n; i++) {
        const TileTensor *t = &p->tensors.data[i];
        int from = pu_named(c->backward, t->name);
        if (t->role == TENSOR_WORK || tile_is_index(t) || from < 0) continue;
        int64_t n = tile_tensor_elements(t, x->size), skip = before(p, t, x, at);
        for (int64_t e = 0; e < n; e++)
            if (t->rank) x->tensor[i][e] = tile_is_result(p, t) ? 0 : y->tensor[from][skip + e];
    }
    x->scalar = y->scalar;
    if (!tile_eval(p, x, false, diags)) return false;
    for (int i = 0; i < p->tensors.n; i++) {
        const TileTensor *t = &p->tensors.data[i];
        if (!tile_is_result(p, t)) continue;
        int64_t n = tile_tensor_elements(t, x->size), skip = before(p, t, x, at);
        double *to = y->tensor[pu_named(c->backward, t->name)] + skip;
        for (int64_t e = 0; e < n; e++) to[e] += x->tensor[i][e];
    }
    return true;
}

// Pieces of the line of queries with pieces of the line of keys, some of them empty.
static bool add_parts(const Case *c, const Launch *l, const TileData *y, Diags *diags) {
    int queries[] = {0, l->Tq / 3, l->Tq}, keys[] = {0, l->Tk / 5, l->Tk / 5, l->Tk * 2 / 3, l->Tk};
    for (int i = 0; i < c->backward->tensors.n; i++) {
        const TileTensor *t = &c->backward->tensors.data[i];
        int64_t n = tile_tensor_elements(t, y->size);
        for (int64_t e = 0; e < n && tile_is_result(c->backward, t); e++) y->tensor[i][e] = 0;
    }
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 4; k++) {
            Range at[] = {{queries[i], queries[i + 1] - queries[i]},
                          {keys[k], keys[k + 1] - keys[k]}};
            if (!add_part(c, l, y, at, diags)) return false;
        }
    return true;
}

static void check_launch(const Case *c, const Launch *l, const char *what) {
    Diags diags = diag_list(c->a);
    const int *queries = owners_of(c, l, false), *keys = owners_of(c, l, true);
    TileData *x = data_of(c->a, c->forward, l), *y = data_of(c->a, c->backward, l);
    if (!tile_eval(c->forward, x, false, &diags)) diag_print(&diags, stderr);
    const double **demits = ARENA_ARRAY(c->a, const double *, c->v->emits.n + 1);
    double **dinputs = ARENA_ARRAY(c->a, double *, c->v->inputs.n + 1), *want[3] = {NULL};
    static const char *const names[] = {"dq", "dk", "dv"};
    for (int i = 0; i < c->backward->tensors.n; i++) {
        const TileTensor *t = &c->backward->tensors.data[i];
        int from = pu_named(c->forward, t->name);
        int64_t n = tile_tensor_elements(t, y->size);
        TensorSide side = tensor_traits(t->role)->side;
        if (from >= 0 && t->role != TENSOR_WORK) y->tensor[i] = x->tensor[from];
        if (t->role == TENSOR_DEMIT) demits[t->index] = y->tensor[i];
        if (t->role == TENSOR_GRAD) dinputs[t->index] = ARENA_ARRAY(c->a, double, n + 1);
        bool reads = side && tile_is_read(c->backward, t) && !tile_is_written(c->backward, t);
        if (reads) spoil(t, y, y->tensor[i], side == SIDE_KEYS ? keys : queries);
        for (int k = 0; k < 3; k++) {
            if (strcmp(t->name, names[k]) != 0) continue;
            want[k] = ARENA_ARRAY(c->a, double, n + 1);
            for (int64_t e = 0; e < n; e++) y->tensor[i][e] = -12345;
        }
    }
    y->scalar = x->scalar;
    bool ran = c->part ? add_parts(c, l, y, &diags) : tile_eval(c->backward, y, false, &diags);
    if (!ran) diag_print(&diags, stderr);
    ck_assert_msg(ran, "%s does not run", what);
    int64_t(*extent)[EX_MAX_RANK] =
        (void *)ARENA_ARRAY(c->a, int64_t, (c->v->inputs.n + 1) * EX_MAX_RANK);
    for (int i = 0; i < c->v->inputs.n; i++)
        for (int d = 0; d < EX_MAX_RANK; d++) extent[i][d] = l->longest;
    RefBatch batch = batch_of(l);
    batch.extent = (const int64_t(*)[EX_MAX_RANK])extent;
    RefRun run = pu_run(c->a, c->v, c->forward, x, NULL);
    RefGrad g = {.run = &run,
                 .d_o = y->tensor[pu_named(c->backward, "do")],
                 .demits = demits,
                 .dq = want[0],
                 .dk = want[1],
                 .dv = want[2],
                 .dinputs = dinputs};
    ref_batch_grad(&batch, &g);
    for (int i = 0; i < c->backward->tensors.n; i++) {
        const TileTensor *t = &c->backward->tensors.data[i];
        int64_t n = tile_tensor_elements(t, y->size);
        if (t->role == TENSOR_GRAD)
            compare(t, dinputs[t->index], y->tensor[i], n, 1, NULL, 1e-5, what);
        for (int k = 0; k < 3; k++)
            if (!strcmp(t->name, names[k]))
                compare(t, want[k], y->tensor[i], n, n / (k ? l->Tk : l->Tq), k ? keys : queries,
                        1e-5, what);
    }
}

static void check(const char *path, const char *text, TargetId target, Dtype dtype, Knobs nest,
                  bool parts) {
    static const int far_q[] = {1, 41, 41, 42, 170, 179, 179},
                     far_k[] = {0, 70, 75, 75, 205, 206, 209};
    Launch all[] = {ragged,
                    with(ragged, starts, offsets, 0),
                    with(ragged, wild, offsets, 5),
                    {.batch = BATCH_RAGGED,
                     .B = 6,
                     .H = 4,
                     .Hkv = 2,
                     .Tq = 180,
                     .max_q = 180,
                     .Tk = 210,
                     .q_start = far_q,
                     .kv_start = far_k,
                     .longest = 210},
                    with(ragged, starts, NULL, 3)};
    all[2].kv_start = wild;
    all[4].B = 0;
    Arena *a = arena_new();
    Case c = make(a, path, text, target, dtype, nest, parts);
    for (size_t i = 0; c.b && i < sizeof all / sizeof *all; i++) {
        char what[256];
        if (parts && i == 2) continue; // a line that is cut begins somewhere
        snprintf(what, sizeof what, "%s for %s, launch %zu%s", text ? text : path,
                 target_get(target)->name, i, parts ? ", in parts" : "");
        check_launch(&c, &all[i], what);
    }
    arena_free(a);
}

static const TargetId targets[] = {TARGET_HOST, TARGET_SM80, TARGET_SM90A, TARGET_GFX942};
enum { TARGETS = sizeof targets / sizeof *targets };

static void check_file(const char *path, int which) {
    check(path, NULL, targets[which], which ? DT_BF16 : DT_F32, (Knobs){0}, false);
}

static void check_parts(const char *path, int which) {
    check(path, NULL, targets[which], which ? DT_BF16 : DT_F32, (Knobs){0}, true);
}

static void check_nest(const char *path, int which) { // of those that have one
    (void)which;
    static const char *const those[] = {"causal.attn", "alibi.attn", "softmax.attn", "gqa.attn"};
    bool has = false;
    for (size_t i = 0; i < sizeof those / sizeof *those; i++) has |= strstr(path, those[i]) != NULL;
    if (has)
        check(path, NULL, TARGET_SM90A, DT_BF16,
              (Knobs){.said = 1u << KNOB_warpgroups, .warpgroups = 2}, false);
}

TEST_EACH(texts_and_targets, 0, (TEXTS + GRADS) * TARGETS) {
    int text = _i / TARGETS;
    check(NULL, text < TEXTS ? texts[text] : grads[text - TEXTS], targets[_i % TARGETS],
          _i % TARGETS ? DT_BF16 : DT_F32, (Knobs){0}, false);
}

TEST_EACH(texts_in_parts, 0, PARTED *TARGETS) {
    check(NULL, parted[_i / TARGETS], targets[_i % TARGETS], _i % TARGETS ? DT_BF16 : DT_F32,
          (Knobs){0}, true);
}

TEST_EACH(library, 0, TARGETS) { pu_library(check_file, _i); }

TEST(library_in_parts) { pu_library(check_parts, 0); }

TEST(nests) { pu_library(check_nest, 0); }
