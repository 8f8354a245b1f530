// sections.c: the order in which tiles are taken (TileSchedule.section, .last).
//
// In: a scheduled program. Out: of kernels whose tiles take unequally long, and of those in roles, how many heads a section has, and how many
// tiles of rows of each head come behind all sections, both as sizes of a launch.
//
// Sections are about as long as wished, and no longer than the L2 cache holds keys and values of. They are about equally long, so that enough
// tiles are left for the last blocks. In the backward's nest rows are keys: what stays is of the queries that pass, q, do and the sums of dq.
#include "passes/schedule/schedule.h"
#include "passes/tile/rewrite.h"

enum {
    TILES =
        512, // of a section, where the kernel's knobs do not say so: the longest of its heads come first
    CACHE_PARTS = 3, // of the L2 cache for keys and values: beside them queries and results pass
    CACHE_FOR_KEYS = 2,
    ROW_PARTS = 16, // of the rows for the end: a tenth of a triangle's area, a third of its keys
    ROWS_AT_END = 5,
};

typedef struct Order {
    TileProgram *p;
    const TileKernel *k;
    ExPool *x;
    int rows; // the grid's dimension
} Order;

static const Ex *num(const Order *o, int n) { return ex_i32(o->x, n); }

static const Ex *op(const Order *o, ExOp kind, const Ex *a, const Ex *b) {
    return ex_2(o->x, kind, a, b);
}

static const Ex *size_of(const Order *o, int size) { return ex_sym(o->x, SYM_SIZE, size, EX_I32); }

static const Ex *some(const Order *o, const Ex *n) { return op(o, EX_MAX, n, num(o, 1)); }

static const Ex *ceil_div(const Order *o, const Ex *a, const Ex *b) {
    if (ex_is_i32(b, 1)) return a;
    return op(o, EX_DIV, op(o, EX_SUB, op(o, EX_ADD, a, b), num(o, 1)), b);
}

static const Ex *counts(const Order *o, int from, int to) {
    const Ex *n = num(o, 1);
    for (int d = from; d < to; d++) n = op(o, EX_MUL, n, tile_points(o->x, o->k, d));
    return n;
}

static const Ex *all_tiles(const Order *o) {
    int last = o->k->ngrid - 1;
    const Ex *from = o->k->grid[last].from;
    if (!from) return counts(o, 0, last + 1);
    const Ex *whole = op(o, EX_MUL, from, tile_points(o->x, o->k, o->rows));
    const Ex *others = op(o, EX_SUB, counts(o, 0, last), whole);
    return op(o, EX_ADD, whole, op(o, EX_MUL, others, tile_points(o->x, o->k, last)));
}

// Rows of so many bytes of which two thirds of the L2 cache have room.
static const Ex *rows_in_cache(const Order *o, int bytes) {
    return num(o, target_get(o->p->target)->l2_bytes / bytes / CACHE_PARTS * CACHE_FOR_KEYS);
}

// Heads whose keys and values stay in the L2 cache together.
static const Ex *heads_that_stay(const Order *o) {
    const TileProgram *p = o->p;
    const Ex *group = some(o, op(o, EX_DIV, size_of(o, SIZE_HQ), some(o, size_of(o, SIZE_HKV))));
    int row = (p->D + p->Dv) * dtype_bytes(p->dtype);
    if (pass_nest(o->k)) {
        const Ex *queries = op(o, EX_MUL, some(o, size_of(o, SIZE_SQ)), group);
        const Ex *room = rows_in_cache(o, row + p->D * dtype_bytes(DT_F32));
        return some(o, op(o, EX_DIV, room, queries));
    }
    const Ex *keys = some(o, size_of(o, SIZE_SK));
    const Ex *heads = op(o, EX_MUL, some(o, op(o, EX_DIV, rows_in_cache(o, row), keys)), group);
    return ceil_div(o, heads, tile_of_cluster(o->x, o->k, false));
}

// Worked out once a launch.
static const Ex *as_size(const Order *o, const char *name, const Ex *e) {
    return e->op == EX_CONST ? e : size_of(o, pass_size(o->p, name, e));
}

static const Ex *heads_of_section(const Order *o, int wish) {
    const Ex *all = counts(o, 0, o->rows), *stay = as_size(o, "resident", heads_that_stay(o));
    const Ex *sections =
        op(o, EX_MAX, op(o, EX_DIV, all_tiles(o), num(o, wish)), ceil_div(o, all, stay));
    return some(o, ceil_div(o, all, as_size(o, "sections", some(o, sections))));
}

static const Ex *rows_at_end(const Order *o) {
    const Ex *part = op(o, EX_MUL, tile_points(o->x, o->k, o->rows), num(o, ROWS_AT_END));
    return op(o, EX_DIV, part, num(o, ROW_PARTS));
}

static bool rows_differ(const TileKernel *k) {
    for (int i = 0; i < k->ngrid; i++)
        if (k->grid[i].reversed) return true;
    return false;
}

// Whether some pairs within the tensors do not count.
static bool is_masked(const Ex *mask) {
    if (mask->op == EX_AND) return is_masked(mask->args[0]) || is_masked(mask->args[1]);
    return !(mask->op == EX_CONST ||
             (mask->op == EX_LT && mask->args[1]->op == EX_SYM && mask->args[1]->sym == SYM_SIZE));
}

// About how many tiles a section should have; 0: head after head.
static int wish(const TileKernel *k) {
    const Knobs *s = &k->schedule.knobs;
    if (s->said == knobs_of(FORM_SM90)) return s->section;
    if (s->said == knobs_of(FORM_SM90_NEST)) return is_masked(k->mask) ? TILES : 1;
    if (pass_nest(k)) return is_masked(k->mask) ? TILES : 0;
    return rows_differ(k) && k->purpose != PURPOSE_PART && k->purpose != PURPOSE_COMBINE ? TILES
                                                                                         : 0;
}

void pass_sections(TileProgram *p) {
    if (target_get(p->target)->kind != KIND_NVPTX || p->batch) return;
    for (int i = 0; i < p->kernels.n; i++) {
        TileKernel *k = p->kernels.data[i];
        Order o = {.p = p, .k = k, .x = p->pool, .rows = tile_grid_rows(k)};
        if (o.rows < 0 || !wish(k)) continue;
        k->schedule.section = as_size(&o, "section", heads_of_section(&o, wish(k)));
        if (k->grid[o.rows].reversed) k->schedule.last = as_size(&o, "last", rows_at_end(&o));
    }
}
