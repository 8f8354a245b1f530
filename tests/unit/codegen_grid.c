// Which tiles the blocks of clusters have: every one of the grid once, and none other but tiles of
// rows beyond the last. Of constant counts the builder makes constants, so nothing needs to run.
#include "codegen/jit.h"
#include "codegen_util.h"

#include <string.h>

enum { MOST = 64 };

typedef struct Grid {
    int batches, heads, rows, of_rows;
} Grid;

static TileKernel *kernel_of(TileProgram *p, Grid n) {
    ExPool *x = p->pool;
    TileKernel *k = tile_kernel(p, "grid");
    int m = tile_axis(k, "M", ex_i32(x, 16 * n.rows), false);
    k->axes[m].extent = 16;
    k->ngrid = 3;
    k->grid[0] = (TileGrid){SYM_B, 0, ex_i32(x, n.batches), false};
    k->grid[1] = (TileGrid){SYM_H, 0, ex_i32(x, n.heads), false};
    k->grid[2] = (TileGrid){SYM_TILE, (uint8_t)m, ex_i32(x, n.rows), true};
    k->schedule.cluster = 2;
    k->schedule.cluster_rows = ex_i32(x, n.of_rows);
    return k;
}

static int number_of(Val v) {
    ck_assert(LLVMIsAConstantInt(v) != NULL);
    return (int)LLVMConstIntGetSExtValue(v);
}

// Blocks of one cluster are neighbours.
static void check_pair(const int at[2][3], int of_rows) {
    int rows = of_rows > 1;
    ck_assert_int_eq(at[1][0], at[0][0]);
    ck_assert_int_eq(at[1][1], at[0][1] + !rows);
    ck_assert_int_eq(at[1][2], at[0][2] + rows);
    ck_assert_int_eq(at[0][rows ? 2 : 1] % 2, 0);
}

static void check_grid(Cg *cg, Grid n) {
    char seen[MOST][MOST][MOST] = {0};
    int found = 0;
    CgGrid g = cg_grid(cg);
    for (int i = 0; i < number_of(cg_grid_total(cg, &g)); i++) {
        int at[2][3];
        for (int rank = 0; rank < 2; rank++) {
            Val v[TILE_MAX_GRID];
            cg_grid_point(cg, &g, cg_i32(cg, i), v);
            cg_grid_own(cg, &g, cg_i32(cg, rank), v);
            for (int d = 0; d < 3; d++) at[rank][d] = number_of(v[d]);
            ck_assert(at[rank][0] < n.batches && at[rank][1] < n.heads);
            if (at[rank][2] == n.rows) continue; // an odd number of tiles of rows
            ck_assert_int_lt(at[rank][2], n.rows);
            ck_assert_int_eq(seen[at[rank][0]][at[rank][1]][at[rank][2]]++, 0);
            found++;
        }
        check_pair(at, n.of_rows);
    }
    ck_assert_int_eq(found, n.batches * n.heads * n.rows);
}

START_TEST(every_tile_once) {
    static const Grid grids[] = {{2, 4, 5, 1}, {1, 2, 1, 1}, {3, 6, 4, 1},
                                 {2, 3, 5, 2}, {1, 1, 1, 2}, {3, 4, 8, 2}};
    Arena *a = arena_new();
    Diags diags;
    diag_init(&diags, a);
    CgOptions o = {0};
    Target target = cg_target(TARGET_HOST);
    LLVMContextRef context = LLVMContextCreate();
    Cg cg = {.arena = a, .diags = &diags, .opt = &o, .target = &target};
    TileProgram *p = tile_program(a, ex_pool(a), "grid");
    ck_assert(cg_open(&cg, p, context));
    cg.p = p;
    cg.k = kernel_of(p, grids[_i]);
    check_grid(&cg, grids[_i]);
    cg_close(&cg);
    LLVMContextDispose(context);
    arena_free(a);
}
END_TEST

Suite *codegen_grid_suite(void);
Suite *codegen_grid_suite(void) {
    Suite *s = suite_create("codegen_grid");
    TCase *t = tcase_create("clusters");
    tcase_add_loop_test(t, every_tile_once, 0, 6);
    suite_add_tcase(s, t);
    return s;
}
