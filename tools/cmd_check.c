// cmd_check.c: `attnc check`: the kernel's outputs against the naive float64 evaluation of the same
// inputs, rounded as the kernel sees them. Over the bound, or not finite where the reference is:
// exit status 1.
#include "cmd.h"
#include "oracle.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// The usual reason: a key that weighs nothing is still multiplied where its tile is visited.
static void explain_wrong(const Binding *b) {
    const Tensor *v = &b->tensor[sig_arg(b->sig, "v")];
    int64_t bad = 0;
    for (int64_t i = 0; i < v->count; i++) bad += !isfinite(tensor_get(v, i));
    if (bad)
        cmd_note("%lld elements of v are not finite: v must be finite wherever a kernel reads it, "
                 "also in masked keys of a tile that is visited (0 * inf is NaN)",
                 (long long)bad);
}

static Status compare(const Binding *b, double *const *reference, Dtype dtype) {
    double bound = tensor_tolerance(dtype);
    bool good = true, wrong = false;
    char sizes[512];
    printf("%s, %s, %s\n", b->sig->name, dtype_name(dtype), bind_describe(b, sizes, sizeof sizes));
    for (int i = 0; i < b->sig->args.n; i++) {
        if (b->sig->args.data[i].role != ARG_OUTPUT) continue;
        Error e = cmd_error(&b->tensor[i], reference[i]);
        bool fits = e.relative <= bound && !e.wrong;
        printf("  %-12s relative error %.3g (bound %.3g), largest difference %.3g: ",
               b->sig->args.data[i].name, e.relative, bound, e.largest);
        if (e.wrong)
            printf("WRONG in %lld elements, where one of kernel and reference is not finite\n",
                   (long long)e.wrong);
        else
            printf("%s\n", fits ? "good" : "OVER THE BOUND");
        good = good && fits;
        wrong = wrong || e.wrong;
    }
    if (wrong) explain_wrong(b);
    return good ? STATUS_DONE : STATUS_INPUT;
}

static Status check(Compile *c, const Options *o) {
    Launch l = {0};
    Binding b = {0};
    RefOutside outside = {0};
    Status s = launch_open_source(&l, c->arena, c, o);
    double **reference = l.sig ? ARENA_ARRAY(c->arena, double *, l.sig->args.n) : NULL;
    if (s == STATUS_DONE) s = bind_make(&b, c->arena, l.sig, o, cmd_shape(o, c->arena));
    if (s == STATUS_DONE) s = launch_bind(&l, &b);
    if (s == STATUS_DONE) s = launch_run(&l);
    if (s == STATUS_DONE) s = launch_fetch(&l);
    if (s == STATUS_DONE)
        s = oracle_run(c->variants.data[0], &b, reference, o->debug ? &outside : NULL);
    oracle_warn(&c->diags, c->variants.data[0], &outside);
    diag_print(&c->diags, stderr);
    if (s == STATUS_DONE) s = compare(&b, reference, l.dtype);
    if (reference) oracle_free(&b, reference);
    launch_close(&l);
    bind_free(&b);
    return s;
}

Status cmd_check(const Options *o) {
    Compile c;
    Status s = cmd_open(&c, o, o->files.data[0], cmd_device_target(o), cmd_device_dtype(o));
    if (s == STATUS_DONE) s = cmd_only(&c, o);
    if (s == STATUS_DONE) s = check(&c, o);
    compile_close(&c);
    return s;
}
