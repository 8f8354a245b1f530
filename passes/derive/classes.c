// classes.c: kinds of f32 by abstract interpretation.
//
// In: an expression and the classes of its symbols. Out: a set that holds the class of every value
// that it can take. A binary operation is worked out on pairs of single classes and united over the
// sets' pairs; a bool is the set of its truth values.
//
//     exp2((s * 1.44) + shift0)  with s = -inf  ->  {0}         select((s == -inf), 0.0, s)  with s
//     = -inf  ->  {0}
#include "passes/derive/classes.h"

#include <math.h>

enum { MAYBE_FALSE = 1, MAYBE_TRUE = 2, CLASSES = 6 };

static ClassSet of_value(float v) {
    if (isnan(v)) return CL_NAN;
    if (isinf(v)) return v < 0 ? CL_NINF : CL_PINF;
    return v < 0 ? CL_NEG : v > 0 ? CL_POS : CL_ZERO;
}

static bool infinite(ClassSet c) { return c & (CL_NINF | CL_PINF); }

static ClassSet negated(ClassSet a) {
    return (a & (CL_NAN | CL_ZERO)) | (a & CL_NINF ? CL_PINF : 0) | (a & CL_PINF ? CL_NINF : 0) |
           (a & CL_NEG ? CL_POS : 0) | (a & CL_POS ? CL_NEG : 0);
}

// ---- on single classes

static ClassSet add(ClassSet a, ClassSet b) {
    if ((a | b) & CL_NAN || (infinite(a) && infinite(b) && a != b)) return CL_NAN;
    if (infinite(a)) return a;
    if (infinite(b)) return b;
    if (a == CL_ZERO) return b;
    return b == CL_ZERO || a == b ? a : CL_FINITE;
}

static bool below_zero(ClassSet a) { return a & (CL_NINF | CL_NEG); }

static ClassSet signed_as(ClassSet a, ClassSet b, ClassSet positive) {
    return below_zero(a) == below_zero(b) ? positive : negated(positive);
}

static ClassSet mul(ClassSet a, ClassSet b) {
    if ((a | b) & CL_NAN) return CL_NAN;
    if ((a | b) & CL_ZERO) return infinite(a) || infinite(b) ? CL_NAN : CL_ZERO;
    return signed_as(a, b, infinite(a) || infinite(b) ? CL_PINF : CL_POS);
}

static ClassSet quotient(ClassSet a, ClassSet b) {
    if ((a | b) & CL_NAN || (infinite(a) && infinite(b)) || (a == CL_ZERO && b == CL_ZERO))
        return CL_NAN;
    if (b == CL_ZERO) return CL_NINF | CL_PINF; // the sign of the zero is not known
    if (infinite(b) || a == CL_ZERO) return CL_ZERO;
    return signed_as(a, b, infinite(a) ? CL_PINF : CL_POS);
}

static ClassSet modulo(ClassSet a, ClassSet b) {
    if (b == CL_ZERO || infinite(a) || infinite(b) || (a | b) & CL_NAN) return CL_ALL;
    return CL_FINITE;
}

static ClassSet power(ClassSet a, ClassSet b) {
    if (a == CL_POS && b & CL_FINITE) return CL_POS;
    if (a == CL_ZERO && b == CL_POS) return CL_ZERO;
    return CL_ALL;
}

static ClassSet binary(ExOp op, ClassSet a, ClassSet b) {
    switch ((int)op) {
    case EX_ADD: return add(a, b);
    case EX_SUB: return add(a, negated(b));
    case EX_MUL: return mul(a, b);
    case EX_DIV: return quotient(a, b);
    case EX_MOD: return modulo(a, b);
    case EX_POW: return power(a, b);
    case EX_MIN:
        return a == CL_NAN   ? b
               : b == CL_NAN ? a
               : a < b       ? a
                             : b; // the bits are in the numbers' order
    case EX_MAX: return a == CL_NAN ? b : b == CL_NAN ? a : a > b ? a : b;
    default: return CL_ALL;
    }
}

// What each class becomes, in the order NaN -inf - 0 + inf.
static const ClassSet *unary(ExOp op) {
    enum { SIGNS = CL_NEG | CL_ZERO | CL_POS };
    static const ClassSet floor_[] = {CL_NAN, CL_NINF, CL_NEG, CL_ZERO, CL_ZERO | CL_POS, CL_PINF};
    static const ClassSet abs_[] = {CL_NAN, CL_PINF, CL_POS, CL_ZERO, CL_POS, CL_PINF};
    static const ClassSet exp_[] = {CL_NAN, CL_ZERO, CL_POS, CL_POS, CL_POS, CL_PINF};
    static const ClassSet log_[] = {CL_NAN, CL_NAN, CL_NAN, CL_NINF, SIGNS, CL_PINF};
    static const ClassSet sqrt_[] = {CL_NAN, CL_NAN, CL_NAN, CL_ZERO, CL_POS, CL_PINF};
    static const ClassSet rsqrt_[] = {CL_NAN, CL_NAN, CL_NAN, CL_NINF | CL_PINF, CL_POS, CL_ZERO};
    static const ClassSet rcp_[] = {CL_NAN, CL_ZERO, CL_NEG, CL_NINF | CL_PINF, CL_POS, CL_ZERO};
    static const ClassSet odd_[] = {CL_NAN, CL_NEG, CL_NEG, CL_ZERO, CL_POS, CL_POS};
    static const ClassSet sigmoid_[] = {CL_NAN, CL_ZERO, CL_POS, CL_POS, CL_POS, CL_POS};
    static const ClassSet wave_[] = {CL_NAN, CL_NAN, SIGNS, SIGNS, SIGNS, CL_NAN};
    switch ((int)op) {
    case EX_FLOOR: return floor_;
    case EX_ABS: return abs_;
    case EX_EXP:
    case EX_EXP2: return exp_;
    case EX_LOG:
    case EX_LOG2: return log_;
    case EX_SQRT: return sqrt_;
    case EX_RSQRT: return rsqrt_;
    case EX_RCP: return rcp_;
    case EX_TANH:
    case EX_ERF: return odd_;
    case EX_SIGMOID: return sigmoid_;
    case EX_SIN:
    case EX_COS: return wave_;
    default: return NULL;
    }
}

// Truth values of a comparison of two single classes.
static unsigned compare(ExOp op, ClassSet a, ClassSet b) {
    bool single = (a == b && (infinite(a) || a == CL_ZERO)); // the class is one number
    bool negative = op == EX_NE;
    if ((a | b) & CL_NAN) return negative ? MAYBE_TRUE : MAYBE_FALSE;
    if (a == b && !single) return MAYBE_FALSE | MAYBE_TRUE;
    switch ((int)op) {
    case EX_EQ: return single ? MAYBE_TRUE : MAYBE_FALSE;
    case EX_NE: return single ? MAYBE_FALSE : MAYBE_TRUE;
    case EX_LT: return a < b ? MAYBE_TRUE : MAYBE_FALSE;
    default: return a <= b ? MAYBE_TRUE : MAYBE_FALSE;
    }
}

// ---- on sets

static unsigned pairs(unsigned (*fn)(ExOp, ClassSet, ClassSet), ExOp op, ClassSet a, ClassSet b) {
    unsigned all = 0;
    for (unsigned i = 1; i < 1 << CLASSES; i <<= 1)
        for (unsigned k = 1; k < 1 << CLASSES; k <<= 1)
            if (a & i && b & k) all |= fn(op, i, k);
    return all;
}

static ClassSet each(const ClassSet *table, ClassSet a) {
    ClassSet all = 0;
    for (int i = 0; i < CLASSES; i++)
        if (a >> i & 1) all |= table[i];
    return all;
}

static bool is_input(const Ex *e) {
    return e->op == EX_LOAD || (e->op == EX_SYM && e->sym == SYM_SCALAR);
}

static ClassSet leaf(const Ex *e, const ClassEnv *env) {
    if (is_input(e)) return env->wild_inputs ? CL_ALL : CL_FINITE;
    if (e->sym == SYM_S) return env->s;
    return (e->sym == SYM_R || e->sym == SYM_PARAM) && env->r ? env->r[e->index] : CL_FINITE;
}

// A set with this bit belongs to what depends on the row's data; all else is known before the row
// is looked at.
enum { DATA = 1 << CLASSES };

static unsigned is_data(const Ex *e, const unsigned *a, const ClassEnv *env) {
    unsigned data = is_input(e) && env->wild_inputs ? DATA : 0;
    bool symbol = e->op == EX_SYM;
    if (symbol && env->wild_scores &&
        (e->sym == SYM_DOT || e->sym == SYM_Q_IDX || e->sym == SYM_KV_IDX || e->sym == SYM_POS))
        data = DATA;
    if (symbol && (e->sym == SYM_S || e->sym == SYM_R || e->sym == SYM_STATE ||
                   e->sym == SYM_SHIFT || e->sym == SYM_PARAM))
        data = DATA;
    for (int i = 0; i < e->nargs; i++) data |= a[i] & DATA;
    return data;
}

static ClassSet without(ClassSet a, ClassSet what) { return a & ~what ? a & ~what : a; }

// The truth values of a bool node whose arguments' sets are a.
static unsigned truth(const Ex *e, const unsigned *a) {
    switch ((int)e->op) {
    case EX_CONST: return e->i ? MAYBE_TRUE : MAYBE_FALSE;
    case EX_NOT:
        return (a[0] & MAYBE_TRUE ? MAYBE_FALSE : 0) | (a[0] & MAYBE_FALSE ? MAYBE_TRUE : 0);
    case EX_AND: return ((a[0] | a[1]) & MAYBE_FALSE) | (a[0] & a[1] & MAYBE_TRUE);
    case EX_OR: return ((a[0] | a[1]) & MAYBE_TRUE) | (a[0] & a[1] & MAYBE_FALSE);
    case EX_EQ:
    case EX_NE:
    case EX_LT:
    case EX_LE:
        if (e->args[0]->type == EX_F32) return pairs(compare, e->op, a[0], a[1]);
        break;
    default: break;
    }
    return MAYBE_FALSE | MAYBE_TRUE;
}

static ClassSet out_of_range(ClassSet exponent, const ClassEnv *env) {
    if (!env->limited) return 0;
    return (exponent & CL_POS ? CL_PINF : 0) | (exponent & CL_NEG ? CL_ZERO : 0);
}

static ClassSet number(const Ex *e, const unsigned *a, const ClassEnv *env) {
    ClassSet divisor = e->nargs ? a[e->nargs - 1] : 0;
    switch ((int)e->op) {
    case EX_CONST: return of_value(e->f);
    case EX_SYM:
    case EX_LOAD: return leaf(e, env);
    case EX_CONV: return CL_FINITE;
    case EX_EXP:
    case EX_EXP2: return each(unary(EX_EXP), a[0]) | out_of_range(a[0], env);
    case EX_NEG: return negated(a[0]);
    case EX_ROUNDED: return a[0];
    case EX_FMA: return pairs(binary, EX_ADD, pairs(binary, EX_MUL, a[0], a[1]), a[2]);
    case EX_MUL:
        if (e->args[0] == e->args[1]) return each(unary(EX_ABS), a[0]);
        if (bounds_is_square(e)) return each(unary(EX_ABS), pairs(binary, EX_MUL, a[0], a[1]));
        break;
    case EX_DIV:
    case EX_RCP: // what is known beforehand is no zero to divide by: the formula itself would have
                 // no value
        if (!(a[e->nargs - 1] & DATA)) divisor = without(divisor, CL_ZERO);
        if (e->op == EX_RCP) return each(unary(EX_RCP), divisor);
        return pairs(binary, EX_DIV, a[0], divisor);
    default: break;
    }
    if (e->nargs == 1) return unary(e->op) ? each(unary(e->op), a[0]) : CL_ALL;
    return pairs(binary, e->op, a[0], a[1]);
}

// What bounds say of a number: what it cannot be, and that it may have left f32.
static ClassSet bounded(ClassSet set, Bounds l) {
    static const double least = 0x1p-126;
    bool finite = set & CL_FINITE;
    if (finite && l.lo <= -LIMITS_F32) set |= CL_NINF;
    if (finite && l.hi >= LIMITS_F32) set |= CL_PINF;
    if (l.lo >= 0) set &= ~(unsigned)CL_NEG;
    if (l.hi <= 0) set &= ~(unsigned)CL_POS;
    if (set & (CL_NEG | CL_POS) && l.lo < least && l.hi > -least) set |= CL_ZERO;
    return l.lo >= least || l.hi <= -least ? set & ~(unsigned)CL_ZERO : set;
}

static unsigned set_of(const Ex *e, const unsigned *a, const ClassEnv *env, Bounds l) {
    unsigned data = is_data(e, a, env), set = CL_ALL; // an i32 matters only where it is converted
    if (e->op == EX_SELECT)
        set = (a[0] & MAYBE_TRUE ? a[1] : 0) | (a[0] & MAYBE_FALSE ? a[2] : 0);
    else if (e->type == EX_BOOL)
        set = truth(e, a);
    else if (e->type == EX_F32)
        set = number(e, a, env);
    set &= DATA - 1;
    if (e->type == EX_F32 && env->overflows) set = bounded(set, l);
    if (e->type == EX_F32 && !data && !env->limited && !env->overflows)
        set = without(set, CL_ALL & ~CL_FINITE);
    return set | data;
}

typedef struct Kinds { // of a node
    unsigned set;
    Bounds limits;
} Kinds;

static unsigned root_set(const Ex *e, const ClassEnv *env, Bounds *limits) {
    Arena *scratch = arena_new();
    const Ex **order;
    int n = ex_order(scratch, &e, 1, &order);
    Kinds *of = ARENA_ARRAY(scratch, Kinds, n);
    ExMemo at = {0};
    for (int i = 0; i < n; i++) {
        unsigned a[EX_MAX_RANK];
        Bounds l[EX_MAX_RANK];
        for (int k = 0; k < order[i]->nargs; k++) {
            const Kinds *arg = ex_memo_get(&at, order[i]->args[k]);
            a[k] = arg->set, l[k] = arg->limits;
            if (order[i]->args[k]->type != EX_F32) continue;
            if (a[k] & CL_NINF) l[k].lo = -INFINITY;
            if (a[k] & CL_PINF) l[k].hi = INFINITY;
        }
        if (env->overflows) of[i].limits = limits_of_node(order[i], l, &env->facts);
        of[i].set = set_of(order[i], a, env, of[i].limits);
        ex_memo_put(scratch, &at, order[i], &of[i]);
    }
    unsigned result = of[n - 1].set & CL_ALL;
    if (limits) *limits = of[n - 1].limits;
    arena_free(scratch);
    return result;
}

ClassSet class_of(const Ex *e, const ClassEnv *env) { return root_set(e, env, NULL); }

ClassSet class_and_limits(const Ex *e, const ClassEnv *env, Bounds *limits) {
    return root_set(e, env, limits);
}

bool class_may(const Ex *e, const ClassEnv *env, bool truth) {
    return root_set(e, env, NULL) & (truth ? MAYBE_TRUE : MAYBE_FALSE);
}

ClassSet class_sum(ClassSet of) {
    ClassSet sum = of;
    for (int i = 0; i < CLASSES; i++) sum |= pairs(binary, EX_ADD, sum, of);
    return sum;
}

ClassSet class_reduced(const RowReduce *r, const ClassEnv *env) {
    ClassSet f = class_of(r->f, env);
    return r->op == EX_ROWSUM ? class_sum(f) : f;
}

ClassSet *class_reductions(Arena *a, const RowProgram *row) {
    ClassSet *r = ARENA_ARRAY(a, ClassSet, row->reduces.n + 1);
    ClassEnv env = {.s = CL_FINITE, .r = r};
    for (int k = 0; k < row->reduces.n; k++) r[k] = class_reduced(&row->reduces.data[k], &env);
    return r;
}
