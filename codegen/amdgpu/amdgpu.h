// amdgpu.h: what the AMD lowering shares between its files: the block's threads, how tiles lie in
// registers and in LDS, and the handful of instructions LLVM has no operation for.
//
// Fragments. A kernel's row axis (the one its grid tiles) is spread over the waves, R rows times
// `mt` to each; R is the width of the matrix instruction. A lane has one of each R rows and a part
// of its columns, which it shares with the G = lanes / R lanes of the same row: for lane l,
// row l % R, part p = l / R. Element e of a lane's row is the column
//
//     MFMA            4 G (e / 4) + 4 p + e % 4     what an MFMA leaves of (operand) x (rows)
//     MFMA, `wide`    8 G (e / 8) + 8 p + e % 8     of axes that are marked so
//     WMMA            2 e + p
//
//     [rows, columns]  element (m, e), index m n + e, with n = columns / G
//     [rows]           element m; the same in all lanes of a row
//     [columns]        element e; the same in all rows and waves
//     []               one element, the same everywhere
//
// Products are computed transposed, (columns x contracted) x (contracted x rows): the weights that
// one product leaves are then the second operand of the next, in the registers where they are.
//
// Values of dtype f16 and bf16 hold pairs of columns as one i32. MFMA: elements e and e + 1, n / 2
// registers. WMMA, which wants all columns of a row in each of its lanes: columns 2 e and 2 e + 1,
// n registers, the same in both lanes of a row. Only values with columns can be so narrow; others
// keep the rounded number as f32.
//
// What a loop carries of products' results it carries as vectors, each one instruction's: single
// numbers LLVM would move to and fro at every turn.
//
// LDS. A matrix is stored along the axis that products contract ("inner"), in chunks of 16 bytes.
// Chunk c of row o lies where am_chunk says: eight rows that are read at once, and those that are
// written at once where a tile is transposed on its way, lie in different banks.
#ifndef CODEGEN_AMDGPU_H
#define CODEGEN_AMDGPU_H

#include "codegen/gpu/gpu.h"
#include "ir/tile_shared.h"

enum { AM_KERNEL = 91, AM_GLOBAL = 1, AM_LOCAL = 3, AM_PRIVATE = 5 };

typedef struct AmState {
    CgGpu gpu;
    int wave;        // lanes of a wave
    int rows, parts; // R, G
    bool wmma;
    bool crowded;  // addresses are computed again for each tile, which LLVM is kept from seeing
    Val lds;       // the kernel's LDS, NULL where it has none
    Val part, row; // i32: lane / R, lane % R
    struct AmPending *pending; // by buffer (TileValue.id): copy.c
    int groups;                // of copies, committed so far
} AmState;

static inline AmState *am_state(Cg *cg) { return cg->state; }

// ---- fragments and LDS (shape.c)

void am_prepare(Cg *cg); // fills the layout part of the state from the kernel
// Elements of a lane along the columns: 1 where it has none. A register may hold two.
int am_elements(Cg *cg, const CgFragment *f);
int am_row(Cg *cg, int m);                         // what the register says, of row group m
int am_column(Cg *cg, const CgFragment *f, int e); // and of element e
int am_register(Cg *cg, const CgFragment *f, int m, int e);
int am_unit(const CgFragment *f);         // columns of a lane that follow each other
int am_pair(Cg *cg, const CgFragment *f); // elements of a lane that share a register: 1 or 2
TileShared am_tile(Cg *cg, const TileValue *v);
Val am_lds(Cg *cg, Val offset); // i32 -> ptr addrspace(3)
// A place of which a part is known: `at` and `more` have no bits in common.
typedef struct AmPlace {
    Val at;
    int more;
} AmPlace;
// Bytes from a tile's beginning: of a chunk of a row; of an element (outer NULL: of a vector).
Val am_chunk(Cg *cg, const TileShared *t, AmPlace row, AmPlace chunk);
Val am_tile_offset(Cg *cg, const TileShared *t, Val outer, Val inner);
Val am_held(Cg *cg, const TileValue *v, int i); // of a fragment, whichever way it is held
// As it reads (f32, i32, i1); layout: of the thread, for what lies elsewhere than in registers.
Val am_element(Cg *cg, const TileValue *v, int layout, const int *part);

// ---- instructions (ops.c)
Val am_pack(Cg *cg, Dtype t, Val low, Val high);           // two f32 -> i32
Val am_pack_unguarded(Cg *cg, Dtype t, Val low, Val high); // a NaN may become any number
Val am_unpack(Cg *cg, Dtype t, Val pair, int half);        // -> f32
Val am_unpack_part(Cg *cg, Dtype t, Val pair);             // the half that is the lane's part
// Of 32 bits, from the lane whose number differs in `mask`, a power of two.
Val am_exchange(Cg *cg, Val v, int mask);
Val am_from(Cg *cg, Val v, Val lane); // of 32 bits, of any lane
Val am_ballot(Cg *cg, Val bit);       // every lane's
Val am_every(Cg *cg, Val bit);        // i1: it is true in all lanes
// Two lanes of a row, each with a pair (its columns e, e + 1): columns 2 e, 2 e + 1 and 2 e + 2,
// 2 e + 3 of the row, in both.
void am_share_pairs(Cg *cg, Val own, Val out[2]);
Val am_vector(Cg *cg, Ty element, const Val *v, int n);
Val am_at(Cg *cg, Val vector, int i);
Val am_hidden(Cg *cg, Val v);   // v, but nothing computed from it leaves the loop it stands in
Val am_pinned(Cg *cg, Val v);   // v, which is computed here and not where it is used
void am_schedule_fence(Cg *cg); // LLVM moves no instruction across
void am_barrier(Cg *cg);
Val am_math(Cg *cg, ExOp op, const Val *args);

// ---- operations
extern const CgGpuHooks am_gpu_hooks; // map.c
void am_map(Cg *cg, const TileOp *op);
void am_load(Cg *cg, const TileOp *op); // global.c
void am_store(Cg *cg, const TileOp *op);
void am_add(Cg *cg, Val x, Val p); // f32, to global memory
void am_copies_begin(Cg *cg);      // copy.c: makes room for what is on its way
void am_copy(Cg *cg, const TileOp *op);
void am_land(Cg *cg, const TileOp *op); // TILE_WAIT
void am_mma(Cg *cg, const TileOp *op);  // mma.c

#endif
