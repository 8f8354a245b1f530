// normal_form.c: the multiplicative normal form.
//
// In: an expression of s and of row reductions, some of them unfinished. Out: u(s) * exp2(x(s) +
// shift) * factor.
//
//     exp(s - m) / l          m moves, l settles  ->  exp2(s*log2e + A), A = -m*log2e, factor 1/l
//     s / max(l, 1)                               ->  s,                               factor
//     1/max(l, 1) exp(s - (m + log(l)))                       ->  exp2(s*log2e + A), A = -m*log2e,
//     factor 1/l (s - mean) * 2          mean settles        ->  no such form: s - mean mixes the
//     two
//
// What is deferred must not leave f32 where the formula does not: `s / m` keeps pow(s / m, 8) small, and
// pow(s, 8), with 1/m^8 deferred, is not. So there are two elements: u, without all that belongs to the
// row, is taken where it is one of the formula's own numbers or in range whatever scores are
// (magnitude.h); else `held`, which keeps what the row has by then. An extremum that still moves is
// then a running scale:
//
//     pow(s / m, 8) / l      m moves, l settles  ->  pow(s / m, 8) with base m, ratio pow(rise, -8),
//                                                    factor 1/l
//
// Every node gets its form from its arguments' (struct Nf), bottom up. What has no unfinished
// reduction is always its own form; it is taken apart only to bring exponents together. Rules hold
// for all finite values of the row scalars: roots and extrema need a factor that is proved not to
// be negative.
#include "passes/derive/normal_form.h"

#include "passes/derive/magnitude.h"
#include "passes/simplify/rules.h"

#include <math.h>

// known * scale * factor * u * exp2(x + base + shift). NULL stands for 1, or 0 in an exponent. Where
// `whole` is set, u and held hold SYM_SHIFT itself, there is no x, and as a whole they grow by exp2 of
// the shift.
typedef struct Nf {
    bool ok, whole;
    const Ex *u;     // of the element; no unfinished reduction
    const Ex *x;     // exponent, log2, of the element; no unfinished reduction
    const Ex *base;  // exponent; row scalars that are known
    const Ex *shift; // exponent; row scalars, each term with one that moves
    const Ex *exp; // what exp2(x + base + shift) was written as, where one exp2 made it; else NULL
    const Ex *known;  // row scalars that are known
    const Ex *scale;  // powers of bases: SYM_RISE stands for each
    const Ex *held;   // known * scale * u, as it is written
    const Ex *factor; // other row scalars, one at least unfinished
} Nf;

enum { ELEM = 1, MOVING = 2, SETTLING = 4, UNFINISHED = MOVING | SETTLING };

typedef struct Ctx {
    ExPool *p;
    Arena *scratch;
    const NfRow *row;
    ExMemo forms, deps, signs; // Nf *, unsigned *, NULL where it may be negative
    int budget;                // terms of exponents still to be looked at
    const Ex *base[STREAM_MAX_BASES];
    int nbases;
} Ctx;

// ---- building

static const Ex *times(Ctx *c, const Ex *a, const Ex *b) {
    return !a ? b : !b ? a : simp_2(c->p, EX_MUL, a, b);
}

static const Ex *plus(Ctx *c, const Ex *a, const Ex *b) {
    return !a ? b : !b ? a : simp_2(c->p, EX_ADD, a, b);
}

static const Ex *minus(Ctx *c, const Ex *a) { return a ? simp_1(c->p, EX_NEG, a) : NULL; }

static const Ex *less(Ctx *c, const Ex *a, const Ex *b) { return plus(c, a, minus(c, b)); }

static const Ex *over(Ctx *c, const Ex *a, const Ex *b) {
    if (!b) return a;
    return a ? simp_2(c->p, EX_DIV, a, b) : simp_1(c->p, EX_RCP, b);
}

static const Ex *or_const(Ctx *c, const Ex *e, float v) { return e ? e : ex_f32(c->p, v); }

static const Ex *exponent(Ctx *c, const Nf *n) { return plus(c, n->x, plus(c, n->base, n->shift)); }
static bool has_exponent(const Nf *n) { return n->x || n->base || n->shift; }

static const Ex *shift_symbol(Ctx *c) { return ex_sym(c->p, SYM_SHIFT, NF_SHIFT, EX_F32); }

// u, a part of n, times its exponential.
static const Ex *with_exponent(Ctx *c, const Nf *n, const Ex *u) {
    const Ex *row = n->shift && !n->whole ? plus(c, n->base, shift_symbol(c)) : n->base;
    const Ex *x = plus(c, n->x, row); // the row's part apart, to be computed once per row
    const Ex *e = !x ? NULL : n->exp && !n->shift ? n->exp : simp_1(c->p, EX_EXP2, x);
    return times(c, u, e);
}

// All that depends on the element, and what is known, as one expression.
static const Ex *value_of(Ctx *c, const Nf *n) {
    return or_const(c, times(c, with_exponent(c, n, n->u), n->known), 1);
}

static const Ex *held_value(Ctx *c, const Nf *n) {
    return or_const(c, with_exponent(c, n, n->held), 1);
}

// ---- what an expression depends on

static unsigned own_deps(const Ctx *c, const Ex *e) {
    if (e->op != EX_SYM) return 0;
    if (e->sym == SYM_S || e->sym == SYM_KV_IDX) return ELEM;
    if (e->sym != SYM_R) return 0;
    NfMotion m = c->row->motion[e->index];
    return m == NF_KNOWN ? 0 : m == NF_SETTLING ? SETTLING : MOVING;
}

// e's arguments are known already.
static unsigned find_deps(Ctx *c, const Ex *e) {
    unsigned *d = ARENA_NEW(c->scratch, unsigned), *known;
    *d = own_deps(c, e);
    for (int k = 0; k < e->nargs; k++)
        if ((known = ex_memo_get(&c->deps, e->args[k]))) *d |= *known;
    ex_memo_put(c->scratch, &c->deps, e, d);
    return *d;
}

// Of a node of the current expression, or of one made from such by a few operations.
static unsigned deps(Ctx *c, const Ex *e) {
    const unsigned *known = ex_memo_get(&c->deps, e);
    if (known) return *known;
    for (int k = 0; k < e->nargs; k++) deps(c, e->args[k]);
    return find_deps(c, e);
}

static bool never_negative(Ctx *c, const Ex *e) {
    const void *known = NULL;
    if (!e) return true;
    if (ex_memo_has(&c->signs, e, &known)) return known != NULL;
    ClassEnv env = {.s = CL_FINITE, .r = c->row->classes};
    bool never = !(class_of(e, &env) & (CL_NAN | CL_NINF | CL_NEG));
    ex_memo_put(c->scratch, &c->signs, e, never ? e : NULL);
    return never;
}

// ---- exponents

enum { MAX_DEPTH = 100, MAX_EXPONENT_TERMS = 200 };

static bool split(Ctx *c, const Ex *e, const Ex *scale, Nf *out, int depth);

// exp2(k * log2(x)) = x^k, which needs no exponent: a factor even where x settles.
static bool logarithm(Ctx *c, const Ex *e, const Ex *k, Nf *out) {
    if (e->op == EX_MUL && e->args[0]->op == EX_LOG2 && !deps(c, e->args[1])) {
        k = times(c, k, e->args[1]);
        e = e->args[0];
    }
    if (e->op != EX_LOG2 || !never_negative(c, e->args[0])) return false;
    const Ex *x = e->args[0];
    if (k && ex_is_f32(k, -1))
        out->factor = over(c, out->factor, x);
    else
        out->factor = times(c, out->factor, k ? simp_2(c->p, EX_POW, x, k) : x);
    return true;
}

static bool split_sum(Ctx *c, const Ex *e, const Ex *k, Nf *out, int depth) {
    const Ex *minus_k = k ? minus(c, k) : ex_f32(c->p, -1);
    return split(c, e->args[0], k, out, depth) &&
           split(c, e->args[1], e->op == EX_SUB ? minus_k : k, out, depth);
}

// A term that is no sum: where it goes.
static bool split_leaf(Ctx *c, const Ex *e, const Ex *k, Nf *out) {
    unsigned d = deps(c, e);
    if (d & SETTLING) return !(d & ELEM) && logarithm(c, e, k, out);
    if (d & ELEM && d & MOVING) return false;
    const Ex **to = d & MOVING ? &out->shift : d & ELEM ? &out->x : &out->base;
    *to = plus(c, *to, times(c, e, k));
    return true;
}

// Adds k * e to the exponent: to x, to base, to shift, or as a factor.
static bool split(Ctx *c, const Ex *e, const Ex *k, Nf *out, int depth) {
    if (depth > MAX_DEPTH || --c->budget < 0) return false;
    bool closed = !(deps(c, e) & UNFINISHED); // not taken apart more than needed
    const Ex *a = e->nargs ? e->args[0] : NULL, *b = e->nargs > 1 ? e->args[1] : NULL;
    switch (closed ? -1 : (int)e->op) {
    case EX_ADD:
    case EX_SUB: return split_sum(c, e, k, out, depth + 1);
    case EX_NEG: return split(c, a, k ? minus(c, k) : ex_f32(c->p, -1), out, depth + 1);
    case EX_MUL:
        if (!deps(c, b)) return split(c, a, times(c, k, b), out, depth + 1);
        if (!deps(c, a)) return split(c, b, times(c, k, a), out, depth + 1);
        break;
    case EX_DIV:
        if (!deps(c, b)) return split(c, a, over(c, k, b), out, depth + 1);
        break;
    default: break;
    }
    return split_leaf(c, e, k, out);
}

static Nf nf_exp2(Ctx *c, const Ex *e) {
    Nf n = {.ok = true, .exp = e};
    const Ex *arg = e->args[0];
    c->budget = MAX_EXPONENT_TERMS;
    if (split(c, arg, NULL, &n, 0)) {
        if (n.factor) n.exp = NULL; // a logarithm went out of it
        return n;
    }
    // A row scalar that settles may stand in an exponent of its own, where no element needs it to
    // keep from overflowing.
    if (!(deps(c, arg) & ELEM)) return (Nf){.ok = true, .factor = e};
    return (Nf){.ok = false};
}

// ---- products

// An exponent without an element in it is a factor: nothing there needs a running value to keep
// from overflowing.
static void settle(Ctx *c, Nf *n) {
    if (n->whole || n->x || !has_exponent(n)) return;
    const Ex *e = n->exp ? n->exp : simp_1(c->p, EX_EXP2, exponent(c, n));
    if (n->shift) {
        n->factor = times(c, n->factor, e);
    } else {
        n->known = times(c, n->known, e);
        n->held = times(c, n->held, e);
    }
    n->base = n->shift = NULL;
}

// Beside an exponent that is whole already, an exponent of row scalars alone is a factor: joined,
// the two would not cancel.
static Nf kept_apart(Ctx *c, const Nf *n, const Nf *other) {
    Nf r = *n;
    if (other->x && other->shift) settle(c, &r);
    return r;
}

// Or a quotient.
static Nf nf_product(Ctx *c, const Nf *left, const Nf *right, bool divides) {
    const Nf apart[] = {kept_apart(c, left, right), kept_apart(c, right, left)}, *a = &apart[0],
             *b = &apart[1];
    const Ex *(*join)(Ctx *, const Ex *, const Ex *) = divides ? over : times;
    const Ex *(*add)(Ctx *, const Ex *, const Ex *) = divides ? less : plus;
    bool clash = divides ? b->whole || (a->whole && has_exponent(b))
                         : (a->whole && b->shift) || (b->whole && a->shift);
    if (!a->ok || !b->ok || clash) return (Nf){.ok = false};
    Nf n = {.ok = true, .whole = a->whole || b->whole};
    n.u = join(c, a->u, b->u);
    n.x = add(c, a->x, b->x);
    n.base = add(c, a->base, b->base);
    n.shift = add(c, a->shift, b->shift);
    n.exp = !has_exponent(b) ? a->exp : divides || has_exponent(a) ? NULL : b->exp;
    n.known = join(c, a->known, b->known);
    n.scale = join(c, a->scale, b->scale);
    n.held = join(c, a->held, b->held);
    n.factor = join(c, a->factor, b->factor);
    if (n.whole && (n.x || n.base)) { // the exponent of the one belongs to each term of the other
        const Ex *e = simp_1(c->p, EX_EXP2, plus(c, n.x, n.base));
        n.u = times(c, n.u, e);
        n.held = times(c, n.held, e);
        n.x = n.base = NULL;
    }
    return n;
}

static const Ex *apply(Ctx *c, ExOp op, const Ex *a, const Ex *n) {
    if (!a) return NULL; // of 1: 1
    return n ? simp_2(c->p, op, a, n) : simp_1(c->p, op, a);
}

// fn(u * known * factor) * exp2(...)^n for fn one of sqrt, rsqrt, pow(., n), which go through
// products of what is not negative.
static Nf nf_power(Ctx *c, ExOp op, const Nf *a, const Ex *exponent, float n) {
    bool whole_number = op == EX_POW && n == floorf(n);
    bool positive = never_negative(c, a->factor) && never_negative(c, a->known);
    if (!a->ok || a->whole || (!positive && !whole_number)) return (Nf){.ok = false};
    Nf r = {.ok = true};
    const Ex *power = ex_f32(c->p, n);
    r.u = apply(c, op, a->u, exponent);
    r.known = apply(c, op, a->known, exponent);
    r.scale = apply(c, op, a->scale, exponent);
    r.held = apply(c, op, a->held, exponent);
    r.factor = apply(c, op, a->factor, exponent);
    r.x = a->x ? times(c, a->x, power) : NULL;
    r.base = a->base ? times(c, a->base, power) : NULL;
    r.shift = a->shift ? times(c, a->shift, power) : NULL;
    return r;
}

static Nf nf_abs(Ctx *c, const Nf *a) {
    Nf n = *a;
    n.u = apply(c, EX_ABS, a->u, NULL);
    n.known = apply(c, EX_ABS, a->known, NULL);
    n.held = apply(c, EX_ABS, a->held, NULL);
    n.factor = apply(c, EX_ABS, a->factor, NULL);
    return n;
}

// ---- sums, extrema, selections: both sides must grow alike

static bool is_zero(const Nf *n) {
    return n->ok && !n->factor && !n->scale && !has_exponent(n) &&
           ((n->u && ex_is_f32(n->u, 0)) || (n->known && ex_is_f32(n->known, 0)));
}

static const Ex *joined(Ctx *c, const Ex *e, const Ex *a, const Ex *b) {
    return e->op == EX_SELECT ? simp_select(c->p, e->args[0], a, b) : simp_2(c->p, e->op, a, b);
}

// One side is 0, which has every exponent and every factor.
static Nf nf_with_zero(Ctx *c, const Ex *e, const Nf *a, const Nf *b) {
    const Nf *one = is_zero(a) ? b : a;
    const Ex *zero = ex_f32(c->p, 0), *u = times(c, or_const(c, one->u, 1), one->known);
    Nf n = *one;
    const Ex *held = or_const(c, one->held, 1);
    n.known = NULL;
    n.u = joined(c, e, one == a ? u : zero, one == a ? zero : u);
    n.held = joined(c, e, one == a ? held : zero, one == a ? zero : held);
    // exp2 of an exponent that is not selected must not meet 0 as an infinity
    if (e->op == EX_SELECT && has_exponent(&n) && !n.whole) {
        const Ex *none = ex_f32(c->p, -INFINITY), *x = or_const(c, n.x, 0);
        n.x = joined(c, e, one == a ? x : none, one == a ? none : x);
        n.exp = NULL;
    }
    return n;
}

static bool is_bounded(Ctx *c, const Nf *n) {
    return !n->shift || n->whole || nf_bounded(c->p, n->x, n->shift, c->row);
}

static Nf nf_join(Ctx *c, const Ex *e, const Nf *a, const Nf *b) {
    bool extremum = e->op == EX_MAX || e->op == EX_MIN;
    if (!a->ok || !b->ok) return (Nf){.ok = false};
    if (e->op == EX_SELECT && deps(c, e->args[0]) & UNFINISHED) return (Nf){.ok = false};
    const Ex *factor = a->factor ? a->factor : b->factor;
    if (extremum && !never_negative(c, factor)) return (Nf){.ok = false};
    if (is_zero(a) || is_zero(b)) return nf_with_zero(c, e, a, b);
    if (a->factor != b->factor || a->scale != b->scale || a->shift != b->shift)
        return (Nf){.ok = false};
    Nf n = {.ok = true, .factor = factor, .scale = a->scale, .shift = a->shift};
    if (a->x == b->x && a->base == b->base && !a->whole && !b->whole) {
        n.x = a->x;
        n.base = a->base;
        n.exp = a->exp;
        n.u = joined(c, e, or_const(c, times(c, a->u, a->known), 1),
                     or_const(c, times(c, b->u, b->known), 1));
        n.held = joined(c, e, or_const(c, a->held, 1), or_const(c, b->held, 1));
        return n;
    }
    n.whole = a->shift != NULL;
    if (!is_bounded(c, a) || !is_bounded(c, b)) return (Nf){.ok = false};
    n.u = joined(c, e, value_of(c, a), value_of(c, b));
    n.held = joined(c, e, held_value(c, a), held_value(c, b));
    return n;
}

// ---- the walk

static const Nf *form_of(const Ctx *c, const Ex *e) { return ex_memo_get(&c->forms, e); }

// A maximum of what is not negative, which rises; perhaps with something known.
static bool is_base(Ctx *c, const Ex *e) {
    if (e->op == EX_MAX) {
        const Ex *known = deps(c, e->args[0]) ? e->args[1] : e->args[0],
                 *moving = known == e->args[1] ? e->args[0] : e->args[1];
        return !deps(c, known) && is_base(c, moving);
    }
    if (e->op != EX_SYM || e->sym != SYM_R || c->row->motion[e->index] != NF_RISING) return false;
    ClassSet full = c->row->classes[e->index];
    return !(full & ~(unsigned)(CL_ZERO | CL_POS)) && never_negative(c, c->row->reduced[e->index]);
}

// Where it is 0, so is all that was divided by it.
static Nf nf_base(Ctx *c, const Ex *e) {
    ClassEnv env = {.s = CL_FINITE, .r = c->row->classes};
    const Ex *above = e;
    int i = 0;
    while (i < c->nbases && c->base[i] != e) i++;
    if (i == STREAM_MAX_BASES) return (Nf){.ok = true, .factor = e};
    if (i == c->nbases) c->base[c->nbases++] = e;
    if (class_of(e, &env) & CL_ZERO) {
        const Ex *none = ex_2(c->p, EX_EQ, e, ex_f32(c->p, 0));
        above = simp_select(c->p, none, ex_f32(c->p, 1), e);
    }
    return (Nf){.ok = true, .scale = ex_sym(c->p, SYM_RISE, i, EX_F32), .held = above};
}

static Nf plain(Ctx *c, const Ex *e) {
    unsigned d = deps(c, e);
    if (d == MOVING && is_base(c, e)) return nf_base(c, e);
    if (!(d & UNFINISHED))
        return d & ELEM ? (Nf){.ok = true, .u = e, .held = e}
                        : (Nf){.ok = true, .known = e, .held = e};
    return d & ELEM ? (Nf){.ok = false} : (Nf){.ok = true, .factor = e};
}

// Operations that are taken apart whatever they depend on.
static Nf nf_any(Ctx *c, const Ex *e) {
    static const Nf one = {.ok = true};
    const Nf *a = e->nargs ? form_of(c, e->args[0]) : NULL,
             *b = e->nargs > 1 ? form_of(c, e->args[1]) : NULL;
    switch ((int)e->op) {
    case EX_EXP2: return nf_exp2(c, e);
    case EX_MUL:
    case EX_DIV: return nf_product(c, a, b, e->op == EX_DIV);
    case EX_RCP: return nf_product(c, &one, a, true);
    case EX_NEG: {
        Nf n = *a;
        n.u = simp_1(c->p, EX_NEG, or_const(c, a->u, 1));
        n.held = simp_1(c->p, EX_NEG, or_const(c, a->held, 1));
        return n;
    }
    default: return (Nf){.ok = false};
    }
}

// Operations that are taken apart where an element meets an unfinished reduction.
static Nf nf_mixed(Ctx *c, const Ex *e) {
    const Nf *a = e->nargs ? form_of(c, e->args[0]) : NULL;
    switch ((int)e->op) {
    case EX_SQRT: return nf_power(c, EX_SQRT, a, NULL, 0.5f);
    case EX_RSQRT: return nf_power(c, EX_RSQRT, a, NULL, -0.5f);
    case EX_POW:
        if (e->args[1]->op != EX_CONST) return (Nf){.ok = false};
        return nf_power(c, EX_POW, a, e->args[1], e->args[1]->f);
    case EX_ABS: return nf_abs(c, a);
    case EX_ADD:
    case EX_SUB:
    case EX_MIN:
    case EX_MAX: return nf_join(c, e, a, form_of(c, e->args[1]));
    case EX_SELECT: return nf_join(c, e, form_of(c, e->args[1]), form_of(c, e->args[2]));
    default: return (Nf){.ok = false};
    }
}

static Nf nf_node(Ctx *c, const Ex *e) {
    Nf n = nf_any(c, e);
    if (n.ok) return n;
    unsigned d = deps(c, e);
    return d & ELEM && d & UNFINISHED ? nf_mixed(c, e) : plain(c, e);
}

// ---- which of the two elements

static bool is_node(const Ctx *c, const Ex *e) {
    const NfRow *row = c->row;
    bool found = form_of(c, e) != NULL;
    for (int k = 0; k < row->program->reduces.n && !found; k++)
        found = row->reduced[k] && ex_holds(row->reduced[k], e);
    return found;
}

// Whether it is one of the formula's numbers, here or in a reduction.
static bool is_written(const Ctx *c, const Ex *e) {
    return is_node(c, e) ||
           (e->op == EX_MUL && is_node(c, simp_2(c->p, EX_MUL, e->args[1], e->args[0])));
}

// An element that its factor makes no larger vanishes only where the formula's number does.
static bool in_range(const Ctx *c, const Ex *e, const Ex *factor) {
    Magnitude m = row_magnitude(c->row->program, e);
    bool above = factor && row_magnitude(c->row->program, factor).most <= 0;
    return (m.least >= MAGNITUDE_LEAST || above) && m.most <= MAGNITUDE_MOST;
}

// Too large beside v and other keys, if not by itself.
static bool is_wide(const Ctx *c, const Ex *e) {
    return row_magnitude(c->row->program, e).most > MAGNITUDE_MOST &&
           row_relative(c->row->program, e) > MAGNITUDE_MOST;
}

static const Ex *deferred(const Ex *factor) {
    return factor && ex_is_f32(factor, 1) ? NULL : factor;
}

// The scale as a factor: bases in the place of what they stand for.
static const Ex *scale_value(Ctx *c, const Ex *scale) {
    for (int i = 0; scale && i < c->nbases; i++)
        scale = ex_subst(c->p, scale, SYM_RISE, i, c->base[i]);
    return scale;
}

static bool choose_bare(Ctx *c, const Nf *n, NormalForm *out) {
    const Ex *u = or_const(c, with_exponent(c, n, n->u), 1),
             *factor = times(c, n->factor, scale_value(c, n->scale)),
             *later = times(c, factor, n->known);
    bool power = has_exponent(n) && !n->shift; // exp(a) * exp(b), one of which may be written alone
    bool wide = (factor || (n->known && ex_uses(n->known, SYM_R, -1))) && is_wide(c, u);
    if (!in_range(c, u, later) && !is_written(c, u) && !(power && !n->u)) return false;
    if (wide && !factor) return false; // better as it is written
    *out = (NormalForm){.elem = u, .shift = n->shift, .factor = deferred(later), .wide = wide};
    return true;
}

static bool choose_held(Ctx *c, const Nf *n, NormalForm *out) {
    const Ex *elem = held_value(c, n);
    bool wide = is_wide(c, elem);
    if (n->scale ? wide || is_wide(c, or_const(c, n->held, 1)) : !is_written(c, elem)) return false;
    *out = (NormalForm){
        .elem = elem, .shift = n->shift, .factor = deferred(n->factor), .wide = n->factor && wide};
    if (!n->scale) return true;
    StreamScale *s = &out->scale;
    s->ratio = n->scale;
    for (int i = 0; i < c->nbases; i++) {
        if (!ex_uses(n->scale, SYM_RISE, i)) continue;
        s->ratio = ex_subst(c->p, s->ratio, SYM_RISE, i, ex_sym(c->p, SYM_RISE, s->n, EX_F32));
        s->base[s->n++] = c->base[i];
    }
    return true;
}

bool normal_form(ExPool *p, const Ex *e, const NfRow *row, NormalForm *out) {
    Ctx c = {.p = p, .scratch = arena_new(), .row = row};
    const Ex **order;
    int count = ex_order(c.scratch, &e, 1, &order);
    for (int i = 0; i < count; i++) {
        find_deps(&c, order[i]);
        if (order[i]->type != EX_F32) continue;
        Nf *n = ARENA_NEW(c.scratch, Nf);
        *n = nf_node(&c, order[i]);
        ex_memo_put(c.scratch, &c.forms, order[i], n);
    }
    Nf n = *form_of(&c, e);
    settle(&c, &n);
    NfWhy why = !n.ok ? NF_MIXED : !is_bounded(&c, &n) ? NF_UNBOUNDED : NF_RANGE;
    bool found = why == NF_RANGE && (choose_bare(&c, &n, out) || choose_held(&c, &n, out));
    if (!found) out->why = why;
    arena_free(c.scratch);
    return found;
}
