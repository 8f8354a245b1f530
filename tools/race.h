// race.h: several schedules of one variant, compiled, held against each other on one binding, and
// timed in turns. For `attnc tune`.
#ifndef TOOLS_RACE_H
#define TOOLS_RACE_H

#include "cmd.h"

typedef struct Runner {
    Knobs knobs;
    double expected; // cycles, by counting; 0: not counted
    Compile c;
    Launch l;
    Status status;       // of opening it
    bool agrees;         // its outputs are the first one's
    bool out;            // it is not measured any more
    VEC(double) samples; // of each round, ms
    VEC(double) ratios;  // to the first one's in the same round
    double ms, ratio;    // the medians of those
} Runner;

typedef struct Race {
    Arena *arena;
    const Options *o;
    const char *path;
    TargetId target;
    Dtype dtype;
    attn_context *context; // the CPU's runners share one
    const Binding *b;
    double **want; // outputs of the first, by argument
    VEC(Runner *) runners;
    double begin, until; // ms: when it began, when this stage of it is to end
    bool cut_short;      // a stage had less time than for the rounds that tell differences
} Race;

double race_now_ms(void);
void race_add(Race *r, const Knobs *knobs, double expected);
// Compiles and opens those that are not yet. The first one's failure is the race's; another's takes
// it out.
Status race_open(Race *r);
// Runs each that was not yet, and compares its outputs with the first one's. STATUS_INPUT: they are
// not the same.
Status race_agree(Race *r);
// Measures in rounds, until `until` or until only the first is left; who is far behind leaves. What
// counts is the ratio to the first one, which runs in every round: a device's clock drifts.
Status race_run(Race *r);
Runner *race_best(const Race *r); // the first, unless another is faster by more than the noise
// Why one that is measured faster than the best is not the best; NULL: it is not faster.
const char *race_why_not(const Race *r, const Runner *x);
void race_close(Race *r);

// A line on stderr that the next one replaces where it is a terminal. NULL: it goes away.
void race_progress(const Race *r, const char *what, int i, int n);

#endif
