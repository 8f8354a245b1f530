// keep.c: see keep.h.
#include "tests/gcn/keep.h"
#include "tests/gcn/wave.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { PATH = 1024 };

struct GcnKeep {
    const char *folder;
    int n;
    FILE *trace;
};

static FILE *file(const GcnKeep *k, const char *what) {
    char path[PATH];
    snprintf(path, sizeof path, "%s/%d.%s", k->folder, k->n, what);
    return fopen(path, "wb");
}

static bool put(const GcnKeep *k, const char *what, const void *p, size_t bytes) {
    FILE *f = file(k, what);
    bool good = f && fwrite(p, 1, bytes, f) == bytes;
    return f && fclose(f) == 0 && good;
}

static bool put_buffer(const GcnKeep *k, const char *when, const GcnLaunch *l, int i) {
    char what[32];
    snprintf(what, sizeof what, "%s.%d", when, i);
    return put(k, what, l->buffers[i].base, l->buffers[i].bytes);
}

static bool put_launch(const GcnKeep *k, const GcnLaunch *l) {
    const uint8_t *args = l->kernarg;
    FILE *f = file(k, "launch");
    if (!f) return false;
    fprintf(f, "kernel %s\ngrid %u %u %u\nthreads %u\ndynamic %u\nkernarg ", l->kernel->name,
            l->grid[0], l->grid[1], l->grid[2], l->threads, l->dynamic);
    for (size_t i = 0; i < l->kernarg_bytes; i++) fprintf(f, "%02x", args[i]);
    for (int i = 0; i < l->nbuffers; i++)
        fprintf(f, "\nbuffer %ju %zu %d", (uintmax_t)(uintptr_t)l->buffers[i].base,
                l->buffers[i].bytes, l->buffers[i].writable);
    fprintf(f, "\n");
    return fclose(f) == 0;
}

// ---- the trace

static void put_register(FILE *f, const Wave *w, bool vector, int reg) {
    uint64_t has = vector ? w->has_v[reg] : w->has_s[reg];
    uint32_t head[] = {vector, (uint32_t)reg, (uint32_t)has, (uint32_t)(has >> 32)};
    fwrite(head, sizeof *head, 4, f);
    if (vector)
        fwrite(w->v[reg], sizeof **w->v, (size_t)w->lanes, f);
    else
        fwrite(&w->s[reg], sizeof *w->s, 1, f);
}

static void ran(void *ctx, const Wave *w, const Op *op) {
    FILE *f = ctx;
    uint64_t exec = gcn_exec(w);
    uint32_t head[] = {w->group->id[0], (uint32_t)w->index,     op->at,
                       (uint32_t)exec,  (uint32_t)(exec >> 32), 0};
    for (int d = 0; d < op->ndst; d++) head[5] += op->dst[d].count ? op->dst[d].count : 1;
    fwrite(head, sizeof *head, 6, f);
    for (int d = 0; d < op->ndst; d++)
        for (int i = 0; i == 0 || i < op->dst[d].count; i++)
            put_register(f, w, op->dst[d].kind == OPERAND_V, op->dst[d].reg + i);
}

// ---- a launch

GcnKeep *gcn_keep(const char *folder, GcnLaunch *l, const void *hsaco, size_t bytes) {
    GcnKeep *k = calloc(1, sizeof *k);
    char path[PATH];
    if (!k) return NULL;
    k->folder = folder;
    do snprintf(path, sizeof path, "%s/%d.launch", folder, k->n);
    while (access(path, F_OK) == 0 && ++k->n);
    bool good = put_launch(k, l) && put(k, "hsaco", hsaco, bytes);
    for (int i = 0; i < l->nbuffers; i++) good = good && put_buffer(k, "before", l, i);
    k->trace = good ? file(k, "trace") : NULL;
    l->watch = (GcnWatch){ran, k->trace};
    if (k->trace) return k;
    free(k);
    return NULL;
}

bool gcn_keep_after(GcnKeep *k, const GcnLaunch *l) {
    bool good = !ferror(k->trace);
    good = fclose(k->trace) == 0 && good;
    for (int i = 0; i < l->nbuffers; i++)
        if (l->buffers[i].writable) good = good && put_buffer(k, "after", l, i);
    free(k);
    return good;
}
