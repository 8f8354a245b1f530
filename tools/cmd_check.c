// cmd_check.c: `attnc check`: the kernel's outputs against the naive evaluation (oracle.h) of the
// same inputs, rounded as the kernel sees them. Over the bound, or not finite where the reference
// is: exit status 1.
#include "batch.h"
#include "cmd.h"
#include "verdict.h"
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
    double reach = b->sig->backward && !open->beyond ? verdict_reach(b, x) : 0;
    if (reach)
        text_printf(t,
                    "; numbers reach %.3g, and what is made of them leaves f32: no gradient is "
                    "compared; keys of unit length keep a state small (--in=k=-0.1..0.1)",
                    reach);
    if (open->negative)
        text_printf(t, "; a decay is below 0 at %lld positions: what follows one is unspecified",
                    (long long)open->negative);
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
    if (2 * open->rows > rows)
        text_puts(t, "; small whole numbers make dot products exact (--in q=-3..3 --in k=-3..3)");
}

// Outputs that are 0 whatever the kernel computes show nothing, and tables of zeros little.
static void describe_inputs(Text *t, const Binding *b, int64_t pairs) {
    const char *zeros = bind_zeros(b, t->arena);
    if (!b->sig->recurrence && !pairs && bind_pairs(b) > 0) text_puts(t, "; no pair took part");
    if (zeros) text_printf(t, "; %s", zeros);
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

// Whether most rows hang on what has no single right answer, or are lost.
static bool is_mostly_open(const Binding *b, const Oracle *x) {
    int64_t rows = b->sig->Dv ? b->tensor[sig_arg(b->sig, "o")].count / b->sig->Dv : 0;
    return 2 * (x->open.rows + x->open.beyond + x->left) > rows;
}

static void tell_output(Text *t, const char *name, Dtype dtype, const Verdict *v) {
    const Error *e = &v->error;
    bool blind = verdict_blind(v);
    text_printf(t, "%s %s ", t->n ? "," : "", name);
    if (e->nothing)
        text_puts(t, "nothing compared");
    else if (blind)
        text_printf(t, "NOTHING COMPARED (rounding in f32 may be %.2g of it)", v->most);
    else
        text_printf(t, "%.3g (largest difference %.3g)", e->relative, e->largest);
    if (e->wrong)
        text_printf(t,
                    " and WRONG in %lld elements, where one of kernel and reference is not finite",
                    (long long)e->wrong);
    if (e->beyond)
        text_printf(t, " and %lld elements beyond %s", (long long)e->beyond, dtype_name(dtype));
    if (e->relative > v->bound && e->relative <= v->most && !blind)
        text_printf(t, " of %.2g that rounding in f32 may be", v->most);
    if (v->off > v->may)
        text_printf(t, " and row %lld by %.3g of its size, of %.3g that it may be",
                    (long long)v->row, v->off, v->may);
}

// One line: "good: softmax, bf16, B=1 ...: o 0.00201 (largest difference 0.00675), lse 5.8e-07 (...); bound 0.012".
static Status compare(const Binding *b, Oracle *x, const Launch *l, Slack *slack) {
    double bound = l->tf32 ? tensor_tolerance_tf32() : tensor_tolerance(l->dtype);
    bool good = true, nothing = true; // of all outputs
    bool part = is_mostly_open(b, x);
    int64_t wrong = 0;
    char sizes[512];
    Arena *a = arena_new();
    Text t = text_new(a);
    for (int i = 0; i < b->sig->args.n; i++) {
        ArgRole role = b->sig->args.data[i].role;
        if (role != ARG_OUTPUT && role != ARG_GRAD_OUT) continue;
        Verdict v;
        Status is = verdict_of(&v, slack, b, x, i, bound);
        if (is != STATUS_DONE) return arena_free(a), is;
        tell_output(&t, b->sig->args.data[i].name, b->tensor[i].dtype, &v);
        bool blank = v.error.nothing || verdict_blind(&v);
        part |= blank;
        if (role == ARG_OUTPUT) nothing &= blank;
        good = good && verdict_good(&v);
        wrong += v.error.wrong;
    }
    int64_t touched = touched_rows(b, x);
    bool nowhere = is_nowhere_finite(b, x);
    nothing |= nowhere;
    good = good && !touched && !nothing;
    text_printf(&t, "; bound %.3g", bound);
    if (touched)
        text_printf(&t, "; %lld rows that no sequence has are WRITTEN", (long long)touched);
    if (b->sig->backward)
        text_printf(&t, ", of gradients %.3g", bound * tensor_tolerance_gradients());
    describe_inputs(&t, b, x->pairs);
    describe_open(&t, b, x);
    if (nowhere) text_puts(&t, "; no element of o is finite in the reference");
    printf("%s: %s, %s, %s: relative error%s\n",
           good      ? part ? "good in part" : "good"
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
    Slack slack = {.v = v, .step = slack_step(l->tf32), .times = 1};
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
    slack_free(&slack);
    oracle_free(&x);
    launch_unbind(l);
    bind_free(&b);
    arena_free(a);
    return s;
}

Status cmd_check(const Options *o) { return cmd_configurations(o, configuration, (void *)o); }
