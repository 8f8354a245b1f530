// cmd_bench.c: `attnc bench`: one line per configuration (files x --shape), medians over many
// launches of the forward, the backward (--phase=bwd) or both. TFLOP/s counts 2 B H Sq Sk (D + Dv)
// times the share of pairs inside the mask, of the backward (3 D + 2 Dv); of a
// recurrence what its steps take, 4 B H S D Dv, 6 where it erases. The roofline is measured in the same run (peak.h, probe.h). --json writes the same rows to a file.
#include "batch.h"
#include "cmd.h"
#include "files.h"
#include "maskmap.h"
#include "oracle.h"
#include "probe.h"
#include "runtime/device.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_REPEAT = 1000000, WARM = 2 };

typedef struct Bench {
    const Options *o;
    bool begun; // the headline is printed
    Peak peak;
    Text json; // its rows so far
    char device[256];
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

typedef struct Timed { // what one launch is; NULL: not in it
    const attn_prepared *forward, *backward;
} Timed;

static attn_status queue(const Timed *p, attn_error *e) {
    attn_status s = p->forward ? attn_launch_prepared(p->forward, NULL, e) : ATTN_OK;
    return !s && p->backward ? attn_launch_prepared(p->backward, NULL, e) : s;
}

// One launch, timed by the device where it has a clock of its own.
static Status timed(Launch *l, const Timed *p, attn_mark **from, attn_mark **to, double *ms) {
    attn_error e;
    float elapsed;
    if (l->device.kind == ATTN_CPU) {
        double start = now_ms();
        attn_status bad = queue(p, &e);
        *ms = now_ms() - start;
        return bad ? launch_failed(&e) : STATUS_DONE;
    }
    if (attn_mark_now(l->context, l->device, from, &e) || queue(p, &e) ||
        attn_mark_now(l->context, l->device, to, &e) ||
        attn_synchronize(l->context, l->device, &e) ||
        attn_elapsed_ms(l->context, l->device, *from, *to, &elapsed, &e))
        return launch_failed(&e);
    *ms = elapsed;
    return STATUS_DONE;
}

static Status median(Bench *x, Launch *l, const Timed *p, double *out) {
    attn_mark *from = NULL, *to = NULL;
    Status s = STATUS_DONE;
    int n = 0, most = x->o->repeat ? x->o->repeat : MAX_REPEAT;
    double ignored, begin;
    for (int i = 0; i < WARM && s == STATUS_DONE; i++) s = timed(l, p, &from, &to, &ignored);
    begin = now_ms();
    while (s == STATUS_DONE && n < most && (x->o->repeat || n < 3 || now_ms() - begin < 1000))
        s = timed(l, p, &from, &to, &x->ms[n++]);
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
        n += (double)b->tensor[i].count * dtype_bytes(b->tensor[i].dtype) * (keys ? touched : 1) *
             batch_live(b, i);
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
    if (x->begun) return STATUS_DONE;
    if (attn_device_name(l->context, l->device, x->device, sizeof x->device, &e))
        return launch_failed(&e);
    if (x->o->device == DEVICE_CPU)
        x->peak = peak_measure(peak_threads());
    else if (probe_gpu(l->context, l->device, l->dtype, &x->peak, &e))
        return launch_failed(&e);
    x->begun = true;
    printf("%s:", x->device);
    if (x->peak.flops > 0)
        printf(" %.*f %s of %s and", x->peak.flops < 1e13 ? 1 : 0,
               x->peak.flops * (x->peak.flops < 1e13 ? 1e-9 : 1e-12),
               x->peak.flops < 1e13 ? "GFLOP/s" : "TFLOP/s", x->peak.flops_of);
    printf(" %.1f GB/s %s, measured now\n%-20s %-5s %10s %10s %10s %9s  %6s  %s\n",
           x->peak.bytes * 1e-9, x->peak.bytes_of, "variant", "type", "ms", "TFLOP/s", "GB/s",
           "roofline", "inside", "sizes");
    return STATUS_DONE;
}

static unsigned phases(const Bench *x) { return x->o->phases ? x->o->phases : COMPILE_FWD; }

// The channels that a pair's score multiplies.
static int score_columns(Arena *a, const Variant *v) {
    TxNodes nodes = tx_nodes(a, &v->clause[CLAUSE_SCORE], 1);
    bool *used = ARENA_ARRAY(a, bool, v->dots.n);
    int columns = 0;
    for (int i = 0; i < nodes.n; i++)
        if (tx_is_sym(nodes.data[i], TS_DOT)) used[nodes.data[i]->index] = true;
    for (int i = 0; i < v->dots.n; i++)
        if (used[i]) columns += v->rows[ROW_KEYS].data[v->dots.data[i].row[ROW_KEYS]].width;
    return columns;
}

static double products(const Bench *x, const Binding *b, int score) {
    int D = b->sig->D, Dv = b->sig->Dv, columns = 0;
    if (phases(x) & COMPILE_FWD) columns += score + Dv;
    if (phases(x) & COMPILE_BWD) columns += 3 * D + 2 * Dv;
    return 2 * bind_pairs(b) * columns;
}

typedef struct Row {
    const char *file, *target, *phase;
    const Binding *binding;
    Dtype dtype;
    double ms, flop, bytes, roofline, inside; // roofline: share of it, 0 where it is not known
    double map_ms; // of that for the tile map, which a caller may keep; 0: there is none
} Row;

static double steps(const Binding *b, const Variant *v) {
    const int32_t *n = b->size;
    double rows = b->sig->batch ? n[sig_rows(b->sig)] : (double)n[RSIZE_B] * n[RSIZE_S];
    return rows * n[RSIZE_H] * b->sig->D * b->sig->Dv * (v->clause[CLAUSE_ERASE] ? 6 : 4);
}

static Row measured(const Bench *x, const Launch *l, const Compile *c, const Binding *b,
                    double inside, double touched, double ms) {
    static const char *const names[] = {"", "fwd", "bwd", "fwd,bwd"};
    const Variant *v = c->variants.data[0];
    Row r = {.file = c->options.source.path,
             .target = target_get(c->options.target)->name,
             .phase = names[phases(x)],
             .binding = b,
             .dtype = l->dtype,
             .ms = ms,
             .flop = b->sig->recurrence ? steps(b, v)
                                        : products(x, b, score_columns(c->arena, v)) * inside,
             .bytes = tensor_bytes(b, touched),
             .inside = inside};
    if (x->peak.flops > 0 && x->peak.bytes > 0) { // the nearer of the two limits
        double least = r.flop / x->peak.flops, moving = r.bytes / x->peak.bytes;
        r.roofline = (least > moving ? least : moving) / (ms * 1e-3);
    }
    return r;
}

static void print_row(const Row *r) {
    char sizes[512];
    printf("%-20s %-5s %10.4f %10.4f %10.2f", r->binding->sig->name, dtype_name(r->dtype), r->ms,
           r->flop / r->ms * 1e-9, r->bytes / r->ms * 1e-6);
    if (r->roofline > 0)
        printf(" %8.1f%%", 100 * r->roofline);
    else
        printf(" %9s", "-");
    bool forward = strcmp(r->phase, "fwd") == 0;
    printf("  %5.1f%%  %s%s%s\n", 100 * r->inside, bind_describe(r->binding, sizes, sizeof sizes),
           forward ? "" : " ", forward ? "" : r->phase);
    if (r->map_ms > 0)
        printf("%-20s       %10.4f of these ms make the tile map, which a caller may keep\n", "",
               r->map_ms);
    fflush(stdout);
}

// ---- JSON

enum { JSON_VERSION = 1 };

static void json_string(Text *t, const char *name, const char *s) {
    text_printf(t, "\"%s\": \"", name);
    for (; *s; s++)
        if ((unsigned char)*s < ' ' || *s == '"' || *s == '\\')
            text_printf(t, "\\u%04x", (unsigned)(unsigned char)*s);
        else
            text_putn(t, s, 1);
    text_puts(t, "\"");
}

static void json_number(Text *t, const char *name, double v) {
    if (v > 0)
        text_printf(t, ", \"%s\": %.6g", name, v);
    else
        text_printf(t, ", \"%s\": null", name);
}

static void json_row(Text *t, const Row *r) {
    const Signature *sig = r->binding->sig;
    text_puts(t, t->n ? ",\n  {" : "  {");
    json_string(t, "file", r->file);
    text_puts(t, ", ");
    json_string(t, "variant", sig->name);
    text_printf(t, ", \"dtype\": \"%s\", \"target\": \"%s\", \"phase\": \"%s\", \"sizes\": {",
                dtype_name(r->dtype), r->target, r->phase);
    for (int i = 0; i < sig->sizes.n; i++)
        text_printf(t, "\"%s\": %d, ", sig->sizes.data[i], r->binding->size[i]);
    text_printf(t, "\"D\": %d, \"Dv\": %d}", sig->D, sig->Dv);
    json_number(t, "ms", r->ms);
    json_number(t, "tflops", r->flop / r->ms * 1e-9);
    json_number(t, "gbps", r->bytes / r->ms * 1e-6);
    json_number(t, "roofline", r->roofline);
    json_number(t, "inside", r->inside);
    if (r->map_ms > 0) json_number(t, "map_ms", r->map_ms);
    text_puts(t, "}");
}

static Status write_json(const Bench *x) {
    Text t = text_new(x->json.arena);
    text_printf(&t, "{\"version\": %d, ", JSON_VERSION);
    json_string(&t, "device", x->device);
    text_puts(&t, ", \"peak\": {");
    json_string(&t, "of", x->peak.flops_of);
    json_number(&t, "tflops", x->peak.flops * 1e-12);
    json_number(&t, "gbps", x->peak.bytes * 1e-9);
    text_printf(&t, "},\n \"rows\": [\n%s\n]}\n", x->json.s);
    return file_write(x->o->json, t.s, t.n);
}

static Status configuration(void *ctx, Launch *l, Compile *c, const char *shape) {
    Bench *x = ctx;
    Binding b = {0};
    MaskMap m;
    double ms = 0, kept = 0, inside = 1, touched = 1;
    Arena *a = arena_new();
    Status s = bind_make(&b, a, l->sig, x->o, shape);
    bool attends = s == STATUS_DONE && !l->sig->recurrence;
    if (attends && b.sig->batch && bind_pairs(&b) > 0)
        inside = oracle_pairs(c->variants.data[0], &b, &touched) / bind_pairs(&b);
    else if (attends && !mask_map(&m, a, c->tiles.data[0], &b, 0, 0)) {
        inside = mask_inside(&m);
        touched = columns_touched(&m);
    }
    if (s == STATUS_DONE) s = launch_bind(l, &b);
    if (s == STATUS_DONE && l->backward) s = launch_run(l); // it reads what the forward leaves
    bool forward = phases(x) & COMPILE_FWD;
    Timed all = {forward ? l->prepared : NULL, l->backward};
    Timed less = {forward && l->kept ? l->kept : all.forward,
                  l->backward_kept ? l->backward_kept : l->backward};
    bool map = less.forward != all.forward || less.backward != all.backward;
    if (s == STATUS_DONE) s = median(x, l, &all, &ms);
    if (s == STATUS_DONE && map) s = median(x, l, &less, &kept);
    if (s == STATUS_DONE) s = headline(x, l);
    if (s == STATUS_DONE) {
        Row r = measured(x, l, c, &b, inside, touched, ms);
        r.map_ms = map && kept < ms ? ms - kept : 0;
        print_row(&r);
        json_row(&x->json, &r);
    }
    launch_unbind(l);
    bind_free(&b);
    arena_free(a);
    return s;
}

Status cmd_bench(const Options *o) {
    if (o->dry) return cmd_dry(o);
    Status may = o->json ? file_may_be_written(o->json) : STATUS_DONE;
    if (may != STATUS_DONE) return may;
    Arena *a = arena_new();
    Bench x = {.o = o, .ms = malloc(MAX_REPEAT * sizeof *x.ms)};
    x.json = text_new(a);
    Status s =
        x.ms ? cmd_configurations(o, configuration, &x) : cmd_fail(STATUS_SYSTEM, "out of memory");
    if (o->json && x.json.n) {
        Status written = write_json(&x);
        if (s == STATUS_DONE) s = written;
    }
    free(x.ms);
    arena_free(a);
    return s;
}
