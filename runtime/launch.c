// launch.c: from a checked call to kernels on a device.
//
// Nothing here allocates but attn_prepare and the loading of a kernel before its first launch, and
// nothing waits for a device.
#include "rt.h"
#include <stdlib.h>
#include <string.h>

// Turns the workspace tensors' offsets into addresses.
static attn_status give_workspace(RtBound *b, void *workspace, size_t n, attn_error *error) {
    if (b->workspace == 0) return ATTN_OK;
    if (!workspace || n < b->workspace)
        return rt_fail(error, ATTN_ERROR_CALL,
                       "the launch takes a workspace of %zu bytes, and %zu were given",
                       b->workspace, workspace ? n : 0);
    if ((uintptr_t)workspace % 256)
        return rt_fail(error, ATTN_ERROR_CALL,
                       "the workspace's address is no multiple of 256 bytes");
    for (uint32_t i = 0; i < b->variant->ntensors; i++)
        if (b->variant->tensors[i].role == ABI_ROLE_WORK) b->value[i] += (uintptr_t)workspace;
    return ATTN_OK;
}

// How many tasks the kernel has; 0: nothing to launch, since no tensor that it writes has an
// element.
static attn_status grid_tasks(const RtBound *b, const AbiKernel *k, int64_t *out,
                              attn_error *error) {
    int64_t n = 1, d;
    for (uint32_t i = 0; i < k->ngrid; i++) {
        attn_status status =
            rt_eval(b, &k->grid[i], "the number of tiles of the launch", &d, error);
        if (status) return status;
        if (d < 0 || __builtin_mul_overflow(n, d, &n))
            return rt_fail(error, ATTN_ERROR_CALL, "the launch has too many tiles at these sizes");
    }
    if (b->artifact->meta.code != ABI_CODE_HOST && n > INT32_MAX)
        return rt_fail(error, ATTN_ERROR_CALL, "the launch has %lld blocks, more than a GPU takes",
                       (long long)n);
    if (b->artifact->meta.code == ABI_CODE_HSACO && n * k->threads > UINT32_MAX)
        return rt_fail(error, ATTN_ERROR_CALL, "the launch has %lld threads, more than HIP takes",
                       (long long)(n * k->threads));
    if (n % k->cluster)
        return rt_fail(error, ATTN_ERROR_ARTIFACT,
                       "%lld blocks cannot be grouped in clusters of %u", (long long)n, k->cluster);
    *out = n;
    return ATTN_OK;
}

// Tensors that a launch leaves 0 may be in a word of the device's own.
static uint64_t value_of(const RtBound *b, uint16_t tensor, uint64_t word) {
    bool own = word && b->variant->tensors[tensor].flags & ABI_RESTORED;
    return own ? word : b->value[tensor];
}

static uint64_t inverse_of(int64_t size) {
    return size > 0 ? (UINT64_C(1) << 63) / (uint64_t)size + 1 : 0;
}

static void pack(const RtBound *b, const AbiKernel *k, uint64_t word, RtArgs *args) {
    args->n = k->nargs;
    for (uint32_t i = 0; i < k->nargs; i++) {
        const AbiArg *a = &k->args[i];
        switch ((AbiArgKind)a->kind) {
        case ABI_ARG_POINTER:
        case ABI_ARG_SCALAR: args->slot[i] = value_of(b, a->index, word); break;
        case ABI_ARG_STRIDE: args->slot[i] = (uint64_t)b->stride[a->index][a->dim]; break;
        case ABI_ARG_SIZE: args->slot[i] = (uint32_t)(int32_t)b->size[a->index]; break;
        case ABI_ARG_INVERSE: args->slot[i] = inverse_of(b->size[a->index]); break;
        case ABI_ARG_MAP:
        case ABI_ARG_COUNT: args->slot[i] = 0; break;
        }
    }
    for (uint32_t i = 0; i < k->nmaps; i++) {
        uint16_t t = k->maps[i].tensor;
        const AbiTensor *tensor = &b->variant->tensors[t];
        args->map[i] = (RtMap){&k->maps[i],  b->value[t],  (AbiDtype)tensor->dtype,
                               tensor->rank, b->extent[t], b->stride[t]};
    }
}

typedef struct
    Gaps { // a tensor's dimensions of more than one element, from the least stride on, in bytes
    RtRows rows;
    int n;
    int64_t extent[ABI_MAX_RANK], stride[ABI_MAX_RANK]; // of those that are no rows
} Gaps;

static void sort_dimensions(Gaps *g, const RtBound *b, uint32_t i, int64_t bytes) {
    g->rows.at = (char *)(uintptr_t)b->value[i];
    for (int d = 0; d < b->variant->tensors[i].rank; d++) {
        int64_t extent = b->extent[i][d], stride = b->stride[i][d] * bytes;
        int at = g->n;
        if (extent < 2) continue;
        if (stride < 0) g->rows.at += stride * (extent - 1), stride = -stride;
        for (; at > 0 && g->stride[at - 1] > stride; at--)
            g->stride[at] = g->stride[at - 1], g->extent[at] = g->extent[at - 1];
        g->stride[at] = stride, g->extent[at] = extent;
        g->n++;
    }
}

// Dimensions without gaps are one run, those that go on from there its rows.
static void find_rows(Gaps *g, int64_t bytes) {
    int used = 0, n = 0;
    int64_t width = bytes, rows = 1, pitch = 0;
    for (; used < g->n && g->stride[used] == width; used++) width *= g->extent[used];
    if (used < g->n && g->stride[used] > width) {
        pitch = g->stride[used];
        for (; used < g->n && g->stride[used] == pitch * rows; used++) rows *= g->extent[used];
    }
    for (; used < g->n; used++, n++) g->stride[n] = g->stride[used], g->extent[n] = g->extent[used];
    g->n = n;
    g->rows.width = (size_t)width, g->rows.pitch = (size_t)pitch, g->rows.rows = (size_t)rows;
}

// An output, wherever its elements lie.
static attn_status zero_output(const RtBound *b, uint32_t i, void *stream, attn_error *error) {
    const attn_artifact *a = b->artifact;
    const AbiTensor *t = &b->variant->tensors[i];
    int64_t bytes = abi_dtype_bytes((AbiDtype)t->dtype), at[ABI_MAX_RANK] = {0};
    Gaps g = {.n = 0};
    for (int d = 0; d < t->rank; d++)
        if (b->extent[i][d] == 0) return ATTN_OK;
    if (!b->value[i]) return ATTN_OK; // left out
    sort_dimensions(&g, b, i, bytes);
    find_rows(&g, bytes);
    for (;;) {
        int d = 0;
        attn_status status = a->device->ops->zero(a->device, a->module, &g.rows, stream, error);
        if (status) return status;
        for (; d < g.n && ++at[d] == g.extent[d]; d++) {
            g.rows.at -= g.stride[d] * (g.extent[d] - 1);
            at[d] = 0;
        }
        if (d == g.n) return ATTN_OK;
        g.rows.at += g.stride[d];
    }
}

// Zeroes what has to be; *word: where that is one that the launch leaves 0, in its place.
static attn_status zero_tensors(const RtBound *b, void *stream, uint64_t *word, attn_error *error) {
    const attn_artifact *a = b->artifact;
    const RtOps *ops = a->device->ops;
    attn_status status = ATTN_OK;
    *word = 0;
    for (uint32_t i = 0; !status && i < b->variant->ntensors; i++) {
        uint8_t flags = b->variant->tensors[i].flags;
        if (flags & ABI_ZEROED && b->variant->tensors[i].role != ABI_ROLE_WORK)
            status = zero_output(b, i, stream, error);
        if (!(flags & ABI_ZEROED) || !b->work_bytes[i]) continue;
        if (flags & ABI_RESTORED && ops->word) *word = ops->word(a->device, a->module, stream);
        if (flags & ABI_RESTORED && *word) continue;
        RtRows all = {(char *)(uintptr_t)b->value[i], b->work_bytes[i], 0, 1};
        status = ops->zero(a->device, a->module, &all, stream, error);
    }
    return status;
}

static attn_status ready(const RtBound *b, attn_error *error) {
    const attn_artifact *a = b->artifact;
    attn_status status = ATTN_OK;
    for (uint32_t i = 0; a->device->ops->ready && !status && i < b->plan->nkernels; i++) {
        uint32_t k = b->plan->kernels[i];
        status = a->device->ops->ready(a->device, a->module, b->first + k, &b->variant->kernels[k],
                                       error);
    }
    return status;
}

static attn_status run(const RtBound *b, void *stream, attn_error *error) {
    const attn_artifact *a = b->artifact;
    int64_t tasks[ABI_MAX_KERNELS];
    uint64_t word = 0;
    RtArgs args = {.follows = false};
    attn_status status = ready(b, error);
    for (uint32_t i = 0; !status && i < b->plan->nkernels; i++)
        status = grid_tasks(b, &b->variant->kernels[b->plan->kernels[i]], &tasks[i], error);
    if (!status) status = zero_tensors(b, stream, &word, error);
    for (uint32_t i = 0; !status && i < b->plan->nkernels; i++) {
        uint32_t k = b->plan->kernels[i];
        if (tasks[i] == 0) continue;
        if (b->keep_map && abi_makes_kept(b->variant, &b->variant->kernels[k])) continue;
        pack(b, &b->variant->kernels[k], word, &args);
        status = a->device->ops->launch(a->device, a->module, b->first + k, &b->variant->kernels[k],
                                        &args, tasks[i], stream, error);
        args.follows = true;
    }
    return status ? status : rt_ok(error);
}

static attn_status bind_all(const attn_artifact *a, const attn_call *call, RtBound *b,
                            attn_error *error) {
    attn_status status = rt_bind(a, call, RT_ALL, b, error);
    return status ? status : give_workspace(b, call->workspace, call->workspace_bytes, error);
}

attn_status attn_launch(const attn_artifact *a, const attn_call *call, attn_error *error) {
    RtBound b;
    attn_status status = bind_all(a, call, &b, error);
    return status ? status : run(&b, call->stream, error);
}

attn_status attn_workspace_bytes(const attn_artifact *a, const attn_call *call, size_t *out,
                                 attn_error *error) {
    RtBound b;
    *out = 0;
    if (!a->device)
        return rt_fail(error, ATTN_ERROR_CALL, "the artifact was opened without a device");
    attn_status status = rt_bind(a, call, RT_SIZES, &b, error);
    if (status) return status;
    *out = b.workspace;
    return rt_ok(error);
}

attn_status attn_shape(const attn_artifact *a, const attn_call *call, const char *tensor,
                       int64_t *shape, int *rank, attn_error *error) {
    RtBound b;
    attn_status status = rt_bind(a, call, RT_SIZES, &b, error);
    if (status) return status;
    for (uint32_t i = 0; i < b.variant->ntensors; i++) {
        const AbiTensor *t = &b.variant->tensors[i];
        if (strcmp(t->name, tensor) != 0) continue;
        *rank = t->rank;
        for (int d = 0; d < t->rank; d++)
            if ((status = rt_eval(&b, &t->extent[d], t->name, &shape[d], error))) return status;
        return rt_ok(error);
    }
    return rt_fail(error, ATTN_ERROR_CALL, "%s: %s has no such tensor", tensor, b.variant->name);
}

// ---- prepared

struct attn_prepared {
    RtBound bound;
};

attn_status attn_prepare(const attn_artifact *a, const attn_call *call, attn_prepared **out,
                         attn_error *error) {
    attn_prepared *p = malloc(sizeof *p);
    *out = p;
    if (!p) return rt_fail(error, ATTN_ERROR_SYSTEM, "out of memory");
    attn_status status = bind_all(a, call, &p->bound, error);
    if (!status) status = ready(&p->bound, error);
    if (status) {
        free(p);
        *out = NULL;
        return status;
    }
    return rt_ok(error);
}

attn_status attn_launch_prepared(const attn_prepared *p, void *stream, attn_error *error) {
    return run(&p->bound, stream, error);
}

void attn_free_prepared(attn_prepared *p) { free(p); }
