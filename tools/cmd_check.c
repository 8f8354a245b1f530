// cmd_check.c: `attnc check`: the kernel's outputs against the naive evaluation (oracle.h) of the
// same inputs, rounded as the kernel sees them. Over the bound, or not finite where the reference
// is: exit status 1.
#include "batch.h"
#include "cmd.h"
#include "oracle.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The usual reason: a key that weighs nothing is still multiplied where its tile is visited.
static void explain_wrong(const Binding *b) {
    int at = sig_arg(b->sig, "v");
    const Tensor *v = &b->tensor[at < 0 ? sig_arg(b->sig, "k") : at];
    int64_t bad = 0;
    for (int64_t i = 0; i < v->count; i++) bad += !isfinite(tensor_get(v, i));
    if (bad)
        cmd_note("%lld elements of v are not finite: v must be finite wherever a kernel reads it, "
                 "also in masked keys of a tile that is visited (0 * inf is NaN)",
                 (long long)bad);
}

// Rows that hang on a decision without a single right answer show nothing either.
static void describe_open(Text *t, const Binding *b, const Oracle *x) {
    const RefOpen *open = &x->open;
    if (open->beyond)
        text_printf(t,
                    "; the state leaves f32, which other inputs prevent: not compared, %lld of "
                    "%lld positions",
                    (long long)open->beyond,
                    (long long)(b->tensor[sig_arg(b->sig, "o")].count / b->sig->Dv));
    if (open->beyond && b->sig->backward) text_puts(t, "; no gradient is compared");
    if (x->left)
        text_printf(t, "; the formula as written leaves f32: not compared, %lld rows",
                    (long long)x->left);
    if (!open->decisions) return;
    int64_t rows = b->sig->Dv ? b->tensor[sig_arg(b->sig, "o")].count / b->sig->Dv : 0;
    text_printf(t,
                "; %lld decision%s within rounding of a dot product or function: not compared, in "
                "%lld of %lld rows",
                (long long)open->decisions, open->decisions == 1 ? " lies" : "s lie",
                (long long)open->rows, (long long)rows);
}

// Outputs that are 0 whatever the kernel computes show nothing, and tables of zeros little.
static void describe_inputs(Text *t, const Binding *b, int64_t pairs) {
    const char *zeros = bind_zeros(b, t->arena);
    if (!b->sig->recurrence && !pairs && bind_pairs(b) > 0) text_puts(t, "; no pair took part");
    if (zeros) text_printf(t, "; %s", zeros);
}

// Where the reference's gradient is not finite, nothing is asked of a kernel; nor anywhere where a state leaves f32, which the gradients of
// all positions go through.
static unsigned char *finite_only(const double *ref, int64_t n, bool none) {
    unsigned char *open = calloc((size_t)n + 1, 1);
    for (int64_t i = 0; open && i < n; i++) open[i] = none || !isfinite(ref[i]);
    return open;
}

// ---- what rounding may do

typedef struct Slack { // what is known of it when it is first asked for
    const Variant *v;
    Oracle sizes;
    double *moved; // by argument
    bool asked;
} Slack;

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

// A gradient may be a difference of much larger numbers (a power of large scores, a maximum subtracted), or hang on numbers of which f32
// holds a few digits. Then nobody computes it better.
static Status ask_slack(Slack *s, const Binding *b, const Oracle *x, bool tf32) {
    if (s->asked || b->sig->recurrence) return STATUS_DONE;
    s->asked = true;
    s->moved = calloc((size_t)b->sig->args.n + 1, sizeof *s->moved);
    if (!s->moved) return cmd_fail(STATUS_SYSTEM, "out of memory");
    Status is = oracle_gradient_sizes(&s->sizes, x, s->v, b);
    if (is != STATUS_DONE) return is;
    return oracle_gradient_noise(x, s->v, b, tf32 ? 0x1p-11 : 0x1p-23, s->moved);
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
                                double bound) {
    if (!s->asked) return 0;
    int64_t n = b->tensor[i].count;
    double size = norm_of(x->out[i], NULL, NULL, n), moved = s->moved[i];
    double terms = norm_of(s->sizes.out[i], NULL, NULL, n) * bound / 6;
    double all = (terms > size ? terms : 0) + (moved > 0 ? 4 * moved : 0) + underflow(b);
    return size > 0 ? all / size : all;
}

// Where what adds to an element leaves its type, the kernel may, too.
static int64_t wrong_of_gradient(const Slack *s, const Binding *b, const Oracle *x, int i) {
    const Tensor *t = &b->tensor[i];
    int64_t wrong = 0;
    for (int64_t k = 0; k < t->count; k++)
        wrong += isfinite(x->out[i][k]) && !isfinite(tensor_get(t, k)) &&
                 tensor_holds(t->dtype, s->sizes.out[i][k]);
    return wrong;
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

static Error error_of(const Binding *b, const Oracle *x, int i) {
    const Tensor *t = &b->tensor[i];
    if (b->sig->args.data[i].role == ARG_OUTPUT)
        return cmd_error(t, x->out[i], oracle_open(x, &b->sig->args.data[i]),
                         b->sig->args.data[i].of_rows);
    unsigned char *open = finite_only(x->out[i], t->count, x->open.beyond > 0);
    open = of_one_sequence(b, i, open);
    Error e = cmd_error(t, x->out[i], open, false);
    free(open);
    return e;
}

static bool is_all(const unsigned char *row, size_t n, unsigned char byte) {
    size_t k = 0;
    while (k < n && row[k] == byte) k++;
    return k == n;
}

// Rows of what is written, and slots, that no sequence has and that do not hold what they held before: every bit set. Of gradients
// they may be 0 as well.
static int64_t touched_rows(const Binding *b, const Oracle *x) {
    int64_t rows, touched = 0;
    for (int i = 0; i < b->sig->args.n && x->owners; i++) {
        const Tensor *t = &b->tensor[i];
        ArgRole role = b->sig->args.data[i].role;
        bool written = role == ARG_OUTPUT || role == ARG_GRAD_OUT;
        unsigned char *owners = written ? batch_owners(b, i, &rows) : NULL;
        size_t bytes =
            owners && rows ? (size_t)(t->count / rows) * (size_t)dtype_bytes(t->dtype) : 0;
        for (int64_t r = 0; owners && r < rows; r++) {
            const unsigned char *row = (const unsigned char *)t->data + (size_t)r * bytes;
            touched += !owners[r] && !is_all(row, bytes, 0xff) &&
                       !(role == ARG_GRAD_OUT && is_all(row, bytes, 0));
        }
        free(owners);
    }
    return touched;
}

// A formula that is nowhere finite: no number was compared. (describe_open tells of other reasons.)
static bool is_nowhere_finite(const Binding *b, const Oracle *x) {
    int o = sig_arg(b->sig, "o");
    if (x->open.beyond || x->left || x->open.decisions || !b->tensor[o].count) return false;
    for (int64_t i = 0; i < b->tensor[o].count; i++)
        if (isfinite(x->out[o][i])) return false;
    return true;
}

// One line: "good: softmax, bf16, B=1 ...: o 0.00201 (at most 0.00675), lse 5.8e-07 (...); bound 0.012".
static Status compare(const Binding *b, const Oracle *x, const Launch *l, Slack *slack) {
    double bound = l->tf32 ? tensor_tolerance_tf32() : tensor_tolerance(l->dtype);
    double wide = bound * tensor_tolerance_gradients();
    bool good = true;
    int64_t wrong = 0;
    char sizes[512];
    Arena *a = arena_new();
    Text t = text_new(a);
    for (int i = 0; i < b->sig->args.n; i++) {
        ArgRole role = b->sig->args.data[i].role;
        if (role != ARG_OUTPUT && role != ARG_GRAD_OUT) continue;
        Error e = error_of(b, x, i);
        bool output = role == ARG_OUTPUT;
        double most = output ? bound : wide;
        if (!output && (e.wrong || !(e.relative <= most))) {
            Status s = ask_slack(slack, b, x, l->tf32);
            if (s != STATUS_DONE) return arena_free(a), s;
        }
        most += output ? slack_of_output(b, x, i) : slack_of_gradient(slack, b, x, i, bound);
        if (!output && slack->asked && e.wrong)
            e.wrong = x->left || most > 1 ? 0 : wrong_of_gradient(slack, b, x, i);
        text_printf(&t, "%s %s %.3g (at most %.3g)", t.n ? "," : "", b->sig->args.data[i].name,
                    e.relative, e.largest);
        if (e.wrong)
            text_printf(
                &t, " and WRONG in %lld elements, where one of kernel and reference is not finite",
                (long long)e.wrong);
        if (e.beyond)
            text_printf(&t, " and %lld elements beyond %s", (long long)e.beyond,
                        dtype_name(b->tensor[i].dtype));
        if (e.relative > (output ? bound : wide) && e.relative <= most)
            text_printf(&t, " of %.2g that rounding in f32 may be", most);
        good = good && e.relative <= most && !e.wrong;
        wrong += e.wrong;
    }
    int64_t touched = touched_rows(b, x);
    bool nothing = is_nowhere_finite(b, x);
    good = good && !touched && !nothing;
    text_printf(&t, "; bound %.3g", bound);
    if (touched)
        text_printf(&t, "; %lld rows that no sequence has are WRITTEN", (long long)touched);
    if (b->sig->backward) text_printf(&t, ", of gradients %.3g", wide);
    describe_inputs(&t, b, x->pairs);
    describe_open(&t, b, x);
    if (nothing) text_puts(&t, "; no element of o is finite in the reference");
    printf("%s: %s, %s, %s: relative error%s\n",
           good      ? "good"
           : wrong   ? "WRONG"
           : nothing ? "NOTHING COMPARED"
                     : "OVER THE BOUND",
           b->sig->name, l->tf32 ? "tf32" : dtype_name(l->dtype),
           bind_describe(b, sizes, sizeof sizes), t.s);
    fflush(stdout);
    arena_free(a);
    if (wrong) explain_wrong(b);
    return good ? STATUS_DONE : STATUS_INPUT;
}

static Status configuration(void *ctx, Launch *l, Compile *c, const char *shape) {
    const Options *o = ctx;
    Arena *a = arena_new();
    Binding b = {0};
    Oracle x = {0};
    const Variant *v = c->variants.data[0];
    Slack slack = {.v = v};
    unsigned written = v->kind == VARIANT_ATTENTION ? ORACLE_WRITTEN : 0;
    OracleAsk ask = {.what = ORACLE_OPEN | written | (o->debug ? ORACLE_OUTSIDE : 0),
                     .dot_error = oracle_dot_error(l->dtype, l->tf32, l->sig->D)};
    Status s = bind_make(&b, a, l->sig, o, shape);
    if (s == STATUS_DONE) s = oracle_run(&x, v, &b, &ask);
    if (s == STATUS_DONE && written) oracle_leave_out(&x, &b);
    if (s == STATUS_DONE && l->sig->backward) {
        oracle_mute(&x, &b);
        s = oracle_gradients(&x, v, &b);
    }
    if (s == STATUS_DONE) s = launch_bind(l, &b);
    if (s == STATUS_DONE) s = launch_run(l);
    if (s == STATUS_DONE) s = launch_fetch(l);
    oracle_warn(&x, &c->diags, v);
    if (s == STATUS_DONE) s = compare(&b, &x, l, &slack);
    oracle_free(&slack.sizes);
    free(slack.moved);
    oracle_free(&x);
    launch_unbind(l);
    bind_free(&b);
    arena_free(a);
    return s;
}

Status cmd_check(const Options *o) { return cmd_configurations(o, configuration, (void *)o); }
