// uses.h: which name of a source means what: for tools that ask about a place in it.
//
// Filled by fe_load where FeOptions.uses asks for it, also of a source with mistakes: of all that could
// be read. Spans are of the Diags that fe_load was given; the main file is file 1 where those were new.
#ifndef FRONTEND_USES_H
#define FRONTEND_USES_H

#include "frontend/ast.h"
#include "frontend/names.h"
#include "frontend/typed.h"

typedef enum DeclKind {
    DECL_BUILTIN,  // a function
    DECL_CONSTANT, // true, false, inf
    DECL_CONST,
    DECL_FN,
    DECL_NORMALIZATION,
    DECL_VARIANT, // an attention or a recurrence
    DECL_MODULE,  // of a module
    DECL_SIZE,
    DECL_DIM,
    DECL_INPUT,
    DECL_CLAUSE, // of a variant
    DECL_PARAM,
    DECL_LET,
    DECL_EMIT // of a body
} DeclKind;

typedef struct Body Body;

typedef struct Decl {
    DeclKind kind;
    const char *name;
    Span span;           // file 0: built in; of a MODULE: the start of its file
    const AstItem *item; // what it is of, or stands in; NULL: the compiler made it
    int builtin;         // BUILTIN: row of builtins.def; CLAUSE: of clauses.def
    Tx *value;           // CONSTANT, CONST, SIZE, DIM, scalar INPUT: what the name stands for
    // PARAM, LET, EMIT, and the result of a FN, NORMALIZATION or CLAUSE: its value where it was first
    // computed, NULL where it was not; and whether it had another type elsewhere.
    const Tx *seen;
    bool varies;
    int input;    // INPUT
    bool used;    // INPUT, SIZE: its name stands in a clause
    bool refused; // INPUT: its name may not be an input's; others may have it
    int slot;     // PARAM, LET
    Body *body;   // FN, NORMALIZATION
} Decl;

typedef struct Scope Scope;
struct Scope {
    NameMap names; // of Decl
    const Scope *parent;
};

typedef struct Use {
    Span span;
    Decl *decl;
    bool defines; // here it is defined; a Dv that is not written is defined nowhere
} Use;

typedef struct ScopeAt { // names that may be used in a part of a source
    Span span;
    const Scope *scope;
} ScopeAt;

typedef struct Uses {
    VEC(Use) all;
    VEC(ScopeAt) scopes;  // outer ones after inner ones
    VEC(Span) imported;   // by file: the path in the import that brought it
    const AstModule *ast; // of the main file
} Uses;

const char *decl_kind_name(const Decl *d); // "a function"

#endif
