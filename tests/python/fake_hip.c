// fake_hip.c: a HIP runtime whose one GPU, a gfx942, is the CPU: memory is memory, and the kernels
// are those of tests/unit/runtime_fixture.h. fake_log() tells what was asked of it.
#include "tests/unit/runtime_fixture.h"
#include <stdint.h>
#include <stdio.h>

static char log_text[4000];

const char *fake_log(void) { return log_text; }

#define NOTE(...)                                                                                  \
    snprintf(log_text + strlen(log_text), sizeof log_text - strlen(log_text), __VA_ARGS__)

static const struct Kernel {
    const char *name;
    void (*run)(const uint64_t *args, int64_t first, int64_t last);
    int nargs;
} known[] = {{"sum_part", part, ALL_ARGS},
             {"sum_join", join, ALL_ARGS},
             {"sum_one", one, ONE_ARGS},
             {"copy_one", copy, ONE_ARGS}};

int hipInit(unsigned flags) { return (int)flags; }
int hipGetDeviceCount(int *n) { return *n = 1, 0; }
int hipDeviceGet(int *d, int i) { return *d = i, 0; }
int hipDeviceGetName(char *out, int n, int d) { return snprintf(out, (size_t)n, "Fake"), d; }
int hipDeviceGetAttribute(int *out, int which, int d) { return *out = which == 63 ? 4 : 65536, d; }
int hipGetDeviceProperties(void *out, int d) { return (void)out, (void)d, 1; }
int hipGetDevicePropertiesR0600(void *out, int d) {
    return strcpy((char *)out + 1160, "gfx942:sramecc+:xnack-"), d;
}
int hipGetDevice(int *d) { return *d = 0, 0; }
int hipSetDevice(int d) { return d; }
int hipDeviceSynchronize(void) { return 0; }
const char *hipGetErrorName(int r) { return r ? "hipError" : "hipSuccess"; }
const char *hipGetErrorString(int r) { return r ? "went wrong" : ""; }

int hipModuleLoadDataEx(void **m, const void *image, unsigned n, int *options, void **values) {
    (void)n, (void)options, (void)values;
    return NOTE("load;"), *m = log_text, memcmp(image, "\177ELF", 4);
}
int hipModuleUnload(void *m) { return m != log_text; }
int hipModuleGetFunction(void **f, void *m, const char *name) {
    (void)m;
    for (int i = 0; i < 4; i++)
        if (strcmp(name, known[i].name) == 0) return *f = (void *)&known[i], 0;
    return 500;
}
int hipModuleLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                          unsigned bz, unsigned shared, void *stream, void **args, void **extra) {
    const struct Kernel *k = f;
    uint64_t slot[ALL_ARGS];
    (void)shared, (void)extra;
    if (gx == 0 || gy != 1 || gz != 1 || bx == 0 || by != 1 || bz != 1) return 9;
    for (int i = 0; i < k->nargs; i++) memcpy(&slot[i], args[i], 8);
    NOTE("%s %u %lx;", k->name, gx, (unsigned long)(uintptr_t)stream);
    return k->run(slot, 0, gx), 0;
}
int hipMemsetD8Async(uint64_t to, unsigned char byte, size_t n, void *stream) {
    NOTE("zero %lx;", (unsigned long)(uintptr_t)stream);
    return memset((void *)(uintptr_t)to, byte, n), 0;
}
int hipMemset2DAsync(uint64_t to, size_t pitch, int byte, size_t width, size_t rows, void *stream) {
    NOTE("zero rows %lx;", (unsigned long)(uintptr_t)stream);
    for (size_t i = 0; i < rows; i++) memset((char *)(uintptr_t)to + i * pitch, byte, width);
    return 0;
}
int hipMemsetD8(uint64_t to, unsigned char byte, size_t n) {
    return memset((void *)(uintptr_t)to, byte, n), 0;
}
int hipMalloc(uint64_t *out, size_t n) { return *out = (uintptr_t)malloc(n), *out ? 0 : 2; }
int hipFree(uint64_t p) { return free((void *)(uintptr_t)p), 0; }
int hipMemcpyHtoD(uint64_t to, const void *from, size_t n) {
    return memcpy((void *)(uintptr_t)to, from, n), 0;
}
int hipMemcpyDtoH(void *to, uint64_t from, size_t n) {
    return memcpy(to, (void *)(uintptr_t)from, n), 0;
}
int hipMemcpyDtoDAsync(uint64_t to, uint64_t from, size_t n, void *stream) {
    (void)stream;
    return memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, n), 0;
}
int hipEventCreateWithFlags(void **e, unsigned flags) { return *e = log_text, (int)flags; }
int hipEventRecord(void *e, void *s) { return !e || s; }
int hipEventSynchronize(void *e) { return !e; }
int hipEventElapsedTime(float *ms, void *a, void *b) { return *ms = 1, !a || !b; }
int hipEventDestroy(void *e) { return !e; }
