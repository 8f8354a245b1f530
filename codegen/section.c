// section.c: how many heads a section of the grid has (grid.c).
//
// In: a schedule with sections. Out: of how many heads the keys and values stay in the L2 cache together. In a nest of a backward rows are
// keys: what stays is of the queries that pass, q, do, and the sums of dq.
#include "codegen/cg.h"

enum {
    CACHE_PARTS = 3, // of the L2 cache for keys and values: beside them queries and results pass
    CACHE_FOR_KEYS = 2,
};

bool cg_is_nest(const TileKernel *k) { return k->schedule.knobs.said == knobs_of(FORM_SM90_NEST); }

// Rows of so many bytes of which two thirds of the L2 cache have room.
static const Ex *rows_in_cache(const TileProgram *p, int bytes) {
    int rows = target_get(p->target)->l2_bytes / bytes;
    return ex_i32(p->pool, rows / CACHE_PARTS * CACHE_FOR_KEYS);
}

const Ex *cg_heads_that_stay(const Cg *cg) {
    const TileProgram *p = cg->p;
    ExPool *x = p->pool;
    const Ex *one = ex_i32(x, 1), *heads = ex_sym(x, SYM_SIZE, SIZE_HQ, EX_I32),
             *groups = ex_sym(x, SYM_SIZE, SIZE_HKV, EX_I32);
    const Ex *group = ex_2(x, EX_MAX, ex_2(x, EX_DIV, heads, ex_2(x, EX_MAX, groups, one)), one);
    int row = (p->D + p->Dv) * dtype_bytes(p->dtype);
    if (cg_is_nest(cg->k)) {
        const Ex *queries = ex_2(x, EX_MAX, ex_sym(x, SYM_SIZE, SIZE_SQ, EX_I32), one);
        queries = ex_2(x, EX_MUL, queries, group);
        const Ex *room = rows_in_cache(p, row + p->D * dtype_bytes(DT_F32));
        return ex_2(x, EX_MAX, ex_2(x, EX_DIV, room, queries), one);
    }
    const Ex *keys = ex_sym(x, SYM_SIZE, SIZE_SK, EX_I32);
    const Ex *some = ex_2(x, EX_DIV, rows_in_cache(p, row), ex_2(x, EX_MAX, keys, one));
    return ex_2(x, EX_MUL, ex_2(x, EX_MAX, some, one), group);
}
