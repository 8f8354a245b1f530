// reference_grad.c: the reference's own derivative, by reverse mode over its evaluation
// (reference_tape.h), and by nothing that the compiler derives.
//
// An attention goes row by row: what is kept is one row. A recurrence goes back through segments of
// positions: it keeps the state before each, and those of the segment at hand, about 2 sqrt(S).
#include "frontend/reference_tape.h"
#include "frontend/reference_walk.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static const double *demit(const RefGrad *g, int m) { return g->demits ? g->demits[m] : NULL; }

static void add(double *to, const double *x, double factor, int n) {
    if (!to || factor == 0) return;
    for (int i = 0; i < n; i++) to[i] += factor * x[i];
}

static bool of_sizes(const RefGrad *g) { return g->kind == REF_SIZES || g->kind == REF_PARTS; }

// Of sizes: the same of magnitudes.
static void add_to(const RefGrad *g, double *to, const double *x, double factor, int n) {
    if (!of_sizes(g)) add(to, x, factor, n);
    for (int i = 0; i < n && of_sizes(g) && to; i++) to[i] += fabs(factor * x[i]);
}

static double inner(const RefGrad *g, const double *x, const double *y, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += g->kind == REF_SIZES ? fabs(x[i] * y[i]) : x[i] * y[i];
    return g->kind == REF_PARTS ? fabs(sum) : ref_rounded(g->kind, sum);
}

static double come(const RefGrad *g, double adjoint) {
    return of_sizes(g) ? fabs(adjoint) : ref_rounded(g->kind, adjoint);
}

enum { HALF_BITS = 11 };

// To f16 or bf16.
static double in_type(double x, int bits) {
    int exponent, least = bits == HALF_BITS ? -24 : -133;
    if (!isfinite(x)) return x;
    frexp(x, &exponent);
    double unit = ldexp(1, exponent - bits > least ? exponent - bits : least);
    double y = rint(x / unit) * unit;
    return bits == HALF_BITS && fabs(y) > 65504 ? copysign(INFINITY, y) : y;
}

// What is a factor of a product with a row of q, k, v or do.
static double factor(const RefGrad *g, double x) {
    bool rounds = g->kind == REF_STORED || (g->kind == REF_WRITTEN && g->bits == HALF_BITS);
    double unit = g->kind == REF_STORED ? g->unit : 1;
    return rounds && g->bits ? in_type(x * unit, g->bits) / unit : x;
}

static double value_of(const RefGrad *g, TxValue v) {
    return g->kind == REF_WRITTEN ? v.written : v.f;
}

static double *from(double *array, size_t at) { return array ? array + at : NULL; }

// ---- attention

typedef struct Back {
    const RefGrad *g;
    RefAttention *t;
    RefTape *score, *modify, *normalize, *output;
    int *emit;            // the node of each emit
    bool *weighs;         // of normalize's nodes: the weight hangs on it
    double *dout;         // of the aggregated row
    double *o;            // what is stored of it
    double *off;          // what scores get of how far that is off
    double *dq, *dk, *dv; // of q, k and v as clauses give them; NULL: not wanted
    int dv_stride;
} Back;

// Behind a clause gradients are of what it gives.
static double *changed(Arena *a, const RefAttention *t, ClauseId id, double *stored) {
    const RefElements x = ref_elements(t, id);
    if (!t->run->variant->clause[id]) return stored;
    return ARENA_ARRAY(a, double, (int64_t)t->B *x.heads *x.rows *x.width + 1);
}

// From there to the stored elements, and to inputs.
static void back_elements(Arena *a, const RefGrad *g, const RefAttention *t, ClauseId id,
                          const double *d, double *to) {
    const RefElements x = ref_elements(t, id);
    static const struct {
        TxSym element, square;
    } syms[] = {{TS_EQ, TS_SQEQ}, {TS_EK, TS_SQEK}, {TS_EV, TS_SQEV}};
    TxSym element = syms[id - CLAUSE_A_QUERY].element, square = syms[id - CLAUSE_A_QUERY].square;
    RefProgram *p = ref_program(a, &t->run->variant->clause[id], 1, 0, 0, g->run->kinks);
    RefTape *tape = ref_tape(a, p, t->run->variant, 0);
    if (!p) return;
    tape->kind = g->kind;
    RefEnv e;
    for (int64_t r = 0; r < (int64_t)t->B * x.heads * x.rows; r++) {
        const double *row = ref_elements_row(t, &x, r, &e);
        double *out = from(to, (size_t)(r * x.stride)), squares = 0;
        for (e.d = 0; e.d < x.width; e.d++) {
            ref_element(p, &e, row[e.d]);
            ref_tape_of(tape, g->run, d[r * x.width + e.d], g->dinputs);
            if (out) out[e.d] += tape->sym[element];
            squares += tape->sym[square];
        }
        add_to(g, out, row, 2 * squares, x.width);
    }
}

static bool *weighing(Arena *a, const RefProgram *p) {
    bool *weighs = ARENA_ARRAY(a, bool, p->nodes.n + 1);
    const int *args = p->args;
    for (int i = 0; i < p->nodes.n; i++) args += p->nodes.data[i]->nargs;
    weighs[p->result] = true;
    for (int i = p->nodes.n - 1; i >= 0; i--) {
        args -= p->nodes.data[i]->nargs;
        for (int k = 0; k < p->nodes.data[i]->nargs && weighs[i]; k++) weighs[args[k]] = true;
    }
    return weighs;
}

static Back back(Arena *a, const RefGrad *g, RefAttention *t) {
    const Variant *v = g->run->variant;
    Back x = {.g = g,
              .t = t,
              .score = ref_tape(a, t->score, v, 0),
              .modify = ref_tape(a, t->modify, v, 0),
              .normalize = ref_tape(a, t->normalize, v, t->Sk),
              .output = ref_tape(a, t->output, v, 0),
              .emit = ARENA_ARRAY(a, int, v->emits.n + 1),
              .dout = ARENA_ARRAY(a, double, t->Dv),
              .o = ARENA_ARRAY(a, double, t->Dv),
              .off = ARENA_ARRAY(a, double, t->Sk)};
    for (int m = 0; m < v->emits.n; m++)
        x.emit[m] = ref_index_of(&t->normalize->nodes, v->emits.data[m].value);
    x.weighs = weighing(a, t->normalize);
    x.dq = changed(a, t, CLAUSE_A_QUERY, g->dq);
    x.dk = changed(a, t, CLAUSE_A_KEY, g->dk);
    x.dv = changed(a, t, CLAUSE_A_VALUE, v->v_in_k ? g->dk : g->dv);
    x.dv_stride = t->v_stride;
    return x;
}

// From the gradient of a row of the output to that of the aggregated row.
static void back_output_as(const Back *x, RefEnv *e, RefKind kind, double *const *dinputs) {
    const RefAttention *t = x->t;
    RefGrad own = *x->g, *g = &own;
    double squares = 0, dsquares = 0;
    own.kind = kind;
    if (x->output) x->output->kind = kind;
    memset(x->dout, 0, sizeof *x->dout * (size_t)t->Dv);
    if (!g->d_o) return;
    for (int d = 0; d < t->Dv; d++) squares += value_of(g, t->o[d]) * value_of(g, t->o[d]);
    e->sqo = tx_number(squares);
    for (e->d = 0; e->d < t->Dv; e->d++) {
        double adjoint = come(g, g->d_o[t->at * (size_t)t->Dv + (size_t)e->d]);
        e->o = t->o[e->d];
        if (!x->output) {
            x->dout[e->d] += adjoint;
            continue;
        }
        ref_evaluate(t->output, e, 0);
        ref_tape_of(x->output, g->run, adjoint, dinputs);
        x->dout[e->d] += x->output->sym[TS_O];
        dsquares += x->output->sym[TS_SQO];
    }
    for (int d = 0; d < t->Dv && dsquares != 0; d++)
        x->dout[d] += 2 * dsquares * come(g, value_of(g, t->o[d]));
    for (int d = 0; d < t->Dv; d++) x->dout[d] = factor(g, x->dout[d]);
}

// What parts are of is the gradient itself, and what inputs get is sizes.
static void back_output(const Back *x, RefEnv *e) {
    RefKind kind = x->g->kind;
    if (kind == REF_PARTS && x->output && x->g->dinputs)
        back_output_as(x, e, REF_SIZES, x->g->dinputs);
    back_output_as(x, e, kind == REF_PARTS ? REF_FLOAT64 : kind,
                   kind == REF_PARTS ? NULL : x->g->dinputs);
}

// 0 times an infinity is NaN in a kernel, where the reference adds nothing.
static bool is_lost(const Back *x) {
    const RefProgram *p = x->t->normalize;
    for (int i = 0; i < p->nodes.n; i++)
        if (x->weighs[i] && p->nodes.data[i]->op == EX_ROWSUM && !isfinite(p->value[i].written))
            return true;
    for (int d = 0; x->output && d < x->t->Dv; d++) {
        double dout = tx_number(x->dout[d]).written;
        if (!isfinite(x->t->o[d].f) || !isfinite(x->t->o[d].written) ||
            !isfinite(x->g->bits == HALF_BITS ? in_type(dout, HALF_BITS) : dout))
            return true;
    }
    return false;
}

// Kernels take what the weights' sums get from do and the o that is stored, a sum of weights that are factors: by how much of itself
// that is off. Where it is nearly 0, by no more than what still is as large as other parts.
static double stored_noise(const Back *x, const RefEnv *e, int keys) {
    static const double most = 100;
    const RefAttention *t = x->t;
    const RefProgram *p = t->normalize;
    double sum = 0, off = 0;
    memset(x->o, 0, sizeof *x->o * (size_t)t->Dv);
    for (int j = 0; j < keys; j++)
        add(x->o, ref_v_row(t, e, t->key[j]), factor(x->g, ref_row_value(p, p->result, j).f),
            t->Dv);
    for (int d = 0; d < t->Dv; d++) {
        sum += x->dout[d] * t->o[d].f;
        off += x->dout[d] * (factor(x->g, x->o[d]) - t->o[d].f);
    }
    return off == 0 || !isfinite(off) ? 0 : fmax(-most, fmin(off / sum, most));
}

// The adjoints of normalize's nodes, from those of what it gives.
static void reverse_normalize(const Back *x, const RefEnv *e, int keys, double *const *dinputs) {
    const RefAttention *t = x->t;
    const RefGrad *g = x->g;
    ref_tape_clear(x->normalize, keys);
    for (int j = 0; j < keys; j++)
        ref_tape_add(x->normalize, t->normalize->result, j,
                     inner(g, x->dout, ref_v_row(t, e, t->key[j]), t->Dv));
    for (int m = 0; m < g->run->variant->emits.n; m++)
        if (demit(g, m)) ref_tape_add(x->normalize, x->emit[m], 0, come(g, demit(g, m)[t->at]));
    ref_tape_reverse(x->normalize, g->run, keys, dinputs);
}

// What the scores get of that noise: x->off. Extrema have no part in it, as the derived backward has none of those that cancel.
static void find_noise(const Back *x, const RefEnv *e, int keys) {
    double noise = stored_noise(x, e, keys);
    memset(x->off, 0, sizeof *x->off * (size_t)keys);
    x->normalize->sums = true;
    for (int k = 0; k < 2 && noise != 0; k++) {
        x->normalize->noise = k ? 0 : noise;
        reverse_normalize(x, e, keys, NULL);
        for (int j = 0; j < keys; j++) x->off[j] += (k ? -1 : 1) * x->normalize->s[j];
    }
    x->normalize->noise = 0;
    x->normalize->sums = false;
}

// To the modified scores: x->normalize->s; and to v.
static void back_normalize(const Back *x, const RefEnv *e, int keys) {
    const RefAttention *t = x->t;
    const RefGrad *g = x->g;
    const RefProgram *p = t->normalize;
    for (int j = 0; j < keys; j++) {
        double *dv = from(x->dv, ref_kv_row(t, e, t->key[j]) * (size_t)x->dv_stride);
        add_to(g, dv, x->dout, factor(g, value_of(g, ref_row_value(p, p->result, j))), t->Dv);
    }
    if (g->kind == REF_STORED) find_noise(x, e, keys);
    reverse_normalize(x, e, keys, g->dinputs);
    for (int j = 0; j < keys && g->kind == REF_STORED; j++) x->normalize->s[j] += x->off[j];
}

typedef struct PairRow { // a pair's row, and where its gradient is added up; NULL: it is not wanted
    const double *row;
    double *gradient;
    int width;
} PairRow;

static PairRow pair_row(const Back *x, const RefEnv *e, RowSide side, int row) {
    const RefGrad *g = x->g;
    const RefRows *rows = &x->t->rows[side][row];
    int input = g->run->variant->rows[side].data[row].input;
    double *to = input >= 0         ? g->dinputs ? g->dinputs[input] : NULL
                 : side == ROW_KEYS ? x->dk
                                    : x->dq;
    size_t at = ref_row_place(x->t, e, rows);
    return (PairRow){rows->data + at, from(to, at), rows->width};
}

// From the modified score of one pair, which is evaluated anew, to q, k and row inputs.
static void back_pair(const Back *x, RefEnv *e, double adjoint) {
    RefAttention *t = x->t;
    const RefGrad *g = x->g;
    const Variant *v = g->run->variant;
    if (adjoint == 0) return;
    ref_modified(t, e);
    if (x->modify) {
        ref_tape_of(x->modify, g->run, adjoint, g->dinputs);
        adjoint = ref_rounded(g->kind, x->modify->sym[TS_S]);
    }
    ref_tape_of(x->score, g->run, adjoint, g->dinputs);
    for (int i = 0; i < v->dots.n; i++) {
        PairRow q = pair_row(x, e, ROW_QUERIES, v->dots.data[i].row[ROW_QUERIES]),
                k = pair_row(x, e, ROW_KEYS, v->dots.data[i].row[ROW_KEYS]);
        double dot = factor(g, x->score->dot[i]);
        add_to(g, q.gradient, k.row, dot, q.width);
        add_to(g, k.gradient, q.row, dot, q.width);
    }
    for (int side = 0; side < ROW_SIDES; side++)
        for (int i = 0; i < v->rows[side].n; i++) {
            PairRow o = pair_row(x, e, (RowSide)side, i);
            add_to(g, o.gradient, o.row, 2 * x->score->square[side][i], o.width);
        }
}

static void back_row(const Back *x, int b, int h, int i) {
    RefAttention *t = x->t;
    const RefRun *r = x->g->run;
    RefEnv e;
    size_t at = ref_row(t, &e, b, h, i);
    if (r->rows && !r->rows[at]) return;
    int keys = ref_gather(t, &e);
    ref_evaluate(t->normalize, &e, keys);
    ref_aggregate(t, &e, keys);
    back_output(x, &e);
    if (!keys) return;
    if (x->g->lost) x->g->lost[t->at] |= is_lost(x);
    back_normalize(x, &e, keys);
    for (int j = 0; j < keys; j++) {
        e.kv_idx = t->key[j];
        back_pair(x, &e, x->normalize->s[j]);
    }
}

static void back_attention(Arena *a, const RefGrad *g) {
    RefAttention t = ref_attention(a, g->run);
    Back x = back(a, g, &t);
    RefTape *const tapes[] = {x.score, x.modify, x.normalize, x.output};
    for (int i = 0; i < 4; i++)
        if (tapes[i]) tapes[i]->kind = g->kind;
    for (int b = 0; b < t.B; b++)
        for (int h = 0; h < t.H; h++)
            for (int i = 0; i < t.Sq; i++) back_row(&x, b, h, i);
    back_elements(a, g, &t, CLAUSE_A_QUERY, x.dq, g->dq);
    back_elements(a, g, &t, CLAUSE_A_KEY, x.dk, g->dk);
    back_elements(a, g, &t, CLAUSE_A_VALUE, x.dv, g->run->variant->v_in_k ? g->dk : g->dv);
    for (int i = 0; g->apart && i < 4; i++) *g->apart += tapes[i] ? tapes[i]->apart : 0;
}

// ---- recurrence

typedef struct Rewind {
    const RefGrad *g;
    RefRecurrence t;
    RefTape *tape[CLAUSE_COUNT];
    size_t nstate; // elements of a state
    int length;    // positions of a segment
    double *start; // the state before each segment
    double *state; // before each position of the segment at hand, and behind the last
    double *d;     // of the state behind the position at hand, then of the one before it
    double *query, *key, *decay, *erase, *write, *bonus; // gradients of the clauses' values, [D]
    double *value, *erased, *out;                        // [Dv]
} Rewind;

static Rewind rewinding(Arena *a, const RefGrad *g) {
    Rewind x = {.g = g, .t = ref_recurrence(a, g->run), .length = 1};
    size_t n = x.nstate = (size_t)x.t.D * (size_t)x.t.Dv;
    while ((int64_t)x.length * x.length < x.t.S) x.length++;
    x.start = ARENA_ARRAY(a, double, n *((size_t)x.length + 1));
    x.state = ARENA_ARRAY(a, double, n *((size_t)x.length + 1));
    x.d = ARENA_ARRAY(a, double, n);
    for (int i = 0; i < CLAUSE_COUNT; i++)
        x.tape[i] = ref_tape(a, x.t.clause[i], g->run->variant, 0);
    double **keys[] = {&x.query, &x.key, &x.decay, &x.erase, &x.write, &x.bonus};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        *keys[i] = ARENA_ARRAY(a, double, x.t.D);
    x.value = ARENA_ARRAY(a, double, x.t.Dv);
    x.erased = ARENA_ARRAY(a, double, x.t.Dv);
    x.out = ARENA_ARRAY(a, double, x.t.Dv);
    return x;
}

// x->out, from the gradient of the position's output.
static void back_out(const Rewind *x, RefEnv *e) {
    const RefRecurrence *t = &x->t;
    RefTape *tape = x->tape[CLAUSE_R_OUTPUT];
    double dsquares = 0;
    size_t at = ref_place_at(t, e, t->H, t->Dv);
    memset(x->out, 0, sizeof *x->out * (size_t)t->Dv);
    for (e->e = 0; x->g->d_o && e->e < t->Dv; e->e++) {
        double adjoint = x->g->d_o[at + (size_t)e->e];
        e->o = tx_number(t->out[e->e]);
        if (!tape) {
            x->out[e->e] += adjoint;
            continue;
        }
        ref_evaluate(tape->p, e, 0);
        ref_tape_of(tape, x->g->run, adjoint, x->g->dinputs);
        x->out[e->e] += tape->sym[TS_O];
        dsquares += tape->sym[TS_SQO];
    }
    add(x->out, t->out, 2 * dsquares, t->Dv);
}

// Through S = decay before + write (x) erased + key (x) value, and out = query . S, or with a bonus
// query . (before + (bonus key) (x) value); erased = erase . before. x->d becomes that of `before`.
static void back_state(const Rewind *x, const double *before, const double *after) {
    const RefRecurrence *t = &x->t;
    bool bonus = t->clause[CLAUSE_BONUS] != NULL, delta = t->clause[CLAUSE_WRITE] != NULL;
    for (int d = 0; d < t->D; d++) {
        const double *from = before + (size_t)d * (size_t)t->Dv;
        const double *to = after + (size_t)d * (size_t)t->Dv;
        double *ds = x->d + (size_t)d * (size_t)t->Dv;
        double through = 0; // of bonus * key, as it meets value
        if (!bonus) add(ds, x->out, t->query[d], t->Dv);
        for (int e = 0; e < t->Dv; e++) {
            double out = x->out[e], added = t->key[d] * t->value[e];
            if (out != 0) x->query[d] += out * (bonus ? from[e] + t->bonus[d] * added : to[e]);
            if (bonus) through += t->query[d] * out * t->value[e];
            if (bonus) x->value[e] += t->query[d] * out * t->bonus[d] * t->key[d];
            x->key[d] += ds[e] * t->value[e];
            x->value[e] += ds[e] * t->key[d];
            if (delta) x->write[d] += ds[e] * t->erased[e];
            if (delta) x->erased[e] += ds[e] * t->write[d];
            if (ds[e] != 0) x->decay[d] += ds[e] * from[e];
            ds[e] = t->decay[d] == 0 ? 0 : t->decay[d] * ds[e];
        }
        x->key[d] += through * t->bonus[d];
        x->bonus[d] += through * t->key[d];
        if (bonus) add(ds, x->out, t->query[d], t->Dv);
    }
    for (int d = 0; delta && d < t->D; d++) {
        x->erase[d] += ref_inner(x->erased, before + (size_t)d * (size_t)t->Dv, t->Dv);
        add(x->d + (size_t)d * (size_t)t->Dv, x->erased, t->erase[d], t->Dv);
    }
}

typedef struct Operand { // q, k or v at the position: where its gradients go
    const double *x;
    double *d;
    TxSym element, square;
} Operand;

// One clause's value at a channel, with its gradient; `absent`: what it is where it is not written.
static void back_clause(const Rewind *x, const RefEnv *e, ClauseId id, double adjoint,
                        const Operand *absent, const Operand *operand, int at, double *dsquares) {
    RefTape *tape = x->tape[id];
    if (!tape) {
        if (absent && absent->d) absent->d[at] += adjoint;
        return;
    }
    ref_evaluate(tape->p, e, 0);
    ref_tape_of(tape, x->g->run, adjoint, x->g->dinputs);
    for (int i = 0; i < 3; i++) {
        double d = tape->sym[operand[i].element];
        dsquares[i] += tape->sym[operand[i].square];
        if (operand[i].d && d != 0) operand[i].d[at] += d;
    }
}

// The clauses' gradients to q, k, v and the inputs.
static void back_clauses(const Rewind *x, RefEnv *e) {
    const RefRecurrence *t = &x->t;
    const RefGrad *g = x->g;
    size_t q = ref_place_at(t, e, t->Hq, t->D), k = ref_place_at(t, e, t->Hk, t->D),
           v = ref_place_at(t, e, t->Hv, t->Dv);
    Operand op[3] = {{g->run->q + q, from(g->dq, q), TS_EQ, TS_SQEQ},
                     {g->run->k + k, from(g->dk, k), TS_EK, TS_SQEK},
                     {g->run->v + v, from(g->dv, v), TS_EV, TS_SQEV}};
    double squares[3] = {0};
    for (e->d = 0; e->d < t->D; e->d++) {
        int d = e->d;
        e->q = tx_number(op[0].x[d]);
        e->k = tx_number(op[1].x[d]);
        back_clause(x, e, CLAUSE_QUERY, x->query[d], &op[0], op, d, squares);
        back_clause(x, e, CLAUSE_KEY, x->key[d], &op[1], op, d, squares);
        back_clause(x, e, CLAUSE_DECAY, x->decay[d], NULL, op, d, squares);
        back_clause(x, e, CLAUSE_ERASE, x->erase[d], NULL, op, d, squares);
        back_clause(x, e, CLAUSE_WRITE, x->write[d], NULL, op, d, squares);
        back_clause(x, e, CLAUSE_BONUS, x->bonus[d], NULL, op, d, squares);
    }
    for (e->e = 0; e->e < t->Dv; e->e++) {
        e->v = tx_number(op[2].x[e->e]);
        back_clause(x, e, CLAUSE_VALUE, x->value[e->e], &op[2], op, e->e, squares);
    }
    for (int i = 0; i < 3; i++) add(op[i].d, op[i].x, 2 * squares[i], i < 2 ? t->D : t->Dv);
}

// The segment's states from the one before it; then back through it.
static void back_segment(const Rewind *x, RefEnv *e, int first, int end) {
    const RefRecurrence *t = &x->t;
    size_t bytes = sizeof(double) * x->nstate;
    double *const keys[] = {x->query, x->key, x->decay, x->erase, x->write, x->bonus};
    double *const values[] = {x->value, x->erased};
    memcpy(x->state, x->start + (size_t)(first / x->length) * x->nstate, bytes);
    for (e->t = first; e->t < end; e->t++) {
        double *s = x->state + (size_t)(e->t - first) * x->nstate;
        memcpy(s + x->nstate, s, bytes);
        ref_step(t, e, s + x->nstate);
    }
    for (e->t = end - 1; e->t >= first; e->t--) {
        double *before = x->state + (size_t)(e->t - first) * x->nstate, *after = before + x->nstate;
        memcpy(after, before, bytes);
        ref_step(t, e, after); // its clauses' values once more
        for (int i = 0; i < 6; i++) memset(keys[i], 0, sizeof *keys[i] * (size_t)t->D);
        for (int i = 0; i < 2; i++) memset(values[i], 0, sizeof *values[i] * (size_t)t->Dv);
        back_out(x, e);
        back_state(x, before, after);
        back_clauses(x, e);
    }
}

static void rewind_head(const Rewind *x, int b, int h) {
    const RefRecurrence *t = &x->t;
    const RefGrad *g = x->g;
    size_t bytes = sizeof(double) * x->nstate,
           at = ((size_t)b * (size_t)t->H + (size_t)h) * x->nstate;
    RefEnv e = {.run = g->run, .b = b, .h = h};
    memset(x->state, 0, bytes);
    memset(x->d, 0, bytes);
    if (g->run->state0) memcpy(x->state, g->run->state0 + at, bytes);
    if (g->dstate) memcpy(x->d, g->dstate + at, bytes);
    for (e.t = 0; e.t < t->S; e.t++) {
        if (e.t % x->length == 0)
            memcpy(x->start + (size_t)(e.t / x->length) * x->nstate, x->state, bytes);
        ref_step(t, &e, x->state);
    }
    for (int first = (t->S - 1) / x->length * x->length; t->S && first >= 0; first -= x->length)
        back_segment(x, &e, first, first + x->length < t->S ? first + x->length : t->S);
    if (g->dstate0) memcpy(g->dstate0 + at, x->d, bytes);
}

static void back_recurrence(Arena *a, const RefGrad *g) {
    Rewind x = rewinding(a, g);
    for (int b = 0; b < x.t.B; b++)
        for (int h = 0; h < x.t.H; h++) rewind_head(&x, b, h);
}

// ---- the public face

static void zero(double *x, int64_t heads, int64_t rows, int64_t columns) {
    if (x) memset(x, 0, sizeof *x * (size_t)(heads * rows * columns));
}

static void zero_inputs(const RefGrad *g) {
    const Variant *v = g->run->variant;
    for (int i = 0; g->dinputs && i < v->inputs.n; i++) {
        const TxInput *in = &v->inputs.data[i];
        int64_t n = 1;
        for (int d = 0; d < in->rank; d++)
            n *= in->extent[d].size < 0 ? in->extent[d].value : g->run->sizes[in->extent[d].size];
        zero(g->dinputs[i], 1, 1, n);
    }
}

void ref_grad(const RefGrad *g) {
    assert(!ref_check(g->run));
    const int32_t *n = g->run->sizes;
    const Variant *v = g->run->variant;
    Arena *a = arena_new();
    if (!g->run->sequence) zero_inputs(g);
    if (v->kind == VARIANT_ATTENTION) {
        int64_t B = g->run->sequence ? 1 : n[SIZE_B];
        zero(g->dq, B * n[SIZE_HQ], n[SIZE_SQ], v->D);
        zero(g->dk, B * n[SIZE_HKV], n[SIZE_SK], v->D);
        zero(g->dv, B * n[SIZE_HKV], n[SIZE_SK], v->Dv);
        back_attention(a, g);
    } else {
        zero(g->dq, (int64_t)n[RSIZE_B] * n[RSIZE_HQ], n[RSIZE_S], v->D);
        zero(g->dk, (int64_t)n[RSIZE_B] * n[RSIZE_HK], n[RSIZE_S], v->D);
        zero(g->dv, (int64_t)n[RSIZE_B] * n[RSIZE_HV], n[RSIZE_S], v->Dv);
        back_recurrence(a, g);
    }
    arena_free(a);
}
