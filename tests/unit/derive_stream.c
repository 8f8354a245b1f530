// The derived streaming form against the row mathematics it came from, in double: on rows with
// masked keys and without any, with the keys cut into parts and tiles at random and the parts
// merged in random order. And in f32, on scores from 1e-21 to 1e19: where the formula as it is written
// is right, the streaming form is too.
#include "row_util.h"

#include "passes/derive/derive.h"

#include "ir/stream_eval.h"
#include "passes/derive/magnitude.h"

enum { KEYS = 24, MAX_R = 16, MAX_STATES = 40 };

// ---- evaluation

typedef struct Row {
    int n;
    double s[KEYS], v[KEYS]; // s -inf: masked
    double sink, temp;
} Row;

typedef struct Vals {
    const Row *row;
    bool f32;       // every number is rounded
    double largest; // of what was reduced directly
    double s, r[MAX_R], state[MAX_STATES], shift[MAX_STATES], rise[STREAM_MAX_BASES];
} Vals;

static ExValue symbol(void *ctx, const Ex *e) {
    const Vals *v = ctx;
    ExValue x = {.f = 0};
    switch ((int)e->sym) {
    case SYM_S: x.f = v->s; break;
    case SYM_R: x.f = v->r[e->index]; break;
    case SYM_STATE: x.f = v->state[e->index]; break;
    case SYM_SHIFT: x.f = v->shift[e->index]; break;
    case SYM_RISE: x.f = v->rise[e->index]; break;
    case SYM_SCALAR: x.f = e->index ? v->row->temp : v->row->sink; break;
    case SYM_Q_IDX: x.i = 5; break;
    default: x.i = 1; break;
    }
    return x;
}

// Subnormal numbers are 0, as everywhere.
static double rounded(const Vals *v, double x) {
    if (!v->f32) return x;
    return fabs(x) < 0x1p-126 ? 0 : (float)x;
}

// In f32, operation by operation.
static double eval_f32(const Ex *e, Vals *v) {
    enum { MOST_NODES = 200 };
    Arena *scratch = arena_new();
    const Ex **order;
    int n = ex_order(scratch, &e, 1, &order);
    ExValue value[MOST_NODES];
    ck_assert_int_le(n, MOST_NODES);
    for (int i = 0; i < n; i++) {
        ExType types[EX_MAX_RANK];
        ExValue args[EX_MAX_RANK];
        for (int k = 0; k < order[i]->nargs; k++) {
            int at = 0;
            while (order[at] != order[i]->args[k]) at++;
            types[k] = order[at]->type;
            args[k] = value[at];
        }
        if (order[i]->op == EX_SYM)
            value[i] = symbol(v, order[i]);
        else if (order[i]->op == EX_CONST)
            value[i] = order[i]->type == EX_F32 ? (ExValue){.f = order[i]->f}
                                                : (ExValue){.i = order[i]->i};
        else
            value[i] = ex_apply(order[i]->op, order[i]->type, types, args, true);
        if (order[i]->type == EX_F32) value[i].f = rounded(v, value[i].f);
    }
    arena_free(scratch);
    return value[n - 1].f;
}

static double eval(const Ex *e, Vals *v) {
    ExEnv env = {.sym = symbol, .ctx = v};
    return v->f32 ? eval_f32(e, v) : ex_eval(e, &env).f;
}

static bool holds(const Ex *e, Vals *v) {
    ExEnv env = {.sym = symbol, .ctx = v};
    return ex_eval(e, &env).i;
}

static double start(ExOp op) {
    return op == EX_ROWMAX ? -INFINITY : op == EX_ROWMIN ? INFINITY : 0;
}

static double reduce(ExOp op, double a, double b) {
    return op == EX_ROWMAX ? fmax(a, b) : op == EX_ROWMIN ? fmin(a, b) : a + b;
}

// As it is written. Returns sum |w v|, the scale of rounding errors.
static double direct(const RowProgram *p, const Row *row, Vals *v, double *o) {
    v->row = row;
    for (int k = 0; k < p->reduces.n; k++) {
        double r = start(p->reduces.data[k].op);
        for (int j = 0; j < row->n; j++) {
            if (row->s[j] == -INFINITY) continue;
            v->s = row->s[j];
            double f = eval(p->reduces.data[k].f, v);
            v->largest = fabs(f) <= v->largest ? v->largest : isnan(f) ? INFINITY : fabs(f);
            r = rounded(v, reduce(p->reduces.data[k].op, r, f));
        }
        v->r[k] = r;
    }
    double size = *o = 0;
    for (int j = 0; j < row->n; j++) {
        if (row->s[j] == -INFINITY) continue;
        v->s = row->s[j];
        double w = eval(p->weight, v);
        *o = rounded(v, *o + rounded(v, w * row->v[j]));
        size += fabs(w * row->v[j]);
    }
    return size;
}

typedef struct Part {
    double state[MAX_STATES], acc;
} Part;

static Part part_new(const Stream *s) {
    Part p = {.acc = 0};
    for (int i = 0; i < s->states.n; i++) p.state[i] = start(s->states.data[i].op);
    return p;
}

// What a part's sums are multiplied by when its states become `now`; sets now's safe shift in v.
static double rescale(const Stream *s, int shift, const Part *was, const Part *now, Vals *v) {
    if (shift < 0) return 1;
    memcpy(v->state, was->state, sizeof v->state);
    double old = eval(s->shifts.data[shift], v);
    memcpy(v->state, now->state, sizeof v->state);
    double raw = eval(s->shifts.data[shift], v), safe = raw == INFINITY ? 0 : raw;
    v->shift[shift] = safe;
    const Ex *unit = s->units.data[shift];
    if (unit && old == INFINITY) return 0;
    return rounded(v, exp2((safe - old) * (unit ? eval(unit, v) : 1)));
}

// The same for a scale.
static double ratio(const Stream *s, int scale, const Part *was, const Part *now, Vals *v) {
    if (scale < 0) return 1;
    const StreamScale *c = &s->scales.data[scale];
    bool begun = true, same = true;
    for (int i = 0; i < c->n; i++) {
        memcpy(v->state, was->state, sizeof v->state);
        double old = eval(c->base[i], v);
        memcpy(v->state, now->state, sizeof v->state);
        double new = eval(c->base[i], v);
        v->rise[i] = rounded(v, new / old);
        begun &= old > 0;
        same &= old == new;
    }
    return same ? 1 : begun ? eval(c->ratio, v) : 0;
}

static double moved(const Stream *s, int shift, int scale, const Part *was, const Part *now,
                    Vals *v) {
    double by = ratio(s, scale, was, now, v);
    return rounded(v, by * rescale(s, shift, was, now, v));
}

static bool carried(const Stream *s, int i, int sweep) { return s->states.data[i].sweep == sweep; }

static void add_tile(const Stream *s, int sweep, const Row *row, int from, int to, Part *part,
                     Vals *v) {
    Part was = *part;
    for (int i = 0; i < s->states.n; i++)
        for (int j = from; j < to && carried(s, i, sweep) && s->states.data[i].op != EX_ROWSUM;
             j++) {
            v->s = row->s[j];
            part->state[i] =
                reduce(s->states.data[i].op, part->state[i], eval(s->states.data[i].elem, v));
        }
    for (int i = 0; i < s->states.n; i++) {
        if (!carried(s, i, sweep) || s->states.data[i].op != EX_ROWSUM) continue;
        part->state[i] *= moved(s, s->states.data[i].shift, s->states.data[i].scale, &was, part, v);
        for (int j = from; j < to; j++) {
            v->s = row->s[j];
            part->state[i] += eval(s->states.data[i].elem, v);
        }
    }
    if (sweep < s->nsweeps - 1) return;
    part->acc *= moved(s, s->shift, s->scale, &was, part, v);
    for (int j = from; j < to; j++) {
        v->s = row->s[j];
        part->acc = rounded(v, part->acc + rounded(v, eval(s->elem, v) * row->v[j]));
    }
}

static Part merge(const Stream *s, int sweep, const Part *a, const Part *b, Vals *v) {
    Part now = *a;
    for (int i = 0; i < s->states.n; i++)
        if (carried(s, i, sweep) && s->states.data[i].op != EX_ROWSUM)
            now.state[i] = reduce(s->states.data[i].op, a->state[i], b->state[i]);
    for (int i = 0; i < s->states.n; i++) {
        if (!carried(s, i, sweep) || s->states.data[i].op != EX_ROWSUM) continue;
        int shift = s->states.data[i].shift, scale = s->states.data[i].scale;
        now.state[i] = rounded(v, a->state[i] * moved(s, shift, scale, a, &now, v) +
                                      b->state[i] * moved(s, shift, scale, b, &now, v));
    }
    now.acc = rounded(v, a->acc * moved(s, s->shift, s->scale, a, &now, v) +
                             b->acc * moved(s, s->shift, s->scale, b, &now, v));
    return now;
}

// One sweep: parts of the keys, each in tiles, merged in random order (with an empty part among
// them).
static Part run_sweep(const Stream *s, int sweep, const Row *row, const Part *before, Vals *v,
                      uint32_t *seed) {
    Part parts[KEYS + 2];
    int n = 0, at = 0;
    for (parts[n++] = *before; at < row->n;) {
        int end = at + 1 + (int)test_draw(seed, KEYS);
        parts[n] = *before;
        for (end = end > row->n ? row->n : end; at < end;) {
            int to = at + 1 + (int)test_draw(seed, 8);
            if (to > end) to = end;
            add_tile(s, sweep, row, at, to, &parts[n], v);
            at = to;
        }
        n++;
    }
    for (; n > 1; n--) {
        int a = (int)test_draw(seed, (uint32_t)n), b = (int)test_draw(seed, (uint32_t)n - 1);
        b += b >= a;
        Part merged = merge(s, sweep, &parts[a], &parts[b], v);
        parts[a < b ? a : b] = merged;
        parts[a < b ? b : a] = parts[n - 1];
        if ((a < b ? a : b) == n - 1) parts[b] = merged;
    }
    return parts[0];
}

static double streamed(const Stream *s, const Row *row, Vals *v, uint32_t *seed) {
    v->row = row;
    Part part = part_new(s);
    for (int t = 0; t < s->nsweeps; t++) {
        part = run_sweep(s, t, row, &part, v, seed);
        memcpy(v->state, part.state, sizeof v->state);
        for (int k = 0; k < s->finished.n; k++) v->r[k] = eval(s->finished.data[k], v);
    }
    if (s->empty && holds(s->empty, v)) return 0;
    const Ex *factor[MAX_FACTORS];
    int n = s->factor ? row_factors(s->row, s->factor, factor) : 0;
    for (int i = 0; i < n; i++) part.acc = rounded(v, part.acc * eval(factor[i], v));
    return part.acc;
}

// ---- comparing

static Row random_row(uint32_t *seed) {
    Row r = {.n = (int)test_draw(seed, KEYS + 1),
             .sink = test_uniform(seed),
             .temp = 1 + fabs(test_uniform(seed))};
    int masked = (int)test_draw(seed, 4); // of 3: none, some, most, all
    double scale = test_draw(seed, 3) ? 3 : 12;
    for (int j = 0; j < r.n; j++) {
        r.s[j] = (float)(test_uniform(seed) * scale);
        r.v[j] = (float)test_uniform(seed);
        if ((int)test_draw(seed, 3) < masked) r.s[j] = -INFINITY;
    }
    return r;
}

static const char *text_of(const RowProgram *p, const Stream *s) {
    Text t = text_new(p->arena);
    row_print(&t, p);
    stream_print(&t, s);
    return t.s;
}

static bool agree(double want, double got, double size) {
    if (!(fabs(want) < 1e30 && size < 1e30)) return true; // the formula itself overflows here
    return fabs(want - got) <= 2e-5 * size + 1e-7;
}

// What ir/stream_eval.h makes of it: every sweep's keys in two parts, in tiles, merged.
static double evaluated(const Stream *s, const Row *row, uint32_t *seed) {
    Arena *scratch = arena_new();
    Vals outer = {.row = row};
    ExEnv env = {.sym = symbol, .ctx = &outer};
    StreamEval *e = stream_eval(scratch, s, &env, 1);
    StreamKeys keys = {row->s, row->v};
    StreamPart before = stream_begin(e);
    double o;
    for (int t = 0; t < s->nsweeps; t++) {
        StreamPart part[2] = {stream_copy(e, &before), stream_copy(e, &before)};
        int cut = (int)test_draw(seed, (uint32_t)row->n + 1);
        for (int at = 0, to; at < row->n; at = to) {
            to = at + 1 + (int)test_draw(seed, 8);
            if (at < cut && to > cut) to = cut;
            stream_add(e, t, &keys, at, to < row->n ? to : row->n, &part[at >= cut], NULL, NULL);
        }
        before = stream_merge(e, t, &part[0], &part[1], NULL, NULL);
        stream_finish(e, &before);
    }
    stream_output(e, &before, &o);
    arena_free(scratch);
    return o;
}

static void check_row(const RowProgram *p, const Stream *s, const Row *row, uint32_t *seed) {
    Vals a = {.s = 0}, b = {.s = 0};
    double want, size = direct(p, row, &a, &want), got = streamed(s, row, &b, seed);
    if (a.largest > 100)
        return; // the rounding of f32 constants alone shows in a difference with such a number
    ck_assert_msg(agree(want, got, size), "%g, want %g\n%s", got, want, text_of(p, s));
    got = evaluated(s, row, seed);
    ck_assert_msg(agree(want, got, size), "evaluated: %g, want %g\n%s", got, want, text_of(p, s));
    for (int i = 0; i < p->emits.n; i++) {
        double we = eval(p->emits.data[i].value, &a), ge = eval(p->emits.data[i].value, &b);
        bool ok = isinf(we) ? we == ge : agree(we, ge, fabs(we) + 1);
        ck_assert_msg(ok, "emit %s: %g, want %g\n%s", p->emits.data[i].name, ge, we, text_of(p, s));
    }
}

static void check_rows(const RowProgram *p, const Stream *s, uint32_t seed, int rows,
                       bool no_sink) {
    for (int i = 0; i < rows; i++) {
        Row row = random_row(&seed);
        if (no_sink && i % 4 == 0) row.sink = -INFINITY;
        check_row(p, s, &row, &seed);
    }
}

// ---- cases

static const struct {
    const char *text;
    int sweeps, states;
    bool shifted, factor;
} cases[] = {
    // softmax
    {"m = rowmax s; l = rowsum exp((s - m)); w = (exp((s - m)) / l); emit lse = (m + log(l))", 1, 2,
     true, true},
    // ... written with its logarithm
    {"m = rowmax s; l = rowsum exp((s - m)); w = exp((s - (m + log(l)))); emit lse = (m + log(l))",
     1, 2, true, true},
    // ... and as products
    {"m = rowmax s; l = rowsum (exp(s) * exp(neg(m))); w = ((exp(s) / exp(m)) / l)", 1, 2, true,
     true},
    // a sink
    {"m0 = rowmax s; l = rowsum exp((s - max(m0, sink))); "
     "w = (exp((s - max(m0, sink))) / (l + exp((sink - max(m0, sink)))))",
     1, 2, true, true},
    // off by one
    {"m = rowmax s; l = rowsum exp((s - max(m, 0.0))); w = (exp((s - max(m, 0.0))) / (l + "
     "exp(neg(max(m, 0.0)))))",
     1, 2, true, true},
    // retention
    {"l = rowsum abs(s); w = (s / max(l, 1.0))", 1, 1, false, true},
    // relu, sigmoid, nothing
    {"w = max(s, 0.0)", 1, 0, false, false},
    {"w = sigmoid(s)", 1, 0, false, false},
    {"w = s", 1, 0, false, false},
    {"w = 1.0", 1, 0, false, false},
    // squared relu over its sum; a row of zeros is 0/0 in the formula itself
    {"l = rowsum pow(max(s, 0.0), 2.0); w = (pow(max(s, 0.0), 2.0) / max(l, 1e-3))", 1, 1, false,
     true},
    // relu of a normalized score
    {"l = rowsum abs(s); w = max((s / max(l, 1.0)), 0.0)", 1, 1, false, true},
    {"l = rowsum abs(s); w = abs((s / neg(max(l, 1.0))))", 1, 1, false, true},
    {"l = rowsum abs(s); w = sqrt((abs(s) / max(l, 1.0)))", 1, 1, false, true},
    // L2
    {"l = rowsum (s * s); w = (s * rsqrt((l + 1e-3)))", 1, 1, false, true},
    // mean
    {"n = rowsum 1.0; w = (1.0 / n)", 1, 1, false, true},
    // layer norm: three sweeps; and softmax of it: four
    {"n = rowsum 1.0; t = rowsum s; q = rowsum ((s - (t / n)) * (s - (t / n))); "
     "w = ((s - (t / n)) * rsqrt(((q / n) + 1e-5)))",
     2, 3, false, true},
    {"n = rowsum 1.0; t = rowsum s; q = rowsum ((s - (t / n)) * (s - (t / n))); "
     "e = rowsum exp(((s - (t / n)) * rsqrt(((q / n) + 1e-5)))); "
     "w = (exp(((s - (t / n)) * rsqrt(((q / n) + 1e-5)))) / e)",
     3, 4, false, true},
    // min
    {"m = rowmin s; l = rowsum exp((m - s)); w = (exp((m - s)) / l); emit x = (m - log(l))", 1, 2,
     true, true},
    {"lo = rowmin s; hi = rowmax s; w = ((s - lo) / ((hi - lo) + 1.0))", 2, 2, false, true},
    {"lo = rowmin s; hi = rowmax s; w = exp((s - (hi + (0.5 * lo))))", 2, 2, false, false},
    // no max
    {"l = rowsum exp(s); w = (exp(s) / l)", 1, 2, false, true},
    {"l = rowsum exp(neg(s)); w = (exp(neg(s)) / l)", 1, 2, false, true},
    {"t = rowsum s; w = exp((s - t))", 2, 1, false, false},
    // a temperature that the row knows
    {"m = rowmax s; l = rowsum exp(((s - m) / (temp + f32(q_idx)))); w = (exp(((s - m) / (temp + "
     "f32(q_idx)))) / l)",
     1, 2, true, true},
    // two softmaxes
    {"m = rowmax s; l = rowsum exp((s - m)); m2 = rowmax (2.0 * s); l2 = rowsum exp(((2.0 * s) - "
     "m2)); "
     "w = ((exp((s - m)) / l) - (0.5 * (exp(((2.0 * s) - m2)) / l2)))",
     2, 3, false, false},
    // powers of softmax
    {"m = rowmax s; l = rowsum exp((s - m)); w = pow((exp((s - m)) / l), 2.0)", 1, 2, true, true},
    {"m = rowmax s; l = rowsum exp((s - m)); w = sqrt((exp((s - m)) / l))", 1, 2, true, true},
    {"m = rowmax s; l = rowsum exp((s - m)); w = ((exp((s - m)) / l) * s)", 1, 2, true, true},
    // ... times a gate: it makes no weight larger
    {"m = rowmax s; l = rowsum exp((s - m)); w = ((exp((s - m)) / l) * sigmoid(s))", 1, 2, true,
     true},
    {"m = rowmax s; l = rowsum exp((s - m)); w = ((exp((s - m)) / l) / (1.0 + exp(s)))", 1, 2, true,
     true},
    {"m = rowmax s; l = rowsum exp((s - m)); w = ((exp((s - m)) / l) * exp((s * s)))", 2, 2, false,
     false},
    // products of equal factors are never negative, however they are written
    {"l = rowsum (((s * s) * s) * s); w = ((((s * s) * s) * s) / l)", 1, 2, false, true},
    {"l = rowsum ((s * s) * s); w = (((s * s) * s) / l)", 2, 1, false, false},
    // two terms that share a shift; where it does not bound the second, the maximum must be known
    {"m = rowmax s; l = rowsum exp((s - max(m, sink))); w = ((exp((s - max(m, sink))) + exp((sink "
     "- max(m, sink)))) / (l + 1.0))",
     1, 2, true, true},
    {"m = rowmax s; l = rowsum exp((s - max(m, sink))); w = (max(exp((s - max(m, sink))), "
     "exp((sink - max(m, sink)))) / (l + 1.0))",
     1, 2, true, true},
    {"m = rowmax s; l = rowsum exp((s - m)); w = ((exp((s - m)) + exp((sink - m))) / (l + 1.0))", 2,
     2, false, true},
    // shifts that would overflow before the sweep's end
    {"m = rowmin s; w = exp((exp(m) - s))", 2, 1, false, false},
    {"m = rowmax s; w = exp((s + m))", 2, 1, false, false},
    {"m = rowmax s; w = exp((s - (0.5 * m)))", 2, 1, false, false},
    {"m = rowmax (s * s); w = exp(((s * s) - m))", 1, 1, true, false},
    {"m = rowmax s; w = exp((tanh(s) - min(m, 2.0)))", 2, 1, false, false},
    {"m = rowmax s; w = exp((s - min(m, 2.0)))", 1, 1, true, false},
    {"m = rowmax s; l = rowsum exp((s - m)); w = ((exp((s - m)) * exp((sink - m))) / l)", 1, 2,
     true, true},
    {"m = rowmax s; l = rowsum select((0.0 < s), exp((s - m)), 0.0); w = (select((0.0 < s), exp((s "
     "- m)), 0.0) / (l + 1.0))",
     1, 2, true, true},
    // sparse: what is near the maximum
    {"m = rowmax s; l = rowsum pow(max(((s - m) + 1.0), 0.0), 2.0); w = (pow(max(((s - m) + 1.0), "
     "0.0), 2.0) / l)",
     2, 2, false, true},
    {"m = rowmax s; w = select((s == m), 1.0, 0.0)", 2, 1, false, false},
    // extrema of what is not s
    {"m = rowmax abs(s); w = (s / m)", 1, 1, false, true},
    {"m = rowmax (s * s); w = (s / (m + 1.0))", 1, 1, false, true},
    {"l = rowsum abs(s); m = rowmax (s / max(l, 1.0)); w = (s * exp(neg(m)))", 1, 2, false, true},
    {"m = rowmax s; x = rowmax exp((s - m)); w = (s / (x + 1.0))", 2, 2, false, true},
    // divided by the largest before a power: a running scale
    {"m = rowmax abs(s); l = rowsum pow((s / max(m, 1e-30)), 8.0); w = (pow((s / max(m, 1e-30)), "
     "8.0) / l)",
     1, 3, false, true},
    {"m = rowmax abs(s); l = rowsum ((s / m) * (s / m)); w = ((s / m) * rsqrt(l))", 1, 3, false,
     true},
    // ... by the sum, which is known at the end only
    {"l = rowsum abs(s); t = rowsum pow((s / max(l, 1e-30)), 15.0); w = (pow((s / max(l, 1e-30)), "
     "15.0) / max(t, 1e-30))",
     2, 2, false, true},
    // what nothing needs; what only an emit needs
    {"m = rowmax s; n = rowsum 1.0; w = s", 1, 0, false, false},
    {"m = rowmax s; n = rowsum 1.0; w = s; emit count = n; emit top = m", 1, 2, false, false},
    {"m = rowmax s; l = rowsum exp((s - m)); t = rowsum (exp((s - m)) / l); w = (exp((s - m)) / t)",
     1, 2, true, true},
};

TEST(named_forms) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena *a = arena_new();
        RowProgram *p = row_of(a, cases[i].text);
        Diags diags = diag_list(a);
        Stream *s = pass_derive(a, p, &diags);
        const char *text = text_of(p, s);
        ck_assert_msg(s->nsweeps == cases[i].sweeps, "%s", text);
        ck_assert_msg(s->states.n == cases[i].states, "%s", text);
        ck_assert_msg((s->shift >= 0) == cases[i].shifted, "%s", text);
        ck_assert_msg((s->factor != NULL) == cases[i].factor, "%s", text);
        ck_assert_msg((diags.first != NULL) == (s->nsweeps > 1), "%s", text);
        ck_assert_msg((s->blocking >= 0) == (s->nsweeps > 1), "%s", text);
        check_rows(p, s, (uint32_t)i * 31 + 7, 80, true);
        arena_free(a);
    }
}

// ---- guards against overflow

static const char *pick(const char *const *from, int n, uint32_t *seed) {
    return from[test_draw(seed, (uint32_t)n)];
}

// A normalization that divides by what is as large as its scores before it does what would leave f32.
static const char *guarded_text(Arena *a, uint32_t *seed) {
    static const char *const bases[][2] = {
        {"rowmax abs(s)", "max(m, 1e-30)"},           {"rowmax abs(s)", "m"},
        {"rowsum abs(s)", "max(m, 1e-30)"},           {"rowmax (2.0 * abs(s))", "max(m, 1e-30)"},
        {"rowmax max(s, 0.0)", "(m + 1e-30)"},        {"rowmax max(s, 0.0)", "max(m, 1e-30)"},
        {"rowmax abs(s)", "max(max(m, temp), 1e-30)"}};
    static const char *const elements[] = {"%s",
                                           "(%s * %s)",
                                           "pow(%s, 8.0)",
                                           "pow(abs(%s), 3.5)",
                                           "sqrt(abs(%s))",
                                           "(%s * abs(%s))",
                                           "max(%s, 0.0)",
                                           "exp(%s)",
                                           "(%s * exp(%s))",
                                           "pow(max(%s, 0.0), 5.0)"};
    static const char *const sums[] = {"rowsum abs(%s)", "rowsum (%s * %s)", "rowmax abs(%s)"};
    static const char *const weights[] = {"(%s / max(l, 1e-30))", "(%s * rsqrt((l + 1e-30)))",
                                          "(%s / l)", "pow((%s / (l + 0.5)), 2.0)",
                                          "(pow((%s / (l + 0.5)), 3.0) * %s)"};
    const char *const *base = bases[test_draw(seed, sizeof bases / sizeof *bases)];
    const char *share =
        arena_printf(a, "(%s / %s)", test_draw(seed, 4) ? "s" : "max(s, 0.0)", base[1]);
    const char *e = arena_printf(a, pick(elements, 10, seed), share, share);
    const char *l = arena_printf(a, pick(sums, 3, seed), e, e);
    const char *w = arena_printf(a, pick(weights, 5, seed), e, e);
    return arena_printf(a, "m = %s; l = %s; w = %s", base[0], l, w);
}

static Row hard_row(uint32_t *seed) {
    static const double scales[] = {1e-21, 1e-18, 1e-9, 1e-3, 1, 50, 1e4, 1e9, 1e15, 1e19};
    Row r = random_row(seed);
    double scale = scales[test_draw(seed, 10)], v = test_draw(seed, 2) ? 0x1p31 : 1;
    bool grows = !test_draw(seed, 3), zero = !test_draw(seed, 4);
    for (int j = 0; j < r.n; j++) {
        r.s[j] = (float)(r.s[j] / 12 * scale * (grows ? exp2(j - KEYS) : 1));
        if (zero && j < r.n / 2 && isfinite(r.s[j])) r.s[j] = 0;
        r.v[j] = (float)((r.v[j] < 0 ? r.v[j] - 1 : r.v[j] + 1) * v);
    }
    return r;
}

// Counts the rows in which the formula as it is written, in f32, is right.
static int check_hard_row(const RowProgram *p, const Stream *s, const Row *row, uint32_t *seed) {
    Vals exact = {.s = 0}, written = {.f32 = true}, kernel = {.f32 = true};
    double want, plain, size = direct(p, row, &exact, &want);
    direct(p, row, &written, &plain);
    bool vanishes = size < 1e-33 * fabs(row->n ? row->v[0] : 0);
    if (!(fabs(plain - want) <= 3e-6 * size) || vanishes) return 0;
    double got = streamed(s, row, &kernel, seed);
    ck_assert_msg(fabs(got - want) <= 5e-5 * size, "%g, want %g of %g\n%s", got, want, size,
                  text_of(p, s));
    return 1;
}

TEST(guards_are_kept) {
    int right = 0, sweeps = 0;
    for (uint32_t i = 0; i < 800; i++) {
        Arena *a = arena_new();
        uint32_t seed = i * 2654435761u + 7;
        RowProgram *p = row_of(a, guarded_text(a, &seed));
        Stream *s = pass_derive(a, p, NULL);
        sweeps += s->nsweeps;
        for (int k = 0; k < 20; k++) {
            Row row = hard_row(&seed);
            right += check_hard_row(p, s, &row, &seed);
        }
        arena_free(a);
    }
    ck_assert_int_gt(right, 8000);
    ck_assert_int_lt(sweeps, 2000);
}

// ---- random programs

static const Ex *one_of(RowProgram *p, const Ex **have, int n, uint32_t *seed) {
    if (!test_draw(seed, 4)) return ex_f32(p->pool, (float)(int)test_draw(seed, 5) - 1.5f);
    return have[test_draw(seed, 3) ? n - 1 - (int)test_draw(seed, (uint32_t)(n < 3 ? n : 3))
                                   : (int)test_draw(seed, (uint32_t)n)];
}

static const Ex *grow(RowProgram *p, const Ex **have, int n, uint32_t *seed) {
    static const ExOp ops[] = {EX_ADD, EX_SUB, EX_SUB,     EX_MUL,  EX_MUL,
                               EX_DIV, EX_MAX, EX_MIN,     EX_ABS,  EX_NEG,
                               EX_EXP, EX_EXP, EX_SIGMOID, EX_TANH, EX_SELECT};
    ExOp op = ops[test_draw(seed, 15)];
    const Ex *x = one_of(p, have, n, seed), *y = one_of(p, have, n, seed),
             *one = ex_f32(p->pool, 1);
    if (op == EX_DIV)
        y = ex_2(p->pool, EX_ADD, ex_1(p->pool, EX_ABS, y), one); // where the formula has no poles
    if (op == EX_SELECT)
        return ex_select(p->pool, ex_2(p->pool, EX_LT, have[0], ex_f32(p->pool, 0.3f)), y,
                         one_of(p, have, n, seed));
    if (op == EX_EXP) x = ex_2(p->pool, EX_SUB, x, y);
    return ex_ops[op].arity == 1 ? ex_1(p->pool, op, x) : ex_2(p->pool, op, x, y);
}

static const Ex *random_expr(RowProgram *p, const Ex **base, int n, uint32_t *seed) {
    const Ex *have[40];
    memcpy(have, base, sizeof *have * (size_t)n);
    int end = n + 2 + (int)test_draw(seed, 5);
    for (; n < end; n++) have[n] = grow(p, have, n, seed);
    return have[n - 1];
}

// exp((g - m) * scale), m being the maximum of g (or the minimum, the other way round): what a
// program is likely to have.
static const Ex *stabilized(RowProgram *p, const Ex *g, int k, uint32_t *seed) {
    const Ex *m = ex_sym(p->pool, SYM_R, k, EX_F32), *sink = ex_sym(p->pool, SYM_SCALAR, 0, EX_F32);
    bool max = p->reduces.data[k].op == EX_ROWMAX;
    if (!test_draw(seed, 3)) m = ex_2(p->pool, max ? EX_MAX : EX_MIN, m, sink);
    const Ex *d = max ? ex_2(p->pool, EX_SUB, g, m) : ex_2(p->pool, EX_SUB, m, g);
    if (!test_draw(seed, 3))
        d = ex_2(p->pool, EX_MUL, d, ex_f32(p->pool, 0.5f + (float)test_draw(seed, 3)));
    if (!test_draw(seed, 3)) d = ex_2(p->pool, EX_DIV, d, ex_sym(p->pool, SYM_SCALAR, 1, EX_F32));
    return ex_1(p->pool, EX_EXP, d);
}

static RowProgram *random_program(Arena *a, uint32_t *seed) {
    RowProgram *p = row_new(a);
    const Ex *base[20];
    int n = 0, reduces = 1 + (int)test_draw(seed, 4);
    base[n++] = ex_symbol(p->pool, SYM_S);
    base[n++] = ex_sym(p->pool, SYM_SCALAR, 0, EX_F32);
    for (int k = 0; k < reduces; k++) {
        ExOp op = (ExOp)(EX_ROWMAX + test_draw(seed, 3));
        const Ex *f = test_draw(seed, 2) ? random_expr(p, base, n, seed)
                                         : base[test_draw(seed, 2) ? n - 1 : 0];
        add_reduce(p, arena_printf(a, "r%d", k), op, f);
        const Ex *r = ex_sym(p->pool, SYM_R, k, EX_F32);
        // Infinities of empty rows and of sums too long are not what is tested here.
        base[n++] = test_draw(seed, 2) ? r : ex_1(p->pool, EX_TANH, r);
        if (op == EX_ROWSUM)
            base[n] = ex_2(p->pool, EX_DIV, base[n - 2],
                           ex_2(p->pool, EX_ADD, ex_1(p->pool, EX_ABS, r), ex_f32(p->pool, 1)));
        else
            base[n] = stabilized(p, f, k, seed);
        n++;
    }
    p->weight = test_draw(seed, 4) ? random_expr(p, base, n, seed) : base[n - 1];
    return p;
}

TEST(random_programs) {
    for (uint32_t i = 0; i < 1500; i++) {
        Arena *a = arena_new();
        uint32_t seed = i * 2654435761u + 99;
        RowProgram *p = random_program(a, &seed);
        Stream *s = pass_derive(a, p, NULL);
        check_rows(p, s, seed, 12, false);
        arena_free(a);
    }
}
