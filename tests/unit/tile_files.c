// The programs under tests/tile, with their expectations inside:
//
//   // run: B=1 H=2 ...        runs at these sizes (those not named: 1; q_offset: max(Sk - Sq, 0)),
//   rounded and not
//   // reference: NAME         and gives what the plain formula gives
//   // gradient: softmax        and gives the gradients of this forward, by central differences
//   // mutant: OLD => NEW | TEXT   with the first OLD replaced there is an error that says TEXT,
//   read, verified or run at the
//                              first sizes; mutant-last: the last OLD
//
// The rest of a file is exactly what tile_print makes of it.
#include "tests/support/random.h"
#include "tests/unit/tile_util.h"

#include <dirent.h>

#define FOLDER "tests/tile"

// ---- the plain formulas

typedef struct Case {
    const TileProgram *p;
    const TileData *d;
} Case;

static int tensor_named(const TileProgram *p, const char *name) {
    for (int i = 0; i < p->tensors.n; i++)
        if (!strcmp(p->tensors.data[i].name, name)) return i;
    ck_abort_msg("no tensor %s", name);
}

typedef struct Row { // one query's scores and where its keys' values are
    const Case *c;
    int b, h, i, n;
    double *s; // per key; NAN: masked
    int64_t v, dv;
} Row;

static const int32_t *sizes(const Row *r) { return r->c->d->size; }

static void raw_scores(Row *r) {
    const TileProgram *p = r->c->p;
    const int32_t *z = sizes(r);
    const double *q = r->c->d->tensor[tensor_named(p, "q")],
                 *k = r->c->d->tensor[tensor_named(p, "k")];
    int64_t head = (int64_t)r->b * z[SIZE_HKV] + r->h * z[SIZE_HKV] / z[SIZE_HQ];
    q += (((int64_t)r->b * z[SIZE_HQ] + r->h) * z[SIZE_SQ] + r->i) * p->D;
    r->n = z[SIZE_SK];
    r->v = head * z[SIZE_SK] * p->Dv;
    r->dv = p->Dv;
    for (int j = 0; j < r->n; j++) {
        r->s[j] = 0;
        for (int d = 0; d < p->D; d++) r->s[j] += q[d] * k[(head * z[SIZE_SK] + j) * p->D + d];
    }
}

static bool causal(const Row *r, int j) { return j <= r->i + sizes(r)[SIZE_Q_OFFSET]; }

// Makes the weights of the scores.
static void scaled_softmax(Row *r, double scale) {
    double m = -INFINITY, l = 0;
    for (int j = 0; j < r->n; j++)
        if (causal(r, j)) m = fmax(m, r->s[j] * scale);
    for (int j = 0; j < r->n; j++) l += r->s[j] = causal(r, j) ? exp(r->s[j] * scale - m) : 0;
    for (int j = 0; j < r->n && l > 0; j++) r->s[j] /= l;
}

static void softmax(Row *r) { scaled_softmax(r, (double)0.4472136f); }
static void softmax64(Row *r) { scaled_softmax(r, 0.125); }

static void relu(Row *r) {
    const TileProgram *p = r->c->p;
    const double *bias = r->c->d->tensor[tensor_named(p, "bias")];
    int rows = sizes(r)[SIZE_FREE];
    for (int j = 0; j < r->n; j++) {
        int at = r->i - j < 0 ? 0 : r->i - j >= rows ? rows - 1 : r->i - j;
        r->s[j] = fmax(r->s[j] * r->c->d->scalar[1] + bias[r->h * rows + at], 0);
    }
}

static void causal_relu(Row *r) {
    for (int j = 0; j < r->n; j++) r->s[j] = causal(r, j) ? fmax(r->s[j] * 0.5, 0) : 0;
}

static void documents(Row *r) {
    const double *doc = r->c->d->tensor[tensor_named(r->c->p, "doc")] + (int64_t)r->b * r->n;
    int i = r->i + sizes(r)[SIZE_Q_OFFSET];
    for (int j = 0; j < r->n; j++) {
        bool in = causal(r, j) && doc[i < r->n ? i : r->n - 1] == doc[j];
        r->s[j] = in ? fmax(r->s[j] * 0.5, 0) : 0;
    }
}

static void above_mean(Row *r) {
    double sum = 0;
    for (int j = 0; j < r->n; j++) sum += r->s[j];
    for (int j = 0; j < r->n; j++) r->s[j] = fmax(r->s[j] - sum / r->n, 0);
}

typedef struct Reference {
    const char *name;
    void (*weights)(Row *r);
} Reference;
static const Reference references[] = {
    {"softmax", softmax},         {"softmax64", softmax64},   {"relu", relu},
    {"causal_relu", causal_relu}, {"above_mean", above_mean}, {"documents", documents}};

static void check_against(const Case *c, const char *name, double bound, const char *file) {
    const int32_t *z = c->d->size;
    const double *v = c->d->tensor[tensor_named(c->p, "v")],
                 *o = c->d->tensor[tensor_named(c->p, "o")];
    Row r = {.c = c, .s = malloc(sizeof(double) * ((size_t)z[SIZE_SK] + 1))};
    size_t f = 0;
    while (f < sizeof references / sizeof *references && strcmp(references[f].name, name)) f++;
    ck_assert_msg(f < sizeof references / sizeof *references, "%s: no reference %s", file, name);
    for (r.b = 0; r.b < z[SIZE_B]; r.b++)
        for (r.h = 0; r.h < z[SIZE_HQ]; r.h++)
            for (r.i = 0; r.i < z[SIZE_SQ]; r.i++) {
                raw_scores(&r);
                references[f].weights(&r);
                for (int e = 0; e < r.dv; e++, o++) {
                    double sum = 0;
                    for (int j = 0; j < r.n; j++) sum += r.s[j] * v[r.v + j * r.dv + e];
                    ck_assert_msg(fabs(sum - *o) <= bound * (1 + fabs(sum)), "%s: %g is not %g",
                                  file, *o, sum);
                }
            }
    free(r.s);
}

// ---- gradients: of sum(do * o), o and lse as the forward leaves them

// Base 2, of scores by the root of D, as the files'; of a row without a key the weights are 0 and lse is +inf.
static double softmax2(Row *r) {
    double m = -INFINITY, l = 0, scale = (double)(float)(1 / sqrt(r->c->p->D));
    for (int j = 0; j < r->n; j++)
        if (causal(r, j)) m = fmax(m, r->s[j] *= scale);
    for (int j = 0; j < r->n; j++) l += r->s[j] = causal(r, j) ? exp2(r->s[j] - m) : 0;
    for (int j = 0; j < r->n && l > 0; j++) r->s[j] /= l;
    return l > 0 ? m + log2(l) : INFINITY;
}

// The loss; stores what the backward wants where `keep`.
static double forward(const Case *c, bool keep) {
    const int32_t *z = c->d->size;
    double **at = c->d->tensor, loss = 0;
    double *o = at[tensor_named(c->p, "o")], *lse = at[tensor_named(c->p, "lse")];
    const double *v = at[tensor_named(c->p, "v")], *grad = at[tensor_named(c->p, "do")];
    Row r = {.c = c, .s = malloc(sizeof(double) * ((size_t)z[SIZE_SK] + 1))};
    int64_t row = 0;
    for (r.b = 0; r.b < z[SIZE_B]; r.b++)
        for (r.h = 0; r.h < z[SIZE_HQ]; r.h++)
            for (r.i = 0; r.i < z[SIZE_SQ]; r.i++, row++) {
                raw_scores(&r);
                double l = softmax2(&r);
                if (keep) lse[row] = l;
                for (int e = 0; e < r.dv; e++) {
                    double sum = 0;
                    for (int j = 0; j < r.n; j++) sum += r.s[j] * v[r.v + j * r.dv + e];
                    if (keep) o[row * r.dv + e] = sum;
                    loss += sum * grad[row * r.dv + e];
                }
            }
    free(r.s);
    return loss;
}

static void check_gradients(const Case *c, double bound, const char *file) {
    static const char *const of[][2] = {{"q", "dq"}, {"k", "dk"}, {"v", "dv"}};
    const double h = 1e-4;
    for (int i = 0; i < 3; i++) {
        int t = tensor_named(c->p, of[i][0]);
        double *x = c->d->tensor[t];
        const double *found = c->d->tensor[tensor_named(c->p, of[i][1])];
        int64_t n = tile_tensor_elements(&c->p->tensors.data[t], c->d->size);
        for (int64_t e = 0; e < n; e++) {
            double was = x[e];
            x[e] = was + h;
            double up = forward(c, false);
            x[e] = was - h;
            double slope = (up - forward(c, false)) / (2 * h);
            x[e] = was;
            ck_assert_msg(fabs(slope - found[e]) <= bound * (1 + fabs(slope)),
                          "%s: %s[%lld] is %g, not %g", file, of[i][1], (long long)e, found[e],
                          slope);
        }
    }
}

// ---- files

static TileProgram *parse(Arena *a, const char *path, const char *text, Diags *diags) {
    *diags = diag_list(a);
    diag_add_file(diags, path, text, strlen(text));
    return tile_parse(a, text, strlen(text), diags);
}

// "B=1 H=2": the rest 1, q_offset as a launch takes it.
static int32_t *parse_sizes(Arena *a, const TileProgram *p, const char *s) {
    int32_t *z = ARENA_ARRAY(a, int32_t, p->sizes.n);
    for (int i = 0; i < p->sizes.n; i++) z[i] = 1;
    z[SIZE_Q_OFFSET] = INT32_MIN;
    while (*s && *s != '\n') {
        size_t n = strcspn(s, "=\n");
        for (int i = 0; i < p->sizes.n; i++)
            if (strlen(p->sizes.data[i].name) == n && !strncmp(p->sizes.data[i].name, s, n))
                z[i] = atoi(s + n + 1);
        s += strcspn(s, " \n");
        s += *s == ' ';
    }
    if (z[SIZE_Q_OFFSET] == INT32_MIN)
        z[SIZE_Q_OFFSET] = z[SIZE_SK] > z[SIZE_SQ] ? z[SIZE_SK] - z[SIZE_SQ] : 0;
    return z;
}

// The next line that begins "// key: ", from *s on; what follows, and *s behind it.
static const char *directive(const char **s, const char *key) {
    while (!strncmp(*s, "//", 2)) {
        const char *line = *s + 3;
        *s += strcspn(*s, "\n");
        *s += **s == '\n';
        if (!strncmp(line, key, strlen(key))) return line + strlen(key);
    }
    return NULL;
}

static char *line_of(Arena *a, const char *s) { return arena_strndup(a, s, strcspn(s, "\n")); }

static void check_golden(Arena *a, const char *path, const char *text) {
    Diags diags;
    TileProgram *p = parse(a, path, text, &diags);
    diag_print(&diags, stderr);
    ck_assert_msg(p && tile_verify(p, &diags), "%s: is not valid", path);
    while (!strncmp(text, "//", 2)) text += strcspn(text, "\n") + 1;
    Text out = text_new(a);
    tile_print(&out, p);
    ck_assert_msg(!strcmp(out.s, text), "%s prints as\n%s", path, out.s);
    out = text_new(a);
    tile_print(&out, tile_copy(a, p));
    ck_assert_msg(!strcmp(out.s, text), "%s: its copy prints as\n%s", path, out.s);
}

static void check_run(Arena *a, const char *path, const char *text, const char *run,
                      const char *reference, bool gradient, bool round) {
    Diags diags;
    TileProgram *p = parse(a, path, text, &diags);
    TileData *d = tile_data_random(a, p, parse_sizes(a, p, run), 4, 1);
    if (gradient) forward(&(Case){p, d}, true);
    bool ok = tile_eval(p, d, round, &diags);
    if (!ok) diag_print(&diags, stderr);
    ck_assert_msg(ok, "%s: fails at %s", path, line_of(a, run));
    Case c = {p, d};
    if (gradient) check_gradients(&c, !round ? 1e-6 : p->dtype == DT_F32 ? 1e-4 : 4e-2, path);
    if (reference)
        check_against(&c, reference, !round ? 1e-7 : p->dtype == DT_F32 ? 1e-5 : 2e-2, path);
}

static char *replaced(Arena *a, const char *text, const char *old, const char *new, bool last) {
    const char *at = strstr(text, old), *later = at;
    while (last && later && (later = strstr(later + 1, old))) at = later;
    ck_assert_msg(at != NULL, "'%s' is not in the text", old);
    return arena_printf(a, "%.*s%s%s", (int)(at - text), text, new, at + strlen(old));
}

// "OLD => NEW | TEXT"
static void check_mutant(Arena *a, const char *path, const char *text, const char *run, char *line,
                         bool last) {
    char *arrow = strstr(line, " =>"), *bar = strstr(line, " | ");
    ck_assert_msg(arrow && bar && arrow < bar, "%s: no mutant: %s", path, line);
    *arrow = *bar = 0;
    const char *new = arrow + 3 + (arrow + 3 < bar), *said = bar + 3;
    while (!strncmp(text, "//", 2)) text += strcspn(text, "\n") + 1;
    Diags diags;
    TileProgram *p = parse(a, path, replaced(a, text, line, new, last), &diags);
    if (p && tile_verify(p, &diags)) {
        TileData *d = tile_data_random(a, p, parse_sizes(a, p, run), 4, 1);
        tile_eval(p, d, true, &diags);
    }
    ck_assert_msg(diags.errors == 1, "%s: %d errors with '%s'", path, diags.errors, new);
    ck_assert_msg(strstr(diags.first->message, said) != NULL, "%s: with '%s': %s", path, new,
                  diags.first->message);
}

static void check_file(const char *name) {
    Arena *a = arena_new();
    const char *path = arena_printf(a, FOLDER "/%s", name);
    const char *text = tu_file(a, path), *s = text, *run, *line;
    const char *reference = directive(&s, "reference: ");
    if (reference) reference = line_of(a, reference);
    check_golden(a, path, text);
    s = text;
    bool gradient = directive(&s, "gradient: softmax") != NULL;
    s = text;
    while ((run = directive(&s, "run: "))) {
        check_run(a, path, text, run, reference, gradient, false);
        check_run(a, path, text, run, reference, gradient, true);
    }
    s = text;
    run = directive(&s, "run: ");
    s = text;
    while ((line = directive(&s, "mutant"))) {
        bool last = !strncmp(line, "-last", 5);
        check_mutant(a, path, text, run ? run : "", line_of(a, line + (last ? 7 : 2)), last);
    }
    arena_free(a);
}

static int tile_file(const struct dirent *e) {
    size_t n = strlen(e->d_name);
    return n > 5 && !strcmp(e->d_name + n - 5, ".tile");
}

TEST(every_file_holds_what_it_says) {
    struct dirent **files;
    int n = scandir(FOLDER, &files, tile_file, alphasort);
    ck_assert_int_gt(n, 0);
    for (int i = 0; i < n; i++) {
        check_file(files[i]->d_name);
        free(files[i]);
    }
    free(files);
}
