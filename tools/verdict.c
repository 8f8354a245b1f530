// verdict.c: see verdict.h.
#include "verdict.h"
#include "batch.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

double slack_step(bool tf32) { return tf32 ? 0x1p-11 : 0x1p-23; }

void slack_free(Slack *s) {
    oracle_free(&s->sizes);
    oracle_free(&s->parts);
    oracle_free(&s->written);
    oracle_free(&s->opened);
    oracle_free(&s->moved);
    oracle_free(&s->stored);
}

static double norm_of(const double *x, const double *from, const unsigned char *open, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = from ? x[i] - from[i] : x[i];
        if (isfinite(d) && !(open && open[i])) sum += d * d;
    }
    return sqrt(sum);
}

// Twice what the formula as written is off by in f32, relative to the reference.
static double slack_of_output(const Binding *b, const Oracle *x, int i) {
    const Tensor *t = &b->tensor[i];
    const unsigned char *open = oracle_open(x, &b->sig->args.data[i]);
    if (!x->written[i]) return 0;
    double off = norm_of(x->written[i], x->out[i], open, t->count),
           size = norm_of(x->out[i], NULL, open, t->count);
    if (t->rank == 3) size = fmax(size, sqrt((double)t->count));
    return size > 0 ? 2 * off / size : 0;
}

// A factor of do . v below f32's least normal number counts as 0. Sums over pairs of |do . v| times |q| or |k| are at most these norms' product.
static double underflow(const Binding *b) {
    static const char *const names[] = {"do", "v", "q", "k"};
    double norm[4] = {0};
    for (int i = 0; i < 4; i++) {
        int arg = sig_arg(b->sig, names[i]);
        double *x = arg < 0 ? NULL : tensor_doubles(&b->tensor[arg]);
        if (x) norm[i] = norm_of(x, NULL, NULL, b->tensor[arg].count);
        free(x);
    }
    return 0x1p-126 * norm[0] * norm[1] * fmax(norm[2], norm[3]);
}

static Status ask_slack(Slack *s, const Binding *b, const Oracle *x) {
    if (s->asked || b->sig->recurrence) return STATUS_DONE;
    s->asked = true;
    s->underflow = underflow(b);
    Status is = oracle_gradient_sizes(&s->sizes, x, s->v, b);
    if (is == STATUS_DONE) is = oracle_gradient_parts(&s->parts, x, s->v, b);
    if (is == STATUS_DONE) is = oracle_gradients_written(&s->written, x, s->v, b);
    if (is == STATUS_DONE) is = oracle_gradient_noise(&s->moved, x, s->v, b, s->step);
    return is;
}

static bool is_short(const Binding *b) { return dtype_bytes(b->sig->args.data[0].dtype) == 2; }

// Of f16 and bf16.
static Status ask_stored(Slack *s, const Binding *b, const Oracle *x) {
    if (s->is_stored || b->sig->recurrence || !is_short(b)) return STATUS_DONE;
    s->is_stored = true;
    return oracle_gradients_stored(&s->stored, x, s->v, b);
}

typedef struct Range { // of elements
    int64_t at, n;
} Range;

static double norm_in(Range r, const double *x, const double *from, const unsigned char *open) {
    return norm_of(x + r.at, from ? from + r.at : NULL, open ? open + r.at : NULL, r.n);
}

// All that adds to the elements, by the part of it that rounding takes. f16 and bf16 round factors of products; their sums are f32.
static double terms_of(const Slack *s, const Binding *b, int i, Range r, const unsigned char *open,
                       double bound) {
    double terms = norm_in(r, s->sizes.out[i], NULL, open);
    if (!is_short(b)) return bound * terms;
    return bound * norm_in(r, s->parts.out[i], NULL, open) + tensor_tolerance(DT_F32) * terms;
}

typedef struct Gradient {
    const Slack *s;
    const Binding *b;
    const Oracle *x;
    int arg;
    const unsigned char *open;
    double bound, of_outputs; // of the type
} Gradient;

// What rounding in f32 may do to elements.
static double slack_in_f32(const Gradient *g, Range r) {
    const Slack *s = g->s;
    int i = g->arg;
    return 4 * s->times * norm_in(r, s->moved.out[i], NULL, g->open) +
           2 * norm_in(r, s->written.out[i], g->x->out[i], g->open) + s->underflow;
}

// Elements of this size may be off by the type's bound, and by a part of their terms.
static double most_by_bound(const Gradient *g, Range r, double size) {
    const Slack *s = g->s;
    double own = norm_in(r, g->x->out[g->arg], NULL, g->open), most = g->bound * size, terms;
    if (!s->asked) return most;
    terms = terms_of(s, g->b, g->arg, r, g->open, g->of_outputs);
    return most + (terms > g->of_outputs * own ? terms / 6 : 0) + slack_in_f32(g, r);
}

static const double FEW = 0.25, // of the type's bound: what no rounding between products makes
    ROUNDINGS = 3;              // as much as such roundings made of the reference

// By what roundings to the type made of the reference.
static double most_by_roundings(const Gradient *g, Range r, double size) {
    const Slack *s = g->s;
    double most = FEW * g->bound * size;
    if (s->is_stored)
        most += ROUNDINGS * norm_in(r, s->stored.out[g->arg], g->x->out[g->arg], g->open);
    if (!s->asked) return most;
    return most + slack_in_f32(g, r) +
           tensor_tolerance(DT_F32) * norm_in(r, s->sizes.out[g->arg], NULL, g->open);
}

static double most_of_gradient(const void *ctx, Range r, double size) {
    const Gradient *g = ctx;
    bool is_rounded = is_short(g->b) && !g->b->sig->recurrence;
    if (is_rounded && g->s->times <= 1) return most_by_roundings(g, r, size);
    double most = most_by_bound(g, r, size);
    return g->s->is_stored ? fmax(most, most_by_roundings(g, r, size)) : most;
}

// Whether an element of a gradient may be NaN, since a row that adds to it is lost: one of dq has one row.
static bool is_of_lost(const Oracle *x, const Binding *b, int i, int64_t k) {
    int64_t rows = b->tensor[sig_arg(b->sig, "o")].count / b->sig->Dv;
    if (b->sig->args.data[i].of == sig_arg(b->sig, "q")) return x->lost[k / b->sig->D];
    return memchr(x->lost, 1, (size_t)rows) != NULL;
}

// Of elements that are finite in the reference, also where what hangs on an open decision takes part. Where what adds to one leaves the
// type, or a row that adds to it is lost, the kernel's may leave it, too: and 0 times that is NaN elsewhere.
static Status wrong_of_gradient(int64_t *wrong, Slack *s, const Binding *b, const Oracle *x, int i,
                                const unsigned char *open, double most) {
    const Tensor *t = &b->tensor[i];
    *wrong = 0;
    if (s->ends || most > 1) return STATUS_DONE;
    if (x->open.decisions && !s->opened.out) {
        Status is = oracle_gradients_opened(&s->opened, x, s->v, b);
        if (is != STATUS_DONE) return is;
    }
    for (int64_t k = 0; k < t->count; k++) {
        // Where sizes are infinite, parts cancel beside an infinite slope (docs/language.md, "Gradients").
        if (open[k] || !isfinite(s->sizes.out[i][k]) || isfinite(tensor_get(t, k)) ||
            is_of_lost(x, b, i, k))
            continue;
        if (!tensor_holds(t->dtype, s->sizes.out[i][k])) return *wrong = 0, STATUS_DONE;
        *wrong += !s->opened.out || isfinite(s->opened.out[i][k]);
    }
    return STATUS_DONE;
}

static const double FAR = 0x1p100; // from here products with rows and sums of them may leave f32

double verdict_reach(const Binding *b, const Oracle *x) {
    double most = 0;
    for (int i = 0; i < b->sig->args.n && b->sig->recurrence; i++)
        for (int64_t k = 0; x->out[i] && k < b->tensor[i].count; k++)
            if (isfinite(x->out[i][k])) most = fmax(most, fabs(x->out[i][k]));
    return most > FAR ? most : 0;
}

// Where the reference's gradient is not finite, or that of the formula as written leaves f32, nothing is asked of a kernel; nor anywhere
// where a state leaves f32 or comes near its end, which the gradients of all positions go through.
static unsigned char *finite_only(const Slack *s, const Binding *b, const Oracle *x, int i) {
    int64_t n = b->tensor[i].count;
    const double *written = s->asked ? s->written.out[i] : NULL;
    unsigned char *open = calloc((size_t)n + 1, 1);
    bool all = x->open.beyond > 0 || verdict_reach(b, x) > 0;
    for (int64_t k = 0; open && k < n; k++)
        open[k] = all || !isfinite(x->out[i][k]) || (written && !isfinite((float)written[k]));
    return open;
}

// What rows hold that no sequence has, or several have, is nothing to compare.
static unsigned char *of_one_sequence(const Binding *b, int i, unsigned char *open) {
    int64_t rows, count = b->tensor[i].count;
    unsigned char *owners = batch_owners(b, i, &rows);
    if (owners && rows && !open) open = calloc((size_t)count + 1, 1);
    for (int64_t r = 0; owners && open && r < rows; r++)
        if (owners[r] != 1) memset(open + r * (count / rows), 1, (size_t)(count / rows));
    free(owners);
    return open;
}

static unsigned char *not_compared(const Slack *s, const Binding *b, const Oracle *x, int i) {
    return of_one_sequence(b, i, finite_only(s, b, x, i));
}

// ---- rows: a wrong one among many hardly shows in the norm of all

static const double WORST = 4; // times as much as all in the mean a row may be off by

static double off_by(const Tensor *t, Range r, const double *ref, const unsigned char *open) {
    double sum = 0, step = tensor_step(t->dtype);
    for (int64_t i = r.at; i < r.at + r.n; i++) {
        double d = open && open[i] ? 0 : fabs(tensor_get(t, i) - ref[i]);
        if (isfinite(d) && d > step) sum += d * d;
    }
    return sqrt(sum);
}

static Range row_of(const Tensor *t, int64_t row) {
    int64_t n = t->rank ? t->dim[t->rank - 1] : 0;
    return (Range){row * n, n};
}

// size: of each element, what it is a sum of. most(ctx, row, size): by how much a row of this size may be off, WORST times.
static void find_worst(Verdict *v, const Tensor *t, const double *ref, const double *size,
                       const unsigned char *open, double (*most)(const void *, Range, double),
                       const void *ctx) {
    int64_t n = row_of(t, 0).n, rows = n ? t->count / n : 0;
    // Rows of less than a tenth of what all are in the mean are as exact as such a one.
    double least = rows ? norm_of(size, NULL, open, t->count) / sqrt((double)rows) / 10 : 0;
    v->off = 0, v->may = 1;
    for (int64_t i = 0; i < rows; i++) {
        Range r = row_of(t, i);
        double off = off_by(t, r, ref, open), all = norm_in(r, size, NULL, open) + least;
        double may = WORST * most(ctx, r, all), unit = all > 0 ? all : 1;
        if (off * v->may > v->off * may) v->off = off / unit, v->may = may / unit, v->row = i;
    }
}

static void compare_gradient(Verdict *v, const Slack *s, const Binding *b, const Oracle *x, int i,
                             const unsigned char *open, double bound) {
    const Tensor *t = &b->tensor[i];
    Range all = {0, t->count};
    Gradient g = {s, b, x, i, open, v->bound, bound};
    double size = norm_in(all, x->out[i], NULL, open), unit = size > 0 ? size : 1;
    v->error = cmd_error(t, x->out[i], open, false);
    v->most = most_of_gradient(&g, all, unit) / unit;
    if (!b->sig->recurrence && b->sig->args.data[i].of < sig_operands(b->sig))
        find_worst(v, t, x->out[i], x->out[i], open, most_of_gradient, &g);
    if (s->asked && s->times > 1 && !(norm_in(all, s->moved.out[i], NULL, open) <= 1e-3 * size))
        v->most = v->may = INFINITY; // unsettled
}

static Status verdict_of_gradient(Verdict *v, Slack *s, const Binding *b, const Oracle *x, int arg,
                                  double bound) {
    unsigned char *open = not_compared(s, b, x, arg);
    v->bound = v->most = bound * tensor_tolerance_gradients() * s->times;
    compare_gradient(v, s, b, x, arg, open, bound);
    Status is = verdict_good(v) ? STATUS_DONE : ask_stored(s, b, x);
    if (!verdict_good(v) && is == STATUS_DONE) compare_gradient(v, s, b, x, arg, open, bound);
    free(open);
    if (verdict_good(v) || is != STATUS_DONE) return is;
    is = ask_slack(s, b, x);
    if (is != STATUS_DONE || b->sig->recurrence) return is;
    open = not_compared(s, b, x, arg);
    compare_gradient(v, s, b, x, arg, open, bound);
    if (v->error.wrong) is = wrong_of_gradient(&v->error.wrong, s, b, x, arg, open, v->most);
    free(open);
    return is;
}

typedef struct Output {
    const Oracle *x;
    int arg;
    const unsigned char *open;
    double bound;
} Output;

static double most_of_output(const void *ctx, Range r, double size) {
    const Output *o = ctx;
    return o->bound * size + 2 * norm_in(r, o->x->written[o->arg], o->x->out[o->arg], o->open);
}

static void compare_output(Verdict *v, const Binding *b, const Oracle *x, int arg, double bound) {
    Output o = {x, arg, oracle_open(x, &b->sig->args.data[arg]), bound};
    v->most = bound + slack_of_output(b, x, arg);
    if (x->o_size && !b->sig->args.data[arg].of_rows)
        find_worst(v, &b->tensor[arg], x->out[arg], x->o_size, o.open, most_of_output, &o);
}

Status verdict_of(Verdict *v, Slack *s, const Binding *b, Oracle *x, int arg, double bound) {
    const SigArg *g = &b->sig->args.data[arg];
    if (g->role != ARG_OUTPUT) return verdict_of_gradient(v, s, b, x, arg, bound);
    *v = (Verdict){.error = cmd_error(&b->tensor[arg], x->out[arg], oracle_open(x, g), g->of_rows),
                   .bound = bound};
    compare_output(v, b, x, arg, bound);
    if (verdict_good(v) || !x->written[arg]) return STATUS_DONE;
    Status is = oracle_round_otherwise(x, s->v, b);
    compare_output(v, b, x, arg, bound);
    return is;
}

bool verdict_good(const Verdict *v) {
    return v->error.relative <= v->most && v->off <= v->may && !v->error.wrong;
}

bool verdict_blind(const Verdict *v) {
    return v->error.relative > v->bound && v->most >= 1 && !v->error.wrong;
}
