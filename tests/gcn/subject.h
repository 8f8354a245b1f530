// subject.h: a variant compiled for an AMD target and run by the interpreter through the runtime.
#ifndef TESTS_GCN_SUBJECT_H
#define TESTS_GCN_SUBJECT_H

#include "tests/gcn/device.h"
#include "tests/support/agree.h"
#include "tools/compile.h"
#include "tools/launch.h"

typedef struct Subject {
    Compile c;
    void *code; // the artifact
    size_t bytes;
    Launch l;
    GcnDevice *device;
} Subject;

// Inputs and what must come out.
typedef struct Trial {
    Binding b;
    Oracle x;
} Trial;

typedef enum Outcome {
    OUTCOME_RIGHT,
    OUTCOME_WRONG,   // numbers
    OUTCOME_FAULT,   // the interpreter reports something
    OUTCOME_REFUSED, // the runtime does not launch it
} Outcome;

typedef struct Report {
    Outcome outcome;
    char text[600];
} Report;

// False: `log` says why. subject_close is due whatever comes back.
bool subject_open(Subject *s, const CompileOptions *o, FILE *log);
void subject_close(Subject *s);
// Loads the code, rewritten by `edit` (NULL: as it is; it must live until the next load).
bool subject_load(Subject *s, const GcnEdit *edit, Report *r);

bool trial_open(Trial *t, Subject *s, const char *shape, const char *offset);
void trial_close(Trial *t);
Report trial_run(Trial *t, Subject *s, uint64_t seed);

#endif
