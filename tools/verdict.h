// verdict.h: whether what a kernel gives is what the reference says: `attnc check` asks it of each output and gradient, random variants
// (tests/support/differ.c) of gradients.
#ifndef TOOLS_VERDICT_H
#define TOOLS_VERDICT_H

#include "cmd.h"
#include "oracle.h"

// What rounding may do to a gradient, which is known from when it is first asked for. A gradient may be a difference of much larger
// numbers (a power of large scores, a maximum subtracted), or hang on numbers of which f32 holds a few digits. Then nobody computes it
// better.
typedef struct Slack {
    const Variant *v;
    double step; // by which numbers that are read are moved to see what that does
    double
        times; // as much is allowed as by `check`. More than 1: and a gradient that moves by a thousandth is not asked for
    bool
        ends; // inputs are near the ends of f32: a slope may be infinite beside a 0, and the product NaN
    Oracle sizes;     // of all that adds to an element
    Oracle parts;     // of those that the type rounds
    Oracle written;   // as the formula as written gives them in f32
    Oracle opened;    // the reference's where elements that hang on an open decision take part
    Oracle moved;     // how far rounding may move it
    double underflow; // what is lost where a factor of do . v counts as 0
    bool asked;
    Oracle stored; // from factors that are rounded to the type; f16 and bf16 alone
    bool is_stored;
} Slack;
// What moves inputs by a rounding of their type.
double slack_step(bool tf32);
void slack_free(Slack *s);

typedef struct Verdict {
    Error error;
    double bound, most; // of the type alone, and with what rounding in f32 may do
    int64_t row;        // of o, or of a gradient of q, k, v: the one that is farthest off,
    double off, may;    // relative to what it is a sum of
} Verdict;
// Of an output or gradient `arg`; bound: of outputs of the type. x: after oracle_run with ORACLE_OPEN, oracle_leave_out, and of gradients oracle_mute.
Status verdict_of(Verdict *v, Slack *s, const Binding *b, Oracle *x, int arg, double bound);
bool verdict_good(const Verdict *v);
// Whether rounding may be as large as what it is compared with: then it shows nothing.
bool verdict_blind(const Verdict *v);
// The largest number of a recurrence where that is so near to the end of f32 that gradients are not compared; else 0.
double verdict_reach(const Binding *b, const Oracle *x);

#endif
