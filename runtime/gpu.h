// gpu.h: a GPU's driver as a table of functions, filled by dlopen or by a test, and what differs
// between the drivers. gpu.c is the device; cuda.c and hip.c hold what is NVIDIA's and AMD's.
#ifndef RUNTIME_GPU_H
#define RUNTIME_GPU_H

#include "rt.h"

typedef struct CudaAttribute { // CUlaunchAttribute
    int id;
    char pad[4];
    union {
        struct {
            unsigned x, y, z;
        } cluster;
        int early;
        char room[64];
    };
} CudaAttribute;

typedef struct CudaLaunch { // CUlaunchConfig
    unsigned grid[3], block[3], shared;
    void *stream;
    CudaAttribute *attributes;
    unsigned nattributes;
} CudaLaunch;

typedef struct CudaMap { // CUtensorMap
    _Alignas(64) uint64_t word[16];
} CudaMap;

struct GpuDriver {
    void *library; // of dlopen, or NULL
#define GPU(name, cuda, hip, parameters) int(*name) parameters;
#define CUDA(name, symbol, parameters) int(*name) parameters;
#define CUDA_LATER CUDA
#define HIP CUDA
#define HIP_LATER CUDA
#define HIP_TEXT(name, symbol, parameters) const char *(*name)parameters;
#include "gpu_driver.def"
#undef GPU
#undef CUDA
#undef CUDA_LATER
#undef HIP
#undef HIP_LATER
#undef HIP_TEXT
};

typedef struct GpuDevice {
    RtDevice base;
    const struct GpuKind *kind;
    const GpuDriver *driver;
    int device;
    int shared;           // bytes of shared memory that a block can have
    int capability;       // CUDA: 10 * major + minor
    char arch[32];        // HIP: "gfx942"
    pthread_mutex_t lock; // of what follows
    void *primary;        // CUDA: the primary context, once it is wanted
} GpuDevice;

typedef struct GpuScope { // what enter changed, for leave
    bool changed;
    int device;
} GpuScope;

// A driver's own ways. A context is where modules and memory live: CUDA's, or the device.
typedef struct GpuKind {
    const char *name, *maker;   // "cuda", "NVIDIA"
    const char *libraries[6];   // to look for, in this order
    const char *none, *too_old; // what is said without one, or of one that lacks a symbol
    const char *loading;        // "loading the PTX"
    void (*texts)(const GpuDriver *g, int result, const char **name, const char **text);
    // The device's facts: target, workers, shared and its own.
    attn_status (*read)(GpuDevice *d, int number, attn_error *error);
    void (*forget)(GpuDevice *d);
    attn_status (*context)(GpuDevice *d, void **out, attn_error *error);
    int (*enter)(const GpuDriver *g, void *context, GpuScope *scope);
    void (*leave)(const GpuDriver *g, const GpuScope *scope);
    // Whether an artifact's target runs here, and a kernel; what the latter asks for.
    attn_status (*fits)(const GpuDevice *d, const char *target, attn_error *error);
    attn_status (*takes)(const GpuDevice *d, const AbiKernel *k, attn_error *error);
    attn_status (*prepare)(GpuDevice *d, const AbiKernel *k, void *function, attn_error *error);
    // The code with one kernel only, malloc'ed, to be loaded when that is wanted; NULL: code is
    // loaded as a whole, when it is opened.
    char *(*alone)(const char *code, size_t n, const char *symbol);
    // A kernel that has tensor maps, or clusters or an early launch (beside the end of the kernel before it); NULL: there are none.
    attn_status (*maps)(const GpuDriver *g, const AbiKernel *k, const RtArgs *args, CudaMap *out,
                        attn_error *error);
    int (*launch_ex)(const GpuDriver *g, void *function, const AbiKernel *k, bool early,
                     int64_t grid, void *stream, void **argv);
} GpuKind;

extern const GpuKind rt_cuda, rt_hip;
const char *rt_cuda_target(int capability); // what suits it best; NULL: nothing does

// words.c: a module's words that launches leave 0. NULL: it has none, or its driver cannot tell.
typedef struct GpuWords GpuWords;
GpuWords *rt_words(const GpuDriver *g, void *module);
void rt_words_free(GpuWords *w);
uint64_t rt_word(const GpuDriver *g, GpuWords *w, void *stream); // 0: none for this launch

// A driver's error as ours.
attn_status rt_gpu_failed(const GpuKind *kind, const GpuDriver *g, int result, const char *what,
                          attn_error *error);

// Returns from the enclosing function when a driver call fails.
#define RT_GPU_TRY(d, call, what)                                                                  \
    do {                                                                                           \
        int result_ = (d)->driver->call;                                                           \
        if (result_) return rt_gpu_failed((d)->kind, (d)->driver, result_, what, error);           \
    } while (0)

#endif
