// explain.h: a derivation as mathematics: sections of lines, a line of prose and formulas. One structure, which is printed as
// text, as MathML and as TeX (explain_print.c), and part by part by the language service.
//
// A primed name is the value after a tile was added, the bare one before it; m~ is a running state of which the finished m is
// a function, s~ the score without its scale. What stands in more than one formula has a name of its own, p.
#ifndef PASSES_EXPLAIN_H
#define PASSES_EXPLAIN_H

#include "passes/derive/chunk.h"
#include "passes/derive/derive.h"

typedef struct ExplainPart { // prose; or a formula, `name = value` where it has a name
    const char *prose;
    const Ex *name, *value;
} ExplainPart;

typedef struct ExplainLine {
    bool note;           // not an equation by itself
    const char *defines; // what an equation is about; NULL: nothing
    Span span;           // where its formula comes from
    VEC(ExplainPart) parts;
} ExplainLine;

typedef struct ExplainSection {
    const char *
        id; // "row", "blocking", "sweep", "end", "combine", "mask", "backward"; "step", "chunk" of a recurrence
    const char *title;
    ExOver over; // of its reductions
    VEC(ExplainLine) lines;
} ExplainSection;

typedef struct ExplainName { // what SYM_PARAM stands for
    const char *name;
    Span span;
} ExplainName;

typedef struct Explanation {
    Arena *arena;
    ExNames program;    // names of its sizes and inputs
    const Stream *s;    // of an attention
    const Chunk *chunk; // of a recurrence
    VEC(ExplainName) names;
    VEC(ExplainSection) sections;
} Explanation;

// In the arena of the stream's row.
Explanation *pass_explain(const Stream *s);
Explanation *pass_explain_chunk(const RecProgram *written, const Chunk *c); // in its arena

// As the explanation names them, in the row's arena.
const char *pass_state_name(const Stream *s, int i);
const char *pass_shift_name(const Stream *s, int i);

typedef struct ExplainForm {
    ExForm form;
    int most;                                            // as of ExStyle
    void (*attributes)(void *ctx, Text *out, Span span); // likewise; NULL: none
    void *ctx;
} ExplainForm;

// A formula alone; of MathML a <math> element. Prose as it is, escaped where the form needs it.
void explain_part(Text *out, const Explanation *x, const ExplainSection *s, const ExplainLine *line,
                  const ExplainPart *part, const ExplainForm *f);
// All: lines of text; <section> elements; or Markdown with formulas in dollars.
void explain_print(Text *out, const Explanation *x, const ExplainForm *f);

#endif
