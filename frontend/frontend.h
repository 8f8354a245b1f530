// frontend.h: the front end's one public face: text to typed AST, to row and recurrence programs, and
// the float64 reference of both.
//
//     Module *m = fe_load(arena, diags, &options, &status); // NULL unless status is FE_OK
//     Variant *v = fe_find(m, "gemma");
//     RowProgram *p = fe_lower(arena, diags, v);            // NULL with a diagnostic: not possible
//     ref_run(&run);                                        // reference.h
//
// Nothing here prints, exits or keeps a global; everything lives in the arena.
#ifndef FRONTEND_FRONTEND_H
#define FRONTEND_FRONTEND_H

#include "frontend/typed.h"

// The command's exit status for each (language.md).
typedef enum FeStatus {
    FE_OK = 0,
    FE_SOURCE = 1, // mistakes in the source
    FE_USAGE = 2,  // an unknown -D name, or a value that it cannot have
    FE_SYSTEM = 3  // the main file cannot be read
} FeStatus;

typedef struct FeDefine {
    const char *name, *value; // -DNAME=VALUE
} FeDefine;

// Reads a whole file into the arena. False where there is none or it cannot be read; *why then says
// so ("No such file ..."). It must refuse, not truncate, what is larger than AST_MAX_BYTES.
typedef bool (*FeRead)(void *ctx, Arena *a, const char *path, const char **text, size_t *n,
                       const char **why);

typedef struct FeOptions {
    const char *path; // the main file: read, or the name that diagnostics give to `text`
    const char *text; // NULL: read `path`
    size_t text_bytes;
    const char *stdlib;      // the folder of std.*; NULL: there is none
    const char *const *dirs; // -I, in order
    int ndirs;
    const FeDefine *defines;
    int ndefines;
    struct Uses *uses; // filled with what names mean (uses.h); NULL: nobody asks
    bool module;       // a file that holds no variant is no mistake: others import it
    FeRead read;       // NULL: the file system
    void *read_ctx;
} FeOptions;

typedef struct Module {
    const char *path;
    Variants variants; // in the order of the source
    const struct AstModule *ast;
} Module;

Module *fe_load(Arena *a, Diags *d, const FeOptions *options, FeStatus *status);
// NULL: no such variant. NULL as name: the only one, where there is only one.
Variant *fe_find(const Module *m, const char *name);
void fe_print_ast(Text *out, const Module *m); // --emit=ast

// The text in its one canonical form (docs/format.md). False where it does not parse: d says why,
// and nothing is put. `path` is the name that diagnostics give to it.
bool fe_format(Arena *a, Diags *d, const char *path, const char *text, size_t n, Text *out);

// An attention as a row program; NULL with a diagnostic that names it: not possible.
RowProgram *fe_lower(Arena *a, Diags *d, const Variant *v);
RecProgram *fe_lower_recurrence(Arena *a, const Variant *v);

#endif
