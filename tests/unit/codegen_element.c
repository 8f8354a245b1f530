// Coordinates that are said for each place along an axis: rows that lie in pages, gathered, scattered; and tests/tile/packed.tile,
// whose rows are queries times heads, through the passes, on the host, against attention's formula.
#include "codegen_util.h"
#include "passes/passes.h"
#include "passes/tile/rewrite.h"
#include "tests/unit/tile_util.h"

// ---- pages

enum { PAGES = 4, PAGE = 3, HEADS = 2, PLACES = 8, COLUMNS = 20 };
static const char pages_text[] =
    "program pages algorithm target host dtype f32 dims D=20 Dv=20\n"
    "tensor table: i32[B, 3] input 0\n"
    "tensor pool: f32[4, 3, 2, 20] input 1\n"
    "tensor rows: f32[B, 2, 8, 20] emit 0\n"
    "tensor back: f32[B, 2, 20, 8] emit 1\n"
    "plan fwd\n"
    "kernel fwd\n"
    "  axis N: 8 tile 8\n"
    "  axis D: 20 whole tile 20\n"
    "  grid b: B\n"
    "  grid h: 2\n"
    "  grid N: 1\n"
    "  mask true\n"
    "  {\n"
    "    %x: f32[N, D] = load pool[N => table[b, (N.pos / 3)], N => (N.pos % 3), h, D:]\n"
    "    store rows[b, h, N:, D:] = %x\n"
    "    store back[b, h, D:, N => (7 - N.pos)] = %x\n"
    "  }\n";

static void check_pages(const TileProgram *p, const TileData *d) {
    for (int b = 0; b < d->size[SIZE_B]; b++)
        for (int h = 0; h < HEADS; h++)
            for (int n = 0; n < PLACES; n++)
                for (int c = 0; c < COLUMNS; c++) {
                    int page = (int)d->tensor[0][b * 3 + n / PAGE],
                        at = (page * PAGE + n % PAGE) * HEADS + h;
                    int row = (b * HEADS + h) * PLACES, back = (b * HEADS + h) * COLUMNS + c;
                    double want = d->tensor[1][at * COLUMNS + c];
                    ck_assert(d->tensor[2][(row + n) * COLUMNS + c] == want);
                    ck_assert(d->tensor[3][back * PLACES + 7 - n] == want);
                }
    (void)p;
}

// Whatever axis lies along the lanes.
TEST(pages) {
    for (int axis = -1; axis < 2; axis++) {
        Arena *a = arena_new();
        Target t;
        const int32_t size[SIZE_FREE] = {3, 1, 1, 1, 1, 0};
        TileProgram *p = tu_read_back(a, tu_parse(a, pages_text));
        TileData *x = tile_data_random(a, p, size, 4, 1), *y = tile_data_random(a, p, size, 4, 1);
        Diags diags = diag_list(a);
        ck_assert(tile_eval(p, x, true, &diags));
        check_pages(p, x);
        p->kernels.data[0]->schedule.lane_axis = axis;
        for (int lanes = 4; lanes <= 16; lanes *= 4) {
            if (!cu_target(lanes, &t)) continue;
            cu_run(a, p, y, lanes, lanes == 4);
            check_pages(p, y);
        }
        arena_free(a);
    }
}

// ---- packed rows

static double score(const TileData *d, const double *q, int64_t key) {
    double sum = 0;
    for (int c = 0; c < 64; c++) sum += q[c] * d->tensor[1][key * 64 + c];
    return sum * 0.125;
}

static void check_row(const TileData *d, int b, int h, int i, double bound) {
    const int32_t *z = d->size;
    int n = i + z[SIZE_Q_OFFSET] + 1 < z[SIZE_SK] ? i + z[SIZE_Q_OFFSET] + 1 : z[SIZE_SK];
    int64_t row = ((int64_t)b * z[SIZE_HQ] + h) * z[SIZE_SQ] + i,
            keys = ((int64_t)b * z[SIZE_HKV] + h * z[SIZE_HKV] / z[SIZE_HQ]) * z[SIZE_SK];
    double o[64] = {0}, l = 0, m = -INFINITY;
    for (int j = 0; j < n; j++) m = fmax(m, score(d, d->tensor[0] + row * 64, keys + j));
    for (int j = 0; j < n; j++) {
        double w = exp(score(d, d->tensor[0] + row * 64, keys + j) - m);
        l += w;
        for (int e = 0; e < 64; e++) o[e] += w * d->tensor[2][(keys + j) * 64 + e];
    }
    for (int e = 0; e < 64; e++) {
        double want = l > 0 ? o[e] / l : 0, got = d->tensor[3][row * 64 + e];
        ck_assert_msg(fabs(got - want) <= bound * (1 + fabs(want)),
                      "row %d of head %d: %g is not %g", i, h, got, want);
    }
}

static void check_rows(const TileData *d, double bound) {
    for (int b = 0; b < d->size[SIZE_B]; b++)
        for (int h = 0; h < d->size[SIZE_HQ]; h++)
            for (int i = 0; i < d->size[SIZE_SQ]; i++) check_row(d, b, h, i, bound);
}

static TileProgram *packed(Arena *a, PassOptions *o) {
    TileProgram *p = tu_read_back(a, tu_parse(a, tu_tile(a, "packed")));
    Diags diags = diag_list(a);
    p->target = o->target.id;
    o->dtype = p->dtype;
    test_good(pass_finish(p, o, &diags), &diags);
    return p;
}

// Groups of one and of several heads, tiles that end within a query, keys in one part and in many.
TEST(packed_rows) {
    static const int32_t sizes[][6] = {
        {1, 6, 2, 23, 31, 8}, {2, 4, 1, 1, 801, 800}, {1, 3, 3, 70, 70, 0}, {1, 5, 1, 3, 0, 0}};
    for (int lanes = 4; lanes <= 16; lanes *= 4)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            Arena *a = arena_new();
            PassOptions o = {0};
            if (cu_target(lanes, &o.target)) {
                TileProgram *p = packed(a, &o);
                int32_t size[64] = {0};
                memcpy(size, sizes[i], sizeof sizes[i]);
                TileData *d = tile_data_random(a, p, size, 16, 1);
                cu_run(a, p, d, lanes, i % 2);
                check_rows(d, 1e-2);
            }
            arena_free(a);
        }
}
