// mma.c: matrix products.
//
// In: a TILE_MMA whose result is a fragment [rows, columns]; the operand with the row axis is a
// fragment or lies in LDS, the other one lies in LDS. Out: the result in registers.
//
// The instruction's first operand is the one from LDS, whose rows become the result's columns; the
// second has the fragment's rows (amdgpu.h says why). Both hold, per lane, consecutive elements of
// the contracted axis: a chunk of LDS, or registers of a fragment. Which elements those
// are does not matter as long as both agree: `wide` axes and `paired` chunks are made so that they do.
//
//     f16, bf16   MFMA   a chunk is two steps of 4 elements a lane       WMMA   two chunks a step
//     f32         MFMA   a chunk is four steps of one element a lane     WMMA   has none: FMAs
#include "codegen/amdgpu/amdgpu.h"

#include <assert.h>

typedef struct Product {
    const TileOp *op;
    const TileValue *left, *right; // left has the rows
    const CgFragment *f;           // of the result
    int mt, n;                     // its row groups of a wave, elements of a row
    int axis;                      // contracted
    int depth;                     // its extent
    Dtype dtype;
    int tile;      // elements of a lane in one instruction's result
    int step;      // of the contracted axis: columns of one step of the loops below
    int words;     // of i32 that a lane has of an operand in such a step
    Val row, part; // i32: the lane's row of an instruction's, its part
    Val row0;      // i32: the row of the tile that is row 0 of the wave's
    Val *acc;
} Product;

static Product product_of(Cg *cg, const TileOp *op) {
    const AmState *s = am_state(cg);
    Product p = {.op = op, .left = op->args.data[0], .right = op->args.data[1]};
    p.f = cg_fragment(cg, op->results.data[0]);
    p.mt = cg_share(p.f, p.f->rows);
    p.n = am_elements(cg, p.f);
    if (!tile_has_axis(p.left, p.f->rows)) {
        p.left = op->args.data[1];
        p.right = op->args.data[0];
    }
    assert(p.right->home == HOME_SHARED && "one operand of a product lies in LDS");
    p.axis = tile_contracted_axis(op);
    p.depth = cg->k->axes[p.axis].extent;
    p.dtype = p.right->dtype;
    p.tile = s->rows * s->rows / s->wave;
    p.words = s->wmma && dtype_half(p.dtype) ? 8 : 4;
    Val row0 = cg_thread_part(cg, op->results.data[0]->layout, p.f->rows);
    Val lane = s->crowded ? am_hidden(cg, s->gpu.lane) : s->gpu.lane;
    p.row = cg_modulo(cg, lane, s->rows);
    p.part = cg_over(cg, lane, s->rows);
    p.row0 = cg_sub(cg, row0, s->row);
    p.step = s->wmma ? 16 : s->parts * 4 * p.words / dtype_bytes(p.dtype);
    return p;
}

static void begin_sum(Cg *cg, Product *p) {
    CgValue *value = cg_make(cg, p->op->results.data[0]);
    p->acc = value->e;
    const TileValue *sum = p->op->args.n > 2 ? p->op->args.data[2] : NULL;
    for (int i = 0; i < value->n; i++) p->acc[i] = sum ? am_held(cg, sum, i) : cg_f32(cg, 0);
}

// ---- operands: the words of this lane's row `outer` in step k

static Val load_chunk(Cg *cg, const TileShared *t, Val mem, AmPlace row, AmPlace chunk) {
    Val at = cg_add(cg, am_chunk(cg, t, row, chunk), mem);
    Val v = cg_load(cg, cg_vector(cg->i32, 4), am_lds(cg, at));
    LLVMSetAlignment(v, HOME_PIECE);
    return v;
}

// Of the contracted axis, what a fragment of it has as element e.
static Val contracted(Cg *cg, const Product *p, int e) {
    const AmState *s = am_state(cg);
    int unit = cg->k->axes[p->axis].wide ? 8 : 4;
    return cg_plus(cg, cg_times(cg, s->part, unit), unit * s->parts * (e / unit) + e % unit);
}

// A tile that is not stored along the contracted axis: element by element.
static void gather(Cg *cg, const Product *p, const TileShared *t, const TileValue *v, Val row,
                   int k, Val *w) {
    const AmState *s = am_state(cg);
    int each = 4 / t->elem, n = p->words * each;
    Ty type = t->elem == 2 ? cg->i16 : cg->i32;
    Val x[16];
    for (int i = 0; i < n; i++) {
        Val at =
            s->wmma ? cg_i32(cg, k * p->step + i) : contracted(cg, p, k * p->step / s->parts + i);
        at = am_tile_offset(cg, t, at, row);
        at = cg_add(cg, cg->value[v->id].mem, at);
        x[i] = cg_load(cg, type, am_lds(cg, at));
    }
    for (int i = 0; i < p->words; i++)
        w[i] = each == 1 ? x[i] : cg_bitcast(cg, am_vector(cg, type, x + each * i, each), cg->i32);
}

static void shared_words(Cg *cg, const Product *p, const TileValue *v, AmPlace row, int k, Val *w) {
    const AmState *s = am_state(cg);
    TileShared t = tile_shared(cg->p, cg->k, v);
    if (t.col_axis != p->axis) {
        gather(cg, p, &t, v, cg_plus(cg, row.at, row.more), k, w);
        return;
    }
    for (int i = 0; i < p->words / 4; i++) {
        AmPlace chunk = {s->wmma ? cg_i32(cg, 0) : p->part,
                         s->wmma ? k * (p->words / 4) + i : k * s->parts};
        Val four = load_chunk(cg, &t, cg->value[v->id].mem, row, chunk);
        for (int j = 0; j < 4; j++) w[4 * i + j] = am_at(cg, four, j);
    }
}

// Of a fragment whose columns are the contracted axis: registers as they are.
static void fragment_words(Cg *cg, const Product *p, int m, int k, Val *w) {
    const CgFragment *f = cg_fragment(cg, p->left);
    int pair = am_pair(cg, f), n = p->words * pair;
    assert(f->columns == p->axis && (f->each == 2) == dtype_half(p->dtype));
    for (int i = 0; i < p->words; i++) {
        Val x = am_held(cg, p->left, am_register(cg, f, m, k * n + i * pair));
        w[i] = cg_bitcast(cg, x, cg->i32);
    }
}

static void left_words(Cg *cg, const Product *p, int m, int k, Val *w) {
    const AmState *s = am_state(cg);
    if (p->left->home == HOME_SHARED)
        shared_words(cg, p, p->left, (AmPlace){cg_add(cg, p->row0, p->row), s->rows * m}, k, w);
    else
        fragment_words(cg, p, m, k, w);
}

static void right_words(Cg *cg, const Product *p, int n, int k, Val *w) {
    const AmState *s = am_state(cg);
    shared_words(cg, p, p->right, (AmPlace){p->row, s->rows * n}, k, w);
}

// ---- instructions

// n words as the vector that an instruction takes.
static Val operand(Cg *cg, Dtype t, const Val *w, int n) {
    if (t == DT_F32) return cg_bitcast(cg, w[0], cg->f32);
    Ty type = t == DT_F16 ? cg->f16 : cg->i16;
    return cg_bitcast(cg, am_vector(cg, cg->i32, w, n), cg_vector(type, 2 * n));
}

static Val mfma(Cg *cg, const Product *p, Val a, Val b, Val acc) {
    static const char *const names[2][3] = {
        {"llvm.amdgcn.mfma.f32.16x16x4f32", "llvm.amdgcn.mfma.f32.16x16x16f16",
         "llvm.amdgcn.mfma.f32.16x16x16bf16.1k"},
        {"llvm.amdgcn.mfma.f32.32x32x2f32", "llvm.amdgcn.mfma.f32.32x32x8f16",
         "llvm.amdgcn.mfma.f32.32x32x8bf16.1k"}};
    int which = p->dtype == DT_F32 ? 0 : p->dtype == DT_F16 ? 1 : 2;
    Val zero = cg_i32(cg, 0), v[] = {a, b, acc, zero, zero, zero};
    return cg_intrinsic(cg, names[am_state(cg)->rows == 32][which], NULL, 0, v, 6);
}

static Val wmma(Cg *cg, const Product *p, Val a, Val b, Val acc) {
    Ty types[] = {LLVMTypeOf(acc), LLVMTypeOf(a)};
    Val v[] = {a, b, acc};
    return cg_intrinsic(cg,
                        p->dtype == DT_F16 ? "llvm.amdgcn.wmma.f32.16x16x16.f16"
                                           : "llvm.amdgcn.wmma.f32.16x16x16.bf16",
                        types, 2, v, 3);
}

// All instructions of one step.
static Val multiply(Cg *cg, const Product *p, const Val *a, const Val *b, Val acc) {
    if (am_state(cg)->wmma)
        return wmma(cg, p, operand(cg, p->dtype, a, 8), operand(cg, p->dtype, b, 8), acc);
    int each = p->dtype == DT_F32 ? 1 : 2;
    for (int i = 0; i < p->words; i += each)
        acc = mfma(cg, p, operand(cg, p->dtype, a + i, each), operand(cg, p->dtype, b + i, each),
                   acc);
    return acc;
}

// ---- the loops
//
// Tile after tile of the result, step after step of the contracted axis, in groups of a few steps:
// while a group is multiplied the operands of the next one are read. LLVM schedules within a group
// only; left alone it would read all of them first, and spill.

enum { OPERANDS = 32, MAX_MT = 4 }; // registers for two groups

typedef struct Step { // operands of one
    Val right[8];
    Val left[MAX_MT][8];
} Step;

// Step i of all: tiles of the result outermost.
static void read_step(Cg *cg, const Product *p, int i, Step *out) {
    int steps = p->depth / p->step, n = i / steps, k = i % steps;
    right_words(cg, p, n, k, out->right);
    for (int m = 0; m < p->mt; m++) left_words(cg, p, m, k, out->left[m]);
}

static void multiply_step(Cg *cg, Product *p, int i, const Step *s, Val acc[MAX_MT]) {
    int steps = p->depth / p->step, n = i / steps, k = i % steps;
    for (int m = 0; m < p->mt; m++) {
        Val *from = &p->acc[am_register(cg, p->f, m, n * p->tile)];
        if (k == 0) acc[m] = am_vector(cg, cg->f32, from, p->tile);
        acc[m] = multiply(cg, p, s->right, s->left[m], acc[m]);
        if (k < steps - 1) continue;
        acc[m] = am_pinned(cg, acc[m]);
        for (int e = 0; e < p->tile; e++) from[e] = am_at(cg, acc[m], e);
    }
}

static int group_of(const Product *p) {
    int words = p->words * (p->left->home == HOME_SHARED ? 1 + p->mt : 1);
    return words < OPERANDS / 2 ? OPERANDS / 2 / words : 1;
}

static void matrix_product(Cg *cg, Product *p) {
    int group = group_of(p), all = p->depth / p->step * (p->n / p->tile);
    assert(p->depth % p->step == 0 && p->n % p->tile == 0 && p->mt <= MAX_MT);
    Step *steps = ARENA_ARRAY(cg->arena, Step, all);
    Val acc[MAX_MT];
    for (int i = 0; i < all && i < group; i++) read_step(cg, p, i, &steps[i]);
    for (int first = 0; first < all; first += group) {
        am_schedule_fence(cg);
        for (int i = first + group; i < all && i < first + 2 * group; i++)
            read_step(cg, p, i, &steps[i]);
        for (int i = first; i < all && i < first + group; i++)
            multiply_step(cg, p, i, &steps[i], acc);
    }
    am_schedule_fence(cg);
}

// ---- f32 by FMAs: each lane has its own columns of the result and all of its row of the left
// operand, of which its fragment has the other lane's part exchanged

static void left_numbers(Cg *cg, const Product *p, int m, Val *x) {
    const AmState *s = am_state(cg);
    Val first = cg_is(cg, s->part, 0);
    const CgFragment *f = cg_fragment(cg, p->left);
    assert(f->columns == p->axis && f->each == 1);
    for (int e = 0; e < am_elements(cg, f); e++) {
        Val own = am_held(cg, p->left, am_register(cg, f, m, e));
        Val other = am_exchange(cg, own, s->rows);
        x[2 * e] = cg_select(cg, first, own, other);
        x[2 * e + 1] = cg_select(cg, first, other, own);
    }
}

static Val four_at(Cg *cg, const TileValue *v, const TileShared *t, int axis, AmPlace row,
                   AmPlace k) {
    Val mem = cg->value[v->id].mem;
    AmPlace chunk = {cg_lshr(cg, k.at, cg_i32(cg, 2)), k.more / 4};
    if (t->col_axis == axis) return load_chunk(cg, t, mem, row, chunk);
    Val x[4], other = cg_plus(cg, row.at, row.more);
    for (int i = 0; i < 4; i++) {
        Val at = am_tile_offset(cg, t, cg_plus(cg, k.at, k.more + i), other);
        at = cg_add(cg, mem, at);
        x[i] = cg_load(cg, cg->i32, am_lds(cg, at));
    }
    return am_vector(cg, cg->i32, x, 4);
}

// Columns [k, k + 4) of the contracted axis, for every column of the result; x: those of the rows.
static void fma_step(Cg *cg, Product *p, const TileShared *right, const Val *x, AmPlace k) {
    for (int e = 0; e < p->n; e++) {
        AmPlace col = {p->part, am_column(cg, p->f, e)};
        Val four = four_at(cg, p->right, right, p->axis, col, k);
        for (int i = 0; i < 4; i++)
            for (int m = 0; m < p->mt; m++) {
                Val *acc = &p->acc[am_register(cg, p->f, m, e)];
                Val b = cg_bitcast(cg, am_at(cg, four, i), cg->f32);
                Val v[] = {x[4 * m + i], b, *acc};
                *acc = cg_intrinsic(cg, "llvm.fma", &cg->f32, 1, v, 3);
            }
    }
}

// A loop over the contracted axis, which carries the sums.
static CgTurns fma_begin(Cg *cg, Product *p) {
    return cg_turns(cg, cg_i32(cg, 0), p->acc, p->f->registers);
}

static void fma_end(Cg *cg, Product *p, CgTurns *l, int step) {
    Val next = cg_plus(cg, l->i, step);
    cg_end_turns(cg, l, next, cg_below(cg, next, p->depth), p->acc);
}

// The left operand in LDS.
static void fma_shared(Cg *cg, Product *p, const TileShared *right) {
    TileShared left = tile_shared(cg->p, cg->k, p->left);
    int mt = p->mt;
    CgTurns l = fma_begin(cg, p);
    Val *x = ARENA_ARRAY(cg->arena, Val, 4 * mt), row = cg_add(cg, p->row0, p->row);
    for (int m = 0; m < mt; m++) {
        AmPlace at = {row, am_state(cg)->rows * m};
        Val four = four_at(cg, p->left, &left, p->axis, at, (AmPlace){l.i, 0});
        for (int i = 0; i < 4; i++) x[4 * m + i] = cg_bitcast(cg, am_at(cg, four, i), cg->f32);
    }
    fma_step(cg, p, right, x, (AmPlace){l.i, 0});
    fma_end(cg, p, &l, 4);
}

// Columns [k, k + n), of whose left numbers x has `pitch` a row group: step after step, of which LLVM
// is to mix no two.
static void fma_steps(Cg *cg, Product *p, const TileShared *right, const Val *x, int pitch, Val k,
                      int n) {
    Val *four = ARENA_ARRAY(cg->arena, Val, 4 * p->mt);
    for (int first = 0; first < n; first += 4) {
        for (int i = 0; i < 4 * p->mt; i++) four[i] = x[i / 4 * pitch + first + i % 4];
        fma_step(cg, p, right, four, (AmPlace){k, first});
        for (int i = 0; i < p->f->registers; i++) p->acc[i] = am_pinned(cg, p->acc[i]);
        am_schedule_fence(cg);
    }
}

// What a turn multiplies by comes down from turn to turn: registers have no number that is computed.
static void fma_turns(Cg *cg, Product *p, const TileShared *right, const Val *all, int each) {
    int turns = p->depth / each, n = p->mt * each;
    CgTurns l = fma_begin(cg, p);
    Val *x = ARENA_ARRAY(cg->arena, Val, n * (turns - 1));
    for (int i = 0; i < n * (turns - 1); i++) x[i] = cg_phi(cg, cg->f32);
    fma_steps(cg, p, right, x, each, l.i, each);
    for (int i = 0; i < n * (turns - 1); i++) {
        int t = i / n, m = i % n / each, j = i % each;
        const Val *from = &all[m * p->depth + t * each + j];
        Val next = t < turns - 2 ? x[i + n] : from[each];
        LLVMAddIncoming(x[i], (Val[]){*from, next}, (Blk[]){l.pre, l.head}, 2);
    }
    fma_end(cg, p, &l, each);
}

// Of a turn: twice as many take 35 ms more to compile.
enum { MOST_FMAS = 256 };

// The left operand in registers.
static void fma_registers(Cg *cg, Product *p, const TileShared *right) {
    int mt = p->mt, each = p->depth;
    Val *all = ARENA_ARRAY(cg->arena, Val, mt * p->depth);
    for (int m = 0; m < mt; m++) left_numbers(cg, p, m, all + m * p->depth);
    if (p->f->registers * each > MOST_FMAS) {
        for (each = 4; p->depth % (2 * each) == 0;) {
            if (p->f->registers * 2 * each > MOST_FMAS) break;
            each *= 2;
        }
    }
    if (each < p->depth)
        fma_turns(cg, p, right, all, each);
    else
        fma_steps(cg, p, right, all, p->depth, cg_i32(cg, 0), p->depth);
}

static void fma_product(Cg *cg, Product *p) {
    TileShared right = tile_shared(cg->p, cg->k, p->right);
    if (p->left->home == HOME_SHARED)
        fma_shared(cg, p, &right);
    else
        fma_registers(cg, p, &right);
}

void am_mma(Cg *cg, const TileOp *op) {
    Product p = product_of(cg, op);
    begin_sum(cg, &p);
    if (am_state(cg)->wmma && !dtype_half(p.dtype))
        fma_product(cg, &p);
    else
        matrix_product(cg, &p);
}
