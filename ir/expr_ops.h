// expr_ops.h: the rows of ops.def and syms.def as data, for what reads, prints, types and verifies
// expressions.
#ifndef IR_EXPR_OPS_H
#define IR_EXPR_OPS_H

#include "expr.h"

typedef enum ExTyping {
    T_NUM,
    T_F32,
    T_I32,
    T_BITS,
    T_CMP,
    T_BOOL,
    T_SEL,
    T_CONV,
    T_LEAF,
    T_LOAD,
    T_RED
} ExTyping;
typedef enum ExFix { X_INFIX, X_PREFIX, X_CALL, X_OTHER } ExFix;

typedef struct ExOpInfo {
    const char *name;
    int arity; // -1: any
    ExTyping typing;
    ExFix fix;
    ExCost cost;
} ExOpInfo;
extern const ExOpInfo ex_ops[EX_OP_COUNT];

typedef struct ExSymInfo {
    const char *name;
    int indexed; // as in syms.def
} ExSymInfo;
extern const ExSymInfo ex_syms[SYM_COUNT];
// Of an indexed symbol: what the text form takes where no table of names says otherwise.
ExType ex_sym_type(ExSym s);

// Whether op takes arguments of these types, and what it gives. False for leaves, LOAD and CONV,
// which say their own type.
bool ex_op_typed(ExOp op, const ExType *types, int n, ExType *result);

#endif
