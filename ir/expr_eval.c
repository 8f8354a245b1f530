// expr_eval.c: what every operation means, on values.
//
// In: an expression and an environment that knows the symbols and the tensors. Out: its value.
// Holds afterwards: i32 and bool are exact; an f32 is a double, rounded to f32 after every
// operation where asked, or computed as a target does. The constant folder uses ex_apply too, so that
// folding cannot differ from evaluation.
#include "ir/expr_ops.h"
#include "ir/math.h"

#include <assert.h>
#include <float.h>
#include <math.h>

static ExValue of_int(int32_t v) {
    ExValue r = {.f = 0};
    r.i = v;
    return r;
}

// The f32 next to v; below the normal range 0.
static double nearest(double v) {
    float f = (float)v;
    return fabsf(f) < FLT_MIN ? copysign(0, v) : (double)f;
}

static ExValue of_double(double v, bool round) {
    ExValue r;
    r.f = round ? nearest(v) : v;
    return r;
}

static int32_t wrap(int64_t v) { return (int32_t)(uint32_t)(uint64_t)v; }

static int32_t floor_div(int32_t a, int32_t b) {
    if (!b) return 0;
    int64_t q = (int64_t)a / b;
    return wrap(q - ((int64_t)a % b != 0 && (a < 0) != (b < 0)));
}

static int32_t apply_int(ExOp op, int32_t a, int32_t b) {
    int64_t x = a, y = b;
    switch ((int)op) {
    case EX_ADD: return wrap(x + y);
    case EX_SUB: return wrap(x - y);
    case EX_MUL: return wrap(x * y);
    case EX_DIV: return floor_div(a, b);
    case EX_MOD: return b ? wrap(x - (int64_t)floor_div(a, b) * y) : 0;
    case EX_NEG: return wrap(-x);
    case EX_MIN: return a < b ? a : b;
    case EX_MAX: return a > b ? a : b;
    case EX_ABS: return wrap(a < 0 ? -x : x);
    case EX_BAND: return a & b;
    case EX_BOR: return a | b;
    case EX_BXOR: return a ^ b;
    case EX_BNOT: return ~a;
    case EX_SHL: return wrap((int64_t)((uint32_t)a << (b & 31)));
    case EX_SHR: return (int32_t)(x >> (b & 31));
    default: assert(!"an integer operation"); return 0;
    }
}

static double apply_float(ExOp op, double a, double b, double c) {
    switch ((int)op) {
    case EX_ADD: return a + b;
    case EX_SUB: return a - b;
    case EX_MUL: return a * b;
    case EX_DIV: return a / b;
    case EX_MOD: return a - b * floor(a / b);
    case EX_NEG: return -a;
    case EX_FMA: return fma(a, b, c);
    case EX_ROUNDED: return a;
    case EX_MIN: return fmin(a, b);
    case EX_MAX: return fmax(a, b);
    case EX_ABS: return fabs(a);
    case EX_FLOOR: return floor(a);
    case EX_EXP: return exp(a);
    case EX_EXP2: return exp2(a);
    case EX_LOG: return log(a);
    case EX_LOG2: return log2(a);
    case EX_SQRT: return sqrt(a);
    case EX_RSQRT: return 1 / sqrt(a);
    case EX_RCP: return 1 / a;
    case EX_TANH: return tanh(a);
    case EX_SIGMOID: return 1 / (1 + exp(-a));
    case EX_SIN: return sin(a);
    case EX_COS: return cos(a);
    case EX_ERF: return erf(a);
    case EX_POW: return pow(a, b);
    default: assert(!"an operation on f32"); return 0;
    }
}

static ExValue of_math(const Math *m, ExOp op, const ExValue *v, int n) {
    float x[3] = {0};
    for (int k = 0; k < n; k++) x[k] = (float)v[k].f;
    return of_double((double)math_apply(m, op, x, n), false);
}

static ExValue of_f32(ExOp op, const ExValue *v, int n, bool round) {
    double x[3] = {0};
    for (int k = 0; k < n; k++) x[k] = round ? nearest(v[k].f) : v[k].f;
    if (op == EX_MOD && round) x[1] *= nearest(floor(nearest(x[0] / x[1]))), op = EX_SUB;
    if (op == EX_SUB && round) x[1] = nearest(x[1]);
    return of_double(apply_float(op, x[0], x[1], x[2]), round);
}

static bool compare(ExOp op, ExType t, ExValue a, ExValue b, bool round) {
    bool f = t == EX_F32;
    if (f && round) a.f = nearest(a.f), b.f = nearest(b.f);
    switch ((int)op) {
    case EX_EQ: return f ? a.f == b.f : a.i == b.i;
    case EX_NE: return f ? a.f != b.f : a.i != b.i;
    case EX_LT: return f ? a.f < b.f : a.i < b.i;
    default: assert(op == EX_LE); return f ? a.f <= b.f : a.i <= b.i;
    }
}

static int32_t to_int(double v) {
    if (isnan(v)) return 0;
    if (v >= 2147483647.0) return INT32_MAX;
    if (v <= -2147483648.0) return INT32_MIN;
    return (int32_t)v;
}

static ExValue convert(ExType to, ExType from, ExValue v, bool round) {
    if (to == from) return v;
    if (to == EX_F32) return of_double(v.i, round);
    if (to == EX_BOOL) return of_int(from == EX_F32 ? (round ? nearest(v.f) : v.f) != 0 : v.i != 0);
    return of_int(from == EX_F32 ? to_int(v.f) : v.i);
}

ExValue ex_apply(ExOp op, ExType result, const ExType *types, const ExValue *v, bool round) {
    int n = ex_ops[op].arity;
    switch (ex_ops[op].typing) {
    case T_CMP: return of_int(compare(op, types[0], v[0], v[1], round));
    case T_SEL: return v[0].i ? v[1] : v[2];
    case T_CONV: return convert(result, types[0], v[0], round);
    case T_BOOL:
        if (op == EX_NOT) return of_int(!v[0].i);
        return of_int(op == EX_AND ? v[0].i && v[1].i : v[0].i || v[1].i);
    case T_NUM:
    case T_F32:
    case T_I32:
    case T_BITS:
        if (result == EX_F32) return of_f32(op, v, n, round);
        return of_int(apply_int(op, v[0].i, n > 1 ? v[1].i : 0));
    case T_LEAF:
    case T_LOAD:
    case T_RED: break;
    }
    assert(!"an operation on values");
    return of_int(0);
}

// ---- plans

typedef struct Step {
    const Ex *e;
    int args[EX_MAX_RANK]; // of earlier steps
    ExType types[EX_MAX_RANK];
    bool exact; // under `rounded`: of a division and a root IEEE's
} Step;

struct ExPlan {
    int n;
    Step *steps;
    ExValue *values;
};

ExPlan *ex_plan(Arena *a, const Ex *e) {
    ExPlan *plan = ARENA_NEW(a, ExPlan);
    const Ex **order;
    plan->n = ex_order(a, &e, 1, &order);
    plan->steps = ARENA_ARRAY(a, Step, plan->n);
    plan->values = ARENA_ARRAY(a, ExValue, plan->n);
    ExMemo place = {0};
    for (int i = 0; i < plan->n; i++) {
        Step *s = &plan->steps[i];
        s->e = order[i];
        for (int k = 0; k < s->e->nargs; k++) {
            s->args[k] = *(const int *)ex_memo_get(&place, s->e->args[k]);
            s->types[k] = s->e->args[k]->type;
        }
        int *at = ARENA_NEW(a, int);
        *at = i;
        ex_memo_put(a, &place, s->e, at);
    }
    for (int i = plan->n; i-- > 0;) {
        const Step *s = &plan->steps[i];
        if (s->e->op == EX_ROUNDED) plan->steps[s->args[0]].exact = true;
        for (int k = 1; s->exact && s->e->op == EX_SELECT && k < 3; k++)
            plan->steps[s->args[k]].exact = true;
    }
    return plan;
}

ExPlan *ex_planned(Arena *a, ExMemo *plans, const Ex *e) {
    ExPlan *plan = ex_memo_get(plans, e);
    if (!plan) ex_memo_put(a, plans, e, plan = ex_plan(a, e));
    return plan;
}

static ExValue run_step(const Step *s, const ExValue *values, const ExEnv *env) {
    const Ex *e = s->e;
    ExValue args[EX_MAX_RANK];
    int32_t index[EX_MAX_RANK];
    for (int k = 0; k < e->nargs; k++) args[k] = values[s->args[k]];
    switch (ex_ops[e->op].typing) {
    case T_LEAF:
        if (e->op == EX_SYM) return env->sym(env->ctx, e);
        return e->type == EX_F32 ? of_double((double)e->f, false) : of_int(e->i);
    case T_LOAD:
        for (int k = 0; k < e->nargs; k++) index[k] = args[k].i;
        return env->load(env->ctx, e, index);
    case T_NUM:
    case T_F32:
        if (e->type == EX_F32 && env->round && env->math &&
            !(s->exact && (e->op == EX_DIV || e->op == EX_SQRT)))
            return of_math(env->math, e->op, args, e->nargs);
        break;
    case T_I32:
    case T_BITS:
    case T_CMP:
    case T_BOOL:
    case T_SEL:
    case T_CONV:
    case T_RED: break;
    }
    return ex_apply(e->op, e->type, s->types, args, env->round);
}

ExValue ex_run(ExPlan *plan, const ExEnv *env) {
    for (int i = 0; i < plan->n; i++)
        plan->values[i] = run_step(&plan->steps[i], plan->values, env);
    return plan->values[plan->n - 1];
}

ExValue ex_eval(const Ex *e, const ExEnv *env) {
    Arena *scratch = arena_new();
    ExValue v = ex_run(ex_plan(scratch, e), env);
    arena_free(scratch);
    return v;
}
