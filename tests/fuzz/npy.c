// npy.c: any bytes as a .npy file: no crash, no read outside.
//
//     npy [FOLDER [SECONDS]]      mutates a few headers
#include "tools/npy.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    const char *error;
    Npy a;
    if (!npy_parse(data, n, &a, &error)) return 0;
    double sum = 0;
    for (int64_t i = 0; i < a.count; i++) sum += npy_get(&a, i);
    return sum == 0.125 ? -1 : 0; // so that the reads are not taken out
}

#ifndef LIBFUZZER
int main(int argc, char **argv) {
    static const char *const heads[] = {
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }",
        "{'descr': '>f8', 'fortran_order': True, 'shape': (1, 2, 2), }",
        "{'descr': '|b1', 'fortran_order': False, 'shape': (16,), }",
        "{'descr': '<f2', 'fortran_order': True, 'shape': (), }",
    };
    time_t end = time(NULL) + (argc > 2 ? atoi(argv[2]) : 5);
    uint64_t state = 88172645463325252u, runs = 0;
    for (; time(NULL) < end; runs++) {
        const char *head = heads[runs % 4];
        size_t len = strlen(head), n = 10 + len + 32;
        uint8_t *p = calloc(n, 1);
        if (!p) return 1;
        memcpy(p, "\x93NUMPY\x01\x00", 8);
        p[8] = (uint8_t)len;
        memcpy(p + 10, head, len);
        for (int k = (int)(runs % 5); k > 0; k--) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            p[(state >> 20) % n] = (state >> 60) % 2
                                       ? (uint8_t)(state >> 40)
                                       : (uint8_t) "0123456789,()'"[(state >> 40) % 14];
        }
        LLVMFuzzerTestOneInput(p, n - runs % 7);
        free(p);
    }
    printf("npy: %llu runs\n", (unsigned long long)runs);
    return 0;
}
#endif
