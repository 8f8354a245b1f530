// The derived backward against central differences of the row mathematics it came from, in double: of scores, values and inputs, on
// rows with masked keys and without any.
#include "row_util.h"

#include "ir/stream_eval.h"
#include "passes/derive/backward.h"
#include "passes/derive/differentiate.h"
#include "tests/support/backward_eval.h"

enum { KEYS = 9, COLUMNS = 3, MAX_R = 16 };

// ---- a row and what its outputs weigh

enum {
    AT_DOT,
    AT_SQK = KEYS,
    AT_V = 2 * KEYS,
    AT_SQQ = (2 + COLUMNS) * KEYS,
    AT_SINK,
    AT_TEMP,
    NUMBERS
};

typedef struct Row {
    int n;
    double x[NUMBERS]; // all that has a gradient
    bool masked[KEYS];
    double d_o[COLUMNS], demit[8];
} Row;

typedef struct Vals {
    const Row *row;
    double s, o, sqo, r[MAX_R];
    int key, column;
} Vals;

static ExValue symbol(void *ctx, const Ex *e) {
    const Vals *v = ctx;
    ExValue x = {.f = 0};
    switch ((int)e->sym) {
    case SYM_DOT: x.f = v->row->x[AT_DOT + v->key]; break;
    case SYM_SQK: x.f = v->row->x[AT_SQK + v->key]; break;
    case SYM_SQQ: x.f = v->row->x[AT_SQQ]; break;
    case SYM_S: x.f = v->s; break;
    case SYM_O: x.f = v->o; break;
    case SYM_SQO: x.f = v->sqo; break;
    case SYM_R: x.f = v->r[e->index]; break;
    case SYM_SCALAR: x.f = v->row->x[e->index ? AT_TEMP : AT_SINK]; break;
    case SYM_KV_IDX: x.i = v->key; break;
    case SYM_D_IDX: x.i = v->column; break;
    default: x.i = 1; break;
    }
    return x;
}

static double eval(const Ex *e, Vals *v) {
    ExEnv env = {.sym = symbol, .ctx = v};
    return ex_eval(e, &env).f;
}

// The modified score of a key; -inf: it takes no part.
static double score(const Ex *modified, const Row *row, int j) {
    Vals v = {.row = row, .key = j};
    return row->masked[j] ? -INFINITY : eval(modified, &v);
}

static double reduce(ExOp op, double a, double b) {
    return op == EX_ROWMAX ? fmax(a, b) : op == EX_ROWMIN ? fmin(a, b) : a + b;
}

// What o and the emits come to, each times its gradient.
static double loss(const RowProgram *p, const Row *row) {
    Vals v = {.row = row};
    double o[COLUMNS] = {0}, sum = 0;
    int keys = 0;
    for (int k = 0; k < p->reduces.n; k++) v.r[k] = ex_identity(p->reduces.data[k].op);
    for (int k = 0; k <= p->reduces.n; k++)
        for (v.key = 0; v.key < row->n; v.key++) {
            v.s = score(p->modified, row, v.key);
            if (v.s == -INFINITY) continue;
            keys += k == p->reduces.n;
            if (k < p->reduces.n)
                v.r[k] = reduce(p->reduces.data[k].op, v.r[k], eval(p->reduces.data[k].f, &v));
            else
                for (int d = 0; d < COLUMNS; d++)
                    o[d] += eval(p->weight, &v) * row->x[AT_V + v.key * COLUMNS + d];
        }
    for (int d = 0; d < COLUMNS; d++) v.sqo += o[d] * o[d];
    for (v.column = 0; v.column < COLUMNS; v.column++) {
        v.o = o[v.column];
        sum += row->d_o[v.column] * eval(p->output, &v);
    }
    for (int i = 0; i < p->emits.n && keys; i++)
        sum += row->demit[i] * eval(p->emits.data[i].value, &v);
    return sum;
}

// ---- the derived one

static void add_input(void *ctx, int input, int rank, const int32_t *index, double value) {
    double *gradient = ctx;
    (void)index;
    ck_assert_int_eq(rank, 0);
    gradient[input ? AT_TEMP : AT_SINK] += value;
}

static double product(void *ctx, const Ex *e, int j) {
    Vals v = {.row = ctx, .key = j};
    return symbol(&v, e).f;
}

static void derived(const Backward *b, Row *row, double *gradient) {
    Arena *a = arena_new();
    Vals outer = {.row = row};
    ExEnv env = {.sym = symbol, .ctx = &outer};
    double s[KEYS], o[COLUMNS], aggregated[COLUMNS], *saved = ARENA_ARRAY(a, double, b->rows.n + 1);
    for (int j = 0; j < row->n; j++) s[j] = score(b->row->modified, row, j);
    StreamEval *f = stream_eval(a, b->s, &env, COLUMNS);
    StreamPart part = stream_begin(f);
    StreamKeys keys = {s, row->x + AT_V};
    for (int t = 0; t < b->s->nsweeps; t++) {
        stream_add(f, t, &keys, 0, row->n, &part, NULL, NULL);
        stream_finish(f, &part);
    }
    for (int i = 0; i < b->nsaved; i++) saved[i] = stream_scalar(f, &part, b->rows.data[i].value);
    if (b->aggregate)
        stream_aggregate(f, &part, o);
    else
        stream_output(f, &part, o);
    BackEval *e = back_eval(a, b, &env, COLUMNS);
    BackPairs pairs = {row->n, s, product, row, row->x + AT_V};
    BackCome come = {o, row->d_o, row->demit};
    back_rows(e, saved, &pairs, &come, aggregated);
    for (int j = 0; j < row->n; j++) {
        BackPair g = back_pair(e, &pairs, j);
        for (int i = 0; i < b->products.n; i++) {
            ExSym sym = b->products.data[i].sym;
            int at = sym == SYM_DOT ? AT_DOT + j : sym == SYM_SQK ? AT_SQK + j : AT_SQQ;
            gradient[at] += g.products[i];
        }
        for (int d = 0; d < COLUMNS; d++) gradient[AT_V + j * COLUMNS + d] += g.w * aggregated[d];
    }
    back_grads(e, &pairs, &come, add_input, gradient);
    arena_free(a);
}

// ---- comparing

static Row random_row(uint32_t *seed, bool whole) {
    Row r = {.n = (int)test_draw(seed, KEYS + 1)};
    uint32_t masked = test_draw(seed, 4);
    double scale = test_draw(seed, 3) ? 1.5 : 5;
    for (int i = 0; i < NUMBERS; i++)
        r.x[i] = (float)(test_uniform(seed) * (i < AT_SQK ? scale : 1));
    for (int j = 0; j < KEYS; j++) r.x[AT_SQK + j] = fabs(r.x[AT_SQK + j]) + 0.1;
    r.x[AT_SQQ] = fabs(r.x[AT_SQQ]) + 0.1;
    r.x[AT_TEMP] = fabs(r.x[AT_TEMP]) + 0.5;
    for (int j = 0; j < KEYS; j++) r.masked[j] = test_draw(seed, 3) < masked;
    for (int d = 0; d < COLUMNS; d++) r.d_o[d] = test_uniform(seed);
    for (int i = 0; i < 8; i++) r.demit[i] = test_uniform(seed);
    for (int j = 0; whole && j < KEYS; j++) r.x[AT_DOT + j] = round(r.x[AT_DOT + j]);
    return r;
}

static const char *text_of(const RowProgram *p, const Backward *b) {
    ExNames names = row_names(b->row);
    Text t = text_new(p->arena);
    row_print(&t, p);
    stream_print(&t, b->s);
    static const char *const made[] = {"saved", "columns", "keys", "scalar"};
    for (int i = 0; i < b->rows.n; i++) {
        text_printf(&t, "  row%d (%s, %s) = ", i, b->rows.data[i].name, made[b->rows.data[i].made]);
        ex_print(&t, b->rows.data[i].value, &names);
        text_puts(&t, "\n");
    }
    const struct {
        const char *name;
        const Ex *e;
    } all[] = {{"d_o", b->d_o},
               {"w", b->weight},
               {"ds", b->ds},
               {"d_dot", back_product(b, SYM_DOT, 0)},
               {"d_sqq", back_product(b, SYM_SQQ, 0)},
               {"d_sqk", back_product(b, SYM_SQK, 0)},
               {"empty", b->empty}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!all[i].e) continue;
        text_printf(&t, "  %s = ", all[i].name);
        ex_print(&t, all[i].e, &names);
        text_puts(&t, "\n");
    }
    for (int i = 0; i < b->grads.n; i++) {
        text_puts(&t, "  d ");
        ex_print(&t, b->grads.data[i].at, &names);
        text_printf(&t, " per %d = ", b->grads.data[i].per);
        ex_print(&t, b->grads.data[i].value, &names);
        text_puts(&t, "\n");
    }
    return t.s;
}

// The derivative by one number; NaN where it has none there, as far as steps to both sides tell.
static double difference(const RowProgram *p, const Row *row, int i) {
    double h = 1e-5, at[5];
    for (int k = -2; k <= 2; k++) {
        Row moved = *row;
        moved.x[i] += h * k;
        at[k + 2] = loss(p, &moved);
    }
    double central = (at[3] - at[1]) / (2 * h), far = (at[4] - at[0]) / (4 * h),
           left = (at[2] - at[1]) / h, right = (at[3] - at[2]) / h;
    double size = 1 + fabs(central);
    if (fabs(at[2]) > 1e4) return NAN; // a difference of such numbers says nothing
    bool smooth = fabs(central - far) < 1e-5 * size && fabs(left - right) < 3e-2 * size;
    return smooth ? central : NAN;
}

static int check_row(const RowProgram *p, const Backward *b, Row *row) {
    double gradient[NUMBERS] = {0};
    int compared = 0;
    derived(b, row, gradient);
    for (int i = 0; i < NUMBERS; i++) {
        double want = difference(p, row, i), got = gradient[i];
        if (isnan(want)) continue;
        bool ok = fabs(want - got) < 2e-4 * (1 + fabs(want));
        ck_assert_msg(ok, "number %d of a row of %d: %g, want %g\n%s", i, row->n, got, want,
                      text_of(p, b));
        compared++;
    }
    return compared;
}

// ---- cases

static const struct {
    const char *text;
    int saved, made,
        keys;       // row scalars: of the forward, of the backward, sums over the keys among these
    const char *ds; // NULL: anything
} cases[] = {
    {"m = rowmax s; l = rowsum exp((s - m)); w = (exp((s - m)) / l); emit lse = (m + log(l))", 2, 2,
     0, "(w * (dw + row3))"},
    {"m = rowmax s; l = rowsum exp((s - m)); w = exp((s - (m + log(l)))); emit lse = (m + log(l))",
     2, 2, 0, "(w * (dw + row3))"},
    {"m = rowmax s; l = rowsum (exp(s) * exp(neg(m))); w = ((exp(s) / exp(m)) / l)", 3, 1, 0,
     "(w * (dw - row3))"},
    {"m0 = rowmax s; l = rowsum exp((s - max(m0, sink))); w = (exp((s - max(m0, sink))) / (l + "
     "exp((sink - max(m0, sink)))))",
     4, 1, 0, "(w * (dw - row4))"},
    {"m = rowmax s; l = rowsum exp((s - max(m, 0.0))); w = (exp((s - max(m, 0.0))) / (l + "
     "exp(neg(max(m, 0.0)))))",
     2, 1, 0, "(w * (dw - row2))"},
    {"l = rowsum abs(s); w = (s / max(l, 1.0))", 1, 2, 0, NULL},
    {"w = max(s, 0.0)", 0, 0, 0, "select((0.0 < s), dw, 0.0)"},
    {"w = sigmoid(s)", 0, 0, 0, "(dw * (w * (1.0 - w)))"},
    {"w = s", 0, 0, 0, "dw"},
    {"w = 1.0", 0, 0, 0, "0.0"},
    {"l = rowsum pow(max(s, 0.0), 2.0); w = (pow(max(s, 0.0), 2.0) / max(l, 1e-3))", 2, 2, 0, NULL},
    {"l = rowsum abs(s); w = max((s / max(l, 1.0)), 0.0)", 1, 2, 0, NULL},
    {"l = rowsum abs(s); w = abs((s / neg(max(l, 1.0))))", 1, 1, 1, NULL},
    {"l = rowsum abs(s); w = sqrt((abs(s) / max(l, 1.0)))", 1, 2, 0, NULL},
    {"l = rowsum (s * s); w = (s * rsqrt((l + 1e-3)))", 1, 2, 0, NULL},
    {"n = rowsum 1.0; w = (1.0 / n)", 1, 0, 0, "0.0"},
    {"n = rowsum 1.0; t = rowsum s; q = rowsum ((s - (t / n)) * (s - (t / n))); w = ((s - (t / n)) "
     "* rsqrt(((q / n) + 1e-5)))",
     3, 3, 1, NULL},
    {"n = rowsum 1.0; t = rowsum s; q = rowsum ((s - (t / n)) * (s - (t / n))); e = rowsum exp(((s "
     "- (t / n)) * rsqrt(((q / n) + 1e-5)))); w = (exp(((s - (t / n)) * rsqrt(((q / n) + 1e-5)))) "
     "/ e)",
     5, 5, 2, NULL},
    {"m = rowmin s; l = rowsum exp((m - s)); w = (exp((m - s)) / l); emit x = (m - log(l))", 2, 2,
     0, "neg((w * (dw + row3)))"},
    {"lo = rowmin s; hi = rowmax s; w = ((s - lo) / ((hi - lo) + 1.0))", 2, 6, 3, NULL},
    {"lo = rowmin s; hi = rowmax s; w = exp((s - (hi + (0.5 * lo))))", 2, 5, 2, NULL},
    {"l = rowsum exp(s); w = (exp(s) / l)", 3, 1, 0, "(w * (dw - row3))"},
    {"l = rowsum exp(neg(s)); w = (exp(neg(s)) / l)", 3, 1, 0, "(w * (row3 - dw))"},
    {"t = rowsum s; w = exp((s - t))", 1, 1, 0, "fma(dw, w, neg(row1))"},
    {"m = rowmax s; l = rowsum exp(((s - m) / (temp + f32(q_idx)))); w = (exp(((s - m) / (temp + "
     "f32(q_idx)))) / l)",
     4, 5, 0, "(w * fma(dw, row5, row6))"},
    {"m = rowmax s; l = rowsum exp((s - m)); m2 = rowmax (2.0 * s); l2 = rowsum exp(((2.0 * s) - "
     "m2)); w = ((exp((s - m)) / l) - (0.5 * (exp(((2.0 * s) - m2)) / l2)))",
     6, 8, 6, NULL},
    {"m = rowmax s; l = rowsum exp((s - m)); w = pow((exp((s - m)) / l), 2.0)", 3, 2, 0, NULL},
    {"m = rowmax s; l = rowsum exp((s - m)); w = sqrt((exp((s - m)) / l))", 3, 2, 0, NULL},
    {"m = rowmax s; l = rowsum exp((s - m)); w = ((exp((s - m)) / l) * s)", 2, 2, 0, NULL},
    {"m = rowmax s; l = rowsum exp((s - max(m, sink))); w = ((exp((s - max(m, sink))) + exp((sink "
     "- max(m, sink)))) / (l + 1.0))",
     3, 5, 2, NULL},
    {"m = rowmax s; l = rowsum exp((s - max(m, sink))); w = (max(exp((s - max(m, sink))), "
     "exp((sink - max(m, sink)))) / (l + 1.0))",
     3, 5, 2, NULL},
    {"m = rowmax s; l = rowsum exp((s - m)); w = ((exp((s - m)) + exp((sink - m))) / (l + 1.0))", 3,
     4, 1, NULL},
    {"m = rowmin s; w = exp((exp(m) - s))", 1, 3, 1, NULL},
    {"m = rowmax s; w = exp((s + m))", 1, 3, 1, NULL},
    {"m = rowmax s; w = exp((s - (0.5 * m)))", 1, 3, 1, NULL},
    {"m = rowmax (s * s); w = exp(((s * s) - m))", 2, 3, 1, NULL},
    {"m = rowmax s; w = exp((tanh(s) - min(m, 2.0)))", 1, 3, 1, NULL},
    {"m = rowmax s; w = exp((s - min(m, 2.0)))", 2, 3, 1, NULL},
    {"m = rowmax s; l = rowsum exp((s - m)); w = ((exp((s - m)) * exp((sink - m))) / l)", 4, 4, 1,
     NULL},
    {"m = rowmax s; l = rowsum select((0.0 < s), exp((s - m)), 0.0); w = (select((0.0 < s), exp((s "
     "- m)), 0.0) / (l + 1.0))",
     3, 3, 1, NULL},
    {"m = rowmax s; l = rowsum pow(max(((s - m) + 1.0), 0.0), 2.0); w = (pow(max(((s - m) + 1.0), "
     "0.0), 2.0) / l)",
     3, 6, 3, NULL},
    {"m = rowmax s; w = select((s == m), 1.0, 0.0)", 1, 0, 0, "0.0"},
    {"m = rowmax abs(s); w = (s / m)", 1, 3, 1, NULL},
    {"m = rowmax (s * s); w = (s / (m + 1.0))", 1, 3, 1, NULL},
    {"l = rowsum abs(s); m = rowmax (s / max(l, 1.0)); w = (s * exp(neg(m)))", 2, 5, 2, NULL},
    {"m = rowmax s; x = rowmax exp((s - m)); w = (s / (x + 1.0))", 2, 6, 3, NULL},
    {"m = rowmax abs(s); l = rowsum pow((s / max(m, 1e-30)), 8.0); w = (pow((s / max(m, 1e-30)), "
     "8.0) / l)",
     3, 2, 0, NULL},
    {"m = rowmax abs(s); l = rowsum ((s / m) * (s / m)); w = ((s / m) * rsqrt(l))", 2, 2, 0, NULL},
    {"l = rowsum abs(s); t = rowsum pow((s / max(l, 1e-30)), 15.0); w = (pow((s / max(l, 1e-30)), "
     "15.0) / max(t, 1e-30))",
     2, 3, 0, NULL},
    {"m = rowmax s; n = rowsum 1.0; w = s", 0, 0, 0, "dw"},
    {"m = rowmax s; n = rowsum 1.0; w = s; emit count = n; emit top = m", 1, 2, 1, NULL},
    {"m = rowmax s; l = rowsum exp((s - m)); t = rowsum (exp((s - m)) / l); w = (exp((s - m)) / t)",
     3, 3, 1, NULL},
    {"m = rowmax s; l = rowsum exp((s - m)); w = (exp((s - m)) / l); output = (o * rsqrt((sqnorm_o "
     "+ 1e-3)))",
     2, 2, 0, "(w * (dw - row3))"},
    {"m = rowmax s; l = rowsum exp((s - m)); w = (exp((s - m)) / l); output = (o * temp)", 2, 1, 0,
     "(w * (dw - row2))"},
    {"m = rowmax s; l = rowsum exp((s - m)); w = (exp((s - m)) / l); output = (o + (temp * "
     "f32(d)))",
     2, 1, 0, "(w * (dw - row2))"},
    {"m = rowmax s; l = rowsum exp((s - m)); w = (exp((s - m)) / l); output = tanh(o)", 2, 1, 0,
     "(w * (dw - row2))"},
    {"m = rowmax s; l = rowsum exp((s - m)); w = (exp((s - m)) / l); modified = (temp * tanh((dot "
     "/ temp)))",
     2, 1, 0, "(w * (dw - row2))"},
    {"m = rowmax s; l = rowsum exp((s - m)); w = (exp((s - m)) / l); modified = ((dot * "
     "rsqrt(sqnorm_q)) * rsqrt(sqnorm_k))",
     2, 1, 0, "(w * (dw - row2))"},
    {"m = rowmax s; l = rowsum exp((s - m)); w = (exp((s - m)) / l); modified = (dot * 0.125)", 2,
     1, 0, "(w * ((dw - row2) * 0.125))"},
    {"m = rowmax s; l = rowsum exp((s - m)); w = (exp((s - m)) / l); modified = sqrt(max(dot, "
     "0.0))",
     2, 1, 0, "(w * (dw - row2))"},
    {"m = rowmax s; l = rowsum exp((s - m)); w = (exp((s - m)) / l); modified = (30.0 * tanh(dot))",
     2, 1, 0, NULL},
    {"w = select((0.0 < s), sqrt(s), 0.0)", 0, 0, 0, NULL},
    {"m = rowmax s; l = rowsum exp((s - m)); w = (exp((s - m)) / l); emit lse = (m + log(l)); emit "
     "m2 = m; emit t = (temp * l)",
     4, 4, 1, NULL},
    {"m = rowmax s; w = (s / m)", 1, 3, 1, NULL},
};

static const char *printed(Arena *a, const Ex *e) {
    Text t = text_new(a);
    ex_print(&t, e, NULL);
    return t.s;
}

static int sums_over_keys(const Backward *b) {
    int n = 0;
    for (int i = 0; i < b->rows.n; i++) n += b->rows.data[i].made == BACK_KEYS;
    return n;
}

TEST(named_forms) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena *a = arena_new();
        RowProgram *p = row_of(a, cases[i].text);
        Diags diags = diag_list(a);
        Backward *b = pass_backward(a, p, &diags);
        uint32_t seed = (uint32_t)i * 31 + 7;
        int compared = 0, keys = sums_over_keys(b);
        ck_assert_msg(b->nsaved == cases[i].saved && b->rows.n - b->nsaved == cases[i].made &&
                          keys == cases[i].keys,
                      "%d saved, %d made\n%s", b->nsaved, b->rows.n - b->nsaved, text_of(p, b));
        if (cases[i].ds) ck_assert_str_eq(printed(a, b->ds), cases[i].ds);
        ck_assert_msg((diags.first != NULL) == (keys > 0), "%s", cases[i].text);
        for (int k = 0; k < 10; k++) {
            Row row = random_row(&seed, false);
            compared += check_row(p, b, &row);
        }
        ck_assert_msg(compared > 80, "%d, %s", compared, cases[i].text);
        arena_free(a);
    }
}

// Scores that are proved small: shift and factor are one number where weights are rounded to 16 bits anyway.
ARENA_TEST(folded) {
    for (int half = 0; half < 2; half++) {
        RowProgram *p = row_of(a, "m = rowmax s; l = rowsum exp((s - m)); w = (exp((s - m)) / l); "
                                  "modified = (30.0 * tanh(dot))");
        uint32_t seed = 3;
        p->bf16 = half;
        const Backward *b = pass_backward(a, p, NULL);
        ck_assert_int_eq(b->nsaved, half ? 1 : 2);
        for (int k = 0; k < 10; k++) {
            Row row = random_row(&seed, false);
            check_row(p, b, &row);
        }
    }
}

// ---- derivatives of operations

// By each argument in turn, the others constants, against differences.
ARENA_TEST(operations) {
    RowProgram *p = row_new(a);
    const Ex *s = ex_symbol(p->pool, SYM_S);
    int compared = 0;
    for (int op = EX_ADD; op <= EX_POW; op++)
        for (int k = 0; k < ex_ops[op].arity; k++)
            for (int i = 0; i < 6; i++) {
                static const double at[] = {0.3, 0.7, 1.9, 2.6, 0.45, 3.2};
                const Ex *args[3] = {ex_f32(p->pool, 1.25f), ex_f32(p->pool, 0.55f),
                                     ex_f32(p->pool, 2.5f)};
                args[k] = s;
                const Ex *e = ex_op(p->pool, (ExOp)op, args, ex_ops[op].arity),
                         *de = ex_derivative(p->pool, e, s);
                const double h = 1e-6;
                Row row = {.n = 0};
                Vals v = {.row = &row, .s = at[i] + h};
                double more = eval(e, &v), want, got;
                v.s = at[i] - h;
                want = (more - eval(e, &v)) / (2 * h);
                v.s = at[i];
                got = de ? eval(de, &v) : 0;
                ck_assert_msg(fabs(want - got) < 1e-5 * (1 + fabs(want)),
                              "%s by %d at %g: %g, want %g", ex_op_name((ExOp)op), k, at[i], got,
                              want);
                compared++;
            }
    ck_assert_int_gt(compared, 150);
}
