// pool.c: see pool.h. What processes share is one mapped piece of memory: counters, and a slot for
// each.
#include "tests/gen/pool.h"
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const double LOOKS = 0.05,
                    SAYS = 20; // seconds between looking at processes, and saying how far

struct PoolSlot {
    pid_t pid;
    _Atomic uint64_t seed;
    _Atomic bool busy;
    _Atomic double since;
    bool killed;
};

typedef struct Shared {
    _Atomic uint64_t next, end;
    _Atomic int64_t run, failed, checked;
    PoolSlot slot[POOL_MOST];
} Shared;

typedef struct Run {
    const Pool *p;
    Shared *s;
    int lock; // an open file
    double from, said;
    int dead; // processes that ended without having had a seed
} Run;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void pool_again(PoolHand *h) { h->slot->since = now(); }

// The whole text at once: all processes write to the same place.
static void report(const Run *r, const char *text, size_t n) {
    bool locked = lockf(r->lock, F_LOCK, 0) == 0;
    for (size_t done = 0; done < n;) {
        ssize_t k = write(STDOUT_FILENO, text + done, n - done);
        if (k <= 0) break;
        done += (size_t)k;
    }
    if (locked && lockf(r->lock, F_ULOCK, 0)) return;
}

static void work(const Run *r, PoolSlot *slot) {
    Shared *s = r->s;
    void *opened = r->p->open(r->p->ctx);
    bool broken = !opened;
    while (!broken) {
        PoolHand h = {.seed = s->next++, .slot = slot};
        if (h.seed >= s->end) break;
        char *text = NULL;
        size_t n = 0;
        h.log = open_memstream(&text, &n);
        slot->since = now();
        slot->seed = h.seed;
        slot->busy = true;
        bool good = r->p->run(r->p->ctx, opened, &h);
        fclose(h.log);
        if (!good) report(r, text, n);
        free(text);
        s->checked += h.checked;
        s->run++;
        s->failed += !good;
        slot->busy = false;
        broken = h.broken;
    }
    _exit(opened ? EXIT_SUCCESS : EXIT_FAILURE);
}

static void start(Run *r, PoolSlot *slot) {
    slot->busy = slot->killed = false;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) work(r, slot);
    slot->pid = pid; // by the parent alone: the slot is shared
}

static void failed_alone(Run *r, const PoolSlot *slot, int status) {
    char text[120];
    int n = slot->killed ? snprintf(text, sizeof text, "FAILED: seed %llu: no end after %d s\n",
                                    (unsigned long long)slot->seed, r->p->limit)
                         : snprintf(text, sizeof text, "FAILED: seed %llu: ended with status %d\n",
                                    (unsigned long long)slot->seed, status);
    report(r, text, (size_t)n);
    r->s->run++;
    r->s->failed++;
}

// How many processes still work.
static int look(Run *r) {
    int alive = 0;
    for (int i = 0; i < r->p->jobs; i++) {
        PoolSlot *slot = &r->s->slot[i];
        int status;
        if (slot->pid <= 0) continue;
        if (waitpid(slot->pid, &status, WNOHANG) == slot->pid) {
            slot->pid = 0;
            bool idle = WIFEXITED(status) && WEXITSTATUS(status) == EXIT_FAILURE && !slot->busy;
            if (slot->busy) failed_alone(r, slot, status);
            r->dead += idle;
            if (!idle && r->s->next < r->s->end) start(r, slot);
        } else if (slot->busy && !slot->killed && now() - slot->since > r->p->limit) {
            slot->killed = true;
            kill(slot->pid, SIGKILL);
        }
        alive += slot->pid > 0;
    }
    return alive;
}

static void say(Run *r) {
    const Shared *s = r->s;
    double t = now() - r->from;
    char text[160];
    if (t - r->said < SAYS) return;
    r->said = t;
    int n = snprintf(text, sizeof text, "... %lld run, %lld failed, %.1f a second\n",
                     (long long)s->run, (long long)s->failed, (double)s->run / t);
    report(r, text, (size_t)n);
}

PoolTotal pool_run(const Pool *p) {
    PoolTotal total = {.next = p->first};
    FILE *lock = tmpfile();
    Shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!lock || s == MAP_FAILED) return total;
    Run r = {.p = p, .s = s, .lock = fileno(lock), .from = now()};
    s->next = p->first;
    s->end = p->first + p->count;
    for (int i = 0; i < p->jobs; i++) start(&r, &s->slot[i]);
    while (look(&r)) {
        struct timespec nap = {0, (long)(LOOKS * 1e9)};
        nanosleep(&nap, NULL);
        say(&r);
        if (p->seconds && now() - r.from > p->seconds && s->end > s->next) s->end = s->next;
    }
    total.next = s->next < s->end ? s->next : s->end;
    total.run = s->run;
    total.failed = s->failed;
    total.nowhere = r.dead == p->jobs;
    total.checked = s->checked;
    total.seconds = now() - r.from;
    munmap(s, sizeof *s);
    fclose(lock);
    return total;
}
