// explain_say.h: how an explanation is written: names, what formulas have in common, lines. Of the files explain*.c only.
#ifndef PASSES_EXPLAIN_SAY_H
#define PASSES_EXPLAIN_SAY_H

#include "ir/backward.h"
#include "passes/derive/explain.h"

enum { WORTH_A_NAME = 5, MAX_SHARED = 16 }; // nodes; names at a time

typedef struct Explain {
    Explanation *to;
    Arena *arena;
    ExPool *pool;
    const Stream *s;
    const Chunk *c;                  // of a recurrence, which has no stream
    const char *score;               // SYM_S
    const char *mark;                // after the names of states and shifts: "'", "_a" or nothing
    const char *weight, *base, *acc; // names that are the explanation's own
    const Backward *backward;        // whose row scalars SYM_ROW is
    int scale;                       // SYM_RISE: of which scale, ...
    const char *now, *was;           // ... and the marks of the bases
    VEC(const Ex *) shared;          // SYM_LET: named p, p2, ...
    int told;                        // how many are of formulas that are over
    bool said[MAX_SHARED];           // of those after them
    ExplainSection *section;
    ExplainLine *line;
} Explain;

// The name, with as many lines under it as make it the explanation's own.
const char *say_fresh(const RowProgram *p, const char *name);
// A name as an expression.
const Ex *say_named(Explain *x, const char *name, Span span);
const Ex *say_own(Explain *x, const char *name);
const Ex *say_state(Explain *x, int i, const char *mark);
const Ex *say_shift(Explain *x, int i, const char *mark);
const Ex *say_base(Explain *x, int scale, int i, const char *mark);
// The first place on the way down: in the file of the attention, else in any.
Span say_place_of(const Explain *x, const Ex *e);
// From here on, what these formulas have in common has names; each is kept as it is with the names of those before it.
void say_share(Explain *x, const Ex *const *roots, int n);
// As it is to be printed: with the names that it has at this place.
const Ex *say_here(Explain *x, const Ex *e);
void say_section(Explain *x, const char *id, const char *title);
void say_line(Explain *x);
void say_prose(Explain *x, const char *text);
// name NULL: a formula without. Both are as say_here gives them.
void say_formula(Explain *x, const Ex *name, const Ex *e);
void say_equation(Explain *x, const Ex *name, const Ex *e);
// Before a formula: what it has in common with others, if that was not said yet.
void say_shared(Explain *x, const Ex *e);
void say_with_shared(Explain *x, const Ex *name, const Ex *e);

// The backward of the same program. explain_backward.c
void explain_backward(Explain *x);

#endif
