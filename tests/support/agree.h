// agree.h: whether an output is what the oracle says: row by row, so that one wrong row among many
// shows, and relative to what the row is a sum of.
#ifndef TESTS_AGREE_H
#define TESTS_AGREE_H

#include "tools/oracle.h"

// A row counts where it hangs on no open decision and where the formula as written in f32 is
// finite and right itself: the contract asks for no more.
typedef struct Agreement {
    double rms, may;    // how far rows are off in the mean, and may be
    double worst, most; // the worst row
    int64_t row;        // which it is
    int64_t rows, counted;
    bool finite; // false: a row is not finite that should be, or otherwise infinite
} Agreement;

// What rows may be off by in the mean where the formula does not cancel.
double agree_bound(Dtype t);
// got: all elements of output `arg`; the oracle was asked for ORACLE_OPEN and ORACLE_WRITTEN.
// t: of q, k and v. What is not good is compared once more where scores of the formula as written round otherwise.
Agreement agree_output(Oracle *x, const Variant *v, const Binding *b, int arg, const double *got,
                       Dtype t);
bool agree_good(const Agreement *a);
void agree_describe(const Agreement *a, const char *output, char *buf, size_t n);

#endif
