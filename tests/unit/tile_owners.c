// Layouts of scheduled programs, thread by thread and register by register: a map finds what it needs
// of its operands in its own thread, and the lanes of a warp have, between them, everything that is
// reduced, once.
#include "pass_util.h"

typedef struct Thread {
    int warp, lane;
} Thread;

static int element(const Layout *l, Thread t, int reg, int axis) {
    return layout_part(l, LAYOUT_REG, axis, reg) + layout_part(l, LAYOUT_LANE, axis, t.lane) +
           layout_part(l, LAYOUT_WARP, axis, t.warp);
}

// Whether the thread has, in some register, the element that `at` (by axis) is.
static bool owns(const TileKernel *k, const TileValue *v, Thread t, const int *at) {
    Layout l = tile_layout(k, v);
    for (int r = 0; r < layout_count(&l, LAYOUT_REG); r++) {
        bool here = true;
        for (int i = 0; i < v->rank; i++)
            here = here && element(&l, t, r, v->axis[i]) == at[v->axis[i]];
        if (here) return true;
    }
    return false;
}

static void check_thread(const TileKernel *k, const TileOp *map, const Layout *space, Thread t) {
    for (int r = 0; r < layout_count(space, LAYOUT_REG); r++) {
        int at[TILE_MAX_AXES] = {0};
        for (int i = 0; i < map->naxes; i++) at[map->axes[i]] = element(space, t, r, map->axes[i]);
        for (int i = 0; i < map->args.n; i++) {
            const TileValue *v = map->args.data[i];
            ck_assert_msg(v->layout < 0 || owns(k, v, t, at), "%s: %%%s in warp %d lane %d",
                          k->name, v->name, t.warp, t.lane);
        }
    }
}

// Of the first row of a warp: how often its lanes have each element along the axis.
static void check_reduced(const TileKernel *k, const Layout *space, int row, int axis, int warp) {
    static int seen[1 << 12];
    int n = k->axes[axis].extent, lanes = layout_count(space, LAYOUT_LANE);
    Thread first = {warp, 0};
    ck_assert_int_le(n, 1 << 12);
    memset(seen, 0, sizeof seen);
    for (int lane = 0; lane < lanes; lane++)
        for (int r = 0; r < layout_count(space, LAYOUT_REG); r++) {
            Thread t = {warp, lane};
            if (row >= 0 && element(space, t, r, row) != element(space, first, 0, row)) continue;
            seen[element(space, t, r, axis)]++;
        }
    for (int i = 0; i < n; i++)
        ck_assert_msg(seen[i] == 1, "%s: %d of element %d", k->name, seen[i], i);
}

static int check_map(const TileKernel *k, const TileOp *map) {
    if (map->results.data[0]->home != HOME_FRAGMENT) return 0;
    int layout = tile_common_layout(k, map, map->axes, map->naxes);
    ck_assert_int_ge(layout, 0);
    Layout space = layout_restrict(&k->layouts.data[layout].is, map->axes, map->naxes);
    int warps = layout_count(&space, LAYOUT_WARP), lanes = layout_count(&space, LAYOUT_LANE);
    for (int warp = 0; warp<warps; warp += warps> 1 ? warps - 1 : 1) // the first and the last
        for (int lane = 0; lane < lanes; lane++) check_thread(k, map, &space, (Thread){warp, lane});
    for (int i = 0; i < map->outs.n; i++) {
        const TileResult *out = &map->outs.data[i];
        const TileValue *v = map->results.data[i];
        if (out->reduce != EX_CONST)
            check_reduced(k, &space, v->rank ? v->axis[0] : -1, out->reduce_axis, warps - 1);
    }
    return 1;
}

static const struct {
    TargetId target;
    Dtype dtype;
    int D;
} configs[] = {{TARGET_SM80, DT_BF16, 64},   {TARGET_SM80, DT_F32, 40},
               {TARGET_SM90A, DT_BF16, 128}, {TARGET_GFX942, DT_BF16, 40},
               {TARGET_GFX90A, DT_F32, 64},  {TARGET_GFX1100, DT_F16, 64}};
static const char *const variants[] = {"causal", "gaussian_kernel", "sigmoid", "gqa"};
enum { VARIANTS = sizeof variants / sizeof *variants };

ARENA_TEST_EACH(threads_have_what_they_need, 0, VARIANTS * sizeof configs / sizeof *configs) {
    Diags diags = diag_list(a);
    TargetId id = configs[_i / VARIANTS].target;
    PassOptions o = {
        .target = *target_get(id), .dtype = configs[_i / VARIANTS].dtype, .split = true};
    const char *path = arena_printf(a, "stdlib/%s.attn", variants[_i % VARIANTS]);
    const Stream *s = pu_stream(a, path, NULL, configs[_i / VARIANTS].D, NULL);
    TileProgram *p = pass_pipeline(a, s, &o, &diags);
    ck_assert_ptr_nonnull(p);
    int maps = 0;
    for (int i = 0; i < p->kernels.n; i++) {
        const TileKernel *k = p->kernels.data[i];
        for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
            if (op->kind == TILE_MAP && !tile_has_lanes(k)) maps += check_map(k, op);
    }
    ck_assert_int_gt(maps, 3);
}
