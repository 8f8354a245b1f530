// oracle.c: see oracle.h: a binding as the reference reads it.
#include "oracle.h"
#include <stdlib.h>

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

Status oracle_run(const Variant *v, const Binding *b, double **out, RefOutside *outside,
                  int64_t *pairs) {
    int n = b->sig->args.n, o = sig_arg(b->sig, "o"), state0 = sig_arg(b->sig, "state0");
    void **in = calloc((size_t)n + 1, sizeof *in);
    bool room = in != NULL;
    for (int i = 0; i < n && room; i++) {
        bool output = b->sig->args.data[i].role == ARG_OUTPUT;
        void *p = output ? calloc((size_t)b->tensor[i].count + 1, sizeof(double)) : plain(b, i);
        if (output)
            out[i] = p;
        else
            in[i] = p;
        room = p != NULL;
    }
    const char *bad = NULL;
    if (room) {
        RefRun r = {.variant = v,
                    .sizes = b->size,
                    .q = in[0],
                    .k = in[1],
                    .v = in[2],
                    .inputs = (const void *const *)in + 3,
                    .o = out[o],
                    .emits = out + o + 1,
                    .pairs = pairs};
        if (b->sig->recurrence) {
            r.emits = NULL;
            r.state0 = in[state0];
            r.state = out[o + 1];
        }
        r.outside = outside;
        bad = ref_check(&r);
        if (!bad) ref_run(&r);
    }
    for (int i = 0; in && i < n; i++) free(in[i]);
    free(in);
    if (!room) return cmd_fail(STATUS_SYSTEM, "out of memory");
    return bad ? cmd_fail(STATUS_INPUT, "%s", bad) : STATUS_DONE;
}

void oracle_free(const Binding *b, double **out) {
    for (int i = 0; b->sig && i < b->sig->args.n; i++) free(out[i]);
}

void oracle_warn(const Diags *files, const Variant *v, const RefOutside *x) {
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
