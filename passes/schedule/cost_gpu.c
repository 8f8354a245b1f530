// cost_gpu.c: schedules of NVIDIA's targets and what counting expects of them.
//
// The constants were fitted to measured variants (tests/tile/measured.def): see docs/tuning.md.
#include "passes/schedule/cost.h"
#include "passes/schedule/sm80_few.h"
#include "passes/schedule/sm90.h"

#include <math.h>

// ---- sm_90a

enum {
    SM90_MAX_KEYS = 256,
    SM90_STEP = 190,     // cycles of a tile of keys, besides what is counted: barriers
    SM90_WARPGROUP = 10, // and what each warpgroup waits for
    SM90_STATISTIC = 26, // the threads of a row meet, in each warpgroup
    SM90_COPY = 1000,    // a copy that nothing hides
    SM90_TILE = 2000,    // of a tile of queries, besides its steps
    SM90_COUNTED = 1 << KNOB_warpgroups | 1 << KNOB_registers | 1 << KNOB_producer_registers |
                   1 << KNOB_keys | 1 << KNOB_stages, // of other choices nothing is counted
};

typedef struct Sm90Form {
    int warpgroups, registers, producer;
} Sm90Form;

// Of a block. A product of 64 rows reads its operands from shared memory for every 16 columns (of
// keys): q's 2 KB and the keys' 32 bytes each, or the values alone.
static double sm90_cycles(const Proposals *to, CostWork w, const CostRows *seen, int warpgroups,
                          int keys, int stages) {
    const TargetRates *r = target_rates(to->target->id);
    double rows = 64.0 * warpgroups, scores = rows * keys;
    double by_keys = fmax(2.0 * 64 * keys * 16 / r->matrix, (2048 + 32.0 * keys) / r->shared);
    double by_values = fmax(2.0 * 64 * w.dv * 16 / r->matrix, 32.0 * w.dv / r->shared);
    double waits = SM90_WARPGROUP + SM90_STATISTIC * w.reductions;
    CostStep step = {.matrix = warpgroups * (w.d * by_keys + keys * by_values) / 16,
                     .special = scores * w.special / r->special,
                     .plain = (scores * w.plain + (w.reductions ? rows * w.dv : 0)) / r->plain,
                     .l2 = 2 * keys * (w.d + w.dv) / (double)r->l2,
                     .latency = SM90_STEP + warpgroups * waits + (stages > 1 ? 0 : SM90_COPY)};
    CostTiles n = cost_tiles(seen, keys);
    if (to->part_keys) n.parts = cost_parts(to->target, n, keys, to->part_keys);
    return cost_launch(to->target, n, step, 1, SM90_TILE);
}

void cost_sm90(Proposals *to) {
    static const Sm90Form forms[] = {{1, 240, 40}, {2, 232, 40}, {3, 160, 32}};
    CostWork w = cost_work(to->p, to->k);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        CostRows seen = cost_rows(to->p, to->k, 64 * forms[i].warpgroups, to->sizes);
        for (int keys = 48; keys <= SM90_MAX_KEYS; keys += 16)
            for (int stages = 1; stages <= 3 && sm90_within_grid_row(to->k, keys) == keys;
                 stages++) {
                Knobs knobs = {.said = SM90_COUNTED,
                               .warpgroups = forms[i].warpgroups,
                               .registers = forms[i].registers,
                               .producer_registers = forms[i].producer,
                               .keys = keys,
                               .stages = stages};
                double cycles = sm90_cycles(to, w, &seen, forms[i].warpgroups, keys, stages);
                VEC_PUSH(to->arena, &to->list, ((Candidate){knobs, cycles}));
            }
    }
}

// ---- sm_80

enum {
    SM80_STEP = 600,      // cycles of a tile of keys, besides what is counted: copies, other warps
    SM80_TILE = 3000,     // of a tile of queries, besides its steps
    SM80_RESERVED = 1024, // bytes of shared memory that each block has besides
};

typedef struct Sm80Form {
    int rows, warps, blocks;
} Sm80Form;

// Of a block: every warp reads all of a tile of keys and values from shared memory.
static double sm80_cycles(const Proposals *to, CostWork w, const CostRows *seen, Sm80Form f,
                          int keys) {
    const TargetRates *r = target_rates(to->target->id);
    double scores = (double)f.rows * keys, columns = w.d + w.dv;
    Knobs own = {.rows = f.rows, .keys = keys, .warps = f.warps};
    Block b = sm80_block(to->p, to->k, own);
    int fit = to->target->shared_bytes / (pass_shared(&b) + SM80_RESERVED);
    CostStep step = {.matrix = 2 * scores * columns / r->matrix,
                     .special = scores * w.special / r->special,
                     .plain = (scores * w.plain + (w.reductions ? f.rows * w.dv : 0)) / r->plain,
                     .shared = 2.0 * f.warps * keys * columns / r->shared,
                     .l2 = 2 * keys * columns / r->l2,
                     .latency = SM80_STEP};
    return cost_launch(to->target, cost_tiles(seen, keys), step,
                       fit < 1          ? 1
                       : fit < f.blocks ? fit
                                        : f.blocks,
                       SM80_TILE);
}

void cost_sm80(Proposals *to) {
    static const Sm80Form forms[] = {{64, 4, 1},  {64, 4, 2},  {64, 4, 3},
                                     {128, 4, 1}, {128, 4, 2}, {128, 8, 1}};
    CostWork w = cost_work(to->p, to->k);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        CostRows seen = cost_rows(to->p, to->k, forms[i].rows, to->sizes);
        for (int keys = 32; keys <= 192; keys += keys < 96 ? 16 : 32) {
            Knobs knobs = {.said = knobs_of(FORM_SM80),
                           .rows = forms[i].rows,
                           .keys = keys,
                           .warps = forms[i].warps,
                           .blocks = forms[i].blocks};
            VEC_PUSH(to->arena, &to->list,
                     ((Candidate){knobs, sm80_cycles(to, w, &seen, forms[i], keys)}));
        }
    }
}
