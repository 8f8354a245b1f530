// reference.c: attentions and recurrences in float64, as language.md writes them.
//
// In: plain arrays. Out: o, emits, state. Holds afterwards: nothing outside an input was read
// (indices are clamped), a row without a key is 0 before `output`. A clause is evaluated node by
// node in the order of ids; in `normalize` a node has one value per key that takes part, or one for
// all.
#include "frontend/reference.h"

#include <assert.h>
#include <math.h>
#include <string.h>

typedef struct Env { // what symbols stand for at the moment
    const RefRun *run;
    int32_t b, h, q_idx, kv_idx, d, t, e;
    double s, q, k, v, o, dot, sqq, sqk, sqv, sqo;
    const double *row; // of modified scores
} Env;

typedef struct Program { // one clause, or several that share their nodes
    TxNodes nodes;
    int *args;      // of all nodes, as indices into nodes
    TxValue *value; // of each node: one
    TxValue **row;  // or one per key, where the node is a row
    int result;     // index of the first root
    bool *inner;    // of each node: it is an argument of another
    bool *demanded; // scratch of note_outside
} Program;

static int index_of(const TxNodes *nodes, const Tx *t) {
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

static Program *program(Arena *a, const Tx *const *roots, int n, int keys) {
    if (!roots[0]) return NULL;
    Program *p = ARENA_NEW(a, Program);
    p->nodes = tx_nodes(a, roots, n);
    int nargs = 0;
    for (int i = 0; i < p->nodes.n; i++) nargs += p->nodes.data[i]->nargs;
    p->args = ARENA_ARRAY(a, int, nargs);
    p->value = ARENA_ARRAY(a, TxValue, p->nodes.n);
    p->row = ARENA_ARRAY(a, TxValue *, p->nodes.n);
    p->inner = ARENA_ARRAY(a, bool, p->nodes.n);
    p->demanded = ARENA_ARRAY(a, bool, p->nodes.n);
    nargs = 0;
    for (int i = 0; i < p->nodes.n; i++) {
        const Tx *t = p->nodes.data[i];
        for (int k = 0; k < t->nargs; k++) {
            p->args[nargs] = index_of(&p->nodes, t->args[k]);
            p->inner[p->args[nargs++]] = true;
        }
        if (t->op == EX_CONST) p->value[i] = t->value;
        if (t->row) p->row[i] = ARENA_ARRAY(a, TxValue, keys);
    }
    p->result = index_of(&p->nodes, roots[0]);
    return p;
}

// ---- one node

static int64_t extent_of(const RefRun *r, const TxExtent *x) {
    return x->size < 0 ? x->value : r->sizes[x->size];
}

static TxValue element(const RefRun *r, int input, int64_t at) {
    bool f = dtype_reads(r->variant->inputs.data[input].dtype) == EX_F32;
    if (f) return (TxValue){.f = ((const double *)r->inputs[input])[at]};
    return (TxValue){.i = ((const int32_t *)r->inputs[input])[at]};
}

static TxValue load(const RefRun *r, const Tx *t, const TxValue *index) {
    const TxInput *in = &r->variant->inputs.data[t->index];
    int64_t at = 0;
    for (int i = 0; i < in->rank; i++) {
        int64_t n = extent_of(r, &in->extent[i]), k = index[i].i;
        if (n <= 0) return (TxValue){.f = 0}; // there is nothing to clamp to
        at = at * n + (k < 0 ? 0 : k >= n ? n - 1 : k);
    }
    return element(r, t->index, at);
}

static TxValue f64(double x) { return (TxValue){.f = x}; }
static TxValue i32(int32_t x) { return (TxValue){.i = x}; }

static TxValue symbol(const Env *e, const Tx *t, int key) {
    switch (t->sym) {
    case TS_DOT: return f64(e->dot);
    case TS_SQQ:
    case TS_SQEQ: return f64(e->sqq);
    case TS_SQK:
    case TS_SQEK: return f64(e->sqk);
    case TS_SQEV: return f64(e->sqv);
    case TS_SQO: return f64(e->sqo);
    case TS_S: return f64(e->s);
    case TS_ROW_S: return f64(e->row[key]);
    case TS_B: return i32(e->b);
    case TS_H: return i32(e->h);
    case TS_Q_IDX: return i32(e->q_idx);
    case TS_KV_IDX: return i32(e->kv_idx);
    case TS_D: return i32(e->d);
    case TS_T: return i32(e->t);
    case TS_E: return i32(e->e);
    case TS_O: return f64(e->o);
    case TS_EQ: return f64(e->q);
    case TS_EK: return f64(e->k);
    case TS_EV: return f64(e->v);
    case TS_SIZE: return i32(e->run->sizes[t->index]);
    case TS_SCALAR: return element(e->run, t->index, 0);
    case TS_TILE_Q:
    case TS_TILE_K:
    case TS_COUNT: break;
    }
    assert(!"a symbol without a value");
    return i32(0);
}

static TxValue reduce(const Program *p, const Tx *t, int arg, int keys) {
    double r = t->op == EX_ROWMAX ? -INFINITY : t->op == EX_ROWMIN ? INFINITY : 0;
    for (int j = 0; j < keys; j++) {
        double x = p->nodes.data[arg]->row ? p->row[arg][j].f : p->value[arg].f;
        r = t->op == EX_ROWMAX ? fmax(r, x) : t->op == EX_ROWMIN ? fmin(r, x) : r + x;
    }
    return f64(r);
}

static TxValue compute(const Program *p, const Env *e, const Tx *t, const int *args, int key) {
    if (t->op == EX_SYM) return symbol(e, t, key);
    TxValue v[EX_MAX_RANK];
    for (int k = 0; k < t->nargs; k++)
        v[k] = p->nodes.data[args[k]]->row ? p->row[args[k]][key] : p->value[args[k]];
    if (t->op == EX_LOAD) return load(e->run, t, v);
    return tx_apply(t->op, t->type, t->args[t->nargs - 1]->type, v);
}

// ---- indices outside

static int32_t truth_of(const Program *p, int node, int key) {
    return (p->nodes.data[node]->row ? p->row[node][key] : p->value[node]).i;
}

// Marks the arguments whose values node i's own depends on.
static void demand(const Program *p, const Tx *t, const int *args, int key) {
    bool first = t->nargs && t->op == EX_SELECT ? truth_of(p, args[0], key) : true;
    for (int k = 0; k < t->nargs; k++) {
        bool skipped = (t->op == EX_SELECT && k == (first ? 2 : 1)) ||
                       (t->op == EX_AND && k == 1 && !truth_of(p, args[0], key)) ||
                       (t->op == EX_OR && k == 1 && truth_of(p, args[0], key));
        if (!skipped) p->demanded[args[k]] = true;
    }
}

static void check_load(const Program *p, const Env *e, const Tx *t, const int *args, int key) {
    const TxInput *in = &e->run->variant->inputs.data[t->index];
    for (int d = 0; d < in->rank && !e->run->outside->load; d++) {
        int64_t n = extent_of(e->run, &in->extent[d]);
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
static void note_outside(const Program *p, const Env *e, int key, int keys) {
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

// Evaluates all nodes; keys is how many take part, 0 outside of `normalize`.
static TxValue evaluate(const Program *p, const Env *e, int keys) {
    const int *args = p->args;
    for (int i = 0; i < p->nodes.n; args += p->nodes.data[i++]->nargs) {
        const Tx *t = p->nodes.data[i];
        if (t->op == EX_CONST) continue;
        if (t->op == EX_ROWMAX || t->op == EX_ROWMIN || t->op == EX_ROWSUM)
            p->value[i] = reduce(p, t, args[0], keys);
        else if (!t->row)
            p->value[i] = compute(p, e, t, args, 0);
        for (int j = 0; t->row && j < keys; j++) p->row[i][j] = compute(p, e, t, args, j);
    }
    for (int j = 0; e->run->outside && j < (keys ? keys : 1); j++) note_outside(p, e, j, keys);
    return p->value[p->result];
}

// The clause's value where it is written, `absent` where not.
static double value_or(const Program *p, const Env *e, double absent) {
    return p ? evaluate(p, e, 0).f : absent;
}

static double inner(const double *x, const double *y, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

// ---- attention

typedef struct Attention {
    const RefRun *run;
    int32_t B, H, Hkv, Sq, Sk, q_offset;
    int D, Dv;
    Program *score, *modify, *mask, *normalize, *output;
    int *key;    // those that take part
    double *row; // their modified scores
    double *o;   // the aggregated row
} Attention;

static Program *clause(Arena *a, const Variant *v, ClauseId id) {
    return program(a, &v->clause[id], 1, 0);
}

static Attention attention(Arena *a, const RefRun *r) {
    const Variant *v = r->variant;
    const int32_t *n = r->sizes;
    Attention t = {.run = r,
                   .B = n[SIZE_B],
                   .H = n[SIZE_HQ],
                   .Hkv = n[SIZE_HKV],
                   .Sq = n[SIZE_SQ],
                   .Sk = n[SIZE_SK],
                   .q_offset = n[SIZE_Q_OFFSET],
                   .D = v->D,
                   .Dv = v->Dv};
    t.score = clause(a, v, CLAUSE_SCORE);
    t.modify = clause(a, v, CLAUSE_MODIFY);
    t.mask = clause(a, v, CLAUSE_MASK);
    t.output = clause(a, v, CLAUSE_OUTPUT);
    const Tx **roots = ARENA_ARRAY(a, const Tx *, v->emits.n + 1);
    roots[0] = v->clause[CLAUSE_NORMALIZE];
    for (int i = 0; i < v->emits.n; i++) roots[i + 1] = v->emits.data[i].value;
    t.normalize = program(a, roots, v->emits.n + 1, t.Sk);
    t.key = ARENA_ARRAY(a, int, t.Sk);
    t.row = ARENA_ARRAY(a, double, t.Sk);
    t.o = ARENA_ARRAY(a, double, t.Dv);
    return t;
}

static size_t kv_row(const Attention *t, const Env *e, int j) {
    int kv_head = (int)((int64_t)e->h * t->Hkv / t->H);
    return ((size_t)e->b * (size_t)t->Hkv + (size_t)kv_head) * (size_t)t->Sk + (size_t)j;
}

// The keys that take part for a query, and their modified scores.
static int gather(const Attention *t, Env *e, const double *q) {
    int n = 0;
    e->sqq = inner(q, q, t->D);
    for (int j = 0; j < t->Sk; j++) {
        e->kv_idx = j;
        if (t->mask && !evaluate(t->mask, e, 0).i) continue;
        const double *k = t->run->k + kv_row(t, e, j) * (size_t)t->D;
        e->dot = inner(q, k, t->D);
        e->sqk = inner(k, k, t->D);
        e->s = evaluate(t->score, e, 0).f;
        double s = value_or(t->modify, e, e->s);
        if (s == -INFINITY) continue;
        t->key[n] = j;
        t->row[n++] = s;
    }
    return n;
}

static void aggregate(const Attention *t, const Env *e, int keys) {
    const Program *p = t->normalize;
    memset(t->o, 0, sizeof *t->o * (size_t)t->Dv);
    for (int j = 0; j < keys; j++) {
        double w = p->nodes.data[p->result]->row ? p->row[p->result][j].f : p->value[p->result].f;
        const double *v = t->run->v + kv_row(t, e, t->key[j]) * (size_t)t->Dv;
        for (int d = 0; d < t->Dv; d++) t->o[d] += w * v[d];
    }
}

static void attend(const Attention *t, int b, int h, int i) {
    const RefRun *r = t->run;
    size_t at = ((size_t)b * (size_t)t->H + (size_t)h) * (size_t)t->Sq + (size_t)i;
    Env e = {.run = r, .b = b, .h = h, .q_idx = i + t->q_offset, .row = t->row};
    int keys = gather(t, &e, r->q + at * (size_t)t->D);
    if (r->pairs) *r->pairs += keys;
    evaluate(t->normalize, &e, keys);
    aggregate(t, &e, keys);
    e.sqo = inner(t->o, t->o, t->Dv);
    for (e.d = 0; r->o && e.d < t->Dv; e.d++) {
        e.o = t->o[e.d];
        r->o[at * (size_t)t->Dv + (size_t)e.d] = value_or(t->output, &e, e.o);
    }
    for (int m = 0; r->emits && m < r->variant->emits.n; m++) {
        if (!r->emits[m]) continue;
        int node = index_of(&t->normalize->nodes, r->variant->emits.data[m].value);
        double emit = t->normalize->value[node].f;
        r->emits[m][at] = !keys && isnan(emit) ? -INFINITY : emit; // a row without a key has no NaN
    }
}

void ref_mask(const RefRun *r, int b, int h, unsigned char *out) {
    Arena *a = arena_new();
    const Program *mask = clause(a, r->variant, CLAUSE_MASK);
    int32_t Sq = r->sizes[SIZE_SQ], Sk = r->sizes[SIZE_SK];
    Env e = {.run = r, .b = b, .h = h};
    for (int32_t i = 0; i < Sq; i++)
        for (e.kv_idx = 0; e.kv_idx < Sk; e.kv_idx++) {
            e.q_idx = i + r->sizes[SIZE_Q_OFFSET];
            *out++ = mask ? evaluate(mask, &e, 0).i != 0 : 1;
        }
    arena_free(a);
}

// ---- recurrence

typedef struct Recurrence {
    const RefRun *run;
    int32_t B, H, Hq, Hk, Hv, S;
    int D, Dv;
    Program *clause[CLAUSE_COUNT];
    // Of one step: the clauses' values.
    double *query, *key, *decay, *erase, *write, *bonus; // [D]
    double *value, *erased, *out;                        // [Dv]
    double *state;                                       // [D, Dv]
} Recurrence;

static Recurrence recurrence(Arena *a, const RefRun *r) {
    const int32_t *n = r->sizes;
    const Variant *v = r->variant;
    Recurrence t = {.run = r,
                    .B = n[RSIZE_B],
                    .H = n[RSIZE_H],
                    .Hq = n[RSIZE_HQ],
                    .Hk = n[RSIZE_HK],
                    .Hv = n[RSIZE_HV],
                    .S = n[RSIZE_S],
                    .D = v->D,
                    .Dv = v->Dv};
    for (int i = 0; i < CLAUSE_COUNT; i++)
        if (v->clause[i]) t.clause[i] = clause(a, v, (ClauseId)i);
    double **keys[] = {&t.query, &t.key, &t.decay, &t.erase, &t.write, &t.bonus};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) *keys[i] = ARENA_ARRAY(a, double, t.D);
    t.value = ARENA_ARRAY(a, double, t.Dv);
    t.erased = ARENA_ARRAY(a, double, t.Dv);
    t.out = ARENA_ARRAY(a, double, t.Dv);
    t.state = ARENA_ARRAY(a, double, (size_t)t.D *(size_t)t.Dv);
    return t;
}

static const double *vector(const double *x, const Recurrence *t, const Env *e, int32_t heads,
                            int width) {
    int64_t head = (int64_t)e->h * heads / t->H;
    return x + (((size_t)e->b * (size_t)heads + (size_t)head) * (size_t)t->S + (size_t)e->t) *
                   (size_t)width;
}

// Evaluates the clauses of a step.
static void step_values(const Recurrence *t, Env *e) {
    const double *q = vector(t->run->q, t, e, t->Hq, t->D),
                 *k = vector(t->run->k, t, e, t->Hk, t->D);
    const double *v = vector(t->run->v, t, e, t->Hv, t->Dv);
    e->sqq = inner(q, q, t->D);
    e->sqk = inner(k, k, t->D);
    e->sqv = inner(v, v, t->Dv);
    for (e->d = 0; e->d < t->D; e->d++) {
        e->q = q[e->d];
        e->k = k[e->d];
        t->query[e->d] = value_or(t->clause[CLAUSE_QUERY], e, e->q);
        t->key[e->d] = value_or(t->clause[CLAUSE_KEY], e, e->k);
        t->decay[e->d] = value_or(t->clause[CLAUSE_DECAY], e, 1);
        t->erase[e->d] = value_or(t->clause[CLAUSE_ERASE], e, 0);
        t->write[e->d] = value_or(t->clause[CLAUSE_WRITE], e, 0);
        t->bonus[e->d] = value_or(t->clause[CLAUSE_BONUS], e, 0);
    }
    for (e->e = 0; e->e < t->Dv; e->e++) {
        e->v = v[e->e];
        t->value[e->e] = value_or(t->clause[CLAUSE_VALUE], e, e->v);
    }
}

// out = query . (S_{t-1} + (bonus * key) (x) value); state becomes S_t; without a bonus out = query
// . S_t.
static void step_state(const Recurrence *t) {
    bool bonus = t->clause[CLAUSE_BONUS] != NULL, delta = t->clause[CLAUSE_WRITE] != NULL;
    for (int e = 0; e < t->Dv; e++) {
        t->erased[e] = t->out[e] = 0;
        for (int d = 0; delta && d < t->D; d++)
            t->erased[e] += t->erase[d] * t->state[d * t->Dv + e];
        for (int d = 0; d < t->D; d++) {
            double *s = &t->state[d * t->Dv + e], before = *s, added = t->key[d] * t->value[e];
            *s =
                t->decay[d] == 0 ? 0 : t->decay[d] * before; // 0 forgets all, even what is infinite
            if (delta) *s += t->write[d] * t->erased[e];
            *s += added;
            t->out[e] += t->query[d] * (bonus ? before + t->bonus[d] * added : *s);
        }
    }
}

static void recur(const Recurrence *t, int b, int h) {
    const RefRun *r = t->run;
    size_t head = (size_t)b * (size_t)t->H + (size_t)h,
           bytes = sizeof(double) * (size_t)t->D * (size_t)t->Dv;
    size_t nstate = (size_t)t->D * (size_t)t->Dv;
    memset(t->state, 0, bytes);
    if (r->state0) memcpy(t->state, r->state0 + head * nstate, bytes);
    Env e = {.run = r, .b = b, .h = h};
    for (e.t = 0; e.t < t->S; e.t++) {
        step_values(t, &e);
        step_state(t);
        e.sqo = inner(t->out, t->out, t->Dv);
        for (e.e = 0; r->o && e.e < t->Dv; e.e++) {
            e.o = t->out[e.e];
            r->o[(head * (size_t)t->S + (size_t)e.t) * (size_t)t->Dv + (size_t)e.e] =
                value_or(t->clause[CLAUSE_R_OUTPUT], &e, e.o);
        }
    }
    if (r->state) memcpy(r->state + head * nstate, t->state, bytes);
}

// ---- the public face

const char *ref_check(const RefRun *r) {
    const int32_t *n = r->sizes;
    bool attends = r->variant->kind == VARIANT_ATTENTION;
    for (int i = 0; i < r->variant->sizes.n; i++)
        if (n[i] < 0 && !(attends && i == SIZE_Q_OFFSET)) return "a size is negative";
    if (attends) {
        if (n[SIZE_HKV] < 1 || n[SIZE_HQ] % n[SIZE_HKV]) return "H is not a multiple of Hkv";
        return NULL;
    }
    for (int i = RSIZE_HQ; i <= RSIZE_HV; i++)
        if (n[i] < 1 || n[RSIZE_H] % n[i]) return "H is not a multiple of Hq, Hk and Hv";
    return NULL;
}

void ref_run(const RefRun *r) {
    assert(!ref_check(r));
    Arena *a = arena_new();
    if (r->variant->kind == VARIANT_ATTENTION) {
        Attention t = attention(a, r);
        for (int b = 0; b < t.B; b++)
            for (int h = 0; h < t.H; h++)
                for (int i = 0; i < t.Sq; i++) attend(&t, b, h, i);
    } else {
        Recurrence t = recurrence(a, r);
        for (int b = 0; b < t.B; b++)
            for (int h = 0; h < t.H; h++) recur(&t, b, h);
    }
    arena_free(a);
}
