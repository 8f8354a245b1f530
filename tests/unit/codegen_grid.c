// Which tiles the blocks of clusters have: every one of the grid once, and none other but tiles of
// rows beyond the last. Of constant counts the builder makes constants, so nothing needs to run.
#include "codegen/jit.h"
#include "codegen_util.h"

enum { MOST = 64 };

typedef struct Grid {
    int batches, heads, rows, of_rows;
} Grid;

static TileKernel *kernel_of(TileProgram *p, Grid n) {
    ExPool *x = p->pool;
    TileKernel *k = tile_kernel(p, "grid", PURPOSE_ATTENTION);
    int m = tile_axis(k, "M", ex_i32(x, 16 * n.rows), false);
    k->axes[m].extent = 16;
    k->ngrid = 3;
    k->grid[0] = (TileGrid){.sym = SYM_B, .count = ex_i32(x, n.batches)};
    k->grid[1] = (TileGrid){.sym = SYM_H, .count = ex_i32(x, n.heads)};
    k->grid[2] =
        (TileGrid){.sym = SYM_TILE, .axis = m, .count = ex_i32(x, n.rows), .reversed = true};
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

typedef void (*Check)(Cg *cg, Grid n);

static void with_grid(Grid n, Check check) {
    Arena *a = arena_new();
    Diags diags = diag_list(a);
    CgOptions o = {0};
    Target target = cg_target(TARGET_HOST);
    LLVMContextRef context = LLVMContextCreate();
    Cg cg = {.arena = a, .diags = &diags, .opt = &o, .target = &target};
    TileProgram *p = tile_program(a, ex_pool(a), "grid");
    ck_assert(cg_open(&cg, p, context));
    cg.p = p;
    cg.k = kernel_of(p, n);
    check(&cg, n);
    cg_close(&cg);
    LLVMContextDispose(context);
    arena_free(a);
}

TEST_EACH(every_tile_once, 0, 6) {
    static const Grid grids[] = {{2, 4, 5, 1}, {1, 2, 1, 1}, {3, 6, 4, 1},
                                 {2, 3, 5, 2}, {1, 1, 1, 2}, {3, 4, 8, 2}};
    with_grid(grids[_i], check_grid);
}

enum { PARTS = 3, WHOLE = 2 };

// Of the first heads one part, of the others all.
static void check_parts(Cg *cg, Grid n) {
    TileKernel *k = (TileKernel *)cg->k;
    ExPool *x = cg->p->pool;
    int s = tile_axis(k, "S", ex_i32(x, PARTS), false);
    k->axes[s].extent = 1;
    k->schedule = (TileSchedule){.lane_axis = -1};
    k->grid[k->ngrid++] =
        (TileGrid){.sym = SYM_TILE, .axis = s, .count = ex_i32(x, PARTS), .from = ex_i32(x, WHOLE)};
    CgGrid g = cg_grid(cg);
    char seen[MOST][MOST][MOST][PARTS] = {0};
    int total = number_of(cg_grid_total(cg, &g)), heads = n.batches * n.heads;
    ck_assert_int_eq(total, n.rows * (WHOLE + PARTS * (heads - WHOLE)));
    for (int i = 0; i < total; i++) {
        Val v[TILE_MAX_GRID];
        cg_grid_point(cg, &g, cg_i32(cg, i), v);
        int b = number_of(v[0]), h = number_of(v[1]), m = number_of(v[2]), part = number_of(v[3]);
        ck_assert(b < n.batches && h < n.heads && m < n.rows);
        ck_assert_int_lt(part, b * n.heads + h < WHOLE ? 1 : PARTS);
        ck_assert_int_eq(seen[b][h][m][part]++, 0);
    }
}

TEST_EACH(every_part_once, 0, 3) {
    static const Grid grids[] = {{2, 4, 5, 1}, {1, 2, 1, 1}, {3, 6, 4, 1}};
    with_grid(grids[_i], check_parts);
}
