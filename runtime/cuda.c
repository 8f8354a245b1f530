// cuda.c: NVIDIA GPUs through the driver API, opened at run time.
//
// Each call that needs a context pushes it and pops it again, so that the caller's is never
// changed. A module lives in the context that was current when it was loaded, if that was one of
// its device, else in the device's primary context.
#include "cuda.h"
#include "rt.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct CudaDevice {
    RtDevice base;
    const CudaDriver *cu;
    int device;
    void *primary;
    int capability; // 10 * major + minor
    int shared;     // bytes of shared memory that a block can have
} CudaDevice;

typedef struct CudaModule {
    void *context, *module;
    void *function[];
} CudaModule;

enum { // CUdevice_attribute, CUfunction_attribute, CUjit_option, CUlaunchAttributeID
    DEVICE_MULTIPROCESSORS = 16,
    DEVICE_MAJOR = 75,
    DEVICE_MINOR = 76,
    DEVICE_SHARED_OPTIN = 97,
    FUNCTION_DYNAMIC_SHARED = 8,
    FUNCTION_NONPORTABLE_CLUSTER = 14,
    JIT_ERROR_LOG = 5,
    JIT_ERROR_LOG_BYTES = 6,
    LAUNCH_CLUSTER = 4,
    SHARED_WITHOUT_ASKING = 48 << 10,
    PORTABLE_CLUSTER = 8,
};

static attn_status failed(const CudaDriver *cu, int result, const char *what, attn_error *error) {
    const char *name = NULL, *text = NULL;
    if (cu->error_name(result, &name) || !name) name = "an unknown error";
    if (cu->error_string(result, &text) || !text) text = "";
    return rt_fail(error, ATTN_ERROR_DEVICE, "%s: %s (%d) %s", what, name, result, text);
}

// Returns from the enclosing function when a driver call fails.
#define TRY(cu, call, what)                                                                        \
    do {                                                                                           \
        int result_ = (cu)->call;                                                                  \
        if (result_) return failed((cu), result_, what, error);                                    \
    } while (0)

// ---- contexts

static attn_status enter(const CudaDriver *cu, void *context, attn_error *error) {
    TRY(cu, ctx_push(context), "making a CUDA context current");
    return ATTN_OK;
}

static void leave(const CudaDriver *cu) {
    void *context;
    cu->ctx_pop(&context);
}

static void *find_context(const CudaDevice *d) {
    void *current = NULL;
    int device;
    if (d->cu->ctx_current(&current) == 0 && current && d->cu->ctx_device(&device) == 0 &&
        device == d->device)
        return current;
    return d->primary;
}

// ---- modules

static void drop_module(const CudaDriver *cu, CudaModule *m) {
    if (m->module &&
        cu->ctx_push(m->context) ==
            0) { // fails where the application has destroyed the context: nothing is left then
        cu->module_unload(m->module);
        leave(cu);
    }
    free(m);
}

static void unload(RtDevice *d, void *module) { drop_module(((CudaDevice *)d)->cu, module); }

static attn_status prepare_function(CudaDevice *d, const AbiKernel *k, CudaModule *m, void **out,
                                    attn_error *error) {
    const CudaDriver *cu = d->cu;
    if (k->shared > (unsigned)d->shared)
        return rt_fail(error, ATTN_ERROR_ARTIFACT,
                       "%s takes %u bytes of shared memory, this GPU has %d", k->symbol, k->shared,
                       d->shared);
    if (k->cluster > 1 && (!cu->launch_ex || d->capability < 90))
        return rt_fail(error, ATTN_ERROR_ARTIFACT,
                       "%s wants clusters, which this GPU or its driver does not have", k->symbol);
    if (k->nmaps && (!cu->map_encode || d->capability < 90))
        return rt_fail(error, ATTN_ERROR_ARTIFACT,
                       "%s wants tensor maps, which this GPU or its driver does not have",
                       k->symbol);
    TRY(cu, module_function(out, m->module, k->symbol), k->symbol);
    if (k->shared > SHARED_WITHOUT_ASKING)
        TRY(cu, function_set(*out, FUNCTION_DYNAMIC_SHARED, (int)k->shared), k->symbol);
    if (k->cluster > PORTABLE_CLUSTER)
        TRY(cu, function_set(*out, FUNCTION_NONPORTABLE_CLUSTER, 1), k->symbol);
    return ATTN_OK;
}

static attn_status load_code(CudaDevice *d, const char *text, CudaModule *m, attn_error *error) {
    char log[320] = "";
    int options[] = {JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES};
    void *values[] = {log, (void *)(uintptr_t)sizeof log};
    int result = d->cu->module_load(&m->module, text, 2, options, values);
    if (result == 0) return ATTN_OK;
    m->module = NULL;
    log[sizeof log - 1] = 0;
    for (char *c = log; *c; c++)
        if (*c == '\n') *c = ' ';
    failed(d->cu, result, "loading the PTX", error);
    if (error && log[0]) {
        size_t n = strlen(error->message);
        snprintf(error->message + n, sizeof error->message - n, ": %s", log);
    }
    return ATTN_ERROR_DEVICE;
}

static attn_status fill_module(CudaDevice *d, const AbiMeta *meta, const char *text, CudaModule *m,
                               attn_error *error) {
    attn_status status = load_code(d, text, m, error);
    uint32_t n = 0;
    for (uint32_t i = 0; !status && i < meta->nvariants; i++)
        for (uint32_t k = 0; !status && k < meta->variants[i].nkernels; k++, n++)
            status = prepare_function(d, &meta->variants[i].kernels[k], m, &m->function[n], error);
    return status;
}

// "sm_90a" runs on 9.0 only, "sm_80" on 8.0 and everything later.
static attn_status check_target(const CudaDevice *d, const char *target, attn_error *error) {
    int capability, end = 0;
    if (sscanf(target, "sm_%d%n", &capability, &end) != 1)
        return rt_fail(error, ATTN_ERROR_ARTIFACT, "the artifact is for %s, which is no NVIDIA GPU",
                       target);
    bool only = target[end] == 'a';
    if (only ? d->capability == capability : d->capability >= capability) return ATTN_OK;
    return rt_fail(error, ATTN_ERROR_ARTIFACT,
                   "the artifact is for %s, this GPU is sm_%d: compile it with --target=%s", target,
                   d->capability, d->base.target);
}

static attn_status load(RtDevice *base, const AbiMeta *meta, const void *code, size_t n,
                        void **module, attn_error *error) {
    CudaDevice *d = (CudaDevice *)base;
    uint32_t kernels = 0;
    attn_status status = check_target(d, meta->target, error);
    if (status) return status;
    for (uint32_t i = 0; i < meta->nvariants; i++) kernels += meta->variants[i].nkernels;
    CudaModule *m = calloc(1, sizeof *m + kernels * sizeof m->function[0]);
    char *text = malloc(n + 1); // the driver wants a NUL after it
    if (!m || !text) {
        free(m);
        free(text);
        return rt_fail(error, ATTN_ERROR_SYSTEM, "out of memory");
    }
    memcpy(text, code, n);
    text[n] = 0;
    m->context = find_context(d);
    status = enter(d->cu, m->context, error);
    if (!status) {
        status = fill_module(d, meta, text, m, error);
        leave(d->cu);
    }
    free(text);
    if (status)
        drop_module(d->cu, m);
    else
        *module = m;
    return status;
}

// ---- launching

static int map_type(AbiDtype t) { // CUtensorMapDataType; bytes where only their number matters
    enum { UINT8 = 0, INT32 = 3, FLOAT16 = 6, FLOAT32 = 7, BFLOAT16 = 9 };
    switch (t) {
    case ABI_F32: return FLOAT32;
    case ABI_F16: return FLOAT16;
    case ABI_BF16: return BFLOAT16;
    case ABI_I32: return INT32;
    case ABI_BOOL:
    case ABI_E4M3:
    case ABI_E5M2:
    case ABI_I8:
    case ABI_DTYPE_COUNT: break;
    }
    return UINT8;
}

// The driver's order is the innermost dimension first, and the innermost one has no stride.
static int encode_map(const CudaDriver *cu, const RtMap *m, CudaMap *out) {
    enum { PROMOTE_256 = 3 };
    uint64_t extent[ABI_MAX_MAP_RANK], stride[ABI_MAX_MAP_RANK],
        bytes = (uint64_t)abi_dtype_bytes(m->dtype);
    uint32_t box[ABI_MAX_MAP_RANK], step[ABI_MAX_MAP_RANK];
    *out = (CudaMap){0};
    for (int d = 0; d < m->rank; d++) {
        int from = m->rank - 1 - d;
        if (m->extent[from] == 0) return 0; // nothing is ever copied from an empty tensor
        extent[d] = (uint64_t)m->extent[from];
        box[d] = m->map->box[from];
        step[d] = 1;
        if (d == 0) continue;
        stride[d - 1] = (uint64_t)m->stride[from] * bytes;
        if (extent[d] == 1)
            stride[d - 1] = 16; // of no effect, but the driver wants one that is aligned
    }
    return cu->map_encode(out, map_type(m->dtype), (uint32_t)m->rank, (void *)(uintptr_t)m->address,
                          extent, stride, box, step, 0, m->map->swizzle, PROMOTE_256, 0);
}

static int launch_cluster(const CudaDriver *cu, void *function, const AbiKernel *k, int64_t grid,
                          void *stream, void **argv) {
    CudaAttribute cluster = {.id = LAUNCH_CLUSTER, .cluster = {k->cluster, 1, 1}};
    CudaLaunch config = {
        .grid = {(unsigned)grid, 1, 1},
        .block = {k->threads, 1, 1},
        .shared = k->shared,
        .stream = stream,
        .attributes = &cluster,
        .nattributes = 1,
    };
    return cu->launch_ex(&config, function, argv, NULL);
}

// Pointers to the arguments' values; tensor maps are made in `maps`.
static attn_status arguments(const CudaDriver *cu, const AbiKernel *k, const RtArgs *args,
                             CudaMap *maps, void **argv, attn_error *error) {
    for (uint32_t i = 0; i < k->nmaps; i++) {
        int result = encode_map(cu, &args->map[i], &maps[i]);
        if (result) return failed(cu, result, "making a tensor map", error);
    }
    for (uint32_t a = 0; a < args->n; a++) // little-endian: the low bytes come first
        argv[a] = k->args[a].kind == ABI_ARG_MAP ? (void *)&maps[k->args[a].index]
                                                 : (void *)&args->slot[a];
    return ATTN_OK;
}

static attn_status launch(RtDevice *base, void *module, uint32_t i, const AbiKernel *k,
                          const RtArgs *args, int64_t grid, void *stream, attn_error *error) {
    const CudaDriver *cu = ((CudaDevice *)base)->cu;
    CudaModule *m = module;
    CudaMap maps[ABI_MAX_MAPS];
    void *argv[ABI_MAX_ARGS], *current = NULL;
    bool there = cu->ctx_current(&current) == 0 && current == m->context;
    attn_status status = there ? ATTN_OK : enter(cu, m->context, error);
    if (status) return status;
    status = arguments(cu, k, args, maps, argv, error); // tensor maps, too, want the context
    int result = 0;
    if (!status && k->cluster > 1)
        result = launch_cluster(cu, m->function[i], k, grid, stream, argv);
    else if (!status)
        result = cu->launch(m->function[i], (unsigned)grid, 1, 1, k->threads, 1, 1, k->shared,
                            stream, argv, NULL);
    if (!there) leave(cu);
    if (status) return status;
    return result ? failed(cu, result, k->symbol, error) : ATTN_OK;
}

static attn_status zero(RtDevice *base, void *module, void *p, size_t n, void *stream,
                        attn_error *error) {
    const CudaDriver *cu = ((CudaDevice *)base)->cu;
    attn_status status = enter(cu, ((CudaModule *)module)->context, error);
    if (status) return status;
    int result = cu->fill_async((uint64_t)(uintptr_t)p, 0, n, stream);
    leave(cu);
    return result ? failed(cu, result, "zeroing the workspace", error) : ATTN_OK;
}

// ---- tools: everything in the context that a module would be loaded into, and on its default
// stream

// Runs a driver call in that context.
#define IN_CONTEXT(base, call, what)                                                               \
    do {                                                                                           \
        CudaDevice *d_ = (CudaDevice *)(base);                                                     \
        attn_status status_ = enter(d_->cu, find_context(d_), error);                              \
        if (status_) return status_;                                                               \
        int result_ = d_->cu->call;                                                                \
        leave(d_->cu);                                                                             \
        if (result_) return failed(d_->cu, result_, what, error);                                  \
    } while (0)

static uint64_t address(const void *p) { return (uint64_t)(uintptr_t)p; }

static attn_status alloc(RtDevice *d, size_t n, void **out, attn_error *error) {
    uint64_t p = 0;
    IN_CONTEXT(d, alloc(&p, n ? n : 1), "allocating GPU memory");
    *out = (void *)(uintptr_t)p;
    return ATTN_OK;
}

static attn_status release_memory(RtDevice *d, void *p, attn_error *error) {
    IN_CONTEXT(d, release(address(p)), "freeing GPU memory");
    return ATTN_OK;
}

static void release(RtDevice *d, void *p) { (void)release_memory(d, p, NULL); }

static attn_status copy_in(RtDevice *d, void *to, const void *from, size_t n, attn_error *error) {
    if (n) IN_CONTEXT(d, copy_in(address(to), from, n), "copying to the GPU");
    return ATTN_OK;
}

static attn_status copy_out(RtDevice *d, void *to, const void *from, size_t n, attn_error *error) {
    if (n) IN_CONTEXT(d, copy_out(to, address(from), n), "copying from the GPU");
    return ATTN_OK;
}

static attn_status copy_within(RtDevice *d, void *to, const void *from, size_t n,
                               attn_error *error) {
    if (n)
        IN_CONTEXT(d, copy_within(address(to), address(from), n, NULL), "copying inside the GPU");
    return ATTN_OK;
}

static attn_status finish(RtDevice *d, attn_error *error) {
    IN_CONTEXT(d, ctx_sync(), "waiting for the GPU");
    return ATTN_OK;
}

static attn_status fill(RtDevice *d, void *p, int byte, size_t n, attn_error *error) {
    if (n) IN_CONTEXT(d, fill(address(p), (unsigned char)byte, n), "filling GPU memory");
    return finish(d, error);
}

static attn_status mark(RtDevice *d, void **event, attn_error *error) {
    if (!*event) IN_CONTEXT(d, event_create(event, 0), "making an event");
    IN_CONTEXT(d, event_record(*event, NULL), "recording an event");
    return ATTN_OK;
}

static attn_status elapsed(RtDevice *d, void *from, void *to, float *ms, attn_error *error) {
    IN_CONTEXT(d, event_sync(to), "waiting for the GPU");
    IN_CONTEXT(d, event_elapsed(ms, from, to), "reading an event");
    return ATTN_OK;
}

static attn_status drop_event(RtDevice *d, void *event, attn_error *error) {
    IN_CONTEXT(d, event_destroy(event), "dropping an event");
    return ATTN_OK;
}

static void drop(RtDevice *d, void *event) { (void)drop_event(d, event, NULL); }

static attn_status describe(RtDevice *base, char *name, size_t n, attn_error *error) {
    CudaDevice *d = (CudaDevice *)base;
    TRY(d->cu, device_name(name, (int)n, d->device), "asking for the GPU's name");
    return ATTN_OK;
}

static void dispose(RtDevice *base) {
    CudaDevice *d = (CudaDevice *)base;
    d->cu->primary_release(d->device);
    free(d);
}

static const RtOps CUDA = {
    .name = "cuda",
    .dispose = dispose,
    .load = load,
    .unload = unload,
    .launch = launch,
    .zero = zero,
    .alloc = alloc,
    .release = release,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .copy_within = copy_within,
    .fill = fill,
    .sync = finish,
    .mark = mark,
    .elapsed = elapsed,
    .drop = drop,
    .describe = describe,
};

// ---- opening

static attn_status find_entries(CudaDriver *cu, attn_error *error) {
    static const struct {
        const char *symbol;
        size_t at;
        bool needed;
    } entry[] = {
#define CU(name, symbol, parameters) {symbol, offsetof(CudaDriver, name), true},
#define CU_LATER(name, symbol, parameters) {symbol, offsetof(CudaDriver, name), false},
#include "cuda_driver.def"
#undef CU
#undef CU_LATER
    };
    for (size_t i = 0; i < sizeof entry / sizeof entry[0]; i++) {
        void *p = dlsym(cu->library, entry[i].symbol);
        if (!p && entry[i].needed)
            return rt_fail(error, ATTN_ERROR_DEVICE, "the NVIDIA driver is too old: it has no %s",
                           entry[i].symbol);
        memcpy((char *)cu + entry[i].at, &p, sizeof p);
    }
    return ATTN_OK;
}

void rt_cuda_dispose(CudaDriver *cu) {
    if (!cu) return;
    if (cu->library) dlclose(cu->library);
    free(cu);
}

static attn_status open_driver(attn_context *c, attn_error *error) {
    static const char none[] = "there is no NVIDIA driver here (libcuda.so.1): use --device=cpu";
    if (c->cuda) return ATTN_OK;
    CudaDriver *cu = calloc(1, sizeof *cu);
    if (!cu) return rt_fail(error, ATTN_ERROR_SYSTEM, "out of memory");
    cu->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    attn_status status =
        cu->library ? find_entries(cu, error) : rt_fail(error, ATTN_ERROR_DEVICE, "%s", none);
    if (status)
        rt_cuda_dispose(cu);
    else
        c->cuda = cu;
    return status;
}

static attn_status count_devices(attn_context *c, int *n, attn_error *error) {
    *n = 0;
    attn_status status = open_driver(c, error);
    if (status) return status;
    int result = c->cuda->init(0);
    if (!result) result = c->cuda->device_count(n);
    if (!result && *n > 0) return ATTN_OK;
    const char *name = NULL;
    if (!result || c->cuda->error_name(result, &name) || !name) name = "no device";
    *n = 0;
    return rt_fail(error, ATTN_ERROR_DEVICE, "there is no NVIDIA GPU here (%s): use --device=cpu",
                   name);
}

int rt_cuda_count(attn_context *c) {
    int n;
    pthread_mutex_lock(&c->lock);
    count_devices(c, &n, NULL);
    pthread_mutex_unlock(&c->lock);
    return n;
}

static attn_status read_device(CudaDevice *d, int number, attn_error *error) {
    const CudaDriver *cu = d->cu;
    int major, minor;
    TRY(cu, device_get(&d->device, number), "opening the GPU");
    TRY(cu, device_attribute(&d->base.workers, DEVICE_MULTIPROCESSORS, d->device),
        "asking the GPU");
    TRY(cu, device_attribute(&major, DEVICE_MAJOR, d->device), "asking the GPU");
    TRY(cu, device_attribute(&minor, DEVICE_MINOR, d->device), "asking the GPU");
    TRY(cu, device_attribute(&d->shared, DEVICE_SHARED_OPTIN, d->device), "asking the GPU");
    d->capability = 10 * major + minor;
    d->base.target = d->capability == 90 ? "sm_90a" : "sm_80";
    if (d->capability < 80)
        return rt_fail(error, ATTN_ERROR_DEVICE,
                       "cuda:%d is sm_%d, and sm_80 is the least: use --device=cpu", number,
                       d->capability);
    TRY(cu, primary_retain(&d->primary, d->device), "opening the GPU");
    return ATTN_OK;
}

attn_status rt_cuda_open(attn_context *c, int number, RtDevice **out, attn_error *error) {
    int n;
    attn_status status = count_devices(c, &n, error);
    if (status) return status;
    if (number < 0 || number >= n)
        return rt_fail(error, ATTN_ERROR_DEVICE, "there is no cuda:%d, the last is cuda:%d", number,
                       n - 1);
    CudaDevice *d = calloc(1, sizeof *d);
    if (!d) return rt_fail(error, ATTN_ERROR_SYSTEM, "out of memory");
    d->base.ops = &CUDA;
    d->cu = c->cuda;
    status = read_device(d, number, error);
    if (status)
        free(d);
    else
        *out = &d->base;
    return status;
}
