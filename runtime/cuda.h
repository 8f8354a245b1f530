// cuda.h: the CUDA driver as a table of functions. Filled by dlopen, or by a test.
#ifndef RUNTIME_CUDA_H
#define RUNTIME_CUDA_H

#include <stddef.h>
#include <stdint.h>

typedef struct CudaAttribute { // CUlaunchAttribute
    int id;
    char pad[4];
    union {
        struct {
            unsigned x, y, z;
        } cluster;
        char room[64];
    };
} CudaAttribute;

typedef struct CudaLaunch { // CUlaunchConfig
    unsigned grid[3], block[3], shared;
    void *stream;
    CudaAttribute *attributes;
    unsigned nattributes;
} CudaLaunch;

typedef struct CudaMap { // CUtensorMap
    _Alignas(64) uint64_t word[16];
} CudaMap;

typedef struct CudaDriver {
    void *library; // of dlopen, or NULL
#define CU(name, symbol, parameters) int(*name) parameters;
#define CU_LATER CU
#include "cuda_driver.def"
#undef CU
#undef CU_LATER
} CudaDriver;

#endif
