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

// ---- rows

static void put_row(Text *out, const RowProgram *p, RowSide side, int row) {
    const RowOperand *r = &p->rows[side].data[row];
    const RowInput *in = r->input < 0 ? NULL : &p->inputs.data[r->input];
    int all = in ? in->extent[in->rank - 1]->i : p->D;
    text_puts(out, in ? in->name : side == ROW_QUERIES ? "q" : "k");
    if (r->width != all) text_printf(out, "[%d:%d]", r->from, r->from + r->width);
}

const char *row_operand_name(const RowProgram *p, RowSide side, int row) {
    Text t = text_new(p->arena);
    put_row(&t, p, side, row);
    return t.s;
}

const char *row_product_name(const RowProgram *p, ExSym sym, int index) {
    Text t = text_new(p->arena);
    if (sym == SYM_SQQ || sym == SYM_SQK) {
        text_puts(&t, "sqnorm(");
        put_row(&t, p, sym == SYM_SQQ ? ROW_QUERIES : ROW_KEYS, index);
        text_puts(&t, ")");
        return t.s;
    }
    if (sym != SYM_DOT) return NULL;
    const RowDot *d = &p->dots.data[index];
    text_puts(&t, d->pairs.n > 1 ? "(" : "");
    for (int i = 0; i < d->pairs.n; i++) {
        text_puts(&t, i ? " + dot(" : "dot(");
        put_row(&t, p, ROW_QUERIES, d->pairs.data[i].row[ROW_QUERIES]);
        text_puts(&t, ", ");
        put_row(&t, p, ROW_KEYS, d->pairs.data[i].row[ROW_KEYS]);
        text_puts(&t, ")");
    }
    text_puts(&t, d->pairs.n > 1 ? ")" : "");
    return t.s;
}

void row_whole(RowProgram *p) {
    RowOperand all = {-1, 0, p->D};
    RowDot dot = {0};
    RowPair pair = {{0, 0}};
    VEC_PUSH(p->arena, &dot.pairs, pair);
    VEC_PUSH(p->arena, &p->dots, dot);
    for (int side = 0; side < ROW_SIDES; side++) VEC_PUSH(p->arena, &p->rows[side], all);
}

const Ex *row_factor(const RowProgram *p, const int *row) {
    const Ex *factor = NULL, *d = ex_symbol(p->pool, SYM_D_IDX);
    for (int side = 0; side < ROW_SIDES; side++) {
        const RowOperand *r = &p->rows[side].data[row[side]];
        const Ex *channel = p->channel[side];
        if (!channel || r->input >= 0) continue;
        if (r->from)
            channel = ex_subst(p->pool, channel, SYM_D_IDX, 0,
                               ex_2(p->pool, EX_ADD, d, ex_i32(p->pool, r->from)));
        factor = factor ? ex_2(p->pool, EX_MUL, factor, channel) : channel;
    }
    return factor;
}

bool row_is_plain(const RowProgram *p) {
    return !p->changes && p->dots.n < 2 && p->rows[ROW_QUERIES].n < 2 && p->rows[ROW_KEYS].n < 2;
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
    for (int i = 1; i < p->dots.n; i++)
        if (ex_uses(p->modified, SYM_DOT, i))
            text_printf(out, "  dot%d = %s\n", i, row_product_name(p, SYM_DOT, i));
    for (int i = 1; i < p->rows[ROW_QUERIES].n; i++)
        if (ex_uses(p->modified, SYM_SQQ, i))
            text_printf(out, "  sqnorm_q%d = %s\n", i, row_product_name(p, SYM_SQQ, i));
    for (int i = 1; i < p->rows[ROW_KEYS].n; i++)
        if (ex_uses(p->modified, SYM_SQK, i))
            text_printf(out, "  sqnorm_k%d = %s\n", i, row_product_name(p, SYM_SQK, i));
    if (p->channel[ROW_QUERIES]) line(out, "q's channels times", p->channel[ROW_QUERIES], &names);
    if (p->channel[ROW_KEYS]) line(out, "k's channels times", p->channel[ROW_KEYS], &names);
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
