// lanes.c: values from vector registers to scalars and between lanes.
#include "tests/gcn/wave.h"

// What the compiler saved of scalars lies in lanes: one that was never written gives a scalar that was never written.
static void read_one(Wave *w, const Op *op, int lane) {
    uint32_t buf[GCN_LANES];
    const uint32_t *p = gcn_source(w, op, 0, 0, buf);
    w->defined = w->defined >> lane & 1 ? ~0ull : 0;
    gcn_put_scalar(w, op, 0, p[lane]);
}

static void v_readfirstlane(Wave *w, const Op *op) {
    uint64_t exec = gcn_exec(w);
    read_one(w, op, exec ? __builtin_ctzll(exec) : 0);
}

static int chosen_lane(Wave *w, const Op *op) {
    int lane = (int)gcn_scalar(w, op, 1) & (w->lanes - 1);
    gcn_need(w, op, 1);
    return lane;
}

static void v_readlane(Wave *w, const Op *op) { read_one(w, op, chosen_lane(w, op)); }

static void v_writelane(Wave *w, const Op *op) {
    int lane = chosen_lane(w, op), reg = op->dst[0].reg;
    w->v[reg][lane] = (uint32_t)gcn_scalar(w, op, 0);
    w->has_v[reg] = (w->has_v[reg] & ~(1ull << lane)) | (w->defined & 1ull << lane);
}

// Each lane reads one of its row of 16, or of the other row of its half; row->arg: the other.
static void permlane(Wave *w, const Op *op) {
    uint32_t buf[GCN_LANES], r[GCN_LANES];
    uint64_t exec = gcn_exec(w), reached = 0, defined = 0, has = 0;
    uint64_t select = gcn_scalar(w, op, 1) & 0xffffffff;
    bool invalid = op->op_sel & 1, bound = op->op_sel & 2; // fi and bound_ctrl, as op_sel
    select |= gcn_scalar(w, op, 2) << 32;
    const uint32_t *p = gcn_source(w, op, 0, 0, buf);
    has = w->defined;
    for (int i = 0; i < w->lanes; i++) {
        int row = (i & ~15) ^ (op->row->arg ? 16 : 0);
        int from = row + (int)(select >> 4 * (i & 15) & 15);
        bool active = invalid || (exec >> from & 1);
        r[i] = active ? p[from] : 0;
        reached |= (uint64_t)(active || bound) << i;
        defined |= (uint64_t)(!active || (has >> from & 1)) << i;
    }
    uint32_t *to = w->v[op->dst[0].reg];
    for (int i = 0; i < w->lanes; i++)
        if (exec & reached & 1ull << i) to[i] = r[i];
    uint64_t lanes = exec & reached, *had = &w->has_v[op->dst[0].reg];
    *had = (*had & ~lanes) | (defined & lanes);
}

static void v_swap(Wave *w, const Op *op) {
    int a = op->dst[0].reg, b = op->src[0].reg;
    uint64_t exec = gcn_exec(w), had_a = w->has_v[a], had_b = w->has_v[b];
    for (int i = 0; i < w->lanes; i++) {
        uint32_t u = w->v[a][i];
        if (!(exec >> i & 1)) continue;
        w->v[a][i] = w->v[b][i];
        w->v[b][i] = u;
    }
    w->has_v[a] = (had_a & ~exec) | (had_b & exec);
    w->has_v[b] = (had_b & ~exec) | (had_a & exec);
}

static const Row rows[] = {
    {"v_readfirstlane_b32", v_readfirstlane, "u=u", 0, 0, 0},
    {"v_readlane_b32", v_readlane, "u=uu", 0, 0, 0},
    {"v_writelane_b32", v_writelane, "u=uu", 0, 0, 0},
    {"v_permlane16_b32", permlane, "u=uuu", 0, 0, 0},
    {"v_permlanex16_b32", permlane, "u=uuu", 0, 1, 0},
    {"v_swap_b32", v_swap, "u=u", 0, 0, 0},
};

GcnRows gcn_rows_lanes(void) { return (GcnRows){rows, sizeof rows / sizeof *rows}; }
