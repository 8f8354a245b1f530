// codegen_exact.c: sums that are not rounded until all is added up, run on the host.
#include "codegen_util.h"
#include "pass_util.h"

#include <float.h>

enum { HEADS = 64, ROWS = 7, EACH = 16 };

// tests/tile/exact.tile adds the first three of a row of q, by head.
static void run(Arena *a, const double (*x)[HEADS][3], int first, float *sums) {
    TileProgram *p = tu_parse(a, tu_tile(a, "exact"));
    PassOptions o = {.target = cg_target(TARGET_HOST), .dtype = p->dtype};
    Diags diags = diag_list(a);
    int32_t size[64] = {0};
    ck_assert(pass_tile(p, &o, &diags) && pass_schedule(p, &o, &diags));
    for (int i = 0; i < p->sizes.n; i++) size[i] = 1;
    size[SIZE_HQ] = HEADS, size[SIZE_SQ] = ROWS, size[SIZE_Q_OFFSET] = 0;
    TileData *d = tile_data_random(a, p, size, 4, 1);
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < ROWS; i++)
            for (int c = 0; c < 3; c++)
                d->tensor[pu_named(p, "q")][(h * ROWS + i) * EACH + c] =
                    x[i][(h + first) % HEADS][c];
    cu_run(a, p, d, 1, true);
    for (int i = 0; i < ROWS; i++) sums[i] = (float)d->tensor[pu_named(p, "dbias")][i];
}

ARENA_TEST(sums_in_any_order) {
    static double x[ROWS][HEADS][3];
    static const int firsts[] = {0, 1, 17, 40, 63};
    float sums[ROWS];
    long double all = 0;
    unsigned seed = 1;
    x[0][0][0] = 0x1p100, x[0][9][1] = 1, x[0][30][2] = 0x1p-100,
    x[0][50][0] = -0x1p100;                                            // what f32 loses
    x[1][3][0] = FLT_MAX, x[1][4][0] = FLT_MAX, x[1][5][0] = -FLT_MAX; // beyond f32 on the way
    x[2][3][0] = FLT_MAX, x[2][4][1] = FLT_MAX;
    x[3][20][2] = INFINITY, x[3][21][2] = -FLT_MAX;
    x[4][7][1] = INFINITY, x[4][8][1] = -INFINITY;
    x[5][0][0] = NAN, x[5][1][0] = -1;
    for (int h = 0; h < HEADS; h++)
        for (int c = 0; c < 3; c++) {
            seed = seed * 1664525 + 1013904223;
            float n = ldexpf((float)(int)seed, (int)(seed >> 7 & 63) - 64);
            x[6][h][c] = (double)n;
            all += (long double)n;
        }
    const float want[ROWS] = {1, FLT_MAX, INFINITY, INFINITY, NAN, NAN, (float)all};
    for (size_t k = 0; k < sizeof firsts / sizeof *firsts; k++) {
        run(a, (const double(*)[HEADS][3])x, firsts[k], sums);
        for (int i = 0; i < ROWS; i++)
            ck_assert_msg(isnan(want[i]) ? isnan(sums[i]) : !memcmp(&sums[i], &want[i], 4),
                          "row %d from head %d: %a, not %a", i, firsts[k], (double)sums[i],
                          (double)want[i]);
    }
}
