// cache.c: see cache.h.
#include "cache.h"
#include "files.h"
#include "ir/read.h"
#include "runtime/attn.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_BYTES = 1 << 16, MAX_LINE = 4096 }; // a field of a line is read up to 4095 bytes

static const char first_line[] = "attnc schedules 1";

// ---- names

static const char *variable(const char *name) {
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

const char *cache_folder(Arena *a) {
    const char *own = variable("ATTNC_CACHE"), *all = variable("XDG_CACHE_HOME"),
               *home = variable("HOME");
    if (own) return arena_strdup(a, own);
    if (all) return arena_printf(a, "%s/attnc", all);
    return home ? arena_printf(a, "%s/.cache/attnc", home) : NULL;
}

// FNV-1a, from another beginning for each half of the name.
static uint64_t hash(const char *s, size_t n, uint64_t h) {
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * UINT64_C(0x100000001b3);
    return h;
}

// A number for an expression, from those of its arguments: printed as a tree it may have no end.
static void print_hash(Text *out, Arena *a, const RowProgram *row, const Ex *e) {
    const Ex **order;
    int n = ex_order(a, &e, 1, &order);
    ExMemo hashes = {0};
    ExNames names = row_names(row);
    uint64_t *h = ARENA_ARRAY(a, uint64_t, n);
    for (int i = 0; i < n; i++) {
        const Ex *x = order[i];
        Text t = text_new(a);
        if (x->nargs)
            text_printf(&t, "%s %s %d", ex_op_name(x->op), ex_type_name(x->type),
                        x->op == EX_LOAD ? x->input * 2 + x->inside : 0);
        else
            ex_print(&t, x, &names);
        h[i] = hash(t.s, t.n, UINT64_C(0xcbf29ce484222325));
        for (int k = 0; k < x->nargs; k++)
            h[i] = hash(ex_memo_get(&hashes, x->args[k]), sizeof *h, h[i]);
        ex_memo_put(a, &hashes, x, &h[i]);
    }
    text_printf(out, " %016llx", (unsigned long long)h[n - 1]);
}

static void print_row(Text *out, Arena *a, const RowProgram *row) {
    const Ex *clauses[] = {row->score, row->modified, row->mask, row->weight, row->output};
    text_printf(out, "%s %d %d", row->name, row->D, row->Dv);
    if (row->v_in_k) text_puts(out, " v in k");
    for (int i = 1; i < row->dots.n; i++)
        text_printf(out, "\n%s", row_product_name(row, SYM_DOT, i));
    for (int side = 0; side < ROW_SIDES; side++)
        for (int i = 1; i < row->rows[side].n; i++)
            text_printf(out, "\n%s",
                        row_product_name(row, side == ROW_KEYS ? SYM_SQK : SYM_SQQ, i));
    for (int i = 0; i < row->inputs.n; i++) {
        const RowInput *in = &row->inputs.data[i];
        text_printf(out, "\n%s %s %d %d", in->name, dtype_name(in->dtype), in->grad, in->bare_q);
        for (int k = 0; k < in->rank; k++) print_hash(out, a, row, in->extent[k]);
    }
    for (size_t i = 0; i < sizeof clauses / sizeof *clauses; i++)
        print_hash(out, a, row, clauses[i]);
    for (int i = 0; i < row->reduces.n; i++) {
        text_printf(out, "\n%s %s", row->reduces.data[i].name, ex_op_name(row->reduces.data[i].op));
        print_hash(out, a, row, row->reduces.data[i].f);
    }
    for (int i = 0; i < row->emits.n; i++) {
        text_printf(out, "\n%s", row->emits.data[i].name);
        print_hash(out, a, row, row->emits.data[i].value);
    }
}

CacheKey cache_key(Arena *a, const RowProgram *row, const PassOptions *o) {
    const Target *t = &o->target;
    const char *type = o->tf32 ? "tf32" : dtype_name(o->dtype);
    if (o->kv) type = arena_printf(a, "%s with %s", type, dtype_name(o->kv));
    Text all = text_new(a);
    text_printf(&all, "%s %s %s %d %d %d %d\n", attn_version(), t->name, type, t->lanes,
                t->registers, t->shared_bytes, t->l2_bytes);
    Arena *scratch = arena_new();
    print_row(&all, scratch, row);
    arena_free(scratch);
    uint64_t h = hash(all.s, all.n, UINT64_C(0xcbf29ce484222325)), g = hash(all.s, all.n, ~h);
    return (CacheKey){
        arena_printf(a, "%016llx%016llx", (unsigned long long)h, (unsigned long long)g),
        arena_printf(a, "%s %s %s D=%d Dv=%d", row->name, t->name, type, row->D, row->Dv)};
}

static const char *path_of(Arena *a, const char *folder, const CacheKey *key) {
    return arena_printf(a, "%s/%s.schedules", folder, key->name);
}

// ---- reading

// The line at *s, without its end; NULL after the last one.
static char *line_of(char **s) {
    char *line = *s, *end = strchr(line, '\n');
    if (!end) return NULL;
    *end = 0;
    *s = end + 1;
    return line;
}

static const char damaged[] = "it is damaged";

// "long keys=176,stages=2 3.012 NVIDIA H200: ..."; NULL, or what is wrong with it.
static const char *read_class(Arena *a, const char *line, CacheEntry *e) {
    char name[16], knobs[MAX_LINE];
    double ms;
    int at = 0;
    ShapeClass c;
    if (strlen(line) >= MAX_LINE || sscanf(line, "%15s %4095s %lf %n", name, knobs, &ms, &at) < 3 ||
        !at)
        return damaged;
    if (!shape_find(name, &c) || e->knobs[c].said || !(ms > 0)) return damaged;
    const char *wrong = knobs_parse(a, knobs, &e->knobs[c]);
    if (wrong) return arena_printf(a, "%s: %s", damaged, wrong);
    e->note[c] = arena_strdup(a, line + at);
    e->ms[c] = ms;
    return NULL;
}

static const char *read_lines(Arena *a, char *s, const CacheKey *key, CacheEntry *e) {
    const char *line = line_of(&s), *its_key = arena_printf(a, "key %s", key->name);
    if (!line || strcmp(line, first_line)) return "it is none, or of another version";
    if (!(line = line_of(&s)) || strcmp(line, its_key)) return "it is of another program";
    if (!(line = line_of(&s)) || strncmp(line, "program ", 8)) return damaged;
    while ((line = line_of(&s)) && strcmp(line, "end")) {
        const char *wrong = read_class(a, line, e);
        if (wrong) return wrong;
    }
    return line && !*s ? NULL : damaged;
}

// NULL where there is no such file.
static char *text_of(Arena *a, const char *path, const char **why) {
    void *bytes;
    size_t n;
    errno = 0;
    *why = read_file(path, MAX_BYTES, &bytes, &n);
    if (*why) return *why = errno == ENOENT || errno == ENOTDIR ? NULL : *why, NULL;
    char *s = arena_strndup(a, bytes, n);
    free(bytes);
    *why = strlen(s) < n ? "it is none" : NULL;
    return s;
}

CacheEntry cache_read(Arena *a, const char *folder, const CacheKey *key, Diags *diags) {
    CacheEntry e = {0};
    const char *path = path_of(a, folder, key), *why;
    char *s = text_of(a, path, &why);
    if (s && !why) why = read_lines(a, s, key, &e);
    if (!why) return e;
    diag_warning(diags, (Span){0}, "%s is not a file of tuned schedules and is ignored: %s", path,
                 why);
    return (CacheEntry){0};
}

// ---- writing

static bool make_folders(Arena *a, const char *folder) {
    char *path = arena_strdup(a, folder);
    for (char *slash = path + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        if (mkdir(path, 0777) && errno != EEXIST) return false;
    }
    return !mkdir(path, 0777) || errno == EEXIST;
}

Status cache_may_be_written(Arena *a, const char *folder) {
    if (!make_folders(a, folder))
        return cmd_fail(STATUS_SYSTEM, "cannot make the folder %s: %s", folder, strerror(errno));
    if (access(folder, W_OK | X_OK) == 0) return STATUS_DONE;
    return cmd_fail(STATUS_SYSTEM, "cannot write into %s: %s", folder, strerror(errno));
}

// Where a file system has no locks, the last one to write wins.
int cache_hold(const char *folder) {
    int held = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (held >= 0 && flock(held, LOCK_EX) != 0 && errno == EINTR) continue;
    return held;
}

void cache_release(int held) {
    if (held >= 0) close(held);
}

Status cache_write(Arena *a, const char *folder, const CacheKey *key, const CacheEntry *e) {
    Text t = text_new(a);
    text_printf(&t, "%s\nkey %s\nprogram %s\n", first_line, key->name, key->program);
    for (int c = 0; c < SHAPE_COUNT; c++)
        if (e->knobs[c].said)
            text_printf(&t, "%s %s %.6g %s\n", shape_name((ShapeClass)c),
                        knobs_text(a, &e->knobs[c]), e->ms[c], e->note[c]);
    text_puts(&t, "end\n");
    return file_write(path_of(a, folder, key), t.s, t.n);
}
