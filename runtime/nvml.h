// nvml.h: what NVIDIA GPUs there are, from the management library: in a sixth of the time that the
// driver takes to start, for who only wants to know what to compile for. Filled by dlopen, or by a
// test.
#ifndef RUNTIME_NVML_H
#define RUNTIME_NVML_H

// NVML(name, symbol, parameters); all return nvmlReturn_t, 0 is success.
#define RT_NVML                                                                                    \
    NVML(init, "nvmlInit_v2", (void))                                                              \
    NVML(shutdown, "nvmlShutdown", (void))                                                         \
    NVML(count, "nvmlDeviceGetCount_v2", (unsigned *out))                                          \
    NVML(device, "nvmlDeviceGetHandleByIndex_v2", (unsigned index, void **out))                    \
    NVML(capability, "nvmlDeviceGetCudaComputeCapability", (void *device, int *major, int *minor))

typedef struct RtNvml {
#define NVML(name, symbol, parameters) int(*name) parameters;
    RT_NVML
#undef NVML
} RtNvml;

// 10 * major + minor of all GPUs; 0 where there is none, or where they differ: which one is cuda:0 is
// then the driver's to say.
int rt_nvml_capability(const RtNvml *nvml);

#endif
