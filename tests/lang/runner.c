// runner.c: runs language tests: .attn files that carry their expectations in comments. From the
// top folder:
//     check_lang [FILE.attn | FOLDER]...          (none: all of tests/lang and stdlib)
//
//   // error: TEXT               on the line of an error; its message contains TEXT. Several may
//   follow each other
//   // warning: TEXT             the same of a warning
//   // note: TEXT                the same of a note, also one of an error or a warning; notes that
//   nothing expects are no failure
//   // error FILE:LINE: TEXT     the same for another file (its name ends with FILE) and line; line
//   0: an error without a place
//   // args: -DNAME=V -IDIR      options for this file
//   // status: N                 what fe_load gives (by default 1 where errors are expected, else
//   0)
//   // row: TEXT                 the row programs' text contains it;  `// no row: TEXT` that it
//   does not
//   // run: [VARIANT] [B=1,..]   evaluates a variant by the reference; sizes not given are 1,
//   q_offset as the contract says
//   // in NAME: 1 2 3            an array of the last run (one number fills all of it; none given:
//   0)
//   // expect NAME: 1 2 3        an output of the last run: o, state, or an emit (one number stands
//   for all)
//
// A file fails on an expected diagnostic that does not come and on one that comes unexpected. What
// compiles is also printed, parsed and printed again, and its attentions lowered.
#include "frontend/ast.h"
#include "frontend/frontend.h"
#include "frontend/reference.h"
#include "tests/support/modules.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LIST = 256 };

typedef struct Expected {
    const char *file; // NULL: the test itself
    int line;
    const char *text;
    Severity severity;
    bool met;
} Expected;

typedef struct Test {
    Arena *arena;
    const char *path, *text;
    size_t n;
    FeOptions options;
    FeDefine defines[MAX_LIST];
    const char *dirs[MAX_LIST];
    VEC(Expected) expected;
    int status; // -1: by the expected errors
    Diags diags;
    Module *module;
    bool failed;
} Test;

typedef struct Run {
    const Variant *v;
    int32_t sizes[MAX_LIST];
    double *q, *k, *v_, *state0, *o, *state;
    void *inputs[MAX_LIST];
    double *emits[MAX_LIST];
    bool done;
} Run;

static void fail(Test *t, int line, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void fail(Test *t, int line, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    printf("%s:%d: ", t->path, line);
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
    t->failed = true;
}

static const char *trimmed(Arena *a, const char *s, size_t n) {
    while (n && (*s == ' ' || *s == '\t')) s++, n--;
    while (n && (s[n - 1] == ' ' || s[n - 1] == '\t' || s[n - 1] == '\r')) n--;
    return arena_strndup(a, s, n);
}

// ---- expectations of diagnostics

static void expect(Test *t, Severity severity, const char *file, int line, const char *text) {
    Expected e = {file, line, text, severity, false};
    VEC_PUSH(t->arena, &t->expected, e);
}

static void read_expected(Test *t, Severity severity, const char *mark, const char *line,
                          int number) {
    for (const char *at; (at = strstr(line, mark)); line = at + 1) {
        const char *text = at + strlen(mark), *next = strstr(text, " // ");
        expect(t, severity, NULL, number,
               trimmed(t->arena, text, next ? (size_t)(next - text) : strlen(text)));
    }
}

static void read_args(Test *t, char *args) {
    for (char *arg = strtok(args, " "); arg; arg = strtok(NULL, " ")) {
        char *value = strchr(arg, '=');
        if (!strncmp(arg, "-D", 2) && value) {
            *value = '\0';
            t->defines[t->options.ndefines++] = (FeDefine){arg + 2, value + 1};
        } else if (!strncmp(arg, "-I", 2)) {
            t->dirs[t->options.ndirs++] = arg + 2;
        }
    }
    t->options.defines = t->defines;
    t->options.dirs = t->dirs;
}

static void read_directive(Test *t, char *line, int number) {
    char file[200];
    int at, used = 0;
    read_expected(t, DIAG_ERROR, "// error: ", line, number);
    read_expected(t, DIAG_WARNING, "// warning: ", line, number);
    read_expected(t, DIAG_NOTE, "// note: ", line, number);
    if (!strncmp(line, "// args: ", 9))
        read_args(t, line + 9);
    else if (sscanf(line, "// status: %d", &at) == 1)
        t->status = at;
    else if (sscanf(line, "// error %199[^:]:%d: %n", file, &at, &used) == 2 && used)
        expect(t, DIAG_ERROR, arena_strdup(t->arena, file), at, line + used);
}

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

static int line_of(const Source *s, uint32_t at) {
    int line = 1;
    for (uint32_t i = 0; i < at && i < s->n; i++) line += s->text[i] == '\n';
    return line;
}

static bool expects_errors(const Test *t) {
    for (int i = 0; i < t->expected.n; i++)
        if (t->expected.data[i].severity == DIAG_ERROR) return true;
    return false;
}

static void match(Test *t, const Diag *g) {
    const Source *s = &t->diags.files.data[g->span.file];
    int line = g->span.file ? line_of(s, g->span.start) : 0;
    for (int i = 0; i < t->expected.n; i++) {
        Expected *e = &t->expected.data[i];
        bool place = e->line == line &&
                     (!line || (e->file ? ends_with(s->name, e->file) : g->span.file == 1));
        if (!e->met && e->severity == g->severity && place && strstr(g->message, e->text)) {
            e->met = true;
            return;
        }
    }
    if (g->severity == DIAG_NOTE) return;
    fail(t, line, "unexpected %s%s%s: %s", g->severity == DIAG_ERROR ? "error" : "warning",
         g->span.file > 1 ? " in " : "", g->span.file > 1 ? s->name : "", g->message);
}

static void check_errors(Test *t) {
    for (const Diag *g = t->diags.first; g; g = g->next)
        for (const Diag *n = g; n; n = n->note) match(t, n);
    for (int i = 0; i < t->expected.n; i++)
        if (!t->expected.data[i].met)
            fail(t, t->expected.data[i].line, "missing: %s", t->expected.data[i].text);
}

// ---- what compiles

static void check_print(Test *t) {
    Text once = text_new(t->arena), twice = text_new(t->arena);
    fe_print_ast(&once, t->module);
    Diags d = diag_list(t->arena);
    AstModule *again = ast_parse(t->arena, &d, diag_add_file(&d, "printed", once.s, once.n), NULL);
    ast_print(&twice, again);
    if (d.errors || strcmp(once.s, twice.s))
        fail(t, 0, "the printed AST reads back differently:\n%s", once.s);
}

static const char *rows(Test *t) {
    Text out = text_new(t->arena);
    for (int i = 0; i < t->module->variants.n; i++) {
        const Variant *v = t->module->variants.data[i];
        Diags d = diag_list(t->arena);
        if (v->kind == VARIANT_RECURRENCE) {
            rec_print(&out, fe_lower_recurrence(t->arena, v));
            continue;
        }
        RowProgram *p = fe_lower(t->arena, &d, v);
        if (!p) fail(t, 0, "lowering '%s' went wrong", v->name);
        if (p) row_print(&out, p);
    }
    return out.s;
}

// ---- values

static int64_t product(const Run *r, const TxInput *in) {
    int64_t n = 1;
    for (int i = 0; i < in->rank; i++)
        n *= in->extent[i].size < 0 ? in->extent[i].value : r->sizes[in->extent[i].size];
    return n;
}

static int64_t size_named(const Run *r, const char *name) {
    for (int i = 0; i < r->v->sizes.n; i++)
        if (!strcmp(r->v->sizes.data[i], name)) return r->sizes[i];
    return 1;
}

// The elements of a tensor by its name; 0: there is none.
static int64_t elements(const Run *r, const char *name) {
    bool attends = r->v->kind == VARIANT_ATTENTION;
    int64_t B = r->sizes[0], H = r->sizes[1], D = r->v->D, Dv = r->v->Dv;
    int64_t Sq = size_named(r, attends ? "Sq" : "S"), Sk = size_named(r, attends ? "Sk" : "S");
    if (!strcmp(name, "q")) return B * size_named(r, attends ? "H" : "Hq") * Sq * D;
    if (!strcmp(name, "k")) return B * size_named(r, attends ? "Hkv" : "Hk") * Sk * D;
    if (!strcmp(name, "v")) return B * size_named(r, attends ? "Hkv" : "Hv") * Sk * Dv;
    if (!strcmp(name, "o")) return B * H * Sq * Dv;
    if (!strcmp(name, "state") || !strcmp(name, "state0")) return attends ? 0 : B * H * D * Dv;
    for (int i = 0; i < r->v->inputs.n; i++)
        if (!strcmp(name, r->v->inputs.data[i].name)) return product(r, &r->v->inputs.data[i]);
    for (int i = 0; i < r->v->emits.n; i++)
        if (!strcmp(name, r->v->emits.data[i].name)) return B * H * Sq;
    return 0;
}

static void set_sizes(Run *r, char *given) {
    bool attends = r->v->kind == VARIANT_ATTENTION, offset = false, heads[3] = {false};
    for (int i = 0; i < r->v->sizes.n; i++) r->sizes[i] = 1;
    for (char *s = strtok(given, ", "); s; s = strtok(NULL, ", ")) {
        char *value = strchr(s, '=');
        if (!value) continue;
        *value = '\0';
        for (int i = 0; i < r->v->sizes.n; i++)
            if (!strcmp(r->v->sizes.data[i], s)) {
                r->sizes[i] = atoi(value + 1);
                offset |= attends && i == SIZE_Q_OFFSET;
                if (!attends && i >= RSIZE_HQ && i <= RSIZE_HV) heads[i - RSIZE_HQ] = true;
            }
    }
    int32_t past = r->sizes[SIZE_SK] - r->sizes[SIZE_SQ];
    if (attends && !offset) r->sizes[SIZE_Q_OFFSET] = past > 0 ? past : 0;
    for (int i = 0; !attends && i < 3; i++)
        if (!heads[i]) r->sizes[RSIZE_HQ + i] = r->sizes[RSIZE_H];
}

static double *doubles(Test *t, int64_t n) { return ARENA_ARRAY(t->arena, double, n + 1); }

static void start_run(Test *t, Run *r, char *line, int number) {
    char name[100] = "";
    if (sscanf(line, " %99[A-Za-z0-9_]", name) == 1 && !fe_find(t->module, name)) name[0] = '\0';
    *r = (Run){.v = fe_find(t->module, name[0] ? name : NULL)};
    if (!r->v) {
        fail(t, number, "there is no variant '%s' to run", name);
        return;
    }
    set_sizes(r, line + (name[0] ? strstr(line, name) - line + (ptrdiff_t)strlen(name) : 0));
    r->q = doubles(t, elements(r, "q"));
    r->k = doubles(t, elements(r, "k"));
    r->v_ = doubles(t, elements(r, "v"));
    r->o = doubles(t, elements(r, "o"));
    r->state0 = doubles(t, elements(r, "state0"));
    r->state = doubles(t, elements(r, "state"));
    for (int i = 0; i < r->v->inputs.n; i++)
        r->inputs[i] = doubles(t, product(r, &r->v->inputs.data[i]));
    for (int i = 0; i < r->v->emits.n; i++) r->emits[i] = doubles(t, elements(r, "o"));
}

static void *tensor(Run *r, const char *name, bool *integer) {
    *integer = false;
    if (!strcmp(name, "q")) return r->q;
    if (!strcmp(name, "k")) return r->k;
    if (!strcmp(name, "v")) return r->v_;
    if (!strcmp(name, "o")) return r->o;
    if (!strcmp(name, "state0")) return r->state0;
    if (!strcmp(name, "state")) return r->state;
    for (int i = 0; i < r->v->inputs.n; i++)
        if (!strcmp(name, r->v->inputs.data[i].name)) {
            *integer = dtype_reads(r->v->inputs.data[i].dtype) != EX_F32;
            return r->inputs[i];
        }
    for (int i = 0; i < r->v->emits.n; i++)
        if (!strcmp(name, r->v->emits.data[i].name)) return r->emits[i];
    return NULL;
}

// The number at position i of the list; a list of one number gives it everywhere.
static int read_numbers(const char *s, double *out, int most) {
    int n = 0;
    for (char *end; n < most; s = end) {
        out[n] = strtod(s, &end);
        if (end == s) break;
        n++;
    }
    return n;
}

static void set_input(Test *t, Run *r, const char *name, const char *list, int number) {
    static const int MOST = 4096;
    double *x = doubles(t, MOST);
    int n = read_numbers(list, x, MOST);
    int64_t want = r->v ? elements(r, name) : 0;
    bool integer;
    void *to = r->v ? tensor(r, name, &integer) : NULL;
    if (!to || (n != 1 && n != want)) {
        fail(t, number, "'%s' takes %lld numbers, not %d", name, (long long)want, n);
        return;
    }
    for (int64_t i = 0; i < want; i++) {
        double value = x[n == 1 ? 0 : i];
        if (integer)
            ((int32_t *)to)[i] = (int32_t)value;
        else
            ((double *)to)[i] = value;
    }
}

static bool near(double a, double b) {
    if (isnan(a) || isnan(b)) return isnan(a) && isnan(b);
    return a == b || fabs(a - b) <= 1e-6 * (1 + fabs(b));
}

static void finish_run(Test *t, Run *r, int number) {
    RefRun ref = {.variant = r->v,
                  .sizes = r->sizes,
                  .q = r->q,
                  .k = r->k,
                  .v = r->v_,
                  .o = r->o,
                  .inputs = (const void *const *)r->inputs,
                  .emits = r->emits,
                  .state0 = r->state0,
                  .state = r->state};
    const char *why = ref_check(&ref);
    if (why)
        fail(t, number, "%s", why);
    else
        ref_run(&ref);
    r->done = true;
}

static void expect_output(Test *t, Run *r, const char *name, const char *list, int number) {
    static const int MOST = 4096;
    double *x = doubles(t, MOST);
    int n = read_numbers(list, x, MOST);
    if (r->v && !r->done) finish_run(t, r, number);
    int64_t have = r->v ? elements(r, name) : 0;
    bool integer;
    const double *got = r->v ? tensor(r, name, &integer) : NULL;
    if (!got || (n != 1 && n != have)) {
        fail(t, number, "'%s' has %lld numbers, not %d", name, (long long)have, n);
        return;
    }
    for (int64_t i = 0; i < have; i++)
        if (!near(got[i], x[n == 1 ? 0 : i])) {
            fail(t, number, "%s[%lld] is %.9g, not %.9g", name, (long long)i, got[i],
                 x[n == 1 ? 0 : i]);
            return;
        }
}

static void run_directive(Test *t, Run *r, const char *row, char *line, int number) {
    char name[100];
    int used = 0;
    if (!strncmp(line, "// row: ", 8)) {
        if (!strstr(row, line + 8))
            fail(t, number, "the row program does not contain this; it is\n%s", row);
    } else if (!strncmp(line, "// no row: ", 11)) {
        if (strstr(row, line + 11))
            fail(t, number, "the row program contains this; it is\n%s", row);
    } else if (!strncmp(line, "// run:", 7)) {
        start_run(t, r, line + 7, number);
    } else if (sscanf(line, "// in %99[^:]: %n", name, &used) == 1 && used) {
        set_input(t, r, name, line + used, number);
    } else if (sscanf(line, "// expect %99[^:]: %n", name, &used) == 1 && used) {
        expect_output(t, r, name, line + used, number);
    }
}

// ---- files

static void each_line(Test *t, Run *r, const char *row) {
    int number = 1;
    for (const char *s = t->text, *end = t->text + t->n; s < end; number++) {
        const char *eol = memchr(s, '\n', (size_t)(end - s));
        char *line = arena_strndup(t->arena, s, (size_t)((eol ? eol : end) - s));
        for (char *c = line; c < line + ((eol ? eol : end) - s); c++)
            if (!*c) *c = ' ';
        if (r)
            run_directive(t, r, row, line, number);
        else
            read_directive(t, line, number);
        s = eol ? eol + 1 : end;
    }
}

static bool read_text(Test *t) {
    FILE *f = fopen(t->path, "rb");
    if (!f) return false;
    Text text = text_new(t->arena);
    char buf[4096];
    for (size_t n; (n = fread(buf, 1, sizeof buf, f)) > 0;) text_putn(&text, buf, n);
    fclose(f);
    t->text = text.s;
    t->n = text.n;
    return true;
}

static bool run_file(const char *path) {
    Test t = {.arena = arena_new(), .path = path, .status = -1};
    t.options = (FeOptions){.path = path, .stdlib = "stdlib"};
    t.diags = diag_list(t.arena);
    if (!read_text(&t)) {
        fail(&t, 0, "cannot be read: %s", strerror(errno));
    } else {
        each_line(&t, NULL, NULL);
        FeStatus status;
        t.module = fe_load(t.arena, &t.diags, &t.options, &status);
        check_errors(&t);
        int want = t.status >= 0 ? t.status : expects_errors(&t) ? FE_SOURCE : FE_OK;
        if ((int)status != want) fail(&t, 0, "the status is %d, not %d", (int)status, want);
    }
    if (t.module) {
        Run r = {0};
        check_print(&t);
        each_line(&t, &r, rows(&t));
    }
    arena_free(t.arena);
    return !t.failed;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int run_folder(Arena *a, const char *folder, int *passed) {
    VEC(char *) files = {0};
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));)
        if (ends_with(e->d_name, ".attn") && !is_library_module(e->d_name))
            VEC_PUSH(a, &files, arena_printf(a, "%s/%s", folder, e->d_name));
    if (d) closedir(d);
    if (files.n) qsort(files.data, (size_t)files.n, sizeof *files.data, by_name);
    for (int i = 0; i < files.n; i++) *passed += run_file(files.data[i]);
    return files.n;
}

int main(int argc, char **argv) {
    Arena *a = arena_new();
    int passed = 0, n = 0;
    for (int i = 1; i < argc; i++)
        if (ends_with(argv[i], ".attn"))
            n++, passed += run_file(argv[i]);
        else
            n += run_folder(a, argv[i], &passed);
    if (argc < 2) n = run_folder(a, "tests/lang", &passed) + run_folder(a, "stdlib", &passed);
    arena_free(a);
    printf("%d passed, %d failed\n", passed, n - passed);
    return passed == n && n ? 0 : 1;
}
