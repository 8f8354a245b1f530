// Mask analysis against the mask itself, pair by pair: which tiles the split loops visit, which of
// them without the mask, and what pass_mask_bounds says of rectangles.
#include "pass_util.h"

enum {
    EXACT_SKIP = 1,
    EXACT_FULL = 2,
    EXACT = 3,
    CONSERVATIVE = 0,
    BOUNDS_MAY = 4,
    BOUNDS_MUST = 8,
    BOUNDS = 12
};

// What of the analysis is exact for this mask; it must be conservative for all.
typedef struct MaskCase {
    const char *mask; // over b, h, q, k
    int exact;
} MaskCase;

static const MaskCase masks[] = {
    {"true", EXACT | BOUNDS},
    {"false", EXACT | BOUNDS},
    {"k <= q", EXACT | BOUNDS},
    {"k < q", EXACT | BOUNDS},
    {"k >= q", EXACT | BOUNDS},
    {"k == q", EXACT | BOUNDS},
    {"k != q",
     EXACT_SKIP | BOUNDS}, // full on both sides of the diagonal: one interval of full tiles only
    {"k <= q + 3", EXACT | BOUNDS},
    {"k <= q && q - k < 5", EXACT | BOUNDS},
    {"k <= q && q - k < 16", EXACT | BOUNDS},
    {"k <= q && k > q - 9 && k < 30", EXACT | BOUNDS},
    {"abs(q - k) <= 6", EXACT | BOUNDS},
    {"abs(q - k) > 6", BOUNDS | EXACT_SKIP},
    {"k < 10 || k <= q", EXACT | BOUNDS},
    {"k < Sq || k <= q", EXACT | BOUNDS},
    {"q / 8 == k / 8", EXACT | BOUNDS},
    {"q / 5 == k / 5", EXACT | BOUNDS},
    {"q / 7 == k / 7 && k <= q", EXACT_FULL | BOUNDS},
    {"q / 4 >= k / 4", EXACT | BOUNDS},
    {"q >> 2 == k >> 2", EXACT | BOUNDS},
    {"k <= q / H", EXACT | BOUNDS},
    {"k <= q / H && q / H - k < 3", EXACT | BOUNDS},
    {"q / 4 * 4 <= k", EXACT | BOUNDS},
    {"(q - k) % 3 == 0", EXACT | BOUNDS},
    {"(q - k) % 16 == 0", EXACT | BOUNDS},
    {"(q - k) % 11 == 4", EXACT | BOUNDS},
    {"(q - k) % 16 < 3", EXACT_SKIP | BOUNDS},
    {"(q - k) % 40 > 36", EXACT_SKIP | BOUNDS},
    {"((q - k) & 15) == 2", EXACT_SKIP | BOUNDS_MAY},
    {"k <= q && (q - k) % 16 == 0", EXACT | BOUNDS_MAY},
    {"k <= q && (q - k) % 12 == 5 && q - k < 30", EXACT | BOUNDS_MAY},
    {"k <= q && (q - k < 6 || k < 3)", EXACT_SKIP | BOUNDS_MAY},
    {"h == 0 ? k <= q : abs(q - k) < 9", EXACT | BOUNDS},
    {"h == 0 || k <= q", EXACT | BOUNDS},
    {"h == 1 && k <= q", EXACT | BOUNDS},
    {"k < len[b]", EXACT | BOUNDS},
    {"k <= q && k < len[b] * 8", EXACT | BOUNDS},
    {"k <= q && q - k < win[h] * 4", EXACT_FULL | BOUNDS_MAY},
    {"q - k < limit * 5 && k <= q", EXACT_FULL | BOUNDS_MAY},
    {"k <= q || len[b] == 2", EXACT | BOUNDS},
    {"min(q, 20) >= k", EXACT | BOUNDS},
    {"max(q - 8, 0) <= k && k <= q", EXACT_FULL | BOUNDS},
    {"!(k > q || q - k >= 7)", EXACT | BOUNDS},
    {"k * 2 <= q", EXACT | BOUNDS},
    {"q * 3 >= k * 2 + 1", EXACT | BOUNDS},
    {"k <= 2 * q && q <= 2 * k", CONSERVATIVE},
    {"q % 4 == k % 4", CONSERVATIVE},
    {"q - q % 4 <= k", CONSERVATIVE},
    {"doc[b, q - q_offset] == doc2[b, k]", CONSERVATIVE},
    {"k <= q && doc2[b, k] > 1", CONSERVATIVE},
    {"(doc2[b, k] == 1) == (k < q)", CONSERVATIVE},
    {"f32(k) <= 0.5 * q", BOUNDS},
    {"f32(q - k) * 0.3 < 1.7", BOUNDS},
    {"f32(q) * 0.37 + 1.5 >= f32(k)", BOUNDS},
    {"abs(f32(q) - f32(k) * 1.25) <= rate", BOUNDS},
    {"floor(f32(q) / 7.0) == floor(f32(k) / 7.0)", BOUNDS_MAY},
    {"i32(f32(q) * 0.25) >= k", BOUNDS},
    {"f32(q - k) * rate < 4.0 && k <= q", BOUNDS_MAY},
    {"f32(q - k) * (q - k) < 20.0", CONSERVATIVE},
    {"pow(f32(q - k), 2.0) < 20.0", CONSERVATIVE},
    {"f32(q - k) != 3.0", BOUNDS},
    {"!(f32(q - k) < 3.0)", BOUNDS},
    {"f32(k) * (1.0 / zero) < 3.0", CONSERVATIVE},
    {"f32(k) * zero < 3.0 / zero", CONSERVATIVE},
    {"(k <= q ? f32(k) : f32(q)) < 5.5", CONSERVATIVE},
    {"q * k % 5 < 3", CONSERVATIVE},
    {"((q - k) >> 31) == 0", BOUNDS}, // the sign of a difference
    {"((q - k) >> 30) == 0", BOUNDS},
    {"q >> 31 == k >> 31", CONSERVATIVE},
    {"(q - k) / (-2147483647 - 1) == 0", CONSERVATIVE},
    {"(q - k) / 2147483647 >= 0", CONSERVATIVE},
    {"((k - q) & 2147483647) > 7", CONSERVATIVE},
    {"((q + 3) & 2147483647) >= k", CONSERVATIVE},
    {"(q - k) << 31 == 0", CONSERVATIVE},
    {"q * 100000000 <= k", CONSERVATIVE}, // wraps
    {"k <= q + limit * 1000000000", CONSERVATIVE},
    {"k <= q + huge[b]", CONSERVATIVE},
    {"q - k < huge[b] && k <= q", EXACT_FULL | BOUNDS_MAY},
    {"abs(q - k) <= win[h] * limit", EXACT | BOUNDS},
    {"k - q <= huge[b] * limit", EXACT | BOUNDS},
    {"(q - k) % step == 0", BOUNDS},
    {"(q - k) % (win[h] + 1) == 0", BOUNDS},
    {"(q - k) % step < 3 && k <= q", BOUNDS_MAY},
    {"(q - k) * (q - k) <= 30", BOUNDS},
    {"(q - k) * (q - k) > 30", BOUNDS_MAY},
    {"(q / 8 - k / 8) * (q / 8 - k / 8) + (q % 8 - k % 8) * (q % 8 - k % 8) <= 5", CONSERVATIVE},
    {"q * step <= k * limit", BOUNDS},
    {"k * -step <= q", BOUNDS},
    {"(q & ~7) <= (k & ~7)", EXACT | BOUNDS},
    {"(q & ~7) == (k & ~7)", EXACT | BOUNDS},
    {"(k & ~15) <= q", EXACT | BOUNDS},
    {"k / 8 * 8 <= q - 3", EXACT | BOUNDS},
    {"k / 6 * 6 >= q - 3 && k <= q", CONSERVATIVE},
    {"k * 20 <= q * 11", EXACT | BOUNDS},
    {"((q ^ k) & 8) == 0", CONSERVATIVE},
    {"bool(k & 4) && k <= q", CONSERVATIVE},
    {"(k <= q) != (k < 9)", CONSERVATIVE},
    {"abs(q / 6 - k / 6) <= 1 && abs(q % 6 - k % 6) <= 2", CONSERVATIVE},
};
enum { MASKS = sizeof masks / sizeof *masks };

typedef struct At { // where expressions are evaluated
    const TileProgram *p;
    const TileData *x;
    int b, h, tile[TILE_MAX_AXES], pos[TILE_MAX_AXES], step;
} At;

static ExValue at_sym(void *ctx, const Ex *e) {
    const At *at = ctx;
    ExValue v = {.f = 0};
    switch ((int)e->sym) {
    case SYM_B: v.i = at->b; break;
    case SYM_H: v.i = at->h; break;
    case SYM_SIZE: v.i = at->x->size[e->index]; break;
    case SYM_SCALAR:
        if (e->type == EX_F32)
            v.f = at->x->scalar[e->index];
        else
            v.i = (int32_t)at->x->scalar[e->index];
        break;
    case SYM_TILE: v.i = at->tile[e->index]; break;
    case SYM_POS: v.i = at->pos[e->index]; break;
    case SYM_STEP: v.i = at->step; break;
    default: ck_abort_msg("symbol %d", (int)e->sym);
    }
    return v;
}

static ExValue at_load(void *ctx, const Ex *e, const int32_t *index) {
    const At *at = ctx;
    int tensor = at->p->inputs.data[e->input];
    const TileTensor *t = &at->p->tensors.data[tensor];
    int64_t i = 0;
    for (int d = 0; d < t->rank; d++) {
        int32_t n = tile_eval_launch(t->extent[d], at->x->size, 4), x = index[d];
        i = i * n + (x < 0 ? 0 : x < n ? x : n - 1);
    }
    ExValue v = {.f = 0};
    v.i = (int32_t)at->x->tensor[tensor][i];
    return v;
}

static int32_t value_at(At *at, const Ex *e) {
    ExEnv env = {.sym = at_sym, .load = at_load, .ctx = at, .round = true};
    return ex_eval(e, &env).i;
}

static TileProgram *mask_program(Arena *a, const char *mask, Variant **v) {
    const char *text = arena_printf(a,
                                    "attention m { dim D = 4; input len: i32[B]; input win: "
                                    "i32[H]; input limit: i32; input step: i32; input rate: f32; "
                                    "input zero: f32; input huge: i32[B];"
                                    "input doc: i32[B, Sq]; input doc2: i32[B, Sk]; input grow: "
                                    "i32[100]; input len2: i32[B, 90]; input keep: bool[6, 7]; "
                                    "input ok: bool[Sk]; score(q, k) = "
                                    "dot(q, k); mask(b, h, q, k) = %s; normalize(s) = s; }",
                                    mask);
    const Stream *s = pu_stream(a, "mask.attn", text, 4, v);
    return pu_program(a, s, DT_F32, PU_FUSED, (PuTiles){0, 0});
}

static TileData *mask_data(Arena *a, const TileProgram *p, int sq, int sk, int offset, int b,
                           int h) {
    int32_t size[SIZE_FREE] = {b, h, 1, sq, sk, offset};
    TileData *x = tile_data_random(a, p, size, 4, 11);
    double *huge = x->tensor[p->inputs.data[6]]; // near both ends of i32
    if (b > 0) huge[0] = 2147483600.0;
    if (b > 1) huge[1] = -2147483600.0;
    double *grow = x->tensor[p->inputs.data[9]], *len2 = x->tensor[p->inputs.data[10]];
    double *scalar = ARENA_ARRAY(a, double, p->inputs.n);
    memcpy(scalar, x->scalar, sizeof *scalar * (size_t)p->inputs.n);
    scalar[3] = x->tensor[p->inputs.data[3]][0] = 3;     // step
    scalar[4] = x->tensor[p->inputs.data[4]][0] = 1.875; // rate
    scalar[5] = x->tensor[p->inputs.data[5]][0] = 0;
    x->scalar = scalar;
    for (int i = 0; i < 100; i++) grow[i] = i / 7;
    for (int i = 0; i < 90 * b; i++) len2[i] = i * 37 % 41;
    return x;
}

// The reference's mask of one batch entry and head, [Sq, Sk].
static const unsigned char *mask_matrix(Arena *a, const Variant *v, const At *at) {
    const int32_t *size = at->x->size;
    const void **inputs = ARENA_ARRAY(a, const void *, at->p->inputs.n + 1);
    for (int i = 0; i < at->p->inputs.n; i++) inputs[i] = pu_input(a, at->p, at->x, i);
    unsigned char *m = ARENA_ARRAY(a, unsigned char, size[SIZE_SQ] * size[SIZE_SK] + 1);
    ref_mask(&(RefRun){.variant = v, .sizes = size, .inputs = inputs}, at->b, at->h, m);
    return m;
}

// The share of a rectangle's pairs that take part: 0 none, 2 all, 1 some. q and k are positions in
// the tensors.
static int share(const At *at, const unsigned char *mask, int q0, int q1, int k0, int k1) {
    int yes = 0, no = 0, sk = at->x->size[SIZE_SK];
    for (int q = q0; q <= q1; q++)
        for (int k = k0; k <= k1; k++) *(k < sk && mask[q * sk + k] ? &yes : &no) = 1;
    return !yes ? 0 : no ? 1 : 2;
}

// How the loops of one tile of queries treat each tile of keys: 0 not visited, 1 partial, 2 full.
static void visit(At *at, const TileKernel *k, int *seen, int tiles) {
    for (int i = 0; i < tiles; i++) seen[i] = 0;
    for (const TileOp *op = k->body.first; op; op = op->next) {
        if (op->kind != TILE_LOOP) continue;
        int from = value_at(at, op->from), to = value_at(at, op->to);
        for (at->step = from; at->step < to; at->step++) {
            if (op->where && !value_at(at, op->where)) continue;
            int j = value_at(at, op->index);
            ck_assert_msg(j >= 0 && j < tiles && !seen[j], "tile %d of %d", j, tiles);
            seen[j] = op->tiles == CLASS_FULL ? 2 : 1;
        }
    }
}

static void check_row(At *at, const MaskCase *c, const TileKernel *k, int row, int *seen,
                      const unsigned char *mask) {
    const int32_t *size = at->x->size;
    int m = k->axes[0].extent, n = k->axes[1].extent, tiles = (size[SIZE_SK] + n - 1) / n;
    int q0 = row * m, q1 = q0 + m < size[SIZE_SQ] ? q0 + m - 1 : size[SIZE_SQ] - 1;
    at->tile[0] = row;
    visit(at, k, seen, tiles);
    for (int j = 0; j < tiles; j++) {
        int want = share(at, mask, q0, q1, j * n, j * n + n - 1);
        const char *where = arena_printf(
            at->p->arena, "%s: tiles %dx%d, Sq %d Sk %d offset %d: tile %d, %d: pairs %d, seen %d",
            c->mask, m, n, size[SIZE_SQ], size[SIZE_SK], size[SIZE_Q_OFFSET], row, j, want,
            seen[j]);
        ck_assert_msg(!want || seen[j], "a tile with pairs is skipped: %s", where);
        ck_assert_msg(seen[j] < 2 || want == 2, "a tile is full wrongly: %s", where);
        if (c->exact & EXACT_SKIP)
            ck_assert_msg(want || !seen[j], "a tile without pairs is visited: %s", where);
        if (c->exact & EXACT_FULL)
            ck_assert_msg(want < 2 || seen[j] == 2, "a full tile is not: %s", where);
    }
}

// What the program's kernels store: lists of tiles, where it makes them.
static void make_lists(At *at, const char *mask) {
    Diags diags = diag_list(at->p->arena);
    bool ok = at->p->kernels.n == 1 || tile_eval(at->p, at->x, false, &diags);
    if (!ok) diag_print(&diags, stderr);
    ck_assert_msg(ok, "%s does not run", mask);
}

TEST_EACH(loops, 0, MASKS) {
    static const PuTiles tiles[] = {{8, 8}, {16, 4}, {4, 16}, {1, 3}, {64, 64}, {5, 7}};
    static const int shapes[][3] = {{17, 40, 23}, {40, 17, 0}, {33, 33, 0}, {0, 5, 0},
                                    {5, 0, 0},    {9, 40, -5}, {20, 30, 50}};
    const MaskCase *c = &masks[_i];
    for (size_t t = 0; t < sizeof tiles / sizeof *tiles; t++) {
        Arena *a = arena_new();
        Variant *v;
        TileProgram *p = mask_program(a, c->mask, &v);
        pu_bind(p, tiles[t]);
        pass_classify(p);
        pu_verify(p, c->mask, PU_CLASSIFIED);
        const TileKernel *k = p->kernels.data[0];
        int *seen = ARENA_ARRAY(a, int, 64);
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            At at = {.p = p, .x = mask_data(a, p, shapes[s][0], shapes[s][1], shapes[s][2], 2, 2)};
            make_lists(&at, c->mask);
            for (at.b = 0; at.b < 2; at.b++)
                for (at.h = 0; at.h < 2; at.h++) {
                    const unsigned char *mask = mask_matrix(a, v, &at);
                    for (int row = 0; row * tiles[t].m < shapes[s][0]; row++)
                        check_row(&at, c, k, row, seen, mask);
                }
        }
        arena_free(a);
    }
}

ARENA_TEST_EACH(rectangles, 0, MASKS) {
    const MaskCase *c = &masks[_i];
    Variant *v;
    TileProgram *p = mask_program(a, c->mask, &v);
    const TileKernel *k = p->kernels.data[0];
    const Ex *corner[4]; // unknown numbers of the rectangle; tile indices serve
    for (int i = 0; i < 4; i++) corner[i] = ex_sym(p->pool, SYM_TILE, i, EX_I32);
    const Ex *mask = k->mask; // without the end of the keys: 40 is far
    MaskBounds bounds =
        pass_mask_bounds(p->pool, mask, 0, 1, corner[0], corner[1], corner[2], corner[3]);
    At at = {.p = p, .x = mask_data(a, p, 40, 40, 0, 1, 1)};
    const unsigned char *pairs = mask_matrix(a, v, &at);
    uint32_t seed = 5;
    for (int i = 0; i < 300; i++) {
        int at_random[4];
        for (int j = 0; j < 4; j++)
            at_random[j] = (int)((seed = seed * 1664525u + 1013904223u) >> 9) % (j % 2 ? 12 : 27);
        int q0 = at_random[0], q1 = q0 + at_random[1], k0 = at_random[2], k1 = k0 + at_random[3];
        at.tile[0] = q0, at.tile[1] = q1, at.tile[2] = k0, at.tile[3] = k1;
        int want = share(&at, pairs, q0, q1, k0, k1), may = value_at(&at, bounds.may),
            must = value_at(&at, bounds.must);
        ck_assert_msg(may || !want, "may: %s [%d %d] [%d %d]", c->mask, q0, q1, k0, k1);
        ck_assert_msg(!must || want == 2, "must: %s [%d %d] [%d %d]", c->mask, q0, q1, k0, k1);
        if (c->exact & BOUNDS_MAY)
            ck_assert_msg(!may || want, "may is not exact: %s [%d %d] [%d %d]", c->mask, q0, q1, k0,
                          k1);
        if (c->exact & BOUNDS_MUST)
            ck_assert_msg(must || want < 2, "must is not exact: %s [%d %d] [%d %d]", c->mask, q0,
                          q1, k0, k1);
    }
}

// What lists of tiles hold, besides being right for all masks: those of masks that read inputs.
static const MaskCase listed[] = {
    {"grow[q] == grow[k]", EXACT},
    {"k <= q && grow[q] == grow[k]", EXACT},
    {"grow[q] == grow[k] || k < 4", EXACT_SKIP},
    {"grow[q] - grow[k] < 2 && grow[k] <= grow[q]", EXACT},
    {"h == 1 ? grow[q] == grow[k] : k <= q", EXACT},
    {"keep[q / 8, k / 8]", EXACT},
    {"k <= q && keep[q / 5, k / 7]", CONSERVATIVE}, // together a pair may lack what each has
    {"keep[h, k / 7] && ok[k]", CONSERVATIVE},
    {"ok[k]", EXACT},
    {"ok[k] && ok[q]", EXACT},
    {"k < len2[b, q]", EXACT},
    {"grow[len2[b, q]] == grow[len2[b, k]]", CONSERVATIVE},
    {"keep[grow[q], k / 7]", CONSERVATIVE},
    {"keep[q - k, k % 7]", CONSERVATIVE},
    {"f32(grow[k]) < 2.5", EXACT},
    {"grow[k] != grow[q]", EXACT},
    {"grow[q] * 1000000000 <= grow[k]", CONSERVATIVE},
    {"grow[k] == huge[b]", CONSERVATIVE},
    {"len2[b, q] == 50", CONSERVATIVE}, // no pair at all
};
enum { LISTED = sizeof listed / sizeof *listed };

// The lists that the program's own kernels make, and what the whole program gives with them.
static void check_lists(const MaskCase *c, PuTiles tiles, const int *shape) {
    Arena *a = arena_new();
    Variant *v;
    Diags diags = diag_list(a);
    PassOptions o = {.target = *target_get(TARGET_SM80), .dtype = DT_F32};
    TileProgram *p = mask_program(a, c->mask, &v);
    p->target = o.target.id;
    pu_bind(p, tiles);
    pass_classify(p);
    pu_verify(p, c->mask, PU_CLASSIFIED);
    bool is_listed = c >= listed && c < listed + LISTED;
    ck_assert_msg(!is_listed || p->kernels.n > 1, "%s: no lists", c->mask);
    At at = {.p = p, .x = mask_data(a, p, shape[0], shape[1], shape[2], 2, 2)};
    bool ok = tile_eval(p, at.x, false, &diags);
    if (!ok) diag_print(&diags, stderr);
    ck_assert_msg(ok, "%s does not run", c->mask);
    double error = tile_data_distance(p, at.x, p, pu_reference(a, v, p, at.x));
    ck_assert_msg(error < 1e-5, "%s: %g off", c->mask, error);
    int *seen = ARENA_ARRAY(a, int, 64);
    for (at.b = 0; at.b < 2; at.b++)
        for (at.h = 0; at.h < 2; at.h++) {
            const unsigned char *mask = mask_matrix(a, v, &at);
            for (int row = 0; row * tiles.m < shape[0]; row++)
                check_row(&at, c, p->kernels.data[0], row, seen, mask);
        }
    arena_free(a);
}

static const int list_shapes[][3] = {
    {17, 40, 23}, {40, 17, 0}, {33, 33, 0}, {5, 0, 0}, {9, 40, -5}};
static const PuTiles list_tiles[] = {{8, 8}, {16, 4}, {4, 16}, {1, 3}};

TEST_EACH(lists, 0, LISTED) {
    for (size_t t = 0; t < sizeof list_tiles / sizeof *list_tiles; t++)
        for (size_t s = 0; s < sizeof list_shapes / sizeof *list_shapes; s++)
            check_lists(&listed[_i], list_tiles[t], list_shapes[s]);
}

// Every other mask: right, and no less exact than without lists.
TEST_EACH(lists_of_all, 0, MASKS) {
    check_lists(&masks[_i], list_tiles[_i % 4], list_shapes[0]);
    check_lists(&masks[_i], list_tiles[(_i + 1) % 4], list_shapes[2]);
}

// Masks whose bounds say all need no test per tile.
static const char *const plain[] = {"true",
                                    "k <= q",
                                    "k <= q && q - k < 16",
                                    "k < 10 || k <= q",
                                    "q / 8 == k / 8",
                                    "h == 0 || k <= q",
                                    "k < len[b]"};

ARENA_TEST_EACH(no_where, 0, sizeof plain / sizeof *plain) {
    Variant *v;
    TileProgram *p = mask_program(a, plain[_i], &v);
    pu_bind(p, (PuTiles){8, 8});
    pass_classify(p);
    for (const TileOp *op = p->kernels.data[0]->body.first; op; op = op->next)
        ck_assert_msg(!op->where, "%s", plain[_i]);
}

TEST(longest_first) {
    static const struct {
        const char *mask;
        bool reversed;
    } cases[] = {{"true", false},
                 {"k <= q", true},
                 {"k >= q", false},
                 {"k <= q && q - k < 9", true},
                 {"k < 10 || k <= q", true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena *a = arena_new();
        Variant *v;
        TileProgram *p = mask_program(a, cases[i].mask, &v);
        pu_bind(p, (PuTiles){8, 8});
        pass_classify(p);
        ck_assert_msg(p->kernels.data[0]->grid[2].reversed == cases[i].reversed, "%s",
                      cases[i].mask);
        arena_free(a);
    }
}
