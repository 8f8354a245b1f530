// sema.h: what the parts of the checker share: declarations, scopes, bodies as code, and the
// elaborator. Private to sema.c (modules), variant.c (attentions and recurrences), resolve.c
// (names) and elab.c (types, inlining).
//
// A body goes two steps. resolve.c binds its names once, where it stands, and lays it out as
// postfix code. elab.c runs that code with typed values for its parameters, once for each call,
// which inlines and types it. Code rather than a tree, so that inlining recurses by calls only (at
// most SEMA_MAX_CALLS deep) and never by the nesting of expressions.
#ifndef FRONTEND_SEMA_H
#define FRONTEND_SEMA_H

#include "frontend/ast.h"
#include "frontend/frontend.h"
#include "frontend/names.h"
#include "frontend/uses.h"

enum {
    SEMA_MAX_CALLS = 256,   // depth: a stack frame of the elaborator each
    SEMA_MAX_IMPORTS = 256, // depth: a stack frame of the loader each
    SEMA_MAX_INPUTS = 64,   // each is a kernel argument; a kernel's parameters are limited to 4 KB
    SEMA_MAX_OPS = 100000   // of a variant: what a person can mean; it bounds every later pass
};

typedef enum BodyKind {
    BODY_CONST,
    BODY_DIM,
    BODY_FN,
    BODY_NORMALIZATION,
    BODY_NORMALIZE,
    BODY_CLAUSE
} BodyKind;

typedef enum InstrOp {
    I_VALUE, // pushes decl's value, or the literal
    I_SLOT,  // pushes a parameter or let
    I_UNARY,
    I_BINARY,
    I_SHORT, // between the operands of && and ||
    I_THEN,
    I_ELSE,
    I_COND, // after the condition, between the branches, after them
    I_CALL,
    I_BUILTIN,
    I_INDEX,
    I_ROW,   // pushes the pair's row of decl, a row input
    I_SLICE, // of a row: n operands, the end left out where there are 2
    I_BAD,   // pops n, pushes a bad value
    I_LET,   // pops into a slot
    I_EMIT
} InstrOp;

typedef struct Instr {
    InstrOp op;
    Span span;
    AstOp oper;
    int n; // arguments; the slot
    Decl *decl;
    Tx *value;        // of a literal
    const char *name; // EMIT, LET; NULL: not to be emitted
} Instr;

struct Body {
    const char *name;
    VEC(Instr) code;
    VEC(Decl *) slots; // the parameters, then the lets
    Decl *decl;        // FN, NORMALIZATION, CLAUSE: what it is the body of; NULL: of none of these
    int nparams;       // -1: not known, after a syntax error
    int nslots;
    int depth; // of calls inside it
    bool bad;  // it cannot be inlined: broken, or calls too deep
};

typedef struct SourceFile SourceFile;

typedef struct Sema {
    Arena *arena;
    Diags *diags;
    const FeOptions *options;
    TxPool tx;
    Scope builtins;
    NameMap files;     // of SourceFile by path
    bool *define_used; // of options->defines
    FeStatus status;
    int import_depth;
    int first_op;         // of tx.ops: where the variant or constant at hand began
    bool unwritten;       // what is checked is not in the source: `dim Dv = D;`
    bool over_ops;        // it has passed SEMA_MAX_OPS, and nothing more is built of it
    const AstModule *ast; // being checked
    const AstItem *item;  // the item of it being checked
} Sema;

// --- scopes (resolve.c) ---
Decl *scope_find(const Scope *s, const char *name);
// Adds a declaration, or reports that the name is taken (false).
bool scope_define(Sema *s, Scope *scope, Decl *d);
void sema_init_builtins(Sema *s);
const char *
sema_habit(const char *name); // what is said where other languages have the name, or NULL
// For tools (uses.h): a name, and the names that may be used in a span.
void sema_use(Sema *s, Span at, Decl *d, bool defines);
void sema_scope(Sema *s, Span at, const Scope *scope);

// --- bodies (resolve.c) ---
// d: what is defined by the item, for uses.h.
Body *resolve_body(Sema *s, const Scope *outer, BodyKind kind, const AstItem *item, Decl *d);
Body *resolve_broken(Sema *s, const char *name); // of a function with a syntax error in it
Body *resolve_expr(Sema *s, const Scope *outer, BodyKind kind, const AstExpr *e, const char *name);

// --- elaboration (elab.c) ---
typedef struct Elab Elab;
// variant: NULL outside of one. Its inputs say what an index means; bare_q of them is set here.
Elab *elab_new(Sema *s, Variant *variant);
// The operations of a variant or of a constant of the module are counted from here.
void sema_begin_ops(Sema *s);
// Inlines a body. The result's type is TX_BAD after a mistake, which was reported.
Tx *elab_run(Elab *e, const Body *b, Tx *const *args);
// Converts to bool or f32, or reports; `what` is "the result of 'mask'".
Tx *elab_coerce(Elab *e, TxType to, Tx *v, Span span, const char *what);
typedef struct ElabEmit {
    TxEmit emit;
    bool own;         // written in the clause itself, not in a normalization that it calls
    const char *from; // the body
} ElabEmit;
typedef VEC(ElabEmit) ElabEmits;
ElabEmits *elab_emits(Elab *e);

// A mistake in a function is told once: was this said at this place already?
bool sema_said(const Diags *d, Span at, const char *message);

// The module of the library that defines the name, or NULL: what an `import` was forgotten for.
// (sema.c)
const char *sema_library_module(Sema *s, const char *name);

// --- what compiles and is hardly meant (warn.c) ---
// The clause's parameters have names of other places. Whether that was said.
bool warn_places(Sema *s, const AstItem *item, const char *clause, const TxSym *params, int n);
// A mask or modify that looks at the pair only by its batch entry and head.
void warn_pair(Sema *s, const AstItem *item, ClauseId id, const Tx *result, const TxSym *params,
               int n);
// Lets that nothing reads, of a body without mistakes.
void warn_lets(Sema *s, const Body *b);
void warn_size_of_others(Sema *s, const Variant *v, const AstName *name);
// Of a variant without mistakes: what its clauses compute, and the inputs that they do not read.
void warn_variant(Sema *s, const Variant *v, const AstItem *item, const Scope *scope);

// --- variants (variant.c) ---
Variant *sema_variant(Sema *s, const Scope *module, const AstItem *item);

// Of a name that a clause does not know: " (it is a parameter: mask(b, h, q_idx))", or NULL.
const char *variant_name_hint(Sema *s, const char *clause, const char *name);
// Whether it is a parameter of this clause.
bool variant_clause_takes(const Sema *s, const char *clause, const char *name);

// --- the value of -DNAME=VALUE, if there is one for the name (sema.c) ---
// A const that is i32 may be made f32. Marks it used; a value that does not read as `type` is a
// usage error and gives a bad node.
Tx *sema_define(Sema *s, const char *name, TxType type, bool is_const, Span span);
bool sema_is_defined(const Sema *s, const char *name);

#endif
