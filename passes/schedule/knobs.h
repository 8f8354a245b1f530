// knobs.h: the choices of a schedule as named numbers.
//
// Each target has a struct of ints for its choices (tile extents, stages, ...) and a .def file with
// their names and ranges. The struct, this table, the text form and its checks are made from the
// .def file. Choices travel as text, `keys=128,stages=2`: from the command line or a cache to the
// target (PassOptions.schedule), from the pass that chooses to the pass that builds
// (TileSchedule.knobs), and to the user (--emit=schedule). The target itself checks limits that
// depend on several knobs (registers, shared memory).
#ifndef PASSES_KNOBS_H
#define PASSES_KNOBS_H

#include "ir/arena.h"
#include "ir/diag.h"
#include <stdbool.h>
#include <stddef.h>

typedef struct Knob {
    const char *name;
    size_t at;             // of an int in the struct
    int least, most, step; // what it may be: least + i * step
    const char *what;
} Knob;

typedef struct KnobTable {
    const Knob *knobs;
    int n;
} KnobTable;

// A row of a .def file as a row of the table: KNOB(field, least, most, step, what).
#define KNOB_ROW(type, field, least, most, step, what)                                             \
    {#field, offsetof(type, field), least, most, step, what},

typedef struct KnobSetting {
    const char *name; // not terminated
    size_t n;
    int value;
} KnobSetting;

// The next `name=value` of a text; moves *text behind it and a comma. False at the end, and where
// the text is not one: then *text is not at its end.
bool knob_next(const char **text, KnobSetting *out);
// NULL: a text of settings, none of them twice. Otherwise what is wrong with it.
const char *knob_malformed(Arena *a, const char *text);
// Puts what a well-formed text says of the table's knobs into a struct; names of no knob of it are
// passed over (pass_tile asks that every name is a knob of some kernel). False, and an error, for a
// value that the knob cannot have.
bool knob_read(KnobTable t, void *choice, const char *text, Diags *diags);
const char *knob_text(KnobTable t, const void *choice, Arena *a);
// A text with some of its settings replaced by others', all of which it has.
const char *knob_with(Arena *a, const char *text, const char *others);
// The same, and what only the others say behind it.
const char *knob_joined(Arena *a, const char *text, const char *others);
// Whether a text says something of the knob.
bool knob_has(const char *text, const char *name, size_t n);
int knob_value(const char *text, const char *name, int otherwise);

#endif
