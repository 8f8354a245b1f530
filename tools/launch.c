// launch.c: see launch.h.
#include "launch.h"
#include "files.h"
#include "runtime/device.h"
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

Status launch_failed(const attn_error *e) {
    bool input = e->status == ATTN_ERROR_CALL || e->status == ATTN_ERROR_ARTIFACT;
    return cmd_fail(input ? STATUS_INPUT : STATUS_SYSTEM, "%s", e->message);
}

static Status start(Launch *l, const Options *o) {
    static const attn_device_kind kinds[] = {ATTN_CPU, ATTN_CUDA, ATTN_HIP};
    bool own = l->context == NULL;
    *l = (Launch){.context = own ? attn_create() : l->context,
                  .own_context = own,
                  .device = {kinds[o->device], o->ordinal}};
    return l->context ? STATUS_DONE : cmd_fail(STATUS_SYSTEM, "out of memory");
}

void launch_close(Launch *l) {
    launch_unbind(l);
    if (l->jit.code)
        jit_close(&l->jit);
    else if (l->artifact)
        attn_close(l->artifact);
    abi_free(&l->meta);
    if (l->own_context) attn_destroy(l->context);
    *l = (Launch){0};
}

// ---- from source

static Status open_jit(Launch *l, Compile *c) {
    attn_error e = {.status = ATTN_OK};
    bool good = jit_open(&l->jit, l->context, c, &e);
    l->artifact = l->jit.artifact;
    if (e.status) return launch_failed(&e);
    return good ? STATUS_DONE : STATUS_INPUT;
}

static Status open_gpu(Launch *l, Compile *c) {
    void *code;
    size_t n;
    attn_error e;
    if (!compile_emit(c, compile_artifact(c->options.target), &code, &n)) return STATUS_INPUT;
    attn_status bad = attn_open(l->context, code, n, l->device, &l->artifact, &e);
    free(code);
    return bad ? launch_failed(&e) : STATUS_DONE;
}

Status launch_open_source(Launch *l, Arena *a, Compile *c, const Options *o) {
    Status s = start(l, o);
    if (s != STATUS_DONE) return s;
    l->dtype = c->options.dtype;
    l->tf32 = c->options.tf32;
    if (c->variants.n == 1) l->sig = sig_of_variant(a, c->variants.data[0], l->dtype);
    return o->device == DEVICE_CPU ? open_jit(l, c) : open_gpu(l, c);
}

// ---- from an artifact

// A relocatable object becomes code by linking, which is the system compiler's work.
static Status open_object(Launch *l, const char *path) {
    const char *folder = getenv("TMPDIR");
    char shared[PATH_MAX], *full = realpath(path, NULL); // no option of cc
    attn_error e;
    snprintf(shared, sizeof shared, "%s/attnc-XXXXXX.so", folder && *folder ? folder : "/tmp");
    int fd = full ? mkstemps(shared, 3) : -1, status = -1;
    pid_t pid;
    if (fd < 0) {
        free(full);
        return cmd_fail(STATUS_SYSTEM, "cannot make the temporary file %s", shared);
    }
    close(fd);
    char *argv[] = {"cc", "-shared", "-o", shared, full, "-lm", NULL};
    bool linked = posix_spawnp(&pid, "cc", NULL, NULL, argv, environ) == 0 &&
                  waitpid(pid, &status, 0) == pid && status == 0;
    free(full);
    attn_status bad =
        linked ? attn_open_file(l->context, shared, l->device, &l->artifact, &e) : ATTN_OK;
    unlink(shared);
    if (!linked) return cmd_fail(STATUS_SYSTEM, "%s: linking it with `cc -shared` failed", path);
    return bad ? launch_failed(&e) : STATUS_DONE;
}

static Status signature(Launch *l, Arena *a, const Options *o) {
    const AbiMeta *m = &l->meta;
    const AbiVariant *found = NULL;
    for (uint32_t i = 0; i < m->nvariants; i++) {
        if (o->entry ? strcmp(m->variants[i].name, o->entry) != 0 : i > 0) continue;
        found = &m->variants[i];
    }
    if (!found) return cmd_fail(STATUS_USAGE, "the artifact holds no %s", o->entry);
    if (!o->entry && m->nvariants > 1) return STATUS_DONE;
    l->dtype = (Dtype)m->dtype;
    l->sig = sig_of_artifact(a, found);
    return l->sig ? STATUS_DONE
                  : cmd_fail(STATUS_INPUT,
                             "the artifact describes tensors in a way this version does not know");
}

Status launch_open_file(Launch *l, Arena *a, const char *path, const Options *o) {
    void *bytes;
    const void *code;
    size_t n, code_n;
    attn_error e;
    Status s = start(l, o);
    if (s == STATUS_DONE) s = file_read(path, &bytes, &n);
    if (s != STATUS_DONE) return s;
    const char *bad = abi_find(&l->meta, bytes, n, &code, &code_n);
    if (bad)
        s = cmd_fail(STATUS_INPUT, "%s: %s", path, bad);
    else
        s = signature(l, a, o);
    bool object = !bad && l->meta.code == ABI_CODE_HOST && n > 16 &&
                  ((const char *)bytes)[16] == 1; // ELF's e_type: ET_REL
    if (s == STATUS_DONE && object)
        s = open_object(l, path);
    else if (s == STATUS_DONE && attn_open_file(l->context, path, l->device, &l->artifact, &e))
        s = launch_failed(&e);
    free(bytes);
    return s;
}

// ---- one binding

static Status place(Launch *l, int arg, attn_tensor *t) {
    const SigArg *g = &l->sig->args.data[arg];
    const Tensor *x = &l->binding->tensor[arg];
    size_t bytes = (size_t)x->count * (size_t)dtype_bytes(x->dtype);
    attn_error e;
    *t = (attn_tensor){g->name, x->data, (attn_dtype)x->dtype, x->rank, x->dim, NULL, l->device};
    if (l->device.kind == ATTN_CPU) return STATUS_DONE;
    if (l->lender) {
        t->data = l->lender->memory[arg];
        return STATUS_DONE;
    }
    if (attn_memory_alloc(l->context, l->device, bytes ? bytes : 1, &l->memory[arg], &e))
        return launch_failed(&e);
    t->data = l->memory[arg];
    return bytes && attn_copy_to(l->context, l->device, t->data, x->data, bytes, &e)
               ? launch_failed(&e)
               : STATUS_DONE;
}

static bool makes_map(const Launch *l, const char *variant) {
    attn_variant_info v;
    for (int i = 0; !attn_get_variant(l->artifact, i, &v, NULL); i++)
        if (!strcmp(v.name, variant)) return v.tile_map;
    return false;
}

static Status prepare(Launch *l, attn_call *call) {
    size_t n;
    attn_error e;
    if (attn_workspace_bytes(l->artifact, call, &n, &e)) return launch_failed(&e);
    if (n && attn_memory_alloc(l->context, l->device, n, &l->workspace, &e))
        return launch_failed(&e);
    call->workspace = l->workspace;
    call->workspace_bytes = n;
    if (attn_prepare(l->artifact, call, &l->prepared, &e)) return launch_failed(&e);
    if (!makes_map(l, call->variant)) return STATUS_DONE;
    call->flags = ATTN_KEEP_MAP;
    return attn_prepare(l->artifact, call, &l->kept, &e) ? launch_failed(&e) : STATUS_DONE;
}

Status launch_bind(Launch *l, const Binding *b) {
    const Signature *sig = l->sig;
    attn_tensor *tensors = calloc((size_t)sig->args.n + 1, sizeof *tensors);
    attn_scalar *scalars = calloc((size_t)sig->args.n + 1, sizeof *scalars);
    attn_size *sizes = calloc((size_t)sig->sizes.n + 1, sizeof *sizes);
    attn_call call = {.variant = sig->name, .tensors = tensors, .scalars = scalars, .sizes = sizes};
    Status s = STATUS_DONE;
    l->binding = b;
    l->memory = calloc((size_t)sig->args.n + 1, sizeof *l->memory);
    if (!tensors || !scalars || !sizes || !l->memory) s = cmd_fail(STATUS_SYSTEM, "out of memory");
    for (int i = 0; i < sig->args.n && s == STATUS_DONE; i++) {
        if (sig->args.data[i].rank)
            s = place(l, i, &tensors[call.ntensors++]);
        else
            scalars[call.nscalars++] = (attn_scalar){sig->args.data[i].name, b->scalar[i]};
    }
    for (int i = 0; i < sig->sizes.n && s == STATUS_DONE; i++)
        sizes[call.nsizes++] = (attn_size){sig->sizes.data[i], b->size[i]};
    if (s == STATUS_DONE) s = prepare(l, &call);
    free(tensors);
    free(scalars);
    free(sizes);
    return s;
}

Status launch_run(Launch *l) {
    attn_error e;
    if (attn_launch_prepared(l->prepared, NULL, &e)) return launch_failed(&e);
    return attn_synchronize(l->context, l->device, &e) ? launch_failed(&e) : STATUS_DONE;
}

Status launch_fetch(Launch *l) {
    attn_error e;
    for (int i = 0; i < l->sig->args.n && l->device.kind != ATTN_CPU; i++) {
        const Tensor *x = &l->binding->tensor[i];
        size_t bytes = (size_t)x->count * (size_t)dtype_bytes(x->dtype);
        const void *from = (l->lender ? l->lender : l)->memory[i];
        if (l->sig->args.data[i].role == ARG_OUTPUT &&
            attn_copy_from(l->context, l->device, x->data, from, bytes, &e))
            return launch_failed(&e);
    }
    return STATUS_DONE;
}

void launch_unbind(Launch *l) {
    if (l->prepared) attn_free_prepared(l->prepared);
    if (l->kept) attn_free_prepared(l->kept);
    for (int i = 0; l->memory && i < l->sig->args.n; i++)
        if (l->memory[i]) attn_memory_free(l->context, l->device, l->memory[i]);
    if (l->workspace) attn_memory_free(l->context, l->device, l->workspace);
    free(l->memory);
    l->memory = NULL;
    l->workspace = NULL;
    l->prepared = l->kept = NULL;
}
