// abi.h: the contract between the compiler and the runtime: what an artifact says about itself.
// docs/abi.md tells the bytes.
//
// The compiler fills an AbiMeta and calls abi_write or abi_ptx; the runtime calls abi_find and
// abi_read. Both directions run through one description of the layout (abi.c), so that they cannot
// disagree. An artifact is untrusted: abi_read believes nothing, and what it returns has been
// verified: every index is in range, every launch expression is well formed.
//
// Errors are static texts without a full stop ("the checksum does not match"); NULL is success.
#ifndef RUNTIME_ABI_H
#define RUNTIME_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    ABI_VERSION = 3,
    ABI_MAX_BYTES = 1 << 24, // of metadata; what 64 inputs in 64 variants need is far below
    ABI_MAX_VARIANTS = 64,
    ABI_MAX_SIZES = 256,
    ABI_MAX_TENSORS = 256,
    ABI_MAX_RANK = 8,
    ABI_MAX_KERNELS = 256,
    ABI_MAX_ARGS = 512, // 8 bytes each: what a CUDA launch takes (4 KB)
    ABI_MAX_GRID = 5,
    ABI_MAX_MAPS = 12,    // tensor maps of one kernel
    ABI_MAX_MAP_RANK = 5, // what the hardware takes
    ABI_ENDS = 1 << 30,   // rows, where a map's rows end with a sequence,
    ABI_ENDS_RANK = 2,    // and coordinates more than dimensions
    ABI_MAX_PLANS = 256,
    ABI_MAX_CODE = 1024, // instructions of one launch expression
    ABI_MAX_STACK = 64,
    ABI_MAX_NAME = 255,
    ABI_MAX_SIZE = 1 << 24, // value of an attention's sizes, and of |q_offset|
};

typedef enum AbiDtype {
#define ABI_DTYPE(e, name, bytes) ABI_##e,
#include "dtypes.def"
#undef ABI_DTYPE
    ABI_DTYPE_COUNT
} AbiDtype;

typedef enum AbiRole {
#define ABI_ROLE(e, ...) ABI_ROLE_##e,
#include "abi_roles.def"
#undef ABI_ROLE
    ABI_ROLE_COUNT
} AbiRole;

typedef enum AbiOp {
#define ABI_OP(e, name, pops, operand) ABI_OP_##e,
#include "abi_ops.def"
#undef ABI_OP
    ABI_OP_COUNT
} AbiOp;

typedef enum AbiCode {
    ABI_CODE_HOST,
    ABI_CODE_PTX,
    ABI_CODE_HSACO,
    ABI_CODE_COUNT
} AbiCode; // what the kernels are
typedef enum AbiFamily { ABI_ATTENTION, ABI_RECURRENCE, ABI_FAMILY_COUNT } AbiFamily;
typedef enum AbiPhase {
    ABI_FWD,
    ABI_BWD,
    ABI_PART,
    ABI_COMBINE,
    ABI_PART_BWD,
    ABI_PIECE,
    ABI_PIECE_BWD,
    ABI_PHASE_COUNT
} AbiPhase;
// Where the rows of an attention's tensors lie: [B, heads, rows, columns]; the rows of all sequences after each other; keys in
// pages of a pool.
typedef enum AbiLayout {
    ABI_LAYOUT_DENSE,
    ABI_LAYOUT_RAGGED,
    ABI_LAYOUT_PAGED,
    ABI_LAYOUT_COUNT
} AbiLayout;

typedef struct AbiInsn {
    uint8_t op;  // AbiOp
    int64_t arg; // CONST: the value; SIZE: the index; otherwise 0
} AbiInsn;

typedef struct AbiExpr { // postfix; n = 0 where a field says it may be absent
    uint32_t n;
    AbiInsn *code;
} AbiExpr;

// The first sizes are those of the layout (abi_fixed_sizes; a recurrence's have no order where it is dense), then come the free ones, then
// derived ones.
enum { // dense
    ABI_SIZE_B,
    ABI_SIZE_H,
    ABI_SIZE_HKV,
    ABI_SIZE_SQ,
    ABI_SIZE_SK,
    ABI_SIZE_Q_OFFSET,
    ABI_SIZE_FREE
};
enum { // ragged and paged, behind B H Hkv
    ABI_SIZE_TQ = ABI_SIZE_SQ,
    ABI_SIZE_MAX_Q,
    ABI_SIZE_TK,                  // ragged
    ABI_SIZE_PAGES = ABI_SIZE_TK, // paged
    ABI_SIZE_PAGE,
    ABI_SIZE_TABLE,
    ABI_MOST_FIXED
};
enum { // of a recurrence, ragged: behind B H Hq Hk Hv
    ABI_RSIZE_TQ = 5,
    ABI_RSIZE_MAX_Q,
    ABI_RSIZE_SLOTS
};

typedef struct AbiSize {
    const char *name;
    AbiExpr def; // derived: over the sizes before it; absent: given by the tensors (an extent that
                 // is just this size) or the caller
} AbiSize;

enum AbiTensorFlag {
    ABI_BARE_Q = 1,   // right only where q_offset is 0: other launches are refused
    ABI_OPTIONAL = 2, // may be left out: the kernels then get a null pointer and strides of 0, and
                      // do not touch it
    ABI_ZEROED = 4,   // WORK, outputs: the runtime sets it to zero bytes before the launch's first
                      // kernel
    ABI_KEPT = 8,     // WORK: made of inputs alone; a caller may say that it still stands
    ABI_RESTORED =
        16, // ZEROED, one i32: each launch leaves it 0. The runtime may give a word of the
            // code's variable ABI_WORDS in its place, and zero nothing
    ABI_ROWS =
        32, // INPUT: rows of heads that must divide H; of keys, in other layouts than the dense one, Hkv
    ABI_TENSOR_FLAGS = 63,
};

#define ABI_WORDS "attn_words" // PTX: zeros, i32, as many as the code likes

typedef struct AbiTensor {
    const char *name;
    uint8_t role;  // AbiRole
    uint8_t dtype; // AbiDtype
    uint8_t flags; // AbiTensorFlag
    uint8_t rank;  // 0: a scalar argument (INPUT only)
    uint8_t align; // bytes, a power of two: the address and all strides must be multiples of it; 0:
                   // what the role asks for
    AbiExpr extent[ABI_MAX_RANK];
} AbiTensor;

typedef enum AbiArgKind {
    ABI_ARG_POINTER, // tensor: its address, 8 bytes
    ABI_ARG_STRIDE,  // tensor, dim (not the last, whose stride is 1): i64, in elements
    ABI_ARG_SIZE,    // index: a size, i32
    ABI_ARG_SCALAR,  // tensor of rank 0: f32 for float types and i8, i32 for i32 and bool
    ABI_ARG_MAP,     // index: one of the kernel's tensor maps; 128 bytes by value, 64-byte aligned
    ABI_ARG_INVERSE, // index: a size n, 0 <= x < 2^31: x / n is the high half of 2 * x * this (64 bits), which is 2^63 / n + 1; 0 for n < 1
    ABI_ARG_COUNT
} AbiArgKind;

typedef struct AbiArg {
    uint8_t kind;   // AbiArgKind
    uint8_t dim;    // STRIDE; otherwise 0
    uint16_t index; // which tensor, size or map
} AbiArg;

// A tensor map for the bulk copies of sm_90: made at launch from the tensor's address, extents and
// strides. The box is in the order of the tensor's dimensions; the hardware's coordinates are in
// the opposite one. Outside the tensor reads as 0.
typedef struct AbiMap {
    uint16_t tensor;
    uint8_t swizzle; // 0: none, 1: 32, 2: 64, 3: 128 bytes
    // 0; otherwise n: rows along dimension n - 1 are those of sequences, each of which ends where its last is. The map then has two further,
    // outermost coordinates: ABI_ENDS, and the row behind the sequence's last; row i of its `count` is ABI_ENDS - count + i.
    uint8_t ends;
    // The last dimension's may be several times what a swizzle holds: then each copy takes so many panels, one behind the other. The columns
    // of a panel are the innermost coordinate, and which panel is a further, outermost one.
    uint16_t box[ABI_MAX_MAP_RANK];
} AbiMap;

// A kernel runs over a linear grid of product(grid) tasks: blocks on a GPU (blockIdx.x), calls of a
// host function (docs/abi.md).
typedef struct AbiKernel {
    const char *symbol;
    uint32_t threads; // of a block; 1 on the host
    uint32_t shared;  // dynamic shared memory of a block, bytes
    uint32_t cluster; // blocks of a cluster; 1 for none; divides the grid
    uint32_t ngrid;
    AbiExpr grid[ABI_MAX_GRID];
    uint32_t nargs;
    AbiArg *args;
    uint32_t nmaps;
    AbiMap *maps;
} AbiKernel;

typedef struct AbiPlan {
    AbiExpr when; // absent: always. The first plan that holds is run; the last has none.
    uint32_t nkernels;
    uint16_t *kernels; // of this variant, run in order
} AbiPlan;

typedef struct AbiVariant {
    const char *name;
    uint8_t family; // AbiFamily
    uint8_t phase;  // AbiPhase
    uint8_t layout; // AbiLayout; of a recurrence not PAGED
    uint32_t page;  // PAGED: keys of a page; 0: any
    uint32_t D, Dv;
    uint32_t nsizes, ntensors, nkernels, nplans;
    AbiSize *sizes;
    AbiTensor *tensors;
    AbiKernel *kernels;
    AbiPlan *plans;
} AbiVariant;

typedef struct AbiMeta {
    uint8_t code;       // AbiCode
    uint8_t dtype;      // AbiDtype of q, k, v, o
    const char *target; // "sm_90a", "host"
    uint32_t nvariants;
    AbiVariant *variants;
    uint64_t code_bytes,
        code_sum; // of the code the metadata speaks for: PTX text, an object file (abi_seal);
                  // 0, 0 where it is not covered
    struct AbiBlock *blocks; // what abi_read allocated; NULL in the writer's
} AbiMeta;

int abi_dtype_bytes(AbiDtype t);
int abi_map_panels(const AbiMap *m, AbiDtype t,
                   int rank); // of a tensor of so many dimensions; 1: its columns are no panels
const char *abi_dtype_name(AbiDtype t);
const char *abi_role_name(AbiRole r);
const char *abi_layout_name(AbiLayout layout);
bool abi_output(const AbiVariant *v, const AbiTensor *t);   // written by the variant's kernels
int abi_tensor_align(const AbiMeta *m, const AbiTensor *t); // bytes
bool abi_dtype_float(AbiDtype t);

// The first sizes of a variant: how many; for the writer, fills s with as many. Names are static.
uint32_t abi_fixed_count(AbiFamily family, AbiLayout layout);
void abi_fixed_sizes(AbiFamily family, AbiLayout layout, AbiSize *s);
bool abi_is_index(const AbiTensor *t); // says where a layout's rows, or a sequence's state, lie

// Everything that must hold of an AbiMeta but what the checksum covers. abi_write and abi_read both
// end with it.
const char *abi_verify(const AbiMeta *m);

// *out is malloc'ed. m->code_bytes and code_sum are written as they are.
const char *abi_write(const AbiMeta *m, uint8_t **out, size_t *n);
// On success the caller gives m back with abi_free; on failure m is empty. `bytes` need not outlive
// the call.
const char *abi_read(AbiMeta *m, const void *bytes, size_t n);
void abi_free(AbiMeta *m);
// How long the metadata at `bytes` says it is (for a global whose size is not known); reads its
// first 16 bytes.
size_t abi_bytes(const void *bytes);

// Whether a kernel only makes kept workspace (a tile map): it touches nothing else but inputs.
static inline bool abi_is_of_size(const AbiArg *a) {
    return a->kind == ABI_ARG_SIZE || a->kind == ABI_ARG_INVERSE;
}
bool abi_makes_kept(const AbiVariant *v, const AbiKernel *k);

// The value of a verified expression; false when it overflows.
bool abi_eval(const AbiExpr *e, const int64_t *sizes, int64_t workers, int64_t *out);

uint64_t abi_fnv(const void *bytes, size_t n); // FNV-1a, 64 bits

// Where in metadata its checksum, code_bytes and code_sum stand: what abi_set_code writes.
enum { ABI_SUM_AT = 16, ABI_SUM_END = 40 };
void abi_set_code(void *meta, size_t n, uint64_t code_bytes, uint64_t code_sum);

// ---- containers (abi_file.c)

// PTX with the metadata as comment lines at its end. Sets m->code_bytes and code_sum. *out is
// malloc'ed and NUL-terminated (the NUL is not counted).
const char *abi_ptx(const char *ptx, size_t n, AbiMeta *m, char **out, size_t *out_n);

// Writes into an object file's metadata the size and the checksum of the whole file, so that no
// byte of it can change unseen. In place.
const char *abi_seal(void *file, size_t n);

// Holds the metadata in .o, .so and .hsaco; the global in it is called <variant>_attn_meta.
#define ABI_ELF_SECTION ".attn"

// Finds and reads the metadata of a whole artifact: PTX text, an ELF file, or bare metadata. code
// and code_n: what a driver loads (the PTX text without the metadata, the whole ELF file, nothing),
// pointing into `file`.
const char *abi_find(AbiMeta *m, const void *file, size_t n, const void **code, size_t *code_n);

#endif
