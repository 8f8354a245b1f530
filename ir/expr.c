// expr.c: the pool of scalar expressions: creation, sharing, walking and rebuilding.
//
// In: an operation and its arguments. Out: the one node of the pool that stands for them.
// Holds afterwards: two nodes of a pool are equal exactly when their pointers are; an argument's id
// is below its user's. Walks keep their own stack: a chain of lets may be as deep as a program is
// long.
#include "ir/expr_ops.h"

#include <assert.h>
#include <math.h>
#include <string.h>

const ExOpInfo ex_ops[EX_OP_COUNT] = {
#define OP(e, name, arity, typing, fix, cost) {name, arity, typing, fix, cost},
#include "ops.def"
#undef OP
};

const ExSymInfo ex_syms[SYM_COUNT] = {
#define SYM(e, name, indexed) {name, indexed},
#include "syms.def"
#undef SYM
};

const char *ex_op_name(ExOp op) { return ex_ops[op].name; }

ExCost ex_op_cost(ExOp op, ExType type) {
    ExCost c = ex_ops[op].cost;
    return c == C_DIVIDE && type == EX_F32 ? C_SPECIAL : c;
}

double ex_identity(ExOp reduce) {
    assert(reduce == EX_ROWSUM || reduce == EX_ROWMAX || reduce == EX_ROWMIN);
    return reduce == EX_ROWSUM ? 0 : reduce == EX_ROWMAX ? -INFINITY : INFINITY;
}

const char *ex_type_name(ExType t) {
    static const char *const names[] = {[EX_BOOL] = "bool", [EX_I32] = "i32", [EX_F32] = "f32"};
    return names[t];
}

ExType ex_sym_type(ExSym s) {
    switch ((int)s) {
    case SYM_B:
    case SYM_H:
    case SYM_Q_IDX:
    case SYM_KV_IDX:
    case SYM_D_IDX:
    case SYM_T_IDX:
    case SYM_E_IDX:
    case SYM_SIZE:
    case SYM_STEP:
    case SYM_TILE:
    case SYM_POS:
    case SYM_LET:
    case SYM_WORKERS: return EX_I32;
    case SYM_VALID:
    case SYM_KEPT:
    case SYM_STAY:
    case SYM_MASK: return EX_BOOL;
    default: return EX_F32;
    }
}

bool ex_op_typed(ExOp op, const ExType *t, int n, ExType *result) {
    _Static_assert(EX_BAND < EX_SHL && EX_BOR < EX_SHL && EX_BXOR < EX_SHL && EX_SHL < EX_SHR,
                   "of the operations on bits those before the shifts take bools too");
    if (ex_ops[op].arity != n) return false;
    *result = n ? t[n - 1] : EX_F32;
    bool alike = true; // all of the last one's type; of a select all but the condition
    for (int i = ex_ops[op].typing == T_SEL; i < n; i++) alike &= t[i] == *result;
    switch (ex_ops[op].typing) {
    case T_NUM: return alike && *result != EX_BOOL;
    case T_F32: return alike && *result == EX_F32;
    case T_I32: return alike && *result == EX_I32;
    case T_BITS: return alike && *result != EX_F32 && (*result == EX_I32 || op < EX_SHL);
    case T_BOOL: return alike && *result == EX_BOOL;
    case T_SEL: return alike && t[0] == EX_BOOL;
    case T_RED: *result = EX_F32; return t[0] == EX_F32;
    case T_CMP: {
        bool ok = alike && (t[0] != EX_BOOL || op == EX_EQ || op == EX_NE);
        *result = EX_BOOL;
        return ok;
    }
    case T_CONV:
    case T_LEAF:
    case T_LOAD: return false;
    }
    return false;
}

// ---- the pool

struct ExPool {
    Arena *arena;
    const Ex **table; // open addressing; NULL is free
    uint32_t cap, n;  // cap is a power of two
    ExMemo simple;
};

ExPool *ex_pool(Arena *a) {
    ExPool *p = ARENA_NEW(a, ExPool);
    p->arena = a;
    p->cap = 256;
    p->table = ARENA_ARRAY(a, const Ex *, p->cap);
    return p;
}

ExMemo *ex_simple(ExPool *p) { return &p->simple; }

Arena *ex_arena(ExPool *p) { return p->arena; }

static uint32_t mix(uint32_t h, uint32_t x) {
    h = (h ^ x) * 0x9e3779b1u;
    return h ^ h >> 15;
}

// What a leaf holds, as two words: equal words and equal arguments are equal nodes.
static void payload(const Ex *e, uint32_t w[2]) {
    w[0] = w[1] = 0;
    if (e->op == EX_CONST) {
        w[0] = (uint32_t)e->i; // the bits, of an f32 too: -0 is not 0
    } else if (e->op == EX_SYM) {
        w[0] = (uint32_t)e->sym;
        w[1] = (uint32_t)e->index;
    } else if (e->op == EX_LOAD) {
        w[0] = (uint32_t)e->input;
        w[1] = e->inside;
    }
}

static uint32_t hash(const Ex *e, const Ex *const *args) {
    uint32_t w[2];
    payload(e, w);
    uint32_t h =
        mix(mix(mix((uint32_t)e->op * 4 + (uint32_t)e->type, w[0]), w[1]), (uint32_t)e->nargs);
    for (int i = 0; i < e->nargs; i++) h = mix(h, args[i]->id);
    return h;
}

static bool same(const Ex *a, const Ex *b, const Ex *const *bargs) {
    if (a->op != b->op || a->type != b->type || a->nargs != b->nargs) return false;
    uint32_t wa[2], wb[2];
    payload(a, wa);
    payload(b, wb);
    if (wa[0] != wb[0] || wa[1] != wb[1]) return false;
    for (int i = 0; i < a->nargs; i++)
        if (a->args[i] != bargs[i]) return false;
    return true;
}

static void put(ExPool *p, const Ex *e) {
    uint32_t i = hash(e, e->args) & (p->cap - 1);
    while (p->table[i]) i = (i + 1) & (p->cap - 1);
    p->table[i] = e;
}

static void grow(ExPool *p) {
    const Ex **old = p->table;
    uint32_t n = p->cap;
    p->cap *= 2;
    p->table = ARENA_ARRAY(p->arena, const Ex *, p->cap);
    for (uint32_t i = 0; i < n; i++)
        if (old[i]) put(p, old[i]);
}

// The node like `head` (its args excepted) with these arguments.
static const Ex *intern(ExPool *p, const Ex *head, const Ex *const *args) {
    uint32_t i = hash(head, args) & (p->cap - 1);
    for (; p->table[i]; i = (i + 1) & (p->cap - 1))
        if (same(p->table[i], head, args)) return p->table[i];
    size_t tail = sizeof(const Ex *) * (size_t)head->nargs;
    Ex *e = arena_alloc(p->arena, sizeof *e + tail);
    memcpy(e, head, sizeof *e);
    if (tail) memcpy(e->args, args, tail);
    e->id = p->n++;
    _Static_assert(SYM_COUNT <= 64, "each has a bit of Ex.syms");
    e->syms = e->op == EX_SYM ? UINT64_C(1) << e->sym : 0;
    for (int i = 0; i < e->nargs; i++) e->syms |= args[i]->syms;
    if (p->n > p->cap / 2) grow(p);
    put(p, e);
    return e;
}

// ---- creation

const Ex *ex_f32(ExPool *p, float v) {
    Ex e = {.op = EX_CONST, .type = EX_F32};
    e.f = v;
    if (isnan(v)) e.i = 0x7fc00000; // one NaN
    return intern(p, &e, NULL);
}

const Ex *ex_i32(ExPool *p, int32_t v) {
    Ex e = {.op = EX_CONST, .type = EX_I32};
    e.i = v;
    return intern(p, &e, NULL);
}

const Ex *ex_bool(ExPool *p, bool v) {
    Ex e = {.op = EX_CONST, .type = EX_BOOL};
    e.i = v;
    return intern(p, &e, NULL);
}

const Ex *ex_sym(ExPool *p, ExSym sym, int index, ExType type) {
    Ex e = {.op = EX_SYM, .type = type};
    e.sym = sym;
    e.index = index;
    return intern(p, &e, NULL);
}

const Ex *ex_symbol(ExPool *p, ExSym sym) {
    assert(ex_syms[sym].indexed != 1);
    return ex_sym(p, sym, 0, ex_sym_type(sym));
}

const Ex *ex_load(ExPool *p, int input, ExType type, const Ex *const *idx, int n, bool inside) {
    assert(n >= 1 && n <= EX_MAX_RANK);
    for (int i = 0; i < n; i++) assert(idx[i]->type == EX_I32);
    Ex e = {.op = EX_LOAD, .type = type, .nargs = n};
    e.input = input;
    e.inside = inside;
    return intern(p, &e, idx);
}

const Ex *ex_op(ExPool *p, ExOp op, const Ex *const *args, int n) {
    ExType types[3], result = EX_F32;
    assert(n <= 3);
    for (int i = 0; i < n; i++) types[i] = args[i]->type;
    bool typed = ex_op_typed(op, types, n, &result);
    assert(typed);
    (void)typed;
    Ex e = {.op = op, .type = result, .nargs = n};
    return intern(p, &e, args);
}

const Ex *ex_1(ExPool *p, ExOp op, const Ex *a) { return ex_op(p, op, &a, 1); }

const Ex *ex_2(ExPool *p, ExOp op, const Ex *a, const Ex *b) {
    const Ex *args[] = {a, b};
    return ex_op(p, op, args, 2);
}

const Ex *ex_select(ExPool *p, const Ex *c, const Ex *a, const Ex *b) {
    const Ex *args[] = {c, a, b};
    return ex_op(p, EX_SELECT, args, 3);
}

const Ex *ex_conv(ExPool *p, ExType to, const Ex *a) {
    if (a->type == to) return a;
    Ex e = {.op = EX_CONV, .type = to, .nargs = 1};
    return intern(p, &e, &a);
}

const Ex *ex_with_args(ExPool *p, const Ex *e, const Ex *const *args) {
    bool same = true;
    for (int k = 0; k < e->nargs; k++) same &= args[k] == e->args[k];
    if (same) return e;
    if (e->op == EX_LOAD) return intern(p, e, args);
    if (e->op == EX_CONV) return ex_at(p, ex_conv(p, e->type, args[0]), e->span);
    return ex_at(p, ex_op(p, e->op, args, e->nargs), e->span);
}

const Ex *ex_at(ExPool *p, const Ex *e, Span span) {
    (void)p;
    // The place is no part of what a node means, so giving it one late changes nothing for those
    // who share it.
    if (!e->span.file) ((Ex *)e)->span = span;
    return e;
}

// ---- walking

static uint32_t memo_slot(const ExMemo *m, const Ex *key) {
    uint32_t i = mix(0, key->id) & (m->cap - 1);
    while (m->slots[i].key && m->slots[i].key != key) i = (i + 1) & (m->cap - 1);
    return i;
}

bool ex_memo_has(const ExMemo *m, const Ex *key, const void **value) {
    if (!m->cap) return false;
    uint32_t i = memo_slot(m, key);
    if (m->slots[i].key && value) *value = m->slots[i].value;
    return m->slots[i].key != NULL;
}

void *ex_memo_get(const ExMemo *m, const Ex *key) {
    const void *value = NULL;
    ex_memo_has(m, key, &value);
    return (void *)value;
}

void ex_memo_put(Arena *a, ExMemo *m, const Ex *key, const void *value) {
    if (m->n * 2 >= m->cap) {
        ExMemo old = *m;
        m->cap = old.cap ? old.cap * 2 : 16;
        m->slots = arena_alloc(a, sizeof *m->slots * m->cap);
        for (uint32_t i = 0; i < old.cap; i++)
            if (old.slots[i].key) m->slots[memo_slot(m, old.slots[i].key)] = old.slots[i];
    }
    uint32_t i = memo_slot(m, key);
    m->n += !m->slots[i].key;
    m->slots[i].key = key;
    m->slots[i].value = value;
}

// Nodes by their ids, which are below that of the last root.
typedef struct Seen {
    uint64_t *bits;
    const ExMemo *known;
} Seen;

// Whether it is met for the first time.
static bool is_new(Seen *s, const Ex *e) {
    uint64_t *word = &s->bits[e->id / 64], bit = UINT64_C(1) << e->id % 64;
    if (*word & bit || ex_memo_has(s->known, e, NULL)) return false;
    *word |= bit;
    return true;
}

static int order_of(Arena *a, const ExMemo *known, const Ex *const *roots, int nroots,
                    const Ex ***order) {
    typedef struct Frame {
        const Ex *e;
        int next; // argument to look at
    } Frame;
    VEC(Frame) stack = {0};
    VEC(const Ex *) out = {0};
    uint32_t last = 0;
    for (int r = 0; r < nroots; r++)
        if (roots[r]->id > last) last = roots[r]->id;
    Seen seen = {ARENA_ARRAY(a, uint64_t, last / 64 + 1), known};
    for (int r = 0; r < nroots; r++) {
        if (!is_new(&seen, roots[r])) continue;
        Frame first = {roots[r], 0};
        VEC_PUSH(a, &stack, first);
        while (stack.n) {
            Frame *top = &stack.data[stack.n - 1];
            if (top->next == top->e->nargs) {
                VEC_PUSH(a, &out, top->e);
                stack.n--;
                continue;
            }
            Frame arg = {top->e->args[top->next++], 0};
            if (is_new(&seen, arg.e)) VEC_PUSH(a, &stack, arg);
        }
    }
    *order = out.data;
    return out.n;
}

int ex_order(Arena *a, const Ex *const *roots, int nroots, const Ex ***order) {
    return order_of(a, &(ExMemo){0}, roots, nroots, order);
}

int ex_order_beyond(Arena *a, const ExMemo *known, const Ex *e, const Ex ***order) {
    return order_of(a, known, &e, 1, order);
}

const Ex *ex_renewed(ExPool *p, const ExMemo *became, const Ex *e) {
    const Ex *args[EX_MAX_RANK];
    for (int k = 0; k < e->nargs; k++) args[k] = ex_memo_get(became, e->args[k]);
    return ex_with_args(p, e, args);
}

const Ex *ex_map(ExPool *p, const Ex *e, ExMapFn fn, void *ctx) {
    Arena *scratch = arena_new();
    const Ex **order, *value = e;
    int n = ex_order(scratch, &e, 1, &order);
    ExMemo memo = {0};
    for (int i = 0; i < n; i++) {
        value = fn(ctx, p, ex_renewed(p, &memo, order[i]));
        ex_memo_put(scratch, &memo, order[i], value);
    }
    arena_free(scratch);
    return value; // e is the last in its order
}

typedef struct Subst {
    ExSym sym;
    int index;
    const Ex *by;
} Subst;

static const Ex *subst_one(void *ctx, ExPool *p, const Ex *e) {
    const Subst *s = ctx;
    (void)p;
    if (e->op != EX_SYM || e->sym != s->sym || e->index != s->index) return e;
    assert(e->type == s->by->type);
    return s->by;
}

static bool has_kind(const Ex *e, ExSym sym) { return e->syms >> sym & 1; }

const Ex *ex_subst(ExPool *p, const Ex *e, ExSym sym, int index, const Ex *by) {
    if (!has_kind(e, sym)) return e;
    Subst s = {sym, index, by};
    return ex_map(p, e, subst_one, &s);
}

typedef struct Replace {
    const Ex *what, *by;
} Replace;

static const Ex *replace_one(void *ctx, ExPool *p, const Ex *e) {
    const Replace *r = ctx;
    (void)p;
    return e == r->what ? r->by : e;
}

const Ex *ex_replace(ExPool *p, const Ex *e, const Ex *what, const Ex *by) {
    Replace r = {what, by};
    return ex_map(p, e, replace_one, &r);
}

void ex_visit(const Ex *e, void (*fn)(void *ctx, const Ex *e), void *ctx) {
    Arena *scratch = arena_new();
    const Ex **order;
    int n = ex_order(scratch, &e, 1, &order);
    for (int i = 0; i < n; i++) fn(ctx, order[i]);
    arena_free(scratch);
}

int ex_weight(const Ex *e) {
    if (e->op >= EX_EXP && e->op <= EX_POW) {
        bool one = e->op == EX_EXP2 || e->op == EX_SQRT || e->op == EX_RSQRT || e->op == EX_RCP;
        return one ? 6 : 35;
    }
    if (e->op == EX_LOAD) return 10 * (e->nargs + 1);
    return e->op == EX_DIV || e->op == EX_MOD ? 10 : 1;
}

bool ex_any(const Ex *e, bool (*is)(void *ctx, const Ex *e), void *ctx) {
    Arena *scratch = arena_new();
    const Ex **order;
    int n = ex_order(scratch, &e, 1, &order), i = 0;
    while (i < n && !is(ctx, order[i])) i++;
    arena_free(scratch);
    return i < n;
}

int ex_count(const Ex *e) {
    Arena *scratch = arena_new();
    const Ex **order;
    int n = ex_order(scratch, &e, 1, &order);
    arena_free(scratch);
    return n;
}

static bool is_use(void *ctx, const Ex *e) {
    const Subst *s = ctx;
    return ex_is_sym(e, s->sym, s->index);
}

bool ex_uses(const Ex *e, ExSym sym, int index) {
    if (!has_kind(e, sym)) return false;
    return index < 0 || ex_any(e, is_use, &(Subst){sym, index, NULL});
}

static bool is_it(void *ctx, const Ex *e) { return e == ctx; }

bool ex_holds(const Ex *e, const Ex *part) { return ex_any(e, is_it, (void *)part); }

static bool is_read(void *ctx, const Ex *e) {
    (void)ctx;
    return e->op == EX_LOAD;
}

bool ex_reads(const Ex *e) { return ex_any(e, is_read, NULL); }

bool ex_is_sym(const Ex *e, ExSym sym, int index) {
    return e->op == EX_SYM && e->sym == sym && (index < 0 || e->index == index);
}

bool ex_is_f32(const Ex *e, float v) { return e->op == EX_CONST && e->type == EX_F32 && e->f == v; }
bool ex_is_i32(const Ex *e, int32_t v) {
    return e->op == EX_CONST && e->type == EX_I32 && e->i == v;
}
