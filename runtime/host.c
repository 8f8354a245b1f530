// host.c: the CPU as a device: kernels are functions, run by the context's pool; memory is memory;
// streams are ignored.
#include "rt.h"
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct HostDevice {
    RtDevice base;
    attn_context *context; // whose pool it uses
} HostDevice;

typedef struct HostModule {
    void *library; // of dlopen, or NULL
    attn_host_kernel kernel[];
} HostModule;

static attn_status no_memory(attn_error *error) {
    return rt_fail(error, ATTN_ERROR_SYSTEM, "out of memory");
}

// ---- modules

static HostModule *new_module(size_t n) {
    return calloc(1, sizeof(HostModule) + n * sizeof(attn_host_kernel));
}

attn_status rt_host_functions(const attn_host_kernel *kernels, size_t n, void **module,
                              attn_error *error) {
    HostModule *m = new_module(n);
    if (!m) return no_memory(error);
    for (size_t i = 0; i < n; i++) {
        if (!kernels[i]) {
            free(m);
            return rt_fail(error, ATTN_ERROR_ARTIFACT, "kernel %zu is a null pointer", i);
        }
        m->kernel[i] = kernels[i];
    }
    *module = m;
    return ATTN_OK;
}

static void unload(RtDevice *d, void *module) {
    (void)d;
    HostModule *m = module;
    if (m->library) dlclose(m->library);
    free(m);
}

static attn_status find_kernels(const AbiMeta *meta, HostModule *m, attn_error *error) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < meta->nvariants; i++)
        for (uint32_t k = 0; k < meta->variants[i].nkernels; k++, n++) {
            const char *symbol = meta->variants[i].kernels[k].symbol;
            void *p = dlsym(m->library, symbol);
            if (!p)
                return rt_fail(error, ATTN_ERROR_ARTIFACT, "the shared object has no function %s",
                               symbol);
            memcpy(&m->kernel[n], &p, sizeof p);
        }
    return ATTN_OK;
}

attn_status rt_host_dlopen(const AbiMeta *meta, const char *path, void **module,
                           attn_error *error) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < meta->nvariants; i++) n += meta->variants[i].nkernels;
    char *full = realpath(path, NULL); // a bare name would be searched for elsewhere
    HostModule *m = new_module(n);
    if (!m || !full) {
        free(m);
        free(full);
        return no_memory(error);
    }
    m->library = dlopen(full, RTLD_NOW | RTLD_LOCAL);
    free(full);
    attn_status status =
        m->library
            ? find_kernels(meta, m, error)
            : rt_fail(error, ATTN_ERROR_ARTIFACT,
                      "not a shared object (of a .o it is made with cc -shared): %s", dlerror());
    if (status)
        unload(NULL, m);
    else
        *module = m;
    return status;
}

// ---- running

static attn_status launch(RtDevice *d, void *module, uint32_t k, const AbiKernel *kernel,
                          const RtArgs *args, int64_t grid, void *stream, attn_error *error) {
    (void)kernel, (void)stream;
    return rt_pool_run(((HostDevice *)d)->context->pool, ((HostModule *)module)->kernel[k],
                       args->slot, grid, error);
}

static attn_status zero(RtDevice *d, void *module, const RtRows *r, void *stream,
                        attn_error *error) {
    (void)d, (void)module, (void)stream, (void)error;
    for (size_t i = 0; i < r->rows; i++) memset(r->at + i * r->pitch, 0, r->width);
    return ATTN_OK;
}

// ---- tools

static attn_status alloc(RtDevice *d, size_t n, void **out, attn_error *error) {
    (void)d;
    *out = aligned_alloc(256, n ? (n + 255) / 256 * 256 : 256);
    return *out ? ATTN_OK : no_memory(error);
}

static void release(RtDevice *d, void *p) {
    (void)d;
    free(p);
}

static attn_status copy(RtDevice *d, void *to, const void *from, size_t n, attn_error *error) {
    (void)d, (void)error;
    if (n) memcpy(to, from, n);
    return ATTN_OK;
}

static attn_status fill(RtDevice *d, void *p, int byte, size_t n, attn_error *error) {
    (void)d, (void)error;
    if (n) memset(p, byte, n);
    return ATTN_OK;
}

static attn_status finish(RtDevice *d, attn_error *error) {
    (void)d, (void)error;
    return ATTN_OK;
}

static attn_status mark(RtDevice *d, void **event, attn_error *error) {
    (void)d;
    if (!*event) *event = malloc(sizeof(struct timespec));
    if (!*event) return no_memory(error);
    clock_gettime(CLOCK_MONOTONIC, *event);
    return ATTN_OK;
}

static attn_status elapsed(RtDevice *d, void *from, void *to, float *ms, attn_error *error) {
    (void)d, (void)error;
    const struct timespec *a = from, *b = to;
    *ms = (float)((double)(b->tv_sec - a->tv_sec) * 1e3 + (double)(b->tv_nsec - a->tv_nsec) * 1e-6);
    return ATTN_OK;
}

static attn_status describe(RtDevice *d, char *name, size_t n, attn_error *error) {
    (void)error;
    snprintf(name, n, "cpu, %d thread%s", d->workers, d->workers == 1 ? "" : "s");
    return ATTN_OK;
}

static void dispose(RtDevice *d) { free(d); }

static const RtOps HOST = {
    .dispose = dispose,
    .unload = unload,
    .launch = launch,
    .zero = zero,
    .alloc = alloc,
    .release = release,
    .copy_in = copy,
    .copy_out = copy,
    .copy_within = copy,
    .fill = fill,
    .sync = finish,
    .mark = mark,
    .elapsed = elapsed,
    .drop = release,
    .describe = describe,
};

// ---- opening

static int online(void) { // processors that this process may use
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                        : (int)sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n;
}

attn_status rt_host_open(attn_context *c, RtDevice **out, attn_error *error) {
    if (!c->pool) {
        attn_status status = rt_pool(online(), &c->pool, error);
        if (status) return status;
    }
    HostDevice *d = calloc(1, sizeof *d);
    if (!d) return no_memory(error);
    d->base = (RtDevice){.ops = &HOST, .workers = rt_pool_threads(c->pool), .target = "host"};
    d->context = c;
    *out = &d->base;
    return ATTN_OK;
}

attn_status attn_set_threads(attn_context *c, int n, attn_error *error) {
    enum { MOST = 1024 };
    RtPool *pool;
    if (n < 0 || n > MOST)
        return rt_fail(error, ATTN_ERROR_CALL, "%d threads: 0 to %d are possible", n, MOST);
    attn_status status = rt_pool(n ? n : online(), &pool, error);
    if (status) return status;
    pthread_mutex_lock(&c->lock);
    rt_pool_free(c->pool);
    c->pool = pool;
    for (RtDevice *d = c->devices; d; d = d->next)
        if (d->id.kind == ATTN_CPU) d->workers = rt_pool_threads(pool);
    pthread_mutex_unlock(&c->lock);
    return rt_ok(error);
}
