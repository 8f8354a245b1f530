// verdict.c: see verdict.h.
#include "verdict.h"
#include "batch.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

double slack_step(bool tf32) { return tf32 ? 0x1p-11 : 0x1p-23; }

void slack_free(Slack *s) {
    oracle_free(&s->sizes);
    oracle_free(&s->written);
    oracle_free(&s->opened);
    oracle_free(&s->moved);
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

static Status ask_slack(Slack *s, const Binding *b, const Oracle *x) {
    if (s->asked || b->sig->recurrence) return STATUS_DONE;
    s->asked = true;
    Status is = oracle_gradient_sizes(&s->sizes, x, s->v, b);
    if (is == STATUS_DONE) is = oracle_gradients_written(&s->written, x, s->v, b);
    if (is == STATUS_DONE) is = oracle_gradient_noise(&s->moved, x, s->v, b, s->step);
    return is;
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

static double slack_of_gradient(const Slack *s, const Binding *b, const Oracle *x, int i,
                                const unsigned char *open, double bound) {
    int64_t n = b->tensor[i].count;
    double size = norm_of(x->out[i], NULL, open, n),
           moved = norm_of(s->moved.out[i], NULL, open, n);
    double terms = norm_of(s->sizes.out[i], NULL, open, n);
    if (s->times > 1 && !(moved <= 1e-3 * size)) return INFINITY;
    double all = (terms > size ? terms * bound / 6 : 0) + 4 * s->times * moved +
                 2 * norm_of(s->written.out[i], x->out[i], open, n) + underflow(b);
    return size > 0 ? all / size : all;
}

// Of elements that are finite in the reference, also where what hangs on an open decision takes part. Where what adds to one leaves the
// type, or a row leaves f32 or is lost, the kernel may, too: and 0 times that is NaN elsewhere.
static Status wrong_of_gradient(int64_t *wrong, Slack *s, const Binding *b, const Oracle *x, int i,
                                double most) {
    const Tensor *t = &b->tensor[i];
    *wrong = 0;
    if (x->left || x->lost || s->ends || most > 1) return STATUS_DONE;
    if (x->open.decisions && !s->opened.out) {
        Status is = oracle_gradients_opened(&s->opened, x, s->v, b);
        if (is != STATUS_DONE) return is;
    }
    for (int64_t k = 0; k < t->count; k++) {
        if (!isfinite(s->sizes.out[i][k]))
            continue; // parts that cancel beside an infinite slope (docs/language.md, "Gradients")
        if (!tensor_holds(t->dtype, s->sizes.out[i][k])) return *wrong = 0, STATUS_DONE;
        *wrong += isfinite(x->out[i][k]) && !isfinite(tensor_get(t, k)) &&
                  !(s->opened.out && !isfinite(s->opened.out[i][k]));
    }
    return STATUS_DONE;
}

// Where the reference's gradient is not finite, or that of the formula as written leaves f32, nothing is asked of a kernel; nor anywhere
// where a state leaves f32, which the gradients of all positions go through.
static unsigned char *finite_only(const Slack *s, const Oracle *x, int i, int64_t n) {
    const double *written = s->asked ? s->written.out[i] : NULL;
    unsigned char *open = calloc((size_t)n + 1, 1);
    for (int64_t k = 0; open && k < n; k++)
        open[k] = x->open.beyond > 0 || !isfinite(x->out[i][k]) ||
                  (written && !isfinite((float)written[k]));
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

static void compare_gradient(Verdict *v, const Slack *s, const Binding *b, const Oracle *x, int i,
                             double bound) {
    unsigned char *open = finite_only(s, x, i, b->tensor[i].count);
    open = of_one_sequence(b, i, open);
    v->error = cmd_error(&b->tensor[i], x->out[i], open, false);
    if (s->asked) v->most = v->bound + slack_of_gradient(s, b, x, i, open, bound);
    free(open);
}

static Status verdict_of_gradient(Verdict *v, Slack *s, const Binding *b, const Oracle *x, int arg,
                                  double bound) {
    v->bound = v->most = bound * tensor_tolerance_gradients() * s->times;
    compare_gradient(v, s, b, x, arg, bound);
    if (!v->error.wrong && v->error.relative <= v->bound) return STATUS_DONE;
    Status is = ask_slack(s, b, x);
    if (is != STATUS_DONE || !s->asked) return is;
    compare_gradient(v, s, b, x, arg, bound);
    return v->error.wrong ? wrong_of_gradient(&v->error.wrong, s, b, x, arg, v->most) : STATUS_DONE;
}

Status verdict_of(Verdict *v, Slack *s, const Binding *b, Oracle *x, int arg, double bound) {
    const SigArg *g = &b->sig->args.data[arg];
    if (g->role != ARG_OUTPUT) return verdict_of_gradient(v, s, b, x, arg, bound);
    Status is = STATUS_DONE;
    *v = (Verdict){.error = cmd_error(&b->tensor[arg], x->out[arg], oracle_open(x, g), g->of_rows),
                   .bound = bound,
                   .most = bound + slack_of_output(b, x, arg)};
    if (verdict_good(v) || !x->written[arg]) return is;
    is = oracle_round_otherwise(x, s->v, b);
    v->most = bound + slack_of_output(b, x, arg);
    return is;
}

bool verdict_good(const Verdict *v) { return v->error.relative <= v->most && !v->error.wrong; }
