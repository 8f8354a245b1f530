// nvptx.h: what the NVIDIA lowering shares between its files: the block's threads, how tiles lie in
// registers and in shared memory, and the handful of instructions LLVM has no operation for.
//
// Fragments. A kernel's row axis (the one its grid tiles) is spread over the warps, 16 rows times
// `mt` to each; along a row the four threads of a quad hold pairs of columns. This is how
// mma.m16n8k16 leaves its result. For lane l, g = l / 4, t = l % 4:
//
//     [rows, columns]  element (m, n, r, c), index 4 (m N/8 + n) + 2 r + c
//                      row 16 m + g + 8 r of the warp's, column 8 n + 2 t + c
//     [rows]           element (m, r), index 2 m + r; the same in all threads of a quad
//     [columns]        element (n, c), index 2 n + c; the same in all quads and warps
//     []               one element, the same everywhere
//
// Values of dtype f16 and bf16 hold pairs (c = 0, 1) as one i32: what mma takes as its operand.
// Only values with columns can be so narrow; others keep the rounded number as f32.
#ifndef CODEGEN_NVPTX_H
#define CODEGEN_NVPTX_H

#include "codegen/cg.h"

enum { NV_WARP = 32, NV_PTX_KERNEL = 71 };

typedef struct NvState {
    int row_axis; // spread over the warps
    int warps, mt;
    int *offset; // of shared values, by TileValue.id; -1: not in shared memory
    Val shared;  // i32: where the block's shared memory begins
    Val tid, lane, warp;
    Val row0;     // i32: the thread's first row within the tile
    Val col0;     // i32: its first column
    int sigmoids; // made so far (math.c)
    bool *
        partial; // by TileValue.id: row sums that each thread keeps for itself (loop.c); NULL: none
    struct Nv90 *roles; // sm_90a: of a kernel with roles; otherwise NULL
} NvState;

static inline NvState *nv_state(Cg *cg) { return cg->state; }

// ---- shapes (shape.c)

typedef struct NvShape { // of a fragment
    bool rows;           // has the row axis
    int col_axis;        // -1: none
    int mt, nt;          // m16 tiles of a warp, 8-column tiles: 1 where the axis is not there
    bool packed;         // pairs as i32
} NvShape;

typedef struct NvTile {     // of a value in shared memory: rows along the tiled axis, columns
                            // (contiguous) along the whole one
    int row_axis, col_axis; // row_axis -1: a vector along col_axis
    int rows, cols;
    int elem;    // bytes of an element
    int pitch;   // bytes from row to row: 16 more than the columns take, so that eight rows lie in
                 // different banks
    int bytes;   // of one stage
    bool panels; // as tensor copies leave it (sm90.h); pitch is that of a panel
} NvTile;

bool nv_narrow(Dtype t);
NvShape nv_shape(Cg *cg, const TileValue *v);
int nv_count(NvShape s); // registers of it
int nv_index(NvShape s, int m, int n, int r,
             int c); // of one element, whatever axes the value lacks; packed: of its pair
NvTile nv_tile(const TileKernel *k, const TileValue *v);
int nv_blocks(const TileKernel *k); // that run a tile together
Val nv_first_row(Cg *cg);           // the thread's, within the tile
// Places every shared value of the kernel; returns the bytes a block needs. offset may be NULL.
int nv_shared_layout(const TileKernel *k, int *offset);
Val nv_shared_ptr(Cg *cg, Val address); // i32 -> ptr addrspace(3)
// Bytes from a tile's beginning to an element; row NULL: of a vector.
Val nv_tile_offset(Cg *cg, const NvTile *t, Val row, Val col);
Val nv_element(Cg *cg, const TileValue *v, int m, int n, int r,
               int c); // as it reads (f32, i32, i1)

// ---- strips (strip.c)
int nv_place_strips(const TileKernel *k, int at, int *offset); // their end; offset may be NULL
void nv_strip_map(Cg *cg, const TileOp *op);
Val nv_strip_element(Cg *cg, const TileValue *v, int m, int n, int r, int c);

// ---- inputs read beside scores (rows.c)
typedef struct NvPairs { // the last two elements that were loaded, by load
    ExMemo loaded;
} NvPairs;
// Of the load's elements at a multiple of two beyond `first`, c = 0 or 1 the current one; NULL where they are not loaded so.
Val nv_read_pair(Cg *cg, NvPairs *pairs, const TileOp *map, const Ex *load, Val first, int offset);
// What the next tile of the loop that the map is in reads of a row; row: an element of its.
void nv_prefetch_rows(Cg *cg, const TileOp *map, int col_axis, CgElem row);

// ---- instructions (ops.c)
Val nv_special(Cg *cg, const char *name);        // "tid.x"
Val nv_pack(Cg *cg, Dtype t, Val low, Val high); // two f32 -> i32
Val nv_unpack(Cg *cg, Dtype t, Val pair, int c); // -> f32
Val nv_shuffle(Cg *cg, Val v, int mask);         // of 32 bits, from lane ^ mask
Val nv_shuffle_from(Cg *cg, Val v, Val lane);
void nv_ldmatrix(Cg *cg, Val address, bool transposed, Val out[4]);
void nv_mma16(Cg *cg, Dtype t, Val acc[4], const Val a[4], Val b0, Val b1);
void nv_mma8_tf32(Cg *cg, Val acc[4], const Val a[4], Val b0, Val b1); // operands i32
Val nv_tf32(Cg *cg, Val bits);                                         // of an f32, rounded; i32
Val nv_f32(Cg *cg, const char *intrinsic, Val x);
Val nv_asm1(Cg *cg, Ty result, const char *text, const char *constraints, Val x); // pure
void nv_widen(Cg *cg);                                                            // wide.c
Val nv_hidden(Cg *cg, Val v); // v, but nothing computed from it leaves the loop it stands in
Val nv_math(Cg *cg, ExOp op, const Val *args); // math.c
// Of two sigmoids as bf16: exponentials of theirs, what is left to do with them, the pair.
Val nv_sigmoid_exponential(Cg *cg, Val x);
void nv_sigmoids_begin(Cg *cg, Val pair[2]);
Val nv_sigmoids_end(Cg *cg, const Val pair[2]);

// ---- operations
void nv_map(Cg *cg, const TileOp *op); // map.c
Val nv_across_quad(Cg *cg, ExOp reduce, Val v);
// An expression of a map at one element of a fragment.
Val nv_at(Cg *cg, const TileOp *map, const Ex *e, int m, int n, int r, int c);
void nv_loop_begin(Cg *cg, CgLoop *loop); // loop.c
void nv_loop_end(Cg *cg, CgLoop *loop);
void nv_load(Cg *cg, const TileOp *op); // global.c
void nv_store(Cg *cg, const TileOp *op);
void nv_copy(Cg *cg, const TileOp *op); // copy.c
void nv_mma(Cg *cg, const TileOp *op);  // mma.c

#endif
