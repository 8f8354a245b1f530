// codegen_util.h: runs a program's host code on the interpreter's tensors, so that the two can be
// held against each other. Every tensor lies against a page that may not be touched: a kernel that
// reads or writes past it dies.
#ifndef TESTS_UNIT_CODEGEN_UTIL_H
#define TESTS_UNIT_CODEGEN_UTIL_H

#include "codegen/jit.h"
#include "runtime/abi.h"
#include "tests/support/random.h"
#include "tests/unit/test.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

typedef void (*CuKernel)(const uint64_t *args, int64_t first, int64_t last);

typedef struct CuTensor {
    char *map, *at;
    size_t mapped;
    int64_t n, stride[TILE_MAX_DIMS];
} CuTensor;

typedef struct CuRun {
    const TileProgram *p;
    const TileData *d;
    CuTensor *tensors;
    CgJit *jit;
    AbiMeta meta;
    int64_t size[256]; // by the artifact's number
} CuRun;

// The host with at most this many lanes; false where this machine has fewer.
static inline bool cu_target(int lanes, Target *t) {
    *t = cg_target(TARGET_HOST);
    if (t->lanes < lanes) return false;
    if (lanes < t->lanes) t->registers = 16;
    t->lanes = lanes;
    return true;
}

// An f16's bits and value; v is exact in it.
static inline uint16_t cu_half(double v) {
    int e;
    double a = fabs(v);
    unsigned sign = signbit(v) ? 0x8000 : 0;
    if (isnan(v)) return 0x7e00;
    if (isinf(v)) return (uint16_t)(sign | 0x7c00);
    frexp(a, &e);
    if (a < 0x1p-14) return (uint16_t)(sign | (unsigned)(a * 0x1p24));
    return (uint16_t)(sign | ((unsigned)(e + 14) << 10 | ((unsigned)ldexp(a, 11 - e) & 1023)));
}

static inline double cu_half_value(uint16_t bits) {
    int e = bits >> 10 & 31, m = bits & 1023;
    double a =
        e == 31 ? (m ? (double)NAN : (double)INFINITY) : ldexp(e ? 1024 + m : m, e ? e - 25 : -24);
    return bits & 0x8000 ? -a : a;
}

static inline void cu_put(Dtype t, char *at, int64_t i, double v) {
    float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    switch (t) {
    case DT_F32: memcpy(at + 4 * i, &f, 4); return;
    case DT_I32: ((int32_t *)(void *)at)[i] = (int32_t)v; return;
    case DT_BF16: ((uint16_t *)(void *)at)[i] = (uint16_t)(bits >> 16); return; // v is exact in it
    case DT_F16: ((uint16_t *)(void *)at)[i] = cu_half(v); return;
    case DT_BOOL: at[i] = (char)v; return;
    case DT_E4M3: // of k and v (tests/run/serving.sh)
    case DT_E5M2:
    case DT_I8:
    case DT_COUNT: break;
    }
    ck_abort_msg("no tensors of type %s here", dtype_name(t));
}

static inline double cu_get(Dtype t, const char *at, int64_t i) {
    uint16_t narrow = 0;
    uint32_t bits;
    float f;
    if (t == DT_F32) return (double)((const float *)(const void *)at)[i];
    if (t == DT_I32) return ((const int32_t *)(const void *)at)[i];
    if (t == DT_BOOL) return at[i];
    memcpy(&narrow, at + 2 * i, 2);
    bits = (uint32_t)narrow << 16;
    memcpy(&f, &bits, sizeof f);
    if (t == DT_BF16) return (double)f;
    return cu_half_value(narrow);
}

// high: the tensor ends where the forbidden page begins; else it begins where one ends.
static inline void cu_tensor(const TileTensor *t, const TileData *d, const double *from, bool high,
                             CuTensor *out) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    out->n = tile_tensor_elements(t, d->size);
    size_t bytes = (size_t)out->n * (size_t)dtype_bytes(t->dtype),
           body = (bytes + page - 1) / page * page;
    out->mapped = body + 2 * page;
    out->map = mmap(NULL, out->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(out->map != MAP_FAILED);
    if (body) ck_assert_int_eq(mprotect(out->map + page, body, PROT_READ | PROT_WRITE), 0);
    out->at = out->map + page + (high ? body - bytes : 0);
    int64_t stride = 1;
    for (int i = t->rank - 1; i >= 0; i--) {
        out->stride[i] = stride;
        stride *= tile_eval_launch(t->extent[i], d->size, d->workers);
    }
    for (int64_t i = 0; from && i < out->n; i++) cu_put(t->dtype, out->at, i, from[i]);
}

static inline uint64_t cu_arg(const CuRun *r, const AbiArg *a) {
    uint64_t slot = 0;
    const CuTensor *t = &r->tensors[a->index];
    switch ((AbiArgKind)a->kind) {
    case ABI_ARG_POINTER: return (uint64_t)(uintptr_t)t->at;
    case ABI_ARG_STRIDE: return (uint64_t)t->stride[a->dim];
    case ABI_ARG_SIZE: return (uint32_t)r->size[a->index];
    case ABI_ARG_SCALAR: {
        Dtype type = r->p->tensors.data[a->index].dtype;
        double v = r->d->scalar[r->p->tensors.data[a->index].index];
        float f = (float)v;
        int32_t i = (int32_t)v;
        if (dtype_reads(type) == EX_F32)
            memcpy(&slot, &f, sizeof f);
        else
            memcpy(&slot, &i, sizeof i);
        return slot;
    }
    case ABI_ARG_INVERSE: // NVIDIA's GPUs
    case ABI_ARG_MAP:     // the same
    case ABI_ARG_COUNT: break;
    }
    ck_abort_msg("an argument's kind");
}

// As the launch does.
static inline void cu_zero(const CuRun *r) {
    for (int i = 0; i < r->p->tensors.n; i++)
        if (r->meta.variants[0].tensors[i].flags & ABI_ZEROED)
            memset(r->tensors[i].at, 0,
                   (size_t)r->tensors[i].n * (size_t)dtype_bytes(r->p->tensors.data[i].dtype));
}

typedef struct CuPiece {
    CuKernel run;
    const uint64_t *args;
    int64_t first, last;
} CuPiece;

static inline void *cu_piece(void *of) {
    const CuPiece *p = of;
    p->run(p->args, p->first, p->last);
    return NULL;
}

static inline void cu_launch(CuRun *r, int kernel) {
    const AbiKernel *k = &r->meta.variants[0].kernels[kernel];
    int64_t total = 1;
    uint64_t args[ABI_MAX_ARGS];
    for (uint32_t i = 0; i < k->ngrid; i++) {
        int64_t n = 0;
        ck_assert(abi_eval(&k->grid[i], r->size, r->d->workers, &n));
        total *= n;
    }
    for (uint32_t i = 0; i < k->nargs; i++) args[i] = cu_arg(r, &k->args[i]);
    CuKernel run = (CuKernel)cg_jit_function(r->jit, k->symbol);
    ck_assert(run != NULL);
    CuPiece later = {run, args, total / 2, total}; // in any order, in any pieces, at the same time
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, cu_piece, &later), 0);
    run(args, 0, total / 2);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
}

static inline void cu_sizes(CuRun *r) {
    const AbiVariant *v = &r->meta.variants[0];
    for (uint32_t k = 0; k < v->nsizes; k++)
        for (int i = 0; i < r->p->sizes.n; i++)
            if (!strcmp(v->sizes[k].name, r->p->sizes.data[i].name)) r->size[k] = r->d->size[i];
}

// As the runtime chooses.
static inline const AbiPlan *cu_plan(const CuRun *r) {
    const AbiVariant *v = &r->meta.variants[0];
    int64_t holds = 0;
    for (uint32_t i = 0; i < v->nplans; i++) {
        if (!v->plans[i].when.n) return &v->plans[i];
        ck_assert(abi_eval(&v->plans[i].when, r->size, r->d->workers, &holds));
        if (holds) return &v->plans[i];
    }
    ck_abort_msg("no plan fits");
}

// Runs the program's plan for these sizes on the data's tensors; what it writes is put back into
// them.
static inline void cu_run(Arena *a, const TileProgram *p, const TileData *d, int lanes, bool high) {
    CgOptions o = {.opt = 3};
    Target target;
    CuRun r = {.p = p, .d = d, .tensors = ARENA_ARRAY(a, CuTensor, p->tensors.n)};
    Diags diags = diag_list(a);
    ck_assert(cu_target(lanes, &target));
    r.jit = cg_jit_on(&target, &p, 1, &o, &diags);
    if (!r.jit) diag_print(&diags, stderr);
    ck_assert(r.jit != NULL);
    size_t n;
    const void *bytes = cg_jit_metadata(r.jit, &n);
    ck_assert(abi_read(&r.meta, bytes, n) == NULL);
    for (int i = 0; i < p->tensors.n; i++)
        cu_tensor(&p->tensors.data[i], d, d->tensor[i], high, &r.tensors[i]);
    cu_sizes(&r);
    const AbiPlan *plan = cu_plan(&r);
    cu_zero(&r);
    for (uint32_t i = 0; i < plan->nkernels; i++) cu_launch(&r, plan->kernels[i]);
    for (int i = 0; i < p->tensors.n; i++) {
        bool written = tile_is_written(p, &p->tensors.data[i]);
        for (int64_t e = 0; written && d->tensor[i] && e < r.tensors[i].n; e++)
            d->tensor[i][e] = cu_get(p->tensors.data[i].dtype, r.tensors[i].at, e);
        munmap(r.tensors[i].map, r.tensors[i].mapped);
    }
    abi_free(&r.meta);
    cg_jit_free(r.jit);
}

#endif
