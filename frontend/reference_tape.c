// reference_tape.c: see reference_tape.h.
#include "frontend/reference_tape.h"

#include <assert.h>
#include <math.h>
#include <string.h>

RefTape *ref_tape(Arena *a, const RefProgram *p, const Variant *v, int keys) {
    if (!p) return NULL;
    RefTape *t = ARENA_NEW(a, RefTape);
    t->p = p;
    t->one = ARENA_ARRAY(a, double, p->nodes.n);
    t->row = ARENA_ARRAY(a, double *, p->nodes.n);
    t->s = ARENA_ARRAY(a, double, keys);
    t->ndots = v->dots.n;
    t->dot = ARENA_ARRAY(a, double, t->ndots + 1);
    for (int side = 0; side < ROW_SIDES; side++) {
        t->nsquares[side] = v->rows[side].n;
        t->square[side] = ARENA_ARRAY(a, double, t->nsquares[side] + 1);
    }
    for (int i = 0; i < p->nodes.n; i++)
        if (p->nodes.data[i]->row) t->row[i] = ARENA_ARRAY(a, double, keys);
    return t;
}

void ref_tape_clear(RefTape *t, int keys) {
    memset(t->sym, 0, sizeof t->sym);
    memset(t->s, 0, sizeof *t->s * (size_t)keys);
    memset(t->dot, 0, sizeof *t->dot * (size_t)t->ndots);
    for (int side = 0; side < ROW_SIDES; side++)
        memset(t->square[side], 0, sizeof **t->square * (size_t)t->nsquares[side]);
    memset(t->one, 0, sizeof *t->one * (size_t)t->p->nodes.n);
    for (int i = 0; i < t->p->nodes.n; i++)
        if (t->row[i]) memset(t->row[i], 0, sizeof **t->row * (size_t)keys);
}

double ref_rounded(RefKind kind, double x) {
    return kind == REF_WRITTEN ? tx_number(x).written : x;
}

void ref_tape_add(RefTape *t, int node, int key, double adjoint) {
    double *to = t->row[node] ? &t->row[node][key] : &t->one[node];
    *to = ref_rounded(t->kind, *to + adjoint);
}

static TxValue value_of(const RefTape *t, int node, int key) {
    TxValue v = ref_row_value(t->p, node, key);
    if (t->kind == REF_WRITTEN && t->p->nodes.data[node]->type == TX_F32) v.f = v.written;
    return v;
}

// ---- slopes

// Shares of max and min: of a NaN and a number all is the number's.
static void extremum(const Tx *t, const TxValue *v, double *slope) {
    float a = v[0].written, b = v[1].written;
    bool first = isnan(b) || (t->op == EX_MAX ? a > b : a < b);
    slope[0] = first;
    slope[1] = !first;
    if (a == b) slope[0] = slope[1] = t->args[0]->known || t->args[1]->known ? 0 : 0.5;
}

static void power(const TxValue *v, double r, double *slope) {
    double a = v[0].f, b = v[1].f;
    slope[0] = b == 0 ? 0 : b * pow(a, b - 1);
    slope[1] = r == 0 ? 0 : r * log(a);
}

// The slope of a function of one argument at a, where it is r.
static double function(ExOp op, double a, double r) {
    switch ((int)op) {
    case EX_EXP: return r;
    case EX_EXP2: return r * M_LN2;
    case EX_LOG: return 1 / a;
    case EX_LOG2: return 1 / (a * M_LN2);
    case EX_SQRT: return 0.5 / r;
    case EX_RSQRT: return -0.5 * r / a;
    case EX_TANH: return 1 - r * r;
    case EX_SIGMOID: return r * (1 - r);
    case EX_SIN: return cos(a);
    case EX_COS: return -sin(a);
    case EX_ERF: return M_2_SQRTPI * exp(-a * a);
    case EX_FLOOR: return 0;
    }
    assert(!"not a function of one argument");
    return 0;
}

// Of each argument's f32 value, where the operation gave r.
static void slopes(const Tx *t, const TxValue *v, double r, double *slope) {
    double a = v[0].f, b = v[1].f;
    slope[0] = slope[1] = slope[2] = 0;
    switch ((int)t->op) {
    case EX_ADD: slope[0] = slope[1] = 1; break;
    case EX_SUB: slope[0] = 1, slope[1] = -1; break;
    case EX_MUL: slope[0] = b, slope[1] = a; break;
    case EX_DIV: slope[0] = 1 / b, slope[1] = -r / b; break;
    case EX_MOD: slope[0] = 1, slope[1] = -floorf(v[0].written / v[1].written); break;
    case EX_NEG: slope[0] = -1; break;
    case EX_MIN:
    case EX_MAX: extremum(t, v, slope); break;
    case EX_ABS: slope[0] = (v[0].written > 0) - (v[0].written < 0); break;
    case EX_POW: power(v, r, slope); break;
    case EX_SELECT: slope[v[0].i ? 1 : 2] = 1; break;
    case EX_CONV: break; // of what is whole
    default: slope[0] = function(t->op, a, r);
    }
}

// At a pole there is no slope, wherever float64 puts the number beside it.
static bool at_pole(const Tx *t, const TxValue *v) {
    bool has = t->op == EX_SQRT || t->op == EX_RSQRT || t->op == EX_LOG || t->op == EX_LOG2;
    return has && v[0].written == 0;
}

static bool other_side(const Tx *t, const TxValue *v) {
    float a = v[0].written, b = t->op == EX_ABS ? 0 : v[1].written;
    double x = v[0].f, y = t->op == EX_ABS ? 0 : v[1].f;
    if (t->op != EX_MIN && t->op != EX_MAX && t->op != EX_ABS) return false;
    return (a > b) != (x > y) || (a < b) != (x < y);
}

// Without a part in the result: not by a slope that happens to be 0.
static bool has_sides(ExOp op) {
    return op == EX_MIN || op == EX_MAX || op == EX_ABS || op == EX_SELECT || op == EX_FLOOR;
}

// ---- down the tape

static void loaded(const Tx *node, const RefRun *r, const TxValue *index, double adjoint,
                   double *const *dinputs) {
    double *d = dinputs ? dinputs[node->index] : NULL;
    int64_t at = d ? ref_place(r, node, index) : -1;
    if (at >= 0) d[at] += adjoint;
}

static void symbol(RefTape *t, const Tx *node, int key, double adjoint, double *const *dinputs) {
    if (node->sym == TS_ROW_S)
        t->s[key] += adjoint;
    else if (node->sym == TS_SCALAR && dinputs && dinputs[node->index])
        *dinputs[node->index] += adjoint;
    else if (node->sym == TS_DOT)
        t->dot[node->index] += adjoint;
    else if (node->sym == TS_SQQ || node->sym == TS_SQK)
        t->square[node->sym == TS_SQQ ? ROW_QUERIES : ROW_KEYS][node->index] += adjoint;
    else
        t->sym[node->sym] += adjoint;
}

static void step(RefTape *t, const RefRun *r, int node, const int *args, int key,
                 double *const *dinputs) {
    const Tx *x = t->p->nodes.data[node];
    double adjoint = t->row[node] ? t->row[node][key] : t->one[node], slope[3];
    bool magnitudes = t->kind == REF_SIZES || t->kind == REF_PARTS;
    if (adjoint == 0) return;
    if (x->op == EX_SYM) {
        symbol(t, x, key, adjoint, dinputs);
        return;
    }
    TxValue v[EX_MAX_RANK] = {0};
    for (int k = 0; k < x->nargs; k++) v[k] = value_of(t, args[k], key);
    if (x->op == EX_LOAD) {
        loaded(x, r, v, adjoint, dinputs);
        return;
    }
    slopes(x, v, value_of(t, node, key).f, slope);
    if (at_pole(x, v)) slope[0] = INFINITY;
    t->apart += other_side(x, v);
    for (int k = 0; k < x->nargs; k++)
        if (x->args[k]->type == TX_F32 && !(slope[k] == 0 && has_sides(x->op)))
            ref_tape_add(t, args[k], key, adjoint * (magnitudes ? fabs(slope[k]) : slope[k]));
}

static void reduction(RefTape *t, int node, int arg, int keys) {
    const RefProgram *p = t->p;
    double adjoint = t->one[node];
    bool sum = p->nodes.data[node]->op == EX_ROWSUM;
    float extremum = p->value[node].written;
    int attain = 0;
    if (sum) adjoint *= 1 + t->noise;
    if (adjoint == 0 || (t->sums && !sum)) return;
    for (int j = 0; j < keys; j++) attain += ref_row_value(p, arg, j).written == extremum;
    for (int j = 0; j < keys && !sum; j++) {
        TxValue x = ref_row_value(p, arg, j);
        t->apart += (x.written == extremum) != (x.f == p->value[node].f);
    }
    for (int j = 0; j < keys; j++)
        if (sum || ref_row_value(p, arg, j).written == extremum)
            ref_tape_add(t, arg, j, sum ? adjoint : adjoint / attain);
}

void ref_tape_reverse(RefTape *t, const RefRun *r, int keys, double *const *dinputs) {
    const RefProgram *p = t->p;
    const int *args = p->args;
    for (int i = 0; i < p->nodes.n; i++) args += p->nodes.data[i]->nargs;
    for (int i = p->nodes.n - 1; i >= 0; i--) {
        const Tx *x = p->nodes.data[i];
        args -= x->nargs;
        if (x->known || x->type != TX_F32) continue;
        if (x->op == EX_ROWMAX || x->op == EX_ROWMIN || x->op == EX_ROWSUM)
            reduction(t, i, args[0], keys);
        else
            for (int j = 0; j < (x->row ? keys : 1); j++) step(t, r, i, args, j, dinputs);
    }
}

void ref_tape_of(RefTape *t, const RefRun *r, double adjoint, double *const *dinputs) {
    ref_tape_clear(t, 0);
    ref_tape_add(t, t->p->result, 0, adjoint);
    ref_tape_reverse(t, r, 0, dinputs);
}
