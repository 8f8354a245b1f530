// polynomial.c: sums of products of powers of atoms (polynomial.h).
//
// In: expressions. Out: their polynomials, and expressions of these. Holds afterwards: equal as formulas of finite numbers; a
// selection is a sum of two products with an indicator, `c ? 1 : 0`, which becomes a selection again on the way out.
#include "passes/derive/polynomial.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Of a polynomial; of an exponent; of what is chosen; products of terms in a derivation, after which all is an atom.
enum { MOST_TERMS = 100, MOST_FACTORS = 40, MOST_CHOSEN = 4, MOST_PRODUCTS = 100000 };

// Of an exponent: exp() of a larger constant, or of two, may leave f32.
enum { MOST_TAKEN_OUT = 40 };

typedef VEC(Term) Terms;

typedef struct Written { // a sum as the formula has it
    const Ex *e;
    double scale; // e is the atom times this
} Written;

typedef struct Power { // an exponential that changes from key to key
    const Ex *key;     // what changes in its exponent, times a number; as an expression
    const Ex *atom;
    double coef; // that number
    Poly row;    // the rest of its exponent
} Power;

struct Polys {
    ExPool *p;
    Arena *a;
    const ClassSet *classes;
    ExMemo known;   // Poly * by expression
    ExMemo sums;    // Poly * by atom
    ExMemo written; // Written * by atom
    VEC(Power) powers;
    int products;
};

static Poly power_of(Polys *s, const Poly *a, double n, const Ex *whole);
static const Ex *sum_ex(Polys *s, const Poly *a, bool as_written);
static const Ex *term_ex(Polys *s, const Term *t, bool as_written);

// ---- terms

static bool is_indicator(const Ex *e) {
    if (e->op != EX_SELECT) return false;
    const Ex *a = e->args[1], *b = e->args[2];
    return (ex_is_f32(a, 1) && ex_is_f32(b, 0)) || (ex_is_f32(a, 0) && ex_is_f32(b, 1));
}

static bool is_key(void *ctx, const Ex *e) {
    (void)ctx;
    return e->op == EX_SYM && e->sym != SYM_R && e->sym != SYM_B && e->sym != SYM_H &&
           e->sym != SYM_Q_IDX && e->sym != SYM_SIZE && e->sym != SYM_SCALAR && e->sym != SYM_ROW &&
           e->sym != SYM_DEMIT;
}

bool poly_is_of_row(const Ex *e) { return !ex_any(e, is_key, NULL); }

static Poly terms_to_poly(Terms t) { return (Poly){t.n, t.data}; }

static Poly one_term(Polys *s, double coef, const Ex *atom, double power) {
    if (coef == 0) return (Poly){0, NULL};
    Term *t = ARENA_NEW(s->a, Term);
    t->coef = coef;
    if (atom && power != 0) {
        t->factor = ARENA_NEW(s->a, PolyFactor);
        t->factor[t->n++] = (PolyFactor){atom, power};
    }
    return (Poly){1, t};
}

// What rounded constants have made of a simple number.
static double simple(double v) {
    double near = round(v * 4096) / 4096;
    return fabs(v - near) <= 1e-6 * fabs(v) ? near : v;
}

static Poly number(Polys *s, double v) { return one_term(s, v, NULL, 0); }
static Poly atom(Polys *s, const Ex *e) { return one_term(s, 1, e, 1); }

bool poly_same(const Term *a, const Term *b) {
    if (a->n != b->n) return false;
    for (int i = 0; i < a->n; i++)
        if (a->factor[i].atom != b->factor[i].atom ||
            fabs(a->factor[i].power - b->factor[i].power) > 1e-5)
            return false;
    return true;
}

static bool excludes(const Ex *a, const Ex *b) { return a->args[0] == b->args[0] && a != b; }

// The product; coef 0 where one chooses what the other does not.
static Term times(Polys *s, const Term *a, const Term *b) {
    s->products++;
    Term t = {simple(a->coef * b->coef), 0, ARENA_ARRAY(s->a, PolyFactor, a->n + b->n + 1)};
    for (int i = 0, j = 0; i < a->n || j < b->n;) {
        PolyFactor f;
        if (j == b->n || (i < a->n && a->factor[i].atom->id < b->factor[j].atom->id)) {
            f = a->factor[i++];
        } else if (i == a->n || b->factor[j].atom->id < a->factor[i].atom->id) {
            f = b->factor[j++];
        } else {
            f = a->factor[i++];
            f.power = is_indicator(f.atom) ? 1 : f.power + b->factor[j].power;
            j++;
        }
        if (fabs(f.power) < 1e-5) continue;
        for (int k = 0; k < t.n && is_indicator(f.atom); k++)
            if (is_indicator(t.factor[k].atom) && excludes(t.factor[k].atom, f.atom)) t.coef = 0;
        t.factor[t.n++] = f;
    }
    return t;
}

static void add(Polys *s, Terms *to, const Term *t) {
    if (t->coef == 0) return;
    s->products += to->n / 16;
    for (int i = 0; i < to->n; i++)
        if (poly_same(&to->data[i], t)) {
            double sum = to->data[i].coef + t->coef;
            bool none = fabs(sum) < 1e-6 * (fabs(to->data[i].coef) + fabs(t->coef));
            to->data[i].coef = none ? 0 : sum;
            if (none) {
                memmove(&to->data[i], &to->data[i + 1], sizeof *t * (size_t)(to->n - i - 1));
                to->n--;
            }
            return;
        }
    VEC_PUSH(s->a, to, *t);
}

Poly poly_plus(Polys *s, const Poly *a, const Poly *b) {
    Terms t = {0};
    for (int i = 0; i < a->n; i++) add(s, &t, &a->term[i]);
    for (int i = 0; i < b->n; i++) add(s, &t, &b->term[i]);
    return terms_to_poly(t);
}

static Poly product(Polys *s, const Poly *a, const Poly *b) { // multiplied out
    Terms t = {0};
    for (int i = 0; i < a->n; i++)
        for (int j = 0; j < b->n; j++) {
            Term x = times(s, &a->term[i], &b->term[j]);
            add(s, &t, &x);
        }
    return terms_to_poly(t);
}

// ---- sums as factors

// The nearest number of 20 bits: two that differ by the rounding of constants are one.
static float coarse(double v) {
    int exponent;
    double m = frexp(v, &exponent);
    return (float)ldexp(round(ldexp(m, 20)), exponent - 20);
}

static int compare(const void *x, const void *y) {
    const Term *a = x, *b = y;
    if (a->n != b->n) return a->n < b->n ? -1 : 1;
    for (int i = 0; i < a->n; i++) {
        const PolyFactor *f = &a->factor[i], *g = &b->factor[i];
        if (f->atom != g->atom) return f->atom->id < g->atom->id ? -1 : 1;
        if (fabs(f->power - g->power) > 1e-5) return f->power < g->power ? -1 : 1;
    }
    return 0;
}

// The same for every multiple, which it is *scale times, and every order.
static Poly leading_one(Polys *s, const Poly *a, double *scale) {
    Poly one = {a->n, ARENA_ARRAY(s->a, Term, a->n)};
    memcpy(one.term, a->term, sizeof *a->term * (size_t)a->n);
    qsort(one.term, (size_t)a->n, sizeof *one.term, compare);
    *scale = one.term[a->n - 1].coef;
    for (int i = 0; i < a->n; i++) one.term[i].coef = (double)coarse(one.term[i].coef / *scale);
    return one;
}

// A sum as one atom times *scale.
static const Ex *sum_atom(Polys *s, const Poly *a, double *scale) {
    Poly *one = ARENA_NEW(s->a, Poly);
    *one = leading_one(s, a, scale);
    const Ex *e = sum_ex(s, one, false);
    ex_memo_put(s->a, &s->sums, e, one);
    return e;
}

// Its terms in another order may add up to 0 where x is not.
static void keep_written(Polys *s, const Ex *x) {
    Poly a = poly_of(s, x);
    if (a.n <= 1) return;
    Written *w = ARENA_NEW(s->a, Written);
    const Ex *e = sum_atom(s, &a, &w->scale);
    w->e = x;
    if (!ex_memo_get(&s->written, e)) ex_memo_put(s->a, &s->written, e, w);
}

static const Poly *sum_of(const Polys *s, const Ex *e) { return ex_memo_get(&s->sums, e); }

Poly poly_times(Polys *s, const Poly *a, const Poly *b) {
    const Poly *both[] = {a, b};
    Poly out = number(s, 1);
    for (int k = 0; k < 2; k++) {
        const Poly *x = both[k], *other = both[!k];
        bool constant = other->n == 1 && !other->term->n;
        double scale;
        if (x->n <= 1 || constant) {
            out = product(s, &out, x);
            continue;
        }
        const Ex *e = sum_atom(s, x, &scale);
        Poly f = one_term(s, scale, e, 1);
        out = product(s, &out, &f);
    }
    return out;
}

// One power of the first sum of a term multiplied out; false: it has none.
static bool spread_once(Polys *s, const Term *t, Poly *out) {
    for (int i = 0; i < t->n; i++) {
        const Poly *sum = sum_of(s, t->factor[i].atom);
        if (!sum || t->factor[i].power < 1 - 1e-5) continue;
        Term less = {1, 1, &(PolyFactor){t->factor[i].atom, -1}}, rest = times(s, t, &less);
        Poly one = {1, &rest};
        *out = product(s, &one, sum);
        return true;
    }
    return false;
}

static bool is_tired(const Polys *s) { return s->products > MOST_PRODUCTS; }

Poly poly_spread(Polys *s, const Poly *a) {
    Terms done = {0};
    Poly now = *a, part;
    while (now.n) {
        Terms next = {0};
        for (int i = 0; i < now.n; i++) {
            bool spread =
                done.n + next.n < MOST_TERMS && !is_tired(s) && spread_once(s, &now.term[i], &part);
            if (!spread) add(s, &done, &now.term[i]);
            for (int k = 0; spread && k < part.n; k++) add(s, &next, &part.term[k]);
        }
        now = terms_to_poly(next);
    }
    return terms_to_poly(done);
}

// [!c] as 1 - [c].
static Poly without_not(Polys *s, const Poly *a) {
    Poly out = {0, NULL};
    for (int i = 0; i < a->n; i++) {
        Poly t = number(s, a->term[i].coef);
        for (int k = 0; k < a->term[i].n; k++) {
            const Ex *e = a->term[i].factor[k].atom;
            Poly f = one_term(s, 1, e, a->term[i].factor[k].power);
            if (is_indicator(e) && ex_is_f32(e->args[1], 0)) {
                Poly one = number(s, 1),
                     is = one_term(
                         s, -1, ex_select(s->p, e->args[0], ex_f32(s->p, 1), ex_f32(s->p, 0)), 1);
                f = poly_plus(s, &one, &is);
            }
            t = product(s, &t, &f);
        }
        out = poly_plus(s, &out, &t);
    }
    return out;
}

// Times the sums that terms are divided by.
static Poly over_nothing(Polys *s, Poly a) {
    for (int i = 0; i < a.n; i++)
        for (int k = 0; k < a.term[i].n; k++) {
            PolyFactor f = a.term[i].factor[k];
            if (!sum_of(s, f.atom) || f.power >= 0) continue;
            Poly by = one_term(s, 1, f.atom, -f.power);
            a = product(s, &a, &by);
            i = -1;
            break;
        }
    return a;
}

bool poly_is_zero(Polys *s, const Poly *a) {
    if (!a->n) return true;
    if (a->n == 1 || a->n > MOST_TERMS || is_tired(s)) return false;
    Poly x = without_not(s, a);
    x = over_nothing(s, x);
    x = poly_spread(s, &x);
    return !x.n;
}

// ---- from expressions

static bool never_negative(const Polys *s, const Ex *e) {
    ClassEnv env = {.s = CL_FINITE, .r = s->classes};
    return !(class_of(e, &env) & (CL_NAN | CL_NINF | CL_NEG));
}

static bool is_whole(double n) { return fabs(n - round(n)) < 1e-6; }

static Poly power_of(Polys *s, const Poly *a, double n, const Ex *whole) {
    double scale = 1;
    if (!a->n) return n > 0 ? *a : atom(s, whole);
    if (a->n > 1) {
        const Ex *e = sum_atom(s, a, &scale);
        if (scale < 0 && !is_whole(n)) return atom(s, whole);
        return one_term(s, pow(scale, n), e, n);
    }
    Term t = {pow(a->term->coef, n), 0, ARENA_ARRAY(s->a, PolyFactor, a->term->n + 1)};
    if (a->term->coef < 0 && !is_whole(n)) return atom(s, whole);
    for (int i = 0; i < a->term->n; i++) {
        PolyFactor f = a->term->factor[i];
        if (is_indicator(f.atom) && n < 0) return atom(s, whole);
        if (!is_whole(n) && !never_negative(s, f.atom)) return atom(s, whole);
        f.power = is_indicator(f.atom) ? 1 : f.power * n;
        t.factor[t.n++] = f;
    }
    Poly out = {1, ARENA_NEW(s->a, Term)};
    *out.term = t;
    return out;
}

// exp(a) of numbers of the row: each term a power of its own.
static Poly exp_of_row(Polys *s, const Poly *a) {
    Poly out = number(s, 1);
    for (int i = 0; i < a->n; i++) {
        Term bare = a->term[i];
        bare.coef = 1;
        const Ex *log = bare.n == 1 && bare.factor->power == 1 ? bare.factor->atom : NULL;
        Poly f;
        if (!bare.n && fabs(a->term[i].coef) > MOST_TAKEN_OUT) {
            f = one_term(s, 1, ex_1(s->p, EX_EXP, ex_f32(s->p, 1)), a->term[i].coef);
        } else if (!bare.n) {
            f = number(s, exp(a->term[i].coef));
        } else if (log && log->op == EX_LOG) { // exp(k log(x)) is x^k
            Poly x = poly_of(s, log->args[0]);
            f = power_of(s, &x, a->term[i].coef,
                         ex_1(s->p, EX_EXP, term_ex(s, &a->term[i], false)));
        } else {
            f = one_term(s, 1, ex_1(s->p, EX_EXP, term_ex(s, &bare, false)), a->term[i].coef);
        }
        out = product(s, &out, &f);
    }
    return out;
}

// exp(a) of keys: a multiple of the first that differs from it by a number of the row.
static Poly exp_of_key(Polys *s, const Ex *e, const Poly *key, const Poly *row) {
    double coef;
    Poly one = leading_one(s, key, &coef);
    const Ex *of = sum_ex(s, &one, false);
    for (int i = 0; i < s->powers.n; i++) {
        const Power *x = &s->powers.data[i];
        if (x->key != of) continue;
        double n = coef / x->coef;
        if (is_whole(n)) n = round(n);
        Poly by = number(s, -n), rest = product(s, &x->row, &by);
        rest = poly_plus(s, row, &rest);
        rest = exp_of_row(s, &rest);
        Poly f = one_term(s, 1, x->atom, n);
        return product(s, &f, &rest);
    }
    Power new = {of, e, coef, *row};
    VEC_PUSH(s->a, &s->powers, new);
    return atom(s, e);
}

static Poly exponential(Polys *s, const Ex *e, double unit) {
    Poly x = poly_of(s, e->args[0]), by = number(s, unit);
    Terms key = {0}, row = {0};
    x = product(s, &x, &by);
    if (x.n > MOST_FACTORS) return atom(s, e);
    for (int i = 0; i < x.n; i++) {
        bool of_row = true;
        for (int k = 0; k < x.term[i].n; k++) of_row &= poly_is_of_row(x.term[i].factor[k].atom);
        add(s, of_row ? &row : &key, &x.term[i]);
    }
    Poly k = terms_to_poly(key), r = terms_to_poly(row);
    return k.n ? exp_of_key(s, e, &k, &r) : exp_of_row(s, &r);
}

// Of what x > 0 or x < 0 asks, without positive numbers of the row that x is a multiple of.
static const Ex *sign_condition(Polys *s, const Ex *c) {
    const Ex *none = ex_f32(s->p, 0);
    bool above = c->op == EX_LT && ex_is_f32(c->args[0], 0),
         below = c->op == EX_LT && ex_is_f32(c->args[1], 0);
    if (above == below) return c;
    Poly x = poly_of(s, c->args[above]);
    Term key, row;
    if (x.n != 1) return c;
    poly_split(s, x.term, &key, &row);
    ClassEnv env = {.s = CL_FINITE, .r = s->classes};
    for (int i = 0; i < row.n; i++)
        if (class_of(row.factor[i].atom, &env) != CL_POS) return c;
    const Ex *v = term_ex(s, &key, false);
    return above == (row.coef > 0) ? ex_2(s->p, EX_LT, none, v) : ex_2(s->p, EX_LT, v, none);
}

static Poly selection(Polys *s, const Ex *e) {
    const Ex *one = ex_f32(s->p, 1), *none = ex_f32(s->p, 0), *c = sign_condition(s, e->args[0]);
    if (is_indicator(e)) return atom(s, ex_select(s->p, c, e->args[1], e->args[2]));
    Poly a = poly_of(s, e->args[1]), b = poly_of(s, e->args[2]);
    if (a.n > MOST_CHOSEN || b.n > MOST_CHOSEN) return atom(s, e);
    Poly is = atom(s, ex_select(s->p, c, one, none)),
         is_not = atom(s, ex_select(s->p, c, none, one));
    a = product(s, &a, &is);
    b = product(s, &b, &is_not);
    return poly_plus(s, &a, &b);
}

// max(x, 0) is [0 < x] x.
static Poly clamped(Polys *s, const Ex *e, const Poly *x) {
    const Ex *none = ex_f32(s->p, 0), *one = ex_f32(s->p, 1), *v = e->args[0];
    if (x->n > MOST_CHOSEN || !ex_is_f32(e->args[1], 0)) return atom(s, e);
    const Ex *c = e->op == EX_MAX ? ex_2(s->p, EX_LT, none, v) : ex_2(s->p, EX_LT, v, none);
    Poly is = atom(s, ex_select(s->p, sign_condition(s, c), one, none));
    return product(s, x, &is);
}

static Poly quotient(Polys *s, const Poly *a, const Ex *b) {
    Poly by = poly_of(s, b);
    keep_written(s, b);
    by = power_of(s, &by, -1, ex_1(s->p, EX_RCP, b));
    return poly_times(s, a, &by);
}

static Poly of_expression(Polys *s, const Ex *e) {
    const Ex *x = e->nargs ? e->args[0] : NULL, *y = e->nargs > 1 ? e->args[1] : NULL;
    bool number_first = x && x->type == EX_F32 && e->op != EX_LOAD;
    Poly a = number_first ? poly_of(s, x) : (Poly){0}, b, minus = number(s, -1), one = number(s, 1);
    switch ((int)e->op) {
    case EX_CONST: return number(s, (double)e->f);
    case EX_ADD: b = poly_of(s, y); return poly_plus(s, &a, &b);
    case EX_SUB: b = poly_of(s, y), b = product(s, &b, &minus); return poly_plus(s, &a, &b);
    case EX_NEG: return product(s, &a, &minus);
    case EX_MUL: b = poly_of(s, y); return poly_times(s, &a, &b);
    case EX_FMA: {
        b = poly_of(s, y);
        Poly ab = poly_times(s, &a, &b), c = poly_of(s, e->args[2]);
        return poly_plus(s, &ab, &c);
    }
    case EX_DIV: return quotient(s, &a, y);
    case EX_RCP: return quotient(s, &one, x);
    case EX_ROUNDED: return a;
    case EX_SQRT: return power_of(s, &a, 0.5, e);
    case EX_RSQRT: return power_of(s, &a, -0.5, e);
    case EX_POW: return y->op == EX_CONST ? power_of(s, &a, (double)y->f, e) : atom(s, e);
    case EX_EXP: return exponential(s, e, 1);
    case EX_EXP2: return exponential(s, e, M_LN2);
    case EX_LOG2: return one_term(s, M_LOG2E, ex_1(s->p, EX_LOG, x), 1);
    case EX_ABS: return never_negative(s, x) ? a : atom(s, e);
    case EX_SELECT: return selection(s, e);
    case EX_MAX:
    case EX_MIN: return clamped(s, e, &a);
    default: return atom(s, e);
    }
}

Poly poly_of(Polys *s, const Ex *e) {
    const Ex **order;
    Poly *p = ex_memo_get(&s->known, e);
    if (p) return *p;
    int n = ex_order_beyond(s->a, &s->known, e, &order);
    for (int i = 0; i < n; i++) {
        if (order[i]->type != EX_F32) continue;
        p = ARENA_NEW(s->a, Poly);
        *p = is_tired(s) ? atom(s, order[i]) : of_expression(s, order[i]);
        if (p->n > MOST_TERMS) *p = atom(s, order[i]);
        ex_memo_put(s->a, &s->known, order[i], p);
    }
    return *p;
}

// ---- division

static const PolyFactor *find_factor(const Term *t, const Ex *e) {
    for (int i = 0; i < t->n; i++)
        if (t->factor[i].atom == e) return &t->factor[i];
    return NULL;
}

bool poly_divide(Polys *s, const Term *a, const Term *by, bool keys, Term *out) {
    Term inverse = {1 / by->coef, 0, ARENA_ARRAY(s->a, PolyFactor, by->n + 1)};
    for (int i = 0; i < by->n; i++) {
        PolyFactor f = by->factor[i];
        if (is_indicator(f.atom) && !find_factor(a, f.atom)) return false;
        f.power = -f.power;
        if (!is_indicator(f.atom)) inverse.factor[inverse.n++] = f;
    }
    Term q = times(s, a, &inverse);
    out->coef = q.coef, out->n = 0, out->factor = q.factor;
    for (int i = 0; i < q.n; i++) {
        PolyFactor f = q.factor[i];
        bool of_row = poly_is_of_row(f.atom),
             divides = find_factor(by, f.atom) && !is_indicator(f.atom);
        if (!of_row && is_indicator(f.atom) && find_factor(by, f.atom)) continue;
        if (!of_row && (!keys || divides || f.power < 0)) return false;
        out->factor[out->n++] = f;
    }
    return true;
}

void poly_split(Polys *s, const Term *a, Term *key, Term *row) {
    *key = (Term){1, 0, ARENA_ARRAY(s->a, PolyFactor, a->n + 1)};
    *row = (Term){a->coef, 0, ARENA_ARRAY(s->a, PolyFactor, a->n + 1)};
    for (int i = 0; i < a->n; i++) {
        Term *to = poly_is_of_row(a->factor[i].atom) ? row : key;
        to->factor[to->n++] = a->factor[i];
    }
}

// For each atom: the terms that have it are one group, which may be 0.
Poly poly_reduced(Polys *s, const Poly *a) {
    Poly out = *a;
    if (a->n > MOST_TERMS) return out;
    for (int i = 0; i < a->n; i++)
        for (int k = 0; k < a->term[i].n; k++) {
            PolyFactor f = a->term[i].factor[k];
            Terms with = {0}, without = {0};
            for (int j = 0; j < out.n; j++) {
                const PolyFactor *g = find_factor(&out.term[j], f.atom);
                bool has = g && fabs(g->power - f.power) < 1e-5;
                VEC_PUSH(s->a, has ? &with : &without, out.term[j]);
            }
            Poly group = terms_to_poly(with);
            if (with.n > 1 && poly_is_zero(s, &group)) out = terms_to_poly(without);
        }
    return poly_is_zero(s, &out) ? (Poly){0} : out;
}

// ---- to expressions

static bool is_row_power(const Ex *e) { return e->op == EX_EXP && poly_is_of_row(e); }

static const Ex *powered(ExPool *p, const Ex *e, double n) {
    if (n == 1) return e;
    if (n == 0.5) return ex_1(p, EX_SQRT, e);
    return is_whole(n) && n == 2 ? ex_2(p, EX_MUL, e, e) : ex_2(p, EX_POW, e, ex_f32(p, (float)n));
}

static const Ex *by(ExPool *p, ExOp op, const Ex *a, const Ex *b) {
    return a ? ex_2(p, op, a, b) : b;
}

static const Written *written(const Polys *s, const PolyFactor *f) {
    const Written *w = ex_memo_get(&s->written, f->atom);
    return w && (w->scale > 0 || is_whole(f->power)) ? w : NULL;
}

static const Ex *term_ex(Polys *s, const Term *t, bool as_written) {
    ExPool *p = s->p;
    const Ex *up = NULL, *down = NULL, *exponent = NULL;
    double coef = t->coef;
    for (int i = 0; i < t->n; i++) {
        const Written *w = as_written ? written(s, &t->factor[i]) : NULL;
        const Ex *e = w ? w->e : t->factor[i].atom;
        double n = t->factor[i].power;
        if (w) coef *= pow(w->scale, -n);
        if (is_indicator(e)) continue;
        if (is_row_power(e)) {
            const Ex *x = e->args[0];
            bool minus = n < 0;
            if (fabs(n) != 1) x = ex_2(p, EX_MUL, x, ex_f32(p, (float)fabs(n)));
            exponent = minus ? exponent ? ex_2(p, EX_SUB, exponent, x) : ex_1(p, EX_NEG, x)
                             : by(p, EX_ADD, exponent, x);
        } else if (n > 0) {
            up = by(p, EX_MUL, up, powered(p, e, n));
        } else {
            down = by(p, EX_MUL, down, powered(p, e, -n));
        }
    }
    if (exponent) up = by(p, EX_MUL, up, ex_1(p, EX_EXP, exponent));
    bool plain = coef == 1 || coef == -1;
    const Ex *c = ex_f32(p, (float)(up ? coef : fabs(coef)));
    const Ex *e = !up ? c : plain ? up : ex_2(p, EX_MUL, up, c);
    if (down) e = ex_2(p, EX_DIV, e, down);
    if (up ? coef == -1 : coef < 0) e = ex_1(p, EX_NEG, e);
    for (int i = 0; i < t->n; i++) {
        const Ex *is = t->factor[i].atom, *none = ex_f32(p, 0);
        if (!is_indicator(is)) continue;
        bool yes = ex_is_f32(is->args[1], 1);
        e = ex_select(p, is->args[0], yes ? e : none, yes ? none : e);
    }
    return e;
}

static const Ex *sum_ex(Polys *s, const Poly *a, bool as_written) {
    const Ex *sum = NULL;
    for (int i = 0; i < a->n; i++) {
        Term t = a->term[i];
        bool minus = sum && t.coef < 0;
        if (minus) t.coef = -t.coef;
        sum = by(s->p, minus ? EX_SUB : EX_ADD, sum, term_ex(s, &t, as_written));
    }
    return sum ? sum : ex_f32(s->p, 0);
}

const Ex *poly_ex(Polys *s, const Poly *a) { return sum_ex(s, a, true); }
const Ex *poly_term_ex(Polys *s, const Term *t) { return term_ex(s, t, true); }

Polys *polys_new(Arena *scratch, ExPool *p, const ClassSet *classes) {
    Polys *s = ARENA_NEW(scratch, Polys);
    *s = (Polys){.p = p, .a = scratch, .classes = classes};
    return s;
}
