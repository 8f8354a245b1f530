// tensor.c: see tensor.h.
#include "tensor.h"
#include "ir/tile_eval.h"
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool tensor_alloc(Tensor *t, Dtype dtype, int rank, const int64_t *dim) {
    size_t bytes = (size_t)dtype_bytes(dtype);
    *t = (Tensor){.dtype = dtype, .rank = rank, .count = 1};
    for (int i = 0; i < rank; i++) {
        t->dim[i] = dim[i];
        if (dim[i] < 0 || __builtin_mul_overflow(t->count, dim[i], &t->count)) return false;
    }
    if (__builtin_mul_overflow(bytes, (size_t)t->count, &bytes)) return false;
    t->data = malloc(bytes + 16);
    return t->data != NULL;
}

void tensor_free(Tensor *t) {
    free(t->data);
    t->data = NULL;
}

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

float bf16_to_f32(uint16_t h) { return float_of((uint32_t)h << 16); }

uint16_t bf16_from_f32(float f) {
    uint32_t u = bits_of(f);
    if (f != f) return (uint16_t)((u >> 16) | 0x40); // keeps a NaN one
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

float half_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = (h >> 10) & 31, man = h & 0x3ff;
    if (exp == 31) return float_of(sign | 0x7f800000 | (man << 13));
    if (exp != 0) return float_of(sign | ((exp + 112) << 23) | (man << 13));
    float small = (float)man * 0x1p-24f;
    return sign ? -small : small;
}

uint16_t half_from_f32(float f) {
    uint32_t u = bits_of(f), sign = (u >> 16) & 0x8000, mag = u & 0x7fffffff;
    if (mag > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (mag >= 0x477ff000) return (uint16_t)(sign | 0x7c00); // rounds to 65536 or more
    if (mag < 0x38800000) // below the smallest normal: adding 0.5 leaves the rounded multiple of
                          // 2^-24 in the low bits
        return (uint16_t)(sign | (bits_of(float_of(mag) + 0.5f) - 0x3f000000));
    uint32_t even = (mag >> 13) & 1;
    return (uint16_t)(sign | ((mag - 0x38000000 + 0xfff + even) >> 13));
}

float e4m3_to_f32(uint8_t x) {
    int exp = x >> 3 & 15, man = x & 7;
    float v = exp == 15 && man == 7 ? NAN
              : exp                 ? ldexpf((float)(8 + man), exp - 10)
                                    : ldexpf((float)man, -9);
    return x & 128 ? -v : v;
}

// A number that the type holds, or NaN.
static uint8_t e4m3_of(double v) {
    uint8_t sign = signbit(v) ? 128 : 0;
    int e;
    double m = frexp(fabs(v), &e);
    if (v != v) return sign | 0x7f;
    if (fabs(v) < 0x1p-6) return sign | (uint8_t)ldexp(fabs(v), 9);
    return sign | (uint8_t)((e + 6) << 3 | ((int)ldexp(m, 4) & 7));
}

void tensor_read(const Tensor *t, int64_t i, int n, double *out) {
#define READ(T, value)                                                                             \
    for (int k = 0; k < n; k++) {                                                                  \
        T x = ((const T *)t->data)[i + k];                                                         \
        out[k] = value;                                                                            \
    }                                                                                              \
    return
    switch (t->dtype) {
    case DT_F32: READ(float, x);
    case DT_F16: READ(uint16_t, half_to_f32(x));
    case DT_BF16: READ(uint16_t, bf16_to_f32(x));
    case DT_I32: READ(int32_t, x);
    case DT_BOOL: READ(uint8_t, x != 0);
    case DT_E4M3: READ(uint8_t, e4m3_to_f32(x));
    case DT_E5M2: READ(uint8_t, half_to_f32((uint16_t)(x << 8)));
    case DT_I8: READ(int8_t, x);
    case DT_COUNT: break;
    }
#undef READ
    assert(!"the dtype of a tensor");
}

double tensor_get(const Tensor *t, int64_t i) {
    double v = 0;
    tensor_read(t, i, 1, &v);
    return v;
}

void tensor_set(Tensor *t, int64_t i, double v) {
    double near = dtype_byte(t->dtype) ? dtype_round(t->dtype, v) : v;
    switch (t->dtype) {
    case DT_F32: ((float *)t->data)[i] = (float)v; return;
    case DT_F16: ((uint16_t *)t->data)[i] = half_from_f32((float)v); return;
    case DT_BF16: ((uint16_t *)t->data)[i] = bf16_from_f32((float)v); return;
    case DT_I32: ((int32_t *)t->data)[i] = (int32_t)v; return;
    case DT_BOOL: ((uint8_t *)t->data)[i] = v != 0; return;
    case DT_E4M3: ((uint8_t *)t->data)[i] = e4m3_of(near); return;
    case DT_E5M2: ((uint8_t *)t->data)[i] = (uint8_t)(half_from_f32((float)near) >> 8); return;
    case DT_I8: ((int8_t *)t->data)[i] = near == near ? (int8_t)near : 0; return;
    case DT_COUNT: break;
    }
    assert(!"the dtype of a tensor");
}

double *tensor_doubles(const Tensor *t) {
    double *d = malloc(((size_t)t->count + 1) * sizeof *d);
    for (int64_t i = 0, n; d && i < t->count; i += n) {
        n = t->count - i < TENSOR_RUN ? t->count - i : TENSOR_RUN;
        tensor_read(t, i, (int)n, d + i);
    }
    return d;
}

// splitmix64: a counter makes a stream, so that element i of a tensor depends on the seed, the name
// and i alone.
static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static double uniform(uint64_t bits) { return ((double)(bits >> 11) + 0.5) * 0x1p-53; } // in (0, 1)

static uint64_t key_of(uint64_t seed, const char *name) {
    uint64_t key = mix(seed);
    for (const char *c = name; *c; c++) key = mix(key ^ (uint8_t)*c);
    return key;
}

double tensor_uniform(uint64_t seed, const char *name, int64_t i) {
    return uniform(mix(key_of(seed, name) + (uint64_t)i));
}

void tensor_normal(Tensor *t, uint64_t seed, const char *name) {
    uint64_t key = key_of(seed, name);
    if (dtype_reads(t->dtype) != EX_F32) {
        memset(t->data, 0, (size_t)t->count * (size_t)dtype_bytes(t->dtype));
        return;
    }
    for (int64_t i = 0; i < t->count; i += 2) { // Box-Muller gives two at a time
        double r = sqrt(-2 * log(uniform(mix(key + (uint64_t)i))));
        double a = 6.283185307179586 * uniform(mix(key + (uint64_t)i + 1));
        tensor_set(t, i, r * cos(a));
        if (i + 1 < t->count) tensor_set(t, i + 1, r * sin(a));
    }
}

void tensor_normal_repeated(Tensor *t, uint64_t seed, const char *name) {
    Tensor first = *t;
    int64_t all = t->count;
    if (first.count > 1 << 20) first.count = 1 << 20;
    tensor_normal(&first, seed, name);
    size_t item = (size_t)dtype_bytes(t->dtype);
    for (int64_t done = first.count, n; done > 0 && done < all; done += n) {
        n = done < all - done ? done : all - done; // doubles
        memcpy((char *)t->data + (size_t)done * item, t->data, (size_t)n * item);
    }
}

const char *tensor_shape(const Tensor *t, char *buf, size_t n) {
    size_t used = (size_t)snprintf(buf, n, "[");
    for (int i = 0; i < t->rank && used < n; i++)
        used +=
            (size_t)snprintf(buf + used, n - used, "%s%lld", i ? ", " : "", (long long)t->dim[i]);
    if (used < n) snprintf(buf + used, n - used, "]");
    return buf;
}

double tensor_tolerance(Dtype dtype) {
    static const double relative[DT_COUNT] = {
#define TOLERANCE(t, bound) [DT_##t] = bound,
#include "tolerance.def"
    };
    assert(relative[dtype] > 0 && "a type of q, k, v");
    return relative[dtype];
}

double tensor_tolerance_tf32(void) {
#define TOLERANCE_TF32(bound) return bound;
#include "tolerance.def"
}

double tensor_tolerance_gradients(void) {
#define TOLERANCE_GRADIENTS(times) return times;
#include "tolerance.def"
}

bool tensor_holds(Dtype dtype, double x) {
    double most = dtype == DT_F16 ? 65024 : 3.38e38; // nearer to the end it may be rounded beyond
    return !isfinite(x) || fabs(x) <= most;
}

// A bit more than half a unit: a number between two may be rounded to the farther one.
double tensor_step(Dtype dtype) { return dtype == DT_F16 ? 0x1.1p-25 : 0x1p-118; }
