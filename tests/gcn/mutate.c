// mutate.c: see mutate.h. A mistake is made by rewriting the text of one instruction before it is
// decoded, one at a time, for the instructions of a kind that the launch comes to. For each kind it
// is known how many of a hundred must be noticed, by numbers or by the interpreter: not all, since
// LLVM's code has waits and comparisons that another one makes unnecessary.
#include "tests/gcn/mutate.h"
#include "tests/gcn/subject.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_SITES = 4096, MOST_TRIED = 72, TEXT = 512 };

typedef struct Kind {
    const char *what;
    // Rewrites text into out; false: the instruction is not of this kind.
    bool (*make)(const char *text, char *out);
    int least; // of a hundred
} Kind;

// ---- the kinds

static bool starts(const char *s, const char *with) { return strncmp(s, with, strlen(with)) == 0; }

static bool no_barrier(const char *text, char *out) {
    strcpy(out, "s_nop 0");
    return starts(text, "s_barrier");
}

static bool no_wait(const char *text, char *out) {
    strcpy(out, "s_nop 0");
    return starts(text, "s_waitcnt ") || starts(text, "s_waitcnt_vscnt");
}

// The two factors of a matrix product exchanged: what has rows has columns.
static bool exchanged(const char *text, char *out) {
    char op[64], d[32], a[32], b[32], rest[128];
    if (!starts(text, "v_mfma_") && !starts(text, "v_wmma_")) return false;
    if (sscanf(text, "%63s %31[^,], %31[^,], %31[^,], %127[^\n]", op, d, a, b, rest) != 5)
        return false;
    snprintf(out, TEXT, "%s %s, %s, %s, %s", op, d, b, a, rest);
    return strcmp(a, b) != 0;
}

// A fragment read from the chunk of 16 bytes beside its own.
static bool other_chunk(const char *text, char *out) {
    const char *offset = strstr(text, " offset:");
    if (!starts(text, "ds_read_b") && !starts(text, "ds_load_b")) return false;
    int n = offset ? atoi(offset + 8) : 0;
    int keep = offset ? (int)(offset - text) : (int)strcspn(text, "\n");
    snprintf(out, TEXT, "%.*s offset:%d", keep, text, n ^ 16);
    return true;
}

// < for <=, > for >=, and the other way round: an index that stops one too early or too late.
static bool off_by_one(const char *text, char *out) {
    static const char *const pairs[][2] = {
        {"_lt_", "_le_"}, {"_le_", "_lt_"}, {"_gt_", "_ge_"}, {"_ge_", "_gt_"}};
    if (!starts(text, "v_cmp_") || (!strstr(text, "_i32") && !strstr(text, "_u32"))) return false;
    for (int i = 0; i < 4; i++) {
        const char *at = strstr(text, pairs[i][0]);
        if (!at) continue;
        snprintf(out, TEXT, "%.*s%s%s", (int)(at - text), text, pairs[i][1], at + 4);
        return true;
    }
    return false;
}

static const Kind kinds[] = {
    {"a barrier left out", no_barrier, 100},
    {"an s_waitcnt left out", no_wait, 50},
    {"factors of a matrix product exchanged", exchanged, 100},
    {"a fragment from the chunk beside", other_chunk, 100},
    {"a comparison off by one", off_by_one, 50},
};

// ---- one mistake

typedef struct Editing {
    const Kind *kind;
    int site;  // which instruction is rewritten; -1: none, they are counted
    bool trap; // into something that is no instruction, to see whether the launch comes to it
    int sites[MOST_SITES], n;
    char text[TEXT];
} Editing;

static const char *edit(void *ctx, int index, uint32_t at, const char *text) {
    Editing *e = ctx;
    (void)at;
    if (e->site >= 0 && e->site != index) return NULL;
    if (!e->kind->make(text, e->text)) return NULL;
    if (e->site < 0) {
        if (e->n < MOST_SITES) e->sites[e->n++] = index;
        return NULL;
    }
    return e->trap ? "trap" : e->text;
}

static Report try(Subject *s, Trial *t, Editing *e, int site, bool trap) {
    GcnEdit how = {edit, e};
    Report r;
    e->site = site;
    e->trap = trap;
    if (subject_load(s, &how, &r)) r = trial_run(t, s, 3);
    return r;
}

typedef struct Count {
    int *passed, *failed;
    const char *target;
} Count;

static void check_kind(Subject *s, Trial *t, const Kind *k, Count *c) {
    Editing *e = calloc(1, sizeof *e);
    int tried = 0, noticed = 0;
    const char *missed = NULL;
    char text[TEXT] = "";
    if (!e) return;
    e->kind = k;
    try(s, t, e, -1, false);
    int step = e->n / MOST_TRIED + 1;
    for (int i = 0; i < e->n; i++) {
        if (i % step || try(s, t, e, e->sites[i], true).outcome != OUTCOME_FAULT) continue;
        Report r = try(s, t, e, e->sites[i], false);
        tried++;
        noticed += r.outcome != OUTCOME_RIGHT;
        if (getenv("GCN_VERBOSE")) printf("  %s: %s: %s\n", k->what, e->text, r.text);
        if (r.outcome != OUTCOME_RIGHT) continue;
        snprintf(text, sizeof text, "%s", e->text);
        missed = text;
    }
    bool good = tried && noticed * 100 >= k->least * tried;
    printf("%s%s, %s: %d of %d noticed", good ? "" : "FAILED: ", c->target, k->what, noticed,
           tried);
    printf(missed && !good ? ", not %s\n" : "\n", missed);
    *(good ? c->passed : c->failed) += 1;
    free(e);
}

// ---- a kernel whose keys and queries end within a tile; more queries than kernels for parts of rows take

static void check_target(TargetId target, Count *c) {
    CompileOptions o = {
        .source = {.path = "stdlib/causal.attn"}, .target = target, .dtype = DT_F16, .level = 2};
    Subject s;
    Trial t = {0};
    Report r;
    c->target = cg_target(target).name;
    bool good = subject_open(&s, &o, stdout) && subject_load(&s, NULL, &r) &&
                trial_open(&t, &s, "B=1,H=1,Sq=198,Sk=150", NULL);
    if (good) r = trial_run(&t, &s, 3);
    good = good && r.outcome == OUTCOME_RIGHT;
    if (!good) printf("FAILED: %s: the kernel is wrong to begin with\n", c->target);
    *c->failed += !good;
    for (size_t i = 0; good && i < sizeof kinds / sizeof *kinds; i++)
        check_kind(&s, &t, &kinds[i], c);
    trial_close(&t);
    subject_close(&s);
}

void mutate_check(int target, int *passed, int *failed) {
    static const TargetId targets[] = {TARGET_GFX90A, TARGET_GFX942, TARGET_GFX1100};
    Count c = {passed, failed, NULL};
    for (int i = 0; i < 3; i++)
        if (target < 0 || targets[i] == (TargetId)target) check_target(targets[i], &c);
}
