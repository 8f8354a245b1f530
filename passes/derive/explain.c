// explain.c: the derivation as mathematics (explain.h).
//
// In: a streaming form. Out: the row program; each sweep with its states, shifts and how they are
// rescaled; the deferred factor, emits, output and the empty row; the rule that merges two parts.
#include "passes/derive/explain.h"
#include "passes/passes.h"

#include "ir/expr_ops.h"

#include <math.h>
#include <string.h>

enum { WORTH_A_NAME = 5, MAX_SHARED = 16 }; // nodes; names at a time

typedef struct Explain {
    Explanation *to;
    Arena *arena;
    ExPool *pool;
    const Stream *s;
    const char *score;               // SYM_S
    const char *mark;                // after the names of states and shifts: "'", "_a" or nothing
    const char *weight, *base, *acc; // names that are the explanation's own
    int scale;                       // SYM_RISE: of which scale, ...
    const char *now, *was;           // ... and the marks of the bases
    VEC(const Ex *) shared;          // SYM_LET: named p, p2, ...
    int told;                        // how many are of formulas that are over
    bool said[MAX_SHARED];           // of those after them
    ExplainSection *section;
    ExplainLine *line;
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

// A name as an expression.
static const Ex *named(Explain *x, const char *name, Span span) {
    int i = 0;
    Explanation *to = x->to;
    while (i < to->names.n && strcmp(to->names.data[i].name, name)) i++;
    ExplainName new = {name, span};
    if (i == to->names.n) VEC_PUSH(x->arena, &to->names, new);
    return ex_sym(x->pool, SYM_PARAM, i, EX_F32);
}

static const Ex *own(Explain *x, const char *name) { return named(x, name, (Span){0}); }

// Whether a reduction's finished value is the state itself, so that one name serves both.
static const char *state_tail(const Stream *s, int i) {
    for (int k = 0; k < s->finished.n; k++) {
        const Ex *f = s->finished.data[k];
        if (f->op == EX_SYM && f->sym == SYM_STATE && f->index == i) return "";
    }
    return i == s->added_count ? "" : "~";
}

const char *pass_state_name(const Stream *s, int i) {
    return arena_printf(s->row->arena, "%s%s", s->states.data[i].name, state_tail(s, i));
}

const char *pass_shift_name(const Stream *s, int i) {
    const char *name = fresh(s->row, "A");
    return s->shifts.n == 1 ? name : arena_printf(s->row->arena, "%s%d", name, i);
}

static const Ex *state(Explain *x, int i, const char *mark) {
    return named(x, arena_printf(x->arena, "%s%s", pass_state_name(x->s, i), mark),
                 x->s->states.data[i].span);
}

static const Ex *shift(Explain *x, int i, const char *mark) {
    return own(x, arena_printf(x->arena, "%s%s", pass_shift_name(x->s, i), mark));
}

static const Ex *base(Explain *x, int scale, int i, const char *mark) {
    const Stream *s = x->s;
    int number = i, all = 0;
    for (int k = 0; k < s->scales.n; k++) {
        if (k < scale) number += s->scales.data[k].n;
        all += s->scales.data[k].n;
    }
    if (all == 1) return own(x, arena_printf(x->arena, "%s%s", x->base, mark));
    return own(x, arena_printf(x->arena, "%s%d%s", x->base, number, mark));
}

static const char *shared_name(Explain *x, int i) {
    const char *p = fresh(x->s->row, "p");
    return i ? arena_printf(x->arena, "%s%d", p, i + 1) : p;
}

static const Ex *name_one(void *ctx, ExPool *p, const Ex *e) {
    Explain *x = ctx;
    if (e->op != EX_SYM) return e;
    switch ((int)e->sym) {
    case SYM_S: return named(x, x->score, e->span);
    case SYM_STATE: return state(x, e->index, x->mark);
    case SYM_SHIFT: return shift(x, e->index, x->mark);
    case SYM_RISE:
        return ex_2(p, EX_DIV, base(x, x->scale, e->index, x->now),
                    base(x, x->scale, e->index, x->was));
    case SYM_LET: return own(x, shared_name(x, e->index));
    case SYM_R:
        return named(x, x->s->row->reduces.data[e->index].name,
                     x->s->row->reduces.data[e->index].span);
    default: return e;
    }
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
        if (x->shared.data[i] == e) return ex_sym(p, SYM_LET, i, e->type);
    return e;
}

static const Ex *with_shared(Explain *x, const Ex *e) { return ex_map(x->pool, e, replace_one, x); }

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
        const Ex *e = with_shared(x, order[i]);
        VEC_PUSH(x->arena, &x->shared, e);
    }
    arena_free(scratch);
}

// As it is to be printed: with the names that it has at this place.
static const Ex *here(Explain *x, const Ex *e) {
    return ex_map(x->pool, with_shared(x, e), name_one, x);
}

// ---- lines

static void section(Explain *x, const char *id, const char *title) {
    ExplainSection s = {.id = id, .title = title, .over = EX_OVER_TILE};
    VEC_PUSH(x->arena, &x->to->sections, s);
    x->section = &x->to->sections.data[x->to->sections.n - 1];
}

static void line(Explain *x) {
    ExplainLine l = {.note = true};
    VEC_PUSH(x->arena, &x->section->lines, l);
    x->line = &x->section->lines.data[x->section->lines.n - 1];
}

static void prose(Explain *x, const char *text) {
    ExplainPart part = {text, NULL, NULL};
    VEC_PUSH(x->arena, &x->line->parts, part);
}

// The first place on the way down: in the file of the attention, else in any.
static Span place_of(const Explain *x, const Ex *e) {
    Arena *scratch = arena_new();
    const Ex **order;
    Span place = {0};
    for (int n = ex_order(scratch, &e, 1, &order); n-- > 0;) {
        Span at = order[n]->span;
        bool nearer = at.file == x->s->row->span.file && place.file != at.file;
        if (nearer || !place.file) place = at;
    }
    arena_free(scratch);
    return place;
}

// name NULL: a formula without. Both are as `here` gives them.
static void formula(Explain *x, const Ex *name, const Ex *e) {
    ExplainPart part = {NULL, name, e};
    VEC_PUSH(x->arena, &x->line->parts, part);
    if (!name) return;
    x->line->note = false;
    x->line->defines = x->to->names.data[name->index].name;
    x->line->span = place_of(x, e);
}

// Where a reduction stands, or in another file its call.
static Span place_of_reduction(const Explain *x, Span span) {
    const RowProgram *p = x->s->row;
    for (int k = 0; k < p->reduces.n; k++) {
        const RowReduce *r = &p->reduces.data[k];
        bool it = r->span.file == span.file && r->span.start == span.start;
        if (it && span.file != p->span.file && r->call.file) return r->call;
    }
    return span;
}

static void equation(Explain *x, const Ex *name, const Ex *e) {
    line(x);
    formula(x, name, e);
    Span known = x->to->names.data[name->index].span;
    if (known.file) x->line->span = place_of_reduction(x, known);
}

// Before a formula: what it has in common with others, if that was not said yet.
static void tell(Explain *x, const Ex *e) {
    bool needed[MAX_SHARED] = {false};
    const Ex *seen = with_shared(x, e);
    int n = x->shared.n - x->told;
    for (int i = n; i-- > 0;) {
        needed[i] = ex_uses(seen, SYM_LET, x->told + i);
        for (int j = i + 1; j < n; j++)
            needed[i] |= needed[j] && ex_uses(x->shared.data[x->told + j], SYM_LET, x->told + i);
    }
    for (int i = 0; i < n; i++) {
        if (!needed[i] || x->said[i]) continue;
        x->said[i] = true;
        const Ex *value = ex_map(x->pool, x->shared.data[x->told + i], name_one, x);
        equation(x, own(x, shared_name(x, x->told + i)), value);
    }
}

static void tell_equation(Explain *x, const Ex *name, const Ex *e) {
    tell(x, e);
    equation(x, name, here(x, e));
}

// ---- formulas

static const Ex *times(Explain *x, const Ex *a, const Ex *b) { return ex_2(x->pool, EX_MUL, a, b); }
static const Ex *plus(Explain *x, const Ex *a, const Ex *b) { return ex_2(x->pool, EX_ADD, a, b); }
static const Ex *sum(Explain *x, const Ex *e) { return ex_1(x->pool, EX_ROWSUM, e); }

static ExOp pairwise(ExOp reduce) {
    return reduce == EX_ROWMAX ? EX_MAX : reduce == EX_ROWMIN ? EX_MIN : EX_ADD;
}

// What was summed under other shifts and scales.
static const Ex *rescaled(Explain *x, const Ex *old, int moved, int scale, const char *now,
                          const char *was) {
    if (moved >= 0) {
        const Ex *step = ex_2(x->pool, EX_SUB, shift(x, moved, now), shift(x, moved, was));
        const Ex *unit = x->s->units.data[moved];
        if (unit) step = times(x, step, here(x, unit));
        old = times(x, old, ex_1(x->pool, EX_EXP2, step));
    }
    if (scale < 0) return old;
    x->scale = scale, x->now = now, x->was = was;
    return times(x, old, here(x, x->s->scales.data[scale].ratio));
}

// ---- the parts

typedef VEC(const Ex *) Roots;

static void tell_row(Explain *x) {
    const RowProgram *p = x->s->written;
    Roots roots = {0};
    for (int k = 0; k < p->reduces.n; k++) VEC_PUSH(x->arena, &roots, p->reduces.data[k].f);
    VEC_PUSH(x->arena, &roots, p->weight);
    for (int i = 0; i < p->emits.n; i++) VEC_PUSH(x->arena, &roots, p->emits.data[i].value);
    share(x, roots.data, roots.n);
    section(x, "row", arena_printf(x->arena, "attention %s, for one query", p->name));
    x->section->over = EX_OVER_KEYS;
    equation(x, own(x, x->score), here(x, p->modified));
    if (p->mask->op != EX_CONST) {
        line(x);
        prose(x, "over keys where ");
        formula(x, NULL, here(x, p->mask));
        x->line->span = place_of(x, p->mask);
    }
    for (int k = 0; k < p->reduces.n; k++) {
        const RowReduce *r = &p->reduces.data[k];
        tell(x, r->f);
        equation(x, named(x, r->name, r->span), ex_1(x->pool, r->op, here(x, r->f)));
    }
    tell_equation(x, own(x, x->weight), p->weight);
    for (int i = 0; i < p->emits.n; i++)
        tell_equation(x, named(x, p->emits.data[i].name, p->emits.data[i].span),
                      p->emits.data[i].value);
    equation(x, own(x, "o"), sum(x, times(x, own(x, x->weight), own(x, "v"))));
    if (p->output->op == EX_SYM && p->output->sym == SYM_O) return;
    prose(x, ", then ");
    formula(x, NULL, here(x, p->output));
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

// What is reduced over the keys that exist: without the selection that keeps masked ones out.
static const Ex *unguarded(const Ex *e) {
    if (e->op != EX_SELECT || e->args[0]->op != EX_EQ || e->args[1]->op != EX_CONST) return e;
    const Ex *a = e->args[0]->args[0];
    bool masked = a->op == EX_SYM && a->sym == SYM_S && ex_is_f32(e->args[0]->args[1], -INFINITY);
    return masked ? e->args[2] : e;
}

static bool extremum(const StreamState *st) { return st->op != EX_ROWSUM; }

static void tell_state(Explain *x, int i) {
    const StreamState *st = &x->s->states.data[i];
    const Ex *elem = unguarded(st->elem), *was = state(x, i, "");
    tell(x, elem);
    if (!extremum(st)) was = rescaled(x, was, st->shift, st->scale, "'", "");
    const Ex *tile = ex_1(x->pool, st->op, here(x, elem));
    equation(x, state(x, i, "'"), ex_2(x->pool, pairwise(st->op), was, tile));
}

static bool is_scaled(const Stream *s) {
    return s->scaled->op != EX_SYM || s->scaled->sym != SYM_S;
}

static void head_sweep(Explain *x, int sweep) {
    const Stream *s = x->s;
    const char *which = s->nsweeps == 1 ? "one sweep over the keys"
                                        : arena_printf(x->arena, "sweep %d of %d over the keys",
                                                       sweep + 1, s->nsweeps);
    section(x, "sweep", arena_printf(x->arena, "%s; with every tile", which));
    if (sweep || !is_scaled(s)) return;
    equation(x, own(x, x->score), here(x, s->row->modified));
    prose(x, ", of which s is ");
    formula(x, NULL, here(x, s->scaled));
}

static void share_sweep(Explain *x, int sweep) {
    const Stream *s = x->s;
    Roots roots = {0};
    for (int i = 0; i < s->states.n; i++)
        if (s->states.data[i].sweep == sweep)
            VEC_PUSH(x->arena, &roots, unguarded(s->states.data[i].elem));
    if (sweep == s->nsweeps - 1) VEC_PUSH(x->arena, &roots, unguarded(s->elem));
    share(x, roots.data, roots.n);
}

static void tell_bases(Explain *x, int scale) {
    const StreamScale *c = &x->s->scales.data[scale];
    for (int i = 0; i < c->n; i++) equation(x, base(x, scale, i, "'"), here(x, c->base[i]));
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

static void tell_shifts(Explain *x, int sweep) {
    for (int k = 0; k < x->s->shifts.n; k++) {
        if (!shift_serves(x->s, k, sweep)) continue;
        equation(x, shift(x, k, "'"), here(x, x->s->shifts.data[k]));
        prose(x, "    (0 while the row has no key)");
    }
}

static void tell_accumulator(Explain *x) {
    const Stream *s = x->s;
    const Ex *e = unguarded(s->elem), *v = own(x, "v");
    tell(x, e);
    const Ex *was = rescaled(x, own(x, x->acc), s->shift, s->scale, "'", "");
    const Ex *tile = sum(x, ex_is_f32(e, 1) ? v : times(x, here(x, e), v));
    equation(x, own(x, arena_printf(x->arena, "%s'", x->acc)), plus(x, was, tile));
}

static void tell_sweep(Explain *x, int sweep) {
    const Stream *s = x->s;
    share_sweep(x, sweep);
    head_sweep(x, sweep);
    x->mark = "'";
    for (int pass = 0; pass < 2; pass++) { // extrema, the shifts that stand on them, sums
        for (int i = 0; i < s->states.n; i++)
            if (s->states.data[i].sweep == sweep && extremum(&s->states.data[i]) == !pass)
                tell_state(x, i);
        if (!pass) tell_shifts(x, sweep);
        for (int k = 0; k < s->scales.n; k++)
            if (scale_serves(s, k, sweep) && base_is_known(s, k, sweep) == !pass) tell_bases(x, k);
    }
    if (sweep == s->nsweeps - 1) tell_accumulator(x);
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
    for (int k = 0; k < s->finished.n; k++) VEC_PUSH(x->arena, &roots, s->finished.data[k]);
    for (int i = 0; i < s->emits.n; i++) VEC_PUSH(x->arena, &roots, s->emits.data[i]);
    if (s->factor) VEC_PUSH(x->arena, &roots, s->factor);
    share(x, roots.data, roots.n);
}

static void tell_output(Explain *x) {
    const Stream *s = x->s;
    const RowProgram *p = s->row;
    bool divides = s->factor && s->factor->op == EX_RCP;
    const Ex *factor = divides ? s->factor->args[0] : s->factor, *o = own(x, x->acc);
    if (factor) {
        tell(x, factor);
        o = ex_2(x->pool, divides ? EX_DIV : EX_MUL, o, here(x, factor));
    }
    equation(x, own(x, "o"), o);
    line(x);
    prose(x, s->empty ? "a row without a key, where " : "a row without a key gives 0 by itself");
    if (s->empty) {
        formula(x, NULL, here(x, s->empty));
        prose(x, ", gives 0");
    }
    if (p->output->op == EX_SYM && p->output->sym == SYM_O) return;
    line(x);
    prose(x, "the output is ");
    formula(x, NULL, here(x, p->output));
    x->line->span = place_of(x, p->output);
}

static void tell_finish(Explain *x) {
    const Stream *s = x->s;
    section(x, "end", "at the end");
    share_finish(x);
    for (int k = 0; k < s->finished.n; k++) {
        const RowReduce *r = &s->row->reduces.data[k];
        if (!is_state_itself(s, k) && s->finished.data[k]->op != EX_CONST)
            tell_equation(x, named(x, r->name, r->span), s->finished.data[k]);
    }
    for (int i = 0; i < s->emits.n; i++)
        tell_equation(x, named(x, s->row->emits.data[i].name, s->row->emits.data[i].span),
                      s->emits.data[i]);
    tell_output(x);
}

// `name = name_a * .. + name_b * ..`, of a state, or of the accumulator (-1).
static void tell_merged(Explain *x, int i, int moved, int scale) {
    const Ex *name[3];
    static const char *const of[] = {"", "_a", "_b"};
    for (int k = 0; k < 3; k++)
        name[k] =
            i >= 0 ? state(x, i, of[k]) : own(x, arena_printf(x->arena, "%s%s", x->acc, of[k]));
    const Ex *a = rescaled(x, name[1], moved, scale, "", "_a");
    equation(x, name[0], plus(x, a, rescaled(x, name[2], moved, scale, "", "_b")));
}

// `with A0, A1 of the merged states`: all shifts and all bases of running scales.
static void tell_of_merged(Explain *x) {
    const Stream *s = x->s;
    const char *separator = "with ";
    for (int i = 0; i < s->shifts.n; i++, separator = ", ") {
        prose(x, separator);
        formula(x, NULL, shift(x, i, ""));
    }
    for (int k = 0; k < s->scales.n; k++)
        for (int i = 0; i < s->scales.data[k].n; i++, separator = ", ") {
            prose(x, separator);
            formula(x, NULL, base(x, k, i, ""));
        }
    prose(x, " of the merged states; ");
}

static void tell_combine(Explain *x) {
    const Stream *s = x->s;
    const char *title = "merging two parts a and b of the keys, in any grouping";
    if (s->nsweeps > 1) title = arena_printf(x->arena, "%s (the states of one sweep)", title);
    section(x, "combine", title);
    for (int i = 0; i < s->states.n; i++) {
        const StreamState *st = &s->states.data[i];
        if (extremum(st))
            equation(x, state(x, i, ""),
                     ex_2(x->pool, pairwise(st->op), state(x, i, "_a"), state(x, i, "_b")));
    }
    for (int i = 0; i < s->states.n; i++)
        if (!extremum(&s->states.data[i]))
            tell_merged(x, i, s->states.data[i].shift, s->states.data[i].scale);
    tell_merged(x, -1, s->shift, s->scale);
    line(x);
    if (s->shifts.n || s->scales.n) tell_of_merged(x);
    prose(x, "a part without a key is the identity");
}

static void tell_blocking(Explain *x) {
    const Stream *s = x->s;
    if (s->blocking < 0) return;
    section(x, "blocking",
            arena_printf(x->arena,
                         "no form of a single sweep was found: '%s' must be finished before what "
                         "needs it can begin",
                         s->row->reduces.data[s->blocking].name));
}

enum { ROWS = 64, KEYS = 64 }; // of a tile; what is known of a term hardly depends on them

static void tell_mask(Explain *x) {
    MaskTerms blind = pass_blind_terms(x->s, ROWS, KEYS);
    if (!blind.n) return;
    section(x, "mask", "terms of the mask of which nothing is known over a tile: they skip none");
    for (int i = 0; i < blind.n; i++) {
        line(x);
        formula(x, NULL, blind.data[i]);
        x->line->span = place_of(x, blind.data[i]);
    }
}

Explanation *pass_explain(const Stream *s) {
    Explanation *to = ARENA_NEW(s->row->arena, Explanation);
    to->s = s;
    to->arena = s->row->arena;
    to->program = row_names(s->row);
    Explain x = {.to = to,
                 .arena = s->row->arena,
                 .pool = s->row->pool,
                 .s = s,
                 .score = fresh(s->row, "s"),
                 .mark = "",
                 .weight = fresh(s->row, "w"),
                 .base = fresh(s->row, "C"),
                 .acc = fresh(s->row, "acc")};
    tell_row(&x);
    if (is_scaled(s)) x.score = arena_printf(x.arena, "%s~", x.score);
    tell_blocking(&x);
    for (int t = 0; t < s->nsweeps; t++) tell_sweep(&x, t);
    tell_finish(&x);
    tell_combine(&x);
    tell_mask(&x);
    section(&x, "backward", "the backward is not derived by this version");
    return to;
}
