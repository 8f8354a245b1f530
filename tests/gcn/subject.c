// subject.c: see subject.h.
#include "tests/gcn/subject.h"
#include "tests/support/differ.h"
#include "tools/oracle.h"
#include <stdlib.h>
#include <string.h>

bool subject_open(Subject *s, const CompileOptions *o, FILE *log) {
    *s = (Subject){0};
    bool good = compile_open(&s->c, o) == FE_OK && compile_streams(&s->c) && compile_tiles(&s->c) &&
                compile_emit(&s->c, CG_OBJECT, &s->code, &s->bytes);
    if (!good) {
        diag_print(&s->c.diags, log);
        return false;
    }
    s->l = (Launch){.context = attn_create(), .device = {ATTN_HIP, 0}, .dtype = o->dtype};
    s->l.own_context = true;
    Signature *sig = sig_of_batch(s->c.arena, s->c.variants.data[0], o->dtype, o->batch, o->page);
    sig_set_kv(sig, o->kv);
    s->l.sig = sig;
    s->device = s->l.context ? gcn_device(s->l.context) : NULL;
    return s->device != NULL;
}

void subject_close(Subject *s) {
    launch_close(&s->l);
    free(s->code);
    compile_close(&s->c);
}

bool subject_load(Subject *s, const GcnEdit *edit, Report *r) {
    attn_error e;
    if (s->l.artifact) attn_close(s->l.artifact);
    s->l.artifact = NULL;
    gcn_device_edit(s->device, edit);
    *r = (Report){OUTCOME_RIGHT, ""};
    if (!attn_open(s->l.context, s->code, s->bytes, s->l.device, &s->l.artifact, &e)) return true;
    r->outcome = OUTCOME_REFUSED;
    snprintf(r->text, sizeof r->text, "%s", e.message);
    return false;
}

bool trial_open(Trial *t, Subject *s, const char *shape, const char *offset) {
    *t = (Trial){0};
    if (!differ_bind(&t->b, s->c.arena, s->l.sig, shape, offset)) return false;
    OracleAsk ask = {.what = ORACLE_OPEN | ORACLE_WRITTEN,
                     .dot_error = oracle_dot_error(s->l.dtype, false, s->l.sig->D)};
    return oracle_run(&t->x, s->c.variants.data[0], &t->b, &ask) == STATUS_DONE;
}

void trial_close(Trial *t) {
    oracle_free(&t->x);
    bind_free(&t->b);
}

static void poison(Binding *b) {
    for (int i = 0; i < b->sig->args.n; i++) {
        Tensor *x = &b->tensor[i];
        if (b->sig->args.data[i].role == ARG_OUTPUT)
            memset(x->data, 0xff, (size_t)x->count * (size_t)dtype_bytes(x->dtype));
    }
}

static void compare(Trial *t, const Variant *v, Dtype dtype, Report *r) {
    for (int i = 0; i < t->b.sig->args.n && r->outcome == OUTCOME_RIGHT; i++) {
        if (t->b.sig->args.data[i].role != ARG_OUTPUT) continue;
        double *x = tensor_doubles(&t->b.tensor[i]);
        Agreement a = agree_output(&t->x, v, &t->b, i, x, dtype);
        free(x);
        if (agree_good(&a)) continue;
        r->outcome = OUTCOME_WRONG;
        agree_describe(&a, t->b.sig->args.data[i].name, r->text, sizeof r->text);
    }
}

Report trial_run(Trial *t, Subject *s, uint64_t seed) {
    Report r = {OUTCOME_RIGHT, ""};
    attn_error e;
    poison(&t->b);
    gcn_device_seed(s->device, seed);
    if (launch_bind(&s->l, &t->b) != STATUS_DONE) {
        r.outcome = OUTCOME_REFUSED;
        snprintf(r.text, sizeof r.text, "the runtime refuses the launch");
    } else if (attn_launch_prepared(s->l.prepared, NULL, &e)) {
        r.outcome = e.status == ATTN_ERROR_DEVICE ? OUTCOME_FAULT : OUTCOME_REFUSED;
        snprintf(r.text, sizeof r.text, "%s", e.message);
    } else {
        launch_fetch(&s->l);
        compare(t, s->c.variants.data[0], s->l.dtype, &r);
    }
    launch_unbind(&s->l);
    return r;
}
