// agree.c: see agree.h.
#include "tests/support/agree.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const double RIGHT = 1e-3; // a formula that is further off in f32 itself is not asked for
static const double WORST = 6;    // times what rows may be off by in the mean

typedef struct Rows {
    const Oracle *x;
    const double *ref, *written, *size, *got; // of this output; size NULL: the reference's own
    const unsigned char *open;
    int64_t n, width;
    double keys; // how many o is a sum over, at most
    Dtype type;
    double least; // a tenth of the median size of a row: rows of less are as exact as such a one
} Rows;

static double size_of(const Rows *r, int64_t row) {
    double sum = 0;
    for (int64_t i = row * r->width; i < (row + 1) * r->width; i++) {
        double x = r->size ? r->size[i] : r->ref[i];
        if (isfinite(x)) sum += x * x;
    }
    return sqrt(sum);
}

// A sum of such terms leaves f32 in one order of adding and not in another.
static bool may_overflow(const Rows *r, int64_t row) {
    return r->size && size_of(r, row) * sqrt(r->keys) > 0x1p127;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double least_size(const Rows *r) {
    double *size = malloc(((size_t)r->n + 1) * sizeof *size);
    int64_t n = 0;
    for (int64_t i = 0; i < r->n; i++)
        if (!r->x->rows || r->x->rows[i]) size[n++] = size_of(r, i);
    qsort(size, (size_t)n, sizeof *size, by_size);
    double m = n ? size[n / 2] : 0;
    free(size);
    return m > 0 ? m / 10 : 1e-3;
}

// A quotient by 0 of what is summed up is NaN or infinite, and of either sign, as that rounds.
static bool alike(const Rows *r, double x, double ref) {
    return x == ref || (isnan(x) && isnan(ref)) || (r->size && !isfinite(x) && !isfinite(ref));
}

// How far two rows are from each other, but for elements that are open; infinite where they are not
// finite alike. Differences that tensor_step allows do not count.
static double between(const Rows *r, const double *x, int64_t row) {
    double sum = 0;
    for (int64_t i = row * r->width; i < (row + 1) * r->width; i++) {
        if ((r->open && r->open[i]) || alike(r, x[i], r->ref[i]) ||
            !tensor_holds(r->type, r->ref[i]))
            continue;
        if (!isfinite(x[i]) || !isfinite(r->ref[i])) return INFINITY;
        double d = fabs(x[i] - r->ref[i]);
        if (d > tensor_step(r->type)) sum += d * d;
    }
    return sqrt(sum);
}

static Agreement compare(const Rows *r, double bound) {
    Agreement a = {.rows = r->n, .finite = true, .row = -1};
    double squares = 0, noise2 = 0;
    for (int64_t row = 0; row < r->n; row++) {
        if ((r->x->rows && !r->x->rows[row]) || may_overflow(r, row)) continue;
        double size = size_of(r, row) + r->least;
        double noise = between(r, r->written, row) / size, off = between(r, r->got, row) / size;
        if (!(noise <= RIGHT)) continue;
        a.counted++;
        if (!isfinite(off)) {
            if (a.finite) a.row = row;
            a.finite = false;
            continue;
        }
        squares += off * off;
        noise2 += noise * noise;
        double most = WORST * (bound + 8 * noise);
        if (a.finite && off / most > a.worst / (a.most > 0 ? a.most : 1))
            a.worst = off, a.most = most, a.row = row;
    }
    a.rms = a.counted ? sqrt(squares / (double)a.counted) : 0;
    a.may = bound + 8 * (a.counted ? sqrt(noise2 / (double)a.counted) : 0);
    return a;
}

double agree_bound(Dtype t) { return 4 * tensor_tolerance(t); }

static Agreement of_output(const Oracle *x, const Binding *b, int arg, const double *got, Dtype t) {
    const Tensor *o = &b->tensor[arg];
    bool row = o->rank == 3;
    Rows r = {.x = x,
              .ref = x->out[arg],
              .written = x->written[arg],
              .size = row ? NULL : x->o_size,
              .got = got,
              .open = oracle_open(x, &b->sig->args.data[arg]),
              .keys = b->size[SIZE_SK],
              .type = o->dtype,
              .width = row ? 1 : b->sig->Dv};
    r.n = o->count / r.width;
    r.least = least_size(&r);
    if (row) r.least = fmax(r.least, 0x1p-4); // an emit may be the logarithm of what is nearly 1
    // f16 has no small weights: what they are rounded to is a part of its least normal number.
    if (t == DT_F16) r.least = fmax(r.least, 0x1p-14 * sqrt((double)r.width));
    return compare(&r, agree_bound(t));
}

Agreement agree_output(Oracle *x, const Variant *v, const Binding *b, int arg, const double *got,
                       Dtype t) {
    Agreement a = of_output(x, b, arg, got, t);
    if (agree_good(&a) || oracle_round_otherwise(x, v, b) != STATUS_DONE) return a;
    return of_output(x, b, arg, got, t);
}

bool agree_good(const Agreement *a) { return a->finite && a->rms <= a->may && a->worst <= a->most; }

void agree_describe(const Agreement *a, const char *output, char *buf, size_t n) {
    if (!a->finite)
        snprintf(buf, n, "%s: row %lld is not finite alike", output, (long long)a->row);
    else
        snprintf(buf, n, "%s: %.3g off, %.3g allowed; row %lld %.3g off, %.3g allowed", output,
                 a->rms, a->may, (long long)a->row, a->worst, a->most);
}
