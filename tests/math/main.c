// main.c: functions of f32 over all arguments.
//
//     check_math [STRIDE [--device=cuda[:N]] [--target=T]]   every argument, or every STRIDE'th of the 2^32
//
// With a device: what a kernel on it makes of each function is within bounds.def. Without:
//
// What the host's code generator makes of a function, in vectors of every width that this machine has, is
// ir/math.c's result bit for bit; what ir/math.c says of each target is within bounds.def of float64.
// Prints the worst error of each, which docs/arithmetic.md shows, and `N passed, N failed`.
#include "ir/expr_ops.h"
#include "ir/math.h"
#include "tests/math/code.h"
#include "tests/math/device.h"

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

enum { BLOCK = 1 << 12, AT_ONCE = 1 << 22, MODELS = 3, CODES = 6, MAX_THREADS = 256 };

// A kernel's exp(x) is exp2(x log2 e): what the product's rounding may do to it, for each unit of |x|.
#define EXP_PRODUCT 8e-8

static const double bounds[EX_OP_COUNT][MODELS] = {
#define BOUND(op, host, nvidia, amd) [EX_##op] = {host, nvidia, amd},
#include "tests/math/bounds.def"
#undef BOUND
};
static const ExOp ops[] = {
#define BOUND(op, host, nvidia, amd) EX_##op,
#include "tests/math/bounds.def"
#undef BOUND
};

typedef struct Code { // to be the same as a model's
    MathCode run;
    bool fused, shared;
    const char *how;
} Code;

typedef struct Job { // a function
    ExOp op;
    uint64_t stride;
    Code codes[CODES];
    int ncodes;
    Math models[MODELS];
    int nmodels;
    MathDevice *device; // NULL: none, models are measured
    const float *given; // by the device, of blocks from `from` on
    uint64_t from;
    _Atomic uint64_t next;
    uint64_t end; // of blocks
    pthread_mutex_t lock;
    double worst[MODELS];
    float at[MODELS][2];
    uint64_t differ[CODES];
    float example[CODES][4];
} Job;

static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static double normal(double x) { return fabs(x) < FLT_MIN ? copysign(0, x) : x; }

static double right(ExOp op, double a, double b) {
    switch ((int)op) {
    case EX_EXP: return exp(a);
    case EX_EXP2: return exp2(a);
    case EX_LOG: return log(a);
    case EX_LOG2: return log2(a);
    case EX_SQRT: return sqrt(a);
    case EX_RSQRT: return a == 0 ? copysign(INFINITY, a) : 1 / sqrt(a);
    case EX_RCP: return 1 / a;
    case EX_TANH: return tanh(a);
    case EX_SIGMOID: return 1 / (1 + exp(-a));
    case EX_SIN: return sin(a);
    case EX_COS: return cos(a);
    case EX_ERF: return erf(a);
    case EX_FLOOR: return floor(a);
    case EX_POW: return pow(a, b);
    case EX_DIV: return a / b;
    default: // MOD: as it is written, in f32
        b *= floor(normal((double)(float)(a / b)));
        return normal((double)((float)a - (float)normal((double)(float)b)));
    }
}

// How many times larger than its result's the error of a power may be: as the exponent's is.
static double stretch(const Math *m, double a, double b) {
    double log = fabs(log2(fabs(normal(a))));
    if (m->kind == KIND_NVPTX && log < 1) log = 1;
    double by = fabs(normal(b)) * log;
    return isfinite(by) ? 1 + by : 1;
}

// The error as bounds.def counts it; infinite where one is no number, or another infinity. At the ends of
// f32 a result may be on either side.
static double error_of(const Math *m, ExOp op, const double *x, double want, float got) {
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got) ? 0 : INFINITY;
    double g = (double)got, size = fabs(want), more = bounds[op][m->kind];
    if (g == want) return 0;
    if (op == EX_POW) {
        double times = stretch(m, x[0], x[1]);
        more *= times, size *= times;
    }
    if (fabs(want) < FLT_MIN * (1 + more) && fabs(g) < FLT_MIN * (1 + more)) return 0;
    bool over = fabs(want) > FLT_MAX * (1 - more), sure = fabs(want) > FLT_MAX * (1 + more);
    if (over && g * want > 0 && (sure ? isinf(got) : fabs(g) > FLT_MAX * (1 - 2 * more))) return 0;
    if (sure) return INFINITY;
    if (m->kind == KIND_NVPTX && (op == EX_LOG || op == EX_LOG2) && size < 1) size = 1;
    return isfinite(g) ? fabs(g - want) / size : INFINITY;
}

// ---- a block of arguments

static uint64_t mixed(uint64_t h) {
    h = (h ^ h >> 33) * 0xff51afd7ed558ccd;
    h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53;
    return h ^ h >> 33;
}

// One argument: all bits in turn. Two: random bits, half of them of ordinary magnitude.
static void arguments(const Job *j, uint64_t from, float *a, float *b) {
    bool two = ex_ops[j->op].arity == 2;
    for (int i = 0; i < BLOCK; i++) {
        uint64_t k = (from + (uint64_t)i) * j->stride, h = mixed(k + 1);
        uint32_t x = two ? (uint32_t)h : (uint32_t)k, y = (uint32_t)(h >> 32);
        if (two && k / j->stride % 2)
            x = (x & 0x87ffffff) | 0x38000000, y = (y & 0x83ffffff) | 0x3c000000;
        memcpy(&a[i], &x, sizeof x);
        memcpy(&b[i], &y, sizeof y);
    }
}

static float modelled(const Math *m, ExOp op, bool shared, float a, float b) {
    float v[] = {a, b};
    if (!shared) return math_apply(m, op, v, ex_ops[op].arity);
    return math_formula(m, op, (float)normal((double)a), (float)normal((double)b));
}

static void compare(Job *j, int c, const float *a, const float *b, const float *got,
                    const float *want) {
    uint64_t differ = 0;
    float example[4] = {0};
    for (int i = 0; i < BLOCK; i++) {
        if (bits_of(want[i]) == bits_of(got[i]) || (isnan(want[i]) && isnan(got[i]))) continue;
        if (!differ++) memcpy(example, (float[]){a[i], b[i], got[i], want[i]}, sizeof example);
    }
    if (!differ) return;
    pthread_mutex_lock(&j->lock);
    if (!j->differ[c]) memcpy(j->example[c], example, sizeof example);
    j->differ[c] += differ;
    pthread_mutex_unlock(&j->lock);
}

// As in a kernel: subnormal operands and results are 0.
static void run_flushing(MathCode code, const float *a, const float *b, float *got) {
#ifdef __SSE__
    unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040);
    code(a, b, got, BLOCK);
    _mm_setcsr(mode);
#else
    code(a, b, got, BLOCK);
#endif
}

static void compare_all(Job *j, const float *a, const float *b) {
    static const Math models[] = {{.kind = KIND_HOST}, {.kind = KIND_HOST, .fused = true}};
    float got[BLOCK], want[4][BLOCK];
    bool has[4] = {false};
    for (int c = 0; c < j->ncodes; c++) {
        const Code *code = &j->codes[c];
        run_flushing(code->run, a, b, got);
        int k = code->fused * 2 + code->shared;
        for (int i = 0; i < BLOCK && !has[k]; i++)
            want[k][i] = modelled(&models[code->fused], j->op, code->shared, a[i], b[i]);
        has[k] = true;
        compare(j, c, a, b, got, want[k]);
    }
}

static void measure(Job *j, int k, const float *a, const float *b, const double *want,
                    const float *given) {
    double worst = 0;
    int at = 0;
    for (int i = 0; i < BLOCK; i++) {
        float got = given ? given[i] : modelled(&j->models[k], j->op, false, a[i], b[i]);
        double x[] = {(double)a[i], (double)b[i]};
        double e = error_of(&j->models[k], j->op, x, want[i], got);
        if (given && j->op == EX_EXP && e < 1) e = fmax(0, e - EXP_PRODUCT * fabs(x[0]));
        if (e > worst) worst = e, at = i;
    }
    if (worst <= j->worst[k]) return;
    pthread_mutex_lock(&j->lock);
    if (worst > j->worst[k]) j->worst[k] = worst, j->at[k][0] = a[at], j->at[k][1] = b[at];
    pthread_mutex_unlock(&j->lock);
}

static void *work(void *p) {
    Job *j = p;
    float a[BLOCK], b[BLOCK];
    double want[BLOCK];
    for (uint64_t at; (at = atomic_fetch_add(&j->next, 1)) < j->end;) {
        const float *given = j->given ? j->given + (at - j->from) * BLOCK : NULL;
        arguments(j, at * BLOCK, a, b);
        for (int i = 0; i < BLOCK; i++)
            want[i] = right(j->op, normal((double)a[i]), normal((double)b[i]));
        compare_all(j, a, b);
        for (int k = 0; k < j->nmodels; k++) measure(j, k, a, b, want, given);
    }
    return NULL;
}

// ---- functions

static void in_threads(Job *j) {
    pthread_t thread[MAX_THREADS];
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    n = n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : n;
    pthread_mutex_init(&j->lock, NULL);
    for (long i = 1; i < n; i++)
        if (pthread_create(&thread[i], NULL, work, j)) n = i;
    work(j);
    for (long i = 1; i < n; i++) pthread_join(thread[i], NULL);
    pthread_mutex_destroy(&j->lock);
}

static bool on_device(Job *j, uint64_t blocks) {
    for (j->from = 0; j->from < blocks; j->from += AT_ONCE / BLOCK) {
        for (uint64_t i = 0; i < AT_ONCE / BLOCK; i++)
            arguments(j, (j->from + i) * BLOCK, math_device_in(j->device, 0) + i * BLOCK,
                      math_device_in(j->device, 1) + i * BLOCK);
        j->given = math_device_run(j->device);
        if (!j->given) return false;
        j->next = j->from;
        j->end = j->from + AT_ONCE / BLOCK;
        in_threads(j);
    }
    return true;
}

static bool run(Job *j) {
    uint64_t blocks = ((uint64_t)1 << 32) / j->stride / BLOCK + 1;
    if (ex_ops[j->op].arity == 2 && blocks > 1 << 14) blocks = 1 << 14;
    if (j->device) return on_device(j, blocks);
    j->end = blocks;
    in_threads(j);
    return true;
}

static int report(const Job *j) {
    int failed = 0;
    printf("%-8s", ex_op_name(j->op));
    for (int k = 0; k < j->nmodels; k++) printf("  %.3g at %.9g", j->worst[k], (double)j->at[k][0]);
    printf("\n");
    for (int k = 0; k < j->nmodels; k++) {
        static const char *const of[] = {"host", "NVIDIA", "AMD"};
        TargetKind kind = j->models[k].kind;
        if (j->worst[k] <= bounds[j->op][kind]) continue;
        printf("FAILED: %s on %s: %.3g off at (%.9g, %.9g), allowed are %.3g\n", ex_op_name(j->op),
               of[kind], j->worst[k], (double)j->at[k][0], (double)j->at[k][1],
               bounds[j->op][kind]);
        failed++;
    }
    for (int c = 0; c < j->ncodes; c++) {
        const float *x = j->example[c];
        if (!j->differ[c]) continue;
        printf("FAILED: %s %s: %llu results differ: of (%.9g, %.9g) %.9g, the model has %.9g\n",
               ex_op_name(j->op), j->codes[c].how, (unsigned long long)j->differ[c], (double)x[0],
               (double)x[1], (double)x[2], (double)x[3]);
        failed++;
    }
    fflush(stdout);
    return failed;
}

static void add_codes(Job *j, MathModule *const *modules, const bool *fused) {
    static const char *const how[][2] = {{"in 16 lanes", "in 16 lanes, shared"},
                                         {"in 8 lanes", "in 8 lanes, shared"},
                                         {"in 4 lanes", "in 4 lanes, shared"}};
    for (int w = 0; w < 3; w++) {
        if (!modules[w]) continue;
        for (int s = 0; s < (j->op == EX_EXP || j->op == EX_POW ? 2 : 1); s++)
            j->codes[j->ncodes++] = (Code){math_code(modules[w], j->op, s), fused[w], s, how[w][s]};
    }
}

static int host(uint64_t stride, int *passed) {
    MathModule *modules[3];
    bool fused[3];
    int failed = 0;
    for (int w = 0; w < 3; w++) modules[w] = math_module(16 >> w, &fused[w]);
    printf("the worst error on the host, on NVIDIA, on AMD\n");
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        Job j = {.op = ops[i], .stride = stride, .nmodels = MODELS};
        j.models[0] = math_of(TARGET_HOST, DT_F32);
        j.models[1] = math_of(TARGET_SM80, DT_F32);
        j.models[2] = math_of(TARGET_GFX942, DT_F32);
        add_codes(&j, modules, fused);
        run(&j);
        int wrong = report(&j);
        failed += wrong, *passed += j.ncodes + MODELS - wrong;
    }
    for (int w = 0; w < 3; w++)
        if (modules[w]) math_module_free(modules[w]);
    return failed;
}

static int device(uint64_t stride, const Options *o, int *passed) {
    int failed = 0;
    TargetId target = cmd_device_target(o, NULL);
    printf("the worst error of kernels for %s\n", target_get(target)->name);
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        MathDevice d;
        Job j = {.op = ops[i], .stride = stride, .nmodels = 1, .device = &d};
        if (ops[i] == EX_RCP) continue; // only the compiler makes it
        j.models[0] = math_of(target, DT_F32);
        bool good = math_device_open(&d, ops[i], AT_ONCE, o) && run(&j);
        math_device_close(&d);
        int wrong = report(&j) + !good;
        failed += wrong > 0, *passed += !wrong;
    }
    return failed;
}

int main(int argc, char **argv) {
    uint64_t stride = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    Arena *a = arena_new();
    Options o;
    int passed = 0, failed;
    char *arguments[16] = {argv[0], "run", "function.attn"};
    for (int i = 2; i < argc && i < 14; i++) arguments[i + 1] = argv[i];
    if (!stride) stride = 1;
    if (argc > 2 && options_parse(&o, a, argc + 1, arguments) != STATUS_DONE) return 2;
    failed = argc > 2 ? device(stride, &o, &passed) : host(stride, &passed);
    printf("%d passed, %d failed\n", passed, failed);
    arena_free(a);
    return failed > 0;
}
