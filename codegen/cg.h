// cg.h: what the lowering shares inside codegen/. lower.c walks a kernel and builds what is the
// same everywhere (parameters, grid, loops, scalar expressions); a target's hooks build the tile
// operations. A hook decides nothing, the schedule is in the IR; docs/architecture.md names what bends this.
#ifndef CODEGEN_CG_H
#define CODEGEN_CG_H

#include "codegen/codegen.h"
#include "codegen/compat.h" // the one place that knows LLVM versions; includes the llvm-c headers

typedef LLVMValueRef Val;
typedef LLVMTypeRef Ty;
typedef LLVMBasicBlockRef Blk;

typedef struct Cg Cg;

// A tile value in LLVM: elements in registers (fragments: e[0..n)), or memory (scratch and shared
// buffers: mem).
typedef struct CgValue {
    Val *e;
    int n;
    Val mem;
} CgValue;

// The element at hand while a scalar expression is built. A target fills it per element (fragments)
// or per vector (lanes).
typedef struct CgElem CgElem;
struct CgElem {
    int lanes; // 1, or elements of a vector: results that vary come as <lanes x T>
    Val (*param)(Cg *cg, CgElem *at,
                 int k); // operand k of the map; a scalar where it does not vary along the lanes
    Val (*pos)(Cg *cg, CgElem *at, int axis); // POS(axis), i32 or <lanes x i32>
    // Of an axis along which elements stand at known places: POS(axis) = *first + offset, *first at
    // least 0 and the same for many elements. False: of another axis. May be NULL.
    bool (*place)(Cg *cg, CgElem *at, int axis, Val *first, int *offset);
    // The element of an input at `first` and `offset` beyond in its last dimension, of a load that is
    // inside and ends with such a position. NULL where it is none of the target's own. May be NULL.
    Val (*read)(Cg *cg, CgElem *at, const Ex *load, Val first, int offset);
    // i1: whether low <= offset <= high (NULL: no bound) and `when` (NULL: always), which are the same for all elements that e says this of
    // in a row. NULL where the target asks for one element at a time. May be NULL.
    Val (*between)(Cg *cg, CgElem *at, const Ex *e, int offset, Val low, Val high, Val when);
    bool (*varies)(const CgElem *at, int k,
                   int axis); // operand k of the map along the axis; given where `place` is
    int lane_axis;            // the axis along the lanes when lanes > 1, and
    Val lane_first;           // its POS at lane 0 (i32): what makes loads along it contiguous
    int copies;               // how many elements have the same expressions built in place; 0 is 1
    bool (*holds)(CgElem *at, const Ex *e); // the condition is known to be true. May be NULL.
    void *ctx;
    ExMemo memo; // Val by expression; all zero to begin with, and again for the next element
};

// The blocks of a loop under construction. For steps that `where` skips, control goes from `test`
// to `latch` directly.
typedef struct CgLoop {
    const TileOp *op;
    Blk pre, head, test, latch, exit;
    Blk work_end; // where the body ended: set when loop_yield returns
    Val step;     // i32
    void *own;    // the target's own
} CgLoop;

// One entry of a kernel's argument list (runtime/abi.h). All are known before begin_kernel:
// cg->args is complete.
typedef enum CgArgKind {
    CG_ARG_POINTER,    // index: tensor
    CG_ARG_STRIDE,     // index: tensor, dim; i64 elements. The last dimension's is 1 and never an
                       // argument
    CG_ARG_SIZE,       // index: size; i32
    CG_ARG_INVERSE,    // index: size that numbers are divided by; i64 (runtime/abi.h)
    CG_ARG_SCALAR,     // index: input; f32, i32 or bool
    CG_ARG_TENSOR_MAP, // index: of cg->maps (sm_90a; a target's begin_kernel may add them)
    CG_ARG_COUNTER,    // a word of the workspace that is 0 before and after (likewise)
} CgArgKind;

enum { CG_MAP_RANK = 5 };
typedef struct CgMap { // what a tensor map says (runtime/abi.h): the box in the tensor's order
    int tensor, swizzle;
    int ends; // 0, or 1 + the dimension whose rows end with their sequence
    int box[CG_MAP_RANK];
} CgMap;

typedef struct CgArg {
    CgArgKind kind;
    int index, dim;
} CgArg;

typedef struct CgLanes {
    int n;    // threads of a warp; 1: there is no other, and neither function
    Val lane; // i32: this thread's number
    Val (*shuffle)(Cg *cg, Val v,
                   int mask);       // of 32 bits, from the lane whose number differs in `mask`
    Val (*ballot)(Cg *cg, Val bit); // every lane's: an integer of n bits
    // i32 of all lanes, by ROWSUM or ROWMAX, which the machine knows to be one number; NULL: as it is
    Val (*one)(Cg *cg, ExOp reduce, Val v);
} CgLanes;

typedef struct CgHooks {
    // The machine code is made for (NULL and a diagnostic: this LLVM has no such target) and the
    // passes to run over the module.
    LLVMTargetMachineRef (*machine)(Cg *cg);
    const char *(*passes)(const Cg *cg);
    void (*polish)(Cg *cg); // the module behind them; NULL: nothing. cg has no arena then
    // Makes the function (cg->fn, called cg->symbol) with its frame: calling convention,
    // attributes, launch bounds, special registers; leaves the builder in a fresh block after
    // cg->entry, which it has made and ended with a branch to that block.
    void (*begin_kernel)(Cg *cg);
    void (*end_kernel)(Cg *cg); // the builder stands where the last op ended: return
    // Parameter slot i of the kernel's argument list, as the type asked for. The builder stands in
    // the entry block.
    Val (*argument)(Cg *cg, int slot, Ty type);
    // The linear grid index and how a kernel runs one or several of them: calls body once with the
    // index (i64).
    void (*grid)(Cg *cg, void (*body)(Cg *cg, Val index));
    // An op other than loop and yield: dispatches on op->kind.
    void (*op)(Cg *cg, const TileOp *op);
    // Loops. Carried values in registers (CgValue.n > 0) become phis here, in lower.c: results,
    // carried and yielded values must have the same n and types. Memory is carried in place:
    // loop_begin (the builder stands in `pre`) gives the carried values their memory, loop_yield
    // copies what is not in place yet, loop_end (in `exit`) names the results. Each may be NULL
    // when there is no memory to carry.
    void (*loop_begin)(Cg *cg, CgLoop *loop);
    void (*loop_yield)(Cg *cg, CgLoop *loop, const TileOp *yield);
    void (*loop_end)(Cg *cg, CgLoop *loop);
    // One f32 op (DIV, EXP .. POW, ABS, FLOOR, MIN, MAX) on scalars or vectors, all of one type;
    // NULL result: the shared lowering builds it from others. EXP2, LOG2 and SQRT are the target's
    // to give where LLVM's intrinsic has no lowering.
    Val (*math)(Cg *cg, ExOp op, const Val *args);
    // f32, or a vector of it, to bf16 as it is stored. NULL: in integers (convert.c).
    Val (*bf16)(Cg *cg, Val v);
    CgLanes (*lanes)(Cg *cg); // the warp of this thread
    void (*met)(Cg *cg);      // the sizes of the point's sequence are known; NULL: nothing
    unsigned stack, tensors;  // address spaces: of cg_alloca's memory; of what arguments point to
} CgHooks;

// What a launch of a kernel needs; kept for the metadata when its function is done.
typedef struct CgLaunch {
    const char *symbol;
    const CgArg *args;
    int nargs;
    int threads, shared, cluster; // of a block; a target sets what is not 1, 0, 1
    const CgMap *maps;
    int nmaps;
    bool persistent; // no more blocks than fit the device
} CgLaunch;

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
    const TileKernel *only; // the module's kernel, where it is made for one; else NULL
    VEC(CgLaunch) made;     // every kernel of every program, in order
    // of the current kernel
    CgLaunch launch;
    const TileProgram *p;
    const TileKernel *k;
    const char *symbol;
    Val fn;
    Blk entry;                    // allocas and arguments go here
    VEC(CgArg) args;              // complete before begin_kernel
    VEC(CgMap) maps;              // of the tensor maps among them
    bool *stored;                 // by tensor: the kernel stores to it
    Val *arg;                     // by slot; NULL until asked for
    Val *input;                   // by tensor, likewise
    bool *asked;                  // by size: the kernel may ask for it
    Val *own;                     // by size: of the current sequence
    CgValue *value;               // by TileValue.id
    struct CgFragment **fragment; // likewise (gpu/gpu.h)
    struct CgPart *thread_part;   // by the kernel's layout and axis (gpu/fragment.c)
    Val grid_b, grid_h, step;     // i32
    Val tile[TILE_MAX_AXES];      // i32
    Val valid;                    // i1: SYM_VALID, in roles
    int crossings;                // how often warps took each other's numbers (gpu/fragment.c)
    bool passed_by;  // the last time in a loop that may have no step, and no barrier since
    Val arguments;   // ptr: the arguments in memory, by slot; NULL until asked for
    ExMemo outlines; // long expressions that are functions (outline.c)
    bool share_math; // mathematical functions are calls
    ExMemo exact;    // of the kernel's expressions: what stands under `rounded`
    bool decides;    // what is being built stands there: the same bits everywhere
};

// ---- the builder: an instruction at its place, without a name
#define CAST(name, Build)                                                                          \
    static inline Val cg_##name(Cg *cg, Val v, Ty to) { return LLVMBuild##Build(cg->b, v, to, ""); }
#define ONE(name, Build)                                                                           \
    static inline Val cg_##name(Cg *cg, Val v) { return LLVMBuild##Build(cg->b, v, ""); }
#define TWO(name, Build)                                                                           \
    static inline Val cg_##name(Cg *cg, Val a, Val b) { return LLVMBuild##Build(cg->b, a, b, ""); }
#define THREE(name, Build)                                                                         \
    static inline Val cg_##name(Cg *cg, Val a, Val b, Val c) {                                     \
        return LLVMBuild##Build(cg->b, a, b, c, "");                                               \
    }
#include "codegen/builder.def"
#undef CAST
#undef ONE
#undef TWO
#undef THREE
static inline Val cg_icmp(Cg *cg, LLVMIntPredicate is, Val a, Val b) {
    return LLVMBuildICmp(cg->b, is, a, b, "");
}
static inline Val cg_fcmp(Cg *cg, LLVMRealPredicate is, Val a, Val b) {
    return LLVMBuildFCmp(cg->b, is, a, b, "");
}
static inline Val cg_less(Cg *cg, Val a, Val b) { return cg_icmp(cg, LLVMIntSLT, a, b); }
static inline Val cg_same(Cg *cg, Val a, Val b) { return cg_icmp(cg, LLVMIntEQ, a, b); }
static inline Val cg_load(Cg *cg, Ty t, Val p) { return LLVMBuildLoad2(cg->b, t, p, ""); }
static inline Val cg_store(Cg *cg, Val v, Val p) { return LLVMBuildStore(cg->b, v, p); }
static inline Val cg_element(Cg *cg, Ty t, Val p, Val i) { // the address of p[i]
    return LLVMBuildGEP2(cg->b, t, p, &i, 1, "");
}
static inline Val cg_phi(Cg *cg, Ty t) { return LLVMBuildPhi(cg->b, t, ""); }
static inline Blk cg_here(Cg *cg) { return LLVMGetInsertBlock(cg->b); }
static inline void cg_at(Cg *cg, Blk b) { LLVMPositionBuilderAtEnd(cg->b, b); }
static inline void cg_br(Cg *cg, Blk to) { LLVMBuildBr(cg->b, to); }
static inline void cg_fork(Cg *cg, Val in, Blk then, Blk otherwise) {
    LLVMBuildCondBr(cg->b, in, then, otherwise);
}

// ---- exact_sums.c: p is the address of an element's words
void cg_exact_add(Cg *cg, Val x, Val p);
Val cg_exact_read(Cg *cg, Val p);

// ---- llvm.c: small helpers over it
void cg_hoist_nothing(Cg *cg); // out of the loop that the branch goes around, which was just built
Val cg_i32(Cg *cg, int64_t v);
Val cg_i64(Cg *cg, int64_t v);
Val cg_f32(Cg *cg, double v);
Val cg_splat(Cg *cg, Val scalar, int lanes);
Val cg_plus(Cg *cg, Val a, int64_t b); // i32
Val cg_times(Cg *cg, Val a, int64_t b);
Val cg_below(Cg *cg, Val a, int64_t b); // i1: a < b, a == b
Val cg_is(Cg *cg, Val a, int64_t b);
Val cg_over(Cg *cg, Val v, int n);      // v / n and v % n of what is not negative: shifts and masks
Val cg_modulo(Cg *cg, Val v, int n);    // where n is a power of two
Blk cg_block(Cg *cg, const char *name); // appended to the function
void cg_enter(Cg *cg, Blk to);          // a jump, and on from there
void cg_go_on(Cg *cg, Blk at);          // from a block on, which comes behind this one
void cg_branch(Cg *cg, Val in, Blk then, Blk otherwise); // and on from `then`
// What follows runs only where `in` holds (NULL: always), until cg_end_if, or cg_enter, which leaves the block where it was made.
Blk cg_if(Cg *cg, Val in, const char *name);
void cg_end_if(Cg *cg, Blk done);
Val cg_or_zero(Cg *cg, Val in, Val x);                 // x where `in` holds
Val cg_join(Cg *cg, Val a, Blk of_a, Val b, Blk of_b); // a where control comes from its block, or b

// A loop whose body runs at least once. `carried` are n values: what they are before the loop, in it, and behind it.
typedef struct CgTurns {
    Blk pre, head;
    Val i, *phi;
    int n;
} CgTurns;
CgTurns cg_turns(Cg *cg, Val first, Val *carried, int n);
void cg_end_turns(Cg *cg, CgTurns *t, Val next, Val more, const Val *carried); // again while `more`

// For i from `from` on, by steps, while below `to`. sum: what is carried, from `start`; NULL: nothing.
typedef struct CgCount {
    Blk pre, head, done;
    Val i, sum;
    bool once; // it has one turn at most, and an assembler need not unroll it
} CgCount;
CgCount cg_count(Cg *cg, Val from, Val to, Val start);
Val cg_end_count(Cg *cg, CgCount *l, Val step, Val sum); // what is carried behind it
Val cg_alloca(Cg *cg, Ty t, const char *name);
Val cg_intrinsic(Cg *cg, const char *name, Ty *overload, int noverload, Val *args, int n);
Val cg_asm(Cg *cg, Ty result, Val *args, int n, const char *text, const char *constraints,
           bool convergent);
void cg_struct_asm(Cg *cg, Ty *results, int nresults, Val *args, int n, const char *text,
                   const char *constraints, Val *out);
Ty cg_dtype(Cg *cg, Dtype t); // in memory
Val cg_fast(
    Val v); // contract, where the value takes flags: what f32 arithmetic of the language allows
void cg_invariant(Cg *cg, Val load);                // nobody stores there while the kernel runs
int cg_lanes(Val v);                                // elements of a vector; 1 for a scalar
Ty cg_vector(Ty t, int lanes);                      // t itself for one lane
Val cg_widen(Cg *cg, Val v, int lanes);             // a splat unless v is a vector already
int cg_widest(const Val *v, int n);                 // lanes of the widest
int cg_widen_all(Cg *cg, Val *v, int n);            // to it; its lanes
Val cg_internal(Cg *cg, const char *name, Ty type); // a function with the attributes of cg->fn
void cg_attribute(Cg *cg, Val fn, const char *name,
                  const char *value); // value NULL: one of LLVM's own names
void cg_param_attribute(Cg *cg, Val fn, int param, const char *name, uint64_t value);

// ---- args.c: run-time values every target needs
void cg_collect_args(Cg *cg); // fills cg->args
// The kernel that converts what a nest has summed, and left (passes/schedule/meanwhile.c).
const TileKernel *cg_finishes(const TileProgram *p);
Val cg_size(Cg *cg, int size);                    // i32
Val cg_inverse(Cg *cg, const Ex *size);           // i64; NULL: the kernel divides by itself
Val cg_times_inverse(Cg *cg, Val x, Val inverse); // x, an i32 >= 0, over the size
Val cg_pointer(Cg *cg, int tensor);               // ptr
Val cg_origin(Cg *cg, const TileOp *op);          // ptr: of the first column that an access sees
Val cg_stride(Cg *cg, int tensor, int dim);       // i64 elements; the last dim's is constant 1
Val cg_extent(Cg *cg, int tensor, int dim);       // i32
Val cg_scalar(Cg *cg, int input);                 // f32, i32 or i1

Val cg_arguments(Cg *cg); // ptr: all of the above but maps, 8 bytes a slot

// ---- element.c: coordinates that are said for each place along an axis
Val cg_element_offset(Cg *cg, const TileOp *op, int axis, Val pos); // i64 elements; pos: i32
Val cg_scatter_offset(Cg *cg, const TileOp *op,
                      Val *pos); // of indices for each element; pos: by axis
// The indices that are said for a place along the axis, by the tensor's dimensions; others stay.
void cg_element_indices(Cg *cg, const TileOp *op, int axis, Val pos, Val *index);
// Places of a tile that lie in a row: from a multiple of `places` on, a power of two, each is the one before and one more along
// dimension `dim` of the tensor (-1: it is the same place). INT_MAX: all. Holds as far as indices are inside the tensor.
typedef struct CgRun {
    int places, dim;
} CgRun;
CgRun cg_element_run(const Cg *cg, const TileOp *op, int axis);
Val cg_first_index(Cg *cg,
                   const TileCoord *at); // i32: along a dimension, what a tile's coordinates say
Val cg_element_begin(Cg *cg, const TileOp *op, int axis); // i32: position of its tile's first place
Val cg_axis_size(Cg *cg, int axis);                       // i32: how many places it has

// ---- grid.c: numbers of tiles, and the grid's points
typedef struct CgGrid {
    Val count[TILE_MAX_GRID];   // i32, by dimension
    Val inverse[TILE_MAX_GRID]; // of a count that is a size of the launch (cg_inverse), or NULL
    int rows;                   // the dimension of the row tiles; -1: there is none
    Val of_rows, of_heads;      // i32: row tiles and heads of a cluster, whose numbers these are;
                                // NULL: there are none
    // i32, also of a sequence's sizes: its points, where the grid is of all sequences' own (tile_counts_own); NULL: it is not.
    const Ex *each;
    Val whole; // heads that have one point of the last dimension (TileGrid.from); NULL: it has no
               // such
} CgGrid;
CgGrid cg_grid(Cg *cg);
Val cg_grid_total(Cg *cg, const CgGrid *g); // i32
// at, i32 by dimension, of number (i32 or i64), which is below the total.
void cg_grid_point(Cg *cg, const CgGrid *g, Val number, Val *at);
// What of a cluster's point is this block's, which is number `rank` of it.
void cg_grid_own(Cg *cg, const CgGrid *g, Val rank, Val *at);
// What the grid's symbols mean: sets it; says it.
void cg_grid_stand(Cg *cg, const Val *at);
void cg_grid_here(Cg *cg, Val *at);
Val cg_tile_begin(Cg *cg, int axis); // i32: position of the tile's first element

// ---- sequence.c
void cg_meet_sequence(Cg *cg); // fills cg->own for the sequence that the grid's point is of
// Of sizes that are alike for all sequences, which nothing else uses: where a block begins.
Val cg_meet_once(Cg *cg, const Ex *e);
// Of a dimension over the tiles of all sequences: whether there is a tile of that number (i1). Then grid_b and the dimension's tile are set,
// and the sequence is met. *end: from there on no number has a tile for a block that was given this one.
Val cg_find_tile(Cg *cg, const TileGrid *g, Val number, Val *end);
// Where tiles are numbered one sequence after the other, of which there are n and each has so many: the one that has the number, and which of
// its own that is; below 0: none. By all lanes of a warp. cg_meet_sequence behind it: own sizes are those of any sequence.
void cg_find_own(Cg *cg, const Ex *each, Val n, Val number, Val *sequence, Val *tile);
Val cg_count_own(Cg *cg, const Ex *each, Val n); // of all of them

// ---- lower.c
// The operations of a block; loop: the one whose body it is, or NULL.
void cg_lower_block(Cg *cg, const TileBlock *b, CgLoop *loop);
bool cg_kernel(Cg *cg, const TileProgram *p, const TileKernel *k,
               const char *symbol); // builds one function
// The linker's name of a kernel: letters, digits and _ only.
const char *cg_symbol(Cg *cg, const TileKernel *k);

// ---- expr.c: scalar expressions
// A scalar where the value does not vary along the lanes, else <lanes x T>: see cg_widen. at NULL:
// uniform (loop bounds, coordinates).
Val cg_expr(Cg *cg, const Ex *e, CgElem *at);
Val cg_uniform(Cg *cg, const Ex *e);
void cg_elem_begin(Cg *cg, CgElem *at); // forgets the last element's values
Val cg_read(Cg *cg, Val v,
            Dtype from); // from storage (cg_dtype) to what it reads as: f32, i32 or i1
Val cg_write(Cg *cg, Val v, Dtype to); // and back, rounding to nearest even; scalar or vector
Val cg_round(Cg *cg, Val v, Dtype to); // an f32 rounded to a narrower dtype, as f32
Val cg_math(Cg *cg, ExOp op, const Val *args,
            int n); // f32: the target's hook or the fallback of math.c
Val cg_math_formula(Cg *cg, ExOp op, const Val *args); // those made of others
Val cg_divide_rounded(Cg *cg, Val a, Val b);           // f32, correctly rounded on every target
Val cg_sqrt_rounded(Cg *cg, Val x);                    // the same
Val cg_pow_signs(Cg *cg, Val a, Val b, Val magnitude); // magnitude: of a to the power b

// ---- outline.c: long expressions as functions
typedef Val CgBuild(Cg *cg, const Ex *e, CgElem *at); // cg_expr
bool cg_is_long(const Cg *cg, const Ex *const *order, int n,
                const CgElem *at); // the nodes to build
Val cg_outline(Cg *cg, const Ex *e, CgElem *at, CgBuild *build, const Ex **order, int n);
Val cg_outlined(Cg *cg, const Ex *e, CgElem *at, CgBuild *build); // NULL: not a function yet
void cg_find_exact(Cg *cg);                                       // fills cg->exact (expr.c)

// ---- function.c: functions of the module that the kernel calls
typedef struct CgOutside { // where the builder was
    Val fn, arguments, *arg, *input;
    Blk entry, here;
    const CgHooks *hooks;
    CgHooks inside;
} CgOutside;
Val cg_function_begin(Cg *cg, CgOutside *o, const char *name, Ty type);
void cg_function_end(Cg *cg, const CgOutside *o, Val result); // result NULL: void
// Of f32 values of one type, like the result.
Val cg_function(Cg *cg, const char *name, Val (*build)(Cg *cg, ExOp op, const Val *args), ExOp op,
                Val *args, int n);

// ---- artifact.c: the metadata of what was built (runtime/abi.h), in the arena
struct AbiMeta;
bool cg_metadata(Cg *cg, const TileProgram *const *programs, int count, struct AbiMeta *out);

// ---- link.c: an object as a shared object (AMD). *out is malloc'ed; false with an error in diags.
bool cg_link(Cg *cg, const void *object, size_t n, void **out, size_t *out_n);

// ---- targets
extern const CgHooks cg_host_hooks, cg_nvptx_hooks, cg_amdgpu_hooks;

#endif
