// sm80_few.c: tile extents of kernels for parts of a row, and for their combination.
//
// In: what the program's kernels multiply. Out: keys of a tile and blocks of an SM. Rows are split
// where there are few queries, and then reading k and v is nearly all of the work. So a block is one
// warp with the fewest rows that a product can have, and enough blocks fit an SM to keep its memory
// busy.
#include "passes/schedule/sm80_few.h"

#include "passes/tile/rewrite.h"

enum {
    KEYS = 128,    // of a tile
    KEYS_F32 = 32, // where products are multiply-adds over registers
    LEAST_KEYS = 16,
    BLOCKS = 2,   // of an SM
    COLUMNS = 64, // of a block that combines
};

bool sm80_has_product(const TileKernel *k) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (op->kind == TILE_MMA) return true;
    return false;
}

bool sm80_is_few(const TileKernel *k) {
    return k->purpose == PURPOSE_PART || k->purpose == PURPOSE_COMBINE;
}

static int shared_of(const TileProgram *p, int keys) {
    return sm80_shared_bytes(sm80_tiles(p, SM80_FEW_ROWS, keys));
}

bool sm80_few(const TileProgram *p, const PassOptions *o, Diags *diags, Knobs *out) {
    int shared = o->target.shared_bytes;
    Knobs few = {.said = knobs_of(FORM_SM80_FEW),
                 .few_keys = dtype_half(p->dtype) ? KEYS : KEYS_F32,
                 .few_columns = COLUMNS};
    while (few.few_keys > LEAST_KEYS && shared_of(p, few.few_keys) > shared / BLOCKS)
        few.few_keys /= 2;
    few.few_blocks = shared / shared_of(p, few.few_keys);
    if (few.few_blocks > BLOCKS) few.few_blocks = BLOCKS;
    if (few.few_blocks < 1) few.few_blocks = 1; // too much for any is told of the main kernel
    if (!knobs_take(&few, FORM_SM80_FEW, &o->schedule, diags)) return false;
    *out = few;
    if (!o->schedule.said || shared_of(p, few.few_keys) <= shared) return true;
    diag_error(diags, (Span){0},
               "schedule: it needs %d bytes of shared memory where rows are split; there are %d",
               shared_of(p, few.few_keys), shared);
    return false;
}
