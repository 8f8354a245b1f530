// pool.h: seeds on several processes. A process that dies or takes too long is a failure of its
// seed alone; another takes its place.
#ifndef TESTS_GEN_POOL_H
#define TESTS_GEN_POOL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { POOL_MOST = 256 };

typedef struct PoolSlot PoolSlot;

typedef struct PoolHand { // one seed at hand
    uint64_t seed;
    FILE *log;       // what is wrong
    int64_t checked; // added to the total
    bool broken;     // this process can go on no more
    PoolSlot *slot;
} PoolHand;

typedef struct Pool {
    uint64_t first, count; // seeds
    int jobs, seconds;     // 0 seconds: until all seeds have run
    int limit;             // seconds for one seed
    // In a process of its own, before its first seed. NULL: there is nothing to run on.
    void *(*open)(void *ctx);
    bool (*run)(void *ctx, void *opened, PoolHand *h); // true: good
    void *ctx;
} Pool;

typedef struct PoolTotal {
    uint64_t next; // the first seed that has not run: where to go on
    int64_t run, failed, checked;
    double seconds;
    bool nowhere; // no process found anything to run on
} PoolTotal;

PoolTotal pool_run(const Pool *p);
// The time for the current seed begins again (while a failure is reduced).
void pool_again(PoolHand *h);

#endif
