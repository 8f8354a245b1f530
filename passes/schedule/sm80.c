// sm80.c: how NVIDIA devices from sm_80 on run a kernel: tile extents, and
// what stands beside products.
//
// A block is 4 warps, each with 16 or 32 rows; two m16 tiles a warp use every fragment of K and V
// that is read from shared memory twice, which is what keeps the matrix units busy. Tiles of q, k
// and v are copied asynchronously into shared memory, those of k and v ahead of their use
// (assign.c).
#include "ir/tile_decayed.h"
#include "passes/mask/interval.h"
#include "passes/schedule/expand.h"
#include "passes/schedule/resources.h"
#include "passes/schedule/sm80_few.h"
#include "passes/schedule/strips.h"
#include "passes/tile/rewrite.h"

enum {
    MAX_COLUMNS = 256, // of v in a tile
    CROWDED_KEYS = 96, // where norms of keys take registers too (1.2 times as fast)
    DENSE_KEYS = 64, // of which inputs are read for each element: a tile's are in registers at once
    FEW_COLUMNS = 128, // where several tiles are needed anyhow, and no scores
    UNIT_COLUMNS = 64,
    LEAST_KEYS = 16,      // of an instruction
    LEAST_COLUMNS = 16,   // of a kernel without products
    WIDE = 256,           // columns of q and k, beyond which tiles have the fewest keys
    OTHER_REGISTERS = 32, // of a thread, beside scores and accumulator,
    CONVERTED = 40,       // and where operands are converted as they are read
    REGISTERS = 65536,    // of an SM
    STATE = 64,           // registers of a thread for a recurrence's state
};

// ---- extents

// A number of an input for each query and key.
static bool is_dense(void *ctx, const Ex *e) {
    const TileOp *map = ctx;
    int keys = map->block->owner->axis;
    for (int i = 0; i < map->naxes && tile_ends_along(e, keys); i++)
        if (map->axes[i] != keys && tile_lead_varies(map, e, map->axes[i])) return true;
    return false;
}

static bool map_reads_dense(const TileOp *map) {
    const TileOp *loop = map->block->owner;
    return map->kind == TILE_MAP && loop && loop->kind == TILE_LOOP &&
           tile_map_any(map, is_dense, (void *)map);
}

static bool reads_dense(const TileProgram *p) {
    for (int i = 0; i < p->kernels.n; i++) {
        const TileBlock *body = &p->kernels.data[i]->body;
        for (const TileOp *op = tile_next(body, NULL); op; op = tile_next(body, op))
            if (map_reads_dense(op)) return true;
    }
    return false;
}

static bool is_crowded(const TileProgram *p) {
    for (int i = 0; i < p->kernels.n; i++)
        if (pass_makes_norms(p->kernels.data[i])) return true;
    return false;
}

static Knobs shape(int rows, int keys, int blocks) {
    return (Knobs){
        .said = knobs_of(FORM_SM80), .rows = rows, .keys = keys, .warps = 4, .blocks = blocks};
}

static bool by_tf32(const TileProgram *p) {
    for (int i = 0; i < p->kernels.n; i++) {
        const TileBlock *b = &p->kernels.data[i]->body;
        for (const TileOp *op = tile_next(b, NULL); op; op = tile_next(b, op))
            if (op->kind == TILE_MMA && op->tf32) return true;
    }
    return false;
}

// Two blocks an SM with 255 registers a thread. Beyond 128 columns an accumulator of two m16 tiles
// a warp has no room. f32 products are FMAs over registers: small tiles.
static Knobs shape_for(const TileProgram *p) {
    bool tf32 = by_tf32(p);
    int dv = p->Dv < MAX_COLUMNS ? p->Dv : MAX_COLUMNS, d = p->D > dv ? p->D : dv;
    if (tf32 && d <= 128) return shape(64, d <= 64 ? 64 : 32, 2);
    if (!dtype_half(p->dtype)) return shape(64, d <= 128 ? 32 : 16, 1);
    if (d > WIDE) return shape(64, 32, 1);
    if (d <= 64) return shape(128, 128, 2);
    if (d <= 128) return shape(128, 64, 2);
    return shape(64, 64, 2);
}

// A kernel without products computes nothing twice in several tiles of columns: those of half the size
// leave registers for what the last one, which may go past the end, asks of each column.
static int columns_of(const TileProgram *p, const TileKernel *k) {
    return p->Dv <= MAX_COLUMNS || tile_has(&k->body, TILE_MMA) ? MAX_COLUMNS : FEW_COLUMNS;
}

static int rows_of(const TileProgram *p, const TileKernel *k, Knobs s) {
    if (!sm80_has_parts(k)) return s.rows;
    if (pass_combines_by_rows(p, k)) return COMBINED_ROWS;
    return k->purpose == PURPOSE_PART ? s.few_rows : SM80_WARP_ROWS;
}

static int warps_of(const TileKernel *k, Knobs s) {
    if (k->purpose == PURPOSE_COMBINE) return 1;
    return sm80_has_parts(k) ? s.few_rows / SM80_WARP_ROWS : s.warps;
}

// Of a state's columns there may be fewer than a tile has.
static Extents extents_of(const TileProgram *p, const TileKernel *k, Knobs s) {
    bool few = sm80_has_parts(k);
    Extents e = {rows_of(p, k, s), few ? s.few_keys : s.keys, 16, 16, MAX_COLUMNS};
    for (int i = 0; i < k->ngrid; i++) {
        const TileGrid *g = &k->grid[i];
        const Ex *size = g->sym == SYM_TILE ? k->axes[g->axis].size : NULL;
        while (size && size->op == EX_CONST && e.rows / 2 >= size->i &&
               e.rows % (32 * warps_of(k, s)) == 0)
            e.rows /= 2;
    }
    bool state = pass_makes_together(p, k) && tile_has(&k->body, TILE_MMA); // no product: no state
    while (state && e.rows > 16 * s.warps && p->D * e.rows > STATE * 32 * s.warps) e.rows /= 2;
    return e;
}

Block sm80_block(const TileProgram *p, const TileKernel *k, Knobs s) {
    Extents e = extents_of(p, k, s);
    return pass_block(p, k, &e, s, warps_of(k, s));
}

// Whether each product of a kernel without roles is one of warpgroups: of a warpgroup's 64 rows, or, of what all rows share,
// the same 64 and columns of its own.
static bool suits_groups(const TileProgram *p, const TileKernel *k, const Extents *e, Knobs s) {
    enum { ROWS = 64, MOST = 256 };
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op)) {
        if (op->kind == TILE_MAP && op->naxes > 2 && !tile_all_decayed(op))
            return false; // scores element by element
        if (op->kind != TILE_MMA) continue;
        const TileValue *v = op->results.data[0];
        bool own = tile_has_axis(v, tile_grid_axis(k));
        int rows = own ? tile_grid_axis(k) : v->axis[0], columns = v->axis[v->axis[0] == rows];
        bool narrow = dtype_half(op->args.data[0]->dtype) && dtype_half(op->args.data[1]->dtype);
        if (!narrow || pass_extent(p, k, rows, e) != (own ? 16 * s.warps : ROWS) ||
            pass_extent(p, k, columns, e) > MOST)
            return false;
    }
    return true;
}

// Blocks of eight warps an SM, of which each thread has half of the registers then: where a state is small, or nothing but its product
// is made (HGRN-2's states 1.23 ms for 1.87 on an H200).
static int blocks_of_wide(const TileProgram *p, const TileKernel *k, const Knobs *wide) {
    enum { FEW = 32 }; // registers of a thread
    bool few = p->D * wide->rows <= FEW * 32 * wide->warps;
    int products = 0;
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        products += op->kind == TILE_MMA;
    bool one = products == 1 && k->purpose == PURPOSE_STATES;
    return p->chunks && (one || (few && k->purpose == PURPOSE_ADJOINT)) ? 2 : 1;
}

// Two warpgroups with 64 columns of v each instead of two blocks: the scores are made once, and q and k are read once (0.86 of gated
// DeltaNet's time on an H100, 0.94 of retention's; of the backward's adjoint 0.54).
static void widen(const TileProgram *p, TileKernel *k, Knobs *s) {
    enum { COLUMNS = 128, LEAST = 16 };
    Knobs wide = *s;
    wide.rows = COLUMNS, wide.warps = COLUMNS / 16;
    if (!s->groups || p->Dv < COLUMNS) return;
    for (wide.blocks = blocks_of_wide(p, k, &wide); wide.blocks; wide.blocks--) {
        Extents e = extents_of(p, k, wide);
        pass_fit_together(p, k, &e, wide, wide.warps, LEAST);
        if (!suits_groups(p, k, &e, wide) || (p->chunks && e.step != s->keys)) continue;
        *s = wide;
        return;
    }
}

// Many queries of a batch, for sm_90a: two warpgroups of 64 rows, and 128 keys at a time (1.2 to 1.3 times as fast as mma.m16n8k16 at 128
// columns on an H100; of 64 keys, of blocks of one warpgroup, and with tiles that come a step ahead it is slower).
static void choose_groups(const TileProgram *p, const TileKernel *k, const PassOptions *o,
                          Knobs *s) {
    enum { COLUMNS = 128, KEYS = 128, ROWS = 128 };
    bool many = k->purpose == PURPOSE_ATTENTION && !sm80_has_parts(k);
    if (!many || !p->batch || o->target.id != TARGET_SM90A || p->D > COLUMNS || p->Dv > COLUMNS)
        return;
    Knobs by = *s;
    by.said = knobs_of(FORM_SM90_CHUNK);
    by.groups = by.blocks = 1;
    by.rows = ROWS, by.warps = ROWS / 16, by.keys = KEYS;
    Extents e = extents_of(p, k, by);
    Block b = sm80_block(p, k, by);
    if (suits_groups(p, k, &e, by) && pass_shared(&b) <= o->target.shared_bytes) *s = by;
}

static bool goes_by_chunks(const TileKernel *k) {
    return k->purpose == PURPOSE_CHUNK || k->purpose == PURPOSE_STATES ||
           k->purpose == PURPOSE_ADJOINT;
}

static bool has_positions(const TileKernel *k) { // of a chunk
    return goes_by_chunks(k) || k->purpose == PURPOSE_ONE_CHUNK;
}

// Kernels that read what others leave for each chunk: chunks of all are the same.
static bool shares_chunks(const TileProgram *p, const TileKernel *k) {
    return p->chunks && has_positions(k);
}

// As many as were asked for; our own choice is cut to what a chunk may have.
static bool has_whole_chunks(const TileKernel *k, const PassOptions *o, Diags *diags) {
    int keys = o->schedule.keys;
    if (!has_positions(k) || !knobs_say(&o->schedule, KNOB_keys) || !(keys & (keys - 1)))
        return true;
    return diag_refuse(diags, (Span){0},
                       "schedule: chunks of a recurrence are a power of two; keys is %d", keys);
}

// More tiles that come a step ahead, where chunks stay as long as they are.
static void copy_more_ahead(const TileProgram *p, TileKernel *k, int positions, Knobs *s) {
    enum { MOST_LOADS = 8 };
    int warps = warps_of(k, *s), bytes = 0;
    for (Knobs more = *s; s->groups && more.ahead && more.ahead <= MOST_LOADS; more.ahead++) {
        Extents e = extents_of(p, k, more);
        e.step = positions;
        pass_fit_together(p, k, &e, more, warps, positions / 2);
        Block b = pass_block(p, k, &e, more, warps);
        if (e.step < positions || pass_shared(&b) == bytes) return; // no room, or no more tiles
        bytes = pass_shared(&b);
        *s = more;
    }
}

// free: nothing was asked for, but for the positions of chunks.
static bool bind_axes(TileProgram *p, TileKernel *k, Knobs *s, bool free, Diags *diags) {
    enum { LEAST = 16, MOST_LOADS = 4 };
    int keys = s->keys;
    if (!pass_tile_columns(p, k, columns_of(p, k), UNIT_COLUMNS, diags)) return false;
    Knobs wide = *s;
    if (free) widen(p, k, &wide);
    pass_load_vectors(p, k, knobs_say(s, KNOB_ahead) ? wide.blocks : 0);
    if (free) widen(p, k, s);
    Extents e = extents_of(p, k, *s);
    if (!p->chunks) pass_fit_together(p, k, &e, *s, warps_of(k, *s), LEAST); // else it was chosen
    while (s->groups && !suits_groups(p, k, &e, *s)) { // with fewer stages, or not at all
        s->groups = s->ahead > 0;
        s->ahead = s->ahead ? s->ahead - 1 : MOST_LOADS;
        e = extents_of(p, k, *s);
        pass_fit_together(p, k, &e, *s, warps_of(k, *s), LEAST);
    }
    if (free && goes_by_chunks(k)) copy_more_ahead(p, k, e.step, s);
    if (shares_chunks(p, k) && e.step != keys)
        return diag_refuse(diags, (Span){0},
                           "schedule: kernel '%s' has no room for chunks of %d positions", k->name,
                           keys);
    pass_bind_all(p, k, &e);
    return true;
}

// Of kernels that go from chunk to chunk, for sm_90a.
static bool choose_chunk(const TileKernel *k, const PassOptions *o, Diags *diags, Knobs *s) {
    if (!goes_by_chunks(k) || o->target.id != TARGET_SM90A) return true;
    s->said = knobs_of(FORM_SM90_CHUNK);
    s->groups = 1, s->ahead = 4;
    return knobs_take(s, FORM_SM90_CHUNK, &o->schedule, diags);
}

// Weights take the place of scores.
static int registers_of(const TileProgram *p, const TileKernel *k, Knobs s) {
    Block b = sm80_block(p, k, s);
    return pass_registers(&b) + OTHER_REGISTERS + (sm80_multiplies_bytes(k) ? CONVERTED : 0);
}

static int registers_for(const TileProgram *p, Knobs s) {
    int most = target_get(p->target)->registers, has = REGISTERS / (32 * s.warps * s.blocks);
    return has < most ? has : most;
}

// About half, in whole instructions.
static int fewer_keys(int keys) { return (keys / 2 + LEAST_KEYS - 1) / LEAST_KEYS * LEAST_KEYS; }

// With fewer keys, until the matrices leave so many registers to others.
static Knobs with_registers(const TileProgram *p, const TileKernel *k, Knobs s, int others) {
    while (s.keys > LEAST_KEYS && registers_of(p, k, s) > registers_for(p, s) - others)
        s.keys = fewer_keys(s.keys);
    return s;
}

// What no single knob tells.
static bool legal(const TileProgram *p, const TileKernel *k, Knobs s, const Target *t,
                  Diags *diags) {
    Block b = sm80_block(p, k, s);
    int shared = pass_shared(&b), registers = registers_for(p, s);
    const char *what = NULL;
    if (shared > t->shared_bytes)
        what = arena_printf(p->arena, "%d bytes of shared memory; there are %d", shared,
                            t->shared_bytes);
    else if (s.rows % (16 * s.warps))
        what = arena_printf(p->arena,
                            "tiles of 16 rows, or a multiple, for each of %d warps; "
                            "there are %d rows",
                            s.warps, s.rows);
    else if (registers_of(p, k, s) > registers)
        what = arena_printf(p->arena,
                            "%d registers of a thread for scores and accumulator; "
                            "there are %d",
                            registers_of(p, k, s), registers);
    if (what) diag_error(diags, (Span){0}, "schedule: it needs %s", what);
    return !what;
}

// All kernels of an attention that are not few.
static bool all_legal(const TileProgram *p, Knobs s, const PassOptions *o, Diags *diags) {
    for (int i = 0; i < p->kernels.n; i++) {
        const TileKernel *k = p->kernels.data[i];
        if (k->purpose != PURPOSE_ATTENTION) continue;
        Block b = sm80_block(p, k, s);
        if (o->schedule.said && !legal(p, k, s, &o->target, diags)) return false;
        if (pass_shared(&b) <= o->target.shared_bytes) continue;
        return diag_refuse(diags, (Span){0},
                           "target '%s' has no room for tiles of a D of %d and %s", o->target.name,
                           p->D, dtype_name(p->dtype));
    }
    return true;
}

// Where another target hands over its rest, there may be only those for parts of a row.
static bool all_few(const TileProgram *p) {
    for (int i = 0; i < p->kernels.n; i++)
        if (!sm80_has_parts(p->kernels.data[i])) return false;
    return true;
}

bool sm80_multiplies_bytes(const TileKernel *k) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (op->kind == TILE_MMA && dtype_byte(op->args.data[1]->dtype)) return true;
    return false;
}

bool sm80_reads_rows(const TileProgram *p, const TileKernel *k) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (op->kind == TILE_LOAD && (op->width || p->tensors.data[op->tensor].rows)) return true;
    return false;
}

bool sm80_changes_query(const TileKernel *k) {
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (op->kind == TILE_MMA && k->axes[tile_contracted_axis(op)].whole &&
            op->args.data[0]->def && op->args.data[0]->def->kind == TILE_MAP)
            return true;
    return false;
}

// Several products of a pair in registers, as row inputs and slices have, or operands that are converted: fewer keys at a time. Rows of q, too: fewer rows.
static void fit_registers(const TileProgram *p, Knobs *s) {
    for (int i = 0; i < p->kernels.n; i++) {
        const TileKernel *k = p->kernels.data[i];
        if (k->purpose != PURPOSE_ATTENTION || sm80_has_parts(k) ||
            (!sm80_reads_rows(p, k) && !sm80_changes_query(k) && !sm80_multiplies_bytes(k)))
            continue;
        while (sm80_changes_query(k) && s->rows > 16 * s->warps &&
               registers_of(p, k, *s) > registers_for(p, *s))
            s->rows /= 2;
        *s = with_registers(p, k, *s, 0);
    }
}

// The one place where a program's shape is chosen.
static bool choose(const TileProgram *p, const PassOptions *o, Diags *diags, Knobs *s) {
    *s = shape_for(p);
    if (s->keys > CROWDED_KEYS && is_crowded(p)) s->keys = CROWDED_KEYS;
    if (s->keys > DENSE_KEYS && reads_dense(p)) s->keys = DENSE_KEYS;
    fit_registers(p, s);
    if (o->schedule.said && !all_few(p) && !knobs_take(s, FORM_SM80, &o->schedule, diags))
        return false;
    return all_legal(p, *s, o, diags);
}

static bool has_room(const TileProgram *p, const TileKernel *k, Knobs s) {
    enum { STRIPS = 4096 };
    Block b = sm80_block(p, k, s);
    return pass_shared(&b) + STRIPS <= target_get(p->target)->shared_bytes;
}

// With fewer keys, or fewer warps.
static Knobs with_room(const TileProgram *p, const TileKernel *k, Knobs s) {
    int rows = s.rows / s.warps;
    while (s.keys > LEAST_KEYS && !has_room(p, k, s)) s.keys = fewer_keys(s.keys);
    while (s.warps > 1 && !has_room(p, k, s)) s.warps /= 2, s.rows = rows * s.warps;
    return s;
}

// Of pairs, or of numbers of queries: what a map makes of dq, or sums over the keys of several warps, has no place.
static bool fits_nest(const TileProgram *p, const TileKernel *k, const TileOp *op) {
    int keys = tile_grid_axis(k);
    bool vector = op->kind == TILE_LOAD && op->block->owner && op->results.data[0]->rank < 2;
    if (vector && !pass_is_vector(p, op)) return false;
    bool has = op->kind != TILE_MAP || op->naxes < 2;
    for (int i = 0; i < op->naxes; i++) has |= op->axes[i] == keys;
    for (int i = 0; i < op->outs.n; i++)
        has &= op->outs.data[i].reduce == EX_CONST || op->outs.data[i].reduce_axis != keys;
    return has;
}

// All gradients in one kernel, over tiles of keys: dq of a step is added to memory. A warp has registers for sums of 16 keys, and whole
// instructions' columns of dq.
bool sm80_is_nest(const TileProgram *p, const TileKernel *k) {
    enum { SUM_COLUMNS = 256, COLUMNS = 32 };
    if (k->purpose != PURPOSE_GRADIENTS || !dtype_half(p->dtype) || p->batch || p->D % COLUMNS ||
        p->D + p->Dv > SUM_COLUMNS)
        return false;
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (!fits_nest(p, k, op)) return false;
    return true;
}

// Twice as many keys as in kernels that make no dq, which is then added half as often.
static Knobs for_nest(const TileProgram *p, Knobs s) {
    enum { KEYS = 128 };
    int d = p->D > p->Dv ? p->D : p->Dv;
    s.blocks = 1;
    s.rows = KEYS;
    s.warps = d <= 64 ? 4 : 8;
    s.keys = d <= 64 ? 32 : 64;
    return s;
}

// Gradients have two scores of a pair and up to two accumulators in registers. What a warp reads of a step's columns serves two m16 tiles
// where there is room for their sums (0.87 of the time on an H200), or a step has more columns (0.89).
static Knobs for_gradients(const TileProgram *p, const TileKernel *k, Knobs s) {
    enum { LEAST = 16 };
    int d = p->D > p->Dv ? p->D : p->Dv, rows = dtype_half(p->dtype) && d <= 64 ? 32 : 16;
    int most = dtype_half(p->dtype) && d > 64 && d <= 128 ? 64 : 32;
    if (pass_nest(k)) return with_room(p, k, for_nest(p, s));
    s.blocks = 1;
    s.rows = rows * s.warps;
    if (s.keys > most) s.keys = most;
    if (!dtype_half(p->dtype) && p->D + p->Dv > 192) s.keys = LEAST;
    return with_room(p, k, s);
}

// Whether so many warps that share 16 rows have 16 columns each, or a multiple.
static bool share_columns(const TileProgram *p, int keys, int warps) {
    enum { PART = 16 };
    int across = PART * warps > keys ? PART * warps / keys : 1;
    return pass_padded(p->D, PART) / PART % across == 0 &&
           pass_padded(p->Dv, PART) / PART % across == 0 && keys / PART % across == 0;
}

// Maps that make sums over pairs of positions: one for each read.
static int pairs_of_channels(const TileKernel *k) {
    int n = 0;
    for (const TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        n += tile_all_decayed(op);
    return n;
}

// Sums over channels are of all of them: each warp has 16 or 32. Where rows are positions, warps share their columns.
static Knobs for_one_chunk(const TileProgram *p, const TileKernel *k, Knobs s) {
    enum { MOST_WARPS = 8 };
    if (pass_by_positions(k)) {
        s.rows = s.keys, s.blocks = 1;
        for (s.warps = MOST_WARPS; s.warps > 1 && !share_columns(p, s.keys, s.warps);) s.warps /= 2;
        return s;
    }
    for (s.warps = 4; s.warps < MOST_WARPS && 16 * s.warps < p->D;) s.warps *= 2;
    for (s.rows = 16 * s.warps; s.rows < p->D;) s.rows *= 2;
    s.blocks = s.warps == MOST_WARPS && dtype_half(p->dtype) && pairs_of_channels(k) == 1 ? 2 : 1;
    return s;
}

// Of few positions, whose time is that of the state's bytes: more blocks an SM have theirs on the way (0.64 to 0.98 of the time of two on an
// H100), four where nothing is erased.
static Knobs for_few(const TileProgram *p, const TileKernel *k, Knobs s) {
    s.keys = PASS_FEW_POSITIONS;
    int state = p->D * extents_of(p, k, s).rows / (32 * s.warps);
    if (dtype_half(p->dtype) && state <= STATE) s.blocks = tile_has(&k->body, TILE_INVERT) ? 3 : 4;
    return s;
}

// Position after position: a block has as many registers as it asks for.
static Knobs for_steps(const TileProgram *p, TileKernel *k, Knobs s) {
    s.rows = pass_steps(p, k, &s.warps);
    s.blocks = 1;
    return s;
}

// From segment to segment: narrow tiles, of which many run beside each other.
static Knobs for_starts(Knobs s) {
    s.warps = 2, s.blocks = 1;
    s.rows = 16 * s.warps;
    return s;
}

// Not where states are left and products are a warp's (1.2 times as slow there).
static bool starts_without_state(const TileKernel *k, const Knobs *s) {
    if (k->purpose == PURPOSE_FEW) return true;
    return goes_by_chunks(k) && knobs_say(s, KNOB_groups) &&
           (k->purpose != PURPOSE_STATES || s->groups);
}

bool pass_tile_sm80(TileProgram *p, const PassOptions *o, Diags *diags) {
    Knobs main, few;
    if (!p->kernels.n) return true; // as where another target hands over its rest
    if (!choose(p, o, diags, &main) || !sm80_few(p, o, diags, &few)) return false;
    for (int i = 0; i < p->kernels.n; i++) {
        TileKernel *k = p->kernels.data[i];
        bool is_few = sm80_has_parts(k), gradients = k->purpose == PURPOSE_GRADIENTS;
        bool free = !o->schedule.said;
        if (tile_is_backward(p) && !pass_tile_columns(p, k, MAX_COLUMNS, UNIT_COLUMNS, diags))
            return false; // so that what has room is known
        Knobs s = is_few ? few : gradients && free ? for_gradients(p, k, main) : main;
        if (k->purpose == PURPOSE_DELTA && free) // several sums over pairs, each of two scores
            s = with_registers(p, k, with_room(p, k, s), registers_for(p, s) / 2);
        if (k->purpose == PURPOSE_ONE_CHUNK) s = for_one_chunk(p, k, s);
        if (k->purpose == PURPOSE_FEW) s = for_few(p, k, s);
        if (k->purpose == PURPOSE_STEPS) s = for_steps(p, k, s);
        if (k->purpose == PURPOSE_STARTS) s = for_starts(s);
        if (!tile_has(&k->body, TILE_MMA) &&
            !pass_tile_columns(p, k, few.few_columns, LEAST_COLUMNS, NULL)) // all, where they must
            return false;
        if (free) choose_groups(p, k, o, &s);
        free |= p->chunks && !(o->schedule.said & ~(1u << KNOB_keys));
        if (!has_whole_chunks(k, o, diags)) return false;
        if (!choose_chunk(k, o, diags, &s) || !bind_axes(p, k, &s, free, diags)) return false;
        if (starts_without_state(k, &s)) pass_stateless_first(p, k);
        k->schedule = (TileSchedule){.lane_axis = -1,
                                     .warps = warps_of(k, s),
                                     .min_blocks = is_few ? s.few_blocks : s.blocks,
                                     .knobs = s};
    }
    return true;
}

// ---- products and their neighbours

// The accumulator's rescaling as early as its factor is known: before the exponentials, which then
// stand next to the product that can run beside them.
static bool feeds_product(const TileOp *map) {
    const TileOp *op = map->next;
    while (op && op->kind == TILE_LOAD) op = op->next;
    return op && op->kind == TILE_MMA && op->args.n == 3 &&
           op->args.data[2] == map->results.data[0];
}

static void raise_rescales(TileKernel *k) {
    for (TileOp *op = tile_next(&k->body, NULL), *next; op; op = next) {
        next = tile_next(&k->body, op);
        if (op->kind != TILE_MAP || op->results.n != 1 || !feeds_product(op)) continue;
        TileOp *to = op;
        while (to->prev && !pass_uses_result(op, to->prev)) to = to->prev;
        if (to != op) pass_move_before(to, op);
    }
}

// dq, and its sum, before the last of the products that are added up in registers: that one runs while the sum is on its way to memory, and
// those before it while all warps come to have their gradients of scores in shared memory.
static void raise_sums(const TileKernel *k, const TileOp *loop) {
    TileOp *last = NULL;
    for (TileOp *op = loop->body.first; op; op = op->next)
        if (op->kind == TILE_MMA && op->args.n == 3) last = op;
    for (TileOp *op = last ? last->next : NULL, *next; op; op = next) {
        next = op->next;
        bool sum = op->kind == TILE_MMA || (op->kind == TILE_STORE && op->add);
        bool free =
            sum && !tile_has_axis(op->kind == TILE_MMA ? op->results.data[0] : op->args.data[0],
                                  tile_grid_axis(k));
        for (TileOp *in = last; free && in != op; in = in->next) free = !pass_uses_result(op, in);
        if (free) pass_move_before(last, op);
    }
}

static int room_for_strips(const TileProgram *p, const TileKernel *k) {
    Block b = sm80_block(p, k, k->schedule.knobs);
    return target_get(p->target)->shared_bytes - pass_shared(&b);
}

// Whether tiles of rows take times of their own. Where they take the same, those of one head after
// the other read the keys and values of a head from the L2 cache.
void pass_assign_sm80(TileProgram *p, TileKernel *k) {
    raise_rescales(k);
    bool nest = pass_nest(k) != NULL;
    for (TileOp *op = tile_next(&k->body, NULL); op && nest; op = tile_next(&k->body, op))
        if (op->kind == TILE_LOOP) raise_sums(k, op);
    pass_strips(p, k, k->schedule.warps, room_for_strips(p, k));
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (op->kind == TILE_LOOP) pass_raise_strips(op);
    for (TileOp *op = tile_next(&k->body, NULL); op; op = tile_next(&k->body, op))
        if (op->kind == TILE_LOOP) pass_interval(p, k, tile_grid_axis(k), op->axis, false);
    pass_assign_all(p, k, true);
}

void pass_schedule_sm80(TileProgram *p, TileKernel *k, const PassOptions *o) {
    (void)o;
    pass_expand(p, k);
    sm90_products_early(p, k);
    pass_part_sums(p, k);
}
