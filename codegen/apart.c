// apart.c: PTX of several kernels, each from a module and a context of its own, on several threads.
//
// In: scheduled programs for an NVIDIA target. Out: the text that one module of all kernels gives:
// one head, each variable declared once, kernels in order, labels with the kernel's number. Holds
// afterwards: the text does not depend on how many threads there were. The calling thread builds
// all kernels; what LLVM then does to the modules is shared out.
#include "codegen/jit.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Part { // one kernel
    Cg cg;
    Diags diags;  // of the thread that has it
    Arena *arena; // of those
    LLVMContextRef context;
    LLVMMemoryBufferRef text;
} Part;

typedef struct Parts {
    Part *data;
    int n;
    atomic_int next; // the first that no thread has taken
} Parts;

// ---- building

static bool build_part(Cg *cg, Part *part, const TileProgram *p, const TileKernel *k) {
    part->cg = (Cg){.arena = cg->arena, .diags = cg->diags, .opt = cg->opt, .target = cg->target};
    part->context = LLVMContextCreate();
    if (!cg_open(&part->cg, p, part->context)) return false;
    if (!cg_kernel(&part->cg, p, k, cg_symbol(cg->arena, p, k))) return false;
    VEC_PUSH(cg->arena, &cg->made, part->cg.made.data[0]);
    part->arena = arena_new();
    diag_init(&part->diags, part->arena);
    part->cg.diags = &part->diags;
    part->cg.arena = NULL;
    return true;
}

// Functions that kernels call may be the same in several.
static bool stands_alone(const Part *part) {
    int defined = 0;
    for (Val f = LLVMGetFirstFunction(part->cg.m); f; f = LLVMGetNextFunction(f))
        defined += !LLVMIsDeclaration(f);
    return defined == 1;
}

// Stops behind the first that fails; *alone: every one of them has one function.
static bool build(Cg *cg, const TileProgram *const *programs, int count, Parts *parts,
                  bool *alone) {
    *alone = true;
    for (int i = 0; i < count; i++)
        for (int k = 0; k < programs[i]->kernels.n && *alone; k++) {
            Part *part = &parts->data[parts->n++];
            if (!build_part(cg, part, programs[i], programs[i]->kernels.data[k])) return false;
            *alone = stands_alone(part);
        }
    return true;
}

// ---- LLVM's work

static void close_part(Part *part) {
    cg_close(&part->cg);
    part->cg.b = NULL, part->cg.m = NULL, part->cg.tm = NULL;
    if (part->context) LLVMContextDispose(part->context);
    part->context = NULL;
}

static void *work(void *of) {
    Parts *parts = of;
    int i;
    while ((i = atomic_fetch_add(&parts->next, 1)) < parts->n) {
        Part *part = &parts->data[i];
        if (cg_finish(&part->cg)) part->text = cg_code(&part->cg, LLVMAssemblyFile);
        close_part(part);
    }
    return NULL;
}

enum { MAX_THREADS = 8 };

static int thread_count(const Cg *cg, const Parts *parts) {
    cpu_set_t may;
    int n = cg->opt->threads;
    if (n < 1) n = sched_getaffinity(0, sizeof may, &may) ? 1 : CPU_COUNT(&may);
    if (n > parts->n) n = parts->n;
    return n < MAX_THREADS ? n : MAX_THREADS;
}

// A thread that cannot be had is one less: this one does what is left.
static void share_out(const Cg *cg, Parts *parts) {
    pthread_t threads[MAX_THREADS];
    int n = 0, wanted = thread_count(cg, parts) - 1;
    while (n < wanted && !pthread_create(&threads[n], NULL, work, parts)) n++;
    work(parts);
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
}

// ---- joining

typedef struct Slice {
    const char *s, *end;
} Slice;

// What LLVM writes before a kernel: a head that is the same for all, its name as a comment, the
// variables.
typedef struct Pieces {
    Slice head, name, variables, kernel;
} Pieces;

static bool starts(Slice t, const char *with) {
    size_t n = strlen(with);
    return (size_t)(t.end - t.s) >= n && !memcmp(t.s, with, n);
}

static Slice take_line(Slice *t) {
    const char *end = memchr(t->s, '\n', (size_t)(t->end - t->s));
    Slice line = {t->s, end ? end + 1 : t->end};
    t->s = line.end;
    return line;
}

// False: it is not as this file knows it.
static bool split(LLVMMemoryBufferRef buffer, Pieces *p) {
    Slice t = {LLVMGetBufferStart(buffer), NULL};
    t.end = t.s + LLVMGetBufferSize(buffer);
    p->head.s = t.s;
    while (t.s < t.end && !starts(t, "\t// .globl")) take_line(&t);
    p->head.end = t.s;
    p->name = take_line(&t);
    p->variables.s = t.s;
    while (starts(t, ".extern .shared ") || starts(t, ".global ")) take_line(&t);
    p->variables.end = t.s;
    if (starts(t, "\n")) take_line(&t);
    p->kernel = t;
    return starts(t, ".visible .entry ");
}

static bool same(Slice a, Slice b) {
    return a.end - a.s == b.end - b.s && !memcmp(a.s, b.s, (size_t)(a.end - a.s));
}

static void write_slice(FILE *f, Slice t) { fwrite(t.s, 1, (size_t)(t.end - t.s), f); }

static bool was_declared(const Pieces *all, int i, Slice line) {
    for (int k = 0; k < i; k++)
        for (Slice v = all[k].variables; v.s < v.end;)
            if (same(take_line(&v), line)) return true;
    return false;
}

static void write_variables(FILE *f, const Pieces *all, int n) {
    for (int i = 0; i < n; i++)
        for (Slice v = all[i].variables; v.s < v.end;) {
            Slice line = take_line(&v);
            if (!was_declared(all, i, line)) write_slice(f, line);
        }
    fputc('\n', f);
}

// Labels and frames have the function's number: each of these was the first of its module.
static const char *const numbered[] = {"$L__BB0", "__local_depot0"};

// The end of the first such name in a line, or NULL.
static const char *find_number(Slice line) {
    for (size_t i = 0; i < sizeof numbered / sizeof *numbered; i++) {
        size_t n = strlen(numbered[i]);
        const char *at = memmem(line.s, (size_t)(line.end - line.s), numbered[i], n);
        if (at) return at + n;
    }
    return NULL;
}

static void write_kernel(FILE *f, Slice t, int number) {
    while (number && t.s < t.end) {
        Slice line = take_line(&t);
        for (const char *end; (end = find_number(line)); line.s = end) {
            write_slice(f, (Slice){line.s, end - 1});
            fprintf(f, "%d", number);
        }
        write_slice(f, line);
    }
    write_slice(f, t);
}

// *text stays NULL where the modules' texts cannot be joined.
static bool join(Cg *cg, const Parts *parts, char **text, size_t *n) {
    Pieces *all = ARENA_ARRAY(cg->arena, Pieces, parts->n);
    for (int i = 0; i < parts->n; i++)
        if (!split(parts->data[i].text, &all[i]) || !same(all[i].head, all[0].head)) return true;
    FILE *f = open_memstream(text, n);
    if (f) {
        write_slice(f, all[0].head);
        for (int i = 0; i < parts->n; i++) {
            write_slice(f, all[i].name);
            if (i == 0) write_variables(f, all, parts->n);
            write_kernel(f, all[i].kernel, i);
        }
        bool bad = ferror(f);
        if (!fclose(f) && !bad) return true;
    }
    free(*text);
    *text = NULL;
    diag_error(cg->diags, (Span){0}, "out of memory");
    return false;
}

// ---- all of it

static bool join_errors(Cg *cg, const Parts *parts) {
    int errors = cg->diags->errors;
    for (int i = 0; i < parts->n; i++)
        for (const Diag *d = parts->data[i].diags.first; d; d = d->next)
            diag_error(cg->diags, d->span, "%s", d->message);
    return cg->diags->errors == errors;
}

bool cg_apart(Cg *cg, const TileProgram *const *programs, int count, char **text, size_t *n) {
    int kernels = 0;
    for (int i = 0; i < count; i++) kernels += programs[i]->kernels.n;
    Parts parts = {.data = ARENA_ARRAY(cg->arena, Part, kernels)};
    bool alone, ok = build(cg, programs, count, &parts, &alone);
    *text = NULL;
    if (ok && alone) {
        share_out(cg, &parts);
        ok = join_errors(cg, &parts) && join(cg, &parts, text, n);
    }
    if (!*text) cg->made.n = 0;
    for (int i = 0; i < parts.n; i++) {
        Part *part = &parts.data[i];
        close_part(part);
        if (part->text) LLVMDisposeMemoryBuffer(part->text);
        arena_free(part->arena);
    }
    return ok;
}
