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
    const Ex *all[] = {b->d_o, b->ds, b->d_dot, b->d_sqq, b->d_sqk, b->weight};
    double most = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]) most = fmax(most, length_of(all[i]));
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

static bool is_symbol(const Ex *e, ExSym s) { return e->op == EX_SYM && e->sym == s; }

// do of what is aggregated, and with it dw.
static void tell_output(Explain *x, const Backward *b) {
    const char *come = "do";
    if (!is_symbol(b->d_o, SYM_DO)) {
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

// Both parts of dq or dk: of the dot product, and of the squared norm.
static const Ex *gradient(Explain *x, const Ex *dot, const char *of_dot, const Ex *norm,
                          const char *of_norm) {
    const Ex *sum = dot ? times(x, say_here(x, dot), of_dot) : NULL;
    if (!norm) return sum ? sum : ex_f32(x->pool, 0);
    const Ex *more =
        ex_2(x->pool, EX_MUL, ex_f32(x->pool, 2), times(x, say_here(x, norm), of_norm));
    return sum ? ex_2(x->pool, EX_ADD, sum, more) : more;
}

static void tell_operands(Explain *x, const Backward *b) {
    const char *come = is_symbol(b->d_o, SYM_DO) ? "do" : say_fresh(b->row, "do~");
    if (b->d_dot) say_shared(x, b->d_dot);
    if (b->d_sqq) say_shared(x, b->d_sqq);
    if (b->d_sqk) say_shared(x, b->d_sqk);
    say_equation(x, say_own(x, "dq"), gradient(x, b->d_dot, "k", b->d_sqq, "q"));
    say_prose(x, ", summed over the keys");
    say_equation(x, say_own(x, "dk"), gradient(x, b->d_dot, "q", b->d_sqk, "k"));
    say_prose(x, ", summed over the queries");
    say_equation(x, say_own(x, "dv"), times(x, say_own(x, x->weight), come));
    say_prose(x, ", summed over the queries");
}

static void tell_inputs(Explain *x, const Backward *b) {
    static const char *const per[] = {" by each pair", " by each row", " by each element of o"};
    for (int i = 0; i < b->grads.n; i++) {
        const BackGrad *g = &b->grads.data[i];
        say_shared(x, g->value);
        say_line(x);
        say_prose(x, "the gradient of ");
        say_formula(x, NULL, say_here(x, g->at));
        say_prose(x, " grows by ");
        say_formula(x, NULL, say_here(x, g->value));
        say_prose(x, per[g->per]);
        x->line->span = say_place_of(x, g->at);
    }
}

static void share_all(Explain *x, const Backward *b) {
    VEC(const Ex *) roots = {0};
    const Ex *all[] = {b->d_o,   b->ds,    b->d_dot,
                       b->d_dot, b->d_sqq, b->d_sqk}; // d_dot is in two formulas
    for (int i = 0; i < b->rows.n; i++) VEC_PUSH(x->arena, &roots, b->rows.data[i].value);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]) VEC_PUSH(x->arena, &roots, all[i]);
    for (int i = 0; i < b->grads.n; i++) VEC_PUSH(x->arena, &roots, b->grads.data[i].value);
    say_share(x, roots.data, roots.n);
}

void explain_backward(Explain *x) {
    const Stream *s = x->s;
    if (!row_is_plain(s->row)) {
        say_section(x, "backward",
                    "the gradients of row inputs, of slices and through clauses of q, k and v are "
                    "not derived");
        return;
    }
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
