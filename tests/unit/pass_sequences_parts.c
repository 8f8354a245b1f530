// Parts of ragged and paged batches, interpreted as targets run them: the keys of each sequence in parts, as ranks have them, whose states are
// combined, against the float64 reference of the whole batch.
#include "sequences_util.h"

enum { MOST_PARTS = 3 };

typedef struct Parts {
    Arena *a;
    const Variant *v;
    const TileProgram *whole, *part, *combine;
    const TileData *x; // of the whole
    Launch l;
    int n, block; // pages of a run
} Parts;

static int keys_of(const Parts *c, int b) {
    RefBatch batch = batch_of(&c->l);
    return ref_keys(&batch, b);
}

static int tensor_called(const TileProgram *p, const char *name) {
    for (int i = 0; i < p->tensors.n; i++)
        if (!strcmp(p->tensors.data[i].name, name)) return i;
    return -1;
}

// What the whole has by the same name, of ragged keys from row `first` on.
static void take_data(const Parts *c, const TileProgram *p, const TileData *x, int first) {
    for (int i = 0; i < p->tensors.n; i++) {
        const TileTensor *t = &p->tensors.data[i];
        int from = tensor_called(c->whole, t->name);
        if (from < 0 || tile_is_index(t) || !tile_is_read(p, t) || t->role == TENSOR_WORK) continue;
        int64_t n = tile_tensor_elements(t, x->size);
        int64_t all = tile_tensor_elements(&c->whole->tensors.data[from], c->x->size);
        bool keys = all != n && c->l.batch == BATCH_RAGGED;
        int64_t skip = keys && c->l.Tk ? all / c->l.Tk * first : 0;
        ck_assert_int_le(skip + n, all);
        memcpy(x->tensor[i], c->x->tensor[from] + skip, sizeof(double) * (size_t)n);
    }
}

static TileData *data(const Parts *c, const TileProgram *p, Launch l, int part) {
    int32_t *size = ARENA_ARRAY(c->a, int32_t, p->sizes.n + 1);
    set_whole(c->a, &c->l, &l);
    if (part % 2 == 0) l.Sq_all = NULL;
    set_sizes(p, &l, size);
    set(p, size, "parts", c->n < 2 ? 1 : 2);
    bool runs = l.batch == BATCH_PAGED;
    set(p, size, "kv_block", runs ? c->block * l.page : 0);
    set(p, size, "kv_stride", runs ? c->n * c->block * l.page : 0);
    return data_at(c->a, p, &l, size);
}

// Of the packed keys a range; of tables each n-th run of pages.
static TileData *cut(const Parts *c, int part) {
    Launch l = c->l;
    if (l.batch == BATCH_RAGGED) {
        int step = (l.Tk + c->n - 1) / c->n, at = clamp(part * step, 0, l.Tk);
        l.Tk = clamp(at + step, 0, c->l.Tk) - at;
        cut_line(c->a, l.B, c->l.kv_start, at, l.Tk, &l.kv_start, &l.kv_first);
        TileData *x = data(c, c->part, l, part);
        take_data(c, c->part, x, at);
        return x;
    }
    int B = l.B, *first = ARENA_ARRAY(c->a, int, B + 1), *lens = ARENA_ARRAY(c->a, int, B + 2);
    int *table = ARENA_ARRAY(c->a, int, B *l.table + 1), runs = c->n * c->block, width = 0;
    for (int i = 0; i < c->l.table; i++) width += i % runs / c->block == part;
    for (int b = 0; b < B; b++) {
        int n = 0, keys = keys_of(c, b);
        for (int i = 0; i < c->l.table; i++) {
            if (i % runs / c->block != part) continue;
            lens[b] += clamp(keys - i * l.page, 0, l.page);
            table[b * width + n++] = c->l.page_table[b * c->l.table + i];
        }
        first[b] = part * c->block * l.page;
    }
    l.table = width, l.page_table = table, l.kv_len = lens, l.kv_first = first;
    TileData *x = data(c, c->part, l, part);
    take_data(c, c->part, x, 0);
    return x;
}

static double *kept(const TileProgram *p, const TileData *x, TensorRole role, int64_t *n) {
    int t = pu_tensor(p, role, 0);
    if (t < 0) return NULL;
    *n = tile_tensor_elements(&p->tensors.data[t], x->size);
    return x->tensor[t];
}

// What a state begins with: 0, or what was left (before; NULL: nothing).
static void begin(const Parts *c, const TileProgram *p, const TileData *x, const TileData *before,
                  TensorRole to, TensorRole from, int slot, int slots) {
    int64_t n = 0, m = 0;
    double *into = kept(p, x, to, &n), *was = before ? kept(c->part, before, from, &m) : NULL;
    if (!into) return;
    n /= slots;
    if (was) ck_assert_int_eq(n, m);
    for (int64_t i = 0; i < n; i++) into[slot * n + i] = was ? was[i] : 0;
}

static void run(const TileProgram *p, const TileData *x) {
    Diags diags = diag_list(p->arena);
    bool ok = tile_eval(p, x, true, &diags);
    if (!ok) diag_print(&diags, stderr);
    ck_assert_msg(ok, "%s does not run", p->name);
}

static double error_of(const Parts *c) {
    TileData *state[2] = {NULL, NULL};
    int slots = c->n < 2 ? 1 : 2;
    for (int i = 0; i < c->n; i++) {
        TileData *x = cut(c, i), **s = &state[i % slots];
        begin(c, c->part, x, *s, TENSOR_STATE0, TENSOR_STATE, 0, 1);
        begin(c, c->part, x, *s, TENSOR_ROWS0, TENSOR_ROWS, 0, 1);
        run(c->part, x);
        *s = x;
    }
    TileData *x = data(c, c->combine, c->l, 1);
    take_data(c, c->combine, x, 0);
    for (int i = 0; i < slots; i++) {
        begin(c, c->combine, x, state[i], TENSOR_STATE0, TENSOR_STATE, i, slots);
        begin(c, c->combine, x, state[i], TENSOR_ROWS0, TENSOR_ROWS, i, slots);
    }
    for (int i = 0; i < c->combine->tensors.n; i++)
        if (tile_is_result(c->combine, &c->combine->tensors.data[i]))
            written(c->a, c->combine, x, i);
    run(c->combine, x);
    return tile_data_distance(c->combine, x, c->whole, expected(c->a, c->v, c->whole, c->x, &c->l));
}

static TileProgram *made(Arena *a, const Stream *s, PassOptions o, TilePhase phase) {
    Diags diags = diag_list(a);
    o.phase = phase;
    TileProgram *p = pass_program(a, s, &o, NULL, &diags);
    if (!p) diag_print(&diags, stderr);
    ck_assert_msg(p != NULL, "%s has no program", s->row->name);
    return p;
}

static bool has_parts(Arena *a, const Stream *s, BatchLayout batch) {
    Diags diags = diag_list(a);
    return has_layout(a, s, batch) && pass_accepts_parts(s, true, &diags) &&
           pass_accepts_parts_of_layout(s->row, batch, &diags);
}

// half: of bf16, by products of warpgroups.
static void check(const char *path, const char *text, const Launch *l, bool half) {
    static const TargetId targets[] = {TARGET_HOST, TARGET_SM80, TARGET_SM90A, TARGET_GFX942};
    for (int t = half ? 2 : 0; t < (half ? 3 : 4); t++) {
        Arena *a = arena_new();
        Variant *v;
        Stream *s = pu_stream(a, text ? "t.attn" : path, text, text ? 0 : half ? 16 : 8, &v);
        PassOptions o = {
            .dtype = half ? DT_BF16 : DT_F32, .batch = l->batch, .split = true, .few = half};
        o.page = l->batch == BATCH_PAGED && t % 2 ? l->page : 0;
        Parts c = {.a = a, .v = v, .l = *l};
        if (has_parts(a, s, l->batch)) {
            o.target = *target_get(TARGET_HOST);
            c.whole = made(a, s, o, PHASE_FWD);
            c.x = data_of(a, c.whole, l);
            o.target = *target_get(targets[t]);
            o.invariant = t == 1;
            c.part = made(a, s, o, PHASE_PART), c.combine = made(a, s, o, PHASE_COMBINE);
            tu_read_back(a, (TileProgram *)c.part), tu_read_back(a, (TileProgram *)c.combine);
            for (c.n = 1; c.n <= MOST_PARTS; c.n++) {
                c.block = 1 + (c.n == 2);
                double d = error_of(&c);
                ck_assert_msg(d < (half ? 3e-2 : 1e-3), "%s for %s, %s in %d parts: %g apart",
                              v->name, o.target.name, batch_name(l->batch), c.n, d);
            }
        }
        arena_free(a);
    }
}

static const char *const parted[] = {
    // positions, sizes of the whole, rows of the pair's own
    "import std.normalization; attention t { dim D = 8, Dv = 4; input bias: f32[B, H, Sk]; input "
    "gate: f32[B, Sq]; input slope: f32[H]; input scale: f32[B]; input shift: f32[Sk];"
    "score(q, k) = dot(q, k); modify(s, b, h, i, j) = s * scale[b] + bias[b, h, j] + slope[h] * "
    "f32(i - j) + shift[j] * f32(Sk - Sq) + shift[j + 1]; mask(b, h, i, j) = i - j < 6 && j <= i; "
    "normalize(s) = softmax(s); "
    "output(o, b, h, i, d) = o * gate[b, i - q_offset] + f32(q_offset); }",
    // no row has a number beside its sums
    "attention t { dim D = 8; score(q, k) = dot(q, k); modify(s, b, h, i, j) = max(s, 0) / Sk; "
    "mask(b, h, i, j) = j % 3 != 1 && j < i + 2; normalize(s) = s; }",
};
enum { PARTED = sizeof parted / sizeof *parted, SOUND = 6 };

// Launches whose tensors say no nonsense.
static Launch sound(int i) {
    static const int of[SOUND] = {0, 1, 4, 5, 6, 7};
    Launch all[LAUNCHES];
    launches(all);
    return all[of[i]];
}

TEST_EACH(texts_in_parts, 0, (PARTED + 1) * SOUND) {
    Launch l = sound(_i % SOUND);
    int text = _i / SOUND;
    check(NULL, text < PARTED ? parted[text] : texts[0], &l, false);
}

static void check_file(const char *path, int launch) {
    Launch l = sound(launch);
    check(path, NULL, &l, false);
}

TEST(library_ragged_in_parts) { pu_library(check_file, 1); }

TEST(library_paged_in_parts) { pu_library(check_file, 3); }

TEST(library_decodes_in_parts) { pu_library(check_file, 5); }

TEST_EACH(warpgroups_in_parts, 0, SOUND) {
    Launch l = sound(_i);
    check("stdlib/causal.attn", NULL, &l, true);
    check("stdlib/attention_sink.attn", NULL, &l, true);
}

TEST(says_what_has_no_parts) {
    Arena *a = arena_new();
    Diags diags = diag_list(a);
    Stream *s = pu_stream(a, "t.attn", texts[3], 0, NULL);
    ck_assert(pass_accepts_parts_of_layout(s->row, BATCH_DENSE, &diags));
    ck_assert(!pass_accepts_parts_of_layout(s->row, BATCH_PAGED, &diags));
    ck_assert_str_eq(diags.first->message, "'doc' is read at another row than the pair's own: of a "
                                           "part in layout paged that row may lie elsewhere");
    arena_free(a);
}
