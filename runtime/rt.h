// rt.h: what the runtime's files share. Not installed.
#ifndef RUNTIME_RT_H
#define RUNTIME_RT_H

#include "abi.h"
#include "attn.h"
#include <pthread.h>

// Fills *error (may be NULL) and returns status, so that `return rt_fail(...)` reads well.
__attribute__((format(printf, 3, 4))) attn_status rt_fail(attn_error *error, attn_status status,
                                                          const char *format, ...);
attn_status rt_ok(attn_error *error);

// ---- memory

typedef struct RtPlace { // where a tensor's elements lie
    uint64_t address;
    int bytes, rank;                // of an element
    const int64_t *extent, *stride; // elements
} RtPlace;

bool rt_overlap(const RtPlace *a, const RtPlace *b);

// ---- devices: one object per device in use, and a table of what it can do

typedef struct RtDevice RtDevice;

typedef struct RtMap { // a tensor map to be made for a launch
    const AbiMap *map;
    uint64_t address;
    AbiDtype dtype;
    int rank;
    const int64_t *extent, *stride; // elements; outermost first
} RtMap;

typedef struct RtArgs { // of one kernel, in its argument list's order
    uint32_t n;
    bool follows; // another kernel of the same launch
    RtMap map[ABI_MAX_MAPS];
    uint64_t slot[ABI_MAX_ARGS]; // a MAP's is unused; i32 and f32 in the low bytes
} RtArgs;

typedef struct RtRows { // of memory: so many bytes, `pitch` apart
    char *at;
    size_t width, pitch, rows;
} RtRows;

typedef struct RtOps {
    void (*dispose)(RtDevice *d);
    // Modules: the loaded code of one artifact; kernel k is the k-th of all its variants.
    attn_status (*load)(RtDevice *d, const AbiMeta *m, const void *code, size_t n, void **module,
                        attn_error *error);
    void (*unload)(RtDevice *d, void *module);
    // Loads the kernel, where that is put off until it is wanted: before its first launch. NULL: it
    // never is.
    attn_status (*ready)(RtDevice *d, void *module, uint32_t k, const AbiKernel *kernel,
                         attn_error *error);
    attn_status (*launch)(RtDevice *d, void *module, uint32_t k, const AbiKernel *kernel,
                          const RtArgs *args, int64_t grid, void *stream, attn_error *error);
    attn_status (*zero)(RtDevice *d, void *module, const RtRows *r, void *stream,
                        attn_error *error);
    // Four bytes of zeros that no launch has beside this one, which leaves them so; 0: there are none.
    // NULL: never.
    uint64_t (*word)(RtDevice *d, void *module, void *stream);
    // For tools (device.h); stream 0 throughout. Copies have finished when they return.
    attn_status (*alloc)(RtDevice *d, size_t n, void **out, attn_error *error);
    void (*release)(RtDevice *d, void *p);
    attn_status (*copy_in)(RtDevice *d, void *to, const void *from, size_t n, attn_error *error);
    attn_status (*copy_out)(RtDevice *d, void *to, const void *from, size_t n, attn_error *error);
    attn_status (*copy_within)(RtDevice *d, void *to, const void *from, size_t n,
                               attn_error *error); // queued
    attn_status (*fill)(RtDevice *d, void *p, int byte, size_t n, attn_error *error);
    attn_status (*sync)(RtDevice *d, attn_error *error);
    attn_status (*mark)(RtDevice *d, void **event,
                        attn_error *error); // makes *event where it is NULL, and records it
    attn_status (*elapsed)(RtDevice *d, void *from, void *to, float *ms,
                           attn_error *error); // waits for `to`
    void (*drop)(RtDevice *d, void *event);
    attn_status (*describe)(RtDevice *d, char *name, size_t n, attn_error *error);
} RtOps;

struct RtDevice {
    const RtOps *ops;
    RtDevice *next;
    attn_device id;
    int workers;
    const char *target; // the best of attnc's targets that it runs: "sm_90a"
};

typedef struct RtPool RtPool;       // pool.c
typedef struct GpuDriver GpuDriver; // gpu.h

struct attn_context {
    pthread_mutex_t lock; // of what follows
    RtDevice *devices;
    RtPool *pool;
    GpuDriver *cuda, *hip;
};

// The device, opened when it is first asked for.
attn_status rt_device(attn_context *c, attn_device id, RtDevice **out, attn_error *error);
attn_status rt_host_open(attn_context *c, RtDevice **out, attn_error *error); // host.c
// gpu.c: ATTN_CUDA, ATTN_HIP
attn_status rt_gpu_open(attn_context *c, attn_device id, RtDevice **out, attn_error *error);
int rt_gpu_count(attn_context *c, attn_device_kind id);
void rt_gpu_close(GpuDriver *driver); // may be NULL

// Modules of host code: functions given, or looked up in a shared object (the path of a file).
attn_status rt_host_functions(const attn_host_kernel *kernels, size_t n, void **module,
                              attn_error *error);
attn_status rt_host_dlopen(const AbiMeta *m, const char *path, void **module, attn_error *error);

// pool.c: n threads with 8 MB stacks.
attn_status rt_pool(int n, RtPool **out, attn_error *error);
void rt_pool_free(RtPool *p);
int rt_pool_threads(const RtPool *p);
// Runs f over [0, n) in small pieces; returns when all are done. Calls from several threads take
// turns. In a forked child the first call starts the threads again.
attn_status rt_pool_run(RtPool *p, attn_host_kernel f, const uint64_t *args, int64_t n,
                        attn_error *error);

// ---- artifacts and calls

struct attn_artifact {
    attn_context *context;
    RtDevice *device; // NULL: opened for its metadata
    void *module;
    AbiMeta meta;
};

// A call that has been checked.
typedef struct RtBound {
    const attn_artifact *artifact;
    const AbiVariant *variant;
    uint32_t first; // the number of the variant's first kernel among those of all variants
    const AbiPlan *plan;
    int64_t size[ABI_MAX_SIZES];
    uint64_t value[ABI_MAX_TENSORS]; // a tensor's address, a scalar's bits; WORK: offset in the
                                     // workspace until it is given
    int64_t extent[ABI_MAX_TENSORS][ABI_MAX_RANK];
    int64_t stride[ABI_MAX_TENSORS][ABI_MAX_RANK];
    size_t work_bytes[ABI_MAX_TENSORS]; // WORK tensors that the plan uses; otherwise 0
    size_t workspace;
    bool keep_map; // kernels that make kept workspace are left out
} RtBound;

typedef enum RtNeed {
    RT_SIZES,
    RT_ALL
} RtNeed; // sizes and shapes only, or everything a launch needs

// bind.c: matches a call with a variant, takes the sizes from it, and checks.
attn_status rt_bind(const attn_artifact *a, const attn_call *call, RtNeed need, RtBound *out,
                    attn_error *error);
// The value of an expression at these sizes.
attn_status rt_eval(const RtBound *b, const AbiExpr *e, const char *what, int64_t *out,
                    attn_error *error);

#endif
