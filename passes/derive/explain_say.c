// explain_say.c: see explain_say.h.
#include "passes/derive/explain_say.h"

#include "passes/derive/large_unit.h"

#include <string.h>

// ---- names

static bool is_taken(const RowProgram *p, const char *name) {
    bool taken = false;
    for (int i = 0; i < p->inputs.n; i++) taken |= !strcmp(p->inputs.data[i].name, name);
    for (int i = 0; i < p->reduces.n; i++) taken |= !strcmp(p->reduces.data[i].name, name);
    for (int i = 0; i < p->emits.n; i++) taken |= !strcmp(p->emits.data[i].name, name);
    for (int i = 0; i < p->sizes.n; i++) taken |= !strcmp(p->sizes.data[i], name);
    return taken;
}

const char *say_fresh(const RowProgram *p, const char *name) {
    while (is_taken(p, name)) name = arena_printf(p->arena, "%s_", name);
    return name;
}

// A name as an expression.
const Ex *say_named(Explain *x, const char *name, Span span) {
    int i = 0;
    Explanation *to = x->to;
    while (i < to->names.n && strcmp(to->names.data[i].name, name)) i++;
    ExplainName new = {name, span};
    if (i == to->names.n) VEC_PUSH(x->arena, &to->names, new);
    return ex_sym(x->pool, SYM_PARAM, i, EX_F32);
}

const Ex *say_own(Explain *x, const char *name) { return say_named(x, name, (Span){0}); }

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
    const char *name = say_fresh(s->row, "A");
    return s->shifts.n == 1 ? name : arena_printf(s->row->arena, "%s%d", name, i);
}

const Ex *say_state(Explain *x, int i, const char *mark) {
    return say_named(x, arena_printf(x->arena, "%s%s", pass_state_name(x->s, i), mark),
                     x->s->states.data[i].span);
}

const Ex *say_shift(Explain *x, int i, const char *mark) {
    return say_own(x, arena_printf(x->arena, "%s%s", pass_shift_name(x->s, i), mark));
}

const Ex *say_base(Explain *x, int scale, int i, const char *mark) {
    const Stream *s = x->s;
    int number = i, all = 0;
    for (int k = 0; k < s->scales.n; k++) {
        if (k < scale) number += s->scales.data[k].n;
        all += s->scales.data[k].n;
    }
    if (all == 1) return say_own(x, arena_printf(x->arena, "%s%s", x->base, mark));
    return say_own(x, arena_printf(x->arena, "%s%d%s", x->base, number, mark));
}

static const char *shared_name(Explain *x, int i) {
    const char *p = say_fresh(x->s->row, "p");
    return i ? arena_printf(x->arena, "%s%d", p, i + 1) : p;
}

static const Ex *name_one(void *ctx, ExPool *p, const Ex *e) {
    Explain *x = ctx;
    if (e->op != EX_SYM) return e;
    switch ((int)e->sym) {
    case SYM_S: return say_named(x, x->score, e->span);
    case SYM_STATE: return say_state(x, e->index, x->mark);
    case SYM_SHIFT: return say_shift(x, e->index, x->mark);
    case SYM_RISE:
        return ex_2(p, EX_DIV, say_base(x, x->scale, e->index, x->now),
                    say_base(x, x->scale, e->index, x->was));
    case SYM_W: return say_own(x, x->weight);
    case SYM_DW: return say_own(x, arena_printf(x->arena, "d%s", x->weight));
    case SYM_DS: return say_own(x, arena_printf(x->arena, "d%s", x->score));
    case SYM_DO: return say_own(x, "do");
    case SYM_DEMIT:
        return say_own(x, arena_printf(x->arena, "d%s", x->s->row->emits.data[e->index].name));
    case SYM_ROW: return say_own(x, x->backward->rows.data[e->index].name);
    case SYM_LET: return say_own(x, shared_name(x, e->index));
    case SYM_R:
        return say_named(x, x->s->row->reduces.data[e->index].name,
                         x->s->row->reduces.data[e->index].span);
    default: return e;
    }
}

// ---- what several formulas have in common

static bool worth_a_name(const Ex *e) { return e->type == EX_F32 && ex_count(e) >= WORTH_A_NAME; }

static const Ex *replace_one(void *ctx, ExPool *p, const Ex *e) {
    const Explain *x = ctx;
    if (e->op == EX_ROUNDED) e = e->args[0];           // a matter of arithmetic
    if (e->op == EX_FMA && e->args[0]->op == EX_NEG) { // c - a * b
        const Ex *ab = ex_2(p, EX_MUL, e->args[0]->args[0], e->args[1]);
        e = ex_2(p, EX_SUB, e->args[2], ab);
    }
    for (int i = x->shared.n; i-- > x->told;)
        if (x->shared.data[i] == e) return ex_sym(p, SYM_LET, i, e->type);
    return e;
}

static const Ex *with_shared(Explain *x, const Ex *e) {
    return ex_map(x->pool, large_left_out(x->pool, e), replace_one, x);
}

static void use(Arena *a, ExMemo *uses, const Ex *e) {
    int *known = ex_memo_get(uses, e);
    if (!known) ex_memo_put(a, uses, e, known = ARENA_NEW(a, int));
    ++*known;
}

void say_share(Explain *x, const Ex *const *formulas, int n) {
    Arena *scratch = arena_new();
    const Ex **roots = ARENA_ARRAY(scratch, const Ex *, n + 1);
    ExMemo uses = {0};
    const Ex **order;
    for (int i = 0; i < n; i++) roots[i] = large_left_out(x->pool, formulas[i]);
    int count = ex_order(scratch, roots, n, &order);
    for (int i = 0; i < n; i++) use(scratch, &uses, roots[i]);
    for (int i = 0; i < count; i++)
        for (int k = 0; k < order[i]->nargs; k++) use(scratch, &uses, order[i]->args[k]);
    x->told = x->shared.n;
    memset(x->said, 0, sizeof x->said);
    for (int i = 0; i < count && x->shared.n < x->told + MAX_SHARED; i++) {
        const int *times = ex_memo_get(&uses, order[i]);
        if (!times || *times < 2 || !worth_a_name(order[i])) continue;
        const Ex *e = with_shared(x, order[i]);
        VEC_PUSH(x->arena, &x->shared, e);
    }
    arena_free(scratch);
}

const Ex *say_here(Explain *x, const Ex *e) {
    return ex_map(x->pool, with_shared(x, e), name_one, x);
}

// ---- lines

void say_section(Explain *x, const char *id, const char *title) {
    ExplainSection s = {.id = id, .title = title, .over = EX_OVER_TILE};
    VEC_PUSH(x->arena, &x->to->sections, s);
    x->section = &x->to->sections.data[x->to->sections.n - 1];
}

void say_line(Explain *x) {
    ExplainLine l = {.note = true};
    VEC_PUSH(x->arena, &x->section->lines, l);
    x->line = &x->section->lines.data[x->section->lines.n - 1];
}

void say_prose(Explain *x, const char *text) {
    ExplainPart part = {text, NULL, NULL};
    VEC_PUSH(x->arena, &x->line->parts, part);
}

Span say_place_of(const Explain *x, const Ex *e) {
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

void say_formula(Explain *x, const Ex *name, const Ex *e) {
    ExplainPart part = {NULL, name, e};
    VEC_PUSH(x->arena, &x->line->parts, part);
    if (!name) return;
    x->line->note = false;
    x->line->defines = x->to->names.data[name->index].name;
    x->line->span = say_place_of(x, e);
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

void say_equation(Explain *x, const Ex *name, const Ex *e) {
    say_line(x);
    say_formula(x, name, e);
    Span known = x->to->names.data[name->index].span;
    if (known.file) x->line->span = place_of_reduction(x, known);
}

void say_shared(Explain *x, const Ex *e) {
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
        say_equation(x, say_own(x, shared_name(x, x->told + i)), value);
    }
}

void say_with_shared(Explain *x, const Ex *name, const Ex *e) {
    say_shared(x, e);
    say_equation(x, name, say_here(x, e));
}
