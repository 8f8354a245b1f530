// backward.c: the backward of a row program.
//
// In: a row program. Out: its backward (ir/backward.h), and the forward that saves what it needs.
//
//     m = rowmax(s);  l = rowsum(exp(s - m));  w = exp(s - m) / l
//     ->  dl = -delta / l,  dm = -delta + delta = 0;   ds = w * (dw - delta);   delta = do . o
//
// Reverse mode over the reductions, last to first. The gradient of a reduction is a sum over the keys of dw * dg/dR, and
// for each later reduction one of df/dR. Such a sum is none of its own where dg/dR is w times a number of the row (sum dw w =
// do . o), or df/dR what some reduction sums up, times such a number: both are seen on polynomials (polynomial.c). There, too,
// it is proved that a gradient is 0: that of a maximum that only keeps an exponent small. What is left is a sum over the
// keys in a further sweep, one for all of them, since none needs a gradient.
#include "passes/derive/backward.h"

#include "passes/derive/derive.h"
#include "passes/derive/differentiate.h"
#include "passes/derive/tame.h"
#include "passes/simplify/rules.h"
#include "passes/simplify/simplify.h"

// ---- row scalars

const Ex *back_row(Derivative *d, BackMade made, const char *name, const Ex *value) {
    BackRow new = {name, made, value};
    for (int i = 0; i < d->out->rows.n; i++)
        if (d->out->rows.data[i].made == made && d->out->rows.data[i].value == value)
            return ex_sym(d->p, SYM_ROW, i, EX_F32);
    VEC_PUSH(d->arena, &d->out->rows, new);
    VEC_PUSH(d->scratch, &d->reduction, d->looking_at);
    return ex_sym(d->p, SYM_ROW, d->out->rows.n - 1, EX_F32);
}

static bool is_symbol(const Ex *e) { return e->op == EX_SYM || e->op == EX_CONST; }

static bool is_come(const PolyFactor *f, int emit) {
    return f->atom->op == EX_SYM && f->atom->sym == SYM_DEMIT && f->atom->index == emit;
}

static bool comes_by(const Term *t, int emit) {
    for (int i = 0; i < t->n; i++)
        if (is_come(&t->factor[i], emit)) return true;
    return false;
}

// Whether it is a gradient of emits: 0 where nobody wants them.
static bool comes_by_emits(const Derivative *d, const Poly *a) {
    for (int i = 0; i < a->n; i++) {
        bool any = false;
        for (int k = 0; k < d->row->emits.n && !any; k++) any = comes_by(&a->term[i], k);
        if (!any) return false;
    }
    return a->n > 0;
}

const Ex *back_ex(Derivative *d, const Poly *a) {
    Poly rest = *a;
    const Ex *sum = NULL;
    for (int k = 0; k < d->row->emits.n; k++) {
        Poly of = {0}, other = {0};
        for (int i = 0; i < rest.n; i++) {
            Poly one = {1, &rest.term[i]},
                 *to = comes_by(one.term, k) && one.term->n > 1 ? &of : &other;
            *to = poly_plus(d->polys, to, &one);
        }
        if (!of.n) continue;
        const Ex *come = ex_sym(d->p, SYM_DEMIT, k, EX_F32);
        sum = ex_plus(d->p, sum, ex_unless_zero(d->p, come, poly_ex(d->polys, &of)));
        rest = other;
    }
    return sum && !rest.n ? sum : ex_plus(d->p, sum, poly_ex(d->polys, &rest));
}

const Ex *back_scalar(Derivative *d, const Poly *a) {
    const Ex *e = ex_simplify(d->p, back_ex(d, a));
    if (is_symbol(e) || (e->op == EX_NEG && is_symbol(e->args[0]))) return e;
    return back_row(d, BACK_SCALAR, "r", e);
}

// A sigmoid of inputs is 0 where it leaves f32; functions of sums of the row are what keeps weights within it. An exponential is part of an
// exponent, where a quotient is a difference.
static bool may_be_zero(const Derivative *d, const PolyFactor *f) {
    bool given = f->atom->op != EX_EXP && !ex_uses(f->atom, SYM_R, -1);
    ClassEnv env = {.s = CL_FINITE, .r = d->finite, .limited = given, .overflows = given};
    return f->power > 0 && poly_is_of_row(f->atom) && class_of(f->atom, &env) & CL_ZERO;
}

// A sum over the keys that nothing else is: the further sweep's.
static Poly sweep(Derivative *d, const Ex *e) {
    d->failed |= !d->may_sweep;
    if (!d->may_sweep) return (Poly){0};
    return poly_of(d->polys, back_row(d, BACK_KEYS, "t", ex_simplify(d->p, e)));
}

static const Ex *delta(Derivative *d) {
    if (d->delta < 0) {
        const Ex *o = ex_symbol(d->p, SYM_O),
                 *by = d->out->aggregate ? d->out->d_o : ex_symbol(d->p, SYM_DO);
        d->delta = back_row(d, BACK_COLUMNS, "delta", ex_2(d->p, EX_MUL, by, o))->index;
    }
    return ex_sym(d->p, SYM_ROW, d->delta, EX_F32);
}

// ---- sums over the keys

// a = sum of quotients by the one term of `by`: that sum, times `of`.
static bool shares(Derivative *d, const Poly *a, const Poly *by, const Ex *of, Poly *out) {
    Polys *s = d->polys;
    Poly sum = {0}, unit = poly_of(s, of);
    if (by->n == 1)
        for (int i = 0; i < a->n; i++) {
            Term q;
            if (!poly_divide(s, &a->term[i], by->term, false, &q)) return false;
            Poly one = {1, &q};
            one = poly_times(s, &one, &unit);
            sum = poly_plus(s, &sum, &one);
        }
    Term q;
    if (by->n > 1) { // a multiple as a whole
        if (a->n != by->n || !poly_divide(s, a->term, by->term, false, &q)) return false;
        Term minus = q;
        minus.coef = -q.coef;
        Poly one = {1, &minus}, rest = poly_times(s, by, &one);
        rest = poly_spread(s, &rest);
        rest = poly_plus(s, a, &rest);
        if (!poly_is_zero(s, &rest)) return false;
        one = (Poly){1, &q};
        sum = poly_times(s, &one, &unit);
    }
    if (!by->n) return false;
    *out = sum;
    return true;
}

// Whether it divides by a number of the row that `by` is a multiple of, and that may be 0: then so is what is shared.
static bool has_pole(const Derivative *d, const Poly *sum, const Poly *by) {
    for (int i = 0; i < sum->n; i++)
        for (int k = 0; k < sum->term[i].n; k++) {
            const PolyFactor *f = &sum->term[i].factor[k];
            for (int m = 0; m < by->term->n && f->power < 0; m++)
                if (f->atom == by->term->factor[m].atom && may_be_zero(d, &by->term->factor[m]))
                    return true;
        }
    return false;
}

static Poly sum_dw(Derivative *d, const Ex *phi) {
    Poly sum = {0};
    if (!phi) return sum;
    Poly a = poly_of(d->polys, phi);
    const Ex *dw = ex_symbol(d->p, SYM_DW);
    for (int spread = 0; spread < 2; spread++) {
        if (!a.n) return sum;
        if (!d->sums_apart && shares(d, &a, &d->of_weight, delta(d), &sum) &&
            !has_pole(d, &sum, &d->of_weight))
            return sum;
        Poly unit = {0};
        if (d->apart && shares(d, &a, &d->of_apart, ex_f32(d->p, 1), &unit)) {
            sum = sweep(d, ex_2(d->p, EX_MUL, dw, d->apart));
            return poly_times(d->polys, &unit, &sum);
        }
        a = poly_spread(d->polys, &a);
    }
    return sweep(d, ex_2(d->p, EX_MUL, dw, phi));
}

// A term that is a multiple of what some reduction sums up; of several, the one with the fewest factors beside it, since a sum that
// needs a further exponential may have left f32.
static bool summed(Derivative *d, const Poly *one, Poly *out) {
    Poly part;
    bool any = false;
    for (int k = 0; k < d->row->reduces.n; k++) {
        if (d->row->reduces.data[k].op != EX_ROWSUM || d->of_f[k].n != 1 ||
            !shares(d, one, &d->of_f[k], ex_sym(d->p, SYM_R, k, EX_F32), &part))
            continue;
        if (!any || part.term->n < out->term->n) *out = part;
        any = true;
    }
    return any;
}

static Poly sum_of(Derivative *d, const Ex *psi) {
    Poly all = {0};
    if (!psi) return all;
    Poly a = poly_of(d->polys, psi);
    for (int spread = 0; spread < 2; spread++) {
        Poly sum = {0}, part;
        int i = 0;
        for (; i < a.n; i++) {
            Poly one = {1, &a.term[i]};
            if (!summed(d, &one, &part)) break;
            sum = poly_plus(d->polys, &sum, &part);
        }
        if (i == a.n) return sum;
        a = poly_spread(d->polys, &a);
    }
    return sweep(d, psi);
}

const Ex *back_attains(Derivative *d, int k) {
    return ex_2(d->p, EX_EQ, d->row->reduces.data[k].f, ex_sym(d->p, SYM_R, k, EX_F32));
}

// What the keys that attain an extremum give, shared evenly.
static Poly attained(Derivative *d, int k, const Ex *psi) {
    if (!psi) return (Poly){0};
    if (poly_is_of_row(psi)) return poly_of(d->polys, psi);
    Poly sum = sweep(d, ex_select(d->p, back_attains(d, k), psi, ex_f32(d->p, 0)));
    return poly_of(d->polys, ex_2(d->p, EX_DIV, poly_ex(d->polys, &sum), d->count[k]));
}

// ---- gradients of reductions

static bool is_pole(void *ctx, const Ex *e) {
    const ClassEnv *env = ctx;
    bool power = e->op == EX_POW && e->args[1]->op == EX_CONST && e->args[1]->f < 0,
         first = e->op == EX_RCP || e->op == EX_RSQRT || e->op == EX_LOG || e->op == EX_LOG2;
    const Ex *base = e->op == EX_DIV ? e->args[1] : first || power ? e->args[0] : NULL;
    return base && class_of(base, env) & CL_ZERO && class_of(e, env) & ~(unsigned)CL_FINITE;
}

// By numbers of the pair. Where one of the row or of positions alone is a divisor of 0, the formula itself is infinite.
static bool is_steep(const Derivative *d, const Ex *slope) {
    ClassEnv env = {.s = CL_FINITE, .r = d->positive, .wild_scores = ex_uses(slope, SYM_DOT, 0)};
    return ex_any(slope, is_pole, &env);
}

// The formula of a pair may leave f32.
static bool may_overflow(const Ex *slope) {
    ClassEnv env = {.s = CL_FINITE, .limited = true, .overflows = true};
    return class_of(slope, &env) & ~(unsigned)CL_FINITE;
}

static const Ex *come_by(Derivative *d, const Ex *come, const Ex *slope, bool steep) {
    const Ex *e = ex_chain(d->p, come, slope);
    return e && (steep || is_steep(d, slope)) ? ex_unless_zero(d->p, come, e) : e;
}

const Ex *back_come(Derivative *d, const Ex *come, const Ex *slope) {
    return come_by(d, come, slope, false);
}

const Ex *back_come_row(Derivative *d, const Poly *come, const Ex *slope) {
    bool steep = comes_by_emits(d, come) && may_overflow(slope);
    return come_by(d, back_scalar(d, come), slope, steep);
}

Poly back_by(Derivative *d, const Ex *x, int after) {
    Polys *s = d->polys;
    Poly sum = sum_dw(d, ex_derivative(d->p, d->weight, x));
    for (int m = after + 1; m < d->row->reduces.n; m++) {
        if (!d->rho[m].n) continue;
        const Ex *df = ex_derivative(d->p, d->f[m], x);
        bool adds = d->row->reduces.data[m].op == EX_ROWSUM;
        Poly part = adds ? sum_of(d, df) : attained(d, m, df);
        if (df && is_steep(d, df)) {
            const Ex *come = back_ex(d, &d->rho[m]);
            part =
                poly_of(s, ex_unless_zero(d->p, come, ex_2(d->p, EX_MUL, come, poly_ex(s, &part))));
        } else {
            part = poly_times(s, &d->rho[m], &part);
            part = poly_spread(s, &part);
        }
        sum = poly_plus(s, &sum, &part);
    }
    return sum;
}

Poly back_by_emits(Derivative *d, const Ex *x) {
    Poly sum = {0};
    for (int i = 0; i < d->row->emits.n; i++) {
        const Ex *de = ex_derivative(d->p, d->emit[i], x),
                 *come = ex_sym(d->p, SYM_DEMIT, i, EX_F32);
        if (!de) continue;
        Poly part = poly_of(d->polys, ex_chain(d->p, come, de));
        sum = poly_plus(d->polys, &sum, &part);
    }
    return sum;
}

enum { MOST_PARTS = 24 }; // of a gradient

static void reductions(Derivative *d) {
    for (int k = d->row->reduces.n; k-- > 0;) {
        const Ex *r = ex_sym(d->p, SYM_R, k, EX_F32);
        d->looking_at = k;
        Poly a = back_by(d, r, k), b = back_by_emits(d, r);
        a = poly_plus(d->polys, &a, &b);
        d->rho[k] = poly_reduced(d->polys, &a);
        if (d->rho[k].n > MOST_PARTS) { // a number by itself from here on
            Poly all = d->rho[k];
            d->rho[k] = poly_of(d->polys, back_scalar(d, &all));
        }
        bool extremum = d->row->reduces.data[k].op != EX_ROWSUM;
        if (!extremum || !d->rho[k].n) continue;
        const Ex *one = ex_select(d->p, back_attains(d, k), ex_f32(d->p, 1), ex_f32(d->p, 0));
        d->count[k] = back_row(d, BACK_KEYS, "n", one);
    }
    d->looking_at = -1;
}

// ---- the output

static const Ex *times(Derivative *d, const Ex *a, const Ex *b) { return ex_chain(d->p, a, b); }

typedef struct Reading {
    Derivative *d;
    BackReads *to;
} Reading;

static void find_read(void *ctx, const Ex *e) {
    Reading *r = ctx;
    bool scalar = e->op == EX_SYM && e->sym == SYM_SCALAR;
    if (e->type != EX_F32 || !(scalar || e->op == EX_LOAD)) return;
    if (!r->d->row->inputs.data[scalar ? e->index : e->input].grad) return;
    for (int i = 0; i < r->to->n; i++)
        if (r->to->data[i] == e) return;
    VEC_PUSH(r->d->scratch, r->to, e);
}

void back_reads(Derivative *d, const Ex *e, BackReads *to) {
    Reading r = {d, to};
    ex_visit(e, find_read, &r);
}

// o times something that knows no o: do . o as it comes out is what it is before.
static bool is_linear(Derivative *d, const Ex *by_o) {
    BackReads reads = {0};
    const Ex *o = ex_symbol(d->p, SYM_O);
    back_reads(d, d->output, &reads);
    for (int i = 0; i < reads.n; i++) {
        const Ex *by = ex_derivative(d->p, d->output, reads.data[i]);
        if (by && ex_uses(by, SYM_O, -1)) return false;
    }
    if (!by_o || ex_uses(by_o, SYM_O, -1)) return false;
    Poly a = poly_of(d->polys, d->output), b = poly_of(d->polys, ex_2(d->p, EX_MUL, by_o, o)),
         minus = poly_of(d->polys, ex_f32(d->p, -1));
    b = poly_times(d->polys, &b, &minus);
    a = poly_plus(d->polys, &a, &b);
    return poly_is_zero(d->polys, &a);
}

// do and o of what is aggregated.
static void output(Derivative *d) {
    ExPool *p = d->p;
    const Ex *out = d->output, *o = ex_symbol(p, SYM_O), *come = ex_symbol(p, SYM_DO);
    const Ex *by_o = ex_derivative(p, out, o),
             *by_norm = ex_derivative(p, out, ex_symbol(p, SYM_SQO));
    const Ex *sum = by_o ? times(d, come, by_o) : NULL;
    if (by_norm) {
        const Ex *t = back_row(d, BACK_COLUMNS, "norm", ex_simplify(p, times(d, come, by_norm)));
        sum = ex_plus(p, sum, ex_2(p, EX_MUL, ex_2(p, EX_MUL, o, ex_f32(p, 2)), t));
    }
    d->out->d_o = ex_simplify(p, sum ? sum : ex_f32(p, 0));
    d->out->aggregate = by_norm || !is_linear(d, by_o);
}

// ---- the whole

static bool uses_extremum(const RowProgram *row, const Ex *e) {
    for (int k = 0; k < row->reduces.n; k++)
        if (row->reduces.data[k].op != EX_ROWSUM && ex_uses(e, SYM_R, k)) return true;
    return false;
}

// Whether a small error of a dot product is a large one of e: in an exponent that is a multiple of it, and beside an extremum,
// but for sums and products.
static bool is_sensitive(void *ctx, const Ex *e) {
    const RowProgram *row = ctx;
    switch ((int)e->op) {
    case EX_EXP:
    case EX_EXP2: return !row_dots_small(row, e->args[0]);
    case EX_ADD:
    case EX_SUB:
    case EX_MUL:
    case EX_NEG:
    case EX_FMA:
    case EX_MIN:
    case EX_MAX:
    case EX_ROUNDED: return false;
    case EX_DIV: e = e->args[1]; break;
    case EX_SELECT: e = e->args[0]; break;
    default: break;
    }
    return row_has_element(e) && uses_extremum(row, e);
}

// A sum of scores that scores are subtracted from.
static bool meets_scores(const RowReduce *r) { return r->op == EX_ROWSUM && r->exact; }

static void ask_dots(Derivative *d) {
    void *row = (void *)d->out->row;
    d->out->same_dots |= ex_any(d->weight, is_sensitive, row);
    for (int k = 0; k < d->row->reduces.n; k++)
        d->out->same_dots |= ex_any(d->f[k], is_sensitive, row) || d->out->found[k] ||
                             meets_scores(&d->row->reduces.data[k]);
}

static bool is_among(const Ex *x, const Ex *maximum) {
    if (maximum->op != EX_MAX) return x == maximum;
    return is_among(x, maximum->args[0]) || is_among(x, maximum->args[1]);
}

// Whether the factors are exp(x) and, below it, exp(max(.., x, ..)): together at most 1, and 0 where x is far below.
static bool is_share(const PolyFactor *x, const PolyFactor *of) {
    if (x->atom->op != EX_EXP || of->atom->op != EX_EXP || x->power != -of->power) return false;
    return x->power > 0 && of->atom->args[0]->op == EX_MAX &&
           is_among(x->atom->args[0], of->atom->args[0]);
}

// Of factors, those that a share is made of.
static bool is_of_share(const Term *w, int i) {
    bool is = false;
    for (int k = 0; k < w->n; k++)
        is |= is_share(&w->factor[i], &w->factor[k]) || is_share(&w->factor[k], &w->factor[i]);
    return is;
}

// What gradients need is no quotient of weights, or of do . o, by a number of the row that may be 0, as these are then: a gate, an
// entropy of one key with all the weight, or a sink's share of the row.
static void set_apart(Derivative *d) {
    d->of_apart = d->of_weight;
    if (d->of_weight.n != 1) return;
    const Term *w = d->of_weight.term;
    Term *rest = ARENA_NEW(d->scratch, Term);
    *rest = (Term){w->coef, 0, ARENA_ARRAY(d->scratch, PolyFactor, w->n + 1)};
    for (int i = 0; i < w->n; i++) {
        bool share = is_of_share(w, i);
        if (!share && !may_be_zero(d, &w->factor[i]))
            rest->factor[rest->n++] = w->factor[i];
        else
            d->sums_apart |= share || ex_uses(w->factor[i].atom, SYM_R, -1);
    }
    if (rest->n == w->n) return;
    d->of_apart = (Poly){1, rest};
    d->apart = poly_ex(d->polys, &d->of_apart);
}

static Backward *derive(Arena *a, const Stream *s, bool half) {
    const RowProgram *row = s->row;
    int n = row->reduces.n;
    Derivative d = {.arena = a,
                    .scratch = arena_new(),
                    .p = row->pool,
                    .row = row,
                    .delta = -1,
                    .looking_at = -1,
                    .may_sweep = true,
                    .half = half};
    d.out = ARENA_NEW(a, Backward);
    *d.out = (Backward){.s = s, .row = row, .further = -1};
    ClassSet *of_r = class_reductions(d.scratch, row);
    d.polys = polys_new(d.scratch, d.p, of_r);
    d.finite = ARENA_ARRAY(d.scratch, ClassSet, n + 1);
    for (int k = 0; k < n; k++) d.finite[k] = of_r[k] & CL_FINITE;
    d.positive = ARENA_ARRAY(d.scratch, ClassSet, n + 1);
    for (int k = 0; k < n; k++) d.positive[k] = CL_POS;
    d.weight = simp_open(d.p, row->weight);
    d.modified = simp_open(d.p, row->modified);
    d.output = simp_open(d.p, row->output);
    d.emit = ARENA_ARRAY(d.scratch, const Ex *, row->emits.n + 1);
    for (int i = 0; i < row->emits.n; i++) d.emit[i] = simp_open(d.p, row->emits.data[i].value);
    d.of_weight = poly_of(d.polys, d.weight);
    set_apart(&d);
    d.f = ARENA_ARRAY(d.scratch, const Ex *, n + 1);
    d.of_f = ARENA_ARRAY(d.scratch, Poly, n + 1);
    d.rho = ARENA_ARRAY(d.scratch, Poly, n + 1);
    d.count = ARENA_ARRAY(d.scratch, const Ex *, n + 1);
    for (int k = 0; k < n; k++) {
        d.f[k] = simp_open(d.p, row->reduces.data[k].f);
        d.of_f[k] = poly_of(d.polys, d.f[k]);
    }
    output(&d);
    reductions(&d);
    back_pairs(&d);
    back_saved(&d);
    ask_dots(&d);
    arena_free(d.scratch);
    return d.out;
}

// What the forward has to have for this backward: extrema that are compared with what they are taken over are one of these
// numbers. False where it has all that already.
static bool wants(const Backward *b, RowProgram *out) {
    bool more = false;
    for (int k = 0; k < out->reduces.n; k++) {
        bool found = b->found[k] && !b->row->reduces.data[k].exact;
        out->reduces.data[k].exact |= found;
        more |= found;
    }
    return more;
}

static void say_further(const Backward *b, Diags *diags) {
    if (b->further < 0 || !diags) return;
    const RowReduce *r = &b->row->reduces.data[b->further];
    bool library = r->call.file && r->call.file != r->span.file;
    Diag *g = diag_note(diags, NULL, library ? r->call : r->span,
                        "the backward sums up over the keys for the gradient of '%s': that takes a "
                        "further sweep over the keys",
                        pass_reduce_written(r, diags));
    if (r->call.file)
        diag_note(diags, g, library ? r->span : r->call,
                  library ? "it stands here" : "in this call");
}

static Backward *backward(Arena *a, const RowProgram *row, bool narrows, Diags *diags) {
    RowProgram asks = *row;
    asks.reduces.data = ARENA_ARRAY(a, RowReduce, row->reduces.n + 1);
    for (int k = 0; k < row->reduces.n; k++) asks.reduces.data[k] = row->reduces.data[k];
    const Stream *s = pass_derive_for(a, row, NULL, narrows, false);
    bool half = narrows || row->bf16, counts = false;
    Backward *b = derive(a, s, half);
    for (int i = 0; i < b->grads.n; i++) counts |= b->grads.data[i].per == BACK_ROW && !s->empty;
    bool again = wants(b, &asks) || counts;
    if (again) b = derive(a, pass_derive_for(a, &asks, NULL, narrows, counts), half);
    say_further(b, diags);
    return b;
}

Backward *pass_backward(Arena *a, const RowProgram *row, Diags *diags) {
    return backward(a, row, false, diags);
}

Backward *pass_backward_narrow(Arena *a, const RowProgram *row, Diags *diags) {
    return backward(a, row, true, diags);
}
