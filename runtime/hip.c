// hip.c: what is AMD's of a GPU (gpu.h): the current device in place of contexts, and code objects,
// which run on the chip they were made for and on no other.
#include "gpu.h"
#include <stdio.h>
#include <string.h>

enum { // hipDeviceAttribute_t
    DEVICE_MULTIPROCESSORS = 63,
    DEVICE_SHARED = 74,
};

// Where hipDeviceProp_t has the chip's name ("gfx942:sramecc+:xnack-"): as of HIP 6, and before. The
// structs are 1472 and 792 bytes; there is room for one that grows.
enum { PROPERTIES = 4096, ARCH_AT_6 = 1160, ARCH_AT = 396, ARCH_BYTES = 256 };

static void texts(const GpuDriver *g, int result, const char **name, const char **text) {
    *name = g->hip_error_name(result);
    *text = g->hip_error_string(result);
}

// A context is the device's number.
static attn_status context(GpuDevice *d, void **out, attn_error *error) {
    (void)error;
    *out = (void *)(intptr_t)d->device;
    return ATTN_OK;
}

static int enter(const GpuDriver *g, void *context, GpuScope *scope) {
    int device = (int)(intptr_t)context, result = g->hip_device(&scope->device);
    scope->changed = !result && scope->device != device;
    return scope->changed ? g->hip_set_device(device) : result;
}

static void leave(const GpuDriver *g, const GpuScope *scope) {
    if (scope->changed) g->hip_set_device(scope->device);
}

static attn_status fits(const GpuDevice *d, const char *target, attn_error *error) {
    if (strncmp(target, "gfx", 3) != 0)
        return rt_fail(error, ATTN_ERROR_ARTIFACT, "the artifact is for %s, which is no AMD GPU",
                       target);
    if (strcmp(target, d->base.target) == 0) return ATTN_OK;
    return rt_fail(error, ATTN_ERROR_ARTIFACT,
                   "the artifact is for %s, this GPU is %s: compile it with --target=%s", target,
                   d->base.target, d->base.target);
}

static attn_status read_arch(GpuDevice *d, attn_error *error) {
    union {
        char bytes[PROPERTIES];
        uint64_t aligned;
    } p;
    int at = d->driver->hip_properties_6 ? ARCH_AT_6 : ARCH_AT;
    memset(&p, 0, sizeof p); // a name that is empty where there is neither
    if (d->driver->hip_properties_6)
        RT_GPU_TRY(d, hip_properties_6(&p, d->device), "asking the GPU");
    else if (d->driver->hip_properties)
        RT_GPU_TRY(d, hip_properties(&p, d->device), "asking the GPU");
    p.bytes[at + ARCH_BYTES - 1] = 0;
    size_t n = strcspn(p.bytes + at, ":");
    if (n >= sizeof d->arch) n = sizeof d->arch - 1;
    memcpy(d->arch, p.bytes + at, n);
    return ATTN_OK;
}

// Those that ir/targets.def has of AMD, which the runtime does not read.
static const char *const targets[] = {"gfx90a", "gfx942", "gfx1100"};
enum { TARGETS = sizeof targets / sizeof *targets };

static void list_targets(char *out, size_t room) {
    size_t n = 0;
    for (int i = 0; i < TARGETS && n < room; i++) {
        const char *before = !i ? "" : i + 1 < TARGETS ? ", " : " and ";
        n += (size_t)snprintf(out + n, room - n, "%s%s", before, targets[i]);
    }
}

static attn_status read(GpuDevice *d, int number, attn_error *error) {
    char all[128];
    RT_GPU_TRY(d, device_get(&d->device, number), "opening the GPU");
    RT_GPU_TRY(d, device_attribute(&d->base.workers, DEVICE_MULTIPROCESSORS, d->device),
               "asking the GPU");
    RT_GPU_TRY(d, device_attribute(&d->shared, DEVICE_SHARED, d->device), "asking the GPU");
    attn_status status = read_arch(d, error);
    if (status) return status;
    for (int i = 0; i < TARGETS; i++)
        if (strcmp(d->arch, targets[i]) == 0) d->base.target = targets[i];
    if (d->base.target) return ATTN_OK;
    list_targets(all, sizeof all);
    return rt_fail(error, ATTN_ERROR_DEVICE,
                   "hip:%d is %s, and there are kernels for %s: use --device=cpu", number,
                   d->arch[0] ? d->arch : "of no known kind", all);
}

const GpuKind rt_hip = {
    .name = "hip",
    .maker = "AMD",
    .libraries = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"},
    .none = "there is no AMD HIP runtime here (libamdhip64.so)",
    .too_old = "the HIP runtime is too old",
    .loading = "loading the code object",
    .texts = texts,
    .read = read,
    .context = context,
    .enter = enter,
    .leave = leave,
    .fits = fits,
};
