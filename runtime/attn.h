// attn.h: the runtime of attnc. Loads artifacts, checks tensors against what the artifact says of
// itself, launches.
//
// Needs libc, pthread and dl; a GPU's driver is opened when a GPU is asked for. No mutable globals:
// everything belongs to an attn_context. Objects may be used from several threads at once, but for
// opening and closing them.
//
//     attn_context *c = attn_create();
//     attn_artifact *a;
//     attn_error e;
//     attn_device gpu = {ATTN_CUDA, 0};
//     if (attn_open_file(c, "relu.ptx", gpu, &a, &e)) return puts(e.message);
//     attn_tensor t[] = {{"q", q, ATTN_BF16, 4, q_shape, q_strides, gpu}, ... "k", "v", "o"};
//     attn_call call = {.tensors = t, .ntensors = 4, .stream = stream};
//     if (attn_launch(a, &call, &e)) ...
//
// Every function that can fail returns an attn_status (0 is success) and fills *error, which may be
// NULL. Nothing prints, aborts or exits.
#ifndef ATTN_H
#define ATTN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATTN_API __attribute__((visibility("default")))

typedef enum attn_status {
    ATTN_OK = 0,
    ATTN_ERROR_CALL,     // tensors, sizes or arguments do not fit the artifact
    ATTN_ERROR_ARTIFACT, // not an artifact, damaged, of another version, or not for this device
    ATTN_ERROR_DEVICE,   // no driver, no device, or the device failed
    ATTN_ERROR_SYSTEM    // a file, or memory
} attn_status;

typedef struct attn_error {
    attn_status status;
    char message[480]; // one line, without a full stop: "k: dimension 3 is 32, expected 64"
} attn_error;

typedef enum attn_dtype { // numbers of the artifact
    ATTN_F32,
    ATTN_F16,
    ATTN_BF16,
    ATTN_I32,
    ATTN_BOOL, // one byte, 0 or 1
    ATTN_E4M3,
    ATTN_E5M2,
    ATTN_I8
} attn_dtype;

typedef enum attn_device_kind { // DLPack's numbers
    ATTN_NO_DEVICE = 0,
    ATTN_CPU = 1,
    ATTN_CUDA = 2,
    ATTN_HIP = 10
} attn_device_kind;

typedef struct attn_device {
    attn_device_kind kind;
    int number; // 0 on the CPU
} attn_device;

typedef enum attn_phase {
    ATTN_FWD,
    ATTN_BWD,
    ATTN_PART,
    ATTN_COMBINE,
    ATTN_PART_BWD,
    ATTN_PIECE,
    ATTN_PIECE_BWD
} attn_phase;

// ---- contexts

typedef struct attn_context attn_context;

ATTN_API const char *attn_version(void);
ATTN_API attn_context *attn_create(void); // NULL: out of memory
// Every artifact of the context must have been closed.
ATTN_API void attn_destroy(attn_context *c);
// Threads that run host kernels; 0 (the default): as many as there are online processors this
// process may use. Not while a launch is in progress.
ATTN_API attn_status attn_set_threads(attn_context *c, int n, attn_error *error);

// ---- artifacts

typedef struct attn_artifact attn_artifact;

// bytes: a whole .ptx or .hsaco, copied. ATTN_NO_DEVICE: only what the attn_*_info functions and
// attn_shape need. On CUDA the code is loaded into the current context if that is one of this
// device, else into the device's primary one, each kernel before its first launch: the driver
// compiles it then, some tenths of a second, and keeps the result for other processes. A damaged
// artifact is refused before a device is touched.
ATTN_API attn_status attn_open(attn_context *c, const void *bytes, size_t n, attn_device device,
                               attn_artifact **out, attn_error *error);
// Also a shared object made from a host artifact (`cc -shared relu.o -o relu.so -lm`), on ATTN_CPU:
// that runs code of the file.
ATTN_API attn_status attn_open_file(attn_context *c, const char *path, attn_device device,
                                    attn_artifact **out, attn_error *error);

// A host kernel runs tasks [first, last) of its linear grid. args: one 8-byte slot per argument of
// the metadata, i32 and f32 in the low bytes. Tasks are independent: any split, any order, any
// thread.
typedef void (*attn_host_kernel)(const uint64_t *args, int64_t first, int64_t last);
// Kernels that are in memory already: linked in, or just compiled. meta: the metadata (its global
// is `<variant>_attn_meta`; n may be SIZE_MAX: its header says how long it is). kernels: those of
// all variants, in the metadata's order; they must outlive the artifact.
ATTN_API attn_status attn_open_host(attn_context *c, const void *meta, size_t n,
                                    const attn_host_kernel *kernels, size_t nkernels,
                                    attn_artifact **out, attn_error *error);
// Launches that have not finished keep using the code: synchronize first. A CUDA graph that captured
// a launch does so for as long as it is replayed.
ATTN_API void attn_close(attn_artifact *a);

// What an artifact holds. Texts live as long as it. Indices from 0; one past the end is
// ATTN_ERROR_CALL.
typedef struct attn_artifact_info {
    const char *target; // "sm_90a", "host"
    attn_dtype dtype;   // of q, k, v, o
    attn_device device;
    int variants;
    int workers; // threads of the host's pool, multiprocessors of the GPU
} attn_artifact_info;

typedef struct attn_variant_info {
    const char *name;
    attn_phase phase;
    int D, Dv;
    int sizes, tensors;
    int tile_map; // a launch begins by making a map of tiles, which may be kept (ATTN_KEEP_MAP)
} attn_variant_info;

typedef struct attn_size_info {
    const char *name;
    int given; // 1: by a tensor's shape or the call; 0: computed
} attn_size_info;

typedef struct attn_tensor_info {
    const char *name;
    // "q" "k" "v" "o" "input" "emit" "work" "do" "dq" "dk" "dv" "grad" "demit" "saved"; index tensors have their name;
    // of recurrences and parts "state0" "state" "dstate" "dstate0" "rows0" "rows"
    const char *role;
    attn_dtype dtype;
    int rank;     // 0: a scalar
    int output;   // written, not read
    int optional; // may be left out
} attn_tensor_info;

ATTN_API void attn_get_info(const attn_artifact *a, attn_artifact_info *out);
ATTN_API attn_status attn_get_variant(const attn_artifact *a, int variant, attn_variant_info *out,
                                      attn_error *error);
ATTN_API attn_status attn_get_size(const attn_artifact *a, int variant, int i, attn_size_info *out,
                                   attn_error *error);
ATTN_API attn_status attn_get_tensor(const attn_artifact *a, int variant, int i,
                                     attn_tensor_info *out, attn_error *error);

// ---- launching

// Layout dense: q [B, H, Sq, D], k [B, Hkv, Sk, D], v [B, Hkv, Sk, Dv], o [B, H, Sq, Dv], emitted rows
// [B, H, Sq] f32, inputs as declared. H is a multiple of Hkv. The last dimension is contiguous;
// others may have any strides. An output's elements do not overlap each other; one that overlaps another tensor is refused:
// only inputs may overlap (v as a part of k), and a recurrence's state may be state0, exactly. On a GPU
// address and strides of q, k, v, o are multiples of 16 bytes.
//
// Ragged: q [Tq, H, D], k [Tk, Hkv, D], o [Tq, H, Dv], and i32 tensors q_start [B + 1], kv_start [B + 1].
// Paged: q and o likewise, k [pages, page, Hkv, D], kv_len [B], page_table [B, table], and optionally
// q_start. Both: optionally q_offset [B]. A ragged recurrence: q [Tq, Hq, D] and k, v, o likewise, state0 and state [slots, H, D, Dv],
// optionally q_start [B + 1] and state_index [B], the slot of each sequence; without it there are B. They are tensors by name as others are, on the kernel's device,
// where they are read: whatever values they hold, nothing outside a tensor is touched. docs/serving.md
// tells more.
//
// A backward (ATTN_BWD) reads what the forward read, o, `do`, `dNAME` of each emit (zeros where nothing depends on it) and
// all tensors of role "saved" (saved0, saved1 ...: f32 [B, H, Sq], ragged [Tq, H]). The forward wrote these, if it was given
// them. It writes dq, dk, dv and `dNAME` of each `grad` input. A recurrence's reads no o and has no saved tensors; its dstate
// and dstate0 may be left out. docs/abi.md has a program.
typedef struct attn_tensor {
    const char *name;
    void *data; // may be NULL where there is no element; read only, unless it is an output
    attn_dtype dtype;
    int rank;
    const int64_t *shape;
    const int64_t *strides; // in elements; NULL: dense, row by row
    attn_device device;
} attn_tensor;

typedef struct attn_scalar { // a scalar input
    const char *name;
    double value; // i32, i8 and bool inputs take whole numbers in range
} attn_scalar;

// "q_offset" (dense; default max(Sk - Sq, 0)), "max_q" (ragged, paged: a hint for the most queries of a
// sequence), or a size that no tensor gives.
typedef struct attn_size {
    const char *name;
    int64_t value;
} attn_size;

// Flags of a call.
//
// ATTN_KEEP_MAP: the tile map of an earlier launch stands. Where a mask reads inputs (documents,
// block lists), a launch first works out in its workspace which tiles of keys each tile of queries
// sees. With this flag it does not: the last launch with this workspace was of the same artifact,
// variant, phase and sizes (addresses and strides may be others), nothing else has been written
// there since, and the inputs that the mask reads hold the same values where it reads them. Where
// that is not so, what the launch does is undefined. Of a variant without a map it says nothing.
enum { ATTN_KEEP_MAP = 1 };

typedef struct attn_call {
    const char *variant; // NULL: the artifact's only one
    attn_phase phase;
    const attn_tensor *tensors;
    size_t ntensors;
    const attn_scalar *scalars;
    size_t nscalars;
    const attn_size *sizes;
    size_t nsizes;
    void *stream;    // CUstream or hipStream_t; ignored on the CPU
    void *workspace; // on the artifact's device, 256-byte aligned, at least attn_workspace_bytes;
                     // free again when the launch has run, unless its map is to be kept
    size_t workspace_bytes;
    unsigned flags; // ATTN_KEEP_MAP, or 0
} attn_call;

// Bytes of workspace that a launch of this call takes; often 0. Outputs and all addresses may be
// left out.
ATTN_API attn_status attn_workspace_bytes(const attn_artifact *a, const attn_call *call,
                                          size_t *out, attn_error *error);
// The shape of a tensor, as the others imply: shape[0..*rank), at most 8. Tensors may be left out,
// the named one too.
ATTN_API attn_status attn_shape(const attn_artifact *a, const attn_call *call, const char *tensor,
                                int64_t *shape, int *rank, attn_error *error);
// Checks everything, loads the kernels that no launch took before, then queues them on the stream:
// otherwise it does not allocate or synchronize, and can be captured into a CUDA graph. On the CPU
// it returns when the kernels have run. After a failed check nothing has been queued. An empty
// launch (no row of o) succeeds; with Sk = 0 rows are written as rows without a key.
ATTN_API attn_status attn_launch(const attn_artifact *a, const attn_call *call, attn_error *error);

// A call that is checked and whose kernels are loaded once, and launched often. The tensors' memory
// must stay; names, shapes and strides need not.
typedef struct attn_prepared attn_prepared;
ATTN_API attn_status attn_prepare(const attn_artifact *a, const attn_call *call,
                                  attn_prepared **out, attn_error *error);
ATTN_API attn_status attn_launch_prepared(const attn_prepared *p, void *stream, attn_error *error);
ATTN_API void attn_free_prepared(attn_prepared *p);

#ifdef __cplusplus
}
#endif
#endif
