// source.c: any bytes as a source file: no crash, and what compiles to tiles is verified and prints
// as something that reads back as itself. Diagnostics must print.
//
//     source [FOLDER [SECONDS]]        mutates the files of stdlib, tests/lang and the folder
//     clang -g -O1 -DLIBFUZZER -fsanitize=fuzzer,address,undefined ...    the same under libFuzzer
#include "ir/tile_eval.h"
#include "tests/support/reformat.h"
#include "tools/compile.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_SEEDS = 512, MOST_BYTES = 1 << 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_tiles(Compile *c) {
    for (int i = 0; i < c->tiles.n; i++) {
        Text t = text_new(c->arena);
        if (!tile_verify(c->tiles.data[i], &c->diags)) abort();
        tile_print(&t, c->tiles.data[i]);
        if (!tile_parse(c->arena, t.s, t.n, &c->diags)) abort();
    }
}

static void print_diagnostics(const Compile *c) {
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    if (!f) return;
    diag_print(&c->diags, f);
    fclose(f);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    Compile c;
    CompileOptions o = {
        .source = {.path = "fuzz.attn", .text = (const char *)data, .text_bytes = n},
        .target = n % 2 ? TARGET_HOST : TARGET_SM80,
        .dtype = n % 2 ? DT_F32 : DT_BF16,
        .level = 2};
    if (compile_open(&c, &o) == FE_OK) {
        Text t = text_new(c.arena);
        fe_print_ast(&t, c.module);
        if (compile_tiles(&c)) check_tiles(&c);
        if (c.diags.internal) abort();
    }
    print_diagnostics(&c);
    if (reformat_wrong(c.arena, (const char *)data, n)) abort();
    compile_close(&c);
    return 0;
}

#ifndef LIBFUZZER
typedef struct Seeds {
    char *text[MOST_SEEDS];
    size_t n[MOST_SEEDS];
    int count;
} Seeds;

static void add_file(Seeds *s, const char *path) {
    FILE *f = fopen(path, "rb");
    char *text = malloc(MOST_BYTES);
    if (f && text && s->count < MOST_SEEDS) {
        s->n[s->count] = fread(text, 1, MOST_BYTES, f);
        s->text[s->count++] = text;
    } else
        free(text);
    if (f) fclose(f);
}

static void add_folder(Seeds *s, const char *folder) {
    char path[512];
    struct dirent *e;
    DIR *d = opendir(folder);
    while (d && (e = readdir(d))) {
        if (!strstr(e->d_name, ".attn")) continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        add_file(s, path);
    }
    if (d) closedir(d);
}

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state >> 16;
}

// Changes a few places: a byte, a piece taken out or said twice, or a piece of another seed.
static size_t mutate(char *out, const Seeds *s, uint64_t *state) {
    static const char alphabet[] = "(){}[]<>=!&|^~+-*/%?:;,. \n0123456789eEsqkvbhd_inf";
    int from = (int)(next(state) % (uint64_t)s->count);
    size_t n = s->n[from];
    memcpy(out, s->text[from], n);
    for (uint64_t k = 1 + next(state) % 4; k > 0 && n > 0; k--) {
        const int other = (int)(next(state) % (uint64_t)s->count);
        size_t at = next(state) % n, len = next(state) % 24;
        const char *piece = out + at;
        switch (next(state) % 4) {
        case 0: out[at] = (char)next(state); break;
        case 1: out[at] = alphabet[next(state) % (sizeof alphabet - 1)]; break;
        case 2:
            len = len < n - at ? len : n - at;
            memmove(out + at, out + at + len, n - at - len);
            n -= len;
            break;
        default:
            if (next(state) % 2 && s->n[other] > len)
                piece = s->text[other] + next(state) % (s->n[other] - len);
            else
                len = len < n - at ? len : n - at;
            if (n + len > 2 * MOST_BYTES) break;
            char copy[24];
            memcpy(copy, piece, len);
            memmove(out + at + len, out + at, n - at);
            memcpy(out + at, copy, len);
            n += len;
        }
    }
    return n;
}

// The same text with other blanks and comments, for the formatter alone.
static void shake(const char *s, size_t n, uint64_t *state) {
    Arena *a = arena_new();
    Text t = reformat_shake(a, s, n, state);
    if (reformat_wrong(a, t.s, t.n)) abort();
    arena_free(a);
}

int main(int argc, char **argv) {
    Seeds s = {.count = 0};
    time_t end = time(NULL) + (argc > 2 ? atoi(argv[2]) : 5);
    uint64_t state = argc > 3 ? strtoull(argv[3], NULL, 10) * 2 + 1 : 88172645463325253u, runs = 0;
    add_folder(&s, "stdlib");
    add_folder(&s, "tests/lang");
    if (argc > 1) add_folder(&s, argv[1]);
    for (; s.count && time(NULL) < end; runs++) {
        char *p = malloc(3 * MOST_BYTES);
        if (!p) return 1;
        size_t n = mutate(p, &s, &state);
        char *exact = malloc(n ? n : 1); // so that a read past the end is seen
        memcpy(exact, p, n);
        LLVMFuzzerTestOneInput((const uint8_t *)exact, n);
        free(exact);
        shake(p, n, &state);
        free(p);
    }
    for (int i = 0; i < s.count; i++) free(s.text[i]);
    printf("source: %llu runs\n", (unsigned long long)runs);
    return runs ? 0 : 1;
}
#endif
