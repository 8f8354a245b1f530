// workers.h: work that is divided over processes, one for each core. Each takes the next piece as soon as it has done one.
#ifndef TESTS_SUPPORT_WORKERS_H
#define TESTS_SUPPORT_WORKERS_H

typedef struct Tally {
    int passed, failed;
} Tally;

// Calls piece(context, i, t) for each i below n, in some process, and gives the sum of what was added to t. A piece that
// ends its process, and one that no process is left for, count as a failure of the program `name`.
Tally workers_run(const char *name, int n, void (*piece)(void *context, int i, Tally *t),
                  void *context);

#endif
