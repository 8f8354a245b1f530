// sm80_few.c: tile extents of kernels for parts of a row, and for their combination.
//
// In: what the program's kernels multiply. Out: keys of a tile and blocks of an SM. Rows are split
// where there are few queries, and then reading k and v is nearly all of the work. So a block is one
// warp with the fewest rows that a product can have, and enough blocks fit an SM to keep its memory
// busy.
#include "passes/schedule/sm80_few.h"

#include "passes/tile/rewrite.h"

enum {
    ROWS = 16,     // of a tile: one warp's
    KEYS = 128,    // of a tile
    KEYS_F32 = 32, // where products are multiply-adds over registers
    LEAST_KEYS = 16,
    BLOCKS = 2, // of an SM
    KEYS_BYTES =
        64, // where operands of 8 bits are converted: four times the warps, which wait less for their own instructions
    BLOCKS_BYTES = 8,
    COLUMNS = 32, // of a block that combines
};

bool sm80_has_parts(const TileKernel *k) {
    return k->purpose == PURPOSE_PART || k->purpose == PURPOSE_COMBINE;
}

// 1: there are no such kernels.
static int shared_of(const TileProgram *p, Knobs few) {
    int most = 1;
    for (int i = 0; i < p->kernels.n; i++) {
        if (!sm80_has_parts(p->kernels.data[i])) continue;
        Block b = sm80_block(p, p->kernels.data[i], few);
        int bytes = pass_shared(&b);
        if (bytes > most) most = bytes;
    }
    return most;
}

static bool converts(const TileProgram *p) {
    bool bytes = false;
    for (int i = 0; i < p->kernels.n; i++) bytes |= sm80_multiplies_bytes(p->kernels.data[i]);
    return bytes && dtype_half(p->dtype);
}

bool sm80_few(const TileProgram *p, const PassOptions *o, Diags *diags, Knobs *out) {
    int shared = o->target.shared_bytes, keys = dtype_half(p->dtype) ? KEYS : KEYS_F32;
    bool bytes = converts(p);
    Knobs few = {.said = knobs_of(FORM_SM80_FEW),
                 .few_rows = ROWS,
                 .few_keys = bytes ? KEYS_BYTES : keys,
                 .few_columns = COLUMNS};
    while (few.few_keys > LEAST_KEYS && shared_of(p, few) > shared / BLOCKS) few.few_keys /= 2;
    few.few_blocks = shared / shared_of(p, few);
    int most = bytes ? BLOCKS_BYTES : BLOCKS;
    if (few.few_blocks > most) few.few_blocks = most;
    if (few.few_blocks < 1) few.few_blocks = 1; // too much for any is told of the main kernel
    if (!knobs_take(&few, FORM_SM80_FEW, &o->schedule, diags)) return false;
    *out = few;
    if (!o->schedule.said || shared_of(p, few) <= shared) return true;
    return diag_refuse(
        diags, (Span){0},
        "schedule: it needs %d bytes of shared memory where rows are split; there are %d",
        shared_of(p, few), shared);
}
