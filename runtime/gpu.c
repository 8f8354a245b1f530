// gpu.c: GPUs through their drivers, opened at run time: NVIDIA's CUDA driver API, AMD's HIP.
//
// Each call that needs a context (CUDA) or a current device (HIP) enters it and leaves it again, so
// that the caller's is never changed. A module lives in the context that was current when it was
// loaded, if that was one of its device, else in the device's primary context. Where the driver
// compiles what it loads, a kernel is loaded alone and when it is first wanted.
#include "gpu.h"
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct GpuCode { // what is loaded; NULLs: nothing
    void *library, *module;
} GpuCode;

typedef struct GpuFunction {
    GpuCode code;           // its own, where it is loaded alone
    bool early;             // its text waits for the kernel before it by itself
    _Atomic(void *) handle; // NULL: it is not loaded yet
} GpuFunction;

typedef struct GpuModule {
    void *context;
    GpuCode all; // of all kernels
    char *code;  // HIP may read it later than it takes it
    size_t n;
    pthread_mutex_t lock;      // of loading
    _Atomic(GpuWords *) words; // of the first code that was loaded and has them
    uint32_t nfunctions;
    GpuFunction function[];
} GpuModule;

enum {
    JIT_ERROR_LOG = 5, // CUjit_option, hipJitOption
    JIT_ERROR_LOG_BYTES = 6,
    CAPTURE_RELAXED = 2, // CUstreamCaptureMode
};

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

// Modules go with their context, libraries are in none.
static void drop_code(const GpuDriver *g, const GpuCode *c, bool entered) {
    if (c->library)
        g->library_unload(c->library);
    else if (c->module && entered)
        g->module_unload(c->module);
}

static void drop_module(const GpuDevice *d, GpuModule *m) {
    GpuScope scope;
    // fails where the application has destroyed the context
    bool entered = m->context && d->kind->enter(d->driver, m->context, &scope) == 0;
    drop_code(d->driver, &m->all, entered);
    for (uint32_t i = 0; i < m->nfunctions; i++)
        drop_code(d->driver, &m->function[i].code, entered);
    if (entered) d->kind->leave(d->driver, &scope);
    rt_words_free(m->words);
    pthread_mutex_destroy(&m->lock);
    free(m->code);
    free(m);
}

static void unload(RtDevice *d, void *module) { drop_module((GpuDevice *)d, module); }

// As a library where there is such a thing: several threads' are compiled at once, modules of one
// context one after the other. Without a log, which the driver might write to whenever the library
// comes into another context.
static bool load_library(const GpuDriver *g, const char *code, GpuCode *c) {
    if (!g->library_load || !g->library_unload || !g->library_module) return false;
    if (g->library_load(&c->library, code, NULL, NULL, 0, NULL, NULL, 0)) return false;
    if (g->library_module(&c->module, c->library) == 0) return true;
    g->library_unload(c->library);
    return false;
}

// What is no library may still be a module: the driver may want libraries to fit all GPUs at once.
static attn_status load_code(GpuDevice *d, const char *code, GpuCode *c, attn_error *error) {
    char log[320] = "";
    int options[] = {JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES};
    void *values[] = {log, (void *)(uintptr_t)sizeof log};
    GpuCode got = {NULL, NULL};
    if (load_library(d->driver, code, &got)) return *c = got, ATTN_OK;
    got.library = NULL;
    int result = d->driver->module_load(&got.module, code, 2, options, values);
    if (result == 0) return *c = got, ATTN_OK;
    log[sizeof log - 1] = 0;
    for (char *at = log; *at; at++)
        if (*at == '\n') *at = ' ';
    rt_gpu_failed(d->kind, d->driver, result, d->kind->loading, error);
    if (error && log[0]) {
        size_t n = strlen(error->message);
        snprintf(error->message + n, sizeof error->message - n, ": %s", log);
    }
    return ATTN_ERROR_DEVICE;
}

static attn_status check_kernel(const GpuDevice *d, const AbiKernel *k, attn_error *error) {
    if (k->shared > (unsigned)d->shared)
        return rt_fail(error, ATTN_ERROR_ARTIFACT,
                       "%s takes %u bytes of shared memory, this GPU has %d", k->symbol, k->shared,
                       d->shared);
    if (k->cluster > 1 && !d->kind->launch_ex)
        return rt_fail(error, ATTN_ERROR_ARTIFACT,
                       "%s wants clusters, which this GPU or its driver does not have", k->symbol);
    return d->kind->takes ? d->kind->takes(d, k, error) : ATTN_OK;
}

static attn_status find_function(GpuDevice *d, const AbiKernel *k, void *module, GpuFunction *f,
                                 attn_error *error) {
    void *handle;
    RT_GPU_TRY(d, module_function(&handle, module, k->symbol), k->symbol);
    attn_status status = d->kind->prepare ? d->kind->prepare(d, k, handle, error) : ATTN_OK;
    if (!status) atomic_store_explicit(&f->handle, handle, memory_order_release);
    return status;
}

static attn_status load_kernel(GpuDevice *d, GpuModule *m, const AbiKernel *k, GpuFunction *f,
                               attn_error *error) {
    attn_status status = ATTN_OK;
    if (!f->code.module) { // else it was loaded, and could not be prepared
        char *code = d->kind->alone(m->code, m->n, k->symbol);
        if (!code) return rt_fail(error, ATTN_ERROR_SYSTEM, "out of memory");
        status = load_code(d, code, &f->code, error);
        bool words = strstr(code, ABI_WORDS) != NULL; // tools report lookups of what is not there
        f->early = strstr(code, "griddepcontrol.wait") != NULL;
        free(code);
        if (!status && !m->words && words) m->words = rt_words(d->driver, f->code.module);
    }
    return status ? status : find_function(d, k, f->code.module, f, error);
}

// A capture into a graph may be under way, which loading is no part of.
static attn_status load_now(GpuDevice *d, GpuModule *m, const AbiKernel *k, GpuFunction *f,
                            attn_error *error) {
    GpuScope scope;
    int mode = CAPTURE_RELAXED;
    attn_status status = enter(d, m->context, &scope, error);
    if (status) return status;
    bool relaxed = d->driver->capture_mode && d->driver->capture_mode(&mode) == 0;
    status = load_kernel(d, m, k, f, error);
    if (relaxed) d->driver->capture_mode(&mode);
    d->kind->leave(d->driver, &scope);
    return status;
}

static attn_status ready(RtDevice *base, void *module, uint32_t i, const AbiKernel *k,
                         attn_error *error) {
    GpuModule *m = module;
    GpuFunction *f = &m->function[i];
    attn_status status = ATTN_OK;
    if (atomic_load_explicit(&f->handle, memory_order_acquire)) return ATTN_OK;
    pthread_mutex_lock(&m->lock);
    if (!f->handle) status = load_now((GpuDevice *)base, m, k, f, error);
    pthread_mutex_unlock(&m->lock);
    return status;
}

// All kernels: whether they run here, and where nothing is compiled they are loaded.
static attn_status fill_module(GpuDevice *d, const AbiMeta *meta, GpuModule *m, attn_error *error) {
    attn_status status = ATTN_OK;
    uint32_t n = 0;
    if (!d->kind->alone) status = load_code(d, m->code, &m->all, error);
    for (uint32_t i = 0; !status && i < meta->nvariants; i++)
        for (uint32_t k = 0; !status && k < meta->variants[i].nkernels; k++, n++) {
            status = check_kernel(d, &meta->variants[i].kernels[k], error);
            if (!status && m->all.module)
                status = find_function(d, &meta->variants[i].kernels[k], m->all.module,
                                       &m->function[n], error);
        }
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
    if (m) m->code = malloc(n);
    if (!m || !m->code || pthread_mutex_init(&m->lock, NULL)) {
        if (m) free(m->code);
        free(m);
        return rt_fail(error, ATTN_ERROR_SYSTEM, "out of memory");
    }
    memcpy(m->code, code, n);
    m->n = n;
    m->nfunctions = kernels;
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
    void *function = m->function[i].handle; // ready
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
    bool early = args->follows && m->function[i].early && g->launch_ex && g->graph_edges;
    if (!status && (k->cluster > 1 || early))
        result = d->kind->launch_ex(g, function, k, early, grid, stream, argv);
    else if (!status)
        result = g->launch(function, (unsigned)grid, 1, 1, k->threads, 1, 1, k->shared, stream,
                           argv, NULL);
    d->kind->leave(g, &scope);
    if (status) return status;
    return result ? rt_gpu_failed(d->kind, g, result, k->symbol, error) : ATTN_OK;
}

static attn_status zero(RtDevice *base, void *module, const RtRows *r, void *stream,
                        attn_error *error) {
    const GpuDevice *d = (GpuDevice *)base;
    GpuScope scope;
    attn_status status = enter(d, ((GpuModule *)module)->context, &scope, error);
    if (status) return status;
    uint64_t at = (uint64_t)(uintptr_t)r->at;
    int result = r->rows == 1
                     ? d->driver->fill_async(at, 0, r->width, stream)
                     : d->driver->fill_rows_async(at, r->pitch, 0, r->width, r->rows, stream);
    d->kind->leave(d->driver, &scope);
    return result ? rt_gpu_failed(d->kind, d->driver, result, "setting memory to zero", error)
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
    .ready = ready,
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
