// host.h: what the files of the host target share. The schedule names the axis that lies along
// vector lanes (TileSchedule.lane_axis, M below). A value lives in scratch memory of the one thread
// that runs the tile, 4 bytes an element (f32, i32, or bool as i32), the lane axis innermost and
// the others outside in the kernel's order:
//
//     f32[M, N] -> [N][M]     f32[M] -> [M]     f32[N, D] -> [N][D]     f32[N] -> [N]
//
// so that for each key a whole vector of queries is at hand, row reductions are vertical, and a
// product broadcasts the other operand's elements from where they lie. What is loaded for products
// that sum over M alone lies as in the tensor. Such a value, or one without M, may be a view of the
// tensor itself.
#ifndef CODEGEN_HOST_H
#define CODEGEN_HOST_H

#include "codegen/cg.h"

enum { HOST_MAX_SCRATCH = 4 << 20 }; // of a tile, on the stack of a thread that has 8 MB
enum { HOST_MAX_ROWS = 12, HOST_MAX_VECTORS = 4 }; // of a register block

// Where a value lies. stride: elements, by position in value->axis; the innermost one is the
// constant 1 unless it is a view's.
typedef struct HostPlace {
    int slot;                  // of memory; -1 for none
    bool rows;                 // lies as in the tensor, without lanes (memory.c)
    bool view;                 // a load that may look into the tensor
    Val mem;                   // bound when the value is made
    Val stride[TILE_MAX_RANK]; // i64
} HostPlace;

typedef struct HostSlot {
    int64_t bytes;
    Val mem;
} HostSlot;

typedef struct Host {
    int lane_axis;
    bool fma;
    bool avx512, sse;  // with DQ: scalef, reduce
    bool narrow_masks; // masked moves of 2-byte elements are instructions
    Val mode;          // the caller's floating-point mode
    int registers;
    HostPlace *place; // by value id
    int nslots;
    HostSlot *slots;
    Ty *types;
} Host;

// ---- host.c
void host_features(Cg *cg, Host *h); // what the machine has

// ---- memory.c: slots of memory for values; values that may share one do
void host_plan(Cg *cg, Host *h);

// ---- value.c
Host *host_of(Cg *cg);
void host_attributes(Cg *cg, Val fn);
HostPlace *host_place(Cg *cg, const TileValue *v);
int host_lane(Cg *cg, const TileValue *v);      // the axis along lanes in v's memory; -1: none
int host_axis_at(const TileValue *v, int axis); // position of the axis in v; -1
int host_extent(Cg *cg, int axis);
int64_t host_bytes(Cg *cg, const TileValue *v);           // of its elements, all f32
Val host_element(Cg *cg, const TileValue *v, Val *index); // pointer; index by axis, i64
Val host_load(Cg *cg, const TileValue *v, Val *index, int lanes,
              int along); // f32, i32 or i1; a scalar where v lacks `along`
void host_store(Cg *cg, const TileValue *v, Val *index, Val x); // contiguous along the lanes
void host_bind(Cg *cg, const TileValue *v);                     // v lies in its slot
int host_stride1(
    Cg *cg,
    const TileValue *v); // the axis along which v is contiguous; -1 for a view that has none

int host_width(Cg *cg, int axis); // the widest vector that divides the axis; 1 for no axis
Val host_fma(Cg *cg, Val a, Val b,
             Val c);         // rounded twice on a processor that has no such instruction
Val host_sum(Cg *cg, Val v); // over the lanes

// A counted loop, run at least once: for i in 0, step, 2 step .. below count. Accumulators are phis
// that the body replaces.
typedef struct HostLoop {
    Blk body, pre;
    Val i; // i64
    int64_t count, step;
} HostLoop;
HostLoop host_loop(Cg *cg, int64_t count, int64_t step);
Val host_loop_phi(Cg *cg, const HostLoop *l, Val init);
void host_loop_next(Cg *cg, const HostLoop *l, Val phi, Val next); // before host_loop_end
void host_loop_end(Cg *cg, const HostLoop *l);

// ---- tensor.c, map.c, mma.c: the operations
void host_tensor_load(Cg *cg, const TileOp *op);
void host_tensor_store(Cg *cg, const TileOp *op);
void host_map(Cg *cg, const TileOp *op);
void host_mma(Cg *cg, const TileOp *op);

// ---- lock.c: what several tiles may add to
Val host_lock(Cg *cg, Val begin); // of a tile, or of a tensor, by where it begins
void host_take_lock(Cg *cg, Val lock);
void host_drop_lock(Cg *cg, Val lock);

// ---- diagonals.c: a sum scattered along diagonals, beginning at base if that exists
void host_add_diagonals(Cg *cg, const TileOp *op, Val base, Val exists);

// ---- chunk.c: what goes along an axis and the one beside it
void host_beside(Cg *cg, const TileOp *op);
void host_invert(Cg *cg, const TileOp *op);

// ---- turn.c: a tile of rows that becomes columns on its way between a tensor and memory
typedef struct HostTurn {
    Dtype dtype;                     // of the tensor
    Dtype round;                     // DT_F32, or what loaded elements are rounded to
    int rows, columns, lanes;        // rows: a multiple of lanes
    bool load;                       // tensor [rows][columns] to memory [columns][rows]; else back
    Val tensor, stride;              // from row to row, i64 elements
    Val inside_rows, inside_columns; // i32: how many lie inside the tensor; the others read as 0
                                     // and are not stored
    Val memory, pitch;               // f32; from column to column, i64
} HostTurn;
void host_turn(Cg *cg, const HostTurn *t);

// A function of this module, made once for each name and called where a kernel needs it: code that
// several places share. True when it is new: the builder then stands in its body, until
// host_function_end.
typedef struct HostFunction {
    Val fn, outer;
    Ty type;
    Blk outer_block, outer_entry;
} HostFunction;
bool host_function(Cg *cg, HostFunction *f, const char *name, Ty *params, int n);
void host_function_end(Cg *cg, HostFunction *f);
void host_call(Cg *cg, const HostFunction *f, Val *args, int n);

// ---- math.c
Val host_math(Cg *cg, ExOp op, const Val *v);

#endif
