// artifact.c: any bytes as an artifact: no crash, no read outside, and what is accepted can be
// evaluated. Bare metadata is also tried with its checksum made right, so that fuzzing gets past
// it.
//
//     artifact [FOLDER [SECONDS]]      mutates the fixture's artifacts and the folder's files
//     clang -g -O1 -DLIBFUZZER -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -I.
//     tests/fuzz/artifact.c runtime/abi.c
//         runtime/abi_file.c           the same under libFuzzer
#include "runtime/abi.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void evaluate(const AbiVariant *v) {
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
    memcpy(p, "attnmeta\2\0\0\0", 12);
    for (int i = 0; i < 4; i++) p[12 + i] = (uint8_t)(n >> (8 * i));
    uint64_t sum = abi_fnv(p, 16) * 1099511628211u + abi_fnv(p + HEADER, n - HEADER);
    for (int i = 0; i < 8; i++) p[16 + i] = (uint8_t)(sum >> (8 * i));
    find(p, n);
    free(p);
    return 0;
}

#ifndef LIBFUZZER
#include "tests/unit/runtime_fixture.h"
#include <dirent.h>
#include <stdio.h>
#include <time.h>

enum { MOST_SEEDS = 64, MOST_BYTES = 1 << 16 };

typedef struct Seeds {
    int n;
    struct {
        uint8_t *p;
        size_t n;
    } seed[MOST_SEEDS];
} Seeds;

static void add(Seeds *s, void *p, size_t n) {
    if (s->n < MOST_SEEDS && p) {
        s->seed[s->n].p = p;
        s->seed[s->n++].n = n;
    } else {
        free(p);
    }
}

static void add_folder(Seeds *s, const char *folder) {
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        FILE *f = e->d_name[0] == '.' ? NULL : fopen(path, "rb");
        if (!f) continue;
        uint8_t *p = malloc(MOST_BYTES);
        size_t n = p ? fread(p, 1, MOST_BYTES, f) : 0;
        fclose(f);
        add(s, p, n);
    }
    if (d) closedir(d);
}

static uint64_t next(uint64_t *state) { // xorshift64
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

static size_t mutate(uint8_t *p, size_t n, uint64_t *state) {
    static const uint8_t odd[] = {0, 1, 0x7f, 0x80, 0xff};
    for (uint64_t k = next(state) % 6; n && k; k--) {
        size_t at = next(state) % n, other = next(state) % n, len = next(state) % 16;
        switch (next(state) % 5) {
        case 0: p[at] ^= (uint8_t)(1u << next(state) % 8); break;
        case 1: p[at] = odd[next(state) % sizeof odd]; break;
        case 2: p[at] = (uint8_t)next(state); break;
        case 3: memmove(p + at, p + other, len < n - (at > other ? at : other) ? len : 0); break;
        case 4: n = next(state) % 8 ? n : at; break;
        }
    }
    return n;
}

int main(int argc, char **argv) {
    Seeds seeds = {0};
    AbiMeta m;
    char *text;
    size_t n;
    time_t end = time(NULL) + (argc > 2 ? atoi(argv[2]) : 5);
    uint64_t state = 88172645463325252u, runs = 0;
    uint8_t *bytes = fixture_meta(ABI_CODE_HOST, &n);
    add(&seeds, bytes, n);
    fixture_fill(&m, ABI_CODE_PTX, true);
    if (!abi_ptx(".version 8.0\n", 13, &m, &text, &n)) add(&seeds, text, n);
    if (argc > 1) add_folder(&seeds, argv[1]);
    for (; time(NULL) < end; runs++) {
        int i = (int)(next(&state) % (uint64_t)seeds.n);
        uint8_t *p = malloc(seeds.seed[i].n + 1);
        if (!p) return 1;
        memcpy(p, seeds.seed[i].p, seeds.seed[i].n);
        LLVMFuzzerTestOneInput(p, mutate(p, seeds.seed[i].n, &state));
        free(p);
    }
    for (int i = 0; i < seeds.n; i++) free(seeds.seed[i].p);
    printf("artifact: %llu inputs\n", (unsigned long long)runs);
    return 0;
}
#endif
