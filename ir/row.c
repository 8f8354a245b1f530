// row.c: the row program as text.
//
//     row softmax_attention D=64 Dv=64
//       input bias: f32[H, Sk] grad
//       score = (dot * 0.125)
//       s = score                          (modify folded in)
//       mask = (kv_idx <= q_idx)
//       m = rowmax(s)
//       weight = exp((s - m))
//       emit lse = ...
//       output = o
#include "ir/row.h"

#include "ir/expr_ops.h"

#include <string.h>

static const char *name_of(void *ctx, ExSym sym, int index) {
    const RowProgram *p = ctx;
    switch ((int)sym) {
    case SYM_SIZE: return index < p->sizes.n ? p->sizes.data[index] : NULL;
    case SYM_SCALAR: return index < p->inputs.n ? p->inputs.data[index].name : NULL;
    case SYM_R: return index < p->reduces.n ? p->reduces.data[index].name : NULL;
    default: return NULL;
    }
}

static const char *input_of(void *ctx, int input) {
    const RowProgram *p = ctx;
    return input < p->inputs.n ? p->inputs.data[input].name : NULL;
}

static int find_input(void *ctx, const char *name, ExType *type) {
    const RowProgram *p = ctx;
    for (int i = 0; i < p->inputs.n; i++)
        if (!strcmp(p->inputs.data[i].name, name)) {
            *type = dtype_reads(p->inputs.data[i].dtype);
            return i;
        }
    return -1;
}

static bool found(ExSym s, int i, ExType t, ExSym *sym, int *index, ExType *type) {
    *sym = s;
    *index = i;
    *type = t;
    return true;
}

static bool find(void *ctx, const char *name, ExSym *sym, int *index, ExType *type) {
    const RowProgram *p = ctx;
    for (int i = 0; i < p->reduces.n; i++)
        if (!strcmp(p->reduces.data[i].name, name))
            return found(SYM_R, i, EX_F32, sym, index, type);
    for (int i = 0; i < p->sizes.n; i++)
        if (!strcmp(p->sizes.data[i], name)) return found(SYM_SIZE, i, EX_I32, sym, index, type);
    ExType reads;
    int i = find_input(ctx, name, &reads);
    if (i < 0 || p->inputs.data[i].rank) return false;
    return found(SYM_SCALAR, i, reads, sym, index, type);
}

ExNames row_names(const RowProgram *p) {
    return (ExNames){name_of, input_of, find, find_input, (void *)p};
}

static void line(Text *out, const char *what, const Ex *e, const ExNames *names) {
    text_printf(out, "  %s = ", what);
    ex_print(out, e, names);
    text_puts(out, "\n");
}

void row_print_input(Text *out, const RowInput *in, const ExNames *names) {
    text_printf(out, "  input %s: %s", in->name, dtype_name(in->dtype));
    for (int i = 0; i < in->rank; i++) {
        text_puts(out, i ? ", " : "[");
        ex_print(out, in->extent[i], names);
    }
    if (in->rank) text_puts(out, "]");
    text_puts(out, in->grad ? " grad" : "");
    text_puts(out, in->bare_q ? " at bare q_idx\n" : "\n");
}

void row_print(Text *out, const RowProgram *p) {
    ExNames names = row_names(p);
    text_printf(out, "row %s D=%d Dv=%d%s\n", p->name, p->D, p->Dv, p->v_in_k ? " v in k" : "");
    for (int i = 0; i < p->inputs.n; i++) row_print_input(out, &p->inputs.data[i], &names);
    line(out, "score", p->score, &names);
    line(out, "s", p->modified, &names);
    line(out, "mask", p->mask, &names);
    for (int i = 0; i < p->reduces.n; i++) {
        const RowReduce *r = &p->reduces.data[i];
        text_printf(out, "  %s = %s(", r->name, ex_op_name(r->op));
        ex_print(out, r->f, &names);
        text_puts(out, ")\n");
    }
    line(out, "weight", p->weight, &names);
    for (int i = 0; i < p->emits.n; i++)
        line(out, arena_printf(out->arena, "emit %s", p->emits.data[i].name),
             p->emits.data[i].value, &names);
    line(out, "output", p->output, &names);
}
