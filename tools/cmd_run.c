// cmd_run.c: `attnc run`: a variant on given and random tensors, and where a gradient is named its
// backward; outputs to .npy files. What has no kernels for the CPU in this version, the reference
// runs, and a note says so.
#include "cmd.h"
#include "files.h"
#include "npy.h"
#include "oracle.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// A name of --out that is no output.
static Status no_output(Arena *a, const Signature *sig, const char *name) {
    int of = name[0] == 'd' ? sig_arg(sig, name + 1) : -1;
    if (of >= 0 && !sig_is_read(&sig->args.data[of]))
        return cmd_fail(STATUS_USAGE, "--out %s: a backward takes it: --in %s=...", name, name);
    if (of >= 0 && sig->args.data[of].role == ARG_INPUT)
        return cmd_fail(
            STATUS_USAGE,
            "--out %s: only inputs that are marked `grad` have a gradient, and %s is not", name,
            name + 1);
    return cmd_fail(STATUS_USAGE, "--out %s: %s has no such output%s", name, sig->name,
                    sig_instead(a, sig, name, false));
}

// Names of --out that are no output are mistakes of the command line. Where a file cannot be written
// is found before anything runs.
static Status check_outputs(Arena *a, const Signature *sig, const Options *o) {
    for (int i = 0; i < o->out.n; i++) {
        const char *name = o->out.data[i].name, *path = o->out.data[i].value;
        for (int k = 0; k < i; k++)
            if (file_same(o->out.data[k].value, path))
                return cmd_fail(STATUS_USAGE, "--out %s and --out %s both write %s",
                                o->out.data[k].name, name, path);
        int arg = sig_arg(sig, name);
        if (arg < 0 || sig_is_read(&sig->args.data[arg])) return no_output(a, sig, name);
    }
    for (int i = 0; i < o->out.n; i++) {
        Status s = file_may_be_written(o->out.data[i].value);
        if (s != STATUS_DONE) return s;
    }
    return STATUS_DONE;
}

static void print_statistics(const char *name, const Tensor *t) {
    double sum = 0, squares = 0, least = INFINITY, most = -INFINITY;
    int64_t finite = 0;
    char shape[160];
    for (int64_t i = 0; i < t->count; i++) {
        double v = tensor_get(t, i);
        if (!isfinite(v)) continue;
        finite++;
        sum += v;
        squares += v * v;
        least = v < least ? v : least;
        most = v > most ? v : most;
    }
    double mean = finite ? sum / (double)finite : 0,
           variance = finite ? squares / (double)finite - mean * mean : 0;
    printf("%s %s: ", name, tensor_shape(t, shape, sizeof shape));
    if (finite)
        printf("mean %.6g, deviation %.6g, from %.6g to %.6g", mean,
               sqrt(variance > 0 ? variance : 0), least, most);
    else
        printf("%s", t->count ? "no finite element" : "no elements");
    if (finite && finite < t->count) printf(", %lld not finite", (long long)(t->count - finite));
    printf("\n");
}

static Status write_outputs(const Binding *b, const Options *o) {
    FileOut *files = calloc((size_t)o->out.n + 1, sizeof *files);
    Status s = files ? STATUS_DONE : cmd_fail(STATUS_SYSTEM, "out of memory");
    for (int i = 0; i < o->out.n && s == STATUS_DONE; i++) {
        const NameValue *p = &o->out.data[i];
        files[i].path = p->value;
        files[i].data = npy_bytes(&b->tensor[sig_arg(b->sig, p->name)], &files[i].n);
        if (!files[i].data) s = cmd_fail(STATUS_SYSTEM, "cannot write %s: out of memory", p->value);
    }
    if (s == STATUS_DONE) s = files_write(files, o->out.n);
    for (int i = 0; files && i < o->out.n; i++) free((void *)files[i].data);
    free(files);
    return s;
}

static Status deliver(const Binding *b, Arena *a, const Options *o) {
    const char *zeros = bind_zeros(b, a);
    if (zeros) cmd_note("%s", zeros);
    Status s = o->out.n ? write_outputs(b, o) : STATUS_DONE;
    for (int i = 0; i < b->sig->args.n && !o->out.n; i++)
        if (!sig_is_read(&b->sig->args.data[i]))
            print_statistics(b->sig->args.data[i].name, &b->tensor[i]);
    return s;
}

static void summary(const Binding *b, Dtype dtype, const char *where, double ms) {
    char sizes[512];
    fprintf(stderr, "%s on %s, %s, %s: %.3f ms\n", b->sig->name, where, dtype_name(dtype),
            bind_describe(b, sizes, sizeof sizes), ms);
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

// -g: the reference, which sees every index that is used, looks for one outside its tensor.
static Status look_outside(Compile *c, const Binding *b) {
    Oracle x;
    Status s = oracle_run(&x, c->variants.data[0], b, &(OracleAsk){.what = ORACLE_OUTSIDE});
    oracle_warn(&x, &c->diags, c->variants.data[0]);
    oracle_free(&x);
    return s;
}

// c: what it was compiled from; NULL for an artifact.
static Status run_kernel(Launch *l, Arena *a, Compile *c, const Options *o) {
    static const char *const names[] = {"the CPU", "CUDA", "HIP"};
    Binding b = {0};
    if (!l->sig)
        return cmd_fail(STATUS_USAGE,
                        "the artifact holds several variants: choose one with --entry=NAME");
    Status s = check_outputs(a, l->sig, o);
    if (s == STATUS_DONE) s = bind_make(&b, a, l->sig, o, cmd_shape(o, a));
    if (s == STATUS_DONE && o->debug && c) s = look_outside(c, &b);
    if (s == STATUS_DONE) s = launch_bind(l, &b);
    double from = now_ms();
    if (s == STATUS_DONE) s = launch_run(l);
    double to = now_ms();
    if (s == STATUS_DONE) s = launch_fetch(l);
    if (s == STATUS_DONE) summary(&b, l->dtype, names[o->device], to - from);
    if (s == STATUS_DONE) s = deliver(&b, a, o);
    launch_unbind(l);
    bind_free(&b);
    return s;
}

static Status run_source(const Options *o) {
    Compile c;
    Launch l = {0};
    Status s = cmd_open(&c, o, o->files.data[0], cmd_device_target(o, NULL), cmd_device_dtype(o));
    if (s == STATUS_DONE) s = cmd_only(&c, o);
    if (s == STATUS_DONE) cmd_phases(&c, o);
    if (s == STATUS_DONE) {
        s = launch_open_source(&l, c.arena, &c, o);
        diag_print(&c.diags, stderr);
        if (s == STATUS_DONE) s = run_kernel(&l, c.arena, &c, o);
        launch_close(&l);
    }
    compile_close(&c);
    return s;
}

static Status run_artifact(const Options *o) {
    Arena *a = arena_new();
    Launch l = {0};
    Status s = STATUS_DONE;
    if (o->defines.n || o->has_dtype || o->has_kv || o->has_level || o->has_target || o->layout ||
        o->debug || o->schedule.said)
        s = cmd_fail(STATUS_USAGE,
                     "-D, -O, -g, --dtype, --kv-dtype, --layout, --target and --schedule are for "
                     "sources: %s "
                     "is compiled already",
                     o->files.data[0]);
    if (s == STATUS_DONE) s = launch_open_file(&l, a, o->files.data[0], o);
    if (s == STATUS_DONE) s = run_kernel(&l, a, NULL, o);
    launch_close(&l);
    arena_free(a);
    return s;
}

Status cmd_run(const Options *o) {
    return cmd_is_artifact(o->files.data[0]) ? run_artifact(o) : run_source(o);
}
