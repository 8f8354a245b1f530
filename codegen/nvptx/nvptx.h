// nvptx.h: what the NVIDIA lowering shares between its files: the block's threads, how tiles lie in
// registers and in shared memory, and the handful of instructions LLVM has no operation for.
//
// Fragments (codegen/gpu/gpu.h) begin as mma.m16n8k16 leaves its result: for lane l, g = l / 4 and
// t = l % 4, a thread has of 16 rows and 8 columns those of row g + 8 r and column 2 t + c, r and c 0
// or 1. What a register says of its element is named by the first row and column of that tile and
// these: row 16 m + 8 r, column 8 n + c.
#ifndef CODEGEN_NVPTX_H
#define CODEGEN_NVPTX_H

#include "codegen/gpu/gpu.h"
#include "ir/tile_shared.h"

enum { NV_WARP = 32, NV_PTX_KERNEL = 71 };

typedef struct NvState {
    CgGpu gpu;
    Val warp;
    Val shared;   // i32: where the block's shared memory begins
    int sigmoids; // made so far (math.c)
    const TileValue
        *last_zero; // of the chunk at hand, the position of its last decay of 0; NULL: none is made
    Val no_zeros;   // i1: there is none; NULL: no barrier has come since
    bool unfenced;  // what products of warpgroups read may have been stored since the last fence
    VEC(CgValue *) flies;       // without roles: what the products in flight make
    struct Nv90 *roles;         // sm_90a: of a kernel with roles; otherwise NULL
    const struct NvCopy *ahead; // of which it is known where rows lie, or NULL
} NvState;

static inline NvState *nv_state(Cg *cg) { return cg->state; }

// ---- shared memory and elements (shared.c)

TileShared nv_tile(const TileKernel *k, const TileValue *v);
int nv_blocks(const TileKernel *k);     // that run a tile together
Val nv_shared_ptr(Cg *cg, Val address); // i32 -> ptr addrspace(3)
// Bytes from a tile's beginning to an element; row NULL: of a vector.
Val nv_tile_offset(Cg *cg, const TileShared *t, Val row, Val col);
// As it reads (f32, i32, i1); layout: of the thread, for what lies elsewhere than in registers.
Val nv_element(Cg *cg, const TileValue *v, int layout, const int *part);

Val nv_strip_group(Cg *cg);                    // the number of those who have a strip together
Val nv_strip_base(Cg *cg, const TileValue *v); // where theirs begins
void nv_strip_map(Cg *cg, const TileOp *op);   // strip.c

// ---- tiles that lie the other way round (turned.c)
bool nv_is_turned_store(Cg *cg, const TileOp *op, const TileValue *v);
void nv_store_turned(Cg *cg, const TileOp *op);
// Operands of a map in shared memory to registers, until they are forgotten.
void nv_fetch_operands(Cg *cg, const TileOp *map, int layout);
void nv_forget_operands(Cg *cg, const TileOp *map);

// ---- inputs read beside scores (rows.c)
typedef struct NvPairs { // the last two elements that were loaded, by load
    ExMemo loaded;
} NvPairs;
typedef struct NvWord { // two narrow elements, the first one `offset` beyond the row's address
    Val row;
    int offset;
} NvWord;
typedef struct NvBounds { // of elements of a row that lie between two bounds
    const Ex *of;
    int row, word;
    Val bits; // i32
} NvBounds;
typedef struct NvMap { // what a map is given besides (CgWalk.own)
    NvPairs pairs;
    VEC(NvBounds) bounds;
    bool asked, in_words; // whether elements of a row lie as words of bounds have them
    VEC(NvWord) words;    // of a map that only reads
    Val **wide;           // in roles: by result that is packed its elements, until all are there
} NvMap;
// Of the load's elements at a multiple of two beyond `first`, c = 0 or 1 the current one; NULL where they are not loaded so.
Val nv_read_pair(Cg *cg, NvPairs *pairs, const TileOp *map, const Ex *load, Val first, int offset);
// i1: whether an element of the map is in (CgElem.between). bounds.c
Val nv_between(Cg *cg, CgElem *at, const Ex *e, int offset, Val low, Val high, Val when);
// Whether a map does nothing but read narrow elements as they are stored; all of them.
bool nv_reads_rows(Cg *cg, const TileOp *map);
void nv_read_rows(Cg *cg, CgWalk *m);
// What the next tile of the loop that the map is in reads of a row; row: an element of its.
void nv_prefetch_rows(Cg *cg, const TileOp *map, int col_axis, CgElem row);

// ---- instructions (ops.c)
Val nv_special(Cg *cg, const char *name);        // "tid.x"
Val nv_pack(Cg *cg, Dtype t, Val low, Val high); // two f32 -> i32
Val nv_unpack(Cg *cg, Dtype t, Val pair, int c); // -> f32
Val nv_bf16(Cg *cg, Val v);                      // f32 -> i16, of each element
Val nv_shuffle(Cg *cg, Val v, int mask);         // of 32 bits, from lane ^ mask
void nv_barrier(Cg *cg);                         // of all threads of the block
Val nv_shuffle_from(Cg *cg, Val v, Val lane);
Val nv_every(Cg *cg, Val bit); // i1: it is true in all lanes
// Four numbers of 8 bits -> two pairs of f16 or bf16: those of the lower half, those of the upper one.
void nv_halves(Cg *cg, Dtype from, Dtype to, Val word, Val out[2]);
void nv_ldmatrix(Cg *cg, Val address, bool transposed, Val out[4]);
void nv_mma16(Cg *cg, Dtype t, Val acc[4], const Val a[4], Val b0, Val b1);
void nv_mma8_tf32(Cg *cg, Val acc[4], const Val a[4], Val b0, Val b1); // operands i32
Val nv_tf32(Cg *cg, Val bits);                                         // of an f32, rounded; i32
Val nv_f32(Cg *cg, const char *intrinsic, Val x);
Val nv_asm1(Cg *cg, Ty result, const char *text, const char *constraints, Val x); // pure
void nv_widen(Cg *cg);                                                            // wide.c
Val nv_hidden(Cg *cg, Val v); // v, but nothing computed from it leaves the loop it stands in
Val nv_math(Cg *cg, ExOp op, const Val *args); // math.c
void nv_replace_abs(Cg *cg);                   // of numbers that may be the least i32
// Of two sigmoids as bf16: exponentials of theirs, what is left to do with them, the pair.
Val nv_sigmoid_exponential(Cg *cg, Val x);
void nv_sigmoids_begin(Cg *cg, Val pair[2]);
Val nv_sigmoids_end(Cg *cg, const Val pair[2]);

// ---- operations
extern const CgGpuHooks nv_gpu_hooks; // map.c
void nv_map(Cg *cg, const TileOp *op);
// Operands in parts become whole for an op that does not take them so.
void nv_with_sums(Cg *cg, const TileOp *op, void (*lower)(Cg *cg, const TileOp *op));
void nv_load(Cg *cg, const TileOp *op); // global.c
void nv_store(Cg *cg, const TileOp *op);
void nv_add(Cg *cg, Val x, Val p);                   // f32, to global memory
void nv_copy(Cg *cg, const TileOp *op);              // copy.c
void nv_copy_to(Cg *cg, const TileOp *op, Val dst);  // what it says, to an address in shared memory
void nv_find_rows(Cg *cg, const TileOp *op);         // ahead of a copy: looks up where its rows lie
void nv_copy_ahead(Cg *cg, const TileOp *wait);      // looks up where rows lie of a copy behind it
void nv_mma(Cg *cg, const TileOp *op);               // mma.c
bool nv_invert(Cg *cg, const TileOp *op);            // invert.c
void nv_decayed(Cg *cg, const TileOp *op);           // decayed.c
bool nv_dots(Cg *cg, const TileOp *map, int result); // dots.c

#endif
