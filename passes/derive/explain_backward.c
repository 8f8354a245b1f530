// explain_backward.c: the derived backward as mathematics (explain.h).
//
// In: a streaming form. Out: a section with the row scalars that the forward saves and the backward makes, the weight, and the
// gradients of a pair; what they are summed up to.
#include "passes/derive/backward.h"
#include "passes/derive/explain_say.h"

#include <math.h>

static const Ex *times(Explain *x, const Ex *a, const char *b) {
    return ex_2(x->pool, EX_MUL, a, say_own(x, b));
}

// Names that no other number has.
static Backward *with_names(Explain *x, const Backward *b) {
    Backward *out = ARENA_NEW(x->arena, Backward);
    *out = *b;
    out->rows.data = ARENA_ARRAY(x->arena, BackRow, b->rows.n + 1);
    for (int i = 0; i < b->rows.n; i++) {
        int same = 0, before = 0;
        const BackRow *r = &b->rows.data[i];
        for (int k = 0; k < b->rows.n; k++) {
            same += b->rows.data[k].name == r->name;
            before += k < i && b->rows.data[k].name == r->name;
        }
        out->rows.data[i] = *r;
        bool of_forward = r->made == BACK_SAVED && r->value->op == EX_SYM && r->value->sym == SYM_R;
        if (of_forward) continue;
        const char *name = same > 1 ? arena_printf(x->arena, "%s%d", r->name, before + 1) : r->name;
        out->rows.data[i].name = say_fresh(b->row, name);
    }
    return out;
}

enum { MOST_WRITTEN = 2000 }; // symbols and operations, of one formula

// How long a formula is as it is written, shared parts as often as they stand there.
static double length_of(const Ex *e) {
    Arena *scratch = arena_new();
    const Ex **order;
    ExMemo known = {0};
    double all = 0;
    int n = ex_order(scratch, &e, 1, &order);
    for (int i = 0; i < n; i++) {
        double *length = ARENA_NEW(scratch, double);
        *length = 1;
        for (int k = 0; k < order[i]->nargs; k++)
            *length += *(const double *)ex_memo_get(&known, order[i]->args[k]);
        ex_memo_put(scratch, &known, order[i], length);
        all = *length; // e is the last in its order
    }
    arena_free(scratch);
    return all;
}

static bool too_long(const Backward *b) {
    double most = fmax(fmax(length_of(b->d_o), length_of(b->ds)), length_of(b->weight));
    for (int i = 0; i < b->products.n; i++) most = fmax(most, length_of(b->products.data[i].d));
    for (int i = 0; i < b->rows.n; i++) most = fmax(most, length_of(b->rows.data[i].value));
    for (int i = 0; i < b->grads.n; i++) most = fmax(most, length_of(b->grads.data[i].value));
    return most > MOST_WRITTEN;
}

static void tell_row(Explain *x, const BackRow *r) {
    static const char *const how[] = {[BACK_SAVED] = "    (saved by the forward)",
                                      [BACK_COLUMNS] = ", summed over the columns",
                                      [BACK_KEYS] = ", summed over the keys: a further sweep",
                                      [BACK_SCALAR] = NULL};
    bool itself = r->made == BACK_SAVED && r->value->op == EX_SYM;
    if (itself) { // under its own name
        say_line(x);
        say_formula(x, NULL, say_here(x, r->value));
        say_prose(x, how[BACK_SAVED]);
        return;
    }
    say_with_shared(x, say_own(x, r->name), r->value);
    if (how[r->made]) say_prose(x, how[r->made]);
}

static void tell_saved(Explain *x, const Backward *b) {
    for (int i = 0; i < b->nsaved; i++) tell_row(x, &b->rows.data[i]);
}

// do of what is aggregated, and with it dw.
static void tell_output(Explain *x, const Backward *b) {
    const char *come = "do";
    if (!ex_is_sym(b->d_o, SYM_DO, -1)) {
        come = say_fresh(b->row, "do~");
        say_with_shared(x, say_own(x, come), b->d_o);
    }
    say_equation(x, say_here(x, ex_symbol(x->pool, SYM_DW)), times(x, say_own(x, come), "v"));
    say_prose(x, ", summed over the columns");
}

static void tell_rows(Explain *x, const Backward *b) {
    bool known = false; // dw, which sums over keys need
    for (int i = b->nsaved; i < b->rows.n; i++) {
        if (b->rows.data[i].made == BACK_KEYS && !known) tell_output(x, b), known = true;
        tell_row(x, &b->rows.data[i]);
    }
    if (!known) tell_output(x, b);
}

// A row of the queries as products see it: where channels have factors they are in it.
static const char *seen(Explain *x, const RowProgram *p, const int *row) {
    const char *name = row_operand_name(p, ROW_QUERIES, row[ROW_QUERIES]);
    return row_factor(p, row) ? arena_printf(x->arena, "%s~", name) : name;
}

// The gradient of a row: of the dots that it is in, and of its squared norm.
static const Ex *gradient(Explain *x, const Backward *b, RowSide side, int row) {
    const RowProgram *p = b->row;
    const Ex *sum = NULL;
    for (int i = 0; i < p->dots.n; i++) {
        const Ex *d = back_product(b, SYM_DOT, i);
        for (int k = 0; k < p->dots.data[i].pairs.n && d; k++) {
            const int *in = p->dots.data[i].pairs.data[k].row;
            if (in[side] != row) continue;
            const Ex *f = side == ROW_QUERIES ? row_factor(p, in) : NULL,
                     *e = times(x, say_here(x, d),
                                side == ROW_QUERIES ? row_operand_name(p, ROW_KEYS, in[ROW_KEYS])
                                                    : seen(x, p, in));
            if (f) e = ex_2(x->pool, EX_MUL, e, say_here(x, f));
            sum = sum ? ex_2(x->pool, EX_ADD, sum, e) : e;
        }
    }
    const Ex *norm = back_product(b, side == ROW_QUERIES ? SYM_SQQ : SYM_SQK, row);
    if (!norm) return sum;
    norm = ex_2(x->pool, EX_MUL, ex_f32(x->pool, 2),
                times(x, say_here(x, norm), row_operand_name(p, side, row)));
    return sum ? ex_2(x->pool, EX_ADD, sum, norm) : norm;
}

static void tell_rows_of(Explain *x, const Backward *b, RowSide side) {
    const RowProgram *p = b->row;
    for (int r = 0; r < p->rows[side].n; r++) {
        const Ex *e = gradient(x, b, side, r);
        int input = p->rows[side].data[r].input;
        bool wanted = input < 0 ? e || !r : e && p->inputs.data[input].grad;
        if (!wanted) continue;
        const char *name = row_operand_name(p, side, r);
        say_equation(x, say_own(x, arena_printf(x->arena, "d%s", name)),
                     e ? e : ex_i32(x->pool, 0));
        say_prose(x, !e                 ? ": what depends on it has no slope"
                     : side == ROW_KEYS ? ", summed over the queries"
                                        : ", summed over the keys");
    }
}

static void tell_factors(Explain *x, const Backward *b) {
    const RowProgram *p = b->row;
    for (int i = 0; i < p->dots.n; i++)
        for (int k = 0; k < p->dots.data[i].pairs.n && back_product(b, SYM_DOT, i); k++) {
            const int *row = p->dots.data[i].pairs.data[k].row;
            const Ex *f = row_factor(p, row);
            if (!f) continue;
            say_equation(
                x, say_own(x, seen(x, p, row)),
                times(x, say_here(x, f), row_operand_name(p, ROW_QUERIES, row[ROW_QUERIES])));
        }
}

static void tell_operands(Explain *x, const Backward *b) {
    const char *come = ex_is_sym(b->d_o, SYM_DO, -1) ? "do" : say_fresh(b->row, "do~");
    for (int i = 0; i < b->products.n; i++) say_shared(x, b->products.data[i].d);
    tell_factors(x, b);
    tell_rows_of(x, b, ROW_QUERIES);
    tell_rows_of(x, b, ROW_KEYS);
    say_equation(x, say_own(x, "dv"), times(x, say_own(x, x->weight), come));
    say_prose(x, b->row->v_in_k ? ", summed over the queries: more of dk, whose first columns v is"
                                : ", summed over the queries");
}

// What a factor's gradient is made of: an element of a row, and what comes to its product with the factor.
static const Ex *in_channel(Explain *x, const BackGrad *g) {
    if (g->per != BACK_CHANNEL) return g->value;
    const char *q = row_operand_name(x->s->row, ROW_QUERIES, g->row);
    const Ex *e = ex_subst(x->pool, g->value, SYM_Q, g->row, say_own(x, q));
    const Ex *come = say_own(x, arena_printf(x->arena, "d%s~", q));
    return ex_subst(x->pool, e, SYM_DO, 0, come);
}

static void tell_inputs(Explain *x, const Backward *b) {
    static const char *const per[] = {" by each pair", " by each row", " by each element of o",
                                      " by each element of the query"};
    for (int i = 0; i < b->grads.n; i++) {
        const BackGrad *g = &b->grads.data[i];
        say_shared(x, in_channel(x, g));
        say_line(x);
        say_prose(x, "the gradient of ");
        say_formula(x, NULL, say_here(x, g->at));
        say_prose(x, " grows by ");
        say_formula(x, NULL, say_here(x, in_channel(x, g)));
        say_prose(x, per[g->per]);
        x->line->span = say_place_of(x, g->at);
    }
}

static void share_all(Explain *x, const Backward *b) {
    VEC(const Ex *) roots = {0};
    for (int i = 0; i < b->rows.n; i++) VEC_PUSH(x->arena, &roots, b->rows.data[i].value);
    VEC_PUSH(x->arena, &roots, b->d_o);
    VEC_PUSH(x->arena, &roots, b->ds);
    for (int i = 0; i < b->products.n; i++) {
        const BackProduct *d = &b->products.data[i];
        if (d->sym == SYM_DOT) VEC_PUSH(x->arena, &roots, d->d); // in two formulas
        VEC_PUSH(x->arena, &roots, d->d);
    }
    for (int i = 0; i < b->grads.n; i++)
        VEC_PUSH(x->arena, &roots, in_channel(x, &b->grads.data[i]));
    say_share(x, roots.data, roots.n);
}

void explain_backward(Explain *x) {
    const Stream *s = x->s;
    const Backward *b = with_names(x, pass_backward(x->arena, s->written, NULL));
    if (too_long(b)) {
        say_section(x, "backward",
                    "the backward is derived; its formulas are too long to be written");
        return;
    }
    say_section(x, "backward", "the backward, for one query; a masked key adds nothing");
    x->s = b->s;
    x->backward = b;
    share_all(x, b);
    tell_saved(x, b);
    tell_rows(x, b);
    say_equation(x, say_own(x, x->weight), say_here(x, b->weight));
    say_with_shared(x, say_here(x, ex_symbol(x->pool, SYM_DS)), b->ds);
    tell_operands(x, b);
    tell_inputs(x, b);
    x->s = s;
}
