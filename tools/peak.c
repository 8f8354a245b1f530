// peak.c: see peak.h. Twelve independent chains of vector multiply-adds, compiled for the vector
// widths that this processor may have, and a sum over memory larger than the caches; on all threads
// at once, the best of a few short rounds.
#include "peak.h"
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CHAINS = 12, LANES = 16, ROUNDS = 4, STEPS = 2000000, MAX_THREADS = 256, MEMORY = 64 << 20 };
typedef float Vec __attribute__((vector_size(LANES * 4)));

// One body, compiled once per instruction set; acc = a * acc + b keeps every chain finite. The
// chains are written out so that every compiler keeps them in registers, and begin with different
// numbers: of equal chains it would make one.
#define EACH_CHAIN(x) x(0) x(1) x(2) x(3) x(4) x(5) x(6) x(7) x(8) x(9) x(10) x(11)
#define CHAIN_BEGIN(i) V acc##i = b * (float)((i) + 1);
#define CHAIN_STEP(i) acc##i = acc##i * a + b;
#define CHAIN_END(i) b += acc##i;
#define FMA_LOOP(name, attribute, lanes)                                                           \
    attribute static float name(long steps) {                                                      \
        typedef float V __attribute__((vector_size((lanes)*4)));                                   \
        V a, b;                                                                                    \
        for (int l = 0; l < (lanes); l++) a[l] = 0.999f, b[l] = 1e-3f * (float)l;                  \
        EACH_CHAIN(CHAIN_BEGIN)                                                                    \
        for (long s = 0; s < steps; s++) {                                                         \
            EACH_CHAIN(CHAIN_STEP)                                                                 \
        }                                                                                          \
        EACH_CHAIN(CHAIN_END)                                                                      \
        float sum = 0;                                                                             \
        for (int l = 0; l < (lanes); l++) sum += b[l];                                             \
        return sum;                                                                                \
    }

FMA_LOOP(fma_plain, , 4)
#if defined(__x86_64__)
FMA_LOOP(fma_avx2, __attribute__((target("avx2,fma"))), 8)
FMA_LOOP(fma_avx512, __attribute__((target("avx512f"))), 16)
#endif

typedef struct Kind {
    float (*run)(long steps);
    int lanes;
} Kind;

static Kind kind(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return (Kind){fma_avx512, 16};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return (Kind){fma_avx2, 8};
#endif
    return (Kind){fma_plain, 4};
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct Work {
    Kind kind;
    const float *memory; // NULL: multiply-adds
    size_t n;
    volatile float sink; // so that the work is not taken out
} Work;

static void *work(void *ctx) {
    Work *w = ctx;
    Vec sum[4];
    if (!w->memory) {
        w->sink = w->kind.run(STEPS);
        return NULL;
    }
    memset(sum, 0, sizeof sum);
    for (size_t i = 0; i + 4 * LANES <= w->n; i += 4 * LANES)
        for (int k = 0; k < 4; k++) {
            Vec v;
            memcpy(&v, w->memory + i + (size_t)k * LANES, sizeof v);
            sum[k] += v;
        }
    w->sink = sum[0][0] + sum[1][0] + sum[2][0] + sum[3][0];
    return NULL;
}

// What threads do a second, of `each` a thread. *threads: at most; as many as could be started.
static double rate(Work *w, int *threads, double each) {
    pthread_t id[MAX_THREADS];
    int n = 1;
    double from = now();
    while (n < *threads && pthread_create(&id[n], NULL, work, &w[n]) == 0) n++;
    work(&w[0]);
    for (int i = 1; i < n; i++) pthread_join(id[i], NULL);
    *threads = n;
    return each * n / (now() - from);
}

int peak_threads(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

Peak peak_measure(int threads) {
    Work w[MAX_THREADS];
    Peak p = {.flops_of = "f32 multiply-adds"};
    size_t n = MEMORY / 4;
    threads = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;
    float *memory = malloc((size_t)threads * n * 4);
    if (memory) memset(memory, 0, (size_t)threads * n * 4);
    for (int i = 0; i < threads; i++) w[i] = (Work){.kind = kind()};
    double flop = 2.0 * STEPS * CHAINS * w[0].kind.lanes;
    for (int r = 0; r < ROUNDS; r++) {
        double flops = rate(w, &threads, flop);
        if (flops > p.flops) p.flops = flops;
    }
    for (int i = 0; i < threads && memory; i++) w[i].memory = memory + (size_t)i * n, w[i].n = n;
    for (int r = 0; r < ROUNDS && memory; r++) {
        double bytes = rate(w, &threads, (double)n * 4);
        if (bytes > p.bytes) p.bytes = bytes;
    }
    snprintf(p.bytes_of, sizeof p.bytes_of, "on %d threads", threads);
    free(memory);
    return p;
}
