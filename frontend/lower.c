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
    if (tx_is_sym(i, TS_D)) return x->size < 0 && x->value >= (v->D > v->Dv ? v->D : v->Dv);
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

// Of q, or of k, which clauses change: alike in all pairs of a dot.
static bool is_own(const RowProgram *p, const Ex *dot, RowSide side) {
    return p->rows[side].data[p->dots.data[dot->index].pairs.data[0].row[side]].input < 0;
}

// A sum of dots that clauses change alike is one chain of products.
static const Ex *merge_dots(void *ctx, ExPool *pool, const Ex *e) {
    RowProgram *p = ctx;
    if (e->op != EX_ADD || !is_dot(e->args[0]) || !is_dot(e->args[1])) return e;
    for (int side = 0; side < ROW_SIDES && p->changes; side++)
        if (is_own(p, e->args[0], (RowSide)side) != is_own(p, e->args[1], (RowSide)side)) return e;
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

// ---- clauses that change elements
//
// What a clause gives is a multiple of the element. A factor that is the same along a row of q or k is one of dot and sqnorm, of v one
// of the weight; the same for all rows of a head, one of q's channels or of the output.

typedef struct Factors {
    ExPool *pool;
    ExSym x;
    const Ex *row, *channel; // NULL: 1
    const Ex *mixed;         // depends on both; NULL: none
    const Ex *wrong;         // is no multiple of the element; NULL: none
} Factors;

static const Ex *times(ExPool *pool, const Ex *a, const Ex *b) {
    return !a ? b : !b ? a : ex_2(pool, EX_MUL, a, b);
}

// e / x; NULL: 1.
static const Ex *multiple(Factors *f, const Ex *e) {
    const Ex *a = e->nargs ? e->args[0] : NULL, *b = e->nargs > 1 ? e->args[1] : NULL,
             *one = ex_f32(f->pool, 1);
    bool first = a && ex_uses(a, f->x, -1), second = b && ex_uses(b, f->x, -1);
    if (e->op == EX_SYM && e->sym == f->x) return NULL;
    if (e->op == EX_MUL && first != second)
        return times(f->pool, multiple(f, first ? a : b), first ? b : a);
    if (e->op == EX_DIV && first && !second) {
        const Ex *of = multiple(f, a);
        return ex_2(f->pool, EX_DIV, of ? of : one, b);
    }
    if (e->op == EX_NEG) return times(f->pool, multiple(f, a), ex_f32(f->pool, -1));
    f->wrong = e;
    return NULL;
}

static void split(Factors *f, const Ex *e, bool below) {
    if (e->op == EX_MUL || e->op == EX_DIV) {
        split(f, e->args[0], below);
        split(f, e->args[1], below != (e->op == EX_DIV));
        return;
    }
    bool channel = ex_uses(e, SYM_D_IDX, 0);
    bool row = ex_uses(e, SYM_Q_IDX, 0) || ex_uses(e, SYM_KV_IDX, 0) || ex_uses(e, SYM_SQQ, -1) ||
               ex_uses(e, SYM_SQK, -1) || ex_uses(e, SYM_SQV, -1);
    const Ex **to = channel ? &f->channel : &f->row;
    if (channel && row) f->mixed = e;
    *to = below ? ex_2(f->pool, EX_DIV, *to ? *to : ex_f32(f->pool, 1), e) : times(f->pool, *to, e);
}

// h is there the head of k and v.
static const Ex *key_head(ExPool *pool, const Ex *e) {
    const Ex *groups = ex_sym(pool, SYM_SIZE, SIZE_HKV, EX_I32),
             *all = ex_sym(pool, SYM_SIZE, SIZE_HQ, EX_I32);
    const Ex *h = ex_2(pool, EX_DIV, ex_2(pool, EX_MUL, ex_symbol(pool, SYM_H), groups), all);
    return ex_subst(pool, e, SYM_H, 0, h);
}

static Factors factors(Lower *l, ClauseId id, ExSym x, Diags *d) {
    static const char *const names[] = {"query", "key", "value"};
    Factors f = {.pool = l->pool, .x = x};
    const Ex *e = lower_clause(l, id, NULL), *all = e ? multiple(&f, e) : NULL;
    const char *name = names[id - CLAUSE_A_QUERY];
    l->p->changes |= e != NULL;
    if (all && !f.wrong) split(&f, all, false);
    if (f.wrong)
        diag_error(
            d, f.wrong->span,
            "what '%s' gives is a multiple of the element: products and quotients of it; what is "
            "added to it is added before the call",
            name);
    else if (f.mixed)
        diag_error(
            d, f.mixed->span,
            "a factor of '%s' that depends on position and channel together has no kernel yet: "
            "multiply before the call",
            name);
    else if (f.row && ex_uses(f.row, SYM_SQV, -1))
        diag_error(
            d, f.row->span,
            "'value' has no sqnorm: v is normalized before the call, or an input has its norms, "
            "'input n: f32[B, Hkv, Sk];'");
    for (int i = 0; i < 2 && id != CLAUSE_A_QUERY; i++) {
        const Ex **to = i ? &f.channel : &f.row;
        if (*to) *to = key_head(l->pool, *to);
    }
    return f;
}

typedef struct Changed {
    const RowProgram *p;
    const Ex *row[ROW_SIDES];
} Changed;

static const Ex *change(void *ctx, ExPool *pool, const Ex *e) {
    const Changed *c = ctx;
    if (e->op != EX_SYM) return e;
    for (int side = 0; side < ROW_SIDES; side++) {
        ExSym norm = side == ROW_QUERIES ? SYM_SQQ : SYM_SQK;
        const Ex *f = c->row[side];
        if (f && e->sym == norm && c->p->rows[side].data[e->index].input < 0)
            return times(pool, e, times(pool, f, f));
    }
    const Ex *f = e;
    if (!is_dot(e)) return e;
    for (int side = 0; side < ROW_SIDES; side++)
        if (c->row[side] && is_own(c->p, e, (RowSide)side)) f = times(pool, f, c->row[side]);
    return f;
}

static const Ex *changed_score(Lower *l, const Ex *score, Diags *d) {
    RowProgram *p = l->p;
    Factors q = factors(l, CLAUSE_A_QUERY, SYM_Q, d), k = factors(l, CLAUSE_A_KEY, SYM_K, d);
    Changed c = {p, {q.row, k.row}};
    p->channel[ROW_QUERIES] = q.channel, p->channel[ROW_KEYS] = k.channel;
    for (int side = 0; side < ROW_SIDES; side++)
        if (p->channel[side] && ex_uses(score, side == ROW_QUERIES ? SYM_SQQ : SYM_SQK, -1))
            diag_error(d, score->span,
                       "sqnorm in 'score' of a row whose channels have factors of their own has no "
                       "kernel yet");
    score = ex_map(p->pool, score, merge_dots, p);
    return p->changes ? ex_map(p->pool, score, change, &c) : score;
}

static void change_values(Lower *l, Diags *d) {
    RowProgram *p = l->p;
    Factors v = factors(l, CLAUSE_A_VALUE, SYM_V, d);
    p->weight = times(p->pool, p->weight, v.row);
    p->gates = v.row != NULL;
    if (!v.channel) return;
    if (ex_uses(p->output, SYM_SQO, 0))
        diag_error(
            d, p->output->span,
            "sqnorm(o) of values whose channels have factors of their own has no kernel yet");
    p->output = ex_subst(p->pool, p->output, SYM_O, 0,
                         ex_2(p->pool, EX_MUL, ex_symbol(p->pool, SYM_O), v.channel));
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
    int errors = d->errors;
    for (int i = CLAUSE_A_QUERY; i <= CLAUSE_A_KEY; i++) p->changes |= v->clause[i] != NULL;
    p->score = changed_score(&l, lower_clause(&l, CLAUSE_SCORE, NULL), d);
    p->modified = lower_clause(&l, CLAUSE_MODIFY, p->score);
    p->mask = lower_clause(&l, CLAUSE_MASK, ex_bool(p->pool, true));
    lower_normalize(&l);
    p->output = lower_clause(&l, CLAUSE_OUTPUT, ex_symbol(p->pool, SYM_O));
    change_values(&l, d);
    arena_free(l.scratch);
    if (d->errors > errors) return NULL;
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
