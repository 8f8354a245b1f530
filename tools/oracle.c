// oracle.c: see oracle.h: a binding as the reference reads it.
#include "oracle.h"
#include "batch.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NOISE_TRIALS = 3 };

static void *integers(const Tensor *t) {
    int32_t *n = malloc(((size_t)t->count + 1) * sizeof *n);
    for (int64_t i = 0; n && i < t->count; i++) n[i] = (int32_t)tensor_get(t, i);
    return n;
}

static void *scalar(const SigArg *g, double v) {
    void *p = malloc(sizeof(double));
    if (p && dtype_reads(g->dtype) == EX_F32)
        *(double *)p = (float)v;
    else if (p)
        *(int32_t *)p = (int32_t)v;
    return p;
}

// One argument in the reference's form: doubles, or int32_t for what reads as an integer.
static void *plain(const Binding *b, int arg) {
    const SigArg *g = &b->sig->args.data[arg];
    if (g->rank == 0) return scalar(g, b->scalar[arg]);
    return dtype_reads(g->dtype) == EX_F32 ? (void *)tensor_doubles(&b->tensor[arg])
                                           : integers(&b->tensor[arg]);
}

static void *zeros(Oracle *x, int64_t n, size_t size) {
    void *p = calloc((size_t)n + 1, size);
    x->room = x->room && p;
    return p;
}

static bool is_written(const SigArg *g) { return g->role == ARG_OUTPUT || g->role == ARG_GRAD_OUT; }

// Rows, and slots of states.
static int64_t owned(const Binding *b) {
    return (int64_t)b->size[sig_rows(b->sig)] + (b->sig->recurrence ? b->size[ABI_RSIZE_SLOTS] : 0);
}

static bool make_outputs(Oracle *x, const Binding *b, unsigned asked) {
    int n = b->sig->args.n, o = sig_arg(b->sig, "o");
    x->room = true;
    x->n = n;
    x->out = zeros(x, n, sizeof *x->out);
    x->written = zeros(x, n, sizeof *x->written);
    for (int i = 0; i < n && x->room; i++) {
        if (!is_written(&b->sig->args.data[i])) continue;
        x->out[i] = zeros(x, b->tensor[i].count, sizeof(double));
        if (b->sig->args.data[i].role == ARG_OUTPUT && (asked & ORACLE_WRITTEN))
            x->written[i] = zeros(x, b->tensor[i].count, sizeof(double));
    }
    if (b->sig->batch) x->owners = zeros(x, owned(b), sizeof *x->owners);
    if (asked & ORACLE_WRITTEN) x->o_size = zeros(x, b->tensor[o].count, sizeof(double));
    int64_t rows = b->sig->Dv ? b->tensor[o].count / b->sig->Dv : 0;
    if (!b->sig->recurrence) x->lost = zeros(x, rows, 1);
    if (!(asked & ORACLE_OPEN)) return x->room;
    x->open.o = zeros(x, b->tensor[o].count, 1);
    if (b->sig->recurrence)
        x->open.state = zeros(x, b->tensor[o + 1].count, 1);
    else
        x->open.row = zeros(x, rows, 1);
    return x->room;
}

// How many times as many terms a sum of dots may have as one of q and k.
static double wider(const Variant *v) {
    double terms = 0;
    for (int i = 0; i < v->dots.n; i++)
        terms += v->rows[ROW_KEYS].data[v->dots.data[i].row[ROW_KEYS]].width;
    return terms > v->D ? terms / v->D : 1;
}

// The reference's arguments are q, k, v (unless it is in k), the inputs, then what comes out: o, and emits or the state.
static RefRun reference(Oracle *x, const Variant *v, const Binding *b, const void *const *in,
                        const OracleAsk *ask) {
    int o = sig_arg(b->sig, "o");
    RefRun r = {.variant = v,
                .sizes = b->size,
                .q = in[0],
                .k = in[1],
                .v = v->v_in_k ? NULL : in[2],
                .inputs = in + sig_operands(b->sig),
                .o = x->out[o],
                .outside = ask->what & ORACLE_OUTSIDE ? &x->outside : NULL,
                .open = ask->what & ORACLE_OPEN ? &x->open : NULL};
    if (b->sig->recurrence) {
        r.state0 = in[sig_arg(b->sig, "state0")];
        r.state = x->out[o + 1];
    } else {
        r.emits = x->out + o + 1;
        r.pairs = &x->pairs;
        r.o_written = x->written[o];
        r.emits_written = x->written + o + 1;
        r.o_size = x->o_size;
        r.kinks = (b->sig->backward && !ask->rounding) || ask->kinks;
        r.dot_error = ask->dot_error * wider(v);
        r.rows = ask->rows;
        r.rounding = ask->rounding;
        r.o_error = tensor_tolerance(b->sig->args.data[0].dtype);
    }
    return r;
}

// Of an input whose rows stay where they are: how long it is; the others' Sq and Sk are the sequences'.
static const int64_t (*extents(Arena *a, const Variant *v, const Binding *b))[EX_MAX_RANK] {
    int64_t(*n)[EX_MAX_RANK] = arena_alloc(a, sizeof *n * (size_t)(v->inputs.n + 1));
    for (int i = 0; i < v->inputs.n; i++) {
        const Tensor *t = &b->tensor[sig_operands(b->sig) + i];
        if (ref_moved(&v->inputs.data[i], b->sig->recurrence).moved >= 0) continue;
        for (int d = 0; d < t->rank; d++) n[i][d] = t->dim[d];
    }
    return (const int64_t(*)[EX_MAX_RANK])n;
}

// The sizes as the variant has them; Sq, Sk and q_offset are each sequence's.
static int32_t *batch_sizes(Arena *a, const Variant *v, const Binding *b) {
    int32_t *n = ARENA_ARRAY(a, int32_t, v->sizes.n);
    for (int i = SIZE_B; i <= (b->sig->recurrence ? (int)RSIZE_HV : (int)SIZE_HKV); i++)
        n[i] = b->size[i];
    for (int i = SIZE_FREE; i < v->sizes.n; i++)
        n[i] = b->size[i - SIZE_FREE + sig_first_free(b->sig)];
    return n;
}

static const int32_t *owners_of(const Oracle *x, const Binding *b, int arg, int64_t *rows) {
    bool state = b->sig->recurrence && strcmp(b->sig->args.data[arg].name, "o") != 0;
    *rows = b->size[state ? (int)ABI_RSIZE_SLOTS : sig_rows(b->sig)];
    return x->owners + (state ? b->size[sig_rows(b->sig)] : 0);
}

// What rows and slots hold that no sequence has, or several have, is nothing to compare.
static void leave_out_rows(const Oracle *x, const Binding *b) {
    for (int i = 0; i < b->sig->args.n && x->open.o; i++) {
        const SigArg *g = &b->sig->args.data[i];
        int64_t rows;
        const int32_t *owners = owners_of(x, b, i, &rows);
        unsigned char *open = g->role == ARG_OUTPUT ? (unsigned char *)oracle_open(x, g) : NULL;
        int64_t each = rows ? b->tensor[i].count / rows : 0;
        for (int64_t r = 0; r < rows && open; r++)
            if (owners[r] != 1) memset(open + r * each, 1, (size_t)each);
    }
}

static const char *run_outputs(Oracle *x, RefRun *r, const Binding *b) {
    Arena *a = arena_new();
    if (b->sig->batch) r->sizes = batch_sizes(a, r->variant, b);
    const char *bad = ref_check(r);
    if (!bad && b->sig->batch) {
        RefBatch batch = batch_of(b);
        batch.extent = extents(a, r->variant, b);
        ref_batch_run(&batch, r, x->owners);
        leave_out_rows(x, b);
    } else if (!bad)
        ref_run(r);
    arena_free(a);
    return bad;
}

double oracle_pairs(const Variant *v, const Binding *b, double *touched) {
    enum { MOST = 1 << 20 };
    Arena *a = arena_new();
    int first = sig_operands(b->sig);
    void **in = calloc((size_t)b->sig->args.n + 1, sizeof *in);
    bool room = in != NULL;
    for (int i = 0; room && i < v->inputs.n; i++)
        room = (in[first + i] = plain(b, first + i)) != NULL;
    RefBatch batch = batch_of(b);
    batch.extent = extents(a, v, b);
    RefRun r = {
        .variant = v, .sizes = batch_sizes(a, v, b), .inputs = (const void *const *)in + first};
    double pairs = room ? ref_batch_pairs(&batch, &r, 0, MOST) * b->size[ABI_SIZE_H] : 0;
    *touched = room ? ref_batch_touched(&batch, &r, 0, MOST) : 1;
    oracle_free_arguments(in, b);
    arena_free(a);
    return pairs;
}

static void gradients(Oracle *x, const RefGrad *given, const Binding *b) {
    Arena *a = arena_new();
    RefRun run = *given->run;
    RefGrad own = *given, *g = &own;
    g->run = &run;
    for (int i = 0; i < b->sig->args.n && b->sig->batch; i++)
        if (b->sig->args.data[i].role == ARG_GRAD_OUT)
            memset(x->out[i], 0, sizeof(double) * (size_t)b->tensor[i].count);
    if (b->sig->batch) {
        RefBatch batch = batch_of(b);
        batch.extent = extents(a, run.variant, b);
        run.sizes = batch_sizes(a, run.variant, b);
        ref_batch_grad(&batch, g);
    } else {
        ref_grad(g);
    }
    arena_free(a);
}

// Of numbers that a product takes.
static int dtype_bits(Dtype t) { return t == DT_F16 ? 11 : t == DT_BF16 ? 8 : 0; }

// What goes out follows what comes in: o, then emits or the state; q, k, v, the inputs, state0.
static void differentiate(Oracle *x, const RefRun *run, const Binding *b, const void *const *in,
                          RefKind kind) {
    const Signature *sig = b->sig;
    int o = sig_arg(sig, "o"), at = sig_arg(sig, "dq"), operands = sig_operands(sig);
    double **dinputs = calloc((size_t)sig->args.n + 1, sizeof *dinputs);
    const double *const *d = (const double *const *)(in + sig_arg(sig, "do"));
    RefGrad g = {.run = run,
                 .d_o = d[0],
                 .demits = sig->recurrence ? NULL : d + 1,
                 .dstate = sig->recurrence ? d[1] : NULL,
                 .dq = x->out[at],
                 .dk = x->out[at + 1],
                 .dv = operands > 2 ? x->out[at + 2] : NULL,
                 .dinputs = dinputs,
                 .kind = kind,
                 .bits = dtype_bits(sig->args.data[0].dtype),
                 .unit = 1 + run->rounding / 3.0,
                 .lost = x->lost};
    for (int i = at + operands; i < sig->args.n && dinputs; i++) {
        int of = sig->args.data[i].of - operands;
        if (sig->recurrence && of == o - 4)
            g.dstate0 = x->out[i];
        else
            dinputs[of] = x->out[i];
    }
    x->room = x->room && dinputs;
    if (x->room) gradients(x, &g, b);
    free(dinputs);
}

void **oracle_arguments(const Binding *b) {
    void **in = calloc((size_t)b->sig->args.n + 1, sizeof *in);
    bool room = in != NULL;
    for (int i = 0; room && i < b->sig->args.n; i++)
        if (!is_written(&b->sig->args.data[i])) room = (in[i] = plain(b, i)) != NULL;
    if (room) return in;
    oracle_free_arguments(in, b);
    return NULL;
}

void oracle_free_arguments(void **in, const Binding *b) {
    for (int i = 0; in && i < b->sig->args.n; i++) free(in[i]);
    free(in);
}

// Numbers go up or down by `step`, relative to themselves, as it comes.
static void move(void **in, const Binding *b, double step, uint64_t trial) {
    for (int i = 0; i < b->sig->args.n; i++) {
        const SigArg *g = &b->sig->args.data[i];
        if (is_written(g) || dtype_reads(g->dtype) != EX_F32) continue;
        double *x = in[i];
        for (int64_t k = 0; k < (g->rank ? b->tensor[i].count : 1); k++)
            x[k] *= 1 + (tensor_uniform(trial, g->name, k) < 0.5 ? -step : step);
    }
}

static void give(void **in, const Binding *b, const Oracle *open) {
    for (int i = 0; i < b->sig->args.n; i++) {
        const unsigned char *of = oracle_open(open, &b->sig->args.data[i]);
        double *x = in[i];
        if (b->sig->args.data[i].role != ARG_GRAD_IN || !of) continue;
        for (int64_t k = 0; k < b->tensor[i].count; k++)
            if (of[k]) x[k] = 1;
    }
}

typedef enum What { OUTPUTS, GRADIENTS, MOVED, SIZES, PARTS, WRITTEN, STORED } What;

static Status evaluate(Oracle *x, const Variant *v, const Binding *b, const OracleAsk *ask,
                       What what, double step, uint64_t trial) {
    const char *bad = NULL;
    void **in = oracle_arguments(b);
    x->room = x->room && in;
    if (x->room && what == MOVED) move(in, b, step, trial);
    if (x->room && ask->opened) give(in, b, ask->opened);
    if (x->room) {
        RefRun r = reference(x, v, b, (const void *const *)in, ask);
        if (what == OUTPUTS)
            bad = run_outputs(x, &r, b);
        else if (b->sig->batch || !(bad = ref_check(&r)))
            differentiate(x, &r, b, (const void *const *)in,
                          what == SIZES     ? REF_SIZES
                          : what == PARTS   ? REF_PARTS
                          : what == WRITTEN ? REF_WRITTEN
                          : what == STORED  ? REF_STORED
                                            : REF_FLOAT64);
    }
    oracle_free_arguments(in, b);
    if (!x->room) return cmd_fail(STATUS_SYSTEM, "out of memory");
    return bad ? cmd_fail(STATUS_INPUT, "%s", bad) : STATUS_DONE;
}

Status oracle_run(Oracle *x, const Variant *v, const Binding *b, const OracleAsk *ask) {
    *x = (Oracle){.rows = ask->rows, .dot_error = ask->dot_error};
    x->room = make_outputs(x, b, ask->what);
    return evaluate(x, v, b, ask, OUTPUTS, 0, 0);
}

// As trial `rounding` rounds dots, scores and functions.
static OracleAsk rounded(const Oracle *x, unsigned what, int rounding) {
    return (OracleAsk){.what = what,
                       .dot_error = x->dot_error / 2, // and what is off counts twice
                       .rows = x->rows,
                       .rounding = rounding};
}

// Of two evaluations of the formula as written, that which is farther from x.
static void take_farther(double *written, const double *y, const double *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(y[i] - x[i]) <= fabs(written[i] - x[i]))) written[i] = y[i];
}

Status oracle_round_otherwise(Oracle *x, const Variant *v, const Binding *b) {
    Status s = STATUS_DONE;
    for (int k = 1; k <= NOISE_TRIALS && s == STATUS_DONE; k++) {
        Oracle y;
        OracleAsk ask = rounded(x, ORACLE_WRITTEN, k);
        s = oracle_run(&y, v, b, &ask);
        for (int i = 0; i < b->sig->args.n && s == STATUS_DONE; i++)
            if (x->written[i])
                take_farther(x->written[i], y.written[i], x->out[i], b->tensor[i].count);
        oracle_free(&y);
    }
    return s;
}

void oracle_leave_out(Oracle *x, const Binding *b) {
    int o = sig_arg(b->sig, "o");
    int64_t Dv = b->sig->Dv, rows = Dv ? b->tensor[o].count / Dv : 0;
    for (int64_t r = 0; r < rows; r++) {
        bool leaves = false;
        for (int i = o; i < b->sig->args.n; i++) {
            int64_t each = i == o ? Dv : 1;
            if (!x->written[i]) continue;
            for (int64_t k = r * each; k < (r + 1) * each; k++)
                leaves |= isfinite(x->out[i][k]) && !isfinite(x->written[i][k]);
        }
        if (!leaves) continue;
        x->left++;
        x->open.row[r] = x->lost[r] = 1;
        memset(x->open.o + r * Dv, 1, (size_t)Dv);
    }
}

Status oracle_gradients(Oracle *x, const Variant *v, const Binding *b) {
    return evaluate(x, v, b, &(OracleAsk){.rows = x->rows}, GRADIENTS, 0, 0);
}

static Status gradients_as(Oracle *out, const Oracle *x, const Variant *v, const Binding *b,
                           What what) {
    *out = (Oracle){.rows = x->rows};
    out->room = make_outputs(out, b, 0);
    return evaluate(out, v, b, &(OracleAsk){.rows = x->rows}, what, 0, 0);
}

Status oracle_gradient_sizes(Oracle *sizes, const Oracle *x, const Variant *v, const Binding *b) {
    return gradients_as(sizes, x, v, b, SIZES);
}

Status oracle_gradient_parts(Oracle *parts, const Oracle *x, const Variant *v, const Binding *b) {
    return gradients_as(parts, x, v, b, PARTS);
}

// In a few ways; what is farthest from x counts.
static Status gradients_rounded(Oracle *out, const Oracle *x, const Variant *v, const Binding *b,
                                What what) {
    Status s = gradients_as(out, x, v, b, what);
    for (int k = 1; k <= NOISE_TRIALS && s == STATUS_DONE; k++) {
        Oracle y = {.rows = x->rows};
        OracleAsk ask = rounded(x, 0, k);
        y.room = make_outputs(&y, b, 0);
        s = evaluate(&y, v, b, &ask, what, 0, 0);
        for (int i = 0; i < b->sig->args.n && s == STATUS_DONE; i++)
            if (b->sig->args.data[i].role == ARG_GRAD_OUT)
                take_farther(out->out[i], y.out[i], x->out[i], b->tensor[i].count);
        oracle_free(&y);
    }
    return s;
}

Status oracle_gradients_written(Oracle *written, const Oracle *x, const Variant *v,
                                const Binding *b) {
    return gradients_rounded(written, x, v, b, WRITTEN);
}

Status oracle_gradients_stored(Oracle *stored, const Oracle *x, const Variant *v,
                               const Binding *b) {
    return gradients_rounded(stored, x, v, b, STORED);
}

Status oracle_gradients_opened(Oracle *opened, const Oracle *x, const Variant *v,
                               const Binding *b) {
    *opened = (Oracle){.rows = x->rows};
    opened->room = make_outputs(opened, b, 0);
    return evaluate(opened, v, b, &(OracleAsk){.rows = x->rows, .opened = x}, GRADIENTS, 0, 0);
}

static void farther(double *moved, const double *x, const double *y, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (isfinite(y[i])) moved[i] = fmax(moved[i], fabs(x[i] - y[i]));
}

Status oracle_gradient_noise(Oracle *moved, const Oracle *x, const Variant *v, const Binding *b,
                             double step) {
    Oracle y = {.rows = x->rows};
    Status s = STATUS_DONE;
    *moved = y;
    y.room = make_outputs(&y, b, 0) && make_outputs(moved, b, 0);
    for (uint64_t trial = 1; trial <= NOISE_TRIALS && s == STATUS_DONE; trial++) {
        s = evaluate(&y, v, b, &(OracleAsk){.rows = x->rows}, MOVED, step, trial);
        for (int i = 0; i < b->sig->args.n && s == STATUS_DONE; i++)
            if (b->sig->args.data[i].role == ARG_GRAD_OUT)
                farther(moved->out[i], x->out[i], y.out[i], b->tensor[i].count);
    }
    oracle_free(&y);
    return s;
}

void oracle_mute(const Oracle *x, const Binding *b) {
    for (int i = 0; i < b->sig->args.n; i++) {
        Tensor *t = &b->tensor[i];
        if (b->sig->args.data[i].role != ARG_GRAD_IN) continue;
        const unsigned char *open = oracle_open(x, &b->sig->args.data[i]);
        int64_t row = t->rank == 4 && t->dim[3] ? t->dim[3] : 1;
        for (int64_t k = 0; k < t->count; k++)
            if ((open && open[k]) || (x->rows && !x->rows[k / row])) tensor_set(t, k, 0);
    }
}

void oracle_free(Oracle *x) {
    for (int i = 0; x->out && i < x->n; i++) free(x->out[i]);
    for (int i = 0; x->written && i < x->n; i++) free(x->written[i]);
    free(x->out);
    free(x->written);
    free(x->o_size);
    free(x->owners);
    free(x->lost);
    free(x->open.o);
    free(x->open.row);
    free(x->open.state);
    *x = (Oracle){0};
}

// Roundings of a sum of D products in f32, in any order and with hardware that truncates; tf32
// rounds the factors to 11 bits.
double oracle_dot_error(Dtype t, bool tf32, int D) {
    return t == DT_F32 && tf32 ? 0x1p-10 : (8 + D / 8) * 0x1p-24;
}

const unsigned char *oracle_open(const Oracle *x, const SigArg *of) {
    bool state = strcmp(of->name, "state") == 0 || strcmp(of->name, "dstate") == 0;
    return state ? x->open.state : of->of_rows ? x->open.row : x->open.o;
}

void oracle_warn(const Oracle *oracle, const Diags *files, const Variant *v) {
    const RefOutside *x = &oracle->outside;
    if (!x->load) return;
    Diags found = *files, *d = &found; // without what was printed before
    found.first = found.last = NULL;
    const char *name = v->inputs.data[x->load->index].name;
    Diag *w =
        diag_warning(d, x->load->span, "index %d of '%s' is %d and was used; its extent is %lld",
                     x->dim, name, x->index, (long long)x->extent);
    if (v->kind == VARIANT_ATTENTION)
        diag_note(d, w, x->load->span,
                  "at b = %d, h = %d, q_idx = %d, kv_idx = %d; kernels read the nearest element",
                  x->b, x->h, x->q_idx, x->kv_idx);
    else
        diag_note(d, w, x->load->span,
                  "at b = %d, h = %d, t = %d; kernels read the nearest element", x->b, x->h,
                  x->q_idx);
    diag_print(d, stderr);
}
