// knobs.h: the choices of a schedule: a record of named numbers, made from knobs.def.
//
// A target chooses all knobs of a kernel's form (TileSchedule.knobs), and takes those that it was asked for
// (PassOptions.schedule) in place of its own. The target itself checks limits that depend on several knobs
// (registers, shared memory). As text, `keys=128,stages=2`, knobs stand on the command line, in tile
// programs and in the cache of `attnc tune`.
#ifndef IR_KNOBS_H
#define IR_KNOBS_H

#include "arena.h"
#include "diag.h"
#include <stdbool.h>
#include <stdint.h>

typedef enum KnobForm { // of kernels
    FORM_HOST = 1 << 0,
    FORM_HOST_FEW = 1 << 1, // one query a tile
    FORM_SM80 = 1 << 2,
    FORM_SM80_FEW = 1 << 3,   // parts of a row, and their combination
    FORM_SM90 = 1 << 4,       // in roles
    FORM_SM90_NEST = 1 << 5,  // in roles, of gradients: a tile of keys, which queries pass
    FORM_SM90_CHUNK = 1 << 6, // of recurrences
    FORM_AMD = 1 << 7,
    FORM_SM90_WIDE = 1 << 8,  // half of a wide v in each of two warpgroups
    FORM_SM90_APART = 1 << 9, // the same in roles, and scores in one of their own
} KnobForm;

typedef enum KnobName {
#define KNOB(name, ...) KNOB_##name,
#define OTHERWISE(...)
#include "knobs.def"
#undef KNOB
#undef OTHERWISE
    KNOB_COUNT
} KnobName;

typedef struct Knobs {
    uint32_t said; // 1 << KnobName for each that has a value; the others are 0
    union {
        struct {
#define KNOB(name, ...) int name;
#define OTHERWISE(...)
#include "knobs.def"
#undef KNOB
#undef OTHERWISE
        };
        int value[KNOB_COUNT];
    };
} Knobs;

uint32_t knobs_of(KnobForm form); // all that kernels of the form have, as `said`
static inline bool knobs_say(const Knobs *k, KnobName name) { return k->said >> name & 1; }
bool knobs_same(const Knobs *a, const Knobs *b);
bool knobs_hold(const Knobs *k, const Knobs *others); // whether it says all that the others say
int knobs_order(const Knobs *a, const Knobs *b);      // some order: < 0, 0, > 0
// Takes what was asked for of the form's knobs. False, and an error, for a value that a knob cannot have.
bool knobs_take(Knobs *own, KnobForm form, const Knobs *asked, Diags *diags);
// Some with all that others say.
Knobs knobs_joined(Knobs k, const Knobs *others);

const char *knobs_text(Arena *a, const Knobs *k);
const char *knobs_first(const Knobs *k); // the name of the first that it says; NULL: none
// NULL; or what is wrong with the text: it is no list of settings, says one twice, or there is no such knob.
const char *knobs_parse(Arena *a, const char *text, Knobs *out);
const char *knobs_set(Arena *a, Knobs *k, const char *name, size_t n, int value); // likewise
// NULL; or what is wrong with a kernel's: they are not all of one form, or a value is out of its range.
const char *knobs_wrong(Arena *a, const Knobs *k);

#endif
