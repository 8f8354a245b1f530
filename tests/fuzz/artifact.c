// artifact.c: any bytes as an artifact. Also with the checksum of bare metadata made right, so that
// a fuzzer gets past it.
//
//     clang -g -O1 -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -I. tests/fuzz/artifact.c
//     runtime/abi.c runtime/abi_file.c
#include "runtime/abi.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void evaluate(const AbiVariant *v) { // what was accepted can be evaluated
    int64_t sizes[ABI_MAX_SIZES], out;
    for (int i = 0; i < ABI_MAX_SIZES; i++) sizes[i] = i;
    for (uint32_t i = 0; i < v->nsizes; i++)
        if (v->sizes[i].def.n) (void)abi_eval(&v->sizes[i].def, sizes, 132, &out);
    for (uint32_t i = 0; i < v->ntensors; i++)
        for (int d = 0; d < v->tensors[i].rank; d++)
            (void)abi_eval(&v->tensors[i].extent[d], sizes, 132, &out);
    for (uint32_t i = 0; i < v->nkernels; i++)
        for (uint32_t d = 0; d < v->kernels[i].ngrid; d++)
            (void)abi_eval(&v->kernels[i].grid[d], sizes, 132, &out);
}

static void find(const uint8_t *data, size_t n) {
    AbiMeta m;
    const void *code;
    size_t code_n;
    if (abi_find(&m, data, n, &code, &code_n)) return;
    for (uint32_t i = 0; i < m.nvariants; i++) evaluate(&m.variants[i]);
    abi_free(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    enum { HEADER = 24 };
    find(data, n);
    if (n < HEADER) return 0;
    uint8_t *p = malloc(n);
    if (!p) return 0;
    memcpy(p, data, n);
    memcpy(p, "attnmeta\1\0\0\0", 12);
    for (int i = 0; i < 4; i++) p[12 + i] = (uint8_t)(n >> (8 * i));
    uint64_t sum = abi_fnv(p, 16) * 1099511628211u + abi_fnv(p + HEADER, n - HEADER);
    for (int i = 0; i < 8; i++) p[16 + i] = (uint8_t)(sum >> (8 * i));
    find(p, n);
    free(p);
    return 0;
}
