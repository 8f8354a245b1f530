// gpu.c: GPUs through their drivers, opened at run time: NVIDIA's CUDA driver API, AMD's HIP.
//
// Each call that needs a context (CUDA) or a current device (HIP) enters it and leaves it again, so
// that the caller's is never changed. A module lives in the context that was current when it was
// loaded, if that was one of its device, else in the device's primary context.
#include "gpu.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct GpuModule {
    void *context, *module;
    char *code; // HIP may read it later than it takes it
    GpuWords *words;
    void *function[];
} GpuModule;

enum { JIT_ERROR_LOG = 5, JIT_ERROR_LOG_BYTES = 6 }; // CUjit_option, hipJitOption

attn_status rt_gpu_failed(const GpuKind *kind, const GpuDriver *g, int result, const char *what,
                          attn_error *error) {
    const char *name = NULL, *text = NULL;
    kind->texts(g, result, &name, &text);
    return rt_fail(error, ATTN_ERROR_DEVICE, "%s: %s (%d) %s", what,
                   name ? name : "an unknown error", result, text ? text : "");
}

static attn_status enter(const GpuDevice *d, void *context, GpuScope *scope, attn_error *error) {
    int result = d->kind->enter(d->driver, context, scope);
    return result ? rt_gpu_failed(d->kind, d->driver, result, "making a GPU current", error)
                  : ATTN_OK;
}

// ---- modules

static void drop_module(const GpuDevice *d, GpuModule *m) {
    GpuScope scope;
    if (m->module && d->kind->enter(d->driver, m->context, &scope) == 0) {
        // fails where the application has destroyed the context: nothing is left then
        d->driver->module_unload(m->module);
        d->kind->leave(d->driver, &scope);
    }
    rt_words_free(m->words);
    free(m->code);
    free(m);
}

static void unload(RtDevice *d, void *module) { drop_module((GpuDevice *)d, module); }

static attn_status load_code(GpuDevice *d, GpuModule *m, attn_error *error) {
    char log[320] = "";
    int options[] = {JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES};
    void *values[] = {log, (void *)(uintptr_t)sizeof log};
    int result = d->driver->module_load(&m->module, m->code, 2, options, values);
    if (result == 0) return ATTN_OK;
    m->module = NULL;
    log[sizeof log - 1] = 0;
    for (char *c = log; *c; c++)
        if (*c == '\n') *c = ' ';
    rt_gpu_failed(d->kind, d->driver, result, d->kind->loading, error);
    if (error && log[0]) {
        size_t n = strlen(error->message);
        snprintf(error->message + n, sizeof error->message - n, ": %s", log);
    }
    return ATTN_ERROR_DEVICE;
}

static attn_status find_function(GpuDevice *d, const AbiKernel *k, GpuModule *m, void **out,
                                 attn_error *error) {
    if (k->shared > (unsigned)d->shared)
        return rt_fail(error, ATTN_ERROR_ARTIFACT,
                       "%s takes %u bytes of shared memory, this GPU has %d", k->symbol, k->shared,
                       d->shared);
    if (k->cluster > 1 && !d->kind->launch_cluster)
        return rt_fail(error, ATTN_ERROR_ARTIFACT,
                       "%s wants clusters, which this GPU or its driver does not have", k->symbol);
    RT_GPU_TRY(d, module_function(out, m->module, k->symbol), k->symbol);
    return d->kind->prepare ? d->kind->prepare(d, k, *out, error) : ATTN_OK;
}

static attn_status fill_module(GpuDevice *d, const AbiMeta *meta, GpuModule *m, attn_error *error) {
    attn_status status = load_code(d, m, error);
    uint32_t n = 0;
    for (uint32_t i = 0; !status && i < meta->nvariants; i++)
        for (uint32_t k = 0; !status && k < meta->variants[i].nkernels; k++, n++)
            status = find_function(d, &meta->variants[i].kernels[k], m, &m->function[n], error);
    if (!status) m->words = rt_words(d->driver, m->module);
    return status;
}

static attn_status load(RtDevice *base, const AbiMeta *meta, const void *code, size_t n,
                        void **module, attn_error *error) {
    GpuDevice *d = (GpuDevice *)base;
    GpuScope scope;
    uint32_t kernels = 0;
    attn_status status = d->kind->fits(d, meta->target, error);
    if (status) return status;
    for (uint32_t i = 0; i < meta->nvariants; i++) kernels += meta->variants[i].nkernels;
    GpuModule *m = calloc(1, sizeof *m + kernels * sizeof m->function[0]);
    if (m) m->code = malloc(n + 1); // CUDA wants a NUL after it
    if (!m || !m->code) {
        free(m);
        return rt_fail(error, ATTN_ERROR_SYSTEM, "out of memory");
    }
    memcpy(m->code, code, n);
    m->code[n] = 0;
    status = d->kind->context(d, &m->context, error);
    if (!status) status = enter(d, m->context, &scope, error);
    if (!status) {
        status = fill_module(d, meta, m, error);
        d->kind->leave(d->driver, &scope);
    }
    if (status)
        drop_module(d, m);
    else
        *module = m;
    return status;
}

// ---- launching

static attn_status launch(RtDevice *base, void *module, uint32_t i, const AbiKernel *k,
                          const RtArgs *args, int64_t grid, void *stream, attn_error *error) {
    const GpuDevice *d = (GpuDevice *)base;
    const GpuDriver *g = d->driver;
    GpuModule *m = module;
    CudaMap maps[ABI_MAX_MAPS];
    void *argv[ABI_MAX_ARGS];
    GpuScope scope;
    int result = 0;
    attn_status status = enter(d, m->context, &scope, error);
    if (status) return status;
    if (k->nmaps) status = d->kind->maps(g, k, args, maps, error); // wants the context, too
    for (uint32_t a = 0; a < args->n; a++) // little-endian: the low bytes come first
        argv[a] = k->args[a].kind == ABI_ARG_MAP ? (void *)&maps[k->args[a].index]
                                                 : (void *)&args->slot[a];
    if (!status && k->cluster > 1)
        result = d->kind->launch_cluster(g, m->function[i], k, grid, stream, argv);
    else if (!status)
        result = g->launch(m->function[i], (unsigned)grid, 1, 1, k->threads, 1, 1, k->shared,
                           stream, argv, NULL);
    d->kind->leave(g, &scope);
    if (status) return status;
    return result ? rt_gpu_failed(d->kind, g, result, k->symbol, error) : ATTN_OK;
}

static attn_status zero(RtDevice *base, void *module, void *p, size_t n, void *stream,
                        attn_error *error) {
    const GpuDevice *d = (GpuDevice *)base;
    GpuScope scope;
    attn_status status = enter(d, ((GpuModule *)module)->context, &scope, error);
    if (status) return status;
    int result = d->driver->fill_async((uint64_t)(uintptr_t)p, 0, n, stream);
    d->kind->leave(d->driver, &scope);
    return result ? rt_gpu_failed(d->kind, d->driver, result, "zeroing the workspace", error)
                  : ATTN_OK;
}

static uint64_t word(RtDevice *base, void *module, void *stream) {
    const GpuDevice *d = (GpuDevice *)base;
    GpuModule *m = module;
    GpuScope scope;
    if (!m->words || enter(d, m->context, &scope, NULL)) return 0;
    uint64_t at = rt_word(d->driver, m->words, stream);
    d->kind->leave(d->driver, &scope);
    return at;
}

// ---- tools: everything in the context that a module would be loaded into, and on its default
// stream

// Runs a driver call in that context.
#define IN_CONTEXT(base, call, what)                                                               \
    do {                                                                                           \
        GpuDevice *d_ = (GpuDevice *)(base);                                                       \
        GpuScope scope_;                                                                           \
        void *context_;                                                                            \
        attn_status status_ = d_->kind->context(d_, &context_, error);                             \
        if (!status_) status_ = enter(d_, context_, &scope_, error);                               \
        if (status_) return status_;                                                               \
        int result_ = d_->driver->call;                                                            \
        d_->kind->leave(d_->driver, &scope_);                                                      \
        if (result_) return rt_gpu_failed(d_->kind, d_->driver, result_, what, error);             \
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
    IN_CONTEXT(d, device_sync(), "waiting for the GPU");
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
    GpuDevice *d = (GpuDevice *)base;
    RT_GPU_TRY(d, device_name(name, (int)n, d->device), "asking for the GPU's name");
    return ATTN_OK;
}

static void dispose(RtDevice *base) {
    GpuDevice *d = (GpuDevice *)base;
    if (d->kind->forget) d->kind->forget(d);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

static const RtOps OPS = {
    .dispose = dispose,
    .load = load,
    .unload = unload,
    .launch = launch,
    .zero = zero,
    .word = word,
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

static const GpuKind *kind_of(attn_device_kind k) { return k == ATTN_HIP ? &rt_hip : &rt_cuda; }

static attn_status find_entries(const GpuKind *kind, GpuDriver *g, attn_error *error) {
    static const struct {
        const char *symbol[2]; // CUDA's, HIP's
        size_t at;
        bool later;
    } entry[] = {
#define GPU(name, cuda, hip, parameters) {{cuda, hip}, offsetof(GpuDriver, name), false},
#define CUDA(name, cuda, parameters) {{cuda, NULL}, offsetof(GpuDriver, name), false},
#define CUDA_LATER(name, cuda, parameters) {{cuda, NULL}, offsetof(GpuDriver, name), true},
#define HIP(name, hip, parameters) {{NULL, hip}, offsetof(GpuDriver, name), false},
#define HIP_LATER(name, hip, parameters) {{NULL, hip}, offsetof(GpuDriver, name), true},
#define HIP_TEXT HIP
#include "gpu_driver.def"
#undef GPU
#undef CUDA
#undef CUDA_LATER
#undef HIP
#undef HIP_LATER
#undef HIP_TEXT
    };
    for (size_t i = 0; i < sizeof entry / sizeof entry[0]; i++) {
        const char *symbol = entry[i].symbol[kind == &rt_hip];
        if (!symbol) continue;
        void *p = dlsym(g->library, symbol);
        if (!p && !entry[i].later)
            return rt_fail(error, ATTN_ERROR_DEVICE, "%s: it has no %s", kind->too_old, symbol);
        memcpy((char *)g + entry[i].at, &p, sizeof p);
    }
    return ATTN_OK;
}

void rt_gpu_close(GpuDriver *g) {
    if (!g) return;
    if (g->library) dlclose(g->library);
    free(g);
}

static attn_status open_driver(const GpuKind *kind, GpuDriver **out, attn_error *error) {
    if (*out) return ATTN_OK;
    GpuDriver *g = calloc(1, sizeof *g);
    if (!g) return rt_fail(error, ATTN_ERROR_SYSTEM, "out of memory");
    // What the process has already (PyTorch brings a HIP of its own) before what the system has. A
    // driver stays when it is closed: it has threads, and may be asked for again.
    for (int mode = RTLD_NOLOAD; mode >= 0; mode -= RTLD_NOLOAD)
        for (int i = 0; kind->libraries[i] && !g->library; i++)
            g->library = dlopen(kind->libraries[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | mode);
    attn_status status =
        g->library ? find_entries(kind, g, error)
                   : rt_fail(error, ATTN_ERROR_DEVICE, "%s: use --device=cpu", kind->none);
    if (status)
        rt_gpu_close(g);
    else
        *out = g;
    return status;
}

static attn_status count_devices(attn_context *c, attn_device_kind id, int *n, attn_error *error) {
    const GpuKind *kind = kind_of(id);
    GpuDriver **g = id == ATTN_HIP ? &c->hip : &c->cuda;
    *n = 0;
    attn_status status = open_driver(kind, g, error);
    if (status) return status;
    int result = (*g)->init(0);
    if (!result) result = (*g)->device_count(n);
    if (!result && *n > 0) return ATTN_OK;
    const char *name = NULL, *text;
    if (result) kind->texts(*g, result, &name, &text);
    *n = 0;
    return rt_fail(error, ATTN_ERROR_DEVICE, "there is no %s GPU here (%s): use --device=cpu",
                   kind->maker, name ? name : "no device");
}

int rt_gpu_count(attn_context *c, attn_device_kind id) {
    int n;
    pthread_mutex_lock(&c->lock);
    count_devices(c, id, &n, NULL);
    pthread_mutex_unlock(&c->lock);
    return n;
}

attn_status rt_gpu_open(attn_context *c, attn_device id, RtDevice **out, attn_error *error) {
    const GpuKind *kind = kind_of(id.kind);
    int n;
    attn_status status = count_devices(c, id.kind, &n, error);
    if (status) return status;
    if (id.number < 0 || id.number >= n)
        return rt_fail(error, ATTN_ERROR_DEVICE, "there is no %s:%d, the last is %s:%d", kind->name,
                       id.number, kind->name, n - 1);
    GpuDevice *d = calloc(1, sizeof *d);
    if (!d || pthread_mutex_init(&d->lock, NULL)) {
        free(d);
        return rt_fail(error, ATTN_ERROR_SYSTEM, "out of memory");
    }
    d->base.ops = &OPS;
    d->kind = kind;
    d->driver = id.kind == ATTN_HIP ? c->hip : c->cuda;
    status = kind->read(d, id.number, error);
    if (status)
        dispose(&d->base);
    else
        *out = &d->base;
    return status;
}
