// mma.c: matrix products.
//
// In: a TILE_MMA whose result is a fragment [rows, columns]; the operand with the row axis is a
// fragment or lies in shared memory, the other one lies in shared memory. Out: the result in
// registers.
//
// f16 and bf16 run on mma.m16n8k16. Operands in shared memory come by ldmatrix; which of its forms
// depends only on whether the contracted axis runs along the buffer's columns (Q K^T: as it is) or
// its rows (P V: transposed). A fragment's pairs are already what mma takes for its left operand.
// Beside them the right operand may hold numbers of 8 bits, which are converted as they are read. ldmatrix then leaves four columns
// side by side in a lane, and the left operand's are read in the same order.
// f32 runs on FMAs, or on mma.m16n8k8 where the product says tf32.
#include "codegen/nvptx/nvptx.h"

#include <assert.h>
#include <string.h>

typedef struct Product {
    const TileOp *op;
    const TileValue *left, *right; // left has the rows
    const CgFragment *f;           // of the result
    int mt, nt;                    // its m16 tiles of a warp, 8-column tiles
    int axis;                      // contracted
    int depth;                     // its extent
    Val *acc;
} Product;

static Product product_of(Cg *cg, const TileOp *op) {
    Product p = {.op = op, .left = op->args.data[0], .right = op->args.data[1]};
    p.f = cg_fragment(cg, op->results.data[0]);
    p.mt = cg_share(p.f, p.f->rows) / 2;
    p.nt = cg_share(p.f, p.f->columns) / 2;
    if (!tile_has_axis(p.left, p.f->rows)) {
        p.left = op->args.data[1];
        p.right = op->args.data[0];
    }
    assert(p.right->home == HOME_SHARED && "the right operand of a product lies in shared memory");
    p.axis = tile_contracted_axis(op);
    p.depth = cg->k->axes[p.axis].extent;
    return p;
}

static void begin_sum(Cg *cg, Product *p) {
    CgValue *value = cg_make(cg, p->op->results.data[0]);
    p->acc = value->e;
    const TileValue *sum = p->op->args.n > 2 ? p->op->args.data[2] : NULL;
    for (int i = 0; i < value->n; i++) p->acc[i] = sum ? cg->value[sum->id].e[i] : cg_f32(cg, 0);
}

// This thread's first of the result's.
static Val rows_at(Cg *cg, const Product *p) {
    return cg_thread_part(cg, p->op->results.data[0]->layout, p->f->rows);
}
static Val columns_at(Cg *cg, const Product *p) {
    return cg_thread_part(cg, p->op->results.data[0]->layout, p->f->columns);
}

static Val load_shared(Cg *cg, Ty type, Val at, unsigned align) {
    Val v = cg_load(cg, type, nv_shared_ptr(cg, at));
    LLVMSetAlignment(v, align);
    return v;
}

// ---- f16, bf16

// Where this lane's row of 16 bytes begins for a 16 x 16 block whose quarters come in the order
// (0,0) (8,0) (0,8) (8,8) of (row, column): the left operand, and the right one transposed.
static Val lane_down(Cg *cg, int pitch) {
    Val lane = nv_state(cg)->gpu.lane;
    Val row = cg_and(cg, lane, cg_i32(cg, 15));
    Val col = cg_lshr(cg, lane, cg_i32(cg, 4));
    return cg_add(cg, cg_times(cg, row, pitch), cg_times(cg, col, 16));
}

// The same in the order (0,0) (0,8) (8,0) (8,8): the right operand as it is.
static Val lane_across(Cg *cg, int pitch) {
    Val lane = nv_state(cg)->gpu.lane;
    Val high = cg_times(cg, cg_lshr(cg, lane, cg_i32(cg, 4)), 8);
    Val row = cg_add(cg, cg_and(cg, lane, cg_i32(cg, 7)), high);
    Val col = cg_and(cg, cg_lshr(cg, lane, cg_i32(cg, 3)), cg_i32(cg, 1));
    return cg_add(cg, cg_times(cg, row, pitch), cg_times(cg, col, 16));
}

// Blocks of 16 rows and 32 bytes. Where panels permute a row's pieces the lane's address in a panel has four forms, one for each block of a row.
typedef struct Blocks {
    TileShared t;
    Val at[4];
} Blocks;

static Blocks blocks_from(Cg *cg, TileShared t, Val base, bool down) {
    enum { KEYS = 7, PIECE = 16, BLOCK = 32 };
    Val lane = down ? lane_down(cg, t.pitch) : lane_across(cg, t.pitch);
    Blocks b = {t, {cg_add(cg, base, lane)}};
    if (t.order != ORDER_PANELS) return b;
    Val key = cg_times(cg, cg_and(cg, nv_state(cg)->gpu.lane, cg_i32(cg, KEYS)), PIECE);
    for (int i = 0; i < 4; i++)
        b.at[i] = cg_add(cg, base, cg_xor(cg, cg_xor(cg, lane, key), cg_i32(cg, i * BLOCK)));
    return b;
}

static Val block_at(Cg *cg, const Blocks *b, int row, int column) {
    if (b->t.order != ORDER_PANELS)
        return cg_plus(cg, b->at[0], 16 * row * b->t.pitch + 32 * column);
    int panel = column / 4 * tile_panel_bytes(&b->t);
    return cg_plus(cg, b->at[column % 4], 16 * row * b->t.pitch + panel);
}

// The left operand's block (m, k) in registers.
static void left_block(Cg *cg, const Product *p, int m, int k, const Blocks *from, Val a[4]) {
    const TileValue *v = p->left;
    if (v->home == HOME_SHARED) {
        bool turned = from->t.row_axis == p->axis;
        nv_ldmatrix(cg, block_at(cg, from, turned ? k : m, turned ? m : k), turned, a);
        return;
    }
    const CgFragment *f = cg_fragment(cg, v);
    assert(f->each == 2 && f->columns == p->axis);
    for (int i = 0; i < 4; i++)
        a[i] = cg->value[v->id].e[cg_register(f, 16 * m + 8 * (i % 2), 16 * k + 8 * (i / 2))];
}

static Blocks left_blocks(Cg *cg, const Product *p) {
    if (p->left->home != HOME_SHARED) return (Blocks){0};
    TileShared t = tile_shared(cg->p, cg->k, p->left);
    bool turned = t.row_axis == p->axis; // the result's rows are its columns
    assert((!turned || t.elem == 2) && "f32 has no transposed way from shared memory");
    Val warp =
        cg_warp_part(cg, p->op->results.data[0]->layout, p->f->rows, turned ? t.elem : t.pitch);
    Val base = cg->value[p->left->id].mem;
    assert(!(warp && turned && t.order == ORDER_PANELS) && "a warp's columns begin in a panel");
    if (warp) base = cg_add(cg, base, warp);
    return blocks_from(cg, t, base, !turned);
}

static void multiply_block(Cg *cg, Product *p, Val (*a)[4], const Val b[4], int n) {
    Dtype t = p->left->dtype;
    for (int m = 0; m < p->mt; m++)
        for (int half = 0; half < 2; half++)
            nv_mma16(cg, t, &p->acc[cg_register(p->f, 16 * m, 8 * (n + half))], a[m], b[2 * half],
                     b[2 * half + 1]);
}

static void matrix_product(Cg *cg, Product *p) {
    TileShared t = tile_shared(cg->p, cg->k, p->right);
    bool transposed = t.row_axis == p->axis;
    Blocks right = blocks_from(cg, t, cg->value[p->right->id].mem, transposed);
    Val beside = cg_warp_part(cg, p->op->results.data[0]->layout, p->f->columns,
                              transposed ? t.elem : t.pitch);
    assert(!(beside && transposed && t.order == ORDER_PANELS) &&
           "a warp's columns begin in a panel");
    for (int i = 0; beside && i < 4 && right.at[i]; i++)
        right.at[i] = cg_add(cg, right.at[i], beside);
    Blocks left = left_blocks(cg, p);
    Val(*a)[4] = arena_alloc(cg->arena, sizeof(Val[4]) * (size_t)p->mt);
    for (int k = 0; k < p->depth / 16; k++) {
        for (int m = 0; m < p->mt; m++) left_block(cg, p, m, k, &left, a[m]);
        for (int n = 0; n < p->nt; n += 2) {
            Val b[4],
                at = transposed ? block_at(cg, &right, k, n / 2) : block_at(cg, &right, n / 2, k);
            nv_ldmatrix(cg, at, transposed, b);
            multiply_block(cg, p, a, b, n);
        }
    }
}

// ---- f16, bf16 with 8 bits

static void multiply_column(Cg *cg, Product *p, Val (*a)[4], int n, Val word) {
    Val b[2];
    nv_halves(cg, p->right->dtype, p->left->dtype, word, b);
    for (int m = 0; m < p->mt; m++)
        nv_mma16(cg, p->left->dtype, &p->acc[cg_register(p->f, 16 * m, 8 * n)], a[m], b[0], b[1]);
}

// Numbers of 8 bits, as their places in mma are: elements 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of a column. Panels permute a row's pieces: there
// the lane's address in a panel has eight forms, one for each piece of 16 columns, and those of odd elements are each other's neighbours.
typedef struct Bytes {
    TileShared t;
    bool down;      // a column's elements lie in rows
    int term, step; // from element to element, from column to column
    Val at[8];
} Bytes;

static Bytes bytes_from(Cg *cg, const Product *p) {
    TileShared t = tile_shared(cg->p, cg->k, p->right);
    bool down = t.row_axis == p->axis;
    Bytes b = {t, down, down ? t.pitch : 1, down ? 1 : t.pitch, {NULL}};
    Val lane = nv_state(cg)->gpu.lane, column = cg_lshr(cg, lane, cg_i32(cg, 2));
    Val element = cg_times(cg, cg_and(cg, lane, cg_i32(cg, 3)), 2);
    Val beside = cg_warp_part(cg, p->op->results.data[0]->layout, p->f->columns, 1);
    if (beside) column = cg_add(cg, column, beside);
    Val base = cg_add(cg, cg->value[p->right->id].mem, cg_times(cg, element, b.term));
    bool panels = t.order == ORDER_PANELS;
    assert(!panels || (down && !beside));
    for (int i = 0; i < (panels ? 8 : 1); i++) {
        Val piece = cg_times(cg, cg_xor(cg, element, cg_i32(cg, i)), HOME_PIECE);
        b.at[i] = cg_add(cg, base, cg_times(cg, column, b.step));
        if (panels) b.at[i] = cg_add(cg, b.at[i], piece);
    }
    return b;
}

static Val byte_at(Cg *cg, const Bytes *b, int element, int column) {
    if (b->t.order != ORDER_PANELS)
        return cg_plus(cg, b->at[0], element * b->term + column * b->step);
    int in = column % HOME_PITCH, panel = column / HOME_PITCH * tile_panel_bytes(&b->t);
    return cg_plus(cg, b->at[in / HOME_PIECE ^ element % 2],
                   panel + element * HOME_PITCH + in % HOME_PIECE);
}

// Four bytes of a column, of block k.
static Val gathered(Cg *cg, const Bytes *b, int k, int column) {
    Val word = NULL;
    int each = b->down ? 1 : 2; // side by side
    for (int i = 0; i < 4; i += each) {
        Ty t = each == 2 ? cg->i16 : cg->i8;
        Val at = byte_at(cg, b, 16 * k + i % 2 + i / 2 * 8, column);
        Val x = cg_zext(cg, load_shared(cg, t, at, (unsigned)each), cg->i32);
        if (i) x = cg_shl(cg, x, cg_i32(cg, 8 * i));
        word = word ? cg_or(cg, word, x) : x;
    }
    return word;
}

static void byte_sum(Cg *cg, Product *p) {
    Bytes right = bytes_from(cg, p);
    Blocks left = left_blocks(cg, p);
    Val(*a)[4] = arena_alloc(cg->arena, sizeof(Val[4]) * (size_t)p->mt);
    for (int k = 0; k < p->depth / 16; k++) {
        for (int m = 0; m < p->mt; m++) left_block(cg, p, m, k, &left, a[m]);
        for (int n = 0; n < p->nt; n++)
            multiply_column(cg, p, a, n, gathered(cg, &right, k, 8 * n));
    }
}

// Two rows of the left operand: columns 4 t to 4 t + 3 of the block, two words each.
static void left_fours(Cg *cg, Val at, int pitch, Val a[4]) {
    for (int r = 0; r < 2; r++) {
        Val two = load_shared(cg, cg_vector(cg->i32, 2), cg_plus(cg, at, 8 * r * pitch), 8);
        for (int i = 0; i < 2; i++) a[r + 2 * i] = cg_extract(cg, two, cg_i32(cg, i));
    }
}

// Rows of both in shared memory: a word of ldmatrix is four elements of a column, and four words are two blocks of 16 of two columns.
static void byte_dot(Cg *cg, Product *p) {
    TileShared t = tile_shared(cg->p, cg->k, p->right), q = tile_shared(cg->p, cg->k, p->left);
    Val beside = cg_warp_part(cg, p->op->results.data[0]->layout, p->f->columns, t.pitch);
    Val base = cg->value[p->right->id].mem;
    Blocks right = blocks_from(cg, t, beside ? cg_add(cg, base, beside) : base, true);
    Val lane = nv_state(cg)->gpu.lane;
    Val left = cg_add(cg, cg->value[p->left->id].mem, cg_times(cg, rows_at(cg, p), q.pitch));
    left = cg_add(cg, left, cg_times(cg, cg_and(cg, lane, cg_i32(cg, 3)), 8));
    Val(*a[2])[4];
    for (int i = 0; i < 2; i++) a[i] = arena_alloc(cg->arena, sizeof(Val[4]) * (size_t)p->mt);
    for (int k = 0; k < p->depth / 16; k += 2) {
        int blocks =
            p->depth / 16 - k < 2 ? 1 : 2; // then the rest of the words is what lies between rows
        for (int i = 0; i < blocks; i++)
            for (int m = 0; m < p->mt; m++)
                left_fours(cg, cg_plus(cg, left, 16 * m * q.pitch + 32 * (k + i)), q.pitch,
                           a[i][m]);
        for (int n = 0; n < p->nt; n += 2) {
            Val b[4];
            nv_ldmatrix(cg, block_at(cg, &right, n / 2, k / 2), false, b);
            for (int i = 0; i < 2 * blocks; i++) multiply_column(cg, p, a[i / 2], n + i % 2, b[i]);
        }
    }
}

static void byte_product(Cg *cg, Product *p) {
    bool rows = tile_shared(cg->p, cg->k, p->right).col_axis == p->axis;
    if (rows && p->left->home == HOME_SHARED &&
        tile_shared(cg->p, cg->k, p->left).col_axis == p->axis)
        byte_dot(cg, p);
    else
        byte_sum(cg, p);
}

// ---- f32 by tf32
//
// mma.m16n8k8. Rows of Q and K in shared memory are halves of blocks as above, four columns of 32
// bits for eight of 16. Weights are fragments: column 2 t + c of a thread stands for column t + 4 c
// of the block, as the rows of V are read in the same order.

static void round_all(Cg *cg, Val *v, int n) {
    for (int i = 0; i < n; i++) v[i] = nv_tf32(cg, v[i]);
}

static void multiply_tf32(Cg *cg, Product *p, Val (*a)[4], int n, Val b0, Val b1) {
    for (int m = 0; m < p->mt; m++)
        nv_mma8_tf32(cg, &p->acc[cg_register(p->f, 16 * m, 8 * n)], a[m], b0, b1);
}

static void tf32_dot(Cg *cg, Product *p) {
    TileShared t = tile_shared(cg->p, cg->k, p->right);
    assert(t.col_axis == p->axis);
    Val right = cg_add(cg, cg->value[p->right->id].mem, lane_across(cg, t.pitch));
    Blocks left = left_blocks(cg, p);
    Val(*a)[4] = arena_alloc(cg->arena, sizeof(Val[4]) * (size_t)p->mt);
    for (int k = 0; k < p->depth / 8; k++) {
        for (int m = 0; m < p->mt; m++) {
            left_block(cg, p, m, k, &left, a[m]);
            round_all(cg, a[m], 4);
        }
        for (int n = 0; n < p->nt; n += 2) {
            Val b[4];
            nv_ldmatrix(cg, cg_plus(cg, right, k * 32 + n / 2 * 16 * t.pitch), false, b);
            round_all(cg, b, 4);
            multiply_tf32(cg, p, a, n, b[0], b[1]);
            multiply_tf32(cg, p, a, n + 1, b[2], b[3]);
        }
    }
}

static void tf32_sum(Cg *cg, Product *p) {
    const NvState *s = nv_state(cg);
    const CgFragment *left = cg_fragment(cg, p->left);
    TileShared t = tile_shared(cg->p, cg->k, p->right);
    assert(left->columns == p->axis && t.row_axis == p->axis && left->each == 1);
    Val group = cg_lshr(cg, s->gpu.lane, cg_i32(cg, 2));
    Val right = cg_add(cg, cg->value[p->right->id].mem, cg_times(cg, columns_at(cg, p), t.pitch));
    right = cg_add(cg, right, cg_times(cg, group, 4));
    Val(*a)[4] = arena_alloc(cg->arena, sizeof(Val[4]) * (size_t)p->mt);
    for (int k = 0; k < p->depth / 8; k++) {
        for (int m = 0; m < p->mt; m++)
            for (int i = 0; i < 4; i++) {
                Val x = cg->value[p->left->id]
                            .e[cg_register(left, 16 * m + 8 * (i % 2), 8 * k + i / 2)];
                a[m][i] = nv_tf32(cg, cg_bitcast(cg, x, cg->i32));
            }
        for (int n = 0; n < p->nt; n++) {
            Val b[2];
            for (int i = 0; i < 2; i++)
                b[i] =
                    load_shared(cg, cg->i32, cg_plus(cg, right, (8 * k + i) * t.pitch + 32 * n), 4);
            round_all(cg, b, 2);
            multiply_tf32(cg, p, a, n, b[0], b[1]);
        }
    }
}

// ---- f32 by FMAs

static void fma_into(Cg *cg, Val *acc, Val a, Val b) {
    Val v[] = {a, b, *acc};
    *acc = cg_intrinsic(cg, "llvm.fma", &cg->f32, 1, v, 3);
}

// An operand in shared memory: bytes from one of the result's rows or columns to the next, and from one of the contracted
// elements to the next.
typedef struct Side {
    Val base; // of this thread's first
    int step, term;
} Side;

static Side side_of(Cg *cg, const Product *p, const TileValue *v, Val first) {
    TileShared t = tile_shared(cg->p, cg->k, v);
    bool turned = t.row_axis == p->axis;
    Side s = {.step = turned ? t.elem : t.pitch, .term = turned ? t.pitch : t.elem};
    s.base = cg_add(cg, cg->value[v->id].mem, cg_times(cg, first, s.step));
    return s;
}

// Four of the contracted elements of one row or column.
static Val four_of(Cg *cg, const Side *s, Val at, int row) {
    Val from = cg_plus(cg, at, row * s->step), four = LLVMGetPoison(cg_vector(cg->f32, 4));
    if (s->term == 4) return load_shared(cg, cg_vector(cg->f32, 4), from, 16);
    for (int i = 0; i < 4; i++)
        four = cg_insert(cg, four, load_shared(cg, cg->f32, cg_plus(cg, from, i * s->term), 4),
                         cg_i32(cg, i));
    return four;
}

// One step along four of the contracted elements.
static void dot_step(Cg *cg, Product *p, const Side *left, const Side *right, Val x, Val y) {
    Val a[32][2];
    for (int m = 0; m < p->mt; m++)
        for (int r = 0; r < 2; r++) a[m][r] = four_of(cg, left, x, 16 * m + 8 * r);
    for (int n = 0; n < p->nt; n++)
        for (int c = 0; c < 2; c++) {
            Val b = four_of(cg, right, y, 8 * n + c);
            for (int d = 0; d < 4; d++) {
                Val bd = cg_extract(cg, b, cg_i32(cg, d));
                for (int m = 0; m < p->mt; m++)
                    for (int r = 0; r < 2; r++)
                        fma_into(cg, &p->acc[cg_register(p->f, 16 * m + 8 * r, 8 * n + c)],
                                 cg_extract(cg, a[m][r], cg_i32(cg, d)), bd);
            }
        }
}

// Both operands in shared memory: a loop over the contracted axis, four at a time.
static void dot_product(Cg *cg, Product *p) {
    Side left = side_of(cg, p, p->left, rows_at(cg, p));
    Side right = side_of(cg, p, p->right, columns_at(cg, p));
    CgTurns t = cg_turns(cg, cg_i32(cg, 0), p->acc, p->f->registers);
    Val y = cg_add(cg, right.base, cg_times(cg, t.i, right.term / 4));
    Val x = cg_add(cg, left.base, cg_times(cg, t.i, left.term / 4));
    dot_step(cg, p, &left, &right, x, y);
    Val next = cg_plus(cg, t.i, 16);
    cg_end_turns(cg, &t, next, cg_below(cg, next, 4 * p->depth), p->acc);
}

// Offsets are parts of the instructions: they take none of their own.
static Val load_beyond(Cg *cg, Val base, int bytes, int lanes) {
    Val v = cg_load(cg, cg_vector(cg->f32, lanes), cg_element(cg, cg->i8, base, cg_i32(cg, bytes)));
    LLVMSetAlignment(v, 4 * (unsigned)lanes);
    return v;
}

// Element k of the contracted ones, counted from base, of two columns side by side.
static Val two_of(Cg *cg, const Side *s, Val base, int k, int col) {
    int from = k * s->term + col * s->step;
    if (s->step == 4) return load_beyond(cg, base, from, 2);
    Val two = LLVMGetPoison(cg_vector(cg->f32, 2));
    for (int c = 0; c < 2; c++)
        two = cg_insert(cg, two, load_beyond(cg, base, from + c * s->step, 1), cg_i32(cg, c));
    return two;
}

// `n` of the contracted elements, from one at `base` on. A thread has two of eight of the left operand's columns, x, and each is handed
// round the quad.
static void outer_steps(Cg *cg, Product *p, const Side *right, Val base, const Val *x, int n) {
    Val quad = cg_and(cg, nv_state(cg)->gpu.lane, cg_i32(cg, 28));
    for (int k = 0; k < n; k++) {
        Val from = cg_plus(cg, quad, k % 8 / 2), a[32][2];
        for (int i = 0; i < 2 * p->mt; i++)
            a[i / 2][i % 2] = nv_shuffle_from(cg, x[(k / 8 * 2 + k % 2) * 2 * p->mt + i], from);
        for (int n8 = 0; n8 < p->nt; n8++) {
            Val b = two_of(cg, right, base, k, 8 * n8);
            for (int c = 0; c < 2; c++)
                for (int m = 0; m < p->mt; m++)
                    for (int r = 0; r < 2; r++)
                        fma_into(cg, &p->acc[cg_register(p->f, 16 * m + 8 * r, 8 * n8 + c)],
                                 a[m][r], cg_extract(cg, b, cg_i32(cg, c)));
        }
    }
}

// Of many FMAs a turn has some, enough to hide that the left operand moves from turn to turn: registers have no number that is computed.
// In one row ptxas spills thousands of bytes of them.
enum { MANY_FMAS = 4096, TURN_FMAS = 1024 };

static int terms_of_turn(const Product *p) {
    int sums = p->f->registers, each = p->depth;
    bool many = sums * each > MANY_FMAS;
    while (many && sums * each > TURN_FMAS && each % 16 == 0) each /= 2;
    return each;
}

// The left operand a fragment whose columns are the contracted axis.
static void outer_product(Cg *cg, Product *p) {
    const CgFragment *left = cg_fragment(cg, p->left);
    assert(left->columns == p->axis && left->each == 1 && p->depth % 8 == 0);
    Side right = side_of(cg, p, p->right, columns_at(cg, p));
    int sums = p->f->registers, each = terms_of_turn(p), part = each / 2 * p->mt;
    int all = sums + p->depth / 2 * p->mt;
    Val *carried = ARENA_ARRAY(cg->arena, Val, all), *x = carried + sums, *acc = p->acc;
    for (int i = 0; i < all - sums; i++) {
        int k = i / (2 * p->mt), row = i % (2 * p->mt);
        x[i] = cg->value[p->left->id].e[cg_register(left, 8 * row, k / 2 * 8 + k % 2)];
    }
    if (each == p->depth) {
        outer_steps(cg, p, &right, nv_shared_ptr(cg, right.base), x, each);
        return;
    }
    memcpy(carried, acc, sizeof *acc * (size_t)sums);
    CgTurns t = cg_turns(cg, cg_i32(cg, 0), carried, all);
    p->acc = carried;
    outer_steps(cg, p, &right, nv_shared_ptr(cg, cg_add(cg, right.base, t.i)), x, each);
    Val next = cg_plus(cg, t.i, each * right.term);
    for (int i = sums; i < all; i++)
        carried[i] = i + part < all ? carried[i + part] : LLVMGetPoison(cg->f32);
    cg_end_turns(cg, &t, next, cg_below(cg, next, p->depth * right.term), carried);
    memcpy(acc, carried, sizeof *acc * (size_t)sums);
    p->acc = acc;
}

void nv_mma(Cg *cg, const TileOp *op) {
    Product p = product_of(cg, op);
    begin_sum(cg, &p);
    if (dtype_half(p.right->dtype))
        matrix_product(cg, &p);
    else if (dtype_half(p.left->dtype))
        byte_product(cg, &p);
    else if (op->tf32 && p.left->home == HOME_SHARED)
        tf32_dot(cg, &p);
    else if (op->tf32)
        tf32_sum(cg, &p);
    else if (p.left->home == HOME_SHARED)
        dot_product(cg, &p);
    else
        outer_product(cg, &p);
}
