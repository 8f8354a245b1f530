// expr.h: scalar expressions, hash-consed. One representation serves row programs, the bodies of tile maps, masks, loop
// bounds and launch geometry, so that one simplifier, one printer, one evaluator and one lowering serve them all.
//
// Nodes are immutable and unique in their pool: equal expressions are equal pointers. `id` counts creations and gives every
// walk a deterministic order. Sharing means a walk over a tree can be exponential: walk with a memo (ex_map, ex_visit).
#ifndef IR_EXPR_H
#define IR_EXPR_H

#include "arena.h"
#include "diag.h"
#include <stdbool.h>
#include <stdint.h>

typedef enum ExType { EX_BOOL, EX_I32, EX_F32 } ExType;

typedef enum ExOp {
#define OP(e, name, arity, typing, fix, cost) EX_##e,
#include "ops.def"
#undef OP
    EX_OP_COUNT
} ExOp;

typedef enum ExSym {
#define SYM(e, name, indexed) SYM_##e,
#include "syms.def"
#undef SYM
    SYM_COUNT
} ExSym;

enum { EX_MAX_RANK = 8 }; // extents of an input; a row of indices must fit a launch's metadata

typedef struct Ex Ex;
struct Ex {
    ExOp op;
    ExType type;
    uint32_t id;
    Span span; // of the first creation
    union {
        float f;   // CONST f32
        int32_t i; // CONST i32, bool (0 or 1)
        struct {
            ExSym sym;
            int index; // 0 when not indexed
        };
        struct {
            int input;   // LOAD: index into the program's inputs
            bool inside; // LOAD: every index is proved inside; otherwise a lowering clamps it
        };
    };
    uint64_t syms; // a bit for each kind of symbol in it (ExSym)
    int nargs;
    const Ex *args[]; // LOAD: the indices
};

typedef struct ExPool ExPool;
ExPool *ex_pool(Arena *a);
Arena *ex_arena(ExPool *p);

// Building does not simplify (ex_simplify in passes/ does): the text form must read back as what was printed.
const Ex *ex_f32(ExPool *p, float v);
const Ex *ex_i32(ExPool *p, int32_t v);
const Ex *ex_bool(ExPool *p, bool v);
const Ex *ex_sym(ExPool *p, ExSym sym, int index, ExType type); // fixed symbols: use ex_symbol
const Ex *ex_symbol(ExPool *p, ExSym sym); // an unindexed symbol, with its own type
const Ex *ex_load(ExPool *p, int input, ExType type, const Ex *const *idx, int n, bool inside);
// Any op but leaves and LOAD; asserts the typing of ops.def. For EX_CONV use ex_conv.
const Ex *ex_op(ExPool *p, ExOp op, const Ex *const *args, int n);
const Ex *ex_1(ExPool *p, ExOp op, const Ex *a);
const Ex *ex_2(ExPool *p, ExOp op, const Ex *a, const Ex *b);
const Ex *ex_select(ExPool *p, const Ex *c, const Ex *a, const Ex *b);
const Ex *ex_conv(ExPool *p, ExType to, const Ex *a); // the node itself where the type already fits
// The same node with other arguments (op, type, input, flags kept); the node itself where they are its own.
const Ex *ex_with_args(ExPool *p, const Ex *e, const Ex *const *args);
const Ex *ex_at(ExPool *p, const Ex *e, Span span); // gives a node without a place its place

// Rebuilds e bottom up, each shared node once: fn gets every node after its arguments were rebuilt and returns its
// replacement (itself to keep it).
typedef const Ex *(*ExMapFn)(void *ctx, ExPool *p, const Ex *e);
const Ex *ex_map(ExPool *p, const Ex *e, ExMapFn fn, void *ctx);
// Replaces a symbol by an expression.
const Ex *ex_subst(ExPool *p, const Ex *e, ExSym sym, int index, const Ex *by);
// Replaces an expression, wherever it stands in e, by another one.
const Ex *ex_replace(ExPool *p, const Ex *e, const Ex *what, const Ex *by);
// Calls fn once for every distinct node of e, arguments first.
void ex_visit(const Ex *e, void (*fn)(void *ctx, const Ex *e), void *ctx);
// The distinct nodes of some expressions, arguments before their users; the walk under all others.
int ex_order(Arena *a, const Ex *const *roots, int nroots, const Ex ***order);
// What a walk remembers of each node it has been to. All zero is empty.
typedef struct ExMemoSlot {
    const Ex *key;
    const void *value;
} ExMemoSlot;
typedef struct ExMemo {
    ExMemoSlot *slots;
    uint32_t cap, n;
} ExMemo;
bool ex_memo_has(const ExMemo *m, const Ex *key, const void **value); // value may be NULL
void *ex_memo_get(const ExMemo *m, const Ex *key);                    // NULL: not known
// A node over what its arguments became; each is known.
const Ex *ex_renewed(ExPool *p, const ExMemo *became, const Ex *e);
void ex_memo_put(Arena *a, ExMemo *m, const Ex *key, const void *value);
ExMemo *ex_simple(ExPool *p); // what simplifying made of the pool's expressions; in its arena
// The nodes of e that are not known, and not only under one that is; in the same order.
int ex_order_beyond(Arena *a, const ExMemo *known, const Ex *e, const Ex ***order);
int ex_weight(const Ex *e); // about how many instructions the node is, without its arguments
bool ex_any(const Ex *e, bool (*is)(void *ctx, const Ex *e), void *ctx); // of its nodes
int ex_count(const Ex *e);                                               // its distinct nodes
bool ex_uses(const Ex *e, ExSym sym, int index);                         // index -1: any
bool ex_holds(const Ex *e, const Ex *part);
bool ex_reads(const Ex *e);                        // an input
bool ex_is_sym(const Ex *e, ExSym sym, int index); // index -1: any
bool ex_is_f32(const Ex *e, float v);
bool ex_is_i32(const Ex *e, int32_t v);

const char *ex_op_name(ExOp op);
typedef enum ExCost { C_FREE, C_PLAIN, C_DIVIDE, C_LOAD, C_SPECIAL } ExCost;
ExCost ex_op_cost(ExOp op, ExType type); // of one element; type: the result's
double ex_identity(ExOp reduce);         // what a ROWMAX, ROWMIN or ROWSUM of nothing is
const char *ex_type_name(ExType t);

// Names of what indexed symbols and LOAD refer to, for the text form. NULL entries print as the symbol's own name and number.
typedef struct ExNames {
    const char *(*name)(void *ctx, ExSym sym, int index); // "Sq", "%x", "R0" ...
    const char *(*input)(void *ctx, int input);           // "bias"
    // And back; also scalar inputs.
    bool (*find)(void *ctx, const char *name, ExSym *sym, int *index, ExType *type);
    int (*find_input)(void *ctx, const char *name, ExType *type); // -1 when there is none
    void *ctx;
} ExNames;
// Infix with full parentheses: unambiguous, deterministic, and what ex_parse reads.
void ex_print(Text *out, const Ex *e, const ExNames *names);
void ex_print_most(Text *out, const Ex *e, const ExNames *names,
                   int most); // so many pieces, then "..."
// For people: as few parentheses as precedence allows (expr_pretty.c).
typedef enum ExForm { EX_TEXT, EX_MATHML, EX_TEX, EX_FORM_COUNT } ExForm;
const char *ex_form_name(ExForm form); // "text", "mathml", "tex"
// Reductions are calls, `rowsum(x)`; or go over all keys, or over those of a tile.
typedef enum ExOver { EX_OVER_CALL, EX_OVER_KEYS, EX_OVER_TILE } ExOver;
typedef struct ExStyle {
    ExForm form;
    int most; // names, numbers and signs, then dots; 0: some millions of text, some ten thousand otherwise
    ExOver over;
    const ExNames *names;
    // MathML: writes the attributes of a node's element, each after a space; NULL: none.
    void (*attributes)(void *ctx, Text *out, const Ex *e);
    void *ctx;
} ExStyle;
void ex_print_styled(Text *out, const Ex *e, const ExStyle *style); // MathML: what stands in <math>
void ex_print_pretty(Text *out, const Ex *e, const ExNames *names); // as text, reductions as calls
// Reads one expression at *s and moves *s past it. NULL and a message in *error (from the pool's arena) when it is not one.
const Ex *ex_parse(ExPool *p, const char **s, const ExNames *names, const char **error);

// Evaluation: f32 values as doubles. With `round` each operation's result is the nearest f32, and subnormal ones count as 0;
// with `math` it is what that target's code gives (math.h). Without: the float64 reference of a pass check. Indices and bools
// are exact.
typedef struct ExValue {
    union {
        double f;
        int32_t i; // i32, bool
    };
} ExValue;
typedef struct ExEnv {
    ExValue (*sym)(void *ctx, const Ex *e); // SYM
    // LOAD; indices as computed, not yet clamped.
    ExValue (*load)(void *ctx, const Ex *e, const int32_t *index);
    void *ctx;
    bool round;
    const struct Math *math; // where `round` is set; may be NULL
} ExEnv;
ExValue ex_eval(const Ex *e, const ExEnv *env);
// The same in two steps, for an expression that is evaluated many times. A plan may be run by one thread at a time.
typedef struct ExPlan ExPlan;
ExPlan *ex_plan(Arena *a, const Ex *e);
ExPlan *ex_planned(Arena *a, ExMemo *plans, const Ex *e); // once for each expression
ExValue ex_run(ExPlan *plan, const ExEnv *env);
// One op on values, as ops.def means it (the evaluator's and the constant folder's one definition). types: of the arguments.
ExValue ex_apply(ExOp op, ExType result, const ExType *types, const ExValue *args, bool round);

#endif
