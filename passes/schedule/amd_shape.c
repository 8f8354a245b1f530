// amd_shape.c: tile extents for AMD devices, by counting.
//
// In: a program for an AMD target, algorithm level. Out: extents bound; waves, blocks. Every shape
// of a short list is compared with the registers of a lane and the LDS of a compute unit, in numbers
// that the vendor publishes, and the one whose steps should take the fewest cycles for a score is
// taken. No device was measured: the counts say what bounds a step, not how long it takes.
//
// TileSchedule tells the lowering (codegen/amdgpu/amdgpu.h) what extents do not say: the rows of a matrix
// instruction, and whether registers are left for addresses.
#include "passes/schedule/cost.h"
#include "passes/schedule/schedule.h"
#include "passes/tile/rewrite.h"

enum {
    UNIT_COLUMNS = 64,
    HELD = 32,        // of a tile on its way (codegen/amdgpu/copy.c)
    OPERANDS = 32,    // registers for what products read ahead
    OTHER = 48,       // for addresses, statistics and what an expression needs
    OTHER_MORE = 24,  // more of those with WMMA, which wants its operands in eights, and in f32
    MAX_SCORES = 32,  // of a lane: more make a step long to compile, and little else
    SECOND_FILE = 64, // of the registers beyond 256, for what goes to and fro
    LDS_EXTRA = 1024, // for vectors of a number per key
    MAX_ROWS = 256,   // of a tile
    LEAST_ROWS = 16,  // of an instruction: whatever fits, fits with these
    ROOMY = 256,      // columns of q and o together beside which addresses have registers
    STEP = 300,       // cycles of a step that are not of its scores: barriers, waits, reductions
};

typedef struct Chip { // what a SIMD does in a cycle
    TargetId id;
    int half, single; // flops of products of f16 and bf16, of f32
    int lanes;        // f32 operations
    int lds;          // bytes: its share of the compute unit's
    int simds;        // of a compute unit
} Chip;

static const Chip chips[] = {
    {TARGET_GFX90A, 256, 64, 16, 32, 4},
    {TARGET_GFX942, 512, 64, 16, 32, 4},
    {TARGET_GFX1100, 256, 64, 32, 64, 2},
};

static const Chip *chip_of(TargetId id) {
    for (size_t i = 0; i < sizeof chips / sizeof *chips; i++)
        if (chips[i].id == id) return &chips[i];
    return &chips[0];
}

typedef struct Need { // of a program
    int d, dv, elem;  // columns of q and k, of a tile of v; bytes of an element
    int stages;       // of k
    const Target *t;
    const Chip *chip;
    bool
        same; // dot products have the same bits in other programs, too: there is one instruction for them
    Arena *arena; // for what is said of shapes
} Need;

static bool wmma(const Need *n) { return n->t->lanes == 32; }
static int padded_d(const Need *n) { return pass_padded(n->d, wmma(n) ? 16 : 32); }
static int padded_dv(const Need *n, const Knobs *s) { return pass_padded(n->dv, s->matrix_rows); }
static int rows_of(const Knobs *s) { return s->matrix_rows * s->mt * s->waves; }

// ---- what a shape needs

// Bytes of a row of so many elements: chunks of 16, a power of two of them or a multiple of eight.
static int row_bytes(const Need *n, int elements) {
    int chunks = (elements * n->elem + 15) / 16, power = 1;
    while (power < chunks) power *= 2;
    return 16 * (chunks > 8 ? pass_padded(chunks, 8) : power);
}

// k and q lie along their columns, v along the keys: what products contract.
static int lds_of(const Need *n, const Knobs *s) {
    int k = n->stages * s->keys * row_bytes(n, padded_d(n));
    int v = padded_dv(n, s) * row_bytes(n, s->keys);
    int q = s->keep ? 0 : rows_of(s) * row_bytes(n, padded_d(n));
    return k + v + q + LDS_EXTRA;
}

static int registers_of(const Need *n, const Knobs *s) {
    int parts = n->t->lanes / s->matrix_rows, d = padded_d(n), dv = padded_dv(n, s);
    bool narrow = n->elem == 2, pairs = narrow && !wmma(n);
    int q = s->keep ? s->mt * d / parts / (pairs ? 2 : 1) : 0;
    int acc = s->mt * dv / parts, scores = s->mt * s->keys / parts;
    int weights = pairs ? scores / 2 : scores;
    int threads = s->waves * n->t->lanes, wide = d > dv ? d : dv;
    int copied = s->keys * wide * n->elem / 4 / threads;
    if (copied > HELD) copied = HELD;
    int operands = OPERANDS;
    if (!s->keep && s->mt > 1) operands += OPERANDS / 2;
    if (wmma(n) && !narrow) operands = OPERANDS / 2 + s->keys; // a row's weights
    // Tuples of sixteen, and two groups of rows beside each other: a file half full has no room.
    if (!wmma(n) && s->matrix_rows * s->mt >= 32 && acc > 64) acc += acc / 2;
    int other = wmma(n) || !narrow ? OTHER + OTHER_MORE : OTHER;
    return q + acc + scores + weights + 2 * copied + operands + other; // copied, and where it is
}

static int register_file(const Need *n) { return wmma(n) ? 1536 : 512; } // of a SIMD, by lane

static int most_registers(const Need *n) {
    return n->t->registers > 256 ? n->t->registers - SECOND_FILE : n->t->registers;
}

static int waves_of_simd(const Need *n, const Knobs *s) { // of a block
    return (s->waves + n->chip->simds - 1) / n->chip->simds;
}

// Blocks that a compute unit has room for: two, one, or none.
static int blocks_of(const Need *n, const Knobs *s) {
    int regs = registers_of(n, s), file = register_file(n);
    int by_registers =
        regs > most_registers(n) ? 0 : file / pass_padded(regs, 8) / waves_of_simd(n, s);
    int by_lds = n->t->shared_bytes / lds_of(n, s);
    int blocks = by_registers < by_lds ? by_registers : by_lds;
    return blocks < 2 ? blocks : 2;
}

// Cycles for a score of a wave, a thousand times.
static int64_t cost_of(const Need *n, const Knobs *s) {
    int columns = padded_d(n) + padded_dv(n, s), rows = s->matrix_rows * s->mt;
    int rate = n->elem == 2 ? n->chip->half : n->chip->single;
    int64_t matrix = 2000 * (int64_t)columns / rate;
    int64_t lds = 1000 * (int64_t)columns * n->elem * (s->keep ? 1 : 2) / (rows * n->chip->lds);
    int64_t plain = 16000 / n->chip->lanes; // a dozen operations and an exponential
    int64_t step = 1000 * (int64_t)STEP / (rows * s->keys);
    int64_t all = matrix + lds + plain + step, most = matrix;
    if (lds > most) most = lds;
    if (plain > most) most = plain;
    int each = waves_of_simd(n, s) * blocks_of(n, s);
    if (each == 1) return all;
    return most > all / 2 ? most + step / 2 : all / 2 + step / 2;
}

// ---- the choice

static bool is_power(int n) { return (n & (n - 1)) == 0; }

// What the instructions and the copies (codegen/amdgpu/copy.c) ask of a shape; NULL: it has it.
static const char *misshapen(const Need *n, const Knobs *s) {
    Arena *a = n->arena;
    if (!is_power(s->waves) || !is_power(s->keys))
        return arena_printf(a, "powers of two of waves and keys; there are %d and %d", s->waves,
                            s->keys);
    if (wmma(n) && s->matrix_rows != 16)
        return arena_printf(a, "instructions of 16 rows on '%s', not %d", n->t->name,
                            s->matrix_rows);
    if (wmma(n) && s->keep && n->elem == 4)
        return arena_printf(a, "keep=0 for elements of 4 bytes on '%s'", n->t->name);
    if (n->elem == 2 && s->keys % 32 && !wmma(n)) // two steps of an MFMA
        return arena_printf(a, "32 keys or more for elements of 2 bytes; there are %d", s->keys);
    if (n->same && !wmma(n) && s->matrix_rows != LEAST_ROWS)
        return arena_printf(
            a, "instructions of %d rows, not %d, where the backward finds extrema of scores again",
            LEAST_ROWS, s->matrix_rows);
    if (s->keys % s->matrix_rows)
        return arena_printf(a, "as many keys as an instruction has rows, %d; there are %d",
                            s->matrix_rows, s->keys);
    return NULL;
}

static const char *too_large(const Need *n, const Knobs *s) {
    Arena *a = n->arena;
    int scores = s->mt * s->keys * s->matrix_rows / n->t->lanes, regs = registers_of(n, s);
    if (regs > most_registers(n))
        return arena_printf(a, "%d registers of a lane; there are %d", regs, most_registers(n));
    if (lds_of(n, s) > n->t->shared_bytes)
        return arena_printf(a, "%d bytes of LDS; there are %d", lds_of(n, s), n->t->shared_bytes);
    if (rows_of(s) > MAX_ROWS)
        return arena_printf(a, "%d rows of a tile; there are %d", rows_of(s), MAX_ROWS);
    if (scores > MAX_SCORES)
        return arena_printf(a, "%d scores of a lane; there is room for %d", scores, MAX_SCORES);
    if (blocks_of(n, s) < 1)
        return arena_printf(a, "%d registers for each of %d waves of a SIMD; there are %d in all",
                            regs, waves_of_simd(n, s), register_file(n));
    return NULL;
}

// Why a shape cannot be; NULL: it can.
static const char *unfit(const Need *n, const Knobs *s) {
    const char *why = misshapen(n, s);
    return why ? why : too_large(n, s);
}

enum { MAX_SHAPES = 96 };

static int shapes_of(const Need *n, Knobs *list) {
    static const int rows[] = {32, 16}, keys[] = {64, 128, 32, 16}, waves[] = {4, 8, 2};
    int count = 0;
    for (int r = 0; r < 2; r++)
        for (int k = 0; k < 4; k++)
            for (int i = 0; i < 12; i++) {
                Knobs s = {.said = knobs_of(FORM_AMD),
                           .matrix_rows = rows[r],
                           .mt = 1 + i % 2,
                           .keys = keys[k],
                           .waves = waves[i / 2 % 3],
                           .keep = i < 6};
                if (!unfit(n, &s)) list[count++] = s;
            }
    return count;
}

static bool cheapest(const Need *n, Knobs *best) {
    Knobs list[MAX_SHAPES];
    int count = shapes_of(n, list);
    int64_t least = INT64_MAX;
    for (int i = 0; i < count; i++) {
        int64_t cost = cost_of(n, &list[i]);
        if (cost >= least) continue;
        least = cost;
        *best = list[i];
    }
    return count > 0;
}

// The one place where a program's shape is chosen; it travels in its kernels.
static bool choose(const TileProgram *p, const Need *n, const PassOptions *o, Diags *diags,
                   Knobs *s) {
    if (!cheapest(n, s))
        return diag_refuse(diags, (Span){0},
                           "target '%s' has no room for tiles of a D of %d and %s", o->target.name,
                           p->D, dtype_name(p->dtype));
    if (!o->schedule.said) return true;
    if (!knobs_take(s, FORM_AMD, &o->schedule, diags)) return false;
    const char *why = unfit(n, s);
    if (why) diag_error(diags, (Span){0}, "schedule: it needs %s", why);
    return !why;
}

static int stages_of_k(const TileProgram *p) {
    int most = 1;
    for (int i = 0; i < p->kernels.n; i++)
        for (int t = 0; t < p->tensors.n; t++)
            if (p->tensors.data[t].role == TENSOR_K && pass_stages(p, p->kernels.data[i], t) > most)
                most = pass_stages(p, p->kernels.data[i], t);
    return most;
}

static Need need_of(const TileProgram *p, const Target *t, bool same) {
    int most = pass_most_columns(t), dv = p->Dv < most ? p->Dv : most;
    return (Need){p->D, dv,      dtype_bytes(p->dtype), stages_of_k(p), t, chip_of(t->id),
                  same, p->arena};
}

// ---- binding

// 16 rows have more addresses, too.
static bool is_crowded(const TileKernel *k, const Knobs *s) {
    int columns = 0;
    for (int a = 0; a < k->naxes; a++)
        if (k->axes[a].whole) columns += k->axes[a].extent;
    return s->matrix_rows == 16 || columns > ROOMY;
}

// Rows of which there are fewer than a tile has, as of a state's columns, take fewer waves.
static void take_fewer_waves(const TileKernel *k, Knobs *s) {
    int axis = tile_grid_axis(k);
    const Ex *size = axis >= 0 ? k->axes[axis].size : NULL;
    while (size && size->op == EX_CONST && rows_of(s) / 2 >= size->i && s->waves > 1) s->waves /= 2;
}

// One wave that makes all of a chunk has registers for few positions. With more LLVM 19 lacks scalar registers, too. It keeps those in lanes
// of a vector register, and copies that one over lanes of another that a branch has switched off: a wrong result.
static void take_short_chunks(const TileKernel *k, const Need *n, Knobs *s) {
    enum { FEW = 16 };
    if (k->purpose == PURPOSE_CHUNK && wmma(n) && s->waves == 1) s->keys = FEW;
}

// Gradients have two scores of a pair and up to two accumulators in registers: they take few columns of a step. They read tiles of
// q, k, v and do.
static void take_fewer_columns(const TileKernel *k, const Need *n, Knobs *s) {
    enum { LEAST = 32 };
    int row = row_bytes(n, padded_d(n)) + row_bytes(n, padded_dv(n, s));
    if (k->purpose != PURPOSE_GRADIENTS) return;
    s->mt = 1;
    s->waves = s->waves > 4 ? 4 : s->waves;
    s->keys = s->keys > LEAST ? LEAST : s->keys;
    while (s->waves > 1 && (rows_of(s) + s->keys) * row + LDS_EXTRA > n->t->shared_bytes)
        s->waves /= 2;
}

// A group's heads of a few queries: one wave, and as many blocks as their keys have parts. The wave copies alone, and holds more of a
// step's tiles on their way: where registers are too few for them, a step has fewer keys.
static void take_few_rows(const TileKernel *k, const Need *n, Knobs *s) {
    if (k->purpose != PURPOSE_PART && k->purpose != PURPOSE_COMBINE) return;
    s->mt = 1;
    s->waves = 1;
    Knobs fewer = *s;
    for (fewer.keys /= 2; too_large(n, s) && !misshapen(n, &fewer); fewer.keys /= 2) *s = fewer;
}

// From segment to segment: narrow tiles, of which many run beside each other.
static void take_narrow_tiles(const TileKernel *k, Knobs *s) {
    if (k->purpose != PURPOSE_STARTS) return;
    s->mt = 1;
    if (s->waves > 2) s->waves = 2;
}

static bool bind(TileProgram *p, TileKernel *k, const Need *n, const Knobs *chosen, Diags *diags) {
    Knobs own = *chosen;
    const Knobs *s = &own;
    take_narrow_tiles(k, &own);
    take_fewer_waves(k, &own);
    take_short_chunks(k, n, &own);
    take_fewer_columns(k, n, &own);
    take_few_rows(k, n, &own);
    int columns = 0;
    if (k->purpose == PURPOSE_STEPS) columns = pass_steps(p, k, &own.waves);
    if (!pass_tile_columns(p, k, pass_most_columns(n->t), UNIT_COLUMNS, diags)) return false;
    k->schedule =
        (TileSchedule){.lane_axis = -1,
                       .warps = s->waves,
                       .min_blocks = k->purpose == PURPOSE_GRADIENTS ? 1 : blocks_of(n, s),
                       .matrix_rows = s->matrix_rows,
                       .knobs = *s};
    // The backward contracts columns of v, too.
    int contracted = wmma(n) ? 16 : 32, values = tile_is_backward(p) ? contracted : s->matrix_rows;
    Extents e = {columns ? columns : rows_of(s), s->keys, contracted, values,
                 pass_most_columns(n->t)};
    pass_fit_together(p, k, &e, *s, s->waves, n->elem == 2 ? 32 : s->matrix_rows);
    k->schedule.knobs.keys = e.step;
    pass_bind_all(p, k, &e);
    k->schedule.crowded = is_crowded(k, s);
    return true;
}

bool pass_tile_amd(TileProgram *p, const PassOptions *o, Diags *diags) {
    Need n = need_of(p, &o->target, pass_same_dots(o));
    Knobs s;
    if (!choose(p, &n, o, diags, &s)) return false;
    for (int i = 0; i < p->kernels.n; i++)
        if (!bind(p, p->kernels.data[i], &n, &s, diags)) return false;
    return true;
}

// ---- candidates

void cost_amd(Proposals *to) {
    Knobs list[MAX_SHAPES];
    Need n = need_of(to->p, to->target, false);
    int count = shapes_of(&n, list);
    for (int i = 0; i < count; i++) {
        CostRows seen = cost_rows(to->p, to->k, rows_of(&list[i]), to->sizes);
        CostTiles tiles = cost_tiles(&seen, list[i].keys);
        double scores = tiles.tiles * tiles.steps * rows_of(&list[i]) * list[i].keys;
        double cycles = scores * (double)cost_of(&n, &list[i]) / 1000;
        VEC_PUSH(to->arena, &to->list, ((Candidate){list[i], cycles}));
    }
}
