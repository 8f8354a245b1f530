// diag.h: diagnostics. Stages add to a list; only the command prints it.
//
// A span is a range of bytes in one of the compilation's source files. Every AST node and every IR op carries one.
// A user's mistake is a diagnostic; ours is an assert.
#ifndef IR_DIAG_H
#define IR_DIAG_H

#include "arena.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct Span {
    uint16_t file;       // index into Diags.files; 0 is "no place"
    uint32_t start, end; // bytes, end exclusive
} Span;

typedef struct Source {
    const char *name; // as the user wrote it
    const char *text;
    size_t n;
} Source;

typedef enum Severity { DIAG_ERROR, DIAG_WARNING, DIAG_NOTE } Severity;

typedef struct Diag {
    Severity severity;
    Span span;
    const char *message;
    Span fix_at; // what would mend it: this text in place of that; NULL: not known
    const char *fix;
    struct Diag *note; // a second place that matters, or NULL
    struct Diag *next;
} Diag;

// Beyond it errors are counted and not kept.
enum { DIAG_MAX_ERRORS = 50 };

typedef struct Diags {
    Arena *arena;
    VEC(Source) files; // files.data[0] is a placeholder
    Diag *first, *last;
    int errors;
    bool internal; // one of them is a fault of the compiler
} Diags;

Diags diag_list(Arena *a); // an empty one
uint16_t diag_add_file(Diags *d, const char *name, const char *text, size_t n);
Diag *diag_error(Diags *d, Span at, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
#define diag_refuse(...) (diag_error(__VA_ARGS__), false) // to return
Diag *diag_warning(Diags *d, Span at, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
// Takes back the warnings about a place.
void diag_forget(Diags *d, Span within);
// Adds a note to `to` (NULL: a note that stands for itself, such as the compiler's "needs two sweeps").
Diag *diag_note(Diags *d, Diag *to, Span at, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
// Says what would mend it, for editors. Replaces nothing by itself. text may be NULL: not known.
void diag_fix(Diags *d, Diag *g, Span at, const char *text);
// The source at a span, to stand in a message; NULL where it is too much for that, or not all plain text of one line.
const char *diag_quote(const Diags *d, Span at);
// Where a byte of a file is, as editors count: from 0, columns in units of UTF-16.
typedef struct DiagPosition {
    uint32_t line, column;
} DiagPosition;
DiagPosition diag_position(const Diags *d, uint16_t file, uint32_t at);
// `file:line:col: error: message`, the source line and a caret; in the order of the source.
void diag_print(const Diags *d, FILE *out);

#endif
