// typed.h: the typed AST: what sema makes of a variant. Functions, lets, constants and dims are
// gone; what is left are expressions over the symbols of the clause, the sizes and the inputs, with
// every conversion written out.
//
// Nodes are a graph, not a tree: a `let` that is used twice is one node. A node's arguments have
// smaller ids than itself, so walks go over ids rather than down the graph, whose depth has no
// bound but the limit on operations. Read by lower.c (to a RowProgram or a RecProgram) and, independently of it, by
// reference.c (float64).
#ifndef FRONTEND_TYPED_H
#define FRONTEND_TYPED_H

#include "ir/rec.h"

typedef enum TxType {
    TX_BOOL = EX_BOOL,
    TX_I32 = EX_I32,
    TX_F32 = EX_F32,
    TX_TILE, // a whole row of q or k
    TX_BAD   // of what was reported already
} TxType;

typedef enum TxSym {
#define TSYM(e, name, type, row, sym, doc) TS_##e,
#include "symbols.def"
#undef TSYM
    TS_COUNT
} TxSym;

// A value. An f32 has two: `written` is what language.md's operations give one by one in IEEE f32,
// and everything that decides reads it (comparisons, floor, i32(), %); `f` is the same formula in
// float64, which takes the branches and whole numbers that `written` decided. Subnormals are 0 in both.
typedef struct TxValue {
    double f;
    union {
        float written;
        int32_t i; // i32, bool
    };
} TxValue;

typedef struct Tx Tx;
struct Tx {
    ExOp op;
    TxType type;
    bool row;      // a value per key rather than one
    bool known;    // a constant: `value` is what it comes to
    TxValue value; // where it is f32, f and written are equal
    uint32_t id;
    Span span;
    TxSym sym;         // SYM
    int index;         // SYM of a size, scalar, row, dot or sqnorm: which; LOAD: of which input
    const char *name;  // a reduction: the `let` that it stands in, or NULL
    Span call;         // a reduction: see RowReduce
    const Tx *floored; // i32: a division in it whose fraction an f32 would have kept, or NULL
    int nargs;
    Tx **args;
};

typedef struct TxPool {
    Arena *arena;
    uint32_t next;
    int ops; // operations made so far; implicit conversions count as none
} TxPool;

typedef struct TxExtent {
    int size; // index into the variant's sizes; -1: the constant `value`
    int32_t value;
} TxExtent;

typedef struct TxInput {
    const char *name;
    Dtype dtype;
    int rank;
    TxExtent extent[EX_MAX_RANK];
    bool grad;
    bool bare_q; // see RowInput
    bool rows;   // likewise
    Span span;
} TxInput;

// Of an attention: channels of a query's or a key's row, of q or k or of a row input. What dots and
// sqnorms are made of; TILE_Q and TILE_K, SQQ and SQK have the row's index.
typedef RowOperand TxRow;
// How many channels a row of the input has, and whose; 0: it is no row input.
int tx_row_width(const TxInput *in, RowSide *side);
// What the language sees of an element, or of a scalar: an i8, which programs read as an f32, is an i32.
Tx *tx_of_input(TxPool *p, const TxInput *in, Tx *x);

typedef struct TxEmit {
    const char *name;
    const Tx *value; // f32, not a row
    Span span;
} TxEmit;

// How a built-in function is typed (builtins.def).
typedef enum Typing { BI_F32, BI_NUM, BI_CONV, BI_ROW, BI_DOT, BI_SQNORM } Typing;

typedef enum VariantKind { VARIANT_ATTENTION, VARIANT_RECURRENCE } VariantKind;

typedef enum ClauseId {
#define CLAUSE(e, ...) CLAUSE_##e,
#include "clauses.def"
#undef CLAUSE
    CLAUSE_COUNT
} ClauseId;

typedef struct Variant {
    VariantKind kind;
    const char *name;
    Span span;
    int D, Dv;
    SizeNames sizes;
    VEC(TxInput) inputs;
    const Tx *clause[CLAUSE_COUNT]; // NULL: absent
    bool per_channel_decay;         // decay was written with d
    bool v_in_k;                    // an attention that takes no v: v is the first Dv channels of k
    VEC(TxRow) rows[ROW_SIDES];     // of an attention: the first of each is all of q, of k
    VEC(RowPair) dots;              // DOT's; the first is dot(q, k)
    VEC(TxEmit) emits;
} Variant;

typedef VEC(Variant *) Variants;

Tx *tx_bad(TxPool *p);
Tx *tx_f32(TxPool *p, double v, Span span);
Tx *tx_i32(TxPool *p, int32_t v, Span span);
Tx *tx_bool(TxPool *p, bool v, Span span);
Tx *tx_value(TxPool *p, TxType type, TxValue v, Span span);
Tx *tx_sym(TxPool *p, TxSym sym, int index, Span span); // of its table's type
// An operation; computed at once where all arguments are known.
Tx *tx_op(TxPool *p, ExOp op, TxType type, Tx *const *args, int n, Span span);
Tx *tx_conv(TxPool *p, TxType to, Tx *a, bool counts, Span span); // counts: as an operation
Tx *tx_load(TxPool *p, int input, TxType type, Tx *const *idx, int n, Span span);

TxValue tx_number(double x); // an f32: x in float64, and rounded to f32
// One operation on values, as language.md's "Values" says: the constant folder's and the
// reference's one definition, apart from the IR's ex_apply on purpose. from: the type of the
// arguments (of the last for SELECT).
TxValue tx_apply(ExOp op, TxType type, TxType from, const TxValue *args);

// The nodes that the roots (NULLs allowed) are made of, each once, arguments before what uses them.
typedef VEC(const Tx *) TxNodes;
TxNodes tx_nodes(Arena *a, const Tx *const *roots, int n);

const char *tx_sym_name(TxSym sym);
bool tx_is_sym(const Tx *e, TxSym sym);
const char *tx_type_name(TxType t);

#endif
