// tile.c: any bytes as a tile program: no crash, and what is read prints as something that reads
// back as itself.
//
//     tile [FOLDER [SECONDS]]      mutates the programs of tests/tile and the folder's files
//     clang -g -O1 -DLIBFUZZER -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -I.
//     tests/fuzz/tile.c ir/*.c -lm
//         the same under libFuzzer
#include "ir/tile_eval.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char *printed(Arena *a, const TileProgram *p) {
    Text t = text_new(a);
    tile_print(&t, p);
    return t.s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    Arena *a = arena_new();
    Diags diags = diag_list(a);
    TileProgram *p = tile_parse(a, (const char *)data, n, &diags);
    if (p) {
        const char *once = printed(a, p);
        TileProgram *q = tile_parse(a, once, strlen(once), &diags);
        if (!q || strcmp(printed(a, q), once) != 0) abort();
        q = tile_copy(a, p);
        if (strcmp(printed(a, q), once) != 0) abort();
        if (tile_verify(p, &diags) != tile_verify(q, &diags)) abort();
    }
    arena_free(a);
    return 0;
}

#ifndef LIBFUZZER
#include <dirent.h>
#include <stdio.h>
#include <time.h>

enum { MOST_SEEDS = 64, MOST_BYTES = 1 << 16 };

typedef struct Seed {
    char *s;
    size_t n;
} Seed;

static int add_folder(Arena *a, Seed *seeds, int n, const char *folder) {
    DIR *d = opendir(folder);
    for (struct dirent *e; d && n < MOST_SEEDS && (e = readdir(d));) {
        FILE *f =
            e->d_name[0] == '.' ? NULL : fopen(arena_printf(a, "%s/%s", folder, e->d_name), "rb");
        if (!f) continue;
        seeds[n].s = arena_alloc(a, MOST_BYTES);
        seeds[n].n = fread(seeds[n].s, 1, MOST_BYTES, f);
        n += seeds[n].n > 0;
        fclose(f);
    }
    if (d) closedir(d);
    return n;
}

static uint64_t next(uint64_t *state) { // xorshift64
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

// A few bytes changed, and pieces of the text moved over others.
static size_t mutate(char *p, size_t n, uint64_t *state) {
    static const char odd[] = "(){}[]%:=,.-0t@\n\xff";
    for (uint64_t k = next(state) % 4; n && k; k--) {
        size_t at = next(state) % n, other = next(state) % n, len = next(state) % 40;
        switch (next(state) % 4) {
        case 0: p[at] = odd[next(state) % sizeof odd]; break;
        case 1: p[at] = (char)next(state); break;
        case 2: memmove(p + at, p + other, len < n - (at > other ? at : other) ? len : 0); break;
        case 3: n = next(state) % 8 ? n : at; break;
        }
    }
    return n;
}

int main(int argc, char **argv) {
    Arena *a = arena_new();
    Seed seeds[MOST_SEEDS];
    int n = add_folder(a, seeds, 0, "tests/tile");
    if (argc > 1) n = add_folder(a, seeds, n, argv[1]);
    time_t end = time(NULL) + (argc > 2 ? atoi(argv[2]) : 5);
    uint64_t state = 88172645463325252u, runs = 0;
    for (; n && time(NULL) < end; runs++) {
        const Seed *seed = &seeds[next(&state) % (uint64_t)n];
        char *p = malloc(seed->n + 1);
        if (!p) return 1;
        memcpy(p, seed->s, seed->n);
        LLVMFuzzerTestOneInput((const uint8_t *)p, mutate(p, seed->n, &state));
        free(p);
    }
    arena_free(a);
    printf("tile: %llu inputs\n", (unsigned long long)runs);
    return n == 0;
}
#endif
