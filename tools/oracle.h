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
    unsigned what;               // ORACLE_*
    bool kinks;                  // see RefRun; of a signature with gradients they are
    double dot_error;            // of the kernel's dot (oracle_dot_error)
    const unsigned char *rows;   // see RefRun; NULL: all
    int rounding;                // see RefRun
    const struct Oracle *opened; // whose open elements have a gradient of 1; NULL: of what came in
} OracleAsk;

typedef struct Oracle {
    double **out;       // per argument: outputs; NULL for the rest
    double **written;   // the same by the formula as written in f32
    double *o_size;     // with ORACLE_WRITTEN: see RefRun
    RefOutside outside; // what -g reports
    RefOpen open;
    int64_t left;        // rows that oracle_leave_out left out
    unsigned char *lost; // 1 of these, and after oracle_gradients of those that RefGrad has so
    int64_t pairs;       // how many took part
    int32_t *
        owners; // of a batch that is not dense: how many sequences have each row of o, each slot of the state
    const unsigned char *rows;
    double dot_error; // as oracle_run was asked
    int n;            // of arguments
    bool room;
} Oracle;

// oracle_free is due whatever comes back.
Status oracle_run(Oracle *x, const Variant *v, const Binding *b, const OracleAsk *ask);
void oracle_free(Oracle *x);
// After oracle_run with ORACLE_OPEN and ORACLE_WRITTEN: rows that the formula as written makes infinite or NaN in f32, and float64 does not,
// hang on that as on an open decision.
void oracle_leave_out(Oracle *x, const Binding *b);
// After oracle_run with ORACLE_WRITTEN: `written` becomes what is farthest from `out` when scores round otherwise.
Status oracle_round_otherwise(Oracle *x, const Variant *v, const Binding *b);
// Of a signature with gradients: sets to 0 what comes in of elements that hang on an open decision, and of rows that are left
// out, so that they add to no gradient. After oracle_run, and before the kernel and oracle_gradients.
void oracle_mute(const Oracle *x, const Binding *b);
// After oracle_run: the outputs that are gradients. They are given whatever ORACLE_OPEN says.
Status oracle_gradients(Oracle *x, const Variant *v, const Binding *b);
// After oracle_run, of an attention: the outputs that are gradients become the sums of the magnitudes of all that adds to them, which what
// a kernel rounds is relative to. oracle_free(sizes) is due.
Status oracle_gradient_sizes(Oracle *sizes, const Oracle *x, const Variant *v, const Binding *b);
// Likewise: dot products are one number, of which no part is rounded to the type.
Status oracle_gradient_parts(Oracle *parts, const Oracle *x, const Variant *v, const Binding *b);
// Likewise, in f16 and bf16: the gradients from factors of products, and an o, that are rounded to that type.
Status oracle_gradients_stored(Oracle *stored, const Oracle *x, const Variant *v, const Binding *b);
// Likewise: the gradients of the formula as written in f32, by steps that are rounded to f32; of a few ways to round dots, scores and
// functions the farthest from x.
Status oracle_gradients_written(Oracle *written, const Oracle *x, const Variant *v,
                                const Binding *b);
// Likewise: the gradients become those where elements that oracle_mute sets to 0 for an open decision have 1. oracle_free(opened) is due.
Status oracle_gradients_opened(Oracle *opened, const Oracle *x, const Variant *v, const Binding *b);
// Likewise: how far each element moves, the most of a few trials, where every number that is read moves by `step`, relative: what
// rounding alone may do.
Status oracle_gradient_noise(Oracle *moved, const Oracle *x, const Variant *v, const Binding *b,
                             double step);
// Each argument that is read as the reference takes it: doubles, or int32_t where it holds integers. NULL: out of memory.
void **oracle_arguments(const Binding *b);
void oracle_free_arguments(void **in, const Binding *b);
// Of a batch that is not dense: about how many pairs its masks let through, of all heads, by the first one's;
// *touched: the share of keys that some query sees.
double oracle_pairs(const Variant *v, const Binding *b, double *touched);
double oracle_dot_error(Dtype t, bool tf32, int D);
// One for each element of an output: 1 where it hangs on an open decision. NULL: nothing is open.
const unsigned char *oracle_open(const Oracle *x, const SigArg *of);
// Prints the outside read as a warning; nothing when there was none. d: whose files it is in.
void oracle_warn(const Oracle *x, const Diags *d, const Variant *v);

#endif
