// cg.h: what the lowering shares inside codegen/. lower.c walks a kernel and builds what is the same everywhere (parameters, grid,
// loops, scalar expressions); a target's hooks build the tile operations. A hook decides nothing: the schedule is in the IR.
#ifndef CODEGEN_CG_H
#define CODEGEN_CG_H

#include "codegen.h"
#include "compat.h" // the one place that knows LLVM versions; includes the llvm-c headers

typedef LLVMValueRef Val;
typedef LLVMTypeRef Ty;
typedef LLVMBasicBlockRef Blk;

typedef struct Cg Cg;

// A tile value in LLVM: elements in registers (fragments: e[0..n)), or memory (scratch and shared buffers: mem).
typedef struct CgValue {
    Val *e;
    int n;
    Val mem;
} CgValue;

// The element at hand while a scalar expression is built. A target fills it per element (fragments) or per vector (lanes).
typedef struct CgElem {
    int lanes;                                         // 1, or elements of a vector: results that vary come as <lanes x T>
    Val (*param)(Cg *cg, struct CgElem *at, int k);    // operand k of the map
    Val (*pos)(Cg *cg, struct CgElem *at, int axis);   // POS(axis), i32 or <lanes x i32>
    void *ctx;
    Val *memo; // by Ex id, for this element; cg_elem_begin clears it
    int nmemo;
} CgElem;

typedef struct CgHooks {
    const char *triple;
    // The function's frame: calling convention, attributes, launch bounds, special registers. Called with an empty function.
    void (*begin_kernel)(Cg *cg);
    void (*end_kernel)(Cg *cg);
    // Parameter slot i of the kernel's argument list, as the type asked for.
    Val (*argument)(Cg *cg, int slot, Ty type);
    // The linear grid index and how a kernel runs one or several of them: calls body once with the index (i64).
    void (*grid)(Cg *cg, void (*body)(Cg *cg, Val index));
    // An op of OPs other than loop and yield: dispatches on op->kind.
    void (*op)(Cg *cg, const TileOp *op);
    // Loop-carried values: registers become phis (n elements of type elem), memory is carried in place.
    void (*loop_begin)(Cg *cg, const TileOp *loop);
    void (*loop_yield)(Cg *cg, const TileOp *loop, const TileOp *yield);
    void (*loop_end)(Cg *cg, const TileOp *loop);
    // One f32 math op (exp2, log2, tanh, rcp, ...) on a scalar or a vector; NULL result: the shared lowering builds it from others.
    Val (*math)(Cg *cg, ExOp op, const Val *args);
} CgHooks;

typedef struct CgArg { // one entry of the kernel's argument list (runtime/abi.h)
    int kind, index, dim;
} CgArg;

struct Cg {
    Arena *arena;
    Diags *diags;
    const CgOptions *opt;
    const Target *target;
    const CgHooks *hooks;
    void *state; // the target's own
    LLVMContextRef c;
    LLVMModuleRef m;
    LLVMBuilderRef b;
    LLVMTargetMachineRef tm;
    Ty i1, i8, i16, i32, i64, f16, bf16, f32, ptr, void_;
    // of the kernel at hand
    const TileProgram *p;
    const TileKernel *k;
    Val fn;
    Blk entry;                  // allocas go here
    VEC(CgArg) args;            // grows as the body asks for sizes, pointers, strides
    CgValue *value;             // by TileValue.id
    Val grid_b, grid_h, step;   // i32
    Val tile[TILE_MAX_AXES];    // i32
};

// ---- llvm.c: small helpers over the builder
Val cg_i32(Cg *cg, int64_t v);
Val cg_i64(Cg *cg, int64_t v);
Val cg_f32(Cg *cg, double v);
Val cg_splat(Cg *cg, Val scalar, int lanes);
Blk cg_block(Cg *cg, const char *name); // appended to the function
Val cg_alloca(Cg *cg, Ty t, const char *name);
Val cg_intrinsic(Cg *cg, const char *name, Ty *overload, int noverload, Val *args, int n);
Val cg_asm(Cg *cg, Ty result, Val *args, int n, const char *text, const char *constraints, bool convergent);
Val cg_struct_asm(Cg *cg, Ty *results, int nresults, Val *args, int n, const char *text, const char *constraints, Val *out);
Ty cg_dtype(Cg *cg, Dtype t); // in memory
Val cg_fast(Val v);           // contract, nsz where the value takes flags: what f32 arithmetic of the language allows

// ---- lower.c: run-time values every target needs
Val cg_size(Cg *cg, int size);                    // i32
Val cg_pointer(Cg *cg, int tensor);               // ptr
Val cg_stride(Cg *cg, int tensor, int dim);       // i64 elements; the last dim's is constant 1
Val cg_scalar(Cg *cg, int input);                 // f32, i32 or i1
bool cg_kernel(Cg *cg, const TileProgram *p, const TileKernel *k); // builds one function

// ---- expr.c: scalar expressions
Val cg_expr(Cg *cg, const Ex *e, CgElem *at);     // at NULL: uniform (loop bounds, coordinates)
void cg_elem_begin(Cg *cg, CgElem *at);
Val cg_convert(Cg *cg, Val v, Dtype from, Dtype to); // between storage types and f32, scalar or vector

// ---- targets
extern const CgHooks cg_host_hooks, cg_nvptx_hooks;

#endif
