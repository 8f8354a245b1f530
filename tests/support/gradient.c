// gradient.c: see gradient.h.
#include "tests/support/gradient.h"

#include "ir/stream_eval.h"
#include "passes/derive/differentiate.h"
#include "tests/support/backward_eval.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

Variant *gradient_variant(Arena *a, const char *path, const char *text) {
    static const FeDefine small[] = {{"D", "6"}, {"Dv", "5"}};
    Diags d = diag_list(a);
    FeStatus status;
    FeOptions o = {.path = text ? "gradients.attn" : path,
                   .text = text,
                   .text_bytes = text ? strlen(text) : 0,
                   .stdlib = "stdlib",
                   .defines = small,
                   .ndefines = text ? 0 : 2};
    Module *m = fe_load(a, &d, &o, &status);
    if (status == FE_OK) return m->variants.n ? m->variants.data[0] : NULL;
    diag_print(&d, stderr);
    abort();
}

typedef struct Whole {
    const Backward *b;
    const RefGrad *g;
    const RefRun *run;
    const int32_t *n; // sizes
    int D, Dv;
    bool round;
    int32_t batch, head, query, key, column;
    struct RowData *at;
    double s, r[ROW_MAX_REDUCES]; // of infinite_slope alone
    bool *steep;                  // asks for it
} Whole;

static double rounded(const Whole *x, double v) { return x->round ? (double)(float)v : v; }

// ---- what expressions refer to

static ExValue of_int(int32_t i) {
    ExValue v = {.f = 0};
    v.i = i;
    return v;
}

static ExValue input_at(const Whole *x, int input, int64_t at) {
    const void *data = x->run->inputs[input];
    if (dtype_reads(x->run->variant->inputs.data[input].dtype) == EX_F32)
        return (ExValue){.f = ((const double *)data)[at]};
    return of_int(((const int32_t *)data)[at]);
}

static double product(void *ctx, const Ex *e, int j);

static ExValue symbol(void *ctx, const Ex *e) {
    const Whole *x = ctx;
    switch ((int)e->sym) {
    case SYM_B: return of_int(x->batch);
    case SYM_H: return of_int(x->head);
    case SYM_Q_IDX: return of_int(x->query + x->n[SIZE_Q_OFFSET]);
    case SYM_KV_IDX: return of_int(x->key);
    case SYM_SIZE: return of_int(x->n[e->index]);
    case SYM_SCALAR: return input_at(x, e->index, 0);
    case SYM_S: return (ExValue){.f = x->s};
    case SYM_R: return (ExValue){.f = x->r[e->index]};
    case SYM_D_IDX: return of_int(x->column);
    default: return (ExValue){.f = product(ctx, e, x->key)};
    }
}

// Of an element; indices are clamped.
static int64_t place(const Whole *x, int input, int rank, const int32_t *index) {
    const TxInput *in = &x->run->variant->inputs.data[input];
    int64_t at = 0;
    for (int d = 0; d < rank; d++) {
        int32_t extent = in->extent[d].size < 0 ? in->extent[d].value : x->n[in->extent[d].size];
        int32_t i = index[d] < 0 ? 0 : index[d] >= extent ? extent - 1 : index[d];
        at = at * extent + i;
    }
    return at;
}

static ExValue load(void *ctx, const Ex *e, const int32_t *index) {
    const Whole *x = ctx;
    return input_at(x, e->input, place(x, e->input, e->nargs, index));
}

static void add_input(void *ctx, int input, int rank, const int32_t *index, double value) {
    const Whole *x = ctx;
    double *to = x->g->dinputs ? x->g->dinputs[input] : NULL;
    if (to) to[place(x, input, rank, index)] += value;
}

// ---- a row

static void add(double *to, int64_t at, const double *x, double by, int n) {
    for (int i = 0; to && i < n; i++) to[at + i] += by * x[i];
}

typedef struct RowData { // of the row at hand
    int64_t at, keys;    // the row of q and o; the first row of k and v
    double *s, *v, **product, *saved, *o, *d_o, *aggregated, demit[64];
    BackPairs pairs;
} RowData;

// ---- rows, and their products

typedef struct Operand {
    const double *x;
    double *gradient; // NULL: not wanted
    int width;
} Operand;

static Operand operand(const Whole *x, const RowData *r, RowSide side, int row, int key) {
    const RowOperand *of = &x->b->row->rows[side].data[row];
    bool keys = side == ROW_KEYS;
    int64_t at = (keys ? r->keys + key : r->at) * x->D + of->from;
    double *to = keys ? x->g->dk : x->g->dq;
    if (of->input < 0)
        return (Operand){(keys ? x->run->k : x->run->q) + at, to ? to + at : NULL, of->width};
    const TxInput *in = &x->run->variant->inputs.data[of->input];
    TxExtent e = in->extent[1], all = in->extent[3];
    int heads = e.size < 0 ? e.value : x->n[e.size],
        width = all.size < 0 ? all.value : x->n[all.size];
    int64_t head = (int64_t)x->batch * heads + (int64_t)x->head * heads / x->n[SIZE_HQ];
    at = (head * x->n[keys ? SIZE_SK : SIZE_SQ] + (keys ? key : x->query)) * width + of->from;
    to = x->g->dinputs ? x->g->dinputs[of->input] : NULL;
    return (Operand){(const double *)x->run->inputs[of->input] + at, to ? to + at : NULL,
                     of->width};
}

static double factor_at(Whole *x, const Ex *factor, int d) {
    ExEnv env = {.sym = symbol, .load = load, .ctx = x, .round = x->round};
    x->column = d;
    return factor ? ex_eval(factor, &env).f : 1;
}

static double computed(Whole *x, const RowData *r, ExSym sym, int index, int j) {
    double sum = 0;
    if (sym != SYM_DOT) {
        Operand o = operand(x, r, sym == SYM_SQQ ? ROW_QUERIES : ROW_KEYS, index, j);
        for (int d = 0; d < o.width; d++) sum += o.x[d] * o.x[d];
        return rounded(x, sum);
    }
    const RowDot *dot = &x->b->row->dots.data[index];
    for (int i = 0; i < dot->pairs.n; i++) {
        const int *row = dot->pairs.data[i].row;
        const Ex *factor = row_factor(x->b->row, row);
        Operand q = operand(x, r, ROW_QUERIES, row[ROW_QUERIES], j),
                k = operand(x, r, ROW_KEYS, row[ROW_KEYS], j);
        for (int d = 0; d < q.width; d++) sum += q.x[d] * factor_at(x, factor, d) * k.x[d];
    }
    return rounded(x, sum);
}

// Of a key, once.
static double product(void *ctx, const Ex *e, int j) {
    Whole *x = ctx;
    const RowProgram *row = x->b->row;
    int at = e->sym == SYM_DOT ? 0 : e->sym == SYM_SQQ ? row->dots.n : row->dots.n + row->rows[0].n;
    double *known = &x->at->product[at + e->index][j];
    if (isnan(*known)) *known = computed(x, x->at, e->sym, e->index, j);
    return *known;
}

static void begin_products(Whole *x, Arena *a, RowData *r) {
    const RowProgram *row = x->b->row;
    int n = row->dots.n + row->rows[0].n + row->rows[1].n;
    r->product = ARENA_ARRAY(a, double *, n + 1);
    for (int i = 0; i < n; i++) {
        r->product[i] = ARENA_ARRAY(a, double, x->n[SIZE_SK] + 1);
        for (int j = 0; j < x->n[SIZE_SK]; j++) r->product[i][j] = (double)NAN;
    }
    x->at = r;
}

static void add_dot(Whole *x, const RowData *r, int dot, int j, double d) {
    const RowDot *of = &x->b->row->dots.data[dot];
    for (int i = 0; i < of->pairs.n; i++) {
        const int *row = of->pairs.data[i].row;
        const Ex *factor = row_factor(x->b->row, row);
        Operand q = operand(x, r, ROW_QUERIES, row[ROW_QUERIES], j),
                k = operand(x, r, ROW_KEYS, row[ROW_KEYS], j);
        for (int c = 0; c < q.width; c++) {
            double f = factor_at(x, factor, c);
            if (q.gradient) q.gradient[c] += d * f * k.x[c];
            if (k.gradient) k.gradient[c] += d * f * q.x[c];
        }
    }
}

static void add_channel(Whole *x, const RowData *r, BackEval *e, const BackGrad *g, const int *row,
                        double d, int j) {
    if (row[ROW_QUERIES] != g->row || row_factor(x->b->row, row) != g->factor) return;
    Operand q = operand(x, r, ROW_QUERIES, row[ROW_QUERIES], j),
            k = operand(x, r, ROW_KEYS, row[ROW_KEYS], j);
    for (int c = 0; c < q.width; c++) back_channel(e, g, q.x[c], d * k.x[c], c, add_input, x);
}

// To the rows of a pair; and to factors, pair by pair: what is added is linear in the gradient that comes.
static void add_products(Whole *x, const RowData *r, BackEval *e, const BackPair *p, int j) {
    const Backward *b = x->b;
    for (int i = 0; i < b->products.n; i++) {
        const BackProduct *of = &b->products.data[i];
        if (of->sym == SYM_DOT) {
            add_dot(x, r, of->index, j, p->products[i]);
            continue;
        }
        Operand o = operand(x, r, of->sym == SYM_SQQ ? ROW_QUERIES : ROW_KEYS, of->index, j);
        for (int c = 0; c < o.width && o.gradient; c++)
            o.gradient[c] += 2 * p->products[i] * o.x[c];
    }
    for (int i = 0; i < b->grads.n; i++) {
        const BackGrad *g = &b->grads.data[i];
        if (g->per != BACK_CHANNEL) continue;
        for (int m = 0; m < b->products.n; m++) {
            if (b->products.data[m].sym != SYM_DOT) continue;
            const RowDot *dot = &b->row->dots.data[b->products.data[m].index];
            for (int k = 0; k < dot->pairs.n; k++)
                add_channel(x, r, e, g, dot->pairs.data[k].row, p->products[m], j);
        }
    }
}

static void scores(Whole *x, RowData *r, ExEnv *env) {
    const RowProgram *row = x->b->row;
    int Sk = x->n[SIZE_SK];
    ExEnv decides = *env;
    decides.round = true;
    for (x->key = 0; x->key < Sk; x->key++) {
        bool in = ex_eval(row->mask, &decides).i;
        r->s[x->key] = in ? ex_eval(row->modified, env).f : -INFINITY;
    }
    bool in_k = row->v_in_k;
    for (int j = 0; j < Sk; j++)
        memcpy(r->v + (int64_t)j * x->Dv,
               in_k ? x->run->k + (r->keys + j) * x->D : x->run->v + (r->keys + j) * x->Dv,
               sizeof *r->v * (size_t)x->Dv);
    r->pairs = (BackPairs){Sk, r->s, product, x, r->v};
}

static void forward(Whole *x, Arena *a, RowData *r, const ExEnv *env) {
    const Stream *s = x->b->s;
    StreamEval *f = stream_eval(a, s, env, x->Dv);
    StreamPart part = stream_begin(f);
    StreamKeys keys = {r->s, r->pairs.v};
    for (int t = 0; t < s->nsweeps; t++) {
        stream_add(f, t, &keys, 0, r->pairs.n, &part, NULL, NULL);
        stream_finish(f, &part);
    }
    for (int i = 0; i < x->b->nsaved; i++)
        r->saved[i] = rounded(x, stream_scalar(f, &part, x->b->rows.data[i].value));
    if (x->b->aggregate)
        stream_aggregate(f, &part, r->o);
    else
        stream_output(f, &part, r->o);
}

static void backward(Whole *x, Arena *a, RowData *r, const ExEnv *env) {
    const RefGrad *g = x->g;
    BackEval *e = back_eval(a, x->b, env, x->Dv);
    BackCome come = {r->o, r->d_o, r->demit};
    back_rows(e, r->saved, &r->pairs, &come, r->aggregated);
    for (int j = 0; j < r->pairs.n; j++) {
        if (r->s[j] == -INFINITY) continue;
        BackPair p = back_pair(e, &r->pairs, j);
        add_products(x, r, e, &p, j);
        bool in_k = x->b->row->v_in_k;
        add(in_k ? g->dk : g->dv, (r->keys + j) * (in_k ? x->D : x->Dv), r->aggregated, p.w, x->Dv);
    }
    back_grads(e, &r->pairs, &come, add_input, x);
}

// Whether a formula is infinitely steep at a key: sqrt at 0. Its gradient may be finite nevertheless, where what comes is 0.
static void find_slope(Whole *x, const RowData *r, ExEnv *env) {
    const RowProgram *row = x->b->row;
    const Ex *s = ex_symbol(row->pool, SYM_S),
             *by[ROW_MAX_REDUCES + 1] = {ex_derivative(row->pool, row->weight, s)};
    const Ex *by_dot = ex_derivative(row->pool, row->modified, ex_symbol(row->pool, SYM_DOT));
    for (int k = 0; k < row->reduces.n; k++) {
        const RowReduce *f = &row->reduces.data[k];
        by[k + 1] = ex_derivative(row->pool, f->f, s);
        x->r[k] = ex_identity(f->op);
        for (x->key = 0; x->key < r->pairs.n; x->key++) {
            x->s = r->s[x->key];
            if (x->s == -INFINITY) continue;
            double v = ex_eval(f->f, env).f;
            x->r[k] = f->op == EX_ROWMAX   ? fmax(x->r[k], v)
                      : f->op == EX_ROWMIN ? fmin(x->r[k], v)
                                           : x->r[k] + v;
        }
    }
    for (x->key = 0; x->key < r->pairs.n; x->key++)
        for (int k = 0; k <= row->reduces.n; k++) {
            x->s = r->s[x->key];
            if (x->s == -INFINITY) continue;
            *x->steep |= !isfinite(x->s) || (by[k] && !isfinite(ex_eval(by[k], env).f));
            *x->steep |= by_dot && !isfinite(ex_eval(by_dot, env).f);
        }
}

static void one_row(Whole *x) {
    Arena *a = arena_new();
    const int32_t *n = x->n;
    int64_t head = (int64_t)x->batch * n[SIZE_HQ] + x->head,
            kv = (int64_t)x->head * n[SIZE_HKV] / n[SIZE_HQ];
    RowData r = {.at = head * n[SIZE_SQ] + x->query,
                 .keys = ((int64_t)x->batch * n[SIZE_HKV] + kv) * n[SIZE_SK]};
    r.s = ARENA_ARRAY(a, double, n[SIZE_SK] + 1);
    r.v = ARENA_ARRAY(a, double, (int64_t)n[SIZE_SK] * x->Dv + 1);
    begin_products(x, a, &r);
    r.saved = ARENA_ARRAY(a, double, x->b->rows.n + 1);
    r.o = ARENA_ARRAY(a, double, x->Dv);
    r.d_o = ARENA_ARRAY(a, double, x->Dv);
    r.aggregated = ARENA_ARRAY(a, double, x->Dv);
    for (int d = 0; d < x->Dv && x->g->d_o; d++) r.d_o[d] = x->g->d_o[r.at * x->Dv + d];
    for (int m = 0; m < x->run->variant->emits.n; m++)
        r.demit[m] = x->g->demits && x->g->demits[m] ? x->g->demits[m][r.at] : 0;
    ExEnv env = {.sym = symbol, .load = load, .ctx = x, .round = x->round};
    scores(x, &r, &env);
    if (x->steep) find_slope(x, &r, &env);
    forward(x, a, &r, &env);
    backward(x, a, &r, &env);
    arena_free(a);
}

// ---- the whole

typedef struct Sizes {
    int64_t q, k, v, input[64];
} Sizes;

static Sizes sizes_of(const RefRun *run) {
    const int32_t *n = run->sizes;
    const Variant *v = run->variant;
    int64_t keys = (int64_t)n[SIZE_B] * n[SIZE_HKV] * n[SIZE_SK];
    Sizes s = {.q = (int64_t)n[SIZE_B] * n[SIZE_HQ] * n[SIZE_SQ] * v->D,
               .k = keys * v->D,
               .v = keys * v->Dv};
    for (int i = 0; i < v->inputs.n; i++) {
        s.input[i] = 1;
        for (int d = 0; d < v->inputs.data[i].rank; d++) {
            TxExtent e = v->inputs.data[i].extent[d];
            s.input[i] *= e.size < 0 ? e.value : n[e.size];
        }
    }
    return s;
}

static void clear(double *x, int64_t n) {
    if (x) memset(x, 0, sizeof *x * (size_t)n);
}

static void derived(const Backward *b, const RefGrad *g, bool round, bool *steep) {
    const RefRun *run = g->run;
    Whole x = {.b = b,
               .g = g,
               .run = run,
               .n = run->sizes,
               .D = run->variant->D,
               .Dv = run->variant->Dv,
               .round = round,
               .steep = steep};
    Sizes s = sizes_of(run);
    clear(g->dq, s.q), clear(g->dk, s.k), clear(g->dv, s.v);
    for (int i = 0; g->dinputs && i < run->variant->inputs.n; i++) clear(g->dinputs[i], s.input[i]);
    int64_t at = 0;
    for (x.batch = 0; x.batch < x.n[SIZE_B]; x.batch++)
        for (x.head = 0; x.head < x.n[SIZE_HQ]; x.head++)
            for (x.query = 0; x.query < x.n[SIZE_SQ]; x.query++, at++)
                if (!run->rows || run->rows[at]) one_row(&x);
}

void gradient_derived(const Backward *b, const RefGrad *g, bool round) {
    derived(b, g, round, NULL);
}

static double *room(Arena *a, int64_t n) { return ARENA_ARRAY(a, double, n + 1); }

typedef struct Apart {
    double most; // difference, over the largest
    double size; // of any gradient
    bool finite; // of the reference, and of the formula as written
} Apart;

// exact, f32: the derived gradient computed in the one and in the other; what they differ by is noise, and so is what the reference's as
// written in f32 is off by, and the rounding of what adds to an element. written, terms: NULL where these are not asked for.
static void compare(Apart *to, const double *want, const double *exact, const double *f32,
                    const double *written, const double *terms, int64_t n) {
    double most = 0, size = 0, noise = 0, drift = 0, rounding = 0;
    for (int64_t i = 0; i < n; i++) {
        to->finite &= isfinite(want[i]) && !(written && !isfinite(written[i]));
        double d = fmin(fabs(want[i] - exact[i]), fabs(want[i] - f32[i]));
        if (isnan(exact[i]) && isnan(f32[i])) d = INFINITY;
        noise = fmax(noise, exact == f32 ? 0 : fabs(exact[i] - f32[i]));
        if (written) drift = fmax(drift, fabs(want[i] - written[i]));
        if (terms) rounding = fmax(rounding, 1e-6 * terms[i]);
        most = fmax(most, d);
        size = fmax(size, fabs(want[i]));
    }
    to->size = fmax(to->size, size);
    if (most > 0)
        to->most =
            fmax(to->most, isinf(noise) ? 0
                                        : most / (size + 1e4 * noise + 1e3 * (drift + rounding) +
                                                  1e-9 * to->size + 1e-30));
}

static RefGrad arrays(Arena *a, const RefGrad *given, const RefRun *run, const Sizes *s) {
    RefGrad g = *given;
    double **inputs = ARENA_ARRAY(a, double *, run->variant->inputs.n + 1);
    for (int i = 0; i < run->variant->inputs.n; i++)
        if (run->variant->inputs.data[i].grad) inputs[i] = room(a, s->input[i]);
    g.run = run;
    g.dq = room(a, s->q), g.dk = room(a, s->k), g.dv = room(a, s->v);
    g.dinputs = inputs;
    return g;
}

typedef enum Way { WANTED, EXACT, F32, WRITTEN, SIZES, WAYS } Way;

// g: one for each way; the last two are not there at first.
static Apart compare_all(const RefGrad *g, bool all, const Sizes *s) {
    Apart d = {0, 0, true};
#define COMPARE(of, n)                                                                             \
    compare(&d, g[WANTED].of, g[EXACT].of, g[F32].of, all ? g[WRITTEN].of : NULL,                  \
            all ? g[SIZES].of : NULL, n)
    COMPARE(dv, s->v);
    COMPARE(dq, s->q);
    COMPARE(dk, s->k);
    for (int i = 0; i < g->run->variant->inputs.n; i++)
        if (g->dinputs[i]) COMPARE(dinputs[i], s->input[i]);
#undef COMPARE
    return d;
}

double gradient_distance(const Backward *b, const RefGrad *given, int64_t row, bool round) {
    Arena *a = arena_new();
    RefRun run = *given->run;
    Sizes s = sizes_of(&run);
    RefGrad g[WAYS];
    unsigned char *rows = ARENA_ARRAY(a, unsigned char, s.q / run.variant->D + 1);
    if (row >= 0) rows[row] = 1, run.rows = rows;
    run.o = NULL, run.emits = NULL;
    for (int i = 0; i < WAYS; i++) g[i] = arrays(a, given, &run, &s);
    if (round) g[EXACT] = g[F32];
    ref_grad(&g[WANTED]);
    gradient_derived(b, &g[F32], true);
    if (!round) gradient_derived(b, &g[EXACT], false);
    Apart d = compare_all(g, false, &s);
    if (!round && d.most > 1e-4) {
        g[WRITTEN].kind = REF_WRITTEN, g[SIZES].kind = REF_SIZES;
        ref_grad(&g[WRITTEN]), ref_grad(&g[SIZES]);
        d = compare_all(g, true, &s);
    }
    bool steep = false;
    if (isinf(d.most)) derived(b, &g[F32], true, &steep);
    arena_free(a);
    return d.finite && !steep ? d.most : NAN;
}
