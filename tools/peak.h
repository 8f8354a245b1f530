// peak.h: what this machine can do, measured: the roofline that bench compares with. Here the CPU's:
// f32 multiply-adds from registers, 2 FLOP each, and reads from memory, on all its threads at once.
// probe.h has the GPU's.
#ifndef TOOLS_PEAK_H
#define TOOLS_PEAK_H

#include "status.h"

typedef struct Peak {
    double flops, bytes;  // per second; 0: not known
    const char *flops_of; // "f32 multiply-adds"
    char bytes_of[32];    // "on 2 threads"
} Peak;

int peak_threads(void); // processors this process may use
Peak peak_measure(int threads);

#endif
