// lower.c: a variant's typed AST to scalar mathematics.
//
// In: a Variant. Out: a RowProgram, or of a recurrence a RecProgram, over one pool of expressions.
// Holds afterwards: equal expressions are one node, so that equal reductions are one reduction,
// numbered so that each refers to earlier ones only, ROW_MAX_REDUCES at most; reductions that
// nothing uses are gone.
//
//     normalize(s) { let m = rowmax(s); let e = exp(s - m); return e / rowsum(exp(s - m)); }
//     ->  m = rowmax(s);  r0 = rowsum(exp(s - m));  weight = exp(s - m) / r0
#include "frontend/frontend.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const int symbols[] = {
#define TSYM(e, name, type, row, sym, doc) sym,
#include "symbols.def"
#undef TSYM
};

static const char *const symbol_names[] = {
// of the IR: a reduction of such a name could not be read back
#define SYM(e, name, indexed) name,
#include "ir/syms.def"
#undef SYM
};

typedef struct Lower {
    Arena *arena, *scratch;
    ExPool *pool;
    const Variant *v;
    RowProgram *p; // NULL of a recurrence
} Lower;

static Lower lower(Arena *a, const Variant *v) {
    return (Lower){.arena = a, .scratch = arena_new(), .pool = ex_pool(a), .v = v};
}

// ---- reductions

static bool name_is_taken(const Lower *l, const char *name) {
    const RowProgram *p = l->p;
    for (int i = 0; i < p->reduces.n; i++)
        if (!strcmp(p->reduces.data[i].name, name)) return true;
    for (int i = 0; i < p->inputs.n; i++)
        if (!strcmp(p->inputs.data[i].name, name)) return true;
    for (int i = 0; i < p->sizes.n; i++)
        if (!strcmp(p->sizes.data[i], name)) return true;
    for (int i = 0; i < SYM_T_IDX; i++) // those behind are of recurrences
        if (!strcmp(symbol_names[i], name)) return true;
    for (int i = 0; i < EX_OP_COUNT; i++)
        if (!strcmp(ex_op_name((ExOp)i), name)) return true;
    static const char *const words[] = {"true", "false", "inf", "nan", "f32", "i32", "bool"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(words[i], name)) return true;
    return false;
}

static const char *reduction_name(const Lower *l, const char *wanted) {
    if (wanted && !name_is_taken(l, wanted)) return wanted;
    for (int k = wanted ? 2 : 0;; k++) {
        const char *name = arena_printf(l->p->arena, "%s%d",
                                        wanted ? arena_printf(l->scratch, "%s_", wanted) : "r", k);
        if (!name_is_taken(l, name)) return name;
    }
}

static const Ex *lower_reduction(Lower *l, const Tx *t, const Ex *f) {
    RowProgram *p = l->p;
    for (int i = 0; i < p->reduces.n; i++)
        if (p->reduces.data[i].op == t->op && p->reduces.data[i].f == f)
            return ex_sym(l->pool, SYM_R, i, EX_F32);
    RowReduce r = {.op = t->op,
                   .f = f,
                   .name = reduction_name(l, t->name),
                   .span = t->span,
                   .written = t->name,
                   .call = t->call};
    VEC_PUSH(l->arena, &p->reduces, r);
    return ex_sym(l->pool, SYM_R, p->reduces.n - 1, EX_F32);
}

// ---- leaves

static const Ex *lower_const(ExPool *pool, const Tx *t) {
    if (t->type == TX_F32) return ex_f32(pool, t->value.written);
    return t->type == TX_I32 ? ex_i32(pool, t->value.i) : ex_bool(pool, t->value.i != 0);
}

static const Ex *lower_sym(Lower *l, const Tx *t) {
    ExPool *pool = l->pool;
    if (t->sym == TS_S) return l->p->score;
    if (t->sym == TS_SIZE) return ex_sym(pool, SYM_SIZE, t->index, EX_I32);
    if (t->sym == TS_DOT || t->sym == TS_SQQ || t->sym == TS_SQK)
        return ex_sym(pool, (ExSym)symbols[t->sym], t->index, EX_F32);
    if (t->sym == TS_SCALAR) return ex_sym(pool, SYM_SCALAR, t->index, (ExType)t->type);
    assert(symbols[t->sym] >= 0);
    return ex_symbol(pool, (ExSym)symbols[t->sym]);
}

// q_idx - q_offset, the row of a query in a tensor
static bool is_query_row(const Tx *i) {
    const Tx *o = i->op == EX_SUB ? i->args[1] : NULL;
    return o && tx_is_sym(i->args[0], TS_Q_IDX) && tx_is_sym(o, TS_SIZE) &&
           o->index == SIZE_Q_OFFSET;
}

// Is the index inside its extent by what it is? (More is proved later, from ranges.)
static bool index_is_inside(const Variant *v, const Tx *i, const TxExtent *x) {
    bool recurs = v->kind == VARIANT_RECURRENCE;
    if (i->known) return x->size < 0 && i->value.i >= 0 && i->value.i < x->value;
    if (tx_is_sym(i, TS_D)) return x->size < 0 && x->value >= (recurs ? v->D : v->Dv);
    if (tx_is_sym(i, TS_E)) return x->size < 0 && x->value >= v->Dv;
    return (tx_is_sym(i, TS_B) && x->size == SIZE_B) ||
           (tx_is_sym(i, TS_H) && x->size == (recurs ? (int)RSIZE_H : (int)SIZE_HQ)) ||
           (tx_is_sym(i, TS_T) && x->size == RSIZE_S) ||
           (tx_is_sym(i, TS_KV_IDX) && x->size == SIZE_SK) ||
           (is_query_row(i) && x->size == SIZE_SQ);
}

static const Ex *lower_load(Lower *l, const Tx *t, const Ex *const *args) {
    const TxInput *in = &l->v->inputs.data[t->index];
    bool inside = true;
    for (int i = 0; i < t->nargs; i++) inside &= index_is_inside(l->v, t->args[i], &in->extent[i]);
    return ex_load(l->pool, t->index, (ExType)t->type, args, t->nargs, inside);
}

// ---- expressions

static const Ex *lower_node(Lower *l, const Tx *t, const Ex *const *args) {
    if (t->known && !l->p) return lower_const(l->pool, t); // thousands of steps see its rounding
    switch ((int)t->op) {
    case EX_CONST: return lower_const(l->pool, t);
    case EX_SYM: return lower_sym(l, t);
    case EX_LOAD: return lower_load(l, t, args);
    case EX_CONV: return ex_conv(l->pool, (ExType)t->type, args[0]);
    case EX_ROWMAX:
    case EX_ROWMIN:
    case EX_ROWSUM: return lower_reduction(l, t, args[0]);
    default: return ex_op(l->pool, t->op, args, t->nargs);
    }
}

// Lowers all roots together, so that what they share is one; a NULL root stays NULL.
static void lower_exprs(Lower *l, const Tx *const *roots, int n, const Ex **out) {
    TxNodes nodes = tx_nodes(l->scratch, roots, n);
    uint32_t end = nodes.n ? nodes.data[nodes.n - 1]->id + 1 : 0;
    const Ex **done = ARENA_ARRAY(l->scratch, const Ex *, end);
    for (int i = 0; i < nodes.n; i++) {
        const Tx *t = nodes.data[i];
        const Ex *args[EX_MAX_RANK];
        for (int k = 0; k < t->nargs; k++) args[k] = done[t->args[k]->id];
        done[t->id] = ex_at(l->pool, lower_node(l, t, args), t->span);
    }
    for (int i = 0; i < n; i++) out[i] = roots[i] ? done[roots[i]->id] : NULL;
}

static const Ex *lower_clause(Lower *l, ClauseId id, const Ex *absent) {
    const Ex *e;
    lower_exprs(l, &l->v->clause[id], 1, &e);
    return e ? e : absent;
}

static void lower_normalize(Lower *l) {
    const Variant *v = l->v;
    int n = v->emits.n + 1;
    const Tx **roots = ARENA_ARRAY(l->scratch, const Tx *, n);
    const Ex **out = ARENA_ARRAY(l->scratch, const Ex *, n);
    roots[0] = v->clause[CLAUSE_NORMALIZE];
    for (int i = 1; i < n; i++) roots[i] = v->emits.data[i - 1].value;
    lower_exprs(l, roots, n, out);
    l->p->weight = out[0];
    for (int i = 1; i < n; i++) {
        RowEmit e = {v->emits.data[i - 1].name, out[i], v->emits.data[i - 1].span};
        VEC_PUSH(l->p->arena, &l->p->emits, e);
    }
}

static void lower_interface(const Lower *l, SizeNames *sizes, RowInput **inputs, int *n, int *cap) {
    VEC(RowInput) all = {0};
    for (int i = 0; i < l->v->sizes.n; i++) VEC_PUSH(l->arena, sizes, l->v->sizes.data[i]);
    for (int i = 0; i < l->v->inputs.n; i++) {
        const TxInput *t = &l->v->inputs.data[i];
        RowInput in = {.name = t->name,
                       .dtype = t->dtype,
                       .rank = t->rank,
                       .grad = t->grad,
                       .bare_q = t->bare_q,
                       .rows = t->rows,
                       .span = t->span};
        for (int k = 0; k < t->rank; k++)
            in.extent[k] = t->extent[k].size < 0
                               ? ex_i32(l->pool, t->extent[k].value)
                               : ex_sym(l->pool, SYM_SIZE, t->extent[k].size, EX_I32);
        VEC_PUSH(l->arena, &all, in);
    }
    *inputs = all.data;
    *n = all.n;
    *cap = all.cap;
}

// ---- rows

static bool is_dot(const Ex *e) { return e->op == EX_SYM && e->sym == SYM_DOT; }

// A sum of dots is one chain of products.
static const Ex *merge_dots(void *ctx, ExPool *pool, const Ex *e) {
    RowProgram *p = ctx;
    if (e->op != EX_ADD || !is_dot(e->args[0]) || !is_dot(e->args[1])) return e;
    RowDot sum = {0};
    for (int i = 0; i < 2; i++) {
        const RowDot *d = &p->dots.data[e->args[i]->index];
        for (int k = 0; k < d->pairs.n; k++) VEC_PUSH(p->arena, &sum.pairs, d->pairs.data[k]);
    }
    VEC_PUSH(p->arena, &p->dots, sum);
    return ex_sym(pool, SYM_DOT, p->dots.n - 1, EX_F32);
}

static void lower_rows(Lower *l) {
    RowProgram *p = l->p;
    row_whole(p);
    for (int side = 0; side < ROW_SIDES; side++)
        for (int i = 1; i < l->v->rows[side].n; i++)
            VEC_PUSH(l->arena, &p->rows[side], l->v->rows[side].data[i]);
    for (int i = 1; i < l->v->dots.n; i++) {
        RowDot d = {0};
        VEC_PUSH(l->arena, &d.pairs, l->v->dots.data[i]);
        VEC_PUSH(l->arena, &p->dots, d);
    }
}

RowProgram *fe_lower(Arena *a, Diags *d, const Variant *v) {
    assert(v->kind == VARIANT_ATTENTION);
    Lower l = lower(a, v);
    RowProgram *p = l.p = ARENA_NEW(a, RowProgram);
    *p = (RowProgram){.arena = a,
                      .pool = l.pool,
                      .name = v->name,
                      .span = v->span,
                      .D = v->D,
                      .Dv = v->Dv,
                      .v_in_k = v->v_in_k};
    lower_interface(&l, &p->sizes, &p->inputs.data, &p->inputs.n, &p->inputs.cap);
    lower_rows(&l);
    p->score = ex_map(p->pool, lower_clause(&l, CLAUSE_SCORE, NULL), merge_dots, p);
    p->modified = lower_clause(&l, CLAUSE_MODIFY, p->score);
    p->mask = lower_clause(&l, CLAUSE_MASK, ex_bool(p->pool, true));
    lower_normalize(&l);
    p->output = lower_clause(&l, CLAUSE_OUTPUT, ex_symbol(p->pool, SYM_O));
    arena_free(l.scratch);
    if (p->reduces.n <= ROW_MAX_REDUCES) return p;
    diag_error(d, p->reduces.data[ROW_MAX_REDUCES].span,
               "'%s' has %d different reductions over the keys, %d at most are possible", v->name,
               p->reduces.n, ROW_MAX_REDUCES);
    return NULL;
}

RecProgram *fe_lower_recurrence(Arena *a, const Variant *v) {
    assert(v->kind == VARIANT_RECURRENCE);
    Lower l = lower(a, v);
    RecProgram *p = ARENA_NEW(a, RecProgram);
    *p = (RecProgram){
        .arena = a, .pool = l.pool, .name = v->name, .span = v->span, .D = v->D, .Dv = v->Dv};
    lower_interface(&l, &p->sizes, &p->inputs.data, &p->inputs.n, &p->inputs.cap);
    p->query = lower_clause(&l, CLAUSE_QUERY, ex_symbol(l.pool, SYM_Q));
    p->key = lower_clause(&l, CLAUSE_KEY, ex_symbol(l.pool, SYM_K));
    p->value = lower_clause(&l, CLAUSE_VALUE, ex_symbol(l.pool, SYM_V));
    p->decay = lower_clause(&l, CLAUSE_DECAY, ex_f32(l.pool, 1));
    p->erase = lower_clause(&l, CLAUSE_ERASE, NULL);
    p->write = lower_clause(&l, CLAUSE_WRITE, NULL);
    p->bonus = lower_clause(&l, CLAUSE_BONUS, NULL);
    p->output = lower_clause(&l, CLAUSE_R_OUTPUT, ex_symbol(l.pool, SYM_O));
    arena_free(l.scratch);
    return p;
}
