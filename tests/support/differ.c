// differ.c: see differ.h.
#include "tests/support/differ.h"
#include "ir/tile_eval.h"
#include "passes/derive/backward.h"
#include "tests/support/agree.h"
#include "tests/support/differences.h"
#include "tests/support/gradient.h"
#include "tests/support/parts.h"
#include "tools/launch.h"
#include "tools/verdict.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Job {
    const Differ *d;
    Compile c;
    Binding b;
    Oracle x;
} Job;

const char *stage_name(Stage s) {
    static const char *const names[] = {"none",      "compile", "bind",   "reference", "backward",
                                        "algorithm", "passes",  "kernel", "gradients", "parts"};
    return names[s];
}

static bool agrees(Job *j, const char *what, int arg, const double *got) {
    Agreement a = agree_output(&j->x, j->c.variants.data[0], &j->b, arg, got, j->d->dtype);
    char text[200];
    bool good = agree_good(&a);
    agree_describe(&a, j->b.sig->args.data[arg].name, text, sizeof text);
    if (j->d->log && !good) fprintf(j->d->log, "  %s: %s\n", what, text);
    return good;
}

// Integer and bool inputs that bind leaves 0: something to tell them apart.
static void scatter(Binding *b) {
    for (int i = 0; i < b->sig->args.n; i++) {
        Tensor *t = &b->tensor[i];
        uint32_t state = 12345u + (uint32_t)i;
        if (b->sig->args.data[i].role != ARG_INPUT || !t->data || dtype_reads(t->dtype) == EX_F32)
            continue;
        for (int64_t k = 0; k < t->count; k++) {
            state = state * 1664525u + 1013904223u;
            tensor_set(t, k,
                       t->dtype == DT_BOOL ? (state >> 24) % 3 != 0 : (double)((state >> 24) % 5));
        }
    }
}

static bool open_compile(const Job *j, Compile *c, TargetId target) {
    const Differ *d = j->d;
    CompileOptions o = {.source = {.path = d->path ? d->path : d->name,
                                   .text = d->source,
                                   .text_bytes = d->source ? strlen(d->source) : 0,
                                   .defines = d->defines,
                                   .ndefines = d->ndefines},
                        .target = target,
                        .dtype = d->dtype,
                        .has_kv = d->kv != DT_F32,
                        .kv = d->kv,
                        .level = d->level};
    bool good = compile_open(c, &o) == FE_OK && compile_streams(c);
    if (!good && d->log) diag_print(&c->diags, d->log);
    return good;
}

bool differ_bind(Binding *b, Arena *a, const Signature *sig, const char *shape,
                 const char *offset) {
    Options o = {.seed = 7};
    NameValue scalars[] = {{"cap", "1.5"}, {"n", "12"}, {"q_offset", offset}};
    for (int i = 0; i < 3; i++) {
        int arg = sig_arg(sig, scalars[i].name);
        if ((arg >= 0 && sig->args.data[arg].rank == 0) || (i == 2 && offset))
            VEC_PUSH(a, &o.in, scalars[i]);
    }
    if (bind_make(b, a, sig, &o, shape) != STATUS_DONE) return false;
    scatter(b);
    return true;
}

static bool bind_job(Job *j) {
    Arena *a = j->c.arena;
    Signature *sig = sig_of_variant(a, j->c.variants.data[0], j->d->dtype);
    sig_set_kv(sig, j->d->kv);
    bool bound = j->d->inputs ? bind_make(&j->b, a, sig, j->d->inputs, j->d->shape) == STATUS_DONE
                              : differ_bind(&j->b, a, sig, j->d->shape, j->d->offset);
    if (!bound) return false;
    OracleAsk ask = {.what = ORACLE_OPEN | ORACLE_WRITTEN,
                     .dot_error = oracle_dot_error(j->d->dtype, false, sig->D)};
    bool good = oracle_run(&j->x, j->c.variants.data[0], &j->b, &ask) == STATUS_DONE;
    if (good) oracle_leave_out(&j->x, &j->b);
    return good;
}

// Numbers near the ends of f32: what is added to them is lost, and what is multiplied by them leaves f32.
static bool has_ends(const Binding *b) {
    for (int i = 0; i < b->sig->args.n; i++) {
        const Tensor *t = &b->tensor[i];
        if (b->sig->args.data[i].role != ARG_INPUT || !t->data || dtype_reads(t->dtype) != EX_F32)
            continue;
        for (int64_t k = 0; k < t->count; k++)
            if (fabs(tensor_get(t, k)) > 0x1p40) return true;
    }
    return false;
}

static bool reference(const Job *j) {
    if (has_ends(&j->b)) return true; // differences show nothing
    Differences x = differences(j->c.variants.data[0], &j->b);
    bool good = x.worst < 1e-2;
    if (!good && j->d->log) fprintf(j->d->log, "  reference: %s\n", x.element);
    return good;
}

// ---- the derived backward

enum { BACKWARD_ROWS = 20 };

// Arguments in the reference's form, and random gradients of o and the emits.
static RefGrad gradients(const Job *j, RefRun *run) {
    Arena *a = j->c.arena;
    const Signature *sig = j->b.sig;
    const void **in = ARENA_ARRAY(a, const void *, sig->args.n + 1);
    const double **come = ARENA_ARRAY(a, const double *, sig->args.n + 1);
    uint32_t state = 99;
    int outputs = 0;
    for (int i = 0; i < sig->args.n; i++) {
        const Tensor *t = &j->b.tensor[i];
        bool output = sig->args.data[i].role == ARG_OUTPUT, scalar = !sig->args.data[i].rank;
        int64_t n = scalar ? 1 : t->count;
        double *x = ARENA_ARRAY(a, double, n + 1);
        int32_t *whole = ARENA_ARRAY(a, int32_t, n + 1);
        for (int64_t k = 0; k < n; k++) {
            state = state * 1664525u + 1013904223u;
            double v = scalar ? j->b.scalar[i] : tensor_get(t, k);
            x[k] = output ? (double)(state >> 8) / (1 << 23) - 1 : scalar ? (double)(float)v : v;
            if (!output && dtype_reads(sig->args.data[i].dtype) != EX_F32) whole[k] = (int32_t)v;
        }
        const unsigned char *open = output ? oracle_open(&j->x, &sig->args.data[i]) : NULL;
        for (int64_t k = 0; open && k < n; k++)
            if (open[k]) x[k] = 0;
        if (output)
            come[outputs++] = x;
        else
            in[i] = dtype_reads(sig->args.data[i].dtype) == EX_F32 ? (const void *)x : whole;
    }
    *run = (RefRun){.variant = j->c.variants.data[0],
                    .sizes = j->b.size,
                    .q = in[0],
                    .k = in[1],
                    .v = in[2],
                    .inputs = in + sig_operands(sig)};
    return (RefGrad){.run = run, .d_o = come[0], .demits = come + 1};
}

// Asked once.
static bool hangs_on_kink(const Job *j, Oracle *x, int64_t row) {
    OracleAsk ask = {.what = ORACLE_OPEN,
                     .kinks = true,
                     .dot_error = oracle_dot_error(j->d->dtype, false, j->b.sig->D)};
    bool good = x->out || oracle_run(x, j->c.variants.data[0], &j->b, &ask) == STATUS_DONE;
    return good && x->open.row[row];
}

// Some rows, but for those that hang on an open decision. Of what has a derivation.
static bool backward(Job *j) {
    Variant *v = j->c.variants.data[0];
    RowProgram *row = j->c.rows.data[0];
    if (row->v_in_k || !row_is_plain(row)) return true;
    for (int i = 0; i < v->inputs.n; i++)
        v->inputs.data[i].grad = row->inputs.data[i].grad =
            dtype_reads(v->inputs.data[i].dtype) == EX_F32;
    const Backward *b = pass_backward(j->c.arena, row, NULL);
    RefRun run;
    RefGrad g = gradients(j, &run);
    int64_t rows = (int64_t)j->b.size[SIZE_B] * j->b.size[SIZE_HQ] * j->b.size[SIZE_SQ];
    Oracle kinks = {0};
    bool good = true;
    for (int64_t r = 0; r < rows && good; r += 1 + rows / BACKWARD_ROWS) {
        double d = j->x.open.row[r] ? 0 : gradient_distance(b, &g, r, false);
        good = !(d > 1e-3) || hangs_on_kink(j, &kinks, r);
        if (!good && j->d->log) fprintf(j->d->log, "  backward: row %d is off by %g\n", (int)r, d);
    }
    oracle_free(&kinks);
    return good;
}

// ---- interpreted

static double **tensors_of(const Job *j, const TileProgram *p, const int32_t *size) {
    double **x = ARENA_ARRAY(j->c.arena, double *, p->tensors.n);
    for (int i = 0; i < p->tensors.n; i++) {
        const TileTensor *t = &p->tensors.data[i];
        int arg = sig_arg(j->b.sig, t->name);
        int64_t n = tile_tensor_elements(t, size);
        x[i] = ARENA_ARRAY(j->c.arena, double, n + 1);
        if (arg < 0 || t->role == TENSOR_WORK || t->rank == 0) continue;
        bool output = j->b.sig->args.data[arg].role == ARG_OUTPUT;
        for (int64_t k = 0; k < n; k++) x[i][k] = output ? NAN : tensor_get(&j->b.tensor[arg], k);
    }
    return x;
}

static bool interpret(Job *j, const TileProgram *p, const char *what) {
    Arena *a = j->c.arena;
    int32_t *size = ARENA_ARRAY(a, int32_t, p->sizes.n + 1);
    memcpy(size, j->b.size, sizeof *size * (size_t)j->b.sig->sizes.n);
    tile_eval_sizes(p, size, 2);
    TileData data = {tensors_of(j, p, size), size, j->b.scalar + sig_operands(j->b.sig), 2};
    Diags diags = diag_list(a);
    bool good = tile_verify(p, &diags) && tile_eval(p, &data, true, &diags);
    if (!good && j->d->log) diag_print(&diags, j->d->log);
    for (int i = 0; i < p->tensors.n && good; i++) {
        const TileTensor *t = &p->tensors.data[i];
        if (!tile_is_result(p, t)) continue;
        good = agrees(j, what, sig_arg(j->b.sig, t->name), data.tensor[i]);
    }
    return good;
}

static bool algorithm(Job *j) {
    Compile *c = &j->c;
    if (!compile_algorithm(c)) return false;
    const TileProgram *p = c->tiles.data[0];
    c->tiles.n = 0;
    return interpret(j, p, "algorithm");
}

// ---- run

// What launches of several shapes share.
typedef enum Opened { UNOPENED, OPENED, REFUSED, BROKEN } Opened;
typedef struct Kernels {
    Opened is;
    Compile c;
    Launch l;
} Kernels;
struct DifferKernels {
    Kernels forward, gradients, parts;
};

DifferKernels *differ_kernels(void) { return calloc(1, sizeof(DifferKernels)); }

static void shut(Kernels *k) {
    launch_close(&k->l);
    if (k->is != UNOPENED) compile_close(&k->c);
    *k = (Kernels){0};
}

void differ_forget(DifferKernels *k) {
    shut(&k->forward), shut(&k->gradients), shut(&k->parts);
    free(k);
}

static Opened open_forward(const Job *j, Kernels *k) {
    Options o = {.device = DEVICE_CPU};
    bool good = open_compile(j, &k->c, TARGET_HOST) &&
                launch_open_source(&k->l, k->c.arena, &k->c, &o) == STATUS_DONE;
    if (j->d->log && k->c.diags.errors) diag_print(&k->c.diags, j->d->log);
    return good ? OPENED : BROKEN;
}

// Of the launch: outputs are what the reference says.
static bool launch_agrees(Job *j, Launch *l, const char *what) {
    bool good = launch_bind(l, &j->b) == STATUS_DONE && launch_run(l) == STATUS_DONE &&
                launch_fetch(l) == STATUS_DONE;
    for (int i = 0; i < j->b.sig->args.n && good; i++) {
        if (j->b.sig->args.data[i].role != ARG_OUTPUT) continue;
        double *x = tensor_doubles(&j->b.tensor[i]);
        good = agrees(j, what, i, x);
        free(x);
    }
    launch_unbind(l);
    return good;
}

static bool kernel(Job *j) {
    Kernels own = {0}, *k = j->d->kernels ? &j->d->kernels->forward : &own;
    if (k->is == UNOPENED) k->is = open_forward(j, k);
    bool good = k->is == OPENED && launch_agrees(j, &k->l, "kernel");
    shut(&own);
    return good;
}

// ---- the backward, run

// As `check` does.
static bool all_near(const Job *j, const Variant *v, const Binding *b, Oracle *x) {
    Slack slack = {.v = v, .step = 2 * slack_step(false), .times = 4, .ends = has_ends(b)};
    bool good = true;
    for (int i = 0; i < b->sig->args.n && good; i++) {
        Verdict is;
        if (b->sig->args.data[i].role != ARG_GRAD_OUT) continue;
        good = verdict_of(&is, &slack, b, x, i, tensor_tolerance(j->d->dtype)) == STATUS_DONE &&
               verdict_good(&is);
        if (!good && j->d->log)
            fprintf(
                j->d->log,
                "  gradients: %s is off by %g of %g, row %lld by %g of %g; %lld elements are not "
                "finite\n",
                b->sig->args.data[i].name, is.error.relative, is.most, (long long)is.row, is.off,
                is.may, (long long)is.error.wrong);
    }
    slack_free(&slack);
    return good;
}

// Opens the kernels of both phases; without gradients of inputs where those have none. REFUSED: the backward has no kernel, which
// the compiler said.
static Opened open_gradients(const Job *j, Kernels *k, bool inputs) {
    Options o = {.device = j->d->context ? j->d->device : DEVICE_CPU};
    Compile *c = &k->c;
    k->l = (Launch){.context = j->d->context};
    if (!open_compile(j, c, j->d->context ? j->d->target : TARGET_HOST)) return BROKEN;
    Variant *v = c->variants.data[0];
    for (int i = 0; i < v->inputs.n && !inputs; i++)
        c->rows.data[0]->inputs.data[i].grad = v->inputs.data[i].grad = false;
    c->options.phases = COMPILE_FWD | COMPILE_BWD;
    if (launch_open_source(&k->l, c->arena, c, &o) == STATUS_DONE) return OPENED;
    bool refused = c->diags.errors > 0 && !c->diags.internal;
    if (!refused && j->d->log) fprintf(j->d->log, "  gradients: no kernels, and no word why\n");
    if (!refused && j->d->log) diag_print(&c->diags, j->d->log);
    if (!refused || !inputs) return refused ? REFUSED : BROKEN;
    launch_close(&k->l);
    compile_close(c);
    return open_gradients(j, k, false);
}

// The binding of a signature with gradients, and what the reference says of it.
static bool gradients_wanted(const Job *j, const Compile *c, const Signature *sig, Binding *b,
                             Oracle *x) {
    const Variant *v = c->variants.data[0];
    OracleAsk ask = {.what = ORACLE_OPEN | ORACLE_WRITTEN,
                     .dot_error = oracle_dot_error(j->d->dtype, false, v->D)};
    bool bound = j->d->inputs
                     ? bind_make(b, c->arena, sig, j->d->inputs, j->d->shape) == STATUS_DONE
                     : differ_bind(b, c->arena, sig, j->d->shape, j->d->offset);
    if (!bound || oracle_run(x, v, b, &ask) != STATUS_DONE) return false;
    oracle_leave_out(x, b);
    oracle_mute(x, b);
    return oracle_gradients(x, v, b) == STATUS_DONE;
}

static bool run_gradients(const Job *j, const Compile *c, Launch *l, Binding *b, Oracle *x) {
    bool good = gradients_wanted(j, c, l->sig, b, x) && launch_bind(l, b) == STATUS_DONE &&
                launch_run(l) == STATUS_DONE && launch_fetch(l) == STATUS_DONE;
    return good && all_near(j, c->variants.data[0], b, x);
}

bool differ_gradients(const Differ *d) {
    const Job job = {.d = d}, *j = &job;
    Kernels own = {0}, *k = d->kernels ? &d->kernels->gradients : &own;
    Binding b = {0};
    Oracle x = {0};
    if (k->is == UNOPENED) k->is = open_gradients(j, k, true);
    bool good = k->is == REFUSED || (k->is == OPENED && run_gradients(j, &k->c, &k->l, &b, &x));
    launch_unbind(&k->l);
    oracle_free(&x);
    bind_free(&b);
    shut(&own);
    return good;
}

// ---- and interpreted, as it is scheduled for the target

// Of a program's tensors: what the binding has, what another program left, else nothing yet.
static double **tensors_after(const Compile *c, const TileProgram *p, const Binding *b,
                              const int32_t *size, const TileProgram *before, double **left) {
    double **x = ARENA_ARRAY(c->arena, double *, p->tensors.n);
    for (int i = 0; i < p->tensors.n; i++) {
        const TileTensor *t = &p->tensors.data[i];
        int arg = sig_arg(b->sig, t->name), from = -1;
        int64_t n = tile_tensor_elements(t, size);
        x[i] = ARENA_ARRAY(c->arena, double, n + 1);
        for (int k = 0; before && t->role != TENSOR_WORK && k < before->tensors.n; k++)
            if (!strcmp(before->tensors.data[k].name, t->name)) from = k;
        if (from >= 0 && tile_is_written(before, &before->tensors.data[from]))
            memcpy(x[i], left[from], sizeof **x * (size_t)n);
        else if (tile_is_result(p, t))
            for (int64_t k = 0; k < n; k++) x[i][k] = NAN;
        else if (arg >= 0 && t->role != TENSOR_WORK && t->rank)
            for (int64_t k = 0; k < n; k++) x[i][k] = tensor_get(&b->tensor[arg], k);
    }
    return x;
}

static double **interpret_after(Compile *c, const TileProgram *p, const Binding *b,
                                const TileProgram *before, double **left) {
    int32_t *size = ARENA_ARRAY(c->arena, int32_t, p->sizes.n + 1);
    memcpy(size, b->size, sizeof *size * (size_t)b->sig->sizes.n);
    tile_eval_sizes(p, size, 2);
    TileData data = {tensors_after(c, p, b, size, before, left), size,
                     b->scalar + sig_operands(b->sig), 2};
    bool good = tile_verify(p, &c->diags) && tile_eval(p, &data, true, &c->diags);
    return good ? data.tensor : NULL;
}

static bool interpret_phases(const Job *j, Compile *c, Binding *b, Oracle *x) {
    const Variant *v = c->variants.data[0];
    Signature *sig = sig_of_variant(c->arena, v, j->d->dtype);
    sig_add_gradients(c->arena, sig, v);
    if (!gradients_wanted(j, c, sig, b, x)) return false;
    const TileProgram *forward = c->tiles.data[0], *p = c->tiles.data[1];
    double **left = interpret_after(c, forward, b, NULL, NULL);
    double **gives = left ? interpret_after(c, p, b, forward, left) : NULL;
    for (int i = 0; i < p->tensors.n && gives; i++) {
        const TileTensor *t = &p->tensors.data[i];
        int arg = tile_is_result(p, t) ? sig_arg(sig, t->name) : -1;
        for (int64_t k = 0; arg >= 0 && k < b->tensor[arg].count; k++)
            tensor_set(&b->tensor[arg], k, gives[i][k]);
    }
    return gives && all_near(j, v, b, x);
}

static bool interpret_gradients(const Job *j, bool inputs) {
    Compile c;
    Binding b = {0};
    Oracle x = {0};
    if (!open_compile(j, &c, j->d->target)) return false;
    Variant *v = c.variants.data[0];
    for (int i = 0; i < v->inputs.n && !inputs; i++)
        c.rows.data[0]->inputs.data[i].grad = v->inputs.data[i].grad = false;
    c.options.phases = COMPILE_FWD | COMPILE_BWD;
    bool compiled = compile_tiles(&c), refused = !compiled && !c.diags.internal;
    bool good = compiled ? interpret_phases(j, &c, &b, &x) : refused;
    if (!good && j->d->log && c.diags.errors) diag_print(&c.diags, j->d->log);
    oracle_free(&x);
    bind_free(&b);
    compile_close(&c);
    return refused && inputs ? interpret_gradients(j, false) : good;
}

// ---- parts

static bool interpret_parts(Job *j, Compile *c) {
    Diags diags = diag_list(c->arena);
    if (!compile_tiles(c)) return false;
    double **out =
        parts_interpret(c->arena, c->tiles.data[0], c->tiles.data[1], &j->b, j->d->parts, &diags);
    if (!out && j->d->log) diag_print(&diags, j->d->log);
    for (int i = 0; i < j->b.sig->args.n && out; i++)
        if (j->b.sig->args.data[i].role == ARG_OUTPUT && !agrees(j, "interpreted parts", i, out[i]))
            return false;
    return out != NULL;
}

static bool says(const Diags *diags, const char *what) {
    bool found = false;
    for (const Diag *d = diags->first; d; d = d->next) found |= strstr(d->message, what) != NULL;
    return found;
}

// Several sweeps and row inputs have no parts, which the compiler says: REFUSED.
static Opened open_parts(const Job *j, Kernels *k, bool interpret) {
    Options o = {.device = j->d->context ? j->d->device : DEVICE_CPU, .parts = j->d->parts};
    k->l = (Launch){.context = j->d->context};
    bool good = open_compile(j, &k->c, interpret || j->d->context ? j->d->target : TARGET_HOST);
    k->c.options.phases = COMPILE_PART;
    if (!good) return BROKEN;
    if (!compile_tiles(&k->c)) return says(&k->c.diags, "no parts") ? REFUSED : BROKEN;
    good = interpret || launch_open_source(&k->l, k->c.arena, &k->c, &o) == STATUS_DONE;
    return good ? OPENED : BROKEN;
}

static bool in_parts(Job *j, bool interpret) {
    Kernels own = {0}, *k = j->d->kernels && !interpret ? &j->d->kernels->parts : &own;
    if (k->is == UNOPENED) k->is = open_parts(j, k, interpret);
    bool good = k->is == REFUSED ||
                (k->is == OPENED &&
                 (interpret ? interpret_parts(j, &k->c) : launch_agrees(j, &k->l, "parts")));
    if (!good && j->d->log && k->c.diags.errors) diag_print(&k->c.diags, j->d->log);
    shut(&own);
    return good;
}

bool differ_parts(const Differ *d) {
    Job j = {.d = d};
    bool good = open_compile(&j, &j.c, d->target) && bind_job(&j) && in_parts(&j, false);
    oracle_free(&j.x);
    bind_free(&j.b);
    compile_close(&j.c);
    return good;
}

static Stage stages(Job *j) {
    if (!open_compile(j, &j->c, j->d->target)) return STAGE_COMPILE;
    if (!bind_job(j)) return STAGE_BIND;
    if (j->d->interpret && !reference(j)) return STAGE_REFERENCE;
    if (j->d->interpret && !backward(j)) return STAGE_BACKWARD;
    if (j->d->interpret && !algorithm(j)) return STAGE_ALGORITHM;
    if (j->d->interpret && !compile_tiles(&j->c)) {
        if (j->d->log) diag_print(&j->c.diags, j->d->log);
        return STAGE_COMPILE;
    }
    if (j->d->interpret && !interpret(j, j->c.tiles.data[0], "after the passes"))
        return STAGE_PASSES;
    if (!kernel(j)) return STAGE_KERNEL;
    if (j->d->parts && j->d->interpret && !in_parts(j, true)) return STAGE_PARTS;
    if (j->d->parts && !in_parts(j, false)) return STAGE_PARTS;
    bool scheduled = j->d->gradients && j->d->interpret && j->d->target != TARGET_HOST;
    if (scheduled && !interpret_gradients(j, true)) return STAGE_GRADIENTS;
    return !j->d->gradients || differ_gradients(j->d) ? STAGE_NONE : STAGE_GRADIENTS;
}

Stage differ_run(const Differ *d) {
    Job j = {.d = d};
    Stage s = stages(&j);
    oracle_free(&j.x);
    bind_free(&j.b);
    compile_close(&j.c);
    return s;
}
