// reference_eval.c: see reference_eval.h.
#include "frontend/reference_eval.h"
#include "frontend/reference_batch.h"

#include <assert.h>
#include <math.h>
#include <string.h>

int ref_index_of(const TxNodes *nodes, const Tx *t) {
    int lo = 0, hi = nodes->n - 1;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (nodes->data[mid]->id < t->id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

// ---- what hangs on what

static bool is_function(ExOp op) { return op >= EX_EXP && op <= EX_POW; }

static unsigned symbol_moves(const Tx *t, unsigned s_moves) {
    switch ((int)t->sym) {
    case TS_DOT:
    case TS_SQQ:
    case TS_SQK: return REF_DOTS;
    case TS_S:
    case TS_ROW_S: return s_moves;
    case TS_O:
    case TS_SQO: return REF_ROUGH;
    }
    return 0;
}

static bool by_steps(const Tx *t) {
    bool reads_f32 = t->nargs && t->args[0]->type == TX_F32;
    switch ((int)t->op) {
    case EX_EQ:
    case EX_NE:
    case EX_LT:
    case EX_LE:
    case EX_FLOOR:
    case EX_MOD: return reads_f32;
    case EX_CONV: return reads_f32 && t->type != TX_F32;
    }
    return false;
}

static bool by_sides(const Tx *t) {
    bool extremum = t->op == EX_MIN || t->op == EX_MAX || t->op == EX_ABS;
    return t->type == TX_F32 && (extremum || t->op == EX_ROWMAX || t->op == EX_ROWMIN);
}

static void find_decisions(Arena *a, RefProgram *p, unsigned s_moves, bool kinks) {
    unsigned *moves = ARENA_ARRAY(a, unsigned, p->nodes.n);
    const int *args = p->args;
    for (int i = 0; i < p->nodes.n; args += p->nodes.data[i++]->nargs) {
        const Tx *t = p->nodes.data[i];
        for (int k = 0; k < t->nargs; k++) moves[i] |= moves[args[k]];
        p->decides[i] = moves[i] && (by_steps(t) || (kinks && by_sides(t)));
        p->decisions += p->decides[i];
        if (p->decides[i]) p->on |= moves[i];
        if (t->op == EX_SYM) moves[i] = symbol_moves(t, s_moves);
        if (t->known) moves[i] = 0;
        if (!t->known && (is_function(t->op) || t->op == EX_ROWSUM)) moves[i] |= REF_ROUGH;
    }
    p->result_moves = moves[p->result];
}

RefProgram *ref_program(Arena *a, const Tx *const *roots, int n, int keys, unsigned s_moves,
                        bool kinks) {
    if (!roots[0]) return NULL;
    RefProgram *p = ARENA_NEW(a, RefProgram);
    p->nodes = tx_nodes(a, roots, n);
    int nargs = 0;
    for (int i = 0; i < p->nodes.n; i++) nargs += p->nodes.data[i]->nargs;
    p->args = ARENA_ARRAY(a, int, nargs);
    p->value = ARENA_ARRAY(a, TxValue, p->nodes.n);
    p->row = ARENA_ARRAY(a, TxValue *, p->nodes.n);
    p->inner = ARENA_ARRAY(a, bool, p->nodes.n);
    p->demanded = ARENA_ARRAY(a, bool, p->nodes.n);
    p->decides = ARENA_ARRAY(a, bool, p->nodes.n);
    nargs = 0;
    for (int i = 0; i < p->nodes.n; i++) {
        const Tx *t = p->nodes.data[i];
        for (int k = 0; k < t->nargs; k++) {
            p->args[nargs] = ref_index_of(&p->nodes, t->args[k]);
            p->inner[p->args[nargs++]] = true;
        }
        if (t->known) p->value[i] = t->value;
        if (t->row) p->row[i] = ARENA_ARRAY(a, TxValue, keys);
    }
    p->result = ref_index_of(&p->nodes, roots[0]);
    find_decisions(a, p, s_moves, kinks);
    return p;
}

// ---- trials

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

bool ref_is_coarse(int trial) { return trial > REF_TRIALS - 2; }

double ref_direction(int trial, uint64_t what) {
    if (trial <= 2) return trial == 1 ? 1 : -1;
    bool up = mix(what + (uint64_t)((trial + 1) / 2) * 0x9e3779b97f4a7c15u) >> 63;
    return up == (trial & 1) ? 1 : -1; // each way is followed by its opposite
}

bool ref_decide(const RefEnv *e, int32_t value) {
    RefTaken *t = e->taken;
    if (!t) return true;
    if (e->trial == 0) {
        t->value[t->n] = value;
        t->open[t->n++] = false;
        return true;
    }
    bool same = t->value[t->at] == value;
    if (!same) t->open[t->at] = true;
    t->at++;
    return same;
}

// How far targets' functions may be from the f32 nearest to the right value, and from each other.
static double slack(ExOp op, double a, double r) {
    bool exact = a == 0 && (op == EX_EXP || op == EX_EXP2 || op == EX_SQRT || op == EX_TANH ||
                            op == EX_SIN || op == EX_COS || op == EX_ERF || op == EX_SIGMOID);
    if (exact || !isfinite(r)) return 0;
    switch ((int)op) {
    case EX_TANH: return 0x1p-10 * fabs(r);
    case EX_SIN:
    case EX_COS: return 0x1p-20;
    case EX_LOG:
    case EX_LOG2: return a == 1 ? 0 : 0x1p-20 * fmax(fabs(r), 1);
    case EX_POW: return a == 1 ? 0 : 0x1p-19 * fabs(r) * (1 + fabs(log2(fabs(r) + 0x1p-126)));
    }
    return 0x1p-20 * fabs(r);
}

// What is near each other becomes equal: on a grid of twice the error, of which the last trial's lies between the other's.
static double coarse(int trial, double r, double step) {
    int exponent;
    double shift = trial == REF_TRIALS ? 0.5 : 0;
    frexp(2 * step, &exponent);
    double grid = ldexp(1, exponent);
    return (floor(r / grid + shift) - shift + 0.5) * grid;
}

// Not all of it in two trials: numbers that are equal, of other arguments, come apart.
static double part_of_step(int trial, uint64_t what) {
    bool some = trial == REF_TRIALS - 3 || trial == REF_TRIALS - 2;
    return some ? 0.5 + 0.5 * ldexp((double)(mix(what) >> 11), -53) : 1;
}

// By what f32 kernels' functions are off, at most.
static double rounding(ExOp op, double a, double r) {
    return op == EX_TANH ? 0x1p-22 * fabs(r) : slack(op, a, r) / 4;
}

static TxValue moved(const RefEnv *e, const Tx *t, const TxValue *v, TxValue r) {
    int trial = e->trial ? e->trial : e->rounding;
    uint64_t what = (uint64_t)t->op;
    uint32_t bits;
    for (int k = 0; k < t->nargs; k++) {
        memcpy(&bits, &v[k].written, sizeof bits);
        what = mix(what ^ bits);
    }
    double step = (e->trial ? slack : rounding)(t->op, v[0].written, r.written);
    double w = r.written + ref_direction(trial, what) * step * part_of_step(trial, what);
    if (ref_is_coarse(trial) && step > 0) w = coarse(trial, r.written, step);
    return (TxValue){.f = r.f, .written = tx_number(w).written};
}

// ---- one node

static int64_t extent_of(const RefRun *r, const TxExtent *x) {
    return x->size < 0 ? x->value : r->sizes[x->size];
}

static TxValue element(const RefRun *r, int input, int64_t at) {
    bool f = dtype_reads(r->variant->inputs.data[input].dtype) == EX_F32;
    if (f) return tx_number(((const double *)r->inputs[input])[at]);
    return (TxValue){.i = ((const int32_t *)r->inputs[input])[at]};
}

int64_t ref_place(const RefRun *r, const Tx *load, const TxValue *index) {
    const TxInput *in = &r->variant->inputs.data[load->index];
    int64_t at = 0;
    if (r->sequence) return ref_batch_place(r, load->index, index);
    for (int i = 0; i < in->rank; i++) {
        int64_t n = extent_of(r, &in->extent[i]), k = index[i].i;
        if (n <= 0) return -1; // there is nothing to clamp to
        at = at * n + (k < 0 ? 0 : k >= n ? n - 1 : k);
    }
    return at;
}

static TxValue load(const RefRun *r, const Tx *t, const TxValue *index) {
    int64_t at = ref_place(r, t, index);
    return at < 0 ? (TxValue){.f = 0} : element(r, t->index, at);
}

static TxValue i32(int32_t x) { return (TxValue){.i = x}; }

static TxValue symbol(const RefEnv *e, const Tx *t, int key) {
    switch (t->sym) {
    case TS_DOT: return e->dots[t->index];
    case TS_SQQ: return e->squares[ROW_QUERIES][t->index];
    case TS_SQK: return e->squares[ROW_KEYS][t->index];
    case TS_SQEQ: return e->sqq;
    case TS_SQEK: return e->sqk;
    case TS_SQEV: return e->sqv;
    case TS_SQO: return e->sqo;
    case TS_S: return e->s;
    case TS_ROW_S: return e->row[key];
    case TS_B: return i32(e->b);
    case TS_H: return i32(e->h);
    case TS_Q_IDX: return i32(e->q_idx);
    case TS_KV_IDX: return i32(e->kv_idx);
    case TS_D: return i32(e->d);
    case TS_T: return i32(e->t);
    case TS_E: return i32(e->e);
    case TS_O: return e->o;
    case TS_EQ: return e->q;
    case TS_EK: return e->k;
    case TS_EV: return e->v;
    case TS_SIZE: return i32(e->run->sizes[t->index]);
    case TS_SCALAR: return element(e->run, t->index, 0);
    case TS_TILE_Q:
    case TS_TILE_K:
    case TS_COUNT: break;
    }
    assert(!"a symbol without a value");
    return i32(0);
}

TxValue ref_row_value(const RefProgram *p, int node, int key) {
    return p->nodes.data[node]->row ? p->row[node][key] : p->value[node];
}

// Of rows that are sums of whole multiples of one power of two below 2^24 of it, every order of
// adding gives the same; of others a target has its own.
static double sum_slack(const RefProgram *p, int arg, int keys) {
    double sum = 0;
    int grain = 1000, exponent;
    for (int j = 0; j < keys; j++) {
        float x = ref_row_value(p, arg, j).written;
        if (!isfinite(x)) return 0;
        if (x == 0) continue;
        int32_t whole = (int32_t)(frexpf(fabsf(x), &exponent) * 0x1p24f);
        exponent += __builtin_ctz((unsigned)whole) - 24;
        grain = exponent < grain ? exponent : grain;
        sum += fabsf(x);
    }
    return sum <= ldexp(1, 24 + (grain < 900 ? grain : 900)) ? 0 : 0x1p-20 * sum;
}

// Which elements are the row's extremum.
static int32_t attained(const RefProgram *p, int arg, int keys, float extremum) {
    uint64_t all = 0;
    for (int j = 0; j < keys; j++)
        if (ref_row_value(p, arg, j).written == extremum) all = mix(all + (uint64_t)j + 1);
    return (int32_t)(uint32_t)all;
}

static TxValue reduce(const RefProgram *p, const RefEnv *e, int node, int arg, int keys) {
    const Tx *t = p->nodes.data[node];
    double r = t->op == EX_ROWMAX ? -INFINITY : t->op == EX_ROWMIN ? INFINITY : 0, w = r;
    for (int j = 0; j < keys; j++) {
        TxValue x = ref_row_value(p, arg, j);
        if (t->op == EX_ROWSUM)
            r += x.f, w += x.written;
        else if (t->op == EX_ROWMAX)
            r = fmax(r, x.f), w = fmax(w, x.written);
        else
            r = fmin(r, x.f), w = fmin(w, x.written);
    }
    if (e->trial && t->op == EX_ROWSUM)
        w += ref_direction(e->trial, t->id) * sum_slack(p, arg, keys);
    if (p->decides[node]) ref_decide(e, attained(p, arg, keys, (float)w));
    return (TxValue){.f = r, .written = tx_number(w).written};
}

// What is noted of a decision: the whole number or the truth that comes out of it, or the side.
static int32_t answer(const Tx *t, const TxValue *v, TxValue r) {
    if (t->op == EX_ABS) return (v[0].written > 0) - (v[0].written < 0);
    if (t->op == EX_MIN || t->op == EX_MAX)
        return (v[0].written > v[1].written) - (v[0].written < v[1].written);
    float whole = t->op == EX_MOD ? floorf(v[0].written / v[1].written) : r.written;
    int32_t bits;
    if (t->type != TX_F32) return r.i;
    memcpy(&bits, &whole, sizeof bits);
    return bits;
}

static TxValue compute(const RefProgram *p, const RefEnv *e, int node, const int *args, int key) {
    const Tx *t = p->nodes.data[node];
    if (t->op == EX_SYM) return symbol(e, t, key);
    TxValue v[EX_MAX_RANK];
    for (int k = 0; k < t->nargs; k++) v[k] = ref_row_value(p, args[k], key);
    if (t->op == EX_LOAD) return load(e->run, t, v);
    TxValue r = tx_apply(t->op, t->type, t->args[t->nargs - 1]->type, v);
    if ((e->trial || e->rounding) && t->type == TX_F32 && is_function(t->op)) r = moved(e, t, v, r);
    if (p->decides[node]) ref_decide(e, answer(t, v, r));
    return r;
}

// ---- indices outside

static int32_t truth_of(const RefProgram *p, int node, int key) {
    return ref_row_value(p, node, key).i;
}

// Marks the arguments whose values node i's own depends on.
static void demand(const RefProgram *p, const Tx *t, const int *args, int key) {
    bool first = t->nargs && t->op == EX_SELECT ? truth_of(p, args[0], key) : true;
    for (int k = 0; k < t->nargs; k++) {
        bool skipped = (t->op == EX_SELECT && k == (first ? 2 : 1)) ||
                       (t->op == EX_AND && k == 1 && !truth_of(p, args[0], key)) ||
                       (t->op == EX_OR && k == 1 && truth_of(p, args[0], key));
        if (!skipped) p->demanded[args[k]] = true;
    }
}

static int64_t extent_at(const RefProgram *p, const RefEnv *e, const Tx *t, const int *args, int d,
                         int key) {
    TxValue index[EX_MAX_RANK];
    if (!e->run->sequence)
        return extent_of(e->run, &e->run->variant->inputs.data[t->index].extent[d]);
    for (int i = 0; i < t->nargs; i++) index[i] = ref_row_value(p, args[i], key);
    return ref_batch_extent(e->run, t->index, d, index);
}

static void check_load(const RefProgram *p, const RefEnv *e, const Tx *t, const int *args,
                       int key) {
    const TxInput *in = &e->run->variant->inputs.data[t->index];
    for (int d = 0; d < in->rank && !e->run->outside->load; d++) {
        int64_t n = extent_at(p, e, t, args, d, key);
        int32_t k = truth_of(p, args[d], key);
        if (k < 0 || k >= n)
            *e->run->outside =
                (RefOutside){t,
                             d,
                             k,
                             n,
                             e->b,
                             e->h,
                             e->run->variant->kind == VARIANT_ATTENTION ? e->q_idx : e->t,
                             e->kv_idx};
    }
}

// From the roots down, for one key: a node that nothing looks at may read what it likes.
static void note_outside(const RefProgram *p, const RefEnv *e, int key, int keys) {
    const int *args = p->args;
    for (int i = 0; i < p->nodes.n; i++) {
        p->demanded[i] = !p->inner[i];
        args += p->nodes.data[i]->nargs;
    }
    for (int i = p->nodes.n - 1; i >= 0; i--) {
        const Tx *t = p->nodes.data[i];
        args -= t->nargs;
        if (!p->demanded[i] ||
            ((t->row || t->op == EX_ROWMAX || t->op == EX_ROWMIN || t->op == EX_ROWSUM) &&
             keys == 0))
            continue;
        demand(p, t, args, key);
        if (t->op == EX_LOAD) check_load(p, e, t, args, key);
    }
}

TxValue ref_evaluate(const RefProgram *p, const RefEnv *e, int keys) {
    const int *args = p->args;
    for (int i = 0; i < p->nodes.n; args += p->nodes.data[i++]->nargs) {
        const Tx *t = p->nodes.data[i];
        if (t->known) continue;
        if (t->op == EX_ROWMAX || t->op == EX_ROWMIN || t->op == EX_ROWSUM)
            p->value[i] = reduce(p, e, i, args[0], keys);
        else if (!t->row)
            p->value[i] = compute(p, e, i, args, 0);
        for (int j = 0; t->row && j < keys; j++) p->row[i][j] = compute(p, e, i, args, j);
    }
    for (int j = 0; e->run->outside && !e->trial && j < (keys ? keys : 1); j++)
        note_outside(p, e, j, keys);
    return p->value[p->result];
}
