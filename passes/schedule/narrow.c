// narrow.c: which warpgroups need only the first keys of a tile.
//
// In: a kernel's mask, before its first loop is built into roles. Out: a condition over the position of
// a warpgroup's first row (POS of the grid's axis) and a tile of keys: that none of its rows sees
// more than the tile's first keys. Holds afterwards: the condition is never true wrongly.
//
//     k <= q + c, the first 64 of a tile:   q + 63 + c < tile * extent + 64
#include "passes/mask/mask.h"
#include "passes/schedule/schedule.h"

enum { GROUP_ROWS = 64 }; // of queries, of a warpgroup

// The last key that some of the rows sees, or NULL: not known, or the same for all tiles of rows.
static const Ex *last_key(TileProgram *p, const TileKernel *k, int keys) {
    int rows = tile_grid_axis(k);
    if (rows < 0 || ex_reads(k->mask)) return NULL;
    const Ex *row = ex_sym(p->pool, SYM_TILE, rows, EX_I32); // stands for the first row
    RangeCtx c;
    range_init(&c, p->pool, rows, keys, row,
               ex_2(p->pool, EX_ADD, row, ex_i32(p->pool, GROUP_ROWS - 1)), NULL, NULL);
    const Ex *hi = mask_hull(&c, ex_simplify(p->pool, k->mask)).hi;
    if (!hi || c.guard || !ex_uses(hi, SYM_TILE, rows)) return NULL;
    return ex_subst(p->pool, hi, SYM_TILE, rows, ex_sym(p->pool, SYM_POS, rows, EX_I32));
}

const Ex *pass_sees_few(TileProgram *p, const TileKernel *k, int keys, const Ex *tile, int first) {
    const Ex *last = last_key(p, k, keys);
    if (!last) return NULL;
    const Ex *begin = ex_2(p->pool, EX_MUL, tile, ex_i32(p->pool, k->axes[keys].extent));
    const Ex *end = ex_2(p->pool, EX_ADD, begin, ex_i32(p->pool, first));
    return ex_simplify(p->pool, ex_2(p->pool, EX_LT, last, end));
}
