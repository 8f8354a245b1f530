// pool.c: threads that run the tasks of host kernels.
//
// The calling thread only waits: kernels keep their tiles on the stack, and only the pool's own
// threads are known to have a stack for that. One job runs at a time. A job's tasks are handed out
// in pieces from a counter, so that threads that are slowed down by others take fewer. No more
// threads are woken than there are pieces, and who is done takes the places of those that still
// wake: the job waits for no thread that has nothing to do.
#include "rt.h"
#include <stdatomic.h>
#include <stdlib.h>

enum {
    STACK_BYTES = 8 << 20,
    PIECES = 16
}; // pieces per thread: causal tiles differ in length by the number of keys

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t renewing = PTHREAD_MUTEX_INITIALIZER;
static unsigned long forks; // that this process is behind

struct RtPool {
    unsigned long since;  // how many forks there were when its threads began
    pthread_mutex_t turn; // held through a job
    pthread_mutex_t lock; // of what follows
    pthread_cond_t wake, done;
    int places; // of the job that no thread has taken yet: one per piece, at most one per thread
    int busy;   // places that are not done
    bool quit;
    attn_host_kernel f;
    const uint64_t *args;
    int64_t n, piece;
    _Atomic int64_t next;
    int wanted, threads; // that shall run, that do
    pthread_t thread[];
};

static void run_pieces(RtPool *p) {
    for (;;) {
        int64_t first = atomic_fetch_add_explicit(&p->next, p->piece, memory_order_relaxed);
        if (first >= p->n) return;
        int64_t last = p->n - first < p->piece ? p->n : first + p->piece;
        p->f(p->args, first, last);
    }
}

static void *work(void *arg) {
    RtPool *p = arg;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->places && !p->quit) pthread_cond_wait(&p->wake, &p->lock);
        if (p->quit) break;
        p->places--;
        pthread_mutex_unlock(&p->lock);
        run_pieces(p);
        pthread_mutex_lock(&p->lock);
        if (--p->busy == 0) pthread_cond_signal(&p->done);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void in_child(void) {
    renewing = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    forks++;
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, in_child); }

// Starts the threads. Those of a parent are not here: nothing is waited for.
static attn_status begin(RtPool *p, attn_error *error) {
    pthread_attr_t attr;
    if (pthread_attr_init(&attr) != 0) return rt_fail(error, ATTN_ERROR_SYSTEM, "out of memory");
    pthread_mutex_init(&p->turn, NULL);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->done, NULL);
    p->since = forks;
    p->places = 0, p->busy = 0, p->threads = 0, p->quit = false;
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    while (p->threads < p->wanted && pthread_create(&p->thread[p->threads], &attr, work, p) == 0)
        p->threads++;
    pthread_attr_destroy(&attr);
    if (p->threads == p->wanted) return ATTN_OK;
    return rt_fail(error, ATTN_ERROR_SYSTEM, "cannot start %d threads: only %d could be", p->wanted,
                   p->threads);
}

static void end(RtPool *p) {
    if (p->since != forks) return; // they are the parent's
    pthread_mutex_lock(&p->lock);
    p->quit = true;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->threads; i++) pthread_join(p->thread[i], NULL);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->done);
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->turn);
}

static attn_status begin_after_fork(RtPool *p, attn_error *error) {
    pthread_mutex_lock(&renewing);
    attn_status status = p->since == forks ? ATTN_OK : begin(p, error);
    if (status) end(p), p->since = forks - 1; // the next job tries again
    pthread_mutex_unlock(&renewing);
    return status;
}

attn_status rt_pool_run(RtPool *p, attn_host_kernel f, const uint64_t *args, int64_t n,
                        attn_error *error) {
    attn_status status = n > 0 ? begin_after_fork(p, error) : ATTN_OK;
    if (n <= 0 || status) return status;
    pthread_mutex_lock(&p->turn);
    pthread_mutex_lock(&p->lock);
    p->f = f;
    p->args = args;
    p->n = n;
    p->piece = n / ((int64_t)p->threads * PIECES);
    if (p->piece < 1) p->piece = 1;
    atomic_store(&p->next, 0);
    int64_t pieces = (n - 1) / p->piece + 1;
    p->places = p->busy = pieces < p->threads ? (int)pieces : p->threads;
    for (int i = 0; i < p->busy; i++) pthread_cond_signal(&p->wake);
    while (p->busy) pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
    pthread_mutex_unlock(&p->turn);
    return ATTN_OK;
}

void rt_pool_free(RtPool *p) {
    if (p) end(p);
    free(p);
}

attn_status rt_pool(int n, RtPool **out, attn_error *error) {
    RtPool *p = calloc(1, sizeof *p + (size_t)n * sizeof p->thread[0]);
    *out = NULL;
    if (!p) return rt_fail(error, ATTN_ERROR_SYSTEM, "out of memory");
    pthread_once(&once, watch_forks);
    p->wanted = n;
    attn_status status = begin(p, error);
    if (status)
        rt_pool_free(p);
    else
        *out = p;
    return status;
}

int rt_pool_threads(const RtPool *p) { return p->wanted; }
