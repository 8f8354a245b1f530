#include "tests/support/workers.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct Shared { // by all processes
    atomic_int next, passed, failed, ended;
} Shared;

static void work(Shared *shared, int n, void (*piece)(void *, int, Tally *), void *context) {
    for (int i; (i = atomic_fetch_add(&shared->next, 1)) < n;) {
        Tally t = {0};
        piece(context, i, &t);
        atomic_fetch_add(&shared->passed, t.passed);
        atomic_fetch_add(&shared->failed, t.failed);
        atomic_fetch_add(&shared->ended, 1);
    }
}

Tally workers_run(const char *name, int n, void (*piece)(void *, int, Tally *), void *context) {
    int cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
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
    while (wait(NULL) > 0) continue;
    int lost = n - shared->ended;
    if (lost) printf("FAILED: %d of %d pieces of %s did not end\n", lost, n, name);
    Tally all = {shared->passed, shared->failed + lost};
    munmap(shared, sizeof *shared);
    return all;
}
