// explain.c: the derivation as mathematics (explain.h).
//
// In: a streaming form. Out: the row program; each sweep with its states, shifts and how they are
// rescaled; the deferred factor, emits, output and the empty row; the rule that merges two parts.
#include "passes/derive/explain_say.h"
#include "passes/derive/large_unit.h"
#include "passes/passes.h"

#include "ir/expr_ops.h"

#include <math.h>

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
        const Ex *step = ex_2(x->pool, EX_SUB, say_shift(x, moved, now), say_shift(x, moved, was));
        const Ex *unit = large_left_out(x->pool, x->s->units.data[moved]);
        if (unit) step = times(x, step, say_here(x, unit));
        old = times(x, old, ex_1(x->pool, EX_EXP2, step));
    }
    if (scale < 0) return old;
    x->scale = scale, x->now = now, x->was = was;
    return times(x, old, say_here(x, x->s->scales.data[scale].ratio));
}

// ---- the parts

typedef VEC(const Ex *) Roots;

static void tell_row(Explain *x) {
    const RowProgram *p = x->s->written;
    Roots roots = {0};
    for (int k = 0; k < p->reduces.n; k++) VEC_PUSH(x->arena, &roots, p->reduces.data[k].f);
    VEC_PUSH(x->arena, &roots, p->weight);
    for (int i = 0; i < p->emits.n; i++) VEC_PUSH(x->arena, &roots, p->emits.data[i].value);
    say_share(x, roots.data, roots.n);
    say_section(x, "row", arena_printf(x->arena, "attention %s, for one query", p->name));
    x->section->over = EX_OVER_KEYS;
    say_equation(x, say_own(x, x->score), say_here(x, p->modified));
    if (p->mask->op != EX_CONST) {
        say_line(x);
        say_prose(x, "over keys where ");
        say_formula(x, NULL, say_here(x, p->mask));
        x->line->span = say_place_of(x, p->mask);
    }
    for (int k = 0; k < p->reduces.n; k++) {
        const RowReduce *r = &p->reduces.data[k];
        say_shared(x, r->f);
        say_equation(x, say_named(x, r->name, r->span), ex_1(x->pool, r->op, say_here(x, r->f)));
    }
    say_with_shared(x, say_own(x, x->weight), p->weight);
    for (int i = 0; i < p->emits.n; i++)
        say_with_shared(x, say_named(x, p->emits.data[i].name, p->emits.data[i].span),
                        p->emits.data[i].value);
    say_equation(x, say_own(x, "o"), sum(x, times(x, say_own(x, x->weight), say_own(x, "v"))));
    if (p->output->op == EX_SYM && p->output->sym == SYM_O) return;
    say_prose(x, ", then ");
    say_formula(x, NULL, say_here(x, p->output));
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
    const Ex *elem = unguarded(st->elem), *was = say_state(x, i, "");
    say_shared(x, elem);
    if (!extremum(st)) was = rescaled(x, was, st->shift, st->scale, "'", "");
    const Ex *tile = ex_1(x->pool, st->op, say_here(x, elem));
    say_equation(x, say_state(x, i, "'"), ex_2(x->pool, pairwise(st->op), was, tile));
}

static bool is_scaled(const Stream *s) {
    return s->scaled->op != EX_SYM || s->scaled->sym != SYM_S;
}

static void head_sweep(Explain *x, int sweep) {
    const Stream *s = x->s;
    const char *which = s->nsweeps == 1 ? "one sweep over the keys"
                                        : arena_printf(x->arena, "sweep %d of %d over the keys",
                                                       sweep + 1, s->nsweeps);
    say_section(x, "sweep", arena_printf(x->arena, "%s; with every tile", which));
    if (sweep || !is_scaled(s)) return;
    say_equation(x, say_own(x, x->score), say_here(x, s->row->modified));
    say_prose(x, ", of which s is ");
    say_formula(x, NULL, say_here(x, s->scaled));
}

static void share_sweep(Explain *x, int sweep) {
    const Stream *s = x->s;
    Roots roots = {0};
    for (int i = 0; i < s->states.n; i++)
        if (s->states.data[i].sweep == sweep)
            VEC_PUSH(x->arena, &roots, unguarded(s->states.data[i].elem));
    if (sweep == s->nsweeps - 1) VEC_PUSH(x->arena, &roots, unguarded(s->elem));
    say_share(x, roots.data, roots.n);
}

static void tell_bases(Explain *x, int scale) {
    const StreamScale *c = &x->s->scales.data[scale];
    for (int i = 0; i < c->n; i++)
        say_equation(x, say_base(x, scale, i, "'"), say_here(x, c->base[i]));
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
        say_equation(x, say_shift(x, k, "'"), say_here(x, x->s->shifts.data[k]));
        say_prose(x, "    (0 while the row has no key)");
    }
}

static void tell_accumulator(Explain *x) {
    const Stream *s = x->s;
    const Ex *e = unguarded(s->elem), *v = say_own(x, "v");
    say_shared(x, e);
    const Ex *was = rescaled(x, say_own(x, x->acc), s->shift, s->scale, "'", "");
    const Ex *tile = sum(x, ex_is_f32(e, 1) ? v : times(x, say_here(x, e), v));
    say_equation(x, say_own(x, arena_printf(x->arena, "%s'", x->acc)), plus(x, was, tile));
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
    say_share(x, roots.data, roots.n);
}

static void tell_output(Explain *x) {
    const Stream *s = x->s;
    const RowProgram *p = s->row;
    bool divides = s->factor && s->factor->op == EX_RCP;
    const Ex *factor = divides ? s->factor->args[0] : s->factor, *o = say_own(x, x->acc);
    if (factor) {
        say_shared(x, factor);
        o = ex_2(x->pool, divides ? EX_DIV : EX_MUL, o, say_here(x, factor));
    }
    say_equation(x, say_own(x, "o"), o);
    say_line(x);
    say_prose(x,
              s->empty ? "a row without a key, where " : "a row without a key gives 0 by itself");
    if (s->empty) {
        say_formula(x, NULL, say_here(x, s->empty));
        say_prose(x, ", gives 0");
    }
    if (p->output->op == EX_SYM && p->output->sym == SYM_O) return;
    say_line(x);
    say_prose(x, "the output is ");
    say_formula(x, NULL, say_here(x, p->output));
    x->line->span = say_place_of(x, p->output);
}

static void tell_finish(Explain *x) {
    const Stream *s = x->s;
    say_section(x, "end", "at the end");
    share_finish(x);
    for (int k = 0; k < s->finished.n; k++) {
        const RowReduce *r = &s->row->reduces.data[k];
        if (!is_state_itself(s, k) && s->finished.data[k]->op != EX_CONST)
            say_with_shared(x, say_named(x, r->name, r->span), s->finished.data[k]);
    }
    for (int i = 0; i < s->emits.n; i++)
        say_with_shared(x, say_named(x, s->row->emits.data[i].name, s->row->emits.data[i].span),
                        s->emits.data[i]);
    tell_output(x);
}

// `name = name_a * .. + name_b * ..`, of a state, or of the accumulator (-1).
static void tell_merged(Explain *x, int i, int moved, int scale) {
    const Ex *name[3];
    static const char *const of[] = {"", "_a", "_b"};
    for (int k = 0; k < 3; k++)
        name[k] = i >= 0 ? say_state(x, i, of[k])
                         : say_own(x, arena_printf(x->arena, "%s%s", x->acc, of[k]));
    const Ex *a = rescaled(x, name[1], moved, scale, "", "_a");
    say_equation(x, name[0], plus(x, a, rescaled(x, name[2], moved, scale, "", "_b")));
}

// `with A0, A1 of the merged states`: all shifts and all bases of running scales.
static void tell_of_merged(Explain *x) {
    const Stream *s = x->s;
    const char *separator = "with ";
    for (int i = 0; i < s->shifts.n; i++, separator = ", ") {
        say_prose(x, separator);
        say_formula(x, NULL, say_shift(x, i, ""));
    }
    for (int k = 0; k < s->scales.n; k++)
        for (int i = 0; i < s->scales.data[k].n; i++, separator = ", ") {
            say_prose(x, separator);
            say_formula(x, NULL, say_base(x, k, i, ""));
        }
    say_prose(x, " of the merged states; ");
}

static void tell_combine(Explain *x) {
    const Stream *s = x->s;
    const char *title = "merging two parts a and b of the keys, in any grouping";
    if (s->nsweeps > 1) title = arena_printf(x->arena, "%s (the states of one sweep)", title);
    say_section(x, "combine", title);
    for (int i = 0; i < s->states.n; i++) {
        const StreamState *st = &s->states.data[i];
        if (extremum(st))
            say_equation(
                x, say_state(x, i, ""),
                ex_2(x->pool, pairwise(st->op), say_state(x, i, "_a"), say_state(x, i, "_b")));
    }
    for (int i = 0; i < s->states.n; i++)
        if (!extremum(&s->states.data[i]))
            tell_merged(x, i, s->states.data[i].shift, s->states.data[i].scale);
    tell_merged(x, -1, s->shift, s->scale);
    say_line(x);
    if (s->shifts.n || s->scales.n) tell_of_merged(x);
    say_prose(x, "a part without a key is the identity");
}

static void tell_blocking(Explain *x) {
    const Stream *s = x->s;
    if (s->blocking < 0) return;
    say_section(
        x, "blocking",
        arena_printf(x->arena,
                     "no form of a single sweep was found: '%s' must be finished before what "
                     "needs it can begin",
                     s->row->reduces.data[s->blocking].name));
}

enum { ROWS = 64, KEYS = 64 }; // of a tile; what is known of a term hardly depends on them

static void tell_mask(Explain *x) {
    MaskTerms blind = pass_blind_terms(x->s, ROWS, KEYS);
    if (!blind.n) return;
    say_section(x, "mask",
                "terms of the mask of which nothing is known over a tile: they skip none");
    for (int i = 0; i < blind.n; i++) {
        say_line(x);
        say_formula(x, NULL, blind.data[i]);
        x->line->span = say_place_of(x, blind.data[i]);
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
                 .score = say_fresh(s->row, "s"),
                 .mark = "",
                 .weight = say_fresh(s->row, "w"),
                 .base = say_fresh(s->row, "C"),
                 .acc = say_fresh(s->row, "acc")};
    tell_row(&x);
    if (is_scaled(s)) x.score = arena_printf(x.arena, "%s~", x.score);
    tell_blocking(&x);
    for (int t = 0; t < s->nsweeps; t++) tell_sweep(&x, t);
    tell_finish(&x);
    tell_combine(&x);
    tell_mask(&x);
    explain_backward(&x);
    return to;
}
