// nvml.c: see nvml.h.
#include "nvml.h"
#include "device.h"
#include "gpu.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

int rt_nvml_capability(const RtNvml *nvml) {
    unsigned n = 0;
    int all = 0;
    if (nvml->init()) return 0;
    if (nvml->count(&n)) n = 0;
    for (unsigned i = 0; i < n; i++) {
        void *device;
        int major, minor;
        if (nvml->device(i, &device) || nvml->capability(device, &major, &minor) ||
            (i > 0 && 10 * major + minor != all)) {
            all = 0;
            break;
        }
        all = 10 * major + minor;
    }
    nvml->shutdown();
    return all;
}

const char *attn_peek_target(void) {
    static const struct {
        const char *symbol;
        size_t at;
    } entry[] = {
#define NVML(name, symbol, parameters) {symbol, offsetof(RtNvml, name)},
        RT_NVML
#undef NVML
    };
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    RtNvml nvml;
    bool whole = true;
    if (visible) return NULL; // which of the GPUs count is the driver's to say
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return NULL;
    for (size_t i = 0; i < sizeof entry / sizeof entry[0]; i++) {
        void *p = dlsym(library, entry[i].symbol);
        memcpy((char *)&nvml + entry[i].at, &p, sizeof p);
        whole = whole && p;
    }
    int capability = whole ? rt_nvml_capability(&nvml) : 0;
    dlclose(library);
    return rt_cuda_target(capability);
}
