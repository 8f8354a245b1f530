// rig.c: see rig.h.
#include "tests/gen/rig.h"
#include "tests/gen/place.h"
#include "tests/support/agree.h"
#include "tests/support/differ.h"
#include "tools/jit.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_PAIRS = 1 << 17 }; // that the reference computes of a launch

bool rig_open(Rig *r, RigKind kind, char *message, size_t n) {
    static const attn_device_kind kinds[] = {ATTN_CPU, ATTN_CUDA, ATTN_HIP};
    const char *name;
    attn_error e;
    *r = (Rig){.kind = kind, .context = attn_create(), .device = {kinds[kind], 0}};
    snprintf(message, n, "out of memory");
    if (!r->context) return false;
    attn_set_threads(r->context, 1, NULL);
    if (kind == RIG_AMD) {
        r->gcn = gcn_device(r->context);
        r->target[0] = TARGET_GFX90A, r->target[1] = TARGET_GFX942, r->target[2] = TARGET_GFX1100;
        r->ntargets = 3;
        return r->gcn != NULL;
    }
    if (kind == RIG_HOST) return r->target[r->ntargets++] = TARGET_HOST, true;
    r->target[r->ntargets++] = TARGET_SM80;
    if (!attn_device_target(r->context, r->device, &name, &e)) {
        if (!strcmp(name, "sm_90a")) r->target[r->ntargets++] = TARGET_SM90A;
        return true;
    }
    snprintf(message, n, "%s", e.message);
    return false;
}

void rig_close(Rig *r) {
    attn_destroy(r->context);
    *r = (Rig){0};
}

// ---- one variant

typedef struct Job {
    Rig *rig;
    const GenCase *c;
    FILE *log;
    Compile compile;
    Binding b;
    Oracle x;
    Jit jit;
    attn_artifact *artifact;
    Place place;
    void *memory;
    uint8_t *back;
    unsigned char *rows;
} Job;

static RigVerdict say(const Job *j, RigVerdict v, const char *what, const char *more) {
    if (j->log) fprintf(j->log, "  %s: %s\n", what, more);
    return v;
}

static RigVerdict device_says(const Job *j, const attn_error *e) {
    bool call = e->status == ATTN_ERROR_CALL || e->status == ATTN_ERROR_ARTIFACT;
    return say(j, call ? RIG_REFUSED : RIG_FAULT, call ? "refused" : "device", e->message);
}

static RigVerdict compile(Job *j) {
    const GenCase *c = j->c;
    void *code = NULL;
    size_t n;
    attn_error e = {.status = ATTN_OK};
    CompileOptions o = {
        .source = {.path = "random.attn", .text = c->source, .text_bytes = strlen(c->source)},
        .target = c->target,
        .dtype = c->dtype,
        .level = c->level};
    bool good = compile_open(&j->compile, &o) == FE_OK;
    if (good && j->rig->kind == RIG_HOST) {
        good = jit_open(&j->jit, j->rig->context, &j->compile, &e);
        j->artifact = j->jit.artifact;
    } else if (good) {
        good = compile_emit(&j->compile, compile_artifact(c->target), &code, &n);
        if (good) attn_open(j->rig->context, code, n, j->rig->device, &j->artifact, &e);
        free(code);
    }
    if (j->log && j->compile.diags.errors) diag_print(&j->compile.diags, j->log);
    if (e.status) return device_says(j, &e);
    return good ? RIG_GOOD : say(j, RIG_REFUSED, "compile", "errors");
}

// All rows where that is soon done; else the first and last, and others by the seed.
static unsigned char *some_rows(const Job *j) {
    const int32_t *n = j->b.size;
    int64_t rows = (int64_t)n[SIZE_B] * n[SIZE_HQ] * n[SIZE_SQ], keys = n[SIZE_SK];
    if (rows * keys <= MOST_PAIRS) return NULL;
    int64_t few = MOST_PAIRS / keys;
    unsigned char *some = calloc((size_t)rows + 1, 1);
    for (int64_t i = 0; i < few; i++)
        some[(int64_t)(tensor_uniform(j->c->options.seed, "rows", i) * (double)rows)] = 1;
    some[0] = some[rows - 1] = 1;
    return some;
}

static RigVerdict bind(Job *j) {
    Arena *a = j->compile.arena;
    const Variant *v = j->compile.variants.data[0];
    const Signature *sig = sig_of_variant(a, v, j->c->dtype);
    if (bind_make(&j->b, a, sig, &j->c->options, j->c->shape) != STATUS_DONE)
        return say(j, RIG_REFUSED, "bind", j->c->shape);
    j->rows = some_rows(j);
    OracleAsk ask = {.what = ORACLE_OPEN | ORACLE_WRITTEN,
                     .dot_error = oracle_dot_error(j->c->dtype, false, sig->D),
                     .rows = j->rows};
    if (oracle_run(&j->x, v, &j->b, &ask) != STATUS_DONE)
        return say(j, RIG_REFUSED, "reference", j->c->shape);
    return RIG_GOOD;
}

static attn_status launch(Job *j, int garbage, attn_error *e) {
    const Signature *sig = j->b.sig;
    Place *p = &j->place;
    Arena *a = j->compile.arena;
    attn_tensor *tensors = ARENA_ARRAY(a, attn_tensor, sig->args.n);
    attn_scalar *scalars = ARENA_ARRAY(a, attn_scalar, sig->args.n);
    attn_size *sizes = ARENA_ARRAY(a, attn_size, sig->sizes.n);
    attn_call call = {.variant = sig->name, .tensors = tensors, .scalars = scalars, .sizes = sizes};
    char *base = j->memory;
    for (int i = 0; i < sig->args.n; i++) {
        const Tensor *t = &j->b.tensor[i];
        if (sig->args.data[i].rank)
            tensors[call.ntensors++] = (attn_tensor){sig->args.data[i].name,
                                                     base ? base + p->at[i] : NULL,
                                                     (attn_dtype)t->dtype,
                                                     t->rank,
                                                     t->dim,
                                                     p->stride[i].of,
                                                     j->rig->device};
        else
            scalars[call.nscalars++] = (attn_scalar){sig->args.data[i].name, j->b.scalar[i]};
    }
    for (int i = 0; i < sig->sizes.n; i++)
        sizes[call.nsizes++] = (attn_size){sig->sizes.data[i], j->b.size[i]};
    attn_status s = attn_workspace_bytes(j->artifact, &call, &call.workspace_bytes, e);
    if (s) return s;
    if (!base) { // the first time: now it is known how much memory that takes
        place_workspace(p, call.workspace_bytes);
        j->back = malloc(p->bytes);
        s = attn_memory_alloc(j->rig->context, j->rig->device, p->bytes, &j->memory, e);
        return s ? s : launch(j, garbage, e);
    }
    if (call.workspace_bytes) call.workspace = base + p->work_at;
    if (!place_fill(p, garbage)) return ATTN_ERROR_SYSTEM;
    s = attn_copy_to(j->rig->context, j->rig->device, base, p->host, p->bytes, e);
    if (!s) s = attn_launch(j->artifact, &call, e);
    if (!s) s = attn_synchronize(j->rig->context, j->rig->device, e);
    if (!s) s = attn_copy_from(j->rig->context, j->rig->device, j->back, base, p->bytes, e);
    return s;
}

// Two launches, with other garbage in outputs and workspace, give the same bits: all of an output is
// written, and nothing else is read.
static RigVerdict launches(Job *j) {
    static const int garbage[] = {0xff, 0x5a}; // NaN in every float type, and large
    const Signature *sig = j->b.sig;
    attn_error e = {.status = ATTN_OK};
    void **first = ARENA_ARRAY(j->compile.arena, void *, sig->args.n);
    place_make(&j->place, j->compile.arena, &j->b, j->c->by_rows);
    for (int k = 0; k < 2; k++) {
        if (launch(j, garbage[k], &e)) return device_says(j, &e);
        int64_t at = place_spoilt(&j->place, j->back, garbage[k]);
        char text[64];
        snprintf(text, sizeof text, "byte %lld of %zu", (long long)at, j->place.bytes);
        if (at >= 0) return say(j, RIG_OUTSIDE, "written beside the tensors", text);
        for (int i = 0; i < sig->args.n; i++) {
            const Tensor *t = &j->b.tensor[i];
            size_t n = (size_t)t->count * (size_t)dtype_bytes(t->dtype);
            if (sig->args.data[i].role != ARG_OUTPUT) continue;
            place_fetch(&j->place, j->back, i);
            if (k && memcmp(first[i], t->data, n))
                return say(j, RIG_WRONG, "two launches differ", sig->args.data[i].name);
            if (!k) first[i] = memcpy(arena_alloc(j->compile.arena, n + 1), t->data, n);
        }
    }
    return RIG_GOOD;
}

static RigVerdict compare(Job *j, int64_t *rows) {
    for (int i = 0; i < j->b.sig->args.n; i++) {
        if (j->b.sig->args.data[i].role != ARG_OUTPUT) continue;
        double *x = tensor_doubles(&j->b.tensor[i]);
        Agreement a = agree_output(&j->x, j->compile.variants.data[0], &j->b, i, x, j->c->dtype);
        char text[200];
        free(x);
        if (j->b.tensor[i].rank == 4) *rows += a.counted;
        if (agree_good(&a)) continue;
        agree_describe(&a, j->b.sig->args.data[i].name, text, sizeof text);
        return say(j, RIG_WRONG, "wrong", text);
    }
    return RIG_GOOD;
}

static RigVerdict gradients(const Job *j) {
    static const DeviceKind kinds[] = {DEVICE_CPU, DEVICE_CUDA, DEVICE_HIP};
    const GenCase *c = j->c;
    const int32_t *n = j->b.size;
    Differ d = {.source = c->source,
                .name = "random.attn",
                .shape = c->shape,
                .inputs = &c->options,
                .dtype = c->dtype,
                .target = c->target,
                .level = c->level,
                .context = j->rig->context,
                .device = kinds[j->rig->kind],
                .log = j->log};
    int64_t pairs = (int64_t)n[SIZE_B] * n[SIZE_HQ] * n[SIZE_SQ] * n[SIZE_SK];
    if (!j->rig->gradients || pairs > MOST_PAIRS || differ_gradients(&d)) return RIG_GOOD;
    return say(j, RIG_WRONG, "wrong", "gradients");
}

RigVerdict rig_run(Rig *r, const GenCase *c, int64_t *rows, FILE *log) {
    Job j = {.rig = r, .c = c, .log = log};
    RigVerdict v = compile(&j);
    if (v == RIG_GOOD) v = bind(&j);
    if (v == RIG_GOOD) v = launches(&j);
    if (v == RIG_GOOD) v = compare(&j, rows);
    if (v == RIG_GOOD) v = gradients(&j);
    if (v == RIG_FAULT) return v; // the process ends: nothing of the device can be freed
    if (j.memory) attn_memory_free(r->context, r->device, j.memory);
    if (j.jit.code)
        jit_close(&j.jit);
    else if (j.artifact)
        attn_close(j.artifact);
    place_free(&j.place);
    free(j.back);
    free(j.rows);
    oracle_free(&j.x);
    bind_free(&j.b);
    compile_close(&j.compile);
    return v;
}
