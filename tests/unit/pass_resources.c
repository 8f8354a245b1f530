// What a kernel asks of a block: sums over its operations, held against counts by hand and against what a scheduled kernel
// gets in the end.
#include "ir/tile_shared.h"
#include "pass_util.h"
#include "passes/derive/backward.h"
#include "passes/schedule/resources.h"

static TileProgram *tiled(Arena *a, const char *path, int D, TargetId target) {
    Diags diags = diag_list(a);
    PassOptions o = {.target = *target_get(target), .dtype = DT_BF16};
    TileProgram *p = pu_algorithm(a, pu_stream(a, path, NULL, D, NULL), &o);
    ck_assert(pass_tile(p, &o, &diags));
    return p;
}

static TileProgram *scheduled(Arena *a, const char *path, int D, TargetId target) {
    Diags diags = diag_list(a);
    PassOptions o = {.target = *target_get(target), .dtype = DT_BF16};
    return pass_program(a, pu_stream(a, path, NULL, D, NULL), &o, NULL, &diags);
}

// 128 queries and keys, 128 columns, two warpgroups.
ARENA_TEST(forward) {
    PassOptions o = {.target = *target_get(TARGET_SM90A), .dtype = DT_BF16};
    TileProgram *p = pu_algorithm(a, pu_stream(a, "stdlib/softmax.attn", NULL, 128, NULL), &o);
    Extents e = {128, 128, 16, 16, 256};
    Knobs s = {.said = knobs_of(FORM_SM90), .stages = 2, .queries = 2};
    Block b = pass_block(p, p->kernels.data[0], &e, s, 8);
    enum { TILE = 2 * 128 * 128, ACC = 64, SCORES = 64, WEIGHTS = 32 };
    ck_assert_int_eq(pass_shared(&b), 6 * TILE);
    ck_assert_int_eq(pass_registers(&b), ACC + SCORES);
    b.flies = true;
    ck_assert_int_eq(pass_registers(&b), ACC + SCORES + WEIGHTS);
    b.k.schedule.knobs.share = 1; // weights go through shared memory, in rows of whole panels
    ck_assert_int_eq(pass_registers(&b), ACC + SCORES);
    ck_assert_int_ge(pass_shared(&b), 7 * TILE);
}

// Two accumulators of a nest of two loops, and two scores of each pair. tests/tile/backward.tile
ARENA_TEST(nest) {
    TileProgram *p = tu_parse(a, tu_tile(a, "backward"));
    Extents e = {128, 64, 16, 16, 256}; // keys, queries
    Block b = pass_block(p, p->kernels.data[1], &e, (Knobs){0}, 8);
    enum { ACC = 128 * 16 / 256, PAIRS = 128 * 64 / 256 };
    ck_assert_int_eq(pass_registers(&b), 2 * ACC + 2 * PAIRS);
}

// What the schedule leaves is no more than what was counted before it, and where nothing else is made, the same.
TEST(shared) {
    static const TargetId targets[] = {TARGET_SM80, TARGET_GFX942, TARGET_GFX1100};
    static const struct {
        const char *path;
        bool same;
    } files[] = {{"stdlib/softmax.attn", true},
                 {"stdlib/sigmoid.attn", true},
                 {"stdlib/cosine_similarity.attn", false},
                 {"stdlib/gaussian_kernel.attn", false}};
    for (size_t f = 0; f < sizeof files / sizeof *files; f++)
        for (size_t t = 0; t < sizeof targets / sizeof *targets; t++) {
            Arena *a = arena_new();
            TileProgram *p = tiled(a, files[f].path, 64, targets[t]),
                        *q = scheduled(a, files[f].path, 64, targets[t]);
            const TileKernel *k = p->kernels.data[0];
            Block b = pass_block(p, k, &(Extents){0}, k->schedule.knobs, k->schedule.warps);
            int counted = pass_shared(&b),
                has = tile_shared_layout(q, q->kernels.data[0], NULL, NULL);
            if (files[f].same) ck_assert_int_eq(counted, has);
            ck_assert_int_ge(counted, has);
            arena_free(a);
        }
}

// Counting knows attentions only: gradients get tiles of their own, and where they are not in roles an SM to themselves.
TEST(gradients) {
    static const TargetId targets[] = {TARGET_SM80, TARGET_SM90A};
    for (int i = 0; i < 4; i++) {
        Arena *a = arena_new();
        Diags diags = diag_list(a);
        PassOptions o = {.target = *target_get(targets[i % 2]), .dtype = DT_BF16};
        Stream *s = pu_stream(a, "stdlib/sigmoid.attn", NULL, i < 2 ? 128 : 64, NULL);
        TileProgram *p = pass_backward_program(a, pass_backward(a, s->written, NULL), &o, &diags);
        ck_assert(p != NULL);
        int found = 0;
        for (int j = 0; j < p->kernels.n; j++) {
            const TileKernel *k = p->kernels.data[j];
            if (k->purpose != PURPOSE_GRADIENTS) continue;
            found++;
            if (k->schedule.knobs.said == knobs_of(FORM_SM80))
                ck_assert_int_eq(k->schedule.knobs.blocks, 1);
            ck_assert_int_le(tile_shared_layout(p, k, NULL, NULL), o.target.shared_bytes);
        }
        ck_assert_int_gt(found, 0);
        arena_free(a);
    }
}
