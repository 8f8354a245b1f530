// outline.c: long expressions as functions, so that the time to compile one grows with its length.
//
// In: an expression too long to stand in the kernel once per element, and the current element. Out:
// a call of a function made once for all elements, which is
//
//     value f(leaves..., arguments)   a part, or   { part(.., frame); part(.., frame); .. }
//
// where a part is a run of the expression's nodes, about PART of weight: LLVM takes more than
// linear time for a function, so none is long. Holds afterwards: a part reads what an earlier one
// computed from the frame, which holds only what is alive between parts; leaves are the symbols
// that differ by element or place, and what is known already; the kernel's arguments are in memory.
#include "codegen/cg.h"
#include "ir/expr_ops.h"

#include <assert.h>

enum {
    LONG = 1500,         // weight of a body that is not built in place
    LONG_COPIES = 24000, // the same, over all elements it would be repeated for
    PART = 1000,         // weight of one function
    SHARED = 3000,       // weight from which mathematical functions are calls too
    MAX_FRAME = 1 << 18, // bytes
    MOST_WHOLE =
        64, // i32 operations on a loop's own variable, each of which LLVM's loop strength reduction looks at with all others
};

static int64_t weight_of_all(const Ex *const *order, int n) {
    int64_t w = 0;
    for (int i = 0; i < n; i++) w += ex_weight(order[i]);
    return w;
}

static int whole_numbers(const Ex *const *order, int n) {
    int count = 0;
    for (int i = 0; i < n; i++) count += order[i]->type == EX_I32 && order[i]->nargs > 0;
    return count;
}

bool cg_is_long(const Cg *cg, const Ex *const *order, int n, const CgElem *at) {
    int64_t w = weight_of_all(order, n);
    bool reduced = cg->target->kind == KIND_HOST && at->lanes == 1;
    if (reduced && whole_numbers(order, n) > MOST_WHOLE) return true;
    return w > LONG || w * (at->copies ? at->copies : 1) > LONG_COPIES;
}

// ---- the parts of an expression

typedef struct Outline Outline;
struct Outline {
    VEC(const Ex *) leaves;
    int lanes, lane_axis;
    bool arguments; // reads some
    bool lane_first;
    Ty *types; // of the parameters: leaves, lane_first, arguments, frame
    Ty result, type;
    Val fn;
    Outline *next; // of the same expression, for other elements
};

typedef struct Node {
    int part, last; // the part that computes it, and the last one that reads it
    int slot;       // in the frame; -1: none
    Ty type;
} Node;

typedef struct Parts {
    Outline *o;
    CgElem *outer;
    const Ex **order;
    int n, nparts;
    CgBuild *build;
    Node *node;    // by place in order
    ExMemo place;  // expression to its Node
    VEC(int) free; // slots
    int slots;
} Parts;

// A sequence's sizes are no arguments of the kernel.
static bool by_element(const Cg *cg, const Ex *e) {
    bool argument = e->op == EX_SYM && e->sym == SYM_SIZE && !cg->p->sizes.data[e->index].own;
    return e->op == EX_SYM && !argument && e->sym != SYM_SCALAR;
}

static Node *node_of(const Parts *p, const Ex *e) { return ex_memo_get(&p->place, e); }

// Deals the nodes out to parts; constants and arguments are made wherever they are used.
static void deal(Cg *cg, Parts *p, bool shared) {
    int weight = 0, part = 0;
    p->node = ARENA_ARRAY(cg->arena, Node, p->n);
    for (int i = 0; i < p->n; i++) {
        const Ex *e = p->order[i];
        if (!e->nargs && e->op != EX_LOAD) continue;
        if (weight > PART) part++, weight = 0;
        weight += shared && ex_weight(e) > 30 ? 6 : ex_weight(e);
        p->node[i] = (Node){part, part, -1, NULL};
        ex_memo_put(cg->arena, &p->place, e, &p->node[i]);
        for (int k = 0; k < e->nargs; k++) {
            Node *arg = node_of(p, e->args[k]);
            if (arg) arg->last = part;
        }
    }
    p->nparts = part + 1;
}

static Val slot_address(Cg *cg, const Parts *p, int slot) {
    Val at = cg_i64(cg, (int64_t)slot * 4 * p->o->lanes);
    Val frame = LLVMGetLastParam(cg->fn);
    return LLVMBuildInBoundsGEP2(cg->b, cg->i8, frame, &at, 1, "");
}

static void keep(Cg *cg, Parts *p, Node *node, Val v) {
    node->type = LLVMTypeOf(v);
    node->slot = p->free.n ? p->free.data[--p->free.n] : p->slots++;
    cg_store(cg, v, slot_address(cg, p, node->slot));
}

static CgElem inner_element(Cg *cg, const Parts *p) {
    const Outline *o = p->o;
    CgElem at = {.lanes = o->lanes,
                 .lane_axis = o->lane_axis,
                 .param = p->outer->param,
                 .pos = p->outer->pos};
    for (int i = 0; i < o->leaves.n; i++)
        ex_memo_put(cg->arena, &at.memo, o->leaves.data[i], LLVMGetParam(cg->fn, (unsigned)i));
    if (o->lane_first) at.lane_first = LLVMGetParam(cg->fn, (unsigned)o->leaves.n);
    cg->arguments = LLVMGetParam(cg->fn, (unsigned)(o->leaves.n + o->lane_first));
    return at;
}

static void fetch(Cg *cg, Parts *p, CgElem *at, const Ex *e) {
    const Node *node = node_of(p, e);
    if (!node || ex_memo_has(&at->memo, e, NULL)) return;
    Val v = cg_load(cg, node->type, slot_address(cg, p, node->slot));
    ex_memo_put(cg->arena, &at->memo, e, v);
}

// Nodes [from, to) of the order, all of one part or leaves of it.
static Val build_part(Cg *cg, Parts *p, Ty type, int part, int from, int to) {
    CgOutside o;
    Val fn = cg_function_begin(cg, &o, "attn_part", type), v = NULL;
    CgElem at = inner_element(cg, p);
    for (int i = from; i < to; i++) {
        const Ex *e = p->order[i];
        if (!node_of(p, e)) continue;
        for (int k = 0; k < e->nargs; k++) fetch(cg, p, &at, e->args[k]);
        v = p->build(cg, e, &at);
        if (p->node[i].last > part) keep(cg, p, &p->node[i], v);
    }
    bool last = part == p->nparts - 1;
    cg_function_end(cg, &o, last ? cg_widen(cg, v, p->o->lanes) : NULL);
    return fn;
}

static void release(Cg *cg, Parts *p, int part, int to) {
    for (int i = 0; i < to; i++) {
        Node *node = &p->node[i];
        if (node->slot < 0 || node->last != part || !node->type) continue;
        VEC_PUSH(cg->arena, &p->free, node->slot);
        node->slot = -1;
    }
}

static Ty result_type(Cg *cg, const Ex *e, int lanes) {
    return cg_vector(e->type == EX_F32 ? cg->f32 : e->type == EX_I32 ? cg->i32 : cg->i1, lanes);
}

static void call_parts(Cg *cg, Parts *p, const Val *parts, Ty part, Ty last) {
    CgOutside o;
    Val fn = cg_function_begin(cg, &o, "attn_body", p->o->type);
    int n = (int)LLVMCountParams(fn);
    Val *args = ARENA_ARRAY(cg->arena, Val, n + 1);
    LLVMGetParams(fn, args);
    Ty frame = LLVMArrayType2(cg->i8, (uint64_t)p->slots * 4 * (uint64_t)p->o->lanes);
    args[n] = cg_alloca(cg, frame, "frame");
    LLVMSetAlignment(args[n], cg->hooks->stack ? 16 : 64);
    for (int i = 0; i + 1 < p->nparts; i++)
        LLVMBuildCall2(cg->b, part, parts[i], args, (unsigned)n + 1, "");
    Val r = LLVMBuildCall2(cg->b, last, parts[p->nparts - 1], args, (unsigned)n + 1, "");
    cg_function_end(cg, &o, r);
    p->o->fn = fn;
}

static void build_parts(Cg *cg, Parts *p) {
    Outline *o = p->o;
    unsigned n = (unsigned)(o->leaves.n + o->lane_first + 1);
    Ty last = LLVMFunctionType(o->result, o->types, n + 1, false);
    Ty part = LLVMFunctionType(cg->void_, o->types, n + 1, false);
    o->type = LLVMFunctionType(o->result, o->types, n, false);
    Val *parts = ARENA_ARRAY(cg->arena, Val, p->nparts);
    for (int i = 0, from = 0, to; i < p->nparts; i++, from = to) {
        for (to = from; to < p->n; to++) {
            const Node *node = node_of(p, p->order[to]);
            if (node && node->part > i) break;
        }
        parts[i] = build_part(cg, p, i == p->nparts - 1 ? last : part, i, from, to);
        release(cg, p, i, to);
    }
    call_parts(cg, p, parts, part, last);
    if ((int64_t)p->slots * 4 * o->lanes > MAX_FRAME)
        diag_error(
            cg->diags, (Span){0},
            "a score's computation keeps %d numbers at once, more than fit a thread's memory",
            p->slots);
}

// ---- the call

static void find_leaves(Cg *cg, Outline *o, const CgElem *at, const Ex **order, int n) {
    ExMemo seen = {0};
    for (int i = 0; i < n; i++) {
        const Ex *e = order[i];
        o->arguments |= e->op == EX_LOAD || (e->op == EX_SYM && !by_element(cg, e));
        for (int k = -1; k < e->nargs; k++) {
            const Ex *x = k < 0 ? e : e->args[k];
            bool known = k >= 0 && x->op != EX_CONST && ex_memo_has(&at->memo, x, NULL);
            if ((!known && !by_element(cg, x)) || ex_memo_has(&seen, x, NULL)) continue;
            ex_memo_put(cg->arena, &seen, x, NULL);
            VEC_PUSH(cg->arena, &o->leaves, x);
        }
    }
}

// What the function is given; false: it was made for other elements.
static bool give(Cg *cg, const Outline *o, CgElem *at, CgBuild *build, Val *args) {
    if (o->lanes != at->lanes || o->lane_axis != at->lane_axis) return false;
    if (o->lane_first != (at->lane_first != NULL)) return false;
    int n = 0;
    for (; n < o->leaves.n; n++) {
        const Ex *e = o->leaves.data[n];
        if (!by_element(cg, e) && !ex_memo_has(&at->memo, e, NULL)) return false;
        args[n] = build(cg, e, at);
        if (o->types && LLVMTypeOf(args[n]) != o->types[n]) return false;
    }
    if (o->lane_first) args[n++] = at->lane_first;
    args[n] = o->arguments ? cg_arguments(cg) : LLVMConstNull(cg->ptr);
    return true;
}

static Val call(Cg *cg, const Outline *o, Val *args) {
    unsigned n = (unsigned)(o->leaves.n + o->lane_first + 1);
    return LLVMBuildCall2(cg->b, o->type, o->fn, args, n, "");
}

Val cg_outlined(Cg *cg, const Ex *e, CgElem *at, CgBuild *build) {
    for (const Outline *o = ex_memo_get(&cg->outlines, e); o; o = o->next) {
        Val *args = ARENA_ARRAY(cg->arena, Val, o->leaves.n + 2);
        if (give(cg, o, at, build, args)) return call(cg, o, args);
    }
    return NULL;
}

Val cg_outline(Cg *cg, const Ex *e, CgElem *at, CgBuild *build, const Ex **order, int n) {
    Outline *o = ARENA_NEW(cg->arena, Outline);
    o->lanes = at->lanes, o->lane_axis = at->lane_axis, o->lane_first = at->lane_first != NULL;
    find_leaves(cg, o, at, order, n);
    Val *args = ARENA_ARRAY(cg->arena, Val, o->leaves.n + 2);
    bool given = give(cg, o, at, build, args);
    assert(given);
    (void)given;
    int nargs = o->leaves.n + o->lane_first + 1;
    o->types = ARENA_ARRAY(cg->arena, Ty, nargs + 1);
    for (int i = 0; i < nargs; i++) o->types[i] = LLVMTypeOf(args[i]);
    o->types[nargs] = LLVMPointerTypeInContext(cg->c, cg->hooks->stack);
    o->result = result_type(cg, e, at->lanes);
    Parts parts = {.o = o, .outer = at, .order = order, .n = n, .build = build};
    bool shared = cg->share_math;
    cg->share_math = weight_of_all(order, n) > SHARED;
    deal(cg, &parts, cg->share_math);
    build_parts(cg, &parts);
    cg->share_math = shared;
    o->next = ex_memo_get(&cg->outlines, e);
    ex_memo_put(cg->arena, &cg->outlines, e, o);
    return call(cg, o, args);
}
