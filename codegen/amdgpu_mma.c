// amdgpu_mma.c: matrix products.
//
// In: a TILE_MMA whose result is a fragment [rows, columns]; the operand with the row axis is a
// fragment or lies in LDS, the other one lies in LDS. Out: the result in registers.
//
// The instruction's first operand is the one from LDS, whose rows become the result's columns; the
// second has the fragment's rows (amdgpu.h says why). Both hold, per lane, consecutive elements of
// the contracted axis: a chunk of LDS, or registers of a fragment. Which element of the axis that is
// does not matter as long as both agree: `wide` axes and `paired` chunks are made so that they do.
//
//     f16, bf16   MFMA   a chunk is two steps of 4 elements a lane       WMMA   two chunks a step
//     f32         MFMA   a chunk is four steps of one element a lane     WMMA   has none: FMAs
#include "codegen/amdgpu.h"

#include <assert.h>

typedef struct Product {
    const TileOp *op;
    const TileValue *left, *right; // left has the rows
    AmShape shape;                 // of the result
    int axis;                      // contracted
    int depth;                     // its extent
    Dtype dtype;
    int tile;  // elements of a lane in one instruction's result
    int step;  // of the contracted axis: columns of one step of the loops below
    int words; // of i32 that a lane has of an operand in such a step
    Val *acc;
} Product;

static Product product_of(Cg *cg, const TileOp *op) {
    const AmState *s = am_state(cg);
    Product p = {.op = op, .left = op->args.data[0], .right = op->args.data[1]};
    if (!tile_has_axis(p.left, s->row_axis)) {
        p.left = op->args.data[1];
        p.right = op->args.data[0];
    }
    assert(p.right->home == HOME_SHARED && "one operand of a product lies in LDS");
    p.shape = am_shape(cg, op->results.data[0]);
    p.axis = tile_contracted_axis(op);
    p.depth = cg->k->axes[p.axis].extent;
    p.dtype = p.right->dtype;
    p.tile = s->rows * s->rows / s->wave;
    p.words = s->wmma && am_narrow(p.dtype) ? 8 : 4;
    p.step = s->wmma ? 16 : s->parts * 4 * p.words / dtype_bytes(p.dtype);
    return p;
}

static void begin_sum(Cg *cg, Product *p) {
    CgValue *value = &cg->value[p->op->results.data[0]->id];
    value->n = am_count(p->shape);
    value->e = p->acc = ARENA_ARRAY(cg->arena, Val, value->n);
    const TileValue *sum = p->op->args.n > 2 ? p->op->args.data[2] : NULL;
    for (int i = 0; i < value->n; i++) p->acc[i] = sum ? cg->value[sum->id].e[i] : cg_f32(cg, 0);
}

// ---- operands: the words of this lane's row `outer` in step k

static Val load_chunk(Cg *cg, const AmTile *t, Val mem, Val outer, Val chunk) {
    Val at = LLVMBuildAdd(cg->b, mem, am_chunk(cg, t, outer, chunk), "");
    Val v = LLVMBuildLoad2(cg->b, cg_vector(cg->i32, 4), am_lds(cg, at), "");
    LLVMSetAlignment(v, AM_CHUNK);
    return v;
}

// A tile that is not stored along the contracted axis: element by element.
static void gather(Cg *cg, const Product *p, const AmTile *t, const TileValue *v, Val row, int k,
                   Val *w) {
    const AmState *s = am_state(cg);
    int each = 4 / t->elem, n = p->words * each;
    Ty type = t->elem == 2 ? cg->i16 : cg->i32;
    Val x[16];
    for (int i = 0; i < n; i++) {
        Val at = s->wmma ? cg_i32(cg, k * p->step + i)
                         : am_column(cg, p->axis, k * p->step / s->parts + i);
        at = am_tile_offset(cg, t, at, row);
        at = LLVMBuildAdd(cg->b, cg->value[v->id].mem, at, "");
        x[i] = LLVMBuildLoad2(cg->b, type, am_lds(cg, at), "");
    }
    for (int i = 0; i < p->words; i++)
        w[i] = LLVMBuildBitCast(cg->b, am_vector(cg, type, x + each * i, each), cg->i32, "");
}

static void shared_words(Cg *cg, const Product *p, const TileValue *v, Val row, int k, Val *w) {
    const AmState *s = am_state(cg);
    AmTile t = am_tile(cg, v);
    if (t.inner != p->axis) {
        gather(cg, p, &t, v, row, k, w);
        return;
    }
    for (int i = 0; i < p->words / 4; i++) {
        Val chunk = s->wmma ? cg_i32(cg, k * (p->words / 4) + i)
                            : LLVMBuildOr(cg->b, s->part, cg_i32(cg, k * s->parts), "");
        Val four = load_chunk(cg, &t, cg->value[v->id].mem, row, chunk);
        for (int j = 0; j < 4; j++) w[4 * i + j] = am_at(cg, four, j);
    }
}

// Of a fragment whose columns are the contracted axis: registers as they are.
static void fragment_words(Cg *cg, const Product *p, int m, int k, Val *w) {
    AmShape s = am_shape(cg, p->left);
    int n = p->words * s.pair;
    assert(s.col_axis == p->axis && s.packed == am_narrow(p->dtype));
    for (int i = 0; i < p->words; i++) {
        Val x = cg->value[p->left->id].e[am_index(s, m, k * n + i * s.pair)];
        w[i] = LLVMBuildBitCast(cg->b, x, cg->i32, "");
    }
}

static void left_words(Cg *cg, const Product *p, int m, int k, Val *w) {
    const AmState *s = am_state(cg);
    if (p->left->home == HOME_SHARED)
        shared_words(cg, p, p->left, am_plus(cg, s->row0, s->rows * m), k, w);
    else
        fragment_words(cg, p, m, k, w);
}

static void right_words(Cg *cg, const Product *p, int n, int k, Val *w) {
    const AmState *s = am_state(cg);
    Val row = LLVMBuildURem(cg->b, s->lane, cg_i32(cg, s->rows), "");
    shared_words(cg, p, p->right, am_plus(cg, row, s->rows * n), k, w);
}

// ---- instructions

// n words as the vector that an instruction takes.
static Val operand(Cg *cg, Dtype t, const Val *w, int n, bool wmma) {
    if (t == DT_F32) return LLVMBuildBitCast(cg->b, w[0], cg->f32, "");
    Ty type = t == DT_F16 ? cg->f16 : cg->i16;
    (void)wmma;
    return LLVMBuildBitCast(cg->b, am_vector(cg, cg->i32, w, n), cg_vector(type, 2 * n), "");
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
        return wmma(cg, p, operand(cg, p->dtype, a, 8, true), operand(cg, p->dtype, b, 8, true),
                    acc);
    int each = p->dtype == DT_F32 ? 1 : 2;
    for (int i = 0; i < p->words; i += each)
        acc = mfma(cg, p, operand(cg, p->dtype, a + i, each, false),
                   operand(cg, p->dtype, b + i, each, false), acc);
    return acc;
}

// ---- the loops

// Result tile n of all row groups.
static void column_tile(Cg *cg, Product *p, int n, Val (*left)[8]) {
    int steps = p->depth / p->step, mt = p->shape.mt;
    Val *acc = ARENA_ARRAY(cg->arena, Val, mt);
    for (int m = 0; m < mt; m++)
        acc[m] = am_vector(cg, cg->f32, &p->acc[am_index(p->shape, m, n * p->tile)], p->tile);
    for (int k = 0; k < steps; k++) {
        Val a[8];
        right_words(cg, p, n, k, a);
        for (int m = 0; m < mt; m++) acc[m] = multiply(cg, p, a, left[k * mt + m], acc[m]);
    }
    for (int m = 0; m < mt; m++)
        for (int e = 0; e < p->tile; e++)
            p->acc[am_index(p->shape, m, n * p->tile + e)] = am_at(cg, acc[m], e);
}

static void matrix_product(Cg *cg, Product *p) {
    int steps = p->depth / p->step, mt = p->shape.mt;
    assert(p->depth % p->step == 0 && p->shape.n % p->tile == 0);
    Val(*left)[8] = arena_alloc(cg->arena, sizeof(Val[8]) * (size_t)(steps * mt));
    for (int k = 0; k < steps; k++)
        for (int m = 0; m < mt; m++) left_words(cg, p, m, k, left[k * mt + m]);
    for (int n = 0; n < p->shape.n / p->tile; n++) column_tile(cg, p, n, left);
}

// ---- f32 by FMAs: each lane has its own columns of the result and all of its row of the left
// operand, of which its fragment has the other lane's part exchanged

static void left_numbers(Cg *cg, const Product *p, int m, Val *x) {
    const AmState *s = am_state(cg);
    Val first = LLVMBuildICmp(cg->b, LLVMIntEQ, s->part, cg_i32(cg, 0), "");
    AmShape shape = am_shape(cg, p->left);
    assert(shape.col_axis == p->axis && !shape.packed);
    for (int e = 0; e < shape.n; e++) {
        Val own = cg->value[p->left->id].e[am_index(shape, m, e)];
        Val other = am_exchange(cg, own, s->rows);
        x[2 * e] = LLVMBuildSelect(cg->b, first, own, other, "");
        x[2 * e + 1] = LLVMBuildSelect(cg->b, first, other, own, "");
    }
}

static Val four_at(Cg *cg, const TileValue *v, const AmTile *t, int axis, Val row, int k) {
    Val mem = cg->value[v->id].mem;
    if (t->inner == axis) return load_chunk(cg, t, mem, row, cg_i32(cg, k / 4));
    Val x[4];
    for (int i = 0; i < 4; i++) {
        Val at = LLVMBuildAdd(cg->b, mem, am_tile_offset(cg, t, cg_i32(cg, k + i), row), "");
        x[i] = LLVMBuildLoad2(cg->b, cg->i32, am_lds(cg, at), "");
    }
    return am_vector(cg, cg->i32, x, 4);
}

static void fma_product(Cg *cg, Product *p) {
    const AmState *s = am_state(cg);
    AmTile right = am_tile(cg, p->right);
    bool shared = p->left->home == HOME_SHARED;
    AmTile left = shared ? am_tile(cg, p->left) : right;
    Val *x = ARENA_ARRAY(cg->arena, Val, p->shape.mt * p->depth);
    for (int m = 0; m < p->shape.mt && !shared; m++) left_numbers(cg, p, m, x + m * p->depth);
    for (int k = 0; k < p->depth; k += 4) {
        for (int m = 0; m < p->shape.mt && shared; m++) {
            Val row = am_plus(cg, s->row0, s->rows * m);
            Val four = four_at(cg, p->left, &left, p->axis, row, k);
            for (int i = 0; i < 4; i++)
                x[m * p->depth + k + i] = LLVMBuildBitCast(cg->b, am_at(cg, four, i), cg->f32, "");
        }
        for (int e = 0; e < p->shape.n; e++) {
            Val col = am_column(cg, p->shape.col_axis, e);
            Val four = four_at(cg, p->right, &right, p->axis, col, k);
            for (int i = 0; i < 4; i++)
                for (int m = 0; m < p->shape.mt; m++) {
                    Val *acc = &p->acc[am_index(p->shape, m, e)];
                    Val b = LLVMBuildBitCast(cg->b, am_at(cg, four, i), cg->f32, "");
                    Val v[] = {x[m * p->depth + k + i], b, *acc};
                    *acc = cg_intrinsic(cg, "llvm.fma", &cg->f32, 1, v, 3);
                }
        }
    }
}

void am_mma(Cg *cg, const TileOp *op) {
    Product p = product_of(cg, op);
    begin_sum(cg, &p);
    if (am_state(cg)->wmma && !am_narrow(p.dtype))
        fma_product(cg, &p);
    else
        matrix_product(cg, &p);
}
