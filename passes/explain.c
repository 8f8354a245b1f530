// explain.c: the derivation as readable mathematics (attnc explain).
//
// In: a streaming form. Out: the row program; each sweep with its states, shifts and how they are
// rescaled; the deferred factor, emits, output and the empty row; the rule that merges two parts.
// A primed name is the value after a tile was added, the bare one before it; m~ is a running state
// of which the finished m is a function, s~ the score without its scale. What stands in more than
// one formula has a name of its own, p.
#include "passes/passes.h"

#include "ir/expr_ops.h"

#include <math.h>
#include <string.h>

enum { WORTH_A_NAME = 5, MAX_SHARED = 16 }; // nodes; names at a time

typedef struct Explain {
    Text *out;
    const Stream *s;
    ExNames row;
    const char *score; // SYM_S
    const char *mark;  // after the names of states and shifts: "'", "_a" or nothing
    const char *weight, *shift, *base, *acc; // names that are the explanation's own
    int scale;                               // SYM_RISE: of which scale, ...
    const char *now, *was;                   // ... and the marks of the bases
    VEC(const Ex *) shared;                  // named p, p2, ...
    int told;                                // how many are of formulas that are over
    bool said[MAX_SHARED];                   // of those after them
} Explain;

// ---- names

static bool is_taken(const RowProgram *p, const char *name) {
    bool taken = false;
    for (int i = 0; i < p->inputs.n; i++) taken |= !strcmp(p->inputs.data[i].name, name);
    for (int i = 0; i < p->reduces.n; i++) taken |= !strcmp(p->reduces.data[i].name, name);
    for (int i = 0; i < p->emits.n; i++) taken |= !strcmp(p->emits.data[i].name, name);
    for (int i = 0; i < p->sizes.n; i++) taken |= !strcmp(p->sizes.data[i], name);
    return taken;
}

// The name, with as many lines under it as make it the explanation's own.
static const char *fresh(const RowProgram *p, const char *name) {
    while (is_taken(p, name)) name = arena_printf(p->arena, "%s_", name);
    return name;
}

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

static const char *shift_name(const Explain *x, int i, const char *mark) {
    Arena *a = x->s->row->arena;
    if (x->s->shifts.n == 1) return arena_printf(a, "%s%s", x->shift, mark);
    return arena_printf(a, "%s%d%s", x->shift, i, mark);
}

static const char *base_name(const Explain *x, int scale, int i, const char *mark) {
    const Stream *s = x->s;
    Arena *a = s->row->arena;
    int number = i, all = 0;
    for (int k = 0; k < s->scales.n; k++) {
        if (k < scale) number += s->scales.data[k].n;
        all += s->scales.data[k].n;
    }
    if (all == 1) return arena_printf(a, "%s%s", x->base, mark);
    return arena_printf(a, "%s%d%s", x->base, number, mark);
}

static const char *rise_name(const Explain *x, int i) {
    return arena_printf(x->s->row->arena, "(%s / %s)", base_name(x, x->scale, i, x->now),
                        base_name(x, x->scale, i, x->was));
}

static const char *shared_name(const Explain *x, int i) {
    const char *p = fresh(x->s->row, "p");
    return i ? arena_printf(x->s->row->arena, "%s%d", p, i + 1) : p;
}

static const char *name_of(void *ctx, ExSym sym, int index) {
    const Explain *x = ctx;
    switch ((int)sym) {
    case SYM_S: return x->score;
    case SYM_STATE: return state_name(x->s, index, x->mark);
    case SYM_SHIFT: return shift_name(x, index, x->mark);
    case SYM_RISE: return rise_name(x, index);
    case SYM_PARAM: return shared_name(x, index);
    case SYM_DOT: return "dot(q, k)";
    case SYM_SQQ: return "sqnorm(q)";
    case SYM_SQK: return "sqnorm(k)";
    case SYM_SQO: return "sqnorm(o)";
    default: return x->row.name(x->row.ctx, sym, index);
    }
}

static const char *input_of(void *ctx, int input) {
    const Explain *x = ctx;
    return x->row.input(x->row.ctx, input);
}

// ---- what several formulas have in common

static void count_node(void *ctx, const Ex *e) {
    (void)e;
    ++*(int *)ctx;
}

static bool worth_a_name(const Ex *e) {
    int n = 0;
    if (e->type == EX_F32) ex_visit(e, count_node, &n);
    return n >= WORTH_A_NAME;
}

static const Ex *replace_one(void *ctx, ExPool *p, const Ex *e) {
    const Explain *x = ctx;
    if (e->op == EX_ROUNDED) e = e->args[0]; // a matter of arithmetic
    for (int i = x->shared.n; i-- > x->told;)
        if (x->shared.data[i] == e) return ex_sym(p, SYM_PARAM, i, e->type);
    return e;
}

static const Ex *with_names(Explain *x, const Ex *e) {
    return ex_map(x->s->row->pool, e, replace_one, x);
}

static void use(Arena *a, ExMemo *uses, const Ex *e) {
    const void *known = NULL;
    if (!ex_memo_has(uses, e, &known)) ex_memo_put(a, uses, e, known = ARENA_NEW(a, int));
    ++*(int *)known;
}

// From here on, what these formulas have in common has names; each is kept as it is with the names
// of those before it.
static void share(Explain *x, const Ex *const *roots, int n) {
    Arena *scratch = arena_new();
    ExMemo uses = {0};
    const Ex **order;
    const void *known = NULL;
    int count = ex_order(scratch, roots, n, &order);
    for (int i = 0; i < n; i++) use(scratch, &uses, roots[i]);
    for (int i = 0; i < count; i++)
        for (int k = 0; k < order[i]->nargs; k++) use(scratch, &uses, order[i]->args[k]);
    x->told = x->shared.n;
    memset(x->said, 0, sizeof x->said);
    for (int i = 0; i < count && x->shared.n < x->told + MAX_SHARED; i++) {
        if (!ex_memo_has(&uses, order[i], &known) || *(const int *)known < 2) continue;
        if (!worth_a_name(order[i])) continue;
        const Ex *e = with_names(x, order[i]);
        VEC_PUSH(x->s->row->arena, &x->shared, e);
    }
    arena_free(scratch);
}

// ---- formulas

static void print(const Explain *x, const Ex *e) {
    ExNames names = {name_of, input_of, NULL, NULL, (void *)x};
    ex_print_pretty(x->out, e, &names);
}

static void put(Explain *x, const Ex *e) { print(x, with_names(x, e)); }

// In a product: with parentheses around a sum.
static void put_factor(Explain *x, const Ex *e) {
    e = with_names(x, e);
    bool plain = e->op == EX_SYM || e->op == EX_CONST || ex_ops[e->op].fix == X_CALL;
    plain &= e->op != EX_FMA && e->op != EX_SELECT && e->op != EX_RCP && e->op != EX_NEG;
    text_puts(x->out, plain ? "" : "(");
    print(x, e);
    text_puts(x->out, plain ? "" : ")");
}

// After "sum": with parentheses around what ends sooner than a product does.
static void put_term(Explain *x, const Ex *e) {
    const Ex *named = with_names(x, e);
    if (named->op == EX_MUL || named->op == EX_RCP)
        put(x, e);
    else
        put_factor(x, e);
}

static void line(Explain *x, const char *start, const Ex *e, const char *end) {
    text_puts(x->out, start);
    put(x, e);
    text_puts(x->out, end);
}

static void equation(Explain *x, const char *what, const Ex *e) {
    line(x, arena_printf(x->s->row->arena, "    %s = ", what), e, "\n");
}

// Before a formula: what it has in common with others, if that was not said yet.
static void tell(Explain *x, const Ex *e) {
    bool needed[MAX_SHARED] = {false};
    const Ex *named = with_names(x, e);
    int n = x->shared.n - x->told;
    for (int i = n; i-- > 0;) {
        needed[i] = ex_uses(named, SYM_PARAM, x->told + i);
        for (int j = i + 1; j < n; j++)
            needed[i] |= needed[j] && ex_uses(x->shared.data[x->told + j], SYM_PARAM, x->told + i);
    }
    for (int i = 0; i < n; i++) {
        if (!needed[i] || x->said[i]) continue;
        x->said[i] = true;
        text_printf(x->out, "    %s = ", shared_name(x, x->told + i));
        print(x, x->shared.data[x->told + i]);
        text_puts(x->out, "\n");
    }
}

static void tell_equation(Explain *x, const char *what, const Ex *e) {
    tell(x, e);
    equation(x, what, e);
}

// ---- the parts

static const char *over_keys(ExOp op) {
    return op == EX_ROWMAX ? "max" : op == EX_ROWMIN ? "min" : "sum";
}

typedef VEC(const Ex *) Roots;

static void print_row(Explain *x) {
    const RowProgram *p = x->s->written;
    Roots roots = {0};
    for (int k = 0; k < p->reduces.n; k++) VEC_PUSH(p->arena, &roots, p->reduces.data[k].f);
    VEC_PUSH(p->arena, &roots, p->weight);
    for (int i = 0; i < p->emits.n; i++) VEC_PUSH(p->arena, &roots, p->emits.data[i].value);
    share(x, roots.data, roots.n);
    text_printf(x->out, "attention %s, for one query\n", p->name);
    equation(x, x->score, p->modified);
    if (p->mask->op != EX_CONST) line(x, "    over keys where ", p->mask, "\n");
    for (int k = 0; k < p->reduces.n; k++) {
        const RowReduce *r = &p->reduces.data[k];
        tell(x, r->f);
        text_printf(x->out, "    %s = %s over keys of ", r->name, over_keys(r->op));
        line(x, "", r->f, "\n");
    }
    tell_equation(x, x->weight, p->weight);
    for (int i = 0; i < p->emits.n; i++)
        tell_equation(x, p->emits.data[i].name, p->emits.data[i].value);
    text_printf(x->out, "    o = sum over keys of %s * v", x->weight);
    if (p->output->op != EX_SYM || p->output->sym != SYM_O) line(x, ", then ", p->output, "");
    text_puts(x->out, "\n");
}

// Of the states of this sweep, and of the accumulator in the last.
static bool shift_serves(const Stream *s, int shift, int sweep) {
    if (sweep == s->nsweeps - 1 && s->shift == shift) return true;
    for (int i = 0; i < s->states.n; i++)
        if (s->states.data[i].sweep == sweep && s->states.data[i].shift == shift) return true;
    return false;
}

static bool scale_serves(const Stream *s, int scale, int sweep) {
    if (sweep == s->nsweeps - 1 && s->scale == scale) return true;
    for (int i = 0; i < s->states.n; i++)
        if (s->states.data[i].sweep == sweep && s->states.data[i].scale == scale) return true;
    return false;
}

// An expression as a factor, written aside.
static const char *factor_text(const Explain *x, const Ex *e) {
    Explain by = *x;
    Text text;
    text_init(&text, x->s->row->arena);
    by.out = &text;
    put_factor(&by, e);
    return text.s;
}

static const char *times_ratio(const Explain *x, int scale, const char *now, const char *was) {
    if (scale < 0) return "";
    Explain by = *x;
    by.scale = scale, by.now = now, by.was = was;
    return arena_printf(x->s->row->arena, " * %s",
                        factor_text(&by, x->s->scales.data[scale].ratio));
}

static const char *times_rescale(const Explain *x, int shift, int scale, const char *now,
                                 const char *was) {
    const char *ratio = times_ratio(x, scale, now, was);
    if (shift < 0) return ratio;
    Arena *a = x->s->row->arena;
    const char *step =
        arena_printf(a, "%s - %s", shift_name(x, shift, now), shift_name(x, shift, was));
    const Ex *unit = x->s->units.data[shift];
    if (!unit) return arena_printf(a, " * exp2(%s)%s", step, ratio);
    return arena_printf(a, " * exp2((%s) * %s)%s", step, factor_text(x, unit), ratio);
}

// What is reduced over the keys that exist: without the selection that keeps masked ones out.
static const Ex *unguarded(const Ex *e) {
    if (e->op != EX_SELECT || e->args[0]->op != EX_EQ || e->args[1]->op != EX_CONST) return e;
    const Ex *a = e->args[0]->args[0];
    bool masked = a->op == EX_SYM && a->sym == SYM_S && ex_is_f32(e->args[0]->args[1], -INFINITY);
    return masked ? e->args[2] : e;
}

static bool extremum(const StreamState *st) { return st->op != EX_ROWSUM; }

static void print_state(Explain *x, int i) {
    const StreamState *st = &x->s->states.data[i];
    const char *was = state_name(x->s, i, ""), *what = over_keys(st->op);
    tell(x, unguarded(st->elem));
    if (extremum(st))
        text_printf(x->out, "    %s' = %s(%s, %s ", was, what, was, what);
    else
        text_printf(x->out, "    %s' = %s%s + sum ", was, was,
                    times_rescale(x, st->shift, st->scale, "'", ""));
    if (extremum(st))
        line(x, "", unguarded(st->elem), ")\n");
    else {
        put_term(x, unguarded(st->elem));
        text_puts(x->out, "\n");
    }
}

static bool is_scaled(const Stream *s) {
    return s->scaled->op != EX_SYM || s->scaled->sym != SYM_S;
}

static void print_heading(Explain *x, int sweep) {
    const Stream *s = x->s;
    if (s->nsweeps == 1)
        text_puts(x->out, "\none sweep over the keys");
    else
        text_printf(x->out, "\nsweep %d of %d over the keys", sweep + 1, s->nsweeps);
    text_puts(x->out, "; with every tile\n");
    if (sweep || !is_scaled(s)) return;
    text_printf(x->out, "    %s = ", x->score);
    put(x, s->row->modified);
    text_puts(x->out, ", of which s is ");
    print(x, s->scaled);
    text_puts(x->out, "\n");
}

static void share_sweep(Explain *x, int sweep) {
    const Stream *s = x->s;
    Roots roots = {0};
    for (int i = 0; i < s->states.n; i++)
        if (s->states.data[i].sweep == sweep)
            VEC_PUSH(s->row->arena, &roots, unguarded(s->states.data[i].elem));
    if (sweep == s->nsweeps - 1) VEC_PUSH(s->row->arena, &roots, unguarded(s->elem));
    share(x, roots.data, roots.n);
}

static void print_bases(Explain *x, int scale) {
    const StreamScale *c = &x->s->scales.data[scale];
    for (int i = 0; i < c->n; i++) {
        text_printf(x->out, "    %s = ", base_name(x, scale, i, "'"));
        line(x, "", c->base[i], "\n");
    }
}

// Whether a scale stands on extrema, and not on sums that come after them.
static bool base_is_known(const Stream *s, int scale, int sweep) {
    const StreamScale *c = &s->scales.data[scale];
    for (int i = 0; i < s->states.n; i++)
        for (int k = 0; k < c->n; k++)
            if (s->states.data[i].sweep == sweep && !extremum(&s->states.data[i]) &&
                ex_uses(c->base[k], SYM_STATE, i))
                return false;
    return true;
}

static void print_sweep(Explain *x, int sweep) {
    const Stream *s = x->s;
    share_sweep(x, sweep);
    print_heading(x, sweep);
    x->mark = "'";
    for (int pass = 0; pass < 2; pass++) { // extrema, the shifts that stand on them, sums
        for (int i = 0; i < s->states.n; i++)
            if (s->states.data[i].sweep == sweep && extremum(&s->states.data[i]) == !pass)
                print_state(x, i);
        for (int k = 0; !pass && k < s->shifts.n; k++) {
            if (!shift_serves(s, k, sweep)) continue;
            text_printf(x->out, "    %s = ", shift_name(x, k, "'"));
            line(x, "", s->shifts.data[k], "    (0 while the row has no key)\n");
        }
        for (int k = 0; k < s->scales.n; k++)
            if (scale_serves(s, k, sweep) && base_is_known(s, k, sweep) == !pass) print_bases(x, k);
    }
    if (sweep == s->nsweeps - 1) {
        const Ex *e = unguarded(s->elem);
        tell(x, e);
        text_printf(x->out, "    %s' = %s%s + sum ", x->acc, x->acc,
                    times_rescale(x, s->shift, s->scale, "'", ""));
        if (!ex_is_f32(e, 1)) {
            put_factor(x, e);
            text_puts(x->out, " * ");
        }
        text_puts(x->out, "v\n");
    }
    x->mark = "";
}

static bool is_state_itself(const Stream *s, int k) {
    const Ex *f = s->finished.data[k];
    return f->op == EX_SYM && f->sym == SYM_STATE &&
           s->states.data[f->index].name == s->row->reduces.data[k].name;
}

static void share_finish(Explain *x) {
    const Stream *s = x->s;
    Roots roots = {0};
    for (int k = 0; k < s->finished.n; k++) VEC_PUSH(s->row->arena, &roots, s->finished.data[k]);
    for (int i = 0; i < s->emits.n; i++) VEC_PUSH(s->row->arena, &roots, s->emits.data[i]);
    if (s->factor) VEC_PUSH(s->row->arena, &roots, s->factor);
    share(x, roots.data, roots.n);
}

static void print_output(Explain *x) {
    const Stream *s = x->s;
    const RowProgram *p = s->row;
    bool divides = s->factor && s->factor->op == EX_RCP;
    const Ex *factor = divides ? s->factor->args[0] : s->factor;
    if (factor) tell(x, factor);
    text_printf(x->out, "    o = %s", x->acc);
    if (factor) {
        text_puts(x->out, divides ? " / " : " * ");
        put_factor(x, factor);
    }
    text_puts(x->out, "\n");
    if (s->empty)
        line(x, "    a row without a key, where ", s->empty, ", gives 0\n");
    else
        text_puts(x->out, "    a row without a key gives 0 by itself\n");
    if (p->output->op != EX_SYM || p->output->sym != SYM_O)
        line(x, "    the output is ", p->output, "\n");
}

static void print_finish(Explain *x) {
    const Stream *s = x->s;
    text_puts(x->out, "\nat the end\n");
    share_finish(x);
    for (int k = 0; k < s->finished.n; k++)
        if (!is_state_itself(s, k) && s->finished.data[k]->op != EX_CONST)
            tell_equation(x, s->row->reduces.data[k].name, s->finished.data[k]);
    for (int i = 0; i < s->emits.n; i++)
        tell_equation(x, s->row->emits.data[i].name, s->emits.data[i]);
    print_output(x);
}

static void print_merged(Explain *x, const char *name, int shift, int scale) {
    text_printf(x->out, "    %s = %s_a%s + %s_b%s\n", name, name,
                times_rescale(x, shift, scale, "", "_a"), name,
                times_rescale(x, shift, scale, "", "_b"));
}

static void print_combine(Explain *x) {
    const Stream *s = x->s;
    text_puts(x->out, "\nmerging two parts a and b of the keys, in any grouping");
    text_puts(x->out, s->nsweeps > 1 ? " (the states of one sweep)\n" : "\n");
    for (int i = 0; i < s->states.n; i++) {
        const StreamState *st = &s->states.data[i];
        const char *name = state_name(s, i, "");
        if (extremum(st))
            text_printf(x->out, "    %s = %s(%s_a, %s_b)\n", name, over_keys(st->op), name, name);
    }
    for (int i = 0; i < s->states.n; i++)
        if (!extremum(&s->states.data[i]))
            print_merged(x, state_name(s, i, ""), s->states.data[i].shift, s->states.data[i].scale);
    print_merged(x, x->acc, s->shift, s->scale);
    if (s->shifts.n || s->scales.n)
        text_printf(x->out,
                    "    with %s of the merged states; a part without a key is the identity\n",
                    s->shifts.n ? x->shift : x->base);
    else
        text_puts(x->out, "    a part without a key is the identity\n");
}

static void print_blocking(Explain *x) {
    const Stream *s = x->s;
    if (s->blocking < 0) return;
    text_printf(x->out,
                "\nno form of a single sweep was found: '%s' must be finished before what needs it "
                "can begin\n",
                s->row->reduces.data[s->blocking].name);
}

enum { ROWS = 64, KEYS = 64 }; // of a tile; what is known of a term hardly depends on them

static void print_mask(Text *out, const Stream *s) {
    Text terms;
    text_init(&terms, s->row->arena);
    if (pass_explain_mask(&terms, s, ROWS, KEYS))
        text_printf(out,
                    "\nterms of the mask of which nothing is known over a tile: they skip none\n%s",
                    terms.s);
}

void pass_explain(Text *out, const Stream *s) {
    Explain x = {.out = out,
                 .s = s,
                 .row = row_names(s->row),
                 .score = fresh(s->row, "s"),
                 .mark = "",
                 .weight = fresh(s->row, "w"),
                 .shift = fresh(s->row, "A"),
                 .base = fresh(s->row, "C"),
                 .acc = fresh(s->row, "acc")};
    print_row(&x);
    if (is_scaled(s)) x.score = arena_printf(s->row->arena, "%s~", x.score);
    print_blocking(&x);
    for (int t = 0; t < s->nsweeps; t++) print_sweep(&x, t);
    print_finish(&x);
    print_combine(&x);
    print_mask(out, s);
    text_puts(out, "\nthe backward is not derived by this version\n");
}
