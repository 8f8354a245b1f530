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
                  .parts = o->parts,
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

const Signature *launch_signature(Arena *a, const Compile *c) {
    const Variant *v = c->variants.data[0];
    Signature *sig = sig_of_batch(a, v, c->options.dtype, c->options.batch, c->options.page);
    sig_set_kv(sig, c->options.kv);
    if (c->options.phases & COMPILE_BWD) sig_add_gradients(a, sig, v);
    return sig;
}

Status launch_open_source(Launch *l, Arena *a, Compile *c, const Options *o) {
    Status s = start(l, o);
    if (s != STATUS_DONE) return s;
    l->dtype = c->options.dtype;
    l->tf32 = c->options.tf32;
    if (c->variants.n == 1) l->sig = launch_signature(a, c);
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

static const AbiVariant *find(const AbiMeta *m, const char *name, AbiPhase phase) {
    for (uint32_t i = 0; i < m->nvariants; i++)
        if (m->variants[i].phase == phase && strcmp(m->variants[i].name, name) == 0)
            return &m->variants[i];
    return NULL;
}

static bool names_gradient(const Signature *sig, const NameValue *pairs, int n) {
    for (int i = 0; i < n; i++)
        if (sig_is_gradient(sig, pairs[i].name)) return true;
    return false;
}

bool launch_names_gradient(const Signature *sig, const Options *o) {
    return names_gradient(sig, o->in.data, o->in.n) || names_gradient(sig, o->out.data, o->out.n);
}

static Status signature(Launch *l, Arena *a, const Options *o, const char *path) {
    const AbiMeta *m = &l->meta;
    const char *name = o->entry ? o->entry : m->nvariants ? m->variants[0].name : "variant";
    for (uint32_t i = 1; i < m->nvariants && !o->entry; i++)
        if (strcmp(m->variants[i].name, name) != 0) return STATUS_DONE; // several
    const AbiVariant *forward = find(m, name, ABI_FWD), *backward = find(m, name, ABI_BWD);
    if (!forward && !backward) return cmd_fail(STATUS_USAGE, "the artifact holds no %s", name);
    if (!forward)
        return cmd_fail(STATUS_INPUT,
                        "%s holds the backward of %s alone, which needs what the forward gives: "
                        "compile it with --phase=fwd,bwd",
                        path, name);
    l->dtype = (Dtype)m->dtype;
    Signature *sig = sig_of_artifact(a, forward);
    bool known = sig != NULL;
    if (sig && launch_names_gradient(sig, o)) {
        if (!backward)
            return cmd_fail(STATUS_INPUT, "%s holds no backward: compile it with --phase=fwd,bwd",
                            path);
        known = sig_add_gradients_of(a, sig, backward);
    }
    l->sig = sig;
    return known ? STATUS_DONE
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
        s = signature(l, a, o, path);
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

// ---- the calls of the phases

static int variant_of(const Launch *l, attn_phase phase, attn_variant_info *v) {
    for (int i = 0; !attn_get_variant(l->artifact, i, v, NULL); i++)
        if (v->phase == phase && !strcmp(v->name, l->sig->name)) return i;
    return -1;
}

// What the forward keeps for the backward is made when the first of them names it.
static Status saved(Launch *l, const attn_call *call, const attn_tensor_info *info,
                    attn_tensor *t) {
    attn_error e;
    LaunchSaved *x = NULL;
    for (int i = 0; i < l->saved.n && !x; i++)
        if (!strcmp(l->saved.data[i].name, info->name)) x = &l->saved.data[i];
    if (!x) {
        LaunchSaved made = {.name = info->name};
        int64_t n = dtype_bytes((Dtype)info->dtype);
        if (attn_shape(l->artifact, call, info->name, made.shape, &made.rank, &e))
            return launch_failed(&e);
        for (int i = 0; i < made.rank; i++) n *= made.shape[i];
        if (attn_memory_alloc(l->context, l->device, n ? (size_t)n : 1, &made.data, &e))
            return launch_failed(&e);
        VEC_PUSH(l->arena, &l->saved, made);
        x = &l->saved.data[l->saved.n - 1];
    }
    *t = (attn_tensor){x->name, x->data, info->dtype, x->rank, x->shape, NULL, l->device};
    return STATUS_DONE;
}

static bool takes(const attn_tensor_info *info, const char *name) {
    bool inner = strcmp(info->role, "work") == 0 || strcmp(info->role, "saved") == 0;
    return !inner && strcmp(info->name, name) == 0;
}

// The tensors of a phase, by the artifact: arguments of the signature.
Status launch_call(Launch *l, attn_phase phase, const attn_tensor *placed, LaunchCall *p) {
    const Signature *sig = l->sig;
    attn_variant_info v = {0};
    attn_tensor_info info;
    int variant = variant_of(l, phase, &v);
    p->tensors = calloc((size_t)v.tensors + 1, sizeof *p->tensors);
    p->scalars = calloc((size_t)v.tensors + 1, sizeof *p->scalars);
    p->sizes = calloc((size_t)(sig->sizes.n + LAUNCH_MORE_SIZES), sizeof *p->sizes);
    if (!p->tensors || !p->scalars || !p->sizes) return cmd_fail(STATUS_SYSTEM, "out of memory");
    attn_call *c = &p->call;
    *c = (attn_call){.variant = sig->name,
                     .phase = phase,
                     .tensors = p->tensors,
                     .scalars = p->scalars,
                     .sizes = p->sizes};
    p->makes_map = v.tile_map;
    for (int i = 0; i < sig->sizes.n; i++)
        p->sizes[c->nsizes++] = (attn_size){sig->sizes.data[i], l->binding->size[i]};
    for (int arg = 0; arg < sig->args.n; arg++)
        for (int i = 0; !attn_get_tensor(l->artifact, variant, i, &info, NULL); i++) {
            if (!takes(&info, sig->args.data[arg].name)) continue;
            if (info.rank && !l->binding->tensor[arg].data) continue; // left out
            if (info.rank)
                p->tensors[c->ntensors++] = placed[arg];
            else
                p->scalars[c->nscalars++] = (attn_scalar){info.name, l->binding->scalar[arg]};
        }
    return STATUS_DONE;
}

Status launch_add_saved(Launch *l, LaunchCall *p) {
    attn_call *c = &p->call;
    attn_variant_info v;
    attn_tensor_info info;
    int variant = variant_of(l, c->phase, &v);
    Status s = STATUS_DONE;
    for (int i = 0; l->sig->backward && s == STATUS_DONE &&
                    !attn_get_tensor(l->artifact, variant, i, &info, NULL);
         i++) {
        if (strcmp(info.role, "saved") != 0) continue;
        s = saved(l, c, &info, &p->tensors[c->ntensors]);
        c->ntensors++;
    }
    return s;
}

Status launch_prepare(Launch *l, LaunchCall *p, void **workspace, attn_prepared **prepared,
                      attn_prepared **kept) {
    attn_call *call = &p->call;
    attn_error e;
    if (attn_workspace_bytes(l->artifact, call, &call->workspace_bytes, &e))
        return launch_failed(&e);
    if (call->workspace_bytes &&
        attn_memory_alloc(l->context, l->device, call->workspace_bytes, workspace, &e))
        return launch_failed(&e);
    call->workspace = *workspace;
    if (attn_prepare(l->artifact, call, prepared, &e)) return launch_failed(&e);
    if (!p->makes_map || !kept) return STATUS_DONE;
    call->flags = ATTN_KEEP_MAP;
    return attn_prepare(l->artifact, call, kept, &e) ? launch_failed(&e) : STATUS_DONE;
}

void launch_free_call(LaunchCall *p) {
    free(p->tensors);
    free(p->scalars);
    free(p->sizes);
    *p = (LaunchCall){0};
}

static Status phase(Launch *l, attn_phase phase, const attn_tensor *placed, void **workspace,
                    attn_prepared **prepared, attn_prepared **kept) {
    LaunchCall p = {0};
    Status s = launch_call(l, phase, placed, &p);
    if (s == STATUS_DONE) s = launch_add_saved(l, &p);
    if (s == STATUS_DONE) s = launch_prepare(l, &p, workspace, prepared, kept);
    launch_free_call(&p);
    return s;
}

// The backward of an input that nothing smooth reads does not name its gradient, which is 0.
static void zero_unnamed(const Launch *l, int arg) {
    const Tensor *t = &l->binding->tensor[arg];
    attn_variant_info v;
    attn_tensor_info info;
    int variant = variant_of(l, ATTN_BWD, &v);
    if (l->sig->args.data[arg].role != ARG_GRAD_OUT) return;
    for (int i = 0; !attn_get_tensor(l->artifact, variant, i, &info, NULL); i++)
        if (takes(&info, l->sig->args.data[arg].name)) return;
    memset(t->data, 0, (size_t)t->count * (size_t)dtype_bytes(t->dtype));
}

Status launch_bind(Launch *l, const Binding *b) {
    const Signature *sig = l->sig;
    attn_tensor *placed = calloc((size_t)sig->args.n + 1, sizeof *placed);
    Status s = STATUS_DONE;
    l->binding = b;
    l->arena = arena_new();
    l->memory = calloc((size_t)sig->args.n + 1, sizeof *l->memory);
    if (!placed || !l->memory) s = cmd_fail(STATUS_SYSTEM, "out of memory");
    for (int i = 0; i < sig->args.n && s == STATUS_DONE; i++) {
        zero_unnamed(l, i);
        if (sig->args.data[i].rank && b->tensor[i].data) s = place(l, i, &placed[i]);
    }
    if (s == STATUS_DONE && l->parts && sig->recurrence)
        s = cmd_fail(STATUS_USAGE, "--parts=%d: cuts keys, and %s is a recurrence", l->parts,
                     sig->name);
    else if (s == STATUS_DONE && l->parts && sig->batch)
        s = cmd_fail(STATUS_USAGE, "--parts=%d: goes with --layout=dense", l->parts);
    else if (s == STATUS_DONE && l->parts)
        s = launch_parts(l, placed);
    else if (s == STATUS_DONE)
        s = phase(l, ATTN_FWD, placed, &l->workspace, &l->prepared, &l->kept);
    if (s == STATUS_DONE && sig->backward)
        s = phase(l, ATTN_BWD, placed, &l->backward_workspace, &l->backward, &l->backward_kept);
    free(placed);
    return s;
}

Status launch_run(Launch *l) {
    attn_error e;
    bool failed = l->prepared && attn_launch_prepared(l->prepared, NULL, &e);
    for (int i = 0; i < l->steps.n && !failed; i++)
        failed =
            l->steps.data[i].prepared && attn_launch_prepared(l->steps.data[i].prepared, NULL, &e);
    if (failed || (l->backward && attn_launch_prepared(l->backward, NULL, &e)))
        return launch_failed(&e);
    return attn_synchronize(l->context, l->device, &e) ? launch_failed(&e) : STATUS_DONE;
}

Status launch_fetch(Launch *l) {
    attn_error e;
    for (int i = 0; i < l->sig->args.n && l->device.kind != ATTN_CPU; i++) {
        const Tensor *x = &l->binding->tensor[i];
        size_t bytes = (size_t)x->count * (size_t)dtype_bytes(x->dtype);
        const void *from = (l->lender ? l->lender : l)->memory[i];
        ArgRole role = l->sig->args.data[i].role;
        if ((role == ARG_OUTPUT || role == ARG_GRAD_OUT) &&
            attn_copy_from(l->context, l->device, x->data, from, bytes, &e))
            return launch_failed(&e);
    }
    return STATUS_DONE;
}

void launch_unbind(Launch *l) {
    attn_prepared *const prepared[] = {l->prepared, l->kept, l->backward, l->backward_kept};
    void *const workspace[] = {l->workspace, l->backward_workspace};
    for (int i = 0; i < 4; i++)
        if (prepared[i]) attn_free_prepared(prepared[i]);
    for (int i = 0; i < 2; i++)
        if (workspace[i]) attn_memory_free(l->context, l->device, workspace[i]);
    for (int i = 0; i < l->steps.n; i++) {
        if (l->steps.data[i].prepared) attn_free_prepared(l->steps.data[i].prepared);
        if (l->steps.data[i].memory)
            attn_memory_free(l->context, l->device, l->steps.data[i].memory);
    }
    for (int i = 0; i < l->saved.n; i++)
        attn_memory_free(l->context, l->device, l->saved.data[i].data);
    for (int i = 0; l->memory && i < l->sig->args.n; i++)
        if (l->memory[i]) attn_memory_free(l->context, l->device, l->memory[i]);
    free(l->memory);
    arena_free(l->arena);
    l->memory = NULL;
    l->arena = NULL;
    l->saved.n = l->saved.cap = 0;
    l->saved.data = NULL;
    l->steps.n = l->steps.cap = 0;
    l->steps.data = NULL;
    l->workspace = l->backward_workspace = NULL;
    l->prepared = l->kept = l->backward = l->backward_kept = NULL;
}
