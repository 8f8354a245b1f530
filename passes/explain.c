// explain.c: the derivation as readable mathematics (attnc explain).
//
// In: a streaming form. Out: the row program; each sweep with its states, shifts and how they are
// rescaled; the deferred factor and the empty row; the rule that merges two parts. A primed name is
// the value after a tile was added, the bare one before it; m~ is a running state of which the
// finished m is a function.
#include "passes/derive.h"

#include "ir/expr_ops.h"

#include <math.h>

typedef struct Names {
    const Stream *s;
    ExNames row;
    const char *mark; // after the names of states and shifts: "'", "_a" or nothing
} Names;

// Whether a reduction's finished value is the state itself, so that one name serves both.
static const char *state_tail(const Stream *s, int i) {
    for (int k = 0; k < s->finished.n; k++) {
        const Ex *f = s->finished.data[k];
        if (f->op == EX_SYM && f->sym == SYM_STATE && f->index == i) return "";
    }
    return i == s->added_count ? "" : "~";
}

static const char *state_name(const Stream *s, int i, const char *mark) {
    return arena_printf(s->row->arena, "%s%s%s", s->states.data[i].name, state_tail(s, i), mark);
}

static const char *shift_name(const Stream *s, int i, const char *mark) {
    if (s->shifts.n == 1) return arena_printf(s->row->arena, "A%s", mark);
    return arena_printf(s->row->arena, "A%d%s", i, mark);
}

static const char *name_of(void *ctx, ExSym sym, int index) {
    const Names *n = ctx;
    switch ((int)sym) {
    case SYM_STATE: return state_name(n->s, index, n->mark);
    case SYM_SHIFT: return shift_name(n->s, index, n->mark);
    case SYM_DOT: return "dot(q, k)";
    case SYM_SQQ: return "sqnorm(q)";
    case SYM_SQK: return "sqnorm(k)";
    case SYM_SQO: return "sqnorm(o)";
    default: return n->row.name(n->row.ctx, sym, index);
    }
}

static const char *input_of(void *ctx, int input) {
    const Names *n = ctx;
    return n->row.input(n->row.ctx, input);
}

static void put(Text *out, const Stream *s, const Ex *e, const char *mark) {
    Names n = {s, row_names(s->row), mark};
    ExNames names = {name_of, input_of, NULL, NULL, &n};
    ex_print_pretty(out, e, &names);
}

// In a product: with parentheses around a sum; nothing for 1.
static void put_factor(Text *out, const Stream *s, const Ex *e, const char *mark,
                       const char *then) {
    if (ex_is_f32(e, 1)) return;
    bool plain = e->op == EX_SYM || e->op == EX_CONST || ex_ops[e->op].fix == X_CALL;
    plain &= e->op != EX_FMA && e->op != EX_SELECT && e->op != EX_RCP && e->op != EX_NEG;
    text_puts(out, plain ? "" : "(");
    put(out, s, e, mark);
    text_puts(out, plain ? "" : ")");
    text_puts(out, then);
}

static void equation(Text *out, const Stream *s, const char *what, const Ex *e, const char *mark) {
    text_printf(out, "    %s = ", what);
    put(out, s, e, mark);
    text_puts(out, "\n");
}

static const char *over_keys(ExOp op) {
    return op == EX_ROWMAX ? "max" : op == EX_ROWMIN ? "min" : "sum";
}

static void print_row(Text *out, const Stream *s) {
    const RowProgram *p = s->row;
    text_printf(out, "attention %s, for one query\n", p->name);
    equation(out, s, "s", p->modified, "");
    if (p->mask->op != EX_CONST) {
        text_puts(out, "    over keys where ");
        put(out, s, p->mask, "");
        text_puts(out, "\n");
    }
    for (int k = 0; k < p->reduces.n; k++) {
        const RowReduce *r = &p->reduces.data[k];
        text_printf(out, "    %s = %s over keys of ", r->name, over_keys(r->op));
        put(out, s, r->f, "");
        text_puts(out, "\n");
    }
    equation(out, s, "w", p->weight, "");
    for (int i = 0; i < p->emits.n; i++)
        equation(out, s, p->emits.data[i].name, p->emits.data[i].value, "");
    text_puts(out, "    o = sum over keys of w * v");
    if (!(p->output->op == EX_SYM && p->output->sym == SYM_O)) {
        text_puts(out, ", then ");
        put(out, s, p->output, "");
    }
    text_puts(out, "\n");
}

// Of the states of this sweep, and of the accumulator in the last.
static bool shift_serves(const Stream *s, int shift, int sweep) {
    if (sweep == s->nsweeps - 1 && s->shift == shift) return true;
    for (int i = 0; i < s->states.n; i++)
        if (s->states.data[i].sweep == sweep && s->states.data[i].shift == shift) return true;
    return false;
}

static const char *times_rescale(const Stream *s, int shift, const char *now, const char *was) {
    if (shift < 0) return "";
    return arena_printf(s->row->arena, " * exp2(%s - %s)", shift_name(s, shift, now),
                        shift_name(s, shift, was));
}

// What is reduced over the keys that exist: without the selection that keeps masked ones out.
static const Ex *unguarded(const Ex *e) {
    if (e->op != EX_SELECT || e->args[0]->op != EX_EQ || e->args[1]->op != EX_CONST) return e;
    const Ex *a = e->args[0]->args[0];
    bool masked = a->op == EX_SYM && a->sym == SYM_S && ex_is_f32(e->args[0]->args[1], -INFINITY);
    return masked ? e->args[2] : e;
}

static bool extremum(const StreamState *st) { return st->op != EX_ROWSUM; }

static void print_state(Text *out, const Stream *s, int i) {
    const StreamState *st = &s->states.data[i];
    const char *was = state_name(s, i, "");
    if (extremum(st))
        text_printf(out, "    %s' = %s(%s, %s ", was, over_keys(st->op), was, over_keys(st->op));
    else
        text_printf(out, "    %s' = %s%s + sum ", was, was, times_rescale(s, st->shift, "'", ""));
    put(out, s, unguarded(st->elem), "'");
    text_puts(out, extremum(st) ? ")\n" : "\n");
}

static void print_sweep(Text *out, const Stream *s, int sweep) {
    if (s->nsweeps == 1)
        text_puts(out, "\none sweep over the keys; with every tile\n");
    else
        text_printf(out, "\nsweep %d of %d over the keys; with every tile\n", sweep + 1,
                    s->nsweeps);
    for (int pass = 0; pass < 2; pass++) { // extrema, the shifts that stand on them, sums
        for (int i = 0; i < s->states.n; i++)
            if (s->states.data[i].sweep == sweep && extremum(&s->states.data[i]) == !pass)
                print_state(out, s, i);
        for (int k = 0; !pass && k < s->shifts.n; k++) {
            if (!shift_serves(s, k, sweep)) continue;
            text_printf(out, "    %s = ", shift_name(s, k, "'"));
            put(out, s, s->shifts.data[k], "'");
            text_puts(out, "    (0 while the row has no key)\n");
        }
    }
    if (sweep < s->nsweeps - 1) return;
    text_printf(out, "    acc' = acc%s + sum ", times_rescale(s, s->shift, "'", ""));
    put_factor(out, s, unguarded(s->elem), "'", " * ");
    text_puts(out, "v\n");
}

static void print_finish(Text *out, const Stream *s) {
    text_puts(out, "\nat the end\n");
    for (int k = 0; k < s->finished.n; k++) {
        const Ex *f = s->finished.data[k];
        bool same = f->op == EX_SYM && f->sym == SYM_STATE &&
                    s->states.data[f->index].name == s->row->reduces.data[k].name;
        if (!same && f->op != EX_CONST) equation(out, s, s->row->reduces.data[k].name, f, "");
    }
    text_puts(out, "    o = acc");
    bool divides = s->factor && s->factor->op == EX_RCP;
    if (s->factor) {
        text_puts(out, divides ? " / " : " * ");
        put_factor(out, s, divides ? s->factor->args[0] : s->factor, "", "");
    }
    text_puts(out, "\n");
    if (!s->empty) {
        text_puts(out, "    a row without a key gives 0 by itself\n");
        return;
    }
    text_puts(out, "    a row without a key, where ");
    put(out, s, s->empty, "");
    text_puts(out, ", gives 0\n");
}

static void print_merged(Text *out, const Stream *s, const char *name, int shift) {
    text_printf(out, "    %s = %s_a%s + %s_b%s\n", name, name, times_rescale(s, shift, "", "_a"),
                name, times_rescale(s, shift, "", "_b"));
}

static void print_combine(Text *out, const Stream *s) {
    text_puts(out, "\nmerging two parts a and b of the keys, in any grouping");
    text_puts(out, s->nsweeps > 1 ? " (the states of one sweep)\n" : "\n");
    for (int i = 0; i < s->states.n; i++) {
        const StreamState *st = &s->states.data[i];
        const char *name = state_name(s, i, "");
        if (extremum(st))
            text_printf(out, "    %s = %s(%s_a, %s_b)\n", name, over_keys(st->op), name, name);
    }
    for (int i = 0; i < s->states.n; i++)
        if (!extremum(&s->states.data[i]))
            print_merged(out, s, state_name(s, i, ""), s->states.data[i].shift);
    print_merged(out, s, "acc", s->shift);
    if (s->shifts.n)
        text_puts(out, "    with A of the merged states; a part without a key is the identity\n");
    else
        text_puts(out, "    a part without a key is the identity\n");
}

static void print_blocking(Text *out, const Stream *s) {
    if (s->blocking < 0) return;
    text_printf(out,
                "\nno single-pass form: '%s' must be finished before what needs it can begin\n",
                s->row->reduces.data[s->blocking].name);
}

void pass_explain(Text *out, const Stream *s) {
    print_row(out, s);
    print_blocking(out, s);
    for (int t = 0; t < s->nsweeps; t++) print_sweep(out, s, t);
    print_finish(out, s);
    print_combine(out, s);
    text_puts(out, "\nthe backward is not derived by this version\n");
}
