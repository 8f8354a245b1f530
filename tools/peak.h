// peak.h: what this machine can do, measured: the roofline that bench compares with on the CPU.
#ifndef TOOLS_PEAK_H
#define TOOLS_PEAK_H

#include "status.h"

typedef struct Peak {
    double flops; // f32 multiply-adds from registers on `threads` threads, 2 FLOP each, per second
    double bytes; // read from memory per second
    int threads;
} Peak;

int peak_threads(void); // processors this process may use
Peak peak_measure(int threads);

#endif
