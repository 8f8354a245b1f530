// artifact.c: opening artifacts and telling what they hold.
//
// Order of opening: metadata read and verified, the device it is for compared with the one asked
// for, the device opened, code loaded.
#include "rt.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static attn_device_kind runs_on(const AbiMeta *m) {
    switch ((AbiCode)m->code) {
    case ABI_CODE_PTX: return ATTN_CUDA;
    case ABI_CODE_HSACO: return ATTN_HIP;
    case ABI_CODE_HOST:
    case ABI_CODE_COUNT: break;
    }
    return ATTN_CPU;
}

static const char *kind_name(attn_device_kind kind) {
    switch (kind) {
    case ATTN_CPU: return "cpu";
    case ATTN_CUDA: return "cuda";
    case ATTN_HIP: return "hip";
    case ATTN_NO_DEVICE: break;
    }
    return "none";
}

static attn_artifact *new_artifact(attn_context *c, attn_error *error) {
    attn_artifact *a = calloc(1, sizeof *a);
    if (a)
        a->context = c;
    else
        rt_fail(error, ATTN_ERROR_SYSTEM, "out of memory");
    return a;
}

void attn_close(attn_artifact *a) {
    if (!a) return;
    if (a->module) a->device->ops->unload(a->device, a->module);
    abi_free(&a->meta);
    free(a);
}

// Opens the device and loads the code. path: the file it came from, or NULL.
static attn_status load(attn_artifact *a, attn_device device, const void *code, size_t n,
                        const char *path, attn_error *error) {
    if (device.kind == ATTN_NO_DEVICE) return ATTN_OK;
    if (device.kind != runs_on(&a->meta))
        return rt_fail(error, ATTN_ERROR_ARTIFACT,
                       "the artifact is for %s and runs on device %s, not on %s", a->meta.target,
                       kind_name(runs_on(&a->meta)), kind_name(device.kind));
    attn_status status = rt_device(a->context, device, &a->device, error);
    if (status) return status;
    if (device.kind != ATTN_CPU)
        return a->device->ops->load(a->device, &a->meta, code, n, &a->module, error);
    if (path) return rt_host_dlopen(&a->meta, path, &a->module, error);
    return rt_fail(error, ATTN_ERROR_ARTIFACT,
                   "host code cannot be loaded from memory: link it, or make a shared object of it "
                   "and open that file");
}

static attn_status open_bytes(attn_context *c, const void *bytes, size_t n, attn_device device,
                              const char *path, attn_artifact **out, attn_error *error) {
    const void *code;
    size_t code_n;
    *out = NULL;
    attn_artifact *a = new_artifact(c, error);
    if (!a) return ATTN_ERROR_SYSTEM;
    const char *why = abi_find(&a->meta, bytes, n, &code, &code_n);
    attn_status status = why ? rt_fail(error, ATTN_ERROR_ARTIFACT, "%s", why)
                             : load(a, device, code, code_n, path, error);
    if (status) {
        attn_close(a);
        return status;
    }
    *out = a;
    return rt_ok(error);
}

attn_status attn_open(attn_context *c, const void *bytes, size_t n, attn_device device,
                      attn_artifact **out, attn_error *error) {
    return open_bytes(c, bytes, n, device, NULL, out, error);
}

// The whole file; malloc'ed.
static attn_status read_file(const char *path, void **out, size_t *n, attn_error *error) {
    enum { MOST = 1 << 30 };
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) goto failed;
    if (!S_ISREG(st.st_mode) || st.st_size > MOST) {
        close(fd);
        return rt_fail(error, ATTN_ERROR_ARTIFACT, "%s: this is no artifact", path);
    }
    *n = 0;
    char *p = malloc((size_t)st.st_size + 1);
    while (p && *n < (size_t)st.st_size) {
        ssize_t got = read(fd, p + *n, (size_t)st.st_size - *n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            free(p);
            goto failed;
        }
        if (got == 0) break;
        *n += (size_t)got;
    }
    close(fd);
    *out = p;
    return p ? ATTN_OK : rt_fail(error, ATTN_ERROR_SYSTEM, "out of memory");
failed:
    rt_fail(error, ATTN_ERROR_SYSTEM, "%s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return ATTN_ERROR_SYSTEM;
}

attn_status attn_open_file(attn_context *c, const char *path, attn_device device,
                           attn_artifact **out, attn_error *error) {
    void *bytes;
    size_t n;
    *out = NULL;
    attn_status status = read_file(path, &bytes, &n, error);
    if (status) return status;
    status = open_bytes(c, bytes, n, device, path, out, error);
    free(bytes);
    return status;
}

static uint32_t count_kernels(const AbiMeta *m) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->nvariants; i++) n += m->variants[i].nkernels;
    return n;
}

attn_status attn_open_host(attn_context *c, const void *meta, size_t n,
                           const attn_host_kernel *kernels, size_t nkernels, attn_artifact **out,
                           attn_error *error) {
    *out = NULL;
    if (n == SIZE_MAX) n = abi_bytes(meta);
    attn_artifact *a = new_artifact(c, error);
    if (!a) return ATTN_ERROR_SYSTEM;
    const char *why = abi_read(&a->meta, meta, n);
    attn_status status = ATTN_OK;
    if (why)
        status = rt_fail(error, ATTN_ERROR_ARTIFACT, "%s", why);
    else if (a->meta.code != ABI_CODE_HOST)
        status = rt_fail(error, ATTN_ERROR_ARTIFACT, "the metadata is for %s, not for the host",
                         a->meta.target);
    else if (nkernels != count_kernels(&a->meta))
        status = rt_fail(error, ATTN_ERROR_ARTIFACT, "%zu kernels are given, the metadata has %u",
                         nkernels, count_kernels(&a->meta));
    if (!status) status = rt_device(c, (attn_device){ATTN_CPU, 0}, &a->device, error);
    if (!status) status = rt_host_functions(kernels, nkernels, &a->module, error);
    if (status) {
        attn_close(a);
        return status;
    }
    *out = a;
    return rt_ok(error);
}

// ---- what it holds

void attn_get_info(const attn_artifact *a, attn_artifact_info *out) {
    *out = (attn_artifact_info){
        .target = a->meta.target,
        .dtype = (attn_dtype)a->meta.dtype,
        .device = a->device ? a->device->id : (attn_device){ATTN_NO_DEVICE, 0},
        .variants = (int)a->meta.nvariants,
        .workers = a->device ? a->device->workers : 0,
    };
}

static const AbiVariant *variant_at(const attn_artifact *a, int i, attn_error *error) {
    if (i >= 0 && (uint32_t)i < a->meta.nvariants) return &a->meta.variants[i];
    rt_fail(error, ATTN_ERROR_CALL, "there is no variant %d, the artifact has %u", i,
            a->meta.nvariants);
    return NULL;
}

attn_status attn_get_variant(const attn_artifact *a, int variant, attn_variant_info *out,
                             attn_error *error) {
    const AbiVariant *v = variant_at(a, variant, error);
    if (!v) return ATTN_ERROR_CALL;
    bool tile_map = false;
    for (uint32_t k = 0; k < v->nkernels; k++) tile_map |= abi_makes_kept(v, &v->kernels[k]);
    *out = (attn_variant_info){
        .name = v->name,
        .phase = (attn_phase)v->phase,
        .D = (int)v->D,
        .Dv = (int)v->Dv,
        .sizes = (int)v->nsizes,
        .tensors = (int)v->ntensors,
        .tile_map = tile_map,
    };
    return rt_ok(error);
}

attn_status attn_get_size(const attn_artifact *a, int variant, int i, attn_size_info *out,
                          attn_error *error) {
    const AbiVariant *v = variant_at(a, variant, error);
    if (!v) return ATTN_ERROR_CALL;
    if (i < 0 || (uint32_t)i >= v->nsizes)
        return rt_fail(error, ATTN_ERROR_CALL, "there is no size %d, %s has %u", i, v->name,
                       v->nsizes);
    *out = (attn_size_info){.name = v->sizes[i].name, .given = v->sizes[i].def.n == 0};
    return rt_ok(error);
}

attn_status attn_get_tensor(const attn_artifact *a, int variant, int i, attn_tensor_info *out,
                            attn_error *error) {
    const AbiVariant *v = variant_at(a, variant, error);
    if (!v) return ATTN_ERROR_CALL;
    if (i < 0 || (uint32_t)i >= v->ntensors)
        return rt_fail(error, ATTN_ERROR_CALL, "there is no tensor %d, %s has %u", i, v->name,
                       v->ntensors);
    const AbiTensor *t = &v->tensors[i];
    *out = (attn_tensor_info){
        .name = t->name,
        .role = abi_role_name((AbiRole)t->role),
        .dtype = (attn_dtype)t->dtype,
        .rank = t->rank,
        .output = abi_output(v, t),
        .optional = (t->flags & ABI_OPTIONAL) != 0,
    };
    return rt_ok(error);
}
