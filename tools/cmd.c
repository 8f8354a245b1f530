// cmd.c: see cmd.h.
#include "cmd.h"
#include "cache.h"
#include "runtime/device.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

Status cmd_report(const Compile *c, Status otherwise) {
    diag_print(&c->diags, stderr);
    return c->diags.errors ? STATUS_INPUT : otherwise;
}

Status cmd_open(Compile *c, const Options *o, const char *path, TargetId target, Dtype dtype) {
    *c = (Compile){0};
    if (cmd_is_artifact(path))
        return cmd_fail(STATUS_USAGE,
                        "%s is an artifact, compiled already, and this takes a source; `attnc run` "
                        "runs artifacts",
                        path);
    if (strcmp(path, "-") == 0) path = compile_stdin;
    Arena *scratch = arena_new();
    FeDefine *defines = ARENA_ARRAY(scratch, FeDefine, o->defines.n + 1);
    for (int i = 0; i < o->defines.n; i++)
        defines[i] = (FeDefine){o->defines.data[i].name, o->defines.data[i].value};
    CompileOptions options = {.source = {.path = path,
                                         .dirs = o->include.data,
                                         .ndirs = o->include.n,
                                         .defines = defines,
                                         .ndefines = o->defines.n},
                              .entry = o->entry,
                              .target = target,
                              .dtype = dtype,
                              .tf32 = o->tf32,
                              .has_kv = o->has_kv,
                              .kv = o->kv,
                              .batch = o->layout,
                              .page = o->page,
                              .phases = o->phases,
                              .deterministic = o->deterministic,
                              .invariant = o->invariant,
                              .level = o->level,
                              .checks = o->debug,
                              .schedule = o->schedule,
                              .cache = o->no_cache ? NULL : cache_folder(scratch)};
    FeStatus s = compile_open(c, &options);
    c->options.source.defines = NULL;
    if (options.cache) c->options.cache = arena_strdup(c->arena, options.cache);
    arena_free(scratch);
    if (s == FE_OK) return STATUS_DONE;
    diag_print(&c->diags, stderr);
    return (Status)s;
}

Status cmd_only(const Compile *c, const Options *o) {
    (void)o;
    if (c->variants.n == 1) return STATUS_DONE;
    return cmd_fail(STATUS_USAGE,
                    "%s holds several variants (%s, %s%s): choose one with --entry=NAME",
                    c->options.source.path, c->variants.data[0]->name, c->variants.data[1]->name,
                    c->variants.n > 2 ? ", ..." : "");
}

void cmd_phases(Compile *c, const Options *o) {
    const Signature *sig = sig_of_variant(c->arena, c->variants.data[0], c->options.dtype);
    if (launch_names_gradient(sig, o) && o->verb != VERB_BENCH) c->options.phases |= COMPILE_BWD;
    if (o->parts) c->options.phases |= COMPILE_PART;
    if (c->options.phases & COMPILE_BWD && !o->parts) c->options.phases |= COMPILE_FWD;
}

TargetId cmd_gpu_target(attn_context *context, DeviceKind kind, int ordinal) {
    TargetId found = kind == DEVICE_HIP ? TARGET_GFX942 : TARGET_SM80, target;
    attn_device device = {kind == DEVICE_HIP ? ATTN_HIP : ATTN_CUDA, ordinal};
    const char *name = !context && kind == DEVICE_CUDA ? attn_peek_target() : NULL;
    if (name && target_find(name, &target)) return target;
    attn_context *c = context ? context : attn_create();
    if (c && attn_device_target(c, device, &name, NULL) == ATTN_OK && target_find(name, &target))
        found = target;
    if (!context) attn_destroy(c);
    return found;
}

TargetId cmd_device_target(const Options *o, attn_context *context) {
    if (o->has_target) return o->target; // the options hold it against the device
    return o->device == DEVICE_CPU ? TARGET_HOST : cmd_gpu_target(context, o->device, o->ordinal);
}

Dtype cmd_device_dtype(const Options *o) {
    if (o->has_dtype) return o->dtype;
    return o->device == DEVICE_CPU ? DT_F32 : DT_BF16;
}

const char *cmd_shape(const Options *o, Arena *a) {
    const char *all = NULL;
    for (int i = 0; i < o->shapes.n; i++)
        all = all ? arena_printf(a, "%s,%s", all, o->shapes.data[i]) : o->shapes.data[i];
    return all;
}

// *go_on: with the next file, as a device that failed will fail again; a file that cannot be read
// says nothing of another.
static Status file_configurations(const Options *o, const char *path, attn_context *context,
                                  Status (*each)(void *, Launch *, Compile *, const char *),
                                  void *ctx, bool *go_on) {
    Compile c;
    Launch l = {.context = context};
    Status s = cmd_open(&c, o, path, cmd_device_target(o, context), cmd_device_dtype(o));
    bool readable = s != STATUS_SYSTEM;
    if (s == STATUS_DONE) s = cmd_only(&c, o);
    if (s == STATUS_DONE) cmd_phases(&c, o);
    if (s == STATUS_DONE) {
        s = launch_open_source(&l, c.arena, &c, o);
        diag_print(&c.diags, stderr);
    }
    bool opened = s == STATUS_DONE;
    for (int i = 0; opened && s != STATUS_SYSTEM && (i == 0 || i < o->shapes.n); i++) {
        Status now = each(ctx, &l, &c, o->shapes.n ? o->shapes.data[i] : NULL);
        if (s == STATUS_DONE || now == STATUS_SYSTEM) s = now;
    }
    launch_close(&l);
    compile_close(&c);
    *go_on = s != STATUS_SYSTEM || !readable;
    return s;
}

Status cmd_configurations(const Options *o,
                          Status (*each)(void *ctx, Launch *l, Compile *c, const char *shape),
                          void *ctx) {
    attn_context *context = attn_create();
    Status s = context ? STATUS_DONE : cmd_fail(STATUS_SYSTEM, "out of memory");
    bool go_on = context != NULL;
    for (int i = 0; i < o->files.n && go_on; i++) {
        Status now = file_configurations(o, o->files.data[i], context, each, ctx, &go_on);
        if (s == STATUS_DONE || now == STATUS_SYSTEM) s = now;
    }
    attn_destroy(context);
    return s;
}

bool cmd_has_extension(const char *path, const char *extension) {
    size_t n = strlen(path), m = strlen(extension);
    return n > m && strcmp(path + n - m, extension) == 0;
}

bool cmd_is_artifact(const char *path) {
    static const char *const compiled[] = {".ptx", ".hsaco", ".o", ".so", ".s", ".ll"};
    char start[4] = "";
    struct stat st;
    for (int i = 0; i < 6; i++)
        if (cmd_has_extension(path, compiled[i])) return true;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode)) return false; // a pipe reads only once
    FILE *f = fopen(path, "rb");
    bool elf = f && fread(start, 1, 4, f) == 4 && memcmp(start, "\177ELF", 4) == 0;
    if (f) fclose(f);
    return elf;
}

Error cmd_error(const Tensor *x, const double *ref, const unsigned char *open, bool emit) {
    double difference = 0, norm = 0;
    double step = tensor_step(x->dtype);
    Error e = {.nothing = x->count > 0};
    double run[TENSOR_RUN];
    for (int64_t i = 0; i < x->count; i++) {
        int at = (int)(i % TENSOR_RUN),
            left = x->count - i < TENSOR_RUN ? (int)(x->count - i) : TENSOR_RUN;
        if (!at) tensor_read(x, i, left, run);
        if (open && open[i]) continue;
        e.nothing = false;
        double v = run[at], r = ref[i], d = fabs(v - r);
        if (!isfinite(r) || !isfinite(v)) {
            bool beyond = !tensor_holds(x->dtype, r) && v * r > 0;
            e.beyond += beyond;
            e.wrong += !(beyond || v == r || (isnan(v) && isnan(r)));
            continue;
        }
        if (d > step) difference += d * d;
        norm += r * r;
        if (d > e.largest) e.largest = d;
    }
    if (emit && norm < (double)x->count) norm = (double)x->count;
    e.relative = norm > 0 ? sqrt(difference / norm) : sqrt(difference);
    return e;
}
