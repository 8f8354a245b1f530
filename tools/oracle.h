// oracle.h: the naive evaluation of a variant over a binding (frontend/reference.h): what check
// compares with, and what runs a recurrence.
#ifndef TOOLS_ORACLE_H
#define TOOLS_ORACLE_H

#include "bind.h"
#include "frontend/frontend.h"
#include "frontend/reference.h"

enum { // what is asked for beside the outputs
    ORACLE_OUTSIDE = 1,
    ORACLE_OPEN = 2,   // of an attention
    ORACLE_WRITTEN = 4 // likewise
};

typedef struct OracleAsk {
    unsigned what;             // ORACLE_*
    double dot_error;          // of the kernel's dot (oracle_dot_error)
    const unsigned char *rows; // see RefRun; NULL: all
} OracleAsk;

typedef struct Oracle {
    double **out;       // per argument: outputs; NULL for the rest
    double **written;   // the same by the formula as written in f32
    double *o_size;     // with ORACLE_WRITTEN: see RefRun
    RefOutside outside; // what -g reports
    RefOpen open;
    int64_t pairs; // how many took part
    const unsigned char *rows;
    int n; // of arguments
    bool room;
} Oracle;

// oracle_free is due whatever comes back.
Status oracle_run(Oracle *x, const Variant *v, const Binding *b, const OracleAsk *ask);
void oracle_free(Oracle *x);
double oracle_dot_error(Dtype t, bool tf32, int D);
// One for each element of an output: 1 where it hangs on an open decision. NULL: nothing is open.
const unsigned char *oracle_open(const Oracle *x, const Tensor *output);
// Prints the outside read as a warning; nothing when there was none. d: whose files it is in.
void oracle_warn(const Oracle *x, const Diags *d, const Variant *v);

#endif
