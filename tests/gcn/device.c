// device.c: see device.h. Memory is the host's; every allocation is a buffer of the launches, which
// may write to those that an output or a workspace lies in.
#include "tests/gcn/device.h"
#include "runtime/rt.h"
#include "tests/gcn/keep.h"
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 256, MAX_BUFFERS = 512, WORKERS = 4 };

struct GcnDevice {
    RtDevice base;
    GcnBuffer buffer[MAX_BUFFERS];
    int nbuffers;
    uint64_t seed, executed;
    const GcnEdit *edit;
    const char *keep; // a folder for launches; NULL: they are not kept
};

typedef struct Module {
    Arena *arena;
    const void *file; // kept launches': a copy
    size_t bytes;
    const GcnCode *code;
    const AbiMeta *meta;
} Module;

// ---- memory

static attn_status alloc(RtDevice *base, size_t n, void **out, attn_error *error) {
    GcnDevice *d = (GcnDevice *)base;
    *out = d->nbuffers < MAX_BUFFERS ? aligned_alloc(ALIGN, (n / ALIGN + 1) * ALIGN) : NULL;
    if (!*out) return rt_fail(error, ATTN_ERROR_SYSTEM, "out of memory");
    memset(*out, 0xff, n);
    d->buffer[d->nbuffers++] = (GcnBuffer){*out, n, true};
    return ATTN_OK;
}

static void release(RtDevice *base, void *p) {
    GcnDevice *d = (GcnDevice *)base;
    for (int i = 0; i < d->nbuffers; i++)
        if (d->buffer[i].base == p) d->buffer[i] = d->buffer[--d->nbuffers];
    free(p);
}

static attn_status copy(RtDevice *d, void *to, const void *from, size_t n, attn_error *error) {
    (void)d;
    (void)error;
    if (n) memcpy(to, from, n);
    return ATTN_OK;
}

static attn_status fill(RtDevice *d, void *p, int byte, size_t n, attn_error *error) {
    (void)d;
    (void)error;
    if (n) memset(p, byte, n);
    return ATTN_OK;
}

static attn_status zero(RtDevice *d, void *module, const RtRows *r, void *stream,
                        attn_error *error) {
    (void)module;
    (void)stream;
    for (size_t i = 0; i < r->rows; i++) fill(d, r->at + i * r->pitch, 0, r->width, error);
    return ATTN_OK;
}

// ---- modules

static void unload(RtDevice *d, void *module) {
    Module *m = module;
    (void)d;
    arena_free(m->arena);
    free(m);
}

static attn_status load(RtDevice *base, const AbiMeta *meta, const void *code, size_t n,
                        void **module, attn_error *error) {
    GcnDevice *d = (GcnDevice *)base;
    GcnError e = {""};
    Module *m = calloc(1, sizeof *m);
    if (!m) return rt_fail(error, ATTN_ERROR_SYSTEM, "out of memory");
    m->arena = arena_new();
    m->meta = meta;
    m->file = memcpy(arena_alloc(m->arena, n + 1), code, n);
    m->bytes = n;
    m->code = gcn_open(m->arena, code, n, d->edit, &e);
    *module = m;
    if (m->code && strcmp(gcn_target(m->code), meta->target) == 0) return ATTN_OK;
    unload(base, m);
    return rt_fail(error, ATTN_ERROR_ARTIFACT, "%s",
                   e.text[0] ? e.text : "the code is for another processor than the metadata");
}

// ---- launches

static const AbiVariant *variant_of(const AbiMeta *m, uint32_t kernel) {
    uint32_t i = 0;
    while (kernel >= m->variants[i].nkernels) kernel -= m->variants[i++].nkernels;
    return &m->variants[i];
}

static bool pack(const GcnKernel *code, const AbiKernel *k, const RtArgs *args, uint8_t *out) {
    GcnArg at;
    for (uint32_t i = 0; i < k->nargs; i++) {
        bool wide = k->args[i].kind == ABI_ARG_POINTER || k->args[i].kind == ABI_ARG_STRIDE;
        if (!gcn_arg(code, i, &at) || (at.size != 8 && (wide || at.size != 4))) return false;
        memcpy(out + at.offset, &args->slot[i], at.size);
    }
    return !gcn_arg(code, k->nargs, &at);
}

// The buffers as this kernel may use them: what no argument points into is out of its reach.
static int buffers(const GcnDevice *d, const AbiVariant *v, const AbiKernel *k, const RtArgs *args,
                   GcnBuffer *out) {
    int n = 0;
    for (int i = 0; i < d->nbuffers; i++) {
        GcnBuffer b = d->buffer[i];
        bool used = false;
        b.writable = false;
        for (uint32_t a = 0; a < k->nargs; a++) {
            const AbiTensor *t = &v->tensors[k->args[a].index];
            if (k->args[a].kind != ABI_ARG_POINTER ||
                args->slot[a] - (uint64_t)(uintptr_t)b.base > b.bytes)
                continue;
            used = true;
            b.writable |= abi_output(v, t);
        }
        if (used) out[n++] = b;
    }
    return n;
}

static attn_status launch(RtDevice *base, void *module, uint32_t k, const AbiKernel *kernel,
                          const RtArgs *args, int64_t grid, void *stream, attn_error *error) {
    GcnDevice *d = (GcnDevice *)base;
    const Module *m = module;
    const GcnKernel *code = gcn_kernel(m->code, kernel->symbol);
    GcnBuffer list[MAX_BUFFERS];
    GcnError e;
    (void)stream;
    if (!code)
        return rt_fail(error, ATTN_ERROR_ARTIFACT, "the code has no kernel %s", kernel->symbol);
    uint8_t *bytes = calloc(gcn_kernarg_bytes(code) + 1, 1);
    if (!bytes) return rt_fail(error, ATTN_ERROR_SYSTEM, "out of memory");
    GcnLaunch l = {.kernel = code,
                   .grid = {(uint32_t)grid, 1, 1},
                   .threads = kernel->threads,
                   .dynamic = kernel->shared,
                   .kernarg = bytes,
                   .kernarg_bytes = gcn_kernarg_bytes(code),
                   .buffers = list,
                   .nbuffers = buffers(d, variant_of(m->meta, k), kernel, args, list),
                   .seed = d->seed++};
    attn_status status = ATTN_OK;
    GcnKeep *keep = NULL;
    if (!pack(code, kernel, args, bytes))
        status = rt_fail(error, ATTN_ERROR_ARTIFACT,
                         "%s: the metadata and the code do not agree "
                         "about the arguments",
                         kernel->symbol);
    else if (d->keep && !(keep = gcn_keep(d->keep, &l, m->file, m->bytes)))
        status = rt_fail(error, ATTN_ERROR_SYSTEM, "cannot write to %s", d->keep);
    else if (!gcn_launch(&l, &e))
        status = rt_fail(error, ATTN_ERROR_DEVICE, "%s", e.text);
    if (keep && !gcn_keep_after(keep, &l) && !status)
        status = rt_fail(error, ATTN_ERROR_SYSTEM, "cannot write to %s", d->keep);
    d->executed += l.executed;
    free(bytes);
    return status;
}

// ---- the rest of what a device can do

static attn_status sync(RtDevice *d, attn_error *error) {
    (void)d;
    return rt_ok(error);
}

static attn_status no_time(attn_error *error) {
    return rt_fail(error, ATTN_ERROR_DEVICE, "the interpreter has no notion of time");
}

static attn_status mark(RtDevice *d, void **event, attn_error *error) {
    (void)d;
    (void)event;
    return no_time(error);
}

static attn_status elapsed(RtDevice *d, void *from, void *to, float *ms, attn_error *error) {
    (void)d;
    (void)from;
    (void)to;
    (void)ms;
    return no_time(error);
}

static void drop(RtDevice *d, void *event) {
    (void)d;
    (void)event;
}

static attn_status describe(RtDevice *d, char *name, size_t n, attn_error *error) {
    (void)d;
    strncpy(name, "interpreter", n - 1);
    name[n - 1] = 0;
    return rt_ok(error);
}

static void dispose(RtDevice *d) { free(d); }

static const RtOps ops = {.dispose = dispose,
                          .load = load,
                          .unload = unload,
                          .launch = launch,
                          .zero = zero,
                          .alloc = alloc,
                          .release = release,
                          .copy_in = copy,
                          .copy_out = copy,
                          .copy_within = copy,
                          .fill = fill,
                          .sync = sync,
                          .mark = mark,
                          .elapsed = elapsed,
                          .drop = drop,
                          .describe = describe};

GcnDevice *gcn_device(attn_context *c) {
    GcnDevice *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    d->base = (RtDevice){.ops = &ops, .id = {ATTN_HIP, 0}, .workers = WORKERS, .target = "gfx942"};
    d->base.next = c->devices;
    c->devices = &d->base;
    return d;
}

void gcn_device_seed(GcnDevice *d, uint64_t seed) { d->seed = seed; }
void gcn_device_edit(GcnDevice *d, const GcnEdit *edit) { d->edit = edit; }
void gcn_device_keep(GcnDevice *d, const char *folder) { d->keep = folder; }
uint64_t gcn_device_executed(const GcnDevice *d) { return d->executed; }
