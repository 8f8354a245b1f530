// cmd_bench.c: `attnc bench`: one line per configuration (files x --shape), medians over many
// launches. TFLOP/s counts 2 B H Sq Sk (D + Dv) times the share of pairs inside the mask. On the
// CPU the roofline is measured in the same run (peak.h).
#include "cmd.h"
#include "maskmap.h"
#include "peak.h"
#include "runtime/device.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_REPEAT = 1000000, WARM = 2 };

typedef struct Bench {
    const Options *o;
    bool begun; // the headline is printed
    Peak peak;  // CPU; zeros elsewhere
    double *ms;
} Bench;

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

// One launch, timed by the device where it has a clock of its own.
static Status timed(Launch *l, attn_mark **from, attn_mark **to, double *ms) {
    attn_error e;
    float elapsed;
    if (l->device.kind == ATTN_CPU) {
        double start = now_ms();
        Status s = launch_run(l);
        *ms = now_ms() - start;
        return s;
    }
    if (attn_mark_now(l->context, l->device, from, &e) ||
        attn_launch_prepared(l->prepared, NULL, &e) ||
        attn_mark_now(l->context, l->device, to, &e) ||
        attn_synchronize(l->context, l->device, &e) ||
        attn_elapsed_ms(l->context, l->device, *from, *to, &elapsed, &e))
        return launch_failed(&e);
    *ms = elapsed;
    return STATUS_DONE;
}

static Status median(Bench *x, Launch *l, double *out) {
    attn_mark *from = NULL, *to = NULL;
    Status s = STATUS_DONE;
    int n = 0, most = x->o->repeat ? x->o->repeat : MAX_REPEAT;
    double ignored, begin;
    for (int i = 0; i < WARM && s == STATUS_DONE; i++) s = timed(l, &from, &to, &ignored);
    begin = now_ms();
    while (s == STATUS_DONE && n < most && (x->o->repeat || n < 3 || now_ms() - begin < 1000))
        s = timed(l, &from, &to, &x->ms[n++]);
    attn_mark_free(l->context, l->device, from);
    attn_mark_free(l->context, l->device, to);
    if (s != STATUS_DONE) return s;
    qsort(x->ms, (size_t)n, sizeof *x->ms, by_value);
    *out = x->ms[n / 2];
    return s;
}

// What must be moved: every tensor once, of k and v the tiles that some query looks at.
static double tensor_bytes(const Binding *b, double touched) {
    double n = 0;
    for (int i = 0; i < b->sig->args.n; i++) {
        const char *name = b->sig->args.data[i].name;
        bool keys = strcmp(name, "k") == 0 || strcmp(name, "v") == 0;
        n += (double)b->tensor[i].count * dtype_bytes(b->tensor[i].dtype) * (keys ? touched : 1);
    }
    return n;
}

static double columns_touched(const MaskMap *m) {
    int touched = 0;
    for (int c = 0; c < m->columns; c++) {
        bool any = false;
        for (int r = 0; r < m->rows && !any; r++)
            any = m->cls[(int64_t)r * m->columns + c] != MASK_SKIPPED;
        touched += any;
    }
    return m->columns ? (double)touched / m->columns : 1;
}

// Before the first row, and once.
static Status headline(Bench *x, const Launch *l) {
    attn_error e;
    char name[256];
    if (x->begun) return STATUS_DONE;
    if (attn_device_name(l->context, l->device, name, sizeof name, &e)) return launch_failed(&e);
    x->begun = true;
    printf("%s", name);
    if (x->o->device == DEVICE_CPU) {
        x->peak = peak_measure(peak_threads());
        printf(": %.1f GFLOP/s of f32 multiply-adds and %.1f GB/s on %d threads, measured now",
               x->peak.flops * 1e-9, x->peak.bytes * 1e-9, x->peak.threads);
    }
    printf("\n%-20s %-5s %10s %10s %10s %9s  %6s  %s\n", "variant", "type", "ms", "TFLOP/s", "GB/s",
           "roofline", "inside", "sizes");
    return STATUS_DONE;
}

static void print_row(const Bench *x, const Binding *b, Dtype dtype, double inside, double touched,
                      double ms) {
    char sizes[512];
    double flop = 2 * bind_pairs(b) * (b->sig->D + b->sig->Dv) * inside,
           bytes = tensor_bytes(b, touched), share = 0;
    if (x->peak.flops > 0) { // the nearer of the two limits
        double least = flop / x->peak.flops, moving = bytes / x->peak.bytes;
        share = (least > moving ? least : moving) / (ms * 1e-3);
    }
    printf("%-20s %-5s %10.4f %10.4f %10.2f", b->sig->name, dtype_name(dtype), ms, flop / ms * 1e-9,
           bytes / ms * 1e-6);
    if (share > 0)
        printf(" %8.1f%%", 100 * share);
    else
        printf(" %9s", "-");
    printf("  %5.1f%%  %s\n", 100 * inside, bind_describe(b, sizes, sizeof sizes));
    fflush(stdout);
}

static Status configuration(void *ctx, Launch *l, Compile *c, const char *shape) {
    Bench *x = ctx;
    Binding b = {0};
    MaskMap m;
    double ms = 0, inside = 1, touched = 1;
    Arena *a = arena_new();
    Status s = bind_make(&b, a, l->sig, x->o, shape);
    if (s == STATUS_DONE && !mask_map(&m, a, c, &b, 0, 0)) {
        inside = m.inside;
        touched = columns_touched(&m);
    }
    if (s == STATUS_DONE) s = launch_bind(l, &b);
    if (s == STATUS_DONE) s = median(x, l, &ms);
    if (s == STATUS_DONE) s = headline(x, l);
    if (s == STATUS_DONE) print_row(x, &b, l->dtype, inside, touched, ms);
    launch_unbind(l);
    bind_free(&b);
    arena_free(a);
    return s;
}

Status cmd_bench(const Options *o) {
    Bench x = {.o = o, .ms = malloc(MAX_REPEAT * sizeof *x.ms)};
    Status s =
        x.ms ? cmd_configurations(o, configuration, &x) : cmd_fail(STATUS_SYSTEM, "out of memory");
    free(x.ms);
    return s;
}
