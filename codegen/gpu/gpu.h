// gpu.h: what the lowerings of all GPUs share: values in the registers of threads, by their layouts
// (ir/layout.h); maps over them, and maps whose results lie in the memory that a block shares.
//
// The number of an element along an axis is a sum: what the thread's lane and warp say of it, which
// is computed once, and what the register says, which is a constant. `part` is that constant, by
// axis: it names a register of every value whose layout agrees, and of a value that lacks an axis
// the one that the elements along it share.
//
// The columns of a layout are the axis along which a thread's first registers run; its other axis are
// the rows. Nothing else distinguishes them.
#ifndef CODEGEN_GPU_H
#define CODEGEN_GPU_H

#include "codegen/cg.h"
#include "ir/tile_shared.h"

typedef struct CgWalk CgWalk;

typedef struct CgGpuHooks {
    // An operand of a map as it reads (f32, i32, i1); layout: of the map's thread, for what lies
    // elsewhere than in registers.
    Val (*element)(Cg *cg, const TileValue *v, int layout, const int *part);
    // What is made of the current element for a result. NULL: its body.
    Val (*body)(Cg *cg, CgWalk *m, int result);
    // Two elements side by side of a result whose registers hold two.
    void (*pair)(Cg *cg, CgWalk *m, int result, Val low, Val high);
    Val (*exchange)(Cg *cg, Val v, int mask); // of the lane whose number differs in these bits
    Val (*from)(Cg *cg, Val v, Val lane);     // of 32 bits, of any lane
    Val (*every)(Cg *cg, Val bit);            // i1: it is true in all lanes
    void (*barrier)(Cg *cg);                  // all threads of the block have come here
    // Reductions in two chains, which do not wait for each other.
    bool two_chains;
    // ---- shared memory
    Val (*place)(Cg *cg, const TileValue *v); // i32: where a value begins; NULL: where all do
    Val (*pointer)(Cg *cg, Val at);
    // Bytes from there to an element; row NULL: of a vector.
    Val (*offset)(Cg *cg, const TileShared *t, Val row, Val col);
    void (*add)(Cg *cg, Val x, Val p); // f32, to global memory, as other threads do
    // A triangle's inverse, once that of its blocks on the diagonal is there (invert.c). False: it is not made so. NULL: never.
    bool (*invert)(Cg *cg, const TileOp *op);
    void (*decayed)(Cg *cg, const TileOp *op); // a map marked `factors`; NULL: none is
    // A result that sums products along the rows of tiles, in shared memory. False: it is made as others are. NULL: never.
    bool (*dots)(Cg *cg, const TileOp *map, int result);
    void (*prefetch)(Cg *cg, Val p); // from global memory; NULL: there is no such instruction
    bool pieces; // 16 bytes of a row that begin at a multiple of as many lie together
} CgGpuHooks;

typedef struct CgGpu { // the head of a target's state
    const CgGpuHooks *hooks;
    int *offset;  // of shared values, by TileValue.id; -1: not in shared memory
    int threads;  // that run the operation together
    bool crossed; // which half of what goes from warp to warp was used last
    Val tid, lane;
} CgGpu;

static inline CgGpu *cg_gpu(Cg *cg) { return cg->state; }

// x, to an element of the tensor in global memory: of all that do so, in any order.
static inline void cg_add_to(Cg *cg, int tensor, Val x, Val p) {
    bool exact = cg->p->tensors.data[tensor].exact;
    (exact ? cg_exact_add : cg_gpu(cg)->hooks->add)(cg, x, p);
}

// ---- values (fragment.c)

typedef struct CgFragment { // of a value
    Layout is;
    int registers;     // of a thread
    int each;          // elements in one: 2 where they are narrow and side by side along columns
    int rows, columns; // axes; -1: none
} CgFragment;

// Of a map's result that goes on to shared memory: where its map makes it.
const CgFragment *cg_fragment(Cg *cg, const TileValue *v);
int cg_slot(const CgFragment *f, const int *part); // the register
int cg_register(const CgFragment *f, int row,
                int column);                  // likewise, whatever axes the value lacks
int cg_share(const CgFragment *f, int axis);  // elements along an axis in registers; -1: 1
CgValue *cg_make(Cg *cg, const TileValue *v); // with room for its registers
int cg_columns(const Layout *l);              // their axis; -1: there is none
// Where this thread is: what its lane and warp say, for every layout of the kernel. late: what only
// the lane says is multiplied by its step where it is used, so that no register holds it meanwhile.
void cg_place_thread(Cg *cg, Val lane, Val warp, bool late);
// i32: of an element's number along an axis, in one of the kernel's layouts.
Val cg_thread_part(Cg *cg, int layout, int axis);
// i32: of it only what the warp says, times `by`; NULL: nothing.
Val cg_warp_part(Cg *cg, int layout, int axis, int by);
// Of one register: over the lanes that share what is reduced.
Val cg_across(Cg *cg, const Layout *l, int axis, ExOp reduce, Val v);
// i1: whether a lane is the first of those that have copies; f32: 0 but in that one.
Val cg_is_first_copy(Cg *cg, const Layout *l);
Val cg_in_first_copy(Cg *cg, const Layout *l, Val v);
// Of a value of rows, which every warp has: over the warps that share what is reduced of a map of that layout.
void cg_across_warps(Cg *cg, int layout, int axis, ExOp reduce, const TileValue *v);
Val cg_merge(Cg *cg, ExOp reduce, Val a, Val b); // of a reduction; a NULL: b

// ---- maps (map.c)

typedef struct CgSpace { // the elements of a map that a thread makes
    const TileOp *op;
    int layout;
    Layout is;         // of the map's axes
    int rows, columns; // axes; -1: none among them
    int n;
    const int *order;        // their registers, in the order in which they are made
    int part[TILE_MAX_AXES]; // of the current one
    bool odd;                // the second of two side by side
} CgSpace;

typedef struct CgTerm { // of a reduction
    int result;
    Val *acc, x;
} CgTerm;

struct CgWalk {
    CgSpace space;
    CgElem elem;      // whose ctx is the map
    Val *low;         // by result: the first of two that a register holds
    Val **odd;        // by result: the second chain of a reduction
    VEC(CgTerm) late; // of sums, in a map marked `late`
    Val first;        // POS along the columns of the thread's first element; NULL: not kept
    void *own;        // the target's
};

typedef enum CgOrder { // what a thread comes back to last: the next of an instruction's tiles along
    CG_BY_REGISTER,    // whichever axis has the last registers
    CG_ROW_BY_ROW,     // the rows
    CG_COLUMN_BY_COLUMN
} CgOrder;
CgWalk cg_walk_begin(Cg *cg, const TileOp *op, CgOrder order);
void cg_walk_at(CgWalk *m, int i);       // makes element i the current one
void cg_walk_element(Cg *cg, CgWalk *m); // m may not have moved since
void cg_walk_end(Cg *cg, CgWalk *m);     // reductions across lanes, but of results in parts
Val *cg_walk_register(Cg *cg, const CgWalk *m, int result); // of the current element
Val cg_walk_first(Cg *cg, const CgWalk *m, int axis);       // POS of the thread's first element
// Of a map of registers to shared memory: its elements, when all are made.
bool cg_is_spread(const TileOp *map);
void cg_spread(Cg *cg, const TileOp *map);

// ---- values in shared memory (shared.c)
void cg_alloc(Cg *cg, const TileValue *v); // from now on it begins where it lies
void cg_view(Cg *cg, const TileOp *op);    // a stage of a buffer
void cg_beside(Cg *cg, const TileOp *op);  // the same place
// To the element `own` along `axis`, `other` along the value's other one, if any.
Val cg_shared_pointer(Cg *cg, const TileValue *v, int axis, Val own, Val other);
// As it reads; part: what registers say of it, beside the thread.
// Where the thread's element `part` lies.
Val cg_shared_at(Cg *cg, const TileValue *v, int layout, const int *part);
Val cg_shared_element(Cg *cg, const TileValue *v, int layout, const int *part);

// ---- maps into shared memory (cooperative.c)
void cg_cooperative_map(Cg *cg, const TileOp *op);

// The backward of a recurrence, or a kernel of one chunk: a block has a few warps, which have nothing else to do while they wait.
static inline bool cg_recurs_back(const Cg *cg) {
    return cg->p->recurrence && (tile_is_backward(cg->p) || cg->k->purpose == PURPOSE_ONE_CHUNK);
}
// ---- operations of all threads whose operands and results lie in shared memory (together.c)
bool cg_is_together(Cg *cg, const TileOp *op);
void cg_together(Cg *cg, const TileOp *op);
void cg_invert(Cg *cg, const TileOp *op); // invert.c

// ---- a fragment from and to a tensor whose last dimension is along its columns, or not there (access.c)
typedef struct CgAccess {
    const TileOp *op;
    const TileTensor *t;
    const TileValue *v;
    const CgFragment *f;
    int unit;   // what offsets count: an element is so many
    Val begin;  // i64: of the tensor's element at (0, 0) of the tile's axes
    Val row;    // i32: the thread's first row within the tensor
    Val nrows;  // i32: that the tensor has
    Val stride; // i64: from row to row; NULL: the access says where each row is
    int cols;   // columns that a tile has, 0 without such an axis
    Val ncols;  // i32: columns that this one has, where it may be fewer; else NULL
} CgAccess;
// from: the offset of the tensor's first element; column: from column to column.
CgAccess cg_access(Cg *cg, const TileOp *op, const TileValue *v, Val from, int unit, int column);
Val cg_global(Cg *cg, Val p);                                  // ptr, as one to global memory
Val cg_row_offset(Cg *cg, const CgAccess *a, Val row);         // i64: from a.begin
Val cg_number(Cg *cg, const CgAccess *a, int row, int column); // a register's element, as it reads

// ---- a fragment from and to a tensor whose last dimension is along the fragment's rows (columns.c)
bool cg_goes_by_columns(Cg *cg, const TileOp *op, const TileValue *v);
void cg_load_elements(Cg *cg, const TileOp *op);
void cg_store_elements(Cg *cg, const TileOp *op);

// ---- a sum that is scattered along diagonals, which lie in lanes so that they can be added up there (diagonals.c)
bool cg_adds_diagonals(Cg *cg, const TileOp *op);
void cg_add_diagonals(Cg *cg, const TileOp *op);

#endif
