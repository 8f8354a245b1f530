// cuda.c: what is NVIDIA's of a GPU (gpu.h): contexts, which PTX runs where, tensor maps, clusters.
#include "gpu.h"
#include "ptx.h"
#include <stdio.h>

enum { // CUdevice_attribute, CUfunction_attribute, CUlaunchAttributeID
    DEVICE_MULTIPROCESSORS = 16,
    DEVICE_MAJOR = 75,
    DEVICE_MINOR = 76,
    DEVICE_SHARED_OPTIN = 97,
    FUNCTION_DYNAMIC_SHARED = 8,
    FUNCTION_NONPORTABLE_CLUSTER = 14,
    LAUNCH_CLUSTER = 4,
    LAUNCH_EARLY = 6, // programmatic stream serialization
    SHARED_WITHOUT_ASKING = 48 << 10,
    PORTABLE_CLUSTER = 8,
};

static void texts(const GpuDriver *g, int result, const char **name, const char **text) {
    if (g->error_name(result, name)) *name = NULL;
    if (g->error_string(result, text)) *text = NULL;
}

// ---- contexts

// The current one if it is of this device, else its primary one, which is made when it is first
// wanted: who only asks what the device is does not pay for that.
static attn_status context(GpuDevice *d, void **out, attn_error *error) {
    int device, result = 0;
    *out = NULL;
    if (d->driver->ctx_current(out) == 0 && *out && d->driver->ctx_device(&device) == 0 &&
        device == d->device)
        return ATTN_OK;
    pthread_mutex_lock(&d->lock);
    if (!d->primary) result = d->driver->primary_retain(&d->primary, d->device);
    *out = d->primary;
    pthread_mutex_unlock(&d->lock);
    return result ? rt_gpu_failed(d->kind, d->driver, result, "opening the GPU", error) : ATTN_OK;
}

static int enter(const GpuDriver *g, void *context, GpuScope *scope) {
    void *current = NULL;
    scope->changed = g->ctx_current(&current) || current != context;
    return scope->changed ? g->ctx_push(context) : 0;
}

static void leave(const GpuDriver *g, const GpuScope *scope) {
    void *context;
    if (scope->changed) g->ctx_pop(&context);
}

static void forget(GpuDevice *d) {
    if (d->primary) d->driver->primary_release(d->device);
}

// ---- what runs here

// "sm_90a" runs on 9.0 only, "sm_80" on 8.0 and everything later.
static attn_status fits(const GpuDevice *d, const char *target, attn_error *error) {
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

static attn_status takes(const GpuDevice *d, const AbiKernel *k, attn_error *error) {
    if (k->cluster > 1 && (!d->driver->launch_ex || d->capability < 90))
        return rt_fail(error, ATTN_ERROR_ARTIFACT,
                       "%s wants clusters, which this GPU or its driver does not have", k->symbol);
    if (k->nmaps && (!d->driver->map_encode || d->capability < 90))
        return rt_fail(error, ATTN_ERROR_ARTIFACT,
                       "%s wants tensor maps, which this GPU or its driver does not have",
                       k->symbol);
    return ATTN_OK;
}

static attn_status prepare(GpuDevice *d, const AbiKernel *k, void *function, attn_error *error) {
    if (k->shared > SHARED_WITHOUT_ASKING)
        RT_GPU_TRY(d, function_set(function, FUNCTION_DYNAMIC_SHARED, (int)k->shared), k->symbol);
    if (k->cluster > PORTABLE_CLUSTER)
        RT_GPU_TRY(d, function_set(function, FUNCTION_NONPORTABLE_CLUSTER, 1), k->symbol);
    return ATTN_OK;
}

const char *rt_cuda_target(int capability) {
    return capability == 90 ? "sm_90a" : capability >= 80 ? "sm_80" : NULL;
}

static attn_status read(GpuDevice *d, int number, attn_error *error) {
    int major, minor;
    RT_GPU_TRY(d, device_get(&d->device, number), "opening the GPU");
    RT_GPU_TRY(d, device_attribute(&d->base.workers, DEVICE_MULTIPROCESSORS, d->device),
               "asking the GPU");
    RT_GPU_TRY(d, device_attribute(&major, DEVICE_MAJOR, d->device), "asking the GPU");
    RT_GPU_TRY(d, device_attribute(&minor, DEVICE_MINOR, d->device), "asking the GPU");
    RT_GPU_TRY(d, device_attribute(&d->shared, DEVICE_SHARED_OPTIN, d->device), "asking the GPU");
    d->capability = 10 * major + minor;
    d->base.target = rt_cuda_target(d->capability);
    if (d->base.target) return ATTN_OK;
    return rt_fail(error, ATTN_ERROR_DEVICE,
                   "cuda:%d is sm_%d, and sm_80 is the least: use --device=cpu", number,
                   d->capability);
}

// ---- tensor maps and clusters

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

// Where rows end with their sequence there are ABI_ENDS of them, so that those behind its last are outside. Which row that is behind, a
// further dimension says, with the same stride; and one more takes ABI_ENDS rows away again: addresses have 64 bits, and what is a multiple
// of 2^64 is nothing. The tensor's own address is the map's: one before it may be of no memory, which the hardware does not take.
static void add_ends(const RtMap *m, uint64_t *extent, uint64_t *stride, uint32_t *box,
                     uint32_t *step) {
    int d = m->rank - m->map->ends, n = m->rank;
    uint64_t rows = extent[d];
    extent[d] = ABI_ENDS;
    extent[n] = rows + 1, stride[n - 1] = stride[d - 1];
    extent[n + 1] = ABI_ENDS + 1, stride[n] = ((uint64_t)1 << 36) - stride[d - 1];
    for (int i = n; i < n + 2; i++) box[i] = step[i] = 1;
}

// Which panel is the outermost dimension.
static void add_panels(const RtMap *m, int panels, uint64_t *extent, uint64_t *stride,
                       uint32_t *box, uint32_t *step) {
    uint32_t columns = box[0] / (uint32_t)panels;
    int n = m->rank;
    extent[n] = extent[0] / columns, stride[n - 1] = columns * (uint64_t)abi_dtype_bytes(m->dtype);
    box[n] = (uint32_t)panels, step[n] = 1;
    extent[0] = box[0] = columns;
}

// The driver's order is the innermost dimension first, and the innermost one has no stride.
static int encode_map(const GpuDriver *g, const RtMap *m, CudaMap *out) {
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
    int more = m->map->ends ? ABI_ENDS_RANK : 0;
    if (more) add_ends(m, extent, stride, box, step);
    int panels = abi_map_panels(m->map, m->dtype, m->rank);
    if (panels > 1) add_panels(m, panels, extent, stride, box, step), more = 1;
    return g->map_encode(out, map_type(m->dtype), (uint32_t)(m->rank + more),
                         (void *)(uintptr_t)m->address, extent, stride, box, step, 0,
                         m->map->swizzle, PROMOTE_256, 0);
}

static attn_status maps(const GpuDriver *g, const AbiKernel *k, const RtArgs *args, CudaMap *out,
                        attn_error *error) {
    for (uint32_t i = 0; i < k->nmaps; i++) {
        int result = encode_map(g, &args->map[i], &out[i]);
        if (result) return rt_gpu_failed(&rt_cuda, g, result, "making a tensor map", error);
    }
    return ATTN_OK;
}

static int launch_ex(const GpuDriver *g, void *function, const AbiKernel *k, bool early,
                     int64_t grid, void *stream, void **argv) {
    CudaAttribute attributes[2];
    CudaLaunch config = {
        .grid = {(unsigned)grid, 1, 1},
        .block = {k->threads, 1, 1},
        .shared = k->shared,
        .stream = stream,
        .attributes = attributes,
    };
    if (k->cluster > 1)
        attributes[config.nattributes++] =
            (CudaAttribute){.id = LAUNCH_CLUSTER, .cluster = {k->cluster, 1, 1}};
    if (early) attributes[config.nattributes++] = (CudaAttribute){.id = LAUNCH_EARLY, .early = 1};
    return g->launch_ex(&config, function, argv, NULL);
}

const GpuKind rt_cuda = {
    .name = "cuda",
    .maker = "NVIDIA",
    .libraries = {"libcuda.so.1"},
    .none = "there is no NVIDIA driver here (libcuda.so.1)",
    .too_old = "the NVIDIA driver is too old",
    .loading = "loading the PTX",
    .texts = texts,
    .read = read,
    .forget = forget,
    .context = context,
    .enter = enter,
    .leave = leave,
    .fits = fits,
    .takes = takes,
    .prepare = prepare,
    .alone = rt_ptx_alone,
    .maps = maps,
    .launch_ex = launch_ex,
};
