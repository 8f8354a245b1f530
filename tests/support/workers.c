#include "tests/support/workers.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct Shared { // by all processes
    atomic_int next, passed, failed;
} Shared;

static void work(Shared *shared, int n, void (*piece)(void *, int, Tally *), void *context) {
    Tally t = {0};
    for (int i; (i = atomic_fetch_add(&shared->next, 1)) < n;) piece(context, i, &t);
    atomic_fetch_add(&shared->passed, t.passed);
    atomic_fetch_add(&shared->failed, t.failed);
}

Tally workers_run(const char *name, int n, void (*piece)(void *, int, Tally *), void *context) {
    int cores = (int)sysconf(_SC_NPROCESSORS_ONLN), status;
    Shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) abort();
    setvbuf(stdout, NULL, _IOLBF, 0); // lines of several processes stay whole
    fflush(stdout);
    for (int i = 0; i < cores && i < n; i++) {
        pid_t child = fork();
        if (child < 0) abort();
        if (child == 0) {
            work(shared, n, piece, context);
            fflush(stdout);
            _exit(EXIT_SUCCESS);
        }
    }
    Tally all = {0};
    while (wait(&status) > 0)
        if (status != 0) all.failed++, printf("FAILED: a process of %s did not end well\n", name);
    all.passed += shared->passed, all.failed += shared->failed;
    munmap(shared, sizeof *shared);
    return all;
}
