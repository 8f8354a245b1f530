// apart.c: PTX of several kernels, each from a module and a context of its own, on several threads.
//
// In: scheduled programs for an NVIDIA target. Out: the text that one module of all kernels gives:
// one head, each variable declared once, kernels in order, labels with the kernel's number. Holds
// afterwards: the text does not depend on how many threads there were. The calling thread builds
// all kernels, one after the other; what LLVM then does to a module is for whichever thread is free,
// while others are built.
#include "codegen/jit.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Part { // one kernel
    Cg cg;
    Diags diags;  // of the thread that has it
    Arena *arena; // of those
    LLVMContextRef context;
    LLVMMemoryBufferRef text;
    int size; // instructions; 0 when a thread has taken it
} Part;

typedef struct Parts {
    Part *data;
    int n;                // those after it are not built yet
    bool all;             // there will be no more
    pthread_mutex_t lock; // of what is above, and of the parts' sizes
    pthread_cond_t more;
} Parts;

enum { MAX_THREADS = 8 };

typedef struct Crew {
    pthread_t threads[MAX_THREADS];
    int n, wanted;
} Crew;

// ---- LLVM's work

static void close_part(Part *part) {
    cg_close(&part->cg);
    part->cg.b = NULL, part->cg.m = NULL, part->cg.tm = NULL;
    if (part->context) LLVMContextDispose(part->context);
    part->context = NULL;
}

static void free_part(Part *part) {
    close_part(part);
    if (part->text) LLVMDisposeMemoryBuffer(part->text);
    arena_free(part->arena);
}

static Part *largest(Parts *parts) {
    Part *best = NULL;
    for (int i = 0; i < parts->n; i++) {
        Part *part = &parts->data[i];
        if (part->size && (!best || part->size > best->size)) best = part;
    }
    return best;
}

// The largest first: what is begun last is then short, and others wait little for it.
static Part *take(Parts *parts) {
    Part *part;
    pthread_mutex_lock(&parts->lock);
    while (!(part = largest(parts)) && !parts->all) pthread_cond_wait(&parts->more, &parts->lock);
    if (part) part->size = 0;
    pthread_mutex_unlock(&parts->lock);
    return part;
}

static void *work(void *of) {
    Part *part;
    while ((part = take(of))) {
        if (cg_finish(&part->cg)) part->text = cg_code(&part->cg, LLVMAssemblyFile);
        close_part(part);
    }
    return NULL;
}

// ---- building

static bool build_part(Cg *cg, Part *part, const TileProgram *p, const TileKernel *k) {
    part->cg = (Cg){.arena = cg->arena, .diags = cg->diags, .opt = cg->opt, .target = cg->target};
    part->context = LLVMContextCreate();
    part->cg.only = k;
    if (!cg_open(&part->cg, p, part->context)) return false;
    const char *symbol = cg_symbol(cg, k);
    if (!symbol || !cg_kernel(&part->cg, p, k, symbol)) return false;
    VEC_PUSH(cg->arena, &cg->made, part->cg.made.data[0]);
    part->arena = arena_new();
    part->diags = diag_list(part->arena);
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

static int count_instructions(const Part *part) {
    int n = 1;
    for (Val f = LLVMGetFirstFunction(part->cg.m); f; f = LLVMGetNextFunction(f))
        for (Blk b = LLVMGetFirstBasicBlock(f); b; b = LLVMGetNextBasicBlock(b))
            for (Val i = LLVMGetFirstInstruction(b); i; i = LLVMGetNextInstruction(i)) n++;
    return n;
}

static int thread_count(const Cg *cg, int kernels) {
    cpu_set_t may;
    int n = cg->opt->threads;
    if (n < 1) n = sched_getaffinity(0, sizeof may, &may) ? 1 : CPU_COUNT(&may);
    if (n > kernels) n = kernels;
    return n < MAX_THREADS ? n : MAX_THREADS;
}

// The part that was just built is for whoever is free: one more thread where that is nobody yet. A
// thread that cannot be had is one less.
static void hand_over(Parts *parts, Crew *crew) {
    pthread_mutex_lock(&parts->lock);
    Part *part = &parts->data[parts->n++];
    part->size = count_instructions(part);
    pthread_cond_signal(&parts->more);
    pthread_mutex_unlock(&parts->lock);
    if (crew->n < crew->wanted && !pthread_create(&crew->threads[crew->n], NULL, work, parts))
        crew->n++;
}

// Stops behind the first that fails; *alone: every one of them has one function.
static bool build(Cg *cg, const TileProgram *const *programs, int count, Parts *parts, Crew *crew,
                  bool *alone) {
    *alone = true;
    for (int i = 0; i < count; i++)
        for (int k = 0; k < programs[i]->kernels.n; k++) {
            Part *part = &parts->data[parts->n];
            bool good = build_part(cg, part, programs[i], programs[i]->kernels.data[k]);
            *alone = good && stands_alone(part);
            if (!*alone) {
                free_part(part);
                return good;
            }
            hand_over(parts, crew);
        }
    return true;
}

// What is built and not taken is left when it is of no use.
static void finish(Parts *parts, Crew *crew, bool useful) {
    pthread_mutex_lock(&parts->lock);
    for (int i = 0; i < parts->n && !useful; i++) parts->data[i].size = 0;
    parts->all = true;
    pthread_cond_broadcast(&parts->more);
    pthread_mutex_unlock(&parts->lock);
    work(parts);
    for (int i = 0; i < crew->n; i++) pthread_join(crew->threads[i], NULL);
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
    while (starts(t, ".extern .shared ") || starts(t, ".global ") || starts(t, ".visible .global "))
        take_line(&t);
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
    return diag_refuse(cg->diags, (Span){0}, "out of memory");
}

// ---- all of it

static bool join_errors(Cg *cg, const Parts *parts) {
    int errors = cg->diags->errors;
    for (int i = 0; i < parts->n; i++)
        for (const Diag *d = parts->data[i].diags.first; d; d = d->next)
            diag_error(cg->diags, d->span, "%s", d->message);
    return cg->diags->errors == errors;
}

static void free_parts(Parts *parts) {
    for (int i = 0; i < parts->n; i++) free_part(&parts->data[i]);
    pthread_cond_destroy(&parts->more);
    pthread_mutex_destroy(&parts->lock);
}

bool cg_apart(Cg *cg, const TileProgram *const *programs, int count, char **text, size_t *n) {
    int kernels = 0;
    for (int i = 0; i < count; i++) kernels += programs[i]->kernels.n;
    Parts parts = {.data = ARENA_ARRAY(cg->arena, Part, kernels)};
    Crew crew = {.wanted = thread_count(cg, kernels) - 1};
    pthread_mutex_init(&parts.lock, NULL);
    pthread_cond_init(&parts.more, NULL);
    bool alone, ok = build(cg, programs, count, &parts, &crew, &alone);
    finish(&parts, &crew, alone);
    *text = NULL;
    if (alone) ok = join_errors(cg, &parts) && join(cg, &parts, text, n);
    if (!*text) cg->made.n = 0;
    free_parts(&parts);
    return ok;
}
