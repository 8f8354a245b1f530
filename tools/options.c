// options.c: see options.h. `--name=value`, `--name value`, `-xvalue` and `-x value` are the same;
// `--` ends the options.
#include "options.h"
#include "frontend/names.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum OptionId {
#define OPTION(e, name, letter, meta, verbs, help) OPT_##e,
#include "options.def"
#undef OPTION
    OPT_COUNT
} OptionId;

static const struct Row {
    const char *name;
    char letter;
    const char *meta;
    int verbs;
    const char *help;
} rows[] = {
#define OPTION(e, name, letter, meta, verbs, help) {name, letter, meta, verbs, help},
#include "options.def"
#undef OPTION
};

static const struct {
    const char *name, *synopsis, *what;
} verbs[] = {
#define VERB(e, name, fn, synopsis, what) {name, synopsis, what},
#include "verbs.def"
#undef VERB
};

static void print_row(int i) {
    char left[64], letter[8] = "";
    if (rows[i].letter) snprintf(letter, sizeof letter, "-%c, ", rows[i].letter);
    snprintf(left, sizeof left, "%s--%s%s%s", letter, rows[i].name, rows[i].meta ? "=" : "",
             rows[i].meta ? rows[i].meta : "");
    printf("  %-26s %s\n", left, rows[i].help);
}

void options_help_on(const char *name) {
    for (int i = 0; i < OPT_COUNT; i++)
        if (strcmp(rows[i].name, name) == 0) print_row(i);
}

const char *options_verb(Verb v, const char **what) {
    *what = verbs[v].what;
    return v == VERB_COMPILE ? "compile" : verbs[v].name;
}

void options_help(Verb v) {
    printf("Usage: %s\n", verbs[v].synopsis);
    if (v == VERB_COMPILE)
        for (int i = 1; i < VERB_COUNT; i++)
            printf("       %-48s %s\n", verbs[i].synopsis, verbs[i].what);
    printf("\n%c%s.\n\n", verbs[v].what[0] - 'a' + 'A', verbs[v].what + 1);
    for (int i = 0; i < OPT_COUNT; i++) {
        if (rows[i].verbs & (1 << v)) print_row(i);
    }
    if (v == VERB_CHECK)
        printf(
            "\nIn `relative error o R (largest difference A); bound F` R is ||x - x64|| / ||x64|| "
            "of all elements, x64 being\nthe float64 evaluation, and is held against the bound F. "
            "A is of one element, as it is.\n");
    if (v == VERB_COMPILE)
        printf("\n`attnc VERB --help` tells a verb's own options, `attnc help` the language.\n");
    printf("\nExit status: 0 done, 1 the input was wrong, 2 the command line was wrong, 3 the "
           "device or the system failed.\n");
}

// What options with few values take, for who gives another.
static const char *const takes[OPT_COUNT] = {
    [OPT_OUTPUT] = "a file's name, or - for stdout",
    [OPT_TARGET] = "host, sm_80, sm_90a, gfx90a, gfx942 or gfx1100",
    [OPT_JSON] = "a file's name, or - for stdout",
    [OPT_EMIT] = "ast, row, tile, schedule, llvm or asm",
    [OPT_FORMAT] = "text, mathml, tex or json",
    [OPT_PHASE] = "fwd, bwd, part, piece, or several: fwd,bwd",
    [OPT_DTYPE] = "f32, f16, bf16 or tf32",
    [OPT_KV_DTYPE] = "f32, f16, bf16, e4m3, e5m2 or i8",
    [OPT_LAYOUT] = "dense, ragged, paged, or paged:N, with pages of 1 to 16777216 keys",
    [OPT_LEVEL] = "0, 1, 2 or 3",
    [OPT_DEVICE] = "cpu, cuda, cuda:N, hip or hip:N",
    [OPT_SEED] = "a whole number from 0 to 18446744073709551615",
    [OPT_DEVIATION] = "a number above 0, up to 1e30",
    [OPT_PARTS] = "a whole number from 1 to 1024",
    [OPT_REPEAT] = "a whole number from 1 to 1000000",
    [OPT_BUDGET] = "a whole number of seconds from 1 to 86400",
    [OPT_AT] = "two indices from 0, of the batch entry and the head, as in --at=0,3",
};

static Status bad_value(OptionId id, const char *value) {
    bool letter = rows[id].letter && id != OPT_OUTPUT;
    return cmd_fail(STATUS_USAGE, "%s%.*s: bad value '%s': it takes %s", letter ? "-" : "--",
                    letter ? 1 : 99, letter ? &rows[id].letter : rows[id].name, value, takes[id]);
}

// A name among some. -1: not one of them.
static int pick(const char *value, const char *const *names, int n) {
    for (int i = 0; i < n; i++)
        if (strcmp(value, names[i]) == 0) return i;
    return -1;
}

static Status set_pair(OptionId id, Arena *a, NameValue *out, const char *value) {
    const char *eq = strchr(value, '=');
    if (!eq || eq == value || !eq[1])
        return cmd_fail(STATUS_USAGE, "--%s takes NAME=VALUE, not '%s'", rows[id].name, value);
    *out = (NameValue){arena_strndup(a, value, (size_t)(eq - value)), eq + 1};
    return STATUS_DONE;
}

static Status add_pair(OptionId id, Arena *a, NameValues *to, const char *value) {
    NameValue pair = {NULL, NULL};
    Status s = set_pair(id, a, &pair, value);
    VEC_PUSH(a, to, pair);
    return s;
}

static bool number(const char *s, unsigned long long max, unsigned long long *out) {
    char *end;
    errno = 0;
    *out = strtoull(s, &end, 10);
    return *s >= '0' && *s <= '9' && !*end && !errno && *out <= max;
}

static Status set_target(Options *o, const char *value) {
    if (!target_find(value, &o->target)) return bad_value(OPT_TARGET, value);
    o->has_target = true;
    return STATUS_DONE;
}

static Status set_dtype(Options *o, const char *value) {
    if (!compile_read_dtype(value, &o->dtype, &o->tf32)) return bad_value(OPT_DTYPE, value);
    o->has_dtype = true;
    return STATUS_DONE;
}

static Status set_kv_dtype(Options *o, const char *value) {
    o->has_kv = true;
    return compile_read_kv(value, &o->kv) ? STATUS_DONE : bad_value(OPT_KV_DTYPE, value);
}

static Status set_layout(Options *o, const char *value) {
    return compile_read_layout(value, &o->layout, &o->page) ? STATUS_DONE
                                                            : bad_value(OPT_LAYOUT, value);
}

static Status set_phase(Options *o, const char *value) {
    return compile_read_phases(value, &o->phases) ? STATUS_DONE : bad_value(OPT_PHASE, value);
}

static Status set_device(Options *o, Arena *a, const char *value) {
    static const char *const names[] = {"cpu", "cuda", "hip"};
    const char *colon = strchr(value, ':');
    unsigned long long n = 0;
    int kind = pick(colon ? arena_strndup(a, value, (size_t)(colon - value)) : value, names, 3);
    if (kind < 0 || (colon && (kind == DEVICE_CPU || !number(colon + 1, 1024, &n))))
        return bad_value(OPT_DEVICE, value);
    o->device = (DeviceKind)kind;
    o->ordinal = (int)n;
    return STATUS_DONE;
}

static Status set_shape(Options *o, Arena *a, const char *value) {
    const char *s = value;
    int64_t n;
    bool good = true;
    while (good && options_size(&s, a, &n, &good)) continue;
    if (!good || !*value)
        return cmd_fail(STATUS_USAGE, "--shape takes NAME=INTEGER,..., not '%s'", value);
    VEC_PUSH(a, &o->shapes, value);
    return STATUS_DONE;
}

static Status set_schedule(Options *o, Arena *a, const char *value) {
    const char *wrong = knobs_parse(a, value, &o->schedule);
    return wrong ? cmd_fail(STATUS_USAGE, "--schedule: %s", wrong) : STATUS_DONE;
}

static Status set_emit(Options *o, const char *value) {
    static const char *const forms[] = {"ast", "row", "tile", "schedule", "llvm", "asm"};
    int i = pick(value, forms, 6);
    if (i < 0) return bad_value(OPT_EMIT, value);
    o->emit = (Emit)(i + 1);
    return STATUS_DONE;
}

static Status set_format(Options *o, const char *value) {
    static const char *const formats[] = {"text", "mathml", "tex", "json"};
    int i = pick(value, formats, 4);
    if (i < 0) return bad_value(OPT_FORMAT, value);
    o->format = (Format)i;
    return STATUS_DONE;
}

static Status set_deviation(Options *o, const char *value) {
    char *end;
    o->deviation = strtod(value, &end);
    bool good = end != value && !*end && o->deviation > 0 && o->deviation <= 1e30;
    return good ? STATUS_DONE : bad_value(OPT_DEVIATION, value);
}

static Status set_place(Options *o, const char *value) {
    char batch[16] = "", head[16] = "", more;
    unsigned long long b = 0, h = 0;
    if (sscanf(value, "%15[0-9],%15[0-9]%c", batch, head, &more) != 2 ||
        !number(batch, INT32_MAX, &b) || !number(head, INT32_MAX, &h))
        return bad_value(OPT_AT, value);
    o->batch = (int)b;
    o->head = (int)h;
    return STATUS_DONE;
}

static Status set_int(OptionId id, const char *value, unsigned least, unsigned most, int *to) {
    unsigned long long n;
    if (!number(value, most, &n) || n < least) return bad_value(id, value);
    *to = (int)n;
    return STATUS_DONE;
}

static Status set(Options *o, Arena *a, OptionId id, const char *value) {
    unsigned long long n;
    Status s = STATUS_DONE;
    switch (id) {
    case OPT_OUTPUT: o->output = value; return *value ? s : bad_value(id, value);
    case OPT_TARGET: return set_target(o, value);
    case OPT_EMIT: return set_emit(o, value);
    case OPT_FORMAT: return set_format(o, value);
    case OPT_PASS: o->pass = value; return s;
    case OPT_PHASE: return set_phase(o, value);
    case OPT_DETERMINISTIC: o->deterministic = true; return s;
    case OPT_INVARIANT: o->invariant = true; return s;
    case OPT_DTYPE: return set_dtype(o, value);
    case OPT_KV_DTYPE: return set_kv_dtype(o, value);
    case OPT_LAYOUT: return set_layout(o, value);
    case OPT_ENTRY: o->entry = value; return s;
    case OPT_DEFINE: return add_pair(id, a, &o->defines, value);
    case OPT_IN: return add_pair(id, a, &o->in, value);
    case OPT_OUT: return add_pair(id, a, &o->out, value);
    case OPT_INCLUDE: VEC_PUSH(a, &o->include, value); return s;
    case OPT_LEVEL: o->has_level = true; return set_int(id, value, 0, 3, &o->level);
    case OPT_SCHEDULE: return set_schedule(o, a, value);
    case OPT_STDIO: return s;
    case OPT_NO_CACHE: o->no_cache = true; return s;
    case OPT_DEBUG: o->debug = true; return s;
    case OPT_DEVICE: return set_device(o, a, value);
    case OPT_SHAPE: return set_shape(o, a, value);
    case OPT_SEED:
        if (!number(value, UINT64_MAX, &n)) return bad_value(id, value);
        o->seed = n;
        return s;
    case OPT_DEVIATION: return set_deviation(o, value);
    case OPT_REPEAT: return set_int(id, value, 1, 1000000, &o->repeat);
    case OPT_PARTS: return set_int(id, value, 1, 1024, &o->parts);
    case OPT_DRY: o->dry = true; return s;
    case OPT_JSON: o->json = value; return *value ? s : bad_value(id, value);
    case OPT_BUDGET: return set_int(id, value, 1, 86400, &o->budget);
    case OPT_AT: return set_place(o, value);
    case OPT_CHECK: o->check = true; return s;
    case OPT_HELP: o->help = true; return s;
    case OPT_VERSION: o->version = true; return s;
    case OPT_COUNT: break;
    }
    return STATUS_USAGE;
}

// Which option an argument is; *value what stands in the same argument, or NULL.
static int find(const char *arg, const char **value) {
    bool is_long = arg[1] == '-';
    size_t n = is_long ? strcspn(arg + 2, "=") : 0;
    for (int i = 0; i < OPT_COUNT; i++) {
        if (is_long ? strlen(rows[i].name) != n || memcmp(rows[i].name, arg + 2, n) != 0
                    : rows[i].letter != arg[1])
            continue;
        const char *rest = is_long ? arg + 2 + n : arg + 2;
        *value = *rest ? rest + (is_long ? 1 : 0) : NULL;
        return i;
    }
    return -1;
}

static Status unknown_option(Arena *a, const char *arg) {
    NameGuess g;
    size_t n = strcspn(arg, "=");
    names_guess_init(&g, arena_strndup(a, arg, n));
    for (int i = 0; i < OPT_COUNT; i++) names_guess(&g, arena_printf(a, "--%s", rows[i].name));
    if (g.best)
        return cmd_fail(STATUS_USAGE, "unknown option '%s'; did you mean '%s'?", arg, g.best);
    return cmd_fail(STATUS_USAGE, "unknown option '%s'; `attnc --help` lists them", arg);
}

static Status option(Options *o, Arena *a, int argc, char **argv, int *i) {
    const char *arg = argv[*i], *value;
    int id = find(arg, &value);
    if (id < 0) return unknown_option(a, arg);
    if (!(rows[id].verbs & (1 << o->verb)))
        return cmd_fail(STATUS_USAGE, "%s does not go with `attnc%s%s`", arg,
                        *verbs[o->verb].name ? " " : "", verbs[o->verb].name);
    if (!rows[id].meta && value)
        return cmd_fail(STATUS_USAGE, "'%s': --%s takes no value", arg, rows[id].name);
    if (rows[id].meta && !value) {
        if (*i + 1 == argc) return cmd_fail(STATUS_USAGE, "%s needs a value", arg);
        value = argv[++*i];
    }
    return set(o, a, (OptionId)id, value);
}

static Verb verb_of(const char *word) {
    for (int v = 1; v < VERB_COUNT; v++)
        if (strcmp(word, verbs[v].name) == 0) return (Verb)v;
    return VERB_COMPILE;
}

// A first word that looks like no file and is none: it was meant to be a verb.
static Status no_verb(const char *word) {
    NameGuess g;
    if (strpbrk(word, "./") || word[0] == '-' || !*word || access(word, F_OK) == 0)
        return STATUS_DONE;
    names_guess_init(&g, word);
    for (int v = 1; v < VERB_COUNT; v++) names_guess(&g, verbs[v].name);
    if (g.best)
        return cmd_fail(STATUS_USAGE, "'%s' is neither a verb nor a file; did you mean '%s'?", word,
                        g.best);
    char all[256];
    size_t used = 0;
    for (int v = 1; v < VERB_COUNT && used < sizeof all; v++)
        used += (size_t)snprintf(all + used, sizeof all - used, "%s%s",
                                 v == 1                ? ""
                                 : v + 1 == VERB_COUNT ? " and "
                                                       : ", ",
                                 verbs[v].name);
    return cmd_fail(STATUS_USAGE, "'%s' is neither a verb nor a file; the verbs are %s", word, all);
}

// What runs is compiled for the device that runs it.
static Status target_fits(const Options *o) {
    static const struct {
        const char *device;
        TargetKind kind;
    } takes[] = {[DEVICE_CPU] = {"cpu", KIND_HOST},
                 [DEVICE_CUDA] = {"cuda", KIND_NVPTX},
                 [DEVICE_HIP] = {"hip", KIND_AMDGPU}};
    bool runs = o->verb == VERB_RUN || o->verb == VERB_CHECK || o->verb == VERB_BENCH ||
                o->verb == VERB_TUNE;
    if (o->dry && o->verb == VERB_BENCH &&
        (!o->has_target || target_get(o->target)->kind == KIND_HOST))
        return cmd_fail(STATUS_USAGE, "--dry counts for a GPU: --target=T says for which");
    if (o->phases & COMPILE_PIECE && runs)
        return cmd_fail(STATUS_USAGE, "--phase=piece: these kernels are for callers (attnc -o)");
    if (o->phases & COMPILE_PART && !o->parts && runs)
        return cmd_fail(STATUS_USAGE, o->verb == VERB_CHECK
                                          ? "--phase=part: --parts=N cuts the keys and checks these"
                                          : "--phase=part: bench times fwd and bwd");
    if (!runs || o->dry || !o->has_target || target_get(o->target)->kind == takes[o->device].kind)
        return STATUS_DONE;
    const Target *t = target_get(o->target);
    const char *device = "";
    for (int i = 0; i <= DEVICE_HIP; i++)
        if (takes[i].kind == t->kind) device = takes[i].device;
    return cmd_fail(STATUS_USAGE, "--target=%s does not run on --device=%s: it is for --device=%s",
                    t->name, takes[o->device].device, device);
}

static Status count_files(const Options *o) {
    if (o->verb == VERB_LSP && o->files.n)
        return cmd_fail(STATUS_USAGE, "'attnc lsp' takes no file: the editor sends them");
    if (o->verb == VERB_LSP) return STATUS_DONE;
    if (o->files.n == 0 && o->verb == VERB_HELP) return STATUS_DONE;
    if (o->files.n == 0) return cmd_fail(STATUS_USAGE, "no file given; `attnc --help` tells how");
    bool many = o->verb == VERB_BENCH || o->verb == VERB_CHECK || o->verb == VERB_FMT;
    if (o->files.n == 1 || many) return STATUS_DONE;
    Verb late = o->verb == VERB_COMPILE ? verb_of(o->files.data[1]) : VERB_COMPILE;
    if (late != VERB_COMPILE)
        return cmd_fail(STATUS_USAGE, "the verb comes first: attnc %s %s", verbs[late].name,
                        o->files.data[0]);
    return cmd_fail(STATUS_USAGE, "one file at a time: '%s' is one too many", o->files.data[1]);
}

Status options_parse(Options *o, Arena *a, int argc, char **argv) {
    *o = (Options){.verb = argc > 1 ? verb_of(argv[1]) : VERB_COMPILE, .level = 2};
    bool only_files = false;
    Status verb = argc > 1 && o->verb == VERB_COMPILE ? no_verb(argv[1]) : STATUS_DONE;
    if (verb != STATUS_DONE) return verb;
    for (int i = o->verb == VERB_COMPILE ? 1 : 2; i < argc; i++) {
        if (only_files || argv[i][0] != '-' || !argv[i][1])
            VEC_PUSH(a, &o->files, (const char *)argv[i]);
        else if (strcmp(argv[i], "--") == 0)
            only_files = true;
        else {
            Status s = option(o, a, argc, argv, &i);
            if (s != STATUS_DONE) return s;
            if (o->help || o->version) return STATUS_DONE;
        }
    }
    Status s = count_files(o);
    return s == STATUS_DONE ? target_fits(o) : s;
}

const char *options_size(const char **s, Arena *a, int64_t *value, bool *good) {
    const char *name = *s;
    size_t n = strcspn(name, "=,");
    char *end;
    if (!*name) return NULL;
    *good = n > 0 && name[n] == '=' && name[n + 1] >= '0' && name[n + 1] <= '9';
    if (!*good) return NULL;
    errno = 0;
    *value = strtoll(name + n + 1, &end, 10);
    *good = !errno && *value <= INT32_MAX && (!*end || (*end == ',' && end[1]));
    *s = *end ? end + 1 : end;
    return *good ? arena_strndup(a, name, n) : NULL;
}
