// dry.c: see dry.h. Lines to instructions, instructions to blocks, blocks to natural loops.
#include "dry.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Chip {
    const char *name;
    int mhz, simds, plain, special;
    bool shares; // products and plain operations take turns
} Chip;

static const Chip chips[TARGET_COUNT] = {
#define CHIP(t, name, mhz, simds, plain, special, shares)                                          \
    [TARGET_##t] = {name, mhz, simds, plain, special, shares},
#define INSN(language, start, class, bytes)
#include "dry.def"
#undef CHIP
#undef INSN
};

enum { LANGUAGE_AMD, LANGUAGE_PTX };

static const struct Row {
    int language;
    const char *start;
    DryClass class;
    int bytes;
} rows[] = {
#define CHIP(t, name, mhz, simds, plain, special, shares)
#define INSN(language, start, class, bytes) {LANGUAGE_##language, start, DRY_##class, bytes},
#include "dry.def"
#undef CHIP
#undef INSN
};

typedef struct Block {
    const char *label; // or NULL
    const char *to;    // the label that its last instruction may go to, or NULL
    bool ends;         // what follows it is not reached from it
    int count[DRY_CLASSES];
    double flop, bytes;
    int next[2], nnext; // blocks
} Block;

typedef struct Function {
    Arena *arena;
    int language;
    const char *name;
    VEC(Block) blocks;
} Function;

// ---- instructions

// The product of the three numbers in "32x32x8" or "m64n128k16", twice; 0 when there are none.
static double matrix_flop(const char *mnemonic) {
    for (const char *s = mnemonic; *s; s++) {
        int a, b, c;
        if ((sscanf(s, "%dx%dx%d", &a, &b, &c) == 3 &&
             !isdigit((unsigned char)s[-(s > mnemonic)])) ||
            sscanf(s, "m%dn%dk%d", &a, &b, &c) == 3)
            return 2.0 * a * b * c;
    }
    return 0;
}

static void instruction(Function *f, Block *b, const char *mnemonic) {
    DryClass class = DRY_PLAIN;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].language != f->language ||
            strncmp(mnemonic, rows[i].start, strlen(rows[i].start)) != 0)
            continue;
        class = rows[i].class;
        b->bytes += rows[i].bytes;
        break;
    }
    b->count[class]++;
    if (class != DRY_MATRIX) return;
    bool group = strncmp(mnemonic, "wgmma", 5) == 0; // of four warps
    b->flop += matrix_flop(mnemonic) / (group ? 4 : 1);
}

// ---- blocks

static Block *begin_block(Function *f, const char *label) {
    VEC_PUSH(f->arena, &f->blocks, ((Block){.label = label}));
    return &f->blocks.data[f->blocks.n - 1];
}

// Where a branch goes and whether it always does; NULL: no branch.
static const char *branch(const Function *f, const char *mnemonic, const char *rest,
                          bool predicated, bool *always) {
    if (f->language == LANGUAGE_AMD) {
        *always = strcmp(mnemonic, "s_branch") == 0;
        return *always || strncmp(mnemonic, "s_cbranch_", 10) == 0 ? rest : NULL;
    }
    *always = !predicated;
    return strncmp(mnemonic, "bra", 3) == 0 && *rest == '$' ? rest : NULL;
}

static bool ends(const char *mnemonic, bool predicated) {
    return !predicated && (strcmp(mnemonic, "s_endpgm") == 0 || strcmp(mnemonic, "ret") == 0);
}

// One instruction's text: "@%p1 bra $L__BB0_2", "v_exp_f32_e32 v1, v2".
static void statement(Function *f, char *s) {
    bool predicated = *s == '@', always = false;
    if (predicated) s += strcspn(s, " \t");
    s += strspn(s, " \t");
    size_t n = strcspn(s, " \t");
    char *rest = s + n + strspn(s + n, " \t");
    if (s[n]) s[n] = 0;
    rest[strcspn(rest, " \t;")] = 0;
    if (!islower((unsigned char)*s)) return; // a directive, a brace
    Block *b = &f->blocks.data[f->blocks.n - 1];
    const char *to = branch(f, s, rest, predicated, &always);
    instruction(f, b, s);
    if (to) b->to = to;
    if (to || ends(s, predicated)) {
        b->ends = always || !to;
        begin_block(f, NULL);
    }
}

// A label of the function's own; those inside braces of PTX are nobody else's business.
static bool is_label(const Function *f, const char *s, size_t n) {
    return n > 1 && s[n - 1] == ':' && (f->language == LANGUAGE_AMD ? *s == '.' : *s == '$');
}

static void line(Function *f, char *s) {
    char *comment = f->language == LANGUAGE_AMD ? strchr(s, ';') : strstr(s, "//");
    if (comment) *comment = 0;
    s += strspn(s, " \t");
    size_t n = strlen(s);
    while (n && isspace((unsigned char)s[n - 1])) s[--n] = 0;
    if (is_label(f, s, n)) {
        s[n - 1] = 0;
        begin_block(f, s);
        return;
    }
    for (char *save = NULL, *p = f->language == LANGUAGE_AMD ? s : strtok_r(s, ";", &save); p && *p;
         p = f->language == LANGUAGE_AMD ? NULL : strtok_r(NULL, ";", &save))
        statement(f, p + strspn(p, " \t"));
}

static void connect(Function *f) {
    for (int i = 0; i < f->blocks.n; i++) {
        Block *b = &f->blocks.data[i];
        if (!b->ends && i + 1 < f->blocks.n) b->next[b->nnext++] = i + 1;
        for (int k = 0; b->to && k < f->blocks.n; k++)
            if (f->blocks.data[k].label && strcmp(f->blocks.data[k].label, b->to) == 0) {
                b->next[b->nnext++] = k;
                break;
            }
    }
}

// ---- loops

// Which blocks are reached from `from` without going through `without` (-1: all may be).
static void reach(const Function *f, int from, int without, bool *seen) {
    if (from == without || seen[from]) return;
    seen[from] = true;
    const Block *b = &f->blocks.data[from];
    for (int i = 0; i < b->nnext; i++) reach(f, b->next[i], without, seen);
}

// The natural loop of header h: what reaches, inside of what h dominates, an edge back to h. False
// when there is none.
static bool natural_loop(const Function *f, int h, bool *in) {
    int n = f->blocks.n;
    bool *all = calloc((size_t)n, 1), *past = calloc((size_t)n, 1);
    memset(in, 0, (size_t)n);
    if (all && past) {
        reach(f, 0, -1, all);
        reach(f, 0, h, past);
        for (bool more = true; more;) { // backwards from h, as far as h dominates
            more = false;
            for (int i = 0; i < n; i++) {
                const Block *b = &f->blocks.data[i];
                if (!all[i] || past[i] || in[i]) continue;
                for (int k = 0; k < b->nnext; k++) in[i] |= b->next[k] == h || in[b->next[k]];
                more |= in[i];
            }
        }
    }
    free(all);
    free(past);
    return in[h];
}

static void sum(const Function *f, const bool *in, DryKernel *k, double *bytes) {
    *k = (DryKernel){.name = f->name};
    *bytes = 0;
    for (int i = 0; i < f->blocks.n; i++) {
        const Block *b = &f->blocks.data[i];
        if (!in[i]) continue;
        for (int c = 0; c < DRY_CLASSES; c++) k->count[c] += b->count[c];
        k->flop += b->flop;
        *bytes += b->bytes;
    }
    for (int c = 0; c < DRY_CLASSES; c++) k->instructions += c == DRY_FREE ? 0 : k->count[c];
}

// Cycles of one SIMD for a step of one wave.
static void cycles(DryKernel *k, double bytes, TargetId target) {
    const TargetRates *r = target_rates(target);
    const Chip *chip = &chips[target];
    double lanes = target_get(target)->lanes;
    k->matrix = k->flop * chip->simds / r->matrix;
    k->vector =
        k->count[DRY_PLAIN] * lanes / chip->plain + k->count[DRY_SPECIAL] * lanes / chip->special;
    k->shared = bytes * lanes * chip->simds / r->shared;
    double compute = chip->shares            ? k->matrix + k->vector
                     : k->matrix > k->vector ? k->matrix
                                             : k->vector;
    k->overlapped = compute > k->shared ? compute : k->shared;
    k->alone = k->matrix + k->vector + k->shared;
}

// Of the loops with products that hold no smaller one with products, the one with the least beside them.
static DryKernel full_tiles(const Function *f, TargetId target) {
    int n = f->blocks.n;
    DryKernel best = {.name = f->name};
    bool *in = calloc((size_t)n * (size_t)n + 1, 1), *loop = calloc((size_t)n + 1, 1);
    DryKernel *found = calloc((size_t)n + 1, sizeof *found);
    for (int h = 0; in && loop && found && h < n; h++) {
        double bytes;
        loop[h] = natural_loop(f, h, in + (size_t)h * (size_t)n);
        if (!loop[h]) continue;
        sum(f, in + (size_t)h * (size_t)n, &found[h], &bytes);
        cycles(&found[h], bytes, target);
        loop[h] = found[h].count[DRY_MATRIX] > 0;
    }
    for (int h = 0; in && loop && found && h < n; h++) {
        bool inner = loop[h];
        for (int other = 0; inner && other < n; other++)
            if (other != h && loop[other] && in[(size_t)h * (size_t)n + (size_t)other])
                inner = false;
        if (inner && (best.flop == 0 || found[h].alone / found[h].flop < best.alone / best.flop))
            best = found[h];
    }
    free(in);
    free(loop);
    free(found);
    return best;
}

// ---- functions

// The name of the kernel that begins with this line, in the arena, or NULL.
static const char *kernel_begins(Arena *a, int language, const char *s) {
    char name[256];
    if (language == LANGUAGE_PTX)
        return sscanf(s, ".visible .entry %255[A-Za-z0-9_$]", name) == 1 ? arena_strdup(a, name)
                                                                         : NULL;
    if (sscanf(s, " .type %255[A-Za-z0-9_$.],@function", name) != 1) return NULL;
    return strstr(s, ",@function") ? arena_strdup(a, name) : NULL;
}

static bool function_ends(int language, const char *s) {
    return language == LANGUAGE_PTX ? strstr(s, ".func") != NULL
                                    : strncmp(s, ".Lfunc_end", 10) == 0;
}

DryKernels dry_count(Arena *a, const char *assembly, size_t n, TargetId target) {
    int language = target_get(target)->kind == KIND_NVPTX ? LANGUAGE_PTX : LANGUAGE_AMD;
    DryKernels all = {{0}};
    Function f = {.arena = a, .language = language};
    char *text = arena_strndup(a, assembly, n), *save = NULL;
    for (char *s = strtok_r(text, "\n", &save);; s = strtok_r(NULL, "\n", &save)) {
        const char *name = s ? kernel_begins(a, language, s) : NULL;
        if (f.name && (!s || name || function_ends(language, s))) {
            connect(&f);
            VEC_PUSH(a, &all.kernels, full_tiles(&f, target));
            f.name = NULL;
        }
        if (!s) return all;
        if (name) {
            f = (Function){.arena = a, .language = language, .name = name};
            begin_block(&f, NULL);
        } else if (f.name)
            line(&f, s);
    }
}

const char *dry_chip(TargetId target, int *mhz) {
    *mhz = chips[target].mhz;
    return chips[target].name;
}

double dry_rate(const DryKernel *k, TargetId target, double cycles) {
    return k->flop / cycles * chips[target].simds * target_rates(target)->units *
           chips[target].mhz * 1e6;
}
