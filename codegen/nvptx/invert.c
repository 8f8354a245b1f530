// invert.c: the rest of a triangle's inverse, once its blocks of 16 places on the diagonal are inverted (codegen/gpu/invert.c),
// on tensor cores.
//
// In: N, f32, in shared memory, of which the strict lower part is read; above the diagonal and on it the transposed inverses
// of the blocks there. Out: W, narrow, the transpose of T = (I - N)^-1. A warp has a column of blocks of T, which needs no other:
//
//     T(i, j) = T(i, i) M,   M = sum over k from j to i - 1 of N(i, k) T(k, j)
//
// It makes them transposed, by mma.m16n8k8 of tf32: what one product leaves in registers is the left operand of the next. (Column 2 t + c
// of a thread stands for column t + 4 c of the instruction's, and the right operand's rows are read in that order.)
#include "codegen/nvptx/nvptx.h"

#include <string.h>

enum {
    BLOCK = 16,
    TILES = 2,
    MOST_BLOCKS = 4
}; // places; an instruction's tiles of 8 columns; of a column

typedef struct
    Square { // of a block: elements (g, 2 t), (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1) of each tile of columns
    Val x[TILES][4];
} Square;

typedef struct Triangle {
    const TileValue *N, *W;
    TileShared tile;
    Val g, t2;        // lane / 4; 2 * (lane % 4)
    Val rows, turned; // N(g, t2) and N(t2, g): a lane's others lie at constant distances
    Val to[16];       // of W, by column / 8: the lane's pair in its row g; NULL: not asked for yet
} Triangle;

static Val beyond(Cg *cg, const Triangle *w, Val p, int row, int col) {
    return cg_element(cg, cg->i8, p, cg_i32(cg, row * w->tile.pitch + col * w->tile.elem));
}

static Val begin(Cg *cg, const Triangle *w, Val row, Val col) {
    Val at = nv_tile_offset(cg, &w->tile, row, col);
    return nv_shared_ptr(cg, cg_add(cg, cg->value[w->N->id].mem, at));
}

static void load_pair(Cg *cg, const Triangle *w, int row, int col, Val x[2]) {
    Val two = cg_load(cg, cg_vector(cg->f32, 2), beyond(cg, w, w->rows, row, col));
    LLVMSetAlignment(two, 8);
    for (int c = 0; c < 2; c++) x[c] = cg_extract(cg, two, cg_i32(cg, c));
}

// x where row <= column of the transposed block on the diagonal; elsewhere memory has N.
static Val upper(Cg *cg, Val row, Val col, Val x) {
    Val in = cg_icmp(cg, LLVMIntSLE, row, col);
    return cg_select(cg, in, x, cg_f32(cg, 0));
}

static Square diagonal(Cg *cg, const Triangle *w, int block) {
    Square s;
    int at = BLOCK * block;
    for (int n = 0; n < TILES; n++)
        for (int r = 0; r < 2; r++) {
            load_pair(cg, w, at + 8 * r, at + 8 * n, &s.x[n][2 * r]);
            for (int c = 0; c < 2; c++)
                s.x[n][2 * r + c] = upper(cg, cg_plus(cg, w->g, 8 * r),
                                          cg_plus(cg, w->t2, 8 * n + c), s.x[n][2 * r + c]);
        }
    return s;
}

static Square nothing(Cg *cg) {
    Square s;
    for (int n = 0; n < TILES; n++)
        for (int i = 0; i < 4; i++) s.x[n][i] = cg_f32(cg, 0);
    return s;
}

// As tf32, rounded: the instruction leaves out the low bits. (cvt.rna also asks whether it is finite: four operations.)
static Val bits(Cg *cg, Val x) {
    enum { HALF = 0x1000 };
    return cg_plus(cg, cg_bitcast(cg, x, cg->i32), HALF);
}

// Two of the contracted places of a column of the right operand: of N(i, k) transposed, or of T(i, i) transposed.
static void right_pair(Cg *cg, const Triangle *w, int i, int k, int n, int step, Val b[2]) {
    Val x[2], col = cg_plus(cg, w->g, 8 * n);
    if (i != k) load_pair(cg, w, BLOCK * i + 8 * n, BLOCK * k + 8 * step, x);
    for (int c = 0; c < 2 && i == k; c++) {
        Val p = beyond(cg, w, w->turned, BLOCK * i + 8 * step + c, BLOCK * i + 8 * n);
        Val row = cg_plus(cg, w->t2, 8 * step + c);
        x[c] = upper(cg, row, col, cg_load(cg, cg->f32, p));
    }
    for (int c = 0; c < 2; c++) b[c] = bits(cg, x[c]);
}

// sum += left * the right block.
static void add_product(Cg *cg, const Triangle *w, Square *sum, const Square *left, int i, int k) {
    static const int from[] = {0, 2, 1, 3};
    for (int step = 0; step < TILES; step++) {
        Val a[4], b[2];
        for (int e = 0; e < 4; e++) a[e] = bits(cg, left->x[step][from[e]]);
        for (int n = 0; n < TILES; n++) {
            right_pair(cg, w, i, k, n, step, b);
            nv_mma8_tf32(cg, sum->x[n], a, b[0], b[1]);
        }
    }
}

// Rows that lie eight apart have the same columns at the same places.
static void put(Cg *cg, Triangle *w, const Square *s, int row_block, int column_block) {
    TileShared t = tile_shared(cg->p, cg->k, w->W);
    for (int n = 0; n < TILES; n++)
        for (int r = 0; r < 2; r++) {
            int row = BLOCK * row_block + 8 * r, col = BLOCK * column_block + 8 * n;
            Val *to = &w->to[col / 8];
            if (!*to)
                *to = cg_shared_pointer(cg, w->W, w->W->axis[0], w->g, cg_plus(cg, w->t2, col));
            cg_store(cg, nv_pack(cg, w->W->dtype, s->x[n][2 * r], s->x[n][2 * r + 1]),
                     cg_element(cg, cg->i8, *to, cg_i32(cg, row * t.pitch)));
        }
}

static void make_column(Cg *cg, Triangle *w, int j, int blocks) {
    Square made[MOST_BLOCKS], none = nothing(cg);
    for (int i = 0; i < j; i++) put(cg, w, &none, j, i);
    made[j] = diagonal(cg, w, j);
    put(cg, w, &made[j], j, j);
    for (int i = j + 1; i < blocks; i++) {
        Square m = none;
        made[i] = none;
        for (int k = j; k < i; k++) add_product(cg, w, &m, &made[k], i, k);
        add_product(cg, w, &made[i], &m, i, i);
        put(cg, w, &made[i], j, i);
    }
}

bool nv_invert(Cg *cg, const TileOp *op) {
    const NvState *s = nv_state(cg);
    Triangle w = {.N = op->args.data[0], .W = op->results.data[0]};
    int n = tile_extent(&cg->k->axes[w.N->axis[0]]), blocks = n / BLOCK;
    if (!dtype_half(w.W->dtype) || blocks > MOST_BLOCKS || blocks * NV_WARP > s->gpu.threads)
        return false;
    w.tile = tile_shared(cg->p, cg->k, w.N);
    Val lane = nv_hidden(cg, s->gpu.lane);
    w.g = cg_lshr(cg, lane, cg_i32(cg, 2));
    w.t2 = cg_times(cg, cg_and(cg, lane, cg_i32(cg, 3)), 2);
    for (int j = 0; j < blocks; j++) {
        Blk done = cg_if(cg, cg_is(cg, s->warp, j), "column");
        w.rows = begin(cg, &w, w.g, w.t2), w.turned = begin(cg, &w, w.t2, w.g);
        memset(w.to, 0, sizeof w.to);
        make_column(cg, &w, j, blocks);
        cg_end_if(cg, done);
    }
    return true;
}
